//! A link is a client's slot for one connection: the state that callers and the connection's task share,
//! under one lock.
//!
//! A caller takes the lock, puts its call into the outbox and leaves its waker; the first caller of a turn
//! wakes the task. The task runs after all callers that are ready, and writes all their calls at once. A call
//! that is alone is written by its caller. When answers arrive, the task stores them in the callers' places,
//! releases the lock and wakes the callers.
//!
//! A link outlives its connections: an epoch counts them. When a place is used again before its result was
//! fetched, the result moves to `strays`. So a result can reach only the call that it belongs to.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;

use super::body::{Next, Owner, Pipe};
use super::stream::Writer;
use super::time;
use crate::core::{self, CallId, CallOptions, ClientEvent, Outbox, Version};
use crate::error::{CallError, Code, ConnectionError};
use crate::{Config, Stats};

/// Identifies a call of a link across all its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    epoch: u32,
    id: CallId,
}

/// Outcome of an attempt to send a call.
pub(super) enum Begin {
    /// The call was sent.
    Open(Key),
    /// There is no room. The waker is called when there is. The ticket is for [`Link::forget`].
    Blocked(u64),
    /// The link has no connection that takes new calls.
    Down,
    /// The call was refused.
    Failed(CallError),
}

type Outcome = Result<Bytes, CallError>;

enum Stage {
    Free,
    Waiting(Waker),
    Done(Outcome),
}

struct Place {
    key: Key,
    stage: Stage,
}

/// The connection that a link has at present.
pub(super) struct Up {
    pub(super) core: core::Client,
    pub(super) writer: Writer,
    /// Set when a write by a caller failed, for the task to see.
    pub(super) failed: Option<io::Error>,
}

