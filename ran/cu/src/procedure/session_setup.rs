//! PDU Session Resource Setup (TS 38.413 §8.2.1), and what Initial Context Setup has in common with it.

use bytes::Bytes;
use f1ap::ie::{DrbFailed, DrbSetup, DrbToBeSetup};
use l2::keys::AsKeys;
use l2::sdap::DrbId;
use ngap::cause::{Protocol, RadioNetwork};
use ngap::transfer::*;
use ngap::{Cause, PduSessionItem, PduSessionSetupItem};
use rrc::bearer::{DrbToAddMod, RadioBearerConfig};
use types::PduSessionId;

use crate::counters;
use crate::sessions::{Session, protection};
use crate::ue::{Interrupt, Ue};

/// A session that the AMF asked for, and what has become of it so far.
pub(crate) struct Requested {
    id: PduSessionId,
    nas_pdu: Option<Bytes>,
    outcome: Result<Vec<QosFlowCause>, Cause>,
}

impl Ue {
    pub(crate) async fn session_setup(
        &mut self,
        request: ngap::PduSessionResourceSetupRequest,
    ) -> Result<(), Interrupt> {
        self.ue_ambr = request.ue_ambr.or(self.ue_ambr);
        let mut requested = match self.keys.clone() {
            Some(keys) => self.open_sessions(request.pdu_sessions, &keys),
            // Without AS security no data bearer is set up (TS 38.331 §5.3.1.1).
            None => request
                .pdu_sessions
                .into_iter()
                .map(|item| Requested {
                    id: item.id,
                    nas_pdu: item.nas_pdu,
                    outcome: Err(Protocol::MessageNotCompatibleWithReceiverState.into()),
                })
                .collect(),
        };
        let drbs = self.f1_drbs(&requested);
        let mut nas: Vec<Bytes> = request.nas_pdu.into_iter().collect();
        if drbs.is_empty() {
            for nas_pdu in nas {
                self.downlink_nas(nas_pdu).await?;
            }
        } else {
            let response = self.modify_at_du(drbs, Vec::new(), &[]).await?;
            let (done, not_done, cell_group) = match response {
                Some(response) => {
                    let cell_group = response.du_to_cu_rrc_information;
                    (response.drbs, response.drbs_failed, cell_group.map(|du| du.cell_group_config.into()))
                }
                None => (Vec::new(), Vec::new(), None),
            };
            let left_over = self.connect_drbs(&mut requested, &done, &not_done);
            self.release_at_du(left_over).await?;
            let added = self.rrc_drbs(&requested);
            nas.extend(Self::nas_of(&requested));
            if added.is_empty() {
                for nas_pdu in nas {
                    self.downlink_nas(nas_pdu).await?;
                }
            } else {
                let radio_bearers = RadioBearerConfig { drb_to_add_mod_list: added, ..Default::default() };
                self.reconfigure(radio_bearers, cell_group, nas).await?;
            }
        }
        let (pdu_sessions, failed) = self.session_items(&requested);
        counters::PROCEDURES.inc(if failed.is_empty() { "session_setup:ok" } else { "session_setup:failed" });
        self.send_n2(ngap::PduSessionResourceSetupResponse {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            pdu_sessions,
            failed,
            criticality_diagnostics: None,
            user_location: None,
        })
        .await
    }

    /// Opens sessions in the user plane, with their bearers.
    pub(crate) fn open_sessions(&mut self, items: Vec<PduSessionSetupItem>, keys: &AsKeys) -> Vec<Requested> {
        let mut requested = Vec::with_capacity(items.len());
        for PduSessionSetupItem { id, nas_pdu, s_nssai, transfer } in items {
            let outcome = match self.open_session(id, s_nssai, &transfer, keys) {
                Ok(session) => {
                    self.sessions.push(session);
                    Ok(Vec::new())
                }
                Err(cause) => Err(cause),
            };
            requested.push(Requested { id, nas_pdu, outcome });
        }
        requested
    }

