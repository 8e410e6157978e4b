//! Configuration of the controller: its addresses, the switches, anchors and base stations of its edge.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use openflow::MacAddr;
use serde::{Deserialize, Serialize};

/// The section `mec: controller:` of `godwit.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where switches connect.
    pub openflow: SocketAddr,
    /// Where the REST API is served. It has no access control, so it should be a loopback address.
    pub rest: SocketAddr,
    /// The file that holds the wanted diversions over a restart.
    pub state: PathBuf,
    /// Seconds of silence after which a switch is asked for an echo; after three of them it is disconnected.
    pub echo_s: u64,
    /// Seconds between comparisons of all rules with what switches have; 0: only when they connect.
    pub audit_s: u64,
    /// Most connections of switches at once.
    pub max_switches: usize,
    /// Applications that start with the controller.
    pub applications: Vec<crate::rule::App>,
    /// The switches. Others are refused.
    pub switches: Vec<Switch>,
    /// Anchors: gateways or UPFs between which users are moved.
    pub anchors: Vec<Anchor>,
    /// Base stations whose users are moved.
    pub base_stations: Vec<BaseStation>,
    /// The forwarding application.
    pub forwarding: Forwarding,
    /// The diverting application.
    pub diverting: Diverting,
    /// The capture of control messages.
    pub capture: Capture,
    /// Sessions that captured messages make, and their copies.
    pub replication: Replication,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            openflow: SocketAddr::from(([127, 0, 0, 1], openflow::PORT)),
            rest: SocketAddr::from(([127, 0, 0, 1], 8181)),
            state: PathBuf::from("/var/lib/godwit/mec-diversions"),
            echo_s: 5,
            audit_s: 60,
            max_switches: 256,
            applications: crate::rule::App::ALL.to_vec(),
            switches: Vec::new(),
            anchors: Vec::new(),
            base_stations: Vec::new(),
            forwarding: Forwarding::default(),
            diverting: Diverting::default(),
            capture: Capture::default(),
            replication: Replication::default(),
        }
    }
}

/// Where a switch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On S1-U or N3, between base stations and anchors (TOP-1).
    Access,
    /// On SGi or N6, behind the anchors.
    Sgi,
    /// Before the MME or SMF (TOP-2).
    Control,
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its name in the API.
    pub name: String,
    /// Its datapath identifier.
    pub datapath_id: u64,
    /// Where it stands.
    pub place: Place,
    /// The address that the controller uses for its own questions there: free, and in the network of the anchors.
    #[serde(default)]
    pub probe: Option<IpAddr>,
    /// Name of the GTP port.
    #[serde(default = "gtp")]
    pub gtp_port: String,
    /// Open vSwitch only: addresses of its LOCAL port, each of which stands for an anchor or a base station, by name.
    #[serde(default)]
    pub local: BTreeMap<String, IpAddr>,
    /// Before the MME or SMF: the port that is not LOCAL.
    #[serde(default)]
    pub external: Option<String>,
    /// At the access: control messages pass here, and are copied. For sites without a switch before the MME or SMF.
    #[serde(default)]
    pub capture: bool,
}

fn gtp() -> String {
    "gtp".to_owned()
}

/// An anchor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// Its name in the API.
    pub name: String,
    /// Its address on S1-U or N3.
    pub address: IpAddr,
    /// Its link-layer address there, or that of the router before it; without it the controller asks for it.
    #[serde(default, deserialize_with = "mac")]
    pub mac: Option<MacAddr>,
    /// Its side of SGi or N6.
    #[serde(default)]
    pub sgi: Option<Sgi>,
    /// Its address on S11 or N4, if it is another one.
    #[serde(default)]
    pub control: Option<IpAddr>,
    /// 4G: UEs that move there keep their IPv4 addresses. Copies ask for them, and its pool has them and gives them to nobody else.
    /// Without it their addresses are translated where they differ.
    #[serde(default)]
    pub keeps_addresses: bool,
}

/// An anchor's side of SGi or N6.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sgi {
    /// The switch there.
    pub switch: String,
    /// The anchor's link-layer address there.
    #[serde(deserialize_with = "required_mac")]
    pub mac: MacAddr,
    /// An address of the anchor there. With it forwarding finds the anchor's port before the first user moves to it.
    #[serde(default)]
    pub address: Option<IpAddr>,
}

