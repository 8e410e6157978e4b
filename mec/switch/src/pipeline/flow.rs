//! Flow entries, groups, and their counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use openflow::{Action, Bucket, FlowModFlags, GroupId, GroupType, Instructions, Match, PortNo, TableId};

use super::field::Pattern;

/// Packets and octets. Data paths add to them from any thread.
#[derive(Debug, Default)]
pub struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// When the last packet came.
    used_ns: AtomicU64,
}

impl Counters {
    /// Counts packets, of which the last came at `now_ns`.
    pub fn add(&self, packets: u64, bytes: u64, now_ns: u64) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.used_ns.fetch_max(now_ns, Relaxed);
    }

    /// Packets and octets.
    pub fn get(&self) -> (u64, u64) {
        (self.packets.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// Counters that begin anew, but do not forget when the last packet came.
    pub(super) fn reset(&self) -> Counters {
        Counters { used_ns: AtomicU64::new(self.used_ns()), ..Counters::default() }
    }

    pub(super) fn used_ns(&self) -> u64 {
        self.used_ns.load(Relaxed)
    }
}

/// An entry of a flow table. A change makes a new one; what both share is shared.
#[derive(Debug)]
pub struct Flow {
    /// Its table.
    pub table: TableId,
    /// Higher ones are matched first.
    pub priority: u16,
    /// Which packets, as the controller said.
    pub matching: Match,
    /// The same for look-ups.
    pub pattern: Pattern,
    /// The controller's mark.
    pub cookie: u64,
    /// Seconds without packets until it is removed; 0: never.
    pub idle_timeout_s: u16,
    /// Seconds until it is removed; 0: never.
    pub hard_timeout_s: u16,
    /// As installed.
    pub flags: FlowModFlags,
    /// What is done with the packets.
    pub instructions: Instructions,
    /// When it was installed.
    pub since_ns: u64,
    /// What took it.
    pub counters: Arc<Counters>,
    /// Its place in the order in which entries came. One that replaces another has the other's.
    pub number: u64,
    /// The deadline under which the pipeline has noted it; 0 without one.
    pub(super) noted_ns: AtomicU64,
}

impl Flow {
    /// Whether it is the entry for packets that nothing else matches (§5.4).
    pub fn is_miss(&self) -> bool {
        self.priority == 0 && self.pattern.mask.is_empty()
    }

    /// When the switch removes it, as far as is known now, and whether that is for lack of packets.
    pub fn deadline_ns(&self) -> Option<(u64, bool)> {
        let after = |from: u64, seconds: u16| {
            (seconds > 0).then(|| from.saturating_add(u64::from(seconds) * 1_000_000_000))
        };
        let idle =
            after(self.counters.used_ns().max(self.since_ns), self.idle_timeout_s).map(|at| (at, true));
        let hard = after(self.since_ns, self.hard_timeout_s).map(|at| (at, false));
        [idle, hard].into_iter().flatten().min()
    }

    /// All actions of the entry.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        let lists = [&self.instructions.apply_actions, &self.instructions.write_actions];
        lists.into_iter().flatten().flat_map(|actions| actions.iter())
    }

    /// Groups that its actions use.
    pub fn uses(&self) -> impl Iterator<Item = GroupId> + '_ {
        used_by(self.actions())
    }

    /// The queues of the hold port into which it puts packets.
    pub fn queues(&self, hold: u32) -> Vec<u32> {
        let (mut queue, mut queues) = (0, Vec::new());
        for action in self.actions() {
            match action {
                Action::SetQueue(chosen) => queue = *chosen,
                Action::Output { port, .. } if port.0 == hold => queues.push(queue),
                _ => {}
            }
        }
        queues
    }

    /// Whether it has an output to `port`, or [`PortNo::ANY`] was asked for; the same for groups (§6.4).
    pub fn has_output(&self, port: PortNo, group: GroupId) -> bool {
        let to_port = |action: &Action| matches!(action, Action::Output { port: to, .. } if *to == port);
        (port == PortNo::ANY || self.actions().any(to_port))
            && (group == GroupId::ANY || self.uses().any(|used| used == group))
    }
}

/// A group.
#[derive(Debug)]
pub struct Group {
    /// Its number.
    pub id: GroupId,
    /// Which buckets are executed.
    pub kind: GroupType,
    /// What is done.
    pub buckets: Vec<Bucket>,
    /// When it was installed.
    pub since_ns: u64,
    /// What came to it.
    pub counters: Arc<Counters>,
    /// What took each bucket.
    pub bucket_counters: Vec<Counters>,
}

impl Group {
    /// Groups that its buckets use or watch.
    pub fn uses(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.buckets.iter().flat_map(|bucket| {
            let watched = Some(bucket.watch_group).filter(|group| *group != GroupId::ANY);
            used_by(&bucket.actions).chain(watched)
        })
    }
}

/// Groups that actions use.
pub(super) fn used_by<'a>(actions: impl IntoIterator<Item = &'a Action>) -> impl Iterator<Item = GroupId> {
    actions.into_iter().filter_map(|action| match action {
        Action::Group(group) => Some(*group),
        _ => None,
    })
}
