//! UE Context Release (TS 38.413 §8.3.2, §8.3.3; TS 38.401 §8.3; TS 38.473 §8.3.3): how a connection ends.

use std::time::Duration;

use f1ap::Pdu as F1;
use f1ap::cause::{Cause as F1Cause, RadioNetwork as F1RadioNetwork};
use f1ap::ie::SrbId;
use f1ap::message::UeContextReleaseCommand;
use ngap::Cause;
use ngap::cause::RadioNetwork;
use rrc::message::RrcRelease;

use crate::counters;
use crate::ue::{Interrupt, Step, Ue};

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
            Interrupt::Refused(_) => "refused",
            Interrupt::Failed(_) => "failed",
            Interrupt::Stopping => "stopping",
        }
    }

    /// Why the AMF is asked for the release; `None` if it is not.
    fn ngap_cause(&self) -> Option<Cause> {
        Some(match self {
            Interrupt::Commanded(_) | Interrupt::AmfLost | Interrupt::Refused(_) | Interrupt::Stopping => {
                return None;
            }
            Interrupt::DuLost | Interrupt::DuAsks(_) => RadioNetwork::RadioConnectionWithUeLost.into(),
            Interrupt::TunnelLost => ngap::cause::Transport::TransportResourceUnavailable.into(),
            Interrupt::Inactive => RadioNetwork::UserInactivity.into(),
            Interrupt::NoAnswer(_) => RadioNetwork::FailureInRadioInterfaceProcedure.into(),
            Interrupt::Failed(_) | Interrupt::Overrun => {
                RadioNetwork::ReleaseDueToNgranGeneratedReason.into()
            }
        })
    }
}

impl Ue {
    /// Ends the connection: asks the AMF if the end is not its own, tells the DU, which tells the UE, and frees all resources.
    pub(crate) async fn release(&mut self, interrupt: Interrupt) {
        counters::UES_ENDED.inc(interrupt.name());
        let mut du_lost = matches!(interrupt, Interrupt::DuLost | Interrupt::Overrun);
        let mut command = match (&interrupt, interrupt.ngap_cause()) {
            (_, Some(cause)) => self.ask_amf(cause, &mut du_lost).await,
            _ => None,
        };
        let f1_cause = F1Cause::RadioNetwork(match &interrupt {
            Interrupt::Commanded(_) | Interrupt::Inactive | Interrupt::DuAsks(_) => {
                F1RadioNetwork::NormalRelease
            }
            Interrupt::AmfLost => F1RadioNetwork::AmfInitiatedAbnormalRelease,
            Interrupt::Refused(_) => F1RadioNetwork::UeRejection,
            _ => F1RadioNetwork::Unspecified,
        });
        if let Interrupt::Commanded(of_amf) = &interrupt {
            command = Some(of_amf.clone());
        }
        if matches!(interrupt, Interrupt::Overrun) {
            // Its answer would not be heard.
            let _ = self.command_du(f1_cause).await;
        } else if !du_lost {
            self.release_du(f1_cause).await;
        }
        let pdu_sessions = self.sessions.iter().map(|session| session.id).collect();
        for session in self.sessions.drain(..) {
            session.close(&self.shared);
        }
        if let (Some(_), Some(n2)) = (command, &self.n2)
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

    /// UE CONTEXT RELEASE REQUEST (TS 38.413 §8.3.2), and the command that follows. An AMF that sends none is told with a reset.
    async fn ask_amf(&mut self, cause: Cause, du_lost: &mut bool) -> Option<ngap::UeContextReleaseCommand> {
        let n2 = self.n2.as_ref()?;
        let (gnb, ran_ue_ngap_id) = (n2.gnb().clone(), n2.ran_ue_ngap_id());
        if let Some(amf_ue_ngap_id) = n2.amf_ue_ngap_id() {
            let request = ngap::UeContextReleaseRequest {
                amf_ue_ngap_id,
                ran_ue_ngap_id,
                pdu_sessions: self.sessions.iter().map(|session| session.id).collect(),
                cause,
            };
            self.send_n2(request).await.ok()?;
            let deadline = net::time::now() + COMMAND_LIMIT;
            loop {
                let step =
                    if *du_lost { self.of_amf_only(deadline).await } else { self.step(Some(deadline)).await };
                match step {
                    Err(Interrupt::Commanded(command)) => return Some(command),
                    Err(Interrupt::DuLost | Interrupt::Overrun) => *du_lost = true,
                    Err(Interrupt::AmfLost) => return None,
                    Err(Interrupt::Stopping) | Ok(None) => break,
                    Ok(Some(_)) | Err(_) => {}
                }
            }
            counters::PROCEDURES.inc("ue_context_release_request:unanswered");
        }
        // It fails only with the association.
        let _ = gnb.reset_ues(cause, [ran_ue_ngap_id]).await;
        None
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

    /// UE CONTEXT RELEASE COMMAND, with RRCRelease for a UE that has a connection.
    async fn command_du(&mut self, cause: F1Cause) -> Result<(), Interrupt> {
        let transaction = self.rrc.next_transaction();
        let release =
            RrcRelease { rrc_transaction_identifier: transaction, deprioritisation_req: None, v1540: None };
        let rrc_container = if self.connected { self.rrc.seal(1, release).ok() } else { None };
        let (gnb_cu_ue_f1ap_id, gnb_du_ue_f1ap_id) = self.f1_ids();
        self.send_f1(UeContextReleaseCommand {
            gnb_cu_ue_f1ap_id,
            gnb_du_ue_f1ap_id,
            cause,
            srb_id: rrc_container.is_some().then_some(SrbId(1)),
            rrc_container,
        })
        .await
    }

    /// Has the DU release the UE, and waits until it has.
    async fn release_du(&mut self, cause: F1Cause) {
        if self.command_du(cause).await.is_err() {
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
                    return;
                }
            }
        }
    }
}
