//! What both sides of a connection share: frame boundaries, the version, the connection's credit, the send
//! queue, and all checks of time and of the peer's behaviour.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};

use super::message::{MOST_CREDIT, Receiving, Sending, Step};
use super::queue::Queue;
use super::{Outbox, Version};
use crate::error::{Code, ConnectionError};
use crate::frame::{self, Frame, HEADER, Options, Side, kind};
use crate::hello::Limits;
use crate::{Config, Stats};

/// A fragment enters the outbox only while fewer octets than this wait there. The bound is also the longest
/// queue that an urgent small frame finds in front of it. It starts at the first value, doubles up to the
/// second while the stream takes everything, and returns to the first when the stream falls behind.
const AHEAD: (usize, usize) = (4 * 1024, 32 * 1024);
/// CREDIT frames that the peer may send per DATA frame: one for the message, one for the connection. More
/// count as abuse.
const CREDITS_PER_DATA: u32 = 2;
/// Upper bound of `credits_due`, so that unused allowances do not add up for ever.
const CREDITS_DUE: u32 = 4096;
/// CANCEL frames sent per second: half of what a peer tolerates.
const CANCELS_PER_SECOND: u32 = 500;
/// How often open calls are checked for time-outs.
const SWEEP: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Limits how often something may happen within a second.
#[derive(Debug)]
pub(crate) struct Rate {
    since: Option<Instant>,
    count: u32,
    most: u32,
}

impl Rate {
    fn new(most: u32) -> Self {
        Self { since: None, count: 0, most }
    }

    /// Whether it may happen once more now.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= Duration::from_secs(1) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count += 1;
        self.count <= self.most
    }

    /// When it may happen again.
    pub(crate) fn again(&self) -> Option<Instant> {
        (self.count > self.most).then(|| self.since.map(|since| since + Duration::from_secs(1)))?
    }
}

/// The shared part of a connection. `K` identifies calls.
#[derive(Debug)]
pub(crate) struct Link<K> {
    pub config: Config,
    pub side: Side,
    pub input: BytesMut,
    pub outbox: Outbox,
    pub version: Version,
    /// Limits that the peer announced.
    pub peer: Limits,
    /// Limits that this side announced.
    pub ours: Limits,
    pub stats: Stats,
    pub queue: Queue<K>,
    pub closed: Option<ConnectionError>,
    /// This side takes or opens no new calls.
    pub leaving: bool,
    /// The peer takes or opens no new calls.
    pub peer_leaving: bool,
    /// Octets of messages being assembled.
    pub assembled: usize,
    /// Octets of messages that wait to be sent in fragments.
    pub queued: usize,
    pub cancels: Rate,
    /// Connection credit for the DATA that this side sends.
    credit: u32,
    /// CREDIT frames that the peer may still send for DATA that this side sent.
    credits_due: u32,
    /// DATA octets that the peer may still send on this connection.
    window: u32,
    /// Octets that were consumed and not yet returned as credit.
    owed: u32,
    deadlines: BinaryHeap<Reverse<(Instant, K)>>,
    sweep_at: Option<Instant>,
    abuse: Rate,
    /// When the peer last sent something.
    heard: Instant,
    /// Octets received when the input was last checked.
    seen: u64,
    /// When the unanswered PING was sent.
    pinged: Option<Instant>,
    ping_number: u64,
    /// The PING sent right after GO_AWAY. Its PONG arrives after everything that the peer sent before it knew
    /// of GO_AWAY.
    barrier: Option<u64>,
    crossed: bool,
    /// When the first octet of an incomplete frame arrived.
    partial: Option<Instant>,
    /// When the stream last accepted octets, and how many it had accepted by then.
    progress: Option<(Instant, u64)>,
    /// Position in the output where the last fragment ends.
    fragment_end: u64,
    /// The bound in force, within [`AHEAD`].
    ahead: usize,
}

impl<K: Copy + Ord> Link<K> {
    pub(crate) fn new(now: Instant, config: Config, side: Side) -> Self {
        let ours = Limits::of(&config);
        Self {
            side,
            input: BytesMut::new(),
            outbox: Outbox::default(),
            version: if config.negotiate { Version::Undecided } else { Version::V1 },
            peer: Limits::default(),
            ours,
            stats: Stats::default(),
            queue: Queue::new(),
            closed: None,
            leaving: false,
            peer_leaving: false,
            assembled: 0,
            queued: 0,
            cancels: Rate::new(CANCELS_PER_SECOND),
            credit: 0,
            credits_due: 0,
            window: ours.connection_window,
            owed: 0,
            deadlines: BinaryHeap::new(),
            sweep_at: None,
            abuse: Rate::new(config.abuse_per_second),
            heard: now,
            seen: 0,
            pinged: None,
            ping_number: 0,
            barrier: None,
            crossed: false,
            partial: None,
            progress: None,
            fragment_end: 0,
            ahead: AHEAD.0,
            config,
        }
    }

