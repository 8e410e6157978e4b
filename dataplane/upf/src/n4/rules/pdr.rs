//! Packet detection rules (TS 29.244 §5.2.1) and traffic endpoints (§5.2.1.2).
//!
//! The outer header of a packet that arrives in a tunnel is always removed here; a PDR's outer header removal
//! is only checked to name a kind that exists.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use pfcp::{
    Cause, CreatePdr, CreateTrafficEndpoint, EthernetPacketFilter, FTeid, FailedRuleId, OuterHeaderRemoval,
    Pdi, SdfFilter, ShortBytes, SourceInterface, UeIpAddress, UpdatePdr, UpdateTrafficEndpoint, ie,
};

use super::{
    FarRule, MAX_FILTERS, MAX_RULES, Rejection, Rules, TunnelAllocator, check_new, check_predefined,
    incorrect, missing, unknown_instance,
};
use crate::plan::{Direction, OuterHeader};
use crate::routes::Network;

/// A packet detection rule.
#[derive(Debug, Clone)]
pub struct PdrRule {
    terms: Arc<PdrTerms>,
    /// Tunnel in which packets arrive; `None` for packets without tunnel.
    pub tunnel: Option<LocalTunnel>,
    /// UE address, and routes behind the UE.
    pub ue: UeMatch,
}

/// The part of a PDR in which sessions of one policy do not differ. They share it ([`PdrRule::share_terms`]), as it is most of
/// the memory of their rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PdrTerms {
    /// Precedence.
    pub precedence: u32,
    /// Source interface.
    pub source: SourceInterface,
    /// Traffic endpoint that has TEID, UE address and QFIs in place of this rule.
    pub endpoint: Option<u8>,
    /// Interface of the data network from which packets without tunnel come, if the PDI names its network instance.
    pub network: Option<u16>,
    /// QoS flows.
    pub qfis: Vec<u8>,
    /// SDF filters; references to earlier filters are resolved.
    pub sdf_filters: Vec<SdfFilter>,
    /// Ethernet filters, with references resolved, written for the direction of this rule.
    pub ethernet_filters: Vec<EthernetPacketFilter>,
    /// FAR; `None` after the FAR was removed.
    pub far_id: Option<u32>,
    /// URRs.
    pub urr_ids: Vec<u32>,
    /// QERs.
    pub qer_ids: Vec<u32>,
    /// Outer header removal, if present.
    removal: Option<u8>,
}

/// The local end of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTunnel {
    /// TEID, allocated or assigned.
    pub teid: u32,
    /// Number of the interface.
    pub interface: u8,
}

impl std::ops::Deref for PdrRule {
    type Target = PdrTerms;

    fn deref(&self) -> &PdrTerms {
        &self.terms
    }
}

impl PdrRule {
    /// The terms, to be changed for this rule alone.
    pub(super) fn terms_mut(&mut self) -> &mut PdrTerms {
        Arc::make_mut(&mut self.terms)
    }

    /// Whether another rule has equal terms.
    pub(in crate::n4) fn has_terms_of(&self, other: &PdrRule) -> bool {
        Arc::ptr_eq(&self.terms, &other.terms) || self.terms == other.terms
    }

    /// Takes the terms of another rule, which are equal, in place of its own.
    pub(in crate::n4) fn share_terms(&mut self, other: &PdrRule) {
        self.terms = Arc::clone(&other.terms);
    }
}

impl PdrTerms {
    /// Uplink for packets from the access side, downlink for all others.
    pub fn direction(&self) -> Direction {
        match self.source {
            SourceInterface::Access => Direction::Uplink,
            _ => Direction::Downlink,
        }
    }
}

/// The UE's addresses in a PDI.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UeMatch {
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 prefix with its length.
    pub v6: Option<(Ipv6Addr, u8)>,
    /// Framed routes (§5.16): address and length of the prefix.
    pub framed: Vec<(IpAddr, u8)>,
}

impl UeMatch {
    fn new(ue: Option<&UeIpAddress>) -> Result<UeMatch, Rejection> {
        let Some(ue) = ue else { return Ok(UeMatch::default()) };
        if ue.choose_ipv4 || ue.choose_ipv6 {
            return Err(Rejection::unsupported(ie::UE_IP_ADDRESS));
        }
        let delegated = 64 - ue.ipv6_delegation_bits.unwrap_or(0).min(63);
        let length = ue.ipv6_prefix_length.unwrap_or(delegated);
        // The octets behind the prefix are the UE's interface identifier; its packets need not have it.
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        let v6 = ue.ipv6.map(|address| (Ipv6Addr::from(u128::from(address) & mask), length));
        Ok(UeMatch { v4: ue.ipv4, v6, framed: Vec::new() })
    }

