//! The whole UPF on the real kernel: namespaces for core, RAN, data network and UE; PFCP and GTP-U spoken by this
//! test; traffic by system programs. Needs root, or a user namespace with networks of its own.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // helpers of tests fail as tests do

#[path = "support/lab.rs"]
mod lab;
mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use lab::*;
use net::netns::NetNs;
use pfcp::message::*;
use pfcp::*;
use support::*;
use upf::interface::{Backend, InterfaceConfig};

#[test]
fn a_ue_reaches_the_data_network_through_the_upf() {
    let mut network = Network::new(|_| ());
    let Network { gnb, smf, handle, core, lab, seid, .. } = &mut network;
    let seid = *seid;

    assert!(ping(&lab.ue, "10.201.0.2", 10, 56), "IPv4");
    assert!(ping(&lab.ue, "fd00:201::2", 10, 56), "IPv6");
    assert!(ping(&lab.ue, "10.201.0.2", 3, 1372), "a full packet");
    assert!(ping(&lab.dn, "10.45.0.2", 3, 56), "the other way round");
    assert!(ping(&lab.ue, "10.45.0.1", 1, 56), "the gateway itself");

    let stats = handle.stats();
    assert!(stats["interfaces"]["n6"]["sent"]["packets"].as_u64().expect("a number") >= 27, "{stats}");
    let drops = stats["drops"].as_object().expect("an object");
    assert!(drops.keys().all(|reason| reason == "link_local"), "{stats}");
    let before = stats["interfaces"]["n3"]["received"]["packets"].as_u64().expect("a number");
    let sessions = core.block_on(handle.sessions());
    assert_eq!(sessions[0]["ipv4"][0], "10.45.0.2");
    assert_eq!(sessions[0]["dnn"], "internet");
    assert!(sessions[0]["uplink"]["packets"].as_u64().expect("a number") >= 27, "{sessions}");
    assert_eq!(core.block_on(handle.status())["sessions"], 1);

    // The machine answers pings and offers services, but not its tunnels and control interfaces.
    assert!(ping(&lab.ue, N3_CORE, 3, 56), "the machine");
    let bound = |namespace: &NetNs, address: &str| {
        let socket = namespace.enter(|| UdpSocket::bind(address)).expect("entered").expect("bound");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        socket
    };
    let service = bound(&lab.core, "10.201.0.1:5353");
    let exposed = bound(&lab.core, "10.201.0.1:8805");
    let client = bound(&lab.ue, "10.45.0.2:4000");
    for to in ["10.200.0.1:2152", "10.201.0.1:8805", "10.201.0.1:5353"] {
        client.send_to(b"from a UE", to).expect("sent");
    }
    let mut datagram = [0; 64];
    assert_eq!(service.recv(&mut datagram).expect("the service is reached"), 9);
    exposed.set_nonblocking(true).expect("set");
    assert!(exposed.recv(&mut datagram).is_err(), "sent before what the service has received");
    let drops = handle.stats()["drops"].clone();
    assert_eq!(drops["core_interface"], 2, "{drops}");
    assert!(drops.get("gtpu_malformed").is_none(), "{drops}");

    // While the path is not there packets wait, and none is lost when it comes.
    smf.set_downlink(seid, ApplyAction::BUFF);
    let waiting = {
        let ue = lab.ue.clone();
        std::thread::spawn(move || ping(&ue, "10.201.0.2", 10, 56))
    };
    for _ in 0..500 {
        if handle.stats()["interfaces"]["n3"]["received"]["packets"].as_u64() > Some(before + 5) {
            break;
        }
        net::time::sleep_thread(Duration::from_millis(2));
    }
    smf.set_downlink(seid, ApplyAction::FORW);
    assert!(waiting.join().expect("no panic"), "buffered replies arrive");

    // Volume is reported at the end, and nothing passes afterwards.
    match smf.ask(seid, SessionDeletionRequest {}) {
        Message::SessionDeletionResponse(response) => {
            assert_eq!(response.cause, Cause::ACCEPTED);
            let volume = response.usage_reports[0].volume.expect("measured");
            assert!(
                volume.uplink_packets.expect("counted") >= 27 && volume.downlink.expect("counted") > 4000
            );
        }
        other => panic!("{other:?}"),
    }
    drop(gnb.take());
    assert!(!ping(&lab.ue, "10.201.0.2", 1, 56));

    // A CP function that restarts loses its sessions.
    smf.establish();
    smf.associate(100);
    assert_eq!(core.block_on(handle.status())["sessions"], 1, "asking again is no restart");
    smf.associate(101);
    assert_eq!(core.block_on(handle.status())["sessions"], 0);

    network.stop();
    let left = network.lab.core.enter(|| nix_index("gw0")).expect("entered");
    assert!(!left, "the device goes with the UPF");
    let status = network.core.block_on(network.handle.status());
    assert_eq!(status["running"], false);
}

