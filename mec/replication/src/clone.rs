//! Makes sessions at another anchor, as the control plane that it takes us for (SEL-1…3, SEL-8, CAP-5). No socket and no clock.
//!
//! A user's *script* is the requests that its record has, in order; the next one goes when the anchor has accepted the one before it. Many
//! users are under way at once. In naïve replication one message is, and nothing is altered unless the anchor has given the user another
//! TEID (NAI-1…3). Otherwise requests get new sequence numbers, and the TEID or SEID that this anchor gave.
//!
//! What differs between S11 and N4 is a [`Side`]. What the anchor asks beyond what a script answers is for the control plane
//! ([`Event::Request`]); Echo and heartbeats are answered here.
//!
//! Contract: after every call, send what [`Clone::poll_transmit`] gives and take what [`Clone::poll_event`] gives, until there is no more;
//! call [`Clone::handle_timeout`] at the time of [`Clone::poll_timeout`]. Each user of [`Clone::make`] ends in one [`Event::Made`] or
//! [`Event::Refused`].

use std::collections::{BTreeSet, VecDeque};
use std::hash::BuildHasher as _;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use telemetry::counters::Counter;

mod side;

pub use side::{Answered, Head, Kind, Prepared, Side};

use crate::record::Bearer;

/// Messages to clones that want an answer, without repetitions and questions whether they are there.
static ASKED: Counter = Counter::new("agent_requests");

/// Answers that are remembered for requests that come again.
const REMEMBERED: usize = 4096;

/// Questions to an anchor whether it is there, whose answers say which users a restart has ended.
const QUESTIONS: usize = 16;

/// Limits and timers of the control plane that a clone takes us for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Users that are made at once.
    pub window: usize,
    /// Time until a request is repeated.
    pub repeat: Duration,
    /// How often it is repeated.
    pub repeats: u32,
    /// How often an anchor with users is asked whether it is there.
    pub probe: Duration,
    /// An anchor that was not asked for so long is asked before another user is made.
    pub fresh: Duration,
    /// How long the clone may take to ask for a bearer that the first anchor had.
    pub bearer_patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let (repeat, bearer_patience) = (Duration::from_millis(500), Duration::from_secs(2));
        let (probe, fresh) = (Duration::from_secs(5), Duration::from_millis(100));
        Limits { window: 64, repeat, repeats: 4, probe, fresh, bearer_patience }
    }
}

/// A user among those that are made here, as its owner names it.
pub type Handle = u32;

/// What a clone gave a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// By what the control plane addresses it: TEID or SEID.
    pub anchor: u64,
    /// Tunnels and addresses.
    pub bearers: Vec<Bearer>,
}

/// Why a clone does not have a user, or no longer as the first anchor has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It refuses with this cause.
    #[error("it refuses with cause {0}")]
    Cause(u8),
    /// It does not answer.
    #[error("it does not answer")]
    Silent,
    /// It does not ask for the dedicated bearers that the first anchor asked for.
    #[error("it does not create the dedicated bearers that the first anchor created")]
    NoBearer,
    /// What is kept cannot be read.
    #[error("what is kept of it cannot be read, or is not all")]
    Unreadable,
    /// Another user here is addressed in the same way.
    #[error("another user has its TEID or SEID")]
    Taken,
    /// The clone has restarted, and has no sessions.
    #[error("it has restarted")]
    Restarted,
    /// The first anchor is an S-GW, and there is no way back to it.
    #[error(
        "its P-GW is apart, and what the S-GW has told that one was not captured, or it has dedicated bearers; only the scheme `selective` copies it"
    )]
    Apart,
}

/// What has become of a user at a clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is there.
    Made(Handle, Made),
    /// It is not; what was there of it ends.
    Refused(Handle, Why),
    /// It is there no longer.
    Ended(Handle),
    /// The anchor has told what it has carried.
    Usage {
        /// The user.
        handle: Handle,
        /// The session has ended.
        is_end: bool,
        /// Its reports, as in messages.
        octets: Vec<u8>,
    },
    /// The clone asks the control plane something.
    Request {
        /// The user.
        handle: Handle,
        /// The clone's transaction, for the answer.
        sequence: u32,
        /// The request.
        octets: Vec<u8>,
    },
}

