//! PDU sessions, service request, paging: the AMF's part between UE, gNB and SMF.

use bytes::Bytes;
use nas::{GmmCause, Message, PsiSet, RegistrationType, RequestType, ServiceType, gmm};
use ngap::*;
use sbi::model::smf::N2SmInfoType;
use types::{Dnn, PduSessionId};

use crate::support::*;

pub fn id(n: u8) -> PduSessionId {
    PduSessionId::new(n).unwrap()
}

/// The part of a PDU SESSION ESTABLISHMENT REQUEST that the AMF reads.
pub fn request(n: u8) -> gmm::UlNasTransport {
    let mut transport = gmm::UlNasTransport::n1_sm(id(n), vec![0x2e, n, 1, 0xc1, 0xff, 0xff]);
    transport.request_type = Some(RequestType::Initial);
    transport
}

impl Ue {
    /// Establishes a session.
    pub async fn establish(&mut self, gnb: &mut Gnb, n: u8) {
        self.send(gnb, &Message::UlNasTransport(request(n))).await;
        let n1 = self.set_up(gnb, n).await;
        assert_eq!(n1, ACCEPT_N1);
    }

    /// Expects a PDU Session Resource Setup Request and answers it. Returns its N1 message.
    pub async fn set_up(&mut self, gnb: &mut Gnb, n: u8) -> Vec<u8> {
        let pdu = gnb.recv().await;
        let Pdu::PduSessionResourceSetupRequest(request) = pdu else { panic!("{pdu:?}") };
        assert_eq!(request.pdu_sessions.len(), 1);
        let item = &request.pdu_sessions[0];
        assert_eq!((item.id, &item.transfer[..]), (id(n), SETUP_N2));
        assert!(request.ue_ambr.is_some());
        let n1 = item.nas_pdu.as_ref().map(|nas| self.read(nas));
        gnb.send(PduSessionResourceSetupResponse {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: self.ran_id,
            pdu_sessions: vec![PduSessionItem { id: item.id, transfer: Bytes::from_static(b"response") }],
            failed: vec![],
            criticality_diagnostics: None,
            user_location: None,
        })
        .await;
        match n1 {
            Some(Message::DlNasTransport(transport)) => transport.payload,
            other => panic!("{other:?}"),
        }
    }

    /// Opens a connection with SERVICE REQUEST for these sessions.
    pub async fn service_request(&mut self, gnb: &Gnb, sessions: &[u8]) {
        let mut request = gmm::ServiceRequest::new(
            self.security.as_ref().unwrap().ngksi(),
            if sessions.is_empty() { ServiceType::Signalling } else { ServiceType::Data },
            self.guti.unwrap().s_tmsi(),
        );
        if !sessions.is_empty() {
            request.uplink_data_status = Some(sessions.iter().map(|n| id(*n)).collect());
        }
        self.open(gnb, &Message::ServiceRequest(request)).await;
    }

    /// Expects DL NAS TRANSPORT.
    async fn transport(&mut self, gnb: &mut Gnb) -> gmm::DlNasTransport {
        let message = self.recv(gnb).await;
        let Message::DlNasTransport(transport) = message else { panic!("{message:?}") };
        transport
    }
}

async fn registered() -> (Network, Gnb, Ue) {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    (network, gnb, ue)
}

#[tokio::test]
async fn sessions_are_established_with_the_default_or_the_named_dnn() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    assert_eq!(network.core.called("dnn=internet"), 1);
    let mut ims = request(2);
    ims.dnn = Some(Dnn::new("ims").unwrap());
    ims.s_nssai = Some("1".parse().unwrap());
    ue.send(&gnb, &Message::UlNasTransport(ims)).await;
    ue.set_up(&mut gnb, 2).await;
    network.core.wait_called("setup_done", 2).await;
    let view = network.ue(ue.supi(), |view| view["sessions"].as_array().unwrap().len() == 2).await;
    assert_eq!(view["sessions"][1]["dnn"], "ims");
    assert_eq!(view["sessions"][1]["active"], true);
    let samples = network.oam("GET", "/procedures").await;
    let established: Vec<_> = samples
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["procedure"] == "pdu_session_establishment" && s["outcome"] == "ok")
        .collect();
    assert_eq!(established.len(), 2);
}

