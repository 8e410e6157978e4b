//! IP packets over a frame port: N6.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use packet::ethernet;
use telemetry::DropReason;

use super::header::Ethernet;
use super::{Core, Neighbours, NextHop, Prepared, Received, ethertype};
use crate::{FramePort, Port, Sent, Vector};

/// IP on a frame port; see the module `stack`.
pub struct IpStack<F> {
    core: Core<F>,
}

impl<F: FramePort> IpStack<F> {
    /// Exchanges IP packets on `frames`, in frames of VLAN `vlan` if there is one.
    pub fn new(frames: F, vlan: Option<u16>, neighbours: Neighbours) -> io::Result<IpStack<F>> {
        Ok(IpStack { core: Core::new(frames, vlan, neighbours)? })
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

/// Where an IP packet goes, if its header is there.
#[inline]
pub(crate) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(16..20)?).ok()?).into()),
        6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(24..40)?).ok()?).into()),
        _ => None,
    }
}

impl<F: FramePort> Port for IpStack<F> {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        self.core.receive(batch, |link, neighbours, buffer| {
            let kind = match link.payload(buffer.packet()) {
                Some((kind @ (ethernet::IPV4 | ethernet::IPV6), payload)) => {
                    destination(payload).filter(|to| ethertype(*to) == kind && !neighbours.answers_for(*to))
                }
                _ => None,
            };
            match kind {
                Some(_) => {
                    buffer.trim_front(link.header_len());
                    Received::Packet
                }
                None => Received::Other,
            }
        })
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.core.refresh();
        let link = &self.core.link;
        let (header_len, ipv4, ipv6) =
            (link.header_len(), Ethernet::new(link, ethernet::IPV4), Ethernet::new(link, ethernet::IPV6));
        self.core.transmit(batch, selected, header_len, |_, mtu, neighbours, buffer| {
            let Some(to) = destination(buffer.packet()) else { return Prepared::Error };
            if buffer.len() > mtu {
                return Prepared::TooBig;
            }
            let mac = match neighbours.next_hop(to) {
                NextHop::Mac(mac) => Some(mac),
                NextHop::Unknown if neighbours.holds() => None,
                _ => return Prepared::NoNextHop,
            };
            let header = if to.is_ipv4() { &ipv4 } else { &ipv6 };
            match (header.put(buffer, mac.unwrap_or_default()), mac) {
                (false, _) => Prepared::Error,
                (true, Some(_)) => Prepared::Frame,
                (true, None) if neighbours.hold(to, buffer.packet()) => Prepared::Held,
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
