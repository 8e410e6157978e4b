//! `midhaul`: the CU's relay, and the link between DU and CU (F1-U), by backend.
//!
//! Parts: `relay`, the CU between ports in memory, by protection of user data ([`relay`]).

mod relay;

use anyhow::bail;
use net::time::Duration;

use crate::Options;
use crate::machine::{self, Awake};
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};

const MPPS: Axes = Axes { x: "bearers", y: "packets per second and core", unit: "Mpps" };
const NS: Axes = Axes { x: "bearers", y: "time per packet", unit: "ns" };

/// Bearers of the promised figures.
const BEARERS: usize = 1000;

/// Extent of the measurement.
struct Plan {
    rounds: usize,
    /// Time per sample.
    sample: Duration,
    /// Octets of the UE's IP packets.
    relay_sizes: Vec<usize>,
    bearers: Vec<usize>,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        let (rounds, sample_ms, relay_sizes, bearers) = match quick {
            true => (3, 8, vec![64, 1500], vec![1, BEARERS]),
            false => (10, 20, vec![64, 128, 256, 512, 1024, 1500], vec![1, BEARERS, 100_000]),
        };
        Plan { rounds, sample: Duration::from_millis(sample_ms), relay_sizes, bearers }
    }
}

/// A run in progress.
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

    /// Runs a part that needs rights or devices which the machine may lack. Its error becomes a failed check, and the other
    /// parts continue.
    fn part(&mut self, name: &str, measure: impl FnOnce(&mut Run) -> anyhow::Result<()>) {
        if let Err(error) = measure(self) {
            self.check(name, false, format!("{error:#}"));
        }
    }
}

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The CU's relay between ports in memory.
    Relay,
}

/// Runs the experiment, or only the named parts.
///
/// # Errors
/// The machine gives this process no core.
pub fn run(options: &Options, parts: &[Part]) -> anyhow::Result<Experiment> {
    let cores = machine::cores();
    let [core, ..] = cores.as_slice() else { bail!("no core to measure on") };
    let mut experiment = Experiment::new("midhaul", options.quick);
    let mut run = Run {
        plan: Plan::new(options.quick),
        progress: Progress::new("midhaul"),
        results: Results::default(),
        checks: Vec::new(),
    };
    experiment.param("rounds", run.plan.rounds);
    experiment.param("sample_ms", run.plan.sample.as_millis() as u64);
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    let awake = Awake::new();
    experiment.param("awake", awake.is_ok());
    experiment.param("core", if machine::pin(&[*core]) { *core as i64 } else { -1 });
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    if wanted(Part::Relay) {
        for bearers in run.plan.bearers.clone() {
            run.part("relay", |run| relay::run(run, bearers));
        }
    }
    for (name, ok, detail) in std::mem::take(&mut run.checks) {
        experiment.check(&name, ok, detail);
    }
    summarise(&run.results, &mut experiment);
    experiment.series = run.results.into_series();
    Ok(experiment)
}

/// The promised figures: the lesser of both directions, at 64 octets.
fn summarise(results: &Results, experiment: &mut Experiment) {
    for protection in relay::Protection::ALL {
        let name = protection.name();
        let rates = ["uplink", "downlink"].map(|direction| {
            let rate = results.median(&format!("memory.{name}.{direction}.64.mpps"), BEARERS);
            if let Some(rate) = rate {
                experiment.ratios.insert(format!("cu_relay_mpps_{name}_{direction}"), rate);
            }
            rate
        });
        if let [Some(up), Some(down)] = rates {
            experiment.ratios.insert(format!("cu_relay_mpps_{name}"), up.min(down));
        }
    }
}
