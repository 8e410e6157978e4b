//! S-GW of a PDN connection whose P-GW is another gateway, over S5/S8 (TS 23.401 §5.3.2.1, §5.3.3.1, §5.4, §5.5.1).
//!
//! The S-GW passes on what MME and P-GW have to say to each other, with its own tunnels instead of theirs. Its UPF passes packets
//! between the tunnels. It buffers for idle UEs and has them paged, without the P-GW.

use std::net::SocketAddr;
use std::sync::Arc;

use gtpc::Outcome;
use gtpv2c::endpoint::{PORT, RequestId};
use gtpv2c::message::*;
use gtpv2c::value::*;
use gtpv2c::{BearerInCreateRequest, BearerInCreateResponse, BearerToBeCreated, BearerToBeModified};
use gtpv2c::{BearerToBeRemoved, ie};
use tokio::sync::MutexGuard;
use types::PduSessionType;

use super::commands::Command;
use super::create_session::{DEFAULT_AMBR, NewPdn, addresses, establish, rates, tunnels, unclaimed};
use super::{Subject, bearers, cause_of, delete_session, find, missing, modify};
use crate::bearer::{Bearer, S5Tunnel, Tunnel};
use crate::context::{Gateway, Pdn, Peer, Role, Ue, UeState, UpfSession};
use crate::rules::{self, Downlink};

/// Sets up the user plane, has the P-GW set up the PDN connection, and notes it. The P-GW of a UE that has moved here has it already.
pub(super) async fn add(
    gateway: &Arc<Gateway>,
    ue: &Ue,
    mut state: MutexGuard<'_, UeState>,
    new: NewPdn,
    request: &CreateSessionRequest,
) -> Result<CreateSessionResponse, Cause> {
    let result = match set_up(gateway, ue, new, request).await {
        Ok(pdn) if has_moved(request) => take_over(gateway, ue, &mut state, pdn, request).await,
        Ok(pdn) => {
            let (number, request) = (pdn.number, for_pgw(gateway, &pdn, request));
            state.add(pdn);
            // Others may use the UE while the P-GW is waited for.
            drop(state);
            let answer = ask_pgw(gateway, request).await;
            state = ue.state.lock().await;
            connect(gateway, ue, &mut state, number, answer).await
        }
        Err(cause) => Err(cause),
    };
    delete_session::forget_if_empty(gateway, ue, &mut state);
    result
}

/// Whether the P-GW has the PDN connection already, because the UE was with another S-GW.
fn has_moved(request: &CreateSessionRequest) -> bool {
    request.pgw_f_teid.is_some_and(|pgw| pgw.teid != 0)
}

/// A PDN connection on the UPF, but not yet at the P-GW.
async fn set_up(
    gateway: &Gateway,
    ue: &Ue,
    new: NewPdn,
    request: &CreateSessionRequest,
) -> Result<Pdn, Cause> {
    let NewPdn { apn, role, pdn_type, bearers } = new;
    if has_moved(request) && bearers.iter().any(|bearer| bearer.s5.pgw.is_none()) {
        return Err(missing(ie::F_TEID));
    }
    let address = gateway.n4.select_upf().map_err(cause_of)?;
    let number = gateway.ues.add_pdn(ue, gateway.config.limits.sessions).ok_or(CauseValue::NO_RESOURCES)?;
    let mut pdn = Pdn {
        number,
        role,
        apn,
        pdn_type,
        unclaimed: unclaimed(role, &bearers),
        arrived: None,
        addresses: addresses(request.paa),
        ambr: request.apn_ambr.map_or(DEFAULT_AMBR, rates),
        bearers,
        unconfirmed: Vec::new(),
        upf: UpfSession { address, seid: 0, epoch: 0, n4u: None },
        solicited: None,
    };
    match establish(gateway, &mut pdn).await {
        Ok(()) => Ok(pdn),
        Err(error) => {
            tracing::warn!(imsi = %ue.imsi, %error, "PDN connection not established on a UPF");
            delete_session::end_here(gateway, pdn).await;
            Err(cause_of(error).into())
        }
    }
}

