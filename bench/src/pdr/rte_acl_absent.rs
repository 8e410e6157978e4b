//! Replaces `rte_acl.rs` where DPDK is not linked (feature `dpdk`): there is no such contender.

use net::time::Duration;

use super::contender::Calls;
use super::lookup::Situation;
use super::{Plan, Session};

/// Has no values.
pub(super) enum RteAcl {}

/// Whether DPDK runs, in words.
pub(super) fn start(_core: usize) -> String {
    "not linked (feature `dpdk`)".to_owned()
}

impl RteAcl {
    pub(super) fn build(_plan: &Plan, _situation: &Situation, _session: &mut Session) -> Option<RteAcl> {
        None
    }

    pub(super) fn sample(&self, _calls: Calls, _round: usize, _at_least: Duration) -> f64 {
        match *self {}
    }
}
