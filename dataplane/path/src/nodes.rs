//! What the parts of a graph have done, for operators and for who wants to make them faster.

use net::time::now_ns;
use telemetry::DropReason;
use telemetry::worker::Single;

/// A part of a graph: a stage of the straight way, or a rare way behind it.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// Its name.
    pub name: &'static str,
    /// Where packets go from here: the node's edges.
    pub next: &'static [&'static str],
    /// The reasons for which packets end here. A reason belongs to one node.
    pub drops: &'static [DropReason],
}

/// Counters of a node. A worker has its own, so there is one writer.
#[derive(Debug, Default)]
pub struct NodeCounts {
    calls: Single,
    packets: Single,
    timed_packets: Single,
    timed_ns: Single,
}

/// A reading of [`NodeCounts`], or a sum of readings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct NodeTotals {
    /// How often the node ran.
    pub calls: u64,
    /// Packets that it had.
    pub packets: u64,
    /// Those of calls that were timed, and nanoseconds of these calls.
    pub timed_packets: u64,
    /// Nanoseconds of the calls that were timed.
    pub timed_ns: u64,
}

impl NodeCounts {
    /// Counts a call with `packets` packets.
    #[inline]
    pub fn count(&self, packets: usize) {
        self.calls.add(1);
        self.packets.add(packets as u64);
    }

    /// The values now.
    pub fn get(&self) -> NodeTotals {
        NodeTotals {
            calls: self.calls.get(),
            packets: self.packets.get(),
            timed_packets: self.timed_packets.get(),
            timed_ns: self.timed_ns.get(),
        }
    }
}

impl std::ops::Add for NodeTotals {
    type Output = NodeTotals;
    fn add(self, other: NodeTotals) -> NodeTotals {
        NodeTotals {
            calls: self.calls + other.calls,
            packets: self.packets + other.packets,
            timed_packets: self.timed_packets + other.timed_packets,
            timed_ns: self.timed_ns + other.timed_ns,
        }
    }
}

/// One vector in so many is timed: two readings of the clock would otherwise be a tenth of a short vector's time.
const SAMPLED: u32 = 64;

/// Times the nodes of some vectors.
#[derive(Debug)]
pub struct Stopwatch {
    every: u32,
    vectors: u32,
    /// When the present node began, while a vector is timed.
    began_ns: Option<u64>,
}

impl Default for Stopwatch {
    fn default() -> Stopwatch {
        Stopwatch { every: SAMPLED, vectors: 0, began_ns: None }
    }
}

impl Stopwatch {
    /// Times every vector from now on. For measurements.
    pub fn time_all(&mut self) {
        (self.every, self.vectors) = (1, 0);
    }

    /// The first node of a vector begins.
    #[inline]
    pub fn begin(&mut self) {
        self.began_ns = None;
        self.vectors += 1;
        if self.vectors >= self.every {
            self.vectors = 0;
            self.began_ns = Some(now_ns());
        }
    }

    /// A node has handled `packets` packets, and the next one begins.
    #[inline]
    pub fn lap(&mut self, node: &NodeCounts, packets: usize) {
        node.count(packets);
        if let Some(began_ns) = self.began_ns {
            let now_ns = now_ns();
            node.timed_packets.add(packets as u64);
            node.timed_ns.add(now_ns.saturating_sub(began_ns));
            self.began_ns = Some(now_ns);
        }
    }

    /// What follows until the next vector is not timed: it belongs to no node, or to a rare one.
    #[inline]
    pub fn end(&mut self) {
        self.began_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_vector_in_so_many_is_timed_and_all_are_counted() {
        let (mut watch, [first, second]) =
            (Stopwatch::default(), [NodeCounts::default(), NodeCounts::default()]);
        for _ in 0..3 * SAMPLED {
            watch.begin();
            watch.lap(&first, 5);
            watch.end();
            watch.lap(&second, 2);
        }
        let (all, timed) = (u64::from(3 * SAMPLED), 3 * 5);
        let seen = first.get();
        assert_eq!((seen.calls, seen.packets, seen.timed_packets), (all, 5 * all, timed));
        assert_eq!(second.get(), NodeTotals { calls: all, packets: 2 * all, ..NodeTotals::default() });
        watch.time_all();
        for _ in 0..10 {
            watch.begin();
            watch.lap(&first, 1);
        }
        assert_eq!(first.get().timed_packets, timed + 10);
        assert_eq!((first.get() + second.get()).calls, 2 * all + 10);
    }
}
