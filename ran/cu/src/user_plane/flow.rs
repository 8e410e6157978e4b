//! Flow control of a bearer: how much the DU wants (TS 38.425 §5.4.2.1).
//!
//! The DU names a PDCP sequence number up to which it has passed everything on, and how many octets it wants beyond. The CU
//! knows how many octets it had sent up to some recent PDUs ([`Marks`]), and takes the last of these that is not beyond
//! the named one: so it never sends more than is wanted.

use packet::nr_u::DeliveryStatus;

/// What a DU that says nothing of limits means.
const NO_LIMIT: u32 = u32::MAX;
/// Octets that are sent before the DU has said what it wants.
const INITIAL: u64 = 512 * 1024;
/// PDUs from one mark to the next.
const STRIDE: u32 = 16;
/// Marks that are kept.
const MARKS: usize = 64;

/// A delivery status that cannot be: it speaks of PDUs that were never sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Untrue;

/// What may be sent on a bearer.
#[derive(Debug)]
pub struct Flow {
    /// Octets sent so far.
    sent: u64,
    /// Up to here `sent` may grow.
    limit: u64,
    /// From here on a packet asks for a status.
    poll_at: u64,
    /// Between two such packets.
    poll_step: u64,
    /// `None` while there is no limit.
    marks: Option<Box<Marks>>,
}

/// Octets that had been sent when some PDUs were, the latest of them last.
#[derive(Debug)]
struct Marks {
    /// COUNT of the PDU, and octets up to and with it. A ring.
    entries: [(u32, u64); MARKS],
    next: usize,
    len: usize,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { entries: [(0, 0); MARKS], next: 0, len: 0 }
    }
}

impl Marks {
    fn add(&mut self, count: u32, sent: u64) {
        self.entries[self.next] = (count, sent);
        self.next = (self.next + 1) % MARKS;
        self.len = (self.len + 1).min(MARKS);
    }

    /// Octets up to the last marked PDU that is not beyond the one with this COUNT.
    fn at(&self, count: u32) -> Option<u64> {
        let newest_first = (1..=self.len).map(|back| self.entries[(self.next + MARKS - back) % MARKS]);
        newest_first.into_iter().find(|(marked, _)| *marked <= count).map(|(_, sent)| sent)
    }

    fn oldest(&self) -> Option<u64> {
        (self.len > 0).then(|| self.entries[(self.next + MARKS - self.len) % MARKS].1)
    }
}

impl Default for Flow {
    fn default() -> Flow {
        Flow { sent: 0, limit: INITIAL, poll_at: 0, poll_step: INITIAL / 4, marks: Some(Box::default()) }
    }
}

impl Flow {
    /// Whether the DU wants a PDU of so many octets.
    #[inline(always)]
    pub fn allows(&self, octets: usize) -> bool {
        self.sent + octets as u64 <= self.limit
    }

    /// A PDU with this COUNT is sent; returns whether it asks for a status.
    #[inline(always)]
    pub fn sent(&mut self, count: u32, octets: usize) -> bool {
        self.sent += octets as u64;
        match &mut self.marks {
            Some(marks) => {
                if count.is_multiple_of(STRIDE) {
                    marks.add(count, self.sent);
                }
                let asks = self.sent > self.poll_at;
                if asks {
                    self.poll_at = self.sent + self.poll_step;
                }
                asks
            }
            None => false,
        }
    }

    /// The DU says what it wants. `next` is the COUNT of the PDU to be sent next, whose sequence numbers have `sn_bits` bits.
    ///
    /// # Errors
    /// It names a PDU that was not sent: nothing changes.
    pub fn report(&mut self, status: &DeliveryStatus<'_>, next: u32, sn_bits: u32) -> Result<(), Untrue> {
        // With RLC AM the DU knows what was delivered; with UM only what was transmitted.
        let named = status.highest_delivered.or(status.highest_transmitted);
        let count = match named {
            Some(sequence) => Some(count_of(sequence, next, sn_bits).ok_or(Untrue)?),
            None => None,
        };
        if status.desired_buffer_size == NO_LIMIT {
            (self.limit, self.marks) = (u64::MAX, None);
            return Ok(());
        }
        let done = match (&self.marks, count) {
            (Some(marks), Some(count)) => marks.at(count).or(marks.oldest()),
            // Nothing is known to have left the DU.
            (Some(marks), None) => marks.oldest(),
            // There was no limit until now.
            (None, _) => None,
        };
        // Without marks either nothing was sent yet, or it was without limit: then what was sent before does not count.
        let done = done.unwrap_or(if self.marks.is_some() { 0 } else { self.sent });
        let desired = u64::from(status.desired_buffer_size);
        self.marks.get_or_insert_default();
        self.limit = done + desired;
        self.poll_step = (desired / 4).max(1);
        self.poll_at = self.poll_at.min(self.sent + self.poll_step);
        Ok(())
    }
}

