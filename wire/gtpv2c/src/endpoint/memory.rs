//! Requests of peers that are remembered, so that a repeated one is answered again but not handled again (§7.6).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::{Config, RequestId};
use crate::message::MessageType;

type Key = (SocketAddr, u32);

struct Entry {
    message_type: MessageType,
    /// When it is forgotten.
    until: Instant,
    answer: Answer,
}

enum Answer {
    /// The owner is at work.
    None,
    /// A command was answered with a request, which is repeated by itself.
    Triggered,
    Datagram(Arc<[u8]>),
}

impl Entry {
    fn octets(&self) -> usize {
        if let Answer::Datagram(payload) = &self.answer { payload.len() } else { 0 }
    }
}

/// What is known of a request that has been received.
pub enum Seen {
    /// Nothing; it is remembered from now on.
    New,
    /// It came before, and has been answered with this.
    Before(Option<Arc<[u8]>>),
}

/// The remembered requests.
pub struct Memory {
    most: usize,
    most_octets: usize,
    remember_for: Duration,
    entries: HashMap<Key, Entry>,
    /// Octets of the answers among the entries.
    octets: usize,
    /// When to forget which entry, the oldest first.
    forget: VecDeque<(Instant, Key)>,
}

impl Memory {
    /// An empty memory with these limits.
    pub fn new(config: &Config) -> Self {
        Self {
            most: config.max_remembered.max(1),
            most_octets: config.max_remembered_octets,
            remember_for: config.remember_for(),
            entries: HashMap::default(),
            octets: 0,
            forget: VecDeque::new(),
        }
    }

    /// Looks up a received request, and remembers it if it is new. The same number with another type is new: the peer
    /// has restarted its numbering.
    pub fn see(&mut self, now: Instant, id: RequestId) -> Seen {
        self.forget_old(now);
        let key = (id.peer, id.sequence);
        let known = self.entries.get(&key).filter(|entry| entry.message_type == id.message_type);
        match known.map(|entry| &entry.answer) {
            Some(Answer::Datagram(payload)) => return Seen::Before(Some(payload.clone())),
            Some(Answer::None | Answer::Triggered) => return Seen::Before(None),
            None => {}
        }
        while self.entries.len() >= self.most && self.forget_oldest() {}
        let until = now + self.remember_for;
        let entry = Entry { message_type: id.message_type, until, answer: Answer::None };
        if let Some(before) = self.entries.insert(key, entry) {
            self.octets -= before.octets();
        }
        self.forget.push_back((until, key));
        Seen::New
    }

    /// Whether a remembered request has been answered.
    pub fn is_answered(&mut self, now: Instant, id: RequestId) -> bool {
        self.forget_old(now);
        self.entries.get(&(id.peer, id.sequence)).is_some_and(|entry| {
            entry.message_type == id.message_type && !matches!(entry.answer, Answer::None)
        })
    }

    /// Remembers the answer to a request; `None` when it was a request that repeats itself.
    pub fn answer(&mut self, now: Instant, id: RequestId, payload: Option<Arc<[u8]>>) {
        self.forget_old(now);
        let entry = self.entries.get_mut(&(id.peer, id.sequence));
        let Some(entry) = entry.filter(|entry| entry.message_type == id.message_type) else { return };
        self.octets -= entry.octets();
        entry.answer = payload.map_or(Answer::Triggered, Answer::Datagram);
        self.octets += entry.octets();
        while self.octets > self.most_octets && self.forget_oldest() {}
    }

    /// Forgets the requests whose time has come.
    pub fn forget_old(&mut self, now: Instant) {
        while self.forget.front().is_some_and(|(at, _)| *at <= now) {
            self.forget_oldest();
        }
    }

    /// Forgets what a peer has asked before `since`: it has restarted, and may use the same numbers for other requests.
    pub fn forget_peer(&mut self, ip: IpAddr, since: Instant) {
        let Self { entries, octets, remember_for, .. } = self;
        entries.retain(|key, entry| {
            let is_gone = key.0.ip() == ip && entry.until < since + *remember_for;
            if is_gone {
                *octets -= entry.octets();
            }
            !is_gone
        });
    }

    /// Forgets the oldest request; `false` when there is none.
    fn forget_oldest(&mut self) -> bool {
        let Some((until, key)) = self.forget.pop_front() else { return false };
        // Its number may be that of a later request by now.
        if self.entries.get(&key).is_some_and(|entry| entry.until == until)
            && let Some(entry) = self.entries.remove(&key)
        {
            self.octets -= entry.octets();
        }
        true
    }
}
