//! Both data paths of the switch at once: known tunnels in XDP, everything else on the host path, on veth links with real frames.
#![allow(clippy::disallowed_methods, reason = "the tests wait for the kernel")]

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::namespaces::{Link, Network, network, network_with};
use net::link::Links;
use openflow::*;
use packet::gtpu::Signalling;
use packet::{ethernet, gtpu};
use serde_json::{Value, json};

/// A machine with too much to do stands still for less than this.
const PATIENCE: Duration = Duration::from_secs(5);

/// `None`: this build has no programs, or namespaces are not allowed here.
fn with_xdp() -> Option<Network> {
    with_room_for(65_536)
}

fn with_room_for(tunnels: u32) -> Option<Network> {
    if !::xdp::programs::BUILT {
        eprintln!("skipped: no XDP programs; build with --features clang");
        return None;
    }
    network_with(&json!({"xdp": {"tunnels": tunnels}}))
}

/// What the switch says of XDP.
fn xdp(network: &Network) -> Value {
    network.service().status()["xdp"].clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Waits until the switch says so.
fn wait_for(network: &Network, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1000 {
        let now = xdp(network);
        if is_it(&now) {
            return now;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: {}", network.service().status());
}

/// Sends each frame until its tunnel is in XDP, with all that arrives at these ends taken away; then waits until no packet of that
/// time can be in the host path.
fn teach(network: &Network, from: &mut Link, to: &mut [&mut Link], frames: &[Vec<u8>]) {
    let before = number(&xdp(network)["tunnels"]);
    for _ in 0..100 {
        for frames in frames.chunks(50) {
            from.send(frames);
            std::thread::sleep(Duration::from_millis(2));
            to.iter_mut().for_each(|link| link.drain());
        }
        std::thread::sleep(Duration::from_millis(20));
        if number(&xdp(network)["tunnels"]) >= before + frames.len() as u64 {
            std::thread::sleep(Duration::from_millis(150));
            to.iter_mut().for_each(|link| link.drain());
            return;
        }
    }
    panic!("not learned: {}", network.service().status());
}

/// All counters that a packet changes: of rules with priority, of tables, and of ports.
fn counters(network: &Network) -> Vec<(String, u64, u64)> {
    let status = network.service().status();
    let rows = |name: &str, key: &[&str], packets: &str, bytes: &str| -> Vec<(String, u64, u64)> {
        let rows = status[name].as_array().unwrap().iter();
        rows.map(|row| {
            let key: Vec<_> = key.iter().map(|key| row[*key].to_string()).collect();
            (format!("{name} {}", key.join(" ")), number(&row[packets]), number(&row[bytes]))
        })
        .collect()
    };
    let mut all = rows("entries", &["table", "priority", "match"], "packets", "bytes");
    all.extend(rows("tables", &["table"], "lookups", "matches"));
    for direction in ["rx", "tx"] {
        let of_ports =
            rows("ports", &["number"], &format!("{direction}_packets"), &format!("{direction}_bytes"));
        all.extend(of_ports.into_iter().map(|(name, a, b)| (format!("{name} {direction}"), a, b)));
    }
    // Rules are listed by the time at which they came.
    all.sort();
    all
}

fn difference(before: &[(String, u64, u64)], after: &[(String, u64, u64)]) -> Vec<(String, u64, u64)> {
    let both = before.iter().zip(after);
    both.map(|(a, b)| {
        assert_eq!(a.0, b.0);
        (a.0.clone(), b.1 - a.1, b.2 - a.2)
    })
    .filter(|(_, packets, _)| *packets > 0)
    .collect()
}

/// Frames of all kinds of messages of a user, with checksums and without, and octets behind them.
fn frames_of(teid: u32) -> Vec<Vec<u8>> {
    let packet = |number: u16| {
        udp((UE1.into(), 40_000), (SERVER.into(), number), &number.to_be_bytes().repeat(1 + number as usize))
    };
    (0..60)
        .map(|number| {
            let message = match number % 3 {
                0 => gpdu(teid, &packet(number)),
                1 => gpdu_5g(teid, &packet(number)),
                _ => gpdu_full(teid, &packet(number)),
            };
            let mut frame = uplink(GW1, &message);
            match number % 4 {
                0 => frame[40..42].fill(0),
                1 => frame.extend([0xee; 7]),
                _ => {}
            }
            frame
        })
        .collect()
}

/// A translation of the address inside, as selective mode has it.
fn translate(teid: u32) -> FlowMod {
    let user = [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(teid.into()), Oxm::packet_type(PacketType::IPV4)];
    let actions = [
        set(Oxm::ipv4_src(Ipv4Addr::new(10, 46, 0, 9))),
        set(Oxm::tunnel_id(0x77)),
        set(Oxm::tun_ipv4_dst(GW2)),
        Action::output(PortNo::IN_PORT),
    ];
    add(1, 100, user, Instructions::apply(actions))
}

/// The same traffic through both data paths: the same octets, and the same counters of every rule, table and port.
#[test]
fn both_paths_do_and_count_the_same() {
    let run = |network: &Network, in_xdp: bool| {
        network.install(table_one());
        // Asks all packets for their EthType.
        network.install([add(0, 1000, [Oxm::eth_type(0x0806)], Instructions::default())]);
        network.install([divert(7), translate(9)]);
        let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
        let users = [7, 8, 9].map(frames_of);
        if in_xdp {
            let first = users.each_ref().map(|frames| frames[1].clone());
            teach(network, &mut enb, &mut [&mut gw1, &mut gw2], &first);
        }
        let before = counters(network);
        let packets = in_xdp.then(|| number(&xdp(network)["packets"]));
        let mut arrived = [Vec::new(), Vec::new()];
        for turn in 0..60 {
            enb.send(&users.each_ref().map(|frames| frames[turn].clone()));
            arrived[0].extend(gw1.receive(1));
            arrived[1].extend(gw2.receive(2));
        }
        let counts = difference(&before, &counters(network));
        if let Some(packets) = packets {
            assert_eq!(number(&xdp(network)["packets"]), packets + 180, "all of them went by XDP");
        }
        (arrived, counts)
    };
    let Some(both) = with_xdp() else { return };
    let (by_xdp, counts_of_xdp) = run(&both, true);
    drop(both);
    let (by_host, counts_of_host) = run(&network().unwrap(), false);
    assert_eq!(by_host[0], frames_of(8));
    assert_eq!(by_host[1].len(), 120);
    by_host[1]
        .iter()
        .for_each(|frame| check(&frame[..14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))]));
    assert_eq!(by_xdp, by_host);
    assert_eq!(counts_of_xdp, counts_of_host);
    assert!(
        counts_of_host.iter().any(|(name, packets, _)| name.starts_with("entries 1 100") && *packets == 60)
    );
}

/// IPv6 outside and inside, with an address inside and the TEID replaced: octets as the pipeline alone makes them.
#[test]
fn ipv6_tunnels_are_steered() {
    let Some(network) = with_xdp() else { return };
    let (enb, gw1, gw2) = (v6(1), v6(11), v6(12));
    let outer = [Oxm::eth_type(0x86dd), Oxm::ip_proto(17), Oxm::udp_dst(2152), Oxm::ipv6_dst(gw1)];
    let back = || Action::output(PortNo::IN_PORT);
    let user =
        |teid, packet_type| [Oxm::tun_ipv6_dst(gw1), Oxm::tunnel_id(teid), Oxm::packet_type(packet_type)];
    let to_gw2 = [Oxm::in_port(PortNo::LOCAL), Oxm::eth_type(0x86dd), Oxm::ipv6_dst(gw2)];
    let translated =
        |address| vec![address, set(Oxm::tun_ipv6_dst(gw2)), set(Oxm::tunnel_id(0x9999)), back()];
    let mut rules = vec![
        add(0, 300, [Oxm::in_port(PortNo(GTP))], Instructions::goto(TableId(1))),
        add(0, 260, to_gw2, then([set(Oxm::eth_dst(MacAddr(GW2_MAC)))], 2)),
        add(0, 250, [Oxm::in_port(PortNo::LOCAL)], Instructions::goto(TableId(2))),
        add(0, 200, outer, Instructions::apply([Action::output(PortNo::LOCAL)])),
        add(0, 0, [], Instructions::goto(TableId(2))),
        add(1, 100, user(7, PacketType::IPV6), Instructions::apply(translated(set(Oxm::ipv6_src(v6(0x77)))))),
        add(1, 100, user(9, PacketType::IPV4), Instructions::apply(translated(set(Oxm::ipv4_dst(UE1))))),
        add(1, 0, [], Instructions::apply([back()])),
    ];
    rules.extend(forwarding());
    let mut oracle = pipeline();
    install(&mut oracle, rules.clone());
    network.install(rules);
    let inside = udp((v6(0x45).into(), 40_000), (v6(0x80).into(), 53), b"what is the time");
    let frames: Vec<_> = [(7, &inside), (8, &inside), (9, &user_packet())]
        .map(|(teid, inside)| {
            let packet = udp((enb.into(), 2152), (gw1.into(), 2152), &gpdu_5g(teid, inside));
            ethernet::build(GW1_MAC, ENB_MAC, None, ethernet::IPV6, &packet)
        })
        .into();
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let expected: Vec<_> = frames.iter().map(|frame| pass(&oracle, 1, frame)).collect();
    assert_eq!(expected.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [3, 2, 3]);
    let of_port = |port| {
        expected.iter().filter(|(to, _)| *to == port).map(|(_, frame)| frame.clone()).collect::<Vec<_>>()
    };
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &frames);
    let before = packets(&network);
    for _ in 0..20 {
        enb.send(&frames);
        assert_eq!(gw1.receive(1), of_port(2));
        let arrived = gw2.receive(2);
        assert_eq!(arrived, of_port(3));
        arrived.iter().for_each(|frame| check(frame));
    }
    assert_eq!(packets(&network), before + 60);
}

