//! The kernel's SCTP: one-to-one style sockets (RFC 6458 §4).
//!
//! The kernel's structures (`linux/sctp.h`) are not in `libc`; those used here are declared below with their layout.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, getpeername, getsockname, listen,
    setsockopt, socket, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::wire::{set_int, to_std};
use super::{
    BindError, CloseReason, ConnectError, Event, ListenerClosed, Message, SctpConfig, SctpMode, SendError,
};
use crate::time::{self, Duration};

const SOL_SCTP: libc::c_int = 132;
// Socket options.
const SCTP_RTOINFO: libc::c_int = 0;
const SCTP_ASSOCINFO: libc::c_int = 1;
const SCTP_INITMSG: libc::c_int = 2;
const SCTP_NODELAY: libc::c_int = 3;
const SCTP_PEER_ADDR_PARAMS: libc::c_int = 9;
const SCTP_EVENTS: libc::c_int = 11;
const SCTP_STATUS: libc::c_int = 14;
const SCTP_GET_ASSOC_STATS: libc::c_int = 112;
/// Type of ancillary data: [`SendReceiveInfo`].
const SCTP_SNDRCV: libc::c_int = 1;
/// Flag in [`SendReceiveInfo`]: abort the association.
const SCTP_ABORT: u16 = 1 << 2;
/// Flag of a received message: it is a notification.
const MSG_NOTIFICATION: libc::c_int = 0x8000;
// Notifications, and the states in SCTP_ASSOC_CHANGE.
const SCTP_ASSOC_CHANGE: u16 = 0x8001;
const COMM_LOST: u16 = 1;
const RESTART: u16 = 2;
const SHUTDOWN_COMPLETE: u16 = 3;
/// Flag in [`PeerAddressParameters`]: heartbeats are on.
const SPP_HB_ENABLE: u32 = 1;
/// Flag in [`PeerAddressParameters`]: a heartbeat is sent at once.
const SPP_HB_DEMAND: u32 = 1 << 2;
/// How often the kernel is asked whether a heartbeat was answered.
const HEARTBEAT_POLL: Duration = Duration::from_millis(20);

/// Pause after an error of `accept` that concerns no connection (no free descriptor).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// `struct sctp_sndrcvinfo`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SendReceiveInfo {
    stream: u16,
    ssn: u16,
    flags: u16,
    /// Sent in the byte order given, so this is in network order.
    ppid: u32,
    context: u32,
    time_to_live: u32,
    tsn: u32,
    cumulative_tsn: u32,
    association: i32,
}

/// `struct sctp_initmsg`.
#[repr(C)]
struct InitMessage {
    outgoing_streams: u16,
    max_incoming_streams: u16,
    max_attempts: u16,
    max_timeout_ms: u16,
}

/// `struct sctp_rtoinfo`.
#[repr(C)]
struct RtoInfo {
    association: i32,
    initial_ms: u32,
    max_ms: u32,
    min_ms: u32,
}

/// `struct sctp_assocparams`.
#[repr(C)]
#[derive(Default)]
struct AssociationParameters {
    association: i32,
    max_retransmissions: u16,
    peer_destinations: u16,
    peer_window: u32,
    local_window: u32,
    cookie_life: u32,
}

/// `struct sctp_paddrparams`: no padding inside, aligned to four bytes as a whole.
#[repr(C, packed)]
struct PeerAddressParameters {
    association: i32,
    address: libc::sockaddr_storage,
    heartbeat_ms: u32,
    max_retransmissions: u16,
    path_mtu: u32,
    sack_delay: u32,
    flags: u32,
    flow_label: u32,
    dscp: u8,
    align: u8,
}

/// The start of `struct sctp_status`; the kernel needs room for all of it.
#[repr(C)]
struct Status {
    association: i32,
    state: i32,
    window: u32,
    unacknowledged: u16,
    pending: u16,
    incoming_streams: u16,
    outgoing_streams: u16,
    rest: [u32; 48],
}

/// `struct sctp_assoc_stats`.
#[repr(C)]
struct Statistics {
    association: i32,
    observed: libc::sockaddr_storage,
    max_rto: u64,
    sacks_received: u64,
    sacks_sent: u64,
    packets_sent: u64,
    packets_received: u64,
    rest: [u64; 10],
}

/// A listening kernel socket.
#[derive(Debug)]
pub(super) struct Listener {
    fd: AsyncFd<OwnedFd>,
    local: SocketAddr,
    max_message_size: usize,
}

