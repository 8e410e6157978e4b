//! The rules of one PFCP session as the CP function has set them (TS 29.244 §5.2), and their changes.
//!
//! A request is applied to a copy of the rules; only when every part of it is valid does the copy replace
//! the original ([`super::session`]). So a request takes effect as a whole or not at all.
//!
//! Outer header removal is not kept: what arrives in a tunnel always leaves it here.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pfcp::{
    ApplyAction, BitRates, Cause, CreateFar, CreatePdr, CreateQer, CreateUrr, DestinationInterface, FTeid,
    FailedRuleId, ForwardingParameters, GateStatus, MeasurementInformation, NtpSeconds, OuterHeaderCreation,
    Pdi, SdfFilter, ShortBytes, SmReqFlags, SourceInterface, UpdateFar, UpdatePdr, UpdateQer, UpdateUrr, ie,
};
use telemetry::worker::Totals;

/// Most rules of one kind in a session: bounds what one request can make us hold.
pub const MAX_RULES: usize = 256;

/// Why a session request is refused: cause, offending IE and rule at fault of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    /// Cause.
    pub cause: Cause,
    /// Offending IE.
    pub offending_ie: Option<u16>,
    /// Rule at fault.
    pub failed_rule: Option<FailedRuleId>,
}

impl Rejection {
    /// A cause alone.
    pub fn cause(cause: Cause) -> Rejection {
        Rejection { cause, offending_ie: None, failed_rule: None }
    }

    /// A cause with the IE that is at fault.
    pub fn ie(cause: Cause, ie: u16) -> Rejection {
        Rejection { cause, offending_ie: Some(ie), failed_rule: None }
    }

    /// A rule that cannot be created or changed.
    pub fn rule(rule: FailedRuleId) -> Rejection {
        Rejection { cause: Cause::RULE_FAILURE, offending_ie: None, failed_rule: Some(rule) }
    }
}

/// A packet detection rule.
#[derive(Debug, Clone)]
pub struct PdrRule {
    /// Precedence.
    pub precedence: u32,
    /// Where packets come from.
    pub source: SourceInterface,
    /// Local TEID, allocated or assigned; none for packets without tunnel.
    pub teid: Option<u32>,
    /// UE address in the PDI.
    pub ue_v4: Option<Ipv4Addr>,
    /// UE prefix in the PDI, with its length.
    pub ue_v6: Option<(Ipv6Addr, u8)>,
    /// SDF filters, with references to earlier ones resolved.
    pub sdf_filters: Vec<SdfFilter>,
    /// QoS flows.
    pub qfis: Vec<u8>,
    /// FAR.
    pub far_id: u32,
    /// URRs.
    pub urr_ids: Vec<u32>,
    /// QERs.
    pub qer_ids: Vec<u32>,
}

/// A forwarding action rule.
#[derive(Debug, Clone)]
pub struct FarRule {
    /// Apply action.
    pub action: ApplyAction,
    /// Destination; there when packets are ever forwarded.
    pub destination: Option<DestinationInterface>,
    /// Tunnel to put packets into.
    pub outer_header: Option<OuterHeaderCreation>,
    /// Data network, by name.
    pub network_instance: Option<ShortBytes>,
}

/// A QoS enforcement rule.
#[derive(Debug, Clone)]
pub struct QerRule {
    /// Gates.
    pub gates: GateStatus,
    /// Maximum bit rates.
    pub mbr: Option<BitRates>,
    /// QFI to mark.
    pub qfi: Option<u8>,
    /// Reflective QoS.
    pub rqi: bool,
    /// Paging policy.
    pub ppi: Option<u8>,
}

/// A usage reporting rule. Its counters are the packet path's.
#[derive(Debug, Clone)]
pub struct UrrRule {
    /// Whether packets are reported too (MNOP).
    pub packets: bool,
    /// What had been counted at the last report.
    pub reported: (Totals, Totals),
    /// Sequence number of the next report.
    pub sequence: u32,
    /// Start of the measurement that the next report covers.
    pub start: NtpSeconds,
}

/// All rules of a session.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// PDRs by id.
    pub pdrs: BTreeMap<u16, PdrRule>,
    /// FARs by id.
    pub fars: BTreeMap<u32, FarRule>,
    /// QERs by id.
    pub qers: BTreeMap<u32, QerRule>,
    /// URRs by id.
    pub urrs: BTreeMap<u32, UrrRule>,
    /// SDF filters that have an identifier, to be referred to by it.
    pub filters: BTreeMap<u32, SdfFilter>,
}

