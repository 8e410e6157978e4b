//! The forwarding engine: what every node that moves packets has in common.
//!
//! ```text
//!  interface ──receive──► Vector ──► Graph::process ──transmit──► interfaces
//!      ▲                                  │
//!      └──────── Worker: one thread, its ports, its copy of the graph
//! ```
//! A [`Graph`] says what happens to packets: a UPF's sessions, a relay's tunnels, a switch's rules. It is compiled for
//! its node, so that a packet costs no call through a pointer; a vector of up to 64 packets costs one. A [`Worker`] is a
//! thread that receives vectors from its interfaces, runs them through its own instance of the graph, and sleeps when
//! nothing comes. Workers may hand packets over to each other by rings ([`pktio::crossing`]), without a copy and in order, so that
//! all packets of a session are one worker's; what else their graphs share (tables, counters) is the graphs' own business.
//!
//! Interfaces have numbers, the positions of their ports in [`Ports`]. What a number means is up to the graph.
//!
//! A graph has *nodes*: the stages of its straight way, compiled into one another, and rare ways that some packets take. They
//! say what they are ([`Node`]) and count what they do ([`NodeCounts`]); no packet goes through a table of them.
//!
//! Read [`Graph`], then [`worker`]. `examples/reflector.rs` is a whole node in sixty lines.
#![forbid(unsafe_code)]

pub mod calls;
pub mod events;
pub mod nodes;
pub mod outputs;
pub mod worker;

use std::sync::Arc;

use pktio::crossing::Crossed;
use pktio::poll::Waker;
use pktio::{Pool, Port, VECTOR, Vector};

pub use nodes::{Node, NodeCounts, NodeTotals, Stopwatch};
pub use outputs::Outputs;
pub use pktio::poll::NAP;
pub use worker::{Plan, Shared, Worker, start_all};

/// The ports of a worker, by number of the interface.
pub type Ports = Vec<Box<dyn Port>>;

/// What a node does with packets: one instance for each worker.
pub trait Graph: Send {
    /// The memory of the packets that the graph makes. Packets that are received by copying lie there too, where no port has a
    /// pool of its own ([`pktio::home`]) or its frames are too short.
    fn home(&self) -> &Arc<dyn Pool>;

    /// Handles the packets that the interface with number `input` has received; `now_ns` is the time by
    /// `net::time::now_ns`. What the graph neither sends nor copies returns to its pool afterwards: nothing may keep a
    /// frame beyond this call.
    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports);

    /// Does what is due between vectors: commands of others, timers. Called once per round over the interfaces, and
    /// after each sleep. Returns when the next turn is due if nothing else wakes the worker: a time later than `now_ns`, or
    /// the worker does not sleep.
    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        let _ = (now_ns, ports);
        None
    }

    /// For packets that any of `workers` workers may have received: writes the number of the worker that each packet of
    /// `vector` belongs to into its place of `owners`, where this worker's own number is so far. Packets that must stay in
    /// order need the same owner.
    fn owners(&self, input: usize, vector: &Vector, workers: usize, owners: &mut [u8; VECTOR]) {
        let _ = (input, vector, workers, owners);
    }

    /// Packets that the interface with number `input` has received belong to other workers: what has become of them.
    fn crossed(&mut self, input: usize, packets: Crossed) {
        let _ = (input, packets);
    }

    /// Makes the graph ready for the next vector after a panic, which cost `lost` packets.
    fn recover(&mut self, lost: usize);

    /// Gets the handle that wakes the worker, for who has commands for its graph.
    fn wake_with(&mut self, waker: Waker) {
        drop(waker);
    }

    /// Name of an interface, for messages.
    fn interface_name(&self, number: usize) -> &str;
}
