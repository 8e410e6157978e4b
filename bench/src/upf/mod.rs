//! `upf`: packets per second and core, time per packet and latency of the user plane, by backend, packet size, number of
//! sessions and direction.
//!
//! Flow: [`alone`] measures the pipeline between memory ports, [`kernel`] whole user planes across namespaces. Sizes are those of the user's IP packets. Every session
//! has four PDRs, a meter and a usage counter ([`subscriber`]); each packet is of a random session. Contenders take turns
//! within a round, so that a busy moment of the machine hits all of them: the [`textbook`] user plane, and bare forwarders
//! per backend, which are the limit. Goals and measured values are in SPECIFICATION.md.

mod af_xdp;
mod alone;
mod bare;
mod changes;
pub(crate) mod client;
#[cfg(feature = "dpdk")]
mod dpdk;
mod ends;
mod frames;
mod kernel;
pub(crate) mod network;
pub mod panels;
pub(crate) mod subscriber;
mod summary;
mod textbook;
pub(crate) mod traffic;
pub(crate) mod under_test;
pub(crate) mod world;

use anyhow::bail;
use net::time::Duration;

use crate::Options;
use crate::machine::{self, Awake};
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};
use traffic::Direction;

const MPPS: Axes = Axes { x: "sessions", y: "packets per second and core", unit: "Mpps" };
const NS: Axes = Axes { x: "sessions", y: "time per packet", unit: "ns" };
const US: Axes = Axes { x: "sessions", y: "one-way time", unit: "us" };
const SHARE: Axes = Axes { x: "sessions", y: "lost", unit: "%" };
const BYTES: Axes = Axes { x: "sessions", y: "memory of the data plane", unit: "B/session" };
const STALL: Axes = Axes { x: "sessions", y: "time of a batch", unit: "us" };
const RATE: Axes = Axes { x: "sessions", y: "rate", unit: "1/s" };

/// Sessions of the frame backends: the tables of as many are hot.
const FRAME_SESSIONS: usize = 1000;

/// What is measured.
struct Plan {
    rounds: usize,
    /// Time per sample.
    sample: Duration,
    /// Octets of user packets.
    sizes: Vec<usize>,
    /// Numbers of sessions.
    sessions: Vec<usize>,
    /// The same across namespaces, where every packet costs more.
    network_rounds: usize,
    network_sample: Duration,
    network_sizes: Vec<usize>,
    network_sessions: Vec<usize>,
    /// Packets one at a time, and the time between them.
    low: (usize, Duration),
}

impl Plan {
    fn new(quick: bool) -> Plan {
        if quick {
            Plan {
                rounds: 3,
                sample: Duration::from_millis(8),
                sizes: vec![64, 1500],
                sessions: vec![1, 1000, 1_000_000],
                network_rounds: 2,
                network_sample: Duration::from_millis(80),
                network_sizes: vec![64, 1400],
                network_sessions: vec![1000],
                low: (100, Duration::from_micros(500)),
            }
        } else {
            Plan {
                rounds: 15,
                sample: Duration::from_millis(20),
                sizes: vec![64, 128, 256, 512, 1024, 1500],
                sessions: vec![1, 1000, 100_000, 1_000_000],
                network_rounds: 9,
                network_sample: Duration::from_millis(200),
                network_sizes: vec![64, 128, 256, 512, 1024, 1400, 1500],
                network_sessions: vec![1, 1000, 100_000],
                low: (500, Duration::from_millis(1)),
            }
        }
    }
}

/// A run while it is under way.
struct Run {
    plan: Plan,
    progress: Progress,
    results: Results,
    checks: Vec<(String, bool, String)>,
    /// What is worth knowing of how it was measured.
    notes: std::collections::BTreeMap<String, String>,
}

impl Run {
    fn check(&mut self, name: &str, ok: bool, detail: String) {
        self.checks.push((name.to_owned(), ok, detail));
    }

    fn note(&mut self, name: &str, what: &str) {
        self.notes.insert(name.to_owned(), what.to_owned());
    }

