//! Ethernet sessions between memory ports (UP-3, TS 23.501 §5.6.10.2): which frames are sent, and the drop reasons of the
//! others.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::support::*;
use packet::ethernet::{ARP, IPV4, IPV6, build};
use packet::gtpu::{PduSession, build_gpdu};
use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::*;
use pktio::Vector;
use pktio::memory::{self, Wire};
use telemetry::DropReason;
use tokio::sync::mpsc;
use upf::n4::addresses::Address;
use upf::n4::rules::urr::Now;
use upf::n4::session::Sessions;
use upf::pipeline::guard::Guard;
use upf::pipeline::{Event, Graph, PACKET, Pipeline, Ports};
use upf::stats::{self, WorkerStats};
use upf::tables::Tables;

const NOW: NtpSeconds = NtpSeconds(1000);
/// The number of the Ethernet data network.
const FACTORY: usize = 1;
const A: [u8; 6] = [2, 0, 0, 0, 0, 0xA];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xB];
/// A machine in the data network.
const M: [u8; 6] = [2, 0, 0, 0, 0, 0x4D];
const ALL: [u8; 6] = [0xFF; 6];

struct World {
    sessions: Sessions,
    pipeline: Pipeline,
    ports: Ports,
    n3: Wire,
    internet: Wire,
    n6: Wire,
    stats: Arc<[WorkerStats]>,
    events: mpsc::Receiver<Event>,
    now_ns: u64,
    batch: Vector,
}

/// A UE's session: SEID, and the tunnel up.
#[derive(Clone, Copy)]
struct Ue {
    seid: u64,
    teid: u32,
}

impl World {
    fn new() -> World {
        World::of(ethernet_config("gw0", "tap0"))
    }

    fn of(config: upf::Config) -> World {
        let config = Arc::new(config);
        config.validate().unwrap();
        let tables = Arc::new(Tables::new(&config));
        let sessions = Sessions::new(Arc::clone(&config), Arc::clone(&tables), 5);
        let stats: Arc<[WorkerStats]> = Arc::new([WorkerStats::new(tables.interfaces())]);
        let (sender, events) = mpsc::channel(64);
        let guard = Arc::new(Guard::new(&config, ["10.200.0.1", "fe80::a"].map(|own| own.parse().unwrap())));
        let pipeline = Pipeline::new(0, tables, Arc::clone(&stats), sender, guard);
        let (n3_port, n3) = memory::pair(50_000);
        let (internet_port, internet) = memory::pair(100);
        let (n6_port, n6) = memory::pair(50_000);
        let ports: Ports = vec![Box::new(n3_port), Box::new(internet_port), Box::new(n6_port)];
        let batch = Vector::new(64, PACKET);
        World { sessions, pipeline, ports, n3, internet, n6, stats, events, now_ns: 1, batch }
    }

    /// With two UEs, whose tunnels down are 1 and 2.
    fn with_two() -> (World, Ue, Ue) {
        let mut world = World::new();
        let (a, b) =
            (world.establish(&ethernet_establishment(1)), world.establish(&ethernet_establishment(2)));
        (world, a, b)
    }

    fn try_establish(&mut self, request: &SessionEstablishmentRequest) -> Result<Ue, (Cause, Option<u16>)> {
        let response = self.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
        if response.cause != Cause::ACCEPTED {
            return Err((response.cause, response.offending_ie.map(|ie| ie.0)));
        }
        let teid = match response.created_pdrs[0].f_teid {
            Some(FTeid::Assigned { teid, .. }) => teid,
            other => panic!("{other:?}"),
        };
        Ok(Ue { seid: response.up_f_seid.unwrap().seid, teid })
    }

    fn establish(&mut self, request: &SessionEstablishmentRequest) -> Ue {
        self.try_establish(request).unwrap()
    }

    fn modify(&mut self, ue: Ue, request: &SessionModificationRequest) -> Cause {
        self.sessions.modify(ue.seid, SMF.into(), request, NOW).unwrap().response.cause
    }

    fn set_downlink(&mut self, ue: Ue, action: ApplyAction) {
        assert_eq!(self.modify(ue, &update_far(2, action)), Cause::ACCEPTED);
    }

