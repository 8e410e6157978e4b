//! The program and its model agree, octet by octet, on frames of all kinds.

use std::net::IpAddr;

use pktio::bpf::{XDP_DROP, XDP_REDIRECT, XDP_TX};
use xdp::steer::{Action, Change, Entry, Forward, Inner, Inside, Key, Only, Passed, Steer, Teids, Tunnel};

use crate::frames::{Random, Spec, ip, plain};
use crate::model::{Model, Outcome};
use crate::rig::{self, PASSED_ON, Rig};

/// Outer destinations: our own IPv4 and IPv6 anchors, foreign ones, and two that are no anchors.
const ANCHORS: [&str; 6] =
    ["10.1.0.1", "2001:db8:1::1", "10.1.0.2", "2001:db8:1::2", "10.1.0.3", "2001:db8:1::3"];

struct Both {
    steer: Steer,
    rig: Rig,
    model: Model,
    passed: Vec<(Passed, u64)>,
}

impl Both {
    fn new() -> Both {
        let mut steer = Steer::new(rig::small()).unwrap();
        let rig = Rig::new(&mut steer);
        let anchors: Vec<IpAddr> = ANCHORS[..4].iter().map(|text| ip(text)).collect();
        for (at, anchor) in anchors.iter().enumerate() {
            let teids = if at < 2 { Teids::Own { first: 100, count: 10 } } else { Teids::Foreign };
            steer.add_anchor(*anchor, teids).unwrap();
        }
        let passed = steer.passed().to_vec();
        Both { steer, rig, model: Model { anchors, ..Model::default() }, passed }
    }

    fn commit(&mut self, changes: &[Change]) {
        self.steer.commit(changes).unwrap();
        self.model.change(changes);
    }

    /// Gives frames to both; asserts that they agree.
    fn check(&mut self, frames: &[(u32, Vec<u8>)]) -> Vec<Outcome> {
        let turns = self.rig.turns(frames.iter().map(|(interface, frame)| (*interface, frame.as_slice())));
        let mut outcomes = Vec::new();
        for ((interface, frame), turn) in frames.iter().zip(turns) {
            let mut expected = frame.clone();
            let outcome = self.model.turn(*interface, &mut expected);
            let verdict = match outcome {
                Outcome::Sent(to) if to == *interface => XDP_TX,
                Outcome::Sent(_) => XDP_REDIRECT,
                Outcome::Dropped => XDP_DROP,
                Outcome::Passed(reason) => {
                    let counted = self.passed.iter_mut().find(|(known, _)| *known == reason);
                    counted.unwrap().1 += 1;
                    PASSED_ON
                }
            };
            assert_eq!(turn.verdict, verdict, "{outcome:?} of {frame:02x?}");
            assert_eq!(turn.frame, expected, "{outcome:?} of {frame:02x?}");
            outcomes.push(outcome);
        }
        assert_eq!(self.steer.passed().to_vec(), self.passed);
        outcomes
    }

    fn check_counters(&self) {
        for (key, expected) in &self.model.counters {
            assert_eq!(self.steer.counters(key), Some(*expected), "{key:?}");
        }
    }
}

fn tunnel(destination: &str, teid: u32) -> Tunnel {
    Tunnel { destination: ip(destination), teid }
}

fn forward(forward: Forward) -> Entry {
    Entry { only: Only::default(), action: Action::Forward(forward) }
}

fn random_forward(random: &mut Random, interfaces: &[u32], ipv6: bool) -> Forward {
    let address = |random: &mut Random| {
        ip(if ipv6 {
            random.pick(&["2001:db8:2::1", "2001:db8:2::2"])
        } else {
            random.pick(&["10.2.0.1", "10.2.0.2"])
        })
    };
    let mac = |random: &mut Random| [2, 0, 0, 0, 9, random.below(3) as u8];
    let inner = |random: &mut Random| {
        let new = ip(random.pick(&["10.46.0.7", "10.46.0.8", "2001:db8:46::7"]));
        if random.chance(50) { Inner::Source(new) } else { Inner::Destination(new) }
    };
    Forward {
        interface: random.pick(interfaces),
        eth_destination: random.chance(70).then(|| mac(random)),
        eth_source: random.chance(40).then(|| mac(random)),
        destination: random.chance(80).then(|| address(random)),
        source: random.chance(30).then(|| address(random)),
        teid: random.chance(50).then(|| random.next() as u32),
        inner: random.chance(40).then(|| inner(random)),
        end_markers: random.chance(50),
    }
}

