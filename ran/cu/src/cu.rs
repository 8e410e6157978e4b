//! A whole CU, running.

use std::sync::Arc;

use net::sctp;
use net::task::Boxed;
use path::Worker;
use pktio::capture::Taps;
use tokio::task::JoinHandle;

use crate::dus::Du;
use crate::shared::Shared;
use crate::user_plane::UserPlane;
use crate::{Config, Node, StartError, amf, f1c, paths};

/// A running CU. [`Cu::shutdown`] ends it in order: UEs are released first.
pub struct Cu {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
    f1c: std::net::SocketAddr,
    _workers: Vec<Worker>,
}

/// What a CU is doing.
#[derive(Debug, Clone)]
pub struct Status {
    /// The AMF's name, while there is an association.
    pub amf: Option<String>,
    /// The DUs that are connected.
    pub dus: Vec<Arc<Du>>,
    /// UEs with a connection.
    pub ues: usize,
}

impl Cu {
    /// Starts a CU in the calling thread's network namespace: its user plane, F1-C, and N2, to which it connects again and again.
    /// `taps` copy the frames of devices that bypass the kernel.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start<'a>(config: &'a Config, taps: Option<&'a Taps>) -> Boxed<'a, Result<Cu, StartError>> {
        Box::pin(async move {
            let missing = |what: &str| StartError::Config(format!("{what} is missing"));
            let address =
                config.f1c.ok_or_else(|| missing("f1c, the address for DUs such as 127.0.0.1:38472,"))?;
            if config.n2.is_none() {
                return Err(missing("n2, with `address` and `amf`,"));
            }
            let Node { user_plane, events, workers } = Node::start(config, taps)?;
            let listener = sctp::Listener::bind(address, f1c::sctp_config(config.sctp))
                .await
                .map_err(|source| StartError::F1c { address, source })?;
            let f1c = listener.local();
            let shared = Arc::new(Shared::new(config.clone(), user_plane));
            let tasks = vec![
                tokio::spawn(f1c::run(Arc::clone(&shared), listener)),
                tokio::spawn(amf::run(Arc::clone(&shared))),
                tokio::spawn(paths::run(Arc::clone(&shared), events)),
            ];
            Ok(Cu { shared, tasks, f1c, _workers: workers })
        })
    }

    /// Where DUs connect.
    pub fn f1c(&self) -> std::net::SocketAddr {
        self.f1c
    }

    /// What it is doing.
    pub fn status(&self) -> Status {
        Status {
            amf: self.shared.amf().map(|gnb| gnb.amf_name().to_owned()),
            dus: self.shared.dus.all(),
            ues: self.shared.ue_count(),
        }
    }

    /// The user plane.
    pub fn user_plane(&self) -> &UserPlane {
        &self.shared.user_plane
    }

    /// Releases all UEs, and ends the associations.
    pub async fn shutdown(mut self) {
        self.shared.stopping.send_replace(true);
        for task in self.tasks.drain(..) {
            // A task that has failed has nothing left to do.
            let _ = task.await;
        }
    }
}

impl Drop for Cu {
    fn drop(&mut self) {
        self.shared.stopping.send_replace(true);
        // Their tasks would wait for ever for what the tasks below give them.
        self.shared.stop_ues();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
