//! Capture of reference points to pcapng files (`--pcap DIR`).
//!
//! One packet socket sees every interface of a network namespace; one thread sorts its packets into one
//! file per reference point: `n2.pcapng`, `n3.pcapng`, … A packet on an interface that a point names (N6:
//! the TUN device) belongs to that point only; others are told apart by protocol and port. Ports that go past the kernel
//! (AF_XDP, DPDK) hand over copies of their frames themselves (`tap.rs`).
//!
//! A loopback device shows each packet leaving and arriving; only the arrival is kept, so no packet stands
//! in a file twice. Datagrams that were sent as one message are written one by one ([`burst`]). Files are flushed twice a
//! second: a kill loses at most the last second. A later fragment of an IP packet carries no port and is therefore only
//! matched by protocol.
//!
//! Files have mode 0600: they show what subscribers do. Keys in SBI messages are masked before they are written
//! (`mask.rs`).

mod burst;
mod mask;
mod tap;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt};
use packet::ethernet;
use packet::flow::Flow;
use telemetry::pcapng::{InterfaceId, LinkType, Writer};

use self::mask::Masks;
use crate::poll::{Poller, Waker};
use burst::Burst;
use tap::Frames;
pub use tap::{Tap, Tapped, Taps};

/// Packets per system call.
const BATCH: usize = 32;
/// Frame per packet: a segmentation super-packet with its link-layer header.
const BUFFER: usize = 66_000;
/// Room for one time stamp in the control message.
const CONTROL: usize = 64;
/// What the kernel may queue while the thread waits for the disk.
const SOCKET_BUFFER: usize = 64 << 20;
/// How often files are flushed.
const FLUSH: Duration = Duration::from_millis(500);
/// Tokens of the packet socket and of the taps.
const SOCKET: u64 = 0;
const TAPS: u64 = 1;

/// Port of F1AP (TS 38.472 §7).
const F1AP_PORT: u16 = 38472;
/// Port of GTP-C (TS 29.274 §4.2.2.1).
const GTPC_PORT: u16 = 2123;

/// What makes a packet belong to a reference point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// An IP protocol, such as 132 for SCTP.
    Protocol(u8),
    /// A UDP port, source or destination.
    Udp(u16),
    /// A UDP address and port, source or destination.
    UdpAt(SocketAddr),
    /// An SCTP port, source or destination.
    Sctp(u16),
    /// A TCP port, source or destination.
    Tcp(u16),
    /// Everything on the interface of this name, and nowhere else.
    Interface(String),
}

/// A reference point to capture. A packet belongs to the first point that selects it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Name, which is also the file's: `n2` → `n2.pcapng`.
    pub name: String,
    /// A packet that any of these selects is captured.
    pub any_of: Vec<Selector>,
    /// Whether keys in JSON are masked; packets that are not TCP are cut after their headers then.
    pub mask_keys: bool,
}

impl Point {
    /// N2: SCTP, natively and in UDP on `udp_port` if that is in use (RFC 6951).
    pub fn n2(udp_port: Option<u16>) -> Point {
        let mut any_of = vec![Selector::Protocol(packet::protocol::SCTP)];
        any_of.extend(udp_port.map(Selector::Udp));
        Point { name: "n2".to_owned(), any_of, mask_keys: false }
    }

    /// F1-C: SCTP on the port of F1AP (TS 38.472 §7). It stands in front of N2, which has all other SCTP.
    pub fn f1c() -> Point {
        Point { name: "f1c".to_owned(), any_of: vec![Selector::Sctp(F1AP_PORT)], mask_keys: false }
    }

    /// F1-U: GTP-U at these addresses. It stands in front of N3, which has all other GTP-U.
    pub fn f1u(addresses: impl IntoIterator<Item = SocketAddr>) -> Point {
        Point { name: "f1u".to_owned(), any_of: at(addresses), mask_keys: false }
    }

