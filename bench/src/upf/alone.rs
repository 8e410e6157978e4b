//! The pipeline alone: packets are in memory before the clock starts, and output is discarded while it runs.
//! Before every sample, packets of its size and direction go through both contenders and are compared octet by
//! octet.
//!
//! A sample processes windows of several batches of random subscribers until enough time has passed. The
//! packets of a window are made untimed and fit the second-level cache, in which a network card would put them.
//! The textbook user plane processes the same packets in turn, one by one, without the system calls that it
//! would need.

use anyhow::Context as _;
use net::time::{self, Duration};
use packet::gtpu::{PduSession, build_gpdu};
use pktio::{FrameMut, Vector};
use upf::pipeline::BATCH;

use super::contents::Tally;
use super::subscriber::{QFI, Subscriber};
use super::textbook::Textbook;
use super::traffic::{Direction, Draw, TUNNEL, Template};
use super::world::World;
use super::{MPPS, NS, Run};

/// Batches between two clock readings.
const WINDOW: usize = 8;
/// Number of batches whose packets are compared before each sample.
const COMPARED: usize = 4;
/// From this number of sessions on, their memory can be measured reliably.
const MANY: usize = 10_000;
const SEED: u64 = 5;

/// A window of batches.
pub(crate) struct Window {
    batches: Vec<Vector>,
    templates: [Template; 2],
    draw: Draw,
}

impl Window {
    /// Packets of `size` octets of these many sessions.
    ///
    /// # Errors
    /// No packet can have this size.
    pub(crate) fn new(sessions: usize, size: usize, seed: u64) -> anyhow::Result<Window> {
        let batches = (0..WINDOW).map(|_| Vector::new(BATCH, size + 2 * TUNNEL + 64)).collect();
        let templates = [Template::new(true, size)?, Template::new(false, size)?];
        Ok(Window { batches, templates, draw: Draw::new(sessions, seed) })
    }

    /// Fills all batches; returns for each packet whether it is for a service.
    fn fill(&mut self, direction: Direction, teids: &[u32]) {
        for (at, batch) in self.batches.iter_mut().enumerate() {
            let template = &mut self.templates[usize::from(!direction.is_up(at))];
            batch.clear();
            for _ in 0..BATCH {
                let (subscriber, service) = self.draw.next();
                let teid = teids[subscriber.0 as usize];
                batch.push(template.fill(subscriber, teid, service), World::peer());
            }
        }
    }
}

/// Measures all sizes and directions with `sessions` sessions, and adds samples and checks.
///
/// # Errors
/// Sessions cannot be made.
pub(super) fn run(run: &mut Run, sessions: usize) -> anyhow::Result<()> {
    run.progress.say(&format!("pipeline alone: making {sessions} sessions"));
    let started = time::now_std();
    let mut world = World::new(sessions).context("sessions for the pipeline")?;
    let took = (time::now_std() - started).as_secs_f64();
    run.results.add("memory.published_per_s".to_owned(), super::RATE, sessions, sessions as f64 / took);
    if sessions >= MANY {
        let bytes = world.bytes as f64 / sessions as f64;
        run.results.add("memory.pipeline.bytes".to_owned(), super::BYTES, sessions, bytes);
    }
    let textbook = Textbook::new(&world.teids, 0, None)?;
    for round in 0..run.plan.rounds {
        for size in run.plan.sizes.clone() {
            for direction in Direction::ALL {
                run.progress.say(&format!(
                    "pipeline alone: {sessions} sessions, {size} octets, {}, round {round}",
                    direction.name()
                ));
                sample(run, &mut world, &textbook, (sessions, size, direction, round))?;
            }
        }
    }
    stages(run, &mut world, sessions)?;
    let (counted, sent) = (world.counted(), world.sent());
    run.check(
        &format!("usage of {sessions} sessions"),
        counted == sent,
        format!("counted {counted:?}, sent {sent:?} (N6, N3)"),
    );
    let taken = textbook.counted();
    run.check(
        &format!("textbook with {sessions} sessions"),
        taken.iter().all(|n| *n > 0),
        format!("{taken:?}"),
    );
    Ok(())
}

fn sample(
    run: &mut Run,
    world: &mut World,
    textbook: &Textbook,
    (sessions, size, direction, round): (usize, usize, Direction, usize),
) -> anyhow::Result<()> {
    for up in [true, false] {
        if direction == Direction::Mixed || up == (direction == Direction::Uplink) {
            compare(run, world, textbook, (sessions, size, up, round))?;
        }
    }
    let mut window = Window::new(sessions, size, SEED + round as u64)?;
    let teids = std::mem::take(&mut world.teids);
    let before: u64 = world.sent().iter().sum();
    let ours = timed(run.plan.sample, &mut window, direction, &teids, |at, batch| {
        world.process(direction.is_up(at), batch);
    });
    let sent = world.sent().iter().sum::<u64>() - before;
    let mut dropped = 0;
    let theirs = timed(run.plan.sample, &mut window, direction, &teids, |at, batch| {
        let now_ns = time::now_ns();
        for mut frame in batch.frames_mut() {
            let passed = match direction.is_up(at) {
                true => textbook.uplink(&mut frame, now_ns),
                false => textbook.downlink(&mut frame, now_ns),
            };
            dropped += u64::from(!passed);
        }
    });
    world.teids = teids;
    for (name, ns) in [("pipeline", &ours), ("textbook", &theirs)] {
        let series = format!("memory.{name}.{}.{size}", direction.name());
        run.results.add(format!("{series}.mpps"), MPPS, sessions, 1e3 / ns.per_packet);
        run.results.add(format!("{series}.ns"), NS, sessions, ns.per_packet);
    }
    if sent != ours.packets || dropped > 0 {
        let what = format!("all packets pass, {sessions} sessions, {size} octets, {}", direction.name());
        let detail = format!("pipeline sent {sent} of {}, textbook dropped {dropped}", ours.packets);
        run.check(&what, false, detail);
    }
    Ok(())
}

