//! User plane function: N4 and the host pipeline.
//!
//! ```text
//!  N4 (PFCP) ──► n4: rules ──compile──► Session ──publish──► tables
//!                                                              │ load
//!  interfaces with tunnels  ──► worker "upf-tunnels":  parse → look up → execute ──► all interfaces
//!  interfaces of networks   ──► worker "upf-networks": the same stages           ──► all interfaces
//! ```
//! With `upf.workers.count` there are so many workers, which share the packets of all interfaces ([`ports`]).
//!
//! Control compiles, data executes. The N4 task is the only writer. Workers read what it has published
//! ([`rcu`]), never lock, and never allocate for a packet that they forward (a packet to be buffered is
//! copied). Every packet is sent or counted under one [`telemetry::DropReason`].
//!
//! Read first: [`plan`] (what a session does with packets), [`session`] (what workers execute), then [`pipeline`] and [`n4`].
#![forbid(unsafe_code)]

pub mod bridge;
pub mod config;
pub mod interface;
pub mod interfaces;
pub mod mailbox;
pub mod n4;
pub mod n6;
pub mod pipeline;
pub mod plan;
pub mod ports;
pub mod random;
mod references;
pub mod routes;
pub mod session;
pub mod state;
pub mod stats;
pub mod tables;
mod upkeep;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use net::task::Boxed;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub use config::{Config, ConfigError};
use interfaces::Interfaces;
use n4::{Query, Wiring};
use n6::{Devices, N6};
use path::Worker;
use pipeline::Pipeline;
use pipeline::guard::Guard;
use pipeline::links::Links;
use pktio::capture::Taps;
use ports::PortError;
use stats::WorkerStats;
use tables::Tables;
use upkeep::Addresses;

/// Packet events that wait for the N4 task. Further events are lost, which is harmless as their causes repeat.
const EVENTS: usize = 256;
/// Queries that wait for the N4 task.
const QUERIES: usize = 16;

/// Why the UPF could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The N4 socket could not be opened.
    #[error("cannot serve PFCP on {address} (upf.pfcp): {error}")]
    Pfcp {
        /// Address that was asked for.
        address: SocketAddr,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The ports of the interfaces could not be opened.
    #[error(transparent)]
    Ports(#[from] PortError),
    /// The machine's addresses, which UEs must not reach, could not be listed.
    #[error("cannot list this machine's addresses: {0}")]
    Addresses(io::Error),
    /// The tables cannot reserve their addresses.
    #[error(
        "the user plane cannot reserve addresses for its tables; {0}, set it to unlimited (`ulimit -v unlimited`, or \
         LimitAS=infinity of systemd): only what sessions need becomes memory"
    )]
    NoAddresses(AddressLimit),
    /// The cores of the configuration cannot be used.
    #[error("upf.workers.cores: {0}")]
    Cores(String),
    /// A thread could not be started.
    #[error("cannot start the user plane: {0}")]
    Worker(io::Error),
}

/// Octets of addresses that this process may have, if there is a limit.
#[derive(Debug)]
pub struct AddressLimit(Option<u64>);

impl std::fmt::Display for AddressLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(octets) => write!(f, "the limit of addresses (RLIMIT_AS) is {} MB", octets >> 20),
            None => f.write_str("the kernel gives no reason; if there is a limit of addresses (RLIMIT_AS)"),
        }
    }
}

/// A running UPF. Dropping it stops it; [`Upf::stop`] also waits.
#[derive(Debug)]
pub struct Upf {
    handle: Handle,
    stop: watch::Sender<bool>,
    n4: Option<JoinHandle<()>>,
    /// Before `networks`, as fields are dropped in order: workers must end before the devices that they use.
    workers: Vec<Worker>,
    networks: Vec<N6>,
    /// Follows addresses and repairs devices.
    keeper: JoinHandle<()>,
}

