//! What is measured between two nodes: throughput by size, round trips, loss and jitter by load.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::bail;
use net::time::{self, Duration};
use path::{Graph, Ports};
use pktio::Vector;
use pktio::poll::Poller;

use super::ends::{Arrivals, Load, all};
use super::network::{PATIENCE, Way};
use super::packets::{Ue, ue_address};
use super::{GBIT, LOSS, LinkPlan, MPPS_BY_SIZE, Run, US_BY_LOAD, US_BY_SIZE};
use crate::machine;

/// What arrived while something was measured.
pub(crate) struct Passed {
    pub(crate) packets: u64,
    pub(crate) made: u64,
    pub(crate) seconds: f64,
}

impl Passed {
    /// Packets per second.
    pub(crate) fn rate(&self) -> f64 {
        self.packets as f64 / self.seconds
    }
}

/// Nodes through which packets flow, from a source that obeys `load` to ends that count them.
#[derive(Clone, Copy)]
pub(crate) struct Flow<'a> {
    pub(crate) load: &'a Load,
    pub(crate) arrivals: &'a [Arc<Arrivals>],
}

impl Flow<'_> {
    /// What passes at a rate in some time.
    pub(crate) fn pass(&self, rate: u64, size: usize, time: Duration) -> Passed {
        let (load, arrivals) = (self.load, self.arrivals);
        load.size.store(size as u64, Relaxed);
        load.rate.store(rate, Relaxed);
        // Neighbours, caches, and a change of the rate.
        time::sleep_thread(Duration::from_millis(20));
        let (packets, made, start) = (all(arrivals), load.made.load(Relaxed), time::now_std());
        time::sleep_thread(time);
        let made = load.made.load(Relaxed) - made;
        if rate != u64::MAX {
            load.rate.store(0, Relaxed);
            time::sleep_thread(Duration::from_millis(10));
        }
        let seconds = if rate == u64::MAX { start.elapsed().as_secs_f64() } else { time.as_secs_f64() };
        Passed { packets: all(arrivals) - packets, made, seconds }
    }

    /// No more packets.
    pub(crate) fn stop(&self) {
        self.load.rate.store(0, Relaxed);
        time::sleep_thread(Duration::from_millis(5));
    }

    /// Waits until packets pass.
    ///
    /// # Errors
    /// None does.
    pub(crate) fn begin(&self) -> anyhow::Result<()> {
        let start = time::now_std();
        while self.pass(1000, 64, Duration::from_millis(20)).packets < 10 {
            if start.elapsed() > PATIENCE {
                bail!("no packet arrives");
            }
        }
        Ok(())
    }

    /// Throughput by size, as `name` in the series.
    pub(crate) fn throughput<P>(&self, run: &mut Run<P>, name: &str, plan: &LinkPlan) {
        for size in plan.sizes.clone() {
            let rate = self.pass(u64::MAX, size, plan.time).rate();
            self.stop();
            run.results.add(format!("throughput.{name}.mpps"), MPPS_BY_SIZE, size, rate / 1e6);
            let bits = rate * size as f64 * 8.0;
            run.results.add(format!("throughput.{name}.gbit"), GBIT, size, bits / 1e9);
        }
    }

    /// Loss and jitter by load, as `name` in the series.
    pub(crate) fn loads<P>(&self, run: &mut Run<P>, name: &str, plan: &LinkPlan) {
        for load_kpps in plan.loads_kpps.clone() {
            self.arrivals.iter().for_each(|end| end.reset_jitter());
            let passed = self.pass(load_kpps as u64 * 1000, 64, plan.load_time);
            let lost = 1.0 - passed.packets as f64 / passed.made.max(1) as f64;
            run.results.add(format!("load.{name}.loss"), LOSS, load_kpps, lost.max(0.0) * 100.0);
            let longest = self.arrivals.iter().map(|end| end.longest_us()).fold(0.0, f64::max);
            run.results.add(format!("load.{name}.longest"), US_BY_LOAD, load_kpps, longest);
            // A load that the nodes do not make is none.
            if passed.made as f64 > 0.95 * load_kpps as f64 * 1000.0 * passed.seconds
                && let Some([p50, p99]) = self.arrivals.first().and_then(|end| end.jitter_us())
            {
                run.results.add(format!("load.{name}.jitter"), US_BY_LOAD, load_kpps, p50);
                run.results.add(format!("load.{name}.jitter_p99"), US_BY_LOAD, load_kpps, p99);
            }
        }
    }

    /// Packets that arrived otherwise than they were sent become a check.
    pub(crate) fn judge<P>(&self, run: &mut Run<P>, name: &str) {
        let wrong = self.arrivals.iter().map(|end| end.wrong.load(Relaxed)).sum();
        run.count(&format!("{name}: packets that arrived otherwise than they were sent"), wrong);
    }
}

