//! The whole UPF on DPDK (feature `dpdk`): PFCP spoken by this test; N3 and N6 through af_packet to real kernels in other
//! namespaces, and through memif to another process, which is this test program started again, with frames compared
//! octet by octet.

#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/host.rs"]
mod host;
#[path = "support/lab.rs"]
mod lab;
mod support;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;

use host::*;
use lab::*;
use net::link::Links;
use net::netns::NetNs;
use packet::ethernet;
use packet::gtpu::{self, PduSession, Signalling};
use pktio::af_xdp::device::Device;
use pktio::dpdk::{DpdkPort, Settings, eal};
use pktio::udp::UdpPort;
use pktio::vlan::{Protocol, Tags};
use support::*;

/// The configuration of the other tests, with N3 and N6 on DPDK. Ordinary pages, so that the tests run on any machine.
fn on_dpdk(n3: &str, n6: &str) -> upf::Config {
    let mut text = serde_json::to_value(config("")).unwrap();
    text.as_object_mut().unwrap().remove("gtpu");
    text["dpdk"] = serde_json::json!({"huge_pages": false, "memory_mb": 256});
    let [mut n3, mut n6] = [n3, n6].map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
    (n3["name"], n3["role"], n3["gtpu"]) = ("n3".into(), "n3".into(), gtpu_address().to_string().into());
    (n6["name"], n6["role"]) = ("n6".into(), "n6".into());
    text["interfaces"] = serde_json::json!([n3, n6]);
    text["dnn"][0]["interfaces"] = serde_json::json!(["n6"]);
    serde_json::from_value(text).unwrap()
}

fn gtpu_address() -> SocketAddr {
    SocketAddr::new(N3_CORE.parse().unwrap(), gtpu::PORT)
}

/// The test below with the capabilities that `godwit run` keeps for DPDK (`needed_capabilities`), and no others.
#[test]
fn dpdk_needs_no_more_than_what_a_core_keeps() {
    let kept = "--bounding-set=-all,+net_admin,+net_raw,+ipc_lock,+sys_admin,+sys_rawio,+dac_override";
    let test = ["--exact", "a_ue_reaches_the_data_network_by_dpdk", "--nocapture"];
    let mut command = Command::new("setpriv");
    let command = command.args([kept, "--no-new-privs"]).arg(std::env::current_exe().unwrap()).args(test);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && said[0].contains("1 passed"), "{}{}", said[0], said[1]);
}

