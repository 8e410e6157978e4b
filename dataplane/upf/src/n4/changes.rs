//! Applies a session request to the rules, part by part. The caller discards the result if one part fails.

use std::net::IpAddr;

use foldhash::HashSet;
use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::{
    Cause, CreatePdr, CreateTrafficEndpoint, CreatedPdr, CreatedTrafficEndpoint, FTeid, PdnType, ShortBytes,
    SmReqFlags, SourceInterface, TrafficEndpointId, UsageReport, UsageReportTrigger, ie,
};

use super::end_markers::{self, EndMarker};
use super::networks::{Networks, network_named, refusal};
use super::rules::urr::{Now, Reading};
use super::rules::{LocalTunnel, MAX_RULES, Rejection, Rules, TunnelAllocator};
use crate::tables::Writer;

/// Allocates TEIDs for one request; TEIDs that are not kept are released.
pub(super) struct Allocation<'a> {
    pub writer: &'a mut Writer,
    /// The session's networks before the request, and those that the request names.
    pub networks: Networks<'a>,
    pub taken: Vec<u32>,
    /// TEIDs that the session had before, in order.
    pub own: Vec<u32>,
    /// The tunnel of each choose id: PDRs with the same id share it.
    pub chosen: Vec<(u8, LocalTunnel)>,
}

impl TunnelAllocator for Allocation<'_> {
    fn resolve(
        &mut self,
        f_teid: &FTeid,
        source: SourceInterface,
        instance: Option<&ShortBytes>,
    ) -> Result<LocalTunnel, Rejection> {
        match *f_teid {
            FTeid::Choose { ipv4, ipv6, id } => {
                let fits = |own: IpAddr| ipv4 && own.is_ipv4() || ipv6 && own.is_ipv6();
                let impossible = Rejection::ie(Cause::INVALID_F_TEID_ALLOCATION, ie::F_TEID);
                let interface = self.networks.tunnel(source.into(), instance, fits);
                let interface = interface.map_err(|reason| refusal(reason, impossible))?;
                let chosen = id.and_then(|id| self.chosen.iter().find(|(known, _)| *known == id));
                if let Some((_, tunnel)) = chosen {
                    // One F-TEID is on one interface (§8.2.3).
                    return if tunnel.interface == interface { Ok(*tunnel) } else { Err(impossible) };
                }
                let teid = self.writer.allocate(interface).ok_or(Rejection::cause(Cause::NO_RESOURCES))?;
                let tunnel = LocalTunnel { teid, interface };
                self.taken.push(teid);
                if let Some(id) = id {
                    self.chosen.push((id, tunnel));
                }
                Ok(tunnel)
            }
            FTeid::Assigned { teid, ipv4, ipv6 } => {
                let fits = |own: IpAddr| {
                    ipv4.is_some_and(|address| own == IpAddr::V4(address))
                        || ipv6.is_some_and(|address| own == IpAddr::V6(address))
                };
                let incorrect = Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::F_TEID);
                let interface = self.networks.tunnel(source.into(), instance, fits);
                let interface = interface.map_err(|reason| refusal(reason, incorrect))?;
                let tunnel = LocalTunnel { teid, interface };
                if self.own.binary_search(&teid).is_ok() || self.taken.contains(&teid) {
                    // A tunnel stays at the address where it was made.
                    let same = self.writer.interface_of(teid) == Some(interface);
                    return if same { Ok(tunnel) } else { Err(incorrect) };
                }
                if !self.writer.assign(teid, interface) {
                    return Err(Rejection::ie(Cause::INVALID_F_TEID_ALLOCATION, ie::F_TEID));
                }
                self.taken.push(teid);
                Ok(tunnel)
            }
        }
    }

    fn network(&self, instance: &ShortBytes) -> Option<u16> {
        network_named(instance, self.networks.interfaces)
    }
}

