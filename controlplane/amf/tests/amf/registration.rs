//! Registration, authentication, security mode, deregistration, release, service request.

use nas::{CipheringAlgorithm, GmmCause, IntegrityAlgorithm, Message, MobileIdentity, RegistrationType, gmm};
use ngap::cause::Nas;
use ngap::*;

use crate::support::*;

const INITIAL: RegistrationType = RegistrationType::Initial;

#[tokio::test]
async fn initial_registration_with_suci() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let accept = ue.register(&mut gnb).await;
    assert_eq!(accept.allowed_nssai, ["1".parse().unwrap()]);
    assert_eq!(accept.tai_list, [tai(1)]);
    assert!(accept.guti.is_some() && accept.t3512.is_some());
    // KgNB is derived from the SECURITY MODE COMPLETE, the UE's first protected message.
    assert_eq!(ue.kgnb, Some(ue.security.as_ref().unwrap().kgnb_of(0)));
    let view = network.ue(ue.supi(), |view| view["mm_state"] == "5GMM-REGISTERED").await;
    assert_eq!(view["rm_state"], "RM-REGISTERED");
    assert_eq!(view["pei"], "imeisv-4370816125816151");
    assert_eq!(view["gnb"], "gnb-1");
    assert_eq!((&view["integrity"], &view["ciphering"]), (&"NIA2".into(), &"NEA2".into()));
    let samples = network.oam("GET", "/procedures").await;
    assert_eq!((&samples[0]["procedure"], &samples[0]["outcome"]), (&"registration".into(), &"ok".into()));
    assert!(samples[0]["core_us"].as_u64().unwrap() > 0);
    assert!(samples[0]["core_us"].as_u64() <= samples[0]["total_us"].as_u64());
    for call in ["authenticate", "confirm", "register_amf", "am_data", "smf_select", "create_policy"] {
        assert_eq!(network.core.called(call), 1, "{call}");
    }
}

#[tokio::test]
async fn the_configured_slices_are_the_subscribers() {
    let slices = |list: &[&str]| list.iter().map(|one| one.parse().unwrap()).collect::<Vec<types::SNssai>>();
    let served = serde_json::json!([{"sst": 1}, {"sst": 2}, {"sst": 3}]);
    let network = Network::with(serde_json::json!({"slices": served})).await;
    // Of five subscribed slices the network has two.
    *network.core.slices.lock().unwrap() = slices(&["1", "7"]);
    *network.core.other_slices.lock().unwrap() = slices(&["2-000001", "3", "8"]);
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let accept = ue.register(&mut gnb).await;
    assert_eq!(accept.configured_nssai, slices(&["1", "3"]));
    assert_eq!(accept.allowed_nssai, slices(&["1"]));
    // A change applies from the next registration on, also if the UE is known and its message verified.
    *network.core.slices.lock().unwrap() = slices(&["2"]);
    ue.idle(&mut gnb).await;
    ue.requested_nssai = Vec::new();
    let again = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &again).await;
    let accept = ue.complete(&mut gnb).await;
    assert_eq!(network.core.called("authenticate"), 1);
    assert_eq!((accept.configured_nssai, accept.allowed_nssai), (slices(&["2", "3"]), slices(&["2"])));
}

