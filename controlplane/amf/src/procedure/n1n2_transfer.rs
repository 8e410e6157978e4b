//! What an SMF has for a UE and its gNB: session release, modification, and messages for the UE
//! (TS 23.502 §4.2.3.3, §4.3.3, §4.3.4), whether it comes by Namf_Communication or as the answer to an update.
//!
//! A UE that is idle is paged first; the transfer waits for its service request. What the gNB answers goes back to
//! the SMF. A session leaves the UE's context when its SMF says so.

use bytes::Bytes;
use nas::{Message, gmm};
use ngap::cause::{Nas, RadioNetwork};
use ngap::{
    Pdu, PduSessionItem, PduSessionModifyItem, PduSessionResourceModifyRequest,
    PduSessionResourceReleaseCommand, PduSessionSetupItem,
};
use sbi::model::amf::N1N2MessageTransferCause;
use types::PduSessionId;

use super::{deregistration, paging, resource_setup, subscription_change, user_plane};
use crate::counters;
use crate::event::{Interrupt, N2Info, Transfer};
use crate::peers::SmUpdate;
use crate::ue::Ue;

/// Namf_Communication_N1N2MessageTransfer.
pub(crate) async fn deliver(ue: &mut Ue, transfer: Transfer) -> Result<(), Interrupt> {
    if ue.connection.is_none() {
        return paging::paging(ue, transfer).await;
    }
    if !ue.is_secure() {
        // Connected, but not known to be the UE yet.
        counters::SERVICE_REJECTED.inc("not_secure");
        let cause = N1N2MessageTransferCause::TemporaryRejectRegistrationOngoing;
        paging::not_delivered(ue, transfer, cause).await;
        return Ok(());
    }
    let Transfer { session, n1, n2, .. } = transfer;
    apply(ue, session, n1, n2).await
}

/// Passes N1 to the UE and N2 to the gNB, and the gNB's answer to the SMF.
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
            let outcome = release_resources(ue, id, n1, transfer).await;
            ue.record("pdu_session_release", if outcome.is_ok() { "ok" } else { "interrupted" });
            outcome
        }
        (n1, Some(N2Info::Modify(transfer))) if active => {
            let outcome = modify_resources(ue, id, n1, transfer).await;
            ue.record("pdu_session_modification", if outcome.is_ok() { "ok" } else { "interrupted" });
            outcome
        }
        (n1, Some(N2Info::Setup(transfer))) if !active => set_up_resources(ue, id, n1, transfer).await,
        // The gNB has nothing of the session to release or modify, or has already set up what it should (the UE came
        // with a service request for it before the transfer was delivered): only the UE needs to hear.
        (Some(n1), _) => send_n1(ue, id, &n1).await,
        (None, Some(_)) => Ok(()),
    }
}

/// DL NAS TRANSPORT with a 5GSM message.
pub(crate) async fn send_n1(ue: &mut Ue, id: PduSessionId, n1: &Bytes) -> Result<(), Interrupt> {
    let transport = gmm::DlNasTransport::n1_sm(id, n1.to_vec());
    ue.send_nas(&Message::DlNasTransport(transport)).await
}

fn protected(ue: &mut Ue, id: PduSessionId, n1: Option<Bytes>) -> Option<Bytes> {
    let transport = gmm::DlNasTransport::n1_sm(id, n1?.to_vec());
    ue.protect(&Message::DlNasTransport(transport))
}

/// PDU Session Resource Setup for a session whose user plane the network wants back.
async fn set_up_resources(
    ue: &mut Ue,
    id: PduSessionId,
    n1: Option<Bytes>,
    transfer: Bytes,
) -> Result<(), Interrupt> {
    let Some(session) = ue.ctx.sessions.get_mut(&id) else { return Ok(()) };
    // If the connection goes before the gNB has answered, the SMF hears of it.
    session.active = true;
    let s_nssai = session.s_nssai;
    let nas_pdu = protected(ue, id, n1);
    let item = PduSessionSetupItem { id, nas_pdu, s_nssai, transfer };
    let outcome = match resource_setup::send(ue, None, vec![item]).await? {
        Some(asked) => ue.expect_n2(|pdu| asked.outcome(pdu)).await?,
        None => None,
    };
    match outcome {
        Some(outcome) => user_plane::report_setup(ue, outcome).await,
        None => {
            if let Some(session) = ue.ctx.sessions.get_mut(&id) {
                session.active = false;
            }
            report(ue, id, SmUpdate::Deactivate(ue.ctx.location)).await;
        }
    }
    Ok(())
}

