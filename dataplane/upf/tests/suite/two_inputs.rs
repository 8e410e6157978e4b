//! One session, packets to its UE through two inputs: a worker for N3 and one for N6, as with the kernel on both sides.
//! Rates and volumes are those of the session, whichever worker a packet comes through (UP-1).

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};

use crate::support::*;
use packet::checksum::Sum;
use packet::gtpu::{self, PduSession, build_gpdu};
use packet::{ipv4, protocol};
use pfcp::message::SessionEstablishmentRequest;
use pfcp::*;
use pktio::Vector;
use pktio::memory::{self, Wire};
use telemetry::DropReason;
use tokio::sync::mpsc;
use upf::interface::Role;
use upf::n4::session::Sessions;
use upf::pipeline::guard::Guard;
use upf::pipeline::links::{Link, Links};
use upf::pipeline::mtu::Router;
use upf::pipeline::{Event, Graph, PACKET, Pipeline, Ports};
use upf::stats::{self, WorkerStats};
use upf::tables::Tables;

/// The time of all packets; at one time, a meter passes its burst only.
const NOW_NS: u64 = 1 << 30;
const ROUNDS: usize = 8;

/// A pipeline with its ports, its input, and the far ends of the ports.
struct Side {
    pipeline: Pipeline,
    ports: Ports,
    input: usize,
    n3: Wire,
    n6: Wire,
}

impl Side {
    /// Processes all packets, beginning at the same time as the others that wait at the barrier.
    fn run(&mut self, start: &Barrier) {
        let mut batch = Vector::new(64, PACKET);
        start.wait();
        loop {
            let received = self.ports[self.input].receive(&mut batch);
            if received.unwrap() == 0 {
                return;
            }
            self.pipeline.process(self.input, &mut batch, NOW_NS, &mut self.ports);
        }
    }
}

struct World {
    sessions: Sessions,
    sides: [Side; 2],
    stats: Arc<[WorkerStats]>,
    _events: mpsc::Receiver<Event>,
}

impl World {
    fn new() -> World {
        let config = Arc::new(config("gw0"));
        let tables = Arc::new(Tables::new(&config));
        let sessions = Sessions::new(Arc::clone(&config), Arc::clone(&tables), 5);
        let stats: Arc<[WorkerStats]> = (0..2).map(|_| WorkerStats::new(tables.interfaces())).collect();
        let (sender, events) = mpsc::channel(64);
        let guard = Arc::new(Guard::new(&config, []));
        let mut number = 0;
        let sides = [N3, N6].map(|input| {
            let pipeline = Pipeline::new(
                number,
                Arc::clone(&tables),
                Arc::clone(&stats),
                sender.clone(),
                Arc::clone(&guard),
            );
            number += 1;
            let (n3_port, n3) = memory::pair(1 << 20);
            let (n6_port, n6) = memory::pair(1 << 20);
            let ports: Ports = vec![Box::new(n3_port), Box::new(n6_port)];
            Side { pipeline, ports, input, n3, n6 }
        });
        World { sessions, sides, stats, _events: events }
    }

    /// The SEID and the TEIDs of PDRs.
    fn establish<const N: usize>(
        &mut self,
        request: &SessionEstablishmentRequest,
        pdrs: [u16; N],
    ) -> (u64, [u32; N]) {
        let response = self
            .sessions
            .establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NtpSeconds(1000))
            .response;
        assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
        let teid = |id: u16| {
            let created = response.created_pdrs.iter().find(|created| created.pdr_id == PdrId(id)).unwrap();
            match created.f_teid {
                Some(FTeid::Assigned { teid, .. }) => teid,
                other => panic!("{other:?}"),
            }
        };
        (response.up_f_seid.unwrap().seid, pdrs.map(teid))
    }

    fn downlink(&self, count: usize, payload: usize) {
        let packet = udp(SERVER_V4.into(), UE_V4.into(), &vec![6; payload]);
        (0..count).for_each(|_| self.sides[1].n6.inject(&packet, gnb()));
    }

    fn tunnelled(&self, teid: u32, count: usize, packet: &[u8]) {
        let gpdu = build_gpdu(teid, Some(PduSession::Uplink { qfi: QFI }), packet).unwrap();
        (0..count).for_each(|_| self.sides[0].n3.inject(&gpdu, gnb()));
    }

    /// Both workers process their packets: at the same time, or one after the other.
    fn run(&mut self, at_once: bool) {
        let start = Barrier::new(if at_once { 2 } else { 1 });
        if !at_once {
            return self.sides.iter_mut().for_each(|side| side.run(&start));
        }
        std::thread::scope(|scope| {
            for side in &mut self.sides {
                let start = &start;
                scope.spawn(move || side.run(start));
            }
        });
    }

    /// Numbers of user packets and their octets that the gNB received.
    fn received(&self) -> (u64, u64) {
        let packets = self.sides.iter().flat_map(|side| side.n3.take());
        let lengths = packets.map(|(packet, _)| {
            let header = gtpu::Packet::new(&packet).unwrap().header_len();
            (packet.len() - header) as u64
        });
        lengths.fold((0, 0), |(packets, bytes), length| (packets + 1, bytes + length))
    }
}

