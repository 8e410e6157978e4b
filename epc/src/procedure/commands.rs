//! Commands (TS 29.274 §7.2.5, §7.2.14, §7.2.17): what radio network, UE or subscription want of bearers. The P-GW does it with a
//! request of its own, which answers the command, or refuses with a failure indication. An S-GW alone passes commands on.

use std::sync::Arc;

use gtpv2c::BearerInUpdateRequest;
use gtpv2c::endpoint::RequestId;
use gtpv2c::message::*;
use gtpv2c::value::tft::{Operation, Tft};
use gtpv2c::value::*;

use super::bearers::{Wanted, create, delete};
use super::create_session::rates;
use super::update_bearer::{self, Change};
use super::{Subject, find, modify, serving};
use crate::bearer::{Bearer, Slot, is_gbr};
use crate::context::{Gateway, Pdn, Ue, UeState};
use crate::rules;

/// Delete Bearer Command: the radio network has given dedicated bearers up (TS 23.401 §5.4.4.2).
pub(crate) async fn delete_bearer(
    gateway: Arc<Gateway>,
    id: RequestId,
    teid: u32,
    command: DeleteBearerCommand,
) {
    let subject = Subject::of(&gateway, teid);
    let (peer, known, pgw) = match find(subject.as_ref(), id.peer.ip()).await {
        Ok((state, peer)) => {
            let asked = |bearer: &Bearer| command.bearers.iter().any(|context| context.ebi == bearer.ebi);
            let mut pdns = state.pdns.iter().filter(|pdn| subject.as_ref().is_some_and(|all| all.has(pdn)));
            let dedicated = |pdn: &Pdn| {
                let bearers = pdn.bearers.iter().filter(|bearer| bearer.slot != Slot::DEFAULT);
                bearers.filter(|bearer| asked(bearer)).map(|bearer| bearer.ebi).collect::<Vec<_>>()
            };
            // A command is about one PDN connection.
            let found = pdns.find_map(|pdn| {
                let known = dedicated(pdn);
                (!known.is_empty()).then(|| (known, serving::pgw_of(pdn)))
            });
            let (known, pgw) = found.unwrap_or_default();
            (peer, known, pgw)
        }
        Err((teid, cause)) => return gateway.gtpc.reject(id, teid, cause),
    };
    let Some(subject) = subject else { return };
    if let Some(pgw) = pgw {
        return serving::pass_on(gateway, id, peer, pgw, command.into()).await;
    }
    if known.is_empty() {
        return gateway.gtpc.reject(id, peer.teid, CauseValue::CONTEXT_NOT_FOUND);
    }
    if let Err(cause) = delete(&gateway, subject.ue(), known, Some(id), None).await {
        gateway.gtpc.reject(id, peer.teid, cause);
    }
}

/// Bearer Resource Command: the UE asks for a bearer, or gives one back (TS 23.401 §5.4.5).
pub(crate) async fn bearer_resource(
    gateway: Arc<Gateway>,
    id: RequestId,
    teid: u32,
    command: BearerResourceCommand,
) {
    let subject = Subject::of(&gateway, teid);
    let (peer, pgw) = match find(subject.as_ref(), id.peer.ip()).await {
        Ok((mut state, peer)) => match its_pdn(subject.as_ref(), &mut state, command.linked_ebi) {
            Some(pdn) => (peer, serving::pgw_of(pdn)),
            None => {
                let cause = CauseValue::CONTEXT_NOT_FOUND.into();
                return refuse_resource(&gateway, id, peer.teid, &command, cause);
            }
        },
        Err((teid, cause)) => return refuse_resource(&gateway, id, teid, &command, cause),
    };
    let Some(subject) = subject else { return };
    if let Some(pgw) = pgw {
        return serving::pass_on(gateway, id, peer, pgw, command.into()).await;
    }
    let ue = subject.ue();
    let refuse = |cause: Cause| refuse_resource(&gateway, id, peer.teid, &command, cause);
    let tad = command.tad.clone().unwrap_or_default();
    let operation = match Tft::decode(&tad.0) {
        Ok(tad) => tad.operation,
        Err(_) => return refuse(CauseValue::TAD_SYNTACTIC_ERROR.into()),
    };
    if let Some(flow) = command.flow_qos
        && !may_ask_for(&gateway, ue, command.linked_ebi, flow).await
    {
        return refuse(CauseValue::SERVICE_DENIED.into());
    }
    let result = match (operation, command.flow_qos, command.ebi) {
        (Operation::Create(filters), Some(flow), None) => {
            let wanted = Wanted {
                linked: command.linked_ebi,
                // A UE cannot take resources from others.
                qos: BearerQos { arp: Arp { pci: true, pl: 15, pvi: false }, flow },
                // The network numbers filters, whatever the UE has written (TS 23.401 §5.4.5).
                tft: update_bearer::encode(Operation::Create(update_bearer::numbered(filters, &[]))),
                pti: Some(command.pti),
                command: Some(id),
            };
            create(&gateway, ue, wanted).await.map(drop)
        }
        (operation, _, Some(ebi)) => match fate(ue, command.linked_ebi, ebi, &operation).await {
            Some(Fate::Ends) => delete(&gateway, ue, vec![ebi], Some(id), Some(command.pti)).await,
            Some(Fate::Changes) => {
                let wanted = Change {
                    linked: command.linked_ebi,
                    ebi,
                    operation,
                    flow: command.flow_qos,
                    pti: command.pti,
                    command: id,
                };
                update_bearer::update(&gateway, ue, wanted).await
            }
            None => Err(CauseValue::TAD_SEMANTIC_ERROR.into()),
        },
        _ => Err(CauseValue::TAD_SEMANTIC_ERROR.into()),
    };
    if let Err(cause) = result {
        refuse(cause);
    }
}

