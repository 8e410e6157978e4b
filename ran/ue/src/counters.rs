//! Counters of the UEs' control plane. What the network sends and a UE does not act on is counted here, by reason.

use telemetry::counters::Family;

/// RRC messages and their PDUs that were not acted on, by reason.
pub static RRC_REJECTED: Family = Family::new("ue_rrc_rejected", "reason");
/// Attempts to get a connection, by outcome.
pub static CONNECTS: Family = Family::new("ue_rrc_connects", "outcome");
/// Connections that ended, by reason.
pub static CONNECTIONS_ENDED: Family = Family::new("ue_rrc_connections_ended", "reason");
/// Broadcasts that were not acted on, by reason.
pub static BROADCASTS_REJECTED: Family = Family::new("ue_broadcasts_rejected", "reason");
/// Pages, by what became of them.
pub static PAGES: Family = Family::new("ue_pages", "outcome");
