//! Both data paths of the switch at once: known tunnels in XDP, everything else on the host path, on veth links with real frames.
#![cfg(feature = "clang")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, reason = "the tests wait for the kernel")]

mod common;
mod namespaces;

use std::time::Duration;

use common::*;
use namespaces::{Link, Network, network, network_with};
use openflow::*;
use serde_json::{Value, json};

fn with_xdp() -> Option<Network> {
    network_with(&json!({"xdp": {}}))
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
            to.iter_mut().for_each(|link| drop(link.receive(0)));
        }
        std::thread::sleep(Duration::from_millis(20));
        if number(&xdp(network)["tunnels"]) >= before + frames.len() as u64 {
            std::thread::sleep(Duration::from_millis(150));
            to.iter_mut().for_each(|link| drop(link.receive(0)));
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
    all.extend(rows("ports", &["number"], "rx_packets", "rx_bytes"));
    all.extend(rows("ports", &["number"], "tx_packets", "tx_bytes"));
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

/// Silences what kernels say by themselves, which the tables would count.
fn quiet_rules() -> Vec<FlowMod> {
    let mut rules = table_one();
    rules.push(add(0, 1000, [Oxm::eth_type(0x0806)], Instructions::default()));
    rules.push(add(0, 100, [Oxm::eth_type(0x86dd)], Instructions::default()));
    rules
}

/// A translation of the address inside, as selective mode has it.
fn translate(teid: u32) -> FlowMod {
    let user = [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(teid.into()), Oxm::packet_type(PacketType::IPV4)];
    let actions = [
        set(Oxm::ipv4_src(std::net::Ipv4Addr::new(10, 46, 0, 9))),
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
        network.install(quiet_rules());
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
    let Some(host) = network() else { return };
    let (by_host, counts_of_host) = run(&host, false);
    drop(host);
    let (by_xdp, counts_of_xdp) = run(&with_xdp().unwrap(), true);
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