impl Listener {
    pub fn bind(address: SocketAddr, config: &SctpConfig) -> Result<Listener, BindError> {
        let open = || {
            let fd = open(address, config)?;
            bind_to(&fd, address)?;
            listen(&fd, Backlog::new(128)?)?;
            Ok(fd)
        };
        let fd: OwnedFd = open().map_err(|error| failed(address, error))?;
        let local = name(&fd).unwrap_or(address);
        let fd = register(fd).map_err(|error| failed(address, error))?;
        Ok(Listener { fd, local, max_message_size: config.max_message_size })
    }

    pub async fn accept(&self) -> Result<Association, ListenerClosed> {
        loop {
            let accepted = self.fd.async_io(Interest::READABLE, |fd| {
                let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
                // SAFETY: the descriptor is open; accept4(2) may be told not to store an address.
                let new = unsafe {
                    libc::accept4(fd.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
                };
                if new < 0 {
                    return Err(io::Error::last_os_error());
                }
                // SAFETY: the kernel just returned `new`, and nobody else owns it.
                Ok(unsafe { OwnedFd::from_raw_fd(new) })
            });
            match accepted.await.and_then(|fd| Association::new(fd, self.max_message_size)) {
                Ok(association) => return Ok(association),
                Err(error) => {
                    tracing::warn!(%error, "SCTP association not accepted");
                    time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    pub fn local(&self) -> SocketAddr {
        self.local
    }
}

/// One kernel association.
#[derive(Debug)]
pub(super) struct Association {
    fd: AsyncFd<OwnedFd>,
    local: SocketAddr,
    peer: SocketAddr,
    outgoing_streams: u16,
    max_message_size: usize,
    progress: Mutex<Progress>,
}

/// The reader's state.
#[derive(Debug, Default)]
struct Progress {
    /// The message being received, which the kernel may deliver in parts.
    partial: BytesMut,
    /// Why the association ended, from the kernel's notification.
    reason: Option<CloseReason>,
    reported: bool,
}

impl Association {
    pub async fn connect(
        local: SocketAddr,
        remote: SocketAddr,
        config: &SctpConfig,
    ) -> Result<Association, ConnectError> {
        let fd = open(remote, config).and_then(|fd| {
            bind_to(&fd, local)?;
            register(fd)
        });
        let fd = fd.map_err(|error| failed(local, error))?;
        let status = nix::sys::socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(remote));
        let outcome = match status {
            Ok(()) => Ok(()),
            Err(nix::errno::Errno::EINPROGRESS) => {
                fd.async_io(Interest::WRITABLE, |fd| {
                    match nix::sys::socket::getsockopt(fd, sockopt::SocketError)? {
                        0 => Ok(()),
                        error => Err(io::Error::from_raw_os_error(error)),
                    }
                })
                .await
            }
            Err(error) => Err(error.into()),
        };
        match outcome.and_then(|()| Association::new(fd.into_inner(), config.max_message_size)) {
            Ok(association) => Ok(association),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(ConnectError::Refused { remote, cause: "nobody listens there".to_owned() })
            }
            Err(error) => {
                tracing::debug!(%error, %remote, "SCTP association not set up");
                Err(ConnectError::Unreachable { remote })
            }
        }
    }

    fn new(fd: OwnedFd, max_message_size: usize) -> io::Result<Association> {
        let peer = getpeername::<SockaddrStorage>(fd.as_raw_fd())?;
        let peer = to_std(&peer).ok_or_else(|| io::Error::other("the peer has no IP address"))?;
        let local = name(&fd)?;
        let outgoing_streams = status(&fd)?.outgoing_streams;
        let fd = register(fd)?;
        let progress = Mutex::default();
        Ok(Association { fd, local, peer, outgoing_streams, max_message_size, progress })
    }

    pub async fn recv(&self) -> Option<Event> {
        loop {
            if self.progress().reported {
                return None;
            }
            let received = self.fd.async_io(Interest::READABLE, receive).await;
            let mut progress = self.progress();
            match received {
                Ok(Received { part, info, flags }) if flags & MSG_NOTIFICATION != 0 => {
                    debug_assert!(info.is_none());
                    if progress.notified(&part) {
                        return Some(Event::Restarted);
                    }
                }
                // End of file: the association has ended.
                Ok(Received { part, .. }) if part.is_empty() => {
                    return Some(progress.close(CloseReason::Shutdown));
                }
                Ok(Received { part, info, flags }) => {
                    if progress.partial.len() + part.len() > self.max_message_size {
                        self.abort();
                        return Some(progress.close(CloseReason::Aborted("message too large".to_owned())));
                    }
                    progress.partial.extend_from_slice(&part);
                    if flags & libc::MSG_EOR != 0 {
                        let payload: Bytes = progress.partial.split().freeze();
                        let (stream, ppid) =
                            info.map_or((0, 0), |info| (info.stream, u32::from_be(info.ppid)));
                        return Some(Event::Message(Message { stream, ppid, payload }));
                    }
                }
                Err(error) => {
                    let reason = match error.kind() {
                        io::ErrorKind::TimedOut => CloseReason::Lost,
                        io::ErrorKind::ConnectionReset => {
                            CloseReason::PeerAborted("connection reset".to_owned())
                        }
                        _ => CloseReason::Aborted(error.to_string()),
                    };
                    return Some(progress.close(reason));
                }
            }
        }
    }

    pub async fn send(&self, message: Message) -> Result<(), SendError> {
        self.check(&message)?;
        self.fd.async_io(Interest::WRITABLE, |fd| send(fd, &message, 0)).await.map_err(|_| SendError::Closed)
    }

    pub fn try_send(&self, message: &Message) -> Result<(), SendError> {
        self.check(message)?;
        send(self.fd.get_ref(), message, 0).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => SendError::Full,
            _ => SendError::Closed,
        })
    }

    fn check(&self, message: &Message) -> Result<(), SendError> {
        let length = message.payload.len();
        if length == 0 || length > self.max_message_size {
            return Err(SendError::Size(length));
        }
        if message.stream >= self.outgoing_streams {
            return Err(SendError::Stream(message.stream));
        }
        Ok(())
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub fn local(&self) -> SocketAddr {
        self.local
    }

    pub fn outgoing_streams(&self) -> u16 {
        self.outgoing_streams
    }

    /// The kernel does not report HEARTBEAT ACKs, but it counts packets that arrive with the
    /// association's verification tag.
    pub async fn heartbeat(&self, limit: Duration) -> bool {
        let Ok(before) = packets_received(self.fd.get_ref()) else { return false };
        // SAFETY: plain data for which all zeroes is a valid value (an address of no family: every path).
        let mut demand: PeerAddressParameters = unsafe { std::mem::zeroed() };
        demand.flags = SPP_HB_DEMAND;
        if set(self.fd.get_ref(), SCTP_PEER_ADDR_PARAMS, &demand).is_err() {
            return false;
        }
        let deadline = time::now() + limit;
        while time::now() < deadline {
            time::sleep(HEARTBEAT_POLL).await;
            match packets_received(self.fd.get_ref()) {
                Ok(after) if after != before => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Starts an orderly shutdown, which the kernel completes even after the socket is closed.
    pub fn abandon(&self) {
        let _ = nix::sys::socket::shutdown(self.fd.as_raw_fd(), nix::sys::socket::Shutdown::Write);
    }

    pub async fn shutdown(&self) -> CloseReason {
        self.abandon();
        loop {
            match self.recv().await {
                Some(Event::Closed { reason }) => return reason,
                Some(_) => {}
                None => return CloseReason::Shutdown,
            }
        }
    }

    pub fn abort(&self) {
        let nothing = Message { stream: 0, ppid: 0, payload: Bytes::new() };
        let _ = send(self.fd.get_ref(), &nothing, SCTP_ABORT);
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// Handles a notification; `true` if the peer restarted the association.
    fn notified(&mut self, notification: &[u8]) -> bool {
        // u16 type, u16 flags, u32 length; for SCTP_ASSOC_CHANGE then u16 state.
        let word = |at: usize| notification.get(at..at + 2).map(|two| u16::from_ne_bytes([two[0], two[1]]));
        if word(0) != Some(SCTP_ASSOC_CHANGE) {
            return false;
        }
        match word(8) {
            Some(RESTART) => {
                self.partial.clear();
                return true;
            }
            Some(COMM_LOST) => self.reason = Some(CloseReason::Lost),
            Some(SHUTDOWN_COMPLETE) => self.reason = Some(CloseReason::Shutdown),
            _ => {}
        }
        false
    }

    /// The last event. A reason from the kernel's notification takes precedence over the result of the
    /// socket call, except that an abort by the peer is also reported as lost communication.
    fn close(&mut self, suggested: CloseReason) -> Event {
        self.reported = true;
        let reason = match (self.reason.take(), suggested) {
            (Some(CloseReason::Lost), abort @ CloseReason::PeerAborted(_)) => abort,
            (Some(named), _) => named,
            (None, suggested) => suggested,
        };
        Event::Closed { reason }
    }
}

struct Received {
    part: Vec<u8>,
    info: Option<SendReceiveInfo>,
    flags: libc::c_int,
}

/// Ancillary data for one [`SendReceiveInfo`], aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn receive(fd: &OwnedFd) -> io::Result<Received> {
    let mut part = vec![0u8; 16 * 1024];
    let mut control = Control([0; 64]);
    let mut slice = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
    // SAFETY: `msghdr` is plain data for which all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut slice;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    // SAFETY: the header points to buffers that live until the call returns, with their true lengths.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, 0) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    part.truncate(length as usize);
    let mut info = None;
    // SAFETY: the header is as the kernel left it; the CMSG functions stay within `msg_controllen`, and the data of
    // an SCTP_SNDRCV item is one `SendReceiveInfo`, read without assuming its alignment.
    unsafe {
        let mut item = libc::CMSG_FIRSTHDR(&raw const header);
        while !item.is_null() {
            if (*item).cmsg_level == SOL_SCTP && (*item).cmsg_type == SCTP_SNDRCV {
                info = Some(libc::CMSG_DATA(item).cast::<SendReceiveInfo>().read_unaligned());
            }
            item = libc::CMSG_NXTHDR(&raw const header, item);
        }
    }
    Ok(Received { part, info, flags: header.msg_flags })
}

fn send(fd: &OwnedFd, message: &Message, flags: u16) -> io::Result<()> {
    let info = SendReceiveInfo {
        stream: message.stream,
        flags,
        ppid: message.ppid.to_be(),
        ..SendReceiveInfo::default()
    };
    let mut control = Control([0; 64]);
    let mut slice =
        libc::iovec { iov_base: message.payload.as_ptr().cast_mut().cast(), iov_len: message.payload.len() };
    // SAFETY: `msghdr` is plain data for which all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut slice;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the control buffer is larger than CMSG_SPACE of the 32-byte structure written into it, and aligned;
    // sendmsg(2) only reads what the header points to, all of which lives until it returns.
    let status = unsafe {
        header.msg_controllen = libc::CMSG_SPACE(size_of::<SendReceiveInfo>() as libc::c_uint) as usize;
        let item = libc::CMSG_FIRSTHDR(&raw const header);
        (*item).cmsg_level = SOL_SCTP;
        (*item).cmsg_type = SCTP_SNDRCV;
        (*item).cmsg_len = libc::CMSG_LEN(size_of::<SendReceiveInfo>() as libc::c_uint) as usize;
        libc::CMSG_DATA(item).cast::<SendReceiveInfo>().write_unaligned(info);
        libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a socket for the family of `address` and sets all parameters.
fn open(address: SocketAddr, config: &SctpConfig) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(family, SockType::Stream, flags, Some(nix::sys::socket::SockProtocol::Sctp))?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    setsockopt(&fd, sockopt::SndBuf, &config.send_buffer)?;
    setsockopt(&fd, sockopt::RcvBuf, &(2 * config.max_message_size))?;
    set_int(&fd, SOL_SCTP, SCTP_NODELAY, 1)?;
    // data_io_event and association_event, in the order of `struct sctp_event_subscribe`.
    set(&fd, SCTP_EVENTS, &[1u8, 1, 0, 0, 0, 0, 0, 0])?;
    let ms = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    let init = InitMessage {
        outgoing_streams: config.streams,
        max_incoming_streams: config.streams,
        max_attempts: config.max_init_retransmissions as u16,
        max_timeout_ms: ms(config.rto_max).min(u32::from(u16::MAX)) as u16,
    };
    set(&fd, SCTP_INITMSG, &init)?;
    let rto = RtoInfo {
        association: 0,
        initial_ms: ms(config.rto_initial),
        max_ms: ms(config.rto_max),
        min_ms: ms(config.rto_min),
    };
    set(&fd, SCTP_RTOINFO, &rto)?;
    let retransmissions = config.max_retransmissions as u16;
    let association =
        AssociationParameters { max_retransmissions: retransmissions, ..AssociationParameters::default() };
    set(&fd, SCTP_ASSOCINFO, &association)?;
    // SAFETY: plain data for which all zeroes is a valid value (an address of no family: the defaults).
    let mut peer: PeerAddressParameters = unsafe { std::mem::zeroed() };
    peer.heartbeat_ms = ms(config.heartbeat_interval);
    peer.max_retransmissions = retransmissions;
    peer.flags = SPP_HB_ENABLE;
    set(&fd, SCTP_PEER_ADDR_PARAMS, &peer)?;
    Ok(fd)
}

fn bind_to(fd: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    Ok(bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?)
}

fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays the same open descriptor for as long as the registration holds it.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

fn name(fd: &OwnedFd) -> io::Result<SocketAddr> {
    let name = getsockname::<SockaddrStorage>(fd.as_raw_fd())?;
    to_std(&name).ok_or_else(|| io::Error::other("the socket has no IP address"))
}

fn status(fd: &OwnedFd) -> io::Result<Status> {
    // SAFETY: plain data for which all zeroes is a valid value.
    let mut status: Status = unsafe { std::mem::zeroed() };
    let mut length = size_of::<Status>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `status`, which is that large.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), SOL_SCTP, SCTP_STATUS, (&raw mut status).cast(), &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

fn packets_received(fd: &OwnedFd) -> io::Result<u64> {
    // SAFETY: plain data for which all zeroes is a valid value.
    let mut statistics: Statistics = unsafe { std::mem::zeroed() };
    let mut length = size_of::<Statistics>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `statistics`, which is that large.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            SOL_SCTP,
            SCTP_GET_ASSOC_STATS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(statistics.packets_received) }
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is plain data declared as the kernel's structure for `option`, alive during the call.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            SOL_SCTP,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn failed(address: SocketAddr, source: io::Error) -> BindError {
    match source.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => BindError::Address { address, source },
        _ => BindError::Unavailable {
            mode: SctpMode::Kernel,
            source,
            hint: "load the kernel module (modprobe sctp), or set `sctp: auto` for SCTP in user space",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes and offsets as `linux/sctp.h` has them on 64-bit machines.
    #[test]
    fn layouts_are_the_kernel_s() {
        use std::mem::offset_of;
        assert_eq!(size_of::<SendReceiveInfo>(), 32);
        assert_eq!(offset_of!(SendReceiveInfo, ppid), 8);
        assert_eq!(offset_of!(SendReceiveInfo, association), 28);
        assert_eq!(size_of::<InitMessage>(), 8);
        assert_eq!(size_of::<RtoInfo>(), 16);
        assert_eq!(size_of::<AssociationParameters>(), 20);
        assert_eq!(offset_of!(PeerAddressParameters, heartbeat_ms), 132);
        assert_eq!(offset_of!(PeerAddressParameters, flags), 146);
        assert_eq!(size_of::<PeerAddressParameters>(), 156);
        assert_eq!(offset_of!(Status, outgoing_streams), 18);
        assert_eq!(offset_of!(Statistics, observed), 8);
        assert_eq!(offset_of!(Statistics, packets_received), 168);
        assert_eq!(size_of::<Statistics>(), 256);
        assert!(size_of::<Status>() >= 176);
    }

    #[test]
    fn notifications() {
        let change =
            |state: u16| [&SCTP_ASSOC_CHANGE.to_ne_bytes()[..], &[0; 6], &state.to_ne_bytes()].concat();
        let mut progress = Progress::default();
        assert!(!progress.notified(&change(0)));
        assert!(progress.notified(&change(RESTART)));
        assert!(!progress.notified(&change(COMM_LOST)));
        assert_eq!(progress.close(CloseReason::Shutdown), Event::Closed { reason: CloseReason::Lost });
        let mut aborted = Progress { reason: Some(CloseReason::Lost), ..Progress::default() };
        let abort = CloseReason::PeerAborted("x".to_owned());
        assert_eq!(aborted.close(abort.clone()), Event::Closed { reason: abort });
        for length in 0..10 {
            assert!(!Progress::default().notified(&change(RESTART)[..length]));
        }
    }

    /// With kernel SCTP, tests real sockets; without, the error must say what to do.
    #[tokio::test]
    async fn kernel_sockets_or_a_helpful_refusal() {
        let config = SctpConfig { mode: SctpMode::Kernel, ..SctpConfig::default() };
        let bound = super::super::Listener::bind("127.0.0.1:0".parse().unwrap(), config.clone()).await;
        if !crate::capability::kernel_sctp() {
            let text = bound.unwrap_err().to_string();
            assert!(text.contains("modprobe sctp"), "{text}");
            return;
        }
        super::super::tests::converse(bound.unwrap(), config).await;
    }
}
