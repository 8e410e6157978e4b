//! The FAR: drop, buffer, or send on, with a new outer header where it says so.

use packet::gtpu::{self, PduSession};
use pktio::{Batch, Buffer};
use telemetry::DropReason;

use super::held::Waiting;
use super::{Event, NO_QFI, Pipeline, State};
use crate::session::{Endpoint, Entry, flag, kind};
use crate::tables::Tables;

/// Packets per second that the CP function gets in the long run, as an interval, and how many at once.
const CONTROL_INTERVAL_NS: u64 = 1_000_000;
const CONTROL_BURST_NS: u64 = 200 * CONTROL_INTERVAL_NS;

impl Pipeline {
    /// Applies the FAR to a packet.
    #[inline(always)]
    pub(super) fn forward(
        &mut self,
        tables: &Tables,
        batch: &mut Batch,
        at: usize,
        endpoint: &Endpoint,
        entry: &Entry,
        now_ns: u64,
    ) {
        let received_qfi = self.metas[at].qfi;
        match entry.kind() {
            kind::TUNNEL => {
                if entry.is(flag::CONTROL)
                    && !self.control_meter.conforms(now_ns, CONTROL_INTERVAL_NS, CONTROL_BURST_NS)
                {
                    return self.metas[at].drop(DropReason::ControlOverflow);
                }
                if encapsulate(&mut batch.buffers_mut()[at], tables, entry, received_qfi) {
                    self.to_n3.push(at as u16);
                } else {
                    self.metas[at].drop(DropReason::TooBig);
                }
            }
            kind::NETWORK => {
                let words = self.keys[at].words();
                if self.guard.suspects(words[3] as u8, words[2] as u16)
                    && packet::flow::Flow::parse(batch.buffers()[at].packet())
                        .is_ok_and(|flow| self.guard.stops(&flow))
                {
                    return self.metas[at].drop(DropReason::CoreInterface);
                }
                match self.to_n6.get_mut(entry.teid as usize) {
                    Some(selected) => {
                        if entry.is(flag::TOS) {
                            mark(batch.buffers_mut()[at].packet_mut(), entry.tos);
                        }
                        selected.push(at as u16);
                    }
                    None => self.metas[at].drop(DropReason::FarDrop),
                }
            }
            kind::BUFFER => self.hold(batch, at, endpoint, entry),
            _ => self.metas[at].drop(DropReason::FarDrop),
        }
    }

    /// Holds a packet back, and tells the CP function of the first one if the rules say so.
    #[cold]
    pub(super) fn hold(&mut self, batch: &Batch, at: usize, endpoint: &Endpoint, entry: &Entry) {
        let (seid, meta) = (endpoint.seid(), &mut self.metas[at]);
        let buffering = entry.kind() == kind::BUFFER;
        let most = if buffering { entry.teid as usize } else { 0 };
        let octets = batch.buffers()[at].packet().into();
        let waiting = Waiting { octets, native: meta.native, qfi: meta.qfi, teid: meta.teid };
        match self.held.hold(seid, most, waiting) {
            Some(first) => {
                meta.state = State::Consumed;
                if first && buffering && entry.is(flag::NOTIFY) {
                    self.held.told(seid);
                    self.tell(Event::DownlinkData { seid, pdr: entry.pdr });
                }
            }
            None => meta.drop(DropReason::BufferOverflow),
        }
    }

    /// Sends a copy of a packet that has just been sorted; `length` is that of the user's packet.
    #[cold]
    pub(super) fn copy(&mut self, tables: &Tables, batch: &Batch, at: usize, further: &Entry, length: usize) {
        let packet = batch.buffers()[at].packet();
        let packet = &packet[packet.len().saturating_sub(length)..];
        let position = self.copies.len() as u16;
        if !self.copies.push(packet, self.local) {
            return self.stats[self.worker].drops.count(DropReason::TxQueueFull);
        }
        let Some(buffer) = self.copies.buffers_mut().last_mut() else { return };
        if further.kind() == kind::COPY_NETWORK {
            self.copies_to_n6.push((further.teid as usize, position));
        } else if encapsulate(buffer, tables, further, self.metas[at].qfi) {
            self.copies_to_n3.push(position);
        }
    }
}

/// Puts the packet into a tunnel; `false` when it does not fit.
#[inline(always)]
fn encapsulate(buffer: &mut Buffer, tables: &Tables, entry: &Entry, received_qfi: u8) -> bool {
    let qfi = if entry.qfi == NO_QFI { received_qfi } else { entry.qfi };
    let container = if qfi == NO_QFI || !entry.is(flag::CONTAINER_DOWNLINK | flag::CONTAINER_UPLINK) {
        None
    } else if entry.is(flag::CONTAINER_DOWNLINK) {
        let ppi = (entry.marking & 0x40 != 0).then_some(entry.marking & 7);
        Some(PduSession::Downlink { qfi, rqi: entry.marking & 0x80 != 0, ppi })
    } else {
        Some(PduSession::Uplink { qfi })
    };
    let Some(peer) = tables.peer(entry.peer) else { return false };
    let length = buffer.len();
    let Some(taken) = gtpu::encapsulate(buffer.headroom(), entry.teid, length, container) else {
        return false;
    };
    buffer.peer = peer;
    buffer.tos = if entry.is(flag::TOS) { entry.tos } else { 0 };
    buffer.grow_front(taken)
}

/// Marks an IP packet that leaves without outer header.
fn mark(packet: &mut [u8], tos: u8) {
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
