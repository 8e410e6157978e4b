//! Follows the messages between MMEs and an anchor, and keeps of each UE the requests that make its sessions again.
//!
//! Only what the other end has accepted counts (CAP-8). A later Modify Bearer Request takes the place of an earlier one for the same
//! bearers if it says all that the earlier one said; a Release Access Bearers Request lasts until the next Modify Bearer Request;
//! dedicated bearers are kept as the anchor's request and the MME's answer. What a restart of either end takes away, goes (STO-3).
//!
//! An anchor that is an S-GW alone also talks to P-GWs. What it tells them is kept as the way back to it ([`relocation`]).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use gtpv2c::codec::Ies;
use gtpv2c::message::*;
use gtpv2c::{BearerInDeleteCommand, CauseValue, Ebi, FTeid, Indication};

use super::relocation::{self, WaysBack};
use super::{enter_created, is_accepted, read, spots, subject};
use crate::record::{Bearer, addresses_of};
use crate::session::Session;
use crate::template::Misfit;
use crate::track::{
    self, Datagram, Effect, INCOMPLETE, Key, Knowledge, REPEATED, UNKNOWN, UNMATCHED, UNREADABLE, is_ours,
};

/// The top bit of sequence numbers of commands, and of what they trigger (TS 29.274 §7.6).
const OF_COMMAND: u32 = 1 << 23;

/// What is known beyond sessions and transactions.
#[derive(Debug, Default)]
pub struct S11 {
    ways_back: WaysBack,
    /// Whether there may be a session whose P-GW is apart.
    may_be_apart: bool,
}

impl Knowledge for S11 {
    fn restored() -> S11 {
        S11 { may_be_apart: true, ..S11::default() }
    }
}

/// The sessions of one anchor.
pub type Tracker = track::Tracker<S11>;

impl Tracker {
    /// Of a session whose P-GW is apart: how that one learns again of its first S-GW, if that is known.
    pub fn ways_back(&self, session: &Session) -> Option<Option<relocation::Told>> {
        relocation::is_apart(session, self.anchor).then(|| relocation::ways_back(session, self.anchor))
    }

    /// Whether there may be a session whose P-GW is apart.
    pub fn may_be_apart(&self) -> bool {
        self.own.may_be_apart
    }

    /// Gives up waiting for requests that were not captured. What that leads to is about other sessions than the next datagram.
    pub fn give_up(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some((key, answer)) = self.pending.lost(now) {
            self.lost_request(key, &answer, effects);
        }
    }

    /// Takes a captured datagram.
    pub fn observe(&mut self, now: Instant, datagram: Datagram, effects: &mut Vec<Effect>) {
        let mut rest = datagram.octets;
        // A second message may ride on the first (§5.5.1).
        for _ in 0..2 {
            let Ok((header, _, after)) = Header::decode(rest) else {
                UNREADABLE.inc();
                return;
            };
            let message = &rest[..rest.len() - after.len()];
            self.message(now, datagram, header, message, effects);
            rest = after;
            if !header.piggybacking || rest.is_empty() {
                return;
            }
        }
    }

    fn message(
        &mut self,
        now: Instant,
        datagram: Datagram,
        header: Header,
        octets: &[u8],
        effects: &mut Vec<Effect>,
    ) {
        let Datagram { control, by_control, .. } = datagram;
        self.give_up(now, effects);
        match header.message_type.kind() {
            Kind::Request | Kind::Command => {
                let key = (control, by_control, header.sequence);
                self.pending.note(now, key, octets);
                if let Some(answer) = self.pending.take_early(key)
                    && let Ok((header, ..)) = Header::decode(&answer)
                {
                    let datagram = Datagram { control, by_control: !by_control, octets: &answer };
                    self.message(now, datagram, header, &answer, effects);
                }
            }
            Kind::Response => {
                let key = (control, !by_control, header.sequence);
                let request = self.pending.get(key).and_then(read);
                let fits = request
                    .as_ref()
                    .is_some_and(|(of, _)| header.message_type.is_response_to(of.message_type));
                let (Some((_, request)), true) = (request, fits) else {
                    if self.pending.is_answered(key) {
                        REPEATED.inc();
                        return;
                    }
                    if by_control && is_ours(header.sequence) {
                        let (sequence, octets) = (header.sequence, octets.to_vec());
                        effects.push(Effect::Answer { control, sequence, octets });
                    } else {
                        self.pending.keep_early(now, key, octets);
                    }
                    return;
                };
                let Some(asked) = self.pending.answered(key) else { return };
                let is_echo = header.message_type == MessageType::EchoResponse;
                let is_end = header.message_type == MessageType::DeleteSessionResponse;
                let has_ended = is_end && is_of_pgw(octets);
                if !(is_echo || has_ended || is_accepted(octets)) {
                    return;
                }
                let Some((_, answer)) = read(octets) else {
                    UNREADABLE.inc();
                    return;
                };
                let done = Done { control, by_control, asked: &asked, octets, answer };
                if self.done(done, request, effects).is_err() {
                    INCOMPLETE.inc();
                }
            }
            Kind::Indication => {}
        }
    }

