//! Commands (TS 29.274 §7.2.5, §7.2.14, §7.2.17): what radio network, UE or subscription want of bearers. The P-GW does it with a
//! request of its own, which answers the command, or refuses with a failure indication. An S-GW alone passes commands on.

use std::sync::Arc;

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::*;
use gtpv2c::value::tft::{Operation, Tft};
use gtpv2c::value::*;
use gtpv2c::{BearerInUpdateRequest, Message};

use super::bearers::{Wanted, create, delete};
use super::create_session::rates;
use super::serving::{self, Remote};
use super::update_bearer::{self, Change};
use super::{Subject, cause_of, find, modify};
use crate::bearer::{Slot, is_gbr};
use crate::context::{Gateway, Pdn, Ue};
use crate::rules;

/// A command.
#[allow(clippy::large_enum_variant, reason = "one at a time")]
pub(crate) enum Command {
    /// The UE asks for a bearer or another one, or gives one back (TS 23.401 §5.4.5).
    Resource(BearerResourceCommand),
    /// The subscribed QoS has changed (TS 23.401 §5.4.2.2).
    Modify(ModifyBearerCommand),
    /// The radio network has given dedicated bearers up (TS 23.401 §5.4.4.2).
    Delete(DeleteBearerCommand),
}

impl Command {
    /// Whether it is about this PDN connection.
    fn is_about(&self, pdn: &Pdn) -> bool {
        let is_default = |ebi: Ebi| pdn.default_bearer().is_some_and(|bearer| bearer.ebi == ebi);
        match self {
            Self::Resource(command) => is_default(command.linked_ebi),
            Self::Modify(command) => is_default(command.bearer.ebi),
            Self::Delete(command) => dedicated(pdn, command).next().is_some(),
        }
    }

    /// As an S-GW sends it to the P-GW.
    pub(super) fn with_sender(&self, own: FTeid) -> Message {
        let sender_f_teid = Some(own);
        match self {
            Self::Resource(command) => BearerResourceCommand { sender_f_teid, ..command.clone() }.into(),
            Self::Modify(command) => ModifyBearerCommand { sender_f_teid, ..command.clone() }.into(),
            Self::Delete(command) => DeleteBearerCommand { sender_f_teid, ..command.clone() }.into(),
        }
    }

    /// The answer that refuses it. The UE needs its transaction.
    pub(super) fn refusal(&self, cause: Cause) -> Message {
        match self {
            Self::Resource(BearerResourceCommand { linked_ebi, pti, .. }) => {
                let (linked_ebi, pti) = (*linked_ebi, *pti);
                BearerResourceFailureIndication { cause, linked_ebi, pti, ..Default::default() }.into()
            }
            Self::Modify(_) => ModifyBearerFailureIndication { cause, ..Default::default() }.into(),
            Self::Delete(_) => DeleteBearerFailureIndication { cause, ..Default::default() }.into(),
        }
    }
}

/// The dedicated bearers of a PDN connection that a command names.
fn dedicated<'p>(pdn: &'p Pdn, command: &'p DeleteBearerCommand) -> impl Iterator<Item = Ebi> + use<'p> {
    let bearers = pdn.bearers.iter().filter(|bearer| bearer.slot != Slot::DEFAULT).map(|bearer| bearer.ebi);
    bearers.filter(|ebi| command.bearers.iter().any(|context| context.ebi == *ebi))
}

/// Carries a command out, passes it on, or refuses it. What has led to a request is answered by that; the endpoint sends no second
/// answer.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, teid: u32, command: Command) {
    let subject = Subject::of(&gateway, teid);
    let found = find(subject.as_ref(), id.peer.ip()).await.map(|(state, peer)| {
        let concerned = |pdn: &&Pdn| subject.as_ref().is_some_and(|one| one.concerns(pdn));
        let pdn = state.pdns.iter().filter(concerned).find(|pdn| command.is_about(pdn));
        (peer, pdn.map(|pdn| (pdn.number, Remote::of(&gateway, pdn))))
    });
    let (peer, pdn) = match found {
        Ok(found) => found,
        Err((teid, cause)) => return gateway.gtpc.respond(id, teid, command.refusal(cause)),
    };
    let result = match (&subject, pdn) {
        (Some(_), Some((_, Some(pgw)))) => return serving::pass_on(gateway, id, peer, pgw, command).await,
        (Some(subject), Some((number, None))) => {
            let asked = Asked { gateway: &gateway, ue: subject.ue(), number, peer, id };
            match &command {
                Command::Resource(command) => asked.bearer_resource(command).await,
                Command::Modify(command) => asked.modify_bearer(command).await,
                Command::Delete(command) => asked.delete_bearer(command).await,
            }
        }
        _ => Err(CauseValue::CONTEXT_NOT_FOUND.into()),
    };
    if let Err(cause) = result {
        gateway.gtpc.respond(id, peer.teid, command.refusal(cause));
    }
}

