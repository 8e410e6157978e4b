//! The SDN controller of a mobile edge: an OpenFlow server for many switches, and applications that know nothing of each other.
//!
//! ```text
//!  REST (rest.rs) ──► applications: forwarding.rs, diverting/, capture.rs
//!                        │ rules wanted, packets out        ▲ events
//!                        ▼                                  │
//!                     switch/fabric.rs: what is known and wanted of every switch
//!                        │ differences, in bundles          ▲
//!                        ▼                                  │
//!                     switch/server.rs, connection.rs ◄──OpenFlow 1.3──► switches
//! ```
//! What is captured goes on to the replicator of `mec/replication` (`replicas.rs`), which has sessions made at other anchors. It hears who is
//! diverted, and says which messages of anchors are to be intercepted, and what becomes of them.
//!
//! A user is steered by the rules of Table I of the paper that this follows, in the form of the switch: ours, or Open vSwitch
//! (`diverting/rules/`). Rules carry their application in the cookie, so that a controller that comes back finds them again and
//! sends only what differs; what is wanted is in a file (`diverting/journal.rs`, ADR 0030). Everything goes on without the controller,
//! except for learning.
//!
//! Invariants: an application never touches another one's rules; a request changes all that it names, or nothing; rules towards a new
//! anchor are complete before a packet finds them; queues, answers and stores are bounded.
//!
//! Read first: [`rule`], [`switch::fabric`], then [`diverting`].
#![forbid(unsafe_code)]

pub mod application;
pub mod capture;
pub mod config;
pub mod diverting;
mod forwarding;
pub mod frame;
pub mod replicas;
pub mod rest;
pub mod rule;
pub mod switch;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use net::task::Boxed;
use net::tcp;
use net::time::{self, Duration};
use nf::rest::RestServer;
use tokio::task::JoinHandle;

use application::Applications;
use diverting::journal::{Journal, JournalError};
use diverting::{Diverting, Stated, TargetState};
use rule::App;
use switch::{Fabric, server};

pub use config::Config;

/// Why the controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error("{0}")]
    Config(#[from] config::BadConfig),
    /// An address cannot be served.
    #[error("cannot serve {address} (key `{key}`): {error}")]
    Address {
        /// The key of the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// What is kept of sessions cannot be used.
    #[error("{0} (key `replication.records`)")]
    Replication(#[from] replicas::StartError),
    /// The state file cannot be used.
    #[error("{0}")]
    State(#[from] JournalError),
}

/// A running controller. Dropping it ends it; switches go on by their rules.
#[derive(Debug)]
pub struct Controller {
    applications: Arc<Applications>,
    fabric: Arc<Fabric>,
    diverting: Diverting,
    rest: RestServer,
    openflow: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl Controller {
    /// Starts with the request's word as confirmation of state (DIV-3).
    ///
    /// # Errors
    /// The configuration or the state file is wrong, or an address cannot be served.
    pub fn start(config: Config) -> Boxed<'static, Result<Controller, StartError>> {
        Self::start_with(config, Arc::new(Stated))
    }

    /// Starts; `target` confirms that anchors have the state of users.
    ///
    /// # Errors
    /// As [`Controller::start`].
    pub fn start_with(
        config: Config,
        target: Arc<dyn TargetState>,
    ) -> Boxed<'static, Result<Controller, StartError>> {
        Box::pin(async move {
            config.check()?;
            // A damaged file is found before anything is touched. It may be that of a controller that runs, so it is only read.
            Journal::check(&config.state)?;
            let config = Arc::new(config);
            let fabric =
                Fabric::new(config.switches.iter().map(|switch| (switch.datapath_id, switch.name.clone())));
            let (diverting, commands) = Diverting::new();
            let captures = Arc::new(capture::Store::new(config.clone()));
            let mut applications = Applications::new(fabric.clone());
            let of = config.clone();
            applications.add(App::Forwarding, move |context| forwarding::run(of.clone(), context));
            let replication = replicas::Replication::start(config.clone(), fabric.clone()).await?;
            let (of, heard) = (config.clone(), replication.clone());
            let hears: diverting::Hears = Arc::new(move |told| heard.told(told));
            applications.add(App::Diverting, move |context| {
                diverting::run(of.clone(), target.clone(), hears.clone(), commands.clone(), context)
            });
            let (of, store, hears) = (config.clone(), captures.clone(), replication.clone());
            applications.add(App::Capture, move |context| {
                capture::run(of.clone(), store.clone(), hears.clone(), context)
            });
            let applications = Arc::new(applications);
            let address = |key, address| move |error| StartError::Address { key, address, error };

            let listener =
                tcp::listen(config.openflow).await.map_err(address("openflow", config.openflow))?;
            let openflow = listener.local_addr().map_err(address("openflow", config.openflow))?;
            for app in &config.applications {
                applications.start(*app).await;
            }
            let api = Arc::new(rest::Api {
                config: config.clone(),
                fabric: fabric.clone(),
                applications: applications.clone(),
                diverting: diverting.clone(),
                known: rest::Known::default(),
                captures,
                replication,
            });
            let answer = move |request| {
                let api = api.clone();
                async move { api.answer(request).await }
            };
            let rest = RestServer::start(config.rest, rest::MAX_BODY, answer)
                .await
                .map_err(address("rest", config.rest))?;
            let echo = Duration::from_secs(config.echo_s);
            let serving = server::serve(listener, fabric.clone(), config.max_switches, echo);
            let mut tasks = vec![tokio::spawn(serving)];
            if config.audit_s != 0 {
                tasks.push(tokio::spawn(audit(fabric.clone(), Duration::from_secs(config.audit_s))));
            }
            Ok(Controller { applications, fabric, diverting, rest, openflow, tasks })
        })
    }

    /// Where switches connect.
    pub fn openflow(&self) -> SocketAddr {
        self.openflow
    }

    /// Where the API is served.
    pub fn rest(&self) -> SocketAddr {
        self.rest.address()
    }

    /// All switches.
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// The applications, to start and stop.
    pub fn applications(&self) -> &Applications {
        &self.applications
    }

    /// The diverting application.
    pub fn diverting(&self) -> &Diverting {
        &self.diverting
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Lets applications compare their rules with the switches' now and then.
async fn audit(fabric: Arc<Fabric>, every: Duration) {
    let mut ticks = time::interval(every);
    // The first one comes at once.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        fabric.audit();
    }
}
