//! HTTP/1.1 with JSON over TCP, for interfaces that are not 3GPP's: their server, and the client of commands.
//!
//! The server reads requests within limits and leaves everything else to one handler. Refusals are `application/problem+json`
//! (RFC 9457), which say what to do.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{StatusCode, body::Incoming, header, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use net::{tcp, time};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinHandle};

/// Most connections at once.
const MAX_CONNECTIONS: usize = 64;
/// How long a request's head may take, and how long a connection may be idle.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection may last. A client that does not read its answer would keep its place for ever.
const LIFETIME: Duration = Duration::from_secs(300);
/// Most octets of an answer to [`call`].
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// A request, read whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// The path, without query.
    pub path: String,
    /// The query, without `?`.
    pub query: String,
    /// The content.
    pub body: Bytes,
}

impl Request {
    /// The parts of the path between slashes, percent-decoded; none if that is not possible.
    pub fn segments(&self) -> Option<Vec<String>> {
        self.path.trim_matches('/').split('/').map(decoded).collect()
    }
}

/// Text without percent-encoding (RFC 3986 §2.1).
fn decoded(text: &str) -> Option<String> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(octet) = rest.next() {
        if octet != b'%' {
            octets.push(octet);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        octets.push((high << 4 | low) as u8);
    }
    String::from_utf8(octets).ok()
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// HTTP status code.
    pub status: u16,
    /// The content.
    pub body: Value,
    /// The content as text, in the place of `body`: of thousands of users a tree of values takes longer than all else.
    pub text: Option<String>,
    /// The path of what was made.
    pub location: Option<String>,
}

impl Response {
    /// 200 with content.
    pub fn ok(body: Value) -> Response {
        Response { status: 200, body, text: None, location: None }
    }

    /// 200 with content that may be long.
    pub fn long(content: &impl Serialize) -> Response {
        match serde_json::to_string(content) {
            Ok(text) => Response { text: Some(text), ..Response::ok(Value::Null) },
            Err(error) => Response::problem(500, "the answer cannot be written", error),
        }
    }

    /// 201 (made) or 202 (it is being made), the path of what was made, and its content.
    pub fn made(status: u16, location: String, body: Value) -> Response {
        Response { location: Some(location), status, ..Response::ok(body) }
    }

    /// A refusal: a short title, and what is wrong and what to do.
    pub fn problem(status: u16, title: &str, detail: impl std::fmt::Display) -> Response {
        let body =
            json!({"type": "about:blank", "title": title, "status": status, "detail": detail.to_string()});
        Response { status, ..Response::ok(body) }
    }
}

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;
type Handler = dyn Fn(Request) -> Answer + Send + Sync;

/// A served address; dropping it stops serving.
#[derive(Debug)]
pub struct RestServer {
    task: JoinHandle<()>,
    address: SocketAddr,
}

impl RestServer {
    /// Serves `handler`, with requests of at most `max_body` octets.
    ///
    /// # Errors
    /// The address is in use, or not of this host.
    pub async fn start<F, Fut>(address: SocketAddr, max_body: usize, handler: F) -> io::Result<RestServer>
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response> + Send + 'static,
    {
        let listener = tcp::listen(address).await?;
        let address = listener.local_addr()?;
        let handler: Arc<Handler> = Arc::new(move |request| Box::pin(handler(request)));
        Ok(RestServer { task: tokio::spawn(accept(listener, max_body, handler)), address })
    }

    /// The served address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for RestServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: tcp::TcpListener, max_body: usize, handler: Arc<Handler>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        // Waits for a free place first, so that connections beyond the limit wait in the kernel.
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        while tasks.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let handler = handler.clone();
        tasks.spawn(async move {
            let service = service_fn(move |request| {
                let handler = handler.clone();
                async move { Ok::<_, std::convert::Infallible>(answer(request, max_body, &*handler).await) }
            });
            // A client may close the connection or stay silent at any time.
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            if time::timeout(LIFETIME, connection.as_mut()).await.is_err() {
                // An answer on its way may still arrive.
                connection.as_mut().graceful_shutdown();
                let _ = time::timeout(PATIENCE, connection).await;
            }
            drop(permit);
        });
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
    max_body: usize,
    handler: &Handler,
) -> hyper::Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = time::timeout(PATIENCE, Limited::new(body, max_body).collect()).await;
    let response = match body {
        Ok(Ok(body)) => {
            let request = Request {
                method: head.method.as_str().to_owned(),
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                body: body.to_bytes(),
            };
            handler(request).await
        }
        _ => {
            let detail = format!("the content is broken, slow, or has more than {max_body} octets");
            Response::problem(413, "content refused", detail)
        }
    };
    let kind = if response.status < 400 { "application/json" } else { "application/problem+json" };
    let text = response.text.unwrap_or_else(|| response.body.to_string());
    let mut out = hyper::Response::new(Full::new(Bytes::from(text)));
    *out.status_mut() = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    out.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    if let Some(location) = response.location.and_then(|path| header::HeaderValue::from_str(&path).ok()) {
        out.headers_mut().insert(header::LOCATION, location);
    }
    out
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody serves the address.
    #[error("nothing answers on {address}: {source}")]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The exchange failed, or took too long.
    #[error("{address}: {reason}")]
    Broken {
        /// The address.
        address: SocketAddr,
        /// What happened.
        reason: String,
    },
}

