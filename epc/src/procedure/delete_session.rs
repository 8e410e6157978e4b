//! Delete Session (TS 29.274 §7.2.9.1, TS 23.401 §5.3.8): detach, or the end of one PDN connection.
//!
//! | way to end a PDN connection | P-GW, if another gateway is it | MME or S-GW |
//! |---|---|---|
//! | [`end_here`] | is not told: it has ended it, or has moved the UE elsewhere | is not told |
//! | [`end`] | is told | is not told: it has asked, or has lost the UE |
//! | [`end_lost`] | is told | is told, so that the UE asks for another one |

use std::sync::Arc;
use std::time::Duration;

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::{DeleteBearerRequest, DeleteSessionRequest, DeleteSessionResponse};
use gtpv2c::value::{Cause, CauseValue, Ebi, FTeid, Indication, InterfaceType};
use gtpv2c::{Message, ie};
use n4::{N4, N4Error};
use net::time;
use pfcp::message::SessionDeletionRequest;
use telemetry::counters::Counter;

use super::{Subject, find, missing};
use crate::context::{Gateway, Pdn, Peer, Role, Ue, UeState, UpfSession, has_address};
use crate::contexts;

static DELETED: Counter = Counter::new("epc_session_deleted");
static NOT_DELETED: Counter = Counter::new("epc_session_not_deleted_on_upf");
static DELETED_LATE: Counter = Counter::new("epc_session_deleted_late_on_upf");

/// Answers a request.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32, request: DeleteSessionRequest) {
    let result = delete(&gateway, id, teid, &request).await;
    contexts::save(&gateway, teid).await;
    let (teid, response) =
        result.unwrap_or_else(|(teid, cause)| (teid, DeleteSessionResponse { cause, ..Default::default() }));
    let recovery = Some(gateway.gtpc.restart_counter());
    gateway.gtpc.respond(id, teid, DeleteSessionResponse { recovery, ..response });
}

async fn delete(
    gateway: &Gateway,
    id: RequestId,
    teid: u32,
    request: &DeleteSessionRequest,
) -> Result<(u32, DeleteSessionResponse), (u32, Cause)> {
    let subject = Subject::of(gateway, teid).ok_or((0, CauseValue::CONTEXT_NOT_FOUND.into()))?;
    let (mut state, peer) = match (find(Some(&subject), id.peer.ip()).await, request.sender_f_teid) {
        // The S-GW to which a UE has moved without this PDN connection, which the P-GW does not know yet.
        (Err((_, cause)), Some(sgw)) if is_new_sgw(&subject, cause, sgw, id) => {
            (subject.ue().state.lock().await, sgw)
        }
        (found, _) => found?,
    };
    let is_s11 = matches!(subject, Subject::Ue(_));
    let has = |flag| request.indication.is_some_and(|indication| indication.contains(flag));
    // Without operation indication only the S-GW's part ends, because the UE has moved to another S-GW: then with all its PDN
    // connections, if none is named.
    let ends_at_pgw = has(Indication::OI);
    if is_s11 && request.linked_ebi.is_none() && ends_at_pgw {
        return Err((peer.teid, missing(ie::EBI)));
    }
    let is_meant = |pdn: &Pdn| {
        let default = pdn.default_bearer().map(|bearer| bearer.ebi);
        request.linked_ebi.is_none_or(|linked| default == Some(linked))
    };
    // A P-GW ends PDN connections of an S-GW by Delete Bearer Request, not by this message.
    let is_senders = |pdn: &Pdn| subject.concerns(pdn) && (is_s11 || pdn.role.is_pgw());
    // What the UE has taken to another S-GW concerns that one now.
    if !state.pdns.iter().any(is_meant) {
        return Err((peer.teid, CauseValue::CONTEXT_NOT_FOUND.into()));
    }
    let mut ended = Vec::new();
    let mut at = 0;
    while let Some(pdn) = state.pdns.get_mut(at) {
        let ends = is_senders(pdn) && is_meant(pdn);
        let has_just_arrived = has_just_arrived(pdn);
        match &mut pdn.role {
            _ if !ends => at += 1,
            // The handover to this S-GW is cancelled.
            Role::Pgw { awaits_ue, .. } if is_s11 && !ends_at_pgw => {
                *awaits_ue = false;
                at += 1;
            }
            // The UE has left and come back, and this comes late: it means what was here before.
            Role::Both if is_s11 && !ends_at_pgw && has_just_arrived => at += 1,
            _ => ended.push(state.pdns.remove(at)),
        }
    }
    forget_if_empty(gateway, subject.ue(), &mut state);
    let remote = ended.iter().find_map(|pdn| match pdn.role {
        Role::Sgw { pgw, .. } if ends_at_pgw && pgw.f_teid.teid != 0 => {
            Some((pgw.f_teid, pdn.s5_f_teid(gateway, InterfaceType::S5S8_SGW_GTPC)))
        }
        _ => None,
    });
    let response = match remote {
        Some((pgw, own)) => {
            // Others may use the UE while the P-GW is waited for.
            drop(state);
            let request = DeleteSessionRequest { sender_f_teid: Some(own), ..request.clone() };
            Box::pin(end_at_pgw(gateway, pgw, &request)).await
        }
        None => DeleteSessionResponse { cause: CauseValue::ACCEPTED.into(), ..Default::default() },
    };
    for pdn in ended {
        end_here(gateway, pdn).await;
    }
    Ok((peer.teid, response))
}

