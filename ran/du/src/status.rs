//! What the DU tells the CU about a bearer's downlink: DL DATA DELIVERY STATUS (TS 38.425 §5.4.2).
//!
//! A status is sent at once when the CU asks for it, soon after a loss was noticed, and otherwise a while after the first packet that
//! it is about, so that the last packet of a burst is reported too.

use packet::nr_u::{DeliveryStatus, MAX_RANGES, MAX_STATUS, Ranges, SEQUENCE_MASK};
use path::Ports;

use crate::control::PdcpSn;
use crate::exits::Exits;
use crate::graph::UserPlane;
use crate::radio::Radio;
use crate::scheduler;
use crate::stats::Stats;
use crate::tables::Bearer;
use crate::timers::{Task, Timers};

/// Time from a packet to its report.
pub(crate) const STATUS_INTERVAL_NS: u64 = 5_000_000;
/// Time from a loss to its report: packets that passed one another arrive meanwhile.
pub(crate) const LOSS_INTERVAL_NS: u64 = 500_000;
/// Half of the NR-U sequence numbers: what is further ahead is behind.
const HALF: u32 = SEQUENCE_MASK / 2 + 1;

/// What has come from the CU, and what the UE was sent.
#[derive(Debug, Default)]
pub(crate) struct Reception {
    /// The NR-U sequence number that comes next.
    next: Option<u32>,
    /// Ranges of sequence numbers that have not come and were not reported: [`MAX_RANGES`] at most.
    lost: Vec<(u32, u32)>,
    /// Highest PDCP sequence number that was given to lower layers.
    highest_transmitted: Option<u32>,
}

impl Reception {
    /// Notes a sequence number; returns how many before it are missing.
    #[inline(always)]
    pub(crate) fn note(&mut self, sequence: u32) -> u32 {
        if self.next == Some(sequence) {
            self.next = Some(sequence.wrapping_add(1) & SEQUENCE_MASK);
            return 0;
        }
        self.note_other(sequence)
    }

    #[cold]
    fn note_other(&mut self, sequence: u32) -> u32 {
        let next = self.next.unwrap_or(sequence);
        let missing = sequence.wrapping_sub(next) & SEQUENCE_MASK;
        if missing >= HALF {
            self.came_late(sequence);
            return 0;
        }
        self.next = Some(sequence.wrapping_add(1) & SEQUENCE_MASK);
        // Those beyond the room of a report are counted only.
        if missing > 0 && self.lost.len() < MAX_RANGES {
            self.lost.push((next, sequence.wrapping_sub(1) & SEQUENCE_MASK));
        }
        missing
    }

    /// A packet that was passed by others is not lost.
    fn came_late(&mut self, sequence: u32) {
        let behind = |a: u32, b: u32| b.wrapping_sub(a) & SEQUENCE_MASK;
        let found =
            self.lost.iter().position(|(first, last)| behind(*first, sequence) <= behind(*first, *last));
        let Some(at) = found else { return };
        let (first, last) = self.lost.remove(at);
        if sequence != last && self.lost.len() < MAX_RANGES {
            self.lost.insert(at, (sequence.wrapping_add(1) & SEQUENCE_MASK, last));
        }
        if sequence != first && self.lost.len() < MAX_RANGES {
            self.lost.insert(at, (first, sequence.wrapping_sub(1) & SEQUENCE_MASK));
        }
    }

    /// Whether a report says nothing of losses.
    pub(crate) fn is_complete(&self) -> bool {
        self.lost.is_empty()
    }

    /// Notes that a PDCP PDU was given to lower layers.
    #[inline(always)]
    pub(crate) fn transmitted(&mut self, pdcp: PdcpSn, sequence: u32) {
        let (mask, half) = match pdcp {
            PdcpSn::Bits12 => (0xFFF, 0x800),
            PdcpSn::Bits18 => (0x3_FFFF, 0x2_0000),
        };
        // Retransmissions of PDCP may be older.
        if self.highest_transmitted.is_none_or(|highest| sequence.wrapping_sub(highest) & mask < half) {
            self.highest_transmitted = Some(sequence);
        }
    }
}

/// The sequence number of a PDCP PDU; `None` for control PDUs (TS 38.323 §6.2).
#[inline(always)]
pub(crate) fn pdcp_sequence(pdcp: PdcpSn, pdu: &[u8]) -> Option<u32> {
    let [first, second, third, ..] = *pdu else { return None };
    if first & 0x80 == 0 {
        return None;
    }
    Some(match pdcp {
        PdcpSn::Bits12 => u32::from_be_bytes([0, 0, first & 0x0F, second]),
        PdcpSn::Bits18 => u32::from_be_bytes([0, first & 0x03, second, third]),
    })
}

