//! tshark reads what a gNB in parts writes with `--pcap`. Without keys: F1AP, and RRC up to the security mode; all that comes
//! behind it on F1-C, and all packets of UEs on F1-U, are ciphered. With the UE's keys: these as well.

use std::path::Path;

use hmac::{Hmac, KeyInit as _, Mac as _};
use l2::pdcp::{Config, SnLength};
use l2::sdap::DrbId;
use l2::security::Direction;
use packet::gtpu;
use packet::nr_u::Message;
use sha2::Sha256;
use types::Key;

use testkit::world::{establish, network};

use crate::captures::{has_tshark, tshark, tshark_with};
use crate::talk::{Talk, Way, content};

#[path = "../../wire/l2/tests/wireshark/pdcp.rs"]
mod pdcp;
#[path = "../../wire/l2/tests/wireshark/mod.rs"]
#[allow(dead_code, reason = "parts of it are for the tests of l2 only")]
mod wireshark;

/// The captures of the CU, with what each must contain. Session and NR RAN containers are GTP-U's extension headers.
const POINTS: [(&str, &[&str]); 4] = [
    (
        "f1c",
        &["f1ap", "nr-rrc", "f1ap.procedureCode == 1", "f1ap.procedureCode == 5", "f1ap.procedureCode == 6"],
    ),
    ("f1u", &["gtp", "nrup.pdu_type == 0", "nrup.pdu_type == 1"]),
    ("n2", &["ngap", "nas-5gs", "nas_5gs.mm.message_type == 0x42"]),
    ("n3", &["gtp.ext_hdr.pdu_ses_con.qos_flow_id", "gtp && udp.port == 4242"]),
];

/// RRC messages that nothing hides, in a first registration (TS 38.331 §5.3.3, §5.3.4, §5.7).
const READABLE: [&str; 7] = [
    "rrcSetupRequest",
    "rrcSetup",
    "rrcSetupComplete",
    "dlInformationTransfer",
    "ulInformationTransfer",
    "securityModeCommand",
    "securityModeComplete",
];

/// What comes behind the security mode, to be read with keys only: RRC messages, and the NAS messages in them.
const CIPHERED: [&str; 8] = [
    "nr-rrc.rrcReconfiguration_element",
    "nr-rrc.rrcReconfigurationComplete_element",
    "nr-rrc.ulInformationTransfer_element",
    "nr-rrc.dlInformationTransfer_element",
    // Registration accept and complete, session establishment accept, deregistration accept.
    "nas_5gs.mm.message_type == 0x42",
    "nas_5gs.mm.message_type == 0x43",
    "nas_5gs.sm.message_type == 0xc2",
    "nas_5gs.mm.message_type == 0x46",
];

/// Datagrams in each direction.
const DATAGRAMS: u32 = 20;

