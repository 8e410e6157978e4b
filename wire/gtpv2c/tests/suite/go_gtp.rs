//! Against go-gtp, an independent implementation: we read what it writes, and it reads what we write. The program is in
//! `go-gtp/`; Go fetches the library, so the test needs Go and, the first time, the network.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::common;
use gtpv2c::message::*;
use gtpv2c::tft::{Component, Direction, Operation, PacketFilter, Tft};
use gtpv2c::*;

fn go() -> Command {
    let mut command = Command::new("go");
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go-gtp"));
    // This toolchain, this folder, no C compiler, no version control.
    for (name, value) in
        [("GOTOOLCHAIN", "local"), ("GOWORK", "off"), ("CGO_ENABLED", "0"), ("GOFLAGS", "-buildvcs=false")]
    {
        command.env(name, value);
    }
    command
}

fn build() -> Result<PathBuf, String> {
    go().arg("version").output().map_err(|_| "Go is missing".to_owned())?;
    let fetched = go().args(["mod", "download"]).output().unwrap();
    if !fetched.status.success() {
        return Err(format!("Go cannot fetch go-gtp: {}", String::from_utf8_lossy(&fetched.stderr)));
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-gtp");
    let built = go().args(["build", "-o"]).arg(&file).arg(".").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(file)
}

/// The program, built once for both tests; `None` when it cannot be built here: `scripts/setup.sh` installs no Go.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PROGRAM.get_or_init(build) {
        Ok(file) => Some(file),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn octets(line: &str) -> Vec<u8> {
    (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).expect(line)).collect()
}

fn plmn(mcc: &str, mnc: &str) -> types::Plmn {
    types::Plmn::new(mcc, mnc).unwrap()
}

fn f_teid(interface: InterfaceType, teid: u32, address: &str) -> FTeid {
    FTeid::new(interface, teid, address.parse().unwrap())
}

fn accepted() -> Cause {
    CauseValue::ACCEPTED.into()
}

#[test]
fn we_read_what_go_gtp_writes() {
    let Some(program) = program() else { return };
    let output = Command::new(program).arg("make").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = expected();
    assert_eq!(text.lines().count(), expected.len());
    for (line, (teid, sequence, message)) in text.lines().zip(expected) {
        let (header, found) = Message::decode(&octets(line)).unwrap();
        assert_eq!((header.teid, header.sequence), (teid, sequence));
        assert_eq!(found, message);
    }
}

/// What go-gtp has read and written again means the same; it does not know the types of some messages.
#[test]
fn go_gtp_reads_what_we_write() {
    let Some(program) = program() else { return };
    let mut messages = common::messages();
    // go-gtp wants twelve octets, and this message has eight.
    messages.retain(|message| !matches!(message, Message::VersionNotSupportedIndication(_)));
    for message in &mut messages {
        // It keeps one of several IEs here, although a notification may name several bearers.
        if let Message::DownlinkDataNotification(notification) = message {
            notification.ebis.truncate(1);
        }
    }
    let mut lines = String::new();
    for message in &messages {
        let mut out = Vec::new();
        message.encode(0x0102_0304, 0x05_0607, &mut out).unwrap();
        lines.extend(out.iter().map(|octet| format!("{octet:02x}")));
        lines.push('\n');
    }
    let mut child =
        Command::new(program).arg("read").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Both pipes are served at once: neither side may wait for the other.
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), messages.len());
    for (line, message) in text.lines().zip(&messages) {
        assert!(!line.starts_with("error"), "{line}: {message:?}");
        let (header, found) =
            Message::decode(&octets(line)).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(header.sequence, 0x05_0607);
        assert_eq!(&found, message);
    }
}

/// The messages of `main.go`, in its order.
fn expected() -> Vec<(Option<u32>, u32, Message)> {
    vec![
        (None, 7, EchoRequest { recovery: Recovery(42), node_features: None }.into()),
        (Some(0), 1, create_session_request().into()),
        (Some(10), 1, create_session_response().into()),
        (
            Some(11),
            8,
            ModifyBearerRequest {
                bearers_to_be_modified: vec![BearerToBeModified {
                    ebi: Ebi(5),
                    s1u_enb_f_teid: Some(f_teid(InterfaceType::S1U_ENB, 0x0a0b_0c0d, "10.0.0.3")),
                    ..Default::default()
                }],
                notification_delay: Some(DelayValue(2)),
                ..Default::default()
            }
            .into(),
        ),
        (Some(11), 2, create_bearer_request().into()),
        (
            Some(12),
            9,
            DeleteSessionResponse {
                cause: Cause {
                    pdn_connection_error: true,
                    from_remote: true,
                    offending_ie: Some(OffendingIe::new(ie::EBI, 0)),
                    ..CauseValue::MANDATORY_IE_MISSING.into()
                },
                recovery: Some(Recovery(1)),
                ..Default::default()
            }
            .into(),
        ),
        (
            Some(13),
            10,
            DownlinkDataNotification {
                ebis: vec![Ebi(6)],
                arp: Some(Arp { pci: false, pl: 3, pvi: true }),
                ..Default::default()
            }
            .into(),
        ),
        (
            Some(14),
            11,
            DownlinkDataNotificationAcknowledge {
                cause: accepted(),
                low_priority_throttling: Some(Throttling {
                    delay: EpcTimer { unit: 1, value: 3 },
                    factor: 40,
                }),
                ..Default::default()
            }
            .into(),
        ),
    ]
}

