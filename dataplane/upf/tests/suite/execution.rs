//! Effects of N4 rules on packets (UP-1, UP-3), compared octet by octet: redirection, MTUs, notifications, meters, copies,
//! marking, several peers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use crate::support::*;
use crate::world::*;
use packet::checksum::{Sum, checksum};
use packet::flow::Flow;
use packet::gtpu::{self, PduSession, Signalling, build_gpdu};
use packet::icmp;
use packet::transport::{Tcp, build_udp};
use packet::{ipv4, ipv6, protocol};
use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::*;
use pktio::{Port, Sent, Vector};
use telemetry::DropReason;
use upf::interface::Role;
use upf::pipeline::links::{Link, Links};
use upf::pipeline::mtu::Router;
use upf::pipeline::{Event, Graph};

const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 1);
const SITE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
const FIN: u8 = 1;
const SYN: u8 = 2;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// A TCP segment with options and correct checksum.
fn tcp(
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    numbers: (u32, u32),
    flags: u8,
    options: &[u8],
    data: &[u8],
) -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[0..2].copy_from_slice(&from.1.to_be_bytes());
    segment[2..4].copy_from_slice(&to.1.to_be_bytes());
    segment[4..8].copy_from_slice(&numbers.0.to_be_bytes());
    segment[8..12].copy_from_slice(&numbers.1.to_be_bytes());
    segment[12] = ((5 + options.len() / 4) as u8) << 4;
    segment[13] = flags;
    segment.extend([options, data].concat());
    let sum =
        Sum::default().pseudo_header(from.0, to.0, protocol::TCP, segment.len()).octets(&segment).finish();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    ip(from.0, to.0, protocol::TCP, &segment)
}

fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4::Header::new(from, to, protocol).build(payload).unwrap(),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6::Header::new(from, to, protocol).build(payload).unwrap(),
        _ => panic!("two families"),
    }
}

/// An IPv4 packet of UDP of this length in all.
fn long(from: Ipv4Addr, to: Ipv4Addr, length: usize, dont_fragment: bool) -> Vec<u8> {
    let payload: Vec<u8> = (0..length - 28).map(|n| n as u8).collect();
    let datagram = build_udp((from.into(), 4000), (to.into(), 5000), &payload).unwrap();
    ipv4::Header { dont_fragment, ..ipv4::Header::new(from, to, protocol::UDP) }.build(&datagram).unwrap()
}

/// A G-PDU to the UE's gNB.
fn down_gpdu(packet: &[u8]) -> (Vec<u8>, SocketAddr) {
    (
        build_gpdu(GNB_TEID, Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None }), packet).unwrap(),
        gnb(),
    )
}

/// The user packets that were sent on N3, with the TEIDs of their tunnels.
fn tunnelled(world: &World) -> Vec<(u32, Vec<u8>)> {
    let sent = world.n3.take().into_iter();
    sent.map(|(datagram, _)| {
        let packet = gtpu::Packet::new(&datagram).unwrap();
        (packet.teid(), packet.payload().to_vec())
    })
    .collect()
}

fn untunnelled(world: &World) -> Vec<Vec<u8>> {
    world.n6.take().into_iter().map(|(packet, _)| packet).collect()
}

fn sdf(text: &str) -> SdfFilter {
    SdfFilter { flow_description: Some(text.into()), ..Default::default() }
}

/// A downlink PDR for packets that a filter describes, on a QoS flow of its own.
fn add_flow(request: &mut SessionEstablishmentRequest, id: u16, text: &str, qfi: u8) {
    let pdi = Pdi {
        source_interface: SourceInterface::Core,
        ue_ip_address: ue_address(true),
        sdf_filters: vec![sdf(text)],
        ..Default::default()
    };
    request.create_pdrs.push(pdr(id, 10, pdi, 2, &[u32::from(id)]));
    request.create_qers.push(CreateQer {
        qer_id: QerId(id.into()),
        qfi: Some(Qfi(qfi)),
        ..Default::default()
    });
}

/// Sends a TCP segment from the UE to the site, and returns flags, numbers and data of the answer.
fn ask(
    world: &mut World,
    teid: u32,
    numbers: (u32, u32),
    flags: u8,
    data: &[u8],
) -> (u8, (u32, u32), Vec<u8>) {
    let (ue, site) = ((UE_V4.into(), 40_000), (SITE_V4.into(), 80));
    world.uplink(&uplink_gpdu(teid, &tcp(ue, site, numbers, flags, &[], data)));
    let answers = world.n3.take();
    let [(datagram, peer)] = &answers[..] else { panic!("{} answers", answers.len()) };
    let packet = gtpu::Packet::new(datagram).unwrap();
    assert_eq!((*datagram == down_gpdu(packet.payload()).0, *peer), (true, gnb()), "as any downlink packet");
    let inner = ipv4::Packet::new(packet.payload()).unwrap();
    assert!(inner.checksum_ok() && (inner.source(), inner.destination()) == (SITE_V4, UE_V4));
    let segment = Tcp::new(inner.payload()).unwrap();
    assert!(segment.checksum_ok(site.0, ue.0));
    (segment.flags(), (segment.sequence(), segment.acknowledgement()), segment.payload().to_vec())
}

