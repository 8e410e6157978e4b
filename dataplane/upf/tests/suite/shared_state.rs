//! Meters and counters in a map that programs in the kernel share. Needs the privilege to create BPF maps.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::support::*;
use crate::world::{World, uplink_gpdu};
use pktio::bpf::SharedLines;
use rcu::Region;

/// A world whose sessions have their state in a map.
fn world() -> (World, Arc<SharedLines>) {
    let mut world = World::new();
    let shared = Arc::new(SharedLines::new(1).unwrap());
    let region = world.tables.add_state_region(Box::new(Arc::clone(&shared))).unwrap();
    assert_ne!(region, Region::OWN);
    world.sessions.place_state_in(region);
    (world, shared)
}

/// All words of the map that are not zero, as the kernel reads them.
fn words(shared: &SharedLines) -> Vec<u64> {
    let lines = (0..64).map(|place| shared.read(place).unwrap());
    lines.flatten().filter(|word| *word != 0).collect()
}

#[test]
fn packets_are_counted_in_the_map_and_metered_there() {
    let (mut world, shared) = world();
    let (seid, teid, _) = world.establish();
    let (up, down) =
        (udp(UE_V4.into(), SERVER_V4.into(), b"up"), udp(SERVER_V4.into(), UE_V4.into(), b"downlink"));
    let rates = [100_000, 1_000_000].map(upf::state::rate);
    let at_first = words(&shared);
    assert!(rates.iter().all(|rate| at_first.contains(rate)), "{at_first:?}");
    world.now_ns = 1 << 40;
    for _ in 0..3 {
        world.uplink(&uplink_gpdu(teid, &up));
    }
    for _ in 0..700 {
        world.downlink(&down);
    }
    assert_eq!((world.n6.take().len(), world.n3.take().len()), (3, 700));
    let counted = words(&shared);
    for expected in [3, 3 * up.len() as u64, 700, 700 * down.len() as u64] {
        assert!(counted.contains(&expected), "{expected} in {counted:?}");
    }
    // The times up to which the rates are used are somewhat later than now.
    let used = counted.iter().filter(|word| (**word >> 8).wrapping_sub(1 << 40) < 1_000_000_000);
    assert_eq!(used.count(), 2, "{counted:?}");
    // N4 reads the same.
    let (uplink, downlink) = world.sessions.get(seid).unwrap().compiled.usage();
    assert_eq!((uplink.packets, downlink.packets), (3, 700));
}

#[test]
fn what_the_kernel_has_counted_is_the_sessions_traffic() {
    let (mut world, shared) = world();
    let (seid, teid, _) = world.establish();
    for _ in 0..7 {
        world.uplink(&uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), b"up")));
    }
    // In place of a program: it counts in the map, and knows nothing of the tables.
    let lines = rcu::Lines::default();
    let region = lines.add_region(Box::new(Arc::clone(&shared))).unwrap();
    let places = (0..64).map(|place| lines.get(region.line(place)).unwrap());
    let account = places.flat_map(|line| line.iter()).find(|word| word.load(Relaxed) == 7).unwrap();
    account.fetch_add(35, Relaxed);
    assert_eq!(world.sessions.get(seid).unwrap().compiled.usage().0.packets, 42);
}

#[test]
fn sessions_elsewhere_leave_the_map_alone() {
    let (mut world, shared) = world();
    world.sessions.place_state_in(Region::OWN);
    let (_, teid, _) = world.establish();
    world.uplink(&uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), b"up")));
    assert_eq!((world.n6.take().len(), words(&shared)), (1, vec![]));
}
