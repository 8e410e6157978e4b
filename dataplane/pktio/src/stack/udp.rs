//! UDP over a frame port: what a UDP socket would do, for one local address and port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use packet::checksum::Sum;
use packet::{ethernet, protocol};
use telemetry::DropReason;

use super::{Core, Link, Neighbours, NextHop, Prepared, Received, push_header};
use crate::{Batch, FramePort, Port, Sent};

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
    header_len: usize,
    /// Checksum of the constant part of our IPv4 headers.
    constant: Sum,
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
        let (ip_header, constant) = match local.ip() {
            IpAddr::V4(address) => {
                let mut header = [0u8; IPV4_HEADER];
                write_ipv4_constants(&mut header, address);
                (IPV4_HEADER, Sum::default().octets(&header))
            }
            IpAddr::V6(_) => (IPV6_HEADER, Sum::default()),
        };
        let header_len = core.link.header_len() + ip_header + UDP_HEADER;
        Ok(UdpStack { core, local, header_len, constant })
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

/// Version, flags, hops, protocol and source: what is the same in all our IPv4 headers.
fn write_ipv4_constants(header: &mut [u8], source: Ipv4Addr) {
    header[0] = 0x45;
    header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    (header[8], header[9]) = (HOPS, protocol::UDP);
    header[12..16].copy_from_slice(&source.octets());
}

impl<F: FramePort> Port for UdpStack<F> {
    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let local = self.local;
        self.core.receive(batch, |link, _, buffer| match strip(link, local, buffer.packet()) {
            Some((peer, start, end)) => {
                buffer.truncate(end);
                buffer.trim_front(start);
                buffer.peer = peer;
                Received::Packet
            }
            None => Received::Other,
        })
    }

    fn transmit(&mut self, batch: &mut Batch, selected: &[u16]) -> Sent {
        let (local, header_len, constant) = (self.local, self.header_len, self.constant);
        self.core.transmit(batch, selected, header_len, |link, mtu, neighbours, buffer| {
            let peer = buffer.peer;
            if header_len - link.header_len() + buffer.len() > mtu {
                return Prepared::TooBig;
            }
            let mac = match neighbours.next_hop(peer.ip()) {
                NextHop::Mac(mac) => Some(mac),
                NextHop::Unknown if neighbours.holds() => None,
                _ => return Prepared::NoNextHop,
            };
            let tos = buffer.tos;
            let at = link.header_len();
            let written = match (local.ip(), peer.ip()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => push_header(buffer, header_len, |header, payload| {
                    link.write(header, mac.unwrap_or_default(), ethernet::IPV4);
                    write_ipv4(&mut header[at..], (from, to), tos, payload.len(), constant);
                    write_udp(&mut header[at + IPV4_HEADER..], (local.port(), peer.port()), payload.len());
                }),
                (IpAddr::V6(from), IpAddr::V6(to)) => push_header(buffer, header_len, |header, payload| {
                    link.write(header, mac.unwrap_or_default(), ethernet::IPV6);
                    write_ipv6(&mut header[at..], (from, to), tos, payload.len());
                    let udp = &mut header[at + IPV6_HEADER..];
                    write_udp(udp, (local.port(), peer.port()), payload.len());
                    let sum = udp_checksum(local.ip(), peer.ip(), udp, payload);
                    udp[6..8].copy_from_slice(&sum.to_be_bytes());
                }),
                _ => false,
            };
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

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.core.fd()
    }
}

fn write_ipv4(header: &mut [u8], (from, to): (Ipv4Addr, Ipv4Addr), tos: u8, payload: usize, constant: Sum) {
    // The buffer held other things before: every octet is written.
    header[..IPV4_HEADER].fill(0);
    write_ipv4_constants(header, from);
    header[1] = tos;
    let total = ((IPV4_HEADER + UDP_HEADER + payload) as u16).to_be_bytes();
    header[2..4].copy_from_slice(&total);
    header[16..20].copy_from_slice(&to.octets());
    let sum = constant.octets(&[0, tos, total[0], total[1]]).octets(&to.octets()).finish();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn write_ipv6(header: &mut [u8], (from, to): (Ipv6Addr, Ipv6Addr), tos: u8, payload: usize) {
    let first = 6u32 << 28 | u32::from(tos) << 20;
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&((UDP_HEADER + payload) as u16).to_be_bytes());
    (header[6], header[7]) = (protocol::UDP, HOPS);
    header[8..24].copy_from_slice(&from.octets());
    header[24..40].copy_from_slice(&to.octets());
}

/// A UDP header without checksum, which IPv4 allows and tunnels use (TS 29.281 §4.4.2 leaves it to the sender).
fn write_udp(header: &mut [u8], (from, to): (u16, u16), payload: usize) {
    header[..2].copy_from_slice(&from.to_be_bytes());
    header[2..4].copy_from_slice(&to.to_be_bytes());
    header[4..6].copy_from_slice(&((UDP_HEADER + payload) as u16).to_be_bytes());
    header[6..8].fill(0);
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
        && Sum::default().octets(&packet[..header]).finish() == 0;
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