/// An anchor whose TEIDs are an index, and one of its TEIDs that is outside of the range.
#[test]
fn own_anchors_have_their_teids_by_index() {
    if !::xdp::programs::BUILT {
        return;
    }
    let own = json!([{"address": GW1.to_string(), "first_teid": 1, "teids": 16}]);
    let Some(network) = network_with(&json!({"xdp": {"tunnels": 4, "own": own}})) else { return };
    network.install(table_one());
    network.install([divert(7), divert(1000)]);
    assert_eq!(xdp(&network)["capacity"], 20);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frames = [7, 8, 1000].map(|teid| uplink(GW1, &gpdu_5g(teid, &user_packet())));
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &frames);
    let moved = [0, 2].map(|at: usize| readdressed(&frames[at], GW2_MAC, GW2));
    let before = packets(&network);
    for _ in 0..5 {
        enb.send(&frames);
        assert_eq!(gw1.receive(1), frames[1..2]);
        assert_eq!(gw2.receive(2), moved);
    }
    network
        .service()
        .switch()
        .commit(&[Change::FlowMod(FlowMod::delete(TableId(1), divert(7).matching))])
        .unwrap();
    enb.send(&frames);
    assert_eq!(gw1.receive(2), frames[..2]);
    assert_eq!(gw2.receive(1), moved[1..]);
    assert_eq!(packets(&network), before + 18);
}