#[test]
fn web_requests_are_answered_with_another_url() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_fars[0] = redirecting(2, "http://portal.example/pay");
    let (_, teid, _) = world.establish_by(&request);
    let (flags, (ours, next), _) = ask(&mut world, teid, (1000, 0), SYN, &[]);
    assert_eq!((flags, next), (SYN | ACK, 1001));
    let get = b"GET / HTTP/1.1\r\n\r\n";
    let (flags, (sequence, _), text) = ask(&mut world, teid, (1001, ours.wrapping_add(1)), PSH | ACK, get);
    assert_eq!((flags, sequence), (FIN | PSH | ACK, ours.wrapping_add(1)));
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("HTTP/1.1 302 ") && text.contains("Location: http://portal.example/pay\r\n"));
    assert_eq!(world.drops(DropReason::Redirected), 2);
    // Other packets are dropped; none is sent to the data network.
    world.uplink(&uplink_gpdu(teid, &udp(UE_V4.into(), SITE_V4.into(), b"x")));
    assert_eq!(world.drops(DropReason::FarDrop), 1);
    assert!(untunnelled(&world).is_empty() && world.n3.take().is_empty());
    // Answers to the UE count like other downlink packets; the uplink packets were not forwarded and do not count.
    let (up, down) = world.sessions.iter().next().unwrap().1.compiled.usage();
    assert_eq!((up.packets, down.packets), (0, 2));
}

/// While an exhausted quota redirects, only answers to that reach the UE, by the FAR of the PDR.
#[test]
fn an_exhausted_quota_redirects_and_nothing_else_comes_back() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_fars.push(CreateFar { far_id: FarId(9), ..redirecting(2, "http://portal.example/") });
    request.create_urrs[0] = CreateUrr {
        urr_id: UrrId(1),
        measurement_method: MeasurementMethod::VOLUM,
        reporting_triggers: ReportingTriggers::VOLQU,
        volume_quota: Some(Volume { total: Some(1000), ..Default::default() }),
        quota_far_id: Some(FarId(9)),
        ..Default::default()
    };
    let (seid, teid, _) = world.establish_by(&request);
    let down = long(SERVER_V4, UE_V4, 1000, false);
    world.downlink(&down);
    assert_eq!(world.n3.take(), [down_gpdu(&down)]);
    assert_eq!(world.events.try_recv(), Ok(Event::Usage { seid, urr: 1 }));
    let report = world.sessions.check(seid, NOW).unwrap().request;
    assert!(report.usage_reports[0].trigger.contains(UsageReportTrigger::VOLQU));
    world.downlink(&down);
    assert!(world.n3.take().is_empty());
    assert_eq!(world.drops(DropReason::FarDrop), 1);
    let (flags, ..) = ask(&mut world, teid, (1000, 0), SYN, &[]);
    assert_eq!((flags, world.drops(DropReason::Redirected)), (SYN | ACK, 1));
    // With a new quota, packets pass again.
    let quota = Some(Volume { total: Some(5000), ..Default::default() });
    let update = UpdateUrr { urr_id: UrrId(1), volume_quota: quota, ..Default::default() };
    world.modify(seid, &SessionModificationRequest { update_urrs: vec![update], ..Default::default() });
    world.downlink(&down);
    assert_eq!(world.n3.take(), [down_gpdu(&down)]);
}

#[test]
fn redirected_packets_reach_another_server_and_its_answers_seem_to_be_the_sites() {
    for (ue, site, server, filter) in [
        ("10.45.0.2", "192.0.2.80", "198.51.100.7", "permit out 17 from 192.0.2.80 to assigned"),
        ("fd00:45:0:7::1", "2001:db8::80", "2001:db8:1::7", "permit out 17 from 2001:db8::80 to assigned"),
    ] {
        let [ue, site, server]: [IpAddr; 3] = [ue, site, server].map(|text| text.parse().unwrap());
        let mut world = World::new();
        let mut request = establishment(1);
        request.create_fars[0] = redirecting(if ue.is_ipv4() { 0 } else { 1 }, &server.to_string());
        add_flow(&mut request, 20, filter, 5);
        let (_, teid, _) = world.establish_by(&request);
        let packet = |from, to| {
            let datagram = build_udp((from, 4000), (to, 4000), b"text").unwrap();
            ip(from, to, protocol::UDP, &datagram)
        };
        // Before any packet is redirected, the server is treated like other hosts.
        world.downlink(&packet(server, ue));
        assert_eq!(world.n3.take(), [down_gpdu(&packet(server, ue))]);
        world.uplink(&uplink_gpdu(teid, &packet(ue, site)));
        assert_eq!(untunnelled(&world), [packet(ue, server)]);
        // The packet gets the QoS flow that a filter gives to the site.
        world.downlink(&packet(server, ue));
        let container = Some(PduSession::Downlink { qfi: 5, rqi: false, ppi: None });
        let expected = build_gpdu(GNB_TEID, container, &packet(site, ue)).unwrap();
        assert_eq!(world.n3.take(), [(expected, gnb())]);
        // Packets of other hosts keep their source.
        world.downlink(&packet(site, ue));
        let container = Some(PduSession::Downlink { qfi: 5, rqi: false, ppi: None });
        assert_eq!(world.n3.take()[0].0, build_gpdu(GNB_TEID, container, &packet(site, ue)).unwrap());
        world.assert_only_dropped(DropReason::FarDrop, 0);
        // Packets of an IP version that the server does not have.
        let (from, to): (IpAddr, IpAddr) =
            if ue.is_ipv4() { (UE_V6.into(), SERVER_V6.into()) } else { (UE_V4.into(), SERVER_V4.into()) };
        world.uplink(&uplink_gpdu(teid, &udp(from, to, b"x")));
        world.assert_only_dropped(DropReason::FarDrop, 1);
        let (up, down) = world.sessions.iter().next().unwrap().1.compiled.usage();
        assert_eq!((up.packets, down.packets), (1, 3), "once each");
    }
}

