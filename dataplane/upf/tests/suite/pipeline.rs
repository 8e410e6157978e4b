//! The pipeline between memory ports: the octets of sent packets, and the drop reasons of the others.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::support::*;
use crate::world::*;
use classifier::Backend;
use packet::gtpu::{PduSession, Signalling, build_gpdu};
use packet::ndp::{RouterAdvertisement, RouterSolicitation};
use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::*;
use telemetry::DropReason;
use upf::Config;
use upf::n4::ineffective::Ineffective;
use upf::pipeline::Event;
use upf::stats;

#[test]
fn uplink_loses_its_tunnel_and_downlink_gets_one() {
    let (mut world, ..) = World::with_session();
    let teid = {
        let session = world.sessions.iter().next().unwrap().1;
        session.rules.teids()[0]
    };
    for (ue, server) in [(IpAddr::V4(UE_V4), IpAddr::V4(SERVER_V4)), (UE_V6.into(), SERVER_V6.into())] {
        let up = udp(ue, server, b"up");
        world.uplink(&uplink_gpdu(teid, &up));
        assert_eq!(world.n6.take().into_iter().map(|(packet, _)| packet).collect::<Vec<_>>(), [up]);

        let down = udp(server, ue, b"down");
        // A link may pad short packets; the padding must not enter the tunnel.
        let mut padded = down.clone();
        padded.extend_from_slice(&[0; 6]);
        world.downlink(&padded);
        let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
        let expected = build_gpdu(GNB_TEID, container, &down).unwrap();
        assert_eq!(world.n3.take(), [(expected, gnb())]);
    }
    let json = stats::json(&world.stats, world.tables.interfaces());
    assert_eq!(json["interfaces"]["n3"]["received"]["packets"], 2);
    assert_eq!(json["interfaces"]["internet"]["sent"]["packets"], 2);
    assert_eq!(json["interfaces"]["n3"]["sent"]["packets"], 2);
    assert_eq!(json["drops"], serde_json::json!({}));
}

#[test]
fn the_nodes_of_the_graph_count_what_they_do() {
    let (mut world, _, teid, _) = World::with_session();
    for n in 0..100u8 {
        let packet = udp(UE_V4.into(), SERVER_V4.into(), &[n]);
        world.n3.inject(&uplink_gpdu(if n % 10 == 9 { teid ^ 1 } else { teid }, &packet), gnb());
    }
    world.n3.inject(&Signalling::EchoRequest { sequence: 7 }.build(), gnb());
    world.run(N3);
    let graph = upf::pipeline::graph::json(&world.stats);
    let node =
        |name: &str| graph.as_array().unwrap().iter().find(|node| node["node"] == name).unwrap().clone();
    for (name, packets) in [
        ("receive", 101),
        ("parse", 101),
        ("signalling", 1),
        ("fragments", 0),
        ("look_up", 101),
        ("execute", 101),
        ("buffer", 0),
        ("transmit", 101),
    ] {
        assert_eq!(node(name)["packets"], packets, "{name}: {graph}");
    }
    assert_eq!(node("look_up")["drops"], serde_json::json!({"unknown_teid": 10}));
    assert_eq!((&node("receive")["calls"], &node("receive")["packets_per_call"]), (&2.into(), &50.5.into()));
    assert_eq!(node("execute")["drops"], serde_json::json!({}));
}

#[test]
fn batches_keep_order_and_mix_sessions() {
    let (mut world, _, teid, _) = World::with_session();
    for n in 0..100u8 {
        let packet = udp(UE_V4.into(), SERVER_V4.into(), &[n]);
        world.n3.inject(&uplink_gpdu(if n % 10 == 9 { teid ^ 1 } else { teid }, &packet), gnb());
    }
    world.run(N3);
    let sent: Vec<u8> = world.n6.take().into_iter().map(|(packet, _)| packet[28]).collect();
    assert_eq!(sent, (0..100).filter(|n| n % 10 != 9).collect::<Vec<u8>>());
    assert_eq!(world.drops(DropReason::UnknownTeid), 10);
}

