//! Nudr_DataRepository (TS 29.504, TS 29.505, TS 29.519): what is not already Nudm's.

use std::collections::BTreeMap;

use types::{Dnn, Key, SNssai, Supi};

use super::{
    common::{AuthType, NotifyItem},
    model, open_enum,
};

open_enum! {
    /// How sequence numbers advance (TS 33.102 annex C).
    pub enum SqnScheme { General = "GENERAL", NonTimeBased = "NON_TIME_BASED", TimeBased = "TIME_BASED", }
}

model! {
    /// Credentials of a subscriber. Keys never show in `Debug`.
    pub struct AuthenticationSubscription {
        authentication_method: AuthType,
        ? enc_permanent_key: Key<16>,
        ? protection_parameter_id: String,
        ? sequence_number: SequenceNumber,
        ? authentication_management_field: Key<2>,
        ? algorithm_id: String,
        ? enc_opc_key: Key<16>,
        ? enc_topc_key: Key<16>,
        ? supi: Supi,
    }

    /// Sequence number state; `sqn` is 48 bits.
    pub struct SequenceNumber {
        ? sqn_scheme: SqnScheme,
        ? sqn: Key<6>,
        * last_indexes: BTreeMap<String, u32>,
        ? ind_length: u8,
    }

    /// Asks the UDR for notifications when data change; of every subscriber when it names none.
    pub struct SubscriptionDataSubscriptions {
        ? ue_id: Supi,
        callback_reference: String,
        * monitored_resource_uris: Vec<String>,
    }

    /// The UDR tells what has changed. Without items everything may have.
    pub struct DataChangeNotify {
        * original_callback_reference: Vec<String>,
        ? ue_id: Supi,
        * notify_items: Vec<NotifyItem>,
    }

    /// Access and mobility policy data of a subscriber (TS 29.519 §5.4.2.2).
    #[derive(Default)]
    pub struct AmPolicyData {
        * subsc_cats: Vec<String>,
    }

    /// Session policy data of a subscriber, by slice (`sst` or `sst-sd`).
    #[derive(Default)]
    pub struct SmPolicyData {
        * sm_policy_snssai_data: BTreeMap<String, SmPolicySnssaiData>,
    }

    /// Session policy data of one slice, by DNN.
    pub struct SmPolicySnssaiData {
        snssai: SNssai,
        * sm_policy_dnn_data: BTreeMap<Dnn, SmPolicyDnnData>,
    }

    /// Session policy data of one DNN.
    pub struct SmPolicyDnnData {
        dnn: Dnn,
        * allowed_services: Vec<String>,
        * subsc_cats: Vec<String>,
        ? gbr_ul: types::BitRate,
        ? gbr_dl: types::BitRate,
    }
}