    /// The link between UEs and a DU, at these addresses.
    pub fn uu(addresses: impl IntoIterator<Item = SocketAddr>) -> Point {
        Point { name: "uu".to_owned(), any_of: at(addresses), mask_keys: false }
    }

    /// N3: GTP-U.
    pub fn n3() -> Point {
        let any_of = vec![Selector::Udp(packet::gtpu::PORT)];
        Point { name: "n3".to_owned(), any_of, mask_keys: false }
    }

    /// N4: PFCP.
    pub fn n4() -> Point {
        Point { name: "n4".to_owned(), any_of: vec![Selector::Udp(8805)], mask_keys: false }
    }

    /// N6: the UPF's TUN and TAP devices.
    pub fn n6<'a>(interfaces: impl IntoIterator<Item = &'a str>) -> Point {
        let any_of = interfaces.into_iter().map(|name| Selector::Interface(name.to_owned())).collect();
        Point { name: "n6".to_owned(), any_of, mask_keys: false }
    }

    /// S11: GTP-C, all that is not on S5 and S8.
    pub fn s11() -> Point {
        Point { name: "s11".to_owned(), any_of: vec![Selector::Udp(GTPC_PORT)], mask_keys: false }
    }

    /// S5 and S8: GTP-C at these addresses of P-GWs. It stands in front of S11.
    pub fn s5(addresses: impl IntoIterator<Item = SocketAddr>) -> Point {
        Point { name: "s5".to_owned(), any_of: at(addresses), mask_keys: false }
    }

    /// SBI: HTTP/2 on these ports, without the keys in its messages.
    pub fn sbi(ports: impl IntoIterator<Item = u16>) -> Point {
        let any_of = ports.into_iter().map(Selector::Tcp).collect();
        Point { name: "sbi".to_owned(), any_of, mask_keys: true }
    }
}

fn at(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<Selector> {
    addresses.into_iter().map(Selector::UdpAt).collect()
}

/// Why a capture could not start.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// No packet socket.
    #[error("cannot open a packet socket: {0}; captures need CAP_NET_RAW")]
    Socket(io::Error),
    /// No file.
    #[error("cannot write {}: {error}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// No thread or no event descriptors.
    #[error("cannot start the capture: {0}")]
    Start(#[from] io::Error),
}

/// What a capture has written.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Packets per reference point, in the order given at the start.
    pub packets: Vec<(String, u64)>,
    /// Packets that were not written because the thread did not keep up.
    pub lost: u64,
}

/// A running capture; ends when stopped or dropped.
#[derive(Debug)]
pub struct Capture {
    waker: Waker,
    taps: Taps,
    thread: Option<JoinHandle<Summary>>,
}

impl Capture {
    /// Starts capturing in the calling thread's network namespace. Creates `directory` and the files.
    pub fn start(directory: &Path, points: Vec<Point>) -> Result<Capture, CaptureError> {
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |error| CaptureError::File { path, error }
        };
        std::fs::create_dir_all(directory).map_err(file_error(directory))?;
        let socket = open_socket().map_err(CaptureError::Socket)?;
        let mut files = Vec::new();
        for point in points {
            let path = directory.join(format!("{}.pcapng", point.name));
            let file = create_private(&path).map_err(file_error(&path))?;
            let writer =
                Writer::new(BufWriter::with_capacity(1 << 18, file), "godwit").map_err(file_error(&path))?;
            let masks = point.mask_keys.then(Masks::default);
            files.push(PointFile {
                point,
                writer,
                interfaces: HashMap::new(),
                packets: 0,
                masks,
                masked: Vec::new(),
            });
        }
        let poller = Poller::new()?;
        let (taps, frames) = tap::taps()?;
        poller.add(socket.as_fd(), SOCKET)?;
        poller.add(frames.fd(), TAPS)?;
        let waker = poller.waker();
        let sorter = Sorter { files, interfaces: HashMap::new(), cut: Vec::new(), failed: false };
        let thread = std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || run(&Receiver { socket }, &frames, poller, sorter))?;
        Ok(Capture { waker, taps, thread: Some(thread) })
    }

    /// What ports that go past the kernel are tapped with.
    pub fn taps(&self) -> Taps {
        self.taps.clone()
    }

    /// Ends the capture once all packets seen so far are written.
    pub fn stop(mut self) -> Summary {
        self.finish()
    }

    fn finish(&mut self) -> Summary {
        self.waker.wake();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Creates a file that only its owner may read. An older one of that name is replaced, whoever has it open.
fn create_private(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn open_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
    if setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER)?;
    }
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    Ok(socket)
}

