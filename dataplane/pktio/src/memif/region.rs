//! Memory that two processes share: regions of memif.
//!
//! The other process is hostile until shown otherwise: it may change the memory at any time, so every value read from
//! it is one copy, checked afterwards, and no reference to plain data in it exists. Packets are copied in and out by
//! a function that the compiler knows nothing about, so that it cannot read an octet twice.
//!
//! A region must be a memfd that can no longer shrink (`F_SEAL_SHRINK`), as otherwise the other process could take pages
//! away, and reading them would end this process by SIGBUS. Pages that the other process frees by punching holes are
//! zeros when they are read again. Two cases of SIGBUS remain: the machine has no memory left while it forbids
//! overcommitting (`vm.overcommit_memory=2`), and regions that are accepted unsealed because the configuration says that
//! the peer is trusted.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

/// Largest region: offsets in it have 32 bits.
const MAX_SIZE: u64 = 1 << 32;
/// Octets of a peer's region that are populated when it is mapped: eight pairs of rings with 1,024 buffers of 2 KiB.
const POPULATED: usize = 32 << 20;
/// Octets of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Why a region is refused.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// It is empty or larger than offsets reach.
    #[error("a region of {0} octets")]
    Size(u64),
    /// The file is shorter than the region.
    #[error("a region of {size} octets in a file of {file}")]
    Short {
        /// What was claimed.
        size: u64,
        /// What there is.
        file: u64,
    },
    /// The file can shrink.
    #[error("a region that its owner can shrink")]
    Unsealed,
    /// The kernel refused it.
    #[error("a region: {0}")]
    Kernel(#[from] io::Error),
}

impl From<nix::Error> for RegionError {
    fn from(error: nix::Error) -> RegionError {
        RegionError::Kernel(error.into())
    }
}

