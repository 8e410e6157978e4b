//! PDU session establishment (TS 23.502 §4.3.2.2.1).
//!
//! [`create`] answers the AMF as soon as it is known that the session is possible (steps 3 to 5).
//! Policy, UPF and the transfer to UE and gNB follow in [`establish`] (steps 7 to 11), in parallel to
//! the AMF's own work. A failure before the answer is reported in it, a later one by transfer and
//! notification. The gNB's answer (steps 14 to 17) arrives in `procedure::user_plane`.

use std::sync::Arc;
use std::time::Duration;

use ipam::{Addresses, PoolError};
use n4::{N4Error, Seids};
use nas::gsm::EstablishmentRequest;
use nas::{GsmCause, SmBody};
use net::time;
use pfcp::Message;
use sbi::model::smf::{Cause, N2SmInfoType, SmContextCreateData, SmContextCreateError, SmContextCreatedData};
use sbi::model::udm::DnnConfiguration;
use sbi::{ApiRoot, Created, ProblemDetails, Target};
use telemetry::counters::{Counter, Family};
use types::{Ambr, Arp, BitRate, Dnn, FiveQi, PduSessionId, PduSessionType, Pti, SNssai, Supi};

use crate::context::{Network, Phase, Session, SessionQos, SessionState, Smf, UpState, UpfSession};
use crate::n1;
use crate::n2;
use crate::peers::{Transfer, authorised};
use crate::procedure::{release, subscription_change, user_plane};
use crate::rules;
use crate::samples::at_work;

static REQUESTED: Counter = Counter::new("smf_session_requested");
static ESTABLISHED: Counter = Counter::new("smf_session_accepted");
static REJECTED: Family = Family::new("smf_session_rejected", "cause");

/// QoS for a subscription without values: 5QI 9 (TS 23.501 table 5.7.4-1), ARP priority level 8.
const DEFAULT_FIVE_QI: FiveQi = FiveQi(9);
const DEFAULT_ARP: Arp = Arp { priority: 8, may_preempt: false, preemptable: false };
const DEFAULT_AMBR: Ambr =
    Ambr { uplink: BitRate::from_kbps(1_000_000), downlink: BitRate::from_kbps(1_000_000) };

/// The parameters of a new session.
struct SessionParameters {
    supi: Supi,
    id: PduSessionId,
    /// The DNN that the AMF selected, else the one the UE asked for.
    dnn: Dnn,
    s_nssai: SNssai,
    /// The AMF for transfers.
    amf: ApiRoot,
    /// Transaction identity of the UE's request; the answer repeats it (TS 24.501 §6.4.1.3).
    pti: Pti,
    /// The UE's message.
    request: EstablishmentRequest,
}

/// Contents of the accept that are not in the session's state.
struct Answer {
    /// Why the UE gets another session type than it asked for.
    type_cause: Option<GsmCause>,
    /// Whether the UE asked for an always-on session.
    always_on: bool,
}

/// Measures the duration of an establishment.
#[derive(Clone, Copy)]
struct Times {
    start: time::Instant,
    at_work: Duration,
}

impl Times {
    fn record(self, smf: &Smf, session: &Session, outcome: String) {
        smf.samples.push("pdu_session_establishment", session.supi, outcome, self.start, self.at_work);
    }
}

/// Nsmf_PDUSession_CreateSMContext.
pub(crate) async fn create(
    smf: Arc<Smf>,
    data: SmContextCreateData,
) -> Result<Created<SmContextCreatedData>, SmContextCreateError> {
    REQUESTED.inc();
    let start = time::now();
    let (accepted, at_work) = at_work(accept(&smf, &data)).await;
    let (session, answer) = accepted?;
    let location = format!("/sm-contexts/{}", session.reference());
    let body = SmContextCreatedData {
        pdu_session_id: Some(session.id),
        s_nssai: data.s_nssai,
        ..Default::default()
    };
    tokio::spawn(establish(smf, session, answer, Times { start, at_work }));
    Ok(Created { location, body })
}

