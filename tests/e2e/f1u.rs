//! tshark must read what F1-U carries as we mean it: its dissectors are an independent reading of TS 38.425.

use std::fs::File;
use std::net::Ipv4Addr;

use net::process::Command;
use net::time::Duration;
use packet::gtpu;
use packet::ipv4;
use packet::nr_u::{self, DeliveryStatus, MAX_STATUS, Ranges, USER_DATA_HEADER};
use packet::{protocol, transport};
use telemetry::pcapng::{LinkType, Writer};

use crate::captures::has_tshark;

/// A status with every field, each with another value.
fn status() -> DeliveryStatus<'static> {
    DeliveryStatus {
        desired_buffer_size: 1_000_001,
        desired_data_rate: Some(2_000_002),
        final_frame: true,
        lost: Ranges::of(&[(301, 302), (303, 304)]),
        highest_delivered: Some(0x00AB_CDEF),
        highest_transmitted: Some(406),
        cause: Some(3),
        highest_delivered_retransmitted: Some(507),
        highest_retransmitted: Some(608),
        delivered: Ranges::of(&[(709, 710)]),
    }
}

/// tshark's names of fields, and what they must be.
const STATUS_FIELDS: [(&str, &str); 15] = [
    ("gtp.teid", "0x0a0b0c0d"),
    ("nrup.pdu_type", "1"),
    ("nrup.final_frame_ind", "1"),
    ("nrup.desrd_buff_sz_data_radio_bearer", "1000001"),
    ("nrup.desrd_data_rate", "2000002"),
    ("nrup.num_lost_nru_seq_num", "2"),
    ("nrup.start_num_lost_nru_seq_num", "301,303"),
    ("nrup.end_num_lost_nru_seq_num", "302,304"),
    ("nrup.high_success_delivered_nr_pdcp_sn", "11259375"),
    ("nrup.high_tx_nr_pdcp_sn", "406"),
    ("nrup.cause_val", "3"),
    ("nrup.high_success_delivered_retx_nr_pdcp_sn", "507"),
    ("nrup.high_retx_nr_pdcp_sn", "608"),
    ("nrup.delivered_nr_pdcp_sn_range_ind", "1"),
    ("_ws.malformed", ""),
];

const DATA_FIELDS: [(&str, &str); 6] = [
    ("gtp.teid", "0x0a0b0c0d"),
    ("gtp.length", "21"),
    ("nrup.pdu_type", "0"),
    ("nrup.report_polling", "1"),
    ("nrup.seq_num", "16777215"),
    ("_ws.malformed", ""),
];

/// What tshark reads in the fields of a datagram that is sent to the port of GTP-U.
async fn dissect(datagram: &[u8], fields: &[(&str, &str)]) -> Vec<String> {
    let (from, to) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let udp = transport::build_udp((from.into(), gtpu::PORT), (to.into(), gtpu::PORT), datagram).unwrap();
    let ip = ipv4::Header::new(from, to, protocol::UDP).build(&udp).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f1u.pcapng");
    let mut writer = Writer::new(File::create(&path).unwrap(), "godwit").unwrap();
    let interface = writer.interface("f1u", LinkType::Raw).unwrap();
    writer.packet(interface, 0, &ip, ip.len()).unwrap();
    writer.finish().unwrap();
    let names = fields.iter().flat_map(|(field, _)| ["-e", field]);
    let output = Command::new("tshark")
        .args(["-n", "-T", "fields", "-E", "separator=|", "-r"])
        .arg(&path)
        .args(names)
        .output(Duration::from_secs(60))
        .await
        .unwrap();
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').split('|').map(str::to_owned).collect()
}

#[tokio::test]
async fn tshark_reads_what_f1u_carries() {
    if !has_tshark() {
        return;
    }
    let mut written = [0; MAX_STATUS];
    let length = status().write(0x0A0B_0C0D, &mut written).unwrap();
    let mut data = [9; USER_DATA_HEADER + 9];
    nr_u::encapsulate(&mut data[..USER_DATA_HEADER], 0x0A0B_0C0D, 9, nr_u::SEQUENCE_MASK, true).unwrap();
    for (datagram, fields) in [(&written[..length], &STATUS_FIELDS[..]), (&data, &DATA_FIELDS)] {
        let read = dissect(datagram, fields).await;
        let expected: Vec<&str> = fields.iter().map(|(_, value)| *value).collect();
        assert_eq!(read, expected, "{fields:?}");
    }
}
