//! Nnrf_NFManagement, Nnrf_NFDiscovery and Nnrf_AccessToken (TS 29.510 §5.2, §5.3, §5.4).

use std::sync::Arc;

use net::time;
use nf::Shutdown;
use sbi::{
    ApiRoot, Caller, Client, Created, ProblemDetails, Router, Stored,
    model::{
        common::{Link, NfInstanceId},
        nrf::{
            AccessTokenErr, AccessTokenRsp, NfProfile, NotificationData, SearchResult, SubscriptionData,
            UriList, UriListLinks,
        },
    },
    op::nrf::*,
};
use telemetry::counters::Counter;
use tokio::sync::mpsc;

use crate::{
    context::{Event, Registry, RegistryError},
    token::Authority,
};

static NOTIFICATIONS_LOST: Counter = Counter::new("nrf_notifications_lost");

/// What the handlers share.
#[derive(Debug)]
pub struct State {
    /// The registry of instances.
    pub registry: Registry,
    /// Issues access tokens; `None` if tokens are switched off.
    pub authority: Option<Authority>,
    /// Our own API root, for links.
    pub api_root: ApiRoot,
}

type Reply<T> = Result<T, ProblemDetails>;

/// The operations that the NRF offers.
pub fn router(state: Arc<State>) -> Router<State> {
    Router::new(state)
        .on_behalf::<RegisterNf, _, _>(register)
        .on_behalf::<UpdateNf, _, _>(update)
        .on_behalf::<DeregisterNf, _, _>(deregister)
        .on::<GetNf>(get)
        .on::<ListNf>(list)
        .on_behalf::<SubscribeNf, _, _>(subscribe)
        .on_behalf::<UnsubscribeNf, _, _>(unsubscribe)
        .on::<DiscoverNf>(discover)
        .on_behalf::<RequestToken, _, _>(token)
}

impl From<RegistryError> for ProblemDetails {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Unknown => Self::new(404, "RESOURCE_NOT_FOUND"),
            RegistryError::Full => Self::new(503, "INSUFFICIENT_RESOURCES"),
            RegistryError::Patch(_) => Self::new(400, "MANDATORY_IE_INCORRECT").detail(&error),
        }
    }
}

/// A profile belongs to the instance that it describes: no other instance registers, changes or removes
/// it.
fn owned(id: NfInstanceId, caller: &Caller) -> Reply<()> {
    match caller.id() {
        Some(caller) if caller != id => {
            let detail = format!("{caller} may not change the profile of {id}");
            Err(ProblemDetails::forbidden("NOT_THE_OWNER").detail(detail))
        }
        _ => Ok(()),
    }
}

async fn register(state: Arc<State>, request: RegisterNfRequest, caller: Caller) -> Reply<Stored<NfProfile>> {
    let RegisterNfRequest { nf_instance_id, body } = request;
    owned(nf_instance_id, &caller)?;
    if caller.nf_type().is_some_and(|proven| *proven != body.nf_type) {
        return Err(
            ProblemDetails::forbidden("NOT_THE_OWNER").detail("nfType is not that of the access token")
        );
    }
    if body.nf_instance_id != nf_instance_id {
        return Err(ProblemDetails::mandatory_ie_incorrect("nfInstanceId", "differs from the URI"));
    }
    let (body, new) = state.registry.register(body, time::now())?;
    if new {
        tracing::info!(nf = %body.nf_type, id = %nf_instance_id, "registered");
        return Ok(Stored::Created(Created { location: format!("/nf-instances/{nf_instance_id}"), body }));
    }
    Ok(Stored::Replaced(Some(body)))
}

async fn update(state: Arc<State>, request: UpdateNfRequest, caller: Caller) -> Reply<Option<NfProfile>> {
    owned(request.nf_instance_id, &caller)?;
    Ok(state.registry.update(request.nf_instance_id, &request.body, time::now())?)
}

async fn deregister(state: Arc<State>, request: DeregisterNfRequest, caller: Caller) -> Reply<()> {
    owned(request.nf_instance_id, &caller)?;
    tracing::info!(id = %request.nf_instance_id, "deregistered");
    Ok(state.registry.deregister(request.nf_instance_id)?)
}

async fn get(state: Arc<State>, request: GetNfRequest) -> Reply<NfProfile> {
    Ok(state.registry.get(request.nf_instance_id, time::now()).ok_or(RegistryError::Unknown)?)
}

async fn list(state: Arc<State>, request: ListNfRequest) -> Reply<UriList> {
    let limit = request.limit.map_or(usize::MAX, |l| l as usize);
    let profiles = state.registry.list(request.nf_type.as_ref(), limit, time::now());
    let item: Vec<Link> = profiles.iter().map(|p| Link { href: instance_uri(&state.api_root, p) }).collect();
    Ok(UriList { total_item_count: Some(item.len()), links: UriListLinks { item } })
}

async fn subscribe(
    state: Arc<State>,
    request: SubscribeNfRequest,
    caller: Caller,
) -> Reply<Created<SubscriptionData>> {
    let body = state.registry.subscribe(request.body, caller.id());
    let location = format!("/subscriptions/{}", body.subscription_id.as_deref().unwrap_or_default());
    Ok(Created { location, body })
}

async fn unsubscribe(state: Arc<State>, request: UnsubscribeNfRequest, caller: Caller) -> Reply<()> {
    if state.registry.unsubscribe(&request.subscription_id, caller.id()) {
        Ok(())
    } else {
        Err(ProblemDetails::new(404, "SUBSCRIPTION_NOT_FOUND"))
    }
}

async fn token(
    state: Arc<State>,
    request: RequestTokenRequest,
    caller: Caller,
) -> Result<AccessTokenRsp, AccessTokenErr> {
    let authority = state.authority.as_ref();
    let authority = authority.ok_or_else(|| {
        AccessTokenErr::new("invalid_request", "access tokens are switched off (sbi.tokens)")
    })?;
    authority.grant(&state.registry, &request.body, caller.certified())
}

async fn discover(state: Arc<State>, request: DiscoverNfRequest) -> Reply<SearchResult> {
    let nf_instances = state.registry.discover(&request, time::now());
    // An empty result must not be cached: an instance may register the next moment.
    let validity_period = if nf_instances.is_empty() { 0 } else { state.registry.validity_s() };
    Ok(SearchResult { validity_period, nf_instances })
}

fn instance_uri(api_root: &ApiRoot, profile: &NfProfile) -> String {
    format!("{api_root}/nnrf-nfm/v1/nf-instances/{}", profile.nf_instance_id)
}

/// Notifies subscribers of events until the NRF stops.
pub(crate) async fn deliver(
    client: Client,
    state: Arc<State>,
    mut events: mpsc::Receiver<Event>,
    stopping: Shutdown,
) {
    loop {
        let event = tokio::select! {
            () = stopping.wait() => return,
            event = events.recv() => event,
        };
        let Some(event) = event else { return };
        for subscription in state.registry.subscribers(&event) {
            let data = NotificationData {
                event: event.kind.clone(),
                nf_instance_uri: instance_uri(&state.api_root, &event.profile),
                nf_profile: Some(event.profile.clone()),
            };
            let client = client.clone();
            // In a task of its own, so that a slow subscriber does not delay the others; bounded by the
            // client's timeout and the number of subscriptions.
            tokio::spawn(async move {
                let uri = subscription.nf_status_notification_uri;
                if let Err(error) = client.notify::<NfStatusNotify>(&uri, data).await {
                    NOTIFICATIONS_LOST.inc();
                    tracing::debug!(%error, "notification lost");
                }
            });
        }
    }
}