#[tokio::test]
async fn changes_of_the_subscription_take_effect_while_the_ue_is_registered() {
    let slices = |list: &[&str]| list.iter().map(|one| one.parse().unwrap()).collect::<Vec<types::SNssai>>();
    let served = serde_json::json!([{"sst": 1}, {"sst": 2}, {"sst": 3}]);
    let network = Network::with(serde_json::json!({"slices": served})).await;
    let core = &network.core;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    assert_eq!(core.called("sdm_subscribe"), 1);
    // No data that the AMF reads has changed.
    core.subscription_changed(ue.supi()).await;
    core.wait_called("am_data", 2).await;
    gnb.silent(100).await;
    // A bit rate: the gNB is informed, the UE is not.
    *core.ambr.lock().unwrap() = "2 Mbps";
    core.subscription_changed(ue.supi()).await;
    let Pdu::UeContextModificationRequest(request) = gnb.recv().await else { panic!() };
    assert_eq!(request.ue_ambr.unwrap().uplink, "2 Mbps".parse().unwrap());
    gnb.send(UeContextModificationResponse {
        amf_ue_ngap_id: request.amf_ue_ngap_id,
        ran_ue_ngap_id: request.ran_ue_ngap_id,
        user_location: None,
        criticality_diagnostics: None,
    })
    .await;
    // Another slice: the UE is informed, and an idle one with its next connection.
    *core.other_slices.lock().unwrap() = slices(&["3"]);
    core.subscription_changed(ue.supi()).await;
    let Message::ConfigurationUpdateCommand(command) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!((&command.configured_nssai, command.guti), (&slices(&["1", "3"]), None));
    assert_eq!(command.allowed_nssai, slices(&["1"]));
    ue.send(&gnb, &Message::ConfigurationUpdateComplete).await;
    ue.idle(&mut gnb).await;
    *core.other_slices.lock().unwrap() = slices(&["2", "3"]);
    core.subscription_changed(ue.supi()).await;
    core.wait_called("am_data", 5).await;
    gnb.silent(100).await;
    ue.service_request(&gnb, &[]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    let Message::ConfigurationUpdateCommand(command) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(command.configured_nssai, slices(&["1", "2", "3"]));
    ue.send(&gnb, &Message::ConfigurationUpdateComplete).await;
    // The slice in use was removed: the UE has to register again, and gets the others.
    *core.slices.lock().unwrap() = slices(&["2"]);
    core.subscription_changed(ue.supi()).await;
    let Message::DeregistrationRequestNetwork(request) = ue.recv(&mut gnb).await else { panic!() };
    assert!(request.reregistration_required);
    ue.send(&gnb, &Message::DeregistrationAcceptNetwork).await;
    gnb.released(&mut ue).await;
    // The AMF's own decision: the UDM does not know that the UE is gone, should it not return.
    core.wait_called("purge_amf", 1).await;
    ue.requested_nssai = Vec::new();
    let accept = ue.register(&mut gnb).await;
    assert_eq!(accept.allowed_nssai, slices(&["2"]));
    assert!(core.serving.lock().unwrap().contains_key(&ue.supi()));
    // Without UDM nothing changes: the present values stay in force.
    core.fault("am_data", Fault::Refuse(503, "NF_CONGESTION"));
    core.subscription_changed(ue.supi()).await;
    gnb.silent(100).await;
    network.ue(ue.supi(), |view| view["mm_state"] == "5GMM-REGISTERED").await;
}

#[tokio::test]
async fn algorithms_follow_the_configured_order() {
    let changes = serde_json::json!({"integrity": ["NIA1", "NIA2"], "ciphering": ["NEA2", "NEA0"]});
    let network = Network::with(changes).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    let security = ue.security.as_ref().unwrap();
    assert_eq!(security.integrity(), IntegrityAlgorithm::Nia1);
    assert_eq!(security.ciphering(), CipheringAlgorithm::Nea2);
    // A UE that has only the others gets those.
    let mut other = Ue::new(2);
    other.capability =
        nas::UeSecurityCapability::new(&[CipheringAlgorithm::Nea0], &[IntegrityAlgorithm::Nia2]);
    other.register(&mut gnb).await;
    assert_eq!(other.security.unwrap().integrity(), IntegrityAlgorithm::Nia2);
}

#[tokio::test]
async fn an_unknown_guti_leads_to_an_identity_request() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let mut request = ue.registration_request(INITIAL);
    let guami = types::Guami { plmn: plmn(), amf_id: types::AmfId::new(2, 1, 0).unwrap() };
    request.identity = MobileIdentity::Guti(types::Guti { guami, tmsi: types::Tmsi(0xdead) });
    let request = Message::RegistrationRequest(request);
    ue.open(&gnb, &request).await;
    let asked = ue.recv(&mut gnb).await;
    assert!(matches!(asked, Message::IdentityRequest(_)), "{asked:?}");
    let identity = MobileIdentity::Suci(ue.suci());
    ue.send(&gnb, &Message::IdentityResponse(gmm::IdentityResponse { identity })).await;
    ue.authenticate(&mut gnb).await;
    ue.secure(&mut gnb, &request).await;
    ue.complete(&mut gnb).await;
}

