//! Commits: all or nothing, seen as one by packets, and no room is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use net::time::now_std;
use pktio::bpf::{TestFrame, XDP_TX};
use xdp::steer::{
    Action, Capacity, Change, Counters, Entry, Forward, Inside, Key, Only, Passed, Steer, SteerError, Table,
    Teids, Tunnel,
};

use crate::frames::{Spec, ip, plain};
use crate::rig::{self, PASSED_ON, Rig};

const ANCHOR: &str = "10.1.0.1";

fn key(destination: &str, teid: u32) -> Key {
    Key::Tunnel(Tunnel { destination: ip(destination), teid })
}

fn to(interface: u32, teid: u32) -> Entry {
    let forward = Forward { interface, teid: Some(teid), ..Forward::default() };
    Entry { only: Only::default(), action: Action::Forward(forward) }
}

fn with(capacity: Capacity, teids: Teids) -> (Steer, Rig) {
    let mut steer = Steer::new(capacity).unwrap();
    let rig = Rig::new(&mut steer);
    steer.add_anchor(ip(ANCHOR), teids).unwrap();
    (steer, rig)
}

/// DIV-5: while commits move 1,000 tunnels from generation to generation, packets never see an older generation after a newer one.
fn atomic_under_traffic(teids: Teids, capacity: Capacity) {
    const TUNNELS: u32 = 1000;
    const COMMITS: u32 = 200;
    let (mut steer, rig) = with(capacity, teids);
    let here = rig.interfaces[0];
    let changes = |generation| -> Vec<Change> {
        (0..TUNNELS).map(|teid| Change::Set(key(ANCHOR, teid), to(here, generation))).collect()
    };
    steer.commit(&changes(1)).unwrap();
    let (done, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let program = &rig.loaded.program;
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let look = || {
                let (mut newest, mut generations, mut teid) = (1, 1u32, 0u32);
                while !done.load(Relaxed) {
                    teid = (teid + 619) % TUNNELS;
                    let frame = plain(ANCHOR, teid).build();
                    let turn = program.turn(TestFrame { octets: &frame, interface: here }).unwrap();
                    assert_eq!(turn.verdict, XDP_TX, "an entry holds at any time");
                    let now = u32::from_be_bytes(turn.frame[46..50].try_into().unwrap());
                    assert!(now >= newest, "generation {now} of TEID {teid} after {newest}");
                    generations += u32::from(now > newest);
                    newest = now;
                    seen.fetch_add(1, Relaxed);
                }
                generations
            };
            rig.ours.enter(look).unwrap()
        });
        let mut longest = std::time::Duration::ZERO;
        for generation in 2..2 + COMMITS {
            let list = changes(generation);
            let start = now_std();
            steer.commit(&list).unwrap();
            longest = longest.max(start.elapsed());
            // A packet that comes now is of this generation.
            let frame = plain(ANCHOR, generation % TUNNELS).build();
            let turn = rig.turn(&frame);
            assert_eq!(turn.frame[46..50], generation.to_be_bytes());
        }
        done.store(true, Relaxed);
        let generations = traffic.join().unwrap();
        println!("{} packets saw {generations} generations; longest commit {longest:?}", seen.load(Relaxed));
        assert!(generations > 10, "{generations}");
    });
    let total: u64 = (0..TUNNELS).map(|teid| steer.counters(&key(ANCHOR, teid)).unwrap().packets).sum();
    assert_eq!(
        total,
        seen.load(Relaxed) + u64::from(COMMITS),
        "each packet is counted once, by two processors"
    );
    assert_eq!(steer.passed().iter().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn commits_are_atomic_under_traffic_indexed() {
    let capacity = Capacity { own: 1024, ..rig::small() };
    atomic_under_traffic(Teids::Own { first: 0, count: 1000 }, capacity);
}

#[test]
fn commits_are_atomic_under_traffic_hashed() {
    atomic_under_traffic(Teids::Foreign, Capacity { foreign: 1024, ..rig::small() });
}

/// Commits change from one state to the other and back, while packets come for which two entries are looked up. Both states send them;
/// those that a commit comes between go on to the next part, and none is handled by entries of both.
fn states_alternate(states: impl Fn(Entry) -> [Vec<Change>; 2]) {
    const PACKETS: u32 = 10_000_000;
    let (mut steer, rig) = with(rig::small(), Teids::Own { first: 0, count: 8 });
    // Repeated runs come from interface 1, the loopback interface.
    rig.ours.enter(|| steer.add_port(1).unwrap()).unwrap();
    let forward = Forward { interface: 1, ..Forward::default() };
    let states = states(Entry { only: Only::default(), action: Action::Forward(forward) });
    steer.commit(&[Change::Set(key(ANCHOR, 3), to(1, 3))]).unwrap();
    let (done, frame, program) = (AtomicBool::new(false), plain(ANCHOR, 3).build(), &rig.loaded.program);
    let mut commits = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rig.ours.enter(|| program.run_repeatedly(&frame, PACKETS).unwrap()).unwrap();
            done.store(true, Relaxed);
        });
        while !done.load(Relaxed) {
            steer.commit(&states[commits % 2]).unwrap();
            commits += 1;
        }
    });
    let passed = steer.passed().map(|(reason, count)| (reason.name(), count));
    println!("{commits} commits; {passed:?}");
    for (reason, count) in steer.passed() {
        assert!(count == 0 || reason == Passed::Changing, "{passed:?}");
    }
}

