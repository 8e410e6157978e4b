//! The user plane's pipeline between memory ports: a UE's and a gNB's packets in, invariants out.
//!
//! The input is a number of packets from N3 and N6. Whatever they are, each is sent, consumed or counted under one
//! reason; what leaves on N6 is an IP packet from the UE's own address (UP-4); what leaves on N3 is well-formed GTP-U.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use packet::flow::Flow;
use packet::gtpu::{self, PduSession, Signalling, message_type};
use packet::{icmp, ipv4, ipv6, protocol};
use pfcp::message::SessionEstablishmentRequest;
use pfcp::*;
use pktio::Batch;
use pktio::memory::{self, Wire};
use telemetry::DropReason;
use tokio::sync::mpsc;
use upf::Config;
use upf::n4::session::Sessions;
use upf::pipeline::guard::Guard;
use upf::pipeline::{BATCH, Event, Input, PACKET, Pipeline, Ports};
use upf::stats::{self, WorkerStats};
use upf::tables::Tables;

const UPF: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
const SMF: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
const GNB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 20);
const UE: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
const UE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x45, 0, 7, 0, 0, 0, 0);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const SECOND_NS: u64 = 1_000_000_000;
/// Packets per input; also bounds the time that one takes.
const PACKETS: usize = 32;
/// Bits of the octet in front of each packet.
const FROM_N6: u8 = 1;
const FOREIGN_TUNNEL: u8 = 2;

/// A UPF without threads and sockets. It lives through all inputs of a run: rates recover between them.
struct World {
    pipeline: Pipeline,
    ports: Ports,
    n3: Wire,
    n6: Wire,
    stats: Arc<[WorkerStats]>,
    /// What is not taken from the queue would be lost; nothing of this target is lost there.
    events: mpsc::Receiver<Event>,
    /// Keeps its session published.
    _sessions: Sessions,
    teid: u32,
    now_ns: u64,
    batch: Batch,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

impl World {
    fn new() -> World {
        let config: Config = serde_json::from_str(
            r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "max_tunnels": 64, "dnn": [{"name": "internet",
                "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/24", "ipv6": "fd00:45::/56"}}]}"#,
        )
        .expect("the configuration is valid");
        let config = Arc::new(config);
        let tables = Arc::new(Tables::new(&config));
        let mut sessions = Sessions::new(Arc::clone(&config), Arc::clone(&tables), 5);
        let established = sessions.establish(NodeId::Ipv4(UPF), SMF.into(), &session(), NtpSeconds(1));
        assert_eq!(established.response.cause, Cause::ACCEPTED, "{:?}", established.response);
        let teid = match established.response.created_pdrs.first().and_then(|created| created.f_teid) {
            Some(FTeid::Assigned { teid, .. }) => teid,
            other => unreachable!("an F-TEID was asked for: {other:?}"),
        };
        let stats: Arc<[WorkerStats]> = Arc::new([WorkerStats::default()]);
        let (sender, events) = mpsc::channel(4 * PACKETS);
        let guard = Arc::new(Guard::new(&config, []));
        let pipeline = Pipeline::new(0, tables, Arc::clone(&stats), config.gtpu, 1, sender, guard);
        let (n3_port, n3) = memory::pair(8 * PACKETS);
        let (n6_port, n6) = memory::pair(8 * PACKETS);
        let ports = Ports { n3: Box::new(n3_port), n6: vec![Box::new(n6_port)] };
        let batch = Batch::new(BATCH, PACKET);
        World { pipeline, ports, n3, n6, stats, events, _sessions: sessions, teid, now_ns: 1, batch }
    }

    /// Packets that ended inside: dropped or consumed.
    fn ended(&self) -> u64 {
        let worker = &self.stats[0];
        let drops: u64 = DropReason::ALL.iter().map(|reason| stats::drops(&self.stats, *reason)).sum();
        drops + worker.echo_requests.get() + worker.error_indications_received.get() + worker.signalling.get()
    }

    /// Runs what waits on an input through the pipeline; how many packets there were.
    fn run(&mut self, input: Input) -> u64 {
        let mut packets = 0;
        loop {
            let received = match input {
                Input::N3 => self.ports.n3.receive(&mut self.batch),
                Input::N6(network) => self.ports.n6[network].receive(&mut self.batch),
            };
            match received {
                Ok(0) => return packets,
                Ok(received) => packets += received as u64,
                Err(error) => unreachable!("a memory port does not fail: {error}"),
            }
            self.pipeline.process(input, &mut self.batch, self.now_ns, &mut self.ports);
        }
    }

    fn run_input(&mut self, data: &[u8]) {
        let before = self.ended();
        let gnb = SocketAddr::from((GNB, gtpu::PORT));
        for (flags, packet) in packets(data) {
            if flags & FROM_N6 != 0 {
                self.n6.inject(packet, gnb);
                continue;
            }
            let mut packet = packet.to_vec();
            // Most mutations of a TEID would otherwise only find that nobody has it.
            if flags & FOREIGN_TUNNEL == 0
                && let Some(teid) = packet.get_mut(4..8)
            {
                teid.copy_from_slice(&self.teid.to_be_bytes());
            }
            self.n3.inject(&packet, gnb);
        }
        let received = self.run(Input::N3) + self.run(Input::N6(0));
        let n6 = self.n6.take();
        for (packet, _) in &n6 {
            check_uplink(packet);
        }
        let forwarded = self.n3.take().iter().filter(|(message, _)| check_message(message)).count();
        while self.events.try_recv().is_ok() {}
        let ended = self.ended() - before;
        assert_eq!(received, ended + (n6.len() + forwarded) as u64, "each packet once: {} N6", n6.len());
        // Rates of replies and to the CP function are back for the next input.
        self.now_ns += SECOND_NS;
    }
}

