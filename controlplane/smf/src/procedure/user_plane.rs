//! The user plane of a session: activation by a service request (TS 23.502 §4.2.3.2), deactivation by AN release
//! (§4.2.6) and what the gNB answers, also to a new session (§4.3.2.2.1 steps 14 to 17).

use std::sync::Arc;
use std::time::Duration;

use nas::GsmCause;
use net::time;
use ngap::GtpTunnel;
use pfcp::Message;
use sbi::ProblemDetails;
use sbi::model::smf::{N2SmInfoType, SmContextUpdateError, SmContextUpdatedData, UpCnxState};
use telemetry::counters::Counter;

use crate::context::{Phase, Session, SessionState, Smf, UpState, UpfSession};
use crate::n2;
use crate::n4::rules;
use crate::n4::{N4Error, Seids, rules::Tunnels};
use crate::n4u;
use crate::procedure::{establishment, release, service_request};

static ACTIVATED: Counter = Counter::new("smf_up_activated");
static DEACTIVATED: Counter = Counter::new("smf_up_deactivated");
static GNB_UNUSABLE: Counter = Counter::new("smf_gnb_tunnel_refused");
static GNB_REFUSED: Counter = Counter::new("smf_gnb_refused_session");

/// How often a silent UPF is told of a gNB's tunnel, and how long apart: five minutes in all, after which a UPF that is
/// back has restarted.
const CONFIRMATIONS: usize = 60;
const CONFIRM_AFTER: Duration = Duration::from_secs(5);

type Updated = Result<SmContextUpdatedData, SmContextUpdateError>;

fn up_state(state: UpCnxState) -> SmContextUpdatedData {
    SmContextUpdatedData { up_cnx_state: Some(state), ..Default::default() }
}

/// The AMF wants the user plane: what the gNB needs goes back.
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

/// The UE went idle, or the gNB is gone: downlink packets wait in the UPF from now on.
pub(crate) async fn deactivate(smf: &Arc<Smf>, session: &Arc<Session>) -> Updated {
    let mut state = session.state.lock().await;
    n4u::reachable(smf, session, false);
    state.gnb = None;
    state.up = UpState::Deactivated;
    if state.phase == Phase::Establishing {
        // The gNB was lost before it answered. The UE has no session yet; the guard ends it.
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
        // UE and gNB have their parts of the session, so it stays. The UPF may be gone, after or before it obeyed: its
        // sessions are restored from the context, which knows the gNB's tunnel now.
        Err(N4Error::Failed(error)) => {
            tracing::warn!(supi = %session.supi, id = %session.id, %error, "the UPF has not confirmed the gNB's tunnel");
            tokio::spawn(confirm(smf.clone(), session.clone(), gnb));
        }
        // The UPF cannot send there, or not at all: the gNB must not believe that it has the session, nor the UE.
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

/// Tells a UPF that did not answer once more, until it does, has restarted, or something else happens to the session.
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

/// A new session ends with that (§4.3.2.2.1 step 16a); an old one only has no user plane.
async fn refused_by_gnb(smf: &Arc<Smf>, session: &Arc<Session>) -> Updated {
    GNB_REFUSED.inc();
    let mut state = session.state.lock().await;
    state.up = UpState::Deactivated;
    state.gnb = None;
    if state.phase == Phase::Establishing {
        drop(state);
        // The accept did not reach the UE with the resources: the reject does.
        let (smf, session) = (smf.clone(), session.clone());
        tokio::spawn(async move {
            establishment::fail(&smf, &session, GsmCause::InsufficientResources).await;
        });
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

/// N4 session modification. A UPF that has lost the session gets it anew, in the state it is to have.
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

/// Sets up the session again on its UPF, with the tunnels it had: gNB and UE notice nothing.
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
    // As of the answer: the request may have been repeated until the restarted UPF took it.
    let epoch = smf.n4.epoch(address);
    state.upf = Some(UpfSession { address, seid, epoch, tunnels });
    if gnb.is_none() && state.up == UpState::Deactivated {
        // Established without notification: an idle UE is to be paged.
        smf.n4.request(address, Seids { own, upf: seid }, rules::deactivate()).await?;
    }
    Ok(())
}
