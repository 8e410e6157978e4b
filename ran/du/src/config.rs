//! The section `du` of the configuration: its cell, its interfaces to CUs and UEs, its radio link, and its worker.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use net::sctp::SctpMode;
use pktio::interface::{Configured, Content, DpdkConfig, LinkConfig, WorkersConfig};
use serde::{Deserialize, Serialize};
use types::{NrCellId, Plmn, SNssai, Tac};

use crate::f1c::Cell;
use crate::radio::Radio;

/// F1-C: the association with the CU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct F1cConfig {
    /// Our address.
    pub local: IpAddr,
    /// The CU's address and port, by convention 38472.
    pub cu: SocketAddr,
    /// Transport of SCTP: `auto`, `kernel`, `raw` or `udp`.
    #[serde(default)]
    pub sctp: SctpMode,
}

/// One direction of a radio link.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RadioLinkConfig {
    /// Bits per second; without it there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Time from a transmission to its arrival.
    pub delay_us: u64,
    /// Most time that a transport block takes in addition.
    pub jitter_us: u64,
    /// Probability that a transmission fails: 0 to 1.
    pub loss: f64,
    /// Time from a transmission to the next one of the same block.
    pub harq_interval_us: u64,
    /// Most retransmissions of a block.
    pub harq_retransmissions: u8,
}

impl Default for RadioLinkConfig {
    fn default() -> RadioLinkConfig {
        RadioLinkConfig {
            rate_bps: None,
            delay_us: 0,
            jitter_us: 0,
            loss: 0.0,
            harq_interval_us: Radio::UNLIMITED.harq_interval.as_micros() as u64,
            harq_retransmissions: Radio::UNLIMITED.harq_retransmissions,
        }
    }
}

impl RadioLinkConfig {
    /// What the user plane takes.
    pub fn radio(&self) -> Radio {
        Radio {
            rate: self.rate_bps,
            delay: Duration::from_micros(self.delay_us),
            jitter: Duration::from_micros(self.jitter_us),
            loss: self.loss,
            harq_interval: Duration::from_micros(self.harq_interval_us),
            harq_retransmissions: self.harq_retransmissions,
        }
    }
}

/// The radio link that UEs have at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RadioConfig {
    /// Towards UEs.
    pub downlink: RadioLinkConfig,
    /// From UEs.
    pub uplink: RadioLinkConfig,
}

/// A DU.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// NR Cell Identity (TS 23.003 §19.6A): 36 bits.
    pub cell: u64,
    /// The association with the CU. Without it only the user plane can be started ([`crate::Node`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f1c: Option<F1cConfig>,
    /// gNB-DU ID, 36 bits; by default the cell's identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Name for the CU; by default made of the gNB-DU ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The network.
    #[serde(default = "default_plmn")]
    pub plmn: Plmn,
    /// Tracking area of the cell.
    #[serde(default = "default_tac")]
    pub tac: Tac,
    /// Slices of the cell.
    #[serde(default = "default_slices")]
    pub slices: Vec<SNssai>,
    /// The radio link of UEs.
    #[serde(default)]
    pub radio: RadioConfig,
    /// The link to CUs.
    pub f1u: LinkConfig,
    /// The link to UEs, which stands for the radio: `gtpu` is the address and port of `uu` (docs/uu.md).
    pub uu: LinkConfig,
    /// The thread that forwards packets.
    #[serde(default)]
    pub workers: WorkersConfig,
    /// Start options of DPDK.
    #[serde(default)]
    pub dpdk: DpdkConfig,
}

impl Config {
    /// A DU with these links and a worker with the usual settings.
    pub fn new(cell: u64, f1u: LinkConfig, uu: LinkConfig) -> Config {
        Config {
            cell,
            f1c: None,
            id: None,
            name: None,
            plmn: default_plmn(),
            tac: default_tac(),
            slices: default_slices(),
            radio: RadioConfig::default(),
            f1u,
            uu,
            workers: WorkersConfig::default(),
            dpdk: DpdkConfig::default(),
        }
    }

    /// The cell as the CU is told of it.
    pub(crate) fn described(&self, cell: NrCellId) -> Result<Cell, crate::f1c::Invalid> {
        let id = self.id.unwrap_or(self.cell);
        let name = self.name.clone().unwrap_or_else(|| format!("du-{id:x}"));
        Cell::new(id, &name, cell, self.plmn, self.tac, &self.slices)
    }

    /// Its links by name. Their positions are the numbers of its interfaces.
    pub(crate) fn links(&self) -> [(&'static str, &LinkConfig); 2] {
        [("f1u", &self.f1u), ("uu", &self.uu)]
    }

    /// Checks the section. The error is text for a person.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let cell = NrCellId::new(self.cell).map_err(|error| format!("cell: {error}"))?;
        self.described(cell).map_err(|error| error.to_string())?;
        for (name, link) in [("downlink", self.radio.downlink), ("uplink", self.radio.uplink)] {
            if !link.radio().is_possible() {
                return Err(format!(
                    "radio.{name}: loss is 0 to 1, times are below a minute, a rate below 1 Tbit/s"
                ));
            }
        }
        if let Some(f1c) = &self.f1c {
            if f1c.local.is_ipv4() != f1c.cu.is_ipv4() {
                return Err("f1c: local and cu are of one family, IPv4 or IPv6".to_owned());
            }
            // The CU is told where its packets have to go.
            if self.f1u.gtpu.is_none_or(|address| address.ip().is_unspecified()) {
                return Err("f1u.gtpu: the address that the CU sends to is needed".to_owned());
            }
        }
        if self.workers.count.is_some_and(|count| count > 1) {
            return Err("workers: a DU has one worker; leave count out".to_owned());
        }
        self.workers.check().map_err(|error| format!("workers: {error}"))?;
        let mut before: Vec<Configured<'_>> = Vec::new();
        for (name, link) in self.links() {
            link.check("the link", Content::Tunnels).map_err(|error| format!("{name}: {error}"))?;
            let own = Configured { name, content: Content::Tunnels, link };
            own.check_beside(&before).map_err(|error| format!("{name}: {error}"))?;
            before.push(own);
        }
        Ok(())
    }
}

fn default_plmn() -> Plmn {
    // 999 is the country code of private networks.
    Plmn::from_bcd([0x99, 0xf9, 0x07]).unwrap_or_else(|_| unreachable!("these are digits"))
}

fn default_tac() -> Tac {
    Tac::from_octets([0, 0, 1])
}

fn default_slices() -> Vec<SNssai> {
    vec![SNssai::from_octets(1, None)]
}