/// Packets that XDP has treated.
fn packets(network: &Network) -> u64 {
    number(&xdp(network)["packets"])
}

/// Puts a number into a frame, behind all headers: the last eight octets.
fn numbered(frame: &[u8], number: u64) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let at = frame.len() - 8;
    // No checksum covers it.
    frame[40..42].fill(0);
    frame[at..].copy_from_slice(&number.to_be_bytes());
    frame
}

/// A thousand users move by one bundle while their packets pass: none is lost, and of no user does one reach the old anchor that was sent
/// behind one which reached the new one.
#[test]
fn a_thousand_users_move_at_once_and_no_packet_is_lost() {
    const USERS: u32 = 1000;
    // Rounds before the move begins, and at least as many after it is done.
    const AROUND: u64 = 10;
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frames: Vec<_> = (1..=USERS).map(|user| uplink(GW1, &gpdu_5g(user, &user_packet()))).collect();
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &frames);
    let before = packets(&network);
    let counted_before: u64 = network.counts(1).iter().map(|(_, count)| count).sum();
    let (is_begun, is_moved, is_sent) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let (sent, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let under_way = || sent.load(Ordering::Relaxed) - count.load(Ordering::Relaxed);
    // User and number of each packet, in the order in which they arrive.
    let collect = |link: &mut Link| {
        let (mut arrived, mut last) = (Vec::new(), Instant::now());
        while !is_sent.load(Ordering::Relaxed) || (under_way() > 0 && last.elapsed() < PATIENCE) {
            let frames = link.receive(0);
            if frames.is_empty() {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                last = Instant::now();
            }
            count.fetch_add(frames.len(), Ordering::Relaxed);
            arrived.extend(frames.iter().map(|frame| {
                let teid = u32::from_be_bytes(frame[46..50].try_into().unwrap());
                (teid, u64::from_be_bytes(frame[frame.len() - 8..].try_into().unwrap()))
            }));
        }
        arrived
    };
    let (at_old, at_new, (taken, meanwhile), rounds) = std::thread::scope(|scope| {
        let old = scope.spawn(|| collect(&mut gw1));
        let new = scope.spawn(|| collect(&mut gw2));
        let mover = scope.spawn(|| {
            while !is_begun.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(100));
            }
            let changes: Vec<_> = (1..=USERS).map(|user| Change::FlowMod(divert(user))).collect();
            let (began, arrived_before) = (net::time::now_ns(), count.load(Ordering::Relaxed));
            let answer = network.service().switch().commit(&changes);
            let meanwhile = sent.load(Ordering::Relaxed) - arrived_before;
            is_moved.store(true, Ordering::Relaxed);
            answer.unwrap();
            (net::time::now_ns() - began, meanwhile)
        });
        let (mut round, mut after) = (0, 0);
        while after < AROUND {
            is_begun.store(round >= AROUND, Ordering::Relaxed);
            after += u64::from(is_moved.load(Ordering::Relaxed));
            for frames in frames.chunks(32) {
                let frames: Vec<_> = frames.iter().map(|frame| numbered(frame, round)).collect();
                sent.fetch_add(frames.len(), Ordering::Relaxed);
                enb.send(&frames);
                // No more under way than the far ends have room for.
                let began = Instant::now();
                while under_way() >= 128 && began.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            round += 1;
        }
        is_sent.store(true, Ordering::Relaxed);
        (old.join().unwrap(), new.join().unwrap(), mover.join().unwrap(), round)
    });
    eprintln!(
        "1,000 users in XDP moved in {} us; {} packets before, {} after, {meanwhile} meanwhile",
        taken / 1000,
        at_old.len(),
        at_new.len()
    );
    assert!(at_old.len() > 1000 && at_new.len() > 1000, "{} {}", at_old.len(), at_new.len());
    let mut of_users: BTreeMap<u32, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    at_old.iter().for_each(|(teid, number)| of_users.entry(*teid).or_default().0.push(*number));
    at_new.iter().for_each(|(teid, number)| of_users.entry(*teid).or_default().1.push(*number));
    assert_eq!(of_users.len(), USERS as usize);
    for (teid, (old, new)) in of_users {
        let both: Vec<_> = old.iter().chain(&new).copied().collect();
        assert_eq!(both, (0..rounds).collect::<Vec<_>>(), "user {teid}: old {old:?}, new {new:?}");
    }
    let now = xdp(&network);
    assert_eq!(now["pauses"], 0);
    assert_eq!(number(&now["packets"]) - before, u64::from(USERS) * rounds, "all of them went by XDP: {now}");
    // Entries are counted, and then the change holds: a packet in between may count for the old rule or for the new one, but for one of them.
    let counted = network.counts(1);
    let of = |rules: &dyn Fn(u16) -> bool| -> u64 {
        counted.iter().filter(|(priority, _)| rules(*priority)).map(|(_, count)| count).sum()
    };
    let (all, steered) = (of(&|_| true), of(&|priority| priority == 100));
    assert_eq!(all - counted_before, u64::from(USERS) * rounds);
    assert!(
        steered.abs_diff(at_new.len() as u64) <= meanwhile as u64,
        "{steered} {} {meanwhile}",
        at_new.len()
    );
}

