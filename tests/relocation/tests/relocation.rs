//! An S-GW whose P-GW is apart is copied as by a change of S-GW (TOP-5): real gateways over loopback, a scripted MME, and what they say to each
//! other as a raw socket hears it. A message in somebody's name leaves by a raw socket as well.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

#[path = "../../../epc/tests/common/mod.rs"]
mod common;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;

use common::*;
use epc::Node;
use gtpv2c::BearerToBeModified;
use gtpv2c::message::*;
use gtpv2c::value::*;
use net::time;
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn};
use replication::clone::{Clone, Event, Limits, Script};
use replication::s11::Tracker;
use replication::s11::clone::S11;
use replication::s11::relocation;
use replication::track::{Datagram, Effect};

const PGW: u8 = 5;
const SGW: u8 = 15;
const EDGE: u8 = 25;
/// TEIDs that the scripted UPF gives, by CHOOSE ID: S5/S8-U of an S-GW.
const S5: u32 = 32;
/// The transaction of what is said in the S-GW's name.
const OURS: [u8; 3] = [0x50, 0, 1];

/// Without them a test says nothing, which must not pass for success where all is to be tested.
fn without_raw_sockets() {
    assert!(std::env::var_os("CI").is_none(), "the test needs raw sockets");
    eprintln!("needs raw sockets");
}

/// Hears GTP-C between any two, and speaks in anybody's name.
struct Wire {
    hears: OwnedFd,
    speaks: OwnedFd,
}

impl Wire {
    /// `None`: it is not permitted.
    fn open() -> Option<Wire> {
        let raw = |protocol| {
            socket::socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_NONBLOCK, protocol).ok()
        };
        Some(Wire { hears: raw(SockProtocol::Udp)?, speaks: raw(SockProtocol::Raw)? })
    }

    fn say(&self, from: SocketAddr, to: SocketAddr, octets: &[u8]) {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!() };
        let datagram =
            packet::transport::build_udp((from.ip(), from.port()), (to.ip(), to.port()), octets).unwrap();
        let header = packet::ipv4::Header::new(source, destination, packet::protocol::UDP);
        let packet = header.build(&datagram).unwrap();
        let end = SockaddrIn::from(std::net::SocketAddrV4::new(destination, 0));
        socket::sendto(self.speaks.as_raw_fd(), &packet, &end, MsgFlags::empty()).unwrap();
    }

    /// The next datagram; `None` if none comes in a while.
    async fn next(&self) -> Option<(SocketAddr, SocketAddr, Vec<u8>)> {
        let mut buffer = vec![0; 65_536];
        let deadline = time::now() + Duration::from_millis(300);
        loop {
            match socket::recv(self.hears.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => {
                    let Ok(packet) = packet::ipv4::Packet::new(&buffer[..length]) else { continue };
                    let Ok(udp) = packet::transport::Udp::new(packet.payload()) else { continue };
                    if udp.destination_port() == 2123 {
                        let from = SocketAddr::new(packet.source().into(), udp.source_port());
                        let to = SocketAddr::new(packet.destination().into(), udp.destination_port());
                        return Some((from, to, udp.payload().to_vec()));
                    }
                }
                Err(_) => {
                    let left = deadline.saturating_duration_since(time::now());
                    time::timeout(left, net::readable(self.hears.as_fd())).await.ok()?.unwrap();
                }
            }
        }
    }
}

struct World {
    wire: Wire,
    pgw: Core,
    sgw: Core,
    edge: Core,
    mme: Mme,
    tracker: Tracker,
    clone: Clone<S11>,
    effects: Vec<Effect>,
}

impl World {
    async fn start() -> Option<World> {
        let wire = Wire::open()?;
        let network = Network::new();
        let pgw = Core::site(network, Node::Pgw, PGW, |_| {}).await;
        let sgw = Core::site(network, Node::Sgw, SGW, |_| {}).await;
        let edge = Core::site(network, Node::Sgw, EDGE, |_| {}).await;
        let mme = sgw.mme(6).await;
        let side = S11 { restart_counter: 1, original: network.ip(SGW), clone: network.ip(EDGE) };
        let clone = Clone::new(side, Limits::default(), 0x30_0000);
        let tracker = Tracker::new(network.ip(SGW), 1000);
        Some(World { wire, pgw, sgw, edge, mme, tracker, clone, effects: Vec::new() })
    }

