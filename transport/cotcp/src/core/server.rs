//! The server's side of a connection. Read the polling contract in [`super`] first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::link::Link;
use super::message::{Receiving, Sending};
use super::table::Table;
use super::{Outbox, Version};
use crate::error::{CallError, Code, ConnectionError, Violation};
use crate::frame::{self, Frame, HELLO_ID, Options, Side};
use crate::{Config, Stats, hello};

/// Identifies a request that expects an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    pub(super) wire: u32,
    pub(super) place: u32,
    /// Distinguishes successive requests with the same ID.
    pub(super) serial: u32,
}

impl RequestId {
    /// The call's ID on the wire.
    #[must_use]
    pub fn wire(self) -> u32 {
        self.wire
    }

    /// A small number that no other open request has. The driver uses it as an index.
    #[must_use]
    pub fn place(self) -> usize {
        self.place as usize
    }
}

/// What a request carries beside its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extras {
    pub deadline: Option<Instant>,
    pub priority: u8,
    pub trace: Option<Bytes>,
    pub size: Option<u64>,
    pub one_way: bool,
}

/// A request from the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Identifies the request in the answer.
    pub id: RequestId,
    /// The whole body, or its first part.
    pub body: Bytes,
    /// Whether `body` is complete. If not, [`ServerEvent::Part`]s follow. Always true when [`Config::parts`]
    /// is off.
    pub whole: bool,
    /// Boxed, because most requests carry none of this.
    pub(crate) extras: Option<Box<Extras>>,
}

impl Request {
    /// When the client stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.extras.as_ref()?.deadline
    }

    /// Priority from 0 (most urgent) to 7.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.extras.as_ref().map_or(frame::PRIORITY, |extras| extras.priority)
    }

    /// Tracing context.
    #[must_use]
    pub fn trace(&self) -> Option<&Bytes> {
        self.extras.as_ref()?.trace.as_ref()
    }

    /// Length of the whole body, when the client announced it.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.extras.as_ref()?.size
    }

    /// Whether the client expects no answer. The application calls [`Server::respond`] all the same when it
    /// has finished; the body is discarded.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.one_way)
    }
}

/// What [`Server::poll`] reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// A new request. Answer it with [`Server::respond`], [`Server::send_part`] or [`Server::fail`].
    Request(Request),
    /// The next part of a request that was not complete. Return it with [`Server::consumed`].
    Part {
        /// The request.
        id: RequestId,
        /// The next part of the body.
        body: Bytes,
        /// Whether it was the last part.
        last: bool,
    },
    /// The client no longer waits for the answer. An answer given later is refused.
    Cancelled {
        /// The request.
        id: RequestId,
        /// CANCELLED or the client's code, DEADLINE, TIMEOUT, or INTERNAL when the connection has ended.
        code: Code,
    },
    /// [`Server::send_part`] accepts parts again after it refused one.
    Writable {
        /// The request.
        id: RequestId,
    },
    /// The version of the connection is known.
    Version(Version),
    /// The client opens no more calls.
    GoAway,
}

/// A request's answer accepts no further parts while this many octets of its parts wait.
const PARTS: usize = 65_536;

/// An open request.
#[derive(Debug)]
struct Open {
    priority: u8,
    one_way: bool,
    /// Whether the application knows the request.
    reported: bool,
    /// Whether the application has given its whole answer, so that only sending is left.
    answered: bool,
    /// Kept until the request is complete and can be reported.
    extras: Option<Box<Extras>>,
    sending: Option<Box<Sending>>,
    receiving: Option<Box<Receiving>>,
}

/// The request that was reported last and is not in the table.
#[derive(Debug, Clone, Copy)]
struct Fresh {
    id: RequestId,
    priority: u8,
    one_way: bool,
    deadline: Option<Instant>,
}

/// The server's state machine.
#[derive(Debug)]
pub struct Server {
    link: Link<RequestId>,
    table: Table<Open>,
    /// Until the request is answered, or the next poll enters it into the table.
    fresh: Option<Fresh>,
    events: VecDeque<ServerEvent>,
}

impl Server {
    /// The state of a connection just accepted.
    #[must_use]
    pub fn new(now: Instant, config: Config) -> Self {
        let link = Link::new(now, config, Side::Server);
        Self { link, table: Table::new(), fresh: None, events: VecDeque::new() }
    }

    // Answers.