impl Allocation<'_> {
    fn f_teid(&self, tunnel: LocalTunnel) -> FTeid {
        let LocalTunnel { teid, interface } = tunnel;
        let interface = self.networks.interfaces.number(interface.into());
        let address = interface.map(|interface| interface.local().ip());
        match address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)) {
            IpAddr::V4(address) => FTeid::Assigned { teid, ipv4: Some(address), ipv6: None },
            IpAddr::V6(address) => FTeid::Assigned { teid, ipv4: None, ipv6: Some(address) },
        }
    }
}

/// Effects of a request that the response must contain.
#[derive(Debug, Default)]
pub(super) struct Effect {
    pub created: Vec<CreatedPdr>,
    pub endpoints: Vec<CreatedTrafficEndpoint>,
    pub reports: Vec<UsageReport>,
    /// End Markers that must be sent.
    pub end_markers: Vec<EndMarker>,
}

impl Effect {
    fn add_endpoint(&mut self, id: TrafficEndpointId, chosen: Option<LocalTunnel>, tunnels: &Allocation<'_>) {
        self.endpoints.extend(chosen.map(|tunnel| CreatedTrafficEndpoint {
            id,
            f_teid: Some(tunnels.f_teid(tunnel)),
            ..Default::default()
        }));
    }

    /// Adds the F-TEID of a PDR to the response if the UP function was to choose it.
    fn add_pdr(&mut self, rules: &Rules, id: pfcp::PdrId, asked: Option<&FTeid>, tunnels: &Allocation<'_>) {
        let chosen = matches!(asked, Some(FTeid::Choose { .. }));
        if let Some(tunnel) = rules.pdrs.get(id.0).and_then(|rule| rule.tunnel).filter(|_| chosen) {
            let f_teid = Some(tunnels.f_teid(tunnel));
            self.created.push(CreatedPdr { pdr_id: id, f_teid, ..Default::default() });
        }
    }
}

/// The rules of a new session.
pub(super) fn establish(
    rules: &mut Rules,
    request: SessionEstablishmentRequest,
    tunnels: &mut Allocation<'_>,
    now: Now,
) -> Result<Effect, Rejection> {
    check_mars([(&request.create_mars, ie::CREATE_MAR)])?;
    let mut effect = Effect::default();
    rules.ethernet = request.pdn_type == Some(PdnType::Ethernet);
    if request.pdn_type == Some(PdnType::NonIp) {
        return Err(Rejection::unsupported(ie::PDN_TYPE));
    }
    // A million sessions have these tables, so they have no room for rules that do not come.
    rules.fars.reserve(request.create_fars.len().min(MAX_RULES));
    rules.pdrs.reserve(request.create_pdrs.len().min(MAX_RULES));
    rules.qers.reserve(request.create_qers.len().min(MAX_RULES));
    rules.urrs.reserve(request.create_urrs.len().min(MAX_RULES));
    rules.endpoints.reserve(request.create_traffic_endpoints.len().min(MAX_RULES));
    if let Some(bar) = &request.create_bar {
        rules.create_bar(bar)?;
    }
    for far in &request.create_fars {
        rules.create_far(far)?;
    }
    for qer in &request.create_qers {
        rules.create_qer(qer)?;
    }
    for urr in &request.create_urrs {
        rules.create_urr(urr, Reading::default(), now)?;
    }
    hear(&mut tunnels.networks, &request.create_traffic_endpoints, &request.create_pdrs);
    for endpoint in &request.create_traffic_endpoints {
        let source = source_of(endpoint.id, &request.create_pdrs);
        let chosen = rules.create_endpoint(endpoint, source, tunnels)?;
        effect.add_endpoint(endpoint.id, chosen, tunnels);
    }
    for pdr in request.create_pdrs {
        let (id, f_teid) = (pdr.pdr_id, pdr.pdi.f_teid);
        rules.create_pdr(pdr, tunnels)?;
        effect.add_pdr(rules, id, f_teid.as_ref(), tunnels);
    }
    if rules.ethernet && request.pdn_type.is_some_and(|stated| stated != PdnType::Ethernet) {
        return Err(contradiction());
    }
    Ok(effect)
}

