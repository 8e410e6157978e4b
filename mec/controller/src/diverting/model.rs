//! What is diverted: requests, diversions, and what makes one valid.
//!
//! A diversion's [`id`](Diversion::id) says what it is about (anchor, user, application or peer), not where it goes: another request
//! of the same id replaces it. So a repeated request changes nothing, and a request with another base station is a handover.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::config::{Access, Anchor, BaseStation, Config};
use crate::switch::Dialect;

/// Most tunnels of one user.
const MAX_TUNNELS: usize = 16;
/// Longest text that says who has confirmed the state.
const MAX_TEXT: usize = 128;

/// One of a user's GTP-U tunnels; two where the new anchor gave other TEIDs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    /// TEID towards the anchor that the user is diverted from.
    pub uplink: u32,
    /// TEID towards the base station.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downlink: Option<u32>,
    /// TEID towards the new anchor, if it gave another one (SEL-4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_uplink: Option<u32>,
    /// TEID that the new anchor sends to the base station, if it is another one (SEL-5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_downlink: Option<u32>,
    /// Packets that the anchors put into this tunnel, if it is one of a dedicated bearer: the token of a move in order is such a packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Flow>,
    /// QoS flow in which the token goes, of 5G; without it 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qfi: Option<u8>,
}

/// An application of a user: packets to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// IP protocol: 6, 17, or another one, which then has no port.
    pub protocol: u8,
    /// The server.
    pub server: IpAddr,
    /// Its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// An address of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// The address; see [`Diversion::ue`].
    pub ue: IpAddr,
    /// The one at the new anchor, if it gave another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_address: Option<IpAddr>,
}

/// A request: divert these packets from one anchor to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Diversion {
    /// The user's address; none: everything of the anchor at this base station. Of IPv6 it stands for the user's prefix of 64 bits,
    /// unless the target gave another address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ue: Option<IpAddr>,
    /// The user's tunnels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tunnels: Vec<Tunnel>,
    /// Only this application of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<Flow>,
    /// Only what the user exchanges with this other user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// The anchor that serves the user now.
    pub from: String,
    /// The anchor that is to serve it.
    pub to: String,
    /// The base station that serves the user.
    pub base_station: String,
    /// The user's address at the new anchor, if it gave another one (SEL-4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_address: Option<IpAddr>,
    /// The other address of a user with IPv4 and IPv6, in the same tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<Address>,
    /// Who has confirmed that the new anchor has this user's state (DIV-3).
    pub confirmed_by: String,
}

/// Why a request cannot be done, for those who asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A name that is not in the configuration.
    #[error("there is no {what} `{name}`; there are: {known}")]
    Unknown {
        /// Anchor, base station.
        what: &'static str,
        /// The name.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// Members that contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// The switch cannot do it.
    #[error("{switch} cannot do it: {why}")]
    Impossible {
        /// The switch.
        switch: String,
        /// Why, and what to do.
        why: String,
    },
    /// Not now.
    #[error("{0}")]
    NotYet(String),
    /// Another diversion is in the way.
    #[error("{0}")]
    InTheWay(String),
    /// Too many.
    #[error("there are {0} diversions, which is the most (key `diverting.max_diversions`)")]
    Full(usize),
    /// Too many to be prepared.
    #[error(
        "{0} are too many to be prepared: divert them without, or prepare them in parts that are diverted one by one"
    )]
    TooLarge(usize),
    /// A switch has refused the rules.
    #[error("{0}")]
    Switch(#[from] crate::switch::CommitError),
    /// The state file cannot be written.
    #[error("nothing was changed: {0}")]
    State(String),
    /// The application does not run.
    #[error("the diverting application does not run: POST /v1/applications/diverting/start")]
    Stopped,
}

impl Diversion {
    /// What names it: it says what is diverted.
    pub fn id(&self) -> String {
        let Some(ue) = self.ue else { return Self::id_of_all(&self.from, &self.base_station) };
        match (self.application, self.peer) {
            (Some(Flow { protocol, server, port }), _) => {
                let port = port.map(|port| format!("~{port}")).unwrap_or_default();
                format!("{}~{ue}~{protocol}~{server}{port}", self.from)
            }
            (None, Some(peer)) => format!("{}~{ue}~with~{peer}", self.from),
            (None, None) => Self::id_of_user(&self.from, ue),
        }
    }

