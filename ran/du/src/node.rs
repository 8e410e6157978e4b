//! A DU's user plane, running: its interfaces opened, its graph on a worker.

use path::Worker;
use pktio::capture::Taps;
use pktio::interface::{self, OpenError, Setup, Traffic};
use std::net::SocketAddr;
use types::NrCellId;

use crate::{Config, Control, Events, Interface, Refused, Role, Settings, UserPlane};

/// A running DU. It ends when this is dropped.
pub struct Node {
    /// Sets UEs and bearers up.
    pub control: Control,
    /// What the worker has to say.
    pub events: Events,
    pub(crate) workers: Vec<Worker>,
}

/// Why a DU did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error("du.{0}")]
    Config(String),
    /// An interface could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The user plane refuses its settings.
    #[error("du: {0}")]
    Settings(#[from] Refused),
    /// The cell cannot be described to the CU.
    #[error("du.{0}")]
    Cell(#[from] crate::f1c::Invalid),
    /// The thread of the control plane could not be started.
    #[error("cannot start the DU's control plane: {0}")]
    Control(std::io::Error),
    /// The worker's thread could not be started.
    #[error("cannot start the DU's worker: {0}; `du.workers.cores` names the core on which it stays")]
    Worker(#[from] std::io::Error),
}

impl Node {
    /// Starts a DU's user plane in the calling thread's network namespace. `taps` copy the frames of devices
    /// that bypass the kernel; `seed` is what the radio link's losses and jitter follow from.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &Config, taps: Option<&Taps>, seed: u64) -> Result<Node, StartError> {
        config.check().map_err(StartError::Config)?;
        config.workers.check_cores().map_err(|error| StartError::Config(format!("workers: {error}")))?;
        let cell = NrCellId::new(config.cell).map_err(|error| StartError::Config(error.to_string()))?;
        let (mut interfaces, mut links) = (Vec::new(), Vec::new());
        for (name, link) in config.links() {
            let role = if name == "uu" { Role::Uu } else { Role::F1u };
            let local = link.gtpu.unwrap_or(SocketAddr::from(([0; 4], 0)));
            interfaces.push(Interface { name: name.to_owned(), role, local });
            links.push(interface::Interface {
                place: format!("du.{name}"),
                point: name,
                link: link.clone(),
                traffic: Traffic::Tunnels,
            });
        }
        let (downlink, uplink) = (config.radio.downlink.radio(), config.radio.uplink.radio());
        let settings = Settings { seed, downlink, uplink, ..Settings::new(cell, interfaces) };
        let (graph, control, events) = UserPlane::new(settings)?;
        let setup = Setup { section: "du", workers: Some(1), dpdk: &config.dpdk, taps };
        let opened = interface::open(&setup, links)?;
        let workers = path::start_all(opened.workers, &config.workers, [graph])?;
        Ok(Node { control, events, workers })
    }
}
