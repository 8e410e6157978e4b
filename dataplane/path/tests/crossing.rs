//! Several workers: packets reach their owner in order, whoever has received them, and their frames return.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use net::time;
use path::{Graph, Plan, Ports, Shared, Worker};
use pktio::crossing::{self, Crossed};
use pktio::memory::{self, Wire};
use pktio::{Pool, Port, Sent, Slab, VECTOR, Vector};

const PACKET: usize = 256;
/// The first octet of a packet at which the graph panics.
const POISON: u8 = 255;
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends what interfaces 0 and 1 receive through interface 2. A packet's first octet is its flow, which belongs to the
/// worker with that number modulo the number of workers.
struct Flows {
    home: Arc<dyn Pool>,
    crossed: Arc<AtomicUsize>,
    crowded_out: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
}

impl Graph for Flows {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, _: u64, ports: &mut Ports) {
        for (frame, peer) in vector.frames().iter().zip(vector.peers()) {
            assert_ne!(frame.packet()[0], POISON, "a test's defect");
            assert_eq!(usize::from(peer.port()), input, "packets of one interface");
        }
        let all: Vec<u16> = (0..vector.len() as u16).collect();
        ports[2].transmit(vector, &all);
    }

    fn owners(&self, _: usize, vector: &Vector, workers: usize, owners: &mut [u8; VECTOR]) {
        for (owner, frame) in owners.iter_mut().zip(vector.frames()) {
            *owner = (usize::from(frame.packet()[0]) % workers) as u8;
        }
    }

    fn crossed(&mut self, _: usize, packets: Crossed) {
        self.crossed.fetch_add(packets.given, Relaxed);
        self.crowded_out.fetch_add(packets.dropped, Relaxed);
    }

    fn recover(&mut self, lost: usize) {
        self.lost.fetch_add(lost, Relaxed);
    }

    fn interface_name(&self, number: usize) -> &str {
        ["left", "right", "out"][number]
    }
}

/// A port without packets, whose worker sleeps until it is woken.
struct Silent(UdpSocket);

impl Port for Silent {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        Ok(0)
    }

    fn transmit(&mut self, _: &mut Vector, _: &[u16]) -> Sent {
        Sent::default()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// They are meant; their messages would be thousands.
fn hide_panics_of_workers() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !std::thread::current().name().is_some_and(|name| name.starts_with("crossing-")) {
            say(panic);
        }
    }));
}

struct World {
    workers: Vec<Option<Worker>>,
    /// Of each worker: its inputs, and what it sends.
    wires: Vec<[Wire; 3]>,
    slabs: Vec<Arc<Slab>>,
    crossed: Arc<AtomicUsize>,
    crowded_out: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    /// By flow: packets given, packets seen.
    given: [u32; 256],
    seen: [u32; 256],
    random: u64,
}

impl World {
    /// `silent` workers have no inputs of their own and sleep at once.
    fn new(workers: usize, silent: bool) -> World {
        let [crossed, crowded_out, lost] = [(); 3].map(|()| Arc::<AtomicUsize>::default());
        let chunks = crossing::frames(workers) + 4 * VECTOR;
        let slabs: Vec<_> = (0..workers).map(|_| Slab::new(chunks, PACKET)).collect();
        let (mut wires, mut running) = (Vec::new(), Vec::new());
        for (number, crossing) in crossing::connect(workers).into_iter().enumerate() {
            let [left, right, out] = [(); 3].map(|()| memory::pair(1 << 20));
            wires.push([left.1, right.1, out.1]);
            let mut ports: Ports = vec![Box::new(left.0), Box::new(right.0), Box::new(out.0)];
            if silent && number > 0 {
                for port in &mut ports[..2] {
                    *port = Box::new(Silent(UdpSocket::bind("127.0.0.1:0").unwrap()));
                }
            }
            let home = Arc::clone(&slabs[number]) as Arc<dyn Pool>;
            let graph = Flows {
                home,
                crossed: Arc::clone(&crossed),
                crowded_out: Arc::clone(&crowded_out),
                lost: Arc::clone(&lost),
            };
            let plan = Plan {
                name: format!("crossing-{number}"),
                core: None,
                inputs: vec![0, 1],
                poll: Duration::ZERO,
                realtime: false,
                shared: Some(Shared { crossing, inputs: vec![0, 1] }),
            };
            running.push(Some(Worker::start_as(plan, graph, ports).unwrap()));
        }
        let (given, seen) = ([0; 256], [0; 256]);
        World { workers: running, wires, slabs, crossed, crowded_out, lost, given, seen, random: 7 }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below
    }

    /// The next packet of a flow, of any length.
    fn give(&mut self, flow: u8, receiver: usize) {
        let length = self.random(PACKET - 5);
        let number = self.given[usize::from(flow)];
        self.given[usize::from(flow)] += 1;
        let packet = [&[flow][..], &number.to_be_bytes(), &vec![flow ^ number as u8; length]].concat();
        let input = usize::from(flow) / 7 % 2;
        self.wires[receiver][input].inject(&packet, ([192, 0, 2, 1], input as u16).into());
    }

