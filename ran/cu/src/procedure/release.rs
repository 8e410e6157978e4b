//! UE Context Release (TS 38.413 §8.3.2, §8.3.3; TS 38.401 §8.3; TS 38.473 §8.3.3): how a connection ends.

use std::time::Duration;

use bytes::Bytes;
use f1ap::Pdu as F1;
use f1ap::cause::{Cause as F1Cause, RadioNetwork as F1RadioNetwork};
use f1ap::ie::{ResetType, SrbId, TransactionId, UeAssociation};
use f1ap::message::{Reset, UeContextReleaseCommand};
use ngap::cause::RadioNetwork;
use ngap::{Cause, Pdu as Ngap};
use rrc::message::RrcRelease;

use crate::counters;
use crate::ue::{Interrupt, N2_SEND_LIMIT, Step, Ue};

/// How long the AMF may take for its command when the CU asks for the release.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);
/// How long the DU may take to release a UE.
const DU_LIMIT: Duration = Duration::from_secs(3);

impl Interrupt {
    /// Its name in counters.
    fn name(&self) -> &'static str {
        match self {
            Interrupt::Commanded(_) => "commanded",
            Interrupt::DuLost => "du_lost",
            Interrupt::Overrun => "overrun",
            Interrupt::DuAsks(_) => "du_asks",
            Interrupt::AmfLost => "amf_lost",
            Interrupt::TunnelLost => "tunnel_lost",
            Interrupt::Inactive => "inactive",
            Interrupt::NoAnswer(_) => "no_answer",
            Interrupt::Refused { .. } => "refused",
            Interrupt::Failed(_) => "failed",
            Interrupt::Stopping => "stopping",
        }
    }

    /// Why the AMF is asked for the release; `None` if it is not.
    fn ngap_cause(&self) -> Option<Cause> {
        Some(match self {
            Interrupt::Commanded(_)
            | Interrupt::AmfLost
            | Interrupt::Refused { .. }
            | Interrupt::Stopping => return None,
            Interrupt::DuLost => RadioNetwork::RadioConnectionWithUeLost.into(),
            Interrupt::DuAsks(cause) => of_du(*cause),
            Interrupt::TunnelLost => ngap::cause::Transport::TransportResourceUnavailable.into(),
            Interrupt::Inactive => RadioNetwork::UserInactivity.into(),
            Interrupt::NoAnswer(_) => RadioNetwork::FailureInRadioInterfaceProcedure.into(),
            Interrupt::Failed(_) | Interrupt::Overrun => {
                RadioNetwork::ReleaseDueToNgranGeneratedReason.into()
            }
        })
    }

    /// Whether a message can reach the UE all the same.
    fn leaves_ue_reachable(&self) -> bool {
        matches!(
            self,
            Interrupt::Commanded(_) | Interrupt::Inactive | Interrupt::TunnelLost | Interrupt::Failed(_)
        )
    }
}

/// What the AMF is told when a DU asks for the release.
fn of_du(cause: F1Cause) -> Cause {
    match cause {
        F1Cause::RadioNetwork(F1RadioNetwork::RlFailureRlc | F1RadioNetwork::RlFailureOthers) => {
            RadioNetwork::RadioConnectionWithUeLost.into()
        }
        F1Cause::RadioNetwork(F1RadioNetwork::NoRadioResourcesAvailable) => {
            RadioNetwork::RadioResourcesNotAvailable.into()
        }
        F1Cause::Transport(_) => ngap::cause::Transport::TransportResourceUnavailable.into(),
        _ => RadioNetwork::ReleaseDueToNgranGeneratedReason.into(),
    }
}

