//! One AF_XDP socket: one queue of one interface, with its four rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::ring::Ring;
use super::umem::{Free, Umem};
use crate::frame::Pool;
use crate::{Sent, Vector};

/// Entries of each ring: what may arrive while a worker has lost its core for a scheduler's tick (4 ms at a million packets per second).
pub(super) const RING: u32 = 4096;
/// Chunks of memory per socket. At most [`RING`] are given to the kernel to receive into, and as many to be sent; the others
/// are for as many batches as a worker can hold. So there is always one to receive into, whatever waits to be sent and from
/// wherever it came.
pub(super) const CHUNKS: u32 = 2 * RING + 512;
/// Octets of an Ethernet header, without which there is no frame.
const ETHERNET_HEADER: usize = 14;
/// System calls per transmission, of which each makes the kernel send at least 32 packets in copy mode.
const KICKS: usize = 64;
/// The kernel needs some milliseconds to let go of a queue whose socket was just closed.
const BUSY_RETRIES: usize = 50;
const BUSY_WAIT: Duration = Duration::from_millis(10);
// Socket options that the libc crate does not know.
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// How long a system call may poll the queue, and for how many packets.
const BUSY_POLL_US: libc::c_int = 20;
const BUSY_POLL_PACKETS: libc::c_int = 64;

/// How the kernel moves packets between the interface and the UMEM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The interface writes into the UMEM itself.
    ZeroCopy,
    /// The kernel copies; works with any driver.
    Copy,
}

/// An open socket. Fields are dropped in this order: rings first, then the descriptor, then the memory.
pub(super) struct Socket {
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    fd: Arc<OwnedFd>,
    umem: Arc<Umem>,
    pool: Arc<dyn Pool>,
    mode: Mode,
    busy_poll: bool,
    /// Longest frame that the interface sends.
    longest: usize,
    /// Chunks in the fill ring, or with the kernel behind it.
    filled: u32,
    /// Chunks in the transmit ring, or with the kernel behind it.
    sending: u32,
    /// The kernel has left frames in the transmit ring and waits to be asked again.
    unsent: bool,
    /// Frames that the interface has refused although they count as sent. See [`Socket::settle`].
    refused: usize,
    /// The kernel's counters at that time.
    counted: libc::xdp_statistics,
    /// Failed attempts to take a chunk whose frames are not among [`Self::counted`] yet.
    early: u64,
}

/// Most attempts to take a chunk that one reading of the kernel's counters has before their frames.
const MOST_EARLY: u64 = 64;

/// Frames that were lost between the interface and the rings.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Losses {
    /// Received while the receive ring was full.
    pub(super) ring_full: u64,
    /// Received while no chunk was in the fill ring.
    pub(super) no_chunk: u64,
    /// Received, and too long for a chunk.
    pub(super) too_long: u64,
    /// Descriptors that the kernel has found invalid.
    pub(super) invalid: u64,
}

impl Losses {
    /// What the kernel has counted between two readings of its counters.
    ///
    /// `rx_dropped` counts frames, for want of a chunk and for being too long alike. `rx_fill_ring_empty_descs` counts
    /// failed attempts to take a chunk: when the kernel copies, one for each such frame; with zero-copy the driver's,
    /// which make no `rx_dropped`. An attempt may be in one reading and its frame only in the next: `early` has such
    /// attempts of the reading before.
    fn between(before: &libc::xdp_statistics, after: &libc::xdp_statistics, early: &mut u64) -> Losses {
        let more = |of: fn(&libc::xdp_statistics) -> u64| of(after).saturating_sub(of(before));
        let dropped = more(|counters| counters.rx_dropped);
        let attempts = *early + more(|counters| counters.rx_fill_ring_empty_descs);
        let no_chunk = attempts.min(dropped);
        *early = (attempts - no_chunk).min(MOST_EARLY);
        Losses {
            ring_full: more(|counters| counters.rx_ring_full),
            no_chunk,
            too_long: dropped - no_chunk,
            invalid: more(|counters| counters.rx_invalid_descs + counters.tx_invalid_descs),
        }
    }
}

fn set_option<T>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An option of an AF_XDP socket, whose value is a plain C struct or number.
///
/// # Safety
/// All zeroes is a valid value of `T`, and so is whatever the kernel writes for this option.
unsafe fn option<T>(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    // SAFETY: the caller says that zeroes are a value.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the option writes at most `length` octets, which is what `value` has.
    let status = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, (&raw mut value).cast(), &raw mut length)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: the option is this struct of numbers.
    unsafe { option(fd, libc::XDP_MMAP_OFFSETS) }
}

/// The kernel's counters of a socket. A kernel before 5.9 knows the first three of them and leaves the others zero.
fn statistics(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    // SAFETY: the option is this struct of numbers.
    unsafe { option(fd, libc::XDP_STATISTICS) }
}

