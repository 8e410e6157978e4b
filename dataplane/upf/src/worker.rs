//! Worker threads: each receives batches from its inputs and runs them through its pipeline.
//!
//! While there is traffic a worker polls; when nothing has come for a while ([`Patience`]) it gives the processor back and
//! sleeps until an input has packets or the N4 task wakes it. An input that nobody can wait for, such as a DPDK port, is
//! polled on, ever more slowly.

use std::io;
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
/// Receive errors in a row after which an input is given up: it would otherwise keep its worker spinning.
const MAX_ERRORS: usize = 64;

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
        let run = Run { pipeline, ports, inputs, poller, stop: Arc::clone(&stop), epoch, patience };
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
}

impl Run {
    fn run(mut self) {
        let mut batch = Batch::new(BATCH, PACKET);
        let mut errors = vec![0; self.inputs.len()];
        let deaf = self.inputs.iter().any(|input| port(&self.ports, *input).fd().is_none());
        let mut last_packet = net::time::now_std();
        let mut woken = None;
        while !self.stop.load(Relaxed) {
            let mut busy = false;
            for (at, errors) in errors.iter_mut().enumerate().filter(|(_, errors)| **errors < MAX_ERRORS) {
                busy |= self.turn(at, &mut batch, errors);
            }
            let now = net::time::now_std();
            self.pipeline.commands(now.duration_since(self.epoch).as_nanos() as u64, &mut self.ports);
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
            let timeout_ms = (deaf || self.unsent()).then_some(1);
            if let Err(error) = self.poller.wait(timeout_ms, |_| ()) {
                tracing::error!(%error, "a user plane worker cannot wait for packets and ends");
                return;
            }
            woken = Some(net::time::now_std());
        }
    }

    fn unsent(&self) -> bool {
        self.ports.n3.unsent() || self.ports.n6.iter().any(|port| port.unsent())
    }

    /// Serves one input; whether it had packets.
    fn turn(&mut self, at: usize, batch: &mut Batch, errors: &mut usize) -> bool {
        let input = self.inputs[at];
        match self.serve(input, batch) {
            Ok(busy) => {
                *errors = 0;
                busy
            }
            Err(error) => {
                *errors += 1;
                if *errors >= MAX_ERRORS {
                    tracing::error!(%error, ?input, "the user plane gives up this interface");
                    if let Some(fd) = port(&self.ports, input).fd() {
                        // Not being able to remove it leaves a spinning worker, and nothing to do about it.
                        let _ = self.poller.remove(fd);
                    }
                }
                false
            }
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
