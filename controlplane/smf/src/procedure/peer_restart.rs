//! AMFs and PCFs that started, or started again (TS 23.527 §6.2).
//!
//! **A PCF** that restarted has forgotten its policy associations, and would never again tell of a changed policy. Each
//! session asks it, has the association made again and takes what the PCF decides now (`policy_association.rs`). A
//! session that was set up while there was no PCF gets its association then.
//!
//! **An AMF** that restarted has forgotten its UEs. They come back by registering anew, which in the UE ends the sessions
//! it had; what the AMF had before its recovery time is lost (TS 23.527 §6.2), so the session is released here, on
//! the UPF and in PCF and UDM. An AMF that has only deregistered may come back with what it had: its sessions stay.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use net::time;
use sbi::ApiRoot;
use sbi::model::nrf::{NfProfile, NfType};
use sbi::op::amf::NAMF_COMM;
use sbi::op::pcf::NPCF_SM;
use telemetry::counters::Counter;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::context::{Phase, Session, Smf};
use crate::procedure::{policy_association, release};

static LOST_BY_AMF: Counter = Counter::new("smf_session_lost_by_amf");

/// Sessions dealt with at once: the peer has just started, and others want something from it as well.
const AT_ONCE: usize = 64;
/// How long a session may take to be established before its policy is looked at.
const ESTABLISHMENT: Duration = Duration::from_secs(30);

/// Deals with each peer that started, for as long as the SMF runs.
pub(crate) async fn run(smf: Arc<Smf>, mut started: mpsc::Receiver<NfProfile>) {
    while let Some(profile) = started.recv().await {
        match profile.nf_type {
            NfType::Pcf => {
                for pcf in sbi::api_roots(&profile, NPCF_SM.name) {
                    each_session(&smf, |smf, session| pcf_started(smf, session, pcf.clone())).await;
                }
            }
            NfType::Amf => {
                let Some(recovery) = profile.recovery_time.as_ref().and_then(|recovery| recovery.time())
                else {
                    continue;
                };
                for amf in sbi::api_roots(&profile, NAMF_COMM.name) {
                    each_session(&smf, |smf, session| amf_started(smf, session, amf.clone(), recovery)).await;
                }
            }
            _ => {}
        }
    }
}

/// Does something for every session, for some at a time.
async fn each_session<F>(smf: &Arc<Smf>, act: impl Fn(Arc<Smf>, Arc<Session>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    for session in smf.sessions.all() {
        if running.len() >= AT_ONCE {
            running.join_next().await;
        }
        running.spawn(act(smf.clone(), session));
    }
    running.join_all().await;
}

async fn amf_started(smf: Arc<Smf>, session: Arc<Session>, amf: ApiRoot, recovery: SystemTime) {
    {
        let state = session.state.lock().await;
        if state.amf != amf || state.amf_since >= recovery || state.phase == Phase::Released {
            return;
        }
    }
    LOST_BY_AMF.inc();
    tracing::info!(supi = %session.supi, id = %session.id, "session released: its AMF restarted");
    // An AMF that has it nevertheless hears that it is gone.
    release::locally(&smf, &session, release::Notify::Amf(None)).await;
}

async fn pcf_started(smf: Arc<Smf>, session: Arc<Session>, pcf: ApiRoot) {
    // A session that is being established has just asked a PCF, this one or that before.
    let established = session.wait_for_phase(|phase| phase != Phase::Establishing);
    if time::timeout(ESTABLISHMENT, established).await.is_err() {
        return;
    }
    let state = session.state.lock().await;
    if state.phase == Phase::Active {
        policy_association::pcf_started(&smf, &session, state, &pcf).await;
    }
}
