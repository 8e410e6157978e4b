//! Service request (TS 23.502 §4.2.3, TS 24.501 §5.6.1): an idle UE gets a connection, or a connected
//! one asks for the user planes of sessions.

use std::time::Duration;

use nas::gmm::{ServiceAccept, ServiceRequest};
use nas::{Message, PsiSet, ServiceType};
use net::time::Instant;
use ngap::RrcEstablishmentCause;

use super::{RELEASE_WAIT, forgets_identity};
use crate::ue::{Failure, Received, Ue};

/// A successful service request.
#[derive(Debug, Clone)]
pub struct Served {
    /// The SERVICE ACCEPT.
    pub accept: ServiceAccept,
    /// When the request was sent.
    pub started: Instant,
    /// From the request until the accept and all requested radio resources have arrived.
    pub took: Duration,
}

impl Ue {
    /// Asks for service, with the user planes of the sessions in `uplink`. Sessions that the network no
    /// longer has are removed. Radio resources of other sessions arrive with [`Ue::serve`].
    ///
    /// # Errors
    /// Why the request failed. After some causes the UE is no longer registered (§5.6.1.5).
    pub async fn service_request(
        &mut self,
        service_type: ServiceType,
        uplink: PsiSet,
    ) -> Result<Served, Failure> {
        let message = Message::ServiceRequest(self.service_request_message(service_type, uplink)?);
        let started = net::time::now();
        if self.connection.is_some() {
            self.send(&message).await?;
        } else {
            self.connect_for(match service_type {
                ServiceType::MobileTerminated => RrcEstablishmentCause::MtAccess,
                ServiceType::Data => RrcEstablishmentCause::MoData,
                _ => RrcEstablishmentCause::MoSignalling,
            })
            .await?;
            let octets = self.protect_initial(&message)?;
            self.send_octets(octets.into(), Some(&message)).await?;
        }
        let outcome = self.service_answer(uplink).await;
        if matches!(outcome, Err(Failure::Rejected(_))) {
            self.await_release(RELEASE_WAIT).await;
        }
        let took = net::time::now().saturating_duration_since(started);
        outcome.map(|accept| Served { accept, started, took })
    }

    /// SERVICE REQUEST as this UE would send it now, complete.
    pub fn service_request_message(
        &self,
        service_type: ServiceType,
        uplink: PsiSet,
    ) -> Result<ServiceRequest, Failure> {
        let guti = self.guti.ok_or(Failure::Missing("5G-GUTI"))?;
        let mut request = ServiceRequest::new(self.ngksi(), service_type, guti.s_tmsi());
        request.uplink_data_status = (uplink != PsiSet::default()).then_some(uplink);
        request.pdu_session_status = Some(self.session_status());
        Ok(request)
    }

    /// Waits for the accept and for the radio resources of `uplink`.
    async fn service_answer(&mut self, uplink: PsiSet) -> Result<ServiceAccept, Failure> {
        let mut accepted = None;
        loop {
            if let Some(accept) = accepted.take_if(|accept| self.is_up(uplink, accept)) {
                return Ok(accept);
            }
            match self.await_answer("Service Accept").await? {
                Received::Nas(Message::ServiceAccept(accept)) => {
                    self.lost = None;
                    self.keep_sessions(accept.pdu_session_status);
                    accepted = Some(accept);
                }
                Received::Nas(Message::ServiceReject(reject)) => {
                    self.keep_sessions(reject.pdu_session_status);
                    if forgets_identity(reject.cause) {
                        self.forget_keys();
                        self.sessions.clear();
                    }
                    return Err(Failure::Rejected(reject.cause));
                }
                Received::SessionsUp => {}
                other => self.handle_unrelated(other).await?,
            }
        }
    }

    /// Whether every session of `wanted` that the network has and could activate has radio resources.
    fn is_up(&self, wanted: PsiSet, accept: &ServiceAccept) -> bool {
        let failed = accept.reactivation_result.unwrap_or_default();
        wanted.iter().filter(|id| !failed.contains(*id)).all(|id| {
            // A session that is missing here has been removed.
            self.sessions.get(&id).is_none_or(|session| session.bearer.is_some())
        })
    }
}
