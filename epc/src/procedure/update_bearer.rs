//! Changes of a dedicated bearer's filters and rates (TS 23.401 §5.4.5, TS 29.274 §7.2.15). The UPF gets them when UE and eNB have them.

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::*;
use gtpv2c::value::tft::{MAX_FILTERS, Operation, PacketFilter, Tft};
use gtpv2c::value::*;
use gtpv2c::{BearerInUpdateRequest, Message};
use telemetry::counters::Counter;

use super::{cause_of, modify};
use crate::bearer::{Bearer, Slot};
use crate::context::{Gateway, Pdn, Ue};
use crate::filters::Filter;

static UPDATED: Counter = Counter::new("epc_dedicated_bearer_updated");

/// What a UE wants of one of its dedicated bearers.
pub(super) struct Change {
    /// Default bearer of the PDN connection.
    pub linked: Ebi,
    pub ebi: Ebi,
    /// On the filters.
    pub operation: Operation,
    pub flow: Option<FlowQos>,
    /// The UE's transaction.
    pub pti: Pti,
    /// The command by which it has asked.
    pub command: RequestId,
}

/// Changes a bearer.
///
/// # Errors
/// The cause for which P-GW, MME or UE refused it.
pub(super) async fn update(gateway: &Gateway, ue: &Ue, change: Change) -> Result<(), Cause> {
    let Change { linked, ebi, operation, flow, pti, command } = change;
    let (peer, number, former, wanted, request) = {
        let mut state = ue.state.lock().await;
        let mme = state.mme;
        let pdn = state.pdn(linked).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        let peer = pdn.upward(mme).filter(|_| pdn.role.is_pgw()).ok_or(CauseValue::SERVICE_NOT_SUPPORTED)?;
        let mut dedicated = pdn.bearers.iter().filter(|bearer| bearer.slot != Slot::DEFAULT);
        let former = dedicated.find(|bearer| bearer.ebi == ebi).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        let mut wanted = former.clone();
        let operation = change_filters(&mut wanted.filters, operation)?;
        if let Some(flow) = flow {
            // Another class is another bearer.
            if flow.qci != wanted.qos.flow.qci {
                return Err(CauseValue::SERVICE_DENIED.into());
            }
            wanted.qos.flow = flow;
        }
        let context = BearerInUpdateRequest {
            ebi,
            tft: operation.map(encode),
            qos: flow.map(|_| wanted.qos),
            ..Default::default()
        };
        let request = UpdateBearerRequest {
            bearers: vec![context],
            pti: Some(pti),
            apn_ambr: apn_ambr(pdn),
            ..Default::default()
        };
        (peer, pdn.number, former.clone(), wanted, request)
    };
    accepted(gateway.gtpc.request_triggered(command, peer, request).await, ebi)?;
    let mut state = ue.state.lock().await;
    let pdn = state.numbered(number).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let mut bearers = pdn.bearers.iter();
    let at = bearers.position(|bearer| bearer.charging_id == former.charging_id);
    let at = at.ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let Bearer { filters, qos, .. } = wanted;
    let now = Bearer { filters, qos, ..pdn.bearers[at].clone() };
    let change = pdn.rules(gateway).update_bearer(&pdn.bearers[at], &now);
    pdn.bearers[at] = now;
    // UE and eNB have the new filters: if the UPF is set up again, it gets them as well.
    modify(gateway, pdn, change).await.map_err(cause_of)?;
    UPDATED.inc();
    Ok(())
}

/// Changes filters as an operation says. Returns the operation for the UE, with the network's numbers.
fn change_filters(filters: &mut Vec<Filter>, operation: Operation) -> Result<Option<Operation>, Cause> {
    let semantic = || Cause::from(CauseValue::TAD_SEMANTIC_ERROR);
    let made = |wanted: &[PacketFilter]| {
        let filters: Result<Vec<_>, _> = wanted.iter().map(Filter::new).collect();
        filters.map_err(|_| Cause::from(CauseValue::FILTER_SEMANTIC_ERRORS))
    };
    let has = |filters: &[Filter], id: u8| filters.iter().any(|filter| filter.id == id);
    match operation {
        Operation::Add(wanted) => {
            let used: Vec<u8> = filters.iter().map(|filter| filter.id).collect();
            if used.len() + wanted.len() > MAX_FILTERS {
                return Err(semantic());
            }
            let wanted = numbered(wanted, &used);
            filters.extend(made(&wanted)?);
            Ok(Some(Operation::Add(wanted)))
        }
        Operation::Replace(wanted) => {
            if !wanted.iter().all(|filter| has(filters, filter.id)) {
                return Err(semantic());
            }
            for new in made(&wanted)? {
                filters
                    .iter_mut()
                    .filter(|filter| filter.id == new.id)
                    .for_each(|filter| *filter = new.clone());
            }
            Ok(Some(Operation::Replace(wanted)))
        }
        Operation::DeleteFilters(numbers) => {
            if !numbers.iter().all(|id| has(filters, *id)) {
                return Err(semantic());
            }
            filters.retain(|filter| !numbers.contains(&filter.id));
            Ok(Some(Operation::DeleteFilters(numbers)))
        }
        Operation::NoOperation | Operation::Ignore => Ok(None),
        // A bearer has a template from the beginning to its end.
        Operation::Create(_) | Operation::Delete => Err(semantic()),
    }
}

/// Filters with the lowest numbers that are not used.
pub(super) fn numbered(filters: Vec<PacketFilter>, used: &[u8]) -> Vec<PacketFilter> {
    let free = (0..=15).filter(|id| !used.contains(id));
    free.zip(filters).map(|(id, filter)| PacketFilter { id, ..filter }).collect()
}

/// A template for the UE. Filters that were decoded can be encoded.
pub(super) fn encode(operation: Operation) -> Octets {
    Tft { operation, ..Default::default() }.encode().unwrap_or_default()
}

/// The APN-AMBR as it is, which Update Bearer Request has to contain.
fn apn_ambr(pdn: &Pdn) -> Ambr {
    let kbps = |rate: types::BitRate| u32::try_from(rate.bps() / 1000).unwrap_or(u32::MAX);
    Ambr { uplink_kbps: kbps(pdn.ambr.uplink), downlink_kbps: kbps(pdn.ambr.downlink) }
}

/// Whether the neighbour has changed the bearer.
fn accepted(answer: Result<Message, gtpc::GtpcError>, ebi: Ebi) -> Result<(), Cause> {
    let response = match answer {
        Ok(Message::UpdateBearerResponse(response)) => response,
        Ok(_) => return Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        Err(error) => {
            tracing::debug!(%error, "the neighbour does not change a bearer");
            return Err(CauseValue::REMOTE_PEER_NOT_RESPONDING.into());
        }
    };
    let context = response.bearers.iter().find(|context| context.ebi == ebi);
    let cause = context.map_or(response.cause, |context| context.cause);
    match response.cause.is_accepted() && cause.is_accepted() {
        true => Ok(()),
        false if response.cause.is_accepted() => Err(cause),
        false => Err(response.cause),
    }
}
