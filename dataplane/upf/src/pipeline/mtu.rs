//! Packets that are too big for the next link: ICMP answers, fragmentation, and lowering of TCP's segment size.
//!
//! A tunnel reduces the MTU of N3 by 44 octets and more, which neither UE nor server knows. A packet that is
//! too big is answered as a router does (RFC 1191, RFC 8201), so that path MTU discovery works; IPv4 packets
//! that may be fragmented are. TCP need not discover anything, because the segment size that both sides
//! announce during the handshake is lowered to what fits ([`clamp_mss`]).
//!
//! All functions handle one packet and keep no state. [`super::limit`] limits the number of answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::checksum::{self, Difference, Sum};
use packet::{ipv4, ipv6, protocol};

/// Most octets of an ICMP answer (RFC 1812 §4.3.2.3).
pub const ANSWER_V4: usize = 576;
/// Most octets of an ICMPv6 answer: what every link takes (RFC 4443 §2.4).
pub const ANSWER_V6: usize = 1280;
/// Octets of the ICMP header, before the quoted packet.
const ICMP_LEN: usize = 8;
/// The message starts at this router, as if it were the sender's next hop.
const HOP_LIMIT: u8 = 64;

const TCP_SYN: u8 = 0x02;
const TCP_HEADER: usize = 20;

/// What happens to a packet that goes to a link with a given MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It is sent unchanged.
    Passes,
    /// IPv4 that may be fragmented: [`Fragments`].
    Fragment,
    /// It is dropped, and its sender is told: [`answer`].
    TooBig,
}

/// How an IP packet fits a link. Anything that is not an IP packet passes, as parsing drops it for its own
/// reasons.
#[inline]
pub fn fit(packet: &[u8], mtu: usize) -> Fit {
    if packet.len() <= mtu {
        return Fit::Passes;
    }
    match ipv4::Packet::new(packet) {
        Ok(view) if !view.dont_fragment() => Fit::Fragment,
        _ => Fit::TooBig,
    }
}

/// Source addresses of answers: the addresses of the router that the sender believes to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Router {
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

/// Writes the answer to a packet that exceeds `mtu` into `out` and returns its length. `None` where RFC 1122
/// §3.2.2 and RFC 4443 §2.4 forbid an answer: to ICMP errors, later fragments, packets to groups, and sources
/// that are not a single host.
pub fn answer(packet: &[u8], mtu: u16, router: &Router, out: &mut [u8]) -> Option<usize> {
    match packet.first()? >> 4 {
        4 => answer_v4(ipv4::Packet::new(packet).ok()?, mtu, router.ipv4?, out),
        6 => answer_v6(ipv6::Packet::new(packet).ok()?, mtu, router.ipv6?, out),
        _ => None,
    }
}

