//! The rules of one PFCP session as the CP function has set them (TS 29.244 §5.2), and changes of them.
//!
//! A request is applied to a copy of the rules. Only if every part of the request is valid, the copy replaces
//! the original ([`super::session`]). So a request takes effect as a whole or not at all.
//!
//! One file per kind: [`pdr`] with traffic endpoints, [`far`], [`qer`] with BARs, [`urr`]. Features that are
//! not advertised (§8.2.25) are refused, never ignored: a CP function that uses them relies on them.

pub mod far;
pub mod pdr;
pub mod qer;
pub mod table;
pub mod urr;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::HashSet;
use pfcp::{
    Cause, DestinationInterface, EthernetPacketFilter, FTeid, FailedRuleId, SdfFilter, ShortBytes,
    SourceInterface, ie,
};

pub use far::{Duplicate, FarRule, Redirect};
pub use pdr::{Endpoint, LocalTunnel, PdrRule, PdrTerms, UeMatch};
pub use qer::{BarRule, QerRule};
pub use table::Table;
pub use urr::{Limits, UrrRule};

use super::networks::{Networks, network_named};
use crate::interfaces::Interfaces;
use crate::plan::{Direction, OuterHeader, PlanError};

/// Most rules of one kind in a session: as many as PDRs have identifiers. Bounds the memory and time that a CP
/// function can use.
pub const MAX_RULES: usize = 65_536;
/// Most filters or routes of one PDI.
pub const MAX_FILTERS: usize = 1024;

/// Refusal of a session request: cause, offending IE and failed rule for the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    /// Cause.
    pub cause: Cause,
    /// Offending IE.
    pub offending_ie: Option<u16>,
    /// Failed rule ID.
    pub failed_rule: Option<FailedRuleId>,
}

impl Rejection {
    /// A cause alone.
    pub fn cause(cause: Cause) -> Rejection {
        Rejection { cause, offending_ie: None, failed_rule: None }
    }

    /// A cause with the offending IE.
    pub fn ie(cause: Cause, ie: u16) -> Rejection {
        Rejection { cause, offending_ie: Some(ie), failed_rule: None }
    }

    /// A rule that cannot be created or changed.
    pub fn rule(rule: FailedRuleId) -> Rejection {
        Rejection { cause: Cause::RULE_FAILURE, offending_ie: None, failed_rule: Some(rule) }
    }

    /// An IE of a feature that is not supported.
    pub fn unsupported(ie: u16) -> Rejection {
        Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie)
    }

    /// A rule for which there is no room.
    fn full(rule: FailedRuleId) -> Rejection {
        Rejection { cause: Cause::NO_RESOURCES, ..Rejection::rule(rule) }
    }
}

impl From<PlanError> for Rejection {
    fn from(error: PlanError) -> Rejection {
        match error {
            PlanError::TooMany(_) | PlanError::Full(_) => Rejection::cause(Cause::NO_RESOURCES),
            PlanError::Invalid(what) => {
                tracing::error!(what, "the rules of a session were compiled to nonsense");
                Rejection::cause(Cause::SYSTEM_FAILURE)
            }
        }
    }
}

/// All rules of a session.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Whether the session carries Ethernet frames.
    pub ethernet: bool,
    /// PDRs by id.
    pub pdrs: Table<u16, PdrRule>,
    /// FARs by id, shared with the copy to which a request is applied, and with sessions that have equal ones.
    pub fars: Table<u32, Arc<FarRule>>,
    /// QERs by id.
    pub qers: Table<u32, QerRule>,
    /// URRs by id.
    pub urrs: Table<u32, UrrRule>,
    /// BARs by id; in practice one.
    pub bars: Table<u8, BarRule>,
    /// Traffic endpoints by id.
    pub endpoints: Table<u8, Endpoint>,
    /// SDF filters with an identifier, to which later IEs may refer.
    pub filters: BTreeMap<u32, SdfFilter>,
    /// Ethernet filters with an identifier, and the direction for which each is written.
    pub ethernet_filters: BTreeMap<u32, (Direction, EthernetPacketFilter)>,
}

/// Resolves local F-TEIDs (allocates a TEID where CHOOSE is set, and checks an assigned one) and names of data
/// networks.
pub trait TunnelAllocator {
    /// The tunnel with this F-TEID, of packets from a source interface in a network instance.
    fn resolve(
        &mut self,
        f_teid: &FTeid,
        source: SourceInterface,
        instance: Option<&ShortBytes>,
    ) -> Result<LocalTunnel, Rejection>;
    /// The interface of the data network that a network instance names; `None` for other names, such as that of
    /// N3.
    fn network(&self, instance: &ShortBytes) -> Option<u16>;
}

