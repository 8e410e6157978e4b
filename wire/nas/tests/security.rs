//! NAS security between the two ends of a link: what is accepted, what is not, and what it costs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "every line here is test code")]

use nas::{
    CipheringAlgorithm as Nea, DecodeError, GmmCause, IntegrityAlgorithm as Nia, KeySetId, Message,
    MobileIdentity, RegistrationType, UeSecurityCapability,
    gmm::{
        DlNasTransport, IdentityResponse, RegistrationAccept, RegistrationRequest, SecurityModeCommand,
        SecurityModeComplete, ServiceRequest, Status, UlNasTransport,
    },
    security::{
        Envelope, Header, ProtectError, SecurityContext, Side, UnprotectError, allowed_unprotected,
        choose_algorithms,
    },
};
use types::{Guti, Key, PduSessionId, STmsi, Tmsi};

const INTEGRITY: [Nia; 3] = [Nia::Nia1, Nia::Nia2, Nia::Nia3];
const CIPHERING: [Nea; 4] = [Nea::Nea0, Nea::Nea1, Nea::Nea2, Nea::Nea3];

fn pair(integrity: Nia, ciphering: Nea) -> (SecurityContext, SecurityContext) {
    let kamf = Key::new([0x11; 32]);
    let make = |side| SecurityContext::new(side, &kamf, KeySetId::Native(1), integrity, ciphering).unwrap();
    (make(Side::Network), make(Side::Ue))
}

fn transport(payload: &[u8]) -> Message {
    let id = PduSessionId::new(5).unwrap();
    Message::UlNasTransport(UlNasTransport::n1_sm(id, payload.to_vec()))
}

fn registration() -> RegistrationRequest {
    let guti = Guti {
        guami: types::Guami {
            plmn: types::Plmn::new("999", "70").unwrap(),
            amf_id: types::AmfId::new(2, 1, 0).unwrap(),
        },
        tmsi: Tmsi(7),
    };
    RegistrationRequest::new(
        RegistrationType::MobilityUpdating,
        KeySetId::Native(1),
        MobileIdentity::Guti(guti),
    )
}

#[test]
fn every_algorithm_carries_messages_both_ways_and_ciphers() {
    for integrity in INTEGRITY {
        for ciphering in CIPHERING {
            let (mut network, mut ue) = pair(integrity, ciphering);
            for count in 0..3 {
                let up = transport(b"a payload long enough to be found in clear");
                let octets = ue.protect(&up).unwrap();
                assert_eq!(octets.windows(7).any(|w| w == b"payload"), ciphering == Nea::Nea0);
                let verified = network.unprotect(&octets).unwrap();
                assert_eq!((verified.message.message, verified.count), (up, count));
                assert_eq!(verified.header, Header::Ciphered);
                let id = PduSessionId::new(5).unwrap();
                let down = Message::DlNasTransport(DlNasTransport::n1_sm(id, vec![1, 2, 3]));
                let octets = network.protect(&down).unwrap();
                assert_eq!(ue.unprotect(&octets).unwrap().message.message, down);
            }
        }
    }
}

#[test]
fn a_replayed_message_is_refused_and_a_lost_one_is_not_missed() {
    for integrity in INTEGRITY {
        let (mut network, mut ue) = pair(integrity, Nea::Nea2);
        let first = ue.protect(&transport(b"1")).unwrap();
        let lost = ue.protect(&transport(b"2")).unwrap();
        let third = ue.protect(&transport(b"3")).unwrap();
        assert!(network.unprotect(&first).is_ok());
        assert_eq!(network.unprotect(&first).unwrap_err(), UnprotectError::Integrity);
        assert_eq!(network.unprotect(&third).unwrap().count, 2);
        // What arrives after its successor was taken is a replay too.
        assert_eq!(network.unprotect(&lost).unwrap_err(), UnprotectError::Integrity);
        // Its own message reflected back is not the other side's.
        assert!(ue.unprotect(&third).is_err());
    }
}

#[test]
fn the_count_goes_on_over_the_octet_and_keeps_out_what_is_256_behind() {
    let (mut network, mut ue) = pair(Nia::Nia2, Nea::Nea2);
    let old = ue.protect(&transport(b"0")).unwrap();
    assert!(network.unprotect(&old).is_ok());
    for count in 1..600 {
        let octets = ue.protect(&transport(b"x")).unwrap();
        assert_eq!(network.unprotect(&octets).unwrap().count, count);
    }
    assert_eq!(network.unprotect(&old).unwrap_err(), UnprotectError::Integrity);
}

