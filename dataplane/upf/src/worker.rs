//! Worker threads: each waits for its inputs, receives batches and runs them through its pipeline.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

use pktio::Batch;
use pktio::poll::{Poller, Waker};

use crate::pipeline::{BATCH, Input, PACKET, Pipeline, Ports};

/// Batches taken from one input before the others get their turn.
const BUDGET: usize = 16;
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
        let mut ready = vec![false; self.inputs.len()];
        let mut errors = 0;
        while !self.stop.load(Relaxed) {
            let waited = self.poller.wait(None, |token| {
                if let Some(flag) = ready.get_mut(token as usize) {
                    *flag = true;
                }
            });
            if let Err(error) = waited {
                tracing::error!(%error, "a user plane worker cannot wait for packets and ends");
                return;
            }
            for (i, flag) in ready.iter_mut().enumerate() {
                if !std::mem::take(flag) {
                    continue;
                }
                let input = self.inputs[i];
                match self.serve(input, &mut batch) {
                    Ok(()) => errors = 0,
                    Err(error) => {
                        errors += 1;
                        if errors >= MAX_ERRORS {
                            tracing::error!(%error, ?input, "the user plane gives up this interface");
                            if let Some(fd) = port(&self.ports, input).fd() {
                                // Not being able to remove it leaves a spinning worker, and nothing to do about it.
                                let _ = self.poller.remove(fd);
                            }
                            errors = 0;
                        }
                    }
                }
            }
        }
    }

    fn serve(&mut self, input: Input, batch: &mut Batch) -> io::Result<()> {
        for _ in 0..BUDGET {
            let received = match input {
                Input::N3 => self.ports.n3.receive(batch)?,
                Input::N6(network) => self.ports.n6[network].receive(batch)?,
            };
            if received == 0 {
                return Ok(());
            }
            let now_ns = net::time::now_std().duration_since(self.epoch).as_nanos() as u64;
            self.pipeline.process(input, batch, now_ns, &mut self.ports);
            if received < batch.capacity() {
                return Ok(());
            }
        }
        Ok(())
    }
}
