//! Counters of the packet path.
//!
//! Every worker writes its own copy, which stands on cache lines of its own; a reader sums the copies.
//! A count is a relaxed load and store, not a locked add, because each copy has one writer: the worker.
//! Readers may see a packet before its bytes; totals are exact once traffic stops.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::drops::DropReason;

/// Keeps a value on cache lines that nothing else shares (128: adjacent-line prefetch pulls pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CacheAligned<T>(pub T);

/// A counter with one writer and any number of readers.
#[derive(Debug, Default)]
pub struct Single(AtomicU64);

impl Single {
    /// Adds `n`. Only the owning worker may call this: two writers would lose counts.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Packets and bytes.
#[derive(Debug, Default)]
pub struct Traffic {
    packets: Single,
    bytes: Single,
}

impl Traffic {
    /// Counts one packet of `bytes` octets. Only the owning worker may call this.
    #[inline]
    pub fn count(&self, bytes: usize) {
        self.packets.add(1);
        self.bytes.add(bytes as u64);
    }

    /// Counts several packets of `bytes` octets in all, as [`Traffic::count`].
    #[inline]
    pub fn count_n(&self, packets: usize, bytes: usize) {
        self.packets.add(packets as u64);
        self.bytes.add(bytes as u64);
    }

    /// The values now.
    pub fn get(&self) -> Totals {
        Totals { packets: self.packets.get(), bytes: self.bytes.get() }
    }
}

/// A reading of [`Traffic`], or a sum of readings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Number of packets.
    pub packets: u64,
    /// Octets of these packets.
    pub bytes: u64,
}

impl std::ops::Add for Totals {
    type Output = Totals;
    fn add(self, other: Totals) -> Totals {
        Totals { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

impl std::ops::Sub for Totals {
    type Output = Totals;
    /// What was counted since an earlier reading.
    fn sub(self, earlier: Totals) -> Totals {
        Totals {
            packets: self.packets.saturating_sub(earlier.packets),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

impl std::iter::Sum for Totals {
    fn sum<I: Iterator<Item = Totals>>(readings: I) -> Totals {
        readings.fold(Totals::default(), |sum, reading| sum + reading)
    }
}

/// Traffic in both directions, as seen by the UE: what a session or an interface counts.
#[derive(Debug, Default)]
pub struct Directions {
    /// From the UE; on an interface: received.
    pub uplink: Traffic,
    /// To the UE; on an interface: sent.
    pub downlink: Traffic,
}

/// One copy of [`Directions`] per worker: the counters of a session or a usage reporting rule.
#[derive(Debug)]
pub struct PerWorker {
    copies: Box<[CacheAligned<Directions>]>,
}

impl PerWorker {
    /// Counters for `workers` workers.
    pub fn new(workers: usize) -> PerWorker {
        PerWorker { copies: (0..workers.max(1)).map(|_| CacheAligned::default()).collect() }
    }

    /// The copy of one worker. Worker numbers are checked when the worker starts; a number out of
    /// range falls back to the first copy rather than panicking on the packet path.
    #[inline]
    pub fn of(&self, worker: usize) -> &Directions {
        &self.copies[if worker < self.copies.len() { worker } else { 0 }].0
    }

    /// Sums over all workers: (uplink, downlink).
    pub fn totals(&self) -> (Totals, Totals) {
        (
            self.copies.iter().map(|copy| copy.0.uplink.get()).sum(),
            self.copies.iter().map(|copy| copy.0.downlink.get()).sum(),
        )
    }
}

/// Drops by reason, one array per worker.
#[derive(Debug)]
pub struct Drops(CacheAligned<[Single; DropReason::COUNT]>);

impl Default for Drops {
    fn default() -> Drops {
        Drops(CacheAligned(std::array::from_fn(|_| Single::default())))
    }
}

impl Drops {
    /// Counts one packet dropped for `reason`. Only the owning worker may call this.
    #[inline]
    pub fn count(&self, reason: DropReason) {
        self.0.0[reason.index()].add(1);
    }

    /// Counts `n` packets dropped for `reason`, as [`Drops::count`].
    #[inline]
    pub fn count_n(&self, reason: DropReason, n: usize) {
        self.0.0[reason.index()].add(n as u64);
    }

    /// The value now.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0.0[reason.index()].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_worker_copies_are_summed_and_do_not_share_lines() {
        let counters = PerWorker::new(2);
        counters.of(0).uplink.count(100);
        counters.of(1).uplink.count(50);
        counters.of(1).downlink.count(7);
        let (uplink, downlink) = counters.totals();
        assert_eq!(uplink, Totals { packets: 2, bytes: 150 });
        assert_eq!(downlink, Totals { packets: 1, bytes: 7 });
        let distance = std::ptr::from_ref(counters.of(1)).addr() - std::ptr::from_ref(counters.of(0)).addr();
        assert!(distance >= 128 && distance.is_multiple_of(64));
    }

    #[test]
    fn drops_count_by_reason() {
        let drops = Drops::default();
        drops.count(DropReason::UnknownTeid);
        drops.count(DropReason::UnknownTeid);
        assert_eq!(drops.get(DropReason::UnknownTeid), 2);
        assert_eq!(drops.get(DropReason::NoPdr), 0);
    }
}
