//! From rules to a [`Plan`]: what they refer to is resolved, filters are expanded.

use std::net::{IpAddr, SocketAddr};

use classifier::sdf::{Direction as SdfDirection, SdfFilter as SdfText};
use classifier::{Filter, FlowLabel, Masked, Prefix, Qfi, Rule, Side};
use packet::gtpu;
use pfcp::{ApplyAction, Cause, DestinationInterface, FailedRuleId, Gate, SdfFilter, SourceInterface, ie};

use super::remarks::{self, Remark};
use super::rules::{FarRule, PdrRule, QerRule, Rejection, Rules};
use crate::config::Config;
use crate::plan::{
    Action, Arrival, Container, Destination, Direction, Enforcement, Forward, Kind, OuterHeader, Pdr, Place,
    Plan, Qer, UeAddresses, Urr,
};

/// Most filters that the PDRs of one session expand to: ports and families multiply.
const MAX_FILTERS: usize = 4096;

/// Works out the plan for the rules of a session, and what is odd about them.
///
/// Source interface, TEID and network instance of a PDI need no filter: a packet's tunnel, or its having none, says
/// which of a session's rule sets it is looked up in.
pub fn compile(seid: u64, rules: &Rules, config: &Config) -> Result<(Plan, Vec<Remark>), Rejection> {
    let ue = ue_addresses(rules.pdrs.values());
    let native = ue_addresses(rules.pdrs.values().filter(|pdr| pdr.teid.is_none()));
    let mut pdrs = Vec::with_capacity(rules.pdrs.len());
    let native_place = (!native.is_empty()).then_some(Place::Native);
    let places = native_place.into_iter().chain(rules.teids().into_iter().map(Place::Tunnel));
    let mut arrivals: Vec<Arrival> = places.map(|place| Arrival { place, rules: Vec::new() }).collect();
    let mut next_rule = 0;
    for (id, pdr) in &rules.pdrs {
        let position = pdrs.len() as u32;
        pdrs.push(compile_pdr(*id, pdr, rules, &ue, config)?);
        let place = pdr.teid.map_or(Place::Native, Place::Tunnel);
        let Some(arrival) = arrivals.iter_mut().find(|arrival| arrival.place == place) else { continue };
        for filter in filters(*id, pdr)? {
            if next_rule as usize >= MAX_FILTERS {
                return Err(Rejection::cause(Cause::NO_RESOURCES));
            }
            arrival.rules.push(Rule { id: next_rule, precedence: pdr.precedence, value: position, filter });
            next_rule += 1;
        }
    }
    let mut remarks = Vec::new();
    for arrival in &arrivals {
        remarks::find(&arrival.rules, &pdrs, &mut remarks);
    }
    let qers = rules.qers.iter().map(|(id, qer)| compile_qer(*id, qer)).collect();
    let urrs = rules.urrs.keys().map(|id| Urr { id: *id, marks: Vec::new() }).collect();
    let plan = Plan { seid, kind: Kind::Ip, ue, native, arrivals, pdrs, qers, urrs, buffer_packets: None };
    Ok((plan, remarks))
}

fn ue_addresses<'a>(pdrs: impl Iterator<Item = &'a PdrRule>) -> UeAddresses {
    let mut ue = UeAddresses::default();
    for pdr in pdrs {
        if let Some(address) = pdr.ue_v4
            && !ue.ipv4.contains(&address)
        {
            ue.ipv4.push(address);
        }
        if let Some(prefix) = pdr.ue_v6
            && !ue.ipv6.contains(&prefix)
        {
            ue.ipv6.push(prefix);
        }
    }
    ue
}

fn compile_pdr(
    id: u16,
    pdr: &PdrRule,
    rules: &Rules,
    ue: &UeAddresses,
    config: &Config,
) -> Result<Pdr, Rejection> {
    let failed = Rejection::rule(FailedRuleId::Pdr(id));
    let far = rules.fars.get(&pdr.far_id).ok_or(failed)?;
    let direction = match pdr.source {
        SourceInterface::Access => Direction::Uplink,
        _ => Direction::Downlink,
    };
    let mut qers = Vec::new();
    let (mut qfi, mut rqi, mut ppi) = (None, false, None);
    for id in &pdr.qer_ids {
        let qer = rules.qers.get(id).ok_or(failed)?;
        qers.push(rules.qers.range(..*id).count() as u16);
        qfi = qfi.or(qer.qfi);
        rqi |= qer.rqi;
        ppi = ppi.or(qer.ppi);
    }
    let mut urrs = Vec::new();
    for id in &pdr.urr_ids {
        rules.urrs.get(id).ok_or(failed)?;
        urrs.push(rules.urrs.range(..*id).count() as u16);
    }
    Ok(Pdr {
        id,
        direction,
        // What goes to the CP function (router solicitations) has a link-local source.
        check_source: direction == Direction::Uplink
            && matches!(
                far.destination,
                None | Some(DestinationInterface::Core | DestinationInterface::SgiLan)
            ),
        action: compile_far(far, ue, config),
        notify: far.action.contains(ApplyAction::NOCP),
        duplicates: Vec::new(),
        qers,
        urrs,
        qfi,
        rqi,
        ppi,
    })
}

