//! A DU between a CU that tests script message by message over SCTP, and UEs that they play on `uu`. Where minutes have to pass, its
//! machine and user plane run on a clock that the test sets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod bearers;
mod clock;
mod faults;
mod interface;
mod radio;
mod release;
mod rrc_transfer;
mod support;