/// A first request that an anchor has refused because it had restarted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum PutBack {
    /// There is none.
    #[default]
    No,
    /// It waits until the anchor is greeted.
    Waits,
    /// It was sent again.
    Sent,
}

/// A user at a clone.
#[derive(Debug, Default)]
pub struct User<T> {
    /// By what the anchor addresses the control plane.
    pub control: u64,
    /// By what the control plane addresses the anchor; 0: not known yet.
    pub anchor: u64,
    /// Tunnels and addresses.
    pub bearers: Vec<Bearer>,
    /// Requests to send, in order.
    pub script: VecDeque<Vec<u8>>,
    /// What the protocol needs to know beyond.
    pub state: T,
    /// The request under way.
    waits: Option<u32>,
    /// How many questions the anchor was sent before the user's first request went, the last time; `None`: that one was not sent.
    begun: Option<u64>,
    /// Says which requests make it, as long as there are no others.
    print: Option<u64>,
    /// What became of a first request that an anchor refused because it had restarted.
    put_back: PutBack,
    /// Until when the anchor is waited for.
    patience: Option<Instant>,
    made: bool,
    /// Tunnels that [`Event::Made`] has told.
    told: Vec<Bearer>,
    /// Earlier values of `control`.
    controls: Vec<u64>,
    ending: bool,
    /// By the greeting of which replicator it was told last.
    greeting: u64,
    /// To be made when it has ended, and how that one is named.
    again: Option<(Handle, Script)>,
}

/// An anchor is greeted, and nothing else is said.
#[derive(Debug, Clone, Copy)]
struct Greeting {
    /// Its number among the questions.
    question: u64,
    /// When it is repeated.
    due: Instant,
    /// How often it may be, until those who wait for it have waited long enough.
    left: u32,
}

#[derive(Debug)]
struct Sent {
    handle: Handle,
    octets: Vec<u8>,
    /// How many questions had been sent by then.
    questions: u64,
    due: Instant,
    left: u32,
}

/// A session as [`Clone::make`] gets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// By what the anchor addresses the control plane.
    pub control: u64,
    /// The requests that make it, in order.
    pub requests: Vec<Vec<u8>>,
}

/// The control plane's side towards one anchor.
#[derive(Debug)]
pub struct Clone<S: Side> {
    side: S,
    limits: Limits,
    sequence: u32,
    users: HashMap<Handle, User<S::State>>,
    by_control: HashMap<u64, Handle>,
    /// Users that begin when others have ended: those.
    later_users: HashMap<Handle, Handle>,
    sent: HashMap<u32, Sent>,
    /// Requests by when they are repeated.
    due: BTreeSet<(Instant, u32)>,
    /// Users for whom the anchor is waited, by until when.
    patience: BTreeSet<(Instant, Handle)>,
    waiting: VecDeque<Handle>,
    /// Messages of naïve replication, with their users.
    naive: VecDeque<(Handle, Vec<u8>)>,
    /// Answers to requests of the anchor, behind the requests.
    answered: HashMap<u32, (Vec<u8>, Vec<u8>)>,
    /// Requests of the anchor that the control plane is asked.
    passed: HashMap<u32, Vec<u8>>,
    answered_order: VecDeque<u32>,
    transmits: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    /// When the anchor has started, as far as it has said.
    started: Option<u32>,
    /// When it is asked next whether it is there.
    probe: Option<Instant>,
    /// Questions whether it is there, greetings among them, so far, and the last ones by their sequence numbers.
    questions: u64,
    asked: VecDeque<(u32, u64)>,
    /// When the last one was sent.
    asked_at: Option<Instant>,
    /// The last one that was answered, and the last greeting that was accepted.
    heard: u64,
    greeted: u64,
    /// It is greeted.
    greeting: Option<Greeting>,
    /// First requests that are sent again when it is greeted.
    put_back: Vec<(Handle, Vec<u8>)>,
    /// Replicators so far.
    greetings: u64,
}

