//! UL NAS TRANSPORT (TS 24.501 §5.4.5.2): forwards payloads of the UE.
//!
//! A 5GSM message goes to the SMF of its session; for an initial request an SMF is selected first. A
//! payload that cannot be forwarded is returned to the UE in DL NAS TRANSPORT with the cause of
//! §5.4.5.2.5.

use nas::{GmmCause, Message, PayloadType, RequestType, gmm};
use types::PduSessionId;

use super::n1n2_transfer;
use super::pdu_session_establishment;
use crate::counters;
use crate::event::Interrupt;
use crate::peers::SmUpdate;
use crate::ue::Ue;

/// Message type of PDU SESSION RELEASE COMPLETE (TS 24.501 table 9.7.2), the only 5GSM message that the AMF
/// recognises: the SMF's notification of a session's end does not say whether the UE knows of it.
const RELEASE_COMPLETE: u8 = 0xd4;

/// Forwards the payload.
pub(crate) async fn ul_nas_transport(ue: &mut Ue, transport: gmm::UlNasTransport) -> Result<(), Interrupt> {
    if transport.payload_type != PayloadType::N1Sm {
        // The network has no function for SMS, positioning and the like.
        counters::PAYLOAD_NOT_FORWARDED.inc("payload_type");
        return ue.send_status(GmmCause::MessageTypeNotImplemented).await;
    }
    let Some(id) = transport.pdu_session_id else {
        counters::PAYLOAD_NOT_FORWARDED.inc("no_session_id");
        return ue.send_status(GmmCause::InvalidMandatoryInformation).await;
    };
    match (transport.request_type, ue.ctx.sessions.get_mut(&id)) {
        (Some(RequestType::Initial), _) => {
            pdu_session_establishment::pdu_session_establishment(ue, id, transport).await
        }
        // Emergency services and multi-access sessions are not supported.
        (
            Some(RequestType::InitialEmergency | RequestType::ExistingEmergency | RequestType::MaPduRequest),
            _,
        )
        | (_, None) => not_forwarded(ue, id, transport.payload, GmmCause::PayloadNotForwarded).await,
        (_, Some(session)) => {
            let header = nas::gsm::SmHeader::read(&transport.payload);
            session.release_completed |= header.is_some_and(|header| header.message_type == RELEASE_COMPLETE);
            let (context, location) = (session.context.clone(), ue.ctx.location);
            let amf = ue.amf.clone();
            let payload: bytes::Bytes = transport.payload.into();
            match amf.peers.update_sm_context(&context, SmUpdate::N1(payload.clone(), location)).await {
                Ok(updated) => n1n2_transfer::apply(ue, id, updated.n1, updated.n2).await,
                Err(refused) if refused.n1.is_some() || refused.n2.is_some() => {
                    n1n2_transfer::apply(ue, id, refused.n1, refused.n2).await
                }
                Err(refused) => {
                    if refused.error.is_not_found() {
                        ue.forget_session(id);
                    }
                    not_forwarded(ue, id, payload.to_vec(), refused.error.payload_cause()).await
                }
            }
        }
    }
}

/// DL NAS TRANSPORT that returns the payload with a cause.
pub(crate) async fn not_forwarded(
    ue: &mut Ue,
    id: PduSessionId,
    payload: Vec<u8>,
    cause: GmmCause,
) -> Result<(), Interrupt> {
    counters::PAYLOAD_NOT_FORWARDED.inc(&cause.number().to_string());
    let mut transport = gmm::DlNasTransport::n1_sm(id, payload);
    transport.cause = Some(cause);
    ue.send_nas(&Message::DlNasTransport(transport)).await
}
