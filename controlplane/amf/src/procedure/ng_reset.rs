//! NG Reset started by a gNB (TS 38.413 §8.7.4.2).
//!
//! The named connections, or all of them, end: their UEs go CM-IDLE and their user planes are deactivated in the
//! SMFs, each by its own task. The acknowledge does not wait for that.

use std::sync::Arc;

use ngap::{NgReset, NgResetAcknowledge, Pdu, ResetType};

use crate::gnb::{Gnb, LinkDown};

/// NG Reset.
pub(crate) async fn ng_reset(gnb: &Arc<Gnb>, reset: NgReset) {
    let connections = match reset.reset_type {
        ResetType::NgInterface => {
            let ues = gnb.lose_all(LinkDown::Reset);
            tracing::info!(gnb = gnb.label(), ues, cause = %reset.cause, "NG Reset");
            Vec::new()
        }
        ResetType::PartOfNgInterface(connections) => {
            let known = connections.iter().filter(|c| gnb.lose(c.amf_ue_ngap_id, c.ran_ue_ngap_id)).count();
            tracing::info!(gnb = gnb.label(), ues = known, cause = %reset.cause, "partial NG Reset");
            // Unknown connections are acknowledged, too (§8.7.4.2.2), in the order of the request.
            connections
        }
    };
    let acknowledge: Pdu = NgResetAcknowledge { connections, criticality_diagnostics: None }.into();
    match acknowledge.encode() {
        Ok(octets) => _ = gnb.send_common(octets).await,
        Err(error) => tracing::error!(%error, "NG Reset Acknowledge not sent"),
    }
}
