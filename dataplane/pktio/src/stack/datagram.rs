//! UDP over a frame port for any number of local ports, which are bound while it runs.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use packet::ethernet;
use telemetry::DropReason;

use super::header::Header;
use super::udp::{IPV4_HEADER, IPV6_HEADER, UDP_HEADER, address_of, put, strip};
use super::{Core, Link, Neighbours, Prepared, Received};
use crate::vlan::Tags;
use crate::{FramePort, Pool, Port, Sent, Vector};

/// Most endpoints of an interface.
pub const MAX_ENDPOINTS: usize = 4096;
/// Ports that are given to endpoints which ask for any (RFC 6335 §6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;

/// The local addresses and ports of an interface that are bound, by number. One thread moves packets; others bind and close.
#[derive(Debug, Default)]
pub struct Endpoints {
    /// Counts the changes.
    version: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// The address of each number, until packets that were sent before it was closed have left.
    locals: Vec<Option<SocketAddr>>,
    numbers: HashMap<SocketAddr, u16>,
}

impl Endpoints {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The number of the last change.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Binds an address, with any free port if it has port 0; returns it with its number.
    ///
    /// # Errors
    /// It is in use, or there are [`MAX_ENDPOINTS`].
    pub fn bind(&self, local: SocketAddr) -> io::Result<(u16, SocketAddr)> {
        let table = &mut *self.lock();
        let free = |port: u16| {
            Some(SocketAddr::new(local.ip(), port)).filter(|own| !table.numbers.contains_key(own))
        };
        let local = match local.port() {
            0 => EPHEMERAL.into_iter().find_map(free),
            port => free(port),
        };
        let local = local.ok_or(io::ErrorKind::AddrInUse)?;
        let unused = table.locals.iter().position(Option::is_none).unwrap_or(table.locals.len());
        if unused >= MAX_ENDPOINTS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if unused == table.locals.len() {
            table.locals.push(None);
        }
        table.locals[unused] = Some(local);
        table.numbers.insert(local, unused as u16);
        self.changed();
        Ok((unused as u16, local))
    }

    /// Nothing is received there any more, and the port is free. What was sent still leaves.
    pub fn close(&self, local: SocketAddr) {
        self.lock().numbers.remove(&local);
        self.changed();
    }

    /// What a closed endpoint has sent has left: its number is free.
    pub fn release(&self, number: u16) {
        if let Some(local) = self.lock().locals.get_mut(usize::from(number)) {
            *local = None;
        }
        self.changed();
    }

    /// A copy of what is bound, and the number of the last change.
    fn read(&self) -> (u64, Vec<Option<SocketAddr>>, HashMap<SocketAddr, u16>) {
        let table = self.lock();
        (self.version(), table.locals.clone(), table.numbers.clone())
    }
}

/// UDP for the endpoints of an interface on a frame port. The number of a frame is that of its endpoint: a received one has it, and
/// a frame that is sent needs it ([`FrameMut::send_to`](crate::FrameMut::send_to)); the peer is the vector's.
pub struct DatagramStack<F> {
    core: Core<F>,
    endpoints: Arc<Endpoints>,
    version: u64,
    locals: Vec<Option<SocketAddr>>,
    numbers: HashMap<SocketAddr, u16>,
}

