//! Service request (TS 23.502 §4.2.3.2, TS 24.501 §5.6.1): an idle UE gets a connection, or a connected
//! one asks for user planes.
//!
//! Flow: a message that was not verified with the UE's context is rejected with #9 → sessions that the
//! UE has lost are released → the SMFs of the wanted sessions return the information for the gNB →
//! SERVICE ACCEPT with Initial Context Setup (or resource set-up) → the gNB's tunnels go back to the
//! SMFs. A UE that answers a page gets a new 5G-GUTI afterwards (`configuration_update.rs`).

use nas::{GmmCause, Message, PsiSet, ServiceType, gmm};
use types::PduSessionId;

use super::resource_setup;
use super::{an_release, deregistration, user_plane};
use crate::counters;
use crate::event::Interrupt;
use crate::ue::Ue;

const NAME: &str = "service_request";

/// Runs a service request, from SERVICE REQUEST to the gNB's answer.
pub(crate) async fn service_request(ue: &mut Ue, request: gmm::ServiceRequest) -> Result<(), Interrupt> {
    if !ue.is_secure() || !ue.ctx.registered {
        return reject(ue, GmmCause::UeIdentityCannotBeDerived).await;
    }
    match ue.ctx.tai() {
        Some(tai) if ue.amf.serves(tai) => {}
        // Outside its registration area the UE has to register first.
        _ => return reject(ue, GmmCause::TrackingAreaNotAllowed).await,
    }
    if let Some(status) = request.pdu_session_status {
        ue.believes_in(status);
        let lost: Vec<PduSessionId> =
            ue.ctx.sessions.keys().copied().filter(|id| !status.contains(*id)).collect();
        deregistration::release_sessions(ue, &lost).await;
    }
    let wanted: Vec<PduSessionId> =
        request.uplink_data_status.map(|set| set.iter().collect()).unwrap_or_default();
    let activation = user_plane::activate(ue, &wanted).await;
    let accept = Message::ServiceAccept(gmm::ServiceAccept {
        pdu_session_status: ue.session_status(request.pdu_session_status.is_some()),
        reactivation_result: request
            .uplink_data_status
            .map(|_| activation.failed.iter().map(|(id, _)| *id).collect::<PsiSet>()),
        reactivation_errors: activation.failed.clone(),
    });
    let nas_pdu = ue.protect(&accept);
    let asked = resource_setup::send(ue, nas_pdu, activation.items).await?;
    if let Some(asked) = asked {
        match ue.expect_n2(|pdu| asked.outcome(pdu)).await? {
            Some(outcome) => {
                if let Some(cause) = outcome.context_failed {
                    ue.record(NAME, "initial_context_setup_failure");
                    return an_release::release(ue, cause).await;
                }
                user_plane::report_setup(ue, outcome).await;
            }
            None => {
                ue.record(NAME, "timeout n2_guard");
                return an_release::release(ue, ngap::cause::Nas::Unspecified.into()).await;
            }
        }
    }
    // A paged UE was named on the radio.
    ue.ctx.guti_due |= request.service_type == ServiceType::MobileTerminated;
    ue.record(NAME, "ok");
    Ok(())
}

/// Sends SERVICE REJECT and releases the connection.
async fn reject(ue: &mut Ue, cause: GmmCause) -> Result<(), Interrupt> {
    counters::SERVICE_REJECTS.inc(&cause.number().to_string());
    ue.send_nas(&Message::ServiceReject(gmm::ServiceReject::new(cause))).await?;
    ue.record(NAME, format!("reject #{}", cause.number()));
    an_release::release(ue, ngap::cause::Nas::NormalRelease.into()).await
}
