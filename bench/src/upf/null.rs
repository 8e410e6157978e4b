//! DPDK's null devices: a worker of the user plane, with its stacks, between devices that cost nothing.
//!
//! A null device returns mbufs with undefined contents, and accepts any. A thin port in front of it ([`Fed`])
//! writes headers of random subscribers into these mbufs, as a network card would have done, and answers the
//! stack's ARP requests. One batch in [`COMPARED`] is written as a whole and compared octet by octet when it
//! comes out. So the measurement covers everything that a core does for a packet with DPDK except moving it
//! from and to a device, plus the writing of a hundred octets. The bare forwarder between the same ports has
//! the same cost and no other work. There are no one-way times, as packets begin and end at the worker.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use net::time::{self, Duration};
use packet::ethernet::{self, Mac};
use pktio::dpdk::{DpdkPort, Settings};
use pktio::{FramePort, Port, Sent, Vector};

use super::contents::{Contents, Tally};
use super::dpdk::{self, Kind};
use super::frames::Forwarder;
use super::source::{self, Deck, Source};
use super::traffic::Direction;
use super::users::Traffic;
use super::world::World;
use super::{DEFAULT_SESSIONS, MPPS, Run, turns};
use crate::machine;

/// How often an idle port checks whether frames are wanted, at first and later.
const GLANCE: Duration = Duration::from_micros(200);
const LATER: Duration = Duration::from_millis(1);
/// Number of the first ones.
const FIRST: usize = 20;
/// Time limit for a batch on a busy machine.
const AT_REST: Duration = Duration::from_secs(1);
/// Time limit for making sessions and for the first packets.
const PATIENCE: Duration = Duration::from_secs(60);
/// One of this many batches is written as a whole and compared.
const COMPARED: usize = 64;
/// Only frames up to this length may be ARP requests.
const QUESTION: usize = 60;

/// Which packets the ports of a contender give, and how many they gave and took. One thread serves both ports.
#[derive(Default)]
pub(super) struct Valve {
    /// Octets of user packets, and above them the bits of the directions. While it is 0, the ports wait.
    wanted: AtomicUsize,
    given: AtomicU64,
    taken: AtomicU64,
    /// The thread waits, and no packets are under way.
    rests: AtomicBool,
    pub(super) stop: AtomicBool,
    /// Whether neighbours are known, so that the output is what was given last.
    pub(super) compare: AtomicBool,
    /// Whether all batches are written as a whole and compared. For packets that come out elsewhere.
    pub(super) compare_all: AtomicBool,
    /// Whether the batch under way is one that is compared.
    whole: AtomicBool,
    pub(super) tally: Mutex<Tally>,
}

/// Bits of directions in [`Valve::wanted`].
const UP: usize = 1 << 16;
const DOWN: usize = 1 << 17;
const SIZE: usize = UP - 1;

impl Valve {
    pub(super) fn open(&self, direction: Direction, size: usize) {
        let ways = match direction {
            Direction::Uplink => UP,
            Direction::Downlink => DOWN,
            Direction::Mixed => UP | DOWN,
        };
        self.wanted.store(ways | (size & SIZE), Relaxed);
    }

    /// The ports give no more packets, and do not wait: what is under way comes out.
    pub(super) fn drain(&self) {
        self.wanted.store(1, Relaxed);
    }

    pub(super) fn close(&self) {
        self.wanted.store(0, Relaxed);
        let start = time::now_std();
        // A thread that has ended has no packets under way either.
        while !self.rests.load(Acquire) && start.elapsed() < AT_REST {
            time::sleep_thread(GLANCE);
        }
    }

    /// The value of `wanted` once it is not 0.
    #[inline]
    fn wanted(&self) -> usize {
        let mut rested = 0;
        loop {
            let wanted = self.wanted.load(Relaxed);
            if wanted != 0 || self.stop.load(Relaxed) {
                if rested > 0 {
                    self.rests.store(false, Relaxed);
                }
                return wanted;
            }
            self.rests.store(true, Release);
            time::sleep_thread(if rested < FIRST { GLANCE } else { LATER });
            rested += 1;
        }
    }

