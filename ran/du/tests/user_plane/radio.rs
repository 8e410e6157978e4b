//! Radio links with rates, delays and losses.

use std::time::Duration;

use du::{Event, Radio};
use l2::rlc::am::{Config, Entity};
use l2::rlc::um::{REASSEMBLY_LIMIT, Received, Rx, SnLength};
use l2::uu::Header;
use telemetry::DropReason;

use crate::support::*;

const UNLIMITED: Radio = Radio::UNLIMITED;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The receiving side of a UE's bearer.
struct Ue {
    rx: Rx,
    sdus: Vec<Vec<u8>>,
    pdus: usize,
}

impl Ue {
    fn new() -> Ue {
        Ue { rx: Rx::new(SnLength::Bits12, 50 * MS, REASSEMBLY_LIMIT), sdus: Vec::new(), pdus: 0 }
    }

    fn take(&mut self, world: &World) {
        for (_, pdu) in world.at_ue() {
            self.pdus += 1;
            match self.rx.receive(&pdu, world.now_ns) {
                Ok(Received::Whole) => self.sdus.push(pdu[1..].to_vec()),
                Ok(Received::Sdu(sdu)) => self.sdus.push(sdu),
                Ok(Received::Kept) => {}
                Err(error) => panic!("{error}"),
            }
        }
        self.rx.expire(world.now_ns);
    }
}

#[test]
fn a_rate_is_kept_and_packets_are_cut_to_it() {
    let (mut world, added) = World::with_bearer();
    let radio = Radio { rate: Some(2_000_000), ..UNLIMITED };
    world.du.set_radio(C_RNTI, radio, UNLIMITED, world.now_ns).unwrap();
    let sizes = [1_500, 40, 700, 1, 9_000];
    let (mut ue, mut sent) = (Ue::new(), Vec::new());
    // 8 Mbit/s come, 2 Mbit/s leave.
    for n in 0..900u32 {
        let pdu = pdcp(n, sizes[n as usize % 5]);
        world.cu_sends(&user_data(added.teid, n, false, &pdu));
        sent.push(pdu);
        world.pass(2_248 * MS / 1_000);
        ue.take(&world);
    }
    let octets: usize = ue.sdus.iter().map(Vec::len).sum();
    assert!((470_000..515_000).contains(&octets), "a quarter of a megabyte per second for two: {octets}");
    assert!(ue.pdus > 1_500, "{} PDUs", ue.pdus);
    let dropped = world.dropped(DropReason::RadioQueueFull) as usize;
    assert!(dropped > 20);
    assert_eq!(world.all_dropped(), dropped as u64);
    // The queue drains, and what was queued arrives as it was.
    for _ in 0..10_000 {
        world.pass(MS);
        ue.take(&world);
    }
    assert_eq!(ue.sdus.len() + dropped, sent.len());
    let mut arrived = ue.sdus.iter();
    assert!(arrived.all(|one| sent.contains(one)));
    // All of the first megabyte, in order.
    assert!(ue.sdus[..400] == sent[..400]);
    let status = world.at_cu().status;
    let last = status.last().unwrap();
    assert_eq!((last.desired, last.highest_transmitted.is_some()), (25_000, true));
    assert!((300..1_300).contains(&status.len()), "{} reports", status.len());
    assert_eq!(world.step(), None, "nothing is left to do");
}

