//! Dedicated bearers: set up and ended by the P-GW (TS 23.401 §5.4.1, §5.4.4.1, TS 29.274 §7.2.3, §7.2.4, §7.2.9.2, §7.2.10.2).
//!
//! A new bearer is on the UPF before the MME hears of it, as the MME needs the UPF's tunnel. It buffers until the MME has named the
//! eNB's, and is taken back if the MME refuses it. A P-GW alone asks the S-GW instead of the MME. An S-GW alone passes on what either
//! side asks for ([`super::serving`]).

use gtpc::GtpcError;
use gtpv2c::BearerInCreateRequest;
use gtpv2c::endpoint::RequestId;
use gtpv2c::message::*;
use gtpv2c::value::*;
use telemetry::counters::{Counter, Family};

use super::create_session::filters;
use super::{cause_of, delete_session, modify, restoration};
use crate::bearer::{Bearer, S5Tunnel, Slot, Tunnel};
use crate::context::{Gateway, Pdn, Ue};
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
        let peer =
            pdn.towards_ue(mme).filter(|_| pdn.role.is_pgw()).ok_or(CauseValue::SERVICE_NOT_SUPPORTED)?;
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
    let mme = state.mme;
    // The UE may have attached again meanwhile.
    let pdn = state.numbered(number).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let at = pdn.bearers.iter().position(|bearer| bearer.charging_id == charging_id);
    let at = at.ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let result = match accepted {
        // The UE has moved to another S-GW or MME, which does not know of the bearer.
        Ok(_) if pdn.towards_ue(mme) != Some(peer) => Err(CauseValue::TEMPORARILY_REJECTED.into()),
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
            delete_at(gateway, peer, ebi);
        }
    }
    result
}

/// Has a neighbour delete a bearer that is no more here, on a task of its own.
pub(super) fn delete_at(gateway: &Gateway, peer: FTeid, ebi: Ebi) {
    let request = DeleteBearerRequest { ebis: vec![ebi], ..Default::default() };
    let gtpc = gateway.gtpc.clone();
    tokio::spawn(async move {
        if let Err(error) = gtpc.request(peer, request).await {
            tracing::debug!(%error, "the neighbour does not hear of the end of a bearer");
        }
    });
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
    // After a restart of the UPF its SEID may be that of another session.
    if pdn.upf.epoch != gateway.n4.epoch(pdn.upf.address) {
        restoration::set_up_again(gateway, pdn).await?;
    }
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
            if let n4::N4Error::Failed(_) = error {
                // The UPF may have added it.
                pdn.unconfirmed.push(slot);
            }
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
        pdn.unconfirmed.push(bearer.slot);
    }
}

/// Takes the dedicated bearer with this identity away, without the neighbours. Returns whether there was one.
pub(super) async fn remove(gateway: &Gateway, pdn: &mut Pdn, ebi: Ebi) -> bool {
    let mut bearers = pdn.bearers.iter();
    let dedicated = bearers.position(|bearer| bearer.ebi == ebi && bearer.slot != Slot::DEFAULT);
    let Some(at) = dedicated.filter(|_| ebi != Ebi(0)) else { return false };
    take_away(gateway, pdn, at).await;
    true
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
            peer = state.pdns[at].towards_ue(mme).filter(|_| state.pdns[at].role.is_pgw());
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
        // An S-GW's bearers have the charging IDs of their P-GWs.
        let is_own = pdn.role.is_pgw();
        let is_gone = |bearer: &Bearer| is_own && charging_ids.contains(&bearer.charging_id);
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
