//! Follows the messages between SMFs and a UPF, and keeps of each session the requests that make it again.
//!
//! Only what the other end has accepted counts (CAP-8). A later modification takes the place of an earlier one if it changes all that
//! the earlier one changed. What a restart of the SMF takes away, goes (STO-3). What a restart of the UPF takes away is waited for, as the
//! SMF may set it up again (TS 23.527 §4.3): until then such a session has no SEID at the UPF.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use pfcp::codec::Value as _;
use pfcp::message::*;
use pfcp::{ApplyAction, AsRspFlags, FTeid, UeIpAddress, ie};

use super::clone::N4 as N4Side;
use super::restoration::difference;
use super::{spots, tree};
use crate::clone::Side as _;
use crate::record::{Bearer, addresses_of, prefix};
use crate::session::Session;
use crate::template::Misfit;
use crate::track::{
    self, Datagram, Effect, INCOMPLETE, Key, Knowledge, REPEATED, Restart, UNKNOWN, UNMATCHED, UNREADABLE,
    is_ours,
};

/// How long sessions that a UPF has lost are waited for, after the last one that has come back.
pub const RESTORED_WITHIN: Duration = Duration::from_secs(30);
/// The SEID at the UPF of a session that it has lost: no session has this one (TS 29.244 §7.2.2.4.2).
const NONE: u64 = 0;

/// What is known beyond sessions and transactions.
#[derive(Debug, Default)]
pub struct N4 {
    /// SMFs with sessions that have asked for an association, and of which nobody knew then when they had started before.
    newly_heard: BTreeSet<u8>,
    /// Sessions that the UPF has lost, by their SEIDs until then.
    lost: HashMap<u64, u32>,
    /// Until when they are waited for.
    waits_until: Option<Instant>,
}

impl Knowledge for N4 {}

/// The sessions of one UPF.
pub type Tracker = track::Tracker<N4>;

impl Tracker {
    /// Gives up waiting for requests that were not captured, and for sessions that were not set up again. What that leads to is about
    /// other sessions than the next datagram.
    pub fn give_up(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some((key, answer)) = self.pending.lost(now) {
            self.lost_request(key, &answer, effects);
        }
        if self.own.waits_until.is_some_and(|until| until <= now) {
            (self.own.waits_until, self.own.lost) = Default::default();
            let lost: Vec<u32> = self.table.numbers().filter(|number| self.is_lost(*number)).collect();
            lost.into_iter().for_each(|number| self.ended(number, effects));
        }
    }

    /// Until when sessions that the UPF has lost are waited for, if there may be some.
    pub fn waits_until(&self) -> Option<Instant> {
        self.own.waits_until
    }

    /// Goes on waiting for those for which an earlier program has waited.
    pub fn wait_on(&mut self, now: Instant) {
        let any = self.table.numbers().any(|number| self.is_lost(number));
        self.own.waits_until = any.then(|| now + RESTORED_WITHIN);
    }

    fn is_lost(&self, number: u32) -> bool {
        self.table.view(number).is_some_and(|view| view.anchor() == Some(NONE))
    }

    /// Either end says when it has started.
    fn has_started(&mut self, now: Instant, end: Option<IpAddr>, start: u32, effects: &mut Vec<Effect>) {
        let Some(restart) = self.peers.restart(end, start) else { return };
        if end.is_some() {
            return self.lost(end, restart, effects);
        }
        let mut before = std::mem::take(&mut self.own.lost);
        before.retain(|_, number| self.is_lost(*number));
        for number in self.lost_by(None, restart) {
            let Some(mut session) = self.session(number).filter(|session| session.anchor != NONE) else {
                continue;
            };
            before.insert(session.anchor, number);
            session.set_anchor(NONE, N4Side::patch);
            // It needs no more room than before.
            let _ = session.save(&mut self.table, Some(number), spots);
        }
        (self.own.waits_until, self.own.lost) = (Some(now + RESTORED_WITHIN), before);
        let ends: Vec<u64> = self.pending.waiting().filter_map(ended_by).collect();
        ends.into_iter().for_each(|seid| self.not_to_return(seid, effects));
    }

    /// The SMF has asked the UPF to delete a session that it has lost: it will not set it up again, whatever the answer is.
    fn not_to_return(&mut self, seid: u64, effects: &mut Vec<Effect>) {
        if let Some(number) = self.own.lost.remove(&seid)
            && self.is_lost(number)
        {
            self.ended(number, effects);
        }
    }

    /// Takes a captured datagram.
    pub fn observe(&mut self, now: Instant, datagram: Datagram, effects: &mut Vec<Effect>) {
        let mut rest = datagram.octets;
        while let Ok((header, _, after)) = Header::decode(rest) {
            let message = &rest[..rest.len() - after.len()];
            if self.message(now, datagram, header, message, effects).is_err() {
                INCOMPLETE.inc();
            }
            if !header.follow_on || after.is_empty() {
                return;
            }
            rest = after;
        }
        UNREADABLE.inc();
    }

