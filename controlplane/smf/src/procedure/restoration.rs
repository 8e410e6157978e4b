//! A UPF restarted (TS 23.527 §4.3): every session it had is set up again with the tunnels it had, so that UEs and
//! gNBs notice no more than the gap. A session that cannot be restored is released, and the UE asked to come again.

use std::net::SocketAddr;
use std::sync::Arc;

use nas::GsmCause;
use telemetry::counters::Counter;
use tokio::task::JoinSet;

use crate::context::{Phase, Session, Smf};
use crate::procedure::{release, user_plane};

static RESTORED: Counter = Counter::new("smf_session_restored");
static LOST: Counter = Counter::new("smf_session_not_restored");

/// Sessions restored at once: enough to keep a UPF busy, few enough to leave room for others.
const AT_ONCE: usize = 64;

/// Restores the sessions of a UPF.
pub(crate) async fn restore(smf: Arc<Smf>, upf: SocketAddr) {
    let mut running = JoinSet::new();
    for session in smf.sessions.all() {
        if running.len() >= AT_ONCE {
            running.join_next().await;
        }
        running.spawn(restore_session(smf.clone(), session, upf));
    }
    running.join_all().await;
    tracing::info!(%upf, restored = RESTORED.get(), lost = LOST.get(), "sessions of a restarted UPF (totals)");
}

async fn restore_session(smf: Arc<Smf>, session: Arc<Session>, upf: SocketAddr) {
    let mut state = session.state.lock().await;
    // Sessions set up since the UPF is there again, and those that a procedure missed and has put back, are on it:
    // a second establishment with the same tunnels would be refused.
    let epoch = smf.n4.epoch(upf);
    if state.upf.is_none_or(|on| on.address != upf || on.epoch == epoch) || state.phase == Phase::Released {
        return;
    }
    match user_plane::reestablish(&smf, &session, &mut state).await {
        Ok(()) => RESTORED.inc(),
        Err(error) => {
            LOST.inc();
            tracing::warn!(supi = %session.supi, id = %session.id, %error, "session lost with its UPF");
            drop(state);
            release::by_network(&smf, &session, GsmCause::ReactivationRequested).await;
        }
    }
}
