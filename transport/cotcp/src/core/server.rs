//! The server's side of a connection. Read the contract in [`super`] first.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use bytes::{Buf as _, Bytes, BytesMut};

use super::{Outbox, Version};
use crate::error::{CallError, Code, ConnectionError, Violation};
use crate::frame::{self, HEADER};
use crate::{Config, Stats};

/// A request of a [`Server`] that wants an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    wire: u32,
    place: u32,
    /// Tells requests with the same ID apart, one after the other.
    serial: u32,
}

impl RequestId {
    /// The call's ID on the wire.
    #[must_use]
    pub fn wire(self) -> u32 {
        self.wire
    }

    /// A small number that no other open request has: an index for what the driver keeps per request.
    #[must_use]
    pub fn place(self) -> usize {
        self.place as usize
    }
}

/// What came with a request beside the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extras {
    pub deadline: Option<Instant>,
    pub priority: u8,
    pub trace: Option<Bytes>,
    pub size: Option<u64>,
    pub one_way: bool,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// For the answer.
    pub id: RequestId,
    /// The whole body, or the beginning of it.
    pub body: Bytes,
    /// Whether `body` is all; if not, [`ServerEvent::Part`]s follow. Always with [`Config::parts`] off.
    pub whole: bool,
    /// Boxed, as most requests have nothing of it.
    extras: Option<Box<Extras>>,
}

impl Request {
    /// When the client stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.extras.as_ref()?.deadline
    }

    /// 0, the most urgent, to 7.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.extras.as_ref().map_or(frame::PRIORITY, |extras| extras.priority)
    }

    /// Tracing context.
    #[must_use]
    pub fn trace(&self) -> Option<&Bytes> {
        self.extras.as_ref()?.trace.as_ref()
    }

    /// Length of the whole body, when the client said so.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.extras.as_ref()?.size
    }

    /// Nobody waits for an answer. Call [`Server::respond`] all the same when it is done: the body goes nowhere.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.one_way)
    }
}

/// What [`Server::poll`] reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// A request. Answer it with [`Server::respond`], [`Server::send_part`] or [`Server::fail`].
    Request(Request),
    /// The next of a request that was not whole. Give it back with [`Server::consumed`].
    Part {
        /// The request.
        id: RequestId,
        /// The next of the body.
        body: Bytes,
        /// It was the last.
        last: bool,
    },
    /// Nobody waits for the answer any more; one that is given is refused.
    Cancelled {
        /// The request.
        id: RequestId,
        /// CANCELLED or what the client said, DEADLINE, TIMEOUT, or INTERNAL when the connection is over.
        code: Code,
    },
    /// More parts are taken after [`Server::send_part`] refused one.
    Writable {
        /// The request.
        id: RequestId,
    },
    /// The version is known now.
    Version(Version),
    /// The client opens no more calls.
    GoAway,
}

/// The server's state machine.
#[derive(Debug)]
pub struct Server {
    config: Config,
    input: BytesMut,
    outbox: Outbox,
    /// The request reported last, until it is answered or the next poll puts it into the table.
    fresh: Option<RequestId>,
    table: HashSet<RequestId>,
    wires: HashSet<u32>,
    serial: u32,
    events: VecDeque<ServerEvent>,
    closed: Option<ConnectionError>,
    leaving: bool,
    stats: Stats,
}

impl Server {
    /// For a connection that was just accepted.
    #[must_use]
    pub fn new(now: Instant, config: Config) -> Self {
        let _ = now;
        Self {
            config,
            input: BytesMut::new(),
            outbox: Outbox::default(),
            fresh: None,
            table: HashSet::new(),
            wires: HashSet::new(),
            serial: 0,
            events: VecDeque::new(),
            closed: None,
            leaving: false,
            stats: Stats::default(),
        }
    }

    fn take(&mut self, id: RequestId) -> Result<(), CallError> {
        if self.fresh == Some(id) {
            self.fresh = None;
            return Ok(());
        }
        self.wires.remove(&id.wire);
        if self.table.remove(&id) { Ok(()) } else { Err(CallError::Unknown) }
    }

    /// Answers a request whole; it is over then. For a request answered before the next poll no table is touched.
    ///
    /// # Errors
    /// [`CallError::Unknown`] when it is over already; [`CallError::TooLarge`] when the client takes no such answer
    /// (it has been told, and the request is over).
    pub fn respond(&mut self, now: Instant, id: RequestId, body: Bytes) -> Result<(), CallError> {
        let _ = now;
        self.take(id)?;
        if body.len() > usize::from(u16::MAX) {
            return Err(CallError::TooLarge);
        }
        self.outbox.plain(id.wire, body);
        self.stats.answered += 1;
        self.stats.frames_out += 1;
        Ok(())
    }