/// Steps 3 to 5: checks the subscription, allocates addresses, creates the session.
async fn accept(
    smf: &Arc<Smf>,
    data: &SmContextCreateData,
) -> Result<(Arc<Session>, Answer), SmContextCreateError> {
    let wanted = read_request(data)?;
    let reject = |cause| reject(&wanted, cause);
    // The UE has lost the session with this identity: it is released without telling the UE (step 3).
    if let Some(old) = smf.sessions.of_ue(wanted.supi, wanted.id) {
        release::locally(smf, &old, release::Notify::Nobody).await;
    }
    let network = smf.networks.get(&wanted.dnn).ok_or(GsmCause::MissingOrUnknownDnn).map_err(reject)?;
    if smf.sessions.len() >= smf.config.limits.sessions {
        return Err(reject(GsmCause::InsufficientResources));
    }
    let subscribed = smf
        .subscription(wanted.supi, data.serving_network, wanted.s_nssai, &wanted.dnn)
        .await
        .map_err(reject)?;
    n1::check_ssc_mode(wanted.request.ssc_mode, &subscribed.ssc_modes).map_err(reject)?;
    let (session_type, type_cause) = {
        let pool = network.pool();
        let offered = (pool.has_ipv4(), pool.has_ipv6());
        n1::select_type(&wanted.request, &subscribed.pdu_session_types, offered).map_err(reject)?
    };
    let fixed = static_addresses(&subscribed);
    let addresses = allocate(network, session_type, fixed).map_err(reject)?;
    let always_on = wanted.request.always_on;
    let mut state = new_state(data, &wanted, &subscribed, session_type, addresses);
    let security = network.config.user_plane_security;
    state.security_indication =
        security.map(|security| n2::security_indication(security, wanted.request.integrity_rate));
    let (session, replaced) = smf
        .sessions
        .insert(|number| Session::new(number, (wanted.supi, wanted.id), wanted.dnn, wanted.s_nssai, state));
    // Two requests of the UE crossed: the later one replaces the earlier one.
    if let Some(replaced) = replaced {
        tokio::spawn({
            let smf = smf.clone();
            async move { release::locally(&smf, &replaced, release::Notify::Nobody).await }
        });
    }
    Ok((session, Answer { type_cause, always_on }))
}

/// Checks the mandatory parameters and decodes the UE's message.
#[allow(clippy::result_large_err, reason = "the operation's own error type, made once per refused session")]
fn read_request(data: &SmContextCreateData) -> Result<SessionParameters, SmContextCreateError> {
    let missing =
        |attribute: &str| SmContextCreateError::from(ProblemDetails::mandatory_ie_missing(attribute));
    let supi = data.supi.ok_or_else(|| missing("supi"))?;
    let id = data.pdu_session_id.ok_or_else(|| missing("pduSessionId"))?;
    let dnn = data.selected_dnn.clone().or(data.dnn.clone()).ok_or_else(|| missing("dnn"))?;
    let s_nssai = data.s_nssai.ok_or_else(|| missing("sNssai"))?;
    let octets = data.n1_sm_msg.as_ref().ok_or_else(|| missing("n1SmMsg"))?.bytes();
    let amf = amf_of(&data.sm_context_status_uri)?;
    let n1_error = |pti, cause: Option<GsmCause>| {
        REJECTED.inc(&cause.map_or("ignored".to_owned(), |cause| cause.number().to_string()));
        SmContextCreateError {
            error: ProblemDetails::new(403, "N1_SM_ERROR"),
            n1_sm_msg: cause.map(|cause| n1::status(id, pti, cause).into()),
            n2_sm_info: None,
            n2_sm_info_type: None,
        }
    };
    let header = nas::gsm::SmHeader::read(octets);
    let pti = header.as_ref().map_or(Pti::UNASSIGNED, |header| header.pti);
    let message = n1::decode(octets).map_err(|cause| n1_error(pti, cause))?;
    if message.pti == Pti::UNASSIGNED {
        return Err(n1_error(pti, Some(GsmCause::InvalidPti)));
    }
    if message.pdu_session_id != Some(id) {
        return Err(n1_error(pti, Some(GsmCause::InvalidPduSessionIdentity)));
    }
    let SmBody::EstablishmentRequest(request) = message.body else {
        return Err(n1_error(pti, Some(GsmCause::MessageTypeNotCompatible)));
    };
    Ok(SessionParameters { supi, id, dnn, s_nssai, amf, pti, request })
}

