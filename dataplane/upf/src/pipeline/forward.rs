//! The last part of stage 3: applies the FAR. A packet is dropped, buffered, redirected, or sent, if necessary
//! with a new outer header.

use packet::flow::Flow;
use packet::gtpu::{self, PduSession};
use packet::protocol;
use pktio::{FrameMut, Vector};
use telemetry::DropReason;

use super::ethernet::View;
use super::execute::further;
use super::held::Waiting;
use super::mtu::{self, Fit, Fragments};
use super::{Event, Inside, NO_QFI, Pipeline, Source, State, Way};
use crate::session::{Endpoint, Entry, Policy, flag, kind};
use crate::state::{Cells, Gauged};
use crate::tables::{FarEnd, Receiver, Tables};

/// Interval in which the CP function gets packets in the long run (1,000 per second), and most packets at once.
const CONTROL_INTERVAL_NS: u64 = 1_000_000;
const CONTROL_BURST_NS: u64 = 200 * CONTROL_INTERVAL_NS;

impl Pipeline {
    /// Whether the CP function may get another packet now.
    pub(super) fn admits_control(&self, now_ns: u64) -> bool {
        self.tables.limits.control.conforms(now_ns, CONTROL_INTERVAL_NS, CONTROL_BURST_NS)
    }

    /// Sends a packet into a tunnel; returns whether it is sent.
    #[inline(always)]
    pub(super) fn send_into_tunnel(
        &mut self,
        tables: &Tables,
        batch: &mut Vector,
        at: usize,
        entry: &Entry,
        now_ns: u64,
    ) -> bool {
        let meta = &mut self.packets.metas[at];
        // A packet that this UPF itself sent into a tunnel must not enter a tunnel again: it would circulate.
        if !meta.native && self.source == Source::Port && self.locals.contains(&batch.peer(at).ip()) {
            meta.drop(DropReason::TunnelLoop);
            return false;
        }
        let Some(peer) = tables.peer(entry.peer) else {
            meta.drop(DropReason::FarDrop);
            return false;
        };
        if meta.length + ppi_len(entry) as u32 > self.links.of(peer.interface).mtu {
            return self.too_long(tables, batch, at, entry, now_ns);
        }
        let mut frame = batch.frame_mut(at);
        if self.packets.keys[at].words()[3] as u8 == protocol::TCP {
            mtu::clamp_syn(frame.packet_mut(), self.input.clamp);
        }
        let result = encapsulate(&mut frame, peer, entry, meta.qfi);
        match result {
            Ok(()) => self.outputs.push(peer.interface, at),
            Err(reason) => meta.drop(reason),
        }
        result.is_ok()
    }

    /// Sends a packet to a data network; returns whether it is sent.
    #[inline(always)]
    pub(super) fn send_to_network(
        &mut self,
        tables: &Tables,
        batch: &mut Vector,
        at: usize,
        entry: &Entry,
        now_ns: u64,
    ) -> bool {
        let meta = &mut self.packets.metas[at];
        let words = self.packets.keys[at].words();
        let mut frame = batch.frame_mut(at);
        if let Some(reason) = self.closed.stops(entry.teid as usize, frame.packet(), || ports_of(words[2])) {
            meta.drop(reason);
            return false;
        }
        let link = self.links.of(entry.teid as u8);
        if entry.is(flag::TOS) {
            mark(frame.packet_mut(), entry.tos);
        }
        if meta.length > link.mtu {
            return self.too_long(tables, batch, at, entry, now_ns);
        }
        if words[3] as u8 == protocol::TCP {
            mtu::clamp_syn(frame.packet_mut(), link.clamp as usize);
        }
        self.outputs.push(entry.teid as u8, at);
        true
    }

