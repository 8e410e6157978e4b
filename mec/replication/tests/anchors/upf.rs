//! A UPF (TS 29.244). It chooses TEIDs if it is to, and needs an association.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use pfcp::message::*;
use pfcp::*;
use replication::replicator::Protocol;

use super::{Model, STATION, next};

/// SEIDs of SMFs: this one and the UE's number.
pub const SMF_SEID: u64 = 0x1111_0000;

pub fn octets(message: impl Into<Message>, seid: u64, sequence: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    message.into().encode(seid, sequence, &mut octets).unwrap();
    octets
}

#[derive(Debug)]
struct Held {
    cp: FSeid,
    gnb: Option<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Upf {
    own: Ipv4Addr,
    sessions: BTreeMap<u64, Held>,
    last: u32,
    started: u32,
    is_associated: bool,
}

impl Upf {
    /// By what its sessions are addressed.
    pub fn seids(&self) -> Vec<u64> {
        self.sessions.keys().copied().collect()
    }

    fn established(&mut self, request: &SessionEstablishmentRequest, sequence: u32) -> Vec<u8> {
        let (node_id, cp) = (NodeId::Ipv4(self.own), request.cp_f_seid);
        if !self.is_associated {
            let cause = Cause::NO_ASSOCIATION;
            let refused = SessionEstablishmentResponse { node_id, cause, ..Default::default() };
            return octets(refused, cp.seid, sequence);
        }
        let mut created_pdrs = Vec::new();
        for pdr in &request.create_pdrs {
            let Some(asked) = pdr.pdi.f_teid else { continue };
            let teid = next(&mut self.last);
            let own = FTeid::Assigned { teid, ipv4: Some(self.own), ipv6: None };
            let tunnel = if matches!(asked, FTeid::Choose { .. }) { own } else { asked };
            created_pdrs.push(CreatedPdr { pdr_id: pdr.pdr_id, f_teid: Some(tunnel), ue_ip_address: None });
        }
        // The SMF names it as before: it begins anew.
        self.sessions.retain(|_, held| held.cp != cp);
        let own = u64::from(next(&mut self.last)) << 8;
        let to_station = request.create_fars.iter().find_map(|far| far.forwarding_parameters.as_ref());
        let gnb = to_station.and_then(|of| of.outer_header_creation.as_ref()?.teid);
        self.sessions.insert(own, Held { cp, gnb });
        let answer = SessionEstablishmentResponse {
            node_id,
            cause: Cause::ACCEPTED,
            up_f_seid: Some(FSeid::new(own, self.own.into())),
            created_pdrs,
            ..Default::default()
        };
        octets(answer, cp.seid, sequence)
    }
}

impl Model for Upf {
    const PROTOCOL: Protocol = Protocol::N4;
    const PORT: u16 = 8805;

    fn new(own: Ipv4Addr, secret: u32) -> Upf {
        Upf { own, sessions: BTreeMap::new(), last: secret, started: 7, is_associated: true }
    }

    fn own(&self) -> Ipv4Addr {
        self.own
    }

    fn answer(&mut self, request: &[u8]) -> Vec<Vec<u8>> {
        let (header, message) = Message::decode(request).unwrap();
        let (own, sequence) = (header.seid.unwrap_or(0), header.sequence);
        let cp = self.sessions.get(&own).map_or(0, |held| held.cp.seid);
        let cause = if cp == 0 { Cause::SESSION_NOT_FOUND } else { Cause::ACCEPTED };
        let recovery_time_stamp = NtpSeconds(self.started);
        let answer = match message {
            Message::HeartbeatRequest(_) => octets(HeartbeatResponse { recovery_time_stamp }, 0, sequence),
            Message::AssociationSetupRequest(_) => {
                self.is_associated = true;
                let (node_id, cause) = (NodeId::Ipv4(self.own), Cause::ACCEPTED);
                let answer =
                    AssociationSetupResponse { node_id, cause, recovery_time_stamp, ..Default::default() };
                octets(answer, 0, sequence)
            }
            Message::SessionEstablishmentRequest(request) => self.established(&request, sequence),
            Message::SessionModificationRequest(request) => {
                if let Some(held) = self.sessions.get_mut(&own) {
                    held.cp = request.cp_f_seid.unwrap_or(held.cp);
                    for far in &request.update_fars {
                        let parameters = far.update_forwarding_parameters.as_ref();
                        held.gnb = parameters.and_then(|of| of.outer_header_creation.as_ref()?.teid);
                    }
                }
                octets(SessionModificationResponse { cause, ..Default::default() }, cp, sequence)
            }
            Message::SessionDeletionRequest(_) => {
                self.sessions.remove(&own);
                octets(SessionDeletionResponse { cause, ..Default::default() }, cp, sequence)
            }
            Message::HeartbeatResponse(_) => return Vec::new(),
            other => panic!("{other:?}"),
        };
        vec![answer]
    }