/// N3 and N6 by AF_XDP on interfaces that stay the kernel's (UP-2): the same traffic, past the kernel's stack.
#[test]
fn a_ue_reaches_the_data_network_by_af_xdp() {
    let on = |device: &str| InterfaceConfig {
        backend: Backend::AfXdp,
        device: Some(device.to_owned()),
        ..InterfaceConfig::default()
    };
    let mut started = None;
    let mut network = Network::new(|config| {
        config.n3 = on("n3");
        config.dnn[0].n6 = on("n6");
        config.dnn[0].tun = String::new();
        started = Some(config.clone());
    });
    let Network { handle, lab, .. } = &network;

    assert!(ping(&lab.ue, "10.201.0.2", 10, 56), "IPv4");
    assert!(ping(&lab.ue, "fd00:201::2", 10, 56), "IPv6");
    assert!(ping(&lab.ue, "10.201.0.2", 3, 1372), "a full packet");
    assert!(ping(&lab.dn, "10.45.0.2", 3, 56), "the other way round");
    // The rest of the host's traffic on these interfaces is the kernel's as before.
    assert!(ping(&lab.dn, "10.201.0.1", 3, 56), "the machine itself");
    assert!(ping(&lab.ran, "10.200.0.1", 3, 56), "the machine itself");

    let stats = handle.stats();
    assert!(stats["interfaces"]["n6"]["sent"]["packets"].as_u64().expect("a number") >= 26, "{stats}");
    assert!(stats["interfaces"]["n3"]["sent"]["packets"].as_u64().expect("a number") >= 26, "{stats}");
    let drops = stats["drops"].as_object().expect("an object");
    assert!(drops.keys().all(|reason| reason == "link_local"), "{stats}");
    drop(network.gnb.take());
    network.stop();
    // The interfaces are free again, and the kernel's alone.
    let config = started.expect("it has been configured");
    let core = &network.core;
    let again = core.block_on(core.spawn(upf::start(config))).expect("no panic").expect("it starts again");
    core.block_on(async move { again.stop().await });
}

/// Whether the calling thread's namespace has an interface of this name.
fn nix_index(name: &str) -> bool {
    std::fs::read_to_string("/proc/thread-self/net/dev").is_ok_and(|text| text.contains(&format!("{name}:")))
}

#[test]
fn what_is_in_the_way_is_named() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let core = namespace.runtime(1).expect("a runtime in the namespace");
    let start = |config: upf::Config| core.block_on(core.spawn(upf::start(config))).expect("no panic");

    let taken = namespace.enter(|| UdpSocket::bind("127.0.0.7:2152")).expect("entered").expect("bound");
    let error = start(config("gw0")).expect_err("the address is in use").to_string();
    assert!(error.contains("127.0.0.7:2152") && error.contains("upf.gtpu"), "{error}");
    drop(taken);
    let error = start(config("a name too long for it")).expect_err("a bad name").to_string();
    assert!(error.contains("interface name"), "{error}");
    let mut foreign = config("gw0");
    foreign.gtpu = "192.0.2.1:2152".parse().expect("an address");
    assert!(start(foreign).expect_err("not ours").to_string().contains("192.0.2.1"));
    let mut nowhere = config("gw0");
    nowhere.gtpu = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 2152);
    assert!(start(nowhere).expect_err("no address").to_string().contains("gNBs"));
    // After all these failures nothing is left in the way.
    let upf = start(config("gw0")).expect("it starts");
    core.block_on(upf.stop());
    drop(runtime);
}
