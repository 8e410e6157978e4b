//! Staying registered with NRF (TS 29.510 §5.2.2.2, §5.2.2.3).
//!
//! One task per NF registers, sends heartbeats at the interval that the NRF asks for, registers again
//! when the NRF has restarted and forgotten the NF, waits with growing pauses while the NRF is down,
//! and deregisters at the end. So NFs and NRF may start in any order, and the NRF may restart at any
//! time.

use std::time::Duration;

use net::time;
use sbi::{
    ApiRoot, CallError, Client, Target,
    model::{
        common::Patch,
        nrf::{NfProfile, NfStatus},
    },
    op::nrf::{DeregisterNf, DeregisterNfRequest, RegisterNf, RegisterNfRequest, UpdateNf, UpdateNfRequest},
    operation::{Created, Stored},
};
use telemetry::counters::{Counter, Family};
use tokio::sync::watch;

use crate::shutdown::Shutdown;

/// First pause after the NRF did not answer; doubles up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_millis(50);
/// Longest pause, so that a core works again soon after its NRF is back.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Heartbeat interval if the NRF names none.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(10);
/// Time limit of the deregistration: the NRF would also notice missing heartbeats.
const DEREGISTER_LIMIT: Duration = Duration::from_millis(500);

static REGISTRATIONS: Counter = Counter::new("nf_registrations");
static HEARTBEATS: Counter = Counter::new("nf_heartbeats");
static FAILURES: Family = Family::new("nf_registration_failures", "step");

/// Whether the NRF has registered us; shared with OAM and tests.
#[derive(Debug)]
pub struct Registration {
    registered: watch::Sender<bool>,
}

impl Default for Registration {
    fn default() -> Self {
        Self { registered: watch::Sender::new(false) }
    }
}

impl Registration {
    /// Whether the NRF's latest answer was that we are registered.
    pub fn is_registered(&self) -> bool {
        *self.registered.borrow()
    }

    /// Waits until the NRF has registered us.
    pub async fn wait(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.registered.subscribe().wait_for(|registered| *registered).await;
    }
}

/// Keeps `profile` registered with `nrf` until `stop`.
pub(crate) async fn keep(
    client: Client,
    nrf: ApiRoot,
    profile: NfProfile,
    registration: std::sync::Arc<Registration>,
    stop: Shutdown,
) {
    let target = Target::At(nrf);
    tokio::select! {
        () = stop.wait() => {}
        never = stay_registered(&client, &target, &profile, &registration) => match never {},
    }
    if registration.is_registered() {
        let request = DeregisterNfRequest { nf_instance_id: profile.nf_instance_id, body: () };
        let _ = time::timeout(DEREGISTER_LIMIT, client.call::<DeregisterNf>(target, request)).await;
        registration.registered.send_replace(false);
    }
}

async fn stay_registered(
    client: &Client,
    target: &Target,
    profile: &NfProfile,
    registration: &Registration,
) -> std::convert::Infallible {
    let mut backoff = MIN_BACKOFF;
    loop {
        match register(client, target, profile).await {
            Ok(heartbeat) => {
                REGISTRATIONS.inc();
                backoff = MIN_BACKOFF;
                registration.registered.send_replace(true);
                tracing::info!(nf = %profile.nf_type, "registered with NRF");
                send_heartbeats(client, target, profile, heartbeat).await;
                registration.registered.send_replace(false);
                tracing::warn!(nf = %profile.nf_type, "NRF no longer knows this NF: registering again");
            }
            Err(error) => {
                FAILURES.inc("register");
                // Logged once at a visible level; the further waiting is routine.
                if backoff == MIN_BACKOFF {
                    tracing::info!(nf = %profile.nf_type, %error, "waiting for NRF");
                }
                time::sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        }
    }
}

/// Registers. Returns the heartbeat interval that the NRF chose.
async fn register(client: &Client, target: &Target, profile: &NfProfile) -> Result<Duration, CallError> {
    let request = RegisterNfRequest { nf_instance_id: profile.nf_instance_id, body: profile.clone() };
    let stored = client.call::<RegisterNf>(target.clone(), request).await?;
    let (Stored::Created(Created { body, .. }) | Stored::Replaced(Some(body))) = stored else {
        return Ok(DEFAULT_HEARTBEAT);
    };
    Ok(body.heart_beat_timer.filter(|s| *s > 0).map_or(DEFAULT_HEARTBEAT, |s| Duration::from_secs(s.into())))
}

/// Sends heartbeats until the NRF answers that it does not know us. Waits while the NRF is down.
async fn send_heartbeats(client: &Client, target: &Target, profile: &NfProfile, interval: Duration) {
    let mut pause = interval;
    let mut backoff = MIN_BACKOFF;
    loop {
        time::sleep(pause).await;
        let status = serde_json::Value::from(NfStatus::Registered.as_str());
        let body = Patch::replace("/nfStatus", status);
        let request = UpdateNfRequest { nf_instance_id: profile.nf_instance_id, body };
        match client.call::<UpdateNf>(target.clone(), request).await {
            Ok(_) => {
                HEARTBEATS.inc();
                (pause, backoff) = (interval, MIN_BACKOFF);
            }
            Err(CallError::Problem { .. }) => return FAILURES.inc("heartbeat_refused"),
            Err(error) => {
                FAILURES.inc("heartbeat_lost");
                tracing::debug!(nf = %profile.nf_type, %error, "heartbeat");
                pause = backoff;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        }
    }
}
