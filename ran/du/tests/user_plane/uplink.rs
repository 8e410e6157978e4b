//! Segments, random access and RRC from UEs.

use std::time::Duration;

use du::Event;
use l2::rlc::am::{Config, Entity};
use l2::rlc::um::{SnLength, Tx};
use l2::uu::{Header, Kind};
use telemetry::DropReason;

use crate::support::*;

const SOON: Duration = Duration::from_millis(1);

#[test]
fn segments_become_packets() {
    let (mut world, added) = World::with_bearer();
    let mut tx = Tx::new(SnLength::Bits12, 100_000);
    let sent: Vec<Vec<u8>> = (0..20).map(|n| pdcp(n, 1 + 70 * n as usize)).collect();
    let mut pdus = Vec::new();
    for sdu in &sent {
        tx.push(sdu.clone(), ()).unwrap();
        let mut pdu = Vec::new();
        while tx.pull(200, &mut pdu).is_some() {
            pdus.push(std::mem::take(&mut pdu));
        }
    }
    for pair in pdus.chunks_mut(2) {
        pair.reverse();
    }
    pdus.iter().for_each(|pdu| world.ue_sends(pdu));
    world.step();
    let mut got: Vec<Vec<u8>> = world.at_cu().sdus.into_iter().map(|(_, sdu)| sdu).collect();
    got.sort_by_key(Vec::len);
    assert_eq!(got, sent);
    assert_eq!((added.stats.uplink.get().packets, world.all_dropped()), (20, 0));

    // One segment is missing: its SDU is given up when t-Reassembly expires.
    tx.push(pdcp(1, 1_000), ()).unwrap();
    let mut pdu = Vec::new();
    for at in 0.. {
        if tx.pull(200, &mut pdu).is_none() {
            break;
        }
        if at != 2 {
            world.ue_sends(&pdu);
        }
        pdu.clear();
    }
    world.pass(49 * MS);
    assert_eq!(world.all_dropped(), 0);
    world.pass(2 * MS);
    assert_eq!((world.dropped(DropReason::RlcDiscarded), added.stats.dropped.get()), (1, 1));
    assert_eq!(world.at_cu().sdus, []);
}

fn preamble(identity: &[u8; 6]) -> Vec<u8> {
    Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL }.datagram(identity)
}

#[test]
fn a_ue_gets_a_c_rnti_and_sends_rrc() {
    let mut world = World::new();
    let place = ue_place();
    for identity in [b"first!", b"second", b"first!"] {
        world.uu.inject(&preamble(identity), place.address);
    }
    world.step();
    let got = world.datagrams();
    let answer = |at: usize| (got[at].0.kind, got[at].0.c_rnti, &got[at].1[..]);
    let (first, second) = (got[0].0.c_rnti, got[1].0.c_rnti);
    assert!(first >= 0x4601 && second >= 0x4601 && first != second);
    assert_eq!(answer(0), (Kind::RandomAccessResponse, first, &b"first!"[..]));
    assert_eq!(answer(1), (Kind::RandomAccessResponse, second, &b"second"[..]));
    assert_eq!(answer(2), answer(0), "a repeated preamble");
    for c_rnti in [first, second] {
        assert_eq!(world.events.next(SOON), Some(Event::RandomAccess { c_rnti, place }));
    }
    // One of them sends a message, the other one is forgotten.
    world.uu.inject(&Header::uplink(CELL, first, 0).datagram(b"RRCSetupRequest"), place.address);
    world.pass(3_000 * MS);
    let rrc = Event::Rrc { c_rnti: first, lcid: 0, sdu: b"RRCSetupRequest".to_vec() };
    assert_eq!(world.events.next(SOON), Some(rrc));
    assert_eq!(world.events.next(SOON), Some(Event::AccessTimedOut { c_rnti: second }));
    world.du.send_rrc(first, 0, b"RRCSetup".to_vec(), world.now_ns).unwrap();
    world.step();
    let got = world.datagrams();
    assert_eq!(got, [(Header::downlink(CELL, first, 0), b"RRCSetup".to_vec(), place.address)]);
    assert_eq!(world.du.send_rrc(second, 0, vec![1], world.now_ns), Err(du::Refused::UnknownUe));
    let release = Header { kind: Kind::Release, c_rnti: first, lcid: 0, cell: CELL }.octets();
    world.uu.inject(&release, place.address);
    world.step();
    assert_eq!(world.events.next(SOON), Some(Event::ReleasedByUe { c_rnti: first }));
    assert_eq!(world.all_dropped(), 0);
}

/// What is on its way for a DU that has been started anew reaches no UE of its successor.
#[test]
fn another_du_gives_out_other_identities() {
    let identities = || {
        let (mut world, added) = World::with_bearer();
        world.uu.inject(&preamble(b"access"), ue_place().address);
        world.step();
        (added.teid, world.datagrams()[0].0.c_rnti)
    };
    let all: Vec<(u32, u16)> = (0..8).map(|_| identities()).collect();
    assert!(all.iter().any(|one| one.0 != all[0].0), "TEIDs: {all:x?}");
    assert!(all.iter().any(|one| one.1 != all[0].1), "C-RNTIs: {all:x?}");
}

#[test]
fn a_flood_of_preambles_is_limited() {
    let mut world = World::new();
    for n in 0..100_000u64 {
        let [_, _, identity @ ..] = n.to_be_bytes();
        world.uu.inject(&preamble(&identity), ue_place().address);
    }
    world.step();
    let answers = world.datagrams();
    let given = answers.len() as u64;
    assert!((500..1_000).contains(&given), "{given}");
    assert_eq!(world.dropped(DropReason::ControlOverflow), 100_000 - given);
    world.pass(2_100 * MS);
    assert_eq!(world.du.send_rrc(answers[0].0.c_rnti, 0, vec![1], world.now_ns), Err(du::Refused::UnknownUe));
}

