//! The other NFs, scripted: AUSF, UDM, PCF and SMF at one address, with real 5G-AKA, and failures on
//! request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nas::aka::{self, Milenage};
use sbi::model::amf::*;
use sbi::model::ausf::*;
use sbi::model::common::{AuthType, Link, Nssai};
use sbi::model::nrf::{NotificationData, NotificationEventType, SearchResult, SubscriptionData};
use sbi::model::pcf::PolicyAssociation;
use sbi::model::smf::*;
use sbi::model::udm::{
    AccessAndMobilitySubscriptionData, Amf3GppAccessRegistration, DeregistrationData, DeregistrationReason,
    DnnInfo, ModificationNotification, SdmSubscription, SmfSelectionSubscriptionData, SnssaiInfo,
};
use sbi::op::{amf as amf_op, ausf, nrf, pcf, smf, udm};
use sbi::{
    ApiRoot, Client, ClientConfig, Created, ProblemDetails, Router, Server, ServerConfig, Stored, serve,
};
use types::{Key, PduSessionId, Supi};

/// Key material of every subscriber.
pub fn milenage() -> Milenage {
    let k: Key<16> = "465B5CE8B199B49FAA5F0A2EE238A6BC".parse().unwrap();
    let opc: Key<16> = "E8ED289DEBA952E4283B54E88E6183CA".parse().unwrap();
    Milenage::new(&k, &opc)
}

/// How an operation fails.
#[derive(Clone)]
pub enum Fault {
    Refuse(u16, &'static str),
    Hang,
}

/// How the SMF behaves.
#[derive(Clone, Copy, PartialEq)]
pub enum SmfMode {
    /// Accepts, and sends N1 and N2.
    Works,
    /// Accepts, and never sends anything.
    Silent,
    /// Refuses at once, with its reject for the UE.
    Rejects,
    /// Accepts, then rejects by N1 only.
    RejectsLater,
}

pub struct Session {
    pub status_uri: String,
    /// `activated` when the gNB's tunnel is known.
    pub up: bool,
}

pub struct Core {
    sqn: Mutex<HashMap<Supi, u64>>,
    authentications: Mutex<HashMap<String, (Supi, aka::Vector)>>,
    next: AtomicU32,
    pub sessions: Mutex<BTreeMap<String, Session>>,
    pub calls: Mutex<Vec<String>>,
    pub faults: Mutex<HashMap<&'static str, Fault>>,
    /// How long every operation takes.
    pub delay: Mutex<Duration>,
    pub smf_mode: Mutex<SmfMode>,
    /// Subscribed slices: the defaults, and the others.
    pub slices: Mutex<Vec<types::SNssai>>,
    pub other_slices: Mutex<Vec<types::SNssai>>,
    /// The AMF's reasons for undelivered transfers.
    pub not_delivered: Mutex<Vec<N1N2MessageTransferCause>>,
    /// The SMF's URI for these reports.
    pub failure_uri: OnceLock<String>,
    pub amf: OnceLock<ApiRoot>,
    pub client: Client,
    /// The PCF's callback URI for the latest policy.
    pub policy_uri: Mutex<Option<String>>,
    /// The SMF's address.
    sessions_at: OnceLock<std::net::SocketAddr>,
    /// Where the NRF tells of SMF and PCF.
    pub nrf_callback: Mutex<Option<String>>,
    /// When SMF and PCF started, as the NRF knows it.
    recovery_times: Mutex<BTreeMap<&'static str, String>>,
    /// AM policy associations that the PCF has.
    pub policies: Mutex<BTreeSet<String>>,
    /// The bit rate that it gives with each.
    pub policy_ambr: Mutex<Option<types::Ambr>>,
    pub serving: Mutex<HashMap<Supi, Amf3GppAccessRegistration>>,
    /// Where the AMF wants to hear of changes of a subscription.
    pub sdm_callbacks: Mutex<HashMap<Supi, String>>,
    pub ambr: Mutex<&'static str>,
}

/// N1 and N2 information like an SMF's; the AMF does not read either.
pub const ACCEPT_N1: &[u8] = &[0x2e, 1, 1, 0xc2, 0x11];
pub const REJECT_N1: &[u8] = &[0x2e, 1, 1, 0xc3, 0x1b];
pub const RELEASE_N1: &[u8] = &[0x2e, 1, 0, 0xd3, 0x24];
pub const SETUP_N2: &[u8] = b"setup request transfer";
pub const RELEASE_N2: &[u8] = b"release command transfer";

impl Core {
    pub async fn start() -> (Arc<Core>, Server) {
        let core = Arc::new(Core {
            sqn: Mutex::default(),
            authentications: Mutex::default(),
            next: AtomicU32::new(1),
            sessions: Mutex::default(),
            calls: Mutex::default(),
            faults: Mutex::default(),
            delay: Mutex::default(),
            smf_mode: Mutex::new(SmfMode::Works),
            slices: Mutex::new(vec!["1".parse().unwrap()]),
            other_slices: Mutex::default(),
            not_delivered: Mutex::default(),
            failure_uri: OnceLock::new(),
            amf: OnceLock::new(),
            client: Client::new(ClientConfig::default()),
            policy_uri: Mutex::default(),
            sessions_at: OnceLock::new(),
            nrf_callback: Mutex::default(),
            recovery_times: Mutex::new(BTreeMap::from([("SMF", "2026-01-01T00:00:00.000Z".to_owned())])),
            policies: Mutex::default(),
            policy_ambr: Mutex::default(),
            serving: Mutex::default(),
            sdm_callbacks: Mutex::default(),
            ambr: Mutex::new("1 Gbps"),
        });
        let router = Router::new(core.clone())
            .on::<ausf::Authenticate>(authenticate)
            .on::<ausf::Confirm5gAka>(confirm)
            .on::<udm::GetAmData>(am_data)
            .on::<udm::GetSmfSelectData>(smf_select)
            .on::<udm::RegisterAmf>(register_amf)
            .on::<udm::UpdateAmf>(update_amf)
            .on::<udm::SdmSubscribe>(sdm_subscribe)
            .on::<pcf::CreateAmPolicy>(create_policy)
            .on::<pcf::GetAmPolicy>(get_policy)
            .on::<pcf::DeleteAmPolicy>(delete_policy)
            .on::<amf_op::N1N2TransferFailureNotify>(not_delivered)
            .on::<smf::CreateSmContext>(create_context)
            .on::<smf::UpdateSmContext>(update_context)
            .on::<smf::ReleaseSmContext>(release_context)
            .on::<nrf::SubscribeNf>(subscribe)
            .on::<nrf::DiscoverNf>(discover);
        let server = serve(router, "127.0.0.1:0".parse().unwrap(), ServerConfig::default()).await.unwrap();
        core.sessions_at.set(server.address()).unwrap();
        let root = format!("http://{}", server.address());
        core.failure_uri.set(sbi::callback_uri::<amf_op::N1N2TransferFailureNotify>(&root, "1")).unwrap();
        (core, server)
    }

