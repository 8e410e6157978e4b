//! Packets both ways: SDAP, PDCP, tunnels, order.

use l2::pdcp::SnLength;
use l2::security::{CipheringAlgorithm, IntegrityAlgorithm};
use packet::gtpu;
use packet::nr_u::{DeliveryStatus, Ranges};
use std::net::SocketAddr;
use std::time::Duration;
use telemetry::DropReason;

use crate::support::*;

/// Every kind of protection.
fn protections() -> Vec<Protection> {
    let mut all = Vec::new();
    for sn in [SnLength::Twelve, SnLength::Eighteen] {
        for header in [false, true] {
            for ciphering in [CipheringAlgorithm::Nea0, CipheringAlgorithm::Nea2] {
                for integrity in [None, Some(IntegrityAlgorithm::Nia0), Some(IntegrityAlgorithm::Nia2)] {
                    all.push(Protection { sn, header, ciphering, integrity });
                }
            }
        }
    }
    all
}

#[test]
fn packets_of_all_sizes_pass_both_ways() {
    for protection in protections() {
        let mut world = World::new();
        let (session, bearer) = world.session(protection.bearer(&[5, 9]));
        let mut ue = Ue::new(protection);
        let sizes: Vec<usize> = (1..=200).chain([576, 1280, 1400, 1500, 4000, 8900]).collect();
        for (number, octets) in (0..).zip(&sizes) {
            let qfi = if number % 2 == 0 { 5 } else { 9 };
            world.upf_sends(session, qfi, &packet(*octets, number));
            world.du_sends(bearer, &ue.pdu(qfi, &packet(*octets, !number)));
            if number == 0 {
                // So that nothing has to wait for what the DU wants.
                world.status(bearer, &DeliveryStatus { desired_buffer_size: u32::MAX, ..Default::default() });
            }
        }
        world.run();
        let (at_du, at_upf) = (world.at_du(), world.at_upf());
        assert_eq!((at_du.len(), at_upf.len()), (sizes.len(), sizes.len()), "{protection:?}");
        for (number, (octets, (down, up))) in (0..).zip(sizes.iter().zip(at_du.iter().zip(&at_upf))) {
            let qfi = if number % 2 == 0 { 5 } else { 9 };
            assert_eq!((down.to, down.teid), (SocketAddr::new(DU, gtpu::PORT), DU_TEID));
            assert_eq!(down.sequence, number, "NR-U sequence numbers follow each other");
            let rqi = if qfi == 9 { 0x40 } else { 0 };
            let header = if protection.header { qfi | rqi } else { 0 };
            assert_eq!(ue.packet(&down.pdu), (header, packet(*octets, number)), "{protection:?} {octets}");
            // Without SDAP header all packets belong to the bearer's first flow.
            let qfi = if protection.header { qfi } else { 5 };
            let expected = (SocketAddr::new(UPF, gtpu::PORT), UPF_TEID, qfi, packet(*octets, !number));
            assert_eq!(*up, expected, "{protection:?} {octets}");
        }
        assert_eq!(world.all_drops(), 0);
        let traffic = world.user_plane.bearer_stats(session, bearer).unwrap();
        let total = (sizes.len() as u64, sizes.iter().sum::<usize>() as u64);
        for direction in [&traffic.traffic.uplink, &traffic.traffic.downlink] {
            assert_eq!((direction.get().packets, direction.get().bytes), total);
        }
        assert_eq!(traffic.active_ns(), world.now_ns);
    }
}

#[test]
fn one_interface_may_carry_both_tunnels() {
    let mut world = World::on(0, 0);
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    let mut ue = Ue::new(PLAIN);
    world.upf_sends(session, 1, b"down");
    world.du_sends(bearer, &ue.pdu(1, b"up"));
    world.run();
    let sent = world.wires[0].take();
    assert_eq!(sent.len(), 2);
    let teids: Vec<u32> =
        sent.iter().map(|(message, _)| gtpu::Packet::new(message).unwrap().teid()).collect();
    assert_eq!(teids, [DU_TEID, UPF_TEID]);
    assert_eq!(world.all_drops(), 0);
}

