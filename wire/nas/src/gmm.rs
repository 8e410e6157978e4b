//! 5GMM messages (TS 24.501 §8.2), one struct each, named as in the standard.
//!
//! Mandatory elements are plain fields, optional ones `Option`, `bool` or an empty list. Elements that nothing
//! here uses are skipped on reception and never sent; docs/spec lists them.

use types::{Dnn, Guti, Key, PduSessionId, Plmn, SNssai, STmsi, Tai};

use crate::{
    AccessType, CipheringAlgorithm, GmmCause, IdentityType, IntegrityAlgorithm, KeySetId, MobileIdentity,
    NetworkFeatures, PayloadType, PsiSet, RegistrationType, RejectedSNssai, RequestType, ServiceType, Timer,
    UeSecurityCapability,
};

/// A plain 5GMM message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // The variants are the structs' names.
pub enum Message {
    RegistrationRequest(RegistrationRequest),
    RegistrationAccept(RegistrationAccept),
    RegistrationComplete,
    RegistrationReject(RegistrationReject),
    DeregistrationRequestUe(DeregistrationRequestUe),
    /// DEREGISTRATION ACCEPT to the UE, in answer to [`DeregistrationRequestUe`].
    DeregistrationAcceptUe,
    DeregistrationRequestNetwork(DeregistrationRequestNetwork),
    /// DEREGISTRATION ACCEPT from the UE, in answer to [`DeregistrationRequestNetwork`].
    DeregistrationAcceptNetwork,
    ServiceRequest(ServiceRequest),
    ServiceAccept(ServiceAccept),
    ServiceReject(ServiceReject),
    ConfigurationUpdateCommand(ConfigurationUpdateCommand),
    ConfigurationUpdateComplete,
    AuthenticationRequest(AuthenticationRequest),
    AuthenticationResponse(AuthenticationResponse),
    AuthenticationReject(AuthenticationReject),
    AuthenticationFailure(AuthenticationFailure),
    AuthenticationResult(AuthenticationResult),
    IdentityRequest(IdentityRequest),
    IdentityResponse(IdentityResponse),
    SecurityModeCommand(SecurityModeCommand),
    SecurityModeComplete(SecurityModeComplete),
    SecurityModeReject(SecurityModeReject),
    Status(Status),
    Notification(Notification),
    NotificationResponse(NotificationResponse),
    UlNasTransport(UlNasTransport),
    DlNasTransport(DlNasTransport),
}

/// REGISTRATION REQUEST (§8.2.6), from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationRequest {
    /// Initial, mobility, periodic …
    pub registration_type: RegistrationType,
    /// Follow-on request pending: keep the connection afterwards.
    pub follow_on: bool,
    /// Key set of the security context the UE has.
    pub ngksi: KeySetId,
    /// SUCI, 5G-GUTI or PEI.
    pub identity: MobileIdentity,
    /// Key set of a non-current native context.
    pub non_current_ngksi: Option<KeySetId>,
    /// 5GMM capability octets.
    pub gmm_capability: Option<Vec<u8>>,
    /// Algorithms of the UE; there in an initial registration.
    pub ue_security_capability: Option<UeSecurityCapability>,
    /// Requested slices, at most 8; mapped HPLMN values are not kept.
    pub requested_nssai: Vec<SNssai>,
    /// Last visited registered TAI.
    pub last_visited_tai: Option<Tai>,
    /// S1 UE network capability octets.
    pub s1_ue_network_capability: Option<Vec<u8>>,
    /// Sessions with uplink data waiting.
    pub uplink_data_status: Option<PsiSet>,
    /// Sessions that are active in the UE.
    pub pdu_session_status: Option<PsiSet>,
    /// Non-3GPP sessions that may move to 3GPP access.
    pub allowed_pdu_session_status: Option<PsiSet>,
    /// Mobile initiated connection only is wished.
    pub mico: bool,
    /// 5G-GUTI from another system's identity mapping.
    pub additional_guti: Option<Guti>,
    /// UE's usage setting: data centric.
    pub data_centric: Option<bool>,
    /// Requested DRX value (§9.11.3.2A).
    pub drx: Option<u8>,
    /// 5GS update type octet (§9.11.3.9A).
    pub update_type: Option<u8>,
    /// The complete message, where this one has only the elements that may go in clear.
    pub nas_message_container: Option<Vec<u8>>,
}