/// A rule that may concern everybody: XDP pauses, packets are treated right at once, and XDP goes on with new entries.
#[test]
fn a_change_for_everybody_pauses_xdp() {
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frames: Vec<_> = (0..400).map(|user| uplink(GW1, &gpdu_5g(user, &user_packet()))).collect();
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &frames);
    let moved: Vec<_> = frames.iter().map(|frame| readdressed(frame, GW2_MAC, GW2)).collect();
    assert_eq!(xdp(&network)["pauses"], 0);
    for (turn, expected) in [&moved, &frames, &moved].into_iter().enumerate() {
        let destination = if turn % 2 == 0 { GW2 } else { GW1 };
        let everybody = [set(Oxm::tun_ipv4_dst(destination)), Action::output(PortNo::IN_PORT)];
        network.install([add(1, 0, [], Instructions::apply(everybody))]);
        // At once, by whatever path.
        let (right, wrong) = if turn % 2 == 0 { (&mut gw2, &mut gw1) } else { (&mut gw1, &mut gw2) };
        for (frames, expected) in frames.chunks(40).zip(expected.chunks(40)) {
            enb.send(frames);
            let mut arrived = right.receive(frames.len());
            // Those by XDP may overtake those by the host path.
            let mut expected = expected.to_vec();
            arrived.sort();
            expected.sort();
            assert_eq!(arrived, expected, "turn {turn}");
        }
        assert!(wrong.receive(0).is_empty());
        let now = wait_for(&network, "goes on", |xdp| xdp["paused"] == false);
        assert_eq!((number(&now["pauses"]), number(&now["tunnels"])), (turn as u64 + 1, 400), "{now}");
        let before = packets(&network);
        for (frames, expected) in frames.chunks(40).zip(expected.chunks(40)) {
            enb.send(frames);
            assert_eq!(right.receive(frames.len()), expected);
        }
        assert_eq!(packets(&network), before + 400, "all of them by XDP");
    }
    // Rules that cannot concern them: of link-layer addresses that none has, and of TEIDs that none has.
    let stranger = |last| MacAddr([2, 0, 0, 0, 9, last]);
    for last in 0..10 {
        let pair = [Oxm::eth_src(stranger(last)), Oxm::eth_dst(MacAddr(GW1_MAC))];
        network
            .install([add(2, 200, pair, Instructions::apply([output(2)])), divert(5000 + u32::from(last))]);
    }
    assert_eq!(xdp(&network)["pauses"], 3);
    // A packet of a known tunnel from a neighbour that is new is treated by the rule for it, though XDP has the tunnel.
    let own = [Oxm::eth_src(stranger(1)), Oxm::in_port(PortNo(1))];
    network.install([add(0, 900, own, Instructions::apply([output(2)]))]);
    assert_eq!(xdp(&network)["pauses"], 3);
    let mut strange = frames[0].clone();
    strange[6..12].copy_from_slice(&stranger(1).0);
    for _ in 0..5 {
        enb.send(std::slice::from_ref(&strange));
        assert_eq!(gw1.receive(1), std::slice::from_ref(&strange));
    }
    // One of addresses that they have.
    let pair = [Oxm::eth_src(MacAddr(ENB_MAC)), Oxm::eth_dst(MacAddr(GW2_MAC))];
    network.install([add(2, 200, pair, Instructions::apply([output(1)]))]);
    assert_eq!(xdp(&network)["pauses"], 4);
}

/// An entry of one base station that would be one of all, leaves first: packets of others are in the host path.
#[test]
fn an_entry_that_would_take_more_packets_is_learned_anew() {
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    let switch = network.service().switch();
    // No rule asks for the base station, but one for the user.
    let of_enb = FlowMod::delete(TableId(0), matching(tunnel(ENB, GW1)));
    switch.commit(&[Change::FlowMod(of_enb)]).unwrap();
    let to_gw1 = [Oxm::eth_type(0x0800), Oxm::ip_proto(17), Oxm::udp_dst(2152), Oxm::ipv4_dst(GW1)];
    network.install([add(0, 200, to_gw1, Instructions::apply([Action::output(PortNo::LOCAL)]))]);
    let all = divert(7);
    let one = FlowMod {
        matching: matching([Oxm::tun_ipv4_dst(GW1), Oxm::tun_ipv4_src(ENB), Oxm::tunnel_id(7)]),
        ..all.clone()
    };
    network.install([one.clone()]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], std::slice::from_ref(&frame));
    let swap = |old: &FlowMod, new: &FlowMod| {
        let old = FlowMod::delete(TableId(1), old.matching.clone());
        switch.commit(&[Change::FlowMod(old), Change::FlowMod(new.clone())]).unwrap();
    };
    swap(&one, &all);
    assert_eq!((&xdp(&network)["left"], &xdp(&network)["pauses"]), (&json!(1), &json!(0)));
    enb.send(std::slice::from_ref(&frame));
    assert_eq!(gw2.receive(1), [readdressed(&frame, GW2_MAC, GW2)]);
}

/// A port that goes down concerns the tunnels that leave by it: others stay in XDP, and nothing pauses.
#[test]
fn a_ports_state_concerns_the_tunnels_that_leave_by_it() {
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    network.install([divert(7)]);
    let switch = network.service().switch();
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frames = [7, 8].map(|teid| uplink(GW1, &gpdu_5g(teid, &user_packet())));
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &frames);
    let before = packets(&network);
    let diverted = readdressed(&frames[0], GW2_MAC, GW2);
    // The diverted user's port.
    switch.set_live(3, false);
    enb.send(&frames);
    assert_eq!(gw1.receive(1), &frames[1..]);
    assert_eq!(gw2.waiting(), Vec::<Vec<u8>>::new(), "the port is down");
    assert_eq!(packets(&network), before + 2, "one is dropped there, one is sent");
    switch.set_live(3, true);
    enb.send(&frames);
    assert_eq!((gw1.receive(1), gw2.receive(1)), (vec![frames[1].clone()], vec![diverted]));
    let now = xdp(&network);
    assert_eq!((&now["pauses"], &now["tunnels"]), (&json!(0), &json!(2)), "{now}");
}