/// The node that asks in round trips. The measuring thread runs it.
pub(crate) struct Asker<G> {
    pub(crate) core: usize,
    pub(crate) graph: G,
    pub(crate) ports: Ports,
    /// Interface by which answers come, and by which packets come that the node sends on.
    pub(crate) link: usize,
    pub(crate) end: usize,
    /// Whether it sleeps until the answer comes.
    pub(crate) sleeps: bool,
    /// TEID of the packets on F1-U; without one they are on `uu`.
    pub(crate) teid: Option<u32>,
    /// What has come back.
    pub(crate) arrivals: Arc<Arrivals>,
}

impl<G: Graph> Asker<G> {
    /// Round trips by size, one packet at a time, as `name` in the series.
    ///
    /// # Errors
    /// Packets do not come back.
    pub(crate) fn round_trips<P>(
        mut self,
        run: &mut Run<P>,
        name: &str,
        plan: &LinkPlan,
    ) -> anyhow::Result<()> {
        let mut poller = Poller::new()?;
        if let Some(fd) = self.ports[self.link].fd() {
            poller.add(fd, 0)?;
        }
        // As the engine's workers do, this node says when it sleeps.
        self.ports[self.link].before_sleep()?;
        machine::pin(&[self.core]);
        let mut ue = Ue::new(0, 64)?;
        for size in plan.sizes.clone() {
            // Sequence numbers go on from size to size.
            ue.resize(size)?;
            let mut times = Vec::with_capacity(plan.round_trips);
            let mut misses = 0;
            while times.len() < plan.round_trips {
                match self.round_trip(&mut ue, &mut poller)? {
                    Some(took_ns) => times.push(took_ns as f64 / 1000.0),
                    None => {
                        misses += 1;
                        if misses > 50 {
                            bail!("packets do not come back");
                        }
                    }
                }
                // Both nodes have gone to sleep if they do.
                let pause = time::now_ns() + plan.pause_ns;
                while time::now_ns() < pause {
                    std::hint::spin_loop();
                }
            }
            // The first ones find neither neighbours nor warm caches.
            let times = &times[times.len() / 10..];
            for (quantile, share) in [("p50", 0.5), ("p99", 0.99)] {
                let value = crate::stats::quantile(times, share);
                run.results.add(format!("rtt.{name}.{quantile}"), US_BY_SIZE, size, value);
            }
        }
        Flow { load: &Load::default(), arrivals: &[self.arrivals] }.judge(run, name);
        Ok(())
    }

    /// Nanoseconds of a round trip, unless the packet is lost.
    fn round_trip(&mut self, ue: &mut Ue, poller: &mut Poller) -> anyhow::Result<Option<u64>> {
        let mut message = Vec::new();
        let from = match self.teid {
            Some(teid) => {
                ue.next_on_f1u(teid, &mut message)?;
                super::packets::upf()
            }
            None => {
                ue.next(&mut message)?;
                ue_address(0)
            }
        };
        let (mut out, mut taken) = (Vector::of(self.graph.home()), Vector::of(self.graph.home()));
        out.push(&message, from);
        let before = self.arrivals.packets.load(Relaxed);
        let start = time::now_ns();
        self.graph.process(self.end, &mut out, start, &mut self.ports);
        let came = loop {
            if self.sleeps {
                self.ports[self.link].before_sleep()?;
                poller.wait(Some(100), |_| ())?;
            }
            if self.ports[self.link].receive(&mut taken)? > 0 {
                self.graph.process(self.link, &mut taken, time::now_ns(), &mut self.ports);
                taken.clear();
            }
            if self.arrivals.packets.load(Relaxed) > before {
                break true;
            }
            if time::now_ns() - start > 100_000_000 {
                break false;
            }
        };
        let took = time::now_ns() - start;
        self.graph.turn(time::now_ns(), &mut self.ports);
        Ok(came.then_some(took))
    }
}

