//! tshark reads what we write: no message is malformed, and values are where it expects them.

use std::process::Command;

use crate::common;

#[test]
fn tshark_reads_every_message() {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "tshark is missing: scripts/setup.sh test");
        eprintln!("skipped: tshark is missing; scripts/setup.sh test installs it");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("openflow.pcap");
    // Link type 147 is the first of those that users assign.
    let mut capture: Vec<u8> =
        [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 147].into_iter().flat_map(u32::to_le_bytes).collect();
    let messages = common::messages();
    for message in &messages {
        let octets = message.encode(7).unwrap();
        let len = octets.len() as u32;
        capture.extend([0, 0, len, len].into_iter().flat_map(u32::to_le_bytes));
        capture.extend(octets);
    }
    std::fs::write(&file, capture).unwrap();
    let output = Command::new("tshark")
        // No settings of whoever runs the test.
        .env("HOME", folder.path())
        .env("XDG_CONFIG_HOME", folder.path())
        .arg("-nr")
        .arg(&file)
        .args(["-o", r#"uat:user_dlts:"User 0 (DLT=147)","openflow_v4","0","","0","""#])
        .args(["-T", "fields", "-E", "separator=|", "-e", "openflow_v4.type", "-e", "_ws.malformed"])
        .args(["-e", "openflow_v4.xid", "-e", "openflow_v4.flowmod.cookie"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), messages.len(), "{text}");
    for (line, message) in text.lines().zip(&messages) {
        let columns: Vec<_> = line.split('|').collect();
        let kind = message.encode(7).unwrap()[1].to_string();
        // A message inside a bundle has a type and a transaction, too.
        assert_eq!(columns[0].split(',').next(), Some(&kind[..]), "{line}: {message:?}");
        assert_eq!((columns[1], columns[2].split(',').next()), ("", Some("7")), "{line}: {message:?}");
        if let openflow::Message::FlowMod(flow_mod) = message {
            assert_eq!(columns[3], format!("0x{:016x}", flow_mod.cookie), "{line}");
        }
    }
}
