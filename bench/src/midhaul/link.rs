//! The link between DU and CU by backend: throughput by size, round trips, loss and jitter by load.
//!
//! CU and DU are whole nodes ([`nodes`](super::nodes)), each a thread on a core of its own, in namespaces that a veth pair joins, or
//! with a memif between them. Contenders:
//! - `per_call`: kernel sockets, one datagram per call and per wait of epoll, as the paper's GTP-U tasks have it;
//! - `batched`: kernel sockets, many datagrams per call, asleep when nothing comes: gains are named against this one;
//! - `segmented`: the same with the kernel's segmentation (`UDP_SEGMENT`, `UDP_GRO`), which is our backend `kernel`;
//! - `spinning`: `batched` that never sleeps;
//! - `af_xdp` on the same veth pair, `memif` between our own processes: polled.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use anyhow::{Context as _, bail};
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::Command;
use net::time::{self, Duration};
use packet::gtpu;
use path::{Graph, Ports, Worker};
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::memif::MemifPort;
use pktio::poll::{Poller, Waker};
use pktio::stack::Neighbours;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::udp::UdpPort;
use pktio::{FramePort, Port, Vector};

use super::nodes::{Arrivals, CU, DU, END, Echo, F1U, Load, Nodes, Source, Ue, Ues};
use super::sockets::{Batched, PerCall};
use super::{GBIT, LOSS, MPPS_BY_SIZE, Run, US_BY_LOAD, US_BY_SIZE};
use crate::machine;

/// Room for the headers of a tunnel around 1,500 octets.
const MTU: u16 = 1700;
const DEVICE: &str = "f1u";
const QUEUE: u32 = 4096;
/// Longer than any pause of a measurement.
const ALWAYS: Duration = Duration::from_secs(60);
/// Time limit for a link to come up, and for a packet to come back.
const PATIENCE: Duration = Duration::from_secs(10);

/// A way between the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    PerCall,
    Batched,
    Segmented,
    Spinning,
    AfXdp,
    Memif,
}

impl Way {
    pub(super) const ALL: [Way; 6] =
        [Way::PerCall, Way::Batched, Way::Segmented, Way::Spinning, Way::AfXdp, Way::Memif];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::PerCall => "per_call",
            Way::Batched => "batched",
            Way::Segmented => "segmented",
            Way::Spinning => "spinning",
            Way::AfXdp => "af_xdp",
            Way::Memif => "memif",
        }
    }

    /// How long a node looks for packets before it sleeps.
    fn poll(self) -> Duration {
        match self {
            Way::PerCall | Way::Batched | Way::Segmented => Duration::ZERO,
            Way::Spinning | Way::AfXdp | Way::Memif => ALWAYS,
        }
    }
}

/// Namespaces of CU and DU, with a link between them, and a folder for memif.
pub(super) struct Network {
    pub(super) cu: NetNs,
    pub(super) du: NetNs,
    folder: tempfile::TempDir,
}

