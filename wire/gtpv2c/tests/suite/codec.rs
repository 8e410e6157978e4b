//! Codec against octets written by hand after the standard, against damaged octets, and against itself.

use crate::common;
use gtpv2c::codec::Value;
use gtpv2c::message::*;
use gtpv2c::tft::{Component, Direction, Operation, PacketFilter, Parameter, Tft, TftError};
use gtpv2c::*;
use proptest::prelude::*;

fn encode(header: &Header, message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode_with(*header, &mut out).expect("fits a datagram");
    out
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(0x0102_0304, 0x0a_0b0c, &mut out).expect("fits a datagram");
    out
}

/// Octets from hexadecimal text with blanks and line ends.
fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
}

#[test]
fn every_message_is_read_as_it_was_written() {
    for message in common::messages() {
        let (header, back) = Message::decode(&encoded(&message)).unwrap();
        assert_eq!(back, message);
        assert_eq!(header.sequence, 0x0a_0b0c);
        assert_eq!(header.teid, message.message_type().has_teid().then_some(0x0102_0304));
        assert_eq!((header.piggybacking, header.priority), (false, None));
    }
}

/// An MME's request for a session, each IE as the standard's figures have it.
#[test]
fn a_create_session_request_by_hand() {
    let octets = hex("48 20 00ae 00000000 000001 00
         01 0008 00  99 99 07 00 00 00 00 f1
         4c 0006 00  94 71 10 32 54 76
         56 000d 00  18 99f907 1234 99f907 01234567
         53 0003 00  99f907
         52 0001 00  06
         57 0009 00  8a 00000011 0a000001
         57 0009 01  87 00000000 0a000002
         47 0009 00  08 696e7465726e6574
         80 0001 00  00
         63 0001 00  01
         4f 0005 00  01 00000000
         7f 0001 00  00
         48 0008 00  0000c350 000186a0
         5d 001f 00
            49 0001 00  05
            50 0016 00  64 09 0000000000 0000000000 0000000000 0000000000
         03 0001 00  11");
    let (header, message) = Message::decode(&octets).unwrap();
    assert_eq!((header.teid, header.sequence), (Some(0), 1));
    let plmn = types::Plmn::new("999", "70").unwrap();
    let ip = |last| std::net::IpAddr::from([10, 0, 0, last]);
    let expected = CreateSessionRequest {
        imsi: Some("999970000000001".parse().unwrap()),
        msisdn: Some(common::digits("491701234567")),
        uli: Some(Uli {
            tai: Some(Tai { plmn, tac: 0x1234 }),
            ecgi: Some(Ecgi { plmn, eci: 0x0123_4567 }),
            ..Default::default()
        }),
        serving_network: Some(plmn),
        rat_type: RatType::EUTRAN,
        sender_f_teid: FTeid::new(InterfaceType::S11_MME, 0x11, ip(1)),
        pgw_f_teid: Some(FTeid::new(InterfaceType::S5S8_PGW_GTPC, 0, ip(2))),
        apn: "internet".into(),
        selection_mode: Some(SelectionMode::Verified),
        pdn_type: Some(PdnType::Ipv4),
        paa: Some(Paa::Ipv4([0; 4].into())),
        max_apn_restriction: Some(ApnRestriction(0)),
        apn_ambr: Some(Ambr { uplink_kbps: 50_000, downlink_kbps: 100_000 }),
        bearers_to_be_created: vec![BearerToBeCreated {
            ebi: Ebi(5),
            qos: BearerQos {
                arp: Arp { pci: true, pl: 9, pvi: false },
                flow: FlowQos { qci: 9, ..Default::default() },
            },
            ..Default::default()
        }],
        recovery: Some(Recovery(17)),
        ..Default::default()
    };
    assert_eq!(message, expected.into());
    assert_eq!(encode(&header, &message), octets);
}

/// A P-GW's dedicated bearer for one UDP flow.
#[test]
fn a_create_bearer_request_by_hand() {
    let octets = hex("4c 5f 0060 00000021 800005 20
         64 0001 00  4d
         49 0001 00  05
         5d 004a 00
            49 0001 00  00
            54 0012 00  21  31 0a 0e  10 c0000201 ffffffff  30 11  50 1388
            57 0009 01  85 00000031 0a000003
            50 0016 00  08 01 0000000080 0000000080 0000000080 0000000080
            5e 0004 00  00000007");
    let (header, message) = Message::decode(&octets).unwrap();
    assert_eq!((header.sequence, header.priority), (0x80_0005, Some(2)));
    let Message::CreateBearerRequest(request) = &message else { panic!("{message:?}") };
    assert_eq!((request.pti, request.linked_ebi), (Some(Pti(77)), Ebi(5)));
    let bearer = &request.bearers[0];
    assert_eq!((bearer.ebi, bearer.charging_id), (Ebi(0), Some(ChargingId(7))));
    assert_eq!((bearer.qos.arp.pl, bearer.qos.flow.qci, bearer.qos.flow.gbr_downlink_kbps), (2, 1, 128));
    let filter = PacketFilter {
        id: 1,
        direction: Direction::Bidirectional,
        precedence: 10,
        components: vec![
            Component::Ipv4Remote { address: [192, 0, 2, 1].into(), mask: [255; 4].into() },
            Component::Protocol(17),
            Component::RemotePort(5000),
        ],
    };
    let tft = Tft::decode(bearer.tft.as_bytes()).unwrap();
    assert_eq!(tft, Tft { operation: Operation::Create(vec![filter]), parameters: Vec::new() });
    assert_eq!(tft.encode().as_ref(), Ok(&bearer.tft));
    assert_eq!(encode(&header, &message), octets);
}

#[test]
fn echo_and_refusals_by_hand() {
    let octets = hex("40 01 0009 000007 00  03 0001 00 2a");
    let (header, message) = Message::decode(&octets).unwrap();
    assert_eq!(header.teid, None);
    assert_eq!(message, EchoRequest { recovery: Recovery(42), node_features: None }.into());
    assert_eq!(encode(&header, &message), octets);
    // Some senders give it a TEID, and their restart counter more octets.
    let (header, with_teid) =
        Message::decode(&hex("48 01 000e 00000000 000007 00  03 0002 00 2a 01")).unwrap();
    assert_eq!((header.teid, with_teid), (Some(0), message));

    let octets = hex("48 21 0012 00000009 000007 00  02 0006 00  46 01 57 0000 01");
    let (header, message) = Message::decode(&octets).unwrap();
    let Message::CreateSessionResponse(response) = &message else { panic!("{message:?}") };
    assert_eq!(response.cause.value, CauseValue::MANDATORY_IE_MISSING);
    assert!(response.cause.from_remote && !response.cause.is_accepted());
    assert_eq!(response.cause.offending_ie, Some(OffendingIe::new(ie::F_TEID, 1)));
    assert_eq!(encode(&header, &message), octets);
}

#[test]
fn truncation_at_every_octet_is_an_error_never_a_panic() {
    for message in common::messages() {
        let bytes = encoded(&message);
        for cut in 0..bytes.len() {
            assert_eq!(
                Message::decode(&bytes[..cut]),
                Err(DecodeError::Truncated),
                "{message:?} cut at {cut}"
            );
            // The same with a header whose length agrees: the IEs themselves are cut.
            if cut >= 12 {
                let mut shorter = bytes[..cut].to_vec();
                shorter[2..4].copy_from_slice(&((cut - 4) as u16).to_be_bytes());
                let _ = Message::decode(&shorter);
            }
        }
    }
}

#[test]
fn any_flipped_bit_is_survived() {
    for message in common::messages() {
        let bytes = encoded(&message);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok((header, message)) = Message::decode(&flipped) {
                // What we understood of it, we can also write and understand again.
                let again = encode(&header, &message);
                assert_eq!(Message::decode(&again).map(|(_, m)| m), Ok(message), "bit {bit}");
            }
        }
    }
}

/// An IE by hand.
fn ie(kind: u8, instance: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend((value.len() as u16).to_be_bytes());
    out.push(instance);
    out.extend(value);
    out
}

#[test]
fn faults_name_cause_and_offending_ie() {
    use MessageType::*;
    let check = |kind, ies: &[Vec<u8>], error: DecodeError, value: CauseValue| {
        let got = Message::decode_ies(kind, &ies.concat()).unwrap_err();
        assert_eq!(got, error);
        let cause = got.cause().unwrap();
        assert_eq!((cause.value, cause.offending_ie), (value, got.offending_ie()));
        assert!(cause.offending_ie.is_some());
    };
    let rat = ie(ie::RAT_TYPE, 0, &[6]);
    let sender = ie(ie::F_TEID, 0, &[0x8a, 0, 0, 0, 1, 10, 0, 0, 1]);
    let apn = ie(ie::APN, 0, b"\x01a");
    let at = OffendingIe::new;
    check(
        CreateSessionRequest,
        &[apn.clone(), sender.clone()],
        DecodeError::MandatoryMissing(at(ie::RAT_TYPE, 0)),
        CauseValue::MANDATORY_IE_MISSING,
    );
    // The P-GW's F-TEID does not stand for the sender's.
    let mut other = sender.clone();
    other[3] = 1;
    check(
        CreateSessionRequest,
        &[rat.clone(), apn.clone(), other],
        DecodeError::MandatoryMissing(at(ie::F_TEID, 0)),
        CauseValue::MANDATORY_IE_MISSING,
    );
    check(
        CreateSessionRequest,
        &[rat.clone(), apn.clone(), sender.clone()],
        DecodeError::MandatoryMissing(at(ie::BEARER_CONTEXT, 0)),
        CauseValue::MANDATORY_IE_MISSING,
    );
    // Inside a grouped IE: the bearer has no QoS.
    let bearer = ie(ie::BEARER_CONTEXT, 0, &ie(ie::EBI, 0, &[5]));
    check(
        CreateSessionRequest,
        &[rat.clone(), apn.clone(), sender.clone(), bearer],
        DecodeError::MandatoryMissing(at(ie::BEARER_QOS, 0)),
        CauseValue::MANDATORY_IE_MISSING,
    );
    check(
        ModifyBearerRequest,
        &[ie(ie::F_TEID, 0, &[0x8a, 0, 0])],
        DecodeError::InvalidLength(at(ie::F_TEID, 0)),
        CauseValue::INVALID_LENGTH,
    );
    check(
        CreateSessionRequest,
        &[rat.clone(), ie(ie::APN, 0, &[9, 9])],
        DecodeError::Incorrect(at(ie::APN, 0)),
        CauseValue::MANDATORY_IE_INCORRECT,
    );
    // A conditional IE counts when it is there.
    check(
        CreateSessionRequest,
        &[ie(ie::PDN_TYPE, 0, &[7])],
        DecodeError::Incorrect(at(ie::PDN_TYPE, 0)),
        CauseValue::MANDATORY_IE_INCORRECT,
    );
    // IEs that reach beyond the message, or are no whole IE.
    let mut long = rat.clone();
    long[2] = 200;
    check(
        CreateSessionRequest,
        &[long],
        DecodeError::InvalidLength(at(ie::RAT_TYPE, 0)),
        CauseValue::INVALID_LENGTH,
    );
    check(
        DeleteSessionRequest,
        &[ie(ie::EBI, 0, &[5]), vec![ie::ULI, 0]],
        DecodeError::InvalidLength(at(ie::ULI, 0)),
        CauseValue::INVALID_LENGTH,
    );
}

#[test]
fn headers_that_cannot_be_are_refused() {
    assert_eq!(Message::decode(&[]).unwrap_err(), DecodeError::Truncated);
    assert_eq!(Message::decode(&hex("32 01 0004 00000000 0001 0000")).unwrap_err(), DecodeError::Version(1));
    assert_eq!(Message::decode(&hex("68 20")).unwrap_err(), DecodeError::Version(3));
    assert_eq!(Message::decode(&hex("40 20 0004 00000100")).unwrap_err(), DecodeError::TeidFlag(32));
    assert_eq!(
        Message::decode(&hex("48 fe 0008 00000000 00000100")).unwrap_err(),
        DecodeError::UnknownMessage(254)
    );
    assert_eq!(Message::decode(&hex("48 24 0007 00000000 000001")).unwrap_err(), DecodeError::Truncated);
}

#[test]
fn unknown_ies_are_skipped_repetitions_ignored_and_broken_options_absent() {
    let ies = [
        ie(255, 0, &[0, 10, 1, 2]),
        ie(ie::RECOVERY, 1, &[9]),
        ie(ie::RECOVERY, 0, &[1]),
        ie(254, 3, &[]),
        ie(ie::RECOVERY, 0, &[2]),
        // A later release made the IE longer: what we know of it counts.
        ie(ie::NODE_FEATURES, 0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ]
    .concat();
    let message = Message::decode_ies(MessageType::EchoRequest, &ies).unwrap();
    let features = NodeFeatures(0x0807_0605_0403_0201);
    assert_eq!(message, EchoRequest { recovery: Recovery(1), node_features: Some(features) }.into());
    // The optional user location is too short.
    let ies = [ie(ie::CAUSE, 0, &[16, 0]), ie(ie::ULI, 0, &[8, 1])].concat();
    let Ok(Message::CreateBearerResponse(response)) =
        Message::decode_ies(MessageType::CreateBearerResponse, &ies)
    else {
        panic!()
    };
    assert_eq!(response.uli, None);
}

#[test]
fn indications_are_kept_bit_for_bit_whatever_their_length() {
    let octets = |flags: Indication| {
        let mut out = Vec::new();
        flags.encode(&mut out);
        out
    };
    assert_eq!(octets(Indication::default()), [0, 0]);
    assert_eq!(octets(Indication::DAF | Indication::UIMSI), [0x80, 0x40]);
    assert_eq!(octets(Indication::CSRMFI), [0, 0, 0, 0, 0, 0, 0, 0x80]);
    let long: Vec<u8> = (1..=16).collect();
    let flags = Indication::decode(&long).unwrap();
    assert_eq!(octets(flags), long);
    assert!(flags.contains(Indication::SGWCI) && !flags.contains(Indication::ISRAI));
    assert_eq!(Indication::decode(&[0x28]), Ok(Indication::HI | Indication::OI));
    assert_eq!(format!("{:?}", Indication::OI | Indication::MSV), "Indication( OI MSV )");
}

/// Other locations are stepped over, so that those behind them are found.
#[test]
fn locations_are_found_behind_each_other() {
    let plmn = types::Plmn::new("001", "01").unwrap();
    let all = Uli {
        cgi: Some([1; 7]),
        sai: Some([2; 7]),
        rai: Some([3; 7]),
        tai: Some(Tai { plmn, tac: 4 }),
        ecgi: Some(Ecgi { plmn, eci: 5 }),
        lai: Some([6; 5]),
        macro_enb: Some([7; 6]),
        extended_macro_enb: Some([8; 6]),
    };
    let mut out = Vec::new();
    all.encode(&mut out);
    assert_eq!(out.len(), 1 + 7 * 3 + 5 + 7 + 5 + 6 * 2);
    assert_eq!(out[0], 0xff);
    assert_eq!(Uli::decode(&out), Ok(all));
    assert!(Uli::decode(&out[..out.len() - 1]).is_err());
}

#[test]
fn timers_mean_seconds() {
    let seconds = |unit, value| EpcTimer { unit, value }.seconds();
    assert_eq!(seconds(0, 3), Some(6));
    assert_eq!(seconds(1, 3), Some(180));
    assert_eq!(seconds(2, 1), Some(600));
    assert_eq!(seconds(3, 1), Some(3600));
    assert_eq!(seconds(4, 31), Some(1_116_000));
    assert_eq!(seconds(5, 2), Some(120));
    assert_eq!((seconds(7, 1), seconds(7, 0)), (None, Some(0)));
}

#[test]
fn numbers_have_the_octets_that_they_need() {
    for (number, octets) in [(0, &[0][..]), (255, &[255]), (256, &[1, 0]), (u64::MAX, &[255; 8])] {
        let mut out = Vec::new();
        IntegerNumber(number).encode(&mut out);
        assert_eq!(out, octets);
        assert_eq!(IntegerNumber::decode(octets), Ok(IntegerNumber(number)));
    }
    assert_eq!(IntegerNumber::decode(&[0, 0, 0, 0, 0, 0, 0, 0, 7]), Ok(IntegerNumber(7)));
    assert!(IntegerNumber::decode(&[1, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
}

/// A counter is newer when it is ahead by less than half a turn.
#[test]
fn restart_counters_wrap() {
    for (counter, than, newer) in
        [(1, 0, true), (0, 1, false), (0, 255, true), (255, 0, false), (5, 5, false)]
    {
        assert_eq!(Recovery(counter).is_newer(Recovery(than)), newer, "{counter} {than}");
    }
}

#[test]
fn a_message_too_long_for_a_datagram_is_not_made() {
    let request = DeleteBearerResponse { bearers: vec![Default::default(); 9000], ..Default::default() };
    let mut out = vec![1, 2, 3];
    assert!(matches!(Message::from(request).encode(1, 1, &mut out), Err(EncodeError::TooLong(_))));
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn both_messages_of_a_datagram_are_read() {
    let (response, request) = (common::create_session_response(), common::create_bearer_request());
    let message_type = MessageType::CreateSessionResponse;
    let header = Header { message_type, teid: Some(7), sequence: 9, piggybacking: true, priority: Some(15) };
    let mut datagram = encode(&header, &response.clone().into());
    Message::from(request.clone()).encode(7, 10, &mut datagram).unwrap();
    let (first, ies, rest) = Header::decode(&datagram).unwrap();
    assert_eq!(first, header);
    assert_eq!(Message::decode_ies(first.message_type, ies), Ok(response.into()));
    let (second, message) = Message::decode(rest).unwrap();
    assert_eq!((second.sequence, message), (10, request.into()));
}

#[test]
fn every_message_type_has_its_answer() {
    for &kind in MessageType::ALL {
        assert_eq!(MessageType::from_code(kind as u8), Some(kind));
        let answer = MessageType::ALL.iter().find(|answer| answer.is_response_to(kind));
        assert_eq!(answer.is_some(), kind.is_request(), "{kind:?}");
        assert!(answer.is_none_or(|answer| answer.kind() == Kind::Response));
        if let Some(rejection) = kind.rejection(CauseValue::NO_RESOURCES.into()) {
            assert!(rejection.message_type().is_response_to(kind));
            let octets = encoded(&rejection);
            assert_eq!(Message::decode(&octets).map(|(_, message)| message), Ok(rejection));
        } else {
            assert!(!kind.is_request() || kind == MessageType::EchoRequest, "{kind:?}");
        }
    }
}

mod template {
    use super::*;

    #[test]
    fn operations_without_filters() {
        for (octets, operation) in [
            (&[0x00][..], Operation::Ignore),
            (&[0x40], Operation::Delete),
            (&[0xc0], Operation::NoOperation),
            (&[0xa2, 1, 3], Operation::DeleteFilters(vec![1, 3])),
        ] {
            let tft = Tft { operation, parameters: Vec::new() };
            assert_eq!(Tft::decode(octets), Ok(tft.clone()));
            assert_eq!(tft.encode(), Ok(octets.into()));
        }
        let parameters = vec![Parameter { identifier: 3, content: vec![1, 2] }];
        let tft = Tft { operation: Operation::NoOperation, parameters };
        assert_eq!(Tft::decode(&[0xd0, 3, 2, 1, 2]), Ok(tft.clone()));
        assert_eq!(tft.encode(), Ok(Octets(vec![0xd0, 3, 2, 1, 2])));
    }

    #[test]
    fn broken_templates_say_what_is_broken() {
        let refused = |octets: &[u8]| Tft::decode(octets).unwrap_err();
        for octets in [
            &[][..],
            &[0xe0],
            &[0x41],
            &[0xc1],
            // No filters to create or delete; a filter that is missing or cut.
            &[0x20],
            &[0xa0],
            &[0xa1],
            &[0x21],
            &[0x21, 0x31, 1, 2, 0x30],
            // Parameters are announced and broken.
            &[0xd0, 3, 9, 1],
        ] {
            assert_eq!(refused(octets), TftError::Operation, "{octets:x?}");
        }
        assert_eq!(refused(&[0x21, 0x31, 1, 2, 0x40, 1]), TftError::Filter(1), "cut component");
        assert_eq!(refused(&[0x21, 0x35, 1, 1, 0x99]), TftError::Filter(5), "unknown component");
        assert_eq!(refused(&[0x21, 0x31, 1, 5, 0x41, 0, 2, 0, 1]), TftError::Filter(1), "ports downwards");
        let twice = [0x22, 0x31, 1, 2, 0x30, 6, 0x31, 2, 2, 0x30, 17];
        assert_eq!(refused(&twice), TftError::Filter(1), "the same number twice");
        assert_eq!(TftError::Filter(1).cause(), CauseValue::FILTER_SYNTACTIC_ERRORS);
        assert_eq!(TftError::Operation.cause(), CauseValue::TFT_SYNTACTIC_ERROR);
    }

    #[test]
    fn what_is_too_long_is_not_written() {
        let filter = |id, components| PacketFilter {
            id,
            direction: Direction::Uplink,
            precedence: id,
            components: vec![Component::Protocol(1); components],
        };
        let encode = |filters| Tft { operation: Operation::Add(filters), parameters: Vec::new() }.encode();
        assert_eq!(encode((0..16).map(|id| filter(id, 1)).collect()), Err(TftError::TooLong));
        assert!(encode((0..15).map(|id| filter(id, 127)).collect()).is_ok());
        assert_eq!(encode(vec![filter(0, 128)]), Err(TftError::TooLong));
    }
}

fn octets() -> impl Strategy<Value = Octets> {
    prop::collection::vec(any::<u8>(), 0..80).prop_map(Octets)
}

fn any_f_teid() -> impl Strategy<Value = FTeid> {
    let addresses = prop_oneof![
        any::<[u8; 4]>().prop_map(|v4| (Some(v4), None)),
        any::<[u8; 16]>().prop_map(|v6| (None, Some(v6))),
        any::<([u8; 4], [u8; 16])>().prop_map(|(v4, v6)| (Some(v4), Some(v6))),
    ];
    (0u8..64, any::<u32>(), addresses).prop_map(|(interface, teid, (v4, v6))| FTeid {
        interface: InterfaceType(interface),
        teid,
        ipv4: v4.map(Into::into),
        ipv6: v6.map(Into::into),
    })
}

fn any_qos() -> impl Strategy<Value = BearerQos> {
    (any::<(bool, bool, u8)>(), 0u8..16, [0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 40])
        .prop_map(|((pci, pvi, qci), pl, rates)| {
            let [mbr_uplink_kbps, mbr_downlink_kbps, gbr_uplink_kbps, gbr_downlink_kbps] = rates;
            let flow =
                FlowQos { qci, mbr_uplink_kbps, mbr_downlink_kbps, gbr_uplink_kbps, gbr_downlink_kbps };
            BearerQos { arp: Arp { pci, pl, pvi }, flow }
        })
}

fn any_paa() -> impl Strategy<Value = Paa> {
    let prefix = (any::<[u8; 16]>(), 0u8..=128)
        .prop_map(|(address, length)| Ipv6Prefix { address: address.into(), length });
    (0u8..5, any::<[u8; 4]>(), prefix).prop_map(|(kind, v4, v6)| match kind {
        0 => Paa::Ipv4(v4.into()),
        1 => Paa::Ipv6(v6),
        2 => Paa::Ipv4v6(v4.into(), v6),
        3 => Paa::NonIp,
        _ => Paa::Ethernet,
    })
}

fn any_cause() -> impl Strategy<Value = Cause> {
    (any::<u8>(), any::<[bool; 3]>(), prop::option::of((any::<u8>(), 0u8..16))).prop_map(
        |(value, [pce, bce, cs], ie)| Cause {
            value: CauseValue(value),
            pdn_connection_error: pce,
            bearer_context_error: bce,
            from_remote: cs,
            offending_ie: ie.map(|(ie_type, instance)| OffendingIe::new(ie_type, instance)),
        },
    )
}

fn any_fq_csid() -> impl Strategy<Value = FqCsid> {
    let node = prop_oneof![
        any::<[u8; 4]>().prop_map(|v4| CsidNode::Ipv4(v4.into())),
        any::<[u8; 16]>().prop_map(|v6| CsidNode::Ipv6(v6.into())),
        any::<u32>().prop_map(CsidNode::Other),
    ];
    (node, prop::collection::vec(any::<u16>(), 0..16)).prop_map(|(node, csids)| FqCsid { node, csids })
}

fn component() -> impl Strategy<Value = Component> {
    let ports = any::<(u16, u16)>().prop_map(|(a, b)| (a.min(b), a.max(b)));
    (0u8..13, any::<([u8; 4], [u8; 4])>(), any::<([u8; 16], [u8; 16])>(), 0u8..=128, ports, any::<u32>())
        .prop_map(|(kind, (v4, mask4), (v6, mask6), prefix_length, (low, high), number)| match kind {
            0 => Component::Ipv4Remote { address: v4.into(), mask: mask4.into() },
            1 => Component::Ipv4Local { address: v4.into(), mask: mask4.into() },
            2 => Component::Ipv6RemoteMask { address: v6.into(), mask: mask6.into() },
            3 => Component::Ipv6Remote { address: v6.into(), prefix_length },
            4 => Component::Ipv6Local { address: v6.into(), prefix_length },
            5 => Component::Protocol(v4[0]),
            6 => Component::LocalPort(low),
            7 => Component::LocalPorts(low, high),
            8 => Component::RemotePort(high),
            9 => Component::RemotePorts(low, high),
            10 => Component::SecurityParameterIndex(number),
            11 => Component::TypeOfService { value: v4[0], mask: mask4[0] },
            _ => Component::FlowLabel(number >> 12),
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..Default::default() })]

    #[test]
    fn sessions_round_trip(
        f_teids in prop::collection::vec(any_f_teid(), 1..12),
        (qos, paa, cause) in (any_qos(), any_paa(), any_cause()),
        (fq_csid, pco) in (any_fq_csid(), octets()),
        imsi in "[0-9]{5,15}", msisdn in "[0-9]{0,15}", apn in "([a-z0-9-]{1,63})(\\.[a-z0-9-]{1,30}){0,2}",
        teid in any::<u32>(), sequence in 0u32..1 << 24, indication in any::<u128>(),
    ) {
        let request: Message = CreateSessionRequest {
            imsi: Some(imsi.parse().unwrap()),
            msisdn: Some(Digits(msisdn)),
            apn: Apn(apn),
            sender_f_teid: f_teids[0],
            indication: Some(Indication(indication)),
            paa: Some(paa),
            pco: Some(pco.clone()),
            mme_fq_csid: Some(fq_csid),
            bearers_to_be_created: f_teids.iter().map(|f_teid| BearerToBeCreated {
                ebi: Ebi(5), qos, s1u_enb_f_teid: Some(*f_teid), tft: Some(pco.clone()), ..Default::default()
            }).collect(),
            ..Default::default()
        }.into();
        let response: Message = CreateSessionResponse {
            cause,
            paa: Some(paa),
            bearers_created: f_teids.iter().map(|f_teid| BearerCreated {
                ebi: Ebi(15), cause, s5s8u_pgw_f_teid: Some(*f_teid), qos: Some(qos), ..Default::default()
            }).collect(),
            ..Default::default()
        }.into();
        for message in [request, response] {
            let mut out = Vec::new();
            message.encode(teid, sequence, &mut out).unwrap();
            let (header, back) = Message::decode(&out).unwrap();
            prop_assert_eq!((header.teid, header.sequence), (Some(teid), sequence));
            prop_assert_eq!(back, message);
        }
    }

    #[test]
    fn templates_round_trip(
        filters in prop::collection::vec(
            (prop::collection::vec(component(), 0..6), 0u8..4, any::<u8>()), 1..15),
        content in prop::collection::vec(any::<u8>(), 0..255),
        kind in 0u8..3,
    ) {
        let directions = [Direction::PreRelease7, Direction::Downlink, Direction::Uplink, Direction::Bidirectional];
        let filters: Vec<_> = (0u8..).zip(filters).map(|(id, (components, direction, precedence))| PacketFilter {
            id, direction: directions[usize::from(direction)], precedence, components,
        }).collect();
        let operation = match kind {
            0 => Operation::Create(filters),
            1 => Operation::Add(filters),
            _ => Operation::Replace(filters),
        };
        let tft = Tft { operation, parameters: vec![Parameter { identifier: 1, content }] };
        let octets = tft.encode().unwrap();
        for cut in 0..octets.as_bytes().len() {
            let _ = Tft::decode(&octets.as_bytes()[..cut]);
        }
        prop_assert_eq!(Tft::decode(octets.as_bytes()), Ok(tft));
    }

    #[test]
    fn no_bytes_make_the_decoders_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in any::<u8>()) {
        let _ = Message::decode(&bytes);
        if let Ok(tft) = Tft::decode(&bytes) {
            let octets = tft.encode().unwrap();
            prop_assert_eq!(Tft::decode(octets.as_bytes()), Ok(tft));
        }
        if let Some(kind) = MessageType::from_code(kind) {
            let _ = Message::decode_ies(kind, &bytes);
        }
    }
}
