//! Packets lost by load: the paper's Figure 16. The kernel makes packets of [`USERS`] users at random and sends them as the base
//! station ([`xdp::generate`]); programs at the anchors count and drop them. Loads are shares of the most that a contender forwards.

use anyhow::{bail, ensure};
use net::link::Links;
use net::time::{self, Duration};
use pktio::af_xdp::device::Device;
use pktio::bpf::{Link, SharedWords};
use pktio::xdp::Chain;
use xdp::generate::{FRAME, Generator};
use xdp::steer::Varied;

use super::frames::{self, FIRST_TEID, GW1, GW2, HEADERS};
use super::mirror::{Arrived, Mirror, Then};
use super::site::{CORE_LINKS, Contender, STATION_LINK, Site, Steering};
use super::{Figure, Run};
use crate::samples::{Axes, Results};

const MPPS: Axes = Axes { x: "", y: "packets forwarded at most", unit: "Mpps" };
const LOST: Axes = Axes { x: "load, % of the most", y: "packets lost", unit: "%" };
const PACKETS: Axes = Axes { x: "packets sent", y: "packets lost", unit: "" };
/// An interface of the base station's that carries nothing.
const SPARE: &str = "spare";
/// Diverted users.
pub(super) const USERS: u32 = 1024;
/// The share at which many packets must pass without loss.
const GOAL_PERCENT: usize = 90;
/// Packets per second until all users are known, which every contender can forward.
const SETTLING: f64 = 10_000.0;
/// Most loads that are tried for the maximum.
const STEPS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(20);
/// Frames that the generator gives to the driver at once.
const BATCH: u32 = 64;

/// Extent.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    /// Time of a sample.
    pub(super) time: Duration,
    pub(super) percents: Vec<usize>,
    /// Packets at [`GOAL_PERCENT`].
    pub(super) packets: u64,
}

impl Plan {
    pub(super) fn new(quick: bool) -> Plan {
        match quick {
            true => {
                Plan { rounds: 1, time: Duration::from_millis(150), percents: vec![50], packets: 300_000 }
            }
            false => Plan {
                rounds: 5,
                time: Duration::from_secs(1),
                percents: vec![30, 50, 60, 70, 80, 90, 95, 100],
                packets: 10_000_000,
            },
        }
    }
}

/// Packets of one call of the generator. Making its memory takes the kernel as long as some hundred packets; more than fit into the
/// contender's queue would be lost whatever their rate.
fn burst(contender: Contender) -> u32 {
    match contender {
        Contender::Wire | Contender::Xdp => 8192,
        Contender::Host => 512,
        // Its sockets have room for some forty.
        Contender::Ovs => 16,
    }
}

/// A site with a generator and counting anchors.
struct Line<'a> {
    site: &'a mut Site,
    generator: Generator,
    interface: u32,
    anchors: [Mirror; 2],
    burst: u32,
    _chain: std::sync::Arc<Chain>,
    _ready: Link,
}

/// What became of packets.
struct Passed {
    sent: u64,
    arrived: u64,
    /// While they were sent.
    seconds: f64,
}

/// Measures all sites but the wire.
///
/// # Errors
/// This build has no programs; packets do not pass.
pub(super) fn run(run: &mut Run, sites: &mut [Site]) -> anyhow::Result<()> {
    ensure!(xdp::programs::BUILT, "left out: this build has no XDP programs (`make bench` with clang)");
    let sequence = SharedWords::new(8)?;
    let steering = sites.iter_mut().filter(|site| site.contender != Contender::Wire);
    let mut lines = steering.map(|site| Line::start(site, &sequence)).collect::<anyhow::Result<Vec<_>>>()?;
    let plan = run.plan.loss.clone();
    for round in 0..plan.rounds {
        run.add_distance();
        for line in &mut lines {
            let mut modes = line.site.contender.modes(USERS);
            if round % 2 == 1 {
                modes.reverse();
            }
            for steering in modes {
                line.turn(run, &plan, steering, round)?;
            }
        }
    }
    Ok(())
}

