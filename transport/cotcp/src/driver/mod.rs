//! The driver for tokio: sockets, time, tasks around the state machines of [`crate::core`].
//!
//! Client: [`client`] (handle and calls) → [`pool`] (which connection; making it again) → [`link`] (what callers share
//! with a connection's task) ← [`connection`] (that task). Server: [`server`] (accepts, drains) → [`session`] (a
//! connection's task) → [`pending`] (handlers that are not ready). Below both: [`stream`].
//!
//! There is one task per connection and no other. What is written in one turn of the executor leaves in one write: no
//! timer delays anything.

pub mod body;
pub mod client;
pub mod config;
mod connection;
pub mod handler;
mod link;
pub mod metrics;
mod pending;
mod pool;
pub mod server;
mod session;
pub mod stream;
mod time;
#[cfg(feature = "tls")]
pub mod tls;