#[tokio::test]
async fn a_known_guti_needs_no_authentication_and_is_replaced() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    let first = ue.guti;
    for kind in [RegistrationType::MobilityUpdating, RegistrationType::PeriodicUpdating, INITIAL] {
        ue.idle(&mut gnb).await;
        let request = Message::RegistrationRequest(ue.registration_request(kind));
        ue.open(&gnb, &request).await;
        ue.complete(&mut gnb).await;
    }
    assert_ne!(ue.guti, first);
    assert_eq!(network.core.called("authenticate"), 1);
    // The first identity is no longer valid.
    ue.idle(&mut gnb).await;
    let mut stranger = Ue::new(2);
    stranger.guti = first;
    let request = Message::RegistrationRequest(stranger.registration_request(INITIAL));
    stranger.open(&gnb, &request).await;
    assert!(matches!(stranger.recv(&mut gnb).await, Message::IdentityRequest(_)));
}

#[tokio::test]
async fn somebody_else_with_my_guti_changes_nothing_for_me() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    ue.idle(&mut gnb).await;
    // The stranger is challenged like the UE, and fails.
    let mut stranger = Ue::new(2);
    stranger.guti = ue.guti;
    let request = Message::RegistrationRequest(stranger.registration_request(INITIAL));
    stranger.open(&gnb, &request).await;
    assert!(matches!(stranger.recv(&mut gnb).await, Message::AuthenticationRequest(_)));
    let res_star = Some(types::Key::new([0; 16]));
    let wrong = Message::AuthenticationResponse(gmm::AuthenticationResponse { res_star, eap: None });
    stranger.send(&gnb, &wrong).await;
    assert!(matches!(stranger.recv(&mut gnb).await, Message::AuthenticationReject(_)));
    gnb.released(&mut stranger).await;
    // A forged service request gets #9, the real one is accepted.
    let request = gmm::ServiceRequest::new(
        nas::KeySetId::Native(0),
        nas::ServiceType::Signalling,
        ue.guti.unwrap().s_tmsi(),
    );
    stranger.open_with(&gnb, Message::ServiceRequest(request).encode().unwrap()).await;
    let Message::ServiceReject(reject) = stranger.recv(&mut gnb).await else { panic!() };
    assert_eq!(reject.cause, GmmCause::UeIdentityCannotBeDerived);
    gnb.released(&mut stranger).await;
    ue.service_request(&gnb, &[]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
}

#[tokio::test]
async fn the_same_subscriber_elsewhere_replaces_its_old_context() {
    let network = Network::start().await;
    let (mut gnb, mut other) = (Gnb::up(network.n2, 1).await, Gnb::up(network.n2, 2).await);
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    ue.establish(&mut gnb, 1).await;
    let mut again = Ue::new(1);
    again.usim = nas::aka::Usim::new(milenage(), ue.usim.sqn_ms());
    again.register(&mut other).await;
    gnb.released(&mut ue).await;
    network.core.wait_called("release_context", 1).await;
    let view = network.ue(again.supi(), |view| view["gnb"] == "gnb-2").await;
    assert_eq!(view["sessions"], serde_json::json!([]));
    assert!(network.core.serving.lock().unwrap().contains_key(&again.supi()));
}

