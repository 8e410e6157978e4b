//! Restoration after a restart of the UPF (TS 23.527 §4.3): every session of the UPF is set up again
//! with its former tunnels, so that UEs and gNBs notice only a gap. A session that cannot be restored
//! is released, and the UE asked to establish it again.
//!
//! If the association was set up again without sign of a restart, the UPF may have deleted the sessions
//! or kept them. A modification that changes nothing shows which; missing sessions are set up again.

use std::net::SocketAddr;
use std::sync::Arc;

use n4::N4Error;
use nas::GsmCause;
use telemetry::counters::Counter;
use tokio::task::JoinSet;

use crate::context::{Phase, Session, SessionState, Smf};
use crate::procedure::{release, user_plane};
use crate::rules;

static RESTORED: Counter = Counter::new("smf_session_restored");
static LOST: Counter = Counter::new("smf_session_not_restored");

/// Sessions restored at the same time: enough to keep a UPF busy, few enough to leave room for other
/// work.
const AT_ONCE: usize = 64;

/// Restores the sessions of a UPF; `lost` if the UPF has certainly lost them.
pub(crate) async fn restore(smf: Arc<Smf>, upf: SocketAddr, lost: bool) {
    let mut running = JoinSet::new();
    for session in smf.sessions.all() {
        if running.len() >= AT_ONCE {
            running.join_next().await;
        }
        running.spawn(restore_session(smf.clone(), session, upf, lost));
    }
    running.join_all().await;
    tracing::info!(%upf, lost, restored = RESTORED.get(), not_restored = LOST.get(), "sessions of a UPF (totals)");
}

async fn restore_session(smf: Arc<Smf>, session: Arc<Session>, upf: SocketAddr, lost: bool) {
    let mut state = session.state.lock().await;
    // Sessions set up since the UPF is associated again, and those that another procedure has restored,
    // exist on it: a second establishment with the same tunnels would be refused.
    let epoch = smf.n4.epoch(upf);
    if state.upf.is_none_or(|on| on.address != upf || lost && on.epoch == epoch) {
        return;
    }
    if state.phase == Phase::Released {
        return;
    }
    let result = if lost {
        user_plane::reestablish(&smf, &session, &mut state).await
    } else {
        confirm(&smf, &session, &mut state).await
    };
    match result {
        Ok(()) => RESTORED.inc(),
        // The UPF answered the association and then failed again: after the next association this is
        // repeated.
        Err(N4Error::Failed(error)) if !lost => {
            tracing::debug!(supi = %session.supi, id = %session.id, %error, "session not confirmed by its UPF");
        }
        Err(error) => {
            LOST.inc();
            tracing::warn!(supi = %session.supi, id = %session.id, %error, "session lost with its UPF");
            drop(state);
            release::by_network(&smf, &session, GsmCause::ReactivationRequested).await;
        }
    }
}

/// Repeats the destination of downlink packets to the UPF. If the UPF does not have the session, it is
/// set up again.
async fn confirm(smf: &Smf, session: &Session, state: &mut SessionState) -> Result<(), N4Error> {
    let change = state.gnb.map_or_else(rules::deactivate, rules::activate);
    user_plane::modify(smf, session, state, change).await
}
