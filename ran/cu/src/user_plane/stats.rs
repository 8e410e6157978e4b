//! What the user plane counts: written by its worker, read by anybody.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use path::{Node, NodeCounts};
use telemetry::DropReason as Reason;
use telemetry::worker::{CacheAligned, Directions, Drops, Single};

/// Counters of a worker.
#[derive(Debug, Default)]
pub struct Stats {
    /// Packets of each node, in the order of [`Way`].
    pub nodes: [NodeCounts; WAYS],
    /// Packets that were not forwarded.
    pub drops: Drops,
    /// Packets and octets of N3 (uplink: sent to the UPF).
    pub n3: CacheAligned<Directions>,
    /// Packets and octets of F1-U (uplink: received from the DU).
    pub f1u: CacheAligned<Directions>,
    /// Packets that ports had to copy into memory of their own.
    pub copied: Single,
    /// Delivery statuses of DUs.
    pub statuses: Single,
    /// Of these, those that spoke of PDUs that were never sent.
    pub untrue_statuses: Single,
    /// Statuses for a bearer of another DU.
    pub foreign_statuses: Single,
    /// PDUs that DUs said they have missed.
    pub lost_on_f1u: Single,
    /// Echo Requests answered.
    pub echo_requests: Single,
    /// Error Indications sent.
    pub error_indications_sent: Single,
    /// Error Indications received.
    pub error_indications_received: Single,
    /// Other GTP-U signalling.
    pub signalling: Single,
    /// SDAP control PDUs of UEs.
    pub sdap_control: Single,
    /// PDCP control PDUs of UEs.
    pub pdcp_control: Single,
    /// Events for which the control plane had no room.
    pub lost_events: Single,
}

/// Counters of a bearer.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct BearerStats {
    /// Packets and octets as the UE sees them.
    pub traffic: Directions,
    active_ns: AtomicU64,
}

impl BearerStats {
    /// A packet has passed.
    #[inline(always)]
    pub(super) fn active(&self, now_ns: u64) {
        self.active_ns.store(now_ns, Relaxed);
    }

    /// Packets of the direction with more of them.
    pub fn most_packets(&self) -> u64 {
        self.traffic.uplink.get().packets.max(self.traffic.downlink.get().packets)
    }

    /// When the last packet passed, by `net::time::now_ns`; 0 if none has.
    pub fn active_ns(&self) -> u64 {
        self.active_ns.load(Relaxed)
    }
}

/// The nodes of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The ports.
    Receive,
    /// `downlink.rs`: N3 to F1-U.
    Downlink,
    /// `uplink.rs`: F1-U to N3.
    Uplink,
    /// Packets that wait for the DU: `queue.rs`, `flow.rs`.
    Queue,
    /// PDUs that wait for older ones: `l2::pdcp`.
    Reorder,
    /// `signalling.rs`: everything but user packets.
    Signalling,
    /// The ports.
    Transmit,
}

/// Number of nodes.
pub const WAYS: usize = Way::Transmit as usize + 1;

/// The nodes, in the order of [`Way`].
pub const NODES: [Node; WAYS] = [
    Node {
        name: "receive",
        next: &["downlink", "uplink", "signalling"],
        drops: &[
            Reason::RxQueueFull,
            Reason::RxNoBuffer,
            Reason::RxError,
            Reason::N3NotServed,
            Reason::UnknownVlan,
            Reason::WorkerFailed,
            Reason::GtpuMalformed,
            Reason::GtpuExtension,
            Reason::GtpuUnknownExtension,
            Reason::UnknownTeid,
            Reason::DirectionMismatch,
        ],
    },
    Node {
        name: "downlink",
        next: &["transmit", "queue"],
        drops: &[Reason::NoBearer, Reason::PdcpExhausted, Reason::TooBig],
    },
    Node {
        name: "uplink",
        next: &["transmit", "reorder", "signalling"],
        drops: &[Reason::PdcpMalformed, Reason::PdcpStale, Reason::PdcpIntegrity],
    },
    Node { name: "queue", next: &["downlink"], drops: &[Reason::BufferOverflow, Reason::DiscardTimer] },
    Node { name: "reorder", next: &["uplink"], drops: &[Reason::PdcpOverflow] },
    Node {
        name: "signalling",
        next: &["transmit"],
        drops: &[Reason::GtpuUnknownMessage, Reason::ControlOverflow],
    },
    Node {
        name: "transmit",
        next: &[],
        drops: &[Reason::TxQueueFull, Reason::TxError, Reason::NeighbourUnresolved, Reason::PeerGone],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_lead_to_nodes_and_a_drop_reason_belongs_to_one() {
        for node in &NODES {
            assert!(node.next.iter().all(|next| NODES.iter().any(|other| other.name == *next)), "{node:?}");
        }
        for reason in Reason::ALL {
            let nodes = NODES.iter().filter(|node| node.drops.contains(reason)).count();
            assert!(nodes <= 1, "{}", reason.name());
        }
        assert_eq!(NODES[Way::Transmit as usize].name, "transmit");
        assert_eq!(NODES[Way::Queue as usize].name, "queue");
    }
}
