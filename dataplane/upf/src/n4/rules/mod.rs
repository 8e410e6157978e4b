//! The rules of one PFCP session as the CP function has set them (TS 29.244 §5.2), and their changes.
//!
//! A request is applied to a copy of the rules; only when every part of it is valid does the copy replace
//! the original ([`super::session`]). So a request takes effect as a whole or not at all.
//!
//! One file per kind: [`pdr`] with traffic endpoints, [`far`], [`qer`] with BARs, [`urr`]. Features that are not
//! advertised (§8.2.25) are refused, never ignored: a CP function that uses them anyway counts on them.

pub mod far;
pub mod pdr;
pub mod qer;
pub mod table;
pub mod urr;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use pfcp::{Cause, EthernetPacketFilter, FTeid, FailedRuleId, SdfFilter, ie};

pub use far::{Duplicate, FarRule, Redirect};
pub use pdr::{Endpoint, PdrRule, UeMatch};
pub use qer::{BarRule, QerRule};
pub use table::Table;
pub use urr::{Limits, UrrRule};

use crate::plan::{Direction, PlanError};

/// Most rules of one kind in a session: bounds what a CP function can make us hold and work through.
pub const MAX_RULES: usize = 1024;

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

    /// An IE that stands for a feature that is not offered.
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
    /// PDRs by id; shared with the copy that a request is worked out on.
    pub pdrs: Table<u16, Arc<PdrRule>>,
    /// FARs by id.
    pub fars: Table<u32, Arc<FarRule>>,
    /// QERs by id.
    pub qers: Table<u32, QerRule>,
    /// URRs by id.
    pub urrs: Table<u32, UrrRule>,
    /// BARs by id; one in practice.
    pub bars: Table<u8, BarRule>,
    /// Traffic endpoints by id.
    pub endpoints: Table<u8, Endpoint>,
    /// SDF filters that have an identifier, to be referred to by it.
    pub filters: BTreeMap<u32, SdfFilter>,
    /// Ethernet filters that have one, with the direction they are written for.
    pub ethernet_filters: BTreeMap<u32, (Direction, EthernetPacketFilter)>,
}

/// Resolves local F-TEIDs: allocates where CHOOSE is set, checks where one is assigned.
pub trait TunnelAllocator {
    /// The TEID for this F-TEID.
    fn resolve(&mut self, f_teid: &FTeid) -> Result<u32, Rejection>;
}

/// Refuses a rule that exists already, or is one too many.
fn check_new<K: Ord + Copy, V>(table: &Table<K, V>, key: K, id: FailedRuleId) -> Result<(), Rejection> {
    match () {
        () if table.contains(key) => Err(Rejection::rule(id)),
        () if table.len() >= MAX_RULES => Err(Rejection::full(id)),
        () => Ok(()),
    }
}

impl Rules {
    /// Checks that everything that is referred to exists.
    pub fn check(&self) -> Result<(), Rejection> {
        for (id, pdr) in self.pdrs.iter() {
            let complete = self.fars.contains(pdr.far_id)
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

    /// The local TEIDs of all PDRs, each once.
    pub fn teids(&self) -> Vec<u32> {
        let mut teids: Vec<u32> = self.pdrs.values().filter_map(|pdr| self.teid_of(pdr)).collect();
        // A traffic endpoint keeps its TEID while no PDR uses it.
        teids.extend(self.endpoints.values().filter_map(|endpoint| endpoint.teid));
        teids.sort_unstable();
        teids.dedup();
        teids
    }

    /// Whether packets of any PDR arrive in this tunnel, or a traffic endpoint has it.
    pub fn has_teid(&self, teid: u32) -> bool {
        self.pdrs.values().any(|pdr| self.teid_of(pdr) == Some(teid))
            || self.endpoints.values().any(|endpoint| endpoint.teid == Some(teid))
    }

    /// The UE addresses by which packets without tunnel find the session, each once.
    pub fn native_addresses(&self) -> Vec<IpAddr> {
        let native = self.pdrs.values().filter(|pdr| self.teid_of(pdr).is_none());
        let mut addresses: Vec<IpAddr> = native.flat_map(|pdr| self.ue_of(pdr).addresses()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Whether a PDR exists, for a query; otherwise the rule at fault.
    pub fn known_urr(&self, id: u32) -> Result<(), Rejection> {
        if self.urrs.contains(id) { Ok(()) } else { Err(Rejection::rule(FailedRuleId::Urr(id))) }
    }
}

/// What an IE that is conditional in a create is missing from.
fn missing(ie: u16) -> Rejection {
    Rejection::ie(Cause::CONDITIONAL_IE_MISSING, ie)
}

/// An IE that says something impossible.
fn incorrect(ie: u16) -> Rejection {
    Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie)
}

/// Refuses names of predefined rules and timers of deferred rules, which are not offered.
fn check_predefined(
    names: &[pfcp::ShortBytes],
    times: [Option<pfcp::NtpSeconds>; 2],
) -> Result<(), Rejection> {
    if !names.is_empty() {
        return Err(Rejection::cause(Cause::UNKNOWN_PREDEFINED_RULE));
    }
    match times {
        [Some(_), _] => Err(Rejection::unsupported(ie::ACTIVATION_TIME)),
        [_, Some(_)] => Err(Rejection::unsupported(ie::DEACTIVATION_TIME)),
        _ => Ok(()),
    }
}
