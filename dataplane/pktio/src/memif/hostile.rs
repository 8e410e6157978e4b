//! Tests with peers that break the rules: on the control channel, in the rings, and by writing all over the shared memory.
//! Each time the port must live on, lose no descriptor, and serve the next peer.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use net::time::now_std;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, connect,
    listen, recv, sendmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::protocol::{AddRegion, AddRing, Hello, Init, Message, Mode, Secret, Text, VERSION};
use super::region::Region;
use super::ring::COOKIE;
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// Descriptors are counted, so that one of these tests runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket's path of this test, whose file is deleted at the end.
struct SocketPath(PathBuf);

impl SocketPath {
    fn new() -> SocketPath {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("godwit-hostile-{}-{}.sock", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        SocketPath(std::env::temp_dir().join(name))
    }

    fn open(&self, role: &str, more: &str) -> MemifPort {
        let device = format!("memif0,role={role},socket={}{more}", self.0.display());
        MemifPort::open(&device, 1, 1500).unwrap().remove(0)
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = now_std();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

fn peer() -> std::net::SocketAddr {
    "192.0.2.1:2152".parse().unwrap()
}

/// Open descriptors of memory that hostile peers made. Other tests of this program open descriptors of other kinds.
fn descriptors() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    names.filter(|name| name.to_string_lossy().contains("memfd:evil")).count()
}

/// The hostile side of a control channel.
struct Raw(OwnedFd);

impl Raw {
    fn new_socket() -> OwnedFd {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(10)).unwrap();
        fd
    }

    /// Connects, and takes the HELLO.
    fn connect(path: &Path) -> Raw {
        let fd = Raw::new_socket();
        connect(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        let raw = Raw(fd);
        assert!(matches!(raw.receive(), Some(Message::Hello(_))));
        raw
    }

    fn send_octets(&self, octets: &[u8], fds: &[BorrowedFd<'_>]) {
        let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights };
        let _ = sendmsg::<UnixAddr>(
            self.0.as_raw_fd(),
            &[IoSlice::new(octets)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
    }

    fn send(&self, message: Message, fds: &[BorrowedFd<'_>]) {
        self.send_octets(&message.build(), fds);
    }

    /// The next message; `None` when the other side has closed.
    fn receive(&self) -> Option<Message> {
        let mut octets = [0; 200];
        let length =
            recv(self.0.as_raw_fd(), &mut octets, MsgFlags::empty()).ok().filter(|length| *length > 0)?;
        Some(Message::parse(&octets[..length]).unwrap())
    }

    /// The reason that the other side gives for closing.
    fn refusal(&self) -> String {
        loop {
            match self.receive() {
                Some(Message::Disconnect(_, reason)) => return reason.to_string(),
                Some(_) => (),
                None => return "closed".to_owned(),
            }
        }
    }
}

fn init() -> Init {
    Init {
        version: VERSION,
        id: 0,
        mode: Mode::Ethernet,
        secret: Secret::default(),
        name: Text::new(b"evil"),
    }
}

fn memfd(size: u64, seals: SealFlag) -> OwnedFd {
    let file = File::from(memfd_create(c"evil", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(size).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file.into()
}

const SIZE: u64 = 1 << 16;
/// Base-2 logarithm of the hostile client's rings.
const LOG2: u8 = 4;
const TO_SERVER: u32 = 0;
const TO_CLIENT: u32 = 4096;
/// Where its packets and buffers are.
const BUFFERS: u32 = 8192;

fn ring(to_server: bool) -> AddRing {
    let offset = if to_server { TO_SERVER } else { TO_CLIENT };
    AddRing { to_server, index: 0, region: 0, offset, log2_size: LOG2, private_header: 0 }
}

/// Memory with two rings.
fn memory() -> (Region, OwnedFd) {
    let fd = memfd(SIZE, SealFlag::F_SEAL_SHRINK);
    let region = Region::open(fd.try_clone().unwrap(), SIZE, false).unwrap();
    for ring in [TO_SERVER, TO_CLIENT] {
        region.u32(ring as usize).unwrap().store(COOKIE, SeqCst);
    }
    (region, fd)
}

/// A client that has connected, and now does what it likes.
struct Client {
    raw: Raw,
    region: Region,
    fd: OwnedFd,
    /// Of the ring to the server, and of the other one.
    bells: [EventFd; 2],
}

impl Client {
    fn connect(path: &Path) -> Client {
        let raw = Raw::connect(path);
        let (region, fd) = memory();
        let bells = [EventFd::new().unwrap(), EventFd::new().unwrap()];
        raw.send(Message::Init(init()), &[]);
        raw.send(Message::AddRegion(AddRegion { index: 0, size: SIZE }), &[fd.as_fd()]);
        raw.send(Message::AddRing(ring(true)), &[bells[0].as_fd()]);
        raw.send(Message::AddRing(ring(false)), &[bells[1].as_fd()]);
        raw.send(Message::Connect(Text::new(b"evil0")), &[]);
        for _ in 0..4 {
            assert_eq!(raw.receive(), Some(Message::Ack));
        }
        assert!(matches!(raw.receive(), Some(Message::Connected(_))));
        Client { raw, region, fd, bells }
    }

    fn set(&self, ring: u32, slot: u32, flags: u16, region: u16, length: u32, offset: u32) {
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&flags.to_ne_bytes());
        octets[2..4].copy_from_slice(&region.to_ne_bytes());
        octets[4..8].copy_from_slice(&length.to_ne_bytes());
        octets[8..12].copy_from_slice(&offset.to_ne_bytes());
        assert!(self.region.store_16((ring + 128 + 16 * slot) as usize, &octets));
    }

    fn set_head(&self, ring: u32, head: u16) {
        self.region.u16(ring as usize + 6).unwrap().store(head, SeqCst);
    }
}

/// A well-behaved client is served after all that.
fn serves(server: &mut MemifPort, path: &SocketPath) {
    let mut client = path.open("client", "");
    wait_for("a good client", || client.is_up());
    let (mut vector, mut into) = (Vector::new(4, 100), Vector::new(4, 100));
    assert!(vector.push(b"good", peer()));
    wait_for("its packet", || client.transmit(&mut vector, &[0]).packets == 1);
    wait_for("arrival", || server.receive(&mut into).unwrap() == 1);
    assert_eq!(into.frames()[0].packet(), b"good");
    drop(client);
    wait_for("its end", || {
        let _ = server.receive(&mut into);
        !server.is_up()
    });
}

/// What a peer does, and the reason that the other side gives for its DISCONNECT.
type Breach<T> = (&'static str, fn(&T));

fn after_init(raw: &Raw) {
    raw.send(Message::Init(init()), &[]);
    assert_eq!(raw.receive(), Some(Message::Ack));
}

fn after_region(raw: &Raw) {
    after_init(raw);
    raw.send(Message::AddRegion(AddRegion { index: 0, size: SIZE }), &[memory().1.as_fd()]);
    assert_eq!(raw.receive(), Some(Message::Ack));
}

fn add_ring(raw: &Raw, ring: AddRing) {
    raw.send(Message::AddRing(ring), &[EventFd::new().unwrap().as_fd()]);
}

fn connect_with(raw: &Raw, to_server: AddRing) {
    after_region(raw);
    add_ring(raw, to_server);
    add_ring(raw, ring(false));
    raw.send(Message::Connect(Text::new(b"")), &[]);
}

fn region(raw: &Raw, size: u64, fd: OwnedFd) {
    after_init(raw);
    raw.send(Message::AddRegion(AddRegion { index: 0, size }), &[fd.as_fd()]);
}

/// The flags of a descriptor are those of the open file, which the peer has too: it can make reads of the bell block, and empty
/// the bell before they come.
#[test]
fn a_client_cannot_make_a_receiver_wait_for_its_bell() {
    const ROUNDS: usize = 2000;
    let _alone = alone();
    let path = SocketPath::new();
    let mut server = path.open("server", "");
    let client = Client::connect(&path.0);
    wait_for("connection", || server.is_up());
    fcntl(&client.bells[0], FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let (round, rounds) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || {
        let (mut vector, mut poller) = (Vector::new(4, 100), crate::poll::Poller::new().unwrap());
        poller.add(server.fd().unwrap(), 0).unwrap();
        for _ in 0..ROUNDS {
            poller.wait(Some(1), |_| ()).unwrap();
            round.send(server.receive(&mut vector).unwrap()).unwrap();
        }
    });
    let bell = &client.bells[0];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                bell.read().unwrap();
            }
        });
        let received: Vec<_> = (0..ROUNDS)
            .map_while(|_| {
                bell.write(1).unwrap();
                rounds.recv_timeout(Duration::from_secs(10)).ok()
            })
            .collect();
        stop.store(true, Relaxed);
        bell.write(1).unwrap();
        assert!(received == [0; ROUNDS], "the receiver stopped after {} rounds", received.len());
    });
    receiver.join().unwrap();
}

/// What a client sends on the control channel up to its memory.
fn breaches() -> Vec<Breach<Raw>> {
    vec![
        ("gone", |raw| {
            nix::sys::socket::shutdown(raw.0.as_raw_fd(), nix::sys::socket::Shutdown::Write).unwrap()
        }),
        ("10 octets", |raw| raw.send_octets(&[1; 10], &[])),
        ("129 octets", |raw| raw.send_octets(&[1; 200], &[])),
        ("type 0", |raw| raw.send_octets(&[0; 128], &[])),
        ("wrong time", |raw| raw.send(Message::Ack, &[])),
        ("wrong time", |raw| raw.send(Message::Connect(Text::new(b"")), &[])),
        ("wrong time", |raw| {
            raw.send(Message::AddRegion(AddRegion { index: 0, size: SIZE }), &[memory().1.as_fd()])
        }),
        ("wrong time", |raw| raw.send(Message::Init(init()), &[memory().1.as_fd()])),
        ("version", |raw| raw.send(Message::Init(Init { version: VERSION + 1, ..init() }), &[])),
        ("interface 9", |raw| raw.send(Message::Init(Init { id: 9, ..init() }), &[])),
        ("Ethernet", |raw| raw.send(Message::Init(Init { mode: Mode::Ip, ..init() }), &[])),
        ("wrong time", |raw| {
            after_init(raw);
            raw.send(Message::Init(init()), &[]);
        }),
        ("region 1", |raw| {
            after_init(raw);
            raw.send(Message::AddRegion(AddRegion { index: 1, size: SIZE }), &[memory().1.as_fd()]);
        }),
        ("region 16", |raw| {
            after_init(raw);
            for index in 0..17 {
                raw.send(Message::AddRegion(AddRegion { index, size: SIZE }), &[memory().1.as_fd()]);
            }
        }),
        ("0 descriptors", |raw| {
            after_init(raw);
            raw.send(Message::AddRegion(AddRegion { index: 0, size: SIZE }), &[]);
        }),
        ("3 descriptors", |raw| {
            let fd = memory().1;
            raw.send(Message::AddRegion(AddRegion { index: 0, size: SIZE }), &[fd.as_fd(); 3]);
        }),
        // The most that the kernel passes on.
        ("descriptors", |raw| raw.send(Message::Ack, &[memory().1.as_fd(); 253])),
        ("shrink", |raw| region(raw, SIZE, memfd(SIZE, SealFlag::F_SEAL_GROW))),
        ("shrink", |raw| region(raw, SIZE, nix::unistd::pipe().unwrap().0)),
        ("in a file of 65535", |raw| region(raw, SIZE, memfd(SIZE - 1, SealFlag::F_SEAL_SHRINK))),
        ("in a file", |raw| region(raw, u64::MAX, memfd(SIZE, SealFlag::F_SEAL_SHRINK))),
        ("region of 0", |raw| region(raw, 0, memfd(SIZE, SealFlag::F_SEAL_SHRINK))),
    ]
}

/// What a client sends on the control channel about its rings.
fn ring_breaches() -> Vec<Breach<Raw>> {
    vec![
        ("0 descriptors", |raw| {
            after_region(raw);
            raw.send(Message::AddRing(ring(true)), &[]);
        }),
        ("not an eventfd", |raw| {
            after_region(raw);
            raw.send(Message::AddRing(ring(true)), &[nix::unistd::pipe().unwrap().1.as_fd()]);
        }),
        ("ring 1", |raw| {
            after_region(raw);
            add_ring(raw, AddRing { index: 1, ..ring(true) });
        }),
        ("ring 0", |raw| {
            after_region(raw);
            add_ring(raw, ring(true));
            add_ring(raw, ring(true));
        }),
        ("private", |raw| {
            after_region(raw);
            add_ring(raw, AddRing { private_header: 1, ..ring(true) });
        }),
        ("no ring", |raw| {
            after_region(raw);
            raw.send(Message::Connect(Text::new(b"")), &[]);
        }),
        ("no ring", |raw| {
            after_region(raw);
            add_ring(raw, ring(false));
            raw.send(Message::Connect(Text::new(b"")), &[]);
        }),
        ("2^15", |raw| connect_with(raw, AddRing { log2_size: 15, ..ring(true) })),
        ("2^255", |raw| connect_with(raw, AddRing { log2_size: 255, ..ring(true) })),
        ("outside", |raw| connect_with(raw, AddRing { log2_size: 13, ..ring(true) })),
        ("outside", |raw| connect_with(raw, AddRing { region: 1, ..ring(true) })),
        ("outside", |raw| connect_with(raw, AddRing { offset: 8, ..ring(true) })),
        ("outside", |raw| connect_with(raw, AddRing { offset: SIZE as u32, ..ring(true) })),
        ("outside", |raw| connect_with(raw, AddRing { offset: u32::MAX - 15, ..ring(true) })),
        ("cookie", |raw| connect_with(raw, AddRing { offset: BUFFERS, ..ring(true) })),
        // Silence.
        ("too long", |raw| after_region(raw)),
    ]
}

#[test]
fn a_server_refuses_clients_that_break_the_protocol() {
    let _alone = alone();
    let path = SocketPath::new();
    let mut server = path.open("server", "");
    let before = descriptors();
    for (number, (reason, breach)) in breaches().into_iter().chain(ring_breaches()).enumerate() {
        let raw = Raw::connect(&path.0);
        breach(&raw);
        let refusal = raw.refusal();
        assert!(refusal.contains(reason), "breach {number}: {refusal} instead of {reason}");
        assert!(!server.is_up());
        drop(raw);
        wait_for("all descriptors to be closed", || descriptors() == before);
    }
    serves(&mut server, &path);
}

#[test]
fn a_server_wants_the_secret() {
    let _alone = alone();
    let path = SocketPath::new();
    let file = path.0.with_extension("secret");
    net::private_file::create(&file, "hush").unwrap();
    let _server = path.open("server", &format!(",secret-file={}", file.display()));
    for secret in [Secret::default(), Secret::new(b"hush!").unwrap()] {
        let raw = Raw::connect(&path.0);
        raw.send(Message::Init(Init { secret, ..init() }), &[]);
        assert_eq!(raw.refusal(), "wrong secret");
    }
    let client = path.open("client", &format!(",secret-file={}", file.display()));
    wait_for("the client that knows it", || client.is_up());
    std::fs::remove_file(file).unwrap();
}

/// What a connected client does to its rings.
const DAMAGES: [Breach<Client>; 10] = [
    ("counter", |client| client.set_head(TO_SERVER, 17)),
    ("counter", |client| client.set_head(TO_SERVER, u16::MAX)),
    ("outside", |client| {
        client.set(TO_SERVER, 0, 0, 1, 10, BUFFERS);
        client.set_head(TO_SERVER, 1);
    }),
    ("outside", |client| {
        client.set(TO_SERVER, 0, 0, 0, 100, SIZE as u32 - 99);
        client.set_head(TO_SERVER, 1);
    }),
    ("outside", |client| {
        client.set(TO_SERVER, 0, 0, u16::MAX, u32::MAX, u32::MAX);
        client.set(TO_SERVER, 1, 0, 0, 10, u32::MAX - 5);
        client.set_head(TO_SERVER, 2);
    }),
    ("no end", |client| {
        (0..16).for_each(|slot| client.set(TO_SERVER, slot, 1, 0, 10, BUFFERS));
        client.set_head(TO_SERVER, 16);
    }),
    ("counter", |client| client.set_head(TO_CLIENT, 17)),
    ("outside", |client| {
        client.set(TO_CLIENT, 0, 0, 1, 2048, BUFFERS);
        client.set_head(TO_CLIENT, 1);
    }),
    ("outside", |client| {
        client.set(TO_CLIENT, 0, 0, 0, 2048, SIZE as u32 - 10);
        client.set_head(TO_CLIENT, 1);
    }),
    // Buffers without room.
    ("outside", |client| {
        (0..16).for_each(|slot| client.set(TO_CLIENT, slot, 0, 0, 0, BUFFERS));
        client.set_head(TO_CLIENT, 16);
    }),
];

#[test]
fn a_server_disconnects_clients_that_damage_their_rings() {
    let _alone = alone();
    let path = SocketPath::new();
    let mut server = path.open("server", "");
    let (mut into, mut out) = (Vector::new(VECTOR, 1600), Vector::new(1, 100));
    assert!(out.push(&[1; 100], peer()));
    let before = descriptors();
    for (number, (reason, damage)) in DAMAGES.into_iter().enumerate() {
        let client = Client::connect(&path.0);
        wait_for("connection", || server.is_up());
        damage(&client);
        wait_for("disconnection", || {
            assert_eq!(server.receive(&mut into).unwrap(), 0);
            server.transmit(&mut out, &[0]);
            !server.is_up()
        });
        assert!(client.raw.refusal().contains(reason), "damage {number}");
        let mut violations = 0;
        server.losses(&mut |reason, count| violations += count * usize::from(reason == DropReason::RxError));
        assert_eq!(violations, 1, "damage {number}");
        drop(client);
        server.receive(&mut into).unwrap();
        wait_for("all descriptors to be closed", || descriptors() == before);
    }
    serves(&mut server, &path);
}

/// Random numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A counter that the peer owns, the one of this side, and how far the peer may be ahead of (or behind) it.
type Counter = (usize, usize, bool);

/// Moves the counters as a peer would, and meanwhile writes all over the memory and frees pages of it.
fn scribble(region: &Region, fd: BorrowedFd<'_>, counters: [Counter; 2], rings: usize, stop: &AtomicBool) {
    let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
    while !stop.load(Relaxed) {
        let number = noise.next();
        let (counter, other, ahead) = counters[(number % 2) as usize];
        let (counter, other) = (region.u16(counter).unwrap(), region.u16(other).unwrap().load(SeqCst));
        let distance = (noise.next() % 17) as u16;
        counter
            .store(if ahead { other.wrapping_add(distance) } else { other.wrapping_sub(distance) }, SeqCst);
        // Small numbers are often valid.
        let value = (noise.next() >> (noise.next() % 64)).to_ne_bytes();
        let place = match number % 10_000 {
            // A ring's counters, flags and descriptors.
            0..100 => noise.next() as usize % rings,
            _ => rings + noise.next() as usize % (region.len() - rings - 8),
        };
        region.write(place, &value[..1 + number as usize / 7 % 8]);
        if number.is_multiple_of(5000) {
            let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let page = noise.next() % (region.len() as u64 / 4096) * 4096;
            let _ = fallocate(fd, hole, page.cast_signed(), 4096);
        }
    }
}

#[test]
fn a_server_survives_a_client_that_writes_all_over_the_memory() {
    let _alone = alone();
    let path = SocketPath::new();
    let mut server = path.open("server", "");
    let (mut into, mut out) = (Vector::new(VECTOR, 1600), Vector::new(8, 1500));
    (0..8).for_each(|n| assert!(out.push(&[n; 1500], peer())));
    let (start, mut received, mut connections) = (now_std(), 0, 0);
    while start.elapsed() < Duration::from_secs(2) {
        let client = Client::connect(&path.0);
        connections += 1;
        for slot in 0..16 {
            client.set(TO_SERVER, slot, 0, 0, 100 * slot, BUFFERS + 1000 * slot);
            client.set(TO_CLIENT, slot, 0, 0, 2048, BUFFERS + 2048 * slot);
        }
        let stop = AtomicBool::new(false);
        let [out_ring, in_ring] = [TO_SERVER as usize, TO_CLIENT as usize];
        let counters = [(out_ring + 6, out_ring + 64, true), (in_ring + 6, in_ring + 64, true)];
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&client.region, client.fd.as_fd(), counters, BUFFERS as usize, &stop));
            wait_for("connection", || server.is_up());
            while server.is_up() && start.elapsed() < Duration::from_secs(2) {
                received += server.receive(&mut into).unwrap();
                server.transmit(&mut out, &[0, 1, 2, 3, 4, 5, 6, 7]);
            }
            stop.store(true, Relaxed);
        });
    }
    assert!(connections > 3 && received > 0, "{connections} connections, {received} packets");
    wait_for("the end", || {
        let _ = server.receive(&mut into);
        !server.is_up()
    });
    serves(&mut server, &path);
}

