//! From a frame to its fields: those of the frame, and those of the packet inside its tunnel, if it has one.
//!
//! What cannot be read is no error: the fields are zero from there on, and the frame is forwarded by what could be read.
//! GTP-U counts as such only if all of its header can be read (TS 29.281 §5); anything else on its port is an ordinary
//! datagram. A fragment of a tunnel's packet is one, too: only whole datagrams have a view behind the GTP port.

use openflow::{Field, PacketType};
use packet::{ethernet, gtpu, ipv4, ipv6, protocol, transport};

use super::field::{WORDS, Words, shape, spot};

/// Where an IP packet lies in the frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ip {
    /// 4, 6, or 0 where there is none.
    pub version: u8,
    /// What follows the headers of IP.
    pub protocol: u8,
    /// Where it begins.
    pub at: u16,
    /// Where the transport header begins; 0 if none can be read here.
    pub transport: u16,
}

/// Where the parts of a frame lie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    /// Whether it has an Ethernet header.
    pub has_ethernet: bool,
    /// The frame's IP packet.
    pub outer: Ip,
    /// Where the GTP-U message begins; 0 if there is none.
    pub gtpu: u16,
    /// The packet inside.
    pub inner: Ip,
}

/// The fields of a frame, and of what it carries.
#[derive(Debug, Clone, Copy)]
pub struct Headers {
    /// Fields of the frame.
    pub outer: Words,
    /// Fields of the view behind the GTP port, apart from those that the outer ones give: addresses of the tunnel, port.
    pub inner: Words,
    /// Where they lie.
    pub layout: Layout,
}

/// EtherTypes of tags.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// OFPVID_PRESENT.
const TAGGED: u16 = 0x1000;

impl Headers {
    /// Reads a frame that came by `in_port`.
    #[inline]
    pub fn parse(frame: &[u8], in_port: u32) -> Headers {
        let mut headers = Headers { outer: [0; WORDS], inner: [0; WORDS], layout: Layout::default() };
        const { spot(Field::InPort) }.put(&mut headers.outer, u64::from(in_port));
        // The length of a frame has 16 bits everywhere here; longer ones cannot come.
        let frame = &frame[..frame.len().min(usize::from(u16::MAX))];
        let Some(at) = headers.ethernet(frame) else { return headers };
        let ethertype = word(frame, at - 2);
        match ethertype {
            ethernet::IPV4 | ethernet::IPV6 => {
                headers.layout.outer = ip(frame, at, &mut headers.outer);
                headers.tunnel(frame);
            }
            ethernet::ARP => arp(&frame[at..], &mut headers.outer),
            _ => {}
        }
        headers
    }

    /// Reads a frame that has waited in a queue of the hold port, and comes back by it: the queue's number is its metadata, on both
    /// sides of the GTP port.
    pub fn parse_held(frame: &[u8], port: u32, queue: u32) -> Headers {
        let mut headers = Headers::parse(frame, port);
        const { spot(Field::Metadata) }.put(&mut headers.outer, queue.into());
        const { spot(Field::Metadata) }.put(&mut headers.inner, queue.into());
        headers
    }

    /// Reads the link layer; where its payload begins.
    #[inline]
    fn ethernet(&mut self, frame: &[u8]) -> Option<usize> {
        if frame.len() < 14 {
            return None;
        }
        self.layout.has_ethernet = true;
        let words = &mut self.outer;
        const { spot(Field::EthDst) }.put(words, long(frame, 0) << 16 | u64::from(word(frame, 4)));
        const { spot(Field::EthSrc) }.put(words, u64::from(word(frame, 6)) << 32 | long(frame, 8));
        let mut at = 14;
        if TAGS.contains(&word(frame, 12)) && frame.len() >= 18 {
            let tag = word(frame, 14);
            const { spot(Field::VlanVid) }.put(words, u64::from(tag & 0xfff | TAGGED));
            const { spot(Field::VlanPcp) }.put(words, u64::from(tag >> 13));
            at = 18;
        }
        const { spot(Field::EthType) }.put(words, u64::from(word(frame, at - 2)));
        Some(at)
    }

