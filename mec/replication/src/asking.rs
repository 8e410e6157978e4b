//! Requests of clones to control planes: each is sent once, however often the clone repeats it, and its answer goes back to the clone.

use std::collections::VecDeque;
use std::net::IpAddr;

use foldhash::HashMap;

use crate::replicator::Outgoing;

/// Requests of clones that are remembered: their answers are waited for, or they may be repeated.
const MAX_ASKED: usize = 16_384;

/// A request of a clone, for its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    pub(crate) replica: (String, String),
    pub(crate) handle: u32,
    pub(crate) sequence: u32,
}

/// What has become of a request of a clone.
#[derive(Debug)]
pub(crate) enum Progress {
    /// This was sent to the control plane, under this transaction.
    Sent((IpAddr, u32), Outgoing),
    Answered(Vec<u8>),
}

/// Requests of clones, which may come again.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    /// With the requests as they came.
    pub(crate) all: HashMap<Asked, (Vec<u8>, Progress)>,
    order: VecDeque<Asked>,
    /// Those without answers, by their transactions.
    sent: HashMap<(IpAddr, u32), Asked>,
}

impl Asking {
    /// Notes what has become of a request. The oldest one is forgotten if there are too many.
    pub(crate) fn note(&mut self, asked: Asked, came: Vec<u8>, progress: Progress) {
        if let Progress::Sent(transaction, _) = &progress {
            self.sent.insert(*transaction, asked.clone());
        }
        match self.all.insert(asked.clone(), (came, progress)) {
            Some((_, Progress::Sent(former, _))) => _ = self.sent.remove(&former),
            Some(_) => {}
            None => self.order.push_back(asked),
        }
        if self.order.len() > MAX_ASKED
            && let Some(oldest) = self.order.pop_front()
            && let Some((_, Progress::Sent(transaction, _))) = self.all.remove(&oldest)
        {
            self.sent.remove(&transaction);
        }
    }

    /// The request of an answer, which is kept for repetitions.
    pub(crate) fn answered(&mut self, transaction: (IpAddr, u32), answer: &[u8]) -> Option<Asked> {
        let asked = self.sent.remove(&transaction)?;
        if let Some((_, progress)) = self.all.get_mut(&asked) {
            *progress = Progress::Answered(answer.to_vec());
        }
        Some(asked)
    }
}
