//! CoTCP: concurrent requests and responses over one byte stream (TCP, TLS, a Unix socket).
//!
//! The wire format is in `SPEC.md` beside this crate; § in these pages means its sections. Version 1 is the published
//! protocol; version 2 is negotiated inside it and adds large messages in fragments, flow control, deadlines,
//! cancellation, errors, priorities, streams, keep-alive and draining.
//!
//! Map, from the bottom: [`frame`] and [`hello`] (octets to values and back, no state), [`error`], [`config`],
//! [`stats`], then [`core`]: two state machines, [`core::Client`] and [`core::Server`], which take octets and time
//! and give octets, events and deadlines. They open no socket and read no clock. Read [`core`] first. [`driver`] puts
//! tokio around them: [`Client`] and [`Server`].
//!
//! Invariants: whatever the peer sends ends in a typed error, is counted, and never panics; memory is bounded by
//! [`Config`]; a call is answered once or fails once.
#![forbid(unsafe_code)]

pub mod config;
pub mod core;
pub mod driver;
pub mod error;
pub mod frame;
pub mod hello;
pub mod stats;

pub use config::Config;
pub use driver::body::{PartReceiver, PartSender};
pub use driver::client::{Call, Client, RequestBuilder};
pub use driver::config::{ClientConfig, ServerConfig};
pub use driver::handler::{Failure, Handler, Reply, Request};
pub use driver::metrics::{Connections, Metrics};
pub use driver::server::{Server, ServerHandle};
pub use driver::stream::{Address, Stream};
#[cfg(feature = "tls")]
pub use driver::tls;
pub use error::{CallError, Code, ConnectionError};
pub use stats::Stats;
