//! Calls of the AMF's procedures to the other network functions: AUSF, UDM, PCF, SMF.
//!
//! Each function performs one service operation (TS 29.5xx) with the AMF's own types, and turns every
//! failure into a [`PeerError`], counted by operation. The cause for the UE is chosen in one place:
//! [`PeerError::gmm_cause`] for mobility management (TS 29.524 §4), [`PeerError::payload_cause`] for
//! sessions.

use std::future::Future;

use bytes::Bytes;
use nas::GmmCause;
use ngap::UserLocation;
use sbi::model::amf::{N1N2MessageTransferCause, N1N2MsgTxfrFailureNotification};
use sbi::model::common::{AccessType, NfInstanceId, NrLocation, RatType, ResynchronizationInfo};
use sbi::model::{ausf, common, pcf, smf, udm};
use sbi::op::amf::N1N2TransferFailureNotify;
use sbi::op::ausf::{Authenticate, AuthenticateRequest, Confirm5gAka, Confirm5gAkaRequest, NAUSF_AUTH};
use sbi::op::pcf::{
    CreateAmPolicy, CreateAmPolicyRequest, DeleteAmPolicy, DeleteAmPolicyRequest, GetAmPolicy,
    GetAmPolicyRequest, NPCF_AM, am_notification_uri,
};
use sbi::op::smf::{
    CreateSmContext, CreateSmContextRequest, NSMF_PDUSESSION, ReleaseSmContext, ReleaseSmContextRequest,
    SmContextStatusNotify, UpdateSmContext, UpdateSmContextRequest,
};
use sbi::op::udm::{
    DeregistrationNotify, GetAmData, GetAmDataRequest, GetSmfSelectData, GetSmfSelectDataRequest,
    RegisterAmf, RegisterAmfRequest, SdmNotify, SdmSubscribe, SdmSubscribeRequest, UpdateAmf,
    UpdateAmfRequest,
};
use sbi::{BinaryPart, CallError, Client, Operation, OperationError, ResourceUri, Target, callback_uri};
use types::{Ambr, Dnn, Guami, Key, PduSessionId, Pei, Plmn, SNssai, Supi};

use crate::context::{Amf, SliceDnns, Subscription};
use crate::counters;
use crate::event::N2Info;

/// A failed call, reduced to what the AMF's decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PeerError {
    /// The peer refused with this status and cause.
    #[error("refused: {status} {cause}")]
    Refused { status: u16, cause: String, operation: &'static str },
    /// The peer did not answer in time.
    #[error("no answer in time")]
    Timeout,
    /// The peer cannot be reached, or there is none.
    #[error("not reachable")]
    Unreachable,
    /// The answer is invalid.
    #[error("malformed answer")]
    Malformed,
}

impl PeerError {
    /// Counts a failed call and reduces it to a [`PeerError`].
    fn of<O: Operation>(error: CallError<O::Error>) -> PeerError {
        tracing::warn!(%error, "call to another NF failed");
        let (reduced, why) = match &error {
            CallError::Problem { error, .. } => {
                let problem = error.problem();
                let refused = PeerError::Refused {
                    status: problem.status,
                    cause: problem.cause.clone(),
                    operation: O::SERVICE.name,
                };
                (refused, "refused")
            }
            CallError::Timeout { .. } => (PeerError::Timeout, "timeout"),
            CallError::Unreachable { .. } => (PeerError::Unreachable, "unreachable"),
            CallError::Malformed { .. } => (PeerError::Malformed, "malformed"),
        };
        counters::SBI_FAILURES.inc(&format!("{}:{why}", O::NAME));
        reduced
    }

