//! Procedures of TS 23.502 as the UE performs them, one file each.

pub mod deregistration;
pub mod network_initiated;
pub mod pdu_session_establishment;
pub mod pdu_session_release;
pub mod registration;
pub mod service_request;

use std::time::Duration;

use nas::{GmmCause, Message};

use super::{Failure, Heard, Ue};

/// How long a rejected UE waits for the AMF to release its connection before it drops it.
const RELEASE_WAIT: Duration = Duration::from_millis(500);

/// Causes after which a UE deletes its 5G-GUTI and ngKSI and counts itself deregistered (TS 24.501
/// §5.5.1.2.5, §5.6.1.5).
fn forgets_identity(cause: GmmCause) -> bool {
    matches!(
        cause,
        GmmCause::IllegalUe
            | GmmCause::IllegalMe
            | GmmCause::FiveGsServicesNotAllowed
            | GmmCause::UeIdentityCannotBeDerived
            | GmmCause::ImplicitlyDeregistered
            | GmmCause::PlmnNotAllowed
            | GmmCause::TrackingAreaNotAllowed
            | GmmCause::RoamingNotAllowedInTrackingArea
            | GmmCause::NoSuitableCellsInTrackingArea
            | GmmCause::ServingNetworkNotAuthorized
    )
}

impl Ue {
    /// Waits for what a procedure is waiting for, answering meanwhile what belongs to no procedure.
    /// `what` names it for the error.
    pub(super) async fn await_answer(&mut self, what: &'static str) -> Result<Heard, Failure> {
        let limit = self.config.answer_timeout;
        match net::time::timeout(limit, self.next_for_procedure()).await {
            Ok(heard) => heard,
            Err(_) => Err(Failure::Timeout(what)),
        }
    }

    async fn next_for_procedure(&mut self) -> Result<Heard, Failure> {
        loop {
            match self.hear().await? {
                Heard::Nas(message) => {
                    if let Some(message) = self.respond(message).await? {
                        return Ok(Heard::Nas(message));
                    }
                }
                Heard::ErrorIndication(error) => {
                    return Err(Failure::ErrorIndication(error.cause.unwrap_or_default()));
                }
                other => return Ok(other),
            }
        }
    }

    /// What every procedure makes of things that are not its answer: some end it.
    pub(super) async fn not_my_answer(&mut self, heard: Heard) -> Result<(), Failure> {
        match heard {
            Heard::Released(cause) => Err(Failure::Released(cause)),
            Heard::Nas(Message::Status(status)) => Err(Failure::Status(status.cause)),
            Heard::Nas(Message::DeregistrationRequestNetwork(request)) => {
                self.network_deregistration().await?;
                Err(Failure::Deregistered(request.cause))
            }
            Heard::Nas(Message::DlNasTransport(transport)) => {
                // Of another session: the network's own procedures go on meanwhile.
                self.network_sm_message(&transport).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Waits a moment for the AMF to release the connection after a procedure that ends with it.
    pub(super) async fn await_release(&mut self, limit: Duration) {
        let released = async {
            while self.connection.is_some() {
                if self.hear().await.is_err() {
                    break;
                }
            }
        };
        let _ = net::time::timeout(limit, released).await;
        self.lose_connection();
    }
}
