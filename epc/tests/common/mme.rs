//! An MME whose part each test plays, step by step. The end-to-end tests use it as well.
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use gtpv2c::endpoint::{Endpoint, Event, Failure, Handle, RequestId};
use gtpv2c::message::*;
use gtpv2c::value::*;
use gtpv2c::{BearerToBeCreated, BearerToBeModified};
use net::time;
use net::udp::UdpSocket;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// An MME.
pub struct Mme {
    pub ip: IpAddr,
    /// The gateway to which it sends.
    pub gateway: SocketAddr,
    /// Its eNBs' address on S1-U.
    enb: IpAddr,
    socket: UdpSocket,
    endpoint: Endpoint,
    events: std::collections::VecDeque<Event>,
}

impl Mme {
    pub async fn start(ip: IpAddr, gateway: SocketAddr, enb: IpAddr, restart_counter: u8) -> Self {
        let socket = net::udp::bind(SocketAddr::new(ip, 2123)).await.unwrap();
        Self { ip, gateway, enb, socket, endpoint: endpoint(restart_counter), events: Default::default() }
    }

    /// Forgets everything, and has another restart counter from now on.
    pub fn restart(&mut self, counter: u8) {
        self.endpoint = endpoint(counter);
        self.events.clear();
    }

    pub fn f_teid(&self, teid: u32) -> FTeid {
        FTeid::new(InterfaceType::S11_MME, teid, self.ip)
    }

    fn flush(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit() {
            let _ = self.socket.try_send_to(&transmit.payload, transmit.to);
        }
        while let Some(event) = self.endpoint.poll_event() {
            self.events.push_back(event);
        }
    }

    /// Receives and repeats until there is an event; `None` when none comes in `patience`.
    pub async fn event_within(&mut self, patience: Duration) -> Option<Event> {
        let deadline = time::now() + patience;
        let mut buffer = vec![0u8; 65_536];
        loop {
            self.flush();
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if time::now() >= deadline {
                return None;
            }
            let due = self.endpoint.poll_timeout().map_or(deadline, time::Instant::from_std).min(deadline);
            tokio::select! {
                received = self.socket.recv_from(&mut buffer) => {
                    let (length, from) = received.unwrap();
                    self.endpoint.handle_datagram(time::now().into_std(), from, &buffer[..length]);
                }
                () = time::sleep_until(due) => self.endpoint.handle_timeout(time::now().into_std()),
            }
        }
    }

    pub async fn event(&mut self) -> Event {
        self.event_within(PATIENCE).await.expect("an event")
    }

    pub fn send(&mut self, teid: u32, message: impl Into<Message>) -> Handle {
        let to = self.gateway;
        let handle = self.endpoint.send_request(time::now().into_std(), to, teid, message).unwrap();
        self.flush();
        handle
    }

    /// Raw octets.
    pub fn send_octets(&mut self, octets: &[u8]) {
        let _ = self.socket.try_send_to(octets, self.gateway);
    }

    /// Sends a request, and waits for its answer. Other events wait.
    pub async fn ask(&mut self, teid: u32, message: impl Into<Message>) -> Result<(u32, Message), Failure> {
        let wanted = self.send(teid, message);
        let mut others = Vec::new();
        let result = loop {
            match self.event().await {
                Event::Response { handle, teid, message, .. } if handle == wanted => {
                    break Ok((teid, message));
                }
                Event::Failed { handle, failure, .. } if handle == wanted => break Err(failure),
                other => others.push(other),
            }
        };
        self.events.extend(others);
        result
    }

    /// The next request of the gateway.
    pub async fn request(&mut self) -> (RequestId, u32, Message) {
        self.request_within(PATIENCE).await.expect("a request")
    }

    pub async fn request_within(&mut self, patience: Duration) -> Option<(RequestId, u32, Message)> {
        let deadline = time::now() + patience;
        loop {
            let event = self.event_within(deadline.saturating_duration_since(time::now())).await?;
            // Others are answers nobody waits for.
            if let Event::Request { id, teid, message, .. } = event {
                return Some((id, teid, message));
            }
        }
    }

    pub fn respond(&mut self, id: RequestId, teid: u32, message: impl Into<Message>) {
        self.endpoint.respond(time::now().into_std(), id, teid, message).unwrap();
        self.flush();
    }

    pub fn indicate(&mut self, teid: u32, message: impl Into<Message>) {
        self.endpoint.send_indication(self.gateway, teid, message).unwrap();
        self.flush();
    }

