//! Sessions that the SMF has lost: how AMF, UE and gNB learn of it.

use nas::{GmmCause, Message, PsiSet, RegistrationType, gmm};
use ngap::Pdu;
use sbi::model::pcf::{PolicyUpdate, TerminationNotification};
use sbi::op::pcf::{AmPolicyTerminateNotify, AmPolicyUpdateNotify, am_notification_uri};
use types::{Ambr, PduSessionId};

use crate::support::*;

fn id(n: u8) -> PduSessionId {
    PduSessionId::new(n).unwrap()
}

fn set(ids: &[u8]) -> PsiSet {
    ids.iter().map(|n| id(*n)).collect()
}

impl Ue {
    /// Expects a request to register and the end of the connection; then registers with the sessions
    /// that the UE believes to have. Returns the session status of the accept.
    async fn made_to_register(&mut self, gnb: &mut Gnb, believes: &[u8]) -> Option<PsiSet> {
        let command = self.recv(gnb).await;
        let Message::ConfigurationUpdateCommand(command) = command else { panic!("{command:?}") };
        assert!(command.acknowledge && command.registration_requested);
        self.send(gnb, &Message::ConfigurationUpdateComplete).await;
        gnb.released(self).await;
        let mut update = self.registration_request(RegistrationType::MobilityUpdating);
        update.pdu_session_status = Some(set(believes));
        self.open(gnb, &Message::RegistrationRequest(update)).await;
        self.complete(gnb).await.pdu_session_status
    }
}

async fn with_sessions(network: &Network, sessions: &[u8]) -> (Gnb, Ue) {
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    for n in sessions {
        ue.establish(&mut gnb, *n).await;
    }
    network.core.wait_called("setup_done", sessions.len()).await;
    (gnb, ue)
}

#[tokio::test]
async fn a_connected_ue_is_made_to_register_when_its_smf_says_404() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1, 2]).await;
    network.core.lose_session(ue.supi(), id(1));
    let release = gmm::UlNasTransport::n1_sm(id(1), vec![0x2e, 1, 5, 0xd1]);
    ue.send(&gnb, &Message::UlNasTransport(release)).await;
    let back = ue.recv(&mut gnb).await;
    let Message::DlNasTransport(back) = back else { panic!("{back:?}") };
    assert_eq!(back.cause, Some(GmmCause::PayloadNotForwarded));
    assert_eq!(ue.made_to_register(&mut gnb, &[1, 2]).await, Some(set(&[2])));
    // Told once: the other session continues, and the identity is free.
    ue.establish(&mut gnb, 1).await;
    network.ue(ue.supi(), |view| view["sessions"].as_array().unwrap().len() == 2).await;
}

/// The UPF reports to the gNB that a tunnel is unknown, and the gNB releases the session's resources.
#[tokio::test]
async fn what_the_gnb_reports_of_a_session_that_the_smf_lost_is_not_ignored() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1]).await;
    network.core.lose_session(ue.supi(), id(1));
    gnb.send(ngap::PduSessionResourceNotify {
        amf_ue_ngap_id: ue.amf_id.unwrap(),
        ran_ue_ngap_id: ue.ran_id,
        pdu_sessions: vec![],
        released: vec![ngap::PduSessionItem { id: id(1), transfer: bytes::Bytes::from_static(b"gone") }],
        user_location: None,
    })
    .await;
    assert_eq!(ue.made_to_register(&mut gnb, &[1]).await, Some(set(&[])));
}

#[tokio::test]
async fn an_idle_ue_is_told_in_its_next_accept_also_where_it_does_not_ask() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1, 2]).await;
    ue.idle(&mut gnb).await;
    network.core.wait_called("deactivate", 2).await;
    let reference = network.core.sessions.lock().unwrap().keys().next().unwrap().clone();
    network.core.session_gone(&reference).await;
    network.ue(ue.supi(), |view| view["sessions"].as_array().unwrap().len() == 1).await;
    gnb.silent(50).await;
    let left = network.ue(ue.supi(), |_| true).await["sessions"][0]["id"].as_u64().unwrap() as u8;
    // The accept may be lost on the radio: the UE is told until it has sent something after an accept.
    for _ in 0..2 {
        assert_eq!(ue.served(&mut gnb).await, Some(set(&[left])));
        gnb.silent(50).await;
        ue.idle(&mut gnb).await;
    }
    assert_eq!(ue.served(&mut gnb).await, Some(set(&[left])));
    let message = gmm::UlNasTransport::n1_sm(id(left), vec![0x2e, left, 0, 0xd6, 0x6f]);
    ue.send(&gnb, &Message::UlNasTransport(message)).await;
    network.core.wait_called("n1", 1).await;
    ue.idle(&mut gnb).await;
    assert_eq!(ue.served(&mut gnb).await, None);
}

