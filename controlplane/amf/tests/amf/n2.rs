//! NG Setup, reset, errors, associations.

use std::time::Duration;

use bytes::Bytes;
use ngap::cause::{Misc, Protocol, RadioNetwork};
use ngap::*;
use types::Plmn;

use crate::support::*;

#[tokio::test]
async fn a_gnb_that_fits_is_accepted_and_others_are_told_why_not() {
    let network = Network::start().await;
    let mut gnb = Gnb::connect(network.n2).await;
    gnb.send(setup_request(1, plmn(), 1, "1")).await;
    let Pdu::NgSetupResponse(response) = gnb.recv().await else { panic!() };
    assert_eq!(response.amf_name, "godwit-amf");
    assert_eq!(response.served_guamis[0].guami.plmn, plmn());
    assert_eq!(response.plmn_support[0].slices, ["1".parse().unwrap()]);

    let cases = [
        (setup_request(2, Plmn::new("001", "01").unwrap(), 1, "1"), Cause::from(Misc::UnknownPlmnOrSnpn)),
        (setup_request(2, plmn(), 7, "1"), Misc::Unspecified.into()),
        (setup_request(2, plmn(), 1, "2"), RadioNetwork::SliceNotSupported.into()),
    ];
    let mut other = Gnb::connect(network.n2).await;
    for (request, cause) in cases {
        other.send(request).await;
        let Pdu::NgSetupFailure(failure) = other.recv().await else { panic!() };
        assert_eq!(failure.cause, cause);
        assert!(failure.time_to_wait.is_some());
    }
    // A refused gNB may not do anything else …
    Ue::new(1).register_refused(&mut other).await;
    // … until its configuration is right.
    other.send(setup_request(2, plmn(), 1, "1")).await;
    assert!(matches!(other.recv().await, Pdu::NgSetupResponse(_)));
    assert_eq!(network.oam("GET", "/gnbs").await.as_array().unwrap().len(), 2);
}

impl Ue {
    async fn register_refused(&mut self, gnb: &mut Gnb) {
        let request = self.registration_request(nas::RegistrationType::Initial);
        self.open(gnb, &nas::Message::RegistrationRequest(request)).await;
        let Pdu::ErrorIndication(error) = gnb.recv().await else { panic!() };
        assert_eq!(error.cause, Some(Protocol::MessageNotCompatibleWithReceiverState.into()));
    }
}

#[tokio::test]
async fn configuration_updates_are_checked_like_the_set_up() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let tas = |tac| Some(setup_request(1, plmn(), tac, "1").supported_tas);
    let update = |name: &str, supported_tas| RanConfigurationUpdate {
        ran_node_name: Some(name.to_owned()),
        supported_tas,
        default_paging_drx: None,
        global_ran_node_id: None,
    };
    gnb.send(update("renamed", tas(1))).await;
    assert!(matches!(gnb.recv().await, Pdu::RanConfigurationUpdateAcknowledge(_)));
    gnb.send(update("lost", tas(9))).await;
    assert!(matches!(gnb.recv().await, Pdu::RanConfigurationUpdateFailure(_)));
    assert_eq!(network.oam("GET", "/gnbs").await[0]["name"], "renamed");
}

#[tokio::test]
async fn malformed_ngap_is_answered_and_disturbs_nobody() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    let good = Pdu::from(setup_request(1, plmn(), 1, "1")).encode().unwrap();
    for octets in [&b"\xff\xff\xff"[..], &good[..good.len() - 3], &[0x00, 0x7f, 0x40]] {
        gnb.send_octets(Bytes::copy_from_slice(octets)).await;
        let answer = gnb.recv().await;
        assert!(matches!(answer, Pdu::ErrorIndication(_) | Pdu::NgSetupFailure(_)), "{answer:?}");
    }
    // The UE is still served.
    ue.idle(&mut gnb).await;
}