    /// Reads the tunnel's header and the packet in it.
    #[inline]
    fn tunnel(&mut self, frame: &[u8]) {
        let Ip { version, protocol, at, transport } = self.layout.outer;
        if protocol != protocol::UDP || transport == 0 || is_fragment(frame, &self.layout.outer) {
            return;
        }
        let (at, transport) = (usize::from(at), usize::from(transport));
        // The view that was read has checked the length.
        let end = match version {
            4 => at + usize::from(word(frame, at + 2)),
            _ => at + ipv6::HEADER_LEN + usize::from(word(frame, at + 4)),
        };
        let Ok(udp) = transport::Udp::new(&frame[transport..end]) else { return };
        if udp.destination_port() != gtpu::PORT {
            return;
        }
        let Ok(message) = gtpu::Packet::new(udp.payload()) else { return };
        let begins = transport + transport::UDP_HEADER_LEN;
        self.layout.gtpu = begins as u16;
        self.outer[shape::WORD] |= shape::GTPU;
        const { spot(Field::TunnelId) }.put(&mut self.inner, u64::from(message.teid()));
        const { spot(Field::TunGtpuFlags) }.put(&mut self.inner, u64::from(message.bytes()[0]));
        const { spot(Field::TunGtpuMsgtype) }.put(&mut self.inner, u64::from(message.message_type()));
        if message.message_type() == gtpu::message_type::G_PDU {
            let whole = &frame[..begins + message.bytes().len()];
            self.layout.inner = ip(whole, begins + message.header_len(), &mut self.inner);
            let (packet_type, ethertype) = match self.layout.inner.version {
                4 => (PacketType::IPV4, ethernet::IPV4),
                6 => (PacketType::IPV6, ethernet::IPV6),
                _ => return,
            };
            let packet_type = u64::from(packet_type.namespace) << 16 | u64::from(packet_type.ns_type);
            const { spot(Field::PacketType) }.put(&mut self.inner, packet_type);
            const { spot(Field::EthType) }.put(&mut self.inner, u64::from(ethertype));
        }
    }
}

/// Two octets at `at`; the caller has checked the length.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Four octets at `at`, as [`word`].
#[inline(always)]
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 16 | u64::from(word(bytes, at + 2))
}

/// Whether the IP packet is a part of one.
fn is_fragment(frame: &[u8], ip: &Ip) -> bool {
    let at = usize::from(ip.at);
    match ip.version {
        4 => word(frame, at + 6) & 0x3fff != 0,
        6 => ipv6::Packet::new(&frame[at..])
            .and_then(|packet| packet.upper())
            .map_or(true, |upper| upper.fragment.is_some()),
        _ => false,
    }
}

/// Reads an IP packet and the transport header in it.
#[inline]
fn ip(frame: &[u8], at: usize, words: &mut Words) -> Ip {
    let bytes = &frame[at..];
    let found = match bytes.first().map(|octet| octet >> 4) {
        Some(4) => of_v4(bytes, words),
        Some(6) => of_v6(bytes, words),
        _ => None,
    };
    let Some((version, protocol, transport, whole)) = found else { return Ip::default() };
    const { spot(Field::IpProto) }.put(words, u64::from(protocol));
    let readable = transport.and_then(|offset| ports(&bytes[..whole], offset, version, protocol, words));
    let transport = readable.map_or(0, |offset| (at + offset) as u16);
    Ip { version, protocol, at: at as u16, transport }
}

/// Version, protocol, where the transport header begins unless it is in another fragment, and the packet's length.
type Found = Option<(u8, u8, Option<usize>, usize)>;

#[inline]
fn of_v4(bytes: &[u8], words: &mut Words) -> Found {
    let packet = ipv4::Packet::new(bytes).ok()?;
    const { spot(Field::IpDscp) }.put(words, u64::from(packet.tos() >> 2));
    const { spot(Field::IpEcn) }.put(words, u64::from(packet.tos() & 3));
    const { spot(Field::Ipv4Src) }.put(words, u64::from(packet.source().to_bits()));
    const { spot(Field::Ipv4Dst) }.put(words, u64::from(packet.destination().to_bits()));
    words[shape::WORD] |= shape::hops(packet.ttl());
    let readable = packet.fragment_offset() == 0;
    Some((4, packet.protocol(), readable.then(|| packet.header_len()), packet.bytes().len()))
}

