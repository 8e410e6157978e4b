//! Packets of random subscribers, made quickly: templates whose addresses, ports and TEID are filled in.
//!
//! The payload is a mark that tells packets apart, followed by octets of a fixed sequence, so that the
//! receiving end knows every octet ([`super::contents`]).

use std::net::Ipv4Addr;

use classifier::generate::Random;
use packet::gtpu::{PduSession, build_gpdu};
use packet::transport::build_udp;
use packet::{checksum, ipv4, protocol};
use pktio::FrameMut;

use super::subscriber::{OTHER_PORT, QFI, SERVER, Subscriber};

/// Octets of the GTP-U header with a PDU Session Container.
pub(crate) const TUNNEL: usize = 16;
/// Octets of the smallest user packet that holds a sequence number: IPv4, UDP and 12 of payload.
pub(crate) const SMALLEST: usize = 40;
/// Octets of a UDP header.
pub(crate) const UDP_HEADER: usize = 8;
/// Offset of the mark in a user's packet.
const MARK: usize = ipv4::HEADER_LEN + UDP_HEADER;
/// The UE's port.
pub(crate) const UE_PORT: u16 = 40_000;

/// Direction of packets.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From gNBs to the data network.
    Uplink,
    /// To gNBs.
    Downlink,
    /// Batches of both directions in turn.
    Mixed,
}

impl Direction {
    pub(crate) const ALL: [Direction; 3] = [Direction::Uplink, Direction::Downlink, Direction::Mixed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Direction::Uplink => "uplink",
            Direction::Downlink => "downlink",
            Direction::Mixed => "mixed",
        }
    }

    /// Whether batch number `at` is uplink.
    pub(crate) fn is_up(self, at: usize) -> bool {
        match self {
            Direction::Uplink => true,
            Direction::Downlink => false,
            Direction::Mixed => at.is_multiple_of(2),
        }
    }
}

/// A packet whose variable fields are filled in for each subscriber.
pub(crate) struct Template {
    packet: Vec<u8>,
    fields: Fields,
}

/// Offsets of the fields that depend on the subscriber.
#[derive(Clone, Copy)]
struct Fields {
    up: bool,
    /// Offset of the user's packet.
    user: usize,
    /// Offset of the TEID, in a tunnel.
    teid: Option<usize>,
    /// Added to UE addresses, for a bare forwarder's device, which has another pool.
    shift: u32,
    /// Checksum of the user packet's IPv4 header without the UE's address.
    sum: u32,
}

