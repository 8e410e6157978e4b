//! Cutting a super-packet into frames, and completing the checksum of a frame.

use packet::checksum::Sum;
use packet::protocol;

use super::{
    CWR, FIN, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, IPV4, IPV6, NEEDS_CSUM, PSH, TCP, TCP_CHECKSUM, UDP,
    UDP_CHECKSUM, VnetHeader, set_ipv4_checksum, set_word, word,
};

/// Most extension headers in front of the transport header of an IPv6 packet.
const EXTENSIONS: usize = 8;
/// Next headers of IPv6 that a packet with segments may have in front of TCP or UDP (RFC 8200 §4.1): hop-by-hop
/// options, routing, destination options. Each says its length in units of eight octets behind the first eight.
const EXTENSION_HEADERS: [u8; 3] = [0, 43, 60];

/// What is wrong with a packet or its [`VnetHeader`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The checksum lies outside the packet, or not in the transport header.
    #[error("the checksum's place is not in the packet")]
    Checksum,
    /// Not a kind of super-packet that was asked for.
    #[error("unknown kind of super-packet")]
    Kind,
    /// There is no payload, or its segments have no length.
    #[error("segments without length")]
    Size,
    /// The IP header contradicts the packet or its kind.
    #[error("IP header that does not fit the super-packet")]
    Ip,
    /// The transport header contradicts the packet.
    #[error("transport header that does not fit the super-packet")]
    Transport,
}

/// Completes the checksum of a packet that has [`NEEDS_CSUM`] (virtio §5.1.6.4.1).
///
/// The field holds the sum of the pseudo header, so the sum over everything from `csum_start` is the whole one. A result
/// of 0 is written as 0xFFFF, which means the same, as 0 in UDP says that there is no checksum.
pub fn complete_checksum(vnet: &VnetHeader, packet: &mut [u8]) -> Result<(), Malformed> {
    let start = usize::from(vnet.csum_start);
    let at = start + usize::from(vnet.csum_offset);
    if at + 2 > packet.len() {
        return Err(Malformed::Checksum);
    }
    let checksum = Sum::default().octets(&packet[start..]).finish();
    set_word(packet, at, if checksum == 0 { 0xFFFF } else { checksum });
    Ok(())
}

/// How a super-packet is cut, which has been checked against the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Octets in front of the transport header.
    network: usize,
    /// Octets of all headers.
    header: usize,
    /// Octets of payload per frame; the last one may have fewer.
    segment: usize,
    /// Octets of the super-packet.
    length: usize,
    is_ipv6: bool,
    is_udp: bool,
}

impl Cut {
    /// Checks that `packet` is what its header says (virtio §5.1.6.2.1, what the driver must set).
    pub fn new(vnet: &VnetHeader, packet: &[u8]) -> Result<Cut, Malformed> {
        let network = usize::from(vnet.csum_start);
        let is_udp = match vnet.gso_type & !GSO_ECN {
            GSO_TCPV4 | GSO_TCPV6 => false,
            GSO_UDP_L4 => true,
            _ => return Err(Malformed::Kind),
        };
        let checksum = if is_udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
        if vnet.flags & NEEDS_CSUM == 0 || usize::from(vnet.csum_offset) != checksum {
            return Err(Malformed::Checksum);
        }
        let transport = if is_udp { protocol::UDP } else { protocol::TCP };
        let is_ipv6 = match packet.first().map(|octet| octet >> 4) {
            Some(4) if vnet.gso_type & !GSO_ECN != GSO_TCPV6 => false,
            Some(6) if vnet.gso_type & !GSO_ECN != GSO_TCPV4 => true,
            _ => return Err(Malformed::Ip),
        };
        let fits = if is_ipv6 { is_ipv6_with } else { is_ipv4_with };
        if !fits(packet, transport, network) {
            return Err(Malformed::Ip);
        }
        let header = network + if is_udp { UDP } else { tcp_header(packet, network)? };
        if header > packet.len() || is_udp && usize::from(word(packet, network + 4)) != packet.len() - network
        {
            return Err(Malformed::Transport);
        }
        let segment = usize::from(vnet.gso_size);
        if segment == 0 || header == packet.len() {
            return Err(Malformed::Size);
        }
        Ok(Cut { network, header, segment, length: packet.len(), is_ipv6, is_udp })
    }

