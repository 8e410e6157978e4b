//! Create Session (TS 29.274 §7.2.1, TS 23.401 §5.3.2.1 steps 12 to 16): attach, a further PDN connection, or the move of a UE from
//! another S-GW, with the bearers it has.
//!
//! An MME sends it for a P-GW that it names: this gateway, or another one, of which this is then the S-GW ([`serving`]). An S-GW sends it
//! to this P-GW.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::{CreateSessionRequest, CreateSessionResponse};
use gtpv2c::value::tft::{Operation, Tft};
use gtpv2c::value::*;
use gtpv2c::{BearerCreated, BearerToBeCreated, ie};
use ipam::{Addresses, PoolError};
use net::time;
use pfcp::Message;
use telemetry::counters::{Counter, Family};
use types::{BitRate, Dnn, PduSessionType};

use super::{cause_of, delete_session, missing, serving, sgw_change};
use crate::bearer::{Bearer, S5Tunnel, Slot, Tunnel};
use crate::config::ApnConfig;
use crate::context::{
    Gateway, Network, Paging, Pdn, Peer, Role, Ue, UeState, UpfSession, has_address, is_same,
};
use crate::contexts;
use crate::filters::Filter;
use crate::options;
use crate::rules;

static REQUESTED: Counter = Counter::new("epc_session_requested");
static CREATED: Counter = Counter::new("epc_session_created");
static REFUSED: Family = Family::new("epc_session_refused", "cause");

/// Rates of an APN for which the MME names none.
pub(super) const DEFAULT_AMBR: types::Ambr =
    types::Ambr { uplink: BitRate::from_kbps(1_000_000), downlink: BitRate::from_kbps(1_000_000) };

/// Answers a request.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32, request: CreateSessionRequest) {
    REQUESTED.inc();
    let sender = request.sender_f_teid;
    let result = create(&gateway, id.peer.ip(), teid, &request).await;
    let response = result.unwrap_or_else(|cause| {
        REFUSED.inc(&cause.value.0.to_string());
        tracing::info!(imsi = ?request.imsi, apn = request.apn.0, cause = cause.value.0, "PDN connection refused");
        CreateSessionResponse { cause, ..Default::default() }
    });
    if response.cause.is_accepted() {
        CREATED.inc();
        gateway.gtpc.watch(sender.address().unwrap_or(id.peer.ip()));
    }
    let response = CreateSessionResponse { recovery: Some(gateway.gtpc.restart_counter()), ..response };
    // Only an MME gets the UE's.
    contexts::save(&gateway, response.sender_f_teid.map_or(0, |own| own.teid)).await;
    gateway.gtpc.respond(id, sender.teid, response);
}

