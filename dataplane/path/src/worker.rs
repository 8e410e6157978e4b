//! Worker threads: each receives vectors from its inputs and runs them through its graph.
//!
//! A worker polls while there is traffic. When nothing has come for a while ([`Patience`]), it sleeps until an
//! input has packets, somebody [wakes](pktio::poll::Waker) it, or its graph's next turn is due. Inputs that cannot wake
//! a thread, such as DPDK's, are looked at between naps of [`NAP`].
//!
//! Workers may be connected ([`pktio::crossing`]): each then gives the packets that belong to others ([`Graph::owners`]) to
//! these, and processes what they give to it like packets of its own inputs.
//!
//! A worker ends only when it is told to, as otherwise the packets of a direction would be lost silently. A
//! panic costs the current vector. An input with errors is not read for a while and then tried again.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use pktio::crossing::{self, Crossed, Crossing, Parcel};
use pktio::interface::{WorkerPorts, WorkersConfig};
use pktio::poll::{self, DEAF_SPIN, NAP, Patience, Poller, Waker};
use pktio::{VECTOR, Vector};

use crate::{Graph, Ports};

/// Most vectors taken from one input before the others get their turn.
const BUDGET: usize = 16;
/// Sleep while a port has packets that it could not send; each time twice as long, as long as nothing else happens: a neighbour that
/// does not answer may keep them for seconds.
const RETRY: Duration = Duration::from_millis(1);
/// The longest of these.
const LONGEST_RETRY: Duration = Duration::from_millis(64);
/// Errors in a row after which an input is not read for a while: otherwise its worker would spin.
const MAX_ERRORS: usize = 64;
/// How long such an input is not read, and time to the next turn after one that ended by a panic.
const SUSPENSION: Duration = Duration::from_secs(1);

/// Time between two readings of the clock.
fn between(earlier_ns: u64, later_ns: u64) -> Duration {
    Duration::from_nanos(later_ns.saturating_sub(earlier_ns))
}

/// Errors of an input.
#[derive(Debug, Clone, Copy, Default)]
struct InputErrors {
    /// Errors in a row.
    in_a_row: usize,
    /// The input is not read until then.
    suspended_until_ns: Option<u64>,
    /// Whether this has been logged.
    logged: bool,
}

/// How a worker runs.
pub struct Plan {
    /// Name of its thread.
    pub name: String,
    /// The core on which it stays; without one the system chooses.
    pub core: Option<usize>,
    /// Numbers of the interfaces that it serves.
    pub inputs: Vec<usize>,
    /// Most time that it polls before it sleeps.
    pub poll: Duration,
    /// Whether it runs before threads without real-time priority.
    pub realtime: bool,
    /// Its connection with other workers.
    pub shared: Option<Shared>,
}

/// How a worker shares packets with others.
pub struct Shared {
    /// Its ends of the rings.
    pub crossing: Crossing,
    /// Numbers of the interfaces that receive packets of any worker. All packets of other interfaces are the receiver's own.
    pub inputs: Vec<usize>,
}