#[tokio::test]
async fn refusals_of_the_core_reach_the_ue_as_the_cause_of_ts_29_524() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut unknown = Ue::new(900);
    let request = Message::RegistrationRequest(unknown.registration_request(INITIAL));
    unknown.open(&gnb, &request).await;
    assert_eq!(unknown.rejected(&mut gnb).await.cause, GmmCause::IllegalUe);

    let core = &network.core;
    let cases = [
        (
            "authenticate",
            Fault::Refuse(403, "SERVING_NETWORK_NOT_AUTHORIZED"),
            GmmCause::ServingNetworkNotAuthorized,
        ),
        ("authenticate", Fault::Refuse(503, "NF_CONGESTION"), GmmCause::Congestion),
        ("authenticate", Fault::Hang, GmmCause::Congestion),
    ];
    for (operation, fault, cause) in cases {
        core.fault(operation, fault);
        let mut ue = Ue::new(1);
        let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
        ue.open(&gnb, &request).await;
        let reject = ue.rejected(&mut gnb).await;
        assert_eq!(reject.cause, cause);
        assert_eq!(reject.t3346.is_some(), cause == GmmCause::Congestion);
        core.heal();
    }
    let cases = [
        (
            "register_amf",
            Fault::Refuse(403, "ROAMING_NOT_ALLOWED"),
            GmmCause::RoamingNotAllowedInTrackingArea,
        ),
        ("am_data", Fault::Refuse(404, "USER_NOT_FOUND"), GmmCause::FiveGsServicesNotAllowed),
        ("am_data", Fault::Hang, GmmCause::Congestion),
    ];
    let mut sqn = 0;
    for (operation, fault, cause) in cases {
        core.fault(operation, fault);
        let mut ue = Ue::new(1);
        ue.usim = nas::aka::Usim::new(milenage(), sqn);
        let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
        ue.open(&gnb, &request).await;
        ue.authenticate(&mut gnb).await;
        ue.secure(&mut gnb, &request).await;
        assert_eq!(ue.rejected(&mut gnb).await.cause, cause, "{operation}");
        sqn = ue.usim.sqn_ms();
        core.heal();
        network.gone(ue.supi()).await;
    }
    // A missing PCF does not prevent registration.
    core.fault("create_policy", Fault::Refuse(503, "NF_CONGESTION"));
    Ue::new(2).register(&mut gnb).await;
}

#[tokio::test]
async fn place_and_slices_are_checked() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.tac = 9;
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    assert_eq!(ue.rejected(&mut gnb).await.cause, GmmCause::TrackingAreaNotAllowed);

    *network.core.slices.lock().unwrap() = vec!["2".parse().unwrap()];
    let mut ue = Ue::new(2);
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    ue.authenticate(&mut gnb).await;
    ue.secure(&mut gnb, &request).await;
    let reject = ue.rejected(&mut gnb).await;
    assert_eq!(reject.cause, GmmCause::NoNetworkSlicesAvailable);
    assert_eq!(reject.rejected_nssai[0].s_nssai, "1".parse().unwrap());
}

#[tokio::test]
async fn a_resynchronisation_is_tried_once() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.usim = nas::aka::Usim::new(milenage(), 1 << 20);
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    ue.authenticate(&mut gnb).await; // synch failure with AUTS
    ue.authenticate(&mut gnb).await;
    ue.secure(&mut gnb, &request).await;
    ue.complete(&mut gnb).await;
    assert_eq!(network.core.called("resynchronise"), 1);
}

#[tokio::test]
async fn a_wrong_key_ends_in_authentication_reject() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let wrong = nas::aka::Milenage::new(&types::Key::new([1; 16]), &types::Key::new([2; 16]));
    ue.usim = nas::aka::Usim::new(wrong, 0);
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    ue.authenticate(&mut gnb).await; // MAC failure
    assert!(matches!(ue.recv(&mut gnb).await, Message::IdentityRequest(_)));
    let identity = MobileIdentity::Suci(ue.suci());
    ue.send(&gnb, &Message::IdentityResponse(gmm::IdentityResponse { identity })).await;
    ue.authenticate(&mut gnb).await; // MAC failure again
    assert!(matches!(ue.recv(&mut gnb).await, Message::AuthenticationReject(_)));
    assert_eq!(gnb.released(&mut ue).await, Nas::AuthenticationFailure.into());
    assert_eq!(network.core.called("am_data"), 0);
}

#[tokio::test]
async fn a_silent_ue_is_asked_five_times_and_let_go() {
    let timers = serde_json::json!({"timers": {"t3560_ms": 60, "n2_guard_ms": 300}});
    let network = Network::with(timers).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    for _ in 0..5 {
        assert!(matches!(ue.recv(&mut gnb).await, Message::AuthenticationRequest(_)));
    }
    gnb.released(&mut ue).await;
    gnb.silent(150).await;
    // Another UE is served at once.
    Ue::new(2).register(&mut gnb).await;
}

