//! Restart of an MME (TS 23.007 §14.1a, §16): what its UEs had is over, but for what has been set up since.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use telemetry::counters::Counter;
use tokio::task::JoinSet;

use super::delete_session;
use crate::context::{Gateway, Ue, is_from};

static ENDED: Counter = Counter::new("epc_ues_ended_by_mme_restart");

/// UEs that end at the same time: a UPF that does not answer delays each of them.
const AT_ONCE: usize = 64;

/// Ends the PDN connections of a restarted MME's UEs.
pub(crate) async fn handle(gateway: Arc<Gateway>, peer: IpAddr, since: Instant) {
    tracing::warn!(%peer, "the MME has restarted: its UEs' PDN connections end");
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
    if !state.gone && is_from(state.mme, peer) && state.mme_since < since {
        delete_session::end_all(&gateway, &ue, &mut state).await;
        ENDED.inc();
    }
}
