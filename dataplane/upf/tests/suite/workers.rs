//! Failures of worker threads: after a panic only one batch is lost, a port that fails is tried again, and workers that
//! share a session count and meter together. Tests with real interfaces are in `interfaces.rs`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::*;
use packet::gtpu::{self, PduSession, build_gpdu};
use pfcp::message::SessionModificationRequest;
use pfcp::*;
use pktio::memory::{self, MemoryPort, Wire};
use pktio::{Port, Sent, Vector, owner};
use telemetry::DropReason;
use tokio::sync::mpsc;
use upf::n4::session::Sessions;
use upf::pipeline::guard::Guard;
use upf::pipeline::{Event, Pipeline, Ports, Worker};
use upf::stats::{self, WorkerStats};
use upf::tables::Tables;

/// A port that fails on demand: when it sends a packet with this word inside, or when it receives.
struct Faulty {
    port: MemoryPort,
    broken: Arc<AtomicBool>,
}

const POISON: &[u8] = b"poison";

impl Port for Faulty {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        if self.broken.load(Relaxed) {
            return Err(io::Error::other("out of order"));
        }
        self.port.receive(batch)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let poisoned = |at: &u16| batch.frames()[usize::from(*at)].packet().ends_with(POISON);
        assert!(!selected.iter().any(poisoned), "a test's defect");
        self.port.transmit(batch, selected)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Workers over memory ports, each with a wire for its N3.
struct World {
    sessions: Sessions,
    workers: Vec<Worker>,
    n3: Vec<Wire>,
    n6: Vec<Wire>,
    stats: Arc<[WorkerStats]>,
    broken: Arc<AtomicBool>,
    _events: mpsc::Receiver<Event>,
}

impl World {
    fn new(workers: usize) -> World {
        let config = Arc::new(config("gw0"));
        let tables = Arc::new(Tables::new(&config));
        tables.share_between(workers as u32);
        let sessions = Sessions::new(Arc::clone(&config), Arc::clone(&tables), 5);
        let stats: Arc<[WorkerStats]> = (0..workers).map(|_| WorkerStats::new(tables.interfaces())).collect();
        let (sender, events) = mpsc::channel(64);
        let guard = Arc::new(Guard::new(&config, []));
        let broken = Arc::<AtomicBool>::default();
        let (mut running, mut n3, mut n6) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..workers {
            let (n3_port, n3_wire) = memory::pair(100_000);
            let (n6_port, n6_wire) = memory::pair(100_000);
            let pipeline = Pipeline::new(
                number,
                Arc::clone(&tables),
                Arc::clone(&stats),
                sender.clone(),
                Arc::clone(&guard),
            );
            let n6_port = Faulty { port: n6_port, broken: Arc::clone(&broken) };
            let ports: Ports = vec![Box::new(n3_port), Box::new(n6_port)];
            let inputs = vec![N3, N6];
            let name = format!("upf-{number}");
            let poll = Duration::from_micros(50);
            running.push(Worker::start(&name, pipeline, ports, inputs, poll).unwrap());
            n3.push(n3_wire);
            n6.push(n6_wire);
        }
        World { sessions, workers: running, n3, n6, stats, broken, _events: events }
    }

    /// Establishes the ordinary session without rate limits; returns its SEID and TEID.
    fn establish(&mut self) -> (u64, u32) {
        let mut request = establishment(1);
        request.create_qers[0].mbr = None;
        let response = self
            .sessions
            .establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NtpSeconds(1000))
            .response;
        match response.created_pdrs[0].f_teid {
            Some(FTeid::Assigned { teid, .. }) => (response.up_f_seid.unwrap().seid, teid),
            other => panic!("{other:?}"),
        }
    }

    fn drops(&self, reason: DropReason) -> u64 {
        stats::drops(&self.stats, reason)
    }
}

fn gpdu(teid: u32, payload: &[u8]) -> Vec<u8> {
    let packet = udp(UE_V4.into(), SERVER_V4.into(), payload);
    build_gpdu(teid, Some(PduSession::Uplink { qfi: QFI }), &packet).unwrap()
}

fn gnb() -> SocketAddr {
    SocketAddr::new(GNB.into(), 2152)
}

