//! PDU Session Resource Release (TS 38.413 §8.2.2).

use l2::sdap::DrbId;
use ngap::PduSessionItem;
use ngap::transfer::PduSessionResourceReleaseResponseTransfer;
use rrc::bearer::RadioBearerConfig;

use crate::counters;
use crate::sessions::{Session, drb_identity};
use crate::ue::{Interrupt, Ue};

impl Ue {
    /// Releases sessions at the DU and the UE. One that the CU does not have counts as released (§8.2.2.4).
    pub(crate) async fn session_release(
        &mut self,
        command: ngap::PduSessionResourceReleaseCommand,
    ) -> Result<(), Interrupt> {
        let is_named = |session: &Session| command.pdu_sessions.iter().any(|item| item.id == session.id);
        let named = self.sessions.iter().filter(|session| is_named(session));
        // Both peers may release the session before the others, and then say that its tunnels are unknown.
        let named = named.inspect(|session| session.unwatch(&self.shared));
        let released: Vec<DrbId> = named.flat_map(|session| &session.drbs).map(|drb| drb.id).collect();
        let nas = command.nas_pdu;
        if released.is_empty() {
            if let Some(nas_pdu) = nas {
                self.downlink_nas(nas_pdu).await?;
            }
        } else {
            // The DU goes first: until it has released the bearers it sends on their tunnels.
            let answer = self.modify_at_du(Vec::new(), Vec::new(), &released).await?;
            for session in self.sessions.extract_if(.., |session| is_named(session)) {
                session.close(&self.shared);
            }
            let cell_group = answer.and_then(|answer| answer.du_to_cu_rrc_information);
            let radio_bearers = RadioBearerConfig {
                drb_to_release_list: released.into_iter().map(drb_identity).collect(),
                ..Default::default()
            };
            let cell_group = cell_group.map(|du| du.cell_group_config.into());
            self.reconfigure(radio_bearers, cell_group, nas.into_iter().collect()).await?;
        }
        let transfer = PduSessionResourceReleaseResponseTransfer.encode().unwrap_or_default();
        let item = |item: &PduSessionItem| PduSessionItem { id: item.id, transfer: transfer.clone() };
        counters::PROCEDURES.inc("session_release:ok");
        let n2 = self.n2.as_ref().ok_or(Interrupt::AmfLost)?;
        self.send_n2(ngap::PduSessionResourceReleaseResponse {
            amf_ue_ngap_id: command.amf_ue_ngap_id,
            ran_ue_ngap_id: command.ran_ue_ngap_id,
            pdu_sessions: command.pdu_sessions.iter().map(item).collect(),
            user_location: Some(self.location(n2.gnb())),
            criticality_diagnostics: None,
        })
        .await
    }
}
