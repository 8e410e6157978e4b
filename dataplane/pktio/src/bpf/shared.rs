//! Memory that eBPF programs and this process share.
//!
//! It is the one value of an array, so a program has its address as a constant and needs no look-up: the verifier only
//! asks that the place is below the end. This process maps the value and uses it as atomic words.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use super::BpfError;
use super::map::{F_MMAPABLE, TYPE_ARRAY, create};

/// Octets that a program may address from the start of a value (`BPF_MAX_VAR_OFF` of the verifier).
pub const SHARED_OCTETS_MAX: usize = 1 << 29;
/// Octets of a page, in which the kernel maps.
const PAGE: usize = 4096;

/// Words that programs in the kernel and this process share; zeros at first.
#[derive(Debug)]
pub struct SharedWords {
    map: OwnedFd,
    memory: NonNull<[AtomicU64]>,
}

// SAFETY: the memory is only used as atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Memory of at least `octets` octets, in whole pages.
    ///
    /// # Errors
    /// More than [`SHARED_OCTETS_MAX`], no memory, or no privilege.
    pub fn new(octets: usize) -> Result<SharedWords, BpfError> {
        if octets > SHARED_OCTETS_MAX {
            return Err(BpfError::Map(io::ErrorKind::InvalidInput.into()));
        }
        let octets = octets.max(1).next_multiple_of(PAGE);
        let map = create(TYPE_ARRAY, 4, octets, 1, F_MMAPABLE)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory. The map's value has
        // exactly this many octets.
        let memory =
            unsafe { libc::mmap(null_mut(), octets, protection, libc::MAP_SHARED, map.as_raw_fd(), 0) };
        match NonNull::new(memory.cast::<AtomicU64>()) {
            Some(first) if memory != libc::MAP_FAILED => {
                let words = octets / size_of::<AtomicU64>();
                Ok(SharedWords { map, memory: NonNull::slice_from_raw_parts(first, words) })
            }
            _ => Err(BpfError::Map(io::Error::last_os_error())),
        }
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is as long as the slice and stays until `self` is dropped. Every bit pattern is a valid
        // atomic; besides this program, only the kernel's programs use the memory.
        unsafe { self.memory.as_ref() }
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        let octets = self.memory.len() * size_of::<AtomicU64>();
        // SAFETY: this is the mapping that `new` made, and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), octets) };
    }
}

/// Waits until every program that runs in the kernel now has ended: a grace period. It takes some 10 to 30 ms.
///
/// # Errors
/// The kernel has no `membarrier`, or processors without timer ticks (`nohz_full`).
pub fn wait_for_programs() -> Result<(), BpfError> {
    // SAFETY: the call takes numbers only. MEMBARRIER_CMD_GLOBAL waits for the kernel's readers under RCU, which XDP
    // programs are.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 { Err(BpfError::Grace(io::Error::last_os_error())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::bpf::asm::{Assembler, Reg, Size};
    use crate::bpf::{Program, XDP_DROP};

    #[test]
    fn a_program_addresses_the_words_directly() {
        let words = SharedWords::new(3 * PAGE - 1).unwrap();
        assert_eq!(words.words().len(), 3 * PAGE / 8);
        words.words()[1000].store(4711, Relaxed);
        let mut asm = Assembler::new();
        asm.load_value(Reg::R1, words.as_fd(), 8000);
        asm.load(Size::Double, Reg::R2, Reg::R1, 0);
        asm.store(Size::Double, Reg::R1, 8, Reg::R2);
        asm.set(Reg::R0, XDP_DROP);
        asm.exit();
        let program = Program::load("test_words", &asm.finish().unwrap()).unwrap();
        assert_eq!(program.run(&[0; 64]).unwrap(), XDP_DROP);
        assert_eq!(words.words()[1001].load(Relaxed), 4711);
        assert_eq!(words.words()[1002].load(Relaxed), 0);
    }

    #[test]
    fn more_than_programs_can_address_is_refused() {
        assert!(matches!(SharedWords::new(SHARED_OCTETS_MAX + 1), Err(BpfError::Map(_))));
    }

    #[test]
    fn a_grace_period_ends() {
        wait_for_programs().unwrap();
    }
}
