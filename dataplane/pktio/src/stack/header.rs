//! Ready-made headers: what stands in front of all packets to one peer, or to one neighbour.
//!
//! A header is right-aligned in a window of fixed length, so that one copy of known size puts it in front of a packet.
//! What comes before it in the window lands in the packet's headroom, where nobody looks. Then only what differs from
//! packet to packet is written: lengths, traffic class and checksums.

use std::net::{IpAddr, SocketAddr};

use packet::checksum::Sum;
use packet::ethernet::Mac;
use packet::protocol;

use super::{Link, ethertype};
use crate::FrameMut;
use crate::vlan::LONGEST_HEADER;

const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// Octets of a window for a datagram's headers: Ethernet, IPv6 and UDP, to the next multiple of eight.
const WINDOW: usize = 72;
/// Octets of a window for an Ethernet header.
const SHORT: usize = 24;
const _: () = assert!(LONGEST_HEADER + IPV6 + UDP <= WINDOW && LONGEST_HEADER <= SHORT);

/// Hop limit of outer headers: the usual default.
const HOPS: u8 = 64;
/// Don't fragment: an outer packet that exceeds the MTU is counted here, not cut there.
const DONT_FRAGMENT: u16 = 0x4000;

/// Which state of which tables a header was made from, and for which endpoint; 0 for a header that is not there. Of two
/// numbers the greater one is newer.
pub(crate) type Version = u64;

/// The headers of a datagram: Ethernet, IP and UDP.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    version: Version,
    /// Sum of the IPv4 header, or of what the UDP checksum over IPv6 covers, as far as it is the same for all packets.
    sum: u32,
    len: u8,
    ipv6: bool,
    window: [u8; WINDOW],
}

impl Header {
    /// A header that is not there.
    pub(crate) const NONE: Header = Header { version: 0, sum: 0, len: 0, ipv6: false, window: [0; WINDOW] };

