//! Ports of DPDK: Ethernet frames in batches, polled, from any device that it drives.
//!
//! A device is named as DPDK names it, with its arguments: `net_memif0,role=client,socket=/run/godwit.sock`,
//! `net_af_packet0,iface=eth0`, `net_af_xdp0,iface=eth0`, `net_null0,size=64`, `net_ring0`, or the address of a
//! physical one, `0000:01:00.0`. [`DpdkPort::open`] gives a port per queue, each for one worker.
//!
//! Frames are mbufs, lent to the batch and sent without copying ([`frames`]); packets in other memory
//! are copied when sent. A worker may have a device's mbufs as its home pool, into which its sockets receive. There is no descriptor to sleep on: a worker polls.
//!
//! Packets in several pieces (larger than a buffer) are dropped and counted. What the device itself has lost is read from its
//! driver's counters and counts as `rx_queue_full`, `rx_error` or `tx_error`.
//!
//! A memif outlives its peer: a server waits for the next client, a client looks for its server again and again, and
//! may be opened before it. With `zero-copy=yes` (clients only, about half as fast again) DPDK 22.11 loses the buffers
//! that are in the rings each time the peer goes away, up to 2048 per queue: [`Settings::buffers`] says how often that
//! may happen.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use net::time::{self, Duration};
use packet::ethernet::Mac;
use telemetry::DropReason;

use super::frames::{self, Raw};
use super::gate::{self, Section};
use super::{Error, eal};
use crate::frame::{HEADROOM, Pool, memory};
use crate::vlan::LONGEST_HEADER;
use crate::{Frame, FramePort, Port, Sent, Vector, crossing};

/// Packets per call of DPDK; larger batches take several to send. Equal to `CALL` of port.c.
const CALL: usize = 64;
/// How often a device's counters are read: its registers, or a system call.
const READ_EVERY: Duration = Duration::from_millis(10);
/// Calls of [`Port::losses`] without traffic after which they are read too.
const QUIET_CALLS: u32 = 4096;
/// How a device is set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Pairs of queues, between which the device spreads flows: one per worker.
    pub queues: u16,
    /// Longest payload of a frame.
    pub mtu: u16,
    /// Packets that wait in each queue, where the device lets one choose.
    pub descriptors: u16,
    /// Buffers of 2 kB (more with a larger MTU) for received packets; 0: as many as queues may hold, and some.
    pub buffers: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { queues: 1, mtu: 1500, descriptors: 1024, buffers: 0 }
    }
}

impl Settings {
    /// All queues of this device full, those of the one that packets leave through as well, a batch or two with
    /// each worker, and what its workers may have given to each other. DPDK's pools waste least just below a power of two.
    fn buffers(&self) -> u32 {
        let each = 3 * u32::from(self.descriptors) + 1024;
        let away = crossing::frames(self.queues.into()) as u32;
        let wanted = (u32::from(self.queues) * (each + away)).max(4096);
        if self.buffers == 0 { wanted.next_power_of_two() - 1 } else { self.buffers }
    }
}

/// Equal to `struct godwit_wanted` of port.c.
#[repr(C)]
struct Wanted {
    buffers: u32,
    queues: u16,
    descriptors: u16,
    mtu: u16,
    /// Whether a device is opened although it does not start.
    patient: u16,
}

/// Equal to `struct godwit_opened` of port.c.
#[repr(C)]
struct Opened {
    pool: *mut u8,
    driver: *const c_char,
    port: u16,
    mtu: u16,
    started: u16,
    mac: Mac,
}

/// What a device itself did not deliver. Equal to `struct godwit_counters` of port.c.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// Packets lost because no worker fetched them in time, or because no buffer was free.
    pub missed: u64,
    /// Packets that arrived damaged.
    pub errors: u64,
    /// Packets that were taken for sending and not sent. Drivers of software also count what they did not take.
    pub send_errors: u64,
    /// Times that there was no buffer to receive into. No packet is lost by that: it waits in the device, and counts as
    /// missed when that is full.
    pub no_buffer: u64,
}

/// Packets that a device has lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Losses {
    missed: u64,
    damaged: u64,
    /// They counted as sent.
    unsent: u64,
}

impl Counters {
    /// What was lost between two readings, when the device refused `refused` packets in between, which are known. A device
    /// that starts anew counts from 0 again.
    fn losses(before: &Counters, after: &Counters, refused: u64) -> Losses {
        let more = |of: fn(&Counters) -> u64| of(after).checked_sub(of(before)).unwrap_or(of(after));
        Losses {
            missed: more(|counters| counters.missed),
            damaged: more(|counters| counters.errors),
            unsent: more(|counters| counters.send_errors).saturating_sub(refused),
        }
    }
}