fn answer_v4(packet: ipv4::Packet<'_>, mtu: u16, router: Ipv4Addr, out: &mut [u8]) -> Option<usize> {
    let (from, to) = (packet.source(), packet.destination());
    let host = !(from.is_unspecified() || from.is_multicast() || from.is_broadcast() || from.is_loopback());
    if !host || to.is_multicast() || to.is_broadcast() || packet.fragment_offset() > 0 {
        return None;
    }
    // Of ICMP only requests and replies are answered: all other types report errors (RFC 1122 §3.2.2.1).
    if packet.protocol() == protocol::ICMP && !matches!(packet.payload().first()?, 0 | 8 | 13 | 14) {
        return None;
    }
    let room = out.len().min(ANSWER_V4).checked_sub(ipv4::HEADER_LEN + ICMP_LEN)?;
    // Quotes as much as fits, by which the sender finds its socket (RFC 792).
    let quoted = packet.bytes().len().min(room);
    if quoted < packet.header_len() + 8 {
        return None;
    }
    let header = ipv4::Header { ttl: HOP_LIMIT, ..ipv4::Header::new(router, from, protocol::ICMP) };
    let header = header.encode(ICMP_LEN + quoted).ok()?;
    let (head, message) = out[..header.len() + ICMP_LEN + quoted].split_at_mut(header.len());
    head.copy_from_slice(&header);
    let [high, low] = mtu.to_be_bytes();
    // Destination unreachable, fragmentation needed; the next hop's MTU (RFC 1191 §4).
    message[..ICMP_LEN].copy_from_slice(&[3, 4, 0, 0, 0, 0, high, low]);
    message[ICMP_LEN..].copy_from_slice(&packet.bytes()[..quoted]);
    let sum = checksum::checksum(message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(header.len() + message.len())
}

fn answer_v6(packet: ipv6::Packet<'_>, mtu: u16, router: Ipv6Addr, out: &mut [u8]) -> Option<usize> {
    let from = packet.source();
    // Packets to groups are answered too: Packet Too Big is the exception of RFC 4443 §2.4 (e.3).
    if from.is_unspecified() || from.is_multicast() || from.is_loopback() {
        return None;
    }
    let upper = packet.upper().ok()?;
    if upper.fragment.is_some_and(|offset| offset > 0) {
        return None;
    }
    // Types below 128 are errors; redirects (137) count as such (§2.4 (e.2)).
    if upper.protocol == protocol::ICMPV6 {
        let kind = *packet.bytes().get(upper.offset)?;
        if kind < 128 || kind == 137 {
            return None;
        }
    }
    let room = out.len().min(ANSWER_V6).checked_sub(ipv6::HEADER_LEN + ICMP_LEN)?;
    let quoted = packet.bytes().len().min(room);
    if quoted < ipv6::HEADER_LEN + 8 {
        return None;
    }
    let header = ipv6::Header { hop_limit: HOP_LIMIT, ..ipv6::Header::new(router, from, protocol::ICMPV6) };
    let header = header.encode(ICMP_LEN + quoted).ok()?;
    let (head, message) = out[..header.len() + ICMP_LEN + quoted].split_at_mut(header.len());
    head.copy_from_slice(&header);
    // Packet Too Big (§3.2). A link of less than 1280 octets does not exist in IPv6.
    let [high, low] = mtu.max(ANSWER_V6 as u16).to_be_bytes();
    message[..ICMP_LEN].copy_from_slice(&[2, 0, 0, 0, 0, 0, high, low]);
    message[ICMP_LEN..].copy_from_slice(&packet.bytes()[..quoted]);
    let sum = Sum::default()
        .pseudo_header(IpAddr::V6(router), IpAddr::V6(from), protocol::ICMPV6, message.len())
        .octets(message)
        .finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(header.len() + message.len())
}

/// The fragments of an IPv4 packet, one after the other (RFC 791 §3.2). A fragment may itself be fragmented.
#[derive(Debug, Clone, Copy)]
pub struct Fragments<'a> {
    packet: ipv4::Packet<'a>,
    /// Octets of payload per fragment; a multiple of eight.
    step: usize,
    /// Octets of payload in previous fragments.
    done: usize,
}

