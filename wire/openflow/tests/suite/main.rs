//! The tests of OpenFlow, in one program, because each program links everything again.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail as tests do"
)]

mod common;

mod codec;
mod join;
mod open_vswitch;
mod os_ken;
mod tshark;
