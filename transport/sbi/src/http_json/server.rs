//! Server side: accepts connections, reads requests within limits, calls the router.

use std::{
    future::{Future, poll_fn},
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, server::SendResponse};
use http::{HeaderValue, Request, Response, header};
use net::{
    tcp::{TcpListener, TcpStream},
    time::{self, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Semaphore, watch},
};

use super::{
    connections::{Connections, Place},
    content::{self, ContentError},
};
use crate::{
    access::{Caller, Guard},
    codec::{Codec, Payload},
    config::ServerConfig,
    counters::SERVER_CONNECTION_ERRORS,
    exchange::{Answer, Incoming, Remedy},
    message::Media,
    model::common::NfInstanceId,
    problem::ProblemDetails,
    router::{Table, reject},
    target::Scheme,
    tls::Tls,
};

/// The router, the limits, and the check of callers.
pub(crate) struct Offer {
    pub(crate) table: Table,
    pub(crate) config: ServerConfig,
    /// Checks access tokens; `None` when they are switched off.
    pub(crate) guard: Option<Guard>,
    /// Certificate and key; `None` when connections are in clear.
    pub(crate) tls: Option<Tls>,
}

/// Most requests in progress that need no access token, over all connections. They ask for a token. The connections of
/// one address cannot use all of these places.
const OPEN_AT_ONCE: usize = 1024;
/// Most octets of content of such a request: a form with an assertion is far smaller.
const OPEN_BODY_MAX: usize = 16 * 1024;

/// State that all connections of a server share.
struct Shared {
    table: Table,
    config: ServerConfig,
    guard: Option<Guard>,
    tls: Option<Tls>,
    /// Requests in progress that have an access token, over all connections.
    in_flight: Semaphore,
    /// Requests in progress that need none. They have permits of their own, so that strangers take no place from
    /// callers with a token.
    open: Semaphore,
}

/// Accepts connections until `stop` turns true, then lets requests finish for `drain_timeout`.
pub(crate) async fn run(listener: TcpListener, offer: Offer, mut stop: watch::Receiver<bool>) {
    let Offer { table, config, guard, tls } = offer;
    let in_flight = Semaphore::new(config.max_requests);
    let connections = Connections::new(config.max_connections, config.max_connections_per_address);
    let open = Semaphore::new(OPEN_AT_ONCE);
    let shared = Arc::new(Shared { table, config, guard, tls, in_flight, open });
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
            // Removes ended tasks, so that the set stays small.
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(place) = connections.admit(peer.ip()) else {
                    SERVER_CONNECTION_ERRORS.inc("too_many_connections");
                    continue;
                };
                let (place, shared, stop) = (Arc::new(place), shared.clone(), stop.clone());
                let remote = Remote { address: peer, instance: None, place: place.clone() };
                tasks.spawn(async move {
                    tokio::select! {
                        () = serve(stream, remote, shared, stop) => {}
                        () = place.evicted() => SERVER_CONNECTION_ERRORS.inc("evicted"),
                    }
                });
            }
            Err(error) => {
                // Usually no file descriptors are left: wait for some to be closed instead of trying
                // again at once.
                SERVER_CONNECTION_ERRORS.inc("accept");
                tracing::warn!(%error, "cannot accept");
                time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let drained = async { while tasks.join_next().await.is_some() {} };
    if time::timeout(shared.config.drain_timeout, drained).await.is_err() {
        tracing::debug!("requests were still running when the server stopped");
    }
}

/// The other end of a connection.
#[derive(Clone)]
struct Remote {
    address: SocketAddr,
    /// NF instance that its certificate names; `None` in clear.
    instance: Option<NfInstanceId>,
    place: Arc<Place>,
}

/// Secures a connection where that is configured, and serves it to its end.
async fn serve(stream: TcpStream, mut remote: Remote, shared: Arc<Shared>, stop: watch::Receiver<bool>) {
    // Without this option small answers wait for acknowledgements; if setting it fails, that only costs
    // time.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &shared.tls else { return connection(stream, remote, shared, stop).await };
    match tls.accept(stream, shared.config.read_timeout).await {
        Ok((stream, instance)) => {
            remote.instance = Some(instance);
            connection(stream, remote, shared, stop).await;
        }
        Err(error) => {
            SERVER_CONNECTION_ERRORS.inc(error.reason());
            tracing::debug!(peer = %remote.address, %error, "no TLS");
        }
    }
}

