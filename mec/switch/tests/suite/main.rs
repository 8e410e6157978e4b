//! The switch's tests, in one program, because each program links everything again. `rules` and `steering` show the pipeline,
//! `network` and `xdp` the whole switch on links.
//!
//! Tests run at the same time in threads of one process: namespaces, files and sockets belong to one test.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests fail by panicking")]

mod common;
mod namespaces;

mod agent;
mod exact;
mod hold;
mod host;
mod neighbours;
mod network;
mod oracle;
mod os_ken;
mod ovs_ofctl;
mod rules;
mod steering;
mod xdp;