#[test]
fn an_entry_moves_from_tunnel_to_link_layer_under_traffic() {
    let places = [key(ANCHOR, 3), Key::Frame { destination: plain(ANCHOR, 3).macs.0, source: None }];
    states_alternate(|entry| {
        [(0, 1), (1, 0)].map(|(from, to)| vec![Change::Remove(places[from]), Change::Set(places[to], entry)])
    });
}

/// The tunnel's own entry would leave packets to the host; in that state an entry for inner fields sends them.
#[test]
fn an_entry_moves_from_tunnel_to_inner_fields_under_traffic() {
    let tunnel = Tunnel { destination: ip(ANCHOR), teid: 3 };
    let inside = Key::Inside(tunnel, Inside::Family(false));
    let host = Entry { only: Only::default(), action: Action::Host };
    states_alternate(|entry| {
        [
            vec![Change::Set(Key::Tunnel(tunnel), host), Change::Set(inside, entry)],
            vec![Change::Remove(inside), Change::Set(Key::Tunnel(tunnel), entry)],
        ]
    });
}

/// IPv6 addresses whose lower half is that of an IPv4 anchor in the tables are no anchors, wherever they are searched.
#[test]
fn anchors_of_both_families_differ() {
    let (mut steer, rig) = with(rig::small(), Teids::Own { first: 0, count: 8 });
    let here = rig.interfaces[0];
    steer.commit(&[Change::Set(key(ANCHOR, 1), to(here, 7))]).unwrap();
    for upper in 1..2000 {
        let address = format!("2001:db8:{upper:x}::ffff:{ANCHOR}");
        assert_eq!(rig.turn(&plain(&address, 1).build()).verdict, PASSED_ON, "{address}");
    }
    let passed = steer.passed().into_iter().find(|(reason, _)| *reason == Passed::NoEntry);
    assert_eq!(passed, Some((Passed::NoEntry, 1999)));
    assert_eq!(rig.turn(&plain(ANCHOR, 1).build()).verdict, XDP_TX);
}

/// Whether an error is the right one.
type IsIt = fn(&SteerError) -> bool;

