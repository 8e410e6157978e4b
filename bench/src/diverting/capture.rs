//! `capture`: what the capture of control messages adds to them, before the MME or SMF (CAP-2, CAP-3).
//!
//! ```text
//!  one namespace: SMF ── LOCAL [switch] ext ──── ext: UPF
//!                               │ OpenFlow, 127.0.0.1
//!                               controller
//! ```
//! One PFCP request at a time goes through a control switch to a responder and its answer comes back: without capture, with copies to the
//! controller, and by way of the controller. Each of these is a switch of its own, whose rules the real controller's application has set,
//! so that all are there at once and take turns. What a mode adds is the difference to the same contender without capture, round by
//! round. The controller must have filed every message afterwards.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use anyhow::{Context as _, ensure};
use controller::Controller;
use lab::open_vswitch::{Bridge, OpenVswitch};
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::time::{self, Duration};
use net::udp;
use openflow::{Action, FlowMod, Instructions, Match, Oxm, PortNo, TableId};
use pfcp::message::{SessionEstablishmentRequest, SessionEstablishmentResponse};
use pfcp::{Cause, FSeid, Message, NodeId};
use pktio::af_xdp::device::Device;
use serde_json::json;
use tokio::runtime::Runtime;

use super::Figure;
use super::client::{COOKIE, Client};
use super::site::Contender;
use crate::machine;
use crate::ran::Run;
use crate::samples::{Axes, Results};
use crate::stats::quantile;
use crate::upf::subscriber::{CP, Subscriber, UPF};

const US: Axes = Axes { x: "", y: "time", unit: "us" };
/// What passes LOCAL never takes XDP.
const CONTENDERS: [Contender; 2] = [Contender::Host, Contender::Ovs];
const PFCP: u16 = 8805;
/// Where the sequence number is in a message of a session (TS 29.244 §7.2.2.1), three octets.
const SEQUENCE_AT: usize = 12;
/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time limit for the switches to have their rules, and for the controller to have filed the last message.
const READY: Duration = Duration::from_secs(20);
/// How often the responder looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Extent of the measurement.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    /// Requests of each switch in a round.
    pub(super) requests: u32,
    /// Between two of them.
    pub(super) pause: Duration,
}

impl Plan {
    /// That of a quick run, and of a full one.
    pub(super) fn new(quick: bool) -> Plan {
        let (rounds, requests) = if quick { (3, 200) } else { (10, 500) };
        Plan { rounds, requests, pause: Duration::from_micros(500) }
    }
}

/// How control messages get to the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// They do not.
    Off,
    /// One rule forwards and copies (CAP-3).
    Copy,
    /// The controller forwards them (CAP-2).
    ViaController,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Off, Mode::Copy, Mode::ViaController];

    fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Copy => "copy",
            Mode::ViaController => "via_controller",
        }
    }

    /// The SMF's address, which the host of the switch has, and the UPF's.
    fn addresses(self) -> [Ipv4Addr; 2] {
        let net = self as u8;
        [Ipv4Addr::new(10, 1, net, 1), Ipv4Addr::new(10, 1, net, 11)]
    }

    /// The interface towards the UPF, and that of LOCAL.
    fn devices(self) -> [&'static str; 2] {
        match self {
            Mode::Off => ["ext0", "smf0"],
            Mode::Copy => ["ext1", "smf1"],
            Mode::ViaController => ["ext2", "smf2"],
        }
    }

    /// Ports on 127.0.0.1: of the controller's OpenFlow and API, and of the switch.
    fn ports(self) -> [SocketAddr; 3] {
        [6653, 8181, 6663].map(|port| SocketAddr::from(([127, 0, 0, 1], port + self as u16)))
    }
}

/// Measures all contenders.
///
/// # Errors
/// The process lacks rights, Open vSwitch is not installed, or a message gets lost.
pub(super) fn run<P>(run: &mut Run<P>, plan: &Plan) -> anyhow::Result<()> {
    // Switches, controllers and responders have threads of their own, which run wherever there is room.
    let pinned = run.cores[..1].to_vec();
    machine::pin(&run.cores.clone());
    let result = measure(run, plan);
    machine::pin(&pinned);
    result
}

