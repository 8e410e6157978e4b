//! What a socket has received and the program has not: a queue, and a descriptor that is readable while it holds something.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::queue::{Datagram, Queue};
use crate::Vector;

/// The receiving side of a socket. The lock is held for one datagram, or one vector of them.
#[derive(Debug)]
pub struct Inbox {
    state: Mutex<State>,
    /// Its count is not 0 if and only if datagrams wait, or the device has failed. Changed under the lock.
    event: EventFd,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    overflow: u64,
    failed: bool,
}

impl Inbox {
    pub fn new(capacity: usize, longest: usize) -> io::Result<Inbox> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let state = State { queue: Queue::new(capacity, longest), overflow: 0, failed: false };
        Ok(Inbox { state: Mutex::new(state), event })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the datagrams of `vector` at the positions for which `which` says so; those for which there is no room are counted.
    pub fn put(&self, vector: &Vector, which: impl Fn(usize) -> bool) {
        let state = &mut *self.lock();
        let was_empty = state.queue.is_empty();
        let own = || (0..vector.len()).filter(|at| which(*at));
        let taken = state.queue.put(own().map(|at| Datagram {
            payload: vector.frames()[at].packet(),
            peer: vector.peer(at),
            from: 0,
            tos: 0,
        }));
        state.overflow += (own().count() - taken) as u64;
        if was_empty && taken > 0 {
            // The count is 0, so that it cannot overflow.
            let _ = self.event.write(1);
        }
    }

    /// The result of a call that has taken something, or nothing.
    fn taken<R>(&self, state: &State, taken: Option<R>) -> io::Result<R> {
        match taken {
            Some(taken) => {
                if state.queue.is_empty() && !state.failed {
                    let _ = self.event.read();
                }
                Ok(taken)
            }
            None if state.failed => Err(io::ErrorKind::BrokenPipe.into()),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Takes a datagram.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let state = &mut *self.lock();
        let taken = state.queue.take(|payload, peer| {
            let length = payload.len().min(buffer.len());
            buffer[..length].copy_from_slice(&payload[..length]);
            (length, peer)
        });
        self.taken(state, taken)
    }

    /// Takes as many datagrams as the vector has room for.
    pub fn receive_vector(&self, vector: &mut Vector) -> io::Result<usize> {
        // Frames of this queue that the vector holds are free again, whether or not others come.
        vector.clear();
        let state = &mut *self.lock();
        let taken = (!state.queue.is_empty()).then(|| state.queue.move_to(vector));
        self.taken(state, taken)
    }

    /// Nothing will come any more.
    pub fn fail(&self) {
        let state = &mut *self.lock();
        if !std::mem::replace(&mut state.failed, true) && state.queue.is_empty() {
            let _ = self.event.write(1);
        }
    }

    pub fn overflow(&self) -> u64 {
        self.lock().overflow
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::Poller;

    #[test]
    fn the_descriptor_is_readable_if_and_only_if_a_datagram_waits() {
        let inbox = Inbox::new(4, 64).unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(inbox.as_fd(), 1).unwrap();
        let mut readable = move || {
            let mut readable = false;
            poller.wait(Some(0), |_| readable = true).unwrap();
            readable
        };
        let peer = "192.0.2.1:7".parse().unwrap();
        let mut vector = Vector::new(8, 64);
        (0..6u8).for_each(|n| assert!(vector.push(&[n], peer)));
        assert!(!readable());
        inbox.put(&vector, |at| at % 2 == 1);
        assert!(readable() && readable());
        for (left, octet) in [(2, 1), (1, 3), (0, 5)] {
            let mut buffer = [0; 2];
            assert_eq!(inbox.receive(&mut buffer).unwrap(), (1, peer));
            assert_eq!((buffer[0], readable()), (octet, left > 0));
        }
        assert_eq!(inbox.receive(&mut []).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        inbox.put(&vector, |_| true);
        assert_eq!(inbox.overflow(), 2);
        let mut into = Vector::new(3, 1);
        assert_eq!((inbox.receive_vector(&mut into).unwrap(), readable()), (3, true));
        assert_eq!((inbox.receive_vector(&mut into).unwrap(), readable()), (1, false));
        assert_eq!(inbox.receive_vector(&mut into).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        inbox.put(&vector, |at| at == 0);
        inbox.fail();
        assert_eq!(inbox.receive(&mut []).unwrap(), (0, peer), "what has come is still there");
        assert_eq!(inbox.receive(&mut []).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(readable());
    }
}
