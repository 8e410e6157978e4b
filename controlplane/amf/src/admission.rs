//! Admission: how many registrations the AMF handles at the same time, and in which order.
//!
//! Every device with a radio can send a REGISTRATION REQUEST. The answer costs memory here and calls to other NFs.
//! Three limits keep a crowd, or an attacker, from taking all of either:
//!
//! - **Registrations that run** ([`Admission::starts`], `limits.registrations`), of UEs without proven identity. Other UEs
//!   wait, and the AMF keeps only their first message (`first_message.rs`). So registrations that have begun also end,
//!   instead of all becoming slower together.
//! - **Calls** ([`Admission::calls`], `limits.registration_calls`): registrations that call other NFs
//!   at the same time. More calls at once would not be served faster. Each would take longer, until all
//!   of them time out.
//! - **Room** ([`Room`]): memory for UEs without proven identity (`limits.unproven_mb`). One host may hold as much as is
//!   still free, so it never takes more than half, and another host always finds room. For UEs that wait a host may hold half as
//!   much as is free, so that one of them always finds room to begin.
//!
//! A host is the IPv4 address or IPv6 /64 of gNBs ([`crate::gnb::host`]). All its associations share what one host may have, because
//! they cost it nothing: it can open many, with another gNB identity on each. So gNBs behind one address share its turns.
//!
//! The first two are [`Gate`]s. A registration that finds no free [`Place`] waits. The order is that of [`Class`]:
//! registrations that have begun first; those with a SUCI, which has to be decrypted, last. Every [`LAST_FIRST`]-th place
//! goes to the last class in which somebody waits: anybody can claim a known 5G-GUTI, and a flood of such claims must not
//! keep out every UE with a SUCI. Within a class the hosts take turns, and so do the names of each host: no host and no name delays another by more than one turn. Of one name the
//! newest message goes first, and only the newest [`SAME_NAME`] wait to start: a UE has one connection, so an older
//! message of its name comes from a connection that the UE has given up, or from somebody else.
//!
//! Names share room, too: of one name and host only the newest [`SAME_NAME_RUNNING`] UEs have it.
//!
//! A registration gives its place for calls back while it waits for the UE, and its other place after
//! [`crate::ue::UE_PATIENCE`]: a UE that does not answer its challenge keeps room, but no place.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::context::UeHandle;

/// The next step of a registration. Earlier variants go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// The registration continues: the UE has answered its challenge, or has proven its identity.
    Begun,
    /// The registration begins; the AMF knows the UE, and the UE has proven its identity with its
    /// current keys.
    Registered,
    /// The registration begins; the UE claims an identity that the AMF knows.
    Claimed,
    /// The registration begins; the UE gives a SUCI.
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

/// All limits. One per AMF.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Registrations that run, of UEs without proven identity.
    pub starts: Arc<Gate>,
    /// Registrations that call other NFs.
    pub calls: Arc<Gate>,
    memory: Mutex<Memory>,
    octets: usize,
    hasher: RandomState,
}

/// Admits a limited number of registrations at a time; others wait for their turn.
#[derive(Debug)]
pub(crate) struct Gate {
    waiting: Mutex<Waiting>,
    places: usize,
    /// Most waiters of one name and host; if there are more, the oldest is dropped.
    same_name: usize,
    /// Names are compared by a hash that no peer can predict.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Waiting {
    places_taken: usize,
    by_class: [Turns<IpAddr, Turns<u64, Line>>; CLASSES],
    /// Number of places given to waiters, modulo [`LAST_FIRST`].
    places_given: usize,
    /// Number of waiters in `by_class`, including those that have stopped waiting.
    queued: usize,
    /// Number of waiters in `by_class` that have stopped waiting.
    abandoned: usize,
}

#[derive(Debug, Default)]
struct Memory {
    taken: usize,
    by_host: HashMap<IpAddr, usize>,
    /// The UEs without proven identity of each host and name, oldest first.
    by_name: HashMap<(IpAddr, u64), VecDeque<Arc<UeHandle>>>,
}

/// One of so many places goes to the last class instead of the first.
const LAST_FIRST: usize = 4;

type Waiter = oneshot::Sender<Place>;

/// Waiters that stop waiting stay in their line until their turn. If there are more of them than this,
/// and more than half of all, they are removed.
const ABANDONED_KEPT: usize = 64;

/// Most waiters of one name and host. A UE has one; a few more if the UE was restarted while it waited.
const SAME_NAME: usize = 4;