/// Serves one connection to its end.
async fn connection<S>(stream: S, remote: Remote, shared: Arc<Shared>, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Remote { address: peer, place, .. } = &remote;
    let config = &shared.config;
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(config.max_concurrent_streams)
        // Under overload a client cancels all its waiting requests at once. As streams are bounded,
        // that is no attack and must not end the connection.
        .max_pending_accept_reset_streams(config.max_concurrent_streams as usize)
        .max_header_list_size(config.max_header_bytes)
        .initial_window_size(config.max_body_bytes as u32)
        .initial_connection_window_size(4 * config.max_body_bytes as u32)
        .max_send_buffer_size(config.max_body_bytes);
    let handshake = time::timeout(config.read_timeout, builder.handshake::<_, Bytes>(stream)).await;
    let mut connection = match handshake {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            SERVER_CONNECTION_ERRORS.inc("handshake");
            return tracing::debug!(%peer, %error, "HTTP/2 handshake failed");
        }
        Err(_) => return SERVER_CONNECTION_ERRORS.inc("handshake_timeout"),
    };
    let mut stopping = false;
    let mut last_request = time::now();
    loop {
        let idle_limit = if place.is_proven() { config.idle_timeout } else { config.stranger_timeout };
        let next = tokio::select! {
            next = connection.accept() => next,
            () = time::sleep_until(last_request + idle_limit), if !stopping => {
                if !place.is_proven() {
                    return SERVER_CONNECTION_ERRORS.inc("stranger_timeout");
                }
                // The peer may be sending a request: it is told that it would not be processed, and
                // sends it elsewhere.
                stopping = true;
                connection.graceful_shutdown();
                continue;
            }
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                connection.graceful_shutdown();
                continue;
            }
        };
        match next {
            Some(Ok((request, respond))) => {
                last_request = time::now();
                start(exchange(request, respond, remote.clone(), shared.clone())).await;
            }
            Some(Err(error)) => {
                // A peer that closes its socket is no error.
                if !error.is_io() {
                    SERVER_CONNECTION_ERRORS.inc("protocol");
                    tracing::debug!(%peer, %error, "HTTP/2 connection broke");
                }
                return;
            }
            None => return,
        }
    }
}

/// Polls the exchange here once; it gets a task of its own only if it has to wait.
///
/// A handler that panics loses its own request (the stream is reset), but not the connection, which
/// carries other UEs' requests.
async fn start(exchange: impl Future<Output = ()> + Send + 'static) {
    let mut exchange: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(exchange);
    let polled = poll_fn(|cx| {
        let poll = AssertUnwindSafe(|| exchange.as_mut().poll(cx).is_ready());
        Poll::Ready(catch_unwind(poll))
    })
    .await;
    match polled {
        Ok(true) => {}
        Ok(false) => _ = tokio::spawn(exchange),
        Err(_) => {
            SERVER_CONNECTION_ERRORS.inc("handler_panicked");
            tracing::error!("a handler panicked; its request is lost");
        }
    }
}

/// One request and its answer.
async fn exchange(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    remote: Remote,
    shared: Arc<Shared>,
) {
    let (head, body) = request.into_parts();
    let found = shared.table.find(head.method.as_str(), head.uri.path());
    // Checked before anything is stored for the request: strangers must not use the places of admitted
    // callers.
    let admitted = found.and_then(|found| {
        let authorization = head.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let caller = match &shared.guard {
            Some(guard) => found.admit(guard, authorization)?,
            None => Caller::default(),
        };
        let caller = caller.certified_as(remote.instance);
        // A token that was given to another instance has been stolen (TS 33.501 §13.4.1.1).
        if caller.contradicts_certificate() {
            let problem = ProblemDetails::new(403, "TOKEN_OF_ANOTHER_INSTANCE");
            return Err(reject(problem.detail("the certificate names another NF instance"), Codec::Json));
        }
        // Without guard every caller is accepted; a request that needs no token does not prove its
        // caller.
        if caller.id().is_some() || shared.guard.is_none() {
            remote.place.prove();
        }
        let permits = if found.is_open() {
            remote
                .place
                .try_unproven()
                .and_then(|of_place| Some((shared.open.try_acquire().ok()?, Some(of_place))))
        } else {
            shared.in_flight.try_acquire().ok().map(|permit| (permit, None))
        };
        let permits = permits.ok_or_else(|| reject(ProblemDetails::nf_congestion(), Codec::Json))?;
        Ok((found, caller, permits))
    });
    let (found, caller, _permits) = match admitted {
        Ok(admitted) => admitted,
        Err(answer) => {
            // Without a place to wait in, the answer goes out at once and the stream is reset behind it.
            if let Some(_place) = remote.place.try_unproven() {
                discard(body, &shared.config).await;
            }
            return send(respond, answer);
        }
    };
    let limit = if found.is_open() { OPEN_BODY_MAX } else { usize::MAX }.min(shared.config.max_body_bytes);
    let payload = match payload(&head.headers, body, found.media(), limit, &shared.config).await {
        Ok(payload) => payload,
        Err(Some(problem)) => {
            tracing::debug!(operation = found.operation(), %problem, "request refused");
            return send(respond, reject(problem, Codec::Json));
        }
        // The peer has cancelled the request: there is nobody to answer.
        Err(None) => return,
    };
    let scheme = if shared.tls.is_some() { Scheme::Https } else { Scheme::Http };
    let authority = head.uri.authority().map_or("", |a| a.as_str());
    // The part of the path before the service is our prefix, which the router does not know.
    let incoming = Incoming {
        query: head.uri.query().unwrap_or_default(),
        api_root: format!("{scheme}://{authority}"),
        caller,
        payload,
    };
    let answer = shared.table.answer(&found, incoming, Codec::Json).await;
    send(respond, answer);
}

