//! The steering program in XDP without traffic: the kernel runs it on one frame again and again (`BPF_PROG_TEST_RUN`). Also how long commits
//! take.
//!
//! Each turn is of all contenders and their baselines, which do all but steering: an empty program for one tunnel, and for tunnels at
//! random a program that only varies the TEID; one that touches a line at random as well shows what memory takes alone. Time is that of the thread, so that what other programs take is not in it.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context as _, ensure};
use net::link::Links;
use net::netns::NetNs;
use net::time;
use pktio::af_xdp::device::Device;
use pktio::bpf::asm::{Assembler, Reg};
use pktio::bpf::{Program, SharedWords, XDP_TX};
use pktio::xdp::{Chain, Place};
use xdp::steer::{Action, Capacity, Change, Entry, Forward, Key, Only, Steer, Teids, Tunnel, Varied};

use super::frames::{self, STATION, STATION_MAC};
use super::{Figure, Run};
use crate::machine;
use crate::samples::{Axes, Results};

const NS: Axes = Axes { x: "tunnels", y: "time per packet", unit: "ns" };
const MS: Axes = Axes { x: "entries", y: "time of a commit that changes them", unit: "ms" };
/// Entries of commits.
const COMMITS: [u32; 3] = [1, 1000, 10_000];
/// Tunnels of each anchor.
const TUNNELS: u32 = 1 << 16;
const FIRST: u32 = 0x1000;
/// The anchor whose TEIDs index a table, and the one whose tunnels are hashed.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const ANCHOR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The interface of packets whose program runs without one: the loopback interface.
const LOOPBACK: u32 = 1;
const PLACE: u32 = 2;

/// Extent.
pub(super) struct Plan {
    /// Turns of a round.
    pub(super) turns: usize,
    /// Packets of a turn.
    pub(super) packets: u32,
}

impl Plan {
    pub(super) fn new(quick: bool) -> Plan {
        if quick { Plan { turns: 4, packets: 100_000 } } else { Plan { turns: 20, packets: 200_000 } }
    }
}

/// A program with the frame that it is given.
struct Contender {
    name: &'static str,
    tunnels: usize,
    program: Program,
    frame: Vec<u8>,
    baseline: &'static str,
    /// Whether entries count its packets.
    steers: bool,
}

/// Measures all contenders.
///
/// # Errors
/// This build has no programs, or the kernel refuses them.
pub(super) fn run(run: &mut Run) -> anyhow::Result<()> {
    ensure!(xdp::programs::BUILT, "left out: this build has no XDP programs (`make bench` with clang)");
    let (near, far) = (NetNs::new()?, NetNs::new()?);
    let mut steer = Steer::new(Capacity { own: TUNNELS, foreign: TUNNELS, ..Capacity::default() })?;
    let chain = chain(&near, &far)?;
    near.enter(|| steer.add_port(LOOPBACK))??;
    steer.add_anchor(OWN.into(), Teids::Own { first: FIRST, count: TUNNELS })?;
    steer.add_anchor(FOREIGN.into(), Teids::Foreign)?;
    for anchor in [OWN, FOREIGN] {
        steer.commit(&changes(anchor, ANCHOR_MAC, TUNNELS))?;
    }
    for _ in 0..run.plan.rounds {
        commits(run, &mut steer)?;
    }
    let sequence = SharedWords::new(16)?;
    let contenders = contenders(&steer, &chain, &sequence)?;
    let steered = near.enter(|| measure(run, &contenders, &sequence))??;
    judge(run, &steer, steered);
    Ok(())
}

/// A chain of programs, whose array the steering program needs.
fn chain(near: &NetNs, far: &NetNs) -> anyhow::Result<std::sync::Arc<Chain>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Links::in_ns(near)?.add_veth("up0", "peer0", far).await })?;
    let attach = || -> anyhow::Result<_> { Ok(Chain::attach(Device::find("up0")?.index)?) };
    near.enter(attach)?
}

/// Entries for the first tunnels of an anchor. With its own link-layer address they leave packets as they are, so that each run finds the
/// same frame.
fn changes(anchor: Ipv4Addr, mac: [u8; 6], count: u32) -> Vec<Change> {
    let to = Forward {
        interface: LOOPBACK,
        eth_destination: Some(mac),
        eth_source: Some(STATION_MAC),
        destination: Some(anchor.into()),
        ..Forward::default()
    };
    let entry = Entry { only: Only::default(), action: Action::Forward(to) };
    keys(anchor).take(count as usize).map(|key| Change::Set(key, entry)).collect()
}

/// Changes entries to another neighbour, and back.
fn commits(run: &mut Run, steer: &mut Steer) -> anyhow::Result<()> {
    for (name, anchor) in [("own", OWN), ("foreign", FOREIGN)] {
        for count in COMMITS {
            for mac in [[2, 0, 0, 0, 7, 7], ANCHOR_MAC] {
                let changes = changes(anchor, mac, count);
                let start = time::now_std();
                steer.commit(&changes)?;
                let ms = start.elapsed().as_secs_f64() * 1000.0;
                run.results.add(format!("commit.{name}"), MS, count as usize, ms);
            }
        }
    }
    Ok(())
}

