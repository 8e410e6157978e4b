//! Service-based interface: operations, models and the bindings that move them (CP-3).
//!
//! An operation is a type ([`Operation`]); [`op`] has one per 3GPP service operation, [`model`] the
//! data types of TS 29.5xx. An NF offers operations through a [`Router`] and calls those of others
//! through a [`Client`]; neither depends on a binding. `http_json` is the only binding so far: HTTP/2
//! with JSON.
//!
//! ```
//! use std::sync::Arc;
//! use sbi::{Client, ClientConfig, ProblemDetails, Router, ServerConfig, Target, model, op, serve};
//!
//! struct Udm;
//!
//! async fn nssai(_: Arc<Udm>, request: op::udm::GetNssaiRequest) -> Result<model::common::Nssai, ProblemDetails> {
//!     if request.supi.to_string() != "imsi-999700000000001" {
//!         return Err(ProblemDetails::user_not_found());
//!     }
//!     let slice = "1".parse().map_err(|_| ProblemDetails::system_failure())?;
//!     Ok(model::common::Nssai { supported_features: None, default_single_nssais: vec![slice], single_nssais: vec![] })
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let router = Router::new(Arc::new(Udm)).on::<op::udm::GetNssai>(nssai);
//! let server = serve(router, "127.0.0.1:0".parse()?, ServerConfig::default()).await?;
//! let client = Client::new(ClientConfig::default());
//! let request = op::udm::GetNssaiRequest { supi: "imsi-999700000000001".parse()?, plmn_id: None, body: () };
//! let nssai = client.call::<op::udm::GetNssai>(server.address(), request).await?;
//! assert_eq!(nssai.default_single_nssais.len(), 1);
//! # server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! Read first: [`operation`], then [`op::smf`] for examples, then [`router`] and [`client`].
#![forbid(unsafe_code)]

pub mod access;
pub mod client;
pub mod codec;
pub mod config;
mod counters;
mod discovery;
mod exchange;
mod http_json;
pub mod message;
pub mod model;
pub mod op;
pub mod operation;
pub mod param;
pub mod problem;
pub mod router;
pub mod server;
pub mod target;
pub mod tls;

#[doc(hidden)]
pub use access::jws::fuzz_token;
pub use access::{Caller, Credentials, Guard};
pub use client::{CallError, Client};
pub use config::{ClientConfig, ServerConfig};
pub use discovery::api_roots;
#[doc(hidden)]
pub use http_json::fuzz_content;
pub use message::BinaryPart;
pub use operation::{
    Callback, Created, Initiated, Message, Method, Notification, Operation, OperationError, Request,
    Response, Service, Stored, callback_uri,
};
pub use problem::ProblemDetails;
pub use router::{Handler, Router};
pub use server::{Bound, Server, serve};
pub use target::{ApiRoot, ResourceUri, Scheme, Target};
pub use tls::{HandshakeError, Tls, TlsMode};
