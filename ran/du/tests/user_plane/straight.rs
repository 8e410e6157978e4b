//! Packets through a radio link without limits, and what the CU hears of them.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use path::Graph;
use pktio::{Port, Sent, Vector};
use telemetry::DropReason;

use crate::support::*;

#[test]
fn packets_of_all_sizes_arrive_as_they_were() {
    let (mut world, added) = World::with_bearer();
    let sizes: Vec<usize> = (1..=1_600).chain([4_000, 8_999]).collect();
    for (sequence, size) in sizes.iter().enumerate() {
        world.cu_sends(&user_data(added.teid, sequence as u32, false, &pdcp(sequence as u32, *size)));
        world.ue_sends(&[&[0][..], &pdcp(sequence as u32 + 7, *size)].concat());
    }
    world.step();
    let got = world.at_ue();
    assert_eq!(got.len(), sizes.len());
    for (sequence, (size, (lcid, pdu))) in sizes.iter().zip(got).enumerate() {
        assert_eq!((lcid, pdu[0]), (LCID, 0));
        assert_eq!(pdu[1..], pdcp(sequence as u32, *size), "{size} octets down");
    }
    let got = world.at_cu();
    assert_eq!(got.sdus.len(), sizes.len());
    for (sequence, (size, (teid, sdu))) in sizes.iter().zip(got.sdus).enumerate() {
        assert_eq!(teid, CU_TEID);
        assert_eq!(sdu, pdcp(sequence as u32 + 7, *size), "{size} octets up");
    }
    let octets: usize = sizes.iter().sum();
    for traffic in [&added.stats.downlink, &added.stats.uplink, &world.du.stats().uplink] {
        assert_eq!((traffic.get().packets, traffic.get().bytes), (sizes.len() as u64, octets as u64));
    }
    assert_eq!(world.all_dropped(), 0);
}

/// Notes where the packets lie that it sends.
#[derive(Clone, Default)]
struct Addresses(Arc<Mutex<Vec<usize>>>);

