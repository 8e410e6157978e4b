//! Dedicated bearers, and what the gateway ends or changes by itself (TS 23.401 §5.4, TS 29.274 §7.2.3 to §7.2.6, §7.2.9.2 to
//! §7.2.17).
//!
//! A new bearer is on the UPF before the MME hears of it, as the MME needs the UPF's tunnel. It buffers until the MME has named the
//! eNB's, and is taken back if the MME refuses it. A P-GW alone asks the S-GW instead of the MME. An S-GW alone passes on what either
//! side asks for ([`serving`]).

use std::sync::Arc;

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::*;
use gtpv2c::value::tft::{Operation, Tft};
use gtpv2c::value::*;
use gtpv2c::{BearerInCreateRequest, BearerInUpdateRequest};
use telemetry::counters::{Counter, Family};

use super::create_session::{filters, rates};
use super::{Subject, cause_of, delete_session, find, modify, serving};
use crate::bearer::{Bearer, S5Tunnel, Slot, Tunnel, is_gbr};
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
    let (peer, number, charging_id, request) = {
        let mut state = ue.state.lock().await;
        let mme = state.mme;
        let pdn = state.pdn(wanted.linked).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        // An S-GW alone has no say.
        let peer = pdn.upward(mme).filter(|_| pdn.role.is_pgw()).ok_or(CauseValue::SERVICE_NOT_SUPPORTED)?;
        let slot = pdn.free_slot().ok_or(CauseValue::NO_RESOURCES)?;
        let charging_id = gateway.ues.charging_id();
        let bearer = Bearer {
            slot,
            ebi: Ebi(0),
            qos: wanted.qos,
            filters,
            charging_id,
            own: None,
            access: None,
            s5: S5Tunnel::default(),
        };
        let own = add(gateway, pdn, bearer).await.map_err(cause_of)?;
        let s1u = Some(own.f_teid(InterfaceType::S1U_SGW));
        let context = BearerInCreateRequest {
            ebi: Ebi(0),
            tft: wanted.tft,
            s1u_sgw_f_teid: s1u.filter(|_| pdn.role.is_sgw()),
            s5s8u_pgw_f_teid: Some(own.f_teid(InterfaceType::S5S8_PGW_GTPU)),
            qos: wanted.qos,
            charging_id: Some(ChargingId(charging_id)),
            ..Default::default()
        };
        let bearers = vec![context];
        let request =
            CreateBearerRequest { pti: wanted.pti, linked_ebi: wanted.linked, bearers, ..Default::default() };
        (peer, pdn.number, charging_id, request)
    };
    let answer = match wanted.command {
        Some(command) => gateway.gtpc.request_triggered(command, peer, request).await,
        None => gateway.gtpc.request(peer, request).await,
    };
    let accepted = accepted(answer);
    let mut state = ue.state.lock().await;
    let taken: Vec<Ebi> = state.pdns.iter().flat_map(|pdn| &pdn.bearers).map(|bearer| bearer.ebi).collect();
    // The UE may have attached again meanwhile.
    let pdn = state.numbered(number).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let at = pdn.bearers.iter().position(|bearer| bearer.charging_id == charging_id);
    let at = at.ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let result = match accepted {
        Ok((ebi, _)) if taken.contains(&ebi) => Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        Ok((ebi, access)) => {
            pdn.bearers[at].ebi = ebi;
            connect(gateway, pdn, at, access).await.map(|()| ebi).map_err(|error| cause_of(error).into())
        }
        Err(cause) => Err(cause),
    };
    if result.is_err() {
        take_away(gateway, pdn, at).await;
        // MME and eNB have it.
        if let Ok((ebi, _)) = accepted {
            let request = DeleteBearerRequest { ebis: vec![ebi], ..Default::default() };
            drop(state);
            if let Err(error) = gateway.gtpc.request(peer, request).await {
                tracing::debug!(imsi = %ue.imsi, %error, "the neighbour does not hear of the end of a bearer");
            }
        }
    }
    result
}

/// Names the far end of a new bearer's tunnel; `None`: it has none yet.
pub(super) async fn connect(
    gateway: &Gateway,
    pdn: &mut Pdn,
    at: usize,
    access: Option<Tunnel>,
) -> Result<(), n4::N4Error> {
    pdn.bearers[at].access = access;
    let to = |access| Downlink::To { access, end_marker: false };
    let downlink = access.map_or(Downlink::Buffered, to);
    let change = rules::change_downlink(pdn.role, [(pdn.bearers[at].slot, downlink)]);
    modify(gateway, pdn, change).await.map(drop)
}

