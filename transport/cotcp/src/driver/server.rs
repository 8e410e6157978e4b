//! The server: accepts connections, runs a task for each, and ends them when it drains.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::config::ServerConfig;
use super::handler::Handler;
use super::metrics::{Connections, Metrics};
use super::session::{Control, Session};
use super::stream::Stream;
use super::time;
use crate::error::ConnectionError;
use crate::{Config, Stats};

/// Pause after the system refused another connection for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A listening server. [`Self::serve`] runs it.
pub struct Server {
    listener: Listener,
    #[cfg(feature = "tls")]
    tls: Option<Arc<tokio_rustls::rustls::ServerConfig>>,
    shared: Arc<Shared>,
}

/// State that connections, handles and the accepting loop share.
struct Shared {
    config: ServerConfig,
    sessions: Mutex<Sessions>,
    draining: watch::Sender<bool>,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// Hand-shakes that failed.
    failed: AtomicU64,
    lost: AtomicU64,
}

#[derive(Default)]
struct Sessions {
    next: u64,
    open: HashMap<u64, Arc<Control>>,
    /// Counters of connections that have ended.
    past: Stats,
}

/// A handle to drain and observe a server.
#[derive(Clone)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl Server {
    /// Listens on `host:port`. Port 0 takes a free port.
    ///
    /// # Errors
    /// The address is in use, or not permitted.
    pub async fn bind(
        address: impl tokio::net::ToSocketAddrs,
        config: impl Into<ServerConfig>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self::new(Listener::Tcp(listener), config.into()))
    }

    /// Listens on a Unix socket.
    ///
    /// # Errors
    /// The path exists, or is not permitted.
    pub fn bind_unix(path: impl AsRef<Path>, config: impl Into<ServerConfig>) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        let listener = UnixListener::bind(&path)?;
        Ok(Self::new(Listener::Unix(listener, path), config.into()))
    }

    fn new(listener: Listener, config: ServerConfig) -> Self {
        let shared = Shared {
            config,
            sessions: Mutex::default(),
            draining: watch::channel(false).0,
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        Self {
            listener,
            #[cfg(feature = "tls")]
            tls: None,
            shared: Arc::new(shared),
        }
    }

    /// Uses TLS with clients (over TCP).
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, config: Arc<tokio_rustls::rustls::ServerConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// The address on which it listens, if that is TCP.
    ///
    /// # Errors
    /// The system call failed, or the server listens on a Unix socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Unix(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// A handle to drain the server with.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { shared: Arc::clone(&self.shared) }
    }

    /// Answers requests until the server is drained. Dropping the future ends all connections.
    pub async fn serve<H: Handler>(self, handler: H) {
        let ender = Ender(Arc::clone(&self.shared));
        let mut draining = self.shared.draining.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                _ = draining.wait_for(|draining| *draining) => break,
            };
            match accepted {
                Ok(accepted) => self.shared.start(accepted, handler.clone()),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
        if let Listener::Unix(_, path) = &self.listener {
            // Another one may have removed it already.
            let _ = std::fs::remove_file(path);
        }
        drop(self);
        ender.0.finish().await;
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match &self.listener {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                #[cfg(feature = "tls")]
                if let Some(config) = &self.tls {
                    return Ok(Accepted::Tls(Arc::clone(config), stream));
                }
                Ok(Accepted::Ready(Stream::tcp(stream)))
            }
            Listener::Unix(listener, _) => {
                listener.accept().await.map(|(stream, _)| Accepted::Ready(Stream::unix(stream)))
            }
        }
    }
}

/// Answers requests on an accepted stream until it ends. Returns the reason.
pub async fn serve_stream<H: Handler>(stream: Stream, config: Config, handler: H) -> ConnectionError {
    let mut session = Session::new(stream, config, handler, Arc::new(Control::default()));
    let reason = poll_fn(|cx| session.poll(cx)).await;
    session.close().await;
    reason
}

/// An accepted stream.
enum Accepted {
    Ready(Stream),
    #[cfg(feature = "tls")]
    Tls(Arc<tokio_rustls::rustls::ServerConfig>, tokio::net::TcpStream),
}

impl Accepted {
    /// The stream after the TLS hand-shake, if the server uses TLS.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_async, reason = "TLS has to wait"))]
    async fn ready(self, within: Duration) -> io::Result<Stream> {
        #[cfg(not(feature = "tls"))]
        let _ = within;
        match self {
            Self::Ready(stream) => Ok(stream),
            #[cfg(feature = "tls")]
            Self::Tls(config, stream) => super::tls::accept(config, stream, within).await,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a connection in a task of its own.
    fn start<H: Handler>(self: &Arc<Self>, accepted: Accepted, handler: H) {
        let control = Arc::new(Control::default());
        let mut sessions = self.lock();
        if sessions.open.len() >= self.config.max_connections {
            self.refused.fetch_add(1, Relaxed);
            return;
        }
        let number = sessions.next;
        sessions.next += 1;
        sessions.open.insert(number, Arc::clone(&control));
        drop(sessions);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let entry = Entry { shared: &shared, number };
            match accepted.ready(shared.config.handshake_timeout).await {
                Ok(stream) => {
                    shared.accepted.fetch_add(1, Relaxed);
                    shared.hold(stream, handler, control).await;
                    shared.lost.fetch_add(1, Relaxed);
                }
                Err(_) => drop(shared.failed.fetch_add(1, Relaxed)),
            }
            drop(entry);
        });
    }

    async fn hold<H: Handler>(&self, stream: Stream, handler: H, control: Arc<Control>) {
        let mut session = Session::new(stream, self.config.connection.clone(), handler, control);
        poll_fn(|cx| session.poll(cx)).await;
        session.close().await;
    }

    /// Lets open calls continue for a while, then ends the connections.
    async fn finish(&self) {
        self.each(Control::drain);
        let end = time::now() + self.config.drain_timeout;
        while !self.lock().open.is_empty() && time::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn each(&self, tell: impl Fn(&Control)) {
        let open: Vec<_> = self.lock().open.values().cloned().collect();
        open.iter().for_each(|control| tell(control));
    }
}

/// Ends all connections when the server ends.
struct Ender(Arc<Shared>);

impl Drop for Ender {
    fn drop(&mut self) {
        self.0.each(Control::stop);
    }
}

/// Removes a connection from the list when its task ends for any reason.
struct Entry<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut sessions = self.shared.lock();
        if let Some(control) = sessions.open.remove(&self.number) {
            sessions.past.add(&control.stats());
        }
    }
}

impl ServerHandle {
    /// Stops accepting connections and calls. [`Server::serve`] returns when the open calls have ended, or
    /// after [`ServerConfig::drain_timeout`].
    pub fn drain(&self) {
        self.shared.draining.send_replace(true);
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let shared = &self.shared;
        let sessions = shared.lock();
        let mut stats = sessions.past;
        sessions.open.values().for_each(|control| stats.add(&control.stats()));
        let connections = Connections {
            open: sessions.open.len() as u64,
            made: shared.accepted.load(Relaxed),
            failed: shared.failed.load(Relaxed),
            lost: shared.lost.load(Relaxed),
            refused: shared.refused.load(Relaxed),
            ..Connections::default()
        };
        Metrics { connections, stats }
    }

    /// Number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.lock().open.len()
    }
}