/// The ordinary session with services on the UE's ports 5001 to 5000 + `services`: odd ones are dropped.
fn with_services(services: u16) -> SessionEstablishmentRequest {
    let mut request = establishment(0x55);
    let mut drop = forward(9, DestinationInterface::Core, None);
    drop.apply_action = ApplyAction::DROP;
    drop.forwarding_parameters = None;
    request.create_fars.push(drop);
    for service in 1..=services {
        let text = format!("permit out 17 from any to assigned {}", 5000 + service);
        let filter = SdfFilter { flow_description: Some(text.as_bytes().into()), ..Default::default() };
        let pdi = |f_teid, source_interface, destination| Pdi {
            source_interface,
            f_teid,
            ue_ip_address: ue_address(destination),
            sdf_filters: vec![filter.clone()],
            ..Default::default()
        };
        let up = pdi(choose(1), SourceInterface::Access, false);
        let down = pdi(None, SourceInterface::Core, true);
        let [far_up, far_down] = if service % 2 == 1 { [9, 9] } else { [1, 2] };
        request.create_pdrs.push(pdr(10 + 2 * service, 100, up, far_up, &[]));
        request.create_pdrs.push(pdr(11 + 2 * service, 100, down, far_down, &[2]));
    }
    request
}

/// A packet between the UE's port and the server's port 4000.
fn service_packet(ue: IpAddr, server: IpAddr, port: u16, uplink: bool) -> Vec<u8> {
    let mut packet = if uplink { udp(ue, server, b"x") } else { udp(server, ue, b"x") };
    let ports = packet.len() - 9;
    let [source, destination] = if uplink { [port, 4000] } else { [4000, port] };
    packet[ports..ports + 2].copy_from_slice(&source.to_be_bytes());
    packet[ports + 2..ports + 4].copy_from_slice(&destination.to_be_bytes());
    packet
}

/// The packets that a UPF forwards of those from and to the services, uplink and downlink.
fn forwarded(config: Config) -> [Vec<Vec<u8>>; 2] {
    let mut world = World::with_config(config);
    let (_, teid, _) = world.establish_by(&with_services(40));
    for port in 4995..5045 {
        for (ue, server) in [(IpAddr::V4(UE_V4), IpAddr::V4(SERVER_V4)), (UE_V6.into(), SERVER_V6.into())] {
            world.n3.inject(&uplink_gpdu(teid, &service_packet(ue, server, port, true)), gnb());
            world.n6.inject(&service_packet(ue, server, port, false), "0.0.0.0:0".parse().unwrap());
        }
    }
    world.run(N3);
    world.run(N6);
    // 20 of the 40 services, two families, two directions.
    assert_eq!(world.drops(DropReason::FarDrop), 80);
    [world.n6.take(), world.n3.take()].map(|sent| sent.into_iter().map(|(packet, _)| packet).collect())
}

#[test]
fn every_classifier_forwards_the_same() {
    let expected = forwarded(config("gw0"));
    assert_eq!(expected.each_ref().map(Vec::len), [60, 60]);
    for backend in Backend::ALL {
        let config = Config { classifier: *backend, ..config("gw0") };
        // All worlds have the same TEIDs, since they have the same seeds.
        assert!(forwarded(config) == expected, "{backend}");
    }
}

#[test]
fn sessions_with_the_same_policy_share_their_rules() {
    let mut world = World::new();
    let mut request = with_services(40);
    world.establish_by(&request);
    for pdr in &mut request.create_pdrs {
        if let Some(ue) = &mut pdr.pdi.ue_ip_address {
            (ue.ipv4, ue.ipv6) =
                (Some([10, 45, 9, 9].into()), Some(Ipv6Addr::new(0xfd00, 0x45, 0, 9, 0, 0, 0, 0)));
        }
    }
    world.establish_by(&request);
    let compiled: Vec<_> = world.sessions.iter().map(|(_, session)| &session.compiled).collect();
    assert_ne!(compiled[0].seid(), compiled[1].seid());
    assert!(compiled[0].shares_rules(compiled[1]));
}

