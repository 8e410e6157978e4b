//! One AF_XDP socket: one queue of one interface, with its four rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::ring::Ring;
use super::umem::{Free, Umem};
use crate::buffer::{HEADROOM, Pool};
use crate::{Batch, Sent};

/// Entries of each ring: what may arrive while a worker is descheduled for some hundred µs.
pub(super) const RING: u32 = 2048;
/// Frames per socket: both directions' rings full, and as many batches as a worker can hold.
pub(super) const FRAMES: u32 = 2 * RING + 512;
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
    /// Frames in the transmit ring or with the kernel behind it.
    sending: u32,
    /// Frames in the fill ring, or with the kernel behind it.
    filled: u32,
    /// The kernel has left frames in the transmit ring and waits to be asked again.
    unsent: bool,
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

fn offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: a plain C struct for which all zeroes is a valid value.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&offsets) as libc::socklen_t;
    // SAFETY: the option writes at most `length` octets into the struct.
    let status = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut length,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(offsets) }
}

impl Socket {
    /// Opens a socket on `queue` of the interface with number `interface`. `first` is the descriptor of the socket
    /// that has brought `umem` in, if one has. In the mode asked for, or in the best that works.
    pub(super) fn open(
        interface: u32,
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
            registration.chunk_size = umem.frame_len();
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
        let (fd, umem) = (Arc::new(fd), Arc::clone(umem));
        let (sending, filled, unsent) = (0, 0, false);
        let mut socket =
            Socket { fill, completion, rx, tx, fd, umem, pool, mode, busy_poll, sending, filled, unsent };
        socket.maintain();
        Ok(socket)
    }

    pub(super) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Takes sent frames back and gives the kernel frames to receive into.
    fn maintain(&mut self) {
        let umem = Arc::clone(&self.umem);
        let mut free = umem.free();
        self.complete(&mut free);
        self.refill(&mut free);
    }

    fn complete(&mut self, free: &mut Free) {
        let done = self.completion.ready(RING);
        for _ in 0..done {
            free.push(self.completion.get());
        }
        if done > 0 {
            self.completion.release();
            self.sending = self.sending.saturating_sub(done);
        }
    }

    fn refill(&mut self, free: &mut Free) {
        let mut added = 0;
        for _ in 0..self.fill.free(RING - self.filled.min(RING)) {
            let Some(token) = free.pop() else { break };
            self.fill.put(token);
            added += 1;
        }
        if added > 0 {
            self.fill.publish();
            self.filled += added;
        }
    }

    /// Adds the frames that are waiting to `batch`, which holds frames of the UMEM.
    pub(super) fn receive(&mut self, batch: &mut Batch) -> usize {
        if self.unsent {
            // Frames that the kernel is done with first: it wants room to say so for the next ones.
            self.maintain();
            self.kick();
        }
        let room = (batch.capacity() - batch.len()) as u32;
        let mut ready = self.rx.ready(room);
        if ready == 0 {
            if !self.busy_poll && !self.fill.needs_wakeup() {
                return 0;
            }
            self.wake_receiver();
            ready = self.rx.ready(room);
        }
        let number = self.umem.number();
        let mut lent = 0;
        for _ in 0..ready {
            let descriptor = self.rx.get();
            if let Some(frame) = self.umem.frame(descriptor.addr, descriptor.len) {
                // SAFETY: the kernel has handed the frame to us with this descriptor, its memory is initialised and
                // stays mapped while the UMEM exists, which does not go before it has all frames back.
                unsafe { batch.lend(frame, number) };
                // Another core has just written it, which is far away: ask for all of them at once.
                batch.prefetch_last();
                lent += 1;
            }
        }
        if ready > 0 {
            self.rx.release();
            self.filled = self.filled.saturating_sub(ready);
        }
        let umem = Arc::clone(&self.umem);
        let mut free = umem.free();
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
    pub(super) fn transmit(&mut self, batch: &mut Batch, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        let umem = Arc::clone(&self.umem);
        if self.tx.free(selected.len() as u32) < selected.len() as u32 {
            self.kick();
        }
        let mut free = umem.free();
        self.complete(&mut free);
        let mut room = self.tx.free(selected.len() as u32);
        let mut taken = 0;
        for &position in selected {
            let Some(buffer) = batch.buffers_mut().get_mut(usize::from(position)).filter(|b| !b.is_gone())
            else {
                sent.errors += 1;
                continue;
            };
            let length = buffer.len();
            if room == 0 {
                sent.full += 1;
                continue;
            }
            let address = match buffer.take(umem.number()) {
                Some(frame) => {
                    taken += 1;
                    frame.token + u64::from(frame.start)
                }
                None if length + HEADROOM > umem.frame_len() as usize => {
                    sent.too_big += 1;
                    continue;
                }
                None => {
                    let Some(token) = free.pop() else {
                        sent.full += 1;
                        continue;
                    };
                    umem.fill(token, HEADROOM as u32, buffer.packet());
                    token + HEADROOM as u64
                }
            };
            self.tx.put(libc::xdp_desc { addr: address, len: length as u32, options: 0 });
            room -= 1;
            sent.packets += 1;
            sent.bytes += length;
        }
        free.returned(taken);
        drop(free);
        if sent.packets > 0 {
            self.tx.publish();
            self.sending += sent.packets as u32;
            self.kick();
        }
        sent
    }

    /// Whether frames are waiting that nobody sends before the next call of `receive` or `transmit`.
    pub(super) fn unsent(&self) -> bool {
        self.unsent
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
            let again = status < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
            let left = self.tx.waiting();
            self.unsent = left > 0;
            // It stops at its budget, and goes on with the next call; where it does not get on, the queue behind is
            // full, or the interface down, and asking at once would not help.
            if !again || left == 0 || left == waiting {
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
    let (mut options, mut length) = (0u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: the option writes four octets of flags.
    let status = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_OPTIONS,
            (&raw mut options).cast(),
            &raw mut length,
        )
    };
    if status == 0 && options & libc::XDP_OPTIONS_ZEROCOPY != 0 { Mode::ZeroCopy } else { Mode::Copy }
}