/// Mapped memory that another process also maps.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is reached by atomic operations and by copies that any thread may make; it is unmapped only when the
// value is dropped.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New memory of zeros, and the descriptor to give to the peer. Neither side can change its size.
    ///
    /// # Errors
    /// The kernel has no memory, or the size is out of range.
    pub fn create(size: u64) -> Result<(Region, OwnedFd), RegionError> {
        let fd = memfd_create(c"memif", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let file = File::from(fd);
        file.set_len(size)?;
        let fd = OwnedFd::from(file);
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        // All pages at once: otherwise each would cost the packet that first touches it some microseconds.
        Ok((Region::map(&fd, size, libc::MAP_POPULATE)?, fd))
    }

    /// A peer's memory. A `trusted` peer's may be any file, others' must be sealed.
    ///
    /// # Errors
    /// The memory is not as large as claimed, or may become smaller.
    pub fn open(fd: OwnedFd, size: u64, trusted: bool) -> Result<Region, RegionError> {
        if !trusted {
            let sealed = fcntl(&fd, FcntlArg::F_GET_SEALS)
                .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK));
            // A hole in huge pages may stay one, if others have used the pages up.
            if !sealed || fstatfs(&fd)?.filesystem_type() == HUGETLBFS_MAGIC {
                return Err(RegionError::Unsealed);
            }
        }
        // After the seal: a file that was long enough before it may not be any more.
        let file = File::from(fd);
        let length = file.metadata()?.len();
        if length < size {
            return Err(RegionError::Short { size, file: length });
        }
        let region = Region::map(&OwnedFd::from(file), size, 0)?;
        region.populate();
        Ok(region)
    }

    /// Makes the first pages present, as each would cost the packet that first touches it a page fault. Not all: a peer must not make
    /// this process allocate more than that.
    fn populate(&self) {
        let len = self.len.min(POPULATED);
        // SAFETY: the pages are of this mapping, and populating them changes nothing that they hold.
        let result = unsafe { libc::madvise(self.base.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
        if result != 0 {
            // Before Linux 5.14: packets touch the pages.
            tracing::debug!(error = %io::Error::last_os_error(), "the memory of a memif is not populated");
        }
    }

    fn map(fd: &OwnedFd, size: u64, flags: libc::c_int) -> Result<Region, RegionError> {
        if size == 0 || size > MAX_SIZE {
            return Err(RegionError::Size(size));
        }
        let len = usize::try_from(size).map_err(|_| RegionError::Size(size))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | flags,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let base = NonNull::new(base.cast()).ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Region { base, len })
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of `len` octets at `offset`; `None` if they do not lie in the region.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `offset` is within the mapping, or just behind it if `len` is 0.
        Some(unsafe { self.base.add(offset) })
    }

    /// A 16-bit number that both processes read and write.
    #[inline]
    pub fn u16(&self, offset: usize) -> Option<&AtomicU16> {
        let at = self.at(offset, 2)?.cast::<AtomicU16>();
        // SAFETY: in the mapping, which lives as long as `self`; both processes use it as an atomic number.
        if at.is_aligned() { Some(unsafe { at.as_ref() }) } else { None }
    }

    /// A 32-bit number that both processes read and write.
    pub fn u32(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(offset, 4)?.cast::<AtomicU32>();
        // SAFETY: as in `u16`.
        if at.is_aligned() { Some(unsafe { at.as_ref() }) } else { None }
    }

    /// A 64-bit number that both processes read and write.
    #[inline]
    fn u64(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.at(offset, 8)?.cast::<AtomicU64>();
        // SAFETY: as in `u16`.
        if at.is_aligned() { Some(unsafe { at.as_ref() }) } else { None }
    }

    /// A copy of 16 octets at a multiple of 8. The peer may change the second half after the first was read.
    #[inline]
    pub fn load_16(&self, offset: usize) -> Option<[u8; 16]> {
        let (first, second) = (self.u64(offset)?.load(Relaxed), self.u64(offset + 8)?.load(Relaxed));
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&first.to_ne_bytes());
        octets[8..].copy_from_slice(&second.to_ne_bytes());
        Some(octets)
    }

    /// Writes 16 octets at a multiple of 8; `false` if they do not lie in the region.
    #[inline]
    pub fn store_16(&self, offset: usize, octets: &[u8; 16]) -> bool {
        let (Some(first), Some(second)) = (self.u64(offset), self.u64(offset + 8)) else { return false };
        let half = |from: usize| u64::from_ne_bytes(std::array::from_fn(|i| octets[from + i]));
        first.store(half(0), Relaxed);
        second.store(half(8), Relaxed);
        true
    }

    /// Copies `to.len()` octets out of the region; `false` if they do not lie in it.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, to.len()) else { return false };
        // SAFETY: `from` names as many octets as `to` has, within the mapping. They do not overlap, as a slice of ours
        // is never in a region. The peer may write them meanwhile: then the copy is garbled, and nothing else.
        unsafe { copy(to.as_mut_ptr(), from.as_ptr(), to.len()) };
        true
    }

    /// Copies octets into the region; `false` if there is no such place in it.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.at(offset, from.len()) else { return false };
        // SAFETY: as in `read`.
        unsafe { copy(to.as_ptr(), from.as_ptr(), from.len()) };
        true
    }
}

