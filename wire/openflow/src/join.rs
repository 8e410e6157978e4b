//! Requests and replies out of their parts (§7.3.5).
//!
//! A request or reply that is too long for one message comes in several, with one transaction and one type; all but the last have
//! OFPMPF_REQ_MORE or OFPMPF_REPLY_MORE. Other messages, and parts of other transactions, may come between them.
//!
//! Invariant: what waits for its last part is bounded by [`Limits`], whatever the peer sends.

use crate::multipart::{Multipart, Part};
use crate::{Code, MAX_MESSAGE};

/// How much of unfinished requests or replies is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Transactions, and as many that were refused and whose last part has not come.
    pub transactions: usize,
    /// Parts of one transaction.
    pub parts: usize,
    /// Octets of messages, of all transactions together. In memory a message takes up to about ten times its length.
    pub octets: usize,
}

impl Limits {
    /// For a switch: the features of 254 tables come in about ten parts.
    pub const REQUESTS: Limits = Limits { transactions: 4, parts: 64, octets: 16 * MAX_MESSAGE };
    /// For a controller: a million flows in about 2,000 parts.
    pub const REPLIES: Limits = Limits { transactions: 16, parts: 4096, octets: 4096 * MAX_MESSAGE };
}

/// Joins the parts that one connection brings: a switch those of [`Request`](crate::Request)s, a controller those of
/// [`Reply`](crate::Reply)s.
///
/// ```
/// use openflow::{Joiner, Limits, Message, Reply, Request};
///
/// let mut joiner = Joiner::<Reply>::new(Limits::REPLIES);
/// # let received = Message::MultipartReply(openflow::Multipart { more: false, body: Reply::Flow(Vec::new()) }).encode(7)?;
/// let (xid, message) = Message::decode(&received)?;
/// if let Message::MultipartReply(part) = message
///     && let Some(whole) = joiner.push(xid, part, received.len())?
/// {
///     assert_eq!(whole, Reply::Flow(Vec::new()));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Joiner<T> {
    limits: Limits,
    waiting: Vec<Waiting<T>>,
    /// Refused transactions whose last part has not come. Without them the last part would look like a whole request.
    refused: Vec<u32>,
    /// Of all that is waiting.
    octets: usize,
}

/// The parts that have come of a transaction.
#[derive(Debug)]
struct Waiting<T> {
    xid: u32,
    parts: usize,
    octets: usize,
    body: T,
}

/// Why a part is not taken. The transaction is refused with it, and what it had is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// More than is kept. A switch answers OFPBRC_MULTIPART_BUFFER_OVERFLOW.
    #[error("request or reply of more parts or octets than are kept")]
    Overflow,
    /// Another transaction is begun, and too many have not ended. A switch answers as with an overflow.
    #[error("too many requests or replies in parts at once")]
    TooMany,
    /// Parts of one transaction are of different types. A switch answers OFPBRC_BAD_MULTIPART.
    #[error("parts of different types in one transaction")]
    Mixed,
    /// Only lists can be cut. A switch answers OFPBRC_BAD_MULTIPART.
    #[error("a part of what is no list")]
    NoList,
    /// A part of a transaction that was refused before, and has had its answer.
    #[error("a part of a transaction that was refused before")]
    AlreadyRefused,
    /// So many refused transactions have not ended that another could not be told from a whole request. The connection has to be
    /// closed.
    #[error("too many refused transactions that have not ended")]
    OutOfStep,
}

impl JoinError {
    /// The error of the standard that a switch answers; `None`: no answer.
    pub fn code(self) -> Option<Code> {
        match self {
            Self::Overflow | Self::TooMany | Self::OutOfStep => Some(Code::OFPBRC_MULTIPART_BUFFER_OVERFLOW),
            Self::Mixed | Self::NoList => Some(Code::OFPBRC_BAD_MULTIPART),
            Self::AlreadyRefused => None,
        }
    }

    /// Whether the connection has to be closed.
    pub fn is_fatal(self) -> bool {
        self == Self::OutOfStep
    }
}

impl<T: Part> Joiner<T> {
    /// Nothing has come yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, waiting: Vec::new(), refused: Vec::new(), octets: 0 }
    }

    /// Takes a part from a message of `octets` octets. Returns the whole request or reply with its last part.
    pub fn push(&mut self, xid: u32, part: Multipart<T>, octets: usize) -> Result<Option<T>, JoinError> {
        if let Some(at) = self.refused.iter().position(|refused| *refused == xid) {
            if !part.more {
                self.refused.swap_remove(at);
            }
            return Err(JoinError::AlreadyRefused);
        }
        let more = part.more;
        let joined = match self.take(xid) {
            Some(waiting) => self.joined(waiting, part, octets),
            None if !more => return Ok(Some(part.body)),
            None => self.begun(xid, part.body, octets),
        };
        match joined {
            Ok(waiting) if more => {
                self.octets += waiting.octets;
                self.waiting.push(waiting);
                Ok(None)
            }
            Ok(waiting) => Ok(Some(waiting.body)),
            Err(error) if !more => Err(error),
            Err(_) if self.refused.len() >= self.limits.transactions => Err(JoinError::OutOfStep),
            Err(error) => {
                self.refused.push(xid);
                Err(error)
            }
        }
    }

    /// Forgets a transaction that will not end: the request was answered with an error, or not in time.
    pub fn forget(&mut self, xid: u32) {
        self.take(xid);
        self.refused.retain(|refused| *refused != xid);
    }

    /// Octets that wait for the rest of their request or reply.
    pub fn pending(&self) -> usize {
        self.octets
    }

    fn take(&mut self, xid: u32) -> Option<Waiting<T>> {
        let at = self.waiting.iter().position(|waiting| waiting.xid == xid)?;
        let waiting = self.waiting.swap_remove(at);
        self.octets -= waiting.octets;
        Some(waiting)
    }

    /// The first part.
    fn begun(&self, xid: u32, body: T, octets: usize) -> Result<Waiting<T>, JoinError> {
        if !body.is_list() {
            return Err(JoinError::NoList);
        }
        if self.waiting.len() >= self.limits.transactions {
            return Err(JoinError::TooMany);
        }
        self.within_limits(Waiting { xid, parts: 1, octets, body })
    }

    /// Another part.
    fn joined(
        &self,
        mut waiting: Waiting<T>,
        part: Multipart<T>,
        octets: usize,
    ) -> Result<Waiting<T>, JoinError> {
        waiting.parts += 1;
        waiting.octets += octets;
        let mut waiting = self.within_limits(waiting)?;
        waiting.body.append(part.body).map_err(|_| JoinError::Mixed)?;
        Ok(waiting)
    }

    fn within_limits(&self, waiting: Waiting<T>) -> Result<Waiting<T>, JoinError> {
        let within = waiting.parts <= self.limits.parts && self.octets + waiting.octets <= self.limits.octets;
        if within { Ok(waiting) } else { Err(JoinError::Overflow) }
    }
}
