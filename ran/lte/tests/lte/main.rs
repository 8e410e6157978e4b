//! MME, eNBs and UEs against a scripted gateway: one UE step by step, its TUN device, and whole runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]
#![allow(clippy::print_stderr, reason = "a test says why it checks nothing")]

mod bearers;
mod commands;
mod failures;
mod interface;
mod procedures;
mod relocation;
mod run;
mod support;
