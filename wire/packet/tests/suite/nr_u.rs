//! NR-U containers (TS 38.425): what is written is read, wherever it is cut or damaged.

use crate::support::{INNER, damaged, hex};
use packet::ParseError;
use packet::gtpu::{self, Packet, PduSession, extension_type};
use packet::nr_u::{
    self, DeliveryStatus, MAX_RANGES, MAX_STATUS, Message, Ranges, SEQUENCE_MASK, USER_DATA_HEADER, UserData,
};
use proptest::prelude::*;

fn status_bytes(status: &DeliveryStatus<'_>, teid: u32) -> Vec<u8> {
    let mut out = [0xAA; MAX_STATUS];
    let length = status.write(teid, &mut out).unwrap();
    for room in 0..length {
        assert_eq!(status.write(teid, &mut vec![0; room]), None, "{room} of {length}");
    }
    out[..length].to_vec()
}

#[test]
fn user_data_goes_in_front_of_its_payload() {
    let payload = hex(INNER);
    for (sequence, polling) in [(0, false), (1, true), (SEQUENCE_MASK, false), (0x0123_4567, true)] {
        let mut frame = [vec![0xFF; 64], payload.clone()].concat();
        let written = nr_u::encapsulate(&mut frame[..64], 0x8000_0001, payload.len(), sequence, polling);
        assert_eq!(written, Some(USER_DATA_HEADER));
        let packet = Packet::new(&frame[64 - USER_DATA_HEADER..]).unwrap();
        assert_eq!((packet.teid(), packet.payload()), (0x8000_0001, &payload[..]));
        let expected =
            UserData { sequence: sequence & SEQUENCE_MASK, report_polling: polling, ..UserData::default() };
        assert_eq!(Message::of(&packet).unwrap(), Some(Message::UserData(expected)));
        assert_eq!(frame[..64 - USER_DATA_HEADER], [0xFF; 64 - USER_DATA_HEADER]);
    }
    assert_eq!(nr_u::encapsulate(&mut [0; USER_DATA_HEADER - 1], 1, 1, 1, false), None);
    assert_eq!(nr_u::encapsulate(&mut [0; 64], 1, 65_524, 1, false), None);
    assert!(nr_u::encapsulate(&mut [0; 64], 1, 65_523, 1, false).is_some());
}

/// What is read in one look says the same as what is read in steps; all other packets are left to the latter.
#[test]
fn the_usual_packet_is_read_as_any_other() {
    let read = |bytes: &[u8]| {
        let usual = nr_u::usual(bytes)?;
        let packet = Packet::new(bytes).unwrap();
        let expected = UserData {
            sequence: usual.sequence,
            report_polling: usual.report_polling,
            ..UserData::default()
        };
        assert_eq!(Message::of(&packet), Ok(Some(Message::UserData(expected))), "{bytes:02x?}");
        assert_eq!((packet.teid(), packet.header_len()), (usual.teid, USER_DATA_HEADER));
        assert_eq!(packet.bytes().len(), usual.end);
        Some(usual)
    };
    for (payload, trailer) in [(hex(INNER), 0), (Vec::new(), 0), (hex(INNER), 5)] {
        let mut bytes = [vec![0; USER_DATA_HEADER], payload.clone(), vec![9; trailer]].concat();
        nr_u::encapsulate(&mut bytes[..USER_DATA_HEADER], 7, payload.len(), 0x0012_3456, true).unwrap();
        let usual = read(&bytes).unwrap();
        assert_eq!((usual.teid, usual.sequence, usual.report_polling), (7, 0x0012_3456, true));
        damaged(&bytes, |bytes| {
            read(bytes);
        });
        for bit in 0..8 * USER_DATA_HEADER {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 0x80 >> (bit % 8);
            read(&changed);
        }
    }
    assert_eq!(read(&gtpu::build_gpdu(1, None, b"x").unwrap()), None);
}

/// Every field of DL USER DATA, laid out by hand from figure 5.5.2.1-1.
#[test]
fn all_fields_of_user_data_are_read() {
    let all = hex("07 19 000102 0a0b0c 02 000010 05 000020 ff 0d0e0f 00");
    let Message::UserData(data) = Message::parse(&all).unwrap() else { panic!("another type") };
    assert_eq!((data.sequence, data.report_polling, data.retransmission), (0x102, true, true));
    assert_eq!((data.flush, data.report_delivered), (Some(0x0a0b0c), Some(0x0d0e0f)));
    assert_eq!(data.discard.iter().collect::<Vec<_>>(), [(0x10, 5), (0x20, 255)]);
    for length in 0..all.len() - 1 {
        assert_eq!(Message::parse(&all[..length]), Err(ParseError::Truncated), "{length}");
    }
    let plain = hex("00 00 000001");
    assert!(matches!(Message::parse(&plain), Ok(Message::UserData(data)) if data.discard.is_empty()));
}

