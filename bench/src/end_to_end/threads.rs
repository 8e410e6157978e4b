//! What the nodes take of a core, by thread, and of memory: the paper's Table 4. Each node is a process of its own in a namespace of its
//! own, with [`UES`] bearers; links are up and carry nothing. Modes: `asleep`, nodes that never poll; `adaptive`, as they are configured
//! by default; `polling`, nodes that never sleep, one at a time while the others are stopped. `load`: what the CU's thread takes
//! of packets at a constant rate, in one process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::time::{self, Duration};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use packet::gtpu;
use path::{Graph, Ports, Worker};
use pktio::memory::Sink;

use super::chain::{Chain, Cores};
use super::{MODELS, Model, POLL, Run, THREE};
use crate::machine::Clock;
use crate::ran::network::{ALWAYS, Network, Point, end};
use crate::ran::nodes::{CU_N3, Nodes, Plan, UES};
use crate::samples::Axes;
use crate::upf::world::World;

const CPU: Axes = Axes { x: "node: DU 0, CU 1, UPF 2", y: "share of a core", unit: "%" };
const MEMORY: Axes = Axes { x: "node: DU 0, CU 1, UPF 2", y: "resident memory", unit: "MB" };
/// Packets per second of `load`.
const LOAD_PPS: u64 = 100_000;
/// A node has come to rest by then.
const REST: Duration = Duration::from_millis(100);

/// A node.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Distributed unit.
    Du,
    /// Central unit.
    Cu,
    /// User plane function.
    Upf,
}

impl Role {
    /// In the order of their start.
    const ALL: [Role; 3] = [Role::Cu, Role::Du, Role::Upf];

    fn name(self) -> &'static str {
        match self {
            Role::Du => "du",
            Role::Cu => "cu",
            Role::Upf => "upf",
        }
    }
}

/// Options of the process of a node.
#[derive(clap::Args, Debug)]
pub struct Node {
    /// Which one.
    #[arg(long)]
    role: Role,
    /// The model, by name.
    #[arg(long)]
    model: String,
    /// Microseconds for which it polls before it sleeps.
    #[arg(long)]
    poll_us: u64,
    /// Folder with the sockets of memifs.
    #[arg(long)]
    folder: PathBuf,
}

/// A node that runs in this process.
struct Running {
    _worker: Worker,
    _rest: Box<dyn std::any::Any>,
}

impl Node {
    fn start(&self) -> anyhow::Result<Running> {
        let mut models = THREE.into_iter().chain(MODELS);
        let Some(model) = models.find(|model| model.name == self.model) else {
            bail!("there is no model `{}`", self.model)
        };
        let open = |point, way, of_cu| end(point, way, of_cu, &self.folder);
        let nodes = || Nodes::of(&Plan { tunnels: World::teids(UES)?, ..Plan::default() });
        match self.role {
            Role::Du => {
                let mut nodes = nodes()?;
                let du = nodes.take_du()?;
                let f1u = open(Point::MIDHAUL, model.f1u, false)?;
                self.run(du.graph, vec![f1u, Box::new(Sink::default())], vec![0], Box::new(du._control))
            }
            Role::Cu => {
                let nodes = nodes()?;
                let ports = vec![open(Point::MIDHAUL, model.f1u, true)?, open(Point::N3, model.n3, true)?];
                self.run(nodes.cu, ports, vec![0, 1], Box::new(nodes.plane))
            }
            Role::Upf => {
                let tunnels: Vec<u32> = (0..UES as u32).collect();
                let (graph, kept) = World::of_gnb((CU_N3, gtpu::PORT).into(), &tunnels)?.into_graph();
                let n3 = open(Point::N3, model.n3, false)?;
                self.run(graph, vec![n3, Box::new(Sink::default())], vec![0], Box::new(kept))
            }
        }
    }

    fn run<G: Graph + 'static>(
        &self,
        graph: G,
        mut ports: Ports,
        mut inputs: Vec<usize>,
        rest: Box<dyn std::any::Any>,
    ) -> anyhow::Result<Running> {
        if self.poll_us == ALWAYS.as_micros() as u64 {
            // While nothing comes a worker polls for as long as it has proved useful, unless it has an input that cannot wake it.
            inputs.push(ports.len());
            ports.push(Box::new(Sink::default()));
        }
        let poll = Duration::from_micros(self.poll_us);
        Ok(Running { _worker: Worker::start(self.role.name(), graph, ports, inputs, poll)?, _rest: rest })
    }
}

