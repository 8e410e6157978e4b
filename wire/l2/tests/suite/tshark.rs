//! tshark reads what [`l2::pdcp`] writes: it finds COUNT by itself, deciphers with the same keys, and verifies the MAC-I.

use crate::pdcp;
use crate::wireshark::{self, datagram, present};
use l2::pdcp::{Config, Security, SnLength, SrbId, StatusReport, Tx};
use l2::sdap::DrbId;
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};

const CIPHER_KEY: &str = "000102030405060708090a0b0c0d0e0f";
const INTEGRITY_KEY: &str = "f0e0d0c0b0a090807060504030201000";

/// A bearer under test, and what the dissector is told of it.
#[derive(Clone, Copy)]
struct Link {
    config: Config,
    direction: Direction,
    sdap: bool,
    mac_i: bool,
}

impl Link {
    fn drb(number: u8, sn: SnLength, sdap: bool, mac_i: bool) -> Self {
        let direction = Direction::Downlink;
        let id = DrbId::new(number).unwrap();
        Self { config: Config::drb(id, direction, sn, sdap), direction, sdap, mac_i }
    }

    fn security(self) -> Security {
        let cipher = Cipher::new(CipheringAlgorithm::Nea2, &CIPHER_KEY.parse().unwrap());
        let integrity =
            self.mac_i.then(|| Integrity::new(IntegrityAlgorithm::Nia2, &INTEGRITY_KEY.parse().unwrap()));
        Security::new(cipher, integrity)
    }

    /// A PDU in its framing.
    fn frame(self, pdu: &[u8]) -> Vec<u8> {
        pdcp::frame(&self.config, self.direction, self.mac_i, self.sdap, pdu)
    }
}

fn seal(tx: &mut Tx, sdu: &[u8]) -> Vec<u8> {
    let mut pdu = vec![0; tx.header_len()];
    pdu.extend_from_slice(sdu);
    pdu.resize(pdu.len() + tx.trailer_len(), 0);
    tx.seal(&mut pdu).unwrap();
    pdu
}

/// Fields that tshark reads in each frame.
const FIELDS: [&str; 8] = [
    "pdcp-nr.seq-num",
    "pdcp-nr.security-config.count",
    "pdcp-nr.signalling-data",
    "udp.payload",
    "data.data",
    "sdap.qfi",
    "pdcp-nr.fmc",
    "_ws.expert.message",
];

/// What tshark reads in each frame, by the names of [`FIELDS`].
struct Read(Vec<String>);

impl Read {
    fn field(&self, name: &str) -> &str {
        &self.0[FIELDS.iter().position(|field| *field == name).unwrap()]
    }
}

fn read(frames: &[Vec<u8>]) -> Vec<Read> {
    let keys = pdcp::keys(pdcp::UE, [CIPHER_KEY, CIPHER_KEY, INTEGRITY_KEY, INTEGRITY_KEY]);
    let preferences = [
        "pdcp-nr.default_ciphering_algorithm:NEA2 (AES)",
        "pdcp-nr.default_integrity_algorithm:NIA2 (AES)",
        "pdcp-nr.decipher_userplane:TRUE",
        "pdcp-nr.show_signalling_plane_as_rrc:FALSE",
        // It is the analysis that finds COUNT.
        "pdcp-nr.check_sequence_numbers:Only-PDCP-frames",
        &keys,
    ];
    wireshark::read(frames, "pdcp_nr_udp", &preferences, &FIELDS).into_iter().map(Read).collect()
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// A user's packet, and the hexadecimal text of what it carries.
fn packet(number: usize) -> (Vec<u8>, String) {
    let payload: Vec<u8> = format!("packet {number} of a UE ").into_bytes().repeat(1 + number % 70);
    (datagram(&payload, 7777), hex(&payload))
}

#[test]
fn tshark_deciphers_and_verifies_data_beyond_the_first_hyper_frame() {
    if !present() {
        return;
    }
    for (sn, packets) in [(SnLength::Twelve, 4_200), (SnLength::Eighteen, 300)] {
        let link = Link::drb(5, sn, false, true);
        let mut tx = Tx::new(link.config, link.security());
        let frames: Vec<_> = (0..packets).map(|i| link.frame(&seal(&mut tx, &packet(i).0))).collect();
        for (count, read) in read(&frames).iter().enumerate() {
            assert_eq!(read.field("pdcp-nr.security-config.count"), count.to_string());
            assert_eq!(read.field("_ws.expert.message"), "", "{count}");
            // The inner packet's payload; the outer one's comes first.
            assert!(read.field("udp.payload").ends_with(&packet(count).1), "{count}");
        }
    }
}

#[test]
fn tshark_sees_a_wrong_mac_i() {
    if !present() {
        return;
    }
    let link = Link::drb(32, SnLength::Eighteen, false, true);
    let mut tx = Tx::new(link.config, link.security());
    let mut pdus: Vec<_> = (0..3).map(|i| seal(&mut tx, &packet(i).0)).collect();
    *pdus[1].last_mut().unwrap() ^= 1;
    let frames: Vec<_> = pdus.iter().map(|pdu| link.frame(pdu)).collect();
    let wrong: Vec<_> =
        read(&frames).iter().map(|read| !read.field("_ws.expert.message").is_empty()).collect();
    assert_eq!(wrong, [false, true, false]);
}

#[test]
fn tshark_reads_signalling() {
    if !present() {
        return;
    }
    for (id, direction) in [(SrbId::Srb1, Direction::Downlink), (SrbId::Srb2, Direction::Uplink)] {
        let link = Link { config: Config::srb(id, direction), direction, sdap: false, mac_i: true };
        let mut tx = Tx::new(link.config, link.security());
        let message = |i: u8| vec![i; 5 + usize::from(i) * 7];
        let frames: Vec<_> = (0..20).map(|i| link.frame(&seal(&mut tx, &message(i)))).collect();
        for (i, read) in (0..20).zip(read(&frames)) {
            assert_eq!(read.field("pdcp-nr.signalling-data"), hex(&message(i)));
            assert_eq!(read.field("_ws.expert.message"), "");
        }
    }
}

/// Ciphering begins behind the SDAP header. tshark 4.0 is not asked about the MAC-I here: it leaves the SDAP header out of
/// what it verifies, where TS 38.323 §5.9 has all data in. It also shows the first octet behind the header as the header;
/// so both have the same value here.
#[test]
fn tshark_deciphers_behind_the_sdap_header() {
    if !present() {
        return;
    }
    let header = 0x45;
    let link = Link::drb(1, SnLength::Twelve, true, false);
    let mut tx = Tx::new(link.config, link.security());
    let sdu = |i| [vec![header], packet(i).0].concat();
    let frames: Vec<_> = (0..20).map(|i| link.frame(&seal(&mut tx, &sdu(i)))).collect();
    for (i, read) in read(&frames).iter().enumerate() {
        assert_eq!(read.field("sdap.qfi"), "5");
        let shown = [read.field("udp.payload"), read.field("data.data")];
        assert!(shown.iter().any(|shown| shown.ends_with(&packet(i).1)), "{i}");
    }
}

#[test]
fn tshark_reads_a_status_report() {
    if !present() {
        return;
    }
    let link = Link::drb(5, SnLength::Eighteen, false, true);
    let frames = [link.frame(&StatusReport::build(0x0102_0304, [0x0102_0306, 0x0102_0310]))];
    let reads = read(&frames);
    assert_eq!(reads[0].field("pdcp-nr.fmc"), 0x0102_0304.to_string());
    assert_eq!(reads[0].field("_ws.expert.message"), "");
}