    /// Answers a request with an error; `not_processed` lets the client repeat it elsewhere. A version 1 client gets
    /// [`Config::v1_error_body`] or nothing.
    ///
    /// # Errors
    /// [`CallError::Unknown`] when it is over already.
    pub fn fail(
        &mut self,
        now: Instant,
        id: RequestId,
        code: Code,
        text: &str,
        not_processed: bool,
    ) -> Result<(), CallError> {
        let _ = (now, code, text, not_processed);
        self.take(id)?;
        self.stats.failed += 1;
        match &self.config.v1_error_body {
            Some(body) => self.outbox.plain(id.wire, body.clone()),
            None => self.stats.unanswered += 1,
        }
        Ok(())
    }

    /// Answers a request in parts as they are made; the last one ends it.
    ///
    /// # Errors
    /// [`CallError::Busy`] when a window full of parts waits already; a [`ServerEvent::Writable`] comes later.
    /// [`CallError::NeedsVersion2`] for a version 1 client.
    pub fn send_part(
        &mut self,
        now: Instant,
        id: RequestId,
        body: Bytes,
        last: bool,
    ) -> Result<(), CallError> {
        let _ = (now, id, body, last);
        Err(CallError::NeedsVersion2)
    }

    /// Parts of this request were used; the client may send as much more.
    pub fn consumed(&mut self, id: RequestId, octets: usize) {
        let _ = (id, octets);
    }

    /// Takes no more requests. The connection is drained when the open ones are answered.
    pub fn go_away(&mut self, text: &str) {
        let _ = text;
        self.leaving = true;
    }

    /// Where the driver puts what it reads.
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// Whether the driver should read.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        let room =
            self.table.len() < self.config.calls() as usize && self.outbox.len() <= self.config.max_output;
        self.closed.is_none() && !self.leaving && room
    }

    /// The next event.
    ///
    /// # Errors
    /// The connection is over; all requests have been reported.
    pub fn poll(&mut self, now: Instant) -> Result<Option<ServerEvent>, ConnectionError> {
        let _ = now;
        if let Some(id) = self.fresh.take() {
            self.table.insert(id);
            self.wires.insert(id.wire);
        }
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        if !self.wants_input() {
            return Ok(None);
        }
        let Some((wire, length)) = frame::read_header(&self.input) else { return Ok(None) };
        if self.input.len() < HEADER + length {
            return Ok(None);
        }
        self.input.advance(HEADER);
        let body = self.input.split_to(length).freeze();
        self.stats.frames_in += 1;
        if self.wires.contains(&wire) {
            self.lose(Violation::Duplicate(wire).into());
            return self.poll(now);
        }
        self.serial = self.serial.wrapping_add(1);
        let id = RequestId { wire, place: self.table.len() as u32, serial: self.serial };
        self.fresh = Some(id);
        self.stats.calls += 1;
        Ok(Some(ServerEvent::Request(Request { id, body, whole: true, extras: None })))
    }

    /// Moves fragments into the outbox while little waits there.
    pub fn fill(&mut self, now: Instant) {
        let _ = now;
    }

    /// What to write.
    pub fn output(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// When to call [`Self::time_out`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Does what is due. Poll afterwards.
    pub fn time_out(&mut self, now: Instant) {
        let _ = now;
    }

    /// The stream ended.
    pub fn end_of_stream(&mut self) {
        let error = if self.input.is_empty() { ConnectionError::Closed } else { ConnectionError::Truncated };
        self.lose(error);
    }

    /// The stream failed, or is to be closed. The first reason stays.
    pub fn lose(&mut self, error: ConnectionError) {
        if self.closed.is_some() {
            return;
        }
        for id in self.table.drain().chain(self.fresh.take()) {
            self.events.push_back(ServerEvent::Cancelled { id, code: Code::INTERNAL });
        }
        self.closed = Some(error);
    }

    /// What was agreed on.
    #[must_use]
    pub fn version(&self) -> Version {
        Version::V1
    }

    /// Requests that are not answered yet.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.table.len() + usize::from(self.fresh.is_some())
    }

    /// Whether one side has gone away, all requests are answered and everything is written: time to close.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.leaving && self.open_calls() == 0 && self.outbox.is_empty()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }
}
