//! The task of one client connection: reads, distributes answers, writes what callers have left in the
//! outbox, keeps the timers.
//!
//! The task never waits inside a turn: it does what can be done and registers what must wake it. The timer is
//! armed only when the next deadline is earlier than the armed one; when it fires too early, it is armed
//! again.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Sleep;

use super::link::{Link, State};
use super::stream::{Reader, failure};
use super::time;
use crate::core::ClientEvent;
use crate::error::ConnectionError;
use crate::frame;

/// Rounds of reading and writing in one turn. The limit leaves time for other tasks of the executor.
const ROUNDS: usize = 8;
/// Octets that are read before their frames are handled.
const READ_AT_ONCE: usize = 64 * 1024;

/// A timer for the deadlines of a state machine.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    armed: Option<Instant>,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), armed: None }
    }

    /// Whether the armed time has come. The alarm must be set again then.
    pub(super) fn rings(&mut self, now: Instant) -> bool {
        let rings = self.armed.is_some_and(|at| at <= now);
        if rings {
            self.armed = None;
        }
        rings
    }

    /// Wakes the task at `deadline` or before.
    pub(super) fn set(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.armed.is_some_and(|at| at <= deadline) {
            return;
        }
        self.armed = Some(deadline);
        self.sleep.as_mut().reset(deadline.into());
        if self.sleep.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

/// Whether the executor runs a woken task before tasks that were woken earlier, as tokio's multi-threaded
/// runtime does. The task then moves to the end of the queue once before it writes, so that the other callers
/// can add their calls.
pub(super) fn runs_too_early() -> bool {
    Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread
}

/// The task's own part of a connection.
pub(super) struct Connection {
    link: Arc<Link>,
    inlet: Inlet,
    alarm: Alarm,
    early: bool,
    /// Whether the task has moved to the end of the queue since it was woken.
    yielded: bool,
    /// Wakers of callers whose answers have arrived.
    wake: Vec<Waker>,
    /// Whether the server takes no more calls on this connection.
    pub(super) leaving: bool,
}

impl Connection {
    pub(super) fn new(link: Arc<Link>, reader: Reader) -> Self {
        let (inlet, early) = (Inlet::new(reader), runs_too_early());
        Self { link, inlet, alarm: Alarm::new(), early, yielded: false, wake: Vec::new(), leaving: false }
    }

    /// One turn. Ready when the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        for _ in 0..ROUNDS {
            // Outside the lock: callers need not wait while the kernel copies.
            let more = self.inlet.read(cx);
            let link = Arc::clone(&self.link);
            let mut state = link.lock();
            let result = self.work(cx, &mut state);
            link.note_load(&state);
            drop(state);
            self.wake.drain(..).for_each(Waker::wake);
            if let Err(error) = result {
                return Poll::Ready(error);
            }
            if !more && !self.inlet.unread {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Distributes the answers that were read, and writes what callers have left.
    fn work(&mut self, cx: &mut Context<'_>, state: &mut State) -> Result<(), ConnectionError> {
        let now = time::now();
        state.set_task(cx.waker());
        let up = state.up.as_mut().ok_or(ConnectionError::Local)?;
        if let Some(error) = up.failed.take() {
            up.core.lose(failure(&error));
        }
        if self.alarm.rings(now) {
            up.core.time_out(now);
        }
        let read = self.inlet.hand_over(up.core.input());
        if !state.notes.is_empty() {
            state.notes(now);
        }
        self.events(now, state)?;
        // What came before the end counts.
        if let Some(end) = self.inlet.end.take() {
            let up = state.up.as_mut().ok_or(ConnectionError::Local)?;
            match end {
                None => up.core.end_of_stream(),
                Some(error) => up.core.lose(error),
            }
            self.events(now, state)?;
        }
        if read {
            state.quiet = self.wake.len() <= 1;
        }
        self.write(cx, now, state)?;
        let up = state.up.as_mut().ok_or(ConnectionError::Local)?;
        self.inlet.take_back(up.core.input());
        self.inlet.wanted(up.core.wants_input());
        self.inlet.unread |= up.core.wants_poll();
        self.leaving = state.leaving;
        self.alarm.set(cx, up.core.deadline());
        state.alarm = self.alarm.armed;
        Ok(())
    }

    /// Distributes all pending events.
    fn events(&mut self, now: Instant, state: &mut State) -> Result<(), ConnectionError> {
        loop {
            let up = state.up.as_mut().ok_or(ConnectionError::Local)?;
            match up.core.poll(now) {
                // In one match with the result, which spares moving each answer about.
                Ok(Some(ClientEvent::Answered { id, body })) => state.finish(id, Ok(body), &mut self.wake),
                Ok(Some(event)) => state.event(event, &mut self.wake),
                Ok(None) => break,
                Err(error) => {
                    // What the core has to say about it, as far as the stream takes it.
                    let _ = up.writer.poll(&mut Context::from_waker(Waker::noop()), up.core.output());
                    return Err(error);
                }
            }
        }
        state.unblock(&mut self.wake);
        Ok(())
    }

    /// Writes the outbox. When the task runs before other callers, it first lets them add their calls.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        state: &mut State,
    ) -> Result<(), ConnectionError> {
        if state.flush_due && self.early && !self.yielded {
            self.yielded = true;
            cx.waker().wake_by_ref();
            return Ok(());
        }
        self.yielded = false;
        if state.flush_due {
            self.link.note_written(state);
        }
        let up = state.up.as_mut().ok_or(ConnectionError::Local)?;
        lose_on_error(up.write(cx, now), |error| up.core.lose(error));
        if up.core.is_drained() {
            up.core.lose(ConnectionError::Local);
            cx.waker().wake_by_ref();
        }
        // What was written made room for callers.
        state.unblock(&mut self.wake);
        Ok(())
    }
}

/// Input that was read and not yet given to the state machine.
pub(super) struct Inlet {
    reader: Reader,
    input: BytesMut,
    /// Set when the stream has ended, with its error if it failed.
    pub(super) end: Option<Option<ConnectionError>>,
    wanted: bool,
    over: bool,
    /// Whether the state machine must be polled again although nothing was read.
    pub(super) unread: bool,
}

impl Inlet {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, input: BytesMut::new(), end: None, wanted: true, over: false, unread: false }
    }

    /// Reads until the stream has no more or much was read. Returns whether there may be more.
    pub(super) fn read(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.wanted || self.over {
            return false;
        }
        let before = self.input.len();
        // A short read empties the socket; the next one then only leaves the waker, without a system call.
        while self.input.len() < before + READ_AT_ONCE {
            match self.reader.poll(cx, &mut self.input) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(end) => {
                    (self.end, self.over) = (Some(end.err().map(|error| failure(&error))), true);
                    return false;
                }
                Poll::Pending => return false,
            }
        }
        true
    }

    /// Gives the state machine what was read. Returns whether any of it is new.
    pub(super) fn hand_over(&mut self, input: &mut BytesMut) -> bool {
        std::mem::swap(input, &mut self.input);
        !input.is_empty()
    }

    /// Takes the unread rest back, so that reading continues behind it.
    pub(super) fn take_back(&mut self, input: &mut BytesMut) {
        std::mem::swap(input, &mut self.input);
    }

    /// Records whether to read on. When reading starts again, the task must be polled: no event of the stream
    /// would wake it. A complete frame may be left from before, and no further input may follow it.
    pub(super) fn wanted(&mut self, wanted: bool) {
        let whole = |(_, length)| self.input.len() >= frame::HEADER + length;
        self.unread = wanted && (!self.wanted || frame::read_header(&self.input).is_some_and(whole));
        self.wanted = wanted;
    }
}

/// Reports a stream that cannot be written as lost; the next poll of the state machine returns the error.
pub(super) fn lose_on_error(result: Poll<io::Result<()>>, lose: impl FnOnce(ConnectionError)) {
    if let Poll::Ready(Err(error)) = result {
        lose(failure(&error));
    }
}
