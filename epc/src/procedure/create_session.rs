//! Create Session (TS 29.274 §7.2.1, TS 23.401 §5.3.2.1 steps 12 to 16): attach, a further PDN connection, or the move of a UE from
//! another S-GW, with the bearers it has.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::{CreateSessionRequest, CreateSessionResponse};
use gtpv2c::value::tft::{Operation, Tft};
use gtpv2c::value::*;
use gtpv2c::{BearerCreated, BearerToBeCreated, ie};
use ipam::{Addresses, PoolError};
use nas::{Pco, PcoItem};
use net::time;
use pfcp::Message;
use telemetry::counters::{Counter, Family};
use types::{BitRate, Dnn, PduSessionType};

use super::{cause_of, delete_session, missing};
use crate::bearer::{Bearer, Slot, Tunnel};
use crate::config::ApnConfig;
use crate::context::{Gateway, Network, Paging, Pdn, Ue, UeState, UpfSession};
use crate::filters::Filter;
use crate::rules;

static REQUESTED: Counter = Counter::new("epc_session_requested");
static CREATED: Counter = Counter::new("epc_session_created");
static REFUSED: Family = Family::new("epc_session_refused", "cause");

/// Rates of an APN for which the MME names none.
const DEFAULT_AMBR: types::Ambr =
    types::Ambr { uplink: BitRate::from_kbps(1_000_000), downlink: BitRate::from_kbps(1_000_000) };

/// Answers a request.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32, request: CreateSessionRequest) {
    REQUESTED.inc();
    let mme = request.sender_f_teid;
    let result = create(&gateway, teid, &request).await;
    let response = result.unwrap_or_else(|cause| {
        REFUSED.inc(&cause.value.0.to_string());
        tracing::info!(imsi = ?request.imsi, apn = request.apn.0, cause = cause.value.0, "PDN connection refused");
        CreateSessionResponse { cause, ..Default::default() }
    });
    if response.cause.is_accepted() {
        CREATED.inc();
        gateway.gtpc.watch(id.peer.ip());
    }
    let response = CreateSessionResponse { recovery: Some(gateway.gtpc.restart_counter()), ..response };
    gateway.gtpc.respond(id, mme.teid, response);
}

