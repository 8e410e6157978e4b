//! A node on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use net::time::{self, Duration};
use path::{Graph, Ports, Worker};
use pktio::crossing::Crossed;
use pktio::poll::{Poller, Waker};
use pktio::{Pool, VECTOR, Vector};

use super::network::Way;
use crate::machine;

/// A node, where it runs, and how.
pub(crate) struct Placed<G> {
    /// Name of its thread.
    pub(crate) name: String,
    /// The core on which it stays; without one the system chooses.
    pub(crate) core: Option<usize>,
    pub(crate) graph: G,
    pub(crate) ports: Ports,
    /// Numbers of the interfaces that it serves.
    pub(crate) inputs: Vec<usize>,
    pub(crate) mode: Mode,
}

/// How a node waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// A wait of epoll for each datagram.
    PerCall,
    /// The engine's worker, which polls for so long before it sleeps.
    Worker(Duration),
    /// The same, on a core with other nodes: while it has nothing to do, they may run.
    Yielding(Duration),
}

impl Mode {
    /// How nodes on cores of their own wait with a way between them.
    pub(crate) fn of(way: Way) -> Mode {
        if way == Way::PerCall { Mode::PerCall } else { Mode::Worker(way.poll()) }
    }
}

/// A node that runs until this is dropped.
pub(crate) enum Serving {
    Worker { _worker: Worker },
    PerCall { stop: Arc<AtomicBool>, waker: Waker, thread: Option<JoinHandle<()>> },
}

impl Serving {
    /// Starts a node. One with an input that cannot be waited for has a worker, whatever its mode.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start<G: Graph + 'static>(placed: Placed<G>) -> anyhow::Result<Serving> {
        let Placed { name, core, graph, ports, inputs, mode } = placed;
        let plan = |poll| path::Plan {
            name: name.clone(),
            core,
            inputs: inputs.clone(),
            poll,
            realtime: false,
            shared: None,
        };
        let worker = match mode {
            Mode::PerCall if inputs.iter().all(|input| ports[*input].fd().is_some()) => {
                return Serving::per_call(&name, core, graph, ports, inputs);
            }
            Mode::PerCall => Worker::start_as(plan(Duration::ZERO), graph, ports),
            Mode::Worker(poll) => Worker::start_as(plan(poll), graph, ports),
            Mode::Yielding(poll) => Worker::start_as(plan(poll), Yielding { graph, busy: false }, ports),
        };
        Ok(Serving::Worker { _worker: worker? })
    }

    /// The loop of the paper's GTP-U task: a wait, a datagram.
    fn per_call<G: Graph + 'static>(
        name: &str,
        core: Option<usize>,
        mut graph: G,
        mut ports: Ports,
        inputs: Vec<usize>,
    ) -> anyhow::Result<Serving> {
        let mut poller = Poller::new()?;
        for input in &inputs {
            if let Some(fd) = ports[*input].fd() {
                poller.add(fd, *input as u64)?;
            }
        }
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), poller.waker());
        let stopped = Arc::clone(&stop);
        graph.wake_with(poller.waker());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            core.map(|core| machine::pin(&[core]));
            let mut vector = Vector::of(graph.home());
            while !stopped.load(Relaxed) {
                let mut readable = [false; VECTOR];
                let noted = |input: u64| {
                    if let Some(one) = readable.get_mut(input as usize) {
                        *one = true;
                    }
                };
                if poller.wait(None, noted).is_err() {
                    return;
                }
                graph.turn(time::now_ns(), &mut ports);
                for input in &inputs {
                    if readable[*input] && ports[*input].receive(&mut vector).is_ok_and(|count| count > 0) {
                        graph.process(*input, &mut vector, time::now_ns(), &mut ports);
                        vector.clear();
                    }
                }
            }
        })?;
        Ok(Serving::PerCall { stop, waker, thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Serving::PerCall { stop, waker, thread } = self {
            stop.store(true, Relaxed);
            waker.wake();
            if let Some(thread) = thread.take() {
                // A panic has been reported already; its samples are missing.
                let _ = thread.join();
            }
        }
    }
}

/// A node that gives its core to others while it has nothing to do.
struct Yielding<G> {
    graph: G,
    busy: bool,
}

impl<G: Graph> Graph for Yielding<G> {
    fn home(&self) -> &Arc<dyn Pool> {
        self.graph.home()
    }

    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports) {
        self.busy = true;
        self.graph.process(input, vector, now_ns, ports);
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        let due = self.graph.turn(now_ns, ports);
        if !std::mem::take(&mut self.busy) {
            std::thread::yield_now();
        }
        due
    }

    fn owners(&self, input: usize, vector: &Vector, workers: usize, owners: &mut [u8; VECTOR]) {
        self.graph.owners(input, vector, workers, owners);
    }

    fn crossed(&mut self, input: usize, packets: Crossed) {
        self.graph.crossed(input, packets);
    }

    fn recover(&mut self, lost: usize) {
        self.graph.recover(lost);
    }

    fn wake_with(&mut self, waker: Waker) {
        self.graph.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        self.graph.interface_name(number)
    }
}