#[tokio::test]
async fn a_registration_that_is_not_completed_is_accepted_again() {
    let network = Network::with(serde_json::json!({"timers": {"t3550_ms": 60}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    ue.authenticate(&mut gnb).await;
    ue.secure(&mut gnb, &request).await;
    let first = ue.recv(&mut gnb).await;
    for _ in 0..4 {
        assert_eq!(ue.recv(&mut gnb).await, first);
    }
    gnb.released(&mut ue).await;
    // The UE counts as registered, and both sides know the new 5G-GUTI.
    let Message::RegistrationAccept(accept) = first else { panic!() };
    ue.guti = accept.guti;
    network.ue(ue.supi(), |view| view["mm_state"] == "5GMM-REGISTERED").await;
    ue.service_request(&gnb, &[]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
}

#[tokio::test]
async fn security_mode_can_fail_on_either_side() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.capability = nas::UeSecurityCapability::new(&[CipheringAlgorithm::Nea3], &[IntegrityAlgorithm::Nia3]);
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    assert_eq!(ue.rejected(&mut gnb).await.cause, GmmCause::UeSecurityCapabilitiesMismatch);

    for cause in [GmmCause::UeSecurityCapabilitiesMismatch, GmmCause::SecurityModeRejected] {
        let mut ue = Ue::new(cause.number().into());
        let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
        ue.open(&gnb, &request).await;
        ue.authenticate(&mut gnb).await;
        assert!(matches!(ue.recv(&mut gnb).await, Message::SecurityModeCommand(_)));
        let reject = Message::SecurityModeReject(gmm::SecurityModeReject { cause });
        ue.send_octets(&gnb, reject.encode().unwrap()).await;
        assert_eq!(ue.rejected(&mut gnb).await.cause, cause);
    }
    // Capabilities that were changed in transit are detected by the protected copy.
    let mut ue = Ue::new(2);
    let request = ue.registration_request(INITIAL);
    ue.open(&gnb, &Message::RegistrationRequest(request.clone())).await;
    ue.authenticate(&mut gnb).await;
    let mut true_request = request;
    true_request.ue_security_capability =
        Some(nas::UeSecurityCapability::new(&[CipheringAlgorithm::Nea2], &[IntegrityAlgorithm::Nia2]));
    ue.secure(&mut gnb, &Message::RegistrationRequest(true_request)).await;
    assert_eq!(ue.rejected(&mut gnb).await.cause, GmmCause::UeSecurityCapabilitiesMismatch);
}

#[tokio::test]
async fn tampered_replayed_and_plain_messages_are_discarded() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    let status = Message::DeregistrationRequestUe(gmm::DeregistrationRequestUe {
        switch_off: true,
        access: nas::AccessType::ThreeGpp,
        ngksi: nas::KeySetId::Native(0),
        identity: MobileIdentity::Guti(ue.guti.unwrap()),
        nas_message_container: None,
    });
    let request = gmm::UlNasTransport::n1_sm(types::PduSessionId::new(9).unwrap(), vec![0x2e, 9, 1, 0xc9]);
    let genuine = ue.security.as_mut().unwrap().protect(&Message::UlNasTransport(request)).unwrap();
    ue.send_octets(&gnb, genuine.clone()).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::DlNasTransport(_)));
    let mut tampered = ue.security.as_mut().unwrap().protect(&status).unwrap();
    for i in [2, 7, tampered.len() - 1] {
        tampered[i] ^= 1;
        ue.send_octets(&gnb, tampered.clone()).await;
        tampered[i] ^= 1;
    }
    ue.send_octets(&gnb, genuine).await; // replayed
    ue.send_octets(&gnb, status.encode().unwrap()).await; // plain
    ue.send_octets(&gnb, vec![0x7e]).await; // truncated
    gnb.silent(200).await;
    network.ue(ue.supi(), |view| view["mm_state"] == "5GMM-REGISTERED").await;
    // The genuine message is still accepted.
    ue.send_octets(&gnb, tampered).await;
    gnb.released(&mut ue).await;
    network.gone(ue.supi()).await;
    let rejected = network.oam("GET", "/counters").await["amf_nas_rejected"]["values"].clone();
    assert!(rejected["integrity"].as_u64().unwrap() >= 4, "{rejected}");
    assert!(rejected["plain_when_secure"].as_u64().unwrap() >= 1, "{rejected}");
}