/// Adds a bearer to a PDN connection and its UPF. Returns the UPF's end of its tunnel.
pub(super) async fn add(gateway: &Gateway, pdn: &mut Pdn, bearer: Bearer) -> Result<Tunnel, n4::N4Error> {
    let slot = bearer.slot;
    let change = pdn.rules(gateway).add_bearer(&bearer);
    pdn.bearers.push(bearer);
    let at = pdn.bearers.len() - 1;
    let (own, s5) = match gateway.n4.request(pdn.upf.address, pdn.seids(), change).await {
        Ok(pfcp::Message::SessionModificationResponse(response)) => {
            let created = &response.created_pdrs;
            (rules::chosen(created, slot), rules::chosen_s5(created, slot).filter(|_| !pdn.role.is_pgw()))
        }
        Ok(_) => (None, None),
        Err(error) => {
            pdn.bearers.pop();
            return Err(error);
        }
    };
    match own {
        Some(own) if pdn.role.is_pgw() || s5.is_some() => {
            pdn.bearers[at].own = Some(own);
            pdn.bearers[at].s5.own = s5;
            Ok(own)
        }
        _ => {
            take_away(gateway, pdn, at).await;
            Err(n4::N4Error::Unusable)
        }
    }
}

/// The identity that the MME gave, and the eNB's or S-GW's end.
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
            let access = context.s1u_enb_f_teid.or(context.s5s8u_sgw_f_teid);
            Ok((context.ebi, access.and_then(Tunnel::of)))
        }
        true => Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        false => Err(context.cause),
    }
}

/// Takes a dedicated bearer away, without the neighbours.
pub(super) async fn take_away(gateway: &Gateway, pdn: &mut Pdn, at: usize) {
    let bearer = pdn.bearers.remove(at);
    REMOVED.inc();
    // Set up again, the PDN connection would be without this bearer, too.
    if let Err(error) = modify(gateway, pdn, rules::remove_bearer(pdn.role, &bearer)).await {
        tracing::debug!(%error, "bearer not removed on the UPF");
    }
}

