//! Npcf_AMPolicyControl (TS 29.507 §4.2) and Npcf_SMPolicyControl (TS 29.512 §4.2).

use std::sync::Arc;

use sbi::{
    Created, ProblemDetails, Router,
    model::pcf::{
        PolicyAssociation, PolicyAssociationRequest, SmPolicyContextData, SmPolicyControl, SmPolicyDecision,
    },
    op::pcf::*,
};
use serde_json::{Value, json};
use types::{PduSessionId, Supi};

use crate::{config::Config, context::Associations, decision::decide};

/// What the handlers share.
#[derive(Debug)]
pub struct State {
    config: Config,
    am: Associations<Supi, PolicyAssociationRequest>,
    sm: Associations<(Supi, PduSessionId), SmPolicyContextData>,
}

impl State {
    pub(crate) fn new(config: Config) -> Self {
        let (am, sm) =
            (Associations::new(config.max_associations), Associations::new(config.max_associations));
        Self { config, am, sm }
    }

    pub(crate) fn counts(&self) -> Value {
        json!({ "am_policies": self.am.len(), "sm_policies": self.sm.len() })
    }
}

type Reply<T> = Result<T, ProblemDetails>;

/// The operations that the PCF offers.
pub fn router(state: Arc<State>) -> Router<State> {
    Router::new(state)
        .on::<CreateAmPolicy>(create_am)
        .on::<GetAmPolicy>(get_am)
        .on::<DeleteAmPolicy>(delete_am)
        .on::<CreateSmPolicy>(create_sm)
        .on::<GetSmPolicy>(get_sm)
        .on::<UpdateSmPolicy>(update_sm)
        .on::<DeleteSmPolicy>(delete_sm)
}

/// 404 with the cause that both APIs define for an unknown association.
fn not_found() -> ProblemDetails {
    ProblemDetails::new(404, "POLICY_ASSOCIATION_NOT_FOUND")
}

fn no_room() -> ProblemDetails {
    ProblemDetails::new(503, "INSUFFICIENT_RESOURCES")
}

/// The policy in force for a UE: as subscribed, because no operator policy overrides the subscription.
fn am_policy(request: &PolicyAssociationRequest) -> PolicyAssociation {
    PolicyAssociation {
        request: None,
        triggers: Vec::new(),
        rfsp: request.rfsp,
        ue_ambr: request.ue_ambr,
        supp_feat: "0".to_owned(),
    }
}

async fn create_am(state: Arc<State>, request: CreateAmPolicyRequest) -> Reply<Created<PolicyAssociation>> {
    let body = am_policy(&request.body);
    let id = state.am.create(request.body.supi, request.body).ok_or_else(no_room)?;
    Ok(Created { location: format!("/policies/{id}"), body })
}

async fn get_am(state: Arc<State>, request: GetAmPolicyRequest) -> Reply<PolicyAssociation> {
    let context = state.am.get(&request.pol_asso_id).ok_or_else(not_found)?;
    Ok(PolicyAssociation { request: Some(context.clone()), ..am_policy(&context) })
}

async fn delete_am(state: Arc<State>, request: DeleteAmPolicyRequest) -> Reply<()> {
    if state.am.delete(&request.pol_asso_id) { Ok(()) } else { Err(not_found()) }
}

async fn create_sm(state: Arc<State>, request: CreateSmPolicyRequest) -> Reply<Created<SmPolicyDecision>> {
    let session = request.body;
    let body = decide(&state.config, &session);
    let id = state.sm.create((session.supi, session.pdu_session_id), session).ok_or_else(no_room)?;
    Ok(Created { location: format!("/sm-policies/{id}"), body })
}

async fn get_sm(state: Arc<State>, request: GetSmPolicyRequest) -> Reply<SmPolicyControl> {
    let context = state.sm.get(&request.sm_policy_id).ok_or_else(not_found)?;
    Ok(SmPolicyControl { policy: decide(&state.config, &context), context })
}

async fn update_sm(state: Arc<State>, request: UpdateSmPolicyRequest) -> Reply<SmPolicyDecision> {
    let UpdateSmPolicyRequest { sm_policy_id, body } = request;
    let decided = state.sm.change(&sm_policy_id, |session| {
        session.access_type = body.access_type.or(session.access_type.take());
        session.rat_type = body.rat_type.or(session.rat_type.take());
        session.user_location_info = body.user_location_info.or(session.user_location_info.take());
        if body.rel_ipv4_address.is_some() && session.ipv4_address == body.rel_ipv4_address {
            session.ipv4_address = None;
        }
        session.ipv4_address = body.ipv4_address.or(session.ipv4_address);
        session.ipv6_address_prefix = body.ipv6_address_prefix.or(session.ipv6_address_prefix.take());
        session.subs_sess_ambr = body.subs_sess_ambr.or(session.subs_sess_ambr);
        session.subs_def_qos = body.subs_def_qos.or(session.subs_def_qos.take());
        decide(&state.config, session)
    });
    decided.ok_or_else(not_found)
}

async fn delete_sm(state: Arc<State>, request: DeleteSmPolicyRequest) -> Reply<()> {
    if state.sm.delete(&request.sm_policy_id) { Ok(()) } else { Err(not_found()) }
}
