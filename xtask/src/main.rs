//! Repository checks: `cargo xtask tidy`.
#![forbid(unsafe_code)]

fn main() {}
