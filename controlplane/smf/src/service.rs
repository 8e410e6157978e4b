//! Nsmf_PDUSession (TS 29.502) and the SMF's callbacks: calls the procedure for each operation.

use std::sync::Arc;

use nas::gsm::{ModificationReject, ReleaseReject, SmHeader};
use nas::{GsmCause, SmBody};
use sbi::model::amf::N1N2MsgTxfrFailureNotification;
use sbi::model::nrf::NotificationData;
use sbi::model::pcf::{SmPolicyNotification, TerminationNotification};
use sbi::model::smf::*;
use sbi::model::udm::ModificationNotification;
use sbi::op::amf::N1N2TransferFailureNotify;
use sbi::op::nrf::NfStatusNotify;
use sbi::op::pcf::{SmPolicyTerminateNotify, SmPolicyUpdateNotify};
use sbi::op::smf::*;
use sbi::op::udm::SdmNotify;
use sbi::{Created, Notification, ProblemDetails, Router};
use telemetry::counters::Counter;
use types::Pti;

use crate::context::{Phase, Session, Smf};
use crate::n1;
use crate::procedure::{
    establishment, modification, release, service_request, subscription_change, user_plane,
};

static UNKNOWN_CONTEXT: Counter = Counter::new("smf_unknown_sm_context");

type Updated = Result<Option<SmContextUpdatedData>, SmContextUpdateError>;

/// The operations that the SMF serves.
pub(crate) fn router(smf: Arc<Smf>) -> Router<Smf> {
    Router::new(smf)
        .on::<CreateSmContext>(create)
        .on::<UpdateSmContext>(update)
        .on::<ReleaseSmContext>(release_context)
        .on::<N1N2TransferFailureNotify>(transfer_failed)
        .on::<SmPolicyUpdateNotify>(policy_updated)
        .on::<SmPolicyTerminateNotify>(policy_terminated)
        .on::<NfStatusNotify>(nf_status)
        .on::<SdmNotify>(subscription_changed)
}

async fn create(
    smf: Arc<Smf>,
    request: CreateSmContextRequest,
) -> Result<Created<SmContextCreatedData>, SmContextCreateError> {
    establishment::create(smf, request.body).await
}

/// The session that a peer names.
fn find(smf: &Smf, reference: &str) -> Result<Arc<Session>, ProblemDetails> {
    smf.sessions.by_reference(reference).ok_or_else(|| {
        UNKNOWN_CONTEXT.inc();
        ProblemDetails::context_not_found()
    })
}

/// An update contains one thing: a message of the UE, information of the gNB, or a wanted state.
async fn update(smf: Arc<Smf>, request: UpdateSmContextRequest) -> Updated {
    let session = find(&smf, &request.sm_context_ref)?;
    let data = request.body;
    if let Some(uri) = &data.sm_context_status_uri {
        establishment::moved(&mut *session.state.lock().await, uri)?;
    }
    if data.release == Some(true) {
        release::locally(&smf, &session, release::Notify::Nobody).await;
        return Ok(None);
    }
    let heard = data.n1_sm_msg.is_some() || data.ue_location.is_some();
    if heard && data.up_cnx_state.is_none() {
        service_request::reachable(&smf, &session).await;
    }
    let from_gnb = match (&data.n2_sm_info_type, &data.n2_sm_info) {
        (Some(kind), Some(info)) => Some(from_gnb(&smf, &session, kind, info.bytes()).await?),
        (Some(_), None) => return Err(ProblemDetails::mandatory_ie_missing("n2SmInfo").into()),
        (None, Some(_)) => return Err(ProblemDetails::mandatory_ie_missing("n2SmInfoType").into()),
        (None, None) => None,
    };
    if let Some(n1) = &data.n1_sm_msg {
        let mut answer = from_ue(&smf, &session, n1.bytes()).await;
        if let Some(from_gnb) = from_gnb {
            answer.up_cnx_state = from_gnb.up_cnx_state;
        }
        return Ok(Some(answer).filter(|answer| *answer != SmContextUpdatedData::default()));
    }
    if from_gnb.is_some() {
        return Ok(from_gnb.filter(|answer| *answer != SmContextUpdatedData::default()));
    }
    match data.up_cnx_state {
        Some(UpCnxState::Activating) => user_plane::activate(&smf, &session).await.map(Some),
        Some(UpCnxState::Deactivated) => user_plane::deactivate(&smf, &session).await.map(Some),
        // Other changes (location, time zone) need no action.
        _ => Ok(None),
    }
}

/// N2 information of an existing session (TS 29.502 table 6.1.6.3.12-1).
async fn from_gnb(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    kind: &N2SmInfoType,
    octets: &[u8],
) -> Result<SmContextUpdatedData, SmContextUpdateError> {
    match kind {
        N2SmInfoType::PduResSetupRsp => user_plane::set_up_by_gnb(smf, session, octets).await,
        N2SmInfoType::PduResSetupFail => user_plane::not_set_up_by_gnb(smf, session, octets).await,
        N2SmInfoType::PduResNtyRel => user_plane::released_by_gnb(smf, session).await,
        N2SmInfoType::PduResRelRsp => {
            let active = session.state.lock().await.phase == Phase::Active;
            if active {
                service_request::released_by_gnb(smf, session).await;
            } else {
                release::completed_by_gnb(smf, session).await;
            }
            Ok(SmContextUpdatedData::default())
        }
        // Only default flows without notification control are used, so no action is needed.
        N2SmInfoType::PduResNty => Ok(SmContextUpdatedData::default()),
        N2SmInfoType::PduResModRsp => Ok(SmContextUpdatedData::default()),
        N2SmInfoType::PduResModFail => {
            // The gNB keeps the former values; the UPF enforces what the PCF authorised.
            tracing::info!(supi = %session.supi, id = %session.id, "the gNB did not modify the session");
            Ok(SmContextUpdatedData::default())
        }
        // Handover and modification by the gNB are not supported.
        _ => Err(ProblemDetails::new(403, "N2_SM_ERROR").into()),
    }
}

