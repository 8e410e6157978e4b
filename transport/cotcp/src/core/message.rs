//! One message in transit (§4.1, §5). [`Sending`] cuts a message into fragments as credit allows.
//! [`Receiving`] assembles fragments or hands them on, and keeps account of the sender's credit.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use crate::frame::FRAGMENT;

/// Largest credit that a window can hold.
pub(crate) const MOST_CREDIT: u32 = i32::MAX as u32;
/// Parts shorter than this are copied. A slice of the read buffer would keep the whole buffer alive, so a
/// peer could pin much memory for little credit.
const COPY: usize = 1024;

/// What [`Sending::next`] found to send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next fragment.
    Fragment {
        /// Whether it is the first fragment of the message.
        begins: bool,
        /// Whether further fragments follow.
        more: bool,
        body: Bytes,
    },
    /// Nothing: the message waits for its own credit, or for the next part from its caller.
    Wait,
    /// Nothing: the connection has no credit.
    WaitForConnection,
}

/// A message being sent.
#[derive(Debug)]
pub(crate) struct Sending {
    parts: VecDeque<Bytes>,
    /// Octets in `parts`.
    pub queued: usize,
    /// Whether the caller has supplied the last part.
    pub ended: bool,
    /// Whether the first fragment was sent.
    pub begun: bool,
    /// Whether the last fragment was sent.
    pub done: bool,
    pub credit: u32,
    pub priority: u8,
    /// The message's position in the send queue.
    pub pass: u64,
    /// Whether the message is in the send queue, or waits at its place there for credit of the connection.
    pub in_line: bool,
    /// Whether a part was refused. The caller is notified when there is room again.
    pub refused: bool,
    /// Since when the message waits for credit.
    pub since: Instant,
}

impl Sending {
    pub(crate) fn new(now: Instant, body: Bytes, last: bool, credit: u32, priority: u8) -> Self {
        let queued = body.len();
        let mut parts = VecDeque::with_capacity(1);
        if !body.is_empty() {
            parts.push_back(body);
        }
        Self {
            parts,
            queued,
            ended: last,
            begun: false,
            done: false,
            credit,
            priority,
            pass: 0,
            in_line: false,
            refused: false,
            since: now,
        }
    }

    /// Appends a part. Returns false when the last part was supplied before.
    pub(crate) fn push(&mut self, now: Instant, body: Bytes, last: bool) -> bool {
        if self.ended {
            return false;
        }
        if self.queued == 0 {
            self.since = now;
        }
        self.queued += body.len();
        self.ended = last;
        if !body.is_empty() {
            self.parts.push_back(body);
        }
        true
    }

    /// Takes the next fragment and charges it to the credit of the message and of the connection.
    pub(crate) fn next(&mut self, now: Instant, connection: &mut u32) -> Step {
        let begins = !self.begun;
        let size = match self.parts.front() {
            None if begins || (self.ended && !self.done) => 0,
            None => return Step::Wait,
            Some(part) if begins => part.len().min(FRAGMENT),
            Some(_) if self.credit == 0 => return Step::Wait,
            Some(_) if *connection == 0 => return Step::WaitForConnection,
            Some(part) => part.len().min(FRAGMENT).min(self.credit.min(*connection) as usize),
        };
        if !begins {
            self.credit -= size as u32;
            *connection -= size as u32;
        }
        let body = self.take(size);
        self.begun = true;
        self.since = now;
        self.done = self.ended && self.queued == 0;
        Step::Fragment { begins, more: !self.done, body }
    }

    fn take(&mut self, size: usize) -> Bytes {
        self.queued -= size;
        match self.parts.front_mut() {
            Some(part) if part.len() > size => part.split_to(size),
            Some(_) => self.parts.pop_front().unwrap_or_default(),
            None => Bytes::new(),
        }
    }

    /// Whether only missing credit keeps the message from being sent.
    pub(crate) fn starves(&self) -> bool {
        self.begun && self.queued > 0 && !self.done
    }

    /// Whether [`Self::next`] would yield a fragment if the connection had credit.
    pub(crate) fn can_go_on(&self) -> bool {
        !self.begun || (self.queued > 0 && self.credit > 0) || (self.queued == 0 && self.ended && !self.done)
    }

    /// Adds credit. Returns false when the sum exceeds [`MOST_CREDIT`].
    pub(crate) fn add_credit(&mut self, octets: u32) -> bool {
        self.credit = self.credit.saturating_add(octets);
        self.credit <= MOST_CREDIT
    }
}

/// A message being received in more than one frame.
#[derive(Debug)]
pub(crate) struct Receiving {
    /// The octets received so far, when the message is assembled here.
    whole: Option<BytesMut>,
    /// Octets received so far.
    pub total: u64,
    /// Octets that the sender may still send.
    window: u32,
    /// The initial window.
    full: u32,
    /// Octets that were consumed and not yet returned as credit.
    owed: u32,
    /// Octets handed on and not yet consumed.
    pub unused: u32,
    /// Octets of the first fragment not yet consumed. The first fragment is not charged to credit.
    uncharged: u32,
    /// When the last fragment arrived.
    pub since: Instant,
    /// Whether the last fragment has arrived. Parts may still wait to be consumed.
    pub ended: bool,
}

