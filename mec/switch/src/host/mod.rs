//! The host path: workers of the forwarding engine between the switch's ports.
//!
//! Each worker serves its share of the queues of every interface, with its own cache of translations ([`cache`]); all share the
//! pipeline. A change of entries is seen by a worker before its next vector, and within one as soon as a packet has to be
//! translated: no packet is treated by old entries after another was treated by new ones.

pub mod cache;
pub mod graph;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use path::calls::{self, Caller};
use path::{Plan, Ports, Worker};
use pktio::interface::WorkersConfig;
use pktio::{Pool, Slab, VECTOR};
use telemetry::worker::Drops;
use tokio::sync::Semaphore;

use crate::core::{Switch, Workers};
use graph::{CacheCounts, SwitchGraph};

/// How long each worker may take to answer: it does so between two vectors.
const PATIENCE: Duration = Duration::from_secs(2);
/// Frames of a worker's own, for copies: a vector for each port, one for what comes by sockets, and one for what has waited.
const OWN_FRAMES: usize = 5;
/// How long an interface is waited for that has not sent everything yet, and how often.
const DRAIN: Duration = Duration::from_millis(1);
const DRAIN_TRIES: u32 = 10;
/// Octets of controllers' frames that may wait for the worker that sends them, which does so between two vectors.
const UNDER_WAY: usize = 1 << 20;
/// What a frame takes beside its octets, so that small ones do not come in endless numbers.
const PER_FRAME: usize = 256;
/// Longest frame: with the largest MTU of Ethernet devices here, and two tags.
pub(crate) const LONGEST: usize = 9018;

/// The running workers. They end when this is dropped.
pub struct Host {
    _workers: Vec<Worker>,
    /// Drops of each worker by reason.
    pub drops: Vec<Arc<Drops>>,
}

/// The ports of a worker, and those from which it receives.
pub struct PortSet {
    /// The switch's ports, in their order.
    pub ports: Ports,
    /// Positions of those that it reads.
    pub inputs: Vec<usize>,
}

/// What others reach the workers by.
struct Reach {
    callers: Vec<Caller<SwitchGraph>>,
    counts: Vec<Arc<CacheCounts>>,
    /// Room for octets of controllers' frames, of which each takes [`PER_FRAME`] more.
    under_way: Arc<Semaphore>,
    switch: Weak<Switch>,
}

impl Reach {
    /// Hands a controller's frame to the first worker; `false` if it is lost.
    fn post(
        &self,
        frame: &[u8],
        work: impl FnOnce(&mut SwitchGraph, &[u8], u64, &mut Ports) + Send + 'static,
    ) -> bool {
        let Some(caller) = self.callers.first() else { return false };
        let Ok(room) = Arc::clone(&self.under_way).try_acquire_many_owned((frame.len() + PER_FRAME) as u32)
        else {
            return false;
        };
        let frame = frame.to_vec();
        let call = move |graph: &mut SwitchGraph, now_ns, ports: &mut Ports| {
            work(graph, &frame, now_ns, ports);
            drop(room);
        };
        caller.post(call).is_ok()
    }
}

impl Workers for Reach {
    fn settle(&self) -> bool {
        // One that has ended treats no packet; one that does not answer in time is not waited for.
        let has_settled = |caller: &Caller<SwitchGraph>| {
            let settle = |graph: &mut SwitchGraph, now_ns, ports: &mut Ports| {
                graph.settle(now_ns);
                // Before entries change, packets that may go have gone.
                graph.let_go(now_ns, ports, true);
            };
            caller.call(PATIENCE, settle).is_ok() || caller.is_gone()
        };
        // All of them are asked, whatever one says.
        let all = || self.callers.iter().filter(|caller| !has_settled(caller)).count() == 0;
        // A worker that did not see a token goes through its inputs once more before it lets packets go.
        let has_packets = self.switch.upgrade().is_some_and(|switch| switch.hold().has_packets());
        if has_packets { all() && all() } else { all() }
    }