/// The COUNT of the last PDU that was sent with a sequence number; `None` if none was: numbers of a bearer have `sn_bits` bits,
/// and the DU speaks of the last half of them.
fn count_of(sequence: u32, next: u32, sn_bits: u32) -> Option<u32> {
    let mask = (1u32 << sn_bits) - 1;
    let back = next.wrapping_sub(1).wrapping_sub(sequence) & mask;
    (sequence <= mask && back <= mask / 2 && back < next).then(|| next - 1 - back)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(octets: u32, transmitted: Option<u32>) -> DeliveryStatus<'static> {
        DeliveryStatus {
            desired_buffer_size: octets,
            highest_transmitted: transmitted,
            ..DeliveryStatus::default()
        }
    }

    /// Sends as much as is allowed; returns the number of PDUs.
    fn send(flow: &mut Flow, next: &mut u32, octets: usize, most: u32) -> u32 {
        let first = *next;
        while *next - first < most && flow.allows(octets) {
            flow.sent(*next, octets);
            *next += 1;
        }
        *next - first
    }

    #[test]
    fn no_more_is_sent_than_is_wanted() {
        let (mut flow, mut next) = (Flow::default(), 0);
        assert_eq!(send(&mut flow, &mut next, 1024, 10_000), 512, "before the DU has said anything");
        flow.report(&wants(0, Some(511)), next, 18).unwrap();
        assert_eq!(send(&mut flow, &mut next, 1, 10), 0);
        // Number 496 is the last that is marked.
        flow.report(&wants(100 * 1024, Some(511)), next, 18).unwrap();
        assert_eq!(send(&mut flow, &mut next, 1024, 10_000), 100 - 15);
        flow.report(&wants(100 * 1024, Some(520)), next, 18).unwrap();
        assert_eq!(send(&mut flow, &mut next, 1024, 10_000), 16, "up to 512 + 100");
        // Nothing else is known to have left the DU.
        flow.report(&wants(1 << 20, None), next, 18).unwrap();
        let total = send(&mut flow, &mut next, 1024, 10_000);
        assert!((1..=1024).contains(&total), "{total}");
    }

    #[test]
    fn without_a_limit_nothing_is_noted_and_a_later_limit_counts_from_there() {
        let (mut flow, mut next) = (Flow::default(), 0);
        flow.report(&wants(u32::MAX, None), next, 12).unwrap();
        assert!(flow.marks.is_none());
        assert_eq!(send(&mut flow, &mut next, 1500, 100_000), 100_000);
        flow.report(&wants(3000, Some((next - 1) & 0xFFF)), next, 12).unwrap();
        assert_eq!(send(&mut flow, &mut next, 1500, 100), 2);
    }

    #[test]
    fn a_status_that_lies_changes_nothing() {
        let (mut flow, mut next) = (Flow::default(), 0);
        for sequence in [0, 1, 0xFFF, 0x1000, 0xFF_FFFF] {
            assert_eq!(flow.report(&wants(u32::MAX, Some(sequence)), next, 12), Err(Untrue), "{sequence}");
        }
        send(&mut flow, &mut next, 100, 5000);
        let before = flow.limit;
        // 5,000 is 904 of the second round of 4,096: beyond are numbers to come.
        for sequence in [904, 905, 2000, 0x1000, 0xFF_FFFF] {
            assert_eq!(flow.report(&wants(9, Some(sequence)), next, 12), Err(Untrue), "{sequence}");
        }
        assert_eq!(flow.limit, before);
        flow.report(&wants(9, Some(903)), next, 12).unwrap();
        flow.report(&wants(9, Some(4000)), next, 12).unwrap();
    }

    #[test]
    fn a_status_is_asked_for_now_and_then() {
        let mut flow = Flow::default();
        let asked = (0..400).filter(|count| flow.sent(*count, 1024)).count();
        assert!((3..=5).contains(&asked), "{asked}");
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
