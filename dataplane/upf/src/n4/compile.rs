//! Compiles rules into the form that workers execute: [`Rules`] → [`Plan`].

use std::borrow::Cow;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use classifier::sdf::{Direction as SdfDirection, SdfFilter as SdfText};
use classifier::{EthernetFilter, Filter, FlowLabel, Masked, Prefix, Qfi, Rule, Side};
use foldhash::{HashMap, HashSet};
use packet::gtpu;
use pfcp::{
    ApplyAction, BitRates, Cause, DestinationInterface, EthernetPacketFilter, FailedRuleId, Gate,
    MacAddresses, OuterHeaderCreation, SdfFilter, ShortBytes, SourceInterface, TransportLevelMarking,
    VlanTag, ie,
};

use super::ineffective::{self, Ineffective};
use super::rules::{FarRule, PdrRule, QerRule, Redirect, Rejection, Rules, UrrRule, unknown_instance};
use crate::interface::Role;
use crate::interfaces::Interfaces;
use crate::plan::{
    Action, Arrival, Container, Destination, Direction, Enforcement, Forward, Kind, OuterHeader, Pdr, Place,
    Plan, Qer, UeAddresses, Urr,
};

/// Most filters of one session. Every combination of a PDR's ports, addresses and QFIs is a filter. Enough for
/// as many PDRs as there are identifiers, with both IP versions.
const MAX_FILTERS: usize = 262_144;
/// Most filters of one PDR.
const MAX_PDR_FILTERS: usize = 4096;

/// Compiles the rules of a session; also returns its PDRs without effect.
///
/// Source interface, TEID and network instance of a PDI need no filter. The packet's tunnel, or its lack of
/// one, selects the session's rule set in which it is looked up; a TEID belongs to one interface, and all packets
/// without tunnel come from one network instance.
pub fn compile(
    seid: u64,
    rules: &Rules,
    interfaces: &Interfaces,
) -> Result<(Plan, Vec<Ineffective>), Rejection> {
    let ue = ue_addresses(rules, rules.pdrs.values().map(|pdr| &**pdr));
    let home = Home { has_address: !ue.is_empty(), network: home_network(rules, interfaces)? };
    let untunnelled = rules.pdrs.values().filter(|pdr| rules.teid_of(pdr).is_none());
    let native = ue_addresses(rules, untunnelled.map(|pdr| &**pdr));
    let mut pdrs = Vec::with_capacity(rules.pdrs.len());
    let untunnelled = rules.pdrs.values().any(|pdr| rules.teid_of(pdr).is_none());
    let native_place = untunnelled.then_some(Place::Native);
    let places = native_place.into_iter().chain(rules.teids().into_iter().map(Place::Tunnel));
    let mut arrivals: Vec<Arrival> = places.map(|place| Arrival { place, rules: Vec::new() }).collect();
    let positions: HashMap<Place, usize> =
        arrivals.iter().enumerate().map(|(at, arrival)| (arrival.place, at)).collect();
    let mut next_rule = 0;
    let mut network = None;
    for (id, pdr) in rules.pdrs.iter() {
        let position = pdrs.len() as u32;
        check_fars(id, pdr, rules, home, interfaces, &mut network)?;
        pdrs.push(compile_pdr(id, pdr, rules, home, interfaces)?);
        let place = rules.teid_of(pdr).map_or(Place::Native, Place::Tunnel);
        let Some(arrival) = positions.get(&place).and_then(|at| arrivals.get_mut(*at)) else { continue };
        filters(id, pdr, rules, |filter| {
            if next_rule as usize >= MAX_FILTERS {
                return Err(Rejection::cause(Cause::NO_RESOURCES));
            }
            arrival.rules.push(Rule { id: next_rule, precedence: pdr.precedence, value: position, filter });
            next_rule += 1;
            Ok(())
        })?;
    }
    if let Some(network) = network {
        // A FAR that names no network leads to that of the session.
        for used in pdrs.iter_mut().filter_map(|pdr| network_mut(&mut pdr.action)) {
            *used = network;
        }
    }
    let mut ineffective = Vec::new();
    for arrival in &arrivals {
        ineffective::find(&arrival.rules, &pdrs, &mut ineffective);
        ineffective.truncate(ineffective::MAX_KEPT);
    }
    let plan = Plan {
        seid,
        kind: if rules.ethernet { Kind::Ethernet } else { Kind::Ip },
        network,
        origin: Some(home.network).filter(|_| !rules.ethernet),
        reports_addresses: rules.ethernet && rules.urrs.values().any(UrrRule::reports_addresses),
        ue,
        native,
        arrivals,
        pdrs,
        qers: rules.qers.iter().map(|(id, qer)| compile_qer(id, qer)).collect(),
        urrs: rules.urrs.iter().map(|(id, urr)| Urr { id, marks: urr.marks() }).collect(),
        buffer_packets: rules.bars.values().find_map(|bar| bar.suggested_packets),
    };
    Ok((plan, ineffective))
}

