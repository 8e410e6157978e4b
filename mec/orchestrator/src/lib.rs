//! The orchestrator of a mobile edge: it starts anchors on edge hosts, and moves users to them and back (MEO-1 to MEO-7).
//!
//! It calls the controller's REST API, and knows neither switches nor control messages: the controller replicates and diverts. A request
//! to `POST /v1/moves` (`rest.rs`) becomes a move (`request.rs`), which a task carries through its stages (`moves.rs`). All that is
//! known is in a journal (`model.rs`, `core.rs`), so that a move goes on, or is undone, after a kill at any instant. Looks (`look.rs`)
//! compare the controller and the hosts with it. Anchors are started by drivers (`driver/`). [ADR 0034] has the reasons.
//!
//! Invariants: the original anchor is never stopped or paused, and always has its users' state, so giving a user back is possible at
//! any time. A user is diverted only to a host that has its state, and its state there is removed only when it is not diverted there.
//! A user is in one unfinished move at most.
//!
//! Read first: `moves.rs`.
//!
//! [ADR 0034]: ../../../docs/adr/0034-a-move-is-a-journal-of-repeatable-stages.md
#![forbid(unsafe_code)]

pub mod config;
pub mod controller;
mod core;
pub mod driver;
mod look;
pub mod model;
mod moves;
pub mod request;
pub mod rest;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use net::task::Boxed;
use net::time::{self, Duration};
use nf::rest::RestServer;
use store::journal::{Journal, JournalError};

pub use crate::config::{BadConfig, Config};
use crate::core::Core;
use crate::driver::Drivers;
use crate::driver::namespace::Processes;
use crate::model::State;

/// The target that stands for users' original anchors.
pub const ORIGIN: &str = "origin";

/// How often a state file in use is tried.
const OPEN_TRIES: usize = 10;

/// Why the orchestrator cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error("mec.orchestrator.{0}")]
    Config(#[from] BadConfig),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] JournalError),
    /// Users are at a host that is not configured.
    #[error("{}: users are at the host `{host}`, or on the way there, which is not in mec.orchestrator.hosts: put it back until they are moved", path.display())]
    UnknownHost {
        /// The state file.
        path: PathBuf,
        /// The host.
        host: String,
    },
    /// An address cannot be used.
    #[error("mec.orchestrator.rest: {address}: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
}

/// A running orchestrator; dropping it stops it. Anchors and users stay as they are.
pub struct Orchestrator {
    core: Arc<Core>,
    rest: RestServer,
}

impl std::fmt::Debug for Orchestrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orchestrator").field("rest", &self.rest).finish_non_exhaustive()
    }
}

impl Orchestrator {
    /// Starts it: goes on with moves that have not ended. `program` is `godwit`, which anchors are started from, and `run_dir` the
    /// folder of their files.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        config: Config,
        program: PathBuf,
        run_dir: PathBuf,
    ) -> Boxed<'static, Result<Orchestrator, StartError>> {
        Self::start_with(config, Drivers::new(Processes::new(program, run_dir)))
    }

    /// Starts it with other drivers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(config: Config, drivers: Drivers) -> Boxed<'static, Result<Orchestrator, StartError>> {
        Box::pin(async move {
            config.check()?;
            let (journal, state) = open(&config.state).await?;
            if let Some(host) = hosts_of(&state).find(|name| config.host(name).is_none()) {
                return Err(StartError::UnknownHost { path: config.state, host: host.clone() });
            }
            let unfinished: Vec<u64> = state.unfinished().map(|one| one.id).collect();
            let address = config.rest;
            let core = Arc::new(Core::new(config, drivers, journal, state));
            let api = Arc::new(rest::Api::new(core.clone()));
            let answer = move |request| {
                let api = api.clone();
                async move { api.answer(request).await }
            };
            let rest = RestServer::start(address, rest::MAX_BODY, answer)
                .await
                .map_err(|error| StartError::Address { address, error })?;
            for id in unfinished {
                core.spawn(moves::run(core.clone(), id));
            }
            core.spawn(look::run(core.clone()));
            Ok(Orchestrator { core, rest })
        })
    }

    /// Where the API is served.
    pub fn rest(&self) -> SocketAddr {
        self.rest.address()
    }
}

/// Opens the state file. The lock of a life that was just killed may last for a moment.
async fn open(path: &Path) -> Result<(Journal<State>, State), JournalError> {
    for _ in 0..OPEN_TRIES {
        match Journal::open(path) {
            Err(JournalError::InUse { .. }) => time::sleep(Duration::from_millis(100)).await,
            opened => return opened,
        }
    }
    Journal::open(path)
}

/// Hosts that users or moves under way name.
fn hosts_of(state: &State) -> impl Iterator<Item = &String> {
    let of_users =
        state.users.values().flat_map(|user| user.replicas.keys().chain(&user.on).chain(&user.waits_for));
    of_users.chain(state.unfinished().filter_map(|one| one.to.as_ref()))
}

impl Drop for Orchestrator {
    fn drop(&mut self) {
        self.core.stop();
    }
}

#[cfg(test)]
mod description;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
