//! The ways between nodes: namespaces that veth pairs join, and memifs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, bail};
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::Command;
use net::time::{self, Duration};
use packet::gtpu;
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::memif::MemifPort;
use pktio::stack::Neighbours;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::udp::UdpPort;
use pktio::{FramePort, Port};

use super::nodes::{CU_N3, UPF_N3, cu_on_f1u, du_on_f1u};
use super::sockets::{Batched, PerCall};

/// Room for the headers of a tunnel around 1,500 octets.
pub(crate) const MTU: u16 = 1700;
const QUEUE: u32 = 4096;
/// Longer than any pause of a measurement.
pub(crate) const ALWAYS: Duration = Duration::from_secs(60);
/// Time limit for a link to come up, and for a packet to come through.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A way between two nodes.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Kernel sockets, one datagram per call and per wait of epoll, as the paper's GTP-U tasks have it.
    PerCall,
    /// Kernel sockets, many datagrams per call, asleep when nothing comes: gains are named against this one.
    Batched,
    /// The same with the kernel's segmentation (`UDP_SEGMENT`, `UDP_GRO`), which is our backend `kernel`.
    Segmented,
    /// `Batched` that never sleeps.
    Spinning,
    /// AF_XDP on the same veth pair, polled.
    AfXdp,
    /// Memory shared between our own nodes, polled.
    Memif,
}

impl Way {
    pub(crate) const ALL: [Way; 6] =
        [Way::PerCall, Way::Batched, Way::Segmented, Way::Spinning, Way::AfXdp, Way::Memif];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::PerCall => "per_call",
            Way::Batched => "batched",
            Way::Segmented => "segmented",
            Way::Spinning => "spinning",
            Way::AfXdp => "af_xdp",
            Way::Memif => "memif",
        }
    }

    /// How long a node looks for packets before it sleeps.
    pub(crate) fn poll(self) -> Duration {
        match self {
            Way::PerCall | Way::Batched | Way::Segmented => Duration::ZERO,
            Way::Spinning | Way::AfXdp | Way::Memif => ALWAYS,
        }
    }
}

/// A reference point at which the CU has a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// To the DU with this number; `apart` if the link is for this DU alone.
    F1u { du: u8, apart: bool },
    /// To the UPF.
    N3,
}

impl Point {
    /// To the only DU.
    pub(crate) const MIDHAUL: Point = Point::F1u { du: 0, apart: true };

    /// The network device at both ends.
    fn device(self) -> &'static str {
        match self {
            Point::F1u { .. } => "f1u",
            Point::N3 => "n3",
        }
    }

    /// The addresses of the CU and of its peer.
    fn addresses(self) -> [Ipv4Addr; 2] {
        match self {
            Point::F1u { du, apart } => [cu_on_f1u(if apart { du } else { 0 }), du_on_f1u(du)],
            Point::N3 => [CU_N3, UPF_N3],
        }
    }
}

/// Namespaces of CU, DUs and UPF, with links from the CU, and a folder for memifs.
pub(crate) struct Network {
    pub(crate) cu: NetNs,
    pub(crate) du: NetNs,
    pub(crate) upf: NetNs,
    folder: tempfile::TempDir,
}

impl Network {
    /// A network with room for so many DUs.
    ///
    /// # Errors
    /// The process lacks rights.
    pub(crate) fn build(dus: u8) -> anyhow::Result<Network> {
        let new = || NetNs::new().context("create a network namespace (needs root: see `godwit doctor`)");
        let network = Network { cu: new()?, du: new()?, upf: new()?, folder: tempfile::tempdir()? };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let f1u = (0..dus).map(du_on_f1u).collect();
            join(Point::MIDHAUL.device(), (&network.cu, vec![cu_on_f1u(0)]), (&network.du, f1u)).await?;
            join(Point::N3.device(), (&network.cu, vec![CU_N3]), (&network.upf, vec![UPF_N3])).await
        })?;
        Ok(network)
    }

    /// Where the sockets of memifs are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The namespace of the CU's peer.
    fn peer(&self, point: Point) -> &NetNs {
        match point {
            Point::F1u { .. } => &self.du,
            Point::N3 => &self.upf,
        }
    }

    /// The ends of a way: those of the CU and of its peer.
    ///
    /// # Errors
    /// The process lacks rights, or the way does not come up.
    pub(crate) fn open(&self, point: Point, way: Way) -> anyhow::Result<[Box<dyn Port>; 2]> {
        if way != Way::Memif {
            return Ok([self.open_end(point, way, true)?, self.open_end(point, way, false)?]);
        }
        let [cu, peer] = [memif_of(point, true, self.folder())?, memif_of(point, false, self.folder())?];
        come_up(&[&cu, &peer])?;
        Ok([stack(cu, local(point, true))?, stack(peer, local(point, false))?])
    }

    /// One end of a way by sockets or AF_XDP.
    ///
    /// # Errors
    /// The process lacks rights.
    pub(crate) fn open_end(&self, point: Point, way: Way, of_cu: bool) -> anyhow::Result<Box<dyn Port>> {
        let namespace = if of_cu { &self.cu } else { self.peer(point) };
        namespace.enter(|| end(point, way, of_cu, self.folder()))?
    }
}