/// Resolves the local F-TEID of a PDI: allocates where CHOOSE is set, checks where it is assigned.
pub trait TunnelAllocator {
    /// The TEID for this F-TEID.
    fn resolve(&mut self, f_teid: &FTeid) -> Result<u32, Rejection>;
}

impl Rules {
    /// Adds a PDR. Its FAR, QERs and URRs may be created later in the same request; [`Rules::check`] looks.
    pub fn create_pdr(
        &mut self,
        create: &CreatePdr,
        tunnels: &mut dyn TunnelAllocator,
    ) -> Result<(), Rejection> {
        let failed = FailedRuleId::Pdr(create.pdr_id.0);
        if self.pdrs.contains_key(&create.pdr_id.0) || self.pdrs.len() >= MAX_RULES {
            return Err(Rejection::rule(failed));
        }
        if !create.activate_predefined_rules.is_empty() {
            return Err(Rejection::cause(Cause::UNKNOWN_PREDEFINED_RULE));
        }
        let far_id = create.far_id.ok_or(Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie::FAR_ID))?;
        let mut rule = PdrRule {
            precedence: create.precedence.0,
            source: SourceInterface::Access,
            teid: None,
            ue_v4: None,
            ue_v6: None,
            sdf_filters: Vec::new(),
            qfis: Vec::new(),
            far_id: far_id.0,
            urr_ids: create.urr_ids.iter().map(|id| id.0).collect(),
            qer_ids: create.qer_ids.iter().map(|id| id.0).collect(),
        };
        self.set_pdi(&mut rule, &create.pdi, failed, tunnels)?;
        self.pdrs.insert(create.pdr_id.0, rule);
        Ok(())
    }

    fn set_pdi(
        &mut self,
        rule: &mut PdrRule,
        pdi: &Pdi,
        failed: FailedRuleId,
        tunnels: &mut dyn TunnelAllocator,
    ) -> Result<(), Rejection> {
        // Features that are not advertised (§8.2.25): using them anyway must not be ignored.
        if pdi.traffic_endpoint_id.is_some() {
            return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::TRAFFIC_ENDPOINT_ID));
        }
        if pdi.application_id.is_some() {
            return Err(Rejection::ie(Cause::UNKNOWN_APPLICATION_ID, ie::APPLICATION_ID));
        }
        if pdi.ethernet_pdu_session.is_some() || !pdi.ethernet_filters.is_empty() {
            return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::ETHERNET_PACKET_FILTER));
        }
        if !pdi.framed_routes.is_empty() || !pdi.framed_ipv6_routes.is_empty() {
            return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::FRAMED_ROUTE));
        }
        rule.source = pdi.source_interface;
        if let Some(ue) = &pdi.ue_ip_address {
            if ue.choose_ipv4 || ue.choose_ipv6 {
                return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::UE_IP_ADDRESS));
            }
            let delegated = 64 - ue.ipv6_delegation_bits.unwrap_or(0).min(63);
            rule.ue_v4 = ue.ipv4;
            rule.ue_v6 = ue.ipv6.map(|prefix| (prefix, ue.ipv6_prefix_length.unwrap_or(delegated)));
        }
        if pdi.sdf_filters.len() > MAX_RULES {
            return Err(Rejection::rule(failed));
        }
        rule.sdf_filters = pdi.sdf_filters.clone();
        for filter in &mut rule.sdf_filters {
            let Some(id) = filter.filter_id else { continue };
            // A filter with an identifier and nothing else stands for the one given before (§8.2.5).
            let reference = SdfFilter { filter_id: Some(id), ..SdfFilter::default() };
            if *filter == reference {
                *filter = self.filters.get(&id).ok_or(Rejection::rule(failed))?.clone();
            } else if self.filters.len() < MAX_RULES {
                self.filters.insert(id, filter.clone());
            }
        }
        rule.qfis = pdi.qfis.iter().map(|qfi| qfi.0).collect();
        rule.teid = match &pdi.f_teid {
            // A changed PDI that repeats the endpoint it has keeps it.
            Some(FTeid::Assigned { teid, .. }) if rule.teid == Some(*teid) => Some(*teid),
            Some(f_teid) => Some(tunnels.resolve(f_teid)?),
            None => None,
        };
        if rule.teid.is_none() && matches!(rule.source, SourceInterface::Access | SourceInterface::CpFunction)
        {
            // N3 and N4-u always arrive in a tunnel.
            return Err(Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie::F_TEID));
        }
        if rule.teid.is_none() && rule.ue_v4.is_none() && rule.ue_v6.is_none() {
            return Err(Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie::UE_IP_ADDRESS));
        }
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
        let mut rule = self.pdrs.get(&id).cloned().ok_or(Rejection::rule(failed))?;
        if !update.activate_predefined_rules.is_empty() {
            return Err(Rejection::cause(Cause::UNKNOWN_PREDEFINED_RULE));
        }
        if let Some(precedence) = update.precedence {
            rule.precedence = precedence.0;
        }
        if let Some(far_id) = update.far_id {
            rule.far_id = far_id.0;
        }
        if !update.urr_ids.is_empty() {
            rule.urr_ids = update.urr_ids.iter().map(|id| id.0).collect();
        }
        if !update.qer_ids.is_empty() {
            rule.qer_ids = update.qer_ids.iter().map(|id| id.0).collect();
        }
        if let Some(pdi) = &update.pdi {
            self.set_pdi(&mut rule, pdi, failed, tunnels)?;
        }
        self.pdrs.insert(id, rule);
        Ok(())
    }

    /// Adds a FAR.
    pub fn create_far(&mut self, create: &CreateFar) -> Result<(), Rejection> {
        let id = create.far_id.0;
        if self.fars.contains_key(&id) || self.fars.len() >= MAX_RULES {
            return Err(Rejection::rule(FailedRuleId::Far(id)));
        }
        let parameters = create.forwarding_parameters.as_deref();
        let rule = FarRule {
            action: create.apply_action,
            destination: parameters.map(|parameters| parameters.destination_interface),
            outer_header: parameters.and_then(|parameters| parameters.outer_header_creation),
            network_instance: parameters.and_then(|parameters| parameters.network_instance.clone()),
        };
        check_parameters(parameters)?;
        check_far(&rule)?;
        self.fars.insert(id, rule);
        Ok(())
    }

    /// Changes a FAR. Returns the tunnel that an End Marker was asked for: the one used until now.
    pub fn update_far(&mut self, update: &UpdateFar) -> Result<Option<OuterHeaderCreation>, Rejection> {
        let id = update.far_id.0;
        let rule = self.fars.get_mut(&id).ok_or(Rejection::rule(FailedRuleId::Far(id)))?;
        let mut end_marker = None;
        if let Some(action) = update.apply_action {
            rule.action = action;
        }
        if let Some(parameters) = update.update_forwarding_parameters.as_deref() {
            if parameters.redirect_information.is_some() || parameters.forwarding_policy.is_some() {
                return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::REDIRECT_INFORMATION));
            }
            if parameters.sm_req_flags.is_some_and(|flags| flags.contains(SmReqFlags::SNDEM)) {
                end_marker = rule.outer_header;
            }
            if let Some(destination) = parameters.destination_interface {
                rule.destination = Some(destination);
            }
            if let Some(header) = parameters.outer_header_creation {
                rule.outer_header = Some(header);
            }
            if let Some(instance) = &parameters.network_instance {
                rule.network_instance = Some(instance.clone());
            }
        }
        check_far(rule)?;
        Ok(end_marker)
    }

    /// Adds a QER.
    pub fn create_qer(&mut self, create: &CreateQer) -> Result<(), Rejection> {
        let id = create.qer_id.0;
        if self.qers.contains_key(&id) || self.qers.len() >= MAX_RULES {
            return Err(Rejection::rule(FailedRuleId::Qer(id)));
        }
        let rule = QerRule {
            gates: create.gate_status,
            mbr: create.mbr,
            qfi: create.qfi.map(|qfi| qfi.0),
            rqi: create.rqi.is_some_and(|rqi| !rqi.is_empty()),
            ppi: create.paging_policy_indicator.map(|ppi| ppi.0),
        };
        self.qers.insert(id, rule);
        Ok(())
    }

    /// Changes a QER.
    pub fn update_qer(&mut self, update: &UpdateQer) -> Result<(), Rejection> {
        let id = update.qer_id.0;
        let rule = self.qers.get_mut(&id).ok_or(Rejection::rule(FailedRuleId::Qer(id)))?;
        if let Some(gates) = update.gate_status {
            rule.gates = gates;
        }
        if update.mbr.is_some() {
            rule.mbr = update.mbr;
        }
        if let Some(qfi) = update.qfi {
            rule.qfi = Some(qfi.0);
        }
        if let Some(rqi) = update.rqi {
            rule.rqi = !rqi.is_empty();
        }
        if let Some(ppi) = update.paging_policy_indicator {
            rule.ppi = Some(ppi.0);
        }
        Ok(())
    }

    /// Adds a URR, counting from now. `counted` is what the packet path has counted under its identifier already.
    pub fn create_urr(
        &mut self,
        create: &CreateUrr,
        counted: (Totals, Totals),
        now: NtpSeconds,
    ) -> Result<(), Rejection> {
        let id = create.urr_id.0;
        if self.urrs.contains_key(&id) || self.urrs.len() >= MAX_RULES {
            return Err(Rejection::rule(FailedRuleId::Urr(id)));
        }
        let rule = UrrRule {
            packets: counts_packets(create.measurement_information),
            reported: counted,
            sequence: 0,
            start: now,
        };
        self.urrs.insert(id, rule);
        Ok(())
    }

    /// Changes a URR.
    pub fn update_urr(&mut self, update: &UpdateUrr) -> Result<(), Rejection> {
        let id = update.urr_id.0;
        let rule = self.urrs.get_mut(&id).ok_or(Rejection::rule(FailedRuleId::Urr(id)))?;
        if update.measurement_information.is_some() {
            rule.packets = counts_packets(update.measurement_information);
        }
        Ok(())
    }

    /// Checks that every PDR refers to rules that exist.
    pub fn check(&self) -> Result<(), Rejection> {
        for (id, pdr) in &self.pdrs {
            let complete = self.fars.contains_key(&pdr.far_id)
                && pdr.qer_ids.iter().all(|id| self.qers.contains_key(id))
                && pdr.urr_ids.iter().all(|id| self.urrs.contains_key(id));
            if !complete {
                return Err(Rejection::rule(FailedRuleId::Pdr(*id)));
            }
        }
        Ok(())
    }

    /// The local TEIDs of all PDRs, each once.
    pub fn teids(&self) -> Vec<u32> {
        let mut teids: Vec<u32> = self.pdrs.values().filter_map(|pdr| pdr.teid).collect();
        teids.sort_unstable();
        teids.dedup();
        teids
    }

    /// The UE addresses by which packets without tunnel find the session, each once.
    pub fn native_addresses(&self) -> Vec<IpAddr> {
        let native = self.pdrs.values().filter(|pdr| pdr.teid.is_none());
        let mut addresses: Vec<IpAddr> = native
            .flat_map(|pdr| [pdr.ue_v4.map(IpAddr::V4), pdr.ue_v6.map(|(prefix, _)| IpAddr::V6(prefix))])
            .flatten()
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

fn counts_packets(information: Option<MeasurementInformation>) -> bool {
    information.is_some_and(|flags| flags.contains(MeasurementInformation::MNOP))
}

fn check_parameters(parameters: Option<&ForwardingParameters>) -> Result<(), Rejection> {
    let Some(parameters) = parameters else { return Ok(()) };
    if parameters.redirect_information.is_some() {
        return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::REDIRECT_INFORMATION));
    }
    if parameters.forwarding_policy.is_some() {
        return Err(Rejection::ie(Cause::INVALID_FORWARDING_POLICY, ie::FORWARDING_POLICY));
    }
    Ok(())
}

/// Checks what a FAR needs for what it says (table 7.5.2.3-1).
fn check_far(rule: &FarRule) -> Result<(), Rejection> {
    if rule.action.contains(ApplyAction::DUPL) {
        return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::APPLY_ACTION));
    }
    let verbs = [ApplyAction::DROP, ApplyAction::FORW, ApplyAction::BUFF];
    if verbs.into_iter().filter(|verb| rule.action.contains(*verb)).count() != 1 {
        return Err(Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::APPLY_ACTION));
    }
    if let Some(header) = &rule.outer_header
        && header.gtpu_endpoint().is_none()
    {
        return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::OUTER_HEADER_CREATION));
    }
    if !rule.action.contains(ApplyAction::FORW) {
        return Ok(());
    }
    match rule.destination {
        None => Err(Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie::FORWARDING_PARAMETERS)),
        Some(DestinationInterface::Access | DestinationInterface::CpFunction) => match rule.outer_header {
            Some(_) => Ok(()),
            None => Err(Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie::OUTER_HEADER_CREATION)),
        },
        Some(DestinationInterface::Core | DestinationInterface::SgiLan) => Ok(()),
        Some(_) => Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::DESTINATION_INTERFACE)),
    }
}