/// Which generation of user plane a base station has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub enum Access {
    /// GTP-U without extension headers.
    #[serde(rename = "4g")]
    FourG,
    /// GTP-U with the PDU session container.
    #[serde(rename = "5g")]
    FiveG,
}

/// A base station.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseStation {
    /// Its name in the API.
    pub name: String,
    /// Its address on S1-U or N3.
    pub address: IpAddr,
    /// Its link-layer address there, or that of the router before it; without it the controller asks for it.
    #[serde(default, deserialize_with = "mac")]
    pub mac: Option<MacAddr>,
    /// The switch nearest to it.
    pub switch: String,
    /// Its generation.
    pub access: Access,
    /// Whether it drops packets that do not come from the anchor which it knows (SW-11).
    #[serde(default)]
    pub checks_peer: bool,
}

/// The forwarding application.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Forwarding {
    /// Seconds without packets after which a learned rule is removed.
    pub idle_timeout_s: u16,
    /// Most addresses that are learned per switch.
    pub max_addresses: usize,
    /// Most rules that are learned per switch: one per pair of stations and direction. Packets of further pairs go through the
    /// controller. Rules between anchors and base stations are not counted.
    pub max_rules: usize,
    /// Seconds between questions for anchors and base stations that are not known yet.
    pub discovery_s: u64,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self { idle_timeout_s: 300, max_addresses: 16_384, max_rules: 65_536, discovery_s: 2 }
    }
}

/// The diverting application.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Diverting {
    /// Milliseconds between GTP-U Echo Requests to each anchor.
    pub echo_ms: u64,
    /// Unanswered requests after which an anchor is taken for dead.
    pub echo_misses: u32,
    /// Whether the users of a dead anchor go back to where they were diverted from, if that anchor answers.
    pub restore: bool,
    /// Most diversions.
    pub max_diversions: usize,
    /// How long rules stay after a change for packets that the old anchor has sent: longer than a packet takes to the switch.
    pub old_ways_ms: u64,
    /// Moves in order.
    pub order: Order,
}

/// Moves in order: a token follows the last packet of the old path (docs/adr/0033-packets-wait-for-a-token.md).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Order {
    /// Where tokens go to uplink, and come from downlink: an address that the anchors route to SGi or N6, of IPv4.
    pub token: Ipv4Addr,
    /// The same of IPv6.
    pub token_ipv6: Ipv6Addr,
    /// How long tokens are waited for. The switches' own time (`hold.timeout_ms`) is not shorter.
    pub timeout_ms: u64,
}

impl Default for Order {
    /// Addresses of documentation (RFC 5737, RFC 3849): they have no owner, and are routed as the default route says.
    fn default() -> Self {
        let token_ipv6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        Self { token: Ipv4Addr::new(192, 0, 2, 1), token_ipv6, timeout_ms: 200 }
    }
}

impl Default for Diverting {
    fn default() -> Self {
        Self {
            echo_ms: 1000,
            echo_misses: 3,
            restore: true,
            max_diversions: 100_000,
            old_ways_ms: 1000,
            order: Order::default(),
        }
    }
}

/// How control messages get to the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureMode {
    /// One rule forwards and copies: no added delay (CAP-3).
    Copy,
    /// The controller forwards them (CAP-2).
    ViaController,
}

/// The capture of control messages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Capture {
    /// How they get to the controller.
    pub mode: CaptureMode,
    /// Most octets of memory per anchor, for contents and what is noted of each message; the oldest messages go first.
    pub max_bytes: usize,
    /// Most addresses that are no anchors of the configuration, for which messages are kept.
    pub max_anchors: usize,
}

/// Replication.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Replication {
    /// The database that holds sessions and copies over a restart: `sqlite:PATH` or `postgresql:…`. Without it they are lost then.
    pub records: Option<String>,
    /// Most sessions of an anchor.
    pub max_sessions: usize,
    /// Whether messages are kept as they were, which naïve replication needs: some 400 octets for a session that has just begun, at most 4 kB.
    pub keep_raw: bool,
    /// Most octets of memory for them, of one anchor. Sessions that come when it is full are copied by their records.
    pub max_raw_bytes: usize,
}

