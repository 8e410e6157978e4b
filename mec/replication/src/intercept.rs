//! What of an original reaches its MME or SMF while users are served by clones, and in which form (CAP-5).
//!
//! ```text
//!  original ── switch ── Replicator::intercept ──► Pass, Instead: MME, SMF
//!     ▲                        │ Withhold
//!     └── answered in the ─────┤
//!         SMF's name           └─► held until the clone has told its usage, then sent
//! ```
//! - **Inactivity.** An anchor that does not serve a user sees no packets of it. What it concludes from that (User Plane Inactivity Report on
//!   N4, Delete Bearer Request with the cause *PDN connection inactivity timer expires* on S11) is withheld: an inactivity report is
//!   answered as accepted; a Delete Bearer Request is refused, as the bearer is to stay. If only a part of the user's packets is diverted,
//!   no anchor can tell, so all are withheld.
//! - **Usage** on N4 is merged ([`usage`]). An answer to a request that asks for usage, or ends the session,
//!   is held until the clone has answered the same, for [`HOLD`] or [`HOLD_END`] at most, and has both. What a clone tells
//!   later, and has left when it ends, is reported as the original's, as long as the session lives.
//! - **Downlink data.** A notification of the original is passed on, also for a user whom a clone serves: packets of that user
//!   wait at the original, on their way since before the move, and only paging delivers them. An MME or SMF that pages already
//!   acknowledges it and does no more.
//! - All else (Echo, heartbeats, error indications, path failures, requests for bearers) is passed on, octet for octet.
//!
//! Messages of the original reach [`Replicator::intercept`] only as long as [`Replicator::watch_intercepted`] names it; others are
//! observed, and have passed as they were.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use foldhash::HashMap;
use gtpv2c::CauseValue;
use net::time::{self, Duration};
use pfcp::message::{Message, MessageType, SessionReportResponse};
use pfcp::{Cause, ReportType, ie};
use telemetry::counters::Counter;
use tokio::sync::watch;

use crate::clone::Side as _;
use crate::frame::Frame;
use crate::moved::{CopyName, Departures};
use crate::n4::usage::{self, Ledger, UNCHARGED};
use crate::n4::{clone::N4, tree};
use crate::record::prefix;
use crate::replicator::{Outgoing, Protocol, Replicator, State, Taken};
use crate::s11::clone::S11;
use crate::track::Datagram;

static INACTIVE: Counter = Counter::new("replication_inactivity_withheld");
static MERGED: Counter = Counter::new("replication_usage_reports_merged");
static UNMERGED: Counter = Counter::new("replication_usage_reports_passed_unmerged");
static LATE: Counter = Counter::new("replication_held_answers_late");

/// How long an answer waits for a clone's: less than the SMF takes until it asks again.
pub const HOLD: Duration = Duration::from_millis(500);
/// The same for the end of a session, after which nothing more can be reported: three requests to the clone may be lost
/// ([`Limits::repeat`](crate::clone::Limits::repeat)).
pub const HOLD_END: Duration = Duration::from_secs(2);
/// Time until a report in the original's name is sent again, and how often.
const REPEAT: Duration = Duration::from_secs(1);
const REPEATS: u32 = 3;
/// How long an original's messages go on being asked about after one that did not pass as it was: it may be repeated.
const LINGER: Duration = Duration::from_secs(10);
/// Messages that are remembered for their repetitions.
const REMEMBERED: usize = 4096;
/// Most answers that are held, and reports that wait for an answer. Others are not merged.
const MAX_HELD: usize = 16_384;

/// PFCP types of requests and answers (TS 29.244 §7.3).
const REPORT: u8 = MessageType::SessionReportRequest as u8;
const MODIFIED: u8 = MessageType::SessionModificationResponse as u8;
const DELETED: u8 = MessageType::SessionDeletionResponse as u8;
/// GTPv2-C type (TS 29.274 §6.1).
const DELETE_BEARER: u8 = gtpv2c::MessageType::DeleteBearerRequest as u8;

