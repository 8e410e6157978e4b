//! Bodies in parts, while a message is sent or received.
//!
//! A [`Pipe`] connects the application with a connection's task. Received parts wait in the pipe until the
//! application takes them; only then may the peer send more. Parts to be sent wait there until the state
//! machine takes them, and the application waits meanwhile. So neither side holds more than a window of any
//! message.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use crate::error::CallError;

/// Octets of parts to be sent that may wait in a pipe.
const WAITING: usize = 64 * 1024;

/// The task of a connection, as its pipes see it: it looks at the pipes of calls that were noted.
pub(super) trait Owner: Send + Sync {
    /// Tells the task that a pipe of this call has changed.
    fn note(&self, call: u64);
}

/// The task and the call that a pipe belongs to.
pub(super) type Belongs = (Arc<dyn Owner>, u64);

#[derive(Default)]
struct State {
    parts: VecDeque<Bytes>,
    /// Octets in `parts`.
    waiting: usize,
    /// Octets that the application took since the task last asked.
    taken: usize,
    /// Set when nothing follows `parts`: `Ok` after the last part, otherwise the error that ended the
    /// message.
    end: Option<Result<(), CallError>>,
    /// Whether the application dropped its end before the last part.
    dropped: bool,
    owner: Option<Belongs>,
    waker: Option<Waker>,
}

/// Parts on their way between the application and a connection's task.
#[derive(Default)]
pub(super) struct Pipe {
    state: Mutex<State>,
}

/// What the task finds in a pipe to send from.
pub(super) enum Next {
    /// The next part, and whether it is the last.
    Part(Bytes, bool),
    /// No part at the moment.
    Nothing,
    /// The application dropped its end.
    Dropped,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the task to notify.
    pub(super) fn belong(&self, owner: Arc<dyn Owner>, call: u64) {
        self.lock().owner = Some((owner, call));
    }

    /// For the task: delivers a received part. Returns false when the application has dropped its end.
    pub(super) fn deliver(&self, part: Bytes, last: bool) -> bool {
        let mut state = self.lock();
        if !part.is_empty() && !state.dropped {
            state.waiting += part.len();
            state.parts.push_back(part);
        }
        if last {
            state.end.get_or_insert(Ok(()));
        }
        state.wake();
        !state.dropped
    }

    /// For the task: ends the pipe with an error.
    pub(super) fn end(&self, error: CallError) {
        let mut state = self.lock();
        state.end.get_or_insert(Err(error));
        state.owner = None;
        state.wake();
    }

    /// For the task: octets that the application took since the last call, and whether it dropped its end.
    pub(super) fn taken(&self) -> (usize, bool) {
        let mut state = self.lock();
        (std::mem::take(&mut state.taken), state.dropped)
    }

    /// For the task: drops what waits for an application that has dropped its end. Returns the number of
    /// octets.
    pub(super) fn forget(&self) -> usize {
        let mut state = self.lock();
        state.parts.clear();
        std::mem::take(&mut state.waiting)
    }

    /// For the task: the next part to send.
    pub(super) fn next(&self) -> Next {
        let mut state = self.lock();
        let ended = matches!(state.end, Some(Ok(())));
        match state.parts.pop_front() {
            Some(part) => {
                state.waiting -= part.len();
                let last = ended && state.parts.is_empty();
                state.wake();
                Next::Part(part, last)
            }
            None if ended => Next::Part(Bytes::new(), true),
            None if state.dropped => Next::Dropped,
            None => Next::Nothing,
        }
    }

    /// For the task: returns a part that could not be sent yet.
    pub(super) fn put_back(&self, part: Bytes) {
        let mut state = self.lock();
        state.waiting += part.len();
        if !part.is_empty() {
            state.parts.push_front(part);
        }
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn wait(&mut self, cx: &Context<'_>) {
        self.waker = Some(cx.waker().clone());
    }
}

/// Notifies the task after the lock is released.
fn tell(state: MutexGuard<'_, State>) {
    let owner = state.owner.clone();
    drop(state);
    if let Some((owner, call)) = owner {
        owner.note(call);
    }
}

/// Receives a message part by part. Dropping it early tells the peer to stop sending.
pub struct PartReceiver {
    pub(super) pipe: Arc<Pipe>,
}

impl PartReceiver {
    /// The next part; `None` after the last. Taking a part lets the sender send more.
    pub async fn next(&mut self) -> Option<Result<Bytes, CallError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same as [`Self::next`], for use in a `poll` function.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let mut state = self.pipe.lock();
        if let Some(part) = state.parts.pop_front() {
            state.waiting -= part.len();
            state.taken += part.len();
            tell(state);
            return Poll::Ready(Some(Ok(part)));
        }
        match &state.end {
            None => {
                state.wait(cx);
                Poll::Pending
            }
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => {
                let error = error.clone();
                state.end = Some(Ok(()));
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    /// Collects the remaining parts, at most `at_most` octets.
    ///
    /// # Errors
    /// The message was cut short, or is longer.
    pub async fn collect(mut self, at_most: usize) -> Result<Bytes, CallError> {
        let mut whole = BytesMut::new();
        while let Some(part) = self.next().await {
            let part = part?;
            if whole.len() + part.len() > at_most {
                return Err(CallError::TooLarge);
            }
            whole.extend_from_slice(&part);
        }
        Ok(whole.freeze())
    }
}

impl Drop for PartReceiver {
    fn drop(&mut self) {
        let mut state = self.pipe.lock();
        state.dropped = true;
        tell(state);
    }
}

/// Sends a message part by part. [`Self::finish`] ends it; dropping the sender before cuts the message short.
pub struct PartSender {
    pub(super) pipe: Arc<Pipe>,
}

impl PartSender {
    /// Sends the next part as soon as there is room.
    ///
    /// # Errors
    /// The reason why the receiver takes no more parts.
    pub async fn send(&mut self, part: impl Into<Bytes>) -> Result<(), CallError> {
        let mut part = Some(part.into());
        poll_fn(|cx| {
            let mut state = self.pipe.lock();
            if let Some(Err(error)) = &state.end {
                return Poll::Ready(Err(error.clone()));
            }
            if state.waiting >= WAITING {
                state.wait(cx);
                return Poll::Pending;
            }
            if let Some(part) = part.take().filter(|part| !part.is_empty()) {
                state.waiting += part.len();
                state.parts.push_back(part);
                tell(state);
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Ends the message.
    pub fn finish(self) {
        self.pipe.lock().end.get_or_insert(Ok(()));
    }
}

impl Drop for PartSender {
    fn drop(&mut self) {
        let mut state = self.pipe.lock();
        state.dropped = true;
        tell(state);
    }
}

/// A pipe for a message to be sent: the application's end and the task's end.
pub(super) fn outgoing() -> (PartSender, Arc<Pipe>) {
    let pipe = Arc::new(Pipe::default());
    (PartSender { pipe: Arc::clone(&pipe) }, pipe)
}

/// A pipe for a message to be received: the task's end and the application's end.
pub(super) fn incoming() -> (Arc<Pipe>, PartReceiver) {
    let pipe = Arc::new(Pipe::default());
    (Arc::clone(&pipe), PartReceiver { pipe })
}
