//! Configuration of the orchestrator: its addresses, the edge hosts, and how long steps may take.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use net::time::Duration;
use serde::Deserialize;

/// The section `mec: orchestrator:` of `godwit.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the REST API is served. It has no access control, so it should be a loopback address.
    pub rest: SocketAddr,
    /// The controller's REST API: `http://ADDRESS:PORT`.
    #[serde(deserialize_with = "url")]
    pub controller: SocketAddr,
    /// The file that holds moves and users over a restart.
    pub state: PathBuf,
    /// Whether users follow their base station to the edge host next to it, if a move does not say otherwise.
    pub follow: bool,
    /// The edge hosts.
    pub hosts: Vec<Host>,
    /// How long steps may take.
    pub times: Times,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rest: SocketAddr::from(([127, 0, 0, 1], 8182)),
            controller: SocketAddr::from(([127, 0, 0, 1], 8181)),
            state: PathBuf::from("/var/lib/godwit/mec-moves"),
            follow: false,
            hosts: Vec::new(),
            times: Times::default(),
        }
    }
}

/// An edge host, which has one anchor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name in the API.
    pub name: String,
    /// How its anchor is started.
    #[serde(default)]
    pub driver: Driver,
    /// The controller's name of its anchor.
    pub anchor: String,
    /// The anchor's configuration: `godwit run -c FILE`.
    #[serde(default)]
    pub configuration: Option<PathBuf>,
    /// The anchor's network functions: `--nf spgw,upf`.
    #[serde(default)]
    pub nfs: Vec<String>,
    /// The agent's configuration: `godwit mec agent run -c FILE`; without it the anchor's.
    #[serde(default)]
    pub agent_configuration: Option<PathBuf>,
    /// Where the agent beside the anchor listens.
    pub agent: SocketAddr,
    /// Most users with state there.
    #[serde(default = "capacity")]
    pub capacity: usize,
    /// Base stations that are next to this host.
    #[serde(default)]
    pub base_stations: Vec<IpAddr>,
    /// Seconds without users after which the anchor is stopped; 0: never.
    #[serde(default)]
    pub retire_after_s: u64,
}

fn capacity() -> usize {
    10_000
}

/// How an anchor is started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// Others start and stop it.
    #[default]
    External,
    /// As processes of this machine in a network namespace: a name in `/run/netns`, or a path.
    Namespace(String),
}

/// How long steps may take, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Times {
    /// For one answer of the controller.
    pub call_ms: u64,
    /// Until a started anchor answers.
    pub start_ms: u64,
    /// Until the users' state is at the target.
    pub replicate_ms: u64,
    /// Until the users are diverted.
    pub divert_ms: u64,
    /// Until state that nobody needs is removed; what is left then is tried again at each look.
    pub tidy_ms: u64,
    /// From one look at users, base stations and anchors to the next.
    pub look_ms: u64,
    /// From a failed call to the next one; it doubles up to ten times this.
    pub retry_ms: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            call_ms: 10_000,
            start_ms: 30_000,
            replicate_ms: 30_000,
            divert_ms: 15_000,
            tidy_ms: 10_000,
            look_ms: 1000,
            retry_ms: 200,
        }
    }
}

impl Times {
    /// For one answer of the controller.
    pub fn call(&self) -> Duration {
        Duration::from_millis(self.call_ms)
    }
}

fn url<'de, D: serde::Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    let address = text.strip_prefix("http://").unwrap_or(&text).trim_end_matches('/');
    address.parse().map_err(|_| {
        serde::de::Error::custom(format!("`{text}` is no address such as http://127.0.0.1:8181"))
    })
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

