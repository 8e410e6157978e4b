//! The ends in memory of nodes under test: where packets are made, counted, and sent back.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::time;
use path::{Graph, Ports};
use pktio::poll::Waker;
use pktio::{Pool, Port, Sent, Vector};

use super::packets::{Make, Message, STAMP, STAMP_AT};
use crate::upf::contents::Contents;

/// Most packets that are sent at once when they are late.
const LATE: usize = 8;
/// Time without arrivals after which what is under way counts as lost.
const LOST_NS: u64 = 20_000_000;
/// Most values of the jitter that are kept.
const JITTERS: usize = 1 << 20;

/// What a source sends, set by the measuring thread.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Packets per second; 0: none; `u64::MAX`: as many as the node takes.
    pub(crate) rate: AtomicU64,
    /// Octets of the user's IP packet.
    pub(crate) size: AtomicU64,
    /// Packets made so far.
    pub(crate) made: AtomicU64,
}

/// What arrived at an end.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Packets.
    pub(crate) packets: AtomicU64,
    /// Of these, those with other octets than were sent. One of each vector is compared with all its octets.
    pub(crate) wrong: AtomicU64,
    /// Jitter as RFC 3550 §6.4.1 has it, in 1/16 ns.
    jitter: AtomicU64,
    /// Its values so far, in ns, one for each vector.
    jitters: Mutex<Vec<f32>>,
    /// Longest time that a packet was under way, in ns.
    longest: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Packets that arrived at all of these ends.
pub(crate) fn all(arrivals: &[Arc<Arrivals>]) -> u64 {
    arrivals.iter().map(|end| end.packets.load(Relaxed)).sum()
}

impl Arrivals {
    /// Begins jitter, and the longest time, anew.
    pub(crate) fn reset_jitter(&self) {
        self.jitter.store(0, Relaxed);
        self.longest.store(0, Relaxed);
        lock(&self.jitters).clear();
    }

    /// Longest time that a packet was under way since then, in us.
    pub(crate) fn longest_us(&self) -> f64 {
        self.longest.load(Relaxed) as f64 / 1000.0
    }

    /// Median and 99th percentile of the jitter since then, in us.
    pub(crate) fn jitter_us(&self) -> Option<[f64; 2]> {
        let values: Vec<f64> = lock(&self.jitters).iter().map(|ns| f64::from(*ns) / 1000.0).collect();
        (!values.is_empty()).then(|| [0.5, 0.99].map(|quantile| crate::stats::quantile(&values, quantile)))
    }
}

/// An end that sends: packets of all UEs in turn.
pub(crate) struct Source {
    load: Arc<Load>,
    make: Make,
    /// Rate and size of the messages in hand.
    present: (u64, u64),
    messages: Vec<Message>,
    /// Numbers of the next PDUs, by message.
    counts: Vec<u32>,
    /// When the next packet is due.
    due_ns: f64,
    next: usize,
    window: Option<Window>,
}

/// A source with a window has no more than so many packets under way, as a transport protocol would.
struct Window {
    size: u64,
    arrivals: Vec<Arc<Arrivals>>,
    /// Packets that were made and will not arrive.
    lost: u64,
    /// When the last packet arrived, and how many had by then.
    last: (u64, u64),
}

impl Window {
    /// Packets that may be made now.
    fn free(&mut self, made: u64, now_ns: u64) -> usize {
        let arrived = all(&self.arrivals);
        if arrived != self.last.1 {
            self.last = (now_ns, arrived);
        } else if now_ns.saturating_sub(self.last.0) > LOST_NS {
            self.lost = made.saturating_sub(arrived);
            self.last.0 = now_ns;
        }
        // What counted as lost may still arrive.
        let under_way = made.saturating_sub(arrived + self.lost);
        self.size.saturating_sub(under_way) as usize
    }
}

impl Source {
    pub(crate) fn new(load: &Arc<Load>, make: Make) -> Source {
        Source {
            load: Arc::clone(load),
            make,
            present: (0, 0),
            messages: Vec::new(),
            counts: Vec::new(),
            due_ns: 0.0,
            next: 0,
            window: None,
        }
    }

    /// At most `size` packets are under way to the ends with these arrivals.
    pub(crate) fn with_window(mut self, size: u64, arrivals: &[Arc<Arrivals>]) -> Source {
        self.window = Some(Window { size, arrivals: arrivals.to_vec(), lost: 0, last: (0, 0) });
        self
    }

    fn change(&mut self, now: (u64, u64)) -> io::Result<()> {
        self.due_ns = time::now_ns() as f64;
        if now.1 != self.present.1 || self.messages.is_empty() {
            self.messages = (self.make)(now.1 as usize).map_err(io::Error::other)?;
        }
        self.counts.resize(self.messages.len(), 0);
        self.present = now;
        Ok(())
    }

    /// Packets that are due.
    fn due(&mut self, capacity: usize, now_ns: u64) -> usize {
        match self.present.0 {
            0 => 0,
            u64::MAX => capacity,
            rate => {
                let between = 1e9 / rate as f64;
                let due = ((now_ns as f64 - self.due_ns) / between).floor();
                if due > 100_000.0 {
                    // The thread has lost its core for long: what it missed is not made up for.
                    self.due_ns = now_ns as f64;
                }
                let count = due.clamp(0.0, LATE as f64);
                self.due_ns += count * between;
                count as usize
            }
        }
    }
}

