//! Packets that cross from the worker that has received them to the worker that owns them, in vectors, without a copy.
//!
//! ```text
//!  worker A                                                         worker B
//!  received vector ─┬─ A's own packets ─► processed
//!                   └─ B's packets ─► Parcel ═══ ring to B ═══► processed, sent through B's own ports
//!     A's pool ◄── frames left in it ── Parcel ◄══ ring back ══ Parcel
//! ```
//! Each pair of workers has a fixed number of [`Parcel`]s for each direction. A parcel goes to the other worker as soon as
//! that one has taken all earlier ones; until then it is filled further, so that small vectors do not use up the parcels.
//! Without a free parcel packets are dropped and counted ([`Crossed`]). Frames stay in the memory that they
//! were received into, and the worker that received them returns them to their pool. When a worker ends, the parcels in its
//! rings return their frames to the pools.
//!
//! A worker that is about to sleep says so ([`Crossing::may_sleep`]), and is woken when a parcel is put into one of its rings.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use rcu::{Consumer, Producer, Sleep};

use crate::frame::{Frame, Pool};
use crate::poll::Waker;
use crate::{Slab, VECTOR, Vector};

/// Parcels of a worker for all others together: at 10 million packets per second full ones last for 0.4 ms.
const PARCELS: usize = 64;
/// Parcels of a worker for one other at least.
const LEAST: usize = 4;

/// Parcels of each of `workers` workers for one of the others.
fn parcels(workers: usize) -> usize {
    (PARCELS / workers.saturating_sub(1).max(1)).max(LEAST)
}

/// Frames of one worker that may be on their way to others, of `workers` workers: its pools have so many more.
pub fn frames(workers: usize) -> usize {
    workers.saturating_sub(1) * parcels(workers) * VECTOR
}

/// Packets that one interface has received and that belong to another worker.
#[derive(Debug)]
pub struct Parcel {
    /// The packets.
    pub vector: Box<Vector>,
    /// Number of the interface.
    pub input: usize,
}

/// What has become of the packets of other workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossed {
    /// In parcels.
    pub given: usize,
    /// Dropped, because all parcels are on their way.
    pub dropped: usize,
}

/// What workers know of each other.
#[derive(Debug, Default)]
struct Seat {
    sleep: Sleep,
    waker: OnceLock<Waker>,
}

/// What one worker shares with one other.
struct Way {
    /// Empty parcels.
    #[allow(clippy::vec_box, reason = "vectors of 4 kB change hands by their addresses")]
    empty: Vec<Box<Vector>>,
    /// The parcels that are being filled: one for each pool and interface.
    open: Vec<Parcel>,
    /// Parcels were sent, of which the other worker may have to be told.
    sent: bool,
    out: Producer<Parcel>,
    /// Parcels that the other worker has done with.
    back: Consumer<Box<Vector>>,
    /// Parcels of the other worker.
    incoming: Consumer<Parcel>,
    done: Producer<Box<Vector>>,
}

/// One worker's ends of all ways.
pub struct Crossing {
    own: usize,
    seats: Arc<[Seat]>,
    /// By number of the worker.
    ways: Vec<Option<Way>>,
    /// Which worker's parcels are taken next: they take turns.
    turn: usize,
}

/// A ring for full parcels in one direction, and one for empty ones in the other.
type Ends = (Producer<Parcel>, Consumer<Parcel>, Producer<Box<Vector>>, Consumer<Box<Vector>>);

fn rings(capacity: usize) -> Ends {
    let ((out, incoming), (done, back)) = (rcu::ring(capacity), rcu::ring(capacity));
    (out, incoming, done, back)
}

/// Connects `workers` workers with each other: the ends of each, by its number.
pub fn connect(workers: usize) -> Vec<Crossing> {
    let seats: Arc<[Seat]> = (0..workers).map(|_| Seat::default()).collect();
    let count = parcels(workers);
    // Parcels hold frames of other pools only.
    let none: Arc<dyn Pool> = Slab::new(1, 1);
    let ways = || (0..workers).map(|_| None).collect();
    let new = |own| Crossing { own, seats: Arc::clone(&seats), ways: ways(), turn: 0 };
    let mut all: Vec<Crossing> = (0..workers).map(new).collect();
    for one in 0..workers {
        for other in 0..one {
            let (out, other_incoming, other_done, back) = rings(count);
            let (other_out, incoming, done, other_back) = rings(count);
            let empty = || (0..count).map(|_| Box::new(Vector::of(&none))).collect();
            all[one].ways[other] =
                Some(Way { empty: empty(), open: Vec::new(), sent: false, out, back, incoming, done });
            all[other].ways[one] = Some(Way {
                empty: empty(),
                open: Vec::new(),
                sent: false,
                out: other_out,
                back: other_back,
                incoming: other_incoming,
                done: other_done,
            });
        }
    }
    all
}

