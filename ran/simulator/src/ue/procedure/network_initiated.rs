//! Procedures that the network starts: deregistration (TS 24.501 §5.5.2.3), session release (§6.3.3)
//! and modification (§6.3.2), release of the connection (TS 23.502 §4.2.6).

use nas::gmm::DlNasTransport;
use nas::gsm::ModificationComplete;
use nas::{GmmCause, GsmCause, Message, SmBody, SmMessage};
use net::time::Instant;
use types::PduSessionId;

use crate::access::ReleaseCause;
use crate::ue::{Failure, Received, Ue};

/// Something the network did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkEvent {
    /// The UE was deregistered.
    Deregistered {
        /// Whether the UE is to register again.
        reregistration_required: bool,
        /// Why.
        cause: Option<GmmCause>,
    },
    /// A session was released.
    SessionReleased {
        /// The session.
        id: PduSessionId,
        /// Why.
        cause: GsmCause,
    },
    /// The connection was released: the UE is idle if it is registered.
    Released(ReleaseCause),
    /// The AMF sent an Error Indication about this UE.
    ErrorIndication(ngap::ErrorIndication),
}

impl Ue {
    /// Waits for the next procedure of the network and answers it. Cancel-safe while nothing arrives.
    ///
    /// # Errors
    /// The connection is lost, or the network rejected the UE.
    pub async fn serve(&mut self) -> Result<NetworkEvent, Failure> {
        loop {
            let received = self.receive().await?;
            if let Some(occurred) = self.react(received).await? {
                return Ok(occurred);
            }
        }
    }

    /// As [`Ue::serve`], but returns `None` when nothing has arrived until `deadline`. What has arrived
    /// is answered in any case.
    ///
    /// # Errors
    /// As [`Ue::serve`].
    pub async fn serve_until(&mut self, deadline: Instant) -> Result<Option<NetworkEvent>, Failure> {
        loop {
            let rest = deadline.saturating_duration_since(net::time::now());
            let Ok(received) = net::time::timeout(rest, self.receive()).await else { return Ok(None) };
            if let Some(occurred) = self.react(received?).await? {
                return Ok(Some(occurred));
            }
        }
    }

    /// Answers a message of the network. Returns the event, if it matters to the UE's owner.
    async fn react(&mut self, received: Received) -> Result<Option<NetworkEvent>, Failure> {
        match received {
            Received::Released(cause) => Ok(Some(NetworkEvent::Released(cause))),
            Received::ErrorIndication(error) => Ok(Some(NetworkEvent::ErrorIndication(error))),
            Received::SessionsUp | Received::SessionDown(_) => Ok(None),
            Received::Nas(message) => match self.respond(message).await? {
                Some(Message::DeregistrationRequestNetwork(request)) => {
                    self.network_deregistration().await?;
                    Ok(Some(NetworkEvent::Deregistered {
                        reregistration_required: request.reregistration_required,
                        cause: request.cause,
                    }))
                }
                Some(Message::DlNasTransport(transport)) => self.network_sm_message(&transport).await,
                Some(_) | None => Ok(None),
            },
        }
    }

    /// Accepts the network's deregistration.
    pub(super) async fn network_deregistration(&mut self) -> Result<(), Failure> {
        self.send(&Message::DeregistrationAcceptNetwork).await?;
        self.registered = false;
        self.sessions.clear();
        self.bearers.clear();
        Ok(())
    }

    /// A 5GSM message that no procedure of the UE is waiting for.
    pub(super) async fn network_sm_message(
        &mut self,
        transport: &DlNasTransport,
    ) -> Result<Option<NetworkEvent>, Failure> {
        let Ok(decoded) = SmMessage::decode(&transport.payload) else {
            self.discarded += 1;
            return Ok(None);
        };
        let SmMessage { pdu_session_id: Some(id), pti, body } = decoded.message else { return Ok(None) };
        match body {
            SmBody::ReleaseCommand(command) => {
                self.complete_release(id, pti).await?;
                if command.cause == GsmCause::ReactivationRequested {
                    self.note_lost_session(id);
                }
                Ok(Some(NetworkEvent::SessionReleased { id, cause: command.cause }))
            }
            SmBody::ModificationCommand(_) => {
                let complete = SmBody::ModificationComplete(ModificationComplete::default());
                self.send_sm(id, pti, complete).await?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}
