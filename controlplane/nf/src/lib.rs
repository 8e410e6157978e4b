//! Life cycle, OAM and NRF registration that every network function shares.
//!
//! The life of an NF:
//! ```text
//! Instance::bind        takes the SBI address, so that callback URIs can be written
//!   … the NF builds its state, its Router and its Oam …
//! Instance::start       serves SBI and OAM, registers with NRF in the background (NRF may come last)
//! Running::stop, or     deregisters, tells background tasks, lets requests finish, removes the OAM socket
//! Env::shutdown
//! ```
//! Nothing here knows what an NF does. Every NF is a library crate with `async fn start(config, env:
//! nf::Env) -> Result<nf::Running, StartError>`.
//!
//! Read first: [`Env`], [`Instance`], then [`registration`] and [`oam`].
#![forbid(unsafe_code)]

pub mod certificate;
pub mod env;
pub mod instance;
pub mod metrics;
pub mod oam;
pub mod random;
pub mod registration;
pub mod rest;
pub mod security;
pub mod shutdown;
pub mod trust;
pub mod watch;

pub use env::Env;
pub use instance::{BindError, Instance, Running};
pub use oam::Oam;
pub use shutdown::Shutdown;
pub use trust::{Trust, TrustError};
pub use watch::Watch;
