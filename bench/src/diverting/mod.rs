//! `diverting`: what it costs to send a user's packets to another anchor, in the switch between base station and anchors
//! (`docs/bench-diverting.md`).
//!
//! Parts: `program`, the steering program alone ([`program`]); `rtt`, round trips and jitter ([`rtt`]); `tcp`,
//! TCP up and down with the switch's processor time ([`tcp`]); `loss`, packets lost by load ([`loss`]). All but the first have a
//! [`site`] for each contender. `rules`, how fast a switch takes rules ([`rules`]), and `moves`, how long the controller takes to move
//! users ([`moves`]), have an [`edge`] for each; `capture`, what copies of control messages add to them ([`capture`]); `ul_cl`, the
//! standard's way of diverting, in our UPF ([`ul_cl`]).
//!
//! Contenders are our switch's two data paths and Debian's Open vSwitch. A contender with steering *off* is the same
//! switch that only forwards; ratios and differences are those of the same contender, pair by pair.

mod capture;
mod client;
mod control;
mod edge;
mod ends;
mod frames;
mod in_memory;
mod loss;
mod meter;
mod mirror;
mod moves;
pub mod panels;
mod program;
mod rtt;
mod rules;
mod site;
mod steering;
mod summary;
mod tcp;
mod ul_cl;
mod users;

use crate::result::Experiment;
use crate::{Options, machine, ran};
use site::{Contender, Site};

/// Extent of the measurement.
struct Plan {
    rounds: usize,
    program: program::Plan,
    rtt: rtt::Plan,
    tcp: tcp::Plan,
    loss: loss::Plan,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        Plan {
            rounds: if quick { 3 } else { 10 },
            program: program::Plan::new(quick),
            rtt: rtt::Plan::new(quick),
            tcp: tcp::Plan::new(quick),
            loss: loss::Plan::new(quick),
        }
    }
}

/// Takes a figure's name, its value if it was measured, and the paper's.
type Figure<'a> = &'a mut dyn FnMut(&str, Option<f64>, Option<f64>);

/// A run in progress.
type Run = ran::Run<Plan>;

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The steering program in XDP without traffic: nanoseconds per packet.
    Program,
    /// Round trips of small packets inside a tunnel, and their jitter.
    Rtt,
    /// TCP through a tunnel up and down, and the switch's processor time.
    Tcp,
    /// Packets lost by load.
    Loss,
    /// Rules into a switch: one after the other, and in bundles that move users.
    Rules,
    /// Users moved by the controller: from the request to the first packet at the other anchor.
    Moves,
    /// What the capture of control messages adds to their round trip.
    Capture,
    /// Our UPF as uplink classifier, beside the switch.
    UlCl,
}

/// A part that measures all sites.
type OnSites = fn(&mut Run, &mut [Site]) -> anyhow::Result<()>;

/// Runs the experiment, or only the named parts.
///
/// # Errors
/// The machine gives this process no core.
pub fn run(options: &Options, parts: &[Part]) -> anyhow::Result<Experiment> {
    let plan = Plan::new(options.quick);
    let mut run = Run::begin("diverting", options.quick, plan.rounds, plan)?;
    run.param("xdp_programs", xdp::programs::BUILT);
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    if wanted(Part::Program) {
        run.part("program", program::run);
    }
    let on_sites: [(Part, &str, OnSites); 3] =
        [(Part::Rtt, "rtt", rtt::run), (Part::Tcp, "tcp", tcp::run), (Part::Loss, "loss", loss::run)];
    let mut on_sites = on_sites.into_iter().filter(|(part, ..)| wanted(*part)).peekable();
    if on_sites.peek().is_some() {
        let mut sites = sites(&mut run);
        for (_, name, measure) in on_sites {
            run.part(name, |run| measure(run, &mut sites));
        }
    }
    rtt::add_differences(&mut run.results);
    let control: Vec<Part> = [Part::Rules, Part::Moves].into_iter().filter(|part| wanted(*part)).collect();
    if !control.is_empty() {
        run.part("control", |run| control::run(run, &control::Plan::new(options.quick), &control));
    }
    if wanted(Part::Capture) {
        run.part("capture", |run| capture::run(run, &capture::Plan::new(options.quick)));
    }
    if wanted(Part::UlCl) {
        run.part("ul_cl", |run| ul_cl::run(run, &ul_cl::Plan::new(options.quick)));
    }
    Ok(run.end(summary::summarise))
}

