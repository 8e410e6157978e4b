//! `upf`: packets per second and core, time per packet and latency of the user plane, by backend, packet size, number of
//! sessions and direction.
//!
//! Flow: [`alone`] measures the pipeline between memory ports, [`kernel`] and [`af_xdp`] whole user planes across
//! namespaces, `null` a worker between DPDK's null devices, `dpdk` one in a process of its own. Sizes are those of the
//! user's IP packets. Every session has four PDRs, a meter and a usage counter ([`subscriber`]); each packet is of a random
//! session. Contenders take turns within a round, so that a busy moment of the machine hits all of them: the [`textbook`]
//! user plane, and bare forwarders per backend, which are the limit. What the figures mean is in docs/bench-upf.md, goals and measured values in SPECIFICATION.md.

mod af_xdp;
pub(crate) mod alone;
mod bare;
mod changes;
pub(crate) mod client;
pub(crate) mod contents;
#[cfg(feature = "dpdk")]
mod dpdk;
mod ends;
mod frames;
mod idle;
pub mod instructions;
mod kernel;
#[cfg(feature = "dpdk")]
mod meter;
mod n4;
pub(crate) mod network;
#[cfg(feature = "dpdk")]
mod null;
pub mod panels;
mod source;
pub(crate) mod subscriber;
mod summary;
mod textbook;
pub(crate) mod traffic;
mod turns;
pub(crate) mod under_test;
mod users;
#[cfg(feature = "dpdk")]
mod workers;
pub(crate) mod world;

use anyhow::bail;
use net::time::Duration;

use crate::Options;
use crate::machine::{self, Awake};
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};
use contents::Tally;

const MPPS: Axes = Axes { x: "sessions", y: "packets per second and core", unit: "Mpps" };
const NS: Axes = Axes { x: "sessions", y: "time per packet", unit: "ns" };
const US: Axes = Axes { x: "sessions", y: "one-way time", unit: "us" };
const SHARE: Axes = Axes { x: "sessions", y: "lost", unit: "%" };
const LOAD: Axes = Axes { x: "sessions", y: "share of a core", unit: "%" };
const BYTES: Axes = Axes { x: "sessions", y: "memory of the data plane", unit: "B/session" };
const STALL: Axes = Axes { x: "sessions", y: "time of a batch", unit: "us" };
const DISTANCE: Axes = Axes { x: "sessions", y: "time of a cache line between the cores", unit: "ns" };
const INSTRUCTIONS: Axes = Axes { x: "sessions", y: "instructions per packet", unit: "1" };
const RATE: Axes = Axes { x: "sessions", y: "rate", unit: "1/s" };

/// Number of sessions for the promised figures; everything is measured with it. Tables of this size stay in the
/// caches.
const DEFAULT_SESSIONS: usize = 1000;

/// Sessions established over N4 per round, in a full run and in a quick one.
const N4_SESSIONS: [usize; 2] = [50_000, 10_000];

/// Extent of the measurement.
struct Plan {
    rounds: usize,
    /// Time per sample.
    sample: Duration,
    /// Octets of user packets.
    sizes: Vec<usize>,
    /// Numbers of sessions.
    sessions: Vec<usize>,
    /// Rounds of session establishments over N4, and number of sessions in each.
    n4: (usize, usize),
    /// Numbers of sessions for all parts with ports. All packet sizes are measured with [`DEFAULT_SESSIONS`]
    /// only, the smallest size with every number.
    network_sessions: Vec<usize>,
    network_sizes: Vec<usize>,
    /// Rounds across namespaces, where every packet costs more.
    network_rounds: usize,
    network_sample: Duration,
    /// Rounds on frame ports.
    frame_rounds: usize,
    frame_sample: Duration,
    /// Number of packets sent one at a time, and the time between them.
    low: (usize, Duration),
    /// Packets of all sizes, per contender and round, each of which has to come back as expected.
    verified: u32,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        if quick {
            Plan {
                rounds: 3,
                sample: Duration::from_millis(8),
                sizes: vec![64, 1500],
                sessions: vec![1, 1000, 1_000_000],
                n4: (3, N4_SESSIONS[1]),
                network_sessions: vec![DEFAULT_SESSIONS],
                network_sizes: vec![64, 1400],
                network_rounds: 2,
                network_sample: Duration::from_millis(80),
                frame_rounds: 4,
                frame_sample: Duration::from_millis(40),
                low: (100, Duration::from_micros(500)),
                verified: 5000,
            }
        } else {
            Plan {
                rounds: 15,
                sample: Duration::from_millis(20),
                sizes: vec![64, 128, 256, 512, 1024, 1500],
                sessions: vec![1, 1000, 100_000, 1_000_000],
                n4: (7, N4_SESSIONS[0]),
                network_sessions: vec![1, DEFAULT_SESSIONS, 100_000, 1_000_000],
                network_sizes: vec![64, 128, 256, 512, 1024, 1400, 1500],
                network_rounds: 5,
                network_sample: Duration::from_millis(120),
                frame_rounds: 7,
                frame_sample: Duration::from_millis(60),
                low: (200, Duration::from_millis(1)),
                verified: 30_000,
            }
        }
    }

    fn network_sizes(&self, sessions: usize) -> Vec<usize> {
        let count = if sessions == DEFAULT_SESSIONS { self.network_sizes.len() } else { 1 };
        self.network_sizes[..count].to_vec()
    }

    /// Half of the rounds plus one, where numbers of sessions are compared.
    fn rounds_for(rounds: usize, sessions: usize) -> usize {
        if sessions == DEFAULT_SESSIONS { rounds } else { rounds / 2 + 1 }
    }

    fn network_rounds(&self, sessions: usize) -> usize {
        Plan::rounds_for(self.network_rounds, sessions)
    }

    fn frame_rounds(&self, sessions: usize) -> usize {
        Plan::rounds_for(self.frame_rounds, sessions)
    }
}

