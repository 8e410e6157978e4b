//! The server's process: answers requests after the configured delay.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use net::precise::PreciseTimer;
use net::tcp::{self, TcpListener, TcpStream};
use net::time::Duration;
use serde::{Deserialize, Serialize};

use super::bodies;
use super::params::{Protocol, Serve};
use super::{driver, grpc, http2, inline, runtime, yamux};

/// What the server prints once it listens.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Ready {
    /// Address on which it listens.
    pub address: SocketAddr,
    /// Its process id.
    pub pid: u32,
}

/// The application behind every protocol.
#[derive(Clone, Debug)]
pub struct App {
    delay: Option<(PreciseTimer, Duration)>,
    response: usize,
}

impl App {
    /// Delays answers by `delay`; answers have `response` octets. Needs a tokio runtime.
    pub(super) fn new(delay: Duration, response: usize) -> anyhow::Result<App> {
        let delay = if delay.is_zero() { None } else { Some((PreciseTimer::new()?, delay)) };
        Ok(App { delay, response })
    }

    /// Waits for the configured delay.
    pub(super) async fn wait(&self) {
        if let Some((timer, delay)) = &self.delay {
            timer.sleep(*delay).await;
        }
    }

    /// Whether there is no delay.
    pub(super) fn is_instant(&self) -> bool {
        self.delay.is_none()
    }

    /// The answer to a request.
    pub(super) async fn answer(&self, request: Bytes) -> Bytes {
        self.wait().await;
        self.answer_now(request)
    }

    /// The answer without the delay.
    pub(super) fn answer_now(&self, request: Bytes) -> Bytes {
        bodies::answer(request, self.response)
    }

    /// Octets of an answer.
    pub(super) fn response(&self) -> usize {
        self.response
    }
}

/// Serves on a runtime of its own until the process is stopped; calls `ready` with the address.
///
/// # Errors
/// The address is in use, or the listener fails.
pub fn run(
    serve: &Serve,
    ready: impl FnOnce(&Ready) -> anyhow::Result<()>,
) -> anyhow::Result<std::convert::Infallible> {
    runtime(serve.cpus, &serve.pin)?.block_on(async {
        let server = Listening::bind(serve.protocol, serve.listen)
            .await
            .with_context(|| format!("listening on {}", serve.listen))?;
        let app = App::new(serve.delay, serve.response)?;
        ready(&Ready { address: server.address()?, pid: std::process::id() })?;
        server.serve(app).await
    })
}

/// A server that listens.
pub(super) enum Listening {
    /// A TCP listener, for all contenders except CoTCP.
    Plain(Protocol, TcpListener),
    /// CoTCP listens itself.
    Cotcp(cotcp::Server),
}

impl Listening {
    pub(super) async fn bind(protocol: Protocol, address: SocketAddr) -> anyhow::Result<Listening> {
        Ok(match protocol {
            Protocol::Cotcp | Protocol::CotcpPool | Protocol::CotcpV1 => {
                Listening::Cotcp(driver::bind(address, protocol).await?)
            }
            _ => Listening::Plain(protocol, tcp::listen(address).await?),
        })
    }

    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        match self {
            Listening::Plain(_, listener) => listener.local_addr(),
            Listening::Cotcp(server) => server.local_addr(),
        }
    }

    /// Serves on the caller's runtime.
    pub(super) async fn serve(self, app: App) -> anyhow::Result<std::convert::Infallible> {
        let (protocol, listener) = match self {
            Listening::Plain(protocol, listener) => (protocol, listener),
            Listening::Cotcp(server) => {
                driver::serve(server, app).await;
                bail!("the CoTCP server ended")
            }
        };
        match protocol {
            Protocol::Tcp => each(listener, app, super::tcp::serve).await,
            Protocol::Http2 => each(listener, app, http2::serve).await,
            Protocol::Yamux => each(listener, app, yamux::serve).await,
            Protocol::CotcpInline => each(listener, app, inline::serve).await,
            Protocol::Grpc => grpc::serve(listener, app).await,
            Protocol::Cotcp | Protocol::CotcpPool | Protocol::CotcpV1 => bail!("CoTCP listens itself"),
        }
    }
}

/// Starts a task for each connection.
async fn each<F>(
    listener: TcpListener,
    app: App,
    serve: impl Fn(TcpStream, App) -> F,
) -> anyhow::Result<std::convert::Infallible>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A client that disconnects, with an error or without, does not affect the server.
        tokio::spawn(serve(stream, app.clone()));
    }
}