impl Port for Source {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        let now = (self.load.rate.load(Relaxed), self.load.size.load(Relaxed));
        if now != self.present {
            self.change(now)?;
        }
        let now_ns = time::now_ns();
        let made = self.load.made.load(Relaxed);
        let mut count = self.due(vector.capacity(), now_ns);
        if let Some(window) = &mut self.window
            && count > 0
        {
            count = count.min(window.free(made, now_ns));
        }
        for _ in 0..count {
            self.next = (self.next + 1) % self.messages.len();
            let message = &mut self.messages[self.next];
            message.octets[message.stamp..message.stamp + STAMP].copy_from_slice(&now_ns.to_be_bytes());
            if let Some(at) = message.pdcp {
                let count = &mut self.counts[self.next];
                let [_, a, b, c] = (*count & 0x3_FFFF).to_be_bytes();
                // D/C bit and an 18-bit sequence number.
                message.octets[at..at + 3].copy_from_slice(&[0x80 | a, b, c]);
                *count += 1;
            }
            vector.push(&message.octets, message.from);
        }
        self.load.made.store(made + count as u64, Relaxed);
        Ok(count)
    }

    fn transmit(&mut self, _: &mut Vector, selected: &[u16]) -> Sent {
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// An end that counts what arrives.
pub(crate) struct Sink {
    arrivals: Arc<Arrivals>,
    /// Finds the user's packet in what arrives.
    user: fn(&[u8]) -> Option<&[u8]>,
    /// Whether it comes from UEs.
    up: bool,
    contents: Contents,
    transit: Option<u64>,
}

impl Sink {
    /// An end of packets from UEs, or to them.
    pub(crate) fn new(arrivals: &Arc<Arrivals>, up: bool, user: fn(&[u8]) -> Option<&[u8]>) -> Sink {
        Sink { arrivals: Arc::clone(arrivals), user, up, contents: Contents::new(0), transit: None }
    }
}

impl Port for Sink {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        Ok(0)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let (arrivals, now_ns) = (&self.arrivals, time::now_ns());
        let (mut jitter, mut longest) = (arrivals.jitter.load(Relaxed), arrivals.longest.load(Relaxed));
        let (mut wrong, mut packets) = (0, 0);
        for (number, at) in selected.iter().enumerate() {
            let message = vector.frames()[usize::from(*at)].packet();
            let Some(user) = (self.user)(message) else { continue };
            packets += 1;
            let Some(stamp) = user.get(STAMP_AT..).and_then(|rest| rest.first_chunk::<STAMP>()) else {
                wrong += 1;
                continue;
            };
            if number == 0 {
                wrong += u64::from(self.contents.user_packet(self.up, user).is_err());
            }
            let transit = now_ns.saturating_sub(u64::from_be_bytes(*stamp));
            longest = longest.max(transit);
            if let Some(before) = self.transit.replace(transit) {
                jitter = jitter + transit.abs_diff(before) - (jitter + 8) / 16;
            }
        }
        arrivals.jitter.store(jitter, Relaxed);
        arrivals.longest.store(longest, Relaxed);
        arrivals.wrong.store(arrivals.wrong.load(Relaxed) + wrong, Relaxed);
        arrivals.packets.store(arrivals.packets.load(Relaxed) + packets, Relaxed);
        let mut jitters = lock(&arrivals.jitters);
        if jitters.len() < JITTERS {
            jitters.push(jitter as f32 / 16.0);
        }
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Answers to the packets that a node has sent to the end that sends them back.
type Answers = Arc<Mutex<Vector>>;
/// Makes a packet its answer, and says where that comes from.
pub(crate) type Answer = Box<dyn Fn(&mut [u8]) -> Option<SocketAddr> + Send>;

/// A node with an end in memory that sends every packet back.
pub(crate) struct Echo<G> {
    graph: G,
    end: usize,
    answers: Answers,
    vector: Vector,
}

/// The end in memory of an [`Echo`].
pub(crate) struct Mirror {
    answer: Answer,
    answers: Answers,
    packet: Vec<u8>,
}

impl<G: Graph> Echo<G> {
    /// The node `graph`, whose interface with the number `end` answers.
    pub(crate) fn new(graph: G, end: usize, answer: Answer) -> (Echo<G>, Mirror) {
        let answers: Answers = Arc::new(Mutex::new(Vector::of(graph.home())));
        let mirror = Mirror { answer, answers: Arc::clone(&answers), packet: Vec::new() };
        let vector = Vector::of(graph.home());
        (Echo { graph, end, answers, vector }, mirror)
    }
}

impl<G: Graph> Graph for Echo<G> {
    fn home(&self) -> &Arc<dyn Pool> {
        self.graph.home()
    }

    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports) {
        self.graph.process(input, vector, now_ns, ports);
        std::mem::swap(&mut *lock(&self.answers), &mut self.vector);
        if !self.vector.is_empty() {
            self.graph.process(self.end, &mut self.vector, now_ns, ports);
            self.vector.clear();
        }
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        self.graph.turn(now_ns, ports)
    }

    fn recover(&mut self, lost: usize) {
        self.graph.recover(lost);
    }

    fn wake_with(&mut self, waker: Waker) {
        self.graph.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        self.graph.interface_name(number)
    }
}

impl Port for Mirror {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        Ok(0)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let mut answers = lock(&self.answers);
        for at in selected {
            self.packet.clear();
            self.packet.extend(vector.frames()[usize::from(*at)].packet());
            if let Some(from) = (self.answer)(&mut self.packet) {
                answers.push(&self.packet, from);
            }
        }
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
