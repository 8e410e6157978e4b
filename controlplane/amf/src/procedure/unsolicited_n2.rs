//! N2 messages that no procedure waits for: PDU Session Resource Notify (TS 38.413 §8.2.4), the answer to a change of
//! the UE's bit rate, and messages that are unexpected or too late.

use ngap::Pdu;

use super::{bit_rate, session_resources};
use crate::counters;
use crate::event::Interrupt;
use crate::peers::SmUpdate;
use crate::ue::Ue;

/// Handles an N2 message that no procedure waits for.
pub(crate) async fn unsolicited_n2(ue: &mut Ue, pdu: Pdu) -> Result<(), Interrupt> {
    match pdu {
        Pdu::PduSessionResourceNotify(notify) => {
            let notified = notify.pdu_sessions.into_iter().map(|item| (item, false));
            let released = notify.released.into_iter().map(|item| (item, true));
            for (item, released) in notified.chain(released) {
                if let Some(session) = ue.ctx.sessions.get_mut(&item.id) {
                    session.active &= !released;
                }
                session_resources::report(
                    ue,
                    item.id,
                    SmUpdate::Notify { transfer: item.transfer, released },
                )
                .await;
            }
        }
        Pdu::UeContextModificationResponse(_) | Pdu::UeContextModificationFailure(_) => {
            bit_rate::answered(ue, &pdu);
        }
        Pdu::UeContextReleaseComplete(_) => counters::N2_REJECTED.inc("unexpected"),
        other => {
            counters::N2_REJECTED.inc("unexpected");
            tracing::debug!(message = other.name(), "unexpected N2 message");
            ue.set_up_late(&other);
        }
    }
    Ok(())
}
