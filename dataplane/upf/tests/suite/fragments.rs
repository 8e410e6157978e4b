//! Fragments of users' packets: all match the rule of their packet's flow, in any order of arrival (TS 29.244 §5.2.1A).

use std::net::IpAddr;

use crate::support::*;
use crate::world::*;
use packet::gtpu;
use packet::transport::build_udp;
use packet::{ipv4, ipv6, protocol};
use pfcp::message::SessionEstablishmentRequest;
use pfcp::*;
use telemetry::DropReason;
use upf::pipeline::Graph;

/// Port and QoS flow of the service; other packets belong to the default flow.
const PORT: u16 = 5004;
const SERVICE: u8 = 5;
const SECOND_NS: u64 = 1_000_000_000;

/// An ordinary session with a downlink PDR for the service.
fn with_service() -> SessionEstablishmentRequest {
    let mut request = establishment(1);
    for (id, server) in [(8, "10.201.0.2"), (9, "fd00:201::2")] {
        let text = format!("permit out 17 from {server} {PORT} to assigned");
        let pdi = Pdi {
            source_interface: SourceInterface::Core,
            ue_ip_address: ue_address(true),
            sdf_filters: vec![SdfFilter {
                flow_description: Some(text.as_str().into()),
                ..Default::default()
            }],
            ..Default::default()
        };
        request.create_pdrs.push(pdr(id, 10, pdi, 2, &[8]));
    }
    request.create_qers.push(CreateQer { qer_id: QerId(8), qfi: Some(Qfi(SERVICE)), ..Default::default() });
    request
}

/// A packet of the service in fragments of 16 octets of payload and less.
fn fragments(server: IpAddr, ue: IpAddr, identification: u16, port: u16) -> Vec<Vec<u8>> {
    let datagram = build_udp((server, port), (ue, 9), b"the payload of a service").unwrap();
    let count = datagram.len().div_ceil(16);
    let parts = datagram.chunks(16).enumerate().map(|(n, part)| {
        let (offset, more) = ((n * 16) as u16, n + 1 < count);
        match (server, ue) {
            (IpAddr::V4(server), IpAddr::V4(ue)) => {
                let header = ipv4::Header { identification, ..ipv4::Header::new(server, ue, protocol::UDP) };
                let mut packet = header.build(part).unwrap();
                packet[6..8].copy_from_slice(&((u16::from(more) << 13) | (offset / 8)).to_be_bytes());
                packet[10..12].fill(0);
                let sum = packet::checksum::checksum(&packet[..20]);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
                packet
            }
            (IpAddr::V6(server), IpAddr::V6(ue)) => {
                let mut fragment = vec![protocol::UDP, 0];
                fragment.extend((offset | u16::from(more)).to_be_bytes());
                fragment.extend(u32::from(identification).to_be_bytes());
                fragment.extend(part);
                ipv6::Header::new(server, ue, protocol::FRAGMENT).build(&fragment).unwrap()
            }
            _ => panic!("two families"),
        }
    });
    parts.collect()
}

/// The packets that the gNB received, with their QoS flows.
fn received(world: &World) -> Vec<(Vec<u8>, u8)> {
    let sent = world.n3.take().into_iter();
    sent.map(|(datagram, _)| {
        let packet = gtpu::Packet::new(&datagram).unwrap();
        (packet.payload().to_vec(), packet.pdu_session().unwrap().qfi())
    })
    .collect()
}

fn pairs() -> [(IpAddr, IpAddr); 2] {
    [(SERVER_V4.into(), UE_V4.into()), (SERVER_V6.into(), UE_V6.into())]
}

