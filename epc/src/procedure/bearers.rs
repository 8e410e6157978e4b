//! Dedicated bearers, and what the gateway ends or changes by itself (TS 23.401 §5.4, TS 29.274 §7.2.3 to §7.2.6, §7.2.9.2 to
//! §7.2.17).
//!
//! A new bearer is on the UPF before the MME hears of it, as the MME needs the UPF's tunnel. It buffers until the MME has named the
//! eNB's, and is taken back if the MME refuses it.

use std::sync::Arc;

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::*;
use gtpv2c::value::tft::{Operation, Tft};
use gtpv2c::value::*;
use gtpv2c::{BearerInCreateRequest, BearerInUpdateRequest};
use telemetry::counters::{Counter, Family};
use types::BitRate;

use super::create_session::filters;
use super::{cause_of, delete_session, find, modify};
use crate::bearer::{Bearer, Slot, Tunnel, is_gbr};
use crate::context::{Gateway, Pdn, Ue, UeState};
use crate::gtpc::GtpcError;
use crate::rules::{self, Downlink};

static CREATED: Counter = Counter::new("epc_dedicated_bearer_created");
static REMOVED: Counter = Counter::new("epc_dedicated_bearer_removed");
static REFUSED: Family = Family::new("epc_dedicated_bearer_refused", "cause");

/// A dedicated bearer that is wanted.
pub(crate) struct Wanted {
    /// Default bearer of the PDN connection.
    pub linked: Ebi,
    pub qos: BearerQos,
    /// A traffic flow template that creates the filters.
    pub tft: Octets,
    /// The UE's transaction, if it has asked.
    pub pti: Option<Pti>,
    /// The command by which it has.
    pub command: Option<RequestId>,
}

/// Sets up a dedicated bearer (TS 23.401 §5.4.1). Returns its identity.
///
/// # Errors
/// The cause for which UPF, MME or UE refused it.
pub(crate) async fn create(gateway: &Gateway, ue: &Ue, wanted: Wanted) -> Result<Ebi, Cause> {
    let result = create_counted(gateway, ue, wanted).await;
    match &result {
        Ok(_) => CREATED.inc(),
        Err(cause) => REFUSED.inc(&cause.value.0.to_string()),
    }
    result
}

async fn create_counted(gateway: &Gateway, ue: &Ue, wanted: Wanted) -> Result<Ebi, Cause> {
    let filters = filters(&wanted.tft)?;
    let (mme, number, charging_id, request) = {
        let mut state = ue.state.lock().await;
        let mme = state.mme;
        let pdn = state.pdn(wanted.linked).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        let slot = pdn.free_slot().ok_or(CauseValue::NO_RESOURCES)?;
        let charging_id = gateway.ues.charging_id();
        let bearer =
            Bearer { slot, ebi: Ebi(0), qos: wanted.qos, filters, charging_id, own: None, enb: None };
        let own = add(gateway, pdn, bearer).await.map_err(cause_of)?;
        let context = BearerInCreateRequest {
            ebi: Ebi(0),
            tft: wanted.tft,
            s1u_sgw_f_teid: Some(own.f_teid(InterfaceType::S1U_SGW)),
            s5s8u_pgw_f_teid: Some(own.f_teid(InterfaceType::S5S8_PGW_GTPU)),
            qos: wanted.qos,
            charging_id: Some(ChargingId(charging_id)),
            ..Default::default()
        };
        let bearers = vec![context];
        let request =
            CreateBearerRequest { pti: wanted.pti, linked_ebi: wanted.linked, bearers, ..Default::default() };
        (mme, pdn.number, charging_id, request)
    };
    let answer = match wanted.command {
        Some(command) => gateway.gtpc.request_triggered(command, mme, request).await,
        None => gateway.gtpc.request(mme, request).await,
    };
    let accepted = accepted(answer);
    let mut state = ue.state.lock().await;
    let taken: Vec<Ebi> = state.pdns.iter().flat_map(|pdn| &pdn.bearers).map(|bearer| bearer.ebi).collect();
    // The UE may have attached again meanwhile.
    let pdn = state.pdns.iter_mut().find(|pdn| pdn.number == number).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let at = pdn.bearers.iter().position(|bearer| bearer.charging_id == charging_id);
    let at = at.ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let result = match accepted {
        Ok((ebi, _)) if taken.contains(&ebi) => Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        Ok((ebi, enb)) => {
            pdn.bearers[at].ebi = ebi;
            pdn.bearers[at].enb = enb;
            let slot = pdn.bearers[at].slot;
            let to = |enb| Downlink::To { enb, end_marker: false };
            let change = rules::change_downlink([(slot, enb.map_or(Downlink::Buffered, to))]);
            modify(gateway, pdn, change).await.map(|_| ebi).map_err(|error| cause_of(error).into())
        }
        Err(cause) => Err(cause),
    };
    if result.is_err() {
        take_away(gateway, pdn, at).await;
        // MME and eNB have it.
        if let Ok((ebi, _)) = accepted {
            let request = DeleteBearerRequest { ebis: vec![ebi], ..Default::default() };
            drop(state);
            if let Err(error) = gateway.gtpc.request(mme, request).await {
                tracing::debug!(imsi = %ue.imsi, %error, "the MME does not hear of the end of a bearer");
            }
        }
    }
    result
}

