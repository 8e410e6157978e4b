//! The rings of memif: descriptors in shared memory, filled by one process and emptied by the other.
//!
//! ```text
//! octet 0    cookie (32 bits), flags (16), head (16)      flags: 1 = the receiver polls, do not ring
//!       64   tail (16)
//!       128  descriptors of 16 octets: flags (16), region (16), length (32), offset (32), metadata (32)
//! ```
//! Head and tail count descriptors and wrap at 2^16; the ring's size is a power of two, at most 2^14. The client owns all memory,
//! so that the two directions differ:
//! - to the server: the client fills descriptors with packets and moves the head; the server empties them and moves the tail;
//! - to the client: the client fills descriptors with empty buffers and moves the head; the server writes packets into
//!   them and moves the tail.
//!
//! The packet of several descriptors is a chain: all but the last have the flag NEXT.
//!
//! Each side trusts only its own counter, which it keeps in its own memory ([`Receiver::position`]). The peer's counter is
//! read once per burst and must be within the ring's size of ours. A descriptor is copied before it is checked. A client
//! ignores what the server has written into region and offset of a descriptor and uses its own buffer of that number.
//! What cannot be is a [`Violation`]: the owner ends the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::region::Region;

/// Marks a ring that has been set up.
pub const COOKIE: u32 = 0x03E3_1F20;
/// Base-2 logarithm of the largest ring, as in other implementations.
pub const MAX_LOG2_SIZE: u8 = 14;

const FLAGS: usize = 4;
const HEAD: usize = 6;
const TAIL: usize = 64;
const DESCRIPTORS: usize = 128;
const DESCRIPTOR: usize = 16;
/// Flag of a ring: its receiver polls.
const MASK_INTERRUPT: u16 = 1;
/// Flag of a descriptor: the packet goes on in the next one.
const NEXT: u16 = 1;
/// Octets of a packet that are fetched before it is copied: the headers, and all of a short packet.
const FETCHED: u32 = 192;

/// What a peer must not do. The connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// The peer's counter is further from ours than the ring has descriptors.
    #[error("a counter of a ring is out of range")]
    Counter,
    /// A descriptor names memory that is not in its region.
    #[error("a descriptor lies outside its region")]
    Descriptor,
    /// A packet's last descriptor is not there.
    #[error("a packet has no end")]
    Chain,
}

/// Why a ring cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// It has too many descriptors.
    #[error("a ring of 2^{0} descriptors")]
    Size(u8),
    /// It is not aligned, or not inside its region.
    #[error("a ring outside its region")]
    Place,
    /// It has not been set up.
    #[error("a ring without cookie")]
    Cookie,
}

/// Which end of a connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Listens at the socket: "master".
    Server,
    /// Connects and owns the memory: "slave".
    Client,
}

/// One descriptor, copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Descriptor {
    flags: u16,
    region: u16,
    length: u32,
    offset: u32,
}

impl Descriptor {
    #[inline]
    fn from_octets(o: [u8; 16]) -> Descriptor {
        Descriptor {
            flags: u16::from_ne_bytes([o[0], o[1]]),
            region: u16::from_ne_bytes([o[2], o[3]]),
            length: u32::from_ne_bytes([o[4], o[5], o[6], o[7]]),
            offset: u32::from_ne_bytes([o[8], o[9], o[10], o[11]]),
        }
    }

    #[inline]
    fn octets(self) -> [u8; 16] {
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&self.flags.to_ne_bytes());
        octets[2..4].copy_from_slice(&self.region.to_ne_bytes());
        octets[4..8].copy_from_slice(&self.length.to_ne_bytes());
        octets[8..12].copy_from_slice(&self.offset.to_ne_bytes());
        octets
    }
}

/// Where a ring lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of its region.
    pub region: u16,
    /// Where in the region it begins.
    pub offset: u32,
    /// Base-2 logarithm of its size.
    pub log2_size: u8,
}

/// A client's buffers for one ring, in region 0: descriptor `n` has the buffer `n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// Where the first one begins.
    pub offset: u32,
    /// Octets of each.
    pub size: u32,
}

/// One ring, and what its end needs of it.
#[derive(Debug)]
pub struct Ring {
    regions: Arc<[Region]>,
    region: usize,
    offset: usize,
    size: u16,
    /// A client's; a server uses the buffers that descriptors name.
    buffers: Option<Buffers>,
    /// Rung by the sender, watched by the receiver.
    bell: OwnedFd,
}