fn random_entry(random: &mut Random, interfaces: &[u32], ipv6: bool) -> Entry {
    let source = ip(if ipv6 { "2001:db8::9" } else { "10.0.0.9" });
    let only = Only {
        interface: random.chance(15).then(|| random.pick(interfaces)),
        source: random.chance(15).then_some(source),
        eth_source: random.chance(10).then(|| [2, 0, 0, 0, 0, random.below(3) as u8]),
        eth_destination: random.chance(10).then(|| [2, 0, 0, 0, 0, random.below(4) as u8]),
    };
    let action = match random.below(10) {
        0 => Action::Host,
        1 => Action::Drop,
        _ => Action::Forward(random_forward(random, interfaces, ipv6)),
    };
    Entry { only, action }
}

fn random_inside(random: &mut Random) -> Inside {
    let ipv6 = random.chance(40);
    let source = ip(if ipv6 { "2001:db8:45::2" } else { "10.45.0.2" });
    let destination = ip(if ipv6 { "2001:db8::53" } else { "192.0.2.1" });
    let protocol = random.pick(&[6, 17, 58]);
    let ports = if protocol == 58 { (0, 0) } else { (4000, 53) };
    match random.below(6) {
        0 => Inside::Flow(protocol, (source, ports.0), (destination, ports.1)),
        1 => Inside::Service(protocol, destination, ports.1),
        2 => Inside::Client(protocol, source, ports.0),
        3 => Inside::Destination(destination),
        4 => Inside::Source(source),
        _ => Inside::Family(ipv6),
    }
}

/// Entries of all kinds for some of the tunnels that [`Spec::random`] makes.
fn random_changes(random: &mut Random, interfaces: &[u32], model: &Model) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..random.below(12) + 1 {
        let destination = random.pick(&ANCHORS[..4]);
        let tunnel = tunnel(destination, random.below(12) as u32 + 100);
        let entry = random_entry(random, interfaces, tunnel.destination.is_ipv6());
        let known = model.entries.contains_key(&Key::Tunnel(tunnel));
        let insides = model.entries.keys().filter(|key| matches!(key, Key::Inside(of, _) if *of == tunnel));
        let insides: Vec<Key> = insides.copied().collect();
        match random.below(6) {
            0 => {
                changes.extend(insides.into_iter().map(Change::Remove));
                changes.push(Change::Remove(Key::Tunnel(tunnel)));
                // Others of this commit may have been for it.
                return changes;
            }
            1 => {
                let source = random.chance(50).then(|| [2, 0, 0, 0, 0, random.below(3) as u8]);
                let key = Key::Frame { source, destination: [2, 0, 0, 0, 0, random.below(4) as u8] };
                let interface = random.pick(interfaces);
                changes.push(Change::Set(key, forward(Forward { interface, ..Forward::default() })));
            }
            2 | 3 if known => changes.push(Change::Set(Key::Inside(tunnel, random_inside(random)), entry)),
            4 if !insides.is_empty() => changes.push(Change::Remove(random.pick(&insides))),
            _ => changes.push(Change::Set(Key::Tunnel(tunnel), entry)),
        }
    }
    changes
}

#[test]
fn random_entries_and_random_frames() {
    let mut both = Both::new();
    let interfaces = both.rig.interfaces;
    let anchors: Vec<IpAddr> = ANCHORS.iter().map(|text| ip(text)).collect();
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let mut seen = std::collections::HashMap::new();
    for _ in 0..150 {
        let changes = random_changes(&mut random, &interfaces, &both.model);
        both.commit(&changes);
        let frames: Vec<_> = (0..80)
            .map(|_| {
                let mut frame = Spec::random(&mut random, &anchors).build();
                match random.below(10) {
                    0 => frame.truncate(14 + random.below(frame.len() - 14)),
                    1 => {
                        for _ in 0..random.below(3) + 1 {
                            let at = random.below(frame.len());
                            frame[at] ^= 1 << random.below(8);
                        }
                    }
                    _ => {}
                }
                (random.pick(&interfaces), frame)
            })
            .collect();
        for outcome in both.check(&frames) {
            let kind = match outcome {
                Outcome::Sent(_) => "sent".to_owned(),
                other => format!("{other:?}"),
            };
            *seen.entry(kind).or_insert(0) += 1;
        }
    }
    both.check_counters();
    assert_eq!(both.steer.usage().entries as usize, both.model.entries.len());
    // Entries for inner fields first, then those of their tunnels: nothing stays in use.
    let mut keys: Vec<Key> = both.model.entries.keys().copied().collect();
    keys.sort_by_key(|key| !matches!(key, Key::Inside(..)));
    both.commit(&keys.into_iter().map(Change::Remove).collect::<Vec<_>>());
    assert_eq!((both.steer.usage().entries, both.steer.usage().hops), (0, 0));
    println!("{seen:?}");
    // What the program can say was said.
    for reason in ["Other", "Fragment", "Malformed", "Signalling", "NoEntry", "Host", "Guard", "Inner"] {
        assert!(seen.contains_key(&format!("Passed({reason})")), "{reason} in {seen:?}");
    }
    assert!(seen["sent"] > 1000 && seen["Dropped"] > 50, "{seen:?}");
}

