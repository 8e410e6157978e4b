//! The JSON form of results, common to all experiments.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The result of one run of an experiment.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Experiment {
    /// Identifier, as on the command line.
    pub experiment: String,
    /// Commit of the sources, `-dirty` when changed; `unknown` outside a checkout.
    pub commit: String,
    /// The machine on which it ran.
    pub machine: Machine,
    /// Start, UTC, RFC 3339.
    pub started: String,
    /// Whether it was a quick run.
    pub quick: bool,
    /// Parameters, so that the run can be repeated.
    pub params: BTreeMap<String, serde_json::Value>,
    /// The curves.
    pub series: Vec<Series>,
    /// The figures that are promised, by name.
    pub ratios: BTreeMap<String, f64>,
    /// Published values with the same names, for comparison.
    pub published: BTreeMap<String, f64>,
    /// Conditions under which the figures are valid.
    pub checks: Vec<Check>,
}

/// The machine of a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory, megabytes.
    pub memory_mb: u64,
    /// Kernel release.
    pub kernel: String,
}

/// One curve.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Meaning of x.
    pub x_label: String,
    /// Meaning of the samples.
    pub y_label: String,
    /// Unit of the samples.
    pub unit: String,
    /// The points, in the order of x.
    pub points: Vec<Point>,
}

/// All samples at one x.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Point {
    /// Position on the x axis.
    pub x: f64,
    /// Every sample taken, in the order taken.
    pub samples: Vec<f64>,
}

/// A condition and whether it held.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Check {
    /// Short name.
    pub name: String,
    /// Whether it held.
    pub ok: bool,
    /// The numbers on which it is based.
    pub detail: String,
}

impl Experiment {
    /// An empty result, stamped with commit, machine and time.
    pub fn new(experiment: &str, quick: bool) -> Self {
        Experiment {
            experiment: experiment.to_owned(),
            commit: crate::machine::commit(),
            machine: crate::machine::describe(),
            started: crate::machine::rfc3339(net::time::wall_clock()),
            quick,
            params: BTreeMap::new(),
            series: Vec::new(),
            ratios: BTreeMap::new(),
            published: BTreeMap::new(),
            checks: Vec::new(),
        }
    }

    /// Records a parameter of the run.
    pub fn param(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.params.insert(name.to_owned(), value.into());
    }

    /// Records a condition. If one does not hold, the figures are not valid.
    pub fn check(&mut self, name: &str, ok: bool, detail: impl Into<String>) {
        self.checks.push(Check { name: name.to_owned(), ok, detail: detail.into() });
    }

    /// Whether every condition held.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }
}
