//! tshark reads what [`l2::rlc`] writes: headers, statuses, and segments, which it puts together.
//!
//! PDUs are framed as Wireshark's RLC-NR dissector wants them in UDP (its file packet-rlc-nr.h): a signature, the mode, the
//! length of sequence numbers, tagged values, the PDU.

use crate::wireshark::{datagram, present, read};
use l2::rlc::am::pdu::{END_OF_SDU, Nack, Status};
use l2::rlc::{am, um};

/// Modes of the framing.
const UM: u8 = 2;
const AM: u8 = 4;

/// A PDU of a data bearer in its framing.
fn frame(mode: u8, sn_bits: u8, pdu: &[u8]) -> Vec<u8> {
    // Downlink; UE 1; DRB 1; the payload.
    [b"rlc-nr", &[mode, sn_bits, 2, 1, 3, 0, 1, 4, 5, 5, 1, 1][..], pdu].concat()
}

const PREFERENCES: [&str; 1] = ["rlc-nr.reassemble_am_frames:TRUE"];

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// SDUs that are IP packets, and PDUs as grants of some sizes make them.
fn sdus() -> Vec<Vec<u8>> {
    (0..80usize).map(|n| datagram(&format!("packet {n} ").into_bytes().repeat(1 + n % 40), 7777)).collect()
}

const GRANTS: [usize; 5] = [60, 9_000, 33, 200, 9_000];

/// tshark 4.0 ends by an assertion when it is to put UM segments together, so that is done here with the data that it shows.
#[test]
fn tshark_reads_um_segments() {
    if !present() {
        return;
    }
    for (bits, length) in [(6, um::SnLength::Bits6), (12, um::SnLength::Bits12)] {
        let mut tx = um::Tx::new(length, 1 << 20);
        sdus().into_iter().for_each(|sdu| tx.push(sdu, ()).unwrap());
        let (mut frames, mut expected) = (Vec::new(), Vec::new());
        for grant in GRANTS.into_iter().cycle() {
            let mut pdu = Vec::new();
            if tx.pull(grant, &mut pdu).is_none() {
                break;
            }
            let (si, sn, so) = match um::Header::parse(&pdu, length).unwrap().0 {
                um::Header::Whole => (0, String::new(), String::new()),
                um::Header::Segment { si: l2::rlc::SegmentInfo::First, sn, .. } => {
                    (1, sn.to_string(), String::new())
                }
                um::Header::Segment { si: l2::rlc::SegmentInfo::Last, sn, so } => {
                    (2, sn.to_string(), so.to_string())
                }
                um::Header::Segment { sn, so, .. } => (3, sn.to_string(), so.to_string()),
            };
            expected.push((si, sn, so));
            frames.push(frame(UM, bits, &pdu));
        }
        assert!(frames.len() > 150);
        let fields = ["rlc-nr.um.si", "rlc-nr.um.sn", "rlc-nr.um.so", "rlc-nr.um.data", "_ws.expert.message"];
        let mut whole = vec![String::new()];
        for (number, read) in read(&frames, "rlc_nr_udp", &PREFERENCES, &fields).into_iter().enumerate() {
            let (si, sn, so) = &expected[number];
            let value = |at: usize| u32::from_str_radix(read[at].trim_start_matches("0x"), 16);
            assert_eq!(value(0), Ok(*si), "{number}: {read:?}");
            assert_eq!((&read[1], &read[2], &read[4][..]), (sn, so, ""), "{number}");
            whole.last_mut().unwrap().push_str(&read[3]);
            if [0, 2].contains(si) {
                whole.push(String::new());
            }
        }
        whole.pop();
        let sent: Vec<_> = sdus().iter().map(|sdu| hex(sdu)).collect();
        assert_eq!(whole, sent, "{bits} bits");
    }
}

#[test]
fn tshark_puts_am_segments_together() {
    if !present() {
        return;
    }
    for (bits, sn) in [(12, am::SnLength::Bits12), (18, am::SnLength::Bits18)] {
        let config = am::Config { sn, poll_pdu: Some(7), ..am::Config::SIGNALLING };
        let mut entity = am::Entity::new(config);
        sdus().into_iter().for_each(|sdu| entity.push(sdu, ()).unwrap());
        let (mut frames, mut expected) = (Vec::new(), Vec::new());
        for grant in GRANTS.into_iter().cycle() {
            let mut pdu = Vec::new();
            if entity.pull(grant, 0, &mut pdu).is_none() {
                break;
            }
            let Ok(am::pdu::Pdu::Data(header, _)) = am::pdu::Pdu::parse(&pdu, sn) else { unreachable!() };
            expected.push(header);
            frames.push(frame(AM, bits, &pdu));
        }
        let fields = [
            "rlc-nr.am.sn",
            "rlc-nr.am.p",
            "rlc-nr.am.so",
            "rlc-nr.am.si",
            "rlc-nr.am.data",
            "rlc-nr.reassembled.data",
            "_ws.expert.message",
        ];
        let mut whole = Vec::new();
        for (header, read) in expected.iter().zip(read(&frames, "rlc_nr_udp", &PREFERENCES, &fields)) {
            let poll = ["1", "True"].contains(&read[1].as_str());
            assert_eq!((&read[0], poll, &read[6][..]), (&header.sn.to_string(), header.poll, ""), "{read:?}");
            let so = if header.so == 0 { String::new() } else { header.so.to_string() };
            assert_eq!(read[2], so);
            let is_whole = header.si == l2::rlc::SegmentInfo::Whole;
            let sdu = if is_whole { &read[4] } else { &read[5] };
            if !sdu.is_empty() {
                whole.push(sdu.clone());
            }
        }
        let sent: Vec<_> = sdus().iter().map(|sdu| hex(sdu)).collect();
        assert_eq!(whole, sent, "{bits} bits");
    }
}

#[test]
fn tshark_reads_a_status() {
    if !present() {
        return;
    }
    for (bits, length) in [(12, am::SnLength::Bits12), (18, am::SnLength::Bits18)] {
        let nack = |sn, range, part| Nack { sn, range, part };
        let status = Status {
            ack_sn: 4_001,
            nacks: vec![
                nack(17, 1, None),
                nack(1_029, 1, Some((12, 500))),
                nack(2_048, 200, None),
                nack(4_000, 1, Some((7, END_OF_SDU))),
            ],
        };
        let mut pdus = [Vec::new(), Vec::new()];
        status.write(length, &mut pdus[0]);
        Status { ack_sn: 4_095, nacks: Vec::new() }.write(length, &mut pdus[1]);
        let frames = pdus.map(|pdu| frame(AM, bits, &pdu));
        let fields = [
            "rlc-nr.am.ack-sn",
            "rlc-nr.am.nack-sn",
            "rlc-nr.am.so-start",
            "rlc-nr.am.so-end",
            "rlc-nr.am.nack-range",
            "rlc-nr.bytes-after-status-pdu-complete",
        ];
        let reads = read(&frames, "rlc_nr_udp", &PREFERENCES, &fields);
        // It lists all SDUs of a range.
        let first: Vec<&str> = reads[0][1].split(',').collect();
        assert_eq!((first[0], first[1], first[2]), ("17", "1029", "2048"), "{reads:?}");
        assert_eq!(first.last(), Some(&"4000"));
        assert_eq!(reads[0][0], "4001");
        assert_eq!((&reads[0][2][..], &reads[0][3][..], &reads[0][4][..]), ("12,7", "500,65535", "200"));
        assert_eq!(reads[1][..5], ["4095", "", "", "", ""]);
        assert!(reads.iter().all(|read| read[5].is_empty()));
    }
}