fn create_session_request() -> CreateSessionRequest {
    let sender = FTeid {
        ipv6: Some("2001:db8::1".parse().unwrap()),
        ..f_teid(InterfaceType::S11_MME, u32::MAX, "10.0.0.1")
    };
    let prefix = Ipv6Prefix { address: "2001:db8:1::1".parse().unwrap(), length: 64 };
    CreateSessionRequest {
        imsi: Some("999700000000001".parse().unwrap()),
        msisdn: Some(common::digits("491701234567")),
        mei: Some(common::digits("3534900698733190")),
        uli: Some(Uli { cgi: Some([0x99, 0xf9, 0x07, 0, 1, 0, 2]), ..common::uli() }),
        serving_network: Some(plmn("001", "001")),
        rat_type: RatType::EUTRAN,
        indication: Some(Indication::DAF | Indication::PS),
        sender_f_teid: sender,
        pgw_f_teid: Some(f_teid(InterfaceType::S5S8_PGW_GTPC, 0, "10.0.0.2")),
        apn: "internet.example".into(),
        selection_mode: Some(SelectionMode::Verified),
        pdn_type: Some(PdnType::Ipv4v6),
        paa: Some(Paa::Ipv4v6([10, 45, 0, 2].into(), prefix)),
        max_apn_restriction: Some(ApnRestriction(0)),
        apn_ambr: Some(Ambr { uplink_kbps: 50_000, downlink_kbps: 100_000 }),
        bearers_to_be_created: vec![BearerToBeCreated {
            ebi: Ebi(5),
            qos: common::qos(9, 0),
            ..Default::default()
        }],
        recovery: Some(Recovery(3)),
        mme_fq_csid: Some(FqCsid { node: CsidNode::Ipv4([10, 0, 0, 1].into()), csids: vec![1, 2] }),
        charging_characteristics: Some(ChargingCharacteristics(0x0800)),
        ue_time_zone: Some(UeTimeZone { time_zone: 0x40, daylight_saving: 1 }),
        ..Default::default()
    }
}

fn create_session_response() -> CreateSessionResponse {
    CreateSessionResponse {
        cause: CauseValue::ACCEPTED_PARTIALLY.into(),
        sender_f_teid: Some(f_teid(InterfaceType::S11_S4_SGW, 1, "10.0.0.2")),
        pgw_f_teid: Some(f_teid(InterfaceType::S5S8_PGW_GTPC, 2, "10.0.0.3")),
        paa: Some(Paa::Ipv4([10, 45, 0, 2].into())),
        bearers_created: vec![BearerCreated {
            ebi: Ebi(5),
            cause: accepted(),
            s1u_sgw_f_teid: Some(f_teid(InterfaceType::S1U_SGW, 3, "10.0.0.2")),
            s5s8u_pgw_f_teid: Some(f_teid(InterfaceType::S5S8_PGW_GTPU, 4, "2001:db8::3")),
            charging_id: Some(ChargingId(7)),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn create_bearer_request() -> CreateBearerRequest {
    let filters = vec![
        PacketFilter {
            id: 1,
            direction: Direction::Bidirectional,
            precedence: 10,
            components: vec![
                Component::Ipv4Remote { address: [192, 0, 2, 1].into(), mask: [255; 4].into() },
                Component::Protocol(17),
                Component::RemotePorts(5000, 5010),
            ],
        },
        PacketFilter {
            id: 2,
            direction: Direction::Downlink,
            precedence: 11,
            components: vec![
                Component::Ipv6Local { address: "2001:db8:1::".parse().unwrap(), prefix_length: 64 },
                Component::LocalPort(4000),
                Component::TypeOfService { value: 0xb8, mask: 0xfc },
                Component::FlowLabel(0xa_bcde),
                Component::SecurityParameterIndex(9),
            ],
        },
    ];
    let tft = Tft { operation: Operation::Create(filters), parameters: Vec::new() };
    let flow = FlowQos {
        qci: 1,
        mbr_uplink_kbps: 128,
        mbr_downlink_kbps: 129,
        gbr_uplink_kbps: 1 << 39,
        gbr_downlink_kbps: 131,
    };
    CreateBearerRequest {
        pti: Some(Pti(77)),
        linked_ebi: Ebi(5),
        bearers: vec![BearerInCreateRequest {
            ebi: Ebi(0),
            tft: tft.encode().unwrap(),
            s5s8u_pgw_f_teid: Some(f_teid(InterfaceType::S5S8_PGW_GTPU, 5, "10.0.0.3")),
            qos: BearerQos { arp: Arp { pci: false, pl: 2, pvi: true }, flow },
            ..Default::default()
        }],
        ..Default::default()
    }
}
