//! The baseline of benchmarks, as user plane functions commonly do it: a hash from the session to a linked list
//! of its PDRs, walked in order of precedence.
//!
//! It is made as fast as this design can be: the hash is one multiplication, a node holds the 5-tuple itself,
//! and the nodes of a session were allocated one after the other.

use super::{SessionError, sorted};
use crate::ids::{IdMap, map_bytes};
use crate::matcher::FiveTuple;
use crate::{Key, Matcher, Rule, Verdict};

/// Sessions by hash, rules by linked list.
#[derive(Debug, Default)]
pub struct HashList {
    sessions: IdMap<Option<Box<Node>>>,
    heap: usize,
}

#[derive(Debug)]
struct Node {
    tuple: FiveTuple,
    value: u32,
    /// The whole matcher, if the rule has conditions beyond the 5-tuple.
    more: Option<Box<Matcher>>,
    next: Option<Box<Node>>,
}

impl Node {
    #[inline]
    fn matches(&self, key: &Key) -> bool {
        self.tuple.matches(key) && self.more.as_ref().is_none_or(|matcher| matcher.matches(key))
    }
}

impl HashList {
    /// A table without sessions.
    pub fn new() -> HashList {
        HashList::default()
    }

    /// Sets a session's rules and drops those it had.
    pub fn set(&mut self, session: u32, rules: &[Rule]) -> Result<(), SessionError> {
        let rules = sorted(rules)?;
        self.remove(session);
        let mut nodes: Vec<Box<Node>> = Vec::with_capacity(rules.len());
        for rule in rules {
            let Some(matcher) = Matcher::new(&rule.filter) else { continue };
            let more = (!FiveTuple::is_all_of(matcher.used_words())).then(|| Box::new(matcher));
            self.heap += size_of::<Node>() + more.as_ref().map_or(0, |_| size_of::<Matcher>());
            nodes.push(Box::new(Node {
                tuple: FiveTuple::new(&matcher),
                value: rule.value,
                more,
                next: None,
            }));
        }
        let chain = nodes.into_iter().rev().fold(None, |next, mut node| {
            node.next = next;
            Some(node)
        });
        self.sessions.insert(session, chain);
        Ok(())
    }

    /// Removes a session; `false` when no session has this number.
    pub fn remove(&mut self, session: u32) -> bool {
        let Some(mut next) = self.sessions.remove(&session) else { return false };
        while let Some(node) = next {
            self.heap -= size_of::<Node>() + node.more.as_ref().map_or(0, |_| size_of::<Matcher>());
            next = node.next;
        }
        true
    }

    /// Like [`super::Sessions::classify`], one packet after the other.
    pub fn classify(&self, sessions: &[u32], keys: &[Key], verdicts: &mut [Verdict]) {
        for ((session, key), verdict) in sessions.iter().zip(keys).zip(verdicts) {
            let mut node = self.sessions.get(session).and_then(Option::as_deref);
            while let Some(present) = node
                && !present.matches(key)
            {
                node = present.next.as_deref();
            }
            *verdict = node.map(|node| node.value);
        }
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Octets of memory in use, without the allocator's own.
    pub fn memory_bytes(&self) -> usize {
        map_bytes(&self.sessions) + self.heap
    }
}