    fn run(&mut self, input: usize) {
        loop {
            let received = self.ports[input].receive(&mut self.batch).unwrap();
            if received == 0 {
                self.pipeline.turn(self.now_ns, &mut self.ports);
                return;
            }
            self.pipeline.process(input, &mut self.batch, self.now_ns, &mut self.ports);
        }
    }

    /// The UE sends a frame.
    fn up(&mut self, ue: Ue, frame: &[u8]) {
        let gpdu = build_gpdu(ue.teid, Some(PduSession::Uplink { qfi: QFI }), frame).unwrap();
        self.n3.inject(&gpdu, gnb());
        self.run(N3);
    }

    /// The data network sends a frame.
    fn down(&mut self, frame: &[u8]) {
        self.n6.inject(frame, "0.0.0.0:0".parse().unwrap());
        self.run(N6 + FACTORY);
    }

    /// Asserts that exactly these frames were sent: to the data network, and into tunnels.
    #[track_caller]
    fn assert_sent(&self, network: &[&[u8]], tunnels: &[(u32, &[u8])]) {
        let sent: Vec<Vec<u8>> = self.n6.take().into_iter().map(|(frame, _)| frame).collect();
        assert_eq!(sent, network);
        let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
        let expected: Vec<_> = tunnels
            .iter()
            .map(|(teid, frame)| (build_gpdu(*teid, container, frame).unwrap(), gnb()))
            .collect();
        assert_eq!(self.n3.take(), expected);
        assert!(self.internet.take().is_empty(), "other data networks get none");
    }

    fn drops(&self, reason: DropReason) -> u64 {
        stats::drops(&self.stats, reason)
    }

    /// Asserts that nothing was dropped but `count` for `reason`.
    #[track_caller]
    fn assert_dropped(&self, reason: DropReason, count: u64) {
        for other in DropReason::ALL {
            let expected = if *other == reason { count } else { 0 };
            assert_eq!(stats::drops(&self.stats, *other), expected, "{}", other.name());
        }
    }
}

fn gnb() -> SocketAddr {
    SocketAddr::new(GNB.into(), 2152)
}

/// A frame like those of ARP, identified by a number.
fn frame(to: [u8; 6], from: [u8; 6], number: u8) -> Vec<u8> {
    build(to, from, None, ARP, &[number; 46])
}

#[test]
fn frames_find_their_way_once_addresses_are_known() {
    let (mut world, a, b) = World::with_two();
    let hello = frame(ALL, A, 1);
    world.up(a, &hello);
    world.assert_sent(&[&hello], &[(2, &hello)]);
    // Nobody has sent from this address yet: the frame goes to all.
    let question = frame(B, M, 2);
    world.down(&question);
    world.assert_sent(&[], &[(1, &question), (2, &question)]);
    let answer = frame(M, B, 3);
    world.up(b, &answer);
    world.assert_sent(&[&answer], &[]);
    let again = frame(B, M, 4);
    world.down(&again);
    world.assert_sent(&[], &[(2, &again)]);
    // From UE to UE, by the rules of both.
    let across = frame(A, B, 5);
    world.up(b, &across);
    world.assert_sent(&[], &[(1, &across)]);
    // Broadcasts of the data network.
    let news = frame(ALL, M, 6);
    world.down(&news);
    world.assert_sent(&[], &[(1, &news), (2, &news)]);
    world.assert_dropped(DropReason::NoPdr, 0);

    // Both sessions count forwarded frames, in octets of the frames.
    let (up, down) = world.sessions.get(a.seid).unwrap().compiled.usage();
    assert_eq!((up.packets, up.bytes, down.packets, down.bytes), (1, 60, 3, 180));
    let (up, down) = world.sessions.get(b.seid).unwrap().compiled.usage();
    assert_eq!((up.packets, up.bytes, down.packets, down.bytes), (2, 120, 4, 240));
    // `godwit upf graph` shows frames as it shows packets.
    let nodes = upf::pipeline::graph::json(&world.stats);
    for name in ["bridge", "execute", "transmit"] {
        let node = nodes.as_array().unwrap().iter().find(|node| node["node"] == name).unwrap();
        assert!(node["packets"].as_u64() >= Some(6), "{node}");
    }
}

