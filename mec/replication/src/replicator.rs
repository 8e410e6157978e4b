//! The replicator: follows all anchors' sessions, has them made at others by agents, and keeps the copies as the originals are.
//!
//! ```text
//!  captured messages ──► Tracker of the anchor ──► records
//!                            │ changes                │ Make, Replay
//!                            ▼                        ▼
//!                        Later, End ─────────────► agent beside the clone ──► clone
//!  MME, SMF ◄── as the original's ── requests of the clone ◄──┘
//! ```
//! [`Replicator::observe`] takes what was captured, [`Replicator::replicate`] makes copies, [`Replicator::remove`] ends them. A copy that
//! is there follows its original: what the original has accepted goes to the clone too (CAP-6). What a clone asks of the control plane
//! reaches it as the original's, under another transaction number, and the answer goes back (CAP-5). What of the original must not reach the
//! control plane as it is, is in [`intercept`](crate::intercept).
//!
//! State is behind one mutex, held for microseconds, never over an await.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foldhash::HashMap;
use net::time::{self, Duration};
use serde::{Deserialize, Serialize};
use telemetry::counters::Counter;
use tokio::sync::{Notify, watch};

use crate::asking::{Asked, Asking, Progress};
use crate::clone::Made;
use crate::connection::{self, Connection};
use crate::frame::Frame;
use crate::intercept::{Asks, Interception, Timer, Wait, answer_clone};
pub use crate::intercept::{Place, Verdict};
use crate::keep::{self, KeepError, Kept, KeptCopy};
use crate::n4::usage::{self, Ledger, UNCHARGED};
pub use crate::original::{Datagrams, Listed, Tunnel};
use crate::original::{Original, Tracker, find, of_tracker};
pub use crate::refusal::Refusal;
use crate::replica::{Copy, Replica};
use crate::track::{self, Datagram, Effect, OURS};
use crate::{n4, s11};
use store::records::{Change as Write, Records};

static STALE: Counter = Counter::new("replication_stale_copies");
static PASSED: Counter = Counter::new("replication_requests_passed");
static RESTORED: Counter = Counter::new("replication_sessions_restored");
static UNASKED: Counter = Counter::new("replication_answers_unasked");

/// How long copies may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer waits for the database.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);
/// The protocol by which an anchor is controlled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// S11, of a 4G anchor.
    #[serde(rename = "gtp-c")]
    S11,
    /// N4, of a UPF.
    #[serde(rename = "pfcp")]
    N4,
}

/// How sessions are made at a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Those that are asked for, from their records, many at once (SEL).
    #[default]
    Selective,
    /// All of the anchor, by all its messages as they were, one after another (NAI).
    Naive,
}

/// Limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Most sessions of an anchor.
    pub max_sessions: usize,
    /// Whether messages are kept as they were, for naïve replication. Of a session that has just begun they are some 400 octets, and never
    /// more than 4 kB.
    pub keep_raw: bool,
    /// Most octets of memory for them, of one anchor. Sessions that come when it is full are copied by their records.
    pub max_raw_bytes: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { max_sessions: 2_000_000, keep_raw: true, max_raw_bytes: 256 << 20 }
    }
}

/// An anchor, as the replicator is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// Its name.
    pub name: String,
    /// Its address on S11 or N4.
    pub control: IpAddr,
    /// Copies there ask for the UEs' own IPv4 addresses; on N4 they have them always.
    pub keeps_addresses: bool,
}

/// A message in somebody's name: of an original to its MME or SMF, or the other way round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// In whose name.
    pub from: SocketAddr,
    /// To whom.
    pub to: SocketAddr,
    /// The message.
    pub octets: Vec<u8>,
}

/// Sends messages in the names of originals, MMEs and SMFs.
pub type Send = Box<dyn Fn(Outgoing) + std::marker::Send + Sync>;

/// A user whose copy is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The original.
    pub listed: Listed,
    /// What the clone gave.
    pub made: Made,
}

/// What [`Replicator::replicate`] has done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replicated {
    /// Users whose copies are there.
    pub done: Vec<Copied>,
    /// Users who are not, and why: what was asked for, or the user's id.
    pub refused: Vec<(String, String)>,
    /// Users among them who were to be copied naïvely, and were copied by their records: what they were told is not all kept as it was.
    pub by_record: Vec<String>,
    /// Octets to the agent and back.
    pub octets: u64,
}

