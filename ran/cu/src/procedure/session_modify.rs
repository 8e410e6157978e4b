//! PDU Session Resource Modify (TS 38.413 §8.2.3): flows are added, changed and released, and the UPF's end of the tunnel moves.

use l2::keys::AsKeys;
use l2::sdap::DrbId;
use ngap::cause::{Protocol, RadioNetwork};
use ngap::transfer::*;
use ngap::{Cause, GtpTunnel, PduSessionItem, PduSessionModifyItem};
use rrc::bearer::{DrbToAddMod, RadioBearerConfig};
use types::Qfi;

use crate::counters;
use crate::sessions::{Drb, drb_identity};
use crate::ue::{Interrupt, Ue};

/// The bearers that a request needs from the DU.
#[derive(Default)]
struct Changes {
    /// New ones, each with its flow.
    added: Vec<(DrbId, Qfi)>,
    /// Those that have another QoS: with the flow, and what it was before if it was there.
    changed: Vec<(DrbId, Qfi, Option<QosFlow>)>,
}

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
        if let Err(cause) = self.move_tunnel(at, &request.ul_tunnels) {
            return Ok(Err(cause));
        }
        let mut response = PduSessionResourceModifyResponseTransfer::default();
        // First what goes: a flow may be released and come anew in one request.
        let released = self.release_flows(at, &request.released_qos_flows);
        let Changes { added, changed } = self.change_flows(at, request.qos_flows, &keys, &mut response);
        let (mut new_drbs, mut cell_group) = (Vec::<DrbToAddMod>::new(), None);
        if !added.is_empty() || !changed.is_empty() || !released.is_empty() {
            let session = &self.sessions[at];
            let is_added = |drb: &&Drb| added.iter().any(|(id, _)| *id == drb.id);
            let drbs = session.drbs.iter().filter(is_added);
            let drbs = drbs.map(|drb| session.f1_drb(&self.shared, drb)).collect();
            let is_changed = |drb: &&Drb| changed.iter().any(|(id, ..)| *id == drb.id);
            let modified = session.drbs.iter().filter(is_changed);
            let modified = modified.map(|drb| session.f1_drb_modified(&self.shared, drb)).collect();
            let answer = self.modify_at_du(drbs, modified, &released).await?;
            let set_up = answer.as_ref().map_or(&[][..], |answer| &answer.drbs);
            let session = &mut self.sessions[at];
            let mut left_over = Vec::new();
            for (drb, qfi) in added {
                let of_du = set_up.iter().find(|answer| answer.drb_id.0 == drb.number());
                let tunnel = of_du.and_then(|answer| answer.dl_up_tnl.first());
                if tunnel.is_some_and(|tnl| session.connect(&self.shared, self.du.f1u, drb, &tnl.tunnel)) {
                    response.qos_flows.push(qfi);
                    let drb = session.drbs.iter().find(|known| known.id == drb);
                    new_drbs.extend(drb.map(|drb| session.rrc_drb(&self.shared, drb)));
                } else {
                    session.remove_drb(&self.shared, drb);
                    response.failed_qos_flows.push(not_set_up(qfi));
                    left_over.extend(of_du.map(|_| drb));
                }
            }
            let done = answer.as_ref().map_or(&[][..], |answer| &answer.drbs_modified);
            for (drb, qfi, before) in changed {
                if done.iter().any(|done| done.drb_id.0 == drb.number()) {
                    response.qos_flows.push(qfi);
                } else {
                    session.set_flow(drb, qfi, before);
                    response.failed_qos_flows.push(not_set_up(qfi));
                }
            }
            for drb in &released {
                session.remove_drb(&self.shared, *drb);
            }
            cell_group = answer.and_then(|answer| answer.du_to_cu_rrc_information);
            self.release_at_du(left_over).await?;
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

    /// UL NG-U UP TNL Modify List (TS 38.413 §8.2.3.2): packets of the UE go to another end at the UPF. A session has one tunnel.
    fn move_tunnel(&mut self, at: usize, ends: &[(GtpTunnel, GtpTunnel)]) -> Result<(), Cause> {
        let session = &mut self.sessions[at];
        match ends {
            [] => Ok(()),
            [(upf, own)] if *own == session.n3_tunnel(&self.shared) => {
                session.move_to(&self.shared, *upf).map_err(Cause::from)
            }
            _ => Err(RadioNetwork::Unspecified.into()),
        }
    }

    /// Adds and changes flows. One with a guaranteed rate has a bearer of its own, others are the default bearer's: a flow that is
    /// there cannot become one of the other kind.
    fn change_flows(
        &mut self,
        at: usize,
        flows: Vec<QosFlowChange>,
        keys: &AsKeys,
        response: &mut PduSessionResourceModifyResponseTransfer,
    ) -> Changes {
        let session = &mut self.sessions[at];
        let mut changes = Changes::default();
        for QosFlowChange { qfi, parameters } in flows {
            let known = session.flow(qfi).map(|(drb, flow)| (drb.id, flow.clone()));
            match (known, parameters) {
                (Some(_), None) => response.qos_flows.push(qfi),
                (Some((drb, before)), Some(parameters))
                    if before.parameters.gbr.is_some() == parameters.gbr.is_some() =>
                {
                    session.set_flow(drb, qfi, Some(QosFlow { qfi, parameters }));
                    changes.changed.push((drb, qfi, Some(before)));
                }
                (None, Some(parameters)) if parameters.gbr.is_some() => {
                    let flow = QosFlow { qfi, parameters };
                    let drb = self.drb_ids.take().filter(|drb| {
                        session.add_drb(&self.shared, self.du.f1u, *drb, vec![flow], keys).is_ok()
                    });
                    match drb {
                        Some(drb) => changes.added.push((drb, qfi)),
                        None => response.failed_qos_flows.push(not_set_up(qfi)),
                    }
                }
                (None, Some(parameters)) => {
                    match session.drbs.iter().find(|drb| drb.default).map(|drb| drb.id) {
                        Some(drb) => {
                            session.set_flow(drb, qfi, Some(QosFlow { qfi, parameters }));
                            changes.changed.push((drb, qfi, None));
                        }
                        None => response.failed_qos_flows.push(not_set_up(qfi)),
                    }
                }
                (Some(_), Some(_)) | (None, None) => response.failed_qos_flows.push(not_set_up(qfi)),
            }
        }
        changes
    }

    /// Removes flows; returns the bearers that carried nothing else, for the DU to release first: until then it sends on their tunnels,
    /// and must not hear that they are unknown. The default bearer stays.
    fn release_flows(&mut self, at: usize, flows: &[QosFlowCause]) -> Vec<DrbId> {
        let session = &mut self.sessions[at];
        for drb in session.drbs.iter_mut().filter(|drb| !drb.default) {
            drb.flows.retain(|flow| !flows.iter().any(|gone| gone.qfi == flow.qfi));
        }
        let empty = session.drbs.iter().filter(|drb| drb.flows.is_empty());
        empty.inspect(|drb| session.unwatch_drb(&self.shared, drb)).map(|drb| drb.id).collect()
    }
}

fn not_set_up(qfi: Qfi) -> QosFlowCause {
    QosFlowCause { qfi, cause: RadioNetwork::RadioResourcesNotAvailable.into() }
}
