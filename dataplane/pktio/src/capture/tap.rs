//! Frames of ports that go past the kernel (AF_XDP, DPDK), which no packet socket sees: copied on their way through the
//! port.
//!
//! A [`Tapped`] port copies what it receives, and what it is given to send, into a bounded queue, which the thread of the
//! capture empties. A frame for which there is no room is counted as lost; the worker never waits. Without a tap a port
//! pays a branch per batch. Packets that the kernel sends on N6, while it asks for a neighbour, are not shown.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use nix::sys::eventfd::{EfdFlags, EventFd};
use packet::ethernet::Mac;
use telemetry::DropReason;

use super::wall_clock_ns;
use crate::{FramePort, Pool, Port, Sent, Vector};

/// Frames that wait for the capture's thread, of all taps.
const QUEUE: usize = 32_768;

/// Where a tap is.
#[derive(Debug)]
pub(super) struct Place {
    /// In place of the interface's number; negative, so that it is no interface's.
    pub(super) number: i32,
    /// Name of the reference point.
    pub(super) point: String,
    /// Name of the device.
    pub(super) device: String,
}

/// A frame on its way to the capture's thread.
pub(super) struct Frame {
    pub(super) place: Arc<Place>,
    pub(super) timestamp_ns: u64,
    pub(super) bytes: Box<[u8]>,
}

/// What the taps and the capture's thread share.
#[derive(Debug)]
struct Shared {
    /// Tells the thread that there are frames.
    event: EventFd,
    lost: AtomicU64,
    next: AtomicI32,
}

/// Makes taps for the ports of a process, all of one capture.
#[derive(Clone, Debug)]
pub struct Taps {
    shared: Arc<Shared>,
    queue: SyncSender<Frame>,
}

/// The other end, in the capture's thread.
pub(super) struct Frames {
    shared: Arc<Shared>,
    queue: Receiver<Frame>,
}

pub(super) fn taps() -> io::Result<(Taps, Frames)> {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
    let shared = Arc::new(Shared { event, lost: AtomicU64::new(0), next: AtomicI32::new(-1) });
    let (sender, queue) = sync_channel(QUEUE);
    Ok((Taps { shared: Arc::clone(&shared), queue: sender }, Frames { shared, queue }))
}

impl Taps {
    /// A tap for the frames of `device`, which belong to the reference point `point`.
    pub fn tap(&self, point: &str, device: &str) -> Tap {
        let number = self.shared.next.fetch_sub(1, Relaxed);
        let place = Place { number, point: point.to_owned(), device: device.to_owned() };
        Tap { shared: Arc::clone(&self.shared), queue: self.queue.clone(), place: Arc::new(place) }
    }
}

impl Frames {
    /// What becomes readable when there are frames.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// Calls `each` with the frames that wait, as many as the queue holds at most.
    pub(super) fn take(&self, mut each: impl FnMut(Frame)) {
        // Before the frames are taken: who adds one behind this wakes the thread again.
        let _ = self.shared.event.read();
        self.queue.try_iter().take(QUEUE).for_each(&mut each);
    }

    /// Frames that there was no room for.
    pub(super) fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }
}

/// Copies frames of one device for the capture.
#[derive(Clone, Debug)]
pub struct Tap {
    shared: Arc<Shared>,
    queue: SyncSender<Frame>,
    place: Arc<Place>,
}

impl Tap {
    #[cold]
    fn copy<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) {
        let timestamp_ns = wall_clock_ns();
        for bytes in frames {
            let frame = Frame { place: Arc::clone(&self.place), timestamp_ns, bytes: bytes.into() };
            if let Err(TrySendError::Full(_)) = self.queue.try_send(frame) {
                self.shared.lost.fetch_add(1, Relaxed);
            }
        }
        // The only error is a counter about to overflow, which nobody has read for long: the thread is awake.
        let _ = self.shared.event.write(1);
    }
}

/// A port whose frames are copied for a capture, if there is one.
#[derive(Debug)]
pub struct Tapped<P> {
    port: P,
    tap: Option<Tap>,
}

impl<P: FramePort> Tapped<P> {
    /// Puts the tap, if there is one, on a port.
    pub fn new(port: P, tap: Option<Tap>) -> Tapped<P> {
        Tapped { port, tap }
    }
}

impl<P: FramePort> Port for Tapped<P> {
    #[inline]
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        let received = self.port.receive(batch)?;
        if let Some(tap) = self.tap.as_ref().filter(|_| received > 0) {
            tap.copy(batch.frames().iter().map(crate::Frame::packet));
        }
        Ok(received)
    }

    /// What the port refuses is in the capture too, as with a packet socket.
    #[inline]
    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        if let Some(tap) = self.tap.as_ref().filter(|_| !selected.is_empty()) {
            let buffers = batch.frames();
            let given = selected.iter().filter_map(|at| buffers.get(usize::from(*at)));
            tap.copy(given.filter(|buffer| !buffer.is_gone()).map(crate::Frame::packet));
        }
        self.port.transmit(batch, selected)
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        self.port.losses(count);
    }

    fn unsent(&self) -> bool {
        self.port.unsent()
    }

    fn before_sleep(&mut self) -> io::Result<()> {
        self.port.before_sleep()
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        self.port.pool()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }
}

impl<P: FramePort> FramePort for Tapped<P> {
    fn mac(&self) -> Mac {
        self.port.mac()
    }

    fn mtu(&self) -> usize {
        self.port.mtu()
    }

    #[inline]
    fn draw(&mut self, batch: &mut Vector, count: usize) -> usize {
        self.port.draw(batch, count)
    }
}