impl Network {
    pub(super) fn build() -> anyhow::Result<Network> {
        let new = || NetNs::new().context("create a network namespace (needs root: see `godwit doctor`)");
        let network = Network { cu: new()?, du: new()?, folder: tempfile::tempdir()? };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            Links::in_ns(&network.cu)?.add_veth(DEVICE, DEVICE, &network.du).await?;
            for (namespace, address) in [(&network.cu, CU), (&network.du, DU)] {
                let links = Links::in_ns(namespace)?;
                links.set_mtu(DEVICE, MTU.into()).await?;
                links.set_txqueuelen(DEVICE, QUEUE).await?;
                links.up(DEVICE).await?;
                links.add_address(DEVICE, cidr(address.into())).await?;
                let off = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
                let command = Command::new("ethtool").args(["-K", DEVICE]).args(off).namespace(namespace);
                // Without ethtool the link works as well; only AF_XDP sees different packets.
                let _ = command.output(Duration::from_secs(10)).await;
            }
            anyhow::Ok(())
        })?;
        Ok(network)
    }

    /// The ends of a way: those of CU and DU.
    pub(super) fn open(&self, way: Way) -> anyhow::Result<[Box<dyn Port>; 2]> {
        let end = |namespace: &NetNs, address: IpAddr| -> anyhow::Result<Box<dyn Port>> {
            let local = SocketAddr::new(address, gtpu::PORT);
            namespace.enter(|| {
                Ok(match way {
                    Way::PerCall => Box::new(PerCall::bind(local)?) as Box<dyn Port>,
                    Way::Batched | Way::Spinning => Box::new(Batched::bind(local)?),
                    Way::Segmented => Box::new(UdpPort::bind(local, false)?),
                    Way::AfXdp => {
                        let interface = Interface::open(DEVICE, None, &[Select::Everything])?;
                        let mut memory = Memory::new(1, [interface.device()])?;
                        let frames = AfXdpPort::open(&interface, [0], &mut memory, Options::default())?;
                        stack(frames, local)?
                    }
                    Way::Memif => bail!("memif has no namespace"),
                })
            })?
        };
        if way != Way::Memif {
            return Ok([end(&self.cu, CU.into())?, end(&self.du, DU.into())?]);
        }
        let socket = self.folder.path().join("f1u.sock");
        let memif = |role: &str| -> anyhow::Result<MemifPort> {
            let device = format!("memif0,role={role},bsize=2048,socket={}", socket.display());
            MemifPort::open(&device, 1, MTU)?.pop().context("no port")
        };
        let (cu, du) = (memif("server")?, memif("client")?);
        let start = time::now_std();
        while !(cu.is_up() && du.is_up()) {
            if start.elapsed() > PATIENCE {
                bail!("the memif does not come up");
            }
            time::sleep_thread(Duration::from_millis(1));
        }
        let local = |address: std::net::Ipv4Addr| SocketAddr::new(address.into(), gtpu::PORT);
        Ok([stack(cu, local(CU))?, stack(du, local(DU))?])
    }
}

fn cidr(address: IpAddr) -> Cidr {
    Cidr::new(address, 24).expect("24 bits fit IPv4")
}

/// UDP on frames, with neighbours of its own.
fn stack<F: FramePort + 'static>(frames: F, local: SocketAddr) -> anyhow::Result<Box<dyn Port>> {
    let resolver = Resolver::new(&[cidr(local.ip())], &[]);
    let stack = UdpStack::new(frames, local, None, Neighbours::Own(Box::new(resolver)))?;
    Ok(Box::new(stack.with_mtu(MTU.into())))
}

/// A node on a thread of its own.
enum Serving {
    Worker { _worker: Worker },
    PerCall { stop: Arc<AtomicBool>, waker: Waker, thread: Option<JoinHandle<()>> },
}

impl Serving {
    /// Serves `inputs` on `core`.
    fn start<G: Graph + 'static>(
        way: Way,
        (name, core): (&str, usize),
        graph: G,
        ports: Ports,
        inputs: Vec<usize>,
    ) -> anyhow::Result<Serving> {
        if way == Way::PerCall && inputs == [usize::from(F1U)] {
            return Serving::per_call(name, core, graph, ports);
        }
        let plan =
            path::Plan { name: name.to_owned(), core: Some(core), inputs, poll: way.poll(), shared: None };
        Ok(Serving::Worker { _worker: Worker::start_as(plan, graph, ports)? })
    }

    /// The loop of the paper's GTP-U task: a wait, a datagram.
    fn per_call<G: Graph + 'static>(
        name: &str,
        core: usize,
        mut graph: G,
        mut ports: Ports,
    ) -> anyhow::Result<Serving> {
        let mut poller = Poller::new()?;
        poller.add(ports[usize::from(F1U)].fd().context("a socket")?, 0)?;
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), poller.waker());
        let stopped = Arc::clone(&stop);
        graph.wake_with(poller.waker());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            machine::pin(&[core]);
            let mut vector = Vector::of(graph.home());
            while !stopped.load(Relaxed) {
                let mut readable = false;
                if poller.wait(None, |_| readable = true).is_err() {
                    return;
                }
                graph.turn(time::now_ns(), &mut ports);
                if readable && ports[usize::from(F1U)].receive(&mut vector).is_ok_and(|count| count > 0) {
                    graph.process(F1U.into(), &mut vector, time::now_ns(), &mut ports);
                    vector.clear();
                }
            }
        })?;
        Ok(Serving::PerCall { stop, waker, thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Serving::PerCall { stop, waker, thread } = self {
            stop.store(true, Relaxed);
            waker.wake();
            if let Some(thread) = thread.take() {
                // A panic has been reported already; its samples are missing.
                let _ = thread.join();
            }
        }
    }
}