/// UP-1, UP-3: both directions and both IP versions; both sides resolve addresses by ARP and Neighbor Discovery.
#[test]
fn a_ue_reaches_the_data_network_by_dpdk() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let lab = runtime.block_on(Lab::beside_the_kernel());
    let config = on_dpdk(
        r#"{"backend": "dpdk", "device": "net_af_packet0,iface=n3",
            "addresses": ["10.200.0.1/24", "fd00:200::1/64"]}"#,
        r#"{"backend": "dpdk", "device": "net_af_packet1,iface=n6",
            "addresses": ["10.201.0.1/24", "fd00:201::1/64"]}"#,
    );
    let mut running = Running::start(&lab.core, &config);
    let (seid, teid) = running.smf.establish();
    let tun = runtime.block_on(lab.ue_device());
    let bind = |address: &str| {
        let address: SocketAddr = SocketAddr::new(address.parse().unwrap(), gtpu::PORT);
        lab.ran.enter(|| UdpPort::bind(address, false)).unwrap().unwrap()
    };
    let n3 = bind(N3_GNB);
    let gnb = Gnb::start(&tun, &n3, gtpu_address(), teid);

    // Neighbours are not known yet; packets wait for them and none is lost.
    assert!(ping(&lab.ue, "10.201.0.2", 10, 56), "IPv4");
    // Only the UPF answers for its addresses. The kernels need a second for duplicate address detection (IPv6).
    wait_for("N3", || ping(&lab.ran, "fd00:200::1", 1, 56));
    wait_for("N6", || ping(&lab.dn, "fd00:201::1", 1, 56));
    assert!(ping(&lab.ran, "10.200.0.1", 3, 56) && ping(&lab.dn, "10.201.0.1", 3, 56));
    assert!(ping(&lab.ue, "fd00:201::2", 10, 56), "IPv6");
    assert!(ping(&lab.ue, "10.201.0.2", 3, 1372), "a full packet");
    assert!(ping(&lab.dn, "10.45.0.2", 3, 56), "the other way round");

    // Interfaces go down and come up again.
    let links = runtime.block_on(async { Links::in_ns(&lab.core) }).unwrap();
    for device in ["n3", "n6"] {
        lab.bursts("10.201.0.2");
        runtime.block_on(links.down(device)).unwrap();
        lab.bursts("10.201.0.2");
        runtime.block_on(links.up(device)).unwrap();
        wait_for(device, || ping(&lab.ue, "10.201.0.2", 3, 56) && ping(&lab.ue, "fd00:201::2", 3, 56));
    }

    // A worker counts packets after sending them, so the last answer may arrive before it is counted.
    let sent = |interface: &str| {
        let stats = running.upf.handle().stats();
        stats["interfaces"][interface]["sent"]["packets"].as_u64().unwrap()
    };
    wait_for("counted", || sent("n3") >= 26 && sent("n6") >= 26);

    // A UE does not reach the UPF's N3 address, which the kernel does not have.
    let guarded = || running.upf.handle().stats()["drops"]["core_interface"].as_u64().unwrap_or(0);
    let client = lab.ue.enter(|| UdpSocket::bind("10.45.0.2:4000").unwrap()).unwrap();
    wait_for("guarded", || {
        client.send_to(b"from a UE", "10.201.0.1:2152").unwrap();
        guarded() > 0
    });
    drop(gnb);

    // The N4 task has no DPDK port: the worker sends its End Marker.
    drop(n3);
    let old = lab.ran.enter(|| UdpSocket::bind((N3_GNB, gtpu::PORT)).unwrap()).unwrap();
    old.set_read_timeout(Some(PATIENCE)).unwrap();
    running.smf.modify(seid, path_switch(5, Ipv4Addr::new(10, 200, 0, 3).into()));
    let marker = Signalling::EndMarker { teid: GNB_TEID, pdu_session: None }.build();
    let mut datagram = [0; 2048];
    loop {
        let (length, from) = old.recv_from(&mut datagram).expect("an End Marker comes");
        if datagram[..length] == marker {
            assert_eq!(from, gtpu_address());
            break;
        }
    }
    running.stop();
    // The devices are free again.
    Running::start(&lab.core, &config).stop();
}

/// N6 on a TUN device: what comes from there lies in DPDK's frames, and leaves through N3 without a copy.
#[test]
fn packets_of_a_tun_device_leave_dpdk_without_a_copy() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let lab = runtime.block_on(Lab::beside_the_kernel());
    runtime.block_on(async {
        let links = Links::in_ns(&lab.core).unwrap();
        links.add_address("n6", cidr("10.201.0.1/24")).await.unwrap();
    });
    // Or the UPF would see several packets in one frame.
    lab.ran.enter(|| Device::find("n3").unwrap().send_whole_frames().unwrap()).unwrap();
    let config = on_dpdk(
        r#"{"backend": "dpdk", "device": "net_af_packet2,iface=n3", "addresses": ["10.200.0.1/24"], "mtu": 1500}"#,
        r#"{"device": "gw0"}"#,
    );
    let mut running = Running::start(&lab.core, &config);
    let (_, teid) = running.smf.establish();
    let tun = runtime.block_on(lab.ue_device());
    let address = SocketAddr::new(N3_GNB.parse().unwrap(), gtpu::PORT);
    let n3 = lab.ran.enter(|| UdpPort::bind(address, false)).unwrap().unwrap();
    let gnb = Gnb::start(&tun, &n3, gtpu_address(), teid);
    wait_for("served", || ping(&lab.ue, "10.201.0.2", 3, 56));
    let bind = |namespace: &NetNs, address: &str| {
        namespace.enter(|| UdpSocket::bind((address, 5000))).unwrap().unwrap()
    };
    let (ue, server) = (bind(&lab.ue, "10.45.0.2"), bind(&lab.dn, "10.201.0.2"));
    let handle = running.upf.handle();
    let (before, _) = sent_and_copied(&handle, "n3");
    for _ in 0..3 {
        compare(&ue, &server, 1372);
        compare(&server, &ue, 1372);
    }
    let (after, copied) = sent_and_copied(&handle, "n3");
    assert!(after >= before + 2400 && copied <= OWN, "{before} and {after} packets, {copied} copied");
    drop(gnb);
    running.stop();
    // All frames have come back: the device is free, and another one has its memory.
    Running::start(&lab.core, &config).stop();
}

