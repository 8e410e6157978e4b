//! Opens the configured ports of all workers.
//!
//! With the kernel's ports on all interfaces there are two workers, one for packets from N3 and one for packets
//! from N6. With a backend that has queues, each worker serves a share of every such interface's queues and
//! processes a packet from input to output, so that workers share nothing; kernel ports are then read by the
//! first worker and written by all. A DPDK device has one queue, so with DPDK there is one worker.

mod af_xdp;
#[cfg(feature = "dpdk")]
mod dpdk;
#[cfg(not(feature = "dpdk"))]
#[path = "ports/without_dpdk.rs"]
mod dpdk;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use pktio::Port;
use pktio::af_xdp::{AfXdpError, Memory};
use pktio::bpf::filter::Select;
use pktio::capture::{Tap, Taps};
use pktio::udp::UdpPort;

use crate::config::{Config, DnnConfig};
use crate::interface::{Backend, InterfaceConfig};
use crate::n6::{self, N6, N6Error};
use crate::pipeline::{Input, Ports};
use af_xdp::{AfXdp, Queues, Role};

/// Why the ports could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// N3's socket could not be opened.
    #[error("cannot serve GTP-U on {address} (upf.gtpu): {error}")]
    Gtpu {
        /// Address that was asked for.
        address: SocketAddr,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A TUN or TAP device could not be set up.
    #[error(transparent)]
    N6(#[from] N6Error),
    /// An AF_XDP interface could not be opened.
    #[error("{place}: {error}")]
    AfXdp {
        /// Name of the interface's section.
        place: String,
        /// What failed.
        error: AfXdpError,
    },
    /// The kernel's routes and neighbours, or raw sockets, were not available.
    #[error("{place}: cannot work with the kernel's routing: {error}")]
    Routing {
        /// Name of the interface's section.
        place: String,
        /// What failed.
        error: io::Error,
    },
    /// DPDK or one of its devices could not be started.
    #[error("{place}: {error}; {hint}")]
    Dpdk {
        /// Name of the interface's section.
        place: String,
        /// What failed.
        error: String,
        /// Advice for the operator.
        hint: &'static str,
    },
    /// This build does not have the backend.
    #[error("{place}: this program was built without the backend dpdk; build it with `--features dpdk`")]
    NotBuilt {
        /// Name of the interface's section.
        place: String,
    },
}

/// The ports of one worker.
pub struct WorkerPorts {
    /// Name of its thread.
    pub name: String,
    /// All ports through which it sends and receives.
    pub ports: Ports,
    /// The ports from which it receives.
    pub inputs: Vec<Input>,
}

/// All ports that were opened.
pub struct Opened {
    /// One per worker.
    pub workers: Vec<WorkerPorts>,
    /// Port of the N4 task on N3.
    pub gtpu: Box<dyn Port>,
    /// The UPF's address on N3.
    pub local: SocketAddr,
    /// TUN devices; they exist as long as this list.
    pub networks: Vec<N6>,
}

/// N3, before workers get their ports.
enum N3 {
    Kernel(UdpPort),
    /// With the kernel's socket for packets that AF_XDP does not handle.
    AfXdp(Arc<AfXdp>, UdpPort),
    /// The port of the one worker, and that of the N4 task.
    Dpdk(Option<Box<dyn Port>>, Box<dyn Port>),
}

/// A data network's interface, before workers get their ports.
enum Network {
    /// Position in `Opened::networks`.
    Tun(usize),
    AfXdp(Arc<AfXdp>),
    /// The port of the one worker.
    Dpdk(Option<Box<dyn Port>>),
}

/// Opens all ports in the calling thread's network namespace. `taps` copy the frames of devices that bypass the kernel.
pub async fn open(config: &Config, taps: Option<&Taps>) -> Result<Opened, PortError> {
    dpdk::start(config)?;
    let tap = |point: &str, interface: &InterfaceConfig| Some(taps?.tap(point, interface.name()));
    let (mut networks, mut tuns) = (Vec::new(), Vec::new());
    for dnn in &config.dnn {
        let place = format!("upf.dnn {}: n6", dnn.name);
        networks.push(match dnn.n6.backend {
            Backend::Kernel => {
                tuns.push(n6::set_up(dnn).await?);
                Network::Tun(tuns.len() - 1)
            }
            Backend::AfXdp => Network::AfXdp(AfXdp::open(place, &dnn.n6, pools(dnn), tap("n6", &dnn.n6))?),
            Backend::Dpdk => Network::Dpdk(Some(dpdk::n6(&place, &dnn.n6, tap("n6", &dnn.n6))?)),
        });
    }
    let mut n3 = N3::open(config, tap("n3", &config.n3))?;
    let af_xdp = n3.af_xdp().into_iter().chain(networks.iter().filter_map(Network::af_xdp));
    let dpdk =
        matches!(n3, N3::Dpdk(..)) || networks.iter().any(|network| matches!(network, Network::Dpdk(_)));
    let queues = af_xdp.map(|interface| interface.queues()).chain(dpdk.then_some(1)).min();
    let workers = match (&n3, queues) {
        (N3::Kernel(gtpu), None) => by_direction(gtpu, &tuns),
        (_, queues) => {
            let workers = queues.unwrap_or(1);
            (0..workers)
                .map(|worker| by_queue((worker, workers), &mut n3, &mut networks, &tuns))
                .collect::<Result<_, _>>()?
        }
    };
    let (gtpu, local): (Box<dyn Port>, _) = match n3 {
        N3::Kernel(gtpu) | N3::AfXdp(_, gtpu) => {
            let local = gtpu.local();
            (Box::new(gtpu), local)
        }
        N3::Dpdk(_, outbox) => (outbox, config.gtpu),
    };
    Ok(Opened { workers, gtpu, local, networks: tuns })
}

impl N3 {
    fn open(config: &Config, tap: Option<Tap>) -> Result<N3, PortError> {
        let place = "upf.n3".to_owned();
        let socket = || {
            UdpPort::bind(config.gtpu, false).map_err(|error| PortError::Gtpu { address: config.gtpu, error })
        };
        match config.n3.backend {
            Backend::Kernel => Ok(N3::Kernel(socket()?)),
            Backend::AfXdp => {
                let gtpu = socket()?;
                let select = Select::Udp(config.gtpu.ip(), config.gtpu.port());
                Ok(N3::AfXdp(AfXdp::open(place, &config.n3, vec![select], tap)?, gtpu))
            }
            Backend::Dpdk => {
                let (port, outbox) = dpdk::n3(&config.n3, config.gtpu, tap)?;
                Ok(N3::Dpdk(Some(port), Box::new(outbox)))
            }
        }
    }

    fn af_xdp(&self) -> Option<&Arc<AfXdp>> {
        match self {
            N3::AfXdp(interface, _) => Some(interface),
            N3::Kernel(_) | N3::Dpdk(..) => None,
        }
    }

    /// The port of worker number `worker` of `workers`.
    fn port(&mut self, worker: u32, workers: u32, memory: &mut Memory) -> Result<Box<dyn Port>, PortError> {
        match self {
            N3::Kernel(gtpu) => Ok(Box::new(gtpu.share())),
            N3::AfXdp(interface, gtpu) => {
                let role = Role::N3(gtpu.share());
                Ok(Box::new(Queues::open(interface, (worker, workers), role, memory)?))
            }
            N3::Dpdk(port, _) => port.take().ok_or_else(|| one_worker("upf.n3")),
        }
    }
}

impl Network {
    fn af_xdp(&self) -> Option<&Arc<AfXdp>> {
        match self {
            Network::AfXdp(interface) => Some(interface),
            Network::Tun(_) | Network::Dpdk(_) => None,
        }
    }
}

/// The error for a port that was given to a worker already. With DPDK there is only one worker.
fn one_worker(place: &str) -> PortError {
    let error = "the device has a queue for one worker".to_owned();
    PortError::Dpdk { place: place.to_owned(), error, hint: "this is a defect" }
}

/// Selects the packets to a data network's UEs.
fn pools(dnn: &DnnConfig) -> Vec<Select> {
    [dnn.ue_pool.ipv4, dnn.ue_pool.ipv6].into_iter().flatten().map(Select::Prefix).collect()
}

/// Kernel ports only: one worker for each direction.
fn by_direction(gtpu: &UdpPort, tuns: &[N6]) -> Vec<WorkerPorts> {
    let n6_inputs = (0..tuns.len()).map(Input::N6).collect();
    [("upf-n3", vec![Input::N3]), ("upf-n6", n6_inputs)]
        .into_iter()
        .map(|(name, inputs)| {
            let n6 = tuns.iter().map(|network| Box::new(network.tun.share()) as Box<dyn Port>).collect();
            WorkerPorts { name: name.to_owned(), ports: Ports { n3: Box::new(gtpu.share()), n6 }, inputs }
        })
        .collect()
}

/// Makes a worker with its share of the queues.
fn by_queue(
    (worker, workers): (u32, u32),
    n3: &mut N3,
    networks: &mut [Network],
    tuns: &[N6],
) -> Result<WorkerPorts, PortError> {
    let mut memory = {
        let interfaces = || n3.af_xdp().into_iter().chain(networks.iter().filter_map(Network::af_xdp));
        let sockets = interfaces().map(|interface| interface.queues().div_ceil(workers) as usize).sum();
        let opened: Vec<_> = interfaces().map(|interface| interface.interface()).collect();
        Memory::new(sockets, opened.iter().map(|interface| interface.device()))
            .map_err(|error| PortError::AfXdp { place: "upf".to_owned(), error })?
    };
    let (first, mut inputs) = (worker == 0, Vec::new());
    if first || n3.af_xdp().is_some() {
        inputs.push(Input::N3);
    }
    let n3 = n3.port(worker, workers, &mut memory)?;
    let mut n6: Vec<Box<dyn Port>> = Vec::new();
    for (number, network) in networks.iter_mut().enumerate() {
        if first || network.af_xdp().is_some() {
            inputs.push(Input::N6(number));
        }
        n6.push(match network {
            Network::AfXdp(interface) => {
                Box::new(Queues::open(interface, (worker, workers), Role::N6, &mut memory)?)
            }
            Network::Tun(at) => Box::new(tuns[*at].tun.share()),
            Network::Dpdk(port) => port.take().ok_or_else(|| one_worker("upf.dnn"))?,
        });
    }
    Ok(WorkerPorts { name: format!("upf-{worker}"), ports: Ports { n3, n6 }, inputs })
}