/// What goes to a data network is the UE's.
fn check_uplink(packet: &[u8]) {
    let flow = Flow::parse(packet).expect("only IP packets go to a data network");
    assert_eq!(flow.length, packet.len(), "nothing behind the packet");
    match flow.source {
        IpAddr::V4(source) => assert_eq!(source, UE),
        IpAddr::V6(source) => assert_eq!(source.to_bits() >> 64, UE6.to_bits() >> 64),
    }
    let guarded = flow.protocol == protocol::UDP && flow.destination == IpAddr::V4(UPF);
    assert!(!guarded || flow.ports.is_some_and(|(_, to)| to != gtpu::PORT && to != 8805), "{flow:?}");
}

/// What goes to a gNB is well-formed; whether it is a user packet.
fn check_message(message: &[u8]) -> bool {
    let view = gtpu::Packet::new(message).expect("what we send is well-formed");
    assert_eq!(view.bytes().len(), message.len());
    if view.message_type() != message_type::G_PDU {
        assert!(Signalling::parse(&view).is_ok(), "{message:02x?}");
        return false;
    }
    assert!(Flow::parse(view.payload()).is_ok(), "{message:02x?}");
    true
}

/// Packets of an input: an octet of flags, two of length, the packet.
fn packets(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [flags, high, low, rest @ ..] = data else { return None };
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (packet, rest) = rest.split_at(length);
        data = rest;
        Some((*flags, packet))
    })
    .take(PACKETS)
}

