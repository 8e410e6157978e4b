//! Contenders on frame ports take turns. Each pair of samples is taken forwards and then backwards (bare forwarder, user
//! plane, user plane, bare forwarder), so that a machine whose speed changes affects both sides of a pair alike.

use pktio::FramePort;

use super::frames::{Generator, Latency};
use super::traffic::Direction;
use super::{DISTANCE, MPPS, NS, Run, SHARE, US};
use crate::distance;
use crate::stats::median;

/// A forwarder between two frame ports, with the generator at their other ends.
pub(super) struct Contender<'a, F> {
    pub(super) name: &'static str,
    pub(super) generator: &'a mut Generator<F>,
    pub(super) control: &'a dyn Control,
}

/// A forwarder, seen from the generator.
pub(super) trait Control {
    /// Wakes the forwarder (true) or lets it rest.
    fn wake(&self, awake: bool);

    /// What it has done so far, if that is metered.
    fn reading(&self) -> anyhow::Result<Option<Reading>>;
}

impl<F: FramePort> Contender<'_, F> {
    /// Measures while the forwarder is awake.
    fn turn<T>(&mut self, measure: impl FnOnce(&mut Generator<F>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.control.wake(true);
        let measured = measure(self.generator);
        self.control.wake(false);
        measured
    }
}

/// What a forwarder has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Reading {
    /// Packets received.
    pub(super) packets: u64,
    /// Nanoseconds from receiving them until the next call that receives.
    pub(super) busy_ns: u64,
}

impl Reading {
    /// Nanoseconds per packet since an earlier reading; `None` without packets.
    pub(super) fn ns_since(self, before: Reading) -> Option<f64> {
        let packets = self.packets.checked_sub(before.packets).filter(|packets| *packets > 0)?;
        Some(self.busy_ns.saturating_sub(before.busy_ns) as f64 / packets as f64)
    }
}

/// Positions of contenders in the order of a pair of samples.
pub(super) fn order(contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).chain((0..contenders).rev())
}

/// What is measured between frame ports.
pub(super) struct Extent<'a> {
    pub(super) backend: &'a str,
    pub(super) sessions: usize,
    /// Octets of user packets.
    pub(super) sizes: &'a [usize],
    pub(super) rounds: usize,
}

impl Run {
    /// Measures contenders on frame ports: rates by direction and size, then one-way times.
    pub(super) fn frames<F: FramePort>(
        &mut self,
        extent: &Extent<'_>,
        contenders: &mut [Contender<'_, F>],
    ) -> anyhow::Result<()> {
        let Extent { backend, sessions, rounds, .. } = *extent;
        for contender in &mut *contenders {
            let name = contender.name;
            let verified = contender.turn(|generator| {
                generator.warm_up()?;
                Ok(generator.verify(Direction::Mixed, self.plan.verified))
            })?;
            if let Err(error) = verified {
                let name = format!("{backend} {name}: every frame comes out, once and as it must");
                self.check(&name, false, format!("{error:#}"));
            }
        }
        for round in 0..rounds {
            self.progress.say(&format!("{backend}: {sessions} sessions, round {round}"));
            for direction in Direction::ALL {
                self.rates(extent, direction, contenders)?;
                self.one_way_times(extent, direction, contenders)?;
            }
        }
        for contender in contenders {
            self.compared(&format!("{backend} {}", contender.name), contender.generator.take_tally());
        }
        Ok(())
    }

    /// Measures the distance of the two cores while all contenders rest.
    fn add_distance(&mut self, series: &str, sessions: usize) {
        if let Some(ns) = distance::measure(self.cores) {
            self.results.add(format!("{series}.apart"), DISTANCE, sessions, ns);
        }
    }

    fn rates<F: FramePort>(
        &mut self,
        extent: &Extent<'_>,
        direction: Direction,
        contenders: &mut [Contender<'_, F>],
    ) -> anyhow::Result<()> {
        for size in extent.sizes.iter().copied() {
            self.add_distance(
                &format!("{}.cores.{}.{size}", extent.backend, direction.name()),
                extent.sessions,
            );
            for at in order(contenders.len()) {
                let contender = &mut contenders[at];
                if !contender.generator.fits(size) {
                    continue;
                }
                let (control, time) = (contender.control, self.plan.frame_sample / 2);
                let mut readings = Vec::new();
                let mut limit = || {
                    readings.push(control.reading()?);
                    Ok(())
                };
                let rate =
                    contender.turn(|generator| generator.flood((direction, size), time, &mut limit))?;
                let series = format!("{}.{}.{}.{size}", extent.backend, contender.name, direction.name());
                self.results.add(format!("{series}.mpps"), MPPS, extent.sessions, rate / 1e6);
                if let [Some(before), Some(after)] = readings[..]
                    && let Some(ns) = after.ns_since(before)
                {
                    self.results.add(format!("{series}.ns"), NS, extent.sessions, ns);
                }
            }
        }
        Ok(())
    }

    /// One-way times at 80 % of the contender's own rate, and of packets that are sent one at a time.
    fn one_way_times<F: FramePort>(
        &mut self,
        extent: &Extent<'_>,
        direction: Direction,
        contenders: &mut [Contender<'_, F>],
    ) -> anyhow::Result<()> {
        for contender in contenders {
            let whose = format!("{}.{}.{}", extent.backend, contender.name, direction.name());
            let rates = self.results.samples(&format!("{whose}.{}.mpps", extent.sizes[0]), extent.sessions);
            let most = 1e6 * median(rates);
            let time = self.plan.frame_sample;
            let load80 = contender.turn(|generator| generator.latency(direction, 0.8 * most, time))?;
            self.add_latency(&format!("{whose}.load80"), extent.sessions, &load80);
            contender.turn(|generator| self.low(&whose, direction, extent.sessions, generator))?;
        }
        Ok(())
    }

    /// One-way times of packets that are sent one at a time.
    pub(super) fn low<F: FramePort>(
        &mut self,
        whose: &str,
        direction: Direction,
        sessions: usize,
        generator: &mut Generator<F>,
    ) -> anyhow::Result<()> {
        let (count, pause) = self.plan.low;
        let low = generator.latency(direction, 1.0 / pause.as_secs_f64(), pause * count as u32)?;
        self.add_latency(&format!("{whose}.low"), sessions, &low);
        Ok(())
    }

    fn add_latency(&mut self, series: &str, sessions: usize, found: &Latency) {
        for (what, axes, value) in
            [("p50", US, found.p50), ("p99", US, found.p99), ("lost", SHARE, found.lost)]
        {
            if value.is_finite() {
                self.results.add(format!("{series}.{what}"), axes, sessions, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_taken_forwards_and_backwards() {
        assert_eq!(order(2).collect::<Vec<_>>(), [0, 1, 1, 0]);
    }
}
