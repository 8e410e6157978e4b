//! Procedures of TS 23.502 as the UE performs them, one file each.

pub mod deregistration;
pub mod network_initiated;
pub mod pdu_session_establishment;
pub mod pdu_session_release;
pub mod registration;
pub mod service_request;

use std::time::Duration;

use nas::{GmmCause, Message};

use super::{Failure, Received, Ue};

/// How long a rejected UE waits for the AMF to release its connection before it drops it.
const RELEASE_WAIT: Duration = Duration::from_millis(500);

/// Causes after which a UE deletes its 5G-GUTI and ngKSI and considers itself deregistered (TS 24.501
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
    /// Waits for the next message of a procedure and answers those of common procedures meanwhile.
    /// `what` names the expected message for the error.
    pub(super) async fn await_answer(&mut self, what: &'static str) -> Result<Received, Failure> {
        let limit = self.config.answer_timeout;
        match net::time::timeout(limit, self.next_for_procedure()).await {
            Ok(received) => received,
            Err(_) => Err(Failure::Timeout(what)),
        }
    }

    async fn next_for_procedure(&mut self) -> Result<Received, Failure> {
        loop {
            match self.receive().await? {
                Received::Nas(message) => {
                    if let Some(message) = self.respond(message).await? {
                        return Ok(Received::Nas(message));
                    }
                }
                Received::ErrorIndication(error) => {
                    return Err(Failure::ErrorIndication(error.cause.unwrap_or_default()));
                }
                other => return Ok(other),
            }
        }
    }

    /// Handles a message that does not answer the running procedure. Returns an error if it ends the
    /// procedure.
    pub(super) async fn handle_unrelated(&mut self, received: Received) -> Result<(), Failure> {
        match received {
            Received::Released(cause) => Err(Failure::Released(cause)),
            Received::Nas(Message::Status(status)) => Err(Failure::Status(status.cause)),
            Received::Nas(Message::DeregistrationRequestNetwork(request)) => {
                self.network_deregistration().await?;
                Err(Failure::Deregistered(request.cause))
            }
            Received::Nas(Message::DlNasTransport(transport)) => {
                // About another session: the network's own procedures go on meanwhile.
                self.network_sm_message(&transport).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Waits for the AMF to release the connection after a procedure that ends with the release.
    pub(super) async fn await_release(&mut self, limit: Duration) {
        let released = async {
            while self.connection.is_some() {
                if self.receive().await.is_err() {
                    break;
                }
            }
        };
        let _ = net::time::timeout(limit, released).await;
        self.lose_connection();
    }
}