/// The PDN connection with this default bearer, if the sender of a message may speak for it.
fn its_pdn<'s>(subject: Option<&Subject>, state: &'s mut UeState, linked: Ebi) -> Option<&'s mut Pdn> {
    state.pdn(linked).filter(|pdn| subject.is_some_and(|subject| subject.has(pdn)))
}

/// Whether a UE gets this QoS by asking for it: guaranteed rates only as far as its APN allows.
async fn may_ask_for(gateway: &Gateway, ue: &Ue, linked: Ebi, flow: FlowQos) -> bool {
    let mut state = ue.state.lock().await;
    let Some(network) = state.pdn(linked).and_then(|pdn| gateway.networks.get(&pdn.apn)) else {
        return false;
    };
    let most = network.config.ue_gbr_kbps;
    let asked = [flow.gbr_uplink_kbps, flow.gbr_downlink_kbps, flow.mbr_uplink_kbps, flow.mbr_downlink_kbps];
    // QCIs that the operator defines are not for UEs.
    match is_gbr(flow.qci) {
        true => most > 0 && asked.into_iter().all(|rate| rate <= most),
        false => (5..=9).contains(&flow.qci),
    }
}

/// What becomes of a bearer.
enum Fate {
    Ends,
    Changes,
}

/// What an operation makes of a dedicated bearer; `None`: the PDN connection has no such bearer.
async fn fate(ue: &Ue, linked: Ebi, ebi: Ebi, operation: &Operation) -> Option<Fate> {
    let mut state = ue.state.lock().await;
    let mut dedicated = state.pdn(linked)?.bearers.iter().filter(|bearer| bearer.slot != Slot::DEFAULT);
    let bearer = dedicated.find(|bearer| bearer.ebi == ebi)?;
    let ends = match operation {
        Operation::DeleteFilters(numbers) => bearer.filters.iter().all(|filter| numbers.contains(&filter.id)),
        Operation::Delete => true,
        _ => false,
    };
    Some(if ends { Fate::Ends } else { Fate::Changes })
}

/// If the command has led to a request, it was answered by that, and this is not sent.
fn refuse_resource(
    gateway: &Gateway,
    id: RequestId,
    teid: u32,
    command: &BearerResourceCommand,
    cause: Cause,
) {
    let (linked_ebi, pti) = (command.linked_ebi, command.pti);
    let answer = BearerResourceFailureIndication { cause, linked_ebi, pti, ..Default::default() };
    gateway.gtpc.respond(id, teid, answer);
}

/// Modify Bearer Command: the subscribed QoS has changed (TS 23.401 §5.4.2.2).
pub(crate) async fn modify_bearer(
    gateway: Arc<Gateway>,
    id: RequestId,
    teid: u32,
    command: ModifyBearerCommand,
) {
    let subject = Subject::of(&gateway, teid);
    let ebi = command.bearer.ebi;
    let (peer, qos, pgw) = match find(subject.as_ref(), id.peer.ip()).await {
        Ok((mut state, peer)) => {
            let Some(pdn) = its_pdn(subject.as_ref(), &mut state, ebi) else {
                return gateway.gtpc.reject(id, peer.teid, CauseValue::CONTEXT_NOT_FOUND);
            };
            let qos = command.bearer.qos.or(pdn.default_bearer().map(|bearer| bearer.qos));
            (peer, qos, serving::pgw_of(pdn))
        }
        Err((teid, cause)) => return gateway.gtpc.reject(id, teid, cause),
    };
    let Some(subject) = subject else { return };
    if let Some(pgw) = pgw {
        return serving::pass_on(gateway, id, peer, pgw, command.into()).await;
    }
    let ue = subject.ue();
    let bearers = vec![BearerInUpdateRequest { ebi, qos, ..Default::default() }];
    let request = UpdateBearerRequest { bearers, apn_ambr: command.apn_ambr, ..Default::default() };
    let answer = gateway.gtpc.request_triggered(id, peer, request).await;
    let is_accepted =
        matches!(answer, Ok(Message::UpdateBearerResponse(answer)) if answer.cause.is_accepted());
    if !is_accepted {
        return;
    }
    let mut state = ue.state.lock().await;
    let Some(pdn) = state.pdn(ebi) else { return };
    pdn.ambr = rates(command.apn_ambr);
    if let (Some(qos), Some(default)) = (qos, pdn.bearers.first_mut()) {
        default.qos = qos;
    }
    let change = rules::change_ambr(pdn.ambr);
    if let Err(error) = modify(&gateway, pdn, change).await {
        tracing::warn!(imsi = %ue.imsi, %error, "the UPF has not taken a new APN-AMBR");
    }
}
