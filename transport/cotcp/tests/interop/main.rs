//! Our code against programs that share nothing with it: a client and a server of version 1 in Go (CO-5), and a
//! Wireshark dissector that tshark runs (CO-12).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "says what it skipped")]
#![allow(
    clippy::disallowed_methods,
    reason = "this crate is used alone, and so tested: `net` is none of its friends"
)]

mod dissector;
mod golang;
mod hostile_client;
mod hostile_server;
mod ours;
mod pcap;
mod process;
mod raw;
mod tap;
#[cfg(feature = "tls")]
mod tls;
