//! Nausf_UEAuthentication (TS 29.509).

use std::collections::BTreeMap;

use types::{Key, Supi};

use super::{
    common::{AuthType, Link, ResynchronizationInfo},
    model, open_enum,
};

open_enum! {
    /// How an authentication ended.
    pub enum AuthResult {
        Success = "AUTHENTICATION_SUCCESS",
        Failure = "AUTHENTICATION_FAILURE",
        Ongoing = "AUTHENTICATION_ONGOING",
    }
}

model! {
    /// Begins an authentication.
    pub struct AuthenticationInfo {
        supi_or_suci: String,
        serving_network_name: String,
        ? resynchronization_info: ResynchronizationInfo,
        ? pei: types::Pei,
        ? supported_features: String,
    }

    /// An authentication under way.
    pub struct UeAuthenticationCtx: Hal {
        auth_type: AuthType,
        #[serde(rename = "5gAuthData")]
        five_g_auth_data: Av5gAka,
        #[serde(rename = "_links")]
        links: BTreeMap<String, Link>,
        ? serving_network_name: String,
    }

    /// What the serving network needs of a 5G-AKA vector.
    pub struct Av5gAka {
        rand: Key<16>,
        hxres_star: Key<16>,
        autn: Key<16>,
    }

    /// The UE's answer; `None` when it failed to authenticate the network.
    pub struct ConfirmationData {
        res_star: Option<Key<16>>,
        ? supported_features: String,
    }

    /// AUSF's verdict.
    pub struct ConfirmationDataResponse {
        auth_result: AuthResult,
        ? supi: Supi,
        ? kseaf: Key<32>,
        ? supported_features: String,
    }
}
