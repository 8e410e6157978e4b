//! What the user plane of UEs counts. One worker writes; anybody reads while it runs.

use pktio::Sent;
use telemetry::DropReason;
use telemetry::worker::{Drops, Single, Traffic};

/// Counters of all UEs.
#[derive(Debug, Default)]
pub struct Stats {
    /// IP packets sent to DUs.
    pub uplink: Traffic,
    /// IP packets sent to TUN devices.
    pub downlink: Traffic,
    /// Packets that were not forwarded.
    pub drops: Drops,
    /// RRC messages in both directions.
    pub rrc: Single,
    /// PDCP control PDUs received.
    pub pdcp_control: Single,
    /// Downlink packets with reflective mapping or reflective QoS, which are not followed.
    pub reflective: Single,
}

/// Counters of a session.
#[derive(Debug, Default)]
pub struct SessionStats {
    /// IP packets from its TUN device.
    pub uplink: Traffic,
    /// IP packets to its TUN device.
    pub downlink: Traffic,
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
