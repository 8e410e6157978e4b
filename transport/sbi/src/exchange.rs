//! One request and one answer in the form that bindings transport, independent of the operation's Rust
//! types.
//!
//! ```text
//! Client::call ─ Exchange ─▶ binding (client) ═ wire ═▶ binding (server) ─ Incoming ─▶ Router
//!              ◀─ Answer ──                                              ◀─ Answer ───
//! ```

use crate::{
    access::{Access, Caller},
    codec::Payload,
    operation::{Method, Reply, Service, Success},
};

/// A request to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    /// Name for logs.
    pub(crate) operation: &'static str,
    pub(crate) service: Service,
    pub(crate) access: Access,
    pub(crate) method: Method,
    /// Path from the authority on, with query.
    pub(crate) path_and_query: String,
    pub(crate) payload: Option<Payload>,
    /// Access token in the form of the header.
    pub(crate) authorization: Option<http::HeaderValue>,
}

/// A received request with its complete content.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    /// Query without the question mark; empty when there is none.
    pub(crate) query: &'a str,
    /// Scheme and authority by which the caller addresses us, for `Location`.
    pub(crate) api_root: String,
    /// The sender.
    pub(crate) caller: Caller,
    pub(crate) payload: Option<Payload>,
}

/// An answer to be sent, or a received one.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Status code as HTTP has it.
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    /// What a refused caller can do.
    pub(crate) remedy: Option<Remedy>,
    /// The answer contains a token, so caches must not store it (RFC 6749 §5.1).
    pub(crate) no_store: bool,
    pub(crate) payload: Option<Payload>,
}

/// What a refused caller can do.
#[derive(Debug)]
pub(crate) enum Remedy {
    /// The methods that the resource allows, with 405.
    Allow(Box<str>),
    /// How to authenticate, with 401 and 403.
    Authenticate(Box<str>),
}

impl Answer {
    /// The answer of a successful operation.
    pub(crate) fn success(reply: Reply) -> Self {
        let status = match reply.success {
            Success::Ok => 200,
            Success::Created => 201,
            Success::Accepted => 202,
            Success::NoContent => 204,
        };
        Self { status, location: reply.location, remedy: None, no_store: false, payload: reply.payload }
    }

    /// The answer of a failed operation.
    pub(crate) fn failure(status: u16, payload: Payload) -> Self {
        Self { status, location: None, remedy: None, no_store: false, payload: Some(payload) }
    }

    /// The successful reply, if it is one.
    pub(crate) fn into_reply(self) -> Result<Reply, Self> {
        let success = match self.status {
            201 => Success::Created,
            202 => Success::Accepted,
            204 => Success::NoContent,
            200..=299 => Success::Ok,
            _ => return Err(self),
        };
        Ok(Reply { success, location: self.location, payload: self.payload })
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The NRF gave no access token for the call, which was not made.
    NoToken(String),
    /// No connection could be opened: the peer is down, or none is known. Another instance may help.
    NotConnected(String),
    /// An open connection failed before the peer can have processed the request: it can be repeated
    /// safely.
    NotProcessed(String),
    /// The connection broke while waiting: it is unknown whether the request was processed.
    Unknown(String),
    /// No answer arrived in time.
    Timeout,
    /// The answer is invalid.
    Malformed(String),
}
