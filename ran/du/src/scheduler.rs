//! The way of packets for which the radio link is not unlimited: queues, grants, and the time between transmission and arrival.
//!
//! ```text
//!  downlink ──► RLC's queue of the bearer ──slot: grant──► flights ──at their time──► uu
//!  uu ──► queues of the UE ──slot: grant──► flights ──at their time──► uplink
//! ```
//! In each slot the UEs with waiting packets get their turn one after the other, and within a UE its bearers, PDU by PDU. An uplink
//! PDU is as the UE has made it, so it leaves as a whole, and what exceeds the grant is paid back in later slots.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use l2::rlc::um;
use l2::uu;
use packet::nr_u::UserData;
use path::Ports;
use telemetry::DropReason;

use crate::control::{PdcpSn, Refused};
use crate::graph::{UserPlane, Verdict};
use crate::radio::{LEAST_GRANT, Radio, Random, SLOT_NS};
use crate::status;
use crate::tables::{Bearer, DATA_LCIDS, Tables, Ue};
use crate::timers::Task;
use crate::uplink_queue::{UplinkQueue, Waiting};

/// Octets that a UE may have in flight in one direction: 16 MiB are 1.3 Gbit/s at 100 ms.
const UE_FLIGHT: usize = 16 << 20;
/// Octets that all UEs may have in flight.
const ALL_FLIGHT: usize = 256 << 20;
/// Octets of signalling that may be in flight beyond these, so that data does not take its room: of a UE, and of all.
const UE_SIGNALLING: usize = 1 << 20;
const ALL_SIGNALLING: usize = 16 << 20;
/// Octets that a PDU in flight takes besides its data, about.
const OVERHEAD: usize = 64;

/// Octets of an acknowledgement of TCP over IPv4, the shortest packet that comes in numbers, as an SDU.
const SHORT_SDU: usize = 42;

/// The mark of an SDU in RLC's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// PDCP's sequence number.
    sequence: Option<u32>,
    octets: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Downlink,
    Uplink,
}

/// A PDU on its way over the air.
#[derive(Debug)]
struct Flight {
    arrival_ns: u64,
    /// Order of those that arrive at the same time.
    number: u64,
    direction: Direction,
    c_rnti: u16,
    /// The UE's serial number.
    serial: u64,
    lcid: u8,
    /// TEID of its data bearer, which may have made room for another one with its channel; `None` for signalling.
    teid: Option<u32>,
    pdu: Vec<u8>,
}

impl Flight {
    fn memory(&self) -> usize {
        self.pdu.len() + OVERHEAD
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Flight) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Flight) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Flight) -> Ordering {
        (other.arrival_ns, other.number).cmp(&(self.arrival_ns, self.number))
    }
}

/// The UEs that wait for grants, and the PDUs that are on the air.
pub(crate) struct Scheduler {
    /// UEs with something to send at a rate, by C-RNTI: the one whose turn is next comes first.
    active: VecDeque<u16>,
    slot_set: bool,
    flights: BinaryHeap<Flight>,
    number: u64,
    octets: usize,
    random: Random,
}

impl Scheduler {
    pub(crate) fn new(seed: u64) -> Scheduler {
        Scheduler {
            active: VecDeque::new(),
            slot_set: false,
            flights: BinaryHeap::new(),
            number: 0,
            octets: 0,
            random: Random(seed),
        }
    }

    /// When the next PDU arrives.
    #[inline]
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.flights.peek().map(|flight| flight.arrival_ns)
    }

    fn take_off(&mut self, mut flight: Flight) {
        self.number += 1;
        flight.number = self.number;
        self.octets += flight.memory();
        self.flights.push(flight);
    }

    fn land(&mut self, now_ns: u64) -> Option<Flight> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let flight = self.flights.pop()?;
        self.octets -= flight.memory();
        Some(flight)
    }
}

