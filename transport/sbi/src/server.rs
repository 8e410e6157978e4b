//! Serving operations at an address.

use std::{io, net::SocketAddr};

use tokio::{sync::watch, task::JoinHandle};

use crate::{
    access::Guard,
    config::ServerConfig,
    http_json,
    router::{Router, Table},
    target::{ApiRoot, Scheme},
    tls::Tls,
};

/// A running server. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Server {
    /// The address; if port 0 was requested, with the assigned port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more requests and waits until those in progress are answered (at most
    /// `drain_timeout`).
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

/// An address that is bound but not yet served: an NF needs it to write URIs before its router exists.
#[derive(Debug)]
pub struct Bound {
    listener: net::tcp::TcpListener,
    address: SocketAddr,
    config: ServerConfig,
    guard: Option<Guard>,
    tls: Option<Tls>,
}

impl Bound {
    /// Binds `address`. Connections wait in the backlog until [`Self::serve`].
    ///
    /// # Errors
    /// The address is in use or not of this host.
    pub async fn bind(address: SocketAddr, config: ServerConfig) -> io::Result<Self> {
        let listener = net::tcp::listen(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, config, guard: None, tls: None })
    }

    /// The address; if port 0 was requested, with the assigned port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts requests only with an access token; without a guard every request is accepted.
    #[must_use]
    pub fn guarded(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Serves TLS only; without this, everything is in clear.
    #[must_use]
    pub fn secured(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How peers reach it.
    pub fn api_root(&self) -> ApiRoot {
        let scheme = if self.tls.is_some() { Scheme::Https } else { Scheme::Http };
        ApiRoot::new(scheme, self.address)
    }

    /// Starts serving.
    pub fn serve<S: Send + Sync + 'static>(self, router: Router<S>) -> Server {
        self.serve_table(router.into_table())
    }

    /// Does not depend on the NF, so that the server is compiled once, here, and not in each NF's crate.
    fn serve_table(self, table: Table) -> Server {
        let (stop, stopped) = watch::channel(false);
        let Self { config, guard, tls, .. } = self;
        let offer = http_json::Offer { table, config, guard, tls };
        let task = tokio::spawn(http_json::run(self.listener, offer, stopped));
        Server { address: self.address, stop, task: Some(task) }
    }
}

/// Serves `router` on `address`.
///
/// # Errors
/// Those of [`Bound::bind`].
pub async fn serve<S: Send + Sync + 'static>(
    router: Router<S>,
    address: SocketAddr,
    config: ServerConfig,
) -> io::Result<Server> {
    Ok(Bound::bind(address, config).await?.serve(router))
}
