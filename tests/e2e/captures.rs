//! Other programs must be able to read what the core writes with `--pcap`: tshark finds nothing
//! malformed, scapy reads our PFCP.

use std::path::Path;

use net::process::Command;
use net::time::Duration;

use testkit::world::{establish, id, network, ping, request};

/// The captured interfaces, with the protocols that each capture must contain.
const POINTS: [(&str, &[&str]); 5] = [
    ("n2", &["sctp", "ngap", "nas-5gs"]),
    ("n3", &["gtp", "icmp"]),
    ("n4", &["pfcp"]),
    ("n6", &["ip", "icmp"]),
    ("sbi", &["tcp", "http2"]),
];

/// Whether tshark is installed. In CI it must be.
pub(crate) fn has_tshark() -> bool {
    let found = net::capability::program("tshark").is_some();
    if !found {
        assert!(std::env::var_os("CI").is_none(), "tshark is missing: scripts/setup.sh test");
        eprintln!("captures are not looked at: tshark is missing; scripts/setup.sh test installs it");
    }
    found
}

/// Runs tshark over a capture with a display filter and returns the lines it prints.
pub(crate) async fn tshark(file: &Path, filter: &str) -> Vec<String> {
    tshark_with(file, &[], filter).await
}

/// As [`tshark`], with further arguments.
pub(crate) async fn tshark_with(file: &Path, arguments: &[&str], filter: &str) -> Vec<String> {
    let output = Command::new("tshark")
        // With NEA0 "ciphered" NAS is readable, but only with this option.
        .args(["-n", "-d", "tcp.port==7777,http2", "-o", "nas-5gs.null_decipher:TRUE", "-r"])
        .arg(file)
        .args(["-Y", filter])
        .args(arguments)
        .output(Duration::from_secs(60))
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn captures_decode_without_a_malformed_packet() {
    if !has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().to_owned();
    let capture = |options: &mut lab::Options| {
        options.pcap = Some(pcap);
        // Without ciphering, so that tshark reads NAS.
        options.edit = Box::new(|configuration| {
            configuration["amf"]["ciphering"] = serde_json::json!(["NEA0", "NEA2", "NEA1"]);
        });
    };
    network(capture, async |world| {
        let gnb = world.gnb(0).await;
        for index in 0..2 {
            let mut ue = world.ue(&gnb, index);
            ue.register().await.unwrap();
            establish(&mut ue, 1).await.unwrap();
            ping(&mut ue, 1).await;
            let mut dual = request(2);
            dual.session_type = types::PduSessionType::Ipv4v6;
            ue.establish_session(dual).await.unwrap();
            ue.solicit_router(id(2)).await.unwrap();
            ue.release_session(id(1)).await.unwrap();
            ue.deregister(false).await.unwrap();
        }
        // The captures also contain a refusal and a second registration.
        assert!(world.ue(&gnb, 500).register().await.is_err());
        world.ue_with(&gnb, 3, |config| config.sqn = 1 << 20).register().await.unwrap();
    });
    // The core has ended regularly, so the captures are complete.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for (point, protocols) in POINTS {
            let file = folder.path().join(format!("{point}.pcapng"));
            assert!(
                file.exists(),
                "{point}: no capture in {:?}",
                std::fs::read_dir(folder.path()).unwrap().count()
            );
            let malformed = tshark(&file, "_ws.malformed || _ws.short").await;
            assert!(malformed.is_empty(), "{point}: {malformed:#?}");
            for protocol in protocols {
                assert!(!tshark(&file, protocol).await.is_empty(), "{point}: no {protocol}");
            }
        }
        let n2 = folder.path().join("n2.pcapng");
        for message in [
            "nas_5gs.mm.message_type == 0x41",
            "nas_5gs.mm.message_type == 0x42",
            "nas_5gs.sm.message_type == 0xc2",
        ] {
            assert!(!tshark(&n2, message).await.is_empty(), "no {message} that tshark can read");
        }
        scapy_reads(&folder.path().join("n4.pcapng")).await;
    });
}

/// Every PFCP message we sent: scapy decodes all of it and encodes it to the same octets.
async fn scapy_reads(file: &Path) {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    if !python.exists() {
        assert!(std::env::var_os("CI").is_none(), "scapy is missing: scripts/setup.sh test");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pfcp_capture.py");
    let output = Command::new(&python).arg(script).arg(file).output(Duration::from_secs(60)).await.unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
