//! Interfaces with the backend `af_xdp`. Each worker has a share of their queues.
//!
//! An interface may disappear while it is served: a virtual one is deleted and created again, a physical one
//! restarts. Its number, address, program and sockets are then gone, so a worker's port opens the interface
//! that has the name by then ([`Queues`]); of several workers the first one does so for all. Until there is
//! such an interface, receiving fails; the worker treats that like any failing input and tries again each
//! second.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use net::link::Cidr;
use packet::ethernet::Mac;
use telemetry::DropReason;

use super::{Content, Interface, LinkConfig, OpenError, Setup, Traffic, own};
use crate::af_xdp::device::{Device, Listening};
use crate::af_xdp::{self, AfXdpError, AfXdpPort, Memory, Options};
use crate::bpf::filter::Select;
use crate::capture::{Tap, Tapped};
use crate::poll::AnyOf;
use crate::stack::Neighbours;
use crate::stack::kernel::KernelTables;
use crate::stack::raw::RawPort;
use crate::stack::resolver::Resolver;
use crate::trunk::{Share, Trunk};
use crate::udp::UdpPort;
use crate::vlan::Tags;
use crate::{FramePort, Pool, Port, Sent, VECTOR, Vector, crossing};

/// A device, found by its name, with its interfaces; exists from the start until its queues are no longer served.
pub struct AfXdp {
    /// The node's section of the configuration.
    section: String,
    /// The keys that describe the interfaces.
    place: String,
    /// The link of the first interface; the others have the same device, queues and polling.
    link: LinkConfig,
    members: Vec<Member>,
    attached: Mutex<Arc<Attached>>,
    /// The sockets of each worker, if there are several interfaces.
    trunks: Mutex<HashMap<u32, Sockets>>,
}

/// Most interfaces on one device times workers: the kernel limits the ways from a file to those who wait for it
/// (fs/eventpoll.c), and 500 have the length of those from the event of a device's end.
const MOST_WAITING: usize = 500;

/// A worker's sockets, and the device that they are on.
type Sockets = (Arc<Attached>, Trunk<AfXdpPort>);

/// An interface on a device.
struct Member {
    interface: Arc<Interface>,
    /// Copies frames for a capture.
    tap: Option<Tap>,
    /// The kernel's tables for its VLAN device.
    tables: Mutex<Option<Arc<KernelTables>>>,
}

/// The present or last device with the name.
struct Attached {
    interface: Arc<af_xdp::Interface>,
    tables: Arc<KernelTables>,
    /// The neighbours of each interface with addresses of its own. Headers made from them have this device's address.
    resolvers: Vec<Option<Resolver>>,
    /// What the device receives for these besides frames to its address. It ends with the device.
    _listening: Option<Listening>,
}

/// Opens the device of some interfaces.
pub fn open(setup: &Setup<'_>, interfaces: &[Arc<Interface>]) -> Result<Arc<AfXdp>, OpenError> {
    let members = interfaces.iter().map(|interface| Member {
        interface: Arc::clone(interface),
        tap: super::tap(interface, setup.taps),
        tables: Mutex::default(),
    });
    let members: Vec<Member> = members.collect();
    let place = interfaces.iter().map(|interface| interface.place.as_str()).collect::<Vec<_>>().join(", ");
    let Some(first) = interfaces.first() else { return Err(super::no_port()) };
    let (section, link) = (setup.section.to_owned(), first.link.clone());
    let attached = Mutex::new(attach(&place, &link, &members)?);
    Ok(Arc::new(AfXdp { section, place, link, members, attached, trunks: Mutex::default() }))
}

impl Member {
    fn tags(&self) -> Tags {
        self.interface.link.tags()
    }

    /// Addresses of its own.
    fn own(&self) -> impl Iterator<Item = IpAddr> {
        self.interface.link.addresses.iter().map(Cidr::address)
    }

    /// The packets that XDP takes for it.
    fn selects(&self) -> Vec<Select> {
        let mut selects: Vec<Select> = self.own().map(Select::Own).collect();
        if !selects.is_empty() && !self.tags().is_empty() {
            // Without tags the kernel has neighbours there too, which may tell it something.
            selects.push(Select::Announcements);
        }
        match &self.interface.traffic {
            Traffic::Packets(prefixes) => selects.extend(prefixes.iter().copied().map(Select::Prefix)),
            Traffic::Tunnels if selects.is_empty() => {
                let local = self.interface.local();
                selects.push(Select::Udp(local.ip(), local.port()));
            }
            Traffic::Tunnels | Traffic::Datagrams(_) | Traffic::Device(_) => {}
        }
        selects
    }

