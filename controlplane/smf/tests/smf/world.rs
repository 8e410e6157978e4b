//! An SMF among peers: UDM, PCF and AMF as real SBI servers, a UPF that speaks PFCP over UDP.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use nas::gsm::{EstablishmentAccept, EstablishmentRequest};
use nas::{SmBody, SmMessage};
use net::time;
use ngap::GtpTunnel;
use ngap::transfer::*;
use pfcp::endpoint::{Endpoint, Event};
use pfcp::message::*;
use pfcp::{CreatedPdr, FSeid, FTeid, Message, NodeId, NtpSeconds, PdrId, UpFunctionFeatures};
use sbi::model::amf::*;
use sbi::model::common::{AccessType, DateTime, NfInstanceId};
use sbi::model::nrf::{
    NfProfile, NfType, NotificationData, NotificationEventType, SearchResult, SubscriptionData,
};
use sbi::model::pcf::{SmPolicyDecision, SmPolicyUpdateContextData};
use sbi::model::smf::*;
use sbi::model::udm::{
    DnnConfiguration, ModificationNotification, PduSessionTypes, SdmSubscription,
    SessionManagementSubscriptionData, SmSubsData, SscModes,
};
use sbi::op::amf::{N1N2MessageTransfer, N1N2MessageTransferRequest};
use sbi::op::nrf::{DiscoverNf, DiscoverNfRequest, NfStatusNotify, SubscribeNf, SubscribeNfRequest};
use sbi::op::pcf::*;
use sbi::op::smf::*;
use sbi::op::udm::*;
use sbi::{
    Client, ClientConfig, Created, Initiated, Notification, ProblemDetails, ResourceUri, Router, Stored,
};
use tokio::sync::mpsc;
use types::{Ambr, BitRate, Dnn, PduSessionId, PduSessionType, Pti, Qfi, SNssai, SscMode, Supi, Teid};

const PATIENCE: Duration = Duration::from_secs(20);

/// Requests that reached the peers.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a handful exist")]
pub enum Seen {
    Transfer { n1: Option<SmMessage>, n2: Option<(N2SmInfoType, Bytes)>, skip: bool },
    Released(String),
    PolicyDeleted,
    Registered,
    Deregistered,
}

/// State of UDM, PCF and AMF.
pub struct Peers {
    seen: mpsc::UnboundedSender<Seen>,
    pub udm_silent: AtomicBool,
    pub pcf_refuses: AtomicBool,
    /// The AMF answers that it does not know the UE.
    pub amf_refuses: AtomicBool,
    /// The AMF answers that it is congested.
    pub amf_congested: AtomicBool,
    /// Session AMBR of every subscriber; `None`: nobody is subscribed to the data network.
    pub subscribed: Mutex<Option<Ambr>>,
    /// Where the SMF wants to hear of changes, and how often it has said so.
    sdm_callback: Mutex<Option<String>>,
    pub sdm_subscriptions: AtomicU32,
    /// What the PCF was told of changed subscriptions.
    pub policy_updates: Mutex<Vec<SmPolicyUpdateContextData>>,
    /// Where the PCF tells of the policy it gave last.
    pub policy_uri: Mutex<Option<String>>,
    /// Number of policy associations.
    pub policies: AtomicI32,
    pub types: Mutex<Vec<PduSessionType>>,
    /// The PCF's decision.
    pub decision: Mutex<SmPolicyDecision>,
    /// The PCF has lost the policy associations that it gave.
    pub policies_lost: AtomicBool,
    /// How often the PCF was asked for an association.
    pub policies_read: AtomicU32,
    /// Where the NRF tells of AMF and PCF, when these started, and where they are.
    nrf_callback: Mutex<Option<String>>,
    recovery_times: Mutex<HashMap<&'static str, DateTime>>,
    address: OnceLock<SocketAddr>,
}