/// The thread: receives, sorts and flushes until woken, then takes what is still queued.
fn run(receiver: &Receiver, frames: &Frames, mut poller: Poller, mut sorter: Sorter) -> Summary {
    let mut arrays = Arrays::new();
    let mut flushed = net::time::now_std();
    loop {
        let stop = match poller.wait(Some(FLUSH.as_millis() as u16), |_| ()) {
            Ok(ready) => ready.woken,
            Err(error) => {
                tracing::warn!(%error, "capture ends");
                true
            }
        };
        frames.take(|frame| sorter.frame(&frame));
        // Bounded by what is queued; flushing waits its turn only while packets keep coming.
        while receiver.receive(&mut arrays, &mut sorter) == BATCH {
            if flushed.elapsed() >= FLUSH {
                break;
            }
        }
        if stop {
            // Twice the socket buffer's worth of packets at most: enough to drain it, and an end under load.
            for _ in 0..2 * SOCKET_BUFFER / (BATCH * 256) {
                if receiver.receive(&mut arrays, &mut sorter) == 0 {
                    break;
                }
            }
            sorter.flush();
            return sorter.summary(receiver.lost() + frames.lost());
        }
        if flushed.elapsed() >= FLUSH {
            sorter.flush();
            flushed = net::time::now_std();
        }
    }
}

struct PointFile {
    point: Point,
    writer: Writer<BufWriter<File>>,
    interfaces: HashMap<i32, InterfaceId>,
    packets: u64,
    /// What masks keys, where there are any.
    masks: Option<Masks>,
    /// The packet with its keys masked.
    masked: Vec<u8>,
}

#[derive(Clone)]
struct Interface {
    name: String,
    link: LinkType,
}

/// Decides which file a packet belongs to and writes it.
struct Sorter {
    files: Vec<PointFile>,
    interfaces: HashMap<i32, Option<Interface>>,
    /// A datagram that was cut out of a burst.
    cut: Vec<u8>,
    /// A write has failed; said once.
    failed: bool,
}

/// A captured packet with what the kernel says about it.
struct Captured<'a> {
    bytes: &'a [u8],
    original_len: usize,
    timestamp_ns: u64,
    index: i32,
    /// ARPHRD_* of the interface.
    hardware: u16,
    outgoing: bool,
}

impl Sorter {
    fn packet(&mut self, packet: &Captured<'_>) {
        let hardware = packet.hardware;
        if hardware == libc::ARPHRD_LOOPBACK && packet.outgoing {
            return;
        }
        let interface = self.interfaces.entry(packet.index).or_insert_with(|| {
            let link = match hardware {
                libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => LinkType::Ethernet,
                libc::ARPHRD_NONE => LinkType::Raw,
                _ => return None,
            };
            let name = nix::net::if_::if_indextoname(packet.index as u32)
                .map_or_else(|_| format!("if{}", packet.index), |name| name.to_string_lossy().into_owned());
            Some(Interface { name, link })
        });
        let Some(interface) = interface.clone() else { return };
        let flow = flow_of(interface.link, packet.bytes);
        let Some(position) = self.select(&interface.name, flow.as_ref()) else { return };
        let written = self.write(position, packet, &interface);
        self.note(written);
    }