#[test]
fn fragments_in_any_order_go_with_their_flow() {
    for (server, ue) in pairs() {
        for order in [[0, 1], [1, 0]] {
            for at_once in [false, true] {
                let mut world = World::new();
                world.establish_by(&with_service());
                let parts = fragments(server, ue, 7, PORT);
                assert_eq!(parts.len(), 2);
                for at in order {
                    world.n6.inject(&parts[at], "0.0.0.0:0".parse().unwrap());
                    if !at_once {
                        world.run(N6);
                    }
                }
                world.run(N6);
                let mut got = received(&world);
                assert!(got.iter().all(|(_, qfi)| *qfi == SERVICE), "{order:?} {at_once} {got:?}");
                let mut sent = parts.clone();
                let mut got: Vec<Vec<u8>> = got.drain(..).map(|(packet, _)| packet).collect();
                sent.sort();
                got.sort();
                assert_eq!(got, sent, "octet by octet");
            }
        }
    }
}

/// Fragments of two packets with the same addresses alternate: each packet keeps its flow.
#[test]
fn packets_in_parts_are_told_apart() {
    for (server, ue) in pairs() {
        let mut world = World::new();
        world.establish_by(&with_service());
        let (service, other) = (fragments(server, ue, 1, PORT), fragments(server, ue, 2, 80));
        for at in [1, 0] {
            world.downlink(&other[at]);
            world.downlink(&service[at]);
        }
        for (packet, qfi) in received(&world) {
            assert_eq!(qfi, if service.contains(&packet) { SERVICE } else { QFI });
        }
        // The same identification is used again after its packet was complete.
        for part in fragments(server, ue, 1, 80) {
            world.downlink(&part);
        }
        let got = received(&world);
        assert_eq!(got.iter().map(|(_, qfi)| *qfi).collect::<Vec<_>>(), [QFI; 2]);
    }
}

#[test]
fn what_never_gets_its_first_fragment_is_dropped_in_time() {
    let mut world = World::new();
    world.establish_by(&with_service());
    let parts = fragments(SERVER_V4.into(), UE_V4.into(), 7, PORT);
    world.downlink(&parts[1]);
    assert!(received(&world).is_empty());
    // A worker that sleeps meanwhile learns when it has to look.
    let came_ns = world.now_ns;
    world.now_ns += SECOND_NS;
    let due_ns = world.pipeline.turn(world.now_ns, &mut world.ports).unwrap();
    assert!((came_ns + 2 * SECOND_NS..=came_ns + 4 * SECOND_NS).contains(&due_ns), "{due_ns}");
    assert_eq!(world.pipeline.turn(due_ns - 1, &mut world.ports), Some(due_ns));
    assert_eq!(world.drops(DropReason::FragmentOverflow), 0);
    assert_eq!(world.pipeline.turn(due_ns, &mut world.ports), None);
    world.assert_only_dropped(DropReason::FragmentOverflow, 1);
    // Fragments for unknown UEs are not kept.
    let foreign = fragments(SERVER_V4.into(), [10, 45, 9, 9].into(), 7, PORT);
    world.downlink(&foreign[1]);
    assert_eq!(world.drops(DropReason::UnknownUe), 1);
}

#[test]
fn fragments_that_contradict_others_are_dropped() {
    let mut world = World::new();
    world.establish_by(&with_service());
    let service = fragments(SERVER_V4.into(), UE_V4.into(), 7, PORT);
    let other = fragments(SERVER_V4.into(), UE_V4.into(), 7, 80);
    world.downlink(&other[0]);
    // A second first fragment is dropped, and does not assign the later fragments to the service.
    world.downlink(&service[0]);
    world.downlink(&service[1]);
    let got = received(&world);
    assert_eq!(got, [(other[0].clone(), QFI), (service[1].clone(), QFI)]);
    world.assert_only_dropped(DropReason::FragmentOverlap, 1);
}

