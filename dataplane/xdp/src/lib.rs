//! XDP programs in C, and the tables that they share with this process.
//!
//! `bpf/NAME.bpf.c` is compiled by clang when the crate is built, and embedded ([`programs`]). [`object`] puts maps, memory and
//! numbers into its code, which is then a part of an interface's chain ([`pktio::xdp`]) like any other (ADR 0029).
//!
//! - [`steer`]: GTP-U packets by exact-match entries for outer destination and TEID; what it does in short: `docs/xdp-steering.md`.
//!   It knows nothing of OpenFlow.
//! - [`generate`]: GTP-U packets at millions per second, for measuring.
//!
//! Programs need the feature `clang`. Without it everything builds, and loading is refused with the reason.
#![forbid(unsafe_code)]

pub mod generate;
pub mod object;
pub mod programs;
pub mod steer;