impl Peers {
    /// AMF or PCF as the NRF knows it, at the address of the peers.
    fn profile(&self, nf_type: &str) -> Option<NfProfile> {
        let recovery_time = self.recovery_times.lock().expect("test").get(nf_type)?.clone();
        let at = self.address.get()?;
        let service = if nf_type == "AMF" { "namf-comm" } else { "npcf-smpolicycontrol" };
        let profile = serde_json::json!({
            "nfInstanceId": NfInstanceId::from_name(nf_type), "nfType": nf_type,
            "nfStatus": "REGISTERED", "recoveryTime": recovery_time,
            "nfServices": [{
                "serviceInstanceId": "1", "serviceName": service, "scheme": "http",
                "versions": [{"apiVersionInUri": "v1", "apiFullVersion": "1.0.0"}],
                "nfServiceStatus": "REGISTERED",
                "ipEndPoints": [{"ipv4Address": at.ip(), "port": at.port()}],
            }],
        });
        Some(serde_json::from_value(profile).expect("a profile"))
    }
}

async fn subscribe_nf(
    peers: Arc<Peers>,
    request: SubscribeNfRequest,
) -> Result<Created<SubscriptionData>, ProblemDetails> {
    let mut body = request.body;
    *peers.nrf_callback.lock().expect("test") = Some(body.nf_status_notification_uri.clone());
    body.subscription_id = Some("1".to_owned());
    Ok(Created { location: "/subscriptions/1".to_owned(), body })
}

async fn discover(peers: Arc<Peers>, request: DiscoverNfRequest) -> Result<SearchResult, ProblemDetails> {
    let nf_instances = peers.profile(request.target_nf_type.as_str()).into_iter().collect();
    Ok(SearchResult { validity_period: 60, nf_instances })
}

async fn sm_data(peers: Arc<Peers>, request: GetSmDataRequest) -> Result<SmSubsData, ProblemDetails> {
    if peers.udm_silent.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    if request.supi.to_string().ends_with("99") {
        return Err(ProblemDetails::user_not_found());
    }
    if peers.subscribed.lock().expect("test").is_none() {
        return Err(ProblemDetails::new(404, "DATA_NOT_FOUND"));
    }
    let types = peers.types.lock().expect("test").clone();
    let dnn_configuration = DnnConfiguration {
        pdu_session_types: PduSessionTypes {
            default_session_type: types.first().copied(),
            allowed_session_types: types,
        },
        ssc_modes: SscModes { default_ssc_mode: SscMode::Mode1, allowed_ssc_modes: vec![] },
        five_g_qos_profile: None,
        session_ambr: *peers.subscribed.lock().expect("test"),
        static_ip_address: vec![],
    };
    Ok(SmSubsData(vec![SessionManagementSubscriptionData {
        single_nssai: slice(),
        dnn_configurations: [(dnn("internet"), dnn_configuration)].into(),
    }]))
}

pub fn ambr(uplink_kbps: u64, downlink_kbps: u64) -> Ambr {
    Ambr { uplink: BitRate::from_kbps(uplink_kbps), downlink: BitRate::from_kbps(downlink_kbps) }
}

async fn sdm_subscribe(
    peers: Arc<Peers>,
    request: SdmSubscribeRequest,
) -> Result<Created<SdmSubscription>, ProblemDetails> {
    let supi = request.ue_id;
    assert_eq!(request.body.monitored_resource_uris, [format!("{supi}/sm-data")]);
    *peers.sdm_callback.lock().expect("test") = Some(request.body.callback_reference.clone());
    peers.sdm_subscriptions.fetch_add(1, Ordering::Relaxed);
    Ok(Created { location: format!("/{supi}/sdm-subscriptions/1"), body: request.body })
}

async fn update_policy(
    peers: Arc<Peers>,
    request: UpdateSmPolicyRequest,
) -> Result<SmPolicyDecision, ProblemDetails> {
    if peers.policies_lost.load(Ordering::Relaxed) {
        return Err(ProblemDetails::new(404, "POLICY_ASSOCIATION_NOT_FOUND"));
    }
    peers.policy_updates.lock().expect("test").push(request.body);
    Ok(peers.decision.lock().expect("test").clone())
}

async fn register(
    peers: Arc<Peers>,
    request: RegisterSmfRequest,
) -> Result<Stored<sbi::model::udm::SmfRegistration>, ProblemDetails> {
    let _ = peers.seen.send(Seen::Registered);
    Ok(Stored::Replaced(Some(request.body)))
}

async fn deregister(peers: Arc<Peers>, _: DeregisterSmfRequest) -> Result<(), ProblemDetails> {
    let _ = peers.seen.send(Seen::Deregistered);
    Ok(())
}