impl Ue {
    /// Gets service for signalling. Returns the session status of the accept.
    async fn served(&mut self, gnb: &mut Gnb) -> Option<PsiSet> {
        self.service_request(gnb, &[]).await;
        let Message::ServiceAccept(accept) = self.recv(gnb).await else { panic!() };
        accept.pdu_session_status
    }
}

/// The gNB says that it could not deliver a message, which may have been the accept.
#[tokio::test]
async fn a_ue_whose_accept_was_not_delivered_is_made_to_register() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1]).await;
    ue.idle(&mut gnb).await;
    network.core.session_gone(&network.core.reference(ue.supi(), id(1))).await;
    network.ue(ue.supi(), |view| view["sessions"] == serde_json::json!([])).await;
    assert_eq!(ue.served(&mut gnb).await, Some(set(&[])));
    gnb.send(ngap::NasNonDeliveryIndication {
        amf_ue_ngap_id: ue.amf_id.unwrap(),
        ran_ue_ngap_id: ue.ran_id,
        nas_pdu: Some(bytes::Bytes::from_static(b"lost")),
        cause: ngap::cause::RadioNetwork::Unspecified.into(),
    })
    .await;
    assert_eq!(ue.made_to_register(&mut gnb, &[1]).await, Some(set(&[])));
}

/// A REGISTRATION ACCEPT that the UE has not completed may not have reached it. A UE that says which sessions it has
/// needs to hear nothing more of the others.
#[tokio::test]
async fn a_ue_is_told_of_lost_sessions_until_it_completes_or_knows() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1, 2]).await;
    ue.idle(&mut gnb).await;
    network.core.session_gone(&network.core.reference(ue.supi(), id(1))).await;
    network.ue(ue.supi(), |view| view["sessions"].as_array().unwrap().len() == 1).await;
    let update = Message::RegistrationRequest(ue.registration_request(RegistrationType::MobilityUpdating));
    ue.open(&gnb, &update).await;
    let Message::RegistrationAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(accept.pdu_session_status, Some(set(&[2])));
    gnb.association.abort();
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    let mut gnb = Gnb::up(network.n2, 2).await;
    assert_eq!(ue.served(&mut gnb).await, Some(set(&[2])));
    ue.idle(&mut gnb).await;
    // It knows, and asks whether it is right.
    let (ngksi, s_tmsi) = (ue.security.as_ref().unwrap().ngksi(), ue.guti.unwrap().s_tmsi());
    let mut request = gmm::ServiceRequest::new(ngksi, nas::ServiceType::Signalling, s_tmsi);
    request.pdu_session_status = Some(set(&[2]));
    ue.open(&gnb, &Message::ServiceRequest(request)).await;
    let Message::ServiceAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(accept.pdu_session_status, Some(set(&[2])));
    ue.idle(&mut gnb).await;
    assert_eq!(ue.served(&mut gnb).await, None);
}

/// A slow gNB gives the UE the accept of a session whose set-up was given up.
#[tokio::test]
async fn a_session_that_the_gnb_sets_up_too_late_is_not_kept_by_the_ue() {
    let network = Network::with(serde_json::json!({"timers": {"n2_guard_ms": 150}})).await;
    for late in [true, false] {
        let (mut gnb, mut ue) = with_sessions(&network, &[]).await;
        ue.send(&gnb, &Message::UlNasTransport(crate::sessions::request(1))).await;
        let Pdu::PduSessionResourceSetupRequest(setup) = gnb.recv().await else { panic!() };
        ue.read(setup.pdu_sessions[0].nas_pdu.as_ref().unwrap());
        let Message::DlNasTransport(back) = ue.recv(&mut gnb).await else { panic!() };
        assert_eq!(back.cause, Some(GmmCause::PayloadNotForwarded));
        if late {
            let item = ngap::PduSessionItem { id: id(1), transfer: bytes::Bytes::from_static(b"late") };
            gnb.send(ngap::PduSessionResourceSetupResponse {
                amf_ue_ngap_id: setup.amf_ue_ngap_id,
                ran_ue_ngap_id: ue.ran_id,
                pdu_sessions: vec![item],
                failed: vec![],
                criticality_diagnostics: None,
                user_location: None,
            })
            .await;
            assert_eq!(ue.made_to_register(&mut gnb, &[1]).await, Some(set(&[])));
        } else {
            // It did not answer before the connection ended.
            gnb.silent(50).await;
            ue.idle(&mut gnb).await;
            assert_eq!(ue.served(&mut gnb).await, Some(set(&[])));
        }
    }
}

