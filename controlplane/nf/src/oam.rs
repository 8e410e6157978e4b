//! Operation and maintenance: HTTP/1.1 with JSON over a Unix socket, `<run_dir>/<nf>.sock` (mode 0600).
//!
//! `godwit ue list` and similar commands use it with [`call`]; people can use `curl --unix-socket
//! /run/godwit/amf.sock http://nf/status`. The socket works across network namespaces. It is no 3GPP
//! interface: each NF documents its routes in its own `oam.rs` or `service.rs`.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Response, StatusCode, body::Incoming, header, service::service_fn};
use hyper_util::rt::TokioIo;
use net::{time, uds};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinHandle};

/// Most octets of a request's content.
const MAX_BODY: usize = 64 * 1024;
/// Most octets of an answer to [`call`]: lists of 100,000 entries fit.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// Most connections at once.
const MAX_CONNECTIONS: usize = 32;
/// Time limit of [`call`], for requests that the NF answers by itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A request to an OAM route.
#[derive(Debug, Clone, Default)]
pub struct Request {
    params: BTreeMap<&'static str, String>,
    query: BTreeMap<String, String>,
    body: Value,
}

impl Request {
    /// A path parameter, read as `T`.
    ///
    /// # Errors
    /// 400 if the value cannot be parsed as `T`.
    pub fn param<T: std::str::FromStr>(&self, name: &str) -> Result<T, Error>
    where
        T::Err: std::fmt::Display,
    {
        let text = self.params.get(name).map(String::as_str).unwrap_or_default();
        text.parse().map_err(|error: T::Err| Error::bad_request(format!("{name}: {error}")))
    }

    /// A query parameter.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// The JSON content; null if there is none.
    pub fn body(&self) -> &Value {
        &self.body
    }
}

/// A refusal, answered as `{"error": "…"}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// HTTP status code.
    pub status: u16,
    /// Text for the user.
    pub message: String,
}

impl Error {
    /// 400.
    pub fn bad_request(message: impl std::fmt::Display) -> Self {
        Self { status: 400, message: message.to_string() }
    }

    /// 404.
    pub fn not_found(message: impl std::fmt::Display) -> Self {
        Self { status: 404, message: message.to_string() }
    }

    /// 409: not possible in this state.
    pub fn conflict(message: impl std::fmt::Display) -> Self {
        Self { status: 409, message: message.to_string() }
    }

    /// 500.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Self { status: 500, message: message.to_string() }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Vec<u8>, Error>> + Send>>;

struct Route {
    method: Method,
    template: &'static str,
    handler: Box<dyn Fn(Request) -> Answer + Send + Sync>,
}

/// The OAM routes of an NF.
#[derive(Default)]
pub struct Oam {
    routes: Vec<Route>,
}

impl std::fmt::Debug for Oam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.routes.iter().map(|r| (&r.method, r.template))).finish()
    }
}

