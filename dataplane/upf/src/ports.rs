//! Opens the ports of all workers, as configured.
//!
//! With the kernel everywhere there are two workers, one for what comes from N3 and one for what comes from N6.
//! Where a backend has queues, each worker has its share of every such interface's queues and takes a packet all the
//! way, so that workers have nothing in common; ports of the kernel's are then read by the first worker, and written
//! by all.

use std::io;
use std::sync::Arc;

use pktio::Port;
use pktio::af_xdp::{AfXdpError, AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::stack::Neighbours;
use pktio::stack::ip::IpStack;
use pktio::stack::kernel::KernelTables;
use pktio::stack::raw::RawPort;
use pktio::stack::udp::UdpStack;
use pktio::udp::UdpPort;

use crate::config::{Config, DnnConfig};
use crate::interface::{Backend, InterfaceConfig};
use crate::n6::{self, N6, N6Error};
use crate::pipeline::{Input, Ports};

/// Why the interfaces could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// N3's socket.
    #[error("cannot serve GTP-U on {address} (upf.gtpu): {error}")]
    Gtpu {
        /// Address asked for.
        address: std::net::SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// A TUN device.
    #[error(transparent)]
    N6(#[from] N6Error),
    /// An interface with AF_XDP.
    #[error("{place}: {error}")]
    AfXdp {
        /// Where it is configured.
        place: String,
        /// What failed.
        error: AfXdpError,
    },
    /// The kernel's routes and neighbours, or its raw sockets.
    #[error("{place}: cannot work with the kernel's routing: {error}")]
    Routing {
        /// Where it is configured.
        place: String,
        /// What failed.
        error: io::Error,
    },
    /// A backend that this build does not have.
    #[error("{place}: this program was built without the backend dpdk; build it with `--features dpdk`")]
    NotBuilt {
        /// Where it is configured.
        place: String,
    },
}

/// What one worker gets.
pub struct WorkerPorts {
    /// Name of its thread.
    pub name: String,
    /// What it sends through and receives from.
    pub ports: Ports,
    /// What it receives from.
    pub inputs: Vec<Input>,
}

/// Everything that has been opened.
pub struct Opened {
    /// One per worker.
    pub workers: Vec<WorkerPorts>,
    /// The kernel's socket on N3: the N4 task's, and the slow path of the workers.
    pub gtpu: UdpPort,
    /// TUN devices, which exist as long as this.
    pub networks: Vec<N6>,
    /// Followers of the kernel's tables, which end with this.
    pub tables: Vec<KernelTables>,
}

/// An interface with AF_XDP, before its queues are shared out.
struct AfXdp<'a> {
    place: String,
    config: &'a InterfaceConfig,
    interface: Arc<Interface>,
    tables: KernelTables,
}

impl<'a> AfXdp<'a> {
    /// Opens the interface if that is its backend.
    fn open(
        place: String,
        config: &'a InterfaceConfig,
        selects: &[Select],
    ) -> Result<Option<AfXdp<'a>>, PortError> {
        match config.backend {
            Backend::Kernel => return Ok(None),
            Backend::Dpdk => return Err(PortError::NotBuilt { place }),
            Backend::AfXdp => {}
        }
        let interface = match Interface::open(config.device(), config.vlan, selects) {
            Ok(interface) => interface,
            Err(error) => return Err(PortError::AfXdp { place, error }),
        };
        match KernelTables::follow(interface.device().index) {
            Ok(tables) => Ok(Some(AfXdp { place, config, interface, tables })),
            Err(error) => Err(PortError::Routing { place, error }),
        }
    }

    /// How many queues are served.
    fn queues(&self) -> u32 {
        let there = self.interface.device().queues;
        self.config.queues.map_or(there, |wanted| wanted.min(there))
    }

    /// The queues of worker number `worker` of `workers`.
    fn port(&self, worker: u32, workers: u32, memory: &mut Memory) -> Result<AfXdpPort, PortError> {
        let queues = (0..self.queues()).filter(|queue| queue % workers == worker);
        let options = Options { busy_poll: self.config.busy_poll, ..Options::default() };
        AfXdpPort::open(&self.interface, queues, memory, options)
            .map_err(|error| PortError::AfXdp { place: self.place.clone(), error })
    }

    fn routing(&self, error: io::Error) -> PortError {
        PortError::Routing { place: self.place.clone(), error }
    }

    fn n3(
        &self,
        worker: u32,
        workers: u32,
        memory: &mut Memory,
        gtpu: &UdpPort,
    ) -> Result<Box<dyn Port>, PortError> {
        let frames = self.port(worker, workers, memory)?;
        let neighbours = Neighbours::Kernel(self.tables.reader(), Box::new(gtpu.share()));
        let stack = UdpStack::new(frames, gtpu.local(), self.config.vlan, neighbours);
        Ok(Box::new(stack.map_err(|error| self.routing(error))?))
    }

    fn n6(&self, worker: u32, workers: u32, memory: &mut Memory) -> Result<Box<dyn Port>, PortError> {
        let frames = self.port(worker, workers, memory)?;
        let slow = RawPort::open().map_err(|error| self.routing(error))?;
        let neighbours = Neighbours::Kernel(self.tables.reader(), Box::new(slow));
        let stack = IpStack::new(frames, self.config.vlan, neighbours);
        Ok(Box::new(stack.map_err(|error| self.routing(error))?))
    }
}

