//! Two workers of the user plane between DPDK's null devices with two queues each.
//!
//! The ports in front of the devices are those of [`null`](super::null): they write the packets, and see what comes out. Each worker's
//! ports give packets that it owns ([`Shape::Own`]), or all packets come to the first worker, which gives those of the second one
//! away ([`Shape::Handed`]). Bare forwarders have a thread for each queue. All take turns.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Context as _;
use net::link::Cidr;
use net::time::{self, Duration};
use packet::gtpu;
use pktio::dpdk::{DpdkPort, Settings};
use pktio::owner;
use pktio::stack::ip::IpStack;
use pktio::stack::udp::UdpStack;
use pktio::stack::{Neighbours, resolver::Resolver};
use upf::pipeline::Ports;

use super::dpdk::{self, Kind};
use super::frames;
use super::network::N6;
use super::null::{Fed, Valve};
use super::source::Deck;
use super::subscriber::{Subscriber, UPF};
use super::traffic::Direction;
use super::users::Traffic;
use super::world::{Serving, World};
use super::{DEFAULT_SESSIONS, MPPS, Run, turns};
use crate::machine;

/// Octets of user packets.
const SIZE: usize = 64;
/// Workers that compare themselves with one.
const WORKERS: usize = 2;
/// How long a worker polls before it sleeps, as for a worker with its own core.
const POLL: Duration = Duration::from_secs(1);
/// Time limit for the first packets.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit for packets under way.
const AT_REST: Duration = Duration::from_secs(1);
/// How often packets under way are counted.
const GLANCE: Duration = Duration::from_micros(200);
/// How long packets are compared, for each direction.
const COMPARED: Duration = Duration::from_millis(10);
/// Devices of other parts have lower numbers.
const FIRST_DEVICE: usize = 8;

/// How packets come to workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// There is one.
    One,
    /// Each receives its own.
    Own,
    /// The first receives all.
    Handed,
}

/// What is measured.
const CONTENDERS: [(Kind, Shape, &str); 5] = [
    (Kind::Bare, Shape::One, "bare_1"),
    (Kind::Bare, Shape::Own, "bare_2"),
    (Kind::Upf, Shape::One, "upf_1"),
    (Kind::Upf, Shape::Own, "upf_2"),
    (Kind::Upf, Shape::Handed, "upf_2_handed"),
];

impl Shape {
    fn workers(self) -> usize {
        if self == Shape::One { 1 } else { WORKERS }
    }

    /// Workers whose ports give packets.
    fn fed(self) -> usize {
        if self == Shape::Own { WORKERS } else { 1 }
    }

    /// The packets that come to a worker from access, and from the data network.
    fn decks(self, worker: usize, teids: &[u32]) -> [Arc<Deck>; 2] {
        let (own, workers) = (self == Shape::Own, WORKERS as u32);
        let tunnel = |_, teid| !own || owner::of_tunnel(teid, workers) as usize == worker;
        let address = |subscriber: Subscriber, _| {
            !own || owner::of_address(subscriber.ue().into(), workers) as usize == worker
        };
        [Deck::of(teids, tunnel), Deck::of(teids, address)]
    }
}

/// Forwarders that run, with the valves of their ports.
struct Team {
    name: &'static str,
    shape: Shape,
    valves: Vec<Arc<Valve>>,
    serving: Option<Serving>,
    /// Packets that were lost before all neighbours were known.
    lost: Cell<u64>,
    bare: Vec<std::thread::JoinHandle<anyhow::Result<()>>>,
}

impl Team {
    fn start(number: usize, cores: [usize; 2], teids: &[u32]) -> anyhow::Result<Team> {
        let (kind, shape, name) = CONTENDERS[number];
        let settings = Settings { queues: shape.workers() as u16, ..Settings::default() };
        let open = |interface: usize| {
            let device = format!("net_null{}", FIRST_DEVICE + 2 * number + interface);
            DpdkPort::open(&device, &settings)
        };
        let mut team =
            Team { name, shape, valves: Vec::new(), serving: None, lost: Cell::new(0), bare: Vec::new() };
        let queues: Vec<_> = open(0)?.into_iter().zip(open(1)?).collect();
        let mut pairs = Vec::new();
        for (worker, (n3, n6)) in queues.into_iter().enumerate() {
            let (valve, [up, down]) = (Arc::new(Valve::default()), shape.decks(worker, teids));
            pairs.push(Fed::pair([n3, n6], kind.forwarder(Traffic::Plain), &valve, [&up, &down]));
            team.valves.push(valve);
        }
        if kind == Kind::Bare {
            for (at, pair) in pairs.into_iter().enumerate() {
                let (valve, core) = (Arc::clone(&team.valves[at]), cores[cores.len() - 1 - at]);
                team.bare.push(std::thread::spawn(move || {
                    machine::pin(&[core]);
                    frames::forward_all(pair, &|| valve.stop.load(Relaxed))
                }));
            }
            return Ok(team);
        }
        let resolver = |address: std::net::Ipv4Addr| {
            let cidr = Cidr::new(address.into(), 24).context("address")?;
            anyhow::Ok(Resolver::new(&[cidr], &[]))
        };
        let (of_n3, of_n6) = (resolver(UPF)?, resolver(N6)?);
        let own = |resolver: &Resolver| Neighbours::Own(Box::new(resolver.share()));
        let mut workers = Vec::new();
        for (at, (n3, n6)) in pairs.into_iter().enumerate() {
            let ports: Ports = vec![
                Box::new(UdpStack::new(n3, (UPF, gtpu::PORT).into(), None, own(&of_n3))?),
                Box::new(IpStack::new(n6, None, own(&of_n6))?),
            ];
            workers.push((Some(cores[cores.len() - 1 - at]), ports));
        }
        let world = World::for_workers(DEFAULT_SESSIONS, Traffic::Plain, shape.workers())?;
        team.serving = Some(world.serve_all(workers, POLL)?);
        Ok(team)
    }

