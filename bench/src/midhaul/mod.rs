//! `midhaul`: the CU's relay, and the link between DU and CU (F1-U), by backend.
//!
//! Parts: `relay`, the CU between ports in memory, by protection of user data ([`relay`]); `memif`, the CU between two memifs
//! ([`memif`]); `link`, DU and CU with a way between
//! them ([`link`]), the paper's Figures 7 to 10; `hybrid`, how long packets wait at a CU that has a memif on one side and a socket on
//! the other ([`hybrid`]), and the share of a core that it takes meanwhile.

mod hybrid;
mod link;
mod memif;
pub mod panels;
mod relay;

use net::time::Duration;

use crate::Options;
use crate::ran::{self, LinkPlan, measure};
use crate::result::Experiment;
use crate::samples::{Axes, Results};

const MPPS: Axes = Axes { x: "bearers", y: "packets per second and core", unit: "Mpps" };
const NS: Axes = Axes { x: "bearers", y: "time per packet", unit: "ns" };

const US: Axes = Axes { x: "time-outs, ms", y: "time", unit: "us" };
const CPU: Axes = Axes { x: "time-outs, ms", y: "share of a core while idle", unit: "%" };

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
    link: LinkPlan,
    /// Packets one at a time at the hybrid CU, per contender, direction and round.
    hybrid_packets: usize,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        let (ms, link) = (Duration::from_millis, LinkPlan::new(quick));
        let rounds = link.rounds;
        match quick {
            true => Plan {
                rounds,
                sample: ms(8),
                relay_sizes: vec![64, 1500],
                bearers: vec![1, BEARERS],
                link,
                hybrid_packets: 25,
            },
            false => Plan {
                rounds,
                sample: ms(20),
                relay_sizes: link.sizes.clone(),
                bearers: vec![1, BEARERS, 100_000],
                link,
                hybrid_packets: 100,
            },
        }
    }
}

/// A run in progress.
type Run = ran::Run<Plan>;

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
    let plan = Plan::new(options.quick);
    let mut run = Run::begin("midhaul", options.quick, plan.rounds, plan)?;
    run.param("sample_ms", run.plan.sample.as_millis() as u64);
    // The CU's and, where there is another, the DU's.
    let cores = run.two_cores();
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    if wanted(Part::Relay) {
        for bearers in run.plan.bearers.clone() {
            run.part("relay", |run| relay::run(run, bearers));
        }
    }
    if wanted(Part::Memif) {
        run.part("memif", |run| memif::run(run, cores));
    }
    if wanted(Part::Link) {
        run.part("link", |run| link::run(run, cores));
    }
    if wanted(Part::Hybrid) {
        run.part("hybrid", |run| hybrid::run(run, cores));
    }
    Ok(run.end(summarise))
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

    measure::summarise("midhaul", results, experiment);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_pass_between_du_and_cu_by_every_way() {
        let _alone = ran::alone();
        let plan = Plan { rounds: 1, link: LinkPlan::least(), ..Plan::new(true) };
        let mut run = Run::begin("midhaul", true, plan.rounds, plan).unwrap();
        let cores = run.two_cores();
        link::run(&mut run, cores).unwrap();
        measure::assert_all_passed(&run.end(summarise));
    }
}
