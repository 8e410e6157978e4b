//! The hybrid model: a CU with kernel bypass on F1-U (memif) and a kernel socket on N3. How long does a packet wait that comes
//! after a pause, and what does the CU take of a core meanwhile?
//!
//! Contenders:
//! - `ours`: the engine's worker, which looks at both sides while there is traffic and then sleeps on both at once;
//! - `alone`: the same worker with one side only, which waits for nothing else: waits are named against this one;
//! - `paper`: the paper's Algorithm 3, and 4 for a UPF: it waits for one side with a time-out and then for the other. Within its time
//!   on the bypass side it polls, and it takes all packets that it finds, not one;
//! - `queue`: the same, whose packets are sent when the loop comes round to its task queue, as Algorithm 3 has it. What happens
//!   between the queues costs nothing here.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, bail};
use cu::user_plane::Relay;
use net::time::{self, Duration};
use net::udp::{Options, bind_std};
use packet::gtpu;
use path::{Graph, Plan, Ports, Worker};
use pktio::poll::{Poller, Waker};
use pktio::udp::UdpPort;
use pktio::{Pool, Port, Sent, Vector};

use super::{CPU, Run, US};
use crate::machine::{self, Clock};
use crate::ran::network::{Network, Point, Way};
use crate::ran::nodes::{CU, DU, END, F1U, Nodes};
use crate::ran::packets::{Ue, from_upf, user};
use crate::result::Experiment;
use crate::samples::Results;

/// As long as the UPF's workers look for packets by default.
const POLL: Duration = Duration::from_micros(100);
/// The paper's loop waits so long on each side, in ms.
const TIME_OUTS: [u16; 3] = [0, 1, 10];
const THREAD: &str = "cu-hybrid";
const SIZE: usize = 64;
/// Time after which a packet counts as lost.
const LOST_NS: u64 = 1_000_000_000;
/// Time without packets in which the processor time is taken.
const SILENCE: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loop {
    Ours,
    /// With only the side from which packets come.
    Alone {
        uplink: bool,
    },
    Paper(u16),
    Queue(u16),
}

impl Loop {
    fn name(self) -> &'static str {
        match self {
            Loop::Ours => "ours",
            Loop::Alone { .. } => "alone",
            Loop::Paper(_) => "paper",
            Loop::Queue(_) => "queue",
        }
    }

    /// Its time-outs, in ms.
    fn time_out(self) -> u16 {
        match self {
            Loop::Ours | Loop::Alone { .. } => 0,
            Loop::Paper(ms) | Loop::Queue(ms) => ms,
        }
    }

    fn directions(self) -> &'static [bool] {
        match self {
            Loop::Alone { uplink: true } => &[true],
            Loop::Alone { uplink: false } => &[false],
            _ => &[true, false],
        }
    }
}

/// Measures all contenders in turn.
///
/// # Errors
/// The process lacks rights, or a packet is lost.
pub(super) fn run(run: &mut Run, [core, other]: [usize; 2]) -> anyhow::Result<()> {
    let network = Network::build(1)?;
    let fixed = [Loop::Ours, Loop::Alone { uplink: true }, Loop::Alone { uplink: false }];
    let loops = fixed
        .into_iter()
        .chain(TIME_OUTS.map(Loop::Paper))
        .chain(TIME_OUTS.into_iter().filter(|ms| *ms > 0).map(Loop::Queue));
    let loops: Vec<Loop> = loops.collect();
    for round in 0..run.plan.rounds {
        for contender in &loops {
            let (name, ms) = (contender.name(), contender.time_out());
            run.progress.say(&format!("hybrid: {name} {ms} ms, round {round}"));
            // The CU has a core of its own.
            once(run, &network, *contender, [core, other], round)
                .with_context(|| format!("{contender:?}"))?;
        }
    }
    Ok(())
}