impl<S: Side> Clone<S> {
    /// `secret`: where sequence numbers begin.
    pub fn new(side: S, limits: Limits, secret: u32) -> Clone<S> {
        Clone {
            side,
            limits,
            sequence: secret,
            users: HashMap::default(),
            by_control: HashMap::default(),
            later_users: HashMap::default(),
            sent: HashMap::default(),
            due: BTreeSet::new(),
            patience: BTreeSet::new(),
            waiting: VecDeque::new(),
            naive: VecDeque::new(),
            answered: HashMap::default(),
            passed: HashMap::default(),
            answered_order: VecDeque::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            started: None,
            probe: None,
            questions: 0,
            asked: VecDeque::new(),
            asked_at: None,
            heard: 0,
            greeted: 0,
            greeting: None,
            put_back: Vec::new(),
            greetings: 0,
        }
    }

    /// The anchor has said when it has started, before it was asked anything here.
    pub fn has_started(&mut self, start: u32) {
        self.started = Some(start);
    }

    /// An answer to a question says when the anchor has started. If that is another time than before, users whose first request was
    /// sent before the question are gone; a later one was sent to the anchor as it is now. A first request under way goes on: the anchor
    /// answers it as it is now, or has. Nobody is ended by a request here: the anchor may have given its TEID or SEID to another user.
    fn answers(&mut self, now: Instant, question: u64, start: u32) -> bool {
        if question <= self.heard {
            return false;
        }
        self.heard = question;
        let has_restarted = self.started.replace(start).is_some_and(|before| before != start);
        if has_restarted {
            let is_under_way = |user: &User<S::State>| user.anchor == 0 && user.waits.is_some();
            self.lose(now, |user| user.begun.is_some_and(|begun| begun < question) && !is_under_way(user));
        }
        has_restarted
    }

    /// Users that the anchor has lost.
    fn lose(&mut self, now: Instant, is_lost: impl Fn(&User<S::State>) -> bool) {
        let lost = self.users.iter().filter(|(_, user)| is_lost(user)).map(|(handle, _)| *handle);
        for handle in lost.collect::<Vec<_>>() {
            let Some(user) = self.users.get_mut(&handle) else { continue };
            if !user.ending {
                self.events.push_back(Event::Refused(handle, Why::Restarted));
            }
            user.ending = true;
            if let Some(sequence) = user.waits {
                self.settled(sequence);
            }
            self.naive.retain(|(of, _)| *of != handle);
            self.forget(now, handle);
        }
        self.passed.clear();
    }

    /// A replicator has come. Sessions that it does not name are those of an earlier one.
    pub fn greeted(&mut self) {
        self.greetings += 1;
    }

    fn greet(&mut self, now: Instant) {
        let sequence = self.next_sequence(false);
        let Some(octets) = self.side.greeting(sequence) else { return };
        self.transmits.push_back(octets);
        self.note_question(now, sequence);
        let left = self.greeting.map_or(self.limits.repeats, |greeting| greeting.left.saturating_sub(1));
        let pause = if left == 0 { self.limits.probe } else { self.limits.repeat };
        self.greeting = Some(Greeting { question: self.questions, due: now + pause, left });
    }

    /// The anchor was greeted often enough: those who wait for that are refused.
    fn give_up_greeting(&mut self, now: Instant) {
        let put_back = std::mem::take(&mut self.put_back).into_iter().map(|(handle, _)| handle);
        let naive = std::mem::take(&mut self.naive).into_iter().map(|(handle, _)| handle);
        for handle in std::mem::take(&mut self.waiting).into_iter().chain(put_back).chain(naive) {
            self.fail(now, handle, Why::Silent);
        }
    }

    /// Asks the anchor whether it is there.
    fn ask(&mut self, now: Instant) {
        let sequence = self.next_sequence(false);
        self.transmits.push_back(self.side.probe(sequence));
        self.note_question(now, sequence);
    }

    fn note_question(&mut self, now: Instant, sequence: u32) {
        self.questions += 1;
        self.asked_at = Some(now);
        if self.asked.len() == QUESTIONS {
            self.asked.pop_front();
        }
        self.asked.push_back((sequence, self.questions));
    }

    /// Makes a session. One that is there is made already, and told again.
    pub fn make(&mut self, now: Instant, handle: Handle, script: Script) {
        if let Some(user) = self.users.get_mut(&handle) {
            user.greeting = self.greetings;
            let is_other = user.control != script.control;
            if user.ending || is_other {
                // Another user had this handle: that one ends first.
                user.again = Some((handle, script));
                if is_other && !user.ending {
                    user.script.clear();
                    user.ending = true;
                    self.step(now, handle);
                }
            } else if user.made {
                self.events.push_back(Event::Made(handle, user.refs()));
            }
            return;
        }
        self.begin(now, handle, script);
        self.fill(now);
    }