/// The last reading of a device's counters.
#[derive(Debug)]
struct Reading {
    counters: Counters,
    /// Packets refused by then.
    refused: u64,
    /// When they are read again, while there is traffic.
    next: Instant,
    /// Calls since, with or without traffic.
    calls: u32,
    /// Packets came or went since.
    traffic: bool,
    /// That buffers have run out has been said.
    told: bool,
}

unsafe extern "C" {
    fn godwit_port_open(
        device: *const c_char,
        name: *const c_char,
        wanted: *const Wanted,
        opened: *mut Opened,
    ) -> c_int;
    fn godwit_port_close(port: u16, pool: *mut u8) -> c_int;
    fn godwit_port_up(port: u16) -> c_int;
    fn godwit_port_counters(port: u16, counters: *mut Counters);
    fn godwit_port_receive(port: u16, queue: u16, frames: *mut Raw, count: u16, refused: *mut u64) -> u16;
    fn godwit_port_transmit(port: u16, queue: u16, frames: *const Raw, count: u16) -> u16;
    fn godwit_frames_take(pool: *mut u8, frames: *mut Raw, count: u16) -> c_int;
}

/// An open device, closed with the last of its queues.
#[derive(Debug)]
struct Device {
    name: String,
    port: u16,
    mtu: usize,
    mac: Mac,
    /// Whether another process is at its other end, which may go away: see [`gate`].
    connected: bool,
    started: bool,
    pool: *mut u8,
    /// Packets that its queues did not take.
    refused: AtomicU64,
}

// SAFETY: the pointer names a DPDK memory pool, which any thread may use at any time.
unsafe impl Send for Device {}
// SAFETY: as above; the rest is only read.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device. A `patient` one is open even if it does not start, for want of a server to connect to.
    fn open(device: &str, settings: &Settings, patient: bool) -> Result<Device, Error> {
        let name = device.split(',').next().unwrap_or_default();
        let error = |reason: &str| Error::new(device, reason);
        if name.is_empty() {
            return Err(error("a device has a name, such as net_memif0"));
        }
        let (c_device, c_name) = (CString::new(device), CString::new(name));
        let (Ok(c_device), Ok(c_name)) = (c_device, c_name) else {
            return Err(error("the name contains a zero"));
        };
        let Settings { queues, mtu, descriptors, .. } = *settings;
        let wanted = Wanted {
            buffers: settings.buffers(),
            queues: queues.max(1),
            descriptors,
            mtu,
            patient: patient.into(),
        };
        let mut opened = Opened {
            pool: std::ptr::null_mut(),
            driver: std::ptr::null(),
            port: 0,
            mtu: 0,
            started: 0,
            mac: [0; 6],
        };
        eal::clear_log();
        // SAFETY: strings that end with zero, and structures of the C side's layout, all of which outlive the call.
        let code = unsafe {
            godwit_port_open(c_device.as_ptr(), c_name.as_ptr(), &raw const wanted, &raw mut opened)
        };
        if code < 0 {
            return Err(match code.abs() {
                libc::EEXIST => error("it is open already"),
                libc::ENODEV | libc::ENOENT => eal::explained(&format!("{device}: no such device"), code),
                libc::ERANGE => error(&format!("it does not have {queues} pairs of queues")),
                libc::EMSGSIZE => error(&format!("it cannot have an MTU of {mtu}")),
                _ => eal::explained(device, code),
            });
        }
        // SAFETY: the name of a driver, which stays loaded.
        let driver = unsafe { CStr::from_ptr(opened.driver) };
        Ok(Device {
            name: name.to_owned(),
            port: opened.port,
            mtu: usize::from(opened.mtu),
            mac: opened.mac,
            connected: driver.to_bytes() == b"net_memif",
            started: opened.started != 0,
            pool: opened.pool,
            refused: AtomicU64::new(0),
        })
    }

    /// Takes empty frames of the device's pool: as many as `frames` has places, or one if there are not so many. Returns how
    /// many there are.
    #[inline]
    fn take(&self, frames: &mut [Raw]) -> usize {
        // SAFETY: the device's own pool, and room for as many frames; the C side takes all or none.
        let take = |frames: &mut [Raw]| unsafe {
            godwit_frames_take(self.pool, frames.as_mut_ptr(), frames.len() as u16) >= 0
        };
        if take(frames) { frames.len() } else { usize::from(frames.len() > 1 && take(&mut frames[..1])) }
    }

    fn close(&self) {
        // SAFETY: the port is open, and with the last of its queues nobody uses it any more.
        let left = unsafe { godwit_port_close(self.port, self.pool) };
        if left != 0 {
            // Frames are still in somebody's batch: their memory has to stay.
            tracing::debug!("{}: closed with packets still in use, their memory is kept", self.name);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.connected {
            // It was hooked when the device was opened.
            let _ = gate::with_device(|| {
                gate::forget(self.port);
                self.close();
            });
        } else {
            self.close();
        }
    }
}

