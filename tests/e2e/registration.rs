//! Registrations that have to fail: wrong keys and sequence numbers, changed or repeated messages.

use nas::gmm::AuthenticationResponse;
use nas::{CipheringAlgorithm, GmmCause, IntegrityAlgorithm, Message, ProtectionScheme};
use serde_json::json;
use simulator::ue::{NetworkEvent, Received};
use simulator::{Failure, SuciScheme};
use types::Key;

use testkit::world::{establish, network, ping, plain};

/// TS 33.501 annex C.4: home network key pairs of profiles A and B.
const PROFILE_A: (&str, &str) = (
    "c53c22208b61860b06c62e5406a7b330c2b577aa5558981510d128247d38bd1d",
    "5a8d38864820197c3394b92613b20b91633cbd897119273bf8e4a6f4eec0a650",
);
const PROFILE_B: (&str, &str) = (
    "f1ab1074477ebcc7f554ea1c5fc368b1616730155e0041ac447d6301975fecda",
    "0272da71976234ce833a6907425867b82e074d44ef907dfb4b3e21c1c2256ebcd1",
);

fn octets(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn a_subscriber_nobody_knows_is_refused_with_a_cause() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let failure = world.ue(&gnb, 500).register().await.unwrap_err();
        // TS 29.524 maps USER_NOT_FOUND to a cause with which the UE must not try again with this USIM.
        assert!(
            matches!(failure, Failure::Rejected(GmmCause::IllegalUe | GmmCause::FiveGsServicesNotAllowed)),
            "{failure:?}"
        );
        world.bystander_is_well().await;
    });
}

#[test]
fn a_wrong_key_ends_in_authentication_reject() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        // The USIM refuses the network's AUTN (MAC failure) …
        let mut ue = world.ue_with(&gnb, 0, |config| config.k = Key::new([7; 16]));
        ue.record();
        let failure = ue.register().await.unwrap_err();
        assert!(matches!(failure, Failure::AuthenticationRejected), "{failure:?}");
        let mac_failure = |message: &Message| matches!(message, Message::AuthenticationFailure(failure) if failure.cause == GmmCause::MacFailure);
        assert!(ue.recorded().iter().any(|one| one.sent && one.message.as_ref().is_some_and(mac_failure)));

        // … or the network refuses the USIM's response.
        let mut ue = world.ue(&gnb, 1);
        let request = Message::RegistrationRequest(ue.registration_request().unwrap());
        ue.send_plain(&request).await.unwrap();
        let Received::Nas(Message::AuthenticationRequest(_)) = ue.receive().await.unwrap() else {
            panic!("an authentication request comes first");
        };
        let wrong = AuthenticationResponse { res_star: Some(Key::new([1; 16])), eap: None };
        ue.send_plain(&Message::AuthenticationResponse(wrong)).await.unwrap();
        loop {
            match ue.receive().await.unwrap() {
                Received::Nas(Message::AuthenticationReject(_)) => break,
                // A wrong answer may be met with an identity request first (TS 24.501 §5.4.1.3.5).
                Received::Nas(message) => {
                    let _ = ue.respond(message).await;
                }
                other => panic!("{other:?}"),
            }
        }
        world.bystander_is_well().await;
    });
}

#[test]
fn a_sequence_number_ahead_is_resynchronised() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue_with(&gnb, 0, |config| config.sqn = 1 << 30);
        ue.record();
        let registered = ue.register().await.unwrap();
        assert!(registered.authenticated);
        let synch_failure = |message: &Message| matches!(message, Message::AuthenticationFailure(failure) if failure.cause == GmmCause::SynchFailure);
        let failures = ue
            .recorded()
            .iter()
            .filter(|one| one.sent && one.message.as_ref().is_some_and(synch_failure))
            .count();
        assert_eq!(failures, 1, "one resynchronisation is enough");
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
    });
}

#[test]
fn replayed_and_tampered_messages_change_nothing() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let mut ue = world.ue(&gnb, 0);
        ue.record();
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();

        // Every protected message is repeated, in order and backwards.
        let sent: Vec<_> =
            ue.recorded().iter().filter(|one| one.sent).map(|one| one.octets.clone()).collect();
        let protected: Vec<_> =
            sent.into_iter().filter(|octets| octets.get(1).is_some_and(|o| o & 0x0f != 0)).collect();
        assert!(protected.len() >= 3, "completes and the session request are protected");
        for octets in protected.iter().chain(protected.iter().rev()) {
            ue.send_bytes(octets.clone()).await.unwrap();
        }
        // A deregistration changed in transit, in each octet once. None may deregister the UE.
        let deregistration = Message::DeregistrationRequestUe(nas::gmm::DeregistrationRequestUe {
            switch_off: true,
            access: nas::AccessType::ThreeGpp,
            ngksi: ue.ngksi(),
            identity: ue.identity().unwrap(),
            nas_message_container: None,
        });
        let genuine = ue.protect(&deregistration).unwrap();
        for at in 2..genuine.len() {
            let mut tampered = genuine.clone();
            tampered[at] ^= 0x40;
            ue.send_bytes(tampered).await.unwrap();
        }
        // And the same message without protection.
        ue.send_plain(&deregistration).await.unwrap();

        ping(&mut ue, 1).await;
        establish(&mut ue, 2).await.unwrap();
        ping(&mut ue, 2).await;
        let sessions = world.ask("smf", "/sessions").await.to_string();
        assert_eq!(sessions.matches(&ue.supi().to_string()).count(), 2, "{sessions}");
        world.bystander_is_well().await;
    });
}

