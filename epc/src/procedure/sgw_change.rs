//! Change of a UE's S-GW (TS 23.401 §5.3.3.1, §5.5.1.1.3, §5.5.1.2.2), as its P-GW sees it.
//!
//! The S-GW to which the UE has moved sends Modify Bearer Request to the P-GW's tunnel, of which the MME has told it. The downlink goes to
//! its tunnels from then on. If the UE moves back to the S-GW in this gateway, no message is needed between the two.

use std::sync::Arc;

use gtpv2c::BearerModified;
use gtpv2c::endpoint::RequestId;
use gtpv2c::ie;
use gtpv2c::message::{
    CreateSessionRequest, CreateSessionResponse, ModifyBearerRequest, ModifyBearerResponse,
};
use gtpv2c::value::*;
use telemetry::counters::Counter;

use super::create_session::{paa, rates, tunnels};
use super::{Subject, bearers, cause_of, missing, modify};
use crate::bearer::{Slot, Tunnel};
use crate::context::{Gateway, Paging, Pdn, Peer, Role, Ue, UeState};
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
    let is_it = |pdn: &&mut Pdn| subject.has(pdn) && pdn.role.is_pgw();
    let pdn = state.pdns.iter_mut().find(is_it).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let now = request.sender_f_teid.map(Peer::now);
    let sgw = match (now, pdn.role.s5_peer()) {
        (Some(now), Some(former)) if former.f_teid == now.f_teid => former,
        (Some(now), _) => now,
        (None, Some(former)) => former,
        (None, None) => return Err(missing(ie::F_TEID)),
    };
    if !sgw.is_at(id.peer.ip()) {
        return Err(CauseValue::INVALID_PEER.into());
    }
    if pdn.role != (Role::Pgw { sgw }) {
        CHANGED.inc();
        pdn.role = Role::Pgw { sgw };
        gateway.gtpc.watch(id.peer.ip());
    }
    for removed in &request.bearers_to_be_removed {
        bearers::remove(gateway, pdn, removed.ebi).await;
    }
    let contexts = &request.bearers_to_be_modified;
    let named = contexts
        .iter()
        .filter_map(|context| Some((context.ebi, context.s5s8u_sgw_f_teid.and_then(Tunnel::of)?)));
    let mut change = rules::change_downlink(pdn.role, redirect(pdn, named));
    if let Some(ambr) = request.apn_ambr.map(rates).filter(|ambr| *ambr != pdn.ambr) {
        pdn.ambr = ambr;
        change.update_qers = rules::change_ambr(ambr).update_qers;
    }
    let result = match change.update_fars.is_empty() && change.update_qers.is_empty() {
        true => Ok(()),
        false => modify(gateway, pdn, change).await.map(drop),
    };
    result.map_err(|error| Cause::from(cause_of(error)))?;
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

/// Notes other far ends of bearers. Returns the changes for the UPF.
fn redirect(pdn: &mut Pdn, named: impl Iterator<Item = (Ebi, Tunnel)>) -> Vec<(Slot, Downlink)> {
    let mut changes = Vec::new();
    for (ebi, access) in named {
        let mut bearers = pdn.bearers.iter_mut().filter(|bearer| bearer.ebi != Ebi(0));
        let Some(bearer) = bearers.find(|bearer| bearer.ebi == ebi) else { continue };
        let end_marker = bearer.access.is_some_and(|former| former != access);
        bearer.access = Some(access);
        changes.push((bearer.slot, Downlink::To { access, end_marker }));
    }
    changes
}

/// A UE whose PDN connection has its P-GW here, with this TEID, moves to the S-GW in this gateway.
pub(super) async fn come_back(
    gateway: &Gateway,
    ue: &Ue,
    state: &mut UeState,
    teid: u32,
    request: &CreateSessionRequest,
) -> Result<CreateSessionResponse, Cause> {
    let mut pdns = state.pdns.iter_mut();
    let pdn = pdns.find(|pdn| pdn.number as u32 == teid).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    CHANGED.inc();
    pdn.role = Role::Both;
    // With operation indication the UE is here already. Otherwise it is still with its former S-GW, until the MME names its eNB.
    if request.indication.is_some_and(|indication| indication.contains(Indication::OI)) {
        let contexts = &request.bearers_to_be_created;
        let named = contexts
            .iter()
            .filter_map(|context| Some((context.ebi, context.s1u_enb_f_teid.and_then(Tunnel::of)?)));
        let mut changes = redirect(pdn, named);
        for bearer in &mut pdn.bearers {
            if changes.iter().all(|(slot, _)| *slot != bearer.slot) {
                bearer.access = None;
                changes.push((bearer.slot, Downlink::Buffered));
            }
        }
        let change = rules::change_downlink(pdn.role, changes);
        modify(gateway, pdn, change).await.map_err(|error| Cause::from(cause_of(error)))?;
        n4u::reachable(gateway, pdn);
    }
    let linked_ebi = request.linked_ebi;
    Ok(CreateSessionResponse { paa: Some(paa(pdn)), linked_ebi, ..tunnels(gateway, ue, pdn) })
}