/// An IPv4v6 session with an SDF filter and a rate, as SMFs set them up.
fn session() -> SessionEstablishmentRequest {
    let pdr = |id: u16, precedence, pdi: Pdi, far| CreatePdr {
        pdr_id: PdrId(id),
        precedence: Precedence(precedence),
        outer_header_removal: pdi.f_teid.map(|_| OuterHeaderRemoval::default()),
        pdi,
        far_id: Some(FarId(far)),
        qer_ids: vec![QerId(1)],
        ..Default::default()
    };
    let ue = |destination| {
        Some(UeIpAddress { ipv4: Some(UE), ipv6: Some(UE6), destination, ..Default::default() })
    };
    let choose = Some(FTeid::Choose { ipv4: true, ipv6: false, id: Some(1) });
    let far = |id, to, tunnel: Option<OuterHeaderCreation>| CreateFar {
        far_id: FarId(id),
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(Box::new(ForwardingParameters {
            destination_interface: to,
            outer_header_creation: tunnel,
            ..Default::default()
        })),
        ..Default::default()
    };
    let dns = SdfFilter {
        flow_description: Some("permit out 17 from any 53 to assigned".into()),
        ..Default::default()
    };
    let up = Pdi { f_teid: choose, ue_ip_address: ue(false), ..Default::default() };
    let down = Pdi { source_interface: SourceInterface::Core, ue_ip_address: ue(true), ..Default::default() };
    let dns_down = Pdi { sdf_filters: vec![dns], ..down.clone() };
    SessionEstablishmentRequest {
        node_id: NodeId::Ipv4(SMF),
        cp_f_seid: FSeid::new(1, SMF.into()),
        create_pdrs: vec![pdr(1, 255, up, 1), pdr(2, 255, down, 2), pdr(3, 1, dns_down, 2)],
        create_fars: vec![
            far(1, DestinationInterface::Core, None),
            far(2, DestinationInterface::Access, Some(OuterHeaderCreation::gtpu(0x77, GNB.into()))),
        ],
        create_qers: vec![CreateQer {
            qer_id: QerId(1),
            qfi: Some(Qfi(9)),
            mbr: Some(BitRates { uplink_kbps: 100_000, downlink_kbps: 100_000 }),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// The target.
pub fn run(data: &[u8]) {
    WORLD.with(|world| world.borrow_mut().run_input(data));
}

/// Ordinary packets of both directions and families, signalling, and an input with some of each.
pub fn seeds() -> Vec<Vec<u8>> {
    let echo = |from: IpAddr, to: IpAddr| icmp::build_echo(from, to, 8, 1, 1, b"seed");
    let v4 = |from: Ipv4Addr, to: Ipv4Addr| {
        ipv4::Header::new(from, to, protocol::ICMP).build(&echo(from.into(), to.into())).unwrap_or_default()
    };
    let v6 = |from: Ipv6Addr, to: Ipv6Addr| {
        ipv6::Header::new(from, to, protocol::ICMPV6).build(&echo(from.into(), to.into())).unwrap_or_default()
    };
    let tunnelled =
        |inner: &[u8]| gtpu::build_gpdu(1, Some(PduSession::Uplink { qfi: 9 }), inner).unwrap_or_default();
    let input =
        |flags: u8, packet: &[u8]| [&[flags][..], &(packet.len() as u16).to_be_bytes(), packet].concat();
    let inner = v4(UE, SERVER);
    let mut seeds = vec![
        input(0, &tunnelled(&inner)),
        input(0, &tunnelled(&v6(UE6, SERVER6))),
        // A tunnel in a tunnel, and to the UPF itself.
        input(0, &tunnelled(&tunnelled(&inner))),
        input(0, &tunnelled(&v4(UE, UPF))),
        input(FOREIGN_TUNNEL, &tunnelled(&inner)),
        input(FROM_N6, &v4(SERVER, UE)),
        input(FROM_N6, &v6(SERVER6, UE6)),
        input(FOREIGN_TUNNEL, &Signalling::EchoRequest { sequence: 1 }.build()),
        input(FOREIGN_TUNNEL, &Signalling::EndMarker { teid: 1, pdu_session: None }.build()),
        input(
            FOREIGN_TUNNEL,
            &Signalling::ErrorIndication { teid: 0x77, peer: GNB.into(), udp_port: None }.build(),
        ),
    ];
    seeds.push(seeds.concat());
    seeds
}