/// The source interface of a traffic endpoint: that of the first new PDR that has it.
fn source_of(endpoint: TrafficEndpointId, pdrs: &[CreatePdr]) -> SourceInterface {
    let user = pdrs.iter().find(|pdr| pdr.pdi.traffic_endpoint_id == Some(endpoint));
    user.map_or(SourceInterface::Access, |pdr| pdr.pdi.source_interface)
}

/// Notes the network instances that new tunnels have.
fn hear(networks: &mut Networks<'_>, endpoints: &[CreateTrafficEndpoint], pdrs: &[CreatePdr]) {
    let of_endpoints = endpoints
        .iter()
        .map(|endpoint| (source_of(endpoint.id, pdrs), endpoint.f_teid, endpoint.network_instance.as_ref()));
    let of_pdrs =
        pdrs.iter().map(|pdr| (pdr.pdi.source_interface, pdr.pdi.f_teid, pdr.pdi.network_instance.as_ref()));
    for (source, f_teid, instance) in of_endpoints.chain(of_pdrs) {
        if let (Some(_), Some(instance)) = (f_teid, instance) {
            networks.hear(source, instance);
        }
    }
}

/// Refuses multi-access rules: ATSSS is not supported (§8.2.25), and PDRs that depend on them have no FAR.
fn check_mars<const N: usize>(mars: [(&Vec<ShortBytes>, u16); N]) -> Result<(), Rejection> {
    match mars.into_iter().find(|(mars, _)| !mars.is_empty()) {
        Some((_, ie)) => Err(Rejection::unsupported(ie)),
        None => Ok(()),
    }
}

/// The PDI has conditions on frames, but the session carries IP packets.
fn contradiction() -> Rejection {
    Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::ETHERNET_PDU_SESSION_INFORMATION)
}

/// Changes the rules of a session, a copy of those `before`: first removals, then new and changed rules, then queries.
/// `reading` returns the counters of a URR in the packet path.
pub(super) fn modify(
    (rules, before): (&mut Rules, &Rules),
    request: &SessionModificationRequest,
    tunnels: &mut Allocation<'_>,
    reading: &dyn Fn(u32) -> Reading,
    now: Now,
) -> Result<Effect, Rejection> {
    check_mars([
        (&request.create_mars, ie::CREATE_MAR),
        (&request.update_mars, ie::UPDATE_MAR),
        (&request.remove_mars, ie::REMOVE_MAR),
    ])?;
    let mut effect = Effect::default();
    let ethernet = rules.ethernet;
    remove(rules, request, &mut effect, reading, now)?;
    if let Some(bar) = &request.create_bar {
        rules.create_bar(bar)?;
    }
    if let Some(bar) = &request.update_bar {
        rules.update_bar(bar)?;
    }
    for far in &request.create_fars {
        rules.create_far(far)?;
    }
    for far in &request.update_fars {
        let old = rules.update_far(far)?;
        if let Some(tunnel) = old.and_then(|old| tunnels.networks.tunnel_of(&old)) {
            let worker = end_markers::sender(before, far.far_id.0, tunnels.writer.workers());
            effect.end_markers.push(EndMarker { tunnel, worker });
        }
    }
    for qer in &request.create_qers {
        rules.create_qer(qer)?;
    }
    for qer in &request.update_qers {
        rules.update_qer(qer)?;
    }
    for urr in &request.create_urrs {
        rules.create_urr(urr, reading(urr.urr_id.0), now)?;
    }
    for urr in &request.update_urrs {
        rules.update_urr(urr, reading(urr.urr_id.0), now)?;
    }
    hear(&mut tunnels.networks, &request.create_traffic_endpoints, &request.create_pdrs);
    for endpoint in &request.create_traffic_endpoints {
        let source = source_of(endpoint.id, &request.create_pdrs);
        let chosen = rules.create_endpoint(endpoint, source, tunnels)?;
        effect.add_endpoint(endpoint.id, chosen, tunnels);
    }
    for endpoint in &request.update_traffic_endpoints {
        let source = rules.source_of_endpoint(endpoint.id.0);
        let source = source.unwrap_or_else(|| source_of(endpoint.id, &request.create_pdrs));
        let chosen = rules.update_endpoint(endpoint, source, tunnels)?;
        effect.add_endpoint(endpoint.id, chosen, tunnels);
    }
    for pdr in &request.create_pdrs {
        rules.create_pdr(pdr.clone(), tunnels)?;
        effect.add_pdr(rules, pdr.pdr_id, pdr.pdi.f_teid.as_ref(), tunnels);
    }
    for pdr in &request.update_pdrs {
        rules.update_pdr(pdr, tunnels)?;
        let asked = pdr.pdi.as_ref().and_then(|pdi| pdi.f_teid.as_ref());
        effect.add_pdr(rules, pdr.pdr_id, asked, tunnels);
    }
    if rules.ethernet != ethernet {
        return Err(contradiction());
    }
    query(rules, request, &mut effect, reading, now)?;
    Ok(effect)
}