#[test]
fn a_flow_takes_its_bearer() {
    let mut world = World::new();
    let mut config = PLAIN.bearer(&[1, 2]);
    config.default = false;
    let (session, first) = world.session(config);
    let mut config = PLAIN.bearer(&[3]);
    config.default = false;
    let second = world.user_plane.add(session, world.f1u, config).unwrap();
    let du = cu::user_plane::Tunnel { address: DU, teid: 77 };
    world.user_plane.connect(session, second, du).unwrap();
    for qfi in [1, 2, 3, 4] {
        world.upf_sends(session, qfi, &[qfi]);
    }
    // Without a PDU Session Container there is no flow.
    let teid = world.user_plane.n3_tunnel(session).teid;
    world.inject_n3(&gtpu::build_gpdu(teid, None, b"x").unwrap());
    world.run();
    let teids: Vec<u32> = world.at_du().iter().map(|sent| sent.teid).collect();
    assert_eq!(teids, [DU_TEID, DU_TEID, 77]);
    assert_eq!(world.drops(DropReason::NoBearer), 2);

    // The UE sends flow 3 on the second bearer only.
    let mut ue = Ue::new(PLAIN);
    for (number, qfi) in [3, 1].into_iter().enumerate() {
        world.du_sends(second, &ue.pdu(qfi, &[number as u8]));
    }
    world.run();
    assert_eq!(world.at_upf().len(), 1);
    assert_eq!(world.drops(DropReason::NoBearer), 3);

    // Flows of a bearer that is gone have none.
    world.user_plane.remove(session, first);
    world.upf_sends(session, 1, b"1");
    world.upf_sends(session, 3, b"3");
    world.run();
    assert_eq!((world.at_du().len(), world.drops(DropReason::NoBearer)), (1, 4));
}

/// PDUs that overtook others leave in order, also among the packets of one vector.
#[test]
fn order_is_restored() {
    let mut world = World::new();
    let (_, bearer) = world.session(PLAIN.bearer(&[1]));
    let mut ue = Ue::new(PLAIN);
    let pdus: Vec<Vec<u8>> = (0..300u32).map(|number| ue.pdu(1, &number.to_be_bytes())).collect();
    // Blocks of 100 PDUs whose first comes last: more wait than a vector holds. Then two swapped.
    let mut order: Vec<usize> = (1..100).chain([0]).chain(100..298).chain([299, 298]).collect();
    order.insert(150, 120);
    for number in &order {
        world.du_sends(bearer, &pdus[*number]);
    }
    world.run();
    let numbers: Vec<u32> =
        world.at_upf().iter().map(|sent| u32::from_be_bytes(sent.3[..].try_into().unwrap())).collect();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
    assert_eq!((world.drops(DropReason::PdcpStale), world.all_drops()), (1, 1), "a PDU came twice");
}

/// A PDU that never comes is waited for until t-Reordering expires.
#[test]
fn a_lost_pdu_holds_later_ones_up_for_a_while() {
    let mut world = World::new();
    let (_, bearer) = world.session(PLAIN.bearer(&[1]));
    let mut ue = Ue::new(PLAIN);
    let pdus: Vec<Vec<u8>> = (0..10u8).map(|number| ue.pdu(1, &[number])).collect();
    for number in [0, 1, 3, 4, 6] {
        world.du_sends(bearer, &pdus[number]);
    }
    world.run();
    assert_eq!(world.at_upf().len(), 2);
    let due = world.turn().expect("a turn when the timer expires");
    assert_eq!(due, world.now_ns + 100_000_000);
    world.now_ns = due - 1;
    assert_eq!(world.turn(), Some(due));
    assert!(world.at_upf().is_empty());
    world.now_ns = due;
    world.turn();
    // Number 5 was missing when the timer started as well: TS 38.323 gives up all that was missing then.
    let numbers: Vec<u8> = world.at_upf().iter().map(|sent| sent.3[0]).collect();
    assert_eq!(&numbers[..2], [3, 4]);
    let due = world.turn();
    world.now_ns = due.unwrap_or(world.now_ns) + 1;
    world.turn();
    for number in [2, 7] {
        world.du_sends(bearer, &pdus[number]);
    }
    world.run();
    let rest: Vec<u8> = world.at_upf().iter().map(|sent| sent.3[0]).collect();
    assert_eq!([&numbers[2..], &rest].concat(), [6, 7]);
    assert_eq!(world.drops(DropReason::PdcpStale), 1);
    assert_eq!(world.turn(), None);
}

