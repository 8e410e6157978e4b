//! Bodies in parts: what a message is made of while it is sent or received.
//!
//! A [`Pipe`] lies between the application and a connection's task. What is received waits there until the application
//! takes it, and only then the peer may send more; what is sent waits there until the state machine takes it, and the
//! application waits meanwhile. So neither side holds more than a window of any message.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use crate::error::CallError;

/// Octets of parts to be sent that wait in a pipe.
const WAITING: usize = 64 * 1024;

/// A connection's task, for pipes: it looks at the pipes of calls that were noted.
pub(super) trait Owner: Send + Sync {
    /// Something happened to a pipe of this call.
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
    /// Nothing comes behind `parts`, or this is why.
    end: Option<Result<(), CallError>>,
    /// The application's end was dropped early.
    dropped: bool,
    owner: Option<Belongs>,
    waker: Option<Waker>,
}

/// Parts on their way between the application and a connection's task.
#[derive(Default)]
pub(super) struct Pipe {
    state: Mutex<State>,
}

/// What a connection's task finds in a pipe to send from.
pub(super) enum Next {
    /// The next part; `true`: the last.
    Part(Bytes, bool),
    /// Nothing at the moment.
    Nothing,
    /// The application gave up.
    Dropped,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whom to tell.
    pub(super) fn belong(&self, owner: Arc<dyn Owner>, call: u64) {
        self.lock().owner = Some((owner, call));
    }

    /// The task: a part was received. False when nobody wants it.
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

    /// The task: nothing more comes, or is taken.
    pub(super) fn end(&self, error: CallError) {
        let mut state = self.lock();
        state.end.get_or_insert(Err(error));
        state.owner = None;
        state.wake();
    }

    /// The task: how much the application took, and whether it dropped its end.
    pub(super) fn taken(&self) -> (usize, bool) {
        let mut state = self.lock();
        (std::mem::take(&mut state.taken), state.dropped)
    }

    /// The task: drops what waits for an application that does not want it; gives how much.
    pub(super) fn forget(&self) -> usize {
        let mut state = self.lock();
        state.parts.clear();
        std::mem::take(&mut state.waiting)
    }

    /// The task: the next part to send.
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

    /// The task: a part that could not be sent yet.
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

/// Tells the task, after the lock was given up.
fn tell(state: MutexGuard<'_, State>) {
    let owner = state.owner.clone();
    drop(state);
    if let Some((owner, call)) = owner {
        owner.note(call);
    }
}

/// Takes a message in as it comes. Dropped before its end, it gives the rest up.
pub struct PartReceiver {
    pub(super) pipe: Arc<Pipe>,
}

impl PartReceiver {
    /// The next part; none after the last. The sender may send more when it is taken.
    pub async fn next(&mut self) -> Option<Result<Bytes, CallError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Self::next`].
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

    /// All that is left, if it is no more than `at_most` octets.
    ///
    /// # Errors
    /// The message broke off, or is longer.
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

/// Sends a message as it is made. It ends with [`Self::finish`]; dropped before, the message breaks off.
pub struct PartSender {
    pub(super) pipe: Arc<Pipe>,
}

impl PartSender {
    /// Sends the next part, as soon as there is room for it.
    ///
    /// # Errors
    /// Why nobody takes it any more.
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

    /// Says that the last part has been sent.
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

/// A pipe to send through: the application's end and the task's.
pub(super) fn outgoing() -> (PartSender, Arc<Pipe>) {
    let pipe = Arc::new(Pipe::default());
    (PartSender { pipe: Arc::clone(&pipe) }, pipe)
}

/// A pipe to receive through: the task's end and the application's.
pub(super) fn incoming() -> (Arc<Pipe>, PartReceiver) {
    let pipe = Arc::new(Pipe::default());
    (Arc::clone(&pipe), PartReceiver { pipe })
}
