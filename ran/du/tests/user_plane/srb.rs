//! RRC messages on SRB1 and SRB2, through RLC AM.

use std::time::Duration;

use du::{Event, Radio, Refused};
use l2::rlc::am::{Config, Entity, Received};
use l2::uu::Header;
use telemetry::DropReason;

use crate::support::*;

const SOON: Duration = Duration::from_millis(1);

/// A UE's end of SRB1.
struct Ue {
    entity: Entity<()>,
    got: Vec<Vec<u8>>,
}

impl Ue {
    fn new() -> Ue {
        Ue { entity: Entity::new(Config { max_retx_threshold: 100, ..Config::SIGNALLING }), got: Vec::new() }
    }

    /// Takes what has come, and sends what there is.
    fn run(&mut self, world: &World) {
        for (lcid, pdu) in world.at_ue() {
            assert_eq!(lcid, 1);
            if let Ok(Received::Sdu(sdu)) = self.entity.receive(&pdu, world.now_ns) {
                self.got.push(sdu);
            }
        }
        self.entity.expire(world.now_ns);
        let mut pdu = Vec::new();
        while self.entity.pull(1_000, world.now_ns, &mut pdu).is_some() {
            world.uu.inject(&Header::uplink(CELL, C_RNTI, 1).datagram(&pdu), ue_place().address);
            pdu.clear();
        }
    }
}

#[test]
fn messages_arrive_over_a_link_that_loses_half() {
    let mut world = World::new();
    world.du.add_ue(C_RNTI, ue_place()).unwrap();
    let radio =
        Radio { loss: 0.3, harq_retransmissions: 0, delay: Duration::from_millis(3), ..Radio::UNLIMITED };
    world.du.set_radio(C_RNTI, radio, radio, world.now_ns).unwrap();
    let (mut ue, mut sent, mut got) = (Ue::new(), Vec::new(), Vec::new());
    for n in 0..6_000u32 {
        if n % 100 == 0 && n < 3_000 {
            let message = pdcp(n, 50 + n as usize);
            world.du.send_rrc(C_RNTI, 1, message.clone(), world.now_ns).unwrap();
            ue.entity.push(message.clone(), ()).unwrap();
            sent.push(message);
        }
        world.pass(MS);
        ue.run(&world);
        while let Some(event) = world.events.next(Duration::ZERO) {
            let Event::Rrc { c_rnti: C_RNTI, lcid: 1, sdu } = event else { panic!("{event:?}") };
            got.push(sdu);
        }
    }
    got.sort();
    ue.got.sort();
    sent.sort();
    assert!(ue.got == sent, "{} of {} down", ue.got.len(), sent.len());
    assert!(got == sent, "{} of {} up", got.len(), sent.len());
    assert!(world.dropped(DropReason::RadioLoss) > 50);
    assert_eq!(world.du.stats().rrc.get(), 2 * sent.len() as u64);
    assert_eq!(world.step(), None, "no timer is left");
}

#[test]
fn a_ue_that_does_not_answer_is_a_failure() {
    let mut world = World::new();
    world.du.add_ue(C_RNTI, ue_place()).unwrap();
    world.du.send_rrc(C_RNTI, 2, b"RRCReconfiguration".to_vec(), world.now_ns).unwrap();
    world.pass(10_000 * MS);
    assert_eq!(world.events.next(SOON), Some(Event::RadioLinkFailure { c_rnti: C_RNTI, lcid: 2 }));
    assert_eq!(world.events.next(SOON), None);
    assert_eq!(world.at_ue().len(), 1 + 8);
    assert_eq!(world.step(), None);
    // What comes of it is up to control; more cannot be sent.
    world.du.send_rrc(C_RNTI, 2, b"more".to_vec(), world.now_ns).unwrap();
    world.pass(10_000 * MS);
    assert!(world.at_ue().is_empty());
    assert_eq!(world.du.send_rrc(C_RNTI, 3, b"x".to_vec(), world.now_ns), Err(Refused::UnknownBearer));
    assert_eq!(world.du.send_rrc(C_RNTI, 1, vec![], world.now_ns), Err(Refused::Value));
    let mut refused = 0;
    while refused == 0 {
        refused +=
            u32::from(world.du.send_rrc(C_RNTI, 2, vec![0; 9_000], world.now_ns) == Err(Refused::Full));
    }
    // Octets that are no PDU.
    world.uu.inject(&Header::uplink(CELL, C_RNTI, 1).datagram(&[0x70, 1, 2]), ue_place().address);
    world.step();
    assert_eq!(world.dropped(DropReason::RlcDiscarded), 1);
    world.du.remove_ue(C_RNTI, &mut world.ports).unwrap();
}

/// A UE with SRB1 whose last message is under way.
fn leaving() -> (World, Ue) {
    let mut world = World::new();
    world.du.add_ue(C_RNTI, ue_place()).unwrap();
    world.add_bearer(C_RNTI, LCID, CU_TEID);
    let last = Some((1, b"RRCRelease".to_vec()));
    world.du.release_ue(C_RNTI, last, world.now_ns, &mut world.ports).unwrap();
    world.step();
    (world, Ue::new())
}

fn releases(world: &World) -> usize {
    world.datagrams().iter().filter(|(header, ..)| header.kind == l2::uu::Kind::Release).count()
}

#[test]
fn a_released_ue_goes_when_it_has_its_last_message() {
    let (mut world, mut ue) = leaving();
    let (now_ns, ports) = (world.now_ns, &mut world.ports);
    assert_eq!(world.du.remove_bearer(C_RNTI, LCID, ports), Err(Refused::UnknownBearer), "it has gone");
    ue.entity.push(b"too late".to_vec(), ()).unwrap();
    ue.run(&world);
    assert_eq!(ue.got, [b"RRCRelease".to_vec()]);
    world.step();
    assert_eq!(world.du.send_rrc(C_RNTI, 1, b"x".to_vec(), now_ns), Err(Refused::UnknownUe));
    assert_eq!((world.events.next(SOON), releases(&world)), (None, 0));
}

#[test]
fn a_released_ue_that_is_silent_goes_and_is_told() {
    let (mut world, _) = leaving();
    world.pass(300 * MS);
    assert!(world.du.set_radio(C_RNTI, Radio::UNLIMITED, Radio::UNLIMITED, world.now_ns).is_ok());
    assert_eq!(releases(&world), 0);
    world.pass(1_000 * MS);
    assert_eq!((world.events.next(SOON), releases(&world)), (None, 1));
    let (now_ns, ports) = (world.now_ns, &mut world.ports);
    assert_eq!(world.du.release_ue(C_RNTI, None, now_ns, ports), Err(Refused::UnknownUe));
    // Without a last message it goes at once; and one that goes by itself is not told.
    world.du.add_ue(C_RNTI, ue_place()).unwrap();
    world.du.release_ue(C_RNTI, None, world.now_ns, &mut world.ports).unwrap();
    world.step();
    assert_eq!(releases(&world), 1);
    let (mut world, _) = leaving();
    let gone = Header { kind: l2::uu::Kind::Release, c_rnti: C_RNTI, lcid: 0, cell: CELL };
    world.uu.inject(&gone.datagram(b""), ue_place().address);
    world.pass(2_000 * MS);
    assert_eq!((world.events.next(SOON), releases(&world)), (None, 0));
}
