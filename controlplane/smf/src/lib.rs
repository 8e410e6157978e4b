//! Session management function: PDU sessions between AMF (N11), UPF (N4), UDM (N10) and PCF (N7).
//!
//! Flow: operation → [`service`] → a file of [`procedure`] → the crate `n4`, [`peers`] → answer. Requests
//! of UPFs arrive as `n4::N4Event`. [`rules`] has the N4 rules of a session, [`n1`] and [`n2`] encode what
//! the AMF forwards to UE and gNB, [`n4u`] is the router of IPv6 sessions. UE addresses come from the crate
//! `ipam`. [`usage`] counts what UPFs have measured.
//!
//! Invariants: a session's lock excludes concurrent procedures; an address belongs to at most one
//! session; a released session has returned its address and released its UPF session, policy and
//! registration; no input ends the process.
//!
//! Read first: [`context`], `procedure/establishment.rs`, `rules.rs`.
#![forbid(unsafe_code)]

pub mod config;
mod context;
mod n1;
mod n2;
mod n4u;
mod oam;
mod peers;
mod procedure;
mod rules;
mod samples;
mod service;
mod usage;

use std::sync::Arc;

pub use config::{
    AddressFamily, Config, ConfigError, DnnConfig, Need, NetworkInstance, UePool, UserPlaneSecurity,
};
use context::{Network, Smf};
use n4::{N4, N4Event};
use net::task::Boxed;
use nf::{Env, Instance, Running};
use sbi::model::nrf::{DnnSmfInfoItem, NfType, SNssaiSmfInfoItem, SmfInfo};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Why the SMF could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error("smf.{0}")]
    Config(#[from] ConfigError),
    /// The SBI address or OAM socket cannot be used.
    #[error(transparent)]
    Bind(#[from] nf::BindError),
    /// The socket of N4 or N4-u cannot be used.
    #[error("SMF cannot use {address} for {what}: {source}")]
    Socket {
        /// The key: `smf.pfcp` or `smf.gtpu`.
        what: &'static str,
        /// Configured address.
        address: std::net::SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Starts an SMF. It serves at once. Sessions need a UPF; the SMF tries to associate with one until it
/// succeeds.
///
/// # Errors
/// The configuration is invalid, or an address or socket cannot be used.
pub fn start(config: Config, env: Env) -> Boxed<'static, Result<Running, StartError>> {
    Box::pin(async move {
        config.validate()?;
        let mut instance = Instance::bind(NfType::Smf, config.sbi, &env).await?;
        // They end when this is dropped.
        let mut tasks = JoinSet::new();
        let socket = |what, address| move |source| StartError::Socket { what, address, source };
        let (n4, events) =
            N4::start(&config.n4(), &mut tasks).await.map_err(socket("smf.pfcp", config.pfcp))?;
        let gtpu = net::udp::bind(config.gtpu).await.map_err(socket("smf.gtpu", config.gtpu))?;
        instance.profile().s_nssais.clone_from(&config.slices);
        instance.profile().smf_info = Some(smf_info(&config));
        let (restarts, started) = instance.watch(&[NfType::Amf, NfType::Pcf]);
        let networks = config.dnn.iter().map(|dnn| (dnn.name.clone(), Network::new(dnn.clone()))).collect();
        let smf = Arc::new(Smf {
            id: instance.id(),
            api_root: instance.api_root(),
            client: instance.client(),
            restarts,
            n4,
            gtpu,
            networks,
            sessions: context::Sessions::default(),
            samples: samples::Samples::default(),
            config,
        });
        tasks.spawn(n4u::run(smf.clone()));
        tasks.spawn(handle_events(smf.clone(), events));
        tasks.spawn(procedure::peer_restart::run(smf.clone(), started));
        instance.prepare::<sbi::op::udm::GetSmData>();
        instance.prepare::<sbi::op::udm::RegisterSmf>();
        instance.prepare::<sbi::op::pcf::CreateSmPolicy>();
        instance.prepare::<sbi::op::amf::N1N2MessageTransfer>();
        let stopping = instance.stopping();
        instance.spawn(async move {
            stopping.wait().await;
            drop(tasks);
        });
        Ok(instance.start(service::router(smf.clone()), oam::routes(smf))?)
    })
}

/// Every slice offers every data network.
fn smf_info(config: &Config) -> SmfInfo {
    let networks =
        || config.dnn.iter().map(|dnn| DnnSmfInfoItem { dnn: dnn.name.clone(), other: Default::default() });
    let item = |s_nssai| SNssaiSmfInfoItem { s_nssai, dnn_smf_info_list: networks().collect() };
    SmfInfo {
        s_nssai_smf_info_list: config.slices.iter().copied().map(item).collect(),
        tai_list: Vec::new(),
        other: Default::default(),
    }
}

/// Handles requests of UPFs, each on a task of its own, so that a slow session does not delay others.
async fn handle_events(smf: Arc<Smf>, mut events: mpsc::Receiver<N4Event>) {
    while let Some(event) = events.recv().await {
        let smf = smf.clone();
        match event {
            N4Event::Report { id, seid, report } => {
                tokio::spawn(procedure::reports::handle(smf, id, seid, report));
            }
            N4Event::Restore { upf, lost } => {
                tokio::spawn(procedure::restoration::restore(smf, upf, lost));
            }
            N4Event::Malformed { id, seid, error } => {
                tokio::spawn(async move {
                    let session = smf.sessions.by_seid(seid);
                    let up_seid = match session {
                        Some(session) => {
                            let upf = session.state.lock().await.upf.filter(|upf| upf.address == id.peer);
                            upf.map_or(0, |upf| upf.seid)
                        }
                        None => 0,
                    };
                    if let Some(cause) = error.cause() {
                        smf.n4.reject(id, up_seid, cause, error.offending_ie());
                    }
                });
            }
        }
    }
}
