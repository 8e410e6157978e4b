//! The associations with the configured UPFs (TS 29.244 §6.2.6), and what is known of each UPF.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use net::time;
use pfcp::message::{AssociationSetupRequest, AssociationSetupResponse};
use pfcp::{CpFunctionFeatures, Message, UpFunctionFeatures};
use tokio::sync::Notify;

use crate::{N4, N4Error, State, UpfStatus};

/// Pause between attempts to associate.
const RETRY: Duration = Duration::from_secs(1);

/// A configured UPF.
pub(crate) struct Upf {
    pub address: SocketAddr,
    /// The association was set up and has not been lost since.
    pub associated: bool,
    /// The UPF answers heartbeats.
    alive: bool,
    /// The UPF has lost its sessions since the last [`crate::N4Event::Restore`].
    lost_sessions: bool,
    /// How often the UPF was associated again after losing its sessions; see [`N4::epoch`].
    epoch: u64,
    features: UpFunctionFeatures,
    wake: Arc<Notify>,
}

impl Upf {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            associated: false,
            alive: true,
            lost_sessions: false,
            epoch: 0,
            features: UpFunctionFeatures::default(),
            wake: Arc::new(Notify::new()),
        }
    }

    /// Whether it can serve sessions.
    fn is_up(&self) -> bool {
        self.associated && self.alive
    }

    /// The association is lost, and with it the sessions. The task of the UPF sets it up again.
    fn lose(&mut self) {
        self.lost_sessions |= self.associated;
        self.associated = false;
        self.wake.notify_one();
    }
}

impl State {
    /// A UPF has another recovery time stamp than before.
    pub fn restarted(&mut self, peer: IpAddr) {
        self.upfs_at(peer).for_each(Upf::lose);
    }

    /// A UPF answers heartbeats again, or does not answer them any more.
    pub fn set_alive(&mut self, peer: IpAddr, alive: bool) {
        for upf in self.upfs_at(peer) {
            upf.alive = alive;
            upf.wake.notify_one();
        }
    }

    fn upfs_at(&mut self, peer: IpAddr) -> impl Iterator<Item = &mut Upf> {
        self.upfs.iter_mut().filter(move |upf| upf.address.ip() == peer)
    }
}

impl N4 {
    /// The UPF for a new session: the first one that is associated and answers.
    ///
    /// # Errors
    /// [`N4Error::NoUpf`] if none is.
    pub fn select_upf(&self) -> Result<SocketAddr, N4Error> {
        let state = self.lock();
        state.upfs.iter().find(|upf| upf.is_up()).map(|upf| upf.address).ok_or(N4Error::NoUpf)
    }

    /// Whether a UPF is associated and answers.
    pub fn is_up(&self, upf: SocketAddr) -> bool {
        self.lock().upfs.iter().any(|other| other.address == upf && other.is_up())
    }

    /// A number that changes each time a UPF is associated again after it lost its sessions. A session
    /// set up in the present epoch needs no restoration.
    pub fn epoch(&self, upf: SocketAddr) -> u64 {
        self.lock().upfs.iter().find(|other| other.address == upf).map_or(0, |upf| upf.epoch)
    }

    /// The status of every configured UPF.
    pub fn status(&self) -> Vec<UpfStatus> {
        let state = self.lock();
        let stamp =
            |upf: &Upf| state.endpoint.peer_recovery_time_stamp(upf.address.ip()).map(|stamp| stamp.0);
        state
            .upfs
            .iter()
            .map(|upf| UpfStatus {
                address: upf.address,
                associated: upf.is_up(),
                recovery_time_stamp: stamp(upf),
            })
            .collect()
    }

    /// The UPF reports that it has no association with us: it restarted and we did not notice.
    pub(crate) fn lose_association(&self, address: SocketAddr) {
        let mut state = self.lock();
        if let Some(upf) = state.upfs.iter_mut().find(|upf| upf.address == address && upf.associated) {
            upf.lose();
        }
    }

    /// Keeps the association with one UPF (§6.2.6). A UPF that answers no heartbeat is also asked for a
    /// new association until it answers either: after a restart it may ignore heartbeats of CP
    /// functions without association.
    pub(crate) async fn associate(self, upf: SocketAddr) {
        loop {
            let (associated, wake) = {
                let state = self.lock();
                let Some(upf) = state.upfs.iter().find(|other| other.address == upf) else { return };
                (upf.is_up(), upf.wake.clone())
            };
            if associated {
                wake.notified().await;
                continue;
            }
            let request = AssociationSetupRequest {
                node_id: self.inner.local.ip().into(),
                recovery_time_stamp: self.inner.recovery,
                cp_function_features: Some(CpFunctionFeatures::default()),
                ..Default::default()
            };
            match self.ask(upf, None, request.into()).await {
                Ok(Message::AssociationSetupResponse(response)) => self.associated(upf, &response),
                Ok(_) => time::sleep(RETRY).await,
                Err(N4Error::Stopped) => return,
                Err(error) => {
                    tracing::warn!(%upf, %error, "PFCP association not set up; trying again");
                    time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Records that an association was set up. Lost sessions are restored now.
    fn associated(&self, address: SocketAddr, response: &AssociationSetupResponse) {
        let mut state = self.lock();
        let Some(upf) = state.upfs.iter_mut().find(|upf| upf.address == address) else { return };
        upf.features = response.up_function_features.unwrap_or_default();
        tracing::info!(upf = %address, features = ?upf.features, "PFCP association is set up");
        if !upf.features.contains(UpFunctionFeatures::FTUP) {
            tracing::warn!(upf = %address, "UPF does not say that it allocates F-TEIDs; it is asked to all the same");
        }
        // If there was an association before, the UPF may have deleted its sessions (§6.2.6.2.2).
        let repeated = std::mem::replace(&mut upf.associated, true);
        upf.alive = true;
        let lost = std::mem::take(&mut upf.lost_sessions);
        if lost {
            upf.epoch += 1;
        }
        if lost || repeated {
            self.restore(&mut state, address, lost);
        }
    }
}
