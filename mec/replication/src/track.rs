//! What is common to following both protocols: an anchor's sessions, transactions, and what a captured message leads to.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::IpAddr;

use foldhash::{HashMap, HashSet};
use std::time::{Duration, Instant};
use telemetry::counters::Counter;

use crate::session::{Session, Spots};
use crate::table::Table;
use crate::template::Misfit;

pub(crate) static REPEATED: Counter = Counter::new("replication_repeated");
pub(crate) static UNREADABLE: Counter = Counter::new("replication_unreadable");
pub(crate) static UNMATCHED: Counter = Counter::new("replication_unmatched");
pub(crate) static UNKNOWN: Counter = Counter::new("replication_unknown_sessions");
pub(crate) static INCOMPLETE: Counter = Counter::new("replication_incomplete_sessions");

/// How long an answer is waited for: longer than its request is repeated.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most requests of an anchor that wait for their answers.
const MOST: usize = 65_536;
/// How long an answer waits for its request: a switch may copy two directions in another order than they passed.
const EARLY: Duration = Duration::from_secs(1);
/// Most answers that wait.
const MOST_EARLY: usize = 1024;

/// Where the numbers of transactions in originals' names start: far from those that an original counts.
pub(crate) const OURS: u32 = 0x40_0000;

/// Whether a transaction is one in an original's name.
pub(crate) fn is_ours(sequence: u32) -> bool {
    (OURS..2 * OURS).contains(&sequence)
}

/// The number before the first transaction of a replicator: another one after each start, as peers answer a number that they have
/// answered before from memory, and do nothing.
pub(crate) fn first_of_ours() -> u32 {
    // The standard library seeds this from the operating system.
    let random = RandomState::new().build_hasher().finish() as u32;
    OURS + random % OURS
}

/// A captured datagram of an anchor.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// The MME or SMF.
    pub control: IpAddr,
    /// Whether it has sent it.
    pub by_control: bool,
    /// Content.
    pub octets: &'a [u8],
}

/// Most ends whose restarts are noticed. Anybody can write any source on a packet.
const MAX_STARTS: usize = 1024;

/// What a captured message has led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A session is there, or is another one at this number.
    Began {
        /// The record.
        number: u32,
        /// The request, as the control plane has sent it.
        request: Vec<u8>,
    },
    /// The anchor has done what this request asks for; the record has it.
    Changed {
        /// The record.
        number: u32,
        /// The request, by which a clone is to be asked for the same.
        request: Vec<u8>,
    },
    /// The anchor has created or deleted bearers, and the control plane has accepted it; the record has it.
    ByAnchor {
        /// The record.
        number: u32,
        /// What a clone is to do as well: messages of a script.
        messages: Vec<Vec<u8>>,
    },
    /// The control plane has only asked the anchor something: clones are to be asked for the same.
    Queried {
        /// The record.
        number: u32,
        /// The request.
        request: Vec<u8>,
    },
    /// The control plane ends a session by this request, of which a P-GW that is apart is to hear. It is gone next.
    Deleted {
        /// The record.
        number: u32,
        /// The request.
        request: Vec<u8>,
        /// The user's addresses.
        addresses: Vec<IpAddr>,
    },
    /// The anchor has a session anew that it had lost, with the same tunnels.
    Restored {
        /// The record.
        number: u32,
        /// A request by which a clone has it as it is now; empty: it has it so.
        request: Vec<u8>,
    },
    /// A session is gone.
    Ended(u32),
    /// An answer of the control plane to a request in the anchor's name: that of a clone, or of the replicator.
    Answer {
        /// The MME or SMF.
        control: IpAddr,
        /// Its transaction.
        sequence: u32,
        /// The answer.
        octets: Vec<u8>,
    },
}

/// A transaction: the control plane's address, who began it, its number.
pub(crate) type Key = (IpAddr, bool, u32);

/// Requests that wait for their answers.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// With when they were noted, and whether they are answered: a request may pass once more behind its answer.
    requests: HashMap<Key, (Vec<u8>, Instant, bool)>,
    order: VecDeque<(Key, Instant)>,
    /// Answers whose requests have not been captured, by these.
    early: VecDeque<(Key, Vec<u8>, Instant)>,
}

