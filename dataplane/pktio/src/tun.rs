//! TUN and TAP devices: IP packets, or Ethernet frames, exchanged with the kernel's network stack.
//!
//! The device exists as long as a descriptor is open, so it disappears with the process; one that was made to stay
//! (`ip tuntap add mode tap …`) is used and left where it is. Its address, MTU and routes are set through `net::link` by
//! whoever opens it. A device that somebody deletes leaves its descriptor behind, which can be attached to a new one
//! ([`TunPort::attach`]). A frame comes and goes without preamble and check sequence, tags within.
//!
//! A TUN device exchanges super-packets with the kernel where the kernel can ([`Offload`]): one system call then moves up
//! to 64 kB of a flow. They are cut when they are received and joined when they are sent ([`crate::offload`]), so that
//! batches hold frames only, with whole checksums. Frames of a super-packet that do not fit into a batch wait in the port
//! for the next call, and so does a packet that is too long for the batch's frames, if longer ones can be had.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use telemetry::DropReason;

use crate::bpf::{BpfError, Program};
use crate::offload::cut::{self, Cut, Malformed};
use crate::offload::join::{self, Run};
use crate::offload::{NEEDS_CSUM, VNET_HEADER, VnetHeader};
use crate::{Frame, FrameMut, Port, Sent, VECTOR, Vector, owner};

/// Longest name of an interface, without the terminating zero.
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The name is empty, too long or has characters that an interface name may not have.
    #[error("{0:?} is not an interface name: 1 to {NAME_MAX} letters, digits, dots, dashes or underscores")]
    Name(String),
    /// `/dev/net/tun` could not be opened.
    #[error("/dev/net/tun: {0}; is the tun driver loaded, and may this user open the file?")]
    Device(io::Error),
    /// The kernel refused the device.
    #[error("cannot create device {name}: {error}; it needs CAP_NET_ADMIN and a name not in use")]
    Create {
        /// Name asked for.
        name: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The kernel does not take the program that chooses the queue.
    #[error("cannot choose queues of {name} by address: {error}; one queue per worker needs CAP_BPF")]
    Choose {
        /// Name of the device.
        name: String,
        /// The kernel's answer.
        error: BpfError,
    },
}

/// What a device and the kernel leave to each other, from the least to the most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Offload {
    /// Nothing: packets without a header of virtio.
    None,
    /// Checksums.
    Checksum,
    /// And super-packets of TCP.
    Tcp,
    /// And super-packets of UDP, from Linux 6.2 on.
    Udp,
}

impl Offload {
    /// Those with a header of virtio, the most first.
    const SOME: [Offload; 3] = [Offload::Udp, Offload::Tcp, Offload::Checksum];

    /// The argument of `TUNSETOFFLOAD`. The kernel takes UDP for both IP versions or for none.
    fn features(self) -> libc::c_uint {
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        match self {
            Offload::None => 0,
            Offload::Checksum => libc::TUN_F_CSUM,
            Offload::Tcp => tcp,
            Offload::Udp => tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6,
        }
    }
}

/// The descriptors, which the ports of a device share.
#[derive(Debug)]
struct Device {
    /// One per queue, in the order of their numbers.
    queues: Box<[File]>,
    /// Chooses the queue; with several queues.
    chooser: Option<Program>,
}

impl Device {
    /// Tells the kernel what this device can be given. `false` when it does not know it.
    fn set_offload(&self, offload: Offload) -> bool {
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        unsafe { libc::ioctl(self.queues[0].as_raw_fd(), libc::TUNSETOFFLOAD as _, offload.features()) == 0 }
    }

    /// Whether devices can have a header of virtio in front of packets.
    fn has_vnet_header(&self) -> bool {
        let mut features: libc::c_uint = 0;
        let fd = self.queues[0].as_raw_fd();
        // SAFETY: TUNGETFEATURES writes one unsigned int, to which we pass an exclusive pointer.
        let status = unsafe { libc::ioctl(fd, libc::TUNGETFEATURES as _, &raw mut features) };
        status == 0 && features & libc::IFF_VNET_HDR as libc::c_uint != 0
    }
}

