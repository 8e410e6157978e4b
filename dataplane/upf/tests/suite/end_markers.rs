//! End Markers follow the last packet of the old path (TS 23.501 §5.8.2.9), whoever sends it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::lab::{N3_GNB, Smf};
use crate::support::*;
use packet::gtpu::{Signalling, message_type};
use pktio::memory::{self, Wire};
use pktio::{Port, outbox, owner};
use tokio::sync::{mpsc, watch};
use upf::n4::Wiring;
use upf::pipeline::guard::Guard;
use upf::pipeline::{Pipeline, Ports, Worker};
use upf::stats::WorkerStats;
use upf::tables::Tables;

/// The N4 task with the tables that it writes, and a CP function.
struct N4 {
    runtime: tokio::runtime::Runtime,
    tables: Arc<Tables>,
    smf: Smf,
    _stop: watch::Sender<bool>,
}

impl N4 {
    /// The task sends on N3 through these ports.
    fn start(n3: Vec<Box<dyn Port>>) -> N4 {
        let config = Arc::new(config("gw0"));
        let tables = Arc::new(Tables::new(&config));
        tables.share_between(n3.len() as u32);
        let (stop, stopped) = watch::channel(false);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = runtime.block_on(net::udp::bind("127.0.0.1:0".parse().unwrap())).unwrap();
        let upf = socket.local_addr().unwrap();
        let wiring = Wiring {
            socket,
            signalling: vec![n3],
            tables: Arc::clone(&tables),
            events: mpsc::channel(1).1,
            queries: mpsc::channel(1).1,
            stop: stopped,
        };
        runtime.spawn(upf::n4::serve(config, wiring));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut smf = Smf { socket, upf, sequence: 0, started: 100 };
        smf.associate(1);
        N4 { runtime, tables, smf, _stop: stop }
    }
}

fn gnb() -> SocketAddr {
    SocketAddr::new(N3_GNB.parse().unwrap(), 2152)
}

/// A worker in the middle of a batch may still send a packet into the old tunnel. The wait for a worker that does not
/// finish its batch ends after a second.
#[test]
fn an_end_marker_waits_for_workers_in_the_middle_of_a_batch() {
    let (port, wire) = memory::pair(1000);
    let N4 { runtime, tables, mut smf, _stop } = N4::start(vec![Box::new(port)]);
    let (seid, _) = smf.establish();
    let mut switch = |teid| smf.modify(seid, path_switch(teid, gnb().ip()));
    // The task also sends Echo Requests to its peers.
    let markers = || {
        let sent = wire.take().into_iter();
        sent.filter(|(message, _)| message[1] == message_type::END_MARKER).collect::<Vec<_>>()
    };
    let marker_within = |seconds| {
        let start = net::time::now_std();
        loop {
            let found = markers();
            if !found.is_empty() || start.elapsed() > Duration::from_secs(seconds) {
                return found;
            }
            runtime.block_on(async { net::time::sleep(Duration::from_millis(2)).await });
        }
    };
    let marker = |teid| (Signalling::EndMarker { teid, pdu_session: None }.build(), gnb());
    let mut worker = tables.domain().reader();
    let inside = worker.enter();
    switch(5);
    assert!(markers().is_empty(), "the worker may still send by the old rules");
    drop(inside);
    assert_eq!(marker_within(10), [marker(GNB_TEID)]);
    switch(6);
    assert_eq!(marker_within(10), [marker(5)], "nobody is inside");
    let _stuck = worker.enter();
    switch(7);
    assert_eq!(marker_within(10), [marker(6)], "after a second");
}

/// Workers that each have a queue of N3 and N6 of their own, as with DPDK.
struct Workers {
    running: Vec<Worker>,
    n3: Vec<Wire>,
    n6: Vec<Wire>,
}

