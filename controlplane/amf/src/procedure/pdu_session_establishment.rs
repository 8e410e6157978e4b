//! UE-requested PDU session establishment (TS 23.502 §4.3.2.2.1), the AMF's part.
//!
//! Flow: slice and DNN from request and subscription → an SMF for them creates the SM context → its
//! N1N2 transfer has the accept for the UE and the N2 information for the gNB → PDU Session Resource
//! Setup → the gNB's tunnel goes back to the SMF. If a step fails, the session is released again: the
//! UE learns of it from the SMF's reject, from the cause in DL NAS TRANSPORT, or later from the PDU
//! session status.

use std::ops::ControlFlow;

use nas::{GmmCause, Message, gmm};
use ngap::PduSessionSetupItem;
use ngap::cause::Nas;
use sbi::model::smf;
use types::{Dnn, PduSessionId, SNssai};

use super::ul_nas_transport::not_forwarded;
use super::{deregistration, n1n2_transfer, resource_setup, session_resources, user_plane};
use crate::context::PduSession;
use crate::counters;
use crate::event::{Arrival, Interrupt, N2Info, Transfer};
use crate::peers::SmCreate;
use crate::ue::{Ue, Waiting};

const NAME: &str = "pdu_session_establishment";

/// Establishes session `id`.
pub(crate) async fn pdu_session_establishment(
    ue: &mut Ue,
    id: PduSessionId,
    transport: gmm::UlNasTransport,
) -> Result<(), Interrupt> {
    let Some(supi) = ue.ctx.supi else { return Ok(()) };
    if ue.ctx.sessions.contains_key(&id) {
        // The UE has lost its session (TS 24.501 §6.4.1.6): the old one is released first.
        release_duplicate(ue, id).await?;
    }
    let (s_nssai, dnn) = match select(ue, &transport) {
        Ok(selected) => selected,
        Err(cause) => {
            ue.record(NAME, format!("not_forwarded #{}", cause.number()));
            return not_forwarded(ue, id, transport.payload, cause).await;
        }
    };
    let amf = ue.amf.clone();
    let serial = amf.session_serial();
    let create = SmCreate {
        supi,
        pei: ue.ctx.pei,
        session: id,
        serial,
        dnn: dnn.clone(),
        s_nssai,
        location: ue.ctx.location,
        request_type: smf::RequestType::InitialRequest,
        n1: transport.payload.clone().into(),
    };
    match amf.peers.create_sm_context(&amf, create).await {
        Ok(context) => {
            ue.ctx.lost_sessions.remove(&id);
            let session =
                PduSession { dnn, s_nssai, serial, context, active: false, release_completed: false };
            ue.ctx.sessions.insert(id, session);
        }
        Err(refused) => {
            return match refused.n1 {
                // The SMF's own reject contains the cause.
                Some(n1) => {
                    let outcome = n1n2_transfer::send_n1(ue, id, &n1).await;
                    ue.record(NAME, "rejected");
                    outcome
                }
                None => {
                    let cause = refused.error.payload_cause();
                    let outcome = not_forwarded(ue, id, transport.payload, cause).await;
                    ue.record(NAME, format!("not_forwarded #{}", cause.number()));
                    outcome
                }
            };
        }
    }
    let outcome = set_up(ue, id).await;
    match outcome {
        Ok(Outcome::Established) => {
            ue.record(NAME, "ok");
            tracing::info!(?supi, %id, "PDU session established");
            Ok(())
        }
        Ok(Outcome::Rejected) => {
            ue.record(NAME, "rejected");
            Ok(())
        }
        Ok(Outcome::Failed(why)) => {
            drop_session(ue, id).await;
            let sent = not_forwarded(ue, id, transport.payload, GmmCause::PayloadNotForwarded).await;
            ue.record(NAME, why);
            sent
        }
        Err(interrupt) => {
            ue.record(NAME, "interrupted");
            drop_session(ue, id).await;
            // The accept may have been sent.
            ue.lost(id);
            Err(interrupt)
        }
    }
}

/// Releases a session in SMF and gNB because the UE establishes a new one with the same identity. The SMF is first: it
/// would take the gNB's answer for a lost user plane and set up the old session's again.
async fn release_duplicate(ue: &mut Ue, id: PduSessionId) -> Result<(), Interrupt> {
    counters::PAYLOAD_NOT_FORWARDED.inc("duplicate_session_id");
    let active = ue.ctx.sessions.get(&id).is_some_and(|session| session.active);
    deregistration::release_sessions(ue, &[id]).await;
    if active {
        let cause = ngap::Cause::Nas(Nas::NormalRelease);
        let command = ngap::transfer::PduSessionResourceReleaseCommandTransfer { cause };
        match command.encode() {
            Ok(transfer) => session_resources::release(ue, id, None, transfer).await?,
            Err(error) => tracing::error!(%error, "release transfer not encodable"),
        }
    }
    Ok(())
}

