//! Release Access Bearers (TS 29.274 §7.2.21, TS 23.401 §5.3.5): the UE is idle, and its downlink packets are buffered.

use std::net::IpAddr;
use std::sync::Arc;

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::ReleaseAccessBearersResponse;
use gtpv2c::value::{Cause, CauseValue};
use telemetry::counters::Counter;

use super::{Subject, cause_of, find, modify};
use crate::context::{Gateway, Paging, UeState};
use crate::contexts;
use crate::rules::{self, Downlink};

static RELEASED: Counter = Counter::new("epc_access_bearers_released");

/// Answers a request.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32) {
    let own = teid;
    let (teid, cause) = release(&gateway, id.peer.ip(), teid).await;
    contexts::save(&gateway, own).await;
    let recovery = Some(gateway.gtpc.restart_counter());
    gateway.gtpc.respond(id, teid, ReleaseAccessBearersResponse { cause, recovery, ..Default::default() });
}

async fn release(gateway: &Gateway, peer: IpAddr, teid: u32) -> (u32, Cause) {
    // Only an MME sends it.
    let subject = gateway.ues.by_teid(teid).map(Subject::Ue);
    let (mut state, mme) = match find(subject.as_ref(), peer).await {
        Ok(found) => found,
        Err(refusal) => return refusal,
    };
    let result = buffer(gateway, &mut state).await;
    RELEASED.inc();
    (mme.teid, result.map_or_else(cause_of, |()| CauseValue::ACCEPTED).into())
}

/// Buffers all downlink packets of a UE; the first one is reported.
pub(super) async fn buffer(gateway: &Gateway, state: &mut UeState) -> Result<(), n4::N4Error> {
    state.set_paging(Paging::No);
    let mut result = Ok(());
    for pdn in state.served() {
        pdn.bearers.iter_mut().for_each(|bearer| bearer.access = None);
        let all: Vec<_> = pdn.bearers.iter().map(|bearer| (bearer.slot, Downlink::Buffered)).collect();
        // The UPF of another PDN connection may answer.
        result = result.and(modify(gateway, pdn, rules::change_downlink(pdn.role, all)).await.map(drop));
    }
    result
}
