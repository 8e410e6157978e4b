//! Sessions that their SMF has lost or released without the UE's knowledge, for example by a restart
//! (TS 23.527 §6.2).
//!
//! The AMF learns of it from the SMF's notification, from 404 to any request about the session, and
//! from the recovery time that the NRF notifies (`peer_restart.rs`), after which [`check`] asks the SMF
//! for each session. [`Ue::forget_session`] removes a lost session from the UE's context and records
//! that the UE still believes in it.
//!
//! The UE learns of it from the PDU session status of its next accept. A connected UE would not get one
//! soon enough, and the gNB's resources of the session lead nowhere: a configuration update
//! (`configuration_update.rs`) makes it register. The session and its address are lost for good; the UE
//! establishes a new session.

use sbi::ApiRoot;
use types::PduSessionId;

use crate::counters;
use crate::peers::{SmContextRef, SmUpdate, join_all};
use crate::ue::Ue;

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