/// Starts a worker for each set of ports that [`pktio::interface::open`] has opened, with the next one of `graphs`, and connects those
/// that receive each other's packets.
///
/// # Errors
/// As [`Worker::start_as`].
pub fn start_all<G: Graph + 'static>(
    workers: Vec<WorkerPorts>,
    config: &WorkersConfig,
    graphs: impl IntoIterator<Item = G>,
) -> io::Result<Vec<Worker>> {
    let connected = workers.iter().any(|worker| !worker.crossing.is_empty());
    let mut crossings = crossing::connect(if connected { workers.len() } else { 0 }).into_iter();
    let start = |(number, (worker, graph))| {
        let WorkerPorts { name, ports, inputs, crossing } = worker;
        let shared = crossings.next().map(|ends| Shared { crossing: ends, inputs: crossing });
        let (core, poll) = (config.cores.get(number).copied(), Duration::from_micros(config.poll_us));
        let realtime = config.realtime;
        Worker::start_as(Plan { name, core, inputs, poll, realtime, shared }, graph, ports)
    };
    workers.into_iter().zip(graphs).enumerate().map(start).collect()
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread that serves the interfaces `inputs` and polls for at most `poll` before it sleeps.
    ///
    /// # Errors
    /// The system gives no descriptor or no thread; an input is not among the ports.
    pub fn start<G: Graph + 'static>(
        name: &str,
        graph: G,
        ports: Ports,
        inputs: Vec<usize>,
        poll: Duration,
    ) -> io::Result<Worker> {
        let plan = Plan { name: name.to_owned(), core: None, inputs, poll, realtime: false, shared: None };
        Worker::start_as(plan, graph, ports)
    }

    /// As [`Worker::start`], with all that can be chosen.
    ///
    /// # Errors
    /// As there; the thread may not use its core, or have its priority.
    pub fn start_as<G: Graph + 'static>(plan: Plan, mut graph: G, mut ports: Ports) -> io::Result<Worker> {
        let Plan { name, core, inputs, poll, realtime, shared } = plan;
        if inputs.iter().any(|input| *input >= ports.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let poller = Poller::new()?;
        for (token, input) in inputs.iter().enumerate() {
            if let Some(fd) = ports[*input].fd() {
                poller.add(fd, token as u64)?;
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let waker = poller.waker();
        graph.wake_with(poller.waker());
        ports.iter_mut().for_each(|port| port.wake_with(&waker));
        let patience = Patience::new(poll);
        let input_errors = vec![InputErrors::default(); inputs.len()];
        let crosses = |input| shared.as_ref().is_some_and(|shared| shared.inputs.contains(input));
        let crosses = inputs.iter().map(crosses).collect();
        let crossing = shared.map(|shared| shared.crossing);
        if let Some(crossing) = &crossing {
            crossing.wake_with(poller.waker());
        }
        let stop_run = Arc::clone(&stop);
        let run = Run {
            graph,
            ports,
            inputs,
            crosses,
            crossing,
            poller,
            stop: stop_run,
            patience,
            retry: RETRY,
            input_errors,
            failures: 0,
        };
        let (report, prepared) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let outcome = prepare(core, realtime);
            let may_run = outcome.is_ok();
            let _ = report.send(outcome);
            if may_run {
                run.run();
            }
        })?;
        prepared.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(Worker { stop, waker, thread: Some(thread) })
    }

    /// Ends the thread after the vector that it is processing.
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