/// What is under way for [`Replicator::replicate`].
struct Begun {
    /// Sessions that are asked for.
    numbers: Vec<u32>,
    /// Those whose messages are not there as they were.
    by_record: HashSet<u32>,
    /// Octets to the agent and back before.
    before: u64,
}

#[derive(Default)]
pub(crate) struct State {
    /// By their address. An anchor is controlled by one protocol.
    pub(crate) originals: HashMap<IpAddr, Original>,
    pub(crate) replicas: BTreeMap<(String, String), Replica>,
    asking: Asking,
    pub(crate) interception: Interception,
    /// To be sent when the state is free.
    pub(crate) outbox: Vec<Outgoing>,
    /// The same of replicas that are gone, by original.
    changed_copies: HashMap<IpAddr, HashSet<u32>>,
    sequence: u32,
}

/// What a captured message has led to.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The MME or SMF.
    pub(crate) control: IpAddr,
    /// The session that it is about, if that goes on.
    pub(crate) number: Option<u32>,
    /// The request that it answers.
    pub(crate) request: Vec<u8>,
    /// Of a session that it ends.
    pub(crate) ledger: Option<Ledger>,
    /// What clones are to tell of it.
    pub(crate) waits: Vec<Wait>,
    /// The clone that serves the user ends its session by the request that has ended it.
    ends_by_itself: bool,
}

impl Taken {
    fn new(control: IpAddr) -> Taken {
        let (request, waits) = Default::default();
        Taken { control, number: None, request, ledger: None, waits, ends_by_itself: false }
    }
}

struct Inner {
    config: Config,
    anchors: Vec<Anchor>,
    send: Send,
    state: Mutex<State>,
    changed: Notify,
    started: u32,
    /// Somebody takes changes, to keep them.
    is_kept: AtomicBool,
    /// How often changes were taken.
    taken: AtomicU64,
    /// Up to which time of taking they are written.
    written: watch::Sender<u64>,
    /// Somebody waits until changes are written.
    hurry: Notify,
    intercepted: watch::Sender<BTreeSet<IpAddr>>,
}

/// The replicator; clones share it.
#[derive(Clone)]
pub struct Replicator {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Replicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replicator").field("anchors", &self.inner.anchors).finish_non_exhaustive()
    }
}