    /// Switches to version 2 with the peer's limits.
    pub(crate) fn upgrade(&mut self, peer: Limits) {
        self.version = Version::V2;
        self.credit = peer.connection_window;
        self.peer = peer;
    }

    /// Longest body that fits a version 1 frame.
    #[inline]
    pub(crate) fn longest_plain(&self) -> usize {
        if self.version == Version::V2 { frame::FRAGMENT } else { usize::from(u16::MAX) }
    }

    // Input.

    /// The next complete frame.
    #[inline]
    pub(crate) fn next_frame(&mut self, now: Instant) -> Option<(u32, Bytes)> {
        if let Some((id, length)) = frame::read_header(&self.input)
            && self.input.len() >= HEADER + length
        {
            self.input.advance(HEADER);
            let body = self.input.split_to(length).freeze();
            self.stats.frames_in += 1;
            self.stats.octets_in += (HEADER + length) as u64;
            self.partial = None;
            return Some((id, body));
        }
        self.listen(now);
        None
    }

    /// Called when all complete frames were taken: updates the keep-alive timer and the timer of an
    /// incomplete frame.
    fn listen(&mut self, now: Instant) {
        let seen = self.stats.octets_in + self.input.len() as u64;
        if seen != self.seen {
            self.seen = seen;
            self.heard = now;
            self.pinged = None;
        }
        if self.input.is_empty() {
            self.partial = None;
        } else if self.partial.is_none() {
            self.partial = Some(now);
        }
    }

    /// Counts a frame without effect.
    ///
    /// # Errors
    /// The peer sent more of them than [`crate::Config::abuse_per_second`] allows.
    pub(crate) fn abuse(&mut self, now: Instant) -> Result<(), ConnectionError> {
        if self.abuse.allows(now) { Ok(()) } else { Err(ConnectionError::Abuse) }
    }

    // Output.

    /// Appends a frame with a short body, or none, to the outbox.
    pub(crate) fn send(&mut self, call: u32, frame: &Frame) {
        self.stats.frames_out += 1;
        self.outbox.frame(call, frame);
    }

    /// Appends a version 1 frame to the outbox.
    #[inline]
    pub(crate) fn send_plain(&mut self, id: u32, body: Bytes) {
        self.stats.frames_out += 1;
        self.outbox.plain(id, body);
    }

    /// Enters a message into the send queue.
    pub(crate) fn line_up(&mut self, key: K, sending: &mut Sending) {
        if !sending.in_line && sending.can_go_on() {
            sending.in_line = true;
            self.queue.push(key, sending.pass);
        }
    }

    /// Adapts the bound of [`AHEAD`] to how much the stream has accepted. Call it before fragments are sent.
    pub(crate) fn pace(&mut self) {
        let blocked = self.outbox.written() < self.fragment_end;
        self.ahead = if blocked { AHEAD.0 } else { (self.ahead * 2).min(AHEAD.1) };
    }

    /// The call whose turn it is to send a fragment; `None` while enough octets wait in the outbox. One
    /// fragment may always enter: otherwise a steady flow of small frames would block long messages.
    pub(crate) fn turn(&mut self) -> Option<(K, u64)> {
        if self.outbox.len() >= self.ahead && self.outbox.written() < self.fragment_end {
            return None;
        }
        self.queue.pop()
    }

    /// Sends the next fragment of a message whose turn it is. Returns false when the message has none to send
    /// now. `options` accompany the first fragment of a request.
    pub(crate) fn fragment(
        &mut self,
        now: Instant,
        (key, pass): (K, u64),
        call: u32,
        sending: &mut Sending,
        (options, one_way): (Option<Options>, bool),
    ) -> bool {
        sending.in_line = false;
        let (begins, more, body) = match sending.next(now, &mut self.credit) {
            Step::Fragment { begins, more, body } => (begins, more, body),
            Step::Wait => return false,
            Step::WaitForConnection => {
                sending.in_line = true;
                sending.pass = pass;
                self.queue.block(key);
                return false;
            }
        };
        if !begins {
            self.credits_due = (self.credits_due + CREDITS_PER_DATA).min(CREDITS_DUE);
        }
        let size = body.len();
        self.queued -= size;
        let mut head = Vec::new();
        let kind = match (begins, self.side) {
            (false, _) => kind::DATA,
            (true, Side::Client) => {
                options.unwrap_or_default().encode(&mut head);
                kind::REQUEST
            }
            (true, Side::Server) => {
                head.push(0);
                kind::RESPONSE
            }
        };
        let flags = if more { frame::MORE } else { 0 } | if one_way && begins { frame::ONE_WAY } else { 0 };
        self.outbox.head(call, [kind, flags], &head, size);
        self.outbox.body(body);
        self.stats.frames_out += 1;
        self.fragment_end = self.outbox.written() + self.outbox.len() as u64;
        sending.pass = Queue::<K>::after(pass, sending.priority, size);
        self.line_up(key, sending);
        true
    }

