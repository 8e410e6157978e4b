//! How much of a bare `recvmmsg`/`sendmmsg` forwarder's rate is left when the packets go through the pipeline?
//!
//! `cargo run --release -p upf --example forwarding [seconds]`: one thread sends GTP-U to a socket, another
//! forwards to a third socket, bare and through a session with source check, AMBR and new tunnel header in turn.
//! Prints thousand packets per second of each run and the median of the pairwise ratios.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic)] // a tool that reports on standard output

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use packet::gtpu::{PduSession, build_gpdu};
use pfcp::{Cause, DestinationInterface, NodeId, NtpSeconds};
use pktio::poll::Poller;
use pktio::udp::UdpPort;
use pktio::{Port, Vector};
use support::*;
use upf::n4::session::Sessions;
use upf::pipeline::guard::Guard;
use upf::pipeline::{BATCH, Graph, PACKET, Pipeline, Ports};
use upf::stats::WorkerStats;
use upf::tables::Tables;

/// Number of the interface.
const N3: usize = 0;

const PAIRS: usize = 5;

/// Forwards for `time` and returns packets per second sent.
fn run(time: Duration, input: &mut UdpPort, mut forward: impl FnMut(&mut Vector, u64) -> usize) -> f64 {
    let mut poller = Poller::new().unwrap();
    poller.add(input.fd().unwrap(), 0).unwrap();
    let mut batch = Vector::new(BATCH, PACKET);
    let start = net::time::now_std();
    let mut packets = 0;
    while start.elapsed() < time {
        poller.wait(Some(10), |_| ()).unwrap();
        for _ in 0..16 {
            if input.receive(&mut batch).unwrap() == 0 {
                break;
            }
            packets += forward(&mut batch, net::time::now_ns());
        }
    }
    packets as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut input = UdpPort::bind(any, false).unwrap();
    let output = UdpPort::bind("127.0.0.20:2152".parse().unwrap(), false).unwrap();

    let config = Arc::new(config("gw0"));
    let tables = Arc::new(Tables::new(&config));
    let mut sessions = Sessions::new(Arc::clone(&config), Arc::clone(&tables), 5);
    let mut request = establishment(1);
    // Uplink goes on to another UPF, so that both ends are sockets.
    request.create_fars[0] = forward(1, DestinationInterface::Core, Some((GNB_TEID, GNB)));
    request.create_qers[0].mbr =
        Some(pfcp::BitRates { uplink_kbps: 100_000_000, downlink_kbps: 100_000_000 });
    let response =
        sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NtpSeconds(1)).response;
    assert_eq!(response.cause, Cause::ACCEPTED);
    let teid = match response.created_pdrs[0].f_teid {
        Some(pfcp::FTeid::Assigned { teid, .. }) => teid,
        other => panic!("{other:?}"),
    };
    let stats: Arc<[WorkerStats]> = Arc::new([WorkerStats::new(tables.interfaces())]);
    let (events, _keep) = tokio::sync::mpsc::channel(1);
    let guard = Arc::new(Guard::new(&config, []));
    let mut pipeline = Pipeline::new(0, tables, Arc::clone(&stats), events, guard);
    let mut ports: Ports = vec![Box::new(input.share()), Box::new(input.share())];

    let stop = Arc::new(AtomicBool::new(false));
    let generator = generate(&stop, input.local(), teid);
    let sink = drain(&stop, output.share());
    let (mut ratios, all) = (Vec::new(), (0..BATCH as u16).collect::<Vec<_>>());
    let mut bare_port = input.share();
    for _ in 0..PAIRS {
        let time = Duration::from_secs_f64(seconds);
        let bare = run(time, &mut input, |batch, _| {
            batch.frames_mut().for_each(|frame| *frame.peer = output.local());
            bare_port.transmit(batch, &all[..batch.len()]).packets
        });
        let piped = run(time, &mut input, |batch, now_ns| {
            let before = stats[0].interfaces[N3].downlink.get().packets;
            pipeline.process(N3, batch, now_ns, &mut ports);
            (stats[0].interfaces[N3].downlink.get().packets - before) as usize
        });
        println!(
            "bare {:7.0} kpps   pipeline {:7.0} kpps   ratio {:.3}",
            bare / 1e3,
            piped / 1e3,
            piped / bare
        );
        ratios.push(piped / bare);
    }
    stop.store(true, Relaxed);
    generator.join().unwrap();
    sink.join().unwrap();
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3}", ratios[PAIRS / 2]);
    println!("pipeline alone: {:.0} ns per packet", pipeline_alone(&mut pipeline, teid));
}

fn uplink(teid: u32) -> Vec<u8> {
    let inner = udp(UE_V4.into(), SERVER_V4.into(), &[0; 100]);
    build_gpdu(teid, Some(PduSession::Uplink { qfi: QFI }), &inner).unwrap()
}

fn generate(stop: &Arc<AtomicBool>, to: SocketAddr, teid: u32) -> std::thread::JoinHandle<()> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut port = UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let mut batch = Vector::new(BATCH, 2048);
        let packet = uplink(teid);
        while batch.push(&packet, to) {}
        let all: Vec<u16> = (0..batch.len() as u16).collect();
        while !stop.load(Relaxed) {
            port.transmit(&mut batch, &all);
        }
    })
}

fn drain(stop: &Arc<AtomicBool>, mut port: UdpPort) -> std::thread::JoinHandle<()> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut poller = Poller::new().unwrap();
        poller.add(port.fd().unwrap(), 0).unwrap();
        let mut batch = Vector::new(BATCH, 2048);
        while !stop.load(Relaxed) {
            poller.wait(Some(10), |_| ()).unwrap();
            while port.receive(&mut batch).unwrap() > 0 {}
        }
    })
}

/// The pipeline without any input or output: what it adds to the system calls.
fn pipeline_alone(pipeline: &mut Pipeline, teid: u32) -> f64 {
    struct Nowhere;
    impl Port for Nowhere {
        fn receive(&mut self, _: &mut Vector) -> std::io::Result<usize> {
            Ok(0)
        }
        fn transmit(&mut self, _: &mut Vector, selected: &[u16]) -> pktio::Sent {
            pktio::Sent { packets: selected.len(), ..Default::default() }
        }
        fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }
    }
    let mut ports: Ports = vec![Box::new(Nowhere), Box::new(Nowhere)];
    let mut batch = Vector::new(BATCH, 2048);
    let (packet, peer) = (uplink(teid), "127.0.0.20:2152".parse().unwrap());
    let (mut spent, mut packets) = (Duration::ZERO, 0);
    for n in 0..20_000u64 {
        batch.clear();
        while batch.push(&packet, peer) {}
        let start: Instant = net::time::now_std();
        pipeline.process(N3, &mut batch, 1 << 50 | n << 20, &mut ports);
        spent += start.elapsed();
        packets += BATCH;
    }
    spent.as_nanos() as f64 / packets as f64
}