/// How the set-up ended after the SM context was created.
enum Outcome {
    Established,
    /// The SMF rejected the session or released it; its message has told the UE.
    Rejected,
    Failed(&'static str),
}

/// From the SMF's transfer to the gNB's answer.
async fn set_up(ue: &mut Ue, id: PduSessionId) -> Result<Outcome, Interrupt> {
    let guard = std::time::Duration::from_millis(ue.amf.config.timers.smf_guard_ms);
    let transfer = ue
        .expect(Waiting::Core, net::time::now() + guard, |arrival| match arrival {
            Arrival::Transfer(transfer) if transfer.session == id => ControlFlow::Break(transfer),
            other => ControlFlow::Continue(other),
        })
        .await?;
    let Some(transfer) = transfer else {
        counters::TIMER_EXPIRIES.inc("smf_guard");
        return Ok(Outcome::Failed("timeout smf_guard"));
    };
    let Transfer { n1, n2, .. } = *transfer;
    let Some(N2Info::Setup(request)) = n2 else {
        n1n2_transfer::apply(ue, id, n1, n2).await?;
        ue.ctx.sessions.remove(&id);
        return Ok(Outcome::Rejected);
    };
    let Some(session) = ue.ctx.sessions.get(&id) else { return Ok(Outcome::Rejected) };
    let s_nssai = session.s_nssai;
    let nas_pdu = n1.and_then(|n1| {
        let transport = gmm::DlNasTransport::n1_sm(id, n1.to_vec());
        ue.protect(&Message::DlNasTransport(transport))
    });
    let item = PduSessionSetupItem { id, nas_pdu, s_nssai, transfer: request };
    let Some(asked) = resource_setup::send(ue, None, vec![item]).await? else {
        return Ok(Outcome::Failed("no_context"));
    };
    let Some(outcome) = ue.expect_n2(|pdu| asked.outcome(pdu)).await? else {
        ue.set_up_given_up(id);
        return Ok(Outcome::Failed("timeout n2_guard"));
    };
    if outcome.context_failed.is_some() || !outcome.done.iter().any(|item| item.id == id) {
        // The SMF frees its resources, and its answer informs the UE.
        user_plane::report_setup(ue, outcome).await;
        return Ok(Outcome::Failed("gnb_refused"));
    }
    user_plane::report_setup(ue, outcome).await;
    Ok(Outcome::Established)
}

/// Releases a session whose establishment failed.
async fn drop_session(ue: &mut Ue, id: PduSessionId) {
    deregistration::release_sessions(ue, &[id]).await;
}

/// Slice and DNN of a new session (TS 23.501 §5.15.5.3, §5.6.1), or the cause for the UE.
fn select(ue: &Ue, transport: &gmm::UlNasTransport) -> Result<(SNssai, Dnn), GmmCause> {
    if ue.ctx.sessions.len() >= ue.amf.config.limits.sessions_per_ue {
        return Err(GmmCause::MaximumPduSessionsReached);
    }
    let subscription = ue.ctx.subscription.as_ref().ok_or(GmmCause::PayloadNotForwarded)?;
    let allowed = &ue.ctx.allowed_nssai;
    let s_nssai = match transport.s_nssai {
        Some(wanted) if allowed.contains(&wanted) => wanted,
        Some(_) => return Err(GmmCause::PayloadNotForwarded),
        None => {
            let default = subscription.default_slices.iter().find(|slice| allowed.contains(slice));
            *default.or(allowed.first()).ok_or(GmmCause::PayloadNotForwarded)?
        }
    };
    let dnns = subscription.dnns_of(s_nssai).ok_or(GmmCause::DnnNotSupportedInSlice)?;
    let dnn = match &transport.dnn {
        Some(wanted) if dnns.dnns.contains(wanted) => wanted.clone(),
        Some(_) => return Err(GmmCause::DnnNotSupportedInSlice),
        None => dnns.default.clone().ok_or(GmmCause::DnnNotSupportedInSlice)?,
    };
    Ok((s_nssai, dnn))
}