    fn restart(&mut self) {
        self.sessions.clear();
        self.started += 1;
        self.is_associated = false;
    }

    fn users(&self) -> BTreeMap<u32, Option<u32>> {
        self.sessions.values().map(|held| ((held.cp.seid - SMF_SEID) as u32, held.gnb)).collect()
    }

    fn number(request: &mut [u8], sequence: u32) {
        request[12..15].copy_from_slice(&sequence.to_be_bytes()[1..]);
    }

    fn attach(control: Ipv4Addr, ue: u32) -> Vec<u8> {
        let choose = FTeid::Choose { ipv4: true, ipv6: false, id: Some(1) };
        octets(establishment(control, SMF_SEID + u64::from(ue), ue, choose, None), 0, 0)
    }

    fn given(answer: &[u8]) -> u64 {
        let Message::SessionEstablishmentResponse(answer) = Message::decode(answer).unwrap().1 else {
            panic!()
        };
        answer.up_f_seid.unwrap().seid
    }

    fn activate(to: u64, station: u32) -> Vec<u8> {
        let header = OuterHeaderCreation::gtpu(station, STATION.into());
        let parameters =
            UpdateForwardingParameters { outer_header_creation: Some(header), ..Default::default() };
        let far = UpdateFar {
            far_id: FarId(2),
            apply_action: Some(ApplyAction::FORW),
            update_forwarding_parameters: Some(Box::new(parameters)),
            ..Default::default()
        };
        octets(SessionModificationRequest { update_fars: vec![far], ..Default::default() }, to, 0)
    }

    fn idle(to: u64) -> Vec<u8> {
        let far = UpdateFar { far_id: FarId(2), apply_action: Some(ApplyAction::BUFF), ..Default::default() };
        octets(SessionModificationRequest { update_fars: vec![far], ..Default::default() }, to, 0)
    }

    fn detach(to: u64) -> Vec<u8> {
        octets(SessionDeletionRequest {}, to, 0)
    }

    fn name(control: Ipv4Addr, ue: u32) -> String {
        format!("seid-{control}-{:x}", SMF_SEID + u64::from(ue))
    }
}

/// What an SMF asks for a UE's session, which it names by this SEID, with a tunnel towards the base station or none.
fn establishment(
    control: Ipv4Addr,
    seid: u64,
    ue: u32,
    tunnel: FTeid,
    station: Option<u32>,
) -> SessionEstablishmentRequest {
    let ipv4 = Some(Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 45, 0, 0)) + ue));
    let address = |destination| Some(UeIpAddress { ipv4, destination, ..Default::default() });
    let uplink = Pdi { f_teid: Some(tunnel), ue_ip_address: address(false), ..Default::default() };
    let downlink =
        Pdi { source_interface: SourceInterface::Core, ue_ip_address: address(true), ..Default::default() };
    let pdr = |id: u16, pdi| CreatePdr {
        pdr_id: PdrId(id),
        precedence: Precedence(255),
        pdi,
        far_id: Some(FarId(id.into())),
        ..Default::default()
    };
    let far = |id, apply_action| CreateFar { far_id: FarId(id), apply_action, ..Default::default() };
    let to_station = |teid| {
        let outer_header_creation = Some(OuterHeaderCreation::gtpu(teid, STATION.into()));
        let parameters = ForwardingParameters { outer_header_creation, ..Default::default() };
        CreateFar { forwarding_parameters: Some(Box::new(parameters)), ..far(2, ApplyAction::FORW) }
    };
    let downwards = station.map_or_else(|| far(2, ApplyAction::BUFF), to_station);
    SessionEstablishmentRequest {
        node_id: NodeId::Ipv4(control),
        cp_f_seid: FSeid::new(seid, control.into()),
        create_pdrs: vec![pdr(1, uplink), pdr(2, downlink)],
        create_fars: vec![far(1, ApplyAction::FORW), downwards],
        ..Default::default()
    }
}

/// How an SMF sets up a UE's session again at a UPF that has lost it, with the TEID that it had there.
pub fn restored(
    control: Ipv4Addr,
    upf: Ipv4Addr,
    (seid, ue): (u64, u32),
    teid: u32,
    station: Option<u32>,
) -> Vec<u8> {
    let tunnel = FTeid::Assigned { teid, ipv4: Some(upf), ipv6: None };
    octets(establishment(control, seid, ue, tunnel, station), 0, 0)
}