/// A change that names more tunnels than are translated while packets wait: XDP pauses, and has them all again.
#[test]
fn many_tunnels_change_behind_a_pause() {
    const USERS: u32 = 5000;
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    network.install((1..=USERS).map(|teid| FlowMod { cookie: 9, ..divert(teid) }));
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frames: Vec<_> = (1..=USERS).map(|teid| uplink(GW1, &gpdu_5g(teid, &user_packet()))).collect();
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &frames);
    let by_cookie =
        FlowMod { cookie: 9, cookie_mask: u64::MAX, ..FlowMod::delete(TableId::ALL, Match::default()) };
    network.service().switch().commit(&[Change::FlowMod(by_cookie)]).unwrap();
    enb.send(&frames[..1]);
    assert_eq!(gw1.receive(1), &frames[..1]);
    let now = wait_for(&network, "goes on", |xdp| xdp["paused"] == false);
    assert_eq!((&now["pauses"], &now["tunnels"], &now["left"]), (&json!(1), &json!(USERS), &json!(0)));
    let before = packets(&network);
    for frames in frames.chunks(40) {
        enb.send(frames);
        assert_eq!(gw1.receive(frames.len()), frames);
    }
    assert_eq!(packets(&network), before + u64::from(USERS), "all of them by XDP");
}

/// More than half of the room for hops is in use, and all change: rows that are given back are used again during the pause.
#[test]
fn a_pause_waits_for_room() {
    const USERS: u32 = 9000;
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    // All base stations, each of which is a hop of its own.
    let any = Oxm::new(Field::Ipv4Src, 10 << 24, 0xff << 24).unwrap();
    let to_gw1 = [Oxm::eth_type(0x0800), Oxm::ip_proto(17), Oxm::udp_dst(2152), any, Oxm::ipv4_dst(GW1)];
    network.install([add(0, 210, to_gw1, Instructions::apply([Action::output(PortNo::LOCAL)]))]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frame = |user: u32| {
        let from = Ipv4Addr::from_bits((10 << 24 | 9 << 16) + user);
        let packet = udp((from.into(), 2152), (GW1.into(), 2152), &gpdu_5g(user, &user_packet()));
        ethernet::build(GW1_MAC, ENB_MAC, None, ethernet::IPV4, &packet)
    };
    let frames: Vec<_> = (1..=USERS).map(frame).collect();
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &frames);
    let everybody = [set(Oxm::tun_ipv4_dst(GW2)), Action::output(PortNo::IN_PORT)];
    network.install([add(1, 0, [], Instructions::apply(everybody))]);
    let now = wait_for(&network, "goes on", |xdp| xdp["paused"] == false);
    assert_eq!((&now["tunnels"], &now["left"]), (&json!(USERS), &json!(0)), "{now}");
}