/// The interface of the data network to which the UE belongs: packets without tunnel come from its network instance,
/// and FARs that name no other lead there. It is the network that PDIs name, else the network of the UE's address,
/// else one that a FAR names, else the first. A session belongs to one data network (TS 23.501 §5.6.1), so PDIs that
/// name two are refused.
pub(super) fn home_network(rules: &Rules, interfaces: &Interfaces) -> Result<u16, Rejection> {
    let mut home: Option<u16> = None;
    let native = rules.pdrs.iter().filter(|(_, pdr)| !rules.ethernet && rules.teid_of(pdr).is_none());
    for (id, pdr) in native {
        let own = || interfaces.network_with(rules.ue_of(pdr).addresses());
        let Some(network) = rules.network_of(pdr).or_else(own) else { continue };
        if *home.get_or_insert(network) != network {
            return Err(Rejection::rule(FailedRuleId::Pdr(id)));
        }
    }
    let of_address =
        || rules.pdrs.values().find_map(|pdr| interfaces.network_with(rules.ue_of(pdr).addresses()));
    let of_far = || rules.fars.values().find_map(|far| named_network(far, interfaces));
    Ok(home.or_else(of_address).or_else(of_far).unwrap_or_else(|| interfaces.first_network()))
}

fn ue_addresses<'a>(rules: &'a Rules, pdrs: impl Iterator<Item = &'a PdrRule> + Clone) -> UeAddresses {
    let own = pdrs.clone().map(|pdr| rules.ue_of(pdr));
    UeAddresses {
        ipv4: distinct(own.clone().filter_map(|own| own.v4)),
        ipv6: distinct(own.filter_map(|own| own.v6)),
        // Framed routes are the rule's own, even when a traffic endpoint gives the address.
        framed: distinct(pdrs.flat_map(|pdr| pdr.ue.framed.iter().copied())),
    }
}

/// Values without repetitions, in the order in which they first appear. Takes linear time: each PDR of a session
/// may have an address of its own.
fn distinct<T: Copy + Eq + Hash>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = Vec::new();
    let mut known = HashSet::default();
    for value in values {
        // Nearly always all rules have one address: this needs no look-up.
        if list.last() != Some(&value) && known.insert(value) {
            list.push(value);
        }
    }
    list
}

/// What the rules need to know about the UE's addresses, which may be many.
#[derive(Clone, Copy)]
struct Home {
    /// Whether the UE has an address.
    has_address: bool,
    /// The interface of the UE's data network: see [`home_network`].
    network: u16,
}