impl Pending {
    /// Notes a request; whether it is a new one. Another request with the same number replaces it.
    pub(crate) fn note(&mut self, now: Instant, key: Key, octets: &[u8]) -> bool {
        while let Some((oldest, since)) = self.order.front() {
            if now.saturating_duration_since(*since) < PATIENCE && self.order.len() < MOST {
                break;
            }
            if self.requests.get(oldest).is_some_and(|(_, noted, _)| noted == since) {
                self.requests.remove(oldest);
            }
            self.order.pop_front();
        }
        if self.requests.get(&key).is_some_and(|(known, ..)| known == octets) {
            REPEATED.inc();
            return false;
        }
        self.requests.insert(key, (octets.to_vec(), now, false));
        self.order.push_back((key, now));
        true
    }

    /// An answer has come whose request is not known.
    pub(crate) fn keep_early(&mut self, now: Instant, key: Key, octets: &[u8]) {
        self.early.push_back((key, octets.to_vec(), now));
    }

    /// The answer to a request that comes behind it.
    pub(crate) fn take_early(&mut self, key: Key) -> Option<Vec<u8>> {
        let at = self.early.iter().position(|(known, ..)| *known == key)?;
        self.early.remove(at).map(|(_, octets, _)| octets)
    }

    /// An answer whose request no longer comes: it was not captured.
    pub(crate) fn lost(&mut self, now: Instant) -> Option<(Key, Vec<u8>)> {
        let (_, _, since) = self.early.front()?;
        if now.saturating_duration_since(*since) < EARLY && self.early.len() <= MOST_EARLY {
            return None;
        }
        self.early.pop_front().map(|(key, octets, _)| (key, octets))
    }

    /// The request of an answer, which is no longer waited for.
    pub(crate) fn answered(&mut self, key: Key) -> Option<Vec<u8>> {
        let (octets, _, is_answered) = self.requests.get_mut(&key)?;
        if std::mem::replace(is_answered, true) { None } else { Some(octets.clone()) }
    }

    /// A request that waits.
    pub(crate) fn get(&self, key: Key) -> Option<&[u8]> {
        self.requests.get(&key).filter(|(.., is_answered)| !is_answered).map(|(octets, ..)| &**octets)
    }

    /// All requests that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &[u8]> {
        self.requests.values().filter(|(.., is_answered)| !is_answered).map(|(octets, ..)| &**octets)
    }

    /// Whether a request has its answer already: another one is a repetition.
    pub(crate) fn is_answered(&self, key: Key) -> bool {
        self.requests.get(&key).is_some_and(|(.., is_answered)| *is_answered)
    }
}

/// Most control planes of an anchor: records have their numbers in one octet.
const MAX_PEERS: usize = 256;

/// Control planes by number, and what each says of its restarts.
#[derive(Debug, Default)]
pub struct Peers {
    addresses: Vec<IpAddr>,
    /// Numbers that were given since they were taken last.
    changed: BTreeSet<u8>,
    /// Restart counters or recovery time stamps; `None`: of the anchor.
    starts: HashMap<Option<IpAddr>, u32>,
    /// The same as an earlier program has kept them, of those who have not said it since.
    kept_starts: HashMap<Option<IpAddr>, u32>,
    /// Whose starts are others since they were taken last: numbers, or `None`.
    changed_starts: BTreeSet<Option<u8>>,
}

/// When an end has restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Between two of its messages.
    Now,
    /// While nobody followed it: before all that was captured since.
    WhileAway,
}

impl Peers {
    /// Those that were kept, in the order of their numbers, and what they have said of their starts.
    ///
    /// # Errors
    /// They are too many, or one is there twice, or a start is of none of them.
    pub fn restored(addresses: Vec<IpAddr>, starts: &[(Option<u8>, u32)]) -> Result<Peers, Misfit> {
        let different: BTreeSet<&IpAddr> = addresses.iter().collect();
        if different.len() < addresses.len() || addresses.len() > MAX_PEERS {
            return Err(Misfit);
        }
        let mut peers = Peers { addresses, ..Peers::default() };
        for (number, start) in starts {
            let end = match number {
                Some(number) => Some(peers.address(*number).ok_or(Misfit)?),
                None => None,
            };
            peers.kept_starts.insert(end, *start);
        }
        Ok(peers)
    }

    /// The number of a control plane. When all are given, it is that of one whose last session has gone, which is forgotten.
    ///
    /// # Errors
    /// There are 256 with sessions.
    pub fn number(&mut self, address: IpAddr, has_sessions: impl Fn(u8) -> bool) -> Result<u8, Misfit> {
        if let Some(at) = self.find(address) {
            return Ok(at);
        }
        let number = if self.addresses.len() < MAX_PEERS {
            self.addresses.push(address);
            (self.addresses.len() - 1) as u8
        } else {
            let number = (0..=u8::MAX).find(|number| !has_sessions(*number)).ok_or(Misfit)?;
            let former = std::mem::replace(&mut self.addresses[usize::from(number)], address);
            self.starts.remove(&Some(former));
            self.kept_starts.remove(&Some(former));
            number
        };
        self.changed.insert(number);
        self.changed_starts.insert(Some(number));
        Ok(number)
    }

