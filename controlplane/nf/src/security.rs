//! Protection of the service-based interface: the `sbi` section of `godwit.yaml`.

use std::path::PathBuf;

pub use sbi::TlsMode;
use serde::Deserialize;

/// Which calls need an access token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokens {
    /// Every call.
    #[default]
    Required,
    /// Every call except notifications, for which other vendors' NFs may have no tokens.
    ExceptCallbacks,
    /// None: anybody who can reach an NF may read and change everything, including subscribers' keys.
    Off,
}

/// The `sbi` section of `godwit.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which calls need an access token.
    pub tokens: Tokens,
    /// Where TLS is spoken.
    pub tls: TlsMode,
    /// Folder of keys and secrets; see [`crate::trust`].
    pub trust: PathBuf,
}

impl Config {
    /// Whether anything in the folder of keys and secrets is used.
    pub fn uses_trust(&self) -> bool {
        self.tokens != Tokens::Off || self.tls != TlsMode::Off
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tokens: Tokens::default(),
            tls: TlsMode::default(),
            trust: PathBuf::from("/var/lib/godwit/trust"),
        }
    }
}