fn once(
    run: &mut Run,
    network: &Network,
    contender: Loop,
    [core, cu_core]: [usize; 2],
    round: usize,
) -> anyhow::Result<()> {
    let nodes = Nodes::with_upf(CU.into(), DU.into())?;
    let [at_cu, mut at_du] = network.open(Point::MIDHAUL, Way::Memif)?;
    let bind = |address: std::net::Ipv4Addr| SocketAddr::new(address.into(), gtpu::PORT);
    let n3 = network.cu.enter(|| UdpPort::bind(bind(CU), false))??;
    let upf = network.du.enter(|| bind_std(bind(DU), Options::default()))??;
    let ports: Ports = vec![at_cu, Box::new(n3)];
    let _serving = serve(contender, cu_core, nodes.cu, ports)?;
    machine::pin(&[core]);
    let (mut ue, mut message) = (Ue::new(0, SIZE)?, Vec::new());
    let (mut out, mut taken) = (Vector::new(1, 2048), Vector::new(pktio::VECTOR, 2048));
    let mut octets = [0; 2048];
    let mut pass = |uplink: bool| -> anyhow::Result<Option<u64>> {
        let start = if uplink {
            ue.next_on_f1u(nodes.f1u[0], &mut message)?;
            out.clear();
            out.push(&message, bind(CU));
            let start = time::now_ns();
            at_du.transmit(&mut out, &[0]);
            start
        } else {
            let message = from_upf(nodes.n3[0], &user(false, 0, SIZE)?);
            let start = time::now_ns();
            upf.send_to(&message, bind(CU))?;
            start
        };
        while time::now_ns() - start < LOST_NS {
            // Neighbour discovery goes on meanwhile.
            let received = at_du.receive(&mut taken)?;
            let arrived = match uplink {
                true => upf.recv(&mut octets).is_ok_and(|length| length > SIZE),
                // A delivery status would be shorter.
                false => received > 0,
            };
            if arrived {
                return Ok(Some(time::now_ns() - start));
            }
        }
        Ok(None)
    };
    for uplink in contender.directions().iter().copied() {
        // The first packets find no neighbours.
        let start = time::now_std();
        let mut passed = 0;
        while passed < 3 {
            passed = if pass(uplink)?.is_some() { passed + 1 } else { 0 };
            if start.elapsed() > Duration::from_secs(10) {
                bail!("no packet passes");
            }
        }
        let direction = if uplink { "uplink" } else { "downlink" };
        let series = format!("hybrid.{}.{direction}.wait", contender.name());
        for number in 0..run.plan.hybrid_packets {
            // At any phase of the longest loop.
            let pause = 5_000 + (number * 7919 + round * 104_729) as u64 % 20_000;
            time::sleep_thread(Duration::from_micros(pause));
            let took = pass(uplink)?.context("a packet is lost")?;
            run.results.add(series.clone(), US, contender.time_out().into(), took as f64 / 1000.0);
        }
    }
    let clock = Clock::of(THREAD)?;
    let (start, before) = (time::now_std(), clock.read()?);
    time::sleep_thread(SILENCE);
    let share = 100.0 * (clock.read()? - before).as_secs_f64() / start.elapsed().as_secs_f64();
    let series = format!("hybrid.{}.idle_cpu", contender.name());
    run.results.add(series, CPU, contender.time_out().into(), share);
    Ok(())
}

enum Serving {
    Worker { _worker: Worker },
    Loop { stop: Arc<AtomicBool>, thread: Option<JoinHandle<()>> },
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Serving::Loop { stop, thread } = self {
            stop.store(true, Relaxed);
            if let Some(thread) = thread.take() {
                // A panic has been reported already; its samples are missing.
                let _ = thread.join();
            }
        }
    }
}

fn serve(contender: Loop, core: usize, relay: Relay, mut ports: Ports) -> anyhow::Result<Serving> {
    let plan = |inputs: &[u8]| Plan {
        name: THREAD.to_owned(),
        core: Some(core),
        inputs: inputs.iter().map(|input| usize::from(*input)).collect(),
        poll: POLL,
        realtime: false,
        shared: None,
    };
    let worker = |worker: io::Result<Worker>| anyhow::Ok(Serving::Worker { _worker: worker? });
    match contender {
        Loop::Ours => worker(Worker::start_as(plan(&[F1U, END]), relay, ports)),
        Loop::Alone { uplink: true } => worker(Worker::start_as(plan(&[F1U]), relay, ports)),
        Loop::Alone { uplink: false } => {
            let taken = Vector::of(relay.home());
            worker(Worker::start_as(plan(&[END]), Deaf { relay, taken }, ports))
        }
        Loop::Paper(ms) | Loop::Queue(ms) => {
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let mut queues = Vec::new();
            if matches!(contender, Loop::Queue(_)) {
                ports = ports.into_iter().map(|port| Box::new(Queued::new(port, &mut queues)) as _).collect();
            }
            let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
                machine::pin(&[core]);
                // An error ends the loop, and the packets that do not pass show it.
                let _ = alternate(relay, ports, ms, &queues, &stopped);
            })?;
            Ok(Serving::Loop { stop, thread: Some(thread) })
        }
    }
}