    /// Attaches a UE with the default bearer 5, and an eNB's tunnel. Returns the gateway's TEID and its answer.
    pub async fn attach(&mut self, imsi: &str, teid: u32) -> (u32, CreateSessionResponse) {
        let response = self.create(self.create_request(imsi, teid)).await;
        assert_eq!(response.cause.value, CauseValue::ACCEPTED, "{response:?}");
        let gateway = response.sender_f_teid.unwrap().teid;
        let modified = self.connect(gateway, 5, teid).await;
        assert_eq!(modified.cause.value, CauseValue::ACCEPTED, "{modified:?}");
        (gateway, response)
    }

    pub fn create_request(&self, imsi: &str, teid: u32) -> CreateSessionRequest {
        CreateSessionRequest {
            imsi: Some(imsi.parse().unwrap()),
            rat_type: RatType::EUTRAN,
            sender_f_teid: self.f_teid(teid),
            apn: "internet.mnc070.mcc999.gprs".into(),
            pdn_type: Some(PdnType::Ipv4),
            paa: Some(Paa::Ipv4([0; 4].into())),
            apn_ambr: Some(Ambr { uplink_kbps: 50_000, downlink_kbps: 100_000 }),
            bearers_to_be_created: vec![default_bearer(5)],
            ..Default::default()
        }
    }

    pub async fn create(&mut self, request: CreateSessionRequest) -> CreateSessionResponse {
        self.create_at(0, request).await
    }

    pub async fn create_at(&mut self, teid: u32, request: CreateSessionRequest) -> CreateSessionResponse {
        match self.ask(teid, request).await {
            Ok((_, Message::CreateSessionResponse(response))) => response,
            Err(Failure::Refused(cause)) => CreateSessionResponse { cause, ..Default::default() },
            other => panic!("{other:?}"),
        }
    }

    /// Names the eNB's tunnel of a bearer.
    pub async fn connect(&mut self, gateway: u32, ebi: u8, enb_teid: u32) -> ModifyBearerResponse {
        let enb = FTeid::new(InterfaceType::S1U_ENB, enb_teid, self.enb);
        self.modify(gateway, modify_request(ebi, enb)).await
    }

    pub async fn modify(&mut self, gateway: u32, request: ModifyBearerRequest) -> ModifyBearerResponse {
        match self.ask(gateway, request).await {
            Ok((_, Message::ModifyBearerResponse(response))) => response,
            Err(Failure::Refused(cause)) => ModifyBearerResponse { cause, ..Default::default() },
            other => panic!("{other:?}"),
        }
    }

    pub async fn release(&mut self, gateway: u32) -> CauseValue {
        match self.ask(gateway, ReleaseAccessBearersRequest::default()).await {
            Ok((_, Message::ReleaseAccessBearersResponse(response))) => response.cause.value,
            Err(Failure::Refused(cause)) => cause.value,
            other => panic!("{other:?}"),
        }
    }

    /// Detaches.
    pub async fn delete(&mut self, gateway: u32, linked: u8) -> CauseValue {
        self.delete_as(gateway, linked, Some(Indication::OI)).await
    }

    pub async fn delete_as(
        &mut self,
        gateway: u32,
        linked: u8,
        indication: Option<Indication>,
    ) -> CauseValue {
        let linked_ebi = Some(Ebi(linked));
        let request = DeleteSessionRequest { linked_ebi, indication, ..Default::default() };
        match self.ask(gateway, request).await {
            Ok((_, Message::DeleteSessionResponse(response))) => response.cause.value,
            Err(Failure::Refused(cause)) => cause.value,
            other => panic!("{other:?}"),
        }
    }
}

pub fn modify_request(ebi: u8, enb: FTeid) -> ModifyBearerRequest {
    let bearer = BearerToBeModified { ebi: Ebi(ebi), s1u_enb_f_teid: Some(enb), ..Default::default() };
    ModifyBearerRequest { bearers_to_be_modified: vec![bearer], ..Default::default() }
}

pub fn default_bearer(ebi: u8) -> BearerToBeCreated {
    let qos = BearerQos {
        arp: Arp { pci: true, pl: 8, pvi: false },
        flow: FlowQos { qci: 9, ..Default::default() },
    };
    BearerToBeCreated { ebi: Ebi(ebi), qos, ..Default::default() }
}

fn endpoint(restart_counter: u8) -> Endpoint {
    let mut config = gtpv2c::endpoint::Config::new(Recovery(restart_counter), nf::random::u64());
    config.t3_response = Duration::from_millis(500);
    Endpoint::new(config)
}
