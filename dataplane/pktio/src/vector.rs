//! Up to 64 packets that go through the stages together.
//!
//! The frames of a vector belong to one pool: that of the backend which received them ([`Vector::begin_lent`]), or
//! the vector's *home*, into which ports that copy receive ([`Vector::draw`]). Frames that are not sent return to their
//! pool. Those of the home pool stay with the vector when it is cleared, for its next use.
//!
//! A worker's vector has the frames of a device as its home where there is one ([`Vector::settle`]): what comes from
//! sockets and TUN devices then leaves through that device as it is. These frames are as long as the device's own packets;
//! packets that are too long for them go into frames of the pool that the vector began with.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::frame::{Frame, FrameMut, NO_PEER, Pool, RawFrame};
use crate::peers::Peers;
use crate::slab::Slab;

/// Most packets of a vector: large enough to spread system calls, small enough to stay in the first-level caches.
pub const VECTOR: usize = 64;

/// A number of frames, of which the first [`Vector::len`] hold packets; see the module.
#[derive(Debug)]
pub struct Vector {
    /// The first `drawn` have a chunk, unless it was taken.
    frames: [Frame; VECTOR],
    len: usize,
    /// At least `len`.
    drawn: usize,
    capacity: usize,
    home: Arc<dyn Pool>,
    /// The pool for packets that are too long for frames of the home, if there is one.
    long: Option<Arc<dyn Pool>>,
    /// The pool of the frames, where that is not the home. It is kept after the frames are gone, so that its reference
    /// count changes once and not per use.
    guest: Option<Arc<dyn Pool>>,
    /// Whether the frames are of the guest pool.
    lent: bool,
    /// Whether chunks of the home pool may have been taken since the last [`Vector::have`].
    gaps: bool,
    peers: [SocketAddr; VECTOR],
    /// Where packets are sent whose frames have the number of a peer.
    table: Option<Arc<Peers>>,
}

impl Vector {
    /// A vector for up to `capacity` packets (64 at most) of up to `packet_len` octets, with memory of its own.
    pub fn new(capacity: usize, packet_len: usize) -> Vector {
        let capacity = capacity.clamp(1, VECTOR);
        let slab: Arc<dyn Pool> = Slab::new(capacity, packet_len);
        let mut vector = Vector::of(&slab);
        vector.capacity = capacity;
        vector
    }

    /// A vector into which ports that copy receive with memory of `home`.
    pub fn of(home: &Arc<dyn Pool>) -> Vector {
        Vector {
            frames: [const { Frame::GONE }; VECTOR],
            len: 0,
            drawn: 0,
            capacity: VECTOR,
            home: Arc::clone(home),
            long: None,
            guest: None,
            lent: false,
            gaps: false,
            peers: [NO_PEER; VECTOR],
            table: None,
        }
    }

    /// Makes `home` the pool into which ports that copy receive. Packets that do not fit into its frames are received into
    /// those of the pool that the vector began with.
    pub fn settle(&mut self, home: &Arc<dyn Pool>) {
        if !Arc::ptr_eq(&self.home, home) {
            self.give_back();
            let former = std::mem::replace(&mut self.home, Arc::clone(home));
            self.long.get_or_insert(former);
        }
    }

