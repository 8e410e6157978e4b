//! A gateway that a test scripts message by message: GTPv2-C over UDP, and a socket as its end of S1-U.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gtpv2c::endpoint::{Config as EndpointConfig, Endpoint, Event, Handle, PORT, RequestId};
use gtpv2c::message::*;
use gtpv2c::*;
use lte::{Config, Enb, Mme, Ue, UeConfig};
use nas::{Pco, PcoItem};
use net::time;
use net::udp::UdpSocket;
use packet::gtpu::{self, Signalling};
use packet::{ipv4, protocol, transport};

pub const LIMIT: Duration = Duration::from_secs(5);
pub const UE_IPV4: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
/// Interface identifier of UEs.
pub const UE_IPV6: &str = "2001:db8:1:2::77";
/// The gateway's TEIDs: of S11, and of the default bearer.
pub const CONTROL: u32 = 0x1100;
pub const UPLINK: u32 = 0x2200;

/// An address of the test with third octet `host`.
pub fn address(host: u8, last: u8) -> IpAddr {
    IpAddr::from([127, 11, host, last])
}

/// Gateway, MME, two eNBs and a UE at the first one.
pub struct World {
    pub gateway: Gateway,
    pub mme: Mme,
    pub ue: Ue,
    pub enbs: [Enb; 2],
}

pub fn config(host: u8) -> Config {
    let mut config = Config::default();
    config.mme.s11 = SocketAddr::new(address(host, 3), PORT);
    config.mme.t3_response = Duration::from_millis(200);
    config.mme.restart_counter = Some(7);
    config.enbs = vec![address(host, 4), address(host, 5)];
    config.ue.gateway = SocketAddr::new(address(host, 1), PORT);
    config.ue.end_marker_wait = Duration::from_millis(300);
    config
}

pub async fn world(host: u8, change: impl FnOnce(&mut Config)) -> World {
    let mut config = config(host);
    change(&mut config);
    let gateway = Gateway::start(host, 1).await;
    let mme = Mme::start(&config.mme).await.unwrap();
    let enb = |id, at: usize| Enb::start(id, config.enbs[at]).unwrap();
    let enbs = [enb(1, 0), enb(2, 1)];
    let ue = new_ue(config.ue, &mme, &enbs[0]);
    World { gateway, mme, ue, enbs }
}

pub fn new_ue(config: UeConfig, mme: &Mme, enb: &Enb) -> Ue {
    Ue::new(Arc::new(config), 0, mme.clone(), enb.clone()).unwrap()
}

/// A world whose UE has attached.
pub async fn attached(host: u8, change: impl FnOnce(&mut Config)) -> (World, Attachment) {
    let mut world = world(host, change).await;
    let (outcome, attachment) = tokio::join!(world.ue.attach(), world.gateway.accept_attach());
    outcome.unwrap();
    (world, attachment)
}

/// What the gateway knows of an attached UE.
#[derive(Debug, Clone)]
pub struct Attachment {
    pub create: CreateSessionRequest,
    /// The MME's end of S11.
    pub mme: u32,
    /// The eNB's end of the default bearer.
    pub enb: FTeid,
}

pub struct Gateway {
    host: u8,
    socket: UdpSocket,
    endpoint: Endpoint,
    pub s1u: UdpSocket,
    /// How many datagrams of S11 are to be lost.
    pub lose: u32,
}

impl Gateway {
    pub async fn start(host: u8, restart_counter: u8) -> Self {
        let socket = net::udp::bind(SocketAddr::new(address(host, 1), PORT)).await.unwrap();
        let s1u = net::udp::bind(SocketAddr::new(address(host, 2), gtpu::PORT)).await.unwrap();
        Self { host, socket, endpoint: endpoint(restart_counter), s1u, lose: 0 }
    }

    /// Forgets everything, as a restart does.
    pub fn restart(&mut self, restart_counter: u8) {
        self.endpoint = endpoint(restart_counter);
    }

    fn flush(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit() {
            self.socket.try_send_to(&transmit.payload, transmit.to).unwrap();
        }
    }

    /// The next event of the endpoint; Echo Requests are answered meanwhile.
    pub async fn event(&mut self) -> Event {
        time::timeout(LIMIT, self.event_without_limit()).await.expect("an event in time")
    }

    /// As [`Gateway::event`], for a gateway that runs until its task is aborted.
    pub async fn event_without_limit(&mut self) -> Event {
        let mut buffer = [0; 4096];
        loop {
            self.flush();
            if let Some(event) = self.endpoint.poll_event() {
                return event;
            }
            let (length, from) = self.socket.recv_from(&mut buffer).await.unwrap();
            if self.lose > 0 {
                self.lose -= 1;
            } else {
                self.endpoint.handle_datagram(time::now().into_std(), from, &buffer[..length]);
            }
        }
    }