    /// Forgets a message that is no longer sent, and what was counted for it.
    pub(crate) fn stop_sending(&mut self, sending: &Sending) {
        self.queued -= sending.queued;
        if sending.in_line {
            self.queue.stale += 1;
        }
    }

    /// Forgets a message that is no longer received, and returns the connection credit it used.
    pub(crate) fn stop_receiving(&mut self, receiving: &Receiving) {
        self.assembled -= receiving.held();
        self.give_back(receiving.unused);
    }

    // Flow control.

    /// Charges a DATA frame to the window of the connection.
    ///
    /// # Errors
    /// The peer had no credit for it.
    pub(crate) fn data(&mut self, now: Instant, size: usize, more: bool) -> Result<(), ConnectionError> {
        if size == 0 && more {
            self.abuse(now)?;
        }
        let left = u32::try_from(size).ok().and_then(|size| self.window.checked_sub(size));
        self.window = left.ok_or(ConnectionError::FlowControl)?;
        Ok(())
    }

    /// Records that octets of DATA were consumed. Sends a CREDIT frame when enough are owed.
    pub(crate) fn give_back(&mut self, octets: u32) {
        self.owed += octets;
        if self.owed >= self.ours.connection_window.div_ceil(2) {
            let octets = std::mem::take(&mut self.owed);
            self.window += octets;
            self.send(0, &Frame::Credit { connection: true, octets });
        }
    }

    /// Applies a CREDIT frame of the connection, or checks one of a call, whose credit the caller adds.
    ///
    /// # Errors
    /// The credit exceeds the largest window, or the peer sends CREDIT frames without cause too often.
    pub(crate) fn credit(
        &mut self,
        now: Instant,
        connection: bool,
        octets: u32,
    ) -> Result<(), ConnectionError> {
        match self.credits_due.checked_sub(1) {
            Some(due) => self.credits_due = due,
            None => self.abuse(now)?,
        }
        if connection {
            let credit = self.credit.checked_add(octets).filter(|credit| *credit <= MOST_CREDIT);
            self.credit = credit.ok_or(ConnectionError::FlowControl)?;
            if octets > 0 {
                self.queue.unblock();
            }
        }
        Ok(())
    }

    // Keep-alive and the end.

    fn ping(&mut self) -> u64 {
        self.ping_number += 1;
        self.stats.pings += 1;
        self.send(0, &Frame::Ping(self.ping_number.to_be_bytes()));
        self.ping_number
    }

    /// Answers a PING.
    pub(crate) fn pong(&mut self, now: Instant, octets: [u8; 8]) -> Result<(), ConnectionError> {
        self.abuse(now)?;
        self.send(0, &Frame::Pong(octets));
        Ok(())
    }

    /// Takes a PONG.
    pub(crate) fn ponged(&mut self, now: Instant, octets: [u8; 8]) -> Result<(), ConnectionError> {
        let number = u64::from_be_bytes(octets);
        self.crossed |= self.barrier.is_some_and(|barrier| number >= barrier && number <= self.ping_number);
        // An answer to none of ours, or one more to the same, does nothing; a few of them are not worth telling apart.
        self.abuse(now)
    }

    /// Tells the peer that this side takes no new calls.
    pub(crate) fn go_away(&mut self, text: &str) {
        if std::mem::replace(&mut self.leaving, true) || self.version != Version::V2 || self.closed.is_some()
        {
            return;
        }
        self.send(0, &Frame::GoAway { code: Code::NONE, text: frame::cut(text).into() });
        self.barrier = Some(self.ping());
    }

    /// Takes a GO_AWAY. Returns whether it is the first.
    pub(crate) fn gone_away(
        &mut self,
        now: Instant,
        code: Code,
        text: Box<str>,
    ) -> Result<bool, ConnectionError> {
        if code != Code::NONE {
            return Err(ConnectionError::Peer { code, text });
        }
        if self.peer_leaving {
            self.abuse(now)?;
        }
        Ok(!std::mem::replace(&mut self.peer_leaving, true))
    }

