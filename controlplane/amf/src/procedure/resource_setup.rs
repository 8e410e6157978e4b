//! Resources of a UE in its gNB: UE context and PDU sessions (TS 38.413 §8.2.1, §8.3.1).
//!
//! Everything is set up by one message: INITIAL CONTEXT SETUP REQUEST if the gNB has no context of the
//! UE yet, else PDU SESSION RESOURCE SETUP REQUEST, or (without session) a DOWNLINK NAS TRANSPORT.

use bytes::Bytes;
use ngap::{
    Cause, InitialContextSetupRequest, Pdu, PduSessionItem, PduSessionResourceSetupRequest,
    PduSessionResourceSetupResponse, PduSessionSetupItem, UeSecurityCapabilities,
};
use types::PduSessionId;

use crate::event::Interrupt;
use crate::ue::Ue;

/// The gNB's answer to either request.
#[derive(Debug, Default)]
pub(crate) struct SetupOutcome {
    /// Sessions set up, with their Setup Response Transfers.
    pub done: Vec<PduSessionItem>,
    /// Sessions not set up, with their Setup Unsuccessful Transfers.
    pub failed: Vec<PduSessionItem>,
    /// The whole context was refused.
    pub context_failed: Option<Cause>,
}

/// The request that the gNB has to answer.
#[derive(Debug)]
pub(crate) enum PendingSetup {
    /// A UE context, perhaps with sessions.
    Context,
    /// Resources of these sessions.
    Sessions(Vec<PduSessionId>),
}

impl PendingSetup {
    /// The outcome, if `pdu` answers this request. Otherwise returns `pdu`, which may answer an earlier
    /// request that was given up.
    pub fn outcome(&self, pdu: Pdu) -> Result<SetupOutcome, Box<Pdu>> {
        match (self, pdu) {
            (PendingSetup::Context, Pdu::InitialContextSetupResponse(response)) => Ok(SetupOutcome {
                done: response.pdu_sessions,
                failed: response.failed,
                context_failed: None,
            }),
            (PendingSetup::Context, Pdu::InitialContextSetupFailure(failure)) => Ok(SetupOutcome {
                done: Vec::new(),
                failed: failure.failed,
                context_failed: Some(failure.cause),
            }),
            (PendingSetup::Sessions(asked), Pdu::PduSessionResourceSetupResponse(response))
                if names(asked, &response) =>
            {
                Ok(SetupOutcome {
                    done: response.pdu_sessions,
                    failed: response.failed,
                    context_failed: None,
                })
            }
            (_, other) => Err(Box::new(other)),
        }
    }
}

/// Whether a response is about one of these sessions. A response without sessions cannot be told apart
/// and is accepted.
fn names(asked: &[PduSessionId], response: &PduSessionResourceSetupResponse) -> bool {
    let mut answered = response.pdu_sessions.iter().chain(&response.failed).map(|item| item.id).peekable();
    answered.peek().is_none() || answered.any(|id| asked.contains(&id))
}

/// Sends the set-up request with a NAS message. `None` if the gNB has nothing to answer.
pub(crate) async fn send(
    ue: &mut Ue,
    nas_pdu: Option<Bytes>,
    items: Vec<PduSessionSetupItem>,
) -> Result<Option<PendingSetup>, Interrupt> {
    let has_context = ue.connection.as_ref().is_some_and(|connection| connection.context);
    if has_context && items.is_empty() {
        if let Some(nas_pdu) = nas_pdu {
            ue.send_nas_pdu(nas_pdu).await?;
        }
        return Ok(None);
    }
    let ue_ambr = ue.ctx.ambr();
    if has_context {
        let asked = PendingSetup::Sessions(items.iter().map(|item| item.id).collect());
        ue.send(|amf_ue_ngap_id, ran_ue_ngap_id| {
            Pdu::PduSessionResourceSetupRequest(PduSessionResourceSetupRequest {
                amf_ue_ngap_id,
                ran_ue_ngap_id,
                nas_pdu,
                pdu_sessions: items,
                ue_ambr,
            })
        })
        .await?;
        return Ok(Some(asked));
    }
    // Without a security context no UE reaches this point.
    let (Some(security), Some(capability), Some(connection)) =
        (&ue.ctx.security, ue.ctx.capability, &ue.connection)
    else {
        return Ok(None);
    };
    let security_key = security.kgnb_of(connection.kgnb_count);
    let ue_security_capabilities = UeSecurityCapabilities::from_nas(
        capability.ea(),
        capability.ia(),
        capability.eea(),
        capability.eia(),
    );
    let (guami, allowed_nssai) = (ue.amf.guami, ue.ctx.allowed_nssai.clone());
    let ue_radio_capability = ue.ctx.radio_capability.clone();
    // The UE's aggregate bit rate is sent only with sessions (TS 38.413 §9.2.2.1).
    let ue_ambr = ue_ambr.filter(|_| !items.is_empty());
    ue.send(|amf_ue_ngap_id, ran_ue_ngap_id| {
        Pdu::InitialContextSetupRequest(InitialContextSetupRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            ue_ambr,
            guami,
            pdu_sessions: items,
            allowed_nssai,
            ue_security_capabilities,
            security_key,
            ue_radio_capability,
            nas_pdu,
        })
    })
    .await?;
    // From now on the gNB has a context, or answers that it could not set it up.
    if let Some(connection) = &mut ue.connection {
        connection.context = true;
    }
    Ok(Some(PendingSetup::Context))
}