    /// The next request of the MME.
    pub async fn request(&mut self) -> (RequestId, u32, Message) {
        match self.event().await {
            Event::Request { id, teid, message, .. } => (id, teid, message),
            other => panic!("{other:?}"),
        }
    }

    pub fn respond(&mut self, id: RequestId, teid: u32, message: impl Into<Message>) {
        self.endpoint.respond(time::now().into_std(), id, teid, message).unwrap();
        self.flush();
    }

    pub fn reject(&mut self, id: RequestId, teid: u32, cause: CauseValue) {
        self.endpoint.reject(time::now().into_std(), id, teid, cause).unwrap();
        self.flush();
    }

    /// Sends a request to the MME.
    pub fn send(&mut self, teid: u32, message: impl Into<Message>) -> Handle {
        let mme = SocketAddr::new(address(self.host, 3), PORT);
        let handle = self.endpoint.send_request(time::now().into_std(), mme, teid, message).unwrap();
        self.flush();
        handle
    }

    /// Sends the request that a command asks for.
    pub fn trigger(&mut self, command: RequestId, teid: u32, message: impl Into<Message>) -> Handle {
        let (now, mme) = (time::now().into_std(), SocketAddr::new(address(self.host, 3), PORT));
        let handle = self.endpoint.send_triggered(now, command, mme, teid, message).unwrap();
        self.flush();
        handle
    }

