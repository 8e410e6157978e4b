//! Network-triggered service request (TS 23.502 §4.2.3.3), and restoring a user plane that the gNB has
//! lost (TS 23.527 §5.3.3.2).
//!
//! [`activate_user_plane`] begins the procedure: there is downlink data, and the AMF pages the UE or
//! makes the gNB set up resources. Every activation is supervised. If the gNB does not answer, or the
//! UPF reports an Error Indication, [`release_at_gnb`] brings SMF and AMF into the same state again.

use std::sync::Arc;
use std::time::Duration;

use net::time;
use ngap::cause::RadioNetwork;
use sbi::model::amf::N1N2MessageTransferCause as Outcome;
use sbi::model::smf::N2SmInfoType;
use telemetry::counters::{Counter, Family};

use crate::context::{Phase, Session, SessionState, Smf, UpState};
use crate::n2;
use crate::n4u;
use crate::peers::Transfer;
use crate::procedure::{release, user_plane};
use crate::rules;

static UNREACHABLE: Counter = Counter::new("smf_ue_unreachable");
static REFUSED: Counter = Counter::new("smf_up_activation_refused");
static ACTIVATION_EXPIRED: Counter = Counter::new("smf_up_activation_expired");
static RELEASED_AT_GNB: Family = Family::new("smf_up_released_at_gnb", "transfer");

/// Makes the AMF reach the UE and the gNB set up resources, unless the user plane is active or being
/// activated.
pub(crate) async fn activate_user_plane(smf: &Arc<Smf>, session: &Arc<Session>) {
    let (amf, transfer) = {
        let mut state = session.state.lock().await;
        let (Phase::Active, UpState::Deactivated, Some(upf)) = (state.phase, state.up, state.upf) else {
            return;
        };
        let Some(transfer) = n2::setup_request(session, &state, upf.tunnels.n3) else { return };
        begin_activation(smf, session, &mut state);
        (state.amf.clone(), transfer)
    };
    let n2 = Some((N2SmInfoType::PduResSetupReq, transfer));
    let what = Transfer { n2, failure_notification: true, ..Default::default() };
    match smf.transfer(session, &amf, what).await {
        Ok(Outcome::Initiated | Outcome::AttemptingToReachUe | Outcome::WaitingForAsynchronousTransfer) => {}
        Err(error) if error.is("CONTEXT_NOT_FOUND") => {
            // The AMF no longer has the UE, and so not the session.
            release::locally(smf, session, release::Notify::Nobody).await;
        }
        Ok(cause) => not_activated_by_amf(smf, session, (&cause).into()).await,
        // 504 of TS 29.518 §6.1.3.5.3.1.
        Err(error) if error.is("UE_NOT_REACHABLE") => {
            not_activated_by_amf(smf, session, NotActivated::UeUnreachable).await;
        }
        Err(_) => not_activated_by_amf(smf, session, NotActivated::Refused).await,
    }
}

/// Records that the gNB has been asked. If it does not answer in time, the user plane counts as
/// deactivated again.
pub(crate) fn begin_activation(smf: &Arc<Smf>, session: &Arc<Session>, state: &mut SessionState) {
    state.up = UpState::Activating;
    state.unreachable = false;
    state.activations += 1;
    let (smf, session, activation) = (smf.clone(), session.clone(), state.activations);
    tokio::spawn(async move {
        time::sleep(Duration::from_millis(smf.config.timers.establishment_guard_ms)).await;
        let pending = {
            let state = session.state.lock().await;
            state.activations == activation && state.up == UpState::Activating && state.phase == Phase::Active
        };
        if pending {
            ACTIVATION_EXPIRED.inc();
            tracing::info!(supi = %session.supi, id = %session.id, "no answer of the gNB: user plane is down");
            release_at_gnb(&smf, &session).await;
        }
    });
}

/// Deactivates the user plane because the gNB has lost it or has not answered: the UPF buffers downlink
/// packets. The gNB is asked to release its resources, so that AMF and gNB also count the user plane as
/// deactivated. [`released_by_gnb`] follows when the gNB has done so. An idle UE has no user plane;
/// then nothing is asked for.
pub(crate) async fn release_at_gnb(smf: &Arc<Smf>, session: &Arc<Session>) {
    if user_plane::deactivate(smf, session).await.is_err() {
        // N4 counts the failure; restoring the UPF's sessions corrects it.
        tracing::debug!(supi = %session.supi, id = %session.id, "user plane not deactivated on the UPF");
    }
    let (phase, amf) = {
        let state = session.state.lock().await;
        (state.phase, state.amf.clone())
    };
    if phase != Phase::Active {
        return;
    }
    let Some(command) = n2::release_command(RadioNetwork::ReleaseDueTo5gcGeneratedReason.into()) else {
        return;
    };
    let n2 = Some((N2SmInfoType::PduResRelCmd, command));
    let what = Transfer { n2, skip_if_idle: true, ..Default::default() };
    match smf.transfer(session, &amf, what).await {
        Ok(cause) => RELEASED_AT_GNB.inc(cause.as_str()),
        Err(error) if error.is("CONTEXT_NOT_FOUND") => {
            release::locally(smf, session, release::Notify::Nobody).await;
        }
        Err(_) => RELEASED_AT_GNB.inc("failed"),
    }
}