/// The AMF's API root, taken from its status callback. An error if the URI cannot be called (RFC 3986
/// §2): the AMF would not learn of the session's end.
fn amf_of(uri: &str) -> Result<ApiRoot, ProblemDetails> {
    let allowed = |octet: u8| octet.is_ascii_alphanumeric() || b"-._~:/?[]@!$&'()*+,;=%".contains(&octet);
    let root = uri.bytes().all(allowed).then(|| ApiRoot::of_uri(uri)).flatten();
    root.ok_or_else(|| ProblemDetails::mandatory_ie_incorrect("smContextStatusUri", "must be an http URI"))
}

/// The UE has moved to another AMF, whose status callback this is (TS 29.502 §6.1.6.2.3: it comes with every change of
/// `servingNfId`). The AMF is called and notified from now on.
pub(crate) fn moved(state: &mut SessionState, status_uri: &str) -> Result<(), ProblemDetails> {
    let amf = amf_of(status_uri)?;
    if state.amf != amf {
        state.amf = amf;
        state.amf_since = time::wall_clock();
    }
    status_uri.clone_into(&mut state.status_uri);
    Ok(())
}

/// A refusal: a problem for the AMF with PDU SESSION ESTABLISHMENT REJECT for the UE.
fn reject(wanted: &SessionParameters, cause: GsmCause) -> SmContextCreateError {
    REJECTED.inc(&cause.number().to_string());
    let problem = match cause {
        GsmCause::MissingOrUnknownDnn => ProblemDetails::new(403, "DNN_NOT_SUPPORTED"),
        GsmCause::MissingOrUnknownDnnInSlice => ProblemDetails::new(403, "DNN_DENIED"),
        GsmCause::ServiceOptionNotSubscribed | GsmCause::UserAuthenticationFailed => {
            ProblemDetails::new(403, "SUBSCRIPTION_DENIED")
        }
        GsmCause::NotSupportedSscMode => ProblemDetails::new(403, "SSC_DENIED"),
        GsmCause::OnlyIpv4Allowed | GsmCause::OnlyIpv6Allowed | GsmCause::UnknownPduSessionType => {
            ProblemDetails::new(403, "PDUTYPE_DENIED")
        }
        GsmCause::InsufficientResources => ProblemDetails::new(500, "INSUFFICIENT_RESOURCES"),
        GsmCause::NetworkFailure => ProblemDetails::peer_not_responding(),
        _ => ProblemDetails::new(403, "N1_SM_ERROR"),
    };
    SmContextCreateError {
        error: problem.detail(cause),
        n1_sm_msg: Some(n1::establishment_reject(wanted.id, wanted.pti, cause).into()),
        n2_sm_info: None,
        n2_sm_info_type: None,
    }
}

/// Static addresses of the subscription (TS 29.503 `staticIpAddress`).
fn static_addresses(subscribed: &DnnConfiguration) -> Addresses {
    let mut fixed = Addresses::default();
    for address in &subscribed.static_ip_address {
        fixed.ipv4 = fixed.ipv4.or(address.ipv4_addr);
        let prefix = address.ipv6_prefix.as_deref().and_then(|text| text.split('/').next()?.parse().ok());
        fixed.ipv6 = fixed.ipv6.or(prefix).or(address.ipv6_addr);
    }
    fixed
}

/// Allocates addresses for a session type, or returns the 5GSM cause.
fn allocate(network: &Network, kind: PduSessionType, fixed: Addresses) -> Result<Addresses, GsmCause> {
    let now = time::now().into_std();
    network.pool().allocate(now, kind.has_ipv4(), kind.has_ipv6(), fixed).map_err(|error| {
        tracing::warn!(dnn = %network.config.name, %error, "no address for a session");
        match error {
            PoolError::Exhausted | PoolError::InUse => GsmCause::InsufficientResources,
            PoolError::Foreign => GsmCause::RequestRejected,
        }
    })
}

/// What a subscription allows a session.
pub(crate) fn subscribed_qos(subscribed: &DnnConfiguration) -> SessionQos {
    let flow = subscribed.five_g_qos_profile.as_ref();
    SessionQos {
        ambr: subscribed.session_ambr.unwrap_or(DEFAULT_AMBR),
        five_qi: flow.map_or(DEFAULT_FIVE_QI, |flow| flow.five_qi),
        arp: flow.map_or(DEFAULT_ARP, |flow| flow.arp),
    }
}