#[tokio::test]
async fn what_cannot_be_forwarded_comes_back_with_the_cause_of_ts_24_501() {
    let (network, mut gnb, mut ue) = registered().await;
    let mut unknown_dnn = request(1);
    unknown_dnn.dnn = Some(Dnn::new("nowhere").unwrap());
    let mut foreign_slice = request(1);
    foreign_slice.s_nssai = Some("2".parse().unwrap());
    let mut emergency = request(1);
    emergency.request_type = Some(RequestType::InitialEmergency);
    let mut no_session = request(4);
    no_session.request_type = None;
    let mut existing = request(4);
    existing.request_type = Some(RequestType::Existing);
    let cases = [
        (unknown_dnn, GmmCause::DnnNotSupportedInSlice),
        (foreign_slice, GmmCause::PayloadNotForwarded),
        (emergency, GmmCause::PayloadNotForwarded),
        (no_session, GmmCause::PayloadNotForwarded),
        (existing, GmmCause::PayloadNotForwarded),
    ];
    for (transport, cause) in cases {
        let payload = transport.payload.clone();
        ue.send(&gnb, &Message::UlNasTransport(transport)).await;
        let back = ue.transport(&mut gnb).await;
        assert_eq!((back.cause, back.payload), (Some(cause), payload));
    }
    assert_eq!(network.core.called("create_context"), 0);
    // The SMF is down, hangs, or never sends the promised transfer.
    for fault in [Fault::Refuse(503, "NF_CONGESTION"), Fault::Hang] {
        network.core.fault("create_context", fault);
        ue.send(&gnb, &Message::UlNasTransport(request(1))).await;
        assert_eq!(ue.transport(&mut gnb).await.cause, Some(GmmCause::PayloadNotForwarded));
    }
    network.core.heal();
    *network.core.smf_mode.lock().unwrap() = SmfMode::Silent;
    ue.send(&gnb, &Message::UlNasTransport(request(1))).await;
    assert_eq!(ue.transport(&mut gnb).await.cause, Some(GmmCause::PayloadNotForwarded));
    assert!(network.core.sessions.lock().unwrap().is_empty(), "the half-made session is released");
    // The SMF's own rejects are forwarded unchanged.
    for mode in [SmfMode::Rejects, SmfMode::RejectsLater] {
        *network.core.smf_mode.lock().unwrap() = mode;
        ue.send(&gnb, &Message::UlNasTransport(request(1))).await;
        let reject = ue.transport(&mut gnb).await;
        assert_eq!((reject.cause, &reject.payload[..]), (None, REJECT_N1));
    }
    *network.core.smf_mode.lock().unwrap() = SmfMode::Works;
    ue.establish(&mut gnb, 1).await;
}

