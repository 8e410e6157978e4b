//! Joining packets of one flow that follow each other.
//!
//! What is joined, as the kernel's own GRO does it: TCP segments with consecutive sequence numbers and otherwise equal
//! headers, and UDP datagrams with equal headers; all of one length but the last, which may be shorter. A packet that
//! says anything else (other flags than ACK, IPv4 options, extension headers, fragments, octets behind the packet, a
//! wrong checksum) stays alone.

use packet::checksum::Sum;
use packet::protocol;

use super::{
    ACK, FIN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, IPV4, IPV6, NEEDS_CSUM, PSH, TCP, TCP_CHECKSUM, UDP,
    UDP_CHECKSUM, VnetHeader, long, set_ipv4_checksum, set_word, word,
};

/// Most packets in a run: `UDP_MAX_SEGMENTS` of the kernels that have the fewest.
pub const PACKETS: usize = 64;
/// Most octets of headers of a run: IPv6, and TCP with all its options.
pub const HEADER: usize = IPV6 + 60;
/// Most octets of a run with its headers: what IPv4's length can say.
const OCTETS: usize = 65_535;
/// IPv4's flag "don't fragment" in the octets with the fragment offset.
const DONT_FRAGMENT: u16 = 0x4000;

/// What of a packet decides whether it can be joined to others.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Octets in front of the transport header.
    network: usize,
    /// Octets of all headers.
    header: usize,
    /// Octets behind them: at least one.
    payload: usize,
    is_udp: bool,
}

impl Part {
    /// The part that a packet can be; `None` for a packet that stays alone.
    #[inline]
    fn of(packet: &[u8]) -> Option<Part> {
        let (network, transport) = match packet.first()? >> 4 {
            4 if packet.len() > IPV4
                && packet[0] == 0x45
                && usize::from(word(packet, 2)) == packet.len()
                && word(packet, 6) & !DONT_FRAGMENT == 0 =>
            {
                (IPV4, packet[9])
            }
            6 if packet.len() > IPV6 && usize::from(word(packet, 4)) + IPV6 == packet.len() => {
                (IPV6, packet[6])
            }
            _ => return None,
        };
        let rest = packet.get(network..)?;
        let header = match transport {
            protocol::TCP if rest.len() > TCP && rest[13] & !(PSH | FIN) == ACK && rest[12] & 0x0F == 0 => {
                usize::from(rest[12] >> 4) * 4
            }
            // Without a checksum there is nothing to tell that a datagram is whole.
            protocol::UDP
                if rest.len() > UDP && usize::from(word(rest, 4)) == rest.len() && word(rest, 6) != 0 =>
            {
                UDP
            }
            _ => return None,
        };
        let is_udp = transport == protocol::UDP;
        if !is_udp && header < TCP || header >= rest.len() {
            return None;
        }
        Some(Part { network, header: network + header, payload: rest.len() - header, is_udp })
    }

    fn is_ipv6(&self) -> bool {
        self.network == IPV6
    }

    /// Whether both checksums of the packet are right.
    fn is_whole(&self, packet: &[u8]) -> bool {
        let network = self.is_ipv6() || packet::checksum::checksum(&packet[..IPV4]) == 0;
        network && self.pseudo_header(packet, packet.len()).octets(&packet[self.network..]).finish() == 0
    }

    /// The sum of the pseudo header of a packet with these addresses and `length` octets.
    fn pseudo_header(&self, packet: &[u8], length: usize) -> Sum {
        let (addresses, transport) =
            if self.is_ipv6() { (&packet[8..40], packet[6]) } else { (&packet[12..20], packet[9]) };
        let length = (length - self.network) as u16;
        Sum::default().octets(addresses).octets(&length.to_be_bytes()).octets(&[0, transport])
    }

    /// Whether two packets of this kind have the same headers, apart from lengths, checksums, sequence number, PSH and
    /// FIN, and IPv4's identification.
    #[inline]
    fn is_same_flow(&self, first: &[u8], next: &[u8]) -> bool {
        let at = self.network;
        let network = if self.is_ipv6() {
            first[..4] == next[..4] && first[6..IPV6] == next[6..IPV6]
        } else {
            first[..2] == next[..2] && first[6..10] == next[6..10] && first[12..IPV4] == next[12..IPV4]
        };
        let ports = first[at..at + 4] == next[at..at + 4];
        let transport = self.is_udp
            // Acknowledgement and header length; window; urgent pointer and options.
            || first[at + 8..at + 13] == next[at + 8..at + 13]
                && first[at + 14..at + 16] == next[at + 14..at + 16]
                && first[at + 18..self.header] == next[at + 18..self.header];
        network && ports && transport
    }
}

