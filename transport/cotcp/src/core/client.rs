//! The client's side of a connection. Read the polling contract in [`super`] first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::link::Link;
use super::message::{Receiving, Sending};
use super::slab::Slab;
use super::{CallId, Outbox, Version};
use crate::error::{CallError, Code, ConnectionError, Violation};
use crate::frame::{self, FRAGMENT, Frame, HELLO_ID, Options, Side, TRACE};
use crate::hello::{self, Limits};
use crate::{Config, Stats};

/// Options of a call. The default options work with any peer.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// How long the caller waits. Version 2 also tells the server.
    pub deadline: Option<Duration>,
    /// Priority from 0 (most urgent) to 7; 3 by default. Version 1 ignores it.
    pub priority: u8,
    /// Tracing context of at most 128 octets. Version 1 does not send it.
    pub trace: Option<Bytes>,
    /// The caller expects no answer. Needs version 2.
    pub one_way: bool,
    /// The body passed is only the first part; [`Client::send_part`] supplies the rest. Needs version 2.
    pub more: bool,
    /// Deliver a long answer in parts. The caller returns each with [`Client::consumed`]. Version 1 has no
    /// parts.
    pub parts: bool,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            deadline: None,
            priority: frame::PRIORITY,
            trace: None,
            one_way: false,
            more: false,
            parts: false,
        }
    }
}

impl CallOptions {
    /// Whether a version 1 frame can carry the call.
    #[inline]
    fn is_plain(&self) -> bool {
        let flags = self.one_way || self.more;
        !flags && self.priority == frame::PRIORITY && self.deadline.is_none() && self.trace.is_none()
    }
}

/// What [`Client::poll`] reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The whole answer. The call has ended.
    Answered {
        /// The call.
        id: CallId,
        /// The answer.
        body: Bytes,
    },
    /// A part of the answer of a call with [`CallOptions::parts`].
    Part {
        /// The call.
        id: CallId,
        /// The next part of the answer.
        body: Bytes,
        /// Whether it was the last part; the call has ended then.
        last: bool,
    },
    /// The call ended without an answer.
    Failed {
        /// The call.
        id: CallId,
        /// Reason.
        error: CallError,
    },
    /// The outbox holds all of a one-way call. The call has ended.
    Sent {
        /// The call.
        id: CallId,
    },
    /// [`Client::send_part`] accepts parts again after it refused one.
    Writable {
        /// The call.
        id: CallId,
    },
    /// The version of the connection is known.
    Version(Version),
    /// The server takes no new calls. Open calls go on.
    GoAway,
}

/// How long version 2 keeps the slot of a cancelled call, so that a late answer reaches no other call.
/// Version 1 keeps the slot until the answer arrives, because the ID must not be used again before.
const LINGER: Duration = Duration::from_secs(10);
/// A call accepts no further parts while this many octets of its parts wait.
const PARTS: usize = 65_536;

/// State of a call that takes more than one frame in either direction.
#[derive(Debug, Default)]
struct Stream {
    sending: Option<Sending>,
    receiving: Option<Receiving>,
    deadline: Option<Instant>,
    priority: u8,
    trace: Option<Bytes>,
    size: Option<u64>,
}

#[derive(Debug)]
struct Call {
    /// When the request was sent, or cancelled.
    since: Instant,
    /// Whether the answer is delivered in parts.
    parts: bool,
    one_way: bool,
    /// Whether the call has a deadline of its own.
    timed: bool,
    /// Whether the caller has cancelled the call, or was told that it failed.
    given_up: bool,
    stream: Option<Box<Stream>>,
}

impl Call {
    fn sending(&mut self) -> Option<&mut Sending> {
        self.stream.as_mut()?.sending.as_mut()
    }

    /// Whether octets of the call may have reached the stream.
    fn sent(&self) -> bool {
        self.stream.as_ref().and_then(|stream| stream.sending.as_ref()).is_none_or(|sending| sending.begun)
    }

