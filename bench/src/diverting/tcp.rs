//! TCP up and down through a tunnel, by target rate, and the processor time of the switch alone: the paper's Figures 12 to 15.
//!
//! iperf3 runs in the base station's namespace as the user, and behind the anchors as the server, through TUN devices
//! ([`super::ends`]). Ends and programs are the same for all contenders, and cost more than most switches: so what a switch costs is
//! seen in its processor time rather than in the throughput.

use anyhow::{Context as _, bail};
use net::process::{Child, Command};
use net::time::{self, Duration};

use super::ends::{End, SERVER, USER};
use super::frames::{Ends, GW1, GW2, STATION};
use super::meter;
use super::site::{CORE_LINKS, Contender, STATION_LINK, Site, Steering};
use super::{Figure, Run};
use crate::machine;
use crate::samples::{Axes, Results};
use crate::stats::{self, median};

const MBIT: Axes = Axes { x: "target, Mbit/s (0: none)", y: "throughput", unit: "Mbit/s" };
const CPU: Axes = Axes { x: "target, Mbit/s (0: none)", y: "processor time of the switch", unit: "%" };
const PER_CPU: Axes =
    Axes { x: "target, Mbit/s (0: none)", y: "throughput by share of a core", unit: "Mbit/s per %" };
/// Place of what has no target.
const UNLIMITED: usize = 0;
/// Time for iperf3 beside its measurement.
const MARGIN: Duration = Duration::from_secs(10);
/// Pings before a turn.
const PINGS: u64 = 10;
/// Least share of a contender's packets in XDP: a few may pass while a tunnel is learned again.
const IN_XDP: f64 = 0.9;

/// Extent.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    pub(super) targets_mbit: Vec<usize>,
    /// Seconds with a target.
    pub(super) seconds: f64,
    /// The option of iperf3 for the extent without.
    pub(super) unlimited: [&'static str; 2],
}