    /// Measures one contender on a frame backend: rates by size and direction, then one-way times.
    fn frames<F: pktio::FramePort>(
        &mut self,
        backend: &str,
        kind: frames::Kind,
        sessions: usize,
        generator: &mut frames::Generator<F>,
    ) -> anyhow::Result<()> {
        generator.warm_up()?;
        let series = |direction: Direction, what: &str| {
            format!("{backend}.{}.{}.{what}", kind.name(), direction.name())
        };
        for direction in Direction::ALL {
            let sizes: Vec<usize> =
                self.plan.network_sizes.iter().copied().filter(|size| generator.fits(*size)).collect();
            for size in sizes {
                let rate = generator.flood(direction, size, self.plan.network_sample)?;
                let name = series(direction, &format!("{size}.mpps"));
                self.results.add(name, MPPS, sessions, rate / 1e6);
            }
            let smallest = series(direction, &format!("{}.mpps", self.plan.network_sizes[0]));
            let most = 1e6 * crate::stats::median(self.results.samples(&smallest, sessions));
            let low = 1.0 / self.plan.low.1.as_secs_f64();
            let long = self.plan.low.1 * self.plan.low.0 as u32;
            for (load, rate, duration) in
                [("low", low, long), ("load80", 0.8 * most, self.plan.network_sample)]
            {
                let found = generator.latency(direction, rate, duration)?;
                for (what, axes, value) in
                    [("p50", US, found.p50), ("p99", US, found.p99), ("lost", SHARE, found.lost)]
                {
                    if value.is_finite() {
                        self.results.add(series(direction, &format!("{load}.{what}")), axes, sessions, value);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Runs the experiment.
///
/// # Errors
/// The machine gives this process no core, or refuses something that is needed.
pub fn run(options: &Options) -> anyhow::Result<Experiment> {
    let cores = machine::cores();
    let [core, others @ ..] = cores.as_slice() else { bail!("no core to measure on") };
    let mut experiment = Experiment::new("upf", options.quick);
    let mut run = Run {
        plan: Plan::new(options.quick),
        progress: Progress::new("upf"),
        results: Results::default(),
        checks: Vec::new(),
        notes: std::collections::BTreeMap::new(),
    };
    experiment.param("rounds", run.plan.rounds);
    experiment.param("sample_ms", run.plan.sample.as_millis() as u64);
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    // A core that sleeps takes long to wake up, which hits every contender elsewhere.
    let awake = Awake::new();
    experiment.param("awake", awake.is_ok());
    experiment.param("core", if machine::pin(&[*core]) { *core as i64 } else { -1 });
    for sessions in run.plan.sessions.clone() {
        alone::run(&mut run, sessions)?;
    }
    // gNB and data network on this core, the user plane on another one if there is one.
    let other = others.first().copied().unwrap_or(*core);
    experiment.param("core_of_user_plane", other);
    changes::run(&mut run, other)?;
    for sessions in run.plan.network_sessions.clone() {
        kernel::run(&mut run, &kernel::KERNEL, sessions, other)?;
    }
    if let Err(error) = af_xdp::run(&mut run, FRAME_SESSIONS, other) {
        run.check("af_xdp", false, format!("{error:#}"));
    }
    #[cfg(feature = "dpdk")]
    if let Err(error) = dpdk::run(&mut run, FRAME_SESSIONS, *core, other) {
        run.check("dpdk", false, format!("{error:#}"));
    }
    #[cfg(not(feature = "dpdk"))]
    run.note("dpdk", "not measured: built without the feature `dpdk`");
    for (name, what) in std::mem::take(&mut run.notes) {
        experiment.param(&name, what);
    }
    for (name, ok, detail) in std::mem::take(&mut run.checks) {
        experiment.check(&name, ok, detail);
    }
    summary::write(&run.results, &mut experiment);
    experiment.series = run.results.into_series();
    Ok(experiment)
}

/// The process of the user plane, which [`run`] starts for what takes two.
#[derive(clap::Args, Clone, Debug)]
pub struct Serve {
    /// Folder of the sockets between the processes.
    #[arg(long)]
    pub folder: std::path::PathBuf,
    /// Core to work on.
    #[arg(long)]
    pub core: usize,
    /// Number of sessions.
    #[arg(long)]
    pub sessions: usize,
    /// A bare forwarder in place of the user plane.
    #[arg(long)]
    pub bare: bool,
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
