//! RRC reconfiguration (TS 38.331 §5.3.5), and the DU's part of a change of bearers (TS 38.473 §8.3.4).

use bytes::Bytes;
use f1ap::Pdu as F1;
use f1ap::ie::{DrbId as F1DrbId, DrbToBeModified, DrbToBeReleased, DrbToBeSetup};
use f1ap::message::{UeContextModificationRequest, UeContextModificationResponse};
use l2::sdap::DrbId;
use rrc::UlDcch;
use rrc::bearer::{RadioBearerConfig, SrbToAddMod};
use rrc::message::{RrcReconfiguration, RrcReconfigurationV1530};
use rrc::value::SrbIdentity;

use crate::counters;
use crate::ue::{F1_LIMIT, Interrupt, RRC_LIMIT, Step, Ue};

/// SRB2, with the default configuration.
pub(crate) fn srb2() -> SrbToAddMod {
    SrbToAddMod {
        srb_identity: SrbIdentity::new(2).expect("SRB2 is an SRB"),
        reestablish_pdcp: false,
        discard_on_pdcp: false,
        pdcp_config: None,
    }
}

impl Ue {
    /// Has the UE change its bearers, and delivers NAS with that.
    pub(crate) async fn reconfigure(
        &mut self,
        radio_bearers: RadioBearerConfig,
        master_cell_group: Option<Bytes>,
        nas: Vec<Bytes>,
    ) -> Result<(), Interrupt> {
        let transaction = self.rrc.next_transaction();
        let v1530 = RrcReconfigurationV1530 {
            master_cell_group,
            full_config: false,
            dedicated_nas_message_list: nas,
        };
        self.send_rrc(RrcReconfiguration {
            rrc_transaction_identifier: transaction,
            radio_bearer_config: Some(radio_bearers),
            secondary_cell_group: None,
            v1530: Some(v1530),
        })
        .await?;
        self.wait_for("RRCReconfigurationComplete", RRC_LIMIT, |step| match step {
            Step::Rrc(UlDcch::RrcReconfigurationComplete(m))
                if m.rrc_transaction_identifier == transaction =>
            {
                Ok(())
            }
            other => Err(other),
        })
        .await
    }

    /// Has the DU add, change and release bearers. `None` if it refuses.
    pub(crate) async fn modify_at_du(
        &mut self,
        drbs: Vec<DrbToBeSetup>,
        drbs_to_be_modified: Vec<DrbToBeModified>,
        released: &[DrbId],
    ) -> Result<Option<UeContextModificationResponse>, Interrupt> {
        let (gnb_cu_ue_f1ap_id, gnb_du_ue_f1ap_id) = self.f1_ids();
        let drbs_to_be_released = released.iter().map(|id| DrbToBeReleased { drb_id: F1DrbId(id.number()) });
        self.send_f1(UeContextModificationRequest {
            gnb_cu_ue_f1ap_id,
            gnb_du_ue_f1ap_id,
            cu_to_du_rrc_information: None,
            rrc_reconfiguration_complete: None,
            rrc_container: None,
            srbs: Vec::new(),
            drbs,
            drbs_to_be_modified,
            drbs_to_be_released: drbs_to_be_released.collect(),
            ue_ambr_ul: self.ue_ambr.map(|ambr| ambr.uplink),
        })
        .await?;
        let answer = self.wait_for("UE Context Modification Response", F1_LIMIT, |step| match step {
            Step::F1(pdu) => match *pdu {
                F1::UeContextModificationResponse(response) => Ok(Some(response)),
                F1::UeContextModificationFailure(failure) => {
                    counters::PROCEDURES.inc("ue_context_modification:failed");
                    tracing::warn!(cause = %failure.cause, "the DU changes no bearers");
                    Ok(None)
                }
                other => Err(Step::F1(Box::new(other))),
            },
            other => Err(other),
        });
        answer.await
    }

    /// Has the DU release bearers of sessions that have failed.
    pub(crate) async fn release_at_du(&mut self, left_over: Vec<DrbId>) -> Result<(), Interrupt> {
        if !left_over.is_empty() {
            self.modify_at_du(Vec::new(), Vec::new(), &left_over).await?;
        }
        Ok(())
    }
}
