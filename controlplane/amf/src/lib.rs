//! Access and mobility management function (TS 23.501 §6.2.1; TS 23.502, TS 24.501, TS 38.413, TS 29.518).
//!
//! Flow of a message: gNB → SCTP association (`n2.rs`: decode, find the UE; `first_message.rs`: start
//! one) → the UE's bounded queue → the UE's task
//! (`ue.rs`: one event at a time; `n1.rs`: NAS security) → the procedure it starts (`procedure/`) → AUSF, UDM, PCF,
//! SMF (`peers.rs`) and back to the gNB. Requests of other NFs enter by `service.rs`, an operator's by `oam.rs`, into
//! the same queue.
//!
//! Invariants: only a UE's own task changes its state; no gNB, UE or NF can make another UE wait; every
//! queue, table and wait is bounded; under load `admission.rs` decides the order of registrations;
//! everything refused is counted (`counters.rs`); keys are never logged.
//!
//! Read first: [`mod@config`], `context.rs` (data and owners), `ue.rs` (how a procedure waits), then
//! `procedure/registration.rs`.
#![forbid(unsafe_code)]

mod admission;
pub mod config;
mod context;
mod counters;
mod event;
mod first_message;
mod gnb;
mod n1;
mod n2;
mod oam;
mod peers;
mod procedure;
mod samples;
mod service;
mod state;
mod ue;

use std::net::SocketAddr;
use std::sync::Arc;

use net::sctp::{self, Listener, SctpConfig};
use net::task::Boxed;
use sbi::model::nrf::NfType;

pub use config::{Config, ConfigError};

/// Why the AMF did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// N2 cannot be opened.
    #[error("amf.ngap {address}: {source}")]
    N2 {
        /// The address it should listen on.
        address: SocketAddr,
        /// The transport's error.
        source: sctp::BindError,
    },
    /// The SBI or OAM address cannot be used.
    #[error(transparent)]
    Sbi(#[from] nf::BindError),
}

/// Starts an AMF: N2 and SBI are open when this returns.
pub fn start(config: Config, env: nf::Env) -> Boxed<'static, Result<nf::Running, StartError>> {
    Box::pin(async move {
        config.validate()?;
        let mut instance = nf::Instance::bind(NfType::Amf, config.sbi, &env).await?;
        let sctp =
            SctpConfig { mode: config.sctp, max_associations: config.limits.gnbs, ..SctpConfig::default() };
        let address = config.ngap;
        let listener =
            Listener::bind(address, sctp).await.map_err(|source| StartError::N2 { address, source })?;
        tracing::info!(%address, mode = %listener.mode(), "N2 open");
        let api_root = instance.api_root().to_string();
        let peers = peers::Peers::new(instance.client(), instance.id(), api_root);
        let profile = instance.profile();
        profile.plmn_list = vec![config.plmn];
        profile.s_nssais = config.slices.clone();
        let (restarts, started) = instance.watch(&[NfType::Smf, NfType::Pcf]);
        let amf = Arc::new(context::Amf::new(config, peers, restarts));
        let (stopping, notify_ues) =
            (instance.stopping(), procedure::peer_restart::notify_ues(amf.clone(), started));
        instance.spawn(async move {
            tokio::select! {
                () = stopping.wait() => {}
                () = notify_ues => {}
            }
        });
        let stopping = instance.stopping();
        instance.spawn(n2::run(amf.clone(), listener, stopping));
        instance.prepare::<sbi::op::ausf::Authenticate>();
        instance.prepare::<sbi::op::udm::GetAmData>();
        instance.prepare::<sbi::op::udm::RegisterAmf>();
        instance.prepare::<sbi::op::pcf::CreateAmPolicy>();
        instance.prepare::<sbi::op::smf::CreateSmContext>();
        let routes = oam::routes(&amf);
        Ok(instance.start(service::router(amf), routes)?)
    })
}
