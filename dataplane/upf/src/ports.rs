//! Opens the configured ports of all workers.
//!
//! With the kernel's ports on all interfaces there are two workers, one for packets in tunnels and one for packets of
//! data networks. With a backend that has queues, each worker serves a share of every such interface's queues; kernel ports
//! are then read by the first worker and written by all.
//!
//! With `upf.workers.count` each of so many workers serves all interfaces. Those of the kernel then have a socket or a
//! queue for each worker, and the kernel gives a packet to its owner ([`pktio::owner`]): by TEID, or by the UE's address.
//! TAP devices have one queue, which the first worker reads. See ADR 0024.
//!
//! The queues of AF_XDP and DPDK know nothing of owners: workers that share such interfaces give each other's packets to
//! their owners by rings ([`pktio::crossing`]). A packet leaves through its owner's queue. See ADR 0026.

mod af_xdp;
#[cfg(feature = "dpdk")]
mod dpdk;
#[cfg(not(feature = "dpdk"))]
#[path = "ports/without_dpdk.rs"]
mod dpdk;
mod memif;
mod own;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use pktio::af_xdp::{AfXdpError, Memory};
use pktio::bpf::filter::Select;
use pktio::capture::{Tap, Taps};
use pktio::outbox::Outbox;
use pktio::udp::{GroupError, UdpPort};
use pktio::{Port, VECTOR, crossing};

use crate::config::{Config, DnnConfig};
use crate::interface::Backend;
use crate::interfaces::{Interface, Interfaces};
use crate::n6::{self, N6, N6Error};
use crate::pipeline::Ports;
use af_xdp::{AfXdp, Queues};
use own::Own;

/// Why the ports could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The socket of an interface with tunnels could not be opened.
    #[error("cannot serve GTP-U on {address} ({place}): {error}")]
    Gtpu {
        /// The key that describes the interface.
        place: String,
        /// Address that was asked for.
        address: SocketAddr,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The sockets of an interface, one for each worker, cannot be given their packets.
    #[error("{place}: {error}; leave out upf.workers.count, or run as root")]
    Workers {
        /// The key that describes the interface.
        place: String,
        /// What the kernel did not do.
        error: GroupError,
    },
    /// There are more workers than queues.
    #[error(
        "upf.workers: count is {count}, but an interface of the backend af_xdp has {queues} queues; lower count, or \
         give the interface more queues (ethtool -L, and `queues` of the interface)"
    )]
    Queues {
        /// Workers that were asked for.
        count: u32,
        /// Queues of the interface with the fewest.
        queues: u32,
    },
    /// A TUN or TAP device could not be set up.
    #[error(transparent)]
    N6(#[from] N6Error),
    /// An AF_XDP interface could not be opened.
    #[error("{place}: {error}")]
    AfXdp {
        /// The key that describes the interface.
        place: String,
        /// What failed.
        error: AfXdpError,
    },
    /// The kernel's routes and neighbours, or raw sockets, were not available.
    #[error("{place}: cannot work with the kernel's routing: {error}")]
    Routing {
        /// The key that describes the interface.
        place: String,
        /// What failed.
        error: io::Error,
    },
    /// A device that bypasses the kernel, or DPDK itself, could not be started.
    #[error("{place}: {error}; {hint}")]
    Device {
        /// The key that describes the interface.
        place: String,
        /// What failed.
        error: String,
        /// Advice for the operator.
        hint: &'static str,
    },
    /// This build does not have the backend.
    #[error("{place}: this program was built without the backend dpdk; build it with `--features dpdk`")]
    NotBuilt {
        /// The key that describes the interface.
        place: String,
    },
}

/// The ports of one worker.
pub struct WorkerPorts {
    /// Name of its thread.
    pub name: String,
    /// All ports through which it sends and receives, by number of the interface.
    pub ports: Ports,
    /// Numbers of the interfaces from which it receives.
    pub inputs: Vec<usize>,
    /// Those of them whose packets may belong to other workers.
    pub crossing: Vec<usize>,
}

/// All ports that were opened.
pub struct Opened {
    /// One per worker.
    pub workers: Vec<WorkerPorts>,
    /// Ports of the N4 task, by number of the interface: see [`Wiring::signalling`](crate::n4::Wiring::signalling).
    pub signalling: Vec<Vec<Box<dyn Port>>>,
    /// TUN and TAP devices; they exist as long as this list.
    pub networks: Vec<N6>,
}

/// An interface before workers get their ports.
enum Opening {
    /// A socket for each worker that reads it.
    Udp(Vec<UdpPort>),
    Device(N6),
    /// The device and the interface's number on it, with the kernel's socket for the packets in tunnels that AF_XDP does
    /// not handle, and what others send through each worker's port.
    AfXdp(Arc<AfXdp>, usize, Option<UdpPort>, Vec<Outbox>),
    /// That the kernel does not know.
    Own(Own),
}