#[test]
fn a_change_anywhere_but_in_spare_bits_is_noticed_and_costs_nothing() {
    let (mut network, mut ue) = pair(Nia::Nia2, Nea::Nea2);
    let genuine = ue.protect(&transport(b"payload")).unwrap();
    for octet in 0..genuine.len() {
        for bit in 0..8 {
            let spare = octet == 1 && bit >= 4;
            let mut changed = genuine.clone();
            changed[octet] ^= 1 << bit;
            if !spare && changed[1] & 0x0f == genuine[1] & 0x0f {
                assert!(network.unprotect(&changed).is_err(), "octet {octet} bit {bit}");
            }
        }
    }
    for len in 0..genuine.len() {
        assert!(network.unprotect(&genuine[..len]).is_err(), "{len} octets");
    }
    assert_eq!(network.unprotect(&genuine).unwrap().count, 0);
}

#[test]
fn security_mode_control_brings_a_context_into_use() {
    let (mut network, _) = pair(Nia::Nia2, Nea::Nea2);
    let capability = UeSecurityCapability::new(&CIPHERING, &INTEGRITY);
    let command = SecurityModeCommand::new(Nia::Nia2, Nea::Nea2, KeySetId::Native(1), capability);
    let octets = network.protect(&Message::SecurityModeCommand(command.clone())).unwrap();

    // The UE reads the command to learn the algorithms, makes its context, then verifies the same octets.
    let envelope = Envelope::read(&octets).unwrap();
    let Message::SecurityModeCommand(seen) = envelope.peek().unwrap().message else { panic!() };
    assert_eq!(seen, command);
    let mut ue =
        SecurityContext::new(Side::Ue, network.kamf(), seen.ngksi, seen.integrity, seen.ciphering).unwrap();
    assert_eq!(ue.unprotect(&octets).unwrap().header, Header::NewContext);

    let complete = SecurityModeComplete {
        nas_message_container: Some(Message::RegistrationRequest(registration()).encode().unwrap()),
        imeisv: Some(MobileIdentity::Pei("imeisv-4370816125816151".parse().unwrap())),
    };
    let octets = ue.protect(&Message::SecurityModeComplete(complete.clone())).unwrap();
    assert!(Envelope::read(&octets).unwrap().peek().is_err());
    let verified = network.unprotect(&octets).unwrap();
    assert_eq!(verified.header, Header::NewContextCiphered);
    assert_eq!(verified.message.message, Message::SecurityModeComplete(complete));
    assert_eq!(network.kgnb(), ue.kgnb());
    assert_eq!(network.kgnb(), network.kgnb_of(0));
    assert_ne!(network.nh(&network.kgnb()), network.kgnb());
}

#[test]
fn an_initial_message_hides_what_need_not_be_in_clear() {
    let (mut network, mut ue) = pair(Nia::Nia2, Nea::Nea2);
    let mut request = registration();
    request.requested_nssai = vec!["1-010203".parse().unwrap()];
    let request = Message::RegistrationRequest(request);
    let octets = ue.protect_initial(&request).unwrap();
    let Message::RegistrationRequest(clear) = Envelope::read(&octets).unwrap().peek().unwrap().message else {
        panic!()
    };
    assert_eq!(clear.requested_nssai, []);
    assert!(clear.nas_message_container.is_some());
    let verified = network.unprotect(&octets).unwrap();
    assert_eq!(verified.message.message, request);
    assert!(!verified.incomplete);
    let s_tmsi = STmsi::new(1, 0, Tmsi(7)).unwrap();
    let service = ServiceRequest::new(KeySetId::Native(1), nas::ServiceType::Data, s_tmsi);
    let octets = ue.protect_initial(&Message::ServiceRequest(service)).unwrap();
    assert!(network.unprotect(&octets).is_ok());
    assert!(matches!(ue.protect_initial(&transport(b"x")), Err(ProtectError::Refused(_))));
}

#[test]
fn an_initial_message_with_a_broken_container_still_says_who_it_is() {
    let (mut network, mut ue) = pair(Nia::Nia2, Nea::Nea2);
    let mut request = registration();
    request.nas_message_container = Some(vec![0xde, 0xad, 0xbe, 0xef]);
    let octets = ue.protect_as(Header::Integrity, &Message::RegistrationRequest(request)).unwrap();
    let verified = network.unprotect(&octets).unwrap();
    assert!(verified.incomplete);
    let Message::RegistrationRequest(seen) = verified.message.message else { panic!() };
    assert_eq!(seen.identity, registration().identity);
    // Its COUNT is used all the same.
    assert_eq!(network.unprotect(&octets).unwrap_err(), UnprotectError::Integrity);
}

