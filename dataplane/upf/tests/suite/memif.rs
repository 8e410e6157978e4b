//! The whole UPF on memif: PFCP spoken by this test; the peers are other processes, which are killed and come back. Octets
//! are compared at the far ends.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::host::*;
use crate::lab::*;
use crate::support::*;
use net::netns::NetNs;
use packet::ethernet;
use packet::gtpu::{self, PduSession, Signalling};
use pktio::memif::MemifPort;
use pktio::vlan::Tags;

/// Sizes of users' packets.
const SIZES: [usize; 12] = [64, 65, 127, 128, 200, 512, 576, 1000, 1279, 1400, 1499, 1500];
/// MTU of N3: a user's packet of 1500 octets fits with its tunnel.
const N3_MTU: usize = 1600;

/// The other process.
#[test]
fn memif_relay() {
    if is_relay() {
        relay(|device| MemifPort::open(device, 1, N3_MTU as u16).unwrap().remove(0), MemifPort::is_up);
    }
}

fn device(directory: &Directory, number: u8, role: &str, more: &str) -> String {
    let socket = directory.0.join(format!("{number}.sock"));
    format!("memif{number},role={role},socket={}{more}", socket.display())
}

/// The configuration of the other tests, with N3 on a memif and N6 as given.
fn configuration(n3: &str, n6: serde_json::Value) -> upf::Config {
    let mut text = serde_json::to_value(config("")).unwrap();
    text.as_object_mut().unwrap().remove("gtpu");
    text["interfaces"] = serde_json::json!([
        {"name": "n3", "role": "n3", "gtpu": format!("{N3_CORE}:2152"), "backend": "memif", "device": n3,
            "addresses": ["10.200.0.1/24"], "mtu": N3_MTU},
        n6
    ]);
    text["dnn"][0]["interfaces"] = serde_json::json!(["n6"]);
    serde_json::from_value(text).unwrap()
}

fn drops(handle: &upf::Handle, reason: &str) -> u64 {
    handle.stats()["drops"][reason].as_u64().unwrap_or(0)
}

/// Content of a user's datagram, so that its packet has `size` octets.
fn content(size: usize, round: u8) -> Vec<u8> {
    (28..size).map(|i| (i as u8).wrapping_mul(7) ^ round ^ (i >> 8) as u8).collect()
}

/// The frame of a G-PDU from the gNB to the UPF.
fn uplink(gnb: &Host, teid: u32, user: &[u8]) {
    let gpdu = gtpu::build_gpdu(teid, Some(PduSession::Uplink { qfi: QFI }), user).unwrap();
    gnb.send(ethernet::IPV4, &outer(gnb.address, gnb.upf, &gpdu, false));
}

/// The frame of a G-PDU from the UPF to the gNB.
fn downlink(gnb: &Host, user: &[u8]) -> Vec<u8> {
    let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
    let gpdu = gtpu::build_gpdu(GNB_TEID, container, user).unwrap();
    gnb.frame(gnb.mac, gnb.upf_mac, ethernet::IPV4, &outer(gnb.upf, gnb.address, &gpdu, true))
}

/// All sizes in both directions; every frame arrives once, in order, as it should be.
fn exchange(gnb: &Host, server: &Host, teid: u32, round: u8) {
    let up: Vec<_> = SIZES.map(|size| udp(UE_V4.into(), SERVER_V4.into(), &content(size, round))).into();
    up.iter().for_each(|user| uplink(gnb, teid, user));
    let expected: Vec<_> =
        up.iter().map(|user| server.frame(server.mac, server.upf_mac, ethernet::IPV4, user)).collect();
    assert!(server.receive(SIZES.len()) == expected, "uplink, round {round}");
    let down: Vec<_> = SIZES.map(|size| udp(SERVER_V4.into(), UE_V4.into(), &content(size, !round))).into();
    down.iter().for_each(|user| server.send(ethernet::IPV4, user));
    let expected: Vec<_> = down.iter().map(|user| downlink(gnb, user)).collect();
    assert!(gnb.receive(SIZES.len()) == expected, "downlink, round {round}");
}

