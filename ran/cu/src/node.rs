//! A CU's user plane, running: its interfaces opened, its relay on a worker.

use path::Worker;
use pktio::capture::Taps;
use pktio::interface::{self, OpenError, Setup, Traffic};
use tokio::sync::mpsc;

use crate::config::Config;
use crate::user_plane::{Event, Interface, Refused, Role, UserPlane};

/// A running CU. It ends when this is dropped.
pub struct Node {
    /// Sets tunnels up.
    pub user_plane: UserPlane,
    /// What the worker has to say.
    pub events: mpsc::Receiver<Event>,
    pub(crate) workers: Vec<Worker>,
}

/// Why a CU did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error("cu.{0}")]
    Config(String),
    /// An interface could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There are too many interfaces.
    #[error("cu.f1u: {0}")]
    Interfaces(#[from] Refused),
    /// F1-C could not be opened.
    #[error("cu.f1c {address}: {source}; is the address of this host, and is no other CU running?")]
    F1c {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        source: net::sctp::BindError,
    },
    /// The worker's thread could not be started.
    #[error("cannot start the CU's worker: {0}; `cu.workers.cores` names the core on which it stays")]
    Worker(#[from] std::io::Error),
}

impl Node {
    /// Starts a CU in the calling thread's network namespace. `taps` copy the frames of devices that bypass the kernel.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &Config, taps: Option<&Taps>) -> Result<Node, StartError> {
        config.check().map_err(StartError::Config)?;
        config.workers.check_cores().map_err(|error| StartError::Config(format!("workers: {error}")))?;
        let (mut interfaces, mut links) = (Vec::new(), Vec::new());
        for link in config.links() {
            let role = match link.point {
                "n3" => Role::N3,
                _ if config.n3.is_none() && links.is_empty() => Role::Both,
                _ => Role::F1u,
            };
            let address = link.config.gtpu.map_or_else(|| [0; 4].into(), |gtpu| gtpu.ip());
            interfaces.push(Interface::new(&link.name, role, address));
            links.push(interface::Interface {
                place: format!("cu.{}", link.name),
                point: link.point,
                link: link.config.clone(),
                traffic: Traffic::Tunnels,
            });
        }
        let (user_plane, relay, events) = UserPlane::new(interfaces)?;
        let setup = Setup { section: "cu", workers: Some(1), dpdk: &config.dpdk, taps };
        let opened = interface::open(&setup, links)?;
        let workers = path::start_all(opened.workers, &config.workers, [relay])?;
        Ok(Node { user_plane, events, workers })
    }
}
