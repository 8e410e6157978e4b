//! Configuration of the NRF.

use std::{net::SocketAddr, time::Duration};

use serde::Deserialize;
use types::Invalid;

/// The `nrf` section of `godwit.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address of its service-based interface.
    pub sbi: SocketAddr,
    /// Seconds between heartbeats of every NF. An NF that misses two is no longer discovered.
    pub heartbeat_s: u32,
    /// Seconds for which consumers may cache the result of a discovery.
    pub validity_s: u32,
    /// Seconds for which an access token is valid.
    pub token_s: u32,
    /// Most instances, and most subscriptions, at once; more are refused.
    pub max_instances: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sbi: SocketAddr::from(([127, 0, 0, 10], 7777)),
            heartbeat_s: 10,
            validity_s: 30,
            token_s: 3600,
            max_instances: 4096,
        }
    }
}

impl Config {
    /// Checks rules that the types cannot express.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=3600).contains(&self.heartbeat_s) {
            return Err(Invalid::new("heartbeat_s", self.heartbeat_s, "1 to 3600 seconds"));
        }
        if self.validity_s > 86_400 {
            return Err(Invalid::new("validity_s", self.validity_s, "at most 86400 seconds"));
        }
        if !(10..=86_400).contains(&self.token_s) {
            return Err(Invalid::new("token_s", self.token_s, "10 to 86400 seconds"));
        }
        if self.max_instances == 0 {
            return Err(Invalid::new("max_instances", self.max_instances, "at least 1"));
        }
        Ok(())
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_secs(self.heartbeat_s.max(1).into())
    }
}