    /// The addresses by which packets without tunnel find the session.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + Clone + use<> {
        [self.v4.map(IpAddr::V4), self.v6.map(|(prefix, _)| IpAddr::V6(prefix))].into_iter().flatten()
    }

    /// Whether no address is given.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }
}

/// A traffic endpoint: the fields that several PDIs share.
#[derive(Debug, Clone, Default)]
pub struct Endpoint {
    /// Tunnel.
    pub tunnel: Option<LocalTunnel>,
    /// Interface of the data network, as in [`PdrTerms::network`].
    pub network: Option<u16>,
    /// UE address.
    pub ue: UeMatch,
    /// QoS flows.
    pub qfis: Vec<u8>,
}

/// Routes behind a UE, as RADIUS attribute `Framed-Route`, of which only the network is used (§8.2.109,
/// §8.2.111).
fn framed_routes(pdi: &Pdi) -> Result<Vec<(IpAddr, u8)>, Rejection> {
    let parse = |text: &ShortBytes, ie: u16, v4: bool| {
        let network = text.as_str().and_then(|text| Network::parse(text).ok());
        network
            .filter(|network| network.address().is_ipv4() == v4)
            .map(|network| (network.address(), network.length()))
            .ok_or(incorrect(ie))
    };
    if pdi.framed_routes.len() + pdi.framed_ipv6_routes.len() > MAX_FILTERS {
        return Err(Rejection::ie(Cause::NO_RESOURCES, ie::FRAMED_ROUTE));
    }
    let v4 = pdi.framed_routes.iter().map(|text| parse(text, ie::FRAMED_ROUTE, true));
    let v6 = pdi.framed_ipv6_routes.iter().map(|text| parse(text, ie::FRAMED_IPV6_ROUTE, false));
    v4.chain(v6).collect()
}

impl Rules {
    /// The FAR of a PDR.
    pub fn far_of(&self, pdr: &PdrRule) -> Option<&FarRule> {
        self.fars.get(pdr.far_id?).map(|far| &**far)
    }

    /// The tunnel into which the FAR of a PDR sends; `tunnels` are those of the FARs, in their order.
    pub(in crate::n4) fn tunnel_to(
        &self,
        pdr: &PdrRule,
        tunnels: &[Option<OuterHeader>],
    ) -> Option<OuterHeader> {
        *tunnels.get(self.fars.position(pdr.far_id?)?)?
    }

    /// The tunnel of a PDR's packets: its own, or that of its traffic endpoint.
    pub fn tunnel_of(&self, pdr: &PdrRule) -> Option<LocalTunnel> {
        match pdr.endpoint {
            Some(id) => self.endpoints.get(id)?.tunnel,
            None => pdr.tunnel,
        }
    }

    /// The TEID of [`Rules::tunnel_of`].
    pub fn teid_of(&self, pdr: &PdrRule) -> Option<u32> {
        self.tunnel_of(pdr).map(|tunnel| tunnel.teid)
    }

    /// The interface of the data network of a PDR's packets without tunnel: its own, or that of its traffic endpoint.
    pub fn network_of(&self, pdr: &PdrRule) -> Option<u16> {
        pdr.endpoint
            .and_then(|id| self.endpoints.get(id))
            .and_then(|endpoint| endpoint.network)
            .or(pdr.network)
    }

    /// The UE address of a PDR: its own, or that of its traffic endpoint. Framed routes are always the PDR's
    /// own.
    pub fn ue_of<'a>(&'a self, pdr: &'a PdrRule) -> &'a UeMatch {
        pdr.endpoint.and_then(|id| self.endpoints.get(id)).map_or(&pdr.ue, |endpoint| &endpoint.ue)
    }

    /// The QoS flows of a PDR: its own, or else those of its traffic endpoint.
    pub fn qfis_of<'a>(&'a self, pdr: &'a PdrRule) -> &'a [u8] {
        match pdr.endpoint.and_then(|id| self.endpoints.get(id)) {
            Some(endpoint) if pdr.qfis.is_empty() => &endpoint.qfis,
            _ => &pdr.qfis,
        }
    }

