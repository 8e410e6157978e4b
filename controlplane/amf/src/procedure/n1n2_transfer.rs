//! Namf_Communication_N1N2MessageTransfer (TS 23.502 §4.2.3.3, §4.3.3, §4.3.4): what an SMF sends to a UE and its gNB
//! for session release, modification and activation. [`apply`] also handles the N1 and N2 parts of an SMF's answer to
//! an update.
//!
//! An idle UE is paged first; the transfer then waits for the UE's service request.

use bytes::Bytes;
use nas::{Message, gmm};
use sbi::model::amf::N1N2MessageTransferCause;
use types::PduSessionId;

use super::{paging, session_resources};
use crate::counters;
use crate::event::{Interrupt, N2Info, Transfer};
use crate::ue::Ue;

/// Namf_Communication_N1N2MessageTransfer.
pub(crate) async fn deliver(ue: &mut Ue, transfer: Transfer) -> Result<(), Interrupt> {
    if ue.connection.is_none() {
        if transfer.skip_if_idle {
            // The UE was connected when the transfer arrived.
            counters::SERVICE_REJECTED.inc("ue_idle");
            paging::not_delivered(ue, transfer, N1N2MessageTransferCause::N1MsgNotTransferred).await;
            return Ok(());
        }
        return paging::paging(ue, transfer).await;
    }
    if !ue.is_secure() {
        // Connected, but the UE has not proven its identity yet.
        counters::SERVICE_REJECTED.inc("not_secure");
        let cause = N1N2MessageTransferCause::TemporaryRejectRegistrationOngoing;
        paging::not_delivered(ue, transfer, cause).await;
        return Ok(());
    }
    let Transfer { session, n1, n2, .. } = transfer;
    apply(ue, session, n1, n2).await
}

/// Forwards the N1 message to the UE and the N2 information to the gNB, and the gNB's answer to the SMF.
pub(crate) async fn apply(
    ue: &mut Ue,
    id: PduSessionId,
    n1: Option<Bytes>,
    n2: Option<N2Info>,
) -> Result<(), Interrupt> {
    let active = ue.ctx.sessions.get(&id).is_some_and(|session| session.active);
    match (n1, n2) {
        (None, None) => Ok(()),
        (n1, Some(N2Info::Release(transfer))) if active => {
            let outcome = session_resources::release(ue, id, n1, transfer).await;
            ue.record("pdu_session_release", if outcome.is_ok() { "ok" } else { "interrupted" });
            outcome
        }
        (n1, Some(N2Info::Modify(transfer))) if active => {
            let outcome = session_resources::modify(ue, id, n1, transfer).await;
            ue.record("pdu_session_modification", if outcome.is_ok() { "ok" } else { "interrupted" });
            outcome
        }
        (n1, Some(N2Info::Setup(transfer))) if !active => {
            session_resources::set_up(ue, id, n1, transfer).await
        }
        // The gNB has no resources to release or modify, or has set them up already, because the UE's service request
        // came before the transfer. Only the message for the UE is left.
        (Some(n1), _) => send_n1(ue, id, &n1).await,
        (None, Some(_)) => Ok(()),
    }
}

/// DL NAS TRANSPORT with a 5GSM message.
pub(crate) async fn send_n1(ue: &mut Ue, id: PduSessionId, n1: &Bytes) -> Result<(), Interrupt> {
    let transport = gmm::DlNasTransport::n1_sm(id, n1.to_vec());
    ue.send_nas(&Message::DlNasTransport(transport)).await
}