impl<F: FramePort> DatagramStack<F> {
    /// Serves `endpoints` on `frames`, in frames with these tags and packets of up to `mtu` octets.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new(
        frames: F,
        endpoints: &Arc<Endpoints>,
        tags: Tags,
        neighbours: Neighbours,
        mtu: usize,
    ) -> io::Result<DatagramStack<F>> {
        let mut core = Core::new(frames, tags, neighbours)?;
        core.limit_mtu(mtu);
        let (version, locals, numbers) = endpoints.read();
        Ok(DatagramStack { core, endpoints: Arc::clone(endpoints), version, locals, numbers })
    }

    #[inline]
    fn refresh(&mut self) {
        if self.endpoints.version() != self.version {
            (self.version, self.locals, self.numbers) = self.endpoints.read();
        }
    }

    /// Sends packets of one endpoint.
    fn send(&mut self, local: SocketAddr, batch: &mut Vector, selected: &[u16]) -> Sent {
        let version = self.core.neighbours.version();
        let ip_len = if local.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER } + UDP_HEADER;
        let header_len = self.core.link.header_len() + ip_len;
        self.core.transmit(batch, selected, header_len, |link, mtu, neighbours, frame| {
            if frame.len() + ip_len > mtu {
                return Prepared::TooBig;
            }
            // Below this the number would be that of a peer.
            frame.send_to(0);
            let peer = *frame.peer;
            let mac = match address_of(neighbours, peer) {
                Ok(mac) => mac,
                Err(unreachable) => return unreachable,
            };
            match Header::new(version, link, local, peer, mac.unwrap_or_default()) {
                Some(header) => put(&header, mac, neighbours, peer, frame),
                None => Prepared::Error,
            }
        })
    }
}

/// Where a UDP datagram in a frame for us goes.
fn destination(link: &Link, frame: &[u8]) -> Option<SocketAddr> {
    let (ethertype, packet) = link.payload(frame)?;
    let (to, port): (IpAddr, usize) = match ethertype {
        ethernet::IPV4 => {
            let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            (to.into(), usize::from(packet[0] & 0x0F) * 4 + 2)
        }
        ethernet::IPV6 => {
            let to: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            (to.into(), IPV6_HEADER + 2)
        }
        _ => return None,
    };
    let port: [u8; 2] = packet.get(port..port + 2)?.try_into().ok()?;
    Some(SocketAddr::new(to, u16::from_be_bytes(port)))
}

impl<F: FramePort> Port for DatagramStack<F> {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        self.refresh();
        let numbers = &self.numbers;
        self.core.receive(batch, |link, _, frame| {
            let bound = destination(link, frame.packet())
                .and_then(|local| numbers.get(&local).map(|number| (*number, local)));
            let Some((number, local)) = bound else { return Received::Other };
            match strip(link, local, frame.packet()) {
                Some(((source, port), start, end)) => {
                    frame.truncate(end);
                    frame.trim_front(start);
                    frame.send_to(number);
                    *frame.peer = SocketAddr::new(source.into(), port);
                    Received::Packet
                }
                None => Received::Other,
            }
        })
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.refresh();
        self.core.refresh();
        let mut sent = Sent::default();
        let number = |batch: &Vector, position: u16| batch.sendable(position).map(crate::Frame::to);
        let mut rest = selected;
        while let Some(first) = rest.first() {
            let own = number(batch, *first);
            let count = rest.iter().take_while(|position| number(batch, **position) == own).count();
            let (of_one, others) = rest.split_at(count);
            let local = own.and_then(|number| self.locals.get(usize::from(number)).copied().flatten());
            match local {
                Some(local) => super::add(&mut sent, &self.send(local, batch, of_one)),
                None => sent.errors += count,
            }
            rest = others;
        }
        sent
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_bound_once_and_free_after_closing() {
        let endpoints = Endpoints::default();
        let local: SocketAddr = "10.0.0.1:7".parse().unwrap();
        let (number, _) = endpoints.bind(local).unwrap();
        assert_eq!(endpoints.bind(local).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(endpoints.bind("[fd00::1]:7".parse().unwrap()).unwrap().0, 1, "another address");
        endpoints.close(local);
        assert_eq!(endpoints.bind(local).unwrap().0, 2, "packets of the former number may be under way");
        endpoints.release(number);
        let (again, any) = endpoints.bind("10.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!((again, any), (number, "10.0.0.1:49152".parse().unwrap()));
        for _ in 3..MAX_ENDPOINTS {
            endpoints.bind("10.0.0.1:0".parse().unwrap()).unwrap();
        }
        let full = endpoints.bind("10.0.0.1:0".parse().unwrap()).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::QuotaExceeded);
    }
}