/// Says for the bearers of a UE, and its uplink, whether packets may pass at once.
pub(crate) fn refresh(tables: &mut Tables, c_rnti: u16) {
    let Some(ue) = tables.ue_mut(c_rnti) else { return };
    ue.straight_up = ue.uplink.radio.is_unlimited() && ue.uplink_queue.is_empty() && ue.uplink.in_flight == 0;
    let unlimited = ue.downlink.radio.is_unlimited() && ue.downlink.in_flight == 0;
    let lcids = ue.lcids();
    let straight = unlimited
        && lcids.clone().all(|lcid| tables.bearer_of(c_rnti, lcid).is_none_or(|one| one.tx.waiting() == 0));
    for lcid in lcids {
        if let Some(bearer) = tables.bearer_of(c_rnti, lcid) {
            bearer.straight = straight;
        }
    }
}

/// Octets that the DU wants for a bearer beyond what it has transmitted: a tenth of a second at the link's rate, and no more than its
/// queue holds of the shortest packets that come in numbers. The CU counts only their octets, the queue what they take.
pub(crate) fn desired(bearer: &Bearer, radio: &Radio) -> u32 {
    let queue = bearer.queue / (SHORT_SDU + um::OVERHEAD) * SHORT_SDU;
    let octets = match radio.rate {
        _ if bearer.straight => return u32::MAX,
        None => queue,
        Some(0) => 0,
        Some(rate) => queue.min((rate / 80).max(16_384) as usize),
    };
    u32::try_from(octets).unwrap_or(u32::MAX)
}

