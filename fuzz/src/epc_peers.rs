//! What a gateway of 4G meets in the target `epc`: MMEs and another gateway that send anything, and a UPF.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use gtpv2c::endpoint::PORT;
use gtpv2c::message::*;
use gtpv2c::*;
use net::time;
use net::udp::UdpSocket;
use pfcp::message::{
    AssociationSetupResponse, SessionDeletionResponse, SessionEstablishmentResponse,
    SessionModificationResponse, SessionReportRequest,
};

/// Requests of the gateway that a neighbour keeps for a later answer.
const MOST_KEPT: usize = 16;
/// TEIDs of the gateway that are remembered.
const MOST_TEIDS: usize = 64;

/// What a neighbour does with the gateway's requests. Echo Requests are always answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Accept,
    Refuse,
    Silent,
    /// The program answers them.
    Keep,
}

/// An MME, or another gateway.
pub struct Neighbour {
    pub ip: IpAddr,
    pub manner: Manner,
    pub recovery: u8,
    gateway: SocketAddr,
    socket: UdpSocket,
    sequence: u32,
    kept: VecDeque<(Header, Message)>,
    /// The last datagram that was sent.
    last: Vec<u8>,
    /// Numbers that differ: TEIDs, bearers, addresses.
    next: u32,
}

impl Neighbour {
    pub async fn start(ip: IpAddr, gateway: SocketAddr) -> Self {
        let socket = net::udp::bind(SocketAddr::new(ip, PORT)).await.expect("an address of loopback");
        let (kept, last) = Default::default();
        Self { ip, manner: Manner::Accept, recovery: 1, gateway, socket, sequence: 0, kept, last, next: 0 }
    }

    pub fn f_teid(&self, interface: InterfaceType, teid: u32) -> FTeid {
        FTeid::new(interface, teid, self.ip)
    }

    /// Sends a request, command or indication.
    pub fn send(&mut self, teid: u32, message: Message) {
        self.sequence = self.sequence.wrapping_add(1) & 0x7f_ffff;
        let bit = if message.message_type().kind() == Kind::Command { 0x80_0000 } else { 0 };
        let mut octets = Vec::new();
        if message.encode(teid, self.sequence | bit, &mut octets).is_ok() {
            self.send_octets(octets);
        }
    }

    /// Sends octets; a message that names a sender names this one, so that the sender's restart ends what it begins.
    pub fn send_octets(&mut self, octets: Vec<u8>) {
        let Some(octets) = self.signed(octets) else { return };
        let _ = self.socket.try_send_to(&octets, self.gateway);
        self.last = octets;
    }

    fn signed(&self, octets: Vec<u8>) -> Option<Vec<u8>> {
        let Ok((header, mut message)) = Message::decode(&octets) else { return Some(octets) };
        let sender = match &mut message {
            Message::CreateSessionRequest(request) => Some(&mut request.sender_f_teid),
            Message::ModifyBearerRequest(request) => request.sender_f_teid.as_mut(),
            _ => None,
        };
        match sender.filter(|sender| sender.address() != Some(self.ip) || sender.ipv6.is_some()) {
            Some(sender) => *sender = FTeid::new(sender.interface, sender.teid, self.ip),
            None => return Some(octets),
        }
        let mut octets = Vec::new();
        message.encode_with(header, &mut octets).ok().map(|()| octets)
    }

    /// Sends the last datagram again, with another sequence number, and changed octets.
    pub fn send_changed(&mut self, changes: &[u8]) {
        let mut octets = self.last.clone();
        self.sequence = self.sequence.wrapping_add(1) & 0x7f_ffff;
        let length = octets.len();
        if let Some(low) = octets.get_mut(10) {
            *low ^= self.sequence as u8;
        }
        for change in changes.chunks_exact(2) {
            let Some(octet) = octets.get_mut(usize::from(change[0]) % length.max(1)) else { continue };
            *octet = change[1];
        }
        self.send_octets(octets);
    }

