//! Delete Session (TS 29.274 §7.2.9.1, TS 23.401 §5.3.8): detach, or the end of one PDN connection.

use std::sync::Arc;

use gtpv2c::endpoint::RequestId;
use gtpv2c::ie;
use gtpv2c::message::{DeleteSessionRequest, DeleteSessionResponse};
use gtpv2c::value::{Cause, CauseValue};
use pfcp::message::SessionDeletionRequest;
use telemetry::counters::Counter;

use super::{find, missing};
use crate::context::{Gateway, Pdn, Ue, UeState};

static DELETED: Counter = Counter::new("epc_session_deleted");
static NOT_DELETED: Counter = Counter::new("epc_session_not_deleted_on_upf");

/// Answers a request.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32, request: DeleteSessionRequest) {
    let (teid, cause) = delete(&gateway, id, teid, &request).await;
    let recovery = Some(gateway.gtpc.restart_counter());
    gateway.gtpc.respond(id, teid, DeleteSessionResponse { cause, recovery, ..Default::default() });
}

async fn delete(gateway: &Gateway, id: RequestId, teid: u32, request: &DeleteSessionRequest) -> (u32, Cause) {
    let ue = gateway.ues.by_teid(teid);
    let mut state = match find(ue.as_ref(), id.peer.ip()).await {
        Ok(state) => state,
        Err(refusal) => return refusal,
    };
    let mme = state.mme.teid;
    let Some(linked) = request.linked_ebi else { return (mme, missing(ie::EBI)) };
    let is_it = |pdn: &Pdn| pdn.default_bearer().is_some_and(|bearer| bearer.ebi == linked);
    let Some(at) = state.pdns.iter().position(is_it) else {
        return (mme, CauseValue::CONTEXT_NOT_FOUND.into());
    };
    let pdn = state.pdns.remove(at);
    end(gateway, pdn).await;
    if let Some(ue) = &ue {
        forget_if_empty(gateway, ue, &mut state);
    }
    (mme, CauseValue::ACCEPTED.into())
}

/// Ends a PDN connection: on the UPF, then its addresses and its number are free. It ends here even if the UPF does not answer, and
/// may then keep the session until it restarts.
pub(crate) async fn end(gateway: &Gateway, pdn: Pdn) {
    // After a restart of the UPF its SEID may be that of another session.
    if pdn.upf.seid != 0 && pdn.upf.epoch == gateway.n4.epoch(pdn.upf.address) {
        let deleted = gateway.n4.request(pdn.upf.address, pdn.seids(), SessionDeletionRequest {}).await;
        if let Err(error) = deleted {
            NOT_DELETED.inc();
            tracing::debug!(%error, "session not deleted on its UPF");
        }
    }
    if let Some(network) = gateway.networks.get(&pdn.apn) {
        network.pool().release(net::time::now().into_std(), pdn.addresses);
    }
    gateway.ues.remove_pdn(pdn.number);
    DELETED.inc();
}

/// Ends all that a UE has.
pub(crate) async fn end_all(gateway: &Gateway, ue: &Ue, state: &mut UeState) {
    for pdn in std::mem::take(&mut state.pdns) {
        end(gateway, pdn).await;
    }
    forget_if_empty(gateway, ue, state);
}

/// A UE without PDN connections is forgotten.
pub(crate) fn forget_if_empty(gateway: &Gateway, ue: &Ue, state: &mut UeState) {
    if state.pdns.is_empty() && !state.gone {
        state.gone = true;
        gateway.ues.remove(ue);
    }
}
