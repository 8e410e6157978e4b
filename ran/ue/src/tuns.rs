//! The TUN devices of all sessions as one port.
//!
//! Packets that it receives have the number of their session as peer, and packets that it sends go to the device of the session
//! that is their peer. [`Devices`], for any thread, attaches and detaches devices. The port reads only the devices that
//! have packets, in turn.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use pktio::poll::{Poller, Waker};
use pktio::tun::TunPort;
use pktio::{Port, Sent, Vector};
use telemetry::DropReason;

use crate::control::SessionId;

/// The peer that stands for a session.
#[inline]
pub(crate) fn peer_of(session: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from_bits(session), 1))
}

/// The session for which a peer stands.
#[inline]
pub(crate) fn session_of(peer: SocketAddr) -> Option<u32> {
    match peer {
        SocketAddr::V4(peer) => Some(peer.ip().to_bits()),
        SocketAddr::V6(_) => None,
    }
}

/// Stack of a thread that only closes a descriptor.
const CLOSER_STACK: usize = 64 * 1024;

enum Change {
    Attach(u32, TunPort),
    Detach(u32),
}

/// The devices as one port; see the module.
pub struct Tuns {
    devices: HashMap<u32, TunPort>,
    poller: Poller,
    /// Sessions whose devices have packets.
    ready: VecDeque<u32>,
    changes: Receiver<Change>,
    waker: Arc<Mutex<Option<Waker>>>,
    /// Errors of devices since the last call of [`Port::losses`].
    errors: usize,
}

/// Gives sessions their devices, and takes them back.
#[derive(Debug, Clone)]
pub struct Devices {
    changes: Sender<Change>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Tuns {
    /// A port without devices.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new() -> io::Result<(Tuns, Devices)> {
        let (sender, changes) = mpsc::channel();
        let waker = Arc::<Mutex<Option<Waker>>>::default();
        let devices = Devices { changes: sender, waker: Arc::clone(&waker) };
        let tuns = Tuns {
            devices: HashMap::new(),
            poller: Poller::new()?,
            ready: VecDeque::new(),
            changes,
            waker,
            errors: 0,
        };
        Ok((tuns, devices))
    }

    /// Executes what [`Devices`] has asked for.
    fn obey(&mut self) {
        while let Ok(change) = self.changes.try_recv() {
            match change {
                Change::Attach(session, device) => {
                    self.detach(session);
                    let added = device.fd().map(|fd| self.poller.add(fd, session.into()));
                    if let Some(Err(error)) = added {
                        tracing::error!(%error, device = device.name(), "cannot wait for a TUN device");
                        self.errors += 1;
                    }
                    self.devices.insert(session, device);
                }
                Change::Detach(session) => self.detach(session),
            }
        }
    }

    fn detach(&mut self, session: u32) {
        if let Some(device) = self.devices.remove(&session)
            && let Some(fd) = device.fd()
        {
            // It may not have been added. A device that is shared stays open, and would stay in the poller.
            let _ = self.poller.remove(fd);
            // The kernel takes some 30 ms to remove a device, in which the worker would move no packets. If the thread cannot start,
            // the device is closed here.
            let closer = std::thread::Builder::new().name("ue-tun".into()).stack_size(CLOSER_STACK);
            let _ = closer.spawn(move || drop(device));
        }
    }

    /// A device cannot be read: without this, it alone would keep the worker awake.
    fn give_up(&mut self, session: u32, error: &io::Error) {
        if let Some(device) = self.devices.get(&session) {
            tracing::warn!(%error, device = device.name(), "a TUN device is not served any more");
        }
        self.errors += 1;
        self.detach(session);
    }
}

impl Port for Tuns {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        self.obey();
        if self.ready.is_empty() {
            let ready = &mut self.ready;
            self.poller.wait(Some(0), |session| ready.push_back(session as u32))?;
        }
        while let Some(session) = self.ready.pop_front() {
            let Some(device) = self.devices.get_mut(&session) else { continue };
            match device.receive(vector) {
                Ok(0) => {}
                Ok(received) => {
                    // The others have their turn before this one has its next.
                    self.ready.push_back(session);
                    vector.frames_mut().for_each(|frame| *frame.peer = peer_of(session));
                    return Ok(received);
                }
                Err(error) => self.give_up(session, &error),
            }
        }
        vector.clear();
        Ok(0)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        self.obey();
        let mut sent = Sent::default();
        let peers = vector.peers().to_vec();
        let session = |at: &u16| peers.get(usize::from(*at)).and_then(|peer| session_of(*peer));
        for run in selected.chunk_by(|a, b| session(a) == session(b)) {
            let device = run.first().and_then(session).and_then(|session| self.devices.get_mut(&session));
            let Some(device) = device else {
                sent.errors += run.len();
                continue;
            };
            let of_run = device.transmit(vector, run);
            sent.packets += of_run.packets;
            sent.bytes += of_run.bytes;
            sent.copied += of_run.copied;
            sent.full += of_run.full;
            sent.too_big += of_run.too_big;
            sent.unresolved += of_run.unresolved;
            sent.errors += of_run.errors;
        }
        sent
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        self.devices.values_mut().for_each(|device| device.losses(count));
        if self.errors > 0 {
            count(DropReason::RxError, std::mem::take(&mut self.errors));
        }
    }

    fn wake_with(&mut self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poller.as_fd())
    }
}

impl Devices {
    /// Lets the packets of a session come from a device and go to it.
    pub fn attach(&self, session: SessionId, device: TunPort) {
        self.ask(Change::Attach(session.0, device));
    }

    /// Lets the device of a session rest. Without other owners it disappears.
    pub fn detach(&self, session: SessionId) {
        self.ask(Change::Detach(session.0));
    }

    fn ask(&self, change: Change) {
        // Without a port there is no device to change.
        let _ = self.changes.send(change);
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }
}