/// Rules that match only packets of the site: its answers come from the server to which packets were redirected.
#[test]
fn answers_find_rules_that_name_the_site_only() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_fars[0] = redirecting(0, "198.51.100.7");
    request.create_pdrs[1].pdi.sdf_filters = vec![sdf("permit out ip from 192.0.2.80 to assigned")];
    let (_, teid, _) = world.establish_by(&request);
    let server = Ipv4Addr::new(198, 51, 100, 7);
    world.downlink(&udp(server.into(), UE_V4.into(), b"x"));
    world.assert_only_dropped(DropReason::NoPdr, 1);
    let up = build_udp((UE_V4.into(), 5000), (SITE_V4.into(), 4000), b"up").unwrap();
    world.uplink(&uplink_gpdu(teid, &ip(UE_V4.into(), SITE_V4.into(), protocol::UDP, &up)));
    assert_eq!(untunnelled(&world).len(), 1);
    world.downlink(&udp(server.into(), UE_V4.into(), b"x"));
    assert_eq!(world.n3.take(), [down_gpdu(&udp(SITE_V4.into(), UE_V4.into(), b"x"))]);
    world.assert_only_dropped(DropReason::NoPdr, 1);
}

/// A redirection does not reach sockets of the core, which are closed to UEs.
#[test]
fn redirected_packets_do_not_reach_the_core() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_fars[0] = redirecting(0, &MACHINE_V4.to_string());
    let (_, teid, _) = world.establish_by(&request);
    let up = build_udp((UE_V4.into(), 5000), (SITE_V4.into(), 8805), b"up").unwrap();
    world.uplink(&uplink_gpdu(teid, &ip(UE_V4.into(), SITE_V4.into(), protocol::UDP, &up)));
    world.assert_only_dropped(DropReason::CoreInterface, 1);
}

/// N3 of 1500 octets, and N6 of `n6` octets.
fn with_links(n6: u32, clamp: u32) -> (World, u64, u32) {
    let (mut world, seid, teid, _) = World::with_session();
    let router = Router { ipv4: Some(GATEWAY_V4), ipv6: Some("fd00:45::1".parse().unwrap()) };
    let n3 = (Role::N3, Link::of_tunnels(1500, GTPU.into()));
    world.pipeline.set_links(Links::new([n3, (Role::N6, Link { mtu: n6, clamp, router })]));
    (world, seid, teid)
}

#[test]
fn packets_too_long_for_a_tunnel_are_fragmented_or_their_sender_is_told() {
    let (mut world, ..) = with_links(u32::MAX, 1456);
    for dont_fragment in [false, true] {
        let fits = long(SERVER_V4, UE_V4, 1456, dont_fragment);
        world.downlink(&fits);
        assert_eq!(world.n3.take(), [down_gpdu(&fits)], "1500 octets in the tunnel");
    }
    let packet = long(SERVER_V4, UE_V4, 3000, false);
    world.downlink(&packet);
    let mut payload = Vec::new();
    for (teid, fragment) in tunnelled(&world) {
        let view = ipv4::Packet::new(&fragment).unwrap();
        assert!(teid == GNB_TEID && view.checksum_ok() && fragment.len() <= 1456);
        assert_eq!(view.fragment_offset(), payload.len());
        payload.extend_from_slice(view.payload());
    }
    assert_eq!(payload, packet[20..]);
    let counted = world.sessions.iter().next().unwrap().1.compiled.usage().1;
    assert_eq!((counted.packets, counted.bytes), (3, 1456 * 2 + 3000), "a packet is charged once");

    let packet = long(SERVER_V4, UE_V4, 1457, true);
    world.downlink(&packet);
    let answers = untunnelled(&world);
    let answer = ipv4::Packet::new(&answers[0]).unwrap();
    assert_eq!((answers.len(), answer.source(), answer.destination()), (1, GATEWAY_V4, SERVER_V4));
    let message = icmp::Message::new(answer.payload()).unwrap();
    assert!(message.checksum_ok(GATEWAY_V4.into(), SERVER_V4.into()));
    assert_eq!((message.kind(), message.code(), message.sequence()), (3, 4, 1456));
    assert_eq!(message.payload(), &packet[..576 - 28]);

    let six = udp(SERVER_V6.into(), UE_V6.into(), &[0; 1457 - 48]);
    world.downlink(&six);
    let answers = untunnelled(&world);
    let answer = ipv6::Packet::new(&answers[0]).unwrap();
    assert_eq!((answer.destination(), answers[0][40], answers[0][41]), (SERVER_V6, 2, 0));
    assert_eq!(answers[0][44..48], 1456u32.to_be_bytes());
    assert_eq!(answers[0][48..], six[..1280 - 48]);
    world.assert_only_dropped(DropReason::TooBig, 2);
    // A flood does not cause as many answers.
    for _ in 0..1000 {
        world.downlink(&packet);
    }
    let answers = untunnelled(&world).len();
    assert!((10..=50).contains(&answers), "{answers}");
    assert!(world.n3.take().is_empty());
}