/// Where a user's packets go, or a part of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The user's address; `None`: all users of the original, or of one of its base stations.
    pub user: Option<IpAddr>,
    /// The base station, if `user` is `None` and only its users are diverted.
    pub base_station: Option<IpAddr>,
    /// The anchor.
    pub to: String,
    /// All packets, else a part of them.
    pub is_whole: bool,
}

/// What to do with a message of an original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Send it on as it is.
    Pass,
    /// Send this instead.
    Instead(Vec<u8>),
    /// Send nothing.
    Withhold,
}

/// Who serves a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served<T> {
    ByOriginal,
    /// By this clone.
    By(T),
    ByBoth,
}

impl Served<&str> {
    pub(crate) fn owned(self) -> Served<String> {
        match self {
            Served::ByOriginal => Served::ByOriginal,
            Served::By(name) => Served::By(name.to_owned()),
            Served::ByBoth => Served::ByBoth,
        }
    }
}

/// A user of an original by its address, or all of them.
pub(crate) type User = (IpAddr, Option<IpAddr>);

/// Where users are.
#[derive(Debug, Default)]
pub(crate) struct Places {
    by_user: HashMap<User, Vec<(String, Place)>>,
    by_id: HashMap<String, User>,
    /// How many diversions there are of an original to a clone.
    counts: HashMap<IpAddr, BTreeMap<String, usize>>,
}

/// An address as sessions are found by it.
fn key(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => prefix(address).into(),
        address => address,
    }
}

impl Places {
    pub(crate) fn set(&mut self, original: IpAddr, id: String, place: Option<Place>) {
        if let Some(of) = self.by_id.remove(&id)
            && let Some(all) = self.by_user.get_mut(&of)
        {
            let gone = all.iter().find(|(known, _)| *known == id).map(|(_, place)| place.to.clone());
            if let (Some(gone), Some(counts)) = (gone, self.counts.get_mut(&of.0))
                && let Some(count) = counts.get_mut(&gone)
            {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&gone);
                }
            }
            all.retain(|(known, _)| *known != id);
            if all.is_empty() {
                self.by_user.remove(&of);
            }
        }
        if let Some(place) = place {
            let of = (original, place.user.map(key));
            *self.counts.entry(original).or_default().entry(place.to.clone()).or_default() += 1;
            self.by_id.insert(id.clone(), of);
            self.by_user.entry(of).or_default().push((id, place));
        }
    }

    /// The user of a diversion.
    pub(crate) fn by_id(&self, id: &str) -> Option<User> {
        self.by_id.get(id).copied()
    }

    /// All diversions.
    pub(crate) fn all(&self) -> Vec<(String, User)> {
        self.by_id.iter().map(|(id, user)| (id.clone(), *user)).collect()
    }

    fn is_moved_to(&self, original: IpAddr, target: &str) -> bool {
        self.counts.get(&original).is_some_and(|counts| counts.contains_key(target))
    }

    /// `station`: the user's base station, which is asked for only if it matters.
    pub(crate) fn served(
        &self,
        original: IpAddr,
        addresses: impl Iterator<Item = IpAddr>,
        station: impl FnOnce() -> Option<IpAddr>,
    ) -> Served<&str> {
        let mut is_in_part = false;
        let users = addresses.map(|address| (original, Some(key(address))));
        for (_, place) in users.filter_map(|user| self.by_user.get(&user)).flatten() {
            if place.is_whole {
                return Served::By(&place.to);
            }
            is_in_part = true;
        }
        if !is_in_part && let Some(of_all) = self.by_user.get(&(original, None)) {
            let station = station();
            // Of whom that is not known may be there.
            is_in_part = of_all.iter().any(|(_, place)| {
                place.base_station.is_none_or(|of| station.is_none_or(|station| station == of))
            });
        }
        if is_in_part { Served::ByBoth } else { Served::ByOriginal }
    }
}

/// What a clone is expected to tell: of which replica, which copy, and whether with its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) replica: (String, String),
    pub(crate) handle: u32,
    pub(crate) is_end: bool,
}

/// An answer of an original that waits for those of clones.
#[derive(Debug)]
struct Held {
    answer: Outgoing,
    /// As it came from the original.
    came: Vec<u8>,
    original: IpAddr,
    /// The session, if it goes on; else its ledger is here.
    session: Result<u32, Ledger>,
    /// What it answers.
    request: Vec<u8>,
    waits: Vec<Wait>,
}