    /// Its share of the device.
    fn share(&self) -> Share {
        let tunnels = self.interface.has_tunnels();
        let local =
            tunnels.then(|| self.interface.local().ip()).filter(|local| self.own().all(|own| own != *local));
        let others = self.interface.content() == Content::Packets;
        Share { tags: self.tags(), addresses: self.own().chain(local).collect(), others }
    }
}

impl AfXdp {
    fn attached(&self) -> Arc<Attached> {
        Arc::clone(&self.attached.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn member(&self, number: usize) -> Result<&Member, OpenError> {
        self.members.get(number).ok_or_else(super::no_port)
    }

    /// An interface of the device.
    pub fn interface_of(&self, number: usize) -> Result<&Interface, OpenError> {
        Ok(&self.member(number)?.interface)
    }

    /// The present interface.
    pub fn interface(&self) -> Arc<af_xdp::Interface> {
        Arc::clone(&self.attached().interface)
    }

    /// Number of queues that are served.
    pub fn queues(&self) -> u32 {
        self.queues_of(self.interface().device())
    }

    fn queues_of(&self, device: &Device) -> u32 {
        self.link.queues.map_or(device.queues, |wanted| wanted.min(device.queues))
    }

    /// Opens the interface that has replaced one that is gone, for so many workers.
    fn successor(&self, count: u32) -> Result<Arc<Attached>, OpenError> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        if attached.tables.is_gone() {
            let name = self.link.device();
            let device = Device::find(name).map_err(|error| OpenError::AfXdp {
                place: self.place.clone(),
                error: AfXdpError::Device { name: name.to_owned(), error },
            })?;
            // Otherwise the sessions of workers without a queue would be lost silently.
            let queues = self.queues_of(&device);
            if queues < count {
                return Err(OpenError::Queues { section: self.section.clone(), count, queues });
            }
            *attached = attach(&self.place, &self.link, &self.members)?;
            let device = attached.interface.device();
            tracing::warn!(
                place = self.place,
                ?device,
                "the interface was gone; there is another of its name"
            );
        }
        Ok(Arc::clone(&attached))
    }

    /// The kernel's tables for an interface of the device: those of its VLAN device, if it has tags.
    fn tables(&self, member: &Member, attached: &Attached) -> Result<Arc<KernelTables>, OpenError> {
        if member.tags().is_empty() || member.interface.link.has_own_addresses() {
            return Ok(Arc::clone(&attached.tables));
        }
        let mut tables = member.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tables.as_ref().filter(|known| !known.is_gone()) {
            return Ok(Arc::clone(known));
        }
        let routing = |error| OpenError::Routing { place: member.interface.place.clone(), error };
        let device = attached.interface.device().with_tags(member.tags()).map_err(routing)?;
        let found = Arc::new(KernelTables::follow(device.index).map_err(routing)?);
        *tables = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Opens a worker's sockets.
    fn sockets(
        &self,
        (worker, workers): (u32, u32),
        attached: &Attached,
        memory: Option<&mut Memory>,
    ) -> Result<AfXdpPort, OpenError> {
        let failed = |error| OpenError::AfXdp { place: self.place.clone(), error };
        let mut own = None;
        let memory = match memory {
            Some(memory) => memory,
            None => {
                let sockets = self.queues().div_ceil(workers) as usize;
                let away = crossing::frames(workers as usize) + self.members.len() * VECTOR;
                own.insert(Memory::with_more(sockets, away, [attached.interface.device()]).map_err(failed)?)
            }
        };
        let queues = (0..self.queues()).filter(|queue| queue % workers == worker);
        let options = Options { busy_poll: self.link.busy_poll, ..Options::default() };
        AfXdpPort::open(&attached.interface, queues, memory, options).map_err(failed)
    }

    /// The sockets of a worker, shared by its ports of all interfaces of the device.
    fn trunk(
        &self,
        worker: (u32, u32),
        attached: &Arc<Attached>,
        memory: Option<&mut Memory>,
    ) -> Result<Trunk<AfXdpPort>, OpenError> {
        let mut trunks = self.trunks.lock().unwrap_or_else(PoisonError::into_inner);
        match trunks.get(&worker.0) {
            Some((known, trunk)) if Arc::ptr_eq(known, attached) => Ok(trunk.clone()),
            _ => {
                let shares: Vec<Share> = self.members.iter().map(Member::share).collect();
                let frames = self.sockets(worker, attached, memory)?;
                let trunk = Trunk::new(frames, &shares);
                trunks.insert(worker.0, (Arc::clone(attached), trunk.clone()));
                Ok(trunk)
            }
        }
    }
}

fn attach(place: &str, link: &LinkConfig, members: &[Member]) -> Result<Arc<Attached>, OpenError> {
    let mut wanted: Vec<(Tags, Vec<Select>)> = Vec::new();
    for member in members {
        match wanted.iter_mut().find(|(tags, _)| *tags == member.tags()) {
            Some((_, selects)) => selects.extend(member.selects()),
            None => wanted.push((member.tags(), member.selects())),
        }
    }
    let interface = af_xdp::Interface::open_for(link.device(), &wanted)
        .map_err(|error| OpenError::AfXdp { place: place.to_owned(), error })?;
    let device = interface.device();
    if let Err(error) = device.keep_tags() {
        if members.iter().any(|member| !member.tags().is_empty()) {
            return Err(OpenError::Device {
                place: place.to_owned(),
                error: format!("{} takes VLAN tags off before AF_XDP sees the frames: {error}", device.name),
                hint: "switch that off (ethtool -K DEVICE rxvlan off), or use a device without VLANs"
                    .to_owned(),
            });
        }
        tracing::warn!(
            interface = device.name,
            %error,
            "the driver takes VLAN tags off before AF_XDP sees the frames: those of all VLANs reach this interface"
        );
    }
    let routing = |error| OpenError::Routing { place: place.to_owned(), error };
    let followed = Arc::downgrade(&interface);
    let readdress = move |mac: Mac| {
        let Some(interface) = followed.upgrade() else { return };
        match interface.readdress(mac) {
            Ok(()) => {
                tracing::info!(interface = interface.device().name, "it has another link-layer address")
            }
            Err(error) => {
                tracing::error!(%error, "frames to the interface's new link-layer address are not taken")
            }
        }
    };
    let tables = Arc::new(KernelTables::follow_and_tell(device.index, readdress).map_err(routing)?);
    let own = || members.iter().filter(|member| member.interface.link.has_own_addresses());
    let addresses: Vec<IpAddr> = own().flat_map(Member::own).collect();
    let tagged = own().any(|member| !member.tags().is_empty());
    let listening = (!addresses.is_empty()).then(|| device.listen(&addresses, tagged)).transpose();
    let resolvers = members.iter().map(|member| {
        let link = &member.interface.link;
        link.has_own_addresses().then(|| Resolver::new(&link.addresses, &link.gateways))
    });
    let resolvers = resolvers.collect();
    Ok(Arc::new(Attached { tables, resolvers, _listening: listening.map_err(routing)?, interface }))
}

/// One worker's port of an interface: its queues of the device, with the stack on them.
pub struct Queues {
    from: Arc<AfXdp>,
    /// Number of the interface on the device.
    member: usize,
    /// Number of this worker, and number of workers.
    worker: (u32, u32),
    /// The kernel's socket for packets in tunnels that AF_XDP does not handle.
    gtpu: Option<UdpPort>,
    attached: Arc<Attached>,
    tables: Arc<KernelTables>,
    /// `None` while there is no interface.
    port: Option<Box<dyn Port>>,
    /// Waits for the port or the end of the interface. It stays the same when the port is replaced, so that a
    /// worker can keep waiting for it.
    any: AnyOf,
}

impl Queues {
    /// Opens interface number `member` of a device for worker number `worker.0` of `worker.1`, with frames of `memory`.
    /// `gtpu` is the socket of an interface with tunnels at an address of the kernel's.
    pub fn open(
        from: &Arc<AfXdp>,
        member: usize,
        worker: (u32, u32),
        gtpu: Option<UdpPort>,
        memory: &mut Memory,
    ) -> Result<Queues, OpenError> {
        let (from, attached) = (Arc::clone(from), from.attached());
        let (members, workers) = (from.members.len(), worker.1 as usize);
        if members * workers > MOST_WAITING {
            return Err(OpenError::Device {
                place: from.place.clone(),
                error: format!(
                    "{workers} workers cannot wait for {members} interfaces on {}",
                    from.link.device()
                ),
                hint: format!(
                    "lower {}.workers.count, or `queues` of the interfaces: the kernel lets 500 wait, workers times \
                     interfaces",
                    from.section
                ),
            });
        }
        let tables = from.tables(from.member(member)?, &attached)?;
        let place = || from.place.clone();
        let any = AnyOf::new([]).map_err(|error| OpenError::Routing { place: place(), error })?;
        let mut input = Queues {
            from,
            member,
            worker,
            gtpu,
            attached: Arc::clone(&attached),
            tables: Arc::clone(&tables),
            port: None,
            any,
        };
        let port = input.open_port(&attached, &tables, Some(memory))?;
        input.serve(attached, tables, port)?;
        Ok(input)
    }

    fn open_port(
        &self,
        attached: &Arc<Attached>,
        tables: &KernelTables,
        memory: Option<&mut Memory>,
    ) -> Result<Box<dyn Port>, OpenError> {
        let (from, member) = (&self.from, self.from.member(self.member)?);
        let port = if from.members.len() == 1 {
            self.stack(from.sockets(self.worker, attached, memory)?, tables, attached)
        } else {
            let trunk = from.trunk(self.worker, attached, memory)?;
            trunk.branch(self.member).and_then(|branch| self.stack(branch, tables, attached))
        };
        port.map_err(|error| OpenError::Routing { place: member.interface.place.clone(), error })
    }

    /// Receives from `port` from now on, and waits for the end of its device.
    fn serve(
        &mut self,
        attached: Arc<Attached>,
        tables: Arc<KernelTables>,
        port: Box<dyn Port>,
    ) -> Result<(), OpenError> {
        let place = &self.from.place;
        let routing = |error| OpenError::Routing { place: place.clone(), error };
        for gone in [&self.attached.tables, &self.tables] {
            let _ = self.any.remove(gone.gone());
        }
        (self.attached, self.tables) = (attached, tables);
        self.any.add(self.attached.tables.gone()).map_err(routing)?;
        if !Arc::ptr_eq(&self.attached.tables, &self.tables) {
            self.any.add(self.tables.gone()).map_err(routing)?;
        }
        if let Some(fd) = port.fd() {
            self.any.add(fd).map_err(routing)?;
        }
        self.port = Some(port);
        Ok(())
    }

    fn stack<F: FramePort + 'static>(
        &self,
        frames: F,
        tables: &KernelTables,
        attached: &Attached,
    ) -> io::Result<Box<dyn Port>> {
        let member = &self.from.members[self.member];
        let kernel = |slow| Neighbours::Kernel(tables.reader(), slow);
        let neighbours = match (&attached.resolvers[self.member], &self.gtpu) {
            (Some(resolver), _) => Neighbours::Own(Box::new(resolver.share())),
            (None, Some(gtpu)) => kernel(Box::new(gtpu.share())),
            (None, None) => kernel(Box::new(RawPort::open()?)),
        };
        let mtu = member.interface.link.mtu_on(attached.interface.device())?;
        own::stack(Tapped::new(frames, member.tap.clone()), &member.interface, neighbours, mtu)
    }

    /// Opens the interface that has replaced one that is gone. Its frames come from a new memory, as the state
    /// of the frames in the old sockets is unknown.
    #[cold]
    fn open_again(&mut self) -> Result<(), OpenError> {
        // The event of the former device stays, and wakes the worker, until there is another. Ports of other interfaces may
        // have the descriptor under other numbers, so that closing it does not remove it.
        if let Some(fd) = self.port.as_ref().and_then(|port| port.fd()) {
            let _ = self.any.remove(fd);
        }
        self.port = None;
        let attached = match self.attached.tables.is_gone() {
            true => self.from.successor(self.worker.1)?,
            false => Arc::clone(&self.attached),
        };
        let tables = self.from.tables(self.from.member(self.member)?, &attached)?;
        let port = self.open_port(&attached, &tables, None)?;
        self.serve(attached, tables, port)
    }

    #[inline]
    fn is_served(&self) -> bool {
        self.port.is_some() && !self.attached.tables.is_gone() && !self.tables.is_gone()
    }
}

impl Port for Queues {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        if !self.is_served() {
            // Returns the batch's frames to the memory from which they came.
            batch.clear();
            self.open_again().map_err(io::Error::other)?;
            // The batch would otherwise go on receiving into the memory of the former sockets.
            self.pool().iter().for_each(|pool| batch.settle(pool));
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

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        self.port.as_ref()?.pool()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.any.as_fd())
    }
}
