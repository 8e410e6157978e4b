//! UE Context Modification (TS 38.413 §8.3.4).

use ngap::cause::RadioNetwork;

use crate::counters;
use crate::ue::{Interrupt, Ue};

impl Ue {
    /// Takes a new aggregate bit rate or AMF identity. New keys need a change of all bearers within the cell (TS 38.331 §5.3.5.5),
    /// which is not built: the AMF is told so, and the UE keeps its keys.
    pub(crate) async fn context_modification(
        &mut self,
        request: ngap::UeContextModificationRequest,
    ) -> Result<(), Interrupt> {
        let n2 = self.n2.as_mut().ok_or(Interrupt::AmfLost)?;
        if request.security_key.is_some() {
            counters::PROCEDURES.inc("context_modification:new_key");
            let failure = ngap::UeContextModificationFailure {
                amf_ue_ngap_id: request.amf_ue_ngap_id,
                ran_ue_ngap_id: request.ran_ue_ngap_id,
                cause: RadioNetwork::Unspecified.into(),
                criticality_diagnostics: None,
            };
            return self.send_n2(failure).await;
        }
        if let Some(amf_ue_ngap_id) = request.new_amf_ue_ngap_id {
            n2.learn(amf_ue_ngap_id);
        }
        let user_location = Some(n2.gnb().location_of(self.cell.nr_cell_id));
        self.ue_ambr = request.ue_ambr.or(self.ue_ambr);
        counters::PROCEDURES.inc("context_modification:ok");
        self.send_n2(ngap::UeContextModificationResponse {
            amf_ue_ngap_id: request.new_amf_ue_ngap_id.unwrap_or(request.amf_ue_ngap_id),
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            user_location,
            criticality_diagnostics: None,
        })
        .await
    }
}
