//! Interfaces with the backend `af_xdp`. Each worker has a share of their queues.
//!
//! An interface may disappear while it is served: a virtual one is deleted and created again, a physical one
//! restarts. Its number, address, program and sockets are then gone, so a worker's port opens the interface
//! that has the name by then ([`Queues`]); of several workers the first one does so for all. Until there is
//! such an interface, receiving fails; the worker treats that like any failing input and tries again each
//! second.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::capture::{Tap, Tapped};
use pktio::poll::AnyOf;
use pktio::stack::Neighbours;
use pktio::stack::ip::IpStack;
use pktio::stack::kernel::KernelTables;
use pktio::stack::raw::RawPort;
use pktio::stack::udp::UdpStack;
use pktio::udp::UdpPort;
use pktio::{Port, Sent, Vector, crossing};
use telemetry::DropReason;

use super::PortError;
use crate::interface::InterfaceConfig;

/// An interface, found by its name; exists from the start until its queues are no longer served.
pub struct AfXdp {
    place: String,
    config: InterfaceConfig,
    selects: Vec<Select>,
    /// Copies frames for a capture.
    tap: Option<Tap>,
    attached: Mutex<Arc<Attached>>,
}

/// The present or last interface with the name.
struct Attached {
    interface: Arc<Interface>,
    tables: KernelTables,
}

impl AfXdp {
    /// Opens the interface that `config` names. `place` is the key that describes it in the configuration; `selects` are its
    /// packets.
    pub fn open(
        place: String,
        config: &InterfaceConfig,
        selects: Vec<Select>,
        tap: Option<Tap>,
    ) -> Result<Arc<AfXdp>, PortError> {
        let attached = Mutex::new(attach(&place, config, &selects)?);
        Ok(Arc::new(AfXdp { place, config: config.clone(), selects, tap, attached }))
    }

    fn attached(&self) -> Arc<Attached> {
        Arc::clone(&self.attached.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The present interface.
    pub fn interface(&self) -> Arc<Interface> {
        Arc::clone(&self.attached().interface)
    }

    /// Number of queues that are served.
    pub fn queues(&self) -> u32 {
        let there = self.interface().device().queues;
        self.config.queues.map_or(there, |wanted| wanted.min(there))
    }

    /// Opens the interface that has replaced one that is gone.
    fn successor(&self) -> Result<Arc<Attached>, PortError> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        if attached.tables.is_gone() {
            *attached = attach(&self.place, &self.config, &self.selects)?;
            let device = attached.interface.device();
            tracing::warn!(
                place = self.place,
                ?device,
                "the interface was gone; there is another of its name"
            );
        }
        Ok(Arc::clone(&attached))
    }

    fn routing(&self, error: io::Error) -> PortError {
        PortError::Routing { place: self.place.clone(), error }
    }
}

fn attach(place: &str, config: &InterfaceConfig, selects: &[Select]) -> Result<Arc<Attached>, PortError> {
    let interface = Interface::open(config.device(), config.vlan, selects)
        .map_err(|error| PortError::AfXdp { place: place.to_owned(), error })?;
    let tables = KernelTables::follow(interface.device().index)
        .map_err(|error| PortError::Routing { place: place.to_owned(), error })?;
    Ok(Arc::new(Attached { interface, tables }))
}

/// The packets of the interface.
pub enum Content {
    /// In tunnels; the kernel's socket handles the packets that AF_XDP does not.
    Tunnels(UdpPort),
    /// Of a data network.
    Packets,
}

/// One worker's queues of an interface, with the stack on them.
pub struct Queues {
    from: Arc<AfXdp>,
    /// Number of this worker, and number of workers.
    worker: (u32, u32),
    content: Content,
    attached: Arc<Attached>,
    /// `None` while there is no interface.
    port: Option<Box<dyn Port>>,
    /// Waits for the port or the end of the interface. It stays the same when the port is replaced, so that a
    /// worker can keep waiting for it.
    any: AnyOf,
}

impl Queues {
    /// Opens the queues of worker number `worker.0` of `worker.1`, with frames of `memory`.
    pub fn open(
        from: &Arc<AfXdp>,
        worker: (u32, u32),
        content: Content,
        memory: &mut Memory,
    ) -> Result<Queues, PortError> {
        let (from, attached) = (Arc::clone(from), from.attached());
        let any = AnyOf::new([attached.tables.gone()]).map_err(|error| from.routing(error))?;
        let mut input = Queues { from, worker, content, attached, port: None, any };
        input.open_port(memory)?;
        Ok(input)
    }