    fn drain(&self) {
        let has_left = |caller: &Caller<SwitchGraph>| {
            let unsent = |_: &mut SwitchGraph, _, ports: &mut Ports| ports.iter().any(|port| port.unsent());
            !caller.call(PATIENCE, unsent).unwrap_or(false)
        };
        for caller in &self.callers {
            for _ in 0..DRAIN_TRIES {
                if has_left(caller) {
                    break;
                }
                net::time::sleep_thread(DRAIN);
            }
        }
    }

    fn send(&self, port: u32, frame: &[u8]) -> bool {
        self.post(frame, move |graph, frame, _, ports| graph.send(port, frame, ports))
    }

    fn send_all(&self, frames: Vec<(u32, Vec<u8>)>) {
        if let Some(caller) = self.callers.first() {
            // One that has ended sends nothing.
            let _ = caller.post(move |graph, _, ports| graph.send_all(&frames, ports));
        }
    }

    fn hold(&self, queue: u32, frame: &[u8]) -> bool {
        self.post(frame, move |graph, frame, now_ns, _| graph.hold(queue, frame, now_ns))
    }

    fn look(&self, worker: usize) {
        if let Some(caller) = self.callers.get(worker) {
            // It looks in every turn; one that has ended has nothing.
            let _ = caller.post(|_, _, _| ());
        }
    }

    fn caches(&self) -> Vec<(&'static str, u64)> {
        self.settle();
        let sum = |of: fn(&CacheCounts) -> u64| self.counts.iter().map(|counts| of(counts)).sum();
        vec![
            ("translations", sum(|counts| counts.entries.load(Relaxed))),
            ("kinds", sum(|counts| counts.kinds.load(Relaxed))),
            ("hits", sum(|counts| counts.hits.load(Relaxed))),
            ("misses", sum(|counts| counts.misses.load(Relaxed))),
            ("overflows", sum(|counts| counts.overflows.load(Relaxed))),
        ]
    }
}

/// A graph for a worker with these ports, and what it is reached by.
pub fn graph(
    switch: &Arc<Switch>,
    ports: &Ports,
) -> (SwitchGraph, Caller<SwitchGraph>, Arc<CacheCounts>, Arc<Drops>) {
    let (caller, calls) = calls::channel();
    let (counts, drops) = (Arc::<CacheCounts>::default(), Arc::<Drops>::default());
    let frames = OWN_FRAMES * VECTOR + ports.len() * VECTOR;
    let home: Arc<dyn Pool> = pktio::home(ports).unwrap_or_else(|| Slab::new(frames, LONGEST));
    let graph = SwitchGraph::new(home, Arc::clone(switch), calls, Arc::clone(&counts), Arc::clone(&drops));
    (graph, caller, counts, drops)
}

/// Starts a worker for each set of ports, and gives the switch its data path.
///
/// # Errors
/// As [`Worker::start_as`].
pub fn start(switch: &Arc<Switch>, sets: Vec<PortSet>, config: &WorkersConfig) -> std::io::Result<Host> {
    let (mut workers, mut callers, mut counts, mut all_drops) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, PortSet { ports, inputs }) in sets.into_iter().enumerate() {
        let (graph, caller, cache, drops) = graph(switch, &ports);
        let plan = Plan {
            name: format!("switch-{number}"),
            core: config.cores.get(number).copied(),
            inputs,
            poll: Duration::from_micros(config.poll_us),
            realtime: config.realtime,
            shared: None,
        };
        workers.push(Worker::start_as(plan, graph, ports)?);
        callers.push(caller);
        counts.push(cache);
        all_drops.push(drops);
    }
    let under_way = Arc::new(Semaphore::new(UNDER_WAY));
    switch.set_workers(Box::new(Reach { callers, counts, under_way, switch: Arc::downgrade(switch) }));
    Ok(Host { _workers: workers, drops: all_drops })
}
