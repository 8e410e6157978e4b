//! Configured interfaces: what their sections of a configuration say ([`config`]), and their ports for all workers ([`open`]).
//!
//! An [`Interface`] has a link, on a device of some [`Backend`], and traffic: tunnels that end at its address, or IP packets of
//! others. Several interfaces may share a device that bypasses the kernel: their frames are told apart by VLAN or address.
//! A node with several peers behind memifs has an interface for each, as each memif is a link of its own (ADR 0027).
//!
//! With `workers.count` each of so many workers serves all interfaces. Those of the kernel then have a socket or a
//! queue for each worker, and the kernel gives a packet to its owner ([`owner`](crate::owner)): by TEID, or by the UE's
//! address. TAP devices have one queue, which the first worker reads. See ADR 0024.
//!
//! Without it a backend that has queues says how many workers there are: each serves a share of every such interface's queues;
//! kernel ports are then read by the first worker and written by all. With the kernel's ports on all interfaces there is a
//! worker for packets in tunnels, and one for the others.
//!
//! The queues of AF_XDP and DPDK know nothing of owners: workers that share such interfaces give each other's packets to
//! their owners by rings ([`crossing`]). A packet leaves through its owner's queue. See ADR 0026.

mod af_xdp;
pub mod config;
#[cfg(feature = "dpdk")]
mod dpdk;
#[cfg(not(feature = "dpdk"))]
#[path = "without_dpdk.rs"]
mod dpdk;
mod memif;
mod own;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use net::link::Cidr;

pub use config::{Backend, Configured, Content, DpdkConfig, LinkConfig};
pub use workers::WorkersConfig;

use crate::af_xdp::{AfXdpError, Memory};
use crate::capture::{Tap, Taps};
use crate::outbox::Outbox;
use crate::stack::datagram::Endpoints;
use crate::tun::TunPort;
use crate::udp::{GroupError, UdpPort};
use crate::{Port, VECTOR, crossing};
use af_xdp::{AfXdp, Queues};
use own::Own;

/// An interface that is to be opened.
#[derive(Debug)]
pub struct Interface {
    /// The key of the configuration that describes it, for messages: "upf.interfaces access".
    pub place: String,
    /// Its reference point, for captures: "n3".
    pub point: &'static str,
    /// Its link.
    pub link: LinkConfig,
    /// What passes through it.
    pub traffic: Traffic,
}

/// What passes through an interface, and what opening it takes.
#[derive(Debug)]
pub enum Traffic {
    /// Tunnels, which end at [`LinkConfig::gtpu`].
    Tunnels,
    /// IP packets, on a device that bypasses the kernel. Where the kernel uses the device too, those to addresses of these
    /// prefixes.
    Packets(Vec<Cidr>),
    /// Datagrams at the link's addresses, of these endpoints, on a device that bypasses the kernel.
    Datagrams(Arc<Endpoints>),
    /// IP packets or frames, on a device of the kernel that has been set up.
    Device(TunPort),
}

impl Interface {
    /// What passes through it.
    pub fn content(&self) -> Content {
        match self.traffic {
            Traffic::Tunnels => Content::Tunnels,
            Traffic::Packets(_) | Traffic::Device(_) => Content::Packets,
            Traffic::Datagrams(_) => Content::Datagrams,
        }
    }

    fn has_tunnels(&self) -> bool {
        self.content() == Content::Tunnels
    }

    /// Address and port of its tunnels. An interface without tunnels has the unspecified address.
    fn local(&self) -> SocketAddr {
        self.link.gtpu.unwrap_or(SocketAddr::from(([0; 4], 0)))
    }
}

/// What interfaces of one node have in common.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The node's section of the configuration, for messages and names of threads: "upf".
    pub section: &'a str,
    /// Number of workers, which the section has as `workers.count`.
    pub workers: Option<u32>,
    /// Start options of DPDK, which the section has as `dpdk`.
    pub dpdk: &'a DpdkConfig,
    /// Copy the frames of devices that bypass the kernel.
    pub taps: Option<&'a Taps>,
}

/// Why the ports could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
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
    #[error("{place}: {error}; leave out {section}.workers.count, or run as root")]
    Workers {
        /// The node's section.
        section: String,
        /// The key that describes the interface.
        place: String,
        /// What the kernel did not do.
        error: GroupError,
    },
    /// There are more workers than queues.
    #[error(
        "{section}.workers: count is {count}, but an interface has {queues} queues; lower count, or \
         give the interface more queues (ethtool -L, and `queues` of the interface)"
    )]
    Queues {
        /// The node's section.
        section: String,
        /// Workers that were asked for.
        count: u32,
        /// Queues of the interface with the fewest.
        queues: u32,
    },
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
        hint: String,
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
    pub ports: Vec<Box<dyn Port>>,
    /// Numbers of the interfaces from which it receives.
    pub inputs: Vec<usize>,
    /// Those of them whose packets may belong to other workers.
    pub crossing: Vec<usize>,
}

