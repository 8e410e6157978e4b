//! Configuration of a gateway: the section `spgw:`, `sgw:` or `pgw:` of `godwit.yaml`.

use std::net::{IpAddr, SocketAddr};

use ipam::UePool;
use n4::rules::{AddressFamily, NetworkInstance};
use serde::{Deserialize, Serialize};
use types::Dnn;

/// What a gateway is. Its section of the configuration has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// S-GW, and P-GW for the APNs of its configuration.
    Spgw,
    /// S-GW alone.
    Sgw,
    /// P-GW alone.
    Pgw,
}

impl Node {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Spgw, Self::Sgw, Self::Pgw];

    /// `spgw`, `sgw` or `pgw`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spgw => "spgw",
            Self::Sgw => "sgw",
            Self::Pgw => "pgw",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|node| node.name() == name)
    }

    /// Whether MMEs can use it.
    pub fn is_sgw(self) -> bool {
        self != Self::Pgw
    }

    /// Whether it has APNs.
    pub fn is_pgw(self) -> bool {
        self != Self::Sgw
    }
}

/// Configuration of a gateway.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// S11 and S5/S8: our GTP-C address and port (2123 by convention). Neighbours learn the address from our F-TEIDs.
    pub gtpc: SocketAddr,
    /// Sxa and Sxb: our PFCP address and port (8805 by convention). The address is also our node ID.
    pub pfcp: SocketAddr,
    /// The address to which UPFs forward packets that the gateway answers itself (router solicitations); port 2152 by
    /// convention.
    pub gtpu: SocketAddr,
    /// PFCP addresses of the user planes, the preferred one first.
    pub upf: Vec<SocketAddr>,
    /// How APNs are encoded in the IE Network Instance.
    #[serde(default)]
    pub network_instance: NetworkInstance,
    /// What addresses UPFs give tunnels on S1-U.
    #[serde(default)]
    pub s1u: AddressFamily,
    /// The same on S5/S8-U.
    #[serde(default)]
    pub s5u: AddressFamily,
    /// Access point names of a P-GW.
    #[serde(default)]
    pub apn: Vec<ApnConfig>,
    /// Database in which contexts of UEs are kept, `postgresql:…` or `sqlite:PATH`: a gateway with the same database can stand in for this
    /// one. Procedures answer when the database has the context. UEs with dedicated bearers are left out.
    #[serde(default)]
    pub contexts: Option<String>,
    /// TCP address at which other gateways hand over contexts of UEs, in the operator's own network: they are not authenticated.
    #[serde(default)]
    pub transfer: Option<SocketAddr>,
    /// Timers.
    #[serde(default)]
    pub timers: Timers,
    /// Limits of memory that peers can make the gateway use.
    #[serde(default)]
    pub limits: Limits,
}

/// One access point name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ApnConfig {
    /// Network identifier (TS 23.003 §9.1); the operator identifier that an MME adds is not compared.
    pub name: Dnn,
    /// Address pools for UEs; they determine which PDN types are offered.
    pub ue_pool: UePool,
    /// For how long an address is not given to another UE after its PDN connection has ended, seconds.
    #[serde(default)]
    pub quarantine_s: u32,
    /// Highest bit rate, kbit/s, that a UE gets guaranteed by asking for it; 0: none.
    #[serde(default)]
    pub ue_gbr_kbps: u64,
    /// DNS servers for UEs.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// Link MTU for UEs, octets.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
}

/// Timers.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timers {
    /// T3-RESPONSE of GTPv2-C: milliseconds until a request is repeated (TS 29.274 §7.6).
    pub gtpc_t3_ms: u64,
    /// N3-REQUESTS of GTPv2-C: most transmissions of a request.
    pub gtpc_n3: u8,
    /// Milliseconds between Echo Requests to each MME.
    pub gtpc_echo_ms: u64,
    /// Milliseconds after which a PDN connection ends for which the MME has named no eNB yet.
    pub unclaimed_ms: u64,
    /// Milliseconds after a Downlink Data Notification without Modify Bearer Request until the next packet has the UE paged again.
    pub paging_guard_ms: u64,
    /// Milliseconds for which the packets of a UE that does not answer paging are dropped.
    pub unreachable_ms: u64,
    /// T1 of PFCP: milliseconds until a request is repeated.
    pub pfcp_t1_ms: u64,
    /// N1 of PFCP: most transmissions of a request.
    pub pfcp_n1: u8,
    /// Milliseconds between PFCP heartbeats.
    pub pfcp_heartbeat_ms: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            gtpc_t3_ms: 3_000,
            gtpc_n3: 3,
            gtpc_echo_ms: 60_000,
            unclaimed_ms: 120_000,
            paging_guard_ms: 10_000,
            unreachable_ms: 30_000,
            pfcp_t1_ms: 1_000,
            pfcp_n1: 3,
            pfcp_heartbeat_ms: 10_000,
        }
    }
}

/// Limits.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most PDN connections; more are refused with cause 73, no resources available.
    pub sessions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions: 100_000 }
    }
}

fn default_mtu() -> u16 {
    1400
}

/// An invalid configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct ConfigError {
    /// The key in the section.
    pub key: String,
    /// What is wrong and what to do.
    pub reason: String,
}

impl Config {
    /// Checks rules that serde cannot check.
    ///
    /// # Errors
    /// The first key with an invalid value.
    pub fn validate(&self, node: Node) -> Result<(), ConfigError> {
        let fail = |key: String, reason: &str| Err(ConfigError { key, reason: reason.to_owned() });
        if self.upf.is_empty() {
            return fail("upf".into(), "name at least one UPF, such as [127.0.0.7:8805]");
        }
        match (node.is_pgw(), self.apn.is_empty()) {
            (true, true) => return fail("apn".into(), "name at least one access point name"),
            (false, false) => return fail("apn".into(), "an S-GW has none: they are the P-GW's"),
            _ => {}
        }
        for (key, address) in [("gtpc", self.gtpc), ("pfcp", self.pfcp), ("gtpu", self.gtpu)] {
            if address.ip().is_unspecified() {
                return fail(key.into(), "give the address peers reach us at: we tell it to them");
            }
        }
        if self.contexts.as_ref().is_some_and(|url| url.contains("password")) {
            return fail(
                "contexts".into(),
                "no password here: have the database know this user by its socket",
            );
        }
        if self.timers.unclaimed_ms < 100 {
            return fail("timers.unclaimed_ms".into(), "an MME needs some time to name an eNB: at least 100");
        }
        for (index, apn) in self.apn.iter().enumerate() {
            let key = |name: &str| format!("apn[{index}].{name}");
            if self.apn.iter().take(index).any(|other| other.name == apn.name) {
                return fail(key("name"), "this access point name is listed twice");
            }
            if let Err((name, reason)) = apn.ue_pool.validate() {
                return fail(key(name), reason);
            }
            if apn.mtu < 576 || apn.ue_pool.ipv6.is_some() && apn.mtu < 1280 {
                return fail(key("mtu"), "IPv4 needs at least 576, IPv6 1280");
            }
        }
        Ok(())
    }
}