    /// Packets given and taken so far.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.given.load(Relaxed), self.taken.load(Relaxed)]
    }

    /// Packets per second that come out.
    fn rate(&self, direction: Direction, size: usize, duration: Duration) -> f64 {
        self.open(direction, size);
        time::sleep_thread(duration / 4);
        let (before, start) = (self.taken.load(Relaxed), time::now_std());
        time::sleep_thread(duration);
        let (taken, took) = (self.taken.load(Relaxed) - before, start.elapsed());
        self.close();
        taken as f64 / took.as_secs_f64()
    }

    /// Whether all packets of a while come out, and no others.
    fn passes_all(&self) -> bool {
        let before = self.counts();
        self.rate(Direction::Mixed, 64, Duration::from_millis(10));
        let after = self.counts();
        let [given, taken] = [0, 1].map(|at| after[at] - before[at]);
        given > 0 && taken == given
    }
}

/// Adds to a counter that only this thread writes.
fn count(counter: &AtomicU64, packets: usize) {
    counter.store(counter.load(Relaxed) + packets as u64, Relaxed);
}

/// A port that gives frames of gNBs or of the data network, whatever the device below gives.
pub(super) struct Fed<F> {
    frames: F,
    up: bool,
    valve: Arc<Valve>,
    deck: Arc<Deck>,
    /// The contender between the ports, and the addresses of both ports.
    forwarder: Forwarder,
    macs: [Mac; 2],
    contents: Contents,
    batches: usize,
    /// The value of [`Valve::wanted`] for which the source was made.
    made_for: usize,
    source: Option<Source>,
    /// Answers to ARP requests.
    answers: Vec<Vec<u8>>,
}

impl<F: FramePort> Fed<F> {
    /// Both ports of a contender, N3's first.
    pub(super) fn pair(
        frames: [F; 2],
        forwarder: Forwarder,
        valve: &Arc<Valve>,
        [up, down]: [&Arc<Deck>; 2],
    ) -> (Fed<F>, Fed<F>) {
        let macs = [frames[0].mac(), frames[1].mac()];
        let fed = |frames: F, of_access: bool| Fed {
            frames,
            up: of_access,
            valve: Arc::clone(valve),
            deck: Arc::clone(if of_access { up } else { down }),
            forwarder,
            macs,
            contents: Contents::new(0),
            batches: 0,
            made_for: 0,
            source: None,
            answers: Vec::new(),
        };
        let [n3, n6] = frames;
        (fed(n3, true), fed(n6, false))
    }

    fn make(&mut self, wanted: usize) -> std::io::Result<()> {
        let gives = wanted & (if self.up { UP } else { DOWN }) != 0;
        let source = || Source::new(self.up, wanted & SIZE, (&self.deck, 0), self.frames.mac());
        self.source = gives.then(source).transpose().map_err(std::io::Error::other)?;
        self.made_for = wanted;
        Ok(())
    }

    /// Takes a frame as a neighbour would; returns whether it is a user's.
    fn take(&mut self, frame: &[u8]) -> bool {
        let question = frame.len() <= QUESTION && frame.get(12..14) == Some(&ethernet::ARP.to_be_bytes());
        if question {
            self.answers.extend(source::arp_reply(frame));
        } else if self.valve.whole.load(Relaxed) {
            // Frames that leave on N6 are uplink.
            let (up, place) = (!self.up, (self.macs, &*self.deck));
            let compared = self.forwarder.compare(up, frame, place, &mut self.contents);
            self.valve.tally.lock().unwrap_or_else(PoisonError::into_inner).count(compared, frame);
        }
        !question
    }
}

impl<F: FramePort> Port for Fed<F> {
    #[inline]
    fn receive(&mut self, batch: &mut Vector) -> std::io::Result<usize> {
        let wanted = self.valve.wanted();
        if wanted != self.made_for {
            self.make(wanted)?;
        }
        if let Some(answer) = self.answers.pop() {
            batch.clear();
            return Ok(usize::from(batch.push(&answer, World::peer())));
        }
        let Some(source) = &mut self.source else {
            self.valve.whole.store(self.valve.compare_all.load(Relaxed), Relaxed);
            batch.clear();
            return Ok(0);
        };
        let received = self.frames.receive(batch)?;
        self.batches += 1;
        let sampled = self.batches.is_multiple_of(COMPARED) && self.valve.compare.load(Relaxed);
        let whole = sampled || self.valve.compare_all.load(Relaxed);
        self.valve.whole.store(whole, Relaxed);
        if whole {
            source.fill(batch, None);
        } else {
            source.fill_heads(batch);
        }
        count(&self.valve.given, received);
        Ok(received)
    }

