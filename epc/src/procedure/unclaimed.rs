//! PDN connections for which the MME has never named an eNB: it has given up, or forged them. They end after some time, so that they
//! do not fill the gateway.

use std::sync::Arc;
use std::time::Duration;

use net::time;
use telemetry::counters::Counter;

use super::delete_session;
use crate::context::{Gateway, Ue};

static ENDED: Counter = Counter::new("epc_unclaimed_sessions_ended");

/// Looks for them until the gateway stops.
pub(crate) async fn run(gateway: Arc<Gateway>) {
    let limit = Duration::from_millis(gateway.config.timers.unclaimed_ms);
    loop {
        time::sleep(limit / 4).await;
        for ue in gateway.ues.all() {
            end(&gateway, &ue, limit).await;
        }
    }
}

async fn end(gateway: &Arc<Gateway>, ue: &Ue, limit: Duration) {
    // A UE that is busy is looked at the next time.
    let Ok(mut state) = ue.state.try_lock() else { return };
    let now = time::now().into_std();
    let mut at = 0;
    while let Some(pdn) = state.pdns.get(at) {
        if pdn.unclaimed.is_none_or(|since| now.duration_since(since) < limit) {
            at += 1;
            continue;
        }
        let pdn = state.pdns.remove(at);
        ENDED.inc();
        // The MME is not told: it may have the UE at another S-GW, for which it has prepared a handover from there to here.
        delete_session::end(gateway, pdn).await;
    }
    delete_session::forget_if_empty(gateway, ue, &mut state);
}
