//! Calls from other threads into a worker's graph.
//!
//! A graph's state is its worker's alone. Who wants to read or change it hands over a call, which the worker executes between two
//! vectors ([`Graph::turn`](crate::Graph::turn)), in the order in which calls were handed over. A worker that sleeps is woken. While
//! nothing waits, looking costs the worker one load.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pktio::poll::Waker;

use crate::Ports;

/// What a worker executes: with its graph, the time and its ports.
pub type Call<G> = Box<dyn FnOnce(&mut G, u64, &mut Ports) + Send>;

/// The worker has ended, or does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotRunning;

struct Waiting<G> {
    calls: Vec<Call<G>>,
    waker: Option<Waker>,
    /// The graph is gone.
    closed: bool,
}

struct Shared<G> {
    /// Whether there are calls.
    any: AtomicBool,
    waiting: Mutex<Waiting<G>>,
}

impl<G> Shared<G> {
    fn lock(&self) -> MutexGuard<'_, Waiting<G>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands over calls. Clones lead to the same graph.
pub struct Caller<G>(Arc<Shared<G>>);

impl<G> Clone for Caller<G> {
    fn clone(&self) -> Caller<G> {
        Caller(Arc::clone(&self.0))
    }
}

impl<G> fmt::Debug for Caller<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Caller")
    }
}

/// The graph's end. Calls that are handed over later fail.
pub struct Calls<G>(Arc<Shared<G>>);

/// Both ends.
pub fn channel<G>() -> (Caller<G>, Calls<G>) {
    let waiting = Waiting { calls: Vec::new(), waker: None, closed: false };
    let shared = Arc::new(Shared { any: AtomicBool::new(false), waiting: Mutex::new(waiting) });
    (Caller(Arc::clone(&shared)), Calls(shared))
}

impl<G> Caller<G> {
    /// Hands over a call and does not wait for it.
    ///
    /// # Errors
    /// The graph is gone.
    pub fn post(
        &self,
        call: impl FnOnce(&mut G, u64, &mut Ports) + Send + 'static,
    ) -> Result<(), NotRunning> {
        let mut waiting = self.0.lock();
        if waiting.closed {
            return Err(NotRunning);
        }
        waiting.calls.push(Box::new(call));
        self.0.any.store(true, Ordering::Release);
        if let Some(waker) = &waiting.waker {
            waker.wake();
        }
        Ok(())
    }

    /// Hands over a call and waits for its result.
    ///
    /// # Errors
    /// The graph is gone, or there is no result in time; the call may still be executed then.
    pub fn call<T: Send + 'static>(
        &self,
        patience: Duration,
        call: impl FnOnce(&mut G, u64, &mut Ports) -> T + Send + 'static,
    ) -> Result<T, NotRunning> {
        let (sender, result) = mpsc::sync_channel(1);
        self.post(move |graph, now_ns, ports| {
            // Who does not wait any more has been told that there is no result.
            let _ = sender.try_send(call(graph, now_ns, ports));
        })?;
        result.recv_timeout(patience).map_err(|_| NotRunning)
    }
}

impl<G> Caller<G> {
    /// Whether the graph is gone.
    pub fn is_gone(&self) -> bool {
        self.0.lock().closed
    }
}

impl<G> Calls<G> {
    /// The calls to execute now, oldest first: all that were handed over, so that a tunnel whose number a peer has been told
    /// takes the peer's next packet.
    #[inline]
    pub fn take(&mut self) -> Vec<Call<G>> {
        if self.0.any.load(Ordering::Acquire) { self.take_all() } else { Vec::new() }
    }

    #[cold]
    fn take_all(&mut self) -> Vec<Call<G>> {
        let mut waiting = self.0.lock();
        self.0.any.store(false, Ordering::Release);
        std::mem::take(&mut waiting.calls)
    }

    /// Calls wake this worker from now on.
    pub fn wake_with(&mut self, waker: Waker) {
        self.0.lock().waker = Some(waker);
    }
}

impl<G> Drop for Calls<G> {
    fn drop(&mut self) {
        let left = {
            let mut waiting = self.0.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.calls)
        };
        // Outside the lock: a call may own whatever its caller likes.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use pktio::poll::Poller;

    use super::*;

    struct Counter {
        calls: Calls<Counter>,
        value: u64,
    }

    impl Counter {
        fn turn(&mut self) {
            for call in self.calls.take() {
                call(self, 7, &mut Vec::new());
            }
        }
    }

    #[test]
    fn calls_are_executed_in_order_and_give_results() {
        let (caller, calls) = channel();
        let mut counter = Counter { calls, value: 0 };
        for number in 0..200 {
            caller
                .post(move |counter: &mut Counter, now_ns, _| {
                    assert_eq!((counter.value, now_ns), (number, 7));
                    counter.value += 1;
                })
                .unwrap();
        }
        counter.turn();
        assert_eq!(counter.value, 200);
        let asking = caller.clone();
        let asked =
            std::thread::spawn(move || asking.call(Duration::from_secs(20), |counter, _, _| counter.value));
        while !asked.is_finished() {
            counter.turn();
        }
        assert_eq!(asked.join().unwrap(), Ok(200));
        assert_eq!(
            caller.call(Duration::from_millis(1), |_, _, _| ()),
            Err(NotRunning),
            "nobody executes it"
        );
        drop(counter);
        assert_eq!(caller.call(Duration::from_secs(20), |_, _, _| ()), Err(NotRunning));
        assert_eq!(caller.post(|_, _, _| ()), Err(NotRunning));
    }

    #[test]
    fn a_call_wakes_the_worker() {
        let (caller, mut calls) = channel::<()>();
        let mut poller = Poller::new().unwrap();
        calls.wake_with(poller.waker());
        caller.post(|_, _, _| ()).unwrap();
        assert!(poller.wait(Some(0), |_| ()).unwrap().woken);
        assert_eq!(calls.take().len(), 1);
    }

    /// What a call owns goes when the graph does, and may use the caller meanwhile.
    #[test]
    fn calls_that_are_never_executed_are_dropped() {
        struct Uses(Caller<()>);
        impl Drop for Uses {
            fn drop(&mut self) {
                assert_eq!(self.0.post(|_, _, _| ()), Err(NotRunning));
            }
        }
        let (caller, calls) = channel::<()>();
        let uses = Uses(caller.clone());
        caller.post(move |_, _, _| drop(uses)).unwrap();
        drop(calls);
    }
}