async fn create_policy(
    peers: Arc<Peers>,
    request: CreateSmPolicyRequest,
) -> Result<Created<SmPolicyDecision>, ProblemDetails> {
    if peers.pcf_refuses.load(Ordering::Relaxed) {
        return Err(ProblemDetails::new(403, "USER_UNKNOWN"));
    }
    *peers.policy_uri.lock().expect("test") = Some(request.body.notification_uri);
    let body = peers.decision.lock().expect("test").clone();
    peers.policies.fetch_add(1, Ordering::Relaxed);
    Ok(Created { location: "/sm-policies/1".into(), body })
}

async fn get_policy(
    peers: Arc<Peers>,
    _: GetSmPolicyRequest,
) -> Result<sbi::model::pcf::SmPolicyControl, ProblemDetails> {
    peers.policies_read.fetch_add(1, Ordering::Relaxed);
    if peers.policies_lost.load(Ordering::Relaxed) {
        return Err(ProblemDetails::new(404, "POLICY_ASSOCIATION_NOT_FOUND"));
    }
    // The SMF only wants to know that it is there.
    Err(ProblemDetails::new(503, "NF_CONGESTION"))
}

async fn delete_policy(peers: Arc<Peers>, _: DeleteSmPolicyRequest) -> Result<(), ProblemDetails> {
    peers.policies.fetch_sub(1, Ordering::Relaxed);
    let _ = peers.seen.send(Seen::PolicyDeleted);
    Ok(())
}

async fn transfer(
    peers: Arc<Peers>,
    request: N1N2MessageTransferRequest,
) -> Result<Initiated<N1N2MessageTransferRspData>, N1N2MessageTransferError> {
    let body = request.body;
    let n1 = body
        .n1_message_container
        .map(|n1| SmMessage::decode(n1.n1_message_content.bytes()).expect("SMF sends readable N1").message);
    let n2 = body
        .n2_info_container
        .and_then(|n2| n2.sm_info?.n2_info_content)
        .map(|content| (content.ngap_ie_type.expect("typed"), content.ngap_data.into_bytes()));
    let _ = peers.seen.send(Seen::Transfer { n1, n2, skip: body.skip_ind == Some(true) });
    if peers.amf_refuses.load(Ordering::Relaxed) {
        return Err(ProblemDetails::new(404, "CONTEXT_NOT_FOUND").into());
    }
    if peers.amf_congested.load(Ordering::Relaxed) {
        return Err(ProblemDetails::nf_congestion().into());
    }
    let body =
        N1N2MessageTransferRspData { cause: N1N2MessageTransferCause::Initiated, supported_features: None };
    Ok(Initiated::Done(body))
}

async fn status(
    peers: Arc<Peers>,
    body: Notification<SmContextStatusNotification>,
) -> Result<(), ProblemDetails> {
    if body.body.status_info.resource_status == ResourceStatus::Released {
        let _ = peers.seen.send(Seen::Released(body.id));
    }
    Ok(())
}

/// How the UPF answers requests.
pub const NORMAL: u8 = 0;
pub const SILENT: u8 = 1;
pub const REFUSING: u8 = 2;
/// Session modifications are lost.
pub const LOSING_MODIFICATIONS: u8 = 3;
/// Session modifications are refused: no packet could be sent into the tunnel.
pub const REFUSING_TUNNELS: u8 = 4;
/// Heartbeats of peers without association are ignored.
pub const IGNORING_STRANGERS: u8 = 5;

/// Types of messages, the second octet of each.
const HEARTBEAT: u8 = 1;
const ASSOCIATION_SETUP: u8 = 5;
pub const ESTABLISHMENT: u8 = 50;
pub const MODIFICATION: u8 = 52;

/// Makes an answer's octets of a request's.
type Write = Box<dyn Fn(&[u8]) -> Vec<u8> + Send>;

/// A PFCP endpoint without user plane.
pub struct TestUpf {
    pub address: SocketAddr,
    pub mode: AtomicU8,
    pub stamp: AtomicU32,
    /// Whether the UPF is associated.
    pub associated: AtomicBool,
    /// Number of lost datagrams.
    pub lost: AtomicU32,
    /// What answers requests of a type in place of the UPF: octets made of the request's octets.
    pub written: Mutex<HashMap<u8, Write>>,
    /// Sequence numbers of requests that were sent as octets, and the octets of the answers.
    forged: Mutex<HashSet<[u8; 3]>>,
    answers: mpsc::UnboundedSender<Vec<u8>>,
    /// By its SEID: the SMF's SEID and the request that made the session.
    pub sessions: Mutex<HashMap<u64, (u64, SessionEstablishmentRequest)>>,
    seen: mpsc::UnboundedSender<Message>,
    control: mpsc::UnboundedSender<Control>,
}

