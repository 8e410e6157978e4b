//! Stage 1: headers. After it, a live packet is the user's IP packet without tunnel, and its key is known.

use classifier::Key;
use packet::flow::Flow;
use packet::gtpu::{self, extension_type, message_type};
use packet::{ParseError, gtpu::Signalling, protocol};
use pktio::{FrameMut, Vector};
use telemetry::DropReason;

use super::Stages;
use super::context::{Snapshot, Source};
use super::packets::{Meta, NO_QFI, State};
use super::rare::signalling;

/// First octet of a G-PDU without options, and of one with extension headers only.
const PLAIN: u8 = 0x30;
const EXTENDED: u8 = 0x34;

impl Stages {
    /// Parses GTP-U: removes the header of G-PDUs; handles and consumes signalling.
    pub(super) fn parse_tunnelled(&mut self, snapshot: Snapshot<'_>, batch: &mut Vector) {
        for i in 0..self.pass.packets.len() {
            let mut frame = batch.frame_mut(i);
            let meta = &mut self.pass.packets.metas[i];
            match usual(frame.packet()) {
                Some((teid, qfi, header, total)) => {
                    (meta.teid, meta.qfi) = (teid, qfi);
                    frame.truncate(total);
                    frame.trim_front(header);
                }
                None => {
                    if !self.parse_unusual(snapshot, i, &mut frame) {
                        continue;
                    }
                }
            }
            let meta = &mut self.pass.packets.metas[i];
            if parse_ip(meta, &mut self.pass.packets.keys[i], &mut frame) {
                self.pass.fragments.push(i as u16);
            }
        }
        if !self.pass.fragments.is_empty() {
            self.fragments.assign(&self.context, &mut self.pass, snapshot, batch);
        }
    }

    /// Parses any GTP-U message; returns whether it is a G-PDU, whose header is then removed.
    #[cold]
    fn parse_unusual(&mut self, snapshot: Snapshot<'_>, i: usize, frame: &mut FrameMut<'_>) -> bool {
        let packet = match gtpu::Packet::new(frame.packet()) {
            Ok(packet) => packet,
            Err(error) => {
                self.pass.packets.metas[i].drop(malformed(error));
                return false;
            }
        };
        if packet.message_type() != message_type::G_PDU {
            let state = signalling::run(&self.context, &self.pass, &mut self.exits, &packet, *frame.peer);
            self.pass.packets.metas[i].state = state;
            return false;
        }
        if packet.unknown_required_extension().is_some() {
            // TS 29.281 §5.2.1: drop the message and tell the peer which extension headers are supported.
            self.pass.packets.metas[i].drop(DropReason::GtpuUnknownExtension);
            let (extra, message) = (&mut self.exits.extra, Signalling::our_extension_headers());
            let (peer, now_ns) = (*frame.peer, snapshot.now_ns);
            signalling::reply_error(&self.context, &self.pass, extra, peer, &message, now_ns);
            return false;
        }
        let meta = &mut self.pass.packets.metas[i];
        meta.teid = packet.teid();
        meta.qfi = packet.pdu_session().map_or(NO_QFI, |container| container.qfi());
        let (total, header) = (packet.bytes().len(), packet.header_len());
        frame.truncate(total);
        frame.trim_front(header);
        true
    }

    /// Parses IP packets to UEs that came without tunnel.
    pub(super) fn parse_native(&mut self, snapshot: Snapshot<'_>, batch: &mut Vector) {
        for i in 0..self.pass.packets.len() {
            let (meta, mut frame) = (&mut self.pass.packets.metas[i], batch.frame_mut(i));
            meta.native = true;
            // Only a fragment from a port needs to be assigned to a flow: the flow of an injected one is known.
            if parse_ip(meta, &mut self.pass.packets.keys[i], &mut frame) && self.pass.source == Source::Port
            {
                self.pass.fragments.push(i as u16);
            }
        }
        if !self.pass.fragments.is_empty() {
            self.fragments.assign(&self.context, &mut self.pass, snapshot, batch);
        }
    }

    /// Parses buffered packets, which are without tunnel. The flows of fragments are known already.
    pub(super) fn parse_held(&mut self, batch: &mut Vector) {
        for i in 0..self.pass.packets.len() {
            parse_ip(
                &mut self.pass.packets.metas[i],
                &mut self.pass.packets.keys[i],
                &mut batch.frame_mut(i),
            );
        }
    }
}

/// TEID, QFI, length of the header and length of the whole of a G-PDU in the usual form of gNBs: without
/// extension header, or with only a PDU Session Container of one word. `None` for others, which
/// [`gtpu::Packet`] parses.
#[inline(always)]
fn usual(bytes: &[u8]) -> Option<(u32, u8, usize, usize)> {
    let head: &[u8; 8] = bytes.first_chunk()?;
    let total = gtpu::HEADER_LEN + usize::from(u16::from_be_bytes([head[2], head[3]]));
    let teid = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    if head[1] != message_type::G_PDU || total > bytes.len() {
        return None;
    }
    if head[0] == PLAIN {
        return Some((teid, NO_QFI, gtpu::HEADER_LEN, total));
    }
    let options: &[u8; 16] = bytes.first_chunk()?;
    // A container of one word has: its length, type and flags, QFI, next type. Flags for optional fields would
    // mean more words.
    let container = head[0] == EXTENDED
        && total >= 16
        && options[11] == extension_type::PDU_SESSION_CONTAINER
        && options[12] == 1
        && options[15] == extension_type::NONE;
    let plain = match options[13] {
        0x00 | 0x10 => options[14] & 0x80 == 0,
        _ => false,
    };
    (container && plain).then_some((teid, options[14] & 0x3F, 16, total))
}

