//! Random numbers for identifiers that nobody may guess, and that do not begin anew when an NF restarts: a peer that
//! still names what the NF had before must not meet what it has now.

/// 64 random bits from the operating system.
pub fn u64() -> u64 {
    getrandom::u64().unwrap_or_else(|error| {
        // Cannot happen on Linux after boot. A number that is not random must not stop the network.
        tracing::error!(%error, "no random numbers");
        fallback()
    })
}

/// 32 random bits from the operating system.
pub fn u32() -> u32 {
    u64() as u32
}

/// Seeded by the standard library from the operating system at an earlier time.
fn fallback() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