    /// The time-out that has expired for this call, if any.
    fn overdue(&self, now: Instant, config: &Config) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        let Some(stream) = &self.stream else {
            return !self.timed && config.call_timeout.is_some_and(|most| since(self.since) >= most);
        };
        let starves = |sending: &Sending| sending.starves() && since(sending.since) >= config.message_timeout;
        if stream.sending.as_ref().is_some_and(starves) {
            return true;
        }
        match &stream.receiving {
            Some(receiving) => receiving.assembles() && since(receiving.since) >= config.message_timeout,
            None => {
                let waits = stream.sending.is_none() && !self.timed;
                waits && config.call_timeout.is_some_and(|most| since(self.since) >= most)
            }
        }
    }
}

/// The client's state machine.
#[derive(Debug)]
pub struct Client {
    link: Link<CallId>,
    calls: Slab<Call>,
    /// Number of cancelled calls in `calls`.
    given_up: usize,
    /// Cancelled calls that the server was not told of yet.
    cancels: VecDeque<(CallId, Code)>,
    events: VecDeque<ClientEvent>,
    /// Calls that wait until the version is known.
    held: Vec<CallId>,
    /// Whether a HELLO was sent and no frame with its ID has arrived.
    hello_open: bool,
    /// When the calls in `held` fail.
    hello_until: Option<Instant>,
}

impl Client {
    /// The state of a connection just opened. A HELLO waits in the outbox if the configuration asks for
    /// version 2.
    #[must_use]
    pub fn new(now: Instant, config: Config) -> Self {
        let mut link = Link::new(now, config, Side::Client);
        let hello = link.config.negotiate;
        if hello {
            link.send_plain(HELLO_ID, hello::encode(true, link.ours).into());
        }
        Self {
            hello_open: hello,
            hello_until: hello.then(|| now + link.config.hello_timeout),
            link,
            calls: Slab::new(),
            given_up: 0,
            cancels: VecDeque::new(),
            events: VecDeque::new(),
            held: Vec::new(),
        }
    }

    // Calls.

    /// Opens a call. The outbox holds a small call afterwards. Longer calls leave in fragments with the next
    /// [`Self::fill`], and calls that need version 2 wait until it is known. One event reports how the call
    /// ended; with parts, the last of its events.
    ///
    /// # Errors
    /// The call was refused and nothing of it was sent. After [`CallError::Busy`] try again later: see
    /// [`Self::capacity`].
    #[inline]
    pub fn call(&mut self, now: Instant, body: Bytes, options: &CallOptions) -> Result<CallId, CallError> {
        if self.capacity() == 0 || self.link.leaving || self.link.peer_leaving || self.link.closed.is_some() {
            return Err(self.refusal());
        }
        if options.is_plain() && body.len() <= self.link.longest_plain() {
            return self.call_plain(now, body, options);
        }
        self.call_with(now, body, options)
    }

    #[cold]
    fn refusal(&self) -> CallError {
        match &self.link.closed {
            Some(error) => CallError::Connection { error: error.clone(), sent: false },
            None if self.link.leaving || self.link.peer_leaving => CallError::GoingAway,
            None => CallError::Busy,
        }
    }

    #[inline]
    fn call_plain(&mut self, now: Instant, body: Bytes, options: &CallOptions) -> Result<CallId, CallError> {
        if body.len() > self.link.peer.max_message as usize {
            return Err(CallError::TooLarge);
        }
        let call = Call {
            since: now,
            parts: options.parts,
            one_way: false,
            timed: options.deadline.is_some(),
            given_up: false,
            stream: None,
        };
        let id = self.open(now, call)?;
        self.link.send_plain(id.wire(), body);
        Ok(id)
    }

    #[inline]
    fn open(&mut self, now: Instant, call: Call) -> Result<CallId, CallError> {
        let Some(id) = self.calls.insert(call) else {
            // Only a server that leaves tens of thousands of calls unanswered gets here: a new connection helps.
            self.link.peer_leaving = true;
            self.events.push_back(ClientEvent::GoAway);
            return Err(CallError::GoingAway);
        };
        self.link.stats.calls += 1;
        self.link.sweep_later(now);
        Ok(id)
    }

