//! Modify Bearer (TS 29.274 §7.2.7): the eNB's ends of tunnels after an attach, a service request (TS 23.401 §5.3.4.1) or a handover
//! (§5.5.1.1), and the move of a UE to another MME or to this S-GW.

use std::sync::Arc;

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::{ModifyBearerRequest, ModifyBearerResponse};
use gtpv2c::value::{Cause, CauseValue, Ebi, InterfaceType};
use gtpv2c::{BearerModified, BearerToBeModified};
use telemetry::counters::{Counter, Family};

use super::create_session::rates;
use super::{bearers, cause_of, modify, serving};
use crate::bearer::{Slot, Tunnel};
use crate::context::{Gateway, Paging, Pdn, Peer, Role, UeState, has_address};
use crate::rules::{self, Downlink};
use crate::{contexts, n4u};

static MODIFIED: Counter = Counter::new("epc_bearers_modified");
static REFUSED: Family = Family::new("epc_modify_refused", "cause");

/// Answers a request.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32, request: ModifyBearerRequest) {
    let own = teid;
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
    contexts::save(&gateway, own).await;
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
    // Only an MME itself says where it is.
    let source = id.peer.ip();
    let sender = request.sender_f_teid.filter(|mme| mme.teid != 0 && has_address(*mme, source));
    let sender = sender.map(|mme| Peer::now(mme, source));
    let mme = match (sender, state.mme) {
        (Some(sender), mme) if mme.is_none_or(|mme| mme.f_teid != sender.f_teid) => {
            // The UE has moved to this MME.
            state.mme = Some(sender);
            gateway.gtpc.watch(source);
            sender
        }
        (_, Some(mme)) if mme.is_at(source) => mme,
        _ => return Err((0, CauseValue::INVALID_PEER.into())),
    };
    let modified = apply(gateway, &mut state, request).await;
    if state.is_connected() {
        // The UE was found.
        state.set_paging(Paging::No);
    }
    Ok((mme.f_teid.teid, modified))
}

/// Whether an eNB's tunnel is named for a bearer of a PDN connection.
fn names_enb(wanted: &[BearerToBeModified], pdn: &Pdn) -> bool {
    let ebis = wanted.iter().filter(|context| context.s1u_enb_f_teid.is_some()).map(|context| context.ebi);
    ebis.into_iter().any(|ebi| pdn.bearers.iter().any(|bearer| bearer.ebi == ebi))
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
        let former = (pdn.role, pdn.unclaimed, pdn.bearers.clone());
        match pdn.role {
            // The UE has arrived here with this PDN connection, if an eNB is named for it.
            Role::Pgw { awaits_ue: true, .. } if names_enb(wanted, pdn) => pdn.role = Role::Both,
            Role::Pgw { .. } => continue,
            _ => {}
        }
        let mut removed = Vec::new();
        for context in &request.bearers_to_be_removed {
            if bearers::remove(gateway, pdn, context.ebi).await {
                removed.push(context.clone());
            }
        }
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
            pdn.unclaimed = None;
            changes.push((bearer.slot, Downlink::To { access, end_marker }));
        }
        if former.0 != pdn.role {
            // The former S-GW's tunnels are no more, also those of bearers that the MME does not name.
            for bearer in &mut pdn.bearers {
                if changes.iter().all(|(slot, _)| *slot != bearer.slot) {
                    bearer.access = None;
                    changes.push((bearer.slot, Downlink::Buffered));
                }
            }
        } else if is_unreachable {
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
        if changes.is_empty() && removed.is_empty() {
            continue;
        }
        let result = match changes.is_empty() {
            true => Ok(()),
            false => modify(gateway, pdn, change).await.map(drop).map_err(|error| cause_of(error).into()),
        };
        let result = match result {
            Ok(()) => Box::pin(serving::tell_pgw(gateway, pdn, request.into(), removed)).await,
            Err(cause) => Err(cause),
        };
        match result {
            Ok(()) => n4u::reachable(gateway, pdn),
            // MME and eNB must not believe that packets come.
            Err(cause) => {
                tracing::warn!(cause = %cause.value, "an eNB's tunnel is not on the UPF, or the P-GW does not send to this S-GW");
                let (role, unclaimed, before) = former;
                (pdn.role, pdn.unclaimed) = (role, unclaimed);
                if role.is_sgw() {
                    let buffered = changes.iter().map(|(slot, _)| (*slot, Downlink::Buffered));
                    let back = rules::change_downlink(role, buffered);
                    if let Err(error) = modify(gateway, pdn, back).await {
                        tracing::debug!(%error, "packets of a UE whose eNB is not known");
                    }
                }
                for (slot, _) in changes {
                    let mut bearers = pdn.bearers.iter_mut();
                    let Some(bearer) = bearers.find(|bearer| bearer.slot == slot) else { continue };
                    // If the UE has not come from another S-GW, it has no eNB now.
                    let at_sgw = before.iter().find(|former| former.slot == slot && !role.is_sgw());
                    bearer.access = at_sgw.and_then(|former| former.access);
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
