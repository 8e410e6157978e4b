//! Configuration of the AUSF.

use std::net::SocketAddr;

use serde::Deserialize;

/// The `ausf` section of `godwit.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of its service-based interface.
    #[serde(default = "default_sbi")]
    pub sbi: SocketAddr,
}

impl Default for Config {
    fn default() -> Self {
        Self { sbi: default_sbi() }
    }
}

fn default_sbi() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 11], 7777))
}