    /// Opens a call with options, or with a long body.
    fn call_with(&mut self, now: Instant, body: Bytes, options: &CallOptions) -> Result<CallId, CallError> {
        let too_long = body.len() > self.link.peer.max_message as usize && self.link.version == Version::V2;
        if too_long
            || body.len() > u32::MAX as usize
            || options.trace.as_ref().is_some_and(|t| t.len() > TRACE)
        {
            return Err(CallError::TooLarge);
        }
        let deadline = match options.deadline {
            Some(left) if left.is_zero() => return Err(CallError::Deadline),
            Some(left) => Some(now.checked_add(left).ok_or(CallError::Deadline)?),
            None => None,
        };
        let needs_version_2 = options.one_way || options.more || body.len() > usize::from(u16::MAX);
        let id = if self.link.version != Version::V2 && !needs_version_2 {
            self.call_plain(now, body, options)?
        } else if self.link.version == Version::V2 && !options.more && body.len() <= FRAGMENT {
            self.call_small(now, body, options)?
        } else if self.link.version == Version::V1 {
            return Err(CallError::NeedsVersion2);
        } else {
            self.call_long(now, body, options, deadline)?
        };
        if let Some(deadline) = deadline {
            let (open, calls) = (self.calls.len(), &mut self.calls);
            self.link.watch(deadline, id, open, |id| calls.get_mut(id).is_some());
        }
        Ok(id)
    }

    /// Opens a call that is a single REQUEST frame.
    fn call_small(&mut self, now: Instant, body: Bytes, options: &CallOptions) -> Result<CallId, CallError> {
        let (one_way, timed) = (options.one_way, options.deadline.is_some());
        let call = Call { since: now, parts: options.parts, one_way, timed, given_up: false, stream: None };
        let id = self.open(now, call)?;
        let options = Options {
            deadline_ms: options.deadline.map(milliseconds),
            priority: options.priority,
            trace: options.trace.clone(),
            size: None,
        };
        self.link.send(id.wire(), &Frame::Request { more: false, one_way, options, body });
        if one_way {
            self.calls.take(id);
            self.events.push_back(ClientEvent::Sent { id });
        }
        Ok(id)
    }

    /// Opens a call that leaves in fragments, or waits for the version.
    fn call_long(
        &mut self,
        now: Instant,
        body: Bytes,
        options: &CallOptions,
        deadline: Option<Instant>,
    ) -> Result<CallId, CallError> {
        let size = (!options.more).then_some(body.len() as u64);
        self.link.queued += body.len();
        let sending = Sending::new(now, body, !options.more, self.link.peer.call_window, options.priority);
        let stream = Stream {
            sending: Some(sending),
            receiving: None,
            deadline,
            priority: options.priority,
            trace: options.trace.clone(),
            size,
        };
        let call = Call {
            since: now,
            parts: options.parts,
            one_way: options.one_way,
            timed: options.deadline.is_some(),
            given_up: false,
            stream: Some(Box::new(stream)),
        };
        let id = self.open(now, call)?;
        if self.link.version == Version::V2 {
            self.line_up(id);
        } else {
            self.held.push(id);
        }
        Ok(id)
    }

    fn line_up(&mut self, id: CallId) {
        if let Some(sending) = self.calls.get_mut(id).and_then(Call::sending) {
            self.link.line_up(id, sending);
        }
    }

