//! Flow control of a bearer: how much the DU wants (TS 38.425 §5.4.2.1).
//!
//! The DU names a PDCP sequence number up to which it has passed everything on, and how many octets it wants beyond. So the CU
//! keeps the lengths of the PDUs that are outstanding: sent, and not named yet. PDUs that the DU has missed, by their NR-U sequence
//! numbers, are with nobody and take no room any more. A DU that wants no limit costs nothing.
//!
//! No more PDUs are outstanding than half of PDCP's sequence numbers (TS 38.323 §5.2.1), so a number means one PDU.

use std::collections::VecDeque;

use packet::nr_u::{DeliveryStatus, SEQUENCE_MASK};

/// What a DU that says nothing of limits means.
const NO_LIMIT: u32 = u32::MAX;
/// Octets that are sent before the DU has said what it wants.
const INITIAL: u64 = 512 * 1024;
/// A PDU asks for a status if neither one of this length may follow, nor one as long as itself.
const NEXT: u64 = 1500;

/// A delivery status that cannot be: it speaks of PDUs that were never sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Untrue;

/// What may be sent on a bearer.
#[derive(Debug)]
pub struct Flow {
    /// Bits of PDCP's sequence numbers.
    sn_bits: u32,
    /// `None` while there is no limit.
    outstanding: Option<Outstanding>,
}

#[derive(Debug)]
struct Outstanding {
    /// Oldest first.
    pdus: VecDeque<Pdu>,
    /// COUNT of the first one, or of the one to be sent next.
    first: u32,
    /// Octets of all.
    octets: u64,
    /// Octets that may be outstanding.
    wanted: u64,
    /// Octets sent since a status was asked for.
    unasked: u64,
}

#[derive(Debug, Clone, Copy)]
struct Pdu {
    nr_u: u32,
    octets: u16,
}

impl Outstanding {
    fn new(first: u32, wanted: u64) -> Outstanding {
        // The first PDU asks.
        Outstanding { pdus: VecDeque::new(), first, octets: 0, wanted, unasked: wanted }
    }

    /// All PDUs up to the one with this COUNT have left the DU.
    fn confirm(&mut self, count: u32) {
        while self.first <= count
            && let Some(pdu) = self.pdus.pop_front()
        {
            self.octets -= u64::from(pdu.octets);
            self.first += 1;
        }
    }

    /// The DU has missed these. A range costs no more than the PDUs that are in it.
    fn miss(&mut self, ranges: impl Iterator<Item = (u32, u32)>) {
        let Some(oldest) = self.pdus.front().map(|pdu| pdu.nr_u) else { return };
        let after = |nr_u: u32| nr_u.wrapping_sub(oldest) & SEQUENCE_MASK;
        let mut most = self.pdus.len();
        for (first, last) in ranges {
            let start = self.pdus.partition_point(|pdu| after(pdu.nr_u) < after(first));
            for pdu in self.pdus.iter_mut().skip(start).take(most) {
                if after(pdu.nr_u) > after(last) {
                    break;
                }
                self.octets -= u64::from(std::mem::take(&mut pdu.octets));
                most -= 1;
            }
        }
    }
}

impl Flow {
    /// For a DU that has said nothing yet. `next` is the COUNT of the PDU to be sent next.
    pub fn new(next: u32, sn_bits: u32) -> Flow {
        Flow { sn_bits, outstanding: Some(Outstanding::new(next, INITIAL)) }
    }

    /// Whether the DU wants a PDU of so many octets.
    #[inline(always)]
    pub fn allows(&self, octets: usize) -> bool {
        self.outstanding.as_ref().is_none_or(|outstanding| {
            outstanding.octets + octets as u64 <= outstanding.wanted
                && outstanding.pdus.len() < 1 << (self.sn_bits - 1)
        })
    }

    /// A PDU of so many octets is sent with this NR-U sequence number; returns whether it asks for a status.
    #[inline(always)]
    pub fn sent(&mut self, nr_u: u32, octets: usize) -> bool {
        self.outstanding.as_mut().is_some_and(|outstanding| outstanding.add(nr_u, octets))
    }

