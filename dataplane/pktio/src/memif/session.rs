//! The control channel of a memif: a thread that connects, notices the end of the peer, and connects again, for ever.
//!
//! The thread serves no packets. It hands the two ends of a queue's rings to the queue's port through a [`Slot`], and takes
//! them away when the peer has ended. A port that has not looked yet keeps the memory mapped, so that nothing that it does
//! can fault.
//!
//! A server has one peer at a time: others are told so. After a failure each side waits for 10 ms, later up to a second, so
//! that neither a server that is not there nor a client that breaks the rules takes processor time and fills the log.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use net::time;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, connect,
    listen, sendmsg, socket,
};

use super::Settings;
use super::protocol::{AddRegion, AddRing, Hello, Init, MESSAGE, Message, Mode, ParseError, Text, VERSION};
use super::region::{Region, RegionError, is_eventfd};
use super::ring::{Buffers, MAX_LOG2_SIZE, Place, Receiver, Ring, RingError, Role, Sender, Violation};

/// Regions that a server accepts. Clients that lend buffers of their own have several.
const MAX_REGIONS: u16 = 16;
/// How long a peer may take to connect.
const HANDSHAKE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 5 });
/// The first wait after a connection that failed or broke the rules; it doubles.
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// The longest wait.
const LAST_RETRY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });
/// Room for control messages: for more descriptors than any message may bring, so that the kernel never discards some of
/// ours for those of a peer.
const CONTROL: usize = 64;

/// Why a connection was not made or ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("this side stops")]
    Stopped,
    #[error("the peer is gone")]
    Closed,
    #[error("the peer takes too long")]
    TooSlow,
    #[error("the peer says: {0}")]
    Refused(String),
    #[error("{0}")]
    Message(#[from] ParseError),
    #[error("a message at the wrong time")]
    Unexpected,
    #[error("a message with {0} descriptors")]
    Descriptors(usize),
    #[error("no common version")]
    Version,
    #[error("interface {0} is not here")]
    Interface(u32),
    #[error("not in Ethernet mode")]
    Mode,
    #[error("wrong secret")]
    Secret,
    #[error("region {0} is out of order")]
    RegionIndex(u16),
    #[error("ring {0} is not offered, or known")]
    RingIndex(u16),
    #[error("packets with private headers")]
    PrivateHeader,
    #[error("a ring whose descriptor is not an eventfd")]
    Bell,
    #[error("no ring for each direction")]
    Rings,
    #[error("another peer is connected")]
    Busy,
    #[error("{0}")]
    Region(#[from] RegionError),
    #[error("{0}")]
    Ring(#[from] RingError),
    #[error("{0}")]
    Violation(#[from] Violation),
    #[error("{0}")]
    Kernel(#[from] io::Error),
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        match error {
            Errno::ECONNRESET | Errno::EPIPE => Failure::Closed,
            other => Failure::Kernel(other.into()),
        }
    }
}

/// The two ends of a queue's rings.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
}

/// Between the control channel and the port of one queue.
#[derive(Debug)]
pub(super) struct Slot {
    /// Changes whenever the connection does.
    generation: AtomicU64,
    ends: Mutex<Waiting>,
    /// Readable while the port should look.
    pub(super) attention: EventFd,
}

/// What a port finds when it looks.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The ends of the last connection, unless the port has taken them. They stay when it has ended, as there may be
    /// packets in them.
    pub(super) ends: Option<Ends>,
    /// Whether the connection lasts.
    pub(super) up: bool,
    /// The connection's number.
    pub(super) generation: u64,
}

impl Slot {
    fn new() -> io::Result<Slot> {
        let attention = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Slot { generation: AtomicU64::new(0), ends: Mutex::default(), attention })
    }

    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// What there is for the port.
    pub(super) fn take(&self) -> Waiting {
        let mut waiting = lock(&self.ends);
        Waiting { ends: waiting.ends.take(), up: waiting.up, generation: self.generation() }
    }

    fn put(&self, ends: Option<Ends>) {
        let mut waiting = lock(&self.ends);
        waiting.up = ends.is_some();
        if ends.is_some() {
            waiting.ends = ends;
        }
        self.generation.fetch_add(1, AcqRel);
        drop(waiting);
        // The only error is a counter about to overflow, and then it is readable already.
        let _ = self.attention.write(1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread and the ports share.
#[derive(Debug)]
pub(super) struct Shared {
    settings: Settings,
    slots: Vec<Slot>,
    connected: AtomicBool,
    /// What a port has found wrong, and in which connection.
    violation: Mutex<Option<(u64, Violation)>>,
    /// Rung with a violation.
    alarm: EventFd,
    /// Readable from the stop on.
    stop: EventFd,
}

impl Shared {
    pub(super) fn slot(&self, queue: u16) -> &Slot {
        &self.slots[usize::from(queue)]
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Ends a connection whose peer broke the rules.
    pub(super) fn report(&self, generation: u64, violation: Violation) {
        *lock(&self.violation) = Some((generation, violation));
        let _ = self.alarm.write(1);
    }

    /// Gives all ports their ends, or takes the connection away from them.
    fn publish(&self, ends: Option<Vec<Ends>>) {
        self.connected.store(ends.is_some(), Relaxed);
        let mut ends = ends.into_iter().flatten();
        for slot in &self.slots {
            slot.put(ends.next());
        }
    }
}

/// A device: its control channel, closed with the last port.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Session {
    /// Starts a device. A server listens from now on.
    pub(super) fn start(settings: Settings) -> io::Result<Session> {
        let event = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let slots = (0..settings.queues).map(|_| Slot::new()).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared {
            slots,
            connected: AtomicBool::new(false),
            violation: Mutex::new(None),
            alarm: event()?,
            stop: event()?,
            settings,
        });
        let listener = match shared.settings.role {
            Role::Server => Some(Listener::bind(&shared.settings.socket)?),
            Role::Client => None,
        };
        let control = Control { shared: Arc::clone(&shared), listener, last_failure: String::new() };
        let name = shared.settings.name.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || control.run())?;
        Ok(Session { shared, thread: Some(thread) })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.shared.stop.write(1);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control channel of a memif ended by a panic");
        }
    }
}