    fn open_session(
        &mut self,
        id: PduSessionId,
        s_nssai: types::SNssai,
        transfer: &[u8],
        keys: &AsKeys,
    ) -> Result<Session, Cause> {
        if self.sessions.iter().any(|session| session.id == id) {
            return Err(RadioNetwork::MultiplePduSessionIdInstances.into());
        }
        let request = PduSessionResourceSetupRequestTransfer::decode(transfer)
            .map_err(|_| Cause::from(Protocol::TransferSyntaxError))?;
        let mut qfis: Vec<u8> = request.qos_flows.iter().map(|flow| flow.qfi.value()).collect();
        qfis.sort_unstable();
        if qfis.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(RadioNetwork::MultipleQosFlowIdInstances.into());
        }
        let protection = protection(request.security_indication, keys)?;
        let (shared, f1u) = (&self.shared, self.du.f1u);
        let mut session = Session::open(shared, self.id, id, s_nssai, request.ul_tunnel, protection)?;
        // The default bearer first: with flows that need no guaranteed rate, or else with all.
        let (with_rate, mut without): (Vec<QosFlow>, Vec<QosFlow>) =
            request.qos_flows.into_iter().partition(|flow| flow.parameters.gbr.is_some());
        let mut with_rate = with_rate.into_iter();
        if without.is_empty() {
            without.extend(with_rate.next());
        }
        let bearers = std::iter::once(without).chain(with_rate.map(|flow| vec![flow]));
        for flows in bearers {
            let added = if flows.is_empty() {
                Err(RadioNetwork::InvalidQosCombination.into())
            } else if let Some(drb) = self.drb_ids.take() {
                session.add_drb(shared, f1u, drb, flows, keys).map_err(Cause::from)
            } else {
                Err(RadioNetwork::RadioResourcesNotAvailable.into())
            };
            if let Err(cause) = added {
                session.close(shared);
                return Err(cause);
            }
        }
        Ok(session)
    }

    fn requested<'a>(&'a self, requested: &'a [Requested]) -> impl Iterator<Item = &'a Session> {
        let alive = requested.iter().filter(|one| one.outcome.is_ok());
        alive.filter_map(|one| self.sessions.iter().find(|session| session.id == one.id))
    }

    /// The bearers that the DU is to set up.
    pub(crate) fn f1_drbs(&self, requested: &[Requested]) -> Vec<DrbToBeSetup> {
        let shared = &self.shared;
        let drbs = |session: &Session| -> Vec<_> {
            session.drbs.iter().map(|drb| session.f1_drb(shared, drb)).collect()
        };
        self.requested(requested).flat_map(drbs).collect()
    }

    /// The bearers that the UE is to add.
    pub(crate) fn rrc_drbs(&self, requested: &[Requested]) -> Vec<DrbToAddMod> {
        let shared = &self.shared;
        let drbs = |session: &Session| -> Vec<_> {
            session.drbs.iter().map(|drb| session.rrc_drb(shared, drb)).collect()
        };
        self.requested(requested).flat_map(drbs).collect()
    }

    /// Takes what the DU says of the bearers. A session without default bearer fails; its other bearers are returned, for the DU
    /// to release.
    pub(crate) fn connect_drbs(
        &mut self,
        requested: &mut [Requested],
        set_up: &[DrbSetup],
        failed: &[DrbFailed],
    ) -> Vec<DrbId> {
        let mut left_over = Vec::new();
        failed.iter().for_each(|drb| tracing::debug!(drb = drb.drb_id.0, cause = ?drb.cause, "DRB refused"));
        for one in requested.iter_mut().filter(|one| one.outcome.is_ok()) {
            let Some(at) = self.sessions.iter().position(|session| session.id == one.id) else { continue };
            let session = &mut self.sessions[at];
            let (mut lost_flows, mut default_lost, mut at_du) = (Vec::new(), false, Vec::new());
            for (id, default) in session.drbs.iter().map(|drb| (drb.id, drb.default)).collect::<Vec<_>>() {
                let answer = set_up.iter().find(|answer| answer.drb_id.0 == id.number());
                let tunnel = answer.and_then(|answer| answer.dl_up_tnl.first());
                let connected =
                    tunnel.is_some_and(|tnl| session.connect(&self.shared, self.du.f1u, id, &tnl.tunnel));
                if answer.is_some() {
                    at_du.push(id);
                }
                if !connected && let Some(drb) = session.remove_drb(&self.shared, id) {
                    default_lost |= default;
                    let cause = RadioNetwork::RadioResourcesNotAvailable.into();
                    lost_flows.extend(drb.flows.iter().map(|flow| QosFlowCause { qfi: flow.qfi, cause }));
                    if answer.is_some() && !default_lost {
                        left_over.push(id);
                    }
                }
            }
            if default_lost {
                self.sessions.remove(at).close(&self.shared);
                left_over.extend(at_du);
                one.outcome = Err(RadioNetwork::RadioResourcesNotAvailable.into());
            } else {
                one.outcome = Ok(lost_flows);
            }
        }
        left_over.sort_unstable();
        left_over.dedup();
        left_over
    }

    /// The NAS messages of sessions with resources; those of others are not delivered (TS 38.413 §8.2.1.2).
    pub(crate) fn nas_of(requested: &[Requested]) -> Vec<Bytes> {
        let alive = requested.iter().filter(|one| one.outcome.is_ok());
        alive.filter_map(|one| one.nas_pdu.clone()).collect()
    }

    /// What the AMF is told of the sessions: those set up, and those that were not.
    pub(crate) fn session_items(
        &self,
        requested: &[Requested],
    ) -> (Vec<PduSessionItem>, Vec<PduSessionItem>) {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for one in requested {
            let session = self.sessions.iter().find(|session| session.id == one.id);
            match (&one.outcome, session) {
                (Ok(lost), Some(session)) => {
                    let response = PduSessionResourceSetupResponseTransfer {
                        dl_tunnel: session.n3_tunnel(&self.shared),
                        qos_flows: session.flows(),
                        security_result: session.security_result,
                        failed_qos_flows: lost.clone(),
                    };
                    match response.encode() {
                        Ok(transfer) => done.push(PduSessionItem { id: one.id, transfer }),
                        Err(error) => {
                            tracing::error!(%error, "a transfer of ours does not encode");
                            failed.extend(Self::failed_item(one.id, RadioNetwork::Unspecified.into()));
                        }
                    }
                }
                (Err(cause), _) => failed.extend(Self::failed_item(one.id, *cause)),
                (Ok(_), None) => failed.extend(Self::failed_item(one.id, RadioNetwork::Unspecified.into())),
            }
        }
        (done, failed)
    }

    /// A session that was not set up.
    pub(crate) fn failed_item(id: PduSessionId, cause: Cause) -> Option<PduSessionItem> {
        let transfer = PduSessionResourceSetupUnsuccessfulTransfer { cause, criticality_diagnostics: None };
        transfer.encode().ok().map(|transfer| PduSessionItem { id, transfer })
    }
}
