//! Rule changes under full load: whether a batch ever waits for the writer, and whether a packet is ever
//! processed by neither the old nor the new rules (PDR-4).
//!
//! A second thread, if possible on its own core, continuously gives sessions another tunnel and back. Times of
//! single batches are compared with those of the same pipeline without changes, as the machine interrupts both.
//! In addition to wall-clock time the thread's processor time is measured (`cpu`). A batch during which the
//! system ran something else is long only in wall-clock time; a batch that waited in Godwit's code would be
//! long in both.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::bail;
use net::time::{self, Duration};
use pktio::Vector;
use upf::pipeline::BATCH;

use super::contents::{self, Tally, Wrong};
use super::subscriber::Subscriber;
use super::traffic::{Draw, Template};
use super::world::World;
use super::{RATE, Run, STALL};
use crate::machine;
use crate::stats::quantile;

/// Sessions, all of which change.
const SESSIONS: usize = 1000;
/// Octets of a packet.
const SIZE: usize = 64;
/// A batch that takes longer counts as delayed; microseconds.
const STALLED_US: f64 = 100.0;
/// The output of one in this many batches is compared.
const LOOK_EVERY: usize = 16;

/// Measures with and without changes, in turn.
///
/// # Errors
/// Sessions cannot be made or changed.
pub(super) fn run(run: &mut Run, core: usize) -> anyhow::Result<()> {
    let mut world = World::new(SESSIONS)?;
    let mut tally = Tally::default();
    for round in 0..run.plan.rounds {
        run.progress.say(&format!("rule changes under load, round {round}"));
        for changing in [false, true] {
            let control = world.take_control();
            let stop = AtomicBool::new(false);
            let (times, rate, control) = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    machine::pin(&[core]);
                    let mut control = control;
                    let (start, mut changes) = (time::now_std(), 0_u64);
                    while !stop.load(Relaxed) {
                        if changing {
                            control.change(changes as usize)?;
                            changes += 1;
                        } else {
                            time::sleep_thread(Duration::from_millis(1));
                        }
                    }
                    anyhow::Ok((changes as f64 / start.elapsed().as_secs_f64(), control))
                });
                let times = batches(&mut world, run.plan.sample * 4, &mut tally);
                stop.store(true, Relaxed);
                let Ok(written) = writer.join() else { bail!("the writer ended by a panic") };
                let (rate, control) = written?;
                anyhow::Ok((times?, rate, control))
            })?;
            world.give_control(control);
            let name = if changing { "changing" } else { "still" };
            for (clock, times) in [("", times.wall), ("cpu.", times.cpu)] {
                let stalled = times.iter().filter(|us| **us > STALLED_US).count() as f64;
                for (what, value) in [
                    ("p50", quantile(&times, 0.5)),
                    ("p999", quantile(&times, 0.999)),
                    ("longest", quantile(&times, 1.0)),
                    ("stalled_per_million", 1e6 * stalled / times.len().max(1) as f64),
                ] {
                    run.results.add(format!("changes.{name}.{clock}{what}"), STALL, SESSIONS, value);
                }
            }
            if changing {
                run.results.add("changes.per_s".to_owned(), RATE, SESSIONS, rate);
            }
        }
    }
    run.compared("rule changes under load", tally);
    Ok(())
}

/// Compares an output packet with those of the old and the new tunnel.
fn compare(subscriber: Subscriber, packet: &[u8], bytes: &[u8], to: Option<SocketAddr>) -> Result<(), Wrong> {
    let (teid, user) = contents::gpdu(false, bytes)?;
    if ![subscriber.gnb_teid(), World::other_teid(subscriber)].contains(&teid) || to != Some(subscriber.gnb())
    {
        return Err("a tunnel of neither the old nor the new rules");
    }
    if user == packet { Ok(()) } else { Err("the user's packet") }
}

/// Microseconds of single batches, in wall-clock time and in processor time.
#[derive(Default)]
struct Times {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

/// Times batches for a while.
fn batches(world: &mut World, duration: Duration, tally: &mut Tally) -> anyhow::Result<Times> {
    let mut template = Template::new(false, SIZE)?;
    let mut draw = Draw::new(SESSIONS, 3);
    let mut batch = Vector::new(BATCH, 512);
    let mut times = Times::default();
    let start = time::now_std();
    for number in 0.. {
        if start.elapsed() > duration {
            break;
        }
        let mut expected = Vec::with_capacity(BATCH);
        batch.clear();
        for at in 0..BATCH as u32 {
            let (subscriber, service) = draw.next();
            template.mark(at, number as u64);
            let packet = template.fill(subscriber, 0, service);
            if number % LOOK_EVERY == 0 {
                expected.push((subscriber, packet.to_vec()));
            }
            batch.push(packet, World::peer());
        }
        if number % LOOK_EVERY == 0 {
            let sent = world.process_and_show(false, &mut batch);
            for (at, (subscriber, packet)) in expected.iter().enumerate() {
                let (bytes, peer) = sent.get(at).map_or((&[][..], None), |(bytes, to)| (bytes, Some(*to)));
                tally.count(compare(*subscriber, packet, bytes, peer), bytes);
            }
        } else {
            let (own, before) = (machine::thread_time(), time::now_std());
            world.process(false, &mut batch);
            let took = before.elapsed();
            let own = machine::thread_time().saturating_sub(own);
            times.wall.push(took.as_nanos() as f64 / 1e3);
            times.cpu.push(own.as_nanos() as f64 / 1e3);
        }
    }
    Ok(times)
}
