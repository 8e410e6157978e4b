//! The task of one client connection: reads, hands answers out, writes what callers left, watches the clock.
//!
//! It never waits inside: each turn does what can be done and says what to wake it for. A timer is armed only when the
//! next deadline is earlier than what it is armed for; when it fires too early, it is armed again.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Sleep;

use super::link::{Link, State};
use super::stream::Reader;
use super::time;
use crate::error::ConnectionError;

/// Reads in one turn, so that other tasks of the executor have theirs.
const ROUNDS: usize = 16;

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
    pub(super) link: Arc<Link>,
    pub(super) reader: Reader,
    alarm: Alarm,
    early: bool,
    /// It has gone to the end of the queue since it was woken.
    yielded: bool,
    /// Of callers with answers.
    wake: Vec<Waker>,
}

impl Connection {
    pub(super) fn new(link: Arc<Link>, reader: Reader) -> Self {
        let early = runs_too_early();
        Self { link, reader, alarm: Alarm::new(), early, yielded: false, wake: Vec::new() }
    }

    /// One turn. Ready when the connection is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        for _ in 0..ROUNDS {
            let round = self.round(cx);
            self.wake.drain(..).for_each(Waker::wake);
            match round {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(error),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes, reads once, hands answers out, writes. True when there may be more to do at once.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let link = Arc::clone(&self.link);
        let now = time::now();
        let mut guard = link.lock();
        let state = &mut *guard;
        state.set_task(cx.waker());
        self.begin(cx, now, state)?;
        let Some(up) = &mut state.up else { return Err(ConnectionError::Local) };
        let wanted = up.core.wants_input();
        // The lock is not held while the kernel copies.
        let mut input = std::mem::take(up.core.input());
        drop(guard);
        let read = if wanted { self.reader.poll(cx, &mut input) } else { Poll::Pending };

        let mut guard = link.lock();
        let state = &mut *guard;
        let Some(up) = &mut state.up else { return Err(ConnectionError::Local) };
        *up.core.input() = input;
        match &read {
            Poll::Ready(Ok(0)) => up.core.end_of_stream(),
            Poll::Ready(Err(error)) => up.core.lose(ConnectionError::Io(error.kind())),
            _ => {}
        }
        let before = self.wake.len();
        self.events(now, state)?;
        if read.is_ready() {
            state.quiet = self.wake.len() - before <= 1;
        }
        self.finish(cx, now, state)?;
        link.note_load(state);
        let unread = state.up.as_ref().is_some_and(|up| !wanted && up.core.wants_input());
        Ok(read.is_ready() || unread)
    }

    /// What is due, and what callers left.
    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        state: &mut State,
    ) -> Result<(), ConnectionError> {
        let Some(up) = &mut state.up else { return Err(ConnectionError::Local) };
        if let Some(error) = up.failed.take() {
            up.core.lose(ConnectionError::Io(error.kind()));
        }
        if self.alarm.rings(now) {
            up.core.time_out(now);
        }
        if state.flush_due && self.early && !self.yielded {
            self.yielded = true;
            cx.waker().wake_by_ref();
            return Ok(());
        }
        self.yielded = false;
        if std::mem::take(&mut state.flush_due) {
            self.link.note_written();
            lose_on_error(up.write(cx, now), |error| up.core.lose(error));
        }
        Ok(())
    }

    /// Hands out all events there are.
    fn events(&mut self, now: Instant, state: &mut State) -> Result<(), ConnectionError> {
        loop {
            let Some(up) = &mut state.up else { return Err(ConnectionError::Local) };
            match up.core.poll(now)? {
                Some(event) => state.event(event, &mut self.wake),
                None => break,
            }
        }
        self.wake.extend(state.unblock());
        Ok(())
    }

    /// What the events left to write, and when to wake up.
    fn finish(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        state: &mut State,
    ) -> Result<(), ConnectionError> {
        let Some(up) = &mut state.up else { return Err(ConnectionError::Local) };
        if !state.flush_due {
            lose_on_error(up.write(cx, now), |error| up.core.lose(error));
        }
        if up.core.is_drained() {
            up.core.lose(ConnectionError::Local);
            cx.waker().wake_by_ref();
        }
        self.alarm.set(cx, up.core.deadline());
        Ok(())
    }
}

/// A stream that cannot be written is lost; the next poll of the core says so.
pub(super) fn lose_on_error(result: Poll<io::Result<()>>, lose: impl FnOnce(ConnectionError)) {
    if let Poll::Ready(Err(error)) = result {
        lose(ConnectionError::Io(error.kind()));
    }
}
