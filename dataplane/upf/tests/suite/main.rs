//! The UPF's tests, in one program, because each program links everything again. Modules in alphabetical order; `pipeline` shows
//! packets, `n4` and `rules` show N4, `kernel` shows a whole UPF.
//!
//! Tests run at the same time in threads of one process: namespaces, files and sockets belong to one test. What a process has
//! once is tested in programs of their own: DPDK's environment (`dpdk`), the names of worker threads (`many_workers`).
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail as tests do"
)]

#[path = "../support/branches.rs"]
mod branches;
#[path = "../support/host.rs"]
mod host;
#[path = "../support/lab.rs"]
mod lab;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/wire.rs"]
mod wire;
#[path = "../support/n4.rs"]
mod without_user_plane;
#[path = "../support/world.rs"]
mod world;

mod address_limit;
mod end_markers;
mod ethernet;
mod execution;
mod fragments;
mod independent;
mod interfaces;
mod kernel;
mod machine;
mod many_rules;
mod memif;
mod meters;
mod n4;
mod n4_octets;
mod n4_socket;
mod networks;
mod pipeline;
mod rules;
mod shared_state;
mod sharing;
mod two_inputs;
mod ul_cl;
mod vlans;
mod workers;