/// Opens all ports in the calling thread's network namespace. `taps` copy the frames of devices that bypass the kernel.
pub async fn open(
    config: &Config,
    interfaces: &Interfaces,
    taps: Option<&Taps>,
) -> Result<Opened, PortError> {
    dpdk::start(config, interfaces)?;
    let readers = config.workers.count.unwrap_or(1);
    let mut opened: Vec<Option<Opening>> = interfaces.iter().map(|_| None).collect();
    // Devices of the kernel come first: their addresses may be those of GTP-U.
    for (opened, interface) in opened.iter_mut().zip(interfaces.iter()) {
        if let (Backend::Kernel, Some(dnn)) = (interface.config.backend, &interface.dnn) {
            *opened = Some(Opening::Device(n6::set_up(dnn, interface.config.device(), readers).await?));
        }
    }
    for numbers in devices(interfaces) {
        let sharing: Vec<&Interface> = numbers.iter().map(|number| &interfaces[*number]).collect();
        for (number, own) in numbers.into_iter().zip(open_device(&sharing, taps, readers)?) {
            opened[number] = Some(own);
        }
    }
    let mut all = Vec::with_capacity(interfaces.len());
    for (interface, opened) in interfaces.iter().zip(opened) {
        all.push(match opened {
            Some(opened) => opened,
            None => Opening::Udp(open_sockets(interface, readers)?),
        });
    }
    let af_xdp = all.iter().filter_map(Opening::af_xdp).map(|interface| interface.queues());
    let own = all.iter().filter_map(Opening::own).map(|own| own.ports.len() as u32);
    let queues = af_xdp.chain(own).min();
    let workers = match (config.workers.count, queues) {
        (Some(count), Some(queues)) if count > queues => return Err(PortError::Queues { count, queues }),
        (Some(workers), _) | (None, Some(workers)) => {
            (0..workers).map(|worker| serving_all((worker, workers), &mut all)).collect::<Result<_, _>>()?
        }
        (None, None) => by_direction(&mut all)?,
    };
    let (mut signalling, mut networks) = (Vec::with_capacity(all.len()), Vec::new());
    for opened in all {
        let mut ports: Vec<Box<dyn Port>> = Vec::new();
        match opened {
            // The kernel sends what all of them send.
            Opening::Udp(gtpu) => ports.extend(gtpu.into_iter().next().map(|gtpu| Box::new(gtpu) as _)),
            Opening::AfXdp(.., outboxes) | Opening::Own(Own { outboxes, .. }) => {
                ports.extend(outboxes.into_iter().map(|outbox| Box::new(outbox) as _));
            }
            Opening::Device(network) => networks.push(network),
        }
        signalling.push(ports);
    }
    Ok(Opened { workers, signalling, networks })
}

fn tap(interface: &Interface, taps: Option<&Taps>) -> Option<Tap> {
    let point = if interface.role().has_tunnels() { "n3" } else { "n6" };
    Some(taps?.tap(point, interface.config.device_name()))
}

/// The interfaces that are not the kernel's, by their numbers, those of one device together.
fn devices(interfaces: &Interfaces) -> Vec<Vec<usize>> {
    let mut devices: Vec<Vec<usize>> = Vec::new();
    for (number, interface) in interfaces.iter().enumerate() {
        let own = &interface.config;
        let same = |numbers: &&mut Vec<usize>| {
            let other = numbers.first().map(|first| &interfaces[*first].config);
            other
                .is_some_and(|other| (other.backend, other.device_name()) == (own.backend, own.device_name()))
        };
        match devices.iter_mut().find(same) {
            _ if own.backend == Backend::Kernel => {}
            Some(numbers) => numbers.push(number),
            None => devices.push(vec![number]),
        }
    }
    devices
}

/// Opens a device with its interfaces.
fn open_device(
    interfaces: &[&Interface],
    taps: Option<&Taps>,
    readers: u32,
) -> Result<Vec<Opening>, PortError> {
    let own = |own: Vec<Own>| own.into_iter().map(Opening::Own).collect();
    match interfaces.first().map(|interface| interface.config.backend) {
        Some(Backend::Dpdk) => Ok(own(dpdk::open(interfaces, taps, readers)?)),
        Some(Backend::Memif) => Ok(own(memif::open(interfaces, taps)?)),
        Some(Backend::AfXdp) => {
            let device = af_xdp::open(interfaces, taps)?;
            let members = interfaces.iter().enumerate().map(|(member, interface)| {
                let of_kernel = interface.role().has_tunnels() && !interface.config.has_own_addresses();
                let gtpu = of_kernel.then(|| UdpPort::bind(interface.local(), false)).transpose();
                let gtpu = gtpu.map_err(|error| refused(interface, error))?;
                Ok(Opening::AfXdp(Arc::clone(&device), member, gtpu, Vec::new()))
            });
            members.collect()
        }
        Some(Backend::Kernel) | None => Ok(Vec::new()),
    }
}

fn refused(interface: &Interface, error: io::Error) -> PortError {
    PortError::Gtpu { place: interface.place.clone(), address: interface.local(), error }
}

/// The kernel's sockets for tunnels, one for each worker that reads them.
fn open_sockets(interface: &Interface, readers: u32) -> Result<Vec<UdpPort>, PortError> {
    UdpPort::bind_group(interface.local(), readers).map_err(|error| match error {
        GroupError::Bind(error) => refused(interface, error),
        error @ GroupError::Choose(_) => PortError::Workers { place: interface.place.clone(), error },
    })
}