impl Ring {
    /// A ring in one of `regions`. A client names its buffers.
    ///
    /// # Errors
    /// There is no room for such a ring there.
    pub fn new(
        regions: &Arc<[Region]>,
        place: Place,
        buffers: Option<Buffers>,
        bell: OwnedFd,
    ) -> Result<Ring, RingError> {
        if place.log2_size > MAX_LOG2_SIZE {
            return Err(RingError::Size(place.log2_size));
        }
        let (region, offset) = (usize::from(place.region), place.offset as usize);
        let size = 1u16 << place.log2_size;
        let end = offset + DESCRIPTORS + usize::from(size) * DESCRIPTOR;
        // Mappings begin at pages, so that a multiple of 16 is aligned for everything in the ring.
        let fits = regions.get(region).is_some_and(|region| end <= region.len());
        if !fits || !offset.is_multiple_of(DESCRIPTOR) {
            return Err(RingError::Place);
        }
        Ok(Ring { regions: Arc::clone(regions), region, offset, size, buffers, bell })
    }

    /// Octets of a ring.
    pub fn octets(log2_size: u8) -> usize {
        DESCRIPTORS + (DESCRIPTOR << log2_size)
    }

    /// Makes a client's ring known to its server: empty, both counters 0.
    pub fn set_up(&self) {
        for place in [FLAGS, HEAD, TAIL] {
            self.number(place).store(0, Relaxed);
        }
        if let Some(cookie) = self.regions[self.region].u32(self.offset) {
            cookie.store(COOKIE, Release);
        }
    }

    /// # Errors
    /// Its client has not set it up.
    pub fn check_cookie(&self) -> Result<(), RingError> {
        let cookie = self.regions[self.region].u32(self.offset).map(|cookie| cookie.load(Acquire));
        if cookie == Some(COOKIE) { Ok(()) } else { Err(RingError::Cookie) }
    }

    /// The eventfd that the sender rings.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Flags, head or tail.
    #[inline]
    fn number(&self, place: usize) -> &AtomicU16 {
        self.regions[self.region]
            .u16(self.offset + place)
            .expect("`new` checked that the ring lies in its region")
    }

    #[inline]
    fn place_of(&self, position: u16) -> usize {
        self.offset + DESCRIPTORS + usize::from(position & (self.size - 1)) * DESCRIPTOR
    }

    #[inline]
    fn descriptor(&self, position: u16) -> Result<Descriptor, Violation> {
        let octets = self.regions[self.region].load_16(self.place_of(position));
        octets.map(Descriptor::from_octets).ok_or(Violation::Descriptor)
    }

    #[inline]
    fn set_descriptor(&self, position: u16, descriptor: Descriptor) {
        let stored = self.regions[self.region].store_16(self.place_of(position), &descriptor.octets());
        debug_assert!(stored, "`new` checked that the ring lies in its region");
    }

    /// A client's empty descriptor of this position.
    #[inline]
    fn own_descriptor(&self, buffers: Buffers, position: u16) -> Descriptor {
        let number = u32::from(position & (self.size - 1));
        Descriptor {
            flags: 0,
            region: 0,
            length: buffers.size,
            offset: buffers.offset + number * buffers.size,
        }
    }

    /// The buffer of a position that this side may use now: as the peer's descriptor says, or its own.
    #[inline]
    fn buffer(&self, position: u16) -> Result<Descriptor, Violation> {
        let descriptor = self.descriptor(position)?;
        let Some(buffers) = self.buffers else { return Ok(descriptor) };
        let own = self.own_descriptor(buffers, position);
        if descriptor.length > buffers.size {
            return Err(Violation::Descriptor);
        }
        Ok(Descriptor { flags: descriptor.flags, length: descriptor.length, ..own })
    }

    /// Has the first octets of a buffer fetched: more the processor fetches by itself while they are copied.
    #[inline(always)]
    fn prefetch(&self, buffer: Descriptor, octets: u32, to_write: bool) {
        if let Some(region) = self.regions.get(usize::from(buffer.region)) {
            region.prefetch(buffer.offset as usize, octets.min(FETCHED) as usize, to_write);
        }
    }

    /// How far the peer's counter at `place` is ahead of ours.
    #[inline]
    fn ahead(&self, place: usize, ours: u16) -> Result<u16, Violation> {
        let ahead = self.number(place).load(Acquire).wrapping_sub(ours);
        if ahead > self.size { Err(Violation::Counter) } else { Ok(ahead) }
    }
}

/// The result of [`Receiver::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// A packet of so many octets.
    Packet(usize),
    /// A packet that did not fit; it is gone.
    TooLong,
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct Receiver {
    ring: Arc<Ring>,
    /// The next descriptor to empty.
    position: u16,
    /// Descriptors before this one have been returned to the peer.
    returned: u16,
    /// Descriptors before this one hold packets, as far as the peer's counter has been read.
    filled: u16,
    /// Region and offset of the buffers of the last two packets.
    last: [(u16, u32); 2],
}

