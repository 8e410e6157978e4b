//! Configuration of the SMF: the `smf:` section of `godwit.yaml` plus the shared `slices`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use ipam::{Prefix, UePool};
pub use n4::rules::{AddressFamily, NetworkInstance};
use serde::{Deserialize, Serialize};
use types::{Dnn, SNssai};

/// Configuration of one SMF.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address and port of the service-based interface.
    pub sbi: SocketAddr,
    /// N4: our PFCP address and port (8805 by convention). The address is also our node ID.
    pub pfcp: SocketAddr,
    /// N4-u: the address to which UPFs forward packets that the SMF answers itself (router
    /// solicitations); port 2152 by convention.
    pub gtpu: SocketAddr,
    /// PFCP addresses of the UPFs, the preferred one first.
    pub upf: Vec<SocketAddr>,
    /// How data networks are encoded in the IE Network Instance.
    #[serde(default)]
    pub network_instance: NetworkInstance,
    /// What addresses UPFs give tunnels on N3. Those on N4-u are of the family of `gtpu`.
    #[serde(default)]
    pub n3: AddressFamily,
    /// Data networks.
    pub dnn: Vec<DnnConfig>,
    /// Slices in the NRF profile; sessions are served on any slice of a subscription.
    #[serde(default = "default_slices")]
    pub slices: Vec<SNssai>,
    /// Timers.
    #[serde(default)]
    pub timers: Timers,
    /// Limits of memory that peers can make the SMF use.
    #[serde(default)]
    pub limits: Limits,
}

/// One data network.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DnnConfig {
    /// Data network name.
    pub name: Dnn,
    /// Address pools for UEs; they determine which session types are offered.
    pub ue_pool: UePool,
    /// How long a released address is given to no other UE, seconds, so that packets which servers still send
    /// to the former UE reach nobody else. With 0 it is given again after those that were released before it.
    /// The pools take 4 octets more for each address.
    #[serde(default)]
    pub quarantine_s: u32,
    /// DNS servers for UEs.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// Link MTU for UEs, octets.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Seconds between two reports of a UPF about the octets of a session, which are listed with it. With 0 UPFs measure nothing.
    #[serde(default)]
    pub usage_period_s: u32,
    /// Protection of the user plane on the radio (TS 23.501 §5.10.3); `None`: the gNB decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_plane_security: Option<UserPlaneSecurity>,
}

/// How packets are protected between UE and gNB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UserPlaneSecurity {
    /// Integrity protection.
    pub integrity: Need,
    /// Ciphering.
    pub confidentiality: Need,
}

/// Whether a protection is needed. A gNB that cannot do what is required refuses the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Always.
    Required,
    /// If the gNB can.
    Preferred,
    /// Never.
    NotNeeded,
}

/// Timers, milliseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timers {
    /// T3592: waiting for PDU SESSION RELEASE COMPLETE (TS 24.501 table 10.3.2).
    pub t3592_ms: u64,
    /// T3591: waiting for PDU SESSION MODIFICATION COMPLETE (TS 24.501 table 10.3.2).
    pub t3591_ms: u64,
    /// How long the SMF waits for the gNB to answer a set-up of resources, for a new session or for the
    /// activation of a user plane. Must be longer than the AMF pages.
    pub establishment_guard_ms: u64,
    /// Pause after AMF or gNB refused to activate a user plane; then downlink data start the next attempt.
    pub activation_retry_ms: u64,
    /// How long the downlink packets of a UE that does not answer paging are dropped, unless the AMF hears of it
    /// before. After that the next packet has the UE paged again.
    pub unreachable_ms: u64,
    /// T1 of PFCP: time until a request is repeated.
    pub pfcp_t1_ms: u64,
    /// N1 of PFCP: most transmissions of a request.
    pub pfcp_n1: u8,
    /// Time between PFCP heartbeats.
    pub pfcp_heartbeat_ms: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            t3592_ms: 16_000,
            t3591_ms: 16_000,
            establishment_guard_ms: 20_000,
            activation_retry_ms: 5_000,
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
    /// Most SM contexts; more are refused with 5GSM cause #26.
    pub sessions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions: 100_000 }
    }
}

fn default_slices() -> Vec<SNssai> {
    vec![SNssai::from_octets(1, None)]
}

fn default_mtu() -> u16 {
    1400
}

/// An invalid configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct ConfigError {
    /// The key in the section `smf`.
    pub key: String,
    /// What is wrong and what to do.
    pub reason: String,
}

impl Config {
    /// What N4 needs of it.
    pub(crate) fn n4(&self) -> n4::Config {
        n4::Config {
            local: self.pfcp,
            upfs: self.upf.clone(),
            t1: Duration::from_millis(self.timers.pfcp_t1_ms),
            n1: self.timers.pfcp_n1,
            heartbeat_interval: Duration::from_millis(self.timers.pfcp_heartbeat_ms),
        }
    }

    /// Checks rules that serde cannot check.
    ///
    /// # Errors
    /// The first key with an invalid value.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail = |key: String, reason: &str| Err(ConfigError { key, reason: reason.to_owned() });
        if self.upf.is_empty() {
            return fail("upf".into(), "name at least one UPF, such as [127.0.0.7:8805]");
        }
        if self.dnn.is_empty() {
            return fail("dnn".into(), "name at least one data network");
        }
        if self.pfcp.ip().is_unspecified() {
            return fail("pfcp".into(), "give the address UPFs reach us at: it is also our node ID");
        }
        if self.gtpu.ip().is_unspecified() {
            return fail("gtpu".into(), "give the address UPFs reach us at");
        }
        for (index, dnn) in self.dnn.iter().enumerate() {
            let key = |name: &str| format!("dnn[{index}].{name}");
            if self.dnn.iter().take(index).any(|other| other.name == dnn.name) {
                return fail(key("name"), "this data network is listed twice");
            }
            if let Err((name, reason)) = dnn.ue_pool.validate() {
                return fail(key(name), reason);
            }
            if dnn.ue_pool.ipv6.is_some() && dnn.mtu < 1280 {
                return fail(key("mtu"), "IPv6 needs at least 1280");
            }
            if dnn.mtu < 576 {
                return fail(key("mtu"), "IPv4 needs at least 576");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pool: serde_json::Value) -> Config {
        serde_json::from_value(serde_json::json!({
            "sbi": "127.0.0.4:7777", "pfcp": "127.0.0.4:8805", "gtpu": "127.0.0.4:2152",
            "upf": ["127.0.0.7:8805"],
            "dnn": [{"name": "internet", "ue_pool": pool, "dns": ["1.1.1.1"]}],
        }))
        .unwrap()
    }

    #[test]
    fn the_shipped_form_is_valid() {
        let config = config(serde_json::json!({"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}));
        assert_eq!(config.validate(), Ok(()));
        assert_eq!((config.dnn[0].mtu, config.dnn[0].quarantine_s), (1400, 0));
    }

    #[test]
    fn mistakes_name_their_key() {
        let error = config(serde_json::json!({})).validate().unwrap_err();
        assert_eq!(error.key, "dnn[0].ue_pool");
        let error = config(serde_json::json!({"ipv6": "fd00::/64"})).validate().unwrap_err();
        assert_eq!(error.key, "dnn[0].ue_pool.ipv6");
    }
}