/// A UE has moved here with its bearers. If that fails, the P-GW keeps the PDN connection.
async fn take_over(
    gateway: &Gateway,
    ue: &Ue,
    state: &mut UeState,
    mut pdn: Pdn,
    request: &CreateSessionRequest,
) -> Result<CreateSessionResponse, Cause> {
    // Without operation indication the UE is still with its former S-GW, until the MME names its eNB.
    let is_here = request.indication.is_some_and(|indication| indication.contains(Indication::OI));
    let result = match is_here {
        true => serve_now(gateway, &mut pdn, request).await,
        false => Ok(()),
    };
    if let Err(cause) = result {
        delete_session::end_here(gateway, pdn).await;
        return Err(cause);
    }
    let response =
        CreateSessionResponse { linked_ebi: request.linked_ebi, ..tunnels(gateway, Some(ue), &pdn) };
    state.add(pdn);
    Ok(response)
}

async fn serve_now(gateway: &Gateway, pdn: &mut Pdn, request: &CreateSessionRequest) -> Result<(), Cause> {
    let idle = pdn.bearers.iter().filter(|bearer| bearer.access.is_none());
    let change = rules::change_downlink(pdn.role, idle.map(|bearer| (bearer.slot, Downlink::Buffered)));
    if !change.update_fars.is_empty() {
        modify(gateway, pdn, change).await.map_err(|error| Cause::from(cause_of(error)))?;
    }
    pdn.unclaimed = None;
    tell_pgw(gateway, pdn, request.into(), request.bearers_to_be_removed.clone()).await
}

/// The MME's request as the P-GW gets it, with our tunnels.
fn for_pgw(gateway: &Gateway, pdn: &Pdn, request: &CreateSessionRequest) -> (FTeid, CreateSessionRequest) {
    let contexts = request.bearers_to_be_created.iter().filter_map(|context| {
        let bearer = pdn.bearers.iter().find(|bearer| bearer.ebi == context.ebi)?;
        Some(BearerToBeCreated {
            ebi: context.ebi,
            tft: context.tft.clone(),
            s5s8u_sgw_f_teid: bearer.s5.own.map(|own| own.f_teid(InterfaceType::S5S8_SGW_GTPU)),
            qos: context.qos,
            ..Default::default()
        })
    });
    let to_pgw = CreateSessionRequest {
        sender_f_teid: pdn.s5_f_teid(gateway, InterfaceType::S5S8_SGW_GTPC),
        pgw_f_teid: None,
        bearers_to_be_created: contexts.collect(),
        recovery: Some(gateway.gtpc.restart_counter()),
        // They are between neighbours.
        private_extensions: Vec::new(),
        ..request.clone()
    };
    (pdn.remote_pgw().unwrap_or_default(), to_pgw)
}

async fn ask_pgw(
    gateway: &Gateway,
    (pgw, request): (FTeid, CreateSessionRequest),
) -> Result<CreateSessionResponse, Cause> {
    match gateway.gtpc.request(pgw, request).await {
        Ok(Message::CreateSessionResponse(response)) if response.cause.is_accepted() => Ok(response),
        Ok(Message::CreateSessionResponse(response)) => {
            Err(Cause { from_remote: true, offending_ie: None, ..response.cause })
        }
        Ok(_) => Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        Err(error) => {
            tracing::info!(pgw = ?pgw.address(), %error, "the P-GW does not set up a PDN connection");
            Err(failure_cause(error))
        }
    }
}