/// A socket that clients connect to; its file goes with it.
#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    path: std::path::PathBuf,
    /// Device and number of the file, which may have been replaced.
    inode: (u64, u64),
}

impl Listener {
    fn bind(path: &Path) -> io::Result<Listener> {
        let address = UnixAddr::new(path)?;
        let socket = new_socket()?;
        match bind(socket.as_raw_fd(), &address) {
            // The file of a server that is no more.
            Err(Errno::EADDRINUSE)
                if connect(new_socket()?.as_raw_fd(), &address) == Err(Errno::ECONNREFUSED) =>
            {
                std::fs::remove_file(path)?;
                bind(socket.as_raw_fd(), &address)?;
            }
            result => result?,
        }
        listen(&socket, Backlog::new(1)?)?;
        let file = std::fs::metadata(path)?;
        Ok(Listener { socket, path: path.to_owned(), inode: (file.dev(), file.ino()) })
    }

    /// Waits for a client. A socket whose file was deleted or replaced, so that no client finds it, is made again.
    fn next(&mut self, stop: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
        loop {
            match wait([stop, self.socket.as_fd()], Some(time::now_std() + LAST_RETRY))? {
                [true, _] => return Err(Failure::Stopped),
                [_, true] => return Ok(self.accept()?),
                _ if self.has_its_file() => (),
                _ => *self = Listener::bind(&self.path)?,
            }
        }
    }

