//! AN release (TS 23.502 §4.2.6): ends a UE's N2 connection, by a procedure or because it was lost.
//!
//! The UE becomes CM-IDLE; its SMFs keep the sessions with deactivated user planes. When the AMF releases the
//! connection, it has the user planes deactivated first: TS 23.502 does so last, but then downlink packets that
//! arrive meanwhile are sent to a gNB that has released its tunnels, and are lost. Like this the UPF keeps them and
//! the UE is paged.

use std::ops::ControlFlow;

use ngap::{Cause, Pdu, UeContextReleaseCommand, UeNgapIds};

use super::user_plane;
use crate::counters;
use crate::event::{Arrival, Initial, Interrupt};
use crate::gnb::LinkDown;
use crate::ue::{Ue, Waiting};

/// The gNB asked for the release.
pub(crate) async fn an_release(ue: &mut Ue, cause: Cause) -> Result<(), Interrupt> {
    let outcome = release(ue, cause).await;
    ue.record("an_release", if outcome.is_ok() { "ok" } else { "interrupted" });
    outcome
}

/// UE Context Release Command with a guard timer: a gNB that does not answer has lost the UE anyway.
pub(crate) async fn release(ue: &mut Ue, cause: Cause) -> Result<(), Interrupt> {
    if ue.connection.is_none() {
        return Ok(());
    }
    user_plane::deactivate_all(ue).await;
    let sent = ue
        .send(|amf, ran| {
            Pdu::UeContextReleaseCommand(UeContextReleaseCommand {
                ue_ngap_ids: UeNgapIds::Pair(amf, ran),
                cause,
            })
        })
        .await;
    let guard = std::time::Duration::from_millis(ue.amf.config.timers.n2_guard_ms);
    let deadline = net::time::now() + guard;
    let mut outcome = Ok(());
    while sent.is_ok() {
        let complete = ue.expect(Waiting::Radio, deadline, |arrival| match arrival {
            Arrival::N2(pdu) => match *pdu {
                Pdu::UeContextReleaseComplete(_) => ControlFlow::Break(()),
                other => ControlFlow::Continue(Arrival::N2(Box::new(other))),
            },
            other => ControlFlow::Continue(other),
        });
        match complete.await {
            Ok(Some(())) => break,
            Ok(None) => {
                counters::TIMER_EXPIRIES.inc("n2_guard");
                break;
            }
            // The gNB asked for the release that is running; and the UE's messages on this connection
            // are lost with it.
            Err(Interrupt::ReleaseRequested(_) | Interrupt::Nas(_)) => {}
            Err(Interrupt::LinkDown(_)) => break,
            Err(interrupt) => {
                outcome = Err(interrupt);
                break;
            }
        }
    }
    ue.disconnect();
    outcome
}

/// The connection was lost: the association ended, or the gNB reset it.
pub(crate) async fn connection_lost(ue: &mut Ue, why: LinkDown) {
    tracing::debug!(supi = ?ue.ctx.supi, ?why, "N2 connection lost");
    ue.disconnect();
    user_plane::deactivate_all(ue).await;
}

/// The UE opened a new connection before the old one was released: the old gNB is told, without waiting
/// for its answer.
pub(crate) async fn adopt(ue: &mut Ue, initial: Initial) {
    abandon(ue, ngap::cause::RadioNetwork::ReleaseDueToCnDetectedMobility.into()).await;
    user_plane::deactivate_all(ue).await;
    ue.connect(initial);
}

/// Ends the connection. The gNB is told, without waiting for its answer.
pub(crate) async fn abandon(ue: &mut Ue, cause: Cause) {
    if let Some(old) = &ue.connection
        && !old.n2.is_down()
    {
        // If sending fails, the connection is lost, which is what is wanted.
        _ = ue
            .send(|amf, ran| {
                Pdu::UeContextReleaseCommand(UeContextReleaseCommand {
                    ue_ngap_ids: UeNgapIds::Pair(amf, ran),
                    cause,
                })
            })
            .await;
    }
    ue.disconnect();
}
