//! The driver over real sockets: how calls, connections and whole clients and servers end, and what limits them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod calls;
mod connections;
mod server;
mod streams;
mod stress;
mod support;
#[cfg(feature = "tls")]
mod tls;
