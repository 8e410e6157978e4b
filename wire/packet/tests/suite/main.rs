//! The tests of headers, in one program, because each program links everything again.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod support;

mod gtpu;
mod gtpu_hostile;
mod headers;
mod nr_u;