/// A run in progress.
struct Run {
    plan: Plan,
    progress: Progress,
    results: Results,
    checks: Vec<(String, bool, String)>,
    /// Details that depend on the machine.
    notes: std::collections::BTreeMap<String, String>,
    /// Packets compared at receiving ends, by contender.
    tallies: std::collections::BTreeMap<String, Tally>,
    /// The cores of gNB with data network, and of the user plane.
    cores: [usize; 2],
}

impl Run {
    fn check(&mut self, name: &str, ok: bool, detail: String) {
        self.checks.push((name.to_owned(), ok, detail));
    }

    fn note(&mut self, name: &str, what: &str) {
        self.notes.insert(name.to_owned(), what.to_owned());
    }

    /// Adds compared packets. All of a contender's packets together become one check.
    fn compared(&mut self, whose: &str, tally: Tally) {
        self.tallies.entry(whose.to_owned()).or_default().add(tally);
    }

    /// Runs a part that needs rights or devices which the machine may lack. Its error becomes a failed check,
    /// and the other parts continue.
    fn part(&mut self, name: &str, measure: impl FnOnce(&mut Run) -> anyhow::Result<()>) {
        if let Err(error) = measure(self) {
            self.check(name, false, format!("{error:#}"));
        }
    }

    /// Checks that a UPF's counters show no drop reason that a flood does not cause.
    fn account(&mut self, whose: &str, stats: &serde_json::Value) {
        const EXPECTED: [&str; 5] =
            ["rx_queue_full", "rx_no_buffer", "tx_queue_full", "tx_error", "link_local"];
        let drops = stats["drops"].as_object().cloned().unwrap_or_default();
        let odd: Vec<String> = drops
            .iter()
            .filter(|(reason, _)| !EXPECTED.contains(&reason.as_str()))
            .map(|(reason, count)| format!("{reason}: {count}"))
            .collect();
        let interfaces = stats["interfaces"].as_object().into_iter().flat_map(serde_json::Map::values);
        let networks = interfaces.filter(|interface| interface["role"] == "n6");
        let sent: u64 = networks.filter_map(|network| network["sent"]["packets"].as_u64()).sum();
        let detail = if odd.is_empty() { format!("{sent} packets sent on N6") } else { odd.join(", ") };
        self.check(&format!("{whose} drops nothing of its own"), odd.is_empty() && sent > 0, detail);
    }
}

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The pipeline between ports in memory.
    Pipeline,
    /// The same with the packets that users have: IPv6, quotas, many gNBs and servers, sizes, and their mix.
    Users,
    /// Instructions per packet of the pipeline, counted by valgrind.
    Instructions,
    /// Rule changes under load.
    Changes,
    /// Session establishments over N4.
    N4,
    /// A worker without packets, and the first packet after a pause.
    Idle,
    /// Kernel sockets and TUN.
    Kernel,
    /// AF_XDP.
    AfXdp,
    /// DPDK with null devices and over memif, if it is built in.
    Dpdk,
    /// Two workers between DPDK's null devices, if it is built in.
    Workers,
}