/// The initial state: subscribed QoS, no UPF yet.
fn new_state(
    data: &SmContextCreateData,
    wanted: &SessionParameters,
    subscribed: &DnnConfiguration,
    session_type: PduSessionType,
    addresses: Addresses,
) -> SessionState {
    let subscribed = subscribed_qos(subscribed);
    SessionState {
        phase: Phase::Establishing,
        up: UpState::Deactivated,
        activations: 0,
        unreachable: false,
        session_type,
        security_indication: None,
        addresses,
        subscribed,
        qos: subscribed,
        plmn: data.serving_network,
        amf: wanted.amf.clone(),
        amf_since: time::wall_clock(),
        status_uri: data.sm_context_status_uri.clone(),
        upf: None,
        gnb: None,
        policy: None,
        registration: None,
        pti: wanted.pti,
        release_command: None,
        modification_command: None,
        pco: wanted.request.pco.clone(),
    }
}

/// Steps 7 to 11, and the wait for the gNB's answer.
async fn establish(smf: Arc<Smf>, session: Arc<Session>, answer: Answer, mut times: Times) {
    let (prepared, worked) = at_work(prepare(&smf, &session, &answer)).await;
    times.at_work += worked;
    let (amf, what) = match prepared {
        Ok(Some(ready)) => ready,
        // Another procedure has ended the session. A reject would reach the UE as one of the session
        // that replaced it.
        Ok(None) => return,
        Err(cause) => {
            times.record(&smf, &session, format!("#{}", cause.number()));
            fail(&smf, &session, cause).await;
            return;
        }
    };
    // The gNB's answer may arrive before the AMF's, so the wait begins before the transfer.
    let activated = session.wait_for_phase(|phase| phase != Phase::Establishing);
    let (sent, worked) = at_work(smf.transfer(&session, &amf, what)).await;
    times.at_work += worked;
    if sent.is_err() {
        // The AMF no longer has the UE: it has released its part of the session.
        times.record(&smf, &session, "amf".into());
        release::locally(&smf, &session, release::Notify::Amf(None)).await;
        return;
    }
    ESTABLISHED.inc();
    times.record(&smf, &session, "ok".into());
    register(&smf, &session).await;
    let guard = Duration::from_millis(smf.config.timers.establishment_guard_ms);
    if time::timeout(guard, activated).await.is_err() {
        tracing::info!(supi = %session.supi, id = %session.id, "the gNB did not answer: session released");
        release::locally(&smf, &session, release::Notify::Amf(Some(Cause::FiveGAnNotResponding))).await;
    }
}

/// UDM learns which SMF has the session and is to tell of changes (step 4). The establishment needs neither: they wait
/// until UE and gNB are served.
async fn register(smf: &Arc<Smf>, session: &Arc<Session>) {
    let mut state = session.state.lock().await;
    if matches!(state.phase, Phase::Establishing | Phase::Active) {
        state.registration = Some(tokio::spawn({
            let (smf, session, plmn) = (smf.clone(), session.clone(), state.plmn);
            async move {
                let registered = smf.register(&session, plmn).await;
                subscription_change::watch(&smf, &session, plmn).await;
                registered
            }
        }));
    }
}