/// Whether a message comes from an S-GW that names itself to the P-GW for the first time.
fn is_new_sgw(subject: &Subject, refusal: Cause, sgw: FTeid, id: RequestId) -> bool {
    let is_stranger = refusal.value == CauseValue::INVALID_PEER;
    is_stranger && matches!(subject, Subject::Pdn(..)) && has_address(sgw, id.peer.ip())
}

/// Whether the MME may still end what the UE had here before it left and came back: it does so some seconds after the move.
fn has_just_arrived(pdn: &Pdn) -> bool {
    const LATE: Duration = Duration::from_secs(20);
    pdn.arrived.is_some_and(|since| time::now().into_std().duration_since(since) < LATE)
}

/// Has the P-GW end a PDN connection. Whatever it says, the S-GW's part ends.
async fn end_at_pgw(gateway: &Gateway, pgw: FTeid, request: &DeleteSessionRequest) -> DeleteSessionResponse {
    // What concerns S11 only is left out.
    let request =
        DeleteSessionRequest { cause: None, indication: None, originating_node: None, ..request.clone() };
    let cause = match gateway.gtpc.request(pgw, request).await {
        Ok(Message::DeleteSessionResponse(response)) => {
            let cause = match response.cause.value {
                // What is wanted is so.
                CauseValue::CONTEXT_NOT_FOUND => CauseValue::ACCEPTED.into(),
                _ => Cause { from_remote: true, ..response.cause },
            };
            return DeleteSessionResponse { cause, recovery: None, indication: None, ..response };
        }
        Ok(_) => CauseValue::INVALID_REPLY_FROM_REMOTE_PEER,
        Err(error) => {
            tracing::debug!(%error, "the P-GW does not confirm the end of a PDN connection");
            CauseValue::REMOTE_PEER_NOT_RESPONDING
        }
    };
    DeleteSessionResponse { cause: cause.into(), ..Default::default() }
}

