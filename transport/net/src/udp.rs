//! UDP sockets: PFCP, GTP-U towards the control plane, encapsulated SCTP.

pub mod burst;

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, SystemTime};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
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
    /// The kernel notes when each datagram arrives; see [`receive_stamped`].
    pub stamped: bool,
}

impl Options {
    /// For control messages: room for some thousands, as when all sessions of a peer are set up at once. What finds no room comes again only when a timer
    /// of its sender expires.
    pub const CONTROL: Options = Options {
        receive_buffer: Some(8 << 20),
        send_buffer: Some(8 << 20),
        reuse_port: false,
        stamped: false,
    };
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
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, bind, socket};
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Datagram, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
    if options.reuse_port {
        setsockopt(&fd, sockopt::ReusePort, &true)?;
    }
    if address.is_ipv6() {
        // One family per socket, so that an IPv4 socket can use the same port.
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    if options.stamped {
        setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
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
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(fd.into())
}

/// A datagram's length, and when the kernel received it: by the clock of the system, before the process was scheduled.
///
/// # Errors
/// Those of `recvmsg(2)`; `Unsupported` when the socket was not opened with [`Options::stamped`].
pub fn receive_stamped(socket: &std::net::UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SystemTime)> {
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    let mut buffers = [IoSliceMut::new(buffer)];
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut buffers,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let stamp = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
        _ => None,
    });
    let since_1970 = stamp.ok_or(io::ErrorKind::Unsupported)?;
    Ok((received.bytes, SystemTime::UNIX_EPOCH + since_1970))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_time_of_the_kernel() {
        let options = Options { stamped: true, ..Options::default() };
        let (a, b) = (
            bind_std("127.0.0.1:0".parse().unwrap(), options).unwrap(),
            bind_std("127.0.0.1:0".parse().unwrap(), Options::default()).unwrap(),
        );
        let mut buffer = [0; 8];
        // The kernel begins to note times some moments after the first socket wants them.
        let found = (0..100).any(|_| {
            let before = crate::time::wall_clock();
            b.send_to(b"now", a.local_addr().unwrap()).unwrap();
            crate::time::sleep_thread(Duration::from_millis(50));
            let (length, at) = receive_stamped(&a, &mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"now");
            assert!(at >= before);
            at < before + Duration::from_millis(40)
        });
        assert!(found, "the time is that of the arrival");
        assert_eq!(receive_stamped(&a, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        a.send_to(b"now", b.local_addr().unwrap()).unwrap();
        assert_eq!(receive_stamped(&b, &mut buffer).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

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

    /// As when an MME moves all its UEs: with the system's usual buffers some hundred of these would arrive.
    #[test]
    fn control_messages_that_come_at_once_find_room() {
        const COUNT: usize = 4000;
        let any = "127.0.0.1:0".parse().unwrap();
        let sender = bind_std(any, Options::CONTROL).unwrap();
        let receiver = bind_std(any, Options::CONTROL).unwrap();
        let to = receiver.local_addr().unwrap();
        for _ in 0..COUNT {
            sender.send_to(&[0; 250], to).unwrap();
        }
        let mut octets = [0; 256];
        let arrived = std::iter::from_fn(|| receiver.recv(&mut octets).ok()).count();
        assert_eq!(arrived, COUNT);
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
