//! `midhaul`: the CU's relay, and the link between DU and CU (F1-U), by backend.
//!
//! Parts: `relay`, the CU between ports in memory, by protection of user data ([`relay`]); `memif`, the CU between two memifs
//! ([`memif`]); `link`, DU and CU with a way between
//! them ([`link`]), the paper's Figures 7 to 10; `hybrid`, how long packets wait at a CU that has a memif on one side and a socket on
//! the other ([`hybrid`]), and the share of a core that it takes meanwhile.

mod hybrid;
mod link;
mod memif;
mod nodes;
pub mod panels;
mod relay;
mod sockets;

use anyhow::bail;
use net::time::Duration;

use crate::Options;
use crate::machine::{self, Awake};
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};

const MPPS: Axes = Axes { x: "bearers", y: "packets per second and core", unit: "Mpps" };
const NS: Axes = Axes { x: "bearers", y: "time per packet", unit: "ns" };

const MPPS_BY_SIZE: Axes = Axes { x: "octets", y: "packets per second", unit: "Mpps" };
const GBIT: Axes = Axes { x: "octets", y: "throughput of user packets", unit: "Gbit/s" };
const US_BY_SIZE: Axes = Axes { x: "octets", y: "time", unit: "us" };
const US_BY_LOAD: Axes = Axes { x: "thousand packets per second", y: "time", unit: "us" };
const US: Axes = Axes { x: "time-outs, ms", y: "time", unit: "us" };
const CPU: Axes = Axes { x: "time-outs, ms", y: "share of a core while idle", unit: "%" };
const LOSS: Axes = Axes { x: "thousand packets per second", y: "packets lost", unit: "%" };

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
    link_sizes: Vec<usize>,
    /// Time per size.
    link_time: Duration,
    loads_kpps: Vec<usize>,
    /// Time per load.
    load_time: Duration,
    /// Round trips per size.
    round_trips: usize,
    /// Pause between them.
    pause_ns: u64,
    /// Packets one at a time at the hybrid CU, per contender, direction and round.
    hybrid_packets: usize,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        let sizes = vec![64, 128, 256, 512, 1024, 1500];
        let ms = Duration::from_millis;
        match quick {
            true => Plan {
                rounds: 3,
                sample: ms(8),
                relay_sizes: vec![64, 1500],
                bearers: vec![1, BEARERS],
                link_sizes: vec![64, 256, 1500],
                link_time: ms(60),
                loads_kpps: vec![100, 500, 2000],
                load_time: ms(60),
                round_trips: 400,
                pause_ns: 100_000,
                hybrid_packets: 25,
            },
            false => Plan {
                rounds: 10,
                sample: ms(20),
                relay_sizes: sizes.clone(),
                bearers: vec![1, BEARERS, 100_000],
                link_sizes: sizes,
                link_time: ms(200),
                loads_kpps: vec![50, 100, 200, 400, 800, 1600, 3200],
                load_time: ms(200),
                round_trips: 1000,
                pause_ns: 200_000,
                hybrid_packets: 100,
            },
        }
    }
}

/// A run in progress.
struct Run {
    plan: Plan,
    progress: Progress,
    results: Results,
    checks: Vec<(String, bool, String)>,
    /// Packets that must not be, by what they are.
    counts: std::collections::BTreeMap<String, u64>,
    /// The UE whose packets go round.
    ue: Option<nodes::Ue>,
}

impl Run {
    /// Adds packets that must not be. All together become one check.
    fn count(&mut self, what: &str, packets: u64) {
        *self.counts.entry(what.to_owned()).or_default() += packets;
    }

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
    /// The CU between two memifs, beside a bare forwarder.
    Memif,
    /// DU and CU with a way between them.
    Link,
    /// A CU with memif on F1-U and a kernel socket on N3: what it waits for while nothing comes.
    Hybrid,
}

/// Runs the experiment, or only the named parts.
///
/// # Errors
/// The machine gives this process no core.
pub fn run(options: &Options, parts: &[Part]) -> anyhow::Result<Experiment> {
    let cores = machine::cores();
    let [core, others @ ..] = cores.as_slice() else { bail!("no core to measure on") };
    // The DU is on this one.
    let other = others.first().copied().unwrap_or(*core);
    let mut experiment = Experiment::new("midhaul", options.quick);
    let mut run = Run {
        plan: Plan::new(options.quick),
        progress: Progress::new("midhaul"),
        results: Results::default(),
        checks: Vec::new(),
        counts: std::collections::BTreeMap::new(),
        ue: None,
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
    if wanted(Part::Memif) {
        run.part("memif", |run| memif::run(run, [*core, other]));
    }
    if wanted(Part::Link) {
        run.part("link", |run| link::run(run, [*core, other]));
    }
    if wanted(Part::Hybrid) {
        run.part("hybrid", |run| hybrid::run(run, [*core, other]));
    }
    for (what, count) in std::mem::take(&mut run.counts) {
        run.check(&format!("no {what}"), count == 0, format!("{count}"));
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

    for (way, name) in [(link::Way::Memif, ""), (link::Way::AfXdp, "_veth")] {
        let series = |what: &str, way: link::Way| format!("throughput.{}.{what}", way.name());
        for size in [64, 256] {
            let gain = results.ratio(&series("mpps", way), &series("mpps", link::Way::Batched), size);
            if let Some(gain) = gain {
                let figure = format!("midhaul_throughput_{size}b_gain{name}_pct");
                experiment.ratios.insert(figure, (gain - 1.0) * 100.0);
            }
        }
        for quantile in ["p50", "p99"] {
            let series = |way: link::Way| format!("rtt.{}.{quantile}", way.name());
            if let Some(ratio) = results.ratio(&series(way), &series(link::Way::Batched), 64) {
                let figure = format!("midhaul_rtt_{quantile}_reduction{name}_pct");
                experiment.ratios.insert(figure, (1.0 - ratio) * 100.0);
            }
        }
    }
    let of_cu = ["memif.cu.uplink.mpps", "memif.cu.downlink.mpps"];
    if let [Some(up), Some(down)] = of_cu.map(|name| results.median(name, 64)) {
        experiment.ratios.insert("cu_relay_memif_mpps".to_owned(), up.min(down));
    }
    if let [Some(up), Some(down)] = of_cu.map(|name| results.ratio(name, "memif.bare.mpps", 64)) {
        experiment.ratios.insert("cu_relay_vs_bare".to_owned(), up.min(down));
    }
    hybrid::summarise(results, experiment);
    // The paper's Figures 7 and 8 in words: on average over the sizes.
    experiment.published.insert("midhaul_throughput_64b_gain_pct".to_owned(), 182.236);
    experiment.published.insert("midhaul_rtt_p50_reduction_pct".to_owned(), 95.963);
}