/// Packets that leave as one. It knows its first packet by what the caller passes again.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first packet.
    part: Part,
    packets: usize,
    /// Octets of the joined packet.
    length: usize,
    /// How far IPv4's identification moves from packet to packet: 1, or 0 in packets that must not be fragmented.
    step: u16,
    /// PSH and FIN of the last packet.
    flags: u8,
    /// No packet may follow.
    is_ended: bool,
}

impl Run {
    /// A run with one packet; `None` for one that stays alone.
    #[inline]
    pub fn begin(first: &[u8]) -> Option<Run> {
        let part = Part::of(first)?;
        let flags = if part.is_udp { 0 } else { first[part.network + 13] & (PSH | FIN) };
        Some(Run { part, packets: 1, length: first.len(), step: 0, flags, is_ended: flags != 0 })
    }

    /// Takes the packet behind the last one if it continues the run, whose first packet is `first`.
    #[inline]
    pub fn takes(&mut self, first: &[u8], next: &[u8]) -> bool {
        if self.is_ended || self.packets == PACKETS {
            return false;
        }
        let Some(part) = Part::of(next) else { return false };
        let own = self.part;
        let at = own.network;
        let fits = part.network == own.network
            && part.is_udp == own.is_udp
            && part.header == own.header
            && part.payload <= own.payload
            && self.length + part.payload <= OCTETS
            && own.is_same_flow(first, next)
            && (own.is_udp
                || long(next, at + 4) == long(first, at + 4).wrapping_add((self.length - own.header) as u32));
        let Some(step) = self.step(first, next).filter(|_| fits) else { return false };
        if self.packets == 1 && !own.is_whole(first) {
            self.is_ended = true;
            return false;
        }
        if !part.is_whole(next) {
            return false;
        }
        self.packets += 1;
        self.length += part.payload;
        self.step = step;
        self.flags = if own.is_udp { 0 } else { next[at + 13] & (PSH | FIN) };
        self.is_ended = self.flags != 0 || part.payload < own.payload;
        true
    }

    /// How the identification moves if `next` continues the run; `None` when it does not fit.
    #[inline]
    fn step(&self, first: &[u8], next: &[u8]) -> Option<u16> {
        if self.part.is_ipv6() {
            return Some(0);
        }
        let moved = word(next, 4).wrapping_sub(word(first, 4));
        let step = if self.packets == 1 { moved } else { self.step };
        let is_atomic = word(first, 6) & DONT_FRAGMENT != 0;
        let fits = moved == step.wrapping_mul(self.packets as u16) && (step == 1 || step == 0 && is_atomic);
        fits.then_some(step)
    }

    /// How many packets the run has.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Whether it is of UDP datagrams.
    pub fn is_udp(&self) -> bool {
        self.part.is_udp
    }

    /// Octets of each packet's headers; payload follows.
    pub fn header_len(&self) -> usize {
        self.part.header
    }

    /// Writes the headers of the joined packet, which are [`Run::header_len`] octets, and returns what the kernel is told
    /// of it. The payloads of the packets follow in their order.
    pub fn write_header(&self, first: &[u8], out: &mut [u8; HEADER]) -> VnetHeader {
        let Part { network, header, payload, is_udp } = self.part;
        out[..header].copy_from_slice(&first[..header]);
        if self.part.is_ipv6() {
            set_word(out, 4, (self.length - IPV6) as u16);
        } else {
            set_word(out, 2, self.length as u16);
            set_ipv4_checksum(&mut out[..IPV4]);
        }
        let csum_offset = if is_udp {
            set_word(out, network + 4, (self.length - network) as u16);
            UDP_CHECKSUM
        } else {
            out[network + 13] |= self.flags;
            TCP_CHECKSUM
        };
        // The kernel, or a device behind it, completes the sum of the pseudo header.
        let partial = !self.part.pseudo_header(first, self.length).finish();
        set_word(out, network + csum_offset, partial);
        let gso_type = match (is_udp, self.part.is_ipv6()) {
            (true, _) => GSO_UDP_L4,
            (false, true) => GSO_TCPV6,
            (false, false) => GSO_TCPV4,
        };
        VnetHeader {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: header as u16,
            gso_size: payload as u16,
            csum_start: network as u16,
            csum_offset: csum_offset as u16,
        }
    }
}
