//! `ul_cl`: our UPF as uplink classifier (TS 23.501 §5.6.4.2), the standard's way of diverting: what an uplink packet costs in it,
//! against a plain UPF, and against one that relays all packets to one anchor. All three are pipelines between ports in memory with
//! sessions of the same N4 task, made by PFCP rules; half of the packets are of the application that is diverted. Beside them is
//! our switch on the host path ([`in_memory`](super::in_memory)), which steers half of the users, or only forwards.
//!
//! Before the clock starts, packets go through each of them and are compared octet by octet. Contenders take turns within a
//! round.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use net::time::Duration;
use packet::gtpu::{self, PduSession, build_gpdu};
use path::{Graph as _, Ports};
use pfcp::message::SessionEstablishmentRequest;
use pfcp::{
    Cause, CreateFar, FTeid, FarId, NodeId, NtpSeconds, OuterHeaderCreation, OuterHeaderRemoval, PdrId,
    SourceInterface,
};
use pktio::memory::{self, Sink};
use pktio::{Port, Vector};
use tokio::sync::mpsc;
use upf::n4::session::Sessions;
use upf::pipeline::guard::Guard;
use upf::pipeline::{BATCH, Event, Pipeline};
use upf::stats::WorkerStats;
use upf::tables::Tables;

use super::Figure;
use super::in_memory::{InMemory, Steering};
use crate::ran::Run;
use crate::samples::{Axes, Results};
use crate::stats::median;
use crate::upf::alone::{Window, timed};
use crate::upf::subscriber::{CP, QFI, Subscriber, UE_POOL, UPF};
use crate::upf::traffic::{Direction, Draw, TUNNEL, Template};

const NS: Axes = Axes { x: "octets", y: "time per packet", unit: "ns" };
/// The UPF's address on N9, and the anchors'.
const N9_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 202, 0, 1);
const CENTRAL: Ipv4Addr = Ipv4Addr::new(10, 202, 0, 2);
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 202, 0, 3);
/// Numbers of the interfaces, in the order of the configuration.
const N3: usize = 0;
const N9: usize = 1;
const N6: usize = 2;
/// Vectors whose packets are compared before the first sample.
const COMPARED: usize = 4;
const SEED: u64 = 14;

/// Who forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contender {
    /// A UPF with N3 and N6.
    Plain,
    /// A UPF that sends all uplink packets to one anchor.
    Relay,
    /// A UPF that sends one application's packets to an anchor of their own.
    Classifier,
}

impl Contender {
    /// In the order of samples.
    const ALL: [Contender; 3] = [Contender::Plain, Contender::Relay, Contender::Classifier];

    /// Its name in series.
    fn name(self) -> &'static str {
        match self {
            Contender::Plain => "plain",
            Contender::Relay => "relay",
            Contender::Classifier => "ul_cl",
        }
    }

    /// The rules of a subscriber, with its tunnels at the anchors.
    fn rules(self, subscriber: Subscriber) -> SessionEstablishmentRequest {
        let mut request = subscriber.request(subscriber.gnb());
        if self == Contender::Plain {
            return request;
        }
        for pdr in
            request.create_pdrs.iter_mut().filter(|pdr| pdr.pdi.source_interface == SourceInterface::Core)
        {
            pdr.pdi.f_teid = Some(FTeid::Choose { ipv4: true, ipv6: false, id: Some(2) });
            pdr.outer_header_removal = Some(OuterHeaderRemoval::default());
        }
        if self == Contender::Classifier {
            let mut far = request.create_fars[0].clone();
            far.far_id = FarId(3);
            set_tunnel(&mut far, tunnel_to_local(subscriber));
            request.create_fars.push(far);
            // The first PDR is that of the application.
            request.create_pdrs[0].far_id = Some(FarId(3));
        }
        set_tunnel(&mut request.create_fars[0], tunnel_to_central(subscriber));
        request
    }

    /// What becomes of an uplink packet of `inner`: the interface, the packet, and where it goes.
    fn outcome(self, subscriber: Subscriber, service: bool, inner: &[u8]) -> anyhow::Result<Outcome> {
        let (teid, anchor) = match self {
            Contender::Plain => return Ok((N6, inner.to_vec(), None)),
            Contender::Classifier if service => tunnel_to_local(subscriber),
            _ => tunnel_to_central(subscriber),
        };
        let packet = build_gpdu(teid, Some(PduSession::Uplink { qfi: QFI }), inner)?;
        Ok((N9, packet, Some(SocketAddr::new(anchor.into(), gtpu::PORT))))
    }
}

type Outcome = (usize, Vec<u8>, Option<SocketAddr>);

/// A subscriber's tunnels at the anchors: TEID and address.
fn tunnel_to_central(subscriber: Subscriber) -> (u32, Ipv4Addr) {
    (subscriber.gnb_teid(), CENTRAL)
}

fn tunnel_to_local(subscriber: Subscriber) -> (u32, Ipv4Addr) {
    (!subscriber.gnb_teid(), LOCAL)
}