impl<'a> Line<'a> {
    fn start(site: &'a mut Site, sequence: &SharedWords) -> anyhow::Result<Line<'a>> {
        let frame = frames::uplink(site.uplink(), FIRST_TEID, FRAME - HEADERS, false)?;
        let Ok(frame) = <[u8; FRAME]>::try_from(frame) else { bail!("a frame of {FRAME} octets") };
        let varied = Varied { sequence, first: FIRST_TEID, mask: USERS - 1 };
        let generator = Generator::new(frame, &varied)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { Links::in_ns(&site.station)?.add_veth(SPARE, "peer", &site.core).await })?;
        let attach = || -> anyhow::Result<_> {
            let interface = Device::find(STATION_LINK)?.index;
            let ready = generator.hold_ready(Device::find(SPARE)?.index)?;
            Ok((interface, Chain::attach(interface)?, ready))
        };
        let (interface, chain, ready) = site.station.enter(attach)??;
        let anchor =
            |at: usize, own| Mirror::start(&site.core, site.core_index(CORE_LINKS[at])?, own, Then::Drop);
        let (anchors, burst) = ([anchor(0, GW1)?, anchor(1, GW2)?], burst(site.contender));
        Ok(Line { site, generator, interface, anchors, burst, _chain: chain, _ready: ready })
    }

    /// The most, loads, and in the first round many packets at a high load through our switch.
    fn turn(&mut self, run: &mut Run, plan: &Plan, steering: Steering, round: usize) -> anyhow::Result<()> {
        let (name, mode) = (self.site.contender.name(), steering.name());
        run.progress.say(&format!("loss: {name}, steering {mode}, round {round}"));
        self.site.set(steering)?;
        self.settle(steering)?;
        let (before, steered) = (self.arrived(), self.site.steered()?);
        let series = |what: &str| format!("loss.{name}.{mode}.{what}");
        let most = self.most(steering, plan.time)?;
        run.results.add(series("mpps"), MPPS, 0, most / 1e6);
        for percent in plan.percents.iter().copied() {
            let rate = most * percent as f64 / 100.0;
            let passed = self.pass(steering, Some(rate), plan.time, u64::MAX)?;
            // A load that the generator does not make is none.
            if passed.sent as f64 > 0.95 * rate * passed.seconds {
                run.results.add(
                    series("lost"),
                    LOST,
                    percent,
                    100.0 * passed.lost() as f64 / passed.sent as f64,
                );
            }
        }
        if round == 0 && steering != Steering::Off && self.site.contender != Contender::Ovs {
            let rate = most * GOAL_PERCENT as f64 / 100.0;
            let passed = self.pass(steering, Some(rate), Duration::MAX, plan.packets)?;
            run.results.add(series("at_90pct"), PACKETS, passed.sent as usize, passed.lost() as f64);
            run.results.add(series("at_90pct.mpps"), MPPS, 0, passed.sent as f64 / passed.seconds / 1e6);
        }
        self.judge(run, steering, before, steered)
    }

    /// Packets per second that arrive at most.
    fn most(&self, steering: Steering, time: Duration) -> anyhow::Result<f64> {
        let rate = |rate| -> anyhow::Result<f64> {
            let passed = self.pass(steering, rate, time, u64::MAX)?;
            Ok(passed.arrived as f64 / passed.seconds)
        };
        let mut most = rate(None)?;
        // One that is flooded may forward less than it could: it competes with what is thrown away.
        for _ in 0..STEPS {
            let more = rate(Some(1.3 * most))?;
            if more < 1.03 * most {
                break;
            }
            most = more;
        }
        Ok(most)
    }

    /// Every packet that arrived was at the right anchor, and was steered if that is on.
    fn judge(
        &self,
        run: &mut Run,
        steering: Steering,
        before: [Arrived; 2],
        steered: u64,
    ) -> anyhow::Result<()> {
        let name = self.site.contender.name();
        let now = self.arrived();
        let right = now[steering.anchor()].own - before[steering.anchor()].own;
        let all: u64 = now.iter().map(|arrived| arrived.own + arrived.other).sum::<u64>()
            - before.iter().map(|arrived| arrived.own + arrived.other).sum::<u64>();
        run.count(&format!("packets of loads that {name} brought to the wrong anchor"), all - right);
        if steering != Steering::Off {
            let more = self.site.wait_for_steered(steered + right)? - steered;
            run.count(&format!("packets of loads that {name} did not steer"), right.saturating_sub(more));
        }
        Ok(())
    }