/// Runs the experiment, or only the named parts.
///
/// # Errors
/// The machine gives this process no core, or refuses something that is needed.
pub fn run(options: &Options, parts: &[Part]) -> anyhow::Result<Experiment> {
    let cores = machine::cores();
    let [core, others @ ..] = cores.as_slice() else { bail!("no core to measure on") };
    // gNB and data network run on the first core, the user plane on another one if there is one.
    let other = others.first().copied().unwrap_or(*core);
    let mut experiment = Experiment::new("upf", options.quick);
    let mut run = Run {
        plan: Plan::new(options.quick),
        progress: Progress::new("upf"),
        results: Results::default(),
        checks: Vec::new(),
        notes: std::collections::BTreeMap::new(),
        tallies: std::collections::BTreeMap::new(),
        cores: [*core, other],
    };
    experiment.param("rounds", run.plan.rounds);
    experiment.param("sample_ms", run.plan.sample.as_millis() as u64);
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    // A sleeping core takes long to wake up, which would affect contenders at random.
    let awake = Awake::new();
    experiment.param("awake", awake.is_ok());
    experiment.param("core", if machine::pin(&[*core]) { *core as i64 } else { -1 });
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    if wanted(Part::Pipeline) {
        for sessions in run.plan.sessions.clone() {
            alone::run(&mut run, sessions)?;
        }
    }
    if wanted(Part::Users) {
        run.part("users' packets", users::run);
    }
    if wanted(Part::Instructions) {
        run.part("instructions", |run| instructions::run(run, options.quick));
    }
    experiment.param("core_of_user_plane", other);
    if wanted(Part::Changes) {
        changes::run(&mut run, other)?;
    }
    if wanted(Part::N4) {
        run.part("N4", |run| n4::run(run, other));
    }
    if wanted(Part::Idle) {
        run.part("without packets", |run| idle::run(run, other));
    }
    if wanted(Part::Kernel) {
        for sessions in run.plan.network_sessions.clone() {
            run.part("kernel", |run| kernel::run(run, sessions, other));
        }
    }
    if wanted(Part::AfXdp) {
        run.part("AF_XDP", |run| af_xdp::run(run, other));
    }
    #[cfg(feature = "dpdk")]
    if wanted(Part::Dpdk) {
        let _huge_pages = dpdk::HugePages::take();
        run.part("DPDK null", |run| null::run(run, *core, other));
        run.part("DPDK memif", |run| dpdk::run(run, [*core, other]));
    }
    #[cfg(feature = "dpdk")]
    if wanted(Part::Workers) {
        let _huge_pages = dpdk::HugePages::take();
        run.part("two workers", workers::run);
    }
    #[cfg(not(feature = "dpdk"))]
    run.note("dpdk", "not measured: built without the feature `dpdk`");
    for (name, what) in std::mem::take(&mut run.notes) {
        experiment.param(&name, what);
    }
    for (whose, tally) in &run.tallies {
        let (ok, detail) = tally.judge();
        experiment.check(&format!("{whose}: packets arrive octet by octet"), ok, detail);
    }
    for (name, ok, detail) in std::mem::take(&mut run.checks) {
        experiment.check(&name, ok, detail);
    }
    summary::add_times_over_bare(&mut run.results);
    summary::write(&run.results, &mut experiment);
    experiment.series = run.results.into_series();
    Ok(experiment)
}

/// The process with the user plane, which [`run`] starts for parts that need two processes.
#[derive(clap::Args, Clone, Debug)]
pub struct Serve {
    /// Folder of the sockets between the processes.
    #[arg(long)]
    pub folder: std::path::PathBuf,
    /// Core to run on.
    #[arg(long)]
    pub core: usize,
    /// Core of the thread that answers questions about the forwarder.
    #[arg(long)]
    pub elsewhere: usize,
    /// Number of sessions.
    #[arg(long)]
    pub sessions: usize,
    /// Run a bare forwarder in place of the user plane.
    #[arg(long)]
    pub bare: bool,
    /// Be the client of the memifs, not their server.
    #[arg(long)]
    pub client: bool,
}

/// Serves until standard input ends.
///
/// # Errors
/// The backend does not start, or is not built in.
pub fn serve(part: &Serve) -> anyhow::Result<()> {
    #[cfg(feature = "dpdk")]
    return dpdk::serve(part);
    #[cfg(not(feature = "dpdk"))]
    bail!("built without the feature `dpdk`: no {} to serve", part.folder.display())
}