impl<'a> Fragments<'a> {
    /// Fragments of at most `mtu` octets. `None` if the packet is not IPv4 or must not be fragmented, or if the
    /// MTU leaves no room for payload.
    pub fn new(packet: &'a [u8], mtu: usize) -> Option<Fragments<'a>> {
        let packet = ipv4::Packet::new(packet).ok()?;
        let step = mtu.checked_sub(packet.header_len())? & !7;
        (step > 0 && !packet.dont_fragment()).then_some(Fragments { packet, step, done: 0 })
    }

    /// Number of fragments that are left.
    pub fn count(&self) -> usize {
        (self.packet.payload().len() - self.done).div_ceil(self.step)
    }

    /// Writes the next fragment and returns its length; `None` at the end, or when `out` has no room for it.
    pub fn next(&mut self, out: &mut [u8]) -> Option<usize> {
        let payload = self.packet.payload();
        let piece = payload.get(self.done..payload.len().min(self.done + self.step))?;
        if piece.is_empty() {
            return None;
        }
        let (header, length) = self.header();
        let total = length + piece.len();
        let fragment = out.get_mut(..total)?;
        fragment[..length].copy_from_slice(&header[..length]);
        fragment[length..].copy_from_slice(piece);
        fragment[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        let units = (self.packet.fragment_offset() + self.done) / 8;
        let more = self.packet.more_fragments() || self.done + piece.len() < payload.len();
        let word = (units as u16 & 0x1FFF) | if more { 0x2000 } else { 0 };
        fragment[6..8].copy_from_slice(&word.to_be_bytes());
        fragment[10..12].fill(0);
        let sum = checksum::checksum(&fragment[..length]);
        fragment[10..12].copy_from_slice(&sum.to_be_bytes());
        self.done += piece.len();
        Some(total)
    }

    /// The header of the next fragment; after the first fragment only with the options that every fragment has.
    fn header(&self) -> ([u8; 60], usize) {
        let original = &self.packet.bytes()[..self.packet.header_len()];
        let mut header = [0; 60];
        if self.done == 0 {
            header[..original.len()].copy_from_slice(original);
            return (header, original.len());
        }
        header[..ipv4::HEADER_LEN].copy_from_slice(&original[..ipv4::HEADER_LEN]);
        let (mut length, mut options) = (ipv4::HEADER_LEN, &original[ipv4::HEADER_LEN..]);
        while let [kind, rest @ ..] = options {
            let taken = match kind {
                0 => break,
                1 => 1,
                _ => match rest.first() {
                    Some(taken) if (2..=options.len()).contains(&usize::from(*taken)) => usize::from(*taken),
                    _ => break,
                },
            };
            if kind & 0x80 != 0 {
                header[length..length + taken].copy_from_slice(&options[..taken]);
                length += taken;
            }
            options = &options[taken..];
        }
        // Zeroes behind the last option end the list.
        length = length.next_multiple_of(4);
        header[0] = 0x40 | (length / 4) as u8;
        (header, length)
    }
}

/// Calls [`clamp_mss`] for packets that may be a SYN. A check of one octet excludes nearly all TCP packets.
#[inline(always)]
pub fn clamp_syn(packet: &mut [u8], mtu: usize) {
    // Position of the flags after an IPv4 header without options; other headers take the general path.
    let usual = packet.first() == Some(&0x45);
    if !usual || packet.get(33).is_some_and(|flags| flags & TCP_SYN != 0) {
        clamp_mss(packet, mtu);
    }
}

/// Lowers the segment size that a TCP SYN announces to what fits into `mtu`, in place; returns whether it did
/// so.
#[inline(never)]
pub fn clamp_mss(packet: &mut [u8], mtu: usize) -> bool {
    let Some((tcp, overhead)) = syn(packet) else { return false };
    let most = u16::try_from(mtu.saturating_sub(overhead)).unwrap_or(u16::MAX);
    let header = usize::from(packet[tcp + 12] >> 4) * 4;
    let Some(segment) = packet.get_mut(tcp..tcp + header.max(TCP_HEADER)) else { return false };
    let Some(at) = mss_option(segment) else { return false };
    if u16::from_be_bytes([segment[at], segment[at + 1]]) <= most {
        return false;
    }
    // The option may be at an odd position, but the checksum sums words: recompute the words that contain it. A
    // header's length is a multiple of 4.
    let words = (at & !1)..(at + 2).next_multiple_of(2);
    let mut old = [0; 4];
    let old = &mut old[..words.len()];
    old.copy_from_slice(&segment[words.clone()]);
    segment[at..at + 2].copy_from_slice(&most.to_be_bytes());
    Difference::default().replaced(old, &segment[words]).apply_at(segment, 16);
    true
}

/// Offset of the TCP header of a SYN, and the number of octets of IP and TCP headers that count towards an MTU.
#[inline]
fn syn(packet: &[u8]) -> Option<(usize, usize)> {
    let (tcp, overhead) = match packet.first()? >> 4 {
        4 => {
            let view = ipv4::Packet::new(packet).ok()?;
            let tcp = view.protocol() == protocol::TCP && view.fragment_offset() == 0;
            (tcp.then(|| view.header_len())?, ipv4::HEADER_LEN + TCP_HEADER)
        }
        6 => {
            let upper = ipv6::Packet::new(packet).ok()?.upper().ok()?;
            let tcp = upper.protocol == protocol::TCP && upper.fragment.unwrap_or(0) == 0;
            (tcp.then_some(upper.offset)?, ipv6::HEADER_LEN + TCP_HEADER)
        }
        _ => return None,
    };
    (packet.get(tcp + 13)? & TCP_SYN != 0).then_some((tcp, overhead))
}

/// Position of the value of the maximum segment size option in a TCP header.
fn mss_option(header: &[u8]) -> Option<usize> {
    let mut at = TCP_HEADER;
    // Each option has at least one of the forty octets.
    while at < header.len() {
        match header[at] {
            0 => return None,
            1 => at += 1,
            kind => {
                let length = usize::from(*header.get(at + 1)?);
                if length < 2 || at + length > header.len() {
                    return None;
                }
                if kind == 2 && length == 4 {
                    return Some(at + 2);
                }
                at += length;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use packet::icmp::Message;
    use packet::transport::{Tcp, build_udp};

    use super::*;

    const UE: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
    const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 1);
    const UE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x45, 0, 7, 0, 0, 0, 2);
    const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
    const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x45, 0, 0, 0, 0, 0, 1);
    const ROUTER: Router = Router { ipv4: Some(GATEWAY), ipv6: Some(GATEWAY6) };

    fn v4(length: usize, dont_fragment: bool) -> Vec<u8> {
        let datagram = build_udp((SERVER.into(), 1), (UE.into(), 2), &vec![0x55; length - 28]).unwrap();
        let header = ipv4::Header { dont_fragment, ..ipv4::Header::new(SERVER, UE, protocol::UDP) };
        header.build(&datagram).unwrap()
    }

    fn v6(length: usize) -> Vec<u8> {
        let datagram = build_udp((SERVER6.into(), 1), (UE6.into(), 2), &vec![0x55; length - 48]).unwrap();
        ipv6::Header::new(SERVER6, UE6, protocol::UDP).build(&datagram).unwrap()
    }

    #[test]
    fn what_fits_passes_and_the_rest_depends() {
        assert_eq!(fit(&v4(1400, true), 1400), Fit::Passes);
        assert_eq!(fit(&v4(1401, true), 1400), Fit::TooBig);
        assert_eq!(fit(&v4(1401, false), 1400), Fit::Fragment);
        assert_eq!(fit(&v6(1401), 1400), Fit::TooBig);
        assert_eq!(fit(&[], 1400), Fit::Passes);
    }

    #[test]
    fn senders_are_told_the_mtu_and_what_they_sent() {
        let mut out = [0; 2048];
        let packet = v4(1500, true);
        let length = answer(&packet, 1400, &ROUTER, &mut out).unwrap();
        assert_eq!(length, ANSWER_V4);
        let reply = ipv4::Packet::new(&out[..length]).unwrap();
        assert!(reply.checksum_ok());
        assert_eq!((reply.source(), reply.destination()), (GATEWAY, SERVER));
        let message = Message::new(reply.payload()).unwrap();
        assert!(message.checksum_ok(GATEWAY.into(), SERVER.into()));
        assert_eq!((message.kind(), message.code(), message.sequence()), (3, 4, 1400));
        assert_eq!(message.payload(), &packet[..ANSWER_V4 - 28]);

        let packet = v6(1500);
        let length = answer(&packet, 1400, &ROUTER, &mut out).unwrap();
        assert_eq!(length, ANSWER_V6);
        let reply = ipv6::Packet::new(&out[..length]).unwrap();
        assert_eq!((reply.source(), reply.destination()), (GATEWAY6, SERVER6));
        let message = Message::new(reply.payload()).unwrap();
        assert!(message.checksum_ok(GATEWAY6.into(), SERVER6.into()));
        assert_eq!((message.kind(), message.code(), message.sequence()), (2, 0, 1400));
        assert_eq!(message.payload(), &packet[..ANSWER_V6 - 48]);
    }

    #[test]
    fn small_buffers_get_shorter_quotes_or_none() {
        for room in 0..ANSWER_V6 {
            let mut out = vec![0; room];
            let v4 = answer(&v4(1500, true), 1400, &ROUTER, &mut out);
            assert_eq!(v4, (room >= 20 + 8 + 28).then_some(room.min(ANSWER_V4)), "{room}");
            let v6 = answer(&v6(1500), 1400, &ROUTER, &mut out);
            assert_eq!(v6, (room >= 40 + 8 + 48).then_some(room), "{room}");
        }
    }

    #[test]
    fn errors_groups_and_later_fragments_are_not_answered() {
        let mut out = [0; 2048];
        let mut silent = |packet: &[u8]| assert_eq!(answer(packet, 1400, &ROUTER, &mut out), None);
        let from = |from: Ipv4Addr, to: Ipv4Addr, protocol, first: u8| {
            let payload = [&[first][..], &[0; 1480]].concat();
            ipv4::Header::new(from, to, protocol).build(&payload).unwrap()
        };
        silent(&from(SERVER, UE, protocol::ICMP, 3));
        silent(&from(SERVER, UE, protocol::ICMP, 11));
        silent(&from(SERVER, Ipv4Addr::new(224, 0, 0, 1), protocol::UDP, 0));
        silent(&from(SERVER, Ipv4Addr::BROADCAST, protocol::UDP, 0));
        silent(&from(Ipv4Addr::UNSPECIFIED, UE, protocol::UDP, 0));
        silent(&from(Ipv4Addr::new(224, 0, 0, 9), UE, protocol::UDP, 0));
        let mut fragment = v4(1500, true);
        fragment[7] = 1;
        silent(&fragment);
        let errors = [&[1][..], &[0; 1480]].concat();
        silent(&ipv6::Header::new(SERVER6, UE6, protocol::ICMPV6).build(&errors).unwrap());
        silent(&ipv6::Header::new(Ipv6Addr::UNSPECIFIED, UE6, protocol::UDP).build(&errors).unwrap());
        let later = [&[protocol::UDP, 0, 0, 8, 0, 0, 0, 1][..], &[0; 1480]].concat();
        silent(&ipv6::Header::new(SERVER6, UE6, protocol::FRAGMENT).build(&later).unwrap());
        silent(&[]);
        silent(&[0x60; 39]);
        assert_eq!(answer(&v4(1500, true), 1400, &Router::default(), &mut out), None);
        let echo = from(SERVER, UE, protocol::ICMP, 8);
        assert!(answer(&echo, 1400, &ROUTER, &mut out).is_some());
        // An IPv6 packet to a group is answered too, so that a sender can find the path's MTU.
        let group = Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 1);
        let packet = ipv6::Header::new(SERVER6, group, protocol::UDP).build(&errors).unwrap();
        assert!(answer(&packet, 1400, &ROUTER, &mut out).is_some());
    }

    fn fragments(packet: &[u8], mtu: usize) -> Vec<Vec<u8>> {
        let (mut fragments, mut out, mut all) = (Fragments::new(packet, mtu).unwrap(), [0; 2048], Vec::new());
        while let Some(length) = fragments.next(&mut out) {
            all.push(out[..length].to_vec());
        }
        all
    }

    /// Reassembles fragments, checking each header.
    fn payload_of(fragments: &[Vec<u8>], mtu: usize) -> Vec<u8> {
        let mut payload = Vec::new();
        for (at, fragment) in fragments.iter().enumerate() {
            let view = ipv4::Packet::new(fragment).unwrap();
            assert!(view.checksum_ok() && fragment.len() <= mtu && view.bytes().len() == fragment.len());
            assert_eq!(view.fragment_offset(), payload.len());
            assert_eq!(view.more_fragments(), at + 1 < fragments.len());
            payload.extend_from_slice(view.payload());
        }
        payload
    }

    #[test]
    fn fragments_add_up() {
        let packet = v4(1500, false);
        for mtu in [28, 68, 576, 1280, 1399, 1400, 1499] {
            let pieces = fragments(&packet, mtu);
            assert!(pieces.len() > 1);
            assert_eq!(Fragments::new(&packet, mtu).unwrap().count(), pieces.len());
            assert_eq!(payload_of(&pieces, mtu), packet[20..], "{mtu}");
            // Fragments the fragments, as a narrower link would: the result must add up as well.
            let again: Vec<_> = pieces.iter().flat_map(|piece| fragments(piece, 68)).collect();
            assert_eq!(payload_of(&again, 68), packet[20..], "{mtu}");
        }
        assert!(Fragments::new(&packet, 27).is_none() && Fragments::new(&v4(1500, true), 1400).is_none());
        assert!(Fragments::new(&packet, 1400).unwrap().next(&mut [0; 100]).is_none());
    }

    #[test]
    fn options_are_repeated_where_their_copy_flag_says_so() {
        // Record route (not copied), no operation, loose source route (copied), end.
        let options = [7, 3, 4, 1, 0x83, 7, 4, 9, 9, 9, 9, 0];
        let mut packet = v4(1000, false);
        packet.splice(20..20, options);
        packet[0] = 0x48;
        packet[2..4].copy_from_slice(&1012u16.to_be_bytes());
        let pieces = fragments(&packet, 576);
        assert_eq!(pieces[0][..20 + 12][20..], options);
        assert_eq!(pieces[1][0], 0x47);
        assert_eq!(pieces[1][20..28], [0x83, 7, 4, 9, 9, 9, 9, 0]);
        assert_eq!(payload_of(&pieces, 576), packet[32..]);
        // Options with an impossible length are left out, and nothing is read beyond them.
        packet[21] = 200;
        assert_eq!(fragments(&packet, 576)[1][0], 0x45);
    }

    /// A TCP segment with options; flags, then options, padded.
    fn tcp(v6: bool, flags: u8, options: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; TCP_HEADER];
        segment[..4].copy_from_slice(&[0x9C, 0x40, 0, 80]);
        segment[13] = flags;
        segment.extend_from_slice(options);
        segment.resize(segment.len().next_multiple_of(4), 0);
        segment[12] = ((segment.len() / 4) as u8) << 4;
        segment.extend_from_slice(b"odd");
        let (from, to): (IpAddr, IpAddr) =
            if v6 { (SERVER6.into(), UE6.into()) } else { (SERVER.into(), UE.into()) };
        let sum =
            Sum::default().pseudo_header(from, to, protocol::TCP, segment.len()).octets(&segment).finish();
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        match v6 {
            false => ipv4::Header::new(SERVER, UE, protocol::TCP).build(&segment).unwrap(),
            true => ipv6::Header::new(SERVER6, UE6, protocol::TCP).build(&segment).unwrap(),
        }
    }

