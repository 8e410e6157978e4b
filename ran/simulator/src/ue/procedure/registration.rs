//! Registration (TS 23.502 §4.2.2.2, TS 24.501 §5.5.1): initial, with SUCI or 5G-GUTI; mobility and
//! periodic update.

use std::time::Duration;

use nas::gmm::RegistrationRequest;
use nas::{Message, PsiSet, RegistrationType, Timer};
use net::time::Instant;
use types::Guti;

use super::{RELEASE_WAIT, forgets_identity};
use crate::ue::{Failure, Received, Ue};

/// A successful registration.
#[derive(Debug, Clone)]
pub struct Registered {
    /// The identity the network gave.
    pub guti: Option<Guti>,
    /// The REGISTRATION ACCEPT.
    pub accept: nas::gmm::RegistrationAccept,
    /// When the request was sent.
    pub started: Instant,
    /// From the request to the accept.
    pub took: Duration,
    /// Whether the network authenticated the UE in between.
    pub authenticated: bool,
}

impl Ue {
    /// Registers with the 5G-GUTI and security context of an earlier registration if there are any,
    /// else with a SUCI and without protection. Earlier sessions are removed.
    ///
    /// # Errors
    /// Why the registration failed. Some causes make the UE delete identity and keys.
    pub async fn register(&mut self) -> Result<Registered, Failure> {
        if !self.registered && self.connection.is_some() {
            self.await_release(RELEASE_WAIT).await;
        }
        self.registration(self.registration_request()?).await
    }

    /// Updates the registration because T3512 expired or the UE has moved. The UE keeps its sessions
    /// and asks for the user planes of those in `uplink`.
    ///
    /// # Errors
    /// As [`Ue::register`].
    pub async fn update_registration(
        &mut self,
        registration_type: RegistrationType,
        uplink: PsiSet,
    ) -> Result<Registered, Failure> {
        let mut request = self.registration_request()?;
        request.registration_type = registration_type;
        request.follow_on = uplink != PsiSet::default();
        request.pdu_session_status = Some(self.session_status());
        request.uplink_data_status = Some(uplink).filter(|_| request.follow_on);
        self.registration(request).await
    }

    async fn registration(&mut self, request: RegistrationRequest) -> Result<Registered, Failure> {
        self.connect().await?;
        let registration_type = request.registration_type;
        let build = |error: &dyn std::fmt::Display| Failure::Build(error.to_string());
        let complete = Message::RegistrationRequest(request.clone());
        let octets = if self.context.is_some() && self.guti.is_some() {
            self.protect_initial(&complete)?
        } else {
            let clear = Message::RegistrationRequest(clear_part(request));
            clear.encode().map_err(|error| build(&error))?
        };
        // The UE sends the complete message again, ciphered, as soon as there is a context (§4.4.6).
        self.initial_message = Some(complete.encode().map_err(|error| build(&error))?);
        self.authenticated = false;
        let started = net::time::now();
        self.send_octets(octets.into(), Some(&complete)).await?;
        let outcome = self.registration_answer(registration_type, started).await;
        self.initial_message = None;
        if matches!(outcome, Err(Failure::Rejected(_) | Failure::AuthenticationRejected)) {
            self.await_release(RELEASE_WAIT).await;
        }
        outcome
    }

    /// REGISTRATION REQUEST of an initial registration as this UE would send it now, complete.
    pub fn registration_request(&self) -> Result<RegistrationRequest, Failure> {
        let mut request = RegistrationRequest::new(RegistrationType::Initial, self.ngksi(), self.identity()?);
        request.follow_on = self.config.session.is_some();
        request.gmm_capability = Some(vec![0]);
        request.ue_security_capability = Some(self.capability);
        request.requested_nssai = self.config.slice.into_iter().collect();
        Ok(request)
    }

    async fn registration_answer(
        &mut self,
        registration_type: RegistrationType,
        started: Instant,
    ) -> Result<Registered, Failure> {
        loop {
            match self.await_answer("Registration Accept").await? {
                Received::Nas(Message::RegistrationAccept(accept)) => {
                    let took = net::time::now().saturating_duration_since(started);
                    self.set_guti(accept.guti.or(self.guti));
                    (self.registered, self.lost, self.registration_requested) = (true, None, false);
                    self.registration_area.clone_from(&accept.tai_list);
                    self.periodic_update = match accept.t3512 {
                        Some(Timer::For(t3512)) => Some(t3512),
                        Some(Timer::Deactivated) | None => None,
                    };
                    if registration_type == RegistrationType::Initial {
                        self.sessions.clear();
                        self.session_lost = false;
                    } else {
                        self.keep_sessions(accept.pdu_session_status);
                    }
                    if accept.guti.is_some() {
                        self.send(&Message::RegistrationComplete).await?;
                    }
                    let authenticated = self.authenticated;
                    return Ok(Registered { guti: self.guti, accept, started, took, authenticated });
                }
                Received::Nas(Message::RegistrationReject(reject)) => {
                    self.registered = false;
                    if forgets_identity(reject.cause) {
                        self.forget_keys();
                    }
                    return Err(Failure::Rejected(reject.cause));
                }
                other => self.handle_unrelated(other).await?,
            }
        }
    }
}

/// The part of the request that may be sent in clear before there is a security context (TS 24.501
/// §4.4.6).
fn clear_part(request: RegistrationRequest) -> RegistrationRequest {
    let RegistrationRequest { registration_type, follow_on, ngksi, identity, .. } = request;
    RegistrationRequest {
        follow_on,
        ue_security_capability: request.ue_security_capability,
        ..RegistrationRequest::new(registration_type, ngksi, identity)
    }
}