/// Sees to it that a bearer's delivery status is sent at a time, or earlier.
#[inline(always)]
pub(crate) fn arm(timers: &mut Timers, bearer: &mut Bearer, at_ns: u64) {
    if bearer.status_due_ns.is_none_or(|due_ns| at_ns < due_ns) {
        bearer.status_due_ns = Some(at_ns);
        timers.set(at_ns, Task::Status(bearer.teid));
    }
}

impl UserPlane {
    /// Sends the delivery status of a bearer that was due at `due_ns`, unless that has happened.
    pub(crate) fn status_is_due(&mut self, teid: u32, due_ns: u64, ports: &mut Ports) {
        let Some(bearer) = self.tables.bearer_mut(teid) else { return };
        if bearer.status_due_ns != Some(due_ns) {
            return;
        }
        bearer.status_due_ns = None;
        let c_rnti = bearer.c_rnti;
        let Some(radio) = self.tables.ue(c_rnti).map(|ue| ue.downlink.radio) else { return };
        if let Some(bearer) = self.tables.bearer_mut(teid) {
            send(bearer, &radio, false, &mut self.exits, &self.stats, ports);
        }
    }
}

/// Sends the delivery status of a bearer whose UE has this radio link.
pub(crate) fn send(
    bearer: &mut Bearer,
    radio: &Radio,
    final_frame: bool,
    exits: &mut Exits,
    stats: &Stats,
    ports: &mut Ports,
) {
    let status = DeliveryStatus {
        desired_buffer_size: if final_frame { 0 } else { scheduler::desired(bearer, radio) },
        // In octets per second; the field has 32 bits.
        desired_data_rate: radio.rate.map(|rate| u32::try_from(rate / 8).unwrap_or(u32::MAX)),
        final_frame,
        lost: Ranges::of(&bearer.reception.lost),
        highest_transmitted: bearer.reception.highest_transmitted,
        ..DeliveryStatus::default()
    };
    let mut out = [0; MAX_STATUS];
    if let Some(octets) = status.write(bearer.cu.teid, &mut out)
        && exits.push(bearer.cu.interface, &out[..octets], bearer.cu.address, stats, ports)
    {
        stats.status_sent.add(1);
        bearer.reception.lost.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_known_until_it_comes() {
        let mut reception = Reception::default();
        assert_eq!(reception.note(SEQUENCE_MASK - 1), 0, "the first one says where numbers begin");
        assert_eq!((reception.note(SEQUENCE_MASK), reception.note(0)), (0, 0));
        assert_eq!(reception.note(10), 9);
        assert_eq!(reception.note(12), 1);
        assert_eq!(reception.lost, [(1, 9), (11, 11)]);
        for late in [5, 1, 9, 11, 5, 0] {
            assert_eq!(reception.note(late), 0);
        }
        assert_eq!(reception.lost, [(2, 4), (6, 8)]);
        assert_eq!(reception.note(13), 0);
        for jump in 1..200 {
            reception.note(13 + 2 * jump);
        }
        assert_eq!(reception.lost.len(), MAX_RANGES);
        // A late one within a range does not make one range more than there may be.
        reception.lost[0] = (2, 4);
        reception.note(3);
        assert_eq!(reception.lost.len(), MAX_RANGES);
    }

    #[test]
    fn the_highest_sequence_number_passes_the_end_of_numbers() {
        let mut reception = Reception::default();
        for (sent, highest) in [(0xFFE, 0xFFE), (0xFFD, 0xFFE), (1, 1), (0xFFF, 1), (2, 2)] {
            reception.transmitted(PdcpSn::Bits12, sent);
            assert_eq!(reception.highest_transmitted, Some(highest));
        }
        assert_eq!(pdcp_sequence(PdcpSn::Bits12, &[0x8A, 0xBC, 0]), Some(0xABC));
        assert_eq!(pdcp_sequence(PdcpSn::Bits18, &[0x83, 0xFF, 0xFE]), Some(0x3_FFFE));
        assert_eq!(pdcp_sequence(PdcpSn::Bits18, &[0x13, 0xFF, 0xFE]), None);
        assert_eq!(pdcp_sequence(PdcpSn::Bits12, &[0x80]), None);
    }
}
