//! Counters and meters of sessions: cells of two words, four to a cache line, that outlive modifications.
//!
//! All cells of a session lie together, so that a packet's meter and counter are mostly in one cache line. The
//! code that uses a cell knows its kind:
//!
//! | cell | first word | second word |
//! |---|---|---|
//! | account | packets | octets |
//! | meter | time up to which the rate is used, in 1/256 ns modulo 2^64 (2.28 years); 0: unused | rate and burst ([`rate`]) |
//! | gauge | octets | mark |
//!
//! An account belongs to one input and one set of URRs, a meter to one QER and one direction. Mostly only one
//! worker writes a cell, and counting is a load and a store. An atomic addition is needed where a session's packets of
//! one direction belong to several workers ([`crate::session::Endpoint::writers`]): [`Writers::Many`].
//!
//! The lines of a session lie in one region ([`rcu::Region`]), either of this process's own memory or of a map that
//! a program in the kernel shares. Such a program finds a session's cells by the number of the first line, and uses
//! them as described here.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use telemetry::worker::Totals;

use rcu::{Line, Lines};

/// Cells of a cache line.
pub const PER_LINE: usize = 4;
/// Most cells of a session: the number that an entry can name.
pub const MAX_CELLS: usize = 250;
/// No cell.
pub const NO_CELL: u8 = u8::MAX;

/// How many workers write a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// One.
    One,
    /// Several.
    Many,
}

/// The cells of a session.
#[derive(Clone, Copy)]
pub struct Cells<'a> {
    lines: &'a Lines,
    number: u32,
    /// The first line, which mostly contains all cells.
    first: Option<&'a Line>,
}

/// Effect of a packet on a gauge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gauged {
    /// The mark is not reached.
    Below,
    /// This packet reached the mark.
    Reached,
    /// The mark had been reached before.
    Beyond,
}

impl<'a> Cells<'a> {
    /// The cells that begin at line `first`.
    #[inline(always)]
    pub fn new(lines: &'a Lines, first: u32) -> Cells<'a> {
        Cells::at(lines, first, lines.get(first))
    }

    /// The cells that begin at the line with this number, which is `first`.
    #[inline(always)]
    pub fn at(lines: &'a Lines, number: u32, first: Option<&'a Line>) -> Cells<'a> {
        Cells { lines, number, first }
    }

    #[inline(always)]
    fn cell(self, cell: u8) -> Option<(&'a AtomicU64, &'a AtomicU64)> {
        let line = match u32::from(cell) / PER_LINE as u32 {
            0 => self.first,
            further => self.lines.get(self.number + further),
        }?;
        let at = usize::from(cell) % PER_LINE * 2;
        Some((&line[at], &line[at + 1]))
    }

    /// Counts packets and octets in an account.
    #[inline(always)]
    pub fn count(self, cell: u8, packets: u64, bytes: u64, writers: Writers) {
        let Some((first, second)) = self.cell(cell) else { return };
        for (word, n) in [(first, packets), (second, bytes)] {
            match writers {
                Writers::One => word.store(word.load(Relaxed).wrapping_add(n), Relaxed),
                Writers::Many => {
                    word.fetch_add(n, Relaxed);
                }
            }
        }
    }

    /// The counts of an account.
    pub fn totals(self, cell: u8) -> Totals {
        let read = |(packets, bytes): (&AtomicU64, &AtomicU64)| Totals {
            packets: packets.load(Relaxed),
            bytes: bytes.load(Relaxed),
        };
        self.cell(cell).map_or_else(Totals::default, read)
    }

    /// Sets both words.
    pub fn set(self, cell: u8, words: [u64; 2]) {
        if let Some((first, second)) = self.cell(cell) {
            first.store(words[0], Relaxed);
            second.store(words[1], Relaxed);
        }
    }

    /// Sets the second word: a rate or a mark.
    pub fn set_second(self, cell: u8, word: u64) {
        if let Some((_, second)) = self.cell(cell) {
            second.store(word, Relaxed);
        }
    }

    /// Both words.
    pub fn get(self, cell: u8) -> [u64; 2] {
        self.cell(cell).map_or([0; 2], |(first, second)| [first.load(Relaxed), second.load(Relaxed)])
    }

