//! The pipeline under test with its sessions, without threads, sockets or N4: the only module here that uses
//! the internals of `upf`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use classifier::Rule;
use packet::gtpu;
use path::{Plan as WorkerPlan, Shared};
use pktio::{Port, Sent, Vector, crossing};
#[cfg(feature = "dpdk")]
use telemetry::DropReason;
use tokio::sync::mpsc;
use upf::pipeline::graph::Way;
use upf::pipeline::guard::Guard;
use upf::pipeline::{Event, Graph, Pipeline, Ports, Worker};
use upf::plan::{
    Action, Arrival, Container, Destination, Direction, Enforcement, Forward, OuterHeader, Pdr, Place, Plan,
    Qer, Urr,
};
use upf::session::Session;
use upf::stats::WorkerStats;
use upf::tables::{Held, Tables, Writer};

use super::subscriber::{CP, QFI, RATE_KBPS, Subscriber, UPF};
use super::users::Traffic;

/// The stages of the straight way.
const STAGES: [(&str, Way); 4] =
    [("parse", Way::Parse), ("look_up", Way::LookUp), ("execute", Way::Execute), ("transmit", Way::Transmit)];

/// Seed of the TEIDs.
const SEED: u64 = 5;

/// A pipeline and the tables that it reads.
pub(crate) struct World {
    control: Control,
    pipeline: Pipeline,
    /// Those of further workers.
    others: Vec<Pipeline>,
    stats: Arc<[WorkerStats]>,
    discard: Ports,
    record: Ports,
    sent: Record,
    /// TEIDs of the subscribers, in order.
    pub(crate) teids: Vec<u32>,
    /// Growth of the process's memory while the sessions were published.
    pub(super) bytes: u64,
    /// Time spent in the stages before the present measurement.
    timed_before: [u64; 4],
    _events: mpsc::Receiver<Event>,
}

/// A running worker with its sessions; ends when dropped.
pub(super) struct Serving {
    _workers: Vec<Worker>,
    #[cfg_attr(not(feature = "dpdk"), expect(dead_code, reason = "read where DPDK is measured"))]
    stats: Arc<[WorkerStats]>,
    _control: Control,
    _events: mpsc::Receiver<Event>,
}

impl Serving {
    /// Packets that were dropped on their way from worker to worker.
    #[cfg(feature = "dpdk")]
    pub(super) fn crowded_out(&self) -> u64 {
        self.stats.iter().map(|stats| stats.drops.get(DropReason::WorkerQueueFull)).sum()
    }
}

/// The sessions of a pipeline that runs elsewhere.
pub(crate) struct Kept {
    _control: Control,
    _events: mpsc::Receiver<Event>,
}

/// The writer's side of a world.
#[derive(Default)]
pub(super) struct Control {
    writer: Option<Writer>,
    /// The sessions with their TEIDs.
    sessions: Vec<(Session, u32)>,
    traffic: Traffic,
}

impl Control {
    /// Gives a session the other one of its two tunnels.
    ///
    /// # Errors
    /// The change is refused.
    pub(super) fn change(&mut self, number: usize) -> anyhow::Result<()> {
        let count = self.sessions.len().max(1);
        let (at, other) = (number % count, (number / count).is_multiple_of(2));
        if let (Some(writer), Some((session, teid))) = (&mut self.writer, self.sessions.get_mut(at)) {
            let plan = plan(
                Subscriber(at as u32),
                *teid,
                far_end(Subscriber(at as u32), other, self.traffic),
                self.traffic,
            );
            writer.modify(session, &plan, Held::Sent)?;
        }
        Ok(())
    }
}

/// Packets that were sent, and their destinations.
type Record = Arc<Mutex<Vec<(Vec<u8>, SocketAddr)>>>;

