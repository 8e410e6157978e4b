//! Random numbers for identifiers that nobody may guess and that must differ after a restart of an NF:
//! an identifier that a peer still holds from before must not name anything new.

/// 64 random bits from the operating system.
pub fn u64() -> u64 {
    getrandom::u64().unwrap_or_else(|error| {
        // Does not happen on Linux after boot. The network must continue even with a predictable
        // number.
        tracing::error!(%error, "no random numbers");
        fallback()
    })
}

/// 32 random bits from the operating system.
pub fn u32() -> u32 {
    u64() as u32
}

/// The standard library has seeded this from the operating system earlier.
fn fallback() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