#[test]
fn rules_without_effect_are_remarked_and_accepted() {
    let mut world = World::new();
    let mut request = with_services(2);
    let mut again = request.create_pdrs[4].clone();
    (again.pdr_id, again.precedence) = (PdrId(50), Precedence(101));
    let mut never = request.create_pdrs[5].clone();
    never.pdr_id = PdrId(51);
    never.pdi.sdf_filters[0].flow_description = Some("permit out 17 from any to 10.46.0.1 80".into());
    request.create_pdrs.extend([again, never]);
    let (seid, ..) = world.establish_by(&request);
    let ineffective = &world.sessions.get(seid).unwrap().ineffective;
    assert_eq!(
        **ineffective,
        [Ineffective::NeverMatches { pdr: 51 }, Ineffective::Duplicate { pdr: 50, of: 12 }]
    );
    assert_eq!(ineffective[1].to_string(), "PDR 50 never applies: it matches as PDR 12, which comes first");
    assert!(world.sessions.iter().all(|(_, session)| session.rules.pdrs.contains(51)));
}

#[test]
fn unknown_tunnels_get_error_indications_but_not_without_end() {
    let mut world = World::new();
    let gpdu = uplink_gpdu(0x1234, &udp(UE_V4.into(), SERVER_V4.into(), b"x"));
    // From another port: the indication still goes to the GTP-U port (TS 29.281 §4.4.2.4).
    world.n3.inject(&gpdu, SocketAddr::new(GNB.into(), 9999));
    world.run(N3);
    let indication = Signalling::ErrorIndication { teid: 0x1234, peer: GTPU.into(), udp_port: None };
    assert_eq!(world.n3.take(), [(indication.build(), gnb())]);
    for _ in 0..1000 {
        world.uplink(&gpdu);
    }
    let replies = world.n3.take().len();
    assert!((10..100).contains(&replies), "{replies} replies to a flood");
    world.assert_only_dropped(DropReason::UnknownTeid, 1001);
    world.now_ns += 10_000_000_000;
    world.uplink(&gpdu);
    assert_eq!(world.n3.take().len(), 1, "after a pause peers are told again");
    // While sessions are being restored after a start, packets are counted and no indication is sent.
    world.now_ns += 10_000_000_000;
    world.pipeline.keep_quiet_until(world.now_ns + 1);
    world.uplink(&gpdu);
    world.assert_only_dropped(DropReason::UnknownTeid, 1003);
    assert!(world.n3.take().is_empty());
    world.now_ns += 1;
    world.uplink(&gpdu);
    assert_eq!(world.n3.take().len(), 1);
}

#[test]
fn echo_is_answered_to_the_sender() {
    let mut world = World::new();
    let sender = SocketAddr::new(GNB.into(), 4242);
    world.n3.inject(&Signalling::EchoRequest { sequence: 7 }.build(), sender);
    world.run(N3);
    assert_eq!(world.n3.take(), [(Signalling::EchoResponse { sequence: 7 }.build(), sender)]);
    world.assert_only_dropped(DropReason::UnknownTeid, 0);
}

#[test]
fn foreign_sources_are_dropped_and_told_from_link_local_ones() {
    let (mut world, _, teid, _) = World::with_session();
    for source in ["10.45.0.3", "192.0.2.1"] {
        world.uplink(&uplink_gpdu(teid, &udp(source.parse().unwrap(), SERVER_V4.into(), b"x")));
    }
    world.uplink(&uplink_gpdu(teid, &udp("fd00:45:0:8::1".parse().unwrap(), SERVER_V6.into(), b"x")));
    world.assert_only_dropped(DropReason::SourceAddress, 3);
    world.uplink(&uplink_gpdu(teid, &udp("fe80::1".parse().unwrap(), "ff02::fb".parse().unwrap(), b"mdns")));
    assert_eq!(world.drops(DropReason::LinkLocal), 1);
    assert_eq!(world.drops(DropReason::SourceAddress), 3);
}

