//! A user whose P-GW is apart moves to a copy of its S-GW and back (TOP-5): replicator and agent as they are, connected over loopback, and a
//! clone that accepts all and says what it was asked. Real gateways are in `tests/relocation`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gtpv2c::message::*;
use gtpv2c::value::*;
use gtpv2c::{BearerCreated, BearerToBeCreated, BearerToBeModified};
use net::time::{self, Duration};
use net::udp::UdpSocket;
use replication::agent::{self, Agent};
use replication::replicator::{
    Anchor, Config, Outgoing, Place, Protocol, Replicated, Replicator, Scheme, Verdict,
};
use replication::track::Datagram;
use tokio::sync::mpsc;

const UE: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 1);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, 1);
const PAA: Paa = Paa::Ipv4v6(UE, Ipv6Prefix { address: PREFIX, length: 64 });
const PGW: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 5, 0, 1));
const ENB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));
const PATIENCE: Duration = Duration::from_secs(20);
/// TEIDs of MME, S-GW towards MME and P-GW, and P-GW.
const MME_TEID: u32 = 0xa1;
const S11_TEID: u32 = 0xb2;
const S5_TEID: u32 = 0xc3;
const PGW_TEID: u32 = 0xd4;

fn encode(message: impl Into<Message>, teid: u32, sequence: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    message.into().encode(teid, sequence, &mut octets).unwrap();
    octets
}

fn accepted() -> Cause {
    CauseValue::ACCEPTED.into()
}