    /// The 5GMM cause of a registration or service request that failed because of this (TS 29.524 §4).
    pub fn gmm_cause(&self) -> GmmCause {
        let PeerError::Refused { status, cause, operation } = self else { return GmmCause::Congestion };
        match (*status, cause.as_str()) {
            (403, "SERVING_NETWORK_NOT_AUTHORIZED") => GmmCause::ServingNetworkNotAuthorized,
            (403, "ROAMING_NOT_ALLOWED") => GmmCause::RoamingNotAllowedInTrackingArea,
            (403, "RAT_NOT_ALLOWED") => GmmCause::NoSuitableCellsInTrackingArea,
            (403, "AUTHENTICATION_REJECTED" | "INVALID_SCHEME_OUTPUT" | "UNSUPPORTED_PROTECTION_SCHEME") => {
                GmmCause::IllegalUe
            }
            // During identification an unknown user means: no such UE. Later it means: not a 5GS
            // subscriber.
            (404, "USER_NOT_FOUND" | "") if *operation == NAUSF_AUTH.name => GmmCause::IllegalUe,
            (404, _) | (403, _) => GmmCause::FiveGsServicesNotAllowed,
            // Overload and failures of the core: the UE tries again later.
            (500..=599, _) | (429, _) => GmmCause::Congestion,
            _ => GmmCause::ProtocolErrorUnspecified,
        }
    }

    /// The 5GMM cause of a session message that could not be delivered (TS 24.501 §5.4.5.2.5), or of a
    /// user plane that could not be activated (§5.6.1.4.2).
    pub fn payload_cause(&self) -> GmmCause {
        match self {
            PeerError::Refused { cause, .. } => match cause.as_str() {
                "DNN_CONGESTION" => GmmCause::InsufficientResourcesForSliceAndDnn,
                "S_NSSAI_CONGESTION" | "S-NSSAI_CONGESTION" => GmmCause::InsufficientResourcesForSlice,
                "DNN_NOT_SUPPORTED" | "DNN_DENIED" => GmmCause::DnnNotSupportedInSlice,
                "INSUFFICIENT_UP_RESOURCES" => GmmCause::InsufficientUserPlaneResources,
                _ => GmmCause::PayloadNotForwarded,
            },
            _ => GmmCause::PayloadNotForwarded,
        }
    }

    /// Whether the peer does not have the context named in the call.
    pub fn is_not_found(&self) -> bool {
        matches!(self, PeerError::Refused { status: 404, .. })
    }
}

/// A 5G-AKA challenge, with the URI for its confirmation.
#[derive(Debug)]
pub(crate) struct Challenge {
    pub rand: Key<16>,
    pub autn: Key<16>,
    pub hxres_star: Key<16>,
    pub confirmation: ResourceUri,
}

/// The UE's answer to a challenge with an unexpected sequence number.
#[derive(Debug)]
pub(crate) struct Resynchronization {
    pub rand: Key<16>,
    pub auts: Key<14>,
}

/// An AM policy association in a PCF.
#[derive(Debug)]
pub(crate) struct PolicyAssociation {
    pub resource: ResourceUri,
    /// The PCF's bit rate for the UE, which takes precedence over the subscription's.
    pub ue_ambr: Option<Ambr>,
}

/// An SM context in an SMF.
pub(crate) type SmContextRef = ResourceUri;

/// The parameters of a new session.
#[derive(Debug)]
pub(crate) struct SmCreate {
    pub supi: Supi,
    pub pei: Option<Pei>,
    pub session: PduSessionId,
    /// Part of the callback URI: see [`crate::context::PduSession::serial`].
    pub serial: u64,
    pub dnn: Dnn,
    pub s_nssai: SNssai,
    pub location: Option<UserLocation>,
    pub request_type: smf::RequestType,
    pub n1: Bytes,
}

/// An update of an SM context.
#[derive(Debug)]
pub(crate) enum SmUpdate {
    /// A NAS message of the UE.
    N1(Bytes, Option<UserLocation>),
    /// PDU Session Resource Setup Response Transfer.
    SetupDone(Bytes),
    /// PDU Session Resource Setup Unsuccessful Transfer.
    SetupFailed(Bytes),
    /// PDU Session Resource Modify Response Transfer.
    ModifyDone(Bytes),
    /// PDU Session Resource Modify Unsuccessful Transfer.
    ModifyFailed(Bytes),
    /// PDU Session Resource Release Response Transfer.
    ReleaseDone(Bytes),
    /// PDU Session Resource Notify Transfer, or Notify Released Transfer.
    Notify { transfer: Bytes, released: bool },
    /// Activate the user plane.
    Activate(Option<UserLocation>),
    /// The user plane was lost.
    Deactivate(Option<UserLocation>),
    /// The UE's location, without other changes.
    Location(Option<UserLocation>),
}

