//! The edge's switch: an OpenFlow 1.3 pipeline that sees into GTP-U tunnels, the agent through which controllers drive it, and
//! two data paths: the host path on the forwarding engine, and known tunnels in XDP in front of it.
//!
//! ```text
//! controllers ◄──OpenFlow──► agent ──► core::Switch ──► pipeline: tables, groups, translation
//!                                            ▲
//! packets ──► offload: known tunnels ──► host path: caches of translations
//! ```
//! Read first: [`pipeline`], then [`core`].
#![forbid(unsafe_code)]

pub mod agent;
pub mod config;
pub mod core;
pub mod hold;
pub mod host;
pub mod offload;
pub mod pipeline;
pub mod service;
pub mod text;

pub use config::Config;
pub use service::Service;