fn measure<P>(run: &mut Run<P>, plan: &Plan) -> anyhow::Result<()> {
    let (request, _) = messages()?;
    run.param("capture_request_octets", request.len());
    let mut sites = Vec::new();
    for contender in CONTENDERS {
        run.progress.say(&format!("capture: control switches, {}", contender.name()));
        sites.push(Site::start(contender, &run.cores).with_context(|| contender.name())?);
    }
    for round in 0..plan.rounds {
        for site in &mut sites {
            run.progress.say(&format!("capture: {}, round {round}", site.contender.name()));
            let mut order = Mode::ALL;
            if !round.is_multiple_of(2) {
                order.reverse();
            }
            for mode in order {
                let times = site.ways[mode as usize].exchange(plan)?;
                for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
                    let series = format!("capture.{}.{}.{name}", site.contender.name(), mode.name());
                    run.results.add(series, US, 0, quantile(&times, q));
                }
            }
        }
    }
    for site in &sites {
        for way in &site.ways {
            let filed = site.filed(way)?;
            let wanted = if way.controller.is_some() { way.exchanged } else { [0; 2] };
            let name = format!("every message is filed ({}, {})", site.contender.name(), way.mode.name());
            let [requests, answers] = filed;
            run.check(
                &name,
                filed == wanted,
                format!("{requests} requests, {answers} answers; of {wanted:?}"),
            );
        }
    }
    added(&mut run.results);
    Ok(())
}

/// What each mode adds, round by round.
fn added(results: &mut Results) {
    for contender in CONTENDERS {
        for mode in [Mode::Copy, Mode::ViaController] {
            for q in ["p50", "p99"] {
                let series = |mode: Mode| format!("capture.{}.{}.{q}", contender.name(), mode.name());
                let name = format!("capture.{}.{}.added_{q}", contender.name(), mode.name());
                results.add_pairs(&name, US, (&series(mode), &series(Mode::Off)), |with, without| {
                    with - without
                });
            }
        }
    }
}

/// The promised figures: microseconds that a mode adds, median and 99th percentile.
pub(super) fn summarise(results: &Results, figure: Figure<'_>) {
    for contender in CONTENDERS {
        for mode in [Mode::Copy, Mode::ViaController] {
            for q in ["p50", "p99"] {
                let series = format!("capture.{}.{}.added_{q}", contender.name(), mode.name());
                let name = format!("capture_{}_added_{q}_us_{}", mode.name(), contender.name());
                figure(&name, results.median(&series, 0), None);
            }
        }
    }
}

/// A request, and its answer.
fn messages() -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let request = Subscriber(0).request(Subscriber(0).gnb());
    let seid = SessionEstablishmentRequest::default().cp_f_seid.seid;
    let answer = SessionEstablishmentResponse {
        node_id: NodeId::Ipv4(UPF),
        cause: Cause::ACCEPTED,
        up_f_seid: Some(FSeid::new(7, UPF.into())),
        ..Default::default()
    };
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    Message::from(request).encode(seid, 0, &mut asked)?;
    Message::from(answer).encode(1, 0, &mut answered)?;
    ensure!(CP != UPF && asked.len() > SEQUENCE_AT + 3 && answered.len() > SEQUENCE_AT + 3, "short messages");
    Ok((asked, answered))
}

/// The switches of a contender, one for each mode.
struct Site {
    contender: Contender,
    space: NetNs,
    ways: Vec<Way>,
    processes: Option<OpenVswitch>,
    runtime: Runtime,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        // Their tasks end on the runtime.
        let _entered = self.runtime.enter();
        self.ways.clear();
        drop(self.processes.take());
    }
}

/// A switch with its ends.
struct Way {
    mode: Mode,
    asker: UdpSocket,
    request: Vec<u8>,
    /// Requests and answers that have passed.
    exchanged: [u64; 2],
    controller: Option<Controller>,
    _switch: Option<switch::Service>,
    _responder: Responder,
}

impl Site {
    fn start(contender: Contender, cores: &[usize]) -> anyhow::Result<Site> {
        let new = || NetNs::new().context("create a network namespace (needs root: see `godwit doctor`)");
        let (space, far) = (new()?, new()?);
        let (runtime, folder) = (space.runtime(1)?, tempfile::tempdir()?);
        let processes = match contender == Contender::Ovs {
            false => None,
            true => Some(space.enter(|| runtime.block_on(open_vswitch(&space, cores)))??),
        };
        let mut site = Site { contender, space, ways: Vec::new(), processes, runtime, _folder: folder };
        for mode in Mode::ALL {
            let way = site.way(&far, mode).with_context(|| mode.name())?;
            site.ways.push(way);
        }
        for at in 0..site.ways.len() {
            site.wait_until_ready(at)?;
        }
        Ok(site)
    }

