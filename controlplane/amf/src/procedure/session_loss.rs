//! Sessions that ended in their SMF without the UE's knowledge: the SMF restarted (TS 23.527 §6.2), or gave them up.
//!
//! The AMF notices by the SMF's notification, by 404 to whatever it asks an SMF, and by the recovery time that NRF tells
//! ([`notify_ues`]), after which [`check`] asks the SMF for each session. [`Ue::forget_session`] takes a lost session
//! out of the UE's context and remembers that the UE still believes in it.
//!
//! How the UE learns it: by the PDU session status of its next accept. A UE that is connected would not ask for one soon
//! enough, and what the gNB has of the session leads nowhere: a configuration update (`configuration_update.rs`) has it
//! register. Its session is gone for good, as its address is; the UE establishes it anew.

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

/// UEs that are told at once that an SMF restarted, and the pause before the next: neither the SMF, which each asks for
/// its sessions, nor the radio side is to be flooded.
const BATCH: usize = 50;
const PAUSE: Duration = Duration::from_millis(50);

/// Tells every UE of each SMF that restarted, for as long as the AMF runs.
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

/// Asks an SMF that restarted whether it still has the UE's sessions. Those of which it does not say so stay: it may
/// only be too busy to answer.
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
    /// Takes a session that its SMF does not have any more out of the context.
    pub fn forget_session(&mut self, id: PduSessionId) {
        if self.ctx.sessions.remove(&id).is_some() {
            counters::SESSIONS_LOST.inc();
            tracing::info!(supi = ?self.ctx.supi, %id, "session ended in its SMF without the UE");
            self.ctx.lost_sessions.insert(id);
        }
    }
}