async fn create(
    gateway: &Arc<Gateway>,
    source: IpAddr,
    teid: u32,
    request: &CreateSessionRequest,
) -> Result<CreateSessionResponse, Cause> {
    let imsi = request.imsi.ok_or_else(|| missing(ie::IMSI))?;
    let sender = Peer::now(request.sender_f_teid, source);
    if sender.f_teid.address().is_none() || sender.f_teid.teid == 0 {
        let offending_ie = Some(gtpv2c::OffendingIe::new(ie::F_TEID, 0));
        return Err(Cause { offending_ie, ..CauseValue::MANDATORY_IE_INCORRECT.into() });
    }
    let is_s5 = sender.f_teid.interface == InterfaceType::S5S8_SGW_GTPC;
    let role = role(gateway, request, sender, is_s5)?;
    // The P-GW knows the UE already, which has moved here from another S-GW.
    let moved = request.pgw_f_teid.filter(|pgw| !is_s5 && pgw.teid != 0);
    let default = default_bearer(request)?;
    let plan = match moved {
        Some(pgw) if role == Role::Both => Plan::OwnPdn(pgw.teid),
        _ => plan(gateway, request, default, role)?,
    };
    loop {
        let ue = gateway.ues.of_imsi(imsi);
        let mut state = ue.state.lock().await;
        // It has just ended its last PDN connection.
        if state.gone {
            continue;
        }
        // The MME believes that the UE has PDN connections here, perhaps of before a restart.
        if !is_s5 && teid != 0 && teid != ue.teid {
            delete_session::forget_if_empty(gateway, &ue, &mut state);
            return Err(CauseValue::CONTEXT_NOT_FOUND.into());
        }
        if let Plan::OwnPdn(teid) = plan
            && !state.pdns.iter().any(|pdn| pdn.role.is_pgw() && pdn.number as u32 == teid)
        {
            delete_session::forget_if_empty(gateway, &ue, &mut state);
            return Err(CauseValue::CONTEXT_NOT_FOUND.into());
        }
        let is_attach = !is_s5 && teid != ue.teid && moved.is_none();
        replace_former(gateway, &mut state, is_attach, moved, request, default).await;
        if moved.is_some() && teid == 0 && state.mme.is_some() && state.pdns.is_empty() {
            // The UE was here before. What the MME still sends about that has a TEID that nobody has any more.
            delete_session::forget_if_empty(gateway, &ue, &mut state);
            continue;
        }
        if !is_s5 {
            if state.mme.is_none_or(|mme| mme.f_teid != sender.f_teid) || is_attach {
                state.mme = Some(sender);
            }
            if is_attach {
                state.set_paging(Paging::No);
            }
        }
        let result = match plan {
            // Rarer ways are boxed, so that the tasks of common requests are small.
            Plan::New(new) => return Box::pin(serving::add(gateway, &ue, state, new, request)).await,
            Plan::NewHere(new, network, type_cause) => {
                let result = add(gateway, &ue, &mut state, network, new, request).await;
                result.map(|response| CreateSessionResponse { cause: type_cause.into(), ..response })
            }
            Plan::OwnPdn(teid) => {
                Box::pin(sgw_change::move_here(gateway, &ue, &mut state, teid, request)).await
            }
        };
        delete_session::forget_if_empty(gateway, &ue, &mut state);
        return result;
    }
}

/// What this gateway is for the new PDN connection.
fn role(gateway: &Gateway, request: &CreateSessionRequest, sender: Peer, is_s5: bool) -> Result<Role, Cause> {
    let own = gateway.gtpc.local().ip();
    // An MME may leave out whom it means if there is one only.
    let remote = request.pgw_f_teid.filter(|pgw| !has_address(*pgw, own));
    let remote = remote.and_then(|pgw| Some((pgw, pgw.address()?)));
    let role = match (is_s5, remote) {
        (true, _) => Role::Pgw { sgw: sender, awaits_ue: false },
        (false, Some((pgw, address))) => Role::Sgw { pgw: Peer::now(pgw, address), is_known: false },
        (false, None) => Role::Both,
    };
    let node = gateway.node;
    match role.is_sgw() && !node.is_sgw() || role.is_pgw() && !node.is_pgw() {
        true => Err(CauseValue::SERVICE_NOT_SUPPORTED.into()),
        false => Ok(role),
    }
}

/// What was found out about a PDN connection before it is set up.
pub(super) struct NewPdn {
    pub apn: Dnn,
    pub role: Role,
    pub pdn_type: PduSessionType,
    pub bearers: Vec<Bearer>,
}

/// How a request is fulfilled.
enum Plan<'g> {
    /// A PDN connection whose P-GW is another gateway.
    New(NewPdn),
    /// One whose P-GW this is to be, at this access point. The cause tells the type.
    NewHere(NewPdn, &'g Network, CauseValue),
    /// One whose P-GW this is already, with this TEID: the UE moves to the S-GW in this gateway.
    OwnPdn(u32),
}