/// PDU Session Resource Release (TS 38.413 §8.2.2), with the command for the UE.
async fn release_resources(
    ue: &mut Ue,
    id: PduSessionId,
    n1: Option<Bytes>,
    transfer: Bytes,
) -> Result<(), Interrupt> {
    let nas_pdu = protected(ue, id, n1);
    ue.send(|amf_ue_ngap_id, ran_ue_ngap_id| {
        Pdu::PduSessionResourceReleaseCommand(PduSessionResourceReleaseCommand {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            nas_pdu,
            pdu_sessions: vec![PduSessionItem { id, transfer }],
        })
    })
    .await?;
    let response = ue
        .expect_n2(|pdu| match pdu {
            Pdu::PduSessionResourceReleaseResponse(response) => Ok(response),
            other => Err(Box::new(other)),
        })
        .await?;
    let Some(session) = ue.ctx.sessions.get_mut(&id) else { return Ok(()) };
    session.active = false;
    let released = response.into_iter().flat_map(|r| r.pdu_sessions).find(|item| item.id == id);
    if let Some(item) = released {
        report(ue, id, SmUpdate::ReleaseDone(item.transfer)).await;
    }
    Ok(())
}

/// PDU Session Resource Modify (TS 38.413 §8.2.3), with the command for the UE.
async fn modify_resources(
    ue: &mut Ue,
    id: PduSessionId,
    n1: Option<Bytes>,
    transfer: Bytes,
) -> Result<(), Interrupt> {
    let nas_pdu = protected(ue, id, n1);
    ue.send(|amf_ue_ngap_id, ran_ue_ngap_id| {
        Pdu::PduSessionResourceModifyRequest(PduSessionResourceModifyRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            pdu_sessions: vec![PduSessionModifyItem { id, nas_pdu, transfer }],
        })
    })
    .await?;
    let response = ue
        .expect_n2(|pdu| match pdu {
            Pdu::PduSessionResourceModifyResponse(response) => Ok(response),
            other => Err(Box::new(other)),
        })
        .await?;
    let Some(response) = response else { return Ok(()) };
    for item in response.pdu_sessions {
        report(ue, item.id, SmUpdate::ModifyDone(item.transfer)).await;
    }
    for item in response.failed {
        report(ue, item.id, SmUpdate::ModifyFailed(item.transfer)).await;
    }
    Ok(())
}

/// Tells a session's SMF. What it answers to a report of the gNB needs no forwarding.
async fn report(ue: &mut Ue, id: PduSessionId, update: SmUpdate) {
    let Some(session) = ue.ctx.sessions.get(&id) else { return };
    let amf = ue.amf.clone();
    // Another failure is counted by the call; there is nobody else to tell.
    let answer = amf.peers.update_sm_context(&session.context, update).await;
    if answer.is_err_and(|refused| refused.error.is_not_found()) {
        ue.forget_session(id);
    }
}

/// A session that the UE establishes anew under the same identity: the old one goes from gNB and SMF.
pub(crate) async fn release_duplicate(ue: &mut Ue, id: PduSessionId) -> Result<(), Interrupt> {
    counters::PAYLOAD_NOT_FORWARDED.inc("duplicate_session_id");
    let active = ue.ctx.sessions.get(&id).is_some_and(|session| session.active);
    if active {
        let cause = ngap::Cause::Nas(Nas::NormalRelease);
        let command = ngap::transfer::PduSessionResourceReleaseCommandTransfer { cause };
        match command.encode() {
            Ok(transfer) => release_resources(ue, id, None, transfer).await?,
            Err(error) => tracing::error!(%error, "release transfer not encodable"),
        }
    }
    deregistration::release_sessions(ue, &[id]).await;
    Ok(())
}

/// N2 messages that no procedure waits for.
pub(crate) async fn unsolicited(ue: &mut Ue, pdu: Pdu) -> Result<(), Interrupt> {
    match pdu {
        Pdu::PduSessionResourceNotify(notify) => {
            let news = notify.pdu_sessions.into_iter().map(|item| (item, false));
            let gone = notify.released.into_iter().map(|item| (item, true));
            for (item, released) in news.chain(gone) {
                if let Some(session) = ue.ctx.sessions.get_mut(&item.id) {
                    session.active &= !released;
                }
                report(ue, item.id, SmUpdate::Notify { transfer: item.transfer, released }).await;
            }
        }
        Pdu::UeContextModificationResponse(_) | Pdu::UeContextModificationFailure(_) => {
            subscription_change::context_modified(ue, &pdu);
        }
        Pdu::UeContextReleaseComplete(_) => counters::N2_REJECTED.inc("unexpected"),
        other => {
            counters::N2_REJECTED.inc("unexpected");
            tracing::debug!(message = other.name(), cause = %RadioNetwork::Unspecified, "unexpected N2 message");
        }
    }
    Ok(())
}
