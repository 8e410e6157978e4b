//! Stage 1: headers. After it, a live packet is the user's IP packet without tunnel, its key is known, and the slot of
//! its endpoint is being fetched.

use std::net::Ipv6Addr;

use classifier::Key;
use packet::flow::Flow;
use packet::gtpu::{self, extension_type, message_type};
use packet::{ParseError, gtpu::Signalling, protocol};
use pktio::{Frame, FrameMut, Vector};
use rcu::Guard as Inside;
use telemetry::DropReason;

use super::Stages;
use super::context::{Context, Input, Pass, Snapshot, Source};
use super::exits::Exits;
use super::look_up::{PlaceOf, Places};
use super::packets::{self, Meta, NO_QFI, Packets, State};
use super::rare::signalling;
use crate::tables::{Instance, SlotRef};

/// First octet of a G-PDU without options, and of one with extension headers only.
const PLAIN: u8 = 0x30;
const EXTENDED: u8 = 0x34;

impl Stages {
    /// Parses GTP-U: removes the header of G-PDUs; handles and consumes signalling.
    pub(super) fn parse_tunnelled<'g>(
        &mut self,
        snapshot: Snapshot<'g>,
        batch: &mut Vector,
        places: &mut Places<'g>,
    ) {
        let Pass { input, packets, fragments, .. } = &mut self.pass;
        let instance = snapshot.tables.instance(input.instance);
        for (at, ((mut frame, place), (meta, key))) in batch
            .frames_mut()
            .zip(places.iter_mut())
            .zip(packets.metas.iter_mut().zip(&mut packets.keys))
            .enumerate()
        {
            match usual(frame.packet()) {
                Some((teid, marks, header, total)) => {
                    (meta.teid, meta.marks) = (teid, marks);
                    frame.truncate(total);
                    frame.trim_front(header);
                }
                None => {
                    let now_ns = snapshot.now_ns;
                    if !parse_unusual(&self.context, input, &mut self.exits, meta, &mut frame, now_ns) {
                        continue;
                    }
                }
            }
            place.set(Some(instance.place_of_teid(meta.teid)));
            if parse_ip(meta, key, &mut frame, meta.marks) {
                fragments.push(at as u16);
            }
        }
        if !fragments.is_empty() {
            self.fragments.assign(&self.context, &mut self.pass, snapshot, batch);
        }
    }

    /// Parses IP packets to UEs that came without tunnel.
    pub(super) fn parse_native<'g>(
        &mut self,
        snapshot: Snapshot<'g>,
        batch: &mut Vector,
        places: &mut Places<'g>,
    ) {
        let Pass { input, packets, fragments, source, .. } = &mut self.pass;
        let instance = snapshot.tables.instance(input.instance);
        for (at, ((mut frame, place), (meta, key))) in batch
            .frames_mut()
            .zip(places.iter_mut())
            .zip(packets.metas.iter_mut().zip(&mut packets.keys))
            .enumerate()
        {
            meta.native = true;
            // Only a fragment from a port needs to be assigned to a flow: the flow of an injected one is known.
            if parse_ip(meta, key, &mut frame, NO_QFI) && *source == Source::Port {
                fragments.push(at as u16);
            }
            if meta.state == State::Live {
                place.set(place_of_ue(instance, snapshot.inside, key, &frame));
            }
        }
        if !fragments.is_empty() {
            self.fragments.assign(&self.context, &mut self.pass, snapshot, batch);
        }
    }

    /// Parses buffered packets, which are without tunnel. The flows of fragments are known already.
    pub(super) fn parse_held(&mut self, batch: &mut Vector) {
        let Packets { metas, keys, .. } = &mut self.pass.packets;
        for ((mut frame, meta), key) in batch.frames_mut().zip(metas).zip(keys) {
            parse_ip(meta, key, &mut frame, meta.marks);
        }
    }

    /// The places of packets that are parsed already: buffered ones, and fragments that have waited.
    pub(super) fn places_of<'g>(&self, snapshot: Snapshot<'g>, batch: &Vector) -> Places<'g> {
        let Packets { metas, keys, .. } = &self.pass.packets;
        let (instance, mut places) = (snapshot.tables.instance(self.pass.input.instance), PlaceOf::NONE);
        for ((frame, place), (meta, key)) in
            batch.frames().iter().zip(places.iter_mut()).zip(metas.iter().zip(keys))
        {
            place.set(match meta.native {
                true => place_of_ue(instance, snapshot.inside, key, frame),
                false => Some(instance.place_of_teid(meta.teid)),
            });
        }
        places
    }
}

/// Where the endpoint of an IP packet's destination is, if that may be a UE.
#[inline(always)]
fn place_of_ue<'g>(
    instance: Instance<'g>,
    inside: &Inside<'_>,
    key: &Key,
    frame: &Frame,
) -> Option<SlotRef<'g>> {
    match key.destination_v4() {
        Some(destination) => instance.place_of_v4(inside, destination),
        None => {
            let address: &[u8; 16] = frame.packet().get(24..40)?.first_chunk()?;
            instance.place_of_v6(inside, Ipv6Addr::from(*address))
        }
    }
}