impl RegistrationRequest {
    /// A request with its mandatory elements.
    pub fn new(registration_type: RegistrationType, ngksi: KeySetId, identity: MobileIdentity) -> Self {
        Self {
            registration_type,
            follow_on: false,
            ngksi,
            identity,
            non_current_ngksi: None,
            gmm_capability: None,
            ue_security_capability: None,
            requested_nssai: Vec::new(),
            last_visited_tai: None,
            s1_ue_network_capability: None,
            uplink_data_status: None,
            pdu_session_status: None,
            allowed_pdu_session_status: None,
            mico: false,
            additional_guti: None,
            data_centric: None,
            drx: None,
            update_type: None,
            nas_message_container: None,
        }
    }
}

/// REGISTRATION ACCEPT (§8.2.7), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationAccept {
    /// Access the UE is registered over.
    pub access: AccessType,
    /// SMS over NAS is allowed.
    pub sms_allowed: bool,
    /// Registered for emergency services.
    pub emergency: bool,
    /// New 5G-GUTI; the UE answers with REGISTRATION COMPLETE.
    pub guti: Option<Guti>,
    /// Equivalent PLMNs, at most 15.
    pub equivalent_plmns: Vec<Plmn>,
    /// Registration area, at most 16 tracking areas.
    pub tai_list: Vec<Tai>,
    /// Slices the UE may use, at most 8.
    pub allowed_nssai: Vec<SNssai>,
    /// Slices refused, at most 8.
    pub rejected_nssai: Vec<RejectedSNssai>,
    /// Slices configured for the PLMN, at most 16.
    pub configured_nssai: Vec<SNssai>,
    /// What the network can do.
    pub network_features: Option<NetworkFeatures>,
    /// Sessions that are active in the network.
    pub pdu_session_status: Option<PsiSet>,
    /// Sessions whose user plane could not be set up again.
    pub reactivation_result: Option<PsiSet>,
    /// Why not, for each.
    pub reactivation_errors: Vec<(PduSessionId, GmmCause)>,
    /// Mobile initiated connection only is granted.
    pub mico: bool,
    /// Periodic registration timer.
    pub t3512: Option<Timer>,
    /// Retry timer after failed registrations.
    pub t3502: Option<Timer>,
    /// Active time.
    pub t3324: Option<Timer>,
    /// DRX value the network will use.
    pub drx: Option<u8>,
}

impl RegistrationAccept {
    /// Registered over 3GPP access, nothing else said.
    pub fn new() -> Self {
        Self {
            access: AccessType::ThreeGpp,
            sms_allowed: false,
            emergency: false,
            guti: None,
            equivalent_plmns: Vec::new(),
            tai_list: Vec::new(),
            allowed_nssai: Vec::new(),
            rejected_nssai: Vec::new(),
            configured_nssai: Vec::new(),
            network_features: None,
            pdu_session_status: None,
            reactivation_result: None,
            reactivation_errors: Vec::new(),
            mico: false,
            t3512: None,
            t3502: None,
            t3324: None,
            drx: None,
        }
    }
}

impl Default for RegistrationAccept {
    fn default() -> Self {
        Self::new()
    }
}

/// REGISTRATION REJECT (§8.2.9), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationReject {
    /// Why.
    pub cause: GmmCause,
    /// Back-off after congestion.
    pub t3346: Option<Timer>,
    /// Retry timer.
    pub t3502: Option<Timer>,
    /// Slices refused.
    pub rejected_nssai: Vec<RejectedSNssai>,
}

impl RegistrationReject {
    /// A reject with its cause alone.
    pub fn new(cause: GmmCause) -> Self {
        Self { cause, t3346: None, t3502: None, rejected_nssai: Vec::new() }
    }
}

/// DEREGISTRATION REQUEST from the UE (§8.2.12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeregistrationRequestUe {
    /// The UE switches off: no answer is expected.
    pub switch_off: bool,
    /// Accesses it leaves.
    pub access: AccessType,
    /// Key set of its security context.
    pub ngksi: KeySetId,
    /// 5G-GUTI, or SUCI when it has none.
    pub identity: MobileIdentity,
    /// The complete message, where this one has only the elements that may go in clear.
    pub nas_message_container: Option<Vec<u8>>,
}

