//! A TCP connection that goes on in another process or on another host with the same address, unnoticed by its other end.
//!
//! [`Frozen`] is all that the other end knows of this one: places in the sequences, windows, options, and octets that are on their way. It
//! is read from a socket and put into a new one by Linux's `TCP_REPAIR`, which needs `CAP_NET_ADMIN`. Between the two the other end's
//! segments must find a socket that ignores them, or nobody: a host answers segments of connections that it does not know by a reset.

use std::io::{self, Write as _};
use std::mem::size_of_val;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use libc::c_int;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use serde::{Deserialize, Serialize};

/// Queues of `TCP_REPAIR_QUEUE`; numbers below are the kernel's, too (`linux/tcp.h`).
const RECEIVED: u32 = 1;
const SENT: u32 = 2;
/// The state in which both ends send.
const ESTABLISHED: u8 = 1;
/// Options that the ends have agreed on, as in `tcp_info`.
const TIMESTAMPS: u8 = 1;
const SELECTIVE_ACKS: u8 = 2;
const SCALED_WINDOWS: u8 = 4;
/// Kinds of TCP options (RFC 9293 §3.2, RFC 7323, RFC 2018).
const KIND_MSS: u32 = 2;
const KIND_SCALE: u32 = 3;
const KIND_SELECTIVE_ACKS: u32 = 4;
const KIND_TIMESTAMPS: u32 = 8;
/// Octets that fit into queues as they are by default. The kernel lets those grow that nobody has set.
const SMALL: usize = 16 << 10;
/// Octets of the send queue that were never sent.
const SIOCOUTQNSD: libc::Ioctl = 0x894b;

/// A connection, as its other end knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// This end.
    pub local: SocketAddr,
    /// The other end. Whoever knows that its address is another one at the new place may change it.
    pub peer: SocketAddr,
    mss: u32,
    options: u8,
    /// Shifts of the other end's windows, and of this one's.
    scales: [u8; 2],
    timestamp: u32,
    windows: [u32; 5],
    received: Queue,
    sent: Queue,
    /// Octets at the end of `sent` that were not sent yet.
    unsent: u32,
}

/// Octets that wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Queue {
    /// The place of the octet behind them.
    end: u32,
    octets: Vec<u8>,
}

/// Reads a connection. From now on its socket ignores what comes and sends nothing, also when it is closed, unless [`go_on`] is called.
///
/// # Errors
/// An end has closed it already, or `CAP_NET_ADMIN` is missing. It then goes on as before.
pub fn freeze(stream: &TcpStream) -> io::Result<Frozen> {
    let frozen = read(stream);
    if frozen.is_err() {
        // What was not done cannot be undone.
        let _ = go_on(stream);
    }
    frozen
}

/// Lets a frozen connection go on where it was.
///
/// # Errors
/// The kernel refuses.
pub fn go_on(stream: &TcpStream) -> io::Result<()> {
    let repaired = set(stream, libc::IPPROTO_TCP, libc::TCP_REPAIR, &[0]);
    set(stream, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &[0]).and(repaired)
}

fn read(stream: &TcpStream) -> io::Result<Frozen> {
    ignore_segments(stream)?;
    set(stream, libc::IPPROTO_TCP, libc::TCP_REPAIR, &[1])?;
    let mut info = [0; 8];
    get(stream, libc::TCP_INFO, &mut info)?;
    let [first, second] = [info[0], info[1]].map(u32::to_ne_bytes);
    if first[0] != ESTABLISHED {
        return Err(io::Error::new(io::ErrorKind::NotConnected, "an end has closed the connection"));
    }
    let (options, scales) = (second[1], second[2]);
    let [mut mss, mut timestamp] = [[0]; 2];
    get(stream, libc::TCP_MAXSEG, &mut mss)?;
    get(stream, libc::TCP_TIMESTAMP, &mut timestamp)?;
    let mut windows = [0; 5];
    get(stream, libc::TCP_REPAIR_WINDOW, &mut windows)?;
    Ok(Frozen {
        local: stream.local_addr()?,
        peer: stream.peer_addr()?,
        mss: mss[0],
        options,
        scales: if cfg!(target_endian = "little") {
            [scales & 0xf, scales >> 4]
        } else {
            [scales >> 4, scales & 0xf]
        },
        timestamp: timestamp[0],
        windows,
        received: queue(stream, RECEIVED, count(stream, libc::FIONREAD)?)?,
        sent: queue(stream, SENT, count(stream, libc::TIOCOUTQ)?)?,
        unsent: count(stream, SIOCOUTQNSD)?,
    })
}

