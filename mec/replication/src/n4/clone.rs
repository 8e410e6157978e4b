//! The SMF's side of N4 towards a clone.
//!
//! It is asked for the TEIDs that the first UPF has, at its own address. If it refuses, it is asked to choose, and packets are translated
//! (SEL-4).

use std::net::IpAddr;

use pfcp::codec::Value as _;
use pfcp::message::*;
use pfcp::{Cause, FSeid, FTeid, NodeId, NtpSeconds, ie};

use super::{active, tree, usage};
use crate::clone::{Answered, Head, Kind, Prepared, Side, User};
use crate::record::Bearer;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct N4 {
    /// Our address, in Node ID and CP F-SEID.
    pub own: IpAddr,
    /// When we started.
    pub started: u32,
    /// The clone's address for GTP-U.
    pub gtpu: IpAddr,
}

/// Whether the clone was asked to choose.
#[derive(Debug, Default)]
pub struct Choosing(bool);

impl N4 {
    /// A message to set up the association, which sessions need.
    pub fn association(&self, sequence: u32) -> Vec<u8> {
        let request = AssociationSetupRequest {
            node_id: self.node_id(),
            recovery_time_stamp: NtpSeconds(self.started),
            ..Default::default()
        };
        let mut octets = Vec::new();
        // It fits.
        let _ = Message::from(request).encode(0, sequence, &mut octets);
        octets
    }

    /// Whether an answer to [`N4::association`] accepts it; `None`: it is another message.
    pub fn is_associated(answer: &[u8]) -> Option<bool> {
        if answer.get(1) != Some(&(MessageType::AssociationSetupResponse as u8)) {
            return None;
        }
        match Message::decode(answer) {
            Ok((_, Message::AssociationSetupResponse(answer))) => Some(answer.cause.is_accepted()),
            _ => None,
        }
    }

    fn node_id(&self) -> NodeId {
        match self.own {
            IpAddr::V4(own) => NodeId::Ipv4(own),
            IpAddr::V6(own) => NodeId::Ipv6(own),
        }
    }

    /// A request of the SMF as one of ours, about ends of the clone's (CHOOSE: about ends that it chooses).
    fn ours(&self, request: &[u8], choose: bool) -> Vec<u8> {
        let mut tunnels: Vec<u32> = Vec::new();
        tree::rewritten(request, &mut |path, value| {
            let mut octets = Vec::new();
            match path {
                [ie::NODE_ID] => self.node_id().encode(&mut octets),
                [ie::F_SEID] => FSeid::new(FSeid::decode(value).ok()?.seid, self.own).encode(&mut octets),
                [.., ie::F_TEID] => {
                    let FTeid::Assigned { teid, .. } = FTeid::decode(value).ok()? else { return None };
                    if !tunnels.contains(&teid) {
                        tunnels.push(teid);
                    }
                    // PDRs of one tunnel choose together (§8.2.3).
                    let id = tunnels.iter().position(|known| *known == teid).map(|at| at as u8);
                    let of = match (self.gtpu, choose) {
                        (IpAddr::V4(_), true) => FTeid::Choose { ipv4: true, ipv6: false, id },
                        (IpAddr::V6(_), true) => FTeid::Choose { ipv4: false, ipv6: true, id },
                        (IpAddr::V4(own), false) => FTeid::Assigned { teid, ipv4: Some(own), ipv6: None },
                        (IpAddr::V6(own), false) => FTeid::Assigned { teid, ipv4: None, ipv6: Some(own) },
                    };
                    of.encode(&mut octets);
                }
                _ => return None,
            }
            Some(octets)
        })
    }
}

impl Side for N4 {
    type State = Choosing;

    const SEQUENCES: u32 = 1 << 24;

    fn head(octets: &[u8]) -> Option<Head> {
        let (header, _, after) = Header::decode(octets).ok()?;
        let kind = if header.message_type.is_request() { Kind::Request } else { Kind::Response };
        let code = header.message_type as u8;
        Some(Head {
            kind,
            code,
            to: header.seid,
            sequence: header.sequence,
            length: octets.len() - after.len(),
        })
    }

    fn patch(octets: &mut [u8], to: u64, sequence: u32) {
        let Some(header) = octets.first_chunk_mut::<16>() else { return };
        header[4..12].copy_from_slice(&to.to_be_bytes());
        header[12..15].copy_from_slice(&sequence.to_be_bytes()[1..]);
    }

    fn prepare(&self, user: &mut User<Choosing>, mut octets: Vec<u8>) -> Prepared {
        while let Some(at_once) = user.script.front().and_then(|next| active::request(&octets, next)) {
            octets = at_once;
            user.script.pop_front();
        }
        Prepared::Send(self.ours(&octets, user.state.0))
    }

    fn answered(&self, user: &mut User<Choosing>, request: &[u8], answer: &[u8]) -> Answered {
        let Ok((_, message)) = Message::decode(answer) else { return Answered::Refused(0) };
        let (cause, created) = match &message {
            Message::SessionEstablishmentResponse(answer) => {
                if answer.cause.is_accepted() {
                    user.anchor = answer.up_f_seid.map_or(0, |f_seid| f_seid.seid);
                } else if answer.cause != Cause::NO_ASSOCIATION && !user.state.0 && user.anchor == 0 {
                    user.state.0 = true;
                    return Answered::Again(self.ours(request, true));
                }
                (answer.cause, &answer.created_pdrs[..])
            }
            Message::SessionModificationResponse(answer) => (answer.cause, &answer.created_pdrs[..]),
            Message::SessionDeletionResponse(answer) => {
                user.bearers.clear();
                (answer.cause, &[][..])
            }
            _ => return Answered::Accepted,
        };
        if cause == Cause::NO_ASSOCIATION {
            return Answered::Unknown(cause.0);
        }
        if !cause.is_accepted() {
            return Answered::Refused(cause.0);
        }
        enter(&mut user.bearers, request, created);
        Answered::Accepted
    }