/// Removes the socket of a memif server that is no more: DPDK would refuse to make it anew.
fn remove_stale_socket(device: &str) {
    let argument = |name: &str| device.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let Some(path) = argument("socket").filter(|_| argument("socket-abstract") == Some("no")) else { return };
    // A server that lives refuses a connection of this type otherwise.
    // tidy-allow: calls: asks whether anybody listens, and talks to nobody
    let dead = std::os::unix::net::UnixStream::connect(path)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if dead {
        let _ = std::fs::remove_file(path);
    }
}

/// The mbufs of a device as a pool that vectors draw from. It keeps the device open.
#[derive(Debug)]
struct Buffers {
    device: Arc<Device>,
    longest: usize,
}

impl Buffers {
    fn of(device: &Arc<Device>) -> Buffers {
        let mut first = [Raw::NONE];
        let count = device.take(&mut first);
        frames::give(&first[..count]);
        let room = first[0].to_frame().map_or(0, |frame| usize::from(frame.room));
        Buffers { device: Arc::clone(device), longest: room.saturating_sub(HEADROOM) }
    }
}

impl memory::Memory for Buffers {
    fn draw(&self, vector: &mut Vector, count: usize) {
        eal::register_thread();
        let mut empty = [Raw::NONE; CALL];
        let count = self.device.take(&mut empty[..count.min(CALL)]);
        lend(vector, &empty[..count]);
    }

    fn take_back(&self, frames: &mut [Frame]) {
        frames::take_back(frames);
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn has_mbufs(&self) -> bool {
        true
    }
}

/// Lends frames that the C side has just described.
#[inline]
fn lend(vector: &mut Vector, frames: &[Raw]) {
    for frame in frames.iter().filter_map(|raw| raw.to_frame()) {
        // SAFETY: an mbuf's memory, mapped for ever and zero before it was first used; the packet lies within
        // it, and the C side hands over only those that nobody else refers to.
        unsafe { vector.lend(frame) };
    }
}

/// Opens one device at a time.
static OPENING: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// One queue pair of a device.
#[derive(Debug)]
pub struct DpdkPort {
    queue: u16,
    section: Option<Arc<Section>>,
    /// All mbufs of the process: received frames are of this pool.
    mbufs: Arc<dyn Pool>,
    /// Those of the device.
    home: Arc<dyn Pool>,
    frames: Box<[Raw; CALL]>,
    /// Empty frames to copy packets into; the first `spares` of them, between two calls none.
    spare: Box<[Raw; CALL]>,
    spares: usize,
    refused: u64,
    /// Of the first queue: it counts for the whole device.
    reading: Option<Reading>,
    /// Packets that counted as sent and were not: see [`DpdkPort::settle`].
    unsent: u64,
    device: Arc<Device>,
}

// SAFETY: the frames are scratch space for one call: each call writes them before it reads them, through `&mut self`.
unsafe impl Send for DpdkPort {}

impl DpdkPort {
    /// Opens a device; gives as many ports as it was asked for queues. Starts DPDK with its defaults if
    /// [`eal::start_with`] has not been called.
    ///
    /// # Errors
    /// DPDK did not start, has no such device, or the device cannot be set up this way.
    pub fn open(device: &str, settings: &Settings) -> Result<Vec<DpdkPort>, Error> {
        eal::start_with(&eal::Options::default())?;
        let mbufs = frames::mbufs();
        let _one = OPENING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sections: Vec<Arc<Section>> = (0..settings.queues.max(1)).map(|_| Arc::default()).collect();
        let opened = if device.starts_with("net_memif") {
            gate::with_device(|| {
                let server = device.split(',').any(|part| part == "role=server");
                if server {
                    remove_stale_socket(device);
                }
                if device.contains("zero-copy=yes") {
                    gate::keep_memory()?;
                }
                let opened = Device::open(device, settings, !server)?;
                gate::watch(opened.port, !server, opened.started, &sections);
                Ok(opened)
            })??
        } else {
            Device::open(device, settings, false)?
        };
        let opened = Arc::new(opened);
        let home: Arc<dyn Pool> = Arc::new(Buffers::of(&opened));
        let port = |(queue, section): (usize, &Arc<Section>)| DpdkPort {
            queue: queue as u16,
            section: opened.connected.then(|| Arc::clone(section)),
            mbufs: Arc::clone(&mbufs),
            home: Arc::clone(&home),
            frames: Box::new([Raw::NONE; CALL]),
            spare: Box::new([Raw::NONE; CALL]),
            spares: 0,
            refused: 0,
            reading: None,
            unsent: 0,
            device: Arc::clone(&opened),
        };
        let mut ports: Vec<DpdkPort> = sections.iter().enumerate().map(port).collect();
        if let Some(first) = ports.first_mut() {
            let (counters, next) = (first.counters(), time::now_std());
            first.reading =
                Some(Reading { counters, refused: 0, next, calls: 0, traffic: true, told: false });
        }
        Ok(ports)
    }