/// UP-1, UP-3: N3 and N6 on memif in both roles. The peers are not there at first, are killed while packets flow, and
/// come back with rings of other sizes, or in the wrong role.
#[test]
fn n3_and_n6_on_memif_outlive_their_peers() {
    let directory = Directory::new("memif");
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let config = configuration(
        &device(&directory, 0, "master", ",mac=02:00:00:00:00:00,rsize=8"),
        serde_json::json!({"name": "n6", "role": "n6", "backend": "memif", "addresses": ["10.201.0.1/24"],
            "device": device(&directory, 1, "slave", ",mac=02:00:00:00:00:01")}),
    );
    let mut running = Running::start(&namespace, &config);
    let (seid, teid) = running.smf.establish();
    let handle = running.upf.handle();
    let (gnb, server) = (Host::new(0, None), Host::new(1, None));
    let peer_of_n3 =
        |more: &str| Relay::start("memif::memif_relay", &[(device(&directory, 0, "client", more), &gnb)]);
    let peer_of_n6 = |role: &str, more: &str| {
        Relay::start("memif::memif_relay", &[(device(&directory, 1, role, more), &server)])
    };

    let mut n6 = peer_of_n6("server", "");
    server.greet();
    server.ask();
    for (round, more) in ["", ",rsize=5,bsize=512", ",rsize=12,bsize=64"].into_iter().enumerate() {
        // Without gNB, in the first round also without ARP entry.
        let before = drops(&handle, "tx_queue_full") + drops(&handle, "neighbour_unresolved");
        wait_for("packets to the absent gNB are counted", || {
            server.send(ethernet::IPV4, &udp(SERVER_V4.into(), UE_V4.into(), b"to nobody"));
            drops(&handle, "tx_queue_full") + drops(&handle, "neighbour_unresolved") > before
        });
        let n3 = peer_of_n3(more);
        gnb.greet();
        gnb.ask();
        gnb.drain();
        for n in 0..20 {
            exchange(&gnb, &server, teid, 20 * round as u8 + n);
        }
        // Killed while packets flow in both directions.
        let mut n3 = Some(n3);
        for n in 0..100 {
            uplink(&gnb, teid, &udp(UE_V4.into(), SERVER_V4.into(), &content(900, n)));
            server.send(ethernet::IPV4, &udp(SERVER_V4.into(), UE_V4.into(), &content(900, n)));
            if n == 50 {
                n3.take();
            }
        }
        for frame in server.drain() {
            let number = frame[14 + 28] ^ 28u8.wrapping_mul(7);
            let wanted = udp(UE_V4.into(), SERVER_V4.into(), &content(900, number));
            assert_eq!(frame, server.frame(server.mac, server.upf_mac, ethernet::IPV4, &wanted));
        }
    }

    // N6's peer comes back in the role that the UPF has: both wait for a server. Then as it should.
    let n3 = peer_of_n3("");
    gnb.greet();
    gnb.ask();
    drop(n6);
    n6 = peer_of_n6("client", "");
    let before = drops(&handle, "tx_queue_full");
    wait_for("packets to the absent data network are counted", || {
        uplink(&gnb, teid, &udp(UE_V4.into(), SERVER_V4.into(), b"to nobody"));
        drops(&handle, "tx_queue_full") > before
    });
    drop(n6);
    let n6 = peer_of_n6("server", "");
    server.greet();
    server.ask();
    gnb.drain();
    server.drain();
    for n in 0..20 {
        exchange(&gnb, &server, teid, 100 + n);
    }

    // The N4 task has no port of its own: the worker sends its End Marker, while no other packet comes.
    let marker = Signalling::EndMarker { teid: GNB_TEID, pdu_session: None }.build();
    running.smf.modify(seid, path_switch(5, Ipv4Addr::new(10, 200, 0, 3).into()));
    let expected =
        gnb.frame(gnb.mac, gnb.upf_mac, ethernet::IPV4, &outer(gnb.upf, gnb.address, &marker, true));
    assert_eq!(gnb.receive(1), [expected]);

    drop((n3, n6));
    assert_eq!(running.core.block_on(handle.status())["interfaces"][0]["backend"], "memif");
    running.stop();
    assert!(!directory.0.join("0.sock").exists(), "the socket goes with its server");
    // Nothing is left that prevents a start.
    Running::start(&namespace, &config).stop();
}

/// UP-1: N3 and N6 on one device, apart by VLANs, by two tags, or by addresses alone. The peer is killed and comes back.
#[test]
fn n3_and_n6_share_a_device() {
    let directory = Directory::new("memif-shared");
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let tags = |ids: &[u16]| Tags::new(ids).unwrap();
    for (n3, n6) in
        [(&[100][..], &[200][..]), (&[], &[100, 200]), (&[100, 200], &[100]), (&[], &[]), (&[7, 8], &[7, 8])]
    {
        let own = device(&directory, 0, "server", ",mac=02:00:00:00:00:00");
        let mut text = serde_json::to_value(configuration(
            &own,
            serde_json::json!({"name": "n6", "role": "n6",
            "backend": "memif", "addresses": ["10.201.0.1/24"], "device": own, "vlan": n6}),
        ))
        .unwrap();
        text["interfaces"][0]["vlan"] = serde_json::json!(n3);
        let config: upf::Config = serde_json::from_value(text).unwrap();
        config.validate().unwrap();
        let mut running = Running::start(&namespace, &config);
        let (_, teid) = running.smf.establish();
        let gnb = Host::new(0, tags(n3));
        for round in 0..2 {
            let relay = Relay::start("memif::memif_relay", &[(device(&directory, 0, "client", ""), &gnb)]);
            gnb.greet();
            let server = gnb.beside(1, tags(n6));
            gnb.ask();
            server.ask();
            gnb.drain();
            for n in 0..10 {
                exchange(&gnb, &server, teid, 10 * round + n);
            }
            // Frames of other VLANs are counted, each once.
            let before = drops(&running.upf.handle(), "unknown_vlan");
            for other in [&[300][..], &[100, 300], &[300, 200]] {
                gnb.beside(1, tags(other))
                    .send(ethernet::IPV4, &udp(SERVER_V4.into(), UE_V4.into(), b"lost"));
            }
            exchange(&gnb, &server, teid, 99);
            wait_for("frames of other VLANs", || drops(&running.upf.handle(), "unknown_vlan") >= before + 3);
            assert_eq!(drops(&running.upf.handle(), "unknown_vlan"), before + 3);
            drop(relay);
        }
        let stats = running.upf.handle().stats();
        for name in ["n3", "n6"] {
            let packets = |way: &str| stats["interfaces"][name][way]["packets"].as_u64().unwrap();
            assert!(
                packets("received") >= 22 * SIZES.len() as u64 && packets("sent") >= 22 * SIZES.len() as u64
            );
        }
        running.stop();
    }
}

