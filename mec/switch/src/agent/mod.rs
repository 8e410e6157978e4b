//! The switch's end of OpenFlow 1.3.
//!
//! ```text
//! driver: sockets, timers ──octets──► session: framing, hello, echo, requests ──► core::Switch
//!                         ◄─octets──                                           ◄── events (peer)
//! ```
//! [`session::Session`] has no I/O and no clock: octets and the time go in, octets come out, so that the fuzzer drives it as
//! sockets do. [`driver`] connects to controllers, and listens for programs such as `ovs-ofctl`.

mod bundle;
pub mod driver;
mod multipart;
pub mod peer;
pub mod session;