/// Most UEs of one name and host whose registrations run. If another begins, the oldest ends. A UE has
/// time to prove its identity unless more than some thousand messages a second use its name.
const SAME_NAME_RUNNING: usize = 256;

/// Places and memory in use, for `GET /status`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Load {
    /// Running registrations of UEs without proven identity, except those whose UE does not answer.
    pub registrations: usize,
    /// Registrations that call other NFs.
    pub registration_calls: usize,
    /// Registrations that wait for their turn.
    pub registrations_waiting: usize,
    /// Octets reserved for UEs without proven identity.
    pub unproven_octets: usize,
    /// Most octets that may be reserved for them.
    pub unproven_octets_limit: usize,
}

impl Admission {
    pub fn new(starts: usize, calls: usize, octets: usize) -> Arc<Admission> {
        Arc::new(Admission {
            starts: Gate::new(starts, SAME_NAME),
            // Registrations that wait here have begun, and `starts` bounds their number.
            calls: Gate::new(calls, usize::MAX),
            memory: Mutex::default(),
            octets,
            hasher: RandomState::new(),
        })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `octets` for a UE of `host` whose registration begins; `None` if there
    /// is not enough memory.
    pub fn room(self: &Arc<Admission>, host: IpAddr, octets: usize) -> Option<Room> {
        self.take(host, octets, 1)
    }

    /// Reserves `octets` for a waiting UE of `host`. The limit is lower than that of
    /// [`Self::room`]: however many wait, some can begin.
    pub fn room_to_wait(self: &Arc<Admission>, host: IpAddr, octets: usize) -> Option<Room> {
        self.take(host, octets, 2)
    }

    /// Reserves `octets` if the host then has at most the `share`-th part of the octets that are still
    /// free.
    fn take(self: &Arc<Admission>, host: IpAddr, octets: usize, share: usize) -> Option<Room> {
        let mut memory = self.memory();
        let memory = &mut *memory;
        let free = self.octets.checked_sub(memory.taken + octets)? / share;
        let of_host = memory.by_host.entry(host).or_default();
        if *of_host + octets > free {
            if *of_host == 0 {
                memory.by_host.remove(&host);
            }
            return None;
        }
        *of_host += octets;
        memory.taken += octets;
        Some(Room { admission: self.clone(), host, octets, named: None })
    }

    /// Places and memory in use.
    pub fn load(&self) -> Load {
        let (registrations, to_start) = self.starts.load();
        let (registration_calls, to_call) = self.calls.load();
        Load {
            registrations,
            registration_calls,
            registrations_waiting: to_start + to_call,
            unproven_octets: self.memory().taken,
            unproven_octets_limit: self.octets,
        }
    }
}

impl Gate {
    fn new(places: usize, same_name: usize) -> Arc<Gate> {
        Arc::new(Gate { waiting: Mutex::default(), places, same_name, hasher: RandomState::new() })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, if one is free now.
    pub fn try_enter(self: &Arc<Gate>) -> Option<Place> {
        let mut waiting = self.waiting();
        // While registrations wait, no place is free.
        if waiting.places_taken >= self.places {
            return None;
        }
        waiting.places_taken += 1;
        Some(Place(Some(self.clone())))
    }

    /// Asks for a place on behalf of `name`, whose message came from `host`. The ticket resolves when it
    /// is its turn.
    pub fn enter(self: &Arc<Gate>, class: Class, host: IpAddr, name: &str) -> Ticket {
        let (waiter, granted) = oneshot::channel();
        let mut waiting = self.waiting();
        if waiting.places_taken < self.places {
            waiting.places_taken += 1;
            drop(waiting);
            // The receiver exists, so this succeeds.
            _ = waiter.send(Place(Some(self.clone())));
        } else {
            let name = self.hasher.hash_one(name);
            waiting.push(class as usize, host, name, waiter, self.same_name);
        }
        Ticket { granted, gate: self.clone(), settled: false }
    }

    /// Number of places taken, and of waiters.
    fn load(&self) -> (usize, usize) {
        let waiting = self.waiting();
        (waiting.places_taken, waiting.queued.saturating_sub(waiting.abandoned))
    }

    /// Gives a free place to the next waiter.
    fn pass_on(self: Arc<Gate>) {
        let mut place = Place(Some(self));
        while let Some(gate) = place.0.take() {
            let mut waiting = gate.waiting();
            let Some(waiter) = waiting.next() else {
                waiting.places_taken -= 1;
                return;
            };
            drop(waiting);
            match waiter.send(Place(Some(gate))) {
                Ok(()) => return,
                // This waiter stopped waiting after it left its line: the next one gets the place.
                Err(unused) => {
                    place = unused;
                    if let Some(gate) = &place.0 {
                        let mut waiting = gate.waiting();
                        waiting.abandoned = waiting.abandoned.saturating_sub(1);
                    }
                }
            }
        }
    }
}

impl Waiting {
    /// Adds a waiter to its line. If the line has more than `most`, the oldest is dropped.
    fn push(&mut self, class: usize, host: IpAddr, name: u64, waiter: Waiter, most: usize) {
        let Some(class) = self.by_class.get_mut(class) else { return };
        let line = class.line(host).line(name);
        line.0.push_back(waiter);
        self.queued += 1;
        if line.0.len() > most
            && let Some(oldest) = line.0.pop_front()
        {
            self.queued -= 1;
            if oldest.is_closed() {
                self.abandoned = self.abandoned.saturating_sub(1);
            }
        }
    }

