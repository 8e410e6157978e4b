//! Sessions that their SMF has lost or released without the UE's knowledge, for example by a restart
//! (TS 23.527 §6.2).
//!
//! The AMF learns of it from the SMF's notification, from 404 to any request about the session, and
//! from the recovery time that the NRF notifies ([`notify_ues`]), after which [`check`] asks the SMF
//! for each session. [`Ue::forget_session`] removes a lost session from the UE's context and records
//! that the UE still believes in it.
//!
//! The UE learns of it from the PDU session status of its next accept. A connected UE would not get one
//! soon enough, and the gNB's resources of the session lead nowhere: a configuration update
//! (`configuration_update.rs`) makes it register. The session and its address are lost for good; the UE
//! establishes a new session.

use std::sync::Arc;
use std::time::Duration;

use sbi::ApiRoot;
use sbi::model::nrf::NfProfile;
use sbi::op::smf::NSMF_PDUSESSION;
use tokio::sync::mpsc;
use types::PduSessionId;

use crate::context::Amf;
use crate::counters;
use crate::event::UeEvent;
use crate::peers::{SmContextRef, SmUpdate, join_all};
use crate::ue::Ue;

/// How many UEs check their sessions at a time after a restart of an SMF, and the pause between:
/// neither the SMF, which every UE's task asks, nor the radio network must be flooded.
const BATCH: usize = 50;
const PAUSE: Duration = Duration::from_millis(50);

/// Informs every UE's task of each restart of an SMF, as long as the AMF runs.
pub(crate) async fn notify_ues(amf: Arc<Amf>, mut restarted: mpsc::Receiver<NfProfile>) {
    while let Some(profile) = restarted.recv().await {
        for smf in sbi::api_roots(&profile, NSMF_PDUSESSION.name) {
            for batch in amf.ues.all().chunks(BATCH) {
                for ue in batch {
                    if let Err(event) = ue.send(UeEvent::SmfRestarted(smf.clone())) {
                        counters::UE_QUEUE_FULL.inc(event.name());
                    }
                }
                net::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Asks an SMF that restarted whether it still has the UE's sessions. Without a clear answer a session
/// stays: the SMF may only be too busy.
pub(crate) async fn check(ue: &mut Ue, smf: &ApiRoot) {
    let of_smf = ue.ctx.sessions.iter().filter(|(_, session)| session.context.api_root == *smf);
    let sessions: Vec<(PduSessionId, SmContextRef)> =
        of_smf.map(|(id, session)| (*id, session.context.clone())).collect();
    let (amf, location) = (ue.amf.clone(), ue.ctx.location);
    let asked = sessions.iter().map(|(_, context)| {
        let update = SmUpdate::Location(location);
        amf.peers.update_sm_context(context, update)
    });
    let answers = join_all(asked.collect()).await;
    for ((id, _), answer) in sessions.iter().zip(answers) {
        if answer.is_err_and(|refused| refused.error.is_not_found()) {
            ue.forget_session(*id);
        }
    }
}

impl Ue {
    /// Removes a session that its SMF does not have any more from the context.
    pub fn forget_session(&mut self, id: PduSessionId) {
        if self.ctx.sessions.remove(&id).is_some() {
            counters::SESSIONS_LOST.inc();
            tracing::info!(supi = ?self.ctx.supi, %id, "session ended in its SMF without the UE");
            self.ctx.lost_sessions.insert(id);
        }
    }
}
