//! Delays with a precision of microseconds.
//!
//! tokio's timers end on the next whole millisecond, which is a tenth of a delay of 10 ms. Here all
//! delays of a program are in one heap, and one timerfd wakes those that are due: one system call per
//! wake-up, however many delays end with it. A delay never ends early.
//!
//! Load generators use this, and servers that simulate a slow application. Code that has to run on
//! paused time uses [`crate::time`].

use std::collections::BinaryHeap;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;

use crate::time::{Duration, now_std};

/// Starts delays; clones share the timer. Its task ends, with all delays, when the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub struct PreciseTimer {
    shared: Arc<Shared>,
    /// Dropping it tells the task that no clone is left.
    _alive: tokio::sync::mpsc::Sender<()>,
}

#[derive(Debug)]
struct Shared {
    timer: TimerFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    due: BinaryHeap<Due>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// When the timerfd will expire next; `None` if it is not set.
    armed: Option<Instant>,
}

/// A delay in the heap, the earliest first.
#[derive(Debug, PartialEq, Eq)]
struct Due {
    at: Instant,
    slot: usize,
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The slot of a delay. It is free when the delay has left the heap and its future has ended or was
/// dropped.
#[derive(Debug)]
enum Slot {
    Waiting(Waker),
    Dropped,
    Fired,
}

impl PreciseTimer {
    /// Creates the timer and starts its task. Needs a tokio runtime.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn new() -> io::Result<PreciseTimer> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let watched: OwnedFd = nix::unistd::dup(&timer)?;
        // SAFETY: an `OwnedFd` stays the same open descriptor for as long as the registration holds it.
        let watched = unsafe { AsyncFd::register(watched) }?;
        let shared = Arc::new(Shared { timer, state: Mutex::default() });
        let (alive, mut gone) = tokio::sync::mpsc::channel(1);
        let task = Arc::clone(&shared);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    ready = watched.readable() => match ready {
                        // Setting the timer again clears its expiration, so nothing has to be read.
                        Ok(mut ready) => ready.clear_ready(),
                        Err(_) => return,
                    },
                    _ = gone.recv() => return,
                }
                task.fire();
            }
        });
        Ok(PreciseTimer { shared, _alive: alive })
    }

    /// Waits for `duration` from this call on, not from the first poll.
    pub fn sleep(&self, duration: Duration) -> PreciseSleep {
        PreciseSleep { timer: self.clone(), at: now_std() + duration, slot: None }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic in this module interrupts a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the delays that are due and sets the timerfd for the next one.
    fn fire(&self) {
        let mut state = self.state();
        let now = now_std();
        state.armed = None;
        while state.due.peek().is_some_and(|due| due.at <= now) {
            let Some(Due { slot, .. }) = state.due.pop() else { break };
            match std::mem::replace(&mut state.slots[slot], Slot::Fired) {
                Slot::Waiting(waker) => waker.wake(),
                Slot::Dropped | Slot::Fired => state.free.push(slot),
            }
        }
        let next = state.due.peek().map(|due| due.at);
        if let Some(at) = next {
            self.arm(&mut state, at);
        }
    }

    fn arm(&self, state: &mut State, at: Instant) {
        state.armed = Some(at);
        // Zero would switch the timer off.
        let left = at.saturating_duration_since(now_std()).max(Duration::from_nanos(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(left));
        // Fails only for invalid times.
        let _ = self.timer.set(once, TimerSetTimeFlags::empty());
    }

    fn insert(&self, at: Instant, waker: Waker) -> usize {
        let mut state = self.state();
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None => {
                state.slots.push(Slot::Dropped);
                state.slots.len() - 1
            }
        };
        state.slots[slot] = Slot::Waiting(waker);
        state.due.push(Due { at, slot });
        if state.armed.is_none_or(|armed| at < armed) {
            self.arm(&mut state, at);
        }
        slot
    }
}

/// A delay: a future that completes when its time has passed.
#[derive(Debug)]
pub struct PreciseSleep {
    timer: PreciseTimer,
    at: Instant,
    /// Its slot, once it waits.
    slot: Option<usize>,
}

impl Future for PreciseSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(slot) = self.slot else {
            if self.at <= now_std() {
                return Poll::Ready(());
            }
            let slot = self.timer.shared.insert(self.at, context.waker().clone());
            self.slot = Some(slot);
            return Poll::Pending;
        };
        let mut state = self.timer.shared.state();
        match &mut state.slots[slot] {
            Slot::Waiting(waker) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            Slot::Fired | Slot::Dropped => {
                state.free.push(slot);
                drop(state);
                self.slot = None;
                Poll::Ready(())
            }
        }
    }
}

impl Drop for PreciseSleep {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let mut state = self.timer.shared.state();
        match state.slots[slot] {
            // The slot is freed when the delay leaves the heap.
            Slot::Waiting(_) => state.slots[slot] = Slot::Dropped,
            Slot::Fired | Slot::Dropped => state.free.push(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn delays_end_in_their_order_and_never_early() {
        let timer = PreciseTimer::new().unwrap();
        let (ended, mut order) = tokio::sync::mpsc::unbounded_channel();
        for micros in [3000_u64, 200, 1500, 0, 1500] {
            let (timer, ended) = (timer.clone(), ended.clone());
            tokio::spawn(async move {
                let start = now_std();
                timer.sleep(Duration::from_micros(micros)).await;
                assert!(now_std() - start >= Duration::from_micros(micros));
                ended.send(micros).unwrap();
            });
        }
        drop(ended);
        let mut ends = Vec::new();
        while let Some(micros) = order.recv().await {
            ends.push(micros);
        }
        assert_eq!(ends, [0, 200, 1500, 1500, 3000]);
    }

    #[tokio::test]
    async fn places_are_used_again_dropped_delays_included() {
        let timer = PreciseTimer::new().unwrap();
        for _ in 0..50 {
            let short = timer.sleep(Duration::from_micros(50));
            let long = timer.sleep(Duration::from_micros(300));
            // The longer one is dropped while it waits.
            tokio::select! { () = short => (), () = long => () };
        }
        timer.sleep(Duration::from_millis(2)).await;
        assert!(timer.shared.state().slots.len() < 50);
        assert!(timer.shared.state().due.is_empty());
    }

    #[tokio::test]
    async fn ten_milliseconds_are_ten_not_eleven() {
        let timer = PreciseTimer::new().unwrap();
        let mut over = Vec::new();
        for _ in 0..10 {
            let start = now_std();
            timer.sleep(Duration::from_millis(10)).await;
            over.push(now_std() - start - Duration::from_millis(10));
        }
        over.sort();
        assert!(over[2] < Duration::from_micros(900), "{over:?}");
    }
}
