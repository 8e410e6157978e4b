//! Modify Bearer (TS 29.274 §7.2.7): the eNB's ends of tunnels after an attach, a service request (TS 23.401 §5.3.4.1) or a handover
//! (§5.5.1.1), and the move of a UE to another MME.

use std::sync::Arc;

use gtpv2c::BearerModified;
use gtpv2c::endpoint::RequestId;
use gtpv2c::message::{ModifyBearerRequest, ModifyBearerResponse};
use gtpv2c::value::{Cause, CauseValue, Ebi, InterfaceType};
use net::time;
use telemetry::counters::{Counter, Family};
use types::BitRate;

use super::{bearers, cause_of, modify};
use crate::bearer::{Slot, Tunnel};
use crate::context::{Gateway, Paging, UeState, is_from};
use crate::n4u;
use crate::rules::{self, Downlink};

static MODIFIED: Counter = Counter::new("epc_bearers_modified");
static REFUSED: Family = Family::new("epc_modify_refused", "cause");

/// Answers a request.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32, request: ModifyBearerRequest) {
    let (teid, response) = match change(&gateway, id, teid, &request).await {
        Ok((teid, bearers_modified)) => {
            MODIFIED.inc();
            let accepted = bearers_modified.iter().filter(|bearer| bearer.cause.is_accepted()).count();
            let value = match accepted {
                0 if !bearers_modified.is_empty() => bearers_modified[0].cause.value,
                some if some < bearers_modified.len() => CauseValue::ACCEPTED_PARTIALLY,
                _ => CauseValue::ACCEPTED,
            };
            (teid, ModifyBearerResponse { cause: value.into(), bearers_modified, ..Default::default() })
        }
        Err((teid, cause)) => {
            REFUSED.inc(&cause.value.0.to_string());
            (teid, ModifyBearerResponse { cause, ..Default::default() })
        }
    };
    let recovery = Some(gateway.gtpc.restart_counter());
    gateway.gtpc.respond(id, teid, ModifyBearerResponse { recovery, ..response });
}

type Changed = Result<(u32, Vec<BearerModified>), (u32, Cause)>;

async fn change(gateway: &Gateway, id: RequestId, teid: u32, request: &ModifyBearerRequest) -> Changed {
    let unknown = || (request.sender_f_teid.map_or(0, |mme| mme.teid), CauseValue::CONTEXT_NOT_FOUND.into());
    let ue = gateway.ues.by_teid(teid).ok_or_else(unknown)?;
    let mut state = ue.state.lock().await;
    if state.gone {
        return Err(unknown());
    }
    match request.sender_f_teid {
        // The UE has moved to this MME.
        Some(mme) if mme != state.mme && is_from(mme, id.peer.ip()) => {
            state.mme = mme;
            state.mme_since = time::now().into_std();
            gateway.gtpc.watch(id.peer.ip());
        }
        _ if !is_from(state.mme, id.peer.ip()) => return Err((0, CauseValue::INVALID_PEER.into())),
        _ => {}
    }
    let mme = state.mme.teid;
    for removed in &request.bearers_to_be_removed {
        bearers::remove(gateway, &mut state, removed.ebi).await;
    }
    let modified = apply(gateway, &mut state, request).await;
    if state.is_connected() {
        // The UE was found.
        state.set_paging(Paging::No);
    }
    Ok((mme, modified))
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
    for pdn in &mut state.pdns {
        let mut changes: Vec<(Slot, Downlink)> = Vec::new();
        for (context, result) in wanted.iter().zip(&mut results) {
            let mut bearers = pdn.bearers.iter_mut().filter(|bearer| bearer.ebi != Ebi(0));
            let Some(bearer) = bearers.find(|bearer| bearer.ebi == context.ebi) else { continue };
            result.cause = CauseValue::ACCEPTED.into();
            result.s1u_sgw_f_teid = bearer.own.map(|own| own.f_teid(InterfaceType::S1U_SGW));
            let Some(enb) = context.s1u_enb_f_teid.and_then(Tunnel::of) else { continue };
            // A former eNB passes what it still gets on to the new one, up to the End Marker.
            let end_marker = bearer.enb.is_some_and(|former| former != enb);
            bearer.enb = Some(enb);
            changes.push((bearer.slot, Downlink::To { enb, end_marker }));
        }
        if is_unreachable {
            // What the MME does not name was dropped as well.
            let idle = pdn.bearers.iter().filter(|bearer| bearer.enb.is_none());
            changes.extend(idle.map(|bearer| (bearer.slot, Downlink::Buffered)));
        }
        let mut change = rules::change_downlink(changes.iter().copied());
        if let Some(ambr) = request.apn_ambr.filter(|_| !changes.is_empty()) {
            let rate = |kbps: u32| BitRate::from_kbps(kbps.into());
            let ambr = types::Ambr { uplink: rate(ambr.uplink_kbps), downlink: rate(ambr.downlink_kbps) };
            if ambr != pdn.ambr {
                pdn.ambr = ambr;
                change.update_qers = rules::change_ambr(ambr).update_qers;
            }
        }
        if changes.is_empty() {
            continue;
        }
        match modify(gateway, pdn, change).await {
            Ok(_) => n4u::reachable(gateway, pdn),
            // MME and eNB must not believe that packets come. A UPF that has made the change is told otherwise by the next one.
            Err(error) => {
                tracing::warn!(%error, "an eNB's tunnel is not on the UPF");
                for (slot, _) in changes {
                    let mut bearers = pdn.bearers.iter_mut();
                    let Some(bearer) = bearers.find(|bearer| bearer.slot == slot) else { continue };
                    bearer.enb = None;
                    let mut of_bearer = results.iter_mut();
                    if let Some(result) = of_bearer.find(|result| result.ebi == bearer.ebi) {
                        result.cause = cause_of(error).into();
                    }
                }
            }
        }
    }
    results
}
