//! Counters of the packet path and their JSON form.

use serde_json::{Map, Value, json};
use telemetry::DropReason;
use telemetry::worker::{Directions, Drops, Single, Totals};

/// Counters of one worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerStats {
    /// N3, N9 and N4-u: GTP-U messages received (uplink) and sent (downlink), in octets of UDP payload.
    pub n3: Directions,
    /// N6: packets received (uplink) and sent (downlink).
    pub n6: Directions,
    /// Dropped packets by reason.
    pub drops: Drops,
    /// GTP-U Echo Requests answered.
    pub echo_requests: Single,
    /// Error Indications sent.
    pub error_indications_sent: Single,
    /// Error Indications received.
    pub error_indications_received: Single,
    /// Other GTP-U signalling received that needs no answer.
    pub signalling: Single,
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

/// The workers' part of `GET /stats`. Lists only reasons that have occurred.
pub fn json(workers: &[WorkerStats]) -> Value {
    let by_reason: Map<String, Value> = DropReason::ALL
        .iter()
        .map(|reason| (reason.name().to_owned(), drops(workers, *reason)))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name, count.into()))
        .collect();
    let count = |value: fn(&WorkerStats) -> &Single| -> u64 {
        workers.iter().map(|worker| value(worker).get()).sum()
    };
    json!({
        "interfaces": {
            "n3": {
                "received": sum(workers, |w| w.n3.uplink.get()),
                "sent": sum(workers, |w| w.n3.downlink.get()),
            },
            "n6": {
                "received": sum(workers, |w| w.n6.uplink.get()),
                "sent": sum(workers, |w| w.n6.downlink.get()),
            },
        },
        "drops": by_reason,
        "gtpu": {
            "echo_requests": count(|w| &w.echo_requests),
            "error_indications_sent": count(|w| &w.error_indications_sent),
            "error_indications_received": count(|w| &w.error_indications_received),
            "other_signalling": count(|w| &w.signalling),
        },
    })
}
