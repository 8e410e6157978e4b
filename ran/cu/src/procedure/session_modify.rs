//! PDU Session Resource Modify (TS 38.413 §8.2.3): flows are added and released; the UPF's tunnel does not move.

use l2::sdap::DrbId;
use ngap::cause::{Protocol, RadioNetwork};
use ngap::transfer::*;
use ngap::{Cause, PduSessionItem, PduSessionModifyItem};
use rrc::bearer::{DrbToAddMod, RadioBearerConfig};
use types::Qfi;

use crate::counters;
use crate::sessions::{drb_identity, free_drbs};
use crate::ue::{Interrupt, Ue};

impl Ue {
    pub(crate) async fn session_modify(
        &mut self,
        request: ngap::PduSessionResourceModifyRequest,
    ) -> Result<(), Interrupt> {
        let (mut pdu_sessions, mut failed) = (Vec::new(), Vec::new());
        for PduSessionModifyItem { id, nas_pdu, transfer } in request.pdu_sessions {
            let outcome = self.modify_session(id, &transfer, nas_pdu).await?;
            counters::PROCEDURES.inc(if outcome.is_ok() {
                "session_modify:ok"
            } else {
                "session_modify:failed"
            });
            let item = |transfer| PduSessionItem { id, transfer };
            match outcome {
                Ok(response) => pdu_sessions.extend(response.encode().ok().map(item)),
                Err(cause) => {
                    let unsuccessful =
                        PduSessionResourceModifyUnsuccessfulTransfer { cause, criticality_diagnostics: None };
                    failed.extend(unsuccessful.encode().ok().map(item));
                }
            }
        }
        self.send_n2(ngap::PduSessionResourceModifyResponse {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            pdu_sessions,
            failed,
            criticality_diagnostics: None,
            user_location: None,
        })
        .await
    }

    async fn modify_session(
        &mut self,
        id: types::PduSessionId,
        transfer: &[u8],
        nas_pdu: Option<bytes::Bytes>,
    ) -> Result<Result<PduSessionResourceModifyResponseTransfer, Cause>, Interrupt> {
        let Ok(request) = PduSessionResourceModifyRequestTransfer::decode(transfer) else {
            return Ok(Err(Protocol::TransferSyntaxError.into()));
        };
        let Some(at) = self.sessions.iter().position(|session| session.id == id) else {
            return Ok(Err(RadioNetwork::UnknownPduSessionId.into()));
        };
        let Some(keys) = self.keys.clone() else {
            return Ok(Err(Protocol::MessageNotCompatibleWithReceiverState.into()));
        };
        if !request.ul_tunnels.is_empty() {
            // A UPF that moves would need the same done to the user plane's session.
            return Ok(Err(RadioNetwork::Unspecified.into()));
        }

        // Flows with a guaranteed rate get bearers of their own; others are the default bearer's.
        let mut response = PduSessionResourceModifyResponseTransfer::default();
        let mut ids: Vec<DrbId> = free_drbs(&self.sessions).collect();
        ids.reverse();
        let mut added: Vec<(DrbId, Qfi)> = Vec::new();
        for change in request.qos_flows {
            let session = &mut self.sessions[at];
            let known = session.flows().contains(&change.qfi);
            match change.parameters {
                Some(parameters) if !known && parameters.gbr.is_some() => {
                    let flow = QosFlow { qfi: change.qfi, parameters };
                    let drb = ids.pop();
                    let done = drb.is_some_and(|drb| {
                        session.add_drb(&self.shared, self.du.f1u, drb, vec![flow], &keys).is_ok()
                    });
                    match drb {
                        Some(drb) if done => added.push((drb, change.qfi)),
                        _ => response.failed_qos_flows.push(not_set_up(change.qfi)),
                    }
                }
                Some(parameters) if !known => {
                    if let Some(default) = session.drbs.iter_mut().find(|drb| drb.default) {
                        default.flows.push(QosFlow { qfi: change.qfi, parameters });
                    }
                    response.qos_flows.push(change.qfi);
                }
                None if !known => response.failed_qos_flows.push(not_set_up(change.qfi)),
                _ => response.qos_flows.push(change.qfi),
            }
        }
        let released = self.release_flows(at, &request.released_qos_flows);
        let session = &self.sessions[at];
        let (mut new_drbs, mut cell_group) = (Vec::<DrbToAddMod>::new(), None);
        if !added.is_empty() || !released.is_empty() {
            let of_added = |drb: &&crate::sessions::Drb| added.iter().any(|(id, _)| *id == drb.id);
            let drbs =
                session.drbs.iter().filter(of_added).map(|drb| session.f1_drb(&self.shared, drb)).collect();
            let answer = self.modify_at_du(drbs, &released).await?;
            let set_up = answer.as_ref().map_or(&[][..], |answer| &answer.drbs);
            for (drb, qfi) in added {
                let tunnel = set_up.iter().find(|answer| answer.drb_id.0 == drb.number());
                let tunnel = tunnel.and_then(|answer| answer.dl_up_tnl.first());
                let session = &mut self.sessions[at];
                if tunnel
                    .is_some_and(|tnl| session.connect(&self.shared, self.id, self.du.f1u, drb, &tnl.tunnel))
                {
                    response.qos_flows.push(qfi);
                    let drb = session.drbs.iter().find(|known| known.id == drb);
                    new_drbs.extend(drb.map(|drb| session.rrc_drb(&self.shared, drb)));
                } else {
                    session.remove_drb(&self.shared, drb);
                    response.failed_qos_flows.push(not_set_up(qfi));
                }
            }
            cell_group = answer.and_then(|answer| answer.du_to_cu_rrc_information);
        }
        let radio_bearers = RadioBearerConfig {
            drb_to_add_mod_list: new_drbs,
            drb_to_release_list: released.into_iter().map(drb_identity).collect(),
            ..Default::default()
        };
        if radio_bearers != RadioBearerConfig::default() {
            let cell_group = cell_group.map(|du| du.cell_group_config.into());
            self.reconfigure(radio_bearers, cell_group, nas_pdu.into_iter().collect()).await?;
        } else if let Some(nas_pdu) = nas_pdu {
            self.downlink_nas(nas_pdu).await?;
        }
        Ok(Ok(response))
    }

    /// Removes flows, and the bearers that carried nothing else. The default bearer stays.
    fn release_flows(&mut self, at: usize, flows: &[QosFlowCause]) -> Vec<DrbId> {
        let session = &mut self.sessions[at];
        let mut empty = Vec::new();
        for drb in &mut session.drbs {
            drb.flows.retain(|flow| drb.default || !flows.iter().any(|gone| gone.qfi == flow.qfi));
            if drb.flows.is_empty() {
                empty.push(drb.id);
            }
        }
        for id in &empty {
            session.remove_drb(&self.shared, *id);
        }
        empty
    }
}

fn not_set_up(qfi: Qfi) -> QosFlowCause {
    QosFlowCause { qfi, cause: RadioNetwork::RadioResourcesNotAvailable.into() }
}