/// Every truncation and every flipped bit of packets that everything is done with.
#[test]
fn every_truncation_and_every_flipped_bit() {
    let mut both = Both::new();
    let [here, there, _] = both.rig.interfaces;
    let all = |outer: &str, inner: &str| {
        forward(Forward {
            interface: there,
            eth_destination: Some([2, 0, 0, 0, 1, 1]),
            eth_source: Some([2, 0, 0, 0, 1, 2]),
            destination: Some(ip(outer)),
            source: None,
            teid: Some(0xCAFE_F00D),
            inner: Some(Inner::Source(ip(inner))),
            end_markers: false,
        })
    };
    let (a, b) = (tunnel(ANCHORS[0], 101), tunnel(ANCHORS[3], 777));
    both.commit(&[
        Change::Set(Key::Tunnel(a), all("10.2.0.1", "10.46.0.1")),
        Change::Set(Key::Tunnel(b), all("2001:db8:2::1", "2001:db8:46::1")),
        Change::Set(Key::Inside(a, Inside::Service(17, ip("192.0.2.1"), 53)), all("10.2.0.2", "10.46.0.2")),
    ]);
    let first = Spec { flags: 7, extensions: vec![1, 2], payload: 11, ..plain(ANCHORS[0], 101) };
    let second = Spec {
        inner: (ip("2001:db8:45::2"), ip("2001:db8::53")),
        protocol: 6,
        flags: 4,
        extensions: vec![1],
        fragment: Some((0, true)),
        ..plain(ANCHORS[3], 777)
    };
    for spec in [first, second] {
        let frame = spec.build();
        assert_eq!(both.check(&[(here, frame.clone())]), [Outcome::Sent(there)]);
        let mut frames: Vec<_> = (14..frame.len()).map(|length| (here, frame[..length].to_vec())).collect();
        for bit in 0..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            frames.push((here, flipped));
        }
        both.check(&frames);
    }
    both.check_counters();
}

/// SW-2, SW-3, SW-9…SW-12: only what the entry says changes, and checksums stay valid.
#[test]
fn rewritten_packets_have_valid_checksums() {
    let mut both = Both::new();
    let [here, ..] = both.rig.interfaces;
    let mut random = Random(99);
    for ipv6 in [false, true] {
        let (anchor, target) = if ipv6 { (ANCHORS[1], "2001:db8:2::9") } else { (ANCHORS[0], "10.2.0.9") };
        for (inner_ipv6, new) in [(false, "10.46.0.9"), (true, "2001:db8:46::9")] {
            let to = Forward {
                interface: here,
                destination: Some(ip(target)),
                teid: Some(7),
                inner: Some(Inner::Destination(ip(new))),
                ..Forward::default()
            };
            both.commit(&[Change::Set(Key::Tunnel(tunnel(anchor, 105)), forward(to))]);
            for protocol in [6, 17, 58, 132] {
                for payload in 0..40 {
                    let mut spec = Spec { protocol, payload, ..plain(anchor, 105) };
                    spec.flags = random.below(8) as u8;
                    spec.extensions = vec![1];
                    if inner_ipv6 {
                        spec.inner = (ip("2001:db8:45::2"), ip("2001:db8::53"));
                    }
                    let outcome = both.check(&[(here, spec.build())]);
                    if protocol == 58 && !inner_ipv6 {
                        assert_eq!(outcome, [Outcome::Passed(Passed::Inner)]);
                        continue;
                    }
                    // The frame as it would have been built with the new values.
                    let turn = both.rig.turn(&spec.build());
                    spec.outer.1 = ip(target);
                    spec.inner.1 = ip(new);
                    spec.teid = 7;
                    assert_eq!(turn.frame, spec.build(), "{spec:?}");
                }
            }
            both.commit(&[Change::Remove(Key::Tunnel(tunnel(anchor, 105)))]);
        }
    }
}