    #[inline]
    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let frames = selected.iter().filter_map(|at| batch.frames().get(usize::from(*at)));
        let questions = frames.filter(|buffer| !self.take(buffer.packet())).count();
        let sent = self.frames.transmit(batch, selected);
        count(&self.valve.taken, sent.packets.saturating_sub(questions));
        sent
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl<F: FramePort> FramePort for Fed<F> {
    fn mac(&self) -> Mac {
        self.frames.mac()
    }

    fn mtu(&self) -> usize {
        self.frames.mtu()
    }
}

/// What is measured between null devices.
#[derive(Clone, Copy)]
struct Case {
    sessions: usize,
    traffic: Traffic,
}

impl Case {
    fn all(run: &Run) -> Vec<Case> {
        let plain = run.plan.network_sessions.iter().map(|sessions| (*sessions, Traffic::Plain));
        // Of the other kinds these have the same packets.
        let others = [Traffic::Quotas, Traffic::Gnbs].map(|traffic| (DEFAULT_SESSIONS, traffic));
        plain.chain(others).map(|(sessions, traffic)| Case { sessions, traffic }).collect()
    }

    /// The name in series.
    fn backend(self) -> String {
        match self.traffic {
            Traffic::Plain => "dpdk_null".to_owned(),
            other => format!("dpdk_null_{}", other.name()),
        }
    }

