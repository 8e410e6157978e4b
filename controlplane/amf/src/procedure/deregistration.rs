//! Deregistration (TS 23.502 §4.2.2.3, TS 24.501 §5.5.2): by the UE, by the network, and locally.
//!
//! Common to all: the SMFs release the sessions, the AM policy association ends, this AMF is
//! deregistered at the UDM (unless the UDM knows already), and the UE's context is
//! removed.

use std::ops::ControlFlow;

use nas::{AccessType, GmmCause, Message, gmm};
use types::PduSessionId;

use super::authentication::authentication;
use super::{an_release, paging};
use crate::counters;
use crate::event::{Arrival, Deregister, DeregistrationReason, Interrupt, UeEvent};
use crate::peers::join_all;
use crate::state::MmEvent;
use crate::ue::{NoAnswer, Timer, Ue};

/// The UE deregisters.
pub(crate) async fn by_ue(ue: &mut Ue, request: gmm::DeregistrationRequestUe) -> Result<(), Interrupt> {
    if !ue.is_secure() && !authenticated(ue, &request).await? {
        ue.record("deregistration", "not_authentic");
        return an_release::release(ue, ngap::cause::Nas::Unspecified.into()).await;
    }
    let outcome =
        if request.switch_off { Ok(()) } else { ue.send_nas(&Message::DeregistrationAcceptUe).await };
    ue.ctx.mm_event(MmEvent::DeregistrationAccepted);
    tracing::info!(supi = ?ue.ctx.supi, switch_off = request.switch_off, "deregistered by the UE");
    let released = match outcome {
        Ok(()) => an_release::release(ue, ngap::cause::Nas::Deregister.into()).await,
        Err(interrupt) => Err(interrupt),
    };
    local(ue, false).await;
    ue.record("deregistration", "ok");
    // The context is removed: only a new connection or a new owner still matters.
    match released {
        Err(Interrupt::LinkDown(_) | Interrupt::ReleaseRequested(_) | Interrupt::Nas(_)) => {
            ue.disconnect();
            Ok(())
        }
        other => other,
    }
}

/// Handles a deregistration that could not be verified: one for switch-off is ignored, another makes
/// the UE authenticate (TS 24.501 §4.4.4.3). After that this task is the subscriber's.
async fn authenticated(ue: &mut Ue, request: &gmm::DeregistrationRequestUe) -> Result<bool, Interrupt> {
    let identity = match (&request.identity, ue.claimed) {
        (nas::MobileIdentity::Suci(suci), _) => suci.to_string(),
        (_, Some(supi)) => supi.to_string(),
        _ => return Ok(false),
    };
    if request.switch_off {
        counters::NAS_REJECTED.inc("integrity");
        return Ok(false);
    }
    match authentication(ue, identity).await {
        Ok(authenticated) => Ok(ue.claim(authenticated.supi)),
        Err(super::authentication::AuthenticationError::NoAnswer(NoAnswer::Interrupted(interrupt))) => {
            Err(interrupt)
        }
        Err(_) => Ok(false),
    }
}

/// The network deregisters the UE at the wish of UDM or operator. An idle UE is paged, and the request
/// is sent when it has a connection (TS 23.502 §4.2.2.3.3). A UE that does not answer is deregistered
/// locally.
pub(crate) async fn by_network(ue: &mut Ue, mut order: Deregister) -> Result<(), Interrupt> {
    if !ue.ctx.registered {
        return Ok(());
    }
    let mut outcome = Ok(());
    if order.why != DeregistrationReason::Moved {
        if ue.connection.is_some() {
            outcome = request_deregistration(ue, order.why).await;
        } else if !std::mem::replace(&mut order.paged, true) {
            match paging::page(ue).await {
                Err(interrupt @ Interrupt::Initial(..)) => {
                    ue.put_back(UeEvent::Deregister(order));
                    return Err(interrupt);
                }
                Err(interrupt) => outcome = Err(interrupt),
                Ok(_) => {}
            }
        }
    }
    ue.ctx.mm_event(MmEvent::DeregistrationAccepted);
    tracing::info!(supi = ?ue.ctx.supi, why = ?order.why, "deregistered by the network");
    let released = an_release::release(ue, ngap::cause::Nas::Deregister.into()).await;
    local(ue, order.why.by_udm()).await;
    ue.record("network_deregistration", "ok");
    if let Some(done) = order.done {
        // The sender of the order may have stopped waiting.
        _ = done.send(());
    }
    match outcome.and(released) {
        Err(interrupt @ (Interrupt::Initial(..) | Interrupt::Superseded)) => Err(interrupt),
        _ => Ok(()),
    }
}

