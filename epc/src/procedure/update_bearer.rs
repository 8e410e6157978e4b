//! Changes of a dedicated bearer's filters and rates (TS 23.401 §5.4.5, TS 29.274 §7.2.15). The UPF gets them when UE and eNB have them.

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::*;
use gtpv2c::value::tft::{MAX_FILTERS, Operation, PacketFilter, Tft};
use gtpv2c::value::*;
use gtpv2c::{BearerInUpdateRequest, Message};
use telemetry::counters::Counter;

use super::{cause_of, modify, restoration};
use crate::bearer::Slot;
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
    let (peer, number, charging_id, operation, request) = {
        let mut state = ue.state.lock().await;
        let mme = state.mme;
        let pdn = state.pdn(linked).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        let peer =
            pdn.towards_ue(mme).filter(|_| pdn.role.is_pgw()).ok_or(CauseValue::SERVICE_NOT_SUPPORTED)?;
        let mut dedicated = pdn.bearers.iter().filter(|bearer| bearer.slot != Slot::DEFAULT);
        let former = dedicated.find(|bearer| bearer.ebi == ebi).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        let operation = for_network(&former.filters, operation);
        if let Some(operation) = operation.clone() {
            apply(&mut former.filters.clone(), operation)?;
        }
        // Another class is another bearer.
        if flow.is_some_and(|flow| flow.qci != former.qos.flow.qci) {
            return Err(CauseValue::SERVICE_DENIED.into());
        }
        let context = BearerInUpdateRequest {
            ebi,
            tft: operation.clone().map(encode),
            qos: flow.map(|flow| BearerQos { flow, ..former.qos }),
            ..Default::default()
        };
        let request = UpdateBearerRequest {
            bearers: vec![context],
            pti: Some(pti),
            apn_ambr: apn_ambr(pdn),
            ..Default::default()
        };
        (peer, pdn.number, former.charging_id, operation, request)
    };
    accepted(gateway.gtpc.request_triggered(command, peer, request).await, ebi)?;
    let mut state = ue.state.lock().await;
    let pdn = state.numbered(number).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let mut bearers = pdn.bearers.iter();
    let at = bearers.position(|bearer| bearer.charging_id == charging_id);
    let at = at.ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
    let mut now = pdn.bearers[at].clone();
    // Another change may have been made meanwhile.
    if let Some(operation) = operation {
        apply(&mut now.filters, operation)?;
    }
    now.qos.flow = flow.unwrap_or(now.qos.flow);
    let change = pdn.rules(gateway).update_bearer(&pdn.bearers[at], &now);
    pdn.bearers[at] = now;
    // UE and eNB have the new filters: if the UPF is set up again, it gets them as well.
    if let Err(error) = modify(gateway, pdn, change).await {
        tracing::warn!(imsi = %ue.imsi, %error, "the UPF has not taken a changed bearer: its session is set up again");
        restoration::set_up_again(gateway, pdn).await.map_err(cause_of)?;
    }
    UPDATED.inc();
    Ok(())
}

/// The operation with the network's numbers; `None`: it changes no filters.
fn for_network(filters: &[Filter], operation: Operation) -> Option<Operation> {
    match operation {
        Operation::NoOperation | Operation::Ignore => None,
        Operation::Add(wanted) => {
            let used: Vec<u8> = filters.iter().map(|filter| filter.id).collect();
            Some(Operation::Add(numbered(wanted, &used)))
        }
        other => Some(other),
    }
}

/// Changes filters as an operation says.
fn apply(filters: &mut Vec<Filter>, operation: Operation) -> Result<(), Cause> {
    let made = |wanted: &[PacketFilter]| {
        let filters: Result<Vec<_>, _> = wanted.iter().map(Filter::new).collect();
        filters.map_err(|_| Cause::from(CauseValue::FILTER_SEMANTIC_ERRORS))
    };
    let has = |filters: &[Filter], id: u8| filters.iter().any(|filter| filter.id == id);
    match operation {
        Operation::Add(wanted)
            if filters.len() + wanted.len() <= MAX_FILTERS
                && !wanted.iter().any(|filter| has(filters, filter.id)) =>
        {
            filters.extend(made(&wanted)?);
        }
        Operation::Replace(wanted) if wanted.iter().all(|filter| has(filters, filter.id)) => {
            for new in made(&wanted)? {
                filters
                    .iter_mut()
                    .filter(|filter| filter.id == new.id)
                    .for_each(|filter| *filter = new.clone());
            }
        }
        Operation::DeleteFilters(numbers) if numbers.iter().all(|id| has(filters, *id)) => {
            filters.retain(|filter| !numbers.contains(&filter.id));
        }
        // A bearer has a template from the beginning to its end.
        _ => return Err(CauseValue::TAD_SEMANTIC_ERROR.into()),
    }
    Ok(())
}

/// Filters with the lowest numbers that are not used.
pub(super) fn numbered(filters: Vec<PacketFilter>, used: &[u8]) -> Vec<PacketFilter> {
    // More than there are numbers for get one that is used, and are refused for that.
    let mut free = (0..=15).filter(|id| !used.contains(id));
    filters.into_iter().map(|filter| PacketFilter { id: free.next().unwrap_or(0), ..filter }).collect()
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
pub(super) fn accepted(answer: Result<Message, gtpc::GtpcError>, ebi: Ebi) -> Result<(), Cause> {
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
