//! CoTCP with its own driver for tokio, as users have it: a call is a future that a worker's task awaits, and a
//! handler is an asynchronous closure.

use std::net::SocketAddr;

use bytes::Bytes;
use cotcp::{Client, ClientConfig, Config, Failure, Request, Server};
use futures_util::future::try_join_all;

use super::load::{Call, Crew};
use super::params::Protocol;
use super::serve::App;

/// Room for output that waits to be written: a large message of version 1 is in it as a whole.
const OUTPUT_MAX: usize = 8 << 20;

fn config(protocol: Protocol) -> Config {
    let config = Config { max_calls: cotcp::config::MAX_CALLS, ..Config::default() };
    match protocol {
        Protocol::CotcpV1 => Config { negotiate: false, max_output: OUTPUT_MAX, ..config },
        _ => config,
    }
}

/// Opens the listening socket.
pub(super) async fn bind(address: SocketAddr, protocol: Protocol) -> std::io::Result<Server> {
    Server::bind(address, config(protocol)).await
}

/// Answers requests.
pub(super) async fn serve(server: Server, app: App) {
    let handler = move |request: Request| {
        let app = app.clone();
        async move { Ok::<_, Failure>(app.answer(request.body).await) }
    };
    server.serve(handler).await;
}

/// Connects and starts the workers.
pub(super) async fn start(crew: &mut Crew) -> anyhow::Result<()> {
    let protocol = crew.load.protocol;
    let connections = crew.load.connections as usize;
    let pool = protocol == Protocol::CotcpPool;
    let config = ClientConfig {
        connections: if pool { connections } else { 1 },
        connection: config(protocol),
        ..ClientConfig::default()
    };
    if pool {
        // The pool distributes calls over its connections itself.
        crew.load.connections = 1;
    }
    let connect = async |server: SocketAddr| {
        let client = Client::connect(server, config.clone()).await?;
        Ok(Caller { client, parts: protocol == Protocol::CotcpV1 })
    };
    crew.start(connect).await?;
    crew.load.connections = connections as u32;
    Ok(())
}

/// A worker's access to a connection.
#[derive(Clone)]
struct Caller {
    client: Client,
    /// Whether a body that is too long for a frame of version 1 is sent as several calls.
    parts: bool,
}

impl Call for Caller {
    async fn call(&mut self, request: Bytes) -> anyhow::Result<Bytes> {
        if self.parts && request.len() > usize::from(u16::MAX) {
            return self.call_in_parts(request).await;
        }
        Ok(self.client.call(request).await?)
    }
}

impl Caller {
    /// Sends a request as parts of similar length, all at once.
    async fn call_in_parts(&self, request: Bytes) -> anyhow::Result<Bytes> {
        let count = request.len().div_ceil(usize::from(u16::MAX));
        let length = request.len().div_ceil(count);
        let parts = (0..request.len()).step_by(length).map(|at| {
            let part = request.slice(at..request.len().min(at + length));
            self.client.call(part)
        });
        Ok(try_join_all(parts).await?.concat().into())
    }
}
