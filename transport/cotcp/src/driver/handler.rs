//! What a server's handler receives and returns.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::body::{self, PartReceiver, PartSender, Pipe};
use crate::core::server::Extras;
use crate::error::Code;
use crate::frame::PRIORITY;

/// A request from a client.
pub struct Request {
    /// The body; with [`crate::Config::parts`] perhaps only its first part. It is a slice of the read buffer:
    /// copy what is kept for long.
    pub body: Bytes,
    pub(super) extras: Option<Box<Extras>>,
    pub(super) rest: Option<PartReceiver>,
}

impl Request {
    /// When the client stops waiting. The server drops the request then.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.extras.as_ref()?.deadline
    }

    /// Priority from 0 (most urgent) to 7.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.extras.as_ref().map_or(PRIORITY, |extras| extras.priority)
    }

    /// Tracing context, such as a W3C `traceparent`.
    #[must_use]
    pub fn trace(&self) -> Option<&Bytes> {
        self.extras.as_ref()?.trace.as_ref()
    }

    /// Length of the whole body, when it arrives in parts and the client announced it.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.extras.as_ref()?.size
    }

    /// The parts that follow [`Self::body`], when that is only the first. The client sends more as parts are
    /// taken. Dropping the receiver ignores the rest.
    pub fn rest(&mut self) -> Option<PartReceiver> {
        self.rest.take()
    }

    /// Whether the client expects no answer.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.one_way)
    }
}

/// An error with which a handler answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// A code of the protocol, or from [`Code::APPLICATION`] on.
    pub code: Code,
    /// Explanation for people. At most 1,024 octets reach the client.
    pub text: Cow<'static, str>,
    /// Whether the request had no effect, so that the client may repeat it elsewhere.
    pub not_processed: bool,
}

impl Failure {
    /// An error of the application.
    pub fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into(), not_processed: false }
    }

    /// The server is too busy and has not begun to work on the request.
    #[must_use]
    pub fn overloaded() -> Self {
        Self { code: Code::OVERLOADED, text: "busy".into(), not_processed: true }
    }
}

/// The answer of a handler: anything that becomes [`Bytes`], or parts.
pub struct Reply(pub(super) ReplyKind);

pub(super) enum ReplyKind {
    Whole(Bytes),
    Parts(Arc<Pipe>),
}

impl Reply {
    /// An answer produced while it is sent: the handler returns the reply, and another task feeds the sender.
    /// A version 1 client gets it as one message, if it is short enough for version 1.
    #[must_use]
    pub fn parts() -> (PartSender, Self) {
        let (sender, pipe) = body::outgoing();
        (sender, Self(ReplyKind::Parts(pipe)))
    }
}

impl<T: Into<Bytes>> From<T> for Reply {
    #[inline]
    fn from(body: T) -> Self {
        Self(ReplyKind::Whole(body.into()))
    }
}

/// Handles the requests of a server: a closure `|request: Request| async { Ok(body) }`, or a type of its own.
///
/// A handler's future is polled at once in the connection's task, so a future that is ready costs no task
/// switch. A future that waits does not delay others. A future that computes for long delays them: spawn a
/// task for it.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The future of the answer.
    type Future: Future<Output = Result<Self::Reply, Failure>> + Send;
    /// The type of the answer.
    type Reply: Into<Reply>;
    /// Starts to handle a request.
    fn handle(&self, request: Request) -> Self::Future;
}

impl<F, T, R> Handler for F
where
    F: Fn(Request) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Result<R, Failure>> + Send,
    R: Into<Reply>,
{
    type Future = T;
    type Reply = R;

    #[inline]
    fn handle(&self, request: Request) -> T {
        self(request)
    }
}
