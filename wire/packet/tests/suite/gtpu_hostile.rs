//! GTP-U as nobody should send it: every combination of flags, lengths and extension headers, against a second reading
//! of TS 29.281 §5 that is written for clearness, not for speed.

use crate::support::{INNER, damaged, hex};
use packet::ParseError;
use packet::gtpu::{self, MAX_EXTENSIONS, Packet, PduSession, extension_type};

/// What a message says, as the second reading sees it.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    header: usize,
    total: usize,
    sequence: Option<u16>,
    unknown_required: bool,
    extensions: usize,
}

/// Reads a message octet by octet; `None` when it is malformed. PDU Session Containers are not looked into.
fn read(bytes: &[u8]) -> Option<Reading> {
    let flags = *bytes.first()?;
    if flags >> 5 != 1 || flags & 0x10 == 0 {
        return None;
    }
    let announced = usize::from(*bytes.get(2)?) * 256 + usize::from(*bytes.get(3)?);
    bytes.get(7)?;
    let message = bytes.get(..8 + announced)?;
    let mut reading =
        Reading { header: 8, total: message.len(), sequence: None, unknown_required: false, extensions: 0 };
    if flags & 7 == 0 {
        return Some(reading);
    }
    let optional = message.get(8..12)?;
    reading.header = 12;
    if flags & 2 != 0 {
        reading.sequence = Some(u16::from_be_bytes([optional[0], optional[1]]));
    }
    // Without the E flag the octet is there and means nothing (§5.1).
    let mut next = if flags & 4 != 0 { optional[3] } else { 0 };
    while next != 0 {
        let words = *message.get(reading.header)?;
        let end = reading.header + 4 * usize::from(words);
        let last = *message.get(end.checked_sub(1)?)?;
        reading.extensions += 1;
        if words == 0 || reading.extensions > MAX_EXTENSIONS {
            return None;
        }
        let known = [0x20, 0x40, 0x81, 0x82, 0x83, 0x84, 0x85, 0xC0].contains(&next);
        reading.unknown_required |= !known && next >= 0x80;
        next = last;
        reading.header = end;
    }
    Some(reading)
}

/// Compares both readings; whether the message is well-formed.
fn compare(bytes: &[u8], context: &str) -> bool {
    let ours = Packet::new(bytes);
    let theirs = read(bytes);
    match (&ours, &theirs) {
        (Ok(ours), Some(theirs)) => {
            assert_eq!(ours.header_len(), theirs.header, "{context}");
            assert_eq!(ours.bytes().len(), theirs.total, "{context}");
            assert_eq!(ours.payload(), &bytes[theirs.header..theirs.total], "{context}");
            assert_eq!(ours.sequence(), theirs.sequence, "{context}");
            assert_eq!(ours.unknown_required_extension().is_some(), theirs.unknown_required, "{context}");
        }
        (Err(_), None) => {}
        _ => panic!("{context}: {ours:?} {theirs:?} {bytes:02x?}"),
    }
    ours.is_ok()
}

/// All 256 first octets, all announced lengths around the true one and at the ends, all truncations.
#[test]
fn every_flag_and_length_combination() {
    let mut well_formed = 0;
    for flags in 0..=255u8 {
        for payload in [0usize, 1, 3, 4, 5, 8, 27] {
            let mut bytes = vec![flags, 255, 0, 0, 0, 0, 0, 9];
            bytes.extend((0..payload).map(|_| 0));
            for announced in (0..=payload + 2).chain([255, 256, 0x7FFF, 0xFFFF]) {
                bytes[2..4].copy_from_slice(&(announced as u16).to_be_bytes());
                for length in 0..=bytes.len() {
                    let context = format!("flags {flags:#x}, {announced} of {payload}, cut at {length}");
                    well_formed += u64::from(compare(&bytes[..length], &context));
                }
            }
        }
    }
    assert!(well_formed > 100, "{well_formed}");
}

/// Every next-extension type with every length octet, in messages that are long enough and too short.
#[test]
fn every_extension_type_and_length() {
    for kind in 0..=255u8 {
        for words in 0..=255u8 {
            for room in [0usize, 3, 4, 8, 40, 1020] {
                // All zeroes inside: the chain ends behind this header, and a container of zeroes is a downlink one.
                let mut bytes = vec![0x34, 255, 0, 0, 0, 0, 0, 9, 0, 0, 0, kind];
                bytes.resize(12 + room, 0);
                if room > 0 {
                    bytes[12] = words;
                }
                let announced = (bytes.len() - 8) as u16;
                bytes[2..4].copy_from_slice(&announced.to_be_bytes());
                compare(&bytes, &format!("type {kind:#x}, {words} words, {room} octets"));
            }
        }
    }
}