/// Receives packets from a wire until there are `count`.
#[track_caller]
fn receive(wire: &Wire, count: usize) -> Vec<Vec<u8>> {
    let deadline = net::time::now_std() + Duration::from_secs(20);
    let mut out = Vec::new();
    while out.len() < count {
        assert!(before(deadline), "{} of {count} packets", out.len());
        out.extend(wire.take().into_iter().map(|(packet, _)| packet));
        net::time::sleep_thread(Duration::from_millis(1));
    }
    out
}

fn before(deadline: Instant) -> bool {
    net::time::now_std() < deadline
}

#[test]
fn a_panic_costs_the_batch_and_not_the_direction() {
    let mut world = World::new(1);
    let (seid, teid) = world.establish();
    for round in 1..=3 {
        world.n3[0].inject(&gpdu(teid, POISON), gnb());
        let deadline = net::time::now_std() + Duration::from_secs(20);
        while world.drops(DropReason::WorkerFailed) < round {
            assert!(before(deadline), "the batch is counted");
            net::time::sleep_thread(Duration::from_millis(1));
        }
        // Both directions are served.
        world.n3[0].inject(&gpdu(teid, b"up"), gnb());
        assert!(receive(&world.n6[0], 1)[0].ends_with(b"up"));
        world.n6[0].inject(&udp(SERVER_V4.into(), UE_V4.into(), b"down"), gnb());
        assert!(receive(&world.n3[0], 1)[0].ends_with(b"down"));
    }
    assert_eq!(world.drops(DropReason::WorkerFailed), 3);
    // The worker applies changes of rules, and the memory that they free is used again.
    for action in [ApplyAction::BUFF, ApplyAction::FORW] {
        let request = update_far(2, action);
        let modified = world.sessions.modify(seid, SMF.into(), &request, NtpSeconds(1000)).unwrap();
        assert_eq!(modified.response.cause, Cause::ACCEPTED);
        world.n6[0].inject(&udp(SERVER_V4.into(), UE_V4.into(), b"later"), gnb());
    }
    assert_eq!(receive(&world.n3[0], 2).len(), 2);
    world.workers[0].stop();
}

#[test]
fn an_input_that_fails_is_tried_again() {
    let mut world = World::new(1);
    let (_, teid) = world.establish();
    world.broken.store(true, Relaxed);
    // Longer than a worker tolerates errors; the other direction is served meanwhile.
    for _ in 0..200 {
        world.n3[0].inject(&gpdu(teid, b"up"), gnb());
        assert_eq!(receive(&world.n6[0], 1).len(), 1);
    }
    world.broken.store(false, Relaxed);
    world.n6[0].inject(&udp(SERVER_V4.into(), UE_V4.into(), b"down"), gnb());
    assert_eq!(receive(&world.n3[0], 1).len(), 1);
}

/// N4 ends by a panic and drops its sessions; the tables that workers read stay until the workers end.
#[test]
fn packets_are_forwarded_without_n4() {
    let mut world = World::new(1);
    let (_, teid) = world.establish();
    drop(world.sessions);
    for _ in 0..100 {
        world.n3[0].inject(&gpdu(teid, b"up"), gnb());
        assert!(receive(&world.n6[0], 1)[0].ends_with(b"up"));
        world.n6[0].inject(&udp(SERVER_V4.into(), UE_V4.into(), b"down"), gnb());
        assert!(receive(&world.n3[0], 1)[0].ends_with(b"down"));
    }
}

/// A number of workers for which the UE's IPv4 address and its IPv6 prefix have different ones.
fn dual_stack_world() -> (World, [usize; 2]) {
    let owner = |address: IpAddr, workers| owner::of_address(address, workers) as usize;
    let owners = |workers| [owner(UE_V4.into(), workers), owner(UE_V6.into(), workers)];
    let workers = (2..16).find(|workers| owners(*workers)[0] != owners(*workers)[1]).unwrap();
    (World::new(workers as usize), owners(workers))
}

/// What arrives at all gNBs until nothing has come for a while: packets and the octets inside.
fn arrived(world: &World) -> (u64, u64) {
    let (mut packets, mut octets, mut idle) = (0, 0, 0);
    while idle < 100 {
        idle += 1;
        for (message, _) in world.n3.iter().flat_map(|wire| wire.take()) {
            idle = 0;
            packets += 1;
            octets += gtpu::Packet::new(&message).unwrap().payload().len() as u64;
        }
        net::time::sleep_thread(Duration::from_millis(1));
    }
    (packets, octets)
}