/// Queries to a running UPF, from any task, for the OAM interface and the dashboard.
#[derive(Clone, Debug)]
pub struct Handle {
    stats: Arc<[WorkerStats]>,
    queries: mpsc::Sender<Query>,
    config: Arc<Config>,
    interfaces: Arc<Interfaces>,
}

/// Starts a UPF in the calling thread's network namespace: first the interfaces, N6 devices before others, then workers, and N4
/// last, so that a CP function only finds a UPF that works. Needs a tokio runtime and CAP_NET_ADMIN.
pub fn start(config: Config) -> Boxed<'static, Result<Upf, StartError>> {
    start_captured(config, None)
}

/// As [`start`], with taps for a capture on the ports that go past the kernel.
pub fn start_captured(config: Config, taps: Option<Taps>) -> Boxed<'static, Result<Upf, StartError>> {
    Box::pin(async move {
        config.validate()?;
        config.workers.check_cores().map_err(StartError::Cores)?;
        let config = Arc::new(config);
        let tables = Arc::new(Tables::new(&config));
        if !tables.has_addresses() {
            return Err(StartError::NoAddresses(AddressLimit(rcu::address_limit())));
        }
        let interfaces = Arc::clone(tables.interfaces());
        let (opened, networks) = ports::open(&config, &interfaces, taps.as_ref()).await?;
        let guard = Arc::new(Guard::new(&config, []));
        // After the N6 devices, because their addresses are among those listed.
        let addresses = Addresses::new(Arc::clone(&config), Arc::clone(&guard), Arc::clone(&tables))
            .map_err(StartError::Addresses)?;
        let socket = net::udp::bind_with(config.pfcp, net::udp::Options::CONTROL)
            .await
            .map_err(|error| StartError::Pfcp { address: config.pfcp, error })?;

        let links = Links::find(&interfaces);
        let stats: Arc<[WorkerStats]> =
            opened.workers.iter().map(|_| WorkerStats::new(&interfaces)).collect();
        let (event_sender, events) = mpsc::channel(EVENTS);
        config.workers.check_number(opened.workers.len()).map_err(StartError::Cores)?;
        let readers = |input| opened.workers.iter().filter(|worker| worker.inputs.contains(&input)).count();
        if (0..interfaces.len()).any(|input| readers(input) > 1) {
            tables.share_between(opened.workers.len() as u32);
        }
        let restoration = Duration::from_secs(config.restoration_s.into());
        let pipeline = |number| {
            let mut pipeline = Pipeline::new(
                number,
                Arc::clone(&tables),
                Arc::clone(&stats),
                event_sender.clone(),
                Arc::clone(&guard),
            );
            pipeline.set_links(links.clone());
            pipeline.keep_quiet_until(net::time::now_ns() + restoration.as_nanos() as u64);
            pipeline
        };
        let pipelines = (0..opened.workers.len()).map(pipeline);
        let workers =
            path::start_all(opened.workers, &config.workers, pipelines).map_err(StartError::Worker)?;

        let (query_sender, queries) = mpsc::channel(QUERIES);
        let (stop, stopped) = watch::channel(false);
        let wiring = Wiring { socket, signalling: opened.signalling, tables, events, queries, stop: stopped };
        let n4 = tokio::spawn(n4::serve(Arc::clone(&config), wiring));
        let devices = Devices::new(Arc::clone(&interfaces), &networks);
        let keeper = tokio::spawn(upkeep::run(addresses, devices, stop.subscribe()));
        let handle = Handle { stats, queries: query_sender, config, interfaces };
        Ok(Upf { handle, stop, n4: Some(n4), workers, networks, keeper })
    })
}

impl Upf {
    /// A handle for queries.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until a part of the UPF has ended without being stopped. The N4 task's knowledge of its sessions
    /// is then lost: packets are still forwarded by rules that nobody can change or charge. Stop this UPF and
    /// start it again.
    pub async fn failed(&mut self) {
        match &mut self.n4 {
            Some(n4) => {
                let ended = n4.await;
                self.n4 = None;
                tracing::error!(?ended, "N4 is not served any more");
            }
            None => std::future::pending().await,
        }
    }

