//! The CU's control plane between an AMF and DUs that a test scripts message by message, over SCTP on loopback.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod connections;
mod failures;
mod interface;
mod races;
mod support;