impl Receiver {
    /// The receiving end of a ring, which has this end only. A client gives its buffers to the server.
    pub fn new(ring: Arc<Ring>) -> Receiver {
        ring.number(FLAGS).store(MASK_INTERRUPT, Relaxed);
        let mut receiver = match ring.buffers {
            // It is our counter, which the client has initialised.
            None => {
                let position = ring.number(TAIL).load(Relaxed);
                Receiver { ring, position, returned: position, filled: position, last: [(0, 0); 2] }
            }
            // As if a whole ring had been received just now.
            Some(_) => {
                let returned = 0u16.wrapping_sub(ring.size);
                Receiver { ring, position: 0, returned, filled: 0, last: [(0, 0); 2] }
            }
        };
        receiver.release();
        receiver
    }

    /// How many descriptors hold packets.
    ///
    /// # Errors
    /// The peer's counter is out of range.
    #[inline]
    pub fn waiting(&self) -> Result<u16, Violation> {
        self.ring.ahead(if self.ring.buffers.is_some() { TAIL } else { HEAD }, self.position)
    }

    /// The same, or fewer if these are `enough`: then the peer's counter, whose cache line the peer writes, is not read again.
    ///
    /// # Errors
    /// As for [`Receiver::waiting`].
    #[inline]
    pub fn waiting_up_to(&mut self, enough: u16) -> Result<u16, Violation> {
        let known = self.filled.wrapping_sub(self.position);
        if known >= enough {
            return Ok(known);
        }
        let waiting = self.waiting()?;
        self.filled = self.position.wrapping_add(waiting);
        Ok(waiting)
    }

    /// Copies the next packet to `to`, which consists of at most `waiting` descriptors, and subtracts these.
    ///
    /// # Errors
    /// The peer broke the rules.
    pub fn take(&mut self, waiting: &mut u16, to: &mut [u8]) -> Result<Taken, Violation> {
        let (mut length, mut fits) = (0, true);
        loop {
            if *waiting == 0 {
                return Err(Violation::Chain);
            }
            let Descriptor { flags, region, length: octets, offset } = self.ring.buffer(self.position)?;
            self.last = [self.last[1], (region, offset)];
            let region = self.ring.regions.get(usize::from(region)).ok_or(Violation::Descriptor)?;
            match to.get_mut(length..).and_then(|rest| rest.get_mut(..octets as usize)) {
                Some(piece) if fits => {
                    if !region.read(offset as usize, piece) {
                        return Err(Violation::Descriptor);
                    }
                    length += octets as usize;
                }
                _ => fits = false,
            }
            self.position = self.position.wrapping_add(1);
            *waiting -= 1;
            if flags & NEXT == 0 {
                return Ok(if fits { Taken::Packet(length) } else { Taken::TooLong });
            }
        }
    }

    /// Has the packet fetched that comes `ahead` descriptors after the next one. The peer, on another core, has just written it.
    #[inline(always)]
    pub fn prefetch(&self, ahead: u16) {
        if let Ok(buffer) = self.ring.buffer(self.position.wrapping_add(ahead)) {
            self.ring.prefetch(buffer, buffer.length, false);
        }
    }

    /// Has the next packet fetched without waiting for its descriptor: its buffer follows the last one as that followed the one
    /// before, unless the peer takes buffers in another order.
    #[inline(always)]
    pub fn prefetch_next(&self) {
        let [(_, before), (region, last)] = self.last;
        if let Some(region) = self.ring.regions.get(usize::from(region)) {
            let offset = last.wrapping_add(last.wrapping_sub(before)) as usize;
            region.prefetch(offset, FETCHED as usize, false);
        }
    }

    /// Returns the emptied descriptors to the peer.
    #[inline]
    pub fn release(&mut self) {
        if self.returned == self.position {
            return;
        }
        match self.ring.buffers {
            None => self.ring.number(TAIL).store(self.position, Release),
            Some(buffers) => {
                let mut position = self.returned;
                while position != self.position {
                    self.ring.set_descriptor(position, self.ring.own_descriptor(buffers, position));
                    position = position.wrapping_add(1);
                }
                self.ring.number(HEAD).store(self.position.wrapping_add(self.ring.size), Release);
            }
        }
        self.returned = self.position;
    }

    /// Asks the peer not to ring: this side polls.
    pub fn mask(&self) {
        self.ring.number(FLAGS).store(MASK_INTERRUPT, Relaxed);
    }

    /// Asks the peer to ring from now on; `false` if packets are here already, for which it has not rung.
    pub fn unmask(&self) -> bool {
        self.ring.number(FLAGS).store(0, SeqCst);
        // The peer writes its counter before it reads the flags; this side the other way round.
        std::sync::atomic::fence(SeqCst);
        self.waiting() == Ok(0)
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }
}

