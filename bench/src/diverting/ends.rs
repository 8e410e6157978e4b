//! Ends of a tunnel for programs: a TUN device in front of GTP-U, as base station with one user, and as two anchors with a server
//! behind them. They are the same for all contenders.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use anyhow::Context as _;
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::time::Duration;
use path::{Graph, Ports, Worker};
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::tun::TunPort;
use pktio::{Pool, VECTOR, Vector};

use super::frames::{self, Ends, FIRST_TEID, HEADERS};

/// The server's address.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
/// The user's.
pub(super) const USER: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
const TUN: &str = "tun0";
/// So that packets fit into the links' 1500 octets with their tunnels.
const MTU: u32 = 1440;
/// The interface of the TUN device; links follow.
const INSIDE: usize = 0;

/// What an end has received by each link.
#[derive(Default)]
pub(super) struct Counts {
    /// G-PDUs to the link's address.
    pub(super) received: [AtomicU64; 2],
    /// GTP-U to other addresses, or of other tunnels.
    pub(super) wrong: AtomicU64,
}

/// An end that runs until this is dropped.
pub(super) struct End {
    pub(super) counts: Arc<Counts>,
    /// The link through which packets leave.
    way: Arc<AtomicUsize>,
    _worker: Worker,
    _interfaces: Vec<Arc<Interface>>,
    _memory: Memory,
}

impl End {
    /// Starts one with a TUN device of this address in a namespace, and links there with their addresses.
    ///
    /// # Errors
    /// The process lacks rights.
    pub(super) fn start(
        space: &NetNs,
        inside: Ipv4Addr,
        other: Ipv4Addr,
        links: &[(&str, Ends)],
    ) -> anyhow::Result<End> {
        let tun = device(space, inside, other)?;
        let open = || -> anyhow::Result<_> {
            let open = |(name, _): &(&str, Ends)| Interface::open(name, None, &[Select::Everything]);
            let interfaces = links.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            let devices = interfaces.iter().map(|interface| interface.device());
            let mut memory = Memory::with_more(interfaces.len(), 4 * VECTOR, devices)?;
            let port = |interface| AfXdpPort::open(interface, [0], &mut memory, Options::default());
            let ports = interfaces.iter().map(port).collect::<Result<Vec<_>, _>>()?;
            Ok((interfaces, memory, ports))
        };
        let (interfaces, memory, links_of) = space.enter(open)??;
        let mut ports: Ports = vec![Box::new(tun)];
        ports.extend(links_of.into_iter().map(|port| Box::new(port) as _));
        let (counts, way) = (Arc::<Counts>::default(), Arc::<AtomicUsize>::default());
        let graph = Tunnel {
            home: pktio::home(&ports).context("AF_XDP has a pool")?,
            headers: links.iter().map(|(_, ends)| frames::headers(*ends)).collect(),
            own: links.iter().map(|(_, ends)| ends.source.octets()).collect(),
            counts: Arc::clone(&counts),
            way: Arc::clone(&way),
            selected: Vec::with_capacity(VECTOR),
        };
        let inputs = (0..ports.len()).collect();
        // It sleeps at once, as programs beside it need the cores.
        let worker = Worker::start("tunnel", graph, ports, inputs, Duration::ZERO)?;
        Ok(End { counts, way, _worker: worker, _interfaces: interfaces, _memory: memory })
    }

    /// Sends through another link.
    pub(super) fn turn_to(&self, link: usize) {
        self.way.store(link, Relaxed);
    }

    /// What has come by a link so far.
    pub(super) fn received(&self, link: usize) -> u64 {
        self.counts.received[link].load(Relaxed)
    }
}

/// A TUN device with an address, and a route to the other end.
fn device(space: &NetNs, address: Ipv4Addr, other: Ipv4Addr) -> anyhow::Result<TunPort> {
    let tun = space.enter(|| TunPort::create(TUN))??;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let links = Links::in_ns(space)?;
        links.set_mtu(TUN, MTU).await?;
        links.add_address(TUN, Cidr::host(address.into())).await?;
        links.up(TUN).await?;
        links.add_route(Cidr::host(other.into()), None, Some(TUN)).await
    })?;
    Ok(tun)
}

/// The graph of an end.
struct Tunnel {
    home: Arc<dyn Pool>,
    /// What is in front of packets, by link.
    headers: Vec<[u8; HEADERS]>,
    /// Addresses by link.
    own: Vec<[u8; 4]>,
    counts: Arc<Counts>,
    way: Arc<AtomicUsize>,
    selected: Vec<u16>,
}

impl Graph for Tunnel {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, _: u64, ports: &mut Ports) {
        self.selected.clear();
        let output = match input {
            INSIDE => {
                let link = self.way.load(Relaxed);
                self.put_on(link, vector);
                1 + link
            }
            link => {
                self.take_off(link - 1, vector);
                INSIDE
            }
        };
        // What a full queue refuses is lost, as on any link; TCP sends it again.
        let _ = ports[output].transmit(vector, &self.selected);
    }

    fn recover(&mut self, _: usize) {}

    fn interface_name(&self, number: usize) -> &str {
        if number == INSIDE { TUN } else { "link" }
    }
}

impl Tunnel {
    fn put_on(&mut self, link: usize, vector: &mut Vector) {
        for (at, mut frame) in vector.frames_mut().enumerate() {
            let length = frame.len();
            if frame.grow_front(HEADERS) {
                let headers = &mut frame.packet_mut()[..HEADERS];
                headers.copy_from_slice(&self.headers[link]);
                frames::set_lengths(headers, length);
                self.selected.push(at as u16);
            }
        }
    }

    fn take_off(&mut self, link: usize, vector: &mut Vector) {
        let mut received = 0;
        for (at, mut frame) in vector.frames_mut().enumerate() {
            match frames::user_packet(frame.packet(), self.own[link], FIRST_TEID) {
                Some(Ok(length)) => {
                    frame.trim_front(HEADERS);
                    frame.truncate(length);
                    self.selected.push(at as u16);
                    received += 1;
                }
                Some(Err(())) => _ = self.counts.wrong.fetch_add(1, Relaxed),
                // Of the namespaces' kernels.
                None => {}
            }
        }
        self.counts.received[link].fetch_add(received, Relaxed);
    }
}