    /// Adds a PDR. Rules to which it refers may be created later in the same request; [`Rules::check`] checks
    /// that.
    pub fn create_pdr(
        &mut self,
        create: CreatePdr,
        tunnels: &mut dyn TunnelAllocator,
    ) -> Result<(), Rejection> {
        let id = create.pdr_id.0;
        check_new(&self.pdrs, id, FailedRuleId::Pdr(id))?;
        check_predefined(
            &create.activate_predefined_rules,
            [create.activation_time, create.deactivation_time],
        )?;
        if create.mar_id.is_some() {
            // A MAR in place of a FAR: ATSSS is not supported.
            let failed_rule = Some(FailedRuleId::Pdr(id));
            return Err(Rejection { failed_rule, ..Rejection::unsupported(ie::MAR_ID) });
        }
        let far_id = create.far_id.ok_or(missing(ie::FAR_ID))?;
        let terms = PdrTerms {
            precedence: create.precedence.0,
            source: create.pdi.source_interface,
            endpoint: None,
            network: None,
            qfis: Vec::new(),
            sdf_filters: Vec::new(),
            ethernet_filters: Vec::new(),
            far_id: Some(far_id.0),
            urr_ids: create.urr_ids.into_iter().map(|id| id.0).collect(),
            qer_ids: create.qer_ids.into_iter().map(|id| id.0).collect(),
            removal: removal(create.outer_header_removal)?,
        };
        let mut rule = PdrRule { terms: Arc::new(terms), tunnel: None, ue: UeMatch::default() };
        self.set_pdi(&mut rule, create.pdi, FailedRuleId::Pdr(id), tunnels)?;
        self.pdrs.insert(id, rule);
        Ok(())
    }

    /// Changes a PDR.
    pub fn update_pdr(
        &mut self,
        update: &UpdatePdr,
        tunnels: &mut dyn TunnelAllocator,
    ) -> Result<(), Rejection> {
        let id = update.pdr_id.0;
        let failed = FailedRuleId::Pdr(id);
        let mut rule = PdrRule::clone(self.pdrs.get(id).ok_or(Rejection::rule(failed))?);
        check_predefined(
            &update.activate_predefined_rules,
            [update.activation_time, update.deactivation_time],
        )?;
        let terms = rule.terms_mut();
        if let Some(precedence) = update.precedence {
            terms.precedence = precedence.0;
        }
        if let Some(far_id) = update.far_id {
            terms.far_id = Some(far_id.0);
        }
        if !update.urr_ids.is_empty() {
            terms.urr_ids = update.urr_ids.iter().map(|id| id.0).collect();
        }
        if !update.qer_ids.is_empty() {
            terms.qer_ids = update.qer_ids.iter().map(|id| id.0).collect();
        }
        if update.outer_header_removal.is_some() {
            terms.removal = removal(update.outer_header_removal)?;
        }
        if let Some(pdi) = &update.pdi {
            self.set_pdi(&mut rule, pdi.clone(), failed, tunnels)?;
        }
        self.pdrs.insert(id, rule);
        Ok(())
    }

    fn set_pdi(
        &mut self,
        rule: &mut PdrRule,
        mut pdi: Pdi,
        failed: FailedRuleId,
        tunnels: &mut dyn TunnelAllocator,
    ) -> Result<(), Rejection> {
        if pdi.application_id.is_some() {
            return Err(Rejection::ie(Cause::UNKNOWN_APPLICATION_ID, ie::APPLICATION_ID));
        }
        if pdi.sdf_filters.len() > MAX_FILTERS || pdi.ethernet_filters.len() > MAX_FILTERS {
            return Err(Rejection::full(failed));
        }
        let terms = rule.terms_mut();
        terms.source = pdi.source_interface;
        let ethernet = pdi.ethernet_pdu_session.is_some() || !pdi.ethernet_filters.is_empty();
        self.ethernet |= ethernet;
        self.set_sdf_filters(terms, std::mem::take(&mut pdi.sdf_filters), failed)?;
        self.set_ethernet_filters(terms, std::mem::take(&mut pdi.ethernet_filters), failed)?;
        terms.qfis = pdi.qfis.iter().map(|qfi| qfi.0).collect();
        let has_tunnel = |id: u8| self.endpoints.get(id).is_some_and(|endpoint| endpoint.tunnel.is_some());
        let tunnel = pdi.f_teid.is_some() || pdi.traffic_endpoint_id.is_some_and(|id| has_tunnel(id.0));
        let of_network = matches!(pdi.source_interface, SourceInterface::Core | SourceInterface::SgiLan);
        let instance = pdi.network_instance.as_ref();
        let unknown = Rejection { failed_rule: Some(failed), ..unknown_instance() };
        terms.network = match instance.filter(|_| of_network && !tunnel) {
            Some(instance) => Some(tunnels.network(instance).ok_or(unknown)?),
            None => None,
        };
        terms.endpoint = pdi.traffic_endpoint_id.map(|id| id.0);
        rule.ue = UeMatch::new(pdi.ue_ip_address.as_ref())?;
        if rule.endpoint.is_some() {
            // The endpoint has these (table 7.5.2.2-2); a second value could only contradict.
            if pdi.f_teid.is_some() {
                return Err(incorrect(ie::F_TEID));
            }
            if pdi.ue_ip_address.is_some() {
                return Err(incorrect(ie::UE_IP_ADDRESS));
            }
            rule.tunnel = None;
        } else {
            rule.tunnel = match &pdi.f_teid {
                // A changed PDI that repeats its F-TEID keeps it.
                Some(f_teid) if instance.is_none() && repeats(f_teid, rule.tunnel) => rule.tunnel,
                Some(f_teid) => {
                    let tunnel = tunnels.resolve(f_teid, pdi.source_interface, instance);
                    Some(tunnel.map_err(|rejection| match rejection == unknown_instance() {
                        true => unknown,
                        false => rejection,
                    })?)
                }
                None => None,
            };
        }
        rule.ue.framed = framed_routes(&pdi)?;
        Ok(())
    }