/// DEREGISTRATION REQUEST to the UE (§8.2.14).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeregistrationRequestNetwork {
    /// The UE is to register again.
    pub reregistration_required: bool,
    /// Accesses concerned.
    pub access: AccessType,
    /// Why.
    pub cause: Option<GmmCause>,
    /// Back-off.
    pub t3346: Option<Timer>,
    /// Slices refused.
    pub rejected_nssai: Vec<RejectedSNssai>,
}

/// SERVICE REQUEST (§8.2.16), from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRequest {
    /// Key set of its security context.
    pub ngksi: KeySetId,
    /// Signalling, data, answer to paging …
    pub service_type: ServiceType,
    /// Who asks.
    pub s_tmsi: STmsi,
    /// Sessions with uplink data waiting.
    pub uplink_data_status: Option<PsiSet>,
    /// Sessions that are active in the UE.
    pub pdu_session_status: Option<PsiSet>,
    /// Non-3GPP sessions that may move to 3GPP access.
    pub allowed_pdu_session_status: Option<PsiSet>,
    /// The complete message, where this one has only the elements that may go in clear.
    pub nas_message_container: Option<Vec<u8>>,
}

impl ServiceRequest {
    /// A request with its mandatory elements.
    pub fn new(ngksi: KeySetId, service_type: ServiceType, s_tmsi: STmsi) -> Self {
        Self {
            ngksi,
            service_type,
            s_tmsi,
            uplink_data_status: None,
            pdu_session_status: None,
            allowed_pdu_session_status: None,
            nas_message_container: None,
        }
    }
}

/// SERVICE ACCEPT (§8.2.17), to the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceAccept {
    /// Sessions that are active in the network.
    pub pdu_session_status: Option<PsiSet>,
    /// Sessions whose user plane could not be set up again.
    pub reactivation_result: Option<PsiSet>,
    /// Why not, for each.
    pub reactivation_errors: Vec<(PduSessionId, GmmCause)>,
}

/// SERVICE REJECT (§8.2.18), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceReject {
    /// Why.
    pub cause: GmmCause,
    /// Sessions that are active in the network.
    pub pdu_session_status: Option<PsiSet>,
    /// Back-off after congestion.
    pub t3346: Option<Timer>,
}

impl ServiceReject {
    /// A reject with its cause alone.
    pub fn new(cause: GmmCause) -> Self {
        Self { cause, pdu_session_status: None, t3346: None }
    }
}

/// CONFIGURATION UPDATE COMMAND (§8.2.19), to the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigurationUpdateCommand {
    /// The UE is to answer with CONFIGURATION UPDATE COMPLETE.
    pub acknowledge: bool,
    /// The UE is to register again.
    pub registration_requested: bool,
    /// New 5G-GUTI.
    pub guti: Option<Guti>,
    /// New registration area.
    pub tai_list: Vec<Tai>,
    /// Slices the UE may use.
    pub allowed_nssai: Vec<SNssai>,
    /// Slices configured for the PLMN.
    pub configured_nssai: Vec<SNssai>,
    /// Slices refused.
    pub rejected_nssai: Vec<RejectedSNssai>,
    /// Full name of the network, as a phone shows it.
    pub full_name: Option<String>,
    /// Short name of the network.
    pub short_name: Option<String>,
}

/// AUTHENTICATION REQUEST (§8.2.1), to the UE; 5G-AKA when RAND and AUTN are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationRequest {
    /// Key set the new keys will have.
    pub ngksi: KeySetId,
    /// Anti-bidding down between architectures (TS 33.501 annex A.7.1).
    pub abba: Vec<u8>,
    /// Challenge.
    pub rand: Option<[u8; 16]>,
    /// AUTN, by which the UE authenticates the network.
    pub autn: Option<[u8; 16]>,
    /// EAP message, for EAP-AKA'.
    pub eap: Option<Vec<u8>>,
}

/// AUTHENTICATION RESPONSE (§8.2.2), from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationResponse {
    /// RES* of 5G-AKA.
    pub res_star: Option<Key<16>>,
    /// EAP message, for EAP-AKA'.
    pub eap: Option<Vec<u8>>,
}

/// AUTHENTICATION REJECT (§8.2.5), to the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthenticationReject {
    /// EAP failure, for EAP-AKA'.
    pub eap: Option<Vec<u8>>,
}