#[test]
fn a_batch_of_long_packets_is_fragmented_whole() {
    let (mut world, ..) = with_links(u32::MAX, 1456);
    for _ in 0..64 {
        world.n6.inject(&long(SERVER_V4, UE_V4, 9000, false), "0.0.0.0:0".parse().unwrap());
    }
    world.run(N6);
    // Each packet becomes seven fragments. While there is room all seven are sent, then none.
    let sent = tunnelled(&world).len();
    assert_eq!((sent % 7, sent / 7 + world.drops(DropReason::TxQueueFull) as usize), (0, 64));
    assert!(sent >= 250);
}

#[test]
fn packets_too_long_for_a_data_network_are_fragmented_or_the_ue_is_told() {
    let (mut world, _, teid) = with_links(1400, 1400);
    let fits = long(UE_V4, SERVER_V4, 1400, true);
    world.uplink(&uplink_gpdu(teid, &fits));
    assert_eq!(untunnelled(&world), [fits]);
    let packet = long(UE_V4, SERVER_V4, 1401, false);
    world.uplink(&uplink_gpdu(teid, &packet));
    let fragments = untunnelled(&world);
    let payload: Vec<u8> = fragments.iter().flat_map(|fragment| fragment[20..].to_vec()).collect();
    assert_eq!((fragments.len(), payload), (2, packet[20..].to_vec()));

    let packet = long(UE_V4, SERVER_V4, 1401, true);
    world.uplink(&uplink_gpdu(teid, &packet));
    let sent = world.n3.take();
    let answer = gtpu::Packet::new(&sent[0].0).unwrap().payload().to_vec();
    assert_eq!(sent, [down_gpdu(&answer)], "on the UE's QoS flow");
    let answer = ipv4::Packet::new(&answer).unwrap();
    let message = icmp::Message::new(answer.payload()).unwrap();
    assert_eq!((answer.source(), answer.destination()), (GATEWAY_V4, UE_V4));
    assert_eq!((message.kind(), message.code(), message.sequence()), (3, 4, 1400));
    world.assert_only_dropped(DropReason::TooBig, 1);
}

/// The segment size in a SYN is lowered to what fits, in both directions and IP versions.
#[test]
fn segment_sizes_fit_the_tunnel() {
    let (mut world, _, teid) = with_links(u32::MAX, 9000);
    let options = |mss: u16| [&[2, 4][..], &mss.to_be_bytes(), &[1, 3, 3, 7]].concat();
    for (ue, server, most) in
        [(IpAddr::V4(UE_V4), IpAddr::V4(SERVER_V4), 1416u16), (UE_V6.into(), SERVER_V6.into(), 1396)]
    {
        let (ue, server) = ((ue, 40_000), (server, 80));
        for (mss, expected) in [(1460, most), (9000, most), (1000, 1000), (most, most)] {
            world.uplink(&uplink_gpdu(teid, &tcp(ue, server, (7, 0), SYN, &options(mss), &[])));
            assert_eq!(untunnelled(&world), [tcp(ue, server, (7, 0), SYN, &options(expected), &[])]);
            world.downlink(&tcp(server, ue, (9, 8), SYN | ACK, &options(mss), &[]));
            assert_eq!(
                world.n3.take(),
                [down_gpdu(&tcp(server, ue, (9, 8), SYN | ACK, &options(expected), &[]))]
            );
        }
        // Segments without SYN stay as they are.
        let later = tcp(ue, server, (8, 10), ACK, &options(9000), b"data");
        world.uplink(&uplink_gpdu(teid, &later));
        assert_eq!(untunnelled(&world), [later]);
    }
}

