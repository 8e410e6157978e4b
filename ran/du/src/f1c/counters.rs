//! What the control plane counts. The user plane has counters of its own.

use telemetry::counters::{Counter, Family};

/// Messages from the CU, by name.
pub(super) static RECEIVED: Family = Family::new("du_f1ap_received", "message");
/// Messages to the CU, by name.
pub(super) static SENT: Family = Family::new("du_f1ap_sent", "message");
/// Messages that were not served: `decode`, `encode`, `state`, `unknown_ue`, `inconsistent`.
pub(super) static REJECTED: Family = Family::new("du_f1ap_rejected", "why");
/// F1 Setups, by outcome.
pub(super) static SETUPS: Family = Family::new("du_f1_setup", "outcome");
/// UEs that came by random access.
pub(super) static ACCESSES: Counter = Counter::new("du_random_accesses");
/// RRC messages that were dropped, by reason.
pub(super) static RRC_DROPPED: Family = Family::new("du_rrc_dropped", "why");
/// DRBs, by what became of the request.
pub(super) static DRBS: Family = Family::new("du_drbs", "outcome");
/// UEs that went, each once, by reason: one whose release the DU has asked for goes `by_cu`.
pub(super) static RELEASED: Family = Family::new("du_ues_released", "why");
/// Messages on PCCH.
pub(super) static PAGINGS: Counter = Counter::new("du_pagings");