fn compile_pdr(
    id: u16,
    pdr: &PdrRule,
    rules: &Rules,
    home: Home,
    interfaces: &Interfaces,
) -> Result<Pdr, Rejection> {
    let failed = Rejection::rule(FailedRuleId::Pdr(id));
    // Without a FAR, which may have been removed, there is no destination, and packets are dropped.
    let own = rules.far_of(pdr);
    let mut far = own;
    let direction = pdr.direction();
    let mut qers = Vec::with_capacity(pdr.qer_ids.len());
    let (mut qfi, mut rqi, mut ppi) = (None, false, None);
    for id in &pdr.qer_ids {
        let qer = rules.qers.get(*id).ok_or(failed)?;
        qers.push(rules.qers.position(*id).ok_or(failed)? as u16);
        qfi = qfi.or(qer.qfi);
        rqi |= qer.rqi;
        ppi = ppi.or(qer.ppi);
    }
    let mut urrs = Vec::with_capacity(pdr.urr_ids.len());
    let mut exhausted = false;
    for id in &pdr.urr_ids {
        let urr = rules.urrs.get(*id).ok_or(failed)?;
        if urr.is_active() {
            urrs.push(rules.urrs.position(*id).ok_or(failed)? as u16);
        }
        if urr.exhausted {
            exhausted = true;
            far = urr.quota_far.and_then(|id| rules.fars.get(id)).map(|far| &**far).or(far);
        }
    }
    // If no FAR is given for an exhausted quota, packets are dropped (§5.2.2.2.1).
    let without = exhausted && own.map(std::ptr::from_ref) == far.map(std::ptr::from_ref);
    let far = far.filter(|_| !without);
    let does = |what| far.is_some_and(|far| far.action.contains(what));
    let copies = far.filter(|_| does(ApplyAction::DUPL));
    let copies = copies.into_iter().flat_map(|far| far.copies.iter().map(move |copy| (far, copy)));
    let action = match (own, far) {
        (Some(own), Some(far)) => action(direction, own, far, home, interfaces),
        _ => Action::Drop,
    };
    Ok(Pdr {
        id,
        direction,
        check_source: checks_source(direction, far, rules),
        action,
        notify: does(ApplyAction::NOCP) && !does(ApplyAction::FORW),
        duplicates: copies
            .map(|(far, copy)| {
                let to = tunnel(copy.destination, copy.outer_header, None, interfaces);
                way(to, copy.marking, far, home, interfaces)
            })
            .collect(),
        qers,
        urrs,
        qfi,
        rqi,
        ppi,
    })
}

/// Whether the sources of a PDR's packets are checked while `far` applies. Not those of packets to the CP
/// function, as router solicitations have a link-local source; of frames, which have none; and of packets to
/// another UPF, which checks them itself.
fn checks_source(direction: Direction, far: Option<&FarRule>, rules: &Rules) -> bool {
    let to_network = matches!(
        far.and_then(|far| far.destination),
        None | Some(DestinationInterface::Core | DestinationInterface::SgiLan)
    );
    direction == Direction::Uplink && to_network && !rules.ethernet
}

/// Checks every FAR that may apply to packets of a PDR: its own, and those of its URRs for exhausted quotas.
/// When a quota is exhausted, there is no request that could be refused.
///
/// `network` is the data network of a session of frames; the first FAR that leads to one sets it.
fn check_fars(
    id: u16,
    pdr: &PdrRule,
    rules: &Rules,
    home: Home,
    interfaces: &Interfaces,
    network: &mut Option<u16>,
) -> Result<(), Rejection> {
    // Without its own FAR a PDR drops all packets.
    let Some(own) = rules.far_of(pdr) else { return Ok(()) };
    let quotas = pdr.urr_ids.iter().filter_map(|id| rules.fars.get(rules.urrs.get(*id)?.quota_far?));
    for far in std::iter::once(own).chain(quotas.map(|far| &**far)) {
        let mut action = action(pdr.direction(), own, far, home, interfaces);
        let without_source = checks_source(pdr.direction(), Some(far), rules) && !home.has_address;
        if without_source && !takes_any_source(&action, interfaces) {
            let failed_rule = Some(FailedRuleId::Pdr(id));
            return Err(Rejection {
                failed_rule,
                ..Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie::UE_IP_ADDRESS)
            });
        }
        check_network(id, &mut action, far, rules, interfaces, network)?;
    }
    Ok(())
}

/// Checks that IP packets go to IP data networks, and frames to one Ethernet data network, in which the session
/// is a station. That is the network that a FAR names, or else the first Ethernet network.
fn check_network(
    id: u16,
    action: &mut Action,
    far: &FarRule,
    rules: &Rules,
    interfaces: &Interfaces,
    settled: &mut Option<u16>,
) -> Result<(), Rejection> {
    let failed = Rejection::rule(FailedRuleId::Pdr(id));
    let dnn_of = |network: u16| interfaces.number(network).and_then(|interface| interface.dnn.as_ref());
    let carries_frames = |network: u16| dnn_of(network).is_some_and(|dnn| dnn.kind == Kind::Ethernet);
    let redirects =
        matches!(action, Action::RedirectUrl(_) | Action::RedirectAddress(..) | Action::Answers(_));
    if rules.ethernet && redirects {
        // The answer of a redirection would have to be IP.
        return Err(Rejection::unsupported(ie::REDIRECT_INFORMATION));
    }
    let Some(network) = network_mut(action) else { return Ok(()) };
    if !rules.ethernet {
        return if carries_frames(*network) { Err(failed) } else { Ok(()) };
    }
    let first = || (0..interfaces.len() as u16).find(|network| carries_frames(*network));
    let meant = named_network(far, interfaces).or_else(first);
    let meant = meant.filter(|network| carries_frames(*network)).ok_or(failed)?;
    if *settled.get_or_insert(meant) == meant { Ok(()) } else { Err(failed) }
}

