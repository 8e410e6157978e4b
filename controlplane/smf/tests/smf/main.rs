//! The SMF's procedures over real interfaces: SBI, PFCP and GTP-U on loopback.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests: a panic is how they fail")]

mod n4_octets;
mod recovery;
mod sessions;
mod world;