fn set_tunnel(far: &mut CreateFar, (teid, peer): (u32, Ipv4Addr)) {
    if let Some(parameters) = &mut far.forwarding_parameters {
        parameters.outer_header_creation = Some(OuterHeaderCreation::gtpu(teid, peer.into()));
    }
}

/// A UPF between ports in memory.
struct Node {
    contender: Contender,
    pipeline: Pipeline,
    discard: Ports,
    /// The subscribers' tunnels for uplink packets.
    teids: Vec<u32>,
    _sessions: Sessions,
    _events: mpsc::Receiver<Event>,
}

impl Node {
    fn new(contender: Contender, count: usize) -> anyhow::Result<Node> {
        let config = Arc::new(config(count)?);
        let tables = Arc::new(Tables::new(&config));
        let mut sessions = Sessions::new(Arc::clone(&config), Arc::clone(&tables), SEED);
        let mut teids = Vec::with_capacity(count);
        for number in 0..count as u32 {
            let request = contender.rules(Subscriber(number));
            let answer = sessions.establish(NodeId::Ipv4(CP), CP.into(), request, NtpSeconds(1)).response;
            ensure!(answer.cause == Cause::ACCEPTED, "{contender:?}: session {number} refused: {answer:?}");
            let uplink = answer.created_pdrs.iter().find(|created| created.pdr_id == PdrId(1));
            match uplink.and_then(|created| created.f_teid) {
                Some(FTeid::Assigned { teid, .. }) => teids.push(teid),
                other => bail!("{contender:?}: no tunnel for uplink packets: {other:?}"),
            }
        }
        let stats: Arc<[WorkerStats]> = Arc::new([WorkerStats::new(tables.interfaces())]);
        let (sender, events) = mpsc::channel(16);
        let guard = Arc::new(Guard::new(&config, []));
        let pipeline = Pipeline::new(0, tables, stats, sender, guard);
        let discard = [N3, N9, N6].map(|_| Box::new(Sink::default()) as Box<dyn Port>).into();
        Ok(Node { contender, pipeline, discard, teids, _sessions: sessions, _events: events })
    }

    /// Sends packets of all kinds through the pipeline, and compares what comes out octet by octet.
    fn verify(&mut self, size: usize) -> anyhow::Result<()> {
        let (mut template, mut draw) = (Template::new(true, size)?, Draw::new(self.teids.len(), SEED));
        let (mut ports, wires): (Ports, Vec<_>) = (0..=N6)
            .map(|_| memory::pair(BATCH))
            .map(|(port, wire)| (Box::new(port) as Box<dyn Port>, wire))
            .unzip();
        let mut batch = Vector::new(BATCH, size + 2 * TUNNEL + 64);
        for number in 0..COMPARED as u32 {
            let mut expected: [Vec<_>; 3] = Default::default();
            batch.clear();
            for at in 0..BATCH as u32 {
                let (subscriber, service) = draw.next();
                template.mark(number * BATCH as u32 + at, 0);
                let packet = template.fill(subscriber, self.teids[subscriber.0 as usize], service);
                let (interface, sent, to) = self.contender.outcome(subscriber, service, &packet[TUNNEL..])?;
                expected[interface].push((sent, to));
                batch.push(packet, subscriber.gnb());
            }
            self.pipeline.process(N3, &mut batch, net::time::now_ns(), &mut ports);
            for (wire, expected) in wires.iter().zip(expected) {
                let sent = wire.take();
                let same = sent.len() == expected.len()
                    && sent.iter().zip(&expected).all(|((packet, peer), (wanted, to))| {
                        packet == wanted && to.is_none_or(|to| to == *peer)
                    });
                ensure!(same, "{:?}: packets that are not as they must be", self.contender);
            }
        }
        Ok(())
    }
}

fn config(sessions: usize) -> anyhow::Result<upf::Config> {
    let tunnels = (4 * sessions + 1).next_power_of_two().max(1024);
    let text = format!(
        r#"{{"pfcp": "{UPF}:8805", "smf": ["0.0.0.0/0"], "max_tunnels": {tunnels}, "interfaces": [
            {{"name": "n3", "role": "n3", "gtpu": "{UPF}:2152"}},
            {{"name": "n9", "role": "n9", "gtpu": "{N9_ADDRESS}:2152"}},
            {{"name": "n6", "role": "n6", "device": "gw0"}}],
            "dnn": [{{"name": "internet", "interfaces": ["n6"], "ue_pool": {{"ipv4": "{UE_POOL}"}}, "mtu": 9000}}]}}"#
    );
    Ok(serde_json::from_str(&text)?)
}

/// Extent of the measurement.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    /// Sessions of each UPF, and users of each switch.
    pub(super) sessions: usize,
    /// Users of a switch whose caches are too small for all of them.
    pub(super) many: u32,
    /// Octets of the user's packets.
    pub(super) sizes: Vec<usize>,
    /// Time per sample.
    pub(super) sample: Duration,
}

