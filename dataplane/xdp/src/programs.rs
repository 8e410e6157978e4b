//! The compiled programs.

use crate::object::{Object, ObjectError};

/// Includes a compiled program, if there is one.
macro_rules! object {
    ($file:literal) => {{
        #[cfg(feature = "clang")]
        {
            Object::read(include_bytes!(concat!(env!("OUT_DIR"), "/", $file)))
        }
        #[cfg(not(feature = "clang"))]
        {
            Err(ObjectError::NotBuilt)
        }
    }};
}

/// Whether this build has the programs.
pub const BUILT: bool = cfg!(feature = "clang");

/// The steering part of a chain (`bpf/steer.bpf.c`).
///
/// # Errors
/// This build has no programs, or a defect of the build.
pub fn steer() -> Result<Object, ObjectError> {
    object!("steer.o")
}

/// The program that looks for entries for inner fields (`bpf/steer_inside.bpf.c`).
///
/// # Errors
/// As [`steer`].
pub fn steer_inside() -> Result<Object, ObjectError> {
    object!("steer_inside.o")
}

/// The program that replaces inner addresses (`bpf/steer_rewrite.bpf.c`).
///
/// # Errors
/// As [`steer`].
pub fn steer_rewrite() -> Result<Object, ObjectError> {
    object!("steer_rewrite.o")
}

/// The steering program behind one that varies the TEID, to measure it (`bpf/steer_bench.bpf.c`).
///
/// # Errors
/// As [`steer`].
pub fn steer_bench() -> Result<Object, ObjectError> {
    object!("steer_bench.o")
}

/// A generator of GTP-U packets (`bpf/generate.bpf.c`).
///
/// # Errors
/// As [`steer`].
pub fn generate() -> Result<Object, ObjectError> {
    object!("generate.o")
}
