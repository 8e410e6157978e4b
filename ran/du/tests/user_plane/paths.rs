//! Echo towards CUs.

use std::time::Duration;

use du::{Echo, Event, UserPlane};
use packet::gtpu::Signalling;

use crate::support::*;

const SOON: Duration = Duration::from_millis(1);

#[test]
fn a_cu_that_does_not_answer_has_failed_until_it_does() {
    let mut world = World::new();
    let echo = Echo { interval: Duration::from_secs(60), response: Duration::from_secs(2), requests: 3 };
    let (du, _control, events) = UserPlane::new(du::Settings { echo: Some(echo), ..settings() }).unwrap();
    (world.du, world.events) = (du, events);
    world.du.add_ue(C_RNTI, ue_place()).unwrap();
    world.add_bearer(C_RNTI, LCID, CU_TEID);
    world.add_bearer(C_RNTI, LCID + 1, CU_TEID + 1);
    let requests = |world: &World| -> Vec<u16> {
        let other = world.at_cu().other.into_iter();
        other
            .map(|message| match message {
                Signalling::EchoRequest { sequence } => sequence,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    world.step();
    assert_eq!(requests(&world), [1], "one for both bearers");
    world.cu_sends(&Signalling::EchoResponse { sequence: 1 }.build());
    world.pass(59_000 * MS);
    assert!(requests(&world).is_empty());
    // No answer; one with a wrong number and one from elsewhere do not count.
    world.pass(1_000 * MS);
    assert_eq!(requests(&world), [2]);
    world.cu_sends(&Signalling::EchoResponse { sequence: 1 }.build());
    world.f1u.inject(&Signalling::EchoResponse { sequence: 2 }.build(), "203.0.113.9:2152".parse().unwrap());
    world.pass(5_900 * MS);
    assert_eq!((requests(&world), world.events.next(SOON)), (vec![3, 4], None));
    world.pass(200 * MS);
    let (interface, address) = (F1U, cu_address());
    assert_eq!(world.events.next(SOON), Some(Event::PathFailed { interface, address }));
    world.pass(120_000 * MS);
    assert_eq!((requests(&world), world.events.next(SOON)), (vec![5, 6, 7], None));
    world.cu_sends(&Signalling::EchoResponse { sequence: 7 }.build());
    world.step();
    assert_eq!(world.events.next(SOON), Some(Event::PathRestored { interface, address }));
    // Nobody is asked when no bearer leads there.
    world.du.remove_bearer(C_RNTI, LCID, &mut world.ports).unwrap();
    world.pass(61_000 * MS);
    assert_eq!(requests(&world), [8]);
    world.du.remove_ue(C_RNTI, &mut world.ports).unwrap();
    world.pass(200_000 * MS);
    assert_eq!((requests(&world), world.events.next(SOON)), (Vec::new(), None));
    assert_eq!(world.step(), None);
}
