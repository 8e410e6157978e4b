//! The user plane of UEs of a gNB in parts: TUN devices on one side, the link to distributed units on the other.
//!
//! ```text
//!  programs ──TUN──► uplink ── QoS flow ► bearer, SDAP, PDCP, RLC ──uu──► DU
//!  programs ◄─TUN─── downlink ◄── SDAP, PDCP, RLC ◄ bearer by C-RNTI and LCID ◄──uu── DU
//! ```
//! [`UserPlane`] is a graph of the engine ([`path::Graph`]) with two interfaces: [`UU`], a port of any backend, and [`TUN`], which
//! is [`Tuns`], all TUN devices as one port. A worker owns all UEs as plain state. [`Control`] reaches it by commands, and hears
//! from it by [`Event`]s. Which packet belongs to which QoS flow is not looked into yet: a session's packets are of one flow.
//!
//! The straight way rewrites a packet in place: it neither allocates nor locks. A UE sends when it likes; the radio link with its
//! rate, delay and loss is the DU's, in both directions.
//!
//! Read [`control`], then `graph.rs`.
#![forbid(unsafe_code)]

mod access;
mod camps;
mod connection;
pub mod control;
mod counters;
mod graph;
pub mod rrc;
mod sink;
mod srb;
mod state;
mod stats;
mod tuns;
mod ues;

#[cfg(test)]
mod tests;

pub use ::rrc::message::EstablishmentCause;
pub use connection::{Bearer, ConnectError, Connection, Downlink, Lost};
pub use control::{BearerId, BearerSetup, Control, Event, Events, Refused, SessionId, UeId};
pub use graph::{TUN, UU, UserPlane};
pub use sink::{Packets, Sink};
pub use stats::{SessionStats, Stats};
pub use tuns::{Devices, Tuns};
pub use ues::{Camping, Cell, CellConfig, Config, StartError, Totals, Ues};
