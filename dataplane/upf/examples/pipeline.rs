//! How many nanoseconds does the pipeline take for a packet, and in which stage?
//!
//! `cargo run --release -p upf --example pipeline [sessions [seconds]]`: sessions with four PDRs, a meter and a usage
//! counter; packets of sessions drawn at random, uplink and downlink, in buffers that no cache has to fetch. Prints
//! nanoseconds per packet of each stage and octets per session.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic)] // a tool that reports on standard output

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use classifier::{Filter, PortRange, Prefix, Rule, Side};
use packet::gtpu::{PduSession, build_gpdu};
use pktio::{Port, Sent, Vector};
use upf::pipeline::graph::NODES;
use upf::pipeline::guard::Guard;
use upf::pipeline::{BATCH, Graph, PACKET, Pipeline, Ports};
use upf::plan::*;
use upf::session::Session;
use upf::stats::WorkerStats;
use upf::tables::{Tables, Writer};

/// Numbers of the interfaces.
const N3: usize = 0;
const N6: usize = 1;

struct Nowhere;

impl Port for Nowhere {
    fn receive(&mut self, _: &mut Vector) -> std::io::Result<usize> {
        Ok(0)
    }
    fn transmit(&mut self, _: &mut Vector, selected: &[u16]) -> Sent {
        Sent { packets: selected.len(), ..Default::default() }
    }
    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

fn ue(n: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0A00_0002 + n as u32)
}

/// Two PDRs each way: one service on port 443, and the rest.
fn plan(n: usize, teid: u32) -> Plan {
    let address = ue(n);
    let web = |side| Filter {
        ue: Some((side, Prefix::host(address.into()))),
        protocol: Some(17),
        source_ports: (side == Side::Destination).then(|| PortRange::new(443, 443).unwrap()),
        destination_ports: (side == Side::Source).then(|| PortRange::new(443, 443).unwrap()),
        ..Filter::default()
    };
    let rest = |side| Filter { ue: Some((side, Prefix::host(address.into()))), ..Filter::default() };
    let rules = |side, first: u32| {
        vec![
            Rule { id: first, precedence: 10, value: first, filter: web(side) },
            Rule { id: first + 1, precedence: 255, value: first + 1, filter: rest(side) },
        ]
    };
    let peer = std::net::SocketAddr::from(([192, 168, 0, (n % 200) as u8], 2152));
    let header =
        OuterHeader { teid: n as u32 + 1, peer, interface: N3 as u8, container: Container::Downlink };
    let pdr = |id, direction| Pdr {
        id,
        direction,
        check_source: direction == Direction::Uplink,
        action: Action::Forward(Forward {
            to: match direction {
                Direction::Uplink => Destination::DataNetwork(N6 as u16),
                Direction::Downlink => Destination::Tunnel(header),
            },
            tos: None,
        }),
        notify: false,
        duplicates: vec![],
        qers: vec![0],
        urrs: vec![0],
        qfi: Some(9),
        rqi: false,
        ppi: None,
    };
    let fast = Enforcement { open: true, mbr_kbps: Some(1_000_000_000), gbr_kbps: None };
    let addresses = UeAddresses { ipv4: vec![address], ..Default::default() };
    Plan {
        seid: n as u64 + 1,
        kind: Kind::Ip,
        ue: addresses.clone(),
        native: addresses,
        arrivals: vec![
            Arrival { place: Place::Native, rules: rules(Side::Destination, 2) },
            Arrival { place: Place::Tunnel(teid), rules: rules(Side::Source, 0) },
        ],
        pdrs: vec![
            pdr(1, Direction::Uplink),
            pdr(2, Direction::Uplink),
            pdr(3, Direction::Downlink),
            pdr(4, Direction::Downlink),
        ],
        qers: vec![Qer { id: 1, uplink: fast, downlink: fast }],
        urrs: vec![Urr { id: 1, marks: vec![] }],
        ..Plan::default()
    }
}

