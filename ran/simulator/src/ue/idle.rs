//! Idle mode: why a registered UE without connection needs one, and the procedure with which it gets
//! one.

use std::future::poll_fn;
use std::task::Poll;

use nas::{Message, PsiSet, RegistrationType, ServiceType};
use types::PduSessionId;

use super::{Failure, Ue};

/// Why an idle UE needs a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    /// The network paged it (TS 24.501 §5.6.2).
    Paged,
    /// Programs have sent packets on these sessions (§5.6.1.1 d).
    UplinkData(PsiSet),
    /// The radio connection was lost while these sessions had radio resources (§5.3.1.2).
    ConnectionLost(PsiSet),
    /// T3512 has expired (§5.5.1.3.1 d).
    PeriodicUpdate,
    /// The UE left its registration area (§5.5.1.3.1 a).
    Moved,
    /// The network has asked the UE to register (§5.4.4.3, §5.5.1.3.1 i).
    RegistrationRequested,
}

impl WakeReason {
    /// A short name for statistics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Paged => "paging",
            Self::UplinkData(_) => "uplink_data",
            Self::ConnectionLost(_) => "connection_lost",
            Self::PeriodicUpdate => "periodic_update",
            Self::Moved => "mobility_update",
            Self::RegistrationRequested => "registration_requested",
        }
    }
}

impl Ue {
    /// Waits, without connection, until the UE needs one. Cancel-safe: a reason that was returned and
    /// not acted on is returned again, except a page, which the network repeats.
    pub async fn idle(&self) -> WakeReason {
        if !self.registration_area.is_empty() && !self.registration_area.contains(&self.access.tai()) {
            return WakeReason::Moved;
        }
        if self.registration_requested {
            return WakeReason::RegistrationRequested;
        }
        if let Some(lost) = self.lost {
            let still = lost.iter().filter(|id| self.sessions.contains_key(id));
            return WakeReason::ConnectionLost(still.collect());
        }
        let paged = async {
            match &self.camping {
                Some(camping) => camping.paged().await,
                None => std::future::pending().await,
            }
        };
        let periodic = async {
            match (self.idle_since, self.periodic_update) {
                (Some(since), Some(t3512)) => net::time::sleep_until(since + t3512).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = paged => WakeReason::Paged,
            sessions = self.uplink_waiting() => WakeReason::UplinkData(sessions),
            () = periodic => WakeReason::PeriodicUpdate,
        }
    }

    /// Waits until programs have sent packets on sessions without radio resources, and returns those
    /// sessions.
    async fn uplink_waiting(&self) -> PsiSet {
        let waits = self.sessions.iter().map(|(id, session)| (*id, Box::pin(session.uplink_waiting())));
        let mut waits: Vec<(PduSessionId, _)> = waits.collect();
        poll_fn(move |context| {
            let mut waiting = PsiSet::default();
            for (id, wait) in &mut waits {
                if wait.as_mut().poll(context).is_ready() {
                    waiting.insert(*id);
                }
            }
            if waiting == PsiSet::default() { Poll::Pending } else { Poll::Ready(waiting) }
        })
        .await
    }

    /// Performs the procedure for a reason: a service request of the right type, or a registration
    /// update.
    ///
    /// # Errors
    /// Why the procedure failed. A UE that the network no longer knows is then deregistered.
    pub async fn wake_up(&mut self, why: WakeReason) -> Result<(), Failure> {
        match why {
            WakeReason::Paged => {
                self.service_request(ServiceType::MobileTerminated, PsiSet::default()).await.map(drop)
            }
            WakeReason::UplinkData(sessions) => {
                self.service_request(ServiceType::Data, sessions).await.map(drop)
            }
            WakeReason::ConnectionLost(sessions) => {
                let service =
                    if sessions == PsiSet::default() { ServiceType::Signalling } else { ServiceType::Data };
                self.service_request(service, sessions).await.map(drop)
            }
            WakeReason::PeriodicUpdate => self
                .update_registration(RegistrationType::PeriodicUpdating, PsiSet::default())
                .await
                .map(drop),
            WakeReason::Moved | WakeReason::RegistrationRequested => self
                .update_registration(RegistrationType::MobilityUpdating, PsiSet::default())
                .await
                .map(drop),
        }
    }

    /// Protects the first message of a connection: the information elements that may be sent in clear,
    /// and the complete message ciphered inside (TS 24.501 §4.4.6).
    pub(super) fn protect_initial(&mut self, message: &Message) -> Result<Vec<u8>, Failure> {
        let context = self.context.as_mut().ok_or(Failure::Missing("security context"))?;
        context.protect_initial(message).map_err(|error| Failure::Build(error.to_string()))
    }
}
