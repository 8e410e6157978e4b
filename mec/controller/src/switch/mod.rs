//! Switches: the server for their connections, and what all applications share of them.
//!
//! `server.rs` accepts connections, `connection.rs` speaks OpenFlow with one switch, `fabric.rs` holds what is known and wanted of all
//! of them.

pub mod connection;
pub mod fabric;
pub mod server;

pub use connection::{Connection, Dialect, SwitchError};
pub use fabric::{CommitError, Event, Fabric, Handle, Outcome, Step, SwitchView};
