//! The user plane of a session: activation by a service request (TS 23.502 §4.2.3.2), deactivation by
//! AN release (§4.2.6), and the gNB's answers, also those for a new session (§4.3.2.2.1 steps 14 to
//! 17).

use std::sync::Arc;
use std::time::Duration;

use n4::{N4Error, Seids};
use nas::GsmCause;
use net::time;
use ngap::GtpTunnel;
use pfcp::Message;
use sbi::ProblemDetails;
use sbi::model::smf::{N2SmInfoType, SmContextUpdateError, SmContextUpdatedData, UpCnxState};
use telemetry::counters::Counter;

use crate::context::{Phase, Session, SessionState, Smf, UpState, UpfSession};
use crate::n2;
use crate::n4u;
use crate::procedure::service_request::NotActivated;
use crate::procedure::{establishment, release, service_request};
use crate::rules::{self, Tunnels};

static ACTIVATED: Counter = Counter::new("smf_up_activated");
static DEACTIVATED: Counter = Counter::new("smf_up_deactivated");
static GNB_UNUSABLE: Counter = Counter::new("smf_gnb_tunnel_refused");
static GNB_REFUSED: Counter = Counter::new("smf_gnb_refused_session");

/// How often, and at which interval, a gNB's tunnel is sent again to a UPF that does not answer: five
/// minutes in all. A UPF that answers only after that has restarted.
const CONFIRMATIONS: usize = 60;
const CONFIRM_AFTER: Duration = Duration::from_secs(5);

type Updated = Result<SmContextUpdatedData, SmContextUpdateError>;

fn up_state(state: UpCnxState) -> SmContextUpdatedData {
    SmContextUpdatedData { up_cnx_state: Some(state), ..Default::default() }
}

/// The AMF asks to activate the user plane: returns the information for the gNB.
pub(crate) async fn activate(smf: &Arc<Smf>, session: &Arc<Session>) -> Updated {
    let mut state = session.state.lock().await;
    let (Phase::Active, Some(upf)) = (state.phase, state.upf) else {
        return Err(ProblemDetails::new(403, "SESSION_NOT_ACTIVE").into());
    };
    let transfer =
        n2::setup_request(session, &state, upf.tunnels.n3).ok_or_else(ProblemDetails::system_failure)?;
    service_request::begin_activation(smf, session, &mut state);
    Ok(SmContextUpdatedData {
        n2_sm_info: Some(transfer.into()),
        n2_sm_info_type: Some(N2SmInfoType::PduResSetupReq),
        ..up_state(UpCnxState::Activating)
    })
}

/// The UE is idle, or the gNB is lost: the UPF buffers downlink packets from now on.
pub(crate) async fn deactivate(smf: &Arc<Smf>, session: &Arc<Session>) -> Updated {
    let mut state = session.state.lock().await;
    n4u::reachable(smf, session, false);
    state.gnb = None;
    state.up = UpState::Deactivated;
    state.unreachable = false;
    if state.phase == Phase::Establishing {
        // The gNB was lost before it answered. The UE does not have the session yet; the guard timer
        // ends it.
        return Ok(up_state(UpCnxState::Deactivated));
    }
    modify(smf, session, &mut state, rules::deactivate()).await.map_err(n4_failed)?;
    DEACTIVATED.inc();
    Ok(up_state(UpCnxState::Deactivated))
}

/// PDU Session Resource Setup Response Transfer: downlink packets go to the gNB.
pub(crate) async fn set_up_by_gnb(smf: &Arc<Smf>, session: &Arc<Session>, octets: &[u8]) -> Updated {
    let gnb = n2::setup_response(session, octets).map_err(|_| n2_error())?;
    let Some(gnb) = gnb else { return refused_by_gnb(smf, session).await };
    let mut state = session.state.lock().await;
    if !matches!(state.phase, Phase::Establishing | Phase::Active) {
        return Err(n2_error());
    }
    state.gnb = Some(gnb);
    state.up = UpState::Activated;
    match modify(smf, session, &mut state, rules::activate(gnb)).await {
        Ok(()) => {}
        // UE and gNB have their parts of the session, so it stays. The UPF may have failed before or
        // after it made the change. Its sessions are restored from the context, which has the gNB's
        // tunnel now.
        Err(N4Error::Failed(error)) => {
            tracing::warn!(supi = %session.supi, id = %session.id, %error, "the UPF has not confirmed the gNB's tunnel");
            tokio::spawn(confirm(smf.clone(), session.clone(), gnb));
        }
        // The UPF cannot send to that address, or not at all: gNB and UE must not believe that they
        // have the session.
        Err(error) => {
            tracing::warn!(supi = %session.supi, id = %session.id, %error, "the UPF refused the gNB's tunnel");
            GNB_UNUSABLE.inc();
            state.gnb = None;
            drop(state);
            let (smf, session) = (smf.clone(), session.clone());
            tokio::spawn(async move {
                release::by_network(&smf, &session, GsmCause::NetworkFailure).await;
            });
            return Ok(up_state(UpCnxState::Deactivated));
        }
    }
    ACTIVATED.inc();
    n4u::reachable(smf, session, true);
    state.phase = Phase::Active;
    session.changed.notify_waiters();
    Ok(up_state(UpCnxState::Activated))
}

