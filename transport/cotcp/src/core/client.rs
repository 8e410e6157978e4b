//! The client's side of a connection. Read the contract in [`super`] first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};

use super::slab::Slab;
use super::{CallId, Outbox, Version};
use crate::error::{CallError, Code, ConnectionError};
use crate::frame::{self, HEADER};
use crate::{Config, Stats};

/// How a call is made. The default is a plain one, which any peer understands.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// How long the caller waits. Carried to the server in version 2, kept by the client in any.
    pub deadline: Option<Duration>,
    /// 0, the most urgent, to 7; 3 by default. Version 2; in version 1 it means nothing.
    pub priority: u8,
    /// Tracing context, at most 128 octets. Version 2; in version 1 it is left out.
    pub trace: Option<Bytes>,
    /// Nobody waits for an answer. Needs version 2.
    pub one_way: bool,
    /// The body given is only the beginning; [`Client::send_part`] brings the rest. Needs version 2.
    pub more: bool,
    /// Hand on a long answer in parts, each to be given back with [`Client::consumed`]. In version 1 there are none.
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

/// What [`Client::poll`] reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The whole answer. The call is over.
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
        /// The next of the answer.
        body: Bytes,
        /// It was the last; the call is over.
        last: bool,
    },
    /// The call is over without an answer.
    Failed {
        /// The call.
        id: CallId,
        /// Why.
        error: CallError,
    },
    /// All of a one-way call is in the outbox. The call is over.
    Sent {
        /// The call.
        id: CallId,
    },
    /// More parts are taken after [`Client::send_part`] refused one.
    Writable {
        /// The call.
        id: CallId,
    },
    /// The version is known now.
    Version(Version),
    /// The server takes no new calls. Open ones go on.
    GoAway,
}

#[derive(Debug)]
struct Call {
    #[expect(dead_code, reason = "time-outs come with version 2")]
    since: Instant,
}

/// The client's state machine.
#[derive(Debug)]
pub struct Client {
    config: Config,
    input: BytesMut,
    outbox: Outbox,
    calls: Slab<Call>,
    events: VecDeque<ClientEvent>,
    closed: Option<ConnectionError>,
    leaving: bool,
    stats: Stats,
}

impl Client {
    /// For a connection that was just made. A HELLO waits in the outbox when the configuration says so.
    #[must_use]
    pub fn new(now: Instant, config: Config) -> Self {
        let _ = now;
        Self {
            config,
            input: BytesMut::new(),
            outbox: Outbox::default(),
            calls: Slab::new(),
            events: VecDeque::new(),
            closed: None,
            leaving: false,
            stats: Stats::default(),
        }
    }

    /// Opens a call. A small plain one is in the outbox afterwards; others go in fragments with the next
    /// [`Self::fill`], or wait for the version. One event says how it ended (for parts: the last one).
    ///
    /// # Errors
    /// The call was not taken; nothing of it was sent. [`CallError::Busy`] passes: see [`Self::capacity`].
    pub fn call(&mut self, now: Instant, body: Bytes, options: &CallOptions) -> Result<CallId, CallError> {
        if let Some(error) = &self.closed {
            return Err(CallError::Connection { error: error.clone(), sent: false });
        }
        if self.leaving {
            return Err(CallError::GoingAway);
        }
        if self.capacity() == 0 {
            return Err(CallError::Busy);
        }
        if options.one_way || options.more || body.len() > usize::from(u16::MAX) {
            return Err(CallError::NeedsVersion2);
        }
        let id = self.calls.insert(Call { since: now }).ok_or(CallError::Busy)?;
        self.outbox.plain(id.wire(), body);
        self.stats.calls += 1;
        self.stats.frames_out += 1;
        Ok(id)
    }

    /// Calls that [`Self::call`] takes now. Grows when calls end or output is written.
    #[must_use]
    pub fn capacity(&self) -> usize {
        if self.outbox.len() > self.config.max_output {
            return 0;
        }
        (self.config.calls() as usize).saturating_sub(self.calls.len())
    }

    /// Goes on with a request that was begun with [`CallOptions::more`].
    ///
    /// # Errors
    /// [`CallError::Busy`] when a window full of parts waits already; a [`ClientEvent::Writable`] comes later.
    pub fn send_part(&mut self, now: Instant, id: CallId, body: Bytes, last: bool) -> Result<(), CallError> {
        let _ = (now, id, body, last);
        Err(CallError::NeedsVersion2)
    }

    /// Parts of this call were used; the server may send as much more.
    pub fn consumed(&mut self, id: CallId, octets: usize) {
        let _ = (id, octets);
    }

    /// Gives a call up: no event of it comes any more. False when it was over already.
    pub fn cancel(&mut self, now: Instant, id: CallId, code: Code) -> bool {
        let _ = (now, code);
        self.calls.remove(id).is_some()
    }

    /// Opens no more calls. The connection is drained when the open ones are over.
    pub fn go_away(&mut self) {
        self.leaving = true;
    }

    /// Where the driver puts what it reads.
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// Whether the driver should read.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.closed.is_none()
    }

    /// The next event.
    ///
    /// # Errors
    /// The connection is over; all calls have been reported.
    pub fn poll(&mut self, now: Instant) -> Result<Option<ClientEvent>, ConnectionError> {
        let _ = now;
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        while let Some((id, length)) = frame::read_header(&self.input) {
            if self.input.len() < HEADER + length {
                break;
            }
            self.input.advance(HEADER);
            let body = self.input.split_to(length).freeze();
            self.stats.frames_in += 1;
            if id < frame::CALLS && self.calls.remove(CallId(id)).is_some() {
                self.stats.answered += 1;
                return Ok(Some(ClientEvent::Answered { id: CallId(id), body }));
            }
            self.stats.late += 1;
        }
        Ok(None)
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
        for (id, _) in self.calls.iter_mut() {
            let error = CallError::Connection { error: error.clone(), sent: true };
            self.events.push_back(ClientEvent::Failed { id, error });
        }
        self.calls = Slab::new();
        self.closed = Some(error);
    }

    /// What was agreed on.
    #[must_use]
    pub fn version(&self) -> Version {
        Version::V1
    }

    /// Calls that are open.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether one side has gone away, all calls are over and everything is written: time to close.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.leaving && self.calls.len() == 0 && self.outbox.is_empty()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }
}
