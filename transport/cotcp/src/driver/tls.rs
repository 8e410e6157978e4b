//! CoTCP over TLS 1.3 (SPEC §8), with rustls: who is who is checked while the connection is made, on both sides if the
//! server is given roots for its clients.
//!
//! [`client_config`] and [`server_config`] make configurations of rustls from PEM; any other of rustls's will do, if it
//! names the protocol [`ALPN`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::stream::{Address, Stream, connect_tcp, low_latency};

/// The name of the protocol inside TLS.
pub const ALPN: &[u8] = b"cotcp";

/// Why a configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificates or no key in the text, or broken ones.
    #[error("the PEM text is not what it should be: {0}")]
    Pem(rustls::pki_types::pem::Error),
    /// Certificate and key do not fit together, or cannot be used.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    /// No root certificate can be used.
    #[error("the roots cannot be used: {0}")]
    Roots(Box<str>),
}

/// A certificate chain and its key, as PEM.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// The certificate first, then those that sign it.
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

/// For a client that trusts these roots, and says who it is when the server wants to know.
///
/// # Errors
/// The texts cannot be used.
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

/// For a server; with roots for clients, only clients that they vouch for get in.
///
/// # Errors
/// The texts cannot be used.
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
    /// `host:port` over TLS; the server has to prove that it is `name`.
    ///
    /// # Errors
    /// `name` is no name of a server.
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

/// Shakes hands with a client.
pub(super) async fn accept(
    config: Arc<ServerConfig>,
    stream: tokio::net::TcpStream,
    within: Duration,
) -> io::Result<Stream> {
    low_latency(&stream);
    let accepted = tokio::time::timeout(within, TlsAcceptor::from(config).accept(stream)).await;
    Ok(Stream::other(accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??))
}

/// What rustls says about a failed stream, if it was that.
pub(super) fn reason(error: &io::Error) -> Option<Box<str>> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(inner.to_string().into())
}
