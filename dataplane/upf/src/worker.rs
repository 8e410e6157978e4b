//! Worker threads: each receives batches from its inputs and runs them through its pipeline.
//!
//! While there is traffic a worker polls; when nothing has come for some microseconds it gives the processor back and
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
/// How long inputs are polled in vain before the worker sleeps: longer than the pauses within a burst, much shorter
/// than what a person or a battery notices.
const SPIN: Duration = Duration::from_micros(30);
/// How long inputs that cannot wake us are polled without pause.
const PATIENCE: Duration = Duration::from_millis(100);
/// Receive errors in a row after which an input is given up: it would otherwise keep its worker spinning.
const MAX_ERRORS: usize = 64;

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread that serves `inputs`. All workers count time from the same `epoch`, since they share meters.
    pub fn start(
        name: &str,
        pipeline: Pipeline,
        ports: Ports,
        inputs: Vec<Input>,
        epoch: Instant,
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
        let run = Run { pipeline, ports, inputs, poller, stop: Arc::clone(&stop), epoch };
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
}

impl Run {
    fn run(mut self) {
        let mut batch = Batch::new(BATCH, PACKET);
        let mut errors = vec![0; self.inputs.len()];
        let deaf = self.inputs.iter().any(|input| port(&self.ports, *input).fd().is_none());
        let mut last_packet = net::time::now_std();
        while !self.stop.load(Relaxed) {
            let mut busy = false;
            for (at, errors) in errors.iter_mut().enumerate().filter(|(_, errors)| **errors < MAX_ERRORS) {
                busy |= self.turn(at, &mut batch, errors);
            }
            let now = net::time::now_std();
            self.pipeline.commands(now.duration_since(self.epoch).as_nanos() as u64, &mut self.ports);
            if busy {
                last_packet = now;
                continue;
            }
            let idle = now.duration_since(last_packet);
            let timeout_ms = match () {
                () if idle < SPIN || deaf && idle < PATIENCE => {
                    std::hint::spin_loop();
                    continue;
                }
                () if deaf => Some(1),
                () => None,
            };
            if let Err(error) = self.poller.wait(timeout_ms, |_| ()) {
                tracing::error!(%error, "a user plane worker cannot wait for packets and ends");
                return;
            }
        }
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
