//! GTP-U against fixtures made by scapy 2.8 and by hand, damaged input, and round trips.

use std::net::IpAddr;

use crate::support::{INNER, damaged, hex};
use packet::ParseError;
use packet::gtpu::{self, Packet, PduSession, Signalling, message_type};
use proptest::prelude::*;

/// scapy: GTP_U_Header / GTPPDUSessionContainer / IP / UDP.
const PLAIN: &str = "30ff002211223344";
const DL_QFI9_RQI: &str = "34ff002a000000010000008501004900";
const DL_PPI3: &str = "34ff002e00000001000000850200856000000000";
const UL_QFI5_SEQ77: &str = "36ff002afedcba98004d008501100500";

#[test]
fn gpdus_of_scapy_are_read() {
    let cases = [
        (PLAIN, 0x1122_3344, None, None),
        (DL_QFI9_RQI, 1, Some(PduSession::Downlink { qfi: 9, rqi: true, ppi: None }), None),
        (DL_PPI3, 1, Some(PduSession::Downlink { qfi: 5, rqi: false, ppi: Some(3) }), None),
        (UL_QFI5_SEQ77, 0xfedc_ba98, Some(PduSession::Uplink { qfi: 5 }), Some(77)),
    ];
    for (header, teid, container, sequence) in cases {
        let bytes = hex(&format!("{header}{INNER}"));
        let packet = Packet::new(&bytes).unwrap();
        assert_eq!(packet.message_type(), message_type::G_PDU);
        assert_eq!(packet.teid(), teid);
        assert_eq!(packet.pdu_session(), container);
        assert_eq!(packet.sequence(), sequence);
        assert_eq!(packet.payload(), hex(INNER));
        assert_eq!(packet.unknown_required_extension(), None);
    }
}

#[test]
fn gpdus_are_built_as_scapy_builds_them() {
    let inner = hex(INNER);
    for (header, teid, container) in [
        (PLAIN, 0x1122_3344, None),
        (DL_QFI9_RQI, 1, Some(PduSession::Downlink { qfi: 9, rqi: true, ppi: None })),
        (DL_PPI3, 1, Some(PduSession::Downlink { qfi: 5, rqi: false, ppi: Some(3) })),
    ] {
        let built = gtpu::build_gpdu(teid, container, &inner).unwrap();
        assert_eq!(built, hex(&format!("{header}{INNER}")));
    }
}

#[test]
fn signalling_of_scapy_is_read_and_built() {
    let cases = [
        ("320100040000000012340000", Signalling::EchoRequest { sequence: 0x1234 }),
        ("3202000600000000123400000e00", Signalling::EchoResponse { sequence: 0x1234 }),
        ("30fe000000000055", Signalling::EndMarker { teid: 0x55, pdu_session: None }),
        (
            "321a0010000000000000000010deadbeef8500040ac80001",
            Signalling::ErrorIndication {
                teid: 0xdead_beef,
                peer: IpAddr::from([10, 200, 0, 1]),
                udp_port: None,
            },
        ),
        (
            "361a001400000000000000400108680010deadbeef8500040ac80001",
            Signalling::ErrorIndication {
                teid: 0xdead_beef,
                peer: IpAddr::from([10, 200, 0, 1]),
                udp_port: Some(2152),
            },
        ),
        ("321f00080000000000000000 8d024085", Signalling::our_extension_headers()),
    ];
    for (text, message) in cases {
        let bytes = hex(text);
        assert_eq!(gtpu::decode(&bytes).unwrap().as_ref(), Some(&message), "{text}");
        assert_eq!(message.build(), bytes, "{message:?}");
    }
}

#[test]
fn chains_are_bounded_and_checked() {
    // Nine RAN containers of one word each: one too many.
    let mut bytes = hex("34ff00280000000100000081");
    for _ in 0..9 {
        bytes.extend_from_slice(&[1, 0, 0, 0x81]);
    }
    assert_eq!(Packet::new(&bytes).unwrap_err(), ParseError::TooManyExtensions);
    // An extension header of length zero would never end.
    assert_eq!(Packet::new(&hex("34ff00080000000100000085 00000000")).unwrap_err(), ParseError::Length);
    // Unknown with the comprehension bit: reported. Unknown without: skipped.
    let unknown = hex("34ff000800000001000000c101000000");
    assert_eq!(Packet::new(&unknown).unwrap().unknown_required_extension(), Some(0xc1));
    let skipped = hex("34ff000800000001000000410100 0000");
    assert_eq!(Packet::new(&skipped).unwrap().unknown_required_extension(), None);
    // GTP' and version 2 are not ours.
    assert_eq!(Packet::new(&hex("20ff000000000001")).unwrap_err(), ParseError::Version);
    assert_eq!(Packet::new(&hex("48ff000000000001")).unwrap_err(), ParseError::Version);
    // PDU type 2 does not exist.
    assert_eq!(Packet::new(&hex("34ff00080000000100000085 01200500")).unwrap_err(), ParseError::Value);
    // Announced delay measurement is missing.
    assert_eq!(Packet::new(&hex("34ff00080000000100000085 01080500")).unwrap_err(), ParseError::Truncated);
}

#[test]
fn echo_without_sequence_and_incomplete_error_indications_are_errors() {
    assert_eq!(gtpu::decode(&hex("3001000000000000")).unwrap_err(), ParseError::Value);
    assert_eq!(gtpu::decode(&hex("321a0009000000000000000010deadbeef")).unwrap_err(), ParseError::Value);
    assert_eq!(gtpu::decode(&hex("321a000500000000000000000a")).unwrap_err(), ParseError::Value);
}

#[test]
fn damaged_messages_are_errors_not_panics() {
    for text in [
        &format!("{UL_QFI5_SEQ77}{INNER}"),
        &format!("{DL_PPI3}{INNER}"),
        "361a001400000000000000400108680010deadbeef8500040ac80001",
        "321f000800000000000000008d024085",
    ] {
        let bytes = hex(text);
        for length in 0..bytes.len() {
            assert!(gtpu::decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        damaged(&bytes, |bytes| {
            let _ = gtpu::decode(bytes);
        });
    }
}

fn container() -> impl Strategy<Value = Option<PduSession>> {
    prop_oneof![
        Just(None),
        (0u8..64, any::<bool>(), proptest::option::of(0u8..8))
            .prop_map(|(qfi, rqi, ppi)| Some(PduSession::Downlink { qfi, rqi, ppi })),
        (0u8..64).prop_map(|qfi| Some(PduSession::Uplink { qfi })),
    ]
}

proptest! {
    #[test]
    fn gpdus_round_trip(teid: u32, container in container(), payload in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let bytes = gtpu::build_gpdu(teid, container, &payload).unwrap();
        let packet = Packet::new(&bytes).unwrap();
        prop_assert_eq!(packet.teid(), teid);
        prop_assert_eq!(packet.pdu_session(), container);
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.header_len(), gtpu::encapsulation_len(container));
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = gtpu::decode(&bytes);
    }
}