    /// Whether every call that the peer sent has arrived, so that no further call can follow.
    pub(crate) fn no_more_calls(&self) -> bool {
        let client = self.side == Side::Client && (self.leaving || self.peer_leaving);
        client || self.peer_leaving || (self.leaving && (self.crossed || self.version != Version::V2))
    }

    /// The error that the end of the stream means in this state.
    pub(crate) fn end(&self) -> ConnectionError {
        if self.input.is_empty() { ConnectionError::Closed } else { ConnectionError::Truncated }
    }

    /// Ends the connection. Returns false when it had ended before.
    pub(crate) fn close(&mut self, error: ConnectionError) -> bool {
        if self.closed.is_some() {
            return false;
        }
        self.stats.violations += u64::from(error.is_violation());
        match error.code() {
            Some(code) if self.version == Version::V2 => {
                let text = error.to_string().into();
                self.send(0, &Frame::GoAway { code, text });
            }
            Some(_) => {}
            None => self.outbox.clear(),
        }
        self.input = BytesMut::new();
        (self.assembled, self.queued) = (0, 0);
        self.queue = Queue::new();
        self.deadlines.clear();
        self.closed = Some(error);
        true
    }

    // Time.

    /// Registers the deadline of a call for [`Self::due`]. When most registered deadlines belong to ended
    /// calls, those are removed; `open` says which calls are open.
    pub(crate) fn watch(&mut self, at: Instant, key: K, calls: usize, mut open: impl FnMut(K) -> bool) {
        if self.deadlines.len() > 2 * calls + 64 {
            self.deadlines.retain(|Reverse((_, key))| open(*key));
        }
        self.deadlines.push(Reverse((at, key)));
    }

    /// A call whose deadline has passed. The call may have ended already.
    pub(crate) fn due(&mut self, now: Instant) -> Option<K> {
        let Reverse((at, _)) = self.deadlines.peek()?;
        if *at > now {
            return None;
        }
        self.deadlines.pop().map(|Reverse((_, key))| key)
    }

    /// Requests a sweep over the open calls.
    #[inline]
    pub(crate) fn sweep_later(&mut self, now: Instant) {
        if self.sweep_at.is_none() {
            self.sweep_at = Some(now + self.sweep_interval());
        }
    }

    fn sweep_interval(&self) -> Duration {
        let call = self.config.call_timeout.unwrap_or(SWEEP.1 * 4);
        (call.min(self.config.message_timeout) / 4).clamp(SWEEP.0, SWEEP.1)
    }

    /// Whether a sweep is due. [`Self::sweep_later`] requests the next.
    pub(crate) fn sweeps(&mut self, now: Instant) -> bool {
        self.sweep_at.take_if(|at| *at <= now).is_some()
    }

    /// Watches whether the stream accepts octets. Call it before every write.
    pub(crate) fn watch_writing(&mut self, now: Instant) {
        let written = self.outbox.written();
        match self.progress {
            _ if self.outbox.is_empty() => self.progress = None,
            Some((_, before)) if before == written => {}
            _ => self.progress = Some((now, written)),
        }
    }

    /// When [`Self::time_out`] must be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.closed.is_some() {
            return None;
        }
        let times = [
            self.deadlines.peek().map(|Reverse((at, _))| *at),
            self.sweep_at,
            self.partial.map(|since| since + self.config.frame_timeout),
            self.progress.map(|(since, _)| since + self.config.write_timeout),
            self.keep_alive(),
        ];
        times.into_iter().flatten().min()
    }

    /// When a PING is to be sent, or the peer is given up.
    fn keep_alive(&self) -> Option<Instant> {
        match (self.version, self.pinged) {
            (Version::V2, Some(since)) => Some(since + self.config.ping_timeout),
            (Version::V2, None) => Some(self.heard + self.config.ping_after?),
            _ => None,
        }
    }

    /// Does what is due at `now`.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn time_out(&mut self, now: Instant) -> Result<(), ConnectionError> {
        self.watch_writing(now);
        if self.partial.is_some_and(|since| now >= since + self.config.frame_timeout) {
            return Err(ConnectionError::FrameTimeout);
        }
        if self.progress.is_some_and(|(since, _)| now >= since + self.config.write_timeout) {
            return Err(ConnectionError::WriteTimeout);
        }
        if self.keep_alive().is_some_and(|at| now >= at) {
            if self.pinged.is_some() {
                return Err(ConnectionError::Silent);
            }
            self.pinged = Some(now);
            self.ping();
        }
        Ok(())
    }

    /// Stops the silence timer while this side does not read.
    pub(crate) fn not_listening(&mut self, now: Instant) {
        self.heard = now;
        self.partial = None;
        self.pinged = None;
    }

    /// Since when the peer has been silent.
    pub(crate) fn silent_since(&self) -> Instant {
        self.heard
    }
}