    /// A frame of a tap.
    fn frame(&mut self, frame: &tap::Frame) {
        let place = &*frame.place;
        let Some(position) = self.files.iter().position(|file| file.point.name == place.point) else {
            return;
        };
        let interface = Interface { name: place.device.clone(), link: LinkType::Ethernet };
        let captured = Captured {
            bytes: &frame.bytes,
            original_len: frame.bytes.len(),
            timestamp_ns: frame.timestamp_ns,
            index: place.number,
            hardware: libc::ARPHRD_ETHER,
            outgoing: false,
        };
        let written = self.files[position].write(&captured, &interface);
        self.note(written);
    }

    /// Says once that a file cannot be written.
    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = written
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!(%error, "capture file cannot be written; packets are missing from it");
        }
    }

    /// Writes a packet, or each datagram of a burst.
    fn write(&mut self, position: usize, packet: &Captured<'_>, interface: &Interface) -> io::Result<()> {
        let ip = match interface.link {
            LinkType::Raw => Some(0),
            LinkType::Ethernet => ethernet_header(packet.bytes),
        };
        // What was captured in part cannot be cut.
        let whole = packet.bytes.len() == packet.original_len;
        let burst = ip.filter(|_| whole).and_then(|ip| Burst::find(packet.bytes, ip));
        let Some(burst) = burst else { return self.files[position].write(packet, interface) };
        for number in 0..burst.len() {
            burst.cut(number, &mut self.cut);
            let (bytes, original_len) = (self.cut.as_slice(), self.cut.len());
            self.files[position].write(&Captured { bytes, original_len, ..*packet }, interface)?;
        }
        Ok(())
    }

    fn select(&self, interface: &str, flow: Option<&Flow>) -> Option<usize> {
        use packet::protocol;
        let uses = |flow: &Flow, protocol: u8, port: u16| {
            flow.protocol == protocol && flow.ports.is_some_and(|(from, to)| from == port || to == port)
        };
        let selects = |selector: &Selector| match (selector, flow) {
            (Selector::Protocol(protocol), Some(flow)) => flow.protocol == *protocol,
            (Selector::Udp(port), Some(flow)) => uses(flow, protocol::UDP, *port),
            (Selector::UdpAt(at), Some(flow)) => {
                flow.protocol == protocol::UDP
                    && flow.ports.is_some_and(|(from, to)| {
                        (flow.source, from) == (at.ip(), at.port())
                            || (flow.destination, to) == (at.ip(), at.port())
                    })
            }
            (Selector::Sctp(port), Some(flow)) => uses(flow, protocol::SCTP, *port),
            (Selector::Tcp(port), Some(flow)) => uses(flow, protocol::TCP, *port),
            _ => false,
        };
        let named = |selector: &Selector| matches!(selector, Selector::Interface(name) if name == interface);
        let by_name = self.files.iter().position(|file| file.point.any_of.iter().any(named));
        by_name.or_else(|| self.files.iter().position(|file| file.point.any_of.iter().any(selects)))
    }

    fn flush(&mut self) {
        for position in 0..self.files.len() {
            let written = self.files[position].writer.flush();
            self.note(written);
        }
    }

    fn summary(&self, lost: u64) -> Summary {
        let packets = self.files.iter().map(|file| (file.point.name.clone(), file.packets)).collect();
        Summary { packets, lost }
    }
}

impl PointFile {
    fn write(&mut self, packet: &Captured<'_>, interface: &Interface) -> io::Result<()> {
        let id = match self.interfaces.get(&packet.index) {
            Some(id) => *id,
            None => {
                let id = self.writer.interface(&interface.name, interface.link)?;
                self.interfaces.insert(packet.index, id);
                id
            }
        };
        let bytes = match &mut self.masks {
            Some(masks) => {
                self.masked.clear();
                self.masked.extend_from_slice(packet.bytes);
                let length = masks.mask(interface.link, &mut self.masked);
                &self.masked[..length]
            }
            None => packet.bytes,
        };
        self.writer.packet(id, packet.timestamp_ns, bytes, packet.original_len)?;
        self.packets += 1;
        Ok(())
    }
}

/// Octets of an Ethernet header with its tags.
fn ethernet_header(bytes: &[u8]) -> Option<usize> {
    ethernet::Frame::new(bytes).ok().map(|frame| bytes.len() - frame.payload().len())
}