/// The address of an end.
fn local(point: Point, of_cu: bool) -> SocketAddr {
    SocketAddr::new(point.addresses()[usize::from(!of_cu)].into(), gtpu::PORT)
}

/// One end of a way, in the calling thread's namespace. A memif's sockets are in `folder`; the CU serves
/// them, and its end must be there.
///
/// # Errors
/// The process lacks rights.
pub(crate) fn end(point: Point, way: Way, of_cu: bool, folder: &Path) -> anyhow::Result<Box<dyn Port>> {
    let local = local(point, of_cu);
    Ok(match way {
        Way::PerCall => Box::new(PerCall::bind(local)?) as Box<dyn Port>,
        Way::Batched | Way::Spinning => Box::new(Batched::bind(local)?),
        Way::Segmented => Box::new(UdpPort::bind(local, false)?),
        Way::AfXdp => {
            let interface = Interface::open(point.device(), None, &[Select::Everything])?;
            let mut memory = Memory::new(1, [interface.device()])?;
            let frames = AfXdpPort::open(&interface, [0], &mut memory, Options::default())?;
            stack(frames, local)?
        }
        Way::Memif => {
            let memif = memif_of(point, of_cu, folder)?;
            if !of_cu {
                // Else its first packets would be lost.
                come_up(&[&memif])?;
            }
            stack(memif, local)?
        }
    })
}

/// The CU's or its peer's end of the memif at a reference point.
fn memif_of(point: Point, of_cu: bool, folder: &Path) -> anyhow::Result<MemifPort> {
    let name = match point {
        Point::F1u { du, .. } => format!("f1u{du}.sock"),
        Point::N3 => "n3.sock".to_owned(),
    };
    memif(&folder.join(name), if of_cu { "server" } else { "client" })
}

/// One end of a memif. Its rings hold 4,096 packets: a node that polls loses its core now and then for some milliseconds.
///
/// # Errors
/// The socket cannot be made.
pub(crate) fn memif(socket: &Path, role: &str) -> anyhow::Result<MemifPort> {
    let device = format!("memif0,role={role},bsize=2048,rsize=12,socket={}", socket.display());
    MemifPort::open(&device, 1, MTU)?.pop().context("no port")
}

/// Waits until ends of a memif have found each other.
///
/// # Errors
/// They do not.
pub(crate) fn come_up(ends: &[&MemifPort]) -> anyhow::Result<()> {
    let start = time::now_std();
    while !ends.iter().all(|end| end.is_up()) {
        if start.elapsed() > PATIENCE {
            bail!("a memif does not come up");
        }
        time::sleep_thread(Duration::from_millis(1));
    }
    Ok(())
}

/// Joins two namespaces by a veth pair whose ends have these addresses.
async fn join(
    device: &str,
    one: (&NetNs, Vec<Ipv4Addr>),
    other: (&NetNs, Vec<Ipv4Addr>),
) -> anyhow::Result<()> {
    Links::in_ns(one.0)?.add_veth(device, device, other.0).await?;
    for (namespace, addresses) in [one, other] {
        let links = Links::in_ns(namespace)?;
        links.set_mtu(device, MTU.into()).await?;
        links.set_txqueuelen(device, QUEUE).await?;
        links.up(device).await?;
        for address in addresses {
            links.add_address(device, cidr(address.into())).await?;
        }
        let off = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
        let command = Command::new("ethtool").args(["-K", device]).args(off).namespace(namespace);
        // Without ethtool the link works as well; only AF_XDP sees different packets.
        let _ = command.output(Duration::from_secs(10)).await;
    }
    Ok(())
}

/// The networks of all DUs are one.
fn cidr(address: IpAddr) -> Cidr {
    Cidr::new(address, 16).expect("16 bits fit IPv4")
}

/// UDP on frames, with neighbours of its own.
///
/// # Errors
/// The address and the neighbours do not fit.
pub(crate) fn stack<F: FramePort + 'static>(frames: F, local: SocketAddr) -> anyhow::Result<Box<dyn Port>> {
    let resolver = Resolver::new(&[cidr(local.ip())], &[]);
    let stack = UdpStack::new(frames, local, None, Neighbours::Own(Box::new(resolver)))?;
    Ok(Box::new(stack.with_mtu(MTU.into())))
}