    /// Forgets everything, and says so.
    pub fn restart(&mut self) {
        self.recovery = self.recovery.wrapping_add(1);
        self.kept.clear();
        self.next = 0;
        let echo = EchoRequest { recovery: Recovery(self.recovery), ..Default::default() };
        self.send(0, echo.into());
    }

    /// Answers a kept request with the acceptance, or the refusal.
    pub fn answer_kept(&mut self, accept: bool) {
        if let Some((header, request)) = self.kept.pop_front() {
            let manner = if accept { Manner::Accept } else { Manner::Refuse };
            self.answer(header, &request, manner);
        }
    }

    /// Takes what has come; `true` if anything has.
    pub fn drain(&mut self, teids: &mut VecDeque<u32>) -> bool {
        let mut buffer = [0; 4096];
        let mut any = false;
        while let Ok((length, _)) = self.socket.try_recv_from(&mut buffer) {
            any = true;
            let (header, ies, _) = Header::decode(&buffer[..length]).expect("the gateway sends what decodes");
            // A refusal may lack what only an acceptance has.
            let Ok(message) = Message::decode_ies(header.message_type, ies) else { continue };
            for f_teid in f_teids(&message).into_iter().flatten() {
                teids.push_back(f_teid.teid);
            }
            while teids.len() > MOST_TEIDS {
                teids.pop_front();
            }
            if header.message_type == MessageType::EchoRequest {
                self.answer(header, &message, Manner::Accept);
            } else if header.message_type.kind() == Kind::Request {
                match self.manner {
                    Manner::Keep if self.kept.len() < MOST_KEPT => self.kept.push_back((header, message)),
                    manner => self.answer(header, &message, manner),
                }
            }
        }
        any
    }

    fn answer(&mut self, header: Header, request: &Message, manner: Manner) {
        let answer = match manner {
            Manner::Accept => self.acceptance(request),
            Manner::Refuse => header.message_type.rejection(CauseValue::CONTEXT_NOT_FOUND.into()),
            Manner::Silent | Manner::Keep => None,
        };
        let Some(answer) = answer else { return };
        let mut octets = Vec::new();
        let header = Header { message_type: answer.message_type(), piggybacking: false, ..header };
        answer.encode_with(header, &mut octets).expect("an answer fits");
        let _ = self.socket.try_send_to(&octets, self.gateway);
    }

    fn acceptance(&mut self, request: &Message) -> Option<Message> {
        let cause: Cause = CauseValue::ACCEPTED.into();
        if !matches!(request, Message::EchoRequest(_)) {
            self.next += 1;
        }
        let number = self.next;
        Some(match request {
            Message::EchoRequest(_) => {
                EchoResponse { recovery: Recovery(self.recovery), ..Default::default() }.into()
            }
            Message::CreateSessionRequest(request) => CreateSessionResponse {
                cause,
                pgw_f_teid: Some(self.f_teid(InterfaceType::S5S8_PGW_GTPC, number)),
                paa: Some(Paa::Ipv4((0x0a32_0000 | number & 0xffff).into())),
                bearers_created: request
                    .bearers_to_be_created
                    .iter()
                    .map(|bearer| self.created(bearer))
                    .collect(),
                ..Default::default()
            }
            .into(),
            Message::ModifyBearerRequest(_) => ModifyBearerResponse { cause, ..Default::default() }.into(),
            Message::DeleteSessionRequest(_) => DeleteSessionResponse { cause, ..Default::default() }.into(),
            Message::CreateBearerRequest(request) => {
                let accept = |bearer: &BearerInCreateRequest| BearerInCreateResponse {
                    ebi: Ebi(6 + (number % 10) as u8),
                    cause,
                    s1u_enb_f_teid: bearer
                        .s1u_sgw_f_teid
                        .map(|_| self.f_teid(InterfaceType::S1U_ENB, number)),
                    s1u_sgw_f_teid: bearer.s1u_sgw_f_teid,
                    s5s8u_sgw_f_teid: Some(self.f_teid(InterfaceType::S5S8_SGW_GTPU, number)),
                    s5s8u_pgw_f_teid: bearer.s5s8u_pgw_f_teid,
                    ..Default::default()
                };
                let bearers = request.bearers.iter().map(accept).collect();
                CreateBearerResponse { cause, bearers, ..Default::default() }.into()
            }
            Message::UpdateBearerRequest(request) => {
                let accept = |bearer: &BearerInUpdateRequest| BearerResultWithOptions {
                    ebi: bearer.ebi,
                    cause,
                    ..Default::default()
                };
                let bearers = request.bearers.iter().map(accept).collect();
                UpdateBearerResponse { cause, bearers, ..Default::default() }.into()
            }
            Message::DeleteBearerRequest(_) => DeleteBearerResponse { cause, ..Default::default() }.into(),
            Message::DownlinkDataNotification(_) => {
                DownlinkDataNotificationAcknowledge { cause, ..Default::default() }.into()
            }
            _ => return None,
        })
    }