/// The jitter of a thread that only looks at the clock: what this machine adds to any measurement. Median and 99th percentile, in
/// microseconds.
pub(crate) fn spinner(time: Duration) -> [f64; 2] {
    const EVERY_NS: u64 = 10_000;
    let (start, mut due, mut before, mut jitter) = (time::now_ns(), time::now_ns(), None, 0_u64);
    let mut values = Vec::new();
    while due - start < time.as_nanos() as u64 {
        due += EVERY_NS;
        while time::now_ns() < due {
            std::hint::spin_loop();
        }
        let late = time::now_ns() - due;
        if let Some(before) = before.replace(late) {
            jitter = jitter + late.abs_diff(before) - (jitter + 8) / 16;
            values.push(jitter as f64 / 16.0 / 1000.0);
        }
    }
    [0.5, 0.99].map(|quantile| crate::stats::quantile(&values, quantile))
}

/// Records the spinner's jitter.
pub(crate) fn idle<P>(run: &mut Run<P>, time: Duration) {
    let [p50, p99] = spinner(time);
    run.results.add("spinner.jitter".to_owned(), US_BY_LOAD, 0, p50);
    run.results.add("spinner.jitter_p99".to_owned(), US_BY_LOAD, 0, p99);
}

/// The figures of a link, whose names begin with `link`.
pub(crate) fn summarise(
    link: &str,
    results: &crate::samples::Results,
    experiment: &mut crate::result::Experiment,
) {
    let mut figure = |name: String, value: Option<f64>| {
        if let Some(value) = value {
            experiment.ratios.insert(format!("{link}_{name}"), value);
        }
    };
    for (way, name) in [(Way::Memif, ""), (Way::AfXdp, "_veth")] {
        let series = |what: &str, way: Way| format!("throughput.{}.{what}", way.name());
        for size in [64, 256] {
            let gain = results.ratio(&series("mpps", way), &series("mpps", Way::Batched), size);
            figure(format!("throughput_{size}b_gain{name}_pct"), gain.map(|gain| (gain - 1.0) * 100.0));
        }
        for quantile in ["p50", "p99"] {
            let series = |way: Way| format!("rtt.{}.{quantile}", way.name());
            let ratio = results.ratio(&series(way), &series(Way::Batched), 64);
            figure(format!("rtt_{quantile}_reduction{name}_pct"), ratio.map(|ratio| (1.0 - ratio) * 100.0));
        }
        let of = |what: &str| format!("load.{}.{what}", way.name());
        let loads = results.places(&of("jitter_p99"));
        let worst = loads.iter().filter_map(|load| results.median(&of("jitter_p99"), *load)).reduce(f64::max);
        figure(format!("jitter_p99{name}_us"), worst);
        // The backend's limit: the highest load below nine tenths of what passes at most.
        let most = results.median(&series("mpps", way), 64).map(|mpps| mpps * 900.0);
        let limit = most.and_then(|most| loads.into_iter().rfind(|load| *load as f64 <= most));
        figure(format!("loss_at_limit{name}"), limit.and_then(|load| results.mean(&of("loss"), load)));
    }
    figure("jitter_p99_spinner_us".to_owned(), results.median("spinner.jitter_p99", 0));
}

/// Fails unless packets of all sizes have passed by all ways, and come back, as they must.
#[cfg(test)]
pub(crate) fn assert_all_passed(experiment: &crate::result::Experiment) {
    let failed: Vec<_> = experiment.checks.iter().filter(|check| !check.ok).collect();
    assert!(failed.is_empty(), "{failed:?}");
    for way in Way::ALL.map(Way::name) {
        for series in [format!("throughput.{way}.mpps"), format!("rtt.{way}.p50")] {
            let found = experiment.series.iter().find(|found| found.name == series);
            let points = &found.unwrap_or_else(|| panic!("{series} is missing")).points;
            assert_eq!(points.len(), 2, "{series}");
            assert!(points.iter().flat_map(|point| &point.samples).all(|sample| *sample > 0.0), "{series}");
        }
    }
}