#[tokio::test]
async fn sessions_per_ue_are_bounded() {
    let network = Network::with(serde_json::json!({"limits": {"sessions_per_ue": 1}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    ue.establish(&mut gnb, 1).await;
    ue.send(&gnb, &Message::UlNasTransport(request(2))).await;
    assert_eq!(ue.transport(&mut gnb).await.cause, Some(GmmCause::MaximumPduSessionsReached));
}

#[tokio::test]
async fn a_duplicate_session_identity_replaces_the_old_session() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    network.core.wait_called("setup_done", 1).await;
    ue.send(&gnb, &Message::UlNasTransport(request(1))).await;
    ue.release_resources(&mut gnb, 1).await;
    ue.set_up(&mut gnb, 1).await;
    network.core.wait_called("setup_done", 2).await;
    assert_eq!(network.core.called("release_context"), 1);
    assert_eq!(network.core.sessions.lock().unwrap().len(), 1);
}

impl Ue {
    /// Expects a PDU Session Resource Release Command and answers it. Returns its N1 message.
    async fn release_resources(&mut self, gnb: &mut Gnb, n: u8) -> Option<Message> {
        let pdu = gnb.recv().await;
        let Pdu::PduSessionResourceReleaseCommand(command) = pdu else { panic!("{pdu:?}") };
        assert_eq!(command.pdu_sessions[0].id, id(n));
        let released = PduSessionItem { id: id(n), transfer: Bytes::from_static(b"released") };
        gnb.send(PduSessionResourceReleaseResponse {
            amf_ue_ngap_id: command.amf_ue_ngap_id,
            ran_ue_ngap_id: self.ran_id,
            pdu_sessions: vec![released],
            user_location: None,
            criticality_diagnostics: None,
        })
        .await;
        command.nas_pdu.map(|nas| self.read(&nas))
    }
}

#[tokio::test]
async fn sessions_are_released_by_ue_and_by_network() {
    let (network, mut gnb, mut ue) = registered().await;
    let core = &network.core;
    ue.establish(&mut gnb, 1).await;
    core.wait_called("setup_done", 1).await;
    // Released by the UE: request, command with the gNB's release, complete, and the SMF's
    // notification.
    let n1 = |octets: [u8; 4]| Message::UlNasTransport(gmm::UlNasTransport::n1_sm(id(1), octets.to_vec()));
    ue.send(&gnb, &n1([0x2e, 1, 5, 0xd1])).await;
    let Some(Message::DlNasTransport(command)) = ue.release_resources(&mut gnb, 1).await else { panic!() };
    assert_eq!(command.payload, RELEASE_N1);
    ue.send(&gnb, &n1([0x2e, 1, 5, 0xd4])).await;
    core.wait_called("PDU_RES_REL_RSP", 1).await;
    core.wait_called("n1", 1).await;
    let reference = core.sessions.lock().unwrap().keys().next().unwrap().clone();
    core.session_gone(&reference).await;
    network.ue(ue.supi(), |view| view["sessions"] == serde_json::json!([])).await;

    // Released by the network.
    ue.establish(&mut gnb, 1).await;
    core.wait_called("setup_done", 2).await;
    let n2 = Some((RELEASE_N2, N2SmInfoType::PduResRelCmd));
    let answer = core.transfer(ue.supi(), id(1), Some(RELEASE_N1), n2).await;
    assert_eq!(answer, Ok(sbi::model::amf::N1N2MessageTransferCause::Initiated));
    assert!(ue.release_resources(&mut gnb, 1).await.is_some());
    core.wait_called("PDU_RES_REL_RSP", 2).await;
    let unknown = "imsi-999700000000777".parse().unwrap();
    assert_eq!(core.transfer(unknown, id(1), Some(RELEASE_N1), None).await, Err(404));
}

#[tokio::test]
async fn a_gnb_that_refuses_a_session_ends_it() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.send(&gnb, &Message::UlNasTransport(request(1))).await;
    let Pdu::PduSessionResourceSetupRequest(setup) = gnb.recv().await else { panic!() };
    ue.read(setup.pdu_sessions[0].nas_pdu.as_ref().unwrap());
    gnb.send(PduSessionResourceSetupResponse {
        amf_ue_ngap_id: setup.amf_ue_ngap_id,
        ran_ue_ngap_id: ue.ran_id,
        pdu_sessions: vec![],
        failed: vec![PduSessionItem { id: id(1), transfer: Bytes::from_static(b"no") }],
        criticality_diagnostics: None,
        user_location: None,
    })
    .await;
    assert_eq!(ue.transport(&mut gnb).await.cause, Some(GmmCause::PayloadNotForwarded));
    network.core.wait_called("PDU_RES_SETUP_FAIL", 1).await;
    network.core.wait_called("release_context", 1).await;
}

#[tokio::test]
async fn release_and_service_request_bring_user_planes_down_and_up() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    ue.establish(&mut gnb, 2).await;
    ue.idle(&mut gnb).await;
    network.core.wait_called("deactivate", 2).await;
    assert!(network.core.sessions.lock().unwrap().values().all(|session| !session.up));
    ue.service_request(&gnb, &[1]).await;
    let Message::ServiceAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(accept.reactivation_result, Some(PsiSet::default()));
    // KgNB is derived from the service request's own count.
    let security = ue.security.as_ref().unwrap();
    assert_eq!(ue.kgnb, Some(security.kgnb_of(security.stored().uplink.unwrap() - 1)));
    network.core.wait_called("setup_done", 3).await;
    let view = network.ue(ue.supi(), |view| view["sessions"][0]["active"] == true).await;
    assert_eq!(view["sessions"][1]["active"], false);
    // Connected, the UE asks for the other session, too.
    let mut more = gmm::ServiceRequest::new(
        ue.security.as_ref().unwrap().ngksi(),
        ServiceType::Data,
        ue.guti.unwrap().s_tmsi(),
    );
    more.uplink_data_status = Some([id(2)].into_iter().collect());
    ue.send(&gnb, &Message::ServiceRequest(more)).await;
    let Pdu::PduSessionResourceSetupRequest(setup) = gnb.recv().await else { panic!() };
    assert_eq!(setup.pdu_sessions[0].id, id(2));
    assert!(matches!(ue.read(&setup.nas_pdu.unwrap()), Message::ServiceAccept(_)));
}

