//! Workers with a small graph between memory ports: order, panics, waking.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::time;
use path::{Graph, Ports, Worker};
use pktio::memory::{self, MemoryPort, Wire};
use pktio::poll::Waker;
use pktio::{Pool, Port, Sent, Slab, VECTOR, Vector};

const PACKET: usize = 256;

/// Sends what comes from interface 0 to interface 1 and the other way round, with a vector of copies that it makes itself.
/// Panics at packets that begin with a 0, wherever it is then.
struct Crossing {
    home: Arc<dyn Pool>,
    copies: Vector,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    lost: AtomicUsize,
    turns: AtomicUsize,
    waker: Mutex<Option<Waker>>,
    /// Something to do at this time, and when it was done.
    due_ns: Mutex<Option<u64>>,
    done_ns: Mutex<Option<u64>>,
}

impl Graph for Crossing {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, _: u64, ports: &mut Ports) {
        self.copies.clear();
        for at in 0..vector.len() {
            let frame = &vector.frames()[at];
            assert_ne!(frame.packet()[0], 0, "a test's defect");
            self.copies.push(frame.packet(), vector.peer(at));
        }
        let all: Vec<u16> = (0..vector.len() as u16).collect();
        ports[1 - input].transmit(vector, &all);
    }

    fn turn(&mut self, now_ns: u64, _: &mut Ports) -> Option<u64> {
        self.seen.turns.fetch_add(1, Relaxed);
        let mut due = self.seen.due_ns.lock().unwrap();
        if due.is_some_and(|due_ns| due_ns <= now_ns) {
            *due = None;
            *self.seen.done_ns.lock().unwrap() = Some(now_ns);
        }
        *due
    }

    fn recover(&mut self, lost: usize) {
        self.seen.lost.fetch_add(lost, Relaxed);
    }

    fn wake_with(&mut self, waker: Waker) {
        *self.seen.waker.lock().unwrap() = Some(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        ["left", "right"][number]
    }
}

/// A port with frames of its own, into which its worker receives.
struct Device {
    port: MemoryPort,
    pool: Arc<dyn Pool>,
}

impl Port for Device {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        self.port.receive(vector)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        self.port.transmit(vector, selected)
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        Some(Arc::clone(&self.pool))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct World {
    slab: Arc<Slab>,
    /// The pool of the right port.
    device: Arc<Slab>,
    seen: Arc<Seen>,
    wires: [Wire; 2],
    worker: Worker,
}

fn peer() -> SocketAddr {
    "192.0.2.1:2152".parse().unwrap()
}

impl World {
    fn new() -> World {
        let (left, left_wire) = memory::pair(1 << 20);
        let (right, right_wire) = memory::pair(1 << 20);
        let (slab, seen) = (Slab::new(3 * VECTOR, PACKET), Arc::<Seen>::default());
        let device = Slab::new(VECTOR, PACKET);
        let home: Arc<dyn Pool> = Arc::clone(&slab) as Arc<dyn Pool>;
        let graph = Crossing { copies: Vector::of(&home), home, seen: Arc::clone(&seen) };
        let pool = Arc::clone(&device) as Arc<dyn Pool>;
        let ports: Ports = vec![Box::new(left), Box::new(Device { port: right, pool })];
        let worker = Worker::start("crossing", graph, ports, vec![0, 1], Duration::from_micros(50)).unwrap();
        World { slab, device, seen, wires: [left_wire, right_wire], worker }
    }

    /// Ends the worker, which received into the device's frames; all have come back.
    fn assert_no_frame_is_lost(&mut self) {
        assert!(self.device.free_chunks() < VECTOR, "it receives into the device's frames");
        self.worker.stop();
        assert_eq!((self.slab.free_chunks(), self.device.free_chunks()), (3 * VECTOR, VECTOR));
    }

