//! The task of one server connection: reads requests, runs their handlers, writes the answers.
//!
//! A handler's future is polled as soon as its request is decoded. A future that is ready at once, the usual
//! case, costs nothing more. The others wait in [`Pending`] in the same task, so a connection needs no lock.
//! Bodies in parts go through pipes, whose application ends may be in any task.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::body::{self, Next, Owner, PartReceiver, Pipe};
use super::connection::{Alarm, Inlet, lose_on_error};
use super::handler::{Failure, Handler, ReplyKind, Request};
use super::pending::{Outcome, Panicked, Pending};
use super::stream::{Stream, Writer};
use super::time;
use crate::core::{self, RequestId, ServerEvent};
use crate::error::{CallError, Code, ConnectionError};
use crate::{Config, Stats};

/// Rounds of reading and writing in one turn. The limit leaves time for other connections.
const ROUNDS: usize = 8;

/// How the server tells a connection to end.
#[derive(Default)]
pub(super) struct Control {
    wish: AtomicU8,
    task: Mutex<Option<Waker>>,
    /// Whether `notes` has entries.
    noted: AtomicBool,
    /// Streams with pipes that have changed.
    notes: Mutex<Vec<u64>>,
    /// The counters as of the last round.
    stats: Mutex<Stats>,
}

/// Continue.
const GO_ON: u8 = 0;
/// Take no new calls, finish the open ones.
const DRAIN: u8 = 1;
/// End at once.
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
        self.wake();
    }

    pub(super) fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Owner for Control {
    fn note(&self, call: u64) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        if !self.noted.swap(true, AcqRel) {
            self.wake();
        }
    }
}

/// The pipes of a request whose bodies go in parts.
struct Streams {
    id: RequestId,
    /// The pipe of the request, until all of it has arrived.
    incoming: Option<Arc<Pipe>>,
    outgoing: Option<Arc<Pipe>>,
    /// The answer for a version 1 client, assembled here.
    whole: BytesMut,
}

