//! Datagram sockets over any backend, with a descriptor for epoll: for programs written against UDP sockets.
//!
//! ```text
//!                     DatagramSocket ── kernel: a UDP socket
//! program (epoll) ──┤
//!                     DatagramSocket ── inbox ◄── the device's thread ◄── DatagramStack ◄── AF_XDP, DPDK, memif
//!                                       outbox ──►  (engine)         ──►
//! ```
//! [`Device::open`] takes the configuration of an interface, [`Device::bind`] an address and port. A program that worked with
//! `UdpSocket` calls these two in place of `UdpSocket::bind`, and goes on as before: [`DatagramSocket`] has `recv_from`,
//! `send_to` and a descriptor. `examples/echo.rs` is such a program; `docs/datagram.md` is the manual.
//!
//! **Readiness.** The descriptor is readable if and only if a datagram waits, or the device has failed. So it works with level-triggered
//! epoll. It works edge-triggered as well: there is an edge whenever the queue stops being empty, and who then receives until
//! `WouldBlock` misses none. It is always writable.
//!
//! **Threads.** All methods take `&self`; any number of threads may use a socket. Sockets of a device hold its thread: it ends
//! when the device and all its sockets are dropped, after it has sent what they gave it.
//!
//! **Bounds.** A socket's queue has [`Options::queue`] datagrams. What comes while it is full is dropped and counted
//! ([`DatagramSocket::overflow`]). What a program has not sent is bounded too: then `send_to` says `WouldBlock`.

mod engine;
mod inbox;
mod kernel;
mod queue;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use net::link::Cidr;
use telemetry::DropReason;

use crate::capture::Taps;
use crate::interface::{Backend, Content, DpdkConfig, LinkConfig, OpenError};
use crate::{Sent, Vector};
use engine::Engine;
use inbox::Inbox;
use kernel::KernelSocket;

/// What a device is opened with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the device's thread, and of the section in messages.
    pub name: String,
    /// The link: backend, device, addresses. `gtpu` is left out.
    pub link: LinkConfig,
    /// Start options of DPDK, if that is the backend.
    pub dpdk: DpdkConfig,
    /// The core on which the device's thread stays; without one the system chooses.
    pub core: Option<usize>,
    /// Most time that the thread polls a silent device before it sleeps. Waking up delays a datagram by some ten microseconds;
    /// polling takes processor time.
    pub poll: Duration,
    /// Datagrams that wait in a socket, 8,192 at most.
    pub queue: usize,
    /// Copies the frames of a device that bypasses the kernel.
    pub taps: Option<Taps>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "datagram".to_owned(),
            link: LinkConfig::default(),
            dpdk: DpdkConfig::default(),
            core: None,
            poll: Duration::from_micros(100),
            queue: 1024,
            taps: None,
        }
    }
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The link is not configured well.
    #[error("{name}: {reason}")]
    Config {
        /// Name of the device.
        name: String,
        /// What is wrong, and what would do.
        reason: String,
    },
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its thread could not be started, or may not use its core.
    #[error("{name}: cannot start the device's thread: {error}")]
    Thread {
        /// Name of the device.
        name: String,
        /// Error of the operating system.
        error: io::Error,
    },
}

/// A device with addresses, on which sockets are bound. A clone is the same device.
#[derive(Clone, Debug)]
pub struct Device(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Kernel,
    Frames(Arc<Engine>, Vec<Cidr>),
}

impl Device {
    /// Opens a device in the calling thread's network namespace. With the backend `kernel` there is nothing to open: sockets are
    /// bound to the kernel's addresses, in the namespace of the thread that binds them.
    ///
    /// # Errors
    /// The configuration is wrong, or the device cannot be had; the message says what to do.
    pub fn open(options: &Options) -> Result<Device, DeviceError> {
        let name = || options.name.clone();
        let checked = options.link.check(&options.name, Content::Datagrams);
        checked.map_err(|reason| DeviceError::Config { name: name(), reason })?;
        if options.link.backend == Backend::Kernel {
            return Ok(Device(Kind::Kernel));
        }
        let engine = Engine::start(options)?;
        Ok(Device(Kind::Frames(Arc::new(engine), options.link.addresses.clone())))
    }

    /// Binds a socket. Port 0 stands for any free port.
    ///
    /// # Errors
    /// - `AddrInUse`: the address has a socket with this port.
    /// - `AddrNotAvailable`: the device does not have the address. On a device that bypasses the kernel a socket has one of the
    ///   link's `addresses`, not the unspecified address.
    /// - Others of the operating system.
    pub fn bind(&self, local: SocketAddr) -> io::Result<DatagramSocket> {
        let socket = match &self.0 {
            Kind::Kernel => Socket::Kernel(Box::new(KernelSocket::bind(local)?)),
            Kind::Frames(engine, addresses) => {
                if !addresses.iter().any(|own| own.address() == local.ip()) {
                    return Err(io::ErrorKind::AddrNotAvailable.into());
                }
                Socket::Frames(FrameSocket::bind(engine, local)?)
            }
        };
        Ok(DatagramSocket { socket, traffic_class: AtomicU8::new(0) })
    }