    fn message(
        &mut self,
        now: Instant,
        datagram: Datagram,
        header: Header,
        octets: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Misfit> {
        let Datagram { control, by_control, .. } = datagram;
        self.give_up(now, effects);
        if header.message_type.is_request() {
            let key = (control, by_control, header.sequence);
            self.pending.note(now, key, octets);
            if let Some(seid) = ended_by(octets).filter(|_| by_control) {
                self.not_to_return(seid, effects);
            }
            if by_control && header.message_type == MessageType::AssociationSetupRequest {
                self.asks_for_association(control);
            }
            let Some(answer) = self.pending.take_early(key) else { return Ok(()) };
            let Ok((header, ..)) = Header::decode(&answer) else { return Ok(()) };
            let datagram = Datagram { control, by_control: !by_control, octets: &answer };
            return self.message(now, datagram, header, &answer, effects);
        }
        let key = (control, !by_control, header.sequence);
        let fits = |request: &[u8]| request.get(1).is_some_and(|code| code + 1 == header.message_type as u8);
        if !self.pending.get(key).is_some_and(fits) {
            if self.pending.is_answered(key) {
                REPEATED.inc();
                return Ok(());
            }
            if by_control && is_ours(header.sequence) {
                effects.push(Effect::Answer { control, sequence: header.sequence, octets: octets.to_vec() });
            } else {
                self.pending.keep_early(now, key, octets);
            }
            return Ok(());
        }
        let Some(asked) = self.pending.answered(key) else { return Ok(()) };
        let answer = Message::decode(octets).map(|(_, message)| message);
        match answer {
            Ok(Message::HeartbeatResponse(answer)) => {
                // Who answered; whoever only claims to be it cannot answer the other end's question.
                let end = by_control.then_some(control);
                self.has_started(now, end, answer.recovery_time_stamp.0, effects);
                Ok(())
            }
            Ok(Message::AssociationSetupResponse(answer)) if answer.cause.is_accepted() => {
                // Both ends say when they have started.
                let Ok((_, Message::AssociationSetupRequest(request))) = Message::decode(&asked) else {
                    return Ok(());
                };
                let (of_answer, of_request) = (answer.recovery_time_stamp.0, request.recovery_time_stamp.0);
                let (of_control, of_anchor) =
                    if by_control { (of_answer, of_request) } else { (of_request, of_answer) };
                for (end, start) in [(None, of_anchor), (Some(control), of_control)] {
                    self.has_started(now, end, start, effects);
                }
                let was_unknown =
                    self.peers.find(control).is_some_and(|peer| self.own.newly_heard.remove(&peer));
                let are_retained = answer.flags.is_some_and(|flags| flags.contains(AsRspFlags::PSREI));
                // The UPF has deleted the sessions of an association before this one (TS 29.244 §6.2.6.2.2).
                if was_unknown && !by_control && !are_retained {
                    let mut numbers = self.lost_by(Some(control), Restart::Now);
                    // Those that were lost by a restart of the UPF may come back: it may be why the SMF asks.
                    numbers.retain(|number| !self.is_lost(*number));
                    numbers.into_iter().for_each(|number| self.ended(number, effects));
                }
                Ok(())
            }
            Ok(Message::SessionEstablishmentResponse(answer)) if answer.cause.is_accepted() => {
                self.established(now, control, &asked, &answer, effects)
            }
            Ok(Message::SessionModificationResponse(answer)) if answer.cause.is_accepted() => {
                self.modified(control, &asked, &answer, effects)
            }
            Ok(Message::SessionDeletionResponse(answer)) if answer.cause.is_accepted() => {
                let seid = Header::decode(&asked).ok().and_then(|(header, ..)| header.seid);
                if let Some(number) = seid.and_then(|seid| self.table.by_anchor(seid)) {
                    self.ended(number, effects);
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(_) => {
                UNREADABLE.inc();
                Ok(())
            }
        }
    }

    /// Notes whether it is known when an SMF had started before it asked. Anybody can write any source on a packet, so only those with
    /// sessions count.
    fn asks_for_association(&mut self, control: IpAddr) {
        if let Some(peer) = self.peers.find(control)
            && !self.peers.knows_start(control)
        {
            self.own.newly_heard.insert(peer);
        }
    }

    fn established(
        &mut self,
        now: Instant,
        control: IpAddr,
        asked: &[u8],
        answer: &SessionEstablishmentResponse,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Misfit> {
        let Ok((_, Message::SessionEstablishmentRequest(request))) = Message::decode(asked) else {
            return Err(Misfit);
        };
        let up_seid = answer.up_f_seid.ok_or(Misfit)?.seid;
        let cp_seid = request.cp_f_seid.seid;
        let peer = self.peer(control)?;
        let (named, holder) = (self.table.by_subject(peer, cp_seid), self.table.by_anchor(up_seid));
        let before = named.or(holder);
        // Whoever had this SEID before has ended, though nobody has heard of it.
        if let Some(other) = holder.filter(|other| Some(*other) != before) {
            self.ended(other, effects);
        }
        let chosen = Chosen::of(&answer.created_pdrs);
        let mut session = Session {
            peer,
            subject: cp_seid,
            control: cp_seid,
            anchor: up_seid,
            wide: true,
            ..Session::default()
        };
        session.requests.push(chosen.write(asked));
        settle(&mut session);
        let lost: BTreeSet<u32> = session
            .bearers
            .iter()
            .flat_map(addresses_of)
            .flat_map(|address| self.table.all_by_address(address))
            .filter(|number| self.is_lost(*number))
            .collect();
        for number in named.into_iter().chain(lost.iter().copied()) {
            if let Some(effect) = self.set_up_again(number, &session) {
                if let Some(other) = holder.filter(|other| *other != number && Some(*other) == before) {
                    self.ended(other, effects);
                }
                self.own.waits_until = self.own.waits_until.map(|_| now + RESTORED_WITHIN);
                effects.push(effect);
                return Ok(());
            }
        }
        // Their addresses are those of another session now.
        for number in lost.into_iter().filter(|number| Some(*number) != before) {
            self.ended(number, effects);
        }
        if before.is_none() && self.table.len() >= self.most {
            return Err(Misfit);
        }
        let number = session.save(&mut self.table, before, spots)?;
        effects.push(self.began(number, asked));
        Ok(())
    }

    /// A session that the UPF has lost is set up again, if this is it: its tunnels and addresses are the same, and its rules can be made so.
    fn set_up_again(&mut self, number: u32, now: &Session) -> Option<Effect> {
        let before = self.session(number)?;
        if before.incomplete || before.bearers != now.bearers {
            return None;
        }
        let mut request = difference(&before.requests, now.requests.first()?)?;
        let mut session = Session { peer: now.peer, control: now.control, ..before };
        if !request.is_empty() {
            add(&mut session, &request);
        }
        session.set_anchor(now.anchor, N4Side::patch);
        N4Side::patch(&mut request, now.anchor, 0);
        settle(&mut session);
        self.save(number, &session, spots).ok()?;
        self.of_earlier.remove(&number);
        Some(Effect::Restored { number, request })
    }

    fn modified(
        &mut self,
        control: IpAddr,
        asked: &[u8],
        answer: &SessionModificationResponse,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Misfit> {
        let Ok((header, ..)) = Header::decode(asked) else { return Err(Misfit) };
        let Some(number) = header.seid.and_then(|seid| self.table.by_anchor(seid)) else {
            UNKNOWN.inc();
            return Ok(());
        };
        let Some(mut session) = self.session(number) else { return Ok(()) };
        session.peer = self.peer(control)?;
        let request = Chosen::of(&answer.created_pdrs).write(asked);
        if let Some(moved) =
            tree::find(&request[tree::HEADER..], ie::F_SEID).and_then(|value| value.get(1..9)?.first_chunk())
        {
            session.control = u64::from_be_bytes(*moved);
        }
        let says = tree::updates(&request);
        if says.as_ref().is_some_and(|says| says.is_empty()) {
            effects.push(Effect::Queried { number, request });
            return Ok(());
        }
        add(&mut session, &request);
        settle(&mut session);
        self.save(number, &session, spots)?;
        effects.push(Effect::Changed { number, request });
        Ok(())
    }

    /// A request was not captured that was accepted by this answer: what it has changed is not known.
    fn lost_request(&mut self, key: Key, answer: &[u8], effects: &mut Vec<Effect>) {
        UNMATCHED.inc();
        let (control, by_control, _) = key;
        let Ok((header, message)) = Message::decode(answer) else { return };
        let cause = match message {
            Message::SessionEstablishmentResponse(answer) => answer.cause,
            Message::SessionModificationResponse(answer) => answer.cause,
            Message::SessionDeletionResponse(answer) => answer.cause,
            _ => return,
        };
        let of_control =
            |seid: u64| self.peers.find(control).and_then(|peer| self.table.by_control(peer, seid));
        let number = header.seid.and_then(of_control).filter(|_| by_control && cause.is_accepted());
        match number {
            Some(number) if header.message_type == MessageType::SessionDeletionResponse => {
                self.ended(number, effects);
            }
            Some(number) => {
                INCOMPLETE.inc();
                self.mark_incomplete(number, spots);
            }
            None => {}
        }
    }
}

/// The session that a request is to delete, by its SEID at the UPF.
fn ended_by(request: &[u8]) -> Option<u64> {
    let is_deletion = request.get(1) == Some(&(MessageType::SessionDeletionRequest as u8));
    Header::decode(request).ok().filter(|_| is_deletion)?.0.seid
}

/// Adds a modification to those that make a session. It takes the place of earlier ones if it changes all that they changed.
fn add(session: &mut Session, request: &[u8]) {
    if let Some(new) = tree::updates(request) {
        let is_said = |old: &Vec<u8>| {
            old.get(1) == Some(&(MessageType::SessionModificationRequest as u8))
                && tree::updates(old).is_some_and(|old| old.is_subset(&new))
        };
        session.requests.retain(|old| !is_said(old));
    }
    session.requests.push(request.to_vec());
}

/// What the UP function chose, by PDR.
struct Chosen<'a>(&'a [pfcp::CreatedPdr]);

impl Chosen<'_> {
    fn of(created: &[pfcp::CreatedPdr]) -> Chosen<'_> {
        Chosen(created)
    }

    /// The request, with what was chosen in the place of CHOOSE.
    fn write(&self, request: &[u8]) -> Vec<u8> {
        tree::rewritten(request, &mut |path, value| {
            if path != [ie::CREATE_PDR] {
                return None;
            }
            let id = tree::find(value, ie::PDR_ID)?;
            let id = u16::from_be_bytes(*id.first_chunk()?);
            let created = self.0.iter().find(|created| created.pdr_id.0 == id)?;
            let mut out = Vec::with_capacity(value.len() + 16);
            tree::rewrite(value, &mut Vec::new(), &mut out, &mut |path, value| {
                let mut octets = Vec::new();
                match path {
                    [ie::PDI, ie::F_TEID] if value.first()? & 4 != 0 => created.f_teid?.encode(&mut octets),
                    [ie::PDI, ie::UE_IP_ADDRESS] if value.first()? & 0x30 != 0 => {
                        let asked = UeIpAddress::decode(value).ok()?;
                        let address = created.ue_ip_address?;
                        UeIpAddress { destination: asked.destination, ..address }.encode(&mut octets);
                    }
                    _ => return None,
                }
                Some(octets)
            });
            Some(out)
        })
    }
}

/// Finds tunnels and addresses in a session's requests, and whether packets are sent to a base station.
fn settle(session: &mut Session) {
    let (mut uplinks, mut ipv4, mut ipv6, mut idle) = (Vec::new(), None, None, true);
    for request in &session.requests {
        let ies = request.get(tree::HEADER..).unwrap_or_default();
        for (kind, value) in tree::all(ies) {
            match kind {
                ie::CREATE_PDR => {
                    for (_, value) in tree::all(value).filter(|(kind, _)| *kind == ie::PDI) {
                        let f_teid =
                            tree::find(value, ie::F_TEID).and_then(|value| FTeid::decode(value).ok());
                        if let Some(FTeid::Assigned { teid, .. }) = f_teid
                            && !uplinks.contains(&teid)
                        {
                            uplinks.push(teid);
                        }
                        let ue = tree::find(value, ie::UE_IP_ADDRESS)
                            .and_then(|value| UeIpAddress::decode(value).ok());
                        ipv4 = ipv4.or(ue.and_then(|ue| ue.ipv4));
                        ipv6 = ipv6.or(ue.and_then(|ue| ue.ipv6));
                    }
                }
                ie::CREATE_FAR | ie::UPDATE_FAR => {
                    let parameters = [ie::FORWARDING_PARAMETERS, ie::UPDATE_FORWARDING_PARAMETERS];
                    let parameters = parameters.into_iter().find_map(|kind| tree::find(value, kind));
                    let has_tunnel = parameters
                        .is_some_and(|value| tree::find(value, ie::OUTER_HEADER_CREATION).is_some());
                    let action =
                        tree::find(value, ie::APPLY_ACTION).and_then(|value| ApplyAction::decode(value).ok());
                    if action.is_some_and(|action| action.contains(ApplyAction::BUFF)) {
                        idle = true;
                    } else if has_tunnel {
                        idle = false;
                    }
                }
                _ => {}
            }
        }
    }
    let first = |at: usize| at == 0;
    session.bearers = uplinks
        .into_iter()
        .take(crate::record::MOST)
        .enumerate()
        .map(|(at, uplink)| Bearer {
            id: at as u8,
            uplink,
            ipv4: ipv4.filter(|_| first(at)),
            ipv6: ipv6.filter(|_| first(at)).map(prefix),
        })
        .collect();
    session.idle = idle;
}