#[test]
fn a_session_that_goes_leaves_no_address_behind() {
    let (mut world, a, b) = World::with_two();
    world.up(a, &frame(ALL, A, 1));
    world.up(b, &frame(ALL, B, 1));
    world.n3.take();
    world.n6.take();
    world.sessions.remove(a.seid);
    let to_nobody = frame(A, M, 2);
    world.down(&to_nobody);
    world.assert_sent(&[], &[(2, &to_nobody)]);
    // The next session gets the same station number, is a member, and no address belongs to it.
    world.establish(&ethernet_establishment(3));
    world.down(&to_nobody);
    world.assert_sent(&[], &[(3, &to_nobody), (2, &to_nobody)]);
    world.assert_dropped(DropReason::NoPdr, 0);
}

/// A frame begins with an address, even if its first octet looks like an IP version: no octets are removed from its end.
#[test]
fn frames_that_look_like_packets_arrive_whole() {
    let (mut world, a, _) = World::with_two();
    let mut like_v4 = build([0x45, 0, 0, 28, 0, 0], [0, 0, 64, 17, 0, 1], None, ARP, &[7; 80]);
    like_v4[14..].copy_from_slice(&[7; 80]);
    // The destination begins with 6, and its last octets are where an IPv6 packet has its length.
    let like_v6 = build([0x64, 0, 0, 0, 0, 8], [2, 17, 64, 0, 0, 9], None, ARP, &[8; 100]);
    for frame in [like_v4, like_v6] {
        world.up(a, &frame);
        world.assert_sent(&[&frame], &[(2, &frame)]);
        world.down(&build([0xFF; 6], M, None, ARP, &frame));
        assert_eq!(world.n3.take().len(), 2);
    }
    world.assert_dropped(DropReason::NoPdr, 0);
}

#[test]
fn nobody_sends_in_anothers_name() {
    let (mut world, a, b) = World::with_two();
    world.up(a, &frame(ALL, A, 1));
    world.down(&frame(ALL, M, 1));
    world.n3.take();
    world.n6.take();
    world.up(b, &frame(ALL, A, 2));
    world.up(b, &frame(A, M, 2));
    world.down(&frame(ALL, A, 3));
    world.up(a, &frame(ALL, [3, 0, 0, 0, 0, 1], 4));
    world.assert_sent(&[], &[]);
    world.assert_dropped(DropReason::EthernetSource, 4);
    // After five minutes of silence the address is free.
    world.now_ns += 301_000_000_000;
    let moved = frame(M, A, 5);
    world.up(b, &moved);
    world.assert_sent(&[&moved], &[(1, &moved)]);
}

#[test]
fn what_goes_nowhere_is_counted() {
    let (mut world, a, b) = World::with_two();
    world.up(a, &frame(ALL, A, 1));
    world.down(&frame(ALL, M, 1));
    world.n3.take();
    world.n6.take();
    // To the side from which the frame comes.
    world.up(a, &frame(A, A, 2));
    world.down(&frame(M, [2, 0, 0, 0, 0, 0x4E], 2));
    world.assert_dropped(DropReason::EthernetFiltered, 2);
    // Group addresses whose frames stay on one link.
    world.up(b, &frame([0x01, 0x80, 0xC2, 0, 0, 0x0E], B, 3));
    world.down(&frame([0x01, 0x80, 0xC2, 0, 0, 0], M, 3));
    assert_eq!(stats::drops(&world.stats, DropReason::LinkLocal), 2);
    // Too short to be frames.
    for length in 0..14 {
        world.up(a, &frame(ALL, A, 4)[..length]);
        world.down(&frame(ALL, M, 4)[..length]);
    }
    assert_eq!(stats::drops(&world.stats, DropReason::EthernetMalformed), 28);
    world.assert_sent(&[], &[]);
    // A data network without sessions.
    let mut world = World::new();
    world.down(&frame(ALL, M, 1));
    world.assert_dropped(DropReason::UnknownUe, 1);
}