/// Takes the dedicated bearer with this identity away, if there is one, without the neighbours.
pub(super) async fn remove(gateway: &Gateway, pdn: &mut Pdn, ebi: Ebi) {
    let mut bearers = pdn.bearers.iter();
    let dedicated = bearers.position(|bearer| bearer.ebi == ebi && bearer.slot != Slot::DEFAULT);
    if let Some(at) = dedicated.filter(|_| ebi != Ebi(0)) {
        take_away(gateway, pdn, at).await;
    }
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
    let (peer, charging_ids, is_default) = {
        let mut state = ue.state.lock().await;
        let mme = state.mme;
        let (mut charging_ids, mut is_default, mut peer) = (Vec::new(), false, None);
        for ebi in &ebis {
            let (at, bearer) = state.bearer(*ebi).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
            is_default |= bearer.slot == Slot::DEFAULT;
            charging_ids.push(bearer.charging_id);
            // An S-GW alone has no say.
            peer = state.pdns[at].upward(mme).filter(|_| state.pdns[at].role.is_pgw());
        }
        if is_default && ebis.len() > 1 {
            return Err(CauseValue::REJECTED.into());
        }
        (peer.ok_or(CauseValue::REJECTED)?, charging_ids, is_default)
    };
    let linked_ebi = ebis.first().copied().filter(|_| is_default);
    let ebis = if is_default { Vec::new() } else { ebis };
    let request = DeleteBearerRequest { linked_ebi, ebis, pti, ..Default::default() };
    let answer = match command {
        Some(command) => gateway.gtpc.request_triggered(command, peer, request).await,
        None => gateway.gtpc.request(peer, request).await,
    };
    if let Err(error) = answer {
        tracing::debug!(imsi = %ue.imsi, %error, "the neighbour has not confirmed the end of a bearer");
    }
    let mut state = ue.state.lock().await;
    let mut at = 0;
    while let Some(pdn) = state.pdns.get_mut(at) {
        let is_gone = |bearer: &Bearer| charging_ids.contains(&bearer.charging_id);
        if pdn.default_bearer().is_some_and(is_gone) {
            let pdn = state.pdns.remove(at);
            delete_session::end_here(gateway, pdn).await;
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
    let subject = Subject::of(&gateway, teid);
    let (peer, known, pgw) = match find(subject.as_ref(), id.peer.ip()).await {
        Ok((state, peer)) => {
            let asked = |bearer: &Bearer| command.bearers.iter().any(|context| context.ebi == bearer.ebi);
            let mut pdns = state.pdns.iter().filter(|pdn| subject.as_ref().is_some_and(|all| all.has(pdn)));
            let dedicated = |pdn: &Pdn| {
                let bearers = pdn.bearers.iter().filter(|bearer| bearer.slot != Slot::DEFAULT);
                bearers.filter(|bearer| asked(bearer)).map(|bearer| bearer.ebi).collect::<Vec<_>>()
            };
            // A command is about one PDN connection.
            let found = pdns.find_map(|pdn| {
                let known = dedicated(pdn);
                (!known.is_empty()).then(|| (known, serving::pgw_of(pdn)))
            });
            let (known, pgw) = found.unwrap_or_default();
            (peer, known, pgw)
        }
        Err((teid, cause)) => return gateway.gtpc.reject(id, teid, cause),
    };
    let Some(subject) = subject else { return };
    if let Some(pgw) = pgw {
        return serving::pass_on(gateway, id, peer, pgw, command.into()).await;
    }
    if known.is_empty() {
        return gateway.gtpc.reject(id, peer.teid, CauseValue::CONTEXT_NOT_FOUND);
    }
    if let Err(cause) = delete(&gateway, subject.ue(), known, Some(id), None).await {
        gateway.gtpc.reject(id, peer.teid, cause);
    }
}

/// Bearer Resource Command: the UE asks for a bearer, or gives one back (TS 23.401 §5.4.5).
pub(crate) async fn resource_command(
    gateway: Arc<Gateway>,
    id: RequestId,
    teid: u32,
    command: BearerResourceCommand,
) {
    let subject = Subject::of(&gateway, teid);
    let (peer, pgw) = match find(subject.as_ref(), id.peer.ip()).await {
        Ok((mut state, peer)) => match its_pdn(subject.as_ref(), &mut state, command.linked_ebi) {
            Some(pdn) => (peer, serving::pgw_of(pdn)),
            None => {
                let cause = CauseValue::CONTEXT_NOT_FOUND.into();
                return refuse_resource(&gateway, id, peer.teid, &command, cause);
            }
        },
        Err((teid, cause)) => return refuse_resource(&gateway, id, teid, &command, cause),
    };
    let Some(subject) = subject else { return };
    if let Some(pgw) = pgw {
        return serving::pass_on(gateway, id, peer, pgw, command.into()).await;
    }
    let ue = subject.ue();
    let refuse = |cause: Cause| refuse_resource(&gateway, id, peer.teid, &command, cause);
    let tad = command.tad.clone().unwrap_or_default();
    match (Tft::decode(&tad.0).map(|tft| tft.operation), command.flow_qos, command.ebi) {
        (Ok(Operation::Create(_)), Some(flow), None) => {
            if !may_ask_for(&gateway, ue, command.linked_ebi, flow).await {
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
            if let Err(cause) = create(&gateway, ue, wanted).await {
                refuse(cause);
            }
        }
        (Ok(operation @ (Operation::DeleteFilters(_) | Operation::Delete)), _, Some(ebi)) => {
            // A bearer that keeps a filter would have to be updated, which this gateway does not do yet.
            if !has_only(ue, command.linked_ebi, ebi, &operation).await {
                return refuse(CauseValue::SERVICE_NOT_SUPPORTED.into());
            }
            if let Err(cause) = delete(&gateway, ue, vec![ebi], Some(id), Some(command.pti)).await {
                refuse(cause);
            }
        }
        (Ok(_), ..) => refuse(CauseValue::SERVICE_NOT_SUPPORTED.into()),
        (Err(_), ..) => refuse(CauseValue::TAD_SYNTACTIC_ERROR.into()),
    }
}

/// The PDN connection with this default bearer, if the sender of a message may speak for it.
fn its_pdn<'s>(subject: Option<&Subject>, state: &'s mut UeState, linked: Ebi) -> Option<&'s mut Pdn> {
    state.pdn(linked).filter(|pdn| subject.is_some_and(|subject| subject.has(pdn)))
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
    let subject = Subject::of(&gateway, teid);
    let ebi = command.bearer.ebi;
    let (peer, qos, pgw) = match find(subject.as_ref(), id.peer.ip()).await {
        Ok((mut state, peer)) => {
            let Some(pdn) = its_pdn(subject.as_ref(), &mut state, ebi) else {
                return gateway.gtpc.reject(id, peer.teid, CauseValue::CONTEXT_NOT_FOUND);
            };
            let qos = command.bearer.qos.or(pdn.default_bearer().map(|bearer| bearer.qos));
            (peer, qos, serving::pgw_of(pdn))
        }
        Err((teid, cause)) => return gateway.gtpc.reject(id, teid, cause),
    };
    let Some(subject) = subject else { return };
    if let Some(pgw) = pgw {
        return serving::pass_on(gateway, id, peer, pgw, command.into()).await;
    }
    let ue = subject.ue();
    let bearers = vec![BearerInUpdateRequest { ebi, qos, ..Default::default() }];
    let request = UpdateBearerRequest { bearers, apn_ambr: command.apn_ambr, ..Default::default() };
    let answer = gateway.gtpc.request_triggered(id, peer, request).await;
    let is_accepted =
        matches!(answer, Ok(Message::UpdateBearerResponse(answer)) if answer.cause.is_accepted());
    if !is_accepted {
        return;
    }
    let mut state = ue.state.lock().await;
    let Some(pdn) = state.pdn(ebi) else { return };
    pdn.ambr = rates(command.apn_ambr);
    if let (Some(qos), Some(default)) = (qos, pdn.bearers.first_mut()) {
        default.qos = qos;
    }
    let change = rules::change_ambr(pdn.ambr);
    if let Err(error) = modify(&gateway, pdn, change).await {
        tracing::warn!(imsi = %ue.imsi, %error, "the UPF has not taken a new APN-AMBR");
    }
}
