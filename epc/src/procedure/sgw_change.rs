//! Change of a UE's S-GW (TS 23.401 §5.3.3.1, §5.5.1.1.3, §5.5.1.2.2), as its P-GW sees it.
//!
//! The S-GW to which the UE has moved sends Modify Bearer Request to the P-GW's tunnel, of which the MME has told it. The downlink goes to
//! its tunnels from then on. If the UE moves back to the S-GW in this gateway, no message is needed between the two.

use std::sync::Arc;

use gtpv2c::BearerModified;
use gtpv2c::endpoint::RequestId;
use gtpv2c::message::{
    CreateSessionRequest, CreateSessionResponse, ModifyBearerRequest, ModifyBearerResponse,
};
use gtpv2c::value::*;
use pfcp::message::SessionModificationRequest;
use telemetry::counters::Counter;

use super::create_session::{paa, rates, tunnels};
use super::{Subject, bearers, cause_of, modify};
use crate::bearer::{Slot, Tunnel};
use crate::context::{Gateway, Paging, Pdn, Peer, Role, Ue, UeState, has_address};
use crate::n4u;
use crate::rules::{self, Downlink};

static CHANGED: Counter = Counter::new("epc_sgw_changed");

/// Answers an S-GW's Modify Bearer Request.
pub(crate) async fn handle(
    gateway: Arc<Gateway>,
    id: RequestId,
    subject: Subject,
    request: ModifyBearerRequest,
) {
    let result = change(&gateway, id, &subject, &request).await;
    let (teid, response) = result.unwrap_or_else(|cause| {
        let teid = request.sender_f_teid.map_or(0, |sender| sender.teid);
        (teid, ModifyBearerResponse { cause, ..Default::default() })
    });
    let recovery = Some(gateway.gtpc.restart_counter());
    gateway.gtpc.respond(id, teid, ModifyBearerResponse { recovery, ..response });
}

async fn change(
    gateway: &Arc<Gateway>,
    id: RequestId,
    subject: &Subject,
    request: &ModifyBearerRequest,
) -> Result<(u32, ModifyBearerResponse), Cause> {
    let mut state = subject.ue().state.lock().await;
    let state = &mut *state;
    let is_it = |pdn: &&mut Pdn| subject.concerns(pdn) && pdn.role.is_pgw();
    let pdn = state.pdns.iter_mut().find(is_it).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let source = id.peer.ip();
    // Only the S-GW itself says where it is.
    let named = request.sender_f_teid.filter(|sgw| sgw.teid != 0 && has_address(*sgw, source));
    let former = pdn.role.s5_peer().filter(|former| former.is_at(source));
    let sgw = match (named, former) {
        (Some(named), Some(former)) if former.f_teid == named => former,
        (Some(named), _) => Peer::now(named, source),
        (None, Some(former)) => former,
        (None, None) => return Err(CauseValue::INVALID_PEER.into()),
    };
    let has_changed = pdn.role.s5_peer() != Some(sgw);
    for removed in &request.bearers_to_be_removed {
        bearers::remove(gateway, pdn, removed.ebi).await;
    }
    let contexts = &request.bearers_to_be_modified;
    if has_changed {
        // What the UE has not taken along.
        let left: Vec<Ebi> = pdn.bearers.iter().map(|bearer| bearer.ebi).collect();
        for ebi in left.into_iter().filter(|ebi| contexts.iter().all(|context| context.ebi != *ebi)) {
            bearers::remove(gateway, pdn, ebi).await;
        }
    }
    let role = if has_changed { Role::Pgw { sgw, awaits_ue: false } } else { pdn.role };
    let named = contexts
        .iter()
        .filter_map(|context| Some((context.ebi, context.s5s8u_sgw_f_teid.and_then(Tunnel::of)?)));
    let (mut change, ends) = redirect(pdn, role, named);
    let ambr = request.apn_ambr.map(rates).filter(|ambr| *ambr != pdn.ambr);
    change.update_qers.extend(ambr.map(rules::change_ambr).into_iter().flat_map(|change| change.update_qers));
    if !change.update_fars.is_empty() || !change.update_qers.is_empty() {
        // Until the UPF has changed, the former S-GW has the PDN connection.
        modify(gateway, pdn, change).await.map_err(|error| Cause::from(cause_of(error)))?;
    }
    take(pdn, role, ends);
    pdn.ambr = ambr.unwrap_or(pdn.ambr);
    if has_changed {
        CHANGED.inc();
        gateway.gtpc.watch(source);
    }
    n4u::reachable(gateway, pdn);
    let bearers_modified = contexts.iter().map(|context| {
        let bearer = pdn.bearers.iter().find(|bearer| bearer.ebi == context.ebi && context.ebi != Ebi(0));
        let cause = bearer.map_or(CauseValue::CONTEXT_NOT_FOUND, |_| CauseValue::ACCEPTED).into();
        let charging_id = bearer.map(|bearer| ChargingId(bearer.charging_id));
        BearerModified { ebi: context.ebi, cause, charging_id, ..Default::default() }
    });
    let bearers_modified: Vec<_> = bearers_modified.collect();
    let cause = super::modify_bearer::overall(&bearers_modified).into();
    let response = ModifyBearerResponse { cause, bearers_modified, ..Default::default() };
    if state.served().next().is_none() {
        // Another S-GW has it paged.
        state.set_paging(Paging::No);
    }
    Ok((sgw.f_teid.teid, response))
}