/// The sites of all contenders that this machine can have; the others are in the checks. Switches run on the second core, if there
/// is one; what they start inherits the cores of this thread.
fn sites(run: &mut Run) -> Vec<Site> {
    let [first, second] = run.two_cores();
    machine::pin(&run.cores);
    let mut sites = Vec::new();
    for contender in [Contender::Wire].into_iter().chain(Contender::STEERING) {
        run.progress.say(&format!("starting: {}", contender.name()));
        match Site::build(contender, second) {
            Ok(site) => sites.push(site),
            Err(error) => run.check(&format!("{} starts", contender.name()), false, format!("{error:#}")),
        }
    }
    machine::pin(&[first]);
    sites
}

#[cfg(test)]
mod tests {
    use net::time::Duration;

    use super::*;

    /// A run with as little of everything as shows that packets pass.
    fn least() -> Run {
        let plan = Plan { rounds: 2, ..Plan::new(true) };
        Run::begin("diverting", true, 1, plan).unwrap()
    }

    fn figure(experiment: &Experiment, name: &str) -> f64 {
        assert!(experiment.passed(), "{:?}", experiment.checks);
        *experiment.ratios.get(name).unwrap_or_else(|| panic!("{name}: {:?}", experiment.ratios))
    }

    #[test]
    fn the_program_steers_every_packet() {
        if !xdp::programs::BUILT {
            return;
        }
        // The meters of other tests count every program of the switch that the kernel has.
        let _alone = ran::alone();
        let mut run = least();
        run.plan.program = program::Plan { turns: 1, packets: 2000 };
        program::run(&mut run).unwrap();
        let experiment = run.end(summary::summarise);
        assert!(figure(&experiment, "steer_ns_random_64k").is_finite());
    }

    /// The sites without which there is nothing to see here: a build may lack XDP programs, a machine Open vSwitch.
    fn some_sites(run: &mut Run) -> Vec<Site> {
        let core = run.two_cores()[1];
        let all = [Contender::Wire].into_iter().chain(Contender::STEERING);
        let needed = |contender: &Contender| match contender {
            Contender::Xdp => xdp::programs::BUILT,
            Contender::Ovs => lab::open_vswitch::is_installed(),
            Contender::Wire | Contender::Host => true,
        };
        all.filter(needed).map(|contender| Site::build(contender, core).unwrap()).collect()
    }

    #[test]
    fn packets_come_back_from_the_right_anchor() {
        let _alone = ran::alone();
        let mut run = least();
        run.plan.rtt = rtt::Plan { packets: 20 };
        let mut sites = some_sites(&mut run);
        rtt::run(&mut run, &mut sites).unwrap();
        rtt::add_differences(&mut run.results);
        let experiment = run.end(summary::summarise);
        for site in &sites {
            let name = site.contender.name();
            let mode = if site.contender == Contender::Wire { "" } else { "_on" };
            assert!(figure(&experiment, &format!("rtt_us_{name}{mode}")) > 0.0, "{name}");
        }
    }

    #[test]
    fn tcp_passes_up_and_down() {
        let _alone = ran::alone();
        let mut run = least();
        let plan = run.plan.tcp.clone();
        run.plan.tcp = tcp::Plan { targets_mbit: vec![20, 40], seconds: 0.2, ..plan };
        let mut sites = some_sites(&mut run);
        tcp::run(&mut run, &mut sites).unwrap();
        let experiment = run.end(summary::summarise);
        for site in sites.iter().filter(|site| site.contender != Contender::Wire) {
            for way in ["up", "down"] {
                let name = format!("mbit_per_cpu_pct_{}_{way}_on", site.contender.name());
                assert!(figure(&experiment, &name) > 0.0, "{name}");
            }
        }
    }

    #[test]
    fn loads_arrive_at_the_right_anchor() {
        if !xdp::programs::BUILT {
            return;
        }
        let _alone = ran::alone();
        let mut run = least();
        let plan = run.plan.loss.clone();
        run.plan.loss = loss::Plan { time: Duration::from_millis(20), packets: 5000, ..plan };
        let mut sites = some_sites(&mut run);
        loss::run(&mut run, &mut sites).unwrap();
        let experiment = run.end(summary::summarise);
        for site in sites.iter().filter(|site| site.contender != Contender::Wire) {
            let name = site.contender.name();
            assert!(figure(&experiment, &format!("mpps_max_{name}_on")) > 0.0, "{name}");
            if site.contender != Contender::Ovs {
                assert!(figure(&experiment, &format!("sent_at_90pct_{name}")) >= 5000.0, "{name}");
            }
        }
    }
}