/// A session without user plane ends in its SMF, whose release command did not get through: a connected UE is made to
/// register as any other. One that has completed the release knows.
#[tokio::test]
async fn a_connected_ue_learns_of_the_end_of_a_session_without_user_plane() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1, 2]).await;
    ue.idle(&mut gnb).await;
    network.core.wait_called("deactivate", 2).await;
    ue.service_request(&gnb, &[]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    network.core.session_gone(&network.core.reference(ue.supi(), id(1))).await;
    assert_eq!(ue.made_to_register(&mut gnb, &[1, 2]).await, Some(set(&[2])));
    let completed = gmm::UlNasTransport::n1_sm(id(2), vec![0x2e, 2, 0, 0xd4]);
    ue.send(&gnb, &Message::UlNasTransport(completed)).await;
    network.core.wait_called("n1", 1).await;
    network.core.session_gone(&network.core.reference(ue.supi(), id(2))).await;
    network.ue(ue.supi(), |view| view["sessions"] == serde_json::json!([])).await;
    gnb.silent(100).await;
}

/// The UE may have the accept of a session whose set-up the end of the connection has interrupted.
#[tokio::test]
async fn a_ue_is_told_that_a_session_was_not_set_up_after_all() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1]).await;
    ue.send(&gnb, &Message::UlNasTransport(crate::sessions::request(2))).await;
    let Pdu::PduSessionResourceSetupRequest(setup) = gnb.recv().await else { panic!() };
    ue.read(setup.pdu_sessions[0].nas_pdu.as_ref().unwrap());
    gnb.association.abort();
    network.core.wait_called("release_context", 1).await;
    let mut gnb = Gnb::up(network.n2, 2).await;
    ue.service_request(&gnb, &[]).await;
    let Message::ServiceAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(accept.pdu_session_status, Some(set(&[1])));
}

/// A UE asks for the user plane of a session that nobody has, and does not say which sessions it has.
#[tokio::test]
async fn a_ue_that_asks_for_a_session_that_is_not_there_is_told_which_are() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1]).await;
    ue.idle(&mut gnb).await;
    ue.service_request(&gnb, &[1, 3]).await;
    let Message::ServiceAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(accept.pdu_session_status, Some(set(&[1])));
    assert_eq!(accept.reactivation_result, Some(set(&[])));
    ue.idle(&mut gnb).await;
    let mut update = ue.registration_request(RegistrationType::MobilityUpdating);
    update.uplink_data_status = Some(set(&[3]));
    ue.open(&gnb, &Message::RegistrationRequest(update)).await;
    assert_eq!(ue.complete(&mut gnb).await.pdu_session_status, Some(set(&[1])));
}

/// TS 29.510: the recovery time of an SMF has changed.
#[tokio::test]
async fn an_smf_that_restarted_is_asked_for_every_session() {
    let network = Network::with_nrf().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[1, 2]).await;
    network.core.wait_called("discover", 1).await;
    // The same recovery time again is no restart: no SMF is asked.
    let before = network.core.called("update_context");
    network.core.registered("SMF", "2026-01-01T00:00:00.000Z").await;
    gnb.silent(200).await;
    assert_eq!(network.core.called("update_context"), before);
    network.core.lose_session(ue.supi(), id(2));
    network.core.registered("SMF", "2026-01-01T00:00:09.000Z").await;
    assert_eq!(ue.made_to_register(&mut gnb, &[1, 2]).await, Some(set(&[1])));
    // No session is lost: no UE is informed.
    network.core.registered("SMF", "2026-01-01T00:00:10.000Z").await;
    network.core.wait_called("update_context", before + 4).await;
    gnb.silent(100).await;
    network.ue(ue.supi(), |view| view["sessions"].as_array().unwrap().len() == 1).await;
}

