//! The relay of a CU between wires: what comes out at the far ends, octet by octet.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod control;
mod hostile;
mod relay;
mod support;