/// Refuses a rule that exists already or exceeds [`MAX_RULES`].
fn check_new<K: Ord + Copy, V>(table: &Table<K, V>, key: K, id: FailedRuleId) -> Result<(), Rejection> {
    if table.contains(key) {
        Err(Rejection::rule(id))
    } else if table.len() >= MAX_RULES {
        Err(Rejection::full(id))
    } else {
        Ok(())
    }
}

impl Rules {
    /// Checks that every rule, endpoint and filter that is referred to exists.
    pub fn check(&self) -> Result<(), Rejection> {
        for (id, pdr) in self.pdrs.iter() {
            let complete = pdr.far_id.is_none_or(|id| self.fars.contains(id))
                && pdr.qer_ids.iter().all(|id| self.qers.contains(*id))
                && pdr.urr_ids.iter().all(|id| self.urrs.contains(*id))
                && pdr.endpoint.is_none_or(|id| self.endpoints.contains(id));
            if !complete {
                return Err(Rejection::rule(FailedRuleId::Pdr(id)));
            }
            self.check_place(id, pdr)?;
        }
        for (id, far) in self.fars.iter() {
            if far.bar_id.is_some_and(|bar| !self.bars.contains(bar)) {
                return Err(Rejection::rule(FailedRuleId::Far(id)));
            }
        }
        for (id, urr) in self.urrs.iter() {
            if urr.quota_far.is_some_and(|far| !self.fars.contains(far))
                || urr.linked.iter().any(|linked| !self.urrs.contains(*linked))
            {
                return Err(Rejection::rule(FailedRuleId::Urr(id)));
            }
        }
        Ok(())
    }

    /// Checks that there are interfaces for the network instances of FARs, and that packets can be sent from there to
    /// the far ends of all tunnels. Returns the tunnel of each FAR, in their order.
    pub fn check_destinations(&self, interfaces: &Interfaces) -> Result<Vec<Option<OuterHeader>>, Rejection> {
        let networks = Networks::of(self, interfaces);
        let mut tunnels = Vec::with_capacity(self.fars.len());
        for (id, far) in self.fars.iter() {
            let failed = |rejection| Rejection { failed_rule: Some(FailedRuleId::Far(id)), ..rejection };
            let instance = far.network_instance.as_ref();
            let leads_to_network =
                matches!(far.destination, Some(DestinationInterface::Core | DestinationInterface::SgiLan));
            if leads_to_network
                && far.outer_header.is_none()
                && instance.is_some_and(|instance| network_named(instance, interfaces).is_none())
            {
                return Err(failed(unknown_instance()));
            }
            let destination = far.destination.unwrap_or(DestinationInterface::Access);
            let tunnel = networks.tunnel_checked(destination, far.outer_header, instance);
            tunnels.push(tunnel.map_err(failed)?);
            for copy in &far.copies {
                networks.tunnel_checked(copy.destination, copy.outer_header, None).map_err(failed)?;
            }
        }
        Ok(tunnels)
    }

    /// Removes PDRs.
    pub fn remove_pdrs(&mut self, ids: &[u16]) -> Result<(), Rejection> {
        self.pdrs.remove_all(ids).map_err(|id| Rejection::rule(FailedRuleId::Pdr(id)))?;
        Ok(())
    }

    /// Removes FARs, and the references of PDRs and URRs to them (§6.3.3.3). These PDRs drop packets until they
    /// have another FAR.
    pub fn remove_fars(&mut self, ids: &[u32]) -> Result<(), Rejection> {
        self.fars.remove_all(ids).map_err(|id| Rejection::rule(FailedRuleId::Far(id)))?;
        let Some(removed) = set(ids) else { return Ok(()) };
        self.change_pdrs(|pdr| pdr.far_id.is_some_and(|far| removed.contains(&far)), |pdr| pdr.far_id = None);
        for urr in self.urrs.values_mut() {
            urr.quota_far = urr.quota_far.filter(|far| !removed.contains(far));
        }
        Ok(())
    }

    /// Removes QERs, and the references of PDRs to them.
    pub fn remove_qers(&mut self, ids: &[u32]) -> Result<(), Rejection> {
        self.qers.remove_all(ids).map_err(|id| Rejection::rule(FailedRuleId::Qer(id)))?;
        let Some(removed) = set(ids) else { return Ok(()) };
        self.change_pdrs(
            |pdr| pdr.qer_ids.iter().any(|qer| removed.contains(qer)),
            |pdr| pdr.qer_ids.retain(|qer| !removed.contains(qer)),
        );
        Ok(())
    }

