//! Restoration after a restart of the UPF (TS 23.007 §16.1a, §17.1a): every PDN connection of the UPF is set up again with its former
//! tunnels, so that UEs and eNBs notice only a gap.
//!
//! If the association was set up again without sign of a restart, the UPF may have deleted the sessions or kept them. A modification
//! that changes nothing shows which; missing sessions are set up again.

use std::net::SocketAddr;
use std::sync::Arc;

use n4::N4Error;
use pfcp::Message;
use telemetry::counters::Counter;
use tokio::task::JoinSet;

use super::{delete_session, modify};
use crate::context::{Gateway, Pdn, Ue};
use crate::rules::{self, Downlink};

static RESTORED: Counter = Counter::new("epc_session_restored");
static LOST: Counter = Counter::new("epc_session_not_restored");

/// UEs whose PDN connections are restored at the same time: enough to keep a UPF busy, few enough to leave room for other work.
const AT_ONCE: usize = 64;

/// Restores the PDN connections of a UPF; `lost` if the UPF has certainly lost them.
pub(crate) async fn restore(gateway: Arc<Gateway>, upf: SocketAddr, lost: bool) {
    let mut running = JoinSet::new();
    for ue in gateway.ues.all() {
        if running.len() >= AT_ONCE {
            running.join_next().await;
        }
        running.spawn(restore_ue(gateway.clone(), ue, upf, lost));
    }
    running.join_all().await;
    tracing::info!(%upf, lost, restored = RESTORED.get(), not_restored = LOST.get(), "sessions of a UPF (totals)");
}

async fn restore_ue(gateway: Arc<Gateway>, ue: Arc<Ue>, upf: SocketAddr, lost: bool) {
    let mut state = ue.state.lock().await;
    let mut at = 0;
    while let Some(pdn) = state.pdns.get_mut(at) {
        // PDN connections set up since the UPF is associated again, and those that another procedure has restored, are there.
        if pdn.upf.address != upf || lost && pdn.upf.epoch == gateway.n4.epoch(upf) {
            at += 1;
            continue;
        }
        let result = match lost {
            true => set_up_again(&gateway, pdn).await,
            false => confirm(&gateway, pdn).await,
        };
        match result {
            Ok(()) => RESTORED.inc(),
            // The UPF answered the association and then failed again: after the next association this is repeated.
            Err(N4Error::Failed(_)) => {}
            Err(error) => {
                LOST.inc();
                tracing::warn!(imsi = %ue.imsi, %error, "PDN connection lost with its UPF");
                let pdn = state.pdns.remove(at);
                delete_session::end_lost(&gateway, state.mme, pdn).await;
                continue;
            }
        }
        at += 1;
    }
    delete_session::forget_if_empty(&gateway, &ue, &mut state);
}

/// Repeats the destination of downlink packets to the UPF.
async fn confirm(gateway: &Gateway, pdn: &mut Pdn) -> Result<(), N4Error> {
    let now = pdn.bearers.iter().map(|bearer| {
        let to = |access| Downlink::To { access, end_marker: false };
        (bearer.slot, bearer.access.map_or(Downlink::Buffered, to))
    });
    let change = rules::change_downlink(pdn.role, now);
    modify(gateway, pdn, change).await.map(drop)
}

/// Sets up a PDN connection again on its UPF as it is, with the former tunnels.
pub(crate) async fn set_up_again(gateway: &Gateway, pdn: &mut Pdn) -> Result<(), N4Error> {
    let request = pdn.rules(gateway).establishment(pdn.upf.n4u);
    let seids = n4::Seids { own: pdn.number, upf: 0 };
    let answer = gateway.n4.request(pdn.upf.address, seids, request).await?;
    let Message::SessionEstablishmentResponse(response) = answer else { return Err(N4Error::Unusable) };
    pdn.upf.seid = response.up_f_seid.ok_or(N4Error::Unusable)?.seid;
    // The epoch at the answer: the request may have been repeated until the restarted UPF accepted it.
    pdn.upf.epoch = gateway.n4.epoch(pdn.upf.address);
    pdn.unconfirmed.clear();
    let idle: Vec<_> = pdn.bearers.iter().filter(|bearer| bearer.access.is_none()).collect();
    if !idle.is_empty() {
        // It was set up without notification, but an idle UE has to be paged.
        let buffered = idle.iter().map(|bearer| (bearer.slot, Downlink::Buffered));
        let change = rules::change_downlink(pdn.role, buffered);
        gateway.n4.request(pdn.upf.address, pdn.seids(), change).await?;
    }
    Ok(())
}