/// Measures everything between the nodes.
///
/// # Errors
/// The process lacks rights, or packets do not arrive.
pub(super) fn run(run: &mut Run, cores: [usize; 2]) -> anyhow::Result<()> {
    let network = Network::build()?;
    for round in 0..run.plan.rounds {
        for way in Way::ALL {
            run.progress.say(&format!("link: {}, round {round}", way.name()));
            flow(run, &network, way, cores).with_context(|| format!("{}: packets to UEs", way.name()))?;
            round_trips(run, &network, way, cores).with_context(|| format!("{}: round trips", way.name()))?;
        }
        let idle = spinner(run.plan.load_time);
        run.results.add("spinner.jitter".to_owned(), US_BY_LOAD, 0, idle);
    }
    Ok(())
}

/// What arrived while something was measured.
struct Passed {
    packets: u64,
    made: u64,
    seconds: f64,
}

/// Throughput by size, then loss and jitter by load.
fn flow(run: &mut Run, network: &Network, way: Way, [cu_core, du_core]: [usize; 2]) -> anyhow::Result<()> {
    let nodes = Nodes::new()?;
    let [at_cu, at_du] = network.open(way)?;
    let (load, arrivals) = (Arc::<Load>::default(), Arc::<Arrivals>::default());
    let source = Source::new(&load, &nodes.n3);
    // The DU first: it sends its status as soon as it runs.
    let ports: Ports = vec![at_du, Box::new(Ues::new(&arrivals))];
    let _du = Serving::start(way, ("du", du_core), nodes.du, ports, vec![F1U.into()])?;
    let ports: Ports = vec![at_cu, Box::new(source)];
    let inputs = vec![END.into(), F1U.into()];
    let _cu = Serving::start(way, ("cu", cu_core), nodes.cu, ports, inputs)?;
    let pass = |rate: u64, size: usize, time: Duration| {
        load.size.store(size as u64, Relaxed);
        load.rate.store(rate, Relaxed);
        // Neighbours, caches, and a change of the rate.
        time::sleep_thread(Duration::from_millis(20));
        let (packets, made, start) =
            (arrivals.packets.load(Relaxed), load.made.load(Relaxed), time::now_std());
        time::sleep_thread(time);
        let made = load.made.load(Relaxed) - made;
        if rate != u64::MAX {
            load.rate.store(0, Relaxed);
            time::sleep_thread(Duration::from_millis(10));
        }
        let seconds = if rate == u64::MAX { start.elapsed().as_secs_f64() } else { time.as_secs_f64() };
        Passed { packets: arrivals.packets.load(Relaxed) - packets, made, seconds }
    };
    let start = time::now_std();
    while pass(1000, 64, Duration::from_millis(20)).packets < 10 {
        if start.elapsed() > PATIENCE {
            bail!("no packet arrives");
        }
    }
    for size in run.plan.link_sizes.clone() {
        let passed = pass(u64::MAX, size, run.plan.link_time);
        load.rate.store(0, Relaxed);
        time::sleep_thread(Duration::from_millis(5));
        let rate = passed.packets as f64 / passed.seconds;
        run.results.add(format!("throughput.{}.mpps", way.name()), MPPS_BY_SIZE, size, rate / 1e6);
        let bits = rate * size as f64 * 8.0;
        run.results.add(format!("throughput.{}.gbit", way.name()), GBIT, size, bits / 1e9);
    }
    for load_kpps in run.plan.loads_kpps.clone() {
        arrivals.jitter.store(0, Relaxed);
        let passed = pass(load_kpps as u64 * 1000, 64, run.plan.load_time);
        let lost = 1.0 - passed.packets as f64 / passed.made.max(1) as f64;
        run.results.add(format!("load.{}.loss", way.name()), LOSS, load_kpps, lost.max(0.0) * 100.0);
        // A load that the nodes do not make is none.
        if passed.made as f64 > 0.95 * load_kpps as f64 * 1000.0 * passed.seconds {
            let jitter = arrivals.jitter.load(Relaxed) as f64 / 16.0 / 1000.0;
            run.results.add(format!("load.{}.jitter", way.name()), US_BY_LOAD, load_kpps, jitter);
        }
    }
    let wrong = arrivals.wrong.load(Relaxed);
    run.count(&format!("{}: packets that arrived otherwise than they were sent", way.name()), wrong);
    Ok(())
}

