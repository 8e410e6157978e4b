//! Identification (TS 24.501 §5.4.3): asks the UE for an identity.

use std::ops::ControlFlow;

use nas::{IdentityType, Message, MobileIdentity, gmm};

use crate::event::Arrival;
use crate::ue::{NoAnswer, Timer, Ue};

/// Asks for `identity_type` under T3570. Returns whatever the UE answers, which may be
/// [`MobileIdentity::None`].
pub(crate) async fn identification(
    ue: &mut Ue,
    identity_type: IdentityType,
) -> Result<MobileIdentity, NoAnswer> {
    let timer = Timer::ms("T3570", ue.amf.config.timers.t3570_ms);
    let request = Message::IdentityRequest(gmm::IdentityRequest { identity_type });
    ue.exchange(timer, &request, |arrival| match arrival {
        Arrival::Nas(Message::IdentityResponse(response)) => ControlFlow::Break(response.identity),
        other => ControlFlow::Continue(other),
    })
    .await
}
