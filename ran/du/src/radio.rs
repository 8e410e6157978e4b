//! The simulated radio link of a UE, one direction.
//!
//! ```text
//!  queue ──grant of a slot──► transport block ──► transmission ─┬─► delay, jitter ──► far end
//!                                                   ▲           └─ lost ─┐
//!                                                   └── after `harq_interval`, up to `harq_retransmissions` times
//! ```
//! With a rate, all PDUs that fit the grant of a slot (0.5 ms) are one transport block: they arrive together, or are lost together.
//! Without a rate each PDU is a block of its own.
//!
//! Blocks that arrive at the first attempt stay in order, whatever the jitter. A block that is transmitted again arrives later, and
//! those behind it do not wait: as with HARQ's parallel processes, RLC and PDCP see them out of order.

use std::time::Duration;

/// Time between two grants.
pub const SLOT_NS: u64 = 500_000;
/// Time whose rate may be granted at once after a pause.
const BURST_NS: u64 = 4 * SLOT_NS;
/// Least octets of a grant, unless less waits.
pub(crate) const LEAST_GRANT: usize = 32;
/// What an octet costs: 8 bits in the unit of [`Link::credit`].
const OCTET: i128 = 8 * 1_000_000_000;

/// How a direction of a UE's radio link behaves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Radio {
    /// Bits per second, of RLC PDUs; `None` is without limit. At 0 nothing leaves.
    pub rate: Option<u64>,
    /// Time from a transmission to its arrival.
    pub delay: Duration,
    /// Most time that a transport block takes in addition, chosen at random.
    pub jitter: Duration,
    /// Probability that a transmission fails: 0 to 1.
    pub loss: f64,
    /// Time from a transmission to the next one of the same block.
    pub harq_interval: Duration,
    /// Most retransmissions of a block. It is lost if all fail.
    pub harq_retransmissions: u8,
}

impl Default for Radio {
    fn default() -> Radio {
        Radio::UNLIMITED
    }
}

impl Radio {
    /// Neither limits nor faults: packets stay in their vector.
    pub const UNLIMITED: Radio = Radio {
        rate: None,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: 0.0,
        harq_interval: Duration::from_millis(4),
        harq_retransmissions: 3,
    };

    /// Whether the link does nothing to packets.
    pub fn is_unlimited(&self) -> bool {
        self.rate.is_none() && self.delay.is_zero() && self.jitter.is_zero() && self.loss == 0.0
    }

    /// Whether all values can be: a probability, times below a minute, a rate below 1 Tbit/s.
    pub fn is_possible(&self) -> bool {
        const LONG: Duration = Duration::from_secs(60);
        (0.0..=1.0).contains(&self.loss)
            && [self.delay, self.jitter, self.harq_interval].into_iter().all(|time| time <= LONG)
            && self.rate.is_none_or(|rate| rate <= 1_000_000_000_000)
    }
}

/// Numbers from a seed (SplitMix64): a simulation is to be repeatable, not unpredictable.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number up to `most`.
    fn up_to(&mut self, most: u64) -> u64 {
        self.next() % most.saturating_add(1)
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) / ((1u64 << 53) as f64) < probability
    }
}

/// The state of a direction of a UE's radio link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) radio: Radio,
    /// What may leave: bits times nanoseconds per second. Negative after a PDU that was longer than the credit.
    credit: i128,
    credited_ns: u64,
    /// When the last block arrives that was transmitted once.
    last_arrival_ns: u64,
    /// Octets that have been transmitted and have not arrived.
    pub(crate) in_flight: usize,
}

impl Link {
    pub(crate) fn new(radio: Radio) -> Link {
        Link { radio, credit: 0, credited_ns: 0, last_arrival_ns: 0, in_flight: 0 }
    }

