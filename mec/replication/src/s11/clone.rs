//! The MME's side of S11 towards a clone.
//!
//! Where the P-GW is apart, the clone is told to whom a UE moves only when its packets go there ([`relocation`]).
//!
//! A dedicated bearer is made by the anchor itself. It asks for it as the first anchor did, and gets the answer that the MME gave then.

use std::collections::VecDeque;
use std::net::IpAddr;

use gtpv2c::ie;
use gtpv2c::message::*;
use gtpv2c::{
    BearerInUpdateRequest, BearerResultWithOptions, Cause, CauseValue, Ebi, PrivateExtension, Recovery,
};

use super::{active, relocation};
use super::{enter_created, read, values};
use crate::clone::{Answered, Head, Kind, Prepared, Side, User};
use crate::record::Bearer;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct S11 {
    /// What Echo answers say of restarts.
    pub restart_counter: u8,
    /// The first anchor's address.
    pub original: IpAddr,
    /// The clone's address.
    pub clone: IpAddr,
}

impl S11 {
    /// Where the MME has named the first anchor as P-GW, too, the clone is to be the P-GW: it would else be an S-GW before the first one.
    fn name_gateway(&self, request: &mut [u8]) {
        let (IpAddr::V4(original), IpAddr::V4(clone)) = (self.original, self.clone) else { return };
        for value in values(request, |kind, instance| (kind, instance) == (ie::F_TEID, 1)) {
            // Flags, TEID, IPv4 address (§8.22).
            let address = request.get_mut(value).and_then(|value| value.get_mut(5..9));
            if let Some(address) = address.filter(|address| **address == original.octets()) {
                address.copy_from_slice(&clone.octets());
            }
        }
    }
}

/// Most requests that wait until the user's packets go to the clone: later ones say what earlier ones said.
const MAX_WITHHELD: usize = 16;

/// What is known of a user beyond its requests.
#[derive(Debug, Default)]
pub struct Expected {
    /// Bearers that the anchor is to ask for, with the MME's answers.
    bearers: Vec<(CreateBearerRequest, CreateBearerResponse)>,
    /// One whose answer follows.
    unanswered: Option<CreateBearerRequest>,
    /// Bearers that the anchor is to ask to delete.
    deleted: Vec<u8>,
    /// How often the anchor is to ask to update bearers: the MME has accepted that before.
    updates: usize,
    /// What the Create Session Request under way says at once: that request without tunnels, and the Modify Bearer Request that has them.
    at_once: Option<(Vec<u8>, Vec<u8>)>,
    /// Its P-GW is apart.
    relocation: Option<Relocation>,
}

/// A user whose P-GW hears of the clone when its packets go there.
#[derive(Debug, Default)]
struct Relocation {
    serves: bool,
    /// Requests that would tell the P-GW.
    withheld: VecDeque<Vec<u8>>,
}

impl Side for S11 {
    type State = Expected;

    const SEQUENCES: u32 = 1 << 24;

    fn head(octets: &[u8]) -> Option<Head> {
        let (header, _, after) = Header::decode(octets).ok()?;
        let kind = match header.message_type.kind() {
            gtpv2c::message::Kind::Request => Kind::Request,
            gtpv2c::message::Kind::Command => Kind::Command,
            gtpv2c::message::Kind::Response => Kind::Response,
            gtpv2c::message::Kind::Indication => Kind::Other,
        };
        let (code, to) = (header.message_type as u8, header.teid.map(u64::from));
        Some(Head { kind, code, to, sequence: header.sequence, length: octets.len() - after.len() })
    }

    fn patch(octets: &mut [u8], to: u64, sequence: u32) {
        // A header with TEID (§5.1).
        let Some(header) = octets.first_chunk_mut::<12>() else { return };
        header[4..8].copy_from_slice(&(to as u32).to_be_bytes());
        header[8..11].copy_from_slice(&sequence.to_be_bytes()[1..]);
    }