impl UserPlane {
    /// Changes the radio link of a UE; see [`crate::Control::set_radio`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn set_radio(
        &mut self,
        c_rnti: u16,
        downlink: Radio,
        uplink: Radio,
        now_ns: u64,
    ) -> Result<(), Refused> {
        if !downlink.is_possible() || !uplink.is_possible() {
            return Err(Refused::Value);
        }
        let ue = self.tables.ue_mut(c_rnti).ok_or(Refused::UnknownUe)?;
        (ue.downlink.radio, ue.uplink.radio) = (downlink, uplink);
        let lcids = ue.lcids();
        refresh(&mut self.tables, c_rnti);
        // What waits may leave now, and the CU is to know what the DU wants.
        self.activate(c_rnti, now_ns);
        for lcid in lcids {
            if let Some(bearer) = self.tables.bearer_of(c_rnti, lcid) {
                status::arm(&mut self.timers, bearer, now_ns);
            }
        }
        Ok(())
    }

    /// Queues a packet for a UE.
    #[cold]
    pub(crate) fn queue_downlink(&mut self, teid: u32, sdu: &[u8], now_ns: u64) -> Verdict {
        let Some(bearer) = self.tables.bearer_mut(teid) else {
            return Verdict::Drop(DropReason::UnknownTeid);
        };
        let mark = Mark { sequence: status::pdcp_sequence(bearer.pdcp, sdu), octets: sdu.len() };
        if bearer.tx.push(sdu.to_vec(), mark).is_err() {
            bearer.stats.dropped.add(1);
            return Verdict::Drop(DropReason::RadioQueueFull);
        }
        let c_rnti = bearer.c_rnti;
        if self.tables.ue(c_rnti).is_some_and(|ue| ue.downlink.radio.rate.is_none()) {
            self.serve_downlink(c_rnti, now_ns);
        }
        if self.waits_for_grant(c_rnti) {
            self.activate(c_rnti, now_ns);
        }
        Verdict::Taken
    }

    /// Queues an RLC PDU of a UE.
    #[cold]
    pub(crate) fn queue_uplink(&mut self, c_rnti: u16, lcid: u8, pdu: &[u8], now_ns: u64) -> Verdict {
        let teid = self.tables.bearer_of(c_rnti, lcid).map(|bearer| bearer.teid);
        let Some(ue) = self.tables.ue_mut(c_rnti).filter(|_| teid.is_some() || !DATA_LCIDS.contains(&lcid))
        else {
            return Verdict::Drop(DropReason::UnknownBearer);
        };
        if !ue.uplink_queue.push(Waiting { lcid, teid, pdu: pdu.to_vec() }) {
            if let Some(bearer) = self.tables.bearer_of(c_rnti, lcid) {
                bearer.stats.dropped.add(1);
            }
            return Verdict::Drop(DropReason::RadioQueueFull);
        }
        if ue.uplink.radio.rate.is_none() {
            self.serve_uplink(c_rnti, now_ns);
        }
        if self.waits_for_grant(c_rnti) {
            self.activate(c_rnti, now_ns);
        }
        Verdict::Taken
    }

    /// Gives a UE its turn in the next slots.
    fn activate(&mut self, c_rnti: u16, now_ns: u64) {
        if let Some(ue) = self.tables.ue_mut(c_rnti)
            && !ue.active
        {
            ue.active = true;
            self.scheduler.active.push_back(c_rnti);
        }
        if !self.scheduler.slot_set && !self.scheduler.active.is_empty() {
            self.scheduler.slot_set = true;
            self.timers.set((now_ns / SLOT_NS + 1) * SLOT_NS, Task::Slot);
        }
    }

    /// Serves the UEs that wait, each once.
    pub(crate) fn slot(&mut self, now_ns: u64) {
        self.scheduler.slot_set = false;
        for _ in 0..self.scheduler.active.len() {
            let Some(c_rnti) = self.scheduler.active.pop_front() else { break };
            self.serve_downlink(c_rnti, now_ns);
            self.serve_uplink(c_rnti, now_ns);
            let waits = self.waits_for_grant(c_rnti);
            let Some(ue) = self.tables.ue_mut(c_rnti) else { continue };
            ue.active = waits;
            if waits {
                self.scheduler.active.push_back(c_rnti);
            }
        }
        // Who came first comes last in the next slot: room in flight is for all.
        if self.scheduler.active.len() > 1 {
            self.scheduler.active.rotate_left(1);
        }
        if let Some(first) = self.scheduler.active.front() {
            let first = *first;
            self.activate(first, now_ns);
        }
    }

    /// Whether packets wait for grants that will come.
    fn waits_for_grant(&mut self, c_rnti: u16) -> bool {
        let Some(ue) = self.tables.ue(c_rnti) else { return false };
        if !ue.uplink_queue.is_empty() && ue.uplink.radio.rate != Some(0) {
            return true;
        }
        let mut lcids = ue.lcids();
        ue.downlink.radio.rate != Some(0)
            && lcids
                .any(|lcid| self.tables.bearer_of(c_rnti, lcid).is_some_and(|bearer| bearer.tx.waiting() > 0))
    }

    /// Transmits what waits for a UE, as far as its grant goes.
    fn serve_downlink(&mut self, c_rnti: u16, now_ns: u64) {
        let Some(ue) = self.tables.ue_mut(c_rnti) else { return };
        let mut grant = ue.downlink.grant(now_ns);
        let has_rate = ue.downlink.radio.rate.is_some();
        let mut lcids: VecDeque<u8> = ue.lcids().collect();
        let turn = usize::from(ue.turn) % lcids.len().max(1);
        lcids.rotate_left(turn);
        ue.turn = ue.turn.wrapping_add(1);
        let backlog: usize = lcids
            .iter()
            .map(|lcid| self.tables.bearer_of(c_rnti, *lcid).map_or(0, |bearer| bearer.tx.backlog()))
            .sum();
        if backlog == 0 || grant < LEAST_GRANT.min(backlog + 1) {
            return;
        }
        // With a rate, the grant is one block.
        let mut block = None;
        while let Some(lcid) = lcids.pop_front() {
            let Some(ue) = self.tables.ue(c_rnti) else { break };
            if ue.downlink.in_flight >= UE_FLIGHT || self.scheduler.octets >= ALL_FLIGHT {
                break;
            }
            let Some(bearer) = self.tables.bearer_of(c_rnti, lcid) else { continue };
            let mut pdu = Vec::new();
            let Some(pulled) = bearer.tx.pull(grant, &mut pdu) else { continue };
            lcids.push_back(lcid);
            if let Some(mark) = pulled.finished {
                finish(bearer, mark);
                self.stats.downlink.count(mark.octets);
                status::arm(&mut self.timers, bearer, now_ns + status::STATUS_INTERVAL_NS);
            }
            let (stats, teid) = (Arc::clone(&bearer.stats), bearer.teid);
            let Some(ue) = self.tables.ue_mut(c_rnti) else { break };
            ue.downlink.spend(pulled.octets);
            let random = &mut self.scheduler.random;
            let arrival_ns = match block {
                Some(fate) if has_rate => fate,
                _ => ue.downlink.arrival_ns(now_ns, random),
            };
            block = Some(arrival_ns);
            if has_rate {
                grant -= pulled.octets;
            }
            match arrival_ns {
                Some(arrival_ns) => {
                    let flight = Flight {
                        arrival_ns,
                        number: 0,
                        direction: Direction::Downlink,
                        c_rnti,
                        serial: ue.serial,
                        lcid,
                        teid: Some(teid),
                        pdu,
                    };
                    ue.downlink.in_flight += flight.memory();
                    self.scheduler.take_off(flight);
                }
                None => {
                    stats.dropped.add(1);
                    self.stats.drops.count(DropReason::RadioLoss);
                }
            }
        }
    }

    /// Lets PDUs of a UE pass, as far as its grant goes.
    fn serve_uplink(&mut self, c_rnti: u16, now_ns: u64) {
        let Some(ue) = self.tables.ue_mut(c_rnti) else { return };
        let mut grant = ue.uplink.grant(now_ns);
        let has_rate = ue.uplink.radio.rate.is_some();
        let mut block = None;
        while grant > 0 && self.scheduler.octets < ALL_FLIGHT {
            let Some(ue) = self.tables.ue_mut(c_rnti).filter(|ue| ue.uplink.in_flight < UE_FLIGHT) else {
                break;
            };
            let Some(Waiting { lcid, teid, pdu }) = ue.uplink_queue.pop() else { break };
            ue.uplink.spend(pdu.len());
            if has_rate {
                grant = grant.saturating_sub(pdu.len());
            }
            let arrival_ns = match block {
                Some(fate) if has_rate => fate,
                _ => ue.uplink.arrival_ns(now_ns, &mut self.scheduler.random),
            };
            block = Some(arrival_ns);
            let Some(arrival_ns) = arrival_ns else {
                self.stats.drops.count(DropReason::RadioLoss);
                if let Some(bearer) = teid.and_then(|teid| self.tables.bearer_mut(teid)) {
                    bearer.stats.dropped.add(1);
                }
                continue;
            };
            let flight = Flight {
                arrival_ns,
                number: 0,
                direction: Direction::Uplink,
                c_rnti,
                serial: ue.serial,
                lcid,
                teid,
                pdu,
            };
            ue.uplink.in_flight += flight.memory();
            self.scheduler.take_off(flight);
        }
    }

    /// Delivers the PDUs that have arrived.
    pub(crate) fn land(&mut self, now_ns: u64, ports: &mut Ports) {
        while let Some(flight) = self.scheduler.land(now_ns) {
            let Some(ue) = self.tables.ue_mut(flight.c_rnti).filter(|ue| ue.serial == flight.serial) else {
                self.stats.drops.count(DropReason::BearerReleased);
                continue;
            };
            let link = match flight.direction {
                Direction::Downlink => &mut ue.downlink,
                Direction::Uplink => &mut ue.uplink,
            };
            link.in_flight -= flight.memory();
            let idle = link.in_flight == 0;
            let place = ue.place;
            let released = flight.teid.is_some_and(|teid| self.tables.bearer_mut(teid).is_none());
            match flight.direction {
                _ if released => self.stats.drops.count(DropReason::BearerReleased),
                Direction::Downlink => {
                    let header = uu::Header::downlink(self.cell, flight.c_rnti, flight.lcid);
                    let datagram = header.datagram(&flight.pdu);
                    if !self.exits.push(place.interface, &datagram, place.address, &self.stats, ports) {
                        self.stats.drops.count(DropReason::TooBig);
                    }
                }
                Direction::Uplink => {
                    let header = uu::Header::uplink(self.cell, flight.c_rnti, flight.lcid);
                    if let Verdict::Drop(reason) = self.deliver_uplink(&header, &flight.pdu, now_ns, ports) {
                        self.stats.drops.count(reason);
                    }
                }
            }
            if idle {
                self.has_landed(flight.c_rnti, now_ns);
            }
        }
    }

    /// Nothing of a UE is under way in one direction: packets may pass at once again, of which the CU is told.
    fn has_landed(&mut self, c_rnti: u16, now_ns: u64) {
        refresh(&mut self.tables, c_rnti);
        let lcids = self.tables.ue(c_rnti).map(Ue::lcids);
        for lcid in lcids.into_iter().flatten() {
            if let Some(bearer) = self.tables.bearer_of(c_rnti, lcid).filter(|bearer| bearer.straight) {
                status::arm(&mut self.timers, bearer, now_ns + status::STATUS_INTERVAL_NS);
            }
        }
    }

    /// Sends a PDU of a signalling bearer, which needs no grant.
    pub(crate) fn send_signalling(&mut self, c_rnti: u16, lcid: u8, pdu: Vec<u8>, now_ns: u64) {
        let Some(ue) = self.tables.ue_mut(c_rnti) else { return };
        if ue.downlink.in_flight >= UE_FLIGHT + UE_SIGNALLING
            || self.scheduler.octets >= ALL_FLIGHT + ALL_SIGNALLING
        {
            self.stats.drops.count(DropReason::RadioQueueFull);
            return;
        }
        let arrival_ns = match ue.downlink.radio.rate {
            Some(0) => None,
            _ => ue.downlink.arrival_ns(now_ns, &mut self.scheduler.random),
        };
        let Some(arrival_ns) = arrival_ns else {
            self.stats.drops.count(DropReason::RadioLoss);
            return;
        };
        let flight = Flight {
            arrival_ns,
            number: 0,
            direction: Direction::Downlink,
            c_rnti,
            serial: ue.serial,
            lcid,
            teid: None,
            pdu,
        };
        ue.downlink.in_flight += flight.memory();
        self.scheduler.take_off(flight);
    }

    /// Discards what waits for a UE that is about to be removed, and its turn. Its bearers have been removed.
    pub(crate) fn forget(&mut self, c_rnti: u16) {
        let Some(ue) = self.tables.ue_mut(c_rnti) else { return };
        self.stats.drops.count_n(DropReason::BearerReleased, ue.uplink_queue.len());
        ue.uplink_queue = UplinkQueue::default();
        if ue.active {
            self.scheduler.active.retain(|active| *active != c_rnti);
        }
    }
}

/// An SDU has been transmitted.
fn finish(bearer: &mut Bearer, mark: Mark) {
    if let Some(sequence) = mark.sequence {
        bearer.reception.transmitted(bearer.pdcp, sequence);
    }
    bearer.stats.downlink.count(mark.octets);
}

/// Discards waiting packets that the CU does not want to be sent any more (TS 38.425 §5.4.1.1). Returns how many.
#[cold]
pub(crate) fn discard(bearer: &mut Bearer, data: &UserData<'_>) -> usize {
    let mask = match bearer.pdcp {
        PdcpSn::Bits12 => 0xFFF,
        PdcpSn::Bits18 => 0x3_FFFF,
    };
    let ahead = |from: u32, to: u32| to.wrapping_sub(from) & mask;
    let discarded = bearer.tx.discard(|mark| {
        let Some(sequence) = mark.sequence else { return false };
        data.flush.is_some_and(|last| ahead(sequence, last) <= mask / 2)
            || data.discard.iter().any(|(first, count)| ahead(first, sequence) < u32::from(count))
    });
    bearer.stats.dropped.add(discarded as u64);
    discarded
}
