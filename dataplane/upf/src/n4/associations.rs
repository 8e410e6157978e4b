//! Associations with CP functions (TS 29.244 §6.2.6 to §6.2.8): which CP functions may have one, and how one
//! ends.
//!
//! UDP does not prove a sender, and all sessions of a CP function end with its association. So no single
//! message ends one:
//!
//! - Only configured CP functions associate (`upf.smf`).
//! - An association belongs to an address *and* port. Session messages, releases and session set deletions from
//!   elsewhere are refused.
//! - An Association Setup Request that would replace an association is first confirmed: a Heartbeat Request
//!   goes to the address and port of the association, and to those of the Setup Request only if the former do
//!   not answer. The request is accepted if the answer has its recovery time stamp.
//! - A release is answered, and an Association Update Request then asks the CP function for confirmation. Its
//!   sessions are removed when it answers that it has no association. Some CP functions ignore this request;
//!   they are then sent a Heartbeat Request, and their sessions are removed if that is not answered either, or
//!   answered with another recovery time stamp.
//!
//! A CP function that does not answer heartbeats does not count towards [`MAX_ASSOCIATIONS`]. Its sessions
//! stay, and with them the association.

use std::net::{IpAddr, SocketAddr};

use foldhash::{HashMap, HashSet};
use pfcp::endpoint::{Failure, Handle, RequestId};
use pfcp::message::{
    AssociationReleaseResponse, AssociationSetupRequest, AssociationSetupResponse, AssociationUpdateRequest,
    AssociationUpdateResponse, HeartbeatRequest, SessionSetDeletionRequest, SessionSetDeletionResponse,
};
use pfcp::{
    AsRspFlags, Cause, CpFunctionFeatures, Message, NodeId, NtpSeconds, OffendingIe, UpFunctionFeatures, ie,
};
use telemetry::counters::Counter;

use super::{FEATURES, Server, now};

/// Most CP functions with an association that answer.
const MAX_ASSOCIATIONS: usize = 256;
/// Most unknown senders that the log names; further ones are only counted.
const MAX_STRANGERS: usize = 16;

static STRANGERS: Counter = Counter::new("upf_n4_strangers");
static UNCONFIRMED: Counter = Counter::new("upf_n4_unconfirmed");

/// A CP function that has set up an association.
#[derive(Debug)]
pub(super) struct Association {
    pub(super) node_id: NodeId,
    /// Source of its requests and destination of this UPF's requests.
    pub(super) address: SocketAddr,
    recovery_time_stamp: NtpSeconds,
    /// Whether it wants load information.
    pub(super) wants_load: bool,
    state: State,
}

/// Whether a CP function is known to be reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has not answered a request of this UPF yet.
    New,
    /// It has answered.
    Alive,
    /// It no longer answers.
    Silent,
}

/// A Setup Request that would replace an association.
#[derive(Debug)]
struct Claim {
    id: RequestId,
    request: AssociationSetupRequest,
    /// Address and port of the association.
    known: SocketAddr,
}

/// A question to a CP function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Whether a new CP function is reachable.
    Presence,
    /// Whether the address and port of the association have the recovery time stamp of the claim.
    Owner,
    /// Whether the address and port of the claim itself have its recovery time stamp.
    Claimant,
    /// Whether the CP function has released the association: an Association Update Request.
    Release,
    /// The same, when that request is not answered: whether it still has its recovery time stamp.
    ReleaseStamp,
}

/// All associations.
#[derive(Debug, Default)]
pub(super) struct Associations {
    by_address: HashMap<IpAddr, Association>,
    /// Setup Requests that wait for confirmation, at most one of each CP function.
    claims: HashMap<IpAddr, Claim>,
    asked: HashMap<Handle, (IpAddr, Question)>,
    strangers: HashSet<IpAddr>,
}

impl Associations {
    /// The association of a CP function.
    pub(super) fn get(&self, peer: IpAddr) -> Option<&Association> {
        self.by_address.get(&peer)
    }

    /// The association to which messages from this address and port belong.
    pub(super) fn of(&self, from: SocketAddr) -> Option<&Association> {
        self.get(from.ip()).filter(|association| association.address == from)
    }

