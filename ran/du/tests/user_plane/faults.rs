//! Packets that are not as they should be, and GTP-U signalling.

use std::time::Duration;

use du::{BearerSetup, Event, Place, Refused, Tunnel};
use l2::uu::{Header, Kind};
use packet::gtpu::{self, Signalling};
use telemetry::DropReason;

use crate::support::*;

const SOON: Duration = Duration::from_millis(1);

#[test]
fn signalling_is_answered() {
    let (mut world, added) = World::with_bearer();
    world.cu_sends(&Signalling::EchoRequest { sequence: 77 }.build());
    world.cu_sends(&Signalling::EndMarker { teid: added.teid, pdu_session: None }.build());
    world.cu_sends(&user_data(added.teid + 1, 0, false, &pdcp(0, 9)));
    // An extension header that must be understood, and is not known.
    let mut unknown = user_data(added.teid, 0, false, &pdcp(0, 9));
    unknown[11] = 0xFE;
    world.cu_sends(&unknown);
    world.step();
    let own = settings().interfaces[0].local.ip();
    assert_eq!(
        world.at_cu().other,
        [
            Signalling::EchoResponse { sequence: 77 },
            Signalling::ErrorIndication { teid: added.teid + 1, peer: own, udp_port: None },
            Signalling::SupportedExtensionHeaders { types: vec![0x40, 0x84] },
        ]
    );
    assert_eq!(
        (world.dropped(DropReason::UnknownTeid), world.dropped(DropReason::GtpuUnknownExtension)),
        (1, 1)
    );
    assert_eq!(world.du.stats().signalling.get(), 1);
    // The CU does not know our packets; others cannot say so.
    for (teid, peer, from) in [
        (CU_TEID, cu_address().ip(), "203.0.113.1:2152".parse().unwrap()),
        (CU_TEID + 1, cu_address().ip(), cu_address()),
        (CU_TEID, cu_address().ip(), cu_address()),
    ] {
        let indication = Signalling::ErrorIndication { teid, peer, udp_port: None };
        world.f1u.inject(&indication.build(), from);
    }
    world.pass(2_000 * MS);
    assert_eq!(world.events.next(SOON), None, "the CU may be about to release the bearer");
    let indication = Signalling::ErrorIndication { teid: CU_TEID, peer: cu_address().ip(), udp_port: None };
    (0..100).for_each(|_| world.cu_sends(&indication.build()));
    world.step();
    assert_eq!(world.events.next(SOON), Some(Event::UnknownAtCu { c_rnti: C_RNTI, lcid: LCID }));
    assert_eq!(world.events.next(SOON), None);
    // Another tunnel has its own time.
    world.du.redirect_bearer(C_RNTI, LCID, Tunnel { teid: 9, ..cu() }, world.now_ns).unwrap();
    world.pass(2_000 * MS);
    world.cu_sends(&Signalling::ErrorIndication { teid: 9, peer: cu_address().ip(), udp_port: None }.build());
    world.step();
    assert_eq!(world.events.next(SOON), None);
}

#[test]
fn replies_to_a_flood_are_limited() {
    let (mut world, added) = World::with_bearer();
    (0..10_000).for_each(|_| world.cu_sends(&user_data(added.teid + 1, 0, false, &pdcp(0, 9))));
    world.step();
    assert_eq!(world.at_cu().other.len(), 100);
    (0..10_000)
        .for_each(|_| world.uu.inject(&Header::uplink(CELL, 9, 4).datagram(&[0, 1]), ue_place().address));
    world.step();
    let got = world.datagrams();
    assert!(got.len() == 20 && got.iter().all(|(header, ..)| header.kind == Kind::Release));
}