    fn begin(&mut self, now: Instant, handle: Handle, script: Script) {
        if let Some(before) = self.by_control.get(&script.control).copied() {
            let greetings = self.greetings;
            let is_as_asked =
                |user: &User<S::State>| user.greeting != greetings && user.print == Some(print_of(&script));
            // An earlier replicator has made the same one, and was killed before it had noted that.
            if self.users.get(&before).is_some_and(is_as_asked)
                && let Some(user) = self.renamed(before, handle)
            {
                let refs = user.refs();
                return self.events.push_back(Event::Made(handle, refs));
            }
            match self.users.get_mut(&before).filter(|user| user.ending || user.greeting != greetings) {
                // An earlier attempt for this user ends first. Of one of a replicator before this one nobody knows.
                Some(user) => {
                    self.later_users.insert(handle, before);
                    if let Some((instead, _)) = user.again.replace((handle, script)) {
                        self.later_users.remove(&instead);
                        self.events.push_back(Event::Ended(instead));
                    }
                    if !user.ending {
                        user.script.clear();
                        user.ending = true;
                        self.step(now, before);
                    }
                }
                None => self.events.push_back(Event::Refused(handle, Why::Taken)),
            }
            return;
        }
        self.by_control.insert(script.control, handle);
        let user = User {
            control: script.control,
            print: Some(print_of(&script)),
            script: script.requests.into(),
            greeting: self.greetings,
            ..User::default()
        };
        self.users.insert(handle, user);
        self.waiting.push_back(handle);
    }

    /// A session is there already: another agent has made it.
    pub fn adopt(&mut self, now: Instant, handle: Handle, control: u64, made: Made) {
        if let Some(user) = self.users.get_mut(&handle) {
            user.greeting = self.greetings;
            // What is known here is as new, or newer.
            if user.control == control && user.made && !user.ending {
                return self.events.push_back(Event::Made(handle, user.refs()));
            }
            self.events.push_back(Event::Refused(handle, Why::Taken));
            return self.end(now, handle);
        }
        if let Some(user) =
            self.by_control.get(&control).copied().and_then(|before| self.renamed(before, handle))
        {
            let refs = user.refs();
            return self.events.push_back(Event::Made(handle, refs));
        }
        let Made { anchor, bearers } = made;
        self.by_control.insert(control, handle);
        let told = bearers.clone();
        let greeting = self.greetings;
        let user = User {
            control,
            anchor,
            bearers,
            told,
            made: true,
            greeting,
            begun: Some(self.questions),
            ..User::default()
        };
        self.users.insert(handle, user);
        self.probe.get_or_insert(now + self.limits.probe);
    }

    /// Gives a user another handle, as another replicator names it; `None`: it is not there, or not as it is to be.
    fn renamed(&mut self, before: Handle, handle: Handle) -> Option<&User<S::State>> {
        self.users.get(&before).filter(|user| user.made && !user.ending)?;
        let mut user = self.users.remove(&before)?;
        user.greeting = self.greetings;
        for control in user.controls.iter().chain([&user.control]) {
            if let Some(of) = self.by_control.get_mut(control).filter(|of| **of == before) {
                *of = handle;
            }
        }
        self.sent.values_mut().filter(|sent| sent.handle == before).for_each(|sent| sent.handle = handle);
        self.naive.iter_mut().filter(|(of, _)| *of == before).for_each(|(of, _)| *of = handle);
        if let Some(until) = user.patience {
            self.patience.remove(&(until, before));
            self.patience.insert((until, handle));
        }
        Some(self.users.entry(handle).or_insert(user))
    }

    /// Replays messages as they are, one after another. A user is made when its last one is answered.
    pub fn replay(&mut self, now: Instant, handle: Handle, control: u64, octets: Vec<u8>) {
        let greeting = self.greetings;
        self.users.entry(handle).or_insert_with(|| User { control, greeting, ..User::default() });
        self.by_control.insert(control, handle);
        self.naive.push_back((handle, octets));
        self.fill(now);
    }