#[tokio::test]
async fn sessions_that_the_smf_lost_are_gone_for_the_ue_too() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    ue.idle(&mut gnb).await;
    network.core.wait_called("deactivate", 1).await;
    network.core.sessions.lock().unwrap().clear();
    let mut request = gmm::ServiceRequest::new(
        ue.security.as_ref().unwrap().ngksi(),
        ServiceType::Data,
        ue.guti.unwrap().s_tmsi(),
    );
    request.uplink_data_status = Some([id(1)].into_iter().collect());
    request.pdu_session_status = Some([id(1)].into_iter().collect());
    ue.open(&gnb, &Message::ServiceRequest(request)).await;
    let Message::ServiceAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(accept.pdu_session_status, Some(PsiSet::default()));
    assert_eq!(accept.reactivation_result, Some([id(1)].into_iter().collect()));
}

#[tokio::test]
async fn sessions_that_the_ue_lost_are_released() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    ue.establish(&mut gnb, 2).await;
    ue.idle(&mut gnb).await;
    let mut update = ue.registration_request(RegistrationType::MobilityUpdating);
    update.pdu_session_status = Some([id(2)].into_iter().collect());
    update.uplink_data_status = Some([id(2)].into_iter().collect());
    ue.open(&gnb, &Message::RegistrationRequest(update)).await;
    let accept = ue.complete(&mut gnb).await;
    assert_eq!(accept.pdu_session_status, Some([id(2)].into_iter().collect()));
    assert_eq!(network.core.called("release_context"), 1);
    network.ue(ue.supi(), |view| view["sessions"][0]["active"] == true).await;
}