impl Opening {
    /// The AF_XDP device, once for all of its interfaces.
    fn af_xdp(&self) -> Option<&Arc<AfXdp>> {
        match self {
            Opening::AfXdp(device, 0, ..) => Some(device),
            Opening::AfXdp(..) | Opening::Udp(_) | Opening::Device(_) | Opening::Own(_) => None,
        }
    }

    fn own(&self) -> Option<&Own> {
        match self {
            Opening::Own(own) => Some(own),
            Opening::Udp(_) | Opening::Device(_) | Opening::AfXdp(..) => None,
        }
    }

    /// Whether packets come to any worker, whoever owns them.
    fn crosses(&self) -> bool {
        matches!(self, Opening::AfXdp(..) | Opening::Own(_))
    }

    /// Whether this worker receives from the interface.
    fn is_read_by(&self, worker: u32) -> bool {
        let readers = match self {
            Opening::Udp(gtpu) => gtpu.len(),
            Opening::Device(network) => network.tun.queues(),
            Opening::AfXdp(..) => return true,
            Opening::Own(own) => own.ports.len(),
        };
        (worker as usize) < readers
    }

    /// The port of worker number `worker` of `workers`. Frames come from `memory`.
    fn port(
        &mut self,
        worker: u32,
        workers: u32,
        memory: Option<&mut Memory>,
    ) -> Result<Box<dyn Port>, PortError> {
        Ok(match (self, memory) {
            (Opening::Udp(gtpu), _) => match gtpu.get(worker as usize).or(gtpu.first()) {
                Some(gtpu) => Box::new(gtpu.share()),
                None => return Err(no_port()),
            },
            (Opening::Device(network), _) => Box::new(network.tun.queue(worker as usize)),
            (Opening::AfXdp(device, member, gtpu, outboxes), Some(memory)) => {
                let gtpu = gtpu.as_ref().map(UdpPort::share);
                let port = Box::new(Queues::open(device, *member, (worker, workers), gtpu, memory)?);
                own::with_outbox(port, device.configured(*member)?, outboxes)
            }
            (Opening::Own(own), _) => {
                own.ports.get_mut(worker as usize).and_then(Option::take).ok_or_else(no_port)?
            }
            (Opening::AfXdp(..), None) => return Err(no_port()),
        })
    }
}

/// The error for a worker without a port: there are no more workers than ports.
fn no_port() -> PortError {
    let error = "an interface has no port for a worker".to_owned();
    PortError::Device { place: "upf.interfaces".to_owned(), error, hint: "this is a defect" }
}

/// Selects the packets to a data network's UEs.
fn pools(dnn: &DnnConfig) -> Vec<Select> {
    [dnn.ue_pool.ipv4, dnn.ue_pool.ipv6].into_iter().flatten().map(Select::Prefix).collect()
}

/// Kernel ports only: one worker for each direction.
fn by_direction(all: &mut [Opening]) -> Result<Vec<WorkerPorts>, PortError> {
    let networks = |opened: &Opening| matches!(opened, Opening::Device(_));
    let mut out = Vec::new();
    for (name, of_networks) in [("upf-tunnels", false), ("upf-networks", true)] {
        let inputs = (0..all.len()).filter(|at| networks(&all[*at]) == of_networks).collect();
        let ports = all.iter_mut().map(|opened| opened.port(0, 1, None)).collect::<Result<_, _>>()?;
        out.push(WorkerPorts { name: name.to_owned(), ports, inputs, crossing: Vec::new() });
    }
    Ok(out)
}

/// Makes a worker with its share of all interfaces.
fn serving_all((worker, workers): (u32, u32), all: &mut [Opening]) -> Result<WorkerPorts, PortError> {
    let opened: Vec<_> =
        all.iter().filter_map(Opening::af_xdp).map(|interface| interface.interface()).collect();
    let sockets = all.iter().filter_map(Opening::af_xdp);
    let sockets = sockets.map(|interface| interface.queues().div_ceil(workers) as usize).sum();
    // Frames with other workers, and those that wait for the interfaces of shared devices.
    let members = all.iter().filter(|opened| matches!(opened, Opening::AfXdp(..))).count();
    let away = crossing::frames(workers as usize) + members * VECTOR;
    let memory = || Memory::with_more(sockets, away, opened.iter().map(|interface| interface.device()));
    let memory = (!opened.is_empty()).then(memory).transpose();
    let mut memory = memory.map_err(|error| PortError::AfXdp { place: "upf".to_owned(), error })?;
    let inputs: Vec<usize> = (0..all.len()).filter(|at| all[*at].is_read_by(worker)).collect();
    let crossing = inputs.iter().copied().filter(|at| workers > 1 && all[*at].crosses()).collect();
    let ports = all.iter_mut().map(|opened| opened.port(worker, workers, memory.as_mut()));
    let ports = ports.collect::<Result<_, _>>()?;
    Ok(WorkerPorts { name: format!("upf-{worker}"), ports, inputs, crossing })
}