/// A UE has as many IPv6 addresses as senders like. Incomplete packets to all of them leave room for the packets
/// of other UEs.
#[test]
fn incomplete_packets_to_one_ue_do_not_stop_others() {
    let mut world = World::new();
    world.establish_by(&with_service());
    let mut other = with_service();
    for address in other.create_pdrs.iter_mut().filter_map(|pdr| pdr.pdi.ue_ip_address.as_mut()) {
        address.ipv4 = Some([10, 45, 0, 77].into());
        address.ipv6 = Some([0xfd00, 0x45, 0, 8, 0, 0, 0, 0].into());
    }
    world.establish_by(&other);
    let IpAddr::V6(ue) = IpAddr::from(UE_V6) else { panic!("IPv6") };
    for number in 0..10_000u16 {
        let address = (ue.to_bits() & !0xFFFF) | u128::from(number);
        let address = std::net::Ipv6Addr::from_bits(address);
        world.downlink(&fragments(SERVER_V6.into(), address.into(), 7, PORT)[0]);
    }
    received(&world);
    for part in fragments(SERVER_V4.into(), [10, 45, 0, 77].into(), 7, PORT).into_iter().rev() {
        world.downlink(&part);
    }
    let flows: Vec<_> = received(&world).into_iter().map(|(_, qfi)| qfi).collect();
    assert_eq!(flows, [SERVICE; 2]);
}

/// Where one rule takes all packets, as in the tunnel from the CP function, no fragment waits for another.
#[test]
fn fragments_of_a_session_with_one_rule_pass_at_once() {
    let mut world = World::new();
    let (_, _, from_smf) = world.establish_by(&establishment(1));
    for (server, ue) in pairs() {
        world.uplink(&uplink_gpdu(from_smf, &fragments(server, ue, 7, PORT)[1]));
        assert_eq!(received(&world).len(), 1);
    }
    // Nothing is noted, so nothing is given up.
    world.now_ns += 4 * SECOND_NS;
    world.pipeline.turn(world.now_ns, &mut world.ports);
    assert_eq!(world.drops(DropReason::FragmentOverflow), 0);
}

/// Buffered fragments keep their flow until they are released.
#[test]
fn buffered_fragments_go_with_their_flow() {
    for (server, ue) in pairs() {
        let mut world = World::new();
        let (seid, ..) = world.establish_by(&with_service());
        world.modify(seid, &update_far(2, ApplyAction::BUFF));
        let parts = fragments(server, ue, 7, PORT);
        parts.iter().for_each(|part| world.downlink(part));
        world.now_ns += 60 * SECOND_NS;
        world.modify(seid, &update_far(2, ApplyAction::FORW));
        world.pipeline.turn(world.now_ns, &mut world.ports);
        let expected: Vec<_> = parts.into_iter().map(|part| (part, SERVICE)).collect();
        assert_eq!(received(&world), expected);
    }
}

/// Uplink fragments, which are noted for each tunnel, match the rule of their packet's flow too.
#[test]
fn uplink_fragments_are_of_their_tunnel() {
    let mut world = World::new();
    let mut request = establishment(1);
    let service = SdfFilter {
        flow_description: Some("permit out 17 from 10.201.0.2 9 to assigned 5004".into()),
        ..Default::default()
    };
    let pdi = Pdi {
        f_teid: choose(1),
        ue_ip_address: ue_address(false),
        sdf_filters: vec![service],
        ..Default::default()
    };
    request.create_pdrs.push(pdr(8, 10, pdi, 8, &[]));
    request.create_fars.push(CreateFar {
        far_id: FarId(8),
        apply_action: ApplyAction::DROP,
        ..Default::default()
    });
    let (_, teid, _) = world.establish_by(&request);
    let parts = fragments(UE_V4.into(), SERVER_V4.into(), 7, PORT);
    for (n, at) in [1, 0].into_iter().enumerate() {
        world.uplink(&uplink_gpdu(teid, &parts[at]));
        assert_eq!(world.drops(DropReason::FarDrop), 2 * n as u64, "both when the first has come");
    }
    assert!(world.n6.take().is_empty());
    for part in fragments(UE_V4.into(), SERVER_V4.into(), 7, 80) {
        world.uplink(&uplink_gpdu(teid, &part));
    }
    assert_eq!(world.n6.take().len(), 2);
}