fn keys(anchor: Ipv4Addr) -> impl Iterator<Item = Key> {
    (FIRST..FIRST + TUNNELS).map(move |teid| Key::Tunnel(Tunnel { destination: anchor.into(), teid }))
}

fn contenders(steer: &Steer, chain: &Chain, sequence: &SharedWords) -> anyhow::Result<Vec<Contender>> {
    let frame = |anchor, checksum| {
        let ends = frames::Ends { macs: [ANCHOR_MAC, STATION_MAC], source: STATION, destination: anchor };
        frames::uplink(ends, FIRST, 64, checksum)
    };
    let mut asm = Assembler::new();
    asm.set(Reg::R0, XDP_TX);
    asm.exit();
    let empty = Program::load("bench_empty", &asm.finish()?)?;
    let varied = Varied { sequence, first: FIRST, mask: TUNNELS - 1 };
    let random = |baseline| steer.load_varied(chain, &varied, baseline);
    let place = Place::new(PLACE).context("a place of the chain")?;
    let hot = || steer.load(chain, place).map(|loaded| loaded.program);
    let all = TUNNELS as usize;
    let one = |name, tunnels, program, frame, baseline| {
        let steers = !["empty", "varied", "line"].contains(&name);
        Contender { name, tunnels, program, frame, baseline, steers }
    };
    Ok(vec![
        one("empty", 1, empty, frame(OWN, false)?, "empty"),
        one("own", 1, hot()?, frame(OWN, false)?, "empty"),
        one("foreign", 1, hot()?, frame(FOREIGN, false)?, "empty"),
        one("own_checksum", 1, hot()?, frame(OWN, true)?, "empty"),
        one("varied", all, random(true)?, frame(OWN, false)?, "varied"),
        one("line", all, steer.load_floor(chain, &varied)?, frame(OWN, false)?, "varied"),
        one("own", all, random(false)?, frame(OWN, false)?, "varied"),
        one("foreign", all, random(false)?, frame(FOREIGN, false)?, "varied"),
    ])
}

/// Takes turns; returns the packets that were steered.
fn measure(run: &mut Run, contenders: &[Contender], sequence: &SharedWords) -> anyhow::Result<u64> {
    let mut steered = 0;
    let packets = run.plan.program.packets;
    let mut time = |contender: &Contender| -> anyhow::Result<f64> {
        // Where programs that vary the TEID find the destination.
        let destination: [u8; 4] = contender.frame[30..34].try_into()?;
        sequence.words()[1].store(u32::from_ne_bytes(destination).into(), Relaxed);
        let before = machine::thread_time();
        let ran = contender.program.run_repeatedly(&contender.frame, packets)?;
        let took = machine::thread_time() - before;
        ensure!(ran.verdict == XDP_TX || ran.verdict == pktio::bpf::XDP_REDIRECT, "verdict {}", ran.verdict);
        if contender.steers {
            steered += u64::from(packets);
        }
        Ok(took.as_nanos() as f64 / f64::from(packets))
    };
    for round in 0..run.plan.rounds {
        run.progress.say(&format!("program, round {round}"));
        for _ in 0..run.plan.program.turns {
            let times = contenders.iter().map(&mut time).collect::<anyhow::Result<Vec<_>>>()?;
            for (contender, took) in contenders.iter().zip(&times) {
                let name = contender.name;
                let baseline = contenders.iter().position(|other| other.name == contender.baseline);
                let over = took - times[baseline.context("a baseline")?];
                run.results.add(format!("program.{name}.ns"), NS, contender.tunnels, *took);
                if name != contender.baseline {
                    run.results.add(format!("program.{name}.over"), NS, contender.tunnels, over);
                }
            }
        }
    }
    Ok(steered)
}

/// Every packet was steered by an entry, which counted it.
fn judge(run: &mut Run, steer: &Steer, steered: u64) {
    let counters = [OWN, FOREIGN].into_iter().flat_map(keys).filter_map(|key| steer.counters(&key));
    let counted: u64 = counters.map(|counters| counters.packets).sum();
    let passed: u64 = steer.passed().iter().map(|(_, count)| count).sum();
    let detail = format!("{counted} of {steered}, {passed} passed on");
    run.check("program: entries count all packets", counted == steered && passed == 0, detail);
}

/// The goals are for one tunnel, and for all of them at random.
pub(super) fn summarise(results: &Results, figure: Figure<'_>) {
    let all = TUNNELS as usize;
    figure("steer_ns_hot", results.median("program.own.over", 1), None);
    figure("steer_ns_hot_foreign", results.median("program.foreign.over", 1), None);
    figure("steer_ns_hot_checksum", results.median("program.own_checksum.over", 1), None);
    figure("line_ns_random_64k", results.median("program.line.over", all), None);
    figure("steer_ns_random_64k", results.median("program.own.over", all), None);
    for count in COMMITS {
        figure(&format!("steer_commit_{count}_ms"), results.median("commit.own", count as usize), None);
    }
    figure("steer_ns_random_64k_foreign", results.median("program.foreign.over", all), None);
}
