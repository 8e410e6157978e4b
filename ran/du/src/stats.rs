//! What the DU counts. One worker writes; anybody reads while it runs.

use pktio::Sent;
use telemetry::DropReason;
use telemetry::worker::{Drops, Single, Traffic};

/// Counters of the user plane.
#[derive(Debug, Default)]
pub struct Stats {
    /// Packets sent to UEs, in octets of RLC's SDUs.
    pub downlink: Traffic,
    /// Packets sent to CUs, in octets of RLC's SDUs.
    pub uplink: Traffic,
    /// Packets that were not forwarded.
    pub drops: Drops,
    /// Delivery status sent.
    pub status_sent: Single,
    /// Echo Requests answered.
    pub echo_requests: Single,
    /// Error Indications sent.
    pub error_indications_sent: Single,
    /// Error Indications received.
    pub error_indications_received: Single,
    /// Other signalling on F1-U: End Markers, lists of extension headers, Echo Responses.
    pub signalling: Single,
    /// UEs that got a C-RNTI by random access.
    pub random_accesses: Single,
    /// Camps that were noted, repeated ones included. Refused ones are drops.
    pub camps: Single,
    /// Broadcasts sent, one for each address that camps.
    pub broadcasts: Single,
    /// RRC messages to and from UEs.
    pub rrc: Single,
}

impl Stats {
    /// Counts what a port has not taken.
    pub(crate) fn count_unsent(&self, sent: Sent) {
        for (reason, packets) in [
            (DropReason::TxQueueFull, sent.full),
            (DropReason::TooBig, sent.too_big),
            (DropReason::NeighbourUnresolved, sent.unresolved),
            (DropReason::TxError, sent.errors),
        ] {
            if packets > 0 {
                self.drops.count_n(reason, packets);
            }
        }
    }
}

/// Counters of a bearer.
#[derive(Debug, Default)]
pub struct BearerStats {
    /// SDUs sent to the UE, or given to the radio link.
    pub downlink: Traffic,
    /// SDUs from the UE.
    pub uplink: Traffic,
    /// SDUs that were dropped in front of the radio link or on it, in both directions.
    pub dropped: Single,
    /// NR-U sequence numbers that did not arrive from the CU.
    pub nr_u_lost: Single,
}
