//! The task of one server connection: reads requests, runs their handlers, writes the answers.
//!
//! A handler's future is polled as soon as its request is decoded. Those that are ready at once, the usual case, cost
//! nothing more; the others wait in [`Pending`] of the same task, so that a connection needs no lock.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::connection::{Alarm, Inlet, lose_on_error};
use super::handler::{Failure, Handler, Request};
use super::pending::{Outcome, Panicked, Pending};
use super::stream::{Stream, Writer};
use super::time;
use crate::core::{self, RequestId, ServerEvent};
use crate::error::{Code, ConnectionError};
use crate::{Config, Stats};

/// Rounds of reading and writing in one turn, so that other connections have theirs.
const ROUNDS: usize = 8;

/// How the server tells a connection to end.
#[derive(Default)]
pub(super) struct Control {
    wish: AtomicU8,
    task: Mutex<Option<Waker>>,
}

/// Go on.
const GO_ON: u8 = 0;
/// Take no new calls, finish the open ones.
const DRAIN: u8 = 1;
/// End now.
const STOP: u8 = 2;

impl Control {
    pub(super) fn drain(&self) {
        self.wish(DRAIN);
    }

    pub(super) fn stop(&self) {
        self.wish(STOP);
    }

    fn wish(&self, wish: u8) {
        self.wish.fetch_max(wish, Relaxed);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// One connection of a server.
pub(super) struct Session<H: Handler> {
    core: core::Server,
    inlet: Inlet,
    writer: Writer,
    handler: H,
    pending: Pending<H::Future, RequestId>,
    /// Where requests wait that were not answered at once, for when they are cancelled.
    waiting: HashMap<RequestId, u32>,
    alarm: Alarm,
    control: Arc<Control>,
    /// What `control` said that is done already.
    heard: u8,
    task: Option<Waker>,
}

impl<H: Handler> Session<H> {
    pub(super) fn new(stream: Stream, config: Config, handler: H, control: Arc<Control>) -> Self {
        Self {
            core: core::Server::new(time::now(), config),
            inlet: Inlet::new(stream.reader),
            writer: stream.writer,
            handler,
            pending: Pending::new(),
            waiting: HashMap::new(),
            alarm: Alarm::new(),
            control,
            heard: GO_ON,
            task: None,
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// One turn. Ready when the connection is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        self.register(cx);
        for _ in 0..ROUNDS {
            let more = self.inlet.read(cx);
            match self.round(cx) {
                Ok(()) if more || self.inlet.unread => {}
                Ok(()) => return Poll::Pending,
                Err(error) => {
                    // What the core has to say about it, as far as the stream takes it.
                    let _ = self.writer.poll(cx, self.core.output());
                    let _ = self.writer.poll_flush(cx);
                    return Poll::Ready(error);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Leaves the waker for [`Control`]; a task's waker stays the same.
    fn register(&mut self, cx: &Context<'_>) {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
            *self.control.task.lock().unwrap_or_else(PoisonError::into_inner) = self.task.clone();
        }
    }

    /// Answers what is ready, handles what was read, writes.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        let now = time::now();
        self.listen();
        if self.alarm.rings(now) {
            self.core.time_out(now);
        }
        self.woken(cx, now);
        self.inlet.hand_over(self.core.input());
        match self.inlet.end.take() {
            Some(None) => self.core.end_of_stream(),
            Some(Some(error)) => self.core.lose(ConnectionError::Io(error)),
            None => {}
        }
        self.events(now)?;
        let written = self.write(cx, now);
        lose_on_error(written, |error| self.core.lose(error));
        if self.core.is_drained() {
            self.core.lose(ConnectionError::Local);
            cx.waker().wake_by_ref();
        }
        self.inlet.take_back(self.core.input());
        self.inlet.wanted(self.core.wants_input());
        self.alarm.set(cx, self.core.deadline());
        Ok(())
    }

    /// Does what the server wishes.
    fn listen(&mut self) {
        let wish = self.control.wish.load(Relaxed);
        if wish == self.heard {
            return;
        }
        self.heard = wish;
        self.core.go_away("the server goes away");
        if wish == STOP {
            self.core.lose(ConnectionError::Local);
        }
    }

    /// Answers requests whose handlers are ready now.
    fn woken(&mut self, cx: &Context<'_>, now: Instant) {
        let (core, waiting) = (&mut self.core, &mut self.waiting);
        self.pending.turn(cx.waker(), |id, outcome| {
            waiting.remove(&id);
            answer(core, now, id, outcome);
        });
    }

    fn events(&mut self, now: Instant) -> Result<(), ConnectionError> {
        while let Some(event) = self.core.poll(now)? {
            match event {
                ServerEvent::Request(request) => self.request(now, request),
                ServerEvent::Cancelled { id, .. } => {
                    if let Some(place) = self.waiting.remove(&id) {
                        self.pending.remove(place, |tag| tag == id);
                    }
                }
                ServerEvent::Part { .. }
                | ServerEvent::Writable { .. }
                | ServerEvent::Version(_)
                | ServerEvent::GoAway => {}
            }
        }
        Ok(())
    }

    #[inline]
    fn request(&mut self, now: Instant, mut inner: core::Request) {
        let id = inner.id;
        let request = Request { body: std::mem::take(&mut inner.body), inner };
        let outcome = match catch_unwind(AssertUnwindSafe(|| self.handler.handle(request))) {
            Ok(future) => self.pending.start(future, id),
            Err(_) => Ok(Err(Panicked)),
        };
        match outcome {
            Ok(outcome) => answer(&mut self.core, now, id, outcome),
            Err(place) => drop(self.waiting.insert(id, place)),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<std::io::Result<()>> {
        loop {
            self.core.fill(now);
            if self.core.output().is_empty() {
                return self.writer.poll_flush(cx);
            }
            match self.writer.poll(cx, self.core.output()) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
        }
    }
}

/// Puts an answer into the outbox.
#[inline]
fn answer<R: Into<bytes::Bytes>>(
    core: &mut core::Server,
    now: Instant,
    id: RequestId,
    outcome: Outcome<Result<R, Failure>>,
) {
    // What cannot be answered any more is counted by the core.
    let _ = match outcome {
        Ok(Ok(body)) => core.respond(now, id, body.into()),
        Ok(Err(failure)) => core.fail(now, id, failure.code, &failure.text, failure.not_processed),
        Err(Panicked) => core.fail(now, id, Code::INTERNAL, "the handler panicked", false),
    };
}
