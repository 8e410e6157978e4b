//! UE-requested PDU session release (TS 23.502 §4.3.4.2, TS 24.501 §6.4.3).

use std::time::Duration;

use nas::gmm::UlNasTransport;
use nas::gsm::{ReleaseComplete, ReleaseRequest};
use nas::{Message, SmBody, SmMessage};
use types::{PduSessionId, Pti};

use crate::ue::{Failure, Received, Ue};

impl Ue {
    /// Releases a session; returns the time from the request to the command.
    ///
    /// # Errors
    /// Why the release failed; the session then still exists.
    pub async fn release_session(&mut self, id: PduSessionId) -> Result<Duration, Failure> {
        let pti = self.next_pti();
        let started = net::time::now();
        self.send_sm(id, pti, SmBody::ReleaseRequest(ReleaseRequest::default())).await?;
        loop {
            match self.await_answer("PDU Session Release Command").await? {
                Received::Nas(Message::DlNasTransport(transport)) if transport.pdu_session_id == Some(id) => {
                    if let Some(cause) = transport.cause {
                        return Err(Failure::Rejected(cause));
                    }
                    match SmMessage::decode(&transport.payload).map(|decoded| decoded.message) {
                        Ok(SmMessage { body: SmBody::ReleaseCommand(_), pti: of, .. }) if of == pti => {
                            let took = net::time::now().saturating_duration_since(started);
                            self.complete_release(id, pti).await?;
                            return Ok(took);
                        }
                        Ok(SmMessage { body: SmBody::ReleaseReject(reject), pti: of, .. }) if of == pti => {
                            return Err(Failure::SessionRejected(reject.cause));
                        }
                        _ => self.network_sm_message(&transport).await.map(drop)?,
                    }
                }
                other => self.handle_unrelated(other).await?,
            }
        }
    }

    /// Answers with PDU SESSION RELEASE COMPLETE and removes the session.
    pub(super) async fn complete_release(&mut self, id: PduSessionId, pti: Pti) -> Result<(), Failure> {
        self.sessions.remove(&id);
        self.bearers.remove(&id);
        self.send_sm(id, pti, SmBody::ReleaseComplete(ReleaseComplete::default())).await
    }

    /// Sends a 5GSM message of a session.
    ///
    /// # Errors
    /// It does not encode, or the connection is lost.
    pub async fn send_sm(&mut self, id: PduSessionId, pti: Pti, body: SmBody) -> Result<(), Failure> {
        let payload = SmMessage::new(id, pti, body).encode();
        let payload = payload.map_err(|error| Failure::Build(error.to_string()))?;
        self.send(&Message::UlNasTransport(UlNasTransport::n1_sm(id, payload))).await
    }
}