/// Rules that are deleted, by name or by time: the packets take those below from then on, and were counted.
#[test]
fn rules_that_go_take_their_entries_along() {
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    network.install([divert(7), FlowMod { idle_timeout_s: 2, ..divert(8) }, divert(9)]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frames = [7, 8, 9].map(|teid| uplink(GW1, &gpdu_5g(teid, &user_packet())));
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &frames);
    let arrives = |enb: &mut Link, right: &mut Link, frame: &Vec<u8>, expected: Vec<u8>| {
        enb.send(std::slice::from_ref(frame));
        assert_eq!(right.receive(1), [expected]);
    };
    let moved = |frame: &[u8]| readdressed(frame, GW2_MAC, GW2);
    let before = packets(&network);
    // Longer than the time-out, during which packets come by XDP only.
    for _ in 0..35 {
        for frame in &frames {
            arrives(&mut enb, &mut gw2, frame, moved(frame));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(packets(&network), before + 105);
    assert_eq!(network.counts(1).len(), 4, "the rule with a time-out is in use");
    // One rule by name, and one of those left by a match that says nothing of the tunnel.
    let delete = FlowMod::delete(TableId(1), divert(7).matching);
    network.service().switch().commit(&[Change::FlowMod(delete)]).unwrap();
    arrives(&mut enb, &mut gw1, &frames[0], frames[0].clone());
    let to_gw2 =
        FlowMod { cookie: 9, cookie_mask: u64::MAX, ..FlowMod::delete(TableId::ALL, Match::default()) };
    network.install([FlowMod { cookie: 9, ..divert(9) }]);
    network.service().switch().commit(&[Change::FlowMod(to_gw2)]).unwrap();
    arrives(&mut enb, &mut gw1, &frames[2], frames[2].clone());
    let status = xdp(&network);
    assert_eq!((&status["pauses"], number(&status["packets"])), (&json!(0), before + 107), "{status}");
    // Without packets, the time-out comes, and the manager of time-outs is the agent.
    for _ in 0..100 {
        if network.counts(1).len() == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(network.counts(1).len(), 1);
    arrives(&mut enb, &mut gw1, &frames[1], frames[1].clone());
}

/// Path messages and what cannot be read pass by the host path, with the TEID of a known tunnel or without.
#[test]
fn what_is_no_user_packet_takes_the_host_path() {
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    network.install([divert(7)]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], std::slice::from_ref(&frame));
    let mut oracle = pipeline();
    install(&mut oracle, table_one());
    install(&mut oracle, [divert(7)]);
    let mut version_2 = gpdu(7, &user_packet());
    version_2[0] = 0x50;
    let mut too_long = gpdu(7, &user_packet());
    too_long[3] += 1;
    let mut too_short = gpdu(7, &user_packet());
    too_short[3] -= 1;
    let mut fragment = uplink(GW1, &gpdu(7, &user_packet()));
    fragment[20] |= 0x20;
    let messages = [
        Signalling::EchoRequest { sequence: 1 }.build(),
        Signalling::ErrorIndication { teid: 7, peer: GW1.into(), udp_port: None }.build(),
        Signalling::EndMarker { teid: 7, pdu_session: None }.build(),
        version_2,
        too_long,
        too_short,
        gpdu(7, &user_packet())[..6].to_vec(),
        b"no GTP-U".to_vec(),
    ];
    let mut others: Vec<_> = messages.iter().map(|message| uplink(GW1, message)).collect();
    others.push(fragment);
    let before = packets(&network);
    for other in &others {
        let (port, expected) = pass(&oracle, 1, other);
        enb.send(std::slice::from_ref(other));
        let right = if port == 2 { &mut gw1 } else { &mut gw2 };
        assert_eq!(right.receive(1), [expected]);
    }
    assert_eq!(packets(&network), before);
    enb.send(std::slice::from_ref(&frame));
    assert_eq!(gw2.receive(1), [readdressed(&frame, GW2_MAC, GW2)]);
    assert_eq!(packets(&network), before + 1);
}

/// Floods of TEIDs that nobody has: what is known stays in XDP, nothing grows, and there is room again afterwards.
#[test]
fn floods_neither_grow_the_tables_nor_drive_users_out() {
    let Some(network) = with_room_for(64) else { return };
    network.install(table_one());
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let known: Vec<_> = (0..10).map(|user| uplink(GW1, &gpdu_5g(user, &user_packet()))).collect();
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &known);
    let of_flood =
        |number: u32| uplink(GW1, &gpdu(0x1000_0000 | number.wrapping_mul(0x9E37_79B1) >> 4, &user_packet()));
    // One packet of each TEID is no user.
    for first in (0..20_000).step_by(32) {
        enb.send(&(first..first + 32).map(of_flood).collect::<Vec<_>>());
        gw1.drain();
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(xdp(&network)["tunnels"], 10);
    // Two are; all users of the flood together have the room that is left, and known ones stay.
    let mut sent = 0;
    for round in 0..8 {
        for first in (0..1000).step_by(32) {
            let frames: Vec<_> =
                (first..first + 32).map(|number| of_flood(100_000 + 1000 * round + number)).collect();
            enb.send(&frames);
            std::thread::sleep(Duration::from_micros(300));
            enb.send(&frames);
            gw1.drain();
        }
        std::thread::sleep(Duration::from_secs(1));
        gw1.drain();
        let before = packets(&network);
        enb.send(&known);
        assert_eq!(gw1.receive(known.len()).len(), known.len());
        assert!(packets(&network) >= before + 10, "known users stay");
        sent += known.len();
    }
    let now = xdp(&network);
    assert_eq!((number(&now["tunnels"]), number(&now["anchors"])), (64, 1), "after {sent}: {now}");
    assert!(number(&now["refused"]["no_room"]) > 1000, "{now}");
    // Room for a user who comes later.
    let new = uplink(GW1, &gpdu_5g(99, &user_packet()));
    for _ in 0..200 {
        enb.send(std::slice::from_ref(&new));
        enb.send(&known);
        std::thread::sleep(Duration::from_millis(50));
        gw1.drain();
        let before = packets(&network);
        enb.send(std::slice::from_ref(&new));
        gw1.receive(1);
        if packets(&network) == before + 1 {
            return;
        }
    }
    panic!("no room: {}", xdp(&network));
}

/// The same TEID of an anchor by another base station, as after a handover: each packet is treated by the rules for its own way, and
/// the way that is used is the one that XDP has.
#[test]
fn the_way_that_is_used_is_in_xdp() {
    const ENB2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const ENB2_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    network.install([divert(7)]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let first = uplink(GW1, &gpdu_5g(7, &user_packet()));
    let packet = udp((ENB2.into(), 2152), (GW1.into(), 2152), &gpdu_5g(7, &user_packet()));
    let second = ethernet::build(GW1_MAC, ENB2_MAC, None, ethernet::IPV4, &packet);
    let moved = readdressed(&first, GW2_MAC, GW2);
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], std::slice::from_ref(&first));
    let before = packets(&network);
    // Both at once: the one that was there stays, and the tables have no rule for the other base station.
    for _ in 0..30 {
        enb.send(&[first.clone(), second.clone()]);
        assert_eq!(gw1.receive(1), std::slice::from_ref(&second));
        assert_eq!(gw2.receive(1), std::slice::from_ref(&moved));
        std::thread::sleep(Duration::from_millis(50));
    }
    let now = xdp(&network);
    assert_eq!(number(&now["packets"]), before + 30);
    assert!(number(&now["refused"]["other_way"]) > 0, "{now}");
    // The second one alone: after a while it takes the place.
    let is_in_xdp = |enb: &mut Link, gw1: &mut Link| {
        (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            let before = packets(&network);
            enb.send(std::slice::from_ref(&second));
            assert_eq!(gw1.receive(1), std::slice::from_ref(&second));
            packets(&network) == before + 1
        })
    };
    assert!(is_in_xdp(&mut enb, &mut gw1), "{}", xdp(&network));
    enb.send(std::slice::from_ref(&first));
    assert_eq!(gw2.receive(1), [moved]);
}

