//! Worker threads: each receives batches from its inputs and runs them through its pipeline.
//!
//! While there is traffic a worker polls; when nothing has come for a while ([`Patience`]) it gives the processor back and
//! sleeps until an input has packets or the N4 task wakes it. An input that nobody can wait for, such as a DPDK port, is
//! polled on, ever more slowly.
//!
//! A worker ends when it is told to, and for no other reason, or a direction would be lost without a word: a panic costs the
//! batch at hand, counted as `worker_failed`; an input with errors is left alone for a while and tried again.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pktio::Batch;
use pktio::poll::{Poller, Waker};

use crate::pipeline::{BATCH, Input, PACKET, Pipeline, Ports};

/// Batches taken from one input before the others get their turn.
const BUDGET: usize = 16;
/// How long inputs are polled in vain at least before the worker sleeps, unless it shall not: longer than the pauses
/// within a burst.
const SPIN: Duration = Duration::from_micros(20);
/// How long inputs that cannot wake us are polled without pause.
const DEAF_SPIN: Duration = Duration::from_millis(100);
/// Errors in a row after which an input is left alone: it would otherwise keep its worker spinning.
const MAX_ERRORS: usize = 64;
/// And for how long.
const REST: Duration = Duration::from_secs(1);

/// An input's errors.
#[derive(Debug, Clone, Copy, Default)]
struct Trouble {
    /// In a row.
    errors: usize,
    /// It is left alone until then.
    rests_until: Option<Instant>,
    /// This has been said.
    told: bool,
}

/// How long a worker polls in vain before it sleeps.
///
/// Waking up costs a packet some ten microseconds, polling costs the processor. A packet that came soon enough after the
/// worker had fallen asleep says that a longer look would have caught it: the next one is twice as long, up to `most`.
/// One that came later halves it. Traffic with pauses shorter than `most` is thus soon served without sleeping, and a
/// silent interface costs little.
#[derive(Debug, Clone, Copy)]
struct Patience {
    most: Duration,
    now: Duration,
}

impl Patience {
    fn new(most: Duration) -> Patience {
        Patience { most, now: most.min(SPIN) }
    }

