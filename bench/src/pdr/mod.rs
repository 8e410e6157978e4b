//! `pdr`: how fast packets find their rule, and how fast rules change, for every backend of the crate
//! `classifier`.
//!
//! One pinned core. Parts, each a module: look-ups and updates by backend, rule family and size ([`lookup`],
//! [`update`]); the L25GC paper's comparison for 2 to 100 PDRs ([`figure11`]); a million sessions ([`sessions`]); look-ups in cold caches ([`cold`]) and
//! while another core updates ([`concurrent`]). [`summary`] draws the promised figures from the samples.
//!
//! Contenders take turns within a round (A B C … A B C), so that a busy moment of the machine affects all of
//! them. A ratio is the median over rounds of the ratio within a round. Before a backend is timed, its verdict
//! for each packet of the trace is compared with the linear list's; a backend with a wrong verdict fails the
//! run.
//!
//! Series are named `<backend>.<family>.<what>`: `acl`, `fw`, `ipc` are sets of 5-tuple rules, `acl_full` and so on
//! rules with all fields of a PDR (DPDK's `rte_acl`, with the feature `dpdk`, has 5-tuples only); `lookup` is one packet per call, `lookup_b32` 32 packets.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use classifier::Backend;
use classifier::generate::{Family, Fields};
use net::time::Duration;

use crate::Options;
use crate::progress::Progress;
use crate::result::Experiment;
use results::Results;

mod cold;
mod concurrent;
mod contender;
mod figure11;
mod lookup;
mod measure;
pub mod panels;
mod results;
#[cfg_attr(not(feature = "dpdk"), path = "rte_acl_absent.rs")]
mod rte_acl;
mod sessions;
mod summary;
mod update;

/// Extent of the measurement.
struct Plan {
    quick: bool,
    /// Samples of each figure.
    rounds: usize,
    /// A sample lasts at least this long.
    sample: Duration,
    /// Numbers of rules.
    sizes: Vec<usize>,
    /// Time limit for building a backend; larger sizes are left out.
    build_limit: Duration,
    /// Time for updates that are timed one by one, per sample.
    single_updates: Duration,
    /// Up to this number of rules, other traffic than uniform is measured too.
    traffic_sizes: usize,
    /// Numbers of rules of cold look-ups.
    cold_sizes: Vec<usize>,
    /// Numbers of rules in the comparison with the L25GC paper.
    figure11: Vec<usize>,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        let sizes = vec![4, 16, 100, 1000, 10_000, 100_000];
        let ms = Duration::from_millis;
        if quick {
            Plan {
                quick,
                rounds: 5,
                sample: ms(1),
                sizes,
                build_limit: ms(400),
                single_updates: ms(4),
                traffic_sizes: 10_000,
                cold_sizes: vec![16, 1000],
                figure11: vec![2, 25, 50, 75, 100],
            }
        } else {
            Plan {
                quick,
                rounds: 15,
                sample: ms(2),
                sizes,
                build_limit: Duration::from_secs(20),
                single_updates: ms(20),
                traffic_sizes: 100_000,
                cold_sizes: vec![4, 16, 100, 1000, 10_000],
                figure11: std::iter::once(2).chain((10..=100).step_by(10)).collect(),
            }
        }
    }

    /// The backends of a situation. The quick run compares all of them for ACLs only.
    fn backends(&self, family: Family, fields: Fields) -> Vec<Backend> {
        let all = !self.quick || (family == Family::Acl && fields == Fields::FiveTuple);
        Backend::ALL.iter().filter(|backend| all || promised(**backend)).copied().collect()
    }

    /// Whether updates are measured.
    fn updates(&self, family: Family, fields: Fields) -> bool {
        !self.quick || (family == Family::Acl && fields == Fields::FiveTuple)
    }
}

/// Whether promised figures depend on this backend.
fn promised(backend: Backend) -> bool {
    matches!(backend, Backend::List | Backend::Auto)
}

/// Results while measuring.
struct Session {
    progress: Progress,
    results: Results,
    /// By backend: descriptions of wrong verdicts, and the number of verdicts compared.
    verdicts: BTreeMap<&'static str, (Vec<String>, usize)>,
    /// Why a series has no value at a size.
    left_out: Vec<String>,
    /// Combinations that were built: backend, situation, number of rules.
    built: BTreeSet<(&'static str, String, usize)>,
}

impl Session {
    fn checked(&mut self, backend: &'static str, situation: &str, n: usize, wrong: usize, compared: usize) {
        let (failures, total) = self.verdicts.entry(backend).or_default();
        *total += compared;
        if wrong > 0 {
            failures.push(format!("{situation}, {n} rules: {wrong} of {compared} wrong"));
        }
    }

    fn note_built(&mut self, backend: Backend, situation: &str, n: usize) {
        self.built.insert((backend.name(), situation.to_owned(), n));
    }

    /// Whether building was within the time limit.
    fn built(&self, backend: Backend, situation: &str, n: usize) -> bool {
        self.built.contains(&(backend.name(), situation.to_owned(), n))
    }

    fn leave_out(&mut self, backend: Backend, situation: &str, n: usize) {
        self.left_out.push(format!("{backend}.{situation} from {n} rules on: building takes too long"));
    }
}

/// Runs the experiment.
///
/// # Errors
/// The machine gives this process no core.
pub fn run(options: &Options) -> anyhow::Result<Experiment> {
    let cores = crate::machine::cores();
    let [core, others @ ..] = cores.as_slice() else { bail!("no core to measure on") };
    let plan = Plan::new(options.quick);
    let mut experiment = Experiment::new("pdr", options.quick);
    experiment.param("seed", lookup::SEED);
    experiment.param("rounds", plan.rounds);
    experiment.param("sample_ms", plan.sample.as_millis() as u64);
    experiment.param("batch", measure::BATCH);
    experiment.param("build_limit_s", plan.build_limit.as_secs_f64());
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    experiment.param("core", if crate::machine::pin(&[*core]) { *core as i64 } else { -1 });
    experiment.param("clock_ns", measure::clock_cost());

    experiment.param("rte_acl", rte_acl::start(*core));

    let mut session = Session {
        progress: Progress::new("pdr"),
        results: Results::default(),
        verdicts: BTreeMap::new(),
        left_out: Vec::new(),
        built: BTreeSet::new(),
    };
    figure11::run(&plan, &mut session);
    lookup::run(&plan, &mut session);
    sessions::run(&plan, &mut session);
    cold::run(&plan, &mut session);
    concurrent::run(&plan, &mut session, others.first().copied());
    experiment.param("left_out", session.left_out.clone());
    for (backend, (failures, compared)) in &session.verdicts {
        let detail = if failures.is_empty() {
            format!("{compared} verdicts as the list's")
        } else {
            failures.join("; ")
        };
        experiment.check(&format!("{backend} verdicts"), failures.is_empty(), detail);
    }
    summary::write(&session.results, &mut experiment);
    experiment.series = session.results.into_series();
    Ok(experiment)
}