    fn way(&self, far: &NetNs, mode: Mode) -> anyhow::Result<Way> {
        let [control, upf] = mode.addresses();
        let (controller, switch) = self
            .space
            .enter(|| self.runtime.block_on(self.build(far, mode)))?
            .with_context(|| self.contender.name())?;
        let bind = |space: &NetNs, address: Ipv4Addr| -> anyhow::Result<UdpSocket> {
            let address = SocketAddr::new(address.into(), PFCP);
            let socket = space.enter(|| udp::bind_std(address, udp::Options::default()))??;
            socket.set_nonblocking(false)?;
            Ok(socket)
        };
        let (request, answer) = messages()?;
        let asker = bind(&self.space, control)?;
        asker.connect((upf, PFCP))?;
        asker.set_read_timeout(Some(PATIENCE))?;
        let responder = Responder::start(bind(far, upf)?, answer)?;
        let exchanged = [0; 2];
        Ok(Way { mode, asker, request, exchanged, controller, _switch: switch, _responder: responder })
    }

    /// The links, the switch and its controller.
    async fn build(
        &self,
        far: &NetNs,
        mode: Mode,
    ) -> anyhow::Result<(Option<Controller>, Option<switch::Service>)> {
        let ([external, local], [control, upf]) = (mode.devices(), mode.addresses());
        let [openflow, _, listen] = mode.ports();
        let (near_links, far_links) = (Links::in_ns(&self.space)?, Links::in_ns(far)?);
        near_links.add_veth(external, external, far).await?;
        for (links, space) in [(&near_links, &self.space), (&far_links, far)] {
            links.up(external).await?;
            space.enter(|| Device::find(external)?.send_whole_frames())??;
        }
        let cidr = |address: Ipv4Addr| Cidr::new(address.into(), 24).context("24 bits fit");
        far_links.add_address(external, cidr(upf)?).await?;
        let controller = match mode {
            Mode::Off => None,
            _ => Some(Controller::start(self.configuration(mode)?).await?),
        };
        let datapath_id = 1 + mode as u64;
        let switch = match &self.processes {
            Some(processes) => {
                let connect = controller.is_some().then_some(openflow);
                let bridge = Bridge {
                    name: local,
                    datapath_id,
                    ports: &[(1, external)],
                    gtp_port: None,
                    controller: connect,
                    listen,
                };
                processes.add(&bridge).await?;
                None
            }
            None => {
                let config = json!({
                    "datapath_id": datapath_id, "controllers": controller.iter().map(|_| openflow).collect::<Vec<_>>(),
                    "listen": listen, "ports": [{"number": 1, "interface": external}], "local": local,
                });
                Some(switch::Service::start(&serde_json::from_value(config)?).await?)
            }
        };
        near_links.add_address(local, cidr(control)?).await?;
        if controller.is_none() {
            let mut client = Client::connect(listen).await?;
            let batch = client.one_by_one(&pass()?)?;
            client.send(&batch).await?;
        }
        Ok((controller, switch))
    }

    fn configuration(&self, mode: Mode) -> anyhow::Result<controller::Config> {
        let ([external, _], [openflow, rest, _]) = (mode.devices(), mode.ports());
        let way = if mode == Mode::Copy { "copy" } else { "via_controller" };
        Ok(serde_json::from_value(json!({
            "openflow": openflow, "rest": rest, "state": self._folder.path().join(mode.name()),
            "applications": ["capture"],
            "switches": [{"name": "smf", "datapath_id": 1 + mode as u64, "place": "control", "external": external}],
            "capture": {"mode": way},
        }))?)
    }

    /// Sends requests until one is answered, and with capture until it is filed: then the rules are there.
    fn wait_until_ready(&mut self, at: usize) -> anyhow::Result<()> {
        let deadline = time::now_std() + READY;
        loop {
            let way = &mut self.ways[at];
            way.asker.set_read_timeout(Some(LOOK))?;
            let answered = way.ask(u32::MAX >> 8).is_ok();
            way.asker.set_read_timeout(Some(PATIENCE))?;
            let way = &self.ways[at];
            if answered && (way.controller.is_none() || self.filed_now(way)? > [0; 2]) {
                // What was sent before counts from here on.
                let filed = self.settled(way)?;
                self.ways[at].exchanged = filed;
                return Ok(());
            }
            ensure!(time::now_std() < deadline, "{} does not get ready", way.mode.name());
        }
    }

    /// How many messages of each side the controller has filed, once it has as many as have passed.
    fn filed(&self, way: &Way) -> anyhow::Result<[u64; 2]> {
        let deadline = time::now_std() + PATIENCE;
        loop {
            let filed = self.filed_now(way)?;
            if filed >= way.exchanged || time::now_std() > deadline {
                return Ok(filed);
            }
            time::sleep_thread(LOOK);
        }
    }

