//! The section `mec: switch:` of `godwit.yaml`.

use std::net::{IpAddr, SocketAddr};

use openflow::PortNo;
use pktio::interface::WorkersConfig;
use serde::{Deserialize, Serialize};

use crate::hold;
use crate::offload::can_be_anchor;
use crate::pipeline::{HoldPorts, Limits};

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Its number, by which controllers know it: not 0.
    pub datapath_id: u64,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// OpenFlow controllers to which it connects.
    #[serde(default)]
    pub controllers: Vec<SocketAddr>,
    /// Where it listens for OpenFlow connections, for `ovs-ofctl` and the like. OpenFlow has no protection here: loopback only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Its ports.
    pub ports: Vec<PortConfig>,
    /// A TAP device, which is made: the switch's host, port LOCAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// Number of the port behind which are the insides of GTP-U tunnels; without one there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtp_port: Option<u32>,
    /// The ports for packets that wait; without them none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Flow tables.
    #[serde(default = "default_tables")]
    pub tables: u8,
    /// Entries of each table.
    #[serde(default = "default_entries")]
    pub entries: usize,
    /// Packets to the controllers in a second.
    #[serde(default = "default_packet_in_per_s")]
    pub packet_in_per_s: u32,
    /// The threads that forward packets.
    #[serde(default)]
    pub workers: WorkersConfig,
    /// Known tunnels in XDP, in front of these threads; without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<Xdp>,
}

/// Known tunnels in XDP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Xdp {
    /// Most tunnels, apart from those of `own`.
    #[serde(default = "default_tunnels")]
    pub tunnels: u32,
    /// Anchors whose TEIDs are an index of a table instead of being looked up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<OwnAnchor>,
}

/// Packets that wait for a token: the ports, and what bounds the queues.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hold {
    /// Number of the port that takes packets into a queue, and by which they come back.
    pub port: u32,
    /// Number of the port that swallows a packet and opens its queue.
    pub release: u32,
    /// Most packets of a queue.
    pub packets: usize,
    /// Most octets of all queues.
    pub octets: usize,
    /// Most queues.
    pub queues: usize,
    /// Time after its first packet at which a queue opens without a token.
    pub timeout_ms: u64,
}

impl Default for Hold {
    fn default() -> Self {
        let hold::Limits { packets, octets, queues, timeout_ns } = hold::Limits::default();
        Hold { port: 101, release: 102, packets, octets, queues, timeout_ms: timeout_ns / 1_000_000 }
    }
}

/// An anchor that assigns TEIDs from a known range, densely.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OwnAnchor {
    /// Its address in outer headers.
    pub address: IpAddr,
    /// The lowest TEID.
    #[serde(default)]
    pub first_teid: u32,
    /// Their number.
    pub teids: u32,
}

/// A port: an Ethernet interface, used by AF_XDP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Its number in OpenFlow.
    pub number: u32,
    /// The interface. All of its frames are the switch's.
    pub interface: String,
    /// Receive without interrupts, for workers that have a core to themselves.
    #[serde(default)]
    pub busy_poll: bool,
}

/// Most ports: an output's number has 8 bits inside, and LOCAL is one.
const MAX_PORTS: usize = 255;
/// Most entries of a table.
const MAX_ENTRIES: usize = 4 << 20;
/// Most tunnels in XDP, and most TEIDs of own anchors: what the programs can address.
const MAX_TUNNELS: u32 = 1 << 20;
/// Most own anchors.
const MAX_OWN: usize = 1024;

/// Most packets of a queue, octets of all of them, queues, and milliseconds that packets may wait.
const MAX_HELD: usize = 1 << 20;
const MAX_HELD_OCTETS: usize = 4 << 30;
const MAX_QUEUES: usize = 1 << 20;
const MAX_HOLD_MS: u64 = 10_000;

fn default_tables() -> u8 {
    Limits::default().tables
}

fn default_entries() -> usize {
    Limits::default().entries
}

fn default_tunnels() -> u32 {
    1 << 16
}

fn default_packet_in_per_s() -> u32 {
    5000
}

