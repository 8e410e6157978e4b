//! Defects of the UPF itself: a panic costs the message that was being handled, but neither N4 nor the user
//! plane.
//!
//! The session of a failed request is removed, since the change may be half done, and the CP function is told
//! that it does not exist ("session context not found", TS 29.244 §8.2.1). The CP function then sets it up
//! again with complete rules. A failed establishment is answered with "system failure"; its published blocks
//! and its TEIDs are taken back. After [`MOST_IN_A_ROW`] defects without a success in between, N4's own state
//! is assumed to be damaged: the last panic ends the task, and with it the process ([`crate::Upf::failed`]).
//! Packets are forwarded until then.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use pfcp::endpoint::RequestId;
use pfcp::{Cause, Message};
use telemetry::counters::Counter;

use super::{Server, now};

static DEFECTS: Counter = Counter::new("upf_n4_defects");

/// Defects in a row after which N4 ends.
const MOST_IN_A_ROW: u32 = 64;
/// How long timers are not checked after a failure: those that are due would fail again at once.
const REST: Duration = Duration::from_millis(100);

/// Counts panics.
#[derive(Debug, Default)]
pub(super) struct Defects {
    /// Number of panics since the last request that was handled.
    in_a_row: u32,
    /// Timers are not checked before this instant.
    pub(super) rest_until: Option<Instant>,
}

impl Server {
    /// Runs `work`; `None` when it panicked.
    pub(super) fn guarded<T>(&mut self, work: impl FnOnce(&mut Server) -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(done) => Some(done),
            Err(panic) => {
                DEFECTS.inc();
                self.defects.in_a_row += 1;
                if self.defects.in_a_row >= MOST_IN_A_ROW {
                    resume_unwind(panic);
                }
                None
            }
        }
    }

    /// Handles a request, and answers it even if that panics.
    pub(super) fn guarded_request(&mut self, id: RequestId, seid: u64, message: Message) {
        let establishment = match &message {
            Message::SessionEstablishmentRequest(request) => Some(request.cp_f_seid.seid),
            _ => None,
        };
        self.sessions.begin();
        if self.guarded(|server| server.request(id, seid, message)).is_some() {
            self.sessions.end();
            self.defects.in_a_row = 0;
            return;
        }
        let peer = id.peer.ip();
        let cp_seid = establishment.or_else(|| self.sessions.cp_seid_of(seid, peer));
        let removed = self.guarded(|server| {
            let seid = if establishment.is_some() { server.sessions.last_established() } else { seid };
            let removed = server.sessions.remove_of(seid, peer);
            server.sessions.roll_back();
            removed
        });
        tracing::error!(%peer, seid, ?removed, "a defect: the request is refused, and its session removed");
        let of_a_session = establishment.is_none() && seid != 0;
        let cause = if of_a_session { Cause::SESSION_NOT_FOUND } else { Cause::SYSTEM_FAILURE };
        self.guarded(|server| server.reject(id, cp_seid.unwrap_or(0), cause, None));
    }

    /// Handles timers; after a panic, later again.
    pub(super) fn guarded_timeout(&mut self) {
        let done = self.guarded(Server::handle_timeout);
        self.defects.rest_until = done.is_none().then(|| now() + REST);
    }
}

impl super::session::Sessions {
    /// The CP function's SEID of one of its sessions.
    fn cp_seid_of(&self, seid: u64, cp: IpAddr) -> Option<u64> {
        self.get(seid).filter(|session| session.cp == cp).map(|session| session.cp_seid)
    }

    /// Removes a session of a CP function; `false` if there was none.
    fn remove_of(&mut self, seid: u64, cp: IpAddr) -> bool {
        let found = self.cp_seid_of(seid, cp).is_some();
        if found {
            self.remove(seid);
        }
        found
    }
}