impl Socket {
    /// Opens a socket on `queue` of the interface with number `interface`, which sends frames of up to `longest`
    /// octets. `first` is the descriptor of the socket that has brought `umem` in, if one has. In the mode asked for,
    /// or in the best that works.
    pub(super) fn open(
        (interface, longest): (u32, usize),
        queue: u32,
        umem: &Arc<Umem>,
        first: Option<&Arc<OwnedFd>>,
        mode: Option<Mode>,
        busy_poll: bool,
    ) -> io::Result<Socket> {
        // SAFETY: socket(2) takes numbers only; the kernel has just opened the descriptor for us.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        if first.is_none() {
            // SAFETY: a plain C struct for which all zeroes is a valid value.
            let mut registration: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
            registration.addr = umem.base();
            registration.len = umem.len();
            registration.chunk_size = umem.chunk_len();
            set_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)?;
        }
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            set_option(fd.as_fd(), libc::SOL_XDP, ring, &RING)?;
        }
        let offsets = offsets(fd.as_fd())?;
        let borrowed = fd.as_fd();
        let fill = Ring::map(borrowed, RING, &offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING as i64)?;
        let completion = Ring::map(borrowed, RING, &offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64)?;
        let rx = Ring::map(borrowed, RING, &offsets.rx, libc::XDP_PGOFF_RX_RING)?;
        let tx = Ring::map(borrowed, RING, &offsets.tx, libc::XDP_PGOFF_TX_RING)?;
        let mode = bind(borrowed, interface, queue, first, mode)?;
        // More packets per system call than the default of 32; not in kernels before 6.17.
        let _ = set_option(borrowed, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &RING);
        let busy_poll = busy_poll && poll_busily(borrowed).is_ok();
        let pool: Arc<dyn Pool> = Arc::clone(umem) as Arc<dyn Pool>;
        let counted = statistics(borrowed)?;
        let (fd, umem) = (Arc::new(fd), Arc::clone(umem));
        let mut socket = Socket {
            fill,
            completion,
            rx,
            tx,
            fd,
            umem,
            pool,
            mode,
            busy_poll,
            longest,
            filled: 0,
            sending: 0,
            unsent: false,
            refused: 0,
            counted,
            early: 0,
        };
        socket.maintain();
        Ok(socket)
    }

    pub(super) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Takes sent chunks back and gives the kernel chunks to receive into.
    fn maintain(&mut self) {
        let umem = Arc::clone(&self.umem);
        let mut free = umem.free();
        self.complete(&mut free);
        self.refill(&mut free);
    }

    /// Takes back the chunks of frames that the interface has sent.
    fn complete(&mut self, free: &mut Free) {
        let done = self.completion.ready(RING);
        for _ in 0..done {
            // The kernel returns the address that was submitted, which is where the frame began in its chunk.
            if let Some(chunk) = self.umem.chunk(self.completion.get()) {
                free.push(chunk);
            }
        }
        if done > 0 {
            self.completion.release();
            self.sending = self.sending.saturating_sub(done);
        }
    }

    fn refill(&mut self, free: &mut Free) {
        let mut added = 0;
        for _ in 0..self.fill.free(RING - self.filled.min(RING)) {
            let Some(chunk) = free.pop() else { break };
            self.fill.put(self.umem.address(&chunk));
            added += 1;
        }
        if added > 0 {
            self.fill.publish();
            self.filled += added;
        }
    }

    /// Adds the frames that are waiting to `batch`, which is empty or holds frames of the UMEM.
    pub(super) fn receive(&mut self, batch: &mut Vector) -> usize {
        if self.unsent {
            // First take back what the kernel has sent: it needs room in the completion ring to send more.
            self.maintain();
            self.kick();
        }
        let room = (batch.capacity() - batch.len()) as u32;
        let mut ready = self.rx.ready(room);
        if ready == 0 {
            if self.filled < RING {
                // There were not enough chunks.
                self.maintain();
            }
            if !self.busy_poll && !self.fill.needs_wakeup() {
                return 0;
            }
            self.wake_receiver();
            ready = self.rx.ready(room);
        }
        if ready > 0 && batch.is_empty() {
            // Not before: a batch keeps its own frames as long as nothing is lent to it.
            batch.begin_lent(&self.pool);
        }
        let umem = Arc::clone(&self.umem);
        let mut free = umem.free();
        let mut lent = 0;
        for _ in 0..ready {
            let descriptor = self.rx.get();
            match umem.frame(descriptor.addr, descriptor.len) {
                Some(frame) => {
                    // SAFETY: the kernel has handed the chunk to us with this descriptor, its memory is initialised
                    // and stays mapped while the UMEM exists, which does not go before it has all chunks back.
                    unsafe { batch.lend(frame) };
                    // Another core has just written it, which is far away: ask for all of them at once.
                    batch.prefetch_last();
                    lent += 1;
                }
                // Not what a kernel writes; the chunk at least is kept.
                None => umem.chunk(descriptor.addr).into_iter().for_each(|chunk| free.push(chunk)),
            }
        }
        if ready > 0 {
            self.rx.release();
            self.filled = self.filled.saturating_sub(ready);
        }
        free.lend(lent);
        self.complete(&mut free);
        self.refill(&mut free);
        lent
    }

    pub(super) fn pool(&self) -> &Arc<dyn Pool> {
        &self.pool
    }

    fn wake_receiver(&self) {
        // SAFETY: nothing is received into memory: the call only drives the interface.
        unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// Sends the selected frames: those of the UMEM themselves, copies of others.
    pub(super) fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        let umem = Arc::clone(&self.umem);
        if self.tx.free(selected.len() as u32) < selected.len() as u32 {
            self.kick();
        }
        let mut free = umem.free();
        self.complete(&mut free);
        let mut room = self.tx.free(selected.len() as u32).min(RING - self.sending.min(RING));
        let own = batch.gives_to(&self.pool);
        let mut taken = 0;
        for &position in selected {
            let Some(frame) = batch.chunk_mut(position).filter(|frame| !frame.is_gone()) else {
                sent.errors += 1;
                continue;
            };
            let length = frame.len();
            if length < ETHERNET_HEADER {
                // The kernel would keep its chunk and send nothing.
                sent.errors += 1;
                continue;
            }
            if length > self.longest {
                sent.too_big += 1;
                continue;
            }
            if room == 0 {
                sent.full += 1;
                continue;
            }
            let address = match if own { frame.take() } else { None } {
                Some(chunk) => {
                    taken += 1;
                    umem.address_in(&chunk)
                }
                None => {
                    let Some(mut chunk) = free.pop() else {
                        sent.full += 1;
                        continue;
                    };
                    let Some(address) = umem.fill(&mut chunk, frame.packet()) else {
                        free.push(chunk);
                        sent.too_big += 1;
                        continue;
                    };
                    address
                }
            };
            self.tx.put(libc::xdp_desc { addr: address, len: length as u32, options: 0 });
            room -= 1;
            sent.packets += 1;
            sent.bytes += length;
        }
        sent.copied = sent.packets - taken;
        self.sending += sent.packets as u32;
        free.returned(taken);
        drop(free);
        if sent.packets > 0 {
            self.tx.publish();
            self.kick();
            self.settle(&mut sent);
        }
        sent
    }

    /// Counts frames that the interface has refused as such instead of as sent. Those of the transmission at hand are among
    /// them, since the kernel looks at the ring at once. Those that it refused later, when they counted as sent, are taken
    /// off here too: each frame counts once. Which ones were refused is not known; their octets are taken as average ones.
    fn settle(&mut self, sent: &mut Sent) {
        let refused = self.refused.min(sent.packets);
        if refused > 0 {
            sent.bytes -= sent.bytes * refused / sent.packets;
            sent.packets -= refused;
            sent.copied = sent.copied.min(sent.packets);
            sent.full += refused;
            self.refused -= refused;
        }
    }

    /// Whether frames are waiting that nobody sends before the next call of `receive` or `transmit`.
    pub(super) fn unsent(&self) -> bool {
        self.unsent
    }

    /// Chunks that are in the rings: to receive into, received, to be sent, and sent.
    pub(super) fn ring_chunks(&mut self) -> usize {
        let given = self.fill.waiting() + self.tx.waiting();
        let returned = self.rx.ready(RING) + self.completion.ready(RING);
        (given + returned) as usize
    }

    /// What was lost since the last call.
    pub(super) fn losses(&mut self) -> Losses {
        // A socket that is open has counters; without them nothing more is known than before.
        let now = statistics(self.fd.as_fd()).unwrap_or(self.counted);
        let losses = Losses::between(&self.counted, &now, &mut self.early);
        self.counted = now;
        losses
    }

    /// Makes the kernel send what is in the ring, as far as it takes it now.
    fn kick(&mut self) {
        self.unsent = false;
        if !self.tx.needs_wakeup() {
            return;
        }
        let mut waiting = u32::MAX;
        for _ in 0..KICKS {
            // SAFETY: nothing is sent from memory of this call: it only makes the kernel look at the ring.
            let status = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    std::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null(),
                    0,
                )
            };
            let error = if status < 0 { io::Error::last_os_error().raw_os_error() } else { None };
            // The interface has refused a frame, which is thereby lost; those behind it wait in the ring.
            let refused = error == Some(libc::EBUSY) && self.mode == Mode::Copy;
            self.refused += usize::from(refused);
            let left = self.tx.waiting();
            self.unsent = left > 0;
            // The kernel stops at its budget, and at a refused frame, and goes on with the next call. When nothing has left
            // the ring, the queue behind it is full or the interface down, and asking again at once would not help.
            if !refused && error != Some(libc::EAGAIN) || left == 0 || !refused && left == waiting {
                return;
            }
            waiting = left;
        }
    }
}