    /// Whether a packet conforms to a meter at `now_ns`; if so, it is charged.
    #[inline(always)]
    pub fn conforms(self, cell: u8, now_ns: u64, bytes: u64, writers: Writers) -> bool {
        let Some((until, rate)) = self.cell(cell) else { return true };
        let rate = rate.load(Relaxed);
        if rate == NOTHING {
            return false;
        }
        let now = now_ns << FRACTION;
        let cost = (bytes * (rate & 0xFFFF_FFFF)) >> (rate >> 32 & 63);
        let burst = burst(rate);
        let mut taken = until.load(Relaxed);
        loop {
            let ahead = ahead(taken, now, burst);
            if ahead > burst {
                return false;
            }
            let charged = taken_until(now, ahead + cost);
            if writers == Writers::One {
                until.store(charged, Relaxed);
                return true;
            }
            match until.compare_exchange_weak(taken, charged, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(current) => taken = current,
            }
        }
    }

    /// Charges a packet that passes in any case. Other packets then have to wait, but not without limit.
    pub fn charge(self, cell: u8, now_ns: u64, bytes: u64) {
        let Some((until, rate)) = self.cell(cell) else { return };
        let rate = rate.load(Relaxed);
        if rate == NOTHING {
            return;
        }
        let (now, burst) = (now_ns << FRACTION, burst(rate));
        let cost = (bytes * (rate & 0xFFFF_FFFF)) >> (rate >> 32 & 63);
        // Charges at most two bursts in advance: a guarantee above the rate must not block other packets for
        // long.
        let charged = |taken: u64| {
            let ahead = ahead(taken, now, burst);
            (ahead <= 2 * burst).then(|| taken_until(now, ahead + cost))
        };
        let _ = until.fetch_update(Relaxed, Relaxed, charged);
    }

    /// Adds to a gauge; returns the effect.
    #[inline]
    pub fn gauge(self, cell: u8, bytes: u64) -> Gauged {
        let Some((counted, mark)) = self.cell(cell) else { return Gauged::Below };
        let before = counted.fetch_add(bytes, Relaxed);
        match mark.load(Relaxed) {
            mark if before >= mark => Gauged::Beyond,
            mark if before + bytes >= mark => Gauged::Reached,
            _ => Gauged::Below,
        }
    }

    /// Whether a gauge has reached its mark.
    #[inline]
    pub fn reached(self, cell: u8) -> bool {
        self.cell(cell).is_some_and(|(counted, mark)| counted.load(Relaxed) >= mark.load(Relaxed))
    }
}

/// Bits of a meter's time below a nanosecond, so that the fastest rates are not rounded away.
const FRACTION: u32 = 8;
/// Unit of bursts, as a shift of a meter's time: 2^16 ns, about 65 µs.
const BURST_SHIFT: u32 = FRACTION + 16;
/// A meter's time is less than `2^AHEAD` bursts ahead: a burst has the content of [`BURST_OCTETS`] at least, the
/// longest packet costs 15 of these, and packets that pass in any case are charged up to two bursts ahead.
const AHEAD: u32 = 5;
/// The rate to which no packet conforms.
const NOTHING: u64 = 0;
/// Length of a burst at the rate itself. TCP reaches two thirds of its rate with 15 ms and all of it with 50
/// ms. A flow that does not pause gets its rate in any case; a flow that was silent gets this much more, once.
const BURST_NS: f64 = 50e6;
/// Least content of a burst at any rate: otherwise slow rates would let nothing pass.
const BURST_OCTETS: f64 = 3.0 * 1500.0;

/// The burst of a rate, as a meter's time.
#[inline(always)]
fn burst(rate: u64) -> u64 {
    rate >> 38 << BURST_SHIFT
}

/// How far the time up to which a meter's rate is used is ahead of now: zero if it is past.
///
/// A meter's time wraps after 2.28 years, so a time that is past, by however much, differs from one that is
/// ahead only in that a meter cannot be so far ahead. After a longer silence than half of the wrap, too, the
/// meter is free. A rate that has just been raised is free of the debts of the slower one.
#[inline(always)]
fn ahead(taken: u64, now: u64, burst: u64) -> u64 {
    let ahead = taken.wrapping_sub(now);
    if taken == 0 || ahead >> AHEAD > burst { 0 } else { ahead }
}