    fn arrived(&self) -> [Arrived; 2] {
        [self.anchors[0].arrived(), self.anchors[1].arrived()]
    }

    /// Waits until packets of all users arrive, and go by XDP if that is the contender.
    fn settle(&self, steering: Steering) -> anyhow::Result<()> {
        let start = time::now_std();
        loop {
            let before = self.site.in_xdp();
            let passed = self.pass(steering, Some(SETTLING), Duration::from_millis(300), u64::MAX)?;
            let in_xdp = before.zip(self.site.in_xdp()).map(|(before, now)| now - before);
            let enough = passed.lost() * 100 <= passed.sent;
            if enough && in_xdp.is_none_or(|packets| packets == passed.arrived) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let (name, Passed { sent, arrived, .. }) = (self.site.contender.name(), passed);
                bail!("{name}: {arrived} of {sent} packets arrive, by XDP: {in_xdp:?}");
            }
        }
    }

    /// Sends for some time or so many packets, at a rate or as fast as can be.
    fn pass(
        &self,
        steering: Steering,
        rate: Option<f64>,
        time: Duration,
        most: u64,
    ) -> anyhow::Result<Passed> {
        let anchor = &self.anchors[steering.anchor()];
        let before = anchor.arrived().own;
        // At low rates a burst is a few milliseconds at most.
        let burst = rate.map_or(self.burst, |rate| self.burst.min((rate / 500.0) as u32).max(1));
        let send = || -> anyhow::Result<(u64, f64)> {
            let (start, mut sent) = (time::now_std(), 0);
            let step = rate.map(|rate| Duration::from_secs_f64(f64::from(burst) / rate));
            let mut due = start;
            while sent < most && start.elapsed() < time {
                if let Some(step) = step {
                    // Time without the core is lost: to catch up would be another load.
                    due = due.max(time::now_std() - step);
                    while time::now_std() < due {
                        std::hint::spin_loop();
                    }
                    due += step;
                }
                self.generator.send(self.interface, burst, burst.min(BATCH))?;
                sent += u64::from(burst);
            }
            Ok((sent, start.elapsed().as_secs_f64()))
        };
        let (sent, mut seconds) = self.site.station.enter(send)??;
        if let Some(rate) = rate {
            // The last burst has its time as well.
            seconds = seconds.max(sent as f64 / rate);
        }
        // Those that wait in queues.
        let mut arrived = anchor.arrived().own;
        loop {
            time::sleep_thread(Duration::from_millis(30));
            let now = anchor.arrived().own;
            if now == arrived {
                break;
            }
            arrived = now;
        }
        Ok(Passed { sent, arrived: arrived - before, seconds })
    }
}

impl Passed {
    fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.arrived)
    }
}

/// The paper loses nothing below 600 Mbit/s.
pub(super) fn summarise(results: &Results, figure: Figure<'_>) {
    for contender in Contender::STEERING {
        let name = contender.name();
        let of = |mode: &str, what: &str| format!("loss.{name}.{mode}.{what}");
        for mode in ["off", "on"] {
            figure(&format!("mpps_max_{name}_{mode}"), results.median(&of(mode, "mpps"), 0), None);
        }
        let lost = of("on", "at_90pct");
        let lost = results.places(&lost).into_iter().map(|sent| (sent, results.median(&lost, sent)));
        for (sent, lost) in lost {
            figure(&format!("lost_at_90pct_{name}"), lost, None);
            figure(&format!("sent_at_90pct_{name}"), Some(sent as f64), None);
        }
        figure(&format!("mpps_at_90pct_{name}"), results.median(&of("on", "at_90pct.mpps"), 0), None);
    }
}
