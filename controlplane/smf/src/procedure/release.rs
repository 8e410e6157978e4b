//! PDU session release (TS 23.502 §4.3.4.2; TS 24.501 §6.3.3, §6.4.3).
//!
//! [`requested_by_ue`] and [`by_network`] both begin with [`begin`]: the UPF session is deleted at
//! once, UE and gNB are informed, and [`supervise`] runs T3592 until both have answered. [`locally`]
//! ends a session without asking UE or gNB.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use n4::Seids;
use nas::GsmCause;
use net::time;
use ngap::cause::Nas;
use pfcp::message::{Message, SessionDeletionRequest};
use sbi::model::smf::{Cause, N2SmInfoType, SmContextUpdatedData};
use telemetry::counters::{Counter, Family};
use types::Pti;

use crate::context::{Phase, Session, SessionState, Smf, UpState};
use crate::n1;
use crate::n2;
use crate::peers::Transfer;
use crate::usage::Total;

static RELEASED: Counter = Counter::new("smf_session_released");
static REASONS: Family = Family::new("smf_session_release_started", "cause");
static T3592_EXPIRED: Counter = Counter::new("smf_t3592_expired");

/// Retransmissions of the release command; the next expiry ends the procedure (TS 24.501 §6.3.3.5).
const T3592_RETRANSMISSIONS: u32 = 4;

/// Who is informed of a local release.
#[derive(Debug, Clone)]
pub(crate) enum Notify {
    /// Nobody: the AMF asked for it, or the UE uses the identity for a new session.
    Nobody,
    /// The AMF, by status notification.
    Amf(Option<Cause>),
}

/// Handles the UE's PDU SESSION RELEASE REQUEST; the command goes back in the answer to the AMF's
/// update.
pub(crate) async fn requested_by_ue(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    pti: Pti,
) -> SmContextUpdatedData {
    let mut state = session.state.lock().await;
    // A repeated request (T3582) gets the same command again.
    if !matches!(state.phase, Phase::Releasing { .. }) {
        let what = begin(smf, session, &mut state, GsmCause::RegularDeactivation, pti).await;
        return updated(what);
    }
    SmContextUpdatedData { n1_sm_msg: state.release_command.clone().map(Into::into), ..Default::default() }
}

/// The answer to the AMF's update.
fn updated(what: Transfer) -> SmContextUpdatedData {
    let (n2_sm_info_type, n2_sm_info) = what.n2.unzip();
    SmContextUpdatedData {
        n1_sm_msg: what.n1.map(Into::into),
        n2_sm_info: n2_sm_info.map(Into::into),
        n2_sm_info_type,
        ..Default::default()
    }
}

/// Releases a session from the network side: operator, lost UPF, subscription. Returns when UE and gNB
/// have been informed.
pub(crate) async fn by_network(smf: &Arc<Smf>, session: &Arc<Session>, cause: GsmCause) {
    let mut state = session.state.lock().await;
    if matches!(state.phase, Phase::Releasing { .. } | Phase::Released) {
        return;
    }
    let mut what = begin(smf, session, &mut state, cause, Pti::UNASSIGNED).await;
    let amf = state.amf.clone();
    drop(state);
    // An idle UE is not paged for a release: it learns of it from the PDU session status of its next
    // request.
    what.skip_if_idle = true;
    use sbi::model::amf::N1N2MessageTransferCause as Outcome;
    match smf.transfer(session, &amf, what).await {
        Ok(Outcome::N1MsgNotTransferred) | Err(_) => locally(smf, session, Notify::Amf(None)).await,
        Ok(_) => {}
    }
}

/// Deletes the UPF session. Returns the messages for UE and gNB.
async fn begin(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    state: &mut SessionState,
    cause: GsmCause,
    pti: Pti,
) -> Transfer {
    REASONS.inc(&cause.number().to_string());
    delete_n4(smf, session, state).await;
    let command = n1::release_command(session.id, pti, cause);
    let n2 = match state.up {
        UpState::Deactivated => None,
        UpState::Activating | UpState::Activated => n2::release_command(Nas::NormalRelease.into()),
    };
    state.pti = pti;
    state.up = UpState::Deactivated;
    state.release_command = Some(command.clone());
    state.phase = Phase::Releasing { n1: true, n2: n2.is_some() };
    session.changed.notify_waiters();
    tokio::spawn(supervise(smf.clone(), session.clone()));
    Transfer { n1: Some(command), n2: n2.map(|n2| (N2SmInfoType::PduResRelCmd, n2)), ..Default::default() }
}

