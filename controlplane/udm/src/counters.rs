//! Counters of the UDM.

use telemetry::counters::Counter;

/// SUCIs that could not be de-concealed.
pub(crate) static SUCI_REJECTED: Counter = Counter::new("udm_suci_rejected");
/// AUTS with a wrong MAC-S.
pub(crate) static AUTS_REJECTED: Counter = Counter::new("udm_auts_rejected");
/// Sequence numbers accepted from a USIM.
pub(crate) static RESYNCHRONISATIONS: Counter = Counter::new("udm_resynchronisations");
/// Notifications that did not reach their receiver.
pub(crate) static NOTIFICATIONS_FAILED: Counter = Counter::new("udm_notifications_failed");
