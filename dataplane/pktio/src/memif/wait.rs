//! How a worker sleeps until a memif has packets, or gains or loses its peer.
//!
//! [`Wait::fd`] is readable whenever it may be that [`Port::receive`](crate::Port::receive) has something to do. It becomes
//! unreadable only by calls of `receive` that found nothing: after [`IDLE_CALLS`] of them in a row the peer is asked to
//! ring, or, where the owner says so, when it goes to sleep ([`Port::before_sleep`](crate::Port::before_sleep)). So a worker that polls and finds packets makes no system call, and nor does its peer; and a worker may sleep at any
//! time, as the descriptor is readable until the peer has been asked.
//!
//! The descriptor is an epoll instance with three members:
//! - `attention`, an eventfd of our own: readable while the peer has not been asked, and when the connection has changed;
//! - the bell of the ring. Both processes have it, so it is never read: a read could block. It is watched by its edges;
//! - a timer that asks for one more look after the peer has been asked. A peer that writes its counter and reads the ring's
//!   flags without a barrier in between may not have seen the question, and this side not the packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::timer::{Expiration, TimerSetTimeFlags};
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};

use super::ring::Receiver;
use super::session::Slot;

/// Calls of `receive` without packets after which the peer is asked to ring.
const IDLE_CALLS: u32 = 64;
/// When this side looks once more after it has asked.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

#[derive(Debug)]
pub(super) struct Wait {
    epoll: Epoll,
    timer: TimerFd,
    /// Calls in a row without packets.
    idle: u32,
    /// Whether the peer has been asked to ring.
    asked: bool,
    /// Whether the owner says when it goes to sleep: then the peer is asked at that time only, and the descriptor is right only while
    /// the owner sleeps. So between nodes that poll nobody makes a system call, however long the pauses between packets are.
    owner_tells: bool,
}

impl Wait {
    pub(super) fn new(slot: &Slot) -> io::Result<Wait> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        epoll.add(&slot.attention, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
        let wait = Wait { epoll, timer, idle: 0, asked: false, owner_tells: false };
        let _ = slot.attention.write(1);
        Ok(wait)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Watches the ring of a new connection.
    pub(super) fn watch(&self, receiver: &Receiver) {
        // Without it the timer and later calls still find packets.
        let edges = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        let _ = self.epoll.add(receiver.ring().bell(), edges);
    }

    /// Ends that. The peer has the eventfd too, so that closing it is not enough.
    pub(super) fn forget(&self, receiver: &Receiver) {
        let _ = self.epoll.delete(receiver.ring().bell());
    }

    /// There were packets, or the connection has changed: the peer need not ring, and `receive` should be called again.
    #[inline]
    pub(super) fn busy(&mut self, slot: &Slot, receiver: Option<&Receiver>) {
        self.idle = 0;
        if self.asked {
            self.stop_asking(slot, receiver);
        }
    }

    /// The owner goes to sleep until the descriptor is readable, in the connection `generation`.
    pub(super) fn before_sleep(&mut self, slot: &Slot, generation: u64, receiver: Option<&Receiver>) {
        self.owner_tells = true;
        self.ask(slot, generation, receiver);
    }

    #[cold]
    fn stop_asking(&mut self, slot: &Slot, receiver: Option<&Receiver>) {
        if let Some(receiver) = receiver {
            receiver.mask();
        }
        self.asked = false;
        if !self.owner_tells {
            let _ = slot.attention.write(1);
        }
    }

    /// There was nothing in the connection `generation`.
    #[inline]
    pub(super) fn idle(&mut self, slot: &Slot, generation: u64, receiver: Option<&Receiver>) {
        self.idle += 1;
        if self.idle >= IDLE_CALLS && !self.owner_tells {
            self.idle = 0;
            self.ask(slot, generation, receiver);
        }
    }

    fn ask(&mut self, slot: &Slot, generation: u64, receiver: Option<&Receiver>) {
        // Events of before are over. Later ones are not: they follow the question.
        let _ = slot.attention.read();
        let _ = self.epoll.wait(&mut [EpollEvent::empty(); 4], EpollTimeout::ZERO);
        let quiet = receiver.is_none_or(Receiver::unmask);
        if !quiet || slot.generation() != generation {
            self.stop_asking(slot, receiver);
            // Whatever the owner says: it must not sleep now.
            let _ = slot.attention.write(1);
            return;
        }
        if !self.asked && receiver.is_some() {
            let once = Expiration::OneShot(LOOK_AGAIN.into());
            let _ = self.timer.set(once, TimerSetTimeFlags::empty());
        }
        self.asked = true;
    }
}