/// One data network's interface.
enum Network<'a> {
    /// Position in `Opened::networks`.
    Tun(usize),
    AfXdp(Box<AfXdp<'a>>),
}

/// Opens everything in the calling thread's network namespace.
pub async fn open(config: &Config) -> Result<Opened, PortError> {
    let (mut networks, mut tuns) = (Vec::new(), Vec::new());
    for dnn in &config.dnn {
        let place = format!("upf.dnn {}: n6", dnn.name);
        networks.push(match AfXdp::open(place, &dnn.n6, &pools(dnn))? {
            Some(interface) => Network::AfXdp(Box::new(interface)),
            None => {
                tuns.push(n6::set_up(dnn).await?);
                Network::Tun(tuns.len() - 1)
            }
        });
    }
    let gtpu =
        UdpPort::bind(config.gtpu, false).map_err(|error| PortError::Gtpu { address: config.gtpu, error })?;
    let select = Select::Udp(config.gtpu.ip(), config.gtpu.port());
    let n3 = AfXdp::open("upf.n3".to_owned(), &config.n3, &[select])?;

    let with_queues = || n3.iter().chain(networks.iter().filter_map(Network::af_xdp));
    let workers = match with_queues().map(AfXdp::queues).min() {
        None => by_direction(&gtpu, &tuns),
        Some(workers) => (0..workers)
            .map(|worker| by_queue((worker, workers), n3.as_ref(), &networks, &gtpu, &tuns))
            .collect::<Result<_, _>>()?,
    };
    let af_xdp = networks.into_iter().filter_map(|network| match network {
        Network::AfXdp(interface) => Some(interface.tables),
        Network::Tun(_) => None,
    });
    let tables = n3.into_iter().map(|interface| interface.tables).chain(af_xdp).collect();
    Ok(Opened { workers, gtpu, networks: tuns, tables })
}

impl<'a> Network<'a> {
    fn af_xdp(&self) -> Option<&AfXdp<'a>> {
        match self {
            Network::AfXdp(interface) => Some(interface),
            Network::Tun(_) => None,
        }
    }
}

/// What comes to a data network's UEs.
fn pools(dnn: &DnnConfig) -> Vec<Select> {
    [dnn.ue_pool.ipv4, dnn.ue_pool.ipv6].into_iter().flatten().map(Select::Prefix).collect()
}

/// The kernel everywhere: a worker for each direction.
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

/// A worker with its share of the queues.
fn by_queue(
    (worker, workers): (u32, u32),
    n3: Option<&AfXdp<'_>>,
    networks: &[Network<'_>],
    gtpu: &UdpPort,
    tuns: &[N6],
) -> Result<WorkerPorts, PortError> {
    let interfaces = || n3.into_iter().chain(networks.iter().filter_map(Network::af_xdp));
    let sockets = interfaces().map(|interface| interface.queues().div_ceil(workers) as usize).sum();
    let devices = interfaces().map(|interface| interface.interface.device());
    let mut memory =
        Memory::new(sockets, devices).map_err(|error| PortError::AfXdp { place: "upf".to_owned(), error })?;
    let (first, mut inputs) = (worker == 0, Vec::new());
    let n3 = match n3 {
        Some(interface) => interface.n3(worker, workers, &mut memory, gtpu)?,
        None => Box::new(gtpu.share()),
    };
    let mut n6: Vec<Box<dyn Port>> = Vec::new();
    for (number, network) in networks.iter().enumerate() {
        match network {
            Network::AfXdp(interface) => n6.push(interface.n6(worker, workers, &mut memory)?),
            Network::Tun(at) => n6.push(Box::new(tuns[*at].tun.share())),
        }
        if first || network.af_xdp().is_some() {
            inputs.push(Input::N6(number));
        }
    }
    if first || interfaces().any(|interface| interface.place == "upf.n3") {
        inputs.insert(0, Input::N3);
    }
    Ok(WorkerPorts { name: format!("upf-{worker}"), ports: Ports { n3, n6 }, inputs })
}
