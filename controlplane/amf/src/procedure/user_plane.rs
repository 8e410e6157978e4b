//! Activation and deactivation of the user planes of a UE's sessions in their SMFs (TS 23.502 §4.2.3.2,
//! §4.2.6, §4.3.2.2.1).

use nas::GmmCause;
use ngap::PduSessionSetupItem;
use types::PduSessionId;

use super::resource_setup::SetupOutcome;
use crate::context::PduSession;
use crate::event::N2Info;
use crate::peers::{SmUpdate, join_all};
use crate::ue::Ue;

/// The SMFs' answers to a request to activate user planes.
#[derive(Debug, Default)]
pub(crate) struct Activation {
    /// Resources for the gNB to set up.
    pub items: Vec<PduSessionSetupItem>,
    /// Sessions whose user plane stays inactive, with the cause.
    pub failed: Vec<(PduSessionId, GmmCause)>,
}

/// Asks the SMFs of `wanted` in parallel for the information that the gNB needs. The accept
/// informs the UE of sessions that do not exist. Sessions whose user plane is active on this connection are
/// skipped: a gNB refuses to set up a session that it has (TS 38.413 §8.2.1.4), and the SMF would then count the
/// user plane as lost.
pub(crate) async fn activate(ue: &mut Ue, wanted: &[PduSessionId]) -> Activation {
    let missing = wanted.iter().filter(|id| !ue.ctx.sessions.contains_key(id));
    ue.ctx.lost_sessions.extend(missing);
    let inactive = |id: &PduSessionId| ue.ctx.sessions.get(id).filter(|session| !session.active);
    let sessions: Vec<(PduSessionId, PduSession)> =
        wanted.iter().filter_map(|id| inactive(id).map(|session| (*id, session.clone()))).collect();
    let amf = ue.amf.clone();
    let location = ue.ctx.location;
    let asked = sessions.iter().map(|(_, session)| {
        let update = SmUpdate::Activate(location);
        amf.peers.update_sm_context(&session.context, update)
    });
    let answers = join_all(asked.collect()).await;
    let mut activation = Activation::default();
    for ((id, session), answer) in sessions.into_iter().zip(answers) {
        match answer {
            Ok(updated) => {
                if let Some(N2Info::Setup(transfer)) = updated.n2 {
                    let item = PduSessionSetupItem { id, nas_pdu: None, s_nssai: session.s_nssai, transfer };
                    activation.items.push(item);
                    // The SMF expects the set-up from here on: if the connection is lost before the gNB
                    // has answered, the SMF has to be told. A failed set-up corrects this
                    // ([`report_setup`]).
                    if let Some(session) = ue.ctx.sessions.get_mut(&id) {
                        session.active = true;
                    }
                }
            }
            Err(refused) => {
                if refused.error.is_not_found() {
                    ue.forget_session(id);
                }
                activation.failed.push((id, refused.error.payload_cause()));
            }
        }
    }
    activation
}

/// Sends the gNB's answers to the SMFs, in parallel.
pub(crate) async fn report_setup(ue: &mut Ue, outcome: SetupOutcome) {
    let amf = ue.amf.clone();
    let mut calls = Vec::new();
    let mut ids = Vec::new();
    let done = outcome.done.into_iter().map(|item| (item.id, SmUpdate::SetupDone(item.transfer), true));
    let failed =
        outcome.failed.into_iter().map(|item| (item.id, SmUpdate::SetupFailed(item.transfer), false));
    for (id, update, active) in done.chain(failed) {
        let Some(session) = ue.ctx.sessions.get_mut(&id) else { continue };
        session.active = active;
        ids.push(id);
        let context = session.context.clone();
        let amf = amf.clone();
        calls.push(async move { amf.peers.update_sm_context(&context, update).await });
    }
    for (id, answer) in ids.into_iter().zip(join_all(calls).await) {
        // After another refusal (counted by the call) the gNB keeps its resources; the SMF has them
        // released.
        if answer.is_err_and(|refused| refused.error.is_not_found()) {
            ue.forget_session(id);
        }
    }
}

/// Deactivates the user planes of all active sessions in their SMFs, because the gNB connection is
/// lost.
pub(crate) async fn deactivate_all(ue: &mut Ue) {
    let amf = ue.amf.clone();
    let location = ue.ctx.location;
    let mut calls = Vec::new();
    let mut ids = Vec::new();
    for (id, session) in ue.ctx.sessions.iter_mut().filter(|(_, session)| session.active) {
        session.active = false;
        ids.push(*id);
        let context = session.context.clone();
        let amf = amf.clone();
        calls
            .push(async move { amf.peers.update_sm_context(&context, SmUpdate::Deactivate(location)).await });
    }
    // The call counts other failures; the SMF notices with the next activation.
    for (id, answer) in ids.into_iter().zip(join_all(calls).await) {
        if answer.is_err_and(|refused| refused.error.is_not_found()) {
            ue.forget_session(id);
        }
    }
}