/// Reads the content. `Err(None)` if the stream broke.
async fn payload(
    headers: &http::HeaderMap,
    body: RecvStream,
    expected: Option<Media>,
    limit: usize,
    config: &ServerConfig,
) -> Result<Option<Payload>, Option<ProblemDetails>> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(Some(too_large(limit)));
    }
    let deadline = time::now() + config.read_timeout;
    let body = read_body(body, limit, deadline).await.map_err(|error| match error {
        BodyError::TooLarge => Some(too_large(limit)),
        BodyError::Timeout => Some(ProblemDetails::new(408, "REQUEST_TIMEOUT")),
        BodyError::Broken => None,
    })?;
    let Some(expected) = expected.filter(|_| !body.is_empty()) else { return Ok(None) };
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let unsupported = || {
        ProblemDetails::new(415, "UNSUPPORTED_MEDIA_TYPE").detail(format!("expected {}", expected.as_str()))
    };
    let payload = content::read(content_type, body).map_err(|error| {
        Some(match error {
            ContentError::MediaType => unsupported(),
            ContentError::Multipart(_) | ContentError::Form(_) => {
                ProblemDetails::invalid_msg_format().detail(error)
            }
        })
    })?;
    // HAL documents are JSON to readers that ignore links.
    let fits = payload.media == expected || (expected == Media::Hal && payload.media == Media::Json);
    if fits { Ok(Some(payload)) } else { Err(Some(unsupported())) }
}

/// Reads and discards content, within the limits: if the stream is reset while a client still sends,
/// the client may lose the answer.
async fn discard(mut body: RecvStream, config: &ServerConfig) {
    let take_in = async {
        let mut octets = 0;
        while let Some(Ok(chunk)) = body.data().await {
            octets += chunk.len();
            if octets > config.max_body_bytes {
                return;
            }
            // A closed stream no longer needs window.
            let _ = body.flow_control().release_capacity(chunk.len());
        }
    };
    let _ = time::timeout(config.read_timeout, take_in).await;
}

fn too_large(limit: usize) -> ProblemDetails {
    ProblemDetails::new(413, "REQUEST_TOO_LARGE").detail(format!("at most {limit} octets"))
}

/// Why content could not be collected.
pub(super) enum BodyError {
    TooLarge,
    Timeout,
    Broken,
}

/// Collects a body of at most `limit` octets. A body of one frame is not copied.
pub(super) async fn read_body(
    mut body: RecvStream,
    limit: usize,
    deadline: Instant,
) -> Result<Bytes, BodyError> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let collect = async {
        let mut first = Bytes::new();
        let mut all = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(|_| BodyError::Broken)?;
            let length = chunk.len();
            if all.len().max(first.len()) + length > limit {
                return Err(BodyError::TooLarge);
            }
            // A closed stream needs no more window.
            let _ = body.flow_control().release_capacity(length);
            if first.is_empty() && all.is_empty() {
                first = chunk;
                continue;
            }
            if all.is_empty() {
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(if all.is_empty() { first } else { all.freeze() })
    };
    time::timeout(deadline - time::now(), collect).await.unwrap_or(Err(BodyError::Timeout))
}

/// Sends an answer; it does not matter if the peer has closed the stream.
fn send(mut respond: SendResponse<Bytes>, answer: Answer) {
    let mut response = Response::new(());
    *response.status_mut() =
        http::StatusCode::from_u16(answer.status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    let mut set = |name, value: Option<&str>| {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    };
    set(header::LOCATION, answer.location.as_deref());
    match &answer.remedy {
        Some(Remedy::Allow(methods)) => set(header::ALLOW, Some(methods)),
        Some(Remedy::Authenticate(challenge)) => set(header::WWW_AUTHENTICATE, Some(challenge)),
        None => {}
    }
    set(header::CACHE_CONTROL, answer.no_store.then_some("no-store"));
    let content = answer.payload.map(content::write);
    set(header::CONTENT_TYPE, content.as_ref().map(|(media, _)| media.as_str()));
    if let Some((_, body)) = &content {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    let sent = respond.send_response(response, content.is_none());
    if let (Ok(mut stream), Some((_, body))) = (sent, content)
        && stream.send_data(body, true).is_err()
    {
        stream.send_reset(Reason::CANCEL);
    }
}
