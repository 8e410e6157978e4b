//! The anchors of a lab with edge sites, as tests see them: by which one packets come, and those that the orchestrator has started.

use std::collections::BTreeMap;
use std::path::Path;

use lab::Lab;
use net::netns::NetNs;
use net::process::{Command, holder};
use net::time::Duration;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// Has the kernel count what comes from anchors: by link-layer source, and by the flow's UDP port. At the data network that is uplink,
/// and in tunnels at the base station downlink, where a PDU Session Container may be before the packet (5G).
const COME: &str = "table netdev come {
    set up { type ether_addr . inet_service; size 1024; flags dynamic; counter; }
    set down { typeof ether saddr . @th,304,16; size 1024; flags dynamic; counter; }
    chain ingress {
        type filter hook ingress device INTERFACE priority 0;
        udp dport PORTS update @up { ether saddr . udp dport counter }
        udp dport 2152 @th,128,4 4 @th,304,16 PORTS update @down { ether saddr . @th,304,16 counter }
        udp dport 2152 @th,128,4 6 @th,464,16 PORTS update @down { ether saddr . @th,464,16 counter }
        udp dport 2152 @th,64,8 0x34 @th,192,4 4 @th,368,16 PORTS update @down { ether saddr . @th,368,16 counter }
    }
}
";
/// Ports of the tests' flows at UEs and at the data network, which differ.
const PORTS: &str = "5000-6999";

/// Counts by which anchor packets of flows come.
pub(crate) struct Come {
    /// The anchors' link-layer addresses: those of the central one first.
    macs: Vec<Vec<String>>,
    /// Where packets come: uplink, and downlink.
    places: [NetNs; 2],
}

impl Come {
    /// Counts from now on, of the anchors in these namespaces, what comes at these interfaces: where uplink packets come, and downlink ones.
    pub(crate) async fn start(lab: &Lab, at: [(&NetNs, &str); 2], anchors: &[&NetNs]) -> Come {
        for (space, interface) in at {
            let rules = lab.folder().join("come.nft");
            std::fs::write(&rules, COME.replace("INTERFACE", interface).replace("PORTS", PORTS)).unwrap();
            let counted =
                Command::new("nft").arg("-f").arg(&rules).namespace(space).output(PATIENCE).await.unwrap();
            assert!(counted.status.success(), "{}", String::from_utf8_lossy(&counted.stderr));
        }
        let mut macs = Vec::new();
        for space in anchors {
            let mut own = Vec::new();
            for interface in ["n2", "n6"] {
                let list = Command::new("ip").args(["-j", "link", "show", interface]).namespace(space);
                let list = list.output(PATIENCE).await.unwrap();
                // The S-GW that is apart has no side of SGi.
                let Ok(said) = serde_json::from_slice::<Value>(&list.stdout) else { continue };
                own.push(said[0]["address"].as_str().unwrap().to_owned());
            }
            macs.push(own);
        }
        Come { macs, places: at.map(|(space, _)| space.clone()) }
    }

    /// Packets to each port that have come from each anchor so far.
    pub(crate) async fn counts(&self) -> Vec<BTreeMap<u16, u64>> {
        let mut counts = vec![BTreeMap::new(); self.macs.len()];
        let [uplink, downlink] = &self.places;
        // In tunnels, and otherwise.
        for (space, set) in [(uplink, "up"), (uplink, "down"), (downlink, "down")] {
            let list =
                Command::new("nft").args(["-j", "list", "set", "netdev", "come", set]).namespace(space);
            let said: Value = serde_json::from_slice(&list.output(PATIENCE).await.unwrap().stdout).unwrap();
            let elements =
                said["nftables"].as_array().unwrap().iter().filter_map(|one| one["set"]["elem"].as_array());
            for element in elements.flatten() {
                let [mac, port] = [0, 1].map(|at| &element["elem"]["val"]["concat"][at]);
                let anchor = self.macs.iter().position(|macs| macs.iter().any(|own| *mac == **own));
                let (Some(anchor), Some(port)) = (anchor, port.as_u64()) else { continue };
                let packets = element["elem"]["counter"]["packets"].as_u64().unwrap();
                counts[anchor].insert(port as u16, packets);
            }
        }
        counts
    }
}

/// Changes the configuration of a part of the edge.
pub(crate) fn edit(lab: &Lab, part: &str, change: impl FnOnce(&mut Value)) {
    edit_all(lab, part, |all| change(&mut all["mec"][part]));
}

/// Changes all of a file of configuration.
pub(crate) fn edit_all(lab: &Lab, name: &str, change: impl FnOnce(&mut Value)) {
    let file = lab.folder().join(format!("{name}.yaml"));
    let mut configuration: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    change(&mut configuration);
    std::fs::write(file, configuration.to_string()).unwrap();
}

/// Kills what the orchestrator has started at a host: `agent` or `anchor`. It outlives the orchestrator.
pub(crate) fn kill_at(folder: &Path, host: &str, part: &str) {
    let lock = folder.join(format!("run-orchestrator/{host}-{part}.lock"));
    if let Ok(Some(id)) = holder(&lock) {
        let id = nix::unistd::Pid::from_raw(id.cast_signed());
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL);
    }
}