/// Frames do not reach the core's sockets on this machine, whatever their MAC addresses and tags are.
#[test]
fn frames_do_not_reach_this_machine() {
    let udp = |from: &str, to: &str, port| {
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let datagram = packet::transport::build_udp((from, 4000), (to, port), b"x").unwrap();
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => packet::ipv4::Header::new(from, to, 17).build(&datagram),
            (IpAddr::V6(from), IpAddr::V6(to)) => packet::ipv6::Header::new(from, to, 17).build(&datagram),
            _ => panic!("two families"),
        }
        .unwrap()
    };
    let own = ["10.200.0.1", "fe80::a"];
    let mut frames = Vec::new();
    for (n, (to, port)) in own.into_iter().flat_map(|to| [(to, 8805), (to, 2152), (to, 22)]).enumerate() {
        let (from, kind) = if to.contains(':') { ("fe80::9", IPV6) } else { ("10.0.0.9", IPV4) };
        let packet = udp(from, to, port);
        for mac in [M, ALL, [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5E, 0, 0, 1]] {
            for tags in
                [&[][..], &[0x8100], &[0x8100; 2], &[0x88A8, 0x8100, 0x8100], &[0x88A8; 3], &[0x8100; 9]]
            {
                let mut frame = build(mac, A, None, kind, &packet);
                for tag in tags.iter().rev() {
                    let [high, low] = u16::to_be_bytes(*tag);
                    frame.splice(12..12, [high, low, 0, 0]);
                }
                frames.push((n, tags, frame));
            }
        }
    }
    let (mut world, a, _) = World::with_two();
    for (count, (n, tags, frame)) in frames.iter().enumerate() {
        world.up(a, frame);
        assert_eq!(world.drops(DropReason::CoreInterface), count as u64 + 1, "{n} {tags:x?}");
    }
    world.assert_sent(&[], &[]);
    // Neighbours and groups of the link are reached.
    for (to, kind, packet) in [
        (M, IPV4, udp("10.0.0.9", "169.254.1.1", 9)),
        (M, IPV6, udp("fe80::9", "fe80::b", 9)),
        (ALL, IPV4, udp("0.0.0.0", "255.255.255.255", 67)),
        ([0x33, 0x33, 0, 0, 0, 0xFB], IPV6, udp("fe80::9", "ff02::fb", 5353)),
    ] {
        let frame = build(to, A, None, kind, &packet);
        world.up(a, &frame);
        assert_eq!(world.n6.take().len(), 1, "{frame:x?}");
        world.n3.take();
    }
    // A frame that ends within a tag contains no packet.
    let mut unfinished = build(M, A, Some(0), 0x8100, &[0, 0, 8]);
    world.up(a, &unfinished);
    unfinished.truncate(18);
    world.up(a, &unfinished);
    assert_eq!(world.n6.take().len(), 2);
}

/// Frames to all stations cause many copies, so their rate is limited. Frames to known addresses pass meanwhile.
#[test]
fn floods_are_bounded() {
    let (mut world, a, b) = World::with_two();
    world.up(b, &frame(ALL, B, 1));
    world.n3.take();
    for _ in 0..300 {
        for _ in 0..64 {
            world.n6.inject(&frame(ALL, M, 2), "0.0.0.0:0".parse().unwrap());
        }
        world.run(N6 + FACTORY);
    }
    let (copies, dropped) = (world.n3.take().len(), stats::drops(&world.stats, DropReason::EthernetFlood));
    assert!((10_000..20_000).contains(&copies), "{copies}");
    assert_eq!(copies as u64 + 2 * dropped, 2 * 300 * 64);
    let known = frame(B, A, 3);
    world.up(a, &known);
    assert_eq!(world.n3.take().len(), 1);
    world.now_ns += 1_000_000_000;
    world.down(&frame(ALL, M, 4));
    assert_eq!(world.n3.take().len(), 2, "after a pause there is room again");
}