/// DEREGISTRATION REQUEST under T3522.
async fn request_deregistration(ue: &mut Ue, why: DeregistrationReason) -> Result<(), Interrupt> {
    ue.ctx.mm_event(MmEvent::DeregistrationRequested);
    let request = Message::DeregistrationRequestNetwork(gmm::DeregistrationRequestNetwork {
        reregistration_required: why.reregister(),
        access: AccessType::ThreeGpp,
        cause: (why == DeregistrationReason::Withdrawn).then_some(GmmCause::IllegalUe),
        t3346: None,
        rejected_nssai: Vec::new(),
    });
    let timer = Timer::ms("T3522", ue.amf.config.timers.t3522_ms);
    let answer = ue.exchange(timer, &request, |arrival| match arrival {
        Arrival::Nas(Message::DeregistrationAcceptNetwork) => ControlFlow::Break(()),
        other => ControlFlow::Continue(other),
    });
    match answer.await {
        // No answer after the fifth expiry counts as an accept (§5.5.2.3.5 a); so does the UE's own
        // deregistration (§5.5.2.3.5 e), and a lost connection (§5.5.2.3.5 b).
        Ok(()) | Err(NoAnswer::Timeout(_)) => Ok(()),
        Err(NoAnswer::Interrupted(Interrupt::Nas(message)))
            if matches!(*message, Message::DeregistrationRequestUe(_)) =>
        {
            ue.send_nas(&Message::DeregistrationAcceptUe).await
        }
        Err(NoAnswer::Interrupted(interrupt)) => Err(interrupt),
    }
}

/// Another task has authenticated the same subscriber, or has begun to register a UE of the same name
/// while this one is not proven ([`crate::admission`]): this one releases its connection and sessions.
/// The gNB is told, but not the UE, which now has the other connection. UDM and PCF know the new
/// registration already.
pub(crate) async fn superseded(ue: &mut Ue) {
    ue.record("registration", "superseded");
    ue.ended = true;
    ue.ctx.uecm_registered = false;
    if ue.ctx.supi.is_none() {
        // One of a flood: its memory is for others now, without a wait for the gNB.
        an_release::abandon(ue, ngap::cause::Misc::ControlProcessingOverload.into()).await;
    } else if let Err(interrupt) = an_release::release(ue, ngap::cause::Nas::NormalRelease.into()).await {
        tracing::debug!(supi = ?ue.ctx.supi, ?interrupt, "interrupted while superseded");
        ue.disconnect();
    }
    local(ue, true).await;
    ue.ctx.mm_event(MmEvent::DeregistrationAccepted);
}

/// Informs SMFs, PCF and UDM, in parallel. The AMF's own state changes in any case.
pub(crate) async fn local(ue: &mut Ue, udm_knows: bool) {
    let ids: Vec<PduSessionId> = ue.ctx.sessions.keys().copied().collect();
    let amf = ue.amf.clone();
    let policy = ue.ctx.policy.take();
    // Only the task that owns the subscriber informs UDM and PCF.
    let owner = ue.ctx.supi.filter(|supi| amf.ues.owns(*supi, &ue.handle));
    let purge = owner.filter(|_| ue.ctx.uecm_registered && !udm_knows);
    ue.ctx.uecm_registered = false;
    let end_policy = async {
        if let Some(policy) = policy {
            amf.peers.delete_am_policy(policy).await;
        }
    };
    let end_registration = async {
        if let Some(supi) = purge {
            amf.peers.purge_amf(supi, amf.guami).await;
        }
    };
    tokio::join!(release_sessions(ue, &ids), end_policy, end_registration);
}

/// Releases SM contexts, all at once, without telling the UE.
pub(crate) async fn release_sessions(ue: &mut Ue, ids: &[PduSessionId]) {
    let amf = ue.amf.clone();
    let calls: Vec<_> = ids
        .iter()
        .filter_map(|id| ue.ctx.sessions.remove(id))
        .map(|session| {
            let amf = amf.clone();
            async move { amf.peers.release_sm_context(&session.context).await }
        })
        .collect();
    join_all(calls).await;
}