impl Region {
    /// Asks the processor to fetch the cache lines of octets at an offset, to be read or written soon.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize, octets: usize, to_write: bool) {
        let Some(first) = self.at(offset, octets) else { return };
        #[cfg(target_arch = "x86_64")]
        for at in (0..octets).step_by(LINE) {
            use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
            let line = first.as_ptr().wrapping_add(at).cast::<i8>();
            match to_write {
                // SAFETY: a prefetch reads and writes nothing as far as the program can tell.
                true => unsafe { _mm_prefetch::<_MM_HINT_ET0>(line) },
                // SAFETY: as above.
                false => unsafe { _mm_prefetch::<_MM_HINT_T0>(line) },
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (first, to_write);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, and with `self` nobody has a reference into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Copies memory of which one side may be written by another process meanwhile. The function behind the pointer is
/// unknown to the compiler, so that the copy is made exactly once.
///
/// # Safety
/// `from` can be read and `to` written for `len` octets, and they do not overlap.
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    type Copy = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;
    let copy: Copy = std::hint::black_box(libc::memcpy);
    // SAFETY: the caller's promise.
    unsafe { copy(to.cast(), from.cast(), len) };
}

/// Whether a descriptor is an eventfd, so that it can be waited for and written to without surprises.
pub(super) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    fn memfd(size: u64, seals: SealFlag) -> OwnedFd {
        let file = File::from(memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.set_len(size).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file.into()
    }

    #[test]
    fn two_mappings_of_a_region_are_one_memory() {
        let (ours, fd) = Region::create(8192).unwrap();
        let theirs = Region::open(fd, 8192, false).unwrap();
        assert!(ours.write(8190, b"ab") && !ours.write(8191, b"ab") && !ours.write(usize::MAX, b"ab"));
        let mut octets = [0; 2];
        assert!(theirs.read(8190, &mut octets) && octets == *b"ab");
        assert!(!theirs.read(8191, &mut octets) && !theirs.read(usize::MAX, &mut octets));
        theirs.u16(6).unwrap().store(7, SeqCst);
        assert_eq!(ours.u16(6).unwrap().load(SeqCst), 7);
        assert!(ours.u16(7).is_none() && ours.u16(8191).is_none() && ours.u32(8190).is_none());
        let octets = std::array::from_fn(|i| i as u8);
        assert!(ours.store_16(8176, &octets) && !ours.store_16(8184, &octets) && !ours.store_16(4, &octets));
        assert_eq!((theirs.load_16(8176), theirs.load_16(8184)), (Some(octets), None));
        assert!(ours.write(8192, &[]), "nothing, just behind the end");
    }

    #[test]
    fn memory_that_can_shrink_or_is_too_short_is_refused() {
        let shrink = SealFlag::F_SEAL_SHRINK;
        let open = |fd, size| Region::open(fd, size, false).map(|region| region.len());
        assert!(matches!(open(memfd(4096, SealFlag::F_SEAL_GROW), 4096), Err(RegionError::Unsealed)));
        assert!(matches!(
            open(memfd(4095, shrink), 4096),
            Err(RegionError::Short { size: 4096, file: 4095 })
        ));
        assert!(matches!(open(memfd(4096, shrink), 0), Err(RegionError::Size(0))));
        assert!(matches!(open(memfd(1 << 33, shrink), MAX_SIZE + 1), Err(RegionError::Size(_))));
        let pipe = nix::unistd::pipe().unwrap().0;
        assert!(matches!(open(pipe, 4096), Err(RegionError::Unsealed)));
        assert_eq!(open(memfd(4096, shrink), 4000).unwrap(), 4000);
        // A trusted peer's may be unsealed, and is checked otherwise.
        let unsealed = || memfd(4096, SealFlag::F_SEAL_GROW);
        assert!(Region::open(unsealed(), 4096, true).is_ok());
        assert!(matches!(Region::open(unsealed(), 4097, true), Err(RegionError::Short { .. })));
    }

    #[test]
    fn neither_side_can_shrink_a_region_of_ours() {
        let (_region, fd) = Region::create(8192).unwrap();
        let file = File::from(fd);
        assert!(file.set_len(4096).is_err() && file.set_len(9000).is_err());
        assert!(fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
    }

    #[test]
    fn eventfds_are_recognised() {
        let event = nix::sys::eventfd::EventFd::new().unwrap();
        let (pipe, _) = nix::unistd::pipe().unwrap();
        assert!(is_eventfd(event.as_fd()) && !is_eventfd(pipe.as_fd()));
    }
}
