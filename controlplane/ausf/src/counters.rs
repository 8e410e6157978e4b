//! Counters of the AUSF.

use telemetry::counters::Counter;

/// Authentications begun.
pub(crate) static AUTHENTICATIONS: Counter = Counter::new("ausf_authentications");
/// Confirmations with a wrong or missing RES*.
pub(crate) static CONFIRMATIONS_FAILED: Counter = Counter::new("ausf_confirmations_failed");
/// Requests for a serving network that this home network does not serve.
pub(crate) static SERVING_NETWORKS_REJECTED: Counter = Counter::new("ausf_serving_networks_rejected");
/// Authentication results that could not be reported to the UDM.
pub(crate) static REPORTS_FAILED: Counter = Counter::new("ausf_reports_failed");
