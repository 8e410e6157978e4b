//! The whole UPF on the real kernel: namespaces for core, RAN, data network and UE; PFCP and GTP-U spoken by this
//! test; traffic by system programs. Needs root, or a user namespace with networks of its own.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::lab::*;
use crate::support::*;
use net::netns::NetNs;
use pfcp::message::*;
use pfcp::*;
use pktio::udp::UdpPort;
use upf::interface::Backend;

#[test]
fn a_ue_reaches_the_data_network_through_the_upf() {
    let mut network = Network::new(|config| {
        let open = r#"[{"address": "10.201.0.1", "protocol": "udp", "port": 5353}]"#;
        config.dnn[0].open = serde_json::from_str(open).expect("valid");
    });
    let Network { gnb, smf, handle, core, lab, seid, .. } = &mut network;
    let seid = *seid;

    assert!(ping(&lab.ue, "10.201.0.2", 10, 56), "IPv4");
    assert!(ping(&lab.ue, "fd00:201::2", 10, 56), "IPv6");
    assert!(ping(&lab.ue, "10.201.0.2", 3, 1372), "a full packet");
    assert!(ping(&lab.dn, "10.45.0.2", 3, 56), "the other way round");

    let stats = handle.stats();
    assert!(stats["interfaces"]["internet"]["sent"]["packets"].as_u64().expect("a number") >= 26, "{stats}");
    let drops = stats["drops"].as_object().expect("an object");
    assert!(drops.keys().all(|reason| reason == "link_local"), "{stats}");
    let before = stats["interfaces"]["n3"]["received"]["packets"].as_u64().expect("a number");
    let sessions = core.block_on(handle.sessions());
    assert_eq!(sessions[0]["ipv4"][0], "10.45.0.2");
    assert_eq!(sessions[0]["dnn"], "internet");
    assert!(sessions[0]["uplink"]["packets"].as_u64().expect("a number") >= 26, "{sessions}");
    assert_eq!(core.block_on(handle.status())["sessions"], 1);

    // UEs reach no address of this machine, the gateway included, except for the open service.
    let bound = |namespace: &NetNs, address: &str| {
        let socket = namespace.enter(|| UdpSocket::bind(address)).expect("entered").expect("bound");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        socket
    };
    let service = bound(&lab.core, "10.201.0.1:5353");
    let exposed = bound(&lab.core, "10.201.0.1:8805");
    let other = bound(&lab.core, "10.45.0.1:5353");
    let client = bound(&lab.ue, "10.45.0.2:4000");
    let closed = ["10.200.0.1:2152", "10.201.0.1:8805", "10.45.0.1:5353", "10.45.255.255:9"];
    for to in closed.into_iter().chain(["10.201.0.1:5353"]) {
        client.send_to(b"from a UE", to).expect("sent");
    }
    let mut datagram = [0; 64];
    assert_eq!(service.recv(&mut datagram).expect("the service is reached"), 9);
    for socket in [exposed, other] {
        socket.set_nonblocking(true).expect("set");
        assert!(socket.recv(&mut datagram).is_err(), "sent before what the service has received");
    }
    let drops = handle.stats()["drops"].clone();
    assert_eq!(drops["core_interface"], 4, "{drops}");
    assert!(drops.get("gtpu_malformed").is_none(), "{drops}");
    for address in [N3_CORE, "10.45.0.1", "fd00:201::1", "fd00:45::1"] {
        assert!(!ping(&lab.ue, address, 1, 56), "{address}");
    }

    // While the UE has no path packets are buffered, and none is lost when it gets one.
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

/// Addresses that the machine gets under a running UPF: UEs do not reach them, and no tunnel leads to them.
#[test]
fn addresses_that_come_later_are_closed_and_no_far_ends() {
    let mut network = Network::new(|_| ());
    let Network { smf, handle, core, lab, .. } = &mut network;
    let links = {
        let _entered = core.enter();
        net::link::Links::in_ns(&lab.core).expect("netlink")
    };
    let drops = |reason: &str| handle.stats()["drops"][reason].as_u64().unwrap_or(0);
    core.block_on(links.add_address("n6", cidr("10.201.0.77/24"))).expect("added");
    wait_for("the new address is closed", || {
        let answered = ping(&lab.ue, "10.201.0.77", 1, 56);
        drops("core_interface") > 0 && !answered
    });
    assert!(ping(&lab.ue, "10.201.0.2", 3, 56), "the data network is not");
    // The gNB's own address.
    core.block_on(links.add_address("n3", cidr("10.200.0.2/32"))).expect("added");
    wait_for("packets to the gNB would come back", || {
        ping(&lab.dn, "10.45.0.2", 1, 56);
        drops("tunnel_loop") > 0
    });
    let mut request = establishment(2);
    for pdr in &mut request.create_pdrs {
        if let Some(ue) = &mut pdr.pdi.ue_ip_address {
            (ue.ipv4, ue.ipv6) = (Some([10, 45, 0, 3].into()), None);
        }
    }
    request.create_fars[1] = forward(2, DestinationInterface::Access, Some((1, [10, 200, 0, 2].into())));
    match smf.ask(0, request) {
        Message::SessionEstablishmentResponse(response) => {
            assert_eq!(response.cause, Cause::MANDATORY_IE_INCORRECT, "{response:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// No gNB has the broadcast address or the network address of a subnet of this machine, also of one that comes
/// later. Networks of two hosts and of one have no such addresses.
#[test]
fn no_tunnel_leads_to_the_broadcast_address_of_a_subnet() {
    let mut network = Network::new(|_| ());
    let Network { smf, core, lab, .. } = &mut network;
    let links = {
        let _entered = core.enter();
        net::link::Links::in_ns(&lab.core).expect("netlink")
    };
    let mut answer = |peer: [u8; 4]| {
        let mut request = establishment(2);
        for pdr in &mut request.create_pdrs {
            if let Some(ue) = &mut pdr.pdi.ue_ip_address {
                (ue.ipv4, ue.ipv6) = (Some([10, 45, 0, 3].into()), None);
            }
        }
        request.create_fars[1] = forward(2, DestinationInterface::Access, Some((1, peer.into())));
        match smf.ask(0, request) {
            Message::SessionEstablishmentResponse(response) => {
                (response.cause, response.offending_ie, response.failed_rule_id)
            }
            other => panic!("{other:?}"),
        }
    };
    let offending = Some(OffendingIe(ie::OUTER_HEADER_CREATION));
    let refusal = (Cause::MANDATORY_IE_INCORRECT, offending, Some(FailedRuleId::Far(2)));
    assert_eq!(answer([10, 200, 0, 255]), refusal);
    assert_eq!(answer([10, 200, 0, 0]), refusal);
    assert_eq!(answer([10, 200, 0, 254]).0, Cause::ACCEPTED);
    for address in ["10.210.0.1/30", "10.211.0.0/31", "10.212.0.0/32"] {
        core.block_on(links.add_address("n3", cidr(address))).expect("added");
    }
    wait_for("the new subnet is noticed", || answer([10, 210, 0, 3]) == refusal);
    assert_eq!(answer([10, 210, 0, 0]), refusal);
    for host in [[10, 210, 0, 2], [10, 211, 0, 1], [10, 212, 0, 1], [10, 200, 1, 255]] {
        assert_eq!(answer(host).0, Cause::ACCEPTED, "{host:?}");
    }
}

/// N3 and N6 by AF_XDP on interfaces that stay the kernel's (UP-2): the same traffic, past the kernel's stack.
#[test]
fn a_ue_reaches_the_data_network_by_af_xdp() {
    let mut started = None;
    let mut network = Network::new(|config| {
        bypass(config, Backend::AfXdp, ["n3", "n6"]);
        started = Some(config.clone());
    });
    let Network { handle, lab, .. } = &network;

    assert!(ping(&lab.ue, "10.201.0.2", 10, 56), "IPv4");
    assert!(ping(&lab.ue, "fd00:201::2", 10, 56), "IPv6");
    assert!(ping(&lab.ue, "10.201.0.2", 3, 1372), "a full packet");
    assert!(ping(&lab.dn, "10.45.0.2", 3, 56), "the other way round");
    // The kernel still gets the host's other traffic on these interfaces.
    assert!(ping(&lab.dn, "10.201.0.1", 3, 56), "the machine itself");
    assert!(ping(&lab.ran, "10.200.0.1", 3, 56), "the machine itself");

    let stats = handle.stats();
    assert!(stats["interfaces"]["n6"]["sent"]["packets"].as_u64().expect("a number") >= 26, "{stats}");
    assert!(stats["interfaces"]["n3"]["sent"]["packets"].as_u64().expect("a number") >= 26, "{stats}");
    let drops = stats["drops"].as_object().expect("an object");
    assert!(drops.keys().all(|reason| reason == "link_local"), "{stats}");
    drop(network.gnb.take());
    network.stop();
    // The interfaces are free, so another UPF can open them.
    let config = started.expect("it has been configured");
    let core = &network.core;
    let again = core.block_on(core.spawn(upf::start(config))).expect("no panic").expect("it starts again");
    core.block_on(async move { again.stop().await });
}

/// Two customers behind one UPF. Each has a gNB, a data network and a UE in namespaces of their own, and both UEs have the
/// same address: network instances keep them apart. N3 on AF_XDP goes with N6 on a TUN device, and N3 on a socket with N6
/// on AF_XDP.
#[test]
fn two_networks_with_one_ue_address_are_served_side_by_side() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let lab = runtime.block_on(Lab::new());
    let namespace = || NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let (ran, dn, ue) = (namespace(), namespace(), namespace());
    runtime.block_on(async {
        lab.connect_to("n3b", &ran, 210).await;
        lab.connect_to("n6b", &dn, 211).await;
        lab.route_ues(&dn, 211).await;
    });
    let config: upf::Config = serde_json::from_str(
        r#"{"pfcp": "127.0.0.7:8805", "smf": ["127.0.0.0/8"], "restoration_s": 0, "interfaces": [
            {"name": "ran", "role": "n3", "network_instance": "ran", "gtpu": "10.200.0.1:2152",
                "backend": "af_xdp", "device": "n3"},
            {"name": "plant-ran", "role": "n3", "network_instance": "plant", "gtpu": "10.210.0.1:2152"},
            {"name": "wan", "role": "n6", "device": "gw0"},
            {"name": "lan", "role": "n6", "network_instance": "plant", "backend": "af_xdp", "device": "n6b"}],
            "dnn": [
            {"name": "internet", "interfaces": ["wan"], "ue_pool": {"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}},
            {"name": "factory", "interfaces": ["lan"], "ue_pool": {"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}}]}"#,
    )
    .expect("valid");
    let core = lab.core.runtime(2).expect("a runtime in the namespace");
    let upf = core.block_on(core.spawn(upf::start(config.clone()))).expect("no panic").expect("it starts");
    let handle = upf.handle();
    let socket = lab.core.enter(|| UdpSocket::bind((SMF, 8805))).expect("entered").expect("bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut smf = Smf { socket, upf: config.pfcp, sequence: 0, started: 100 };
    smf.associate(100);

    let mut attach = |cp_seid, instances: [&str; 2], [upf, gnb]: [&str; 2], (ran, ue): (&NetNs, &NetNs)| {
        let mut request = placed(cp_seid, instances[0], instances[1]);
        let far = request.create_fars[1].forwarding_parameters.as_mut().expect("a tunnel");
        far.outer_header_creation =
            Some(OuterHeaderCreation::gtpu(GNB_TEID, gnb.parse().expect("an address")));
        let (_, teid) = smf.establish_as(request);
        let tun = runtime.block_on(lab.ue_device_in(ue));
        let address = |text: &str| SocketAddr::new(text.parse().expect("an address"), 2152);
        let n3 = ran.enter(|| UdpPort::bind(address(gnb), false)).expect("entered").expect("bound");
        Gnb::start(&tun, &n3, address(upf), teid)
    };
    let gnbs = [
        attach(1, ["ran", "internet"], ["10.200.0.1", "10.200.0.2"], (&lab.ran, &lab.ue)),
        attach(2, ["plant", "plant"], ["10.210.0.1", "10.210.0.2"], (&ran, &ue)),
    ];
    let sent = |interface: &str| {
        let stats = handle.stats();
        stats["interfaces"][interface]["sent"]["packets"].as_u64().expect("a number")
    };
    for (number, (ue, dn)) in [(201, (&lab.ue, &lab.dn)), (211, (&ue, &dn))] {
        for target in [format!("10.{number}.0.2"), format!("fd00:{number}::2")] {
            wait_for(&target, || ping(ue, &target, 1, 56));
            assert!(ping(ue, &target, 10, 56), "{target}");
        }
        let before = ["ran", "plant-ran"].map(&sent);
        assert!(ping(dn, "10.45.0.2", 5, 56), "the other way round, from {number}");
        let after = ["ran", "plant-ran"].map(&sent);
        let [ran, plant] = [after[0] - before[0], after[1] - before[1]];
        let (own, other) = if number == 201 { (ran, plant) } else { (plant, ran) };
        // A system may send a packet of its own now and then, such as a late answer.
        assert!(own >= 5 && other < 5, "to the own UE only: {own}, {other}");
    }
    let stats = handle.stats();
    for interface in ["ran", "plant-ran", "wan", "lan"] {
        assert!(sent(interface) >= 20, "{interface}: {stats}");
    }
    let drops = stats["drops"].as_object().expect("an object");
    assert!(drops.keys().all(|reason| reason == "link_local"), "{stats}");
    drop(gnbs);
    core.block_on(upf.stop());
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
    foreign.gtpu = Some("192.0.2.1:2152".parse().expect("an address"));
    assert!(start(foreign).expect_err("not ours").to_string().contains("192.0.2.1"));
    let mut nowhere = config("gw0");
    nowhere.gtpu = Some(SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 2152));
    assert!(start(nowhere).expect_err("no address").to_string().contains("that peers reach"));
    // The failed starts left nothing that prevents a start.
    let upf = start(config("gw0")).expect("it starts");
    core.block_on(upf.stop());
    drop(runtime);
}