/// Parses an IP packet; returns whether it is a fragment.
#[inline(always)]
fn parse_ip(meta: &mut Meta, key: &mut Key, frame: &mut FrameMut<'_>) -> bool {
    if let Some(usual) = usual_ip(frame.packet()) {
        let qfi = Some(meta.qfi).filter(|qfi| *qfi != NO_QFI);
        key.set_v4(usual.addresses, usual.ports, usual.protocol, usual.tos, qfi);
        cut(meta, frame, usual.length);
        meta.length = usual.length as u32;
        return false;
    }
    let fragment = parse_any_ip(meta, key, frame);
    if meta.qfi != NO_QFI {
        *key = key.with_qfi(meta.qfi);
    }
    fragment
}

/// The needed fields of an IPv4 packet with TCP or UDP.
struct Usual {
    addresses: [u32; 2],
    /// Source port in the upper half.
    ports: u32,
    protocol: u8,
    tos: u8,
    length: usize,
}

/// Cuts off padding after the packet, which would otherwise be sent into the next tunnel. Remembers its length,
/// because the packet may be a frame that only looked like an IP packet ([`Stages::look_up_frames`]).
#[inline(always)]
fn cut(meta: &mut Meta, frame: &mut FrameMut<'_>, length: usize) {
    let padding = frame.len().saturating_sub(length);
    if padding > 0 {
        frame.truncate(length);
        meta.cut = padding as u16;
    }
}

/// Fields of an IPv4 packet with TCP or UDP, without options, that is not a fragment; `None` for others.
#[inline(always)]
fn usual_ip(bytes: &[u8]) -> Option<Usual> {
    let head: &[u8; 24] = bytes.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3FFF;
    let ports = head[9] == protocol::UDP || head[9] == protocol::TCP;
    if head[0] != 0x45 || fragment != 0 || !ports || length < 24 || length > bytes.len() {
        return None;
    }
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (protocol, tos) = (head[9], head[1]);
    Some(Usual { addresses: [word(12), word(16)], ports: word(20), protocol, tos, length })
}

#[cold]
fn parse_any_ip(meta: &mut Meta, out: &mut Key, frame: &mut FrameMut<'_>) -> bool {
    let mut fragment = false;
    match Flow::parse(frame.packet()) {
        Ok(flow) => {
            cut(meta, frame, flow.length);
            meta.length = flow.length as u32;
            *out = key(&flow);
            fragment = flow.fragment.is_some();
        }
        Err(ParseError::Version) => meta.drop(DropReason::NotIp),
        Err(_) => meta.drop(DropReason::IpMalformed),
    }
    debug_assert!(meta.length > 0 || matches!(meta.state, State::Dropped(_)));
    fragment
}

fn key(flow: &Flow) -> Key {
    let mut key = Key::new(flow.source, flow.destination, flow.protocol)
        .with_tos(flow.tos)
        .with_flow_label(flow.flow_label);
    if let Some((source, destination)) = flow.ports {
        key = key.with_ports(source, destination);
    }
    if let Some(spi) = flow.spi {
        key = key.with_spi(spi);
    }
    key
}

fn malformed(error: ParseError) -> DropReason {
    match error {
        ParseError::TooManyExtensions | ParseError::Value => DropReason::GtpuExtension,
        _ => DropReason::GtpuMalformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fast paths agree with the general parsers wherever they give a result.
    #[test]
    fn usual_packets_are_read_as_unusual_ones() {
        let container = Some(gtpu::PduSession::Uplink { qfi: 9 });
        let mut udp = packet::transport::build_udp(
            ("10.45.0.2".parse().unwrap(), 4000),
            ("10.0.0.1".parse().unwrap(), 53),
            b"question",
        )
        .unwrap();
        udp = packet::ipv4::Header::new([10, 45, 0, 2].into(), [10, 0, 0, 1].into(), 17).build(&udp).unwrap();
        let gpdu = gtpu::build_gpdu(7, container, &udp).unwrap();
        let mut answered = 0;
        for bytes in [gpdu.clone(), gtpu::build_gpdu(7, None, &udp).unwrap()] {
            for at in 0..bytes.len().min(24) {
                for bit in 0..9 {
                    let mut bytes = bytes.clone();
                    if bit < 8 {
                        bytes[at] ^= 1 << bit;
                    }
                    let Some((teid, qfi, header, total)) = usual(&bytes) else { continue };
                    answered += 1;
                    let packet = gtpu::Packet::new(&bytes).unwrap();
                    assert_eq!(
                        (packet.teid(), packet.header_len(), packet.bytes().len()),
                        (teid, header, total)
                    );
                    assert_eq!(packet.pdu_session().map_or(NO_QFI, |container| container.qfi()), qfi);
                    assert!(packet.unknown_required_extension().is_none());
                }
            }
        }
        for at in 0..udp.len() {
            for bit in 0..9 {
                let mut bytes = udp.clone();
                if bit < 8 {
                    bytes[at] ^= 1 << bit;
                }
                let Some(usual) = usual_ip(&bytes) else { continue };
                answered += 1;
                let flow = Flow::parse(&bytes).unwrap();
                for qfi in [None, Some(9)] {
                    let mut found = key(&flow).with_spi(7).with_qfi(3);
                    found.set_v4(usual.addresses, usual.ports, usual.protocol, usual.tos, qfi);
                    let right = qfi.map_or(key(&flow), |qfi| key(&flow).with_qfi(qfi));
                    assert_eq!((right, flow.length), (found, usual.length));
                }
            }
        }
        assert!(answered > 500, "{answered}");
    }
}
