//! Switches: the server for their connections, and what all applications share of them.
//!
//! `server.rs` accepts connections, `connection.rs` speaks OpenFlow with one switch, `fabric.rs` holds what is known and wanted of all
//! of them, and `events.rs` what waits for an application.

pub mod connection;
pub mod events;
pub mod fabric;
pub mod server;

pub use connection::{Connection, Dialect, SwitchError};
pub use events::{Event, Events};
pub use fabric::{CommitError, Fabric, Handle, Outcome, Step, SwitchView};