#[tokio::test]
async fn a_gnb_cannot_speak_for_a_ue_it_does_not_own() {
    let network = Network::start().await;
    let (mut gnb, mut other) = (Gnb::up(network.n2, 1).await, Gnb::up(network.n2, 2).await);
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    let release = |amf, ran| UeContextReleaseRequest {
        amf_ue_ngap_id: amf,
        ran_ue_ngap_id: ran,
        pdu_sessions: vec![],
        cause: RadioNetwork::UserInactivity.into(),
    };
    other.send(release(ue.amf_id.unwrap(), ue.ran_id)).await;
    let Pdu::ErrorIndication(error) = other.recv().await else { panic!() };
    assert_eq!(error.cause, Some(RadioNetwork::UnknownLocalUeNgapId.into()));
    assert_eq!((error.amf_ue_ngap_id, error.ran_ue_ngap_id), (ue.amf_id, Some(ue.ran_id)));
    // The right gNB with a wrong identity.
    gnb.send(release(ue.amf_id.unwrap(), RanUeNgapId(77))).await;
    let Pdu::ErrorIndication(error) = gnb.recv().await else { panic!() };
    assert_eq!(error.cause, Some(RadioNetwork::InconsistentRemoteUeNgapId.into()));
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-CONNECTED").await;
}

#[tokio::test]
async fn losing_the_association_makes_ues_idle_and_takes_user_planes_down() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    ue.establish(&mut gnb, 1).await;
    network.core.wait_called("setup_done", 1).await;
    gnb.association.abort();
    network.core.wait_called("deactivate", 1).await;
    let view = network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    assert_eq!(view["mm_state"], "5GMM-REGISTERED");
    assert_eq!(view["sessions"][0]["active"], false);
    // The UE connects at another gNB, and its session is activated there.
    let mut gnb = Gnb::up(network.n2, 2).await;
    ue.service_request(&gnb, &[1]).await;
    assert!(matches!(ue.recv(&mut gnb).await, nas::Message::ServiceAccept(_)));
    network.core.wait_called("setup_done", 2).await;
}

#[tokio::test]
async fn the_same_gnb_on_a_new_association_replaces_the_old_one() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    let _again = Gnb::up(network.n2, 1).await;
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    let ended = net::time::timeout(Duration::from_secs(5), gnb.association.recv()).await.unwrap();
    assert!(matches!(ended, Some(net::sctp::Event::Closed { .. })), "{ended:?}");
    assert_eq!(network.oam("GET", "/gnbs").await.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn resets_end_the_named_connections_and_no_others() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ues = [Ue::new(1), Ue::new(2), Ue::new(3)];
    for ue in &mut ues {
        ue.register(&mut gnb).await;
    }
    let named = vec![
        UeConnection { amf_ue_ngap_id: ues[0].amf_id, ran_ue_ngap_id: None },
        UeConnection { amf_ue_ngap_id: None, ran_ue_ngap_id: Some(ues[1].ran_id) },
        UeConnection { amf_ue_ngap_id: None, ran_ue_ngap_id: Some(RanUeNgapId(99)) },
    ];
    let reset = |reset_type| NgReset { cause: Misc::OmIntervention.into(), reset_type };
    gnb.send(reset(ResetType::PartOfNgInterface(named.clone()))).await;
    let Pdu::NgResetAcknowledge(acknowledge) = gnb.recv().await else { panic!() };
    assert_eq!(acknowledge.connections, named);
    for ue in &ues[..2] {
        network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    }
    network.ue(ues[2].supi(), |view| view["cm_state"] == "CM-CONNECTED").await;
    gnb.send(reset(ResetType::NgInterface)).await;
    let Pdu::NgResetAcknowledge(acknowledge) = gnb.recv().await else { panic!() };
    assert!(acknowledge.connections.is_empty());
    network.ue(ues[2].supi(), |view| view["cm_state"] == "CM-IDLE").await;
}

#[tokio::test]
async fn too_many_ues_are_told_to_come_back() {
    let network = Network::with(serde_json::json!({"limits": {"ues": 1}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    Ue::new(1).register(&mut gnb).await;
    let mut late = Ue::new(2);
    let request = late.registration_request(nas::RegistrationType::Initial);
    late.open(&gnb, &nas::Message::RegistrationRequest(request)).await;
    let reject = late.rejected(&mut gnb).await;
    assert_eq!(reject.cause, nas::GmmCause::Congestion);
    assert!(reject.t3346.is_some());
}
