//! Admission: how much the AMF takes on for UEs that register, and whose turn it is.
//!
//! Every device with a radio can send a REGISTRATION REQUEST; an answer costs memory here and calls to other NFs.
//! Two bounds keep a crowd, or an attacker, from taking all of either:
//!
//! - **Places** ([`Place`]): registrations that call other NFs at the same time (`limits.registration_calls`). More
//!   at once would not be served faster, but every call would take longer until all of them miss their time-outs.
//!   A registration without a place waits ([`Admission::place`]). Turns go by [`Class`]: registrations that have begun
//!   go first, those with a SUCI, which costs a decryption, last. Within a class the gNBs take turns, for each gNB the
//!   identities take turns, and the same identity is served oldest first: no gNB and no identity can make another
//!   wait for more than its turn.
//! - **Room** ([`Room`]): octets held for UEs that have not proven who they are (`limits.unproven_mb`). One gNB may
//!   hold as much as is still free, so it never takes more than half and there is always room for another.
//!
//! No place is held while the UE is waited for: a UE that stays silent after its challenge keeps room, but no place.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::oneshot;

/// What a registration does next; the first listed goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// It goes on: the UE has answered its challenge, or has proven who it is.
    Begun,
    /// It begins, for a UE that this AMF knows and that has proven who it is with its current keys.
    Registered,
    /// It begins, for a UE that claims to be one that this AMF knows.
    Claimed,
    /// It begins, for a UE that gives a SUCI.
    Unknown,
}

const CLASSES: usize = 4;

impl Class {
    /// Name for counters.
    pub fn name(self) -> &'static str {
        match self {
            Class::Begun => "begun",
            Class::Registered => "registered",
            Class::Claimed => "claimed",
            Class::Unknown => "unknown",
        }
    }
}

/// Both bounds. One per AMF.
#[derive(Debug)]
pub(crate) struct Admission {
    state: Mutex<State>,
    places: usize,
    octets: usize,
    /// Identities are compared by a hash that nobody outside can predict.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    places_taken: usize,
    waiting: [Turns<u64, Turns<u64, Line>>; CLASSES],
    /// Waiters in `waiting`, those that have given up included.
    queued: usize,
    /// Waiters in `waiting` that have given up.
    abandoned: usize,
    octets_taken: usize,
    /// By the key of the gNB's association.
    octets_by_gnb: HashMap<u64, usize>,
}

type Waiter = oneshot::Sender<Place>;

/// Waiters that give up stay in their line until their turn. When more than this and more than half of all have given
/// up, they are removed.
const ABANDONED_KEPT: usize = 64;

/// What [`Admission`] holds now, for `GET /status`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Load {
    /// Registrations that call other NFs.
    pub registration_calls: usize,
    /// Registrations that wait for their turn.
    pub registrations_waiting: usize,
    /// Octets held for UEs that have not proven who they are.
    pub unproven_octets: usize,
    /// The most of these that may be held.
    pub unproven_octets_limit: usize,
}

