//! Packet input and output in batches, and capture.
//!
//! A [`Port`] receives into and transmits from a [`Vector`]: up to 64 frames of one pool, with headroom so that
//! a tunnel header is written in front of a packet without moving it. Backends:
//! - [`udp::UdpPort`]: a UDP socket (GTP-U) with `recvmmsg`/`sendmmsg`;
//! - [`tun::TunPort`]: IP packets of a TUN device (N6, a UE's interface);
//! - [`stack`]: the same two on frames of AF_XDP ([`af_xdp`]) or DPDK;
//! - [`interface`] opens all of them as a configuration says;
//! - [`datagram`]: sockets over all of them, for programs written against UDP sockets;
//! - [`memory`]: queues for tests; sources and sinks for measuring a pipeline alone.
//!
//! The kernel's super-packets never enter a vector: [`offload`] cuts them into frames with whole checksums, and joins
//! frames that are sent.
//!
//! Frames that a backend receives stay in its memory and are lent to the vector ([`frame`]); they also stay there when they
//! cross from worker to worker ([`crossing`]). The feature `dpdk`
//! adds the module `dpdk`: ports of any of its drivers, and its classifier as a contender in benchmarks.
//!
//! [`poll::Poller`] lets a worker thread sleep until a port has packets or someone wakes it, and
//! [`capture`] writes the packets of reference points to pcapng files.
//!
//! Invariants: nothing on the packet path allocates, locks or logs; ports never block; a packet that
//! the kernel does not take is reported in [`Sent`], never retried for ever.

pub mod af_xdp;
pub mod bpf;
pub mod capture;
pub mod crossing;
pub mod datagram;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod frame;
pub mod interface;
pub mod memif;
pub mod memory;
mod name;
pub mod offload;
pub mod outbox;
pub mod owner;
pub mod peers;
pub mod poll;
pub mod slab;
pub mod stack;
pub mod trunk;
pub mod tun;
pub mod udp;
pub mod vector;
pub mod vlan;
pub mod xdp;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use telemetry::DropReason;

pub use frame::{Frame, FrameMut, HEADROOM, Pool};
pub use peers::Peers;
pub use slab::Slab;
pub use vector::{VECTOR, Vector};

/// How many of the packets given to [`Port::transmit`] were sent, and why the others were not.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Packets taken by the device or socket.
    pub packets: usize,
    /// Octets of these packets.
    pub bytes: usize,
    /// Those of these packets that were copied into a frame of the port's own pool.
    pub copied: usize,
    /// Packets refused because the queue was full.
    pub full: usize,
    /// Packets refused because they exceed the MTU.
    pub too_big: usize,
    /// Packets whose next hop's link-layer address is not known yet.
    pub unresolved: usize,
    /// Packets refused for another reason.
    pub errors: usize,
}

/// A source and sink of packets.
pub trait Port: Send {
    /// Fills `vector` with the packets that are waiting and returns their number: 0 when there are none.
    /// Packets that the vector held before are lost. A UDP port also sets each frame's peer to the sender.
    ///
    /// The port may keep packets that did not fit, of which its descriptor knows nothing: only who has got 0 may sleep.
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize>;

    /// Sends the packets of `vector` at the positions `selected`, in that order. A UDP port sends each to
    /// the peer whose number its frame has ([`FrameMut::send_to`]), else to its peer in the vector, with its traffic
    /// class. The selected packets are used up: a port may change them, or take their memory along
    /// ([`Frame::is_gone`]). Positions outside the vector, packets sent before, and numbers of no peer are errors.
    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent;

    /// Calls `count` with each reason for which packets were lost since the last call without [`Port::transmit`] having
    /// said so, and with their number. What a kernel's socket discards is not among them; what the kernel discards for an
    /// AF_XDP port is.
    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        let _ = count;
    }

    /// Whether packets that [`Port::transmit`] has taken wait for the next call of [`Port::receive`] to be sent: their
    /// owner must not go to sleep for long.
    fn unsent(&self) -> bool {
        false
    }

    /// The owner is about to sleep until [`Port::fd`] is readable. A port that has been told so once need not keep its
    /// descriptor up to date while there is traffic, which costs the kernel work for each packet.
    ///
    /// # Errors
    /// The descriptor cannot be brought up to date: the owner must not rely on it.
    fn before_sleep(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Gives the port the handle that wakes its owner from sleep, for a port that also sends what others hand to it
    /// ([`outbox`]).
    fn wake_with(&mut self, waker: &poll::Waker) {
        let _ = waker;
    }

    /// The pool whose frames the port sends as they are, if it has one. Packets in other frames are copied.
    fn pool(&self) -> Option<Arc<dyn Pool>> {
        None
    }

    /// What a [`poll::Poller`] waits for; `None` for a port without a descriptor.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        (**self).receive(vector)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        (**self).transmit(vector, selected)
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        (**self).losses(count);
    }

    fn unsent(&self) -> bool {
        (**self).unsent()
    }

    fn before_sleep(&mut self) -> io::Result<()> {
        (**self).before_sleep()
    }

    fn wake_with(&mut self, waker: &poll::Waker) {
        (**self).wake_with(waker);
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        (**self).pool()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }
}

/// The pool into which a worker with these ports receives what it has to copy: that of a port of AF_XDP, else one of DPDK;
/// `None` without such ports.
pub fn home(ports: &[Box<dyn Port>]) -> Option<Arc<dyn Pool>> {
    ports.iter().filter_map(|port| port.pool()).min_by_key(|pool| pool.has_mbufs())
}

/// A port whose packets are Ethernet frames, without their checksum: the lower side of the frame stack.
pub trait FramePort: Port {
    /// The interface's address.
    fn mac(&self) -> packet::ethernet::Mac;

    /// Longest payload of a frame: an IP packet with all its headers.
    fn mtu(&self) -> usize;

    /// Fills `vector` with up to `count` packets to be written by [`FrameMut::restore`], in the memory that this port sends
    /// at the least cost; returns how many there are. For generators of load.
    fn draw(&mut self, vector: &mut Vector, count: usize) -> usize {
        vector.refill(count);
        vector.len()
    }
}
