//! Counters of the CU's control plane. What a DU, a UE or the AMF sends and the CU does not act on is counted here, by reason.

use telemetry::counters::{Counter, Family};

/// Associations of DUs accepted.
pub static ASSOCIATIONS: Counter = Counter::new("cu_f1c_associations");
/// Associations of DUs lost or closed.
pub static ASSOCIATIONS_LOST: Counter = Counter::new("cu_f1c_associations_lost");
/// F1 Setup refused, by cause.
pub static F1_SETUP_FAILURES: Family = Family::new("cu_f1_setup_failures", "cause");
/// F1AP messages that were not acted on, by reason.
pub static F1C_REJECTED: Family = Family::new("cu_f1c_rejected", "reason");
/// Error Indications received on F1-C, by cause.
pub static F1C_ERROR_INDICATIONS: Family = Family::new("cu_f1c_error_indications_received", "cause");
/// NGAP messages that were not acted on, by reason.
pub static N2_REJECTED: Family = Family::new("cu_n2_rejected", "reason");
/// Attempts to connect to the AMF that failed.
pub static N2_FAILURES: Counter = Counter::new("cu_n2_failures");
/// RRC messages that were not acted on, by reason.
pub static RRC_REJECTED: Family = Family::new("cu_rrc_rejected", "reason");
/// Connections that were not granted (RRCReject), by reason.
pub static RRC_REJECTS: Family = Family::new("cu_rrc_rejects", "reason");
/// Procedures that ended, by `<procedure>:<outcome>`.
pub static PROCEDURES: Family = Family::new("cu_procedures", "outcome");
/// UEs whose connection ended, by reason.
pub static UES_ENDED: Family = Family::new("cu_ues_ended", "reason");
/// Pages from the AMF, by what became of them.
pub static PAGES: Family = Family::new("cu_pages", "outcome");
/// Paths of GTP-U that failed, by interface.
pub static PATHS_FAILED: Family = Family::new("cu_paths_failed", "point");
/// Error Indications of GTP-U about tunnels of UEs.
pub static TUNNELS_LOST: Counter = Counter::new("cu_tunnels_lost");