/// A message's transaction: the original, the control plane, type and number.
type Transaction = (IpAddr, IpAddr, u8, [u8; 3]);

/// Messages that did not pass as they were, or with usage: repetitions are treated alike.
#[derive(Debug, Default)]
struct Remembered {
    all: HashMap<Transaction, (Vec<u8>, Verdict, Option<Outgoing>)>,
    order: VecDeque<Transaction>,
}

impl Remembered {
    fn set(&mut self, of: Transaction, came: Vec<u8>, verdict: Verdict, answer: Option<Outgoing>) {
        if self.all.insert(of, (came, verdict, answer)).is_none() {
            self.order.push_back(of);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

/// What is to happen later.
#[derive(Debug)]
pub(crate) enum Timer {
    /// A held answer has waited enough, which is this long.
    Held(u64, Duration),
    /// A message in the original's name has no answer yet.
    Report(IpAddr, u32),
    /// Repetitions of an original's messages no longer come.
    Linger(IpAddr),
    /// Sessions that an original has lost may be set up again.
    Restoration(IpAddr),
    /// A copy to whose clone nobody sends any more, by its handle, ends after this time.
    Departed(CopyName, u32, Duration),
}

/// What is known of interception.
#[derive(Debug, Default)]
pub(crate) struct Interception {
    pub(crate) places: Places,
    held: HashMap<u64, Held>,
    next_held: u64,
    remembered: Remembered,
    /// Until when repetitions of originals' messages may come.
    lingering: HashMap<IpAddr, Instant>,
    /// Reports in originals' names without answers, by the SMF and their transaction, and how often they are still sent.
    reports: HashMap<(IpAddr, u32), (Outgoing, u32)>,
    pub(crate) departures: Departures,
    /// To be started when the state is free.
    pub(crate) timers: Vec<Timer>,
}

impl Interception {
    /// A message did not pass as it was, or has usage.
    fn remember(&mut self, of: Transaction, came: Vec<u8>, verdict: Verdict, answer: Option<Outgoing>) {
        let until = time::now_std() + LINGER;
        if self.lingering.insert(of.0, until).is_none() {
            self.timers.push(Timer::Linger(of.0));
        }
        self.remembered.set(of, came, verdict, answer);
    }

    /// A message in an original's name is repeated until it is answered.
    pub(crate) fn repeat(&mut self, to: IpAddr, sequence: u32, message: Outgoing) {
        self.reports.insert((to, sequence), (message, REPEATS));
    }

    /// A session has ended, or another one is at its number: answers that are held keep its ledger.
    pub(crate) fn session_ended(&mut self, anchor: IpAddr, number: u32, ledger: &Ledger) {
        for held in self.held.values_mut().filter(|held| held.original == anchor) {
            if held.session == Ok(number) {
                held.session = Err(ledger.clone());
            }
        }
    }

    /// An answer came that is to none of a clone's requests; whether it is to a report in an original's name.
    pub(crate) fn answered(&mut self, control: IpAddr, sequence: u32) -> bool {
        self.reports.remove(&(control, sequence)).is_some()
    }
}

fn transaction(protocol: Protocol, anchor: IpAddr, control: IpAddr, octets: &[u8]) -> Option<Transaction> {
    let at = if protocol == Protocol::S11 { 8 } else { 12 };
    Some((anchor, control, *octets.get(1)?, *octets.get(at..)?.first_chunk()?))
}

/// The types of report in a Session Report Request, without some.
fn without(message: &[u8], types: u8) -> Vec<u8> {
    tree::rewritten(message, &mut |path, value| {
        let flags = value.first().filter(|_| *path == [ie::REPORT_TYPE])?;
        Some([&[flags & !types], value.get(1..)?].concat())
    })
}

/// The same without usage reports.
fn without_usage(message: &[u8]) -> Vec<u8> {
    let mut out = message.get(..tree::HEADER).unwrap_or_default().to_vec();
    for (kind, value) in tree::all(message.get(tree::HEADER..).unwrap_or_default()) {
        if kind != ie::USAGE_REPORT_SRR {
            out.extend_from_slice(&kind.to_be_bytes());
            out.extend_from_slice(&(value.len() as u16).to_be_bytes());
            out.extend_from_slice(value);
        }
    }
    let length = out.len().saturating_sub(4) as u16;
    out.get_mut(2..4).into_iter().for_each(|octets| octets.copy_from_slice(&length.to_be_bytes()));
    without(&out, ReportType::USAR.0 as u8)
}

fn types_of(message: &[u8]) -> u8 {
    let ies = message.get(tree::HEADER..).unwrap_or_default();
    tree::find(ies, ie::REPORT_TYPE).and_then(|value| value.first().copied()).unwrap_or_default()
}

/// The SMF's answer to a Session Report Request that it does not see.
fn accepted(seid: u64, request: &[u8]) -> Vec<u8> {
    let answer = SessionReportResponse { cause: Cause::ACCEPTED, ..Default::default() };
    let mut octets = Vec::new();
    let sequence = N4::head(request).map_or(0, |head| head.sequence);
    // It fits.
    let _ = Message::from(answer).encode(seid, sequence, &mut octets);
    octets
}

/// The default bearer of a Delete Bearer Request for inactivity.
fn inactive_bearer(octets: &[u8]) -> Option<gtpv2c::Ebi> {
    if octets.get(1) != Some(&DELETE_BEARER) {
        return None;
    }
    let Ok((_, gtpv2c::Message::DeleteBearerRequest(request))) = gtpv2c::Message::decode(octets) else {
        return None;
    };
    let is_inactive = request.cause.is_some_and(|cause| cause.value == CauseValue::PDN_INACTIVITY);
    request.linked_ebi.filter(|_| is_inactive)
}

/// The MME's answer to such a request, which it does not see: the bearer is to stay.
fn refused(teid: u64, request: &[u8]) -> Vec<u8> {
    let linked_ebi = inactive_bearer(request);
    let answer = gtpv2c::message::DeleteBearerResponse {
        cause: CauseValue::REJECTED.into(),
        linked_ebi,
        ..Default::default()
    };
    let mut octets = Vec::new();
    let sequence = S11::head(request).map_or(0, |head| head.sequence);
    // It fits.
    let _ = gtpv2c::Message::from(answer).encode(teid as u32, sequence, &mut octets);
    octets
}

/// What becomes of a clone's request.
pub(crate) enum Asks {
    /// It is for the control plane.
    Control(Vec<u8>),
    /// It is answered here.
    Nobody(Vec<u8>),
}

impl State {
    pub(crate) fn served(&self, original: IpAddr, number: u32) -> Served<&str> {
        let tracker = self.originals.get(&original).map(|of| &of.tracker);
        let view = tracker.and_then(|tracker| tracker.table().view(number));
        let addresses = view.into_iter().flat_map(|view| view.addresses());
        let station = || tracker.and_then(|tracker| tracker.last_station(number));
        self.interception.places.served(original, addresses, station)
    }

    /// Anchors whose messages are not to pass as they are: users of theirs are at clones, or their SMF's numbers are other ones than
    /// theirs.
    pub(crate) fn intercepted(&self) -> BTreeSet<IpAddr> {
        let places = &self.interception.places;
        let is_moved = |((_, to), replica): &(&(String, String), &crate::replica::Replica)| {
            !replica.copies.is_empty() && places.is_moved_to(replica.original, to)
        };
        let moved = self.replicas.iter().filter(is_moved).map(|(_, replica)| replica.original);
        let apart = self.originals.iter().filter(|(_, original)| !original.apart.is_empty());
        // Also as long as answers are held.
        let lingering = self.interception.lingering.keys().copied();
        moved.chain(apart.map(|(address, _)| *address)).chain(lingering).collect()
    }

    /// Usage of an original has reached the SMF as it was.
    pub(crate) fn passed(&mut self, anchor: IpAddr, taken: &mut Taken, octets: &[u8]) {
        let Some(code) = octets.get(1).filter(|code| [REPORT, MODIFIED, DELETED].contains(code)) else {
            return;
        };
        let number = match *code {
            REPORT => self.session_of_report(anchor, taken.control, octets),
            _ => taken.number,
        };
        let Some(original) = self.originals.get_mut(&anchor) else { return };
        let is_wrong = match (&mut taken.ledger, number) {
            (Some(ledger), _) => ledger.passed(octets),
            (None, Some(number)) if !usage::reports(octets).is_empty() => {
                original.with_ledger(number, |ledger| {
                    let is_wrong = ledger.passed(octets);
                    ledger.modified(&taken.request);
                    is_wrong
                })
            }
            _ => false,
        };
        if is_wrong {
            UNMERGED.inc();
        }
    }

    fn session_of_report(&self, anchor: IpAddr, control: IpAddr, octets: &[u8]) -> Option<u32> {
        let original = self.originals.get(&anchor)?;
        let head = match original.tracker.protocol() {
            Protocol::N4 => N4::head(octets)?,
            Protocol::S11 => S11::head(octets)?,
        };
        original.tracker.table().by_control(original.tracker.peers().find(control)?, head.to?)
    }

    /// What to do with a message of an original that waits for it.
    fn verdict(
        &mut self,
        anchor: IpAddr,
        mut taken: Taken,
        ends: (SocketAddr, SocketAddr),
        octets: &[u8],
    ) -> Verdict {
        let (from, to) = ends;
        let protocol = match self.originals.get(&anchor) {
            Some(original) => original.tracker.protocol(),
            None => return Verdict::Pass,
        };
        let Some(of) = transaction(protocol, anchor, to.ip(), octets) else { return Verdict::Pass };
        if let Some((came, verdict, answer)) = self.interception.remembered.all.get(&of)
            && came == octets
        {
            self.outbox.extend(answer.clone());
            return verdict.clone();
        }
        let (verdict, answer) = match (protocol, of.2) {
            (Protocol::N4, REPORT) if usage::is_whole(octets) => self.report(anchor, to.ip(), octets),
            (Protocol::N4, MODIFIED | DELETED) if usage::is_whole(octets) => {
                return self.answer(anchor, of, &mut taken, ends, octets);
            }
            (Protocol::S11, DELETE_BEARER) => self.delete_bearer(anchor, to.ip(), octets),
            _ => {
                self.passed(anchor, &mut taken, octets);
                return Verdict::Pass;
            }
        };
        let answer = answer.map(|octets| Outgoing { from: to, to: from, octets });
        // Usage is charged once, also if it has passed as it was.
        if verdict != Verdict::Pass || of.2 == REPORT && !usage::reports(octets).is_empty() {
            self.interception.remember(of, octets.to_vec(), verdict.clone(), answer.clone());
        }
        self.outbox.extend(answer);
        verdict
    }

    fn report(&mut self, anchor: IpAddr, control: IpAddr, octets: &[u8]) -> (Verdict, Option<Vec<u8>>) {
        let Some(number) = self.session_of_report(anchor, control, octets) else {
            return (Verdict::Pass, None);
        };
        let mut message = octets.to_vec();
        let inactive = ReportType::UPIR.0 as u8;
        if types_of(octets) & inactive != 0 && self.served(anchor, number) != Served::ByOriginal {
            INACTIVE.inc();
            message = without(&message, inactive);
        }
        let Some(original) = self.originals.get_mut(&anchor) else { return (Verdict::Pass, None) };
        let seid = original.tracker.table().view(number).and_then(|view| view.anchor()).unwrap_or_default();
        if types_of(&message) == 0 {
            return (Verdict::Withhold, Some(accepted(seid, octets)));
        }
        if !usage::reports(octets).is_empty() {
            message = original.with_ledger(number, |ledger| ledger.of_original(&message));
        }
        (if message == octets { Verdict::Pass } else { Verdict::Instead(message) }, None)
    }

    fn delete_bearer(&self, anchor: IpAddr, control: IpAddr, octets: &[u8]) -> (Verdict, Option<Vec<u8>>) {
        let number = inactive_bearer(octets).and_then(|_| self.session_of_report(anchor, control, octets));
        let Some(number) = number.filter(|number| self.served(anchor, *number) != Served::ByOriginal) else {
            return (Verdict::Pass, None);
        };
        INACTIVE.inc();
        let view = self.originals.get(&anchor).and_then(|original| original.tracker.table().view(number));
        let teid = view.and_then(|view| view.anchor()).unwrap_or_default();
        (Verdict::Withhold, Some(refused(teid, octets)))
    }

    /// An answer of an original: held, if clones have still to tell what they have carried.
    fn answer(
        &mut self,
        anchor: IpAddr,
        of: Transaction,
        taken: &mut Taken,
        (from, to): (SocketAddr, SocketAddr),
        octets: &[u8],
    ) -> Verdict {
        let Some(original) = self.originals.get_mut(&anchor) else { return Verdict::Pass };
        let (mut session, mut message) = match (taken.ledger.take(), taken.number) {
            (Some(mut ledger), _) => {
                let message = ledger.of_original(octets);
                (Err(ledger), message)
            }
            (None, Some(number)) if !usage::reports(octets).is_empty() => {
                (Ok(number), original.with_ledger(number, |ledger| ledger.of_original(octets)))
            }
            (None, Some(number)) => (Ok(number), octets.to_vec()),
            // Repeated, refused, or of nobody who is known.
            (None, None) => return Verdict::Pass,
        };
        let request = std::mem::take(&mut taken.request);
        if taken.waits.is_empty() || self.interception.held.len() >= MAX_HELD {
            match &mut session {
                Ok(number) => original.with_ledger(*number, |ledger| ledger.modified(&request)),
                Err(ledger) => UNCHARGED.add(ledger.append_waiting(&mut message) as u64),
            }
            if message == octets {
                return Verdict::Pass;
            }
            let verdict = Verdict::Instead(message);
            self.interception.remember(of, octets.to_vec(), verdict.clone(), None);
            return verdict;
        }
        let answer = Outgoing { from, to, octets: message };
        let (came, waits) = (octets.to_vec(), std::mem::take(&mut taken.waits));
        self.interception.remember(of, came.clone(), Verdict::Withhold, None);
        let id = self.interception.next_held;
        self.interception.next_held += 1;
        let held = Held { answer, came, original: anchor, session, request, waits };
        let hold = if held.waits.iter().any(|wait| wait.is_end) { HOLD_END } else { HOLD };
        self.interception.held.insert(id, held);
        self.interception.timers.push(Timer::Held(id, hold));
        Verdict::Withhold
    }

    /// Sends a held answer.
    fn release(&mut self, id: u64) {
        let Some(held) = self.interception.held.remove(&id) else { return };
        let Held { mut answer, came, original, session, request, waits } = held;
        if !waits.is_empty() {
            LATE.inc();
        }
        match (session, self.originals.get_mut(&original)) {
            (Ok(number), Some(original)) => {
                original.with_ledger(number, |ledger| ledger.modified(&request));
            }
            (Err(mut ledger), _) if answer.octets.get(1) == Some(&DELETED) => {
                UNCHARGED.add(ledger.append_waiting(&mut answer.octets) as u64);
            }
            _ => {}
        }
        if let Some(of) = transaction(Protocol::N4, original, answer.to.ip(), &came) {
            let verdict = Verdict::Instead(answer.octets.clone());
            self.interception.remember(of, came, verdict, None);
        }
        self.outbox.push(answer);
    }

    /// Nothing more comes of some copies: answers no longer wait for it; of how many.
    pub(crate) fn no_longer_awaited(&mut self, is_of: impl Fn(&Wait) -> bool) -> usize {
        let (mut ready, mut count) = (Vec::new(), 0);
        for (id, held) in &mut self.interception.held {
            count += held.waits.iter().filter(|wait| is_of(wait)).count();
            held.waits.retain(|wait| !is_of(wait));
            if held.waits.is_empty() {
                ready.push(*id);
            }
        }
        ready.into_iter().for_each(|id| self.release(id));
        count
    }

    /// A clone has told what it has carried.
    pub(crate) fn usage(&mut self, replica: &(String, String), handle: u32, is_end: bool, octets: &[u8]) {
        let mut reports: Vec<Vec<u8>> = tree::all(octets).map(|(_, value)| value.to_vec()).collect();
        let is_its = |wait: &Wait| wait.replica == *replica && wait.handle == handle && wait.is_end == is_end;
        let waiting = self.interception.held.iter().filter(|(_, held)| held.waits.iter().any(is_its));
        let first = waiting.map(|(id, _)| *id).min();
        let session = self.replicas.get(replica).and_then(|of| Some((of.original, of.session_of(handle)?)));
        if let Some(id) = first
            && let Some(held) = self.interception.held.get_mut(&id)
        {
            let message = &mut held.answer.octets;
            let added = match &mut held.session {
                Err(ledger) => ledger.add(message, &reports),
                Ok(number) => match self.originals.get_mut(&held.original) {
                    Some(original) => original.with_ledger(*number, |ledger| ledger.add(message, &reports)),
                    None => Ok(()),
                },
            };
            match added {
                Ok(()) => MERGED.add(reports.len() as u64),
                // The datagram is full, which is not to be expected.
                Err(_) => UNCHARGED.inc(),
            }
            reports.clear();
            if let Some(at) = held.waits.iter().position(is_its) {
                held.waits.remove(at);
            }
            if held.waits.is_empty() {
                self.release(id);
            }
        }
        reports.retain(|report| !usage::is_of_nothing(report));
        if reports.is_empty() {
            return;
        }
        let is_sent =
            session.is_some_and(|(original, number)| self.report_as_original(original, number, &reports));
        if !is_sent {
            UNCHARGED.add(reports.len() as u64);
        }
    }

    /// Tells the SMF what a clone has carried, as the original's report; whether somebody can be told.
    pub(crate) fn report_as_original(&mut self, anchor: IpAddr, number: u32, reports: &[Vec<u8>]) -> bool {
        if self.interception.reports.len() >= MAX_HELD {
            return false;
        }
        let sequence = self.next_sequence();
        let Some(original) = self.originals.get_mut(&anchor) else { return false };
        let Some(view) = original.tracker.table().view(number) else { return false };
        let (control, seid) =
            (view.peer().and_then(|peer| original.tracker.peers().address(peer)), view.control());
        let (Some(control), Some(seid)) = (control, seid) else { return false };
        let mut octets = usage::request();
        let is_numbered = original.with_ledger(number, |ledger| {
            let mut is_numbered = false;
            for report in reports {
                // One that cannot be numbered yet waits for one of the original's.
                if let Some(report) = ledger.of_clone(report) {
                    is_numbered |= usage::append_last(&mut octets, &report).is_ok();
                }
            }
            is_numbered
        });
        MERGED.add(reports.len() as u64);
        if is_numbered {
            N4::patch(&mut octets, seid, sequence);
            let (from, to) = (SocketAddr::new(anchor, 8805), SocketAddr::new(control, 8805));
            let report = Outgoing { from, to, octets };
            self.interception.reports.insert((control, sequence), (report.clone(), REPEATS));
            self.interception.timers.push(Timer::Report(control, sequence));
            self.outbox.push(report);
        }
        true
    }

    /// A request of a clone, as the control plane is to get it.
    pub(crate) fn of_clone(
        &mut self,
        replica: &(String, String),
        number: u32,
        octets: Vec<u8>,
    ) -> Option<Asks> {
        let of = self.replicas.get(replica)?;
        let (anchor, made) = (of.original, of.copies.get(&number).and_then(|copy| copy.made()));
        let served = self.served(anchor, number);
        let is_serving = served == Served::By(&replica.1);
        let is_at_all = is_serving || served == Served::ByBoth;
        let at_clone = made.map_or(0, |made| made.anchor);
        let original = self.originals.get_mut(&anchor)?;
        match original.tracker.protocol() {
            Protocol::S11 => {
                if !is_serving && inactive_bearer(&octets).is_some() {
                    INACTIVE.inc();
                    return Some(Asks::Nobody(refused(at_clone, &octets)));
                }
                Some(Asks::Control(octets))
            }
            Protocol::N4 if octets.get(1) == Some(&REPORT) && usage::is_whole(&octets) => {
                let mut message = octets;
                let inactive = ReportType::UPIR.0 as u8;
                if types_of(&message) & inactive != 0 && !is_serving {
                    INACTIVE.inc();
                    message = without(&message, inactive);
                }
                let mut reports = usage::reports(&message);
                if !reports.is_empty() {
                    message = without_usage(&message);
                    // A clone that is kept warm carries nothing, and says so.
                    reports.retain(|report| is_at_all || !usage::is_of_nothing(report));
                    MERGED.add(reports.len() as u64);
                    original.with_ledger(number, |ledger| {
                        for report in reports {
                            if let Some(report) = ledger.of_clone(&report) {
                                // The octets come from a datagram, and no more are appended than were taken out.
                                let _ = usage::append_report(&mut message, &report);
                            }
                        }
                    });
                }
                match types_of(&message) {
                    0 => Some(Asks::Nobody(accepted(at_clone, &message))),
                    _ => Some(Asks::Control(message)),
                }
            }
            Protocol::N4 => Some(Asks::Control(octets)),
        }
    }
}

impl Replicator {
    /// The addresses of originals whose messages are to be asked about ([`Replicator::intercept`]) before they go on.
    pub fn watch_intercepted(&self) -> watch::Receiver<BTreeSet<IpAddr>> {
        self.intercepted().subscribe()
    }

    /// Takes a captured datagram of an original that has not been sent on yet; what to do with it.
    pub fn intercept(&self, protocol: Protocol, from: SocketAddr, to: SocketAddr, octets: &[u8]) -> Verdict {
        let datagram = Datagram { control: to.ip(), by_control: false, octets };
        let mut state = self.state();
        let verdict = match self.take(&mut state, protocol, from.ip(), datagram) {
            Some(taken) => state.verdict(from.ip(), taken, (from, to), octets),
            None => Verdict::Pass,
        };
        self.flush(state);
        verdict
    }

    /// What is due after a time.
    pub(crate) async fn after(self, timer: Timer) {
        let mut pause = REPEAT;
        match timer {
            Timer::Held(id, hold) => {
                time::sleep(hold).await;
                let mut state = self.state();
                state.release(id);
                self.flush(state);
            }
            Timer::Linger(anchor) => loop {
                let until = self.state().interception.lingering.get(&anchor).copied();
                let left = until.map(|until| until.saturating_duration_since(time::now_std()));
                match left.filter(|left| !left.is_zero()) {
                    Some(left) => time::sleep(left).await,
                    None => {
                        let mut state = self.state();
                        state.interception.lingering.remove(&anchor);
                        return self.flush(state);
                    }
                }
            },
            Timer::Restoration(anchor) => loop {
                let until = self.state().originals.get(&anchor).and_then(|of| of.tracker.waits_until());
                let Some(until) = until else { return };
                time::sleep(until.saturating_duration_since(time::now_std())).await;
                let mut state = self.state();
                state.give_up(anchor, time::now_std(), self.config());
                self.flush(state);
            },
            Timer::Departed(copy, handle, rest) => self.ends_after(copy, handle, rest).await,
            Timer::Report(control, sequence) => loop {
                time::sleep(pause).await;
                let mut state = self.state();
                let Interception { reports, departures, .. } = &mut state.interception;
                let Some((report, left)) = reports.get_mut(&(control, sequence)) else { return };
                match left.checked_sub(1) {
                    Some(fewer) => *left = fewer,
                    // Without its answer a copy does not end.
                    None if departures.wait_for(control, sequence) => pause = LINGER,
                    None => {
                        UNCHARGED.add(usage::reports(&report.octets).len() as u64);
                        reports.remove(&(control, sequence));
                        return;
                    }
                }
                let again = report.clone();
                state.outbox.push(again);
                self.flush(state);
            },
        }
    }
}

/// Says something of a copy to its agent.
pub(crate) fn answer_clone(
    state: &State,
    replica: &(String, String),
    handle: u32,
    sequence: u32,
    octets: Vec<u8>,
) {
    if let Some(replica) = state.replicas.get(replica) {
        replica.connection.say(Frame::Answer { handle, sequence, octets });
    }
}
