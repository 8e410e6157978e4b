//! UEs between memory ports, with the network's ends of their bearers in the test; and TUN devices of the kernel.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use l2::pdcp::{Config, Rx, RxConfig, Security, SnLength, Tx, Verdict};
use l2::rlc::um;
use l2::sdap::{DownlinkHeader, Drb, DrbId, Uplink};
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};
use l2::uu::{Header, Kind};
use net::link::Links;
use net::netns::NetNs;
use packet::transport::build_udp;
use packet::{ipv4, protocol};
use path::{Graph, Ports, Worker};
use pktio::memory::{self, Wire};
use pktio::tun::TunPort;
use pktio::udp::UdpPort;
use pktio::{VECTOR, Vector};
use telemetry::DropReason;
use types::{Key, NrCellId, Qfi};

use crate::control::Reply;
use crate::control::{BearerSetup, Event, Events, Refused, SessionId, UeId};
use crate::graph::{TUN, UU, UserPlane};
use crate::stats::SessionStats;
use crate::tuns::Tuns;

const CELL: u64 = 0x1_2345_6789;
const MS: u64 = 1_000_000;

fn du() -> SocketAddr {
    "198.51.100.1:38321".parse().unwrap()
}

fn cell() -> NrCellId {
    NrCellId::new(CELL).unwrap()
}

fn qfi(value: u8) -> Qfi {
    Qfi::new(value).unwrap()
}

fn security() -> Security {
    let key = Key::new([9; 16]);
    let cipher = Cipher::new(CipheringAlgorithm::Nea2, &key);
    Security::new(cipher, Some(Integrity::new(IntegrityAlgorithm::Nia2, &key)))
}

/// The network's end of a bearer.
struct Network {
    lcid: u8,
    c_rnti: u16,
    header: bool,
    tx: Tx,
    rx: Rx,
}

/// Both ends of a bearer.
fn bearer(c_rnti: u16, number: u8, sn: SnLength, header: bool) -> (BearerSetup, Network) {
    let id = DrbId::new(number).unwrap();
    let config = |direction| Config::drb(id, direction, sn, header);
    let (up, down) = (config(Direction::Uplink), config(Direction::Downlink));
    let timer = RxConfig { t_reordering: Some(Duration::from_millis(50)), ..RxConfig::default() };
    let setup = BearerSetup {
        lcid: 3 + number,
        drb: Drb { id, uplink_header: header, downlink_header: header },
        default: false,
        flows: vec![qfi(number)],
        rlc: um::SnLength::Bits12,
        t_reassembly: Duration::from_millis(20),
        tx: Tx::new(up, security()),
        rx: Rx::new(down, security(), timer),
    };
    let (tx, rx) = (Tx::new(down, security()), Rx::new(up, security(), timer));
    (setup, Network { lcid: 3 + number, c_rnti, header, tx, rx })
}

impl Network {
    /// The PDCP PDU of a packet for the UE.
    fn seal(&mut self, flow: u8, packet: &[u8]) -> Vec<u8> {
        let mut pdu = vec![0; self.tx.header_len()];
        if self.header {
            pdu.push(DownlinkHeader { rdi: false, rqi: true, qfi: qfi(flow) }.encode());
        }
        pdu.extend_from_slice(packet);
        pdu.resize(pdu.len() + self.tx.trailer_len(), 0);
        self.tx.seal(&mut pdu).unwrap();
        pdu
    }

    fn datagram(&self, rlc_pdu: &[u8]) -> Vec<u8> {
        Header::downlink(CELL, self.c_rnti, self.lcid).datagram(rlc_pdu)
    }

    fn whole(&self, pdu: &[u8]) -> Vec<u8> {
        self.datagram(&[&[0], pdu].concat())
    }