/// Repeats a modification that the UPF did not answer, until it answers, has restarted, or another
/// procedure changes the session.
async fn confirm(smf: Arc<Smf>, session: Arc<Session>, gnb: GtpTunnel) {
    let asked = session.state.lock().await.upf.map(|upf| (upf.address, upf.seid));
    for _ in 0..CONFIRMATIONS {
        time::sleep(CONFIRM_AFTER).await;
        let mut state = session.state.lock().await;
        let same = state.upf.map(|upf| (upf.address, upf.seid)) == asked && state.gnb == Some(gnb);
        if !same || state.phase != Phase::Active {
            return;
        }
        match modify(&smf, &session, &mut state, rules::activate(gnb)).await {
            Err(N4Error::Failed(_)) => {}
            _ => return,
        }
    }
}

/// PDU Session Resource Setup Unsuccessful Transfer.
pub(crate) async fn not_set_up_by_gnb(smf: &Arc<Smf>, session: &Arc<Session>, octets: &[u8]) -> Updated {
    let cause = n2::setup_unsuccessful(octets).map_err(|_| n2_error())?;
    tracing::info!(supi = %session.supi, id = %session.id, %cause, "the gNB did not set up the session");
    refused_by_gnb(smf, session).await
}

/// A new session ends with this (§4.3.2.2.1 step 16a). The user plane of an established session is down, and
/// downlink data activate it again after a pause.
async fn refused_by_gnb(smf: &Arc<Smf>, session: &Arc<Session>) -> Updated {
    GNB_REFUSED.inc();
    let mut state = session.state.lock().await;
    if state.phase == Phase::Establishing {
        state.up = UpState::Deactivated;
        state.gnb = None;
        drop(state);
        // The accept was sent with the resources and did not reach the UE; the reject does.
        let (smf, session) = (smf.clone(), session.clone());
        tokio::spawn(async move {
            establishment::fail(&smf, &session, GsmCause::InsufficientResources).await;
        });
    } else if state.phase == Phase::Active && state.up != UpState::Deactivated {
        service_request::pause_activation(smf, session, &mut state, NotActivated::Refused).await;
    }
    Ok(up_state(UpCnxState::Deactivated))
}

/// The gNB released the session's resources by itself (PDU Session Resource Notify).
pub(crate) async fn released_by_gnb(smf: &Arc<Smf>, session: &Arc<Session>) -> Updated {
    deactivate(smf, session).await
}

fn n2_error() -> SmContextUpdateError {
    ProblemDetails::new(403, "N2_SM_ERROR").into()
}

fn n4_failed(error: N4Error) -> SmContextUpdateError {
    ProblemDetails::peer_not_responding().detail(error).into()
}

/// N4 session modification. If the UPF has lost the session, it is set up again in the wanted state.
pub(crate) async fn modify(
    smf: &Smf,
    session: &Session,
    state: &mut SessionState,
    change: pfcp::message::SessionModificationRequest,
) -> Result<(), N4Error> {
    let upf = state.upf.ok_or(N4Error::Unusable)?;
    match smf.n4.request(upf.address, Seids { own: session.seid(), upf: upf.seid }, change).await {
        Err(N4Error::Refused(pfcp::Cause::SESSION_NOT_FOUND)) => reestablish(smf, session, state).await,
        result => result.map(drop),
    }
}

/// Sets up the session again on its UPF with its former tunnels, so that nothing changes for gNB and
/// UE.
pub(crate) async fn reestablish(
    smf: &Smf,
    session: &Session,
    state: &mut SessionState,
) -> Result<(), N4Error> {
    let Some(UpfSession { address, tunnels, .. }) = state.upf else { return Err(N4Error::Unusable) };
    let gnb: Option<GtpTunnel> = state.gnb;
    let request = session.rules(smf, state).establishment(Some(tunnels), gnb);
    let own = session.seid();
    let answer = smf.n4.request(address, Seids { own, upf: 0 }, request).await?;
    let Message::SessionEstablishmentResponse(response) = answer else { return Err(N4Error::Unusable) };
    let seid = response.up_f_seid.ok_or(N4Error::Unusable)?.seid;
    let tunnels: Tunnels = tunnels;
    // The epoch at the answer: the request may have been repeated until the restarted UPF accepted it.
    let epoch = smf.n4.epoch(address);
    session.usage().begins_at(address);
    state.upf = Some(UpfSession { address, seid, epoch, tunnels });
    if gnb.is_none() && state.up == UpState::Deactivated {
        // The session was established without notification, but an idle UE has to be paged.
        smf.n4.request(address, Seids { own, upf: seid }, rules::deactivate()).await?;
    }
    Ok(())
}