/// What an S-GW answers; nothing to answers.
fn answer(own: IpAddr, octets: &[u8]) -> Option<Vec<u8>> {
    let (header, message) = Message::decode(octets).unwrap();
    let cause = accepted();
    let answer: Message = match message {
        Message::CreateSessionRequest(request) => CreateSessionResponse {
            cause,
            sender_f_teid: Some(FTeid::new(InterfaceType::S11_S4_SGW, 0xe5, own)),
            bearers_created: request
                .bearers_to_be_created
                .iter()
                .map(|bearer| BearerCreated {
                    ebi: bearer.ebi,
                    cause,
                    s1u_sgw_f_teid: Some(FTeid::new(InterfaceType::S1U_SGW, 0x5e, own)),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }
        .into(),
        Message::ModifyBearerRequest(_) => ModifyBearerResponse { cause, ..Default::default() }.into(),
        Message::ReleaseAccessBearersRequest(_) => {
            ReleaseAccessBearersResponse { cause, ..Default::default() }.into()
        }
        Message::DeleteSessionRequest(_) => DeleteSessionResponse { cause, ..Default::default() }.into(),
        Message::EchoRequest(_) => EchoResponse { recovery: Recovery(1), ..Default::default() }.into(),
        _ => return None,
    };
    Some(encode(answer, MME_TEID, header.sequence))
}

struct World {
    mme: IpAddr,
    sgw: IpAddr,
    replicator: Replicator,
    sent: mpsc::UnboundedReceiver<Outgoing>,
    /// What the clone was asked.
    asked: mpsc::UnboundedReceiver<Message>,
    agent: SocketAddr,
    sequence: u32,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl World {
    async fn start(net: u8) -> World {
        let own = |host: u8| IpAddr::from([127, 78, net, host]);
        let (mme, sgw, edge) = (own(1), own(2), own(3));
        let socket = net::udp::bind_std(SocketAddr::new(edge, 2123), net::udp::Options::default()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = UdpSocket::from_std(socket).unwrap();
        let (ask, asked) = mpsc::unbounded_channel();
        let clone = tokio::spawn(async move {
            let mut datagram = [0; 4096];
            loop {
                let (length, from) = socket.recv_from(&mut datagram).await.unwrap();
                let octets = &datagram[..length];
                let asked = Message::decode(octets).unwrap().1;
                if !matches!(asked, Message::EchoRequest(_)) {
                    let _ = ask.send(asked);
                }
                if let Some(answer) = answer(edge, octets) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        let free = net::tcp::listen(SocketAddr::new(own(4), 0)).await.unwrap().local_addr().unwrap();
        let config = agent::Config { listen: free, control: mme, clone: edge, gtpu: None, window: 64 };
        let agent = tokio::spawn(Agent::bind(config).await.unwrap().serve());
        let (send, sent) = mpsc::unbounded_channel();
        let anchor = |name: &str, control| Anchor { name: name.to_owned(), control, keeps_addresses: false };
        let anchors = vec![anchor("sgw", sgw), anchor("edge", edge)];
        let send = Box::new(move |outgoing| _ = send.send(outgoing));
        let replicator = Replicator::new(Config::default(), anchors, 5, send);
        World { mme, sgw, replicator, sent, asked, agent: free, sequence: 0, tasks: vec![clone, agent] }
    }

    /// One end asks the S-GW, or is asked by it, and the other one answers.
    fn said(&mut self, other: IpAddr, by_other: bool, request: (Message, u32), answer: (Message, u32)) {
        self.sequence += 1;
        for (by_control, (message, teid)) in [(by_other, request), (!by_other, answer)] {
            let octets = encode(message, teid, self.sequence);
            let datagram = Datagram { control: other, by_control, octets: &octets };
            self.replicator.observe(Protocol::S11, self.sgw, datagram);
        }
    }

    /// `is_s5_heard`: what S-GW and P-GW say to each other is captured.
    fn attach(&mut self, is_s5_heard: bool) {
        let (mme, sgw) = (self.mme, self.sgw);
        let bearer = |end| BearerToBeCreated { ebi: Ebi(5), s5s8u_sgw_f_teid: end, ..Default::default() };
        let request = |sender, pgw, bearer| CreateSessionRequest {
            imsi: Some("999700000000001".parse().unwrap()),
            sender_f_teid: sender,
            pgw_f_teid: pgw,
            bearers_to_be_created: vec![bearer],
            ..Default::default()
        };
        let response = |sender| CreateSessionResponse {
            cause: accepted(),
            sender_f_teid: sender,
            pgw_f_teid: Some(FTeid::new(InterfaceType::S5S8_PGW_GTPC, PGW_TEID, PGW)),
            paa: Some(PAA),
            bearers_created: vec![BearerCreated {
                ebi: Ebi(5),
                cause: accepted(),
                s1u_sgw_f_teid: Some(FTeid::new(InterfaceType::S1U_SGW, 0x1111, sgw)),
                s5s8u_pgw_f_teid: Some(FTeid::new(InterfaceType::S5S8_PGW_GTPU, 0x2222, PGW)),
                ..Default::default()
            }],
            ..Default::default()
        };
        if is_s5_heard {
            let end = FTeid::new(InterfaceType::S5S8_SGW_GTPU, 0x3333, sgw);
            let sender = FTeid::new(InterfaceType::S5S8_SGW_GTPC, S5_TEID, sgw);
            let asked = request(sender, None, bearer(Some(end)));
            self.said(PGW, false, (asked.into(), 0), (response(None).into(), S5_TEID));
        }
        let pgw = FTeid::new(InterfaceType::S5S8_PGW_GTPC, 0, PGW);
        let asked = request(FTeid::new(InterfaceType::S11_MME, MME_TEID, mme), Some(pgw), bearer(None));
        let own = FTeid::new(InterfaceType::S11_S4_SGW, S11_TEID, sgw);
        self.said(mme, true, (asked.into(), 0), (response(Some(own)).into(), MME_TEID));
        self.connect(0x77);
    }

    /// The MME names a tunnel of the eNB.
    fn connect(&mut self, teid: u32) {
        let end = FTeid::new(InterfaceType::S1U_ENB, teid, ENB);
        let bearer = BearerToBeModified { ebi: Ebi(5), s1u_enb_f_teid: Some(end), ..Default::default() };
        let request = ModifyBearerRequest { bearers_to_be_modified: vec![bearer], ..Default::default() };
        let response = ModifyBearerResponse { cause: accepted(), ..Default::default() };
        self.said(self.mme, true, (request.into(), S11_TEID), (response.into(), MME_TEID));
    }

    async fn copy(&self, scheme: Scheme) -> Replicated {
        self.replicator.replicate("sgw", "edge", self.agent, None, scheme).await.unwrap()
    }

    fn divert(&self, is_there: bool) {
        let place =
            Place { user: Some(UE.into()), base_station: None, to: "edge".to_owned(), is_whole: true };
        self.replicator.place("sgw", "ue".to_owned(), is_there.then_some(place));
    }

    async fn asked(&mut self) -> Message {
        time::timeout(PATIENCE, self.asked.recv()).await.expect("the clone is asked").unwrap()
    }

    async fn is_asked_nothing(&mut self) {
        let asked = time::timeout(Duration::from_millis(100), self.asked.recv()).await;
        assert!(asked.is_err(), "{asked:?}");
    }

    /// The eNB's tunnel in a Modify Bearer Request that the clone gets.
    async fn told(&mut self) -> u32 {
        let Message::ModifyBearerRequest(request) = self.asked().await else { panic!() };
        request.bearers_to_be_modified[0].s1u_enb_f_teid.unwrap().teid
    }

    async fn relocated(&mut self) {
        let Message::CreateSessionRequest(request) = self.asked().await else { panic!() };
        assert_eq!(request.pgw_f_teid, Some(FTeid::new(InterfaceType::S5S8_PGW_GTPC, PGW_TEID, PGW)));
        assert_eq!(request.paa, Some(PAA));
        assert_eq!(request.bearers_to_be_created[0].s5s8u_pgw_f_teid.unwrap().teid, 0x2222);
        assert!(request.indication.is_none_or(|indication| !indication.contains(Indication::OI)));
    }

    /// What the P-GW is told in the S-GW's name. It accepts when it has heard it twice, and until then the clone has the user.
    async fn told_back(&mut self) {
        let first = time::timeout(PATIENCE, self.sent.recv()).await.unwrap().unwrap();
        self.is_asked_nothing().await;
        let told = time::timeout(PATIENCE, self.sent.recv()).await.unwrap().unwrap();
        assert_eq!(told, first, "it is repeated");
        self.is_asked_nothing().await;
        assert_eq!((told.from, told.to), (SocketAddr::new(self.sgw, 2123), SocketAddr::new(PGW, 2123)));
        let (header, message) = Message::decode(&told.octets).unwrap();
        let Message::ModifyBearerRequest(request) = message else { panic!("{message:?}") };
        assert_eq!((header.teid, request.sender_f_teid.unwrap().teid), (Some(PGW_TEID), S5_TEID));
        assert_eq!(request.bearers_to_be_modified[0].s5s8u_sgw_f_teid.unwrap().teid, 0x3333);
        let response = ModifyBearerResponse { cause: accepted(), ..Default::default() };
        let octets = encode(response, S5_TEID, header.sequence);
        let datagram = Datagram { control: PGW, by_control: true, octets: &octets };
        self.replicator.observe(Protocol::S11, self.sgw, datagram);
        // Once is enough.
        let again = time::timeout(Duration::from_millis(1500), self.sent.recv()).await;
        assert!(again.is_err(), "{again:?}");
    }
}

#[tokio::test]
async fn a_pgw_hears_of_the_sgw_that_serves_the_user() {
    let mut world = World::start(1).await;
    world.attach(true);
    let done = world.copy(Scheme::Selective).await;
    assert_eq!((done.done.len(), &done.refused[..]), (1, &[][..]));
    world.relocated().await;
    world.connect(0x88);
    world.is_asked_nothing().await;
    world.divert(true);
    assert_eq!([world.told().await, world.told().await], [0x77, 0x88]);
    world.connect(0x99);
    assert_eq!(world.told().await, 0x99, "what the MME says goes to the clone at once");
    // Back: the P-GW hears of the first S-GW, and a new copy waits.
    world.divert(false);
    world.told_back().await;
    let Message::DeleteSessionRequest(delete) = world.asked().await else { panic!() };
    assert_eq!((delete.indication, delete.linked_ebi), (Some(Indication::SI), None), "not at the P-GW");
    world.relocated().await;
    world.is_asked_nothing().await;
    world.divert(true);
    assert_eq!(world.told().await, 0x99);
    // Whoever removes the copy that serves has the P-GW told, too.
    let replicator = world.replicator.clone();
    let removing = tokio::spawn(async move { replicator.remove("sgw", "edge", None).await });
    world.told_back().await;
    let Message::DeleteSessionRequest(_) = world.asked().await else { panic!() };
    assert_eq!(removing.await.unwrap().unwrap(), 1);
}

/// A diversion may name the user by its second address.
#[tokio::test]
async fn a_pgw_hears_of_a_user_who_is_diverted_by_its_second_address() {
    let mut world = World::start(8).await;
    world.attach(true);
    world.copy(Scheme::Selective).await;
    world.relocated().await;
    let place =
        Place { user: Some(PREFIX.into()), base_station: None, to: "edge".to_owned(), is_whole: true };
    world.replicator.place("sgw", "ue".to_owned(), Some(place));
    assert_eq!(world.told().await, 0x77);
}

/// Another clone serves the user: the first one has it until the P-GW has heard of the other.
#[tokio::test]
async fn a_copy_stays_while_another_clone_takes_over() {
    let mut world = World::start(6).await;
    world.attach(true);
    world.copy(Scheme::Selective).await;
    world.relocated().await;
    world.divert(true);
    assert_eq!(world.told().await, 0x77);
    let other = Place { user: Some(UE.into()), base_station: None, to: "other".to_owned(), is_whole: true };
    world.replicator.place("sgw", "ue".to_owned(), Some(other.clone()));
    // Twice as long as a gateway waits for a P-GW before it asks again.
    let early = time::timeout(Duration::from_secs(6), world.asked.recv()).await;
    assert!(early.is_err(), "{early:?}");
    let Message::DeleteSessionRequest(_) = world.asked().await else { panic!() };
    world.relocated().await;
    // Back before that: it has to tell the P-GW anew, so it is made anew.
    world.divert(true);
    assert_eq!(world.told().await, 0x77);
    world.replicator.place("sgw", "ue".to_owned(), Some(other));
    world.divert(true);
    let Message::DeleteSessionRequest(_) = world.asked().await else { panic!() };
    world.relocated().await;
    assert_eq!(world.told().await, 0x77);
    assert!(world.sent.try_recv().is_err());
}

/// The MME ends the session while the user is at the clone: the clone has the P-GW end it.
#[tokio::test]
async fn the_clone_that_serves_ends_the_session_at_the_pgw() {
    let mut world = World::start(2).await;
    world.attach(true);
    world.divert(true);
    world.copy(Scheme::Selective).await;
    world.relocated().await;
    assert_eq!(world.told().await, 0x77, "it is diverted already");
    let request = DeleteSessionRequest {
        linked_ebi: Some(Ebi(5)),
        indication: Some(Indication::OI),
        ..Default::default()
    };
    // The P-GW has heard of another S-GW, and refuses the first one.
    let cause = Cause { from_remote: true, ..CauseValue::INVALID_PEER.into() };
    let response = DeleteSessionResponse { cause, ..Default::default() };
    world.said(world.mme, true, (request.into(), S11_TEID), (response.into(), MME_TEID));
    let Message::DeleteSessionRequest(delete) = world.asked().await else { panic!() };
    assert_eq!((delete.indication, delete.linked_ebi), (Some(Indication::OI), Some(Ebi(5))));
    world.is_asked_nothing().await;
    assert_eq!(world.replicator.replicas()[0].3, 0);
    assert!(world.sent.try_recv().is_err());
}

/// Never a second attach: without a way back, and by naïve replay, there is no copy.
#[tokio::test]
async fn what_would_be_a_second_attach_is_refused() {
    for (net, is_s5_heard, scheme) in [(3, false, Scheme::Selective), (4, true, Scheme::Naive)] {
        let mut world = World::start(net).await;
        world.attach(is_s5_heard);
        let listed = world.replicator.sessions("sgw", None, 10).unwrap();
        assert_eq!(listed[0].complete, is_s5_heard);
        let done = world.copy(scheme).await;
        assert_eq!(done.done.len(), 0);
        assert!(done.refused[0].1.contains("P-GW is apart"), "{:?}", done.refused);
        world.is_asked_nothing().await;
    }
}

/// What S-GW and P-GW say to each other passes while users are elsewhere.
#[tokio::test]
async fn s5_passes() {
    let mut world = World::start(5).await;
    world.attach(true);
    world.divert(true);
    let octets = encode(EchoRequest { recovery: Recovery(1), ..Default::default() }, 0, 70);
    let ends = (SocketAddr::new(world.sgw, 2123), SocketAddr::new(PGW, 2123));
    assert_eq!(world.replicator.intercept(Protocol::S11, ends.0, ends.1, &octets), Verdict::Pass);
}