    /// How many packets the device and its stack have lost for each reason. The kernel keeps its own counts.
    pub fn losses(&self) -> Vec<(DropReason, u64)> {
        match &self.0 {
            Kind::Kernel => Vec::new(),
            Kind::Frames(engine, _) => engine.losses(),
        }
    }
}

/// A datagram socket. It never blocks. Dropping it frees its port at once; what it has sent still leaves.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: Socket,
    traffic_class: AtomicU8,
}

#[derive(Debug)]
enum Socket {
    Kernel(Box<KernelSocket>),
    Frames(FrameSocket),
}

/// A socket on a device that bypasses the kernel.
#[derive(Debug)]
struct FrameSocket {
    local: SocketAddr,
    number: u16,
    inbox: Arc<Inbox>,
    engine: Arc<Engine>,
}

impl FrameSocket {
    fn bind(engine: &Arc<Engine>, local: SocketAddr) -> io::Result<FrameSocket> {
        // Without flow and scope, which say nothing here.
        let (number, local, inbox) = engine.bind(SocketAddr::new(local.ip(), local.port()))?;
        Ok(FrameSocket { local, number, inbox, engine: Arc::clone(engine) })
    }
}

impl Drop for FrameSocket {
    fn drop(&mut self) {
        self.engine.close(self.local, self.number);
    }
}

impl DatagramSocket {
    /// The address and port to which the socket is bound.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.socket {
            Socket::Kernel(socket) => socket.local_addr(),
            Socket::Frames(socket) => Ok(socket.local),
        }
    }

    /// Receives a datagram into `buffer`; returns its length and sender. Octets for which there is no room are lost.
    ///
    /// # Errors
    /// - `WouldBlock`: none waits.
    /// - `BrokenPipe`: the device has failed, and nothing will come any more.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        match &self.socket {
            Socket::Kernel(socket) => socket.recv_from(buffer),
            Socket::Frames(socket) => socket.inbox.receive(buffer),
        }
    }

    /// Sends a datagram. It has left this program when the call returns, not this machine: what becomes of it later is counted
    /// ([`Device::losses`]), as with UDP.
    ///
    /// # Errors
    /// - `WouldBlock`: what was sent before has not left yet; try again later. The descriptor does not say when.
    /// - `EMSGSIZE`: longer than the link takes; nothing is fragmented on a device that bypasses the kernel.
    /// - `InvalidInput`: the address is of the other family, or unspecified, or has port 0.
    /// - `BrokenPipe`: the device has failed.
    pub fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        match &self.socket {
            Socket::Kernel(socket) => socket.send_to(datagram, to),
            Socket::Frames(socket) => {
                if socket.local.is_ipv4() != to.is_ipv4() || to.ip().is_unspecified() || to.port() == 0 {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                socket.engine.send(socket.number, datagram, to, self.traffic_class())
            }
        }
    }

    /// Receives up to a vector of datagrams, each with its sender as peer, without copying them once more on a device that
    /// bypasses the kernel; returns their number. While the vector holds them, they count as waiting in the socket's memory, which
    /// has room for two vectors more than [`Options::queue`].
    /// On the backend `kernel` a datagram that is longer than the vector's frames becomes an empty one.
    ///
    /// # Errors
    /// As [`DatagramSocket::recv_from`].
    pub fn recv_vector(&self, vector: &mut Vector) -> io::Result<usize> {
        match &self.socket {
            Socket::Kernel(socket) => socket.recv_vector(vector),
            Socket::Frames(socket) => socket.inbox.receive_vector(vector),
        }
    }

    /// Sends the packets of `vector` at the positions `selected`, each to its peer, with its own traffic class or else the
    /// socket's. [`Sent::full`] counts what `send_to` would refuse with `WouldBlock`.
    pub fn send_vector(&self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let class = self.traffic_class();
        for position in selected {
            if let Some(mut frame) = vector.sendable_mut(*position) {
                // Numbers of peers mean nothing here.
                frame.send_to(0);
                let own = frame.tos();
                frame.set_tos(if own == 0 { class } else { own });
            }
        }
        match &self.socket {
            Socket::Kernel(socket) => socket.send_vector(vector, selected),
            Socket::Frames(socket) => {
                socket.engine.send_vector(socket.number, socket.local, vector, selected)
            }
        }
    }

    /// The traffic class (DSCP and ECN, RFC 2474) of what is sent from now on; 0 at first.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        if let Socket::Kernel(socket) = &self.socket {
            socket.set_traffic_class(class)?;
        }
        self.traffic_class.store(class, Ordering::Relaxed);
        Ok(())
    }

    /// The traffic class of what is sent.
    pub fn traffic_class(&self) -> u8 {
        self.traffic_class.load(Ordering::Relaxed)
    }

    /// How many datagrams were dropped because the socket's queue was full.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn overflow(&self) -> io::Result<u64> {
        match &self.socket {
            Socket::Kernel(socket) => socket.overflow(),
            Socket::Frames(socket) => Ok(socket.inbox.overflow()),
        }
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Kernel(socket) => socket.as_fd(),
            Socket::Frames(socket) => socket.inbox.as_fd(),
        }
    }
}

impl AsRawFd for DatagramSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
