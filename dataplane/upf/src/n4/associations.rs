//! Associations with CP functions (TS 29.244 §6.2.6 to §6.2.8): which CP functions may have one, and how one
//! ends.
//!
//! UDP does not prove a sender, and all sessions of a CP function end with its association. So no single
//! message ends one:
//!
//! - Only configured CP functions associate (`upf.smf`).
//! - This UPF's requests go to the CP function's address and the port of PFCP, or another port that `upf.smf`
//!   names (TS 29.244 §4.2.2). So questions reach the CP function itself, wherever the message came from that
//!   caused them.
//! - A CP function may send its requests from any port of its address. Session messages name a session by a
//!   SEID, which cannot be guessed. Session set deletions do not, and cannot be confirmed: they are accepted
//!   only where the operator allows them (`upf.session_sets`), from the port of this UPF's requests and from
//!   the port that the association was set up from.
//! - An Association Setup Request that would replace an association is first confirmed: a Heartbeat Request
//!   goes to the CP function. The Setup Request is accepted if the answer has its recovery time stamp. A CP
//!   function may ignore heartbeats until it has an association; then an Association Setup Request of this UPF
//!   asks for the recovery time stamp.
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
    /// Destination of this UPF's requests.
    pub(super) address: SocketAddr,
    /// Source of the Association Setup Request.
    source: SocketAddr,
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
}

/// A question to a CP function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Whether a new CP function is reachable.
    Presence,
    /// Whether the CP function has the recovery time stamp of the claim.
    Claim,
    /// The same, when it does not answer heartbeats: an Association Setup Request.
    ClaimBySetup,
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

    /// All associations with their addresses.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&IpAddr, &Association)> {
        self.by_address.iter()
    }

    fn cause(&self, peer: IpAddr) -> Cause {
        if self.get(peer).is_some() { Cause::ACCEPTED } else { Cause::NO_ASSOCIATION }
    }

    /// Whether a session set deletion from this address and port is accepted.
    fn may_delete_sets(&self, from: SocketAddr) -> bool {
        self.get(from.ip()).is_some_and(|known| known.address == from || known.source == from)
    }
}

