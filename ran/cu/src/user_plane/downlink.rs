//! From N3 to F1-U: QoS flow to bearer, SDAP, PDCP, NR-U.

use l2::pdcp::{SealError, Tx};
use l2::sdap::DownlinkHeader;
use packet::nr_u;
use path::Ports;
use pktio::frame::NO_PEER;
use pktio::{FrameMut, Vector};
use telemetry::DropReason;

use super::bearer::{Bearer, Down, End, FarEnd};
use super::stats::Way;
use super::{Relay, WAITING_OCTETS};

/// Time after which a DU for which packets wait is asked again what it wants: its last status, or all that it was sent, may be
/// lost.
const PROBE_NS: u64 = 50_000_000;

/// The part of the memory that is left which one bearer may take.
const SHARES: usize = 64;

/// In an SDAP header. There the PDU Session Container has its own flag, that a paging policy indicator follows.
const RDI: u8 = 0x80;

/// Length of a PDU for an IP packet of `octets`.
#[inline(always)]
fn pdu_len(tx: &Tx, down: &Down, octets: usize) -> usize {
    octets + usize::from(down.header) + tx.header_len() + tx.trailer_len()
}

/// Makes the frame, an IP packet, a PDU on its way to the DU. `flow` has QFI and RQI.
#[inline(always)]
fn seal(
    tx: &mut Tx,
    down: &mut Down,
    frame: &mut FrameMut<'_>,
    flow: u8,
    du: FarEnd,
) -> Result<(), DropReason> {
    let (length, header) = (pdu_len(tx, down, frame.len()), tx.header_len());
    frame.extend(tx.trailer_len());
    if !frame.grow_front(header + usize::from(down.header)) || frame.len() != length {
        return Err(DropReason::TooBig);
    }
    let pdu = frame.packet_mut();
    if down.header {
        // QFI and RQI lie where the PDU Session Container has them. RDI is not used: the UE's mapping rules come by RRC.
        pdu[header] = DownlinkHeader::decode(flow & !RDI).encode();
    }
    tx.seal(pdu).map_err(|error| match error {
        SealError::Exhausted => DropReason::PdcpExhausted,
        SealError::TooShort | SealError::TooLong => DropReason::TooBig,
    })?;
    let polling = down.flow.sent(down.nr_u, length);
    let written = nr_u::encapsulate(frame.headroom(), du.teid, length, down.nr_u, polling);
    if !written.is_some_and(|written| frame.grow_front(written)) {
        return Err(DropReason::TooBig);
    }
    down.nr_u = (down.nr_u + 1) & nr_u::SEQUENCE_MASK;
    frame.send_to(du.peer);
    Ok(())
}

impl Relay {
    /// Sends the packet at a position on the bearer with our TEID `teid`, or lets it wait.
    #[inline(always)]
    pub(super) fn downlink(
        &mut self,
        teid: u32,
        flow: u8,
        vector: &mut Vector,
        at: usize,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let Some(End::Bearer(bearer)) = self.ends.get_mut(teid) else { return Err(DropReason::NoBearer) };
        let Bearer { tx, down, stats, .. } = &mut **bearer;
        stats.active(now_ns);
        let mut frame = vector.frame_mut(at);
        let octets = frame.len();
        match down.du {
            Some(du) if down.queue.is_empty() && down.flow.allows(pdu_len(tx, down, octets)) => {
                seal(tx, down, &mut frame, flow, du)?;
                stats.traffic.downlink.count(octets);
                self.outputs.push(du.interface, at);
                Ok(())
            }
            _ => self.let_wait(teid, frame.packet(), flow, now_ns),
        }
    }

    /// Keeps a copy of a packet until the DU wants it.
    #[cold]
    fn let_wait(&mut self, teid: u32, packet: &[u8], flow: u8, now_ns: u64) -> Result<(), DropReason> {
        let room = WAITING_OCTETS - self.waiting_octets.min(WAITING_OCTETS);
        // The less is left, the less a bearer may take: bearers of a DU that wants nothing must not stop those of others.
        let share = room / SHARES;
        let Some(bearer) = self.bearer(teid) else { return Err(DropReason::NoBearer) };
        let queue = &mut bearer.down.queue;
        let before = queue.octets();
        if before + packet.len() > share || !queue.push(packet, flow, now_ns) {
            return Err(DropReason::BufferOverflow);
        }
        let added = queue.octets() - before;
        if bearer.down.du.is_some() {
            bearer.down.probe_ns.get_or_insert(now_ns + PROBE_NS);
        }
        self.waiting_octets += added;
        self.stats.nodes[Way::Queue as usize].count(1);
        self.plan(teid);
        Ok(())
    }

    /// Asks the DU of a bearer what it wants, while packets wait and it is time: with an empty packet, whose NR-U sequence number
    /// also shows what was lost before.
    #[cold]
    pub(super) fn probe(&mut self, teid: u32, now_ns: u64, ports: &mut Ports) {
        let Some(End::Bearer(bearer)) = self.ends.get_mut(teid) else { return };
        let down = &mut bearer.down;
        let (Some(du), Some(probe_ns)) = (down.du, down.probe_ns) else { return };
        if down.queue.is_empty() {
            down.probe_ns = None;
        } else if probe_ns <= now_ns {
            down.probe_ns = Some(now_ns + PROBE_NS);
            let mut empty = [0; nr_u::USER_DATA_HEADER];
            nr_u::encapsulate(&mut empty, du.teid, 0, down.nr_u, true);
            down.nr_u = (down.nr_u + 1) & nr_u::SEQUENCE_MASK;
            if self.extra.push(&empty, NO_PEER)
                && let Some(mut frame) = self.extra.last_mut()
            {
                frame.send_to(du.peer);
                self.extra_outputs.push(du.interface, self.extra.len() - 1);
            }
            self.send_extra(ports);
        }
    }

    /// Sends waiting packets as far as the DU wants them.
    #[cold]
    pub(super) fn send_waiting(&mut self, teid: u32, ports: &mut Ports) {
        loop {
            let Some(End::Bearer(bearer)) = self.ends.get_mut(teid) else { return };
            let Bearer { tx, down, stats, .. } = &mut **bearer;
            let Some(du) = down.du else { return };
            let before = down.queue.octets();
            let wants = |tx: &Tx, down: &Down| {
                let next = down.queue.front();
                next.is_some_and(|next| down.flow.allows(pdu_len(tx, down, next.packet.len())))
            };
            while self.extra.len() < self.extra.capacity() && wants(tx, down) {
                let Some(waiting) = down.queue.pop() else { break };
                let added = self.extra.push(&waiting.packet, NO_PEER);
                let sealed = match self.extra.last_mut().filter(|_| added) {
                    Some(mut frame) => seal(tx, down, &mut frame, waiting.flow, du),
                    None => Err(DropReason::TooBig),
                };
                match sealed {
                    Ok(()) => {
                        stats.traffic.downlink.count(waiting.packet.len());
                        self.extra_outputs.push(du.interface, self.extra.len() - 1);
                    }
                    Err(reason) => self.stats.drops.count(reason),
                }
            }
            let more = wants(tx, down);
            self.waiting_octets -= before - down.queue.octets();
            let full = self.extra.len() == self.extra.capacity();
            self.send_extra(ports);
            if !(more && full) {
                return;
            }
        }
    }
}