    /// Answers a request with a whole body, which ends it. A request answered before the next poll never
    /// enters the table.
    ///
    /// # Errors
    /// [`CallError::Unknown`] when the request has ended. [`CallError::TooLarge`] when the client does not
    /// accept so long an answer; the client was told, and the request has ended.
    #[inline]
    pub fn respond(&mut self, now: Instant, id: RequestId, body: Bytes) -> Result<(), CallError> {
        if body.len() <= self.link.longest_plain()
            && body.len() <= self.link.peer.max_message as usize
            && let Some(fresh) = self.fresh.take_if(|fresh| fresh.id == id && !fresh.one_way)
        {
            self.table.give_back(fresh.id);
            self.link.stats.answered += 1;
            self.link.send_plain(id.wire, body);
            return Ok(());
        }
        self.respond_other(now, id, body)
    }

    fn respond_other(&mut self, now: Instant, id: RequestId, body: Bytes) -> Result<(), CallError> {
        self.settle();
        let v2 = self.is_v2();
        let open =
            self.table.get_mut(id).filter(|open| open.reported && open.sending.is_none() && !open.answered);
        let open = open.ok_or(CallError::Unknown)?;
        let (one_way, priority) = (open.one_way, open.priority);
        let small = body.len() <= self.link.longest_plain();
        if !one_way && (body.len() > self.link.peer.max_message as usize || !(small || v2)) {
            self.fail(now, id, Code::TOO_LARGE, "the answer is longer than the client takes", false)?;
            return Err(CallError::TooLarge);
        }
        self.link.stats.answered += u64::from(!one_way);
        if one_way || small {
            self.close_call(id);
            if !one_way {
                self.link.send_plain(id.wire, body);
            }
            return Ok(());
        }
        // What still comes of the request is ignored, and its credit given back.
        let receiving = open.receiving.take();
        open.answered = true;
        self.link.queued += body.len();
        let credit = self.link.peer.call_window;
        let sending = open.sending.insert(Box::new(Sending::new(now, body, true, credit, priority)));
        self.link.line_up(id, sending);
        self.link.sweep_later(now);
        if let Some(receiving) = receiving {
            self.link.stop_receiving(&receiving);
        }
        Ok(())
    }

    /// Answers a request with an error. With `not_processed` the client may repeat it elsewhere. A version 1
    /// client gets [`Config::v1_error_body`] or nothing. A one-way request ends without a frame.
    ///
    /// # Errors
    /// [`CallError::Unknown`] when the request has ended.
    pub fn fail(
        &mut self,
        _now: Instant,
        id: RequestId,
        code: Code,
        text: &str,
        not_processed: bool,
    ) -> Result<(), CallError> {
        self.settle();
        let open = self.close_call(id).ok_or(CallError::Unknown)?;
        self.link.stats.failed += 1;
        if !open.one_way {
            self.send_error(id.wire, code, text, not_processed);
        }
        Ok(())
    }

    fn send_error(&mut self, wire: u32, code: Code, text: &str, not_processed: bool) {
        if self.is_v2() {
            self.link.send(wire, &Frame::Error { code, not_processed, text: frame::cut(text).into() });
            return;
        }
        match self.link.config.v1_error_body.clone() {
            Some(body) => self.link.send_plain(wire, body.slice(..body.len().min(usize::from(u16::MAX)))),
            None => self.link.stats.unanswered += 1,
        }
    }

    /// Answers a request in parts. The last part ends the request.
    ///
    /// # Errors
    /// [`CallError::Busy`] when a full window of parts waits already; a [`ServerEvent::Writable`] follows
    /// later. [`CallError::NeedsVersion2`] for a version 1 client. [`CallError::Unknown`] when the request
    /// has ended.
    pub fn send_part(
        &mut self,
        now: Instant,
        id: RequestId,
        body: Bytes,
        last: bool,
    ) -> Result<(), CallError> {
        self.settle();
        let v2 = self.is_v2();
        let (credit, size) = (self.link.peer.call_window, body.len());
        let open = self.table.get_mut(id).filter(|open| open.reported && !open.answered);
        let open = open.ok_or(CallError::Unknown)?;
        if !v2 {
            return Err(CallError::NeedsVersion2);
        }
        if open.one_way {
            if last {
                self.close_call(id);
            }
            return Ok(());
        }
        match &mut open.sending {
            Some(sending) if sending.queued >= PARTS && !body.is_empty() => {
                sending.refused = true;
                return Err(CallError::Busy);
            }
            Some(sending) => {
                sending.push(now, body, last);
            }
            None => {
                open.sending = Some(Box::new(Sending::new(now, body, last, credit, open.priority)));
            }
        }
        open.answered = last;
        self.link.queued += size;
        self.link.stats.answered += u64::from(last);
        if let Some(sending) = &mut open.sending {
            self.link.line_up(id, sending);
        }
        self.link.sweep_later(now);
        Ok(())
    }