/// An SMF's answer to an update.
#[derive(Debug, Default)]
pub(crate) struct SmUpdated {
    pub n1: Option<Bytes>,
    pub n2: Option<N2Info>,
}

/// A session operation that the SMF refused, perhaps with a message for the UE or gNB.
#[derive(Debug)]
pub(crate) struct SmError {
    pub error: PeerError,
    pub n1: Option<Bytes>,
    pub n2: Option<N2Info>,
}

/// The client for the other network functions.
#[derive(Debug)]
pub(crate) struct Peers {
    client: Client,
    instance: NfInstanceId,
    /// `http://address:port` of our own SBI, for callbacks.
    api_root: String,
}

impl Peers {
    pub fn new(client: Client, instance: NfInstanceId, api_root: String) -> Peers {
        Peers { client, instance, api_root }
    }

    /// Boxes the call's state, so that a UE's task needs the memory only during the call.
    async fn call<O: Operation>(
        &self,
        target: impl Into<Target>,
        request: O::Request,
    ) -> Result<O::Response, PeerError> {
        Box::pin(self.client.call::<O>(target, request)).await.map_err(PeerError::of::<O>)
    }

    /// Nausf_UEAuthentication: gets a challenge for the UE.
    pub async fn authenticate(
        &self,
        identity: &str,
        serving_network_name: &str,
        resynchronization: Option<Resynchronization>,
    ) -> Result<Challenge, PeerError> {
        let body = ausf::AuthenticationInfo {
            supi_or_suci: identity.to_owned(),
            serving_network_name: serving_network_name.to_owned(),
            resynchronization_info: resynchronization
                .map(|r| ResynchronizationInfo { rand: r.rand, auts: r.auts }),
            pei: None,
            supported_features: None,
        };
        let created = self.call::<Authenticate>(Target::Discover, AuthenticateRequest { body }).await?;
        let confirmation =
            ResourceUri::parse(&created.location, &NAUSF_AUTH).map_err(|_| PeerError::Malformed)?;
        let data = created.body.five_g_auth_data;
        Ok(Challenge { rand: data.rand, autn: data.autn, hxres_star: data.hxres_star, confirmation })
    }

    /// Nausf_UEAuthentication: checks the UE's answer. Returns the subscriber and KSEAF if it is right.
    pub async fn confirm(
        &self,
        confirmation: &ResourceUri,
        res_star: Option<Key<16>>,
    ) -> Result<Option<(Supi, Key<32>)>, PeerError> {
        let body = ausf::ConfirmationData { res_star, supported_features: None };
        let request = Confirm5gAkaRequest { auth_ctx_id: confirmation.id.clone(), body };
        let verdict = self.call::<Confirm5gAka>(confirmation, request).await?;
        match (verdict.auth_result, verdict.supi, verdict.kseaf) {
            (ausf::AuthResult::Success, Some(supi), Some(kseaf)) => Ok(Some((supi, kseaf))),
            (ausf::AuthResult::Success, _, _) => Err(PeerError::Malformed),
            _ => Ok(None),
        }
    }

    /// Nudm_UECM: registers this AMF as serving the UE.
    pub async fn register_amf(&self, supi: Supi, amf: &Amf, pei: Option<Pei>) -> Result<(), PeerError> {
        let body = udm::Amf3GppAccessRegistration {
            amf_instance_id: self.instance,
            dereg_callback_uri: callback_uri::<DeregistrationNotify>(&self.api_root, &supi.to_string()),
            guami: amf.guami,
            rat_type: RatType::Nr,
            initial_registration_ind: Some(true),
            supi: Some(supi),
            pei,
            purge_flag: None,
            ims_vo_ps: None,
            registration_time: None,
            supported_features: None,
        };
        self.call::<RegisterAmf>(Target::Discover, RegisterAmfRequest { ue_id: supi, body }).await.map(drop)
    }

