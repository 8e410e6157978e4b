//! Client side: one persistent connection per peer, opened when needed.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::{Reason, client::SendRequest};
use http::{HeaderMap, HeaderValue, Request, header};
use net::time::{self, Instant};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex,
};

use super::{
    content,
    server::{BodyError, read_body},
};
use crate::{
    config::ClientConfig,
    counters::{CLIENT_CONNECTIONS, CLIENT_TLS_FAILURES},
    exchange::{Answer, Exchange, Lost},
    target::{ApiRoot, Scheme},
    tls::{Tls, TlsMode},
};

/// Windows so large that none of our answers waits for credit.
const WINDOW: u32 = 1 << 20;

/// A peer and the connection to it.
///
/// One per API root and client. `connection` is locked while a connection is being opened, so that a
/// burst of calls opens only one. Otherwise it is locked only to clone the handle.
#[derive(Debug)]
pub(crate) struct Peer {
    root: ApiRoot,
    max_body_bytes: usize,
    tls: Option<Tls>,
    tls_mode: TlsMode,
    connection: Mutex<Option<Connection>>,
}

/// An open connection: calls clone the handle. `generation` distinguishes a new connection from one
/// that failed.
#[derive(Debug, Clone)]
struct Connection {
    handle: SendRequest<Bytes>,
    generation: u64,
}

impl Peer {
    pub(crate) fn new(root: ApiRoot, config: &ClientConfig) -> Self {
        let (max_body_bytes, tls_mode) = (config.max_body_bytes, config.tls_mode);
        Self { root, max_body_bytes, tls: config.tls.clone(), tls_mode, connection: Mutex::new(None) }
    }

    /// Sends a request and waits for its answer, until `deadline`.
    pub(crate) async fn call(&self, exchange: Exchange, deadline: Instant) -> Result<Answer, Lost> {
        let operation = exchange.operation;
        let mut generation = None;
        let attempt = async {
            let connection = self.connected(deadline).await?;
            generation = Some(connection.generation);
            self.send(connection.handle, exchange, deadline).await
        };
        let result = time::timeout(deadline - time::now(), attempt).await.unwrap_or(Err(Lost::Timeout));
        if let Err(lost) = &result {
            tracing::debug!(peer = %self.root, operation, ?lost, "call failed");
            // A connection without answers is dropped: the peer may have disappeared without closing
            // it.
            if let Some(generation) = generation {
                self.forget(generation).await;
            }
        }
        result
    }

    /// Opens the connection if there is none.
    pub(crate) async fn prepare(&self, deadline: Instant) -> Result<(), Lost> {
        let connected = time::timeout(deadline - time::now(), self.connected(deadline)).await;
        connected.unwrap_or(Err(Lost::Timeout)).map(drop)
    }

    /// Drops the connection, unless it has been replaced already. Calls that still wait on it continue.
    async fn forget(&self, generation: u64) {
        let mut slot = self.connection.lock().await;
        if slot.as_ref().is_some_and(|c| c.generation == generation) {
            *slot = None;
        }
    }

