//! What a server's handler gets and gives.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::body::{self, PartReceiver, PartSender, Pipe};
use crate::core::server::Extras;
use crate::error::Code;
use crate::frame::PRIORITY;

/// A request.
pub struct Request {
    /// What the client sent; with [`crate::Config::parts`] perhaps only the beginning. A slice of what was read from the
    /// stream: copy what is kept for long.
    pub body: Bytes,
    pub(super) extras: Option<Box<Extras>>,
    pub(super) rest: Option<PartReceiver>,
}

impl Request {
    /// When the client stops waiting; the request is dropped then.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.extras.as_ref()?.deadline
    }

    /// 0, the most urgent, to 7.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.extras.as_ref().map_or(PRIORITY, |extras| extras.priority)
    }

    /// Tracing context, such as a W3C `traceparent`.
    #[must_use]
    pub fn trace(&self) -> Option<&Bytes> {
        self.extras.as_ref()?.trace.as_ref()
    }

    /// Length of the whole body, when it does not come in one piece and the client said so.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.extras.as_ref()?.size
    }

    /// What comes after [`Self::body`], when that is only the beginning. The client sends on as it is taken; dropped, it
    /// is ignored.
    pub fn rest(&mut self) -> Option<PartReceiver> {
        self.rest.take()
    }

    /// Nobody waits for an answer.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.one_way)
    }
}

/// The error that a handler answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Of the protocol, or from [`Code::APPLICATION`] on.
    pub code: Code,
    /// For people; at most 1,024 octets reach the client.
    pub text: Cow<'static, str>,
    /// The request had no effect: the client may repeat it elsewhere.
    pub not_processed: bool,
}

impl Failure {
    /// An error of the application.
    pub fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into(), not_processed: false }
    }

    /// The request was not begun, because there is too much to do.
    #[must_use]
    pub fn overloaded() -> Self {
        Self { code: Code::OVERLOADED, text: "busy".into(), not_processed: true }
    }
}

/// What a handler answers with: anything that becomes [`Bytes`], or parts.
pub struct Reply(pub(super) ReplyKind);

pub(super) enum ReplyKind {
    Whole(Bytes),
    Parts(Arc<Pipe>),
}

impl Reply {
    /// An answer that is made while it is sent: the handler returns the reply, and another task feeds the sender.
    /// A version 1 client gets it as one message, if it is no longer than that.
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

/// What handles the requests of a server: a closure `|request: Request| async { Ok(body) }`, or a type of its own.
///
/// A future is polled at once in the connection's task: what is ready then costs no task switch. One that waits does not
/// hold up others; one that computes for long does, and belongs into a task of its own.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The answer to come.
    type Future: Future<Output = Result<Self::Reply, Failure>> + Send;
    /// What the answer is made of.
    type Reply: Into<Reply>;
    /// Begins to handle a request.
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
