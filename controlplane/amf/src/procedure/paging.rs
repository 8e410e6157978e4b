//! Network-triggered service request (TS 23.502 §4.2.3.3, TS 24.501 §5.6.2): pages an idle UE.
//!
//! Every gNB that serves a tracking area of the registration area is asked, again when T3513 expires. The UE answers
//! with a service request on a new connection, which interrupts the wait; what it was paged for is put back and
//! delivered once the service request is done.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use ngap::{Paging, Pdu};
use types::Tai;

use crate::counters;
use crate::event::{Interrupt, Transfer};
use crate::gnb::Gnb;
use crate::ue::{Ue, Waiting};

/// Pagings before the UE counts as not reachable: the first and two more, as radio paging cells are missed easily.
const ATTEMPTS: u32 = 3;

/// Pages the UE for `transfer`.
pub(crate) async fn paging(ue: &mut Ue, transfer: Transfer) -> Result<(), Interrupt> {
    let Some(tmsi) = ue.ctx.tmsi().filter(|_| ue.ctx.registered) else { return Ok(()) };
    let tais = ue.amf.registration_area();
    let page =
        Pdu::Paging(Paging { s_tmsi: ue.amf.guti(tmsi).s_tmsi(), paging_drx: None, tais: tais.clone() });
    let octets = match page.encode() {
        Ok(octets) => octets,
        Err(error) => {
            tracing::error!(%error, "Paging not sent");
            return Ok(());
        }
    };
    let t3513 = std::time::Duration::from_millis(ue.amf.config.timers.t3513_ms);
    for _ in 0..ATTEMPTS {
        for gnb in serving(ue, &tais) {
            // A gNB that does not take it is passed over: others, or the next attempt, may reach the UE.
            _ = gnb.try_send_common(octets.clone());
        }
        let waited: Result<Option<()>, Interrupt> =
            ue.expect(Waiting::Radio, net::time::now() + t3513, ControlFlow::Continue).await;
        match waited {
            Ok(_) => counters::TIMER_EXPIRIES.inc("T3513"),
            Err(interrupt) => {
                if matches!(interrupt, Interrupt::Initial(..)) {
                    ue.record("paging", "ok");
                    ue.redeliver(transfer);
                }
                return Err(interrupt);
            }
        }
    }
    ue.record("paging", "not_reachable");
    if let Some(uri) = transfer.failure_uri {
        let amf = ue.amf.clone();
        amf.peers.transfer_failed(&uri).await;
    }
    Ok(())
}

/// The gNBs that serve one of the tracking areas.
fn serving(ue: &Ue, tais: &[Tai]) -> Vec<Arc<Gnb>> {
    let mut seen = BTreeSet::new();
    let gnbs = ue.amf.gnbs();
    gnbs.values()
        .filter(|gnb| tais.iter().any(|tai| gnb.serves(*tai)) && seen.insert(gnb.key))
        .cloned()
        .collect()
}