#[tokio::test]
async fn an_idle_ue_is_paged_and_then_served() {
    let network = Network::with(serde_json::json!({"timers": {"t3513_ms": 300}})).await;
    let (mut gnb, mut ue) = (Gnb::up(network.n2, 1).await, Ue::new(1));
    ue.register(&mut gnb).await;
    ue.establish(&mut gnb, 1).await;
    ue.idle(&mut gnb).await;
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    // A transfer with `skipInd` does not page the UE; it is not delivered, and the SMF is told.
    let skipped = network.core.transfer_body(ue.supi(), id(1), Some(RELEASE_N1), None, Some(true)).await;
    assert_eq!(skipped, Ok(sbi::model::amf::N1N2MessageTransferCause::N1MsgNotTransferred));
    gnb.silent(50).await;
    let n2 = Some((SETUP_N2, N2SmInfoType::PduResSetupReq));
    let answer = network.core.transfer(ue.supi(), id(1), None, n2).await;
    assert_eq!(answer, Ok(sbi::model::amf::N1N2MessageTransferCause::AttemptingToReachUe));
    for _ in 0..2 {
        let Pdu::Paging(paging) = gnb.recv().await else { panic!() };
        assert_eq!(paging.s_tmsi, ue.guti.unwrap().s_tmsi());
        assert_eq!(paging.tais, [tai(1)]);
    }
    let old = ue.guti.unwrap();
    ue.answer_page(&gnb).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    // The message that it was paged for comes first, then the new identity, which replaces the paged
    // one.
    let Pdu::PduSessionResourceSetupRequest(setup) = gnb.recv().await else { panic!() };
    assert_eq!(setup.pdu_sessions[0].id, id(1));
    gnb.send(PduSessionResourceSetupResponse {
        amf_ue_ngap_id: setup.amf_ue_ngap_id,
        ran_ue_ngap_id: ue.ran_id,
        pdu_sessions: vec![PduSessionItem { id: id(1), transfer: Bytes::from_static(b"response") }],
        failed: vec![],
        criticality_diagnostics: None,
        user_location: None,
    })
    .await;
    ue.new_guti(&mut gnb).await;
    assert_ne!(ue.guti, Some(old));
    assert!(network.core.not_delivered.lock().unwrap().is_empty());
    // The UE is paged with the new identity and uses it; the old one is not answered any more.
    ue.idle(&mut gnb).await;
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    let n2 = Some((SETUP_N2, N2SmInfoType::PduResSetupReq));
    network.core.transfer(ue.supi(), id(1), None, n2).await.unwrap();
    let Pdu::Paging(paging) = gnb.recv().await else { panic!() };
    assert_eq!(paging.s_tmsi, ue.guti.unwrap().s_tmsi());
    // A service request of another type is no answer to a page, but ends the paging.
    ue.service_request(&gnb, &[1]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    gnb.silent(100).await;
}

#[tokio::test]
async fn a_new_identity_that_was_not_confirmed_is_given_again_and_paged_beside_the_old_one() {
    let timers = serde_json::json!({"timers": {"t3513_ms": 400, "t3555_ms": 400}});
    let network = Network::with(timers).await;
    let (mut gnb, mut ue) = (Gnb::up(network.n2, 1).await, Ue::new(1));
    ue.register(&mut gnb).await;
    ue.establish(&mut gnb, 1).await;
    ue.idle(&mut gnb).await;
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    let page = async |network: &Network, ue: &Ue| {
        network.core.transfer(ue.supi(), id(1), Some(RELEASE_N1), None).await.unwrap();
    };
    page(&network, &ue).await;
    assert!(matches!(gnb.recv().await, Pdu::Paging(_)));
    ue.answer_page(&gnb).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    assert_eq!(ue.transport(&mut gnb).await.payload, RELEASE_N1);
    // The connection is lost before the UE has confirmed.
    let Message::ConfigurationUpdateCommand(lost) = ue.recv(&mut gnb).await else { panic!() };
    ue.idle(&mut gnb).await;
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    page(&network, &ue).await;
    let mut paged = Vec::new();
    for _ in 0..2 {
        let Pdu::Paging(paging) = gnb.recv().await else { panic!() };
        paged.push(paging.s_tmsi);
    }
    assert_eq!(paged, [ue.guti.unwrap().s_tmsi(), lost.guti.unwrap().s_tmsi()]);
    ue.answer_page(&gnb).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    assert_eq!(ue.transport(&mut gnb).await.payload, RELEASE_N1);
    // Repeated by T3555, then confirmed.
    let Message::ConfigurationUpdateCommand(first) = ue.recv(&mut gnb).await else { panic!() };
    assert_ne!(first.guti, lost.guti);
    let old = ue.guti.unwrap();
    ue.new_guti(&mut gnb).await;
    assert_eq!(ue.guti, first.guti);
    ue.idle(&mut gnb).await;
    // The other two are free again: a UE that uses one of them is asked for its identity.
    let new = ue.guti;
    for gone in [Some(old), lost.guti] {
        ue.guti = gone;
        ue.service_request(&gnb, &[]).await;
        assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceReject(_)));
        gnb.released(&mut ue).await;
    }
    ue.guti = new;
    ue.service_request(&gnb, &[]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
}

