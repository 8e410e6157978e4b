//! Registration (TS 23.502 §4.2.2.2, TS 24.501 §5.5.1): initial, mobility and periodic.
//!
//! Flow: may the UE register here → identity (SUCI, 5G-GUTI, identity request) → authentication and
//! security mode, unless the message was verified with an existing context → subscription, registration
//! as serving AMF, and policy, requested in parallel → slices → REGISTRATION ACCEPT with a new 5G-GUTI
//! in an Initial Context Setup → REGISTRATION COMPLETE. The subscription is fetched while the UE
//! handles the security mode command, which saves its time.
//!
//! Every refusal ends in [`reject`]. Every wait may be interrupted by an event that takes precedence;
//! the UE's state then follows from TS 24.501 §5.5.1.2.8 and §5.5.1.3.8.

use std::net::Ipv4Addr;
use std::ops::ControlFlow;

use nas::{
    GmmCause, IdentityType, Message, MobileIdentity, PsiSet, RegistrationType, RejectedSNssai,
    SliceRejectCause, UeSecurityCapability, gmm,
};
use sbi::Target;
use tokio::task::JoinHandle;
use types::{PduSessionId, SNssai, Supi};

use super::authentication::{AuthenticationError, authentication};
use super::identification::identification;
use super::resource_setup::{self, PendingSetup, SetupOutcome};
use super::security_mode::{SecurityModeError, security_mode};
use super::{an_release, configuration_update, deregistration, paging, user_plane};
use crate::admission::Class;
use crate::context::{Amf, Subscription};
use crate::counters;
use crate::event::{Arrival, Interrupt};
use crate::gnb::LinkDown;
use crate::n1;
use crate::peers::PeerError;
use crate::state::MmEvent;
use crate::ue::{NoAnswer, Registering, Ue, Waiting};

/// Name in counters and samples.
const NAME: &str = "registration";

/// How often REGISTRATION ACCEPT is sent (TS 24.501 §5.5.1.2.8 c).
const MAX_ACCEPTS: u32 = 5;

