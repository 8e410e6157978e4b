//! TLS 1.3 with certificates on both sides (TS 33.501 §13.1, TS 33.210 §6.2).
//!
//! Each end shows a certificate of the same authority. A client checks that the server's certificate names the address or
//! domain that it called; a server checks that the client's names an NF instance (`urn:uuid:…` among its alternative
//! names, TS 33.310 §6.1.3c) and takes access tokens of that instance only. Sessions are never resumed: every connection
//! verifies the certificates as they are now, and connections are few and long.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use net::{
    tcp::TcpStream,
    time::{self, timeout},
};
use serde::Deserialize;
use tokio_rustls::{
    TlsAcceptor, TlsConnector, client,
    rustls::{
        self, CertificateError, Error, InvalidMessage, RootCertStore,
        client::{Resumption, verify_server_name},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
        server::{
            NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier, danger::ClientCertVerifier,
        },
        version::TLS13,
    },
    server,
};

use crate::{
    model::common::{DateTime, NfInstanceId},
    target::{ApiRoot, Scheme},
};

/// HTTP/2, by its name in ALPN (RFC 7301).
const H2: &[u8] = b"h2";

/// Where the service-based interface speaks TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsMode {
    /// Where an address is not a loopback address.
    #[default]
    Auto,
    /// Everywhere.
    Required,
    /// TLS is needed nowhere: anybody on the path can read and change all messages.
    Off,
}

impl TlsMode {
    /// Whether connections to `address` need TLS.
    pub fn applies(self, address: SocketAddr) -> bool {
        match self {
            Self::Auto => !address.ip().to_canonical().is_loopback(),
            Self::Required => true,
            Self::Off => false,
        }
    }

    /// How an NF that listens on `address` is called.
    pub fn api_root(self, address: SocketAddr) -> ApiRoot {
        ApiRoot::new(if self.applies(address) { Scheme::Https } else { Scheme::Http }, address)
    }
}

/// Certificates or keys that cannot be used. Holds nothing of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// Why a connection could not be secured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The other side was too slow.
    #[error("no TLS handshake in time")]
    Timeout,
    /// It closed the connection.
    #[error("the peer closed the connection during the TLS handshake")]
    Closed,
    /// It does not speak TLS: HTTP in clear, usually.
    #[error("what the peer sent is no TLS")]
    NotTls,
    /// Its messages are malformed or out of order.
    #[error("the peer broke the TLS protocol: {0}")]
    Protocol(String),
    /// No version, algorithm or application protocol in common. We have TLS 1.3 and HTTP/2 only.
    #[error("nothing in common for TLS: {0}")]
    Incompatible(String),
    /// It shows no certificate.
    #[error("the peer shows no certificate")]
    NoCertificate,
    /// Its certificate is of another authority.
    #[error("the peer's certificate is not signed by an authority in ca.pem")]
    UnknownAuthority,
    /// Its certificate is not valid now.
    #[error("the peer's certificate has expired or is not valid yet")]
    Expired,
    /// A server's certificate does not name the address that was called.
    #[error("the peer's certificate does not name {0}")]
    WrongName(String),
    /// A client's certificate names no NF instance.
    #[error("the peer's certificate names no NF instance (urn:uuid:…)")]
    NoInstance,
    /// There is something else wrong with its certificate.
    #[error("the peer's certificate: {0}")]
    BadCertificate(String),
    /// It refused: what its alert says (RFC 8446 §6).
    #[error("the peer refused the TLS handshake: {0}")]
    Refused(String),
}

impl HandshakeError {
    /// Name in counters.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Timeout => "tls_timeout",
            Self::Closed => "tls_closed",
            Self::NotTls => "tls_not_tls",
            Self::Protocol(_) => "tls_protocol",
            Self::Incompatible(_) => "tls_incompatible",
            Self::NoCertificate => "tls_no_certificate",
            Self::UnknownAuthority => "tls_unknown_authority",
            Self::Expired => "tls_expired",
            Self::WrongName(_) => "tls_wrong_name",
            Self::NoInstance => "tls_no_instance",
            Self::BadCertificate(_) => "tls_bad_certificate",
            Self::Refused(_) => "tls_refused",
        }
    }

    /// `host` is what a client called.
    fn new(error: &io::Error, host: &str) -> Self {
        let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
            return Self::Closed;
        };
        match error {
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => Self::NotTls,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(wrong) => match wrong {
                // A bad signature: an authority of the same name, with another key.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownAuthority,
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::Expired,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    Self::WrongName(host.to_owned())
                }
                other => Self::BadCertificate(other.to_string()),
            },
            Error::AlertReceived(alert) => Self::Refused(format!("{alert:?}")),
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => {
                Self::Incompatible(error.to_string())
            }
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// The certificate of an NF with its key, and the authority that it believes. Clones share what [`Self::replace`] changes.
#[derive(Clone)]
pub struct Tls {
    current: Arc<RwLock<Current>>,
}

