//! Serving and packet data network gateway, in one or apart: the control of EPS sessions between an MME (S11, GTPv2-C), another gateway
//! (S5/S8, GTPv2-C) and the user plane of the 5G core (Sxa and Sxb, PFCP).
//!
//! Flow: message of a neighbour → [`signalling`] → a file of [`procedure`] → [`rules`], N4 → answer. Requests of UPFs arrive as
//! `n4::N4Event`. [`contexts`] gives them to other gateways. [`filters`] translates traffic flow templates, [`options`] answers what UEs ask for, [`n4u`] is the router of IPv6 PDN connections. For each PDN connection
//! this gateway is S-GW, P-GW or both ([`context::Role`]).
//!
//! Invariants: a UE's lock excludes concurrent procedures; an address belongs to at most one PDN connection; a PDN connection that
//! has ended has returned its address and its session on the UPF; a UE's lock is not held while a neighbour sets up or ends a PDN
//! connection; no input ends the process.
//!
//! Read first: [`context`], `procedure/create_session.rs`, [`rules`].
#![forbid(unsafe_code)]

mod bearer;
pub mod config;
mod context;
mod contexts;
mod filters;
mod n4u;
mod oam;
mod options;
mod procedure;
mod rules;
mod signalling;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use config::{ApnConfig, Config, ConfigError, Node};
use context::{Gateway, Network};
use gtpc::GtpcEvent;
use gtpv2c::Message;
use gtpv2c::endpoint::RequestId;
use gtpv2c::value::CauseValue;
use n4::{N4, N4Event};
use net::task::Boxed;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use procedure::commands::Command;
use procedure::*;

/// Why the gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error("{}.{error}", node.name())]
    Config {
        /// Which section it is.
        node: Node,
        /// The key and what is wrong.
        error: ConfigError,
    },
    /// A socket, or the file with the restart counter, cannot be used.
    #[error("the gateway cannot use {what}: {source}")]
    Unusable {
        /// The key with its value, or the file.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The database of contexts cannot be used.
    #[error("{}.contexts: {source}", node.name())]
    Contexts {
        /// Which section it is.
        node: Node,
        /// What is wrong with the database.
        source: store::StoreError,
    },
}

/// A running gateway, whatever it is. It ends when this is dropped; PDN connections stay on their UPFs, which notice.
pub struct Spgw {
    gateway: Arc<Gateway>,
    _tasks: JoinSet<()>,
}

impl Spgw {
    /// Starts a gateway of this kind. It serves at once. PDN connections need a UPF; the gateway tries to associate with one until it succeeds.
    /// `restarts` is the file with the restart counter.
    ///
    /// # Errors
    /// The configuration is invalid, or an address or the file cannot be used.
    pub fn start(node: Node, config: Config, restarts: &Path) -> Boxed<'_, Result<Spgw, StartError>> {
        Box::pin(async move {
            config.validate(node).map_err(|error| StartError::Config { node, error })?;
            let mut tasks = JoinSet::new();
            let unusable = |what: String| move |source| StartError::Unusable { what, source };
            let gtpc = signalling::start(config.gtpc, &config.timers, restarts, &mut tasks).await;
            let (gtpc, messages) = gtpc.map_err(unusable(format!(
                "{}.gtpc {} or {}",
                node.name(),
                config.gtpc,
                restarts.display()
            )))?;
            let n4_config = n4::Config {
                local: config.pfcp,
                upfs: config.upf.clone(),
                t1: Duration::from_millis(config.timers.pfcp_t1_ms),
                n1: config.timers.pfcp_n1,
                heartbeat_interval: Duration::from_millis(config.timers.pfcp_heartbeat_ms),
            };
            let n4 = N4::start(&n4_config, &mut tasks).await;
            let (n4, events) = n4.map_err(unusable(format!("{}.pfcp {}", node.name(), config.pfcp)))?;
            let gtpu = net::udp::bind(config.gtpu).await;
            let gtpu = gtpu.map_err(unusable(format!("{}.gtpu {}", node.name(), config.gtpu)))?;
            let contexts = contexts::open(config.contexts.as_deref()).await;
            let contexts = contexts.map_err(|source| StartError::Contexts { node, source })?;
            let transfer = match config.transfer {
                Some(address) => {
                    let listener = net::tcp::listen(address).await;
                    Some(listener.map_err(unusable(format!("{}.transfer {address}", node.name())))?)
                }
                None => None,
            };
            let networks =
                config.apn.iter().map(|apn| (apn.name.clone(), Network::new(apn.clone()))).collect();
            let gateway = Arc::new(Gateway {
                node,
                config,
                gtpc,
                n4,
                gtpu,
                networks,
                ues: context::Ues::default(),
                contexts,
                started: net::time::now(),
            });
            tasks.spawn(n4u::run(gateway.clone()));
            tasks.spawn(unclaimed::run(gateway.clone()));
            if let Some(listener) = transfer {
                tasks.spawn(contexts::transfer::run(gateway.clone(), listener));
            }
            tasks.spawn(handle_messages(gateway.clone(), messages));
            tasks.spawn(handle_events(gateway.clone(), events));
            Ok(Spgw { gateway, _tasks: tasks })
        })
    }

    /// What its administration socket serves.
    pub fn oam(&self) -> nf::Oam {
        oam::routes(self.gateway.clone())
    }

    /// What the administration socket answers at `/status`.
    pub fn status(&self) -> serde_json::Value {
        oam::show_status(&self.gateway)
    }

    /// Whether a UPF is associated and answers.
    pub fn has_upf(&self) -> bool {
        self.gateway.n4.select_upf().is_ok()
    }
}

