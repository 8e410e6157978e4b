//! Configuration of the UDM.

use std::net::SocketAddr;
use std::path::PathBuf;

use nas::ProtectionScheme;
use nas::suci::PrivateKey;
use net::private_file::{self, PrivateFileError};
use serde::Deserialize;
use types::{Invalid, Key};

/// The `udm` section of `godwit.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of its service-based interface.
    #[serde(default = "default_sbi")]
    pub sbi: SocketAddr,
    /// Home network private keys that de-conceal SUCIs. Without any, only the null scheme works.
    #[serde(default)]
    pub suci_keys: Vec<SuciKey>,
}

/// A home network private key (TS 33.501 annex C).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuciKey {
    /// Home network public key identifier, 1…254, as provisioned in the USIMs.
    pub id: u8,
    /// The profile, which determines the curve.
    pub profile: Profile,
    /// File of the private key: mode 0600, 64 hexadecimal digits. The configuration contains no secret.
    pub private_key_file: PathBuf,
}

/// Why a home network private key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SuciKeyError {
    /// The file is missing, or other users may read it.
    #[error("udm.suci_keys: {0}")]
    File(#[from] PrivateFileError),
    /// The file does not contain a key of this curve.
    #[error("udm.suci_keys: {} is no private key of profile {profile:?}: 64 hexadecimal digits are expected", path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
        /// The expected curve.
        profile: Profile,
    },
}

impl SuciKey {
    /// Reads the private key.
    ///
    /// # Errors
    /// The file is missing, other users may read it, or it contains no key of this curve.
    pub fn load(&self) -> Result<PrivateKey, SuciKeyError> {
        let text = private_file::read(&self.private_key_file)?;
        let key: Result<Key<32>, _> = text.trim().parse();
        let private = key.and_then(|key| PrivateKey::new(self.profile.into(), &key));
        private
            .map_err(|_| SuciKeyError::NotAKey { path: self.private_key_file.clone(), profile: self.profile })
    }
}

/// Curve of a home network key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Profile {
    /// Curve25519.
    A,
    /// secp256r1.
    B,
}

impl From<Profile> for ProtectionScheme {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::A => Self::ProfileA,
            Profile::B => Self::ProfileB,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { sbi: default_sbi(), suci_keys: Vec::new() }
    }
}

impl Config {
    /// Checks rules that the types cannot express.
    ///
    /// # Errors
    /// A key identifier out of range or given twice.
    pub fn validate(&self) -> Result<(), Invalid> {
        for (i, key) in self.suci_keys.iter().enumerate() {
            let twice = self.suci_keys.iter().take(i).any(|other| other.id == key.id);
            if twice || !(1..=254).contains(&key.id) {
                return Err(Invalid::new("udm.suci_keys.id", key.id, "1 to 254, each once"));
            }
        }
        Ok(())
    }
}

fn default_sbi() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 12], 7777))
}
