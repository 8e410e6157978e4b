//! `backhaul`: the link between CU and UPF (N3) by backend, measured as `midhaul` measures F1-U: throughput and round trips by
//! size, loss and jitter by load.
//!
//! CU and UPF are whole nodes, each a thread on a core of its own, in namespaces that a veth pair joins, or with a memif between
//! them. The ends in memory stand for data network and DU. Contenders are the [`Way`]s.

pub mod panels;

use std::sync::Arc;

use anyhow::Context as _;
use packet::gtpu;
use path::Ports;

use crate::Options;
use crate::ran::ends::{Arrivals, Echo, Load, Sink, Source};
use crate::ran::measure::{self, Asker, Flow};
use crate::ran::network::{Network, Point, Way};
use crate::ran::nodes::{CU_N3, END, F1U, Nodes, Plan, UES, network_answer};
use crate::ran::packets::{on_n6, user_on_f1u};
use crate::ran::serving::{Mode, Placed, Serving};
use crate::ran::{LinkPlan, Run};
use crate::result::Experiment;
use crate::upf::world::World;

/// Numbers of the UPF's interfaces.
const N3: usize = 0;
const N6: usize = 1;

/// Runs the experiment.
///
/// # Errors
/// The machine gives this process no core.
pub fn run(options: &Options) -> anyhow::Result<Experiment> {
    let plan = LinkPlan::new(options.quick);
    let mut run = Run::begin("backhaul", options.quick, plan.rounds, plan)?;
    run.part("link", link);
    Ok(run.end(|results, experiment| measure::summarise("backhaul", results, experiment)))
}

fn link(run: &mut Run<LinkPlan>) -> anyhow::Result<()> {
    let (network, plan) = (Network::build(1)?, run.plan.clone());
    for round in 0..plan.rounds {
        run.add_distance();
        for way in Way::ALL {
            run.progress.say(&format!("link: {}, round {round}", way.name()));
            flow(run, &plan, &network, way).with_context(|| format!("{}: packets to the CU", way.name()))?;
            round_trips(run, &plan, &network, way).with_context(|| format!("{}: round trips", way.name()))?;
        }
        measure::idle(run, plan.load_time);
    }
    Ok(())
}

/// A CU whose DU takes everything, and its UPF.
pub(crate) fn nodes() -> anyhow::Result<(Nodes, World)> {
    let tunnels = World::teids(UES)?;
    let mut nodes = Nodes::of(&Plan { tunnels, ..Plan::default() })?;
    nodes.open_flow()?;
    let upf = World::of_gnb((CU_N3, gtpu::PORT).into(), &nodes.n3)?;
    Ok((nodes, upf))
}

/// Throughput by size, then loss and jitter by load, of packets from the data network.
fn flow(run: &mut Run<LinkPlan>, plan: &LinkPlan, network: &Network, way: Way) -> anyhow::Result<()> {
    let [upf_core, cu_core] = run.two_cores();
    let (nodes, upf) = nodes()?;
    let [at_cu, at_upf] = network.open(Point::N3, way)?;
    let (load, arrivals) = (Arc::<Load>::default(), Arc::<Arrivals>::default());
    let ports: Ports = vec![Box::new(Sink::new(&arrivals, false, user_on_f1u)), at_cu];
    let (inputs, name) = (vec![END.into()], "cu".to_owned());
    let _cu = Serving::start(Placed {
        name,
        core: Some(cu_core),
        graph: nodes.cu,
        ports,
        inputs,
        mode: Mode::of(way),
    })?;
    let (graph, _kept) = upf.into_graph();
    let ports: Ports = vec![at_upf, Box::new(Source::new(&load, on_n6(UES)))];
    let (inputs, name) = (vec![N6, N3], "upf".to_owned());
    let _upf =
        Serving::start(Placed { name, core: Some(upf_core), graph, ports, inputs, mode: Mode::of(way) })?;
    let flow = Flow { load: &load, arrivals: &[arrivals] };
    flow.begin()?;
    flow.throughput(run, way.name(), plan);
    flow.loads(run, way.name(), plan);
    flow.judge(run, way.name());
    Ok(())
}

/// Round trips from the CU to the UPF and back, one packet at a time.
fn round_trips(run: &mut Run<LinkPlan>, plan: &LinkPlan, network: &Network, way: Way) -> anyhow::Result<()> {
    let [upf_core, core] = run.two_cores();
    let (nodes, upf) = nodes()?;
    let [at_cu, at_upf] = network.open(Point::N3, way)?;
    let (graph, _kept) = upf.into_graph();
    let (graph, mirror) = Echo::new(graph, N6, network_answer());
    let ports: Ports = vec![at_upf, Box::new(mirror)];
    let (inputs, name) = (vec![N3], "upf".to_owned());
    let _upf =
        Serving::start(Placed { name, core: Some(upf_core), graph, ports, inputs, mode: Mode::of(way) })?;
    let arrivals = Arc::<Arrivals>::default();
    let asker = Asker {
        core,
        graph: nodes.cu,
        ports: vec![Box::new(Sink::new(&arrivals, false, user_on_f1u)), at_cu],
        link: END.into(),
        end: F1U.into(),
        sleeps: way.poll().is_zero(),
        teid: nodes.f1u.first().copied(),
        arrivals,
    };
    asker.round_trips(run, way.name(), plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_pass_between_cu_and_upf_by_every_way() {
        let _alone = crate::ran::alone();
        let plan = LinkPlan::least();
        let mut run = Run::begin("backhaul", true, plan.rounds, plan).unwrap();
        link(&mut run).unwrap();
        let experiment = run.end(|results, experiment| measure::summarise("backhaul", results, experiment));
        measure::assert_all_passed(&experiment);
        for figure in ["throughput_64b_gain_pct", "rtt_p50_reduction_pct", "jitter_p99_spinner_us"] {
            assert!(experiment.ratios.contains_key(&format!("backhaul_{figure}")), "{figure}");
        }
    }
}