/// Connects the tunnels of a PDN connection that the P-GW has set up. If the MME has ended it meanwhile, the P-GW ends it as well.
async fn connect(
    gateway: &Arc<Gateway>,
    ue: &Ue,
    state: &mut UeState,
    number: u64,
    answer: Result<CreateSessionResponse, Cause>,
) -> Result<CreateSessionResponse, Cause> {
    let at = state.pdns.iter().position(|pdn| pdn.number == number);
    let response = match (answer, at) {
        (Ok(response), Some(_)) => response,
        (Ok(response), None) => {
            let pgw = response.pgw_f_teid.filter(|pgw| pgw.teid != 0);
            let linked = response.bearers_created.first().map(|created| created.ebi);
            delete_session::end_at_pgw_later(gateway, pgw, linked);
            return Err(CauseValue::LATE_OVERLAPPING_REQUEST.into());
        }
        (Err(cause), at) => {
            if let Some(at) = at {
                let pdn = state.pdns.remove(at);
                delete_session::end_here(gateway, pdn).await;
            }
            return Err(cause);
        }
    };
    let pdn = state.numbered(number).ok_or(CauseValue::SYSTEM_FAILURE)?;
    match join_tunnels(gateway, pdn, &response).await {
        Ok(()) => {
            let own = tunnels(gateway, Some(ue), pdn);
            Ok(CreateSessionResponse {
                sender_f_teid: own.sender_f_teid,
                pgw_f_teid: own.pgw_f_teid,
                bearers_created: own.bearers_created,
                private_extensions: Vec::new(),
                ..response
            })
        }
        Err(cause) => {
            let at = state.pdns.iter().position(|pdn| pdn.number == number);
            let pdn = at.map(|at| state.pdns.remove(at));
            if let Some(pdn) = pdn {
                delete_session::end(gateway, pdn).await;
            }
            Err(cause)
        }
    }
}

/// Takes what the P-GW has answered, and names its tunnels to the UPF.
async fn join_tunnels(
    gateway: &Gateway,
    pdn: &mut Pdn,
    response: &CreateSessionResponse,
) -> Result<(), Cause> {
    let invalid = || Cause::from(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER);
    let control = response.pgw_f_teid.filter(|pgw| pgw.teid != 0).ok_or_else(invalid)?;
    let address = control.address().ok_or_else(invalid)?;
    // From now on the P-GW has to be told if something fails.
    pdn.role = Role::Sgw { pgw: Peer::now(control, address), is_known: true };
    gateway.gtpc.watch(address);
    pdn.addresses = addresses(response.paa);
    pdn.pdn_type = match response.paa {
        Some(Paa::Ipv4(_)) => PduSessionType::Ipv4,
        Some(Paa::Ipv6(_)) => PduSessionType::Ipv6,
        Some(Paa::Ipv4v6(..)) => PduSessionType::Ipv4v6,
        _ => pdn.pdn_type,
    };
    pdn.ambr = response.apn_ambr.map_or(pdn.ambr, rates);
    for bearer in &mut pdn.bearers {
        let mut created = response.bearers_created.iter();
        let created = created.find(|created| created.ebi == bearer.ebi && created.cause.is_accepted());
        let created = created.ok_or_else(invalid)?;
        bearer.s5.pgw = Some(created.s5s8u_pgw_f_teid.and_then(Tunnel::of).ok_or_else(invalid)?);
        bearer.qos = created.qos.unwrap_or(bearer.qos);
        bearer.charging_id = created.charging_id.map_or(bearer.charging_id, |id| id.0);
    }
    let change = rules::change_uplink(&pdn.bearers);
    modify(gateway, pdn, change).await.map(drop).map_err(|error| cause_of(error).into())
}

/// The cause towards the one who has asked, for what the other one did.
fn failure_cause(error: gtpc::GtpcError) -> Cause {
    match error {
        gtpc::GtpcError::Failed(gtpv2c::endpoint::Failure::Refused(cause)) => {
            Cause { from_remote: true, offending_ie: None, ..cause }
        }
        gtpc::GtpcError::Failed(gtpv2c::endpoint::Failure::Malformed(_)) => {
            CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()
        }
        _ => CauseValue::REMOTE_PEER_NOT_RESPONDING.into(),
    }
}