#[derive(Clone)]
struct Current {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    certificate: CertificateDer<'static>,
    instance: NfInstanceId,
    expires: SystemTime,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("instance", &self.instance()).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads certificates and key from PEM: the authority's, the NF's with those between, the NF's key.
    ///
    /// # Errors
    /// What is missing, cannot be read, or does not fit together; a certificate that is not valid now, not signed by the
    /// authority, or names no NF instance.
    pub fn new(authority: &str, chain: &str, key: &str) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("the authority's certificate", authority)? {
            roots.add(certificate).map_err(|error| broken("the authority's certificate", error))?;
        }
        let (roots, chain) = (Arc::new(roots), certificates("the certificate", chain)?);
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| broken("the key", error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| broken("the authority's certificate", error))?;
        let certificate = chain[0].clone();
        let expires = expiry(&*verifier, &chain)?;
        let instance = instance(&certificate).ok_or_else(|| {
            TlsError("the certificate names no NF instance: urn:uuid:… must be among its names".to_owned())
        })?;
        let unusable = |error: Error| broken("the certificate and its key", error);
        let mut server = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        server.alpn_protocols = vec![H2.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        client.alpn_protocols = vec![H2.to_vec()];
        client.resumption = Resumption::disabled();
        let (acceptor, connector) = (Arc::new(server).into(), Arc::new(client).into());
        let current = Current { acceptor, connector, certificate, instance, expires };
        Ok(Self { current: Arc::new(RwLock::new(current)) })
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses another certificate, key and authority for connections from now on; those that are open stay.
    pub fn replace(&self, new: &Self) {
        let new = new.current();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// The NF instance that the certificate names.
    pub fn instance(&self) -> NfInstanceId {
        self.current().instance
    }

    /// When the certificate expires.
    pub fn expires(&self) -> SystemTime {
        self.current().expires
    }

    /// Whether peers that call `address` find it in the certificate.
    pub fn names(&self, address: SocketAddr) -> bool {
        let certificate = self.current().certificate;
        let parsed = ParsedCertificate::try_from(&certificate);
        parsed.is_ok_and(|parsed| verify_server_name(&parsed, &ServerName::from(address.ip())).is_ok())
    }

    /// The server's side of a handshake, and the NF instance that the client's certificate names.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        limit: Duration,
    ) -> Result<(server::TlsStream<TcpStream>, NfInstanceId), HandshakeError> {
        let handshake = timeout(limit, self.current().acceptor.accept(stream)).await;
        let stream = handshake
            .map_err(|_| HandshakeError::Timeout)?
            .map_err(|error| HandshakeError::new(&error, ""))?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let instance = shown.and_then(instance).ok_or(HandshakeError::NoInstance)?;
        Ok((stream, instance))
    }

    /// The client's side: `authority` is `host:port` as in the URI.
    pub(crate) async fn connect(
        &self,
        authority: &str,
        stream: TcpStream,
        limit: Duration,
    ) -> Result<client::TlsStream<TcpStream>, HandshakeError> {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            _ => authority,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name =
            ServerName::try_from(host.to_owned()).map_err(|_| HandshakeError::WrongName(host.to_owned()))?;
        let handshake = timeout(limit, self.current().connector.connect(name, stream)).await;
        handshake.map_err(|_| HandshakeError::Timeout)?.map_err(|error| HandshakeError::new(&error, host))
    }
}

fn broken(what: &str, error: impl fmt::Display) -> TlsError {
    TlsError(format!("{what}: {error}"))
}

/// The certificates in a text; at least one.
fn certificates(what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match read {
        Ok(read) if read.is_empty() => Err(broken(what, "there is no certificate in it")),
        read => read.map_err(|error| broken(what, error)),
    }
}

/// When a certificate expires that is valid now.
fn expiry(verifier: &dyn ClientCertVerifier, chain: &[CertificateDer<'_>]) -> Result<SystemTime, TlsError> {
    let (certificate, between) =
        chain.split_first().ok_or_else(|| TlsError("there is no certificate".into()))?;
    let at = |time: UnixTime| verifier.verify_client_cert(certificate, between, time);
    let now = time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    at(UnixTime::since_unix_epoch(now)).map_err(|error| match error {
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            let since = UNIX_EPOCH + Duration::from_secs(not_after.as_secs());
            broken("the certificate", format!("it has expired on {}", DateTime::from(since).0))
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            broken("the certificate", "it is not signed by the authority")
        }
        error => broken("the certificate", error),
    })?;
    // The verifier says the date when it is asked about a time after it.
    match at(UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX))) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Ok(UNIX_EPOCH + Duration::from_secs(not_after.as_secs()))
        }
        _ => Err(broken("the certificate", "it does not say when it expires")),
    }
}

/// The NF instance that a certificate names.
fn instance(certificate: &CertificateDer<'_>) -> Option<NfInstanceId> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut uris = certificate.valid_uri_names();
    uris.find_map(|uri| uri.strip_prefix("urn:uuid:")?.parse().ok())
}