    /// Answers or drops a packet that is not forwarded.
    #[cold]
    pub(super) fn not_forwarded(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        batch: &Vector,
        at: usize,
        block: &[Endpoint],
        entry: &Entry,
    ) {
        let Some(endpoint) = block.first() else { return };
        match entry.kind() {
            kind::REDIRECT => self.redirect(tables, inside, batch, at, entry),
            _ => {
                self.packets.metas[at].drop(DropReason::FarDrop);
                let cells = Cells::new(&tables.lines, endpoint.state());
                for further in further(block, entry) {
                    match further.kind() {
                        kind::NOTICE if cells.gauge(further.account, 1) == Gauged::Reached => {
                            self.send_event(Event::DownlinkData { seid: endpoint.seid(), pdr: entry.pdr });
                        }
                        kind::COPY_TUNNEL | kind::COPY_NETWORK => {
                            let length = self.packets.metas[at].length as usize;
                            self.copy(tables, batch, at, further, length);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Answers a web request in the name of its server.
    fn redirect(&mut self, tables: &Tables, inside: &Inside<'_>, batch: &Vector, at: usize, entry: &Entry) {
        self.count_way(Way::Redirect, 1);
        let mut scratch = std::mem::take(&mut self.scratch);
        let secret = tables.translations.secret();
        let answer = match tables.policy(inside, entry.teid) {
            Some(Policy::Redirect(url)) if !self.source.is_own() => {
                url.answer(batch.frames()[at].packet(), secret, &mut scratch)
            }
            _ => None,
        };
        // The interface of the session's data network.
        let answered = answer.is_some_and(|length| self.inject(&scratch[..length], entry.peer as u8));
        self.scratch = scratch;
        self.packets.metas[at].drop(if answered { DropReason::Redirected } else { DropReason::FarDrop });
    }

    /// Translates a packet of a session that redirects to an address, or that accepts only answers to
    /// redirected packets. Returns whether the packet goes on in this pass.
    #[cold]
    pub(super) fn translate(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        batch: &mut Vector,
        at: usize,
        block: &[Endpoint],
        entry: &Entry,
    ) -> bool {
        self.count_way(Way::Translate, 1);
        let result = if self.source.is_own() || entry.kind() == kind::BUFFER {
            Ok(())
        } else if entry.is(flag::UPLINK) {
            // Answers to what leaves through a tunnel come back through one, and are not translated.
            let network = (entry.kind() == kind::NETWORK).then(|| self.interfaces.number(entry.teid as u16));
            let to = network.flatten().map(|interface| interface.instance);
            let target = further(block, entry).find(|further| further.kind() == kind::ADDRESS);
            match target.and_then(|target| tables.policy(inside, target.teid)) {
                Some(Policy::Address(server)) => {
                    tables.translations.outbound(batch.frame_mut(at).packet_mut(), *server, to)
                }
                _ => Err(DropReason::FarDrop),
            }
        } else if self.translate_back(tables, batch, at) {
            return false;
        } else if entry.is(flag::ANSWERS) {
            Err(DropReason::FarDrop)
        } else {
            Ok(())
        };
        if let Err(reason) = result {
            self.packets.metas[at].drop(reason);
        }
        result.is_ok()
    }

    /// Handles a downlink packet that no rule matches: it may be the answer to a redirected packet from a
    /// server that no filter names.
    #[cold]
    pub(super) fn not_matched(&mut self, tables: &Tables, batch: &mut Vector, at: usize) {
        if !self.source.is_own() && !tables.translations.is_empty() {
            self.translate_back(tables, batch, at);
        }
    }

    /// Gives the answer to a redirected packet the source to which its UE sent, and has it looked up again with
    /// that source. Returns whether the packet was such an answer.
    fn translate_back(&mut self, tables: &Tables, batch: &mut Vector, at: usize) -> bool {
        let mut frame = batch.frame_mut(at);
        let packet = frame.packet_mut();
        let translated =
            self.packets.metas[at].native && tables.translations.inbound(packet, self.input.instance);
        if translated {
            self.packets.metas[at].state = match self.inject(packet, self.input.interface) {
                true => State::Consumed,
                false => State::Dropped(DropReason::TxQueueFull),
            };
        }
        translated
    }

    /// Handles a packet that is too long for its link: fragments it, or answers its sender. Returns whether it
    /// is sent.
    #[cold]
    fn too_long(
        &mut self,
        tables: &Tables,
        batch: &mut Vector,
        at: usize,
        entry: &Entry,
        now_ns: u64,
    ) -> bool {
        self.count_way(Way::TooLong, 1);
        if entry.is(flag::FRAME) {
            // No ICMP message can ask a sender for shorter frames: the tunnel packet is fragmented, or the port
            // refuses it.
            let Some(peer) = tables.peer(entry.peer) else { return false };
            let result = encapsulate(&mut batch.frame_mut(at), peer, entry, self.packets.metas[at].qfi);
            match result {
                Ok(()) => self.outputs.push(peer.interface, at),
                Err(reason) => self.packets.metas[at].drop(reason),
            }
            return result.is_ok();
        }
        let packet = batch.frames()[at].packet();
        let tunnel = entry.kind() == kind::TUNNEL;
        let limit = match tables.peer(entry.peer).filter(|_| tunnel) {
            Some(peer) => (self.links.of(peer.interface).mtu as usize).saturating_sub(ppi_len(entry)),
            None => self.links.of(entry.teid as u8).mtu as usize,
        };
        let result = match mtu::fit(packet, limit) {
            Fit::Fragment => self.fragment(tables, packet, at, entry, limit),
            _ => Err(DropReason::TooBig),
        };
        match result {
            Ok(()) => self.packets.metas[at].state = State::Consumed,
            Err(reason) => self.packets.metas[at].drop(reason),
        }
        if result == Err(DropReason::TooBig) {
            self.answer_too_big(packet, limit, (!tunnel).then_some(entry.teid as u8), now_ns);
        }
        result.is_ok()
    }

    /// Sends the fragments of a packet: all, or none.
    fn fragment(
        &mut self,
        tables: &Tables,
        packet: &[u8],
        at: usize,
        entry: &Entry,
        limit: usize,
    ) -> Result<(), DropReason> {
        let mut fragments = Fragments::new(packet, limit).ok_or(DropReason::TooBig)?;
        if fragments.count() > self.extra.room() {
            return Err(DropReason::TxQueueFull);
        }
        let qfi = self.packets.metas[at].qfi;
        while let Some(length) = fragments.next(&mut self.scratch) {
            let pushed = self.extra.push(&self.scratch[..length], &self.home, self.input.local);
            let Some((position, mut frame)) = pushed else { break };
            let interface = if entry.kind() == kind::NETWORK {
                entry.teid as u8
            } else {
                let peer = tables.peer(entry.peer).ok_or(DropReason::FarDrop)?;
                encapsulate(&mut frame, peer, entry, qfi)?;
                peer.interface
            };
            self.extra.to[usize::from(interface)].push(position);
        }
        Ok(())
    }

    /// Tells the sender of a packet how long it may be. The sender is in the data network from which the packet
    /// came, or is the UE. `to` is the interface of the network to which the packet should have gone.
    fn answer_too_big(&mut self, packet: &[u8], limit: usize, to: Option<u8>, now_ns: u64) {
        let from = (!self.input.has_tunnels).then_some(self.input.interface);
        let (Some(network), Ok(flow)) = (to.or(from), Flow::parse(packet)) else { return };
        let link = *self.links.of(network);
        // The sender would not recognise a packet that was changed here.
        if self.source.is_own() || !self.tables.limits.replies.allows(now_ns, flow.source) {
            return;
        }
        let mtu = u16::try_from(limit).unwrap_or(u16::MAX);
        let mut scratch = std::mem::take(&mut self.scratch);
        if let Some(length) = mtu::answer(packet, mtu, &link.router, &mut scratch) {
            match from {
                Some(from) => {
                    let pushed = self.extra.push(&scratch[..length], &self.home, self.input.local);
                    let position = pushed.map(|(position, _)| position);
                    self.extra.to[usize::from(from)].extend(position);
                }
                None => self.answer(&scratch[..length], network),
            }
        }
        self.scratch = scratch;
    }

    /// Buffers a packet, and tells the CP function of the first one if the rules ask for it.
    #[cold]
    pub(super) fn hold(&mut self, batch: &Vector, at: usize, endpoint: &Endpoint, entry: &Entry) {
        self.count_way(Way::Buffer, 1);
        let (seid, meta) = (endpoint.seid(), &mut self.packets.metas[at]);
        let buffering = entry.kind() == kind::BUFFER;
        let most = if buffering { entry.teid as usize } else { 0 };
        let octets: Box<[u8]> = batch.frames()[at].packet().into();
        let frame = entry.is(flag::FRAME);
        let flow = match frame {
            true => View::parse(&octets).ok().and_then(|view| view.flow),
            false => Flow::parse(&octets).ok(),
        };
        let later = flow.and_then(|flow| flow.fragment).is_some_and(|part| part.offset > 0);
        let key = later.then(|| Box::new(self.packets.keys[at]));
        let (native, qfi, teid) = (meta.native, meta.qfi, meta.teid);
        let waiting = Waiting { octets, interface: self.input.interface, native, qfi, frame, teid, key };
        match self.held.hold(seid, most, waiting) {
            Some(first) => {
                meta.state = State::Consumed;
                if first && buffering && entry.is(flag::NOTIFY) {
                    self.held.told(seid);
                    self.send_event(Event::DownlinkData { seid, pdr: entry.pdr });
                }
            }
            None => meta.drop(DropReason::BufferOverflow),
        }
    }

    /// Sends a copy of a packet; `length` is that of the user's packet.
    #[cold]
    pub(super) fn copy(
        &mut self,
        tables: &Tables,
        batch: &Vector,
        at: usize,
        further: &Entry,
        length: usize,
    ) {
        self.count_way(Way::Copy, 1);
        let packet = batch.frames()[at].packet();
        let packet = &packet[packet.len().saturating_sub(length)..];
        if further.kind() == kind::COPY_NETWORK {
            let ports = || ports_of(self.packets.keys[at].words()[2]);
            if let Some(reason) = self.closed.stops(further.teid as usize, packet, ports) {
                return self.stats[self.worker].drops.count(reason);
            }
        }
        let Some((position, mut frame)) = self.extra.push(packet, &self.home, self.input.local) else {
            return self.stats[self.worker].drops.count(DropReason::TxQueueFull);
        };
        if further.kind() == kind::COPY_NETWORK {
            if further.is(flag::TOS) {
                mark(frame.packet_mut(), further.tos);
            }
            self.extra.to[usize::from(further.teid as u8)].push(position);
            return;
        }
        let Some(peer) = tables.peer(further.peer) else {
            return self.stats[self.worker].drops.count(DropReason::FarDrop);
        };
        match encapsulate(&mut frame, peer, further, self.packets.metas[at].qfi) {
            Ok(()) => self.extra.to[usize::from(peer.interface)].push(position),
            Err(reason) => self.stats[self.worker].drops.count(reason),
        }
    }
}

/// Source and destination port from word 2 of a key; `None` when it is zero.
fn ports_of(word: u32) -> Option<(u16, u16)> {
    (word != 0).then_some(((word >> 16) as u16, word as u16))
}

/// Octets of a PDU Session Container beyond its first word: a paging policy indicator takes a second one.
#[inline(always)]
fn ppi_len(entry: &Entry) -> usize {
    usize::from(entry.marking & 0x40) >> 4
}

/// Puts the packet into a tunnel, or returns why that is not possible.
#[inline(always)]
fn encapsulate(
    frame: &mut FrameMut<'_>,
    peer: FarEnd,
    entry: &Entry,
    received_qfi: u8,
) -> Result<(), DropReason> {
    let qfi = if entry.qfi == NO_QFI { received_qfi } else { entry.qfi };
    let container = if qfi == NO_QFI || !entry.is(flag::CONTAINER_DOWNLINK | flag::CONTAINER_UPLINK) {
        None
    } else if entry.is(flag::CONTAINER_DOWNLINK) {
        let ppi = (entry.marking & 0x40 != 0).then_some(entry.marking & 7);
        Some(PduSession::Downlink { qfi, rqi: entry.marking & 0x80 != 0, ppi })
    } else {
        Some(PduSession::Uplink { qfi })
    };
    // The CP function may be on this machine (N4-u); a gNB or another UPF must not be.
    if peer.receiver != Receiver::Other && !(peer.receiver == Receiver::Local && entry.is(flag::CONTROL)) {
        return Err(DropReason::TunnelLoop);
    }
    frame.send_to(entry.peer);
    let length = frame.len();
    let taken = gtpu::encapsulate(frame.headroom(), entry.teid, length, container);
    frame.set_tos(if entry.is(flag::TOS) { entry.tos } else { 0 });
    match taken.is_some_and(|taken| frame.grow_front(taken)) {
        true => Ok(()),
        false => Err(DropReason::TooBig),
    }
}

/// Marks an IP packet that leaves without an outer header.
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
