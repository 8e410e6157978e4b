//! Counters of the packet path and their JSON form.

use path::NodeCounts;
use serde_json::{Map, Value, json};
use telemetry::DropReason;
use telemetry::worker::{Directions, Drops, Single, Totals};

use crate::interfaces::{Interface, Interfaces};
use crate::pipeline::graph::WAYS;

/// Counters of one worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerStats {
    /// By number of the interface: packets received (uplink) and sent (downlink). Where there are tunnels these are
    /// GTP-U messages, in octets of UDP payload.
    pub interfaces: Box<[Directions]>,
    /// By number of the interface: packets sent that lay in other memory than the interface's and were copied.
    pub copied: Box<[Single]>,
    /// Dropped packets by reason.
    pub drops: Drops,
    /// What the nodes of the graph have done, in the order of [`NODES`](crate::pipeline::graph::NODES).
    pub nodes: [NodeCounts; WAYS],
    /// GTP-U Echo Requests answered.
    pub echo_requests: Single,
    /// Error Indications sent.
    pub error_indications_sent: Single,
    /// Error Indications received.
    pub error_indications_received: Single,
    /// Other GTP-U signalling received that needs no answer.
    pub signalling: Single,
}

impl WorkerStats {
    /// Counters for these interfaces.
    pub fn new(interfaces: &Interfaces) -> WorkerStats {
        let copied = interfaces.iter().map(|_| Single::default()).collect();
        let interfaces = interfaces.iter().map(|_| Directions::default()).collect();
        WorkerStats { interfaces, copied, ..WorkerStats::default() }
    }
}

/// Sum over workers.
fn sum(workers: &[WorkerStats], value: impl Fn(&WorkerStats) -> Totals) -> Value {
    let total: Totals = workers.iter().map(value).sum();
    json!({"packets": total.packets, "bytes": total.bytes})
}

/// Packets dropped for one reason by all workers.
pub fn drops(workers: &[WorkerStats], reason: DropReason) -> u64 {
    workers.iter().map(|worker| worker.drops.get(reason)).sum()
}

/// The counters of an interface.
fn interface(workers: &[WorkerStats], number: usize, interface: &Interface) -> (String, Value) {
    let counts = |direction: fn(&Directions) -> Totals| {
        sum(workers, |worker| worker.interfaces.get(number).map(direction).unwrap_or_default())
    };
    let mut sent = counts(|traffic| traffic.downlink.get());
    sent["copied"] =
        workers.iter().filter_map(|worker| worker.copied.get(number)).map(Single::get).sum::<u64>().into();
    let counts = json!({
        "role": interface.role().name(),
        "received": counts(|traffic| traffic.uplink.get()),
        "sent": sent,
    });
    (interface.name().to_owned(), counts)
}

/// The workers' part of `GET /stats`. Lists only reasons that have occurred.
pub fn json(workers: &[WorkerStats], interfaces: &Interfaces) -> Value {
    let by_reason: Map<String, Value> = DropReason::ALL
        .iter()
        .map(|reason| (reason.name().to_owned(), drops(workers, *reason)))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name, count.into()))
        .collect();
    let by_name: Map<String, Value> =
        interfaces.iter().enumerate().map(|(number, own)| interface(workers, number, own)).collect();
    let count = |value: fn(&WorkerStats) -> &Single| -> u64 {
        workers.iter().map(|worker| value(worker).get()).sum()
    };
    json!({
        "interfaces": by_name,
        "drops": by_reason,
        "gtpu": {
            "echo_requests": count(|w| &w.echo_requests),
            "error_indications_sent": count(|w| &w.error_indications_sent),
            "error_indications_received": count(|w| &w.error_indications_received),
            "other_signalling": count(|w| &w.signalling),
        },
    })
}