/// Gets the policy and sets up the user plane. Returns the messages for UE and gNB, or `None` if the
/// session was ended meanwhile.
async fn prepare(
    smf: &Arc<Smf>,
    session: &Arc<Session>,
    answer: &Answer,
) -> Result<Option<(ApiRoot, Transfer)>, GsmCause> {
    let mut state = session.state.lock().await;
    // The session was ended: nothing would release what is set up for it now.
    if state.phase != Phase::Establishing {
        return Ok(None);
    }
    let network = smf.networks.get(&session.dnn).ok_or(GsmCause::MissingOrUnknownDnn)?;
    // Steps 7 and 10 run in parallel: the PCF seldom changes the subscribed values, and if it does the
    // UPF is updated.
    let (policy, on_upf) = tokio::join!(
        smf.create_policy(Target::Discover, session, &state),
        establish_n4(smf, session, &state)
    );
    // Stored before errors are handled, so that the release also releases it.
    let on_upf = on_upf.map(|upf| state.upf = Some(upf));
    let policy = policy.map(|policy| {
        let (policy, decision) = policy?;
        state.policy = Some(policy);
        Some(decision)
    });
    on_upf.map_err(|error| {
        tracing::warn!(supi = %session.supi, %error, "session not established on a UPF");
        match error {
            N4Error::NoUpf | N4Error::Refused(pfcp::Cause::NO_RESOURCES | pfcp::Cause::CONGESTION) => {
                GsmCause::InsufficientResources
            }
            _ => GsmCause::NetworkFailure,
        }
    })?;
    if let Some(decision) = policy? {
        state.qos = authorised(&decision, state.subscribed);
        if state.qos.ambr != state.subscribed.ambr {
            let change = rules::change_ambr(state.qos.ambr);
            user_plane::modify(smf, session, &mut state, change)
                .await
                .map_err(|_| GsmCause::NetworkFailure)?;
        }
    }
    session.publish_advertisement(network, &state);
    let n3 = state.upf.map(|upf| upf.tunnels.n3).ok_or(GsmCause::NetworkFailure)?;
    let transfer = n2::setup_request(session, &state, n3).ok_or(GsmCause::NetworkFailure)?;
    let accept =
        n1::establishment_accept(session, &state, &network.config, answer.type_cause, answer.always_on);
    state.up = UpState::Activating;
    let what = Transfer {
        n1: Some(accept),
        n2: Some((N2SmInfoType::PduResSetupReq, transfer)),
        ..Default::default()
    };
    Ok(Some((state.amf.clone(), what)))
}

/// N4 session establishment (step 10).
async fn establish_n4(smf: &Smf, session: &Session, state: &SessionState) -> Result<UpfSession, N4Error> {
    let (address, own) = (smf.n4.select_upf()?, session.seid());
    let rules = session.rules(smf, state);
    let answer = smf.n4.request(address, Seids { own, upf: 0 }, rules.establishment(None, None)).await?;
    let Message::SessionEstablishmentResponse(response) = answer else { return Err(N4Error::Unusable) };
    let seid = response.up_f_seid.ok_or(N4Error::Unusable)?.seid;
    let Some(tunnels) = rules.chosen(&response) else {
        // A session that we cannot use must not stay on the UPF.
        let seids = Seids { own, upf: seid };
        let _ = smf.n4.request(address, seids, pfcp::message::SessionDeletionRequest {}).await;
        return Err(N4Error::Unusable);
    };
    session.usage().begins_at(address);
    Ok(UpfSession { address, seid, epoch: smf.n4.epoch(address), tunnels })
}

/// Rejects the session: tells the UE the cause, releases everything, and notifies the AMF.
pub(crate) async fn fail(smf: &Arc<Smf>, session: &Arc<Session>, cause: GsmCause) {
    REJECTED.inc(&cause.number().to_string());
    let (amf, pti) = {
        let state = session.state.lock().await;
        (state.amf.clone(), state.pti)
    };
    let n1 = n1::establishment_reject(session.id, pti, cause);
    // If this fails, the AMF no longer has the UE, and nobody needs the message.
    let _ = smf.transfer(session, &amf, Transfer { n1: Some(n1), ..Default::default() }).await;
    release::locally(smf, session, release::Notify::Amf(None)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_uris_are_those_that_can_be_called() {
        let root = |uri| amf_of(uri).ok().map(|root| root.to_string());
        let good = "http://127.0.0.5:7777/namf-callback/v1/sm-context-status/imsi-1%2F5";
        assert_eq!(root(good).as_deref(), Some("http://127.0.0.5:7777"));
        let bad = [
            "",
            "http://",
            "ftp://127.0.0.5/x",
            "127.0.0.5/x",
            "http://127.0.0.5/a b",
            "http://127.0.0.5/\r\nx: y",
            "http://127.0.0.5/x#y",
            "http://127.0.0.5/\u{e9}",
        ];
        for uri in bad {
            assert_eq!(root(uri), None, "{uri:?}");
        }
    }
}