impl Way {
    /// The parcel for a packet of `pool` that the interface with number `input` has received; `None` when all parcels are on
    /// their way.
    #[inline]
    fn parcel(&mut self, pool: &Arc<dyn Pool>, input: usize) -> Option<&mut Vector> {
        let fits = |open: &Parcel| open.input == input && Arc::ptr_eq(open.vector.pool(), pool);
        let mut at = self.open.iter().position(fits);
        if let Some(full) = at.filter(|at| self.open[*at].vector.len() == VECTOR) {
            let parcel = self.open.remove(full);
            self.send(parcel);
            at = None;
        }
        let at = match at {
            Some(at) => at,
            None => {
                let mut vector = self.empty.pop()?;
                vector.begin_lent(pool);
                self.open.push(Parcel { vector, input });
                self.open.len() - 1
            }
        };
        self.open.get_mut(at).map(|open| &mut *open.vector)
    }

    fn send(&mut self, parcel: Parcel) {
        match self.out.put(parcel) {
            Ok(()) => self.sent = true,
            Err(mut parcel) => {
                // The other worker has ended: a ring has room for all parcels.
                parcel.vector.clear();
                self.empty.push(parcel.vector);
            }
        }
    }

    /// Sends all parcels that are being filled.
    fn send_open(&mut self) {
        while !self.open.is_empty() {
            let parcel = self.open.remove(0);
            self.send(parcel);
        }
    }

    /// Returns the frames of parcels that have come back.
    #[inline]
    fn reclaim(&mut self) {
        while let Some(mut vector) = self.back.take() {
            vector.clear();
            self.empty.push(vector);
        }
    }
}

impl Crossing {
    /// The number of this worker.
    pub fn own(&self) -> usize {
        self.own
    }

    /// The number of all workers.
    pub fn workers(&self) -> usize {
        self.seats.len()
    }

    /// Gives the handle that wakes this worker.
    pub fn wake_with(&self, waker: Waker) {
        // Nobody sleeps before this call.
        let _ = self.seats[self.own].waker.set(waker);
    }

    /// Puts each packet of `vector`, received by the interface with number `input`, into the parcel for the worker that
    /// `owners` names for its position. This worker's own packets stay in the vector, in their order, as do those of
    /// workers that do not exist.
    #[inline]
    pub fn distribute(&mut self, vector: &mut Vector, input: usize, owners: &[u8; VECTOR]) -> Crossed {
        let own = self.own as u8;
        let mut crossed = Crossed::default();
        if owners[..vector.len()].iter().all(|owner| *owner == own) {
            return crossed;
        }
        let ways = &mut self.ways;
        vector.give_away(|pool, at, frame: &mut Frame, peer: SocketAddr| {
            let Some(Some(way)) = ways.get_mut(usize::from(owners[at])) else { return true };
            match way.parcel(pool, input) {
                Some(parcel) => {
                    parcel.adopt(frame, peer);
                    crossed.given += 1;
                }
                None => crossed.dropped += 1,
            }
            false
        });
        crossed
    }

    /// Sends the parcels of workers that have nothing left to do, or those of all, and returns the frames of parcels that have
    /// come back. Called after each vector, and with `all` before the worker waits for packets.
    #[inline]
    pub fn flush(&mut self, all: bool) {
        for (way, seat) in self.ways.iter_mut().zip(self.seats.iter()) {
            let Some(way) = way else { continue };
            way.reclaim();
            if !way.open.is_empty() && (all || way.out.is_drained()) {
                way.send_open();
            }
            if std::mem::take(&mut way.sent)
                && seat.sleep.needs_waking()
                && let Some(waker) = seat.waker.get()
            {
                waker.wake();
            }
        }
    }

    /// The next parcel for this worker, and the number of its sender, to which it [returns](Crossing::done).
    #[inline]
    pub fn receive(&mut self) -> Option<(usize, Parcel)> {
        let workers = self.ways.len();
        for i in 0..workers {
            let from = (self.turn + i) % workers;
            if let Some(way) = &mut self.ways[from]
                && let Some(parcel) = way.incoming.take()
            {
                self.turn = (from + 1) % workers;
                // Their lines are in another core's caches, and all of them are needed soon.
                parcel.vector.frames().iter().for_each(Frame::prefetch_around);
                return Some((from, parcel));
            }
        }
        None
    }

