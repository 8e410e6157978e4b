//! AF_XDP: frames straight from an interface's queues, past the kernel's stack.
//!
//! ```text
//! interface ──► chain of XDP parts ──► bpf::filter ──selected──► socket of the queue ──► AfXdpPort ──► frame stack
//!                     └──what parts take    └──everything else──► the kernel
//! ```
//! An [`Interface`] is the selection on one interface, the last part of its chain ([`crate::xdp`]). The kernel keeps its own addresses,
//! routes and neighbours; others, which only we know, may be there beside them. A [`Memory`] holds the frames of one worker. An [`AfXdpPort`] is some queues of one interface, served by one worker.
//! Zero-copy is used where the driver has it, else the kernel copies, which is said once in the log.
//!
//! Program, sockets and memory go with the descriptors: when the process ends, in whatever way, the interface is as
//! it was before.

pub mod device;
mod ring;
mod socket;
mod umem;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use net::time::{self, Duration};
use packet::ethernet::Mac;
use telemetry::DropReason;

use crate::bpf::filter::{self, Select};
use crate::bpf::{BpfError, Program, XskMap};
use crate::poll::AnyOf;
use crate::vlan::{LONGEST_HEADER, Tags};
use crate::xdp::{Chain, ChainError, Part, Place};
use crate::{FramePort, Pool, Port, Sent, Vector};
use device::Device;
pub use socket::Mode;
use socket::{CHUNKS, Socket};
use umem::Umem;

/// The kernel puts 256 octets of headroom in front of a received frame.
const KERNEL_HEADROOM: usize = 256;
/// Queues of one interface at most: as many as the largest adapters have.
const MAX_QUEUES: u32 = 256;
/// Frames without a sleep from which on there is traffic: then the two system calls around the next sleep cost less than
/// being watched.
const BUSY: usize = 128;
/// How often the kernel's counters are read while frames come in: a system call for each socket.
const READ_EVERY: Duration = Duration::from_millis(10);

/// Why an interface cannot be used by AF_XDP.
#[derive(Debug, thiserror::Error)]
pub enum AfXdpError {
    /// No such interface, or none with Ethernet frames.
    #[error("interface {name}: {error}")]
    Device {
        /// As configured.
        name: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// The MTU is too large for frames of one page.
    #[error(
        "interface {name}: AF_XDP takes an MTU of up to {most}, not {mtu}; use the kernel or DPDK instead"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: usize,
        /// The largest that works.
        most: usize,
    },
    /// An XDP program or its map.
    #[error("interface {name}: {error}")]
    Program {
        /// The interface.
        name: String,
        /// What failed.
        error: ChainError,
    },
    /// A socket.
    #[error(
        "interface {name}, queue {queue}: cannot open an AF_XDP socket: {error}; it needs CAP_NET_RAW and a \
             queue that no other program uses"
    )]
    Socket {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
        /// What the kernel said.
        error: io::Error,
    },
    /// Memory for frames that stays in place.
    #[error(
        "interface {name}, queue {queue}: this process may not lock the memory of AF_XDP's frames: raise `ulimit -l` \
             (LimitMEMLOCK= of systemd) or leave it CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
    },
    /// Memory for frames.
    #[error("cannot allocate memory for AF_XDP frames: {0}")]
    Memory(io::Error),
}

/// An interface with the program that selects packets.
#[derive(Debug)]
pub struct Interface {
    device: Device,
    /// The device's present address, in the lower six octets.
    mac: AtomicU64,
    wanted: Vec<(Tags, Vec<Select>)>,
    map: XskMap,
    selection: Part,
}

impl Interface {
    /// Attaches a chain with the program to the interface `name` of the calling thread's network namespace. Selected
    /// packets go to the kernel too, until there are sockets.
    pub fn open(name: &str, tags: impl Into<Tags>, selects: &[Select]) -> Result<Arc<Interface>, AfXdpError> {
        Interface::open_for(name, &[(tags.into(), selects.to_vec())])
    }

    /// The same, with a selection of the frames of each of several VLANs.
    pub fn open_for(name: &str, wanted: &[(Tags, Vec<Select>)]) -> Result<Arc<Interface>, AfXdpError> {
        let device =
            Device::find(name).map_err(|error| AfXdpError::Device { name: name.to_owned(), error })?;
        chunk_len(&device)?;
        let selection = || -> Result<(XskMap, Part), ChainError> {
            let map = XskMap::new(MAX_QUEUES)?;
            let code = filter::program(map.as_fd(), device.mac, wanted).map_err(BpfError::from)?;
            let program = Program::load("godwit_select", &code)?;
            let chain = Chain::attach(device.index)?;
            Ok((map, chain.add(Place::SELECTION, program)?))
        };
        let (map, selection) =
            selection().map_err(|error| AfXdpError::Program { name: name.to_owned(), error })?;
        if !selection.chain().native() {
            tracing::info!(interface = name, "the driver has no XDP: packets take the kernel's generic hook");
        }
        let mac = AtomicU64::new(number(device.mac));
        Ok(Arc::new(Interface { device, mac, wanted: wanted.to_vec(), map, selection }))
    }

