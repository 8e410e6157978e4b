//! The simulator against a scripted network: one UE step by step, its TUN device, and whole runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]
#![allow(clippy::print_stderr, reason = "a test says why it checks nothing")]

mod idle;
mod interface;
mod run;
mod support;
mod ue;
