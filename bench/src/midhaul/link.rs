//! The link between DU and CU by backend: throughput by size, round trips, loss and jitter by load.
//!
//! CU and DU are whole nodes, each a thread on a core of its own, in namespaces that a veth pair joins, or with a memif between
//! them. The ends in memory stand for UPF and UEs. Contenders are the [`Way`]s.

use std::sync::Arc;

use anyhow::Context as _;
use path::Ports;

use super::Run;
use crate::ran::ends::{Arrivals, Echo, Load, Sink, Source};
use crate::ran::measure::{self, Asker, Flow};
use crate::ran::network::{Network, Point, Way};
use crate::ran::nodes::{END, F1U, Nodes, upf_answer};
use crate::ran::packets::{on_n3, user_on_uu};
use crate::ran::serving::{Mode, Placed, Serving};

/// Measures everything between the nodes.
///
/// # Errors
/// The process lacks rights, or packets do not arrive.
pub(super) fn run(run: &mut Run, cores: [usize; 2]) -> anyhow::Result<()> {
    let network = Network::build(1)?;
    for round in 0..run.plan.rounds {
        run.add_distance();
        for way in Way::ALL {
            run.progress.say(&format!("link: {}, round {round}", way.name()));
            flow(run, &network, way, cores).with_context(|| format!("{}: packets to UEs", way.name()))?;
            round_trips(run, &network, way, cores).with_context(|| format!("{}: round trips", way.name()))?;
        }
        measure::idle(run, run.plan.link.load_time);
    }
    Ok(())
}

/// Throughput by size, then loss and jitter by load.
fn flow(run: &mut Run, network: &Network, way: Way, [cu_core, du_core]: [usize; 2]) -> anyhow::Result<()> {
    let mut nodes = Nodes::new()?;
    let du = nodes.take_du()?;
    let [at_cu, at_du] = network.open(Point::MIDHAUL, way)?;
    let (load, arrivals) = (Arc::<Load>::default(), Arc::<Arrivals>::default());
    let source = Source::new(&load, on_n3(&nodes.n3));
    // The DU first: it sends its status as soon as it runs.
    let ports: Ports = vec![at_du, Box::new(Sink::new(&arrivals, false, user_on_uu))];
    let (inputs, name) = (vec![F1U.into()], "du".to_owned());
    let _du = Serving::start(Placed {
        name,
        core: Some(du_core),
        graph: du.graph,
        ports,
        inputs,
        mode: Mode::of(way),
    })?;
    let ports: Ports = vec![at_cu, Box::new(source)];
    let (inputs, name) = (vec![END.into(), F1U.into()], "cu".to_owned());
    let _cu = Serving::start(Placed {
        name,
        core: Some(cu_core),
        graph: nodes.cu,
        ports,
        inputs,
        mode: Mode::of(way),
    })?;
    let flow = Flow { load: &load, arrivals: &[arrivals] };
    flow.begin()?;
    let plan = run.plan.link.clone();
    flow.throughput(run, way.name(), &plan);
    flow.loads(run, way.name(), &plan);
    flow.judge(run, way.name());
    Ok(())
}

/// Round trips from the DU to the CU and back, one packet at a time.
fn round_trips(
    run: &mut Run,
    network: &Network,
    way: Way,
    [cu_core, du_core]: [usize; 2],
) -> anyhow::Result<()> {
    let mut nodes = Nodes::new()?;
    let du = nodes.take_du()?;
    let [at_cu, at_du] = network.open(Point::MIDHAUL, way)?;
    let (graph, mirror) = Echo::new(nodes.cu, END.into(), upf_answer(&nodes.n3));
    let ports: Ports = vec![at_cu, Box::new(mirror)];
    let (inputs, name) = (vec![F1U.into()], "cu".to_owned());
    let _cu =
        Serving::start(Placed { name, core: Some(cu_core), graph, ports, inputs, mode: Mode::of(way) })?;
    let arrivals = Arc::<Arrivals>::default();
    let asker = Asker {
        core: du_core,
        graph: du.graph,
        ports: vec![at_du, Box::new(Sink::new(&arrivals, false, user_on_uu))],
        link: F1U.into(),
        end: END.into(),
        sleeps: way.poll().is_zero(),
        teid: None,
        arrivals,
    };
    let plan = run.plan.link.clone();
    asker.round_trips(run, way.name(), &plan)
}