#[inline]
fn of_v6(bytes: &[u8], words: &mut Words) -> Found {
    let packet = ipv6::Packet::new(bytes).ok()?;
    const { spot(Field::IpDscp) }.put(words, u64::from(packet.traffic_class() >> 2));
    const { spot(Field::IpEcn) }.put(words, u64::from(packet.traffic_class() & 3));
    const { spot(Field::Ipv6Flabel) }.put(words, u64::from(packet.flow_label()));
    const { spot(Field::Ipv6Src) }.put_long(words, packet.source().to_bits());
    const { spot(Field::Ipv6Dst) }.put_long(words, packet.destination().to_bits());
    words[shape::WORD] |= shape::hops(packet.hop_limit());
    let whole = packet.bytes().len();
    let Ok(upper) = packet.upper() else { return Some((6, packet.next_header(), None, whole)) };
    let readable = upper.fragment.unwrap_or(0) == 0;
    Some((6, upper.protocol, readable.then_some(upper.offset), whole))
}

/// Reads the transport header; where it begins, if it is whole.
#[inline]
fn ports(packet: &[u8], at: usize, version: u8, protocol: u8, words: &mut Words) -> Option<usize> {
    let header = packet.get(at..)?;
    match protocol {
        protocol::TCP if header.len() >= 20 => {}
        protocol::UDP if header.len() >= transport::UDP_HEADER_LEN => {}
        protocol::ICMP if version == 4 && header.len() >= 4 => {
            const { spot(Field::Icmpv4Type) }.put(words, u64::from(header[0]));
            const { spot(Field::Icmpv4Code) }.put(words, u64::from(header[1]));
            return Some(at);
        }
        protocol::ICMPV6 if version == 6 && header.len() >= 4 => {
            icmpv6(header, words);
            return Some(at);
        }
        _ => return None,
    }
    const { spot(Field::UdpSrc) }.put(words, u64::from(word(header, 0)));
    const { spot(Field::UdpDst) }.put(words, u64::from(word(header, 2)));
    Some(at)
}

/// Reads type and code, and neighbour discovery (RFC 4861 §4.3, §4.4): target, and its or the sender's link-layer address.
fn icmpv6(header: &[u8], words: &mut Words) {
    const SOLICITATION: u8 = 135;
    const ADVERTISEMENT: u8 = 136;
    const { spot(Field::Icmpv6Type) }.put(words, u64::from(header[0]));
    const { spot(Field::Icmpv6Code) }.put(words, u64::from(header[1]));
    if ![SOLICITATION, ADVERTISEMENT].contains(&header[0]) || header.len() < 24 {
        return;
    }
    let target = header[8..24].iter().fold(0u128, |bits, octet| bits << 8 | u128::from(*octet));
    const { spot(Field::Ipv6NdTarget) }.put_long(words, target);
    // Options 1 and 2: link-layer address of the source, of the target.
    let wanted = header[0] - SOLICITATION + 1;
    if let [kind, 1, address @ ..] = &header[24..]
        && *kind == wanted
        && address.len() >= 6
    {
        let address = address[..6].iter().fold(0u64, |bits, octet| bits << 8 | u64::from(*octet));
        const { spot(Field::Ipv6NdSll) }.put(words, address);
    }
}

/// Reads ARP for IPv4 on Ethernet (RFC 826).
fn arp(packet: &[u8], words: &mut Words) {
    if packet.len() < 28 || packet[..6] != [0, 1, 8, 0, 6, 4] {
        return;
    }
    let hardware = |at| long(packet, at) << 16 | u64::from(word(packet, at + 4));
    const { spot(Field::ArpOp) }.put(words, u64::from(word(packet, 6)));
    const { spot(Field::ArpSha) }.put(words, hardware(8));
    const { spot(Field::ArpSpa) }.put(words, long(packet, 14));
    const { spot(Field::ArpTha) }.put(words, hardware(18));
    const { spot(Field::ArpTpa) }.put(words, long(packet, 24));
}