    /// The answer to a request of the gateway.
    pub async fn answer(&mut self, request: Handle) -> Message {
        match self.event().await {
            Event::Response { handle, teid, message, .. } if handle == request => {
                assert!(teid == CONTROL || teid == 0, "{teid:#x}");
                message
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn s1u_f_teid(&self, teid: u32) -> FTeid {
        FTeid::new(InterfaceType::S1U_SGW, teid, address(self.host, 2))
    }

    /// A Create Session Response that accepts what was asked.
    pub fn created(&self, asked: &CreateSessionRequest) -> CreateSessionResponse {
        let prefix = Ipv6Prefix { address: UE_IPV6.parse().unwrap(), length: 64 };
        let paa = match asked.pdn_type.unwrap_or(PdnType::Ipv4) {
            PdnType::Ipv6 => Paa::Ipv6(prefix),
            PdnType::Ipv4v6 => Paa::Ipv4v6(UE_IPV4, prefix),
            _ => Paa::Ipv4(
                asked.paa.and_then(Paa::ipv4).filter(|asked| !asked.is_unspecified()).unwrap_or(UE_IPV4),
            ),
        };
        let options = vec![PcoItem::DnsIpv4([9, 9, 9, 9].into()), PcoItem::Ipv4Mtu(1380)];
        let control = FTeid::new(InterfaceType::S11_S4_SGW, CONTROL, address(self.host, 1));
        let bearer = |(number, asked): (u32, &BearerToBeCreated)| BearerCreated {
            ebi: asked.ebi,
            cause: CauseValue::ACCEPTED.into(),
            s1u_sgw_f_teid: Some(self.s1u_f_teid(UPLINK + number)),
            s5s8u_pgw_f_teid: asked.s5s8u_pgw_f_teid.or(Some(self.pgw_f_teid(false))),
            ..Default::default()
        };
        CreateSessionResponse {
            cause: CauseValue::ACCEPTED.into(),
            sender_f_teid: Some(control),
            paa: Some(paa),
            apn_restriction: Some(ApnRestriction(0)),
            pco: Some(Octets(Pco { items: options }.encode())),
            pgw_f_teid: Some(self.pgw_f_teid(true)),
            bearers_created: (0..).zip(&asked.bearers_to_be_created).map(bearer).collect(),
            ..Default::default()
        }
    }

    /// The P-GW's end of S5: of GTP-C, or of the default bearer.
    pub fn pgw_f_teid(&self, control: bool) -> FTeid {
        let (interface, teid) = match control {
            true => (InterfaceType::S5S8_PGW_GTPC, 0x5500),
            false => (InterfaceType::S5S8_PGW_GTPU, 0x5501),
        };
        FTeid::new(interface, teid, [127, 11, 255, 1].into())
    }

    pub async fn create_session(&mut self) -> (RequestId, CreateSessionRequest) {
        match self.request().await {
            (id, 0, Message::CreateSessionRequest(request)) => (id, request),
            other => panic!("{other:?}"),
        }
    }

    /// Accepts the bearers of a Modify Bearer Request and returns the eNB's ends.
    pub async fn accept_modify(&mut self, mme: u32) -> Vec<(Ebi, FTeid)> {
        self.accept_modify_after(mme, async |_, _| {}).await
    }

    /// As [`Gateway::accept_modify`]; `first` is done when the eNB's ends are known, before the answer.
    pub async fn accept_modify_after(
        &mut self,
        mme: u32,
        first: impl AsyncFnOnce(&Self, &[(Ebi, FTeid)]),
    ) -> Vec<(Ebi, FTeid)> {
        let (id, teid, Message::ModifyBearerRequest(request)) = self.request().await else { panic!() };
        assert_eq!(teid, CONTROL);
        let modified = |asked: &BearerToBeModified| BearerModified {
            ebi: asked.ebi,
            cause: CauseValue::ACCEPTED.into(),
            ..Default::default()
        };
        let bearers_modified = request.bearers_to_be_modified.iter().map(modified).collect();
        let ends = request.bearers_to_be_modified.iter();
        let ends: Vec<_> = ends.map(|bearer| (bearer.ebi, bearer.s1u_enb_f_teid.unwrap())).collect();
        first(self, &ends).await;
        let cause = CauseValue::ACCEPTED.into();
        self.respond(id, mme, ModifyBearerResponse { cause, bearers_modified, ..Default::default() });
        ends
    }

    pub async fn accept_attach(&mut self) -> Attachment {
        let (id, create) = self.create_session().await;
        let mme = create.sender_f_teid.teid;
        let created = self.created(&create);
        self.respond(id, mme, created);
        let ends = self.accept_modify(mme).await;
        let [(Ebi(5), enb)] = ends[..] else { panic!("{ends:?}") };
        Attachment { create, mme, enb }
    }

    pub async fn accept_release(&mut self, mme: u32) {
        let (id, CONTROL, Message::ReleaseAccessBearersRequest(_)) = self.request().await else { panic!() };
        let cause = CauseValue::ACCEPTED.into();
        self.respond(id, mme, ReleaseAccessBearersResponse { cause, ..Default::default() });
    }

    pub async fn accept_delete(&mut self, mme: u32) {
        let (id, CONTROL, Message::DeleteSessionRequest(request)) = self.request().await else { panic!() };
        assert_eq!(request.linked_ebi, Some(Ebi(5)));
        assert!(request.indication.unwrap().contains(Indication::OI));
        let cause = CauseValue::ACCEPTED.into();
        self.respond(id, mme, DeleteSessionResponse { cause, ..Default::default() });
    }

    /// The next user packet from an eNB that is `wanted`, with its TEID. None has a PDU Session Container.
    pub async fn uplink_where(&self, wanted: impl Fn(&[u8]) -> bool) -> (u32, Vec<u8>) {
        time::timeout(LIMIT, async {
            let mut buffer = [0; 4096];
            loop {
                let (length, _) = self.s1u.recv_from(&mut buffer).await.unwrap();
                let packet = gtpu::Packet::new(&buffer[..length]).unwrap();
                assert_eq!(packet.message_type(), gtpu::message_type::G_PDU);
                assert_eq!((packet.pdu_session(), packet.header_len()), (None, 8));
                if wanted(packet.payload()) {
                    return (packet.teid(), packet.payload().to_vec());
                }
            }
        })
        .await
        .expect("a packet in time")
    }

    pub async fn uplink(&self) -> (u32, Vec<u8>) {
        self.uplink_where(|_| true).await
    }

    /// Sends a user packet to an eNB.
    pub fn downlink(&self, enb: FTeid, packet: &[u8]) {
        self.to_enb(enb, &gtpu::build_gpdu(enb.teid, None, packet).unwrap());
    }

    pub fn end_marker(&self, enb: FTeid) {
        self.to_enb(enb, &Signalling::EndMarker { teid: enb.teid, pdu_session: None }.build());
    }

    fn to_enb(&self, enb: FTeid, message: &[u8]) {
        let to = SocketAddr::new(enb.address().unwrap(), gtpu::PORT);
        self.s1u.try_send_to(message, to).unwrap();
    }
}

fn endpoint(restart_counter: u8) -> Endpoint {
    Endpoint::new(EndpointConfig::new(Recovery(restart_counter), 1))
}

/// A UDP packet between two addresses and ports.
pub fn udp(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let datagram = transport::build_udp((from.0.into(), from.1), (to.0.into(), to.1), payload).unwrap();
    ipv4::Header::new(from.0, to.0, protocol::UDP).build(&datagram).unwrap()
}

/// A packet of the UE to a port of the data network.
pub fn to_port(port: u16) -> Vec<u8> {
    udp((UE_IPV4, 4000), ([198, 51, 100, 7].into(), port), b"up")
}
