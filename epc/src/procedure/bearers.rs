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
use crate::bearer::{Bearer, Tunnel};
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
    let (mme, number, slot, request) = {
        let mut state = ue.state.lock().await;
        let mme = state.mme;
        let pdn = state.pdn(wanted.linked).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        let slot = pdn.free_slot().ok_or(CauseValue::NO_RESOURCES)?;
        let bearer = Bearer {
            slot,
            ebi: Ebi(0),
            qos: wanted.qos,
            filters,
            charging_id: gateway.ues.charging_id(),
            own: None,
            enb: None,
        };
        let own = add(gateway, pdn, bearer).await.map_err(cause_of)?;
        let context = BearerInCreateRequest {
            ebi: Ebi(0),
            tft: wanted.tft,
            s1u_sgw_f_teid: Some(own.f_teid(InterfaceType::S1U_SGW)),
            s5s8u_pgw_f_teid: Some(own.f_teid(InterfaceType::S5S8_PGW_GTPU)),
            qos: wanted.qos,
            charging_id: pdn.bearers.last().map(|bearer| ChargingId(bearer.charging_id)),
            ..Default::default()
        };
        let bearers = vec![context];
        let request =
            CreateBearerRequest { pti: wanted.pti, linked_ebi: wanted.linked, bearers, ..Default::default() };
        (mme, pdn.number, slot, request)
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
    let at = pdn.bearers.iter().position(|bearer| bearer.slot == slot && bearer.ebi == Ebi(0));
    let at = at.ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let result = match accepted {
        Ok((ebi, _)) if taken.contains(&ebi) => Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        Ok((ebi, enb)) => {
            pdn.bearers[at].ebi = ebi;
            pdn.bearers[at].enb = enb;
            let to = |enb| Downlink::To { enb, end_marker: false };
            let change = rules::change_downlink([(slot, enb.map_or(Downlink::Buffered, to))]);
            modify(gateway, pdn, change).await.map(|_| ebi).map_err(|error| cause_of(error).into())
        }
        Err(cause) => Err(cause),
    };
    if result.is_err() {
        take_away(gateway, pdn, at).await;
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
    for pdn in &mut state.pdns {
        let dedicated = pdn.bearers.iter().position(|bearer| bearer.ebi == ebi);
        if let Some(at) = dedicated.filter(|at| *at > 0) {
            take_away(gateway, pdn, at).await;
            return true;
        }
    }
    false
}

/// Ends a dedicated bearer, or with the default one its PDN connection (TS 23.401 §5.4.4.1). The bearer ends whatever the MME says.
///
/// # Errors
/// There is no such bearer.
pub(crate) async fn delete(
    gateway: &Gateway,
    ue: &Ue,
    ebi: Ebi,
    command: Option<RequestId>,
    why: Option<CauseValue>,
) -> Result<(), Cause> {
    let (mme, is_default) = {
        let mut state = ue.state.lock().await;
        let mme = state.mme;
        let (at, _) = state.bearer(ebi).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        (mme, state.pdns[at].default_bearer().is_some_and(|bearer| bearer.ebi == ebi))
    };
    let (linked_ebi, ebis) = if is_default { (Some(ebi), Vec::new()) } else { (None, vec![ebi]) };
    let cause = why.map(Cause::from);
    let request = DeleteBearerRequest { linked_ebi, ebis, cause, ..Default::default() };
    let answer = match command {
        Some(command) => gateway.gtpc.request_triggered(command, mme, request).await,
        None => gateway.gtpc.request(mme, request).await,
    };
    if let Err(error) = answer {
        tracing::debug!(imsi = %ue.imsi, %error, "the MME has not confirmed the end of a bearer");
    }
    let mut state = ue.state.lock().await;
    if is_default {
        let is_it = |pdn: &Pdn| pdn.default_bearer().is_some_and(|bearer| bearer.ebi == ebi);
        if let Some(at) = state.pdns.iter().position(is_it) {
            let pdn = state.pdns.remove(at);
            delete_session::end(gateway, pdn).await;
            delete_session::forget_if_empty(gateway, ue, &mut state);
        }
    } else {
        remove(gateway, &mut state, ebi).await;
    }
    Ok(())
}

/// Delete Bearer Command: the radio network has given bearers up (TS 23.401 §5.4.4.2).
pub(crate) async fn delete_command(
    gateway: Arc<Gateway>,
    id: RequestId,
    teid: u32,
    command: DeleteBearerCommand,
) {
    let ue = gateway.ues.by_teid(teid);
    let mme = match find(ue.as_ref(), id.peer.ip()).await {
        Ok(state) => state.mme,
        Err((teid, cause)) => return gateway.gtpc.reject(id, teid, cause),
    };
    let Some(ue) = ue else { return };
    // The bearers of one command go by one request.
    let ebis: Vec<Ebi> = command.bearers.iter().map(|context| context.ebi).collect();
    let known: Vec<Ebi> = {
        let mut state = ue.state.lock().await;
        ebis.into_iter().filter(|ebi| state.bearer(*ebi).is_some()).collect()
    };
    let Some((first, others)) = known.split_first() else {
        return gateway.gtpc.reject(id, mme.teid, CauseValue::CONTEXT_NOT_FOUND);
    };
    let _ = delete(&gateway, &ue, *first, Some(id), None).await;
    for ebi in others {
        let _ = delete(&gateway, &ue, *ebi, None, None).await;
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
        (Ok(Operation::DeleteFilters(_) | Operation::Delete), _, Some(ebi)) => {
            if let Err(cause) = delete(&gateway, &ue, ebi, Some(id), None).await {
                refuse(cause);
            }
        }
        (Ok(_), ..) => refuse(CauseValue::SERVICE_NOT_SUPPORTED.into()),
        (Err(_), ..) => refuse(CauseValue::TAD_SYNTACTIC_ERROR.into()),
    }
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