/// Where the UE is, as the MME has said.
pub(super) struct Whereabouts {
    rat_type: Option<RatType>,
    uli: Option<Uli>,
    serving_network: Option<types::Plmn>,
    ue_time_zone: Option<UeTimeZone>,
}

impl From<&CreateSessionRequest> for Whereabouts {
    fn from(request: &CreateSessionRequest) -> Self {
        let CreateSessionRequest { rat_type, uli, serving_network, ue_time_zone, .. } = *request;
        Self { rat_type: Some(rat_type), uli, serving_network, ue_time_zone }
    }
}

impl From<&ModifyBearerRequest> for Whereabouts {
    fn from(request: &ModifyBearerRequest) -> Self {
        let ModifyBearerRequest { rat_type, uli, serving_network, ue_time_zone, .. } = *request;
        Self { rat_type, uli, serving_network, ue_time_zone }
    }
}

/// Tells the P-GW that a UE has moved to this S-GW, unless it knows, and which bearers are `removed`. It sends to this S-GW's tunnels
/// from then on.
pub(super) async fn tell_pgw(
    gateway: &Gateway,
    pdn: &mut Pdn,
    to: Whereabouts,
    removed: Vec<BearerToBeRemoved>,
) -> Result<(), Cause> {
    let Role::Sgw { pgw, is_known } = pdn.role else { return Ok(()) };
    if is_known && removed.is_empty() {
        return Ok(());
    }
    let named = pdn.bearers.iter().filter(|bearer| bearer.ebi != Ebi(0));
    let bearers_to_be_modified = named.map(|bearer| BearerToBeModified {
        ebi: bearer.ebi,
        s5s8u_sgw_f_teid: bearer.s5.own.map(|own| own.f_teid(InterfaceType::S5S8_SGW_GTPU)),
        ..Default::default()
    });
    let request = ModifyBearerRequest {
        sender_f_teid: Some(pdn.s5_f_teid(gateway, InterfaceType::S5S8_SGW_GTPC)),
        bearers_to_be_modified: bearers_to_be_modified.collect(),
        bearers_to_be_removed: removed,
        recovery: Some(gateway.gtpc.restart_counter()),
        rat_type: to.rat_type,
        uli: to.uli,
        serving_network: to.serving_network,
        ue_time_zone: to.ue_time_zone,
        ..Default::default()
    };
    match gateway.gtpc.request(pgw.f_teid, request).await {
        Ok(Message::ModifyBearerResponse(response)) if response.cause.is_accepted() => {
            if !is_known {
                let pgw = Peer::now(pgw.f_teid, pgw.source);
                pdn.role = Role::Sgw { pgw, is_known: true };
                gateway.gtpc.watch(pgw.source);
            }
            Ok(())
        }
        // The S-GW has done its part. Only a move needs the P-GW.
        answer if is_known => {
            tracing::debug!(?answer, "the P-GW does not hear of bearers that are no more");
            Ok(())
        }
        Ok(Message::ModifyBearerResponse(response)) => Err(Cause { from_remote: true, ..response.cause }),
        Ok(_) => Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        Err(error) => Err(failure_cause(error)),
    }
}

/// Passes the MME's command for a PDN connection on to the P-GW, and to the MME what the P-GW makes of it.
pub(super) async fn pass_on(gateway: Arc<Gateway>, id: RequestId, mme: FTeid, pdn: Remote, command: Command) {
    let refuse = |cause: Cause| gateway.gtpc.respond(id, mme.teid, command.refusal(cause));
    let Some(address) = pdn.pgw.address() else { return refuse(CauseValue::SYSTEM_FAILURE.into()) };
    let to_pgw = command.with_sender(pdn.own);
    match gateway.gtpc.command(SocketAddr::new(address, PORT), pdn.pgw.teid, to_pgw).await {
        Ok(Outcome::Triggered { id: of_pgw, teid, message }) => {
            request_of_pgw(&gateway, of_pgw, teid, message, Some(id)).await;
            // Sent only if the MME has got no request of it: this S-GW could not do its part.
            refuse(CauseValue::NO_RESOURCES.into());
        }
        Ok(Outcome::Refused(answer)) => refuse(Cause { from_remote: true, ..cause_in(&answer.message) }),
        Err(error) => refuse(failure_cause(error)),
    }
}