impl Fields {
    /// Fills in the fields for a subscriber.
    #[inline]
    fn set(self, packet: &mut [u8], subscriber: Subscriber, teid: u32, service: bool) {
        if let Some(at) = self.teid {
            packet[at..at + 4].copy_from_slice(&teid.to_be_bytes());
        }
        let port = if service { subscriber.service_port() } else { OTHER_PORT };
        let (ue_at, ports) = if self.up { (12, [UE_PORT, port]) } else { (16, [port, UE_PORT]) };
        let user = &mut packet[self.user..];
        let ue = subscriber.ue().to_bits() + self.shift;
        user[ue_at..ue_at + 4].copy_from_slice(&ue.to_be_bytes());
        user[20..22].copy_from_slice(&ports[0].to_be_bytes());
        user[22..24].copy_from_slice(&ports[1].to_be_bytes());
        let sum = self.sum + (ue >> 16) + (ue & 0xFFFF);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = !((sum + (sum >> 16)) as u16);
        user[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

impl Template {
    /// Packets as gNBs and the data network send them: uplink packets in a tunnel, downlink packets without.
    /// The user's packet has `size` octets.
    ///
    /// # Errors
    /// No packet can have this size.
    pub(crate) fn new(up: bool, size: usize) -> anyhow::Result<Template> {
        let user = Template::user(up, size)?;
        if up { user.tunnelled(PduSession::Uplink { qfi: QFI }) } else { Ok(user) }
    }

    /// Users' packets of `size` octets without tunnel.
    ///
    /// # Errors
    /// No packet can have this size.
    pub(crate) fn user(up: bool, size: usize) -> anyhow::Result<Template> {
        let length = size.max(SMALLEST) - MARK;
        let payload: Vec<u8> = (0..length).map(|at| (at as u8).wrapping_mul(167) ^ (at >> 8) as u8).collect();
        let none = Ipv4Addr::UNSPECIFIED;
        let (from, to) = if up { (none, SERVER) } else { (SERVER, none) };
        let mut datagram = build_udp((from.into(), UE_PORT), (to.into(), OTHER_PORT), &payload)?;
        // UDP without checksum, which IPv4 allows: the contents are compared octet by octet.
        datagram[6..8].fill(0);
        // Without this flag, a kernel that forwards the packet would choose an identification.
        let header = ipv4::Header { dont_fragment: true, ..ipv4::Header::new(from, to, protocol::UDP) };
        let mut packet = header.build(&datagram)?;
        packet[10..12].fill(0);
        let sum = u32::from(!checksum::checksum(&packet[..ipv4::HEADER_LEN]));
        let mut template = Template { packet, fields: Fields { up, user: 0, teid: None, shift: 0, sum } };
        template.mark(0, 0);
        Ok(template)
    }

    /// The same packets in a tunnel.
    ///
    /// # Errors
    /// The packet is too long for a tunnel.
    fn tunnelled(self, container: PduSession) -> anyhow::Result<Template> {
        let packet = build_gpdu(0, Some(container), &self.packet)?;
        let (user, teid) = (packet.len() - self.packet.len(), Some(4));
        Ok(Template { packet, fields: Fields { user, teid, ..self.fields } })
    }

    /// The same packets with UE addresses shifted by `shift`.
    pub(crate) fn shifted(mut self, shift: u32) -> Template {
        self.fields.shift = shift;
        self
    }

    /// The same packets behind a constant header.
    pub(super) fn behind(mut self, header: &[u8]) -> Template {
        self.packet.splice(..0, header.iter().copied());
        self.fields.user += header.len();
        self.fields.teid = self.fields.teid.map(|at| at + header.len());
        self
    }

    /// Octets of the packet.
    pub(crate) fn len(&self) -> usize {
        self.packet.len()
    }

    /// The packet of a subscriber, to its service or to another port. `teid` is the UPF's TEID for uplink
    /// packets.
    #[inline]
    pub(crate) fn fill(&mut self, subscriber: Subscriber, teid: u32, service: bool) -> &[u8] {
        self.fields.set(&mut self.packet, subscriber, teid, service);
        &self.packet
    }

    /// Writes the same packet into a frame. Unless `whole`, the payload after the mark is left unchanged.
    #[inline]
    pub(super) fn write(
        &self,
        frame: &mut FrameMut<'_>,
        (subscriber, teid, service): (Subscriber, u32, bool),
        whole: bool,
    ) {
        let head = if whole { self.packet.len() } else { self.fields.user + SMALLEST };
        if frame.restore(self.packet.len()) {
            let packet = frame.packet_mut();
            packet[..head].copy_from_slice(&self.packet[..head]);
            self.fields.set(packet, subscriber, teid, service);
        }
    }

    /// Writes the mark into the payload: a number and a time.
    pub(crate) fn mark(&mut self, sequence: u32, time_ns: u64) {
        let at = self.fields.user + MARK;
        self.packet[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
        self.packet[at + 4..at + 12].copy_from_slice(&time_ns.to_be_bytes());
    }
}

/// Reads what [`Template::mark`] wrote, from a user packet.
#[cfg(test)]
pub(crate) fn marked(inner: &[u8]) -> Option<(u32, u64)> {
    let payload = inner.get(MARK..)?;
    marked_payload(payload)
}

/// Reads what [`Template::mark`] wrote, from the payload of a datagram.
pub(crate) fn marked_payload(payload: &[u8]) -> Option<(u32, u64)> {
    let sequence = u32::from_be_bytes(payload.get(..4)?.try_into().ok()?);
    Some((sequence, u64::from_be_bytes(payload.get(4..12)?.try_into().ok()?)))
}

/// Draws subscribers; half of the packets are for the subscriber's service.
pub(crate) struct Draw {
    random: Random,
    subscribers: usize,
}

impl Draw {
    pub(crate) fn new(subscribers: usize, seed: u64) -> Draw {
        Draw { random: Random::new(seed), subscribers }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> (Subscriber, bool) {
        let service = self.random.bits() & 1 == 0;
        (Subscriber(self.random.below(self.subscribers) as u32), service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::flow::Flow;
    use packet::gtpu::Packet;
    use pktio::Vector;

    #[test]
    fn filled_in_packets_are_whole() {
        for (up, size) in [(true, 64), (false, 64), (true, 1500), (false, 40)] {
            let mut template = Template::new(up, size).unwrap();
            template.mark(7, 99);
            let bytes = template.fill(Subscriber(70_000), 0x1234_5678, true).to_vec();
            let inner = if up {
                let outer = Packet::new(&bytes).unwrap();
                assert_eq!((outer.teid(), outer.header_len()), (0x1234_5678, TUNNEL));
                outer.payload().to_vec()
            } else {
                bytes.clone()
            };
            let flow = Flow::parse(&inner).unwrap();
            let ue = if up { flow.source } else { flow.destination };
            assert_eq!((flow.length, ue), (size, Subscriber(70_000).ue().into()));
            assert!(ipv4::Packet::new(&inner).unwrap().checksum_ok());
            assert_eq!(marked(&inner), Some((7, 99)));
            let mut batch = Vector::new(1, 2048);
            batch.refill(1);
            let framed = template.behind(b"header");
            framed.write(&mut batch.frame_mut(0), (Subscriber(70_000), 0x1234_5678, true), true);
            assert_eq!(batch.frames()[0].packet(), [b"header", &bytes[..]].concat());
            // Headers and mark are written, the rest is unchanged.
            let head = framed.fields.user + SMALLEST;
            batch.frame_mut(0).packet_mut().fill(0);
            framed.write(&mut batch.frame_mut(0), (Subscriber(70_000), 0x1234_5678, true), false);
            let written = batch.frames()[0].packet();
            assert_eq!(written[..head], [b"header", &bytes[..]].concat()[..head]);
            assert!(written[head..].iter().all(|octet| *octet == 0));
        }
    }
}