    fn set_sdf_filters(
        &mut self,
        terms: &mut PdrTerms,
        filters: Vec<SdfFilter>,
        failed: FailedRuleId,
    ) -> Result<(), Rejection> {
        terms.sdf_filters = filters;
        for filter in &mut terms.sdf_filters {
            let Some(id) = filter.filter_id else { continue };
            // A filter with an identifier and nothing else stands for the filter sent before with this
            // identifier (§8.2.5).
            let reference = SdfFilter { filter_id: Some(id), ..SdfFilter::default() };
            if *filter == reference {
                *filter = self.filters.get(&id).ok_or(Rejection::rule(failed))?.clone();
            } else if self.filters.len() < MAX_RULES {
                self.filters.insert(id, filter.clone());
            }
        }
        Ok(())
    }

    /// Like `set_sdf_filters`, for Ethernet filters. The addresses of a bidirectional filter are swapped when a
    /// rule of the other direction refers to it (§8.2.98).
    fn set_ethernet_filters(
        &mut self,
        terms: &mut PdrTerms,
        filters: Vec<EthernetPacketFilter>,
        failed: FailedRuleId,
    ) -> Result<(), Rejection> {
        let direction = terms.direction();
        terms.ethernet_filters = filters;
        for filter in &mut terms.ethernet_filters {
            let Some(id) = filter.filter_id else { continue };
            let reference = EthernetPacketFilter { filter_id: Some(id), ..EthernetPacketFilter::default() };
            if *filter == reference {
                let (written_for, known) = self.ethernet_filters.get(&id.0).ok_or(Rejection::rule(failed))?;
                *filter = known.clone();
                if *written_for != direction {
                    for mac in &mut filter.mac_addresses {
                        std::mem::swap(&mut mac.source, &mut mac.destination);
                        std::mem::swap(&mut mac.upper_source, &mut mac.upper_destination);
                    }
                }
            } else if self.ethernet_filters.len() < MAX_RULES {
                self.ethernet_filters.insert(id.0, (direction, filter.clone()));
            }
        }
        Ok(())
    }

    /// Checks that packets can reach a PDR, and that it removes the outer header with which they arrive.
    pub(super) fn check_place(&self, id: u16, pdr: &PdrRule) -> Result<(), Rejection> {
        let teid = self.teid_of(pdr);
        let failed_rule = Some(FailedRuleId::Pdr(id));
        if self.ethernet && !self.ue_of(pdr).is_empty() {
            // Addresses within frames are not the network's (TS 23.501 §5.6.10.2).
            return Err(Rejection { failed_rule, ..incorrect(ie::UE_IP_ADDRESS) });
        }
        if teid.is_none() {
            if matches!(pdr.source, SourceInterface::Access | SourceInterface::CpFunction) {
                // Packets of N3 and N4-u always arrive in a tunnel.
                return Err(missing(ie::F_TEID));
            }
            // Frames find their session by the learnt MAC address.
            if self.ue_of(pdr).is_empty() && !self.ethernet {
                return Err(missing(ie::UE_IP_ADDRESS));
            }
            if pdr.removal.is_some() {
                return Err(Rejection { failed_rule, ..incorrect(ie::OUTER_HEADER_REMOVAL) });
            }
        }
        Ok(())
    }

    /// The source interface of a traffic endpoint: that of the first PDR that has it.
    pub fn source_of_endpoint(&self, id: u8) -> Option<SourceInterface> {
        self.pdrs.values().find(|pdr| pdr.endpoint == Some(id)).map(|pdr| pdr.source)
    }