/// The other process: a memif client per interface.
#[test]
fn memif_relay() {
    if !is_relay() {
        return;
    }
    let options = eal::Options { huge_pages: eal::HugePages::No, megabytes: 256, ..eal::Options::default() };
    eal::start_with(&options).unwrap();
    let settings = Settings { buffers: 4095, descriptors: 256, ..Settings::default() };
    relay(|device| DpdkPort::open(device, &settings).unwrap().remove(0), DpdkPort::is_up);
}

fn memif(directory: &Directory, number: u8, role: &str) -> String {
    let path = directory.0.join(format!("{number}.sock"));
    format!("net_memif{number},role={role},id=0,socket-abstract=no,socket={}", path.display())
}

/// UP-1 with every octet: VLAN and tunnel headers, questions for neighbours and for the router, and a peer process
/// that is killed and replaced.
#[test]
fn frames_by_memif_are_as_they_should_be_and_a_peer_process_may_die() {
    let directory = Directory::new("dpdk");
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let interface = |number: u8, more: &str| {
        format!(
            r#"{{"backend": "dpdk", "device": "{},mac=02:00:00:00:00:0{number}",
                "addresses": ["10.20{number}.0.1/24"]{more}}}"#,
            memif(&directory, number, "server")
        )
    };
    let tags = |ids: &[u16]| Tags::new(ids).unwrap();
    for (vlan, tags) in [
        (r#", "vlan": 7"#, tags(&[7])),
        (r#", "vlan": [100, 200]"#, tags(&[100, 200])),
        (
            r#", "vlan": [100, 200], "vlan_protocol": "0x9100""#,
            tags(&[100, 200]).with_protocol(Protocol::Old),
        ),
    ] {
        let n6 = interface(1, r#", "gateways": ["10.201.0.9"], "mtu": 1400"#);
        let config = on_dpdk(&interface(0, vlan), &n6);
        frames_pass(&directory, &namespace, &config, tags);
    }
}

fn frames_pass(directory: &Directory, namespace: &NetNs, config: &upf::Config, tags: Tags) {
    let mut running = Running::start(namespace, config);
    let (_, teid) = running.smf.establish();
    let (gnb, server) = (Host::new(0, tags), Host::new(1, None));
    for round in 0..2u8 {
        let links =
            [(0, &gnb), (1, &server)].map(|(number, host)| (memif(directory, number, "client"), host));
        let relay = Relay::start("memif_relay", &links);
        gnb.greet();
        server.greet();
        gnb.ask();

        // Uplink, to a host whose link-layer address the UPF has to resolve. Packets wait meanwhile and are not lost.
        let user = udp(UE_V4.into(), SERVER_V4.into(), &[round; 33]);
        let container = Some(PduSession::Uplink { qfi: QFI });
        let gpdu = gtpu::build_gpdu(teid, container, &user).unwrap();
        let uplink = || gnb.send(ethernet::IPV4, &outer(gnb.address, gnb.upf, &gpdu, false));
        if round == 0 {
            let question = server.arp(1, (server.upf_mac, server.upf), ([0; 6], server.address));
            let question = server.frame([0xFF; 6], server.upf_mac, ethernet::ARP, &question);
            server.expect("the UPF's question", &question, uplink);
            server.send(
                ethernet::ARP,
                &server.arp(2, (server.mac, server.address), (server.upf_mac, server.upf)),
            );
        }
        let expected = server.frame(server.mac, server.upf_mac, ethernet::IPV4, &user);
        server.expect("uplink", &expected, || {
            if round > 0 {
                uplink()
            }
        });
        // With one tag more, which has priority bits only.
        let mut frame =
            gnb.frame(gnb.upf_mac, gnb.mac, ethernet::IPV4, &outer(gnb.address, gnb.upf, &gpdu, false));
        frame.splice(12..12, [0x81, 0, 0xE0, 0]);
        server.expect("uplink with priority", &expected, || gnb.send_frame(&frame));

        // Destinations outside the link are reached through the router.
        let router = Ipv4Addr::new(10, 201, 0, 9);
        let user = udp(UE_V4.into(), Ipv4Addr::new(8, 8, 8, 8).into(), &[round; 5]);
        let gpdu = gtpu::build_gpdu(teid, container, &user).unwrap();
        let uplink = || gnb.send(ethernet::IPV4, &outer(gnb.address, gnb.upf, &gpdu, false));
        if round == 0 {
            let question = server.arp(1, (server.upf_mac, server.upf), ([0; 6], router));
            let question = server.frame([0xFF; 6], server.upf_mac, ethernet::ARP, &question);
            server.expect("the question for the router", &question, uplink);
            let answer = server.arp(2, (server.mac, router), (server.upf_mac, server.upf));
            server.send(ethernet::ARP, &answer);
        }
        server.expect(
            "by the router",
            &server.frame(server.mac, server.upf_mac, ethernet::IPV4, &user),
            uplink,
        );

        // Downlink, into the tunnel and the VLAN.
        let user = udp(SERVER_V4.into(), UE_V4.into(), &[round; 77]);
        let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
        let gpdu = gtpu::build_gpdu(GNB_TEID, container, &user).unwrap();
        let packet = outer(gnb.upf, gnb.address, &gpdu, true);
        let expected = gnb.frame(gnb.mac, gnb.upf_mac, ethernet::IPV4, &packet);
        gnb.expect("downlink", &expected, || server.send(ethernet::IPV4, &user));

        // An Echo Request on N3 is answered.
        let echo = Signalling::EchoRequest { sequence: 5 }.build();
        let answer = Signalling::EchoResponse { sequence: 5 }.build();
        let expected =
            gnb.frame(gnb.mac, gnb.upf_mac, ethernet::IPV4, &outer(gnb.upf, gnb.address, &answer, true));
        gnb.expect("Echo Response", &expected, || {
            gnb.send(ethernet::IPV4, &outer(gnb.address, gnb.upf, &echo, false));
        });
        drop(relay);
    }
    running.stop();
    // No sockets and no devices are left.
    Running::start(namespace, config).stop();
}

#[test]
fn what_dpdk_does_not_have_is_named_with_what_to_do() {
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let core = namespace.runtime(1).unwrap();
    let n3 = |device: &str| {
        format!(r#"{{"backend": "dpdk", "device": "{device}", "addresses": ["10.200.0.1/24"]}}"#)
    };
    let n6 = r#"{"backend": "dpdk", "device": "net_ring7", "addresses": ["10.201.0.1/24"]}"#;
    for (device, said) in
        [("net_nonsense0", "named by its driver"), ("0000:7f:00.0", "dpdk-devbind.py --bind vfio-pci")]
    {
        let config = on_dpdk(&n3(device), n6);
        let error = core.block_on(core.spawn(upf::start(config))).unwrap().unwrap_err().to_string();
        assert!(
            error.starts_with("upf.interfaces n3: ") && error.contains(device) && error.contains(said),
            "{error}"
        );
    }
}