    fn has_its_file(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.inode)
    }

    /// A client that has connected.
    fn accept(&self) -> Result<OwnedFd, Errno> {
        let fd = accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
        // SAFETY: a descriptor that the kernel has just made, for us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.has_its_file() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

/// Waits until one of the descriptors is readable or closed; which ones are. None at `deadline`.
fn wait<const N: usize>(fds: [BorrowedFd<'_>; N], deadline: Option<Instant>) -> Result<[bool; N], Errno> {
    let mut polled = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    loop {
        let timeout = match deadline {
            // One millisecond more, so that a rounded time is not too short.
            Some(deadline) => {
                let left = deadline.saturating_duration_since(time::now_std());
                let more = if left.is_zero() { Duration::ZERO } else { Duration::from_millis(1) };
                PollTimeout::try_from(left + more).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        match poll(&mut polled, timeout) {
            Err(Errno::EINTR) => (),
            Err(error) => return Err(error),
            Ok(_) => return Ok(std::array::from_fn(|i| polled[i].any().unwrap_or(true))),
        }
    }
}

/// One connection to a peer.
struct Channel<'a> {
    socket: OwnedFd,
    stop: BorrowedFd<'a>,
    deadline: Instant,
}

impl Channel<'_> {
    fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        let octets = message.build();
        let fds: Vec<_> = fd.iter().map(AsRawFd::as_raw_fd).collect();
        let control = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &[][..] } else { &control };
        // A peer that does not read what it has asked for has a full buffer, and is as good as gone.
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &[io::IoSlice::new(&octets)], control, flags, None)?;
        Ok(())
    }

    /// The next message before the deadline.
    fn receive(&self) -> Result<(Message, Option<OwnedFd>), Failure> {
        loop {
            let [stop, readable] = wait([self.stop, self.socket.as_fd()], Some(self.deadline))?;
            if stop {
                return Err(Failure::Stopped);
            }
            if !readable {
                return Err(Failure::TooSlow);
            }
            match self.read() {
                Err(Failure::Kernel(error)) if error.kind() == io::ErrorKind::WouldBlock => (),
                result => return result,
            }
        }
    }

    /// A message that is here. All its descriptors are closed unless it is returned.
    fn read(&self) -> Result<(Message, Option<OwnedFd>), Failure> {
        // One more, to see that a message is too long.
        let mut octets = [0u8; MESSAGE + 1];
        let mut control = [0u64; CONTROL / 8];
        let mut piece = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
        // SAFETY: a structure of numbers and pointers, for which zeros are valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = CONTROL;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the header names buffers that outlive the call.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, flags) };
        let length = Errno::result(length)?;
        let mut fds = Vec::new();
        // SAFETY: the kernel has filled in the header and the control messages that it names.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        while !next.is_null() {
            // SAFETY: the pointer leads to a control message within the buffer.
            let message = unsafe { *next };
            if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                // SAFETY: as above.
                let data = unsafe { libc::CMSG_DATA(next) }.cast::<libc::c_int>();
                // SAFETY: `CMSG_LEN` only computes.
                let head = unsafe { libc::CMSG_LEN(0) } as usize;
                for i in 0..(message.cmsg_len.saturating_sub(head)) / size_of::<libc::c_int>() {
                    // SAFETY: the message holds so many descriptors, which the kernel has just made for us alone.
                    fds.push(unsafe { OwnedFd::from_raw_fd(data.add(i).read_unaligned()) });
                }
            }
            // SAFETY: as for the first.
            next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
        }
        if length == 0 {
            return Err(Failure::Closed);
        }
        if header.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > 1 {
            return Err(Failure::Descriptors(fds.len()));
        }
        Ok((Message::parse(&octets[..length as usize])?, fds.pop()))
    }

    /// The next message, unless it is the peer's DISCONNECT.
    fn expect(&self) -> Result<(Message, Option<OwnedFd>), Failure> {
        match self.receive()? {
            (Message::Disconnect(_, reason), _) => Err(Failure::Refused(reason.to_string())),
            other => Ok(other),
        }
    }

    /// Sends a message and waits for its acknowledgement.
    fn request(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        self.send(message, fd)?;
        match self.expect()? {
            (Message::Ack, None) => Ok(()),
            _ => Err(Failure::Unexpected),
        }
    }
}

