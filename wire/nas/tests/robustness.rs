//! Any octets: no panic, a typed error with the right answer, and messages that survive the round trip.
#![allow(clippy::unwrap_used, clippy::panic, reason = "every line here is test code")]

use nas::{
    DecodeError, GmmCause, GsmCause, KeySetId, Message, MobileIdentity, Pco, PcoItem, PduAddress, PsiSet,
    QosRule, RegistrationType, SmBody, SmMessage, Timer,
    gmm::{RegistrationAccept, RegistrationRequest, UlNasTransport},
    gsm::{EstablishmentAccept, SmHeader},
    security::Envelope,
};
use proptest::prelude::*;
use types::{Ambr, BitRate, Dnn, PduSessionId, PduSessionType, Pti, Qfi, SNssai, SscMode, Tac, Tai};

const VECTORS: &str = include_str!("vectors/pycrate.txt");

fn vectors() -> Vec<(bool, Vec<u8>)> {
    let octets = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    };
    let line = |line: &str| line.split_once(' ').map(|(name, hex)| (name.starts_with("sm_"), octets(hex)));
    VECTORS.lines().filter_map(line).collect()
}

/// Reads octets every way there is; what can be read can be written and read again to the same.
fn digest(octets: &[u8]) {
    if let Ok(decoded) = Message::decode(octets) {
        let written = decoded.message.encode();
        if let Ok(written) = written {
            assert_eq!(Message::decode(&written).unwrap().message, decoded.message);
        }
    }
    if let Ok(decoded) = SmMessage::decode(octets)
        && let Ok(written) = decoded.message.encode()
    {
        assert_eq!(SmMessage::decode(&written).unwrap().message, decoded.message);
    }
    let _ = SmHeader::read(octets);
    if let Ok(envelope) = Envelope::read(octets) {
        let _ = envelope.peek();
    }
}

#[test]
fn a_message_cut_at_any_octet_is_an_error_or_a_shorter_message() {
    for (session, octets) in vectors() {
        for len in 0..octets.len() {
            digest(&octets[..len]);
            if len < 3 {
                assert_eq!(Message::decode(&octets[..len]).is_err(), !session || len < 3);
            }
        }
    }
}

#[test]
fn flipped_bits_never_do_more_than_make_another_message() {
    for (_, octets) in vectors() {
        for bit in 0..octets.len() * 8 {
            let mut changed = octets.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            digest(&changed);
        }
    }
}

#[test]
fn faults_are_answered_as_clause_7_says() {
    let cause = |octets: &[u8]| Message::decode(octets).unwrap_err().gmm_cause();
    assert_eq!(cause(&[0x7e, 0]), None);
    assert_eq!(cause(&[0x55, 0, 0x41]), None);
    assert_eq!(cause(&[0x7e, 0, 0xff]), Some(GmmCause::MessageTypeNotImplemented));
    assert_eq!(cause(&[0x7e, 0, 0x41]), Some(GmmCause::InvalidMandatoryInformation));
    assert_eq!(cause(&[0x7e, 0, 0x41, 0x79, 0, 0x0d, 1, 0x99]), Some(GmmCause::InvalidMandatoryInformation));
    // IEI 0x0f must be understood.
    assert_eq!(cause(&[0x7e, 0, 0x43, 0x0f, 0]), Some(GmmCause::InvalidMandatoryInformation));
    assert_eq!(Message::decode(&[0x7e, 2, 0, 0, 0, 0, 0, 1]), Err(DecodeError::Protected(2)));
    // CONTROL PLANE SERVICE REQUEST exists, but not here.
    assert_eq!(cause(&[0x7e, 0, 0x4f, 0x70]), Some(GmmCause::MessageTypeNotImplemented));
    // A number that no type of identity has, in a mandatory element.
    let letters = [0x7e, 0, 0x41, 0x79, 0, 0x0d, 1, 0x99, 0xf9, 0x07, 0xf0, 0xff, 0, 0, 0xaa, 0, 0, 0, 0x10];
    assert_eq!(cause(&letters), Some(GmmCause::InvalidMandatoryInformation));

    let cause = |octets: &[u8]| SmMessage::decode(octets).unwrap_err().gsm_cause();
    assert_eq!(cause(&[0x2e, 5, 1]), None);
    assert_eq!(cause(&[0x2e, 5, 0xff, 0xc1]), Some(GsmCause::InvalidPti));
    assert_eq!(cause(&[0x2e, 0x10, 1, 0xc1, 0, 0]), None);
    assert_eq!(cause(&[0x2e, 5, 1, 0xc1]), Some(GsmCause::InvalidMandatoryInformation));
    assert_eq!(cause(&[0x2e, 5, 1, 0x01]), Some(GsmCause::MessageTypeNotImplemented));
    let header = SmHeader::read(&[0x2e, 5, 1, 0xc1]).unwrap();
    assert_eq!((header.pdu_session_id.unwrap().value(), header.pti.0, header.message_type), (5, 1, 0xc1));
}