/// AUTHENTICATION FAILURE (§8.2.4), from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationFailure {
    /// MAC failure, synch failure, ngKSI already in use, non-5G authentication unacceptable.
    pub cause: GmmCause,
    /// AUTS, with synch failure.
    pub auts: Option<[u8; 14]>,
}

/// AUTHENTICATION RESULT (§8.2.3), to the UE, for EAP methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationResult {
    /// Key set of the keys.
    pub ngksi: KeySetId,
    /// EAP message.
    pub eap: Vec<u8>,
    /// Anti-bidding down between architectures.
    pub abba: Option<Vec<u8>>,
}

/// IDENTITY REQUEST (§8.2.21), to the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentityRequest {
    /// Which identity.
    pub identity_type: IdentityType,
}

/// IDENTITY RESPONSE (§8.2.22), from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityResponse {
    /// The identity; [`MobileIdentity::None`] when the UE has not got it.
    pub identity: MobileIdentity,
}

/// SECURITY MODE COMMAND (§8.2.25), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityModeCommand {
    /// Integrity algorithm chosen.
    pub integrity: IntegrityAlgorithm,
    /// Ciphering algorithm chosen.
    pub ciphering: CipheringAlgorithm,
    /// Key set that comes into use.
    pub ngksi: KeySetId,
    /// The UE's security capabilities as the network received them; the UE compares them with its own.
    pub replayed_capability: UeSecurityCapability,
    /// The UE is to send its IMEISV.
    pub imeisv_requested: bool,
    /// EPS algorithms octet, for a UE that can move to EPS.
    pub eps_algorithms: Option<u8>,
    /// KAMF was derived horizontally (HDP).
    pub horizontal_derivation: bool,
    /// The UE is to send its whole initial message again (RINMR).
    pub retransmit_initial: bool,
    /// Anti-bidding down between architectures, after EAP.
    pub abba: Option<Vec<u8>>,
    /// EAP success.
    pub eap: Option<Vec<u8>>,
    /// S1 UE security capability octets, replayed.
    pub replayed_s1_capability: Option<Vec<u8>>,
}

impl SecurityModeCommand {
    /// A command with its mandatory elements.
    pub fn new(
        integrity: IntegrityAlgorithm,
        ciphering: CipheringAlgorithm,
        ngksi: KeySetId,
        replayed_capability: UeSecurityCapability,
    ) -> Self {
        Self {
            integrity,
            ciphering,
            ngksi,
            replayed_capability,
            imeisv_requested: false,
            eps_algorithms: None,
            horizontal_derivation: false,
            retransmit_initial: false,
            abba: None,
            eap: None,
            replayed_s1_capability: None,
        }
    }
}

/// SECURITY MODE COMPLETE (§8.2.26), from the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecurityModeComplete {
    /// IMEISV, when asked for.
    pub imeisv: Option<MobileIdentity>,
    /// The whole initial message, when asked for or when its first form was incomplete.
    pub nas_message_container: Option<Vec<u8>>,
}

/// SECURITY MODE REJECT (§8.2.27), from the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecurityModeReject {
    /// Why.
    pub cause: GmmCause,
}

/// 5GMM STATUS (§8.2.29), both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The error in the message that it answers.
    pub cause: GmmCause,
}

/// NOTIFICATION (§8.2.23), to the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// Access the notification is about.
    pub access: AccessType,
}

/// NOTIFICATION RESPONSE (§8.2.24), from the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NotificationResponse {
    /// Sessions that are active in the UE.
    pub pdu_session_status: Option<PsiSet>,
}

/// UL NAS TRANSPORT (§8.2.10), from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UlNasTransport {
    /// What the payload is.
    pub payload_type: PayloadType,
    /// The payload, a 5GSM message for [`PayloadType::N1Sm`].
    pub payload: Vec<u8>,
    /// Session it belongs to.
    pub pdu_session_id: Option<PduSessionId>,
    /// Session it replaces.
    pub old_pdu_session_id: Option<PduSessionId>,
    /// New or existing session.
    pub request_type: Option<RequestType>,
    /// Slice wished for.
    pub s_nssai: Option<SNssai>,
    /// Data network wished for.
    pub dnn: Option<Dnn>,
    /// For LPP and others.
    pub additional_information: Option<Vec<u8>>,
}

