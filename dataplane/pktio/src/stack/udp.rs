//! UDP over a frame port: what a UDP socket would do, for one local address and port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use packet::checksum::Sum;
use packet::ethernet::{self, Mac};
use packet::protocol;
use telemetry::DropReason;

use super::{Core, Link, Neighbours, NextHop, Prepared, Received, ethertype, push_header};
use crate::name::Name;
use crate::peers::View;
use crate::{FramePort, Port, Sent, Vector};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
/// Hop limit of outer headers: the usual default.
const HOPS: u8 = 64;
/// Don't fragment: an outer packet that exceeds the MTU is counted here, not cut there.
const DONT_FRAGMENT: u16 = 0x4000;

/// A UDP endpoint on a frame port; see the module `stack`.
pub struct UdpStack<F> {
    core: Core<F>,
    local: SocketAddr,
    template: Template,
    peers: View,
}

/// The headers of all our datagrams, with zero where they differ.
#[derive(Clone)]
struct Template {
    /// Ethernet with a tag, IPv6 and UDP at most.
    octets: [u8; 18 + IPV6_HEADER + UDP_HEADER],
    len: usize,
    /// Sum of the IPv4 header.
    sum: u32,
}

impl Template {
    fn new(link: &Link, local: SocketAddr) -> Template {
        let mut octets = [0; 18 + IPV6_HEADER + UDP_HEADER];
        let at = link.header_len();
        let ip = &mut octets[at..];
        let ip_len = match local.ip() {
            IpAddr::V4(source) => {
                ip[0] = 0x45;
                ip[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
                (ip[8], ip[9]) = (HOPS, protocol::UDP);
                ip[12..16].copy_from_slice(&source.octets());
                IPV4_HEADER
            }
            IpAddr::V6(source) => {
                ip[0] = 0x60;
                (ip[6], ip[7]) = (protocol::UDP, HOPS);
                ip[8..24].copy_from_slice(&source.octets());
                IPV6_HEADER
            }
        };
        let sum = sum(&ip[..IPV4_HEADER]);
        ip[ip_len..ip_len + 2].copy_from_slice(&local.port().to_be_bytes());
        link.write(&mut octets, Mac::default(), ethertype(local.ip()));
        Template { octets, len: at + ip_len + UDP_HEADER, sum }
    }
}

/// Sum of a header's 16-bit words; it cannot overflow for the lengths that headers have.
#[inline]
fn sum(words: &[u8]) -> u32 {
    words.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum()
}

/// The ones' complement sum of 16 bits that a sum stands for.
#[inline]
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xFFFF) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

impl<F: FramePort> UdpStack<F> {
    /// Serves `local` on `frames`, in frames of VLAN `vlan` if there is one.
    pub fn new(
        frames: F,
        local: SocketAddr,
        vlan: Option<u16>,
        neighbours: Neighbours,
    ) -> io::Result<UdpStack<F>> {
        let core = Core::new(frames, vlan, neighbours)?;
        let template = Template::new(&core.link, local);
        Ok(UdpStack { core, local, template, peers: View::default() })
    }

    /// The frame port below.
    pub fn frames(&mut self) -> &mut F {
        &mut self.core.frames
    }

    /// Ends the stack and gives the frame port back.
    pub fn into_frames(self) -> F {
        self.core.frames
    }
}

