//! What the orchestrator knows: moves, and users whose state is at edge hosts. All of it is plain data in the journal.
//!
//! A [`User`] is there as long as it is at an edge host, waits for one, or has a replica somewhere. A user without a record is on its
//! original anchor. [`State::apply`] is the only place that changes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use store::journal::Contents;

/// Ended moves that are kept,
const KEPT_MOVES: usize = 1000;
/// and entries of users in them: some tens of megabytes.
const KEPT_ENTRIES: usize = 100_000;
/// Entries of a move's history.
const HISTORY: usize = 64;

/// The anchor that a user's own MME or SMF knows, and the user's identity there.
pub type Key = (String, String);

/// Where a move stands. Each stage can be repeated from its beginning, which is what happens after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The target's anchor is started, and is to answer.
    Starting,
    /// The users' state is copied to the target.
    Replicating,
    /// The users' packets are steered to the target.
    Diverting,
    /// The users' packets are steered back to their original anchor.
    Returning,
    /// State that nobody needs any more is removed.
    Tidying,
    /// What was done is undone.
    RollingBack,
    /// Ended: those of the users that could be moved are.
    Done,
    /// Ended: nobody was moved.
    Failed,
    /// Ended on request: nobody was moved.
    Aborted,
}

impl Stage {
    /// Whether the move has ended.
    pub fn is_end(self) -> bool {
        matches!(self, Stage::Done | Stage::Failed | Stage::Aborted)
    }

    /// Whether the move can still be undone.
    pub fn is_before_flip(self) -> bool {
        matches!(self, Stage::Starting | Stage::Replicating | Stage::Diverting)
    }
}

/// How a user fares in a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Under way.
    Pending,
    /// At the target.
    Moved,
    /// Its state is at the target; its packets follow when it is active.
    Waiting,
    /// Its state is at the target, as asked for.
    Warm,
    /// Where it was.
    Stays,
}

/// A user of a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// Its original anchor.
    pub origin: String,
    /// Its identity.
    pub id: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The edge host where it was; none: its original anchor.
    pub from: Option<String>,
    /// Its base station and tunnels when the move began.
    #[serde(default)]
    pub place: Place,
    /// How it fares.
    pub state: Fate,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Moving {
    /// What names it.
    pub fn key(&self) -> Key {
        (self.origin.clone(), self.id.clone())
    }
}

/// What has happened to a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Microseconds since 1970.
    pub time_us: u64,
    /// The state that began.
    pub state: Stage,
    /// Why, or what was done.
    pub detail: String,
}

/// How state gets to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// That of the moved users.
    #[default]
    Selective,
    /// Everything of the original anchor is replayed.
    Naive,
}

/// Whether packets keep their order when they change their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Packets on the old way may arrive later than those on the new one.
    #[default]
    None,
    /// Packets on the new way are held until those on the old way have arrived.
    Keep,
}

/// A move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Its number.
    pub id: u64,
    /// The edge host; none: back to the original anchors.
    pub to: Option<String>,
    /// Only the state is moved, or left there on the way back.
    pub warm: bool,
    /// How state gets to the target.
    pub scheme: Scheme,
    /// Whether packets keep their order.
    pub order: Order,
    /// Nobody is moved unless all are.
    pub all_or_none: bool,
    /// Whether the users follow their base stations from then on.
    pub follow: bool,
    /// Who or what asked for it.
    pub reason: String,
    /// Where it stands.
    pub state: Stage,
    /// It is to be undone.
    pub abort: bool,
    /// Its users.
    pub users: Vec<Moving>,
    /// Names of the request that are nobody's, beside those in `users`.
    #[serde(default)]
    pub unlisted: usize,
    /// What has happened.
    pub history: Vec<Entry>,
}

impl Move {
    /// Begins a stage.
    pub fn enter(&mut self, state: Stage, detail: impl Into<String>) {
        self.state = state;
        self.note(detail);
    }