fn plan<'g>(
    gateway: &'g Gateway,
    request: &CreateSessionRequest,
    default: Ebi,
    role: Role,
) -> Result<Plan<'g>, Cause> {
    if !role.is_pgw() {
        let apn = request.apn.0.parse().map_err(|_| CauseValue::UNKNOWN_APN)?;
        let pdn_type = match asked_type(request) {
            PdnType::Ipv4 => PduSessionType::Ipv4,
            PdnType::Ipv6 => PduSessionType::Ipv6,
            PdnType::Ipv4v6 => PduSessionType::Ipv4v6,
            PdnType::NonIp => PduSessionType::Unstructured,
            PdnType::Ethernet => PduSessionType::Ethernet,
        };
        let bearers = bearers(gateway, request, default, role)?;
        return Ok(Plan::New(NewPdn { apn, role, pdn_type, bearers }));
    }
    let (apn, network) = network(gateway, &request.apn).ok_or(CauseValue::UNKNOWN_APN)?;
    let (pdn_type, cause) = select_type(network, request)?;
    let bearers = bearers(gateway, request, default, role)?;
    Ok(Plan::NewHere(NewPdn { apn, role, pdn_type, bearers }, network, cause))
}

/// The type that a UE asks for; in a move the address tells it.
fn asked_type(request: &CreateSessionRequest) -> PdnType {
    request.pdn_type.unwrap_or(match request.paa {
        Some(Paa::Ipv6(_)) => PdnType::Ipv6,
        Some(Paa::Ipv4v6(..)) => PdnType::Ipv4v6,
        _ => PdnType::Ipv4,
    })
}

/// The access point of a name, whose operator identifier does not count (TS 23.003 §9.1.2).
fn network<'g>(gateway: &'g Gateway, apn: &Apn) -> Option<(Dnn, &'g Network)> {
    let name = apn.0.to_ascii_lowercase();
    let network = name.split_once(".mnc").filter(|(_, rest)| rest.ends_with(".gprs"));
    let name = Dnn::new(network.map_or(name.as_str(), |(network, _)| network)).ok()?;
    let network = gateway.networks.get(&name)?;
    Some((name, network))
}

/// The identity of the default bearer: named in a move, otherwise that of the only bearer.
fn default_bearer(request: &CreateSessionRequest) -> Result<Ebi, Cause> {
    let contexts = &request.bearers_to_be_created;
    let ebi = match (request.linked_ebi, &contexts[..]) {
        (Some(ebi), _) => ebi,
        (None, [only]) => only.ebi,
        (None, _) => return Err(missing(ie::EBI)),
    };
    let is_valid = |ebi: Ebi| (5..=15).contains(&ebi.0);
    let identities: BTreeSet<Ebi> = contexts.iter().map(|context| context.ebi).collect();
    if !identities.iter().all(|ebi| is_valid(*ebi))
        || identities.len() < contexts.len()
        || !identities.contains(&ebi)
    {
        let offending_ie = Some(gtpv2c::OffendingIe::new(ie::BEARER_CONTEXT, 0));
        return Err(Cause { offending_ie, ..CauseValue::MANDATORY_IE_INCORRECT.into() });
    }
    Ok(ebi)
}

/// The type that the UE gets of what it asks for and what there is, with the cause that tells it (TS 23.401 §5.3.1.1).
fn select_type(
    network: &Network,
    request: &CreateSessionRequest,
) -> Result<(PduSessionType, CauseValue), Cause> {
    let (has_v4, has_v6) = {
        let pool = network.pool();
        (pool.has_ipv4(), pool.has_ipv6())
    };
    let unsupported = || Cause::from(CauseValue::PREFERRED_PDN_TYPE_NOT_SUPPORTED);
    match asked_type(request) {
        PdnType::Ipv4 if has_v4 => Ok((PduSessionType::Ipv4, CauseValue::ACCEPTED)),
        PdnType::Ipv6 if has_v6 => Ok((PduSessionType::Ipv6, CauseValue::ACCEPTED)),
        PdnType::Ipv4v6 if has_v4 && has_v6 => {
            // Dual address bearer flag: whether MME and eNB can have both on one bearer.
            let dual = request.indication.is_some_and(|indication| indication.contains(Indication::DAF));
            match dual {
                true => Ok((PduSessionType::Ipv4v6, CauseValue::ACCEPTED)),
                false => Ok((PduSessionType::Ipv4, CauseValue::NEW_PDN_TYPE_SINGLE_ADDRESS)),
            }
        }
        PdnType::Ipv4v6 if has_v4 => Ok((PduSessionType::Ipv4, CauseValue::NEW_PDN_TYPE_NETWORK_PREFERENCE)),
        PdnType::Ipv4v6 if has_v6 => Ok((PduSessionType::Ipv6, CauseValue::NEW_PDN_TYPE_NETWORK_PREFERENCE)),
        _ => Err(unsupported()),
    }
}