    /// Removes and returns the next waiter.
    fn next(&mut self) -> Option<Waiter> {
        self.places_given = (self.places_given + 1) % LAST_FIRST;
        let last_first = self.places_given == 0;
        (0..CLASSES).find_map(|n| self.next_of(if last_first { CLASSES - 1 - n } else { n }))
    }

    /// Removes and returns the next waiter of a class.
    fn next_of(&mut self, class: usize) -> Option<Waiter> {
        let class = self.by_class.get_mut(class)?;
        while let Some(waiter) = class.pop() {
            self.queued -= 1;
            if !waiter.is_closed() {
                return Some(waiter);
            }
            self.abandoned = self.abandoned.saturating_sub(1);
        }
        None
    }

    /// Counts a waiter that has stopped waiting.
    fn give_up(&mut self) {
        self.abandoned += 1;
        if self.abandoned > ABANDONED_KEPT && self.abandoned > self.queued / 2 {
            self.forget_abandoned();
        }
    }

    fn forget_abandoned(&mut self) {
        let mut by_class = std::mem::take(&mut self.by_class);
        (self.queued, self.abandoned) = (0, 0);
        for (n, class) in by_class.iter_mut().enumerate() {
            for host in std::mem::take(&mut class.order) {
                let Some(mut names) = class.lines.remove(&host) else { continue };
                for name in std::mem::take(&mut names.order) {
                    let Some(line) = names.lines.remove(&name) else { continue };
                    for waiter in line.0.into_iter().filter(|waiter| !waiter.is_closed()) {
                        self.push(n, host, name, waiter, usize::MAX);
                    }
                }
            }
        }
    }
}

/// Waiters of one name, in the order of their arrival.
#[derive(Debug, Default)]
struct Line(VecDeque<Waiter>);

/// Lines that take turns; in each turn one waiter leaves its line.
#[derive(Debug)]
struct Turns<K, L> {
    order: VecDeque<K>,
    lines: HashMap<K, L>,
}

impl<K, L> Default for Turns<K, L> {
    fn default() -> Turns<K, L> {
        Turns { order: VecDeque::new(), lines: HashMap::new() }
    }
}

/// A source of waiters.
trait Queue {
    fn pop(&mut self) -> Option<Waiter>;
    fn is_empty(&self) -> bool;
}

impl Queue for Line {
    fn pop(&mut self) -> Option<Waiter> {
        self.0.pop_back()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Copy + Eq + Hash, L: Default> Turns<K, L> {
    /// The line of `key`; a new line gets its turn after all others.
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

/// A place in a [`Gate`]; dropping it gives the place to the next waiter.
#[derive(Debug)]
pub(crate) struct Place(Option<Arc<Gate>>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.pass_on();
        }
    }
}

/// A wait for a place. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct Ticket {
    granted: oneshot::Receiver<Place>,
    gate: Arc<Gate>,
    settled: bool,
}

impl Ticket {
    /// Resolves when it is its turn; with `None` if too many newer messages of the same name have
    /// arrived. Cancel-safe; must not be called again after it resolved.
    pub async fn granted(&mut self) -> Option<Place> {
        let place = (&mut self.granted).await;
        self.settled = true;
        place.ok()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let unused = {
            // Under the lock, so that `next` and `push` either find the waiter closed or have removed
            // it before.
            let mut waiting = self.gate.waiting();
            match self.granted.try_recv() {
                Ok(place) => Some(place),
                // It was dropped from its line.
                Err(TryRecvError::Closed) => None,
                Err(TryRecvError::Empty) => {
                    self.granted.close();
                    let place = self.granted.try_recv().ok();
                    if place.is_none() {
                        waiting.give_up();
                    }
                    place
                }
            }
        };
        // Gives away a place that was granted in this moment.
        drop(unused);
    }
}

/// Memory reserved for a UE without proven identity; dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct Room {
    admission: Arc<Admission>,
    host: IpAddr,
    octets: usize,
    /// Whose room it is, by the hash of its name.
    named: Option<(u64, Arc<UeHandle>)>,
}

impl Room {
    /// Sets the UE that has the room. If more than [`SAME_NAME_RUNNING`] UEs of this name and host have
    /// room then, ends the oldest; `true` in this case.
    pub fn set_owner(&mut self, name: &str, ue: &Arc<UeHandle>) -> bool {
        let name = self.admission.hasher.hash_one(name);
        self.named = Some((name, ue.clone()));
        let mut memory = self.admission.memory();
        let ues = memory.by_name.entry((self.host, name)).or_default();
        ues.push_back(ue.clone());
        let oldest = if ues.len() > SAME_NAME_RUNNING { ues.pop_front() } else { None };
        // Under the lock: a UE that gives its room back has been notified before, or never will be.
        oldest.inspect(|oldest| oldest.superseded.notify_one()).is_some()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut memory = self.admission.memory();
        if let Some((name, ue)) = &self.named
            && let Entry::Occupied(mut ues) = memory.by_name.entry((self.host, *name))
        {
            ues.get_mut().retain(|other| !Arc::ptr_eq(other, ue));
            if ues.get().is_empty() {
                ues.remove();
            }
        }
        memory.taken -= self.octets;
        if let Some(of_host) = memory.by_host.get_mut(&self.host) {
            *of_host -= self.octets;
            if *of_host == 0 {
                memory.by_host.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(places: usize) -> Arc<Gate> {
        Gate::new(places, SAME_NAME)
    }

    fn host(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    /// Takes the ticket's place if it has been granted.
    fn taken(ticket: &mut Ticket) -> Option<Place> {
        let place = ticket.granted.try_recv().ok();
        ticket.settled |= place.is_some();
        place
    }

    /// The order in which tickets get the only place, by index.
    fn order(gate: &Arc<Gate>, first: Place, tickets: &mut [Ticket]) -> Vec<usize> {
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
        assert_eq!(gate.load(), (0, 0));
        order
    }

    #[test]
    fn what_is_begun_goes_first_and_a_suci_last_oldest_first() {
        let gate = gate(1);
        let first = gate.try_enter().unwrap();
        assert!(gate.try_enter().is_none());
        let classes = [Class::Unknown, Class::Claimed, Class::Unknown, Class::Begun, Class::Registered];
        let mut tickets: Vec<Ticket> = classes
            .iter()
            .zip(["b", "c", "d", "e", "f"])
            .map(|(c, id)| gate.enter(*c, host(1), id))
            .collect();
        assert_eq!(gate.load(), (1, 5));
        assert_eq!(order(&gate, first, &mut tickets), [3, 4, 1, 0, 2]);
    }

    #[test]
    fn a_flood_of_claimed_identities_does_not_keep_out_a_suci() {
        // One identity, whose newest message goes first, and many.
        for names in [1, 50] {
            let gate = gate(1);
            let mut current = gate.try_enter();
            let mut flood: Vec<Ticket> = Vec::new();
            let mut sucis: Vec<Ticket> =
                ["a", "b"].map(|name| gate.enter(Class::Unknown, host(2), name)).into();
            let mut begun = gate.enter(Class::Begun, host(3), "c");
            let mut order = Vec::new();
            for turn in 0..4 * LAST_FIRST {
                // The flood never ends: after every place, more of it waits than there are places.
                for n in 0..3 {
                    flood.push(gate.enter(Class::Claimed, host(1), &((3 * turn + n) % names).to_string()));
                }
                drop(current.take());
                let of = |class, tickets: &mut [Ticket]| {
                    tickets.iter_mut().find_map(taken).map(|place| (class, place))
                };
                let (class, place) = of(Class::Begun, std::slice::from_mut(&mut begun))
                    .or_else(|| of(Class::Unknown, &mut sucis))
                    .or_else(|| of(Class::Claimed, &mut flood))
                    .unwrap();
                order.push(class);
                current = Some(place);
            }
            assert_eq!(order[0], Class::Begun, "{order:?}");
            let served: Vec<usize> = (0..order.len()).filter(|n| order[*n] == Class::Unknown).collect();
            assert_eq!(served, [LAST_FIRST - 1, 2 * LAST_FIRST - 1], "{order:?}");
        }
    }

    #[test]
    fn hosts_and_names_take_turns() {
        let gate = gate(1);
        let first = gate.try_enter().unwrap();
        let crowd = (0..100).map(|n| (2, format!("false-{n}")));
        let others = [(1, "other".to_owned()), (1, "another".to_owned()), (3, "third".to_owned())];
        let asked: Vec<_> = crowd.chain(others).collect();
        let mut tickets: Vec<Ticket> =
            asked.iter().map(|(n, id)| gate.enter(Class::Unknown, host(*n), id)).collect();
        let order = order(&gate, first, &mut tickets);
        assert_eq!(order.len(), 103);
        let turn = |n: usize| order.iter().position(|ticket| *ticket == n).unwrap();
        assert!(turn(102) < 3, "another host waits for one turn of each");
        assert!(turn(101) < 6, "and its second UE for two");
        assert!(turn(0) < turn(99), "oldest first");
    }

    #[test]
    fn a_flood_of_one_name_takes_one_place_in_line_and_its_newest_goes_first() {
        let gate = gate(1);
        let first = gate.try_enter().unwrap();
        // The flood, the UE whose name it uses, and another UE, all from one host.
        let names = std::iter::repeat_n("victim", 101).chain(["other"]);
        let mut tickets: Vec<Ticket> = names.map(|name| gate.enter(Class::Unknown, host(1), name)).collect();
        assert_eq!(gate.load(), (1, SAME_NAME + 1), "the rest of the flood does not wait");
        assert!(matches!(tickets[0].granted.try_recv(), Err(TryRecvError::Closed)), "it is told so");
        assert_eq!(order(&gate, first, &mut tickets), [100, 101, 99, 98, 97]);
        // Waiters dropped from their line are not counted a second time when they notice it.
        drop(tickets);
        assert_eq!(gate.load(), (0, 0));
        let waiting = gate.waiting();
        assert_eq!((waiting.queued, waiting.abandoned), (0, 0));
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let gate = gate(2);
        let places: Vec<Place> = (0..2).map(|_| gate.try_enter().unwrap()).collect();
        let mut tickets: Vec<Ticket> =
            (0..1000_u32).map(|n| gate.enter(Class::Unknown, host((n % 7) as u8), &n.to_string())).collect();
        let mut last = tickets.pop().unwrap();
        tickets.truncate(10);
        assert_eq!(gate.load(), (2, 11));
        assert!(gate.waiting().queued < 100, "they do not stay until their turn");
        drop(tickets);
        drop(places);
        let place = taken(&mut last).unwrap();
        assert_eq!(gate.load(), (1, 0));
        drop(place);
        // A ticket dropped between its grant and its use also frees the place.
        let places: Vec<Place> = (0..2).map(|_| gate.try_enter().unwrap()).collect();
        let unused = gate.enter(Class::Unknown, host(1), "b");
        drop(places);
        drop(unused);
        assert_eq!(gate.load(), (0, 0));
    }

    #[test]
    fn a_host_takes_no_more_than_is_free_and_all_is_given_back() {
        let admission = Admission::new(1, 1, 1000);
        let held: Vec<Room> = (0..100).map_while(|_| admission.room(host(1), 10)).collect();
        assert_eq!(held.len(), 50, "one host takes half");
        let other: Vec<Room> = (0..100).map_while(|_| admission.room(host(2), 10)).collect();
        assert_eq!(other.len(), 25, "the next one half of the rest");
        assert!(admission.room(host(1), 10).is_none());
        assert!(admission.room(host(3), 10).is_some());
        assert_eq!(admission.load().unproven_octets, 750);
        drop((held, other));
        let waiting: Vec<Room> = (0..100).map_while(|_| admission.room_to_wait(host(1), 10)).collect();
        assert_eq!(waiting.len(), 33, "those that wait take a third");
        let held: Vec<Room> = (0..100).map_while(|_| admission.room(host(1), 10)).collect();
        assert_eq!(held.len(), 17, "and leave some for those that begin");
        drop((held, waiting));
        assert_eq!(admission.load().unproven_octets, 0);
        assert!(admission.memory().by_host.is_empty());
    }
}
