//! What a gNB does for one UE: the UE-associated logical connection on N2.
//!
//! [`Connection::next`] performs the gNB's part of what the AMF asks for (context set-up, session
//! resources, release) and passes the results to the UE as [`Downlink`] events, in order. Tests that
//! want the messages themselves call [`Connection::next_pdu`] instead and answer with [`Gnb::send`](n2::Gnb::send).
//!
//! Each UE owns its connection. Dropping the connection makes the gNB forget the UE without telling the
//! AMF.

use std::collections::VecDeque;

use bytes::Bytes;
use net::sctp::SendError;
use ngap::cause::{RadioNetwork, Transport};
use ngap::transfer::{
    PduSessionResourceModifyRequestTransfer, PduSessionResourceModifyResponseTransfer,
    PduSessionResourceModifyUnsuccessfulTransfer, PduSessionResourceReleaseResponseTransfer,
    PduSessionResourceSetupRequestTransfer, PduSessionResourceSetupResponseTransfer,
    PduSessionResourceSetupUnsuccessfulTransfer,
};
use ngap::{
    AmfUeNgapId, Cause, Pdu, PduSessionItem, PduSessionSetupItem, RanUeNgapId, RrcEstablishmentCause,
};
use types::{Key, PduSessionId, PduSessionType, Qfi, STmsi};

use super::Gnb;
use crate::user_plane::Tunnel;

/// The radio bearer of a PDU session: its tunnel to the UPF and what the gNB was told about it.
#[derive(Debug)]
pub struct Bearer {
    /// The session.
    pub id: PduSessionId,
    /// Its type.
    pub session_type: PduSessionType,
    /// The QoS flows; the first one carries everything in this simulation.
    pub qos_flows: Vec<Qfi>,
    /// The tunnel between gNB and UPF.
    pub tunnel: Tunnel,
}

/// An event for the UE.
#[derive(Debug)]
pub enum Downlink {
    /// A NAS message.
    Nas(Bytes),
    /// Radio resources of sessions were set up. The AMF hears of it with [`Connection::confirm`].
    SessionsUp(Vec<Bearer>),
    /// Radio resources of a session are gone.
    SessionDown(PduSessionId),
    /// The connection is released; nothing follows.
    Released(Cause),
    /// The AMF sent an Error Indication about a message of this UE.
    ErrorIndication(ngap::ErrorIndication),
}

/// One UE's connection.
#[derive(Debug)]
pub struct Connection {
    gnb: Gnb,
    n2: n2::Ue,
    /// Why the UE opened it.
    cause: RrcEstablishmentCause,
    /// Events that the UE has not read yet.
    pending: VecDeque<Downlink>,
    /// The answer to a set-up whose resources the UE has not taken yet, see [`Connection::confirm`].
    answer: Option<Pdu>,
    /// Sessions with radio resources on this gNB.
    sessions: Vec<PduSessionId>,
    /// KgNB, as the AMF has given it.
    k_gnb: Option<Key<32>>,
}

impl Connection {
    pub(super) fn new(gnb: Gnb, n2: n2::Ue, cause: RrcEstablishmentCause) -> Self {
        Self { gnb, n2, cause, pending: VecDeque::new(), answer: None, sessions: Vec::new(), k_gnb: None }
    }

    /// KgNB, once the AMF has set up the UE's context. Radio security is not simulated on a gNB in one piece.
    pub fn k_gnb(&self) -> Option<&Key<32>> {
        self.k_gnb.as_ref()
    }

    /// The gNB it goes through.
    pub fn gnb(&self) -> &Gnb {
        &self.gnb
    }

    /// The gNB's identity of the UE.
    pub fn ran_ue_ngap_id(&self) -> RanUeNgapId {
        self.n2.ran_ue_ngap_id()
    }

    /// The AMF's identity of the UE, once it has given one.
    pub fn amf_ue_ngap_id(&self) -> Option<AmfUeNgapId> {
        self.n2.amf_ue_ngap_id()
    }