enum Control {
    Restart,
    Report(SocketAddr, u64, SessionReportRequest),
    Octets(SocketAddr, Vec<u8>),
}

impl TestUpf {
    fn endpoint(&self) -> Endpoint {
        let stamp = NtpSeconds(self.stamp.load(Ordering::Relaxed));
        Endpoint::new(pfcp::endpoint::Config::new(NodeId::from(self.address.ip()), stamp, 1))
    }

    /// Loses all sessions and continues with a new recovery time stamp.
    pub fn restart(&self) {
        self.sessions.lock().expect("test").clear();
        self.stamp.fetch_add(1, Ordering::Relaxed);
        self.associated.store(false, Ordering::Relaxed);
        let _ = self.control.send(Control::Restart);
    }

    pub fn report(&self, smf: SocketAddr, cp_seid: u64, report: SessionReportRequest) {
        let _ = self.control.send(Control::Report(smf, cp_seid, report));
    }

    /// Sends a request as octets; its answer comes as octets.
    pub fn write(&self, smf: SocketAddr, octets: Vec<u8>) {
        let sequence = octets[12..15].try_into().expect("a message with SEID");
        self.forged.lock().expect("test").insert(sequence);
        self.forge(smf, octets);
    }

    /// Sends what somebody who forges the UPF's address and port could send.
    pub fn forge(&self, smf: SocketAddr, octets: Vec<u8>) {
        let _ = self.control.send(Control::Octets(smf, octets));
    }