    fn prepare(&self, user: &mut User<Expected>, mut octets: Vec<u8>) -> Prepared {
        let Some((_, message)) = read(&octets) else { return Prepared::Noted };
        match message {
            Message::CreateBearerRequest(request) => {
                expect(user, request);
                Prepared::Noted
            }
            // The anchor answers with the request for a bearer that the command led to at the first one.
            Message::BearerResourceCommand(_) => {
                let next = user.script.front().and_then(|next| read(next)).map(|(_, message)| message);
                if let Some(Message::CreateBearerRequest(request)) = next {
                    user.script.pop_front();
                    expect(user, request);
                } else {
                    user.state.updates += 1;
                }
                Prepared::Send(octets)
            }
            Message::ModifyBearerCommand(_) => {
                user.state.updates += 1;
                Prepared::Send(octets)
            }
            Message::CreateSessionRequest(_) => {
                if relocation::gateway_of(&octets, self.original).is_some() {
                    user.state.relocation.get_or_insert_default();
                }
                self.name_gateway(&mut octets);
                let next = user.script.front().filter(|_| user.state.relocation.is_none());
                let Some(at_once) = next.and_then(|next| active::request(&octets, next)) else {
                    return Prepared::Send(octets);
                };
                user.state.at_once = user.script.pop_front().map(|modify| (octets, modify));
                Prepared::Send(at_once)
            }
            // It is the P-GW's matter, and said in the first anchor's name.
            Message::ModifyBearerRequest(_) if relocation::is_way_back(&octets) => Prepared::Noted,
            Message::ModifyBearerRequest(_) | Message::ReleaseAccessBearersRequest(_) => {
                match user.state.relocation.as_mut().filter(|relocation| !relocation.serves) {
                    Some(Relocation { withheld, .. }) => {
                        withheld.push_back(octets);
                        if withheld.len() > MAX_WITHHELD {
                            withheld.pop_front();
                        }
                        Prepared::Noted
                    }
                    None => Prepared::Send(octets),
                }
            }
            Message::CreateBearerResponse(answer) => {
                if let Some(request) = user.state.unanswered.take() {
                    user.state.bearers.push((request, answer));
                }
                Prepared::Noted
            }
            Message::DeleteBearerCommand(command) => {
                let ids: Vec<u8> = command.bearers.iter().map(|bearer| bearer.ebi.0).collect();
                // Those that the anchor has not asked for yet it is to refuse.
                user.state
                    .bearers
                    .retain(|(_, answer)| answer.bearers.iter().any(|created| !ids.contains(&created.ebi.0)));
                let there = user.bearers.iter().filter(|bearer| ids.contains(&bearer.id));
                let there: Vec<u8> = there.map(|bearer| bearer.id).collect();
                if there.is_empty() {
                    return Prepared::Noted;
                }
                user.state.deleted.extend(there);
                Prepared::Send(octets)
            }
            // An answer of the MME alone is about what the anchor has asked for itself.
            message if !message.message_type().is_request() => Prepared::Noted,
            _ => Prepared::Send(octets),
        }
    }

