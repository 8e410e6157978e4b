//! The whole switch in a network of namespaces: a base station and two anchors on veth links, frames by AF_XDP.
#![allow(clippy::disallowed_methods, reason = "the tests wait for the kernel")]

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use crate::namespaces::{Link, network, network_with};
use net::link::Links;
use openflow::{Action, Change, FlowMod, Instructions, MacAddr, Oxm, PortNo, TableId};
use packet::ethernet;
use pktio::af_xdp::device::Device;

#[test]
fn steered_frames_arrive_and_others_are_byte_identical() {
    let Some(network) = network() else { return };
    network.install(table_one());
    network.install([divert(7)]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let users = |teid: u32| -> Vec<Vec<u8>> {
        let packet = |number: u16| {
            udp((UE1.into(), 40_000), (SERVER.into(), number), &number.to_be_bytes().repeat(20))
        };
        (0..200)
            .map(|number| {
                let message = match number % 3 {
                    0 => gpdu(teid, &packet(number)),
                    1 => gpdu_5g(teid, &packet(number)),
                    _ => gpdu_full(teid, &packet(number)),
                };
                uplink(GW1, &message)
            })
            .collect()
    };
    let (diverted, others) = (users(7), users(8));
    for (diverted, others) in diverted.chunks(20).zip(others.chunks(20)) {
        let mixed: Vec<_> = diverted.iter().zip(others).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
        enb.send(&mixed);
        assert_eq!(gw1.receive(others.len()), others);
        let expected: Vec<_> = diverted.iter().map(|frame| readdressed(frame, GW2_MAC, GW2)).collect();
        let received = gw2.receive(diverted.len());
        assert_eq!(received, expected);
        received.iter().for_each(|frame| check(frame));
    }
    // Each packet counted once by each entry on its way (SW-1), though nearly all were treated by the cache.
    let tunnels = network.counts(1);
    assert_eq!(tunnels, [(0, 200), (100, 200)]);
    // What kernels say by themselves, here and at the far ends, takes the others: those of LOCAL and of the last resort.
    let of_tunnels: Vec<_> =
        network.counts(0).into_iter().filter(|(priority, _)| ![0, 250].contains(priority)).collect();
    assert_eq!(of_tunnels, [(200, 400), (260, 200), (300, 400)]);
    let status = network.service().status();
    assert!(status["caches"]["hits"].as_u64() > Some(350), "{}", status["caches"]);
    assert!(status["ports"][0]["rx_packets"].as_u64() >= Some(400));
    assert!(status["ports"][1]["tx_packets"].as_u64() >= Some(200));
    // Back, at once for all packets from here on.
    let back = FlowMod::delete(TableId(1), divert(7).matching);
    network.install([back]);
    enb.send(&diverted[..20]);
    assert_eq!(gw1.receive(20), diverted[..20]);
}

/// Kernels at both ends take the packets: checksums of what was rewritten are right.
#[test]
fn kernels_talk_through_the_switch_and_a_tunnel_moves() {
    let Some(network) = network() else { return };
    let everywhere =
        |fields: Vec<Oxm>| add(2, 50, fields, Instructions::apply([Action::output(PortNo::FLOOD)]));
    let mut rules = table_one();
    // The kernels choose their addresses: forwarding by IPv4 destination.
    rules.retain(|rule| rule.table_id != TableId(2));
    rules.push(everywhere(vec![Oxm::eth_type(0x0806)]));
    let macs: Vec<[u8; 6]> =
        network.peers.iter().map(|peer| peer.enter(|| Device::find("eth0").unwrap().mac).unwrap()).collect();
    for (to, (port, mac)) in [ENB, GW1, GW2].into_iter().zip(PORTS.into_iter().zip(&macs)) {
        let fields = [Oxm::eth_type(0x0800), Oxm::ipv4_dst(to)];
        let actions = [set(Oxm::eth_dst(MacAddr(*mac))), output(port)];
        rules.push(add(2, 100, fields, Instructions::apply(actions)));
    }
    network.install(rules);
    let socket = |peer: usize, address: IpAddr| {
        let socket = network.peers[peer].enter(|| UdpSocket::bind((address, 2152)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let (enb, gw1, gw2) = (socket(0, ENB.into()), socket(1, GW1.into()), socket(2, GW2.into()));
    let mut buffer = [0; 2048];
    let message = gpdu_5g(7, &user_packet());
    for _ in 0..50 {
        enb.send_to(&message, (GW1, 2152)).unwrap();
        let (length, from) = gw1.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip()), (&message[..], ENB.into()));
        gw1.send_to(&message, from).unwrap();
        let (length, from) = enb.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip()), (&message[..], GW1.into()));
    }
    network.install([divert(7)]);
    for _ in 0..50 {
        enb.send_to(&message, (GW1, 2152)).unwrap();
        let (length, from) = gw2.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip()), (&message[..], ENB.into()));
    }
    gw1.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(gw1.recv_from(&mut buffer).is_err(), "nothing more reaches the first anchor");
}