/// The far ends of bearers, by slot; `None`: the UE is idle.
type FarEnds = Vec<(Slot, Option<Tunnel>)>;

/// What the UPF has to change if bearers have these far ends, and the far ends for [`take`].
fn redirect(
    pdn: &Pdn,
    role: Role,
    named: impl Iterator<Item = (Ebi, Tunnel)>,
) -> (SessionModificationRequest, FarEnds) {
    let (mut changes, mut ends) = (Vec::new(), Vec::new());
    for (ebi, access) in named {
        let mut bearers = pdn.bearers.iter().filter(|bearer| bearer.ebi != Ebi(0));
        let Some(bearer) = bearers.find(|bearer| bearer.ebi == ebi) else { continue };
        let end_marker = bearer.access.is_some_and(|former| former != access);
        changes.push((bearer.slot, Downlink::To { access, end_marker }));
        ends.push((bearer.slot, Some(access)));
    }
    (rules::change_downlink(role, changes), ends)
}

/// Notes what the UPF has changed.
fn take(pdn: &mut Pdn, role: Role, ends: FarEnds) {
    pdn.role = role;
    pdn.unclaimed = None;
    for (slot, access) in ends {
        if let Some(bearer) = pdn.bearers.iter_mut().find(|bearer| bearer.slot == slot) {
            bearer.access = access;
        }
    }
}

/// A UE whose PDN connection has its P-GW here, with this TEID, moves to the S-GW in this gateway.
pub(super) async fn move_here(
    gateway: &Gateway,
    ue: &Ue,
    state: &mut UeState,
    teid: u32,
    request: &CreateSessionRequest,
) -> Result<CreateSessionResponse, Cause> {
    let mut pdns = state.pdns.iter_mut();
    let pdn = pdns.find(|pdn| pdn.number as u32 == teid).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let is_here = request.indication.is_some_and(|indication| indication.contains(Indication::OI));
    match (&mut pdn.role, is_here) {
        (Role::Sgw { .. }, _) => return Err(CauseValue::CONTEXT_NOT_FOUND.into()),
        // The UE is still with its former S-GW, until the MME names its eNB.
        (Role::Pgw { awaits_ue, .. }, false) => *awaits_ue = true,
        (Role::Both, false) => {}
        (_, true) => arrive(gateway, pdn, request).await?,
    }
    let linked_ebi = request.linked_ebi;
    Ok(CreateSessionResponse { paa: Some(paa(pdn)), linked_ebi, ..tunnels(gateway, Some(ue), pdn) })
}

/// The UE is here, connected to the eNB that the MME names, or idle.
async fn arrive(gateway: &Gateway, pdn: &mut Pdn, request: &CreateSessionRequest) -> Result<(), Cause> {
    let contexts = &request.bearers_to_be_created;
    // What the UE has not taken along.
    let left: Vec<Ebi> = pdn.bearers.iter().map(|bearer| bearer.ebi).collect();
    for ebi in left.into_iter().filter(|ebi| contexts.iter().all(|context| context.ebi != *ebi)) {
        bearers::remove(gateway, pdn, ebi).await;
    }
    let named = contexts
        .iter()
        .filter_map(|context| Some((context.ebi, context.s1u_enb_f_teid.and_then(Tunnel::of)?)));
    let (mut change, mut ends) = redirect(pdn, Role::Both, named);
    let idle = pdn.bearers.iter().map(|bearer| bearer.slot);
    let idle: Vec<_> = idle.filter(|slot| ends.iter().all(|(named, _)| named != slot)).collect();
    let buffered = idle.iter().map(|slot| (*slot, Downlink::Buffered));
    change.update_fars.extend(rules::change_downlink(Role::Both, buffered).update_fars);
    ends.extend(idle.into_iter().map(|slot| (slot, None)));
    modify(gateway, pdn, change).await.map_err(|error| Cause::from(cause_of(error)))?;
    CHANGED.inc();
    take(pdn, Role::Both, ends);
    pdn.arrived = Some(net::time::now().into_std());
    n4u::reachable(gateway, pdn);
    Ok(())
}
