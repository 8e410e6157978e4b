//! The last part of stage 3: a packet leaves as its FAR says, into a tunnel or to a data network.

use packet::gtpu::{self, PduSession};
use packet::protocol;
use pktio::{FrameMut, Vector};
use telemetry::DropReason;

use super::context::{Context, Snapshot, Source};
use super::packets::{NO_QFI, RQI};
use super::rare::too_long;
use super::{Stages, mtu};
use crate::session::{Entry, flag};
use crate::tables::FarEnd;

/// Interval in which the CP function gets packets in the long run (1,000 per second), and most packets at once.
const CONTROL_INTERVAL_NS: u64 = 1_000_000;
const CONTROL_BURST_NS: u64 = 200 * CONTROL_INTERVAL_NS;

impl Context {
    /// Whether the CP function may get another packet now.
    pub(super) fn admits_control(&self, now_ns: u64) -> bool {
        self.tables.limits.control.conforms(now_ns, CONTROL_INTERVAL_NS, CONTROL_BURST_NS)
    }
}

impl Stages {
    /// Sends a packet into a tunnel; returns whether it is sent.
    #[inline(always)]
    pub(super) fn send_into_tunnel(
        &mut self,
        snapshot: Snapshot<'_>,
        batch: &mut Vector,
        at: usize,
        entry: &Entry,
    ) -> bool {
        let (context, pass) = (&self.context, &mut self.pass);
        let meta = &mut pass.packets.metas[at];
        // A packet that this UPF itself sent into a tunnel must not enter a tunnel again: it would circulate.
        if !meta.native && pass.source == Source::Port && context.locals.contains(&batch.peer(at).ip()) {
            meta.drop(DropReason::TunnelLoop);
            return false;
        }
        let Some(peer) = snapshot.tables.peer(entry.peer) else {
            meta.drop(DropReason::FarDrop);
            return false;
        };
        if meta.length + ppi_len(entry) as u32 > context.links.of(peer.interface()).mtu {
            return too_long::run(context, pass, &mut self.exits, snapshot, batch, at, entry);
        }
        let mut frame = batch.frame_mut(at);
        if pass.packets.keys[at].words()[3] as u8 == protocol::TCP {
            mtu::clamp_syn(frame.packet_mut(), pass.input.clamp);
        }
        let result = encapsulate(&mut frame, peer, entry, meta.marks);
        match result {
            Ok(()) => pass.outputs.push(peer.interface(), at),
            Err(reason) => meta.drop(reason),
        }
        result.is_ok()
    }

    /// Sends a packet to a data network; returns whether it is sent.
    #[inline(always)]
    pub(super) fn send_to_network(
        &mut self,
        snapshot: Snapshot<'_>,
        batch: &mut Vector,
        at: usize,
        entry: &Entry,
    ) -> bool {
        let (context, pass) = (&self.context, &mut self.pass);
        let meta = &mut pass.packets.metas[at];
        let words = pass.packets.keys[at].words();
        let mut frame = batch.frame_mut(at);
        if let Some(reason) = context.closed.stops(entry.teid as usize, frame.packet(), || ports_of(words[2]))
        {
            meta.drop(reason);
            return false;
        }
        let link = context.links.of(entry.teid as u8);
        if entry.is(flag::TOS) {
            mark(frame.packet_mut(), entry.tos);
        }
        if meta.length > link.mtu {
            return too_long::run(context, pass, &mut self.exits, snapshot, batch, at, entry);
        }
        if words[3] as u8 == protocol::TCP {
            mtu::clamp_syn(frame.packet_mut(), link.clamp as usize);
        }
        pass.outputs.push(entry.teid as u8, at);
        true
    }
}

/// Source and destination port from word 2 of a key; `None` when it is zero.
pub(super) fn ports_of(word: u32) -> Option<(u16, u16)> {
    (word != 0).then_some(((word >> 16) as u16, word as u16))
}

/// Octets of a PDU Session Container beyond its first word: a paging policy indicator takes a second one.
#[inline(always)]
pub(super) fn ppi_len(entry: &Entry) -> usize {
    usize::from(entry.marking & 0x40) >> 4
}

/// Puts the packet into a tunnel, or returns why that is not possible. Without a QER that says otherwise, a packet from another
/// tunnel keeps QFI and RQI: its anchor has given them to it.
#[inline(always)]
pub(super) fn encapsulate(
    frame: &mut FrameMut<'_>,
    peer: FarEnd,
    entry: &Entry,
    received: u8,
) -> Result<(), DropReason> {
    // A received RQI is about the received QFI.
    let marks = if entry.qfi == NO_QFI { received } else { entry.qfi };
    let (qfi, received_rqi) = (marks & !RQI, marks & RQI != 0);
    // The CP function may be on this machine (N4-u); a gNB or another UPF must not be.
    if !(peer.is_elsewhere() || peer.is_here() && entry.is(flag::CONTROL)) {
        return Err(DropReason::TunnelLoop);
    }
    frame.send_to(entry.peer);
    let (teid, length, rqi) = (entry.teid, frame.len(), entry.marking & 0x80 != 0 || received_rqi);
    // A call for each form, so that the header of each is made of constants.
    let taken = if marks == NO_QFI || !entry.is(flag::CONTAINER_DOWNLINK | flag::CONTAINER_UPLINK) {
        gtpu::encapsulate(frame.headroom(), teid, length, None)
    } else if !entry.is(flag::CONTAINER_DOWNLINK) {
        gtpu::encapsulate(frame.headroom(), teid, length, Some(PduSession::Uplink { qfi }))
    } else if entry.marking & 0x40 == 0 {
        let container = PduSession::Downlink { qfi, rqi, ppi: None };
        gtpu::encapsulate(frame.headroom(), teid, length, Some(container))
    } else {
        let container = PduSession::Downlink { qfi, rqi, ppi: Some(entry.marking & 7) };
        gtpu::encapsulate(frame.headroom(), teid, length, Some(container))
    };
    frame.set_tos(if entry.is(flag::TOS) { entry.tos } else { 0 });
    match taken.is_some_and(|taken| frame.grow_front(taken)) {
        true => Ok(()),
        false => Err(DropReason::TooBig),
    }
}

/// Marks an IP packet that leaves without an outer header.
pub(super) fn mark(packet: &mut [u8], tos: u8) {
    match packet.first().map(|octet| octet >> 4) {
        Some(4) if packet.len() >= 20 => {
            packet[1] = tos;
            packet[10..12].fill(0);
            let header = (usize::from(packet[0] & 0x0F) * 4).min(packet.len());
            let sum = packet::checksum::checksum(&packet[..header]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Some(6) if packet.len() >= 2 => {
            packet[0] = 0x60 | tos >> 4;
            packet[1] = packet[1] & 0x0F | tos << 4;
        }
        _ => {}
    }
}