/// A PDN connection's P-GW, and our end of S5/S8 for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remote {
    pgw: FTeid,
    own: FTeid,
}

impl Remote {
    /// `None`: this gateway is the P-GW.
    pub fn of(gateway: &Gateway, pdn: &Pdn) -> Option<Self> {
        let own = pdn.s5_f_teid(gateway, InterfaceType::S5S8_SGW_GTPC);
        Some(Self { pgw: pdn.remote_pgw()?, own })
    }
}

/// The cause in a failure indication.
fn cause_in(message: &Message) -> Cause {
    match message {
        Message::BearerResourceFailureIndication(answer) => answer.cause,
        Message::ModifyBearerFailureIndication(answer) => answer.cause,
        Message::DeleteBearerFailureIndication(answer) => answer.cause,
        _ => CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into(),
    }
}

/// Answers a P-GW's request about bearers.
pub(crate) async fn from_pgw(gateway: Arc<Gateway>, id: RequestId, teid: u32, message: Message) {
    request_of_pgw(&gateway, id, teid, message, None).await;
}

/// `command`: the MME's, by which it has asked the P-GW for this.
async fn request_of_pgw(
    gateway: &Arc<Gateway>,
    id: RequestId,
    teid: u32,
    message: Message,
    command: Option<RequestId>,
) {
    let subject = Subject::of(gateway, teid).filter(|subject| matches!(subject, Subject::Pdn(..)));
    let found = find(subject.as_ref(), id.peer.ip()).await.map(|(mut state, pgw)| {
        let mme = state.mme.map(|mme| mme.f_teid);
        let pdn = state.pdns.iter_mut().find(|pdn| subject.as_ref().is_some_and(|one| one.concerns(pdn)));
        (mme.filter(|_| pdn.is_some_and(|pdn| pdn.remote_pgw().is_some())), pgw)
    });
    let (mme, pgw) = match found {
        Ok((Some(mme), pgw)) => (mme, pgw),
        Ok((None, pgw)) => return gateway.gtpc.reject(id, pgw.teid, CauseValue::CONTEXT_NOT_FOUND),
        Err((teid, cause)) => return gateway.gtpc.reject(id, teid, cause),
    };
    let Some(Subject::Pdn(ue, number)) = subject else { return };
    let relay = Relay { gateway, ue: &ue, number, mme, command };
    match message {
        Message::CreateBearerRequest(request) => {
            let response = relay.create(request).await;
            gateway.gtpc.respond(id, pgw.teid, response);
        }
        Message::UpdateBearerRequest(request) => match relay.update(request).await {
            Ok(response) => gateway.gtpc.respond(id, pgw.teid, response),
            Err(cause) => gateway.gtpc.reject(id, pgw.teid, cause),
        },
        Message::DeleteBearerRequest(request) => match relay.delete(request).await {
            Ok(response) => gateway.gtpc.respond(id, pgw.teid, response),
            Err(cause) => gateway.gtpc.reject(id, pgw.teid, cause),
        },
        _ => gateway.gtpc.reject(id, pgw.teid, CauseValue::SERVICE_NOT_SUPPORTED),
    }
}

/// Relays a P-GW's request to the MME.
struct Relay<'a> {
    gateway: &'a Arc<Gateway>,
    ue: &'a Arc<Ue>,
    /// The PDN connection's.
    number: u64,
    mme: FTeid,
    command: Option<RequestId>,
}