    /// Numbers that were given since the last time, with their addresses.
    pub(crate) fn take_changes(&mut self) -> Vec<(u8, IpAddr)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().filter_map(|number| Some((number, self.address(number)?))).collect()
    }

    /// Starts that are others since the last time; with the control plane's number, or `None` for the anchor.
    pub(crate) fn take_starts(&mut self) -> Vec<(Option<u8>, Option<u32>)> {
        let changed = std::mem::take(&mut self.changed_starts);
        let start = |number: Option<u8>| {
            let end = match number {
                Some(number) => Some(self.address(number)?),
                None => None,
            };
            self.starts.get(&end).or_else(|| self.kept_starts.get(&end)).copied()
        };
        changed.into_iter().map(|number| (number, start(number))).collect()
    }

    /// The number of a control plane that is known.
    pub fn find(&self, address: IpAddr) -> Option<u8> {
        self.addresses.iter().position(|known| *known == address).map(|at| at as u8)
    }

    /// The control plane of a number.
    pub fn address(&self, number: u8) -> Option<IpAddr> {
        self.addresses.get(usize::from(number)).copied()
    }

    /// All of them, in the order of their numbers.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Whether it is known when a control plane has started.
    pub(crate) fn knows_start(&self, address: IpAddr) -> bool {
        let end = Some(address);
        self.starts.contains_key(&end) || self.kept_starts.contains_key(&end)
    }

    /// Notes when an end, the anchor if it is `None`, says it has started; whether it says so differently than before.
    pub(crate) fn restart(&mut self, end: Option<IpAddr>, start: u32) -> Option<Restart> {
        if self.starts.len() >= MAX_STARTS {
            let known = &self.addresses;
            self.starts.retain(|end, _| end.is_none_or(|end| known.contains(&end)));
        }
        let (before, kept) = (self.starts.insert(end, start), self.kept_starts.remove(&end));
        if before != Some(start) {
            match end.map(|address| self.find(address)) {
                None => _ = self.changed_starts.insert(None),
                Some(Some(number)) => _ = self.changed_starts.insert(Some(number)),
                // It gets a number with its first session.
                Some(None) => {}
            }
        }
        match (before, kept) {
            (Some(before), _) if before != start => Some(Restart::Now),
            (None, Some(kept)) if kept != start => Some(Restart::WhileAway),
            _ => None,
        }
    }
}

/// What a protocol needs to know beyond sessions and transactions.
pub trait Knowledge: Default + std::fmt::Debug {
    /// The same, when sessions were followed by an earlier program.
    fn restored() -> Self {
        Self::default()
    }
}

/// The sessions of one anchor. What differs by protocol is in [`n4::track`](crate::n4::track) and [`s11::track`](crate::s11::track).
#[derive(Debug)]
pub struct Tracker<K> {
    pub(crate) anchor: IpAddr,
    pub(crate) table: Table,
    pub(crate) peers: Peers,
    pub(crate) pending: Pending,
    /// Sessions that an earlier program has followed.
    pub(crate) of_earlier: HashSet<u32>,
    /// Most sessions.
    pub(crate) most: usize,
    pub(crate) own: K,
}

impl<K: Knowledge> Tracker<K> {
    /// No sessions yet, and never more than `most`.
    pub fn new(anchor: IpAddr, most: usize) -> Tracker<K> {
        let (table, peers, pending, of_earlier, own) = Default::default();
        Tracker { anchor, table, peers, pending, of_earlier, most, own }
    }

    /// With what was kept.
    pub fn restored(anchor: IpAddr, most: usize, table: Table, peers: Peers) -> Tracker<K> {
        let of_earlier = table.numbers().collect();
        Tracker { table, peers, of_earlier, own: K::restored(), ..Tracker::new(anchor, most) }
    }

    /// The records.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The records, to take changes from.
    pub fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// The control planes.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The session of a record.
    pub fn session(&self, number: u32) -> Option<Session> {
        Session::load(&self.table, number)
    }