/// The configuration of a UPF on kernel sockets and a TUN device for `sessions` sessions.
pub(crate) fn config(sessions: usize) -> anyhow::Result<upf::Config> {
    config_with(
        sessions,
        &format!(r#""pfcp": "{UPF}:8805", "gtpu": "{UPF}:2152""#),
        r#""tun": "gw0", "mtu": 9000"#,
    )
}

/// The same for other backends, with interfaces and further keys in the UPF's section and in its data network.
pub(crate) fn config_with(sessions: usize, upf: &str, dnn: &str) -> anyhow::Result<upf::Config> {
    config_for(Traffic::Plain, sessions, upf, dnn)
}

/// The same with the pools of a kind of traffic.
fn config_for(traffic: Traffic, sessions: usize, upf: &str, dnn: &str) -> anyhow::Result<upf::Config> {
    let pools = traffic.pools();
    let tunnels = (sessions + 1).next_power_of_two().max(1024);
    let text = format!(
        r#"{{"smf": ["0.0.0.0/0", "::/0"], "max_tunnels": {tunnels}, {upf},
            "dnn": [{{"name": "internet", "ue_pool": {{{pools}}}, {dnn}}}]}}"#
    );
    Ok(serde_json::from_str(&text)?)
}

/// Numbers of the interfaces.
const N3: usize = 0;
const N6: usize = 1;

impl World {
    /// A world with `count` sessions, published without N4, so that their memory is only that of the data
    /// plane.
    ///
    /// # Errors
    /// A session is refused.
    pub(super) fn new(count: usize) -> anyhow::Result<World> {
        World::with(count, Traffic::Plain)
    }

    /// The same for a kind of traffic.
    ///
    /// # Errors
    /// A session is refused.
    pub(super) fn with(count: usize, traffic: Traffic) -> anyhow::Result<World> {
        World::for_workers(count, traffic, 1)
    }

    /// The same with a pipeline for each of several workers.
    ///
    /// # Errors
    /// A session is refused.
    pub(super) fn for_workers(count: usize, traffic: Traffic, workers: usize) -> anyhow::Result<World> {
        World::build(count, traffic, workers, |subscriber| far_end(subscriber, false, traffic))
    }

    /// A world whose sessions are those of one gNB: `tunnels` are its TEIDs by subscriber.
    ///
    /// # Errors
    /// A session is refused.
    pub(crate) fn of_gnb(gnb: SocketAddr, tunnels: &[u32]) -> anyhow::Result<World> {
        World::build(tunnels.len(), Traffic::Plain, 1, |subscriber| (tunnels[subscriber.0 as usize], gnb))
    }