#[test]
fn a_broken_optional_element_costs_only_itself() {
    // UL NAS TRANSPORT: PDU session 0 does not exist, the DNN has a label past its end, the slice is good.
    let octets = [0x7e, 0, 0x67, 1, 0, 1, 0xaa, 0x12, 0, 0x22, 1, 7, 0x25, 3, 9, b'a', b'b'];
    let decoded = Message::decode(&octets).unwrap();
    let Message::UlNasTransport(transport) = decoded.message else { panic!() };
    assert_eq!(transport.pdu_session_id, None);
    assert_eq!(transport.dnn, None);
    assert_eq!(transport.s_nssai, Some("7".parse().unwrap()));
    assert_eq!(decoded.soft_errors.len(), 2, "{:?}", decoded.soft_errors);

    // An unknown element of a later release is no error at all.
    let decoded = Message::decode(&[0x7e, 0, 0x43, 0x3f, 1, 0]).unwrap();
    assert_eq!((decoded.message, decoded.soft_errors), (Message::RegistrationComplete, vec![]));

    // Elements out of sequence are read.
    let octets = [0x7e, 0, 0x67, 1, 0, 1, 0xaa, 0x22, 1, 7, 0x12, 5];
    let Message::UlNasTransport(transport) = Message::decode(&octets).unwrap().message else { panic!() };
    assert_eq!(transport.pdu_session_id.unwrap().value(), 5);
}

#[test]
fn an_imeisv_that_is_none_is_left_out() {
    // Found by fuzzing: a MAC address with octets to spare was read, and written without them.
    let octets = [0x7e, 0, 0x5e, 0x77, 0, 9, 6, 0, 225, 53, 195, 33, 10, 0, 0];
    let decoded = Message::decode(&octets).unwrap();
    let Message::SecurityModeComplete(complete) = decoded.message else { panic!() };
    assert_eq!(complete.imeisv, None);
    assert_eq!(decoded.soft_errors.len(), 1);
}

#[test]
fn lists_that_do_not_fit_are_not_sent() {
    let slice = "1".parse().unwrap();
    let accept = RegistrationAccept { allowed_nssai: vec![slice; 9], ..RegistrationAccept::new() };
    let error = Message::RegistrationAccept(accept).encode().unwrap_err();
    assert_eq!(error.ie, "allowed-nssai");
}

fn slices(max: usize) -> impl Strategy<Value = Vec<SNssai>> {
    let slice = (any::<u8>(), proptest::option::of(0u32..0x00ff_ffff));
    proptest::collection::vec(slice.prop_map(|(sst, sd)| SNssai::new(sst, sd).unwrap()), 0..=max)
}

fn suci() -> impl Strategy<Value = MobileIdentity> {
    ("[0-9]{3}-[0-9]{2,3}-[0-9]{1,4}", "[0-9]{8,9}", proptest::collection::vec(any::<u8>(), 45..60))
        .prop_flat_map(|(head, msin, output)| {
            let hex: String = output.iter().map(|octet| format!("{octet:02x}")).collect();
            prop_oneof![
                Just(format!("suci-0-{head}-0-0-{msin}")),
                Just(format!("suci-0-{head}-1-27-{hex}")),
                Just(format!("suci-0-{head}-2-1-{hex}")),
            ]
            .prop_map(|text| MobileIdentity::Suci(text.parse().unwrap()))
        })
}

fn tai() -> impl Strategy<Value = Tai> {
    ("[0-9]{3}-[0-9]{2,3}", 0u32..0x0100_0000)
        .prop_map(|(plmn, tac)| Tai { plmn: plmn.parse().unwrap(), tac: Tac::new(tac).unwrap() })
}