/// The first word of a meter whose rate is used for a time from now on. Never zero, which is an unused meter.
#[inline(always)]
fn taken_until(now: u64, ahead: u64) -> u64 {
    now.wrapping_add(ahead) | 1
}

/// A rate as the second word of a meter: cost of an octet as a fraction (32 bits over a power of two, 6 bits),
/// and the burst in the bits above.
pub fn rate(kbps: u64) -> u64 {
    if kbps == 0 {
        return NOTHING;
    }
    let octet_ns = 8e6 / kbps as f64;
    let octet = octet_ns * f64::from(1u32 << FRACTION);
    let shift = (30.0 - octet.log2().floor()).clamp(0.0, 63.0) as u32;
    let mantissa = (octet * (1u64 << shift) as f64).round().clamp(1.0, f64::from(u32::MAX)) as u64;
    let burst_ns = BURST_NS.max(BURST_OCTETS * octet_ns);
    let burst = ((burst_ns / 65_536.0).ceil() as u64).min((1 << 26) - 1);
    burst << 38 | u64::from(shift) << 32 | mantissa
}

/// A meter outside of sessions, after the generic cell rate algorithm: one word with the time up to which the
/// rate is used, in nanoseconds, which do not wrap.
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// Whether something that uses the rate for `cost_ns` may start now, at most `burst_ns` ahead of its time.
    #[inline]
    pub fn conforms(&self, now_ns: u64, cost_ns: u64, burst_ns: u64) -> bool {
        let mut taken_until = self.0.load(Relaxed);
        loop {
            let start = taken_until.max(now_ns);
            if start - now_ns > burst_ns {
                return false;
            }
            match self.0.compare_exchange_weak(taken_until, start + cost_ns, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(current) => taken_until = current,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(kbps: u64, every_ns: u64, bytes: u64, count: u64) -> u64 {
        let lines = Lines::default();
        assert!(lines.grow_shared(0));
        let cells = Cells::new(&lines, 0);
        cells.set_second(1, rate(kbps));
        let writers = if count.is_multiple_of(2) { Writers::One } else { Writers::Many };
        (0..count).filter(|n| cells.conforms(1, (1 << 30) + n * every_ns, bytes, writers)).count() as u64
    }

    #[test]
    fn meters_pass_their_rate_within_two_percent_over_a_second() {
        // Offers for one second more than twice the rate, in packets of 64 to 1500 octets, at up to 2^40 bit/s.
        for (kbps, bytes, count) in [
            (3_000, 1500, 1_000),
            (10_000, 1250, 10_000),
            (10_000, 64, 100_001),
            (1_000_000, 1400, 300_000),
            (10_000_000, 1500, 2_000_001),
        ] {
            // The burst once, and then the rate.
            let expected = (kbps * 125 / bytes) as f64 * (1.0 + BURST_NS / 1e9);
            let got = passed(kbps, 1_000_000_000 / count, bytes, count) as f64;
            assert!(
                (got / expected - 1.0).abs() <= 0.02,
                "{kbps} kbit/s, {bytes} octets: {got} of {expected}"
            );
        }
        // 2^40 bit/s is 109.05 times 10^6 packets of 1260 octets in a second; three times that is offered.
        let (kbps, bytes) = ((1u64 << 40) / 1000, 1260);
        let got = passed(kbps, 3, bytes, 10_000_000) as f64;
        let expected = 109.05e6 * (0.030 + BURST_NS / 1e9);
        assert!((got / expected - 1.0).abs() <= 0.02, "{got} of {expected}");
    }

    /// Times at which a meter's time, its sign or the clock itself wraps: the first ones are 1.14, 2.28 and 4.57
    /// years after the start of the machine.
    const WRAPS_NS: [u64; 7] = [1 << 55, 1 << 56, 1 << 57, 3 << 56, 1 << 63, (255 << 56) + (1 << 55), 0];

    #[test]
    fn meters_keep_their_rate_while_their_time_wraps() {
        // A second and a half around each wrap, and shortly before and after.
        let starts = WRAPS_NS.map(|wrap| {
            [-750_000_000i64, -1_600_000_000, -50_000_000, 0].map(|by| wrap.wrapping_add_signed(by))
        });
        for start in starts.into_iter().flatten() {
            for writers in [Writers::One, Writers::Many] {
                let lines = Lines::default();
                assert!(lines.grow_shared(0));
                let cells = Cells::new(&lines, 0);
                let (kbps, bytes) = (10_000, 1250);
                cells.set_second(1, rate(kbps));
                let offers = |of: std::ops::Range<u64>| {
                    let conforms =
                        |n: &u64| cells.conforms(1, start.wrapping_add(n * 100_000), bytes, writers);
                    of.filter(conforms).count() as f64
                };
                // A burst of 50 ms and then 1000 packets a second, of ten times as many.
                let (first, then) = (offers(0..1_000), offers(1_000..16_000));
                assert!((first / 150.0 - 1.0).abs() <= 0.02, "{first} from {start}");
                assert!((then / 1500.0 - 1.0).abs() <= 0.02, "{then} from {start}");
            }
        }
    }

    #[test]
    fn charges_in_advance_are_bounded_while_a_meters_time_wraps() {
        for wrap in WRAPS_NS {
            let lines = Lines::default();
            assert!(lines.grow_shared(0));
            let cells = Cells::new(&lines, 0);
            cells.set_second(1, rate(10_000));
            let at = |ms: u64| wrap.wrapping_sub(60_000_000).wrapping_add(ms * 1_000_000);
            (0..10_000).for_each(|_| cells.charge(1, at(0), 1250));
            // Charged are two bursts, of which one has to pass.
            assert!(!cells.conforms(1, at(49), 1250, Writers::One), "{wrap}");
            assert!(cells.conforms(1, at(52), 1250, Writers::One), "{wrap}");
        }
    }

    #[test]
    fn a_meter_is_free_after_any_silence() {
        const DAY_NS: u64 = 86_400_000_000_000;
        for kbps in [1, 64, 10_000, 100_000_000] {
            for days in [1, 100, 400, 417, 418, 800, 833, 835, 1200, 1667, 1669, 100_000] {
                let lines = Lines::default();
                assert!(lines.grow_shared(0));
                let cells = Cells::new(&lines, 0);
                cells.set_second(1, rate(kbps));
                let start = 12_345_678_901;
                while cells.conforms(1, start, 1500, Writers::One) {}
                assert!(cells.conforms(1, start + days * DAY_NS, 1500, Writers::One), "{days} days");
            }
        }
    }

    #[test]
    fn the_longest_packet_is_less_far_ahead_than_a_meter_can_be() {
        for kbps in [1, 2, 63, 64, 1_000, 719, 720, 721, 10_000, 1_000_000, 1 << 30, 1 << 40, u64::MAX] {
            let rate = rate(kbps);
            let cost = (65_535 * (rate & 0xFFFF_FFFF)) >> (rate >> 32 & 63);
            assert!((2 * burst(rate) + cost) >> AHEAD <= burst(rate), "{kbps} kbit/s");
            assert!((2 * burst(rate) + cost).leading_zeros() >= 9, "{kbps} kbit/s");
        }
    }

    #[test]
    fn slow_meters_pass_full_packets_and_zero_passes_none() {
        assert!(passed(1, 1, 1500, 5) >= 3);
        assert_eq!(passed(0, 1_000_000_000, 1, 10), 0);
        assert_eq!(passed(u64::MAX, 1, 1500, 1000), 1000);
    }

    #[test]
    fn gauges_tell_the_packet_that_reaches_the_mark() {
        let lines = Lines::default();
        assert!(lines.grow_shared(0));
        let cells = Cells::new(&lines, 0);
        cells.set(3, [10, 100]);
        let told: Vec<Gauged> = (0..4).map(|_| cells.gauge(3, 45)).collect();
        assert_eq!(told, [Gauged::Below, Gauged::Reached, Gauged::Beyond, Gauged::Beyond]);
        assert!(cells.reached(3));
    }
}
