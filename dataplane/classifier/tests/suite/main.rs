//! The classifiers' tests, in one program, because each program links everything again. Read `conformance` first. The test that
//! counts allocations is a program of its own, as it replaces the allocator.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod audit;
mod auto;
mod cache;
mod conformance;
mod rl_tree;
mod rules;
mod session;
mod shared;
mod simd;
mod trees;
mod tuple_spaces;