/// A user with an application of its own stays with the host path, and pushes nobody off XDP.
#[test]
fn an_application_of_one_user_leaves_others_in_xdp() {
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    let user = [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(7), Oxm::packet_type(PacketType::IPV4)];
    let dns = user.into_iter().chain([Oxm::ip_proto(17), Oxm::udp_dst(53)]);
    let away = [set(Oxm::tun_ipv4_dst(GW2)), Action::output(PortNo::IN_PORT)];
    network.install([add(1, 200, dns, Instructions::apply(away))]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let others: Vec<_> = (8..28).map(|user| uplink(GW1, &gpdu_5g(user, &user_packet()))).collect();
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &others);
    let before = packets(&network);
    let dns = uplink(GW1, &gpdu_5g(7, &user_packet()));
    let web = uplink(GW1, &gpdu_5g(7, &udp((UE1.into(), 40_000), (SERVER.into(), 80), b"data")));
    for _ in 0..10 {
        enb.send(&[dns.clone(), web.clone()]);
        assert_eq!(gw2.receive(1), [readdressed(&dns, GW2_MAC, GW2)]);
        assert_eq!(gw1.receive(1), std::slice::from_ref(&web));
    }
    assert_eq!(packets(&network), before);
    enb.send(&others);
    assert_eq!(gw1.receive(20), others);
    let now = xdp(&network);
    assert_eq!((number(&now["packets"]), &now["pauses"]), (before + 20, &json!(0)));
}