    /// Whether the other end is there: a link, a connected peer.
    pub fn is_up(&self) -> bool {
        let inside = self.section.as_deref().map(Section::enter);
        // SAFETY: the port is open.
        !matches!(inside, Some(None)) && unsafe { godwit_port_up(self.device.port) != 0 }
    }

    /// What the device, with all its queues, did not deliver.
    pub fn counters(&self) -> Counters {
        let _inside = self.section.as_deref().map(Section::enter);
        let mut counters = Counters::default();
        // SAFETY: the port is open; a structure of the C side's layout.
        unsafe { godwit_port_counters(self.device.port, &raw mut counters) };
        counters
    }

    /// Whether it is time to read the device's counters: every ten milliseconds while there is traffic, and rarely without, when
    /// buffers may have run out.
    #[inline]
    fn reading_is_due(&mut self) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        reading.calls += 1;
        if !reading.traffic && reading.calls < QUIET_CALLS {
            return false;
        }
        let now = time::now_std();
        if now < reading.next {
            return false;
        }
        (reading.next, reading.calls, reading.traffic) = (now + READ_EVERY, 0, false);
        true
    }

    /// Reads the device's counters.
    #[cold]
    fn read_counters(&mut self) -> Losses {
        let (now, refused) = (self.counters(), self.device.refused.load(Relaxed));
        let Some(reading) = &mut self.reading else { return Losses::default() };
        let losses = Counters::losses(&reading.counters, &now, refused - reading.refused);
        if now.no_buffer > reading.counters.no_buffer && !std::mem::replace(&mut reading.told, true) {
            tracing::warn!(
                device = self.device.name,
                "no buffer was free for a received packet, which waits in the device: `upf.dpdk.memory_mb` may be too small"
            );
        }
        (reading.counters, reading.refused) = (now, refused);
        losses
    }

    /// Notes that packets came or went.
    #[inline]
    fn note_traffic(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.traffic = true;
        }
    }

    /// Counts packets that the device took and then did not send as such instead of as sent, so that each packet counts once.
    /// That is known later, so those of a later transmission stand for them, and their octets are taken as average ones.
    #[inline]
    fn settle(&mut self, sent: &mut Sent) {
        let unsent = (self.unsent as usize).min(sent.packets);
        if unsent > 0 {
            sent.bytes -= sent.bytes * unsent / sent.packets;
            sent.packets -= unsent;
            sent.errors += unsent;
            self.unsent -= unsent as u64;
        }
    }

    /// Puts a copy of a packet that is not in an mbuf into `frames[at]`. Up to `more` further ones may follow: empty
    /// frames are taken for all of them at once, or, when there are not so many, one by one.
    fn copy(&mut self, packet: &Frame, at: usize, more: usize, sent: &mut Sent) -> bool {
        if packet.is_gone() {
            sent.errors += 1;
            return false;
        }
        if self.spares == 0 {
            self.spares = self.device.take(&mut self.spare[..(more + 1).min(CALL)]);
        }
        if self.spares == 0 {
            sent.full += 1;
            return false;
        }
        let frame = &mut self.spare[self.spares - 1];
        let fits = frame.fill(packet.packet());
        if fits {
            self.frames[at] = *frame;
            self.spares -= 1;
            sent.copied += 1;
        } else {
            sent.too_big += 1;
        }
        fits
    }

    /// Sends the first `count` frames.
    #[inline]
    fn flush(&self, count: usize, sent: &mut Sent) {
        if count == 0 {
            return;
        }
        let taken = {
            let inside = self.section.as_deref().map(Section::enter);
            if matches!(inside, Some(None)) {
                // The device is stopped.
                frames::give(&self.frames[..count]);
                sent.full += count;
                return;
            }
            // SAFETY: `count` frames, which nobody else knows of any more; the queue is this port's alone.
            unsafe { godwit_port_transmit(self.device.port, self.queue, self.frames.as_ptr(), count as u16) }
        };
        let taken = usize::from(taken);
        if taken < count {
            self.device.refused.fetch_add((count - taken) as u64, Relaxed);
        }
        sent.packets += taken;
        sent.full += count - taken;
        sent.bytes += self.frames[..taken].iter().map(Raw::len).sum::<usize>();
    }
}

