//! Procedures (TS 23.401), one file each. All of them answer by GTPv2-C; what they change on the UPF is in [`crate::rules`].

pub(crate) mod bearers;
pub(crate) mod commands;
pub(crate) mod create_session;
pub(crate) mod delete_session;
pub(crate) mod modify_bearer;
pub(crate) mod paging;
pub(crate) mod peer_restart;
pub(crate) mod release_access_bearers;
pub(crate) mod reports;
pub(crate) mod restoration;
pub(crate) mod serving;
pub(crate) mod sgw_change;
pub(crate) mod unclaimed;
mod update_bearer;

use std::net::IpAddr;
use std::sync::Arc;

use gtpv2c::OffendingIe;
use gtpv2c::value::{Cause, CauseValue, FTeid};
use n4::N4Error;
use pfcp::Message;
use pfcp::message::{SessionModificationRequest, SessionModificationResponse};
use tokio::sync::MutexGuard;

use crate::context::{Gateway, Pdn, Peer, Role, Ue, UeState};

/// The cause for a refusal that names a missing conditional IE.
fn missing(ie_type: u8) -> Cause {
    let offending_ie = Some(OffendingIe::new(ie_type, 0));
    Cause { offending_ie, ..CauseValue::CONDITIONAL_IE_MISSING.into() }
}

/// What a message is about, by the TEID that it was sent to.
#[derive(Clone)]
pub(crate) enum Subject {
    /// S11: a UE, from its MME.
    Ue(Arc<Ue>),
    /// S5/S8: the PDN connection with this number, from its other gateway.
    Pdn(Arc<Ue>, u64),
}

impl Subject {
    /// `None`: nobody has this TEID.
    pub fn of(gateway: &Gateway, teid: u32) -> Option<Self> {
        let s11 = || gateway.ues.by_teid(teid).map(Self::Ue);
        s11().or_else(|| gateway.ues.by_number(teid).map(|(ue, number)| Self::Pdn(ue, number)))
    }

    pub fn ue(&self) -> &Arc<Ue> {
        match self {
            Self::Ue(ue) | Self::Pdn(ue, _) => ue,
        }
    }

    /// The neighbour's TEID; 0 if there is none.
    pub async fn answers_to(&self) -> u32 {
        let mut state = self.ue().state.lock().await;
        self.sender(&mut state).map_or(0, |peer| peer.f_teid.teid)
    }

    /// Whether its messages may be about this PDN connection.
    pub fn concerns(&self, pdn: &Pdn) -> bool {
        match self {
            Self::Ue(_) => pdn.role.is_sgw() || matches!(pdn.role, Role::Pgw { awaits_ue: true, .. }),
            Self::Pdn(_, number) => pdn.number == *number,
        }
    }

    /// Who may send messages about it.
    fn sender(&self, state: &mut UeState) -> Option<Peer> {
        match self {
            Self::Ue(_) => state.mme,
            Self::Pdn(_, number) => state.numbered(*number)?.role.s5_peer(),
        }
    }
}

/// What a message is about, if its own MME or gateway has sent it. Returns also where answers go.
///
/// # Errors
/// There is no such UE or PDN connection, or another neighbour serves it. Beside the cause is the TEID for the answer, 0 if it is
/// not known.
async fn find(
    subject: Option<&Subject>,
    from: IpAddr,
) -> Result<(MutexGuard<'_, UeState>, FTeid), (u32, Cause)> {
    let unknown = || (0, CauseValue::CONTEXT_NOT_FOUND.into());
    let subject = subject.ok_or_else(unknown)?;
    let mut state = subject.ue().state.lock().await;
    if state.gone {
        return Err(unknown());
    }
    match subject.sender(&mut state) {
        Some(peer) if peer.is_at(from) => Ok((state, peer.f_teid)),
        // It has ended while the UE was waited for.
        None if !state.pdns.iter().any(|pdn| subject.concerns(pdn)) => Err(unknown()),
        _ => Err((0, CauseValue::INVALID_PEER.into())),
    }
}

/// Changes a PDN connection on its UPF. If the UPF has lost it, it is set up again as it is now.
async fn modify(
    gateway: &Gateway,
    pdn: &mut Pdn,
    change: SessionModificationRequest,
) -> Result<Option<SessionModificationResponse>, N4Error> {
    // After a restart of the UPF its SEID may be that of another session.
    if pdn.upf.epoch != gateway.n4.epoch(pdn.upf.address) {
        return Box::pin(restoration::set_up_again(gateway, pdn)).await.map(|()| None);
    }
    match gateway.n4.request(pdn.upf.address, pdn.seids(), change).await {
        Ok(Message::SessionModificationResponse(response)) => Ok(Some(response)),
        Ok(_) => Err(N4Error::Unusable),
        Err(N4Error::Refused(pfcp::Cause::SESSION_NOT_FOUND)) => {
            Box::pin(restoration::set_up_again(gateway, pdn)).await.map(|()| None)
        }
        Err(error) => Err(error),
    }
}

/// The cause towards the MME for what the UPF did.
fn cause_of(error: N4Error) -> CauseValue {
    match error {
        N4Error::NoUpf | N4Error::Refused(pfcp::Cause::NO_RESOURCES | pfcp::Cause::CONGESTION) => {
            CauseValue::NO_RESOURCES
        }
        N4Error::Failed(_) => CauseValue::REMOTE_PEER_NOT_RESPONDING,
        _ => CauseValue::SYSTEM_FAILURE,
    }
}
