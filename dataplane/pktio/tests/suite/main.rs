//! The tests of backends and of what stands on them, in one program, because each program links everything again.
//!
//! Tests run at the same time in threads of one process: namespaces, files and sockets belong to one test. What a process has
//! once is tested in programs of their own: DPDK's environment (`dpdk`), and descriptors and mappings, which `memif` counts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

mod adjacencies;
mod af_xdp;
mod datagram;
mod datagram_frames;
mod frames;
mod home;
mod kernel;
mod offload;
mod offload_kernel;
mod stack;
mod trunk;
mod xdp_chain;
