//! IP packets over a frame port: N6.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use packet::ethernet;
use telemetry::DropReason;

use super::header::Ethernet;
use super::routes::{Near, Number};
use super::{Core, Neighbours, NextHop, Prepared, Received};
use crate::vlan::Tags;
use crate::{FramePort, Pool, Port, Sent, Vector};

/// IP on a frame port; see the module `stack`.
pub struct IpStack<F> {
    core: Core<F>,
}

impl<F: FramePort> IpStack<F> {
    /// Exchanges IP packets on `frames`, in frames with these tags.
    pub fn new(frames: F, tags: impl Into<Tags>, neighbours: Neighbours) -> io::Result<IpStack<F>> {
        Ok(IpStack { core: Core::new(frames, tags.into(), neighbours)? })
    }

    /// The same for a link whose packets have up to `mtu` octets; the device's MTU may be lower.
    #[must_use]
    pub fn with_mtu(mut self, mtu: usize) -> IpStack<F> {
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

/// Where an IP packet goes, if its header is there.
#[inline]
pub(crate) fn destination(packet: &[u8]) -> Option<IpAddr> {
    Number::destination(packet).map(IpAddr::from)
}

impl<F: FramePort> Port for IpStack<F> {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        let mut near = Near::default();
        self.core.receive(batch, |link, neighbours, buffer| {
            let Some((kind, payload)) = link.payload(buffer.packet()) else { return Received::Other };
            match (kind, Number::destination(payload)) {
                (ethernet::IPV4, Some(to @ Number::V4(_))) | (ethernet::IPV6, Some(to @ Number::V6(_)))
                    if !neighbours.answers_for(to, &mut near) =>
                {
                    buffer.trim_front(link.header_len());
                    Received::Packet
                }
                _ => Received::Other,
            }
        })
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.core.refresh();
        let link = &self.core.link;
        let (header_len, ipv4, ipv6) =
            (link.header_len(), Ethernet::new(link, ethernet::IPV4), Ethernet::new(link, ethernet::IPV6));
        let mut near = Near::default();
        self.core.transmit(batch, selected, header_len, |_, mtu, neighbours, buffer| {
            let Some(to) = Number::destination(buffer.packet()) else { return Prepared::Error };
            if buffer.len() > mtu {
                return Prepared::TooBig;
            }
            let mac = match neighbours.next_hop(to, &mut near) {
                NextHop::Mac(mac) => Some(mac),
                NextHop::Unknown if neighbours.holds() => None,
                _ => return Prepared::NoNextHop,
            };
            let header = if to.is_ipv4() { &ipv4 } else { &ipv6 };
            match (header.put(buffer, mac.unwrap_or_default()), mac) {
                (false, _) => Prepared::Error,
                (true, Some(_)) => Prepared::Frame,
                (true, None) if neighbours.hold(to.into(), buffer.packet()) => Prepared::Held,
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