/// All ports that were opened.
pub struct Opened {
    /// One per worker.
    pub workers: Vec<WorkerPorts>,
    /// Ports through which others than workers send, by number of the interface: the kernel's socket, or an outbox for each
    /// worker's port; none of an interface without tunnels.
    pub signalling: Vec<Vec<Box<dyn Port>>>,
}

/// An interface before workers get their ports.
enum Opening {
    /// A socket for each worker that reads it.
    Udp(Vec<UdpPort>),
    Device(TunPort),
    /// The device and the interface's number on it, with the kernel's socket for the packets in tunnels that AF_XDP does
    /// not handle, and what others send through each worker's port.
    AfXdp(Arc<AfXdp>, usize, Option<UdpPort>, Vec<Outbox>),
    /// That the kernel does not know.
    Own(Own),
}

/// Opens all ports in the calling thread's network namespace. The number of an interface is its position in the list.
///
/// # Errors
/// The interface or device that cannot be opened, and what to do.
pub fn open(setup: &Setup<'_>, interfaces: Vec<Interface>) -> Result<Opened, OpenError> {
    let interfaces: Vec<Arc<Interface>> = interfaces.into_iter().map(Arc::new).collect();
    dpdk::start(setup, &interfaces)?;
    let mut opened: Vec<Option<Opening>> = interfaces.iter().map(|_| None).collect();
    for numbers in devices(&interfaces) {
        let sharing: Vec<_> = numbers.iter().map(|number| Arc::clone(&interfaces[*number])).collect();
        for (number, own) in numbers.into_iter().zip(open_device(setup, &sharing)?) {
            opened[number] = Some(own);
        }
    }
    let mut all = Vec::with_capacity(interfaces.len());
    for (interface, opened) in interfaces.iter().zip(opened) {
        all.push(match (opened, &interface.traffic) {
            (Some(opened), _) => opened,
            (None, Traffic::Device(device)) => Opening::Device(device.share()),
            (None, _) => Opening::Udp(open_sockets(setup, interface)?),
        });
    }
    let af_xdp = all.iter().filter_map(Opening::af_xdp).map(|interface| interface.queues());
    let own = all.iter().filter_map(Opening::own).map(|own| own.ports.len() as u32);
    let queues = af_xdp.chain(own).min();
    let workers = match (setup.workers, queues) {
        (Some(count), Some(queues)) if count > queues => {
            return Err(OpenError::Queues { section: setup.section.to_owned(), count, queues });
        }
        (Some(workers), _) | (None, Some(workers)) => {
            let worker = |worker| serving_all(setup, (worker, workers), &mut all);
            (0..workers).map(worker).collect::<Result<_, _>>()?
        }
        (None, None) => by_content(setup, &mut all)?,
    };
    let mut signalling = Vec::with_capacity(all.len());
    for opened in all {
        let mut ports: Vec<Box<dyn Port>> = Vec::new();
        match opened {
            // The kernel sends what all of them send.
            Opening::Udp(gtpu) => ports.extend(gtpu.into_iter().next().map(|gtpu| Box::new(gtpu) as _)),
            Opening::AfXdp(.., outboxes) | Opening::Own(Own { outboxes, .. }) => {
                ports.extend(outboxes.into_iter().map(|outbox| Box::new(outbox) as _));
            }
            Opening::Device(_) => {}
        }
        signalling.push(ports);
    }
    Ok(Opened { workers, signalling })
}

fn tap(interface: &Interface, taps: Option<&Taps>) -> Option<Tap> {
    Some(taps?.tap(interface.point, interface.link.device_name()))
}

/// The interfaces that are not the kernel's, by their numbers, those of one device together.
fn devices(interfaces: &[Arc<Interface>]) -> Vec<Vec<usize>> {
    let mut devices: Vec<Vec<usize>> = Vec::new();
    let device = |number: usize| (interfaces[number].link.backend, interfaces[number].link.device_name());
    for number in (0..interfaces.len()).filter(|number| device(*number).0 != Backend::Kernel) {
        match devices.iter_mut().find(|numbers| device(numbers[0]) == device(number)) {
            Some(numbers) => numbers.push(number),
            None => devices.push(vec![number]),
        }
    }
    devices
}

/// Opens a device with its interfaces.
fn open_device(setup: &Setup<'_>, interfaces: &[Arc<Interface>]) -> Result<Vec<Opening>, OpenError> {
    let own = |own: Vec<Own>| own.into_iter().map(Opening::Own).collect();
    match interfaces.first().map(|interface| interface.link.backend) {
        Some(Backend::Dpdk) => Ok(own(dpdk::open(setup, interfaces)?)),
        Some(Backend::Memif) => Ok(own(memif::open(setup, interfaces)?)),
        Some(Backend::AfXdp) => {
            let device = af_xdp::open(setup, interfaces)?;
            let members = interfaces.iter().enumerate().map(|(member, interface)| {
                let of_kernel = interface.has_tunnels() && !interface.link.has_own_addresses();
                let gtpu = of_kernel.then(|| UdpPort::bind(interface.local(), false)).transpose();
                let gtpu = gtpu.map_err(|error| refused(interface, error))?;
                Ok(Opening::AfXdp(Arc::clone(&device), member, gtpu, Vec::new()))
            });
            members.collect()
        }
        Some(Backend::Kernel) | None => Ok(Vec::new()),
    }
}