    /// Adds to the history.
    pub fn note(&mut self, detail: impl Into<String>) {
        if self.history.len() == HISTORY {
            self.history.remove(1);
        }
        let time_us = net::time::wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let time_us = u64::try_from(time_us.as_micros()).unwrap_or(u64::MAX);
        self.history.push(Entry { time_us, state: self.state, detail: detail.into() });
    }

    /// How many users fare so. Who is not known stays.
    pub fn count(&self, state: Fate) -> usize {
        let unlisted = if state == Fate::Stays { self.unlisted } else { 0 };
        unlisted + self.users.iter().filter(|user| user.state == state).count()
    }

    /// The users that are under way.
    pub fn pending(&self) -> impl Iterator<Item = &Moving> {
        self.users.iter().filter(|user| user.state == Fate::Pending)
    }
}

/// What of a user changes when it changes its base station or becomes idle or active.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Place {
    /// Its base station, if it is active.
    pub base_station: Option<IpAddr>,
    /// Uplink and downlink TEIDs.
    pub tunnels: Vec<(u32, u32)>,
}

/// A user with state at edge hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Its original anchor.
    pub origin: String,
    /// Its identity.
    pub id: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The edge host to which it is diverted.
    pub on: Option<String>,
    /// The edge host to which it is diverted when it is active.
    pub waits_for: Option<String>,
    /// Edge hosts that have its state, and whether they are to keep it while it is elsewhere.
    pub replicas: BTreeMap<String, bool>,
    /// Whether it follows its base station.
    pub follow: bool,
    /// Whether its packets keep their order, as the move said that brought it there.
    #[serde(default)]
    pub order: Order,
    /// What its diversion was made for.
    pub place: Place,
}

impl User {
    /// What names it.
    pub fn key(&self) -> Key {
        (self.origin.clone(), self.id.clone())
    }

    /// Whether a host needs its state.
    pub fn is_wanted_at(&self, host: &str) -> bool {
        [&self.on, &self.waits_for].iter().any(|at| at.as_deref() == Some(host))
            || self.replicas.get(host) == Some(&true)
    }

    /// Whether there is nothing to know of it.
    fn is_plain(&self) -> bool {
        self.on.is_none() && self.waits_for.is_none() && self.replicas.is_empty()
    }
}

/// Adds addresses to those of a user that are known. They stay until no diversion can be left of them: a user that attaches again may get
/// another address, while what was diverted has the former one.
pub fn learn(known: &mut Vec<IpAddr>, addresses: impl IntoIterator<Item = IpAddr>) {
    for address in addresses {
        if !known.contains(&address) {
            known.push(address);
        }
    }
}

/// The controller's identifiers of a user's diversions.
pub fn diversion_ids<'a>(origin: &'a str, addresses: &'a [IpAddr]) -> impl Iterator<Item = String> + 'a {
    addresses.iter().map(move |address| format!("{origin}~{address}"))
}

/// Everything.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct State {
    /// By number.
    pub moves: BTreeMap<u64, Move>,
    /// By origin and identity.
    pub users: BTreeMap<Key, User>,
}

/// A line of the journal: new values.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Change {
    /// Moves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Move>,
    /// Users. One who is on its original anchor and has no replica is forgotten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
}

impl Contents for State {
    type Change = Change;
    const FORMAT: &'static str = "godwit moves 1";
    const PROGRAM: &'static str = "orchestrator";
    const WITHOUT: &'static str =
        "then users stay where they are diverted to, and can be given back with `godwit mec undivert`";

    fn apply(&mut self, change: Change) {
        for one in change.moves {
            self.moves.insert(one.id, one);
        }
        for user in change.users {
            if user.is_plain() {
                self.users.remove(&user.key());
            } else {
                self.users.insert(user.key(), user);
            }
        }
        for id in self.too_old() {
            self.moves.remove(&id);
        }
    }

    fn changes(&self) -> Vec<Change> {
        let moves = self.moves.values().map(|one| Change { moves: vec![one.clone()], users: Vec::new() });
        let users = self.users.values().map(|user| Change { moves: Vec::new(), users: vec![user.clone()] });
        moves.chain(users).collect()
    }
}