/// Downlink packets to a UE's two addresses come through two workers at once; the session is counted as one (UP-1).
#[test]
fn workers_that_share_a_session_count_together() {
    let (mut world, owners) = dual_stack_world();
    let (seid, teid) = world.establish();
    const EACH: usize = 20_000;
    let up = owner::of_tunnel(teid, world.workers.len() as u32) as usize;
    for n in 0..EACH {
        world.n3[up].inject(&gpdu(teid, &n.to_be_bytes()), gnb());
    }
    let packets = receive(&world.n6[up], EACH);
    // Each worker keeps the order of what it reads.
    let in_order = packets.iter().enumerate().all(|(n, packet)| packet.ends_with(&n.to_be_bytes()));
    assert!(in_order && packets.len() == EACH);
    let packets = [(SERVER_V4.into(), UE_V4.into()), (SERVER_V6.into(), UE_V6.into())];
    let packets = packets.map(|(server, ue): (IpAddr, IpAddr)| udp(server, ue, b"down"));
    for _ in 0..EACH {
        for (packet, owner) in packets.iter().zip(owners) {
            world.n6[owner].inject(packet, gnb());
        }
    }
    let down = arrived(&world);
    for worker in &mut world.workers {
        worker.stop();
    }
    assert!(DropReason::ALL.iter().all(|reason| world.drops(*reason) == 0));
    assert_eq!(down, (2 * EACH as u64, (EACH * (packets[0].len() + packets[1].len())) as u64));
    let (up, counted) = world.sessions.get(seid).unwrap().compiled.usage();
    assert_eq!((up.packets, up.bytes), (EACH as u64, EACH as u64 * 36));
    assert_eq!((counted.packets, counted.bytes), down);
}

/// While packets come to both addresses, the session has now one of them and now both: each packet that
/// arrives at the gNB is counted once (UP-1), whoever wrote the counters before.
#[test]
fn counts_are_right_while_the_workers_of_a_session_change() {
    let (mut world, owners) = dual_stack_world();
    let mut request = establishment(1);
    request.create_qers[0].mbr = None;
    request.create_pdrs[1].pdi.ue_ip_address =
        Some(UeIpAddress { ipv4: Some(UE_V4), destination: true, ..Default::default() });
    let node = NodeId::Ipv4(GTPU);
    let established = world.sessions.establish(node, SMF.into(), request.clone(), NtpSeconds(1000)).response;
    let seid = established.up_f_seid.unwrap().seid;
    let mut second = establishment(1).create_pdrs.swap_remove(1);
    second.pdr_id = PdrId(9);
    second.pdi.ue_ip_address =
        Some(UeIpAddress { ipv6: Some(UE_PREFIX), destination: true, ..Default::default() });
    let packets = [(SERVER_V4.into(), UE_V4.into()), (SERVER_V6.into(), UE_V6.into())];
    let packets = packets.map(|(server, ue): (IpAddr, IpAddr)| udp(server, ue, b"down"));
    for round in 0..300 {
        for _ in 0..200 {
            for (packet, owner) in packets.iter().zip(owners) {
                world.n6[owner].inject(packet, gnb());
            }
        }
        let change = match round % 2 {
            0 => SessionModificationRequest { create_pdrs: vec![second.clone()], ..Default::default() },
            _ => SessionModificationRequest {
                remove_pdrs: vec![RemovePdr { pdr_id: PdrId(9) }],
                ..Default::default()
            },
        };
        let modified = world.sessions.modify(seid, SMF.into(), &change, NtpSeconds(1000)).unwrap();
        assert_eq!(modified.response.cause, Cause::ACCEPTED);
    }
    let down = arrived(&world);
    for worker in &mut world.workers {
        worker.stop();
    }
    assert!((300 * 200..2 * 300 * 200).contains(&down.0), "{down:?}");
    let (_, counted) = world.sessions.get(seid).unwrap().compiled.usage();
    assert_eq!((counted.packets, counted.bytes), down);
}
