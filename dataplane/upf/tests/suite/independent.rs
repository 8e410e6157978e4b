//! The UPF driven by others: scapy is SMF, gNB and data network, pycrate reads everything a second time. What is sent
//! and received is compared octet by octet (`independent.py`); this file gives both sides their namespaces.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::ethernet_config;
use net::link::Links;
use net::netns::NetNs;

/// The interpreter with scapy and pycrate, if installed.
fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    if python.exists() {
        return Some(python);
    }
    assert!(std::env::var_os("CI").is_none(), "scapy is missing: scripts/setup.sh test");
    eprintln!("skipped: scapy is missing; scripts/setup.sh test installs it");
    None
}

/// Joins `device` and a link to the peer in a bridge, as operators do. The kernel sends no packets of its own on them.
fn bridged(core: &NetNs, peer: &NetNs, device: &str) {
    let quiet = |namespace: &NetNs, devices: &str| {
        let write = || std::fs::write(format!("/proc/sys/net/ipv6/conf/{devices}/disable_ipv6"), "1");
        namespace.enter(write).unwrap().unwrap();
    };
    let ip = |namespace: &NetNs, arguments: &str| {
        let run = || Command::new("ip").args(arguments.split(' ')).status();
        assert!(namespace.enter(run).unwrap().unwrap().success(), "ip {arguments}");
    };
    for namespace in [core, peer] {
        quiet(namespace, "default");
    }
    // It exists already, and would repeat that it belongs to multicast groups.
    quiet(core, device);
    ip(core, "link add br0 type bridge mcast_snooping 0");
    ip(core, "link add lan type veth peer name lan-peer");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        Links::in_ns(core).unwrap().move_to("lan-peer", peer).await.unwrap();
    });
    ip(peer, "link set lan-peer name lan");
    ip(peer, "link set lan up");
    for link in ["lan", device] {
        ip(core, &format!("link set {link} master br0"));
    }
    for link in ["br0", "lan"] {
        ip(core, &format!("link set {link} up"));
    }
}

/// Two namespaces, joined by N3 and N6.
async fn lab() -> (NetNs, NetNs) {
    let ns = || NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let (core, peer) = (ns(), ns());
    let (near, far) = (Links::in_ns(&core).unwrap(), Links::in_ns(&peer).unwrap());
    let cidr = |text: String| text.parse().unwrap();
    for (name, prefix) in [("n3", "200"), ("n6", "201")] {
        near.add_veth(name, name, &peer).await.unwrap();
        for (links, host) in [(&near, 1), (&far, 2)] {
            links.up(name).await.unwrap();
            links.add_address(name, cidr(format!("10.{prefix}.0.{host}/24"))).await.unwrap();
            links.add_address(name, cidr(format!("fd00:{prefix}::{host}/64"))).await.unwrap();
        }
    }
    far.add_route(cidr("10.45.0.0/16".into()), Some("10.201.0.1".parse().unwrap()), None).await.unwrap();
    // Behind a UE.
    far.add_route(cidr("10.46.77.0/28".into()), Some("10.201.0.1".parse().unwrap()), None).await.unwrap();
    far.add_route(cidr("fd00:45::/48".into()), Some("fd00:201::1".parse().unwrap()), None).await.unwrap();
    (core, peer)
}

/// Runs stories of `independent.py` against a UPF of their own.
fn tell(stories: &[&str]) {
    let Some(python) = python() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (core, peer) = runtime.block_on(lab());
    let mut config = ethernet_config("gw0", "tap0");
    (config.pfcp, config.gtpu) =
        ("10.200.0.1:8805".parse().unwrap(), Some("10.200.0.1:2152".parse().unwrap()));
    config.smf = vec!["10.200.0.2/32".parse().unwrap()];
    // The MTU of N3: the device takes packets that are too long for tunnels.
    config.dnn[0].mtu = 1500;
    let inside = core.runtime(2).unwrap();
    // Spawned, so that everything happens on threads inside the namespace.
    let upf = inside.block_on(inside.spawn(upf::start(config))).unwrap().unwrap();
    // Operators route the networks behind UEs to the device.
    let framed = "10.46.77.0/28".parse().unwrap();
    let core_links = runtime.block_on(async { Links::in_ns(&core) }).unwrap();
    runtime.block_on(core_links.add_route(framed, None, Some("gw0"))).unwrap();
    if stories.contains(&"ethernet") {
        bridged(&core, &peer, "tap0");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/independent.py");
    let output = peer.enter(|| Command::new(&python).arg(script).args(stories).output()).unwrap().unwrap();
    let stats = upf.handle().stats();
    inside.block_on(async move { upf.stop().await });
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{stats}");
    // Nothing was malformed on the way, in either direction.
    for reason in ["gtpu_malformed", "gtpu_extension", "ip_malformed", "no_pdr", "tx_error"] {
        assert!(stats["drops"].get(reason).is_none(), "{stats}");
    }
}

/// N4 rules from an independent SMF and packets from an independent gNB (UP-1, UP-2, UP-4).
#[test]
fn an_independent_smf_and_gnb_get_what_they_ask_for() {
    tell(&[
        "forwarding",
        "usage",
        "buffering",
        "notification",
        "threshold",
        "quota",
        "framed",
        "redirect",
        "lengths",
    ]);
}

/// Frames between UEs and a LAN (UP-3).
#[test]
fn an_independent_smf_and_gnb_exchange_frames_with_a_lan() {
    tell(&["ethernet"]);
}
