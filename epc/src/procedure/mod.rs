//! Procedures (TS 23.401), one file each. All of them answer by GTPv2-C; what they change on the UPF is in [`crate::rules`].

pub(crate) mod bearers;
pub(crate) mod create_session;
pub(crate) mod delete_session;
pub(crate) mod modify_bearer;
pub(crate) mod paging;
pub(crate) mod peer_restart;
pub(crate) mod release_access_bearers;
pub(crate) mod reports;
pub(crate) mod restoration;

use std::net::IpAddr;
use std::sync::Arc;

use gtpv2c::OffendingIe;
use gtpv2c::value::{Cause, CauseValue};
use n4::N4Error;
use pfcp::Message;
use pfcp::message::{SessionModificationRequest, SessionModificationResponse};
use tokio::sync::MutexGuard;

use crate::context::{Gateway, Pdn, Ue, UeState, is_from};

/// The cause for a refusal that names a missing conditional IE.
fn missing(ie_type: u8) -> Cause {
    let offending_ie = Some(OffendingIe::new(ie_type, 0));
    Cause { offending_ie, ..CauseValue::CONDITIONAL_IE_MISSING.into() }
}

/// The UE that a message is about, which its own MME has sent.
///
/// # Errors
/// There is no such UE, or another MME serves it. Beside the cause is the TEID for the answer, 0 if it is not known.
async fn find<'u>(ue: Option<&'u Arc<Ue>>, peer: IpAddr) -> Result<MutexGuard<'u, UeState>, (u32, Cause)> {
    let unknown = || (0, CauseValue::CONTEXT_NOT_FOUND.into());
    let state = ue.ok_or_else(unknown)?.state.lock().await;
    if state.gone {
        return Err(unknown());
    }
    if !is_from(state.mme, peer) {
        return Err((0, CauseValue::INVALID_PEER.into()));
    }
    Ok(state)
}

/// Changes a PDN connection on its UPF. If the UPF has lost it, it is set up again as it is now.
async fn modify(
    gateway: &Gateway,
    pdn: &mut Pdn,
    change: SessionModificationRequest,
) -> Result<Option<SessionModificationResponse>, N4Error> {
    // After a restart of the UPF its SEID may be that of another session.
    if pdn.upf.epoch != gateway.n4.epoch(pdn.upf.address) {
        return restoration::set_up_again(gateway, pdn).await.map(|()| None);
    }
    match gateway.n4.request(pdn.upf.address, pdn.seids(), change).await {
        Ok(Message::SessionModificationResponse(response)) => Ok(Some(response)),
        Ok(_) => Err(N4Error::Unusable),
        Err(N4Error::Refused(pfcp::Cause::SESSION_NOT_FOUND)) => {
            restoration::set_up_again(gateway, pdn).await.map(|()| None)
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