    /// Adds a traffic endpoint of a source interface. Returns its tunnel if the UP function chose the TEID.
    pub fn create_endpoint(
        &mut self,
        create: &CreateTrafficEndpoint,
        source: SourceInterface,
        tunnels: &mut dyn TunnelAllocator,
    ) -> Result<Option<LocalTunnel>, Rejection> {
        let id = create.id.0;
        if self.endpoints.contains(id) {
            return Err(incorrect(ie::CREATE_TRAFFIC_ENDPOINT));
        }
        let instance = create.network_instance.as_ref();
        let tunnel = create.f_teid.as_ref().map(|f_teid| tunnels.resolve(f_teid, source, instance));
        let endpoint = Endpoint {
            tunnel: tunnel.transpose()?,
            network: match instance.filter(|_| create.f_teid.is_none()) {
                Some(instance) => Some(tunnels.network(instance).ok_or(unknown_instance())?),
                None => None,
            },
            ue: UeMatch::new(create.ue_ip_address.as_ref())?,
            qfis: create.qfis.iter().map(|qfi| qfi.0).collect(),
        };
        let chosen = endpoint.tunnel.filter(|_| matches!(create.f_teid, Some(FTeid::Choose { .. })));
        self.endpoints.insert(id, endpoint);
        Ok(chosen)
    }

    /// Changes a traffic endpoint of a source interface. Returns its tunnel if the UP function chose the TEID.
    pub fn update_endpoint(
        &mut self,
        update: &UpdateTrafficEndpoint,
        source: SourceInterface,
        tunnels: &mut dyn TunnelAllocator,
    ) -> Result<Option<LocalTunnel>, Rejection> {
        let endpoint = self.endpoints.get_mut(update.id.0).ok_or(incorrect(ie::UPDATE_TRAFFIC_ENDPOINT))?;
        let mut chosen = None;
        let instance = update.network_instance.as_ref();
        match &update.f_teid {
            None => match instance {
                // A tunnel stays on its interface.
                Some(_) if endpoint.tunnel.is_some() => {
                    return Err(Rejection::unsupported(ie::NETWORK_INSTANCE));
                }
                Some(instance) => {
                    endpoint.network = Some(tunnels.network(instance).ok_or(unknown_instance())?)
                }
                None => {}
            },
            Some(f_teid) if instance.is_none() && repeats(f_teid, endpoint.tunnel) => {}
            Some(f_teid) => {
                endpoint.tunnel = Some(tunnels.resolve(f_teid, source, instance)?);
                chosen = endpoint.tunnel.filter(|_| matches!(f_teid, FTeid::Choose { .. }));
            }
        }
        if update.ue_ip_address.is_some() {
            endpoint.ue = UeMatch::new(update.ue_ip_address.as_ref())?;
        }
        if !update.qfis.is_empty() {
            endpoint.qfis = update.qfis.iter().map(|qfi| qfi.0).collect();
        }
        Ok(chosen)
    }

    /// Removes a traffic endpoint, and the PDRs that use it (§5.2.1.2).
    pub fn remove_endpoint(&mut self, id: u8) -> Result<(), Rejection> {
        self.endpoints.remove(id).ok_or(incorrect(ie::REMOVE_TRAFFIC_ENDPOINT))?;
        let users: Vec<u16> =
            self.pdrs.iter().filter(|(_, pdr)| pdr.endpoint == Some(id)).map(|(id, _)| id).collect();
        for pdr in users {
            self.pdrs.remove(pdr);
        }
        Ok(())
    }
}

/// Whether an F-TEID is assigned and that of a tunnel.
fn repeats(f_teid: &FTeid, tunnel: Option<LocalTunnel>) -> bool {
    matches!((f_teid, tunnel), (FTeid::Assigned { teid, .. }, Some(known)) if known.teid == *teid)
}

/// Checks outer header removal: packets arrive here in GTP-U over UDP over IP.
fn removal(removal: Option<OuterHeaderRemoval>) -> Result<Option<u8>, Rejection> {
    match removal.map(|removal| removal.description) {
        Some(
            kind @ (OuterHeaderRemoval::GTPU_UDP_IPV4
            | OuterHeaderRemoval::GTPU_UDP_IPV6
            | OuterHeaderRemoval::GTPU_UDP_IP),
        ) => Ok(Some(kind)),
        None => Ok(None),
        Some(_) => Err(Rejection::unsupported(ie::OUTER_HEADER_REMOVAL)),
    }
}