#[test]
fn filters_select_frames() {
    let mut world = World::new();
    let mut request = ethernet_establishment(1);
    let tagged = EthernetPacketFilter {
        filter_id: Some(EthernetFilterId(1)),
        properties: Some(EthernetFilterProperties::BIDE),
        mac_addresses: vec![MacAddresses { source: Some(A), ..Default::default() }],
        c_tag: Some(VlanTag { vid: Some(7), ..Default::default() }),
        ..Default::default()
    };
    request.create_pdrs[0].pdi.ethernet_filters = vec![tagged];
    let inside = SdfFilter {
        flow_description: Some("permit out 17 from any to 10.9.0.2".into()),
        ..Default::default()
    };
    let udp_only = EthernetPacketFilter {
        sdf_filters: vec![inside],
        ethertype: Some(Ethertype(IPV4)),
        ..Default::default()
    };
    request.create_pdrs[1].pdi.ethernet_filters = vec![udp_only];
    let a = world.establish(&request);
    let good = build(M, A, Some(7), ARP, &[1; 46]);
    world.up(a, &good);
    world.assert_sent(&[&good], &[]);
    for bad in [
        build(M, A, Some(8), ARP, &[1; 46]),
        build(M, A, None, ARP, &[1; 46]),
        build(M, B, Some(7), ARP, &[1; 46]),
    ] {
        world.up(a, &bad);
    }
    world.assert_dropped(DropReason::NoPdr, 3);
    let packet = |to: [u8; 4]| {
        let udp = packet::transport::build_udp(([10, 9, 0, 1].into(), 1), (to.into(), 2), b"x").unwrap();
        packet::ipv4::Header::new([10, 9, 0, 1].into(), to.into(), 17).build(&udp).unwrap()
    };
    let good = build(ALL, M, None, IPV4, &packet([10, 9, 0, 2]));
    world.down(&good);
    world.assert_sent(&[], &[(1, &good)]);
    world.down(&build(ALL, M, None, IPV4, &packet([10, 9, 0, 3])));
    world.assert_sent(&[], &[]);
    world.assert_dropped(DropReason::NoPdr, 4);
}

/// A datagram from 10.9.0.1 to 10.9.0.2 in frames to A, in fragments of 16 octets of payload at most.
fn fragments(from: [u8; 6], vlan: Option<u16>, identification: u16, port: u16) -> Vec<Vec<u8>> {
    let (server, ue) = ([10, 9, 0, 1], [10, 9, 0, 2]);
    let text = format!("{identification} and {vlan:?} from port {port}");
    let datagram =
        packet::transport::build_udp((server.into(), port), (ue.into(), 9), text.as_bytes()).unwrap();
    let count = datagram.len().div_ceil(16);
    let parts = datagram.chunks(16).enumerate().map(|(n, part)| {
        let header = packet::ipv4::Header::new(server.into(), ue.into(), 17);
        let mut packet = packet::ipv4::Header { identification, ..header }.build(part).unwrap();
        let more = u16::from(n + 1 < count) << 13;
        packet[6..8].copy_from_slice(&(more | (n * 2) as u16).to_be_bytes());
        packet[10..12].fill(0);
        let sum = packet::checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        build(A, from, vlan, IPV4, &packet)
    });
    parts.collect()
}

/// With A's session, which takes UDP from port 5004 only, and B's. Their addresses are known.
fn with_service() -> (World, Ue, Ue) {
    let mut world = World::new();
    let mut request = ethernet_establishment(1);
    let text = "permit out 17 from 10.9.0.1 5004 to 10.9.0.2";
    let service = SdfFilter { flow_description: Some(text.into()), ..Default::default() };
    request.create_pdrs[1].pdi.ethernet_filters =
        vec![EthernetPacketFilter { sdf_filters: vec![service], ..Default::default() }];
    let (a, b) = (world.establish(&request), world.establish(&ethernet_establishment(2)));
    for vlan in [None, Some(7), Some(8)] {
        world.up(a, &build(ALL, A, vlan, ARP, &[0; 46]));
        world.up(b, &build(ALL, B, vlan, ARP, &[0; 46]));
    }
    world.n3.take();
    world.n6.take();
    (world, a, b)
}

/// Fragments inside frames go with the flow of their packet, in whatever order they come, from the data network and from
/// another session.
#[test]
fn fragments_in_frames_go_with_their_flow() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        for session in [false, true] {
            let (mut world, _, b) = with_service();
            let before = world.drops(DropReason::NoPdr);
            let mut send = |frame: &[u8]| match session {
                true => world.up(b, frame),
                false => world.down(frame),
            };
            let from = if session { B } else { M };
            let parts = fragments(from, None, 7, 5004);
            assert_eq!(parts.len(), 3);
            // In another VLAN the same identification belongs to another packet, which matches no rule.
            let others = fragments(from, Some(8), 7, 5005);
            for at in order {
                send(&parts[at]);
                send(&others[at]);
            }
            let mut sent: Vec<Vec<u8>> = Vec::new();
            for (datagram, _) in world.n3.take() {
                let packet = packet::gtpu::Packet::new(&datagram).unwrap();
                assert_eq!(packet.teid(), 1);
                sent.push(packet.payload().to_vec());
            }
            let mut parts = parts;
            sent.sort();
            parts.sort();
            assert_eq!(sent, parts, "{order:?} {session}: octet by octet");
            world.assert_dropped(DropReason::NoPdr, before + 3);
        }
    }
}