#[test]
fn a_ue_without_a_common_algorithm_is_refused() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        for integrity in [vec![IntegrityAlgorithm::Nia0], vec![IntegrityAlgorithm::Nia3], Vec::new()] {
            let mut ue = world.ue_with(&gnb, 0, |config| config.integrity = integrity.clone());
            let failure = ue.register().await.unwrap_err();
            assert!(
                matches!(failure, Failure::Rejected(GmmCause::UeSecurityCapabilitiesMismatch)),
                "{integrity:?}: {failure:?}"
            );
        }
        world.bystander_is_well().await;
    });
}

#[test]
fn concealed_identities_and_every_cipher_work() {
    let folder = tempfile::tempdir().unwrap();
    let (file_a, file_b) = (folder.path().join("a.key"), folder.path().join("b.key"));
    net::private_file::create(&file_a, PROFILE_A.0).unwrap();
    net::private_file::create(&file_b, PROFILE_B.0).unwrap();
    let keys = move |options: &mut lab::Options| {
        options.edit = Box::new(move |configuration| {
            configuration["amf"]["ciphering"] = json!(["NEA2", "NEA1", "NEA0"]);
            configuration["udm"]["suci_keys"] = json!([
                {"id": 1, "profile": "A", "private_key_file": file_a},
                {"id": 2, "profile": "B", "private_key_file": file_b},
            ]);
        });
    };
    network(keys, async |world| {
        let gnb = world.gnb(0).await;
        let ciphers = [CipheringAlgorithm::Nea2, CipheringAlgorithm::Nea1, CipheringAlgorithm::Nea0];
        let schemes =
            [(ProtectionScheme::ProfileA, 1, PROFILE_A.1), (ProtectionScheme::ProfileB, 2, PROFILE_B.1)];
        for (index, (cipher, (scheme, key_id, key))) in
            ciphers.into_iter().zip(schemes.into_iter().cycle()).enumerate()
        {
            let mut ue = world.ue_with(&gnb, index as u64, |config| {
                config.ciphering = vec![cipher];
                config.suci = SuciScheme::Ecies { scheme, key_id, public_key: octets(key) };
            });
            ue.register().await.unwrap();
            assert_eq!(ue.context().map(nas::security::SecurityContext::ciphering), Some(cipher));
            establish(&mut ue, 1).await.unwrap();
            ping(&mut ue, 1).await;
        }
        // A key that the network does not have.
        let mut ue = world.ue_with(&gnb, 5, |config| {
            let public_key = octets(PROFILE_A.1);
            config.suci = SuciScheme::Ecies { scheme: ProtectionScheme::ProfileA, key_id: 77, public_key };
        });
        assert!(matches!(ue.register().await, Err(Failure::Rejected(_))));
    });
}

/// How often the network sent a recorded UE a challenge and an identity request.
fn asked(ue: &simulator::Ue) -> (usize, usize) {
    let count = |wanted: fn(&Message) -> bool| {
        let received = ue.recorded().iter().filter(|one| !one.sent);
        received.filter(|one| one.message.as_ref().is_some_and(wanted)).count()
    };
    let challenges = count(|message| matches!(message, Message::AuthenticationRequest(_)));
    (challenges, count(|message| matches!(message, Message::IdentityRequest(_))))
}

#[test]
fn a_known_guti_saves_the_authentication_and_an_unknown_one_costs_an_identity_request() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.record();
        let first = ue.register().await.unwrap();
        assert!(first.authenticated);
        assert_eq!(asked(&ue), (1, 0), "a SUCI is authenticated and needs no identity request");
        // Still registered, the UE uses a new connection: its 5G-GUTI and keys prove its identity.
        ue.lose_connection();
        let second = ue.register().await.unwrap();
        assert!(!second.authenticated);
        assert_eq!(asked(&ue), (1, 0), "the 5G-GUTI is known");
        assert_ne!(first.guti, second.guti, "a 5G-GUTI is not used twice");
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;

        // The core has forgotten everything: it asks the same UE with the same GUTI for its identity.
        ue.lose_connection();
        world.lab.kill("core").await.unwrap();
        world.lab.restart("core").await.unwrap();
        let gnb = world.gnb(1).await;
        ue.camp(gnb);
        let third = ue.register().await.unwrap();
        assert!(third.authenticated);
        assert_eq!(asked(&ue), (2, 1), "the 5G-GUTI is unknown");
        establish(&mut ue, 2).await.unwrap();
        ping(&mut ue, 2).await;
    });
}

#[test]
fn the_operator_deregisters_a_ue() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        let route = format!("/ues/{}/deregister", ue.supi());
        let served = async {
            let mut deregistered = false;
            loop {
                match ue.serve().await.unwrap() {
                    NetworkEvent::Deregistered { .. } => deregistered = true,
                    NetworkEvent::Released(_) => return deregistered,
                    _ => {}
                }
            }
        };
        // The answer comes when the UE has accepted and its connection is released.
        let (asked, deregistered) = tokio::join!(world.lab.oam("amf", "POST", &route), served);
        asked.unwrap();
        assert!(deregistered, "the connection went without a deregistration");
        let supi = ue.supi().to_string();
        world.until("smf", "/sessions", |sessions| !sessions.to_string().contains(&supi)).await;
        world.bystander_is_well().await;
    });
}