    /// Nudm_UECM: this AMF no longer serves the UE. A failure is counted and changes nothing here.
    pub async fn purge_amf(&self, supi: Supi, guami: Guami) {
        let body = udm::Amf3GppAccessRegistrationModification { guami, purge_flag: Some(true), pei: None };
        _ = self.call::<UpdateAmf>(Target::Discover, UpdateAmfRequest { ue_id: supi, body }).await;
    }

    /// Nudm_SDM: gets the subscription; both data sets in parallel.
    pub async fn subscription(&self, supi: Supi, plmn: Plmn) -> Result<Subscription, PeerError> {
        let plmn_id = Some(plmn);
        let am_data = self.call::<GetAmData>(Target::Discover, GetAmDataRequest { supi, plmn_id, body: () });
        let smf_select = self
            .call::<GetSmfSelectData>(Target::Discover, GetSmfSelectDataRequest { supi, plmn_id, body: () });
        let (am_data, smf_select) = tokio::join!(am_data, smf_select);
        let am_data = am_data?;
        // Without selection data there are no sessions, but registration is possible.
        let smf_select = match smf_select {
            Err(error) if error.is_not_found() => udm::SmfSelectionSubscriptionData::default(),
            other => other?,
        };
        Ok(subscription(am_data, smf_select))
    }

    /// Nudm_SDM_Subscribe: asks the UDM for notifications of changes, as long as this AMF serves the
    /// UE.
    pub async fn subscribe_to_changes(&self, supi: Supi, plmn: Plmn) -> Result<(), PeerError> {
        let body = udm::SdmSubscription {
            nf_instance_id: self.instance,
            callback_reference: callback_uri::<SdmNotify>(&self.api_root, &supi.to_string()),
            monitored_resource_uris: vec![format!("{supi}/am-data"), format!("{supi}/smf-select-data")],
            implicit_unsubscribe: Some(true),
            expires: None,
            single_nssai: None,
            dnn: None,
            plmn_id: Some(plmn),
            subscription_id: None,
            supported_features: None,
        };
        self.call::<SdmSubscribe>(Target::Discover, SdmSubscribeRequest { ue_id: supi, body }).await.map(drop)
    }

    /// Npcf_AMPolicyControl. Without a PCF, or if it refuses, the network continues with local policy.
    pub async fn create_am_policy(
        &self,
        pcf: Target,
        supi: Supi,
        amf: &Amf,
        location: Option<UserLocation>,
        pei: Option<Pei>,
    ) -> Option<PolicyAssociation> {
        let body = pcf::PolicyAssociationRequest {
            notification_uri: am_notification_uri(&self.api_root, &supi.to_string()),
            supi,
            gpsi: None,
            access_type: Some(AccessType::ThreeGpp),
            pei,
            user_loc: location.and_then(location_model),
            time_zone: None,
            serving_plmn: Some(amf.config.plmn),
            rat_type: Some(RatType::Nr),
            rfsp: None,
            ue_ambr: None,
            allowed_snssais: Vec::new(),
            guami: Some(amf.guami),
            service_name: None,
            supp_feat: "0".to_owned(),
        };
        let created = self.call::<CreateAmPolicy>(pcf, CreateAmPolicyRequest { body }).await.ok()?;
        let resource = ResourceUri::parse(&created.location, &NPCF_AM).ok()?;
        Some(PolicyAssociation { resource, ue_ambr: created.body.ue_ambr })
    }

    /// Npcf_AMPolicyControl: whether the PCF has the association.
    pub async fn am_policy(&self, policy: &PolicyAssociation) -> Result<pcf::PolicyAssociation, PeerError> {
        let request = GetAmPolicyRequest { pol_asso_id: policy.resource.id.clone(), body: () };
        match Box::pin(self.client.call::<GetAmPolicy>(&policy.resource, request)).await {
            // What is asked for: no failure.
            Err(error) if error.status() == Some(404) => {
                Err(PeerError::Refused { status: 404, cause: String::new(), operation: NPCF_AM.name })
            }
            answer => answer.map_err(PeerError::of::<GetAmPolicy>),
        }
    }