/// All optional features of this UPF.
fn features() -> UpFunctionFeatures {
    FEATURES.into_iter().fold(UpFunctionFeatures::default(), |all, one| all | one)
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
        let Some(address) = self.config.smf_at(peer) else {
            self.refuse_stranger(peer);
            return self.reject(id, 0, Cause::REJECTED, None);
        };
        match self.associations.get(peer).map(|known| known.recovery_time_stamp) {
            None => self.accept(id, address, request, false),
            Some(stamp) if stamp == request.recovery_time_stamp => self.accept(id, address, request, true),
            Some(_) => self.claim(address, Claim { id, request }),
        }
    }

    fn refuse_stranger(&mut self, peer: IpAddr) {
        STRANGERS.inc();
        let strangers = &mut self.associations.strangers;
        if strangers.len() < MAX_STRANGERS && strangers.insert(peer) {
            tracing::warn!(%peer, "association refused: upf.smf does not name this address");
        }
    }

    /// Asks the CP function whether a claim is its own. A claim with another recovery time stamp does not replace
    /// one that is waiting; its sender repeats it.
    fn claim(&mut self, address: SocketAddr, claim: Claim) {
        let peer = address.ip();
        let stamp = claim.request.recovery_time_stamp;
        let waiting = self.associations.claims.get(&peer).map(|waiting| waiting.request.recovery_time_stamp);
        if waiting.is_some_and(|waiting| waiting != stamp) {
            return self.refuse_claim(&claim);
        }
        self.associations.claims.insert(peer, claim);
        if waiting.is_none() {
            self.question(address, Question::Claim);
        }
    }

    fn refuse_claim(&mut self, claim: &Claim) {
        UNCONFIRMED.inc();
        tracing::warn!(from = %claim.id.peer, "association not replaced: the CP function does not confirm it");
        self.reject(claim.id, 0, Cause::REJECTED, None);
    }

    /// Sends the message whose answer answers the question.
    fn question(&mut self, to: SocketAddr, question: Question) {
        let message: Message = match question {
            Question::Release => {
                AssociationUpdateRequest { node_id: self.node_id.clone(), ..Default::default() }.into()
            }
            Question::ClaimBySetup => AssociationSetupRequest {
                node_id: self.node_id.clone(),
                recovery_time_stamp: self.recovery_time_stamp,
                up_function_features: Some(features()),
                ..Default::default()
            }
            .into(),
            Question::Presence | Question::Claim | Question::ReleaseStamp => {
                HeartbeatRequest { recovery_time_stamp: self.recovery_time_stamp }.into()
            }
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
        self.recovered(peer);
        match (question, message) {
            (Question::Claim, Message::HeartbeatResponse(response)) => {
                self.judge(peer, response.recovery_time_stamp);
            }
            // A refusal has the stamp, too.
            (Question::ClaimBySetup, Message::AssociationSetupResponse(response)) => {
                self.judge(peer, response.recovery_time_stamp);
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
            self.ask_cp(peer, Question::ReleaseStamp);
        }
    }

    /// Sends a question to a CP function.
    fn ask_cp(&mut self, peer: IpAddr, question: Question) {
        if let Some(address) = self.config.smf_at(peer) {
            self.question(address, question);
        }
    }

    /// Decides a claim by the recovery time stamp that the CP function answers with.
    fn judge(&mut self, peer: IpAddr, stamp: NtpSeconds) {
        let Some(claim) = self.associations.claims.remove(&peer) else { return };
        let Some(address) = self.config.smf_at(peer) else { return };
        if stamp != claim.request.recovery_time_stamp {
            return self.refuse_claim(&claim);
        }
        let known = self.associations.get(peer).map(|known| known.recovery_time_stamp);
        let retained = known == Some(stamp);
        if !retained {
            self.forget(peer);
        }
        self.accept(claim.id, address, claim.request, retained);
        self.recovered(peer);
    }

    /// Handles a question about an association that got no usable answer; `false` when the request was not such
    /// a question.
    pub(super) fn association_unanswered(&mut self, handle: Handle, failure: Failure) -> bool {
        let Some((peer, question)) = self.associations.asked.remove(&handle) else { return false };
        match question {
            Question::Presence => self.silent(peer),
            Question::Claim => {
                self.silent(peer);
                self.ask_cp(peer, Question::ClaimBySetup);
            }
            Question::ClaimBySetup => self.drop_claim(peer),
            Question::Release => match failure {
                Failure::Refused(cause) => self.release_answered(peer, cause),
                _ => self.ask_cp(peer, Question::ReleaseStamp),
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
            self.refuse_claim(&claim);
        }
    }

    /// Sets up an association, and answers the request.
    fn accept(
        &mut self,
        id: RequestId,
        address: SocketAddr,
        request: AssociationSetupRequest,
        retained: bool,
    ) {
        let AssociationSetupRequest { node_id, recovery_time_stamp, cp_function_features, .. } = request;
        let peer = address.ip();
        let known = self.associations.get(peer);
        let state = known.map(|known| known.state);
        // A repeated request is not confirmed, and does not move the source.
        let source = known.map_or(id.peer, |known| known.source);
        if state.is_none() && !self.make_room() {
            return self.reject(id, 0, Cause::NO_RESOURCES, None);
        }
        if !retained {
            tracing::info!(%peer, node = ?node_id, "association with a CP function");
        }
        let wants_load =
            cp_function_features.is_some_and(|features| features.contains(CpFunctionFeatures::LOAD));
        let state = state.unwrap_or(State::New);
        let association = Association { node_id, address, source, recovery_time_stamp, wants_load, state };
        self.associations.by_address.insert(peer, association);
        self.endpoint.add_peer(now(), address);
        self.endpoint.set_recovery_time_stamp(peer, recovery_time_stamp);
        let response = AssociationSetupResponse {
            node_id: self.node_id.clone(),
            cause: Cause::ACCEPTED,
            recovery_time_stamp: self.recovery_time_stamp,
            up_function_features: Some(features()),
            flags: retained.then_some(AsRspFlags::PSREI),
            ..Default::default()
        };
        self.respond(id, 0, response);
        if state == State::New {
            self.question(address, Question::Presence);
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
        if let Some(association) = self.associations.by_address.get_mut(&peer) {
            association.state = State::Alive;
        }
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
        let cause = self.associations.cause(id.peer.ip());
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
        let peer = id.peer.ip();
        let cause = self.associations.cause(peer);
        let node_id = self.node_id.clone();
        self.respond(id, 0, AssociationReleaseResponse { node_id, cause });
        let asked = [(peer, Question::Release), (peer, Question::ReleaseStamp)];
        if cause.is_accepted() && !self.associations.asked.values().any(|other| asked.contains(other)) {
            self.ask_cp(peer, Question::Release);
        }
    }

    /// Handles a Session Set Deletion Request (§6.2.8A): removes the sessions in the sets that it names.
    pub(super) fn delete_session_sets(&mut self, id: RequestId, request: &SessionSetDeletionRequest) {
        let known = self.associations.may_delete_sets(id.peer);
        let mut cause = if known { Cause::ACCEPTED } else { Cause::NO_ASSOCIATION };
        let mut offending_ie = None;
        if cause.is_accepted() && !self.config.session_sets {
            cause = Cause::SERVICE_NOT_SUPPORTED;
        }
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
