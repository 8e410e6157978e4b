//! What the replicator tells of anchors, sessions and replicas.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use crate::original::{Listed, Original, find};
use crate::replica::{Copy, Replica};
use crate::replicator::{Protocol, Refusal, Replicator};

/// Sessions that are listed, or looked up, at once: captured messages wait meanwhile.
const AT_ONCE: usize = 256;

impl Replicator {
    /// Sessions, octets stored and octets of messages, of each anchor.
    pub fn anchors(&self) -> Vec<(String, Protocol, usize, usize, usize)> {
        let of = |(address, original): (&IpAddr, &Original)| {
            let (table, protocol) = (original.tracker.table(), original.tracker.protocol());
            (self.name_of(*address), protocol, table.len(), table.stored_octets(), original.history.octets())
        };
        self.state().originals.iter().map(of).collect()
    }

    /// Sessions of an anchor with numbers above `behind`, at most `most`.
    ///
    /// # Errors
    /// There is no such anchor.
    pub fn sessions(&self, anchor: &str, behind: Option<u32>, most: usize) -> Result<Vec<Listed>, Refusal> {
        let control = self.anchor(anchor)?.control;
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let state = self.state();
            let Some(original) = state.originals.get(&control) else { return Ok(all) };
            // A session's number in the list is that of its record and one.
            let first = all.last().map_or(behind.unwrap_or_default(), |last| last.number);
            let numbers = original.tracker.table().numbers_from(first);
            let (before, wanted) = (all.len(), most.saturating_sub(all.len()).min(AT_ONCE));
            all.extend(numbers.filter_map(|number| original.tracker.listed(number)).take(wanted));
            if all.len() == most || all.len() - before < AT_ONCE {
                return Ok(all);
            }
        }
    }

    /// Sessions of an anchor by name: an address, or as they are listed. A name that several have gives all of them, one that nobody has none.
    ///
    /// # Errors
    /// There is no such anchor.
    pub fn find(&self, anchor: &str, names: &[String]) -> Result<Vec<Listed>, Refusal> {
        let control = self.anchor(anchor)?.control;
        let (mut all, mut known) = (Vec::new(), HashSet::new());
        for names in names.chunks(AT_ONCE) {
            let state = self.state();
            let Some(original) = state.originals.get(&control) else { return Ok(all) };
            let numbers = names.iter().flat_map(|name| find(original, name));
            let new = numbers.filter(|number| known.insert(*number));
            all.extend(new.filter_map(|number| original.tracker.listed(number)));
        }
        Ok(all)
    }

    /// Replicas: from, to, agent, copies that are there, and whether the agent is connected.
    pub fn replicas(&self) -> Vec<(String, String, SocketAddr, usize, bool)> {
        let of = |((from, to), replica): (&(String, String), &Replica)| {
            let there = replica.copies.values().filter(|copy| matches!(copy, Copy::There(_))).count();
            (from.clone(), to.clone(), replica.agent, there, replica.connection.is_connected())
        };
        self.state().replicas.iter().map(of).collect()
    }
}