/// The DU's wishes (TS 38.425 §5.4.2.1): packets wait in order, and for so long as their bearer allows.
#[test]
fn packets_wait_until_the_du_wants_them() {
    let mut world = World::new();
    let mut config = PLAIN.bearer(&[1]);
    config.discard = Some(Duration::from_millis(50));
    config.queue_octets = 100 * 1024;
    let (session, bearer) = world.session(config);
    let mut ue = Ue::new(PLAIN);
    world.upf_sends(session, 1, &packet(1000, 0));
    world.run();
    let first = world.at_du();
    assert!(first[0].polling, "the first PDU asks what the DU wants");
    ue.packet(&first[0].pdu);
    world.status(
        bearer,
        &DeliveryStatus { desired_buffer_size: 0, highest_transmitted: Some(0), ..Default::default() },
    );
    for number in 1..=150 {
        world.upf_sends(session, 1, &packet(1000, number));
    }
    world.run();
    assert!(world.at_du().is_empty());
    let refused = world.drops(DropReason::BufferOverflow);
    assert!((50..60).contains(&refused), "{refused}: 100 KiB hold 96 packets of 1,000 octets");
    let waiting = 150 - refused as u32;

    world.now_ns += 10_000_000;
    world.status(
        bearer,
        &DeliveryStatus { desired_buffer_size: 5100, highest_transmitted: Some(0), ..Default::default() },
    );
    world.run();
    let some = world.at_du();
    assert_eq!(some.len(), 5);
    world.status(bearer, &DeliveryStatus { desired_buffer_size: u32::MAX, ..Default::default() });
    // A packet that comes now goes behind those that wait.
    world.upf_sends(session, 1, &packet(1000, 999));
    world.run();
    let rest = world.at_du();
    assert_eq!(rest.len() as u32, waiting - 5 + 1);
    for (number, sent) in (1..).zip(some.iter().chain(&rest)) {
        let number = if number > waiting { 999 } else { number };
        assert_eq!(ue.packet(&sent.pdu).1, packet(1000, number));
    }
    assert_eq!(world.stats().statuses.get(), 3);

    // Nothing leaves any more: what waits is discarded in time.
    world.status(bearer, &DeliveryStatus { desired_buffer_size: 0, ..Default::default() });
    world.run();
    for number in 0..20 {
        world.upf_sends(session, 1, &packet(100, number));
    }
    world.run();
    let due = world.now_ns + 50_000_000;
    world.now_ns = due - 1;
    assert_eq!(world.turn(), Some(due), "a turn when packets are discarded");
    assert_eq!(world.drops(DropReason::DiscardTimer), 0);
    world.now_ns = due;
    assert_eq!(world.turn(), None);
    assert_eq!(world.drops(DropReason::DiscardTimer), 20);
    world.status(bearer, &DeliveryStatus { desired_buffer_size: u32::MAX, ..Default::default() });
    world.upf_sends(session, 1, &packet(100, 7));
    world.run();
    let mut last = world.at_du();
    // The DU was asked again meanwhile.
    last.retain(|sent| !sent.pdu.is_empty());
    // What was discarded has left no gap: the UE gets the next PDU in order.
    assert_eq!((last.len(), ue.packet(&last[0].pdu).1), (1, packet(100, 7)));
}

#[test]
fn a_bearer_without_du_keeps_packets_until_it_is_connected() {
    let mut world = World::new();
    let session =
        world.user_plane.open(world.n3, cu::user_plane::Tunnel { address: UPF, teid: UPF_TEID }).unwrap();
    let bearer = world.user_plane.add(session, world.f1u, PLAIN.bearer(&[1])).unwrap();
    for number in 0..200 {
        world.upf_sends(session, 1, &packet(300, number));
    }
    world.run();
    assert!(world.at_du().is_empty());
    world.connect(session, bearer);
    world.turn();
    let mut ue = Ue::new(PLAIN);
    let sent = world.at_du();
    assert_eq!(sent.len(), 200);
    for (number, sent) in (0..).zip(&sent) {
        assert_eq!(ue.packet(&sent.pdu).1, packet(300, number));
    }
}

/// A flow without a bearer of its own goes by the default one, both ways.
#[test]
fn the_default_bearer_takes_flows_of_no_other_one() {
    let mut world = World::new();
    let (session, default) = world.session(PLAIN.bearer(&[1]));
    let mut config = PLAIN.bearer(&[2]);
    config.default = false;
    let other = world.user_plane.add(session, world.f1u, config).unwrap();
    let du = cu::user_plane::Tunnel { address: DU, teid: 77 };
    world.user_plane.connect(session, other, du).unwrap();
    let mut ue = Ue::new(PLAIN);
    for qfi in [1, 7, 2] {
        world.upf_sends(session, qfi, &[qfi]);
        world.du_sends(default, &ue.pdu(qfi, &[qfi]));
    }
    world.run();
    let teids: Vec<u32> = world.at_du().iter().map(|sent| sent.teid).collect();
    assert_eq!(teids, [DU_TEID, DU_TEID, 77]);
    let flows: Vec<u8> = world.at_upf().iter().map(|sent| sent.2).collect();
    assert_eq!((flows, world.drops(DropReason::NoBearer)), (vec![1, 7], 1));
    // Without the other bearer its flow is the default one's as well.
    world.user_plane.remove(session, other);
    world.du_sends(default, &ue.pdu(2, &[2]));
    world.run();
    assert_eq!(world.at_upf().len(), 1);
}