    /// Npcf_AMPolicyControl: deletes the association. A failure is counted and changes nothing here. An
    /// association that no longer exists is no failure: when a UE registers again, the PCF may replace
    /// the association before the old registration's deletion arrives.
    pub async fn delete_am_policy(&self, policy: PolicyAssociation) {
        let request = DeleteAmPolicyRequest { pol_asso_id: policy.resource.id.clone(), body: () };
        match Box::pin(self.client.call::<DeleteAmPolicy>(&policy.resource, request)).await {
            Ok(()) => {}
            Err(error) if error.status() == Some(404) => {
                tracing::debug!(%error, "the AM policy association is gone already");
            }
            Err(error) => drop(PeerError::of::<DeleteAmPolicy>(error)),
        }
    }

    /// Nsmf_PDUSession: creates a session in an SMF that serves its DNN and slice.
    pub async fn create_sm_context(&self, amf: &Amf, create: SmCreate) -> Result<SmContextRef, SmError> {
        let status_id = session_id(create.supi, create.session, create.serial);
        let (dnn, s_nssai) = (create.dnn.clone(), create.s_nssai);
        let body = smf::SmContextCreateData {
            supi: Some(create.supi),
            unauthenticated_supi: None,
            pei: create.pei,
            gpsi: None,
            pdu_session_id: Some(create.session),
            dnn: Some(create.dnn),
            selected_dnn: None,
            s_nssai: Some(create.s_nssai),
            hplmn_snssai: None,
            serving_nf_id: self.instance,
            guami: Some(amf.guami),
            service_name: None,
            serving_network: amf.config.plmn,
            request_type: Some(create.request_type),
            n1_sm_msg: Some(create.n1.into()),
            an_type: AccessType::ThreeGpp,
            rat_type: Some(RatType::Nr),
            ue_location: create.location.and_then(location_model),
            ue_time_zone: None,
            sm_context_status_uri: callback_uri::<SmContextStatusNotify>(&self.api_root, &status_id),
            old_pdu_session_id: None,
            pcf_id: None,
            sel_mode: Some("VERIFIED".to_owned()),
            supported_features: None,
        };
        let target = Target::Serving { dnn: Some(dnn), snssai: Some(s_nssai) };
        let request = CreateSmContextRequest { body };
        match Box::pin(self.client.call::<CreateSmContext>(target, request)).await {
            Ok(created) => ResourceUri::parse(&created.location, &NSMF_PDUSESSION).map_err(|_| SmError {
                error: PeerError::Malformed,
                n1: None,
                n2: None,
            }),
            Err(error) => {
                let n1 = match &error {
                    CallError::Problem { error, .. } => error.n1_sm_msg.clone().map(BinaryPart::into_bytes),
                    _ => None,
                };
                Err(SmError { error: PeerError::of::<CreateSmContext>(error), n1, n2: None })
            }
        }
    }

    /// Nsmf_PDUSession: updates a session.
    pub async fn update_sm_context(
        &self,
        context: &SmContextRef,
        update: SmUpdate,
    ) -> Result<SmUpdated, SmError> {
        let request =
            UpdateSmContextRequest { sm_context_ref: context.id.clone(), body: update_model(update) };
        match Box::pin(self.client.call::<UpdateSmContext>(context, request)).await {
            Ok(None) => Ok(SmUpdated::default()),
            Ok(Some(updated)) => Ok(SmUpdated {
                n1: updated.n1_sm_msg.map(BinaryPart::into_bytes),
                n2: n2_info(updated.n2_sm_info, updated.n2_sm_info_type),
            }),
            Err(error) => {
                let (n1, n2) = match &error {
                    CallError::Problem { error, .. } => (
                        error.n1_sm_msg.clone().map(BinaryPart::into_bytes),
                        n2_info(error.n2_sm_info.clone(), error.n2_sm_info_type.clone()),
                    ),
                    _ => (None, None),
                };
                Err(SmError { error: PeerError::of::<UpdateSmContext>(error), n1, n2 })
            }
        }
    }

    /// Reports to an SMF why a transfer that was accepted did not reach the UE. A failure is counted
    /// and changes nothing.
    pub async fn transfer_failed(&self, uri: &str, cause: N1N2MessageTransferCause) {
        let body = N1N2MsgTxfrFailureNotification { cause, n1n2_msg_data_uri: uri.to_owned() };
        if let Err(error) = Box::pin(self.client.notify::<N1N2TransferFailureNotify>(uri, body)).await {
            PeerError::of::<N1N2TransferFailureNotify>(error);
        }
    }

