//! The switch's pipeline without I/O: tables, groups, ports, and what becomes of a packet.
//!
//! ```text
//! flow-mods ─► Pipeline::commit ─► tables, groups        frame ─► Headers::parse ─► fields
//!                                     │                                              │
//!                                     └───────────────► Pipeline::trace ◄────────────┘
//!                                                             │
//!                               Trace: steps, entries passed, fields consulted ─► rewrite::execute
//! ```
//! A [`trace`] is one translation for all data paths: what it did holds for every packet that is equal in the fields it has
//! consulted. The GTP port is a view: nothing is taken off a frame, and what is behind the port is what lies in the frame
//! (docs/adr/0028-the-gtp-port-is-a-view.md).
//!
//! Invariants: a commit changes everything or nothing; memory is bounded by [`Limits`]; a packet makes a bounded number of
//! steps whatever the entries say.

mod change;
pub mod exact;
pub mod field;
pub mod flow;
pub mod parse;
pub mod rewrite;
pub mod table;
pub mod trace;

use std::collections::BTreeMap;
use std::sync::Arc;

use openflow::{FlowRemovedReason, GroupId, PortNo, TableId};

use crate::hold;

pub use change::{Change, Committed, Failed, Ready, Removed};
use flow::{Flow, Group};
use table::Table;

/// What bounds the memory of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tables.
    pub tables: u8,
    /// Entries of a table.
    pub entries: usize,
    /// Distinct masks of a table: each costs every look-up time.
    pub masks: usize,
    /// Groups.
    pub groups: usize,
    /// Buckets of a group.
    pub buckets: usize,
    /// Actions of an entry or bucket.
    pub actions: usize,
    /// Packets that wait.
    pub hold: hold::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            tables: 8,
            entries: 262_144,
            masks: 512,
            groups: 1024,
            buckets: 64,
            actions: 64,
            hold: hold::Limits::default(),
        }
    }
}

/// The ports, as far as they decide where packets go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ports {
    /// Numbers of the interfaces, and whether each can send.
    pub live: BTreeMap<u32, bool>,
    /// Number of the GTP port, if there is one.
    pub gtp: Option<u32>,
    /// Numbers of the ports that hold packets and let them go, if there are such.
    pub hold: Option<HoldPorts>,
}

/// The numbers of the ports for packets that wait ([`crate::hold`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldPorts {
    /// Takes packets into a queue. They come back by it.
    pub hold: u32,
    /// Swallows a packet, and opens its queue.
    pub release: u32,
}

impl Ports {
    /// Whether there is such a port. Tunnels lead through LOCAL, also where the host has no interface there.
    pub fn has(&self, port: PortNo) -> bool {
        self.is_virtual(port)
            || self.live.contains_key(&port.0)
            || port == PortNo::LOCAL && self.gtp.is_some()
    }

    /// Whether the port can send.
    pub fn is_live(&self, port: PortNo) -> bool {
        self.is_virtual(port) || self.live.get(&port.0) == Some(&true)
    }

    /// Whether there is no interface behind it, but a part of this switch.
    fn is_virtual(&self, port: PortNo) -> bool {
        self.gtp == Some(port.0)
            || self.hold.is_some_and(|ports| [ports.hold, ports.release].contains(&port.0))
    }
}

/// What a change was about.
#[derive(Debug)]
pub enum Touched {
    /// These entries were added or taken out. Groups may have changed as well.
    Entries(Vec<Arc<Flow>>),
    /// The state of this port.
    Port(u32),
}

/// Tables, groups and ports.
#[derive(Debug)]
pub struct Pipeline {
    tables: Vec<Table>,
    groups: BTreeMap<GroupId, Arc<Group>>,
    /// How many entries and groups use each group that is used.
    users: BTreeMap<GroupId, u32>,
    ports: Ports,
    limits: Limits,
    /// Entries with time-outs, by the time at which to look at them.
    deadlines: BTreeMap<(u64, u64), Arc<Flow>>,
    /// Entries so far.
    numbers: u64,
    version: u64,
}