/// An answer as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// HTTP status code.
    pub status: u16,
    /// The content.
    pub content: Bytes,
    /// The path of what was made.
    pub location: Option<String>,
}

/// Sends a request and returns the answer, whatever its status is.
///
/// # Errors
/// Nobody serves the address, or the answer does not come within `limit` or is no JSON.
pub async fn call(
    limit: Duration,
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Response, CallError> {
    let Answered { status, content, location } = ask(limit, address, method, path, body).await?;
    let broken = |error: serde_json::Error| CallError::Broken { address, reason: error.to_string() };
    let body = serde_json::from_slice(&content).map_err(broken)?;
    Ok(Response { status, location, ..Response::ok(body) })
}

/// As [`call`], without reading the content.
///
/// # Errors
/// Nobody serves the address, or the answer does not come within `limit`.
pub async fn ask(
    limit: Duration,
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Answered, CallError> {
    let broken = |reason: String| CallError::Broken { address, reason };
    let exchange = async {
        let stream = tcp::connect(address, limit)
            .await
            .map_err(|source| CallError::Unreachable { address, source })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(error.to_string()))?;
        let driver = tokio::spawn(connection);
        let content = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, address.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(content)))
            .map_err(|error| broken(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(|error| broken(error.to_string()))?;
        let status = response.status().as_u16();
        let location = response.headers().get(header::LOCATION);
        let location = location.and_then(|path| path.to_str().ok()).map(str::to_owned);
        let content = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        driver.abort();
        let content = content.map_err(|error| broken(error.to_string()))?.to_bytes();
        Ok(Answered { status, content, location })
    };
    time::timeout(limit, exchange)
        .await
        .unwrap_or_else(|_| Err(broken(format!("no answer within {} s", limit.as_secs()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded() {
        let segments = |path: &str| Request { path: path.to_owned(), ..Request::default() }.segments();
        assert_eq!(segments("/v1/a%2Fb/%c3%BC").unwrap(), ["v1", "a/b", "ü"]);
        for wrong in ["/%", "/%2", "/%zz", "/%ff", "/%+1"] {
            assert_eq!(segments(wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn requests_are_read_within_limits() {
        let any = "127.0.0.1:0".parse().unwrap();
        let server = RestServer::start(any, 100, |request: Request| async move {
            match request.path.as_str() {
                "/made" => Response::made(201, "/made/7".to_owned(), json!({})),
                "/echo" => Response::ok(json!({"query": request.query, "octets": request.body.len()})),
                "/long" => Response::long(&[request.query]),
                _ => Response::problem(404, "not found", "there is /echo"),
            }
        })
        .await
        .unwrap();
        let address = server.address();
        let ask = |path: &'static str, body: Value| async move {
            call(PATIENCE, address, "POST", path, Some(&body)).await.unwrap()
        };
        let found = ask("/echo?a=1", json!("x")).await;
        assert_eq!(found, Response::ok(json!({"query": "a=1", "octets": 3})));
        assert_eq!(ask("/long?a=2", Value::Null).await, Response::ok(json!(["a=2"])));
        let made = ask("/made", Value::Null).await;
        assert_eq!((made.status, made.location.as_deref()), (201, Some("/made/7")));
        assert_eq!(ask("/other", Value::Null).await.status, 404);
        assert_eq!(ask("/echo", json!("x".repeat(200))).await.status, 413);
        let nobody = call(PATIENCE, "127.0.0.1:1".parse().unwrap(), "GET", "/", None).await;
        assert!(matches!(nobody, Err(CallError::Unreachable { .. })));
    }
}