impl Default for Replication {
    fn default() -> Self {
        let replication::replicator::Config { max_sessions, keep_raw, max_raw_bytes } = Default::default();
        Self { records: None, max_sessions, keep_raw, max_raw_bytes }
    }
}

impl Default for Capture {
    fn default() -> Self {
        Self { mode: CaptureMode::Copy, max_bytes: 16 << 20, max_anchors: 64 }
    }
}

/// Reads a link-layer address.
pub fn parse_mac(text: &str) -> Option<MacAddr> {
    let octets: Vec<u8> =
        text.split(':').map(|part| u8::from_str_radix(part, 16)).collect::<Result<_, _>>().ok()?;
    octets.try_into().ok().map(MacAddr)
}

fn required_mac<'de, D: serde::Deserializer<'de>>(from: D) -> Result<MacAddr, D::Error> {
    let text = String::deserialize(from)?;
    parse_mac(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no address such as 02:00:00:00:00:01")))
}

fn mac<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<MacAddr>, D::Error> {
    required_mac(from).map(Some)
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct BadConfig {
    /// The key.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

fn bad<T>(path: impl Into<String>, message: impl Into<String>) -> Result<T, BadConfig> {
    Err(BadConfig { path: path.into(), message: message.into() })
}

impl Config {
    /// The switch of a name.
    pub fn switch(&self, name: &str) -> Option<&Switch> {
        self.switches.iter().find(|switch| switch.name == name)
    }

    /// The switch of a datapath identifier.
    pub fn switch_of(&self, datapath_id: u64) -> Option<&Switch> {
        self.switches.iter().find(|switch| switch.datapath_id == datapath_id)
    }

    /// The anchor of a name.
    pub fn anchor(&self, name: &str) -> Option<&Anchor> {
        self.anchors.iter().find(|anchor| anchor.name == name)
    }

    /// The base station of a name.
    pub fn base_station(&self, name: &str) -> Option<&BaseStation> {
        self.base_stations.iter().find(|station| station.name == name)
    }

    /// Checks rules that the types cannot express.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), BadConfig> {
        if self.echo_s == 0 || self.diverting.echo_ms == 0 || self.diverting.echo_misses == 0 {
            return bad("echo_s", "echo_s, diverting.echo_ms and diverting.echo_misses are at least 1");
        }
        if self.forwarding.discovery_s == 0 {
            return bad("forwarding.discovery_s", "is at least 1");
        }
        if self.max_switches == 0 {
            return bad("max_switches", "is at least 1");
        }
        let mut names = BTreeSet::new();
        let all = self.switches.iter().map(|switch| ("switches", &switch.name));
        let all = all.chain(self.anchors.iter().map(|anchor| ("anchors", &anchor.name)));
        for (path, name) in
            all.chain(self.base_stations.iter().map(|station| ("base_stations", &station.name)))
        {
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || !name.chars().all(fits) {
                return bad(path, format!("`{name}` is no name: letters, digits, `-`, `_` and `.` are"));
            }
            if !names.insert(name) {
                return bad(path, format!("the name `{name}` is there twice"));
            }
        }
        let mut datapaths = BTreeSet::new();
        for switch in &self.switches {
            self.check_switch(switch)?;
            if !datapaths.insert(switch.datapath_id) {
                let message = format!("datapath_id {:#x} is there twice", switch.datapath_id);
                return bad(format!("switches.{}", switch.name), message);
            }
        }
        for station in &self.base_stations {
            self.check_place(
                &format!("base_stations.{}.switch", station.name),
                &station.switch,
                Place::Access,
            )?;
        }
        for anchor in &self.anchors {
            if let Some(sgi) = &anchor.sgi {
                self.check_place(&format!("anchors.{}.sgi.switch", anchor.name), &sgi.switch, Place::Sgi)?;
            }
        }
        let mut addresses = BTreeSet::new();
        let all = self.anchors.iter().map(|anchor| anchor.address);
        for address in all.chain(self.base_stations.iter().map(|station| station.address)) {
            if !addresses.insert(address) {
                return bad("anchors", format!("the address {address} is there twice"));
            }
        }
        Ok(())
    }

    fn check_switch(&self, switch: &Switch) -> Result<(), BadConfig> {
        let path = |key: &str| format!("switches.{}.{key}", switch.name);
        if switch.place == Place::Access && switch.probe.is_none() {
            return bad(
                path("probe"),
                "is missing: a free address in the anchors' network, for the controller's questions",
            );
        }
        if switch.place == Place::Control && switch.external.is_none() {
            return bad(path("external"), "is missing: the name of the port that is not LOCAL");
        }
        if switch.capture && switch.place != Place::Access {
            return bad(
                path("capture"),
                "is for switches at the access: one before the MME or SMF always does it",
            );
        }
        let mut addresses = BTreeSet::new();
        for (name, address) in &switch.local {
            if self.anchor(name).is_none() && self.base_station(name).is_none() {
                return bad(path("local"), format!("`{name}` is neither an anchor nor a base station"));
            }
            if !addresses.insert(address) {
                return bad(
                    path("local"),
                    format!("{address} is there twice; each needs an address of its own"),
                );
            }
        }
        Ok(())
    }

    fn check_place(&self, path: &str, name: &str, place: Place) -> Result<(), BadConfig> {
        match self.switch(name) {
            None => bad(path, format!("there is no switch `{name}`")),
            Some(switch) if switch.place != place => {
                bad(path, format!("the switch `{name}` is not of the place this needs ({place:?})"))
            }
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// Two access switches, one on SGi, one before the MME; two anchors, two base stations.
    pub(crate) fn example() -> Config {
        serde_json::from_value(json!({
            "switches": [
                {"name": "edge1", "datapath_id": 1, "place": "access", "probe": "10.0.0.250",
                 "local": {"gw1": "10.0.0.101", "gw2": "10.0.0.102", "enb1": "10.0.0.111", "enb2": "10.0.0.112"}},
                {"name": "edge2", "datapath_id": 2, "place": "access", "probe": "10.0.0.251"},
                {"name": "sgi", "datapath_id": 3, "place": "sgi"},
                {"name": "mme", "datapath_id": 4, "place": "control", "external": "s11"},
            ],
            "anchors": [
                {"name": "gw1", "address": "10.0.0.11", "sgi": {"switch": "sgi", "mac": "02:00:00:00:01:11"}},
                {"name": "gw2", "address": "10.0.0.12", "mac": "02:00:00:00:00:12", "sgi": {"switch": "sgi", "mac": "02:00:00:00:01:12"}},
                {"name": "gw3", "address": "10.0.0.13"},
            ],
            "base_stations": [
                {"name": "enb1", "address": "10.0.0.1", "switch": "edge1", "access": "4g"},
                {"name": "enb2", "address": "10.0.0.2", "switch": "edge2", "access": "4g"},
                {"name": "gnb1", "address": "10.0.0.3", "switch": "edge1", "access": "5g"},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn mistakes_are_named() {
        example().check().unwrap();
        let with = |change: fn(&mut Config)| {
            let mut config = example();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        for (said, expected) in [
            (with(|c| c.switches[0].probe = None), "switches.edge1.probe: is missing"),
            (with(|c| c.switches[1].datapath_id = 1), "datapath_id 0x1 is there twice"),
            (with(|c| c.base_stations[0].switch = "sgi".into()), "base_stations.enb1.switch"),
            (with(|c| c.base_stations[0].switch = "x".into()), "there is no switch `x`"),
            (with(|c| c.anchors[0].name = "enb1".into()), "there twice"),
            (with(|c| c.anchors[0].address = "10.0.0.12".parse().unwrap()), "10.0.0.12 is there twice"),
            (with(|c| c.anchors[0].name = "a/b".into()), "is no name"),
            (with(|c| c.switches[3].external = None), "switches.mme.external"),
        ] {
            assert!(said.contains(expected), "{said}");
        }
        assert_eq!(parse_mac("02:00:00:00:00:ff"), Some(MacAddr([2, 0, 0, 0, 0, 255])));
        assert_eq!(parse_mac("02:00"), None);
    }
}
