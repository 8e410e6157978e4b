//! Network repository function (TS 29.510): the register of NF instances, their services and addresses.
//!
//! NFs register their profile and keep it alive with heartbeats; other NFs discover them. The registry
//! is in memory only: after a restart NFs learn at their next heartbeat that they are unknown and
//! register again (`nf::registration`), so nothing is lost. The NRF also issues access tokens, signed
//! with a key that it keeps in a file.
//!
//! Read first: [`context`] (the registry), then [`service`] (its operations) and [`token`] (who may
//! call whom).
#![forbid(unsafe_code)]

pub mod config;
pub mod context;
pub mod owners;
pub mod service;
pub mod token;

use std::sync::Arc;

use net::task::Boxed;
use net::time::{self, Duration};
use nf::{BindError, Env, Instance, Oam, Running, Trust};
use sbi::model::nrf::NfType;

pub use config::Config;
use context::Registry;
use token::Authority;

/// Starts an NRF.
///
/// # Errors
/// The SBI address, OAM socket or keys cannot be used.
pub fn start(config: Config, env: Env) -> Boxed<'static, Result<Running, BindError>> {
    Box::pin(async move {
        let mut instance = Instance::bind(NfType::Nrf, config.sbi, &env).await?;
        let (registry, events) = Registry::new(&config);
        let authority = match &env.trust {
            Some(trust) => {
                let life = Duration::from_secs(config.token_s.into());
                let authority = Authority::new(instance.id(), Trust::clone(trust), life);
                Some(authority.map_err(|source| BindError::Trust { nf: NfType::Nrf, source })?)
            }
            None => None,
        };
        let state = Arc::new(service::State { registry, authority, api_root: instance.api_root() });

        // Notices expired instances even without requests, and delivers notifications one after the other.
        let (sweeper, stopping) = (state.clone(), instance.stopping());
        let mut ticks = time::interval(config.heartbeat());
        instance.spawn(async move {
            loop {
                tokio::select! {
                    () = stopping.wait() => return,
                    _ = ticks.tick() => sweeper.registry.sweep(time::now()),
                }
            }
        });
        instance.spawn(service::deliver(instance.client(), state.clone(), events, instance.stopping()));

        let listing = state.clone();
        let oam = Oam::new().get("/instances", move |_| {
            let state = listing.clone();
            async move { Ok(state.registry.list(None, usize::MAX, time::now())) }
        });
        instance.start(service::router(state), oam)
    })
}