    /// The number of a control plane.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn peer(&mut self, control: IpAddr) -> Result<u8, Misfit> {
        self.peers.number(control, |number| self.table.has_records_of(number))
    }

    /// A session is gone.
    pub(crate) fn ended(&mut self, number: u32, effects: &mut Vec<Effect>) {
        self.table.remove(number);
        self.of_earlier.remove(&number);
        effects.push(Effect::Ended(number));
    }

    /// A session has begun, maybe at a number that another one has had.
    pub(crate) fn began(&mut self, number: u32, asked: &[u8]) -> Effect {
        self.of_earlier.remove(&number);
        Effect::Began { number, request: asked.to_vec() }
    }

    /// Saves a session, which is incomplete from now on if it has become too much for a record.
    ///
    /// # Errors
    /// It has; the record is as it was before.
    pub(crate) fn save(&mut self, number: u32, session: &Session, spots: Spots) -> Result<(), Misfit> {
        let saved = session.save(&mut self.table, Some(number), spots);
        if saved.is_err() {
            self.mark_incomplete(number, spots);
        }
        saved.map(|_| ())
    }

    /// Something has changed a session that is not known, or cannot be kept.
    pub(crate) fn mark_incomplete(&mut self, number: u32, spots: Spots) {
        if let Some(before) = self.session(number) {
            // It needs no more room for this than before.
            let _ = Session { incomplete: true, ..before }.save(&mut self.table, Some(number), spots);
        }
    }

    /// An end says when it has started: a control plane, or `None` for the anchor. If it has restarted, its sessions are gone (TS 23.007
    /// §14, TS 23.527 §4): the control plane's, or those of all. What has begun since a restart that nobody followed is not gone.
    pub(crate) fn started(&mut self, end: Option<IpAddr>, start: u32, effects: &mut Vec<Effect>) {
        if let Some(restart) = self.peers.restart(end, start) {
            self.lost(end, restart, effects);
        }
    }

    /// Sessions are gone: a control plane's, or all.
    pub(crate) fn lost(&mut self, end: Option<IpAddr>, restart: Restart, effects: &mut Vec<Effect>) {
        self.lost_by(end, restart).into_iter().for_each(|number| self.ended(number, effects));
    }

    /// Which sessions an end has lost by a restart.
    pub(crate) fn lost_by(&self, end: Option<IpAddr>, restart: Restart) -> Vec<u32> {
        let peer = end.map(|control| self.peers.find(control));
        let is_of = |number: &u32| {
            let is_earlier = restart == Restart::Now || self.of_earlier.contains(number);
            is_earlier
                && peer.is_none_or(|peer| self.table.view(*number).and_then(|view| view.peer()) == peer)
        };
        self.table.numbers().filter(is_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_begins_at_another_number() {
        let firsts: BTreeSet<u32> = (0..16).map(|_| first_of_ours()).collect();
        assert!(firsts.len() > 8 && firsts.iter().all(|first| is_ours(*first)), "{firsts:?}");
    }

    fn address(at: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + at))
    }

    #[test]
    fn a_control_plane_without_sessions_makes_room_for_another_one() {
        let mut peers = Peers::default();
        for at in 0..256 {
            assert_eq!(peers.number(address(at), |_| false), Ok(at as u8));
        }
        assert_eq!(peers.take_changes().len(), 256);
        assert_eq!(peers.restart(Some(address(7)), 1), None);
        assert_eq!(peers.number(address(256), |_| true), Err(Misfit));
        assert_eq!(peers.number(address(256), |number| number != 7), Ok(7));
        assert_eq!((peers.find(address(7)), peers.find(address(256))), (None, Some(7)));
        assert_eq!(peers.take_changes(), [(7, address(256))]);
        assert_eq!(peers.restart(Some(address(7)), 2), None, "what it has said before is forgotten");
        let kept = Peers::restored(peers.addresses().to_vec(), &[]).unwrap();
        assert_eq!(kept.find(address(256)), Some(7));
        assert!(Peers::restored(vec![address(1); 2], &[]).is_err());
        assert!(Peers::restored(vec![address(1)], &[(Some(1), 5)]).is_err());
        assert!(Peers::restored((0..257).map(address).collect(), &[]).is_err());
    }

    #[test]
    fn many_who_say_that_they_have_started_take_no_memory() {
        let mut peers = Peers::default();
        peers.number(address(1), |_| false).unwrap();
        for end in [None, Some(address(1))] {
            assert_eq!(peers.restart(end, 5), None);
        }
        for at in 2..10_000 {
            assert_eq!(peers.restart(Some(address(at)), 5), None);
            assert!(peers.starts.len() <= MAX_STARTS);
        }
        for end in [None, Some(address(1))] {
            assert_eq!(peers.restart(end, 6), Some(Restart::Now), "those that matter are remembered");
        }
    }
}
