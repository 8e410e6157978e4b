//! Support for end-to-end tests: a separate network for every test. Read [`world`].
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "helpers of tests are tests")]
#![allow(clippy::missing_panics_doc, reason = "every helper panics when the test has failed")]

pub mod world;
