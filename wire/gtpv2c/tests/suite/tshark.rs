//! tshark reads what we write: no message is malformed, and values are where it expects them.

use std::process::Command;

use crate::common;
use gtpv2c::message::*;
use gtpv2c::*;

/// A capture of UDP packets to port 2123; link type 101 is raw IP.
fn capture(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut out: Vec<u8> =
        [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101].into_iter().flat_map(u32::to_le_bytes).collect();
    for payload in payloads {
        let length = payload.len() as u16;
        let mut packet = vec![0x45, 0];
        packet.extend((length + 28).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0x08, 0x4b, 0x08, 0x4b]);
        packet.extend((length + 8).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(payload);
        let length = packet.len() as u32;
        out.extend([0, 0, length, length].into_iter().flat_map(u32::to_le_bytes));
        out.extend(packet);
    }
    out
}

/// One line for each packet, with these fields; `None` when there is no tshark.
fn dissect(payloads: &[Vec<u8>], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "tshark is missing: scripts/setup.sh test");
        eprintln!("skipped: tshark is missing; scripts/setup.sh test installs it");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gtpv2.pcap");
    std::fs::write(&file, capture(payloads)).unwrap();
    let output = Command::new("tshark")
        // No settings of whoever runs the test.
        .env("HOME", folder.path())
        .env("XDG_CONFIG_HOME", folder.path())
        .arg("-nr")
        .arg(&file)
        .args(["-T", "fields", "-E", "separator=|"])
        .args(fields.iter().flat_map(|field| ["-e", *field]))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

fn encoded(message: impl Into<Message>) -> Vec<u8> {
    let mut out = Vec::new();
    message.into().encode(0x1234, 0x56_789a, &mut out).unwrap();
    out
}

#[test]
fn tshark_reads_every_message() {
    let messages = common::messages();
    let payloads: Vec<_> = messages.iter().cloned().map(encoded).collect();
    let fields = ["gtpv2.message_type", "_ws.malformed", "gtpv2.seq", "gtpv2.teid", "_ws.expert.severity"];
    let Some(lines) = dissect(&payloads, &fields) else { return };
    assert_eq!(lines.len(), messages.len());
    for (line, message) in lines.iter().zip(&messages) {
        let teid = if message.message_type().has_teid() { "0x00001234" } else { "" };
        assert_eq!(line[0], (message.message_type() as u8).to_string());
        assert_eq!(
            (line[1].as_str(), line[2].as_str(), line[3].as_str()),
            ("", "0x56789a", teid),
            "{message:?}"
        );
        // Expert information from warning on.
        let severe =
            line[4].split(',').filter_map(|severity| severity.parse::<u32>().ok()).max().unwrap_or(0);
        assert!(severe < 0x0060_0000, "{severe:#x}: {message:?}");
    }
}

#[test]
fn tshark_finds_the_values_where_they_are() {
    let expected = [
        ("e212.imsi", "999700000000001"),
        ("e164.msisdn", "491701234567"),
        ("gtpv2.mei", "3534900698733190"),
        ("gtpv2.tai_tac", "0x1234"),
        ("gtpv2.ecgi_eci", "19088743"),
        ("gtpv2.rat_type", "6"),
        ("gtpv2.apn", "internet.mnc070.mcc999.gprs"),
        ("gtpv2.selec_mode", "1"),
        ("gtpv2.pdn_type", "3,3"),
        ("gtpv2.ambr_up", "50000"),
        ("gtpv2.ambr_down", "100000"),
        ("gtpv2.ebi", "5,5,6,7"),
        ("gtpv2.bearer_qos_label_qci", "9"),
        ("gtpv2.bearer_qos_pci", "1"),
        ("gtpv2.bearer_qos_pl", "9"),
        ("gtpv2.bearer_qos_pvi", "0"),
        ("gtpv2.f_teid_interface_type", "10,7,0,4,5,38"),
        ("gtpv2.f_teid_gre_key", "0x00000001,0x00000000,0x00000002,0x00000003,0x00000004,0x00000005"),
        ("gtpv2.f_teid_ipv6", "2001:db8::7"),
        ("gtpv2.rec", "17"),
        ("gtpv2.daf", "1"),
        ("gtpv2.dtf", "0"),
        ("gtpv2.ps", "1"),
        ("gtpv2.s6af", "1"),
        ("gtpv2.epcosi", "1"),
        ("gtpv2.lapi", "1"),
    ];
    let fields = expected.map(|(field, _)| field);
    let Some(lines) = dissect(&[encoded(common::create_session_request())], &fields) else { return };
    for ((field, expected), found) in expected.iter().zip(&lines[0]) {
        // Newer versions write flags as words.
        let found = found.replace("True", "1").replace("False", "0");
        assert_eq!(&found, expected, "{field}");
    }
}

#[test]
fn tshark_reads_causes_rates_and_templates() {
    let rejected = CreateSessionResponse {
        cause: Cause {
            from_remote: true,
            offending_ie: Some(OffendingIe::new(ie::F_TEID, 1)),
            ..CauseValue::MANDATORY_IE_MISSING.into()
        },
        ..Default::default()
    };
    let payloads = [encoded(rejected), encoded(common::create_bearer_request())];
    let fields = [
        "gtpv2.cause",
        "gtpv2.cs",
        "gtpv2.cause_off_ie_t",
        "gtpv2.bearer_qos_mbr_up",
        "gtpv2.bearer_qos_gbr_up",
        "gsm_a.gm.sm.tft.op_code",
        "gsm_a.gm.sm.tft.pkt_flt",
        "gsm_a.gm.sm.tft.pkt_flt_dir",
        "gsm_a.gm.sm.tft.packet_evaluation_precedence",
        "gsm_a.gm.sm.tft.protocol_header",
        "gsm_a.gm.sm.tft.port_low",
        "gsm_a.gm.sm.tft.port_high",
        "gsm_a.gm.sm.tft.port",
    ];
    let Some(lines) = dissect(&payloads, &fields) else { return };
    let cause: Vec<_> = lines[0][..3].iter().map(|value| value.replace("True", "1")).collect();
    assert_eq!(cause, ["70", "1", "87"]);
    assert_eq!(lines[1][3..5], [(1_u64 << 38).to_string(), (1_u64 << 37).to_string()]);
    let template: Vec<_> = lines[1][5..].iter().map(|value| value.trim_start_matches("0x0")).collect();
    assert_eq!(template, ["1", "1", "3", "7", "0x11", "5000", "5010", "4000"]);
}

#[test]
fn tshark_sees_both_messages_of_a_datagram() {
    let message_type = MessageType::CreateSessionResponse;
    let header = Header { message_type, teid: Some(1), sequence: 1, piggybacking: true, priority: Some(3) };
    let mut datagram = Vec::new();
    Message::from(common::create_session_response()).encode_with(header, &mut datagram).unwrap();
    Message::from(common::create_bearer_request()).encode(1, 2, &mut datagram).unwrap();
    let fields = ["gtpv2.message_type", "gtpv2.seq", "gtpv2.mp", "_ws.malformed"];
    let Some(lines) = dissect(&[datagram], &fields) else { return };
    assert_eq!(lines[0][0], "33,95");
    assert_eq!(lines[0][1], "0x000001,0x000002");
    assert_eq!(lines[0][3], "");
}