/// An uplink packet from the UE: `payload` of `protocol`, as a fragment with an identification at an offset if there is one.
fn from_ue(to: IpAddr, protocol: u8, fragment: Option<(u16, u16)>, payload: &[u8]) -> Vec<u8> {
    match to {
        IpAddr::V4(to) => {
            let mut packet = packet::ipv4::Header::new(UE_V4, to, protocol).build(payload).unwrap();
            if let Some((identification, offset)) = fragment {
                packet[4..6].copy_from_slice(&identification.to_be_bytes());
                // More fragments follow; then the header's checksum again.
                packet[6..8].copy_from_slice(&(0x2000 | (offset / 8)).to_be_bytes());
                packet[10..12].fill(0);
                let sum = packet::checksum::checksum(&packet[..20]);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            packet
        }
        IpAddr::V6(to) => {
            let Some((identification, offset)) = fragment else {
                return packet::ipv6::Header::new(UE_V6, to, protocol).build(payload).unwrap();
            };
            let mut fragment = vec![protocol, 0];
            fragment.extend((offset | 1).to_be_bytes());
            fragment.extend([0, 0]);
            fragment.extend(identification.to_be_bytes());
            fragment.extend(payload);
            packet::ipv6::Header::new(UE_V6, to, packet::protocol::FRAGMENT).build(&fragment).unwrap()
        }
    }
}

#[test]
fn ues_do_not_reach_the_machine() {
    use packet::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};
    let (mut world, _, teid, _) = World::with_session();
    let header =
        |port: u16| [&4000u16.to_be_bytes()[..], &port.to_be_bytes(), &[0, 16, 0, 0], b"datadata"].concat();
    let machine = [IpAddr::V4(MACHINE_V4), MACHINE_V6.into(), GTPU.into(), "127.0.0.5".parse().unwrap()];
    let others = [IpAddr::V4(SERVER_V4), SERVER_V6.into()];
    let mut stopped = 0;
    for to in machine.into_iter().chain(others) {
        let guarded = !others.contains(&to);
        let icmp = if to.is_ipv4() { ICMP } else { ICMPV6 };
        // G-PDUs within G-PDUs, PFCP, SCTP with and without UDP, other services; whole, and as first and later fragments.
        for (protocol, fragment, port) in [
            (UDP, None, 2152),
            (UDP, None, 8805),
            (UDP, None, 9899),
            (UDP, Some((1, 0)), 2152),
            (UDP, Some((2, 0)), 8805),
            (UDP, Some((2, 1024)), 5000),
            (SCTP, None, 38412),
            (SCTP, Some((3, 0)), 38412),
            (SCTP, Some((3, 1024)), 5000),
            (UDP, None, 53),
            (UDP, Some((4, 0)), 53),
            (TCP, None, 7777),
            (TCP, Some((5, 0)), 7777),
            (TCP, Some((5, 1024)), 0),
            (icmp, None, 0),
        ] {
            let packet = from_ue(to, protocol, fragment, &header(port));
            world.uplink(&uplink_gpdu(teid, &packet));
            stopped += u64::from(guarded);
            let sent: Vec<_> = world.n6.take().into_iter().map(|(packet, _)| packet).collect();
            let expected = if guarded { vec![] } else { vec![packet] };
            assert_eq!(sent, expected, "{protocol} {fragment:?} {port} to {to}");
            assert_eq!(world.drops(DropReason::CoreInterface), stopped);
        }
    }
    world.assert_only_dropped(DropReason::CoreInterface, stopped);
}

#[test]
fn router_solicitations_reach_the_smf_and_advertisements_the_ue() {
    let (mut world, _, teid, n4u) = World::with_session();
    let solicitation = RouterSolicitation { source: "fe80::5".parse().unwrap() }.build();
    world.uplink(&uplink_gpdu(teid, &solicitation));
    let smf = SocketAddr::new(SMF.into(), 2152);
    assert_eq!(world.n3.take(), [(build_gpdu(77, None, &solicitation).unwrap(), smf)]);

    let router = "fe80::1".parse().unwrap();
    let advertisement =
        RouterAdvertisement::for_ue(router, "fe80::5".parse().unwrap(), UE_PREFIX, Some(1400)).build();
    world.n3.inject(&build_gpdu(n4u, None, &advertisement).unwrap(), smf);
    world.run(N3);
    let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
    assert_eq!(world.n3.take(), [(build_gpdu(GNB_TEID, container, &advertisement).unwrap(), gnb())]);
    world.assert_only_dropped(DropReason::NoPdr, 0);

    // The rate of packets to the SMF is limited.
    for _ in 0..1000 {
        world.uplink(&uplink_gpdu(teid, &solicitation));
    }
    assert!((100..300).contains(&world.n3.take().len()));
    assert!(world.drops(DropReason::ControlOverflow) >= 700);
}

