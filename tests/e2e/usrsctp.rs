//! N2 with an independent SCTP implementation: a gNB on Debian's libusrsctp sets NG up and starts a registration.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nas::Message;
use ngap::{Pdu, RanUeNgapId};
use testkit::world::plain;

/// Compiles the program that carries the gNB's messages; `None` if libusrsctp is missing and `CI` is
/// not set.
fn carrier() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("usrsctp_gnb.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("usrsctp_gnb");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-o"])
        .args([&program, &source])
        .arg("-lusrsctp")
        .status()
        .unwrap();
    if !compiled.success() {
        assert!(std::env::var_os("CI").is_none(), "libusrsctp is missing: scripts/setup.sh test");
        eprintln!("skipped: libusrsctp-dev is missing; scripts/setup.sh test installs it");
        return None;
    }
    Some(program)
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn octets(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn a_gnb_on_another_sctp_sets_ng_up_and_starts_a_registration() {
    let Some(program) = carrier() else { return };
    plain(async |world| {
        // A gNB of ours encodes the messages; the other SCTP carries them.
        let gnb = world.gnb(0).await;
        let request = world.ue(&gnb, 0).registration_request().unwrap();
        let other = world.config.gnb(7);
        let location = gnb.location();
        gnb.shutdown().await;
        let slices = ngap::PlmnSlices { plmn: other.plmn, slices: other.slices.clone() };
        let id = ngap::GnbId::new(other.id, 24).unwrap();
        let setup = Pdu::from(ngap::NgSetupRequest {
            global_ran_node_id: ngap::GlobalRanNodeId::Gnb { plmn: other.plmn, id },
            ran_node_name: Some("usrsctp".to_owned()),
            supported_tas: vec![ngap::SupportedTa { tac: other.tac, broadcast_plmns: vec![slices] }],
            default_paging_drx: ngap::PagingDrx::V128,
        });
        let initial = Pdu::from(ngap::InitialUeMessage {
            ran_ue_ngap_id: RanUeNgapId(1),
            nas_pdu: Message::RegistrationRequest(request).encode().unwrap().into(),
            user_location: location,
            rrc_establishment_cause: ngap::RrcEstablishmentCause::MoSignalling,
            s_tmsi: None,
            amf_set_id: None,
            ue_context_request: true,
            allowed_nssai: None,
        });
        let lines = format!("0 {}\n1 {}\n", hex(&setup.encode().unwrap()), hex(&initial.encode().unwrap()));
        // The thread of the test is in the RAN's namespace, and so is the program it starts.
        let mut child = Command::new(&program)
            .args([&lab::CORE_N2.to_string(), "38412", "2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
        let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).unwrap();
        let answers: Vec<Vec<&str>> = said.lines().map(|line| line.split(' ').collect()).collect();
        let [setup, authentication] = &answers[..] else { panic!("two answers, not {said}") };
        // Non-UE signalling on stream 0, PPID 60 (TS 38.412 §7).
        assert_eq!(setup[..2], ["0", "60"]);
        let setup = Pdu::decode(&octets(setup[2])).unwrap().pdu;
        assert!(matches!(setup, Pdu::NgSetupResponse(_)), "{setup:?}");
        assert_eq!(authentication[1], "60");
        assert_ne!(authentication[0], "0", "UE signalling has streams of its own");
        let Pdu::DownlinkNasTransport(transport) = Pdu::decode(&octets(authentication[2])).unwrap().pdu
        else {
            panic!("a NAS message comes back");
        };
        assert_eq!(transport.ran_ue_ngap_id, RanUeNgapId(1));
        let message = Message::decode(&transport.nas_pdu).unwrap().message;
        assert!(matches!(message, Message::AuthenticationRequest(_)), "{message:?}");
    });
}