/// Adds a bearer to a PDN connection and its UPF. Returns the UPF's end of its tunnel.
async fn add(gateway: &Gateway, pdn: &mut Pdn, bearer: Bearer) -> Result<Tunnel, n4::N4Error> {
    let slot = bearer.slot;
    let change = pdn.rules(gateway).add_bearer(&bearer);
    pdn.bearers.push(bearer);
    let at = pdn.bearers.len() - 1;
    let own = match gateway.n4.request(pdn.upf.address, pdn.seids(), change).await {
        Ok(pfcp::Message::SessionModificationResponse(response)) => {
            rules::chosen(&response.created_pdrs, slot)
        }
        Ok(_) => None,
        Err(error) => {
            pdn.bearers.pop();
            return Err(error);
        }
    };
    match own {
        Some(own) => {
            pdn.bearers[at].own = Some(own);
            Ok(own)
        }
        None => {
            take_away(gateway, pdn, at).await;
            Err(n4::N4Error::Unusable)
        }
    }
}

/// The identity that the MME gave, and the eNB's end.
fn accepted(answer: Result<Message, GtpcError>) -> Result<(Ebi, Option<Tunnel>), Cause> {
    let response = match answer {
        Ok(Message::CreateBearerResponse(response)) => response,
        Ok(_) => return Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        Err(error) => {
            tracing::debug!(%error, "the MME does not answer");
            return Err(CauseValue::REMOTE_PEER_NOT_RESPONDING.into());
        }
    };
    let Some(context) = response.bearers.first().filter(|_| response.cause.is_accepted()) else {
        return Err(response.cause);
    };
    match context.cause.is_accepted() {
        true if (5..=15).contains(&context.ebi.0) => {
            Ok((context.ebi, context.s1u_enb_f_teid.and_then(Tunnel::of)))
        }
        true => Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        false => Err(context.cause),
    }
}

/// Takes a dedicated bearer away, without the MME.
async fn take_away(gateway: &Gateway, pdn: &mut Pdn, at: usize) {
    let bearer = pdn.bearers.remove(at);
    REMOVED.inc();
    // Set up again, the PDN connection would be without this bearer, too.
    if let Err(error) = modify(gateway, pdn, rules::remove_bearer(&bearer)).await {
        tracing::debug!(%error, "bearer not removed on the UPF");
    }
}

/// Takes the dedicated bearer with this identity away, without the MME; whether there was one.
pub(super) async fn remove(gateway: &Gateway, state: &mut UeState, ebi: Ebi) -> bool {
    if state.bearer(ebi).is_none() {
        return false;
    }
    for pdn in &mut state.pdns {
        let dedicated = pdn.bearers.iter().position(|bearer| bearer.ebi == ebi);
        if let Some(at) = dedicated.filter(|at| *at > 0) {
            take_away(gateway, pdn, at).await;
            return true;
        }
    }
    false
}