/// PDUs that have waited leave even if the one that they waited for is dropped.
#[test]
fn a_dropped_packet_holds_nobody_up() {
    let mut world = World::new();
    let mut config = PLAIN.bearer(&[1]);
    config.default = false;
    let (_, bearer) = world.session(config);
    let mut ue = Ue::new(PLAIN);
    let pdus: Vec<Vec<u8>> =
        (0..5).map(|number| ue.pdu(if number == 0 { 9 } else { 1 }, &[number as u8])).collect();
    for number in [1, 2, 3, 0, 4] {
        world.du_sends(bearer, &pdus[number]);
    }
    world.run();
    let numbers: Vec<u8> = world.at_upf().iter().map(|sent| sent.3[0]).collect();
    assert_eq!((numbers, world.drops(DropReason::NoBearer)), (vec![1, 2, 3, 4], 1));
}

/// All that the DU was sent is lost, and so is what it says: it is asked again, and what it missed makes room.
#[test]
fn a_bearer_recovers_from_a_lost_window() {
    let mut world = World::new();
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    let wanted = |lost| DeliveryStatus { desired_buffer_size: 10_000, lost, ..Default::default() };
    world.status(bearer, &wanted(Ranges::default()));
    for number in 0..30 {
        world.upf_sends(session, 1, &packet(1000, number));
    }
    world.run();
    let lost = world.at_du();
    assert_eq!(lost.len(), 9, "9 PDUs of 1,004 octets");
    assert!(lost[8].polling, "the last one asks");
    assert!(lost.iter().enumerate().all(|(number, sent)| sent.sequence == number as u32));
    for _ in 0..3 {
        let due = world.turn().expect("a turn to ask again");
        assert_eq!(due, world.now_ns + 50_000_000);
        world.now_ns = due;
        world.turn();
        let probes = world.at_du();
        assert_eq!((probes.len(), probes[0].pdu.len(), probes[0].polling), (1, 0, true));
    }
    // The DU has seen number 9 to 11, without packets.
    world.status(bearer, &wanted(Ranges::of(&[(0, 8)])));
    world.run();
    let next = world.at_du();
    assert_eq!((next.len(), next[0].sequence), (9, 12));
    let mut ue = Ue::new(PLAIN);
    ue.rx = l2::pdcp::Rx::starting_at(*ue.rx.config(), l2::pdcp::Security::none(), Default::default(), 9);
    assert_eq!(ue.packet(&next[0].pdu).1, packet(1000, 9));
}

/// A bearer that goes to another DU, or to one that was started anew, begins anew.
#[test]
fn another_du_has_got_nothing_yet() {
    let mut world = World::new();
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    world.status(bearer, &DeliveryStatus { desired_buffer_size: 3000, ..Default::default() });
    for number in 0..10 {
        world.upf_sends(session, 1, &packet(1000, number));
    }
    world.run();
    assert_eq!(world.at_du().len(), 2);
    let du = cu::user_plane::Tunnel { address: DU, teid: 99 };
    world.user_plane.connect(session, bearer, du).unwrap();
    world.turn();
    let sent = world.at_du();
    let sequences: Vec<u32> = sent.iter().map(|sent| sent.sequence).collect();
    assert_eq!(sequences, (0..8).collect::<Vec<_>>());
    assert!(sent.iter().all(|sent| sent.teid == 99) && sent[0].polling);
    // Its first status names nothing.
    world.status(bearer, &DeliveryStatus { desired_buffer_size: 9000, ..Default::default() });
    world.upf_sends(session, 1, &packet(500, 10));
    world.run();
    assert_eq!(world.at_du().len(), 1);
    // The same far end again changes nothing.
    world.user_plane.connect(session, bearer, du).unwrap();
    world.upf_sends(session, 1, &packet(100, 11));
    world.run();
    assert_eq!(world.at_du()[0].sequence, 9);
}
