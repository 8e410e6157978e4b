//! Compiles rules into the form that workers execute: [`Rules`] → [`Plan`].

use std::borrow::Cow;
use std::hash::Hash;

use classifier::sdf::{Direction as SdfDirection, SdfFilter as SdfText};
use classifier::{EthernetFilter, Filter, FlowLabel, Masked, Prefix, Qfi, Rule, Side};
use foldhash::{HashMap, HashSet};
use pfcp::{
    ApplyAction, BitRates, Cause, DestinationInterface, EthernetPacketFilter, FailedRuleId, Gate,
    MacAddresses, SdfFilter, TransportLevelMarking, VlanTag, ie,
};

use super::ineffective::{self, Ineffective};
use super::networks::{Networks, carries_frames};
use super::rules::{FarRule, PdrRule, QerRule, Redirect, Rejection, Rules, UrrRule};
use crate::interfaces::Interfaces;
use crate::plan::{
    Action, Arrival, Destination, Direction, Enforcement, Forward, Kind, OuterHeader, Pdr, Place, Plan, Qer,
    UeAddresses, Urr,
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
    let ue = ue_addresses(rules, rules.pdrs.values());
    let networks = Networks::of(rules, interfaces);
    let home = Home { has_address: !ue.is_empty(), network: networks.home(rules)?, networks };
    let untunnelled = rules.pdrs.values().filter(|pdr| rules.teid_of(pdr).is_none());
    let native = ue_addresses(rules, untunnelled);
    let mut pdrs = Vec::with_capacity(rules.pdrs.len());
    let untunnelled = rules.pdrs.values().any(|pdr| rules.teid_of(pdr).is_none());
    let native_place = untunnelled.then_some(Place::Native);
    let places = native_place.into_iter().chain(rules.teids().into_iter().map(Place::Tunnel));
    let mut arrivals: Vec<Arrival> = places.map(|place| Arrival { place, rules: Vec::new() }).collect();
    let positions: HashMap<Place, usize> =
        arrivals.iter().enumerate().map(|(at, arrival)| (arrival.place, at)).collect();
    let mut next_rule = 0;
    // A session of frames without downlink that leads to no network is no station of one.
    let mut is_station = rules.ethernet && native_place.is_some();
    for (id, pdr) in rules.pdrs.iter() {
        let position = pdrs.len() as u32;
        is_station |= check_fars(id, pdr, rules, home)? && rules.ethernet;
        pdrs.push(compile_pdr(id, pdr, rules, home)?);
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
    let mut ineffective = Vec::new();
    for arrival in &arrivals {
        ineffective::find(&arrival.rules, &pdrs, &mut ineffective);
        ineffective.truncate(ineffective::MAX_KEPT);
    }
    let plan = Plan {
        seid,
        kind: if rules.ethernet { Kind::Ethernet } else { Kind::Ip },
        network: is_station.then_some(home.network),
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
struct Home<'a> {
    /// Whether the UE has an address.
    has_address: bool,
    /// The interface of the session's data network: see [`Networks::home`].
    network: u16,
    networks: Networks<'a>,
}

fn compile_pdr(id: u16, pdr: &PdrRule, rules: &Rules, home: Home<'_>) -> Result<Pdr, Rejection> {
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
        (Some(own), Some(far)) => action(direction, own, far, home),
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
                let to = home.networks.outer_header(copy.destination, copy.outer_header, None);
                way(to, copy.marking, far, home)
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
/// When a quota is exhausted, there is no request that could be refused. Returns whether one leads to a data network.
fn check_fars(id: u16, pdr: &PdrRule, rules: &Rules, home: Home<'_>) -> Result<bool, Rejection> {
    // Without its own FAR a PDR drops all packets.
    let Some(own) = rules.far_of(pdr) else { return Ok(false) };
    let mut leads_to_network = false;
    let quotas = pdr.urr_ids.iter().filter_map(|id| rules.fars.get(rules.urrs.get(*id)?.quota_far?));
    for far in std::iter::once(own).chain(quotas.map(|far| &**far)) {
        let action = action(pdr.direction(), own, far, home);
        let without_source = checks_source(pdr.direction(), Some(far), rules) && !home.has_address;
        if without_source && !takes_any_source(&action, home.networks.interfaces) {
            let failed_rule = Some(FailedRuleId::Pdr(id));
            return Err(Rejection {
                failed_rule,
                ..Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie::UE_IP_ADDRESS)
            });
        }
        leads_to_network |= check_network(id, &action, rules, home)?;
    }
    Ok(leads_to_network)
}

/// Checks that IP packets go to IP data networks, and frames to the Ethernet data network in which the session is a
/// station. Returns whether the action leads to a data network.
fn check_network(id: u16, action: &Action, rules: &Rules, home: Home<'_>) -> Result<bool, Rejection> {
    let redirects =
        matches!(action, Action::RedirectUrl(_) | Action::RedirectAddress(..) | Action::Answers(_));
    if rules.ethernet && redirects {
        // The answer of a redirection would have to be IP.
        return Err(Rejection::unsupported(ie::REDIRECT_INFORMATION));
    }
    let (Action::Forward(forward) | Action::Answers(forward) | Action::RedirectAddress(_, forward)) = action
    else {
        return Ok(false);
    };
    let Destination::DataNetwork(network) = forward.to else { return Ok(false) };
    let frames = carries_frames(home.networks.interfaces, network);
    if frames != rules.ethernet || frames && network != home.network {
        return Err(Rejection::rule(FailedRuleId::Pdr(id)));
    }
    Ok(true)
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
fn action(direction: Direction, own: &FarRule, far: &FarRule, home: Home<'_>) -> Action {
    if direction == Direction::Uplink || far.redirect.is_none() {
        return compile_far(far, home);
    }
    match compile_far(own, home) {
        Action::Forward(forward) => Action::Answers(forward),
        _ => Action::Drop,
    }
}

fn compile_far(far: &FarRule, home: Home<'_>) -> Action {
    if far.action.contains(ApplyAction::BUFF) {
        return Action::Buffer;
    }
    if !far.action.contains(ApplyAction::FORW) || far.destination.is_none() {
        return Action::Drop;
    }
    let forward = way(home.networks.tunnel_of(far), far.marking, far, home);
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
    home: Home<'_>,
) -> Forward {
    let to = match tunnel {
        Some(header) => Destination::Tunnel(header),
        None => Destination::DataNetwork(home.networks.network_of(far).unwrap_or(home.network)),
    };
    Forward { to, tos: marking.map(|marking| marking.tos & marking.mask) }
}

/// Name of the data network to which a session's packets go.
pub fn network_of(rules: &Rules, interfaces: &Interfaces) -> Option<String> {
    let networks = Networks::of(rules, interfaces);
    let home = Home { has_address: false, network: networks.home(rules).ok()?, networks };
    let used = rules.pdrs.values().filter_map(|pdr| rules.far_of(pdr));
    let network = used.map(|far| compile_far(far, home)).find_map(|action| match action {
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