    /// How many packets the vector holds.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many it can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The packets.
    #[inline(always)]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.len]
    }

    /// The packets, to change in place.
    #[inline(always)]
    pub fn frames_mut(&mut self) -> impl ExactSizeIterator<Item = FrameMut<'_>> {
        let frames = self.frames[..self.len].iter_mut();
        frames.zip(&mut self.peers).map(|(frame, peer)| FrameMut::new(frame, peer))
    }

    /// The packet at a position. Behind the last packet there is none, but what a frame there may hold.
    ///
    /// # Panics
    /// No vector has this position: it is [`VECTOR`] or more.
    #[inline(always)]
    pub fn frame_mut(&mut self, at: usize) -> FrameMut<'_> {
        FrameMut::new(&mut self.frames[at], &mut self.peers[at])
    }

    /// The packet that was added last.
    pub fn last_mut(&mut self) -> Option<FrameMut<'_>> {
        (self.len > 0).then(|| self.frame_mut(self.len - 1))
    }

    /// On a UDP port: the sender of a packet after receiving; its destination when sending, unless that is a number.
    #[inline]
    pub fn peer(&self, at: usize) -> SocketAddr {
        self.peers[at]
    }

    /// Where a packet is sent; `None` if nobody has its number. Takes a lock if it has one: ports that send many packets
    /// read the table otherwise.
    ///
    /// # Panics
    /// There is no such packet.
    pub fn destination(&self, at: usize) -> Option<SocketAddr> {
        match self.frames()[at].to() {
            0 => Some(self.peers[at]),
            number => self.table.as_ref()?.address(number),
        }
    }

    /// Makes `table` the one in which the packets' destinations have their numbers ([`FrameMut::send_to`]), until
    /// there is another.
    #[inline]
    pub fn set_peers(&mut self, table: &Arc<Peers>) {
        if !self.table.as_ref().is_some_and(|known| Arc::ptr_eq(known, table)) {
            self.table = Some(Arc::clone(table));
        }
    }

    /// The table of the packets' destinations.
    #[inline]
    pub(crate) fn peers_table(&self) -> Option<&Arc<Peers>> {
        self.table.as_ref()
    }

    /// The senders of all packets, as [`Vector::peer`].
    pub fn peers(&self) -> &[SocketAddr] {
        &self.peers[..self.len]
    }

    /// Keeps the packets for which `keep` says so, in their order; the others are forgotten.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(FrameMut<'_>) -> bool) {
        let mut kept = 0;
        for i in 0..self.len {
            if keep(FrameMut::new(&mut self.frames[i], &mut self.peers[i])) {
                if kept != i {
                    self.frames.swap(kept, i);
                    self.peers[kept] = self.peers[i];
                }
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// The packet at a position that was selected for sending; `None` outside the vector and where a packet has been
    /// sent already.
    #[inline]
    pub(crate) fn sendable(&self, position: u16) -> Option<&Frame> {
        self.frames().get(usize::from(position)).filter(|frame| !frame.is_gone())
    }

    /// The same, to change in place.
    #[inline]
    pub(crate) fn sendable_mut(&mut self, position: u16) -> Option<FrameMut<'_>> {
        self.sendable(position).is_some().then(|| self.frame_mut(position.into()))
    }

    /// The frame itself, for a port that takes its chunk.
    #[inline(always)]
    pub(crate) fn chunk_mut(&mut self, position: u16) -> Option<&mut Frame> {
        self.frames[..self.len].get_mut(usize::from(position))
    }

    /// Whether the frames are of `pool`, so that its port may take their chunks by [`Vector::chunk_mut`].
    #[inline]
    pub(crate) fn gives_to(&mut self, pool: &Arc<dyn Pool>) -> bool {
        let gives = Arc::ptr_eq(self.pool(), pool);
        self.gaps |= gives;
        gives
    }

    /// Whether the frames are mbufs, so that any port of DPDK may take them by [`Vector::chunk_mut`].
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(crate) fn gives_mbufs(&mut self) -> bool {
        let gives = self.pool().has_mbufs();
        self.gaps |= gives;
        gives
    }

    /// Moves the packets at positions for which `which` says so behind those of `to`, which may be empty or hold frames
    /// of the same pool; the others stay, gone ones among them. Packets for which `to` has no room, or another pool's
    /// frames, stay too.
    pub(crate) fn give_to(&mut self, to: &mut Vector, which: impl Fn(usize) -> bool) {
        let pool = if self.lent { self.guest.as_ref() } else { Some(&self.home) };
        let Some(pool) = pool else { return };
        if to.is_empty() {
            to.begin_lent(pool);
        } else if !to.lent || !to.guest.as_ref().is_some_and(|known| Arc::ptr_eq(known, pool)) {
            return;
        }
        for at in (0..self.len).filter(|at| which(*at)) {
            if to.len == to.capacity {
                break;
            }
            let Some(raw) = self.frames[at].take() else { continue };
            // SAFETY: the frame was one of `pool`, of which `to` has frames now; taking it made it free.
            unsafe { to.lend(raw) };
            self.gaps = true;
        }
    }

    /// As [`Vector::give_to`]; forgets the packets that stay.
    pub(crate) fn move_to(&mut self, to: &mut Vector, which: impl Fn(usize) -> bool) {
        self.give_to(to, which);
        self.clear();
    }

    /// Sets how many packets the vector can hold, [`VECTOR`] at most; returns how many it could.
    pub(crate) fn limit(&mut self, capacity: usize) -> usize {
        std::mem::replace(&mut self.capacity, capacity.clamp(1, VECTOR))
    }

    /// Forgets the packets. Frames of another pool than the home return to it.
    #[inline]
    pub fn clear(&mut self) {
        if self.lent {
            self.give_back();
        }
        self.len = 0;
    }

    /// Returns all frames to their pool.
    fn give_back(&mut self) {
        if self.drawn > 0 {
            let pool = if self.lent { self.guest.as_ref() } else { Some(&self.home) };
            if let Some(pool) = pool {
                pool.take_back(&mut self.frames[..self.drawn]);
            }
        }
        (self.len, self.drawn, self.lent) = (0, 0, false);
    }

    /// Adds a copy of a packet; `false` when the vector is full or holds frames of a backend, or the packet does not
    /// fit.
    pub fn push(&mut self, packet: &[u8], peer: SocketAddr) -> bool {
        if self.lent || self.len == self.capacity || !self.have(self.len + 1) {
            return false;
        }
        let at = self.len;
        let mut frame = FrameMut::new(&mut self.frames[at], &mut self.peers[at]);
        if !frame.set(packet) {
            return false;
        }
        *frame.peer = peer;
        self.len += 1;
        true
    }

    /// Sees to it that the first `count` frames have chunks of the home pool; `false` when there are not so many.
    fn have(&mut self, count: usize) -> bool {
        if self.gaps {
            self.close_gaps();
            // There may be gaps among the packets too.
            self.gaps = self.len > 0;
        }
        if self.drawn < count {
            let (home, drawn, len) = (Arc::clone(&self.home), self.drawn, self.len);
            // A pool adds behind the last packet.
            self.len = drawn;
            home.draw(self, count - drawn);
            self.drawn = self.len;
            self.len = len;
        }
        self.drawn >= count
    }

    /// Moves the chunks that hold no packet together, behind the packets.
    fn close_gaps(&mut self) {
        let mut kept = self.len;
        for i in self.len..self.drawn {
            if !self.frames[i].is_gone() {
                self.frames.swap(kept, i);
                kept += 1;
            }
        }
        self.drawn = kept;
    }

    /// For a port that copies: forgets the packets, and has up to `count` frames ready to be filled with packets of up to
    /// `longest` octets. Returns how many there are. They are of the home pool, unless others are long enough and these
    /// are not.
    #[inline]
    pub(crate) fn draw(&mut self, count: usize, longest: usize) -> usize {
        self.clear();
        let count = count.min(self.capacity);
        if longest > self.home.longest() && self.has_longer() {
            return self.draw_long(count);
        }
        if self.have(count) { count } else { self.drawn }
    }

    #[cold]
    fn draw_long(&mut self, count: usize) -> usize {
        if let Some(long) = self.long.clone() {
            self.begin_lent(&long);
            long.draw(self, count);
            // No packets yet.
            self.len = 0;
        }
        self.drawn
    }

    /// Whether a packet that is too long for the frames of [`Vector::draw`] may find a longer one, if its port keeps it and
    /// says its length in another call.
    #[inline]
    pub(crate) fn has_longer(&self) -> bool {
        !self.lent && self.long.as_ref().is_some_and(|long| long.longest() > self.home.longest())
    }

    /// A frame that [`Vector::draw`] has made ready.
    #[inline]
    pub(crate) fn drawn(&mut self, at: usize) -> Option<FrameMut<'_>> {
        let frame = self.frames[..self.drawn].get_mut(at)?;
        Some(FrameMut::new(frame, &mut self.peers[at]))
    }

    /// Declares that the first `n` frames have been filled.
    pub(crate) fn set_len(&mut self, n: usize) {
        self.len = n.min(self.drawn);
    }

    /// Forgets the packets, and makes packets of `n` frames of the home pool, with what lies in them: for generators of
    /// load.
    #[inline]
    pub fn refill(&mut self, n: usize) {
        let count = self.draw(n, 0);
        self.set_len(count);
    }

    /// For a backend that receives without copying: forgets the packets, and takes frames of `pool` from now on.
    #[inline]
    pub(crate) fn begin_lent(&mut self, pool: &Arc<dyn Pool>) {
        self.give_back();
        if !self.guest.as_ref().is_some_and(|known| Arc::ptr_eq(known, pool)) {
            self.guest = Some(Arc::clone(pool));
        }
        self.lent = true;
    }

    /// The pool of the frames.
    pub(crate) fn pool(&self) -> &Arc<dyn Pool> {
        self.guest.as_ref().filter(|_| self.lent).unwrap_or(&self.home)
    }

    /// Keeps the packets for which `keep` says so, in their order; the others are forgotten. `keep` gets the pool of the
    /// frames and a packet's position, frame and peer. It may take the frame out, for a vector that
    /// [adopts](Vector::adopt) it.
    #[inline]
    pub(crate) fn give_away(
        &mut self,
        mut keep: impl FnMut(&Arc<dyn Pool>, usize, &mut Frame, SocketAddr) -> bool,
    ) {
        let pool = self.guest.as_ref().filter(|_| self.lent).unwrap_or(&self.home);
        let mut kept = 0;
        for at in 0..self.len {
            if keep(pool, at, &mut self.frames[at], self.peers[at]) {
                if kept != at {
                    self.frames.swap(kept, at);
                    self.peers[kept] = self.peers[at];
                }
                kept += 1;
            }
        }
        self.len = kept;
        self.gaps |= !self.lent;
    }

    /// Adds a packet with its frame, which is of the pool that [`Vector::begin_lent`] has named. The vector has room.
    #[inline]
    pub(crate) fn adopt(&mut self, frame: &mut Frame, peer: SocketAddr) {
        debug_assert!(self.lent && self.len < self.capacity);
        let at = self.len;
        self.frames[at] = std::mem::replace(frame, Frame::GONE);
        self.peers[at] = peer;
        (self.len, self.drawn) = (at + 1, at + 1);
    }

    /// Adds a frame, of the pool that [`Vector::begin_lent`] has named, or of the pool that draws.
    ///
    /// # Safety
    /// The frame is of that pool and was free or has just been received, its memory is initialised, `start <= end <=
    /// room`, its room is not 0, its token below [`TOKENS`](crate::frame::TOKENS), nobody else uses it until it is taken
    /// again, and the pool keeps it mapped until then.
    #[inline(always)]
    pub(crate) unsafe fn lend(&mut self, raw: RawFrame) {
        debug_assert!(self.len < self.capacity && (!self.lent || self.drawn == self.len));
        // SAFETY: the caller's promise.
        unsafe { self.frames[self.len].fill_in(raw) };
        self.len += 1;
        if self.lent {
            self.drawn = self.len;
        }
    }

    /// Asks the processor for the headers of the frame that was added last.
    #[inline(always)]
    pub(crate) fn prefetch_last(&self) {
        if let Some(frame) = self.frames().last() {
            frame.prefetch_headers();
        }
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(chunks: usize) -> (Arc<Slab>, Arc<dyn Pool>) {
        let slab = Slab::new(chunks, 128);
        (Arc::clone(&slab), slab)
    }

    /// Receives `count` packets as a backend that lends frames of `pool` does.
    fn lend(pool: &Arc<dyn Pool>, vector: &mut Vector, count: usize) {
        vector.begin_lent(pool);
        pool.draw(vector, count);
        for (n, mut frame) in vector.frames_mut().enumerate() {
            assert!(frame.set(&[n as u8; 4]));
        }
    }

    #[test]
    fn lent_frames_stand_in_for_own_ones_and_return() {
        let (slab, pool) = pool(4);
        let mut vector = Vector::new(4, 64);
        assert!(vector.push(b"own", NO_PEER));

        lend(&pool, &mut vector, 3);
        assert_eq!((vector.len(), slab.free_chunks()), (3, 1));
        assert_eq!(vector.frames()[2].packet(), [2; 4]);
        assert!(!vector.push(b"more", NO_PEER), "it holds frames of another pool");
        // One is sent: the device has its chunk.
        assert!(vector.gives_to(&pool));
        let sent = vector.chunk_mut(1).unwrap().take().unwrap();
        assert!(vector.frames()[1].is_gone() && vector.frames()[1].is_empty());
        assert!(vector.chunk_mut(1).unwrap().take().is_none() && vector.sendable(1).is_none());
        assert!(!vector.frame_mut(1).grow_front(1) && !vector.frame_mut(1).set(b"x"));
        vector.clear();
        assert_eq!(slab.free_chunks(), 3, "all but the one that was sent");
        // The device returns it.
        vector.begin_lent(&pool);
        // SAFETY: taken above and used by nobody.
        unsafe { vector.lend(sent) };

        vector.clear();
        assert!(vector.is_empty() && vector.push(b"own", NO_PEER));
        assert_eq!(vector.frames()[0].packet(), b"own");
        assert!(!vector.gives_to(&pool));
        lend(&pool, &mut vector, 4);
        drop(vector);
        assert_eq!(slab.free_chunks(), 4);
    }

    #[test]
    fn chunks_of_the_home_pool_stay_until_they_are_sent() {
        let (slab, pool) = pool(6);
        let mut vector = Vector::of(&pool);
        assert_eq!(vector.draw(4, 0), 4);
        vector.set_len(4);
        for (n, mut frame) in vector.frames_mut().enumerate() {
            assert!(frame.set(&[n as u8; 4]));
        }
        assert!(vector.gives_to(&pool));
        let sent: Vec<RawFrame> = [0, 2].map(|at| vector.chunk_mut(at).unwrap().take().unwrap()).into();
        vector.clear();
        assert_eq!(slab.free_chunks(), 2, "two are kept, two were sent");
        assert_eq!(vector.draw(3, 0), 3, "two kept and one drawn");
        assert_eq!(slab.free_chunks(), 1);
        assert_eq!(vector.draw(64, 0), 4, "the pool has no more");
        assert!((0..4).all(|at| !vector.drawn(at).unwrap().is_gone()) && vector.drawn(4).is_none());
        assert!((0..4).all(|_| vector.push(b"x", NO_PEER)) && !vector.push(b"x", NO_PEER));
        let mut other = Vector::of(&pool);
        other.begin_lent(&pool);
        // SAFETY: taken above and used by nobody.
        sent.into_iter().for_each(|chunk| unsafe { other.lend(chunk) });
        drop((vector, other));
        assert_eq!(slab.free_chunks(), 6);
    }

    #[test]
    fn packets_that_are_not_kept_return_with_the_others() {
        let (slab, pool) = pool(4);
        let mut vector = Vector::new(4, 64);
        lend(&pool, &mut vector, 4);
        vector.retain(|frame| frame.packet()[0] % 2 == 1);
        let left: Vec<u8> = vector.frames().iter().map(|frame| frame.packet()[0]).collect();
        assert_eq!(left, [1, 3]);
        vector.clear();
        assert_eq!(slab.free_chunks(), 4);
    }

    #[test]
    fn a_full_vector_takes_no_more() {
        let mut vector = Vector::new(1, 16);
        assert!(vector.push(b"payload", NO_PEER));
        assert!(!vector.push(b"more", NO_PEER), "the vector is full");
        vector.clear();
        assert!(!vector.push(&[0; 17], NO_PEER) && vector.push(&[0; 16], NO_PEER));
        vector.refill(2);
        assert_eq!(
            (vector.len(), vector.frames()[0].packet()),
            (1, &[0; 16][..]),
            "there are no more chunks"
        );
    }

    #[test]
    fn chunks_are_as_long_as_they_can_be_and_no_longer() {
        for packet_len in [usize::MAX, usize::MAX - 127, 70_000, 65_407] {
            let mut vector = Vector::new(2, packet_len);
            vector.refill(2);
            let mut frame = vector.frame_mut(1);
            assert!(frame.set(&[7; 65_407]) && frame.packet() == [7; 65_407]);
            frame.extend(1000);
            assert_eq!(frame.len(), 65_407);
            assert!(!frame.set(&[7; 65_408]), "{packet_len}");
        }
    }

    /// Packets of which some were sent are followed by more, before the vector is cleared.
    #[test]
    fn gaps_among_packets_are_closed_later() {
        let (slab, pool) = pool(8);
        let mut vector = Vector::of(&pool);
        assert!((0..3).all(|_| vector.push(b"x", NO_PEER)) && vector.gives_to(&pool));
        let sent = vector.chunk_mut(1).unwrap().take().unwrap();
        assert!(vector.push(b"y", NO_PEER));
        assert_eq!(vector.draw(4, 0), 4);
        assert!((0..4).all(|at| !vector.drawn(at).unwrap().is_gone()));
        let mut other = Vector::of(&pool);
        other.begin_lent(&pool);
        // SAFETY: taken above and used by nobody.
        unsafe { other.lend(sent) };
        drop((vector, other));
        assert_eq!(slab.free_chunks(), 8);
    }

    #[test]
    fn long_packets_get_frames_of_the_pool_that_the_vector_began_with() {
        let (long, first) = pool(8);
        let short = Slab::new(8, 32);
        let mut vector = Vector::of(&first);
        assert!(vector.push(b"x", NO_PEER) && !vector.has_longer());
        let home: Arc<dyn Pool> = Arc::clone(&short) as Arc<dyn Pool>;
        vector.settle(&home);
        assert_eq!((vector.len(), long.free_chunks()), (0, 8), "what it held has returned");
        for (longest, of_home) in [(0, true), (32, true), (33, false), (128, false), (129, false), (32, true)]
        {
            assert_eq!(vector.draw(5, longest), 5);
            let space = vector.drawn(4).unwrap().space().len();
            assert_eq!((space, vector.has_longer()), if of_home { (32, true) } else { (128, false) });
            assert_eq!((vector.len(), vector.gives_to(&home)), (0, of_home));
            vector.set_len(3);
            assert_eq!(vector.frames().len(), 3);
        }
        assert_eq!(vector.draw(64, 100), 8, "the pool has no more");
        // Another home: the pool for long packets stays.
        let other: Arc<dyn Pool> = Slab::new(8, 64);
        vector.settle(&other);
        assert_eq!((vector.draw(2, 64), short.free_chunks(), long.free_chunks()), (2, 8, 8));
        assert_eq!((vector.draw(2, 65), long.free_chunks()), (2, 6));
        vector.settle(&first);
        assert!(!vector.has_longer() && vector.draw(2, 1000) == 2, "there are no longer ones");
        drop(vector);
        assert_eq!((long.free_chunks(), Arc::strong_count(&other)), (8, 1));
    }

    /// A vector may be full, partly sent, cleared, or of another pool when its owner panics.
    #[test]
    fn no_chunk_is_lost_in_a_thousand_panics() {
        let (slab, home) = pool(100);
        let (guests, guest) = pool(100);
        let mut vector = Vector::of(&home);
        let short: Vec<Arc<Slab>> = (0..2).map(|_| Slab::new(100, 32)).collect();
        for n in 0..1000usize {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut local = Vector::of(&home);
                if n > 500 {
                    // The frames of a device, and of another one after a while.
                    vector.settle(&(Arc::clone(&short[n / 700]) as Arc<dyn Pool>));
                }
                if n % 3 == 0 {
                    lend(&guest, &mut vector, n % 65);
                } else if n % 3 == 1 {
                    let count = vector.draw(n % 65, n % 100);
                    vector.set_len(count);
                    let sends = vector.gives_to(&home);
                    for at in (0..count as u16).filter(|at| at % 3 == 0 && sends) {
                        // Its device has sent it.
                        let mut sent = [Frame::GONE];
                        std::mem::swap(&mut sent[0], vector.chunk_mut(at).unwrap());
                        home.take_back(&mut sent);
                    }
                } else {
                    vector.refill(n % 65);
                }
                (0..n % 30).for_each(|_| assert!(local.push(b"x", NO_PEER)));
                std::panic::resume_unwind(Box::new(n));
            }));
            assert!(panicked.is_err());
            assert!(slab.free_chunks() >= 100 - VECTOR && guests.free_chunks() >= 100 - VECTOR);
        }
        drop(vector);
        assert_eq!((slab.free_chunks(), guests.free_chunks()), (100, 100));
        assert!(short.iter().all(|slab| slab.free_chunks() == 100));
    }
}