#[test]
fn fragments_in_frames_are_buffered_and_bounded() {
    let (mut world, a, _) = with_service();
    world.set_downlink(a, ApplyAction::BUFF);
    let parts = fragments(M, Some(7), 1, 5004);
    parts.iter().for_each(|part| world.down(part));
    world.assert_sent(&[], &[]);
    world.set_downlink(a, ApplyAction::FORW);
    world.run(N6 + FACTORY);
    let expected: Vec<(u32, &[u8])> = parts.iter().map(|part| (1, part.as_slice())).collect();
    world.assert_sent(&[], &expected);
    // Later fragments without a first one share one limit, even if they use all VLANs.
    for vlan in 1..1000 {
        world.down(&fragments(M, Some(vlan), 2, 5004)[1]);
    }
    let flooded = world.drops(DropReason::FragmentOverflow);
    assert!(flooded > 0, "bounded");
    world.now_ns += 10_000_000_000;
    world.run(N6 + FACTORY);
    let of_a: u64 = world.drops(DropReason::FragmentOverflow);
    assert!(of_a > flooded, "those that waited are given up");
}

/// Frames for an idle UE wait and come in order, ahead of newer ones (UP-2).
#[test]
fn frames_are_buffered_like_packets() {
    let (mut world, a, b) = World::with_two();
    world.up(a, &frame(ALL, A, 0));
    world.n3.take();
    world.n6.take();
    world.set_downlink(a, ApplyAction::BUFF | ApplyAction::NOCP);
    let frames: Vec<_> = (1..100).map(|n| frame(A, M, n)).collect();
    frames.iter().for_each(|frame| world.down(frame));
    let from_b = frame(A, B, 100);
    world.up(b, &from_b);
    world.assert_sent(&[], &[]);
    let told: Vec<Event> = std::iter::from_fn(|| world.events.try_recv().ok()).collect();
    let downlink =
        told.iter().filter(|event| **event == Event::DownlinkData { seid: a.seid, pdr: 2 }).count();
    assert_eq!(downlink, 1, "{told:?}");
    world.set_downlink(a, ApplyAction::FORW);
    let newer = frame(A, M, 101);
    world.down(&newer);
    let expected: Vec<(u32, &[u8])> =
        frames.iter().chain([&from_b, &newer]).map(|frame| (1, frame.as_slice())).collect();
    world.assert_sent(&[], &expected);
    world.assert_dropped(DropReason::NoPdr, 0);
}

/// A rule that sends frames from the bridge to the bridge causes no loop.
#[test]
fn frames_do_not_go_round() {
    let mut world = World::new();
    let mut request = ethernet_establishment(1);
    request.create_fars[1] = forward(2, DestinationInterface::Core, None);
    world.establish(&request);
    let b = world.establish(&ethernet_establishment(2));
    world.down(&frame(ALL, M, 1));
    assert_eq!(world.n3.take().len(), 1);
    world.up(b, &frame(ALL, B, 2));
    assert_eq!((world.n3.take().len(), world.n6.take().len()), (0, 1));
    world.assert_dropped(DropReason::FarDrop, 2);
}