impl Drop for Device {
    /// A device that stays keeps its features, but the next one to open it may not expect super-packets.
    fn drop(&mut self) {
        self.set_offload(Offload::None);
    }
}

/// A queue of an open TUN or TAP device. [`TunPort::share`] gives another port on the same queue, [`TunPort::queue`] one
/// on another.
#[derive(Debug)]
pub struct TunPort {
    device: Arc<Device>,
    /// Number of the queue.
    queue: usize,
    name: String,
    /// `IFF_TUN` or `IFF_TAP`.
    kind: libc::c_int,
    offload: Offload,
    staging: Staging,
    /// Packets lost since the last call of [`Port::losses`].
    damaged: usize,
    too_big: usize,
}

/// Longest super-packet: IPv6 with the longest payload that its header can say, rounded up.
const SUPER: usize = 65_536 + 64;
/// Memory for a super-packet, and in front of its end for what a long frame of a vector takes of it.
const STAGING: usize = 2 * SUPER;

/// A packet that waits for frames.
///
/// A packet is read into a frame of the vector, and what does not fit there into `memory` behind as many octets. An
/// ordinary packet is then where it belongs, and of others only the beginning is copied once more.
#[derive(Debug, Default)]
struct Staging {
    /// Allocated with the first packet. Only packets that wait touch it.
    memory: Vec<u8>,
    /// The packet at the beginning of `memory`.
    waiting: Option<Waiting>,
}

/// What becomes of the packet in the staging memory.
#[derive(Debug)]
struct Waiting {
    /// How a super-packet is cut; any other packet is one frame.
    cut: Option<Cut>,
    length: usize,
    /// How many of its frames have been taken.
    taken: usize,
}

impl Waiting {
    fn frames(&self) -> usize {
        self.cut.map_or(1, |cut| cut.frames())
    }

    /// Length of its longest frame.
    fn longest(&self) -> usize {
        self.cut.map_or(self.length, |cut| cut.longest())
    }

    /// Writes the next frame of `packet`; `None` if it is too long.
    fn write(&self, packet: &[u8], out: &mut [u8]) -> Option<usize> {
        match &self.cut {
            Some(cut) => cut.write(packet, self.taken, out),
            None => out.get_mut(..packet.len()).map(|out| {
                out.copy_from_slice(packet);
                packet.len()
            }),
        }
    }
}

impl Staging {
    /// Length of the longest frame that waits; 0 if there is none.
    fn longest(&self) -> usize {
        self.waiting.as_ref().map_or(0, Waiting::longest)
    }

    /// Fills the drawn frames of `vector` from position `from` on with those that wait; returns how many were filled. A packet
    /// for which they are too short goes on waiting if there may be longer ones; otherwise it is counted.
    fn take(&mut self, vector: &mut Vector, from: usize, too_big: &mut usize) -> usize {
        let (mut taken, has_longer) = (0, vector.has_longer());
        while let Some(waiting) = &mut self.waiting {
            let Some(mut frame) = vector.drawn(from + taken) else { break };
            let space = frame.space();
            if has_longer && waiting.longest() > space.len() {
                break;
            }
            match waiting.write(&self.memory[..waiting.length], space) {
                Some(octets) => {
                    frame.filled(octets);
                    taken += 1;
                }
                None => *too_big += 1,
            }
            waiting.taken += 1;
            if waiting.taken == waiting.frames() {
                self.waiting = None;
            }
        }
        taken
    }
}

/// Whether a device can have this name, without creating one.
pub fn check_name(name: &str) -> Result<(), TunError> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(valid) {
        return Err(TunError::Name(name.to_owned()));
    }
    Ok(())
}

impl TunPort {
    /// Creates a TUN device in the calling thread's network namespace. It is down and has no address yet.
    pub fn create(name: &str) -> Result<TunPort, TunError> {
        TunPort::open(name, libc::IFF_TUN, Offload::Udp, 1)
    }

