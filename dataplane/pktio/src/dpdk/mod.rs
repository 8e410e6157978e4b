//! DPDK: environment, ports and classifier. Only with the feature `dpdk`.
//!
//! - [`eal`]: the environment that DPDK starts once per process;
//! - [`port`]: Ethernet frames through any device that DPDK drives, without the kernel: NICs, memif, AF_XDP,
//!   AF_PACKET, and the `ring` and `null` devices of tests and benchmarks;
//! - [`frames`]: DPDK's packet buffers (mbufs) behind [`Frame`](crate::Frame)s, so that a packet goes from one port
//!   to another without being copied;
//! - [`acl`]: its classifier, to compare with.
//!
//! DPDK is called through small C files beside the modules, because much of it is inline functions. They are compiled by
//! `build.rs`; DPDK is linked as shared libraries (Debian: libdpdk-dev), which load their drivers when started.
//!
//! Invariants: one environment per process; whoever calls a port's functions gets a number and with it a cache of
//! buffers; DPDK's own thread for control connections never runs while a thread is inside a port that it may take
//! memory from (`gate`).

pub mod acl;
pub mod eal;
pub mod frames;
mod gate;
pub mod port;

use std::ffi::{CStr, c_int};

pub use eal::start;
pub use port::{DpdkPort, Settings};

/// An error of DPDK.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("DPDK: {what}: {reason}")]
pub struct Error {
    what: String,
    reason: String,
}

unsafe extern "C" {
    fn godwit_error_text(code: c_int) -> *const std::ffi::c_char;
}

impl Error {
    fn new(what: &str, reason: &str) -> Error {
        Error { what: what.to_owned(), reason: reason.to_owned() }
    }

    /// An error from DPDK's number, a negative errno.
    fn from_code(what: &str, code: c_int) -> Error {
        // SAFETY: DPDK gives a string that ends with zero, in a buffer of this thread that the next call overwrites.
        let text = unsafe { CStr::from_ptr(godwit_error_text(-code)) };
        Error::new(what, &text.to_string_lossy())
    }

    fn check(what: &str, code: c_int) -> Result<(), Error> {
        if code < 0 { Err(Error::from_code(what, code)) } else { Ok(()) }
    }
}