#[test]
fn nothing_leaves_at_rate_0_until_it_changes() {
    let (mut world, added) = World::with_bearer();
    let stopped = Radio { rate: Some(0), ..UNLIMITED };
    world.du.set_radio(C_RNTI, stopped, stopped, world.now_ns).unwrap();
    for n in 0..5_000u32 {
        world.cu_sends(&user_data(added.teid, n, false, &pdcp(n, 1_000)));
        world.ue_sends(&[&[0][..], &pdcp(n, 1_000)].concat());
        if n % 64 == 0 {
            world.pass(MS);
        }
    }
    world.pass(100 * MS);
    let status = world.at_cu();
    assert!(status.sdus.is_empty() && world.at_ue().is_empty());
    assert!(status.status.iter().all(|status| (status.desired, status.highest_transmitted) == (0, None)));
    let dropped = world.dropped(DropReason::RadioQueueFull);
    let held = (1 << 20) / 1_064 + (1 << 20) / 1_065;
    assert_eq!(dropped, 10_000 - held);
    assert_eq!(world.step(), None, "the worker sleeps");
    world.du.set_radio(C_RNTI, UNLIMITED, UNLIMITED, world.now_ns).unwrap();
    world.pass(10 * MS);
    let got = world.at_ue();
    assert_eq!(got.len(), (1 << 20) / 1_064);
    assert!(got.iter().enumerate().all(|(n, (_, pdu))| pdu[1..] == pdcp(n as u32, 1_000)));
    let got = world.at_cu();
    assert_eq!(got.sdus.len(), (1 << 20) / 1_065);
    assert!(got.sdus.iter().enumerate().all(|(n, (_, sdu))| *sdu == pdcp(n as u32, 1_000)));
    assert_eq!(got.status.last().unwrap().desired, u32::MAX, "packets pass at once again");
}

#[test]
fn half_of_all_transmissions_are_lost() {
    for retransmissions in [0, 3] {
        let (mut world, added) = World::with_bearer();
        let radio = Radio { loss: 0.5, delay: ms(5), harq_retransmissions: retransmissions, ..UNLIMITED };
        world.du.set_radio(C_RNTI, radio, radio, world.now_ns).unwrap();
        let (mut down, mut up) = (Vec::new(), Vec::new());
        for n in 0..4_000u32 {
            world.cu_sends(&user_data(added.teid, n, false, &pdcp(n, 200)));
            world.ue_sends(&[&[0][..], &pdcp(n, 200)].concat());
            world.pass(MS / 10);
            down.extend(world.at_ue().into_iter().map(|(_, pdu)| pdu[1..].to_vec()));
            up.extend(world.at_cu().sdus.into_iter().map(|(_, sdu)| sdu));
        }
        world.pass(100 * MS);
        down.extend(world.at_ue().into_iter().map(|(_, pdu)| pdu[1..].to_vec()));
        up.extend(world.at_cu().sdus.into_iter().map(|(_, sdu)| sdu));
        let expected = if retransmissions == 0 { 1_900..2_100 } else { 3_650..3_850 };
        for got in [&down, &up] {
            assert!(expected.contains(&got.len()), "{} arrived", got.len());
            let in_order = got.is_sorted_by_key(|pdu| (pdu[0], pdu[1], pdu[2]));
            assert_eq!(in_order, retransmissions == 0, "what is transmitted again is passed by others");
            let numbers: std::collections::BTreeSet<_> = got.iter().collect();
            assert_eq!(numbers.len(), got.len(), "nothing arrives twice");
        }
        let lost = world.dropped(DropReason::RadioLoss) as usize;
        assert_eq!((down.len() + up.len() + lost, world.all_dropped()), (8_000, lost as u64));
        assert_eq!(added.stats.dropped.get(), lost as u64, "in both directions");
    }
}

#[test]
fn packets_arrive_after_delay_and_jitter_in_order() {
    let (mut world, added) = World::with_bearer();
    let radio = Radio { delay: ms(20), jitter: ms(10), ..UNLIMITED };
    world.du.set_radio(C_RNTI, radio, UNLIMITED, world.now_ns).unwrap();
    let (began_ns, mut got) = (world.now_ns, Vec::new());
    for n in 0..200u32 {
        world.cu_sends(&user_data(added.teid, n, false, &pdcp(n, 100)));
        world.pass(MS);
        for (_, pdu) in world.at_ue() {
            let sent_ns = began_ns + u64::from(pdu[2]) * 256 * MS + u64::from(pdu[3]) * MS;
            got.push(world.now_ns - sent_ns);
            assert_eq!(pdu[1..], pdcp(got.len() as u32 - 1, 100), "in order");
        }
    }
    assert!(got.len() >= 168 && got.iter().all(|delay| (20 * MS..=32 * MS).contains(delay)), "{got:?}");
    assert!(got.iter().max().unwrap() - got.iter().min().unwrap() > 5 * MS);
    // Unlimited again: what is under way comes first.
    world.du.set_radio(C_RNTI, UNLIMITED, UNLIMITED, world.now_ns).unwrap();
    world.cu_sends(&user_data(added.teid, 200, false, &pdcp(200, 100)));
    world.pass(40 * MS);
    let rest: Vec<_> = world.at_ue().into_iter().map(|(_, pdu)| pdu[1..].to_vec()).collect();
    let expected: Vec<_> = (got.len() as u32..201).map(|n| pdcp(n, 100)).collect();
    assert!(rest == expected);
}

