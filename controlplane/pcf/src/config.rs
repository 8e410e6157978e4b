//! Configuration of the PCF.

use std::net::SocketAddr;

use serde::Deserialize;
use types::{Ambr, Arp, Dnn, FiveQi, Invalid};

/// The `pcf` section of `godwit.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address of its service-based interface.
    pub sbi: SocketAddr,
    /// Policy by data network. Data networks not listed follow the subscription.
    pub dnn: Vec<DnnPolicy>,
    /// Most policy associations of each kind at once; more are refused.
    pub max_associations: usize,
}

/// Policy for the sessions of one data network. Members left out follow the subscription.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DnnPolicy {
    /// Data network name.
    pub name: Dnn,
    /// 5QI of the default QoS flow; a non-GBR one.
    #[serde(default)]
    pub five_qi: Option<FiveQi>,
    /// Allocation and retention priority of the default QoS flow.
    #[serde(default)]
    pub arp: Option<Arp>,
    /// Session AMBR.
    #[serde(default)]
    pub session_ambr: Option<Ambr>,
}

impl Default for Config {
    fn default() -> Self {
        Self { sbi: SocketAddr::from(([127, 0, 0, 13], 7777)), dnn: Vec::new(), max_associations: 1_000_000 }
    }
}

impl Config {
    /// Checks rules that the types cannot express.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn validate(&self) -> Result<(), Invalid> {
        for (i, policy) in self.dnn.iter().enumerate() {
            if self.dnn.iter().take(i).any(|other| other.name == policy.name) {
                return Err(Invalid::new("pcf.dnn", &policy.name, "each DNN once"));
            }
            // The default flow of a session has no guaranteed bit rate (TS 23.501 §5.7.2.7).
            if policy.five_qi.is_some_and(|q| matches!(q.0, 0..=4 | 65..=67 | 71..=76 | 82..=90)) {
                return Err(Invalid::new(
                    "pcf.dnn.five_qi",
                    format!("{:?}", policy.five_qi),
                    "a non-GBR 5QI, such as 9",
                ));
            }
        }
        if self.max_associations == 0 {
            return Err(Invalid::new("pcf.max_associations", 0, "at least 1"));
        }
        Ok(())
    }
}
