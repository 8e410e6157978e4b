//! Drivers: how the anchor of an edge host, and the agent beside it, are started and stopped (MEO-1).

pub mod namespace;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::config::Host;

/// What a driver does, when it is done.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, DriverError>> + Send + 'a>>;

/// Why a driver could not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// Others start and stop this anchor.
    #[error("the anchor of {0} is started and stopped by others (key `driver`)")]
    External(String),
    /// The system refuses.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// The system's error.
        error: String,
    },
}

/// Starts and stops anchors with their agents. Each call can be repeated, also by another life of this process.
pub trait Driver: Send + Sync {
    /// Starts what does not run. It need not answer yet when this returns.
    fn start<'a>(&'a self, host: &'a Host) -> Doing<'a, ()>;

    /// Whether the anchor runs; none: only others know.
    fn is_running<'a>(&'a self, host: &'a Host) -> Doing<'a, Option<bool>>;

    /// Stops what runs.
    fn stop<'a>(&'a self, host: &'a Host) -> Doing<'a, ()>;
}

/// For anchors that others start.
#[derive(Debug)]
pub struct External;

impl Driver for External {
    fn start<'a>(&'a self, _: &'a Host) -> Doing<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn is_running<'a>(&'a self, _: &'a Host) -> Doing<'a, Option<bool>> {
        Box::pin(async { Ok(None) })
    }

    fn stop<'a>(&'a self, host: &'a Host) -> Doing<'a, ()> {
        Box::pin(async { Err(DriverError::External(host.name.clone())) })
    }
}

/// The drivers of all hosts.
#[derive(Clone)]
pub struct Drivers {
    namespace: Arc<dyn Driver>,
}

impl std::fmt::Debug for Drivers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drivers").finish_non_exhaustive()
    }
}

impl Drivers {
    /// Drivers, with this one for the anchors that are not external.
    pub fn new(namespace: impl Driver + 'static) -> Drivers {
        Drivers { namespace: Arc::new(namespace) }
    }

    /// That of a host.
    pub fn of(&self, host: &Host) -> &dyn Driver {
        match host.driver {
            crate::config::Driver::External => &External,
            crate::config::Driver::Namespace(_) => &*self.namespace,
        }
    }
}
