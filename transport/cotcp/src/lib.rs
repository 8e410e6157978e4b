//! CoTCP: concurrent requests and responses over one byte stream (TCP, TLS, a Unix socket).
//!
//! Many tasks call at once over one connection; answers come in any order. What they send in one turn of the executor
//! leaves in one write, which makes one connection faster than hundreds that take turns. Large messages go in fragments
//! that small ones overtake.
//!
//! ```
//! use cotcp::{Client, Config, Request, Server};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::bind("127.0.0.1:0", Config::default()).await?;
//! let address = server.local_addr()?;
//! tokio::spawn(server.serve(|request: Request| async move { Ok(request.body) }));
//!
//! let client = Client::connect(address, Config::default()).await?;
//! assert_eq!(client.call("hello").await?, "hello");
//! # Ok(())
//! # }
//! ```
//!
//! # What there is
//!
//! | for | see |
//! |---|---|
//! | a call with a deadline, a priority, tracing context, or without an answer | [`Client::request`] |
//! | errors with a code and a text, overload | [`Failure`] |
//! | bodies in parts, of any length | [`RequestBuilder::stream`], [`RequestBuilder::receive`], [`Reply::parts`], [`Request::rest`] |
//! | giving a call up | drop its future: the server's handler is dropped too |
//! | several connections, connecting again, time-outs | [`ClientConfig`] |
//! | limits on connections, draining | [`ServerConfig`], [`ServerHandle::drain`] |
//! | limits of each connection, keep-alive | [`Config`] |
//! | Unix sockets, other streams | [`Address`], [`Server::bind_unix`], [`Client::over`], [`serve_stream`] |
//! | TLS with both sides proving who they are | the feature `tls`: `cotcp::tls`, `Address::tls`, `Server::with_tls` |
//! | counters, as values and for Prometheus | [`Client::metrics`], [`ServerHandle::metrics`] |
//! | the protocol without sockets and clocks | [`core`] |
//!
//! ```
//! use cotcp::{CallError, Client, Code, Config, Failure, Request, Server};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = Server::bind("127.0.0.1:0", Config::default()).await?;
//! # let address = server.local_addr()?;
//! # let handle = server.handle();
//! // The server: an error of the application for what it does not know.
//! let serving = tokio::spawn(server.serve(|request: Request| async move {
//!     match &request.body[..] {
//!         b"answer" => Ok("42"),
//!         _ => Err(Failure::new(Code::APPLICATION, "no such question")),
//!     }
//! }));
//!
//! // The client.
//! let client = Client::connect(address, Config::default()).await?;
//! let call = client.request("answer").deadline(Duration::from_millis(500)).priority(1).send();
//! assert_eq!(call.await?, "42");
//! let error = client.call("question").await.unwrap_err();
//! assert!(matches!(error, CallError::Remote { code: Code::APPLICATION, .. }));
//!
//! // Open calls are finished, then `serve` returns.
//! handle.drain();
//! serving.await?;
//! # Ok(())
//! # }
//! ```
//!
//! `cargo run -p cotcp --example lookup` is a small service with its client, `--example file` sends a large file beside
//! small calls.
//!
//! # Good to know
//!
//! - A call that is alone is written by its caller at once; others go with those that are made in the same turn.
//! - A client of several connections keeps the calls of one turn together and spreads the turns.
//! - A handler is polled in its connection's task. What computes for long belongs into a task of its own.
//! - Version 1 peers are spoken to as they are: small calls work, what version 1 cannot carry is
//!   [`CallError::NeedsVersion2`].
//!
//! # Map
//!
//! The wire format is in `SPEC.md` beside this crate; § in these pages means its sections. Version 1 is the published
//! protocol; version 2 is negotiated inside it and adds large messages in fragments, flow control, deadlines,
//! cancellation, errors, priorities, streams, keep-alive and draining.
//!
//! From the bottom: [`frame`] and [`hello`] (octets to values and back, no state), [`error`], [`config`],
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
pub use driver::server::{Server, ServerHandle, serve_stream};
pub use driver::stream::{Address, Stream};
#[cfg(feature = "tls")]
pub use driver::tls;
pub use error::{CallError, Code, ConnectionError};
pub use stats::Stats;