    pub fn fault(&self, operation: &'static str, fault: Fault) {
        self.faults.lock().unwrap().insert(operation, fault);
    }

    pub fn heal(&self) {
        self.faults.lock().unwrap().clear();
    }

    pub fn called(&self, operation: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| *call == operation).count()
    }

    /// Waits until an operation was called `times` times: background work of the AMF has no other sign.
    pub async fn wait_called(&self, operation: &str, times: usize) {
        for _ in 0..500 {
            if self.called(operation) >= times {
                return;
            }
            net::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{operation} was called {} times, not {times}", self.called(operation));
    }

    async fn begin(&self, operation: &'static str) -> Result<(), ProblemDetails> {
        self.calls.lock().unwrap().push(operation.to_owned());
        let delay = *self.delay.lock().unwrap();
        if !delay.is_zero() {
            net::time::sleep(delay).await;
        }
        let fault = self.faults.lock().unwrap().get(operation).cloned();
        match fault {
            None => Ok(()),
            Some(Fault::Refuse(status, cause)) => Err(ProblemDetails::new(status, cause)),
            Some(Fault::Hang) => std::future::pending().await,
        }
    }

    /// Namf_Communication_N1N2MessageTransfer, as an SMF calls it.
    pub async fn transfer(
        &self,
        supi: Supi,
        id: PduSessionId,
        n1: Option<&'static [u8]>,
        n2: Option<(&'static [u8], N2SmInfoType)>,
    ) -> Result<N1N2MessageTransferCause, u16> {
        self.transfer_body(supi, id, n1, n2, None).await
    }

    /// As [`Self::transfer`], with `skipInd`.
    pub async fn transfer_body(
        &self,
        supi: Supi,
        id: PduSessionId,
        n1: Option<&'static [u8]>,
        n2: Option<(&'static [u8], N2SmInfoType)>,
        skip_ind: Option<bool>,
    ) -> Result<N1N2MessageTransferCause, u16> {
        let body = N1N2MessageTransferReqData {
            skip_ind,
            n1n2_failure_txf_notif_uri: self.failure_uri.get().cloned(),
            pdu_session_id: Some(id),
            n1_message_container: n1.map(|n1| N1MessageContainer {
                n1_message_class: N1MessageClass::Sm,
                n1_message_content: n1.into(),
                nf_id: None,
            }),
            n2_info_container: n2.map(|(n2, kind)| N2InfoContainer {
                n2_information_class: N2InformationClass::Sm,
                sm_info: Some(N2SmInformation {
                    pdu_session_id: id,
                    n2_info_content: Some(N2InfoContent {
                        ngap_message_type: None,
                        ngap_ie_type: Some(kind),
                        ngap_data: n2.into(),
                    }),
                    s_nssai: None,
                    subject_to_ho: None,
                }),
            }),
            ..N1N2MessageTransferReqData::default()
        };
        let request = amf_op::N1N2MessageTransferRequest { ue_context_id: supi.to_string(), body };
        let root = self.amf.get().unwrap().clone();
        match self.client.call::<amf_op::N1N2MessageTransfer>(root, request).await {
            Ok(answer) => Ok(answer.body().cause.clone()),
            Err(error) => Err(error.status().unwrap_or(0)),
        }
    }

    /// Nudm_SDM_Notification to the AMF that subscribed.
    pub async fn subscription_changed(&self, supi: Supi) {
        let uri = self.sdm_callbacks.lock().unwrap()[&supi].clone();
        let body = ModificationNotification { notify_items: vec![], subscription_id: None };
        self.client.notify::<udm::SdmNotify>(&uri, body).await.unwrap();
    }

    /// Nudm_UECM_DeregistrationNotification to the AMF that serves the UE.
    pub async fn deregister(&self, supi: Supi, reason: DeregistrationReason) {
        let uri = self.serving.lock().unwrap()[&supi].dereg_callback_uri.clone();
        let body = DeregistrationData {
            dereg_reason: reason,
            access_type: None,
            pdu_session_id: None,
            new_smf_instance_id: None,
        };
        self.client.notify::<udm::DeregistrationNotify>(&uri, body).await.unwrap();
    }

    /// Nsmf_PDUSession_SMContextStatusNotify for a session.
    pub async fn session_gone(&self, reference: &str) {
        let uri = self.sessions.lock().unwrap().remove(reference).unwrap().status_uri;
        self.released(&uri).await;
    }

    /// The same, to the callback URI from the session's creation.
    pub async fn released(&self, uri: &str) {
        let body = SmContextStatusNotification {
            status_info: StatusInfo { resource_status: ResourceStatus::Released, cause: None, an_type: None },
        };
        self.client.notify::<smf::SmContextStatusNotify>(uri, body).await.unwrap();
    }
}

async fn authenticate(
    core: Arc<Core>,
    request: ausf::AuthenticateRequest,
) -> Result<Created<UeAuthenticationCtx>, ProblemDetails> {
    core.begin("authenticate").await?;
    let info = request.body;
    let supi: Supi = match info.supi_or_suci.parse::<nas::Suci>() {
        Ok(suci) => types::Imsi::from_parts(suci.plmn, &suci.msin().unwrap()).unwrap().into(),
        Err(_) => info.supi_or_suci.parse().unwrap(),
    };
    // SUPIs of subscribers end in a number below 900.
    if supi.to_string().ends_with("900") {
        return Err(ProblemDetails::user_not_found());
    }
    let sqn = {
        let mut sqns = core.sqn.lock().unwrap();
        let last = sqns.entry(supi).or_insert(64);
        if let Some(resync) = &info.resynchronization_info {
            core.calls.lock().unwrap().push("resynchronise".to_owned());
            *last = milenage().resynchronise(&resync.rand, &resync.auts).unwrap();
        }
        *last = aka::next_sqn(*last);
        *last
    };
    let id = core.next.fetch_add(1, Ordering::Relaxed);
    let rand = Key::new([id as u8; 16]);
    let vector = milenage().vector(&rand, sqn, &Key::new([0x80, 0]), &info.serving_network_name).unwrap();
    let five_g_auth_data = Av5gAka {
        rand: vector.rand.clone(),
        hxres_star: aka::hxres_star(&vector.rand, &vector.xres_star),
        autn: vector.autn.clone(),
    };
    core.authentications.lock().unwrap().insert(id.to_string(), (supi, vector));
    let body = UeAuthenticationCtx {
        auth_type: AuthType::FiveGAka,
        five_g_auth_data,
        links: BTreeMap::from([("5g-aka".to_owned(), Link { href: String::new() })]),
        serving_network_name: None,
    };
    Ok(Created { location: format!("/ue-authentications/{id}"), body })
}

async fn confirm(
    core: Arc<Core>,
    request: ausf::Confirm5gAkaRequest,
) -> Result<ConfirmationDataResponse, ProblemDetails> {
    core.begin("confirm").await?;
    let (supi, vector) = core
        .authentications
        .lock()
        .unwrap()
        .remove(&request.auth_ctx_id)
        .ok_or_else(ProblemDetails::context_not_found)?;
    let proven = request.body.res_star.is_some_and(|res| aka::same_res_star(&vector.xres_star, &res));
    let name = "5G:mnc070.mcc999.3gppnetwork.org";
    Ok(ConfirmationDataResponse {
        auth_result: if proven { AuthResult::Success } else { AuthResult::Failure },
        supi: proven.then_some(supi),
        kseaf: proven.then(|| aka::kseaf(&vector.kausf, name).unwrap()),
        supported_features: None,
    })
}

async fn am_data(
    core: Arc<Core>,
    _: udm::GetAmDataRequest,
) -> Result<AccessAndMobilitySubscriptionData, ProblemDetails> {
    core.begin("am_data").await?;
    let ambr = *core.ambr.lock().unwrap();
    let default_single_nssais = core.slices.lock().unwrap().clone();
    let single_nssais = core.other_slices.lock().unwrap().clone();
    Ok(AccessAndMobilitySubscriptionData {
        subscribed_ue_ambr: Some(types::Ambr {
            uplink: ambr.parse().unwrap(),
            downlink: ambr.parse().unwrap(),
        }),
        nssai: Some(Nssai { supported_features: None, default_single_nssais, single_nssais }),
        ..Default::default()
    })
}

async fn smf_select(
    core: Arc<Core>,
    _: udm::GetSmfSelectDataRequest,
) -> Result<SmfSelectionSubscriptionData, ProblemDetails> {
    core.begin("smf_select").await?;
    let dnn = |name: &str, default| DnnInfo {
        dnn: types::Dnn::new(name).unwrap(),
        default_dnn_indicator: Some(default),
        lbo_roaming_allowed: None,
    };
    let dnn_infos = vec![dnn("ims", false), dnn("internet", true)];
    let mut data = SmfSelectionSubscriptionData::default();
    data.subscribed_snssai_infos.insert("1".to_owned(), SnssaiInfo { dnn_infos });
    Ok(data)
}

async fn register_amf(
    core: Arc<Core>,
    request: udm::RegisterAmfRequest,
) -> Result<Stored<Amf3GppAccessRegistration>, ProblemDetails> {
    core.begin("register_amf").await?;
    core.serving.lock().unwrap().insert(request.ue_id, request.body.clone());
    Ok(Stored::Replaced(Some(request.body)))
}

async fn sdm_subscribe(
    core: Arc<Core>,
    request: udm::SdmSubscribeRequest,
) -> Result<Created<SdmSubscription>, ProblemDetails> {
    core.begin("sdm_subscribe").await?;
    let uri = request.body.callback_reference.clone();
    core.sdm_callbacks.lock().unwrap().insert(request.ue_id, uri);
    Ok(Created { location: format!("/{}/sdm-subscriptions/1", request.ue_id), body: request.body })
}

async fn update_amf(core: Arc<Core>, request: udm::UpdateAmfRequest) -> Result<(), ProblemDetails> {
    core.begin("purge_amf").await?;
    core.serving.lock().unwrap().remove(&request.ue_id);
    Ok(())
}

async fn create_policy(
    core: Arc<Core>,
    request: pcf::CreateAmPolicyRequest,
) -> Result<Created<PolicyAssociation>, ProblemDetails> {
    core.begin("create_policy").await?;
    *core.policy_uri.lock().unwrap() = Some(request.body.notification_uri);
    let id = core.next.fetch_add(1, Ordering::Relaxed).to_string();
    core.policies.lock().unwrap().insert(id.clone());
    Ok(Created { location: format!("/policies/{id}"), body: policy(&core) })
}

fn policy(core: &Core) -> PolicyAssociation {
    let ue_ambr = *core.policy_ambr.lock().unwrap();
    PolicyAssociation { request: None, triggers: vec![], rfsp: None, ue_ambr, supp_feat: "0".to_owned() }
}

async fn get_policy(
    core: Arc<Core>,
    request: pcf::GetAmPolicyRequest,
) -> Result<PolicyAssociation, ProblemDetails> {
    core.begin("get_policy").await?;
    let known = core.policies.lock().unwrap().contains(&request.pol_asso_id);
    if known { Ok(policy(&core)) } else { Err(ProblemDetails::new(404, "POLICY_ASSOCIATION_NOT_FOUND")) }
}

async fn delete_policy(core: Arc<Core>, request: pcf::DeleteAmPolicyRequest) -> Result<(), ProblemDetails> {
    core.begin("delete_policy").await?;
    let known = core.policies.lock().unwrap().remove(&request.pol_asso_id);
    if known { Ok(()) } else { Err(ProblemDetails::new(404, "POLICY_ASSOCIATION_NOT_FOUND")) }
}

async fn not_delivered(
    core: Arc<Core>,
    notification: sbi::Notification<N1N2MsgTxfrFailureNotification>,
) -> Result<(), ProblemDetails> {
    core.not_delivered.lock().unwrap().push(notification.body.cause);
    core.begin("not_delivered").await
}

async fn create_context(
    core: Arc<Core>,
    request: smf::CreateSmContextRequest,
) -> Result<Created<SmContextCreatedData>, SmContextCreateError> {
    core.begin("create_context").await?;
    let body = request.body;
    let (supi, id) = (body.supi.unwrap(), body.pdu_session_id.unwrap());
    core.calls.lock().unwrap().push(format!("dnn={}", body.dnn.unwrap().as_str()));
    let mode = *core.smf_mode.lock().unwrap();
    if mode == SmfMode::Rejects {
        return Err(SmContextCreateError {
            error: ProblemDetails::forbidden("DNN_DENIED"),
            n1_sm_msg: Some(REJECT_N1.into()),
            n2_sm_info: None,
            n2_sm_info_type: None,
        });
    }
    let reference = core.next.fetch_add(1, Ordering::Relaxed).to_string();
    let status_uri = body.sm_context_status_uri;
    core.sessions.lock().unwrap().insert(reference.clone(), Session { status_uri, up: false });
    let smf = core.clone();
    tokio::spawn(async move {
        match mode {
            SmfMode::Works => {
                let n2 = Some((SETUP_N2, N2SmInfoType::PduResSetupReq));
                smf.transfer(supi, id, Some(ACCEPT_N1), n2).await.unwrap();
            }
            SmfMode::RejectsLater => {
                smf.transfer(supi, id, Some(REJECT_N1), None).await.unwrap();
            }
            SmfMode::Silent | SmfMode::Rejects => {}
        }
    });
    Ok(Created { location: format!("/sm-contexts/{reference}"), body: SmContextCreatedData::default() })
}

async fn update_context(
    core: Arc<Core>,
    request: smf::UpdateSmContextRequest,
) -> Result<Option<SmContextUpdatedData>, SmContextUpdateError> {
    core.begin("update_context").await?;
    let body = request.body;
    let mut sessions = core.sessions.lock().unwrap();
    let session = sessions.get_mut(&request.sm_context_ref).ok_or_else(ProblemDetails::context_not_found)?;
    let mut calls = core.calls.lock().unwrap();
    match (body.n2_sm_info_type, body.up_cnx_state, body.n1_sm_msg) {
        (Some(N2SmInfoType::PduResSetupRsp), _, _) => {
            session.up = true;
            calls.push("setup_done".to_owned());
            Ok(None)
        }
        (Some(other), _, _) => {
            calls.push(other.as_str().to_owned());
            Ok(None)
        }
        (None, Some(UpCnxState::Deactivated), _) => {
            session.up = false;
            calls.push("deactivate".to_owned());
            Ok(None)
        }
        (None, Some(_), _) => {
            calls.push("activate".to_owned());
            Ok(Some(SmContextUpdatedData {
                up_cnx_state: Some(UpCnxState::Activating),
                n2_sm_info: Some(SETUP_N2.into()),
                n2_sm_info_type: Some(N2SmInfoType::PduResSetupReq),
                ..Default::default()
            }))
        }
        // The UE asks for release: 0xd1; it confirms: 0xd4.
        (None, None, Some(n1)) if n1.bytes().get(3) == Some(&0xd1) => Ok(Some(SmContextUpdatedData {
            n1_sm_msg: Some(RELEASE_N1.into()),
            n2_sm_info: Some(RELEASE_N2.into()),
            n2_sm_info_type: Some(N2SmInfoType::PduResRelCmd),
            ..Default::default()
        })),
        (None, None, n1) => {
            calls.push(if n1.is_some() { "n1" } else { "location" }.to_owned());
            Ok(None)
        }
    }
}

async fn release_context(
    core: Arc<Core>,
    request: smf::ReleaseSmContextRequest,
) -> Result<(), ProblemDetails> {
    core.begin("release_context").await?;
    let found = core.sessions.lock().unwrap().remove(&request.sm_context_ref);
    found.map(drop).ok_or_else(ProblemDetails::context_not_found)
}

/// SMF or PCF as the NRF knows it: at the address of this core.
fn profile(core: &Core, nf_type: &str, recovery_time: &str) -> sbi::model::nrf::NfProfile {
    let at = core.sessions_at.get().unwrap();
    let service = if nf_type == "SMF" { "nsmf-pdusession" } else { "npcf-am-policy-control" };
    serde_json::from_value(serde_json::json!({
        "nfInstanceId": sbi::model::common::NfInstanceId::from_name(nf_type), "nfType": nf_type,
        "nfStatus": "REGISTERED", "recoveryTime": recovery_time,
        "nfServices": [{
            "serviceInstanceId": "1", "serviceName": service, "scheme": "http",
            "versions": [{"apiVersionInUri": "v1", "apiFullVersion": "1.0.0"}],
            "nfServiceStatus": "REGISTERED",
            "ipEndPoints": [{"ipv4Address": at.ip(), "port": at.port()}],
        }],
    }))
    .unwrap()
}

async fn subscribe(
    core: Arc<Core>,
    request: nrf::SubscribeNfRequest,
) -> Result<Created<SubscriptionData>, ProblemDetails> {
    let mut body = request.body;
    *core.nrf_callback.lock().unwrap() = Some(body.nf_status_notification_uri.clone());
    body.subscription_id = Some("1".to_owned());
    Ok(Created { location: "/subscriptions/1".to_owned(), body })
}

async fn discover(core: Arc<Core>, request: nrf::DiscoverNfRequest) -> Result<SearchResult, ProblemDetails> {
    core.begin("discover").await?;
    let nf_type = request.target_nf_type;
    let times = core.recovery_times.lock().unwrap().clone();
    let time = times.get(nf_type.as_str());
    let nf_instances = time.map(|time| profile(&core, nf_type.as_str(), time)).into_iter().collect();
    Ok(SearchResult { validity_period: 60, nf_instances })
}

impl Core {
    /// Nnrf_NFManagement_NFStatusNotify: the SMF or PCF registered, having started at `recovery_time`. The notification
    /// itself says a time that the NRF does not.
    pub async fn registered(&self, nf_type: &'static str, recovery_time: &str) {
        self.recovery_times.lock().unwrap().insert(nf_type, recovery_time.to_owned());
        let uri = self.nrf_callback.lock().unwrap().clone().unwrap();
        let body = NotificationData {
            event: NotificationEventType::ProfileChanged,
            nf_instance_uri: String::new(),
            nf_profile: Some(profile(self, nf_type, "2037-01-01T00:00:00.000Z")),
        };
        self.client.notify::<nrf::NfStatusNotify>(&uri, body).await.unwrap();
    }

    /// The SM context of the UE's session with this identity.
    pub fn reference(&self, supi: Supi, id: PduSessionId) -> String {
        let of_session = format!("/{supi}_{id}_");
        let sessions = self.sessions.lock().unwrap();
        let found = sessions.iter().find(|(_, session)| session.status_uri.contains(&of_session));
        found.expect("a session of the UE").0.clone()
    }

    /// The SMF forgets the UE's session with this identity.
    pub fn lose_session(&self, supi: Supi, id: PduSessionId) {
        let reference = self.reference(supi, id);
        self.sessions.lock().unwrap().remove(&reference);
    }
}
