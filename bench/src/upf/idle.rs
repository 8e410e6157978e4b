//! A user plane without packets: the share of a core that its worker takes, and how long the first packet after a pause needs.
//! The ports are queues in memory, which, like DPDK's devices, cannot wake a thread.

use anyhow::ensure;
use net::time::{self, Duration};
use pktio::{memory, poll};

use super::subscriber::Subscriber;
use super::traffic::Template;
use super::world::World;
use super::{DEFAULT_SESSIONS, LOAD, Run, US};
use crate::machine::{self, Clock};

/// Pause before each packet, in which the worker falls asleep.
const PAUSE: Duration = Duration::from_millis(20);
/// Time without packets in which the worker's processor time is measured.
const SILENCE: Duration = Duration::from_millis(500);
/// The worker polls no longer than the UPF's default before it sleeps.
const POLL: Duration = Duration::from_micros(100);
/// Time after which a packet counts as lost.
const LOST: Duration = Duration::from_secs(1);
const SIZE: usize = 64;

/// Measures a worker on `core`; the packets come from another one if there is one.
///
/// # Errors
/// The worker does not start; its processor time cannot be read; a packet is lost or altered.
pub(super) fn run(run: &mut Run, core: usize) -> anyhow::Result<()> {
    let world = World::new(DEFAULT_SESSIONS)?;
    let teids = world.teids.clone();
    let (n3, gnb) = memory::pair(1);
    let (n6, network) = memory::pair(1);
    machine::pin(&[core]);
    let serving = world.serve(vec![Box::new(n3), Box::new(n6)], POLL);
    machine::pin(&run.cores[..1]);
    let (_serving, clock) = (serving?, Clock::of(World::WORKER)?);
    let mut template = Template::new(true, SIZE)?;
    for round in 0..run.plan.rounds {
        run.progress.say(&format!("without packets, round {round}"));
        time::sleep_thread(PAUSE);
        let (start, before) = (time::now_std(), clock.read()?);
        time::sleep_thread(SILENCE);
        let (took, used) = (start.elapsed(), clock.read()? - before);
        let share = 100.0 * used.as_secs_f64() / took.as_secs_f64();
        run.results.add("idle.cpu".to_owned(), LOAD, DEFAULT_SESSIONS, share);
        run.results.add("idle.naps_cpu".to_owned(), LOAD, DEFAULT_SESSIONS, naps()?);
        for number in 0..run.plan.low.0 / run.plan.rounds {
            let subscriber = Subscriber((number % DEFAULT_SESSIONS) as u32);
            // Not a multiple of the worker's naps.
            time::sleep_thread(PAUSE + Duration::from_micros(37 * number as u64));
            let gpdu = template.fill(subscriber, teids[subscriber.0 as usize], false);
            let start = time::now_std();
            gnb.inject(gpdu, World::peer());
            let sent = loop {
                let sent = network.take();
                if !sent.is_empty() || start.elapsed() > LOST {
                    break sent;
                }
                std::hint::spin_loop();
            };
            let took = start.elapsed();
            let arrived =
                matches!(sent.as_slice(), [(packet, _)] if gpdu.ends_with(packet) && packet.len() == SIZE);
            ensure!(arrived, "packet {number} of round {round} is lost or altered");
            let us = took.as_secs_f64() * 1e6;
            run.results.add("idle.first_packet".to_owned(), US, DEFAULT_SESSIONS, us);
        }
    }
    Ok(())
}

/// The share of a core that a thread takes which does nothing but nap as the worker does: the system's timers and switches.
fn naps() -> anyhow::Result<f64> {
    let napping = std::thread::spawn(|| {
        poll::nap_precisely()?;
        let clock = Clock::of_this_thread();
        let (start, before) = (time::now_std(), clock.read()?);
        while start.elapsed() < SILENCE {
            time::sleep_thread(path::NAP);
        }
        let (took, used) = (start.elapsed(), clock.read()? - before);
        Ok(100.0 * used.as_secs_f64() / took.as_secs_f64())
    });
    napping.join().unwrap_or_else(|_| anyhow::bail!("a panic while napping"))
}