    /// The SDU of a datagram of the UE.
    fn open(&mut self, datagram: &[u8]) -> Vec<u8> {
        let (header, pdu) = Header::parse(datagram).unwrap();
        assert_eq!(header, Header::uplink(CELL, self.c_rnti, self.lcid));
        assert!(um::is_whole(pdu));
        let mut pdu = pdu[1..].to_vec();
        match self.rx.open(&mut pdu, 0) {
            Verdict::Deliver { sdu, .. } => pdu[sdu].to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

struct World {
    ue: UserPlane,
    events: Events,
    ports: Ports,
    uu: Wire,
    tun: Wire,
    vector: Vector,
    now_ns: u64,
}

impl World {
    fn new() -> World {
        let (ue, _, events) = UserPlane::new();
        let (uu_port, uu) = memory::pair(100_000);
        let (tun_port, tun) = memory::pair(100_000);
        let ports: Ports = vec![Box::new(uu_port), Box::new(tun_port)];
        World { ue, events, ports, uu, tun, vector: Vector::new(VECTOR, 9_216), now_ns: 1_000 * MS }
    }

    fn session(&mut self, c_rnti: u16, flow: u8) -> (UeId, SessionId, Arc<SessionStats>) {
        let ue = self.ue.add_ue(cell(), du(), c_rnti).unwrap();
        let (session, stats) = self.ue.add_session(ue, qfi(flow)).unwrap();
        (ue, session, stats)
    }

    fn add(&mut self, session: SessionId, setup: BearerSetup) -> crate::BearerId {
        self.ue.add_bearer(session, setup, &mut self.ports).unwrap()
    }

    /// One UE with one session and one bearer.
    fn with_bearer(sn: SnLength, header: bool) -> (World, SessionId, Network) {
        let mut world = World::new();
        let (_, session, _) = world.session(0x4601, 1);
        let (setup, network) = bearer(0x4601, 1, sn, header);
        world.add(session, setup);
        (world, session, network)
    }

    fn step(&mut self) -> Option<u64> {
        for input in [UU, TUN] {
            while self.ports[input].receive(&mut self.vector).unwrap() > 0 {
                self.ue.process(input, &mut self.vector, self.now_ns, &mut self.ports);
                self.vector.clear();
            }
        }
        self.ue.turn(self.now_ns, &mut self.ports)
    }

    /// Lets a program's packet go, and returns what the DU gets.
    fn up(&mut self, session: SessionId, packet: &[u8]) -> Vec<Vec<u8>> {
        self.tun.inject(packet, session.peer());
        self.step();
        let sent = self.uu.take();
        assert!(sent.iter().all(|(_, to)| *to == du()));
        sent.into_iter().map(|(datagram, _)| datagram).collect()
    }

    /// Lets a datagram of the DU come, and returns what programs get.
    fn down(&mut self, datagram: &[u8]) -> Vec<(Vec<u8>, SocketAddr)> {
        self.uu.inject(datagram, du());
        self.step();
        self.tun.take()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.ue.stats().drops.get(reason)
    }

    fn all_dropped(&self) -> u64 {
        DropReason::ALL.iter().map(|reason| self.dropped(*reason)).sum()
    }
}

fn packet(seed: usize, octets: usize) -> Vec<u8> {
    (0..octets).map(|at| (at * 7 + seed) as u8).collect()
}

#[test]
fn packets_pass_both_ways() {
    for sn in [SnLength::Twelve, SnLength::Eighteen] {
        for header in [false, true] {
            let (mut world, session, mut network) = World::with_bearer(sn, header);
            for (seed, octets) in [1, 2, 20, 64, 333, 1_400, 1_500, 8_999].into_iter().enumerate() {
                let packet = packet(seed, octets);
                let sent = world.up(session, &packet);
                assert_eq!(sent.len(), 1);
                let sdu = network.open(&sent[0]);
                let expected = if header { vec![Uplink::Data(qfi(1)).encode()] } else { Vec::new() };
                assert_eq!(sdu, [expected, packet.clone()].concat());
                let pdu = network.seal(1, &packet);
                assert_eq!(world.down(&network.whole(&pdu)), [(packet, session.peer())]);
            }
            assert_eq!(world.all_dropped(), 0);
            let stats = world.ue.stats();
            assert_eq!((stats.uplink.get().packets, stats.downlink.get().packets), (8, 8));
            assert_eq!(stats.reflective.get(), if header { 8 } else { 0 });
        }
    }
}

#[test]
fn segments_and_whole_packets_stay_in_order() {
    let (mut world, _, mut network) = World::with_bearer(SnLength::Eighteen, true);
    let packets: Vec<_> = (0..60).map(|seed| packet(seed, 40 + seed * 29)).collect();
    let mut rlc = um::Tx::new(um::SnLength::Bits12, 1 << 20);
    let mut datagrams = Vec::new();
    for (number, packet) in packets.iter().enumerate() {
        let pdu = network.seal(1, packet);
        if number % 3 == 0 {
            datagrams.push(network.whole(&pdu));
            continue;
        }
        rlc.push(pdu, ()).unwrap();
        let mut out = Vec::new();
        while let Some(pulled) = rlc.pull(100 + number, &mut out) {
            datagrams.push(network.datagram(&out[out.len() - pulled.octets..]));
        }
    }
    // The link swaps neighbours, so that some packets overtake others, in RLC and in PDCP.
    datagrams.chunks_mut(2).for_each(|pair| pair.reverse());
    datagrams.iter().for_each(|datagram| world.uu.inject(datagram, du()));
    world.step();
    let got: Vec<_> = world.tun.take().into_iter().map(|(packet, _)| packet).collect();
    assert_eq!(got, packets);
    assert_eq!((world.all_dropped(), world.dropped(DropReason::PdcpStale)), (0, 0));
}

#[test]
fn what_is_lost_is_waited_for_as_long_as_the_timers_say() {
    let (mut world, _, mut network) = World::with_bearer(SnLength::Twelve, false);
    let pdus: Vec<_> = (0..4).map(|seed| network.seal(1, &packet(seed, 50))).collect();
    // The first packet comes in part, the second one not at all.
    let mut rlc = um::Tx::new(um::SnLength::Bits12, 1 << 20);
    rlc.push(pdus[0].clone(), ()).unwrap();
    let mut segment = Vec::new();
    rlc.pull(30, &mut segment).unwrap();
    assert_eq!(world.down(&network.datagram(&segment)), []);
    for pdu in &pdus[2..] {
        assert_eq!(world.down(&network.whole(pdu)), []);
    }
    let start_ns = world.now_ns;
    let mut delivered = Vec::new();
    while let Some(due_ns) = world.step() {
        assert!(due_ns > world.now_ns && due_ns <= start_ns + 100 * MS);
        assert!(delivered.is_empty());
        world.now_ns = due_ns;
        world.step();
        delivered.extend(world.tun.take().into_iter().map(|(packet, _)| packet));
    }
    assert_eq!(delivered, [packet(2, 50), packet(3, 50)]);
    assert!(world.now_ns >= start_ns + 50 * MS);
    // What comes later is too late.
    assert_eq!(world.down(&network.whole(&pdus[1])), []);
    assert_eq!(world.dropped(DropReason::PdcpStale), 1);
}

#[test]
fn no_broken_datagram_reaches_a_program() {
    let (mut world, mut session, mut network) = World::with_bearer(SnLength::Eighteen, true);
    let content = packet(1, 60);
    let pdu = network.seal(1, &content);
    let datagram = network.whole(&pdu);
    for length in 0..datagram.len() {
        assert_eq!(world.down(&datagram[..length]), [], "{length}");
    }
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 0x80 >> (bit % 8);
        for (delivered, to) in world.down(&changed) {
            // A reserved bit of RLC is not looked at, and nothing else may change.
            assert_eq!((delivered, to), (content.clone(), session.peer()), "bit {bit}");
            let header = Header::parse(&changed).unwrap().0;
            assert_eq!(header, Header::parse(&datagram).unwrap().0);
            (world, session, _) = World::with_bearer(SnLength::Eighteen, true);
        }
    }
    // From elsewhere than the DU.
    world.uu.inject(&datagram, "198.51.100.9:38321".parse().unwrap());
    world.step();
    assert_eq!(world.tun.take(), []);
    assert_eq!(world.down(&datagram).len(), 1);
}

#[test]
fn sessions_of_several_ues_do_not_mix() {
    let mut world = World::new();
    let mut all = Vec::new();
    for c_rnti in 1..=50_u16 {
        let (ue, session, stats) = world.session(c_rnti, 1);
        let (setup, network) = bearer(c_rnti, 1, SnLength::Eighteen, true);
        let bearer = world.add(session, setup);
        all.push((ue, session, stats, network, bearer));
    }
    assert_eq!(world.ue.add_ue(cell(), du(), 7), Err(Refused::InUse));
    for (at, (_, session, stats, network, _)) in all.iter_mut().enumerate() {
        let content = packet(at, 100 + at);
        let sent = world.up(*session, &content);
        assert_eq!(network.open(&sent[0])[1..], content);
        let pdu = network.seal(1, &content);
        assert_eq!(world.down(&network.whole(&pdu)), [(content, session.peer())]);
        assert_eq!((stats.uplink.get().packets, stats.downlink.get().packets), (1, 1));
    }
    // What is removed takes and gives nothing, and its numbers find nothing.
    let (ue, session, _, network, bearer) = &mut all[20];
    let late = network.seal(1, b"late");
    world.ue.remove_ue(*ue).unwrap();
    assert_eq!(world.up(*session, b"late"), [] as [Vec<u8>; 0]);
    assert_eq!(world.down(&network.whole(&late)), []);
    assert_eq!((world.dropped(DropReason::NoBearer), world.dropped(DropReason::UnknownBearer)), (1, 1));
    assert_eq!(world.ue.remove_ue(*ue), Err(Refused::Unknown));
    assert_eq!(world.ue.remove_session(*session), Err(Refused::Unknown));
    assert_eq!(world.ue.remove_bearer(*bearer), Err(Refused::Unknown));
    // The next UE has its place, not its number.
    let (next, _, _) = world.session(21, 1);
    assert_ne!(next, *ue);
    assert_eq!(world.up(*session, b"late"), [] as [Vec<u8>; 0]);
    assert_eq!(world.ue.add_ue(cell(), du(), 0), Err(Refused::Value));
}

#[test]
fn a_flow_that_moves_ends_with_a_marker() {
    let (mut world, session, mut first) = World::with_bearer(SnLength::Eighteen, true);
    assert_eq!(first.open(&world.up(session, b"before")[0])[1..], *b"before");
    let (mut setup, mut second) = bearer(0x4601, 2, SnLength::Eighteen, true);
    setup.flows = vec![qfi(1)];
    let bearer_id = world.add(session, setup);
    let markers = world.uu.take();
    assert_eq!(markers.len(), 1);
    assert_eq!(first.open(&markers[0].0), [Uplink::EndMarker(qfi(1)).encode()]);
    assert_eq!(second.open(&world.up(session, b"after")[0])[1..], *b"after");
    let (setup, _) = bearer(0x4601, 2, SnLength::Eighteen, true);
    assert_eq!(world.ue.add_bearer(session, setup, &mut world.ports), Err(Refused::InUse));
    let (mut setup, _) = bearer(0x4601, 3, SnLength::Eighteen, true);
    setup.lcid = 3;
    assert_eq!(world.ue.add_bearer(session, setup, &mut world.ports), Err(Refused::Value));
    world.ue.remove_bearer(bearer_id).unwrap();
    assert_eq!(world.up(session, b"nowhere").len(), 0);
    assert_eq!(world.dropped(DropReason::NoBearer), 1);
}

#[test]
fn control_hears_of_rrc_and_release() {
    let mut world = World::new();
    let (ue, _, _) = world.session(0x4601, 1);
    world.ue.send_rrc(ue, 0, b"setup request".to_vec(), world.now_ns, &mut world.ports).unwrap();
    let (sent, _) = world.uu.take().pop().unwrap();
    assert_eq!(Header::parse(&sent).unwrap(), (Header::uplink(CELL, 0x4601, 0), &b"setup request"[..]));
    assert_eq!(world.ue.send_rrc(ue, 0, Vec::new(), world.now_ns, &mut world.ports), Err(Refused::Value));
    assert_eq!(
        world.ue.send_rrc(ue, 0, vec![1; 20_000], world.now_ns, &mut world.ports),
        Err(Refused::Value)
    );
    world.down(&Header::downlink(CELL, 0x4601, 0).datagram(b"setup"));
    world.down(&Header { kind: Kind::Release, c_rnti: 0x4601, lcid: 0, cell: CELL }.octets());
    let next = || world.events.next(Duration::ZERO);
    assert_eq!(next(), Some(Event::Rrc { ue, lcid: 0, message: b"setup".to_vec() }));
    assert_eq!(next(), Some(Event::ReleasedByDu { ue }));
    assert_eq!((next(), world.all_dropped()), (None, 0));
}

/// Preambles until the DU answers: nothing, backoff, to somebody else, to us. Then those of a UE that is never answered.
#[test]
fn random_access_is_repeated_until_it_is_answered() {
    let mut world = World::new();
    let (reply, answer) = std::sync::mpsc::sync_channel(1);
    let identity = *b"random";
    world.ue.begin_access(cell(), du(), identity, world.now_ns, Reply::Sync(reply));
    let preamble = Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL }.datagram(&identity);
    let to_du = || vec![(preamble.clone(), du())];
    let answer_of =
        |kind, c_rnti, identity: &[u8]| Header { kind, c_rnti, lcid: 0, cell: CELL }.datagram(identity);
    let due_ns = world.step().unwrap();
    assert_eq!((world.uu.take(), due_ns), (to_du(), world.now_ns + 100 * MS));
    world.now_ns = due_ns;
    world.step();
    assert_eq!(world.uu.take(), to_du());
    world.down(&answer_of(Kind::RandomAccessResponse, 7, b"others"));
    world.down(&answer_of(Kind::Backoff, 0, &identity));
    assert_eq!(world.step(), Some(world.now_ns + 1_000 * MS));
    assert!(answer.try_recv().is_err());
    world.down(&answer_of(Kind::RandomAccessResponse, 9, &identity));
    let ue = answer.try_recv().unwrap().unwrap();
    // A repeated answer finds nothing to do.
    world.down(&answer_of(Kind::RandomAccessResponse, 9, &identity));
    assert_eq!((world.step(), world.uu.take()), (None, vec![]));
    world.ue.send_rrc(ue, 0, b"setup request".to_vec(), world.now_ns, &mut world.ports).unwrap();
    let header = Header::parse(&world.uu.take()[0].0).unwrap().0;
    assert_eq!(header, Header::uplink(CELL, 9, 0));
    let (reply, answer) = std::sync::mpsc::sync_channel(1);
    world.ue.begin_access(cell(), du(), identity, world.now_ns, Reply::Sync(reply));
    while let Some(due_ns) = world.step() {
        world.now_ns = due_ns;
    }
    assert_eq!((answer.try_recv().unwrap(), world.uu.take().len()), (Err(Refused::NoAnswer), 10));
}

/// A DU that asks to wait again and again does not keep the place of a random access for ever.
#[test]
fn a_du_that_only_asks_to_wait_is_given_up() {
    let mut world = World::new();
    let (reply, answer) = std::sync::mpsc::sync_channel(1);
    world.ue.begin_access(cell(), du(), *b"random", world.now_ns, Reply::Sync(reply));
    let backoff = Header { kind: Kind::Backoff, c_rnti: 0, lcid: 0, cell: CELL }.datagram(b"random");
    let until_ns = world.now_ns + 20_000 * MS;
    while world.step().is_some() && world.now_ns < until_ns {
        world.now_ns += 500 * MS;
        world.down(&backoff);
    }
    assert!(world.now_ns < until_ns);
    assert_eq!(answer.try_recv().unwrap(), Err(Refused::NoAnswer));
}

/// Control that does not keep up loses nothing that RLC has acknowledged.
#[test]
fn what_control_has_no_room_for_is_sent_again() {
    let mut world = World::new();
    let (ue, _, _) = world.session(0x4601, 1);
    let flood = Header::downlink(CELL, 0x4601, 0).datagram(b"flood");
    for _ in 0..4_000 {
        world.down(&flood);
    }
    let reconfiguration = Header::downlink(CELL, 0x4601, 1).datagram(&[0xC0, 0, 7, 7]);
    world.down(&reconfiguration);
    assert_eq!((world.dropped(DropReason::ControlOverflow), world.uu.take()), (1, vec![]));
    while world.events.next(Duration::ZERO).is_some() {}
    world.down(&reconfiguration);
    assert_eq!(world.uu.take().len(), 1, "the status that was asked for");
    assert_eq!(world.events.next(Duration::ZERO), Some(Event::Rrc { ue, lcid: 1, message: vec![7, 7] }));
}

#[test]
fn a_bearer_without_counts_left_sends_nothing() {
    let mut world = World::new();
    let (_, session, _) = world.session(0x4601, 1);
    let (mut setup, _) = bearer(0x4601, 1, SnLength::Twelve, true);
    setup.tx = Tx::starting_at(*setup.tx.config(), security(), u32::MAX);
    world.add(session, setup);
    assert_eq!(world.up(session, b"the last one").len(), 1);
    assert_eq!(world.up(session, b"one too many").len(), 0);
    assert_eq!(world.dropped(DropReason::PdcpExhausted), 1);
}

/// A namespace with a TUN device that has an address and a default route.
fn program_side(runtime: &tokio::runtime::Runtime, address: &str) -> (NetNs, TunPort) {
    let namespace = NetNs::new().unwrap();
    let tun = namespace.enter(|| TunPort::create("tun0")).unwrap().unwrap();
    runtime.block_on(async {
        let links = Links::in_ns(&namespace).unwrap();
        links.add_address("tun0", address.parse().unwrap()).await.unwrap();
        links.up("tun0").await.unwrap();
    });
    (namespace, tun)
}

/// Programs of two UEs talk through TUN devices, a worker and a socket with a network that answers every datagram.
#[test]
fn programs_reach_the_network_through_tun_devices() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let far = UdpSocket::bind("127.39.1.1:0").unwrap();
    far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let uu = UdpPort::bind("127.39.1.2:0".parse().unwrap(), false).unwrap();
    let (tuns, devices) = Tuns::new().unwrap();
    let (user_plane, control, _events) = UserPlane::new();
    let ports: Ports = vec![Box::new(uu), Box::new(tuns)];
    let mut worker =
        Worker::start("ue", user_plane, ports, vec![UU, TUN], Duration::from_micros(50)).unwrap();
    let (mut ues, mut networks) = (Vec::new(), Vec::new());
    for c_rnti in [1_u16, 2] {
        let ue = control.add_ue(cell(), far.local_addr().unwrap(), c_rnti).unwrap();
        let (session, stats) = control.add_session(ue, qfi(1)).unwrap();
        let (setup, network) = bearer(c_rnti, 1, SnLength::Eighteen, true);
        control.add_bearer(session, setup).unwrap();
        let address = [10, 45, 0, c_rnti as u8];
        let (namespace, tun) = program_side(&runtime, &format!("10.45.0.{c_rnti}/16"));
        devices.attach(session, tun);
        let program = namespace.enter(|| UdpSocket::bind("0.0.0.0:7000").unwrap()).unwrap();
        program.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        networks.push(network);
        ues.push((session, stats, address, namespace, program));
    }
    let mut octets = [0; 2_000];
    for round in 0..20_usize {
        for (at, (_, _, address, _, program)) in ues.iter().enumerate() {
            let content = packet(round, 10 + round * 60);
            program.send_to(&content, "10.45.9.9:7").unwrap();
            let from = loop {
                let (length, from) = far.recv_from(&mut octets).unwrap();
                let sender = usize::from(Header::parse(&octets[..length]).unwrap().0.c_rnti) - 1;
                let sdu = networks[sender].open(&octets[..length]);
                // The kernels of both sides send packets of their own, such as those of multicast groups.
                if sender == at && sdu.len() == 1 + 28 + content.len() && sdu[1 + 9] == protocol::UDP {
                    assert_eq!((&sdu[13..17], &sdu[29..]), (&address[..], &content[..]));
                    break from;
                }
            };
            let answer = build_udp(([10, 45, 9, 9].into(), 7), ((*address).into(), 7000), &content).unwrap();
            let answer =
                ipv4::Header::new([10, 45, 9, 9].into(), (*address).into(), protocol::UDP).build(&answer);
            let pdu = networks[at].seal(1, &answer.unwrap());
            far.send_to(&networks[at].whole(&pdu), from).unwrap();
            let length = program.recv(&mut octets).unwrap();
            assert_eq!(octets[..length], content);
        }
    }
    for (session, stats, ..) in &ues {
        assert_eq!(stats.downlink.get().packets, 20);
        devices.detach(*session);
    }
    // A device that is detached, and has no other owner, disappears.
    let gone = || ues.iter().all(|ue| ue.4.send_to(b"x", "10.45.9.9:7").is_err());
    let tries = (0..200).find(|_| {
        net::time::sleep_thread(Duration::from_millis(10));
        gone()
    });
    assert!(tries.is_some(), "the devices are still there");
    worker.stop();
    assert_eq!(control.add_ue(cell(), du(), 9), Err(Refused::NotRunning));
}