impl<F: FramePort> Port for UdpStack<F> {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        let local = self.local;
        self.core.receive(batch, |link, _, buffer| match strip(link, local, buffer.packet()) {
            Some((peer, start, end)) => {
                buffer.truncate(end);
                buffer.trim_front(start);
                *buffer.peer = peer;
                Received::Packet
            }
            None => Received::Other,
        })
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let (local, template) = (self.local, &self.template);
        let peers = self.peers.enter(batch);
        self.core.transmit(batch, selected, template.len, |link, mtu, neighbours, buffer| {
            let peer = match buffer.to() {
                0 => Some(*buffer.peer),
                number => peers.get(number).map(Name::address),
            };
            let Some(peer) = peer else { return Prepared::Error };
            let (tos, at) = (buffer.tos(), link.header_len());
            if template.len - at + buffer.len() > mtu {
                return Prepared::TooBig;
            }
            let mac = match neighbours.next_hop(peer.ip()) {
                NextHop::Mac(mac) => Some(mac),
                NextHop::Unknown if neighbours.holds() => None,
                _ => return Prepared::NoNextHop,
            };
            let written = local.is_ipv4() == peer.is_ipv4()
                && push_header(buffer, template.len, |header, payload| {
                    header.copy_from_slice(&template.octets[..template.len]);
                    header[..6].copy_from_slice(&mac.unwrap_or_default());
                    match peer.ip() {
                        IpAddr::V4(to) => {
                            finish_ipv4(&mut header[at..], to, tos, payload.len(), template.sum)
                        }
                        IpAddr::V6(to) => finish_ipv6(&mut header[at..], to, tos, payload.len()),
                    }
                    let udp = template.len - UDP_HEADER;
                    header[udp + 2..udp + 4].copy_from_slice(&peer.port().to_be_bytes());
                    let length = (UDP_HEADER + payload.len()) as u16;
                    header[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
                    // IPv4 allows none, and tunnels send none (TS 29.281 §4.4.2 leaves it to the sender).
                    if local.is_ipv6() {
                        let sum = udp_checksum(local.ip(), peer.ip(), &header[udp..], payload);
                        header[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
                    }
                });
            match (written, mac) {
                (false, _) => Prepared::Error,
                (true, Some(_)) => Prepared::Frame,
                (true, None) if neighbours.hold(peer.ip(), buffer.packet()) => Prepared::Held,
                (true, None) => Prepared::NoNextHop,
            }
        })
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        self.core.losses(count);
    }

    fn unsent(&self) -> bool {
        self.core.unsent()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.core.fd()
    }
}

/// Traffic class, length, destination and checksum of an IPv4 header whose constant part has the sum `constant`.
#[inline]
fn finish_ipv4(header: &mut [u8], to: Ipv4Addr, tos: u8, payload: usize, constant: u32) {
    let total = (IPV4_HEADER + UDP_HEADER + payload) as u16;
    let octets = to.octets();
    header[1] = tos;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[16..20].copy_from_slice(&octets);
    let sum = constant + u32::from(tos) + u32::from(total) + sum(&octets);
    header[10..12].copy_from_slice(&(!fold(sum)).to_be_bytes());
}

/// Traffic class, length and destination of an IPv6 header.
#[inline]
fn finish_ipv6(header: &mut [u8], to: Ipv6Addr, tos: u8, payload: usize) {
    header[0] |= tos >> 4;
    header[1] = tos << 4;
    header[4..6].copy_from_slice(&((UDP_HEADER + payload) as u16).to_be_bytes());
    header[24..40].copy_from_slice(&to.octets());
}

/// The checksum that IPv6 demands; 0 would mean that there is none (RFC 8200 §8.1).
fn udp_checksum(from: IpAddr, to: IpAddr, header: &[u8], payload: &[u8]) -> u16 {
    let length = UDP_HEADER + payload.len();
    let sum = Sum::default()
        .pseudo_header(from, to, protocol::UDP, length)
        .octets(&header[..UDP_HEADER])
        .octets(payload)
        .finish();
    if sum == 0 { u16::MAX } else { sum }
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// The sender of a datagram to `local`, and where its payload begins and ends in the frame. `None` for everything
/// else, fragments among it.
#[inline]
fn strip(link: &Link, local: SocketAddr, frame: &[u8]) -> Option<(SocketAddr, usize, usize)> {
    let (ethertype, packet) = link.payload(frame)?;
    let (source, at, end) = match (local.ip(), ethertype) {
        (IpAddr::V4(local), ethernet::IPV4) => ipv4(local, packet)?,
        (IpAddr::V6(local), ethernet::IPV6) => ipv6(local, packet)?,
        _ => return None,
    };
    let udp = packet.get(at..end)?;
    let length = be16(udp.get(..UDP_HEADER)?, 4);
    if length < UDP_HEADER || length > udp.len() || be16(udp, 2) != usize::from(local.port()) {
        return None;
    }
    let start = link.header_len() + at;
    let peer = SocketAddr::new(source, be16(udp, 0) as u16);
    Some((peer, start + UDP_HEADER, start + length))
}

/// Source, and the extent of the UDP datagram, of an IPv4 packet to `local`.
#[inline]
fn ipv4(local: Ipv4Addr, packet: &[u8]) -> Option<(IpAddr, usize, usize)> {
    let fixed = packet.get(..IPV4_HEADER)?;
    let header = usize::from(fixed[0] & 0x0F) * 4;
    let total = be16(fixed, 2);
    let valid = fixed[0] >> 4 == 4
        && header >= IPV4_HEADER
        && (header..=packet.len()).contains(&total)
        // Neither "more fragments" nor an offset.
        && be16(fixed, 6) & 0x3FFF == 0
        && fixed[9] == protocol::UDP
        && fixed[16..20] == local.octets()
        && fold(sum(&packet[..header])) == u16::MAX;
    let source = Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]);
    valid.then_some((source.into(), header, total))
}

/// As [`ipv4`]; extension headers are not expected between tunnel endpoints.
fn ipv6(local: Ipv6Addr, packet: &[u8]) -> Option<(IpAddr, usize, usize)> {
    let fixed = packet.get(..IPV6_HEADER)?;
    let total = IPV6_HEADER + be16(fixed, 4);
    let valid = fixed[0] >> 4 == 6
        && fixed[6] == protocol::UDP
        && fixed[24..40] == local.octets()
        && total <= packet.len();
    let source = Ipv6Addr::from(<[u8; 16]>::try_from(&fixed[8..24]).ok()?);
    valid.then_some((source.into(), IPV6_HEADER, total))
}