/// Ends a PDN connection: on the UPF, then its addresses and its number are free. It ends here even if the UPF does not answer, which is
/// then asked again for some time.
pub(crate) async fn end_here(gateway: &Gateway, pdn: Pdn) {
    // After a restart of the UPF its SEID may be that of another session.
    if pdn.upf.seid != 0 && pdn.upf.epoch == gateway.n4.epoch(pdn.upf.address) {
        let deleted = gateway.n4.request(pdn.upf.address, pdn.seids(), SessionDeletionRequest {}).await;
        if let Err(error) = deleted {
            NOT_DELETED.inc();
            tracing::debug!(%error, "session not deleted on its UPF");
            if let N4Error::Failed(_) = error {
                tokio::spawn(delete_later(gateway.n4.clone(), pdn.upf, pdn.seids()));
            }
        }
    }
    if let (true, Some(network)) = (pdn.role.is_pgw(), gateway.networks.get(&pdn.apn)) {
        network.pool().release(time::now().into_std(), pdn.addresses);
    }
    gateway.ues.remove_pdn(pdn.number);
    DELETED.inc();
}

/// Has a UPF delete a session that it has not confirmed, until it answers or has restarted.
async fn delete_later(n4: N4, upf: UpfSession, seids: n4::Seids) {
    for pause_s in [1, 2, 4, 8, 16, 32, 64] {
        time::sleep(Duration::from_secs(pause_s)).await;
        if n4.epoch(upf.address) != upf.epoch {
            return;
        }
        match n4.request(upf.address, seids, SessionDeletionRequest {}).await {
            Err(N4Error::Failed(_) | N4Error::NoUpf) => {}
            _ => return DELETED_LATE.inc(),
        }
    }
}

/// Ends a PDN connection here and at its P-GW, which is told on a task of its own.
pub(crate) async fn end(gateway: &Arc<Gateway>, pdn: Pdn) {
    if let Role::Sgw { pgw, is_known: true } = pdn.role {
        end_at_pgw_later(gateway, Some(pgw.f_teid), pdn.default_bearer().map(|bearer| bearer.ebi));
    }
    end_here(gateway, pdn).await;
}

/// Has a P-GW end a PDN connection, on a task of its own.
pub(super) fn end_at_pgw_later(gateway: &Arc<Gateway>, pgw: Option<FTeid>, linked_ebi: Option<Ebi>) {
    let Some(pgw) = pgw else { return };
    let request = DeleteSessionRequest { linked_ebi, ..Default::default() };
    let gateway = gateway.clone();
    tokio::spawn(async move { end_at_pgw(&gateway, pgw, &request).await });
}

/// Ends a PDN connection that this gateway can no longer serve. `mme` is the UE's.
pub(crate) async fn end_lost(gateway: &Arc<Gateway>, mme: Option<Peer>, pdn: Pdn) {
    // One that only a prepared handover has made is the MME's at another S-GW.
    let is_prepared = matches!(pdn.role, Role::Sgw { is_known: false, .. });
    if let Some(peer) = pdn.towards_ue(mme).filter(|_| !is_prepared) {
        let linked_ebi = pdn.default_bearer().map(|bearer| bearer.ebi);
        let cause = Some(CauseValue::REACTIVATION_REQUESTED.into());
        let request = DeleteBearerRequest { linked_ebi, cause, ..Default::default() };
        let gateway = gateway.clone();
        tokio::spawn(async move {
            if let Err(error) = gateway.gtpc.request(peer, request).await {
                tracing::debug!(%error, "the neighbour does not hear of a lost PDN connection");
            }
        });
    }
    end(gateway, pdn).await;
}

/// Ends all of a UE's PDN connections of which this is the S-GW.
pub(crate) async fn end_served(gateway: &Arc<Gateway>, ue: &Ue, state: &mut UeState) {
    while let Some(at) = state.pdns.iter().position(|pdn| pdn.role.is_sgw()) {
        let pdn = state.pdns.remove(at);
        end(gateway, pdn).await;
    }
    forget_if_empty(gateway, ue, state);
}

/// A UE without PDN connections is forgotten.
pub(crate) fn forget_if_empty(gateway: &Gateway, ue: &Ue, state: &mut UeState) {
    if state.pdns.is_empty() && !state.gone {
        state.gone = true;
        gateway.ues.remove(ue);
    }
}