    fn answered(&self, user: &mut User<Expected>, request: &[u8], answer: &[u8]) -> Answered {
        let Some((_, message)) = read(answer) else {
            let cause = peek_rejection(answer.get(12..).unwrap_or_default());
            return Answered::Refused(cause.map_or(0, |cause| cause.value.0));
        };
        let cause = match &message {
            Message::CreateSessionResponse(answer) => {
                if let Some((create, modify)) = user.state.at_once.take() {
                    let is_accepted = answer.cause.is_accepted();
                    if !answer.private_extensions.contains(&PrivateExtension::has_enb_tunnels()) {
                        // An anchor that does not say that it has them gets them now.
                        user.script.push_front(modify);
                    }
                    if !is_accepted {
                        // It may have taken offence at them.
                        return Answered::Again(create);
                    }
                }
                if answer.cause.is_accepted() {
                    if let Some(end) = answer.sender_f_teid {
                        user.anchor = end.teid.into();
                    }
                    let known = match read(request) {
                        Some((_, Message::CreateSessionRequest(request))) => request.paa,
                        _ => None,
                    };
                    enter_created(answer, known, &mut user.bearers);
                }
                answer.cause
            }
            Message::ModifyBearerResponse(answer) => answer.cause,
            Message::ReleaseAccessBearersResponse(answer) => answer.cause,
            Message::DeleteSessionResponse(answer) => {
                if let (true, Some((_, Message::DeleteSessionRequest(request)))) =
                    (answer.cause.is_accepted(), read(request))
                {
                    // Dedicated bearers go with the last default one.
                    user.bearers.retain(|bearer| request.linked_ebi.is_some_and(|ebi| bearer.id != ebi.0));
                    if user.bearers.iter().all(|bearer| bearer.ipv4.is_none() && bearer.ipv6.is_none()) {
                        user.bearers.clear();
                    }
                }
                answer.cause
            }
            Message::BearerResourceFailureIndication(BearerResourceFailureIndication { cause, .. })
            | Message::ModifyBearerFailureIndication(ModifyBearerFailureIndication { cause, .. }) => {
                user.state.updates = user.state.updates.saturating_sub(1);
                *cause
            }
            // It has no such bearer, or keeps it: its session goes on.
            Message::DeleteBearerFailureIndication(_) => return Answered::Accepted,
            _ => return Answered::Accepted,
        };
        if cause.is_accepted() { Answered::Accepted } else { Answered::Refused(cause.value.0) }
    }

    fn usage(&self, _: &[u8], _: &[u8]) -> Option<Vec<u8>> {
        // It is charged by the P-GW, which tells nobody here.
        None
    }

    fn asked(&self, user: &mut User<Expected>, request: &[u8]) -> Option<Vec<u8>> {
        let request = match read(request)?.1 {
            Message::CreateBearerRequest(request) => request,
            Message::DeleteBearerRequest(request) => return deleted(user, &request),
            Message::UpdateBearerRequest(request) => return updated(user, &request),
            _ => return None,
        };
        let at = user.state.bearers.iter().position(|(expected, _)| is_same(expected, &request))?;
        let (_, mut answer) = user.state.bearers.remove(at);
        for (asked, created) in request.bearers.iter().zip(&mut answer.bearers) {
            created.s1u_sgw_f_teid = asked.s1u_sgw_f_teid;
            created.s5s8u_pgw_f_teid = asked.s5s8u_pgw_f_teid;
            let uplink = asked.s1u_sgw_f_teid.map_or(0, |end| end.teid);
            user.bearers.push(Bearer { id: created.ebi.0, uplink, ipv4: None, ipv6: None });
        }
        Some(encoded(answer))
    }

    fn new_control(request: &[u8]) -> Option<u64> {
        match read(request)?.1 {
            Message::ModifyBearerRequest(request) => request.sender_f_teid.map(|end| end.teid.into()),
            _ => None,
        }
    }

    fn is_complete(user: &User<Expected>) -> bool {
        user.state.bearers.is_empty()
    }

    fn serve(&self, user: &mut User<Expected>, serves: bool) {
        let relocation = user.state.relocation.get_or_insert_default();
        relocation.serves = serves;
        if serves {
            user.script.extend(relocation.withheld.drain(..));
        }
    }

    fn end(&self, user: &User<Expected>) -> Vec<u8> {
        if user.state.relocation.is_some() {
            let indication = Some(relocation::AT_SGW_ONLY);
            return encoded(DeleteSessionRequest { indication, ..Default::default() });
        }
        // A UE's last PDN connection goes with its contexts.
        let mut defaults =
            user.bearers.iter().filter(|bearer| bearer.ipv4.is_some() || bearer.ipv6.is_some());
        let linked_ebi = defaults.next().map(|bearer| Ebi(bearer.id));
        encoded(DeleteSessionRequest { linked_ebi, ..Default::default() })
    }

    fn is_end(code: u8) -> bool {
        code == MessageType::DeleteSessionRequest as u8
    }

    fn start(&self, octets: &[u8]) -> Option<u32> {
        let code = *octets.get(1)?;
        // All messages come here, and few are read.
        if ![MessageType::EchoRequest as u8, MessageType::EchoResponse as u8].contains(&code) {
            return None;
        }
        match read(octets)?.1 {
            Message::EchoRequest(echo) => Some(echo.recovery.0.into()),
            Message::EchoResponse(echo) => Some(echo.recovery.0.into()),
            _ => None,
        }
    }

