//! SM policy association of an active session (TS 23.502 §4.16.4, §4.16.5; TS 29.512): asked again when the
//! subscription has changed, and made again when the PCF has lost it.

use std::sync::Arc;

use nas::GsmCause;
use sbi::{ApiRoot, Target};
use telemetry::counters::Counter;
use tokio::sync::MutexGuard;

use crate::context::{Session, SessionState, Smf};
use crate::peers::authorised;
use crate::procedure::{modification, release};

static MADE_AGAIN: Counter = Counter::new("smf_policy_made_again");

/// The subscribed QoS is another now: the PCF decides about it; without PCF it holds as it is.
pub(crate) async fn subscription_changed(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    state: MutexGuard<'_, SessionState>,
) {
    let Some(policy) = &state.policy else {
        let qos = state.subscribed;
        return modification::change_qos_or_warn(smf, session, state, qos).await;
    };
    match smf.update_policy(policy, state.subscribed).await {
        Ok(decision) => {
            let qos = authorised(&decision, state.subscribed);
            modification::change_qos_or_warn(smf, session, state, qos).await;
        }
        Err(error) if error.status() == Some(404) => {
            let pcf = Target::from(policy);
            make(smf, session, state, pcf).await;
        }
        // What is in force stays until the next change.
        Err(error) => {
            tracing::warn!(supi = %session.supi, id = %session.id, %error, "the PCF did not decide")
        }
    }
}

/// A PCF has started: a session without association asks for one, and one whose association this PCF has lost asks it.
pub(crate) async fn pcf_started(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    state: MutexGuard<'_, SessionState>,
    pcf: &ApiRoot,
) {
    let target = match &state.policy {
        None => Target::Discover,
        Some(policy) if policy.api_root == *pcf && smf.policy_is_lost(policy).await => Target::from(pcf),
        Some(_) => return,
    };
    make(smf, session, state, target).await;
}

async fn make(smf: &Arc<Smf>, session: &Arc<Session>, mut state: MutexGuard<'_, SessionState>, pcf: Target) {
    match smf.create_policy(pcf, session, &state).await {
        Ok(Some((policy, decision))) => {
            MADE_AGAIN.inc();
            state.policy = Some(policy);
            let qos = authorised(&decision, state.subscribed);
            modification::change_qos_or_warn(smf, session, state, qos).await;
        }
        // What is in force stays; a PCF that starts is asked.
        Ok(None) => state.policy = None,
        Err(_) => {
            state.policy = None;
            drop(state);
            release::by_network(smf, session, GsmCause::RegularDeactivation).await;
        }
    }
}