#[test]
fn bearers_and_ues_share_grants_evenly() {
    let mut world = World::new();
    let mut teids = Vec::new();
    for ue in 0..5u16 {
        world.du.add_ue(C_RNTI + ue, ue_place()).unwrap();
        let radio = Radio { rate: Some(1_000_000), ..UNLIMITED };
        world.du.set_radio(C_RNTI + ue, radio, UNLIMITED, world.now_ns).unwrap();
        for lcid in [4, 9, 32] {
            teids.push(world.add_bearer(C_RNTI + ue, lcid, 1).teid);
        }
    }
    for n in 0..500 {
        teids.iter().for_each(|teid| world.cu_sends(&user_data(*teid, n, false, &pdcp(n, 400))));
    }
    world.step();
    world.uu.take();
    world.pass(1_000 * MS);
    let mut octets = std::collections::BTreeMap::new();
    for (header, pdu, _) in world.datagrams() {
        *octets.entry((header.c_rnti, header.lcid)).or_insert(0) += pdu.len();
    }
    assert_eq!(octets.len(), 15);
    let share = 1_000_000 / 8 / 3;
    assert!(octets.values().all(|one| one.abs_diff(share) < share / 10), "{octets:?}");
}

#[test]
fn a_ue_that_goes_takes_its_packets_along() {
    let (mut world, added) = World::with_bearer();
    let radio = Radio { rate: Some(1_000_000), delay: ms(100), ..UNLIMITED };
    world.du.set_radio(C_RNTI, radio, radio, world.now_ns).unwrap();
    for n in 0..50 {
        world.cu_sends(&user_data(added.teid, n, false, &pdcp(n, 200)));
        world.ue_sends(&[&[0][..], &pdcp(n, 200)].concat());
    }
    world.pass(50 * MS);
    world.du.remove_ue(C_RNTI, &mut world.ports).unwrap();
    world.du.add_ue(C_RNTI, ue_place()).unwrap();
    world.add_bearer(C_RNTI, LCID, CU_TEID);
    world.pass(1_000 * MS);
    assert!(world.at_ue().is_empty() && world.at_cu().sdus.is_empty());
    let released = world.dropped(DropReason::BearerReleased);
    // A packet that was cut counts once for each of its pieces that was under way.
    assert!((150..250).contains(&released) && world.all_dropped() == released, "{released}");
    assert_eq!(world.step(), None);
}

#[test]
fn the_cu_can_discard_what_waits() {
    let (mut world, added) = World::with_bearer();
    let stopped = Radio { rate: Some(0), ..UNLIMITED };
    world.du.set_radio(C_RNTI, stopped, UNLIMITED, world.now_ns).unwrap();
    for n in 0..10 {
        world.cu_sends(&user_data(added.teid, n, false, &pdcp(n, 100)));
    }
    // Flush up to 2; discard 2 from 5 on and 1 from 8 on.
    let container: [u8; 20] = [5, 0x06, 0, 0, 0, 10, 0, 0, 2, 2, 0, 0, 5, 2, 0, 0, 8, 1, 0, 0];
    let mut packet = vec![0x34, 0xFF, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0x84];
    packet.extend(container);
    let length = (packet.len() - 8) as u16;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[4..8].copy_from_slice(&added.teid.to_be_bytes());
    world.cu_sends(&packet);
    world.step();
    assert_eq!(world.dropped(DropReason::DiscardTimer), 6, "{:?}", world.all_dropped());
    world.du.set_radio(C_RNTI, UNLIMITED, UNLIMITED, world.now_ns).unwrap();
    world.pass(MS);
    let got: Vec<_> = world.at_ue().into_iter().map(|(_, pdu)| pdu[3]).collect();
    assert_eq!(got, [3, 4, 7, 9]);
}

