//! UE-initiated deregistration (TS 23.502 §4.2.2.3.2, TS 24.501 §5.5.2.2).

use std::time::Duration;

use nas::gmm::DeregistrationRequestUe;
use nas::{AccessType, Message};

use crate::ue::{Failure, Received, Ue};

/// How long the UE then waits for the release of its signalling connection.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// A completed deregistration.
#[derive(Debug, Clone, Copy)]
pub struct Deregistered {
    /// From the request to the accept, or to the release of the connection when the UE switches off.
    pub took: Duration,
}

impl Ue {
    /// Deregisters. 5G-GUTI and security context are kept for the next registration. The network does
    /// not answer a UE that switches off; such a UE only waits for the release of its connection.
    ///
    /// # Errors
    /// Why the procedure failed; the UE considers itself deregistered all the same (§5.5.2.2.6).
    pub async fn deregister(&mut self, switch_off: bool) -> Result<Deregistered, Failure> {
        let request = Message::DeregistrationRequestUe(DeregistrationRequestUe {
            switch_off,
            access: AccessType::ThreeGpp,
            ngksi: self.ngksi(),
            identity: self.identity()?,
            nas_message_container: None,
        });
        let started = net::time::now();
        let outcome = self.deregistration(&request, switch_off).await;
        let took = net::time::now().saturating_duration_since(started);
        self.registered = false;
        self.sessions.clear();
        self.await_release(RELEASE_WAIT).await;
        outcome.map(|()| Deregistered { took })
    }

    async fn deregistration(&mut self, request: &Message, switch_off: bool) -> Result<(), Failure> {
        if self.connection.is_some() {
            self.send(request).await?;
        } else {
            // From idle mode the request is the connection's initial message and protected as such.
            self.connect().await?;
            let octets = self.protect_initial(request)?;
            self.send_octets(octets.into(), Some(request)).await?;
        }
        loop {
            match self.await_answer("Deregistration Accept").await {
                Ok(Received::Nas(Message::DeregistrationAcceptUe)) => return Ok(()),
                Ok(Received::Released(_)) if switch_off => return Ok(()),
                // The network deregisters the UE at the same time: both are done (§5.5.2.2.6 d).
                Ok(Received::Nas(Message::DeregistrationRequestNetwork(_))) => {
                    return self.network_deregistration().await;
                }
                Ok(other) => self.handle_unrelated(other).await?,
                Err(failure) => return Err(failure),
            }
        }
    }
}