    /// Goes on with another link-layer address, which the device has been given.
    ///
    /// # Errors
    /// The kernel refuses the program for it; the former one stays.
    pub fn readdress(&self, mac: Mac) -> Result<(), AfXdpError> {
        let replace = || -> Result<(), BpfError> {
            let code = filter::program(self.map.as_fd(), mac, &self.wanted)?;
            self.selection.replace(Program::load("godwit_select", &code)?)
        };
        let failed =
            |error: BpfError| AfXdpError::Program { name: self.device.name.clone(), error: error.into() };
        replace().map_err(failed)?;
        self.mac.store(number(mac), Ordering::Release);
        Ok(())
    }

    fn mac(&self) -> Mac {
        let [_, _, mac @ ..] = self.mac.load(Ordering::Acquire).to_be_bytes();
        mac
    }

    /// The interface's XDP programs, to which parts in front of the selection can be added.
    pub fn chain(&self) -> &Arc<Chain> {
        self.selection.chain()
    }

    /// The interface, as it was found.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the program runs in the driver.
    pub fn native(&self) -> bool {
        self.chain().native()
    }
}

/// A link-layer address as a number.
fn number([a, b, c, d, e, f]: Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Octets of a chunk of memory, which holds one frame: the smaller the better for the caches.
fn chunk_len(device: &Device) -> Result<u32, AfXdpError> {
    let needed = device.mtu + LONGEST_HEADER + KERNEL_HEADROOM;
    match needed {
        ..=2048 => Ok(2048),
        2049..=4096 => Ok(4096),
        _ => Err(AfXdpError::Mtu {
            name: device.name.clone(),
            mtu: device.mtu,
            most: 4096 - LONGEST_HEADER - KERNEL_HEADROOM,
        }),
    }
}

/// The frames of one worker's ports.
#[derive(Debug)]
pub struct Memory {
    umem: Arc<Umem>,
    /// The socket that brought the memory into the kernel.
    first: Option<Arc<OwnedFd>>,
}

impl Memory {
    /// Memory for `sockets` sockets on the interfaces `devices`.
    pub fn new<'a>(
        sockets: usize,
        devices: impl IntoIterator<Item = &'a Device>,
    ) -> Result<Memory, AfXdpError> {
        Memory::with_more(sockets, 0, devices)
    }

    /// The same, and `more` frames, for vectors that its worker does not hold itself.
    pub fn with_more<'a>(
        sockets: usize,
        more: usize,
        devices: impl IntoIterator<Item = &'a Device>,
    ) -> Result<Memory, AfXdpError> {
        let mut length = 2048;
        for device in devices {
            length = length.max(chunk_len(device)?);
        }
        let chunks = CHUNKS.saturating_mul(sockets.clamp(1, 1024) as u32).saturating_add(more as u32);
        let umem = Umem::new(chunks, length).map_err(AfXdpError::Memory)?;
        Ok(Memory { umem: Arc::new(umem), first: None })
    }

    /// All frames: those that are free, those in batches, those in the rings of its ports
    /// ([`AfXdpPort::ring_frames`]), and those that the kernel is sending.
    pub fn frames(&self) -> usize {
        self.umem.chunks()
    }

    /// Frames that are neither in a batch nor with the kernel.
    pub fn free_frames(&self) -> usize {
        self.umem.free_chunks()
    }

    /// Frames in batches.
    pub fn lent_frames(&self) -> usize {
        self.umem.lent_chunks()
    }
}

/// How ports are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Copy or zero-copy; the best that works without.
    pub mode: Option<Mode>,
    /// Receiving polls the interface's queue itself, which takes a fifth of an interrupt's delay. For workers that
    /// have a core to themselves.
    pub busy_poll: bool,
}

/// Queues of one interface.
pub struct AfXdpPort {
    interface: Arc<Interface>,
    sockets: Vec<Socket>,
    /// Which socket receives first: they take turns.
    turn: usize,
    /// Over the sockets, while they are watched.
    any: AnyOf,
    watched: Cell<bool>,
    /// The owner says when it goes to sleep. Otherwise the sockets are watched once somebody has asked for the descriptor.
    owner_tells: bool,
    /// Frames since it last did.
    frames: usize,
    /// Frames have come in since the kernel's counters were read, and when these are read again.
    received: bool,
    next_reading: std::time::Instant,
}

impl std::fmt::Debug for AfXdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AfXdpPort").field("device", &self.interface.device).finish_non_exhaustive()
    }
}