impl Replicator {
    /// `started`: when it says to clones that it has started, in seconds since 1900.
    pub fn new(config: Config, anchors: Vec<Anchor>, started: u32, send: Send) -> Replicator {
        let state = Mutex::new(State { sequence: track::first_of_ours(), ..State::default() });
        Replicator {
            inner: Arc::new(Inner {
                config,
                anchors,
                send,
                state,
                changed: Notify::new(),
                started,
                is_kept: AtomicBool::new(false),
                taken: AtomicU64::new(0),
                written: watch::Sender::default(),
                hurry: Notify::new(),
                intercepted: watch::Sender::default(),
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn intercepted(&self) -> &watch::Sender<BTreeSet<IpAddr>> {
        &self.inner.intercepted
    }

    /// Frees the state, and does what has come of it.
    pub(crate) fn flush(&self, mut state: MutexGuard<'_, State>) {
        let (outbox, timers) =
            (std::mem::take(&mut state.outbox), std::mem::take(&mut state.interception.timers));
        let intercepted = state.intercepted();
        // While the state is locked, so that an older one does not come later.
        self.inner.intercepted.send_if_modified(|before| {
            let is_other = *before != intercepted;
            *before = intercepted;
            is_other
        });
        drop(state);
        outbox.into_iter().for_each(|outgoing| (self.inner.send)(outgoing));
        for timer in timers {
            tokio::spawn(self.clone().after(timer));
        }
        self.inner.changed.notify_waiters();
    }

    pub(crate) fn config(&self) -> Config {
        self.inner.config
    }

    /// An anchor's address on S11 or N4.
    pub(crate) fn control_of(&self, name: &str) -> Option<IpAddr> {
        self.anchor(name).ok().map(|anchor| anchor.control)
    }

    pub(crate) fn anchor(&self, name: &str) -> Result<&Anchor, Refusal> {
        let known = self.inner.anchors.iter().find(|anchor| anchor.name == name);
        known.ok_or_else(|| Refusal::Unknown(name.chars().take(64).collect()))
    }

    pub(crate) fn name_of(&self, control: IpAddr) -> String {
        let known = self.inner.anchors.iter().find(|anchor| anchor.control == control);
        known.map_or_else(|| control.to_string(), |anchor| anchor.name.clone())
    }

    fn keeps_addresses(&self, (_, clone): &(String, String)) -> bool {
        self.anchor(clone).is_ok_and(|anchor| anchor.keeps_addresses)
    }

    /// Takes a captured datagram between a control plane and an anchor, which has been sent on.
    pub fn observe(&self, protocol: Protocol, anchor: IpAddr, datagram: Datagram) {
        let mut state = self.state();
        if let Some(mut taken) = self.take(&mut state, protocol, anchor, datagram)
            && protocol == Protocol::N4
            && !datagram.by_control
        {
            state.passed(anchor, &mut taken, datagram.octets);
        }
        self.flush(state);
    }

    /// Follows a captured datagram; `None`: it is of no anchor.
    pub(crate) fn take(
        &self,
        state: &mut State,
        protocol: Protocol,
        anchor: IpAddr,
        datagram: Datagram,
    ) -> Option<Taken> {
        // Anybody can write any source on a packet.
        if !self.inner.anchors.iter().any(|known| known.control == anchor) {
            return None;
        }
        let (config, now) = (self.inner.config, time::now_std());
        state.give_up(anchor, now, config);
        let mut fresh = None;
        let original = match state.originals.get_mut(&anchor) {
            Some(original) if original.tracker.protocol() == protocol => original,
            // Anybody can send a datagram to the other port.
            Some(original) if !original.tracker.table().is_empty() => return None,
            _ => {
                let mut tracker = Tracker::new(protocol, anchor, config.max_sessions);
                if !self.inner.is_kept.load(Ordering::Relaxed) {
                    of_tracker!(&mut tracker, tracker => tracker.table_mut().forget_changes());
                }
                fresh.insert(Original::new(tracker))
            }
        };
        let (waited, mut effects) = (original.tracker.waits_until().is_some(), Vec::new());
        of_tracker!(&mut original.tracker, tracker => tracker.observe(now, datagram, &mut effects));
        if !waited && original.tracker.waits_until().is_some() {
            state.interception.timers.push(Timer::Restoration(anchor));
        }
        if config.keep_raw {
            effects.iter().for_each(|effect| original.history.take(protocol, effect, config.max_raw_bytes));
        }
        // It is remembered even if it has led to nothing: answers follow.
        if let Some(fresh) = fresh {
            state.originals.insert(anchor, fresh);
        }
        let mut taken = Taken::new(datagram.control);
        effects.into_iter().for_each(|effect| state.follow(anchor, effect, &mut taken));
        Some(taken)
    }

    /// Makes copies of sessions at a clone, and waits until each is there or refused. A copy that is there stays as it is.
    ///
    /// Users are named by address, or as they are listed; `None`: all.
    ///
    /// # Errors
    /// Nothing was done.
    pub async fn replicate(
        &self,
        from: &str,
        to: &str,
        agent: SocketAddr,
        users: Option<&[String]>,
        scheme: Scheme,
    ) -> Result<Replicated, Refusal> {
        let original = self.anchor(from)?.control;
        self.anchor(to)?;
        let key = (from.to_owned(), to.to_owned());
        self.connect(&key, original, agent).await?;
        let mut done = Replicated::default();
        let begun = self.begin(&key, original, users, scheme, &mut done.refused);
        if begun.is_err() {
            // Another original may have the agent.
            self.forget_unused(&key);
        }
        let Begun { numbers, by_record, before } = begun?;
        let all_settled = self.settled(&key, &numbers);
        if time::timeout(PATIENCE, all_settled).await.is_err() {
            tracing::warn!(from, to, "copies are not there in time");
        }
        let state = self.state();
        let source = state.originals.get(&original);
        let (Some(source), Some(replica)) = (source, state.replicas.get(&key)) else { return Ok(done) };
        for number in numbers {
            let Some(listed) = source.tracker.listed(number) else { continue };
            match replica.copies.get(&number) {
                Some(Copy::There(made)) => {
                    if by_record.contains(&number) {
                        done.by_record.push(listed.id.clone());
                    }
                    done.done.push(Copied { listed, made: made.clone() });
                }
                Some(Copy::Failed(why)) => done.refused.push((listed.id, why.to_string())),
                Some(Copy::Stale(_)) => done.refused.push((listed.id, "it has attached again".to_owned())),
                Some(Copy::Making) => {
                    done.refused.push((listed.id, "its copy is not there in time".to_owned()))
                }
                Some(Copy::Ending(_)) | None => {
                    done.refused.push((listed.id, "its copy was ended".to_owned()))
                }
            }
        }
        done.octets = replica.connection.octets() - before;
        Ok(done)
    }

    /// Has an agent begin. Names of which nothing is known go to `refused`.
    fn begin(
        &self,
        key: &(String, String),
        original: IpAddr,
        users: Option<&[String]>,
        scheme: Scheme,
        refused: &mut Vec<(String, String)>,
    ) -> Result<Begun, Refusal> {
        let mut state = self.state();
        let State { originals, replicas, .. } = &mut *state;
        let source = originals.get(&original).ok_or_else(|| Refusal::NoSessions(key.0.clone()))?;
        let replica = replicas.get_mut(key).ok_or_else(|| Refusal::Unknown(key.1.clone()))?;
        let before = replica.connection.octets();
        let mut numbers: Vec<u32> = Vec::new();
        match users {
            None => numbers.extend(source.tracker.table().numbers()),
            Some(users) => {
                let mut known = HashSet::new();
                for user in users {
                    let found = find(source, user);
                    if found.is_empty() {
                        refused.push((user.clone(), "no session of it is known".to_owned()));
                    }
                    numbers.extend(found.into_iter().filter(|number| known.insert(*number)));
                }
            }
        }
        let by_record = match scheme {
            Scheme::Selective => {
                replica.make(source, &numbers);
                HashSet::new()
            }
            Scheme::Naive => replica.replay(source)?.into_iter().collect(),
        };
        Ok(Begun { numbers, by_record, before })
    }

    async fn settled(&self, key: &(String, String), numbers: &[u32]) {
        // So many in front are settled: of thousands, not all are looked at again whenever one is.
        let mut settled = 0;
        loop {
            let changed = self.inner.changed.notified();
            {
                let state = self.state();
                let Some(replica) = state.replicas.get(key) else { return };
                // An agent that is away says nothing; it is told when it is back.
                if !replica.connection.is_connected() {
                    return;
                }
                let is_open =
                    |number: &u32| matches!(replica.copies.get(number), Some(Copy::Making | Copy::Ending(_)));
                let (front, others) = numbers.split_at(settled);
                settled = match others.iter().position(is_open) {
                    Some(at) => settled + at,
                    // One in front may be made anew meanwhile.
                    None => match front.iter().position(is_open) {
                        Some(at) => at,
                        None => return,
                    },
                };
            }
            changed.await;
        }
    }

    async fn connect(
        &self,
        key: &(String, String),
        original: IpAddr,
        agent: SocketAddr,
    ) -> Result<(), Refusal> {
        let protocol = {
            let state = self.state();
            if let Some(replica) = state.replicas.get(key) {
                if replica.agent != agent {
                    return Err(Refusal::OtherAgent { to: key.1.clone(), agent: replica.agent });
                }
                if replica.connection.is_connected() {
                    return Ok(());
                }
            }
            // An agent serves one clone, and tells its users apart by numbers of one original.
            if let Some(((from, to), _)) =
                state.replicas.iter().find(|(other, replica)| *other != key && replica.agent == agent)
            {
                return Err(Refusal::AgentInUse { agent, replica: format!("{from} to {to}") });
            }
            let source = state.originals.get(&original);
            source.ok_or_else(|| Refusal::NoSessions(key.0.clone()))?.tracker.protocol()
        };
        // It takes the lock before it says that it is connected: then the replica is there.
        self.state().replicas.entry(key.clone()).or_insert_with(|| {
            let keeps_addresses = self.keeps_addresses(key);
            let connection = self.connection(key, agent, (original, protocol), false);
            Replica::new(agent, original, keeps_addresses, connection)
        });
        let connected = async {
            loop {
                let changed = self.inner.changed.notified();
                match self.state().replicas.get(key).map(|replica| replica.connection.state()) {
                    Some(connection::Status::Connected) => return Ok(()),
                    Some(connection::Status::Failed(why)) => return Err(why),
                    _ => {}
                }
                changed.await;
            }
        };
        match time::timeout(connection::PATIENCE, connected).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => {
                self.forget_unused(key);
                Err(Refusal::NoAgent { agent, why })
            }
            Err(_) => {
                self.forget_unused(key);
                Err(Refusal::NoAgent { agent, why: "it does not answer".to_owned() })
            }
        }
    }

    /// `resume`: the clone has sessions already.
    fn connection(
        &self,
        key: &(String, String),
        agent: SocketAddr,
        (original, protocol): (IpAddr, Protocol),
        resume: bool,
    ) -> Connection {
        let (inner, name) = (Arc::downgrade(&self.inner), key.clone());
        let incoming = Box::new(move |incoming| {
            if let Some(inner) = inner.upgrade() {
                Replicator { inner }.incoming(&name, incoming);
            }
        });
        let hello =
            connection::Hello { n4: protocol == Protocol::N4, started: self.inner.started, resume, original };
        Connection::start(agent, hello, incoming)
    }

    /// Takes up what was kept: sessions, and copies that are at clones. Before the first message is observed.
    ///
    /// # Errors
    /// The database cannot be read, or contradicts itself.
    pub async fn restore(&self, records: &Records) -> Result<(), KeepError> {
        self.inner.is_kept.store(true, Ordering::Relaxed);
        for anchor in &self.inner.anchors {
            for protocol in [Protocol::S11, Protocol::N4] {
                let most = self.inner.config.max_sessions;
                let Kept { table, peers, copies, ledgers } =
                    keep::load(records, anchor.control, protocol, most).await?;
                if peers.addresses().is_empty() {
                    continue;
                }
                let tracker = match protocol {
                    Protocol::S11 => Tracker::S11(s11::Tracker::restored(anchor.control, most, table, peers)),
                    Protocol::N4 => {
                        let mut tracker = n4::Tracker::restored(anchor.control, most, table, peers);
                        tracker.wait_on(time::now_std());
                        Tracker::N4(tracker)
                    }
                };
                let mut original = Original::new(tracker);
                original.restore(ledgers);
                let mut state = self.state();
                if original.tracker.waits_until().is_some() {
                    state.interception.timers.push(Timer::Restoration(anchor.control));
                }
                state.originals.insert(anchor.control, original);
                for KeptCopy { number, target, agent, is_wanted, made } in copies {
                    let key = (anchor.name.clone(), target);
                    let replica = state.replicas.entry(key.clone()).or_insert_with(|| {
                        // It takes the lock before it says anything: then all copies are there.
                        Replica::new(
                            agent,
                            anchor.control,
                            self.keeps_addresses(&key),
                            self.connection(&key, agent, (anchor.control, protocol), true),
                        )
                    });
                    let copy = match (is_wanted, made) {
                        (true, Some(made)) => Copy::There(made),
                        (true, None) => Copy::Making,
                        (false, made) => Copy::Ending(made),
                    };
                    replica.restore(number, copy);
                }
                self.flush(state);
            }
        }
        Ok(())
    }

    /// Somebody waits until changes are written.
    pub(crate) async fn is_in_a_hurry(&self) {
        self.inner.hurry.notified().await;
    }

    /// All that was taken is written.
    pub(crate) fn all_is_written(&self) {
        self.inner.written.send_replace(self.inner.taken.load(Ordering::SeqCst));
    }

    /// Waits until what has changed so far is written, if somebody keeps it.
    async fn until_written(&self) -> Result<(), Refusal> {
        if !self.inner.is_kept.load(Ordering::Relaxed) {
            return Ok(());
        }
        let next = self.inner.taken.load(Ordering::SeqCst) + 1;
        let mut written = self.inner.written.subscribe();
        self.inner.hurry.notify_one();
        let is_written = time::timeout(WRITTEN_WITHIN, written.wait_for(|written| *written >= next)).await;
        if matches!(is_written, Ok(Ok(_))) { Ok(()) } else { Err(Refusal::NotWritten) }
    }

    /// What has changed since the last time, by space: each to be written as a whole.
    pub(crate) fn take_writes(&self) -> Vec<(String, Vec<Write>)> {
        self.inner.taken.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state();
        let State { originals, replicas, changed_copies, .. } = &mut *state;
        let mut all = Vec::new();
        for (address, original) in originals.iter_mut() {
            let mut writes = Vec::new();
            of_tracker!(&mut original.tracker, tracker => {
                writes.extend(tracker.peers.take_changes().into_iter().map(keep::peer));
                writes.extend(tracker.peers.take_starts().into_iter().map(keep::start));
                writes.extend(tracker.table_mut().take_changes().into_iter().map(keep::change));
            });
            let mut changed = changed_copies.remove(address).unwrap_or_default();
            for replica in replicas.values_mut().filter(|replica| replica.original == *address) {
                changed.extend(replica.changed.drain());
            }
            // Where a session has got its copy later than its ledger, that is to be kept from now on.
            original.copies_changed(&changed);
            for number in changed {
                let of_original = replicas.iter().filter(|(_, replica)| replica.original == *address);
                let copies = of_original.filter_map(|((_, target), replica)| {
                    let (is_wanted, made) = match replica.copies.get(&number)? {
                        Copy::There(made) => (true, Some(made)),
                        Copy::Making => (true, None),
                        // They may be at the clone, and are ended when the agent is there.
                        Copy::Ending(made) | Copy::Stale(made) => (false, made.as_ref()),
                        Copy::Failed(_) => return None,
                    };
                    let (target, made) = (target.clone(), made.cloned());
                    Some(KeptCopy { number, target, agent: replica.agent, is_wanted, made })
                });
                writes.push(keep::copies(number, copies.collect()));
            }
            let has_copy = |number: &u32| {
                let mut of_original = replicas.values().filter(|replica| replica.original == *address);
                of_original.any(|replica| replica.copies.contains_key(number))
            };
            writes.extend(
                original.changed_ledgers(has_copy).map(|(number, ledger)| keep::ledger(number, ledger)),
            );
            if !writes.is_empty() {
                all.push((keep::space(*address, original.tracker.protocol()), writes));
            }
        }
        all
    }

    /// A replica that was never there.
    fn forget_unused(&self, key: &(String, String)) {
        let mut state = self.state();
        if state.replicas.get(key).is_some_and(|replica| replica.copies.is_empty()) {
            state.drop_replica(key);
        }
    }

    /// Ends copies, and waits until the clone has none of them.
    ///
    /// # Errors
    /// There is no such anchor.
    pub async fn remove(&self, from: &str, to: &str, users: Option<&[String]>) -> Result<usize, Refusal> {
        let original = self.anchor(from)?.control;
        self.anchor(to)?;
        let key = (from.to_owned(), to.to_owned());
        let numbers = {
            let mut state = self.state();
            let Some(replica) = state.replicas.get(&key) else { return Ok(0) };
            let source = state.originals.get(&original);
            let numbers: Vec<u32> = match users {
                None => replica.copies.keys().copied().collect(),
                Some(users) => {
                    let found: BTreeSet<u32> = source
                        .into_iter()
                        .flat_map(|source| users.iter().flat_map(|user| find(source, user)))
                        .collect();
                    found.into_iter().collect()
                }
            };
            let there: Vec<u32> =
                numbers.into_iter().filter(|number| replica.copies.contains_key(number)).collect();
            for number in &there {
                if !state.leave(&key, *number)
                    && let Some(replica) = state.replicas.get_mut(&key)
                {
                    replica.end(*number);
                }
            }
            self.flush(state);
            there
        };
        let _ = time::timeout(PATIENCE, self.settled(&key, &numbers)).await;
        // Else the next life would take up what nobody wants.
        self.until_written().await?;
        let mut state = self.state();
        if let Some(replica) = state.replicas.get(&key)
            && replica.copies.is_empty()
            && users.is_none()
        {
            state.drop_replica(&key);
        }
        Ok(numbers.len())
    }

    /// Takes what an agent says.
    fn incoming(&self, key: &(String, String), incoming: connection::Incoming) {
        let mut state = self.state();
        match incoming {
            connection::Incoming::Connected => state.connected(key),
            // It may have been told; an agent that is still there tells it when it is connected again, another one does not know.
            connection::Incoming::Failed => {
                UNCHARGED.add(state.no_longer_awaited(|wait| wait.replica == *key) as u64);
            }
            connection::Incoming::Frames(frames) => {
                for frame in frames {
                    // What cannot be passed on is asked again.
                    let _ = state.frame(key, frame);
                }
            }
        }
        self.flush(state);
    }
}

impl State {
    fn drop_replica(&mut self, key: &(String, String)) {
        if let Some(replica) = self.replicas.remove(key) {
            self.changed_copies.entry(replica.original).or_default().extend(replica.changed);
        }
    }

    /// Gives up waiting for what an anchor's messages have not brought. It is about other sessions than the next datagram, whose answer
    /// must not be taken for theirs.
    pub(crate) fn give_up(&mut self, anchor: IpAddr, now: Instant, config: Config) {
        let Some(original) = self.originals.get_mut(&anchor) else { return };
        let (protocol, mut effects) = (original.tracker.protocol(), Vec::new());
        of_tracker!(&mut original.tracker, tracker => tracker.give_up(now, &mut effects));
        if config.keep_raw {
            effects.iter().for_each(|effect| original.history.take(protocol, effect, config.max_raw_bytes));
        }
        let mut taken = Taken::new(anchor);
        effects.into_iter().for_each(|effect| self.follow(anchor, effect, &mut taken));
        UNCHARGED.add(taken.ledger.map_or(0, |ledger| ledger.waiting() as u64));
    }

    /// Has copies follow their original.
    fn follow(&mut self, anchor: IpAddr, effect: Effect, taken: &mut Taken) {
        match effect {
            Effect::Answer { control, sequence, octets } => {
                let Some(asked) = self.asking.answered((control, sequence), &octets) else {
                    if self.interception.answered(control, sequence) {
                        self.way_back_answered(control, sequence, &octets);
                    } else {
                        UNASKED.inc();
                    }
                    return;
                };
                answer_clone(self, &asked.replica, asked.handle, asked.sequence, octets);
            }
            Effect::Began { number, .. } => {
                taken.number = Some(number);
                let ledger = self.session_ended(anchor, number);
                UNCHARGED.add(ledger.map_or(0, |ledger| ledger.waiting() as u64));
                // The original has other TEIDs now: those who divert the user must ask for a new copy.
                for replica in self.replicas.values_mut().filter(|replica| replica.original == anchor) {
                    if let Some(copy) = replica.copies.get(&number) {
                        STALE.inc();
                        let made = copy.made();
                        replica.end(number);
                        replica.set(number, Copy::Stale(made));
                    }
                }
            }
            Effect::Changed { number, request } => {
                taken.number = Some(number);
                self.later(anchor, number, &request, taken);
                taken.request = request;
            }
            Effect::ByAnchor { number, messages } => {
                for message in messages {
                    self.later(anchor, number, &message, taken);
                }
            }
            Effect::Queried { number, request } => {
                taken.number = Some(number);
                self.later(anchor, number, &request, taken);
                taken.request = request;
            }
            Effect::Restored { number, request } => {
                RESTORED.inc();
                taken.number = Some(number);
                if !request.is_empty() {
                    self.later(anchor, number, &request, taken);
                }
                let reports = self.originals.get_mut(&anchor).map_or_else(Vec::new, |of| of.restored(number));
                if !reports.is_empty() && !self.report_as_original(anchor, number, &reports) {
                    UNCHARGED.add(reports.len() as u64);
                }
            }
            Effect::Deleted { number, request, addresses } => {
                taken.ends_by_itself = self.deleted(anchor, number, &request, &addresses);
            }
            Effect::Ended(number) => {
                let former = std::mem::replace(&mut taken.ledger, self.session_ended(anchor, number));
                UNCHARGED.add(former.map_or(0, |ledger| ledger.waiting() as u64));
                for (key, replica) in
                    self.replicas.iter_mut().filter(|(_, replica)| replica.original == anchor)
                {
                    let is_there = replica.has(number) && replica.connection.is_connected();
                    if !(taken.ends_by_itself && matches!(replica.copies.get(&number), Some(Copy::Ending(_))))
                    {
                        replica.end(number);
                    }
                    if let Some(handle) = replica.handle(number).filter(|_| is_there) {
                        taken.waits.push(Wait { replica: key.clone(), handle, is_end: true });
                    }
                }
            }
        }
    }

    /// Copies are to do what the original has done.
    fn later(&mut self, anchor: IpAddr, number: u32, request: &[u8], taken: &mut Taken) {
        let is_asked = usage::is_asked_for(request);
        for (key, replica) in self.replicas.iter_mut().filter(|(_, replica)| replica.original == anchor) {
            if !matches!(replica.copies.get(&number), Some(Copy::There(_) | Copy::Making)) {
                continue;
            }
            let Some(handle) = replica.handle(number) else { continue };
            replica.connection.say(Frame::Later { handle, octets: request.to_vec() });
            if is_asked && replica.has(number) && replica.connection.is_connected() {
                taken.waits.push(Wait { replica: key.clone(), handle, is_end: false });
            }
        }
    }

    /// A session is gone, or another one is at its number; its usage so far.
    fn session_ended(&mut self, anchor: IpAddr, number: u32) -> Option<Ledger> {
        let mut keys = Vec::new();
        for (key, replica) in self.replicas.iter_mut().filter(|(_, replica)| replica.original == anchor) {
            replica.session_ended(number);
            keys.push((key.clone(), number));
        }
        keys.iter().for_each(|copy| _ = self.cancel_departure(copy));
        let ledger = self.originals.get_mut(&anchor)?.session_ended(number);
        self.interception.session_ended(anchor, number, &ledger);
        Some(ledger)
    }

    fn connected(&mut self, key: &(String, String)) {
        let there = self.replicas.get(key).into_iter().flat_map(|replica| replica.copies.keys().copied());
        let serves = there.filter_map(|number| Some((number, self.serves(key, number)?))).collect();
        let State { originals, replicas, .. } = self;
        if let Some(replica) = replicas.get_mut(key) {
            replica.connection.ready();
            replica.connected(originals.get(&replica.original), &serves);
        }
    }

    /// A transaction in an original's name.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = (self.sequence + 1) % OURS + OURS;
        self.sequence
    }

    /// What an agent says. `None`: it is of no use.
    fn frame(&mut self, key: &(String, String), frame: Frame) -> Option<()> {
        match frame {
            Frame::Made(handle, made) => {
                let replica = self.replicas.get_mut(key)?;
                let number = replica.number(handle)?;
                if matches!(replica.copies.get(&number), Some(Copy::Making | Copy::There(_))) {
                    replica.set(number, Copy::There(made));
                    if self.serves(key, number) == Some(true) {
                        self.tell_who_serves(key, number);
                    }
                } else if matches!(replica.copies.get(&number), Some(Copy::Ending(_))) {
                    replica.set(number, Copy::Ending(Some(made)));
                    replica.connection.say(Frame::End(handle));
                }
            }
            Frame::Refused(handle, why) => {
                let replica = self.replicas.get_mut(key)?;
                if let Some(number) = replica.number(handle)
                    && matches!(replica.copies.get(&number), Some(Copy::Making | Copy::There(_)))
                {
                    self.has_failed(key, number);
                    if let Some(replica) = self.replicas.get_mut(key) {
                        replica.set(number, Copy::Failed(why));
                    }
                }
                self.no_longer_awaited(|wait| wait.replica == *key && wait.handle == handle && !wait.is_end);
            }
            Frame::Usage { handle, is_end, octets } => self.usage(key, handle, is_end, &octets),
            Frame::Ended(handle) => {
                let replica = self.replicas.get_mut(key)?;
                match replica.number(handle) {
                    Some(number) => {
                        if matches!(
                            replica.copies.get(&number),
                            Some(Copy::Ending(_) | Copy::Stale(_) | Copy::There(_))
                        ) {
                            replica.forget(number);
                        }
                    }
                    None => replica.former_ended(handle),
                }
                self.no_longer_awaited(|wait| wait.replica == *key && wait.handle == handle);
            }
            Frame::Request { handle, sequence, octets } => {
                return self.request(Asked { replica: key.clone(), handle, sequence }, octets);
            }
            _ => {}
        }
        Some(())
    }

    /// A request of a clone, which is sent to the control plane as the original's.
    fn request(&mut self, own: Asked, octets: Vec<u8>) -> Option<()> {
        if let Some((_, progress)) = self.asking.all.get(&own).filter(|(came, _)| *came == octets) {
            match progress {
                Progress::Sent(_, sent) => self.outbox.push(sent.clone()),
                Progress::Answered(answer) => {
                    answer_clone(self, &own.replica, own.handle, own.sequence, answer.clone());
                }
            }
            return Some(());
        }
        let came = octets.clone();
        let replica = self.replicas.get(&own.replica)?;
        let (address, number) = (replica.original, replica.number(own.handle)?);
        let source = self.originals.get(&address)?;
        let protocol = source.tracker.protocol();
        let peer = source.tracker.table().view(number)?.peer()?;
        let control = source.tracker.peers().address(peer)?;
        let mut octets = match self.of_clone(&own.replica, number, octets)? {
            Asks::Control(octets) => octets,
            Asks::Nobody(answer) => {
                answer_clone(self, &own.replica, own.handle, own.sequence, answer.clone());
                self.asking.note(own, came, Progress::Answered(answer));
                return Some(());
            }
        };
        let ours = self.next_sequence();
        let (at, port) = if protocol == Protocol::S11 { (8, 2123) } else { (12, 8805) };
        octets.get_mut(at..at + 3)?.copy_from_slice(&ours.to_be_bytes()[1..]);
        PASSED.inc();
        let (from, to) = (SocketAddr::new(address, port), SocketAddr::new(control, port));
        let outgoing = Outgoing { from, to, octets };
        self.asking.note(own, came, Progress::Sent((control, ours), outgoing.clone()));
        self.outbox.push(outgoing);
        Some(())
    }
}