/// A UE that floods control takes nobody's room there, whatever it floods with.
#[test]
fn a_ue_that_floods_control_keeps_nobody_out() {
    let (mut world, _) = World::with_bearer();
    let other = C_RNTI + 1;
    world.du.add_ue(other, ue_place()).unwrap();
    let release = Header { kind: Kind::Release, c_rnti: C_RNTI, lcid: 0, cell: CELL }.octets();
    for n in 0..10_000u32 {
        world.uu.inject(&Header::uplink(CELL, C_RNTI, 0).datagram(&n.to_be_bytes()), ue_place().address);
        world.uu.inject(&release, ue_place().address);
    }
    world.uu.inject(&Header::uplink(CELL, other, 0).datagram(b"other"), ue_place().address);
    world.step();
    let events: Vec<Event> = std::iter::from_fn(|| world.events.next(Duration::ZERO)).collect();
    assert_eq!(events.last(), Some(&Event::Rrc { c_rnti: other, lcid: 0, sdu: b"other".to_vec() }));
    assert_eq!(events.len(), 201);
    assert_eq!(world.dropped(DropReason::ControlOverflow), 20_000 - 200);
}

/// Control that does not keep up loses nothing that RLC has acknowledged, and UEs without its knowledge are none.
#[test]
fn what_control_has_no_room_for_is_sent_again() {
    let mut world = World::new();
    world.du.add_ue(C_RNTI, ue_place()).unwrap();
    let mut ue = Entity::<()>::new(Config { max_retx_threshold: 1_000, ..Config::SIGNALLING });
    ue.push(b"important".to_vec(), ()).unwrap();
    let (mut given, mut backoffs) = (0, 0);
    for n in 0..4_000u64 {
        let [_, _, identity @ ..] = n.to_be_bytes();
        world.uu.inject(&preamble(&identity), ue_place().address);
        world.now_ns += MS;
        world.step();
        let answers = world.datagrams();
        given += answers.iter().filter(|(header, ..)| header.kind == Kind::RandomAccessResponse).count();
        assert!(answers.iter().all(|(header, ..)| header.kind != Kind::Downlink), "nothing is acknowledged");
        backoffs += answers.iter().filter(|(header, ..)| header.kind == Kind::Backoff).count();
        if n % 10 == 9 && backoffs > 0 {
            ue.expire(world.now_ns);
            let mut pdu = Vec::new();
            if ue.pull(1_000, world.now_ns, &mut pdu).is_some() {
                world.uu.inject(&Header::uplink(CELL, C_RNTI, 1).datagram(&pdu), ue_place().address);
            }
        }
    }
    let told: Vec<Event> = std::iter::from_fn(|| world.events.next(Duration::ZERO)).collect();
    let accesses = told.iter().filter(|event| matches!(event, Event::RandomAccess { .. })).count();
    assert_eq!(accesses, given, "each UE with a C-RNTI is one that control knows");
    assert_eq!(given + backoffs, 4_000);
    assert!(!told.iter().any(|event| matches!(event, Event::Rrc { .. })));
    for _ in 0..20 {
        world.pass(10 * MS);
        ue.expire(world.now_ns);
        let mut pdu = Vec::new();
        if ue.pull(1_000, world.now_ns, &mut pdu).is_some() {
            world.uu.inject(&Header::uplink(CELL, C_RNTI, 1).datagram(&pdu), ue_place().address);
        }
    }
    let rrc = Event::Rrc { c_rnti: C_RNTI, lcid: 1, sdu: b"important".to_vec() };
    let told: Vec<Event> = std::iter::from_fn(|| world.events.next(Duration::ZERO)).collect();
    assert_eq!(told.iter().filter(|event| **event == rrc).count(), 1);
}

/// SRB1 begins with RRCSetup: who has a C-RNTI and nothing else takes no memory for it, and is forgotten.
#[test]
fn there_is_no_srb1_before_the_network_has_answered() {
    let mut world = World::new();
    world.uu.inject(&preamble(b"access"), ue_place().address);
    world.step();
    let c_rnti = world.datagrams()[0].0.c_rnti;
    let srb1 = Header::uplink(CELL, c_rnti, 1).datagram(&[0x80, 0, 1, 2, 3]);
    world.uu.inject(&srb1, ue_place().address);
    world.step();
    assert_eq!(world.dropped(DropReason::UnknownBearer), 1);
    world.pass(2_100 * MS);
    assert_eq!(world.events.next(SOON), Some(Event::RandomAccess { c_rnti, place: ue_place() }));
    assert_eq!(world.events.next(SOON), Some(Event::AccessTimedOut { c_rnti }));
    world.uu.inject(&preamble(b"access"), ue_place().address);
    world.step();
    let c_rnti = world.datagrams()[0].0.c_rnti;
    world.du.send_rrc(c_rnti, 0, b"RRCSetup".to_vec(), world.now_ns).unwrap();
    world.uu.inject(&Header::uplink(CELL, c_rnti, 1).datagram(&[0x80, 0, 1, 2, 3]), ue_place().address);
    world.step();
    assert_eq!(world.events.next(SOON), Some(Event::RandomAccess { c_rnti, place: ue_place() }));
    assert_eq!(world.events.next(SOON), Some(Event::Rrc { c_rnti, lcid: 1, sdu: vec![1, 2, 3] }));
}