/// Ends dedicated bearers, or with a default one its PDN connection (TS 23.401 §5.4.4.1). They end whatever the MME says. `pti` is the
/// transaction of a UE that has asked.
///
/// # Errors
/// There is no such bearer, or a default bearer is not the only one.
pub(crate) async fn delete(
    gateway: &Gateway,
    ue: &Ue,
    ebis: Vec<Ebi>,
    command: Option<RequestId>,
    pti: Option<Pti>,
) -> Result<(), Cause> {
    // An identity may be given again while the MME is waited for, a charging ID is not.
    let (mme, charging_ids, is_default) = {
        let mut state = ue.state.lock().await;
        let (mut charging_ids, mut is_default) = (Vec::new(), false);
        for ebi in &ebis {
            let (_, bearer) = state.bearer(*ebi).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
            is_default |= bearer.slot == Slot::DEFAULT;
            charging_ids.push(bearer.charging_id);
        }
        if ebis.is_empty() || is_default && ebis.len() > 1 {
            return Err(CauseValue::REJECTED.into());
        }
        (state.mme, charging_ids, is_default)
    };
    let linked_ebi = ebis.first().copied().filter(|_| is_default);
    let ebis = if is_default { Vec::new() } else { ebis };
    let request = DeleteBearerRequest { linked_ebi, ebis, pti, ..Default::default() };
    let answer = match command {
        Some(command) => gateway.gtpc.request_triggered(command, mme, request).await,
        None => gateway.gtpc.request(mme, request).await,
    };
    if let Err(error) = answer {
        tracing::debug!(imsi = %ue.imsi, %error, "the MME has not confirmed the end of a bearer");
    }
    let mut state = ue.state.lock().await;
    let mut at = 0;
    while let Some(pdn) = state.pdns.get_mut(at) {
        let is_gone = |bearer: &Bearer| charging_ids.contains(&bearer.charging_id);
        if pdn.default_bearer().is_some_and(is_gone) {
            let pdn = state.pdns.remove(at);
            delete_session::end(gateway, pdn).await;
            continue;
        }
        while let Some(bearer) = pdn.bearers.iter().position(is_gone) {
            take_away(gateway, pdn, bearer).await;
        }
        at += 1;
    }
    delete_session::forget_if_empty(gateway, ue, &mut state);
    Ok(())
}

/// Delete Bearer Command: the radio network has given dedicated bearers up (TS 23.401 §5.4.4.2).
pub(crate) async fn delete_command(
    gateway: Arc<Gateway>,
    id: RequestId,
    teid: u32,
    command: DeleteBearerCommand,
) {
    let ue = gateway.ues.by_teid(teid);
    let (mme, known) = match find(ue.as_ref(), id.peer.ip()).await {
        Ok(mut state) => {
            let mut is_dedicated =
                |ebi: Ebi| state.bearer(ebi).is_some_and(|(_, bearer)| bearer.slot != Slot::DEFAULT);
            let all = command.bearers.iter().map(|context| context.ebi);
            let known: Vec<Ebi> = all.filter(|ebi| is_dedicated(*ebi)).collect();
            (state.mme, known)
        }
        Err((teid, cause)) => return gateway.gtpc.reject(id, teid, cause),
    };
    let Some(ue) = ue else { return };
    if let Err(cause) = delete(&gateway, &ue, known, Some(id), None).await {
        let cause =
            if cause.value == CauseValue::REJECTED { CauseValue::CONTEXT_NOT_FOUND.into() } else { cause };
        gateway.gtpc.reject(id, mme.teid, cause);
    }
}

/// Bearer Resource Command: the UE asks for a bearer, or gives one back (TS 23.401 §5.4.5).
pub(crate) async fn resource_command(
    gateway: Arc<Gateway>,
    id: RequestId,
    teid: u32,
    command: BearerResourceCommand,
) {
    let ue = gateway.ues.by_teid(teid);
    let mme = match find(ue.as_ref(), id.peer.ip()).await {
        Ok(state) => state.mme,
        Err((teid, cause)) => return refuse_resource(&gateway, id, teid, &command, cause),
    };
    let Some(ue) = ue else { return };
    let refuse = |cause: Cause| refuse_resource(&gateway, id, mme.teid, &command, cause);
    let tad = command.tad.clone().unwrap_or_default();
    match (Tft::decode(&tad.0).map(|tft| tft.operation), command.flow_qos, command.ebi) {
        (Ok(Operation::Create(_)), Some(flow), None) => {
            if !may_ask_for(&gateway, &ue, command.linked_ebi, flow).await {
                return refuse(CauseValue::SERVICE_DENIED.into());
            }
            let wanted = Wanted {
                linked: command.linked_ebi,
                // A UE cannot take resources from others.
                qos: BearerQos { arp: Arp { pci: true, pl: 15, pvi: false }, flow },
                tft: tad,
                pti: Some(command.pti),
                command: Some(id),
            };
            if let Err(cause) = create(&gateway, &ue, wanted).await {
                refuse(cause);
            }
        }
        (Ok(operation @ (Operation::DeleteFilters(_) | Operation::Delete)), _, Some(ebi)) => {
            // A bearer that keeps a filter would have to be updated, which this gateway does not do yet.
            if !has_only(&ue, command.linked_ebi, ebi, &operation).await {
                return refuse(CauseValue::SERVICE_NOT_SUPPORTED.into());
            }
            if let Err(cause) = delete(&gateway, &ue, vec![ebi], Some(id), Some(command.pti)).await {
                refuse(cause);
            }
        }
        (Ok(_), ..) => refuse(CauseValue::SERVICE_NOT_SUPPORTED.into()),
        (Err(_), ..) => refuse(CauseValue::TAD_SYNTACTIC_ERROR.into()),
    }
}

