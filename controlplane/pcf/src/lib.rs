//! Policy control function: access and mobility policy (TS 29.507), session policy (TS 29.512).
//!
//! The policy of a session comes from the operator's configuration for the DNN, else from the
//! subscription as the SMF reports it, else from our defaults. The decision is a session rule (session
//! AMBR, default QoS) and one PCC rule that puts all traffic on the default QoS flow.
//!
//! Associations are kept in memory. After a restart they are unknown, which AMF and SMF treat as
//! deleted (TS 29.512 §4.2.5). Policies in force in the user plane do not depend on them.
//!
//! Read first: [`decision`], then [`service`].
#![forbid(unsafe_code)]

pub mod config;
pub mod context;
pub mod decision;
pub mod service;

use std::sync::Arc;

use net::task::Boxed;
use nf::{BindError, Env, Instance, Oam, Running};
use sbi::model::nrf::NfType;

pub use config::Config;

/// Starts a PCF.
///
/// # Errors
/// The SBI address or OAM socket cannot be used.
pub fn start(config: Config, env: Env) -> Boxed<'static, Result<Running, BindError>> {
    Box::pin(async move {
        let instance = Instance::bind(NfType::Pcf, config.sbi, &env).await?;
        let state = Arc::new(service::State::new(config));
        let listing = state.clone();
        let oam = Oam::new().get("/policies", move |_| {
            let state = listing.clone();
            async move { Ok(state.counts()) }
        });
        instance.start(service::router(state), oam)
    })
}
