//! The tests of GTPv2-C, in one program, because each program links everything again.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail as tests do"
)]

mod common;

mod codec;
mod endpoint;
mod go_gtp;
mod tshark;
