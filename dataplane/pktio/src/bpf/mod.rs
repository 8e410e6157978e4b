//! eBPF maps, XDP programs and socket filters, by `bpf(2)` alone.
//!
//! Programs are made with [`asm`], so neither a compiler nor a loader library is needed for them; larger ones are compiled
//! from C in the crate `xdp`. Everything is held by descriptors: a program is detached when its [`Link`] is dropped or the process ends, however it ends.

pub mod asm;
pub mod filter;
mod map;
mod run;
mod shared;
pub mod statistics;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub use map::{DeviceMap, HashTable, ProgramArray, SharedLines, XskMap};
pub use run::{Run, TestFrame, Turn};
pub use shared::{SHARED_OCTETS_MAX, SharedWords, wait_for_programs};

/// Verdict of an XDP program: drop the packet after an error.
pub const XDP_ABORTED: i32 = 0;
/// Verdict: drop.
pub const XDP_DROP: i32 = 1;
/// Verdict: on to the kernel's stack.
pub const XDP_PASS: i32 = 2;
/// Verdict: out through the interface that it came from.
pub const XDP_TX: i32 = 3;
/// Verdict: out through the interface that the program named.
pub const XDP_REDIRECT: i32 = 4;

// Commands of bpf(2), and the types used of maps, programs and attachments (linux/bpf.h).
const PROG_LOAD: libc::c_long = 5;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const LINK_CREATE: libc::c_long = 28;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// Octets of the verifier's explanation that are kept.
const LOG: usize = 64 << 10;
/// Octets of `struct bpf_prog_info` that are asked for, and where the number of verified instructions is there.
const PROG_INFO: usize = 224;
const PROG_INFO_VERIFIED: usize = 216;