    /// Takes packets from a wire until there are `count`.
    fn take(&self, wire: usize, count: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let deadline = time::now_std() + Duration::from_secs(20);
        while all.len() < count && time::now_std() < deadline {
            all.extend(self.wires[wire].take().into_iter().map(|(packet, _)| packet));
        }
        all
    }
}

#[test]
fn packets_cross_in_order_and_all_frames_return() {
    let mut world = World::new();
    let packet = |n: usize| vec![1 + (n % 250) as u8; 1 + n % PACKET];
    for n in 0..5000 {
        world.wires[n % 2].inject(&packet(n), peer());
    }
    for wire in 0..2 {
        let expected: Vec<_> = (0..5000).filter(|n| n % 2 != wire).map(packet).collect();
        assert_eq!(world.take(wire, 2500), expected);
    }
    world.assert_no_frame_is_lost();
}

/// The vector with the packet is lost, with what was received before it in the same vector; no frame is, and no other
/// packet.
#[test]
fn a_thousand_panics_cost_their_vectors_and_no_frame() {
    // The panics are meant; their messages would be a thousand.
    std::panic::set_hook(Box::new(|_| {}));
    let mut world = World::new();
    for n in 0..1000usize {
        for _ in 0..n % 3 {
            world.wires[n % 2].inject(&[7; 9], peer());
        }
        let before = world.seen.lost.load(Relaxed);
        world.wires[n % 2].inject(&[0; 5], peer());
        let deadline = time::now_std() + Duration::from_secs(20);
        while world.seen.lost.load(Relaxed) == before && time::now_std() < deadline {
            std::hint::spin_loop();
        }
        assert!(world.seen.lost.load(Relaxed) > before, "panic {n}");
    }
    world.wires[0].inject(&[8; 3], peer());
    world.wires[1].inject(&[9; 3], peer());
    for (wire, last) in [(1, [8; 3]), (0, [9; 3])] {
        let mut passed = world.take(wire, 1);
        while passed.last().is_some_and(|packet| *packet != last) {
            // Those that came in a vector before that of a panic.
            assert!(passed.iter().all(|packet| *packet == [7; 9]));
            passed = world.take(wire, 1);
        }
        assert!(!passed.is_empty(), "the last packet passes");
    }
    let _ = std::panic::take_hook();
    world.assert_no_frame_is_lost();
}

#[test]
fn a_woken_worker_takes_its_turn() {
    let mut world = World::new();
    time::sleep_thread(Duration::from_millis(20));
    let waker = world.seen.waker.lock().unwrap().clone().unwrap();
    let before = world.seen.turns.load(Relaxed);
    waker.wake();
    let deadline = time::now_std() + Duration::from_secs(20);
    while world.seen.turns.load(Relaxed) == before && time::now_std() < deadline {
        std::thread::yield_now();
    }
    assert!(world.seen.turns.load(Relaxed) > before);
    world.worker.stop();
}

/// Always readable, and every reading is an error.
struct Broken {
    socket: UdpSocket,
    readings: Arc<Mutex<Vec<Instant>>>,
}

impl Port for Broken {
    fn receive(&mut self, _: &mut Vector) -> io::Result<usize> {
        self.readings.lock().unwrap().push(time::now_std());
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn transmit(&mut self, _: &mut Vector, _: &[u16]) -> Sent {
        Sent::default()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

/// A worker that is woken meanwhile does not begin the time again.
#[test]
fn an_input_with_errors_is_read_again_after_a_second() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(&[0], socket.local_addr().unwrap()).unwrap();
    let readings = Arc::<Mutex<Vec<Instant>>>::default();
    let broken = Broken { socket, readings: Arc::clone(&readings) };
    let (slab, seen) = (Slab::new(2 * VECTOR, PACKET), Arc::<Seen>::default());
    let home = slab as Arc<dyn Pool>;
    let graph = Crossing { copies: Vector::of(&home), home, seen: Arc::clone(&seen) };
    let worker = Worker::start("broken", graph, vec![Box::new(broken)], vec![0], Duration::ZERO).unwrap();
    let waker = seen.waker.lock().unwrap().clone().unwrap();
    let wait_for = |count: usize| {
        let deadline = time::now_std() + Duration::from_secs(20);
        while readings.lock().unwrap().len() < count {
            assert!(time::now_std() < deadline, "{count} readings");
            time::sleep_thread(Duration::from_millis(1));
        }
    };
    wait_for(64);
    time::sleep_thread(Duration::from_millis(700));
    waker.wake();
    wait_for(65);
    let readings = readings.lock().unwrap();
    let pause = readings[64].duration_since(readings[63]);
    assert!((1000..1500).contains(&pause.as_millis()), "{pause:?}");
    drop(worker);
}

/// An input that never has packets and can wake a thread.
struct Silent {
    socket: UdpSocket,
    /// Whether packets wait that it cannot send, such as those for a neighbour that does not answer.
    unsent: bool,
}

impl Silent {
    fn new(unsent: bool) -> Silent {
        Silent { socket: UdpSocket::bind("127.0.0.1:0").unwrap(), unsent }
    }
}

impl Port for Silent {
    fn receive(&mut self, _: &mut Vector) -> io::Result<usize> {
        Ok(0)
    }

    fn unsent(&self) -> bool {
        self.unsent
    }

    fn transmit(&mut self, _: &mut Vector, _: &[u16]) -> Sent {
        Sent::default()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

#[test]
fn a_sleeping_worker_takes_the_turn_that_its_graph_asks_for() {
    let seen = Arc::<Seen>::default();
    let home = Slab::new(2 * VECTOR, PACKET) as Arc<dyn Pool>;
    let graph = Crossing { copies: Vector::of(&home), home, seen: Arc::clone(&seen) };
    let silent = vec![Box::new(Silent::new(false)) as _];
    let worker = Worker::start("silent", graph, silent, vec![0], Duration::ZERO).unwrap();
    let waker = seen.waker.lock().unwrap().clone().unwrap();
    for ms in [1, 7, 300] {
        let due_ns = time::now_ns() + ms * 1_000_000;
        *seen.due_ns.lock().unwrap() = Some(due_ns);
        waker.wake();
        let before = seen.turns.load(Relaxed);
        let deadline = time::now_std() + Duration::from_secs(20);
        let done_ns = loop {
            if let Some(done_ns) = seen.done_ns.lock().unwrap().take() {
                break done_ns;
            }
            assert!(time::now_std() < deadline, "{ms} ms: no turn");
            time::sleep_thread(Duration::from_millis(1));
        };
        assert!(done_ns >= due_ns && done_ns < due_ns + 500_000_000, "{ms} ms: {}", done_ns - due_ns);
        assert!(seen.turns.load(Relaxed) - before < 100, "it slept");
    }
    drop(worker);
}

#[test]
fn a_worker_whose_packets_cannot_be_sent_looks_less_and_less_often() {
    let seen = Arc::<Seen>::default();
    let home = Slab::new(2 * VECTOR, PACKET) as Arc<dyn Pool>;
    let graph = Crossing { copies: Vector::of(&home), home, seen: Arc::clone(&seen) };
    let stuck = vec![Box::new(Silent::new(true)) as _];
    let worker = Worker::start("stuck", graph, stuck, vec![0], Duration::ZERO).unwrap();
    time::sleep_thread(Duration::from_millis(200));
    let before = seen.turns.load(Relaxed);
    assert!(before >= 4, "soon at first");
    time::sleep_thread(Duration::from_secs(1));
    let turns = seen.turns.load(Relaxed) - before;
    assert!((8..=24).contains(&turns), "{turns} in a second");
    drop(worker);
}