impl Up {
    /// Writes what may leave now.
    pub(super) fn write(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<io::Result<()>> {
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

/// The pipes of a call whose bodies go in parts.
pub(super) struct Streams {
    pub(super) incoming: Arc<Pipe>,
    pub(super) outgoing: Option<Arc<Pipe>>,
}

/// Callers that wait for room or for a connection, first come, first served.
#[derive(Default)]
struct Blocked {
    tickets: u64,
    waiting: VecDeque<(u64, Waker)>,
}

/// What callers and the task share.
pub(super) struct State {
    pub(super) up: Option<Up>,
    epoch: u32,
    /// Indexed by the slot in a call's ID.
    places: Vec<Place>,
    strays: HashMap<Key, Outcome>,
    /// By slot: the calls whose bodies go in parts.
    streams: HashMap<u32, (CallId, Streams)>,
    /// Calls with pipes that have changed: epoch and ID.
    pub(super) notes: Vec<u64>,
    blocked: Blocked,
    task: Waker,
    /// When the task's timer fires.
    pub(super) alarm: Option<Instant>,
    /// Whether the task was woken to write.
    pub(super) flush_due: bool,
    /// Number of calls that wait for the task to write.
    batch: u32,
    /// Whether the last answers arrived one at a time, so that a caller need not wait for others to write
    /// with.
    pub(super) quiet: bool,
    /// Time of this turn's calls: the clock is read once for all of them.
    now: Instant,
    /// Why the link has no connection.
    pub(super) reason: ConnectionError,
    /// Whether the client is closing.
    pub(super) closing: bool,
    /// Whether the server takes no more calls on this connection.
    pub(super) leaving: bool,
    /// Counters of earlier connections.
    past: Stats,
    plain: CallOptions,
}

/// A client's slot for one connection.
pub(super) struct Link {
    state: Mutex<State>,
    /// Number of open calls, or [`DOWN`]. The pool reads it without the lock.
    load: AtomicU32,
    /// Number of calls since the task last wrote.
    batch: AtomicU32,
}

/// After this many calls a caller writes before the task does, so that the server can begin to work.
const BATCH: u32 = 128;

/// The load of a link that takes no new calls.
pub(super) const DOWN: u32 = u32::MAX;

impl Link {
    pub(super) fn new(now: Instant) -> Self {
        let state = State {
            up: None,
            epoch: 0,
            places: Vec::new(),
            strays: HashMap::new(),
            streams: HashMap::new(),
            notes: Vec::new(),
            blocked: Blocked::default(),
            task: Waker::noop().clone(),
            alarm: None,
            flush_due: false,
            batch: 0,
            quiet: true,
            now,
            reason: ConnectionError::Io(io::ErrorKind::NotConnected),
            closing: false,
            leaving: false,
            past: Stats::default(),
            plain: CallOptions::default(),
        };
        Self { state: Mutex::new(state), load: AtomicU32::new(DOWN), batch: AtomicU32::new(0) }
    }

    /// Takes the lock. Nothing panics while it is held; if it did, the state would still be consistent.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the link has a connection, even one that takes no new calls.
    pub(super) fn is_up(&self) -> bool {
        self.lock().up.is_some()
    }

    /// Number of open calls, or [`DOWN`].
    pub(super) fn load(&self) -> u32 {
        self.load.load(Relaxed)
    }

    /// Number of calls that wait for the next write; 0 when no write is due.
    pub(super) fn batch(&self) -> u32 {
        self.batch.load(Relaxed)
    }

    pub(super) fn note_load(&self, state: &State) {
        let up = state.up.as_ref().filter(|_| !state.leaving);
        let open = up.map_or(DOWN, |up| up.core.open_calls() as u32);
        self.load.store(open, Relaxed);
    }

    pub(super) fn note_written(&self, state: &mut State) {
        state.flush_due = false;
        state.batch = 0;
        self.batch.store(0, Relaxed);
    }

    /// Sends a call.
    ///
    /// `lone`: no other call is in sight that could share the write.
    pub(super) fn begin(
        &self,
        cx: &Context<'_>,
        body: &Bytes,
        options: Option<&CallOptions>,
        lone: bool,
    ) -> Begin {
        self.begin_with(cx, body, options, lone, |state, key| state.wait(key, cx))
    }

    /// Sends a call whose bodies go in parts. Its pipes report its end.
    pub(super) fn begin_stream(
        self: &Arc<Self>,
        cx: &Context<'_>,
        body: &Bytes,
        options: Option<&CallOptions>,
        streams: &mut Option<Streams>,
    ) -> Begin {
        self.begin_with(cx, body, options, true, |state, key| {
            let Some(streams) = streams.take() else { return };
            let tag = u64::from(key.epoch) << 32 | u64::from(key.id.wire());
            for pipe in streams.outgoing.iter().chain([&streams.incoming]) {
                let owner: Arc<Self> = Arc::clone(self);
                pipe.belong(owner, tag);
            }
            state.streams.insert(key.id.wire(), (key.id, streams));
            // Parts may lie in the pipe already.
            state.notes.push(tag);
            state.wake_to_write();
        })
    }

    #[inline]
    fn begin_with(
        &self,
        cx: &Context<'_>,
        body: &Bytes,
        options: Option<&CallOptions>,
        lone: bool,
        open: impl FnOnce(&mut State, Key),
    ) -> Begin {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(up) = &mut state.up else {
            if state.closing {
                return Begin::Failed(CallError::Connection { error: state.reason.clone(), sent: false });
            }
            return Begin::Down;
        };
        if !state.flush_due {
            state.now = time::now();
        }
        let key = match up.core.call(state.now, body.clone(), options.unwrap_or(&state.plain)) {
            Ok(id) => Key { epoch: state.epoch, id },
            Err(CallError::Busy) => return Begin::Blocked(state.blocked.push(cx)),
            // The server drains: the next connection takes it.
            Err(CallError::GoingAway) if !state.closing => return Begin::Down,
            Err(error) => return Begin::Failed(error),
        };
        open(state, key);
        state.send(lone);
        self.note_load(state);
        self.batch.store(state.batch, Relaxed);
        Begin::Open(key)
    }

    /// The answer to a call, once it has arrived.
    pub(super) fn poll(&self, key: Key, cx: &Context<'_>) -> Poll<Outcome> {
        let mut state = self.lock();
        let place = state.places.get_mut(key.id.place()).filter(|place| place.key == key);
        let Some(place) = place else {
            return Poll::Ready(state.strays.remove(&key).unwrap_or(Err(CallError::Unknown)));
        };
        match &mut place.stage {
            Stage::Waiting(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            _ => match std::mem::replace(&mut place.stage, Stage::Free) {
                Stage::Done(outcome) => Poll::Ready(outcome),
                _ => Poll::Ready(Err(CallError::Unknown)),
            },
        }
    }

    /// Cancels a call.
    pub(super) fn cancel(&self, key: Key) {
        let mut guard = self.lock();
        let state = &mut *guard;
        match state.places.get_mut(key.id.place()).filter(|place| place.key == key) {
            Some(place) => place.stage = Stage::Free,
            None => drop(state.strays.remove(&key)),
        }
        if let Some(up) = state.up.as_mut().filter(|_| key.epoch == state.epoch) {
            let now = time::now();
            if up.core.cancel(now, key.id, Code::CANCELLED) {
                state.wake_to_write();
                self.note_load(state);
                let mut wake = Vec::new();
                state.unblock(&mut wake);
                drop(guard);
                wake.into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Removes a blocked call from the queue. If it had been woken, the next blocked call is woken in its
    /// place.
    pub(super) fn forget(&self, ticket: u64) {
        let mut state = self.lock();
        if !state.blocked.remove(ticket) {
            let mut wake = Vec::new();
            state.unblock(&mut wake);
            drop(state);
            wake.into_iter().for_each(Waker::wake);
        }
    }

    /// Whether the blocked call must still wait. Stores its new waker.
    pub(super) fn is_blocked(&self, ticket: u64, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        let entry = state.blocked.waiting.iter_mut().find(|(waiting, _)| *waiting == ticket);
        entry.map(|(_, waker)| waker.clone_from(cx.waker())).is_some()
    }

    /// Installs a new connection.
    pub(super) fn open(&self, now: Instant, writer: Writer, config: Config) {
        let mut state = self.lock();
        state.epoch = state.epoch.wrapping_add(1);
        state.up = Some(Up { core: core::Client::new(now, config), writer, failed: None });
        (state.flush_due, state.quiet, state.leaving) = (true, true, false);
        self.note_load(&state);
        let mut wake = Vec::new();
        state.unblock(&mut wake);
        drop(state);
        wake.into_iter().for_each(Waker::wake);
    }

    /// Removes the ended connection. Returns its version, and the stream to close with what was left to
    /// write.
    pub(super) fn close(&self, reason: ConnectionError) -> Option<(Version, Writer, Outbox)> {
        let mut state = self.lock();
        let mut wake = Vec::new();
        let up = state.up.take().map(|mut up| {
            up.core.lose(reason.clone());
            while let Ok(Some(event)) = up.core.poll(time::now()) {
                state.event(event, &mut wake);
            }
            up
        });
        if let Some(up) = &up {
            state.past.add(&up.core.stats());
        }
        state.reason = reason;
        state.task = Waker::noop().clone();
        self.note_load(&state);
        self.note_written(&mut state);
        // Callers that wait for room look for another connection.
        wake.extend(state.blocked.waiting.drain(..).map(|(_, waker)| waker));
        drop(state);
        wake.into_iter().for_each(Waker::wake);
        up.map(|mut up| (up.core.version(), up.writer, std::mem::take(up.core.output())))
    }

    /// Stops taking calls. The task closes the connection when the open calls have ended.
    pub(super) fn go_away(&self) {
        let mut state = self.lock();
        state.closing = true;
        if let Some(up) = &mut state.up {
            up.core.go_away();
        }
        state.wake_to_write();
        let blocked: Vec<_> = state.blocked.waiting.drain(..).collect();
        drop(state);
        blocked.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Ends the connection at once.
    pub(super) fn lose(&self, error: ConnectionError) {
        let mut state = self.lock();
        if let Some(up) = &mut state.up {
            up.core.lose(error);
        }
        state.wake_to_write();
    }

    /// Counters of all connections of the link.
    pub(super) fn stats(&self) -> Stats {
        let state = self.lock();
        let mut stats = state.past;
        if let Some(up) = &state.up {
            stats.add(&up.core.stats());
        }
        stats
    }
}

impl State {
    /// Registers the waker of a call's place.
    fn wait(&mut self, key: Key, cx: &Context<'_>) {
        let index = key.id.place();
        while self.places.len() <= index {
            self.places.push(Place { key, stage: Stage::Free });
        }
        let Some(place) = self.places.get_mut(index) else { return };
        let old = std::mem::replace(place, Place { key, stage: Stage::Waiting(cx.waker().clone()) });
        if let Stage::Done(outcome) = old.stage {
            self.strays.insert(old.key, outcome);
        }
    }

    /// Ensures that the octets just added are written: at once when the call is alone or many calls wait,
    /// otherwise together with others.
    fn send(&mut self, lone: bool) {
        let Some(up) = &mut self.up else { return };
        let full = self.batch >= BATCH;
        if full || (!self.flush_due && lone && self.quiet && up.core.open_calls() == 1) {
            self.batch = 0;
            let written = up.write(&mut Context::from_waker(&self.task), self.now);
            // The task has the timer: it must know of a deadline that comes before the one it waits for.
            let sooner = up.core.deadline().is_some_and(|at| self.alarm.is_none_or(|alarm| at < alarm));
            // What was written may have ended calls and made room.
            let news = up.core.wants_poll() || !self.blocked.waiting.is_empty();
            if let Poll::Ready(Err(error)) = written {
                up.failed = Some(error);
                self.task.wake_by_ref();
            } else if sooner || news {
                self.task.wake_by_ref();
            }
        } else if self.flush_due {
            self.batch += 1;
        } else {
            self.batch = 1;
            self.wake_to_write();
        }
    }

    fn wake_to_write(&mut self) {
        self.flush_due = true;
        self.task.wake_by_ref();
    }

    /// Stores the waker of the task.
    pub(super) fn set_task(&mut self, waker: &Waker) {
        self.task.clone_from(waker);
    }

    /// Takes the wakers of as many blocked callers as there is room for.
    pub(super) fn unblock(&mut self, wake: &mut Vec<Waker>) {
        if self.blocked.waiting.is_empty() {
            return;
        }
        let room = self.up.as_ref().filter(|_| !self.leaving).map_or(0, |up| up.core.capacity());
        let count = room.min(self.blocked.waiting.len());
        wake.extend(self.blocked.waiting.drain(..count).map(|(_, waker)| waker));
    }

    /// Stores an event in its call's place. The wakers are to be called after the lock is released.
    pub(super) fn event(&mut self, event: ClientEvent, wake: &mut Vec<Waker>) {
        match event {
            ClientEvent::Answered { id, body } => self.finish(id, Ok(body), wake),
            ClientEvent::Failed { id, error } => self.finish(id, Err(error), wake),
            ClientEvent::Sent { id } => self.finish(id, Ok(Bytes::new()), wake),
            ClientEvent::Part { id, body, last: true } => self.finish(id, Ok(body), wake),
            ClientEvent::Part { id, body, last: false } => {
                if let Some((_, streams)) = self.streams.get(&id.wire()) {
                    streams.incoming.deliver(body, false);
                }
            }
            ClientEvent::Writable { id } => self.pump(id),
            ClientEvent::Version(_) => {}
            ClientEvent::GoAway => {
                self.leaving = true;
                wake.extend(self.blocked.waiting.drain(..).map(|(_, waker)| waker));
                self.reason = ConnectionError::Peer { code: Code::REFUSED, text: "it goes away".into() };
            }
        }
    }

    #[inline]
    pub(super) fn finish(&mut self, id: CallId, outcome: Outcome, wake: &mut Vec<Waker>) {
        let key = Key { epoch: self.epoch, id };
        let Some(place) = self.places.get_mut(id.place()).filter(|place| place.key == key) else {
            return self.finish_streams(id, outcome);
        };
        if let Stage::Waiting(waker) = std::mem::replace(&mut place.stage, Stage::Done(outcome)) {
            wake.push(waker);
        }
    }
}

/// Calls whose bodies go in parts.
impl State {
    /// Ends the pipes of a call.
    fn finish_streams(&mut self, id: CallId, outcome: Outcome) {
        let Some((_, streams)) = self.streams.remove(&id.wire()) else { return };
        let error = outcome.as_ref().err().cloned().unwrap_or(CallError::Unknown);
        match outcome {
            Ok(body) => drop(streams.incoming.deliver(body, true)),
            Err(error) => streams.incoming.end(error),
        }
        if let Some(outgoing) = streams.outgoing {
            outgoing.end(error);
        }
    }

    /// Looks at the pipes that have changed.
    pub(super) fn notes(&mut self, now: Instant) {
        self.now = now;
        for note in std::mem::take(&mut self.notes) {
            if (note >> 32) as u32 != self.epoch {
                continue;
            }
            let Some((id, streams)) = self.streams.get(&(note as u32)) else { continue };
            let (id, (taken, dropped)) = (*id, streams.incoming.taken());
            let Some(up) = &mut self.up else { continue };
            if dropped {
                self.give_up(id);
                continue;
            }
            if taken > 0 {
                up.core.consumed(id, taken);
            }
            self.pump(id);
        }
    }

    /// Sends the parts in the pipe of a call.
    fn pump(&mut self, id: CallId) {
        let Some((_, streams)) = self.streams.get_mut(&id.wire()) else { return };
        let Some(up) = &mut self.up else { return };
        while let Some(outgoing) = &streams.outgoing {
            match outgoing.next() {
                Next::Part(part, last) => match up.core.send_part(self.now, id, part.clone(), last) {
                    Ok(()) if last => streams.outgoing = None,
                    Ok(()) => {}
                    Err(CallError::Busy) => return outgoing.put_back(part),
                    Err(error) => {
                        outgoing.end(error);
                        streams.outgoing = None;
                    }
                },
                Next::Nothing => return,
                Next::Dropped => return self.give_up(id),
            }
        }
    }

    /// Ends a call of which the application dropped one end early.
    fn give_up(&mut self, id: CallId) {
        if let Some(up) = &mut self.up {
            up.core.cancel(self.now, id, Code::CANCELLED);
        }
        self.finish_streams(id, Err(CallError::Unknown));
    }
}

impl Owner for Link {
    fn note(&self, call: u64) {
        let mut state = self.lock();
        state.notes.push(call);
        state.wake_to_write();
    }
}

impl Blocked {
    fn push(&mut self, cx: &Context<'_>) -> u64 {
        self.tickets += 1;
        self.waiting.push_back((self.tickets, cx.waker().clone()));
        self.tickets
    }

    fn remove(&mut self, ticket: u64) -> bool {
        let at = self.waiting.iter().position(|(waiting, _)| *waiting == ticket);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }
}