    /// All associations with their addresses.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&IpAddr, &Association)> {
        self.by_address.iter()
    }

    fn cause(&self, from: SocketAddr) -> Cause {
        if self.of(from).is_some() { Cause::ACCEPTED } else { Cause::NO_ASSOCIATION }
    }
}

/// Notes a release that the CP function does not confirm.
fn not_released(peer: IpAddr) {
    UNCONFIRMED.inc();
    tracing::warn!(%peer, "the CP function has not released its association: it stays");
}

impl Server {
    /// Handles an Association Setup Request (§6.2.6). A CP function that repeats it without having restarted
    /// keeps its sessions.
    pub(super) fn associate(&mut self, id: RequestId, request: AssociationSetupRequest) {
        let peer = id.peer.ip();
        if !self.config.is_smf(peer) {
            self.refuse_stranger(peer);
            return self.reject(id, 0, Cause::REJECTED, None);
        }
        match self.associations.get(peer) {
            None => self.accept(id, request, false),
            Some(known)
                if known.address == id.peer && known.recovery_time_stamp == request.recovery_time_stamp =>
            {
                self.accept(id, request, true);
            }
            Some(known) => {
                let known = known.address;
                self.claim(Claim { id, request, known });
            }
        }
    }

    fn refuse_stranger(&mut self, peer: IpAddr) {
        STRANGERS.inc();
        let strangers = &mut self.associations.strangers;
        if strangers.len() < MAX_STRANGERS && strangers.insert(peer) {
            tracing::warn!(%peer, "association refused: upf.smf does not name this address");
        }
    }

    /// Asks the address and port of the association. A claim from another port does not replace one that is
    /// waiting; the sender of that repeats it.
    fn claim(&mut self, claim: Claim) {
        let (peer, known) = (claim.id.peer.ip(), claim.known);
        let waiting = self.associations.claims.get(&peer);
        if waiting.is_some_and(|waiting| waiting.id.peer != claim.id.peer) {
            UNCONFIRMED.inc();
            return self.reject(claim.id, 0, Cause::REJECTED, None);
        }
        let waits = waiting.is_some();
        self.associations.claims.insert(peer, claim);
        if !waits {
            self.question(known, Question::Owner);
        }
    }

    /// Sends the message whose answer answers the question.
    fn question(&mut self, to: SocketAddr, question: Question) {
        let message: Message = match question {
            Question::Release => {
                AssociationUpdateRequest { node_id: self.node_id.clone(), ..Default::default() }.into()
            }
            _ => HeartbeatRequest { recovery_time_stamp: self.recovery_time_stamp }.into(),
        };
        match self.endpoint.send_request(now(), to, 0, message) {
            Ok(handle) => {
                self.associations.asked.insert(handle, (to.ip(), question));
            }
            Err(error) => {
                tracing::debug!(%error, %to, "CP function not asked");
                self.drop_claim(to.ip());
            }
        }
    }

    /// Handles the response to a question about an association; `false` when it is a response to something
    /// else.
    pub(super) fn association_answered(&mut self, handle: Handle, message: &Message) -> bool {
        let Some((peer, question)) = self.associations.asked.remove(&handle) else { return false };
        self.heard_of(peer, question);
        match (question, message) {
            (Question::Owner | Question::Claimant, Message::HeartbeatResponse(response)) => {
                self.judge(peer, question, response.recovery_time_stamp);
            }
            (Question::Release, Message::AssociationUpdateResponse(response)) => {
                self.release_answered(peer, response.cause);
            }
            (Question::ReleaseStamp, Message::HeartbeatResponse(response)) => {
                let known = self.associations.get(peer).map(|known| known.recovery_time_stamp);
                if known == Some(response.recovery_time_stamp) {
                    not_released(peer);
                } else {
                    self.end_association(peer, "association released by a CP function that has restarted");
                }
            }
            _ => {}
        }
        true
    }

    /// Handles the cause of an Association Update Response. Other refusals than "no association" do not say
    /// whether there is one.
    fn release_answered(&mut self, peer: IpAddr, cause: Cause) {
        if cause.is_accepted() {
            not_released(peer);
        } else if cause == Cause::NO_ASSOCIATION {
            self.end_association(peer, "association released");
        } else {
            self.ask_association(peer, Question::ReleaseStamp);
        }
    }