fn flow_of(link: LinkType, bytes: &[u8]) -> Option<Flow> {
    match link {
        LinkType::Raw => Flow::parse(bytes).ok(),
        LinkType::Ethernet => {
            let frame = ethernet::Frame::new(bytes).ok()?;
            let ip = matches!(frame.ethertype(), ethernet::IPV4 | ethernet::IPV6);
            ip.then(|| Flow::parse(frame.payload()).ok()).flatten()
        }
    }
}

/// Memory of one `recvmmsg` call.
struct Arrays {
    buffers: Vec<Box<[u8]>>,
    /// Aligned as control messages need to be.
    controls: Vec<[u64; CONTROL / 8]>,
    names: Vec<libc::sockaddr_ll>,
}

impl Arrays {
    fn new() -> Arrays {
        // SAFETY: `sockaddr_ll` is a plain C struct for which all zeroes is a valid value.
        let name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        Arrays {
            buffers: (0..BATCH).map(|_| vec![0; BUFFER].into_boxed_slice()).collect(),
            controls: vec![[0; CONTROL / 8]; BATCH],
            names: vec![name; BATCH],
        }
    }
}

struct Receiver {
    socket: OwnedFd,
}

impl Receiver {
    /// Receives one batch into `sorter`; returns how many packets came.
    fn receive(&self, arrays: &mut Arrays, sorter: &mut Sorter) -> usize {
        // SAFETY: `iovec` and `mmsghdr` are plain C structs for which all zeroes is a valid value.
        let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        for i in 0..BATCH {
            vectors[i] = libc::iovec { iov_base: arrays.buffers[i].as_mut_ptr().cast(), iov_len: BUFFER };
            let header = &mut messages[i].msg_hdr;
            header.msg_name = (&raw mut arrays.names[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_iov = &raw mut vectors[i];
            header.msg_iovlen = 1;
            header.msg_control = arrays.controls[i].as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
        }
        // SAFETY: every entry points at a name, a vector, a buffer and a control area of its own, all of
        // which live in `arrays` or on this stack frame beyond the call, with the lengths given. MSG_TRUNC
        // makes the kernel report the original length; it never writes beyond the vector.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                std::ptr::null_mut(),
            )
        };
        let received = received.max(0) as usize;
        for (i, message) in messages[..received].iter().enumerate() {
            let original_len = message.msg_len as usize;
            let name = &arrays.names[i];
            sorter.packet(&Captured {
                bytes: &arrays.buffers[i][..original_len.min(BUFFER)],
                original_len,
                timestamp_ns: timestamp_ns(&message.msg_hdr),
                index: name.sll_ifindex,
                hardware: name.sll_hatype,
                outgoing: name.sll_pkttype == libc::PACKET_OUTGOING,
            });
        }
        received
    }

    /// Packets that the kernel dropped for want of buffer space.
    fn lost(&self) -> u64 {
        // SAFETY: plain C struct for which all zeroes is a valid value.
        let mut statistics: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the option writes one `tpacket_stats` at most, to which we pass an exclusive pointer and its size.
        let status = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if status == 0 { u64::from(statistics.tp_drops) } else { 0 }
    }
}

/// When the kernel saw the packet; the wall clock now if it does not say.
fn timestamp_ns(header: &libc::msghdr) -> u64 {
    // SAFETY: `header` was filled by recvmmsg and its control area is still alive; the CMSG macros stay within
    // `msg_controllen`, and a SCM_TIMESTAMPNS message holds one `timespec`, read unaligned.
    let stamp = unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        loop {
            if message.is_null() {
                break None;
            }
            if (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_TIMESTAMPNS {
                break Some(libc::CMSG_DATA(message).cast::<libc::timespec>().read_unaligned());
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    };
    match stamp {
        Some(stamp) => stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64,
        None => wall_clock_ns(),
    }
}

fn wall_clock_ns() -> u64 {
    let since = net::time::wall_clock().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
