//! Modify Bearer (TS 29.274 §7.2.7): the eNB's ends of tunnels after an attach, a service request (TS 23.401 §5.3.4.1) or a handover
//! (§5.5.1.1), and the move of a UE to another MME or to this S-GW.

use std::sync::Arc;

use gtpv2c::BearerModified;
use gtpv2c::endpoint::RequestId;
use gtpv2c::message::{ModifyBearerRequest, ModifyBearerResponse};
use gtpv2c::value::{Cause, CauseValue, Ebi, InterfaceType};
use telemetry::counters::{Counter, Family};

use super::create_session::rates;
use super::{bearers, cause_of, modify, serving};
use crate::bearer::{Slot, Tunnel};
use crate::context::{Gateway, Paging, Peer, UeState};
use crate::n4u;
use crate::rules::{self, Downlink};

static MODIFIED: Counter = Counter::new("epc_bearers_modified");
static REFUSED: Family = Family::new("epc_modify_refused", "cause");

/// Answers a request.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32, request: ModifyBearerRequest) {
    let (teid, response) = match change(&gateway, id, teid, &request).await {
        Ok((teid, bearers_modified)) => {
            MODIFIED.inc();
            let cause = overall(&bearers_modified).into();
            (teid, ModifyBearerResponse { cause, bearers_modified, ..Default::default() })
        }
        Err((teid, cause)) => {
            REFUSED.inc(&cause.value.0.to_string());
            (teid, ModifyBearerResponse { cause, ..Default::default() })
        }
    };
    let recovery = Some(gateway.gtpc.restart_counter());
    gateway.gtpc.respond(id, teid, ModifyBearerResponse { recovery, ..response });
}

/// The cause for the whole message.
pub(super) fn overall(bearers: &[BearerModified]) -> CauseValue {
    let accepted = bearers.iter().filter(|bearer| bearer.cause.is_accepted()).count();
    match (accepted, bearers) {
        (0, [first, ..]) => first.cause.value,
        (some, all) if some < all.len() => CauseValue::ACCEPTED_PARTIALLY,
        _ => CauseValue::ACCEPTED,
    }
}

type Changed = Result<(u32, Vec<BearerModified>), (u32, Cause)>;

async fn change(gateway: &Gateway, id: RequestId, teid: u32, request: &ModifyBearerRequest) -> Changed {
    let unknown = || (request.sender_f_teid.map_or(0, |mme| mme.teid), CauseValue::CONTEXT_NOT_FOUND.into());
    let ue = gateway.ues.by_teid(teid).ok_or_else(unknown)?;
    let mut state = ue.state.lock().await;
    if state.gone {
        return Err(unknown());
    }
    let sender = request.sender_f_teid.map(Peer::now).filter(|sender| sender.is_at(id.peer.ip()));
    let mme = match (sender, state.mme) {
        (Some(sender), mme) if mme.is_none_or(|mme| mme.f_teid != sender.f_teid) => {
            // The UE has moved to this MME.
            state.mme = Some(sender);
            gateway.gtpc.watch(id.peer.ip());
            sender
        }
        (_, Some(mme)) if mme.is_at(id.peer.ip()) => mme,
        _ => return Err((0, CauseValue::INVALID_PEER.into())),
    };
    for removed in &request.bearers_to_be_removed {
        for pdn in state.served() {
            bearers::remove(gateway, pdn, removed.ebi).await;
        }
    }
    let modified = apply(gateway, &mut state, request).await;
    if state.is_connected() {
        // The UE was found.
        state.set_paging(Paging::No);
    }
    Ok((mme.f_teid.teid, modified))
}

/// Changes the bearers, those of a PDN connection by one request to its UPF.
async fn apply(gateway: &Gateway, state: &mut UeState, request: &ModifyBearerRequest) -> Vec<BearerModified> {
    let is_unreachable = state.paging == Paging::Unreachable;
    let wanted = &request.bearers_to_be_modified;
    let mut results: Vec<_> = wanted
        .iter()
        .map(|context| BearerModified {
            ebi: context.ebi,
            cause: CauseValue::CONTEXT_NOT_FOUND.into(),
            ..Default::default()
        })
        .collect();
    for pdn in state.served() {
        let mut changes: Vec<(Slot, Downlink)> = Vec::new();
        for (context, result) in wanted.iter().zip(&mut results) {
            let mut bearers = pdn.bearers.iter_mut().filter(|bearer| bearer.ebi != Ebi(0));
            let Some(bearer) = bearers.find(|bearer| bearer.ebi == context.ebi) else { continue };
            result.cause = CauseValue::ACCEPTED.into();
            result.s1u_sgw_f_teid = bearer.own.map(|own| own.f_teid(InterfaceType::S1U_SGW));
            let Some(access) = context.s1u_enb_f_teid.and_then(Tunnel::of) else { continue };
            // A former eNB passes what it still gets on to the new one, up to the End Marker.
            let end_marker = bearer.access.is_some_and(|former| former != access);
            bearer.access = Some(access);
            changes.push((bearer.slot, Downlink::To { access, end_marker }));
        }
        if is_unreachable {
            // What the MME does not name was dropped as well.
            let idle = pdn.bearers.iter().filter(|bearer| bearer.access.is_none());
            changes.extend(idle.map(|bearer| (bearer.slot, Downlink::Buffered)));
        }
        let mut change = rules::change_downlink(pdn.role, changes.iter().copied());
        let ambr = request.apn_ambr.map(rates).filter(|ambr| pdn.role.is_pgw() && *ambr != pdn.ambr);
        if let Some(ambr) = ambr.filter(|_| !changes.is_empty()) {
            pdn.ambr = ambr;
            change.update_qers = rules::change_ambr(ambr).update_qers;
        }
        if changes.is_empty() {
            continue;
        }
        let result = match modify(gateway, pdn, change).await {
            Ok(_) => serving::tell_moved(gateway, pdn, request.into()).await,
            Err(error) => Err(cause_of(error).into()),
        };
        match result {
            Ok(()) => n4u::reachable(gateway, pdn),
            // MME and eNB must not believe that packets come. A UPF that has made the change is told otherwise by the next one.
            Err(cause) => {
                tracing::warn!(cause = %cause.value, "an eNB's tunnel is not on the UPF, or the P-GW does not send to this S-GW");
                for (slot, _) in changes {
                    let mut bearers = pdn.bearers.iter_mut();
                    let Some(bearer) = bearers.find(|bearer| bearer.slot == slot) else { continue };
                    bearer.access = None;
                    let mut of_bearer = results.iter_mut();
                    if let Some(result) = of_bearer.find(|result| result.ebi == bearer.ebi) {
                        result.cause = cause;
                    }
                }
            }
        }
    }
    results
}
