//! Resources of an established PDU session in the gNB: set up, modified and released at the wish of its SMF
//! (TS 38.413 §8.2.1 to §8.2.3). The gNB's answer goes back to the SMF.
//!
//! Each N2 message also carries the 5GSM message for the UE, if there is one. The set-up of a new session is in
//! `pdu_session_establishment.rs`.

use bytes::Bytes;
use nas::{Message, gmm};
use ngap::{
    Pdu, PduSessionItem, PduSessionModifyItem, PduSessionResourceModifyRequest,
    PduSessionResourceReleaseCommand, PduSessionSetupItem,
};
use types::PduSessionId;

use super::{resource_setup, user_plane};
use crate::event::Interrupt;
use crate::peers::SmUpdate;
use crate::ue::Ue;

/// PDU Session Resource Setup (TS 38.413 §8.2.1) for a session whose user plane the network activates.
pub(super) async fn set_up(
    ue: &mut Ue,
    id: PduSessionId,
    n1: Option<Bytes>,
    transfer: Bytes,
) -> Result<(), Interrupt> {
    let Some(session) = ue.ctx.sessions.get_mut(&id) else { return Ok(()) };
    // If the connection is lost before the gNB has answered, the SMF is told to deactivate the user plane.
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
pub(super) async fn release(
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
pub(super) async fn modify(
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

/// Reports an answer or notification of the gNB to a session's SMF. The SMF's answer to that needs no forwarding.
pub(super) async fn report(ue: &mut Ue, id: PduSessionId, update: SmUpdate) {
    let Some(session) = ue.ctx.sessions.get(&id) else { return };
    let amf = ue.amf.clone();
    // The call counts other failures; nobody else needs to know of them.
    let answer = amf.peers.update_sm_context(&session.context, update).await;
    if answer.is_err_and(|refused| refused.error.is_not_found()) {
        ue.forget_session(id);
    }
}

/// DL NAS TRANSPORT with a 5GSM message, protected, for an N2 message that carries it.
fn protected(ue: &mut Ue, id: PduSessionId, n1: Option<Bytes>) -> Option<Bytes> {
    let transport = gmm::DlNasTransport::n1_sm(id, n1?.to_vec());
    ue.protect(&Message::DlNasTransport(transport))
}