/// The data network to which an action forwards.
fn network_mut(action: &mut Action) -> Option<&mut u16> {
    match action {
        Action::Forward(forward) | Action::Answers(forward) | Action::RedirectAddress(_, forward) => {
            match &mut forward.to {
                Destination::DataNetwork(network) => Some(network),
                Destination::Tunnel(_) => None,
            }
        }
        _ => None,
    }
}

/// Whether packets may be forwarded this way from a session without a UE address to check sources against.
fn takes_any_source(action: &Action, interfaces: &Interfaces) -> bool {
    match action {
        Action::Forward(Forward { to: Destination::DataNetwork(network), .. }) => {
            let dnn = interfaces.number(*network).and_then(|interface| interface.dnn.as_ref());
            dnn.is_some_and(|dnn| dnn.any_source)
        }
        Action::RedirectUrl(_) | Action::RedirectAddress(..) => false,
        _ => true,
    }
}

fn compile_qer(id: u32, qer: &QerRule) -> Qer {
    let enforcement = |gate, rate: fn(&BitRates) -> u64| Enforcement {
        open: gate == Gate::Open,
        mbr_kbps: qer.mbr.as_ref().map(rate),
        // A guaranteed rate of zero is no guarantee.
        gbr_kbps: qer.gbr.as_ref().map(rate).filter(|rate| *rate > 0),
    };
    Qer {
        id,
        uplink: enforcement(qer.gates.uplink, |rates| rates.uplink_kbps),
        downlink: enforcement(qer.gates.downlink, |rates| rates.downlink_kbps),
    }
}

/// The action for packets of a direction. `far` applies now: it is the PDR's `own`, or that of an exhausted
/// quota. A redirection applies to uplink packets; of the downlink packets only answers to redirected packets
/// pass, by the PDR's own FAR.
fn action(direction: Direction, own: &FarRule, far: &FarRule, home: Home, interfaces: &Interfaces) -> Action {
    if direction == Direction::Uplink || far.redirect.is_none() {
        return compile_far(far, home, interfaces);
    }
    match compile_far(own, home, interfaces) {
        Action::Forward(forward) => Action::Answers(forward),
        _ => Action::Drop,
    }
}

fn compile_far(far: &FarRule, home: Home, interfaces: &Interfaces) -> Action {
    if far.action.contains(ApplyAction::BUFF) {
        return Action::Buffer;
    }
    if !far.action.contains(ApplyAction::FORW) || far.destination.is_none() {
        return Action::Drop;
    }
    let forward = way(tunnel_of(far, interfaces), far.marking, far, home, interfaces);
    match &far.redirect {
        None => Action::Forward(forward),
        Some(Redirect::Url(url)) => Action::RedirectUrl(url.clone()),
        Some(Redirect::Address(address)) => Action::RedirectAddress(*address, forward),
    }
}

/// Into a tunnel, or to the data network of the FAR: the network that it names, else the UE's.
fn way(
    tunnel: Option<OuterHeader>,
    marking: Option<TransportLevelMarking>,
    far: &FarRule,
    home: Home,
    interfaces: &Interfaces,
) -> Forward {
    let to = match tunnel {
        Some(header) => Destination::Tunnel(header),
        None => Destination::DataNetwork(named_network(far, interfaces).unwrap_or(home.network)),
    };
    Forward { to, tos: marking.map(|marking| marking.tos & marking.mask) }
}

/// The interface on which packets from a source interface arrive in tunnels. `fits` says whether the address of an
/// interface can be used; `None` when only the addresses do not fit.
pub(super) fn interface_from(
    source: SourceInterface,
    instance: Option<&ShortBytes>,
    fits: impl Fn(IpAddr) -> bool,
    interfaces: &Interfaces,
) -> Result<Option<u8>, Rejection> {
    let roles: &[Role] = match source {
        SourceInterface::Access => &[Role::N3, Role::N9],
        SourceInterface::CpFunction => &[Role::N4u, Role::N3, Role::N9],
        _ => &[Role::N9, Role::N3],
    };
    interface_of(roles, instance, fits, interfaces)
}