/// SW-3: an address that is there already is not written, so wrong checksums stay, and of two forms of zero the one that came.
#[test]
fn an_inner_address_that_is_there_changes_nothing() {
    let mut both = Both::new();
    let [here, ..] = both.rig.interfaces;
    for inner in [(ip("10.45.0.2"), ip("192.0.2.1")), (ip("2001:db8:45::2"), ip("2001:db8::53"))] {
        let (header, of_header) = if inner.0.is_ipv6() { (40, None) } else { (20, Some(10)) };
        for rewrite in [Inner::Source(inner.0), Inner::Destination(inner.1)] {
            let to = Forward { interface: here, inner: Some(rewrite), ..Forward::default() };
            both.commit(&[Change::Set(Key::Tunnel(tunnel(ANCHORS[0], 105)), forward(to))]);
            for (protocol, checksum) in [(6, 16), (17, 6)] {
                for octet in [0, 0xFF] {
                    let mut frame = Spec { inner, protocol, ..plain(ANCHORS[0], 105) }.build();
                    let checksums = [Some(header + checksum), of_header].into_iter().flatten();
                    checksums.for_each(|at| frame[50 + at..][..2].fill(octet));
                    assert_eq!(both.check(&[(here, frame.clone())]), [Outcome::Sent(here)]);
                    assert_eq!(both.rig.turn(&frame).frame, frame);
                }
            }
        }
    }
}

/// The first fragment of a TCP segment without its whole header goes on: the host path does not mend it either.
#[test]
fn a_tcp_header_that_is_cut_off_goes_on() {
    let mut both = Both::new();
    let [here, ..] = both.rig.interfaces;
    let to = Forward { interface: here, inner: Some(Inner::Source(ip("10.46.0.9"))), ..Forward::default() };
    both.commit(&[Change::Set(Key::Tunnel(tunnel(ANCHORS[0], 105)), forward(to))]);
    for (payload, expected) in [(19, Outcome::Passed(Passed::Inner)), (20, Outcome::Sent(here))] {
        let spec = Spec { protocol: 132, payload, fragment: Some((0, true)), ..plain(ANCHORS[0], 105) };
        let mut frame = spec.build();
        frame[50 + 9] = 6;
        assert_eq!(both.check(&[(here, frame)]), [expected], "{payload} octets");
    }
}

/// SW-8: messages of the path are not touched, with or without an entry; tagged frames neither.
#[test]
fn messages_of_the_path_and_tagged_frames_go_on() {
    let mut both = Both::new();
    let [here, there, _] = both.rig.interfaces;
    let to = Forward { interface: there, teid: Some(1), ..Forward::default() };
    both.commit(&[
        Change::Set(Key::Tunnel(tunnel(ANCHORS[0], 0)), forward(to)),
        Change::Set(Key::Tunnel(tunnel(ANCHORS[0], 105)), forward(to)),
        Change::Set(Key::Tunnel(tunnel(ANCHORS[0], 106)), forward(Forward { end_markers: true, ..to })),
    ]);
    for kind in 0..254 {
        let spec = Spec { kind, ..plain(ANCHORS[0], if kind % 2 == 0 { 0 } else { 105 }) };
        assert_eq!(both.check(&[(here, spec.build())]), [Outcome::Passed(Passed::Signalling)]);
    }
    let end_marker = |teid| (here, Spec { kind: 254, ..plain(ANCHORS[0], teid) }.build());
    let outcomes = both.check(&[end_marker(105), end_marker(106)]);
    assert_eq!(outcomes, [Outcome::Passed(Passed::Signalling), Outcome::Sent(there)]);
    for tag in [[0x81, 0x00, 0x20, 0x00], [0x88, 0xA8, 0x00, 0x64]] {
        let mut frame = plain(ANCHORS[0], 105).build();
        frame.splice(12..12, tag);
        assert_eq!(both.check(&[(here, frame)]), [Outcome::Passed(Passed::Other)]);
    }
    both.check_counters();
}
