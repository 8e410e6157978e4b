//! The thread of a device: moves datagrams between the device's port and the sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rcu::Sleep;
use telemetry::DropReason;

use super::inbox::Inbox;
use super::queue::{Datagram, Queue};
use super::{DeviceError, Options};
use crate::interface::{self, Interface, Setup, Traffic};
use crate::poll::{self, DEAF_SPIN, NAP, Patience, Poller, Waker};
use crate::stack::datagram::Endpoints;
use crate::vlan::LONGEST_HEADER;
use crate::{Port, Sent, VECTOR, Vector};

/// Datagrams of all sockets that wait for the device's thread.
const OUTGOING: usize = 4096;
/// Most vectors taken from the device before the sockets get their turn, and the other way round.
const BUDGET: usize = 16;
/// Sleep while the port has packets that it could not send.
const RETRY: Duration = Duration::from_millis(1);
/// Least time between two errors of the device, such as that it is gone; and when it is tried again if nothing happens.
const AFTER_ERROR: Duration = Duration::from_millis(20);
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// Rounds between two readings of the device's counts while there is traffic.
const COUNT_EVERY: u32 = 1024;
/// UDP and the shorter of the IP headers.
const HEADERS: usize = 28;

/// What a device's sockets and its thread share.
#[derive(Debug)]
struct Shared {
    endpoints: Arc<Endpoints>,
    /// By number of the endpoint.
    inboxes: Mutex<Vec<Option<Arc<Inbox>>>>,
    outgoing: Mutex<Outgoing>,
    /// Datagrams and closed endpoints in `outgoing`; written under its lock.
    pending: AtomicUsize,
    losses: Mutex<Vec<(DropReason, u64)>>,
    sleep: Sleep,
    waker: Waker,
    stop: AtomicBool,
    failed: AtomicBool,
}

#[derive(Debug)]
struct Outgoing {
    queue: Queue,
    /// Endpoints that were closed. Their numbers are free when the queue has been empty since.
    closed: Vec<u16>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device with its thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    /// Longest packet of the link, and datagrams that wait in a socket.
    mtu: usize,
    queue: usize,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Opens the device in the calling thread's network namespace.
    pub fn start(options: &Options) -> Result<Engine, DeviceError> {
        let failed = |error| DeviceError::Thread { name: options.name.clone(), error };
        let endpoints = Arc::new(Endpoints::default());
        let interface = Interface {
            place: options.name.clone(),
            point: "udp",
            link: options.link.clone(),
            traffic: Traffic::Datagrams(Arc::clone(&endpoints)),
        };
        let taps = options.taps.as_ref();
        let setup = Setup { section: &options.name, workers: Some(1), dpdk: &options.dpdk, taps };
        let opened = interface::open(&setup, vec![interface])?;
        let port = opened.workers.into_iter().flat_map(|worker| worker.ports).next();
        let port = port.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let mtu = longest(options).map_err(failed)?;
        Engine::start_on(options, port, endpoints, mtu).map_err(failed)
    }