/// Packets for redirection, translation and fragmentation, truncated everywhere and with each bit flipped: nothing
/// panics, and good packets pass afterwards.
#[test]
fn damaged_packets_survive_redirection_and_fragmentation() {
    let narrow = |far: CreateFar| {
        let mut world = World::new();
        let mut request = establishment(1);
        request.create_fars[0] = far;
        let (_, teid, _) = world.establish_by(&request);
        let router = Router { ipv4: Some(GATEWAY_V4), ipv6: Some("fd00:45::1".parse().unwrap()) };
        let n3 = (Role::N3, Link::of_tunnels(244, GTPU.into()));
        world.pipeline.set_links(Links::new([n3, (Role::N6, Link { mtu: 200, clamp: 200, router })]));
        (world, teid)
    };
    let damaged = |packet: &[u8]| {
        let packet = packet.to_vec();
        let cut: Vec<Vec<u8>> = (0..packet.len()).map(|length| packet[..length].to_vec()).collect();
        let flipped = (0..packet.len() * 8).map(move |bit| {
            let mut packet = packet.clone();
            packet[bit / 8] ^= 1 << (bit % 8);
            packet
        });
        cut.into_iter().chain(flipped)
    };
    let syn = |ue, server| tcp((ue, 40_000), (server, 80), (1, 0), SYN, &[2, 4, 5, 180, 1, 1, 1, 0], &[]);
    let uplink = [
        syn(UE_V4.into(), SITE_V4.into()),
        syn(UE_V6.into(), SERVER_V6.into()),
        udp(UE_V4.into(), SITE_V4.into(), &[7; 230]),
        udp(UE_V6.into(), SERVER_V6.into(), &[7; 230]),
    ];
    for far in [
        redirecting(2, "http://portal.example/"),
        redirecting(0, "198.51.100.7"),
        forward(1, DestinationInterface::Core, None),
    ] {
        let (mut world, teid) = narrow(far);
        for packet in &uplink {
            for bad in damaged(packet) {
                world.uplink(&uplink_gpdu(teid, &bad));
                // Answers of the server to which packets are redirected.
                let mut answer = bad;
                if answer.len() > 20 && answer[0] == 0x45 {
                    answer[12..16].copy_from_slice(&[198, 51, 100, 7]);
                    answer[16..20].copy_from_slice(&UE_V4.octets());
                }
                world.downlink(&answer);
            }
            world.n3.take();
            assert!(untunnelled(&world).iter().all(|sent| sent.len() <= 576), "fragments and answers");
        }
        let down = udp(SERVER_V4.into(), UE_V4.into(), b"good");
        world.downlink(&down);
        assert_eq!(world.n3.take(), [down_gpdu(&down)]);
    }
}

/// The control task reads its events late: they wait, and a worker that gets no packets tries again soon.
#[test]
fn events_that_find_no_room_are_sent_later() {
    const EVENTS: usize = 20;
    let (mut world, seid, ..) = World::with_session();
    assert_eq!(world.pipeline.turn(world.now_ns, &mut world.ports), None);
    for _ in 0..EVENTS {
        world.modify(seid, &update_far(2, ApplyAction::DROP | ApplyAction::NOCP));
        world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), b"x"));
    }
    let mut events = Vec::new();
    while let Some(due_ns) = world.pipeline.turn(world.now_ns, &mut world.ports) {
        assert!((1..=10_000_000).contains(&(due_ns - world.now_ns)), "{due_ns}");
        world.now_ns = due_ns;
        events.push(world.events.try_recv().unwrap());
    }
    events.extend(std::iter::from_fn(|| world.events.try_recv().ok()));
    assert_eq!(events, vec![Event::DownlinkData { seid, pdr: 2 }; EVENTS]);
}

#[test]
fn the_first_packet_that_a_rule_drops_is_told_if_the_rule_says_so() {
    let (mut world, seid, teid, _) = World::with_session();
    let down = udp(SERVER_V4.into(), UE_V4.into(), b"x");
    for round in 1..=2 {
        world.modify(seid, &update_far(2, ApplyAction::DROP | ApplyAction::NOCP));
        for _ in 0..100 {
            world.downlink(&down);
        }
        world.assert_only_dropped(DropReason::FarDrop, 100 * round);
        assert_eq!(world.events.try_recv(), Ok(Event::DownlinkData { seid, pdr: 2 }));
        assert!(world.events.try_recv().is_err(), "once until the rules change");
        let report = world.sessions.downlink_data(seid, 2, Default::default(), NOW).unwrap().request;
        assert!(report.report_type.contains(ReportType::DLDR));
        assert_eq!(report.downlink_data_report.unwrap().pdr_ids, [PdrId(2)]);
    }
    world.modify(seid, &update_far(2, ApplyAction::DROP));
    world.downlink(&down);
    assert!(world.events.try_recv().is_err() && world.n3.take().is_empty());
    world.modify(seid, &update_far(2, ApplyAction::FORW));
    world.downlink(&down);
    assert_eq!(world.n3.take(), [down_gpdu(&down)]);
    world.uplink(&uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), b"x")));
    assert_eq!(untunnelled(&world).len(), 1);
}