proptest! {
    #[test]
    fn any_octets_are_digested(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
        digest(&octets);
    }

    #[test]
    fn any_octets_after_a_known_header_are_digested(
        kind in 0x41u8..0x69,
        rest in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        digest(&[&[0x7e, 0, kind], rest.as_slice()].concat());
        digest(&[&[0x2e, 5, 1, kind.wrapping_add(0x80)], rest.as_slice()].concat());
    }

    #[test]
    fn registration_requests_survive(
        identity in suci(),
        nssai in slices(8),
        last in proptest::option::of(tai()),
        sessions in proptest::option::of(any::<u16>().prop_map(|bits| PsiSet(bits & !1))),
        follow_on in any::<bool>(),
        container in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..300)),
    ) {
        let mut request = RegistrationRequest::new(RegistrationType::Initial, KeySetId::NoKey, identity);
        request.requested_nssai = nssai;
        request.last_visited_tai = last;
        request.pdu_session_status = sessions;
        request.follow_on = follow_on;
        request.nas_message_container = container;
        let message = Message::RegistrationRequest(request);
        let decoded = Message::decode(&message.encode().unwrap()).unwrap();
        prop_assert_eq!(decoded.message, message);
        prop_assert_eq!(decoded.soft_errors, vec![]);
    }

    #[test]
    fn registration_accepts_survive(
        tai_list in proptest::collection::vec(tai(), 1..=16),
        allowed in slices(8),
        configured in slices(16),
        seconds in 0u64..=62,
    ) {
        let accept = RegistrationAccept {
            tai_list,
            allowed_nssai: allowed,
            configured_nssai: configured,
            t3512: Some(Timer::seconds(seconds * 60 / 2 * 2)),
            t3502: Some(Timer::Deactivated),
            ..RegistrationAccept::new()
        };
        let message = Message::RegistrationAccept(accept);
        let Message::RegistrationAccept(read) = Message::decode(&message.encode().unwrap()).unwrap().message else {
            panic!()
        };
        let Message::RegistrationAccept(mut sent) = message else { panic!() };
        // A timer is rounded up to what the element can say, never down.
        prop_assert!(read.t3512.unwrap().duration() >= sent.t3512.unwrap().duration());
        sent.t3512 = read.t3512;
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn session_accepts_survive(
        address in any::<[u8; 4]>(), id in any::<[u8; 8]>(),
        rate in 1u64..10_000_000, qfi in 1u8..64, mtu in any::<u16>(), dnn in "[a-z]{1,20}(\\.[a-z]{1,20})?",
    ) {
        let rate = BitRate::from_kbps(rate);
        let accept = EstablishmentAccept {
            session_type: PduSessionType::Ipv4v6,
            ssc_mode: SscMode::Mode1,
            qos_rules: vec![QosRule::match_all(1, 255, Qfi::new(qfi).unwrap())],
            session_ambr: Ambr { uplink: rate, downlink: rate },
            cause: Some(GsmCause::OnlyIpv4Allowed),
            address: Some(PduAddress::Ipv4v6(address.into(), id)),
            rq_timer: None,
            s_nssai: Some("1-010203".parse().unwrap()),
            always_on: Some(false),
            qos_flows: vec![],
            pco: Some(Pco { items: vec![PcoItem::DnsIpv4(address.into()), PcoItem::Ipv4Mtu(mtu)] }),
            dnn: Some(Dnn::new(&dnn).unwrap()),
        };
        let body = SmBody::EstablishmentAccept(accept.clone());
        let message = SmMessage::new(PduSessionId::new(3).unwrap(), Pti(9), body);
        let decoded = SmMessage::decode(&message.encode().unwrap()).unwrap();
        prop_assert_eq!(decoded.soft_errors, vec![]);
        let SmBody::EstablishmentAccept(mut read) = decoded.message.body else { panic!() };
        prop_assert!(read.session_ambr.uplink >= rate);
        read.session_ambr = accept.session_ambr;
        prop_assert_eq!(read, accept);
    }

    #[test]
    fn payloads_survive(payload in proptest::collection::vec(any::<u8>(), 1..2000)) {
        let message = Message::UlNasTransport(UlNasTransport::n1_sm(PduSessionId::new(1).unwrap(), payload));
        prop_assert_eq!(Message::decode(&message.encode().unwrap()).unwrap().message, message);
    }
}