    /// Removes URRs, and the references of PDRs and other URRs to them. Returns them in the order of `ids`.
    pub fn remove_urrs(&mut self, ids: &[u32]) -> Result<Vec<UrrRule>, Rejection> {
        let rules = self.urrs.remove_all(ids).map_err(|id| Rejection::rule(FailedRuleId::Urr(id)))?;
        let Some(removed) = set(ids) else { return Ok(rules) };
        self.change_pdrs(
            |pdr| pdr.urr_ids.iter().any(|urr| removed.contains(urr)),
            |pdr| pdr.urr_ids.retain(|urr| !removed.contains(urr)),
        );
        for urr in self.urrs.values_mut() {
            urr.linked.retain(|linked| !removed.contains(linked));
        }
        Ok(rules)
    }

    /// Removes a BAR, and the references of FARs to it.
    pub fn remove_bar(&mut self, id: u8) -> Result<(), Rejection> {
        self.bars.remove(id).ok_or(Rejection::rule(FailedRuleId::Bar(id)))?;
        for far in self.fars.values_mut().filter(|far| far.bar_id == Some(id)) {
            Arc::make_mut(far).bar_id = None;
        }
        Ok(())
    }

    fn change_pdrs(&mut self, which: impl Fn(&PdrRule) -> bool, change: impl Fn(&mut PdrTerms)) {
        for pdr in self.pdrs.values_mut().filter(|pdr| which(pdr)) {
            change(pdr.terms_mut());
        }
    }

    /// The local TEIDs of all PDRs, each once, in the order of the first PDR that has it. The order must not
    /// depend on the values, as these are random and compiled sessions are compared.
    pub fn teids(&self) -> Vec<u32> {
        let mut teids: Vec<(u32, usize)> = self.all_teids().zip(0..).collect();
        teids.sort_unstable();
        teids.dedup_by_key(|(teid, _)| *teid);
        teids.sort_unstable_by_key(|(_, at)| *at);
        teids.into_iter().map(|(teid, _)| teid).collect()
    }

    /// The local TEIDs of all PDRs and traffic endpoints, each once, in ascending order.
    pub fn sorted_teids(&self) -> Vec<u32> {
        let mut teids: Vec<u32> = self.all_teids().collect();
        teids.sort_unstable();
        teids.dedup();
        teids
    }

    fn all_teids(&self) -> impl Iterator<Item = u32> {
        let of_pdrs = self.pdrs.values().filter_map(|pdr| self.teid_of(pdr));
        // A traffic endpoint keeps its TEID even if no PDR uses it.
        of_pdrs.chain(self.endpoints.values().filter_map(|endpoint| Some(endpoint.tunnel?.teid)))
    }

    /// The UE addresses by which packets without tunnel find the session, each once.
    pub fn native_addresses(&self) -> Vec<IpAddr> {
        let native = self.pdrs.values().filter(|pdr| self.teid_of(pdr).is_none());
        let mut addresses: Vec<IpAddr> = native.flat_map(|pdr| self.ue_of(pdr).addresses()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Checks that a queried URR exists; otherwise returns the failed rule.
    pub fn known_urr(&self, id: u32) -> Result<(), Rejection> {
        if self.urrs.contains(id) { Ok(()) } else { Err(Rejection::rule(FailedRuleId::Urr(id))) }
    }
}

/// The identifiers as a set; `None` for none, so that no rule needs to be looked at.
fn set(ids: &[u32]) -> Option<HashSet<u32>> {
    (!ids.is_empty()).then(|| ids.iter().copied().collect())
}

/// A conditional IE is missing.
fn missing(ie: u16) -> Rejection {
    Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie)
}

/// No interface has the network instance that a rule names.
pub(super) fn unknown_instance() -> Rejection {
    Rejection::ie(Cause::RULE_FAILURE, ie::NETWORK_INSTANCE)
}

/// An IE has an impossible value.
fn incorrect(ie: u16) -> Rejection {
    Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie)
}

/// Refuses names of predefined rules and activation times of rules, which are not supported.
fn check_predefined(names: &[ShortBytes], times: [Option<pfcp::NtpSeconds>; 2]) -> Result<(), Rejection> {
    if !names.is_empty() {
        return Err(Rejection::cause(Cause::UNKNOWN_PREDEFINED_RULE));
    }
    match times {
        [Some(_), _] => Err(Rejection::unsupported(ie::ACTIVATION_TIME)),
        [_, Some(_)] => Err(Rejection::unsupported(ie::DEACTIVATION_TIME)),
        _ => Ok(()),
    }
}