    /// Creates a TUN device with a queue for each of `workers`. The kernel gives each packet to the queue of its
    /// [owner](owner::of_packet). This is the port of the first one.
    pub fn create_queues(name: &str, workers: u32) -> Result<TunPort, TunError> {
        TunPort::open(name, libc::IFF_TUN, Offload::Udp, workers)
    }

    /// The same, but with at most what `most` says.
    pub fn create_with(name: &str, most: Offload) -> Result<TunPort, TunError> {
        TunPort::open(name, libc::IFF_TUN, most, 1)
    }

    /// Creates a TAP device in the calling thread's network namespace. It is down and has no address yet.
    pub fn create_tap(name: &str) -> Result<TunPort, TunError> {
        TunPort::open(name, libc::IFF_TAP, Offload::None, 1)
    }

    fn open(name: &str, kind: libc::c_int, most: Offload, queues: u32) -> Result<TunPort, TunError> {
        check_name(name)?;
        let open = |_| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
            options.open("/dev/net/tun").map_err(TunError::Device)
        };
        let chooser = (queues > 1).then(|| owner::packet_program(queues)).transpose();
        let chooser = chooser.map_err(|error| TunError::Choose { name: name.to_owned(), error })?;
        let device = Device { queues: (0..queues.max(1)).map(open).collect::<Result<_, _>>()?, chooser };
        let most = if device.has_vnet_header() { most } else { Offload::None };
        let mut port = TunPort::new(Arc::new(device), name.to_owned(), kind, most);
        port.attach()?;
        if most != Offload::None {
            let known = Offload::SOME.into_iter().filter(|offload| *offload <= most);
            let taken = known.into_iter().find(|offload| port.device.set_offload(*offload));
            port.offload = taken.unwrap_or(Offload::Checksum);
        }
        Ok(port)
    }

    fn new(device: Arc<Device>, name: String, kind: libc::c_int, offload: Offload) -> TunPort {
        TunPort { device, queue: 0, name, kind, offload, staging: Staging::default(), damaged: 0, too_big: 0 }
    }

    /// Creates the device again after it was deleted, or attaches to an existing one of its name, in the calling thread's
    /// network namespace. All ports of this device use the new one from then on.
    pub fn attach(&self) -> Result<(), TunError> {
        // Those that a failed attempt left attached stay, and with them the order of the queues.
        for file in self.device.queues.iter().filter(|file| !is_attached(file)) {
            self.attach_queue(file)?;
        }
        // Also without offload, as a device that stays may have been another program's.
        self.device.set_offload(self.offload);
        let Some(chooser) = &self.device.chooser else { return Ok(()) };
        let fd: libc::c_int = chooser.as_fd().as_raw_fd();
        // SAFETY: the ioctl reads one int, to which we pass a pointer; the device keeps the program.
        let status = unsafe {
            libc::ioctl(self.device.queues[0].as_raw_fd(), libc::TUNSETSTEERINGEBPF as _, &raw const fd)
        };
        if status < 0 { Err(self.refused(io::Error::last_os_error())) } else { Ok(()) }
    }

    fn attach_queue(&self, file: &File) -> Result<(), TunError> {
        let mut request = request();
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        let header = if self.offload == Offload::None { 0 } else { libc::IFF_VNET_HDR };
        let several = if self.device.queues.len() > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        // No packet information header: reads and writes are bare packets or frames, perhaps behind a header of virtio.
        request.ifr_ifru.ifru_flags = (self.kind | libc::IFF_NO_PI | header | several) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`, to which we pass an exclusive pointer.
        let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        if status < 0 { Err(self.refused(io::Error::last_os_error())) } else { Ok(()) }
    }

    fn refused(&self, error: io::Error) -> TunError {
        TunError::Create { name: self.name.clone(), error }
    }

    /// Whether the device still exists.
    pub fn is_attached(&self) -> bool {
        self.device.queues.iter().all(is_attached)
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the kernel and this port leave to each other.
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// Another port on the same queue.
    pub fn share(&self) -> TunPort {
        self.queue(self.queue)
    }

    /// A port on the queue of worker number `worker`; on the last one, if the device has fewer.
    pub fn queue(&self, worker: usize) -> TunPort {
        let port = TunPort::new(Arc::clone(&self.device), self.name.clone(), self.kind, self.offload);
        TunPort { queue: worker.min(self.queues() - 1), ..port }
    }

    /// Number of queues.
    pub fn queues(&self) -> usize {
        self.device.queues.len()
    }

    fn file(&self) -> &File {
        &self.device.queues[self.queue]
    }

    /// Reads a packet into `frame`, or into the staging memory if it is a super-packet, or too long and there are longer frames.
    /// `true` when the frame has a packet; `false` when it has not, but there may be more to read.
    fn read(&mut self, mut frame: FrameMut<'_>, has_longer: bool) -> io::Result<bool> {
        let header = if self.offload == Offload::None { 0 } else { VNET_HEADER };
        let memory = &mut self.staging.memory;
        if memory.is_empty() {
            *memory = vec![0; STAGING];
        }
        let space = frame.space();
        let room = space.len().min(STAGING - SUPER);
        let mut vnet = [0; VNET_HEADER];
        let mut vectors = [
            IoSliceMut::new(&mut vnet[..header]),
            IoSliceMut::new(&mut space[..room]),
            IoSliceMut::new(&mut memory[room..]),
        ];
        let length = (&self.device.queues[self.queue]).read_vectored(&mut vectors)?;
        let Some(length) = length.checked_sub(header) else {
            self.damaged += 1;
            return Ok(false);
        };
        let vnet = VnetHeader::from_bytes(vnet);
        if !vnet.is_plain() || length > room {
            let direct = length.min(room);
            memory[..direct].copy_from_slice(&space[..direct]);
            self.stage(&vnet, length, if has_longer { usize::MAX } else { room });
            return Ok(false);
        }
        if complete(&vnet, &mut space[..length]).is_err() {
            self.damaged += 1;
            return Ok(false);
        }
        frame.filled(length);
        Ok(true)
    }

    /// Makes the `length` octets in the staging memory the packet that waits, if its frames fit into `room`.
    fn stage(&mut self, vnet: &VnetHeader, length: usize, room: usize) {
        let packet = &mut self.staging.memory[..length];
        let cut = match vnet.is_plain() {
            true => complete(vnet, packet).map(|()| None),
            false => Cut::new(vnet, packet).map(Some),
        };
        match cut.map(|cut| Waiting { cut, length, taken: 0 }) {
            Ok(waiting) if waiting.longest() <= room => self.staging.waiting = Some(waiting),
            Ok(waiting) => self.too_big += waiting.frames(),
            Err(_) => self.damaged += 1,
        }
    }

    /// Fills the vector with packets that wait, and then with new ones.
    fn fill(&mut self, vector: &mut Vector) -> io::Result<usize> {
        let room = vector.draw(VECTOR, self.staging.longest());
        let mut received = self.staging.take(vector, 0, &mut self.too_big);
        let has_longer = vector.has_longer();
        // A read that gives no packet at once still counts, so that this ends however many are damaged.
        for _ in 0..room {
            let Some(frame) = vector.drawn(received).filter(|_| self.staging.waiting.is_none()) else {
                break;
            };
            match self.read(frame, has_longer) {
                Ok(true) => received += 1,
                Ok(false) => {
                    received += self.staging.take(vector, received, &mut self.too_big);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
                // The interface is down: nothing can arrive until it is up again.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => break,
                Err(error) => {
                    if received == 0 {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        vector.set_len(received);
        Ok(received)
    }

    /// Sends the packet at the first of `positions`, and with it those behind it that continue its flow. Returns how many
    /// positions this took: at least one.
    fn send(&self, vector: &Vector, positions: &[u16], sent: &mut Sent) -> usize {
        let packet = |at: usize| vector.sendable(*positions.get(at)?).map(Frame::packet);
        let Some(first) = packet(0) else {
            sent.errors += 1;
            return 1;
        };
        let mut run = match self.offload {
            Offload::Udp => Run::begin(first),
            Offload::Tcp => Run::begin(first).filter(|run| !run.is_udp()),
            Offload::None | Offload::Checksum => None,
        };
        if let Some(run) = &mut run {
            while packet(run.packets()).is_some_and(|next| run.takes(first, next)) {}
        }
        match run.filter(|run| run.packets() > 1) {
            None => {
                self.send_one(first, sent);
                1
            }
            Some(run) => {
                let packets = (0..run.packets()).map_while(packet);
                self.send_run(&run, first, packets, sent);
                run.packets()
            }
        }
    }

    /// Sends the packets of a run as one, or one by one if the kernel refuses that.
    fn send_run<'a>(
        &self,
        run: &Run,
        first: &[u8],
        packets: impl Iterator<Item = &'a [u8]> + Clone,
        sent: &mut Sent,
    ) {
        let mut header = [0; join::HEADER];
        let vnet = run.write_header(first, &mut header).to_bytes();
        let mut vectors = [IoSlice::new(&[]); join::PACKETS + 2];
        vectors[0] = IoSlice::new(&vnet);
        vectors[1] = IoSlice::new(&header[..run.header_len()]);
        for (vector, packet) in vectors[2..].iter_mut().zip(packets.clone()) {
            *vector = IoSlice::new(&packet[run.header_len()..]);
        }
        match self.file().write_vectored(&vectors[..2 + run.packets()]) {
            Ok(_) => {
                sent.packets += run.packets();
                sent.bytes += packets.map(<[u8]>::len).sum::<usize>();
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                packets.for_each(|packet| self.send_one(packet, sent));
            }
            Err(error) => refused(&error, run.packets(), sent),
        }
    }

    fn send_one(&self, packet: &[u8], sent: &mut Sent) {
        let result = match self.offload {
            Offload::None => self.file().write(packet),
            _ => {
                let vnet = VnetHeader::default().to_bytes();
                self.file().write_vectored(&[IoSlice::new(&vnet), IoSlice::new(packet)])
            }
        };
        match result {
            Ok(_) => {
                sent.packets += 1;
                sent.bytes += packet.len();
            }
            Err(error) => refused(&error, 1, sent),
        }
    }
}

/// Completes the checksum of a packet that has none yet.
fn complete(vnet: &VnetHeader, packet: &mut [u8]) -> Result<(), Malformed> {
    if vnet.flags & NEEDS_CSUM == 0 { Ok(()) } else { cut::complete_checksum(vnet, packet) }
}

/// Whether a queue belongs to a device that exists.
fn is_attached(queue: &File) -> bool {
    let mut request = request();
    // SAFETY: TUNGETIFF writes one `ifreq`, to which we pass an exclusive pointer.
    unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) == 0 }
}

/// Counts packets that the kernel refused.
fn refused(error: &io::Error, packets: usize, sent: &mut Sent) {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => sent.full += packets,
        Some(libc::EMSGSIZE) => sent.too_big += packets,
        _ => sent.errors += packets,
    }
}

fn request() -> libc::ifreq {
    // SAFETY: `ifreq` is a plain C struct for which all zeroes is a valid value.
    unsafe { std::mem::zeroed() }
}

impl Port for TunPort {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        match self.fill(vector)? {
            // The first packet waits for longer frames.
            0 if self.staging.waiting.is_some() => self.fill(vector),
            received => Ok(received),
        }
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let (mut sent, mut at) = (Sent::default(), 0);
        while at < selected.len() {
            at += self.send(vector, &selected[at..], &mut sent);
        }
        sent
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        for (reason, lost) in
            [(DropReason::RxError, &mut self.damaged), (DropReason::TooBig, &mut self.too_big)]
        {
            if *lost > 0 {
                count(reason, std::mem::take(lost));
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file().as_fd())
    }
}