    /// Starts the thread of a port that serves `endpoints`.
    fn start_on(
        options: &Options,
        mut port: Box<dyn Port>,
        endpoints: Arc<Endpoints>,
        mtu: usize,
    ) -> io::Result<Engine> {
        let poller = Poller::new()?;
        if let Some(fd) = port.fd() {
            poller.add(fd, 0)?;
        }
        port.wake_with(&poller.waker());
        let outgoing = Outgoing { queue: Queue::new(OUTGOING, mtu), closed: Vec::new() };
        let shared = Arc::new(Shared {
            endpoints,
            inboxes: Mutex::default(),
            outgoing: Mutex::new(outgoing),
            pending: AtomicUsize::new(0),
            losses: Mutex::default(),
            sleep: Sleep::default(),
            waker: poller.waker(),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let run = Run {
            shared: Arc::clone(&shared),
            deaf: port.fd().is_none(),
            failing: false,
            port,
            poller,
            patience: Patience::new(options.poll),
            inboxes: (0, Vec::new()),
            received: Vector::new(VECTOR, mtu + LONGEST_HEADER),
            sending: Vector::new(VECTOR, 1),
        };
        let (report, pinned) = mpsc::channel();
        let core = options.core;
        let thread = poll::spawn(&options.name, move || {
            let pin = core.map_or(Ok(()), poll::stay_on);
            let may_run = pin.is_ok();
            let _ = report.send(pin);
            if may_run {
                run.run();
            }
        })?;
        let engine = Engine { shared, mtu, queue: options.queue, thread: Some(thread) };
        pinned.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(engine)
    }

    /// Binds an endpoint: its number, address and inbox.
    pub fn bind(&self, local: SocketAddr) -> io::Result<(u16, SocketAddr, Arc<Inbox>)> {
        let inbox = Arc::new(Inbox::new(self.queue, self.mtu - HEADERS)?);
        // Nothing is received for the number before its inbox is there.
        let mut inboxes = lock(&self.shared.inboxes);
        let (number, local) = self.shared.endpoints.bind(local)?;
        let at = usize::from(number);
        if inboxes.len() <= at {
            inboxes.resize(at + 1, None);
        }
        inboxes[at] = Some(Arc::clone(&inbox));
        drop(inboxes);
        if self.shared.failed.load(Ordering::Acquire) {
            inbox.fail();
        }
        Ok((number, local, inbox))
    }

    /// Ends an endpoint.
    pub fn close(&self, local: SocketAddr, number: u16) {
        if let Some(inbox) = lock(&self.shared.inboxes).get_mut(usize::from(number)) {
            *inbox = None;
        }
        self.shared.endpoints.close(local);
        self.change(|outgoing| outgoing.closed.push(number));
    }

    /// Changes what waits for the thread, and wakes it.
    fn change<R>(&self, change: impl FnOnce(&mut Outgoing) -> R) -> R {
        let outgoing = &mut *lock(&self.shared.outgoing);
        let result = change(outgoing);
        self.shared.pending.store(outgoing.queue.len() + outgoing.closed.len(), Ordering::Release);
        if self.shared.sleep.needs_waking() {
            self.shared.waker.wake();
        }
        result
    }

    /// Sends a datagram from an endpoint.
    pub fn send(&self, from: u16, payload: &[u8], peer: SocketAddr, tos: u8) -> io::Result<usize> {
        if payload.len() > self.longest(peer) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        if self.shared.failed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.change(|outgoing| outgoing.queue.put([Datagram { payload, peer, from, tos }].into_iter()))
        {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(payload.len()),
        }
    }

    /// Longest datagram to a peer.
    fn longest(&self, peer: SocketAddr) -> usize {
        self.mtu - if peer.is_ipv4() { HEADERS } else { HEADERS + 20 }
    }

    /// Sends packets of a vector from an endpoint.
    pub fn send_vector(&self, from: u16, local: SocketAddr, vector: &Vector, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        if self.shared.failed.load(Ordering::Acquire) {
            return Sent { errors: selected.len(), ..sent };
        }
        self.change(|outgoing| {
            for &position in selected {
                let Some(frame) = vector.sendable(position) else {
                    sent.errors += 1;
                    continue;
                };
                let (payload, peer) = (frame.packet(), vector.peer(position.into()));
                let datagram = Datagram { payload, peer, from, tos: frame.tos() };
                if local.is_ipv4() != peer.is_ipv4() || peer.ip().is_unspecified() || peer.port() == 0 {
                    sent.errors += 1;
                } else if payload.len() > self.longest(peer) {
                    sent.too_big += 1;
                } else if outgoing.queue.put([datagram].into_iter()) == 0 {
                    sent.full += 1;
                } else {
                    sent.packets += 1;
                    sent.copied += 1;
                    sent.bytes += payload.len();
                }
            }
        });
        sent
    }

    pub fn losses(&self) -> Vec<(DropReason, u64)> {
        lock(&self.shared.losses).clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that has failed has said so.
            let _ = thread.join();
        }
    }
}

/// The longest packet of the link.
fn longest(options: &Options) -> io::Result<usize> {
    let link = &options.link;
    if link.backend == interface::Backend::AfXdp {
        return link.mtu_on(&crate::af_xdp::device::Device::find(link.device())?);
    }
    Ok(link.link_mtu().into())
}

/// Tells the sockets when the thread has ended, by a panic or because it was told to.
impl Drop for Run {
    fn drop(&mut self) {
        self.shared.failed.store(true, Ordering::Release);
        lock(&self.shared.inboxes).iter().flatten().for_each(|inbox| inbox.fail());
    }
}

struct Run {
    shared: Arc<Shared>,
    port: Box<dyn Port>,
    /// Whether the port cannot wake this thread.
    deaf: bool,
    /// Whether the port could not receive when it was tried last.
    failing: bool,
    poller: Poller,
    patience: Patience,
    /// A copy of the list, and the version of the endpoints that it belongs to.
    inboxes: (u64, Vec<Option<Arc<Inbox>>>),
    received: Vector,
    sending: Vector,
}

impl Run {
    fn run(mut self) {
        if self.deaf
            && let Err(error) = poll::nap_precisely()
        {
            tracing::warn!(%error, "this thread's naps are some 50 microseconds longer than meant");
        }
        let (mut last_ns, mut woken_ns) = (net::time::now_ns(), None::<u64>);
        let mut rounds = 0u32;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let sent = self.send_outgoing();
            let received = match self.receive() {
                Ok(received) => {
                    self.failing = false;
                    received
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::error!(%error, "a device cannot receive; it is tried again and again");
                    }
                    net::time::sleep_thread(AFTER_ERROR);
                    false
                }
            };
            let now_ns = net::time::now_ns();
            rounds += 1;
            if sent || received {
                if let Some(woken_ns) = woken_ns.take() {
                    self.patience.slept(Duration::from_nanos(woken_ns.saturating_sub(last_ns)));
                }
                last_ns = now_ns;
                if rounds >= COUNT_EVERY {
                    (rounds, _) = (0, self.count_losses());
                }
                continue;
            }
            let poll = if self.deaf { DEAF_SPIN.max(self.patience.most()) } else { self.patience.now() };
            if Duration::from_nanos(now_ns.saturating_sub(last_ns)) < poll {
                std::hint::spin_loop();
                continue;
            }
            self.count_losses();
            if let Err(error) = self.sleep() {
                tracing::error!(%error, "a device's thread cannot wait for packets; it looks for them");
                net::time::sleep_thread(RETRY);
            }
            woken_ns = Some(net::time::now_ns());
        }
        // What the sockets have sent leaves.
        while self.send_outgoing() {}
        let _ = self.port.receive(&mut self.received);
    }

    /// Sleeps until the port has packets, or sockets have sent some.
    fn sleep(&mut self) -> io::Result<()> {
        self.port.before_sleep()?;
        self.shared.sleep.begin();
        let at_most = if self.shared.pending.load(Ordering::Relaxed) > 0 {
            Some(Duration::ZERO)
        } else if self.deaf {
            Some(NAP)
        } else if self.port.unsent() {
            Some(RETRY)
        } else {
            self.failing.then_some(TRY_AGAIN)
        };
        let slept = match at_most {
            Some(at_most) => self.poller.wait_for(at_most, |_| ()).map(drop),
            None => self.poller.wait(None, |_| ()).map(drop),
        };
        self.shared.sleep.end();
        slept
    }

    /// Sends what waits; whether there was something.
    fn send_outgoing(&mut self) -> bool {
        let mut busy = false;
        for _ in 0..BUDGET {
            if self.shared.pending.load(Ordering::Acquire) == 0 {
                break;
            }
            busy = true;
            self.sending.clear();
            let (count, closed) = self.shared.next(&mut self.sending);
            for number in closed {
                self.shared.endpoints.release(number);
            }
            self.transmit(count);
        }
        busy
    }

    fn transmit(&mut self, count: usize) {
        let mut selected = [0u16; VECTOR];
        for (position, number) in selected.iter_mut().zip(0..) {
            *position = number;
        }
        let sent = self.port.transmit(&mut self.sending, &selected[..count]);
        self.sending.clear();
        for (lost, reason) in [
            (sent.full, DropReason::TxQueueFull),
            (sent.too_big, DropReason::TooBig),
            (sent.unresolved, DropReason::NeighbourUnresolved),
            (sent.errors, DropReason::TxError),
        ] {
            self.shared.lost(reason, lost);
        }
    }

    /// Gives the sockets what has come; whether there was something.
    fn receive(&mut self) -> io::Result<bool> {
        let mut busy = false;
        for _ in 0..BUDGET {
            if self.port.receive(&mut self.received)? == 0 {
                break;
            }
            busy = true;
            self.distribute();
            self.received.clear();
        }
        Ok(busy)
    }

    fn distribute(&mut self) {
        let version = self.shared.endpoints.version();
        if self.inboxes.0 != version {
            self.inboxes = (version, lock(&self.shared.inboxes).clone());
        }
        let vector = &self.received;
        let number = |at: usize| vector.frames()[at].to();
        let mut done = [false; VECTOR];
        for at in 0..vector.len() {
            if done[at] {
                continue;
            }
            let own = number(at);
            (at..vector.len()).filter(|other| number(*other) == own).for_each(|other| done[other] = true);
            // A socket that has just been closed has none.
            if let Some(Some(inbox)) = self.inboxes.1.get(usize::from(own)) {
                inbox.put(vector, |other| number(other) == own);
            }
        }
    }

    fn count_losses(&mut self) {
        let shared = &self.shared;
        self.port.losses(&mut |reason, count| shared.lost(reason, count));
    }
}

