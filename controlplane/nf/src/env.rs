//! What an NF is given from outside: where NRF is, where sockets go, and when to end.

use std::{path::PathBuf, time::Duration};

use sbi::{ApiRoot, ClientConfig, ServerConfig, model::nrf::NfType};

use crate::shutdown::Shutdown;

/// Surroundings of the NFs of one process. Cheap to clone; clones share the shutdown.
#[derive(Debug, Clone)]
pub struct Env {
    /// Folder of OAM sockets and other run-time files.
    pub run_dir: PathBuf,
    /// NRF to register with and to discover from. `None` runs an NF alone, with `client.peers` only.
    pub nrf: Option<ApiRoot>,
    /// Template of every client: times, limits, fixed peers.
    pub client: ClientConfig,
    /// Template of every server.
    pub server: ServerConfig,
    /// Time that background tasks and requests get to finish when the NF stops.
    pub drain_timeout: Duration,
    /// Ends every NF that was given this environment.
    pub shutdown: Shutdown,
}

impl Env {
    /// An environment with defaults.
    pub fn new(run_dir: impl Into<PathBuf>, nrf: Option<ApiRoot>) -> Self {
        Self {
            run_dir: run_dir.into(),
            nrf,
            client: ClientConfig::default(),
            server: ServerConfig::default(),
            drain_timeout: Duration::from_secs(2),
            shutdown: Shutdown::default(),
        }
    }

    /// A client that calls in the name of an NF of this type.
    pub fn client(&self, requester: NfType) -> sbi::Client {
        sbi::Client::new(ClientConfig { requester, nrf: self.nrf.clone(), ..self.client.clone() })
    }
}