#[test]
fn a_peer_that_floods_does_not_silence_what_others_are_told() {
    let mut world = World::new();
    let gpdu = uplink_gpdu(0x1234, &udp(UE_V4.into(), SERVER_V4.into(), b"x"));
    for _ in 0..1000 {
        world.uplink(&gpdu);
    }
    assert_eq!(world.n3.take().len(), 50, "the burst of a peer");
    let indication = Signalling::ErrorIndication { teid: 0x1234, peer: GTPU.into(), udp_port: None }.build();
    // Some of these may share a place of the limiter's table with the first.
    let others = (1..=8u8).filter(|host| {
        let other = SocketAddr::from(([127, 0, 9, *host], 2152));
        world.n3.inject(&gpdu, other);
        world.run(N3);
        let replies = world.n3.take();
        assert!(replies.is_empty() || replies == [(indication.clone(), other)]);
        !replies.is_empty()
    });
    assert!(others.count() >= 4);
}

fn rates(uplink_kbps: u64, downlink_kbps: u64) -> Option<BitRates> {
    Some(BitRates { uplink_kbps, downlink_kbps })
}

#[test]
fn meters_of_nothing_and_of_two_to_the_fortieth() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_qers[0].mbr = rates(0, (1 << 40) / 1000);
    let (_, teid, _) = world.establish_by(&request);
    let down = long(SERVER_V4, UE_V4, 1400, false);
    for n in 0..2000u64 {
        // Five times 10 Gbit/s.
        world.now_ns = 1 + n * 224;
        world.uplink(&uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), b"x")));
        world.downlink(&down);
    }
    assert_eq!(world.n3.take().len(), 2000);
    world.assert_only_dropped(DropReason::RateLimit, 2000);
}

/// Packets within the guaranteed rate of their flow pass although other flows use up the session's maximum rate. They
/// are charged to the session's rate too.
#[test]
fn guaranteed_bit_rates_pass_where_the_session_has_none_left() {
    let mut world = World::new();
    let mut request = establishment(1);
    // 10 Mbit/s for the session, of which 5 are guaranteed to one flow.
    request.create_qers[0].mbr = rates(10_000, 10_000);
    add_flow(&mut request, 20, "permit out 17 from any 4000 to assigned", 5);
    let flow = request.create_qers.last_mut().unwrap();
    (flow.gbr, flow.mbr) = (rates(5_000, 5_000), rates(8_000, 8_000));
    request.create_pdrs.last_mut().unwrap().qer_ids.insert(0, QerId(1));
    world.establish_by(&request);
    // 1250 octets are 10,000 bits: 1000 a second are 10 Mbit/s. Offered: 2000 a second of each, for two seconds.
    let bulk = build_udp((SERVER_V4.into(), 9), (UE_V4.into(), 9), &[0; 1222]).unwrap();
    let bulk = ip(SERVER_V4.into(), UE_V4.into(), protocol::UDP, &bulk);
    let voice = udp(SERVER_V4.into(), UE_V4.into(), &[0; 1222]);
    let (mut bulk_passed, mut voice_passed) = (0, 0);
    for n in 0..4000u64 {
        world.now_ns = 1 + n * 500_000;
        world.downlink(&bulk);
        let passed = world.n3.take().len();
        world.downlink(&voice);
        // After a second bursts are over.
        if n >= 2000 {
            bulk_passed += passed;
            voice_passed += world.n3.take().len();
        } else {
            world.n3.take();
        }
    }
    assert!((490..=810).contains(&voice_passed), "{voice_passed} of the guaranteed flow");
    let all = bulk_passed + voice_passed;
    assert!((980..=1020).contains(&all), "{all} in all, {voice_passed} of the guaranteed flow");
}

#[test]
fn copies_go_where_the_rule_says() {
    let mut world = World::new();
    let mut request = establishment(1);
    let copy = |destination_interface, tunnel: Option<(u32, Ipv4Addr)>| DuplicatingParameters {
        destination_interface,
        outer_header_creation: tunnel.map(|(teid, peer)| OuterHeaderCreation::gtpu(teid, peer.into())),
        ..Default::default()
    };
    let interceptor = Ipv4Addr::new(127, 0, 0, 99);
    for far in [0, 1] {
        request.create_fars[far].apply_action |= ApplyAction::DUPL;
        request.create_fars[far].duplicating_parameters = vec![
            copy(DestinationInterface::LiFunction, Some((9, interceptor))),
            copy(DestinationInterface::SgiLan, None),
        ];
    }
    let (seid, teid, _) = world.establish_by(&request);
    let copied =
        |packet: &[u8]| (build_gpdu(9, None, packet).unwrap(), SocketAddr::new(interceptor.into(), 2152));
    let up = udp(UE_V4.into(), SERVER_V4.into(), b"up");
    world.uplink(&uplink_gpdu(teid, &up));
    assert_eq!(untunnelled(&world), [up.clone(), up.clone()]);
    assert_eq!(world.n3.take(), [copied(&up)]);
    let down = udp(SERVER_V6.into(), UE_V6.into(), b"down");
    world.downlink(&down);
    assert_eq!(world.n3.take(), [down_gpdu(&down), copied(&down)]);
    assert_eq!(untunnelled(&world), std::slice::from_ref(&down));
    // The packet is dropped; its copy is sent.
    world.modify(seid, &update_far(2, ApplyAction::DROP | ApplyAction::DUPL));
    world.downlink(&down);
    assert_eq!(world.n3.take(), [copied(&down)]);
    assert_eq!(untunnelled(&world), [down]);
    world.assert_only_dropped(DropReason::FarDrop, 1);
    let (up, down) = world.sessions.iter().next().unwrap().1.compiled.usage();
    assert_eq!((up.packets, down.packets), (1, 1), "copies are not charged");
}