    async fn run(self: Arc<Self>, mut control: mpsc::UnboundedReceiver<Control>) {
        let socket = net::udp::bind(self.address).await.expect("own loopback address");
        let mut endpoint = self.endpoint();
        let mut buffer = vec![0; 65_536];
        loop {
            tokio::select! {
                received = socket.recv_from(&mut buffer) => {
                    let Ok((length, from)) = received else { continue };
                    let mode = self.mode.load(Ordering::Relaxed);
                    if buffer[1] == ASSOCIATION_SETUP && mode != SILENT {
                        self.associated.store(true, Ordering::Relaxed);
                    }
                    let lost = match mode {
                        SILENT => true,
                        LOSING_MODIFICATIONS => buffer[1] == MODIFICATION,
                        IGNORING_STRANGERS => buffer[1] == HEARTBEAT && !self.associated.load(Ordering::Relaxed),
                        _ => false,
                    };
                    let octets = &buffer[..length];
                    let has_seid = octets[0] & 1 == 1;
                    if has_seid && self.forged.lock().expect("test").contains(&octets[12..15]) {
                        let _ = self.answers.send(octets.to_vec());
                        continue;
                    }
                    let written = self.written.lock().expect("test").get(&octets[1]).map(|write| write(octets));
                    if let Some(answer) = written {
                        socket.send_to(&answer, from).await.expect("loopback");
                        continue;
                    }
                    if lost {
                        self.lost.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    endpoint.handle_datagram(time::now().into_std(), from, &buffer[..length]);
                }
                command = control.recv() => match command {
                    Some(Control::Restart) => endpoint = self.endpoint(),
                    Some(Control::Report(smf, seid, report)) => {
                        endpoint.send_request(time::now().into_std(), smf, seid, report).expect("room");
                    }
                    Some(Control::Octets(smf, octets)) => {
                        let _ = socket.send_to(&octets, smf).await;
                    }
                    None => return,
                },
            }
            while let Some(event) = endpoint.poll_event() {
                if let Event::Request { id, seid, message } = event {
                    let (peer_seid, response) = self.answer(seid.unwrap_or(0), &message);
                    endpoint.respond(time::now().into_std(), id, peer_seid, response).expect("a response");
                    let _ = self.seen.send(message);
                } else if let Event::Response { message, .. } = event {
                    let _ = self.seen.send(message);
                }
            }
            while let Some(transmit) = endpoint.poll_transmit() {
                let _ = socket.send_to(&transmit.payload, transmit.to).await;
            }
        }
    }

    fn answer(&self, seid: u64, message: &Message) -> (u64, Message) {
        let node_id = NodeId::from(self.address.ip());
        let mut sessions = self.sessions.lock().expect("test");
        match message {
            Message::AssociationSetupRequest(_) => {
                let response = AssociationSetupResponse {
                    node_id,
                    cause: pfcp::Cause::ACCEPTED,
                    recovery_time_stamp: NtpSeconds(self.stamp.load(Ordering::Relaxed)),
                    up_function_features: Some(UpFunctionFeatures::FTUP),
                    ..Default::default()
                };
                (0, response.into())
            }
            Message::SessionEstablishmentRequest(request) => {
                let peer = request.cp_f_seid.seid;
                if self.mode.load(Ordering::Relaxed) == REFUSING {
                    let cause = pfcp::Cause::NO_RESOURCES;
                    return (
                        peer,
                        SessionEstablishmentResponse { node_id, cause, ..Default::default() }.into(),
                    );
                }
                let seid = peer.wrapping_add(1000);
                // TEIDs of an existing session are not given out again, not even to that session.
                if sessions.contains_key(&seid) {
                    let cause = pfcp::Cause::REJECTED;
                    return (
                        peer,
                        SessionEstablishmentResponse { node_id, cause, ..Default::default() }.into(),
                    );
                }
                let created = |pdr: &pfcp::CreatePdr| match pdr.pdi.f_teid? {
                    FTeid::Choose { id, .. } => {
                        let teid = (peer as u32) << 8 | u32::from(id.unwrap_or(0));
                        Some((pdr.pdr_id, FTeid::Assigned { teid, ipv4: v4(self.address.ip()), ipv6: None }))
                    }
                    FTeid::Assigned { .. } => None,
                };
                let created_pdrs = request
                    .create_pdrs
                    .iter()
                    .filter_map(created)
                    .map(|(pdr_id, f_teid)| CreatedPdr { pdr_id, f_teid: Some(f_teid), ue_ip_address: None });
                let response = SessionEstablishmentResponse {
                    node_id,
                    cause: pfcp::Cause::ACCEPTED,
                    up_f_seid: Some(FSeid::new(seid, self.address.ip())),
                    created_pdrs: created_pdrs.collect(),
                    ..Default::default()
                };
                sessions.insert(seid, (peer, request.clone()));
                (peer, response.into())
            }
            Message::SessionModificationRequest(_) => match sessions.get(&seid) {
                Some((peer, _)) if self.mode.load(Ordering::Relaxed) == REFUSING_TUNNELS => {
                    let cause = pfcp::Cause::MANDATORY_IE_INCORRECT;
                    (*peer, SessionModificationResponse { cause, ..Default::default() }.into())
                }
                Some((peer, _)) => (*peer, accepted_modification()),
                None => {
                    let cause = pfcp::Cause::SESSION_NOT_FOUND;
                    (0, SessionModificationResponse { cause, ..Default::default() }.into())
                }
            },
            Message::SessionDeletionRequest(_) => {
                let cause =
                    |found| if found { pfcp::Cause::ACCEPTED } else { pfcp::Cause::SESSION_NOT_FOUND };
                let removed = sessions.remove(&seid);
                let response =
                    SessionDeletionResponse { cause: cause(removed.is_some()), ..Default::default() };
                (removed.map_or(0, |(peer, _)| peer), response.into())
            }
            other => panic!("the SMF should not send {other:?}"),
        }
    }
}

fn accepted_modification() -> Message {
    SessionModificationResponse { cause: pfcp::Cause::ACCEPTED, ..Default::default() }.into()
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

pub fn slice() -> SNssai {
    SNssai::from_octets(1, None)
}

pub fn dnn(name: &str) -> Dnn {
    Dnn::new(name).expect("a DNN")
}

pub fn supi(n: u32) -> Supi {
    format!("imsi-9997000000{n:05}").parse().expect("a SUPI")
}

pub fn id(n: u8) -> PduSessionId {
    PduSessionId::new(n).expect("an identity")
}

/// The SMF with its peers.
pub struct World {
    pub running: nf::Running,
    pub n4: SocketAddr,
    pub n4u: SocketAddr,
    pub client: Client,
    pub peers: Arc<Peers>,
    pub upf: Arc<TestUpf>,
    pub seen: mpsc::UnboundedReceiver<Seen>,
    pub at_upf: mpsc::UnboundedReceiver<Message>,
    /// Answers to what was sent as octets.
    pub answers: mpsc::UnboundedReceiver<Vec<u8>>,
    pub amf: String,
    pub run_dir: std::path::PathBuf,
    _server: sbi::Server,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl World {
    pub async fn new() -> World {
        Self::with(|_| {}).await
    }

    /// A world with a changed configuration of the SMF.
    pub async fn with(change: impl FnOnce(&mut serde_json::Value)) -> World {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let net = |host: u32| format!("127.{}.{}.{host}", 20 + std::process::id() % 200, n);
        let (sender, seen) = mpsc::unbounded_channel();
        let peers = Arc::new(Peers {
            seen: sender,
            udm_silent: false.into(),
            pcf_refuses: false.into(),
            amf_refuses: false.into(),
            amf_congested: false.into(),
            subscribed: Mutex::new(Some(ambr(100_000, 200_000))),
            sdm_callback: Mutex::default(),
            sdm_subscriptions: 0.into(),
            policy_updates: Mutex::default(),
            policy_uri: Mutex::default(),
            policies: 0.into(),
            decision: Mutex::default(),
            policies_lost: false.into(),
            policies_read: 0.into(),
            nrf_callback: Mutex::default(),
            recovery_times: Mutex::default(),
            address: OnceLock::new(),
            types: Mutex::new(vec![PduSessionType::Ipv4, PduSessionType::Ipv6, PduSessionType::Ipv4v6]),
        });
        let router = Router::new(peers.clone())
            .on::<GetSmData>(sm_data)
            .on::<SdmSubscribe>(sdm_subscribe)
            .on::<UpdateSmPolicy>(update_policy)
            .on::<RegisterSmf>(register)
            .on::<DeregisterSmf>(deregister)
            .on::<CreateSmPolicy>(create_policy)
            .on::<GetSmPolicy>(get_policy)
            .on::<DeleteSmPolicy>(delete_policy)
            .on::<SubscribeNf>(subscribe_nf)
            .on::<DiscoverNf>(discover)
            .on::<N1N2MessageTransfer>(transfer)
            .on::<SmContextStatusNotify>(status);
        let server = sbi::serve(router, "127.0.0.1:0".parse().expect("address"), Default::default());
        let server = server.await.expect("loopback");
        peers.address.set(server.address()).expect("set once");
        let (upf, at_upf, answers) = start_upf(format!("{}:8805", net(7)).parse().expect("address"));
        let mut config = serde_json::json!({
            "sbi": format!("{}:0", net(4)), "pfcp": format!("{}:8805", net(4)), "gtpu": format!("{}:2152", net(4)),
            "upf": [upf.address],
            "dnn": [{"name": "internet", "ue_pool": {"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"},
                     "dns": ["1.1.1.1", "2606:4700:4700::1111"]}],
            "timers": {"t3592_ms": 150, "establishment_guard_ms": 2000, "activation_retry_ms": 200, "unreachable_ms": 200,
                       "pfcp_t1_ms": 60, "pfcp_heartbeat_ms": 100},
        });
        change(&mut config);
        let config: smf::Config = serde_json::from_value(config).expect("configuration");
        let run_dir = std::env::temp_dir().join(format!("godwit-smf-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&run_dir).expect("temporary folder");
        let mut env = nf::Env::new(&run_dir, Some(server.address().into()));
        for kind in [NfType::Udm, NfType::Pcf, NfType::Amf] {
            env.client.peers.insert(kind, server.address().into());
        }
        env.client.timeout = Duration::from_millis(500);
        let (n4, n4u) = (config.pfcp, config.gtpu);
        let running = smf::start(config, env).await.expect("SMF starts");
        let mut world = World {
            n4,
            n4u,
            client: Client::new(ClientConfig::default()),
            amf: format!("http://{}", server.address()),
            running,
            peers,
            upf,
            seen,
            at_upf,
            answers,
            run_dir,
            _server: server,
        };
        world.associated().await;
        world
    }

    async fn associated(&mut self) {
        while !matches!(self.next_at_upf().await, Message::AssociationSetupRequest(_)) {}
        // The response is under way: wait until the SMF has received it.
        let deadline = time::now() + PATIENCE;
        loop {
            let status = self.oam("GET", "/status").await;
            if status["detail"]["upfs"][0]["associated"] == true {
                return;
            }
            assert!(time::now() < deadline, "{status}");
            time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The NRF tells that an AMF or PCF has registered, having started at `recovery_time`.
    pub async fn started(&self, nf_type: &'static str, recovery_time: std::time::SystemTime) {
        let recovery_time = DateTime::with_milliseconds(recovery_time);
        self.peers.recovery_times.lock().expect("test").insert(nf_type, recovery_time);
        let uri = self.peers.nrf_callback.lock().expect("test").clone().expect("the SMF subscribes");
        let body = NotificationData {
            event: NotificationEventType::Registered,
            nf_instance_uri: String::new(),
            nf_profile: None,
        };
        self.client.notify::<NfStatusNotify>(&uri, body).await.expect("served");
    }

    /// The UDM tells of a changed subscription.
    pub async fn subscription_changed(&self) -> Result<(), sbi::CallError> {
        let uri = self.peers.sdm_callback.lock().expect("test").clone().expect("the SMF subscribes");
        let body = ModificationNotification { notify_items: vec![], subscription_id: None };
        self.client.notify::<SdmNotify>(&uri, body).await
    }

    pub async fn oam(&self, method: &str, route: &str) -> serde_json::Value {
        nf::oam::call(self.running.oam(), method, route, None).await.expect("OAM")
    }

    pub async fn next(&mut self) -> Seen {
        time::timeout(PATIENCE, self.seen.recv()).await.expect("a peer is called").expect("peers live")
    }

    pub async fn next_at_upf(&mut self) -> Message {
        time::timeout(PATIENCE, self.at_upf.recv()).await.expect("the UPF is called").expect("UPF lives")
    }

    /// The next transfer; registrations at the UDM are skipped.
    pub async fn next_transfer(&mut self) -> (Option<SmMessage>, Option<(N2SmInfoType, Bytes)>) {
        loop {
            match self.next().await {
                Seen::Transfer { n1, n2, .. } => return (n1, n2),
                Seen::Registered => {}
                other => panic!("expected a transfer, saw {other:?}"),
            }
        }
    }

    /// CreateSMContext as an AMF sends it.
    pub async fn create(
        &self,
        supi: Supi,
        session: PduSessionId,
        name: &str,
        n1: &SmMessage,
    ) -> Result<ResourceUri, sbi::CallError<SmContextCreateError>> {
        let octets = n1.encode().expect("a message");
        self.create_with(supi, session, name, octets.into()).await
    }

    pub async fn create_with(
        &self,
        supi: Supi,
        session: PduSessionId,
        name: &str,
        n1: Bytes,
    ) -> Result<ResourceUri, sbi::CallError<SmContextCreateError>> {
        let data = serde_json::json!({
            "supi": supi, "pduSessionId": session, "dnn": name, "sNssai": slice(),
            "servingNfId": NfInstanceId::from_random(7), "servingNetwork": {"mcc": "999", "mnc": "70"},
            "anType": AccessType::ThreeGpp,
            "smContextStatusUri": format!("{}/nsmf-callback/v1/sm-context-status/{supi}-{session}", self.amf),
        });
        let mut body: SmContextCreateData = serde_json::from_value(data).expect("create data");
        body.n1_sm_msg = Some(n1.into());
        let request = CreateSmContextRequest { body };
        let created = self.client.call::<CreateSmContext>(self.running.sbi(), request).await?;
        Ok(ResourceUri::parse(&created.location, &NSMF_PDUSESSION).expect("a location"))
    }

    pub async fn update(
        &self,
        context: &ResourceUri,
        body: SmContextUpdateData,
    ) -> Result<SmContextUpdatedData, sbi::CallError<SmContextUpdateError>> {
        let request = UpdateSmContextRequest { sm_context_ref: context.id.clone(), body };
        self.client.call::<UpdateSmContext>(context, request).await.map(Option::unwrap_or_default)
    }

    /// Sends an N1 message of the session and returns the SMF's answer.
    pub async fn ue_says(&self, context: &ResourceUri, message: &SmMessage) -> SmContextUpdatedData {
        let n1 = message.encode().expect("a message");
        let body = SmContextUpdateData { n1_sm_msg: Some(n1.into()), ..Default::default() };
        self.update(context, body).await.expect("update is served")
    }

    pub async fn gnb_says(
        &self,
        context: &ResourceUri,
        kind: N2SmInfoType,
        octets: Bytes,
    ) -> SmContextUpdatedData {
        let body = SmContextUpdateData {
            n2_sm_info: Some(octets.into()),
            n2_sm_info_type: Some(kind),
            ..Default::default()
        };
        self.update(context, body).await.expect("update is served")
    }

    /// A whole establishment; afterwards both queues are empty.
    pub async fn establish(
        &mut self,
        supi: Supi,
        session: PduSessionId,
        kind: PduSessionType,
    ) -> Established {
        let context = self.create(supi, session, "internet", &request(session, kind)).await.expect("created");
        let establishment = loop {
            if let Message::SessionEstablishmentRequest(request) = self.next_at_upf().await {
                break request;
            }
        };
        let mut registered = false;
        let (n1, n2) = loop {
            match self.next().await {
                Seen::Transfer { n1, n2, .. } => break (n1, n2),
                Seen::Registered => registered = true,
                other => panic!("{other:?}"),
            }
        };
        let message = n1.expect("accept for the UE");
        let SmBody::EstablishmentAccept(accept) = message.body else { panic!("{message:?}") };
        assert_eq!((message.pdu_session_id, message.pti), (Some(session), Pti(9)));
        let (kind, octets) = n2.expect("setup for the gNB");
        assert_eq!(kind, N2SmInfoType::PduResSetupReq);
        let setup = PduSessionResourceSetupRequestTransfer::decode(&octets).expect("readable");
        let updated = self.gnb_says(&context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
        assert_eq!(updated.up_cnx_state, Some(UpCnxState::Activated));
        let Message::SessionModificationRequest(modification) = self.next_at_upf().await else { panic!() };
        if !registered {
            assert!(matches!(self.next().await, Seen::Registered));
        }
        Established { context, accept, setup, establishment, modification }
    }

    pub fn sessions_at_upf(&self) -> usize {
        self.upf.sessions.lock().expect("test").len()
    }
}

type Started = (Arc<TestUpf>, mpsc::UnboundedReceiver<Message>, mpsc::UnboundedReceiver<Vec<u8>>);

pub fn start_upf(address: SocketAddr) -> Started {
    let (answers, answered) = mpsc::unbounded_channel();
    let (seen, at_upf) = mpsc::unbounded_channel();
    let (control, commands) = mpsc::unbounded_channel();
    let upf = TestUpf {
        address,
        mode: NORMAL.into(),
        stamp: 1000.into(),
        associated: false.into(),
        lost: 0.into(),
        written: Mutex::default(),
        forged: Mutex::default(),
        answers,
        sessions: Mutex::default(),
        seen,
        control,
    };
    let upf = Arc::new(upf);
    tokio::spawn(upf.clone().run(commands));
    (upf, at_upf, answered)
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.run_dir);
    }
}

/// The messages of an establishment.
pub struct Established {
    pub context: ResourceUri,
    pub accept: EstablishmentAccept,
    pub setup: PduSessionResourceSetupRequestTransfer,
    pub establishment: SessionEstablishmentRequest,
    pub modification: SessionModificationRequest,
}

pub fn request(session: PduSessionId, kind: PduSessionType) -> SmMessage {
    SmMessage::new(session, Pti(9), SmBody::EstablishmentRequest(EstablishmentRequest::new(kind)))
}

pub fn gnb_tunnel() -> GtpTunnel {
    GtpTunnel { address: ngap::TransportAddress::V4([10, 200, 0, 2].into()), teid: Teid(0xbeef) }
}

pub fn gnb_answer() -> Bytes {
    let transfer = PduSessionResourceSetupResponseTransfer {
        dl_tunnel: gnb_tunnel(),
        qos_flows: vec![Qfi::new(1).expect("a QFI")],
        security_result: None,
        failed_qos_flows: vec![],
    };
    transfer.encode().expect("a transfer")
}

/// A PDR of an establishment.
pub fn pdr(request: &SessionEstablishmentRequest, id: u16) -> Option<&pfcp::CreatePdr> {
    request.create_pdrs.iter().find(|pdr| pdr.pdr_id == PdrId(id))
}