/// The rings of one queue, while a server learns of them.
#[derive(Default)]
struct Rings {
    to_server: Option<(Place, OwnedFd)>,
    to_client: Option<(Place, OwnedFd)>,
}

/// A server's side of a new connection: the ends of its queues. Queues for which the client has no rings have none; they
/// are the last ones.
fn serve(channel: &Channel<'_>, settings: &Settings) -> Result<Vec<Ends>, Failure> {
    let last_ring = settings.queues - 1;
    channel.send(
        &Message::Hello(Hello {
            name: program(),
            min_version: VERSION,
            max_version: VERSION,
            max_region: MAX_REGIONS - 1,
            max_to_client: last_ring,
            max_to_server: last_ring,
            max_log2_size: MAX_LOG2_SIZE,
        }),
        None,
    )?;
    match channel.expect()? {
        (Message::Init(init), None) => check_init(&init, settings)?,
        _ => return Err(Failure::Unexpected),
    }
    channel.send(&Message::Ack, None)?;
    let mut regions = Vec::new();
    let mut rings: Vec<Rings> = (0..settings.queues).map(|_| Rings::default()).collect();
    loop {
        match channel.expect()? {
            (Message::AddRegion(AddRegion { index, size }), Some(fd)) => {
                if usize::from(index) != regions.len() || index >= MAX_REGIONS {
                    return Err(Failure::RegionIndex(index));
                }
                regions.push(Region::open(fd, size, settings.trusted)?);
            }
            (Message::AddRing(ring), Some(bell)) => add_ring(&mut rings, &ring, bell)?,
            (Message::Connect(_), None) => break,
            (Message::AddRegion(_) | Message::AddRing(_), None) => return Err(Failure::Descriptors(0)),
            _ => return Err(Failure::Unexpected),
        }
        channel.send(&Message::Ack, None)?;
    }
    let regions: Arc<[Region]> = regions.into();
    let mut ends = Vec::new();
    for Rings { to_server, to_client } in rings {
        let (Some(to_server), Some(to_client)) = (to_server, to_client) else { break };
        let ring = |(place, bell): (Place, OwnedFd)| {
            let ring = Ring::new(&regions, place, None, bell)?;
            ring.check_cookie()?;
            Ok::<_, Failure>(Arc::new(ring))
        };
        ends.push(Ends { receiver: Receiver::new(ring(to_server)?), sender: Sender::new(ring(to_client)?) });
    }
    if ends.is_empty() {
        return Err(Failure::Rings);
    }
    channel.send(&Message::Connected(Text::new(settings.name.as_bytes())), None)?;
    Ok(ends)
}

fn check_init(init: &Init, settings: &Settings) -> Result<(), Failure> {
    if init.version != VERSION {
        return Err(Failure::Version);
    }
    if init.id != settings.id {
        return Err(Failure::Interface(init.id));
    }
    if init.mode != Mode::Ethernet {
        return Err(Failure::Mode);
    }
    match &settings.secret {
        Some(secret) if !secret.matches(&init.secret) => Err(Failure::Secret),
        _ => Ok(()),
    }
}

fn add_ring(rings: &mut [Rings], ring: &AddRing, bell: OwnedFd) -> Result<(), Failure> {
    let queue = rings.get_mut(usize::from(ring.index)).ok_or(Failure::RingIndex(ring.index))?;
    let place = if ring.to_server { &mut queue.to_server } else { &mut queue.to_client };
    if place.is_some() {
        return Err(Failure::RingIndex(ring.index));
    }
    if ring.private_header != 0 {
        return Err(Failure::PrivateHeader);
    }
    let bell = checked_bell(bell)?;
    *place = Some((Place { region: ring.region, offset: ring.offset, log2_size: ring.log2_size }, bell));
    Ok(())
}

