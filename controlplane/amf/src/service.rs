//! Operations that the AMF offers (TS 29.518) and callbacks it serves.
//!
//! Nothing here changes a UE's state: a request becomes an event in the UE's queue, and the answer
//! follows from the UE's handle. If the queue is full the answer is 503, so that the caller repeats the
//! request.

use std::sync::Arc;

use sbi::model::amf::{
    N1MessageClass, N1N2MessageTransferCause, N1N2MessageTransferError, N1N2MessageTransferReqData,
    N1N2MessageTransferRspData,
};
use sbi::model::nrf::NotificationData;
use sbi::model::pcf::{PolicyUpdate, TerminationNotification};
use sbi::model::smf::{ResourceStatus, SmContextStatusNotification};
use sbi::model::udm::{self, DeregistrationData, ModificationNotification};
use sbi::op::amf::{N1N2MessageTransfer, N1N2MessageTransferRequest};
use sbi::op::nrf::NfStatusNotify;
use sbi::op::pcf::{AmPolicyTerminateNotify, AmPolicyUpdateNotify};
use sbi::op::smf::SmContextStatusNotify;
use sbi::op::udm::{DeregistrationNotify, SdmNotify};
use sbi::{BinaryPart, Initiated, Notification, ProblemDetails, Router};
use types::Supi;

use crate::context::{Amf, UeHandle};
use crate::counters;
use crate::event::{Deregister, DeregistrationReason, Transfer, UeEvent};
use crate::peers::{n2_info, parse_session_id};

/// All operations that the AMF serves.
pub(crate) fn router(amf: Arc<Amf>) -> Router<Amf> {
    Router::new(amf)
        .on::<N1N2MessageTransfer>(n1n2_message_transfer)
        .on::<SmContextStatusNotify>(sm_context_status)
        .on::<DeregistrationNotify>(deregistration)
        .on::<NfStatusNotify>(nf_status)
        .on::<AmPolicyUpdateNotify>(policy_updated)
        .on::<AmPolicyTerminateNotify>(policy_terminated)
        .on::<SdmNotify>(subscription_changed)
}

/// Namf_Communication_N1N2MessageTransfer.
async fn n1n2_message_transfer(
    amf: Arc<Amf>,
    request: N1N2MessageTransferRequest,
) -> Result<Initiated<N1N2MessageTransferRspData>, N1N2MessageTransferError> {
    let ue = find(&amf, &request.ue_context_id)?;
    let transfer = transfer(request.body)?;
    let connected = ue.is_connected();
    if transfer.skip_if_idle && !connected {
        let cause = N1N2MessageTransferCause::N1MsgNotTransferred;
        return Ok(Initiated::Done(N1N2MessageTransferRspData { cause, supported_features: None }));
    }
    queue(&ue, UeEvent::Transfer(Box::new(transfer)))?;
    let cause = if connected {
        N1N2MessageTransferCause::Initiated
    } else {
        N1N2MessageTransferCause::AttemptingToReachUe
    };
    let body = N1N2MessageTransferRspData { cause, supported_features: None };
    Ok(if connected { Initiated::Done(body) } else { Initiated::Pending { location: None, body } })
}

/// The part of a transfer that is about a session.
fn transfer(body: N1N2MessageTransferReqData) -> Result<Transfer, ProblemDetails> {
    let n1 = body.n1_message_container;
    if n1.as_ref().is_some_and(|n1| n1.n1_message_class != N1MessageClass::Sm) {
        counters::SERVICE_REJECTED.inc("n1_message_class");
        let reason = "only 5GSM messages are passed on";
        return Err(ProblemDetails::mandatory_ie_incorrect("n1MessageClass", reason));
    }
    let sm_info = body.n2_info_container.and_then(|n2| n2.sm_info);
    let session = body.pdu_session_id.or(sm_info.as_ref().map(|info| info.pdu_session_id));
    let Some(session) = session else {
        counters::SERVICE_REJECTED.inc("no_session_id");
        return Err(ProblemDetails::mandatory_ie_missing("pduSessionId"));
    };
    let content = sm_info.and_then(|info| info.n2_info_content);
    let n2 = content.and_then(|content| n2_info(Some(content.ngap_data), content.ngap_ie_type));
    Ok(Transfer {
        session,
        n1: n1.map(|n1| BinaryPart::into_bytes(n1.n1_message_content)),
        n2,
        skip_if_idle: body.skip_ind == Some(true),
        failure_uri: body.n1n2_failure_txf_notif_uri,
    })
}