fn refused(interface: &Interface, error: io::Error) -> OpenError {
    OpenError::Gtpu { place: interface.place.clone(), address: interface.local(), error }
}

/// The kernel's sockets for tunnels, one for each worker that reads them.
fn open_sockets(setup: &Setup<'_>, interface: &Interface) -> Result<Vec<UdpPort>, OpenError> {
    let readers = setup.workers.unwrap_or(1);
    UdpPort::bind_group(interface.local(), readers).map_err(|error| match error {
        GroupError::Bind(error) => refused(interface, error),
        error @ GroupError::Choose(_) => {
            OpenError::Workers { section: setup.section.to_owned(), place: interface.place.clone(), error }
        }
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
            Opening::Device(device) => device.queues(),
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
    ) -> Result<Box<dyn Port>, OpenError> {
        Ok(match (self, memory) {
            (Opening::Udp(gtpu), _) => match gtpu.get(worker as usize).or(gtpu.first()) {
                Some(gtpu) => Box::new(gtpu.share()),
                None => return Err(no_port()),
            },
            (Opening::Device(device), _) => Box::new(device.queue(worker as usize)),
            (Opening::AfXdp(device, member, gtpu, outboxes), Some(memory)) => {
                let gtpu = gtpu.as_ref().map(UdpPort::share);
                let port = Box::new(Queues::open(device, *member, (worker, workers), gtpu, memory)?);
                own::with_outbox(port, device.interface_of(*member)?, outboxes)
            }
            (Opening::Own(own), _) => {
                own.ports.get_mut(worker as usize).and_then(Option::take).ok_or_else(no_port)?
            }
            (Opening::AfXdp(..), None) => return Err(no_port()),
        })
    }
}

/// The error for a worker without a port: there are no more workers than ports.
fn no_port() -> OpenError {
    let error = "an interface has no port for a worker".to_owned();
    OpenError::Device { place: "interfaces".to_owned(), error, hint: "this is a defect".to_owned() }
}

/// Kernel ports only: a worker for tunnels, and one for devices.
fn by_content(setup: &Setup<'_>, all: &mut [Opening]) -> Result<Vec<WorkerPorts>, OpenError> {
    let is_device = |opened: &Opening| matches!(opened, Opening::Device(_));
    let mut out = Vec::new();
    for (name, devices) in [("tunnels", false), ("networks", true)] {
        let inputs: Vec<usize> = (0..all.len()).filter(|at| is_device(&all[*at]) == devices).collect();
        if inputs.is_empty() {
            continue;
        }
        let ports = all.iter_mut().map(|opened| opened.port(0, 1, None)).collect::<Result<_, _>>()?;
        out.push(WorkerPorts {
            name: format!("{}-{name}", setup.section),
            ports,
            inputs,
            crossing: Vec::new(),
        });
    }
    Ok(out)
}

/// Makes a worker with its share of all interfaces.
fn serving_all(
    setup: &Setup<'_>,
    (worker, workers): (u32, u32),
    all: &mut [Opening],
) -> Result<WorkerPorts, OpenError> {
    let opened: Vec<_> =
        all.iter().filter_map(Opening::af_xdp).map(|interface| interface.interface()).collect();
    let sockets = all.iter().filter_map(Opening::af_xdp);
    let sockets = sockets.map(|interface| interface.queues().div_ceil(workers) as usize).sum();
    // Frames with other workers, and those that wait for the interfaces of shared devices.
    let members = all.iter().filter(|opened| matches!(opened, Opening::AfXdp(..))).count();
    let away = crossing::frames(workers as usize) + members * VECTOR;
    let memory = || Memory::with_more(sockets, away, opened.iter().map(|interface| interface.device()));
    let memory = (!opened.is_empty()).then(memory).transpose();
    let mut memory = memory.map_err(|error| OpenError::AfXdp { place: setup.section.to_owned(), error })?;
    let inputs: Vec<usize> = (0..all.len()).filter(|at| all[*at].is_read_by(worker)).collect();
    let crossing = inputs.iter().copied().filter(|at| workers > 1 && all[*at].crosses()).collect();
    let ports = all.iter_mut().map(|opened| opened.port(worker, workers, memory.as_mut()));
    let ports = ports.collect::<Result<_, _>>()?;
    Ok(WorkerPorts { name: format!("{}-{worker}", setup.section), ports, inputs, crossing })
}