impl Admission {
    pub fn new(places: usize, octets: usize) -> Arc<Admission> {
        let state = Mutex::default();
        Arc::new(Admission { state, places, octets, hasher: RandomState::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a place on behalf of `identity`, which came through the association `gnb`. The ticket resolves when it
    /// is this registration's turn.
    pub fn place(self: &Arc<Admission>, class: Class, gnb: u64, identity: &str) -> Ticket {
        let (waiter, granted) = oneshot::channel();
        let mut state = self.state();
        if state.places_taken < self.places {
            // A place is free only when no registration waits.
            state.places_taken += 1;
            drop(state);
            // The receiver is right here.
            _ = waiter.send(Place(Some(self.clone())));
        } else {
            let identity = self.hasher.hash_one(identity);
            state.waiting[class as usize].line(gnb).line(identity).0.push_back(waiter);
            state.queued += 1;
        }
        Ticket { granted, admission: self.clone(), settled: false }
    }

    /// Takes `octets` for a UE of the association `gnb`; `None` when there is no room.
    pub fn room(self: &Arc<Admission>, gnb: u64, octets: usize) -> Option<Room> {
        let mut state = self.state();
        let state = &mut *state;
        let free = self.octets.saturating_sub(state.octets_taken);
        let of_gnb = state.octets_by_gnb.entry(gnb).or_default();
        if *of_gnb + octets > free {
            if *of_gnb == 0 {
                state.octets_by_gnb.remove(&gnb);
            }
            return None;
        }
        *of_gnb += octets;
        state.octets_taken += octets;
        Some(Room { admission: self.clone(), gnb, octets })
    }

    /// What is held now.
    pub fn load(&self) -> Load {
        let state = self.state();
        Load {
            registration_calls: state.places_taken,
            registrations_waiting: state.queued.saturating_sub(state.abandoned),
            unproven_octets: state.octets_taken,
            unproven_octets_limit: self.octets,
        }
    }

    /// Gives a place that became free to whose turn it is.
    fn pass_on(self: Arc<Admission>) {
        let mut place = Place(Some(self));
        while let Some(admission) = place.0.take() {
            let mut state = admission.state();
            let Some(waiter) = state.next() else {
                state.places_taken -= 1;
                return;
            };
            drop(state);
            match waiter.send(Place(Some(admission))) {
                Ok(()) => return,
                // It gave up this moment, after it left its line: the next one's turn.
                Err(unused) => {
                    place = unused;
                    if let Some(admission) = &place.0 {
                        let mut state = admission.state();
                        state.abandoned = state.abandoned.saturating_sub(1);
                    }
                }
            }
        }
    }
}

impl State {
    /// The waiter whose turn it is.
    fn next(&mut self) -> Option<Waiter> {
        for class in &mut self.waiting {
            while let Some(waiter) = class.pop() {
                self.queued -= 1;
                if !waiter.is_closed() {
                    return Some(waiter);
                }
                self.abandoned = self.abandoned.saturating_sub(1);
            }
        }
        None
    }

    fn forget_abandoned(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        (self.queued, self.abandoned) = (0, 0);
        for (class, into) in waiting.iter_mut().zip(&mut self.waiting) {
            for gnb in std::mem::take(&mut class.order) {
                let Some(mut identities) = class.lines.remove(&gnb) else { continue };
                for identity in std::mem::take(&mut identities.order) {
                    let Some(line) = identities.lines.remove(&identity) else { continue };
                    for waiter in line.0.into_iter().filter(|waiter| !waiter.is_closed()) {
                        into.line(gnb).line(identity).0.push_back(waiter);
                        self.queued += 1;
                    }
                }
            }
        }
    }
}

/// Waiters in the order in which they came.
#[derive(Debug, Default)]
struct Line(VecDeque<Waiter>);

/// Lines that take turns, one waiter each.
#[derive(Debug, Default)]
struct Turns<K, L> {
    order: VecDeque<K>,
    lines: HashMap<K, L>,
}

/// Something waiters are taken from.
trait Queue {
    fn pop(&mut self) -> Option<Waiter>;
    fn is_empty(&self) -> bool;
}

impl Queue for Line {
    fn pop(&mut self) -> Option<Waiter> {
        self.0.pop_front()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Copy + Eq + Hash, L: Default> Turns<K, L> {
    /// The line of `key`; a new one takes its turn after all others.
    fn line(&mut self, key: K) -> &mut L {
        self.lines.entry(key).or_insert_with(|| {
            self.order.push_back(key);
            L::default()
        })
    }
}

impl<K: Copy + Eq + Hash, L: Default + Queue> Queue for Turns<K, L> {
    fn pop(&mut self) -> Option<Waiter> {
        let key = self.order.pop_front()?;
        let line = self.lines.get_mut(&key)?;
        let waiter = line.pop();
        if line.is_empty() {
            self.lines.remove(&key);
        } else {
            self.order.push_back(key);
        }
        waiter
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// The right to call other NFs for a registration; dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Place(Option<Arc<Admission>>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(admission) = self.0.take() {
            admission.pass_on();
        }
    }
}

/// A turn that is waited for. Dropping it gives the turn up.
#[derive(Debug)]
pub(crate) struct Ticket {
    granted: oneshot::Receiver<Place>,
    admission: Arc<Admission>,
    settled: bool,
}

impl Ticket {
    /// Resolves when it is this registration's turn. Cancel-safe; not to be called again after it resolved.
    pub async fn granted(&mut self) -> Place {
        let place = (&mut self.granted).await;
        self.settled = true;
        match place {
            Ok(place) => place,
            // The waiter is only dropped after the ticket.
            Err(_) => Place(None),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let unused = {
            // Under the lock, so that `next` either finds the waiter closed or has taken it out before.
            let mut state = self.admission.state();
            self.granted.close();
            let granted = self.granted.try_recv();
            if granted.is_err() {
                state.abandoned += 1;
                if state.abandoned > ABANDONED_KEPT && state.abandoned > state.queued / 2 {
                    state.forget_abandoned();
                }
            }
            granted
        };
        // Passes on a place that was granted this moment.
        drop(unused);
    }
}

/// Octets taken for a UE that has not proven who it is; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Room {
    admission: Arc<Admission>,
    gnb: u64,
    octets: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        state.octets_taken -= self.octets;
        if let Some(of_gnb) = state.octets_by_gnb.get_mut(&self.gnb) {
            *of_gnb -= self.octets;
            if *of_gnb == 0 {
                state.octets_by_gnb.remove(&self.gnb);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the ticket's place when it is its turn already.
    fn taken(ticket: &mut Ticket) -> Option<Place> {
        let place = ticket.granted.try_recv().ok();
        ticket.settled |= place.is_some();
        place
    }

    /// The order in which tickets get the only place, by index.
    fn order(admission: &Arc<Admission>, first: Place, tickets: &mut [Ticket]) -> Vec<usize> {
        let mut order = Vec::new();
        let mut current = Some(first);
        while current.take().is_some() {
            for (n, ticket) in tickets.iter_mut().enumerate() {
                if let Some(place) = taken(ticket) {
                    order.push(n);
                    current = Some(place);
                    break;
                }
            }
        }
        assert_eq!(admission.load().registration_calls, 0);
        order
    }

    #[test]
    fn what_is_begun_goes_first_and_a_suci_last_oldest_first() {
        let admission = Admission::new(1, 0);
        let first = taken(&mut admission.place(Class::Unknown, 1, "a")).unwrap();
        let classes = [Class::Unknown, Class::Claimed, Class::Unknown, Class::Begun, Class::Registered];
        let mut tickets: Vec<Ticket> =
            classes.iter().zip(["b", "c", "d", "e", "f"]).map(|(c, id)| admission.place(*c, 1, id)).collect();
        assert_eq!(admission.load().registrations_waiting, 5);
        assert_eq!(order(&admission, first, &mut tickets), [3, 4, 1, 0, 2]);
    }

    #[test]
    fn gnbs_and_identities_take_turns() {
        let admission = Admission::new(1, 0);
        let first = taken(&mut admission.place(Class::Unknown, 1, "a")).unwrap();
        let flood = (0..100).map(|_| (1, "victim".to_owned()));
        let crowd = (0..100).map(|n| (2, format!("false-{n}")));
        let others = [(1, "other".to_owned()), (3, "third".to_owned())];
        let asked: Vec<_> = flood.chain(crowd).chain(others).collect();
        let mut tickets: Vec<Ticket> =
            asked.iter().map(|(gnb, id)| admission.place(Class::Unknown, *gnb, id)).collect();
        let order = order(&admission, first, &mut tickets);
        assert_eq!(order.len(), 202);
        let turn = |n: usize| order.iter().position(|ticket| *ticket == n).unwrap();
        assert!(turn(201) < 3, "another gNB waits for one turn of each");
        assert!(turn(200) < 6, "another UE of the gNB waits for one turn of the flood");
        assert!(turn(0) < turn(99) && turn(100) < turn(199), "oldest first");
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let admission = Admission::new(2, 0);
        let places: Vec<Place> =
            (0..2).map(|_| taken(&mut admission.place(Class::Begun, 1, "a")).unwrap()).collect();
        let mut tickets: Vec<Ticket> =
            (0..1000).map(|n| admission.place(Class::Unknown, n % 7, &n.to_string())).collect();
        let mut last = tickets.pop().unwrap();
        tickets.truncate(10);
        assert_eq!(admission.load().registrations_waiting, 11);
        assert!(admission.state().queued < 100, "they do not stay until their turn");
        drop(tickets);
        drop(places);
        let place = taken(&mut last).unwrap();
        assert_eq!(admission.load().registration_calls, 1);
        assert_eq!(admission.load().registrations_waiting, 0);
        drop(place);
        // A ticket dropped between its grant and its use gives the place back too.
        let places: Vec<Place> =
            (0..2).map(|_| taken(&mut admission.place(Class::Begun, 1, "a")).unwrap()).collect();
        let unused = admission.place(Class::Unknown, 1, "b");
        drop(places);
        drop(unused);
        assert_eq!(admission.load().registration_calls, 0);
    }

    #[test]
    fn a_gnb_takes_no_more_than_is_free_and_all_is_given_back() {
        let admission = Admission::new(1, 1000);
        let held: Vec<Room> = (0..100).map_while(|_| admission.room(1, 10)).collect();
        assert_eq!(held.len(), 50, "one gNB takes half");
        let other: Vec<Room> = (0..100).map_while(|_| admission.room(2, 10)).collect();
        assert_eq!(other.len(), 25, "the next one half of the rest");
        assert!(admission.room(1, 10).is_none());
        assert!(admission.room(3, 10).is_some());
        assert_eq!(admission.load().unproven_octets, 750);
        drop((held, other));
        assert_eq!(admission.load().unproven_octets, 0);
        assert!(admission.state().octets_by_gnb.is_empty());
    }
}