impl Ue {
    /// Ends the connection: asks the AMF if the end is not its own, tells the DU, which tells the UE, and frees all resources.
    pub(crate) async fn release(&mut self, interrupt: Interrupt) {
        counters::UES_ENDED.inc(interrupt.name());
        let mut du_lost = matches!(interrupt, Interrupt::DuLost | Interrupt::Overrun);
        let reachable = interrupt.leaves_ue_reachable();
        let commanded = match interrupt.ngap_cause() {
            Some(cause) => self.ask_amf(cause, reachable, &mut du_lost).await,
            None => matches!(interrupt, Interrupt::Commanded(_)),
        };
        if matches!(interrupt, Interrupt::Commanded(_)) {
            // What the AMF has sent before its command.
            self.last_nas(true, RadioNetwork::ReleaseDueTo5gcGeneratedReason.into()).await;
        }
        let f1_cause = F1Cause::RadioNetwork(match &interrupt {
            Interrupt::Commanded(_) | Interrupt::Inactive | Interrupt::DuAsks(_) => {
                F1RadioNetwork::NormalRelease
            }
            Interrupt::AmfLost => F1RadioNetwork::AmfInitiatedAbnormalRelease,
            Interrupt::Refused { .. } => F1RadioNetwork::UeRejection,
            _ => F1RadioNetwork::Unspecified,
        });
        let overrun = matches!(interrupt, Interrupt::Overrun);
        let last = match interrupt {
            Interrupt::Refused { reject, .. } => reject.map(|reject| (SrbId(0), reject)),
            _ => self.rrc_release(),
        };
        if overrun {
            // Its answer would not be heard.
            let _ = self.command_du(f1_cause, last).await;
        } else if !du_lost {
            self.release_du(f1_cause, last).await;
        }
        let pdu_sessions = self.sessions.iter().map(|session| session.id).collect();
        for session in self.sessions.drain(..) {
            session.close(&self.shared);
        }
        if commanded
            && let Some(n2) = &self.n2
            && let Some(amf_ue_ngap_id) = n2.amf_ue_ngap_id()
        {
            let complete = ngap::UeContextReleaseComplete {
                amf_ue_ngap_id,
                ran_ue_ngap_id: n2.ran_ue_ngap_id(),
                user_location: Some(self.location(n2.gnb())),
                pdu_sessions,
                criticality_diagnostics: None,
            };
            // The AMF has forgotten the UE if the association ends now.
            let _ = self.send_n2(complete).await;
        }
    }

    /// UE CONTEXT RELEASE REQUEST (TS 38.413 §8.3.2), and the command that follows; whether it came. An AMF that sends none is told
    /// with a reset.
    async fn ask_amf(&mut self, cause: Cause, reachable: bool, du_lost: &mut bool) -> bool {
        self.last_nas(reachable && !*du_lost, cause).await;
        let Some(n2) = &self.n2 else { return false };
        let (gnb, ran_ue_ngap_id) = (n2.gnb().clone(), n2.ran_ue_ngap_id());
        if let Some(amf_ue_ngap_id) = n2.amf_ue_ngap_id() {
            let request = ngap::UeContextReleaseRequest {
                amf_ue_ngap_id,
                ran_ue_ngap_id,
                pdu_sessions: self.sessions.iter().map(|session| session.id).collect(),
                cause,
            };
            if self.send_n2(request).await.is_err() {
                return false;
            }
            let deadline = net::time::now() + COMMAND_LIMIT;
            loop {
                let step =
                    if *du_lost { self.of_amf_only(deadline).await } else { self.step(Some(deadline)).await };
                match step {
                    Err(Interrupt::Commanded(_)) => return true,
                    Err(Interrupt::DuLost | Interrupt::Overrun) => *du_lost = true,
                    Err(Interrupt::AmfLost) => return false,
                    Err(Interrupt::Stopping) => break,
                    Ok(None) => {
                        counters::PROCEDURES.inc("ue_context_release_request:unanswered");
                        break;
                    }
                    Ok(Some(Step::N2(pdu))) => {
                        self.deferred.push_back(*pdu);
                        self.last_nas(reachable && !*du_lost, cause).await;
                    }
                    Ok(Some(_)) | Err(_) => {}
                }
            }
        }
        // It fails only with the association, or with an AMF that does not read.
        let _ = net::time::timeout(N2_SEND_LIMIT, gnb.reset_ues(cause, [ran_ue_ngap_id])).await;
        false
    }

    /// NAS for the UE that has waited for the procedure under way, or comes now, with the end of the connection before it: it goes to a
    /// UE that can be reached, else back to the AMF (TS 38.413 §8.6.4). The release answers what else the AMF has asked for.
    async fn last_nas(&mut self, reachable: bool, cause: Cause) {
        for pdu in std::mem::take(&mut self.deferred) {
            let Ngap::DownlinkNasTransport(transport) = pdu else { continue };
            let reachable = reachable && !self.rrc.awaits_ciphering();
            if !reachable || self.downlink_nas(transport.nas_pdu.clone()).await.is_err() {
                self.nas_not_delivered(transport.nas_pdu, cause).await;
            }
        }
    }