/// Requests of MMEs that are treated at once; more are refused.
const AT_ONCE: usize = 16_384;

/// Handles what MMEs begin, each on a task of its own, so that a slow PDN connection does not delay others.
async fn handle_messages(gateway: Arc<Gateway>, mut messages: mpsc::Receiver<GtpcEvent>) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(event) = messages.recv().await {
        let gateway = gateway.clone();
        match event {
            GtpcEvent::Request { id, teid, message } => match room.clone().try_acquire_owned() {
                Ok(place) => {
                    tokio::spawn(async move {
                        request(gateway, id, teid, message).await;
                        drop(place);
                    });
                }
                Err(_) => gateway.gtpc.reject(id, 0, CauseValue::NO_RESOURCES),
            },
            GtpcEvent::Malformed { id, teid, error } => {
                tokio::spawn(malformed(gateway, id, teid, error));
            }
            GtpcEvent::Indication { peer, teid, message } => {
                if let Message::DownlinkDataNotificationFailureIndication(_) = message {
                    tokio::spawn(paging::failed(gateway, peer, teid));
                }
            }
            GtpcEvent::PeerRestarted { peer, since } => {
                tokio::spawn(peer_restart::handle(gateway, peer, since));
            }
        }
    }
}

async fn request(gateway: Arc<Gateway>, id: RequestId, teid: u32, message: Message) {
    contexts::fetch(&gateway, teid).await;
    match message {
        Message::CreateSessionRequest(request) => create_session::handle(gateway, id, teid, request).await,
        Message::ModifyBearerRequest(request) => match Subject::of(&gateway, teid) {
            Some(subject @ Subject::Pdn(..)) => {
                Box::pin(sgw_change::handle(gateway, id, subject, request)).await
            }
            _ => modify_bearer::handle(gateway, id, teid, request).await,
        },
        Message::DeleteSessionRequest(request) => delete_session::handle(gateway, id, teid, request).await,
        Message::ReleaseAccessBearersRequest(_) => release_access_bearers::handle(gateway, id, teid).await,
        Message::BearerResourceCommand(command) => {
            Box::pin(commands::handle(gateway, id, teid, Command::Resource(command))).await;
        }
        Message::ModifyBearerCommand(command) => {
            Box::pin(commands::handle(gateway, id, teid, Command::Modify(command))).await;
        }
        Message::DeleteBearerCommand(command) => {
            Box::pin(commands::handle(gateway, id, teid, Command::Delete(command))).await;
        }
        Message::CreateBearerRequest(_)
        | Message::UpdateBearerRequest(_)
        | Message::DeleteBearerRequest(_) => {
            Box::pin(serving::from_pgw(gateway, id, teid, message)).await;
        }
        // What neighbours do not send, and indirect forwarding.
        _ => {
            let peer = answers_to(&gateway, teid).await;
            gateway.gtpc.reject(id, peer, CauseValue::SERVICE_NOT_SUPPORTED);
        }
    }
}

/// The TEID for the answer to a message with this TEID; 0 if nobody has it.
async fn answers_to(gateway: &Gateway, teid: u32) -> u32 {
    match Subject::of(gateway, teid) {
        Some(subject) => subject.answers_to().await,
        None => 0,
    }
}

/// Refuses a request that cannot be decoded.
async fn malformed(gateway: Arc<Gateway>, id: RequestId, teid: u32, error: gtpv2c::DecodeError) {
    tracing::info!(peer = %id.peer, %error, "malformed GTPv2-C request");
    let teid = answers_to(&gateway, teid).await;
    if let Some(cause) = error.cause() {
        gateway.gtpc.reject(id, teid, cause);
    }
}

/// Handles requests of UPFs, each on a task of its own.
async fn handle_events(gateway: Arc<Gateway>, mut events: mpsc::Receiver<N4Event>) {
    while let Some(event) = events.recv().await {
        let gateway = gateway.clone();
        match event {
            N4Event::Report { id, seid, report } => {
                tokio::spawn(reports::handle(gateway, id, seid, report));
            }
            N4Event::Restore { upf, lost } => {
                tokio::spawn(restoration::restore(gateway, upf, lost));
            }
            N4Event::Malformed { id, error, .. } => {
                let cause = error.cause().unwrap_or(pfcp::Cause::MANDATORY_IE_INCORRECT);
                gateway.n4.reject(id, 0, cause, error.offending_ie());
            }
        }
    }
}
