//! `upf`: packets per second and core, time per packet and latency of the user plane, by backend, packet size, number of
//! sessions and direction.
//!
//! Flow: [`alone`] measures the pipeline between memory ports, [`kernel`] whole user planes across namespaces. Sizes are those of the user's IP packets. Every session
//! has four PDRs, a meter and a usage counter ([`subscriber`]); each packet is of a random session. Contenders take turns
//! within a round, so that a busy moment of the machine hits all of them: the [`textbook`] user plane, and bare forwarders
//! per backend, which are the limit. Goals and measured values are in SPECIFICATION.md.

mod alone;
mod bare;
pub(crate) mod client;
mod ends;
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

const MPPS: Axes = Axes { x: "sessions", y: "packets per second and core", unit: "Mpps" };
const NS: Axes = Axes { x: "sessions", y: "time per packet", unit: "ns" };
const US: Axes = Axes { x: "sessions", y: "one-way time", unit: "us" };
const SHARE: Axes = Axes { x: "sessions", y: "lost", unit: "%" };
const BYTES: Axes = Axes { x: "sessions", y: "memory of the data plane", unit: "B/session" };
const RATE: Axes = Axes { x: "sessions", y: "rate", unit: "1/s" };

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
                network_sizes: vec![64, 1500],
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
                network_sizes: vec![64, 128, 256, 512, 1024, 1500],
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
}

impl Run {
    fn check(&mut self, name: &str, ok: bool, detail: String) {
        self.checks.push((name.to_owned(), ok, detail));
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
    for sessions in run.plan.network_sessions.clone() {
        kernel::run(&mut run, &kernel::KERNEL, sessions, other)?;
    }
    for (name, ok, detail) in std::mem::take(&mut run.checks) {
        experiment.check(&name, ok, detail);
    }
    summary::write(&run.results, &mut experiment);
    experiment.series = run.results.into_series();
    Ok(experiment)
}