impl Config {
    /// Checks values against each other.
    ///
    /// # Errors
    /// What is wrong: the key, and a sentence for the operator.
    pub fn validate(&self) -> Result<(), (String, String)> {
        let wrong = |key: &str, what: String| Err((key.to_owned(), what));
        if self.datapath_id == 0 {
            return wrong("datapath_id", "0 is no switch's number".to_owned());
        }
        if let Some(listen) = self.listen.filter(|listen| !listen.ip().is_loopback()) {
            return wrong(
                "listen",
                format!("{listen} is not on loopback, and OpenFlow has no protection here"),
            );
        }
        if self.ports.is_empty() || self.ports.len() > MAX_PORTS {
            return wrong(
                "ports",
                format!("from 1 to {MAX_PORTS} ports are possible, not {}", self.ports.len()),
            );
        }
        let numbers = self.ports.iter().map(|port| port.number);
        if let Some(gtp) = self.gtp_port
            && (gtp == 0 || gtp > PortNo::MAX.0 || numbers.clone().any(|number| number == gtp))
        {
            return wrong("gtp_port", format!("{gtp} is a number of `ports`, or cannot be a port's number"));
        }
        if let Some(hold) = &self.hold {
            let taken: Vec<u32> = numbers.clone().chain(self.gtp_port).collect();
            hold.validate(&taken)?;
        }
        let mut seen = std::collections::BTreeSet::new();
        for number in numbers {
            if number == 0 || number > PortNo::MAX.0 {
                return wrong("ports", format!("{number} cannot be a port's number"));
            }
            if !seen.insert(number) {
                return wrong("ports", format!("{number} is the number of two ports"));
            }
        }
        let mut names = std::collections::BTreeSet::new();
        if let Some(twice) = self.ports.iter().find(|port| !names.insert(&port.interface)) {
            return wrong("ports", format!("{} is there twice", twice.interface));
        }
        if !(1..=254).contains(&self.tables) {
            return wrong("tables", "from 1 to 254 tables are possible".to_owned());
        }
        if !(1..=MAX_ENTRIES).contains(&self.entries) {
            return wrong("entries", format!("from 1 to {MAX_ENTRIES} entries are possible"));
        }
        self.xdp.as_ref().map_or(Ok(()), Xdp::validate)?;
        self.workers.check().or_else(|what| wrong("workers", what))
    }
}

impl Hold {
    fn validate(&self, taken: &[u32]) -> Result<(), (String, String)> {
        let wrong = |key: &str, what: String| Err((format!("hold.{key}"), what));
        for (key, number) in [("port", self.port), ("release", self.release)] {
            if number == 0 || number > PortNo::MAX.0 || taken.contains(&number) {
                return wrong(
                    key,
                    format!("{number} is the number of another port, or cannot be a port's number"),
                );
            }
        }
        if self.port == self.release {
            return wrong("release", format!("{} is the number of `hold.port`", self.release));
        }
        let bounds = [
            ("packets", self.packets as u64, MAX_HELD as u64),
            ("octets", self.octets as u64, MAX_HELD_OCTETS as u64),
            ("queues", self.queues as u64, MAX_QUEUES as u64),
            ("timeout_ms", self.timeout_ms, MAX_HOLD_MS),
        ];
        match bounds.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            Some((key, _, most)) => wrong(key, format!("from 1 to {most} are possible")),
            None => Ok(()),
        }
    }

    pub(crate) fn ports(&self) -> HoldPorts {
        HoldPorts { hold: self.port, release: self.release }
    }

    pub(crate) fn limits(&self) -> hold::Limits {
        let timeout_ns = self.timeout_ms * 1_000_000;
        hold::Limits { packets: self.packets, octets: self.octets, queues: self.queues, timeout_ns }
    }
}