    fn created(&self, bearer: &BearerToBeCreated) -> BearerCreated {
        BearerCreated {
            ebi: bearer.ebi,
            cause: CauseValue::ACCEPTED.into(),
            s5s8u_pgw_f_teid: Some(self.f_teid(InterfaceType::S5S8_PGW_GTPU, self.next)),
            qos: Some(bearer.qos),
            charging_id: Some(ChargingId(self.next)),
            ..Default::default()
        }
    }
}

/// The gateway's TEIDs for control in what it sends.
fn f_teids(message: &Message) -> [Option<FTeid>; 2] {
    match message {
        Message::CreateSessionResponse(response) => [response.sender_f_teid, response.pgw_f_teid],
        Message::CreateSessionRequest(request) => [Some(request.sender_f_teid), None],
        Message::ModifyBearerRequest(request) => [request.sender_f_teid, None],
        _ => [None; 2],
    }
}

/// A UPF that accepts what it is asked, if it is not told to do otherwise.
pub struct Upf {
    ip: IpAddr,
    socket: UdpSocket,
    endpoint: pfcp::endpoint::Endpoint,
    stamp: u32,
    associated: bool,
    /// Its SEID, and the gateway's with its address.
    pub sessions: HashMap<u64, (u64, SocketAddr)>,
    next: u64,
    /// The next establishment is refused with this cause, if it is not 0.
    pub refuse: u8,
    /// It reads nothing.
    pub silent: bool,
}

impl Upf {
    pub async fn start(ip: IpAddr) -> Self {
        let socket = net::udp::bind(SocketAddr::new(ip, 8805)).await.expect("an address of loopback");
        let stamp = 1000;
        let (sessions, associated, refuse, silent) = Default::default();
        let endpoint = endpoint(ip, stamp);
        Self { ip, socket, endpoint, stamp, associated, sessions, next: 1, refuse, silent }
    }

    /// Loses all sessions and its association.
    pub fn restart(&mut self) {
        self.stamp += 1;
        self.endpoint = endpoint(self.ip, self.stamp);
        self.associated = false;
        self.sessions.clear();
    }

    /// Reports something about a session.
    pub fn report(&mut self, which: u8, report: SessionReportRequest) {
        let mut all: Vec<_> = self.sessions.iter().map(|(own, to)| (*own, *to)).collect();
        all.sort_unstable_by_key(|(own, _)| *own);
        if let Some((_, (seid, gateway))) = all.get(usize::from(which) % all.len().max(1)) {
            let now = time::now().into_std();
            let _ = self.endpoint.send_request(now, *gateway, *seid, report);
        }
        self.flush();
    }

    /// Takes what has come; `true` if anything has.
    pub fn drain(&mut self) -> bool {
        let mut buffer = [0; 8192];
        let mut any = false;
        let now = time::now().into_std();
        while let Ok((length, from)) = self.socket.try_recv_from(&mut buffer) {
            any = true;
            if !self.silent {
                self.endpoint.handle_datagram(now, from, &buffer[..length]);
            }
        }
        self.endpoint.handle_timeout(now);
        while let Some(event) = self.endpoint.poll_event() {
            if let pfcp::endpoint::Event::Request { id, seid, message, .. } = event {
                self.answer(id, seid.unwrap_or_default(), message);
            }
        }
        self.flush();
        any
    }

