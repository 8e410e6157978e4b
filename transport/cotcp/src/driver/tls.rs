//! CoTCP over TLS 1.3 (SPEC §8), with rustls. The hand-shake authenticates the server, and also the client
//! when the server has roots for its clients.
//!
//! [`client_config`] and [`server_config`] build configurations of rustls from PEM. Any other rustls
//! configuration works too, if it offers the protocol [`ALPN`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::stream::{Address, Stream, connect_tcp, low_latency};

/// The ALPN protocol name.
pub const ALPN: &[u8] = b"cotcp";

/// Why a TLS configuration cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The PEM text has no certificate or no key, or is damaged.
    #[error("the PEM text is not what it should be: {0}")]
    Pem(rustls::pki_types::pem::Error),
    /// Certificate and key do not belong together, or are not usable.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    /// No root certificate is usable.
    #[error("the roots cannot be used: {0}")]
    Roots(Box<str>),
}

/// A certificate chain and its key, as PEM.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// The certificate, followed by those of its issuers.
    pub chain: &'a [u8],
    /// The private key.
    pub key: &'a [u8],
}

impl Identity<'_> {
    fn parse(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let chain = certificates(self.chain)?;
        Ok((chain, PrivateKeyDer::from_pem_slice(self.key).map_err(TlsError::Pem)?))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(TlsError::Pem)
}

fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store.add(certificate)?;
    }
    if store.is_empty() { Err(TlsError::Roots("there are none".into())) } else { Ok(store) }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A configuration for a client that trusts these roots. `own` is presented when the server asks for a
/// certificate.
///
/// # Errors
/// A PEM text is not usable.
pub fn client_config(trusted: &[u8], own: Option<Identity<'_>>) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = builder.with_root_certificates(roots(trusted)?);
    let mut config = match own.map(|own| own.parse()).transpose()? {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// A configuration for a server. With roots for clients, the server accepts only clients with a certificate
/// from these roots.
///
/// # Errors
/// A PEM text is not usable.
pub fn server_config(own: Identity<'_>, clients: Option<&[u8]>) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let roots = Arc::new(roots(pem)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            let verifier = verifier.map_err(|error| TlsError::Roots(error.to_string().into()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, key) = own.parse()?;
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

impl Address {
    /// Connects to `host:port` over TLS. The server must present a certificate for `name`.
    ///
    /// # Errors
    /// `name` is not a valid server name.
    pub fn tls(address: &str, name: &str, config: Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (address, connector): (Arc<str>, _) = (address.into(), TlsConnector::from(config));
        Ok(Self::with(move || {
            let (address, connector, name) = (Arc::clone(&address), connector.clone(), name.clone());
            async move {
                let stream = connect_tcp(&address).await?;
                low_latency(&stream);
                Ok(Stream::other(connector.connect(name, stream).await?))
            }
        }))
    }
}

/// Performs the hand-shake with a client.
pub(super) async fn accept(
    config: Arc<ServerConfig>,
    stream: tokio::net::TcpStream,
    within: Duration,
) -> io::Result<Stream> {
    low_latency(&stream);
    let accepted = tokio::time::timeout(within, TlsAcceptor::from(config).accept(stream)).await;
    Ok(Stream::other(accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??))
}

/// The reason that rustls gives for a failed stream, if rustls failed it.
pub(super) fn reason(error: &io::Error) -> Option<Box<str>> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(inner.to_string().into())
}