#[test]
fn n6_drops_are_told_apart() {
    let (mut world, ..) = World::with_session();
    world.downlink(&udp(SERVER_V4.into(), "10.45.0.99".parse().unwrap(), b"x"));
    world.assert_only_dropped(DropReason::UnknownUe, 1);
    world.downlink(&udp("fe80::1".parse().unwrap(), "ff02::16".parse().unwrap(), b"mld"));
    assert_eq!(world.drops(DropReason::LinkLocal), 1);
    world.downlink(&[0x45, 0, 0]);
    assert_eq!(world.drops(DropReason::IpMalformed), 1);
    world.downlink(&[0x00; 40]);
    assert_eq!(world.drops(DropReason::NotIp), 1);
    assert!(world.n3.take().is_empty());
}

/// A good packet, truncated everywhere and with each bit flipped: it is sent or counted, and nothing panics.
#[test]
fn damaged_packets_are_all_accounted_for() {
    let (mut world, _, teid, _) = World::with_session();
    let good = uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), b"payload"));
    let mut offered = 0;
    let mut inject = |world: &mut World, bytes: &[u8]| {
        world.uplink(bytes);
        offered += 1;
    };
    for length in 0..good.len() {
        inject(&mut world, &good[..length]);
    }
    let cut: u64 = world.drops(DropReason::GtpuMalformed) + world.drops(DropReason::GtpuExtension);
    assert_eq!(cut, good.len() as u64);
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        inject(&mut world, &bytes);
    }
    let dropped: u64 = DropReason::ALL.iter().map(|reason| world.drops(*reason)).sum();
    let signalling =
        stats::json(&world.stats, world.tables.interfaces())["gtpu"]["other_signalling"].as_u64().unwrap();
    let sent = world.n6.take().len() as u64;
    assert_eq!(dropped + signalling + sent, offered);
    // The untouched packet still passes.
    world.uplink(&good);
    assert_eq!(world.n6.take().len(), 1);
}

#[test]
fn closed_gates_and_exhausted_rates_drop() {
    let (mut world, seid, teid, _) = World::with_session();
    let up = uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), &[0; 1222]));
    // 1250 octets per packet at 100 Mbit/s are 10,000 packets a second; offered are 100,000.
    for n in 0..10_000u64 {
        world.now_ns = 1 + n * 10_000;
        world.uplink(&up);
    }
    let passed = world.n6.take().len();
    // A tenth of a second and the burst of 50 ms: 1500.
    assert!((1495..=1505).contains(&passed), "{passed}");
    assert_eq!(world.drops(DropReason::RateLimit), 10_000 - passed as u64);

    let close = UpdateQer {
        qer_id: QerId(1),
        gate_status: Some(GateStatus { uplink: Gate::Closed, downlink: Gate::Open }),
        ..Default::default()
    };
    let request = SessionModificationRequest { update_qers: vec![close], ..Default::default() };
    let modified = world.sessions.modify(seid, SMF.into(), &request, NOW).unwrap();
    assert_eq!(modified.response.cause, Cause::ACCEPTED);
    world.now_ns += 1_000_000_000;
    world.uplink(&up);
    assert_eq!(world.drops(DropReason::GateClosed), 1);
    world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), b"x"));
    assert_eq!(world.n3.take().len(), 1, "the other direction stays open");
}

#[test]
fn meters_and_counters_outlive_a_change_of_rate() {
    let (mut world, seid, teid, _) = World::with_session();
    let up = uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), &[0; 1222]));
    for _ in 0..1000 {
        world.uplink(&up);
    }
    let passed = world.n6.take().len() as u64;
    assert!(passed < 1000);
    let update = UpdateQer {
        qer_id: QerId(1),
        mbr: Some(BitRates { uplink_kbps: 50_000, downlink_kbps: 2000 }),
        ..Default::default()
    };
    let request = SessionModificationRequest { update_qers: vec![update], ..Default::default() };
    assert_eq!(
        world.sessions.modify(seid, SMF.into(), &request, NOW).unwrap().response.cause,
        Cause::ACCEPTED
    );
    world.uplink(&up);
    assert!(world.n6.take().is_empty(), "a change of rate gives no new burst");
    let counted = world.sessions.get(seid).unwrap().compiled.urr(1).0;
    assert_eq!((counted.packets, counted.bytes), (passed, passed * 1250));
}