    fn probe(&self, sequence: u32) -> Vec<u8> {
        let echo = EchoRequest { recovery: Recovery(self.restart_counter), ..Default::default() };
        let mut octets = Vec::new();
        // It fits.
        let _ = Message::from(echo).encode(0, sequence, &mut octets);
        octets
    }

    fn greeting(&self, _: u32) -> Option<Vec<u8>> {
        None
    }

    fn is_greeted(&self, _: &[u8]) -> Option<bool> {
        None
    }

    fn node(&self, head: Head, _: &[u8]) -> Option<Vec<u8>> {
        if head.code != MessageType::EchoRequest as u8 {
            return None;
        }
        let answer = EchoResponse { recovery: Recovery(self.restart_counter), ..Default::default() };
        let mut octets = Vec::new();
        Message::from(answer).encode(0, head.sequence, &mut octets).ok()?;
        Some(octets)
    }

    fn nobody(&self, head: Head) -> Option<Vec<u8>> {
        let cause = Cause::from(CauseValue::CONTEXT_NOT_FOUND);
        let mut octets = Vec::new();
        MessageType::from_code(head.code)?.rejection(cause)?.encode(0, head.sequence, &mut octets).ok()?;
        Some(octets)
    }
}

/// The MME's answer to a request to delete bearers, if they are to be deleted.
fn deleted(user: &mut User<Expected>, request: &DeleteBearerRequest) -> Option<Vec<u8>> {
    let ids: Vec<u8> = request.ebis.iter().map(|ebi| ebi.0).collect();
    if ids.is_empty() || !ids.iter().all(|id| user.state.deleted.contains(id)) {
        return None;
    }
    user.state.deleted.retain(|id| !ids.contains(id));
    user.bearers.retain(|bearer| !ids.contains(&bearer.id));
    let cause = Cause::from(CauseValue::ACCEPTED);
    let bearers =
        ids.iter().map(|id| BearerResultWithOptions { ebi: Ebi(*id), cause, ..Default::default() }).collect();
    Some(encoded(DeleteBearerResponse { cause, bearers, ..Default::default() }))
}

/// The MME's answer to a request to update bearers, if a command has led to it.
fn updated(user: &mut User<Expected>, request: &UpdateBearerRequest) -> Option<Vec<u8>> {
    user.state.updates = user.state.updates.checked_sub(1)?;
    let cause = Cause::from(CauseValue::ACCEPTED);
    let result = |bearer: &BearerInUpdateRequest| BearerResultWithOptions {
        ebi: bearer.ebi,
        cause,
        ..Default::default()
    };
    let bearers = request.bearers.iter().map(result).collect();
    Some(encoded(UpdateBearerResponse { cause, bearers, ..Default::default() }))
}

/// Takes the MME's answer from the script: it is that to a request that the anchor is to send.
fn expect(user: &mut User<Expected>, request: CreateBearerRequest) {
    let answer = user.script.front().and_then(|next| read(next)).map(|(_, message)| message);
    if let Some(Message::CreateBearerResponse(answer)) = answer {
        user.script.pop_front();
        user.state.bearers.push((request, answer));
    } else {
        user.state.unanswered = Some(request);
    }
}

/// A message whose header is still to be written.
fn encoded(message: impl Into<Message>) -> Vec<u8> {
    let mut octets = Vec::new();
    // What was decoded from a datagram fits in one.
    let _ = message.into().encode(0, 0, &mut octets);
    octets
}

/// Whether an anchor asks for the bearers that another one has asked for.
fn is_same(one: &CreateBearerRequest, other: &CreateBearerRequest) -> bool {
    let what = |request: &CreateBearerRequest| {
        request.bearers.iter().map(|bearer| (bearer.tft.clone(), bearer.qos)).collect::<Vec<_>>()
    };
    one.linked_ebi == other.linked_ebi && what(one) == what(other)
}
