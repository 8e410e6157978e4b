//! The user plane's pipeline between memory ports: feeds it packets of UEs and of a gNB, and checks invariants.
//!
//! The input is a number of packets from N3 and N6 for four sessions: an ordinary one, two that are redirected,
//! and an Ethernet session. Each packet must be sent, consumed or counted under one reason. A packet that
//! leaves on N6 must be an IP packet from a UE's own address (UP-4), or a frame; a packet that leaves on N3
//! must be well-formed GTP-U.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use packet::ethernet;
use packet::flow::Flow;
use packet::gtpu::{self, PduSession, Signalling, message_type};
use packet::{icmp, ipv4, ipv6, protocol, transport};
use pfcp::message::SessionEstablishmentRequest;
use pfcp::{Cause, FTeid, NodeId, NtpSeconds};
use pktio::Vector;
use pktio::memory::{self, Wire};
use telemetry::DropReason;
use tokio::sync::mpsc;
use upf::n4::session::Sessions;
use upf::pipeline::guard::Guard;
use upf::pipeline::{BATCH, Event, Graph, PACKET, Pipeline, Ports};
use upf::stats::{self, WorkerStats};
use upf::tables::Tables;

#[path = "../../dataplane/upf/tests/support/mod.rs"]
mod support;
use support::{
    GNB, GNB_TEID, GTPU as UPF, N3, N6, SMF, UE_PREFIX as UE6, UE_V4 as UE, establishment, ethernet_config,
    ethernet_establishment, redirecting,
};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const SECOND_NS: u64 = 1_000_000_000;
/// Most packets of an input; also bounds the time of an input.
const PACKETS: usize = 32;
/// Bits of the octet before each packet.
const FROM_N6: u8 = 1;
const FOREIGN_TUNNEL: u8 = 2;
/// The session's tunnel or data network to which the packet belongs: [`ETHERNET`] or another.
const SESSION_SHIFT: u32 = 2;
const SESSIONS: usize = 4;
const ETHERNET: usize = 3;
/// TEID of the downlink tunnel of the Ethernet session.
const ETHERNET_TEID: u32 = 0x77;
/// Octets of addresses and EtherType.
const ETHERNET_HEADER: usize = 14;
/// Targets of the redirections of the second and third session.
const URL: &str = "http://portal.example/pay";
const PORTAL: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

/// A UPF without threads and sockets. It is used for all inputs of a run; rates recover between them.
struct World {
    pipeline: Pipeline,
    ports: Ports,
    n3: Wire,
    n6: Wire,
    factory: Wire,
    stats: Arc<[WorkerStats]>,
    /// Events that are not taken from the queue; this target must lose none.
    events: mpsc::Receiver<Event>,
    /// Keeps the sessions published.
    _sessions: Sessions,
    teids: [u32; SESSIONS],
    now_ns: u64,
    batch: Vector,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

impl World {
    fn new() -> World {
        let mut config = ethernet_config("gw0", "tap0");
        config.max_tunnels = 64;
        let config = Arc::new(config);
        let tables = Arc::new(Tables::new(&config));
        let mut sessions = Sessions::new(Arc::clone(&config), Arc::clone(&tables), 5);
        let teids = std::array::from_fn(|number| establish(&mut sessions, &session(number)));
        let stats: Arc<[WorkerStats]> = Arc::new([WorkerStats::new(tables.interfaces())]);
        let (sender, events) = mpsc::channel(4 * PACKETS);
        let guard = Arc::new(Guard::new(&config, []));
        let pipeline = Pipeline::new(0, tables, Arc::clone(&stats), sender, guard);
        let (n3_port, n3) = memory::pair(8 * PACKETS);
        let (n6_port, n6) = memory::pair(8 * PACKETS);
        let (factory_port, factory) = memory::pair(8 * PACKETS);
        let ports: Ports = vec![Box::new(n3_port), Box::new(n6_port), Box::new(factory_port)];
        let batch = Vector::new(BATCH, PACKET);
        let _sessions = sessions;
        World { pipeline, ports, n3, n6, factory, stats, events, _sessions, teids, now_ns: 1, batch }
    }

    /// Number of packets that were dropped or consumed.
    fn ended(&self) -> u64 {
        let worker = &self.stats[0];
        let drops: u64 = DropReason::ALL.iter().map(|reason| stats::drops(&self.stats, *reason)).sum();
        drops + worker.echo_requests.get() + worker.error_indications_received.get() + worker.signalling.get()
    }

    /// Runs the packets that wait on an input through the pipeline; returns their number.
    fn run(&mut self, input: usize) -> u64 {
        let mut packets = 0;
        loop {
            match self.ports[input].receive(&mut self.batch) {
                Ok(0) => return packets,
                Ok(received) => packets += received as u64,
                Err(error) => unreachable!("a memory port does not fail: {error}"),
            }
            self.pipeline.process(input, &mut self.batch, self.now_ns, &mut self.ports);
        }
    }

