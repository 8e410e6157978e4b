//! Network-triggered service request (TS 23.502 §4.2.3.3, TS 24.501 §5.6.2): pages an idle UE.
//!
//! Every gNB that serves a tracking area of the registration area is asked to page, and again each time
//! T3513 expires. The UE answers with a service request on a new connection, which interrupts the wait.
//! The reason for the page, an SMF's transfer or a deregistration, is put back into the queue and
//! handled after the service request.

use std::ops::ControlFlow;
use std::sync::Arc;

use ngap::{Paging, Pdu};
use sbi::model::amf::N1N2MessageTransferCause;
use types::Tai;

use crate::counters;
use crate::event::{Interrupt, Transfer, UeEvent};
use crate::gnb::Gnb;
use crate::peers::SmUpdate;
use crate::ue::{Ue, Waiting};

/// How often a UE is paged: a single page is easily missed on the radio.
const ATTEMPTS: u32 = 3;

/// Why paging did not reach the UE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReached {
    /// The UE did not answer.
    NoAnswer,
    /// No gNB serves the UE's registration area.
    NoGnb,
    /// There is no registered UE to page.
    NotRegistered,
}

/// Pages the UE for `transfer`, which is delivered after the UE's service request. If the UE is not
/// reached, its SMF is told.
pub(crate) async fn paging(ue: &mut Ue, transfer: Transfer) -> Result<(), Interrupt> {
    let cause = match page(ue).await {
        Ok(NotReached::NoAnswer) => N1N2MessageTransferCause::UeNotResponding,
        Ok(NotReached::NoGnb) => N1N2MessageTransferCause::AnNotResponding,
        Ok(NotReached::NotRegistered) => N1N2MessageTransferCause::FailureCauseUnspecified,
        Err(interrupt @ Interrupt::Initial(..)) => {
            ue.put_back(UeEvent::Transfer(Box::new(transfer)));
            return Err(interrupt);
        }
        Err(interrupt) => {
            not_delivered(ue, transfer, N1N2MessageTransferCause::FailureCauseUnspecified).await;
            return Err(interrupt);
        }
    };
    not_delivered(ue, transfer, cause).await;
    Ok(())
}

/// Tells the SMF of a transfer why it was not delivered, if the SMF wants to know.
pub(crate) async fn not_delivered(ue: &mut Ue, transfer: Transfer, cause: N1N2MessageTransferCause) {
    if let Some(uri) = transfer.failure_uri {
        if cause == N1N2MessageTransferCause::UeNotResponding {
            ue.ctx.unreached_sessions.insert(transfer.session);
        }
        ue.amf.peers.transfer_failed(&uri, cause).await;
    }
}

/// Tells the SMFs that gave up a UE that it is back: they get its location. An SMF drops the packets of an unreachable
/// UE for some time (TS 23.502 §4.2.3.3 step 3c), which ends with this. A session whose user plane the UE has just
/// activated needs nothing.
pub(crate) async fn report_reachable(ue: &mut Ue) {
    if ue.ctx.unreached_sessions.is_empty() || !ue.ctx.registered || !ue.is_secure() {
        return;
    }
    for id in std::mem::take(&mut ue.ctx.unreached_sessions) {
        let session = ue.ctx.sessions.get(&id).filter(|session| !session.active);
        let Some(context) = session.map(|session| session.context.clone()) else { continue };
        let (amf, update) = (ue.amf.clone(), SmUpdate::Location(ue.ctx.location));
        let answer = amf.peers.update_sm_context(&context, update).await;
        if answer.is_err_and(|refused| refused.error.is_not_found()) {
            ue.forget_session(id);
        }
    }
}

/// Pages the UE. If the UE answers, the result is [`Interrupt::Initial`]: the caller puts back what it
/// has for the UE and returns the interrupt.
pub(crate) async fn page(ue: &mut Ue) -> Result<NotReached, Interrupt> {
    if !ue.ctx.registered || ue.ctx.tmsis.is_empty() {
        return Ok(NotReached::NotRegistered);
    }
    let tais = ue.amf.registration_area();
    // A UE that has not confirmed its latest 5G-GUTI may still use the previous one (TS 24.501
    // §5.4.4.6).
    let mut pages = Vec::new();
    for tmsi in &ue.ctx.tmsis {
        let s_tmsi = ue.amf.guti(*tmsi).s_tmsi();
        match Pdu::Paging(Paging { s_tmsi, paging_drx: None, tais: tais.clone() }).encode() {
            Ok(octets) => pages.push(octets),
            Err(error) => tracing::error!(%error, "Paging not sent"),
        }
    }
    let t3513 = std::time::Duration::from_millis(ue.amf.config.timers.t3513_ms);
    let mut not_reached = NotReached::NoGnb;
    for _ in 0..ATTEMPTS {
        for gnb in serving(ue, &tais) {
            not_reached = NotReached::NoAnswer;
            for octets in &pages {
                // A gNB to which sending fails is skipped: other gNBs, or the next attempt, may reach
                // the UE.
                _ = gnb.try_send_common(octets.clone());
            }
        }
        let waited: Result<Option<()>, Interrupt> =
            ue.expect(Waiting::Radio, net::time::now() + t3513, ControlFlow::Continue).await;
        match waited {
            Ok(_) => counters::TIMER_EXPIRIES.inc("T3513"),
            Err(interrupt) => {
                let answered = matches!(interrupt, Interrupt::Initial(..));
                ue.record("paging", if answered { "ok" } else { "interrupted" });
                return Err(interrupt);
            }
        }
    }
    ue.record("paging", if not_reached == NotReached::NoGnb { "no_gnb" } else { "not_reachable" });
    Ok(not_reached)
}

/// The gNBs that serve one of these tracking areas.
fn serving(ue: &Ue, tais: &[Tai]) -> Vec<Arc<Gnb>> {
    let mut gnbs = ue.amf.current_gnbs();
    gnbs.retain(|gnb| tais.iter().any(|tai| gnb.serves(*tai)));
    gnbs
}