    /// Nsmf_PDUSession: releases a session without telling the UE. A failure is counted and changes
    /// nothing here.
    pub async fn release_sm_context(&self, context: &SmContextRef) {
        let request = ReleaseSmContextRequest { sm_context_ref: context.id.clone(), body: None };
        _ = self.call::<ReleaseSmContext>(context, request).await;
    }
}

/// Identifier of a session in the callback URI for its SMF: `imsi-…_5_1234`. The serial distinguishes
/// it from the UE's earlier and later sessions with the same PDU session identity.
fn session_id(supi: Supi, session: PduSessionId, serial: u64) -> String {
    format!("{supi}_{session}_{serial}")
}

/// The session that a callback identifier names.
pub(crate) fn parse_session_id(id: &str) -> Option<(Supi, PduSessionId, u64)> {
    let (rest, serial) = id.rsplit_once('_')?;
    let (supi, session) = rest.rsplit_once('_')?;
    Some((supi.parse().ok()?, PduSessionId::new(session.parse().ok()?).ok()?, serial.parse().ok()?))
}

fn update_model(update: SmUpdate) -> smf::SmContextUpdateData {
    use smf::N2SmInfoType::*;
    let empty = smf::SmContextUpdateData::default();
    let n2 = |transfer: Bytes, kind| smf::SmContextUpdateData {
        n2_sm_info: Some(transfer.into()),
        n2_sm_info_type: Some(kind),
        ..smf::SmContextUpdateData::default()
    };
    let state = |state, location: Option<UserLocation>| smf::SmContextUpdateData {
        up_cnx_state: Some(state),
        ue_location: location.and_then(location_model),
        ..smf::SmContextUpdateData::default()
    };
    match update {
        SmUpdate::N1(n1, location) => smf::SmContextUpdateData {
            n1_sm_msg: Some(n1.into()),
            ue_location: location.and_then(location_model),
            ..empty
        },
        SmUpdate::SetupDone(transfer) => n2(transfer, PduResSetupRsp),
        SmUpdate::SetupFailed(transfer) => n2(transfer, PduResSetupFail),
        SmUpdate::ModifyDone(transfer) => n2(transfer, PduResModRsp),
        SmUpdate::ModifyFailed(transfer) => n2(transfer, PduResModFail),
        SmUpdate::ReleaseDone(transfer) => n2(transfer, PduResRelRsp),
        SmUpdate::Notify { transfer, released: false } => n2(transfer, PduResNty),
        SmUpdate::Notify { transfer, released: true } => n2(transfer, PduResNtyRel),
        SmUpdate::Activate(location) => state(smf::UpCnxState::Activating, location),
        SmUpdate::Deactivate(location) => state(smf::UpCnxState::Deactivated, location),
        SmUpdate::Location(location) => {
            smf::SmContextUpdateData { ue_location: location.and_then(location_model), ..empty }
        }
    }
}

/// N2 information of an SMF; types that an AMF does not forward to a gNB are dropped and counted.
pub(crate) fn n2_info(part: Option<BinaryPart>, kind: Option<smf::N2SmInfoType>) -> Option<N2Info> {
    let transfer = part?.into_bytes();
    match kind? {
        smf::N2SmInfoType::PduResSetupReq => Some(N2Info::Setup(transfer)),
        smf::N2SmInfoType::PduResModReq => Some(N2Info::Modify(transfer)),
        smf::N2SmInfoType::PduResRelCmd => Some(N2Info::Release(transfer)),
        other => {
            counters::SERVICE_REJECTED.inc(other.as_str());
            None
        }
    }
}

/// A UE's location in the form of the SBI; NR only.
fn location_model(location: UserLocation) -> Option<common::UserLocation> {
    match location {
        UserLocation::Nr { ncgi, tai, .. } => Some(common::UserLocation {
            nr_location: Some(NrLocation {
                tai,
                ncgi,
                age_of_location_information: None,
                ue_location_timestamp: None,
            }),
        }),
        UserLocation::Eutra { .. } | UserLocation::N3iwf { .. } => None,
    }
}