impl UlNasTransport {
    /// A 5GSM message of a session; nothing asked of the AMF.
    pub fn n1_sm(pdu_session_id: PduSessionId, payload: Vec<u8>) -> Self {
        Self {
            payload_type: PayloadType::N1Sm,
            payload,
            pdu_session_id: Some(pdu_session_id),
            old_pdu_session_id: None,
            request_type: None,
            s_nssai: None,
            dnn: None,
            additional_information: None,
        }
    }
}

/// DL NAS TRANSPORT (§8.2.11), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DlNasTransport {
    /// What the payload is.
    pub payload_type: PayloadType,
    /// The payload, a 5GSM message for [`PayloadType::N1Sm`].
    pub payload: Vec<u8>,
    /// Session it belongs to.
    pub pdu_session_id: Option<PduSessionId>,
    /// For LPP and others.
    pub additional_information: Option<Vec<u8>>,
    /// Why the payload comes back.
    pub cause: Option<GmmCause>,
    /// When the UE may try again.
    pub back_off: Option<Timer>,
}

impl DlNasTransport {
    /// A 5GSM message of a session.
    pub fn n1_sm(pdu_session_id: PduSessionId, payload: Vec<u8>) -> Self {
        Self {
            payload_type: PayloadType::N1Sm,
            payload,
            pdu_session_id: Some(pdu_session_id),
            additional_information: None,
            cause: None,
            back_off: None,
        }
    }
}

impl Message {
    /// Name of the message, for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RegistrationRequest(_) => "RegistrationRequest",
            Self::RegistrationAccept(_) => "RegistrationAccept",
            Self::RegistrationComplete => "RegistrationComplete",
            Self::RegistrationReject(_) => "RegistrationReject",
            Self::DeregistrationRequestUe(_) => "DeregistrationRequestUe",
            Self::DeregistrationAcceptUe => "DeregistrationAcceptUe",
            Self::DeregistrationRequestNetwork(_) => "DeregistrationRequestNetwork",
            Self::DeregistrationAcceptNetwork => "DeregistrationAcceptNetwork",
            Self::ServiceRequest(_) => "ServiceRequest",
            Self::ServiceAccept(_) => "ServiceAccept",
            Self::ServiceReject(_) => "ServiceReject",
            Self::ConfigurationUpdateCommand(_) => "ConfigurationUpdateCommand",
            Self::ConfigurationUpdateComplete => "ConfigurationUpdateComplete",
            Self::AuthenticationRequest(_) => "AuthenticationRequest",
            Self::AuthenticationResponse(_) => "AuthenticationResponse",
            Self::AuthenticationReject(_) => "AuthenticationReject",
            Self::AuthenticationFailure(_) => "AuthenticationFailure",
            Self::AuthenticationResult(_) => "AuthenticationResult",
            Self::IdentityRequest(_) => "IdentityRequest",
            Self::IdentityResponse(_) => "IdentityResponse",
            Self::SecurityModeCommand(_) => "SecurityModeCommand",
            Self::SecurityModeComplete(_) => "SecurityModeComplete",
            Self::SecurityModeReject(_) => "SecurityModeReject",
            Self::Status(_) => "Status",
            Self::Notification(_) => "Notification",
            Self::NotificationResponse(_) => "NotificationResponse",
            Self::UlNasTransport(_) => "UlNasTransport",
            Self::DlNasTransport(_) => "DlNasTransport",
        }
    }

    /// Whether a UE sends this message; 5GMM STATUS goes both ways (`None`).
    pub fn sent_by_ue(&self) -> Option<bool> {
        match self {
            Self::Status(_) => None,
            Self::RegistrationRequest(_)
            | Self::RegistrationComplete
            | Self::DeregistrationRequestUe(_)
            | Self::DeregistrationAcceptNetwork
            | Self::ServiceRequest(_)
            | Self::ConfigurationUpdateComplete
            | Self::AuthenticationResponse(_)
            | Self::AuthenticationFailure(_)
            | Self::IdentityResponse(_)
            | Self::SecurityModeComplete(_)
            | Self::SecurityModeReject(_)
            | Self::NotificationResponse(_)
            | Self::UlNasTransport(_) => Some(true),
            _ => Some(false),
        }
    }
}