/// A hostile server: takes a client's memory.
struct Server {
    raw: Raw,
    region: Region,
    fd: OwnedFd,
}

struct Listening(OwnedFd);

impl Listening {
    fn new(path: &Path) -> Listening {
        let fd = Raw::new_socket();
        bind(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        listen(&fd, Backlog::new(1).unwrap()).unwrap();
        Listening(fd)
    }

    fn accept(&self) -> Raw {
        use std::os::fd::FromRawFd;
        // SAFETY: a descriptor that the kernel has just made.
        let raw = Raw(unsafe { OwnedFd::from_raw_fd(accept(self.0.as_raw_fd()).unwrap()) });
        setsockopt(&raw.0, sockopt::ReceiveTimeout, &TimeVal::seconds(10)).unwrap();
        raw
    }

    fn connect(&self) -> Server {
        use std::os::fd::FromRawFd;
        let raw = self.accept();
        raw.send(Message::Hello(hello()), &[]);
        assert!(matches!(raw.receive(), Some(Message::Init(_))));
        raw.send(Message::Ack, &[]);
        let mut control = nix::cmsg_space!([i32; 4]);
        let mut octets = [0; 128];
        let mut pieces = [IoSliceMut::new(&mut octets)];
        let received = nix::sys::socket::recvmsg::<UnixAddr>(
            raw.0.as_raw_fd(),
            &mut pieces,
            Some(&mut control),
            MsgFlags::empty(),
        )
        .unwrap();
        let fd = match received.cmsgs().unwrap().next() {
            // SAFETY: as in `accept`.
            Some(nix::sys::socket::ControlMessageOwned::ScmRights(fds)) => unsafe {
                OwnedFd::from_raw_fd(fds[0])
            },
            other => panic!("{other:?}"),
        };
        let Ok(Message::AddRegion(AddRegion { size, .. })) = Message::parse(&octets) else { panic!() };
        let region = Region::open(fd.try_clone().unwrap(), size, false).unwrap();
        for _ in 0..2 {
            raw.send(Message::Ack, &[]);
            assert!(matches!(raw.receive(), Some(Message::AddRing(_))));
        }
        raw.send(Message::Ack, &[]);
        assert!(matches!(raw.receive(), Some(Message::Connect(_))));
        raw.send(Message::Connected(Text::new(b"evil")), &[]);
        Server { raw, region, fd }
    }
}

fn hello() -> Hello {
    Hello {
        name: Text::new(b"evil"),
        min_version: VERSION,
        max_version: VERSION,
        max_region: 1,
        max_to_client: 1,
        max_to_server: 1,
        max_log2_size: 14,
    }
}

#[test]
fn a_client_leaves_servers_that_break_the_protocol() {
    let _alone = alone();
    let path = SocketPath::new();
    let listening = Listening::new(&path.0);
    let mut client = path.open("client", "");
    let breaches: [Breach<Raw>; 8] = [
        ("10 octets", |raw| raw.send_octets(&[2; 10], &[])),
        ("wrong time", |raw| raw.send(Message::Ack, &[])),
        ("wrong time", |raw| raw.send(Message::Connected(Text::new(b"")), &[])),
        ("version", |raw| {
            raw.send(Message::Hello(Hello { min_version: VERSION + 1, max_version: 0x300, ..hello() }), &[])
        }),
        ("wrong time", |raw| raw.send(Message::Hello(hello()), &[memory().1.as_fd()])),
        ("wrong time", |raw| {
            raw.send(Message::Hello(hello()), &[]);
            raw.send(Message::Connected(Text::new(b"")), &[]);
        }),
        // Rings of one descriptor, and no more queues than ours.
        ("wrong time", |raw| {
            raw.send(
                Message::Hello(Hello {
                    max_log2_size: 0,
                    max_to_client: u16::MAX,
                    max_to_server: u16::MAX,
                    ..hello()
                }),
                &[],
            );
            (0..5).for_each(|_| raw.send(Message::Ack, &[]));
        }),
        ("descriptors", |raw| raw.send(Message::Hello(hello()), &[memory().1.as_fd(); 20])),
    ];
    let before = descriptors();
    for (reason, breach) in breaches {
        let raw = listening.accept();
        breach(&raw);
        let refusal = raw.refusal();
        assert!(refusal.contains(reason), "{refusal} instead of {reason}");
        assert!(!client.is_up());
        drop(raw);
        wait_for("all descriptors to be closed", || descriptors() <= before);
    }
    // Connected, and then a message that does not belong there.
    let server = listening.connect();
    wait_for("connection", || client.is_up());
    server.raw.send(Message::Ack, &[]);
    assert!(server.raw.refusal().contains("wrong time"));
    wait_for("the end", || !client.is_up());
    let mut out = Vector::new(1, 10);
    assert!(out.push(b"late", peer()));
    assert_eq!(client.transmit(&mut out, &[0]).full, 1);
}

#[test]
fn a_client_leaves_servers_that_damage_its_rings_and_survives_those_that_write_everywhere() {
    let _alone = alone();
    let path = SocketPath::new();
    let listening = Listening::new(&path.0);
    // Rings of 16 descriptors at 0 and 384; buffers from 768 on.
    let mut client = path.open("client", ",rsize=4");
    let (mut into, mut out) = (Vector::new(VECTOR, 2048), Vector::new(8, 1500));
    (0..8).for_each(|n| assert!(out.push(&[n; 1500], peer())));
    let damages: [Breach<Region>; 4] = [
        ("counter", |region| region.u16(64).unwrap().store(1, SeqCst)),
        ("counter", |region| region.u16(384 + 64).unwrap().store(17, SeqCst)),
        ("outside", |region| {
            let length = 2049u64 << 32;
            region.write(384 + 128, &length.to_ne_bytes());
            region.u16(384 + 64).unwrap().store(1, SeqCst);
        }),
        ("no end", |region| {
            region.write(384 + 128, &1u16.to_ne_bytes());
            region.u16(384 + 64).unwrap().store(1, SeqCst);
        }),
    ];
    for (reason, damage) in damages {
        let server = listening.connect();
        wait_for("connection", || client.is_up());
        assert_eq!(client.receive(&mut into).unwrap(), 0);
        damage(&server.region);
        wait_for("disconnection", || {
            assert_eq!(client.receive(&mut into).unwrap(), 0);
            client.transmit(&mut out, &[0]);
            !client.is_up()
        });
        assert!(server.raw.refusal().contains(reason));
    }
    // Region and offset of a client's descriptors are its own, whatever the server writes there.
    let server = listening.connect();
    wait_for("connection", || client.is_up());
    assert!(server.region.write(768 + 16 * 2048, b"right"));
    let mut octets = [0xFF; 16];
    octets[..2].copy_from_slice(&[0, 0]);
    octets[4..8].copy_from_slice(&5u32.to_ne_bytes());
    server.region.store_16(384 + 128, &octets);
    server.region.u16(384 + 64).unwrap().store(1, SeqCst);
    wait_for("packet", || client.receive(&mut into).unwrap() == 1);
    assert_eq!(into.frames()[0].packet(), b"right");
    drop(server);

    let start = now_std();
    let (mut connections, mut received) = (0, 0);
    // Where other work has the cores, it takes longer until a descriptor is right by chance.
    let is_early = |received| start.elapsed() < Duration::from_secs(if received == 0 { 30 } else { 2 });
    while is_early(received) {
        let server = listening.connect();
        let counters = [(64, 6, false), (384 + 64, 384 + 6, false)];
        connections += 1;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&server.region, server.fd.as_fd(), counters, 768, &stop));
            wait_for("connection", || client.is_up());
            while client.is_up() && is_early(received) {
                received += client.receive(&mut into).unwrap();
                client.transmit(&mut out, &[0, 1, 2, 3, 4, 5, 6, 7]);
            }
            stop.store(true, Relaxed);
        });
    }
    assert!(connections > 3 && received > 0, "{connections} connections, {received} packets");
}