#[test]
fn a_radio_link_that_cannot_be_is_refused() {
    let (mut world, _) = World::with_bearer();
    for radio in [
        Radio { loss: 1.1, ..UNLIMITED },
        Radio { loss: f64::NAN, ..UNLIMITED },
        Radio { delay: Duration::MAX, ..UNLIMITED },
        Radio { rate: Some(u64::MAX), ..UNLIMITED },
    ] {
        let now_ns = world.now_ns;
        assert_eq!(world.du.set_radio(C_RNTI, radio, UNLIMITED, now_ns), Err(du::Refused::Value));
        assert_eq!(world.du.set_radio(C_RNTI, UNLIMITED, radio, now_ns), Err(du::Refused::Value));
    }
}

/// Small packets take more of the queue than their octets.
#[test]
fn what_the_du_asks_for_fits_its_queue() {
    for octets in [42, 67, 1_500] {
        let (mut world, added) = World::with_bearer();
        let radio = Radio { rate: Some(1_000_000_000), ..UNLIMITED };
        world.du.set_radio(C_RNTI, radio, UNLIMITED, world.now_ns).unwrap();
        world.step();
        let desired = world.at_cu().status[0].desired as usize;
        assert!(desired > 400_000, "{desired}");
        for n in 0..desired / octets {
            world.cu_sends(&user_data(added.teid, n as u32, false, &pdcp(n as u32, octets)));
        }
        world.step();
        assert_eq!(world.all_dropped(), 0, "{octets} octets");
        world.pass(100 * MS);
        assert_eq!(added.stats.downlink.get().packets, (desired / octets) as u64);
    }
}

#[test]
fn signalling_passes_data_that_waits() {
    let (mut world, _) = World::with_bearer();
    let slow = Radio { rate: Some(1_000_000), ..UNLIMITED };
    world.du.set_radio(C_RNTI, UNLIMITED, slow, world.now_ns).unwrap();
    for n in 0..5_000 {
        world.ue_sends(&[&[0][..], &pdcp(n, 1_000)].concat());
    }
    world.pass(100 * MS);
    let full = world.dropped(DropReason::RadioQueueFull);
    assert!(full > 1_000);
    let message = b"MeasurementReport".to_vec();
    world.uu.inject(&Header::uplink(CELL, C_RNTI, 0).datagram(&message), ue_place().address);
    world.pass(20 * MS);
    assert_eq!(
        world.events.next(Duration::ZERO),
        Some(Event::Rrc { c_rnti: C_RNTI, lcid: 0, sdu: message }),
        "8 seconds of data wait"
    );
    // An RRC message of the network is acknowledged in time.
    let mut ue = Entity::<()>::new(Config::SIGNALLING);
    world.du.send_rrc(C_RNTI, 1, b"RRCReconfiguration".to_vec(), world.now_ns).unwrap();
    for n in 0..2_000 {
        world.ue_sends(&[&[0][..], &pdcp(n, 1_000)].concat());
        world.pass(MS);
        for (lcid, pdu) in world.at_ue() {
            assert_eq!(lcid, 1);
            let _ = ue.receive(&pdu, world.now_ns);
        }
        ue.expire(world.now_ns);
        let mut pdu = Vec::new();
        while ue.pull(1_000, world.now_ns, &mut pdu).is_some() {
            world.uu.inject(&Header::uplink(CELL, C_RNTI, 1).datagram(&pdu), ue_place().address);
            pdu.clear();
        }
    }
    assert_eq!(world.events.next(Duration::ZERO), None, "no failure of the radio link");
    assert!(world.dropped(DropReason::RadioQueueFull) > full);
    // Signalling is bounded as well.
    for _ in 0..5_000 {
        world.uu.inject(&Header::uplink(CELL, C_RNTI, 0).datagram(&[0; 1_000]), ue_place().address);
    }
    let before = world.dropped(DropReason::RadioQueueFull);
    world.step();
    assert!(world.dropped(DropReason::RadioQueueFull) > before + 4_900);
}