/// The paper's loop.
fn alternate(
    mut relay: Relay,
    mut ports: Ports,
    ms: u16,
    queues: &[Waiting],
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut poller = Poller::new()?;
    poller.add(ports[usize::from(END)].fd().context("a socket")?, 0)?;
    let mut vector = Vector::of(relay.home());
    let bypass_ns = u64::from(ms) * 1_000_000;
    while !stop.load(Relaxed) {
        // The task queue: what is to be sent.
        for waiting in queues {
            waiting.set(true);
        }
        for port in &mut ports {
            port.transmit(&mut vector, &[]);
        }
        for waiting in queues {
            waiting.set(false);
        }
        let mut readable = false;
        poller.wait(Some(ms), |_| readable = true)?;
        if readable {
            while ports[usize::from(END)].receive(&mut vector)? > 0 {
                relay.process(END.into(), &mut vector, time::now_ns(), &mut ports);
                vector.clear();
            }
        }
        let start = time::now_ns();
        loop {
            let count = ports[usize::from(F1U)].receive(&mut vector)?;
            let now_ns = time::now_ns();
            if count > 0 {
                relay.process(F1U.into(), &mut vector, now_ns, &mut ports);
                vector.clear();
            }
            if count > 0 || now_ns - start >= bypass_ns {
                break;
            }
        }
        relay.turn(time::now_ns(), &mut ports);
    }
    Ok(())
}

/// Whether a queue sends what it has.
#[derive(Clone, Default)]
struct Waiting(Arc<AtomicBool>);

impl Waiting {
    fn set(&self, sends: bool) {
        self.0.store(sends, Relaxed);
    }
}

/// A port whose packets wait for the loop to come round.
struct Queued {
    port: Box<dyn Port>,
    sends: Waiting,
    packets: Mutex<Vec<(Vec<u8>, SocketAddr)>>,
    out: Vector,
}

impl Queued {
    fn new(port: Box<dyn Port>, queues: &mut Vec<Waiting>) -> Queued {
        let sends = Waiting::default();
        queues.push(sends.clone());
        Queued { port, sends, packets: Mutex::default(), out: Vector::new(pktio::VECTOR, 2048) }
    }
}

impl Port for Queued {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        self.port.receive(vector)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let packets = self.packets.get_mut().unwrap_or_else(PoisonError::into_inner);
        for at in selected.iter().map(|at| usize::from(*at)) {
            if let Some(to) = vector.destination(at) {
                packets.push((vector.frames()[at].packet().to_vec(), to));
            }
        }
        if self.sends.0.load(Relaxed) && !packets.is_empty() {
            self.out.clear();
            for (packet, to) in packets.drain(..) {
                self.out.push(&packet, to);
            }
            let positions: Vec<u16> = (0..self.out.len() as u16).collect();
            self.port.transmit(&mut self.out, &positions);
        }
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }
}

/// A CU that does not wait for F1-U. It only learns its neighbours there.
struct Deaf {
    relay: Relay,
    taken: Vector,
}

impl Graph for Deaf {
    fn home(&self) -> &Arc<dyn Pool> {
        self.relay.home()
    }

    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports) {
        self.relay.process(input, vector, now_ns, ports);
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        // Nothing comes but neighbour discovery.
        let _ = ports[usize::from(F1U)].receive(&mut self.taken);
        self.taken.clear();
        self.relay.turn(now_ns, ports)
    }

    fn recover(&mut self, lost: usize) {
        self.relay.recover(lost);
    }

    fn wake_with(&mut self, waker: Waker) {
        self.relay.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        self.relay.interface_name(number)
    }
}

/// The promised figures: what waiting for two sides adds at the median, in the worse direction.
pub(super) fn summarise(results: &Results, experiment: &mut Experiment) {
    let wait = |name: &str, direction: &str, ms: u16| {
        results.median(&format!("hybrid.{name}.{direction}.wait"), ms.into())
    };
    let added = |name: &str, ms: u16| {
        let added = |direction| Some(wait(name, direction, ms)? - wait("alone", direction, 0)?);
        Some(f64::max(added("uplink")?, added("downlink")?))
    };
    for (figure, name, ms) in [
        ("hybrid_idle_wait_us", "ours", 0),
        ("paper_loop_idle_wait_us", "paper", 10),
        ("paper_loop_1ms_idle_wait_us", "paper", 1),
        ("paper_loop_0ms_idle_wait_us", "paper", 0),
        ("paper_queue_idle_wait_us", "queue", 10),
    ] {
        if let Some(added) = added(name, ms) {
            experiment.ratios.insert(figure.to_owned(), added);
        }
    }
    if let Some(share) = results.median("hybrid.ours.idle_cpu", 0) {
        experiment.ratios.insert("idle_cpu_pct".to_owned(), share);
    }
}