    /// The id of the diversion of a whole user.
    pub fn id_of_user(from: &str, ue: IpAddr) -> String {
        format!("{from}~{ue}")
    }

    /// The id of the diversion of everything of an anchor at a base station.
    pub fn id_of_all(from: &str, base_station: &str) -> String {
        format!("{from}~all~{base_station}")
    }

    /// The user's addresses; none if everything is diverted.
    pub fn addresses(&self) -> impl Iterator<Item = Address> + use<> {
        let first = self.ue.map(|ue| Address { ue, target_address: self.target_address });
        first.into_iter().chain(self.second)
    }

    /// The same diversion with this address as the first one, if it is the user's.
    pub fn of_address(&self, ue: IpAddr) -> Option<Diversion> {
        let first = self.addresses().find(|address| address.ue == ue)?;
        let second = self.addresses().find(|address| address.ue != ue);
        let Address { ue, target_address } = first;
        Some(Diversion { ue: Some(ue), target_address, second, ..self.clone() })
    }

    /// Whether the new anchor gave another address.
    pub fn is_translated(&self) -> bool {
        self.addresses().any(|address| address.target_address.is_some())
    }

    /// Whether inner or outer headers are rewritten beyond the anchor's address.
    pub fn is_selective(&self) -> bool {
        let is_other = |tunnel: &Tunnel| tunnel.target_uplink.is_some() || tunnel.target_downlink.is_some();
        self.is_translated() || self.tunnels.iter().any(is_other)
    }