#[test]
fn a_stored_context_goes_on_where_it_was() {
    let (mut network, mut ue) = pair(Nia::Nia1, Nea::Nea1);
    let first = ue.protect(&transport(b"1")).unwrap();
    network.unprotect(&first).unwrap();
    network.protect(&Message::RegistrationAccept(RegistrationAccept::new())).unwrap();
    let stored = network.stored();
    assert_eq!((stored.uplink, stored.downlink), (Some(1), Some(1)));
    let mut again = SecurityContext::restore(Side::Network, &stored).unwrap();
    assert_eq!(again.stored(), stored);
    assert_eq!(again.kgnb(), network.kgnb());
    assert_eq!(again.unprotect(&first).unwrap_err(), UnprotectError::Integrity);
    let next = ue.protect(&transport(b"2")).unwrap();
    assert_eq!(again.unprotect(&next).unwrap().count, 1);
    assert!(!format!("{again:?}").contains("11, 11"));
}

#[test]
fn a_used_up_count_refuses_to_work() {
    let (network, _) = pair(Nia::Nia2, Nea::Nea2);
    let mut stored = network.stored();
    stored.downlink = Some(0x00ff_ffff);
    let mut last = SecurityContext::restore(Side::Network, &stored).unwrap();
    let message = Message::Status(Status { cause: GmmCause::Congestion });
    assert!(last.protect(&message).is_ok());
    assert_eq!(last.protect(&message).unwrap_err(), ProtectError::CountExhausted);
    stored.downlink = Some(0x0100_0000);
    assert!(SecurityContext::restore(Side::Network, &stored).is_err());
}

#[test]
fn authentic_messages_that_make_no_sense_say_what_to_answer() {
    let (mut network, mut ue) = pair(Nia::Nia2, Nea::Nea2);
    // A message of the wrong direction cannot be sent by our own code ...
    assert!(matches!(network.protect(&transport(b"x")), Err(ProtectError::Refused(_))));
    // ... and one of a context on the wrong side does not verify.
    let mut reflected = SecurityContext::restore(Side::Network, &ue.stored()).unwrap();
    let octets = reflected.protect(&Message::ConfigurationUpdateCommand(Default::default())).unwrap();
    assert_eq!(network.unprotect(&octets).unwrap_err(), UnprotectError::Integrity);
    assert_eq!(network.unprotect(&[0x7e, 0, 0x41]).unwrap_err(), UnprotectError::NotProtected);
    let refused = UnprotectError::Refused(DecodeError::UnknownMessageType(0xff));
    assert_eq!(refused.gmm_cause(), Some(GmmCause::MessageTypeNotImplemented));
    assert_eq!(UnprotectError::Integrity.gmm_cause(), None);
    assert!(ue.protect(&transport(b"x")).is_ok());
}

#[test]
fn null_integrity_takes_no_cipher_and_is_chosen_only_when_listed() {
    let kamf = Key::new([1; 32]);
    let context = SecurityContext::new(Side::Ue, &kamf, KeySetId::Native(0), Nia::Nia0, Nea::Nea2);
    assert!(context.is_err());
    let all = UeSecurityCapability::new(&CIPHERING, &[Nia::Nia0, Nia::Nia1, Nia::Nia2]);
    let order = ([Nia::Nia2, Nia::Nia1], [Nea::Nea0, Nea::Nea2]);
    assert_eq!(choose_algorithms(&all, &order.0, &order.1), Some((Nia::Nia2, Nea::Nea0)));
    assert_eq!(choose_algorithms(&all, &[Nia::Nia1], &[Nea::Nea1]), Some((Nia::Nia1, Nea::Nea1)));
    assert_eq!(choose_algorithms(&all, &[Nia::Nia0], &[Nea::Nea2]), Some((Nia::Nia0, Nea::Nea0)));
    let only_zuc = UeSecurityCapability::new(&[Nea::Nea3], &[Nia::Nia3]);
    assert_eq!(choose_algorithms(&only_zuc, &order.0, &order.1), None);
    let no_cipher = UeSecurityCapability::new(&[Nea::Nea3], &[Nia::Nia2]);
    assert_eq!(choose_algorithms(&no_cipher, &order.0, &order.1), None);
}

#[test]
fn only_the_listed_messages_may_come_unprotected() {
    let registration = Message::RegistrationRequest(registration());
    assert!(allowed_unprotected(Side::Network, &registration));
    for refused in [
        transport(b"x"),
        Message::RegistrationComplete,
        Message::SecurityModeComplete(SecurityModeComplete::default()),
        Message::Status(Status { cause: GmmCause::Congestion }),
        // An identity other than the SUCI must be protected.
        Message::IdentityResponse(IdentityResponse {
            identity: MobileIdentity::Pei("imei-356938035643809".parse().unwrap()),
        }),
    ] {
        assert!(!allowed_unprotected(Side::Network, &refused), "{}", refused.name());
    }
    assert!(!allowed_unprotected(Side::Ue, &Message::RegistrationAccept(RegistrationAccept::new())));
    assert!(allowed_unprotected(Side::Ue, &Message::AuthenticationReject(Default::default())));
}