impl State {
    /// Ended moves that are not kept: all before those that fit. The last one is kept however large it is.
    fn too_old(&self) -> Vec<u64> {
        let ended = self.moves.values().rev().filter(|one| one.state.is_end());
        let mut entries = 0;
        let is_kept = |(at, one): &(usize, &Move)| {
            entries += one.users.len();
            *at == 0 || (*at < KEPT_MOVES && entries <= KEPT_ENTRIES)
        };
        ended.enumerate().skip_while(is_kept).map(|(_, one)| one.id).collect()
    }

    /// A user's record, or one that says that it is on its original anchor.
    pub fn user(&self, moving: &Moving) -> User {
        self.users.get(&moving.key()).cloned().unwrap_or_else(|| User {
            origin: moving.origin.clone(),
            id: moving.id.clone(),
            addresses: moving.addresses.clone(),
            on: None,
            waits_for: None,
            replicas: BTreeMap::new(),
            follow: false,
            order: Order::None,
            place: Place::default(),
        })
    }

    /// Moves that have not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = &Move> {
        self.moves.values().filter(|one| !one.state.is_end())
    }

    /// Users under way, and the number of their move.
    pub fn busy(&self) -> BTreeMap<Key, u64> {
        let of = |one: &Move| one.users.iter().map(|user| (user.key(), one.id)).collect::<Vec<_>>();
        self.unfinished().flat_map(of).collect()
    }

    /// Users with state at a host, or on the way there.
    pub fn users_at(&self, host: &str) -> BTreeSet<Key> {
        let there =
            self.users.values().filter(|user| user.replicas.contains_key(host) || user.is_wanted_at(host));
        let coming = self.unfinished().filter(|one| one.to.as_deref() == Some(host)).flat_map(Move::pending);
        there.map(User::key).chain(coming.map(Moving::key)).collect()
    }
}

/// Reads octets as a journal; what is read can be written, and is then read as the same. The fuzzer starts here.
pub fn fuzz_journal(octets: &[u8]) {
    use store::journal::{read, write_all};
    if let Ok(state) = read::<State>(octets) {
        assert_eq!(read::<State>(write_all(&state).as_bytes()), Ok(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_moves_are_kept_up_to_a_limit_and_unfinished_ones_always() {
        let mut state = State::default();
        let mut one = Move {
            id: 1,
            to: None,
            warm: false,
            scheme: Scheme::default(),
            order: Order::default(),
            all_or_none: false,
            follow: false,
            reason: "test".to_owned(),
            state: Stage::Returning,
            abort: false,
            users: Vec::new(),
            unlisted: 0,
            history: Vec::new(),
        };
        (0..200).for_each(|number| one.note(number.to_string()));
        assert_eq!((one.history.len(), one.history[0].detail.as_str()), (HISTORY, "0"));
        state.apply(Change { moves: vec![one.clone()], users: Vec::new() });
        one.state = Stage::Done;
        for id in 2..KEPT_MOVES as u64 + 4 {
            one.id = id;
            state.apply(Change { moves: vec![one.clone()], users: Vec::new() });
        }
        assert_eq!(state.moves.len(), KEPT_MOVES + 1);
        assert!(state.moves.contains_key(&1) && !state.moves.contains_key(&2));
        // Moves of many users leave room for fewer of them.
        let user = Moving {
            origin: "gw1".to_owned(),
            id: "imsi-1".to_owned(),
            addresses: Vec::new(),
            from: None,
            place: Place::default(),
            state: Fate::Moved,
            why: None,
        };
        one.users = vec![user; 10_000];
        for id in 2000..2020 {
            one.id = id;
            state.apply(Change { moves: vec![one.clone()], users: Vec::new() });
        }
        assert_eq!(
            state.moves.keys().copied().collect::<Vec<_>>(),
            [1].into_iter().chain(2010..2020).collect::<Vec<_>>()
        );
        assert_eq!(state.moves.values().map(|one| one.users.len()).sum::<usize>(), KEPT_ENTRIES);
        fuzz_journal(store::journal::write_all(&state).as_bytes());
    }
}