    /// Checks everything that does not depend on the state of anchors and switches.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, config: &Config) -> Result<(), Refusal> {
        let contradiction = |text: &str| Err(Refusal::Contradiction(text.to_owned()));
        let (from, to) = (anchor(config, &self.from)?, anchor(config, &self.to)?);
        let station = base_station(config, &self.base_station)?;
        if from.name == to.name {
            return contradiction("`from` and `to` are the same anchor");
        }
        if from.address.is_ipv4() != to.address.is_ipv4()
            || from.address.is_ipv4() != station.address.is_ipv4()
        {
            return contradiction("the anchors and the base station have addresses of different IP versions");
        }
        if self.confirmed_by.trim().is_empty() || self.confirmed_by.len() > MAX_TEXT {
            return contradiction(
                "`confirmed_by` says in at most 128 octets who has confirmed the state at the target",
            );
        }
        if self.tunnels.len() > MAX_TUNNELS {
            return contradiction("a user has at most 16 tunnels");
        }
        let mut uplinks: Vec<u32> = self.tunnels.iter().map(|tunnel| tunnel.uplink).collect();
        uplinks.sort_unstable();
        if uplinks.windows(2).any(|pair| pair[0] == pair[1]) || uplinks.first() == Some(&0) {
            return contradiction("each tunnel has a TEID of its own, which is not 0");
        }
        if self.tunnels.iter().any(|tunnel| tunnel.qfi.is_some_and(|qfi| qfi == 0 || qfi > 63)) {
            return contradiction("`qfi` is from 1 to 63");
        }
        let Some(ue) = self.ue else {
            let is_bare = self.tunnels.is_empty() && self.application.is_none() && self.peer.is_none();
            return if is_bare && self.target_address.is_none() && self.second.is_none() {
                Ok(())
            } else {
                contradiction(
                    "without `ue` everything is diverted; then there is no tunnel, application, peer or address",
                )
            };
        };
        let is_odd = |ue: IpAddr| ue.is_unspecified() || ue.is_multicast() || ue.is_loopback();
        if self.addresses().any(|address| is_odd(address.ue)) {
            return contradiction("`ue` is not a user's address");
        }
        if let Some(second) = self.second {
            if second.ue.is_ipv4() == ue.is_ipv4() {
                return contradiction("`second` is the user's address of the other IP version");
            }
            if self.application.is_some() || self.peer.is_some() {
                return contradiction(
                    "`second` is for whole users: an application or a pair has one IP version",
                );
            }
        }
        let is_of_user = |server: IpAddr| self.addresses().any(|own| own.ue.is_ipv4() == server.is_ipv4());
        let mut filters = self.tunnels.iter().filter_map(|tunnel| tunnel.filter);
        if filters.any(|filter| !is_of_user(filter.server) || filter.protocol != 17) {
            return contradiction(
                "`filter` of a tunnel has the user's IP version and protocol 17, as a token is a datagram",
            );
        }
        if self.application.is_some() && self.peer.is_some() {
            return contradiction("either `application` or `peer`");
        }
        if let Some(flow) = self.application {
            if flow.server.is_ipv4() != ue.is_ipv4() {
                return contradiction("`server` and `ue` have different IP versions");
            }
            if flow.port.is_some() && ![6, 17].contains(&flow.protocol) {
                return contradiction("only the protocols 6 and 17 have ports");
            }
        }
        if self.peer.is_some_and(|peer| peer.is_ipv4() != ue.is_ipv4() || peer == ue) {
            return contradiction("`peer` is another user, with the same IP version");
        }
        let is_other_version = |Address { ue, target_address }: Address| {
            target_address.is_some_and(|address| address.is_ipv4() != ue.is_ipv4())
        };
        if self.addresses().any(is_other_version) {
            return contradiction("`target_address` and `ue` have different IP versions");
        }
        let no_downlink =
            self.tunnels.is_empty() || self.tunnels.iter().any(|tunnel| tunnel.downlink.is_none());
        if (self.is_selective() || station.checks_peer) && no_downlink {
            return contradiction(
                "`tunnels` with `downlink` are needed: downlink packets are rewritten where the target gave another address or \
                 TEID, or the base station checks its peer",
            );
        }
        if self.is_selective() && (self.application.is_some() || self.peer.is_some()) {
            return contradiction(
                "only whole users can be moved to an anchor that gave them another address or TEID",
            );
        }
        Ok(())
    }

    /// Whether a switch can do it.
    ///
    /// # Errors
    /// What it cannot do, and what to do instead.
    pub fn check_switch(&self, config: &Config, dialect: Dialect) -> Result<(), Refusal> {
        let station = base_station(config, &self.base_station)?;
        if dialect == Dialect::Native {
            return Ok(());
        }
        let impossible = |why: String| Err(Refusal::Impossible { switch: station.switch.clone(), why });
        if let (Access::FiveG, Some(_)) = (station.access, self.ue) {
            if self.application.is_some() || self.peer.is_some() {
                return impossible(
                    "Open vSwitch does not see inner headers behind GTP-U extension headers, so of a 5G user it can only divert \
                     everything"
                        .into(),
                );
            }
            if self.tunnels.is_empty() {
                return impossible("Open vSwitch tells 5G users apart by TEID only: give `tunnels`".into());
            }
        }
        if self.is_translated() {
            return impossible(
                "Open vSwitch sees few inner addresses (those behind no GTP-U extension header, with a time to live of 64 to 79), \
                 and would lose all other packets of this user: have the target assign the same address"
                    .into(),
            );
        }
        if !config.anchors.iter().all(|anchor| anchor.address.is_ipv4()) {
            return impossible("Open vSwitch is driven with IPv4 outside only".into());
        }
        let local = config.switch(&station.switch).map(|switch| &switch.local);
        let needed = [&self.from, &self.to, &self.base_station];
        match needed.into_iter().find(|name| !local.is_some_and(|local| local.contains_key(*name))) {
            Some(name) => impossible(format!(
                "Open vSwitch needs a LOCAL address that stands for `{name}` (key `local`)"
            )),
            None => Ok(()),
        }
    }
}