#[tokio::test]
async fn an_smf_hears_why_a_transfer_was_not_delivered() {
    let network = Network::with(serde_json::json!({"timers": {"t3513_ms": 60}})).await;
    let (mut gnb, mut ue) = (Gnb::up(network.n2, 1).await, Ue::new(1));
    ue.register(&mut gnb).await;
    ue.establish(&mut gnb, 1).await;
    ue.idle(&mut gnb).await;
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    let n2 = Some((SETUP_N2, N2SmInfoType::PduResSetupReq));
    for (n, periodic) in [(1, false), (2, true)] {
        network.core.transfer(ue.supi(), id(1), None, n2.clone()).await.unwrap();
        for _ in 0..3 {
            assert!(matches!(gnb.recv().await, Pdu::Paging(_)));
        }
        network.core.wait_called("not_delivered", n).await;
        assert_eq!(network.core.called("location"), n - 1);
        // It hears that the UE is back, also if the UE wants nothing of the session.
        if periodic {
            let mut update = ue.registration_request(RegistrationType::PeriodicUpdating);
            update.follow_on = false;
            ue.open(&gnb, &Message::RegistrationRequest(update)).await;
            ue.complete(&mut gnb).await;
            gnb.released(&mut ue).await;
        } else {
            ue.service_request(&gnb, &[]).await;
            assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
            network.core.wait_called("location", n).await;
            ue.idle(&mut gnb).await;
        }
        network.core.wait_called("location", n).await;
        network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    }
    // It hears it once.
    ue.service_request(&gnb, &[]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    ue.idle(&mut gnb).await;
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    assert_eq!(network.core.called("location"), 2);
    // Without a gNB no page was sent.
    gnb.association.abort();
    while network.oam("GET", "/gnbs").await != serde_json::json!([]) {
        net::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    network.core.transfer(ue.supi(), id(1), None, n2).await.unwrap();
    network.core.wait_called("not_delivered", 3).await;
    use sbi::model::amf::N1N2MessageTransferCause::{AnNotResponding, UeNotResponding};
    let causes = network.core.not_delivered.lock().unwrap().clone();
    assert_eq!(causes, [UeNotResponding, UeNotResponding, AnNotResponding]);
}

#[tokio::test]
async fn deregistration_wins_over_a_session_under_way() {
    let (network, mut gnb, mut ue) = registered().await;
    *network.core.smf_mode.lock().unwrap() = SmfMode::Silent;
    ue.send(&gnb, &Message::UlNasTransport(request(1))).await;
    network.core.wait_called("create_context", 1).await;
    let request = gmm::DeregistrationRequestUe {
        switch_off: false,
        access: nas::AccessType::ThreeGpp,
        ngksi: nas::KeySetId::Native(0),
        identity: nas::MobileIdentity::Guti(ue.guti.unwrap()),
        nas_message_container: None,
    };
    ue.send(&gnb, &Message::DeregistrationRequestUe(request)).await;
    assert_eq!(ue.recv(&mut gnb).await, Message::DeregistrationAcceptUe);
    gnb.released(&mut ue).await;
    network.gone(ue.supi()).await;
    assert!(network.core.sessions.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_late_notification_of_the_old_session_leaves_the_new_one_alone() {
    let (network, mut gnb, mut ue) = registered().await;
    let core = &network.core;
    let status_uri = || core.sessions.lock().unwrap().values().next().unwrap().status_uri.clone();
    ue.establish(&mut gnb, 1).await;
    core.wait_called("setup_done", 1).await;
    let old = status_uri();
    // The same identity again; the SMF notifies the end of the old session while the new one is being
    // set up ...
    *core.smf_mode.lock().unwrap() = SmfMode::Silent;
    ue.send(&gnb, &Message::UlNasTransport(request(1))).await;
    ue.release_resources(&mut gnb, 1).await;
    core.wait_called("create_context", 2).await;
    core.released(&old).await;
    let n2 = Some((SETUP_N2, N2SmInfoType::PduResSetupReq));
    core.transfer(ue.supi(), id(1), Some(ACCEPT_N1), n2).await.unwrap();
    assert_eq!(ue.set_up(&mut gnb, 1).await, ACCEPT_N1);
    core.wait_called("setup_done", 2).await;
    // ... and once more afterwards: the UE's messages still reach the SMF.
    core.released(&old).await;
    let transport = gmm::UlNasTransport::n1_sm(id(1), vec![0x2e, 1, 5, 0xc9]);
    ue.send(&gnb, &Message::UlNasTransport(transport)).await;
    core.wait_called("n1", 1).await;
    core.released(&status_uri()).await;
    network.ue(ue.supi(), |view| view["sessions"] == serde_json::json!([])).await;
}

#[tokio::test]
async fn a_connection_lost_while_a_user_plane_comes_up_takes_it_down_again() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    ue.idle(&mut gnb).await;
    network.core.wait_called("deactivate", 1).await;
    ue.service_request(&gnb, &[1]).await;
    let Pdu::InitialContextSetupRequest(setup) = gnb.recv().await else { panic!() };
    assert_eq!(setup.pdu_sessions[0].id, id(1));
    gnb.association.abort();
    network.core.wait_called("deactivate", 2).await;
    // The same when the network activates the user plane.
    let mut gnb = Gnb::up(network.n2, 2).await;
    ue.service_request(&gnb, &[]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    let n2 = Some((SETUP_N2, N2SmInfoType::PduResSetupReq));
    network.core.transfer(ue.supi(), id(1), None, n2).await.unwrap();
    let Pdu::PduSessionResourceSetupRequest(_) = gnb.recv().await else { panic!() };
    gnb.association.abort();
    network.core.wait_called("deactivate", 3).await;
}

#[tokio::test]
async fn a_session_that_is_up_is_not_set_up_again() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    ue.idle(&mut gnb).await;
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    let n2 = Some((SETUP_N2, N2SmInfoType::PduResSetupReq));
    network.core.transfer(ue.supi(), id(1), Some(RELEASE_N1), n2).await.unwrap();
    let Pdu::Paging(_) = gnb.recv().await else { panic!() };
    // The UE activates the user plane itself; then only a message for the UE is left of the transfer.
    ue.service_request(&gnb, &[1]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    assert_eq!(ue.transport(&mut gnb).await.payload, RELEASE_N1);
    gnb.silent(100).await;
}

/// A connected UE asks for a user plane that it has: neither SMF nor gNB is asked for it a second time.
#[tokio::test]
async fn a_user_plane_that_is_up_is_not_activated_again() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    network.core.wait_called("setup_done", 1).await;
    let ngksi = ue.security.as_ref().unwrap().ngksi();
    let mut again = gmm::ServiceRequest::new(ngksi, ServiceType::Data, ue.guti.unwrap().s_tmsi());
    again.uplink_data_status = Some([id(1)].into_iter().collect());
    ue.send(&gnb, &Message::ServiceRequest(again)).await;
    let Message::ServiceAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(accept.reactivation_result, Some(PsiSet::default()));
    gnb.silent(100).await;
    assert_eq!(network.core.called("activate"), 0);
    network.ue(ue.supi(), |view| view["sessions"][0]["active"] == true).await;
}

/// What a UE is not to be paged for arrives while its connection ends.
#[tokio::test]
async fn a_transfer_that_must_not_page_does_not_page_when_the_connection_ends_first() {
    let (network, mut gnb, mut ue) = registered().await;
    ue.establish(&mut gnb, 1).await;
    network.core.wait_called("setup_done", 1).await;
    gnb.send(UeContextReleaseRequest {
        amf_ue_ngap_id: ue.amf_id.unwrap(),
        ran_ue_ngap_id: ue.ran_id,
        pdu_sessions: vec![],
        cause: cause::RadioNetwork::UserInactivity.into(),
    })
    .await;
    let Pdu::UeContextReleaseCommand(_) = gnb.recv().await else { panic!() };
    let n2 = Some((RELEASE_N2, N2SmInfoType::PduResRelCmd));
    let answer = network.core.transfer_body(ue.supi(), id(1), Some(RELEASE_N1), n2, Some(true)).await;
    assert_eq!(answer, Ok(sbi::model::amf::N1N2MessageTransferCause::Initiated));
    gnb.send(UeContextReleaseComplete {
        amf_ue_ngap_id: ue.amf_id.unwrap(),
        ran_ue_ngap_id: ue.ran_id,
        user_location: None,
        pdu_sessions: vec![],
        criticality_diagnostics: None,
    })
    .await;
    // Who wants to know hears that nothing was delivered, and the UE is left alone.
    network.core.wait_called("not_delivered", 1).await;
    gnb.silent(200).await;
}