/// A commit that cannot be, changes nothing, wherever in the list the reason is; and nothing that it took is lost.
#[test]
fn a_commit_that_fails_changes_nothing() {
    let (mut steer, rig) = with(rig::small(), Teids::Own { first: 0, count: 4 });
    let here = rig.interfaces[0];
    let tunnel = Tunnel { destination: ip(ANCHOR), teid: 1 };
    let inside = Key::Inside(tunnel, Inside::Destination(ip("192.0.2.1")));
    steer.commit(&[Change::Set(key(ANCHOR, 1), to(here, 11)), Change::Set(inside, to(here, 12))]).unwrap();
    let before = steer.usage();
    let sent = |teid| rig.turn(&plain(ANCHOR, teid).build());
    sent(1);
    let new = [
        Change::Set(key(ANCHOR, 1), to(here, 21)),
        Change::Set(key(ANCHOR, 2), to(here, 22)),
        Change::Set(key(ANCHOR, 999), to(here, 23)),
        Change::Remove(inside),
        Change::Set(Key::Inside(tunnel, Inside::Source(ip("10.45.0.2"))), to(here, 24)),
    ];
    let mixed = Inside::Flow(6, (ip("10.0.0.1"), 1), (ip("::1"), 2));
    let unfit = Forward {
        interface: here,
        destination: Some(ip("::1")),
        source: Some(ip("10.0.0.1")),
        ..Forward::default()
    };
    let failing: [(Change, IsIt); 6] = [
        (Change::Set(key("10.9.9.9", 1), to(here, 1)), |error| matches!(error, SteerError::NoAnchor(_))),
        (Change::Set(key(ANCHOR, 3), to(4_000_000, 1)), |error| {
            matches!(error, SteerError::NoPort(4_000_000))
        }),
        (Change::Remove(key(ANCHOR, 1)), |error| matches!(error, SteerError::NeedsTunnel(_))),
        (
            Change::Set(Key::Inside(Tunnel { teid: 3, ..tunnel }, Inside::Family(true)), to(here, 1)),
            |error| matches!(error, SteerError::NeedsTunnel(_)),
        ),
        (Change::Set(Key::Inside(tunnel, mixed), to(here, 1)), |error| {
            matches!(error, SteerError::Contradiction(_))
        }),
        (
            Change::Set(key(ANCHOR, 3), Entry { only: Only::default(), action: Action::Forward(unfit) }),
            |error| matches!(error, SteerError::Contradiction(_)),
        ),
    ];
    for _ in 0..50 {
        for (change, is_it) in &failing {
            let mut changes = new.to_vec();
            changes.push(*change);
            let error = steer.commit(&changes).unwrap_err();
            assert!(is_it(&error), "{error}");
            assert_eq!(steer.usage(), before);
        }
    }
    assert_eq!(sent(1).frame[46..50], 12u32.to_be_bytes(), "the entry for inner fields still holds");
    assert_eq!([2, 999].map(|teid| sent(teid).verdict), [PASSED_ON; 2]);
    assert_eq!(
        steer.counters(&inside),
        Some(Counters { packets: 2, octets: 2 * plain(ANCHOR, 1).build().len() as u64 }),
        "it has counted all the time, though commits that failed would have removed it"
    );
    // Everything that failed was given back: as much as before still fits.
    steer.commit(&new).unwrap();
    assert_eq!(sent(1).frame[46..50], 24u32.to_be_bytes());
    assert_eq!(sent(999).frame[46..50], 23u32.to_be_bytes());
}

/// Full tables say so, and what was removed can be used again: the commit waits for a grace period by itself.
#[test]
fn full_tables_say_so_and_removed_room_comes_back() {
    let (mut steer, rig) = with(rig::small(), Teids::Foreign);
    let here = rig.interfaces[0];
    let mut filled = 0;
    let error = loop {
        match steer.commit(&[Change::Set(key(ANCHOR, filled), to(here, 1))]) {
            Ok(()) => filled += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SteerError::Full(Table::Foreign)), "{error}");
    assert!(filled >= 64, "{filled} entries where 64 were promised");
    for teid in 0..filled {
        assert_eq!(rig.turn(&plain(ANCHOR, teid).build()).verdict, XDP_TX);
    }
    // All leave, and others take their places, again and again.
    for round in 1..20 {
        let (old, new) = ((round - 1) * 1000, round * 1000);
        let removed: Vec<_> = (0..filled).map(|at| Change::Remove(key(ANCHOR, old + at))).collect();
        steer.commit(&removed).unwrap();
        assert_eq!(steer.usage().entries, 0);
        let added: Vec<_> = (0..60).map(|at| Change::Set(key(ANCHOR, new + at), to(here, 2))).collect();
        steer.commit(&added).unwrap();
        for at in 0..60 {
            assert_eq!(rig.turn(&plain(ANCHOR, old + at).build()).verdict, PASSED_ON, "removed");
            assert_eq!(rig.turn(&plain(ANCHOR, new + at).build()).verdict, XDP_TX);
            assert_eq!(steer.counters(&key(ANCHOR, new + at)).unwrap().packets, 1, "counts from 0");
        }
    }
}

