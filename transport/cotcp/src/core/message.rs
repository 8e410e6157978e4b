//! One message on its way: [`Sending`] cuts it into fragments as credit allows, [`Receiving`] puts it together or hands
//! its parts on, and knows what credit the sender has and is owed (§4.1, §5).

use std::collections::VecDeque;
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use crate::frame::FRAGMENT;

/// Most credit that there can be.
pub(crate) const MOST_CREDIT: u32 = i32::MAX as u32;
/// Parts that are smaller are copied: a slice would keep the whole buffer that was read, and a peer could have much
/// held for little credit.
const COPY: usize = 1024;

/// What a message has to send now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next fragment.
    Fragment {
        /// It is the first.
        begins: bool,
        /// Others follow.
        more: bool,
        body: Bytes,
    },
    /// Nothing: it waits for its own credit, or for its sender's next part.
    Wait,
    /// Nothing, as the connection has no credit.
    WaitForConnection,
}

/// A message being sent.
#[derive(Debug)]
pub(crate) struct Sending {
    parts: VecDeque<Bytes>,
    /// Octets in `parts`.
    pub queued: usize,
    /// The last part is in.
    pub ended: bool,
    /// The first fragment has gone.
    pub begun: bool,
    /// The last fragment has gone.
    pub done: bool,
    pub credit: u32,
    pub priority: u8,
    /// Where it is in the queue, or would be.
    pub pass: u64,
    /// It has a turn in the queue, or waits there for credit of the connection.
    pub in_line: bool,
    /// A part was refused: somebody wants to know when there is room.
    pub refused: bool,
    /// Since when it waits for credit.
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

    /// Takes another part. False when the last one was in already.
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

    /// The next fragment, with what credit there is; takes from both credits what it costs.
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

    /// Whether it has something that only credit keeps back.
    pub(crate) fn starves(&self) -> bool {
        self.begun && self.queued > 0 && !self.done
    }

    /// Whether [`Self::next`] may give a fragment, apart from credit of the connection.
    pub(crate) fn can_go_on(&self) -> bool {
        !self.begun || (self.queued > 0 && self.credit > 0) || (self.queued == 0 && self.ended && !self.done)
    }

    /// Adds credit; false when that is more than there can be.
    pub(crate) fn add_credit(&mut self, octets: u32) -> bool {
        self.credit = self.credit.saturating_add(octets);
        self.credit <= MOST_CREDIT
    }
}

/// A message being received that did not come in one frame.
#[derive(Debug)]
pub(crate) struct Receiving {
    /// What has come, when it is put together here.
    whole: Option<BytesMut>,
    /// All octets that have come.
    pub total: u64,
    /// What the sender may still send.
    window: u32,
    /// What it began with.
    full: u32,
    /// Octets that were used and not yet given back.
    owed: u32,
    /// Octets handed on and not yet used.
    pub unused: u32,
    /// The same of the first fragment, which used no credit.
    uncharged: u32,
    /// When the last fragment came.
    pub since: Instant,
    /// The last fragment has come; parts may still wait to be used.
    pub ended: bool,
}

impl Receiving {
    /// `parts`: fragments are handed on.
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

    /// Whether it is put together here.
    pub(crate) fn assembles(&self) -> bool {
        self.whole.is_some()
    }

    /// Octets held here.
    pub(crate) fn held(&self) -> usize {
        self.whole.as_ref().map_or(0, BytesMut::len)
    }

    /// The first fragment, which needs no credit.
    pub(crate) fn begin(&mut self, body: Bytes) -> Option<Bytes> {
        self.total += body.len() as u64;
        self.uncharged = body.len() as u32;
        self.keep(body)
    }

    /// Another fragment: what to hand on. `Err` when the sender had no credit for it.
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

    /// Parts were used; gives how many octets of it the connection gets back: no more than were handed on.
    pub(crate) fn consumed(&mut self, octets: usize) -> u32 {
        let octets = u32::try_from(octets).unwrap_or(u32::MAX);
        let uncharged = self.uncharged.min(octets);
        self.uncharged -= uncharged;
        let octets = self.unused.min(octets - uncharged);
        self.unused -= octets;
        self.owed += octets;
        octets
    }

    /// What to give back in a CREDIT now: nothing until it is half of the window.
    pub(crate) fn give_back(&mut self) -> Option<u32> {
        if self.owed < self.full.div_ceil(2) {
            return None;
        }
        self.window += self.owed;
        Some(std::mem::take(&mut self.owed))
    }

    /// The message, complete.
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