    /// Headers from `local` to `peer` at `mac`; `None` if the two are of different families.
    pub(super) fn new(
        version: Version,
        link: &Link,
        local: SocketAddr,
        peer: SocketAddr,
        mac: Mac,
    ) -> Option<Header> {
        let (ethernet, mut window) = (link.header_len(), [0; WINDOW]);
        let ip = match (local.ip(), peer.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = &mut window[WINDOW - UDP - IPV4..];
                header[0] = 0x45;
                header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
                (header[8], header[9]) = (HOPS, protocol::UDP);
                header[12..16].copy_from_slice(&from.octets());
                header[16..20].copy_from_slice(&to.octets());
                IPV4
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let header = &mut window[WINDOW - UDP - IPV6..];
                header[0] = 0x60;
                (header[6], header[7]) = (protocol::UDP, HOPS);
                header[8..24].copy_from_slice(&from.octets());
                header[24..40].copy_from_slice(&to.octets());
                IPV6
            }
            _ => return None,
        };
        let udp = WINDOW - UDP;
        window[udp..udp + 2].copy_from_slice(&local.port().to_be_bytes());
        window[udp + 2..udp + 4].copy_from_slice(&peer.port().to_be_bytes());
        let sum = if ip == IPV4 {
            sum(&window[udp - IPV4..udp])
        } else {
            // Addresses and ports; the lengths are added for each packet (RFC 8200 §8.1).
            sum(&window[udp - 32..]) + u32::from(protocol::UDP)
        };
        link.write(&mut window[udp - ip - ethernet..], mac, ethertype(peer.ip()));
        Some(Header { version, sum, len: (ethernet + ip + UDP) as u8, ipv6: ip == IPV6, window })
    }

    #[inline(always)]
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Puts the headers in front of a payload that fits into a packet of 65,535 octets with them; `false`, and nothing
    /// changes, when there is no room.
    #[inline(always)]
    pub(super) fn put(&self, frame: &mut FrameMut<'_>) -> bool {
        let (tos, length) = (frame.tos(), UDP + frame.len());
        let payload = if self.ipv6 { !Sum::default().octets(frame.packet()).finish() } else { 0 };
        let len = usize::from(self.len);
        match frame.headroom().last_chunk_mut() {
            Some(window) => {
                *window = self.window;
                self.finish(window, tos, length, payload);
            }
            None => {
                let mut window = self.window;
                self.finish(&mut window, tos, length, payload);
                let Some(header) = end_of(frame.headroom(), len) else { return false };
                header.copy_from_slice(&window[WINDOW - len..]);
            }
        }
        frame.grow_front(len)
    }

    /// Writes what differs from packet to packet; `length` is that of the datagram, `payload` the sum of its payload.
    #[inline(always)]
    fn finish(&self, window: &mut [u8; WINDOW], tos: u8, length: usize, payload: u16) {
        const UDP_AT: usize = WINDOW - UDP;
        let [high, low] = (length as u16).to_be_bytes();
        (window[UDP_AT + 4], window[UDP_AT + 5]) = (high, low);
        if self.ipv6 {
            const AT: usize = UDP_AT - IPV6;
            (window[AT], window[AT + 1]) = (0x60 | tos >> 4, tos << 4);
            (window[AT + 4], window[AT + 5]) = (high, low);
            // Once in the header, once in the pseudo header.
            let sum = !fold(self.sum + 2 * length as u32 + u32::from(payload));
            // 0 would mean that there is none (RFC 8200 §8.1).
            let sum = if sum == 0 { u16::MAX } else { sum };
            [window[UDP_AT + 6], window[UDP_AT + 7]] = sum.to_be_bytes();
        } else {
            // IPv4 allows no UDP checksum, and tunnels send none (TS 29.281 §4.4.2 leaves it to the sender).
            const AT: usize = UDP_AT - IPV4;
            let total = (IPV4 + length) as u16;
            window[AT + 1] = tos;
            [window[AT + 2], window[AT + 3]] = total.to_be_bytes();
            let sum = !fold(self.sum + u32::from(tos) + u32::from(total));
            [window[AT + 10], window[AT + 11]] = sum.to_be_bytes();
        }
    }
}

/// The Ethernet header of all packets of one IP version; the neighbour's address comes with the packet.
#[derive(Clone, Copy)]
pub(super) struct Ethernet {
    len: usize,
    window: [u8; SHORT],
}

impl Ethernet {
    pub(super) fn new(link: &Link, ethertype: u16) -> Ethernet {
        let (len, mut window) = (link.header_len(), [0; SHORT]);
        link.write(&mut window[SHORT - len..], Mac::default(), ethertype);
        Ethernet { len, window }
    }

    /// Puts the header of a frame to `mac` in front of a packet; `false`, and nothing changes, when there is no room.
    #[inline(always)]
    pub(super) fn put(&self, frame: &mut FrameMut<'_>, mac: Mac) -> bool {
        match frame.headroom().last_chunk_mut() {
            Some(window) => *window = self.window,
            None => {
                let Some(header) = end_of(frame.headroom(), self.len) else { return false };
                header.copy_from_slice(&self.window[SHORT - self.len..]);
            }
        }
        let grown = frame.grow_front(self.len);
        if let Some(to) = frame.packet_mut().first_chunk_mut().filter(|_| grown) {
            *to = mac;
        }
        grown
    }
}

/// The last `len` octets, if there are so many.
fn end_of(octets: &mut [u8], len: usize) -> Option<&mut [u8]> {
    let at = octets.len().checked_sub(len)?;
    octets.get_mut(at..)
}

/// Sum of a header's 16-bit words; it cannot overflow for the lengths that headers have.
#[inline]
pub(super) fn sum(words: &[u8]) -> u32 {
    words.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum()
}

/// The ones' complement sum of 16 bits that a sum stands for.
#[inline]
pub(super) fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xFFFF) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}