#[test]
fn packets_and_frames_pass_side_by_side() {
    let (mut world, a, _) = World::with_two();
    let ip = world.establish(&establishment(9));
    let up = udp(UE_V4.into(), SERVER_V4.into(), b"up");
    let hello = frame(M, A, 1);
    for n in 0..10 {
        let (teid, payload) = if n % 2 == 0 { (ip.teid, &up) } else { (a.teid, &hello) };
        let container = Some(PduSession::Uplink { qfi: QFI });
        world.n3.inject(&build_gpdu(teid, container, payload).unwrap(), gnb());
    }
    // Neither session takes packets of the other.
    for (teid, payload) in [(ip.teid, &hello), (a.teid, &up)] {
        world.n3.inject(&build_gpdu(teid, None, payload).unwrap(), gnb());
    }
    world.run(N3);
    assert_eq!(world.internet.take().len(), 5);
    assert_eq!(stats::drops(&world.stats, DropReason::NotIp), 1);
    world.n6.take();
    world.n3.take();
    world.ports[N6].receive(&mut world.batch).unwrap();
    let down = udp(SERVER_V4.into(), UE_V4.into(), b"down");
    world.internet.inject(&down, gnb());
    world.run(N6);
    assert_eq!(world.n3.take().len(), 1);
}

#[test]
fn contradictions_are_refused() {
    let mut world = World::new();
    let mut request = ethernet_establishment(1);
    request.create_pdrs[1].pdi.ue_ip_address = ue_address(true);
    assert_eq!(
        world.try_establish(&request).err(),
        Some((Cause::MANDATORY_IE_INCORRECT, Some(ie::UE_IP_ADDRESS)))
    );
    let mut request = ethernet_establishment(1);
    request.pdn_type = Some(PdnType::Ipv4);
    let stated = Some((Cause::MANDATORY_IE_INCORRECT, Some(ie::ETHERNET_PDU_SESSION_INFORMATION)));
    assert_eq!(world.try_establish(&request).err(), stated);
    // FARs that lead to a data network of the other kind.
    let to = |request: &mut SessionEstablishmentRequest, network: &str| {
        let parameters = request.create_fars[0].forwarding_parameters.as_mut().unwrap();
        parameters.network_instance = Some(network.into());
    };
    let mut request = ethernet_establishment(1);
    to(&mut request, "internet");
    assert_eq!(world.try_establish(&request).err(), Some((Cause::RULE_FAILURE, None)));
    to(&mut request, "factory");
    let a = world.establish(&request);
    let mut request = establishment(2);
    to(&mut request, "factory");
    assert_eq!(world.try_establish(&request).err(), Some((Cause::RULE_FAILURE, None)));
    // A modification cannot change the kind of a session.
    let ip = world.establish(&establishment(2));
    let mut pdr = ethernet_establishment(1).create_pdrs.remove(1);
    pdr.pdr_id = PdrId(77);
    let request = SessionModificationRequest { create_pdrs: vec![pdr], ..Default::default() };
    assert_eq!(world.modify(ip, &request), Cause::MANDATORY_IE_INCORRECT);
    assert_eq!(world.modify(a, &request), Cause::ACCEPTED);
    // The refused sessions left nothing: the next one is a member and receives frames to all.
    world.down(&frame(ALL, M, 1));
    assert_eq!(world.n3.take().len(), 1);
}

/// The PDI's network instance says to which Ethernet network a session belongs (TS 29.244 table 7.5.2.2-2).
#[test]
fn a_session_belongs_to_the_network_that_its_pdi_names() {
    let mut config = ethernet_config("gw0", "tap0");
    let second = r#"{"name": "office", "type": "ethernet", "tap": "tap1"}"#;
    config.dnn.push(serde_json::from_str(second).unwrap());
    let mut world = World::of(config);
    let (port, office) = memory::pair(100);
    world.ports.push(Box::new(port));
    let named = |teid, network: &str| {
        let mut request = ethernet_establishment(teid);
        request.create_pdrs[1].pdi.network_instance = Some(network.into());
        request
    };
    let ue = world.establish(&named(1, "office"));
    world.establish(&named(2, "factory"));
    world.up(ue, &frame(M, A, 1));
    assert_eq!((office.take().len(), world.n6.take().len()), (1, 0));
    office.inject(&frame(A, M, 2), gnb());
    world.run(3);
    assert_eq!(world.n3.take().len(), 1);
    // Its own FAR may name the same network, but no other, and the network must be one of frames.
    let mut request = named(3, "office");
    let parameters = |request: &mut SessionEstablishmentRequest, network: &str| {
        request.create_fars[0].forwarding_parameters.as_mut().unwrap().network_instance =
            Some(network.into());
    };
    parameters(&mut request, "factory");
    assert_eq!(world.try_establish(&request).err(), Some((Cause::RULE_FAILURE, None)));
    parameters(&mut request, "office");
    world.establish(&request);
    assert_eq!(world.try_establish(&named(4, "internet")).err(), Some((Cause::RULE_FAILURE, None)));
}

