//! A number of packets that go through the stages together.
//!
//! A batch has buffers of its own, allocated once. While it holds frames that a backend lent, these stand in their
//! place.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::buffer::{Buffer, Frame, Pool, PoolNumber};

/// A number of buffers, of which the first [`Batch::len`] hold packets.
#[derive(Debug)]
pub struct Batch {
    /// The batch's own buffers, or, while `lent`, frames of `pool`. The first `len` hold packets.
    buffers: Vec<Buffer>,
    /// While `lent`, the batch's own buffers; else empty, with room for frames.
    parked: Vec<Buffer>,
    len: usize,
    capacity: usize,
    lent: bool,
    /// The pool of the frames that were lent last. It is kept so that its reference count changes once and not per use.
    pool: Option<Arc<dyn Pool>>,
}

impl Batch {
    /// `capacity` buffers for packets of up to `packet_len` octets.
    pub fn new(capacity: usize, packet_len: usize) -> Batch {
        let capacity = capacity.clamp(1, usize::from(u16::MAX));
        let buffers = (0..capacity).map(|_| Buffer::new(packet_len)).collect();
        let parked = Vec::with_capacity(capacity);
        Batch { buffers, parked, len: 0, capacity, lent: false, pool: None }
    }

    /// How many packets the batch holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The packets.
    #[inline]
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers[..self.len]
    }

    /// The packets, to change in place.
    #[inline]
    pub fn buffers_mut(&mut self) -> &mut [Buffer] {
        &mut self.buffers[..self.len]
    }

    /// Keeps the packets for which `keep` says so, in their order; the others are forgotten with the batch.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut Buffer) -> bool) {
        let mut kept = 0;
        for i in 0..self.len {
            if keep(&mut self.buffers[i]) {
                if kept != i {
                    self.buffers.swap(kept, i);
                }
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// The packet at a position that was selected for sending; `None` outside the batch and where a packet has been
    /// sent already.
    #[inline]
    pub(crate) fn sendable(&self, position: u16) -> Option<&Buffer> {
        self.buffers().get(usize::from(position)).filter(|buffer| !buffer.is_gone())
    }

    /// Forgets the packets. Frames that a backend lent return to it.
    #[inline]
    pub fn clear(&mut self) {
        if self.lent {
            self.give_back();
        }
        self.len = 0;
    }

    fn give_back(&mut self) {
        if let Some(pool) = &self.pool {
            pool.take_back(&mut self.buffers);
        }
        self.buffers.clear();
        std::mem::swap(&mut self.buffers, &mut self.parked);
        self.lent = false;
    }

    /// Adds a copy of a packet; `false` when the batch is full or holds frames of a backend, or the packet does not
    /// fit.
    pub fn push(&mut self, packet: &[u8], peer: SocketAddr) -> bool {
        if self.lent {
            return false;
        }
        let Some(buffer) = self.buffers.get_mut(self.len) else { return false };
        if !buffer.set(packet) {
            return false;
        }
        buffer.peer = peer;
        buffer.tos = 0;
        self.len += 1;
        true
    }

    /// Forgets the packets, and makes the first `n` of the batch's own buffers packets, with what lay in them: for
    /// generators of load.
    #[inline]
    pub fn refill(&mut self, n: usize) {
        self.clear();
        self.set_len(n);
    }

    /// For a backend that receives without copying: forgets the packets, and takes frames of `pool` from now on.
    #[inline]
    pub fn begin_lent(&mut self, pool: &Arc<dyn Pool>) {
        self.clear();
        if !self.pool.as_ref().is_some_and(|known| Arc::ptr_eq(known, pool)) {
            self.pool = Some(Arc::clone(pool));
        }
        std::mem::swap(&mut self.buffers, &mut self.parked);
        self.lent = true;
    }

    /// Adds a frame after [`Batch::begin_lent`] with the pool whose number is `owner`.
    ///
    /// # Safety
    /// The memory is initialised, `start <= end <= room`, nobody else uses it until it is taken again, and the pool keeps
    /// it mapped until then.
    #[inline]
    pub unsafe fn lend(&mut self, frame: Frame, owner: PoolNumber) {
        debug_assert!(self.lent && self.len < self.capacity);
        if self.buffers.len() == self.buffers.capacity() {
            self.buffers.reserve(1);
        }
        let len = self.buffers.len();
        // SAFETY: the caller's promise.
        unsafe { Buffer::lent(&mut self.buffers.spare_capacity_mut()[0], frame, owner) };
        // SAFETY: one more has just been made.
        unsafe { self.buffers.set_len(len + 1) };
        self.len += 1;
    }

    /// Asks the processor for the headers of the frame that was added last.
    #[inline]
    pub(crate) fn prefetch_last(&self) {
        if let Some(buffer) = self.buffers.last() {
            buffer.prefetch_headers();
        }
    }

    /// The buffers at positions `from..to`, including those without packet; for a backend that receives by copying,
    /// after [`Batch::clear`].
    pub(crate) fn all_mut(&mut self) -> &mut [Buffer] {
        &mut self.buffers
    }

    /// Declares that the first `n` buffers have been filled.
    pub(crate) fn set_len(&mut self, n: usize) {
        self.len = n.min(self.buffers.len());
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;
    use std::sync::Mutex;

    use super::*;

    /// A pool of frames in one allocation, which is freed when all are back.
    #[derive(Debug)]
    struct TestPool {
        number: PoolNumber,
        free: Mutex<Vec<Box<[u8]>>>,
    }

    impl TestPool {
        fn put(&self, frame: &Frame) {
            let memory = std::ptr::slice_from_raw_parts_mut(frame.base.as_ptr(), 256);
            // SAFETY: `lend` below made the frame from such a box.
            self.free.lock().unwrap().push(unsafe { Box::from_raw(memory) });
        }
    }

    impl Pool for TestPool {
        fn number(&self) -> PoolNumber {
            self.number
        }

        fn take_back(&self, buffers: &mut [Buffer]) {
            for frame in buffers.iter_mut().filter_map(|buffer| buffer.take(self.number)) {
                assert_eq!(frame.token, 7);
                self.put(&frame);
            }
        }
    }

    fn lend(pool: &Arc<TestPool>, batch: &mut Batch, count: usize) {
        let shared: Arc<dyn Pool> = pool.clone();
        batch.begin_lent(&shared);
        for _ in 0..count {
            let memory = pool.free.lock().unwrap().pop().unwrap();
            let base = NonNull::new(Box::into_raw(memory).cast::<u8>()).unwrap();
            let frame = Frame { base, room: 256, start: 128, end: 132, token: 7 };
            // SAFETY: the memory is a box of our own, which nobody else knows of.
            unsafe { batch.lend(frame, pool.number) };
        }
    }

    #[test]
    fn lent_frames_stand_in_for_own_buffers_and_return() {
        let free = Mutex::new((0..4).map(|n| vec![n; 256].into_boxed_slice()).collect());
        let pool = Arc::new(TestPool { number: PoolNumber::next().unwrap(), free });
        let mut batch = Batch::new(4, 64);
        let peer = "192.0.2.1:2152".parse().unwrap();
        assert!(batch.push(b"own", peer));

        lend(&pool, &mut batch, 3);
        assert_eq!((batch.len(), pool.free.lock().unwrap().len()), (3, 1));
        assert_eq!(batch.buffers()[0].packet(), [3; 4]);
        assert!(!batch.push(b"more", peer), "it holds frames");
        // One is sent: the device has it.
        let sent = batch.buffers_mut()[1].take(pool.number).unwrap();
        assert!(batch.buffers()[1].is_gone() && batch.buffers()[1].is_empty());
        assert!(batch.buffers_mut()[1].take(pool.number).is_none());
        assert!(!batch.buffers_mut()[1].grow_front(1) && !batch.buffers_mut()[1].set(b"x"));
        batch.clear();
        assert_eq!(pool.free.lock().unwrap().len(), 3, "all but the one that was sent");
        pool.put(&sent);

        assert!(batch.is_empty() && batch.push(b"own", peer));
        assert_eq!(batch.buffers()[0].packet(), b"own");
        lend(&pool, &mut batch, 4);
        drop(batch);
        assert_eq!(pool.free.lock().unwrap().len(), 4);
    }

    #[test]
    fn packets_that_are_not_kept_return_with_the_others() {
        let free = Mutex::new((0..4).map(|n| vec![n; 256].into_boxed_slice()).collect());
        let pool = Arc::new(TestPool { number: PoolNumber::next().unwrap(), free });
        let mut batch = Batch::new(4, 64);
        lend(&pool, &mut batch, 4);
        batch.retain(|buffer| buffer.packet()[0] % 2 == 0);
        let left: Vec<u8> = batch.buffers().iter().map(|buffer| buffer.packet()[0]).collect();
        assert_eq!(left, [2, 0]);
        batch.clear();
        assert_eq!(pool.free.lock().unwrap().len(), 4);
    }

    #[test]
    fn a_full_batch_takes_no_more() {
        let mut batch = Batch::new(1, 16);
        let peer = "192.0.2.1:2152".parse().unwrap();
        assert!(batch.push(b"payload", peer));
        assert!(!batch.push(b"more", peer), "the batch is full");
        batch.clear();
        assert!(!batch.push(&[0; 17], peer) && batch.push(&[0; 16], peer));
        batch.refill(2);
        assert_eq!(
            (batch.len(), batch.buffers()[0].packet()),
            (1, &[0; 16][..]),
            "there are no more buffers"
        );
    }
}