#[tokio::test]
async fn every_truncation_and_bit_flip_of_a_first_message_leaves_the_amf_alive() {
    let network = Network::with(serde_json::json!({"timers": {"n2_guard_ms": 50, "t3560_ms": 50}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let good = Message::RegistrationRequest(ue.registration_request(INITIAL)).encode().unwrap();
    for n in 1..good.len() {
        ue.ran_id = RanUeNgapId(1000 + n as u32);
        ue.open_with(&gnb, good[..n].to_vec()).await;
        let mut flipped = good.clone();
        flipped[n] ^= 1 << (n % 8);
        ue.ran_id = RanUeNgapId(2000 + n as u32);
        ue.open_with(&gnb, flipped).await;
        while gnb.recv_within(std::time::Duration::from_millis(1)).await.is_some() {}
    }
    while gnb.recv_within(std::time::Duration::from_millis(400)).await.is_some() {}
    Ue::new(3).register(&mut gnb).await;
}

#[tokio::test]
async fn collisions_of_registrations() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    // The network duplicates the first message: one challenge, not two.
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    ue.open(&gnb, &request).await;
    let challenge = ue.recv(&mut gnb).await;
    gnb.silent(100).await;
    // The UE starts again on another connection; the gNB forgets the old one.
    drop(challenge);
    ue.ran_id = RanUeNgapId(50);
    ue.open(&gnb, &request).await;
    ue.authenticate(&mut gnb).await;
    // The same request again on the same connection changes nothing; a different one starts over.
    ue.send_octets(&gnb, request.encode().unwrap()).await;
    ue.secure(&mut gnb, &request).await;
    ue.complete(&mut gnb).await;
    network.ue(ue.supi(), |view| view["ran_ue_ngap_id"] == 50).await;
    // Registered and connected, the UE registers again.
    let again = Message::RegistrationRequest(ue.registration_request(RegistrationType::MobilityUpdating));
    ue.send(&gnb, &again).await;
    ue.complete(&mut gnb).await;
}

#[tokio::test]
async fn deregistration_by_the_ue() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    for switch_off in [false, true] {
        let mut ue = Ue::new(1 + u32::from(switch_off));
        ue.register(&mut gnb).await;
        ue.establish(&mut gnb, 1).await;
        let request = Message::DeregistrationRequestUe(gmm::DeregistrationRequestUe {
            switch_off,
            access: nas::AccessType::ThreeGpp,
            ngksi: nas::KeySetId::Native(0),
            identity: MobileIdentity::Guti(ue.guti.unwrap()),
            nas_message_container: None,
        });
        ue.send(&gnb, &request).await;
        if !switch_off {
            assert_eq!(ue.recv(&mut gnb).await, Message::DeregistrationAcceptUe);
        }
        assert_eq!(gnb.released(&mut ue).await, Nas::Deregister.into());
        network.gone(ue.supi()).await;
        let times = 1 + usize::from(switch_off);
        for call in ["release_context", "delete_policy", "purge_amf"] {
            network.core.wait_called(call, times).await;
        }
    }
}

#[tokio::test]
async fn deregistration_by_operator_and_udm() {
    let network =
        Network::with(serde_json::json!({"timers": {"t3513_ms": 300, "t3522_ms": 60, "n2_guard_ms": 500}}))
            .await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    let socket = network.amf.oam().to_owned();
    let route = format!("/ues/{}/deregister", ue.supi());
    let order = tokio::spawn(async move { nf::oam::call(&socket, "POST", &route, None).await });
    // The first request is lost in transit; T3522 repeats it.
    assert!(matches!(ue.recv(&mut gnb).await, Message::DeregistrationRequestNetwork(_)));
    assert!(matches!(ue.recv(&mut gnb).await, Message::DeregistrationRequestNetwork(_)));
    ue.send(&gnb, &Message::DeregistrationAcceptNetwork).await;
    gnb.released(&mut ue).await;
    assert_eq!(order.await.unwrap().unwrap()["deregistered"], true);
    network.gone(ue.supi()).await;
    network.core.wait_called("purge_amf", 1).await;

    // The UDM withdraws the subscription of an idle UE: the UE is paged, connects and gets the request.
    // The UDM is not notified.
    use sbi::model::udm::DeregistrationReason::{SubscriptionWithdrawn, UeInitialRegistration};
    let mut ue = Ue::new(2);
    ue.register(&mut gnb).await;
    ue.idle(&mut gnb).await;
    network.core.deregister(ue.supi(), SubscriptionWithdrawn).await;
    let Pdu::Paging(paging) = gnb.recv().await else { panic!() };
    assert_eq!(paging.s_tmsi, ue.guti.unwrap().s_tmsi());
    ue.answer_page(&gnb).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
    let Message::DeregistrationRequestNetwork(request) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!((request.cause, request.reregistration_required), (Some(GmmCause::IllegalUe), false));
    ue.send(&gnb, &Message::DeregistrationAcceptNetwork).await;
    gnb.released(&mut ue).await;
    network.gone(ue.supi()).await;
    assert_eq!(network.core.called("purge_amf"), 1);

    // A UE that does not answer its pages is deregistered without a message.
    let mut ue = Ue::new(3);
    ue.register(&mut gnb).await;
    ue.idle(&mut gnb).await;
    network.core.deregister(ue.supi(), SubscriptionWithdrawn).await;
    for _ in 0..3 {
        assert!(matches!(gnb.recv().await, Pdu::Paging(_)));
    }
    network.gone(ue.supi()).await;
    // A UE that answers and disappears again is deregistered all the same.
    let mut ue = Ue::new(4);
    ue.register(&mut gnb).await;
    ue.idle(&mut gnb).await;
    network.core.deregister(ue.supi(), SubscriptionWithdrawn).await;
    assert!(matches!(gnb.recv().await, Pdu::Paging(_)));
    ue.answer_page(&gnb).await;
    let Pdu::InitialContextSetupRequest(setup) = gnb.recv().await else { panic!() };
    ue.amf_id = Some(setup.amf_ue_ngap_id);
    ue.idle(&mut gnb).await;
    network.gone(ue.supi()).await;
    gnb.silent(100).await;
    // A UE that another AMF already serves is neither paged nor sent a message.
    let mut ue = Ue::new(5);
    ue.register(&mut gnb).await;
    ue.idle(&mut gnb).await;
    network.core.deregister(ue.supi(), UeInitialRegistration).await;
    network.gone(ue.supi()).await;
    gnb.silent(100).await;
    assert_eq!(network.core.called("purge_amf"), 1);
}

#[tokio::test]
async fn an_idle_ue_that_never_comes_back_is_deregistered() {
    let timers = serde_json::json!({"timers": {"mobile_reachable_s": 1, "implicit_deregistration_s": 1}});
    let network = Network::with(timers).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    ue.idle(&mut gnb).await;
    network.core.wait_called("purge_amf", 1).await;
    network.gone(ue.supi()).await;
}

#[tokio::test]
async fn a_ue_that_vanishes_during_any_wait_leaves_nothing_behind() {
    let network = Network::start().await;
    for stage in 0..3 {
        let mut gnb = Gnb::up(network.n2, 1).await;
        let mut ue = Ue::new(10 + stage);
        let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
        ue.open(&gnb, &request).await;
        if stage > 0 {
            ue.authenticate(&mut gnb).await;
        }
        if stage > 1 {
            ue.secure(&mut gnb, &request).await;
        }
        assert!(!matches!(gnb.recv().await, Pdu::ErrorIndication(_)));
        gnb.association.abort();
        if stage < 2 {
            network.gone(ue.supi()).await;
        } else {
            // The accept was sent: the UE counts as registered (TS 24.501 §5.5.1.2.8 a).
            network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
        }
    }
}

#[tokio::test]
async fn a_ue_that_leaves_and_comes_back_at_once_is_not_lost() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    for round in 0..20 {
        ue.register(&mut gnb).await;
        let request = Message::DeregistrationRequestUe(gmm::DeregistrationRequestUe {
            switch_off: true,
            access: nas::AccessType::ThreeGpp,
            ngksi: nas::KeySetId::Native(0),
            identity: MobileIdentity::Guti(ue.guti.unwrap()),
            nas_message_container: None,
        });
        ue.send(&gnb, &request).await;
        gnb.released(&mut ue).await;
        // With its old 5G-GUTI, which may lead to the task that is just ending, or nowhere.
        let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
        ue.open(&gnb, &request).await;
        let (Pdu::DownlinkNasTransport(_) | Pdu::InitialContextSetupRequest(_)) = gnb.recv().await else {
            panic!("round {round}");
        };
        gnb.send(NgReset { cause: cause::Misc::Unspecified.into(), reset_type: ResetType::NgInterface })
            .await;
        while !matches!(gnb.recv().await, Pdu::NgResetAcknowledge(_)) {}
    }
}

