//! UE–DU–CU–UPF between ends in memory, in a model: where packets flow from end to end, and come back.
//!
//! The ends take the place of the UEs at the DU, with their PDCP, and of the data network at the UPF. A source has a window of
//! [`WINDOW`] packets, as a transport protocol would: it keeps slow nodes busy and does not drown them.

use std::sync::Arc;

use anyhow::Context as _;
use packet::gtpu;
use path::Ports;

use super::Model;
use crate::ran::ends::{Arrivals, Echo, Load, Sink, Source};
use crate::ran::measure::{Asker, Flow};
use crate::ran::network::{Network, Point, Way};
use crate::ran::nodes::{CU_N3, END, F1U, Nodes, Plan, UES, network_answer};
use crate::ran::packets::{on_n6, on_uu, user_on_n6, user_on_uu};
use crate::ran::serving::{Mode, Placed, Serving};
use crate::upf::world::{Kept, World};

/// Packets under way at most. A memif's ring holds twice as many.
const WINDOW: u64 = 512;
/// Numbers of the UPF's interfaces.
const N3: usize = 0;
const N6: usize = 1;

/// Nodes that serve, with packets flowing in one direction.
pub(super) struct Chain {
    load: Arc<Load>,
    arrivals: Vec<Arc<Arrivals>>,
    _serving: Vec<Serving>,
    _kept: Kept,
    _plane: cu::user_plane::UserPlane,
}

/// Nodes and the ports of their links, before they serve.
struct Parts {
    nodes: Nodes,
    upf: World,
    /// At the CU: F1-U, then N3.
    at_cu: Ports,
    at_dus: Ports,
    at_upf: Ports,
}

impl Parts {
    fn new(network: &Network, model: Model, dus: u8) -> anyhow::Result<Parts> {
        // The kernel's socket is one for all DUs.
        let apart = model.f1u == Way::Memif;
        let tunnels = World::teids(usize::from(dus) * UES)?;
        let plan = Plan { dus, apart, tunnels, ..Plan::default() };
        let nodes = Nodes::of(&plan)?;
        let upf = World::of_gnb((CU_N3, gtpu::PORT).into(), &nodes.n3)?;
        let (mut at_cu, mut at_dus): (Ports, Ports) = (Vec::new(), Vec::new());
        for du in 0..dus {
            let point = Point::F1u { du, apart };
            if apart || du == 0 {
                let [of_cu, of_du] = network.open(point, model.f1u)?;
                at_cu.push(of_cu);
                at_dus.push(of_du);
            } else {
                at_dus.push(network.open_end(point, model.f1u, false)?);
            }
        }
        let [of_cu, of_upf] = network.open(Point::N3, model.n3)?;
        at_cu.push(of_cu);
        Ok(Parts { nodes, upf, at_cu, at_dus, at_upf: vec![of_upf] })
    }
}

/// The cores of DU, CU and UPF, and whether nodes share them.
#[derive(Clone, Copy)]
pub(super) struct Cores {
    du: usize,
    cu: usize,
    upf: usize,
    shared: bool,
    /// Whether many share one.
    crowded: bool,
}

impl Cores {
    /// A core for each node if there are three. With two the CU, which has most to do, has its own.
    pub(super) fn of(cores: &[usize], dus: u8) -> Cores {
        let crowded = dus > 1;
        match *cores {
            [] => Cores { du: 0, cu: 0, upf: 0, shared: true, crowded },
            [only] => Cores { du: only, cu: only, upf: only, shared: true, crowded },
            [one, cu] => Cores { du: one, cu, upf: one, shared: true, crowded },
            [du, cu, upf, ..] => Cores { du, cu, upf, shared: crowded, crowded },
        }
    }

    /// The same for round trips, in which the measuring thread is the DU, on a core of its own if there are two.
    fn of_round_trips(cores: &[usize]) -> Cores {
        match *cores {
            [du, other] => Cores { du, cu: other, upf: other, shared: true, crowded: false },
            _ => Cores::of(cores, 1),
        }
    }

    /// How a node waits; `deaf` if packets are made at it, of which nothing tells.
    fn mode(self, node: &[Way], deaf: bool) -> Mode {
        let kernel = |way: &&Way| way.poll().is_zero();
        let poll = match node.iter().find(kernel) {
            // The hybrid CU looks at both sides, and then sleeps on both.
            Some(_) if node.iter().any(|way| !kernel(&way)) => super::POLL,
            Some(way) => way.poll(),
            None => super::ALWAYS,
        };
        // Of many nodes on a core most have nothing to do.
        let poll = if self.crowded { poll.min(super::POLL) } else { poll };
        if self.shared && (deaf || !poll.is_zero()) {
            return Mode::Yielding(poll);
        }
        match node {
            [way, ..] if *way == Way::PerCall => Mode::PerCall,
            _ => Mode::Worker(poll),
        }
    }
}

