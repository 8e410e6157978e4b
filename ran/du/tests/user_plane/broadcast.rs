//! Who camps, and what it hears.

use std::net::SocketAddr;

use l2::uu::{self, Header, Kind};
use telemetry::DropReason;

use crate::support::*;

const S: u64 = 1_000 * MS;

fn address(n: u32) -> SocketAddr {
    SocketAddr::from(([203, 0, (n >> 8) as u8, n as u8], 5_000))
}

fn camps(world: &World, n: u32) {
    world.uu.inject(&Header::camp(CELL).datagram(b""), address(n));
}

/// The addresses that have got a broadcast on a channel, in order.
fn heard(world: &World, channel: u16, message: &[u8]) -> Vec<SocketAddr> {
    let broadcasts = world.datagrams().into_iter().filter(|(header, ..)| header.c_rnti == channel);
    let mut addresses: Vec<_> = broadcasts
        .map(|(header, payload, to)| {
            assert_eq!((header, &payload[..]), (Header::broadcast(CELL, channel), message));
            to
        })
        .collect();
    addresses.sort();
    addresses
}

#[test]
fn who_camps_gets_system_information_and_paging() {
    let mut world = World::new();
    camps(&world, 1);
    world.step();
    assert!(world.datagrams().is_empty(), "there is nothing to tell yet");
    let (now_ns, ports) = (world.now_ns, &mut world.ports);
    world.du.set_system_information(b"MIB".to_vec(), b"SIB1".to_vec(), now_ns, ports).unwrap();
    world.step();
    assert_eq!(world.du.stats().broadcasts.get(), 2);
    assert_eq!(heard(&world, uu::BCH, b"MIB"), [address(1)]);
    camps(&world, 2);
    world.step();
    assert_eq!(heard(&world, uu::SI_RNTI, b"SIB1"), [address(2)]);
    world.du.page(b"paging", world.now_ns, &mut world.ports).unwrap();
    world.step();
    assert_eq!(heard(&world, uu::P_RNTI, b"paging"), [address(1), address(2)]);
    // One of them camps again, the other is forgotten.
    world.pass(10 * S);
    camps(&world, 2);
    world.step();
    world.pass(10 * S);
    world.datagrams();
    world.du.page(b"paging", world.now_ns, &mut world.ports).unwrap();
    world.step();
    assert_eq!(heard(&world, uu::P_RNTI, b"paging"), [address(2)]);
    assert_eq!(world.du.stats().camps.get(), 3);
    for wrong in [&b""[..], &[0; 1_401]] {
        assert_eq!(world.du.page(wrong, world.now_ns, &mut world.ports), Err(du::Refused::Value));
    }
}

#[test]
fn forged_camps_push_nobody_out() {
    let mut world = World::new();
    camps(&world, 0);
    world.step();
    for n in 1..3_000 {
        camps(&world, n);
        if n % 100 == 0 {
            camps(&world, 0);
            world.pass(100 * MS);
        }
    }
    world.step();
    let refused = world.dropped(DropReason::ControlOverflow);
    assert_eq!(refused, 3_000 - 1_024);
    world.du.page(b"paging", world.now_ns, &mut world.ports).unwrap();
    world.step();
    let heard_by = heard(&world, uu::P_RNTI, b"paging");
    assert!(heard_by.len() == 1_024 && heard_by[0] == address(0));
    // When the flood has ended, others enter.
    world.pass(16 * S);
    camps(&world, 5_000);
    world.step();
    world.du.page(b"paging", world.now_ns, &mut world.ports).unwrap();
    world.step();
    assert_eq!(heard(&world, uu::P_RNTI, b"paging"), [address(5_000)]);
}

#[test]
fn answers_to_camps_have_a_limit() {
    let mut world = World::new();
    let (now_ns, ports) = (world.now_ns, &mut world.ports);
    world.du.set_system_information(b"MIB".to_vec(), b"SIB1".to_vec(), now_ns, ports).unwrap();
    for _ in 0..500 {
        camps(&world, 1);
    }
    world.step();
    assert_eq!(world.datagrams().len(), 2 * 200);
}

#[test]
fn a_cell_out_of_service_takes_nobody() {
    let mut world = World::new();
    let preamble = Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL }.datagram(b"abcdef");
    let (now_ns, ports) = (world.now_ns, &mut world.ports);
    world.du.set_system_information(b"MIB".to_vec(), b"SIB1".to_vec(), now_ns, ports).unwrap();
    for (out, answer) in [(true, Kind::Backoff), (false, Kind::RandomAccessResponse)] {
        if out {
            world.du.take_out_of_service();
        } else {
            let (now_ns, ports) = (world.now_ns, &mut world.ports);
            world.du.set_system_information(b"MIB".to_vec(), b"SIB1".to_vec(), now_ns, ports).unwrap();
            world.step();
            world.datagrams();
        }
        world.uu.inject(&preamble, address(1));
        camps(&world, 1);
        world.step();
        let got = world.datagrams();
        assert_eq!(got[0].0.kind, answer);
        assert_eq!(got.len(), if out { 1 } else { 3 });
    }
}

#[test]
fn a_ue_does_not_broadcast() {
    let mut world = World::new();
    world.uu.inject(&Header::broadcast(CELL, uu::BCH).datagram(b"MIB"), address(1));
    world.step();
    assert_eq!(world.dropped(DropReason::UuMalformed), 1);
}