/// Parses any GTP-U message; returns whether it is a G-PDU, whose header is then removed.
#[cold]
fn parse_unusual(
    context: &Context,
    input: &Input,
    exits: &mut Exits,
    meta: &mut Meta,
    frame: &mut FrameMut<'_>,
    now_ns: u64,
) -> bool {
    let packet = match gtpu::Packet::new(frame.packet()) {
        Ok(packet) => packet,
        Err(error) => {
            meta.drop(malformed(error));
            return false;
        }
    };
    if packet.message_type() != message_type::G_PDU {
        meta.state = signalling::run(context, input, exits, &packet, *frame.peer);
        return false;
    }
    if packet.unknown_required_extension().is_some() {
        // TS 29.281 §5.2.1: drop the message and tell the peer which extension headers are supported.
        meta.drop(DropReason::GtpuUnknownExtension);
        let message = Signalling::our_extension_headers();
        signalling::reply_error(context, input, &mut exits.extra, *frame.peer, &message, now_ns);
        return false;
    }
    meta.teid = packet.teid();
    meta.marks = marks_of(packet.pdu_session());
    let (total, header) = (packet.bytes().len(), packet.header_len());
    frame.truncate(total);
    frame.trim_front(header);
    true
}

/// What stages remember of a PDU Session Container.
fn marks_of(container: Option<gtpu::PduSession>) -> u8 {
    match container {
        Some(gtpu::PduSession::Downlink { qfi, rqi, .. }) => qfi | if rqi { packets::RQI } else { 0 },
        Some(gtpu::PduSession::Uplink { qfi }) => qfi,
        None => NO_QFI,
    }
}

/// TEID, marks, length of the header and length of the whole of a G-PDU in the usual form of gNBs: without
/// extension header, or with only a PDU Session Container of one word. `None` for others, which
/// [`gtpu::Packet`] parses.
#[inline(always)]
fn usual(bytes: &[u8]) -> Option<(u32, u8, usize, usize)> {
    // Flags, type, length, TEID.
    let head = u64::from_be_bytes(*bytes.first_chunk()?);
    let (flags_and_type, teid) = ((head >> 48) as u16, head as u32);
    let total = gtpu::HEADER_LEN + usize::from((head >> 32) as u16);
    if total > bytes.len() {
        return None;
    }
    if flags_and_type == u16::from_be_bytes([EXTENDED, message_type::G_PDU]) && total >= 16 {
        // Sequence number (2), N-PDU number, next type, length of the container, its type and flags, QFI, next type.
        let options = u64::from_be_bytes(*bytes[..total].get(8..16)?.first_chunk()?);
        let container = options & CONTAINER_MASK == CONTAINER;
        // Only downlink has an RQI: in a container of type 1 the bit is a spare one.
        let (kind, marks) = ((options >> 16) as u8, (options >> 8) as u8 & 0x7F);
        return container.then_some((teid, marks & !(kind << 2), 16, total));
    }
    let plain = flags_and_type == u16::from_be_bytes([PLAIN, message_type::G_PDU]);
    plain.then_some((teid, NO_QFI, gtpu::HEADER_LEN, total))
}

/// The octets that a usual PDU Session Container has in common with others: that it is the only extension header, is one
/// word long, is of type 0 or 1, and has no flags for optional fields, which would mean more words.
const CONTAINER_MASK: u64 = 0x0000_00FF_FFEF_80FF;
const CONTAINER: u64 = (extension_type::PDU_SESSION_CONTAINER as u64) << 32 | 1 << 24;
const _: () = assert!(extension_type::NONE == 0);

/// Parses an IP packet with these marks; returns whether it is a fragment.
#[inline(always)]
fn parse_ip(meta: &mut Meta, key: &mut Key, frame: &mut FrameMut<'_>, marks: u8) -> bool {
    let qfi = packets::qfi_of(marks);
    if let Some(usual) = usual_ip(frame.packet()) {
        key.set_v4(usual.addresses, usual.ports, usual.protocol, usual.tos, qfi);
        cut(meta, frame, usual.length);
        meta.length = usual.length as u32;
        return false;
    }
    let fragment = parse_any_ip(meta, key, frame);
    if let Some(qfi) = qfi {
        *key = key.with_qfi(qfi);
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
    // Version and header length, TOS, length, identification, flags and fragment offset.
    let first = u64::from_be_bytes(*head.first_chunk()?);
    let length = usize::from((first >> 32) as u16);
    let whole = first & 0xFF00_0000_0000_3FFF == 0x4500_0000_0000_0000;
    let ports = head[9] == protocol::UDP || head[9] == protocol::TCP;
    if !whole || !ports || length < 24 || length > bytes.len() {
        return None;
    }
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (protocol, tos) = (head[9], (first >> 48) as u8);
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
        let uplink = Some(gtpu::PduSession::Uplink { qfi: 9 });
        let downlink = Some(gtpu::PduSession::Downlink { qfi: 9, rqi: true, ppi: None });
        let mut udp = packet::transport::build_udp(
            ("10.45.0.2".parse().unwrap(), 4000),
            ("10.0.0.1".parse().unwrap(), 53),
            b"question",
        )
        .unwrap();
        udp = packet::ipv4::Header::new([10, 45, 0, 2].into(), [10, 0, 0, 1].into(), 17).build(&udp).unwrap();
        let gpdu = |container| gtpu::build_gpdu(7, container, &udp).unwrap();
        let mut answered = 0;
        for bytes in [uplink, downlink, None].map(gpdu) {
            for at in 0..bytes.len().min(24) {
                for bit in 0..9 {
                    let mut bytes = bytes.clone();
                    if bit < 8 {
                        bytes[at] ^= 1 << bit;
                    }
                    let Some((teid, marks, header, total)) = usual(&bytes) else { continue };
                    answered += 1;
                    let packet = gtpu::Packet::new(&bytes).unwrap();
                    assert_eq!(
                        (packet.teid(), packet.header_len(), packet.bytes().len()),
                        (teid, header, total)
                    );
                    assert_eq!(marks_of(packet.pdu_session()), marks);
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
