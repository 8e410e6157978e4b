//! The tests of layer 2, in one program, because each program links everything again.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

#[path = "../wireshark/pdcp.rs"]
mod pdcp;
#[path = "../wireshark/mod.rs"]
mod wireshark;

mod rlc_am;
mod rlc_um;
mod tshark;
mod tshark_rlc;