/// Handles a 5GSM message of an existing session. Returns the answer to the UE.
async fn from_ue(smf: &Arc<Smf>, session: &Arc<Session>, octets: &[u8]) -> SmContextUpdatedData {
    let pti = SmHeader::read(octets).map_or(Pti::UNASSIGNED, |header| header.pti);
    let answer = |n1: Option<bytes::Bytes>| SmContextUpdatedData {
        n1_sm_msg: n1.map(Into::into),
        ..Default::default()
    };
    let message = match n1::decode(octets) {
        Ok(message) => message,
        Err(cause) => return answer(cause.map(|cause| n1::status(session.id, pti, cause))),
    };
    let status = |cause| answer(Some(n1::status(session.id, pti, cause)));
    if message.pdu_session_id != Some(session.id) {
        return status(GsmCause::InvalidPduSessionIdentity);
    }
    match message.body {
        SmBody::ReleaseRequest(_) | SmBody::ModificationRequest(_) if pti == Pti::UNASSIGNED => {
            status(GsmCause::InvalidPti)
        }
        SmBody::ReleaseRequest(_) => release::requested_by_ue(smf, session, pti).await,
        SmBody::ReleaseComplete(_) => answer(release::completed_by_ue(smf, session, pti).await),
        SmBody::ModificationRequest(_) => {
            // QoS flows besides the default one are not supported (TS 24.501 §6.4.2.4).
            let cause = GsmCause::RequestRejected;
            let reject = ModificationReject { cause, back_off: None, pco: None };
            answer(Some(n1::encode(session.id, pti, SmBody::ModificationReject(reject))))
        }
        SmBody::Status(_) => {
            release::status_from_ue(smf, session, pti).await;
            answer(None)
        }
        SmBody::ModificationComplete(_) | SmBody::ModificationCommandReject(_) => {
            modification::answered_by_ue(session).await;
            answer(None)
        }
        SmBody::EstablishmentRequest(_) => status(GsmCause::MessageTypeNotCompatible),
        SmBody::EstablishmentAccept(_)
        | SmBody::EstablishmentReject(_)
        | SmBody::ModificationReject(_)
        | SmBody::ModificationCommand(_)
        | SmBody::ReleaseReject(ReleaseReject { .. })
        | SmBody::ReleaseCommand(_) => status(GsmCause::MessageTypeNotImplemented),
    }
}

/// The AMF has released the session towards the UE (deregistration), or never established it there.
async fn release_context(smf: Arc<Smf>, request: ReleaseSmContextRequest) -> Result<(), ProblemDetails> {
    let session = find(&smf, &request.sm_context_ref)?;
    release::locally(&smf, &session, release::Notify::Nobody).await;
    Ok(())
}

/// The AMF did not deliver a transfer: paging found no UE, or no gNB could page.
async fn transfer_failed(
    smf: Arc<Smf>,
    request: Notification<N1N2MsgTxfrFailureNotification>,
) -> Result<(), ProblemDetails> {
    let session = find(&smf, &request.id)?;
    service_request::not_activated_by_amf(&smf, &session, (&request.body.cause).into()).await;
    Ok(())
}

/// Nnrf_NFManagement_NFStatusNotify about AMFs and PCFs.
async fn nf_status(smf: Arc<Smf>, request: Notification<NotificationData>) -> Result<(), ProblemDetails> {
    smf.restarts.notified(request)
}

/// Nudm_SDM_Notification.
async fn subscription_changed(
    smf: Arc<Smf>,
    request: Notification<ModificationNotification>,
) -> Result<(), ProblemDetails> {
    let supi = request.id.parse().map_err(|_| ProblemDetails::resource_uri_structure_not_found())?;
    let sessions = smf.sessions.of_supi(supi);
    // The UDM takes that for the end of the subscription.
    if sessions.is_empty() {
        return Err(ProblemDetails::context_not_found());
    }
    for session in sessions {
        tokio::spawn(subscription_change::apply(smf.clone(), session));
    }
    Ok(())
}

/// Npcf_SMPolicyControl_UpdateNotify, update (TS 29.512 §4.2.3.2).
async fn policy_updated(
    smf: Arc<Smf>,
    request: Notification<SmPolicyNotification>,
) -> Result<(), ProblemDetails> {
    let session = find(&smf, &request.id)?;
    match &request.body.sm_policy_decision {
        Some(decision) => modification::policy_changed(&smf, &session, decision).await,
        None => Ok(()),
    }
}

/// Npcf_SMPolicyControl_UpdateNotify, termination (TS 29.512 §4.2.3.3): session and association end.
async fn policy_terminated(
    smf: Arc<Smf>,
    request: Notification<TerminationNotification>,
) -> Result<(), ProblemDetails> {
    let session = find(&smf, &request.id)?;
    tracing::info!(supi = %session.supi, id = %session.id, cause = request.body.cause, "session ended by the PCF");
    tokio::spawn(async move { release::by_network(&smf, &session, GsmCause::RegularDeactivation).await });
    Ok(())
}