/// The bearers of the request, the default one first.
fn bearers(
    gateway: &Gateway,
    request: &CreateSessionRequest,
    default: Ebi,
    role: Role,
) -> Result<Vec<Bearer>, Cause> {
    let (first, others): (Vec<_>, Vec<_>) =
        request.bearers_to_be_created.iter().partition(|context| context.ebi == default);
    let slots = (0..Slot::COUNT).map(Slot);
    slots
        .zip(first.into_iter().chain(others))
        .map(|(slot, context)| bearer(gateway, slot, context, role))
        .collect()
}

fn bearer(gateway: &Gateway, slot: Slot, context: &BearerToBeCreated, role: Role) -> Result<Bearer, Cause> {
    let filters = match &context.tft {
        // Only a P-GW looks into packets.
        _ if !role.is_pgw() => Vec::new(),
        Some(tft) if slot != Slot::DEFAULT => filters(tft)?,
        _ if slot != Slot::DEFAULT => return Err(missing(ie::BEARER_TFT)),
        _ => Vec::new(),
    };
    let access = match role {
        Role::Pgw { .. } => Some(context.s5s8u_sgw_f_teid.ok_or_else(|| missing(ie::F_TEID))?),
        _ => context.s1u_enb_f_teid,
    };
    Ok(Bearer {
        slot,
        ebi: context.ebi,
        qos: context.qos,
        filters,
        charging_id: gateway.ues.charging_id(),
        own: None,
        access: access.and_then(Tunnel::of),
        s5: S5Tunnel { own: None, pgw: context.s5s8u_pgw_f_teid.and_then(Tunnel::of) },
    })
}

/// The filters of a new template.
pub(super) fn filters(tft: &Octets) -> Result<Vec<Filter>, Cause> {
    let tft = Tft::decode(&tft.0).map_err(|error| Cause::from(error.cause()))?;
    let Operation::Create(filters) = tft.operation else { return Err(CauseValue::TFT_SEMANTIC_ERROR.into()) };
    let filters: Result<_, _> = filters.iter().map(Filter::new).collect();
    filters.map_err(|_| CauseValue::FILTER_SEMANTIC_ERRORS.into())
}

/// An attach ends what the UE had. Otherwise a request for a default bearer that there is replaces its PDN connection (§7.2.1). The
/// MME is told of neither. One that has `moved` is still its P-GW's, with this F-TEID: if this gateway is that P-GW, nothing ends.
async fn replace_former(
    gateway: &Arc<Gateway>,
    state: &mut UeState,
    is_attach: bool,
    moved: Option<FTeid>,
    request: &CreateSessionRequest,
    default: Ebi,
) {
    let ebis: Vec<Ebi> = request.bearers_to_be_created.iter().map(|context| context.ebi).collect();
    let mut at = 0;
    while let Some(pdn) = state.pdns.get(at) {
        let is_replaced = is_attach
            || pdn.default_bearer().is_some_and(|bearer| bearer.ebi == default)
            || pdn.bearers.iter().any(|bearer| ebis.contains(&bearer.ebi));
        let is_moved_pdn = pdn.role.is_pgw() && moved.is_some_and(|pgw| pgw.teid == pdn.number as u32);
        if !is_replaced || is_moved_pdn {
            at += 1;
            continue;
        }
        let pdn = state.pdns.remove(at);
        match moved.zip(pdn.remote_pgw()).is_some_and(|(moved, pgw)| is_same(moved, pgw)) {
            // The MME repeats the move, or the UE is here again: the P-GW keeps the PDN connection.
            true => delete_session::end_here(gateway, pdn).await,
            false => delete_session::end(gateway, pdn).await,
        }
    }
}

