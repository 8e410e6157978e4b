//! What is common to following both protocols: transactions, and what a captured message leads to.

use std::collections::VecDeque;
use std::net::IpAddr;

use foldhash::HashMap;
use std::time::{Duration, Instant};
use telemetry::counters::Counter;

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
        /// The request.
        request: Vec<u8>,
        /// It is a new one of the control plane: a clone is to be asked for the same.
        is_asked: bool,
    },
    /// A session is gone.
    Ended(u32),
    /// An answer of the control plane to a request that this anchor has not sent: it may be that of a clone.
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

    /// The request of an answer, which is no longer waited for.
    pub(crate) fn answered(&mut self, key: Key) -> Option<Vec<u8>> {
        let (octets, _, is_answered) = self.requests.get_mut(&key)?;
        if std::mem::replace(is_answered, true) { None } else { Some(octets.clone()) }
    }

    /// A request that waits.
    pub(crate) fn get(&self, key: Key) -> Option<&[u8]> {
        self.requests.get(&key).filter(|(.., is_answered)| !is_answered).map(|(octets, ..)| &**octets)
    }

    /// Whether a request has its answer already: another one is a repetition.
    pub(crate) fn is_answered(&self, key: Key) -> bool {
        self.requests.get(&key).is_some_and(|(.., is_answered)| *is_answered)
    }
}

/// Control planes by number, and what each says of its restarts.
#[derive(Debug, Default)]
pub struct Peers {
    addresses: Vec<IpAddr>,
    /// Restart counters or recovery time stamps, of both ends.
    starts: HashMap<IpAddr, u32>,
}

impl Peers {
    /// The number of a control plane.
    ///
    /// # Errors
    /// There are 255 already.
    pub fn number(&mut self, address: IpAddr) -> Result<u8, Misfit> {
        if let Some(at) = self.find(address) {
            return Ok(at);
        }
        let number = u8::try_from(self.addresses.len()).map_err(|_| Misfit)?;
        self.addresses.push(address);
        Ok(number)
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

    /// Notes when an end says it has started; whether it says so differently than before.
    pub(crate) fn has_restarted(&mut self, end: IpAddr, start: u32) -> bool {
        self.starts.insert(end, start).is_some_and(|before| before != start)
    }
}
