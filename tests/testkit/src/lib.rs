//! Simulated world and packet builders for tests.
#![forbid(unsafe_code)]