/// One connection of a server.
pub(super) struct Session<H: Handler> {
    core: core::Server,
    inlet: Inlet,
    writer: Writer,
    handler: H,
    pending: Pending<H::Future, RequestId>,
    /// Requests that were not answered at once, by ID: where their futures wait.
    waiting: HashMap<RequestId, u32>,
    /// Requests with pipes, by a number of their own.
    streams: HashMap<u64, Streams>,
    by_request: HashMap<RequestId, u64>,
    next_stream: u64,
    alarm: Alarm,
    control: Arc<Control>,
    /// The value of `control` that was last acted on.
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
            streams: HashMap::new(),
            by_request: HashMap::new(),
            next_stream: 0,
            alarm: Alarm::new(),
            control,
            heard: GO_ON,
            task: None,
        }
    }

    /// Sends what is left after the end, and closes the stream.
    pub(super) async fn close(mut self) {
        self.writer.close(std::mem::take(self.core.output())).await;
    }

    /// One turn. Ready when the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        self.register(cx);
        for _ in 0..ROUNDS {
            let more = self.inlet.read(cx);
            let round = self.round(cx);
            *self.control.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.core.stats();
            match round {
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

    /// Stores the waker for [`Control`]. A task's waker stays the same.
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
        if self.control.noted.load(Acquire) {
            self.notes(now);
        }
        self.inlet.hand_over(self.core.input());
        self.events(now)?;
        // What came before the end counts.
        if let Some(end) = self.inlet.end.take() {
            match end {
                None => self.core.end_of_stream(),
                Some(error) => self.core.lose(error),
            }
            self.events(now)?;
        }
        let written = self.write(cx, now);
        lose_on_error(written, |error| self.core.lose(error));
        if self.core.is_drained() {
            self.core.lose(ConnectionError::Local);
            cx.waker().wake_by_ref();
        }
        self.inlet.take_back(self.core.input());
        self.inlet.wanted(self.core.wants_input());
        self.inlet.unread |= self.core.wants_poll();
        self.alarm.set(cx, self.core.deadline());
        Ok(())
    }

    /// Acts on the server's wish to drain or stop.
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

    /// Answers requests whose handlers have become ready.
    fn woken(&mut self, cx: &Context<'_>, now: Instant) {
        while let Some((id, outcome)) = self.pending.next(cx.waker()) {
            self.waiting.remove(&id);
            self.answer(now, id, outcome);
        }
    }

    fn events(&mut self, now: Instant) -> Result<(), ConnectionError> {
        // In one match with the result, which spares moving each request about.
        loop {
            match self.core.poll(now) {
                Ok(Some(ServerEvent::Request(request))) => self.request(now, request),
                Ok(Some(event)) => self.event(now, event),
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn event(&mut self, now: Instant, event: ServerEvent) {
        match event {
            ServerEvent::Request(request) => self.request(now, request),
            ServerEvent::Part { id, body, last } => self.part(id, body, last),
            ServerEvent::Cancelled { id, .. } => self.cancelled(id),
            ServerEvent::Writable { id } => {
                if let Some(stream) = self.by_request.get(&id).copied() {
                    self.pump(now, stream);
                }
            }
            ServerEvent::Version(_) | ServerEvent::GoAway => {}
        }
    }

    #[inline]
    fn request(&mut self, now: Instant, request: core::Request) {
        let core::Request { id, body, whole, extras } = request;
        let rest = if whole { None } else { Some(self.receive(id, body.len())) };
        let request = Request { body, extras, rest };
        let outcome = match catch_unwind(AssertUnwindSafe(|| self.handler.handle(request))) {
            Ok(future) => self.pending.start(future, id),
            Err(_) => Ok(Err(Panicked)),
        };
        match outcome {
            Ok(outcome) => self.answer(now, id, outcome),
            Err(place) => drop(self.waiting.insert(id, place)),
        }
    }

    /// Drops the handler of a cancelled request.
    fn cancelled(&mut self, id: RequestId) {
        if let Some(place) = self.waiting.remove(&id) {
            self.pending.remove(place, |tag| tag == id);
        }
        if let Some(stream) = self.by_request.remove(&id)
            && let Some(streams) = self.streams.remove(&stream)
        {
            streams.end();
        }
    }

    /// Puts an answer into the outbox.
    #[inline]
    fn answer(&mut self, now: Instant, id: RequestId, outcome: Outcome<Result<H::Reply, Failure>>) {
        // What cannot be answered any more is counted by the core.
        let _ = match outcome.map(|reply| reply.map(|reply| reply.into().0)) {
            Ok(Ok(ReplyKind::Whole(body))) => self.core.respond(now, id, body),
            Ok(Ok(ReplyKind::Parts(pipe))) => return self.send(now, id, pipe),
            Ok(Err(failure)) => self.core.fail(now, id, failure.code, &failure.text, failure.not_processed),
            Err(Panicked) => self.core.fail(now, id, Code::INTERNAL, "the handler panicked", false),
        };
        if !self.by_request.is_empty() {
            self.cancelled(id);
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

/// Bodies in parts.
impl<H: Handler> Session<H> {
    /// The streams of a request, created when there are none.
    fn streams(&mut self, id: RequestId) -> (u64, &mut Streams) {
        let number = *self.by_request.entry(id).or_insert_with(|| {
            self.next_stream += 1;
            self.next_stream
        });
        let new = || Streams { id, incoming: None, outgoing: None, whole: BytesMut::new() };
        (number, self.streams.entry(number).or_insert_with(new))
    }

    /// Starts to receive the rest of a request. The first part counts as consumed, because the handler has
    /// it.
    fn receive(&mut self, id: RequestId, beginning: usize) -> PartReceiver {
        let (pipe, receiver) = body::incoming();
        let control: Arc<Control> = Arc::clone(&self.control);
        let (number, streams) = self.streams(id);
        pipe.belong(control, number);
        streams.incoming = Some(pipe);
        self.core.consumed(id, beginning);
        receiver
    }

    fn part(&mut self, id: RequestId, body: Bytes, last: bool) {
        let streams = self.by_request.get(&id).and_then(|number| self.streams.get_mut(number));
        if let Some(incoming) = streams.and_then(|streams| streams.incoming.as_ref()) {
            let size = body.len();
            if !incoming.deliver(body, last) {
                self.core.consumed(id, size);
            }
        }
    }

    /// Starts to send an answer in parts.
    fn send(&mut self, now: Instant, id: RequestId, pipe: Arc<Pipe>) {
        let control: Arc<Control> = Arc::clone(&self.control);
        let (number, streams) = self.streams(id);
        pipe.belong(control, number);
        streams.outgoing = Some(pipe);
        self.pump(now, number);
    }

    /// Looks at the pipes that have changed.
    fn notes(&mut self, now: Instant) {
        // In this order, so that a note that comes meanwhile is seen in the next round.
        self.control.noted.store(false, Release);
        let notes = std::mem::take(&mut *self.control.notes.lock().unwrap_or_else(PoisonError::into_inner));
        for number in notes {
            let Some(streams) = self.streams.get(&number) else { continue };
            if let Some(incoming) = &streams.incoming {
                // A handler that drops its end is still to answer; what comes is taken and forgotten.
                let (taken, dropped) = incoming.taken();
                let taken = if dropped { taken + incoming.forget() } else { taken };
                if taken > 0 {
                    self.core.consumed(streams.id, taken);
                }
            }
            self.pump(now, number);
        }
    }

    /// Sends the parts in a pipe.
    fn pump(&mut self, now: Instant, number: u64) {
        let Some(streams) = self.streams.get_mut(&number) else { return };
        let (id, Some(outgoing)) = (streams.id, &streams.outgoing) else { return };
        let result = loop {
            match outgoing.next() {
                Next::Part(part, last) => match self.core.send_part(now, id, part.clone(), last) {
                    Ok(()) if last => break Ok(()),
                    Ok(()) => {}
                    Err(CallError::Busy) => return outgoing.put_back(part),
                    Err(CallError::NeedsVersion2) => {
                        streams.whole.extend_from_slice(&part);
                        if last || streams.whole.len() > usize::from(u16::MAX) {
                            break self.core.respond(now, id, std::mem::take(&mut streams.whole).freeze());
                        }
                    }
                    Err(error) => break Err(error),
                },
                Next::Nothing => return,
                Next::Dropped => {
                    break self.core.fail(now, id, Code::INTERNAL, "the answer broke off", false);
                }
            }
        };
        // Over, one way or the other; what cannot be answered any more is counted by the core.
        drop(result);
        self.cancelled(id);
    }
}

impl Streams {
    fn end(&self) {
        for pipe in self.incoming.iter().chain(&self.outgoing) {
            pipe.end(CallError::Unknown);
        }
    }
}
