//! Random numbers for identities that nobody may guess (TS 33.501 §6.12.3).

/// A random number from the operating system.
pub(crate) fn u32() -> u32 {
    let mut octets = [0; 4];
    match getrandom::fill(&mut octets) {
        Ok(()) => u32::from_ne_bytes(octets),
        Err(error) => {
            // Cannot happen on Linux after boot. A number that is not random must not stop the network.
            tracing::error!(%error, "no random numbers");
            fallback()
        }
    }
}

/// Seeded by the standard library from the operating system at an earlier time.
fn fallback() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}
