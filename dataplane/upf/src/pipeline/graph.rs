//! The UPF's graph: the nodes of [`Pipeline`](super::Pipeline), and the edges between them.
//!
//! ```text
//!  receive ─► parse ─► look_up ─► execute ─► transmit           the straight way
//!     ├─► cross ─► receive, by another worker
//!     │         │         │          ├─► translate ─► execute, inject
//!     │         │         │          ├─► redirect ─► inject
//!     │         │         │          ├─► buffer ─► parse, when N4 says so
//!     │         │         │          ├─► too_long ─► transmit, inject
//!     │         │         │          ├─► copy ─► transmit
//!     ├─────────┼─────────┼──────────┴─► bridge ─► execute, transmit
//!               ├─────────┴─► signalling ─► transmit             replies, Error Indications
//!               └─► fragments ─► look_up                         when the first one has come
//!                                        inject ─► parse
//! ```
//! The straight way is receive, parse, look_up, execute, transmit. The others are rare ways: each is in the file that
//! [`Way`] names.

use path::{Node, NodeTotals};
use serde_json::{Map, Value, json};
use telemetry::DropReason as Reason;

use crate::stats::WorkerStats;

/// The nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The ports: see `pktio`.
    Receive,
    /// Packets that another worker owns, which receives them from this one: see `pktio::crossing`.
    Cross,
    /// `parse.rs`.
    Parse,
    /// `rare/signalling.rs`: GTP-U messages other than G-PDUs, and replies to faulty packets.
    Signalling,
    /// `rare/fragments.rs`: fragments whose session tells flows apart.
    Fragments,
    /// `look_up.rs`.
    LookUp,
    /// `rare/bridge.rs`: frames of Ethernet sessions.
    Bridge,
    /// `execute.rs`, `forward.rs`.
    Execute,
    /// `rare/translate.rs`: packets of sessions that are redirected to an address.
    Translate,
    /// `rare/redirect.rs`: web requests that are answered with a redirection.
    Redirect,
    /// `rare/buffer.rs`: packets for idle UEs.
    Buffer,
    /// `rare/too_long.rs`: packets that are longer than their link takes.
    TooLong,
    /// `rare/copy.rs`: duplicates that a FAR asks for.
    Copy,
    /// `rare/inject.rs`: packets that this pipeline made or changed, on their way to UEs.
    Inject,
    /// The ports.
    Transmit,
}

/// Number of nodes.
pub const WAYS: usize = Way::Transmit as usize + 1;

/// The nodes, in the order of [`Way`].
pub const NODES: [Node; WAYS] = [
    Node {
        name: "receive",
        next: &["cross", "parse", "bridge"],
        drops: &[
            Reason::RxQueueFull,
            Reason::RxNoBuffer,
            Reason::RxError,
            Reason::N3NotServed,
            Reason::UnknownVlan,
            Reason::WorkerFailed,
        ],
    },
    Node { name: "cross", next: &["receive"], drops: &[Reason::WorkerQueueFull] },
    Node {
        name: "parse",
        next: &["look_up", "signalling", "fragments"],
        drops: &[
            Reason::GtpuMalformed,
            Reason::GtpuExtension,
            Reason::GtpuUnknownExtension,
            Reason::IpMalformed,
            Reason::NotIp,
        ],
    },
    Node { name: "signalling", next: &["transmit"], drops: &[Reason::GtpuUnknownMessage] },
    Node {
        name: "fragments",
        next: &["look_up"],
        drops: &[Reason::FragmentOverlap, Reason::FragmentOverflow],
    },
    Node {
        name: "look_up",
        next: &["execute", "bridge", "signalling"],
        drops: &[
            Reason::UnknownTeid,
            Reason::UnknownUe,
            Reason::SourceAddress,
            Reason::NoPdr,
            Reason::DirectionMismatch,
            Reason::LinkLocal,
        ],
    },
    Node {
        name: "bridge",
        next: &["execute", "transmit"],
        drops: &[
            Reason::EthernetMalformed,
            Reason::EthernetSource,
            Reason::EthernetFiltered,
            Reason::EthernetFlood,
        ],
    },
    Node {
        name: "execute",
        next: &["transmit", "translate", "redirect", "buffer", "too_long", "copy", "bridge"],
        drops: &[
            Reason::GateClosed,
            Reason::RateLimit,
            Reason::QuotaExhausted,
            Reason::ControlOverflow,
            Reason::CoreInterface,
            Reason::TunnelLoop,
            Reason::FarDrop,
        ],
    },
    Node { name: "translate", next: &["execute", "inject"], drops: &[Reason::NoTranslation] },
    Node { name: "redirect", next: &["inject"], drops: &[Reason::Redirected] },
    Node { name: "buffer", next: &["parse"], drops: &[Reason::BufferOverflow, Reason::BufferUnavailable] },
    Node { name: "too_long", next: &["transmit", "inject"], drops: &[Reason::TooBig] },
    Node { name: "copy", next: &["transmit"], drops: &[] },
    Node { name: "inject", next: &["parse"], drops: &[] },
    Node {
        name: "transmit",
        next: &[],
        drops: &[Reason::TxQueueFull, Reason::TxError, Reason::NeighbourUnresolved, Reason::PeerGone],
    },
];

/// `GET /graph`: what each node has done, in the order of the graph. Times are those of one vector in 64; a node without
/// times is part of the node before it.
pub fn json(workers: &[WorkerStats]) -> Value {
    let node = |(at, node): (usize, &Node)| {
        let done = workers.iter().fold(NodeTotals::default(), |sum, worker| sum + worker.nodes[at].get());
        let dropped = |reason: &Reason| (reason.name().to_owned(), crate::stats::drops(workers, *reason));
        let drops: Map<String, Value> = node
            .drops
            .iter()
            .map(dropped)
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name, count.into()))
            .collect();
        let per =
            |sum: u64, count: u64| (count > 0).then(|| (sum as f64 / count as f64 * 10.0).round() / 10.0);
        json!({
            "node": node.name,
            "calls": done.calls,
            "packets": done.packets,
            "packets_per_call": per(done.packets, done.calls),
            "ns_per_packet": per(done.timed_ns, done.timed_packets),
            "drops": drops,
            "next": node.next,
        })
    };
    Value::Array(NODES.iter().enumerate().map(node).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every edge leads to a node, every node but the first has an edge that leads to it, and every reason belongs to one
    /// node, except those of tiers that do not exist yet and of the RAN, which begin at number 44.
    #[test]
    fn edges_and_drop_reasons_are_complete() {
        for node in &NODES {
            for next in node.next {
                assert!(NODES.iter().any(|other| other.name == *next), "{} leads to {next}", node.name);
            }
            let reached = NODES.iter().any(|other| other.next.contains(&node.name));
            assert!(reached || node.name == "receive", "{}", node.name);
        }
        for reason in Reason::ALL {
            let at = NODES.iter().filter(|node| node.drops.contains(reason)).count();
            let later = [Reason::TtlExpired, Reason::MeterRed, Reason::FastPathMiss].contains(reason);
            let of_upf = *reason < Reason::NoBearer;
            assert_eq!(at, usize::from(of_upf && !later), "{}", reason.name());
        }
        assert_eq!(NODES[Way::Transmit as usize].name, "transmit");
        assert_eq!(NODES[Way::TooLong as usize].name, "too_long");
    }
}