impl Receiving {
    /// A new message. With `parts`, fragments are handed on instead of assembled.
    pub(crate) fn new(now: Instant, parts: bool, window: u32) -> Self {
        let whole = if parts { None } else { Some(BytesMut::new()) };
        Self {
            whole,
            total: 0,
            window,
            full: window,
            owed: 0,
            unused: 0,
            uncharged: 0,
            since: now,
            ended: false,
        }
    }

    /// Whether the message is assembled here.
    pub(crate) fn assembles(&self) -> bool {
        self.whole.is_some()
    }

    /// Octets held in memory.
    pub(crate) fn held(&self) -> usize {
        self.whole.as_ref().map_or(0, BytesMut::len)
    }

    /// Takes the first fragment, which is not charged to credit. Returns the part to hand on, if any.
    pub(crate) fn begin(&mut self, body: Bytes) -> Option<Bytes> {
        self.total += body.len() as u64;
        self.uncharged = body.len() as u32;
        self.keep(body)
    }

    /// Takes another fragment and returns the part to hand on, if any. `Err` when the sender had no credit
    /// for it.
    pub(crate) fn data(&mut self, now: Instant, body: Bytes) -> Result<Option<Bytes>, ()> {
        let size = body.len() as u32;
        self.window = self.window.checked_sub(size).ok_or(())?;
        self.total += u64::from(size);
        self.since = now;
        if self.assembles() {
            self.owed += size;
        } else {
            self.unused += size;
        }
        Ok(self.keep(body))
    }

    fn keep(&mut self, body: Bytes) -> Option<Bytes> {
        match &mut self.whole {
            Some(whole) => {
                whole.extend_from_slice(&body);
                None
            }
            None if body.len() < COPY => Some(Bytes::copy_from_slice(&body)),
            None => Some(body),
        }
    }

    /// Records that parts were consumed. Returns the octets that the connection's credit gets back: never
    /// more than were handed on.
    pub(crate) fn consumed(&mut self, octets: usize) -> u32 {
        let octets = u32::try_from(octets).unwrap_or(u32::MAX);
        let uncharged = self.uncharged.min(octets);
        self.uncharged -= uncharged;
        let octets = self.unused.min(octets - uncharged);
        self.unused -= octets;
        self.owed += octets;
        octets
    }

    /// The credit to return in a CREDIT frame now. `None` until half of the window is owed.
    pub(crate) fn give_back(&mut self) -> Option<u32> {
        if self.owed < self.full.div_ceil(2) {
            return None;
        }
        self.window += self.owed;
        Some(std::mem::take(&mut self.owed))
    }

    /// The complete message.
    pub(crate) fn finish(self) -> Bytes {
        self.whole.unwrap_or_default().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Instant {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        Instant::now()
    }

    fn fragment(begins: bool, more: bool, size: usize) -> Step {
        Step::Fragment { begins, more, body: vec![0; size].into() }
    }

    #[test]
    fn fragments_follow_both_credits_and_the_first_needs_none() {
        let mut sending = Sending::new(now(), vec![0; 3 * FRAGMENT].into(), true, 5000, 3);
        let mut connection = 0;
        assert_eq!(sending.next(now(), &mut connection), fragment(true, true, FRAGMENT));
        assert_eq!(sending.next(now(), &mut connection), Step::WaitForConnection);
        connection = 100_000;
        assert_eq!(sending.next(now(), &mut connection), fragment(false, true, FRAGMENT));
        assert_eq!(sending.next(now(), &mut connection), fragment(false, true, 904));
        assert_eq!(sending.next(now(), &mut connection), Step::Wait);
        assert!(sending.starves() && !sending.can_go_on());
        assert!(sending.add_credit(10_000));
        assert_eq!(sending.next(now(), &mut connection), fragment(false, false, FRAGMENT - 904));
        assert_eq!(sending.next(now(), &mut connection), Step::Wait);
        assert_eq!(connection, 100_000 - 2 * FRAGMENT as u32);
        assert!(!sending.add_credit(MOST_CREDIT));
    }

    #[test]
    fn an_empty_end_needs_no_credit() {
        let mut sending = Sending::new(now(), Bytes::new(), false, 1, 3);
        assert_eq!(sending.next(now(), &mut 0), fragment(true, true, 0));
        assert_eq!(sending.next(now(), &mut 0), Step::Wait);
        assert!(sending.push(now(), Bytes::new(), true));
        assert!(!sending.push(now(), Bytes::new(), true));
        assert_eq!(sending.next(now(), &mut 0), fragment(false, false, 0));
        assert_eq!(sending.next(now(), &mut 0), Step::Wait);
    }

    #[test]
    fn credit_is_given_back_in_halves_and_an_overrun_is_seen() {
        let mut receiving = Receiving::new(now(), true, 1000);
        assert_eq!(receiving.begin(vec![0; 5000].into()), Some(vec![0; 5000].into()));
        assert!(receiving.data(now(), vec![0; 600].into()).is_ok());
        assert_eq!(receiving.consumed(5400), 400);
        assert_eq!(receiving.give_back(), None);
        assert_eq!(receiving.consumed(9999), 200);
        assert_eq!(receiving.give_back(), Some(600));
        assert!(receiving.data(now(), vec![0; 1000].into()).is_ok());
        assert!(receiving.data(now(), vec![0; 1].into()).is_err());
    }
}
