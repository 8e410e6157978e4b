//! UDP sockets: PFCP, GTP-U towards the control plane, encapsulated SCTP.

pub mod burst;

use std::io;
use std::net::SocketAddr;

use nix::sys::socket::{setsockopt, sockopt};
pub use tokio::net::UdpSocket;

/// How to open a UDP socket. The default has no special options.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Receive buffer in bytes (`SO_RCVBUF`); without CAP_NET_ADMIN the kernel caps it at `net.core.rmem_max`.
    pub receive_buffer: Option<usize>,
    /// Send buffer in bytes (`SO_SNDBUF`), likewise.
    pub send_buffer: Option<usize>,
    /// Several sockets share the port, and the kernel distributes flows among them (`SO_REUSEPORT`).
    pub reuse_port: bool,
}

/// Binds a socket for asynchronous use. `try_send_to` works on it at once.
///
/// # Errors
/// Those of `socket(2)` and `bind(2)`: most often the address is in use, or not of this host.
pub async fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    bind_with(address, Options::default()).await
}

/// Binds a socket with options for asynchronous use.
///
/// # Errors
/// As [`bind`].
pub async fn bind_with(address: SocketAddr, options: Options) -> io::Result<UdpSocket> {
    let socket = UdpSocket::from_std(bind_std(address, options)?)?;
    // A new socket counts as not writable until its first readiness event; before that, `try_send_to`
    // would fail.
    socket.writable().await?;
    Ok(socket)
}

/// Binds a non-blocking socket without tokio, for the user plane's own threads.
///
/// # Errors
/// As [`bind`].
pub fn bind_std(address: SocketAddr, options: Options) -> io::Result<std::net::UdpSocket> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Datagram, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
    if options.reuse_port {
        setsockopt(&fd, sockopt::ReusePort, &true)?;
    }
    if address.is_ipv6() {
        // One family per socket, so that an IPv4 socket can use the same port.
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    if let Some(bytes) = options.receive_buffer
        && setsockopt(&fd, sockopt::RcvBufForce, &bytes).is_err()
    {
        setsockopt(&fd, sockopt::RcvBuf, &bytes)?;
    }
    if let Some(bytes) = options.send_buffer
        && setsockopt(&fd, sockopt::SndBufForce, &bytes).is_err()
    {
        setsockopt(&fd, sockopt::SndBuf, &bytes)?;
    }
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(address))?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn datagrams_pass_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let a = bind(address.parse().unwrap()).await.unwrap();
            let b = bind_with(
                address.parse().unwrap(),
                Options { receive_buffer: Some(1 << 18), ..Options::default() },
            )
            .await
            .unwrap();
            a.send_to(b"hello", b.local_addr().unwrap()).await.unwrap();
            let mut buffer = [0; 16];
            let (length, from) = b.recv_from(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..length], from), (&b"hello"[..], a.local_addr().unwrap()));
        }
    }

    #[test]
    fn an_occupied_port_is_an_error_and_shared_ports_are_not() {
        let first = bind_std("127.0.0.1:0".parse().unwrap(), Options::default()).unwrap();
        let taken = first.local_addr().unwrap();
        assert_eq!(bind_std(taken, Options::default()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let shared = Options { reuse_port: true, ..Options::default() };
        let one = bind_std("127.0.0.1:0".parse().unwrap(), shared).unwrap();
        bind_std(one.local_addr().unwrap(), shared).unwrap();
    }
}