/// Allocates addresses, sets up the user plane, and notes the PDN connection, of which this is the P-GW.
async fn add(
    gateway: &Gateway,
    ue: &Ue,
    state: &mut UeState,
    network: &Network,
    new: NewPdn,
    request: &CreateSessionRequest,
) -> Result<CreateSessionResponse, Cause> {
    let NewPdn { apn, role, pdn_type, bearers } = new;
    let number = gateway.ues.add_pdn(ue, gateway.config.limits.sessions).ok_or(CauseValue::NO_RESOURCES)?;
    let wanted = addresses(request.paa);
    let allocated =
        network.pool().allocate(time::now().into_std(), pdn_type.has_ipv4(), pdn_type.has_ipv6(), wanted);
    let addresses = allocated.map_err(|error| {
        gateway.ues.remove_pdn(number);
        match error {
            PoolError::Exhausted | PoolError::InUse => CauseValue::ADDRESSES_OCCUPIED,
            PoolError::Foreign => CauseValue::REJECTED,
        }
    })?;
    let ambr = request.apn_ambr.map_or(DEFAULT_AMBR, rates);
    let upf = match gateway.n4.select_upf() {
        Ok(address) => UpfSession { address, seid: 0, epoch: 0, n4u: None },
        Err(error) => {
            gateway.ues.remove_pdn(number);
            network.pool().release(time::now().into_std(), addresses);
            return Err(cause_of(error).into());
        }
    };
    let unclaimed = unclaimed(role, &bearers);
    let mut pdn = Pdn {
        number,
        role,
        apn,
        pdn_type,
        addresses,
        ambr,
        bearers,
        unconfirmed: Vec::new(),
        upf,
        unclaimed,
        arrived: None,
        solicited: None,
    };
    if let Err(error) = establish(gateway, &mut pdn).await {
        tracing::warn!(imsi = %ue.imsi, %error, "PDN connection not established on a UPF");
        // A session that we cannot use does not stay on the UPF.
        delete_session::end_here(gateway, pdn).await;
        return Err(cause_of(error).into());
    }
    let response = accept(gateway, ue, &pdn, &network.config, request);
    state.add(pdn);
    Ok(response)
}

/// Since when an MME is waited for that is to name an eNB.
pub(super) fn unclaimed(role: Role, bearers: &[Bearer]) -> Option<Instant> {
    let is_waited_for = role.is_sgw() && bearers.iter().all(|bearer| bearer.access.is_none());
    is_waited_for.then(|| time::now().into_std())
}

/// Rates as the UPF gets them.
pub(super) fn rates(ambr: Ambr) -> types::Ambr {
    let rate = |kbps: u32| BitRate::from_kbps(kbps.into());
    types::Ambr { uplink: rate(ambr.uplink_kbps), downlink: rate(ambr.downlink_kbps) }
}

/// Addresses of a PAA (TS 29.274 §8.14); zeros are none.
pub(super) fn addresses(paa: Option<Paa>) -> Addresses {
    let ipv4 = paa.and_then(Paa::ipv4).filter(|address| !address.is_unspecified());
    let ipv6 = paa.and_then(Paa::ipv6).map(|prefix| prefix.address);
    let prefix = ipv6.map(|address| std::net::Ipv6Addr::from_bits(address.to_bits() >> 64 << 64));
    Addresses { ipv4, ipv6: prefix.filter(|prefix| !prefix.is_unspecified()) }
}

/// Session establishment on the UPF, which chooses the tunnels.
pub(super) async fn establish(gateway: &Gateway, pdn: &mut Pdn) -> Result<(), n4::N4Error> {
    let request = pdn.rules(gateway).establishment(None);
    let answer = gateway.n4.request(pdn.upf.address, pdn.seids(), request).await?;
    let Message::SessionEstablishmentResponse(response) = answer else { return Err(n4::N4Error::Unusable) };
    pdn.upf.seid = response.up_f_seid.ok_or(n4::N4Error::Unusable)?.seid;
    pdn.upf.epoch = gateway.n4.epoch(pdn.upf.address);
    pdn.upf.n4u = rules::chosen_n4u(&response.created_pdrs);
    for bearer in &mut pdn.bearers {
        bearer.own = Some(rules::chosen(&response.created_pdrs, bearer.slot).ok_or(n4::N4Error::Unusable)?);
        if !pdn.role.is_pgw() {
            let own = rules::chosen_s5(&response.created_pdrs, bearer.slot).ok_or(n4::N4Error::Unusable)?;
            bearer.s5.own = Some(own);
        }
    }
    if pdn.role.is_pgw() && pdn.pdn_type.has_ipv6() && pdn.upf.n4u.is_none() {
        return Err(n4::N4Error::Unusable);
    }
    Ok(())
}