fn gnb() -> SocketAddr {
    SocketAddr::new(GNB.into(), 2152)
}

/// A rate for packets from the data network and for those of a tunnel from another UPF: the burst passes once.
#[test]
fn a_rate_of_both_inputs_passes_what_it_would_pass_of_one() {
    let passed = |at_once: bool| {
        let mut world = World::new();
        let mut request = establishment(1);
        let core = SourceInterface::Core;
        let n9 = Pdi {
            source_interface: core,
            f_teid: choose(3),
            ue_ip_address: ue_address(true),
            ..Default::default()
        };
        request.create_pdrs.push(pdr(5, 255, n9, 2, &[1, 2]));
        let (seid, [teid]) = world.establish(&request, [5]);
        // 50 ms of 1 Gbit/s are 62,500 packets.
        world.downlink(80_000, 72);
        world.tunnelled(teid, 80_000, &udp(SERVER_V4.into(), UE_V4.into(), &[6; 72]));
        world.run(at_once);
        let refused = stats::drops(&world.stats, DropReason::RateLimit);
        let (packets, bytes) = world.received();
        assert_eq!(packets + refused, 160_000);
        let (_, down) = world.sessions.get(seid).unwrap().compiled.usage();
        assert_eq!((down.packets, down.bytes), (packets, bytes), "counted and received");
        packets
    };
    let alone = passed(false);
    assert!((62_500..62_700).contains(&alone), "{alone}");
    for round in 0..ROUNDS {
        assert_eq!(passed(true), alone, "round {round}");
    }
}

/// While web requests are answered by the worker of N3, that of N6 forwards packets to the same UE.
#[test]
fn answers_and_packets_to_one_ue_are_all_counted() {
    // A TCP SYN to a web server.
    let mut syn = vec![0; 20];
    syn[..4].copy_from_slice(&[0x9C, 0x40, 0, 80]);
    (syn[12], syn[13]) = (0x50, 2);
    let header = ipv4::Header::new(UE_V4, SERVER_V4, protocol::TCP);
    let sum = Sum::default().pseudo_header(UE_V4.into(), SERVER_V4.into(), protocol::TCP, syn.len());
    let sum = sum.octets(&syn).finish();
    syn[16..18].copy_from_slice(&sum.to_be_bytes());
    let syn = header.build(&syn).unwrap();
    for round in 0..ROUNDS {
        let mut world = World::new();
        let mut request = establishment(1);
        request.create_fars[0] = redirecting(2, "http://portal.example/");
        request.create_qers[0].mbr = None;
        let (seid, [teid]) = world.establish(&request, [1]);
        world.downlink(50_000, 72);
        world.tunnelled(teid, 50_000, &syn);
        world.run(true);
        assert_eq!(stats::drops(&world.stats, DropReason::Redirected), 50_000);
        let (packets, bytes) = world.received();
        assert_eq!(packets, 100_000);
        let (_, down) = world.sessions.get(seid).unwrap().compiled.usage();
        assert_eq!((down.packets, down.bytes), (packets, bytes), "round {round}");
    }
}

/// The worker of N3 answers packets that are too long for the data network, while that of N6 forwards packets to
/// the same UE. The accounts are those of N6's worker: the answers are not in them, and nothing is lost.
#[test]
fn answers_of_the_router_are_not_counted() {
    let mut long = udp(UE_V4.into(), SERVER_V4.into(), &[6; 1000]);
    // Sets Don't Fragment, and corrects the checksum.
    long[6] |= 0x40;
    long[10..12].fill(0);
    let sum = packet::checksum::checksum(&long[..20]);
    long[10..12].copy_from_slice(&sum.to_be_bytes());
    for round in 0..ROUNDS {
        let mut world = World::new();
        for side in &mut world.sides {
            let router = Router { ipv4: Some([10, 201, 0, 1].into()), ipv6: None };
            let n3 = (Role::N3, Link::of_tunnels(9000, GTPU.into()));
            let n6 = (Role::N6, Link { mtu: 600, clamp: 600, router });
            side.pipeline.set_links(Links::new([n3, n6]));
        }
        let mut request = establishment(1);
        request.create_qers[0].mbr = None;
        let (seid, [teid]) = world.establish(&request, [1]);
        world.downlink(50_000, 72);
        world.tunnelled(teid, 50_000, &long);
        world.run(true);
        assert_eq!(stats::drops(&world.stats, DropReason::TooBig), 50_000);
        let (packets, _) = world.received();
        assert!(packets > 50_000, "some are answered");
        let (up, down) = world.sessions.get(seid).unwrap().compiled.usage();
        assert_eq!((up.packets, down.packets, down.bytes), (0, 50_000, 50_000 * 100), "round {round}");
    }
}