/// T3592: repeats the command, and ends the session if UE or gNB do not answer.
async fn supervise(smf: Arc<Smf>, session: Arc<Session>) {
    let t3592 = Duration::from_millis(smf.config.timers.t3592_ms);
    for expiry in 0..=T3592_RETRANSMISSIONS {
        if time::timeout(t3592, session.wait_for_phase(|phase| phase == Phase::Released)).await.is_ok() {
            return;
        }
        T3592_EXPIRED.inc();
        let (amf, n1) = {
            let state = session.state.lock().await;
            let Phase::Releasing { n1, .. } = state.phase else { return };
            (state.amf.clone(), state.release_command.clone().filter(|_| n1))
        };
        // The UE has answered and the gNB has not; it will not answer any more.
        let Some(n1) = n1 else { break };
        if expiry < T3592_RETRANSMISSIONS {
            let what = Transfer { n1: Some(n1), skip_if_idle: true, ..Default::default() };
            if smf.transfer(&session, &amf, what).await.is_err() {
                break;
            }
        }
    }
    locally(&smf, &session, Notify::Amf(None)).await;
}

/// Handles PDU SESSION RELEASE COMPLETE. One with a wrong transaction identity is answered with 5GSM
/// STATUS (TS 24.501 §7.3.1).
pub(crate) async fn completed_by_ue(smf: &Arc<Smf>, session: &Arc<Session>, pti: Pti) -> Option<Bytes> {
    {
        let state = session.state.lock().await;
        let Phase::Releasing { .. } = state.phase else {
            return Some(n1::status(session.id, pti, GsmCause::MessageTypeNotCompatible));
        };
        if state.pti != pti {
            return Some(n1::status(session.id, pti, GsmCause::PtiMismatch));
        }
    }
    answered(smf, session, |n1, _| *n1 = false).await;
    None
}

/// 5GSM STATUS in answer to the command: the UE has no such session (TS 24.501 §6.5.3), so the release
/// counts as completed.
pub(crate) async fn status_from_ue(smf: &Arc<Smf>, session: &Arc<Session>, pti: Pti) {
    tracing::info!(supi = %session.supi, id = %session.id, pti = pti.0, "5GSM STATUS from the UE");
    answered(smf, session, |n1, _| *n1 = false).await;
}

/// The gNB has released its resources.
pub(crate) async fn completed_by_gnb(smf: &Arc<Smf>, session: &Arc<Session>) {
    answered(smf, session, |_, n2| *n2 = false).await;
}

/// Records one of the two answers; after both, the session ends.
async fn answered(smf: &Arc<Smf>, session: &Arc<Session>, which: impl FnOnce(&mut bool, &mut bool)) {
    {
        let mut state = session.state.lock().await;
        let Phase::Releasing { n1, n2 } = &mut state.phase else { return };
        which(n1, n2);
        if *n1 || *n2 {
            return;
        }
    }
    // The AMF waits for the answer to its update, so the rest runs in parallel.
    let (smf, session) = (smf.clone(), session.clone());
    tokio::spawn(async move { locally(&smf, &session, Notify::Amf(None)).await });
}

/// Returns the session's resources and removes the session. A second call does nothing.
pub(crate) async fn locally(smf: &Arc<Smf>, session: &Arc<Session>, notify: Notify) {
    let mut state = session.state.lock().await;
    if state.phase == Phase::Released {
        return;
    }
    state.phase = Phase::Released;
    session.changed.notify_waiters();
    smf.sessions.remove(session);
    delete_n4(smf, session, &mut state).await;
    // Only now: earlier, the UPF might have sent packets of the address's next UE to this one.
    let addresses = std::mem::take(&mut state.addresses);
    if let Some(network) = smf.networks.get(&session.dnn) {
        network.pool().release(time::now().into_std(), addresses);
    }
    let (policy, registration, uri) =
        (state.policy.take(), state.registration.take(), state.status_uri.clone());
    drop(state);
    RELEASED.inc();
    let notification = async {
        if let Notify::Amf(cause) = notify {
            smf.notify_released(&uri, cause).await;
        }
    };
    let policy = async {
        if let Some(policy) = policy {
            smf.delete_policy(policy).await;
        }
    };
    let registration = async {
        let registered = match registration {
            Some(registration) => registration.await.unwrap_or(false),
            None => false,
        };
        // Another session of the UE may have the same identity now, and with it the registration.
        if registered && smf.sessions.of_ue(session.supi, session.id).is_none() {
            smf.deregister(session).await;
        }
    };
    tokio::join!(notification, policy, registration);
}

/// N4 session release. If the deletion cannot be delivered, the session stays on the UPF until the UPF
/// restarts or, if the UPF is Godwit's, until the session's address is used again.
async fn delete_n4(smf: &Smf, session: &Session, state: &mut SessionState) {
    let Some(upf) = state.upf.take() else { return };
    let seids = Seids { own: session.seid(), upf: upf.seid };
    match smf.n4.request(upf.address, seids, SessionDeletionRequest {}).await {
        Ok(Message::SessionDeletionResponse(answer)) => {
            session.usage().count(upf.address, &answer.usage_reports);
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, upf = %upf.address, "session not deleted on the UPF"),
    }
    if let Some(Total { uplink_octets, downlink_octets, missing_reports, .. }) = session.usage().total() {
        tracing::info!(
            supi = %session.supi, id = %session.id, uplink_octets, downlink_octets, missing_reports,
            "usage of a session that has ended"
        );
    }
}