    /// NAS NON DELIVERY INDICATION (TS 38.413 §8.6.4).
    pub(crate) async fn nas_not_delivered(&self, nas_pdu: Bytes, cause: Cause) {
        counters::N2_REJECTED.inc("nas_not_delivered");
        let Some(n2) = &self.n2 else { return };
        let Some(amf_ue_ngap_id) = n2.amf_ue_ngap_id() else { return };
        let indication = ngap::NasNonDeliveryIndication {
            amf_ue_ngap_id,
            ran_ue_ngap_id: n2.ran_ue_ngap_id(),
            nas_pdu: Some(nas_pdu),
            cause,
        };
        // Without association the AMF knows that nothing arrives.
        let _ = self.send_n2(indication).await;
    }

    /// The next message of the AMF, when there is no DU to hear from.
    async fn of_amf_only(&mut self, deadline: net::time::Instant) -> Result<Option<Step>, Interrupt> {
        let Some(n2) = &mut self.n2 else { return Err(Interrupt::AmfLost) };
        tokio::select! {
            pdu = n2.next_pdu() => match pdu {
                Some(ngap::Pdu::UeContextReleaseCommand(command)) => Err(Interrupt::Commanded(command)),
                Some(pdu) => Ok(Some(Step::N2(Box::new(pdu)))),
                None => Err(Interrupt::AmfLost),
            },
            () = net::time::sleep_until(deadline) => Ok(None),
        }
    }

    /// RRCRelease (TS 38.331 §5.3.8) for a UE that has a connection.
    fn rrc_release(&mut self) -> Option<(SrbId, Vec<u8>)> {
        let transaction = self.rrc.next_transaction();
        let release =
            RrcRelease { rrc_transaction_identifier: transaction, deprioritisation_req: None, v1540: None };
        if self.connected { self.rrc.seal(1, release).ok().map(|pdu| (SrbId(1), pdu)) } else { None }
    }

    /// UE CONTEXT RELEASE COMMAND, with the last message for the UE.
    async fn command_du(&self, cause: F1Cause, last: Option<(SrbId, Vec<u8>)>) -> Result<(), Interrupt> {
        let (gnb_cu_ue_f1ap_id, gnb_du_ue_f1ap_id) = self.f1_ids();
        let (srb_id, rrc_container) = last.unzip();
        self.send_f1(UeContextReleaseCommand {
            gnb_cu_ue_f1ap_id,
            gnb_du_ue_f1ap_id,
            cause,
            rrc_container,
            srb_id,
        })
        .await
    }

    /// Has the DU release the UE, and waits until it has. A DU that does not answer is told to forget the UE.
    async fn release_du(&mut self, cause: F1Cause, last: Option<(SrbId, Vec<u8>)>) {
        if self.command_du(cause, last).await.is_err() {
            return;
        }
        let deadline = net::time::now() + DU_LIMIT;
        loop {
            match self.step(Some(deadline)).await {
                Ok(Some(Step::F1(pdu))) if matches!(*pdu, F1::UeContextReleaseComplete(_)) => return,
                Err(Interrupt::DuLost | Interrupt::Overrun) => return,
                // The AMF need not be there any more.
                Err(Interrupt::AmfLost) => self.n2 = None,
                Ok(Some(_)) | Err(_) => {}
                Ok(None) => {
                    counters::PROCEDURES.inc("ue_context_release:unanswered");
                    return self.reset_at_du().await;
                }
            }
        }
    }

    /// RESET of this UE alone (TS 38.473 §8.2.1.2.1): its numbers must not stay in use at the DU. Whether the DU acknowledges it
    /// changes nothing here.
    async fn reset_at_du(&self) {
        let (cu, du) = self.f1_ids();
        let ue = UeAssociation { gnb_cu_ue_f1ap_id: Some(cu), gnb_du_ue_f1ap_id: Some(du) };
        let reset = Reset {
            transaction_id: TransactionId(self.id as u8),
            cause: F1Cause::RadioNetwork(F1RadioNetwork::ProcedureCancelled),
            reset_type: ResetType::PartOfF1Interface(vec![ue]),
        };
        // A DU that cannot be told is lost, and with it the UE.
        let _ = self.du.send(None, &reset.into()).await;
    }
}