    /// Records that the application consumed octets of parts, so that the client may send as many again.
    pub fn consumed(&mut self, id: RequestId, octets: usize) {
        let Some(receiving) = self.table.get_mut(id).and_then(|open| open.receiving.as_mut()) else { return };
        self.link.give_back(receiving.consumed(octets));
        if let Some(octets) = receiving.give_back() {
            self.link.send(id.wire, &Frame::Credit { connection: false, octets });
        }
    }

    /// Takes no more requests. The connection is drained when the open ones are answered. Version 1 has no
    /// frame to say so: the server then stops reading requests.
    pub fn go_away(&mut self, text: &str) {
        self.link.go_away(text);
    }

    // The driver's side.

    /// The buffer into which the driver reads.
    #[inline]
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.link.input
    }

    /// Whether the driver should read. It should not while the client leaves too many answers unread, nor,
    /// with version 1, while as many requests are open as allowed.
    #[must_use]
    #[inline]
    pub fn wants_input(&self) -> bool {
        let full = self.open_calls() >= self.link.ours.max_calls as usize || self.link.leaving;
        let listens = self.link.outbox.len() <= self.link.config.max_output && (!full || self.is_v2());
        listens && self.link.closed.is_none()
    }

    /// The next event.
    ///
    /// # Errors
    /// The connection has ended and every request was reported.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Result<Option<ServerEvent>, ConnectionError> {
        if self.fresh.is_some() {
            self.settle();
        }
        loop {
            if !self.events.is_empty() {
                return Ok(self.events.pop_front());
            }
            if let Some(error) = &self.link.closed {
                return Err(error.clone());
            }
            if !self.wants_input() {
                self.link.not_listening(now);
                return Ok(None);
            }
            let Some((id, body)) = self.link.next_frame(now) else { return Ok(None) };
            match self.frame(now, id, body) {
                Ok(Some(request)) if self.events.is_empty() => {
                    return Ok(Some(ServerEvent::Request(request)));
                }
                // The first one, which said that the client speaks version 1.
                Ok(Some(request)) => self.events.push_back(ServerEvent::Request(request)),
                Ok(None) => {}
                Err(error) => self.lose(error),
            }
        }
    }

    #[inline]
    fn is_v2(&self) -> bool {
        self.link.version == Version::V2
    }

    /// Enters the request that was reported last into the table.
    fn settle(&mut self) {
        let Some(Fresh { id, priority, one_way, deadline }) = self.fresh.take() else { return };
        let open = Open {
            priority,
            one_way,
            reported: true,
            answered: false,
            extras: None,
            sending: None,
            receiving: None,
        };
        self.insert(id, open, deadline);
    }

    fn insert(&mut self, id: RequestId, open: Open, deadline: Option<Instant>) {
        self.table.insert(id, open);
        if let Some(deadline) = deadline {
            let (open, table) = (self.table.len(), &mut self.table);
            self.link.watch(deadline, id, open, |id| table.get_mut(id).is_some());
        }
    }

    /// Handles a frame; nearly always a small complete request.
    #[inline]
    fn frame(&mut self, now: Instant, id: u32, body: Bytes) -> Result<Option<Request>, ConnectionError> {
        match self.link.version {
            Version::V2 if id >= frame::CALLS => return self.extended(now, id, body),
            Version::Undecided => {
                self.decide(id, &body);
                if self.is_v2() {
                    return Ok(None);
                }
            }
            _ => {}
        }
        if !self.admit(id, body.len() as u64, false)? {
            return Ok(None);
        }
        Ok(Some(self.report(id, body, None)))
    }

    /// Settles the version by the client's first frame.
    fn decide(&mut self, id: u32, body: &[u8]) {
        match hello::decode(body, true).filter(|_| id == HELLO_ID) {
            Some(limits) => {
                self.link.upgrade(limits);
                let hello = hello::encode(false, self.link.ours);
                self.link.send_plain(HELLO_ID, hello.into());
            }
            None => self.link.version = Version::V1,
        }
        self.events.push_back(ServerEvent::Version(self.link.version));
    }

    /// Whether a request is accepted. If not, the client was told.
    #[inline]
    fn admit(&mut self, id: u32, size: u64, one_way: bool) -> Result<bool, ConnectionError> {
        if self.table.len() > 0 && self.table.find(id).is_some() {
            return Err(Violation::Duplicate(id).into());
        }
        let large = size > u64::from(self.link.ours.max_message);
        let full = self.table.len() >= self.link.ours.max_calls as usize
            || self.link.queued > self.link.config.max_queued;
        if large || full || self.link.leaving {
            self.refuse(id, large, one_way);
            return Ok(false);
        }
        Ok(true)
    }

    #[cold]
    fn refuse(&mut self, id: u32, large: bool, one_way: bool) {
        let (code, text) = match large {
            true => (Code::TOO_LARGE, "the request is longer than the server takes"),
            false if self.link.leaving => (Code::REFUSED, "the server takes no new calls"),
            false => (Code::OVERLOADED, "the server has too many calls"),
        };
        self.link.stats.refused += 1;
        if !one_way {
            self.send_error(id, code, text, true);
        }
    }

    #[inline]
    fn report(&mut self, wire: u32, body: Bytes, extras: Option<Box<Extras>>) -> Request {
        let id = self.table.borrow(wire);
        let (priority, one_way, deadline) = match &extras {
            Some(extras) => (extras.priority, extras.one_way, extras.deadline),
            None => (frame::PRIORITY, false, None),
        };
        self.fresh = Some(Fresh { id, priority, one_way, deadline });
        self.link.stats.calls += 1;
        Request { id, body, whole: true, extras }
    }

    /// Handles a version 2 frame with a type, or a frame with an invalid ID.
    fn extended(&mut self, now: Instant, id: u32, body: Bytes) -> Result<Option<Request>, ConnectionError> {
        if id & frame::EXTENDED == 0 {
            return Err(Violation::Reserved(id).into());
        }
        let (call, frame) = Frame::decode(id, body, Side::Client)?;
        match frame {
            Frame::Request { more, one_way, options, body } => {
                return self.request(now, call, (more, one_way), options, body);
            }
            Frame::Data { more, body } => return self.data(now, call, more, body),
            Frame::Cancel { code } => {
                self.link.abuse(now)?;
                self.cancelled(call, code);
            }
            Frame::Credit { connection, octets } => {
                self.link.credit(now, connection, octets)?;
                if !connection {
                    self.credit(call, octets)?;
                }
            }
            Frame::Ping(octets) => self.link.pong(now, octets)?,
            Frame::Pong(octets) => self.link.ponged(now, octets)?,
            Frame::GoAway { code, text } => {
                if self.link.gone_away(now, code, text)? {
                    self.events.push_back(ServerEvent::GoAway);
                }
            }
            Frame::Response { .. } => return Err(Violation::WrongSide(frame::kind::RESPONSE).into()),
            Frame::Error { .. } => return Err(Violation::WrongSide(frame::kind::ERROR).into()),
        }
        Ok(None)
    }

    fn request(
        &mut self,
        now: Instant,
        call: u32,
        (more, one_way): (bool, bool),
        options: Options,
        body: Bytes,
    ) -> Result<Option<Request>, ConnectionError> {
        let parts = self.link.config.parts;
        // Who takes parts is not bound to messages that fit.
        let size = if more && parts { 0 } else { options.size.unwrap_or(0).max(body.len() as u64) };
        if !self.admit(call, size, one_way)? {
            return Ok(None);
        }
        let deadline = options.deadline_ms.and_then(|ms| now.checked_add(Duration::from_millis(ms.into())));
        let Options { priority, trace, size, .. } = options;
        let extras = Box::new(Extras { deadline, priority, trace, size, one_way });
        if !more {
            return Ok(Some(self.report(call, body, Some(extras))));
        }
        let id = self.table.borrow(call);
        let mut receiving = Box::new(Receiving::new(now, parts, self.link.ours.call_window));
        let held = body.len();
        let part = receiving.begin(body);
        let mut open = Open {
            priority,
            one_way,
            reported: parts,
            answered: false,
            extras: None,
            sending: None,
            receiving: Some(receiving),
        };
        self.link.sweep_later(now);
        if let Some(body) = part {
            self.insert(id, open, deadline);
            self.link.stats.calls += 1;
            return Ok(Some(Request { id, body, whole: false, extras: Some(extras) }));
        }
        open.extras = Some(extras);
        self.insert(id, open, deadline);
        self.link.assembled += held;
        self.check_budget(id);
        Ok(None)
    }

    /// Ends a request that exceeds the budget for assembling. Returns whether it did.
    fn check_budget(&mut self, id: RequestId) -> bool {
        let total = self.table.get_mut(id).and_then(|open| open.receiving.as_ref()).map_or(0, |r| r.total);
        let (code, text) = if total > u64::from(self.link.ours.max_message) {
            (Code::TOO_LARGE, "the request is longer than the server takes")
        } else if self.link.assembled > self.link.config.assembly_budget {
            (Code::OVERLOADED, "the server holds too much of unfinished requests")
        } else {
            return false;
        };
        self.abandon(id, code, text, true);
        true
    }

    /// Ends a request on this side, and tells the client and the application as far as they know of it.
    fn abandon(&mut self, id: RequestId, code: Code, text: &str, not_processed: bool) {
        let Some(open) = self.close_call(id) else { return };
        self.link.stats.failed += 1;
        if !open.one_way {
            self.send_error(id.wire, code, text, not_processed && !open.reported);
        }
        if open.reported && !open.answered {
            self.events.push_back(ServerEvent::Cancelled { id, code });
        }
    }

    fn data(
        &mut self,
        now: Instant,
        call: u32,
        more: bool,
        body: Bytes,
    ) -> Result<Option<Request>, ConnectionError> {
        let size = body.len();
        self.link.data(now, size, more)?;
        let open = self.table.find(call).and_then(|id| Some((id, self.table.get_mut(id)?)));
        let Some((id, open)) = open else {
            self.link.stats.late += 1;
            self.link.give_back(size as u32);
            return Ok(None);
        };
        let Some(receiving) = &mut open.receiving else {
            // After its end, or answered before it: of a request answered in fragments the end is still to come.
            if open.sending.is_none() || !open.answered {
                return Err(Violation::Sequence(call).into());
            }
            self.link.stats.late += 1;
            self.link.give_back(size as u32);
            return Ok(None);
        };
        if receiving.ended {
            return Err(Violation::Sequence(call).into());
        }
        let part = receiving.data(now, body).map_err(|()| ConnectionError::FlowControl)?;
        if let Some(body) = part {
            // The rest stays: its parts still wait to be used, and their credit to be given back.
            receiving.ended = !more;
            self.events.push_back(ServerEvent::Part { id, body, last: !more });
            return Ok(None);
        }
        let credit = if more { receiving.give_back() } else { None };
        self.link.assembled += size;
        self.link.give_back(size as u32);
        if self.check_budget(id) {
            return Ok(None);
        }
        if more {
            if let Some(octets) = credit {
                self.link.send(call, &Frame::Credit { connection: false, octets });
            }
            return Ok(None);
        }
        Ok(self.assembled(id))
    }

    /// Handles the last fragment of an assembled request.
    fn assembled(&mut self, id: RequestId) -> Option<Request> {
        let open = self.table.get_mut(id)?;
        let receiving = open.receiving.take()?;
        let extras = open.extras.take();
        open.reported = true;
        self.link.assembled -= receiving.held();
        self.link.stats.calls += 1;
        Some(Request { id, body: receiving.finish(), whole: true, extras })
    }

    fn cancelled(&mut self, call: u32, code: Code) {
        let Some(open) = self.table.find(call).and_then(|id| Some((id, self.close_call(id)?))) else {
            self.link.stats.late += 1;
            return;
        };
        self.link.stats.cancelled += 1;
        if let (id, Open { reported: true, answered: false, .. }) = open {
            self.events.push_back(ServerEvent::Cancelled { id, code });
        }
    }

    fn credit(&mut self, call: u32, octets: u32) -> Result<(), ConnectionError> {
        let Some(id) = self.table.find(call) else { return Ok(()) };
        let Some(sending) = self.table.get_mut(id).and_then(|open| open.sending.as_mut()) else {
            return Ok(());
        };
        if !sending.add_credit(octets) {
            return Err(ConnectionError::FlowControl);
        }
        self.link.line_up(id, sending);
        Ok(())
    }

    /// Removes a call and what was counted for it.
    fn close_call(&mut self, id: RequestId) -> Option<Open> {
        let open = self.table.remove(id)?;
        if let Some(sending) = &open.sending {
            self.link.stop_sending(sending);
        }
        if let Some(receiving) = &open.receiving {
            self.link.stop_receiving(receiving);
        }
        Some(open)
    }

    /// Moves fragments into the outbox while few octets wait there, and checks that the client reads.
    pub fn fill(&mut self, now: Instant) {
        if self.link.closed.is_some() {
            return;
        }
        let table = &mut self.table;
        self.link.queue.tidy(|id| table.get_mut(id).is_some_and(|open| open.sending.is_some()));
        self.link.pace();
        while let Some(turn) = self.link.turn() {
            self.fragment(now, turn);
        }
        self.link.watch_writing(now);
    }

    fn fragment(&mut self, now: Instant, turn: (RequestId, u64)) {
        let id = turn.0;
        let Some(sending) = self.table.get_mut(id).and_then(|open| open.sending.as_mut()) else { return };
        self.link.fragment(now, turn, id.wire, sending, (None, false));
        if sending.refused && sending.queued < PARTS {
            sending.refused = false;
            self.events.push_back(ServerEvent::Writable { id });
        }
        if sending.done {
            self.close_call(id);
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
        self.link.deadline().into_iter().chain(self.idle_until()).min()
    }

    /// When an idle connection that cannot be pinged is closed.
    fn idle_until(&self) -> Option<Instant> {
        let idle = self.open_calls() == 0 && !self.is_v2() && self.link.closed.is_none();
        if idle { Some(self.link.silent_since() + self.link.config.idle_timeout?) } else { None }
    }

    /// Handles expired timers. Poll afterwards.
    pub fn time_out(&mut self, now: Instant) {
        if self.link.closed.is_some() {
            return;
        }
        self.settle();
        if !self.wants_input() {
            self.link.not_listening(now);
        }
        while let Some(id) = self.link.due(now) {
            if self.table.get_mut(id).is_some() {
                self.link.stats.timed_out += 1;
                self.abandon(id, Code::DEADLINE, "the deadline passed", false);
            }
        }
        if self.link.sweeps(now) {
            self.sweep(now);
        }
        if self.idle_until().is_some_and(|until| now >= until) {
            self.lose(ConnectionError::Silent);
        } else if let Err(error) = self.link.time_out(now) {
            self.lose(error);
        }
    }

    /// Ends messages that made no progress for too long.
    fn sweep(&mut self, now: Instant) {
        let most = self.link.config.message_timeout;
        let (mut stuck, mut more) = (Vec::new(), false);
        for (id, open) in self.table.iter_mut() {
            let waits = open.receiving.as_ref().filter(|receiving| receiving.assembles()).map(|r| r.since);
            let starves = open.sending.as_ref().filter(|sending| sending.starves()).map(|s| s.since);
            more |= open.receiving.is_some() || open.sending.is_some();
            if waits.into_iter().chain(starves).any(|since| now.saturating_duration_since(since) >= most) {
                stuck.push(id);
            }
        }
        for id in stuck {
            self.link.stats.timed_out += 1;
            self.abandon(id, Code::TIMEOUT, "the message made no progress", true);
        }
        if more {
            self.link.sweep_later(now);
        }
    }

    /// The driver reports the end of the stream.
    pub fn end_of_stream(&mut self) {
        self.lose(self.link.end());
    }

    /// The driver reports that the stream failed, or closes it. The first reason reported counts.
    pub fn lose(&mut self, error: ConnectionError) {
        if !self.link.close(error) {
            return;
        }
        let known =
            self.table.iter_mut().filter(|(_, open)| open.reported && !open.answered).map(|(id, _)| id);
        for id in known.chain(self.fresh.take().map(|fresh| fresh.id)) {
            self.link.stats.failed += 1;
            self.events.push_back(ServerEvent::Cancelled { id, code: Code::INTERNAL });
        }
        self.table = Table::new();
    }

    // What it is like.

    /// The version of the connection.
    #[must_use]
    pub fn version(&self) -> Version {
        self.link.version
    }

    /// Number of requests that are not answered, or whose answer is not sent yet.
    #[must_use]
    #[inline]
    pub fn open_calls(&self) -> usize {
        self.table.len() + usize::from(self.fresh.is_some())
    }

    /// Whether the connection can be closed: one side takes no new calls, all requests are answered and
    /// everything is written.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.link.no_more_calls() && self.open_calls() == 0 && self.link.outbox.is_empty()
    }

    /// Octets held: unfinished requests, waiting long answers, and the outbox.
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