    /// Has the anchor do what the control plane has asked of the first one since (CAP-6, SEL-8).
    pub fn later(&mut self, now: Instant, handle: Handle, octets: Vec<u8>) {
        let Some(user) = self.users.get_mut(&handle).filter(|user| !user.ending) else { return };
        user.print = None;
        if let Some(control) = S::new_control(&octets).filter(|control| *control != user.control) {
            // Requests of the anchor come to the new one; those on their way still to the old one.
            user.controls.push(std::mem::replace(&mut user.control, control));
            self.by_control.insert(control, handle);
        }
        if self.naive.iter().any(|(of, _)| *of == handle) {
            self.naive.push_back((handle, octets));
            return self.fill(now);
        }
        user.script.push_back(octets);
        if user.made {
            self.step(now, handle);
        }
    }

    /// Tells whether the user's packets go to this anchor, where that makes a difference to others than the anchor (TOP-5).
    pub fn serve(&mut self, now: Instant, handle: Handle, serves: bool) {
        let Some(user) = self.users.get_mut(&handle) else { return };
        self.side.serve(user, serves);
        // What was withheld has been sent.
        user.print = None;
        if user.made {
            self.step(now, handle);
        }
    }

    /// Ends a session at the anchor; [`Event::Ended`] says when.
    pub fn end(&mut self, now: Instant, handle: Handle) {
        if let Some(user) = self.later_users.remove(&handle).and_then(|before| self.users.get_mut(&before)) {
            user.again = None;
        }
        let Some(user) = self.users.get_mut(&handle) else {
            return self.events.push_back(Event::Ended(handle));
        };
        user.script.clear();
        if user.again.as_ref().is_some_and(|(next, _)| *next == handle) {
            user.again = None;
        }
        user.ending = true;
        self.step(now, handle);
    }

    /// Ends all sessions.
    pub fn end_all(&mut self, now: Instant) {
        self.later_users.clear();
        self.users.values_mut().for_each(|user| user.again = None);
        for handle in self.users.keys().copied().collect::<Vec<_>>() {
            self.end(now, handle);
        }
    }

    /// The control plane's answer to a request of the anchor.
    pub fn answer(&mut self, handle: Handle, sequence: u32, mut octets: Vec<u8>) {
        let Some(user) = self.users.get_mut(&handle) else { return };
        user.print = None;
        S::patch(&mut octets, user.anchor, sequence);
        if let Some(request) = self.passed.remove(&sequence) {
            self.transmit_answer(sequence, request, octets);
        }
    }