    #[test]
    fn segment_sizes_are_lowered_and_checksums_stay_right() {
        for is_v6 in [false, true] {
            let (header, most): (usize, u16) = if is_v6 { (40, 1340) } else { (20, 1360) };
            let addresses: (IpAddr, IpAddr) =
                if is_v6 { (SERVER6.into(), UE6.into()) } else { (SERVER.into(), UE.into()) };
            for options in [&[2, 4, 5, 180][..], &[1, 2, 4, 5, 180], &[3, 3, 7, 1, 2, 4, 0xFF, 0xFF, 4, 2]] {
                let mut packet = tcp(is_v6, 0x12, options);
                assert!(clamp_mss(&mut packet, 1400));
                let segment = Tcp::new(&packet[header..]).unwrap();
                assert!(segment.checksum_ok(addresses.0, addresses.1), "{options:?}");
                let at = header + mss_option(&packet[header..packet.len() - 3]).unwrap();
                assert_eq!(packet[at..at + 2], most.to_be_bytes());
                assert!(!clamp_mss(&mut packet, 1400), "once is enough");
            }
        }
    }

    #[test]
    fn other_segments_are_left_alone() {
        let untouched = |packet: Vec<u8>| {
            let mut after = packet.clone();
            assert!(!clamp_mss(&mut after, 1400));
            assert_eq!(after, packet);
        };
        untouched(tcp(false, 0x10, &[2, 4, 5, 180]));
        untouched(tcp(false, 0x02, &[2, 4, 4, 0]));
        untouched(tcp(false, 0x02, &[]));
        untouched(tcp(false, 0x02, &[0, 0, 0, 0, 2, 4, 0xFF, 0xFF]));
        untouched(tcp(false, 0x02, &[9, 0, 0, 0]));
        untouched(tcp(false, 0x02, &[9, 1, 2, 4, 0xFF, 0xFF]));
        untouched(tcp(false, 0x02, &[2, 40, 0xFF, 0xFF]));
        untouched(v4(1500, true));
        let mut fragment = tcp(false, 0x02, &[2, 4, 5, 180]);
        fragment[7] = 4;
        untouched(fragment);
        // A header that claims to be longer than the packet, and every possible truncation.
        let mut long = tcp(true, 0x02, &[2, 4, 5, 180]);
        long[40 + 12] = 0xF0;
        untouched(long);
        let packet = tcp(false, 0x02, &[2, 4, 5, 180]);
        for length in 0..packet.len() {
            untouched(packet[..length].to_vec());
        }
    }
}