/// The interface through which packets to a destination interface leave in tunnels, like [`interface_from`].
pub(super) fn interface_to(
    destination: DestinationInterface,
    instance: Option<&ShortBytes>,
    fits: impl Fn(IpAddr) -> bool,
    interfaces: &Interfaces,
) -> Result<Option<u8>, Rejection> {
    let roles: &[Role] = match destination {
        DestinationInterface::Access => &[Role::N3, Role::N9],
        DestinationInterface::CpFunction | DestinationInterface::LiFunction => {
            &[Role::N4u, Role::N3, Role::N9]
        }
        _ => &[Role::N9, Role::N3],
    };
    interface_of(roles, instance, fits, interfaces)
}

fn interface_of(
    roles: &[Role],
    instance: Option<&ShortBytes>,
    fits: impl Fn(IpAddr) -> bool,
    interfaces: &Interfaces,
) -> Result<Option<u8>, Rejection> {
    let name = match instance {
        Some(instance) => Some(pfcp::network_instance_name(instance).ok_or(unknown_instance())?),
        None => None,
    };
    let found = interfaces.tunnel(roles, name.as_deref(), fits);
    if found.is_none() && interfaces.tunnel(roles, name.as_deref(), |_| true).is_none() {
        return Err(unknown_instance());
    }
    Ok(found)
}

/// The tunnel into which a FAR sends.
pub(super) fn tunnel_of(far: &FarRule, interfaces: &Interfaces) -> Option<OuterHeader> {
    tunnel(far.destination?, far.outer_header, far.network_instance.as_ref(), interfaces)
}

/// The tunnel that an outer header describes.
fn tunnel(
    destination: DestinationInterface,
    header: Option<OuterHeaderCreation>,
    instance: Option<&ShortBytes>,
    interfaces: &Interfaces,
) -> Option<OuterHeader> {
    let (teid, peer) = header?.gtpu_endpoint()?;
    let container = match destination {
        DestinationInterface::Access => Container::Downlink,
        DestinationInterface::CpFunction | DestinationInterface::LiFunction => Container::None,
        _ => Container::Uplink,
    };
    // FARs without an interface are refused: `Rules::check_destinations`.
    let interface = interface_to(destination, instance, |own| own.is_ipv4() == peer.is_ipv4(), interfaces);
    let interface = interface.ok().flatten().unwrap_or_default();
    Some(OuterHeader { teid, peer: SocketAddr::new(peer, gtpu::PORT), interface, container })
}

fn named_network(far: &FarRule, interfaces: &Interfaces) -> Option<u16> {
    network_named(far.network_instance.as_ref()?, interfaces)
}

/// The interface of the data network that a network instance names.
pub(super) fn network_named(instance: &ShortBytes, interfaces: &Interfaces) -> Option<u16> {
    interfaces.network(&pfcp::network_instance_name(instance)?)
}

/// Name of the data network to which a session's packets go.
pub fn network_of(rules: &Rules, interfaces: &Interfaces) -> Option<String> {
    let home = Home { has_address: false, network: home_network(rules, interfaces).ok()? };
    let used = rules.pdrs.values().filter_map(|pdr| rules.far_of(pdr));
    let network = used.map(|far| compile_far(far, home, interfaces)).find_map(|action| match action {
        Action::Forward(Forward { to: Destination::DataNetwork(network), .. }) => Some(network),
        _ => None,
    });
    let dnn = interfaces.number(network?).and_then(|interface| interface.dnn.as_ref());
    dnn.map(|dnn| dnn.name.to_string())
}