    /// Sends a question to the address of an association, if there is one.
    fn ask_association(&mut self, peer: IpAddr, question: Question) {
        if let Some(address) = self.associations.get(peer).map(|known| known.address) {
            self.question(address, question);
        }
    }

    /// Notes that a CP function has answered at the address of its association.
    fn heard_of(&mut self, peer: IpAddr, question: Question) {
        if question != Question::Claimant
            && let Some(association) = self.associations.by_address.get_mut(&peer)
        {
            association.state = State::Alive;
        }
    }

    /// Decides a claim by the recovery time stamp of an answer.
    fn judge(&mut self, peer: IpAddr, question: Question, stamp: NtpSeconds) {
        let Some(claim) = self.associations.claims.remove(&peer) else { return };
        // A CP function that answers keeps its association against other ports of its address.
        let same_place = question == Question::Claimant || claim.id.peer == claim.known;
        if !same_place || stamp != claim.request.recovery_time_stamp {
            UNCONFIRMED.inc();
            tracing::warn!(from = %claim.id.peer, known = %claim.known, "association not replaced: unconfirmed");
            return self.reject(claim.id, 0, Cause::REJECTED, None);
        }
        let known = self.associations.get(peer).map(|known| known.recovery_time_stamp);
        let retained = known == Some(stamp);
        if !retained {
            self.forget(peer);
        }
        self.accept(claim.id, claim.request, retained);
        self.recovered(peer);
    }

    /// Handles a question about an association that got no usable answer; `false` when the request was not such
    /// a question.
    pub(super) fn association_unanswered(&mut self, handle: Handle, failure: Failure) -> bool {
        let Some((peer, question)) = self.associations.asked.remove(&handle) else { return false };
        match question {
            Question::Presence => self.silent(peer),
            Question::Owner => {
                self.silent(peer);
                let claim = self.associations.claims.get(&peer);
                match claim.filter(|claim| claim.id.peer != claim.known).map(|claim| claim.id.peer) {
                    Some(claimant) => self.question(claimant, Question::Claimant),
                    None => self.drop_claim(peer),
                }
            }
            Question::Claimant => self.drop_claim(peer),
            Question::Release => match failure {
                Failure::Refused(cause) => self.release_answered(peer, cause),
                _ => self.ask_association(peer, Question::ReleaseStamp),
            },
            Question::ReleaseStamp if failure == Failure::TimedOut => {
                self.end_association(peer, "association released; the CP function no longer answers");
            }
            Question::ReleaseStamp => not_released(peer),
        }
        true
    }

    fn drop_claim(&mut self, peer: IpAddr) {
        if let Some(claim) = self.associations.claims.remove(&peer) {
            UNCONFIRMED.inc();
            self.reject(claim.id, 0, Cause::REJECTED, None);
        }
    }

    /// Sets up an association, and answers the request.
    fn accept(&mut self, id: RequestId, request: AssociationSetupRequest, retained: bool) {
        let AssociationSetupRequest { node_id, recovery_time_stamp, cp_function_features, .. } = request;
        let peer = id.peer.ip();
        let state = self.associations.get(peer).map(|known| known.state);
        if state.is_none() && !self.make_room() {
            return self.reject(id, 0, Cause::NO_RESOURCES, None);
        }
        if !retained {
            tracing::info!(%peer, node = ?node_id, "association with a CP function");
        }
        let wants_load =
            cp_function_features.is_some_and(|features| features.contains(CpFunctionFeatures::LOAD));
        let state = state.unwrap_or(State::New);
        let association = Association { node_id, address: id.peer, recovery_time_stamp, wants_load, state };
        self.associations.by_address.insert(peer, association);
        self.endpoint.add_peer(now(), id.peer);
        self.endpoint.set_recovery_time_stamp(peer, recovery_time_stamp);
        let features = FEATURES.into_iter().fold(UpFunctionFeatures::default(), |all, one| all | one);
        let response = AssociationSetupResponse {
            node_id: self.node_id.clone(),
            cause: Cause::ACCEPTED,
            recovery_time_stamp: self.recovery_time_stamp,
            up_function_features: Some(features),
            flags: retained.then_some(AsRspFlags::PSREI),
            ..Default::default()
        };
        self.respond(id, 0, response);
        if state == State::New {
            self.question(id.peer, Question::Presence);
        }
    }