    fn run_input(&mut self, data: &[u8]) {
        let (before, redirected) = (self.ended(), stats::drops(&self.stats, DropReason::Redirected));
        let gnb = SocketAddr::from((GNB, gtpu::PORT));
        for (flags, packet) in packets(data) {
            let session = usize::from(flags >> SESSION_SHIFT) % SESSIONS;
            if flags & FROM_N6 != 0 {
                match session {
                    ETHERNET => self.factory.inject(packet, gnb),
                    _ => self.n6.inject(packet, gnb),
                };
                continue;
            }
            let mut packet = packet.to_vec();
            // Without this, most mutations of a TEID would only find that the tunnel is unknown.
            if flags & FOREIGN_TUNNEL == 0
                && let Some(teid) = packet.get_mut(4..8)
            {
                teid.copy_from_slice(&self.teids[session].to_be_bytes());
            }
            self.n3.inject(&packet, gnb);
        }
        let received = self.run(N3) + self.run(N6) + self.run(N6 + 1);
        // Fragments that wait for the first of their packet are given up. The rates of replies and of packets to the
        // CP function have recovered for the next input.
        self.now_ns += 4 * SECOND_NS;
        self.pipeline.turn(self.now_ns, &mut self.ports);
        let (n6, factory) = (self.n6.take(), self.factory.take());
        for (packet, _) in &n6 {
            check_uplink(packet);
        }
        for (frame, _) in &factory {
            assert!(frame.len() >= ETHERNET_HEADER, "{frame:02x?}");
        }
        let forwarded = self.n3.take().iter().filter(|(message, _)| check_message(message)).count();
        while self.events.try_recv().is_ok() {}
        let ended = self.ended() - before + (n6.len() + factory.len() + forwarded) as u64;
        // A packet that is redirected to a URL is consumed; its answer, if any, is a packet of its own.
        let answers = stats::drops(&self.stats, DropReason::Redirected) - redirected;
        let once = received..=received + answers;
        assert!(
            once.contains(&ended),
            "each packet once: {received} received, {ended} ended, {answers} answered"
        );
    }
}

/// A packet to a data network must come from the UE.
fn check_uplink(packet: &[u8]) {
    let flow = Flow::parse(packet).expect("only IP packets go to a data network");
    assert_eq!(flow.length, packet.len(), "nothing behind the packet");
    match flow.source {
        IpAddr::V4(source) => assert!((0..ETHERNET).any(|number| source == ue(number).0), "{flow:?}"),
        IpAddr::V6(source) => {
            let prefix = |ue: Ipv6Addr| ue.to_bits() >> 64;
            assert!((0..ETHERNET).any(|number| prefix(source) == prefix(ue(number).1)), "{flow:?}");
        }
    }
    let guarded = flow.protocol == protocol::UDP && flow.destination == IpAddr::V4(UPF);
    assert!(!guarded || flow.ports.is_some_and(|(_, to)| to != gtpu::PORT && to != 8805), "{flow:?}");
}

/// A message to a gNB must be well-formed; returns whether it is a user packet.
fn check_message(message: &[u8]) -> bool {
    let view = gtpu::Packet::new(message).expect("what we send is well-formed");
    assert_eq!(view.bytes().len(), message.len());
    if view.message_type() != message_type::G_PDU {
        assert!(Signalling::parse(&view).is_ok(), "{message:02x?}");
        return false;
    }
    match view.teid() {
        // The bridge does not check all tags, which may be cut short.
        ETHERNET_TEID => assert!(view.payload().len() >= ETHERNET_HEADER, "{message:02x?}"),
        _ => assert!(Flow::parse(view.payload()).is_ok(), "{message:02x?}"),
    }
    true
}

/// The packets of an input: an octet of flags, two octets of length, the packet.
fn packets(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [flags, high, low, rest @ ..] = data else { return None };
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (packet, rest) = rest.split_at(length);
        data = rest;
        Some((*flags, packet))
    })
    .take(PACKETS)
}

/// The addresses of a session's UE.
fn ue(session: usize) -> (Ipv4Addr, Ipv6Addr) {
    let v6 = UE6.to_bits() + ((session as u128) << 64);
    ((u32::from(UE) + session as u32).into(), v6.into())
}

/// The sessions: ordinary, redirected to a URL, redirected to an address, and Ethernet.
fn session(number: usize) -> SessionEstablishmentRequest {
    if number == ETHERNET {
        return ethernet_establishment(ETHERNET_TEID);
    }
    let mut request = establishment(number as u64 + 1);
    for address in request.create_pdrs.iter_mut().filter_map(|pdr| pdr.pdi.ue_ip_address.as_mut()) {
        let (v4, v6) = ue(number);
        (address.ipv4, address.ipv6) = (Some(v4), Some(v6));
    }
    match number {
        1 => request.create_fars[0] = redirecting(2, URL),
        2 => request.create_fars[0] = redirecting(0, &PORTAL.to_string()),
        _ => {}
    }
    request
}