impl Chain {
    /// Starts the nodes of a model; packets go to UEs, or come from them.
    ///
    /// # Errors
    /// The process lacks rights, or no packet passes.
    pub(super) fn start(
        network: &Network,
        model: Model,
        dus: u8,
        cores: Cores,
        up: bool,
    ) -> anyhow::Result<Chain> {
        let Parts { nodes, upf, at_cu, at_dus, mut at_upf } = Parts::new(network, model, dus)?;
        let load = Arc::<Load>::default();
        // Packets from UEs are of the first DU.
        let ends = if up { 1 } else { dus };
        let arrivals: Vec<Arc<Arrivals>> = (0..ends).map(|_| Arc::default()).collect();
        let mut serving = Vec::new();
        for (number, (du, port)) in nodes.dus.into_iter().zip(at_dus).enumerate() {
            let mut inputs = vec![F1U.into()];
            let deaf = up && number == 0;
            let end: Box<dyn pktio::Port> = match arrivals.get(number) {
                Some(arrivals) if !up => Box::new(Sink::new(arrivals, false, user_on_uu)),
                _ => Box::new(Source::new(&load, on_uu(number)).with_window(WINDOW, &arrivals)),
            };
            if deaf {
                inputs.push(END.into());
            }
            let (ports, mode) = (vec![port, end], cores.mode(&[model.f1u], deaf));
            let name = format!("du{number}");
            serving.push(Serving::start(Placed {
                name,
                core: Some(cores.du),
                graph: du.graph,
                ports,
                inputs,
                mode,
            })?);
        }
        let inputs = (0..at_cu.len()).collect();
        let (name, mode) = ("cu".to_owned(), cores.mode(&[model.f1u, model.n3], false));
        serving.push(Serving::start(Placed {
            name,
            core: Some(cores.cu),
            graph: nodes.cu,
            ports: at_cu,
            inputs,
            mode,
        })?);
        let (graph, kept) = upf.into_graph();
        let mut inputs = vec![N3];
        at_upf.push(match arrivals.first() {
            Some(arrivals) if up => Box::new(Sink::new(arrivals, true, user_on_n6)),
            _ => {
                let source = Source::new(&load, on_n6(usize::from(dus) * UES));
                inputs.insert(0, N6);
                Box::new(source.with_window(WINDOW, &arrivals))
            }
        });
        let (name, mode) = ("upf".to_owned(), cores.mode(&[model.n3], !up));
        serving.push(Serving::start(Placed {
            name,
            core: Some(cores.upf),
            graph,
            ports: at_upf,
            inputs,
            mode,
        })?);
        let chain = Chain { load, arrivals, _serving: serving, _kept: kept, _plane: nodes.plane };
        chain.flow().begin()?;
        Ok(chain)
    }

    /// The packets.
    pub(super) fn flow(&self) -> Flow<'_> {
        Flow { load: &self.load, arrivals: &self.arrivals }
    }
}

/// Round trips from the DU to the data network and back, one packet at a time.
///
/// # Errors
/// Packets do not come back.
pub(super) fn round_trips(run: &mut super::Run, network: &Network, model: Model) -> anyhow::Result<()> {
    let cores = Cores::of_round_trips(&run.cores);
    let Parts { mut nodes, upf, at_cu, mut at_dus, mut at_upf } = Parts::new(network, model, 1)?;
    let du = nodes.take_du()?;
    let (graph, _kept) = upf.into_graph();
    let (graph, mirror) = Echo::new(graph, N6, network_answer());
    at_upf.push(Box::new(mirror));
    let (name, mode) = ("upf".to_owned(), cores.mode(&[model.n3], false));
    let inputs = vec![N3];
    let _upf = Serving::start(Placed { name, core: Some(cores.upf), graph, ports: at_upf, inputs, mode })?;
    let (name, mode) = ("cu".to_owned(), cores.mode(&[model.f1u, model.n3], false));
    let inputs = vec![0, 1];
    let _cu =
        Serving::start(Placed { name, core: Some(cores.cu), graph: nodes.cu, ports: at_cu, inputs, mode })?;
    let arrivals = Arc::<Arrivals>::default();
    let asker = Asker {
        core: cores.du,
        graph: du.graph,
        ports: vec![at_dus.pop().context("no port")?, Box::new(Sink::new(&arrivals, false, user_on_uu))],
        link: F1U.into(),
        end: END.into(),
        sleeps: model.f1u.poll().is_zero(),
        teid: None,
        arrivals,
    };
    let plan = run.plan.link.clone();
    asker.round_trips(run, model.name, &plan)
}