    /// The next datagram to the anchor.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.transmits.pop_front()
    }

    /// What has become of users.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Clone::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let first = |all: &BTreeSet<(Instant, u32)>| all.first().map(|(due, _)| *due);
        let probe = self.probe.filter(|_| !self.users.is_empty());
        let greeting = self.greeting.map(|greeting| greeting.due);
        first(&self.due).into_iter().chain(first(&self.patience)).chain(probe).chain(greeting).min()
    }

    /// Repeats what was not answered, and gives up on what was repeated enough.
    pub fn handle_timeout(&mut self, now: Instant) {
        // A request that is repeated may come to an anchor that has restarted meanwhile: the question before it says so.
        if self.due.first().is_some_and(|(due, _)| *due <= now) && !self.is_fresh(now) {
            self.ask(now);
        }
        while let Some((_, sequence)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.pop_first();
            let Some(sent) = self.sent.get_mut(&sequence) else { continue };
            if sent.left == 0 {
                let handle = sent.handle;
                self.sent.remove(&sequence);
                self.fail(now, handle, Why::Silent);
                continue;
            }
            if let Some(user) = self.users.get_mut(&sent.handle).filter(|user| user.anchor == 0) {
                user.begun = Some(self.questions);
            }
            sent.left -= 1;
            sent.questions = self.questions;
            sent.due = now + self.limits.repeat;
            self.due.insert((sent.due, sequence));
            self.transmits.push_back(sent.octets.clone());
        }
        if let Some(greeting) = self.greeting.filter(|greeting| greeting.due <= now) {
            if greeting.left == 0 {
                self.give_up_greeting(now);
            }
            self.greet(now);
        }
        if self.probe.is_none_or(|due| due <= now) {
            if self.probe.is_some() && !self.users.is_empty() {
                self.ask(now);
            }
            self.probe = Some(now + self.limits.probe);
        }
        while let Some((until, handle)) = self.patience.first().copied().filter(|(until, _)| *until <= now) {
            self.patience.remove(&(until, handle));
            self.fail(now, handle, Why::NoBearer);
        }
        self.fill(now);
    }

    /// Takes a datagram of the anchor.
    pub fn handle_datagram(&mut self, now: Instant, octets: &[u8]) {
        let mut rest = octets;
        // A second message may ride on the first.
        for _ in 0..2 {
            let Some(head) = S::head(rest) else { break };
            let Some((message, after)) = rest.split_at_checked(head.length) else { break };
            self.node_message(now, head, message);
            match head.kind {
                Kind::Response => self.response(now, head, message),
                Kind::Request => self.request(now, head, message),
                Kind::Command | Kind::Other => {}
            }
            rest = after;
        }
        self.fill(now);
    }

    /// Takes what a message says of the anchor itself.
    fn node_message(&mut self, now: Instant, head: Head, message: &[u8]) {
        let asked = self.asked.iter().find(|(sequence, _)| *sequence == head.sequence);
        let question = asked.map(|(_, question)| *question).filter(|_| head.kind == Kind::Response);
        let start = self.side.start(message);
        let has_restarted = match (question, start) {
            (Some(question), Some(start)) => self.answers(now, question, start),
            // Which users a start that the anchor tells unasked has ended, says only its answer to a question.
            (None, Some(start)) if head.kind == Kind::Request && self.started != Some(start) => {
                if !self.is_fresh(now) {
                    self.ask(now);
                }
                false
            }
            _ => false,
        };
        let is_last = question.is_some() && question == self.greeting.map(|greeting| greeting.question);
        // Where it refuses, it is asked again.
        if is_last && self.side.is_greeted(message) == Some(true) {
            self.greeted = self.greeting.take().map_or(self.greeted, |greeting| greeting.question);
        } else if has_restarted && self.greeting.is_none() {
            self.greet(now);
        }
    }

    /// Whether the anchor was asked just now whether it is there.
    fn is_fresh(&self, now: Instant) -> bool {
        self.asked_at.is_some_and(|at| now.saturating_duration_since(at) < self.limits.fresh)
    }

    /// Starts as many users as may be under way.
    fn fill(&mut self, now: Instant) {
        self.probe.get_or_insert(now + self.limits.probe);
        if self.greeting.is_some() {
            return;
        }
        for (handle, octets) in std::mem::take(&mut self.put_back) {
            if let Some(user) = self.users.get_mut(&handle).filter(|user| user.put_back == PutBack::Waits) {
                user.put_back = PutBack::Sent;
                self.request_of(now, handle, octets);
            }
        }
        let is_idle = self.waiting.is_empty() && self.naive.is_empty();
        if !is_idle && !self.is_fresh(now) {
            self.ask(now);
        }
        while self.sent.is_empty()
            && let Some((handle, octets)) = self.naive.pop_front()
        {
            self.send_as_is(now, handle, octets);
        }
        while self.sent.len() < self.limits.window
            && let Some(handle) = self.waiting.pop_front()
        {
            self.step(now, handle);
        }
    }

    fn send_as_is(&mut self, now: Instant, handle: Handle, mut octets: Vec<u8>) {
        let Some(head) = S::head(&octets) else { return };
        let Some(user) = self.users.get_mut(&handle) else { return };
        if user.anchor != 0 && head.to.is_some_and(|to| to != 0) {
            S::patch(&mut octets, user.anchor, head.sequence);
        }
        user.waits = Some(head.sequence);
        self.send(now, handle, head.sequence, octets);
    }

    fn send(&mut self, now: Instant, handle: Handle, sequence: u32, octets: Vec<u8>) {
        let due = now + self.limits.repeat;
        if let Some(user) = self.users.get_mut(&handle) {
            user.begun.get_or_insert(self.questions);
        }
        ASKED.inc();
        self.transmits.push_back(octets.clone());
        self.due.insert((due, sequence));
        let (questions, left) = (self.questions, self.limits.repeats);
        self.sent.insert(sequence, Sent { handle, octets, questions, due, left });
    }

    /// What was sent, which is no longer repeated.
    fn settled(&mut self, sequence: u32) -> Option<Sent> {
        let sent = self.sent.remove(&sequence)?;
        self.due.remove(&(sent.due, sequence));
        if let Some(user) = self.users.get_mut(&sent.handle).filter(|user| user.waits == Some(sequence)) {
            user.waits = None;
        }
        Some(sent)
    }

    fn next_sequence(&mut self, is_command: bool) -> u32 {
        // The top bit is that of commands (TS 29.274 §7.6); PFCP has none, and no need of so many numbers.
        let of_command = S::SEQUENCES / 2;
        loop {
            self.sequence = self.sequence.wrapping_add(1) % of_command;
            let sequence = self.sequence | if is_command { of_command } else { 0 };
            if !self.sent.contains_key(&sequence) {
                return sequence;
            }
        }
    }

    fn request_of(&mut self, now: Instant, handle: Handle, mut octets: Vec<u8>) {
        let is_command = S::head(&octets).is_some_and(|head| head.kind == Kind::Command);
        let sequence = self.next_sequence(is_command);
        let Some(user) = self.users.get_mut(&handle) else { return };
        user.waits = Some(sequence);
        S::patch(&mut octets, user.anchor, sequence);
        self.send(now, handle, sequence, octets);
    }

    /// Sends the next request of a user, or says that it is made.
    fn step(&mut self, now: Instant, handle: Handle) {
        loop {
            let Some(user) = self.users.get_mut(&handle) else { return };
            if user.waits.is_some() {
                return;
            }
            if user.ending {
                if user.anchor == 0 {
                    return self.forget(now, handle);
                }
                let request = self.side.end(user);
                return self.request_of(now, handle, request);
            }
            let Some(octets) = user.script.pop_front() else { break };
            if let Prepared::Send(octets) = self.side.prepare(user, octets) {
                return self.request_of(now, handle, octets);
            }
        }
        let Some(user) = self.users.get_mut(&handle) else { return };
        // One that serves already goes on without what the anchor has not asked for yet.
        if !S::is_complete(user) && !user.made {
            if user.patience.is_none() {
                let until = now + self.limits.bearer_patience;
                user.patience = Some(until);
                self.patience.insert((until, handle));
            }
            return;
        }
        if let Some(until) = user.patience.take() {
            self.patience.remove(&(until, handle));
        }
        let is_replayed = self.naive.iter().any(|(of, _)| *of == handle);
        // Told again when a later request has given it another tunnel.
        if (!user.made || user.told != user.bearers) && !is_replayed {
            user.made = true;
            user.told = user.bearers.clone();
            self.events.push_back(Event::Made(handle, user.refs()));
        }
    }

    fn response(&mut self, now: Instant, head: Head, octets: &[u8]) {
        let code_of = |octets: &[u8]| S::head(octets).map(|head| head.code);
        let fits = |sent: &Sent| code_of(&sent.octets).is_some_and(|code| head.code == code.wrapping_add(1));
        if !self.sent.get(&head.sequence).is_some_and(fits) {
            // Late, or twice.
            return;
        }
        let Some(sent) = self.settled(head.sequence) else { return };
        let handle = sent.handle;
        let Some(user) = self.users.get_mut(&handle) else { return };
        let answered = self.side.answered(user, &sent.octets, octets);
        let was_end = code_of(&sent.octets).is_some_and(S::is_end);
        if let Some(octets) = self.side.usage(&sent.octets, octets) {
            self.events.push_back(Event::Usage { handle, is_end: was_end, octets });
        }
        // Of a UE with several PDN connections each ends for itself. A refusal says that there is none.
        if was_end && (user.bearers.is_empty() || user.ending && !matches!(answered, Answered::Accepted)) {
            return self.forget(now, handle);
        }
        match answered {
            Answered::Accepted => self.step(now, handle),
            Answered::Refused(cause) => self.fail(now, handle, Why::Cause(cause)),
            Answered::Again(octets) => self.request_of(now, handle, octets),
            Answered::Unknown(cause) => self.unknown(now, cause, sent),
        }
    }

    /// The anchor knows no control plane here. It has no users then, and is greeted, unless it was since the request was sent. A first
    /// request is sent again, once.
    fn unknown(&mut self, now: Instant, cause: u8, sent: Sent) {
        let handle = sent.handle;
        if sent.questions >= self.greeted && self.greeting.is_none() {
            self.lose(now, |user| user.anchor != 0);
            self.started = None;
            self.greet(now);
        }
        let can_repeat = |user: &&mut User<S::State>| user.anchor == 0 && user.put_back == PutBack::No;
        match self.users.get_mut(&handle).filter(can_repeat) {
            Some(user) => {
                user.begun = None;
                user.put_back = PutBack::Waits;
                self.put_back.push((handle, sent.octets));
            }
            None => self.fail(now, handle, Why::Cause(cause)),
        }
    }

    /// A user cannot be made, or not changed as at the first anchor.
    fn fail(&mut self, now: Instant, handle: Handle, why: Why) {
        let Some(user) = self.users.get_mut(&handle) else { return };
        self.naive.retain(|(of, _)| *of != handle);
        if let Some(until) = user.patience.take() {
            self.patience.remove(&(until, handle));
        }
        if user.ending {
            return self.forget(now, handle);
        }
        self.events.push_back(Event::Refused(handle, why));
        user.waits = None;
        user.script.clear();
        user.ending = true;
        self.step(now, handle);
    }

    fn forget(&mut self, now: Instant, handle: Handle) {
        if let Some(user) = self.users.remove(&handle) {
            for control in user.controls.iter().chain([&user.control]) {
                if self.by_control.get(control) == Some(&handle) {
                    self.by_control.remove(control);
                }
            }
            if let Some(until) = user.patience {
                self.patience.remove(&(until, handle));
            }
            let is_named_anew = user.again.as_ref().is_some_and(|(next, _)| *next != handle);
            if user.again.is_none() || is_named_anew {
                self.events.push_back(Event::Ended(handle));
            }
            if let Some((next, script)) = user.again {
                self.later_users.remove(&next);
                self.begin(now, next, script);
            }
        }
    }

    fn request(&mut self, now: Instant, head: Head, octets: &[u8]) {
        if let Some(answer) = self.side.node(head, octets) {
            return self.transmits.push_back(answer);
        }
        // An anchor that has restarted counts anew.
        if let Some((_, answer)) = self.answered.get(&head.sequence).filter(|(request, _)| request == octets)
        {
            return self.transmits.push_back(answer.clone());
        }
        let handle = head.to.and_then(|to| self.by_control.get(&to)).copied();
        let Some((handle, user)) = handle.and_then(|handle| Some((handle, self.users.get_mut(&handle)?)))
        else {
            return self.transmits.extend(self.side.nobody(head));
        };
        let answer = self.side.asked(user, octets);
        let anchor = user.anchor;
        let is_of_command =
            |sent: &Sent| S::head(&sent.octets).is_some_and(|head| head.kind == Kind::Command);
        let triggered = self.sent.get(&head.sequence).is_some_and(is_of_command);
        if triggered {
            self.settled(head.sequence);
        }
        match answer {
            Some(mut answer) => {
                S::patch(&mut answer, anchor, head.sequence);
                self.transmit_answer(head.sequence, octets.to_vec(), answer);
                self.step(now, handle);
            }
            None => {
                if self.passed.len() >= REMEMBERED {
                    // The anchor asks again.
                    self.passed.clear();
                }
                self.passed.insert(head.sequence, octets.to_vec());
                self.events.push_back(Event::Request {
                    handle,
                    sequence: head.sequence,
                    octets: octets.to_vec(),
                });
                if triggered {
                    self.step(now, handle);
                }
            }
        }
    }

    fn transmit_answer(&mut self, sequence: u32, request: Vec<u8>, octets: Vec<u8>) {
        self.transmits.push_back(octets.clone());
        if self.answered.insert(sequence, (request, octets)).is_none() {
            self.answered_order.push_back(sequence);
        }
        if self.answered_order.len() > REMEMBERED
            && let Some(oldest) = self.answered_order.pop_front()
        {
            self.answered.remove(&oldest);
        }
    }
}

impl<T> User<T> {
    fn refs(&self) -> Made {
        Made { anchor: self.anchor, bearers: self.bearers.clone() }
    }
}

/// Says whether two scripts are the same.
fn print_of(script: &Script) -> u64 {
    foldhash::fast::FixedState::default().hash_one(&script.requests)
}
