//! Servers to test against.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cotcp::{Config, Failure, Handler, Request, Server, ServerConfig, ServerHandle};

/// Nothing here may take longer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A server in the background.
pub async fn serve(config: impl Into<ServerConfig>, handler: impl Handler) -> (SocketAddr, ServerHandle) {
    let server = Server::bind("127.0.0.1:0", config).await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handler));
    (address, handle)
}

/// A server that answers with what it is sent.
pub async fn echo() -> SocketAddr {
    serve(Config::default(), |request: Request| async move { Ok::<_, Failure>(request.body) }).await.0
}

/// The result, if it comes in time.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("this takes too long")
}

/// Waits until it is so.
pub async fn eventually(is: impl Fn() -> bool) {
    soon(async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// The clock that tokio's timers follow.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
