//! A UPF without threads and sockets: N4's rules, one pipeline, memory ports.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each binary uses its part; helpers of tests fail as tests do"
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use packet::gtpu::{PduSession, build_gpdu};
use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::*;
use pktio::memory::{self, Wire};
use pktio::{Port, Vector};
use telemetry::DropReason;
use tokio::sync::mpsc;
use upf::Config;
use upf::n4::session::Sessions;
use upf::pipeline::guard::Guard;
use upf::pipeline::{Event, Graph, PACKET, Pipeline, Ports};
use upf::stats::{self, WorkerStats};
use upf::tables::Tables;

use super::support::*;

/// A UPF without threads and sockets.
pub struct World {
    pub sessions: Sessions,
    pub tables: Arc<Tables>,
    pub guard: Arc<Guard>,
    pub pipeline: Pipeline,
    pub ports: Ports,
    pub n3: Wire,
    pub n6: Wire,
    pub stats: Arc<[WorkerStats]>,
    pub events: mpsc::Receiver<Event>,
    pub now_ns: u64,
    pub batch: Vector,
}

pub const NOW: NtpSeconds = NtpSeconds(1000);
/// Addresses of the machine that the UPF is on.
pub const MACHINE_V4: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
pub const MACHINE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x200, 0, 0, 0, 0, 0, 1);

impl World {
    pub fn new() -> World {
        World::with_config(config("gw0"))
    }

    pub fn with_config(config: Config) -> World {
        let config = Arc::new(config);
        let tables = Arc::new(Tables::new(&config));
        let sessions = Sessions::new(Arc::clone(&config), Arc::clone(&tables), 5);
        let stats: Arc<[WorkerStats]> = Arc::new([WorkerStats::new(tables.interfaces())]);
        let (sender, events) = mpsc::channel(8);
        let guard = Arc::new(Guard::new(&config, [IpAddr::from(MACHINE_V4), MACHINE_V6.into()]));
        let pipeline = Pipeline::new(0, Arc::clone(&tables), Arc::clone(&stats), sender, Arc::clone(&guard));
        let (n3_port, n3) = memory::pair(20_000);
        let (n6_port, n6) = memory::pair(20_000);
        // The far ends of further interfaces are dropped.
        let further = tables.interfaces().iter().skip(2);
        let further = further.map(|_| Box::new(memory::pair(20_000).0) as Box<dyn Port>);
        let mut ports: Ports = vec![Box::new(n3_port), Box::new(n6_port)];
        ports.extend(further);
        World {
            sessions,
            tables,
            guard,
            pipeline,
            ports,
            n3,
            n6,
            stats,
            events,
            now_ns: 1,
            batch: Vector::new(64, PACKET),
        }
    }

    /// With the ordinary session; also returns its TEIDs on N3 and on N4-u.
    pub fn with_session() -> (World, u64, u32, u32) {
        let mut world = World::new();
        let (seid, n3, n4u) = world.establish();
        (world, seid, n3, n4u)
    }

    pub fn establish(&mut self) -> (u64, u32, u32) {
        self.establish_by(&establishment(0x55))
    }

    pub fn establish_by(&mut self, request: &SessionEstablishmentRequest) -> (u64, u32, u32) {
        let response = self.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
        assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
        let teid = |id: u16| {
            let created = response.created_pdrs.iter().find(|created| created.pdr_id == PdrId(id)).unwrap();
            match created.f_teid {
                Some(FTeid::Assigned { teid, ipv4: Some(GTPU), .. }) => teid,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(teid(1), teid(3), "PDRs with one choose id share an F-TEID");
        (response.up_f_seid.unwrap().seid, teid(1), teid(4))
    }

    /// Changes a session, as a CP function asks for it.
    pub fn modify(&mut self, seid: u64, request: &SessionModificationRequest) {
        let modified = self.sessions.modify(seid, SMF.into(), request, NOW).unwrap();
        assert_eq!(modified.response.cause, Cause::ACCEPTED, "{:?}", modified.response);
    }

    pub fn run(&mut self, input: usize) {
        loop {
            let received = self.ports[input].receive(&mut self.batch).unwrap();
            if received == 0 {
                return;
            }
            self.pipeline.process(input, &mut self.batch, self.now_ns, &mut self.ports);
        }
    }

    pub fn uplink(&mut self, datagram: &[u8]) {
        self.n3.inject(datagram, gnb());
        self.run(N3);
    }

    pub fn downlink(&mut self, packet: &[u8]) {
        self.n6.inject(packet, "0.0.0.0:0".parse().unwrap());
        self.run(N6);
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        stats::drops(&self.stats, reason)
    }

    /// Asserts that `count` packets were dropped for `reason`, none for any other, and nothing was sent.
    pub fn assert_only_dropped(&self, reason: DropReason, count: u64) {
        for other in DropReason::ALL {
            assert_eq!(self.drops(*other), if *other == reason { count } else { 0 }, "{}", other.name());
        }
        assert!(self.n6.take().is_empty());
    }
}

pub fn gnb() -> SocketAddr {
    SocketAddr::new(GNB.into(), 2152)
}

pub fn uplink_gpdu(teid: u32, packet: &[u8]) -> Vec<u8> {
    build_gpdu(teid, Some(PduSession::Uplink { qfi: QFI }), packet).unwrap()
}
