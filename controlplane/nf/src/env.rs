//! The environment of an NF: address of the NRF, folder of sockets, keys and secrets, shutdown.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sbi::{
    ApiRoot, Client, ClientConfig, Credentials, Guard, Scheme, ServerConfig, Tls,
    model::{common::NfInstanceId, nrf::NfType},
};

use crate::{
    certificate::{Certificate, CertificateFiles},
    security::{Config, TlsMode, Tokens},
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
    /// The folder of certificates; `None` when TLS is switched off. `client.tls_mode` says where TLS is needed.
    pub certificates: Option<PathBuf>,
    /// Whether notifications need a token, too.
    pub callback_tokens: bool,
    /// Time that background tasks and requests get to finish when the NF stops.
    pub drain_timeout: Duration,
    /// Ends every NF that was given this environment.
    pub shutdown: Shutdown,
}

impl Env {
    /// An environment with defaults, without access tokens and TLS: NFs accept calls from anybody. For tests
    /// of one NF; [`Self::secured`] adds what a network needs.
    pub fn new(run_dir: impl Into<PathBuf>, nrf: Option<ApiRoot>) -> Self {
        Self {
            run_dir: run_dir.into(),
            nrf,
            client: ClientConfig::default(),
            server: ServerConfig::default(),
            trust: None,
            certificates: None,
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
        if config.tls == TlsMode::Off {
            tracing::warn!(
                "TLS is switched off (sbi.tls): anybody on the path can read and change the messages of NFs"
            );
        } else {
            self.certificates = Some(config.trust.clone());
            self.client.tls_mode = config.tls;
        }
        match config.tokens {
            Tokens::Off => {
                tracing::warn!(
                    "access tokens are switched off (sbi.tokens): anybody who reaches the service-based interface \
                     can read subscribers' keys"
                );
                return Ok(self);
            }
            Tokens::ExceptCallbacks => {
                tracing::warn!(
                    "notifications need no access token (sbi.tokens): anybody who reaches an NF can send one"
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
        let certificate = self.certificate(&requester, None)?;
        let id = certificate.as_ref().map_or(id, Certificate::instance);
        self.client_of(requester, id, self.nrf.clone(), certificate.map(|certificate| certificate.tls()))
    }

    /// Whether an NF that listens on `address` serves TLS.
    pub(crate) fn serves_tls(&self, address: SocketAddr) -> bool {
        self.client.tls_mode.applies(address)
    }

    /// The certificate of an NF: needed by those that serve TLS or have an NRF that does, used by others where there is one.
    ///
    /// # Errors
    /// It is needed, and cannot be used.
    pub(crate) fn certificate(
        &self,
        nf_type: &NfType,
        serves: Option<SocketAddr>,
    ) -> Result<Option<Certificate>, TrustError> {
        let Some(folder) = &self.certificates else { return Ok(None) };
        let needed = serves.is_some() || self.nrf.as_ref().is_some_and(|nrf| nrf.scheme() == Scheme::Https);
        match Certificate::open(CertificateFiles::of(folder, nf_type, serves)) {
            Ok(certificate) => Ok(Some(certificate)),
            Err(error) if needed => Err(error),
            Err(TrustError::NoCertificate { .. }) => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "peers that need TLS cannot be called");
                Ok(None)
            }
        }
    }

    /// A client of an instance.
    pub(crate) fn client_of(
        &self,
        requester: NfType,
        id: NfInstanceId,
        nrf: Option<ApiRoot>,
        tls: Option<Tls>,
    ) -> Result<Client, TrustError> {
        let secret = self.trust.as_ref().map(|trust| trust.secret(&requester)).transpose()?;
        let credentials = secret
            .map(|secret| Arc::new(Credentials { id, nf_type: requester.clone(), secret: Some(secret) }));
        Ok(Client::new(ClientConfig { requester, nrf, credentials, tls, ..self.client.clone() }))
    }

    /// The check of requests to an instance; `None` if tokens are switched off.
    pub(crate) fn guard(&self, nf_type: &NfType, id: NfInstanceId) -> Option<Guard> {
        let key = self.trust.as_ref()?.verifying_key();
        let guard = Guard::new(nf_type.clone(), id, key);
        Some(if self.callback_tokens { guard } else { guard.without_callbacks() })
    }
}