impl Config {
    /// The host of a name.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// The host of an anchor.
    pub fn host_of_anchor(&self, anchor: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.anchor == anchor)
    }

    /// The host next to a base station.
    pub fn host_of_base_station(&self, address: IpAddr) -> Option<&Host> {
        self.hosts.iter().find(|host| host.base_stations.contains(&address))
    }

    /// Checks rules that the types cannot express.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), BadConfig> {
        let bad = |path: String, message: String| Err(BadConfig { path, message });
        let times = &self.times;
        let all = [
            ("call_ms", times.call_ms),
            ("start_ms", times.start_ms),
            ("replicate_ms", times.replicate_ms),
            ("divert_ms", times.divert_ms),
            ("tidy_ms", times.tidy_ms),
            ("look_ms", times.look_ms),
            ("retry_ms", times.retry_ms),
        ];
        if let Some((key, _)) = all.iter().find(|(_, value)| *value == 0) {
            return bad(format!("times.{key}"), "is at least 1".to_owned());
        }
        let (mut names, mut anchors, mut stations) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for host in &self.hosts {
            let path = |key: &str| format!("hosts.{}.{key}", host.name);
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if host.name.is_empty() || !host.name.chars().all(fits) || host.name == crate::ORIGIN {
                let message = format!(
                    "`{}` is no name: letters, digits, `-`, `_` and `.` are, but not `origin`",
                    host.name
                );
                return bad("hosts".to_owned(), message);
            }
            if !names.insert(&host.name) {
                return bad("hosts".to_owned(), format!("the name `{}` is there twice", host.name));
            }
            if !anchors.insert(&host.anchor) {
                return bad(path("anchor"), format!("`{}` is another host's anchor, too", host.anchor));
            }
            if host.capacity == 0 {
                return bad(path("capacity"), "is at least 1".to_owned());
            }
            if let Some(twice) = host.base_stations.iter().find(|station| !stations.insert(**station)) {
                return bad(path("base_stations"), format!("{twice} is next to another host, too"));
            }
            if let Driver::Namespace(namespace) = &host.driver {
                if host.configuration.is_none() || host.nfs.is_empty() {
                    let message = "is missing: the driver starts `godwit run -c configuration --nf nfs`";
                    let key = if host.nfs.is_empty() { "nfs" } else { "configuration" };
                    return bad(path(key), message.to_owned());
                }
                if namespace.is_empty() {
                    return bad(path("driver"), "the namespace has a name, or a path".to_owned());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosts_are_checked() {
        let read = |change: fn(&mut serde_json::Value)| {
            let mut value = json!({"controller": "http://127.0.0.1:8181/", "hosts": [
                {"name": "edge1", "anchor": "gw2", "agent": "10.9.0.3:8806", "base_stations": ["10.0.0.1"],
                 "driver": {"namespace": "edge1"}, "configuration": "/etc/edge1.yaml", "nfs": ["spgw", "upf"]},
                {"name": "edge2", "anchor": "gw3", "agent": "10.9.0.4:8806", "driver": "external"},
            ]});
            change(&mut value);
            let config: Config = serde_json::from_value(value).map_err(|error| error.to_string())?;
            config.check().map(|()| config).map_err(|bad| bad.to_string())
        };
        let config = read(|_| {}).unwrap();
        assert_eq!(config.controller, "127.0.0.1:8181".parse().unwrap());
        assert_eq!(config.host_of_base_station("10.0.0.1".parse().unwrap()).unwrap().name, "edge1");
        let refused = |change, expected: &str| {
            let said = read(change).unwrap_err();
            assert!(said.contains(expected), "{said}");
        };
        refused(|it| it["hosts"][1]["name"] = json!("edge1"), "there twice");
        refused(|it| it["hosts"][1]["name"] = json!("origin"), "is no name");
        refused(|it| it["hosts"][1]["anchor"] = json!("gw2"), "hosts.edge2.anchor");
        refused(|it| it["hosts"][1]["base_stations"] = json!(["10.0.0.1"]), "hosts.edge2.base_stations");
        refused(|it| it["hosts"][0]["nfs"] = json!([]), "hosts.edge1.nfs: is missing");
        refused(|it| it["hosts"][0]["capacity"] = json!(0), "capacity: is at least 1");
        refused(|it| it["times"] = json!({"look_ms": 0}), "times.look_ms");
        refused(|it| it["controller"] = json!("edge:8181"), "is no address such as");
    }
}