impl AfXdpPort {
    /// Opens sockets on `queues` of `interface`, with frames of `memory`.
    pub fn open(
        interface: &Arc<Interface>,
        queues: impl IntoIterator<Item = u32>,
        memory: &mut Memory,
        options: Options,
    ) -> Result<AfXdpPort, AfXdpError> {
        let name = &interface.device.name;
        let mut sockets = Vec::new();
        for queue in queues {
            let failed = |error: io::Error| match error.raw_os_error() {
                // What the kernel says when it accounts for the frames.
                Some(libc::ENOBUFS) => AfXdpError::LockedMemory { name: name.clone(), queue },
                _ => AfXdpError::Socket { name: name.clone(), queue, error },
            };
            let (umem, first) = (&memory.umem, memory.first.as_ref());
            let device = (interface.device.index, interface.device.mtu + LONGEST_HEADER);
            let socket =
                Socket::open(device, queue, umem, first, options.mode, options.busy_poll).map_err(failed)?;
            memory.first.get_or_insert_with(|| Arc::clone(socket.fd()));
            let entered = interface.map.set(queue, socket.fd().as_fd());
            entered.map_err(|error| AfXdpError::Program { name: name.clone(), error: error.into() })?;
            sockets.push(socket);
        }
        if sockets.is_empty() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "no queue is left for this port");
            return Err(AfXdpError::Device { name: name.clone(), error });
        }
        if sockets.iter().any(|socket| socket.mode() == Mode::Copy) && options.mode != Some(Mode::Copy) {
            tracing::info!(interface = name, "AF_XDP without zero-copy: the kernel copies each packet once");
        }
        let any = AnyOf::new([]).map_err(|error| AfXdpError::Device { name: name.clone(), error })?;
        let interface = Arc::clone(interface);
        Ok(AfXdpPort {
            interface,
            sockets,
            turn: 0,
            any,
            watched: Cell::new(false),
            owner_tells: false,
            frames: 0,
            received: true,
            next_reading: time::now_std(),
        })
    }

    /// Copy or zero-copy.
    pub fn mode(&self) -> Mode {
        self.sockets[0].mode()
    }

    /// For every frame that leaves and every few that come, the kernel calls whoever watches a socket. So nobody does while
    /// there is traffic, until the owner wants to sleep.
    #[inline]
    fn count(&mut self, frames: usize) {
        self.frames += frames;
        if self.frames >= BUSY && self.owner_tells && self.watched.replace(false) {
            // One that stays is found there when the others are added again.
            self.sockets.iter().for_each(|socket| drop(self.any.remove(socket.fd().as_fd())));
        }
    }

    /// Makes the descriptor tell of frames.
    fn watch(&self) -> io::Result<()> {
        if !self.watched.get() {
            for socket in &self.sockets {
                match self.any.add(socket.fd().as_fd()) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
            }
            self.watched.set(true);
        }
        Ok(())
    }

    /// Frames in the rings between this port and the kernel, in both directions. Exact while the kernel moves none.
    pub fn ring_frames(&mut self) -> usize {
        self.sockets.iter_mut().map(Socket::ring_chunks).sum()
    }
}

impl Port for AfXdpPort {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        batch.clear();
        let count = self.sockets.len();
        for i in 0..count {
            let at = (self.turn + i) % count;
            self.sockets[at].receive(batch);
            if batch.len() == batch.capacity() {
                break;
            }
        }
        self.turn = (self.turn + 1) % count;
        self.received |= !batch.is_empty();
        self.count(batch.len());
        Ok(batch.len())
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.count(selected.len());
        // Any queue sends anything, and one keeps the order.
        self.sockets[0].transmit(batch, selected)
    }

    /// Frames that the kernel has discarded between the interface and our rings count here too. While frames come in,
    /// its counters are read every ten milliseconds, and once more when no more come.
    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        if !self.received {
            return;
        }
        let now = time::now_std();
        if now < self.next_reading {
            return;
        }
        (self.received, self.next_reading) = (false, now + READ_EVERY);
        for socket in &mut self.sockets {
            let losses = socket.losses();
            for (reason, frames) in [
                (DropReason::RxQueueFull, losses.ring_full),
                (DropReason::RxNoBuffer, losses.no_chunk),
                (DropReason::TooBig, losses.too_long),
                (DropReason::TxError, losses.invalid),
            ] {
                if frames > 0 {
                    count(reason, frames as usize);
                }
            }
        }
    }

    fn unsent(&self) -> bool {
        self.sockets.iter().any(Socket::unsent)
    }

    fn before_sleep(&mut self) -> io::Result<()> {
        (self.owner_tells, self.frames) = (true, 0);
        self.watch()
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        Some(Arc::clone(self.sockets[0].pool()))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        // Without it the owner looks from time to time.
        let tells = self.owner_tells || self.watch().is_ok();
        tells.then(|| self.any.as_fd())
    }
}

impl FramePort for AfXdpPort {
    fn mac(&self) -> Mac {
        self.interface.mac()
    }

    fn mtu(&self) -> usize {
        self.interface.device.mtu
    }
}
