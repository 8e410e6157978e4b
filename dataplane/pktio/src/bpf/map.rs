//! The kinds of maps that are used here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rcu::{Line, Lines, Region};

use super::{Attributes, BpfError};

// Commands of bpf(2), types and flags of maps (linux/bpf.h).
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const TYPE_HASH: u32 = 1;
pub(super) const TYPE_ARRAY: u32 = 2;
const TYPE_PROG_ARRAY: u32 = 3;
const TYPE_DEVMAP: u32 = 14;
const TYPE_XSKMAP: u32 = 17;
pub(super) const F_MMAPABLE: u32 = 1 << 10;

/// Creates a map with keys and values of these sizes.
pub(super) fn create(
    kind: u32,
    key_size: usize,
    value_size: usize,
    entries: u32,
    flags: u32,
) -> Result<OwnedFd, BpfError> {
    let mut attributes = Attributes::new()
        .u32(0, kind)
        .u32(4, key_size as u32)
        .u32(8, value_size as u32)
        .u32(12, entries)
        .u32(16, flags);
    // SAFETY: the command takes numbers only.
    unsafe { attributes.open(MAP_CREATE) }.map_err(BpfError::Map)
}

/// A map from numbers to descriptors.
#[derive(Debug)]
struct Descriptors(OwnedFd);

impl Descriptors {
    fn new(kind: u32, entries: u32) -> Result<Descriptors, BpfError> {
        create(kind, 4, size_of::<libc::c_int>(), entries.max(1), 0).map(Descriptors)
    }

    fn set(&self, key: u32, value: BorrowedFd<'_>) -> Result<(), BpfError> {
        update(self.0.as_fd(), &key, &value.as_raw_fd())
    }

    fn remove(&self, key: u32) -> Result<(), BpfError> {
        let mut attributes = Attributes::new().u32(0, self.0.as_raw_fd() as u32).pointer(8, &raw const key);
        // SAFETY: the key has the four octets that the map was made with, and outlives the call.
        unsafe { attributes.call(MAP_DELETE_ELEM) }.map(drop).map_err(BpfError::Entry)
    }
}

/// A map from queue numbers to AF_XDP sockets.
#[derive(Debug)]
pub struct XskMap(Descriptors);

impl XskMap {
    /// A map for `queues` queues.
    pub fn new(queues: u32) -> Result<XskMap, BpfError> {
        Descriptors::new(TYPE_XSKMAP, queues).map(XskMap)
    }

    /// Lets packets of `queue` go to `socket`.
    pub fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), BpfError> {
        self.0.set(queue, socket)
    }

    /// Lets packets of `queue` go to the kernel again.
    pub fn remove(&self, queue: u32) -> Result<(), BpfError> {
        self.0.remove(queue)
    }
}

impl AsFd for XskMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// An array of programs that others can go on with (`bpf_tail_call`). It is emptied when its last descriptor is closed,
/// although its own programs may refer to it.
#[derive(Debug)]
pub struct ProgramArray(Descriptors);

impl ProgramArray {
    /// An empty array.
    pub fn new(length: u32) -> Result<ProgramArray, BpfError> {
        Descriptors::new(TYPE_PROG_ARRAY, length).map(ProgramArray)
    }

    /// Puts a program into the array. A packet sees either the former one or this one.
    pub fn set(&self, at: u32, program: BorrowedFd<'_>) -> Result<(), BpfError> {
        self.0.set(at, program)
    }

    /// Removes a program, if there is one.
    pub fn remove(&self, at: u32) -> Result<(), BpfError> {
        match self.0.remove(at) {
            Err(BpfError::Entry(error)) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }
}

impl AsFd for ProgramArray {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// The interfaces to which programs redirect packets, by numbers.
#[derive(Debug)]
pub struct DeviceMap(OwnedFd);

impl DeviceMap {
    /// A map of `length` numbers without interfaces.
    pub fn new(length: u32) -> Result<DeviceMap, BpfError> {
        create(TYPE_DEVMAP, 4, 4, length.max(1), 0).map(DeviceMap)
    }

    /// Gives a number to the interface with this index, in the network namespace of the calling thread. It loses the number when
    /// it is deleted.
    pub fn set(&self, at: u32, interface: u32) -> Result<(), BpfError> {
        update(self.0.as_fd(), &at, &interface)
    }
}

impl AsFd for DeviceMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A hash table of numbers, with keys of `KEY` octets.
#[derive(Debug)]
pub struct HashTable<const KEY: usize>(OwnedFd);

impl<const KEY: usize> HashTable<KEY> {
    /// A table for at most `entries` entries, whose memory is taken at once.
    pub fn new(entries: u32) -> Result<HashTable<KEY>, BpfError> {
        create(TYPE_HASH, KEY, 4, entries.max(1), 0).map(HashTable)
    }

    /// Adds an entry, or replaces its number.
    pub fn set(&self, key: &[u8; KEY], value: u32) -> Result<(), BpfError> {
        update(self.0.as_fd(), key, &value)
    }