#[tokio::test]
async fn a_release_before_registration_complete_leaves_the_ue_registered() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let request = Message::RegistrationRequest(ue.registration_request(INITIAL));
    ue.open(&gnb, &request).await;
    ue.authenticate(&mut gnb).await;
    ue.secure(&mut gnb, &request).await;
    let Message::RegistrationAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
    // The radio link is lost before the UE confirms (TS 24.501 §5.5.1.2.8 a).
    ue.idle(&mut gnb).await;
    let view = network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    assert_eq!(view["mm_state"], "5GMM-REGISTERED");
    ue.guti = accept.guti;
    ue.service_request(&gnb, &[]).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::ServiceAccept(_)));
}

#[tokio::test]
async fn a_first_message_that_starts_nothing_holds_nothing() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let identity = MobileIdentity::Suci(Ue::new(1).suci());
    let messages = [
        Message::AuthenticationResponse(gmm::AuthenticationResponse {
            res_star: Some(types::Key::new([1; 16])),
            eap: None,
        }),
        Message::AuthenticationFailure(gmm::AuthenticationFailure {
            cause: GmmCause::MacFailure,
            auts: None,
        }),
        Message::IdentityResponse(gmm::IdentityResponse { identity }),
        Message::SecurityModeReject(gmm::SecurityModeReject { cause: GmmCause::SecurityModeRejected }),
        Message::DeregistrationAcceptNetwork,
    ];
    for (n, message) in messages.into_iter().enumerate() {
        let mut ue = Ue::new(1 + n as u32);
        ue.open(&gnb, &message).await;
        // 5GMM STATUS may come first; then the release has to come.
        let cause = loop {
            match gnb.recv().await {
                Pdu::DownlinkNasTransport(_) => {}
                Pdu::UeContextReleaseCommand(command) => {
                    let UeNgapIds::Pair(amf_ue_ngap_id, ran_ue_ngap_id) = command.ue_ngap_ids else {
                        panic!()
                    };
                    gnb.send(UeContextReleaseComplete {
                        amf_ue_ngap_id,
                        ran_ue_ngap_id,
                        user_location: None,
                        pdu_sessions: vec![],
                        criticality_diagnostics: None,
                    })
                    .await;
                    break command.cause;
                }
                other => panic!("{message:?}: {other:?}"),
            }
        };
        assert_eq!(cause, Nas::Unspecified.into());
        ue.register(&mut gnb).await;
    }
}

