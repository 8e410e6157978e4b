//! User planes of a UE's sessions, as the AMF has its SMFs switch them (TS 23.502 §4.2.3.2, §4.2.6, §4.3.2.2.1).

use nas::GmmCause;
use ngap::PduSessionSetupItem;
use types::PduSessionId;

use super::resource_setup::SetupOutcome;
use crate::context::PduSession;
use crate::event::N2Info;
use crate::peers::{SmUpdate, join_all};
use crate::ue::Ue;

/// What came of asking the SMFs to activate user planes.
#[derive(Debug, Default)]
pub(crate) struct Activation {
    /// For the gNB.
    pub items: Vec<PduSessionSetupItem>,
    /// Sessions that stay without user plane, and why.
    pub failed: Vec<(PduSessionId, GmmCause)>,
}

/// Asks the SMFs of `wanted`, all at once, for what the gNB needs. Sessions that do not exist are passed over: the
/// PDU session status tells the UE.
pub(crate) async fn activate(ue: &mut Ue, wanted: &[PduSessionId]) -> Activation {
    let sessions: Vec<(PduSessionId, PduSession)> = wanted
        .iter()
        .filter_map(|id| ue.ctx.sessions.get(id).map(|session| (*id, session.clone())))
        .collect();
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
                    // The SMF counts on it from here: if the connection goes before the gNB has answered, the SMF has
                    // to hear of it. A set-up that fails corrects this ([`report_setup`]).
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

/// Hands the gNB's answers to the SMFs, all at once.
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
        // Another refusal (counted by the call) leaves what the gNB has as it is: the SMF has it released.
        if answer.is_err_and(|refused| refused.error.is_not_found()) {
            ue.forget_session(id);
        }
    }
}

/// Has the SMFs take down the user planes of every active session: the gNB is gone.
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
    // Another failure is counted by the call; the SMF finds out with the next activation.
    for (id, answer) in ids.into_iter().zip(join_all(calls).await) {
        if answer.is_err_and(|refused| refused.error.is_not_found()) {
            ue.forget_session(id);
        }
    }
}