/// What a command asks this P-GW for.
struct Asked<'a> {
    gateway: &'a Gateway,
    ue: &'a Ue,
    /// The PDN connection's.
    number: u64,
    /// Who has sent the command.
    peer: FTeid,
    id: RequestId,
}

impl Asked<'_> {
    async fn delete_bearer(&self, command: &DeleteBearerCommand) -> Result<(), Cause> {
        let mut state = self.ue.state.lock().await;
        let pdn = state.numbered(self.number).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        let known = dedicated(pdn, command).collect();
        drop(state);
        delete(self.gateway, self.ue, known, Some(self.id), None).await
    }

    async fn bearer_resource(&self, command: &BearerResourceCommand) -> Result<(), Cause> {
        let Self { gateway, ue, id, .. } = *self;
        let (linked, pti) = (command.linked_ebi, command.pti);
        let tad = command.tad.clone().unwrap_or_default();
        let operation = Tft::decode(&tad.0).map_err(|_| CauseValue::TAD_SYNTACTIC_ERROR)?.operation;
        if let Some(flow) = command.flow_qos
            && !may_ask_for(gateway, ue, linked, flow).await
        {
            return Err(CauseValue::SERVICE_DENIED.into());
        }
        match (operation, command.flow_qos, command.ebi) {
            (Operation::Create(filters), Some(flow), None) => {
                let wanted = Wanted {
                    linked,
                    // A UE cannot take resources from others.
                    qos: BearerQos { arp: Arp { pci: true, pl: 15, pvi: false }, flow },
                    // The network numbers filters, whatever the UE has written (TS 23.401 §5.4.5).
                    tft: update_bearer::encode(Operation::Create(update_bearer::numbered(filters, &[]))),
                    pti: Some(pti),
                    command: Some(id),
                };
                create(gateway, ue, wanted).await.map(drop)
            }
            (operation, flow, Some(ebi)) => match fate(ue, linked, ebi, &operation).await {
                Some(Fate::Ends) => delete(gateway, ue, vec![ebi], Some(id), Some(pti)).await,
                Some(Fate::Changes) => {
                    let wanted = Change { linked, ebi, operation, flow, pti, command: id };
                    update_bearer::update(gateway, ue, wanted).await
                }
                None => Err(CauseValue::TAD_SEMANTIC_ERROR.into()),
            },
            _ => Err(CauseValue::TAD_SEMANTIC_ERROR.into()),
        }
    }

    async fn modify_bearer(&self, command: &ModifyBearerCommand) -> Result<(), Cause> {
        let (ebi, qos) = (command.bearer.ebi, command.bearer.qos);
        let bearers = vec![BearerInUpdateRequest { ebi, qos, ..Default::default() }];
        let request = UpdateBearerRequest { bearers, apn_ambr: command.apn_ambr, ..Default::default() };
        let answer = self.gateway.gtpc.request_triggered(self.id, self.peer, request).await;
        update_bearer::accepted(answer, ebi)?;
        let mut state = self.ue.state.lock().await;
        let pdn = state.numbered(self.number).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        pdn.ambr = rates(command.apn_ambr);
        if let (Some(qos), Some(default)) = (qos, pdn.bearers.first_mut()) {
            default.qos = qos;
        }
        let change = rules::change_ambr(pdn.ambr);
        modify(self.gateway, pdn, change).await.map(drop).map_err(|error| cause_of(error).into())
    }
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
