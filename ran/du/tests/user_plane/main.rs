//! The user plane of a DU: between memory ports with a clock that the tests set, and between kernel sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod broadcast;
mod faults;
mod kernel;
mod paths;
mod radio;
mod srb;
mod straight;
mod support;
mod uplink;
