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
//!
//! An accept can be lost on the radio. A UE knows of the loss when it completes the registration, when it sends another
//! message after the accept on the same connection (it waits for SERVICE ACCEPT before that, TS 24.501 §5.6.1), or when
//! the PDU session status of its own request lacks the session. Until then every accept tells it again.

use nas::{Message, PsiSet};
use ngap::Pdu;
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
            self.lost(id);
        }
    }

    /// Records that the UE may believe in a session that does not exist.
    pub fn lost(&mut self, id: PduSessionId) {
        self.ctx.lost_sessions.insert(id);
        if let Some(connection) = &mut self.connection {
            connection.told.remove(&id);
        }
    }

    /// The gNB has not answered the set-up of a new session in time: the UE's request goes back to it. A slow gNB may
    /// give the UE the session's accept all the same. If it answers, [`Self::set_up_late`] follows; if the connection
    /// ends before, the UE's next accept tells it.
    pub fn set_up_given_up(&mut self, id: PduSessionId) {
        self.lost(id);
        if let Some(connection) = &mut self.connection {
            connection.told.insert(id);
        }
    }

    /// The gNB has set up resources that nobody waits for any more: the UE has the accepts of sessions that do not
    /// exist.
    pub fn set_up_late(&mut self, pdu: &Pdu) {
        let done = match pdu {
            Pdu::PduSessionResourceSetupResponse(response) => &response.pdu_sessions,
            Pdu::InitialContextSetupResponse(response) => &response.pdu_sessions,
            _ => return,
        };
        for item in done {
            if !self.ctx.sessions.contains_key(&item.id) {
                self.lost(item.id);
            }
        }
    }

    /// The PDU session status for an accept, if the UE asks for it or may believe in lost sessions.
    pub fn session_status(&mut self, asked: bool) -> Option<PsiSet> {
        if let Some(connection) = &mut self.connection {
            connection.told.clone_from(&self.ctx.lost_sessions);
        }
        let status = asked || !self.ctx.lost_sessions.is_empty();
        status.then(|| self.ctx.sessions.keys().copied().collect())
    }

    /// Whether the UE may believe in a lost session that no accept on its connection has told it of.
    pub fn has_untold_losses(&self) -> bool {
        let told = self.connection.as_ref().map(|connection| &connection.told);
        self.ctx.lost_sessions.iter().any(|id| told.is_none_or(|told| !told.contains(id)))
    }

    /// A verified message of the UE. It may show that the UE has the accept before it. A request that an accept answers
    /// does not: the UE may repeat it because it has none.
    pub fn shows_accept(&mut self, message: &Message) {
        let Some(connection) = &mut self.connection else { return };
        if !matches!(message, Message::ServiceRequest(_) | Message::RegistrationRequest(_)) {
            for id in std::mem::take(&mut connection.told) {
                self.ctx.lost_sessions.remove(&id);
            }
        }
    }

    /// The PDU session status of the UE's request: it knows of the loss of every other session.
    pub fn believes_in(&mut self, sessions: PsiSet) {
        self.ctx.lost_sessions.retain(|id| sessions.contains(*id));
    }
}