/// Nanoseconds per packet of each stage. Measured last, because taking the times costs time itself.
fn stages(run: &mut Run, world: &mut World, sessions: usize) -> anyhow::Result<()> {
    let teids = std::mem::take(&mut world.teids);
    for direction in [Direction::Uplink, Direction::Downlink] {
        for round in 0..run.plan.rounds {
            let mut window = Window::new(sessions, 64, SEED + round as u64)?;
            world.time_stages();
            let taken = timed(run.plan.sample, &mut window, direction, &teids, |at, batch| {
                world.process(direction.is_up(at), batch);
            });
            for (stage, ns) in world.stages() {
                let name = format!("memory.stage.{}.{stage}", direction.name());
                run.results.add(name, NS, sessions, ns as f64 / taken.packets as f64);
            }
        }
    }
    world.teids = teids;
    Ok(())
}

/// Result of a sample.
pub(crate) struct Timed {
    /// Nanoseconds.
    pub(crate) per_packet: f64,
    /// Packets in all.
    pub(crate) packets: u64,
}

/// Processes windows until `at_least` has passed, not counting the time in which they are filled.
pub(crate) fn timed(
    at_least: Duration,
    window: &mut Window,
    direction: Direction,
    teids: &[u32],
    mut process: impl FnMut(usize, &mut Vector),
) -> Timed {
    let (mut spent, mut packets, mut warm) = (Duration::ZERO, 0, true);
    let mut all = 0;
    while spent < at_least {
        window.fill(direction, teids);
        let start = time::now_std();
        for (at, batch) in window.batches.iter_mut().enumerate() {
            process(at, batch);
        }
        let took = time::now_std() - start;
        all += WINDOW * BATCH;
        // The first window is not counted: it refills the caches after the other contender's turn.
        if !std::mem::take(&mut warm) {
            spent += took;
            packets += WINDOW * BATCH;
        }
    }
    Timed { per_packet: spent.as_nanos() as f64 / packets as f64, packets: all as u64 }
}

/// Compares output packets with the expected ones, octet by octet.
fn compare(
    run: &mut Run,
    world: &mut World,
    textbook: &Textbook,
    (sessions, size, up, round): (usize, usize, bool, usize),
) -> anyhow::Result<()> {
    let mut template = Template::new(up, size)?;
    let mut draw = Draw::new(sessions, 2 * round as u64 + u64::from(up));
    let [mut ours, mut theirs] = [(); 2].map(|()| Vector::new(BATCH, size + 2 * TUNNEL + 64));
    let mut tallies = [Tally::default(), Tally::default()];
    for number in 0..COMPARED as u32 {
        let mut expected = Vec::with_capacity(BATCH);
        ours.clear();
        theirs.clear();
        for at in 0..BATCH as u32 {
            let (subscriber, service) = draw.next();
            template.mark(number * BATCH as u32 + at, 0);
            let packet = template.fill(subscriber, world.teids[subscriber.0 as usize], service);
            expected.push(outcome(up, subscriber, packet)?);
            ours.push(packet, World::peer());
            theirs.push(packet, World::peer());
        }
        let sent = world.process_and_show(up, &mut ours);
        let now_ns = time::now_ns();
        let passes = |frame: &mut FrameMut<'_>| match up {
            true => textbook.uplink(frame, now_ns),
            false => textbook.downlink(frame, now_ns),
        };
        let forwarded = theirs.frames_mut().filter_map(|mut frame| {
            let passed = passes(&mut frame);
            passed.then(|| (frame.packet().to_vec(), *frame.peer))
        });
        for (tally, packets) in tallies.iter_mut().zip([sent, forwarded.collect()]) {
            for (at, (wanted, to)) in expected.iter().enumerate() {
                let found = packets
                    .get(at)
                    .filter(|(bytes, peer)| bytes == wanted && to.is_none_or(|to| to == *peer));
                let bytes = packets.get(at).map_or(&[][..], |(bytes, _)| bytes.as_slice());
                tally.count(found.ok_or("a packet, or where it goes"), bytes);
            }
        }
    }
    for (whose, tally) in ["pipeline", "textbook"].into_iter().zip(tallies) {
        run.compared(&format!("{whose} with {sessions} sessions"), tally);
    }
    Ok(())
}

/// The expected output for a packet, and its destination.
fn outcome(
    up: bool,
    subscriber: Subscriber,
    packet: &[u8],
) -> anyhow::Result<(Vec<u8>, Option<std::net::SocketAddr>)> {
    if up {
        return Ok((packet[TUNNEL..].to_vec(), None));
    }
    let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
    Ok((build_gpdu(subscriber.gnb_teid(), container, packet)?, Some(subscriber.gnb())))
}