impl Oam {
    /// No routes; `GET /status` is added for every NF.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers GET on a template such as `/ues/{supi}`.
    #[must_use]
    pub fn get<F, Fut, T>(self, template: &'static str, handler: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
        T: Serialize,
    {
        self.route(Method::GET, template, handler)
    }

    /// Answers POST on a template such as `/ues/{supi}/deregister`.
    #[must_use]
    pub fn post<F, Fut, T>(self, template: &'static str, handler: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
        T: Serialize,
    {
        self.route(Method::POST, template, handler)
    }

    fn route<F, Fut, T>(mut self, method: Method, template: &'static str, handler: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
        T: Serialize,
    {
        let handler = move |request| -> Answer {
            let answer = handler(request);
            Box::pin(async move { serde_json::to_vec(&answer.await?).map_err(Error::internal) })
        };
        self.routes.push(Route { method, template, handler: Box::new(handler) });
        self
    }

    /// Adds `GET /status`; the NF's own status is its member `detail`.
    pub(crate) fn with_status(mut self, status: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        let position = self.routes.iter().position(|r| r.template == "/status" && r.method == Method::GET);
        let own = position.map(|i| Arc::new(self.routes.swap_remove(i).handler));
        let status = Arc::new(status);
        self.get("/status", move |request| {
            let (own, status) = (own.clone(), status.clone());
            async move {
                let mut value = status();
                if let Some(own) = own {
                    let detail = own(request).await?;
                    value["detail"] = serde_json::from_slice(&detail).map_err(Error::internal)?;
                }
                Ok(value)
            }
        })
    }

    /// Serves the routes on a Unix socket. A socket file left by a killed process is replaced.
    ///
    /// # Errors
    /// Another process serves the socket, or the file system refuses.
    pub fn serve(self, path: &Path) -> io::Result<OamServer> {
        let listener = uds::Listener::bind(path)?;
        let task = tokio::spawn(accept(listener, Arc::new(self)));
        Ok(OamServer { task })
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Result<Vec<u8>, Error> {
        let (head, body) = request.into_parts();
        let mut other_method = false;
        for route in &self.routes {
            let Some(params) = match_template(route.template, head.uri.path()) else { continue };
            if route.method != head.method {
                other_method = true;
                continue;
            }
            let body = Limited::new(body, MAX_BODY).collect().await;
            let body = body.map_err(|_| Error::bad_request("the content is broken or too large"))?.to_bytes();
            let body = match body.is_empty() {
                true => Value::Null,
                false => {
                    serde_json::from_slice(&body).map_err(|e| Error::bad_request(format!("not JSON: {e}")))?
                }
            };
            let pairs =
                head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
            let query = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            return (route.handler)(Request { params, query, body }).await;
        }
        if other_method {
            return Err(Error { status: 405, message: format!("{} is not possible here", head.method) });
        }
        let known: Vec<_> = self.routes.iter().map(|r| format!("{} {}", r.method, r.template)).collect();
        Err(Error::not_found(format!("no such route; there are: {}", known.join(", "))))
    }
}

/// A served OAM socket; dropping it stops serving and removes the file.
#[derive(Debug)]
pub struct OamServer {
    task: JoinHandle<()>,
}

impl Drop for OamServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: uds::Listener, oam: Arc<Oam>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        // Waits for a free place first, so that connections beyond the limit wait in the kernel.
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        while tasks.try_join_next().is_some() {}
        let Ok(stream) = listener.accept().await else {
            time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let oam = oam.clone();
        tasks.spawn(async move {
            let service = service_fn(move |request| {
                let oam = oam.clone();
                async move { Ok::<_, std::convert::Infallible>(to_response(oam.answer(request).await)) }
            });
            // A client may close the connection early.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(permit);
        });
    }
}

fn to_response(answer: Result<Vec<u8>, Error>) -> Response<Full<Bytes>> {
    let (status, body) = match answer {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => (
            StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            json!({ "error": error.message }).to_string().into_bytes(),
        ),
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn match_template(template: &'static str, path: &str) -> Option<BTreeMap<&'static str, String>> {
    let (expected, given): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    if expected.len() != given.len() {
        return None;
    }
    let mut params = BTreeMap::new();
    for (expected, given) in expected.into_iter().zip(given) {
        match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(name) => _ = params.insert(name, given.to_owned()),
            None if expected == given => {}
            None => return None,
        }
    }
    Some(params)
}

/// The OAM socket of an NF: `amf.sock` for `AMF`.
pub fn socket_path(run_dir: &Path, nf: &str) -> PathBuf {
    run_dir.join(format!("{}.sock", nf.to_ascii_lowercase()))
}

/// Why a call to an OAM socket failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No process serves the socket.
    #[error("no NF answers on {}: {source} (is it running, with this run_dir, and may you open the socket?)", path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The NF refused.
    #[error("{0}")]
    Refused(Error),
    /// The NF has not answered in time.
    #[error("the NF on {} has not answered within {} s", path.display(), limit.as_secs())]
    Late {
        /// The socket.
        path: PathBuf,
        /// The time limit.
        limit: Duration,
    },
    /// The answer was invalid.
    #[error("the NF on {} sent an invalid answer: {reason}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What was wrong.
        reason: String,
    },
}

/// Calls a route: `call(path, "GET", "/status", None)`.
///
/// # Errors
/// The NF does not run, refused, closed the connection, or did not answer within 10 s.
pub async fn call(
    socket: &Path,
    method: &str,
    route: &str,
    body: Option<&Value>,
) -> Result<Value, CallError> {
    call_within(CALL_TIMEOUT, socket, method, route, body).await
}

/// As [`call`] with another time limit, for operations that involve others, such as a UE.
///
/// # Errors
/// As [`call`].
pub async fn call_within(
    limit: Duration,
    socket: &Path,
    method: &str,
    route: &str,
    body: Option<&Value>,
) -> Result<Value, CallError> {
    let path = || socket.to_owned();
    let stream =
        uds::connect(socket).await.map_err(|source| CallError::NotRunning { path: path(), source })?;
    let broken = |reason: String| CallError::Broken { path: path(), reason };
    let exchange = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(error.to_string()))?;
        let driver = tokio::spawn(connection);
        let content = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = hyper::Request::builder()
            .method(method)
            .uri(route)
            .header(header::HOST, "nf")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(content)))
            .map_err(|error| broken(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(|error| broken(error.to_string()))?;
        let status = response.status();
        let content = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        driver.abort();
        let content = content.map_err(|error| broken(error.to_string()))?.to_bytes();
        let value: Value = serde_json::from_slice(&content).map_err(|error| broken(error.to_string()))?;
        if status.is_success() {
            return Ok(value);
        }
        let message = value["error"].as_str().unwrap_or("refused without a reason").to_owned();
        Err(CallError::Refused(Error { status: status.as_u16(), message }))
    };
    time::timeout(limit, exchange).await.unwrap_or_else(|_| Err(CallError::Late { path: path(), limit }))
}