    /// Takes what was sent: by the owner, with all octets, and in order within a flow. `gaps` may be in it.
    fn take(&mut self, gaps: bool) -> usize {
        let mut taken = 0;
        for (number, wires) in self.wires.iter().enumerate() {
            for (packet, _) in wires[2].take() {
                let flow = packet[0];
                assert_eq!(usize::from(flow) % self.wires.len(), number, "the owner sends");
                let n = u32::from_be_bytes(packet[1..5].try_into().unwrap());
                let next = &mut self.seen[usize::from(flow)];
                assert!(n == *next || gaps && n > *next, "flow {flow}: {n} comes, {next} was expected");
                assert!(packet[5..].iter().all(|octet| *octet == flow ^ n as u8));
                *next = n + 1;
                taken += 1;
            }
        }
        taken
    }

    fn take_until(&mut self, what: &str, count: usize, gaps: bool) {
        let (deadline, mut taken) = (time::now_std() + PATIENCE, 0);
        while taken < count {
            assert!(
                time::now_std() < deadline,
                "{what}: {taken} of {count}, {:?} crowded out",
                self.crowded_out
            );
            taken += self.take(gaps);
            std::thread::yield_now();
        }
        assert_eq!(taken, count, "{what}");
    }

    /// Ends all workers; no frame is missing then.
    fn end(mut self) {
        self.workers.clear();
        for (number, slab) in self.slabs.iter().enumerate() {
            assert_eq!(
                slab.free_chunks(),
                crossing::frames(self.slabs.len()) + 4 * VECTOR,
                "worker {number}"
            );
        }
    }
}

/// Flows of random length in random order, each received by one worker, which for most is not their owner.
#[test]
fn packets_reach_their_owners_in_order() {
    for workers in [2, 3, 5] {
        let mut world = World::new(workers, false);
        for _ in 0..200 {
            let count = 1 + world.random(300);
            for _ in 0..count {
                let flow = world.random(200) as u8;
                world.give(flow, usize::from(flow) / 3 % workers);
            }
            world.take_until("a burst", count, false);
        }
        assert_eq!((world.crowded_out.load(Relaxed), world.lost.load(Relaxed)), (0, 0));
        let given: u32 = world.given.iter().sum();
        let own = |flow: &usize| flow / 3 % workers == flow % workers;
        let own: u32 = (0..200).filter(own).map(|flow| world.given[flow]).sum();
        assert_eq!(world.crossed.load(Relaxed), (given - own) as usize);
        world.end();
    }
}

/// One worker receives everything; the others sleep between bursts.
#[test]
fn sleeping_workers_are_woken() {
    let mut world = World::new(3, true);
    for round in 0..60 {
        let count = 1 + world.random(5);
        for _ in 0..count {
            let flow = world.random(200) as u8;
            world.give(flow, 0);
        }
        world.take_until("a burst", count, false);
        if round % 3 == 0 {
            time::sleep_thread(Duration::from_millis(2));
        }
    }
    world.end();
}

/// Far more than parcels take at once: what is dropped is counted, the rest stays in order.
#[test]
fn packets_beyond_the_parcels_are_dropped_and_counted() {
    let mut world = World::new(2, false);
    // The owner is busy elsewhere: its other end is full of poison.
    hide_panics_of_workers();
    let poison = 2000;
    for _ in 0..poison {
        world.wires[1][0].inject(&[POISON], ([192, 0, 2, 1], 0).into());
    }
    let count = 3 * crossing::frames(2);
    for n in 0..count {
        world.give(if n % 2 == 0 { 1 } else { 3 }, 0);
    }
    let deadline = time::now_std() + PATIENCE;
    let mut taken = 0;
    while taken + world.crowded_out.load(Relaxed) < count || world.lost.load(Relaxed) < poison {
        assert!(time::now_std() < deadline, "{taken} of {count}");
        taken += world.take(true);
    }
    assert_eq!((taken + world.crowded_out.load(Relaxed), world.lost.load(Relaxed)), (count, poison));
    world.end();
}

/// Panics at packets of others, and the end of a worker in the middle of traffic: no frame is lost, and the others go on.
#[test]
fn panics_and_the_end_of_a_worker_cost_no_frame() {
    hide_panics_of_workers();
    let mut world = World::new(3, false);
    for round in 0..300 {
        let receiver = round % 3;
        for _ in 0..world.random(40) {
            let flow = world.random(200) as u8;
            world.give(flow, usize::from(flow) / 3 % 3);
        }
        let before = world.lost.load(Relaxed);
        // Worker 0 owns it.
        let input = round % 2;
        world.wires[receiver][input].inject(&[POISON], ([192, 0, 2, 1], input as u16).into());
        let deadline = time::now_std() + PATIENCE;
        while world.lost.load(Relaxed) == before {
            assert!(time::now_std() < deadline, "panic {round}");
            world.take(true);
        }
    }
    // Worker 1 ends while packets come for it, and from it.
    let receiver = |flow: u8| (usize::from(flow) + 1 + usize::from(flow / 3)) % 3;
    for round in 0..2000 {
        for flow in 200..206 {
            world.give(flow, receiver(flow));
        }
        if round == 700 {
            world.workers[1] = None;
        }
        world.take(true);
    }
    let others = [200, 201, 202, 203, 204, 205].into_iter();
    let others: Vec<u8> = others.filter(|flow| flow % 3 != 1 && receiver(*flow) != 1).collect();
    assert!(!others.is_empty());
    let (mark, deadline) = (world.given, time::now_std() + PATIENCE);
    while others.iter().map(|flow| usize::from(*flow)).any(|flow| world.seen[flow] <= mark[flow]) {
        assert!(time::now_std() < deadline, "the other workers go on");
        others.iter().for_each(|flow| world.give(*flow, receiver(*flow)));
        world.take(true);
        time::sleep_thread(Duration::from_millis(1));
    }
    world.end();
}
