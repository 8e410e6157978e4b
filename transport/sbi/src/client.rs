//! Calling operations.
//!
//! [`Client::call`] finds the peer (directly, or through the NRF with a cache), writes the request,
//! sends it with the binding that the peer uses, and reads the answer. A call that was certainly not
//! processed is repeated once, on another instance if there is one. No other call is ever repeated.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use http::HeaderValue;
use net::time::{self, Instant};

use crate::{
    access::{Access, Wallet},
    codec::{Codec, Payload},
    config::ClientConfig,
    counters::{CLIENT_CALLS, CLIENT_FAILURES, CLIENT_RETRIES},
    discovery::Discovery,
    exchange::{Answer, Exchange, Lost},
    http_json,
    message::Media,
    operation::{Body, Callback, Operation, OperationError, Request, Response, Service},
    param::ParamWriter,
    problem::ProblemDetails,
    target::{ApiRoot, Scheme, Selection, Target},
};

/// The future of a method that does not depend on the operation. A crate compiles the futures that it awaits, unless
/// they are boxed: without the box, every NF's crate would compile HTTP/2 and TLS again.
type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Lost>> + Send + 'a>>;

/// Most peers whose connections are kept. A core has few peers, but callbacks could name any number.
const MAX_PEERS: usize = 1024;

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError<E: OperationError = ProblemDetails> {
    /// The peer refused.
    #[error("{operation}: {}", error.problem())]
    Problem {
        /// The operation.
        operation: &'static str,
        /// What the peer answered.
        error: E,
    },
    /// The peer did not answer in time. It may have processed the request.
    #[error("{operation}: no answer in time")]
    Timeout {
        /// The operation.
        operation: &'static str,
    },
    /// No connection to the peer was possible, the connection broke, or the NRF knows no instance.
    #[error("{operation}: not reachable: {reason}")]
    Unreachable {
        /// The operation.
        operation: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// The peer's answer is invalid for this operation.
    #[error("{operation}: the answer is invalid: {reason}")]
    Malformed {
        /// The operation.
        operation: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl<E: OperationError> CallError<E> {
    /// The peer's answer, if it refused.
    pub fn refusal(&self) -> Option<&E> {
        match self {
            Self::Problem { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Status code of a refusal.
    pub fn status(&self) -> Option<u16> {
        self.refusal().map(|error| error.problem().status)
    }

    /// Whether the peer refused with this cause.
    pub fn is(&self, cause: &str) -> bool {
        self.refusal().is_some_and(|error| error.problem().is(cause))
    }

    /// The problem to return to our own caller: the peer's own if it refused, else 504.
    pub fn to_problem(&self) -> ProblemDetails {
        match self {
            Self::Problem { error, .. } => error.problem().clone(),
            Self::Malformed { .. } => ProblemDetails::new(502, "PEER_ANSWER_MALFORMED"),
            Self::Timeout { .. } | Self::Unreachable { .. } => ProblemDetails::peer_not_responding(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Problem { .. } => "problem",
            Self::Timeout { .. } => "timeout",
            Self::Unreachable { .. } => "unreachable",
            Self::Malformed { .. } => "malformed",
        }
    }
}

impl<E: OperationError> From<CallError<E>> for ProblemDetails {
    fn from(error: CallError<E>) -> Self {
        error.to_problem()
    }
}

/// Calls operations of other NFs. Clones share connections and caches.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    peers: Mutex<HashMap<ApiRoot, Arc<http_json::Peer>>>,
    discovery: Discovery,
    wallet: Wallet,
}

impl Client {
    /// A client; it opens no connection yet.
    pub fn new(config: ClientConfig) -> Self {
        let (peers, discovery, wallet) = (Mutex::default(), Discovery::default(), Wallet::default());
        Self { inner: Arc::new(Inner { config, peers, discovery, wallet }) }
    }

    /// The client's configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Calls operation `O` at `target` and waits for the answer.
    ///
    /// # Errors
    /// The peer refused, did not answer in time, could not be reached, or sent an invalid answer.
    pub async fn call<O: Operation>(
        &self,
        target: impl Into<Target>,
        request: O::Request,
    ) -> Result<O::Response, CallError<O::Error>> {
        CLIENT_CALLS.inc();
        let prefix = format!("/{}/{}", O::SERVICE.name, O::SERVICE.version);
        let mut params = ParamWriter::with_prefix(prefix, O::PATH);
        request.write_params(&mut params);
        let exchange = exchange::<O>(params.finish(), request.into_body().encode(Codec::Json));
        result::<O>(self.send(target.into(), exchange).await)
    }

    /// Sends a notification to a URI that the peer gave.
    ///
    /// # Errors
    /// Those of [`Self::call`].
    pub async fn notify<O: Callback>(&self, uri: &str, body: O::Body) -> Result<(), CallError> {
        CLIENT_CALLS.inc();
        let answer = match split_uri(uri) {
            Some((root, path)) => {
                let exchange = exchange::<O>(path, Body::encode(body, Codec::Json));
                self.send(Target::At(root), exchange).await
            }
            None => {
                let uri: String = uri.chars().take(128).collect();
                Err(Lost::NotConnected(format!("`{uri}` is not a URI we can call")))
            }
        };
        result::<O>(answer)
    }

    /// Finds an instance that offers `O`'s service, gets an access token for it and opens the
    /// connection, so that the first call need not do that. No request reaches the peer.
    ///
    /// # Errors
    /// There is no instance yet, or it accepts no connections.
    pub async fn prepare<O: Operation>(&self) -> Result<(), CallError<O::Error>> {
        self.prepare_service(O::SERVICE, O::ACCESS).await.map_err(lost_error::<O>)
    }

    fn prepare_service(&self, service: Service, access: Access) -> Pending<'_, ()> {
        Box::pin(async move {
            let deadline = time::now() + self.inner.config.timeout;
            let root = self.resolve(&select(&service, None, None)?, deadline).await?;
            self.authorization(&service, access, deadline).await?;
            self.peer(&root).prepare(deadline).await
        })
    }

    /// Sends a request to `target`, which discovery finds unless it is an address.
    fn send(&self, target: Target, exchange: Exchange) -> Pending<'_, Answer> {
        Box::pin(async move {
            let deadline = time::now() + self.inner.config.timeout;
            let selection = match target {
                Target::At(root) => return self.exchange_at(&root, exchange, deadline).await,
                Target::Discover => select(&exchange.service, None, None)?,
                Target::Serving { dnn, snssai } => select(&exchange.service, dnn, snssai)?,
            };
            let root = self.resolve(&selection, deadline).await?;
            match self.exchange_at(&root, exchange.clone(), deadline).await {
                // The instance does not answer: another may have replaced it.
                Err(Lost::NotConnected(_) | Lost::NotProcessed(_)) => {
                    self.inner.discovery.forget(&selection, &root);
                    let other = self.resolve(&selection, deadline).await?;
                    self.exchange_at(&other, exchange, deadline).await
                }
                answer => answer,
            }
        })
    }

    async fn resolve(&self, selection: &Selection, deadline: Instant) -> Result<ApiRoot, Lost> {
        match time::timeout(deadline - time::now(), self.inner.discovery.resolve(self, selection)).await {
            Ok(resolved) => resolved.map_err(Lost::NotConnected),
            Err(_) => Err(Lost::Timeout),
        }
    }

    /// One exchange with one peer, with an access token; repeated once with a new token if the peer
    /// refuses the stored one.
    async fn exchange_at(
        &self,
        root: &ApiRoot,
        mut exchange: Exchange,
        deadline: Instant,
    ) -> Result<Answer, Lost> {
        exchange.path_and_query.insert_str(0, root.prefix());
        exchange.authorization = self.authorization(&exchange.service, exchange.access, deadline).await?;
        let Some(refused) = exchange.authorization.clone() else {
            return self.exchange_once(root, exchange, deadline).await;
        };
        let answer = self.exchange_once(root, exchange.clone(), deadline).await?;
        if answer.status != 401 {
            return Ok(answer);
        }
        self.inner.wallet.forget(&exchange.service, &refused);
        exchange.authorization = self.authorization(&exchange.service, exchange.access, deadline).await?;
        CLIENT_RETRIES.inc();
        self.exchange_once(root, exchange, deadline).await
    }

    /// The access token for calls to a service; `None` if tokens are switched off or the call needs
    /// none.
    async fn authorization(
        &self,
        service: &Service,
        access: Access,
        deadline: Instant,
    ) -> Result<Option<HeaderValue>, Lost> {
        let Some(credentials) = self.inner.config.credentials.as_ref().filter(|_| access != Access::Open)
        else {
            return Ok(None);
        };
        let token = self.inner.wallet.token(self, credentials, service);
        match time::timeout(deadline - time::now(), token).await {
            Ok(token) => {
                token.map(Some).map_err(|reason| Lost::NoToken(format!("no access token: {reason}")))
            }
            Err(_) => Err(Lost::Timeout),
        }
    }

    pub(crate) fn wallet(&self) -> &Wallet {
        &self.inner.wallet
    }

    /// One exchange with one peer; repeated once on a new connection if the old one was broken.
    async fn exchange_once(
        &self,
        root: &ApiRoot,
        exchange: Exchange,
        deadline: Instant,
    ) -> Result<Answer, Lost> {
        let peer = self.peer(root);
        match peer.call(exchange.clone(), deadline).await {
            Err(Lost::NotProcessed(_)) => {
                CLIENT_RETRIES.inc();
                peer.call(exchange, deadline).await
            }
            result => result,
        }
    }

    fn peer(&self, root: &ApiRoot) -> Arc<http_json::Peer> {
        let mut peers = self.inner.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peers.get(root) {
            return peer.clone();
        }
        if peers.len() >= MAX_PEERS {
            // Calls in progress keep their connection; later calls connect again.
            peers.clear();
        }
        let peer = Arc::new(http_json::Peer::new(root.clone(), &self.inner.config));
        peers.insert(root.clone(), peer.clone());
        peer
    }
}

fn exchange<O: Operation>(path_and_query: String, payload: Option<Payload>) -> Exchange {
    Exchange {
        operation: O::NAME,
        service: O::SERVICE,
        access: O::ACCESS,
        method: O::METHOD,
        path_and_query,
        payload,
        authorization: None,
    }
}

fn select(
    service: &Service,
    dnn: Option<types::Dnn>,
    snssai: Option<types::SNssai>,
) -> Result<Selection, Lost> {
    let callback = || Lost::NotConnected("callbacks go to a URI".to_owned());
    let nf_type = service.offered_by.clone().ok_or_else(callback)?;
    Ok(Selection { nf_type, service: service.name, dnn, snssai })
}

/// API root without prefix, and the rest.
fn split_uri(uri: &str) -> Option<(ApiRoot, String)> {
    let (_, rest) = Scheme::split(uri)?;
    let path_at = uri.len() - rest.len() + rest.find('/').unwrap_or(rest.len());
    let (root, path) = uri.split_at_checked(path_at)?;
    let path = if path.is_empty() { "/" } else { path };
    Some((root.parse().ok()?, path.to_owned()))
}

fn lost_error<O: Operation>(lost: Lost) -> CallError<O::Error> {
    let operation = O::NAME;
    match lost {
        Lost::NoToken(reason)
        | Lost::NotConnected(reason)
        | Lost::NotProcessed(reason)
        | Lost::Unknown(reason) => CallError::Unreachable { operation, reason },
        Lost::Timeout => CallError::Timeout { operation },
        Lost::Malformed(reason) => CallError::Malformed { operation, reason },
    }
}

/// The result of operation `O`; counts failures.
fn result<O: Operation>(answer: Result<Answer, Lost>) -> Result<O::Response, CallError<O::Error>> {
    let result = answer.map_err(lost_error::<O>).and_then(read_answer::<O>);
    if let Err(error) = &result {
        CLIENT_FAILURES.inc(error.kind());
    }
    result
}

fn read_answer<O: Operation>(answer: Answer) -> Result<O::Response, CallError<O::Error>> {
    let operation = O::NAME;
    let malformed = |reason: String| CallError::Malformed { operation, reason };
    match answer.into_reply() {
        Ok(reply) => {
            O::Response::from_reply(reply, Codec::Json).map_err(|error| malformed(error.to_string()))
        }
        Err(Answer { status, .. }) if status < 400 => Err(malformed(format!("unexpected status {status}"))),
        Err(Answer { status, payload, .. }) => {
            let error = payload.and_then(|payload| decode_error::<O>(payload, status));
            let error =
                error.unwrap_or_else(|| ProblemDetails { status, ..ProblemDetails::default() }.into());
            Err(CallError::Problem { operation, error })
        }
    }
}

/// Reads the content of a failure; the status line takes precedence over a status in the content.
fn decode_error<O: Operation>(payload: Payload, status: u16) -> Option<O::Error> {
    if payload.media == Media::Problem {
        let problem: ProblemDetails = Codec::Json.decode(payload).ok()?;
        return Some(ProblemDetails { status, ..problem }.into());
    }
    O::Error::decode(payload, Codec::Json)
}