/// Why the user plane was not activated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotActivated {
    /// The UE does not answer paging.
    UeUnreachable,
    /// AMF or gNB could not do it now.
    Refused,
}

impl From<&Outcome> for NotActivated {
    fn from(cause: &Outcome) -> Self {
        match cause {
            Outcome::UeNotResponding | Outcome::UeNotReachableForSession => Self::UeUnreachable,
            _ => Self::Refused,
        }
    }
}

/// The AMF says that it cannot activate the user plane that it was asked for.
pub(crate) async fn not_activated_by_amf(smf: &Arc<Smf>, session: &Arc<Session>, why: NotActivated) {
    let mut state = session.state.lock().await;
    // If the gNB or the guard timer was faster, there is no activation to end.
    if state.phase == Phase::Active && state.up == UpState::Activating {
        pause_activation(smf, session, &mut state, why).await;
    }
}

/// The activation of the user plane has failed. TS 23.502 §4.2.3.3 step 3c leaves it to the network what the UPF does
/// with downlink packets until the next attempt:
///
/// - The packets of an unreachable UE are dropped for `timers.unreachable_ms`, or until the UE is heard of
///   ([`reachable`]).
/// - The packets of other UEs are buffered for `timers.activation_retry_ms`.
///
/// The UPF reports no packets meanwhile. After that it reports the packets that it has buffered or the next one,
/// which starts the next attempt. Without the pause the buffered packets would be reported at once: AMF and gNB
/// would be asked as fast as they refuse, and the UE would be paged without end.
pub(crate) async fn pause_activation(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    state: &mut SessionState,
    why: NotActivated,
) {
    let timers = &smf.config.timers;
    let (change, pause_ms) = match why {
        NotActivated::UeUnreachable => {
            UNREACHABLE.inc();
            (rules::discard(), timers.unreachable_ms)
        }
        NotActivated::Refused => {
            REFUSED.inc();
            (rules::hold(), timers.activation_retry_ms)
        }
    };
    n4u::reachable(smf, session, false);
    state.up = UpState::Deactivated;
    state.gnb = None;
    state.unreachable = why == NotActivated::UeUnreachable;
    if let Err(error) = user_plane::modify(smf, session, state, change).await {
        // Counted by N4. The restoration of the UPF's sessions corrects it.
        tracing::debug!(supi = %session.supi, id = %session.id, %error, "activation not paused on the UPF");
    }
    let (smf, session, activations) = (smf.clone(), session.clone(), state.activations);
    tokio::spawn(async move {
        time::sleep(Duration::from_millis(pause_ms)).await;
        let mut state = session.state.lock().await;
        // Another activation, a release or the UE's return during the pause has changed the UPF's rules already.
        let same = state.activations == activations && state.up == UpState::Deactivated;
        if same && (why == NotActivated::Refused || state.unreachable) {
            resume(&smf, &session, &mut state).await;
        }
    });
}

/// The AMF has heard of the UE, which says so with the UE's message or location: the next downlink packet makes the AMF
/// reach the UE again, also before `timers.unreachable_ms` has passed.
pub(crate) async fn reachable(smf: &Smf, session: &Session) {
    let mut state = session.state.lock().await;
    if state.unreachable {
        resume(smf, session, &mut state).await;
    }
}

/// Ends the pause after a failed activation: the UPF buffers and reports downlink packets again.
async fn resume(smf: &Smf, session: &Session, state: &mut SessionState) {
    state.unreachable = false;
    if state.phase != Phase::Active || state.up != UpState::Deactivated {
        return;
    }
    if let Err(error) = user_plane::modify(smf, session, state, rules::deactivate()).await {
        tracing::debug!(supi = %session.supi, id = %session.id, %error, "downlink reports not resumed");
    }
}

/// The gNB has released the resources of a session that continues: they are set up again. The user plane may be active:
/// the UE's own service request can overtake the release that [`release_at_gnb`] asked for, and the gNB then
/// releases what it has just set up.
pub(crate) async fn released_by_gnb(smf: &Arc<Smf>, session: &Arc<Session>) {
    // Before the AMF has its answer, so that the next activation it asks for finds the user plane deactivated.
    let active = session.state.lock().await.up == UpState::Activated;
    if active && user_plane::deactivate(smf, session).await.is_err() {
        // Counted by N4. The restoration of the UPF's sessions corrects it.
        tracing::debug!(supi = %session.supi, id = %session.id, "user plane not deactivated on the UPF");
    }
    let (smf, session) = (smf.clone(), session.clone());
    // The AMF waits for the answer to its update.
    tokio::spawn(async move { activate_user_plane(&smf, &session).await });
}