impl Plan {
    pub(super) fn new(quick: bool) -> Plan {
        match quick {
            true => Plan { rounds: 1, targets_mbit: vec![50, 200], seconds: 0.15, unlimited: ["-n", "60M"] },
            false => Plan {
                rounds: 5,
                targets_mbit: vec![100, 300, 600, 1000, 1400],
                seconds: 0.6,
                unlimited: ["-t", "1"],
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Direction {
    const ALL: [Direction; 2] = [Direction::Up, Direction::Down];

    fn name(self) -> &'static str {
        if self == Direction::Up { "up" } else { "down" }
    }
}

/// A site with ends and a server.
struct Line<'a> {
    site: &'a mut Site,
    station: End,
    core: End,
    _server: Child,
}

/// Measures all sites.
///
/// # Errors
/// iperf3 is missing or fails; packets do not pass.
pub(super) fn run(run: &mut Run, sites: &mut [Site]) -> anyhow::Result<()> {
    // Ends and programs may use all cores, unlike the thread of other parts.
    machine::pin(&run.cores);
    let result = on_all_cores(run, sites);
    machine::pin(&run.two_cores()[..1]);
    result
}

fn on_all_cores(run: &mut Run, sites: &mut [Site]) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let mut lines = sites.iter_mut().map(Line::start).collect::<Result<Vec<_>, _>>()?;
    let _counting = meter::enable()?;
    let plan = run.plan.tcp.clone();
    for round in 0..plan.rounds {
        for line in &mut lines {
            let name = line.site.contender.name();
            let mut modes = line.site.contender.modes(1);
            if round % 2 == 1 {
                modes.reverse();
            }
            for steering in modes {
                run.progress.say(&format!("TCP: {name}, steering {}, round {round}", steering.name()));
                line.turn(run, &runtime, steering)
                    .with_context(|| format!("{name}, steering {}", steering.name()))?;
            }
        }
    }
    for line in &lines {
        let wrong = |end: &End| end.counts.wrong.load(std::sync::atomic::Ordering::Relaxed);
        let name = line.site.contender.name();
        run.count(
            &format!("packets of TCP that {name} changed or brought to the wrong end"),
            wrong(&line.station) + wrong(&line.core),
        );
    }
    Ok(())
}

impl Line<'_> {
    fn start(site: &mut Site) -> anyhow::Result<Line<'_>> {
        let down = |anchor: usize, source| Ends {
            macs: [site.macs[0], site.macs[1 + anchor]],
            source,
            destination: STATION,
        };
        let anchors = [(CORE_LINKS[0], down(0, GW1)), (CORE_LINKS[1], down(1, GW2))];
        let count = if site.contender == Contender::Wire { 1 } else { 2 };
        let station = End::start(&site.station, USER, SERVER, &[(STATION_LINK, site.uplink())])?;
        let core = End::start(&site.core, SERVER, USER, &anchors[..count])?;
        let null = std::process::Stdio::null;
        let server = Command::new("iperf3").args(["-s", "-B", &SERVER.to_string()]).namespace(&site.core);
        let server = server.stdout(null()).stderr(null()).spawn();
        let server = server.context("start iperf3 (`scripts/setup.sh bench` installs it)")?;
        Ok(Line { site, station, core, _server: server })
    }

    /// All rates in both directions, with or without steering.
    fn turn(
        &mut self,
        run: &mut Run,
        runtime: &tokio::runtime::Runtime,
        steering: Steering,
    ) -> anyhow::Result<()> {
        self.site.set(steering)?;
        self.core.turn_to(steering.anchor());
        runtime.block_on(self.settle())?;
        let plan = run.plan.tcp.clone();
        let (steered, in_xdp) = (self.site.steered()?, self.site.in_xdp());
        let links = if self.site.contender == Contender::Wire { 1 } else { 2 };
        let before: Vec<u64> = (0..links).map(|link| self.core.received(link)).collect();
        let down = self.station.received(0);
        for direction in Direction::ALL {
            // The wire is only a floor.
            let targets = if links == 1 { &[][..] } else { &plan.targets_mbit };
            for target in targets.iter().copied().chain([UNLIMITED]) {
                self.measure(run, runtime, (steering, direction, target))?;
            }
        }
        let name = self.site.contender.name();
        let arrived: Vec<u64> = before.iter().enumerate().map(|(at, n)| self.core.received(at) - n).collect();
        let own = arrived[steering.anchor()];
        let elsewhere: u64 = arrived.iter().sum::<u64>() - own;
        run.count(&format!("packets of TCP that {name} brought to the wrong anchor"), elsewhere);
        if steering != Steering::Off {
            let more = self.site.wait_for_steered(steered + own)? - steered;
            run.count(&format!("packets of TCP that {name} did not steer"), own.saturating_sub(more));
        }
        if let (Some(before), Some(now)) = (in_xdp, self.site.in_xdp()) {
            let all = own + self.station.received(0) - down;
            let share = (now - before) as f64 / all.max(1) as f64;
            if share < IN_XDP {
                run.check("TCP by XDP", false, format!("{:.0} % of {all} packets", share * 100.0));
            }
        }
        Ok(())
    }

    /// Waits until packets pass both ways, and by XDP if that is the contender.
    async fn settle(&self) -> anyhow::Result<()> {
        let start = time::now_std();
        let server = SERVER.to_string();
        loop {
            let before = self.site.in_xdp();
            let ping =
                Command::new("ping").args(["-c", &PINGS.to_string(), "-i", "0.01", "-W", "1", &server]);
            let output = ping.namespace(&self.site.station).output(MARGIN).await?;
            let in_xdp = before.zip(self.site.in_xdp()).map(|(before, now)| now - before);
            let all = String::from_utf8_lossy(&output.stdout).contains(" 0% packet loss");
            // There and back.
            if all && in_xdp.is_none_or(|packets| packets >= 2 * PINGS) {
                return Ok(());
            }
            if start.elapsed() > MARGIN {
                bail!("the server does not answer the user's pings, by XDP: {in_xdp:?}");
            }
        }
    }

    fn measure(
        &self,
        run: &mut Run,
        runtime: &tokio::runtime::Runtime,
        (steering, direction, target): (Steering, Direction, usize),
    ) -> anyhow::Result<()> {
        let before = self.site.meter.read()?;
        let Passed { octets, seconds } = runtime.block_on(self.iperf(&run.plan.tcp, direction, target))?;
        let used = self.site.meter.read()?.since(before).as_secs_f64();
        let (mbit, share) = (octets * 8.0 / 1e6, 100.0 * used / seconds);
        let (name, mode) = (self.site.contender.name(), steering.name());
        let series = |what: &str| format!("tcp.{name}.{mode}.{}.{what}", direction.name());
        run.results.add(series("mbit"), MBIT, target, mbit / seconds);
        if self.site.contender != Contender::Wire {
            run.results.add(series("cpu"), CPU, target, share);
            run.results.add(series("per_cpu"), PER_CPU, target, mbit / (100.0 * used));
        }
        Ok(())
    }

    async fn iperf(&self, plan: &Plan, direction: Direction, target: usize) -> anyhow::Result<Passed> {
        let (server, start) = (SERVER.to_string(), time::now_std());
        let extent = match target {
            UNLIMITED => plan.unlimited.map(str::to_owned),
            target => ["-n".to_owned(), format!("{:.0}", target as f64 * 1e6 / 8.0 * plan.seconds)],
        };
        loop {
            let mut ask = Command::new("iperf3").args(["-c", &server, "-J"]).args(&extent);
            if target != UNLIMITED {
                // What is sent last is not counted if the receiver is asked before it comes: blocks are small.
                ask = ask.args(["-b", &format!("{target}M"), "-l", "16K"]);
            }
            if direction == Direction::Down {
                ask = ask.arg("-R");
            }
            // A rate that is not reached takes longer.
            let limit = MARGIN + 10 * Duration::from_secs_f64(plan.seconds);
            let output = ask.namespace(&self.site.station).output(limit).await?;
            let answer: serde_json::Value =
                serde_json::from_slice(&output.stdout).context("iperf3's answer")?;
            if answer["error"].is_null() {
                let sum = &answer["end"]["sum_received"];
                let number = |name: &str| sum[name].as_f64().filter(|number| *number > 0.0);
                return Ok(Passed {
                    octets: number("bytes").context("iperf3 gives no rate")?,
                    seconds: number("seconds").context("iperf3 gives no time")?,
                });
            }
            // The server does not listen yet, or has not done with the last one.
            if start.elapsed() > limit {
                bail!("iperf3: {}", answer["error"]);
            }
            time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What the receiver has got.
struct Passed {
    octets: f64,
    seconds: f64,
}

/// The paper's figures are of Open vSwitch: Mbit/s without and with steering.
const PAPER_MBIT: [(Direction, [f64; 2]); 2] =
    [(Direction::Down, [1050.0, 1050.0]), (Direction::Up, [1050.0, 700.0])];
/// Its slopes of throughput over processor time, uplink, without and with steering; and the coefficient of correlation.
const PAPER_SLOPES: [f64; 2] = [10.88, 6.98];
const PAPER_R: [(Direction, f64); 2] = [(Direction::Down, 0.98), (Direction::Up, 0.99)];

pub(super) fn summarise(results: &Results, figure: Figure<'_>) {
    let name = |contender: Contender, mode: &str, direction: Direction, what: &str| {
        format!("tcp.{}.{mode}.{}.{what}", contender.name(), direction.name())
    };
    let ratio = |contender, direction, what| {
        let (on, off) = (name(contender, "on", direction, what), name(contender, "off", direction, what));
        results.ratio(&on, &off, UNLIMITED)
    };
    for (direction, [off, on]) in PAPER_MBIT {
        let way = direction.name();
        let wire = name(Contender::Wire, "off", direction, "mbit");
        figure(&format!("tcp_{way}_mbit_s_wire"), results.median(&wire, UNLIMITED), None);
        for contender in Contender::STEERING {
            let of_paper = |value: f64| (contender == Contender::Ovs).then_some(value);
            let suffix =
                if contender == Contender::Xdp { String::new() } else { format!("_{}", contender.name()) };
            let gain = ratio(contender, direction, "mbit");
            figure(&format!("tcp_{way}_vs_off{suffix}"), gain, of_paper(on / off));
            for (at, (mode, published)) in [("off", off), ("on", on)].into_iter().enumerate() {
                let of = |what: &str| name(contender, mode, direction, what);
                let end = format!("{}_{way}_{mode}", contender.name());
                let mbit = results.median(&of("mbit"), UNLIMITED);
                figure(&format!("tcp_mbit_s_{end}"), mbit, of_paper(published));
                let slope = (direction == Direction::Up).then_some(PAPER_SLOPES[at]);
                let per_cpu = results.median(&of("per_cpu"), UNLIMITED);
                figure(&format!("mbit_per_cpu_pct_{end}"), per_cpu, None);
                fits(results, &of, &end, slope.and_then(of_paper), direction, contender, figure);
            }
        }
    }
    let versus = |direction| {
        let of = |contender| name(contender, "on", direction, "per_cpu");
        results.ratio(&of(Contender::Xdp), &of(Contender::Ovs), UNLIMITED)
    };
    let lesser = versus(Direction::Up).zip(versus(Direction::Down)).map(|(up, down)| up.min(down));
    figure("mbit_per_cpu_pct_xdp_vs_ovs", lesser, None);
    for contender in Contender::STEERING {
        let published = (contender == Contender::Ovs).then_some(PAPER_SLOPES[1] / PAPER_SLOPES[0]);
        let kept = ratio(contender, Direction::Up, "per_cpu");
        figure(&format!("mbit_per_cpu_pct_vs_off_{}", contender.name()), kept, published);
    }
}

/// Straight lines through the medians: throughput over target (Figures 12 and 14) and over processor time (Figures 13 and 15).
fn fits(
    results: &Results,
    of: &impl Fn(&str) -> String,
    end: &str,
    slope: Option<f64>,
    direction: Direction,
    contender: Contender,
    figure: Figure<'_>,
) {
    let targets: Vec<usize> =
        results.places(&of("mbit")).into_iter().filter(|target| *target != UNLIMITED).collect();
    let at = |what: &str, target: usize| Some(median(results.samples(&of(what), target)));
    let by_target: Vec<(f64, f64)> =
        targets.iter().filter_map(|target| Some((*target as f64, at("mbit", *target)?))).collect();
    let by_cpu: Vec<(f64, f64)> =
        targets.iter().filter_map(|target| Some((at("cpu", *target)?, at("mbit", *target)?))).collect();
    let r = PAPER_R.into_iter().find(|(of, _)| *of == direction && contender == Contender::Ovs);
    for (over, points, published) in
        [("target", by_target, [None; 2]), ("cpu", by_cpu, [slope, r.map(|(_, r)| r)])]
    {
        let fit = stats::line(&points);
        figure(&format!("tcp_over_{over}_slope_{end}"), fit.map(|fit| fit.slope), published[0]);
        figure(&format!("tcp_over_{over}_offset_mbit_{end}"), fit.map(|fit| fit.offset), None);
        figure(&format!("tcp_over_{over}_r_{end}"), fit.map(|fit| fit.r), published[1]);
    }
}
