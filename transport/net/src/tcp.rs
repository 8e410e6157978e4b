//! TCP, the transport of the service-based interface, of metrics and of the lab's download server.

pub mod repair;

use std::io;
use std::net::SocketAddr;

use crate::time::{Duration, timeout};
pub use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Binds and listens. `SO_REUSEADDR` is set, so that a restarted NF does not wait for TIME-WAIT.
///
/// # Errors
/// Those of `bind(2)`: most often the address is in use, or not of this host.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_now(address)
}

/// As [`listen`], for callers in another namespace; needs a tokio runtime.
///
/// # Errors
/// As [`listen`].
pub fn listen_now(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

/// Connects within `limit`. Nagle's algorithm is off, because signalling messages are small and must
/// not wait.
///
/// # Errors
/// Those of `connect(2)`, or [`io::ErrorKind::TimedOut`].
pub async fn connect(address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let stream = timeout(limit, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {address}")))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The first address of `host:port` from the system's resolver.
///
/// # Errors
/// Those of the resolver, or [`io::ErrorKind::NotFound`] if the name has no address.
pub async fn resolve(host_and_port: &str) -> io::Result<SocketAddr> {
    let mut addresses = tokio::net::lookup_host(host_and_port).await?;
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("{host_and_port} has no address"));
    addresses.next().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_restarted_listener_gets_its_port_back() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = connect(address, Duration::from_secs(5)).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        server.write_all(b"x").await.unwrap();
        drop((server, listener));
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"x");
        listen(address).await.unwrap();
    }
}
