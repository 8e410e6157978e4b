//! The UE-AMBR changes (TS 23.501 §5.7.1.8) because the subscription or the policy did.
//!
//! The gNB of a connected UE is told by UE Context Modification (TS 38.413 §8.3.4); of an idle UE the next gNB is told
//! when the UE connects.

use ngap::{Pdu, UeContextModificationRequest};
use types::Ambr;

use crate::counters;
use crate::event::Interrupt;
use crate::ue::Ue;

/// Tells the gNB the bit rate that is in force, if it is not the one from `before`.
pub(crate) async fn changed(ue: &mut Ue, before: Option<Ambr>) -> Result<(), Interrupt> {
    let ue_ambr = ue.ctx.ambr();
    let in_gnb = ue.connection.as_ref().is_some_and(|connection| connection.context);
    if ue_ambr == before || !in_gnb {
        return Ok(());
    }
    ue.send(|amf_ue_ngap_id, ran_ue_ngap_id| {
        Pdu::UeContextModificationRequest(UeContextModificationRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            security_key: None,
            ue_ambr,
            ue_security_capabilities: None,
            new_amf_ue_ngap_id: None,
        })
    })
    .await
}

/// The gNB's answer. One that refuses goes on with the old bit rate; the next connection brings the new one.
pub(crate) fn answered(ue: &Ue, pdu: &Pdu) {
    if let Pdu::UeContextModificationFailure(failure) = pdu {
        counters::N2_REJECTED.inc("context_modification_failure");
        tracing::warn!(supi = ?ue.ctx.supi, cause = %failure.cause, "the gNB keeps the UE's old bit rate");
    }
}
