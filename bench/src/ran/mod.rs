//! What `midhaul`, `backhaul`, `end_to_end` and `video` have in common: the nodes DU, CU and UPF ([`nodes`]), the ways between
//! them ([`network`]), the threads on which they run ([`serving`]), their ends in memory ([`ends`]), and what is measured between two
//! of them ([`measure`]).

pub(crate) mod ends;
pub(crate) mod lab;
pub(crate) mod measure;
pub(crate) mod network;
pub(crate) mod nodes;
pub(crate) mod packets;
pub(crate) mod panels;
pub(crate) mod serving;
pub(crate) mod sockets;

use std::collections::BTreeMap;

use anyhow::bail;
use net::time::Duration;

use crate::distance;
use crate::machine::{self, Awake};
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};

pub(crate) const MPPS_BY_SIZE: Axes = Axes { x: "octets", y: "packets per second", unit: "Mpps" };
pub(crate) const GBIT: Axes = Axes { x: "octets", y: "throughput of user packets", unit: "Gbit/s" };
pub(crate) const US_BY_SIZE: Axes = Axes { x: "octets", y: "time", unit: "us" };
pub(crate) const US_BY_LOAD: Axes = Axes { x: "thousand packets per second", y: "time", unit: "us" };
const DISTANCE: Axes = Axes { x: "", y: "time of a cache line between the cores", unit: "ns" };
/// Series of these times.
const APART: &str = "cores.apart";
pub(crate) const LOSS: Axes = Axes { x: "thousand packets per second", y: "packets lost", unit: "%" };

/// Extent of what is measured between two nodes.
#[derive(Clone)]
pub(crate) struct LinkPlan {
    pub(crate) rounds: usize,
    /// Octets of users' packets.
    pub(crate) sizes: Vec<usize>,
    /// Time per size.
    pub(crate) time: Duration,
    pub(crate) loads_kpps: Vec<usize>,
    /// Time per load.
    pub(crate) load_time: Duration,
    /// Round trips per size.
    pub(crate) round_trips: usize,
    /// Pause between them.
    pub(crate) pause_ns: u64,
}

impl LinkPlan {
    /// That of a quick run, and of a full one.
    pub(crate) fn new(quick: bool) -> LinkPlan {
        let ms = Duration::from_millis;
        match quick {
            true => LinkPlan {
                rounds: 3,
                sizes: vec![64, 256, 1500],
                time: ms(60),
                loads_kpps: vec![100, 500, 2000],
                load_time: ms(60),
                round_trips: 400,
                pause_ns: 100_000,
            },
            false => LinkPlan {
                rounds: 10,
                sizes: vec![64, 128, 256, 512, 1024, 1500],
                time: ms(200),
                loads_kpps: vec![50, 100, 200, 400, 800, 1600, 3200],
                load_time: ms(200),
                round_trips: 1000,
                pause_ns: 200_000,
            },
        }
    }
}

#[cfg(test)]
impl LinkPlan {
    /// Just enough to see packets pass.
    pub(crate) fn least() -> LinkPlan {
        let ms = Duration::from_millis;
        LinkPlan {
            rounds: 1,
            sizes: vec![64, 1500],
            // Long enough for a machine with other work.
            time: ms(300),
            loads_kpps: vec![1],
            load_time: ms(20),
            round_trips: 10,
            pause_ns: 10_000,
        }
    }
}

/// Lets one test with nodes that poll run at a time.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A run in progress, with the plan of its experiment.
pub(crate) struct Run<P> {
    pub(crate) plan: P,
    pub(crate) progress: Progress,
    pub(crate) results: Results,
    /// The cores of this process.
    pub(crate) cores: Vec<usize>,
    experiment: Experiment,
    /// Packets that must not be, by what they are.
    counts: BTreeMap<String, u64>,
    _awake: Option<Awake>,
}

impl<P> Run<P> {
    /// Begins an experiment on the first core.
    ///
    /// # Errors
    /// The machine gives this process no core.
    pub(crate) fn begin(name: &'static str, quick: bool, rounds: usize, plan: P) -> anyhow::Result<Run<P>> {
        let cores = machine::cores();
        let Some(first) = cores.first().copied() else { bail!("no core to measure on") };
        let mut experiment = Experiment::new(name, quick);
        experiment.param("rounds", rounds);
        experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
        let awake = Awake::new().ok();
        experiment.param("awake", awake.is_some());
        experiment.param("core", if machine::pin(&[first]) { first as i64 } else { -1 });
        Ok(Run {
            plan,
            progress: Progress::new(name),
            results: Results::default(),
            cores,
            experiment,
            counts: BTreeMap::new(),
            _awake: awake,
        })
    }

    /// Two cores, which are the same one where there is no other.
    pub(crate) fn two_cores(&self) -> [usize; 2] {
        let first = self.cores.first().copied().unwrap_or(0);
        [first, self.cores.get(1).copied().unwrap_or(first)]
    }

    /// Records the time of a cache line between the two cores: it changes when the hypervisor moves them, and rates with it.
    pub(crate) fn add_distance(&mut self) {
        if let Some(ns) = distance::measure(self.two_cores()) {
            self.results.add(APART.to_owned(), DISTANCE, 0, ns);
        }
    }

    /// Records a parameter.
    pub(crate) fn param(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.experiment.param(name, value);
    }

    /// Adds packets that must not be. All together become one check.
    pub(crate) fn count(&mut self, what: &str, packets: u64) {
        *self.counts.entry(what.to_owned()).or_default() += packets;
    }

    pub(crate) fn check(&mut self, name: &str, ok: bool, detail: String) {
        self.experiment.check(name, ok, detail);
    }

    /// Runs a part that needs rights or devices which the machine may lack. Its error becomes a failed check, and the other
    /// parts continue.
    pub(crate) fn part(&mut self, name: &str, measure: impl FnOnce(&mut Self) -> anyhow::Result<()>) {
        if let Err(error) = measure(self) {
            self.check(name, false, format!("{error:#}"));
        }
    }

    /// The result, whose promised figures `summarise` makes of the samples.
    pub(crate) fn end(mut self, summarise: impl FnOnce(&Results, &mut Experiment)) -> Experiment {
        for (what, count) in std::mem::take(&mut self.counts) {
            self.check(&format!("no {what}"), count == 0, format!("{count}"));
        }
        summarise(&self.results, &mut self.experiment);
        if let Some(ns) = self.results.median(APART, 0) {
            self.experiment.ratios.insert("core_to_core_ns".to_owned(), ns);
        }
        self.experiment.series = self.results.into_series();
        self.experiment
    }
}