/// Whether a UE gets this QoS by asking for it: guaranteed rates only as far as its APN allows.
async fn may_ask_for(gateway: &Gateway, ue: &Ue, linked: Ebi, flow: FlowQos) -> bool {
    let mut state = ue.state.lock().await;
    let Some(network) = state.pdn(linked).and_then(|pdn| gateway.networks.get(&pdn.apn)) else {
        return false;
    };
    let most = network.config.ue_gbr_kbps;
    let asked = [flow.gbr_uplink_kbps, flow.gbr_downlink_kbps, flow.mbr_uplink_kbps, flow.mbr_downlink_kbps];
    // QCIs that the operator defines are not for UEs.
    match is_gbr(flow.qci) {
        true => most > 0 && asked.into_iter().all(|rate| rate <= most),
        false => (5..=9).contains(&flow.qci),
    }
}

/// Whether a dedicated bearer of the PDN connection has no filters but those that go.
async fn has_only(ue: &Ue, linked: Ebi, ebi: Ebi, gone: &Operation) -> bool {
    let mut state = ue.state.lock().await;
    let Some(pdn) = state.pdn(linked) else { return false };
    let mut dedicated = pdn.bearers.iter().filter(|bearer| bearer.slot != Slot::DEFAULT);
    dedicated.find(|bearer| bearer.ebi == ebi).is_some_and(|bearer| match gone {
        Operation::DeleteFilters(numbers) => bearer.filters.iter().all(|filter| numbers.contains(&filter.id)),
        _ => true,
    })
}

/// If the command has led to a request, it was answered by that, and this is not sent.
fn refuse_resource(
    gateway: &Gateway,
    id: RequestId,
    teid: u32,
    command: &BearerResourceCommand,
    cause: Cause,
) {
    let (linked_ebi, pti) = (command.linked_ebi, command.pti);
    let answer = BearerResourceFailureIndication { cause, linked_ebi, pti, ..Default::default() };
    gateway.gtpc.respond(id, teid, answer);
}

/// Modify Bearer Command: the subscribed QoS has changed (TS 23.401 §5.4.2.2).
pub(crate) async fn modify_command(
    gateway: Arc<Gateway>,
    id: RequestId,
    teid: u32,
    command: ModifyBearerCommand,
) {
    let ue = gateway.ues.by_teid(teid);
    let ebi = command.bearer.ebi;
    let (mme, qos) = match find(ue.as_ref(), id.peer.ip()).await {
        Ok(mut state) => {
            let mme = state.mme;
            let Some(pdn) = state.pdn(ebi) else {
                return gateway.gtpc.reject(id, mme.teid, CauseValue::CONTEXT_NOT_FOUND);
            };
            (mme, command.bearer.qos.or(pdn.default_bearer().map(|bearer| bearer.qos)))
        }
        Err((teid, cause)) => return gateway.gtpc.reject(id, teid, cause),
    };
    let Some(ue) = ue else { return };
    let bearers = vec![BearerInUpdateRequest { ebi, qos, ..Default::default() }];
    let request = UpdateBearerRequest { bearers, apn_ambr: command.apn_ambr, ..Default::default() };
    let answer = gateway.gtpc.request_triggered(id, mme, request).await;
    let is_accepted =
        matches!(answer, Ok(Message::UpdateBearerResponse(answer)) if answer.cause.is_accepted());
    if !is_accepted {
        return;
    }
    let mut state = ue.state.lock().await;
    let Some(pdn) = state.pdn(ebi) else { return };
    let rate = |kbps: u32| BitRate::from_kbps(kbps.into());
    pdn.ambr = types::Ambr {
        uplink: rate(command.apn_ambr.uplink_kbps),
        downlink: rate(command.apn_ambr.downlink_kbps),
    };
    if let (Some(qos), Some(default)) = (qos, pdn.bearers.first_mut()) {
        default.qos = qos;
    }
    let change = rules::change_ambr(pdn.ambr);
    if let Err(error) = modify(&gateway, pdn, change).await {
        tracing::warn!(imsi = %ue.imsi, %error, "the UPF has not taken a new APN-AMBR");
    }
}