    /// The open connection, or a new one.
    async fn connected(&self, deadline: Instant) -> Result<Connection, Lost> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = slot.as_ref() {
            // Detects a dead connection; never waits, because opening streams is not limited here.
            let mut probe = connection.handle.clone();
            let ready = std::future::poll_fn(|cx| std::task::Poll::Ready(probe.poll_ready(cx))).await;
            if !matches!(ready, std::task::Poll::Ready(Err(_))) {
                return Ok(connection.clone());
            }
        }
        let generation = slot.as_ref().map_or(0, |c| c.generation) + 1;
        *slot = None;
        let connection = Connection { handle: self.open(deadline - time::now()).await?, generation };
        *slot = Some(connection.clone());
        Ok(connection)
    }

    async fn open(&self, limit: Duration) -> Result<SendRequest<Bytes>, Lost> {
        let failed =
            |error: &dyn std::fmt::Display| Lost::NotConnected(format!("{}: {error}", self.root.authority()));
        let address: SocketAddr = self.address().await.map_err(|error| failed(&error))?;
        let tls = match self.root.scheme() {
            Scheme::Http if self.tls_mode.applies(address) => {
                CLIENT_TLS_FAILURES.inc("in_clear");
                return Err(failed(&"calls there need https (sbi.tls), and it is addressed with http"));
            }
            Scheme::Http => None,
            Scheme::Https => Some(self.tls.as_ref().ok_or_else(|| {
                CLIENT_TLS_FAILURES.inc("no_certificate_of_ours");
                failed(&"it needs TLS, and this NF has no certificate: make one with `godwit certs`")
            })?),
        };
        let stream = net::tcp::connect(address, limit).await.map_err(|error| failed(&error))?;
        let Some(tls) = tls else { return self.handshake(stream).await };
        let secured = tls.connect(self.root.authority(), stream, limit).await.map_err(|error| {
            CLIENT_TLS_FAILURES.inc(error.reason());
            failed(&error)
        })?;
        self.handshake(secured).await
    }

    /// HTTP/2 over a stream that is connected.
    async fn handshake<S>(&self, stream: S) -> Result<SendRequest<Bytes>, Lost>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let failed =
            |error: &dyn std::fmt::Display| Lost::NotConnected(format!("{}: {error}", self.root.authority()));
        let mut builder = h2::client::Builder::new();
        builder.enable_push(false).initial_window_size(WINDOW).initial_connection_window_size(4 * WINDOW);
        let (handle, connection) = builder.handshake(stream).await.map_err(|error| failed(&error))?;
        CLIENT_CONNECTIONS.inc();
        let peer = self.root.clone();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        });
        Ok(handle)
    }

    async fn address(&self) -> std::io::Result<SocketAddr> {
        let authority = self.root.authority();
        if let Ok(address) = authority.parse() {
            return Ok(address);
        }
        let authority = if authority.contains(':') {
            authority.to_owned()
        } else {
            format!("{authority}:{}", self.root.scheme().default_port())
        };
        net::tcp::resolve(&authority).await
    }

    async fn send(
        &self,
        handle: SendRequest<Bytes>,
        exchange: Exchange,
        deadline: Instant,
    ) -> Result<Answer, Lost> {
        let not_sent = |error: h2::Error| Lost::NotProcessed(format!("{}: {error}", self.root.authority()));
        let uri = http::Uri::builder()
            .scheme(self.root.scheme().as_str())
            .authority(self.root.authority())
            .path_and_query(exchange.path_and_query)
            .build()
            .map_err(|error| Lost::Malformed(error.to_string()))?;
        let mut request = Request::new(());
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = uri;
        *request.method_mut() = http::Method::from_bytes(exchange.method.as_str().as_bytes())
            .map_err(|error| Lost::Malformed(error.to_string()))?;
        let headers = request.headers_mut();
        headers
            .insert(header::ACCEPT, HeaderValue::from_static("application/json, application/problem+json"));
        if let Some(authorization) = exchange.authorization {
            headers.insert(header::AUTHORIZATION, authorization);
        }
        let content = exchange.payload.map(content::write);
        if let Some((media, body)) = &content {
            let media = HeaderValue::from_str(media).map_err(|error| Lost::Malformed(error.to_string()))?;
            headers.insert(header::CONTENT_TYPE, media);
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        let mut handle = handle.ready().await.map_err(not_sent)?;
        let (response, mut stream) = handle.send_request(request, content.is_none()).map_err(not_sent)?;
        if let Some((_, body)) = content {
            stream.send_data(body, true).map_err(|error| self.lost(&error))?;
        }
        let (head, body) = response.await.map_err(|error| self.lost(&error))?.into_parts();
        let body = read_body(body, self.max_body_bytes, deadline).await.map_err(|error| match error {
            BodyError::TooLarge => {
                Lost::Malformed(format!("more than {} octets of content", self.max_body_bytes))
            }
            BodyError::Timeout => Lost::Timeout,
            BodyError::Broken => Lost::Unknown(format!("{}: the answer broke off", self.root.authority())),
        })?;
        self.answer(head.status.as_u16(), &head.headers, body)
    }

    /// The meaning of a failed stream: refused streams, and those that a leaving peer excludes, were
    /// not processed (RFC 9113 §8.7).
    fn lost(&self, error: &h2::Error) -> Lost {
        let text = format!("{}: {error}", self.root.authority());
        let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        let leaving = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        if refused || leaving { Lost::NotProcessed(text) } else { Lost::Unknown(text) }
    }

    fn answer(&self, status: u16, headers: &HeaderMap, body: Bytes) -> Result<Answer, Lost> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        // A Location without authority is relative to the peer.
        let location = text(header::LOCATION).map(|location| match location.starts_with('/') {
            true => format!("{}://{}{location}", self.root.scheme(), self.root.authority()),
            false => location.to_owned(),
        });
        let content_type = text(header::CONTENT_TYPE).unwrap_or_default();
        let payload = match content::read(content_type, body.clone()) {
            _ if body.is_empty() => None,
            Ok(payload) => Some(payload),
            // For a failure the status is enough: proxies answer in HTML.
            Err(_) if status >= 300 => None,
            Err(error) => return Err(Lost::Malformed(format!("{error}: `{content_type}`"))),
        };
        Ok(Answer { status, location, remedy: None, no_store: false, payload })
    }
}
