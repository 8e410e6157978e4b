//! Nnrf_NFManagement and Nnrf_NFDiscovery (TS 29.510).

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use types::{AmfId, Dnn, Guami, Plmn, SNssai, Tai};

use super::{
    common::{DateTime, Link, NfInstanceId},
    model, open_enum,
};
use crate::{
    codec::{Codec, Payload},
    operation::{Message, OperationError},
    problem::ProblemDetails,
};

open_enum! {
    /// Kind of network function.
    pub enum NfType {
        Nrf = "NRF", Udm = "UDM", Amf = "AMF", Smf = "SMF", Ausf = "AUSF", Nef = "NEF", Pcf = "PCF",
        Smsf = "SMSF", Nssf = "NSSF", Udr = "UDR", Lmf = "LMF", Gmlc = "GMLC", Upf = "UPF", Af = "AF",
        Bsf = "BSF", Chf = "CHF", Nwdaf = "NWDAF", Scp = "SCP",
    }
    /// State of an NF instance or of one of its services.
    pub enum NfStatus {
        Registered = "REGISTERED", Suspended = "SUSPENDED", Undiscoverable = "UNDISCOVERABLE",
    }
    /// `http` or `https`.
    pub enum UriScheme { Http = "http", Https = "https", }
    /// What happened to an NF instance.
    pub enum NotificationEventType {
        Registered = "NF_REGISTERED", Deregistered = "NF_DEREGISTERED", ProfileChanged = "NF_PROFILE_CHANGED",
    }
}

model! {
    /// An NF instance. Attributes not listed are kept as they came.
    pub struct NfProfile {
        nf_instance_id: NfInstanceId,
        nf_type: NfType,
        nf_status: NfStatus,
        ? heart_beat_timer: u32,
        * plmn_list: Vec<Plmn>,
        #[serde(rename = "sNssais")]
        * s_nssais: Vec<SNssai>,
        ? fqdn: String,
        * ipv4_addresses: Vec<Ipv4Addr>,
        * ipv6_addresses: Vec<Ipv6Addr>,
        ? priority: u16,
        ? capacity: u16,
        ? load: u8,
        * allowed_nf_types: Vec<NfType>,
        ? amf_info: AmfInfo,
        ? smf_info: SmfInfo,
        * nf_services: Vec<NfService>,
        * nf_service_list: BTreeMap<String, NfService>,
        ? recovery_time: DateTime,
        #[serde(flatten)]
        other: serde_json::Map<String, serde_json::Value>,
    }

    /// A service that an instance offers.
    pub struct NfService {
        service_instance_id: String,
        service_name: String,
        versions: Vec<NfServiceVersion>,
        scheme: UriScheme,
        nf_service_status: NfStatus,
        ? fqdn: String,
        * ip_end_points: Vec<IpEndPoint>,
        ? api_prefix: String,
        ? priority: u16,
        ? capacity: u16,
        ? load: u8,
        ? supported_features: String,
        * allowed_nf_types: Vec<NfType>,
        ? oauth2_required: bool,
        #[serde(flatten)]
        other: serde_json::Map<String, serde_json::Value>,
    }

    /// A version of a service.
    pub struct NfServiceVersion {
        api_version_in_uri: String,
        api_full_version: String,
    }

    /// Where a service listens.
    pub struct IpEndPoint {
        ? ipv4_address: Ipv4Addr,
        ? ipv6_address: Ipv6Addr,
        ? transport: String,
        ? port: u16,
    }

    /// What an AMF serves.
    pub struct AmfInfo {
        amf_set_id: String,
        amf_region_id: String,
        guami_list: Vec<Guami>,
        * tai_list: Vec<Tai>,
        #[serde(flatten)]
        other: serde_json::Map<String, serde_json::Value>,
    }

    /// What an SMF serves.
    pub struct SmfInfo {
        #[serde(rename = "sNssaiSmfInfoList")]
        s_nssai_smf_info_list: Vec<SNssaiSmfInfoItem>,
        * tai_list: Vec<Tai>,
        #[serde(flatten)]
        other: serde_json::Map<String, serde_json::Value>,
    }

    /// What an SMF serves on a slice.
    pub struct SNssaiSmfInfoItem {
        s_nssai: SNssai,
        dnn_smf_info_list: Vec<DnnSmfInfoItem>,
    }

    /// A DNN that an SMF serves.
    pub struct DnnSmfInfoItem {
        dnn: Dnn,
        #[serde(flatten)]
        other: serde_json::Map<String, serde_json::Value>,
    }

    /// Result of a discovery; `validity_period` in seconds.
    pub struct SearchResult {
        validity_period: u32,
        nf_instances: Vec<NfProfile>,
    }

    /// List of instances.
    pub struct UriList: Hal {
        #[serde(rename = "_links")]
        links: UriListLinks,
        ? total_item_count: usize,
    }

    /// The links of a [`UriList`].
    pub struct UriListLinks {
        item: Vec<Link>,
    }

    /// Asks NRF for notifications.
    pub struct SubscriptionData {
        nf_status_notification_uri: String,
        ? req_nf_instance_id: NfInstanceId,
        ? subscr_cond: SubscrCond,
        ? subscription_id: String,
        ? validity_time: DateTime,
        * req_notif_events: Vec<NotificationEventType>,
        ? req_nf_type: NfType,
    }

    /// Which instances; one attribute is set.
    #[derive(Default)]
    pub struct SubscrCond {
        ? nf_instance_id: NfInstanceId,
        ? nf_type: NfType,
        ? service_name: String,
    }

    /// NRF says what happened to an instance.
    pub struct NotificationData {
        event: NotificationEventType,
        nf_instance_uri: String,
        ? nf_profile: NfProfile,
    }

    /// Asks for an access token; travels as a form (TS 29.510 §6.3.5.2.2, RFC 6749 §4.4.2, RFC 7523 §2.2).
    pub struct AccessTokenReq: Form {
        #[serde(rename = "grant_type")]
        grant_type: String,
        nf_instance_id: NfInstanceId,
        ? nf_type: NfType,
        ? target_nf_type: NfType,
        scope: String,
        ? target_nf_instance_id: NfInstanceId,
        #[serde(rename = "client_assertion_type")]
        ? client_assertion_type: String,
        #[serde(rename = "client_assertion")]
        ? client_assertion: TokenText,
    }

    /// An access token (TS 29.510 §6.3.5.2.3). `scope` is there when it is not what was asked for.
    pub struct AccessTokenRsp {
        #[serde(rename = "access_token")]
        access_token: TokenText,
        #[serde(rename = "token_type")]
        token_type: String,
        #[serde(rename = "expires_in")]
        ? expires_in: u32,
        ? scope: String,
    }
}