impl Workers {
    fn start(count: usize) -> (Workers, N4) {
        let (ports, n3): (Vec<_>, Vec<_>) = (0..count).map(|_| memory::pair(100_000)).unzip();
        let (ports, outboxes): (Vec<_>, Vec<_>) = ports.into_iter().map(outbox::share).unzip();
        let n4 = N4::start(outboxes.into_iter().map(|outbox| Box::new(outbox) as Box<dyn Port>).collect());
        let stats: Arc<[WorkerStats]> =
            (0..count).map(|_| WorkerStats::new(n4.tables.interfaces())).collect();
        let guard = Arc::new(Guard::new(&config("gw0"), []));
        let (events, _) = mpsc::channel(64);
        let (mut running, mut n6) = (Vec::new(), Vec::new());
        for (number, n3) in ports.into_iter().enumerate() {
            let (port, wire) = memory::pair(100_000);
            let (tables, stats) = (Arc::clone(&n4.tables), Arc::clone(&stats));
            let pipeline = Pipeline::new(number, tables, stats, events.clone(), Arc::clone(&guard));
            let ports: Ports = vec![Box::new(n3), Box::new(port)];
            let poll = Duration::from_micros(50);
            let name = format!("upf-{number}");
            running.push(Worker::start(&name, pipeline, ports, vec![N3, N6], poll).unwrap());
            n6.push(wire);
        }
        (Workers { running, n3, n6 }, n4)
    }
}

/// A card serves its queues in any order, so the End Marker goes through the queue that the path's packets have gone
/// through, behind them.
#[test]
fn an_end_marker_leaves_behind_the_packets_of_its_path() {
    const COUNT: usize = 3;
    const EACH: usize = 1000;
    let (mut workers, mut n4) = Workers::start(COUNT);
    let mut owners = [0; COUNT];
    for number in 0..12u32 {
        let ue = IpAddr::V4((UE_V4.to_bits() + number).into());
        let owner = owner::of_address(ue, COUNT as u32) as usize;
        owners[owner] += 1;
        let mut request = establishment(u64::from(number) + 1);
        request.create_qers.iter_mut().for_each(|qer| qer.mbr = None);
        for address in request.create_pdrs.iter_mut().filter_map(|pdr| pdr.pdi.ue_ip_address.as_mut()) {
            (address.ipv4, address.ipv6) = (Some((UE_V4.to_bits() + number).into()), None);
        }
        let (seid, _) = n4.smf.establish_by(request);
        let send = || {
            for _ in 0..EACH {
                workers.n6[owner].inject(&udp(SERVER_V4.into(), ue, b"down"), gnb());
            }
        };
        send();
        n4.smf.modify(seid, path_switch(1000 + number, gnb().ip()));
        send();
        let mut sent: Vec<Vec<(u8, u32)>> = vec![Vec::new(); COUNT];
        let deadline = net::time::now_std() + Duration::from_secs(20);
        let count =
            |sent: &[Vec<(u8, u32)>], kind| sent.iter().flatten().filter(|(sent, _)| *sent == kind).count();
        while count(&sent, message_type::G_PDU) < 2 * EACH || count(&sent, message_type::END_MARKER) == 0 {
            assert!(net::time::now_std() < deadline, "all packets and the End Marker");
            for (sent, wire) in sent.iter_mut().zip(&workers.n3) {
                let messages = wire.take().into_iter().map(|(message, _)| message);
                let teid = |octets: &[u8]| u32::from_be_bytes(octets[4..8].try_into().unwrap());
                sent.extend(messages.map(|message| (message[1], teid(&message))));
            }
            net::time::sleep_thread(Duration::from_millis(1));
        }
        assert_eq!(count(&sent, message_type::END_MARKER), 1);
        let marker = (message_type::END_MARKER, GNB_TEID);
        let at = sent[owner].iter().position(|message| *message == marker).expect("through the same queue");
        let late = sent[owner][at..].iter().filter(|message| **message == (message_type::G_PDU, GNB_TEID));
        assert_eq!(late.count(), 0, "nothing follows it");
    }
    assert!(owners.iter().all(|sessions| *sessions > 0), "each worker has had a session: {owners:?}");
    workers.running.iter_mut().for_each(Worker::stop);
}