/// UP-1, UP-2: N3 on memif, N6 on AF_XDP to the kernel of another namespace.
#[test]
fn n3_on_memif_goes_with_n6_on_af_xdp() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let lab = runtime.block_on(Lab::new());
    let directory = Directory::new("memif-xdp");
    let config = configuration(
        &device(&directory, 0, "server", ",mac=02:00:00:00:00:00"),
        serde_json::json!({"name": "n6", "role": "n6", "backend": "af_xdp", "device": "n6"}),
    );
    let mut running = Running::start(&lab.core, &config);
    let (_, teid) = running.smf.establish();
    let gnb = Host::new(0, None);
    let socket = lab.dn.enter(|| UdpSocket::bind((SERVER_V4, 5000)).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();

    for round in 0..3u8 {
        let relay = Relay::start("memif::memif_relay", &[(device(&directory, 0, "client", ""), &gnb)]);
        gnb.greet();
        gnb.ask();
        gnb.drain();
        for n in 0..10 {
            for size in SIZES {
                let payload = content(size, round ^ n);
                uplink(&gnb, teid, &udp(UE_V4.into(), SERVER_V4.into(), &payload));
                let mut datagram = [0; 2048];
                let (length, from) = socket.recv_from(&mut datagram).expect("uplink");
                assert_eq!((from, &datagram[..length]), (SocketAddr::from((UE_V4, 4000)), &payload[..]));
                socket.send_to(&payload, from).unwrap();
                let frame = gnb.receive(1).pop().expect("downlink");
                // Outer Ethernet, IP, UDP and GTP-U with container; inner IP and UDP.
                assert_eq!((frame.len(), &frame[14 + 44 + 28..]), (14 + 44 + size, &payload[..]));
                assert_eq!(downlink(&gnb, &frame[14 + 44..]), frame);
            }
        }
        drop(relay);
        // Without peer; N6 is served on.
        let before = drops(&running.upf.handle(), "tx_queue_full");
        wait_for("packets to the absent gNB are counted", || {
            socket.send_to(b"to nobody", (UE_V4, 4000)).unwrap();
            drops(&running.upf.handle(), "tx_queue_full") > before
        });
    }
    // The memif's packets are received into AF_XDP's memory.
    let (sent, copied) = sent_and_copied(&running.upf.handle(), "n6");
    assert!(sent >= 30 * SIZES.len() as u64 && copied <= OWN, "{copied} of {sent} were copied");
    running.stop();
}

#[test]
fn what_is_wrong_with_a_memif_is_named_with_what_to_do() {
    let directory = Directory::new("memif-wrong");
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let core = namespace.runtime(1).unwrap();
    let start = |n3: &str| {
        let n6 = device(&directory, 1, "client", "");
        let config = configuration(
            n3,
            serde_json::json!({"name": "n6", "role": "n6", "backend": "memif", "device": n6,
                "addresses": ["10.201.0.1/24"]}),
        );
        core.block_on(core.spawn(upf::start(config))).unwrap().unwrap_err().to_string()
    };
    let secret = directory.0.join("secret");
    std::fs::write(&secret, "hush-hush").unwrap();
    let in_use = MemifPort::open(&device(&directory, 0, "server", ""), 1, 1500).unwrap();
    let folder = directory.0.join("none/n3.sock");
    for (n3, said) in [
        (device(&directory, 0, "server", ""), "another program listens there"),
        (format!("memif0,role=server,socket={}", folder.display()), "make the folder"),
        (device(&directory, 2, "server", &format!(",secret-file={}", secret.display())), "chmod 0600"),
        (device(&directory, 2, "chief", ""), "server or client"),
    ] {
        let error = start(&n3);
        assert!(error.starts_with("upf.interfaces n3: ") && error.contains(said), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
    drop(in_use);
}