/// A peer's eventfd. Writing to it must not block.
fn checked_bell(bell: OwnedFd) -> Result<OwnedFd, Failure> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    if !is_eventfd(bell.as_fd()) {
        return Err(Failure::Bell);
    }
    fcntl(&bell, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(bell)
}

/// A client's side of a new connection.
fn join(channel: &Channel<'_>, settings: &Settings) -> Result<Vec<Ends>, Failure> {
    let (Message::Hello(hello), None) = channel.expect()? else { return Err(Failure::Unexpected) };
    if !(hello.min_version..=hello.max_version).contains(&VERSION) {
        return Err(Failure::Version);
    }
    let offered = hello.max_to_client.min(hello.max_to_server).saturating_add(1);
    let queues = settings.queues.min(offered);
    let log2_size = settings.log2_size.min(hello.max_log2_size);
    let memory = Memory::new(queues, log2_size, settings)?;

    let secret = settings.secret.unwrap_or_default();
    let init = Init { version: VERSION, id: settings.id, mode: Mode::Ethernet, secret, name: program() };
    channel.request(&Message::Init(init), None)?;
    let region = AddRegion { index: 0, size: memory.size };
    channel.request(&Message::AddRegion(region), Some(memory.fd.as_fd()))?;
    for (rings, to_server) in [(&memory.to_server, true), (&memory.to_client, false)] {
        for (ring, index) in rings.iter().zip(0..) {
            let offset = memory.ring_offset(index, to_server);
            let message = AddRing { to_server, index, region: 0, offset, log2_size, private_header: 0 };
            channel.request(&Message::AddRing(message), Some(ring.bell().as_fd()))?;
        }
    }
    channel.send(&Message::Connect(Text::new(settings.name.as_bytes())), None)?;
    let (Message::Connected(_), None) = channel.expect()? else { return Err(Failure::Unexpected) };
    // Not before: a server may set the counters of the rings to 0 when it connects.
    let ends = memory.to_server.into_iter().zip(memory.to_client);
    Ok(ends.map(|(out, back)| Ends { receiver: Receiver::new(back), sender: Sender::new(out) }).collect())
}

/// A client's region: rings to the server, rings to the client, and the buffers of each in the same order.
struct Memory {
    fd: OwnedFd,
    size: u64,
    queues: u16,
    /// Octets from one ring to the next.
    ring: u32,
    to_server: Vec<Arc<Ring>>,
    to_client: Vec<Arc<Ring>>,
}

impl Memory {
    fn new(queues: u16, log2_size: u8, settings: &Settings) -> Result<Memory, Failure> {
        let rings = 2 * u64::from(queues);
        let ring = Ring::octets(log2_size).next_multiple_of(64) as u32;
        let buffers = u64::from(settings.buffer_size) << log2_size;
        let size = rings * (u64::from(ring) + buffers);
        // Settings are bounded, so that offsets have 32 bits.
        let (region, fd) = Region::create(size)?;
        let regions: Arc<[Region]> = Arc::new([region]);
        let mut memory = Memory { fd, size, queues, ring, to_server: Vec::new(), to_client: Vec::new() };
        for to_server in [true, false] {
            for index in 0..queues {
                let offset = memory.ring_offset(index, to_server);
                let first = rings * u64::from(ring) + buffers * u64::from(offset / ring);
                let buffers = Buffers { offset: first as u32, size: settings.buffer_size };
                let place = Place { region: 0, offset, log2_size };
                let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
                let ring = Ring::new(&regions, place, Some(buffers), bell.into())?;
                ring.set_up();
                let side = if to_server { &mut memory.to_server } else { &mut memory.to_client };
                side.push(Arc::new(ring));
            }
        }
        Ok(memory)
    }

    fn ring_offset(&self, index: u16, to_server: bool) -> u32 {
        let number = u32::from(index) + if to_server { 0 } else { u32::from(self.queues) };
        number * self.ring
    }
}

fn program() -> Text<32> {
    Text::new(concat!("godwit ", env!("CARGO_PKG_VERSION")).as_bytes())
}

