//! Interfaces of a running UPF go down and come up, or are deleted and made again. Afterwards the same sessions forward in
//! both directions, and each packet is accounted for. The tests for DPDK are in `dpdk.rs`.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use crate::lab::*;
use crate::support::{UE_V4, bypass};
use net::link::Links;
use net::netns::NetNs;
use pktio::af_xdp::device::Device;
use upf::Config;
use upf::interface::{Backend, InterfaceConfig, Role};

/// Where pings of the UE go: the data network, through N6.
const TARGETS: [&str; 2] = ["10.201.0.2", "fd00:201::2"];

/// Asserts that both IP versions work; a kernel needs a second for a new IPv6 address.
#[track_caller]
fn served(network: &Network, targets: &[&str], when: &str) {
    for target in targets {
        wait_for(&format!("{target} {when}"), || ping(&network.lab.ue, target, 3, 56));
    }
}

/// Asserts that each received packet was counted once, as sent or as dropped.
#[track_caller]
fn conserved(network: &Network) {
    let mut stats = serde_json::Value::Null;
    let deadline = net::time::now_std() + PATIENCE;
    while net::time::now_std() < deadline {
        stats = network.handle.stats();
        let of = |direction: &str| -> u64 {
            let all = stats["interfaces"].as_object().unwrap().values();
            all.map(|interface| interface[direction]["packets"].as_u64().unwrap()).sum()
        };
        let drops: u64 = stats["drops"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        if of("received") == of("sent") + drops {
            return;
        }
        net::time::sleep_thread(Duration::from_millis(5));
    }
    panic!("packets that were received are not those sent and dropped: {stats}");
}

/// Takes each device away under traffic and brings it back.
fn interrupted(
    network: &Network,
    devices: &[&str],
    targets: &[&str],
    away: impl Fn(&Links, &str),
    back: impl Fn(&Links, &str),
) {
    served(network, targets, "at first");
    let links = network.runtime.block_on(async { Links::in_ns(&network.lab.core) }).unwrap();
    for device in devices {
        network.lab.bursts(targets[0]);
        away(&links, device);
        network.lab.bursts(targets[0]);
        back(&links, device);
        served(network, targets, &format!("with {device} again"));
    }
    conserved(network);
}

fn down_and_up(network: &Network, devices: &[&str], targets: &[&str]) {
    let down = |links: &Links, device: &str| network.runtime.block_on(links.down(device)).unwrap();
    let up = |links: &Links, device: &str| network.runtime.block_on(links.up(device)).unwrap();
    interrupted(network, devices, targets, down, up);
}

fn deleted_and_made_again(network: &Network, devices: &[&str], targets: &[&str], make: impl Fn(&str)) {
    let delete = |links: &Links, device: &str| network.runtime.block_on(links.delete(device)).unwrap();
    interrupted(network, devices, targets, delete, |_, device| make(device));
}

fn af_xdp(config: &mut Config) {
    bypass(config, Backend::AfXdp, ["n3", "n6"]);
}

#[test]
fn interfaces_of_the_kernel_go_down_and_come_up() {
    down_and_up(&Network::new(|_| ()), &["n3", "gw0"], &TARGETS);
}

/// The kernel does not see packets of AF_XDP sockets: the ports themselves pass them to the capture.
#[test]
fn captures_show_what_passes_af_xdp() {
    let folder = std::env::temp_dir().join(format!("godwit-af-xdp-capture-{}", std::process::id()));
    let mut network = Network::captured(&folder, af_xdp);
    served(&network, &TARGETS, "at first");
    // Neighbours are known by now: packets do not take the slow path through the kernel any more.
    assert!(ping(&network.lab.ue, TARGETS[0], 5, 56));
    network.stop();
    let summary = network.capture.take().unwrap().stop();
    // IPv4 echoes and their answers, by source and destination.
    let (ue, server) = (UE_V4.octets(), [10, 201, 0, 2]);
    for point in ["n3", "n6"] {
        let file = std::fs::read(folder.join(format!("{point}.pcapng"))).unwrap();
        for addresses in [[ue, server].concat(), [server, ue].concat()] {
            let shown = file.windows(addresses.len()).filter(|octets| *octets == addresses).count();
            assert!(shown >= 5, "{point}: {shown} from and to {addresses:?}, {summary:?}");
        }
    }
    assert_eq!(summary.lost, 0);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A packet that a link without carrier refuses counts as dropped, not as sent.
#[test]
fn packets_that_an_af_xdp_interface_refuses_count_once() {
    let network = Network::new(af_xdp);
    served(&network, &TARGETS, "at first");
    // A neighbour that the kernel does not forget with the carrier.
    let ip = |namespace: &NetNs, arguments: &[&str]| {
        let output = namespace.enter(|| Command::new("ip").args(arguments).output()).unwrap().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let link = ip(&network.lab.ran, &["-oneline", "link", "show", "n3"]);
    let mac = link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap();
    let neighbour = ["neighbour", "replace", N3_GNB, "lladdr", mac, "dev", "n3", "nud", "permanent"];
    ip(&network.lab.core, &neighbour);
    let refused = || network.handle.stats()["drops"]["tx_queue_full"].as_u64().unwrap_or(0);
    let before = refused();
    network.runtime.block_on(async { Links::in_ns(&network.lab.ran).unwrap().down("n3").await }).unwrap();
    network.lab.bursts(TARGETS[0]);
    wait_for("packets refused", || refused() > before);
    conserved(&network);
}

/// N3 on AF_XDP, with N6 on another device by AF_XDP or on a TUN device: every octet arrives, and no packet is copied
/// between the interfaces of a worker.
#[test]
fn packets_pass_af_xdp_without_a_copy() {
    let n6_on_tun = |config: &mut Config| {
        af_xdp(config);
        let mut n6 = InterfaceConfig::kernel("n6", Role::N6);
        n6.link.device = Some("gw0".to_owned());
        config.interfaces[1] = n6;
    };
    for configure in [af_xdp as fn(&mut Config), n6_on_tun] {
        let network = Network::new(configure);
        // Or the UPF would see packets without checksums.
        network.lab.dn.enter(|| Device::find("n6").unwrap().send_whole_frames().unwrap()).unwrap();
        served(&network, &TARGETS[..1], "at first");
        let bind = |namespace: &NetNs, address: &str| {
            namespace.enter(|| UdpSocket::bind((address, 5000))).unwrap().unwrap()
        };
        let ue = bind(&network.lab.ue, &UE_V4.to_string());
        let server = bind(&network.lab.dn, TARGETS[0]);
        let before = ["n3", "n6"].map(|interface| sent_and_copied(&network.handle, interface));
        compare(&ue, &server, 1372);
        compare(&server, &ue, 1372);
        for (interface, before) in ["n3", "n6"].into_iter().zip(before) {
            let (sent, copied) = sent_and_copied(&network.handle, interface);
            assert!(sent >= before.0 + 800, "{interface}: {sent} sent, before {before:?}");
            assert!(copied <= OWN, "{interface}: {copied} copied");
        }
    }
}

#[test]
fn interfaces_by_af_xdp_go_down_and_come_up() {
    down_and_up(&Network::new(af_xdp), &["n3", "n6"], &TARGETS);
}

/// N6 of Ethernet sessions; the machine itself is one of the stations.
#[test]
fn a_tap_device_goes_down_and_comes_up() {
    let network = Network::ethernet();
    let links = network.runtime.block_on(async { Links::in_ns(&network.lab.core) }).unwrap();
    network.runtime.block_on(links.add_address("tap0", cidr("10.46.0.1/24"))).unwrap();
    down_and_up(&network, &["n3", "tap0"], &["10.46.0.1"]);
}

#[test]
fn interfaces_of_the_kernel_may_be_deleted_and_made_again() {
    let network = Network::new(|_| ());
    deleted_and_made_again(&network, &["n3", "gw0"], &TARGETS, |device| {
        // The UPF makes its own devices.
        if device == "n3" {
            network.runtime.block_on(network.lab.connect(device));
        }
    });
}

#[test]
fn interfaces_by_af_xdp_may_be_deleted_and_made_again() {
    let network = Network::new(af_xdp);
    deleted_and_made_again(&network, &["n3", "n6", "n3"], &TARGETS, |device| {
        network.runtime.block_on(network.lab.connect(device));
    });
}

#[test]
fn a_tap_device_may_be_deleted_and_is_made_again() {
    let network = Network::ethernet();
    let links = network.runtime.block_on(async { Links::in_ns(&network.lab.core) }).unwrap();
    let station = || network.runtime.block_on(links.add_address("tap0", cidr("10.46.0.1/24"))).is_ok();
    // A new device has a new address, of which the UE is told when it comes up.
    net::sysctl::set_in(&network.lab.core, "net.ipv4.conf.all.arp_notify", "1").unwrap();
    assert!(station());
    deleted_and_made_again(&network, &["tap0"], &["10.46.0.1"], |device| {
        wait_for(device, station);
        network.runtime.block_on(links.down(device)).unwrap();
        network.runtime.block_on(links.up(device)).unwrap();
    });
}
