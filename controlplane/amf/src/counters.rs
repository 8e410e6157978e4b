//! Counters of the AMF. Everything from outside that is refused or dropped is counted here, by reason.
//!
//! Names have the form `amf_<what>`; they appear in `GET /counters` and `GET /status` of the OAM
//! socket.

use telemetry::counters::{Counter, Family};

/// gNB associations accepted.
pub static ASSOCIATIONS: Counter = Counter::new("amf_n2_associations");
/// gNB associations lost or closed.
pub static ASSOCIATIONS_LOST: Counter = Counter::new("amf_n2_associations_lost");
/// NG Setup refused, by cause.
pub static NG_SETUP_FAILURES: Family = Family::new("amf_ng_setup_failures", "cause");
/// N2 messages that were not acted on, by reason.
pub static N2_REJECTED: Family = Family::new("amf_n2_rejected", "reason");
/// Error Indications received, by cause.
pub static ERROR_INDICATIONS: Family = Family::new("amf_n2_error_indications_received", "cause");
/// NAS messages that were not acted on, by reason (integrity, replay, malformed, wrong state …).
pub static NAS_REJECTED: Family = Family::new("amf_nas_rejected", "reason");
/// Procedures that ended, by `<procedure>:<outcome>`.
pub static PROCEDURES: Family = Family::new("amf_procedures", "outcome");
/// Registrations whose turn did not come in time, by the step that waited
/// ([`crate::admission::Class`]).
pub static NOT_ADMITTED: Family = Family::new("amf_not_admitted", "class");
/// Registrations refused, by 5GMM cause number.
pub static REGISTRATION_REJECTS: Family = Family::new("amf_registration_rejects", "cause");
/// Service requests refused, by 5GMM cause number.
pub static SERVICE_REJECTS: Family = Family::new("amf_service_rejects", "cause");
/// UL NAS TRANSPORT that could not be forwarded, by 5GMM cause number.
pub static PAYLOAD_NOT_FORWARDED: Family = Family::new("amf_payload_not_forwarded", "cause");
/// NAS timers that expired, by name.
pub static TIMER_EXPIRIES: Family = Family::new("amf_timer_expiries", "timer");
/// Calls to other NFs that failed, by `<operation>:<why>`.
pub static SBI_FAILURES: Family = Family::new("amf_sbi_failures", "operation");
/// Sessions that ended in their SMF without the UE's knowledge.
pub static SESSIONS_LOST: Counter = Counter::new("amf_sessions_lost");
/// Requests of other NFs that were refused, by reason.
pub static SERVICE_REJECTED: Family = Family::new("amf_service_rejected", "reason");
/// Events for a UE dropped because its queue was full, by kind.
pub static UE_QUEUE_FULL: Family = Family::new("amf_ue_queue_full", "event");
/// Events for which the 5GMM or CM state machine has no transition, by `<state>:<event>`.
pub static UNEXPECTED_TRANSITIONS: Family = Family::new("amf_unexpected_transitions", "transition");