impl Relay<'_> {
    async fn ask_mme(&self, request: impl Into<Message>) -> Result<Message, Cause> {
        let gtpc = &self.gateway.gtpc;
        let answer = match self.command {
            Some(command) => gtpc.request_triggered(command, self.mme, request).await,
            None => gtpc.request(self.mme, request).await,
        };
        answer.map_err(failure_cause)
    }

    /// Dedicated bearers: on the UPF first, as the MME needs its tunnels.
    async fn create(&self, request: CreateBearerRequest) -> CreateBearerResponse {
        let mut contexts = Vec::new();
        let mut added: Vec<Tunnel> = Vec::new();
        let mut refused = None;
        {
            let mut state = self.ue.state.lock().await;
            for context in &request.bearers {
                match self.add(&mut state, context).await {
                    Ok(own) => {
                        added.push(own);
                        contexts.push(BearerInCreateRequest {
                            s1u_sgw_f_teid: Some(own.f_teid(InterfaceType::S1U_SGW)),
                            ..context.clone()
                        });
                    }
                    Err(cause) => {
                        refused = Some(cause);
                        break;
                    }
                }
            }
        }
        let answer = match refused {
            Some(cause) => Err(cause),
            None => {
                let to_mme = CreateBearerRequest {
                    bearers: contexts,
                    pgw_fq_csid: None,
                    sgw_fq_csid: None,
                    ..request.clone()
                };
                self.ask_mme(to_mme).await
            }
        };
        let (cause, response) = match answer {
            Ok(Message::CreateBearerResponse(response)) => (response.cause, response),
            Ok(_) => (CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into(), CreateBearerResponse::default()),
            Err(cause) => (cause, CreateBearerResponse::default()),
        };
        let mut state = self.ue.state.lock().await;
        let mut bearers = Vec::new();
        for (context, own) in request.bearers.iter().zip(&added) {
            // The S-GW's tunnel says which one is meant; an MME that has been asked for one only may leave it out.
            let is_it =
                |answered: &&BearerInCreateResponse| match answered.s1u_sgw_f_teid.and_then(Tunnel::of) {
                    Some(tunnel) => tunnel == *own,
                    None => request.bearers.len() == 1,
                };
            let answered = response.bearers.iter().find(is_it);
            let mut result = self.complete(&mut state, *own, cause, answered).await;
            result.s5s8u_pgw_f_teid = context.s5s8u_pgw_f_teid;
            bearers.push(result);
        }
        CreateBearerResponse {
            cause,
            bearers,
            recovery: Some(self.gateway.gtpc.restart_counter()),
            mme_fq_csid: None,
            ..response
        }
    }

    /// Adds a bearer on the UPF. Returns the UPF's end of S1-U.
    async fn add(&self, state: &mut UeState, context: &BearerInCreateRequest) -> Result<Tunnel, Cause> {
        let pdn = state.numbered(self.number).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        let pgw = context.s5s8u_pgw_f_teid.and_then(Tunnel::of).ok_or_else(|| missing(ie::F_TEID))?;
        let slot = pdn.free_slot().ok_or(CauseValue::NO_RESOURCES)?;
        let charging_id = context.charging_id.map_or_else(|| self.gateway.ues.charging_id(), |id| id.0);
        let bearer = Bearer {
            slot,
            ebi: Ebi(0),
            qos: context.qos,
            filters: Vec::new(),
            charging_id,
            own: None,
            access: None,
            s5: S5Tunnel { own: None, pgw: Some(pgw) },
        };
        bearers::add(self.gateway, pdn, bearer).await.map_err(|error| cause_of(error).into())
    }

    /// Connects a bearer, or takes it back, as the MME has answered.
    async fn complete(
        &self,
        state: &mut UeState,
        own: Tunnel,
        cause: Cause,
        answered: Option<&BearerInCreateResponse>,
    ) -> BearerInCreateResponse {
        let answered =
            answered.cloned().unwrap_or_else(|| BearerInCreateResponse { cause, ..Default::default() });
        let is_taken = state.bearer(answered.ebi).is_some();
        let refused =
            |cause: Cause| BearerInCreateResponse { ebi: answered.ebi, cause, ..Default::default() };
        let Some(pdn) = state.numbered(self.number) else {
            return refused(CauseValue::CONTEXT_NOT_FOUND.into());
        };
        let Some(at) = pdn.bearers.iter().position(|bearer| bearer.own == Some(own)) else {
            return refused(CauseValue::CONTEXT_NOT_FOUND.into());
        };
        let cause = match cause.is_accepted() {
            true if !answered.cause.is_accepted() => answered.cause,
            true if is_taken || !(5..=15).contains(&answered.ebi.0) => {
                CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()
            }
            _ => cause,
        };
        if !cause.is_accepted() {
            bearers::take_away(self.gateway, pdn, at).await;
            return refused(cause);
        }
        pdn.bearers[at].ebi = answered.ebi;
        let access = answered.s1u_enb_f_teid.and_then(Tunnel::of);
        if let Err(error) = bearers::connect(self.gateway, pdn, at, access).await {
            bearers::take_away(self.gateway, pdn, at).await;
            // MME and eNB have it.
            bearers::delete_at(self.gateway, self.mme, answered.ebi);
            return refused(cause_of(error).into());
        }
        let s5 = pdn.bearers[at].s5.own.map(|own| own.f_teid(InterfaceType::S5S8_SGW_GTPU));
        BearerInCreateResponse {
            cause: CauseValue::ACCEPTED.into(),
            s1u_enb_f_teid: None,
            s1u_sgw_f_teid: None,
            s5s8u_sgw_f_teid: s5,
            ..answered
        }
    }

    /// QoS, filters and rates, which concern eNB and UE only.
    async fn update(&self, request: UpdateBearerRequest) -> Result<UpdateBearerResponse, Cause> {
        let to_mme = UpdateBearerRequest { pgw_fq_csid: None, sgw_fq_csid: None, ..request.clone() };
        let Message::UpdateBearerResponse(response) = self.ask_mme(to_mme).await? else {
            return Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into());
        };
        let mut state = self.ue.state.lock().await;
        if let Some(pdn) = state.numbered(self.number).filter(|_| response.cause.is_accepted()) {
            pdn.ambr = rates(request.apn_ambr);
            for context in &request.bearers {
                let mut answered = response.bearers.iter();
                let is_accepted = answered.any(|one| one.ebi == context.ebi && one.cause.is_accepted());
                let mut bearers = pdn.bearers.iter_mut();
                let bearer = bearers.find(|bearer| bearer.ebi == context.ebi && context.ebi != Ebi(0));
                if let (true, Some(bearer), Some(qos)) = (is_accepted, bearer, context.qos) {
                    bearer.qos = qos;
                }
            }
        }
        Ok(UpdateBearerResponse {
            recovery: Some(self.gateway.gtpc.restart_counter()),
            mme_fq_csid: None,
            ..response
        })
    }

    /// Dedicated bearers, or with the default one the PDN connection. They end whatever the MME says: the P-GW has decided it.
    async fn delete(&self, request: DeleteBearerRequest) -> Result<DeleteBearerResponse, Cause> {
        let to_mme = DeleteBearerRequest { pgw_fq_csid: None, sgw_fq_csid: None, ..request.clone() };
        let answer = self.ask_mme(to_mme).await;
        let mut state = self.ue.state.lock().await;
        let state = &mut *state;
        let at = state.pdns.iter().position(|pdn| pdn.number == self.number);
        match (at, request.linked_ebi) {
            (Some(at), Some(_)) => {
                let pdn = state.pdns.remove(at);
                delete_session::end_here(self.gateway, pdn).await;
                delete_session::forget_if_empty(self.gateway, self.ue, state);
            }
            (Some(at), None) => {
                for ebi in &request.ebis {
                    bearers::remove(self.gateway, &mut state.pdns[at], *ebi).await;
                }
            }
            (None, _) => {}
        }
        match answer? {
            Message::DeleteBearerResponse(response) => Ok(DeleteBearerResponse {
                recovery: Some(self.gateway.gtpc.restart_counter()),
                mme_fq_csid: None,
                ..response
            }),
            _ => Err(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER.into()),
        }
    }
}