    /// Gives a parcel back to its sender, with the frames that are left in it.
    #[inline]
    pub fn done(&mut self, from: usize, parcel: Parcel) {
        if let Some(Some(way)) = self.ways.get_mut(from) {
            // Without a sender the frames return to their pool here.
            let _ = way.done.put(parcel.vector);
        }
    }

    /// This worker is about to sleep: whether it may. Otherwise there is something to do.
    pub fn may_sleep(&mut self) -> bool {
        self.seats[self.own].sleep.begin();
        let may = !self.ways.iter_mut().flatten().any(|way| way.incoming.is_ready());
        if !may {
            self.awake();
        }
        may
    }

    /// This worker is awake.
    pub fn awake(&self) {
        self.seats[self.own].sleep.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::Poller;

    const LEN: usize = 64;

    fn pool(chunks: usize) -> (Arc<Slab>, Arc<dyn Pool>) {
        let slab = Slab::new(chunks, LEN);
        (Arc::clone(&slab), slab)
    }

    /// Packets with a number, from a peer with that number, of which their traffic class depends.
    fn fill(vector: &mut Vector, numbers: std::ops::Range<u8>) {
        vector.clear();
        for number in numbers {
            let peer = SocketAddr::from(([192, 0, 2, number], 2152));
            assert!(vector.push(&[number; 3], peer));
            vector.last_mut().unwrap().set_tos(number);
        }
    }

    fn seen(vector: &Vector) -> Vec<u8> {
        for (frame, peer) in vector.frames().iter().zip(vector.peers()) {
            let number = frame.packet()[0];
            assert_eq!((frame.packet(), frame.tos()), (&[number; 3][..], number));
            assert_eq!(*peer, SocketAddr::from(([192, 0, 2, number], 2152)));
        }
        vector.frames().iter().map(|frame| frame.packet()[0]).collect()
    }

    /// Odd packets belong to worker 1, those that are divisible by four to worker 2, and others stay.
    fn owners(vector: &Vector) -> [u8; VECTOR] {
        let mut owners = [0; VECTOR];
        for (owner, frame) in owners.iter_mut().zip(vector.frames()) {
            *owner = match frame.packet()[0] {
                odd if odd % 2 == 1 => 1,
                four if four % 4 == 0 => 2,
                _ => 0,
            };
        }
        owners
    }

    #[test]
    fn packets_cross_with_all_that_belongs_to_them_and_their_frames_return() {
        let (slab, home) = pool(64);
        let mut vector = Vector::of(&home);
        let mut all = connect(3);
        for round in 0..100u8 {
            fill(&mut vector, round..round + 8);
            let owners = owners(&vector);
            let kept = (round..round + 8).filter(|n| n % 4 == 2).count();
            let crossed = all[0].distribute(&mut vector, usize::from(round % 3), &owners);
            assert_eq!(crossed, Crossed { given: 8 - kept, dropped: 0 });
            let wanted = |kept: fn(u8) -> bool| (round..round + 8).filter(|n| kept(*n)).collect::<Vec<_>>();
            assert_eq!(seen(&vector), wanted(|n| n % 4 == 2));
            all[0].flush(false);
            for (to, kept) in [(1, (|n| n % 2 == 1) as fn(u8) -> bool), (2, |n| n % 4 == 0)] {
                let (from, parcel) = all[to].receive().unwrap();
                assert_eq!((from, parcel.input), (0, usize::from(round % 3)));
                assert_eq!(seen(&parcel.vector), wanted(kept));
                all[to].done(from, parcel);
                assert!(all[to].receive().is_none());
            }
        }
        all[0].flush(false);
        drop(vector);
        assert_eq!(slab.free_chunks(), 64);
    }

    /// A worker that is behind gets fuller parcels; what does not fit is dropped and counted; order is kept.
    #[test]
    fn a_worker_that_is_behind_gets_full_parcels_until_there_are_none() {
        let (slab, home) = pool(frames(2) + VECTOR);
        let mut vector = Vector::of(&home);
        let mut all = connect(2);
        let (mut next, mut dropped) = (0u32, 0);
        let mut given = Vec::new();
        for round in 0..4000usize {
            vector.clear();
            for _ in 0..1 + round % 5 {
                assert!(vector.push(&next.to_be_bytes(), crate::frame::NO_PEER));
                given.push(next);
                next += 1;
            }
            let lost = all[0].distribute(&mut vector, 0, &[1; VECTOR]).dropped;
            given.truncate(given.len() - lost);
            dropped += lost;
            all[0].flush(false);
        }
        // The first parcel went at once.
        assert_eq!((dropped, given.len()), (next as usize - given.len(), frames(2) - VECTOR + 1));
        let mut taken = Vec::new();
        while let Some((from, parcel)) = all[1].receive() {
            taken.extend(parcel.vector.frames().iter().map(|frame| frame.packet().to_vec()));
            all[1].done(from, parcel);
        }
        all[0].flush(true);
        while let Some((from, parcel)) = all[1].receive() {
            taken.extend(parcel.vector.frames().iter().map(|frame| frame.packet().to_vec()));
            all[1].done(from, parcel);
        }
        assert!(taken.into_iter().eq(given.iter().map(|number| number.to_be_bytes().to_vec())));
        all[0].flush(true);
        drop(vector);
        assert_eq!(slab.free_chunks(), frames(2) + VECTOR);
    }

    #[test]
    fn interfaces_and_pools_have_parcels_of_their_own() {
        let pools = [pool(64), pool(64)];
        let mut vectors = pools.each_ref().map(|(_, pool)| Vector::of(pool));
        let mut all = connect(2);
        for (at, input) in [(0, 7), (0, 7), (1, 7), (1, 8), (0, 8)] {
            fill(&mut vectors[at], input..input + 2);
            assert_eq!(all[0].distribute(&mut vectors[at], input.into(), &[1; VECTOR]).given, 2);
        }
        all[0].flush(true);
        let mut parcels = Vec::new();
        while let Some((from, parcel)) = all[1].receive() {
            parcels.push((parcel.input, seen(&parcel.vector).len()));
            all[1].done(from, parcel);
        }
        assert_eq!(parcels, [(7, 4), (7, 2), (8, 2), (8, 2)], "pools stay apart too");
        all[0].flush(true);
        drop(vectors);
        assert!(pools.iter().all(|(slab, _)| slab.free_chunks() == 64));
    }

    /// Whichever worker ends first, and wherever its parcels are: filled, on their way, taken, on their way back.
    #[test]
    fn no_frame_is_lost_when_a_worker_ends() {
        for first in [0, 1] {
            let (slab, home) = pool(256);
            let mut vector = Vector::of(&home);
            let mut all: Vec<Option<Crossing>> = connect(2).into_iter().map(Some).collect();
            let mut give = |giver: &mut Crossing, send| {
                fill(&mut vector, 0..10);
                giver.distribute(&mut vector, 0, &[1; VECTOR]);
                giver.flush(send);
            };
            (0..4).for_each(|_| give(all[0].as_mut().unwrap(), true));
            let taker = all[1].as_mut().unwrap();
            let (from, parcel) = taker.receive().unwrap();
            taker.done(from, parcel);
            let (from, parcel) = taker.receive().unwrap();
            give(all[0].as_mut().unwrap(), false);
            all[first] = None;
            if let Some(taker) = &mut all[1] {
                taker.done(from, parcel);
                assert!(taker.receive().is_some(), "what was sent before the end");
            } else {
                drop(parcel);
                let giver = all[0].as_mut().unwrap();
                (0..200).for_each(|_| give(giver, true));
            }
            drop(all);
            drop(vector);
            assert_eq!(slab.free_chunks(), 256, "worker {first} ends first");
        }
    }

    #[test]
    fn a_sleeping_worker_is_woken_once_and_does_not_sleep_over_packets() {
        let (_, home) = pool(64);
        let mut vector = Vector::of(&home);
        let mut all = connect(2);
        let mut poller = Poller::new().unwrap();
        all[1].wake_with(poller.waker());
        let mut give = |giver: &mut Crossing| {
            fill(&mut vector, 0..2);
            giver.distribute(&mut vector, 0, &[1; VECTOR]);
            giver.flush(true);
        };
        let mut woken = || poller.wait(Some(0), |_| ()).unwrap().woken;
        give(&mut all[0]);
        assert!(!woken() && !all[1].may_sleep(), "it is awake, and there is something to do");
        assert!(all[1].receive().is_some() && all[1].may_sleep());
        give(&mut all[0]);
        assert!(woken());
        give(&mut all[0]);
        assert!(!woken());
        all[1].awake();
        assert!(!all[1].may_sleep());
    }
}