/// Nothing is sent into a port that is down, and XDP sends there again when it is up.
#[test]
fn a_port_that_is_down_gets_nothing() {
    let Some(network) = with_xdp() else { return };
    network.install(table_one());
    network.install([divert(7)]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], std::slice::from_ref(&frame));
    let set_link = |up: bool| {
        network.runtime.block_on(async {
            let links = Links::in_ns(&network.peers[2]).unwrap();
            if up { links.up("eth0").await.unwrap() } else { links.down("eth0").await.unwrap() }
        });
        for _ in 0..500 {
            if network.service().status()["ports"][2]["live"] == up {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        wait_for(&network, "goes on", |xdp| xdp["paused"] == false);
    };
    set_link(false);
    let sent = |network: &Network| {
        let status = network.service().status();
        (number(&status["ports"][2]["tx_packets"]), status["drops"]["flow_entry_drop"].as_u64().unwrap_or(0))
    };
    let (before, dropped) = (sent(&network), 5);
    for _ in 0..dropped {
        enb.send(std::slice::from_ref(&frame));
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sent(&network), (before.0, before.1 + dropped), "{}", network.service().status());
    set_link(true);
    let before = packets(&network);
    let mut arrived = Vec::new();
    for _ in 0..50 {
        enb.send(std::slice::from_ref(&frame));
        std::thread::sleep(Duration::from_millis(20));
        arrived.extend(gw2.receive(0));
    }
    assert!(!arrived.is_empty() && arrived.iter().all(|got| *got == readdressed(&frame, GW2_MAC, GW2)));
    assert!(packets(&network) > before);
}

/// Kernels at the far ends take what XDP sends: checksums are right, and veth devices receive it.
#[test]
fn kernels_talk_through_xdp() {
    let Some(network) = with_xdp() else { return };
    let macs: Vec<[u8; 6]> = network
        .peers
        .iter()
        .map(|peer| peer.enter(|| pktio::af_xdp::device::Device::find("eth0").unwrap().mac).unwrap())
        .collect();
    let mut rules = table_one();
    rules.retain(|rule| rule.table_id != TableId(2));
    rules.push(add(2, 50, [Oxm::eth_type(0x0806)], Instructions::apply([Action::output(PortNo::FLOOD)])));
    for (to, (port, mac)) in [ENB, GW1, GW2].into_iter().zip(PORTS.into_iter().zip(&macs)) {
        let actions = [set(Oxm::eth_dst(MacAddr(*mac))), output(port)];
        rules.push(add(2, 100, [Oxm::eth_type(0x0800), Oxm::ipv4_dst(to)], Instructions::apply(actions)));
    }
    network.install(rules);
    network.install([divert(7), translate(9)]);
    let socket = |peer: usize, address: Ipv4Addr| {
        let socket = network.peers[peer].enter(|| UdpSocket::bind((address, gtpu::PORT)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let (enb, gw1, gw2) = (socket(0, ENB), socket(1, GW1), socket(2, GW2));
    let mut buffer = [0; 2048];
    for _ in 0..100 {
        for (teid, right) in [(7, &gw2), (8, &gw1), (9, &gw2)] {
            let message = gpdu_5g(teid, &user_packet());
            enb.send_to(&message, (GW1, gtpu::PORT)).unwrap();
            let (length, from) = right.recv_from(&mut buffer).unwrap();
            assert_eq!(from.ip(), ENB);
            if teid == 9 {
                check_ip(gtpu::Packet::new(&buffer[..length]).unwrap().payload());
            } else {
                assert_eq!(buffer[..length], message);
            }
            // And back, which nobody diverts.
            right.send_to(&message, from).unwrap();
            assert_eq!(enb.recv_from(&mut buffer).unwrap().0, message.len());
        }
    }
    let now = xdp(&network);
    assert!(number(&now["packets"]) > 400 && number(&now["anchors"]) == 2, "{now}");
}

/// Without programs the switch says so instead of going on without XDP.
#[test]
fn a_build_without_programs_refuses_xdp() {
    if ::xdp::programs::BUILT {
        return;
    }
    let Some(network) = network() else { return };
    let handle = network.runtime.handle();
    let config = switch::Config { local: None, ..crate::namespaces::config(&json!({"xdp": {}})) };
    let other = net::netns::NetNs::new().unwrap();
    network.runtime.block_on(async {
        let links = Links::in_ns(&other).unwrap();
        for name in ["port1", "port2", "port3"] {
            links.add_veth(name, &format!("{name}far"), &network.ours).await.unwrap();
        }
    });
    let error = other.enter(|| handle.block_on(switch::Service::start(&config)).err().unwrap()).unwrap();
    assert!(error.to_string().starts_with("xdp: this build has no XDP programs: install clang"), "{error}");
}

/// Runs the switch for [`a_killed_switch_leaves_nothing`], which starts it in its namespace.
#[test]
fn the_switch_that_is_killed() {
    if std::env::var_os("SWITCH_TO_KILL").is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let _service = runtime
        .block_on(switch::Service::start(&crate::namespaces::config(&json!({"xdp": {}, "local": null}))))
        .unwrap();
    println!("ready");
    std::thread::sleep(Duration::from_secs(60));
}

/// The switch runs with few capabilities. When it is killed, its programs go with it, and the interfaces are the kernel's again.
#[test]
fn a_killed_switch_leaves_nothing() {
    let Some(mut network) = with_xdp() else { return };
    {
        let _entered = network.runtime.enter();
        network.service = None;
    }
    let programs = || {
        let show = || std::process::Command::new("ip").args(["-details", "link", "show"]).output().unwrap();
        let shown = network.ours.enter(show).unwrap();
        String::from_utf8_lossy(&shown.stdout).matches("prog/xdp").count()
    };
    // The kernel takes them off behind the process, and later if a child of another test has just been forked: until it runs its
    // program, it has our descriptors.
    let gone = || {
        (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            programs() == 0
        })
    };
    assert!(gone());
    let start = || {
        // With the capabilities that `godwit mec switch run` keeps.
        std::process::Command::new("setpriv")
            .arg("--bounding-set=-all,+net_admin,+net_raw,+ipc_lock,+bpf,+perfmon")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "xdp::the_switch_that_is_killed", "--nocapture"])
            .env("SWITCH_TO_KILL", "1")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut child = network.ours.enter(start).unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")), "it starts");
    assert_eq!(programs(), 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(gone());
}

/// A tunnel whose packets are to wait leaves XDP at once; when they no longer are, it comes back. A bundle's packet leaves behind what XDP
/// had.
#[test]
fn a_tunnel_that_waits_is_not_in_xdp() {
    if !::xdp::programs::BUILT {
        return;
    }
    let Some(network) = network_with(&json!({"xdp": {"tunnels": 64}, "hold": {"timeout_ms": 10_000}})) else {
        return;
    };
    network.install(table_one());
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frame = |teid, number: u16| {
        let packet = udp((UE1.into(), 40_000), (SERVER.into(), 53), &number.to_be_bytes());
        uplink(GW1, &gpdu_5g(teid, &packet))
    };
    teach(&network, &mut enb, &mut [&mut gw1, &mut gw2], &[frame(7, 0), frame(8, 0)]);
    let fields = [Oxm::metadata(0), Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(7)];
    let wait = add(1, 280, fields, Instructions::apply([Action::SetQueue(5), output(101)]));
    network.service().switch().commit(&[Change::FlowMod(wait.clone())]).unwrap();
    let before = packets(&network);
    for number in 1..=50 {
        enb.send(&[frame(7, number), frame(8, number)]);
        assert_eq!(gw1.receive(1), [frame(8, number)], "only the other tunnel passes");
    }
    assert_eq!(
        (packets(&network), number(&network.service().status()["hold"]["waiting"])),
        (before + 50, 50)
    );
    assert_eq!(number(&xdp(&network)["pauses"]), 0, "it concerns one tunnel");
    // A token opens the queue, and the rule goes.
    let open = PacketOut {
        buffer_id: BufferId::NO_BUFFER,
        in_port: PortNo::CONTROLLER,
        actions: vec![Action::SetQueue(5), output(102)],
        data: vec![0; 64],
    };
    network.service().switch().commit(&[Change::PacketOut(open)]).unwrap();
    assert_eq!(gw1.receive(50), (1..=50).map(|number| frame(7, number)).collect::<Vec<_>>());
    let gone = FlowMod { command: FlowModCommand::DeleteStrict, ..wait };
    network.service().switch().commit(&[Change::FlowMod(gone)]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let before = packets(&network);
    for number in 0..20 {
        enb.send(&[frame(7, number)]);
        assert_eq!(gw1.receive(1), [frame(7, number)]);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(packets(&network) > before, "it is in XDP again: {}", xdp(&network));
    // What XDP has is in front of a bundle's packet.
    for number in 0..20 {
        let numbers: Vec<_> = (0..32).map(|at| frame(8, 100 * number + at)).collect();
        enb.send(&numbers);
        let (in_port, actions) = (PortNo::LOCAL, vec![Action::output(PortNo::TABLE)]);
        let behind = PacketOut { buffer_id: BufferId::NO_BUFFER, in_port, actions, data: frame(8, 9999) };
        network.service().switch().commit(&[Change::PacketOut(behind)]).unwrap();
        assert_eq!(gw1.receive(33), [numbers, vec![frame(8, 9999)]].concat());
    }
}