    /// Packets given and taken so far. Those that an owner did not take in time count as taken.
    fn counts(&self) -> [u64; 2] {
        let dropped = self.serving.as_ref().map_or(0, Serving::crowded_out);
        self.valves
            .iter()
            .map(|valve| valve.counts())
            .fold([0, dropped], |sum, more| [sum[0] + more[0], sum[1] + more[1]])
    }

    fn taken(&self) -> u64 {
        self.valves.iter().map(|valve| valve.counts()[1]).sum()
    }

    /// Packets per second that come out.
    fn rate(&self, direction: Direction, duration: Duration) -> f64 {
        for (worker, valve) in self.valves.iter().enumerate() {
            if worker < self.shape.fed() { valve.open(direction, SIZE) } else { valve.drain() }
        }
        time::sleep_thread(duration / 4);
        let (before, start) = (self.taken(), time::now_std());
        time::sleep_thread(duration);
        let (taken, took) = (self.taken() - before, start.elapsed());
        self.rest();
        taken as f64 / took.as_secs_f64()
    }

    /// Lets what is under way come out, and then the ports wait.
    fn rest(&self) {
        self.valves.iter().for_each(|valve| valve.drain());
        let start = time::now_std();
        let under_way = || {
            let [given, taken] = self.counts();
            given != taken + self.lost.get()
        };
        while under_way() && start.elapsed() < AT_REST {
            time::sleep_thread(GLANCE);
        }
        self.valves.iter().for_each(|valve| valve.close());
    }

    /// Whether all packets of a while come out, and no others.
    fn passes_all(&self) -> bool {
        let before = self.counts();
        self.rate(Direction::Mixed, COMPARED);
        let after = self.counts();
        self.lost.set(after[0].saturating_sub(after[1]));
        let [given, taken] = [0, 1].map(|at| after[at] - before[at]);
        given > 0 && taken == given
    }

    /// Compares all packets for a while.
    fn compare(&self) {
        self.valves.iter().for_each(|valve| valve.compare_all.store(true, Relaxed));
        for direction in Direction::ALL {
            self.rate(direction, COMPARED);
        }
        self.valves.iter().for_each(|valve| valve.compare_all.store(false, Relaxed));
    }

    fn end(mut self) -> anyhow::Result<()> {
        self.valves.iter().for_each(|valve| valve.stop.store(true, Relaxed));
        self.serving = None;
        for thread in self.bare.drain(..) {
            let Ok(served) = thread.join() else { anyhow::bail!("a forwarder ended by a panic") };
            served?;
        }
        Ok(())
    }
}

/// Measures one worker and two, of the user plane and of bare forwarders, in turn.
///
/// # Errors
/// DPDK does not start.
pub(super) fn run(run: &mut Run) -> anyhow::Result<()> {
    let cores = run.cores;
    if cores[0] == cores[1] {
        run.note("workers", "not measured: there is one core");
        return Ok(());
    }
    run.note(
        "workers",
        "two workers and the thread that measures share two cores if the machine has no more: the second worker then gains less",
    );
    dpdk::start(cores[0])?;
    run.progress.say("workers: making sessions");
    let teids = World::teids(DEFAULT_SESSIONS)?;
    let teams = (0..CONTENDERS.len()).map(|number| Team::start(number, cores, &teids));
    let teams = teams.collect::<anyhow::Result<Vec<Team>>>()?;
    let measured = measure(run, &teams);
    for team in teams {
        team.end()?;
    }
    measured
}

fn measure(run: &mut Run, teams: &[Team]) -> anyhow::Result<()> {
    for team in teams {
        let start = time::now_std();
        // Until all neighbours are known.
        while !team.passes_all() {
            if start.elapsed() > PATIENCE {
                anyhow::bail!("not everything comes out of {}", team.name);
            }
        }
    }
    let before: Vec<[u64; 2]> = teams.iter().map(Team::counts).collect();
    teams.iter().for_each(Team::compare);
    for round in 0..run.plan.frame_rounds(DEFAULT_SESSIONS) {
        run.progress.say(&format!("workers: round {round}"));
        for direction in Direction::ALL {
            for team in turns::order(teams.len()).filter_map(|at| teams.get(at)) {
                let name = format!("workers.{}.{}.{SIZE}.mpps", team.name, direction.name());
                let rate = team.rate(direction, run.plan.frame_sample / 2);
                run.results.add(name, MPPS, DEFAULT_SESSIONS, rate / 1e6);
            }
        }
    }
    teams.iter().for_each(Team::compare);
    for (team, before) in teams.iter().zip(before) {
        let after = team.counts();
        let [given, taken] = [0, 1].map(|at| after[at] - before[at]);
        let dropped = team.serving.as_ref().map_or(0, Serving::crowded_out);
        let name = format!("workers: what {} got came out, or counts as dropped between workers", team.name);
        let detail = format!("{taken} packets of {given}, {dropped} of them dropped");
        run.check(&name, given > 0 && taken == given, detail);
        for valve in &team.valves {
            let tally =
                std::mem::take(&mut *valve.tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
            run.compared(&format!("workers {}", team.name), tally);
        }
    }
    Ok(())
}