    /// The DU says what it wants. `next` is the COUNT of the PDU to be sent next.
    ///
    /// # Errors
    /// It names a PDU that was not sent: nothing changes.
    pub fn report(&mut self, status: &DeliveryStatus<'_>, next: u32) -> Result<(), Untrue> {
        // With RLC AM the DU knows what was delivered; with UM only what was transmitted.
        let named = status.highest_delivered.or(status.highest_transmitted);
        let count = match named {
            Some(sequence) => Some(count_of(sequence, next, self.sn_bits).ok_or(Untrue)?),
            None => None,
        };
        if status.desired_buffer_size == NO_LIMIT {
            self.outstanding = None;
            return Ok(());
        }
        let wanted = u64::from(status.desired_buffer_size);
        // What was sent without limit does not count.
        let outstanding = self.outstanding.get_or_insert_with(|| Outstanding::new(next, wanted));
        if let Some(count) = count {
            outstanding.confirm(count);
        }
        outstanding.miss(status.lost.iter());
        outstanding.wanted = wanted;
        Ok(())
    }
}

impl Outstanding {
    fn add(&mut self, nr_u: u32, octets: usize) -> bool {
        self.pdus.push_back(Pdu { nr_u, octets: octets as u16 });
        self.octets += octets as u64;
        self.unasked += octets as u64;
        let asks = self.unasked > self.wanted / 4 || self.octets + NEXT.max(octets as u64) > self.wanted;
        if asks {
            self.unasked = 0;
        }
        asks
    }
}

/// The COUNT of the last PDU that was sent with a sequence number; `None` if none was. The DU speaks of the last half of the
/// numbers.
fn count_of(sequence: u32, next: u32, sn_bits: u32) -> Option<u32> {
    let mask = (1u32 << sn_bits) - 1;
    let back = next.wrapping_sub(1).wrapping_sub(sequence) & mask;
    (sequence <= mask && back <= mask / 2 && back < next).then(|| next - 1 - back)
}

#[cfg(test)]
mod tests {
    use packet::nr_u::Ranges;

    use super::*;