#[tokio::test]
async fn the_pcf_changes_and_ends_the_policy_of_a_ue() {
    let network = Network::start().await;
    let (mut gnb, mut ue) = with_sessions(&network, &[]).await;
    let root = format!("http://{}", network.amf.sbi());
    let uri = am_notification_uri(&root, &ue.supi().to_string());
    assert_eq!(network.core.policy_uri.lock().unwrap().as_deref(), Some(uri.as_str()));
    let ambr = Ambr { uplink: "7 Mbps".parse().unwrap(), downlink: "8 Mbps".parse().unwrap() };
    let update =
        PolicyUpdate { resource_uri: String::new(), triggers: vec![], rfsp: None, ue_ambr: Some(ambr) };
    let client = &network.core.client;
    client.notify::<AmPolicyUpdateNotify>(&format!("{uri}/update"), update).await.unwrap();
    assert_eq!(gnb.new_bit_rate(&ue).await, Some(ambr));
    // The policy goes before the subscription, also when this changes.
    *network.core.ambr.lock().unwrap() = "2 Mbps";
    network.core.subscription_changed(ue.supi()).await;
    network.core.wait_called("am_data", 2).await;
    gnb.silent(100).await;
    ue.send(&gnb, &Message::UlNasTransport(crate::sessions::request(1))).await;
    let Pdu::PduSessionResourceSetupRequest(setup) = gnb.recv().await else { panic!() };
    assert_eq!(setup.ue_ambr, Some(ambr));
    let end = TerminationNotification { resource_uri: String::new(), cause: "UNSPECIFIED".to_owned() };
    client.notify::<AmPolicyTerminateNotify>(&format!("{uri}/terminate"), end.clone()).await.unwrap();
    network.core.wait_called("delete_policy", 1).await;
    let nobody = am_notification_uri(&root, "imsi-999700000000777");
    let error = client.notify::<AmPolicyTerminateNotify>(&format!("{nobody}/terminate"), end).await;
    assert_eq!(error.unwrap_err().status(), Some(404));
}

impl Gnb {
    /// The bit rate in the UE Context Modification that follows; the gNB accepts it.
    async fn new_bit_rate(&mut self, ue: &Ue) -> Option<Ambr> {
        let Pdu::UeContextModificationRequest(request) = self.recv().await else { panic!() };
        assert_eq!((Some(request.amf_ue_ngap_id), request.ran_ue_ngap_id), (ue.amf_id, ue.ran_id));
        self.send(ngap::UeContextModificationResponse {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            user_location: None,
            criticality_diagnostics: None,
        })
        .await;
        request.ue_ambr
    }
}

/// A PCF that restarted has forgotten what the AMF has with it, and may decide otherwise now.
#[tokio::test]
async fn a_pcf_that_restarted_gets_the_policy_associations_anew() {
    let network = Network::with_nrf().await;
    let core = &network.core;
    core.wait_called("discover", 2).await;
    core.registered("PCF", "2026-01-01T00:00:00.000Z").await;
    core.wait_called("discover", 4).await;
    let (mut gnb, mut ue) = with_sessions(&network, &[]).await;
    let mut idle = Ue::new(2);
    idle.register(&mut gnb).await;
    idle.idle(&mut gnb).await;
    assert_eq!(core.called("create_policy"), 2);
    // It restarted and kept them.
    core.registered("PCF", "2026-01-01T00:00:01.000Z").await;
    core.wait_called("get_policy", 2).await;
    gnb.silent(100).await;
    assert_eq!(core.called("create_policy"), 2);
    // It lost them, and has another configuration.
    let ambr = |rate: &str| Ambr { uplink: rate.parse().unwrap(), downlink: rate.parse().unwrap() };
    core.policies.lock().unwrap().clear();
    *core.policy_ambr.lock().unwrap() = Some(ambr("7 Mbps"));
    core.registered("PCF", "2026-01-01T00:00:02.000Z").await;
    assert_eq!(gnb.new_bit_rate(&ue).await, Some(ambr("7 Mbps")));
    core.wait_called("create_policy", 4).await;
    // The new association is the one that ends.
    let request = gmm::DeregistrationRequestUe {
        switch_off: true,
        access: nas::AccessType::ThreeGpp,
        ngksi: nas::KeySetId::Native(0),
        identity: nas::MobileIdentity::Guti(ue.guti.unwrap()),
        nas_message_container: None,
    };
    ue.send(&gnb, &Message::DeregistrationRequestUe(request)).await;
    gnb.released(&mut ue).await;
    core.wait_called("delete_policy", 1).await;
    assert_eq!(core.policies.lock().unwrap().len(), 1);
    // It refuses: the subscription holds, and it is asked again when it comes back.
    idle.service_request(&gnb, &[]).await;
    assert!(matches!(idle.recv(&mut gnb).await, Message::ServiceAccept(_)));
    core.policies.lock().unwrap().clear();
    core.fault("create_policy", Fault::Refuse(503, "NF_CONGESTION"));
    core.registered("PCF", "2026-01-01T00:00:03.000Z").await;
    assert_eq!(gnb.new_bit_rate(&idle).await, Some(ambr("1 Gbps")));
    core.heal();
    core.registered("PCF", "2026-01-01T00:00:04.000Z").await;
    assert_eq!(gnb.new_bit_rate(&idle).await, Some(ambr("7 Mbps")));
}