/// Runs a node until standard input ends.
///
/// # Errors
/// The node does not start.
pub fn serve(node: &Node) -> anyhow::Result<()> {
    let _running = node.start()?;
    output::text("ready\n")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The process of a node.
struct Process {
    role: Role,
    child: Child,
}

impl Process {
    fn start(network: &Network, model: Model, role: Role, poll: Duration) -> anyhow::Result<Process> {
        let namespace: &NetNs = match role {
            Role::Du => &network.du,
            Role::Cu => &network.cu,
            Role::Upf => &network.upf,
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["end-to-end", "node", "--role", role.name(), "--model", model.name]);
        command.args(["--poll-us", &poll.as_micros().to_string()]).arg("--folder").arg(network.folder());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn())??;
        let output = child.stdout.take().context("no standard output")?;
        let process = Process { role, child };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if line.trim() != "ready" {
            bail!("the process of a node ({}) did not start", role.name());
        }
        Ok(process)
    }

    /// Lets the process continue, or stops it.
    fn wake(&self, awake: bool) {
        let signal = if awake { Signal::SIGCONT } else { Signal::SIGSTOP };
        // A process that has ended needs no signal.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// Processor time so far, by thread.
    fn clocks(&self) -> anyhow::Result<Vec<(String, Duration)>> {
        clocks(self.child.id())
    }

    fn memory_mb(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.wake(true);
        drop(self.child.stdin.take());
        let start = time::now_std();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(2) {
                // It hangs; its measurements are complete.
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            time::sleep_thread(Duration::from_millis(2));
        }
    }
}

/// Processor time of a process, by thread.
fn clocks(process: u32) -> anyhow::Result<Vec<(String, Duration)>> {
    let mut clocks = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let folder = thread?.path();
        let name = std::fs::read_to_string(folder.join("comm"))?.trim_end().to_owned();
        let text = std::fs::read_to_string(folder.join("schedstat"))?;
        let ns = text.split(' ').next().and_then(|ns| ns.parse().ok()).context("schedstat")?;
        clocks.push((name, Duration::from_nanos(ns)));
    }
    Ok(clocks)
}

/// Measures all models and modes.
///
/// # Errors
/// A node does not start.
pub(super) fn run(run: &mut Run) -> anyhow::Result<()> {
    let network = Network::build(1)?;
    for round in 0..run.plan.link.rounds {
        for model in THREE {
            for (mode, poll) in [("asleep", Duration::ZERO), ("adaptive", POLL), ("polling", ALWAYS)] {
                run.progress.say(&format!("threads: {}, {mode}, round {round}", model.name));
                let start = |role| Process::start(&network, model, role, poll);
                let processes: Vec<Process> = Role::ALL.map(start).into_iter().collect::<Result<_, _>>()?;
                time::sleep_thread(REST);
                measure(run, &processes, &format!("threads.{}.{mode}", model.name), mode == "polling")?;
            }
            loaded(run, &network, model)?;
        }
    }
    Ok(())
}

/// Memory and processor time of each node, alone or all at once.
fn measure(run: &mut Run, processes: &[Process], name: &str, alone: bool) -> anyhow::Result<()> {
    let groups: Vec<&[Process]> = if alone { processes.chunks(1).collect() } else { vec![processes] };
    for group in groups {
        let of_group = |process: &Process| group.iter().any(|one| one.role == process.role);
        processes.iter().for_each(|process| process.wake(of_group(process)));
        let before: Vec<_> = group.iter().map(Process::clocks).collect::<Result<_, _>>()?;
        let start = time::now_std();
        time::sleep_thread(run.plan.threads);
        let took = start.elapsed().as_secs_f64();
        for (process, before) in group.iter().zip(before) {
            let x = process.role as usize;
            for ((thread, now), (_, before)) in process.clocks()?.into_iter().zip(before) {
                let share = 100.0 * now.saturating_sub(before).as_secs_f64() / took;
                // The worker is called as its node is; the others wait for commands.
                let series = match thread == process.role.name() {
                    true => format!("{name}.cpu"),
                    false => format!("{name}.other_threads.cpu"),
                };
                run.results.add(series, CPU, x, share);
            }
        }
    }
    for process in processes {
        run.results.add(format!("{name}.memory"), MEMORY, process.role as usize, process.memory_mb()?);
    }
    Ok(())
}

/// The share of a core that the CU's thread takes of a constant load to UEs.
fn loaded(run: &mut Run, network: &Network, model: Model) -> anyhow::Result<()> {
    let chain = Chain::start(network, model, 1, Cores::of(&run.cores, 1), false)?;
    let clock = Clock::of("cu")?;
    let (start, before) = (time::now_std(), clock.read()?);
    let passed = chain.flow().pass(LOAD_PPS, 64, run.plan.threads);
    let share = 100.0 * (clock.read()? - before).as_secs_f64() / start.elapsed().as_secs_f64();
    if passed.packets > 0 {
        run.results.add(format!("threads.{}.load.cpu", model.name), CPU, Role::Cu as usize, share);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_all_models_run_beside_each_other() {
        let _alone = crate::ran::alone();
        let network = Network::build(1).unwrap();
        for model in THREE {
            let node = |role, namespace: &NetNs| {
                let (model, folder) = (model.name.to_owned(), network.folder().to_owned());
                namespace.enter(|| {
                    Node { role, model, poll_us: 50, folder }.start().map(|running| running._worker).unwrap()
                })
            };
            let _running = [
                node(Role::Cu, &network.cu).unwrap(),
                node(Role::Du, &network.du).unwrap(),
                node(Role::Upf, &network.upf).unwrap(),
            ];
            let clocks = clocks(std::process::id()).unwrap();
            for role in Role::ALL {
                assert!(clocks.iter().any(|(thread, _)| thread == role.name()), "{clocks:?}");
            }
        }
    }
}