/// Nsmf_PDUSession_SMContextStatusNotify.
async fn sm_context_status(
    amf: Arc<Amf>,
    notification: Notification<SmContextStatusNotification>,
) -> Result<(), ProblemDetails> {
    let Some((supi, session, serial)) = parse_session_id(&notification.id) else {
        counters::SERVICE_REJECTED.inc("callback_id");
        return Err(ProblemDetails::resource_uri_structure_not_found());
    };
    if notification.body.status_info.resource_status != ResourceStatus::Released {
        return Ok(());
    }
    // If the UE or session does not exist any more, there is nothing to refuse.
    match amf.ues.by_supi(supi) {
        Some(ue) => queue(&ue, UeEvent::SessionGone { session, serial }),
        None => Ok(()),
    }
}

/// Nnrf_NFManagement_NFStatusNotify about SMFs and PCFs.
async fn nf_status(
    amf: Arc<Amf>,
    notification: Notification<NotificationData>,
) -> Result<(), ProblemDetails> {
    amf.restarts.notified(notification)
}

/// Npcf_AMPolicyControl_UpdateNotify, update (TS 29.507 §4.2.4.2).
async fn policy_updated(
    amf: Arc<Amf>,
    notification: Notification<PolicyUpdate>,
) -> Result<(), ProblemDetails> {
    let ue = find(&amf, &notification.id)?;
    queue(&ue, UeEvent::PolicyUpdated { ue_ambr: notification.body.ue_ambr })
}

/// Npcf_AMPolicyControl_UpdateNotify, termination (TS 29.507 §4.2.4.3).
async fn policy_terminated(
    amf: Arc<Amf>,
    notification: Notification<TerminationNotification>,
) -> Result<(), ProblemDetails> {
    let ue = find(&amf, &notification.id)?;
    queue(&ue, UeEvent::PolicyTerminated)
}

/// Nudm_UECM_DeregistrationNotification.
async fn deregistration(
    amf: Arc<Amf>,
    notification: Notification<DeregistrationData>,
) -> Result<(), ProblemDetails> {
    let ue = find(&amf, &notification.id)?;
    let why = match notification.body.dereg_reason {
        udm::DeregistrationReason::SubscriptionWithdrawn => DeregistrationReason::Withdrawn,
        udm::DeregistrationReason::ReregistrationRequired => DeregistrationReason::Reregistration,
        _ => DeregistrationReason::Moved,
    };
    queue(&ue, UeEvent::Deregister(Deregister { why, paged: false, done: None }))
}

/// Nudm_SDM_Notification.
async fn subscription_changed(
    amf: Arc<Amf>,
    notification: Notification<ModificationNotification>,
) -> Result<(), ProblemDetails> {
    let ue = find(&amf, &notification.id)?;
    queue(&ue, UeEvent::SubscriptionChanged)
}

fn find(amf: &Amf, id: &str) -> Result<Arc<UeHandle>, ProblemDetails> {
    let supi: Option<Supi> = id.starts_with("imsi-").then(|| id.parse().ok()).flatten();
    supi.and_then(|supi| amf.ues.by_supi(supi)).ok_or_else(|| {
        counters::SERVICE_REJECTED.inc("unknown_ue");
        ProblemDetails::context_not_found()
    })
}

fn queue(ue: &UeHandle, event: UeEvent) -> Result<(), ProblemDetails> {
    ue.send(event).map_err(|event| {
        counters::UE_QUEUE_FULL.inc(event.name());
        ProblemDetails::nf_congestion()
    })
}
