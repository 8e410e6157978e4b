//! tshark reads what we write. It is a second opinion beside pycrate's, and what people see who look at a capture.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

mod common;

use std::process::Command;

use common::*;

/// A message as tshark sees it: its name, whether anything in it is malformed, and the values of the fields.
type Seen = (String, bool, Vec<String>);

/// Reads messages of one channel; `None` if there is no tshark.
fn tshark(dissector: &str, messages: &[Vec<u8>], fields: &[&str]) -> Option<Vec<Seen>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "tshark is missing: scripts/setup.sh test");
        eprintln!("skipped: tshark is missing; scripts/setup.sh test installs it");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rrc.pcap");
    // Link type 147 is the first of those that users assign.
    let mut capture = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 147] {
        capture.extend(word.to_le_bytes());
    }
    for message in messages {
        for word in [0, 0, message.len() as u32, message.len() as u32] {
            capture.extend(word.to_le_bytes());
        }
        capture.extend_from_slice(message);
    }
    std::fs::write(&file, capture).unwrap();
    let output = Command::new("tshark")
        // No settings of whoever runs the test.
        .env("HOME", folder.path())
        .env("XDG_CONFIG_HOME", folder.path())
        .arg("-n")
        .arg("-r")
        .arg(&file)
        .args(["-o", &format!(r#"uat:user_dlts:"User 0 (DLT=147)","{dissector}","0","","0","""#)])
        .args(["-T", "fields", "-E", "separator=|", "-e", "_ws.col.Info", "-e", "_ws.malformed"])
        .args(fields.iter().flat_map(|field| ["-e", field]))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let seen: Vec<Seen> = text
        .lines()
        .map(|line| {
            let mut columns = line.split('|').map(str::to_owned);
            let (name, malformed) = (columns.next().unwrap(), !columns.next().unwrap().is_empty());
            (name, malformed, columns.collect())
        })
        .collect();
    assert_eq!(seen.len(), messages.len(), "{text}");
    Some(seen)
}

/// The octets of a named sample.
fn octets(name: &str) -> Vec<u8> {
    let (_, value) = samples().into_iter().find(|(known, _)| *known == name).unwrap();
    value.encode().unwrap().to_vec()
}

#[test]
fn every_message_has_its_name_and_is_well_formed() {
    let channels = [
        ("UL-CCCH", "nr-rrc.ul.ccch"),
        ("DL-CCCH", "nr-rrc.dl.ccch"),
        ("UL-DCCH", "nr-rrc.ul.dcch"),
        ("DL-DCCH", "nr-rrc.dl.dcch"),
        ("PCCH", "nr-rrc.pcch"),
        ("BCCH-BCH", "nr-rrc.bcch.bch"),
        ("BCCH-DL-SCH", "nr-rrc.bcch.dl.sch"),
    ];
    for (channel, dissector) in channels {
        let samples: Vec<_> = samples().into_iter().filter(|(_, value)| value.channel() == channel).collect();
        let messages: Vec<_> = samples.iter().map(|(_, value)| value.encode().unwrap().to_vec()).collect();
        let Some(seen) = tshark(dissector, &messages, &[]) else { return };
        for ((name, _), (info, malformed, _)) in samples.iter().zip(seen) {
            let expected = name.split(' ').next().unwrap().to_lowercase();
            let info = info.replace(' ', "");
            assert!(!malformed && info.to_lowercase().starts_with(&expected), "{name}: {info}");
        }
    }
}

#[test]
fn values_are_where_tshark_expects_them() {
    let check = |dissector: &str, name: &str, expected: &[(&str, &str)]| {
        let fields: Vec<_> = expected.iter().map(|(field, _)| *field).collect();
        let Some(seen) = tshark(dissector, &[octets(name)], &fields) else { return };
        for ((field, value), read) in expected.iter().zip(&seen[0].2) {
            assert_eq!(read, value, "{name}: {field}");
        }
    };
    check(
        "nr-rrc.dl.dcch",
        "rrcReconfiguration",
        &[
            ("nr-rrc.rrc_TransactionIdentifier", "3"),
            // The last two stand in the CellGroupConfigs.
            ("nr-rrc.drb_Identity", "1,32,29,29"),
            ("nr-rrc.pdu_Session", "1"),
            ("nr-rrc.sdap_HeaderDL", "0"),
            ("nr-rrc.sdap_HeaderUL", "1"),
            ("nr-rrc.defaultDRB", "1"),
            ("nr-rrc.QFI", "1,63,9"),
            ("nr-rrc.pdcp_SN_SizeUL", "1"),
            ("nr-rrc.pdcp_SN_SizeDL", "0"),
            ("nr-rrc.t_Reordering", "35,0,20"),
            ("nr-rrc.cipheringDisabled", "0"),
            ("nr-rrc.cipheringAlgorithm", "2"),
            ("nr-rrc.keyToUse", "1"),
            ("nr-rrc.logicalChannelIdentity", "1,32,1,32"),
            ("nr-rrc.fullConfig", "0"),
            ("nas_5gs.mm.message_type", "0x43,0x55"),
        ],
    );
    check(
        "nr-rrc.ul.dcch",
        "rrcSetupComplete",
        &[
            ("nr-rrc.selectedPLMN_Identity", "12"),
            ("nr-rrc.amf_Identifier", "02556a"),
            ("nr-rrc.guami_Type", "1"),
            ("nas_5gs.mm.message_type", "0x43"),
        ],
    );
    check(
        "nr-rrc.dl.dcch",
        "securityModeCommand",
        &[("nr-rrc.cipheringAlgorithm", "2"), ("nr-rrc.integrityProtAlgorithm", "2")],
    );
    check(
        "nr-rrc.bcch.dl.sch",
        "sib1",
        &[("nr-rrc.trackingAreaCode", "0a0b0c"), ("nr-rrc.cellIdentity", "1234567890")],
    );
}