/// If a rule asks for it, the SMF is told of new addresses behind a UE and of those that are silent (TS 29.244 §5.13.5).
#[test]
fn addresses_are_reported_as_they_come_and_go() {
    let mut world = World::new();
    let mut request = ethernet_establishment(1);
    let urr = &mut request.create_urrs[0];
    urr.reporting_triggers = ReportingTriggers::MACAR;
    urr.ethernet_inactivity_timer = Some(Seconds(20));
    let a = world.establish(&request);
    let other = world.establish(&ethernet_establishment(2));
    world.now_ns = 5_000_000_000;
    world.up(other, &frame(ALL, B, 1));
    let tagged = build(ALL, A, Some(7), ARP, &[1; 46]);
    world.up(a, &tagged);
    world.up(a, &tagged);
    let told: Vec<Event> = std::iter::from_fn(|| world.events.try_recv().ok()).collect();
    let address = |event: &Event| match event {
        Event::Address { seid, mac, c_tag, s_tag } => {
            Some((*seid, Address { mac: *mac, c_tag: *c_tag, s_tag: *s_tag }))
        }
        _ => None,
    };
    let told: Vec<_> = told.iter().filter_map(address).collect();
    let expected = Address { mac: A, c_tag: Some(7), s_tag: None };
    assert_eq!(told, [(a.seid, expected)], "once, and of the session that asks");
    let at = |ms: u64| Now { ms, wall: NtpSeconds(1000) };
    let report = world.sessions.address(a.seid, expected, at(5000)).unwrap();
    assert_eq!((report.seid, report.request.report_type), (a.seid, ReportType::USAR));
    let usage = &report.request.usage_reports[0];
    assert_eq!((usage.urr_id, usage.trigger), (UrrId(1), UsageReportTrigger::MACAR));
    let listed = MacAddressList {
        addresses: vec![A],
        c_tag: Some(VlanTag { vid: Some(7), ..VlanTag::default() }),
        s_tag: None,
    };
    let traffic = usage.ethernet_traffic.as_deref().unwrap();
    assert_eq!((&traffic.detected[..], &traffic.removed[..]), (&[listed.clone()][..], &[][..]));
    assert!(world.sessions.address(a.seid, expected, at(5001)).is_none(), "known");

    // It sends one more frame, and then none.
    world.now_ns = 15_000_000_000;
    world.up(a, &tagged);
    assert!(world.sessions.check(a.seid, at(30_000)).is_none());
    assert!(world.sessions.next_timeout().is_some_and(|next| next <= 35_000));
    let gone = world.sessions.check(a.seid, at(36_000)).unwrap().request.usage_reports.remove(0);
    assert_eq!(gone.trigger, UsageReportTrigger::MACAR);
    assert_eq!(gone.ethernet_traffic.unwrap().removed, [listed]);
    assert!(world.sessions.check(a.seid, at(60_000)).is_none(), "once");
    world.n6.take();
    world.up(a, &tagged);
    let events = std::iter::from_fn(|| world.events.try_recv().ok());
    assert_eq!(events.filter_map(|event| address(&event)).count(), 1, "new again");
}

/// Random frames: each is sent or counted under a drop reason, and none reaches a wrong destination.
#[test]
fn nonsense_is_counted() {
    let (mut world, a, b) = World::with_two();
    let mut state = 7u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for round in 0..3000 {
        let mut octets: Vec<u8> = (0..random() % 80).map(|_| random() as u8).collect();
        if let (true, Some(first)) = (round % 2 == 0, octets.first_mut()) {
            // Addresses of single hosts, and first octets of packets.
            *first = [0x45, 0x60, 0x02, 0x64][random() % 4];
        }
        match random() % 3 {
            0 => world.up(a, &octets),
            1 => world.up(b, &octets),
            _ => world.down(&octets),
        }
    }
    let drops: u64 = DropReason::ALL.iter().map(|reason| stats::drops(&world.stats, *reason)).sum();
    assert!(drops > 500, "{drops}");
    assert!(world.internet.take().is_empty());
}