/// Reads a queue with so many octets, which stay in it.
fn queue(stream: &TcpStream, number: u32, length: u32) -> io::Result<Queue> {
    set(stream, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, &[number])?;
    let mut end = [0];
    get(stream, libc::TCP_QUEUE_SEQ, &mut end)?;
    let mut octets = vec![0; length as usize];
    if length > 0 {
        let read = stream.peek(&mut octets)?;
        if read != octets.len() {
            return Err(io::Error::other(format!("{read} octets of a queue of {length}")));
        }
    }
    Ok(Queue { end: end[0], octets })
}

/// Makes a socket for a frozen connection, in the namespace of the caller. It sends what was on its way again. The octets beside it were
/// written, but not sent yet: whoever writes writes them first.
///
/// # Errors
/// The address is not this host's, the connection is here already, or `CAP_NET_ADMIN` is missing.
pub fn thaw(frozen: &Frozen) -> io::Result<(TcpStream, &[u8])> {
    let family = if frozen.local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let own = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    set(&own, libc::SOL_SOCKET, libc::SO_REUSEADDR, &[1])?;
    set(&own, libc::IPPROTO_TCP, libc::TCP_REPAIR, &[1])?;
    for (number, Queue { end, octets }) in [(RECEIVED, &frozen.received), (SENT, &frozen.sent)] {
        set(&own, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, &[number])?;
        let begin = end.wrapping_sub(octets.len() as u32);
        set(&own, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &[begin])?;
    }
    bind(own.as_raw_fd(), &SockaddrStorage::from(frozen.local))?;
    // It sends nothing.
    connect(own.as_raw_fd(), &SockaddrStorage::from(frozen.peer))?;
    let [to_peer, from_peer] = frozen.scales.map(u32::from);
    let mut options = vec![KIND_MSS, frozen.mss];
    for (option, kind, value) in [
        (SCALED_WINDOWS, KIND_SCALE, to_peer | from_peer << 16),
        (SELECTIVE_ACKS, KIND_SELECTIVE_ACKS, 0),
        (TIMESTAMPS, KIND_TIMESTAMPS, 0),
    ] {
        if frozen.options & option != 0 {
            options.extend([kind, value]);
        }
    }
    set(&own, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &options)?;
    set(&own, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &[frozen.timestamp])?;
    let mut stream = TcpStream::from(own);
    // Nothing that is written below is acknowledged, so all of it must fit. The kernel counts more than the octets.
    for (option, octets) in
        [(libc::SO_SNDBUFFORCE, &frozen.sent.octets), (libc::SO_RCVBUFFORCE, &frozen.received.octets)]
    {
        if octets.len() > SMALL {
            set(&stream, libc::SOL_SOCKET, option, &[4 * octets.len() as u32])?;
        }
    }
    stream.set_nonblocking(true)?;
    let sent = frozen.sent.octets.len().saturating_sub(frozen.unsent as usize);
    let (sent, unsent) = frozen.sent.octets.split_at(sent);
    for (number, octets) in [(RECEIVED, &frozen.received.octets[..]), (SENT, sent)] {
        set(&stream, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, &[number])?;
        stream.write_all(octets)?;
    }
    set(&stream, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &frozen.windows)?;
    set(&stream, libc::IPPROTO_TCP, libc::TCP_REPAIR, &[0])?;
    stream.set_nonblocking(false)?;
    Ok((stream, unsent))
}

/// Has a socket drop all segments before TCP sees them.
fn ignore_segments(stream: &TcpStream) -> io::Result<()> {
    let mut drop_all = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut drop_all };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    done(unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    })
}

fn set(socket: &impl AsRawFd, level: c_int, option: c_int, value: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel reads as many octets as the slice has.
    done(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            size_of_val(value) as libc::socklen_t,
        )
    })
}