#[test]
fn datagrams_of_others_are_dropped() {
    let (mut world, _) = World::with_bearer();
    let datagram = Header::uplink(CELL, C_RNTI, LCID).datagram(&[0, 1, 2]);
    world.uu.inject(&datagram, "198.51.100.8:5000".parse().unwrap());
    world.uu.inject(&Header::uplink(CELL + 1, C_RNTI, LCID).datagram(&[0, 1]), ue_place().address);
    world.uu.inject(&Header::downlink(CELL, C_RNTI, LCID).datagram(&[0, 1]), ue_place().address);
    world
        .uu
        .inject(&Header { kind: Kind::Release, c_rnti: C_RNTI, lcid: 0, cell: CELL }.octets(), cu_address());
    world.uu.inject(&Header::uplink(CELL, C_RNTI, LCID + 1).datagram(&[0, 1]), ue_place().address);
    world.step();
    assert_eq!((world.at_cu().sdus.len(), world.events.next(SOON)), (0, None));
    assert_eq!((world.dropped(DropReason::UuMalformed), world.dropped(DropReason::UnknownBearer)), (3, 2));
}

#[test]
fn truncated_and_changed_packets_are_counted() {
    let (mut world, added) = World::with_bearer();
    let down = user_data(added.teid, 0, true, &pdcp(0, 40));
    let up = Header::uplink(CELL, C_RNTI, LCID).datagram(&[&[0x40, 1][..], &pdcp(0, 40)].concat());
    for length in 0..down.len() {
        world.cu_sends(&down[..length]);
    }
    world.step();
    assert_eq!((world.all_dropped(), world.at_ue().len()), (down.len() as u64, 0));
    for length in 0..14 {
        world.uu.inject(&up[..length], ue_place().address);
    }
    world.step();
    assert_eq!(world.all_dropped(), down.len() as u64 + 14);
    let mut numbers = Numbers(5);
    for round in 0..30_000 {
        let (packet, is_down) = if round % 2 == 0 { (&down, true) } else { (&up, false) };
        let mut changed = packet.clone();
        for _ in 0..1 + numbers.below(4) {
            let bit = numbers.below(8 * changed.len() as u64) as usize;
            changed[bit / 8] ^= 1 << (bit % 8);
        }
        if is_down {
            world.cu_sends(&changed);
        } else {
            world.uu.inject(&changed, ue_place().address);
        }
        if round % 50 == 0 {
            world.pass(MS);
            world.f1u.take();
            world.uu.take();
        }
    }
    // The bearer still works.
    world.pass(1_000 * MS);
    world.f1u.take();
    world.ue_sends(&[0, 1, 2, 3]);
    world.step();
    assert_eq!(world.at_cu().sdus, [(CU_TEID, vec![1, 2, 3])]);
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let mut world = World::new();
    let place = ue_place();
    let at_f1u = Place { interface: F1U, ..place };
    for (c_rnti, place, error) in
        [(0, place, Refused::Value), (0xFFF0, place, Refused::Value), (1, at_f1u, Refused::Value)]
    {
        assert_eq!(world.du.add_ue(c_rnti, place), Err(error));
    }
    assert_eq!((world.du.add_ue(1, place), world.du.add_ue(1, place)), (Ok(()), Err(Refused::InUse)));
    let now_ns = world.now_ns;
    let mut add = |c_rnti, lcid, cu| {
        world.du.add_bearer(c_rnti, &BearerSetup::new(lcid, cu), now_ns).map(|added| added.teid).err()
    };
    let v6 = Tunnel { address: "[2001:db8::1]:2152".parse().unwrap(), ..cu() };
    assert_eq!(
        [add(2, 4, cu()), add(1, 3, cu()), add(1, 33, cu()), add(1, 4, v6), add(1, 4, cu()), add(1, 4, cu())],
        [
            Some(Refused::UnknownUe),
            Some(Refused::Value),
            Some(Refused::Value),
            Some(Refused::Value),
            None,
            Some(Refused::InUse)
        ]
    );
    assert_eq!(world.du.remove_bearer(1, 5, &mut world.ports), Err(Refused::UnknownBearer));
    assert_eq!(world.du.redirect_bearer(1, 5, cu(), now_ns), Err(Refused::UnknownBearer));
    assert_eq!(world.du.remove_ue(2, &mut world.ports), Err(Refused::UnknownUe));
    let elsewhere = Tunnel { teid: 9, ..cu() };
    world.du.redirect_bearer(1, 4, elsewhere, now_ns).unwrap();
    world.step();
    assert_eq!(world.at_cu().status[0].teid, 9);
    assert_eq!(gtpu::PORT, cu_address().port());
}