/// Why the kernel did not take a map, program or attachment.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// A map.
    #[error("cannot create a BPF map: {0}; it needs CAP_BPF and CAP_NET_ADMIN")]
    Map(io::Error),
    /// An entry of a map, or its memory.
    #[error("cannot read or change a BPF map: {0}")]
    Entry(io::Error),
    /// The program was refused.
    #[error("cannot load a BPF program: {error}; the verifier said: {log}")]
    Load {
        /// The kernel's answer.
        error: io::Error,
        /// The verifier's last words.
        log: String,
    },
    /// The program could not be attached.
    #[error("cannot attach an XDP program to interface {interface}: {error}")]
    Attach {
        /// Index of the interface.
        interface: u32,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The program could not be run, or nothing is known of it.
    #[error("cannot run a BPF program: {0}")]
    Run(io::Error),
    /// Nothing is known of the programs that run.
    #[error("cannot wait for the BPF programs that run now: {0}")]
    Grace(io::Error),
    /// The program could not be assembled.
    #[error("cannot assemble a BPF program: {0}")]
    Asm(#[from] asm::AsmError),
}

/// The part of `union bpf_attr` that the commands here use, the rest being zero.
#[repr(C, align(8))]
struct Attributes([u8; 152]);

impl Attributes {
    fn new() -> Attributes {
        Attributes([0; 152])
    }

    fn u32(mut self, at: usize, value: u32) -> Attributes {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Attributes {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn pointer<T>(self, at: usize, value: *const T) -> Attributes {
        self.u64(at, value as u64)
    }

    fn get_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// # Safety
    /// Every pointer that `command` takes from the attributes is valid for what the command does with it.
    unsafe fn call(&mut self, command: libc::c_long) -> io::Result<libc::c_long> {
        // SAFETY: the kernel reads and writes at most the size given; the caller vouches for pointers inside.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    /// As [`Attributes::call`], for commands that return a descriptor.
    unsafe fn open(&mut self, command: libc::c_long) -> io::Result<OwnedFd> {
        // SAFETY: the caller's promise.
        let fd = unsafe { self.call(command) }?;
        // SAFETY: the kernel has just opened this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads an XDP program under `name` (up to 15 letters, digits and underscores).
    pub fn load(name: &str, code: &[u64]) -> Result<Program, BpfError> {
        Program::load_as(PROG_TYPE_XDP, name, code, c"")
    }

    /// As [`Program::load`], for a program that says which licence it has.
    pub fn load_licensed(name: &str, code: &[u64], licence: &CStr) -> Result<Program, BpfError> {
        Program::load_as(PROG_TYPE_XDP, name, code, licence)
    }

    /// Loads a socket filter, which also chooses among sockets of one address and queues of a TUN device.
    pub fn load_filter(name: &str, code: &[u64]) -> Result<Program, BpfError> {
        Program::load_as(PROG_TYPE_SOCKET_FILTER, name, code, c"")
    }

    fn load_as(kind: u32, name: &str, code: &[u64], licence: &CStr) -> Result<Program, BpfError> {
        let mut name_field = [0u8; 16];
        for (to, from) in name_field.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        let attempt = |log: &mut [u8]| {
            let mut attributes = Attributes::new()
                .u32(0, kind)
                .u32(4, code.len() as u32)
                .pointer(8, code.as_ptr())
                .pointer(16, licence.as_ptr());
            if !log.is_empty() {
                attributes = attributes.u32(24, 1).u32(28, log.len() as u32).pointer(32, log.as_mut_ptr());
            }
            attributes.0[48..64].copy_from_slice(&name_field);
            // SAFETY: code, licence (terminated by a zero) and log outlive the call and have the lengths given.
            unsafe { attributes.open(PROG_LOAD) }
        };
        // The second attempt, with a log, may fail for another reason: the log is too long.
        let error = match attempt(&mut []) {
            Ok(program) => return Ok(Program(program)),
            Err(error) => error,
        };
        let mut log = vec![0u8; LOG];
        match attempt(&mut log) {
            Ok(program) => Ok(Program(program)),
            Err(_) => {
                let text = String::from_utf8_lossy(&log);
                let text = text.trim_end_matches('\0').trim_end();
                let start = text.len().saturating_sub(400);
                let log = text.get(start..).unwrap_or_default().to_owned();
                Err(BpfError::Load { error, log })
            }
        }
    }

    /// Instructions that the verifier looked at, on all paths together. The kernel's limit is a million.
    pub fn verified_instructions(&self) -> Result<u32, BpfError> {
        let mut info = [0u8; PROG_INFO];
        let mut attributes = Attributes::new()
            .u32(0, self.0.as_raw_fd() as u32)
            .u32(4, PROG_INFO as u32)
            .pointer(8, info.as_mut_ptr());
        // SAFETY: the kernel writes at most the octets given, which outlive the call. Lengths of lists in them are
        // zero, so it follows no pointer there.
        unsafe { attributes.call(OBJ_GET_INFO_BY_FD) }.map_err(BpfError::Run)?;
        let at = PROG_INFO_VERIFIED;
        Ok(u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]))
    }

    /// Attaches the program to an interface: in its driver if that can, else in the kernel's generic hook.
    pub fn attach(&self, interface: u32) -> Result<Link, BpfError> {
        let link = |flags| {
            let mut attributes = Attributes::new()
                .u32(0, self.0.as_raw_fd() as u32)
                .u32(4, interface)
                .u32(8, ATTACH_XDP)
                .u32(12, flags);
            // SAFETY: the command takes numbers only.
            unsafe { attributes.open(LINK_CREATE) }
        };
        match link(XDP_FLAGS_DRV_MODE) {
            Ok(fd) => Ok(Link { _fd: fd, native: true }),
            // The driver has no support for XDP.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                link(XDP_FLAGS_SKB_MODE)
                    .map(|fd| Link { _fd: fd, native: false })
                    .map_err(|error| BpfError::Attach { interface, error })
            }
            Err(error) => Err(BpfError::Attach { interface, error }),
        }
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An attached program; dropping it detaches the program.
#[derive(Debug)]
pub struct Link {
    _fd: OwnedFd,
    native: bool,
}

impl Link {
    /// Whether the program runs in the interface's driver.
    pub fn native(&self) -> bool {
        self.native
    }
}
