//! The session subscription changes (TS 23.502 §4.3.2.2.1 step 4, §4.3.3.2 step 1b; TS 29.503 §5.2.2.3, §5.2.2.5).
//!
//! The SMF subscribes at the UDM when a UE gets its first session, and reads the subscription anew when notified. A
//! changed session AMBR or default QoS goes to the PCF, and what is decided to UPF, UE and gNB. A session whose DNN or
//! slice is not subscribed any more is released. Session types, SSC modes and static addresses hold from the next
//! establishment on.

use std::sync::Arc;
use std::time::Duration;

use nas::GsmCause;
use net::time;
use telemetry::counters::Counter;
use types::Plmn;

use crate::context::{Phase, Session, Smf};
use crate::procedure::establishment::subscribed_qos;
use crate::procedure::{policy_association, release};

static CHANGED: Counter = Counter::new("smf_subscription_changed");

/// How long a session may take to be established before a change is applied to it.
const ESTABLISHMENT: Duration = Duration::from_secs(30);

/// Has the UDM tell of changes.
pub(crate) async fn watch(smf: &Arc<Smf>, session: &Arc<Session>, plmn: Plmn) {
    if smf.sessions.is_watched(session.supi) || !smf.subscribe_to_changes(session.supi, plmn).await {
        return;
    }
    smf.sessions.watch(session.supi);
    // What has changed since the session read it was not notified. A task of its own: the session's end waits for us.
    tokio::spawn(apply(smf.clone(), session.clone()));
}

/// Reads the session's subscription anew and does what follows.
pub(crate) async fn apply(smf: Arc<Smf>, session: Arc<Session>) {
    let established = session.wait_for_phase(|phase| phase != Phase::Establishing);
    if time::timeout(ESTABLISHMENT, established).await.is_err() {
        return;
    }
    let plmn = session.state.lock().await.plmn;
    match smf.subscription(session.supi, plmn, session.s_nssai, &session.dnn).await {
        Ok(subscription) => {
            let subscribed = subscribed_qos(&subscription);
            let mut state = session.state.lock().await;
            if state.phase == Phase::Active && state.subscribed != subscribed {
                CHANGED.inc();
                state.subscribed = subscribed;
                policy_association::subscription_changed(&smf, &session, state).await;
            }
        }
        // The UDM was not to be had: what is in force stays until the next change.
        Err(GsmCause::NetworkFailure) => {}
        Err(cause) => {
            tracing::info!(supi = %session.supi, id = %session.id, ?cause, "session not subscribed any more");
            release::by_network(&smf, &session, GsmCause::RegularDeactivation).await;
        }
    }
}