impl Pipeline {
    /// Without entries: every packet is dropped.
    pub fn new(limits: Limits, ports: Ports) -> Pipeline {
        Pipeline {
            tables: (0..limits.tables).map(|_| Table::default()).collect(),
            groups: BTreeMap::new(),
            users: BTreeMap::new(),
            ports,
            limits,
            deadlines: BTreeMap::new(),
            numbers: 0,
            version: 0,
        }
    }

    /// Changes with whatever decides what becomes of packets. Traces of an earlier version are void.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Its limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The tables, by their numbers.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The groups.
    pub fn groups(&self) -> &BTreeMap<GroupId, Arc<Group>> {
        &self.groups
    }

    /// How many entries and groups use a group.
    pub fn users(&self, group: GroupId) -> u32 {
        self.users.get(&group).copied().unwrap_or(0)
    }

    /// The highest number of an entry so far.
    pub fn newest(&self) -> u64 {
        self.numbers
    }

    /// The ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Says that a port can send now, or no longer.
    pub fn set_live(&mut self, port: u32, live: bool) {
        if self.ports.live.insert(port, live) != Some(live) {
            self.version += 1;
        }
    }

    /// Whether a group can send: it has a bucket that can (§6.5). What was found out is noted in `known`, as one group may be
    /// watched by many buckets.
    fn is_group_live(&self, id: GroupId, known: &mut BTreeMap<GroupId, bool>) -> bool {
        let Some(group) = self.groups.get(&id) else { return false };
        if let Some(live) = known.get(&id) {
            return *live;
        }
        // No group watches itself, not even by others: such a change is refused.
        let live = group.buckets.iter().any(|bucket| self.is_bucket_live(bucket, known));
        known.insert(id, live);
        live
    }

    fn is_bucket_live(&self, bucket: &openflow::Bucket, known: &mut BTreeMap<GroupId, bool>) -> bool {
        let port = bucket.watch_port != PortNo::ANY && self.ports.is_live(bucket.watch_port);
        let group = bucket.watch_group != GroupId::ANY && self.is_group_live(bucket.watch_group, known);
        let unwatched = bucket.watch_port == PortNo::ANY && bucket.watch_group == GroupId::ANY;
        unwatched || port || group
    }

    /// Removes entries whose time is over (§5.5). Counters must be up to date.
    pub fn expire(&mut self, now_ns: u64) -> Vec<Removed> {
        let mut removed = Vec::new();
        while let Some(entry) = self.deadlines.first_entry() {
            if entry.key().0 > now_ns {
                break;
            }
            let flow = entry.remove();
            match flow.deadline_ns() {
                Some((deadline_ns, is_idle)) if deadline_ns <= now_ns => {
                    let reason =
                        if is_idle { FlowRemovedReason::IdleTimeout } else { FlowRemovedReason::HardTimeout };
                    self.take_out(&flow);
                    self.version += 1;
                    removed.push(Removed { flow, reason });
                }
                _ => self.note_deadline(flow),
            }
        }
        removed
    }

    /// When [`Pipeline::expire`] has something to do, at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.first_key_value().map(|((deadline_ns, _), _)| *deadline_ns)
    }

    /// Does with a frame what the entries say, and counts it. Data paths with caches do the same in parts.
    pub fn process(
        &self,
        frame: &mut [u8],
        in_port: u32,
        now_ns: u64,
        sink: &mut impl rewrite::Sink,
    ) -> trace::Trace {
        let headers = parse::Headers::parse(frame, in_port);
        let trace = self.trace(&headers.outer, &headers.inner);
        trace.count(self, 1, frame.len() as u64, now_ns);
        rewrite::execute(&trace.steps, frame, &headers.layout, sink);
        trace
    }

    /// The table of a request that was checked.
    fn table_mut(&mut self, id: TableId) -> &mut Table {
        &mut self.tables[usize::from(id.0)]
    }
}
