//! The section `du` of the configuration: its cell, its interfaces to CUs and UEs, its radio link, and its worker.

use pktio::interface::{Configured, Content, DpdkConfig, LinkConfig, WorkersConfig};
use serde::{Deserialize, Serialize};

/// A DU's user plane.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// NR Cell Identity (TS 23.003 §19.6A): 36 bits.
    pub cell: u64,
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
        Config { cell, f1u, uu, workers: WorkersConfig::default(), dpdk: DpdkConfig::default() }
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
        types::NrCellId::new(self.cell).map_err(|error| format!("cell: {error}"))?;
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