/// Why a registration ends early.
#[derive(Debug)]
enum Stop {
    /// The UE is refused with this cause.
    Reject(GmmCause),
    /// The UE is refused because of its slices.
    NoSlices(Vec<RejectedSNssai>),
    /// The UE failed to prove its identity: AUTHENTICATION REJECT.
    NotAuthentic,
    /// The UE does not answer; the timer's name.
    Silent(&'static str),
    /// An event that takes precedence.
    Interrupted(Interrupt),
}

impl From<Interrupt> for Stop {
    fn from(interrupt: Interrupt) -> Stop {
        Stop::Interrupted(interrupt)
    }
}

impl From<NoAnswer> for Stop {
    fn from(no_answer: NoAnswer) -> Stop {
        match no_answer {
            NoAnswer::Timeout(timer) => Stop::Silent(timer),
            NoAnswer::Interrupted(interrupt) => Stop::Interrupted(interrupt),
        }
    }
}

impl From<AuthenticationError> for Stop {
    fn from(error: AuthenticationError) -> Stop {
        match error {
            AuthenticationError::Rejected => Stop::NotAuthentic,
            AuthenticationError::Peer(cause) => Stop::Reject(cause),
            AuthenticationError::NoIdentity => Stop::Reject(GmmCause::UeIdentityCannotBeDerived),
            AuthenticationError::NoAnswer(no_answer) => no_answer.into(),
        }
    }
}

impl From<SecurityModeError> for Stop {
    fn from(error: SecurityModeError) -> Stop {
        match error {
            SecurityModeError::NoCommonAlgorithm => Stop::Reject(GmmCause::UeSecurityCapabilitiesMismatch),
            SecurityModeError::Refused(GmmCause::UeSecurityCapabilitiesMismatch) => {
                Stop::Reject(GmmCause::UeSecurityCapabilitiesMismatch)
            }
            SecurityModeError::Refused(_) => Stop::Reject(GmmCause::SecurityModeRejected),
            SecurityModeError::NoAnswer(no_answer) => no_answer.into(),
        }
    }
}

impl From<PeerError> for Stop {
    fn from(error: PeerError) -> Stop {
        Stop::Reject(error.gmm_cause())
    }
}

/// Runs a registration, from REGISTRATION REQUEST to its end.
pub(crate) async fn registration(ue: &mut Ue, request: gmm::RegistrationRequest) -> Result<(), Interrupt> {
    ue.registering = Some(Registering { request: request.clone(), accept: None });
    let outcome = accept_or_stop(ue, request).await;
    ue.start = None;
    // `None` after REGISTRATION COMPLETE.
    let incomplete = ue.registering.take();
    match outcome {
        Ok(()) => Ok(()),
        Err(Stop::Reject(cause)) => reject(ue, cause, Vec::new()).await,
        Err(Stop::NoSlices(rejected)) => reject(ue, GmmCause::NoNetworkSlicesAvailable, rejected).await,
        Err(Stop::NotAuthentic) => not_authentic(ue).await,
        Err(Stop::Silent(timer)) => {
            ue.record(NAME, format!("timeout {timer}"));
            abort(ue);
            an_release::release(ue, ngap::cause::Nas::Unspecified.into()).await
        }
        Err(Stop::Interrupted(interrupt)) => {
            let Some(registering) = incomplete else { return Err(interrupt) };
            ue.record(NAME, "interrupted");
            // §5.5.1.2.8 a: the connection was lost or replaced after the accept was made. The UE
            // counts as registered and both 5G-GUTIs as valid.
            let lower_layer = matches!(
                interrupt,
                Interrupt::LinkDown(_)
                    | Interrupt::ReleaseRequested(_)
                    | Interrupt::Initial(..)
                    | Interrupt::Unusable(..)
            );
            if registering.accept.is_some() && lower_layer {
                registered(ue)
            } else {
                abort(ue)
            }
            Err(interrupt)
        }
    }
}

/// Ends the common procedure: a UE that was registered before stays registered, another one is
/// deregistered.
fn abort(ue: &mut Ue) {
    if ue.ctx.mm == crate::state::Mm::CommonProcedureInitiated {
        let event =
            if ue.ctx.registered { MmEvent::LowerLayerFailure } else { MmEvent::CommonProcedureFailed };
        ue.ctx.mm_event(event);
    }
}

async fn accept_or_stop(ue: &mut Ue, request: gmm::RegistrationRequest) -> Result<(), Stop> {
    check_place(ue)?;
    check_type(&request)?;
    ue.ctx.mm_event(MmEvent::CommonProcedureRequested);
    let verified = ue.is_secure();
    let (request, subscription) =
        if verified { (request, None) } else { secure(ue, request).await.map(|(r, s)| (r, Some(s)))? };
    let supi = ue.ctx.supi.ok_or(Stop::Reject(GmmCause::UeIdentityCannotBeDerived))?;
    if let Some(capability) = request.ue_security_capability {
        ue.ctx.capability = Some(capability);
    }
    if !verified || ue.ctx.subscription.is_none() || request.registration_type == RegistrationType::Initial {
        register_in_core(ue, supi, subscription).await?;
    }
    let (allowed, rejected) = select_slices(&ue.amf, ue.ctx.subscription.as_ref(), &request.requested_nssai);
    if allowed.is_empty() {
        return Err(Stop::NoSlices(rejected));
    }
    ue.ctx.allowed_nssai = allowed;
    reconcile_sessions(ue, &request).await;
    accept(ue, &request, rejected).await
}

/// Whether the UE may register here (TS 24.501 §5.5.1.2.5).
fn check_place(ue: &Ue) -> Result<(), Stop> {
    let Some(tai) = ue.ctx.tai() else { return Err(Stop::Reject(GmmCause::TrackingAreaNotAllowed)) };
    if tai.plmn != ue.amf.config.plmn {
        return Err(Stop::Reject(GmmCause::PlmnNotAllowed));
    }
    if !ue.amf.serves(tai) {
        return Err(Stop::Reject(GmmCause::TrackingAreaNotAllowed));
    }
    let gnb_serves = ue.connection.as_ref().is_some_and(|connection| connection.n2.gnb.serves(tai));
    if !gnb_serves {
        // The gNB reports a tracking area that it did not announce in NG Setup.
        return Err(Stop::Reject(GmmCause::NoSuitableCellsInTrackingArea));
    }
    Ok(())
}

/// Refuses types of registration that this network does not offer.
fn check_type(request: &gmm::RegistrationRequest) -> Result<(), Stop> {
    match request.registration_type {
        RegistrationType::Initial
        | RegistrationType::MobilityUpdating
        | RegistrationType::PeriodicUpdating => Ok(()),
        // Refused with a cause that does not affect the UE's normal service: it may try a normal
        // registration.
        _ => Err(Stop::Reject(GmmCause::ProtocolErrorUnspecified)),
    }
}

/// A subscription that is being fetched in the background.
type Fetch = JoinHandle<Result<Subscription, PeerError>>;

/// Identifies and authenticates the UE and takes a security context into use. Returns the complete
/// request, and the pending fetch of the subscription.
async fn secure(
    ue: &mut Ue,
    request: gmm::RegistrationRequest,
) -> Result<(gmm::RegistrationRequest, Fetch), Stop> {
    // TS 24.501 §4.4.6: the capability may be sent in clear, so the first message has it.
    let capability = request.ue_security_capability.ok_or(Stop::Reject(GmmCause::ConditionalIeError))?;
    ue.ctx.capability = Some(capability);
    // Checked before the UE has to compute anything.
    let config = &ue.amf.config;
    if nas::security::choose_algorithms(&capability, &config.integrity, &config.ciphering).is_none() {
        return Err(Stop::Reject(GmmCause::UeSecurityCapabilitiesMismatch));
    }
    if ue.start.is_none() {
        // Another registration on the same connection: it takes its turn as the first one did.
        let name = n1::name(&request.identity);
        let start = ue.place(|admission| &admission.starts, Class::Unknown, &name).await?;
        ue.start = Some(start.ok_or(Stop::Reject(GmmCause::Congestion))?);
    }
    let identity = identify(ue, &request).await?;
    let authenticated = authentication(ue, identity).await?;
    let supi = authenticated.supi;
    let subscription = fetch_subscription(ue, supi);
    // A message container that could not be decoded has to be sent again (RINMR, TS 24.501 §5.4.2.2).
    let incomplete = request.nas_message_container.is_some();
    let whole = match security_mode(ue, &authenticated, capability, incomplete).await {
        Ok(whole) => whole,
        Err(error) => {
            subscription.abort();
            return Err(error.into());
        }
    };
    if !ue.claim(supi) {
        subscription.abort();
        return Err(Stop::Reject(GmmCause::Congestion));
    }
    Ok((replayed_request(ue, request, whole, capability)?, subscription))
}

/// The request that the UE sent again in SECURITY MODE COMPLETE, which is used from here on.
fn replayed_request(
    ue: &mut Ue,
    request: gmm::RegistrationRequest,
    whole: Option<Vec<u8>>,
    capability: UeSecurityCapability,
) -> Result<gmm::RegistrationRequest, Stop> {
    let Some(octets) = whole else { return Ok(request) };
    let whole = match Message::decode(&octets) {
        Ok(decoded) => match decoded.message {
            Message::RegistrationRequest(whole) => whole,
            _ => return Err(Stop::Reject(GmmCause::SemanticallyIncorrectMessage)),
        },
        Err(error) => {
            counters::NAS_REJECTED.inc("malformed");
            let cause = error.gmm_cause().unwrap_or(GmmCause::ProtocolErrorUnspecified);
            return Err(Stop::Reject(cause));
        }
    };
    // The capability is protected now: if it differs from the one sent in clear, somebody changed that
    // one.
    if whole.ue_security_capability.is_some_and(|ours| ours != capability) {
        return Err(Stop::Reject(GmmCause::UeSecurityCapabilitiesMismatch));
    }
    if let Some(registering) = &mut ue.registering {
        registering.request = whole.clone();
    }
    Ok(whole)
}

/// The identity to authenticate, as text: SUCI, or SUPI if the 5G-GUTI leads to one of our contexts.
async fn identify(ue: &mut Ue, request: &gmm::RegistrationRequest) -> Result<String, Stop> {
    if let MobileIdentity::Suci(suci) = &request.identity {
        return Ok(suci.to_string());
    }
    if let Some(supi) = ue.claimed.or(ue.ctx.supi) {
        return Ok(supi.to_string());
    }
    match identification(ue, IdentityType::Suci).await? {
        MobileIdentity::Suci(suci) => Ok(suci.to_string()),
        _ => Err(Stop::Reject(GmmCause::UeIdentityCannotBeDerived)),
    }
}

/// Fetches the subscription in the background, while the UE handles the security mode command.
fn fetch_subscription(ue: &Ue, supi: Supi) -> Fetch {
    let amf = ue.amf.clone();
    let unknown = Ipv4Addr::UNSPECIFIED.into();
    let host = ue.connection.as_ref().map_or(unknown, |connection| connection.n2.gnb.host());
    tokio::spawn(async move {
        let _place = amf.admission.calls.enter(Class::Begun, host, &supi.to_string()).granted().await;
        amf.peers.subscription(supi, amf.config.plmn).await
    })
}

/// Registers as serving AMF and creates the policy association, in parallel (TS 23.502 §4.2.2.2.2 steps
/// 14 and 16).
async fn register_in_core(ue: &mut Ue, supi: Supi, fetch: Option<Fetch>) -> Result<(), Stop> {
    let amf = ue.amf.clone();
    let peers = &amf.peers;
    let class = if fetch.is_some() { Class::Begun } else { Class::Registered };
    // Before a place is taken, because the fetch needs one, too.
    let fetched = match fetch {
        // A lost task is handled like a peer that did not answer.
        Some(fetch) => Some(fetch.await.unwrap_or(Err(PeerError::Timeout))),
        None => None,
    };
    let place = ue.place(|admission| &admission.calls, class, &supi.to_string()).await?;
    let _place = place.ok_or(Stop::Reject(GmmCause::Congestion))?;
    let (location, pei) = (ue.ctx.location, ue.ctx.pei);
    let fetch = async {
        match fetched {
            Some(fetched) => fetched,
            None => peers.subscription(supi, amf.config.plmn).await,
        }
    };
    let had_policy = ue.ctx.policy.is_some();
    let policy = async {
        if had_policy {
            None
        } else {
            peers.create_am_policy(Target::Discover, supi, &amf, location, pei).await
        }
    };
    // Without notifications, a change takes effect with the next registration.
    let had_notifications = ue.ctx.sdm_subscribed;
    let notifications =
        async { had_notifications || peers.subscribe_to_changes(supi, amf.config.plmn).await.is_ok() };
    let (registered, subscription, policy, notifications) =
        tokio::join!(peers.register_amf(supi, &amf, pei), fetch, policy, notifications);
    ue.ctx.sdm_subscribed = notifications;
    ue.ctx.policy = policy.or(ue.ctx.policy.take());
    // Recorded before anything else can fail, so that a rejected UE is deregistered at the UDM.
    ue.ctx.uecm_registered = registered.is_ok();
    ue.ctx.subscription = Some(subscription?);
    Ok(registered?)
}

/// Allowed and rejected slices (TS 23.501 §5.15.5.2.1; the network slice selection of a single-AMF network).
pub(crate) fn select_slices(
    amf: &Amf,
    subscription: Option<&Subscription>,
    requested: &[SNssai],
) -> (Vec<SNssai>, Vec<RejectedSNssai>) {
    let Some(subscription) = subscription else { return (Vec::new(), Vec::new()) };
    let served = |slice: &SNssai| amf.config.slices.contains(slice);
    let wanted = if requested.is_empty() { &subscription.default_slices } else { requested };
    let (allowed, refused): (Vec<SNssai>, Vec<SNssai>) =
        wanted.iter().copied().partition(|slice| served(slice) && subscription.allows(*slice));
    let rejected = match requested {
        [] => Vec::new(),
        _ => refused
            .into_iter()
            .map(|s_nssai| RejectedSNssai { s_nssai, cause: SliceRejectCause::NotAvailableInPlmn })
            .collect(),
    };
    if !allowed.is_empty() {
        return (allowed, rejected);
    }
    // None of the requested slices is allowed: the subscribed defaults are used (§5.15.5.2.1).
    let defaults = subscription.default_slices.iter().copied().filter(served).collect();
    (defaults, rejected)
}

/// Releases sessions that only one side has (TS 24.501 §5.5.1.3.4, TS 23.502 §4.2.2.2.2 step 17).
async fn reconcile_sessions(ue: &mut Ue, request: &gmm::RegistrationRequest) {
    let gone: Vec<PduSessionId> = match (request.registration_type, request.pdu_session_status) {
        // An initial registration starts without sessions.
        (RegistrationType::Initial, _) => ue.ctx.sessions.keys().copied().collect(),
        (_, Some(status)) => ue.ctx.sessions.keys().copied().filter(|id| !status.contains(*id)).collect(),
        (_, None) => Vec::new(),
    };
    deregistration::release_sessions(ue, &gone).await;
    match (request.registration_type, request.pdu_session_status) {
        (RegistrationType::Initial, _) => ue.believes_in(PsiSet::default()),
        (_, Some(status)) => ue.believes_in(status),
        (_, None) => {}
    }
}

/// REGISTRATION ACCEPT under T3550, with an Initial Context Setup.
async fn accept(
    ue: &mut Ue,
    request: &gmm::RegistrationRequest,
    rejected: Vec<RejectedSNssai>,
) -> Result<(), Stop> {
    let wanted: Vec<PduSessionId> =
        request.uplink_data_status.map(|set| set.iter().collect()).unwrap_or_default();
    let activation = user_plane::activate(ue, &wanted).await;
    let message = accept_message(ue, request, rejected, &activation);
    if let Some(registering) = &mut ue.registering {
        registering.accept = Some(message.clone());
    }
    let nas_pdu = ue.protect(&message);
    let mut asked = resource_setup::send(ue, nas_pdu, activation.items).await?;
    let mut completed = false;
    let mut sent = 1;
    let timer = std::time::Duration::from_millis(ue.amf.config.timers.t3550_ms);
    let guard = net::time::now() + std::time::Duration::from_millis(ue.amf.config.timers.n2_guard_ms);
    let mut deadline = net::time::now() + timer;
    // The UE and its gNB answer independently: REGISTRATION COMPLETE and later messages of the UE may
    // arrive before or after the gNB's response.
    while !completed || asked.is_some() {
        let until = if completed { guard } else { deadline };
        let got = ue.expect(Waiting::Radio, until, |arrival| take_answer(asked.as_ref(), arrival)).await?;
        match got {
            // The answer to a repeated accept.
            Some(Answer::Complete) if completed => {}
            Some(Answer::Complete) => {
                completed = true;
                complete(ue);
            }
            Some(Answer::Setup(outcome)) => {
                asked = None;
                if let Some(cause) = outcome.context_failed {
                    if !completed {
                        ue.record(NAME, "initial_context_setup_failure");
                        registered(ue);
                    }
                    return an_release::release(ue, cause).await.map_err(Stop::from);
                }
                user_plane::report_setup(ue, outcome).await;
            }
            None if !completed && sent < MAX_ACCEPTS => {
                counters::TIMER_EXPIRIES.inc("T3550");
                sent += 1;
                deadline = net::time::now() + timer;
                ue.send_nas(&message).await?;
            }
            None => {
                // Fifth expiry, or no answer of the gNB: the UE counts as registered and both 5G-GUTIs
                // as valid (TS 24.501 §5.5.1.2.8 c), but the connection is unusable.
                counters::TIMER_EXPIRIES.inc(if completed { "n2_guard" } else { "T3550" });
                if !completed {
                    ue.record(NAME, "not_completed");
                    registered(ue);
                }
                return an_release::release(ue, ngap::cause::Nas::Unspecified.into())
                    .await
                    .map_err(Stop::from);
            }
        }
    }
    let idle_update = request.registration_type == RegistrationType::PeriodicUpdating
        && !request.follow_on
        && !ue.ctx.sessions.values().any(|session| session.active);
    if idle_update {
        paging::report_reachable(ue).await;
        // There is no reason to keep the connection (TS 24.501 §5.5.1.3.4).
        return an_release::release(ue, ngap::cause::Nas::NormalRelease.into()).await.map_err(Stop::from);
    }
    Ok(())
}

/// An answer to REGISTRATION ACCEPT: the UE's, or the gNB's to a request in the same message.
enum Answer {
    Complete,
    Setup(SetupOutcome),
}

fn take_answer(asked: Option<&PendingSetup>, arrival: Arrival) -> ControlFlow<Answer, Arrival> {
    match (arrival, asked) {
        (Arrival::Nas(Message::RegistrationComplete), _) => ControlFlow::Break(Answer::Complete),
        (Arrival::N2(pdu), Some(asked)) => match asked.outcome(*pdu) {
            Ok(outcome) => ControlFlow::Break(Answer::Setup(outcome)),
            Err(pdu) => ControlFlow::Continue(Arrival::N2(pdu)),
        },
        (other, _) => ControlFlow::Continue(other),
    }
}

fn registered(ue: &mut Ue) {
    ue.ctx.mm_event(MmEvent::RegistrationAccepted);
    ue.publish();
}

/// The UE has confirmed: the old 5G-GUTI is freed.
fn complete(ue: &mut Ue) {
    ue.registering = None;
    configuration_update::guti_confirmed(ue);
    ue.ctx.slices_due = false;
    registered(ue);
    ue.record(NAME, "ok");
    tracing::info!(supi = ?ue.ctx.supi, "registered");
}

fn accept_message(
    ue: &mut Ue,
    request: &gmm::RegistrationRequest,
    rejected_nssai: Vec<RejectedSNssai>,
    activation: &user_plane::Activation,
) -> Message {
    let guti = configuration_update::new_guti(ue);
    let timers = &ue.amf.config.timers;
    let seconds = |s| Some(nas::Timer::For(std::time::Duration::from_secs(s)));
    let mut accept = gmm::RegistrationAccept::new();
    accept.guti = Some(guti);
    accept.tai_list = ue.amf.registration_area();
    accept.allowed_nssai = ue.ctx.allowed_nssai.clone();
    accept.rejected_nssai = rejected_nssai;
    accept.configured_nssai = ue.configured_slices();
    accept.network_features = Some(nas::NetworkFeatures::default());
    accept.t3512 = seconds(timers.t3512_s);
    accept.t3502 = seconds(timers.t3502_s);
    accept.pdu_session_status = ue.session_status(request.pdu_session_status.is_some());
    if request.uplink_data_status.is_some() {
        let failed: PsiSet = activation.failed.iter().map(|(id, _)| *id).collect();
        accept.reactivation_result = Some(failed);
        accept.reactivation_errors = activation.failed.clone();
    }
    Message::RegistrationAccept(accept)
}

/// Sends REGISTRATION REJECT and releases the connection.
async fn reject(ue: &mut Ue, cause: GmmCause, rejected_nssai: Vec<RejectedSNssai>) -> Result<(), Interrupt> {
    counters::REGISTRATION_REJECTS.inc(&cause.number().to_string());
    tracing::info!(supi = ?ue.ctx.supi, %cause, "registration rejected");
    let mut reject = gmm::RegistrationReject::new(cause);
    reject.rejected_nssai = rejected_nssai;
    if cause == GmmCause::Congestion {
        reject.t3346 = n1::back_off(&ue.amf.config);
    }
    let sent = ue.send_nas(&Message::RegistrationReject(reject)).await;
    ue.record(NAME, format!("reject #{}", cause.number()));
    // Congestion is the network's problem: a UE that was registered stays registered (TS 24.501
    // §5.5.1.3.5).
    if cause == GmmCause::Congestion && ue.ctx.registered {
        abort(ue);
    } else {
        deregistration::local(ue, false).await;
        ue.ctx.mm_event(MmEvent::RegistrationRejected);
    }
    sent?;
    an_release::release(ue, ngap::cause::Nas::NormalRelease.into()).await
}

/// Sends AUTHENTICATION REJECT (TS 24.501 §5.4.1.3.5) and releases the connection. A UE that is
/// registered with this subscription has another task and is not affected.
async fn not_authentic(ue: &mut Ue) -> Result<(), Interrupt> {
    counters::REGISTRATION_REJECTS.inc("authentication");
    tracing::info!(supi = ?ue.claimed, "authentication rejected");
    let sent = ue.send_nas(&Message::AuthenticationReject(gmm::AuthenticationReject::default())).await;
    ue.record(NAME, "authentication_reject");
    ue.ctx.mm_event(MmEvent::CommonProcedureFailed);
    if let Err(interrupt @ Interrupt::LinkDown(LinkDown::AssociationLost)) = sent {
        return Err(interrupt);
    }
    an_release::release(ue, ngap::cause::Nas::AuthenticationFailure.into()).await
}