fn compile_qer(id: u32, qer: &QerRule) -> Qer {
    let enforcement = |gate, rate| Enforcement { open: gate == Gate::Open, mbr_kbps: rate, gbr_kbps: None };
    Qer {
        id,
        uplink: enforcement(qer.gates.uplink, qer.mbr.map(|mbr| mbr.uplink_kbps)),
        downlink: enforcement(qer.gates.downlink, qer.mbr.map(|mbr| mbr.downlink_kbps)),
    }
}

fn compile_far(far: &FarRule, ue: &UeAddresses, config: &Config) -> Action {
    if far.action.contains(ApplyAction::BUFF) {
        return Action::Buffer;
    }
    if !far.action.contains(ApplyAction::FORW) {
        return Action::Drop;
    }
    let Some(destination) = far.destination else { return Action::Drop };
    let to = match far.outer_header.as_ref().and_then(|header| header.gtpu_endpoint()) {
        Some((teid, peer)) => Destination::Tunnel(OuterHeader {
            teid,
            peer: SocketAddr::new(peer, gtpu::PORT),
            container: match destination {
                DestinationInterface::Access => Container::Downlink,
                DestinationInterface::CpFunction => Container::None,
                _ => Container::Uplink,
            },
        }),
        None => Destination::DataNetwork(data_network(far, ue, config)),
    };
    Action::Forward(Forward { to, tos: None })
}

/// Which data network a FAR means: the one it names, else the one whose pool has the UE's address.
fn data_network(far: &FarRule, ue: &UeAddresses, config: &Config) -> u16 {
    let named =
        far.network_instance.as_ref().and_then(|name| name.as_str()).and_then(|name| {
            config.dnn.iter().position(|dnn| dnn.name.to_string().eq_ignore_ascii_case(name))
        });
    let by_address = || {
        config.dnn.iter().position(|dnn| {
            let within = |pool: net::link::Cidr, address: IpAddr| {
                net::link::Cidr::new(address, pool.prefix()).is_some_and(|a| a.network() == pool.network())
            };
            let v4 = ue.ipv4.iter().any(|ue| dnn.ue_pool.ipv4.is_some_and(|pool| within(pool, (*ue).into())));
            let v6 =
                ue.ipv6.iter().any(|(ue, _)| dnn.ue_pool.ipv6.is_some_and(|pool| within(pool, (*ue).into())));
            v4 || v6
        })
    };
    named.or_else(by_address).unwrap_or(0) as u16
}

/// The name of the data network that a session's packets go to.
pub fn network_of(rules: &Rules, config: &Config) -> Option<String> {
    let ue = ue_addresses(rules.pdrs.values());
    let used = rules.pdrs.values().filter_map(|pdr| rules.fars.get(&pdr.far_id));
    let network = used.map(|far| compile_far(far, &ue, config)).find_map(|action| match action {
        Action::Forward(Forward { to: Destination::DataNetwork(network), .. }) => Some(network),
        _ => None,
    });
    config.dnn.get(usize::from(network?)).map(|dnn| dnn.name.to_string())
}

/// The filters that a PDI expands to: every SDF filter with every UE address and every QFI.
fn filters(id: u16, pdr: &PdrRule) -> Result<Vec<Filter>, Rejection> {
    let direction = match pdr.source {
        SourceInterface::Access => SdfDirection::Uplink,
        _ => SdfDirection::Downlink,
    };
    let mut out = vec![Filter::default()];
    if !pdr.sdf_filters.is_empty() {
        out.clear();
        for sdf in &pdr.sdf_filters {
            out.extend(sdf_filters(sdf, direction)?);
        }
    }
    let mut prefixes = Vec::new();
    prefixes.extend(pdr.ue_v4.map(|address| Prefix::host(address.into())));
    if let Some((prefix, length)) = pdr.ue_v6 {
        let incorrect = Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::UE_IP_ADDRESS);
        prefixes.push(Prefix::new(prefix.into(), length).map_err(|_| incorrect)?);
    }
    let side = if direction == SdfDirection::Uplink { Side::Source } else { Side::Destination };
    if !prefixes.is_empty() {
        out = cross(&out, &prefixes, |filter, prefix| Filter { ue: Some((side, *prefix)), ..*filter });
    }
    let qfis: Result<Vec<Qfi>, _> = pdr.qfis.iter().map(|qfi| Qfi::new(*qfi)).collect();
    let qfis = qfis.map_err(|_| Rejection::rule(FailedRuleId::Pdr(id)))?;
    if !qfis.is_empty() {
        out = cross(&out, &qfis, |filter, qfi| Filter { qfi: Some(*qfi), ..*filter });
    }
    Ok(out)
}

fn cross<T>(filters: &[Filter], values: &[T], join: impl Fn(&Filter, &T) -> Filter) -> Vec<Filter> {
    let pairs = filters.iter().flat_map(|filter| values.iter().map(move |value| (filter, value)));
    pairs.take(MAX_FILTERS + 1).map(|(filter, value)| join(filter, value)).collect()
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