    /// Stops N4, then the workers, then removes the N6 devices.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        if let Some(n4) = self.n4.take()
            && let Err(error) = n4.await
        {
            tracing::error!(%error, "the N4 task did not end well");
        }
        for worker in &mut self.workers {
            worker.stop();
        }
        // The devices go when their last owner is dropped.
        let _ = self.keeper.await;
        self.networks.clear();
    }
}

impl Handle {
    /// `GET /stats`: packets and octets per interface, drops by reason, GTP-U signalling.
    pub fn stats(&self) -> Value {
        stats::json(&self.stats, &self.interfaces)
    }

    /// `GET /graph`: what each node of the packet path has done.
    pub fn graph(&self) -> Value {
        pipeline::graph::json(&self.stats)
    }

    /// `GET /sessions`: all sessions with addresses, tunnels and traffic. Empty once the UPF has stopped.
    pub async fn sessions(&self) -> Value {
        self.ask(Query::Sessions).await.unwrap_or_else(|| json!([]))
    }

    /// `GET /status`: addresses, associations, number of sessions, PFCP counters.
    pub async fn status(&self) -> Value {
        let mut status = json!({
            "nf": "upf",
            "pfcp_address": self.config.pfcp.to_string(),
            "interfaces": self.interfaces.iter().map(interface).collect::<Vec<_>>(),
            "dnn": self.config.dnn.iter().map(|dnn| dnn.name.to_string()).collect::<Vec<_>>(),
        });
        let n4 = self.ask(Query::Status).await;
        status["running"] = n4.is_some().into();
        if let (Some(status), Some(Value::Object(n4))) = (status.as_object_mut(), n4) {
            status.extend(n4);
        }
        status
    }

    async fn ask(&self, query: impl FnOnce(oneshot::Sender<Value>) -> Query) -> Option<Value> {
        let (reply, answer) = oneshot::channel();
        self.queries.send(query(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// An interface for operators.
fn interface(interface: &interfaces::Interface) -> Value {
    json!({
        "name": interface.name(),
        "role": interface.role().name(),
        "network_instance": interface.network_instance(),
        "gtpu": interface.config.link.gtpu.map(|gtpu| gtpu.to_string()),
        "backend": interface.config.link.backend.to_string(),
        "device": Some(interface.config.link.device_name()).filter(|device| !device.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An N4 task that ends by itself is noticed; queries get an answer, and the UPF can still be stopped.
    #[tokio::test]
    async fn the_end_of_the_n4_task_is_reported() {
        let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "dnn": []}"#;
        let config: Arc<Config> = Arc::new(serde_json::from_str(text).unwrap());
        let (queries, query) = mpsc::channel(1);
        let (stop, mut stopped) = watch::channel(false);
        let n4 = tokio::spawn(async move {
            let _ = stopped.changed().await;
            drop(query);
            panic!("as a defect would");
        });
        let interfaces = Arc::new(Interfaces::of(&config));
        let handle = Handle { stats: Arc::new([]), queries, config, interfaces };
        let (workers, networks, keeper) = (Vec::new(), Vec::new(), tokio::spawn(async {}));
        let mut upf = Upf { handle, stop, n4: Some(n4), workers, networks, keeper };
        let moment = Duration::from_millis(20);
        assert!(net::time::timeout(moment, upf.failed()).await.is_err(), "it goes on");
        upf.stop.send(true).unwrap();
        net::time::timeout(Duration::from_secs(5), upf.failed()).await.unwrap();
        assert_eq!(upf.handle().status().await["running"], false);
        assert!(net::time::timeout(moment, upf.failed()).await.is_err(), "reported once");
        upf.stop().await;
    }
}