/// Round trips from the DU to the CU and back, one packet at a time.
fn round_trips(
    run: &mut Run,
    network: &Network,
    way: Way,
    [cu_core, du_core]: [usize; 2],
) -> anyhow::Result<()> {
    let Nodes { cu, n3, mut du, cu_plane: _cu_plane, du_control: _du_control, .. } = Nodes::new()?;
    let [at_cu, at_du] = network.open(way)?;
    let (echo, mirror) = Echo::new(cu, &n3);
    let ports: Ports = vec![at_cu, Box::new(mirror)];
    let _cu = Serving::start(way, ("cu", cu_core), echo, ports, vec![F1U.into()])?;
    let arrivals = Arc::<Arrivals>::default();
    let mut ports: Ports = vec![at_du, Box::new(Ues::new(&arrivals))];
    let mut poller = Poller::new()?;
    if let Some(fd) = ports[usize::from(F1U)].fd() {
        poller.add(fd, 0)?;
    }
    let sleeps = way.poll().is_zero();
    // This thread is the DU.
    machine::pin(&[du_core]);
    let mut measure = || -> anyhow::Result<()> {
        let (mut out, mut taken, mut message) = (Vector::of(du.home()), Vector::of(du.home()), Vec::new());
        for size in run.plan.link_sizes.clone() {
            // Sequence numbers go on from size to size.
            let mut times = Vec::with_capacity(run.plan.round_trips);
            let ue = run.ue.get_or_insert(Ue::new(size)?);
            ue.size(size);
            let mut misses = 0;
            while times.len() < run.plan.round_trips {
                ue.next(&mut message)?;
                out.clear();
                out.push(&message, Ue::address());
                let before = arrivals.packets.load(Relaxed);
                let start = time::now_ns();
                du.process(END.into(), &mut out, start, &mut ports);
                let came = loop {
                    if sleeps {
                        ports[usize::from(F1U)].before_sleep()?;
                        poller.wait(Some(100), |_| ())?;
                    }
                    if ports[usize::from(F1U)].receive(&mut taken)? > 0 {
                        du.process(F1U.into(), &mut taken, time::now_ns(), &mut ports);
                        taken.clear();
                    }
                    if arrivals.packets.load(Relaxed) > before {
                        break true;
                    }
                    if time::now_ns() - start > 100_000_000 {
                        break false;
                    }
                };
                let took = time::now_ns() - start;
                du.turn(time::now_ns(), &mut ports);
                if came {
                    times.push(took as f64 / 1000.0);
                } else {
                    misses += 1;
                    if misses > 50 {
                        bail!("packets do not come back");
                    }
                }
                // Both nodes have gone to sleep if they do.
                let pause = time::now_ns() + run.plan.pause_ns;
                while time::now_ns() < pause {
                    std::hint::spin_loop();
                }
            }
            // The first ones find neither neighbours nor warm caches.
            let times = &times[times.len() / 10..];
            for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
                let value = crate::stats::quantile(times, quantile);
                run.results.add(format!("rtt.{}.{name}", way.name()), US_BY_SIZE, size, value);
            }
        }
        Ok(())
    };
    let measured = measure();
    run.ue = None;
    measured
}

/// The jitter of a thread that only looks at the clock: what this machine adds to any measurement, in microseconds.
fn spinner(time: Duration) -> f64 {
    const EVERY_NS: u64 = 10_000;
    let (start, mut due, mut before, mut jitter) = (time::now_ns(), time::now_ns(), None, 0_u64);
    while due - start < time.as_nanos() as u64 {
        due += EVERY_NS;
        while time::now_ns() < due {
            std::hint::spin_loop();
        }
        let late = time::now_ns() - due;
        if let Some(before) = before.replace(late) {
            jitter = jitter + late.abs_diff(before) - (jitter + 8) / 16;
        }
    }
    jitter as f64 / 16.0 / 1000.0
}