    fn build(
        count: usize,
        traffic: Traffic,
        workers: usize,
        far_end: impl Fn(Subscriber) -> (u32, SocketAddr),
    ) -> anyhow::Result<World> {
        let addresses = format!(r#""pfcp": "{UPF}:8805", "gtpu": "{UPF}:2152""#);
        let config = Arc::new(config_for(traffic, count, &addresses, r#""tun": "gw0", "mtu": 9000"#)?);
        let tables = Arc::new(Tables::new(&config));
        tables.share_between(workers as u32);
        let mut writer = Writer::new(Arc::clone(&tables), &config, SEED);
        let (mut sessions, mut teids) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let before = resident_bytes()?;
        for number in 0..count as u32 {
            let teid = writer.allocate(N3 as u8).context("no TEID is left")?;
            let subscriber = Subscriber(number);
            let session = writer.establish(&plan(subscriber, teid, far_end(subscriber), traffic))?;
            sessions.push((session, teid));
            teids.push(teid);
        }
        let bytes = resident_bytes()?.saturating_sub(before);
        let stats: Arc<[WorkerStats]> = (0..workers).map(|_| WorkerStats::new(tables.interfaces())).collect();
        let (sender, events) = mpsc::channel(16);
        let guard = Arc::new(Guard::new(&config, []));
        let mut pipelines = (0..workers).map(|worker| {
            let (tables, stats, guard) = (Arc::clone(&tables), Arc::clone(&stats), Arc::clone(&guard));
            Pipeline::new(worker, tables, stats, sender.clone(), guard)
        });
        let pipeline = pipelines.next().context("no worker")?;
        let others = pipelines.collect();
        let sent = Record::default();
        let ports = |sent: Option<&Record>| {
            let port = || Box::new(Sink(sent.cloned())) as Box<dyn Port>;
            vec![port(), port()]
        };
        let (discard, record) = (ports(None), ports(Some(&sent)));
        Ok(World {
            control: Control { writer: Some(writer), sessions, traffic },
            pipeline,
            others,
            stats,
            discard,
            record,
            sent,
            teids,
            bytes,
            timed_before: [0; 4],
            _events: events,
        })
    }

    /// The TEIDs of this many sessions, which are the same in every world.
    ///
    /// # Errors
    /// There are not enough TEIDs.
    pub(crate) fn teids(count: usize) -> anyhow::Result<Vec<u32>> {
        let config = Arc::new(config(count)?);
        let mut writer = Writer::new(Arc::new(Tables::new(&config)), &config, SEED);
        (0..count).map(|_| writer.allocate(N3 as u8).context("no TEID is left")).collect()
    }

    /// Processes a batch in the pipeline, as a worker does.
    #[inline]
    pub(super) fn process(&mut self, up: bool, batch: &mut Vector) {
        let input = if up { N3 } else { N6 };
        let now_ns = net::time::now_ns();
        self.pipeline.process(input, batch, now_ns, &mut self.discard);
    }

    /// Name of the thread of [`World::serve`].
    pub(super) const WORKER: &str = "upf-bench";

    /// The pipeline, to run on ports of the caller, and what must live as long as it.
    pub(crate) fn into_graph(self) -> (Pipeline, Kept) {
        (self.pipeline, Kept { _control: self.control, _events: self._events })
    }

    /// Starts a worker of the user plane between other ports, which polls for `poll` at most before it sleeps.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn serve(self, ports: Ports, poll: net::time::Duration) -> io::Result<Serving> {
        self.serve_all(vec![(None, ports)], poll)
    }

    /// Starts a worker for each of these ports, on this core if there is one. They give packets to their owner.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn serve_all(
        self,
        workers: Vec<(Option<usize>, Ports)>,
        poll: net::time::Duration,
    ) -> io::Result<Serving> {
        let World { control, pipeline, others, stats, _events, .. } = self;
        let mut ends = crossing::connect(if workers.len() > 1 { workers.len() } else { 0 }).into_iter();
        let start = |(pipeline, (core, ports))| {
            let (name, inputs) = (World::WORKER.to_owned(), vec![N3, N6]);
            let shared = ends.next().map(|crossing| Shared { crossing, inputs: inputs.clone() });
            Worker::start_as(
                WorkerPlan { name, core, inputs, poll, realtime: false, shared },
                pipeline,
                ports,
            )
        };
        let workers = std::iter::once(pipeline).chain(others).zip(workers).map(start);
        Ok(Serving { _workers: workers.collect::<io::Result<_>>()?, stats, _control: control, _events })
    }

    /// The same; returns the packets that were sent.
    pub(super) fn process_and_show(&mut self, up: bool, batch: &mut Vector) -> Vec<(Vec<u8>, SocketAddr)> {
        let input = if up { N3 } else { N6 };
        let now_ns = net::time::now_ns();
        self.pipeline.process(input, batch, now_ns, &mut self.record);
        std::mem::take(&mut *self.sent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts measuring the time of each stage in every vector, which itself takes some time.
    pub(super) fn time_stages(&mut self) {
        self.pipeline.time_stages();
        self.timed_before = self.timed();
    }

    /// Nanoseconds spent in the stages so far.
    fn timed(&self) -> [u64; 4] {
        STAGES.map(|(_, stage)| self.stats[0].nodes[stage as usize].get().timed_ns)
    }

    /// Nanoseconds spent in each stage since then.
    pub(super) fn stages(&self) -> [(&'static str, u64); 4] {
        let (now, before) = (self.timed(), self.timed_before);
        std::array::from_fn(|at| (STAGES[at].0, now[at] - before[at]))
    }

    /// Packets sent on N6 and N3.
    pub(super) fn sent(&self) -> [u64; 2] {
        let stats = &self.stats[0];
        [stats.interfaces[N6].downlink.get().packets, stats.interfaces[N3].downlink.get().packets]
    }

    /// Octets that usage reporting counted in all sessions, uplink and downlink.
    pub(super) fn counted(&self) -> [u64; 2] {
        self.control.sessions.iter().fold([0, 0], |[up, down], (session, _)| {
            let (uplink, downlink) = session.usage();
            [up + uplink.packets, down + downlink.packets]
        })
    }

    /// Takes the writer's side, for another thread.
    pub(super) fn take_control(&mut self) -> Control {
        std::mem::take(&mut self.control)
    }

    /// Puts it back.
    pub(super) fn give_control(&mut self, control: Control) {
        self.control = control;
    }

    /// TEID at the gNB after a change.
    pub(super) fn other_teid(subscriber: Subscriber) -> u32 {
        !subscriber.gnb_teid()
    }

    /// Source of the packets.
    pub(super) fn peer() -> SocketAddr {
        SocketAddr::new(CP.into(), gtpu::PORT)
    }
}

/// A port that accepts every packet, and keeps it on request.
struct Sink(Option<Record>);

impl Port for Sink {
    fn receive(&mut self, _: &mut Vector) -> io::Result<usize> {
        Ok(0)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let frames = batch.frames();
        let packets = selected.iter().filter_map(|at| frames.get(usize::from(*at)));
        if let Some(record) = &self.0 {
            let kept = selected.iter().filter_map(|at| {
                let packet = frames.get(usize::from(*at))?.packet().to_vec();
                Some((packet, batch.destination((*at).into())?))
            });
            record.lock().unwrap_or_else(PoisonError::into_inner).extend(kept);
        }
        let bytes = packets.map(pktio::Frame::len).sum();
        Sent { packets: selected.len(), bytes, ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The far end of a subscriber's tunnel, or the other one.
fn far_end(subscriber: Subscriber, other: bool, traffic: Traffic) -> (u32, SocketAddr) {
    let teid = if other { World::other_teid(subscriber) } else { subscriber.gnb_teid() };
    (teid, traffic.gnb(subscriber))
}

/// A subscriber's session as N4 would plan it, with the rules of [`Subscriber::request`]. `far_end` is the gNB's.
fn plan(subscriber: Subscriber, teid: u32, far_end: (u32, SocketAddr), traffic: Traffic) -> Plan {
    let ue = traffic.addresses(subscriber);
    let pdr = |id: u16, direction| {
        let header = OuterHeader {
            teid: far_end.0,
            peer: far_end.1,
            interface: N3 as u8,
            container: Container::Downlink,
        };
        let to = match direction {
            Direction::Uplink => Destination::DataNetwork(N6 as u16),
            Direction::Downlink => Destination::Tunnel(header),
        };
        Pdr {
            id,
            direction,
            check_source: direction == Direction::Uplink,
            action: Action::Forward(Forward { to, tos: None }),
            notify: false,
            duplicates: Vec::new(),
            qers: vec![0],
            urrs: vec![0],
            qfi: Some(QFI),
            rqi: false,
            ppi: None,
        }
    };
    let rules = |up: bool, first: u32| {
        let of = traffic.rules(subscriber, up).map(|rule| Rule {
            id: first + rule.id,
            value: first + rule.value,
            ..rule
        });
        of.to_vec()
    };
    let enforcement = Enforcement { open: true, mbr_kbps: Some(RATE_KBPS), gbr_kbps: None };
    Plan {
        seid: u64::from(subscriber.0) + 1,
        native: ue.clone(),
        ue,
        arrivals: vec![
            Arrival { place: Place::Tunnel(teid), rules: rules(true, 0) },
            Arrival { place: Place::Native, rules: rules(false, 2) },
        ],
        pdrs: vec![
            pdr(1, Direction::Uplink),
            pdr(2, Direction::Uplink),
            pdr(3, Direction::Downlink),
            pdr(4, Direction::Downlink),
        ],
        qers: vec![Qer { id: 1, uplink: enforcement, downlink: enforcement }],
        urrs: vec![Urr { id: 1, marks: traffic.marks() }],
        ..Plan::default()
    }
}

/// Memory in use by this process, from /proc.
fn resident_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in /proc/self/status")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
