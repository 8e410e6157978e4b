//! The two cores wired together without sockets, and each against a hostile peer (CO-1, CO-2, CO-6 to CO-10, CO-13).
//!
//! [`frames`] are octets only; [`pair`] is the wire, [`exchange`] what a well-behaved pair does, [`flow`] large messages
//! and streams, [`time`] what happens when nothing happens, [`hostile`] bad input, [`random`] arbitrary programs, cuts,
//! losses and octets.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

mod exchange;
mod flood;
mod flow;
mod frames;
mod hostile;
mod pair;
mod program;
mod random;

mod time;
