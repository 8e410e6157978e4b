//! What a server's handler gets and gives.

use std::borrow::Cow;
use std::future::Future;
use std::time::Instant;

use bytes::Bytes;

use crate::core;
use crate::error::Code;

/// A request, whole.
#[derive(Debug)]
pub struct Request {
    /// What the client sent. A slice of what was read from the stream: copy what is kept for long.
    pub body: Bytes,
    pub(super) inner: core::Request,
}

impl Request {
    /// When the client stops waiting; the request is dropped then.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    /// 0, the most urgent, to 7.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.inner.priority()
    }

    /// Tracing context, such as a W3C `traceparent`.
    #[must_use]
    pub fn trace(&self) -> Option<&Bytes> {
        self.inner.trace()
    }

    /// Nobody waits for an answer.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.inner.is_one_way()
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

/// What handles the requests of a server: a closure `|request: Request| async { Ok(body) }`, or a type of its own.
///
/// A future is polled at once in the connection's task: what is ready then costs no task switch. One that waits does not
/// hold up others; one that computes for long does, and belongs into a task of its own.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The answer to come.
    type Future: Future<Output = Result<Self::Reply, Failure>> + Send;
    /// What the answer is made of.
    type Reply: Into<Bytes>;
    /// Begins to handle a request.
    fn handle(&self, request: Request) -> Self::Future;
}

impl<F, T, R> Handler for F
where
    F: Fn(Request) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Result<R, Failure>> + Send,
    R: Into<Bytes>,
{
    type Future = T;
    type Reply = R;

    #[inline]
    fn handle(&self, request: Request) -> T {
        self(request)
    }
}