/// A bearer that gets the channel of one that was removed is another bearer.
#[test]
fn a_new_bearer_gets_no_packets_of_the_old_one() {
    for rate in [None, Some(0)] {
        let (mut world, added) = World::with_bearer();
        let slow = Radio { delay: ms(20), rate, ..UNLIMITED };
        world.du.set_radio(C_RNTI, slow, slow, world.now_ns).unwrap();
        for n in 0..10 {
            world.cu_sends(&user_data(added.teid, n, false, &pdcp(n, 100)));
            world.ue_sends(&[&[0][..], &pdcp(n, 100)].concat());
        }
        // A segment, whose SDU does not become whole.
        world.ue_sends(&[0x40, 1, 2, 3]);
        world.pass(MS);
        world.du.remove_bearer(C_RNTI, LCID, &mut world.ports).unwrap();
        let added = world.add_bearer(C_RNTI, LCID, CU_TEID + 1);
        let fast = Radio { delay: ms(20), ..UNLIMITED };
        world.du.set_radio(C_RNTI, fast, fast, world.now_ns).unwrap();
        world.cu_sends(&user_data(added.teid, 0, false, &pdcp(77, 100)));
        world.ue_sends(&[&[0][..], &pdcp(78, 100)].concat());
        world.pass(50 * MS);
        let down: Vec<_> = world.at_ue().into_iter().map(|(_, pdu)| pdu[1..].to_vec()).collect();
        assert!(down == [pdcp(77, 100)], "{} down", down.len());
        let up = world.at_cu().sdus;
        assert!(up == [(CU_TEID + 1, pdcp(78, 100))], "{} up", up.len());
        assert_eq!((world.dropped(DropReason::BearerReleased), world.all_dropped()), (21, 21));
        // What waits on a channel without bearer would wait for nothing.
        world.uu.inject(&Header::uplink(CELL, C_RNTI, 9).datagram(&[0, 1]), ue_place().address);
        world.step();
        assert_eq!(world.dropped(DropReason::UnknownBearer), 1);
    }
}

#[test]
fn segments_of_a_bearer_that_goes_are_counted() {
    let (mut world, _) = World::with_bearer();
    for sn in 0..3 {
        world.ue_sends(&[0x40, sn, 2, 3]);
    }
    world.step();
    world.du.remove_bearer(C_RNTI, LCID, &mut world.ports).unwrap();
    assert_eq!((world.dropped(DropReason::BearerReleased), world.all_dropped()), (3, 3));
}

/// Who comes first in a slot changes, as room in flight may be scarce.
#[test]
fn the_first_turn_goes_round() {
    let mut world = World::new();
    for ue in 0..3u16 {
        world.du.add_ue(C_RNTI + ue, ue_place()).unwrap();
        let radio = Radio { rate: Some(8_000_000), ..UNLIMITED };
        world.du.set_radio(C_RNTI + ue, radio, UNLIMITED, world.now_ns).unwrap();
        let teid = world.add_bearer(C_RNTI + ue, LCID, 1).teid;
        for n in 0..100 {
            world.cu_sends(&user_data(teid, n, false, &pdcp(n, 1_000)));
        }
    }
    world.step();
    let mut first = std::collections::BTreeMap::new();
    for _ in 0..30 {
        world.pass(MS / 2);
        if let Some((header, ..)) = world.datagrams().first() {
            *first.entry(header.c_rnti).or_insert(0) += 1;
        }
    }
    assert!(first.len() == 3 && first.values().all(|slots| *slots >= 9), "{first:?}");
}

/// On a slow link, what one UE makes the network answer takes bounded memory.
#[test]
fn signalling_in_flight_is_bounded() {
    let mut world = World::new();
    world.du.add_ue(C_RNTI, ue_place()).unwrap();
    let slow = Radio { delay: Duration::from_secs(60), ..UNLIMITED };
    world.du.set_radio(C_RNTI, slow, UNLIMITED, world.now_ns).unwrap();
    for _ in 0..4_000 {
        world.du.send_rrc(C_RNTI, 0, vec![0; 9_000], world.now_ns).unwrap();
    }
    let most = (17 << 20) / 9_064 + 1;
    assert_eq!(world.dropped(DropReason::RadioQueueFull), 4_000 - most);
    world.pass(61_000 * MS);
    assert_eq!(world.at_ue().len() as u64, most);
}
