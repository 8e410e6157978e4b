//! tshark reads what we write. It looks into RRC containers too, so messages are compared that have none.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod common;

use std::process::Command;

use f1ap::Pdu;
use f1ap::message::UeContextSetupRequest;

/// Messages without octets of RRC.
fn messages() -> Vec<Pdu> {
    let without_rrc = |pdu| match pdu {
        Pdu::UeContextSetupRequest(mut request) => {
            let rrc = &mut request.cu_to_du_rrc_information;
            rrc.cg_config_info = None;
            rrc.ue_capability_rat_container_list = None;
            rrc.meas_config = None;
            rrc.handover_preparation_information = None;
            rrc.cell_group_config = None;
            Some(UeContextSetupRequest { rrc_container: None, ..request }.into())
        }
        Pdu::F1SetupResponse(_)
        | Pdu::F1SetupFailure(_)
        | Pdu::Reset(_)
        | Pdu::ResetAcknowledge(_)
        | Pdu::ErrorIndication(_)
        | Pdu::UeContextSetupFailure(_)
        | Pdu::UeContextReleaseRequest(_)
        | Pdu::UeContextReleaseComplete(_)
        | Pdu::UeContextModificationFailure(_)
        | Pdu::Paging(_) => Some(pdu),
        _ => None,
    };
    common::messages().into_iter().filter_map(without_rrc).collect()
}

#[test]
fn tshark_reads_names_and_values() {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "tshark is missing: scripts/setup.sh test");
        eprintln!("skipped: tshark is missing; scripts/setup.sh test installs it");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f1ap.pcap");
    // Link type 147 is the first of those that users assign.
    let mut capture: Vec<u8> =
        [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 147].into_iter().flat_map(u32::to_le_bytes).collect();
    let messages = messages();
    for message in &messages {
        let octets = message.encode().unwrap();
        let len = octets.len() as u32;
        capture.extend([0, 0, len, len].into_iter().flat_map(u32::to_le_bytes));
        capture.extend(octets);
    }
    std::fs::write(&file, capture).unwrap();
    let fields = ["GNB_CU_UE_F1AP_ID", "dRBID", "gTP_TEID", "qoSFlowIdentifier", "fiveQI", "sD"];
    let output = Command::new("tshark")
        // No settings of whoever runs the test.
        .env("HOME", folder.path())
        .env("XDG_CONFIG_HOME", folder.path())
        .arg("-nr")
        .arg(&file)
        .args(["-o", r#"uat:user_dlts:"User 0 (DLT=147)","f1ap","0","","0","""#])
        .args(["-T", "fields", "-E", "separator=|", "-e", "_ws.col.Info", "-e", "_ws.malformed"])
        .args(fields.iter().flat_map(|field| ["-e".to_owned(), format!("f1ap.{field}")]))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), messages.len(), "{text}");
    for (line, message) in text.lines().zip(&messages) {
        let columns: Vec<_> = line.split('|').collect();
        assert_eq!((columns[0].trim(), columns[1]), (message.name(), ""), "{line}");
        if matches!(message, Pdu::UeContextSetupRequest(_)) {
            let expected =
                ["4294836231", "1,32", "00000003,80000001,00000005", "9,63,0", "9,9,3,3,9", "0000ff,0000ff"];
            assert_eq!(columns[2..], expected, "{line}");
        }
    }
}