impl AccessTokenReq {
    /// The only grant type there is.
    pub const CLIENT_CREDENTIALS: &str = "client_credentials";
    /// Type of the assertions by which an NF proves itself.
    pub const JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
}

/// A token or assertion as text. Whoever has it may use it, so `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct TokenText(String);

impl TokenText {
    /// The text, to send or to verify it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for TokenText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Debug for TokenText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenText({} octets)", self.0.len())
    }
}

/// Why there is no token (TS 29.510 §6.3.5.2.5, RFC 6749 §5.2).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AccessTokenErr {
    /// `invalid_client`, `invalid_scope` and the like.
    pub error: String,
    /// For people.
    #[serde(default, rename = "error_description", skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The same as a problem; the standard's form has no place for it.
    #[serde(skip)]
    problem: Box<ProblemDetails>,
}

impl AccessTokenErr {
    /// A refusal: status 400, as RFC 6749 §5.2 wants it.
    pub fn new(error: &str, description: impl std::fmt::Display) -> Self {
        let description = description.to_string();
        let problem = ProblemDetails::new(400, error).detail(&description);
        Self { error: error.to_owned(), description: Some(description), problem: Box::new(problem) }
    }
}

impl Message for AccessTokenErr {}

impl From<ProblemDetails> for AccessTokenErr {
    fn from(problem: ProblemDetails) -> Self {
        let description = problem.detail.clone();
        Self { error: "invalid_request".to_owned(), description, problem: Box::new(problem) }
    }
}

impl OperationError for AccessTokenErr {
    fn problem(&self) -> &ProblemDetails {
        &self.problem
    }

    fn encode(self, codec: Codec) -> Payload {
        codec.encode(self)
    }

    fn decode(payload: Payload, codec: Codec) -> Option<Self> {
        let read: Self = codec.decode(payload).ok()?;
        Some(Self::new(&read.error, read.description.unwrap_or_default()))
    }
}

impl AmfInfo {
    /// What the AMF with these GUAMIs serves. `None` when there is none.
    pub fn new(guami_list: Vec<Guami>, tai_list: Vec<Tai>) -> Option<Self> {
        let id: AmfId = guami_list.first()?.amf_id;
        let (amf_set_id, amf_region_id) = (format!("{:03x}", id.set()), format!("{:02x}", id.region()));
        Some(Self { amf_set_id, amf_region_id, guami_list, tai_list, other: serde_json::Map::new() })
    }
}