    /// How many frames there are: at least one.
    pub fn frames(&self) -> usize {
        (self.length - self.header).div_ceil(self.segment)
    }

    /// Length of the longest frame.
    pub fn longest(&self) -> usize {
        self.header + self.segment.min(self.length - self.header)
    }

    /// Writes frame `number` of `packet`, the one that was checked, to `out`; returns its length. `None` when there is no
    /// such frame or no room for it.
    pub fn write(&self, packet: &[u8], number: usize, out: &mut [u8]) -> Option<usize> {
        let Cut { network, header, .. } = *self;
        let skipped = number.checked_mul(self.segment)?;
        let from = header.checked_add(skipped)?;
        if packet.len() != self.length || from >= self.length {
            return None;
        }
        let to = self.length.min(from + self.segment);
        let length = header + to - from;
        let frame = out.get_mut(..length)?;
        frame[..header].copy_from_slice(&packet[..header]);
        frame[header..].copy_from_slice(&packet[from..to]);
        if self.is_ipv6 {
            set_word(frame, 4, (length - IPV6) as u16);
        } else {
            set_word(frame, 2, length as u16);
            set_word(frame, 4, word(packet, 4).wrapping_add(number as u16));
            set_ipv4_checksum(&mut frame[..network]);
        }
        let checksum = if self.is_udp {
            set_word(frame, network + 4, (length - network) as u16);
            network + UDP_CHECKSUM
        } else {
            let sequence = super::long(packet, network + 4).wrapping_add(skipped as u32);
            frame[network + 4..network + 8].copy_from_slice(&sequence.to_be_bytes());
            let first = if number == 0 { 0 } else { CWR };
            let last = if to == self.length { 0 } else { FIN | PSH };
            frame[network + 13] &= !(first | last);
            network + TCP_CHECKSUM
        };
        // The field holds the sum of the pseudo header, which has the super-packet's length in it.
        let sum = Sum::default()
            .octets(&frame[checksum..checksum + 2])
            .octets(&(!((self.length - network) as u16)).to_be_bytes())
            .octets(&((length - network) as u16).to_be_bytes());
        set_word(frame, checksum, 0);
        let sum = sum.octets(&frame[network..]).finish();
        set_word(frame, checksum, if sum == 0 { 0xFFFF } else { sum });
        Some(length)
    }
}

/// Length of the TCP header at `at`.
fn tcp_header(packet: &[u8], at: usize) -> Result<usize, Malformed> {
    let length = packet.get(at + 12).map_or(0, |octet| usize::from(octet >> 4) * 4);
    if length < TCP { Err(Malformed::Transport) } else { Ok(length) }
}

/// Whether the packet is unfragmented IPv4 of its own length, whose transport header is at `network`.
fn is_ipv4_with(packet: &[u8], transport: u8, network: usize) -> bool {
    packet.len() >= IPV4
        && network >= IPV4
        && usize::from(packet[0] & 0x0F) * 4 == network
        && usize::from(word(packet, 2)) == packet.len()
        && word(packet, 6) & 0x3FFF == 0
        && packet[9] == transport
        && network <= packet.len()
}

/// The same for IPv6.
fn is_ipv6_with(packet: &[u8], transport: u8, network: usize) -> bool {
    if packet.len() < IPV6 || usize::from(word(packet, 4)) + IPV6 != packet.len() {
        return false;
    }
    let (mut next, mut at) = (packet[6], IPV6);
    for _ in 0..EXTENSIONS {
        if at == network || !EXTENSION_HEADERS.contains(&next) || at + 2 > packet.len() {
            break;
        }
        (next, at) = (packet[at], at + (usize::from(packet[at + 1]) + 1) * 8);
    }
    at == network && next == transport && network <= packet.len()
}