/// Removes rules; every removed URR makes its last report.
fn remove(
    rules: &mut Rules,
    request: &SessionModificationRequest,
    effect: &mut Effect,
    reading: &dyn Fn(u32) -> Reading,
    now: Now,
) -> Result<(), Rejection> {
    // One pass over the rules for all that are removed: there can be 65,536 rules and thousands of removals.
    rules.remove_pdrs(&ids(&request.remove_pdrs, |pdr| pdr.pdr_id.0))?;
    rules.remove_fars(&ids(&request.remove_fars, |far| far.far_id.0))?;
    rules.remove_qers(&ids(&request.remove_qers, |qer| qer.qer_id.0))?;
    if let Some(bar) = &request.remove_bar {
        rules.remove_bar(bar.bar_id.0)?;
    }
    for endpoint in &request.remove_traffic_endpoints {
        rules.remove_endpoint(endpoint.id.0)?;
    }
    let urrs = ids(&request.remove_urrs, |urr| urr.urr_id.0);
    let removed = rules.remove_urrs(&urrs)?;
    for (id, mut rule) in urrs.into_iter().zip(removed) {
        let reading = reading(id);
        rule.observe(reading, now);
        effect.reports.extend(rule.report(id, UsageReportTrigger::TERMR, reading, now, None));
    }
    Ok(())
}

/// The identifiers of rules to remove.
fn ids<R, K>(removals: &[R], id: impl Fn(&R) -> K) -> Vec<K> {
    removals.iter().map(id).collect()
}

/// Makes the usage reports that the request asks for (§5.2.2.3.1).
fn query(
    rules: &mut Rules,
    request: &SessionModificationRequest,
    effect: &mut Effect,
    reading: &dyn Fn(u32) -> Reading,
    now: Now,
) -> Result<(), Rejection> {
    for query in &request.query_urrs {
        rules.known_urr(query.urr_id.0)?;
    }
    let all = request.flags.is_some_and(|flags| flags.contains(SmReqFlags::QAURR));
    if !all && request.query_urrs.is_empty() {
        return Ok(());
    }
    let queried: HashSet<u32> = request.query_urrs.iter().map(|query| query.urr_id.0).collect();
    let reference = request.query_urr_reference;
    for (id, urr) in rules.urrs.iter_mut() {
        if all || queried.contains(&id) {
            let reading = reading(id);
            urr.observe(reading, now);
            effect.reports.extend(urr.report(id, UsageReportTrigger::IMMER, reading, now, reference));
        }
    }
    Ok(())
}