#[test]
fn anchors_come_and_go() {
    let (mut steer, rig) = with(rig::small(), Teids::Own { first: 5, count: 64 });
    let here = rig.interfaces[0];
    let own = |count| Teids::Own { first: 5, count };
    assert!(matches!(steer.add_anchor(ip(ANCHOR), own(1)), Err(SteerError::IsAnchor(_))));
    assert!(matches!(steer.add_anchor(ip("10.1.0.2"), own(1)), Err(SteerError::Full(Table::Own))));
    steer.commit(&[Change::Set(key(ANCHOR, 5), to(here, 1))]).unwrap();
    assert!(matches!(steer.remove_anchor(ip(ANCHOR)), Err(SteerError::InUse(_, 1))));
    steer.commit(&[Change::Remove(key(ANCHOR, 5))]).unwrap();
    steer.remove_anchor(ip(ANCHOR)).unwrap();
    assert!(matches!(steer.remove_anchor(ip(ANCHOR)), Err(SteerError::NoAnchor(_))));
    for round in 0..40u32 {
        let address = format!("10.1.1.{round}");
        steer.add_anchor(ip(&address), own(64)).unwrap();
        steer.commit(&[Change::Set(key(&address, 68), to(here, round))]).unwrap();
        assert_eq!(rig.turn(&plain(&address, 68).build()).frame[46..50], round.to_be_bytes());
        assert_eq!(rig.turn(&plain(&address, 69).build()).verdict, PASSED_ON);
        steer.commit(&[Change::Remove(key(&address, 68))]).unwrap();
        steer.remove_anchor(ip(&address)).unwrap();
        assert_eq!(rig.turn(&plain(&address, 68).build()).verdict, PASSED_ON);
    }
}

/// While the entries are paused everything goes on and nothing is counted; what is changed meanwhile holds when the pause ends.
#[test]
fn a_pause_passes_everything_on() {
    let (mut steer, rig) = with(rig::small(), Teids::Foreign);
    let here = rig.interfaces[0];
    let teid = |rig: &Rig, teid| {
        let turn = rig.turn(&plain(ANCHOR, teid).build());
        (turn.verdict, u32::from_be_bytes(turn.frame[46..50].try_into().unwrap()))
    };
    steer.commit(&[Change::Set(key(ANCHOR, 1), to(here, 11))]).unwrap();
    assert_eq!(teid(&rig, 1), (XDP_TX, 11));
    steer.pause();
    assert!(steer.is_paused());
    assert_eq!(teid(&rig, 1), (PASSED_ON, 1));
    // Several commits, so that both slots of the line have changed.
    for new in [21, 22, 23] {
        steer
            .commit(&[Change::Set(key(ANCHOR, 1), to(here, new)), Change::Set(key(ANCHOR, 2), to(here, new))])
            .unwrap();
        assert_eq!([teid(&rig, 1), teid(&rig, 2)], [(PASSED_ON, 1), (PASSED_ON, 2)]);
    }
    assert_eq!(steer.counters(&key(ANCHOR, 1)).unwrap().packets, 1);
    let paused = steer.passed().into_iter().find(|(reason, _)| *reason == Passed::Paused);
    assert_eq!(paused, Some((Passed::Paused, 7)));
    steer.resume();
    assert_eq!([teid(&rig, 1), teid(&rig, 2)], [(XDP_TX, 23), (XDP_TX, 23)]);
    // Packets that are nobody's are told apart as before.
    steer.pause();
    let echo = Spec { kind: 1, ..plain(ANCHOR, 1) };
    assert_eq!(rig.turn(&echo.build()).verdict, PASSED_ON);
    let signalling = steer.passed().into_iter().find(|(reason, _)| *reason == Passed::Signalling);
    assert_eq!(signalling, Some((Passed::Signalling, 1)));
}