/// Every field of a delivery status, laid out by hand from figure 5.5.2.2-1.
#[test]
fn all_fields_of_a_status_are_read() {
    let all = hex("1f 1f 00010000 00020000 01 000003 000004 000005 000006 07 000008 000009 01 00000a 00000b");
    let expected = DeliveryStatus {
        desired_buffer_size: 0x10000,
        desired_data_rate: Some(0x20000),
        final_frame: true,
        lost: Ranges::of(&[(3, 4)]),
        highest_delivered: Some(5),
        highest_transmitted: Some(6),
        cause: Some(7),
        highest_delivered_retransmitted: Some(8),
        highest_retransmitted: Some(9),
        delivered: Ranges::of(&[(10, 11)]),
    };
    assert_eq!(Message::parse(&all), Ok(Message::DeliveryStatus(expected)));
    for length in 0..all.len() {
        assert_eq!(Message::parse(&all[..length]), Err(ParseError::Truncated), "{length}");
    }
}

#[test]
fn other_types_are_told_apart() {
    assert_eq!(Message::parse(&hex("2001 00")), Ok(Message::Assistance));
    for kind in 3..16u8 {
        assert_eq!(Message::parse(&[kind << 4, 0, 0, 0, 0, 0]), Err(ParseError::Value));
    }
    // A PDU Session Container is no NR RAN container.
    let bytes = gtpu::build_gpdu(1, Some(PduSession::Uplink { qfi: 9 }), b"x").unwrap();
    let packet = Packet::new(&bytes).unwrap();
    assert_eq!(Message::of(&packet), Ok(None));
    assert_eq!(packet.extension(extension_type::PDU_SESSION_CONTAINER), Some(&[0x10, 9][..]));
    assert_eq!(Packet::new(&gtpu::build_gpdu(1, None, b"x").unwrap()).unwrap().extension(0x84), None);
}

/// A container behind another extension header.
#[test]
fn the_chain_is_searched() {
    let bytes = hex("34ff0011 00000001 000000 85 01 0005 84 02 0000 000007 00 00 aa");
    let packet = Packet::new(&bytes).unwrap();
    assert_eq!((packet.pdu_session().unwrap().qfi(), packet.payload()), (5, &[0xaa][..]));
    let Ok(Some(Message::UserData(data))) = Message::of(&packet) else { panic!("no container") };
    assert_eq!(data.sequence, 7);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        sizes in any::<(u32, Option<u32>)>(),
        sequences in prop::array::uniform4(prop::option::of(0..=SEQUENCE_MASK)),
        final_frame: bool,
        cause: Option<u8>,
        lost in prop::collection::vec((0..=SEQUENCE_MASK, 0..=SEQUENCE_MASK), 0..=MAX_RANGES + 2),
        delivered in prop::collection::vec((0..=SEQUENCE_MASK, 0..=SEQUENCE_MASK), 0..=MAX_RANGES),
        teid: u32,
    ) {
        let status = DeliveryStatus {
            desired_buffer_size: sizes.0,
            desired_data_rate: sizes.1,
            final_frame,
            lost: Ranges::of(&lost),
            highest_delivered: sequences[0],
            highest_transmitted: sequences[1],
            cause,
            highest_delivered_retransmitted: sequences[2],
            highest_retransmitted: sequences[3],
            delivered: Ranges::of(&delivered),
        };
        let bytes = status_bytes(&status, teid);
        let packet = Packet::new(&bytes).unwrap();
        prop_assert_eq!((packet.teid(), packet.payload(), packet.bytes().len()), (teid, &[][..], bytes.len()));
        prop_assert_eq!(status.lost.len(), lost.len().min(MAX_RANGES));
        prop_assert_eq!(Message::of(&packet), Ok(Some(Message::DeliveryStatus(status))));
        damaged(&bytes, |bytes| {
            if let Ok(packet) = Packet::new(bytes)
                && let Ok(Some(Message::DeliveryStatus(status))) = Message::of(&packet)
            {
                // All of them are within the container.
                assert!(status.lost.iter().count() + status.delivered.iter().count() <= 170);
            }
        });
    }
}