impl Port for Addresses {
    fn receive(&mut self, _: &mut Vector) -> io::Result<usize> {
        Ok(0)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let mut addresses = self.0.lock().unwrap();
        addresses
            .extend(selected.iter().map(|at| vector.frames()[usize::from(*at)].packet().as_ptr().addr()));
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn packets_stay_in_their_memory() {
    let (mut world, added) = World::with_bearer();
    let [f1u, uu]: [Addresses; 2] = Default::default();
    world.ports = vec![Box::new(f1u.clone()), Box::new(uu.clone())];
    let place = |vector: &Vector| vector.frames()[0].packet().as_ptr().addr();
    assert!(world.vector.push(&user_data(added.teid, 0, false, &pdcp(0, 500)), cu_address()));
    let before = place(&world.vector);
    world.du.process(F1U.into(), &mut world.vector, world.now_ns, &mut world.ports);
    // 20 octets of GTP-U go, 13 of `uu` and RLC come.
    assert_eq!(*uu.0.lock().unwrap(), [before + 20 - 13]);
    world.vector.clear();
    let datagram = l2::uu::Header::uplink(CELL, C_RNTI, LCID).datagram(&[0, 1, 2, 3]);
    assert!(world.vector.push(&datagram, ue_place().address));
    let before = place(&world.vector);
    world.du.process(UU.into(), &mut world.vector, world.now_ns, &mut world.ports);
    assert_eq!(*f1u.0.lock().unwrap(), [before + 13 - 8]);
}

#[test]
fn the_cu_hears_what_was_sent_and_what_is_missing() {
    let (mut world, added) = World::with_bearer();
    let send = |world: &World, sequence: u32, polling| {
        world.cu_sends(&user_data(added.teid, sequence, polling, &pdcp(sequence + 100, 50)));
    };
    // Asked for: at once.
    send(&world, 0, true);
    world.step();
    let status = world.at_cu().status;
    assert_eq!(status.len(), 1);
    assert_eq!((status[0].highest_transmitted, status[0].lost.len()), (Some(100), 0));
    assert_eq!((status[0].desired, status[0].is_final), (u32::MAX, false));
    // Not asked for: once, a few milliseconds after the first packet of many.
    for sequence in 1..100 {
        send(&world, sequence, false);
        world.pass(MS / 100);
    }
    assert_eq!(world.at_cu().status, []);
    world.pass(5 * MS);
    let status = world.at_cu().status;
    assert_eq!((status.len(), status[0].highest_transmitted), (1, Some(199)));
    world.pass(1_000 * MS);
    assert_eq!(world.at_cu().status, [], "silence after the last report");
    // A loss: soon, without those that came late.
    for sequence in [104, 110, 102, 111] {
        send(&world, sequence, false);
    }
    world.step();
    assert_eq!(world.at_cu().status, []);
    world.pass(MS);
    let status = world.at_cu().status;
    assert_eq!(status[0].lost, [(100, 101), (103, 103), (105, 109)]);
    assert_eq!((status.len(), status[0].highest_transmitted), (1, Some(211)));
    assert_eq!(added.stats.nr_u_lost.get(), 9);
    // A loss is reported once.
    send(&world, 112, true);
    world.step();
    assert_eq!(world.at_cu().status[0].lost, []);
    // A poll without packet.
    world.cu_sends(&user_data(added.teid, 113, true, &[]));
    world.step();
    assert_eq!((world.at_cu().status.len(), world.at_ue().len()), (1, 1 + 99 + 4 + 1));
    world.du.remove_ue(C_RNTI, &mut world.ports).unwrap();
    world.step();
    let last = world.at_cu().status;
    assert_eq!((last.len(), last[0].is_final), (1, true));
}

#[test]
fn a_thousand_bearers_have_their_own_packets() {
    let mut world = World::new();
    let mut bearers = Vec::new();
    for ue in 0..100u16 {
        world.du.add_ue(C_RNTI + ue, ue_place()).unwrap();
        for lcid in 4..14 {
            let added = world.add_bearer(C_RNTI + ue, lcid, CU_TEID + bearers.len() as u32);
            bearers.push((C_RNTI + ue, lcid, added));
        }
    }
    let mut numbers = Numbers(1);
    let mut sent = Vec::new();
    for round in 0..20_000u32 {
        let at = numbers.below(1_000) as usize;
        let (c_rnti, lcid, added) = &bearers[at];
        let pdu = pdcp(round, 3 + numbers.below(60) as usize);
        world.cu_sends(&user_data(added.teid, 0, false, &pdu));
        sent.push((*c_rnti, *lcid, pdu.clone()));
        let up = [&[0][..], &pdu].concat();
        world.uu.inject(&l2::uu::Header::uplink(CELL, *c_rnti, *lcid).datagram(&up), ue_place().address);
    }
    world.step();
    let got: Vec<_> = world
        .datagrams()
        .into_iter()
        .map(|(header, pdu, _)| (header.c_rnti, header.lcid, pdu[1..].to_vec()))
        .collect();
    assert!(got == sent);
    for ((c_rnti, lcid, sdu), (teid, got)) in sent.iter().zip(world.at_cu().sdus) {
        let (at, _) =
            bearers.iter().enumerate().find(|(_, bearer)| (bearer.0, bearer.1) == (*c_rnti, *lcid)).unwrap();
        assert_eq!((teid, &got), (CU_TEID + at as u32, sdu));
    }
}

#[test]
fn what_is_removed_while_packets_flow_gets_none() {
    let (mut world, added) = World::with_bearer();
    let mut old = vec![added.teid];
    for round in 0..300u32 {
        let teid = *old.last().unwrap();
        world.cu_sends(&user_data(teid, round, false, &pdcp(round, 100)));
        world.step();
        assert_eq!(world.at_ue().len(), 1);
        world.du.remove_ue(C_RNTI, &mut world.ports).unwrap();
        world.step();
        // Packets that are on their way, in both directions.
        for teid in old.iter().rev().take(100) {
            world.cu_sends(&user_data(*teid, round, false, &pdcp(round, 100)));
        }
        world.ue_sends(&[0, 1, 2]);
        world.step();
        let got = world.datagrams();
        assert!(got.iter().all(|(header, ..)| header.kind == l2::uu::Kind::Release), "{got:?}");
        world.at_cu();
        world.du.add_ue(C_RNTI, ue_place()).unwrap();
        let teid = world.add_bearer(C_RNTI, LCID, CU_TEID).teid;
        assert!(!old.contains(&teid), "a TEID is not reused at once");
        old.push(teid);
        world.now_ns += MS;
    }
    assert_eq!(world.dropped(DropReason::UnknownBearer), 300);
    assert!(world.dropped(DropReason::UnknownTeid) > 10_000);
    assert_eq!(world.all_dropped(), 300 + world.dropped(DropReason::UnknownTeid));
}