    /// Octets that may leave now; `usize::MAX` without a rate.
    pub(crate) fn grant(&mut self, now_ns: u64) -> usize {
        let Some(rate) = self.radio.rate else { return usize::MAX };
        let elapsed_ns = now_ns.saturating_sub(self.credited_ns).min(BURST_NS);
        self.credited_ns = now_ns;
        let most = (i128::from(rate) * i128::from(BURST_NS)).max(OCTET * LEAST_GRANT as i128);
        self.credit = (self.credit + i128::from(rate) * i128::from(elapsed_ns)).min(most);
        usize::try_from(self.credit / OCTET).unwrap_or(0)
    }

    /// Octets have left.
    pub(crate) fn spend(&mut self, octets: usize) {
        if self.radio.rate.is_some() {
            self.credit -= OCTET * octets as i128;
        }
    }

    /// When a block that is transmitted now arrives; `None` if it is lost.
    pub(crate) fn arrival_ns(&mut self, now_ns: u64, random: &mut Random) -> Option<u64> {
        let mut failures = 0;
        while random.happens(self.radio.loss) {
            failures += 1;
            if failures > u32::from(self.radio.harq_retransmissions) {
                return None;
            }
        }
        let jitter_ns = random.up_to(self.radio.jitter.as_nanos() as u64);
        let at_ns = now_ns + self.radio.delay.as_nanos() as u64 + jitter_ns;
        if failures > 0 {
            return Some(at_ns + u64::from(failures) * self.radio.harq_interval.as_nanos() as u64);
        }
        self.last_arrival_ns = at_ns.max(self.last_arrival_ns);
        Some(self.last_arrival_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_follow_the_rate() {
        let mut link = Link::new(Radio { rate: Some(8_000_000), ..Radio::UNLIMITED });
        let mut left = 0;
        for slot in 1..=2_000 {
            let grant = link.grant(slot * SLOT_NS);
            link.spend(grant);
            left += grant;
        }
        assert!((999_000..=1_002_000).contains(&left), "a megabyte per second: {left}");
        // After a pause, a few slots' worth.
        assert_eq!(link.grant(10_000_000_000), 2_000);
        link.spend(5_000);
        assert_eq!(link.grant(10_000_000_000 + SLOT_NS), 0, "the debt is paid first");
        let mut silent = Link::new(Radio { rate: Some(0), ..Radio::UNLIMITED });
        assert_eq!(silent.grant(u64::MAX), 0);
        // A grant becomes as long as the least at any rate.
        let mut slow = Link::new(Radio { rate: Some(8), ..Radio::UNLIMITED });
        let at = (0..100_000u64).find(|slot| slow.grant(slot * SLOT_NS) >= LEAST_GRANT).unwrap();
        assert!((31 * 2_000..33 * 2_000).contains(&at), "32 octets take 32 seconds: {at}");
    }

    #[test]
    fn blocks_are_lost_after_their_retransmissions() {
        let ms = Duration::from_millis;
        let radio = Radio { loss: 0.5, delay: ms(10), jitter: ms(2), ..Radio::UNLIMITED };
        let (mut link, mut random) = (Link::new(radio), Random(1));
        let arrivals: Vec<Option<u64>> =
            (0..10_000).map(|n| link.arrival_ns(n * 1_000, &mut random)).collect();
        let lost = arrivals.iter().filter(|arrival| arrival.is_none()).count();
        assert!((500..750).contains(&lost), "one in sixteen: {lost}");
        let later = arrivals
            .iter()
            .enumerate()
            .filter(|(n, at)| at.is_some_and(|at| at > *n as u64 * 1_000 + 14_000_000));
        assert!((4_000..5_000).contains(&later.count()), "of the others, half");
        let mut once = Link::new(Radio { loss: 0.0, ..radio });
        let arrivals: Vec<_> = (0..1_000).map(|n| once.arrival_ns(n, &mut random).unwrap()).collect();
        assert!(arrivals.is_sorted() && arrivals[999] <= 999 + 12_000_000);
        let mut all = Link::new(Radio { loss: 1.0, ..radio });
        assert!((0..100).all(|n| all.arrival_ns(n, &mut random).is_none()));
    }
}