/// The anchor of a name.
pub(crate) fn anchor<'a>(config: &'a Config, name: &str) -> Result<&'a Anchor, Refusal> {
    config.anchor(name).ok_or_else(|| Refusal::Unknown {
        what: "anchor",
        name: name.chars().take(64).collect(),
        known: config.anchors.iter().map(|anchor| anchor.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

/// The base station of a name.
pub(crate) fn base_station<'a>(config: &'a Config, name: &str) -> Result<&'a BaseStation, Refusal> {
    config.base_station(name).ok_or_else(|| Refusal::Unknown {
        what: "base station",
        name: name.chars().take(64).collect(),
        known: config
            .base_stations
            .iter()
            .map(|station| station.name.as_str())
            .collect::<Vec<_>>()
            .join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::example;
    use serde_json::{Value, json};

    fn read(value: Value) -> Diversion {
        serde_json::from_value(value).unwrap()
    }

    fn request(more: Value) -> Diversion {
        let mut all = json!({"ue": "10.45.0.2", "from": "gw1", "to": "gw2", "base_station": "enb1", "confirmed_by": "test"});
        for (key, value) in more.as_object().unwrap() {
            all[key] = value.clone();
        }
        read(all)
    }

    #[test]
    fn what_is_wrong_is_said() {
        let config = example();
        request(json!({})).check(&config).unwrap();
        for (more, expected) in [
            (json!({"from": "gw9"}), "there is no anchor `gw9`; there are: gw1, gw2, gw3"),
            (json!({"base_station": "x"}), "there is no base station `x`"),
            (json!({"to": "gw1"}), "same anchor"),
            (json!({"ue": "224.0.0.1"}), "not a user's address"),
            (json!({"confirmed_by": " "}), "confirmed_by"),
            (json!({"tunnels": [{"uplink": 1}, {"uplink": 1}]}), "TEID of its own"),
            (json!({"tunnels": [{"uplink": 0}]}), "not 0"),
            (json!({"target_address": "10.46.0.2"}), "`downlink` are needed"),
            (json!({"tunnels": [{"uplink": 1, "target_uplink": 2}]}), "`downlink` are needed"),
            (json!({"peer": "10.45.0.2"}), "`peer` is another user"),
            (json!({"application": {"protocol": 1, "server": "1.1.1.1", "port": 2}}), "have ports"),
            (json!({"application": {"protocol": 6, "server": "::1"}}), "IP versions"),
            (json!({"ue": null, "peer": "10.45.0.3"}), "without `ue` everything"),
            (json!({"ue": null, "second": {"ue": "fd00::1"}}), "without `ue` everything"),
            (json!({"second": {"ue": "10.45.0.3"}}), "the other IP version"),
            (json!({"second": {"ue": "ff02::1"}}), "not a user's address"),
            (json!({"second": {"ue": "fd00::1", "target_address": "10.1.1.1"}}), "IP versions"),
            (json!({"second": {"ue": "fd00::1", "target_address": "fd01::1"}}), "`downlink` are needed"),
            (json!({"second": {"ue": "fd00::1"}, "peer": "10.45.0.3"}), "whole users"),
        ] {
            let said = request(more).check(&config).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }

    /// The list of defects in the requirements: what Open vSwitch cannot do is refused with its reason.
    #[test]
    fn open_vswitch_refuses_what_it_cannot_do() {
        let config = example();
        let check = |more: Value| request(more).check_switch(&config, Dialect::OpenVswitch);
        check(json!({})).unwrap();
        let said = |more| check(more).unwrap_err().to_string();
        let flow = json!({"protocol": 17, "server": "1.1.1.1"});
        assert!(said(json!({"base_station": "gnb1", "application": flow})).contains("extension headers"));
        assert!(said(json!({"base_station": "gnb1"})).contains("by TEID only"));
        assert!(said(json!({"to": "gw3"})).contains("stands for `gw3`"));
        request(json!({"base_station": "gnb1", "application": flow}))
            .check_switch(&config, Dialect::Native)
            .unwrap();
    }

    #[test]
    fn ids_say_what_is_diverted() {
        assert_eq!(request(json!({})).id(), "gw1~10.45.0.2");
        assert_eq!(request(json!({"peer": "10.45.0.3"})).id(), "gw1~10.45.0.2~with~10.45.0.3");
        let flow = json!({"protocol": 17, "server": "1.1.1.1", "port": 53});
        assert_eq!(request(json!({"application": flow})).id(), "gw1~10.45.0.2~17~1.1.1.1~53");
        assert_eq!(request(json!({"ue": null})).id(), "gw1~all~enb1");
        assert_eq!(request(json!({"to": "gw3", "base_station": "enb2"})).id(), request(json!({})).id());
    }
}