fn subscription(
    am_data: udm::AccessAndMobilitySubscriptionData,
    smf_select: udm::SmfSelectionSubscriptionData,
) -> Subscription {
    let (default_slices, slices) =
        am_data.nssai.map(|nssai| (nssai.default_single_nssais, nssai.single_nssais)).unwrap_or_default();
    let dnns = smf_select
        .subscribed_snssai_infos
        .into_iter()
        .filter_map(|(slice, info)| {
            let default = info.dnn_infos.iter().find(|dnn| dnn.default_dnn_indicator == Some(true));
            Some(SliceDnns {
                s_nssai: slice_key(&slice)?,
                // A single DNN is the default even if not marked as such.
                default: default.or(info.dnn_infos.first()).map(|dnn| dnn.dnn.clone()),
                dnns: info.dnn_infos.into_iter().map(|dnn| dnn.dnn).collect(),
            })
        })
        .collect();
    Subscription { ambr: am_data.subscribed_ue_ambr, default_slices, slices, dnns }
}

/// A slice in the form of a map's key: `1-000001`, `1`, or the JSON form that some UDMs use.
fn slice_key(key: &str) -> Option<SNssai> {
    key.parse().ok().or_else(|| serde_json::from_str(key).ok())
}

/// Runs calls to other NFs in parallel in the UE's own task, and returns their results in order.
pub(crate) async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut all_done = true;
        for (future, result) in &mut pending {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(output) => *result = Some(output),
                    std::task::Poll::Pending => all_done = false,
                }
            }
        }
        if all_done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    pending.into_iter().filter_map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, cause: &str, operation: &'static str) -> PeerError {
        PeerError::Refused { status, cause: cause.to_owned(), operation }
    }

    #[test]
    fn causes_follow_ts_29_524() {
        let cases = [
            (refused(404, "USER_NOT_FOUND", "nausf-auth"), GmmCause::IllegalUe),
            (refused(404, "USER_NOT_FOUND", "nudm-sdm"), GmmCause::FiveGsServicesNotAllowed),
            (refused(403, "UNKNOWN_5GS_SUBSCRIPTION", "nudm-uecm"), GmmCause::FiveGsServicesNotAllowed),
            (
                refused(403, "SERVING_NETWORK_NOT_AUTHORIZED", "nausf-auth"),
                GmmCause::ServingNetworkNotAuthorized,
            ),
            (refused(403, "ROAMING_NOT_ALLOWED", "nudm-uecm"), GmmCause::RoamingNotAllowedInTrackingArea),
            (refused(503, "NF_CONGESTION", "nudm-sdm"), GmmCause::Congestion),
            (refused(504, "", "nausf-auth"), GmmCause::Congestion),
            (PeerError::Timeout, GmmCause::Congestion),
            (PeerError::Unreachable, GmmCause::Congestion),
        ];
        for (error, cause) in cases {
            assert_eq!(error.gmm_cause(), cause, "{error:?}");
        }
    }

    #[test]
    fn session_callbacks_name_one_session() {
        let supi: Supi = "imsi-999700000000001".parse().unwrap();
        let id = PduSessionId::new(5).unwrap();
        assert_eq!(parse_session_id(&session_id(supi, id, 7)), Some((supi, id, 7)));
        for bad in [
            "",
            "imsi-999700000000001",
            "imsi-999700000000001_5",
            "imsi-999700000000001_16_7",
            "_5_7",
            "imsi-x_5_7",
        ] {
            assert_eq!(parse_session_id(bad), None, "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn joined_calls_run_at_the_same_time_and_keep_their_order() {
        let started = net::time::now();
        let calls = [30u64, 10, 20]
            .map(|ms| async move {
                net::time::sleep(std::time::Duration::from_millis(ms)).await;
                ms
            })
            .into_iter()
            .collect();
        assert_eq!(join_all(calls).await, [30, 10, 20]);
        assert_eq!(started.elapsed(), std::time::Duration::from_millis(30));
    }
}