#[tokio::test]
async fn registrations_that_are_never_completed_do_not_pile_up_identities() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let confirmed = ue.register(&mut gnb).await.guti;
    let mut given = Vec::new();
    for n in 1..=5 {
        let mut request = ue.registration_request(RegistrationType::MobilityUpdating);
        let session = types::PduSessionId::new(n).unwrap();
        request.uplink_data_status = Some([session].into_iter().collect());
        ue.send(&gnb, &Message::RegistrationRequest(request)).await;
        let Message::RegistrationAccept(accept) = ue.recv(&mut gnb).await else { panic!() };
        given.push(accept.guti);
    }
    // The identities that the UE may hold lead to it, the others nowhere.
    let cases = [(confirmed, true), (given[0], false), (given[2], false), (given[3], true), (given[4], true)];
    for (n, (guti, known)) in cases.into_iter().enumerate() {
        let mut stranger = Ue::new(10 + n as u32);
        stranger.guti = guti;
        let request = Message::RegistrationRequest(stranger.registration_request(INITIAL));
        stranger.open(&gnb, &request).await;
        let asked = stranger.recv(&mut gnb).await;
        assert_eq!(matches!(asked, Message::AuthenticationRequest(_)), known, "{n}: {asked:?}");
        assert_eq!(matches!(asked, Message::IdentityRequest(_)), !known, "{n}: {asked:?}");
    }
}
