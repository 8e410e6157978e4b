//! The environment of an NF: address of the NRF, folder of sockets, keys and secrets, shutdown.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sbi::{
    ApiRoot, Client, ClientConfig, Credentials, Guard, ServerConfig,
    model::{common::NfInstanceId, nrf::NfType},
};

use crate::{
    security::{Config, Tokens},
    shutdown::Shutdown,
    trust::{Trust, TrustError},
};

/// Environment of the NFs of one process. Clones share the shutdown.
#[derive(Debug, Clone)]
pub struct Env {
    /// Folder of OAM sockets and other run-time files.
    pub run_dir: PathBuf,
    /// NRF for registration and discovery. `None` runs an NF alone, with `client.peers` only.
    pub nrf: Option<ApiRoot>,
    /// Configuration of every client: timeouts, limits, fixed peers.
    pub client: ClientConfig,
    /// Configuration of every server.
    pub server: ServerConfig,
    /// Keys and secrets; `None` if access tokens are switched off.
    pub trust: Option<Arc<Trust>>,
    /// Whether notifications need a token, too.
    pub callback_tokens: bool,
    /// Time that background tasks and requests get to finish when the NF stops.
    pub drain_timeout: Duration,
    /// Ends every NF that was given this environment.
    pub shutdown: Shutdown,
}

impl Env {
    /// An environment with defaults and without access tokens: NFs accept calls from anybody. For tests
    /// of one NF; [`Self::secured`] adds what a network needs.
    pub fn new(run_dir: impl Into<PathBuf>, nrf: Option<ApiRoot>) -> Self {
        Self {
            run_dir: run_dir.into(),
            nrf,
            client: ClientConfig::default(),
            server: ServerConfig::default(),
            trust: None,
            callback_tokens: true,
            drain_timeout: Duration::from_secs(2),
            shutdown: Shutdown::default(),
        }
    }

    /// Protects the service-based interface as configured. `nrf_is_local` says whether the NRF runs on
    /// this machine.
    ///
    /// # Errors
    /// The folder of keys and secrets cannot be used.
    pub fn secured(mut self, config: &Config, nrf_is_local: bool) -> Result<Self, TrustError> {
        match config.tokens {
            Tokens::Off => {
                tracing::warn!(
                    "access tokens are switched off (sbi.tokens): whoever reaches the service-based interface may \
                     read subscribers' keys"
                );
                return Ok(self);
            }
            Tokens::ExceptCallbacks => {
                tracing::warn!(
                    "notifications need no access token (sbi.tokens): whoever reaches an NF may send one"
                );
                self.callback_tokens = false;
            }
            Tokens::Required => {}
        }
        self.trust = Some(Arc::new(Trust::open(&config.trust, nrf_is_local)?));
        Ok(self)
    }

    /// A client that calls as an NF of this type, without being an instance.
    ///
    /// # Errors
    /// The NF's secret cannot be created or read.
    pub fn client(&self, requester: NfType) -> Result<Client, TrustError> {
        let id = NfInstanceId::from_name(&format!("{requester} {}", Path::display(&self.run_dir)));
        self.client_of(requester, id, self.nrf.clone())
    }

    /// A client of an instance.
    pub(crate) fn client_of(
        &self,
        requester: NfType,
        id: NfInstanceId,
        nrf: Option<ApiRoot>,
    ) -> Result<Client, TrustError> {
        let secret = self.trust.as_ref().map(|trust| trust.secret(&requester)).transpose()?;
        let credentials = secret
            .map(|secret| Arc::new(Credentials { id, nf_type: requester.clone(), secret: Some(secret) }));
        Ok(Client::new(ClientConfig { requester, nrf, credentials, ..self.client.clone() }))
    }

    /// The check of requests to an instance; `None` if tokens are switched off.
    pub(crate) fn guard(&self, nf_type: &NfType, id: NfInstanceId) -> Option<Guard> {
        let key = self.trust.as_ref()?.verifying_key();
        let guard = Guard::new(nf_type.clone(), id, key);
        Some(if self.callback_tokens { guard } else { guard.without_callbacks() })
    }
}