    /// How many it has filed, once no more come.
    fn settled(&self, way: &Way) -> anyhow::Result<[u64; 2]> {
        let mut before = self.filed_now(way)?;
        loop {
            time::sleep_thread(2 * LOOK);
            let now = self.filed_now(way)?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
    }

    /// Requests and answers in the controller's store.
    fn filed_now(&self, way: &Way) -> anyhow::Result<[u64; 2]> {
        let Some(controller) = &way.controller else { return Ok([0; 2]) };
        let upf = way.mode.addresses()[1];
        let captures = self.space.enter(|| {
            self.runtime.block_on(nf::rest::call(READY, controller.rest(), "GET", "/v1/captures", None))
        })??;
        let all = captures.body["captures"].as_array().cloned().unwrap_or_default();
        let of_upf = all.iter().find(|summary| summary["anchor"] == json!(upf));
        // Requests of the SMF, and what the UPF answers, are in the UPF's file.
        let total = of_upf.and_then(|summary| summary["total"].as_u64()).unwrap_or(0);
        Ok([total.div_ceil(2), total / 2])
    }
}

/// Everything passes, both ways.
fn pass() -> anyhow::Result<Vec<FlowMod>> {
    let ways = [(PortNo::LOCAL, PortNo(1)), (PortNo(1), PortNo::LOCAL)];
    let rule = |(from, to)| -> anyhow::Result<FlowMod> {
        let out = Instructions::apply([Action::output(to)]);
        Ok(FlowMod { cookie: COOKIE, ..FlowMod::add(TableId(0), 1, Match::new([Oxm::in_port(from)])?, out) })
    };
    ways.into_iter().map(rule).collect()
}

impl Way {
    /// One request after the other; microseconds until each answer.
    fn exchange(&mut self, plan: &Plan) -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::with_capacity(plan.requests as usize);
        for number in 0..plan.requests {
            let ns = self.ask(number).with_context(|| format!("{}: request {number}", self.mode.name()))?;
            times.push(ns as f64 / 1e3);
            time::sleep_thread(plan.pause);
        }
        Ok(times)
    }

    /// A request; nanoseconds until its answer.
    fn ask(&mut self, number: u32) -> anyhow::Result<u64> {
        let sequence = &number.to_be_bytes()[1..];
        self.request[SEQUENCE_AT..SEQUENCE_AT + 3].copy_from_slice(sequence);
        let mut buffer = [0; 2048];
        let began_ns = time::now_ns();
        self.asker.send(&self.request)?;
        loop {
            let length = self.asker.recv(&mut buffer)?;
            let ns = time::now_ns() - began_ns;
            if buffer[..length].get(SEQUENCE_AT..SEQUENCE_AT + 3) == Some(sequence) {
                self.exchanged.iter_mut().for_each(|count| *count += 1);
                return Ok(ns);
            }
        }
    }
}

/// A thread that answers requests. It ends when this is dropped.
struct Responder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    fn start(socket: UdpSocket, mut answer: Vec<u8>) -> anyhow::Result<Responder> {
        socket.set_read_timeout(Some(LOOK))?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("responder".to_owned()).spawn(move || {
            let mut buffer = [0; 2048];
            while !stopped.load(Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                if let Some(sequence) = buffer[..length].get(SEQUENCE_AT..SEQUENCE_AT + 3) {
                    answer[SEQUENCE_AT..SEQUENCE_AT + 3].copy_from_slice(sequence);
                    // A lost answer is noticed by who asked.
                    let _ = socket.send_to(&answer, from);
                }
            }
        })?;
        Ok(Responder { stop, thread: Some(thread) })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

async fn open_vswitch(space: &NetNs, cores: &[usize]) -> anyhow::Result<OpenVswitch> {
    let processes = OpenVswitch::start(space).await?;
    machine::pin_process(processes.process().context("no daemon")?, cores)?;
    Ok(processes)
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_pass_in_every_mode_and_are_filed() {
        let _alone = crate::ran::alone();
        let plan = Plan { rounds: 1, requests: 20, pause: Duration::from_millis(1) };
        let mut run = Run::begin("diverting", true, plan.rounds, ()).unwrap();
        super::run(&mut run, &plan).unwrap();
        let experiment = run.end(|_, _| ());
        assert!(experiment.passed(), "{:?}", experiment.checks);
    }
}