    fn open_port(&mut self, memory: &mut Memory) -> Result<(), PortError> {
        let (from, (worker, workers)) = (&self.from, self.worker);
        let queues = (0..from.queues()).filter(|queue| queue % workers == worker);
        let options = Options { busy_poll: from.config.busy_poll, ..Options::default() };
        let frames = AfXdpPort::open(&self.attached.interface, queues, memory, options)
            .map_err(|error| PortError::AfXdp { place: from.place.clone(), error })?;
        let frames = Tapped::new(frames, from.tap.clone());
        let reader = self.attached.tables.reader();
        let vlan = from.config.vlan;
        let stacked = || -> io::Result<Box<dyn Port>> {
            Ok(match &self.content {
                Content::Tunnels(gtpu) => {
                    let neighbours = Neighbours::Kernel(reader, Box::new(gtpu.share()));
                    Box::new(UdpStack::new(frames, gtpu.local(), vlan, neighbours)?)
                }
                Content::Packets => {
                    let neighbours = Neighbours::Kernel(reader, Box::new(RawPort::open()?));
                    Box::new(IpStack::new(frames, vlan, neighbours)?)
                }
            })
        };
        let port = stacked().map_err(|error| from.routing(error))?;
        if let Some(fd) = port.fd() {
            self.any.add(fd).map_err(|error| from.routing(error))?;
        }
        self.port = Some(port);
        Ok(())
    }

    /// Opens the interface that has replaced one that is gone. Its frames come from a new memory, as the state
    /// of the frames in the old sockets is unknown.
    #[cold]
    fn open_again(&mut self) -> Result<(), PortError> {
        // Closes its descriptors, which also removes them from what workers wait for.
        self.port = None;
        if self.attached.tables.is_gone() {
            let successor = self.from.successor()?;
            let _ = self.any.remove(self.attached.tables.gone());
            self.any.add(successor.tables.gone()).map_err(|error| self.from.routing(error))?;
            self.attached = successor;
        }
        let sockets = self.from.queues().div_ceil(self.worker.1) as usize;
        let away = crossing::frames(self.worker.1 as usize);
        let mut memory = Memory::with_more(sockets, away, [self.attached.interface.device()])
            .map_err(|error| PortError::AfXdp { place: self.from.place.clone(), error })?;
        self.open_port(&mut memory)
    }

    #[inline]
    fn is_served(&self) -> bool {
        self.port.is_some() && !self.attached.tables.is_gone()
    }
}

impl Port for Queues {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        if !self.is_served() {
            // Returns the batch's frames to the memory from which they came.
            batch.clear();
            self.open_again().map_err(io::Error::other)?;
        }
        self.port.as_mut().map_or(Ok(0), |port| port.receive(batch))
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        match &mut self.port {
            Some(port) => port.transmit(batch, selected),
            None => Sent { errors: selected.len(), ..Sent::default() },
        }
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        if let Some(port) = &mut self.port {
            port.losses(count);
        }
    }

    fn unsent(&self) -> bool {
        self.is_served() && self.port.as_ref().is_some_and(|port| port.unsent())
    }

    fn before_sleep(&mut self) -> io::Result<()> {
        self.port.as_mut().map_or(Ok(()), |port| port.before_sleep())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.any.as_fd())
    }
}