/// The answer about a new PDN connection of which this is the P-GW.
fn accept(
    gateway: &Gateway,
    ue: &Ue,
    pdn: &Pdn,
    network: &ApnConfig,
    request: &CreateSessionRequest,
) -> CreateSessionResponse {
    CreateSessionResponse {
        paa: Some(paa(pdn)),
        apn_restriction: Some(ApnRestriction(0)),
        apn_ambr: request.apn_ambr,
        linked_ebi: request.linked_ebi,
        pco: request.pco.as_ref().and_then(|asked| options::answer(asked, network)),
        epco: request.epco.as_ref().and_then(|asked| options::answer(asked, network)),
        private_extensions: extensions(pdn, request),
        ..tunnels(gateway, Some(ue).filter(|_| pdn.role.is_sgw()), pdn)
    }
}

/// Whether packets go to the eNB already, if that was asked.
fn extensions(pdn: &Pdn, request: &CreateSessionRequest) -> Vec<PrivateExtension> {
    let is_asked = request.private_extensions.contains(&PrivateExtension::asks_for_enb_tunnels());
    let is_so = pdn.role == Role::Both && pdn.bearers.iter().all(|bearer| bearer.access.is_some());
    Vec::from_iter((is_asked && is_so).then(PrivateExtension::has_enb_tunnels))
}

/// The answer's tunnels, for control and of the bearers; `ue` if it goes to the MME. An MME gives those of the P-GW to an S-GW to which
/// the UE moves.
pub(super) fn tunnels(gateway: &Gateway, ue: Option<&Ue>, pdn: &Pdn) -> CreateSessionResponse {
    let named = pdn.bearers.iter().filter(|bearer| bearer.ebi != Ebi(0));
    let bearers_created = named.map(|bearer| {
        let pgw = if pdn.role.is_pgw() { bearer.own } else { bearer.s5.pgw };
        BearerCreated {
            ebi: bearer.ebi,
            cause: CauseValue::ACCEPTED.into(),
            s1u_sgw_f_teid: bearer.own.filter(|_| ue.is_some()).map(|own| own.f_teid(InterfaceType::S1U_SGW)),
            s5s8u_pgw_f_teid: pgw.map(|pgw| pgw.f_teid(InterfaceType::S5S8_PGW_GTPU)),
            qos: Some(bearer.qos),
            charging_id: Some(ChargingId(bearer.charging_id)),
            ..Default::default()
        }
    });
    CreateSessionResponse {
        cause: CauseValue::ACCEPTED.into(),
        sender_f_teid: ue.map(|ue| ue.f_teid(gateway)),
        pgw_f_teid: Some(match pdn.role {
            Role::Sgw { pgw, .. } => pgw.f_teid,
            _ => pdn.s5_f_teid(gateway, InterfaceType::S5S8_PGW_GTPC),
        }),
        bearers_created: bearers_created.collect(),
        ..Default::default()
    }
}

/// The UE's addresses. It makes its own of the prefix and the interface identifier (TS 23.401 §5.3.1.2.2).
pub(super) fn paa(pdn: &Pdn) -> Paa {
    let prefix = pdn.addresses.ipv6.map(|prefix| {
        let interface_id = u128::from(u64::from_be_bytes(pdn.interface_id()));
        Ipv6Prefix { address: (prefix.to_bits() | interface_id).into(), length: 64 }
    });
    match (pdn.addresses.ipv4, prefix) {
        (Some(ipv4), Some(prefix)) => Paa::Ipv4v6(ipv4, prefix),
        (Some(ipv4), None) => Paa::Ipv4(ipv4),
        (None, Some(prefix)) => Paa::Ipv6(prefix),
        (None, None) => Paa::NonIp,
    }
}