/// The result of [`Sender::put`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The packet is in the ring.
    Done,
    /// There is no room at present.
    Full,
    /// The packet is longer than the whole ring has room for.
    TooLong,
}

/// The sending end of a ring.
#[derive(Debug)]
pub struct Sender {
    ring: Arc<Ring>,
    /// The next descriptor to fill.
    position: u16,
    /// Descriptors before this one have been published.
    published: u16,
    /// How many can be filled from `position` on, as far as the peer's counter has been read.
    room: u16,
}

impl Sender {
    /// The sending end of a ring, which has this end only.
    pub fn new(ring: Arc<Ring>) -> Sender {
        let place = if ring.buffers.is_some() { HEAD } else { TAIL };
        let position = ring.number(place).load(Relaxed);
        Sender { ring, position, published: position, room: 0 }
    }

    /// How many descriptors can be filled.
    ///
    /// # Errors
    /// The peer's counter is out of range.
    fn free(&self) -> Result<u16, Violation> {
        if self.ring.buffers.is_none() {
            return self.ring.ahead(HEAD, self.position);
        }
        let filled = self.position.wrapping_sub(self.ring.number(TAIL).load(Acquire));
        self.ring.size.checked_sub(filled).ok_or(Violation::Counter)
    }

    /// How many descriptors the peer has not taken, as far as one can tell: it may have read the last ones and not have
    /// said so.
    pub fn in_flight(&self) -> u16 {
        self.free().map_or(0, |free| self.ring.size - free)
    }

    /// Has the buffer fetched that is `ahead` descriptors after the next one, for a packet of so many octets. The peer, on another
    /// core, has read it last.
    #[inline(always)]
    pub fn prefetch(&self, ahead: u16, octets: usize) {
        let position = self.position.wrapping_add(ahead);
        let buffer = match self.ring.buffers {
            Some(buffers) => self.ring.own_descriptor(buffers, position),
            None => match self.ring.descriptor(position) {
                Ok(descriptor) => descriptor,
                Err(_) => return,
            },
        };
        self.ring.prefetch(buffer, octets as u32, true);
    }

    /// Has the next descriptor and its buffer fetched while there is nothing to do, so that the next packet need not wait for them.
    #[inline(always)]
    pub fn prepare(&self) {
        let descriptor = self.ring.place_of(self.position);
        self.ring.regions[self.ring.region].prefetch(descriptor, DESCRIPTOR, true);
        self.prefetch(0, FETCHED as usize);
    }

    /// Copies a packet to the next descriptors, if so many are free. The peer sees it after [`Sender::publish`].
    ///
    /// # Errors
    /// The peer broke the rules.
    pub fn put(&mut self, packet: &[u8]) -> Result<Put, Violation> {
        let (mut rest, mut used) = (packet, 0);
        loop {
            if used == self.room {
                // The peer writes its counter for each burst that it takes: it is read only when this side has no room left.
                self.room = self.free()?;
                if self.room <= used {
                    let whole_ring = self.room == self.ring.size;
                    return Ok(if whole_ring { Put::TooLong } else { Put::Full });
                }
            }
            let position = self.position.wrapping_add(used);
            // A client writes into its own buffer, whatever the server has made of the descriptor.
            let buffer = match self.ring.buffers {
                Some(buffers) => self.ring.own_descriptor(buffers, position),
                None => self.ring.descriptor(position)?,
            };
            let region = self.ring.regions.get(usize::from(buffer.region)).ok_or(Violation::Descriptor)?;
            let (piece, after) = rest.split_at(rest.len().min(buffer.length as usize));
            // A buffer without room would make a chain without end.
            if (piece.is_empty() && !rest.is_empty()) || !region.write(buffer.offset as usize, piece) {
                return Err(Violation::Descriptor);
            }
            let flags = if after.is_empty() { 0 } else { NEXT };
            self.ring.set_descriptor(position, Descriptor { flags, length: piece.len() as u32, ..buffer });
            (rest, used) = (after, used + 1);
            if flags == 0 {
                (self.position, self.room) = (self.position.wrapping_add(used), self.room - used);
                return Ok(Put::Done);
            }
        }
    }

    /// Shows the packets to the peer, and rings if it sleeps.
    #[inline]
    pub fn publish(&mut self) {
        if self.published == self.position {
            return;
        }
        self.published = self.position;
        let place = if self.ring.buffers.is_some() { HEAD } else { TAIL };
        self.ring.number(place).store(self.position, Release);
        // See `Receiver::unmask`.
        std::sync::atomic::fence(SeqCst);
        if self.ring.number(FLAGS).load(Relaxed) & MASK_INTERRUPT == 0 {
            // The only error is a counter about to overflow, and then the peer has been rung.
            let _ = nix::unistd::write(self.ring.bell.as_fd(), &1u64.to_ne_bytes());
        }
    }
}