    fn usage(&self, request: &[u8], answer: &[u8]) -> Option<Vec<u8>> {
        let mut octets = Vec::new();
        for report in usage::reports(answer) {
            octets.extend_from_slice(&ie::USAGE_REPORT_SRR.to_be_bytes());
            octets.extend_from_slice(&(report.len() as u16).to_be_bytes());
            octets.extend_from_slice(&report);
        }
        if octets.is_empty() && !usage::is_asked_for(request) { None } else { Some(octets) }
    }

    fn asked(&self, _: &mut User<Choosing>, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn serve(&self, _: &mut User<Choosing>, _: bool) {}

    fn new_control(request: &[u8]) -> Option<u64> {
        let is_modification = request.get(1) == Some(&(MessageType::SessionModificationRequest as u8));
        let value = tree::find(request.get(tree::HEADER..).filter(|_| is_modification)?, ie::F_SEID)?;
        FSeid::decode(value).ok().map(|f_seid| f_seid.seid)
    }

    fn is_complete(_: &User<Choosing>) -> bool {
        true
    }

    fn end(&self, _: &User<Choosing>) -> Vec<u8> {
        let mut octets = Vec::new();
        // It fits.
        let _ = Message::from(SessionDeletionRequest {}).encode(0, 0, &mut octets);
        octets
    }

    fn is_end(code: u8) -> bool {
        code == MessageType::SessionDeletionRequest as u8
    }

    fn start(&self, octets: &[u8]) -> Option<u32> {
        let codes = [
            MessageType::HeartbeatRequest as u8,
            MessageType::HeartbeatResponse as u8,
            MessageType::AssociationSetupResponse as u8,
        ];
        // All messages come here, and few are read.
        if !codes.contains(octets.get(1)?) {
            return None;
        }
        match Message::decode(octets).ok()?.1 {
            Message::HeartbeatRequest(heartbeat) => Some(heartbeat.recovery_time_stamp.0),
            Message::HeartbeatResponse(heartbeat) => Some(heartbeat.recovery_time_stamp.0),
            Message::AssociationSetupResponse(answer) if answer.cause.is_accepted() => {
                Some(answer.recovery_time_stamp.0)
            }
            _ => None,
        }
    }

    fn probe(&self, sequence: u32) -> Vec<u8> {
        let heartbeat = HeartbeatRequest { recovery_time_stamp: NtpSeconds(self.started) };
        let mut octets = Vec::new();
        // It fits.
        let _ = Message::from(heartbeat).encode(0, sequence, &mut octets);
        octets
    }

    fn greeting(&self, sequence: u32) -> Option<Vec<u8>> {
        Some(self.association(sequence))
    }

    fn is_greeted(&self, octets: &[u8]) -> Option<bool> {
        N4::is_associated(octets)
    }

    fn node(&self, head: Head, _: &[u8]) -> Option<Vec<u8>> {
        let answer: Message = match MessageType::from_code(head.code)? {
            MessageType::HeartbeatRequest => {
                HeartbeatResponse { recovery_time_stamp: NtpSeconds(self.started) }.into()
            }
            MessageType::NodeReportRequest => {
                NodeReportResponse { node_id: self.node_id(), cause: Cause::ACCEPTED, ..Default::default() }
                    .into()
            }
            _ => return None,
        };
        let mut octets = Vec::new();
        answer.encode(0, head.sequence, &mut octets).ok()?;
        Some(octets)
    }

    fn nobody(&self, head: Head) -> Option<Vec<u8>> {
        if head.code != MessageType::SessionReportRequest as u8 {
            return None;
        }
        let answer = SessionReportResponse { cause: Cause::SESSION_NOT_FOUND, ..Default::default() };
        let mut octets = Vec::new();
        Message::from(answer).encode(0, head.sequence, &mut octets).ok()?;
        Some(octets)
    }
}

/// Enters tunnels of a request that was accepted, in its order, as the tracker does.
fn enter(bearers: &mut Vec<Bearer>, request: &[u8], created: &[pfcp::CreatedPdr]) {
    for (_, pdr) in
        tree::all(request.get(tree::HEADER..).unwrap_or_default()).filter(|(kind, _)| *kind == ie::CREATE_PDR)
    {
        let Some(value) = tree::find(pdr, ie::PDI).and_then(|pdi| tree::find(pdi, ie::F_TEID)) else {
            continue;
        };
        let id =
            tree::find(pdr, ie::PDR_ID).and_then(|id| id.first_chunk()).map(|id| u16::from_be_bytes(*id));
        let chosen =
            created.iter().find(|created| Some(created.pdr_id.0) == id).and_then(|created| created.f_teid);
        if let Some(FTeid::Assigned { teid, .. }) = chosen.or_else(|| FTeid::decode(value).ok())
            && !bearers.iter().any(|known| known.uplink == teid)
        {
            bearers.push(Bearer { id: bearers.len() as u8, uplink: teid, ipv4: None, ipv6: None });
        }
    }
}