#[test]
fn precedence_and_sdf_filters_choose_the_flow() {
    let mut world = World::new();
    let mut request = establishment(1);
    // DNS on a flow of its own, port 5000 blocked, the rest on the default flow.
    for (id, precedence, text, far) in [
        (10, 20, "permit out 17 from any 53 to assigned", 2),
        (11, 10, "permit out 17 from any 4000 to assigned", 9),
    ] {
        let filter = SdfFilter { flow_description: Some(text.into()), ..Default::default() };
        let pdi = Pdi {
            source_interface: SourceInterface::Core,
            ue_ip_address: ue_address(true),
            sdf_filters: vec![filter],
            ..Default::default()
        };
        request.create_pdrs.push(pdr(id, precedence, pdi, far, &[3]));
    }
    request.create_qers.push(CreateQer { qer_id: QerId(3), qfi: Some(Qfi(5)), ..Default::default() });
    let drop = CreateFar { far_id: FarId(9), apply_action: ApplyAction::DROP, ..Default::default() };
    request.create_fars.push(drop);
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");

    let dns = packet::transport::build_udp((SERVER_V4.into(), 53), (UE_V4.into(), 999), b"answer").unwrap();
    let dns = packet::ipv4::Header::new(SERVER_V4, UE_V4, 17).build(&dns).unwrap();
    world.downlink(&dns);
    let container = Some(PduSession::Downlink { qfi: 5, rqi: false, ppi: None });
    assert_eq!(world.n3.take(), [(build_gpdu(GNB_TEID, container, &dns).unwrap(), gnb())]);
    world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), b"from port 4000"));
    world.assert_only_dropped(DropReason::FarDrop, 1);
    assert!(world.n3.take().is_empty());
}

#[test]
fn path_switches_are_followed_and_released_sessions_forgotten() {
    let (mut world, seid, teid, _) = World::with_session();
    let new_gnb = SocketAddr::new("127.0.0.21".parse().unwrap(), 2152);
    let request = path_switch(5, new_gnb.ip());
    let modified = world.sessions.modify(seid, SMF.into(), &request, NOW).unwrap();
    assert_eq!(
        (modified.end_markers[0].tunnel.teid, modified.end_markers[0].tunnel.far_end()),
        (GNB_TEID, GNB_PEER),
        "on the old tunnel"
    );
    let down = udp(SERVER_V4.into(), UE_V4.into(), b"x");
    world.downlink(&down);
    assert_eq!(world.n3.take()[0].1, new_gnb);

    world.sessions.modify(seid, SMF.into(), &update_far(2, ApplyAction::BUFF), NOW).unwrap();
    for n in 0..10 {
        world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), &[n]));
    }
    assert!(world.n3.take().is_empty());
    // Released in order, ahead of the packet that comes then (UP-2).
    world.sessions.modify(seid, SMF.into(), &update_far(2, ApplyAction::FORW), NOW).unwrap();
    world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), &[10]));
    let sent: Vec<u8> =
        world.n3.take().into_iter().filter_map(|(packet, _)| packet.last().copied()).collect();
    assert_eq!(sent, (0..=10).collect::<Vec<u8>>());

    assert!(world.sessions.delete(seid, "127.0.0.5".parse().unwrap(), NOW).is_none(), "of another SMF");
    let (cp_seid, response) = world.sessions.delete(seid, SMF.into(), NOW).unwrap();
    assert_eq!(cp_seid, 0x55);
    let volume = response.usage_reports[0].volume.unwrap();
    assert_eq!((volume.downlink_packets, volume.downlink), (Some(12), Some(12 * down.len() as u64)));
    world.uplink(&uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), b"x")));
    assert_eq!(world.drops(DropReason::UnknownTeid), 1);
    world.downlink(&down);
    assert_eq!(world.drops(DropReason::UnknownUe), 1);

    // A new session with the same UE address has another TEID, so late packets of the old session do not enter it.
    let (_, again, _) = world.establish();
    assert_ne!(again, teid);
}

#[test]
fn error_indications_reach_the_control_task() {
    let (mut world, ..) = World::with_session();
    let indication = Signalling::ErrorIndication { teid: GNB_TEID, peer: GNB.into(), udp_port: None };
    world.uplink(&indication.build());
    let Ok(Event::ErrorIndication { peer, teid }) = world.events.try_recv() else { panic!("an event") };
    assert_eq!(world.sessions.by_remote(peer, teid).next().unwrap().1.cp_seid, 0x55);
    assert!(world.sessions.by_remote(peer, teid + 1).next().is_none());
}