    /// Whether there is room for one more association. Removes a silent CP function without sessions if needed,
    /// or else one that has never answered. Silent CP functions with sessions do not count.
    fn make_room(&mut self) -> bool {
        if self.associations.by_address.len() < MAX_ASSOCIATIONS {
            return true;
        }
        let idle = |state, server: &Server| {
            let all = server.associations.by_address.iter().filter(|(_, known)| known.state == state);
            let idle = all.filter(|(peer, _)| server.sessions.count_of(**peer) == 0);
            idle.map(|(peer, _)| *peer).collect::<Vec<IpAddr>>()
        };
        for peer in idle(State::Silent, self) {
            self.end_association(peer, "association gives way: the CP function does not answer");
        }
        let all = self.associations.by_address.values();
        if all.filter(|known| known.state != State::Silent).count() < MAX_ASSOCIATIONS {
            return true;
        }
        let unproven = idle(State::New, self).first().copied();
        if let Some(peer) = unproven {
            self.end_association(peer, "association gives way: the CP function never answered");
        }
        unproven.is_some()
    }

    /// Notes that a CP function does not answer.
    pub(super) fn silent(&mut self, peer: IpAddr) {
        if let Some(association) = self.associations.by_address.get_mut(&peer) {
            association.state = State::Silent;
        }
    }

    /// Notes that a CP function answers again.
    pub(super) fn recovered(&mut self, peer: IpAddr) {
        self.heard_of(peer, Question::Presence);
    }

    /// Ends an association with all its sessions.
    fn end_association(&mut self, peer: IpAddr, why: &'static str) {
        let sessions = self.forget(peer);
        self.endpoint.remove_peer(peer);
        tracing::info!(%peer, sessions, why);
    }

    /// Removes a CP function's sessions and association. Returns the number of sessions.
    pub(super) fn forget(&mut self, peer: IpAddr) -> usize {
        self.associations.by_address.remove(&peer);
        self.reports.forget(peer);
        let removed = self.sessions.remove_all_of(peer);
        self.removed(removed);
        removed
    }

    /// Handles an Association Update Request (§6.2.7).
    pub(super) fn update_association(&mut self, id: RequestId, features: Option<CpFunctionFeatures>) {
        let cause = self.associations.cause(id.peer);
        if let (Cause::ACCEPTED, Some(features)) = (cause, features)
            && let Some(association) = self.associations.by_address.get_mut(&id.peer.ip())
        {
            association.wants_load = features.contains(CpFunctionFeatures::LOAD);
        }
        let node_id = self.node_id.clone();
        self.respond(id, 0, AssociationUpdateResponse { node_id, cause, ..Default::default() });
    }

    /// Handles an Association Release Request (§6.2.8): answers it, and then asks for confirmation.
    pub(super) fn release_association(&mut self, id: RequestId) {
        let cause = self.associations.cause(id.peer);
        let node_id = self.node_id.clone();
        self.respond(id, 0, AssociationReleaseResponse { node_id, cause });
        let peer = id.peer.ip();
        let asked = [(peer, Question::Release), (peer, Question::ReleaseStamp)];
        if cause.is_accepted() && !self.associations.asked.values().any(|other| asked.contains(other)) {
            self.ask_association(peer, Question::Release);
        }
    }

    /// Handles a Session Set Deletion Request (§6.2.8A): removes the sessions in the sets that it names.
    pub(super) fn delete_session_sets(&mut self, id: RequestId, request: &SessionSetDeletionRequest) {
        let mut cause = self.associations.cause(id.peer);
        let mut offending_ie = None;
        if cause.is_accepted() && request.fq_csids.is_empty() {
            (cause, offending_ie) = (Cause::CONDITIONAL_IE_MISSING, Some(OffendingIe(ie::FQ_CSID)));
        }
        if cause.is_accepted() {
            let removed = self.sessions.remove_sets(id.peer.ip(), &request.fq_csids);
            self.removed(removed);
        }
        let node_id = self.node_id.clone();
        self.respond(id, 0, SessionSetDeletionResponse { node_id, cause, offending_ie });
    }
}