/// An owner that does not wait is told that there is no room until it has waited by itself, which it does without the tables.
#[test]
fn grace_periods_can_be_waited_for_ahead_of_time() {
    let (mut steer, rig) = with(Capacity { hops: 1, ..rig::small() }, Teids::Foreign);
    let [here, there, _] = rig.interfaces;
    steer.never_wait();
    let entry = |interface| Entry {
        only: Only::default(),
        action: Action::Forward(Forward { interface, ..Forward::default() }),
    };
    steer.commit(&[Change::Set(key(ANCHOR, 1), entry(here))]).unwrap();
    steer.commit(&[Change::Remove(key(ANCHOR, 1))]).unwrap();
    let full = |steer: &mut Steer| steer.commit(&[Change::Set(key(ANCHOR, 2), entry(there))]).unwrap_err();
    assert!(matches!(full(&mut steer), SteerError::Full(Table::Hops)));
    let began = steer.begin_grace();
    assert!(matches!(full(&mut steer), SteerError::Full(Table::Hops)), "it is not over");
    let waited = began.wait().unwrap();
    steer.end_grace(waited);
    steer.commit(&[Change::Set(key(ANCHOR, 2), entry(there))]).unwrap();
    // What is removed while a grace period runs is not part of it.
    let began = steer.begin_grace();
    steer.commit(&[Change::Remove(key(ANCHOR, 2))]).unwrap();
    let waited = began.wait().unwrap();
    steer.end_grace(waited);
    let error = steer.commit(&[Change::Set(key(ANCHOR, 3), entry(here))]).unwrap_err();
    assert!(matches!(error, SteerError::Full(Table::Hops)), "{error}");
}

/// A line that a commit took before it failed has had a key that programs may have found: it is used again a grace period later.
#[test]
fn lines_of_failed_commits_wait_for_a_grace_period() {
    let (mut steer, rig) = with(rig::small(), Teids::Foreign);
    let here = rig.interfaces[0];
    steer.never_wait();
    let fails = |steer: &mut Steer, teid| {
        let changes = [(teid, here), (teid, 4_000_000)];
        let changes = changes.map(|(teid, interface)| Change::Set(key(ANCHOR, teid), to(interface, 1)));
        steer.commit(&changes).unwrap_err()
    };
    let full = (0..1000).find(|teid| matches!(fails(&mut steer, *teid), SteerError::Full(Table::Foreign)));
    let full = full.expect("lines run out");
    assert!(full >= 16, "{full}");
    let error = fails(&mut steer, full - 1);
    assert!(matches!(error, SteerError::NoPort(_)), "the same key may have its line again: {error}");
    steer.settle().unwrap();
    assert!(matches!(fails(&mut steer, full), SteerError::NoPort(_)));
    let all: Vec<_> = (0..60).map(|teid| Change::Set(key(ANCHOR, 2000 + teid), to(here, 1))).collect();
    steer.settle().unwrap();
    steer.commit(&all).unwrap();
}

#[test]
fn what_cannot_be_addressed_is_refused() {
    let refused = |capacity| Steer::new(capacity).unwrap_err();
    let large = Capacity { own: 1 << 23, ..rig::small() };
    assert!(matches!(refused(large), SteerError::TooLarge(Table::Own)));
    let many = Capacity { hops: 70_000, ..rig::small() };
    assert!(matches!(refused(many), SteerError::TooLarge(Table::Hops)));
    assert_eq!(Passed::ALL.map(|reason| reason as usize), std::array::from_fn(|at| at));
}

/// A million own tunnels and as many foreign ones: they fit, and each has its own entry.
#[test]
fn a_million_tunnels() {
    const COUNT: u32 = 1 << 20;
    let capacity = Capacity { own: COUNT, foreign: COUNT, ..rig::small() };
    let (mut steer, rig) = with(capacity, Teids::Own { first: 0, count: COUNT });
    let here = rig.interfaces[0];
    steer.add_anchor(ip("10.1.0.2"), Teids::Foreign).unwrap();
    for anchor in [ANCHOR, "10.1.0.2"] {
        let start = now_std();
        for first in (0..COUNT).step_by(1 << 16) {
            let changes: Vec<_> = (first..first + (1 << 16))
                .map(|teid| {
                    Change::Set(
                        key(anchor, teid.wrapping_mul(if anchor == ANCHOR { 1 } else { 0x9E37_79B1 })),
                        to(here, teid ^ 0x5555),
                    )
                })
                .collect();
            steer.commit(&changes).unwrap();
        }
        println!("{COUNT} entries in {:?}, {} MiB", start.elapsed(), steer.usage().octets >> 20);
        for teid in (0..COUNT).step_by(997) {
            let wire = teid.wrapping_mul(if anchor == ANCHOR { 1 } else { 0x9E37_79B1 });
            let turn = rig.turn(&plain(anchor, wire).build());
            assert_eq!(turn.frame[46..50], (teid ^ 0x5555).to_be_bytes());
        }
    }
}
