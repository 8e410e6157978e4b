//! Restart of an MME (TS 23.007 §14.1a, §16): what its UEs had is over, but for what has been set up since.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use telemetry::counters::Counter;

use super::delete_session;
use crate::context::{Gateway, is_from};

static ENDED: Counter = Counter::new("epc_ues_ended_by_mme_restart");

/// Ends the PDN connections of a restarted MME's UEs.
pub(crate) async fn handle(gateway: Arc<Gateway>, peer: IpAddr, since: Instant) {
    tracing::warn!(%peer, "the MME has restarted: its UEs' PDN connections end");
    for ue in gateway.ues.all() {
        let mut state = ue.state.lock().await;
        if !state.gone && is_from(state.mme, peer) && state.mme_since < since {
            delete_session::end_all(&gateway, &ue, &mut state).await;
            ENDED.inc();
        }
    }
}
