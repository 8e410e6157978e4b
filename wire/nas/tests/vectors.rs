//! Messages that an independent implementation made (tests/vectors) mean what they should, and are written alike.
#![allow(clippy::unwrap_used, clippy::panic, reason = "every line here is test code")]

use nas::{
    CipheringAlgorithm, FilterComponent, FilterDirection, FlowParameter, GmmCause, GsmCause,
    IntegrityAlgorithm, KeySetId, Message, MobileIdentity, PayloadType, PcoItem, RegistrationType,
    RequestType, SmBody, SmMessage, Timer,
};
use types::{FiveQi, PduSessionId, PduSessionType};

const VECTORS: &str = include_str!("vectors/pycrate.txt");

fn octets(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn vector(name: &str) -> Vec<u8> {
    let line = VECTORS.lines().find(|line| line.split_once(' ').is_some_and(|(n, _)| n == name));
    octets(line.unwrap_or_else(|| panic!("no vector {name}")).split_once(' ').unwrap().1)
}

fn gmm(name: &str) -> Message {
    let decoded = Message::decode(&vector(name)).unwrap();
    assert_eq!(decoded.soft_errors, [], "{name}");
    decoded.message
}

fn gsm(name: &str) -> SmMessage {
    let decoded = SmMessage::decode(&vector(name)).unwrap();
    assert_eq!(decoded.soft_errors, [], "{name}");
    decoded.message
}

#[test]
fn every_vector_is_read_and_written_octet_for_octet() {
    let mut count = 0;
    for (name, hex) in VECTORS.lines().filter_map(|line| line.split_once(' ')) {
        let original = octets(hex);
        let written = if name.starts_with("sm_") { gsm(name).encode() } else { gmm(name).encode() };
        assert_eq!(written.unwrap(), original, "{name}");
        count += 1;
    }
    assert_eq!(count, 24);
}

#[test]
fn registration_messages_mean_what_pycrate_wrote() {
    let Message::RegistrationRequest(request) = gmm("registration_request_suci") else { panic!() };
    assert_eq!(request.registration_type, RegistrationType::Initial);
    assert!(request.follow_on);
    assert_eq!(request.ngksi, KeySetId::NoKey);
    let MobileIdentity::Suci(suci) = &request.identity else { panic!() };
    assert_eq!(suci.to_string(), "suci-0-999-70-0123-0-0-0000000001");
    let capability = request.ue_security_capability.unwrap();
    assert!(capability.has_ciphering(CipheringAlgorithm::Nea1));
    assert!(!capability.has_ciphering(CipheringAlgorithm::Nea3));
    assert!(!capability.has_integrity(IntegrityAlgorithm::Nia0));
    let slices: Vec<String> = request.requested_nssai.iter().map(ToString::to_string).collect();
    assert_eq!(slices, ["1-010203", "2"]);

    let Message::RegistrationRequest(update) = gmm("registration_request_guti") else { panic!() };
    let MobileIdentity::Guti(guti) = update.identity else { panic!() };
    assert_eq!(guti.to_string(), "5g-guti-99970020043c0000001");
    let sessions: Vec<u8> = update.pdu_session_status.unwrap().iter().map(PduSessionId::value).collect();
    assert_eq!(sessions, [5, 15]);

    let Message::RegistrationAccept(accept) = gmm("registration_accept") else { panic!() };
    assert_eq!(accept.guti, Some(guti));
    assert_eq!(accept.tai_list[0].to_string(), "999-70-000007");
    assert_eq!(accept.t3512, Some(Timer::seconds(3_600)));
    assert_eq!(accept.t3502, Some(Timer::seconds(720)));

    let Message::RegistrationReject(reject) = gmm("registration_reject") else { panic!() };
    assert_eq!(reject.cause, GmmCause::PlmnNotAllowed);

    let Message::DeregistrationRequestUe(leave) = gmm("deregistration_request_ue") else { panic!() };
    assert!(leave.switch_off);

    let Message::ServiceRequest(service) = gmm("service_request") else { panic!() };
    assert_eq!(service.s_tmsi, guti.s_tmsi());
}

#[test]
fn security_messages_mean_what_pycrate_wrote() {
    let Message::AuthenticationRequest(request) = gmm("authentication_request") else { panic!() };
    assert_eq!((request.rand.unwrap()[15], request.autn.unwrap()[0]), (15, 16));
    let Message::AuthenticationResponse(response) = gmm("authentication_response") else { panic!() };
    assert_eq!(response.res_star.unwrap().expose()[15], 15);
    let Message::AuthenticationFailure(failure) = gmm("authentication_failure") else { panic!() };
    assert_eq!(failure.cause, GmmCause::SynchFailure);
    assert_eq!(failure.auts.unwrap()[13], 13);
    let Message::SecurityModeCommand(command) = gmm("security_mode_command") else { panic!() };
    assert_eq!(command.ciphering, CipheringAlgorithm::Nea2);
    assert_eq!(command.integrity, IntegrityAlgorithm::Nia1);
    assert!(command.imeisv_requested);
    let Message::SecurityModeComplete(complete) = gmm("security_mode_complete") else { panic!() };
    assert_eq!(complete.nas_message_container.unwrap(), [0x7e, 0, 0x43]);
}

#[test]
fn session_messages_mean_what_pycrate_wrote() {
    let Message::UlNasTransport(transport) = gmm("ul_nas_transport") else { panic!() };
    assert_eq!(transport.payload_type, PayloadType::N1Sm);
    assert_eq!(transport.request_type, Some(RequestType::Initial));
    assert_eq!(transport.dnn.unwrap().as_str(), "internet");
    assert_eq!(transport.s_nssai.unwrap().to_string(), "1-010203");
    let inner = SmMessage::decode(&transport.payload).unwrap().message;
    assert_eq!(inner, gsm("sm_establishment_request"));
    let SmBody::EstablishmentRequest(request) = inner.body else { panic!() };
    assert_eq!(request.session_type, Some(PduSessionType::Ipv4v6));
    let pco = request.pco.unwrap();
    assert_eq!(pco.items, [PcoItem::DnsIpv4Request, PcoItem::Ipv4MtuRequest, PcoItem::DnsIpv6Request]);

    let accept = gsm("sm_establishment_accept");
    assert_eq!((accept.pdu_session_id.unwrap().value(), accept.pti.0), (5, 1));
    let SmBody::EstablishmentAccept(accept) = accept.body else { panic!() };
    assert_eq!(accept.address.unwrap().ipv4().unwrap().to_string(), "10.45.0.2");
    assert_eq!(accept.session_ambr.downlink.to_string(), "1 Gbps");
    assert_eq!(accept.session_ambr.uplink.to_string(), "500 Mbps");
    let rule = &accept.qos_rules[0];
    assert!(rule.default);
    assert_eq!(rule.qfi.unwrap().value(), 1);
    assert_eq!(rule.precedence, Some(255));
    assert_eq!(rule.filters[0].components, [FilterComponent::MatchAll]);
    assert_eq!(rule.filters[1].direction, FilterDirection::Uplink);
    assert_eq!(rule.filters[1].components[2], FilterComponent::RemotePortRange(5000, 6000));
    assert_eq!(accept.qos_flows[0].five_qi(), Some(FiveQi(9)));
    let mfbr = FlowParameter::MfbrUplink("50 Mbps".parse().unwrap());
    assert_eq!(accept.qos_flows[0].parameters[1], mfbr);

    let SmBody::EstablishmentReject(reject) = gsm("sm_establishment_reject").body else { panic!() };
    assert_eq!(reject.cause, GsmCause::MissingOrUnknownDnn);
    let SmBody::ReleaseCommand(release) = gsm("sm_release_command").body else { panic!() };
    assert_eq!(release.cause, GsmCause::RegularDeactivation);
}