fn packets(teids: &[u32], uplink: bool, count: usize) -> Vec<Vec<u8>> {
    let server: IpAddr = [192, 0, 2, 1].into();
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    (0..count)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let n = (random >> 20) as usize % teids.len();
            let port = if random & 1 == 0 { 443 } else { 5000 };
            let (from, to) = if uplink { (ue(n).into(), server) } else { (server, ue(n).into()) };
            let ports = if uplink { (4000, port) } else { (port, 4000) };
            let udp = packet::transport::build_udp((from, ports.0), (to, ports.1), &[0; 22]).unwrap();
            let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!("IPv4") };
            let ip = packet::ipv4::Header::new(from, to, 17).build(&udp).unwrap();
            match uplink {
                true => build_gpdu(teids[n], Some(PduSession::Uplink { qfi: 9 }), &ip).unwrap(),
                false => ip,
            }
        })
        .collect()
}

fn main() {
    let arguments: Vec<f64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let sessions = arguments.first().map_or(1000, |n| *n as usize);
    let seconds = arguments.get(1).copied().unwrap_or(1.0);
    let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "max_tunnels": 1048576,
        "dnn": [{"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.0.0.0/11"}}]}"#;
    let config: upf::Config = serde_json::from_str(text).unwrap();
    let tables = Arc::new(Tables::new(&config));
    let mut writer = Writer::new(Arc::clone(&tables), &config, 1);
    let mut teids = Vec::new();
    let start = net::time::now_std();
    let held: Vec<Session> = (0..sessions.min(1_048_000))
        .map(|n| {
            teids.push(writer.allocate(N3 as u8).unwrap());
            writer.establish(&plan(n, teids[n])).unwrap()
        })
        .collect();
    let each = start.elapsed().as_nanos() as f64 / held.len() as f64;
    let state: usize = held.iter().map(Session::state_bytes).sum();
    let octets = (writer.memory_bytes() + state) as f64 / held.len() as f64 + 8.0;
    println!("{} sessions: {octets:.0} octets each, published in {each:.0} ns each", held.len());
    let stats: Arc<[WorkerStats]> = Arc::new([WorkerStats::new(tables.interfaces())]);
    let (events, _keep) = tokio::sync::mpsc::channel(1);
    let guard = Arc::new(Guard::new(&config, []));
    for (name, uplink) in [("uplink", true), ("downlink", false)] {
        let mut pipeline =
            Pipeline::new(0, Arc::clone(&tables), Arc::clone(&stats), events.clone(), Arc::clone(&guard));
        let mut ports: Ports = vec![Box::new(Nowhere), Box::new(Nowhere)];
        let ring = packets(&teids, uplink, 1 << 16);
        let mut at = 0;
        for timed in [false, true] {
            if timed {
                pipeline.time_stages();
            }
            let mut batch = Vector::new(BATCH, PACKET.min(256));
            let peer = "192.168.0.1:2152".parse().unwrap();
            let (mut spent, mut count) = (Duration::ZERO, 0u64);
            let begin = net::time::now_std();
            while begin.elapsed().as_secs_f64() < seconds {
                for _ in 0..64 {
                    batch.clear();
                    while batch.push(&ring[at], peer) {
                        at = (at + 1) % ring.len();
                    }
                    let start = net::time::now_std();
                    pipeline.process(
                        if uplink { N3 } else { N6 },
                        &mut batch,
                        net::time::now_ns(),
                        &mut ports,
                    );
                    spent += start.elapsed();
                    count += BATCH as u64;
                }
            }
            let each = spent.as_nanos() as f64 / count as f64;
            print!("{name:9} {each:6.1} ns per packet, {:5.2} Mpps", 1e3 / each);
            for node in NODES.iter().zip(&stats[0].nodes).filter(|_| timed) {
                let done = node.1.get();
                if done.timed_packets > 0 {
                    print!("   {} {:.1}", node.0.name, done.timed_ns as f64 / done.timed_packets as f64);
                }
            }
            println!();
        }
    }
    println!("dropped: {}", upf::stats::json(&stats, tables.interfaces())["drops"]);
}
