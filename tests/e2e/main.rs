//! End-to-end tests: parts of the core together, and whole networks in namespaces.
//!
//! Read first: `testkit::world`, how a test gets a network. Each module holds one kind of failure, each
//! test one sequence of events.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "helpers of tests are tests")]

mod access;
mod anchors;
mod authentication;
mod captures;
mod cell;
mod command_line;
mod epc;
mod epc_captures;
mod epc_commands;
mod epc_go_gtp;
mod epc_s5_go_gtp;
mod epc_sites;
mod f1u;
mod flow;
mod idle;
mod mec_controller;
mod mec_go_gtp;
mod mec_kills;
mod mec_move;
mod mec_order;
mod mec_procedures;
mod mec_service;
mod mec_sgw;
mod mec_switch;
mod mec_usage;
mod mec_world;
#[path = "../../epc/tests/common/mme.rs"]
mod mme;
mod n2;
mod privileges;
mod proxy;
mod registration;
mod sessions;
mod split;
mod split_captures;
mod split_control;
mod split_dus;
mod split_links;
mod split_protection;
mod split_user_plane;
mod stream;
mod subscription;
mod talk;
mod user_plane;
mod usrsctp;