impl Shared {
    /// Moves datagrams to be sent into `vector`; their number. When there are none: the endpoints that were closed before.
    fn next(&self, vector: &mut Vector) -> (usize, Vec<u16>) {
        let outgoing = &mut *lock(&self.outgoing);
        let count = outgoing.queue.move_to(vector);
        let closed = if count == 0 { std::mem::take(&mut outgoing.closed) } else { Vec::new() };
        self.pending.store(outgoing.queue.len() + outgoing.closed.len(), Ordering::Release);
        (count, closed)
    }

    fn lost(&self, reason: DropReason, count: usize) {
        if count == 0 {
            return;
        }
        let losses = &mut *lock(&self.losses);
        match losses.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, total)) => *total += count as u64,
            None => losses.push((reason, count as u64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port with a defect.
    struct Defective;

    impl Port for Defective {
        fn receive(&mut self, _: &mut Vector) -> io::Result<usize> {
            Ok(0)
        }

        fn transmit(&mut self, _: &mut Vector, _: &[u16]) -> Sent {
            panic!("as a defect would");
        }

        fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }
    }

    #[test]
    fn sockets_are_told_when_the_device_fails() {
        let engine =
            Engine::start_on(&Options::default(), Box::new(Defective), Arc::default(), 1500).unwrap();
        let local = "10.0.0.1:7".parse().unwrap();
        let (number, _, inbox) = engine.bind(local).unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(inbox.as_fd(), 1).unwrap();
        assert_eq!(inbox.receive(&mut []).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let peer = "10.0.0.2:7".parse().unwrap();
        engine.send(number, b"x", peer, 0).unwrap();
        let mut readable = false;
        poller.wait(Some(10_000), |_| readable = true).unwrap();
        assert!(readable);
        assert_eq!(inbox.receive(&mut []).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(engine.send(number, b"x", peer, 0).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let mut vector = Vector::new(1, 10);
        assert!(vector.push(b"x", peer));
        assert_eq!(engine.send_vector(number, local, &vector, &[0]).errors, 1);
        let (.., later) = engine.bind("10.0.0.1:8".parse().unwrap()).unwrap();
        assert_eq!(later.receive(&mut []).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