    /// Sends a NAS message: the first one in an Initial UE Message, the others in Uplink NAS Transport.
    /// `s_tmsi` is the temporary identity that the UE gave the gNB in RRC.
    pub async fn send_nas(
        &mut self,
        nas_pdu: impl Into<Bytes>,
        s_tmsi: Option<STmsi>,
    ) -> Result<(), SendError> {
        let nas_pdu = nas_pdu.into();
        let ran_ue_ngap_id = self.ran_ue_ngap_id();
        let pdu = match self.amf_ue_ngap_id() {
            Some(amf_ue_ngap_id) => Pdu::from(ngap::UplinkNasTransport {
                amf_ue_ngap_id,
                ran_ue_ngap_id,
                nas_pdu,
                user_location: Some(self.gnb.location()),
            }),
            None => Pdu::from(ngap::InitialUeMessage {
                ran_ue_ngap_id,
                nas_pdu,
                user_location: self.gnb.location(),
                rrc_establishment_cause: self.cause,
                s_tmsi,
                amf_set_id: None,
                ue_context_request: true,
                allowed_nssai: None,
            }),
        };
        self.gnb.send(pdu).await
    }

    /// Asks the AMF to release the connection (TS 23.502 §4.2.6, AN release), for example after user
    /// inactivity.
    pub async fn request_release(&self, cause: impl Into<Cause>) -> Result<(), SendError> {
        let Some(amf_ue_ngap_id) = self.amf_ue_ngap_id() else { return Ok(()) };
        let request = ngap::UeContextReleaseRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id: self.ran_ue_ngap_id(),
            pdu_sessions: self.sessions.clone(),
            cause: cause.into(),
        };
        self.gnb.send(request).await
    }

    /// The next message from the AMF about this UE, which the gNB has not answered. `None` when the gNB
    /// has forgotten the UE because its association ended or was reset.
    pub async fn next_pdu(&mut self) -> Option<Pdu> {
        self.n2.next_pdu().await
    }

    /// The next event for the UE. Answers the AMF where the gNB has to. Cancel-safe between messages.
    pub async fn next(&mut self) -> Option<Downlink> {
        loop {
            // Resources to take are always first.
            if !matches!(self.pending.front(), Some(Downlink::SessionsUp(_))) {
                self.confirm().await?;
            }
            if let Some(ready) = self.pending.pop_front() {
                return Some(ready);
            }
            let pdu = self.next_pdu().await?;
            unless_failed(self.perform(pdu).await)?;
        }
    }

    /// The UE has taken the resources of [`Downlink::SessionsUp`]: the AMF gets its answer, and packets that the UPF
    /// keeps for the UE follow at once. `None` as with [`Connection::next`]. Cancel-safe.
    pub async fn confirm(&mut self) -> Option<()> {
        if let Some(answer) = &self.answer {
            unless_failed(self.gnb.send(answer.clone()).await)?;
            self.answer = None;
        }
        Some(())
    }

    /// Does what a message asks of the gNB and queues the events that follow for the UE.
    async fn perform(&mut self, pdu: Pdu) -> Result<(), SendError> {
        match pdu {
            Pdu::DownlinkNasTransport(transport) => self.pending.push_back(Downlink::Nas(transport.nas_pdu)),
            Pdu::InitialContextSetupRequest(request) => self.initial_context_setup(request),
            Pdu::PduSessionResourceSetupRequest(request) => self.session_setup(request),
            Pdu::PduSessionResourceModifyRequest(request) => return self.session_modify(request).await,
            Pdu::PduSessionResourceReleaseCommand(command) => return self.session_release(command).await,
            Pdu::UeContextReleaseCommand(command) => return self.context_release(command).await,
            Pdu::UeContextModificationRequest(request) => {
                if let Some(new) = request.new_amf_ue_ngap_id {
                    self.n2.learn(new);
                }
                let response = ngap::UeContextModificationResponse {
                    amf_ue_ngap_id: request.amf_ue_ngap_id,
                    ran_ue_ngap_id: request.ran_ue_ngap_id,
                    user_location: Some(self.gnb.location()),
                    criticality_diagnostics: None,
                };
                return self.gnb.send(response).await;
            }
            Pdu::ErrorIndication(error) => self.pending.push_back(Downlink::ErrorIndication(error)),
            other => tracing::debug!(message = other.name(), "a message no gNB expects from an AMF"),
        }
        Ok(())
    }

    /// Initial Context Setup (TS 38.413 §8.3.1). Radio security is not simulated: the key is accepted.
    fn initial_context_setup(&mut self, request: ngap::InitialContextSetupRequest) {
        let (pdu_sessions, failed, nas_pdus) = self.set_up(&request.pdu_sessions);
        let response = ngap::InitialContextSetupResponse {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            pdu_sessions,
            failed,
            criticality_diagnostics: None,
        };
        self.k_gnb = Some(request.security_key);
        self.answer = Some(response.into());
        self.pending.extend(nas_pdus.into_iter().chain(request.nas_pdu).map(Downlink::Nas));
    }

    /// PDU Session Resource Setup (TS 38.413 §8.2.1).
    fn session_setup(&mut self, request: ngap::PduSessionResourceSetupRequest) {
        let (pdu_sessions, failed, nas_pdus) = self.set_up(&request.pdu_sessions);
        let response = ngap::PduSessionResourceSetupResponse {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            pdu_sessions,
            failed,
            criticality_diagnostics: None,
            user_location: None,
        };
        self.answer = Some(response.into());
        self.pending.extend(request.nas_pdu.into_iter().chain(nas_pdus).map(Downlink::Nas));
    }

    /// Opens a tunnel for each session, for the UE to take; what succeeded, what failed, and the sessions' NAS messages.
    fn set_up(
        &mut self,
        items: &[PduSessionSetupItem],
    ) -> (Vec<PduSessionItem>, Vec<PduSessionItem>, Vec<Bytes>) {
        let (mut done, mut failed, mut nas_pdus) = (Vec::new(), Vec::new(), Vec::new());
        let mut bearers = Vec::new();
        for item in items {
            match self.set_up_one(item) {
                Ok((transfer, bearer)) => {
                    self.sessions.push(item.id);
                    done.push(PduSessionItem { id: item.id, transfer });
                    bearers.push(bearer);
                    nas_pdus.extend(item.nas_pdu.clone());
                }
                // A NAS message of a session without resources is not delivered (TS 38.413 §8.2.1.2).
                Err(cause) => {
                    let transfer =
                        PduSessionResourceSetupUnsuccessfulTransfer { cause, criticality_diagnostics: None };
                    let transfer = transfer.encode().expect("a cause alone encodes");
                    failed.push(PduSessionItem { id: item.id, transfer });
                }
            }
        }
        if !bearers.is_empty() {
            self.pending.push_back(Downlink::SessionsUp(bearers));
        }
        (done, failed, nas_pdus)
    }

    fn set_up_one(&self, item: &PduSessionSetupItem) -> Result<(Bytes, Bearer), Cause> {
        if self.sessions.contains(&item.id) {
            return Err(RadioNetwork::MultiplePduSessionIdInstances.into());
        }
        let request = PduSessionResourceSetupRequestTransfer::decode(&item.transfer)
            .map_err(|_| Cause::Protocol(ngap::cause::Protocol::TransferSyntaxError))?;
        let user_plane = self.gnb.user_plane().ok_or(Transport::TransportResourceUnavailable)?;
        let qos_flows: Vec<Qfi> = request.qos_flows.iter().map(|flow| flow.qfi).collect();
        let first = *qos_flows.first().ok_or(RadioNetwork::InvalidQosCombination)?;
        let upf = request.ul_tunnel;
        let tunnel = user_plane
            .open(upf.address.preferred(), upf.teid, Some(first))
            .map_err(|_| Transport::TransportResourceUnavailable)?;
        let response = PduSessionResourceSetupResponseTransfer {
            dl_tunnel: tunnel.local(),
            qos_flows: qos_flows.clone(),
            security_result: None,
            failed_qos_flows: Vec::new(),
        };
        let transfer = response.encode().map_err(|_| RadioNetwork::Unspecified)?;
        Ok((transfer, Bearer { id: item.id, session_type: request.pdu_session_type, qos_flows, tunnel }))
    }

    /// PDU Session Resource Modify (TS 38.413 §8.2.3): flows are accepted, tunnels stay.
    async fn session_modify(
        &mut self,
        request: ngap::PduSessionResourceModifyRequest,
    ) -> Result<(), SendError> {
        let (mut pdu_sessions, mut failed) = (Vec::new(), Vec::new());
        for item in request.pdu_sessions {
            let known = self.sessions.contains(&item.id);
            match PduSessionResourceModifyRequestTransfer::decode(&item.transfer) {
                Ok(transfer) if known => {
                    let response = PduSessionResourceModifyResponseTransfer {
                        qos_flows: transfer.qos_flows.iter().map(|flow| flow.qfi).collect(),
                        ..Default::default()
                    };
                    let transfer = response.encode().expect("flows of a decoded list encode");
                    pdu_sessions.push(PduSessionItem { id: item.id, transfer });
                    self.pending.extend(item.nas_pdu.map(Downlink::Nas));
                }
                _ => {
                    let transfer = PduSessionResourceModifyUnsuccessfulTransfer {
                        cause: RadioNetwork::UnknownPduSessionId.into(),
                        criticality_diagnostics: None,
                    };
                    let transfer = transfer.encode().expect("a cause alone encodes");
                    failed.push(PduSessionItem { id: item.id, transfer });
                }
            }
        }
        let response = ngap::PduSessionResourceModifyResponse {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            pdu_sessions,
            failed,
            user_location: None,
            criticality_diagnostics: None,
        };
        self.gnb.send(response).await
    }

    /// PDU Session Resource Release (TS 38.413 §8.2.2).
    async fn session_release(
        &mut self,
        command: ngap::PduSessionResourceReleaseCommand,
    ) -> Result<(), SendError> {
        let transfer = PduSessionResourceReleaseResponseTransfer.encode().expect("an empty transfer encodes");
        let released = command.pdu_sessions.iter();
        let pdu_sessions = released.map(|item| PduSessionItem { id: item.id, transfer: transfer.clone() });
        let response = ngap::PduSessionResourceReleaseResponse {
            amf_ue_ngap_id: command.amf_ue_ngap_id,
            ran_ue_ngap_id: command.ran_ue_ngap_id,
            pdu_sessions: pdu_sessions.collect(),
            user_location: Some(self.gnb.location()),
            criticality_diagnostics: None,
        };
        self.gnb.send(response).await?;
        for item in &command.pdu_sessions {
            self.sessions.retain(|id| *id != item.id);
            self.pending.push_back(Downlink::SessionDown(item.id));
        }
        self.pending.extend(command.nas_pdu.map(Downlink::Nas));
        Ok(())
    }

    /// UE Context Release (TS 38.413 §8.3.3).
    async fn context_release(&mut self, command: ngap::UeContextReleaseCommand) -> Result<(), SendError> {
        if let Some(amf_ue_ngap_id) = self.amf_ue_ngap_id() {
            let complete = ngap::UeContextReleaseComplete {
                amf_ue_ngap_id,
                ran_ue_ngap_id: self.ran_ue_ngap_id(),
                user_location: Some(self.gnb.location()),
                pdu_sessions: std::mem::take(&mut self.sessions),
                criticality_diagnostics: None,
            };
            self.gnb.send(complete).await?;
        }
        self.pending.push_back(Downlink::Released(command.cause));
        Ok(())
    }
}

/// `None` when the gNB could not answer the AMF.
fn unless_failed(sent: Result<(), SendError>) -> Option<()> {
    sent.inspect_err(|error| tracing::debug!(%error, "the gNB could not answer the AMF")).ok()
}
