//! `end-to-end`: UE–DU–CU–UPF in the paper's three models: all links by the kernel, hybrid (bypass on F1-U, kernel on N3), bypass on
//! both.
//!
//! Parts: `memory`, throughput up and down by size and round trips between ends in memory ([`chain`]; the paper's Table 6 and
//! Figure 11); `dus`, the three models with 1, 4 and 16 DUs; `iperf`, iperf3 through TUN devices ([`iperf`]; Table 5); `threads`, what each
//! node's threads take of a core and of memory ([`threads`]; Table 4).

mod chain;
pub(crate) mod iperf;
pub mod panels;
mod summary;
pub mod threads;

use anyhow::Context as _;
use net::time::Duration;

use crate::Options;
use crate::ran::network::{ALWAYS, Network, Way};
use crate::ran::{self, LinkPlan};
use crate::result::Experiment;
use crate::samples::Axes;

const MPPS_BY_DUS: Axes = Axes { x: "DUs", y: "packets per second", unit: "Mpps" };

/// As long as workers look for packets by default, before they sleep.
pub(crate) const POLL: Duration = Duration::from_micros(100);
/// Numbers of DUs.
const DUS: [u8; 3] = [1, 4, 16];

/// Which links bypass the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) f1u: Way,
    pub(crate) n3: Way,
}

const fn model(name: &'static str, f1u: Way, n3: Way) -> Model {
    Model { name, f1u, n3 }
}

/// The contenders between ends in memory. Gains are named against `kernel`.
const MODELS: [Model; 6] = [
    model("kernel_per_call", Way::PerCall, Way::PerCall),
    KERNEL,
    model("kernel_segmented", Way::Segmented, Way::Segmented),
    HYBRID,
    BYPASS,
    model("bypass_veth", Way::AfXdp, Way::AfXdp),
];
const KERNEL: Model = model("kernel", Way::Batched, Way::Batched);
const HYBRID: Model = model("hybrid", Way::Memif, Way::Segmented);
const BYPASS: Model = model("bypass", Way::Memif, Way::Memif);
/// The three models as Godwit has them.
pub(crate) const THREE: [Model; 3] = [model("kernel", Way::Segmented, Way::Segmented), HYBRID, BYPASS];

/// Extent of the measurement.
struct Plan {
    link: LinkPlan,
    /// Seconds of a run of iperf3.
    iperf_s: u32,
    /// Time in which the processor time of threads is taken.
    threads: Duration,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        let link = LinkPlan::new(quick);
        match quick {
            true => Plan {
                link: LinkPlan { round_trips: 200, sizes: vec![64, 1500], ..link },
                iperf_s: 1,
                threads: Duration::from_millis(100),
            },
            false => Plan { link, iperf_s: 3, threads: Duration::from_secs(1) },
        }
    }
}

type Run = ran::Run<Plan>;

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Throughput and round trips between ends in memory.
    Memory,
    /// The three models with 1, 4 and 16 DUs.
    Dus,
    /// iperf3 through TUN devices.
    Iperf,
    /// Processor time and memory of the nodes.
    Threads,
}

/// Runs the experiment, or only the named parts.
///
/// # Errors
/// The machine gives this process no core.
pub fn run(options: &Options, parts: &[Part]) -> anyhow::Result<Experiment> {
    let plan = Plan::new(options.quick);
    let mut run = Run::begin("end-to-end", options.quick, plan.link.rounds, plan)?;
    let shared = run.cores.len() < 3;
    run.param("nodes_share_cores", shared);
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    if wanted(Part::Memory) {
        run.part("memory", memory);
    }
    if wanted(Part::Dus) {
        run.part("dus", dus);
    }
    if wanted(Part::Iperf) {
        run.part("iperf", iperf::run);
    }
    if wanted(Part::Threads) {
        run.part("threads", threads::run);
    }
    Ok(run.end(summary::summarise))
}

/// Throughput in both directions, and round trips.
fn memory(run: &mut Run) -> anyhow::Result<()> {
    let (network, plan) = (Network::build(1)?, run.plan.link.clone());
    let cores = chain::Cores::of(&run.cores, 1);
    for round in 0..plan.rounds {
        run.add_distance();
        for model in MODELS {
            run.progress.say(&format!("ends in memory: {}, round {round}", model.name));
            for (up, direction) in [(true, "up"), (false, "down")] {
                let name = format!("{}.{direction}", model.name);
                let chain =
                    chain::Chain::start(&network, model, 1, cores, up).with_context(|| name.clone())?;
                chain.flow().throughput(run, &name, &plan);
                chain.flow().judge(run, &name);
            }
            chain::round_trips(run, &network, model)
                .with_context(|| format!("{}: round trips", model.name))?;
        }
    }
    Ok(())
}

/// The three models by the number of DUs, downlink, 64 octets.
fn dus(run: &mut Run) -> anyhow::Result<()> {
    let plan = run.plan.link.clone();
    for round in 0..plan.rounds {
        run.add_distance();
        for dus in DUS {
            let network = Network::build(dus)?;
            let cores = chain::Cores::of(&run.cores, dus);
            for model in [KERNEL, HYBRID, BYPASS] {
                run.progress.say(&format!("{dus} DUs: {}, round {round}", model.name));
                let name = format!("dus.{}.mpps", model.name);
                let chain = chain::Chain::start(&network, model, dus, cores, false)
                    .with_context(|| format!("{} with {dus} DUs", model.name))?;
                let rate = chain.flow().pass(u64::MAX, 64, plan.time).rate();
                run.results.add(name, MPPS_BY_DUS, dus.into(), rate / 1e6);
                chain.flow().judge(run, &format!("{} with {dus} DUs", model.name));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run with as little of everything as shows that packets pass.
    fn least() -> Run {
        let plan = Plan { link: LinkPlan::least(), ..Plan::new(true) };
        Run::begin("end-to-end", true, 1, plan).unwrap()
    }

    #[test]
    fn packets_pass_from_end_to_end_in_all_models() {
        let _alone = ran::alone();
        let mut run = least();
        memory(&mut run).unwrap();
        let experiment = run.end(summary::summarise);
        assert!(experiment.passed(), "{:?}", experiment.checks);
        for model in MODELS.map(|model| model.name) {
            for series in ["up.mpps", "down.mpps"].map(|what| format!("throughput.{model}.{what}")) {
                let found = experiment.series.iter().find(|found| found.name == series).unwrap();
                let mut samples = found.points.iter().flat_map(|point| &point.samples);
                assert!(samples.all(|sample| *sample > 0.0), "{found:?}");
            }
        }
        for figure in ["end_to_end_bypass_vs_kernel", "end_to_end_up", "end_to_end_down"] {
            assert!(experiment.ratios.contains_key(figure), "{figure}");
        }
    }

    #[test]
    fn a_cu_serves_sixteen_dus_in_all_models() {
        let _alone = ran::alone();
        let mut run = least();
        dus(&mut run).unwrap();
        let experiment = run.end(summary::summarise);
        assert!(experiment.passed(), "{:?}", experiment.checks);
        assert!(experiment.ratios["end_to_end_bypass_16_dus_mpps"] > 0.0);
    }
}