impl Port for DpdkPort {
    #[inline]
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        eal::register_thread();
        batch.clear();
        let count = batch.capacity().min(CALL) as u16;
        let received = {
            let inside = self.section.as_deref().map(Section::try_enter);
            if matches!(inside, Some(None)) {
                // The connection is being looked after: nothing for some microseconds.
                return Ok(0);
            }
            let frames = self.frames.as_mut_ptr();
            // SAFETY: room for `count` frames; the queue is this port's alone.
            unsafe { godwit_port_receive(self.device.port, self.queue, frames, count, &raw mut self.refused) }
        };
        if received > 0 {
            self.note_traffic();
            // Not before: a batch keeps its own frames as long as nothing is lent to it.
            batch.begin_lent(&self.mbufs);
            lend(batch, &self.frames[..usize::from(received)]);
        }
        Ok(batch.len())
    }

    #[inline]
    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        eal::register_thread();
        let mut sent = Sent::default();
        let longest = self.device.mtu + LONGEST_HEADER;
        let own = batch.gives_mbufs();
        for group in selected.chunks(CALL) {
            let mut count = 0;
            for (at, &position) in group.iter().enumerate() {
                let Some(frame) = batch.chunk_mut(position) else {
                    sent.errors += 1;
                    continue;
                };
                if frame.len() > longest {
                    sent.too_big += 1;
                } else if let Some(raw) = if own { frame.take() } else { None } {
                    self.frames[count] = Raw::from_frame(&raw);
                    count += 1;
                } else {
                    count += usize::from(self.copy(frame, count, group.len() - at - 1, &mut sent));
                }
            }
            if self.spares > 0 {
                frames::give(&self.spare[..self.spares]);
                self.spares = 0;
            }
            self.flush(count, &mut sent);
        }
        self.note_traffic();
        self.settle(&mut sent);
        sent.copied = sent.copied.min(sent.packets);
        sent
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        if self.refused > 0 {
            count(DropReason::TooBig, self.refused as usize);
            self.refused = 0;
        }
        if self.reading_is_due() {
            let losses = self.read_counters();
            self.unsent += losses.unsent;
            for (reason, packets) in
                [(DropReason::RxQueueFull, losses.missed), (DropReason::RxError, losses.damaged)]
            {
                if packets > 0 {
                    count(reason, packets as usize);
                }
            }
        }
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        Some(Arc::clone(&self.home))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl FramePort for DpdkPort {
    fn mac(&self) -> Mac {
        self.device.mac
    }

    fn mtu(&self) -> usize {
        self.device.mtu
    }

    /// Frames of the device's pool, which are sent without being copied.
    #[inline]
    fn draw(&mut self, batch: &mut Vector, count: usize) -> usize {
        eal::register_thread();
        batch.begin_lent(&self.mbufs);
        let count = self.device.take(&mut self.frames[..count.min(batch.capacity()).min(CALL)]);
        lend(batch, &self.frames[..count]);
        batch.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_counters_become_losses_of_packets() {
        let counters = |missed, errors, send_errors| Counters { missed, errors, send_errors, no_buffer: 77 };
        let before = counters(10, 3, 5);
        let losses = |missed, damaged, unsent| Losses { missed, damaged, unsent };
        assert_eq!(Counters::losses(&before, &before, 0), losses(0, 0, 0));
        assert_eq!(Counters::losses(&before, &counters(14, 5, 6), 0), losses(4, 2, 1));
        // A driver that counts what it refuses, and one that does not.
        assert_eq!(Counters::losses(&before, &counters(10, 3, 12), 7), losses(0, 0, 0));
        assert_eq!(Counters::losses(&before, &before, 7), losses(0, 0, 0));
        assert_eq!(Counters::losses(&before, &counters(2, 0, 0), 0), losses(2, 0, 0), "it has started anew");
    }
}