    /// The worker slept, and there was a packet so long after the last one.
    fn slept(&mut self, pause: Duration) {
        self.now = match pause < self.most {
            true => (self.now * 2).clamp(SPIN.min(self.most), self.most),
            false => (self.now / 2).max(SPIN.min(self.most)),
        };
    }
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread that serves `inputs`, and polls them in vain for `poll` at most before it sleeps. All workers count
    /// time from the same `epoch`, since they share meters.
    pub fn start(
        name: &str,
        pipeline: Pipeline,
        ports: Ports,
        inputs: Vec<Input>,
        epoch: Instant,
        poll: Duration,
    ) -> io::Result<Worker> {
        let poller = Poller::new()?;
        for (token, input) in inputs.iter().enumerate() {
            if let Some(fd) = port(&ports, *input).fd() {
                poller.add(fd, token as u64)?;
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let waker = poller.waker();
        pipeline.mailbox().wake_with(poller.waker());
        let patience = Patience::new(poll);
        let trouble = vec![Trouble::default(); inputs.len()];
        let stop_run = Arc::clone(&stop);
        let run =
            Run { pipeline, ports, inputs, poller, stop: stop_run, epoch, patience, trouble, failures: 0 };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run.run())?;
        Ok(Worker { stop, waker, thread: Some(thread) })
    }

    /// Ends the thread after the batch it is working on.
    pub fn stop(&mut self) {
        self.stop.store(true, Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a user plane worker ended by a panic");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn port(ports: &Ports, input: Input) -> &dyn pktio::Port {
    match input {
        Input::N3 => &*ports.n3,
        Input::N6(network) => &*ports.n6[network],
    }
}

struct Run {
    pipeline: Pipeline,
    ports: Ports,
    inputs: Vec<Input>,
    poller: Poller,
    stop: Arc<AtomicBool>,
    epoch: Instant,
    patience: Patience,
    /// Of each input.
    trouble: Vec<Trouble>,
    /// Batches that ended by a panic.
    failures: u64,
}

impl Run {
    fn run(mut self) {
        let mut batch = Batch::new(BATCH, PACKET);
        let deaf = self.inputs.iter().any(|input| port(&self.ports, *input).fd().is_none());
        let mut last_packet = net::time::now_std();
        let mut last_look = last_packet;
        let mut woken = None;
        while !self.stop.load(Relaxed) {
            let mut busy = false;
            for at in 0..self.inputs.len() {
                busy |= !self.rests(at, last_look) && self.turn(at, &mut batch);
            }
            let now = net::time::now_std();
            last_look = now;
            let now_ns = now.duration_since(self.epoch).as_nanos() as u64;
            let commands = AssertUnwindSafe(|| self.pipeline.commands(now_ns, &mut self.ports));
            if catch_unwind(commands).is_err() {
                self.failed(&mut batch);
            }
            if busy {
                if let Some(woken) = woken.take() {
                    self.patience.slept(Instant::duration_since(&woken, last_packet));
                }
                last_packet = now;
                continue;
            }
            let idle = now.duration_since(last_packet);
            if idle < if deaf { DEAF_SPIN.max(self.patience.most) } else { self.patience.now } {
                std::hint::spin_loop();
                continue;
            }
            // What a port could not send yet it sends when it is asked again.
            let timeout_ms = match () {
                () if deaf || self.unsent() => Some(1),
                () if self.trouble.iter().any(|trouble| trouble.rests_until.is_some()) => {
                    Some(REST.as_millis() as _)
                }
                () => None,
            };
            if let Err(error) = self.poller.wait(timeout_ms, |_| ()) {
                tracing::error!(%error, "a user plane worker cannot wait for packets; it looks for them");
                net::time::sleep_thread(Duration::from_millis(1));
            }
            let now = net::time::now_std();
            (last_look, woken) = (now, Some(now));
        }
    }

    fn unsent(&self) -> bool {
        self.ports.n3.unsent() || self.ports.n6.iter().any(|port| port.unsent())
    }

    /// Whether an input is left alone. When its time is over it is waited for again.
    #[inline]
    fn rests(&mut self, at: usize, now: Instant) -> bool {
        let Some(until) = self.trouble[at].rests_until else { return false };
        if now < until {
            return true;
        }
        // One more error and it rests again.
        self.trouble[at] = Trouble { errors: MAX_ERRORS - 1, rests_until: None, told: true };
        if let Some(fd) = port(&self.ports, self.inputs[at]).fd() {
            let _ = self.poller.add(fd, at as u64);
        }
        false
    }

    /// Serves one input; whether it had packets.
    fn turn(&mut self, at: usize, batch: &mut Batch) -> bool {
        let input = self.inputs[at];
        match catch_unwind(AssertUnwindSafe(|| self.serve(input, batch))) {
            Ok(Ok(busy)) => {
                if self.trouble[at].errors > 0 {
                    if self.trouble[at].told {
                        tracing::info!(?input, "the user plane serves this interface again");
                    }
                    self.trouble[at] = Trouble::default();
                }
                busy
            }
            Ok(Err(error)) => {
                self.error(at, &error.to_string());
                false
            }
            Err(_) => {
                self.failed(batch);
                self.error(at, "a defect of the packet path");
                true
            }
        }
    }

    /// Notes an error of an input, which rests after many in a row.
    #[cold]
    fn error(&mut self, at: usize, error: &str) {
        let (trouble, input) = (&mut self.trouble[at], self.inputs[at]);
        trouble.errors += 1;
        if trouble.errors < MAX_ERRORS {
            return;
        }
        trouble.rests_until = Some(net::time::now_std() + REST);
        if !std::mem::replace(&mut trouble.told, true) {
            tracing::error!(
                error,
                ?input,
                "the user plane cannot serve this interface; it tries again each second"
            );
        }
        if let Some(fd) = port(&self.ports, input).fd() {
            // Not being able to remove it leaves a worker that does not sleep, and nothing to do about it.
            let _ = self.poller.remove(fd);
        }
    }

    /// A batch ended by a panic: it is lost, and the next one is not.
    #[cold]
    fn failed(&mut self, batch: &mut Batch) {
        self.pipeline.recover(batch.len());
        batch.clear();
        self.failures += 1;
        if self.failures.is_power_of_two() {
            tracing::error!(batches = self.failures, "the packet path failed at a batch, which is lost");
        }
    }

    fn serve(&mut self, input: Input, batch: &mut Batch) -> io::Result<bool> {
        for round in 0..BUDGET {
            let received = match input {
                Input::N3 => self.ports.n3.receive(batch)?,
                Input::N6(network) => self.ports.n6[network].receive(batch)?,
            };
            if received == 0 {
                return Ok(round > 0);
            }
            let now_ns = net::time::now_std().duration_since(self.epoch).as_nanos() as u64;
            self.pipeline.process(input, batch, now_ns, &mut self.ports);
            if received < batch.capacity() {
                break;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_looks_longer_while_that_catches_packets() {
        let us = Duration::from_micros;
        let mut patience = Patience::new(us(1000));
        assert_eq!(patience.now, SPIN);
        for _ in 0..10 {
            patience.slept(us(400));
        }
        assert_eq!(patience.now, us(1000));
        for _ in 0..10 {
            patience.slept(us(5000));
        }
        assert_eq!(patience.now, SPIN, "a silent interface");

        let mut none = Patience::new(Duration::ZERO);
        none.slept(us(1));
        assert_eq!(none.now, Duration::ZERO, "never polls in vain");
    }
}
