//! The streams below a connection: TCP, Unix sockets, anything that tokio can read and write.
//!
//! A connection reads and writes through two boxed halves, at the cost of one virtual call per batch of
//! frames.

use std::future::{Future, poll_fn};
use std::io;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};

use crate::core::Outbox;
use crate::error::ConnectionError;

/// First size of the read buffer. It is small because many connections are idle.
const READ_MIN: usize = 4 * 1024;
/// Largest size of the read buffer, which grows while reads fill it.
const READ_MAX: usize = 128 * 1024;
/// Slices of one vectored write.
const SLICES: usize = 32;
/// Octets that the kernel may queue before the socket is no longer writable. A small frame cannot overtake
/// what the kernel has queued.
const NOT_SENT: u32 = 4 * 1024;

/// Time to send the last octets to a peer.
const FAREWELL: Duration = Duration::from_secs(1);

type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// A connected stream, split into halves.
pub struct Stream {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
}

impl Stream {
    /// A TCP connection. Sets socket options for low latency: small writes leave at once, and little is
    /// queued in the kernel.
    #[must_use]
    pub fn tcp(stream: TcpStream) -> Self {
        low_latency(&stream);
        let (reader, writer) = stream.into_split();
        Self::halves(Box::new(reader), Box::new(writer))
    }

    /// A Unix socket.
    #[must_use]
    pub fn unix(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self::halves(Box::new(reader), Box::new(writer))
    }

    /// Any other stream that delivers all octets in order.
    #[must_use]
    pub fn other(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self::halves(Box::new(reader), Box::new(writer))
    }

    fn halves(reader: ReadHalf, writer: WriteHalf) -> Self {
        Self {
            reader: Reader { half: reader, size: READ_MIN },
            writer: Writer { half: writer, dirty: false },
        }
    }
}

/// Asks the kernel to send small writes at once and to queue little. When the options fail, the connection
/// works but is slower.
pub(super) fn low_latency(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket2::SockRef::from(stream).set_tcp_notsent_lowat(NOT_SENT);
}

/// The connection error for an error of the stream.
pub(super) fn failure(error: &io::Error) -> ConnectionError {
    #[cfg(feature = "tls")]
    if let Some(reason) = super::tls::reason(error) {
        return ConnectionError::Tls(reason);
    }
    ConnectionError::Io(error.kind())
}

/// The read half.
pub(super) struct Reader {
    half: ReadHalf,
    size: usize,
}

impl Reader {
    /// Reads once and returns the number of octets; 0 is the end. More may be left after `Ready`.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        if input.capacity() - input.len() < self.size / 2 {
            input.reserve(self.size);
        }
        let room = input.capacity() - input.len();
        let count = ready!(pin!(self.half.read_buf(input)).poll(cx))?;
        if count == room {
            self.size = (self.size * 2).min(READ_MAX);
        }
        Poll::Ready(Ok(count))
    }
}

/// The write half.
pub(super) struct Writer {
    half: WriteHalf,
    /// Whether octets were written and not flushed.
    dirty: bool,
}

impl Writer {
    /// Writes the outbox until it is empty or the stream takes no more.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<io::Result<()>> {
        while !outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = outbox.chunks_vectored(&mut slices);
            let half = Pin::new(&mut self.half);
            let written = match &slices[..count] {
                [one] => ready!(half.poll_write(cx, one))?,
                several => ready!(half.poll_write_vectored(cx, several))?,
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.dirty = true;
            outbox.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Flushes what a layer such as TLS holds back. Costs nothing on sockets.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.dirty {
            ready!(Pin::new(&mut self.half).poll_flush(cx))?;
            self.dirty = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl Writer {
    /// Writes what is left and closes the stream, within a short time limit.
    pub(super) async fn close(mut self, mut rest: Outbox) {
        let farewell = async {
            poll_fn(|cx| self.poll(cx, &mut rest)).await?;
            poll_fn(|cx| Pin::new(&mut self.half).poll_shutdown(cx)).await
        };
        // Nobody is left to tell when that fails.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// Where a client connects to.
#[derive(Clone)]
pub struct Address(Kind);

#[derive(Clone)]
enum Kind {
    /// A name, looked up at each attempt. Its addresses are tried in turn.
    Name(Arc<str>),
    Tcp(SocketAddr),
    Unix(Arc<Path>),
    Other(Arc<dyn Fn() -> Connecting + Send + Sync>),
}

impl Address {
    /// Connects by a function: TLS, a proxy, a pipe in a test.
    pub fn with<F, T>(connect: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = io::Result<Stream>> + Send + 'static,
    {
        Self(Kind::Other(Arc::new(move || Box::pin(connect()))))
    }

    /// Connects once.
    pub(super) async fn connect(&self) -> io::Result<Stream> {
        match &self.0 {
            Kind::Tcp(address) => Ok(Stream::tcp(TcpStream::connect(address).await?)),
            Kind::Unix(path) => Ok(Stream::unix(UnixStream::connect(path).await?)),
            Kind::Other(connect) => connect().await,
            Kind::Name(name) => connect_tcp(name).await.map(Stream::tcp),
        }
    }
}

/// Connects to `host:port`, trying its addresses in turn.
pub(super) async fn connect_tcp(name: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(name).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self(Kind::Tcp(address))
    }
}

/// `host:port`, or `unix:` and a path.
impl From<&str> for Address {
    fn from(text: &str) -> Self {
        match text.strip_prefix("unix:") {
            Some(path) => Path::new(path).into(),
            None => Self(Kind::Name(text.into())),
        }
    }
}

impl From<String> for Address {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        Self(Kind::Unix(path.into()))
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Self {
        path.as_path().into()
    }
}