    fn by_teid(&self, octets: &[u8]) -> Option<u32> {
        let teid = Header::decode(octets).ok()?.0.teid?;
        let found = self.table.by_anchor(teid.into());
        if found.is_none() {
            UNKNOWN.inc();
        }
        found
    }

    fn done(&mut self, done: Done, request: Message, effects: &mut Vec<Effect>) -> Result<(), Misfit> {
        // A P-GW has answered, where the anchor is an S-GW alone.
        let is_of_pgw = done.by_control && !matches!(done.answer, Message::EchoResponse(_));
        match (request, &done.answer) {
            (
                request @ (Message::CreateSessionRequest(_)
                | Message::ModifyBearerRequest(_)
                | Message::DeleteSessionRequest(_)),
                answer,
            ) if is_of_pgw => {
                self.own.ways_back.note(done.control, done.asked, &request, answer);
                Ok(())
            }
            (Message::EchoRequest(_), Message::EchoResponse(answer)) => {
                // Who answered; whoever only claims to be it cannot answer the other end's question.
                let end = done.by_control.then_some(done.control);
                self.started(end, answer.recovery.0.into(), effects);
                Ok(())
            }
            (Message::CreateSessionRequest(request), Message::CreateSessionResponse(answer)) => {
                self.created(&done, &request, answer, effects)
            }
            (Message::ModifyBearerRequest(request), Message::ModifyBearerResponse(answer)) => {
                let anchor = self.anchor;
                let mut ways_back = std::mem::take(&mut self.own.ways_back);
                let changed = self.change(&done, done.asked, effects, |session| {
                    modified(session, &done, &request, answer);
                    ways_back.enter(session, anchor);
                });
                self.own.ways_back = ways_back;
                changed
            }
            (Message::ReleaseAccessBearersRequest(_), _) => {
                self.change(&done, done.asked, effects, |session| {
                    session.idle = true;
                    session
                        .requests
                        .retain(|request| kind(request) != Some(MessageType::ReleaseAccessBearersRequest));
                    session.requests.push(done.asked.to_vec());
                })
            }
            (Message::DeleteSessionRequest(request), _) => {
                let Some(number) = self.by_teid(done.asked) else { return Ok(()) };
                self.end(number, request.linked_ebi.map(|ebi| ebi.0), done.asked, effects)
            }
            // Requests of the anchor have the MME's TEID.
            (Message::CreateBearerRequest(request), Message::CreateBearerResponse(answer)) => {
                self.bearers_created(&done, &request, answer, effects)
            }
            (Message::UpdateBearerRequest(_), Message::UpdateBearerResponse(_)) => {
                let (Some(number), Some(command)) = (self.by_control(&done), self.command_of(&done)) else {
                    return Ok(());
                };
                let Some(mut session) = self.session(number) else { return Ok(()) };
                let of = kind(&command);
                session
                    .requests
                    .retain(|request| kind(request) != of || of == Some(MessageType::BearerResourceCommand));
                session.requests.push(command.clone());
                self.save(number, &session, spots::find)?;
                effects.push(Effect::Changed { number, request: command });
                Ok(())
            }
            (Message::DeleteBearerRequest(request), Message::DeleteBearerResponse(_)) => {
                self.bearers_deleted(&done, &request, effects)
            }
            _ => Ok(()),
        }
    }

