//! Rules that packets on old ways need.
//!
//! When users go elsewhere, their packets may still be on the way through the anchor that they leave. The rules that give these the user's
//! tunnel and address stay until such packets have arrived. They touch nothing else: they are for packets that this anchor sends.

use std::collections::VecDeque;

use net::time::{self, Duration, Instant};

use super::rules::{Placed, Stage};
use crate::rule::{Kind, Rule};

/// Whether a rule is for packets that the anchor sends, or leads these to such rules. All others turn packets towards the anchor.
pub(super) fn is_needed_after(placed: &Placed) -> bool {
    matches!(placed.stage, Stage::Ground | Stage::Entry) || placed.rule.kind == Kind::SgiUp
}

/// Rules that are to go, in the order in which they do.
#[derive(Debug)]
pub(super) struct OldWays {
    /// How long packets may take on an old way.
    longest: Duration,
    left: VecDeque<(Instant, Vec<Placed>)>,
}

impl OldWays {
    pub(super) fn new(longest: Duration) -> OldWays {
        OldWays { longest, left: VecDeque::new() }
    }

    /// From now on no packet takes these ways.
    pub(super) fn leave(&mut self, rules: Vec<Placed>) {
        if !rules.is_empty() {
            self.left.push_back((time::now() + self.longest, rules));
        }
    }

    /// The rules that a switch still has.
    pub(super) fn of(&self, datapath_id: u64) -> impl Iterator<Item = &Rule> {
        let all = self.left.iter().flat_map(|(_, rules)| rules);
        all.filter(move |placed| placed.datapath_id == datapath_id).map(|placed| &placed.rule)
    }

    /// Waits until the time of the first rules is over. Cancel-safe.
    pub(super) async fn are_over(&self) {
        match self.left.front() {
            Some((at, _)) => time::sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }

    /// The rules whose time is over.
    pub(super) fn take_over(&mut self) -> Vec<Placed> {
        let now = time::now();
        let mut all = Vec::new();
        while let Some((_, rules)) = self.left.pop_front_if(|(at, _)| *at <= now) {
            all.extend(rules);
        }
        all
    }
}