/// Gives the calling thread its core and its priority.
fn prepare(core: Option<usize>, realtime: bool) -> io::Result<()> {
    core.map_or(Ok(()), poll::stay_on)?;
    if !realtime {
        return Ok(());
    }
    poll::run_first().map_err(|error| {
        let advice =
            "set `realtime` of the workers to false, or allow it (CAP_SYS_NICE, systemd's LimitRTPRIO=1)";
        io::Error::new(error.kind(), format!("no real-time priority: {error}; {advice}"))
    })
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Run<G> {
    graph: G,
    /// The connection with other workers. Dropped before `ports`, whose devices can then take back all their memory.
    crossing: Option<Crossing>,
    ports: Ports,
    inputs: Vec<usize>,
    /// Whether the packets of each input may belong to other workers.
    crosses: Vec<bool>,
    poller: Poller,
    stop: Arc<AtomicBool>,
    patience: Patience,
    /// The next sleep if a port has packets that it could not send.
    retry: Duration,
    /// Errors of each input.
    input_errors: Vec<InputErrors>,
    /// Number of vectors that ended by a panic.
    failures: u64,
}

impl<G: Graph> Run<G> {
    fn run(mut self) {
        let mut vector = Vector::of(self.graph.home());
        if let Some(home) = pktio::home(&self.ports) {
            vector.settle(&home);
        }
        let deaf = self.inputs.iter().any(|input| self.ports[*input].fd().is_none());
        if deaf && let Err(error) = poll::nap_precisely() {
            tracing::warn!(%error, "this thread's naps are some 50 microseconds longer than meant");
        }
        for input in &self.inputs {
            // Ports learn that this owner says when it sleeps. An error would come again before the first sleep.
            let _ = self.ports[*input].before_sleep();
        }
        let mut last_packet_ns = net::time::now_ns();
        let mut last_poll_ns = last_packet_ns;
        let mut woken_ns = None;
        while !self.stop.load(Relaxed) {
            let mut busy = false;
            for at in 0..self.inputs.len() {
                busy |= !self.is_suspended(at, last_poll_ns) && self.serve_input(at, &mut vector);
            }
            busy |= self.serve_parcels();
            if let Some(crossing) = &mut self.crossing {
                crossing.flush(false);
            }
            let now_ns = net::time::now_ns();
            last_poll_ns = now_ns;
            let turn = AssertUnwindSafe(|| self.graph.turn(now_ns, &mut self.ports));
            let next_turn_ns = catch_unwind(turn).unwrap_or_else(|_| {
                self.failed(&mut vector);
                // What is due may still be there.
                Some(now_ns + SUSPENSION.as_nanos() as u64)
            });
            if busy {
                if let Some(woken_ns) = woken_ns.take() {
                    self.patience.slept(between(last_packet_ns, woken_ns));
                }
                last_packet_ns = now_ns;
                self.retry = RETRY;
                continue;
            }
            let idle = between(last_packet_ns, now_ns);
            if idle < if deaf { DEAF_SPIN.max(self.patience.most()) } else { self.patience.now() } {
                std::hint::spin_loop();
                continue;
            }
            if let Some(crossing) = &mut self.crossing {
                crossing.flush(true);
                if !crossing.may_sleep() {
                    continue;
                }
            }
            let slept = self.sleep(deaf, now_ns, next_turn_ns);
            if let Some(crossing) = &self.crossing {
                crossing.awake();
            }
            if let Err(error) = slept {
                tracing::error!(%error, "a user plane worker cannot wait for packets; it looks for them");
                net::time::sleep_thread(Duration::from_millis(1));
            }
            last_poll_ns = net::time::now_ns();
            woken_ns = Some(last_poll_ns);
        }
    }

    /// Sleeps until an input has packets, somebody wakes the worker, or something is due.
    fn sleep(&mut self, deaf: bool, now_ns: u64, next_turn_ns: Option<u64>) -> io::Result<()> {
        for input in &self.inputs {
            self.ports[*input].before_sleep()?;
        }
        let nap = if deaf {
            Some(NAP)
        } else if self.ports.iter().any(|port| port.unsent()) {
            // A port that could not send everything sends the rest when it is called again.
            let next = (2 * self.retry).min(LONGEST_RETRY);
            Some(std::mem::replace(&mut self.retry, next))
        } else {
            self.retry = RETRY;
            None
        };
        let suspended = self.input_errors.iter().filter_map(|errors| errors.suspended_until_ns);
        let due = suspended.chain(next_turn_ns).min().map(|due_ns| between(now_ns, due_ns));
        match nap.into_iter().chain(due).min() {
            Some(timeout) => self.poller.wait_for(timeout, |_| ()),
            None => self.poller.wait(None, |_| ()),
        }
        .map(drop)
    }

    /// Whether an input is not to be read at present. When its time is over, the worker waits for it again.
    #[inline]
    fn is_suspended(&mut self, at: usize, now_ns: u64) -> bool {
        let Some(until_ns) = self.input_errors[at].suspended_until_ns else { return false };
        if now_ns < until_ns {
            return true;
        }
        // After one more error it is suspended again.
        self.input_errors[at] =
            InputErrors { in_a_row: MAX_ERRORS - 1, suspended_until_ns: None, logged: true };
        if let Some(fd) = self.ports[self.inputs[at]].fd() {
            let _ = self.poller.add(fd, at as u64);
        }
        false
    }

    /// Serves one input; returns whether it had packets.
    fn serve_input(&mut self, at: usize, vector: &mut Vector) -> bool {
        let input = self.inputs[at];
        match catch_unwind(AssertUnwindSafe(|| self.serve(at, vector))) {
            Ok(Ok(busy)) => {
                if self.input_errors[at].in_a_row > 0 {
                    if self.input_errors[at].logged {
                        let input = self.graph.interface_name(input);
                        tracing::info!(input, "the user plane serves this interface again");
                    }
                    self.input_errors[at] = InputErrors::default();
                }
                busy
            }
            Ok(Err(error)) => {
                self.error(at, &error.to_string());
                false
            }
            Err(_) => {
                self.failed(vector);
                self.error(at, "a defect of the packet path");
                true
            }
        }
    }

    /// Processes parcels of other workers; returns whether there were any.
    fn serve_parcels(&mut self) -> bool {
        for round in 0..BUDGET {
            let Some((from, mut parcel)) = self.crossing.as_mut().and_then(Crossing::receive) else {
                return round > 0;
            };
            let Parcel { vector, input } = &mut parcel;
            let process = || self.graph.process(*input, vector, net::time::now_ns(), &mut self.ports);
            if catch_unwind(AssertUnwindSafe(process)).is_err() {
                self.failed(vector);
            }
            if let Some(crossing) = &mut self.crossing {
                crossing.done(from, parcel);
            }
        }
        true
    }

    /// Notes an error of an input; after many in a row the input is not read for a while.
    #[cold]
    fn error(&mut self, at: usize, error: &str) {
        let (errors, input) = (&mut self.input_errors[at], self.inputs[at]);
        errors.in_a_row += 1;
        if errors.in_a_row < MAX_ERRORS {
            return;
        }
        errors.suspended_until_ns = Some(net::time::now_ns() + SUSPENSION.as_nanos() as u64);
        if !std::mem::replace(&mut errors.logged, true) {
            tracing::error!(
                error,
                input = self.graph.interface_name(input),
                "the user plane cannot serve this interface; it tries again each second"
            );
        }
        if let Some(fd) = self.ports[input].fd() {
            // If it cannot be removed, the worker does not sleep; nothing else can be done.
            let _ = self.poller.remove(fd);
        }
    }

    /// Handles a vector that ended by a panic: its packets are lost, later ones are not.
    #[cold]
    fn failed(&mut self, vector: &mut Vector) {
        self.graph.recover(vector.len());
        vector.clear();
        self.failures += 1;
        if self.failures.is_power_of_two() {
            tracing::error!(vectors = self.failures, "the packet path failed at a vector, which is lost");
        }
    }

    fn serve(&mut self, at: usize, vector: &mut Vector) -> io::Result<bool> {
        let input = self.inputs[at];
        for round in 0..BUDGET {
            let received = self.ports[input].receive(vector)?;
            if received == 0 {
                return Ok(round > 0);
            }
            if self.crosses[at] {
                self.distribute(input, vector);
            }
            if !vector.is_empty() {
                self.graph.process(input, vector, net::time::now_ns(), &mut self.ports);
            }
            vector.clear();
            if received < vector.capacity() {
                break;
            }
        }
        Ok(true)
    }

    /// Gives the packets of other workers to these. This worker's own ones stay in the vector.
    #[inline]
    fn distribute(&mut self, input: usize, vector: &mut Vector) {
        let Some(crossing) = &mut self.crossing else { return };
        let mut owners = [crossing.own() as u8; VECTOR];
        self.graph.owners(input, vector, crossing.workers(), &mut owners);
        let crossed = crossing.distribute(vector, input, &owners);
        if crossed != Crossed::default() {
            crossing.flush(false);
            self.graph.crossed(input, crossed);
        }
    }
}