/// Calls `take` with every filter of a PDI: every combination of an SDF or Ethernet filter, a UE address and a
/// QFI. Does not collect them first, as most PDIs have one or two.
fn filters(
    id: u16,
    pdr: &PdrRule,
    rules: &Rules,
    mut take: impl FnMut(Filter) -> Result<(), Rejection>,
) -> Result<(), Rejection> {
    let direction = match pdr.direction() {
        Direction::Uplink => SdfDirection::Uplink,
        Direction::Downlink => SdfDirection::Downlink,
    };
    let all = [Filter::default()];
    let mut base = Cow::Borrowed(&all[..]);
    if !pdr.ethernet_filters.is_empty() {
        let frames = pdr.ethernet_filters.iter().map(|filter| ethernet_filters(filter, direction));
        base = Cow::Owned(frames.collect::<Result<Vec<_>, _>>()?.concat());
    }
    if !pdr.sdf_filters.is_empty() {
        let mut texts = Vec::with_capacity(pdr.sdf_filters.len());
        for sdf in &pdr.sdf_filters {
            texts.extend(sdf_filters(sdf, direction)?);
        }
        base = Cow::Owned(match pdr.ethernet_filters.is_empty() {
            true => texts,
            false => cross(&texts, &base, |text, frame| Filter { ethernet: frame.ethernet, ..*text }),
        });
    }
    let side = if direction == SdfDirection::Uplink { Side::Source } else { Side::Destination };
    let prefixes = if rules.ethernet { Vec::new() } else { ue_prefixes(pdr, rules)? };
    let qfis: Result<Vec<Qfi>, _> = rules.qfis_of(pdr).iter().map(|qfi| Qfi::new(*qfi)).collect();
    let qfis = qfis.map_err(|_| Rejection::rule(FailedRuleId::Pdr(id)))?;
    if base.len() > MAX_PDR_FILTERS {
        return Err(Rejection {
            failed_rule: Some(FailedRuleId::Pdr(id)),
            ..Rejection::cause(Cause::NO_RESOURCES)
        });
    }
    for filter in base.iter() {
        for ue in 0..prefixes.len().max(1) {
            for qfi in 0..qfis.len().max(1) {
                let ue = prefixes.get(ue).map(|prefix| (side, *prefix));
                take(Filter { ue, qfi: qfis.get(qfi).copied(), ..*filter })?;
            }
        }
    }
    Ok(())
}

/// The UE's addresses, prefixes and framed routes. A packet has to match one of them.
fn ue_prefixes(pdr: &PdrRule, rules: &Rules) -> Result<Vec<Prefix>, Rejection> {
    let ue = rules.ue_of(pdr);
    let incorrect = |ie| Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie);
    let mut prefixes = Vec::new();
    prefixes.extend(ue.v4.map(|address| Prefix::host(address.into())));
    if let Some((prefix, length)) = ue.v6 {
        prefixes.push(Prefix::new(prefix.into(), length).map_err(|_| incorrect(ie::UE_IP_ADDRESS))?);
    }
    for (address, length) in &pdr.ue.framed {
        prefixes.push(Prefix::new(*address, *length).map_err(|_| incorrect(ie::FRAMED_ROUTE))?);
    }
    Ok(prefixes)
}

fn cross<T>(filters: &[Filter], values: &[T], join: impl Fn(&Filter, &T) -> Filter) -> Vec<Filter> {
    let pairs = filters.iter().flat_map(|filter| values.iter().map(move |value| (filter, value)));
    pairs.take(MAX_PDR_FILTERS + 1).map(|(filter, value)| join(filter, value)).collect()
}

fn sdf_filters(sdf: &SdfFilter, direction: SdfDirection) -> Result<Vec<Filter>, Rejection> {
    let incorrect = Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::SDF_FILTER);
    let mut out = match &sdf.flow_description {
        None => vec![Filter::default()],
        Some(text) => {
            let text = text.as_str().ok_or(incorrect)?;
            SdfText::parse(text).map_err(|_| incorrect)?.filters(direction)
        }
    };
    let flow_label = sdf.flow_label.map(FlowLabel::new).transpose().map_err(|_| incorrect)?;
    for filter in &mut out {
        filter.tos = sdf.tos_traffic_class.map(|(value, mask)| Masked::new(value, mask));
        filter.spi = sdf.security_parameter_index;
        filter.flow_label = flow_label;
    }
    Ok(out)
}

/// Filters of an Ethernet filter (§5.13.2): every pair of addresses with every SDF filter inside.
fn ethernet_filters(
    filter: &EthernetPacketFilter,
    direction: SdfDirection,
) -> Result<Vec<Filter>, Rejection> {
    let frame = EthernetFilter {
        ethertype: filter.ethertype.map(|ethertype| ethertype.0),
        c_tag: filter.c_tag.map(tag),
        s_tag: filter.s_tag.map(tag),
        ..EthernetFilter::default()
    };
    let mut frames = vec![frame];
    if !filter.mac_addresses.is_empty() {
        frames.clear();
        for addresses in &filter.mac_addresses {
            frames.extend(mac_filters(frame, addresses)?);
        }
    }
    let mut texts = vec![Filter::default()];
    if !filter.sdf_filters.is_empty() {
        texts.clear();
        for sdf in &filter.sdf_filters {
            texts.extend(sdf_filters(sdf, direction)?);
        }
    }
    Ok(cross(&texts, &frames, |text, frame| Filter { ethernet: Some(*frame), ..*text }))
}