fn poll_busily(fd: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    set_option(fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &on)?;
    set_option(fd, libc::SOL_SOCKET, SO_BUSY_POLL, &BUSY_POLL_US)?;
    set_option(fd, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &BUSY_POLL_PACKETS)
}

/// Binds, in the mode asked for or in the best that works, and waits for a predecessor to let go of the queue.
fn bind(
    fd: BorrowedFd<'_>,
    interface: u32,
    queue: u32,
    first: Option<&Arc<OwnedFd>>,
    mode: Option<Mode>,
) -> io::Result<Mode> {
    // SAFETY: a plain C struct for which all zeroes is a valid value.
    let mut address: libc::sockaddr_xdp = unsafe { std::mem::zeroed() };
    address.sxdp_family = libc::AF_XDP as u16;
    address.sxdp_ifindex = interface;
    address.sxdp_queue_id = queue;
    let mut attempt = |flags: u16, shared: u32| {
        (address.sxdp_flags, address.sxdp_shared_umem_fd) = (flags, shared);
        for _ in 0..BUSY_RETRIES {
            // SAFETY: the pointer and length describe `address`.
            let status = unsafe {
                libc::bind(
                    fd.as_raw_fd(),
                    (&raw const address).cast(),
                    size_of_val(&address) as libc::socklen_t,
                )
            };
            if status == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
            net::time::sleep_thread(BUSY_WAIT);
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    };
    if let Some(first) = first {
        // The mode goes with the UMEM: the kernel takes no flags here.
        attempt(libc::XDP_SHARED_UMEM, first.as_raw_fd() as u32)?;
        return Ok(bound_mode(fd));
    }
    if mode != Some(Mode::Copy) {
        match attempt(libc::XDP_ZEROCOPY | libc::XDP_USE_NEED_WAKEUP, 0) {
            Ok(()) => return Ok(Mode::ZeroCopy),
            Err(error) if mode == Some(Mode::ZeroCopy) => return Err(error),
            Err(_) => {}
        }
    }
    attempt(libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP, 0)?;
    Ok(Mode::Copy)
}

/// What the kernel has chosen.
fn bound_mode(fd: BorrowedFd<'_>) -> Mode {
    // SAFETY: the option is this struct of one number.
    let options = unsafe { option::<libc::xdp_options>(fd, libc::XDP_OPTIONS) };
    match options {
        Ok(options) if options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0 => Mode::ZeroCopy,
        _ => Mode::Copy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(dropped: u64, ring_full: u64, fill_empty: u64, invalid: [u64; 2]) -> libc::xdp_statistics {
        libc::xdp_statistics {
            rx_dropped: dropped,
            rx_invalid_descs: invalid[0],
            tx_invalid_descs: invalid[1],
            rx_ring_full: ring_full,
            rx_fill_ring_empty_descs: fill_empty,
            tx_ring_empty_descs: 77,
        }
    }

    #[test]
    fn the_kernels_counters_become_losses_of_frames() {
        let before = counters(10, 5, 8, [0, 1]);
        let losses = |after| Losses::between(&before, &after, &mut 0);
        assert_eq!(losses(before), Losses::default());
        let found = losses(counters(17, 6, 13, [2, 4]));
        assert_eq!(
            found,
            Losses { ring_full: 1, no_chunk: 5, too_long: 2, invalid: 5 },
            "five of seven for want of a chunk"
        );
        // With zero-copy a driver's attempts to take chunks are no frames.
        assert_eq!(losses(counters(10, 5, 900, [0, 1])), Losses::default());
    }

    /// The kernel counts the attempt first, and its counters are read one after another.
    #[test]
    fn frames_without_chunk_are_not_taken_for_long_ones_when_they_count_later() {
        let readings = [[10, 8], [10, 11], [13, 11], [14, 11]];
        let readings = readings.map(|[dropped, attempts]| counters(dropped, 0, attempts, [0, 0]));
        let mut early = 0;
        let found: Vec<_> = readings
            .windows(2)
            .map(|pair| Losses::between(&pair[0], &pair[1], &mut early))
            .map(|losses| (losses.no_chunk, losses.too_long))
            .collect();
        assert_eq!(found, [(0, 0), (3, 0), (0, 1)]);
    }
}