    /// How many calls [`Self::call`] accepts now. The number grows when calls end or output is written.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        let config = &self.link.config;
        if self.link.outbox.len() > config.max_output || self.link.queued > config.max_queued {
            return 0;
        }
        let most = self.link.ours.max_calls.min(self.link.peer.max_calls);
        // What the server was not told of is still open there.
        (most as usize).saturating_sub(self.calls.len() - self.given_up + self.cancels.len())
    }

    /// Continues a request that was opened with [`CallOptions::more`].
    ///
    /// # Errors
    /// [`CallError::Busy`] when a full window of parts waits already; a [`ClientEvent::Writable`] follows
    /// later. [`CallError::Unknown`] when the call has ended, or its last part was sent.
    pub fn send_part(&mut self, now: Instant, id: CallId, body: Bytes, last: bool) -> Result<(), CallError> {
        if self.link.closed.is_some() {
            return Err(self.refusal());
        }
        let sending = self.calls.get_mut(id).and_then(Call::sending).ok_or(CallError::Unknown)?;
        if sending.queued >= PARTS && !body.is_empty() {
            sending.refused = true;
            return Err(CallError::Busy);
        }
        let size = body.len();
        if !sending.push(now, body, last) {
            return Err(CallError::Unknown);
        }
        self.link.queued += size;
        if self.link.version == Version::V2 {
            self.line_up(id);
        }
        Ok(())
    }

    /// Records that the caller consumed octets of parts, so that the server may send as many again.
    pub fn consumed(&mut self, id: CallId, octets: usize) {
        let Some(stream) = self.calls.get_mut(id).and_then(|call| call.stream.as_mut()) else { return };
        let Some(receiving) = &mut stream.receiving else { return };
        self.link.give_back(receiving.consumed(octets));
        if let Some(octets) = receiving.give_back() {
            self.link.send(id.wire(), &Frame::Credit { connection: false, octets });
        }
    }

    /// Cancels a call: no further event reports it. Returns false when the call had ended.
    pub fn cancel(&mut self, now: Instant, id: CallId, code: Code) -> bool {
        let open = self.give_up(now, id, code);
        if open {
            self.link.stats.cancelled += 1;
            // Of one that was not sent nothing is left but its place.
            self.calls.free(id);
        }
        open
    }

    fn give_up(&mut self, now: Instant, id: CallId, code: Code) -> bool {
        let Some(call) = self.calls.get_mut(id).filter(|call| !call.given_up) else { return false };
        let sent = call.sent();
        release(&mut self.link, call.stream.take());
        if !sent {
            self.calls.take(id);
            return true;
        }
        call.given_up = true;
        call.since = now;
        self.given_up += 1;
        if self.link.version != Version::V1 {
            self.cancels.push_back((id, code));
            self.send_cancels(now);
        }
        true
    }

    /// Tells the server of cancelled calls, at no higher rate than it tolerates.
    fn send_cancels(&mut self, now: Instant) {
        while self.link.version == Version::V2
            && let Some((id, code)) = self.cancels.front().copied()
        {
            if self.calls.get_mut(id).is_some() {
                if !self.link.cancels.allows(now) {
                    break;
                }
                self.link.send(id.wire(), &Frame::Cancel { code });
            }
            self.cancels.pop_front();
        }
    }

    /// Ends a call that failed on this side, and reports it to the caller.
    fn fail(&mut self, now: Instant, id: CallId, error: CallError) {
        let code = match error {
            CallError::Deadline => Code::DEADLINE,
            CallError::Timeout => Code::TIMEOUT,
            CallError::TooLarge => Code::TOO_LARGE,
            CallError::Overloaded => Code::OVERLOADED,
            _ => Code::CANCELLED,
        };
        if self.give_up(now, id, code) {
            self.link.stats.failed += 1;
            self.events.push_back(ClientEvent::Failed { id, error });
        }
    }

    /// Stops opening calls. The connection is drained when the open calls have ended.
    pub fn go_away(&mut self) {
        self.link.go_away("");
    }

    // The driver's side.

    /// The buffer into which the driver reads.
    #[inline]
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.link.input
    }

    /// Whether the driver should read. A client always reads. It slows the server down by opening no calls
    /// and granting no credit.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.link.closed.is_none()
    }

    /// The next event.
    ///
    /// # Errors
    /// The connection has ended and every call was reported.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Result<Option<ClientEvent>, ConnectionError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                self.reported(&event);
                return Ok(Some(event));
            }
            if let Some(error) = &self.link.closed {
                return Err(error.clone());
            }
            let Some((id, body)) = self.link.next_frame(now) else { return Ok(None) };
            if id < frame::CALLS {
                if let Some(event) = self.answer(CallId(id), body) {
                    return Ok(Some(event));
                }
            } else if let Err(error) = self.frame(now, id, body) {
                self.lose(error);
            }
        }
    }

    /// Frees the slots of calls whose end the driver has now seen, so that new calls may use them.
    #[cold]
    fn reported(&mut self, event: &ClientEvent) {
        if let ClientEvent::Sent { id } | ClientEvent::Failed { id, .. } = event {
            self.calls.free(*id);
        }
    }

    /// Handles a version 1 response; its call nearly always waits for it.
    #[inline]
    fn answer(&mut self, id: CallId, body: Bytes) -> Option<ClientEvent> {
        match self.calls.remove(id) {
            Some(Call { stream: None, given_up: false, .. })
                if body.len() <= self.link.ours.max_message as usize =>
            {
                self.link.stats.answered += 1;
                Some(ClientEvent::Answered { id, body })
            }
            None => {
                self.link.stats.late += 1;
                None
            }
            Some(call) => {
                self.answer_other(id, call, body);
                None
            }
        }
    }

    /// Handles a response to a cancelled call, or to one of more than one frame. The call is no longer in the
    /// table.
    fn answer_other(&mut self, id: CallId, mut call: Call, body: Bytes) {
        if call.given_up {
            self.given_up -= 1;
            self.link.stats.late += 1;
            return;
        }
        let began = call.one_way || call.stream.as_ref().is_some_and(|stream| stream.receiving.is_some());
        release(&mut self.link, call.stream.take());
        if began {
            let error = ConnectionError::from(Violation::Sequence(id.wire()));
            let failed = CallError::Connection { error: error.clone(), sent: true };
            self.events.push_back(ClientEvent::Failed { id, error: failed });
            self.lose(error);
        } else {
            self.answered(id, body);
        }
    }

    /// Reports the complete answer of a call that is no longer in the table.
    fn answered(&mut self, id: CallId, body: Bytes) {
        if body.len() > self.link.ours.max_message as usize {
            self.link.stats.failed += 1;
            self.events.push_back(ClientEvent::Failed { id, error: CallError::TooLarge });
        } else {
            self.link.stats.answered += 1;
            self.events.push_back(ClientEvent::Answered { id, body });
        }
    }

    /// Handles a frame whose ID is not that of an open call.
    fn frame(&mut self, now: Instant, id: u32, body: Bytes) -> Result<(), ConnectionError> {
        if id == HELLO_ID && std::mem::take(&mut self.hello_open) {
            self.decide(now, hello::decode(&body, false));
            return Ok(());
        }
        if self.link.version != Version::V2 {
            // A version 1 server that answers what was not asked.
            self.link.stats.late += 1;
            return Ok(());
        }
        if id & frame::EXTENDED == 0 {
            return Err(Violation::Reserved(id).into());
        }
        let (call, frame) = Frame::decode(id, body, Side::Server)?;
        let call = CallId(call);
        match frame {
            Frame::Response { more, body } => self.response(now, call, more, body),
            Frame::Data { more, body } => self.data(now, call, more, body),
            Frame::Error { code, not_processed, text } => {
                self.remote_error(call, CallError::Remote { code, not_processed, text });
                Ok(())
            }
            Frame::Credit { connection, octets } => {
                self.link.credit(now, connection, octets)?;
                if connection { Ok(()) } else { self.credit(call, octets) }
            }
            Frame::Ping(octets) => self.link.pong(now, octets),
            Frame::Pong(octets) => self.link.ponged(now, octets),
            Frame::GoAway { code, text } => {
                if self.link.gone_away(now, code, text)? {
                    self.events.push_back(ClientEvent::GoAway);
                }
                Ok(())
            }
            Frame::Request { .. } => Err(Violation::WrongSide(frame::kind::REQUEST).into()),
            Frame::Cancel { .. } => Err(Violation::WrongSide(frame::kind::CANCEL).into()),
        }
    }

    /// Settles the version: the server has answered the HELLO, has sent something else, or was silent for too
    /// long.
    fn decide(&mut self, now: Instant, limits: Option<Limits>) {
        self.hello_until = None;
        match limits {
            Some(limits) => {
                self.link.upgrade(limits);
                self.send_cancels(now);
            }
            None => {
                self.link.version = Version::V1;
                self.cancels.clear();
            }
        }
        self.events.push_back(ClientEvent::Version(self.link.version));
        for id in std::mem::take(&mut self.held) {
            let Some(call) = self.calls.get_mut(id) else { continue };
            let Some(stream) = &mut call.stream else { continue };
            let too_large = stream.size.is_some_and(|size| size > u64::from(self.link.peer.max_message));
            if let Some(sending) = &mut stream.sending {
                sending.credit = self.link.peer.call_window;
                sending.since = now;
            }
            match self.link.version {
                Version::V2 if too_large => self.fail(now, id, CallError::TooLarge),
                Version::V2 => self.line_up(id),
                _ => self.fail(now, id, CallError::NeedsVersion2),
            }
        }
    }

    /// Finds an open call. Counts the frame as late when there is none. `ends`: the frame is the last of its
    /// call.
    fn find(&mut self, id: CallId, ends: bool) -> Option<&mut Call> {
        let given_up = self.calls.get_mut(id).is_none_or(|call| call.given_up);
        if given_up {
            self.link.stats.late += 1;
            if ends && self.calls.remove(id).is_some() {
                self.given_up -= 1;
            }
            return None;
        }
        self.calls.get_mut(id)
    }

    fn response(&mut self, now: Instant, id: CallId, more: bool, body: Bytes) -> Result<(), ConnectionError> {
        let (window, budget) = (self.link.ours.call_window, self.link.config.assembly_budget);
        let Some(call) = self.find(id, !more) else { return Ok(()) };
        let parts = call.parts;
        let began = call.stream.as_ref().is_some_and(|stream| stream.receiving.is_some());
        if began || call.one_way {
            return Err(Violation::Sequence(id.wire()).into());
        }
        if !more {
            let stream = self.calls.remove(id).and_then(|call| call.stream);
            release(&mut self.link, stream);
            self.answered(id, body);
            return Ok(());
        }
        let receiving =
            call.stream.get_or_insert_default().receiving.insert(Receiving::new(now, parts, window));
        let size = body.len();
        if let Some(body) = receiving.begin(body) {
            self.events.push_back(ClientEvent::Part { id, body, last: false });
            return Ok(());
        }
        let total = receiving.total;
        self.link.assembled += size;
        if total > u64::from(self.link.ours.max_message) {
            self.fail(now, id, CallError::TooLarge);
        } else if self.link.assembled > budget {
            self.fail(now, id, CallError::Overloaded);
        }
        Ok(())
    }

    fn data(&mut self, now: Instant, id: CallId, more: bool, body: Bytes) -> Result<(), ConnectionError> {
        let size = body.len();
        self.link.data(now, size, more)?;
        let Some(call) = self.find(id, !more) else {
            self.link.give_back(size as u32);
            return Ok(());
        };
        let receiving = call.stream.as_mut().and_then(|stream| stream.receiving.as_mut());
        let receiving = receiving.ok_or(Violation::Sequence(id.wire()))?;
        let part = receiving.data(now, body).map_err(|()| ConnectionError::FlowControl)?;
        let total = receiving.total;
        if let Some(body) = part {
            self.events.push_back(ClientEvent::Part { id, body, last: !more });
            if !more {
                self.link.stats.answered += 1;
                let stream = self.calls.remove(id).and_then(|call| call.stream);
                release(&mut self.link, stream);
            }
            return Ok(());
        }
        let credit = if more { receiving.give_back() } else { None };
        self.link.assembled += size;
        self.link.give_back(size as u32);
        if total > u64::from(self.link.ours.max_message) {
            self.fail(now, id, CallError::TooLarge);
        } else if self.link.assembled > self.link.config.assembly_budget {
            self.fail(now, id, CallError::Overloaded);
        } else if !more {
            self.assembled(id);
        } else if let Some(octets) = credit {
            self.link.send(id.wire(), &Frame::Credit { connection: false, octets });
        }
        Ok(())
    }

    /// Handles the last fragment of an assembled answer.
    fn assembled(&mut self, id: CallId) {
        let Some(mut stream) = self.calls.remove(id).and_then(|call| call.stream) else { return };
        let receiving = stream.receiving.take();
        release(&mut self.link, Some(stream));
        if let Some(receiving) = receiving {
            self.link.assembled -= receiving.held();
            self.answered(id, receiving.finish());
        }
    }

    fn remote_error(&mut self, id: CallId, error: CallError) {
        if self.find(id, true).is_some() {
            let stream = self.calls.remove(id).and_then(|call| call.stream);
            release(&mut self.link, stream);
            self.link.stats.failed += 1;
            self.events.push_back(ClientEvent::Failed { id, error });
        }
    }

    fn credit(&mut self, id: CallId, octets: u32) -> Result<(), ConnectionError> {
        let Some(sending) = self.calls.get_mut(id).and_then(Call::sending) else { return Ok(()) };
        if !sending.add_credit(octets) {
            return Err(ConnectionError::FlowControl);
        }
        self.line_up(id);
        Ok(())
    }

    /// Moves fragments into the outbox while few octets wait there, and checks that the server reads.
    pub fn fill(&mut self, now: Instant) {
        if self.link.closed.is_some() {
            return;
        }
        if !self.cancels.is_empty() {
            self.send_cancels(now);
        }
        let calls = &mut self.calls;
        self.link.queue.tidy(|id| calls.get_mut(id).and_then(Call::sending).is_some());
        self.link.pace();
        while let Some(turn) = self.link.turn() {
            self.fragment(now, turn);
        }
        self.link.watch_writing(now);
    }

    fn fragment(&mut self, now: Instant, turn: (CallId, u64)) {
        let id = turn.0;
        let Some(call) = self.calls.get_mut(id) else { return };
        let Some(stream) = &mut call.stream else { return };
        let Some(sending) = &mut stream.sending else { return };
        let options = (!sending.begun).then(|| Options {
            deadline_ms: stream.deadline.map(|at| milliseconds(at.saturating_duration_since(now))),
            priority: stream.priority,
            trace: stream.trace.take(),
            size: stream.size,
        });
        self.link.fragment(now, turn, id.wire(), sending, (options, call.one_way));
        if sending.refused && sending.queued < PARTS {
            sending.refused = false;
            self.events.push_back(ClientEvent::Writable { id });
        }
        if sending.done {
            stream.sending = None;
            call.since = now;
            if stream.receiving.is_none() {
                call.stream = None;
            }
            if call.one_way {
                self.calls.take(id);
                self.events.push_back(ClientEvent::Sent { id });
            }
        }
    }

    /// Whether [`Self::poll`] has events although nothing was read. [`Self::fill`] produces such events.
    #[must_use]
    pub fn wants_poll(&self) -> bool {
        !self.events.is_empty() || self.link.closed.is_some()
    }

    /// The octets to write.
    #[inline]
    pub fn output(&mut self) -> &mut Outbox {
        &mut self.link.outbox
    }

    /// When [`Self::time_out`] must be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let cancels = if self.cancels.is_empty() { None } else { self.link.cancels.again() };
        let own =
            if self.link.closed.is_some() { None } else { self.hello_until.into_iter().chain(cancels).min() };
        self.link.deadline().into_iter().chain(own).min()
    }

    /// Handles expired timers. Poll afterwards.
    pub fn time_out(&mut self, now: Instant) {
        if self.link.closed.is_some() {
            return;
        }
        if self.hello_until.is_some_and(|until| now >= until) {
            self.decide(now, None);
        }
        while let Some(id) = self.link.due(now) {
            if self.calls.get_mut(id).is_some_and(|call| !call.given_up) {
                self.link.stats.timed_out += 1;
                self.fail(now, id, CallError::Deadline);
            }
        }
        if self.link.sweeps(now) {
            self.sweep(now);
        }
        self.send_cancels(now);
        if let Err(error) = self.link.time_out(now) {
            self.lose(error);
        }
    }

    /// Ends calls whose time-outs expired, and forgets calls that were cancelled long ago.
    fn sweep(&mut self, now: Instant) {
        let (mut overdue, mut forgotten) = (Vec::new(), Vec::new());
        let mut silent = false;
        for (id, call) in self.calls.iter_mut() {
            if call.given_up {
                let since = now.saturating_duration_since(call.since);
                if self.link.version != Version::V2 {
                    let unheard = self.link.silent_since() <= call.since;
                    silent |= unheard && self.link.config.call_timeout.is_some_and(|most| since >= most);
                } else if since >= LINGER {
                    forgotten.push(id);
                }
            } else if call.overdue(now, &self.link.config) {
                overdue.push(id);
            }
        }
        for id in forgotten {
            self.given_up -= usize::from(self.calls.remove(id).is_some());
        }
        for id in overdue {
            self.link.stats.timed_out += 1;
            self.fail(now, id, CallError::Timeout);
        }
        if self.calls.len() > 0 {
            self.link.sweep_later(now);
        }
        // Version 1 has no PING: a call was given up, and long after that still nothing at all has come.
        if silent {
            self.lose(ConnectionError::Silent);
        }
    }

    /// The driver reports the end of the stream.
    pub fn end_of_stream(&mut self) {
        self.lose(self.link.end());
    }

    /// The driver reports that the stream failed, or closes it. The first reason reported counts.
    pub fn lose(&mut self, error: ConnectionError) {
        if !self.link.close(error.clone()) {
            return;
        }
        for (id, call) in self.calls.iter_mut().filter(|(_, call)| !call.given_up) {
            let error = CallError::Connection { error: error.clone(), sent: call.sent() };
            self.link.stats.failed += 1;
            self.events.push_back(ClientEvent::Failed { id, error });
        }
        self.calls = Slab::new();
        self.given_up = 0;
        self.cancels.clear();
        self.held.clear();
    }

    // What it is like.

    /// The version of the connection.
    #[must_use]
    pub fn version(&self) -> Version {
        self.link.version
    }

    /// Number of open calls.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.calls.len() - self.given_up
    }

    /// Whether the connection can be closed: one side takes no new calls, all calls have ended and everything
    /// is written.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.link.no_more_calls() && self.open_calls() == 0 && self.link.outbox.is_empty()
    }

    /// Octets held: unfinished answers, waiting long requests, and the outbox.
    #[must_use]
    pub fn held_octets(&self) -> usize {
        self.link.assembled + self.link.queued + self.link.outbox.len()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.link.stats
    }
}

/// Forgets what was counted for a call that ended, and returns the connection credit it used.
fn release(link: &mut Link<CallId>, stream: Option<Box<Stream>>) {
    let Some(stream) = stream else { return };
    if let Some(sending) = stream.sending {
        link.stop_sending(&sending);
    }
    if let Some(receiving) = stream.receiving {
        link.stop_receiving(&receiving);
    }
}

/// Milliseconds for the DEADLINE option: at least one, as zero would mean that the deadline has passed.
fn milliseconds(left: Duration) -> u32 {
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
}