/// A port that keeps the traffic classes of what is sent.
#[derive(Clone, Default)]
struct Classes(Arc<Mutex<Vec<u8>>>);

impl Port for Classes {
    fn receive(&mut self, batch: &mut Vector) -> std::io::Result<usize> {
        batch.clear();
        Ok(0)
    }
    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let tos = selected.iter().map(|at| batch.frames()[usize::from(*at)].tos());
        self.0.lock().unwrap().extend(tos);
        Sent { packets: selected.len(), ..Sent::default() }
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn transport_level_marking_is_of_the_outer_header_or_of_the_packet() {
    let mut world = World::new();
    let mut request = establishment(1);
    for far in [0, 1] {
        let parameters = request.create_fars[far].forwarding_parameters.as_mut().unwrap();
        parameters.transport_level_marking = Some(TransportLevelMarking { tos: 0xB9, mask: 0xFC });
    }
    let (_, teid, _) = world.establish_by(&request);
    let up = udp(UE_V4.into(), SERVER_V4.into(), b"up");
    world.uplink(&uplink_gpdu(teid, &up));
    let sent = untunnelled(&world);
    let mut expected = up.clone();
    expected[1] = 0xB8;
    expected[10..12].fill(0);
    let sum = checksum(&expected[..20]);
    expected[10..12].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(sent, [expected]);
    let up = udp(UE_V6.into(), SERVER_V6.into(), b"up");
    world.uplink(&uplink_gpdu(teid, &up));
    let sent = untunnelled(&world);
    assert_eq!(ipv6::Packet::new(&sent[0]).unwrap().bytes()[..2], [0x6B, 0x80]);
    assert_eq!(sent[0][2..], up[2..]);
    let classes = Classes::default();
    world.ports[N3] = Box::new(classes.clone());
    world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), b"down"));
    assert_eq!(*classes.0.lock().unwrap(), [0xB8]);
}

/// An uplink classifier (TS 23.501 §5.6.4.2): one flow leaves here, the rest goes on to the anchor, whose packets come
/// back in a tunnel of their own.
#[test]
fn an_uplink_classifier_serves_several_peers() {
    let mut world = World::new();
    let anchor = Ipv4Addr::new(127, 0, 0, 33);
    let mut request = establishment(1);
    request.create_fars[0] = forward(1, DestinationInterface::Core, Some((0x3300, anchor)));
    request.create_fars.push(forward(8, DestinationInterface::Core, None));
    let local = Pdi {
        f_teid: choose(1),
        ue_ip_address: ue_address(false),
        sdf_filters: vec![sdf("permit out 17 from 10.201.0.0/16 to assigned")],
        ..Default::default()
    };
    request.create_pdrs.push(pdr(20, 10, local, 8, &[]));
    let back = Pdi { source_interface: SourceInterface::Core, f_teid: choose(3), ..Default::default() };
    request.create_pdrs.push(pdr(21, 255, back, 2, &[]));
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    let teid = |id| {
        let created = response.created_pdrs.iter().find(|created| created.pdr_id == PdrId(id)).unwrap();
        match created.f_teid {
            Some(FTeid::Assigned { teid, .. }) => teid,
            other => panic!("{other:?}"),
        }
    };
    let near = udp(UE_V4.into(), SERVER_V4.into(), b"near");
    world.uplink(&uplink_gpdu(teid(1), &near));
    assert_eq!((untunnelled(&world), world.n3.take().len()), (vec![near], 0));
    let far = udp(UE_V4.into(), SITE_V4.into(), b"far");
    world.uplink(&uplink_gpdu(teid(1), &far));
    let expected = build_gpdu(0x3300, Some(PduSession::Uplink { qfi: QFI }), &far).unwrap();
    assert_eq!(world.n3.take(), [(expected, SocketAddr::new(anchor.into(), 2152))]);
    let answer = udp(SITE_V4.into(), UE_V4.into(), b"answer");
    let container = Some(PduSession::Downlink { qfi: 6, rqi: true, ppi: None });
    world.n3.inject(&build_gpdu(teid(21), container, &answer).unwrap(), SocketAddr::new(anchor.into(), 2152));
    world.run(N3);
    assert_eq!(world.n3.take(), [(build_gpdu(GNB_TEID, container, &answer).unwrap(), gnb())]);
    let direct = udp(SERVER_V4.into(), UE_V4.into(), b"direct");
    world.downlink(&direct);
    assert_eq!(world.n3.take(), [down_gpdu(&direct)]);
    world.assert_only_dropped(DropReason::NoPdr, 0);
}