/// Chains of up to ten headers of mixed kinds and lengths, whole and cut.
#[test]
fn chains_of_extension_headers() {
    let kinds = [0x20, 0x40, 0x81, 0x82, 0x83, 0x84, 0xC0, 0xC1, 0x41, 0x7F, 0xFF];
    for count in 0..=MAX_EXTENSIONS + 2 {
        for start in 0..kinds.len() {
            for words in 1..=3u8 {
                let chain: Vec<u8> = (0..count).map(|n| kinds[(start + n) % kinds.len()]).collect();
                let mut bytes = vec![0x36, 255, 0, 0, 0, 0, 0, 9, 0xAB, 0xCD, 0, 0];
                bytes[11] = chain.first().copied().unwrap_or(0);
                for n in 0..count {
                    let mut extension = vec![0; usize::from(words) * 4];
                    extension[0] = words;
                    *extension.last_mut().unwrap() = chain.get(n + 1).copied().unwrap_or(0);
                    bytes.extend(extension);
                }
                bytes.extend(hex(INNER));
                let announced = (bytes.len() - 8) as u16;
                bytes[2..4].copy_from_slice(&announced.to_be_bytes());
                let whole = compare(&bytes, &format!("{count} headers"));
                assert_eq!(whole, count <= MAX_EXTENSIONS, "{count} headers from {start}");
                if !whole {
                    assert_eq!(Packet::new(&bytes).unwrap_err(), ParseError::TooManyExtensions);
                }
                for announced in 0..bytes.len() - 8 {
                    bytes[2..4].copy_from_slice(&(announced as u16).to_be_bytes());
                    compare(&bytes, &format!("{count} headers, length {announced}"));
                }
            }
        }
    }
}

/// A chain that leads back to its own beginning cannot exist, since each header moves on; one header that claims all
/// of the longest datagram is walked in one step.
#[test]
fn the_longest_header_ends() {
    let mut bytes = vec![0x34, 255, 0, 0, 0, 0, 0, 9, 0, 0, 0, extension_type::RAN_CONTAINER];
    bytes.resize(12 + 1020, 0x81);
    bytes[12] = 255;
    bytes[12 + 1019] = 0;
    bytes[2..4].copy_from_slice(&(1024u16).to_be_bytes());
    let packet = Packet::new(&bytes).unwrap();
    assert_eq!((packet.header_len(), packet.payload().len()), (1032, 0));
}

/// All contents of the first two octets of a PDU Session Container (TS 38.415 §5.5.2), in containers of each length:
/// what is announced is there or the message is malformed, and the QFI is never another.
#[test]
fn every_pdu_session_container() {
    let mut read = [0u32; 2];
    for first in 0..=255u8 {
        for second in 0..=255u8 {
            for words in [1u8, 2, 3, 8, 12] {
                let mut bytes = vec![0x34, 255, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0x85];
                bytes.push(words);
                bytes.extend([first, second]);
                bytes.resize(12 + usize::from(words) * 4, 0);
                let announced = (bytes.len() - 8) as u16;
                bytes[2..4].copy_from_slice(&announced.to_be_bytes());
                match Packet::new(&bytes).map(|packet| packet.pdu_session()) {
                    Ok(Some(container)) => {
                        assert_eq!(container.qfi(), second & 0x3F);
                        let downlink = matches!(container, PduSession::Downlink { .. });
                        assert_eq!(first >> 4, u8::from(!downlink));
                        read[usize::from(downlink)] += 1;
                    }
                    Ok(None) => panic!("{first:#x} {second:#x} {words}"),
                    Err(ParseError::Value) => assert!(first >> 4 > 1),
                    Err(error) => assert_eq!(error, ParseError::Truncated),
                }
            }
        }
    }
    assert!(read.iter().all(|count| *count > 5_000), "{read:?}");
}

/// The content of a G-PDU is a user packet, also if it is a G-PDU again: the parser opens only the outer tunnel.
#[test]
fn nested_tunnels_are_opened_once() {
    let mut message = hex(INNER);
    for teid in 1..=50 {
        message = gtpu::build_gpdu(teid, Some(PduSession::Uplink { qfi: 1 }), &message).unwrap();
    }
    for teid in (1..=50).rev() {
        let packet = Packet::new(&message).unwrap();
        assert_eq!(packet.teid(), teid);
        message = packet.payload().to_vec();
    }
    assert_eq!(message, hex(INNER));
}

/// Damage anywhere in a message with a container and a second header: what is still read lies within it.
#[test]
fn views_of_damaged_messages_stay_within_them() {
    let bytes = hex(&format!("36ff002e000000010001008501100581 0100 0000{INNER}"));
    assert_eq!(Packet::new(&bytes).unwrap().header_len(), 20);
    damaged(&bytes, |bytes| {
        if let Ok(packet) = Packet::new(bytes) {
            assert!(packet.bytes().len() <= bytes.len());
            assert_eq!(packet.header_len() + packet.payload().len(), packet.bytes().len());
        }
    });
}
