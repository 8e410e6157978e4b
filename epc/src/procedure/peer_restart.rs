//! Restart of a neighbour (TS 23.007 §14.1a, §16, §17): what it had is over, but for what has been set up since.
//!
//! | restarted | what ends |
//! |---|---|
//! | MME | its UEs' PDN connections, at their P-GWs as well |
//! | S-GW | the PDN connections that this P-GW has with it |
//! | P-GW | the PDN connections that this S-GW has with it; the MME is told, so that the UE asks for other ones |

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use telemetry::counters::Counter;
use tokio::task::JoinSet;

use super::delete_session;
use crate::context::{Gateway, Peer, Ue};

static ENDED: Counter = Counter::new("epc_sessions_ended_by_peer_restart");

/// UEs that end at the same time: a UPF that does not answer delays each of them.
const AT_ONCE: usize = 64;

/// Ends the PDN connections that a restarted neighbour has lost.
pub(crate) async fn handle(gateway: Arc<Gateway>, peer: IpAddr, since: Instant) {
    tracing::warn!(%peer, "a neighbour has restarted: the PDN connections that it has lost end");
    let mut running = JoinSet::new();
    for ue in gateway.ues.all() {
        if running.len() >= AT_ONCE {
            running.join_next().await;
        }
        running.spawn(end(gateway.clone(), ue, peer, since));
    }
    running.join_all().await;
}

async fn end(gateway: Arc<Gateway>, ue: Arc<Ue>, peer: IpAddr, since: Instant) {
    let mut state = ue.state.lock().await;
    if state.gone {
        return;
    }
    let has_lost = |served: Peer| served.is_at(peer) && served.since < since;
    let mut at = 0;
    while let Some(pdn) = state.pdns.get(at) {
        let by_mme = pdn.role.is_sgw() && state.mme.is_some_and(has_lost);
        if !by_mme && !pdn.role.s5_peer().is_some_and(has_lost) {
            at += 1;
            continue;
        }
        let is_sgw = pdn.role.is_sgw();
        let pdn = state.pdns.remove(at);
        ENDED.inc();
        match (by_mme, is_sgw) {
            (true, _) => delete_session::end(&gateway, pdn).await,
            (false, true) => delete_session::end_lost(&gateway, state.mme, pdn).await,
            (false, false) => delete_session::end_here(&gateway, pdn).await,
        }
    }
    delete_session::forget_if_empty(&gateway, &ue, &mut state);
}