impl Plan {
    /// That of a quick run, and of a full one.
    pub(super) fn new(quick: bool) -> Plan {
        let (rounds, ms) = if quick { (5, 10) } else { (20, 30) };
        Plan {
            rounds,
            sessions: 1000,
            many: 65_536,
            sizes: vec![64, 1400],
            sample: Duration::from_millis(ms),
        }
    }
}

/// Measures all contenders.
///
/// # Errors
/// A session or a rule is refused, or a contender sends a packet that is not as it must be.
pub(super) fn run<P>(run: &mut Run<P>, plan: &Plan) -> anyhow::Result<()> {
    run.param("ul_cl_sessions", plan.sessions);
    for size in &plan.sizes {
        let mut nodes = Vec::with_capacity(Contender::ALL.len());
        for contender in Contender::ALL {
            let mut node = Node::new(contender, plan.sessions).with_context(|| contender.name())?;
            node.verify(*size)?;
            nodes.push(node);
        }
        let mut switches = Vec::with_capacity(Steering::ALL.len());
        for steering in Steering::ALL {
            let mut switch = InMemory::new(steering, plan.sessions as u32, *size)?;
            switch.verify().with_context(|| steering.name())?;
            switch.warm();
            switches.push(switch);
        }
        for round in 0..plan.rounds {
            run.progress.say(&format!("ul_cl: {size} octets, round {round}"));
            // Every other round the other way round, so that a machine whose speed changes affects all alike.
            if round.is_multiple_of(2) {
                upfs(run, &mut nodes, plan, (*size, round))?;
            }
            for switch in &mut switches {
                let name = format!("ul_cl.switch_{}.ns", switch.steering.name());
                run.results.add(name, NS, *size, switch.sample(plan.sample));
            }
            if !round.is_multiple_of(2) {
                upfs(run, &mut nodes, plan, (*size, round))?;
            }
            switches.reverse();
        }
    }
    let size = plan.sizes.first().copied().context("no size")?;
    let mut switch = InMemory::new(Steering::On, plan.many, size)?;
    switch.verify()?;
    switch.warm();
    for _ in 0..plan.rounds {
        run.results.add("ul_cl.switch_on_many.ns".to_owned(), NS, size, switch.sample(plan.sample));
    }
    Ok(())
}

fn upfs<P>(
    run: &mut Run<P>,
    nodes: &mut [Node],
    plan: &Plan,
    (size, round): (usize, usize),
) -> anyhow::Result<()> {
    let mut window = Window::new(plan.sessions, size, SEED + round as u64)?;
    let last = nodes.len() - 1;
    for at in (0..=last).map(|at| if round.is_multiple_of(2) { at } else { last - at }) {
        let Node { contender, pipeline, discard, teids, .. } = &mut nodes[at];
        let taken = timed(plan.sample, &mut window, Direction::Uplink, teids, |_, batch| {
            pipeline.process(N3, batch, net::time::now_ns(), discard);
        });
        run.results.add(format!("ul_cl.{}.ns", contender.name()), NS, size, taken.per_packet);
    }
    Ok(())
}

/// The promised figures, at the smallest size: what diverting adds to a packet, and the rates.
pub(super) fn summarise(results: &Results, figure: Figure<'_>) {
    let Some(size) = results.places("ul_cl.ul_cl.ns").first().copied() else { return };
    let added = |of: &str, than: &str| {
        let pairs: Vec<f64> = results.pairs(of, than, size).map(|(of, than)| of - than).collect();
        Some(median(&pairs))
    };
    let mpps = |name: &str| results.median(name, size).map(|ns| 1e3 / ns);
    figure("ul_cl_mpps", mpps("ul_cl.ul_cl.ns"), None);
    figure("ul_cl_added_ns", added("ul_cl.ul_cl.ns", "ul_cl.relay.ns"), None);
    figure("switch_memory_mpps", mpps("ul_cl.switch_on.ns"), None);
    figure("switch_memory_mpps_64k", mpps("ul_cl.switch_on_many.ns"), None);
    figure("switch_memory_added_ns", added("ul_cl.switch_on.ns", "ul_cl.switch_off.ns"), None);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each contender sends every packet as it must; else this fails.
    #[test]
    fn every_contender_is_measured() {
        let (sizes, sample) = (vec![64, 1400], Duration::from_millis(1));
        let plan = Plan { rounds: 2, sessions: 50, many: 100, sizes, sample };
        let mut run = Run::begin("diverting", true, plan.rounds, ()).unwrap();
        super::run(&mut run, &plan).unwrap();
        let experiment = run.end(|_, _| ());
        assert_eq!(experiment.series.len(), Contender::ALL.len() + Steering::ALL.len() + 1);
        for series in experiment.series {
            assert!(series.points.iter().all(|point| point.samples.len() == 2), "{series:?}");
        }
    }

    /// An outcome that is not the rules' is seen.
    #[test]
    fn a_wrong_anchor_is_noticed() {
        let mut node = Node::new(Contender::Relay, 10).unwrap();
        node.contender = Contender::Classifier;
        assert!(node.verify(64).is_err());
    }
}