/// The thread.
struct Control {
    shared: Arc<Shared>,
    listener: Option<Listener>,
    /// What has been logged last: the same again is not.
    last_failure: String,
}

impl Control {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let stop = shared.stop.as_fd();
        let mut retry = FIRST_RETRY;
        loop {
            let socket = match self.listener.as_mut() {
                Some(listener) => listener.next(stop),
                None => self.connect().map_err(Failure::from),
            };
            let well = match socket {
                Err(Failure::Stopped) => return,
                Ok(socket) => {
                    let channel = Channel { socket, stop, deadline: time::now_std() + HANDSHAKE };
                    self.connection(&channel)
                }
                Err(failure) => {
                    self.failed(&failure);
                    false
                }
            };
            retry = if well { FIRST_RETRY } else { (retry * 2).min(LAST_RETRY) };
            if well && self.listener.is_some() {
                continue;
            }
            if !matches!(wait([stop], Some(time::now_std() + retry)), Ok([false])) {
                return;
            }
        }
    }

    fn connect(&self) -> Result<OwnedFd, Errno> {
        let socket = new_socket()?;
        connect(socket.as_raw_fd(), &UnixAddr::new(self.shared.settings.socket.as_path())?)?;
        Ok(socket)
    }

    /// One connection from its beginning to its end. Whether it went well: otherwise the next one waits.
    fn connection(&mut self, channel: &Channel<'_>) -> bool {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        let ends = match settings.role {
            Role::Server => serve(channel, settings),
            Role::Client => join(channel, settings),
        };
        let ends = match ends {
            Ok(ends) => ends,
            Err(failure) => {
                let _ = channel.send(&Message::disconnect(&failure.to_string()), None);
                self.failed(&failure);
                return false;
            }
        };
        tracing::info!(device = settings.name, queues = ends.len(), "memif connected");
        shared.publish(Some(ends));
        let start = time::now_std();
        let failure = self.watch(channel);
        self.shared.publish(None);
        let by_peer = matches!(failure, Failure::Closed | Failure::Refused(_));
        if !by_peer {
            let _ = channel.send(&Message::disconnect(&failure.to_string()), None);
        }
        self.last_failure.clear();
        self.failed(&failure);
        by_peer || start.elapsed() > LAST_RETRY
    }

    /// Returns when a connection ends, and why.
    fn watch(&self, channel: &Channel<'_>) -> Failure {
        let shared = &self.shared;
        let generation = shared.slots[0].generation();
        loop {
            // Without listener the peer is watched twice.
            let other =
                self.listener.as_ref().map_or(channel.socket.as_fd(), |listener| listener.socket.as_fd());
            let fds = [channel.stop, channel.socket.as_fd(), shared.alarm.as_fd(), other];
            let [stop, peer, alarm, other] = match wait(fds, None) {
                Ok(ready) => ready,
                Err(error) => return error.into(),
            };
            if stop {
                return Failure::Stopped;
            }
            if peer {
                match channel.expect() {
                    Ok(_) => return Failure::Unexpected,
                    Err(failure) => return failure,
                }
            }
            if alarm {
                let _ = shared.alarm.read();
                match lock(&shared.violation).take() {
                    Some((of, violation)) if of == generation => return violation.into(),
                    _ => (),
                }
            }
            if other && let Some(Ok(socket)) = self.listener.as_ref().map(Listener::accept) {
                let channel = Channel { socket, stop: channel.stop, deadline: channel.deadline };
                let _ = channel.send(&Message::disconnect(&Failure::Busy.to_string()), None);
            }
        }
    }

    /// Logs why there is no connection, unless that is known or nothing out of the ordinary.
    fn failed(&mut self, failure: &Failure) {
        if matches!(failure, Failure::Stopped) {
            return;
        }
        let text = failure.to_string();
        if text != self.last_failure {
            tracing::warn!(device = self.shared.settings.name, reason = text, "memif is not connected");
            self.last_failure = text;
        }
    }
}
