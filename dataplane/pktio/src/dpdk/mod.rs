//! What uses DPDK, with the feature `dpdk` only: so far its classifier [`acl`], to compare with.
//!
//! DPDK is reached through small C files beside the modules, as much of it are inline functions. They are compiled by
//! `build.rs`; DPDK is linked as shared libraries (Debian: libdpdk-dev).

pub mod acl;

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

/// Why DPDK did not do something: a negative errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("DPDK: {what}: error {code}")]
pub struct Error {
    what: &'static str,
    code: i32,
}

impl Error {
    fn check(what: &'static str, code: c_int) -> Result<(), Error> {
        if code < 0 { Err(Error { what, code }) } else { Ok(()) }
    }
}

/// Memory for DPDK's structures, megabytes; taken from the system when it is used.
const MEGABYTES: c_uint = 2048;

unsafe extern "C" {
    fn godwit_eal_init(core: c_uint, megabytes: c_uint) -> c_int;
}

/// Starts DPDK's environment in this process, once: without huge pages, devices and files. The calling thread is
/// kept on `core`.
///
/// # Errors
/// DPDK cannot start here. It is not tried again.
pub fn start(core: usize) -> Result<(), Error> {
    static STARTED: OnceLock<Result<(), Error>> = OnceLock::new();
    // SAFETY: the function takes numbers and is called once, as it demands.
    *STARTED.get_or_init(|| Error::check("start", unsafe { godwit_eal_init(core as c_uint, MEGABYTES) }))
}
