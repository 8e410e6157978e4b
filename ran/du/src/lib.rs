//! The user plane of a distributed unit of a gNB (TS 38.401): F1-U on one side, UEs behind a simulated radio link on the other.
//!
//! ```text
//!  CU ──GTP-U, NR-U──► downlink ──► bearer by TEID ────────────► RLC ──► radio link ──uu──► UE
//!  CU ◄───GTP-U─────── uplink ◄── bearer by C-RNTI and LCID ◄─── RLC ◄── radio link ◄─uu─── UE
//!   ◄── delivery status, Echo, Error Indication
//! ```
//! [`UserPlane`] is a graph of the engine ([`path::Graph`]): a worker owns all UEs and bearers as plain state. Control reaches it
//! by [`Control`], and hears from it by [`Event`]s.
//!
//! The straight way is that of a radio link without limits and faults: a packet gets other headers in the same frame and
//! leaves in the same vector, without copy, queue or timer. Other packets are copied into queues (`scheduler.rs`).
//!
//! Read [`control`], then `downlink.rs` and `uplink.rs`.
#![forbid(unsafe_code)]

mod broadcast;
mod config;
pub mod control;
mod downlink;
mod driver;
mod exits;
pub mod f1c;
mod graph;
mod leave;
mod limit;
mod node;
mod paths;
mod peers;
pub mod radio;
mod scheduler;
mod signalling;
mod srb;
mod stats;
mod status;
mod tables;
mod timers;
mod uplink;
mod uplink_queue;

pub use config::{Config, F1cConfig, RadioConfig, RadioLinkConfig};
pub use control::{Added, BearerSetup, Control, Event, Events, PdcpSn, Place, Refused, Tunnel};
pub use driver::Du;
pub use graph::{Interface, Role, Settings, UserPlane};
pub use node::{Node, StartError};
pub use paths::Echo;
pub use radio::Radio;
pub use stats::{BearerStats, Stats};