async fn create(
    gateway: &Gateway,
    teid: u32,
    request: &CreateSessionRequest,
) -> Result<CreateSessionResponse, Cause> {
    let imsi = request.imsi.ok_or_else(|| missing(ie::IMSI))?;
    if request.sender_f_teid.address().is_none() || request.sender_f_teid.teid == 0 {
        let offending_ie = Some(gtpv2c::OffendingIe::new(ie::F_TEID, 0));
        return Err(Cause { offending_ie, ..CauseValue::MANDATORY_IE_INCORRECT.into() });
    }
    // A UE that moves here keeps its P-GW, which this gateway cannot be for it.
    if request.pgw_f_teid.is_some_and(|pgw| pgw.teid != 0 && pgw.address() != Some(gateway.gtpc.local().ip()))
    {
        return Err(CauseValue::RELOCATION_FAILURE.into());
    }
    let (apn, network) = network(gateway, &request.apn).ok_or(CauseValue::UNKNOWN_APN)?;
    let default = default_bearer(request)?;
    let (pdn_type, type_cause) = select_type(network, request)?;
    let bearers = bearers(gateway, request, default)?;
    loop {
        let ue = gateway.ues.of_imsi(imsi, request.sender_f_teid);
        let mut state = ue.state.lock().await;
        // It has just ended its last PDN connection.
        if state.gone {
            continue;
        }
        // The MME believes that the UE has PDN connections here, perhaps of before a restart.
        if teid != 0 && teid != ue.teid {
            delete_session::forget_if_empty(gateway, &ue, &mut state);
            return Err(CauseValue::CONTEXT_NOT_FOUND.into());
        }
        replace_former(gateway, teid, &ue, &mut state, request, default).await;
        let result = add(gateway, &ue, &mut state, &apn, network, pdn_type, bearers, request).await;
        if result.is_err() {
            delete_session::forget_if_empty(gateway, &ue, &mut state);
        }
        return result.map(|response| CreateSessionResponse { cause: type_cause.into(), ..response });
    }
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
    let of_address = || match request.paa {
        Some(Paa::Ipv6(_)) => PdnType::Ipv6,
        Some(Paa::Ipv4v6(..)) => PdnType::Ipv4v6,
        _ => PdnType::Ipv4,
    };
    let unsupported = || Cause::from(CauseValue::PREFERRED_PDN_TYPE_NOT_SUPPORTED);
    match request.pdn_type.unwrap_or_else(of_address) {
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
fn bearers(gateway: &Gateway, request: &CreateSessionRequest, default: Ebi) -> Result<Vec<Bearer>, Cause> {
    let (first, others): (Vec<_>, Vec<_>) =
        request.bearers_to_be_created.iter().partition(|context| context.ebi == default);
    let slots = (0..Slot::COUNT).map(Slot);
    slots.zip(first.into_iter().chain(others)).map(|(slot, context)| bearer(gateway, slot, context)).collect()
}

fn bearer(gateway: &Gateway, slot: Slot, context: &BearerToBeCreated) -> Result<Bearer, Cause> {
    let filters = match &context.tft {
        Some(tft) if slot != Slot::DEFAULT => filters(tft)?,
        _ if slot != Slot::DEFAULT => return Err(missing(ie::BEARER_TFT)),
        _ => Vec::new(),
    };
    Ok(Bearer {
        slot,
        ebi: context.ebi,
        qos: context.qos,
        filters,
        charging_id: gateway.ues.charging_id(),
        own: None,
        enb: context.s1u_enb_f_teid.and_then(Tunnel::of),
    })
}

/// The filters of a new template.
pub(super) fn filters(tft: &Octets) -> Result<Vec<Filter>, Cause> {
    let tft = Tft::decode(&tft.0).map_err(|error| Cause::from(error.cause()))?;
    let Operation::Create(filters) = tft.operation else { return Err(CauseValue::TFT_SEMANTIC_ERROR.into()) };
    let filters: Result<_, _> = filters.iter().map(Filter::new).collect();
    filters.map_err(|_| CauseValue::FILTER_SEMANTIC_ERRORS.into())
}

/// A request without our TEID is an attach: what the UE had is over. One for a default bearer that there is replaces its PDN
/// connection (§7.2.1). Neither is told to the MME.
async fn replace_former(
    gateway: &Gateway,
    teid: u32,
    ue: &Ue,
    state: &mut UeState,
    request: &CreateSessionRequest,
    default: Ebi,
) {
    let is_attach = teid != ue.teid;
    let mut at = 0;
    while let Some(pdn) = state.pdns.get(at) {
        let ebis = || request.bearers_to_be_created.iter().map(|context| context.ebi);
        let is_replaced = is_attach
            || pdn.default_bearer().is_some_and(|bearer| bearer.ebi == default)
            || pdn.bearers.iter().any(|bearer| ebis().any(|ebi| ebi == bearer.ebi));
        if is_replaced {
            let pdn = state.pdns.remove(at);
            delete_session::end(gateway, pdn).await;
        } else {
            at += 1;
        }
    }
    if state.mme != request.sender_f_teid || is_attach {
        state.mme = request.sender_f_teid;
        state.mme_since = time::now().into_std();
    }
    if is_attach {
        state.set_paging(Paging::No);
    }
}

/// Allocates addresses, sets up the user plane, and notes the PDN connection.
#[allow(clippy::too_many_arguments, reason = "what was found out about one request")]
async fn add(
    gateway: &Gateway,
    ue: &Ue,
    state: &mut UeState,
    apn: &Dnn,
    network: &Network,
    pdn_type: PduSessionType,
    bearers: Vec<Bearer>,
    request: &CreateSessionRequest,
) -> Result<CreateSessionResponse, Cause> {
    let number = gateway.ues.add_pdn(ue, gateway.config.limits.sessions).ok_or(CauseValue::NO_RESOURCES)?;
    let wanted = wanted_addresses(request);
    let allocated =
        network.pool().allocate(time::now().into_std(), pdn_type.has_ipv4(), pdn_type.has_ipv6(), wanted);
    let addresses = allocated.map_err(|error| {
        gateway.ues.remove_pdn(number);
        match error {
            PoolError::Exhausted | PoolError::InUse => CauseValue::ADDRESSES_OCCUPIED,
            PoolError::Foreign => CauseValue::REJECTED,
        }
    })?;
    let rate = |kbps: u32| BitRate::from_kbps(kbps.into());
    let ambr = request.apn_ambr.map_or(DEFAULT_AMBR, |ambr| types::Ambr {
        uplink: rate(ambr.uplink_kbps),
        downlink: rate(ambr.downlink_kbps),
    });
    let upf = match gateway.n4.select_upf() {
        Ok(address) => UpfSession { address, seid: 0, epoch: 0, n4u: None },
        Err(error) => {
            gateway.ues.remove_pdn(number);
            network.pool().release(time::now().into_std(), addresses);
            return Err(cause_of(error).into());
        }
    };
    let mut pdn = Pdn { number, apn: apn.clone(), pdn_type, addresses, ambr, bearers, upf, solicited: None };
    if let Err(error) = establish(gateway, &mut pdn).await {
        tracing::warn!(imsi = %ue.imsi, %error, "PDN connection not established on a UPF");
        // A session that we cannot use does not stay on the UPF.
        delete_session::end(gateway, pdn).await;
        return Err(cause_of(error).into());
    }
    let response = accept(gateway, ue, &pdn, &network.config, request);
    state.pdns.push(pdn);
    Ok(response)
}

/// A requested address (TS 29.274 §8.14); zeros ask for any.
fn wanted_addresses(request: &CreateSessionRequest) -> Addresses {
    let ipv4 = request.paa.and_then(Paa::ipv4).filter(|address| !address.is_unspecified());
    let ipv6 = request.paa.and_then(Paa::ipv6).map(|prefix| prefix.address);
    let prefix = ipv6.map(|address| std::net::Ipv6Addr::from_bits(address.to_bits() >> 64 << 64));
    Addresses { ipv4, ipv6: prefix.filter(|prefix| !prefix.is_unspecified()) }
}

/// Session establishment on the UPF, which chooses the tunnels.
async fn establish(gateway: &Gateway, pdn: &mut Pdn) -> Result<(), n4::N4Error> {
    let request = pdn.rules(gateway).establishment(None);
    let answer = gateway.n4.request(pdn.upf.address, pdn.seids(), request).await?;
    let Message::SessionEstablishmentResponse(response) = answer else { return Err(n4::N4Error::Unusable) };
    pdn.upf.seid = response.up_f_seid.ok_or(n4::N4Error::Unusable)?.seid;
    pdn.upf.epoch = gateway.n4.epoch(pdn.upf.address);
    pdn.upf.n4u = rules::chosen_n4u(&response.created_pdrs);
    for bearer in &mut pdn.bearers {
        bearer.own = Some(rules::chosen(&response.created_pdrs, bearer.slot).ok_or(n4::N4Error::Unusable)?);
    }
    if pdn.pdn_type.has_ipv6() && pdn.upf.n4u.is_none() {
        return Err(n4::N4Error::Unusable);
    }
    Ok(())
}

fn accept(
    gateway: &Gateway,
    ue: &Ue,
    pdn: &Pdn,
    network: &ApnConfig,
    request: &CreateSessionRequest,
) -> CreateSessionResponse {
    let pgw = |teid| FTeid::new(InterfaceType::S5S8_PGW_GTPC, teid, gateway.gtpc.local().ip());
    // In one gateway with the S-GW nobody sends to the P-GW's tunnel. The MME gives both to an S-GW to which the UE moves.
    let created = pdn.bearers.iter().map(|bearer| BearerCreated {
        ebi: bearer.ebi,
        cause: CauseValue::ACCEPTED.into(),
        s1u_sgw_f_teid: bearer.own.map(|own| own.f_teid(InterfaceType::S1U_SGW)),
        s5s8u_pgw_f_teid: bearer.own.map(|own| own.f_teid(InterfaceType::S5S8_PGW_GTPU)),
        qos: Some(bearer.qos),
        charging_id: Some(ChargingId(bearer.charging_id)),
        ..Default::default()
    });
    CreateSessionResponse {
        sender_f_teid: Some(ue.f_teid(gateway)),
        pgw_f_teid: Some(pgw(ue.teid)),
        paa: Some(paa(pdn)),
        apn_restriction: Some(ApnRestriction(0)),
        apn_ambr: request.apn_ambr,
        linked_ebi: request.linked_ebi,
        pco: request.pco.as_ref().and_then(|asked| answer_pco(asked, network)),
        bearers_created: created.collect(),
        ..Default::default()
    }
}

/// The UE's addresses. It makes its own of the prefix and the interface identifier (TS 23.401 §5.3.1.2.2).
fn paa(pdn: &Pdn) -> Paa {
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

/// What the UE asked for: DNS servers and MTU.
fn answer_pco(asked: &Octets, network: &ApnConfig) -> Option<Octets> {
    let asked = Pco::decode(&asked.0)?;
    let mut items = Vec::new();
    for address in &network.dns {
        match address {
            IpAddr::V4(v4) if asked.asks_for(&PcoItem::DnsIpv4Request) => items.push(PcoItem::DnsIpv4(*v4)),
            IpAddr::V6(v6) if asked.asks_for(&PcoItem::DnsIpv6Request) => items.push(PcoItem::DnsIpv6(*v6)),
            _ => {}
        }
    }
    if asked.asks_for(&PcoItem::Ipv4MtuRequest) {
        items.push(PcoItem::Ipv4Mtu(network.mtu));
    }
    (!items.is_empty()).then(|| Octets(Pco { items }.encode()))
}