    fn flush(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit() {
            let _ = self.socket.try_send_to(&transmit.payload, transmit.to);
        }
    }

    fn answer(&mut self, id: pfcp::endpoint::RequestId, seid: u64, message: pfcp::Message) {
        use pfcp::{Cause, Message};
        let now = time::now().into_std();
        let node_id = pfcp::NodeId::from(self.ip);
        let known = self.sessions.get(&seid).map(|(gateway, _)| *gateway);
        let cause = match (self.associated, known) {
            (false, _) => Cause::NO_ASSOCIATION,
            (true, None) => Cause::SESSION_NOT_FOUND,
            (true, Some(_)) => Cause::ACCEPTED,
        };
        let to = known.unwrap_or(0);
        let (to, answer): (u64, Message) = match message {
            Message::AssociationSetupRequest(_) => {
                self.associated = true;
                let answer = AssociationSetupResponse {
                    node_id,
                    cause: Cause::ACCEPTED,
                    recovery_time_stamp: pfcp::NtpSeconds(self.stamp),
                    up_function_features: Some(pfcp::UpFunctionFeatures::FTUP),
                    ..Default::default()
                };
                (0, answer.into())
            }
            Message::SessionEstablishmentRequest(request) => {
                let refuse = std::mem::take(&mut self.refuse);
                if Cause(refuse) == Cause::NO_ASSOCIATION {
                    self.associated = false;
                    self.sessions.clear();
                }
                let gateway = request.cp_f_seid.seid;
                let cause = match (self.associated, refuse) {
                    (false, _) => Cause::NO_ASSOCIATION,
                    (true, 0) => Cause::ACCEPTED,
                    (true, refuse) => Cause(refuse),
                };
                let mut answer = SessionEstablishmentResponse { node_id, cause, ..Default::default() };
                if cause.is_accepted() {
                    let own = self.next;
                    self.next += 1;
                    self.sessions.insert(own, (gateway, id.peer));
                    answer.up_f_seid = Some(pfcp::FSeid::new(own, self.ip));
                    answer.created_pdrs = self.created(own, &request.create_pdrs);
                }
                (gateway, answer.into())
            }
            Message::SessionModificationRequest(request) => {
                let created_pdrs = self.created(seid, &request.create_pdrs);
                (to, SessionModificationResponse { cause, created_pdrs, ..Default::default() }.into())
            }
            Message::SessionDeletionRequest(_) => {
                self.sessions.remove(&seid);
                (to, SessionDeletionResponse { cause, ..Default::default() }.into())
            }
            _ => return,
        };
        let _ = self.endpoint.respond(now, id, to, answer);
    }

    /// The tunnels that it chooses.
    fn created(&self, session: u64, pdrs: &[pfcp::CreatePdr]) -> Vec<pfcp::CreatedPdr> {
        let tunnel = |pdr: &pfcp::CreatePdr| {
            let Some(pfcp::FTeid::Choose { id, .. }) = pdr.pdi.f_teid else { return None };
            let teid = session as u32 * 256 + u32::from(id.unwrap_or(0));
            let IpAddr::V4(v4) = self.ip else { return None };
            let f_teid = pfcp::FTeid::Assigned { teid, ipv4: Some(v4), ipv6: None };
            Some(pfcp::CreatedPdr { pdr_id: pdr.pdr_id, f_teid: Some(f_teid), ..Default::default() })
        };
        pdrs.iter().filter_map(tunnel).collect()
    }
}

fn endpoint(ip: IpAddr, stamp: u32) -> pfcp::endpoint::Endpoint {
    let mut config = pfcp::endpoint::Config::new(ip.into(), pfcp::NtpSeconds(stamp), 1);
    config.t1 = time::Duration::from_millis(500);
    pfcp::endpoint::Endpoint::new(config)
}