/// Establishes a session and returns the TEID of its tunnel.
fn establish(sessions: &mut Sessions, request: &SessionEstablishmentRequest) -> u32 {
    let response = sessions.establish(NodeId::Ipv4(UPF), SMF.into(), request.clone(), NtpSeconds(1)).response;
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    match response.created_pdrs.first().and_then(|created| created.f_teid) {
        Some(FTeid::Assigned { teid, .. }) => teid,
        other => unreachable!("an F-TEID was asked for: {other:?}"),
    }
}

/// The target.
pub fn run(data: &[u8]) {
    WORLD.with(|world| world.borrow_mut().run_input(data));
}

/// Packets of the redirected sessions, with their flags: a connection to a web server, a datagram and its
/// answer.
fn redirected() -> [(u8, Vec<u8>); 4] {
    let ip = |from: Ipv4Addr, to: Ipv4Addr, protocol, datagram: &[u8]| {
        ipv4::Header::new(from, to, protocol).build(datagram).unwrap_or_default()
    };
    // From port 4000 to port 80: a SYN, and data that looks like a request.
    let tcp = |flags: u8, data: &[u8]| {
        [&[0x0F, 0xA0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xFF, 0xFF, 0, 0, 0, 0][..], data].concat()
    };
    let datagram = |from, to| transport::build_udp((from, 4000), (to, 4000), b"seed").unwrap_or_default();
    let (web, other) = (ue(1).0, ue(2).0);
    let (up, down) = (datagram(other.into(), SERVER.into()), datagram(PORTAL.into(), other.into()));
    [
        (1 << SESSION_SHIFT, ip(web, SERVER, protocol::TCP, &tcp(2, &[]))),
        (1 << SESSION_SHIFT, ip(web, SERVER, protocol::TCP, &tcp(0x18, b"GET / HTTP/1.1\r\n\r\n"))),
        (2 << SESSION_SHIFT, ip(other, SERVER, protocol::UDP, &up)),
        (2 << SESSION_SHIFT | FROM_N6, ip(PORTAL, other, protocol::UDP, &down)),
    ]
}

/// Ordinary packets of both directions and IP versions, signalling, and an input with some of each.
pub fn seeds() -> Vec<Vec<u8>> {
    let echo = |from: IpAddr, to: IpAddr| icmp::build_echo(from, to, 8, 1, 1, b"seed");
    let v4 = |from: Ipv4Addr, to: Ipv4Addr| {
        ipv4::Header::new(from, to, protocol::ICMP).build(&echo(from.into(), to.into())).unwrap_or_default()
    };
    let v6 = |from: Ipv6Addr, to: Ipv6Addr| {
        ipv6::Header::new(from, to, protocol::ICMPV6).build(&echo(from.into(), to.into())).unwrap_or_default()
    };
    let tunnelled =
        |inner: &[u8]| gtpu::build_gpdu(1, Some(PduSession::Uplink { qfi: 9 }), inner).unwrap_or_default();
    let input =
        |flags: u8, packet: &[u8]| [&[flags][..], &(packet.len() as u16).to_be_bytes(), packet].concat();
    let inner = v4(UE, SERVER);
    let mut seeds = vec![
        input(0, &tunnelled(&inner)),
        input(0, &tunnelled(&v6(UE6, SERVER6))),
        // A tunnel in a tunnel, and a packet to the UPF itself.
        input(0, &tunnelled(&tunnelled(&inner))),
        input(0, &tunnelled(&v4(UE, UPF))),
        input(FOREIGN_TUNNEL, &tunnelled(&inner)),
        input(FROM_N6, &v4(SERVER, UE)),
        input(FROM_N6, &v6(SERVER6, UE6)),
        input(FOREIGN_TUNNEL, &Signalling::EchoRequest { sequence: 1 }.build()),
        input(FOREIGN_TUNNEL, &Signalling::EndMarker { teid: 1, pdu_session: None }.build()),
        input(
            FOREIGN_TUNNEL,
            &Signalling::ErrorIndication { teid: GNB_TEID, peer: GNB.into(), udp_port: None }.build(),
        ),
    ];
    seeds.extend(redirected().into_iter().map(|(flags, packet)| match flags & FROM_N6 {
        0 => input(flags, &tunnelled(&packet)),
        _ => input(flags, &packet),
    }));
    // Frames: to all stations, and to the station that sent them.
    let (a, b) = ([2, 0, 0, 0, 0, 0xA], [2, 0, 0, 0, 0, 0xB]);
    let of_frames = (ETHERNET as u8) << SESSION_SHIFT;
    for (from, to) in [(a, [0xFF; 6]), (a, b)] {
        let frame = |from, to| ethernet::build(to, from, Some(7), ethernet::IPV4, &inner);
        seeds.push(input(of_frames, &tunnelled(&frame(from, to))));
        seeds.push(input(of_frames | FROM_N6, &frame(to, from)));
        seeds.push(input(of_frames | FROM_N6, &frame(b, a)));
    }
    seeds.push(seeds.concat());
    seeds
}