/// K_RRCenc, K_UPenc, K_RRCint and K_UPint of a K_gNB for NEA2 and NIA2 (TS 33.501 annex A.8), as tshark wants them.
fn keys(k_gnb: &Key<32>) -> [String; 4] {
    // Algorithm type distinguishers of table A.8-1.
    [3, 5, 4, 6].map(|distinguisher| {
        let mut mac = Hmac::<Sha256>::new_from_slice(k_gnb.expose()).unwrap();
        mac.update(&[0x69, distinguisher, 0, 1, 2, 0, 1]);
        hex(&mac.finalize().into_bytes()[16..])
    })
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn octets(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn tshark_reads_captures_of_a_gnb_in_parts_and_deciphers_them_with_the_keys_of_the_ue() {
    if !has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().to_owned();
    let split = |options: &mut lab::Options| {
        options.split = Some(lab::Model::Kernel);
        options.pcap = Some(pcap);
        // NAS is not ciphered, so that tshark reads it on N2; the radio is.
        options.edit = Box::new(|configuration| {
            configuration["amf"]["ciphering"] = serde_json::json!(["NEA0", "NEA2", "NEA1"]);
        });
    };
    let mut of_ue = None;
    network(split, async |world| {
        let radio = world.radio().await;
        let mut ue = world.ue(&radio.cells().next().unwrap(), 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        of_ue = ue.k_gnb().cloned();
        let mut talk = Talk::new(world, ue);
        talk.send(DATAGRAMS).await;
        talk.settle().await;
        talk.all_arrived_since(0);
        talk.ue.deregister(false).await.unwrap();
        world.until("cu", "/status", |status| status["detail"]["ues"] == 0).await;
    });
    // All processes have ended regularly, so the captures are complete.
    let keys = keys(&of_ue.unwrap());
    let of_cu = folder.path().join("cu");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for (point, contents) in POINTS {
            let file = of_cu.join(format!("{point}.pcapng"));
            for filter in contents {
                assert!(!tshark(&file, filter).await.is_empty(), "{point}: no {filter}");
            }
            if point != "f1c" {
                let malformed = tshark(&file, "_ws.malformed || _ws.short").await;
                assert!(malformed.is_empty(), "{point}: {malformed:#?}");
            }
        }
        let secured = signalling_in_clear(&of_cu.join("f1c.pcapng")).await;
        protected_signalling(&of_cu.join("f1c.pcapng"), secured, &keys).await;
        ciphered_packets(&of_cu.join("f1u.pcapng"), &keys).await;
    });
}

/// RRC up to SecurityModeComplete, in whose frame it ends.
async fn signalling_in_clear(f1c: &Path) -> u32 {
    let complete = tshark(f1c, "nr-rrc.securityModeComplete_element").await;
    let secured: u32 = complete[0].split_whitespace().next().unwrap().parse().unwrap();
    for message in READABLE {
        let filter = format!("frame.number <= {secured} && nr-rrc.{message}_element");
        assert!(!tshark(f1c, &filter).await.is_empty(), "{message} cannot be read");
    }
    let filter = format!("(_ws.malformed || _ws.short) && frame.number <= {secured}");
    let malformed = tshark(f1c, &filter).await;
    assert!(malformed.is_empty(), "{malformed:#?}");
    secured
}

/// With the keys all of F1-C is read, and each MAC-I is right.
async fn protected_signalling(f1c: &Path, secured: u32, keys: &[String; 4]) {
    let [rrc_enc, up_enc, rrc_int, up_int] = keys.each_ref().map(String::as_str);
    // tshark does not tell UEs apart on F1-C. It deciphers all with one algorithm, so the first part is looked at on its own.
    let with = async |ciphering: &str, integrity_key: &str, filter: &str| {
        let preferences = [
            pdcp::keys(0, [rrc_enc, up_enc, integrity_key, up_int]),
            format!("pdcp-nr.default_ciphering_algorithm:{ciphering}"),
            "pdcp-nr.default_integrity_algorithm:NIA2 (AES)".to_owned(),
            "pdcp-nr.check_sequence_numbers:Only-PDCP-frames".to_owned(),
        ];
        let arguments: Vec<&str> = preferences.iter().flat_map(|preference| ["-o", preference]).collect();
        tshark_with(f1c, &arguments, filter).await
    };
    // SecurityModeCommand and its completion have a MAC-I and are not ciphered (TS 33.501 §6.7.4).
    let mode = "nr-rrc.securityModeCommand_element || nr-rrc.securityModeComplete_element";
    let verified = format!("({mode}) && frame.number <= {secured} && !pdcp-nr.maci-wrong");
    assert_eq!(with("NEA0 (NULL)", rrc_int, &verified).await.len(), 2);
    assert_eq!(with("NEA0 (NULL)", up_int, &verified).await.len(), 0, "with another key");

    let behind = |filter: &str| format!("frame.number > {secured} && ({filter})");
    for filter in CIPHERED {
        assert!(!with("NEA2 (AES)", rrc_int, &behind(filter)).await.is_empty(), "no {filter}");
    }
    let wrong = behind("pdcp-nr.maci-wrong || _ws.malformed || _ws.short");
    let wrong = with("NEA2 (AES)", rrc_int, &wrong).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// F1-U: with the keys, tshark finds in each PDCP PDU what the UE, or the program in the data network, has sent.
async fn ciphered_packets(f1u: &Path, keys: &[String; 4]) {
    let fields = ["-T", "fields", "-e", "ip.dst", "-e", "udp.payload"];
    let datagrams = tshark_with(f1u, &fields, "gtp.message == 0xff").await;
    let drb = |direction| Config::drb(DrbId::new(1).unwrap(), direction, SnLength::Eighteen, true);
    let (mut frames, mut expected) = (Vec::new(), Vec::new());
    let mut next = [0; 2];
    for line in datagrams {
        let (to, payload) = line.split_once('\t').unwrap();
        let payload = octets(payload);
        let gpdu = gtpu::Packet::new(&payload).unwrap();
        if gpdu.payload().is_empty() {
            continue;
        }
        // Downlink PDUs come with their number on F1-U (TS 38.425 §5.4.1).
        let (way, direction, receiver) = match Message::of(&gpdu) {
            Ok(Some(Message::UserData(_))) => (Way::Down, Direction::Downlink, "10.202.0.2"),
            _ => (Way::Up, Direction::Uplink, "10.202.0.1"),
        };
        assert_eq!(to, receiver);
        frames.push(pdcp::frame(&drb(direction), direction, false, true, gpdu.payload()));
        let number = &mut next[way as usize];
        expected.push(hex(&content(way, *number)));
        *number += 1;
    }
    assert_eq!(next, [DATAGRAMS; 2], "PDUs up and down");
    let [rrc_enc, up_enc, rrc_int, up_int] = keys.each_ref().map(String::as_str);
    let preferences = [
        "pdcp-nr.default_ciphering_algorithm:NEA2 (AES)",
        "pdcp-nr.decipher_userplane:TRUE",
        "pdcp-nr.check_sequence_numbers:Only-PDCP-frames",
        &pdcp::keys(pdcp::UE, [rrc_enc, up_enc, rrc_int, up_int]),
    ];
    let shown = wireshark::read(&frames, "pdcp_nr_udp", &preferences, &["udp.payload", "data.data"]);
    for (number, (shown, expected)) in shown.iter().zip(expected).enumerate() {
        assert!(shown.iter().any(|shown| shown.ends_with(&expected)), "PDU {number}: {shown:?}, {expected}");
    }
}