/// Modifications add more counters and meters than the session had room for; the earlier ones keep their values.
#[test]
fn state_grows_with_modifications_and_forgets_nothing() {
    let (mut world, seid, teid, _) = World::with_session();
    let up = uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), &[0; 1222]));
    for _ in 0..1000 {
        world.uplink(&up);
    }
    let passed = untunnelled(&world).len() as u64;
    assert!(passed < 1000, "the burst is used up");
    let counted = |world: &World, urr| world.sessions.get(seid).unwrap().compiled.urr(urr).0;
    let before = world.sessions.get(seid).unwrap().compiled.state_bytes();
    for n in 0..20u32 {
        let urr = CreateUrr {
            urr_id: UrrId(100 + n),
            measurement_method: MeasurementMethod::VOLUM,
            reporting_triggers: ReportingTriggers::VOLTH,
            volume_threshold: Some(Volume { total: Some(1 << 40), ..Default::default() }),
            ..Default::default()
        };
        let qer = CreateQer { qer_id: QerId(100 + n), mbr: rates(1 << 30, 1 << 30), ..Default::default() };
        let mut all: Vec<UrrId> = vec![UrrId(1)];
        all.extend((0..=n).map(|n| UrrId(100 + n)));
        let mut qers = vec![QerId(1), QerId(2)];
        qers.extend((0..=n).map(|n| QerId(100 + n)));
        let update = UpdatePdr { pdr_id: PdrId(1), urr_ids: all, qer_ids: qers, ..Default::default() };
        world.modify(
            seid,
            &SessionModificationRequest {
                create_urrs: vec![urr],
                create_qers: vec![qer],
                update_pdrs: vec![update],
                ..Default::default()
            },
        );
        world.uplink(&up);
        assert!(untunnelled(&world).is_empty(), "no new burst with {n} more");
        // A millisecond at 100 Mbit/s lets ten packets pass.
        world.now_ns += 1_000_000;
        world.uplink(&up);
        assert_eq!(untunnelled(&world).len(), 1, "with {n} more");
        for _ in 0..20 {
            world.uplink(&up);
        }
        untunnelled(&world);
    }
    let after = world.sessions.get(seid).unwrap().compiled.state_bytes();
    assert!(after > before, "{after}");
    let usage = world.sessions.get(seid).unwrap().compiled.usage().0;
    assert_eq!(counted(&world, 1), usage);
    assert_eq!(usage.bytes, usage.packets * 1250);
    assert_eq!(counted(&world, 100).packets, usage.packets - passed, "from when the URR came");
    assert!(counted(&world, 119).packets < counted(&world, 118).packets);
}

/// Every first octet with every message type and wrong lengths: each packet is sent, answered or counted once.
#[test]
fn hostile_gtpu_is_accounted_for() {
    let (mut world, _, teid, _) = World::with_session();
    let good = uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), b"payload"));
    let mut offered = 0u64;
    let mut answered = 0u64;
    for first in 0..=255u8 {
        for kind in [0, 1, 2, 3, 26, 31, 70, 253, 254, 255] {
            for length in [0, 1, 4, 8, good.len() as u16 - 8, good.len() as u16 - 7, u16::MAX] {
                let mut bytes = good.clone();
                (bytes[0], bytes[1]) = (first, kind);
                bytes[2..4].copy_from_slice(&length.to_be_bytes());
                world.n3.inject(&bytes, gnb());
                offered += 1;
            }
        }
        world.run(N3);
    }
    // Chains of extension headers: without end, of length zero, and as long as the packet.
    for kind in 0..=255u8 {
        for words in [0, 1, 2, 8, 255] {
            let mut bytes = vec![0x34, 255, 0, 0];
            bytes.extend(teid.to_be_bytes());
            bytes.extend([0, 0, 0, kind]);
            for _ in 0..40 {
                let mut header = vec![0; 4 * usize::from(words.min(8u8)).max(1)];
                header[0] = words;
                *header.last_mut().unwrap() = kind;
                bytes.extend(header);
            }
            let length = (bytes.len() - 8) as u16;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            world.n3.inject(&bytes, gnb());
            offered += 1;
        }
        world.run(N3);
    }
    // GTP-U in GTP-U, to the UPF itself and to another tunnel.
    for to in [IpAddr::from(GTPU), SERVER_V4.into()] {
        let inner = build_udp((UE_V4.into(), 2152), (to, 2152), &good).unwrap();
        world.n3.inject(&uplink_gpdu(teid, &ip(UE_V4.into(), to, protocol::UDP, &inner)), gnb());
        offered += 1;
    }
    world.run(N3);
    assert_eq!(world.drops(DropReason::CoreInterface), 1);
    let json = upf::stats::json(&world.stats, world.tables.interfaces());
    for consumed in ["other_signalling", "echo_requests", "error_indications_received"] {
        answered += json["gtpu"][consumed].as_u64().unwrap();
    }
    let dropped: u64 = DropReason::ALL.iter().map(|reason| world.drops(*reason)).sum();
    let sent = untunnelled(&world).len() as u64;
    assert_eq!(dropped + answered + sent, offered, "{json}");
    world.uplink(&good);
    assert!(Flow::parse(&untunnelled(&world)[0]).is_ok(), "what is good still passes");
}