impl Xdp {
    fn validate(&self) -> Result<(), (String, String)> {
        let wrong = |key: &str, what: String| Err((format!("xdp.{key}"), what));
        if !(1..=MAX_TUNNELS).contains(&self.tunnels) {
            return wrong("tunnels", format!("from 1 to {MAX_TUNNELS} tunnels are possible"));
        }
        let mut seen = std::collections::BTreeSet::new();
        for own in &self.own {
            if !can_be_anchor(own.address) || !seen.insert(own.address) {
                return wrong(
                    "own",
                    format!("{} cannot be an anchor's address, or is there twice", own.address),
                );
            }
            if own.teids == 0 || own.first_teid.checked_add(own.teids - 1).is_none() {
                return wrong(
                    "own",
                    format!(
                        "{}: there are no {} TEIDs from {:#x} on",
                        own.address, own.teids, own.first_teid
                    ),
                );
            }
        }
        let teids: u64 = self.own.iter().map(|own| u64::from(own.teids)).sum();
        if teids > MAX_TUNNELS.into() || self.own.len() > MAX_OWN {
            return wrong(
                "own",
                format!("up to {MAX_OWN} anchors with {MAX_TUNNELS} TEIDs in all are possible, not {teids}"),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        serde_json::from_str(
            r#"{"datapath_id": 1, "gtp_port": 100, "ports": [{"number": 1, "interface": "a"}, {"number": 2, "interface": "b"}]}"#,
        )
        .unwrap()
    }

    #[test]
    fn defaults_are_sound_and_mistakes_are_named() {
        assert_eq!(config().validate(), Ok(()));
        let key = |change: fn(&mut Config)| {
            let mut config = config();
            change(&mut config);
            config.validate().unwrap_err().0
        };
        assert_eq!(key(|config| config.datapath_id = 0), "datapath_id");
        assert_eq!(key(|config| config.listen = Some("192.0.2.1:6653".parse().unwrap())), "listen");
        assert_eq!(key(|config| config.ports.clear()), "ports");
        assert_eq!(key(|config| config.ports[0].number = 2), "ports");
        assert_eq!(key(|config| config.gtp_port = Some(1)), "gtp_port");
        assert_eq!(key(|config| config.ports[0].number = 0xffff_fffe), "ports");
        assert_eq!(key(|config| config.ports[1].interface = "a".to_owned()), "ports");
        assert_eq!(key(|config| config.tables = 255), "tables");
        assert_eq!(key(|config| config.entries = 0), "entries");
        assert_eq!(key(|config| config.workers.count = Some(0)), "workers");
        let hold = |change: fn(&mut Hold)| {
            let mut hold = Hold::default();
            change(&mut hold);
            Config { hold: Some(hold), ..config() }.validate().map_err(|(key, _)| key)
        };
        assert_eq!(hold(|_| ()), Ok(()));
        assert_eq!(hold(|hold| hold.port = 100), Err("hold.port".to_owned()));
        assert_eq!(hold(|hold| hold.release = 101), Err("hold.release".to_owned()));
        assert_eq!(hold(|hold| hold.timeout_ms = 10_001), Err("hold.timeout_ms".to_owned()));
    }

    #[test]
    fn xdp_has_defaults_and_bounds() {
        let with = |xdp: &str| -> Config {
            let xdp: Xdp = serde_json::from_str(xdp).unwrap();
            Config { xdp: Some(xdp), ..config() }
        };
        assert_eq!(with("{}").validate(), Ok(()));
        assert_eq!(with("{}").xdp.unwrap().tunnels, 65_536);
        let own = |own: &str| with(&format!(r#"{{"own": [{own}]}}"#)).validate();
        let gw = r#"{"address": "10.0.0.11", "first_teid": 1, "teids": 1048576}"#;
        assert_eq!(own(gw), Ok(()));
        for wrong in [
            r#"{"address": "10.0.0.11", "teids": 0}"#,
            r#"{"address": "10.0.0.11", "teids": 1048577}"#,
            r#"{"address": "10.0.0.11", "first_teid": 4294967295, "teids": 2}"#,
            r#"{"address": "::ffff:10.0.0.11", "teids": 1}"#,
            r#"{"address": "10.0.0.11", "teids": 1}, {"address": "10.0.0.11", "teids": 1}"#,
        ] {
            assert_eq!(own(wrong).unwrap_err().0, "xdp.own", "{wrong}");
        }
        assert_eq!(with(r#"{"tunnels": 0}"#).validate().unwrap_err().0, "xdp.tunnels");
        assert!(serde_json::from_str::<Xdp>(r#"{"tunnel": 1}"#).is_err());
    }
}