    fn ip(&self, host: u8) -> IpAddr {
        self.pgw.network.ip(host)
    }

    /// What was said is heard, and what the clone is to be told is said, until it is quiet.
    async fn settle(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let (mme, sgw, edge) = (self.mme.ip, self.ip(SGW), self.ip(EDGE));
        loop {
            while let Some(octets) = self.clone.poll_transmit() {
                self.wire.say(SocketAddr::new(mme, 2123), SocketAddr::new(edge, 2123), &octets);
            }
            events.extend(std::iter::from_fn(|| self.clone.poll_event()));
            let Some((from, to, octets)) = self.wire.next().await else { return events };
            let now = time::now_std();
            if (from.ip(), to.ip()) == (edge, mme) {
                self.clone.handle_datagram(now, &octets);
            } else if from.ip() == sgw && octets.get(8..11) == Some(&OURS) {
                // What is sent in somebody's name is not captured.
            } else if from.ip() == sgw || to.ip() == sgw {
                let by_control = to.ip() == sgw;
                let control = if by_control { from.ip() } else { to.ip() };
                let datagram = Datagram { control, by_control, octets: &octets };
                self.tracker.observe(now, datagram, &mut self.effects);
            }
        }
    }

    async fn attach(&mut self) -> u32 {
        let pgw = FTeid::new(InterfaceType::S5S8_PGW_GTPC, 0, self.ip(PGW));
        let request = CreateSessionRequest { pgw_f_teid: Some(pgw), ..self.mme.create_request(IMSI, 1) };
        let created = self.mme.create(request).await;
        assert_eq!(created.cause.value, CauseValue::ACCEPTED, "{created:?}");
        let teid = created.sender_f_teid.unwrap().teid;
        assert_eq!(self.mme.connect(teid, 5, 0x77).await.cause.value, CauseValue::ACCEPTED);
        self.settle().await;
        self.pgw.upf.asked();
        teid
    }

    async fn copy(&mut self) {
        let session = self.tracker.session(0).unwrap();
        assert!(relocation::is_apart(&session, self.ip(SGW)));
        let script = Script { control: session.control, requests: session.requests };
        self.clone.make(time::now_std(), 0, script);
        let events = self.settle().await;
        let [Event::Made(0, made)] = &events[..] else { panic!("{events:?}") };
        let original: Vec<_> = session.bearers.iter().map(|bearer| (bearer.id, bearer.ipv4)).collect();
        let copied: Vec<_> = made.bearers.iter().map(|bearer| (bearer.id, bearer.ipv4)).collect();
        assert_eq!(original, copied, "the UE's address is the P-GW's");
        assert_eq!((self.edge.upf.sessions(), self.pgw.upf.sessions()), (1, 1), "no second attach");
    }

    fn of_s5(&self, core: &Core) -> u32 {
        core.upf.only_session() as u32 * 256 + S5
    }
}

/// The tunnel into which the downlink FAR of a default bearer forwards, and whether the former far end gets an End Marker.
fn downlink(asked: &[Asked]) -> Option<(u32, bool)> {
    asked.iter().rev().find_map(|asked| {
        let Asked::Modify(_, request) = asked else { return None };
        let far = request.update_fars.iter().find(|update| update.far_id.0 == 16)?;
        let to = far.update_forwarding_parameters.as_ref()?;
        Some((to.outer_header_creation?.teid?, to.sm_req_flags == Some(pfcp::SmReqFlags::SNDEM)))
    })
}