/// A thousand users move by one bundle while their packets pass: each packet is treated by the entries before it or by those
/// after it, and none by old ones after another by new ones.
#[test]
fn a_thousand_users_move_at_once() {
    let Some(network) = network() else { return };
    network.install(table_one());
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frames: Vec<_> = (0..1000).map(|user| uplink(GW1, &gpdu_5g(user, &user_packet()))).collect();
    for frames in frames.chunks(50) {
        enb.send(frames);
        assert_eq!(gw1.receive(frames.len()), frames);
    }
    let switch = network.service().switch();
    let changes: Vec<_> = (0..1000).map(|user| Change::FlowMod(divert(user))).collect();
    let began = net::time::now_ns();
    switch.commit(&changes).unwrap();
    switch.settle();
    eprintln!("1,000 users moved in {} us", (net::time::now_ns() - began) / 1000);
    for frames in frames.chunks(50) {
        enb.send(frames);
        let expected: Vec<_> = frames.iter().map(|frame| readdressed(frame, GW2_MAC, GW2)).collect();
        assert_eq!(gw2.receive(frames.len()), expected);
    }
    assert_eq!(gw1.receive(1).len(), 0);
}

/// Three workers with a queue of each link: every one treats packets of every user, all counts come together, and a change holds
/// for all from the moment at which it is settled, and for each flow of packets from one of them on.
#[test]
fn several_workers_have_the_same_entries() {
    const WORKERS: usize = 3;
    const USERS: u32 = 40;
    let Some(network) = network_with(&serde_json::json!({"workers": {"count": WORKERS}})) else { return };
    network.install(table_one());
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    // Which user, by which queue, and the how manieth.
    let frame = |user: u32, queue: u8, number: u16| {
        let [high, low] = number.to_be_bytes();
        let packet = udp((UE1.into(), 40_000), (SERVER.into(), 53), &[queue, high, low]);
        uplink(GW1, &gpdu_5g(user, &packet))
    };
    let parts = |frame: &[u8]| {
        let user = u32::from_be_bytes(frame[46..50].try_into().unwrap());
        let [.., queue, high, low] = *frame else { panic!() };
        ((user, queue), u16::from_be_bytes([high, low]))
    };
    let send = |enb: &mut Link, number: u16| {
        for queue in 0..WORKERS {
            let frames: Vec<_> = (0..USERS).map(|user| frame(user, queue as u8, number)).collect();
            enb.send_by(queue, &frames);
        }
    };
    let each = USERS as usize * WORKERS;
    for number in 0..10 {
        send(&mut enb, number);
        assert_eq!(gw1.receive(each).len(), each);
    }
    assert_eq!(network.counts(1), [(0, 10 * each as u64)]);
    assert_eq!(network.service().status()["ports"][0]["rx_dropped"], 0);
    let moves: Vec<_> = (0..USERS).map(|user| Change::FlowMod(divert(user))).collect();
    let switch = Arc::clone(network.service().switch());
    let mut moved = None;
    let (mut old, mut new) = (Vec::new(), Vec::new());
    let flows = |frames: &[Vec<u8>]| {
        frames.iter().map(|frame| parts(frame).0).collect::<std::collections::BTreeSet<_>>().len()
    };
    for number in 10..60 {
        if number == 30 {
            // A worker that has not had its turn yet would send nothing by the old way.
            for _ in 0..2000 {
                if flows(&old) == each {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
                old.extend(gw1.waiting());
            }
        }
        send(&mut enb, number);
        if number == 30 {
            // While packets are on their way.
            let (switch, moves) = (Arc::clone(&switch), moves.clone());
            moved = Some(std::thread::spawn(move || {
                switch.commit(&moves).unwrap();
                switch.settle();
            }));
        }
        if number == 45 {
            moved.take().unwrap().join().unwrap();
        }
        old.extend(gw1.waiting());
        new.extend(gw2.waiting());
    }
    for _ in 0..2000 {
        if old.len() + new.len() >= 50 * each {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        old.extend(gw1.waiting());
        new.extend(gw2.waiting());
    }
    assert_eq!(old.len() + new.len(), 50 * each, "none is lost");
    let mut last_old = std::collections::BTreeMap::new();
    for (flow, number) in old.iter().map(|frame| parts(frame)) {
        assert!(last_old.insert(flow, number).is_none_or(|before| before < number), "{flow:?} out of order");
        assert!(number <= 45, "settled before {number}");
    }
    for frame in &new {
        let (flow, number) = parts(frame);
        assert!(
            last_old.get(&flow).is_none_or(|last| *last < number),
            "{flow:?}: the old way after the new one"
        );
        check(frame);
    }
    assert_eq!(last_old.len(), each, "each worker has sent each user both ways");
    let counts = network.counts(1);
    let moved: u64 = counts.iter().filter(|(priority, _)| *priority == 100).map(|(_, count)| count).sum();
    assert_eq!((counts.len(), moved), (USERS as usize + 1, new.len() as u64));
    let translations = network.service().status()["caches"]["translations"].as_u64().unwrap();
    assert!(
        translations >= each as u64,
        "{translations}: users have entries, and each worker its own translations"
    );
}

/// The host has its port, and a link that goes down is noticed.
#[test]
fn local_and_links() {
    let Some(network) = network() else { return };
    let bucket =
        |port: u32| openflow::Bucket { watch_port: PortNo(port), ..openflow::Bucket::new([output(port)]) };
    let group = openflow::GroupMod {
        command: openflow::GroupModCommand::Add,
        group_type: openflow::GroupType::FastFailover,
        group_id: openflow::GroupId(1),
        buckets: vec![bucket(2), bucket(3)],
    };
    network.service().switch().commit(&[Change::GroupMod(group)]).unwrap();
    network.install([
        add(0, 1, [Oxm::eth_type(0x0800)], Instructions::apply([Action::Group(openflow::GroupId(1))])),
        add(
            0,
            2,
            [Oxm::eth_type(0x0800), Oxm::ipv4_dst(SERVER)],
            Instructions::apply([Action::output(PortNo::LOCAL)]),
        ),
    ]);
    let [mut enb, mut gw1, mut gw2] = [0, 1, 2].map(|peer| network.link(peer));
    let frame = ethernet::build(
        GW1_MAC,
        ENB_MAC,
        None,
        ethernet::IPV4,
        &udp((UE1.into(), 1), (ENB.into(), 2), b"to whom"),
    );
    enb.send(std::slice::from_ref(&frame));
    assert_eq!(gw1.receive(1), std::slice::from_ref(&frame));
    network.runtime.block_on(async {
        Links::in_ns(&network.peers[1]).unwrap().down("eth0").await.unwrap();
    });
    for _ in 0..200 {
        if network.service().status()["ports"][1]["live"] == false {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    enb.send(std::slice::from_ref(&frame));
    assert_eq!(gw2.receive(1), std::slice::from_ref(&frame));
    enb.send(&[ethernet::build(GW1_MAC, ENB_MAC, None, ethernet::IPV4, &user_packet())]);
    for _ in 0..200 {
        if network.service().status()["ports"][3]["tx_packets"] == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("LOCAL got nothing: {}", network.service().status());
}

/// An interface is deleted, and another one gets its name: no queue of it is served, and its port says so.
#[test]
fn a_deleted_interface_does_not_come_back_to_life() {
    let Some(network) = network() else { return };
    let is_live = |wanted: bool| {
        for _ in 0..500 {
            if network.service().status()["ports"][1]["live"] == wanted {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    };
    assert!(is_live(true));
    network.runtime.block_on(async {
        let far = Links::in_ns(&network.peers[1]).unwrap();
        far.delete("eth0").await.unwrap();
    });
    assert!(is_live(false));
    network.runtime.block_on(async {
        let ours = Links::in_ns(&network.ours).unwrap();
        ours.add_veth("port2", "eth0", &network.peers[1]).await.unwrap();
        ours.up("port2").await.unwrap();
        Links::in_ns(&network.peers[1]).unwrap().up("eth0").await.unwrap();
        // Another port changes later: by then the switch has seen all that came before.
        ours.down("edge0").await.unwrap();
    });
    for _ in 0..500 {
        if network.service().status()["ports"][3]["live"] == false {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(network.service().status()["ports"][1]["live"], false);
    // The others go on.
    network.install([add(0, 1, [], Instructions::apply([output(3)]))]);
    let [mut enb, mut gw2] = [0, 2].map(|peer| network.link(peer));
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    enb.send(std::slice::from_ref(&frame));
    assert_eq!(gw2.receive(1), [frame]);
}