    fn wants(octets: u32, transmitted: Option<u32>) -> DeliveryStatus<'static> {
        DeliveryStatus {
            desired_buffer_size: octets,
            highest_transmitted: transmitted,
            ..DeliveryStatus::default()
        }
    }

    /// Sends as much as is allowed; returns the number of PDUs, and whether the last one asks for a status.
    fn send(flow: &mut Flow, next: &mut u32, octets: usize, most: u32) -> (u32, bool) {
        let (first, mut asks) = (*next, false);
        while *next - first < most && flow.allows(octets) {
            asks = flow.sent(*next & SEQUENCE_MASK, octets);
            *next += 1;
        }
        (*next - first, asks)
    }

    /// Whatever the sizes and the wishes: what the DU has confirmed makes room for as much, no more and no less.
    #[test]
    fn exactly_what_is_wanted_may_be_outstanding() {
        for octets in [67, 300, 1403, 1503, 9003] {
            for wanted in [16_384, 24_000, 125_000, 1 << 20] {
                let (mut flow, mut next) = (Flow::new(0, 18), 0);
                assert_eq!(send(&mut flow, &mut next, octets, 100_000).0 as usize, 512 * 1024 / octets);
                let room = wanted as usize / octets;
                for round in 0..100 {
                    // The DU has passed on all but so many.
                    let behind = round % (room as u32).clamp(1, 7);
                    flow.report(&wants(wanted, Some((next - 1 - behind) & 0x3_FFFF)), next).unwrap();
                    let (sent, asks) = send(&mut flow, &mut next, octets, 100_000);
                    assert_eq!(sent + behind, room as u32, "{octets} {wanted} {round}");
                    assert!(asks || sent == 0, "the last one asks: nothing follows it");
                }
            }
        }
    }

    #[test]
    fn a_du_that_lags_gets_no_more() {
        let (mut flow, mut next) = (Flow::new(0, 18), 0);
        flow.report(&wants(1 << 20, None), next).unwrap();
        let (first, _) = send(&mut flow, &mut next, 67, 1_000_000);
        assert_eq!(first, (1 << 20) / 67);
        let mut done = 0;
        for _ in 0..1000 {
            done += 10;
            flow.report(&wants(1 << 20, Some((done - 1) & 0x3_FFFF)), next).unwrap();
            send(&mut flow, &mut next, 67, 1_000_000);
            assert_eq!(next - done, first, "as many as the DU has room for");
        }
        flow.report(&wants(1 << 20, None), next).unwrap();
        assert!(!flow.allows(67), "nothing else is known to have left the DU");
        flow.report(&wants(0, Some((next - 1) & 0x3_FFFF)), next).unwrap();
        assert!(!flow.allows(1));
    }

    /// PDUs that the DU has missed make room; those around them do not.
    #[test]
    fn what_was_lost_is_not_outstanding() {
        for start in [0, SEQUENCE_MASK - 3] {
            let mut flow = Flow::new(0, 18);
            flow.report(&wants(10_000, None), 0).unwrap();
            for number in 0..10 {
                flow.sent((start + number) & SEQUENCE_MASK, 1000);
            }
            assert!(!flow.allows(1));
            let nr_u = |number: u32| (start + number) & SEQUENCE_MASK;
            let lost = [(nr_u(2), nr_u(5)), (nr_u(4), nr_u(5))];
            let status = DeliveryStatus { lost: Ranges::of(&lost), ..wants(10_000, None) };
            flow.report(&status, 10).unwrap();
            assert!(flow.allows(4000) && !flow.allows(4001));
            flow.report(&wants(10_000, Some(6)), 10).unwrap();
            assert!(flow.allows(7000) && !flow.allows(7001), "0 to 6 are gone, lost or not");
            // Nonsense neither helps nor hurts.
            let lost = [(nr_u(20), nr_u(30)), (nr_u(9), nr_u(1)), (0, SEQUENCE_MASK)];
            let status = DeliveryStatus { lost: Ranges::of(&lost), ..wants(10_000, None) };
            flow.report(&status, 10).unwrap();
            assert!(flow.allows(7000));
        }
    }

    #[test]
    fn without_a_limit_nothing_is_kept_and_a_later_limit_counts_from_there() {
        let (mut flow, mut next) = (Flow::new(0, 12), 0);
        flow.report(&wants(u32::MAX, None), next).unwrap();
        assert_eq!(send(&mut flow, &mut next, 1500, 100_000).0, 100_000);
        assert!(flow.outstanding.is_none());
        flow.report(&wants(3000, Some((next - 1) & 0xFFF)), next).unwrap();
        assert_eq!(send(&mut flow, &mut next, 1500, 100).0, 2);
    }

    /// Half of the sequence numbers at most: otherwise the UE, and the DU's statuses, would mean other PDUs.
    #[test]
    fn sequence_numbers_stay_unambiguous() {
        let (mut flow, mut next) = (Flow::new(0, 12), 0);
        assert_eq!(send(&mut flow, &mut next, 67, 100_000).0, 2048);
        flow.report(&wants(1 << 30, Some(99)), next).unwrap();
        assert_eq!(send(&mut flow, &mut next, 67, 100_000).0, 100);
    }

    #[test]
    fn a_status_that_lies_changes_nothing() {
        let (mut flow, mut next) = (Flow::new(0, 12), 0);
        for sequence in [0, 1, 0xFFF, 0x1000, 0xFF_FFFF] {
            assert_eq!(flow.report(&wants(u32::MAX, Some(sequence)), next), Err(Untrue), "{sequence}");
        }
        for _ in 0..5 {
            send(&mut flow, &mut next, 100, 1000);
            flow.report(&wants(200_000, Some((next - 1) & 0xFFF)), next).unwrap();
        }
        // 5,000 is 904 of the second round of 4,096: beyond are numbers to come.
        for sequence in [904, 905, 2000, 0x1000, 0xFF_FFFF] {
            assert_eq!(flow.report(&wants(9, Some(sequence)), next), Err(Untrue), "{sequence}");
        }
        assert!(flow.allows(200_000));
        flow.report(&wants(9, Some(903)), next).unwrap();
        flow.report(&wants(9, Some(4000)), next).unwrap();
        assert!(flow.allows(9) && !flow.allows(10));
    }

    #[test]
    fn a_status_is_asked_for_now_and_then() {
        let mut flow = Flow::new(0, 18);
        let asked: Vec<u32> = (0..400).filter(|number| flow.sent(*number, 1024)).collect();
        assert_eq!(asked[0], 0, "the first PDU asks");
        assert!((3..=5).contains(&asked.len()), "{asked:?}");
    }

    #[test]
    fn sequence_numbers_mean_the_last_that_were_sent() {
        assert_eq!(count_of(0, 1, 12), Some(0));
        assert_eq!(count_of(0, 4097, 12), Some(4096));
        assert_eq!(count_of(4095, 4097, 12), Some(4095));
        assert_eq!(count_of(1, 4097, 12), None);
        assert_eq!(count_of(7, 0, 18), None);
    }
}