    /// Removes an entry, if there is one.
    pub fn remove(&self, key: &[u8; KEY]) -> Result<(), BpfError> {
        let mut attributes = Attributes::new().u32(0, self.0.as_raw_fd() as u32).pointer(8, key);
        // SAFETY: the key has the octets that the map was made with, and outlives the call.
        match unsafe { attributes.call(MAP_DELETE_ELEM) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(BpfError::Entry(error)),
            _ => Ok(()),
        }
    }
}

impl<const KEY: usize> AsFd for HashTable<KEY> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sets an entry of a map whose keys and values have the sizes of `K` and `V`.
fn update<K, V>(map: BorrowedFd<'_>, key: &K, value: &V) -> Result<(), BpfError> {
    let mut attributes = Attributes::new()
        .u32(0, map.as_raw_fd() as u32)
        .pointer(8, std::ptr::from_ref(key))
        .pointer(16, std::ptr::from_ref(value));
    // SAFETY: key and value have the sizes that the map was made with, and outlive the call.
    unsafe { attributes.call(MAP_UPDATE_ELEM) }.map(drop).map_err(BpfError::Entry)
}

/// An array of cache lines that eBPF programs and this process share: a region of state lines ([`rcu::Lines`]).
///
/// A program finds a line by its place in the region ([`rcu::Region::line`]) and counts in it by atomic additions.
#[derive(Debug)]
pub struct SharedLines {
    map: OwnedFd,
    memory: NonNull<[Line]>,
}

// SAFETY: the memory is only used as atomics.
unsafe impl Send for SharedLines {}
// SAFETY: as above.
unsafe impl Sync for SharedLines {}

// SAFETY: the mapping stays until the value is dropped; besides this program, only the kernel's programs use it. A new
// map contains zeros.
unsafe impl rcu::Memory for SharedLines {
    fn lines(&self) -> NonNull<[Line]> {
        self.memory
    }
}

impl SharedLines {
    /// An array of at least `lines` lines: as many whole chunks ([`Lines::CHUNK`]) as that takes.
    pub fn new(lines: u32) -> Result<SharedLines, BpfError> {
        let count = (lines.clamp(1, Region::LINES) as usize).next_multiple_of(Lines::CHUNK);
        let map = create(TYPE_ARRAY, 4, size_of::<Line>(), count as u32, F_MMAPABLE)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let octets = count * size_of::<Line>();
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory. The map's values
        // have exactly this many octets.
        let memory =
            unsafe { libc::mmap(null_mut(), octets, protection, libc::MAP_SHARED, map.as_raw_fd(), 0) };
        match NonNull::new(memory.cast::<Line>()) {
            Some(first) if memory != libc::MAP_FAILED => {
                Ok(SharedLines { map, memory: NonNull::slice_from_raw_parts(first, count) })
            }
            _ => Err(BpfError::Map(io::Error::last_os_error())),
        }
    }

    /// Number of lines.
    pub fn count(&self) -> u32 {
        self.memory.len() as u32
    }

    /// A line as the kernel sees it.
    pub fn read(&self, place: u32) -> Result<[u64; 8], BpfError> {
        let mut value = [0u64; 8];
        let mut attributes = Attributes::new()
            .u32(0, self.map.as_raw_fd() as u32)
            .pointer(8, &raw const place)
            .pointer(16, &raw mut value);
        // SAFETY: key and value have the lengths that the map was made with, and outlive the call.
        unsafe { attributes.call(MAP_LOOKUP_ELEM) }.map_err(BpfError::Entry)?;
        Ok(value)
    }
}

impl AsFd for SharedLines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Drop for SharedLines {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.memory.len() * size_of::<Line>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn lines_of_a_map_are_the_kernels_and_ours() {
        let shared = Arc::new(SharedLines::new(Lines::CHUNK as u32 + 1).unwrap());
        assert_eq!(shared.count(), 2 * Lines::CHUNK as u32);
        let lines = Lines::default();
        let region = lines.add_region(Box::new(Arc::clone(&shared))).unwrap();
        for place in [0, 1, 4711, shared.count() - 1] {
            let line = lines.get(region.line(place)).unwrap();
            assert_eq!(shared.read(place).unwrap(), [0; 8]);
            for (at, word) in line.iter().enumerate() {
                word.fetch_add(u64::from(place) * 10 + at as u64, Relaxed);
            }
            let expected = std::array::from_fn(|at| u64::from(place) * 10 + at as u64);
            assert_eq!(shared.read(place).unwrap(), expected);
        }
        assert!(matches!(shared.read(shared.count()), Err(BpfError::Entry(_))));
        // The lines keep the mapping.
        drop(shared);
        assert_eq!(lines.get(region.line(1)).unwrap()[7].load(Relaxed), 17);
    }

    #[test]
    fn hash_tables_hold_as_much_as_they_were_made_for() {
        let table = HashTable::<12>::new(2).unwrap();
        for (key, value) in [([1; 12], 1), ([2; 12], 2), ([1; 12], 3)] {
            table.set(&key, value).unwrap();
        }
        assert!(matches!(table.set(&[3; 12], 3), Err(BpfError::Entry(_))), "it is full");
        table.remove(&[2; 12]).unwrap();
        table.remove(&[2; 12]).unwrap();
        table.set(&[3; 12], 3).unwrap();
    }

    #[test]
    fn removing_a_program_that_is_not_there_is_no_error() {
        let array = ProgramArray::new(2).unwrap();
        array.remove(0).unwrap();
        assert!(matches!(array.remove(2), Err(BpfError::Entry(_))), "beyond the end");
    }
}
