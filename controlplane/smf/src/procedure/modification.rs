//! Network-requested PDU session modification (TS 23.502 §4.3.3.2; TS 24.501 §6.3.2): PCF or UDM have changed what the
//! session may do.
//!
//! The UPF is changed first; then one transfer informs UE and gNB. T3591 repeats the command until the
//! UE answers. A gNB without resources of the session gets the new values with the next set-up.

use std::sync::Arc;
use std::time::Duration;

use n4::N4Error;
use nas::SmBody;
use nas::gsm::ModificationCommand;
use nas::{FlowOperation, QosFlowDescription};
use net::time;
use sbi::ProblemDetails;
use sbi::model::pcf::SmPolicyDecision;
use sbi::model::smf::N2SmInfoType;
use telemetry::counters::Counter;
use tokio::sync::MutexGuard;
use types::Pti;

use crate::context::{Phase, Session, SessionQos, SessionState, Smf, UpState};
use crate::n1;
use crate::n2;
use crate::peers::{Transfer, authorised};
use crate::procedure::user_plane;
use crate::rules;

static MODIFIED: Counter = Counter::new("smf_session_modified");
static T3591_EXPIRED: Counter = Counter::new("smf_t3591_expired");

/// Retransmissions of the command; the next expiry ends the procedure (TS 24.501 §6.3.2.5).
const T3591_RETRANSMISSIONS: u32 = 4;

/// Npcf_SMPolicyControl_UpdateNotify: the decision takes the place of the one in force; what it leaves out stays.
pub(crate) async fn policy_changed(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    decision: &SmPolicyDecision,
) -> Result<(), ProblemDetails> {
    let state = session.state.lock().await;
    match state.phase {
        Phase::Active => {}
        // The session is still being established: the PCF repeats its notification.
        Phase::Establishing => return Err(ProblemDetails::new(400, "PENDING_TRANSACTION")),
        Phase::Releasing { .. } | Phase::Released => return Err(ProblemDetails::context_not_found()),
    }
    let qos = authorised(decision, state.qos);
    let changed = change_qos(smf, session, state, qos).await;
    changed.map_err(|error| ProblemDetails::peer_not_responding().detail(error))
}

/// Puts other QoS into force in an active session. When the UPF does not take it, all stays as it was.
pub(crate) async fn change_qos(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    mut state: MutexGuard<'_, SessionState>,
    qos: SessionQos,
) -> Result<(), N4Error> {
    let before = std::mem::replace(&mut state.qos, qos);
    let ambr_changed = qos.ambr != before.ambr;
    let flow_changed = (qos.five_qi, qos.arp) != (before.five_qi, before.arp);
    if !ambr_changed && !flow_changed {
        return Ok(());
    }
    if ambr_changed
        && let Err(error) = user_plane::modify(smf, session, &mut state, rules::change_ambr(qos.ambr)).await
    {
        state.qos = before;
        return Err(error);
    }
    let what = commands(session, &mut state, ambr_changed, flow_changed);
    let amf = state.amf.clone();
    MODIFIED.inc();
    drop(state);
    let (smf, session) = (smf.clone(), session.clone());
    tokio::spawn(async move {
        let command = what.n1.clone();
        // An AMF that refuses no longer has the UE. Then the AMF or the UE ends the session.
        if smf.transfer(&session, &amf, what).await.is_ok() {
            supervise(&smf, &session, command).await;
        }
    });
    Ok(())
}

/// The same, where nobody waits for the outcome.
pub(crate) async fn change_qos_or_warn(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    state: MutexGuard<'_, SessionState>,
    qos: SessionQos,
) {
    if let Err(error) = change_qos(smf, session, state, qos).await {
        tracing::warn!(supi = %session.supi, id = %session.id, %error, "changed QoS is not in force on the UPF");
    }
}

/// The messages for UE and gNB.
fn commands(session: &Session, state: &mut SessionState, ambr_changed: bool, flow_changed: bool) -> Transfer {
    let flow = QosFlowDescription {
        operation: FlowOperation::Modify,
        ..QosFlowDescription::non_gbr(session.qfi(), state.qos.five_qi)
    };
    let command = ModificationCommand {
        cause: None,
        session_ambr: ambr_changed.then_some(state.qos.ambr),
        rq_timer: None,
        always_on: None,
        qos_rules: Vec::new(),
        qos_flows: if flow_changed { vec![flow] } else { Vec::new() },
        pco: None,
    };
    let command = n1::encode(session.id, Pti::UNASSIGNED, SmBody::ModificationCommand(command));
    state.modification_command = Some(command.clone());
    let n2 = match state.up {
        UpState::Activated => n2::modify_request(session, state, ambr_changed, flow_changed),
        UpState::Deactivated | UpState::Activating => None,
    };
    Transfer { n1: Some(command), n2: n2.map(|n2| (N2SmInfoType::PduResModReq, n2)), ..Default::default() }
}

/// T3591: repeats the command until the UE answers or another command replaces it.
async fn supervise(smf: &Arc<Smf>, session: &Arc<Session>, command: Option<bytes::Bytes>) {
    let t3591 = Duration::from_millis(smf.config.timers.t3591_ms);
    for expiry in 0..=T3591_RETRANSMISSIONS {
        time::sleep(t3591).await;
        let amf = {
            let mut state = session.state.lock().await;
            if state.phase != Phase::Active || state.modification_command != command {
                return;
            }
            if expiry == T3591_RETRANSMISSIONS {
                state.modification_command = None;
            }
            state.amf.clone()
        };
        T3591_EXPIRED.inc();
        let again = Transfer { n1: command.clone(), ..Default::default() };
        if expiry < T3591_RETRANSMISSIONS && smf.transfer(session, &amf, again).await.is_err() {
            return;
        }
    }
    tracing::info!(supi = %session.supi, id = %session.id, "the UE did not answer a modification");
}

/// PDU SESSION MODIFICATION COMPLETE or COMMAND REJECT: the UE has answered. A rate limit that the UE
/// does not apply is enforced by the UPF.
pub(crate) async fn answered_by_ue(session: &Session) {
    session.state.lock().await.modification_command = None;
}
