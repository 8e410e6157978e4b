//! UDP over a frame port: what a UDP socket would do, for one local address and port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use packet::ethernet::{self, Mac};
use packet::protocol;
use telemetry::DropReason;

use super::header::{Header, Version, fold, sum};
use super::routes::{Near, Number};
use super::{Core, Link, Neighbours, NextHop, Prepared, Received};
use crate::peers::{Entry, View};
use crate::vlan::Tags;
use crate::{FrameMut, FramePort, Pool, Port, Sent, Vector};

pub(super) const IPV4_HEADER: usize = 20;
pub(super) const IPV6_HEADER: usize = 40;
pub(super) const UDP_HEADER: usize = 8;

/// A UDP endpoint on a frame port; see the module `stack`.
pub struct UdpStack<F> {
    core: Core<F>,
    local: SocketAddr,
    /// Tells our headers from those of other ports; see [`Neighbours::number_of`].
    number: u16,
    peers: View,
}

impl<F: FramePort> UdpStack<F> {
    /// Serves `local` on `frames`, in frames with these tags.
    pub fn new(
        frames: F,
        local: SocketAddr,
        tags: impl Into<Tags>,
        neighbours: Neighbours,
    ) -> io::Result<UdpStack<F>> {
        let tags = tags.into();
        let core = Core::new(frames, tags, neighbours)?;
        let number = core.neighbours.number_of((local, tags)).ok_or(io::ErrorKind::QuotaExceeded)?;
        Ok(UdpStack { core, local, number, peers: View::default() })
    }

    /// The same for a link whose packets have up to `mtu` octets; the device's MTU may be lower.
    #[must_use]
    pub fn with_mtu(mut self, mtu: usize) -> UdpStack<F> {
        self.core.limit_mtu(mtu);
        self
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
            Some(((source, port), start, end)) => {
                buffer.truncate(end);
                buffer.trim_front(start);
                *buffer.peer = SocketAddr::new(source.into(), port);
                Received::Packet
            }
            None => Received::Other,
        })
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.core.refresh();
        let (local, version) = (self.local, self.core.neighbours.version() + Version::from(self.number));
        let peers = self.peers.enter(batch);
        let ip_len = if local.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER } + UDP_HEADER;
        let header_len = self.core.link.header_len() + ip_len;
        self.core.transmit(batch, selected, header_len, |link, mtu, neighbours, buffer| {
            if buffer.len() + ip_len > mtu {
                return Prepared::TooBig;
            }
            let number = buffer.to();
            let entry = if number == 0 { None } else { peers.get(number) };
            let ready = entry.filter(|entry| entry.header.version() == version);
            let send = |entry: &Entry, buffer: &mut FrameMut<'_>| match entry.header.put(buffer) {
                true => Prepared::Frame,
                false => Prepared::Error,
            };
            if let Some(entry) = ready
                && !neighbours.waits()
            {
                return send(entry, buffer);
            }
            let peer = match entry {
                Some(entry) => entry.name.address(),
                None if number == 0 => *buffer.peer,
                None => return Prepared::Error,
            };
            let mac = match address_of(neighbours, peer) {
                Ok(mac) => mac,
                Err(unreachable) => return unreachable,
            };
            if let (Some(entry), Some(_)) = (ready, mac) {
                // Packets to other neighbours wait.
                return send(entry, buffer);
            }
            let Some(header) = Header::new(version, link, local, peer, mac.unwrap_or_default()) else {
                return Prepared::Error;
            };
            if mac.is_some() && entry.is_some_and(|entry| entry.header.version() < version) {
                peers.add_header(number, peer, &header);
            }
            put(&header, mac, neighbours, peer, buffer)
        })
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        self.core.losses(count);
    }

    fn unsent(&self) -> bool {
        self.core.unsent()
    }

    fn before_sleep(&mut self) -> io::Result<()> {
        self.core.frames.before_sleep()
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        self.core.frames.pool()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.core.fd()
    }
}

/// The link-layer address of the next hop to `peer`; `None` if packets to it have to wait for it.
#[inline]
pub(super) fn address_of(neighbours: &mut Neighbours, peer: SocketAddr) -> Result<Option<Mac>, Prepared> {
    match neighbours.next_hop(peer.ip().into(), &mut Near::default()) {
        NextHop::Mac(mac) => Ok(Some(mac)),
        NextHop::Unknown if neighbours.holds() => Ok(None),
        _ => Err(Prepared::NoNextHop),
    }
}

/// Puts headers in front of a packet, which waits if the address of its next hop is not known.
#[inline]
pub(super) fn put(
    header: &Header,
    mac: Option<Mac>,
    neighbours: &mut Neighbours,
    peer: SocketAddr,
    frame: &mut FrameMut<'_>,
) -> Prepared {
    match (header.put(frame), mac) {
        (false, _) => Prepared::Error,
        (true, Some(_)) => Prepared::Frame,
        (true, None) if neighbours.hold(peer.ip(), frame.packet()) => Prepared::Held,
        (true, None) => Prepared::NoNextHop,
    }
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// The sender of a datagram to `local`, and where its payload begins and ends in the frame. `None` for everything
/// else, fragments among it.
#[inline(always)]
pub(super) fn strip(link: &Link, local: SocketAddr, frame: &[u8]) -> Option<((Number, u16), usize, usize)> {
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
    Some(((source, be16(udp, 0) as u16), start + UDP_HEADER, start + length))
}

/// Source, and the extent of the UDP datagram, of an IPv4 packet to `local`.
#[inline(always)]
fn ipv4(local: Ipv4Addr, packet: &[u8]) -> Option<(Number, usize, usize)> {
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
    let source = u32::from_be_bytes(*fixed[12..].first_chunk()?);
    valid.then_some((Number::V4(source), header, total))
}

/// As [`ipv4`]; extension headers are not expected between tunnel endpoints.
fn ipv6(local: Ipv6Addr, packet: &[u8]) -> Option<(Number, usize, usize)> {
    let fixed = packet.get(..IPV6_HEADER)?;
    let total = IPV6_HEADER + be16(fixed, 4);
    let valid = fixed[0] >> 4 == 6
        && fixed[6] == protocol::UDP
        && fixed[24..40] == local.octets()
        && total <= packet.len();
    let source = u128::from_be_bytes(*fixed[8..].first_chunk()?);
    valid.then_some((Number::V6(source), IPV6_HEADER, total))
}