    fn sizes(self, run: &Run) -> Vec<usize> {
        let mut sizes = run.plan.network_sizes(self.sessions);
        if self.traffic != Traffic::Plain {
            sizes.truncate(1);
        }
        sizes.retain(|size| source::tunnelled(*size) <= usize::from(Settings::default().mtu));
        sizes
    }
}

/// Measures user plane and bare forwarder in turn, with each number of sessions.
///
/// # Errors
/// DPDK does not start.
pub(super) fn run(run: &mut Run, here: usize, there: usize) -> anyhow::Result<()> {
    dpdk::start(here)?;
    for case in Case::all(run) {
        let Case { sessions, traffic } = case;
        run.progress.say(&format!("{}: making {sessions} sessions", case.backend()));
        let deck = Deck::new(&World::teids(sessions)?);
        let valves = [(); 2].map(|()| Arc::new(Valve::default()));
        let contenders = || Kind::ALL.into_iter().zip(&valves);
        std::thread::scope(|scope| {
            let mut serving = Vec::new();
            for (kind, valve) in contenders() {
                let open = |interface: usize| {
                    let device = format!("net_null{}", 2 * kind as usize + interface);
                    DpdkPort::open(&device, &Settings::default())?.pop().context("no queue")
                };
                let ports = Fed::pair([open(0)?, open(1)?], kind.forwarder(traffic), valve, [&deck; 2]);
                serving.push(scope.spawn(move || {
                    machine::pin(&[there]);
                    dpdk::serve_ports(kind.work(sessions, traffic)?, ports, &|| valve.stop.load(Relaxed))
                }));
            }
            let measured = measure(run, case, contenders);
            valves.iter().for_each(|valve| valve.stop.store(true, Relaxed));
            for thread in serving {
                let Ok(served) = thread.join() else { anyhow::bail!("a forwarder ended by a panic") };
                served?;
            }
            measured
        })?;
    }
    Ok(())
}

fn measure<'a, I: Iterator<Item = (Kind, &'a Arc<Valve>)>>(
    run: &mut Run,
    case: Case,
    contenders: impl Fn() -> I,
) -> anyhow::Result<()> {
    for (kind, valve) in contenders() {
        let start = time::now_std();
        // Until all neighbours are known, which takes one ARP request for each, and no packets wait for one any more.
        while !valve.passes_all() {
            if start.elapsed() > PATIENCE {
                anyhow::bail!("not everything comes out of {}", kind.name());
            }
        }
    }
    contenders().for_each(|(_, valve)| valve.compare.store(true, Relaxed));
    let before: Vec<[u64; 2]> = contenders().map(|(_, valve)| valve.counts()).collect();
    let (backend, sizes, sessions) = (case.backend(), case.sizes(run), case.sessions);
    for round in 0..run.plan.frame_rounds(sessions) {
        run.progress.say(&format!("{backend}: {sessions} sessions, round {round}"));
        for direction in Direction::ALL {
            for size in sizes.iter().copied() {
                for at in turns::order(Kind::ALL.len()) {
                    let Some((kind, valve)) = contenders().nth(at) else { continue };
                    let name = format!("{backend}.{}.{}.{size}.mpps", kind.name(), direction.name());
                    let rate = valve.rate(direction, size, run.plan.frame_sample / 2);
                    run.results.add(name, MPPS, sessions, rate / 1e6);
                }
            }
        }
    }
    for ((kind, valve), before) in contenders().zip(before) {
        let after = valve.counts();
        let [given, taken] = [0, 1].map(|at| after[at] - before[at]);
        let name = format!("{backend}: what {} got with {sessions} sessions came out", kind.name());
        run.check(&name, given > 0 && taken == given, format!("{taken} packets of {given}"));
        let tally = std::mem::take(&mut *valve.tally.lock().unwrap_or_else(PoisonError::into_inner));
        run.compared(&format!("{backend} {}", kind.name()), tally);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that gives empty buffers and takes any.
    struct Device;

    impl Port for Device {
        fn receive(&mut self, batch: &mut Vector) -> std::io::Result<usize> {
            batch.refill(batch.capacity());
            Ok(batch.len())
        }

        fn transmit(&mut self, _: &mut Vector, selected: &[u16]) -> Sent {
            Sent { packets: selected.len(), ..Sent::default() }
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    impl FramePort for Device {
        fn mac(&self) -> Mac {
            [2, 0, 0, 0, 0, 9]
        }

        fn mtu(&self) -> usize {
            1500
        }
    }

    /// A damaged octet is found in every batch that is compared.
    #[test]
    fn what_comes_out_is_compared() {
        let valve = Arc::new(Valve::default());
        let (mut n3, mut n6) = Fed::pair([Device, Device], Forwarder::Bare, &valve, [&Deck::new(&[7]); 2]);
        let mut batch = Vector::new(2, 2048);
        valve.open(Direction::Uplink, 300);
        valve.compare.store(true, Relaxed);
        for number in 0..4 * COMPARED {
            assert_eq!(n3.receive(&mut batch).unwrap(), 2);
            for mut buffer in batch.frames_mut() {
                // Swaps the addresses as the bare forwarder does.
                let (destination, rest) = buffer.packet_mut().split_at_mut(6);
                destination.swap_with_slice(&mut rest[..6]);
                if number >= 2 * COMPARED {
                    buffer.packet_mut()[200] ^= 1;
                }
            }
            n6.transmit(&mut batch, &[0, 1]);
        }
        let tally = valve.tally.lock().unwrap();
        assert_eq!((tally.compared, tally.wrong), (8, 4), "{:?}", tally.judge());
    }

    #[test]
    fn a_port_is_fed_with_what_is_wanted_and_answers_questions() {
        let valve = Arc::new(Valve::default());
        let user_plane = Forwarder::UserPlane { gnbs: 1 };
        let (mut port, _) = Fed::pair([Device, Device], user_plane, &valve, [&Deck::new(&[7]); 2]);
        let mut batch = Vector::new(4, 2048);
        valve.open(Direction::Downlink, 64);
        assert_eq!(port.receive(&mut batch).unwrap(), 0, "that is the other port's");
        for size in [64, 1400] {
            valve.open(Direction::Mixed, size);
            assert_eq!(port.receive(&mut batch).unwrap(), 4);
            let lengths: Vec<usize> = batch.frames().iter().map(pktio::Frame::len).collect();
            assert_eq!(lengths, [14 + source::tunnelled(size); 4]);
        }
        port.transmit(&mut batch, &[0, 2, 3]);
        assert_eq!(valve.counts(), [8, 3]);

        let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9];
        request.extend([10, 200, 0, 1, 0, 0, 0, 0, 0, 0, 10, 200, 0, 5]);
        batch.clear();
        batch.push(
            &ethernet::build([0xFF; 6], [2, 0, 0, 0, 0, 9], None, ethernet::ARP, &request),
            World::peer(),
        );
        port.transmit(&mut batch, &[0]);
        assert_eq!((port.receive(&mut batch).unwrap(), valve.counts()), (1, [8, 3]));
        assert_eq!(batch.frames()[0].packet()[..6], [2, 0, 0, 0, 0, 9], "the answer");
        valve.stop.store(true, Relaxed);
        valve.close();
        assert_eq!(port.receive(&mut batch).unwrap(), 0, "and it does not wait when all is over");
    }
}
