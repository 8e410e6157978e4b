//! The task of one client connection: reads, hands answers out, writes what callers left, watches the clock.
//!
//! It never waits inside: each turn does what can be done and says what to wake it for. A timer is armed only when the
//! next deadline is earlier than what it is armed for; when it fires too early, it is armed again.

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

/// Rounds of reading and writing in one turn, so that other tasks of the executor have theirs.
const ROUNDS: usize = 8;
/// Octets that are read before what they say is done.
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

    /// Whether what it was armed for has come. It has to be set again then.
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

/// Whether a task that is woken runs before those that were woken earlier, as on tokio's runtime of several threads.
/// There, the task goes to the end of the queue once before it writes.
pub(super) fn runs_too_early() -> bool {
    Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread
}

/// The task's own part of a connection.
pub(super) struct Connection {
    link: Arc<Link>,
    inlet: Inlet,
    alarm: Alarm,
    early: bool,
    /// It has gone to the end of the queue since it was woken.
    yielded: bool,
    /// Of callers with answers.
    wake: Vec<Waker>,
    /// The server takes no more calls on it.
    pub(super) leaving: bool,
}

impl Connection {
    pub(super) fn new(link: Arc<Link>, reader: Reader) -> Self {
        let (inlet, early) = (Inlet::new(reader), runs_too_early());
        Self { link, inlet, alarm: Alarm::new(), early, yielded: false, wake: Vec::new(), leaving: false }
    }

    /// One turn. Ready when the connection is over.
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

    /// Hands out the answers that were read, and writes what callers left.
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

    /// Hands out all events there are.
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

    /// Writes what callers and events left; when the task runs before other callers, it lets them go first.
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

/// The way in: what was read and the state machine has not seen.
pub(super) struct Inlet {
    reader: Reader,
    input: BytesMut,
    /// The stream ended, or failed with this.
    pub(super) end: Option<Option<ConnectionError>>,
    wanted: bool,
    over: bool,
    /// The state machine wants to be polled again though nothing was read.
    pub(super) unread: bool,
}

impl Inlet {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, input: BytesMut::new(), end: None, wanted: true, over: false, unread: false }
    }

    /// Reads until there is nothing more or a lot; true when there may be more.
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

    /// Gives the state machine what was read; true when that is anything new.
    pub(super) fn hand_over(&mut self, input: &mut BytesMut) -> bool {
        std::mem::swap(input, &mut self.input);
        !input.is_empty()
    }

    /// Takes the rest back, to read on behind it.
    pub(super) fn take_back(&mut self, input: &mut BytesMut) {
        std::mem::swap(input, &mut self.input);
    }

    /// Notes whether to read on. When that was not wanted before, nothing would wake the task for it. A whole frame that is
    /// left means that the state machine held back and does not any more: nothing new may come after it.
    pub(super) fn wanted(&mut self, wanted: bool) {
        let whole = |(_, length)| self.input.len() >= frame::HEADER + length;
        self.unread = wanted && (!self.wanted || frame::read_header(&self.input).is_some_and(whole));
        self.wanted = wanted;
    }
}

/// A stream that cannot be written is lost; the next poll of the core says so.
pub(super) fn lose_on_error(result: Poll<io::Result<()>>, lose: impl FnOnce(ConnectionError)) {
    if let Poll::Ready(Err(error)) = result {
        lose(failure(&error));
    }
}