#[tokio::test]
async fn an_sgw_is_copied_as_by_a_change_of_sgw_and_the_ue_comes_back() {
    let Some(mut world) = World::start().await else { return without_raw_sockets() };
    let teid = world.attach().await;
    world.copy().await;
    assert!(world.pgw.upf.asked().is_empty(), "the P-GW does not know of the copy");
    // The eNB changes at the first S-GW; the copy hears of it when packets go there.
    world.mme.connect(teid, 5, 0x88).await;
    world.settle().await;
    let changes = world.effects.drain(..).collect::<Vec<_>>();
    let Some(Effect::Changed { number: 0, request }) = changes.last() else { panic!("{changes:?}") };
    world.clone.later(time::now_std(), 0, request.clone());
    world.settle().await;
    assert!(world.pgw.upf.asked().is_empty());
    // The UE moves.
    world.clone.serve(time::now_std(), 0, true);
    world.settle().await;
    assert_eq!(downlink(&world.pgw.upf.asked()), Some((world.of_s5(&world.edge), true)));
    assert_eq!(downlink(&world.edge.upf.asked()).map(|(teid, _)| teid), Some(0x88));
    // And back: the P-GW learns of the first S-GW again, which needs not be told.
    let session = world.tracker.session(0).unwrap();
    let ways = relocation::ways_back(&session, world.ip(SGW)).unwrap();
    let [(pgw, back)] = &ways[..] else { panic!("{ways:?}") };
    let mut back = back.clone();
    back[8..11].copy_from_slice(&OURS);
    world.wire.say(SocketAddr::new(world.ip(SGW), 2123), SocketAddr::new(*pgw, 2123), &back);
    world.settle().await;
    assert_eq!(downlink(&world.pgw.upf.asked()), Some((world.of_s5(&world.sgw), true)));
    let expected = |effect: &Effect| matches!(effect, Effect::Answer { sequence: 0x50_0001, .. });
    assert!(world.effects.iter().any(expected), "{:?}", world.effects);
    // The copy ends, the PDN connection does not; a new one can be made, and the UE can move again.
    world.clone.end(time::now_std(), 0);
    assert_eq!(world.settle().await, [Event::Ended(0)]);
    assert_eq!((world.edge.upf.sessions(), world.sgw.upf.sessions(), world.pgw.upf.sessions()), (0, 1, 1));
    world.copy().await;
    world.clone.serve(time::now_std(), 0, true);
    world.settle().await;
    assert_eq!(downlink(&world.pgw.upf.asked()), Some((world.of_s5(&world.edge), true)));
    // The MME ends it while the UE is there: only the clone can end it at the P-GW.
    let delete = DeleteSessionRequest {
        linked_ebi: Some(Ebi(5)),
        indication: Some(Indication::OI),
        ..Default::default()
    };
    let _ = world.mme.ask(teid, delete).await;
    world.effects.clear();
    world.settle().await;
    let effects = world.effects.drain(..).collect::<Vec<_>>();
    let [Effect::Deleted { number: 0, request, .. }, Effect::Ended(0)] = &effects[..] else {
        panic!("{effects:?}")
    };
    world.clone.later(time::now_std(), 0, request.clone());
    assert_eq!(world.settle().await, [Event::Ended(0)]);
    assert_eq!((world.edge.upf.sessions(), world.sgw.upf.sessions(), world.pgw.upf.sessions()), (0, 0, 0));
}

/// Without the messages between S-GW and P-GW there is no way back; with a dedicated bearer there is none either.
#[tokio::test]
async fn without_a_way_back_it_is_not_complete() {
    let Some(mut world) = World::start().await else { return without_raw_sockets() };
    world.attach().await;
    let mut session = world.tracker.session(0).unwrap();
    let anchor = world.ip(SGW);
    assert!(relocation::ways_back(&session, anchor).is_some());
    session.bearers.push(replication::record::Bearer { id: 6, uplink: 1, ipv4: None, ipv6: None });
    assert_eq!(relocation::ways_back(&session, anchor), None);
    session.bearers.pop();
    session.requests.retain(|request| !relocation::is_way_back(request));
    assert_eq!(relocation::ways_back(&session, anchor), None);
    assert!(relocation::is_apart(&session, anchor));
}

/// What is told to a P-GW names the S-GW's ends.
#[test]
fn a_request_of_an_mme_is_no_way_back() {
    let end = FTeid::new(InterfaceType::S11_MME, 1, [10, 0, 0, 1].into());
    let bearer = BearerToBeModified { ebi: Ebi(5), ..Default::default() };
    let request = ModifyBearerRequest {
        sender_f_teid: Some(end),
        bearers_to_be_modified: vec![bearer],
        ..Default::default()
    };
    let mut octets = Vec::new();
    Message::from(request).encode(1, 2, &mut octets).unwrap();
    assert!(!relocation::is_way_back(&octets));
}