/// Reads an option of TCP. What the kernel does not fill in stays as it was.
fn get(socket: &impl AsRawFd, option: c_int, value: &mut [u32]) -> io::Result<()> {
    let mut length = size_of_val(value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` octets into the slice, for which every value is one.
    done(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    })
}

fn count(socket: &impl AsRawFd, request: libc::Ioctl) -> io::Result<u32> {
    let mut count: c_int = 0;
    // SAFETY: each of these requests writes one `int`.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut count) })?;
    Ok(count as u32)
}

fn done(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests wait for the kernel")]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::netns::NetNs;

    /// Both ends of a connection over the loopback interface of a namespace of its own, of which the first one may have room for more than
    /// others.
    fn connection(room: Option<u32>) -> (NetNs, TcpStream, TcpStream) {
        let space = NetNs::new().unwrap();
        let ends = space.enter(|| {
            crate::netns::loopback_up().unwrap();
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
            if let Some(room) = room {
                set(&client, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &[room]).unwrap();
            }
            let to = SockaddrStorage::from(listener.local_addr().unwrap());
            connect(client.as_raw_fd(), &to).unwrap();
            (TcpStream::from(client), listener.accept().unwrap().0)
        });
        let (client, server) = ends.unwrap();
        (space, client, server)
    }

    fn octets(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn a_connection_goes_on_in_another_socket() {
        let (space, mut client, mut server) = connection(None);
        client.write_all(b"unread").unwrap();
        // More than fits into the client's queue.
        server.set_nonblocking(true).unwrap();
        let all = octets(64 << 20);
        let mut written = 0;
        let mut quiet = 0;
        while quiet < 5 {
            match server.write(&all[written..]) {
                Ok(count) => (written, quiet) = (written + count, 0),
                Err(_) => quiet += 1,
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let frozen = freeze(&server).unwrap();
        assert_eq!(frozen.received.octets, b"unread");
        assert!(frozen.unsent > 0);
        drop(server);
        let text = serde_json::to_vec(&frozen).unwrap();
        let frozen: Frozen = serde_json::from_slice(&text).unwrap();
        // The other end is quiet so far: nothing resets the connection.
        let (mut server, unsent) = space.enter(|| thaw(&frozen)).unwrap().unwrap();
        let reader = std::thread::spawn(move || {
            let mut received = vec![0; written];
            client.read_exact(&mut received).unwrap();
            client.write_all(b", read").unwrap();
            (client, received)
        });
        server.write_all(unsent).unwrap();
        let (mut client, received) = reader.join().unwrap();
        assert!(received == all[..written]);
        let mut read = [0; 12];
        server.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"unread, read");
        drop(server);
        assert_eq!(client.read(&mut read).unwrap(), 0, "it ends as others do");
    }

    #[test]
    fn what_is_on_its_way_is_sent_again() {
        let (space, mut client, mut server) = connection(Some(8 << 20));
        // It says its window with this segment, and takes none from then on.
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        ignore_segments(&client).unwrap();
        server.set_nonblocking(true).unwrap();
        let all = octets(8 << 20);
        let written = server.write(&all).unwrap();
        let frozen = freeze(&server).unwrap();
        let sent = written - frozen.unsent as usize;
        assert!(sent > 300_000 && frozen.sent.octets == all[..written], "{sent} of {written}");
        drop(server);
        let (mut server, unsent) = space.enter(|| thaw(&frozen)).unwrap().unwrap();
        set(&client, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &[0]).unwrap();
        let reader = std::thread::spawn(move || {
            let mut received = vec![0; written];
            client.read_exact(&mut received).unwrap();
            received
        });
        server.write_all(unsent).unwrap();
        assert!(reader.join().unwrap() == all[..written]);
    }

    #[test]
    fn a_frozen_connection_says_nothing_and_can_go_on() {
        let (_space, mut client, mut server) = connection(None);
        freeze(&server).unwrap();
        client.write_all(b"later").unwrap();
        server.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        let mut read = [0; 5];
        assert!(server.read(&mut read).is_err());
        go_on(&server).unwrap();
        server.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        server.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"later");
        freeze(&server).unwrap();
        drop(server);
        client.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        assert_eq!(
            client.read(&mut read).unwrap_err().kind(),
            io::ErrorKind::WouldBlock,
            "nobody has told it"
        );
    }

    #[test]
    fn what_is_closed_is_not_frozen() {
        let (_space, client, mut server) = connection(None);
        drop(client);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(freeze(&server).unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
    }
}