fn tag(tag: VlanTag) -> Masked<u16> {
    let mut value = 0;
    let mut mask = 0;
    if let Some(pcp) = tag.pcp {
        value |= u16::from(pcp & 7) << 13;
        mask |= 7 << 13;
    }
    if let Some(dei) = tag.dei {
        value |= u16::from(dei) << 12;
        mask |= 1 << 12;
    }
    if let Some(vid) = tag.vid {
        value |= vid & 0xfff;
        mask |= 0xfff;
    }
    Masked::tag(value, mask)
}

fn mac_filters(frame: EthernetFilter, mac: &MacAddresses) -> Result<Vec<EthernetFilter>, Rejection> {
    let sources = mac_ranges(mac.source, mac.upper_source)?;
    let destinations = mac_ranges(mac.destination, mac.upper_destination)?;
    let pairs = sources.iter().flat_map(|source| destinations.iter().map(move |to| (*source, *to)));
    Ok(pairs.map(|(source, destination)| EthernetFilter { source, destination, ..frame }).collect())
}

/// An address; or the few masked values that make up a range of addresses.
fn mac_ranges(low: Option<[u8; 6]>, high: Option<[u8; 6]>) -> Result<Vec<Masked<[u8; 6]>>, Rejection> {
    let number = |mac: [u8; 6]| mac.iter().fold(0u64, |sum, octet| sum << 8 | u64::from(*octet));
    let octets = |value: u64| -> [u8; 6] {
        let [_, _, octets @ ..] = value.to_be_bytes();
        octets
    };
    let incorrect = Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::MAC_ADDRESS);
    let (first, last) = match (low, high) {
        (None, None) => return Ok(vec![Masked::mac([0; 6], [0; 6])]),
        (None, Some(_)) => return Err(incorrect),
        (Some(low), high) => (number(low), number(high.unwrap_or(low))),
    };
    if first > last {
        return Err(incorrect);
    }
    const ALL: u64 = (1 << 48) - 1;
    let (mut next, mut out) = (first, Vec::new());
    // Each step takes the largest aligned block that fits: at most two blocks for each of the 48 bits.
    loop {
        let left = last - next + 1;
        let size = next.trailing_zeros().min(48).min(left.ilog2());
        out.push(Masked::mac(octets(next), octets(ALL & !((1u64 << size) - 1))));
        next += 1 << size;
        if next > last {
            return Ok(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_ranges_become_masks() {
        let range = |low: u8, high: u8| {
            mac_ranges(Some([2, 0, 0, 0, 0, low]), Some([2, 0, 0, 0, 0, high])).map(|masks| masks.len())
        };
        assert_eq!((range(0, 255), range(1, 1), range(1, 6)), (Ok(1), Ok(1), Ok(4)));
        assert!(range(2, 1).is_err());
        assert_eq!(mac_ranges(Some([0; 6]), Some([255; 6])).unwrap(), [Masked::mac([0; 6], [0; 6])]);
    }

    /// A value that counts how often it is compared.
    #[derive(Clone, Copy)]
    struct Counted<'a>(u32, &'a std::cell::Cell<usize>);

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Counted<'_> {}

    impl Hash for Counted<'_> {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    #[test]
    fn distinct_values_need_a_few_comparisons_each() {
        const VALUES: u32 = 65_536;
        let comparisons = std::cell::Cell::new(0);
        let values = (0..VALUES).chain(0..VALUES).map(|value| Counted(value, &comparisons));
        let found: Vec<u32> = distinct(values).iter().map(|value| value.0).collect();
        assert!(found.iter().copied().eq(0..VALUES), "in their order");
        assert!(comparisons.get() < 8 * VALUES as usize, "{}", comparisons.get());
        assert_eq!(distinct([3, 3, 1, 3, 1, 2].into_iter()), [3, 1, 2]);
        assert!(distinct(std::iter::empty::<u8>()).is_empty());
    }
}