    fn bearers_created(
        &mut self,
        done: &Done,
        request: &CreateBearerRequest,
        answer: &CreateBearerResponse,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Misfit> {
        let Some(number) = self.by_control(done) else { return Ok(()) };
        let command = self.command_of(done);
        let Some(mut session) = self.session(number) else { return Ok(()) };
        for (asked, created) in request.bearers.iter().zip(&answer.bearers) {
            let uplink = created.s1u_sgw_f_teid.or(asked.s1u_sgw_f_teid).map_or(0, |end| end.teid);
            if created.cause.is_accepted() {
                session.bearers.retain(|bearer| bearer.id != created.ebi.0);
                session.bearers.push(Bearer { id: created.ebi.0, uplink, ipv4: None, ipv6: None });
            }
        }
        session.requests.extend(command.clone());
        session.requests.extend([done.asked.to_vec(), done.octets.to_vec()]);
        self.save(number, &session, spots::find)?;
        // A clone that has got the command asks at once: then it is known what to answer.
        let created = [done.asked.to_vec(), done.octets.to_vec()].into_iter().chain(command);
        let is_any = answer.bearers.iter().any(|created| created.cause.is_accepted());
        let messages = created.filter(|_| is_any).collect();
        effects.push(Effect::ByAnchor { number, messages });
        Ok(())
    }

    fn bearers_deleted(
        &mut self,
        done: &Done,
        request: &DeleteBearerRequest,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Misfit> {
        let Some(number) = self.by_control(done) else { return Ok(()) };
        if let Some(default) = request.linked_ebi {
            return self.end(number, Some(default.0), done.octets, effects);
        }
        let Some(mut session) = self.session(number) else { return Ok(()) };
        let gone: BTreeSet<u8> = request.ebis.iter().map(|ebi| ebi.0).collect();
        without(&mut session, &gone);
        self.save(number, &session, spots::find)?;
        let bearers =
            gone.iter().map(|id| BearerInDeleteCommand { ebi: Ebi(*id), ..Default::default() }).collect();
        let mut command = Vec::new();
        // It fits.
        let _ =
            Message::from(DeleteBearerCommand { bearers, ..Default::default() }).encode(0, 0, &mut command);
        effects.push(Effect::ByAnchor { number, messages: vec![command] });
        Ok(())
    }

    fn by_control(&self, done: &Done) -> Option<u32> {
        let teid = Header::decode(done.asked).ok()?.0.teid?;
        self.table.by_control(self.peers.find(done.control)?, teid.into())
    }

    /// The command that has triggered a request of the anchor.
    fn command_of(&mut self, done: &Done) -> Option<Vec<u8>> {
        let sequence = Header::decode(done.asked).ok()?.0.sequence;
        let key = (done.control, true, sequence);
        if sequence & OF_COMMAND == 0 { None } else { self.pending.answered(key) }
    }

    fn change(
        &mut self,
        done: &Done,
        request: &[u8],
        effects: &mut Vec<Effect>,
        change: impl FnOnce(&mut Session),
    ) -> Result<(), Misfit> {
        let Some(number) = self.by_teid(done.asked) else { return Ok(()) };
        let Some(mut session) = self.session(number) else { return Ok(()) };
        session.peer = self.peer(done.control)?;
        change(&mut session);
        self.save(number, &session, spots::find)?;
        effects.push(Effect::Changed { number, request: request.to_vec() });
        Ok(())
    }

    fn created(
        &mut self,
        done: &Done,
        request: &CreateSessionRequest,
        answer: &CreateSessionResponse,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Misfit> {
        let peer = self.peer(done.control)?;
        let teid = Header::decode(done.asked).map_err(|_| Misfit)?.0.teid.unwrap_or(0);
        let known = if teid == 0 { None } else { self.table.by_anchor(teid.into()) };
        let mut session = match (known.and_then(|number| self.session(number)), &request.imsi) {
            // Another PDN connection of the UE (TS 23.401 §5.10.2).
            (Some(session), _) => session,
            (None, Some(imsi)) => Session { subject: subject(imsi), ..Session::default() },
            // An emergency call without USIM has no name by which a record is found.
            (None, None) => return Err(Misfit),
        };
        // The same UE again: what it had is gone (TS 23.401 §5.3.2.1).
        let before = known.or_else(|| self.table.of_subject(session.subject));
        if before.is_none() && self.table.len() >= self.most {
            return Err(Misfit);
        }
        session.peer = peer;
        session.control = request.sender_f_teid.teid.into();
        if let Some(end) = answer.sender_f_teid {
            session.anchor = end.teid.into();
        }
        // An anchor that has not said how it is addressed gets no further requests, and has no session that can be followed.
        if session.anchor == 0 {
            return Err(Misfit);
        }
        enter_created(answer, request.paa, &mut session.bearers);
        let has_station = request.bearers_to_be_created.iter().any(|bearer| bearer.s1u_enb_f_teid.is_some());
        session.idle = !has_station && (known.is_none() || session.idle);
        session.requests.push(match relocation::gateway(self.anchor, answer) {
            // One that cannot be kept makes no session, so that nobody makes it by an attach.
            Some(_) => {
                self.own.may_be_apart = true;
                relocation::request(done.asked, answer)?
            }
            None => done.asked.to_vec(),
        });
        self.own.ways_back.enter(&mut session, self.anchor);
        // Whoever had this TEID before has left, though nobody has heard of it.
        if let Some(other) = self.table.by_anchor(session.anchor)
            && Some(other) != before
        {
            self.ended(other, effects);
        }
        let number = session.save(&mut self.table, before, spots::find)?;
        effects.push(match known {
            Some(_) => Effect::Changed { number, request: done.asked.to_vec() },
            None => self.began(number, done.asked),
        });
        Ok(())
    }

    /// A request was not captured that was accepted by this answer: what it has changed is not known.
    fn lost_request(&mut self, key: Key, answer: &[u8], effects: &mut Vec<Effect>) {
        UNMATCHED.inc();
        let (control, by_control, _) = key;
        let Some(teid) = Header::decode(answer).ok().and_then(|(header, ..)| header.teid) else { return };
        let of_control = || self.table.by_control(self.peers.find(control)?, teid.into());
        let number = match kind(answer) {
            Some(
                MessageType::CreateSessionResponse
                | MessageType::ModifyBearerResponse
                | MessageType::ReleaseAccessBearersResponse
                | MessageType::DeleteSessionResponse,
            ) if by_control => of_control(),
            Some(MessageType::CreateBearerResponse | MessageType::DeleteBearerResponse) if !by_control => {
                self.table.by_anchor(teid.into())
            }
            _ => None,
        };
        let Some(number) = number.filter(|_| is_accepted(answer)) else { return };
        let Some(session) = self.session(number) else { return };
        let defaults = session.bearers.iter().filter(|bearer| addresses_of(bearer).next().is_some()).count();
        if kind(answer) == Some(MessageType::DeleteSessionResponse) && defaults <= 1 {
            return self.ended(number, effects);
        }
        INCOMPLETE.inc();
        self.mark_incomplete(number, spots::find);
    }

    /// A PDN connection ends, or all of a UE.
    fn end(
        &mut self,
        number: u32,
        default: Option<u8>,
        request: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Misfit> {
        let Some(mut session) = self.session(number) else { return Ok(()) };
        let was_apart = relocation::is_apart(&session, self.anchor);
        let addresses = session.bearers.iter().flat_map(addresses_of).collect();
        let mut gone = BTreeSet::from_iter(default);
        for request in &session.requests {
            match read(request).map(|(_, message)| message) {
                Some(Message::CreateSessionRequest(request)) => {
                    let ids = request.bearers_to_be_created.iter().map(|bearer| bearer.ebi.0);
                    let ids: BTreeSet<u8> = ids.collect();
                    gone.extend(ids.iter().filter(|_| default.is_some_and(|ebi| ids.contains(&ebi))));
                }
                Some(Message::CreateBearerRequest(request)) if Some(request.linked_ebi.0) == default => {
                    // Its answer, which follows, says which.
                    gone.insert(0);
                }
                Some(Message::CreateBearerResponse(answer)) if gone.remove(&0) => {
                    gone.extend(answer.bearers.iter().map(|bearer| bearer.ebi.0));
                }
                _ => {}
            }
        }
        without(&mut session, &gone);
        if default.is_none() || session.bearers.is_empty() {
            if was_apart {
                effects.push(Effect::Deleted { number, request: request.to_vec(), addresses });
            }
            self.ended(number, effects);
            return Ok(());
        }
        self.save(number, &session, spots::find)?;
        let request = match kind(request) {
            Some(MessageType::DeleteSessionRequest) => request.to_vec(),
            // The anchor has ended it; a clone is told by the control plane.
            _ => {
                let (linked_ebi, indication) = (default.map(Ebi), Some(Indication::OI));
                let delete = DeleteSessionRequest { linked_ebi, indication, ..Default::default() };
                let mut octets = Vec::new();
                Message::from(delete).encode(0, 0, &mut octets).map_err(|_| Misfit)?;
                octets
            }
        };
        effects.push(Effect::Changed { number, request });
        Ok(())
    }
}

/// A request that was accepted.
struct Done<'a> {
    control: IpAddr,
    /// Whether the control plane has accepted it; else the anchor has.
    by_control: bool,
    /// The request.
    asked: &'a [u8],
    /// The answer.
    octets: &'a [u8],
    /// The same, decoded.
    answer: Message,
}

/// Whether a refusal comes from the P-GW, or says that there is nothing: the S-GW's part has ended all the same.
fn is_of_pgw(octets: &[u8]) -> bool {
    let Some((_, Message::DeleteSessionResponse(answer))) = read(octets) else { return false };
    answer.cause.from_remote || answer.cause.value == CauseValue::CONTEXT_NOT_FOUND
}

/// The type of a message.
fn kind(octets: &[u8]) -> Option<MessageType> {
    MessageType::from_code(*octets.get(1)?)
}

fn modified(
    session: &mut Session,
    done: &Done,
    request: &ModifyBearerRequest,
    answer: &ModifyBearerResponse,
) {
    if let Some(end) = request.sender_f_teid {
        session.control = end.teid.into();
    }
    let ids = |request: &ModifyBearerRequest| -> BTreeSet<u8> {
        request.bearers_to_be_modified.iter().map(|bearer| bearer.ebi.0).collect()
    };
    let gone = request.bearers_to_be_removed.iter().map(|bearer| bearer.ebi.0).collect();
    without(session, &gone);
    for bearer in &answer.bearers_modified {
        let known = session.bearers.iter_mut().find(|known| known.id == bearer.ebi.0);
        if let (Some(known), Some(FTeid { teid, .. })) = (known, bearer.s1u_sgw_f_teid) {
            known.uplink = teid;
        }
    }
    if request.bearers_to_be_modified.iter().any(|bearer| bearer.s1u_enb_f_teid.is_some()) {
        session.idle = false;
        session.requests.retain(|request| kind(request) != Some(MessageType::ReleaseAccessBearersRequest));
    }
    let (new_ids, new_says) = (ids(request), says(done.asked));
    session.requests.retain(|before| match read(before) {
        Some((_, Message::ModifyBearerRequest(_))) if relocation::is_way_back(before) => true,
        Some((_, Message::ModifyBearerRequest(of))) => {
            !(ids(&of).is_subset(&new_ids) && says(before).is_subset(&new_says))
        }
        _ => true,
    });
    session.requests.push(done.asked.to_vec());
}

/// Which IEs a message has, with their instances.
fn says(octets: &[u8]) -> BTreeSet<(u8, u8)> {
    let mut all = BTreeSet::new();
    let Ok((_, ies, _)) = Header::decode(octets) else { return all };
    let mut ies = Ies::new(ies);
    while let Ok(Some((ie, _))) = ies.next_ie() {
        all.insert((ie.ie_type, ie.instance));
    }
    all
}

/// Takes bearers away, and requests that are about no others.
fn without(session: &mut Session, gone: &BTreeSet<u8>) {
    if gone.is_empty() {
        return;
    }
    session.bearers.retain(|bearer| !gone.contains(&bearer.id));
    let mut kept: Vec<Vec<u8>> = Vec::with_capacity(session.requests.len());
    for request in session.requests.drain(..) {
        let ids: Vec<u8> = match read(&request).map(|(_, message)| message) {
            Some(Message::CreateSessionRequest(of)) => {
                of.bearers_to_be_created.iter().map(|of| of.ebi.0).collect()
            }
            Some(Message::ModifyBearerRequest(of)) => {
                of.bearers_to_be_modified.iter().map(|of| of.ebi.0).collect()
            }
            Some(Message::CreateBearerResponse(of)) => of.bearers.iter().map(|of| of.ebi.0).collect(),
            _ => Vec::new(),
        };
        let is_gone = !ids.is_empty() && ids.iter().all(|id| gone.contains(id));
        if is_gone && kind(&request) == Some(MessageType::CreateBearerResponse) {
            // With the request that it answers, and the command that triggered that.
            kept.pop();
            if kept.last().is_some_and(|last| kind(last) == Some(MessageType::BearerResourceCommand)) {
                kept.pop();
            }
        }
        if !is_gone {
            kept.push(request);
        }
    }
    session.requests = kept;
}
