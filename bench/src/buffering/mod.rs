//! `buffering`: what happens to a steady downlink flow while its UE is idle and while it moves to another gNB.
//!
//! A whole UPF across namespaces with one session. Situations, each a run of its own: `idle` (the FAR says buffer and
//! notify; later forward), `handover` (the same, and forward to another gNB), `path_switch` (forward to another gNB at
//! once, with an End Marker to the old one), `overflow` (idle for longer than the bound allows: what is held must be the
//! oldest, in order, the rest counted). Goals: nothing lost, duplicated or out of order within the bound. Packets of all sizes
//! come in turn, and every one is compared octet by octet at the gNBs.
//!
//! On a busy machine the CP function may get its turn so late that the bound is exceeded where it should not be: 250 packets
//! are 12 ms at 20,000 packets per second. Such a run tells nothing about the UPF that `overflow` does not. It is recognised by
//! what was held ([`Record::filled`]), counted and repeated.

mod flow;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::bail;
use net::time::{self, Duration};
use pfcp::message::SessionModificationRequest;
use pfcp::{
    ApplyAction, BarId, CreateBar, DestinationInterface, FarId, OuterHeaderCreation, SmReqFlags, UpdateFar,
    UpdateForwardingParameters,
};

use crate::Options;
use crate::machine::{self, Awake};
use crate::plot::Panel;
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};
use crate::stats::quantile;
use crate::upf::client::Client;
use crate::upf::contents::Tally;
use crate::upf::network::Network;
use crate::upf::subscriber::Subscriber;
use crate::upf::under_test::UnderTest;
use crate::upf::world;
use flow::{Flow, Record, Wrongs, gnbs, teids};

/// Packets that the session's BAR allows the UPF to buffer.
const BOUND: u8 = 250;
/// How often a run is repeated in which the CP function came so late that the bound was exceeded.
const REPETITIONS: usize = 10;
/// Time before and after the measured event.
const AROUND: Duration = Duration::from_millis(40);

const PACKETS: Axes = Axes { x: "packets per second", y: "packets", unit: "1" };
const US: Axes = Axes { x: "packets per second", y: "time", unit: "us" };

/// What happens to the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Situation {
    Idle,
    Handover,
    PathSwitch,
    Overflow,
}

impl Situation {
    const ALL: [Situation; 4] =
        [Situation::Idle, Situation::Handover, Situation::PathSwitch, Situation::Overflow];

    fn name(self) -> &'static str {
        match self {
            Situation::Idle => "idle",
            Situation::Handover => "handover",
            Situation::PathSwitch => "path_switch",
            Situation::Overflow => "overflow",
        }
    }

    /// How long packets are buffered at this rate: until half of the bound is used, or for twice the bound.
    fn hold(self, rate: f64) -> Duration {
        let packets = match self {
            Situation::PathSwitch => return Duration::ZERO,
            Situation::Overflow => 2.0 * f64::from(BOUND),
            _ => 0.5 * f64::from(BOUND),
        };
        Duration::from_secs_f64((packets / rate).clamp(0.002, 0.5))
    }
}

/// Instants of a run, on the flow's clock.
#[derive(Clone, Copy, Debug)]
struct Moments {
    /// When the CP function asked the UPF to buffer.
    asked: Option<Instant>,
    /// When the CP function sent the new path.
    released: Instant,
    /// When the UPF confirmed it.
    confirmed: Instant,
    /// When the downlink data report arrived.
    notified: Option<Instant>,
}

/// Runs the experiment.
///
/// # Errors
/// No right to make namespaces, or the UPF does not work.
pub fn run(options: &Options) -> anyhow::Result<Experiment> {
    let (rounds, rates): (usize, &[f64]) = match options.quick {
        true => (5, &[1000.0, 10_000.0]),
        // At 20,000 the bound lasts for 12 ms. Much faster, a CP function that waits for a core (4 ms) exceeds it.
        false => (30, &[1000.0, 10_000.0, 20_000.0]),
    };
    let mut experiment = Experiment::new("buffering", options.quick);
    experiment.param("rounds", rounds);
    experiment.param("bound_packets", BOUND);
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    let awake = Awake::new();
    experiment.param("awake", awake.is_ok());
    let cores = machine::cores();
    let [core, others @ ..] = cores.as_slice() else { bail!("no core to measure on") };
    machine::pin(&[*core]);
    let mut progress = Progress::new("buffering");
    let mut results = Results::default();
    let network = Network::build()?;
    let upf = UnderTest::start(&network.upf, world::config(16)?, others.first().copied().unwrap_or(*core))?;
    let mut client = Client::associate(&network.gnb)?;
    let [first, _] = gnbs();
    let mut request = Subscriber(0).request(first);
    request.create_bar =
        Some(CreateBar { bar_id: BarId(1), suggested_packets: Some(BOUND.into()), ..Default::default() });
    request.create_fars[1].bar_id = Some(BarId(1));
    let (established, _) = client.establish(std::iter::once(request))?;
    let Some(session) = established.first().copied() else { bail!("no session") };
    let mut flow = Flow::new(&network)?;
    let (mut failures, mut tally, mut late): (Vec<String>, Tally, usize) = Default::default();
    for round in 0..=rounds {
        for situation in Situation::ALL {
            for rate in rates {
                progress.say(&format!("{}, {rate} packets per second, round {round}", situation.name()));
                for repetition in 0..=REPETITIONS {
                    let before = overflowed(&upf);
                    let (mut record, moments) = once(&mut flow, &mut client, session.seid, situation, *rate)?;
                    tally.add(std::mem::take(&mut record.tally));
                    let overflow = overflowed(&upf) - before;
                    if repetition < REPETITIONS && is_late(&record, situation, overflow) {
                        late += 1;
                        continue;
                    }
                    // The first round finds no neighbours yet.
                    if round > 0 {
                        add(&mut results, &record, &moments, situation, *rate);
                        failures.extend(judge(&record, situation, *rate, overflow));
                    }
                    break;
                }
            }
        }
    }
    drop(client);
    upf.stop()?;
    experiment.param("runs_repeated_for_a_late_cp_function", late);
    for situation in Situation::ALL {
        let name = situation.name();
        let found: Vec<&str> =
            failures.iter().map(String::as_str).filter(|of| of.starts_with(name)).collect();
        let detail = match found.first() {
            None => format!("{} runs", rounds * rates.len()),
            Some(first) => format!("{} of {} runs; {first}", found.len(), rounds * rates.len()),
        };
        experiment.check(name, found.is_empty(), detail);
    }
    let (ok, detail) = tally.judge();
    experiment.check("packets arrive octet by octet", ok, detail);
    summarise(&results, rates, &mut experiment);
    experiment.series = results.into_series();
    Ok(experiment)
}

/// Packets that the UPF dropped because a buffer was full.
fn overflowed(upf: &UnderTest) -> u64 {
    let drops = &upf.stats()["drops"];
    drops["buffer_overflow"].as_u64().unwrap_or(0) + drops["buffer_unavailable"].as_u64().unwrap_or(0)
}

/// One run: the flow runs on a thread of its own, the CP function on this one.
fn once(
    flow: &mut Flow,
    client: &mut Client,
    seid: u64,
    situation: Situation,
    rate: f64,
) -> anyhow::Result<(Record, Moments)> {
    let epoch = time::now_std();
    let stop = AtomicBool::new(false);
    let mut record = Record::default();
    // Reserved at the start, so that the flow does not wait for memory.
    let seconds = (3 * AROUND + situation.hold(rate)).as_secs_f64() + 0.2;
    record.arrivals.reserve((seconds * rate) as usize);
    // Each run begins at the first gNB.
    client.modify(seid, forward(0, false))?;
    client.reports.clear();
    let moments = std::thread::scope(|scope| {
        let running = scope.spawn(|| flow.run(rate, epoch, &stop, &mut record));
        let moments = control(client, seid, situation, rate);
        stop.store(true, Relaxed);
        match running.join() {
            Ok(result) => result.and(moments),
            Err(_) => bail!("the flow ended by a panic"),
        }
    })?;
    record.origin_ns = (moments.released - epoch).as_nanos() as u64;
    Ok((record, moments))
}

/// The actions of the CP function during the run.
fn control(client: &mut Client, seid: u64, situation: Situation, rate: f64) -> anyhow::Result<Moments> {
    time::sleep_thread(AROUND);
    let mut asked = None;
    if situation != Situation::PathSwitch {
        asked = Some(time::now_std());
        client.modify(seid, buffer())?;
        let until = time::now_std() + situation.hold(rate);
        while time::now_std() < until {
            client.turn(Duration::from_millis(1))?;
        }
    }
    let moves = matches!(situation, Situation::Handover | Situation::PathSwitch);
    let released = time::now_std();
    let confirmed = client.modify(seid, forward(usize::from(moves), situation == Situation::PathSwitch))?;
    time::sleep_thread(2 * AROUND);
    Ok(Moments { asked, released, confirmed, notified: client.reports.first().copied() })
}

/// A modification after which the FAR of downlink packets buffers and notifies.
fn buffer() -> SessionModificationRequest {
    let far = UpdateFar {
        far_id: FarId(2),
        apply_action: Some(ApplyAction::BUFF | ApplyAction::NOCP),
        ..Default::default()
    };
    SessionModificationRequest { update_fars: vec![far], ..Default::default() }
}

/// A modification after which the FAR forwards to a gNB, with or without an End Marker to the previous one.
fn forward(gnb: usize, end_marker: bool) -> SessionModificationRequest {
    let teid = teids()[gnb];
    let parameters = UpdateForwardingParameters {
        destination_interface: Some(DestinationInterface::Access),
        outer_header_creation: Some(OuterHeaderCreation::gtpu(teid, gnbs()[gnb].ip())),
        sm_req_flags: end_marker.then_some(SmReqFlags::SNDEM),
        ..Default::default()
    };
    let far = UpdateFar {
        far_id: FarId(2),
        apply_action: Some(ApplyAction::FORW),
        update_forwarding_parameters: Some(Box::new(parameters)),
        ..Default::default()
    };
    SessionModificationRequest { update_fars: vec![far], ..Default::default() }
}

/// Adds a run's samples.
fn add(results: &mut Results, record: &Record, moments: &Moments, situation: Situation, rate: f64) {
    let x = rate as usize;
    let mut put = |what: &str, axes, sample: f64| {
        if sample.is_finite() {
            results.add(format!("{}.{what}", situation.name()), axes, x, sample);
        }
    };
    let Wrongs { lost, duplicated, reordered } = record.wrongs();
    put("lost", PACKETS, f64::from(lost));
    put("duplicated", PACKETS, f64::from(duplicated));
    put("reordered", PACKETS, f64::from(reordered));
    let us = |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as f64 / 1e3;
    put("modification", US, us(moments.released, moments.confirmed));
    if let (Some(asked), Some(notified)) = (moments.asked, moments.notified) {
        put("notification", US, us(asked, notified));
    }
    let origin = record.origin_ns;
    let delay = |arrival: &flow::Arrival| (arrival.at_ns - arrival.sent_ns) as f64 / 1e3;
    let data = || record.arrivals.iter().filter(|arrival| arrival.sequence.is_some());
    let quiet: Vec<f64> = data().filter(|of| of.sent_ns < origin / 4).map(&delay).collect();
    let usual = quantile(&quiet, 0.5);
    put("usual_delay", US, usual);
    // Packets that were sent before the release and came after it were buffered.
    let released: Vec<f64> = data()
        .filter(|of| of.sent_ns < origin && of.at_ns >= origin)
        .map(|of| (of.at_ns - origin) as f64 / 1e3)
        .collect();
    if !released.is_empty() && situation != Situation::PathSwitch {
        put("first_released", US, quantile(&released, 0.0));
        put("last_released", US, quantile(&released, 1.0));
    }
    let after: Vec<f64> = data().filter(|of| of.sent_ns >= origin).map(|of| delay(of) - usual).collect();
    put("added_delay_p50", US, quantile(&after, 0.5).max(0.0));
    put("added_delay_p99", US, quantile(&after, 0.99).max(0.0));
}

/// Whether packets were lost in a run that should stay within the bound, and only because the CP function released them so
/// late that the bound was exceeded.
fn is_late(record: &Record, situation: Situation, overflow: u64) -> bool {
    let Wrongs { lost, duplicated, reordered } = record.wrongs();
    let exceeded = record.filled(BOUND.into()) && u64::from(lost) == overflow;
    situation != Situation::Overflow && exceeded && duplicated + reordered == 0
}

/// What a run did that it must not.
fn judge(record: &Record, situation: Situation, rate: f64, overflow: u64) -> Option<String> {
    let Wrongs { lost, duplicated, reordered } = record.wrongs();
    let say = |what: String| Some(format!("{} at {rate}/s: {what}", situation.name()));
    // Beyond the bound packets are lost, each counted.
    let missing =
        if situation == Situation::Overflow { u64::from(lost).abs_diff(overflow) } else { lost.into() };
    let others_lost = situation == Situation::Overflow && lost > 0 && !record.filled(BOUND.into());
    if others_lost {
        return say(format!("{lost} lost, other than those that came when {BOUND} were held"));
    }
    if missing + u64::from(duplicated + reordered) > 0 {
        return say(format!(
            "{lost} lost ({overflow} counted as such), {duplicated} twice, {reordered} out of order, of {}",
            record.sent
        ));
    }
    if situation == Situation::PathSwitch {
        let old: Vec<_> = record.at(0).collect();
        let markers = old.iter().filter(|arrival| arrival.sequence.is_none()).count();
        if markers != 1 || old.last().is_some_and(|last| last.sequence.is_some()) {
            return say(format!("{markers} End Markers, which must be one, behind the last packet"));
        }
    }
    None
}

/// The promised figures.
fn summarise(results: &Results, rates: &[f64], experiment: &mut Experiment) {
    for situation in Situation::ALL {
        let name = situation.name();
        for what in ["lost", "duplicated", "reordered"] {
            let worst =
                rates.iter().flat_map(|rate| results.samples(&format!("{name}.{what}"), *rate as usize));
            let worst = worst.copied().fold(0.0, f64::max);
            experiment.ratios.insert(format!("{name}_{what}_most"), worst);
        }
        for what in [
            "modification",
            "notification",
            "first_released",
            "last_released",
            "added_delay_p50",
            "added_delay_p99",
        ] {
            if let Some(us) = results.median(&format!("{name}.{what}"), 10_000) {
                experiment.ratios.insert(format!("{name}_{what}_us"), us);
            }
        }
    }
}

/// The plots of `buffering`.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let of = |title: &str, what: &str| {
        Panel::of(experiment, title, |name| Some(name.strip_suffix(what)?.strip_suffix('.')?.to_owned()))
    };
    let panels = [
        of("lost packets (the goal is none, but beyond the bound)", "lost"),
        of("from the release to the last packet that was buffered", "last_released"),
        of("added delay of packets after the release, 99th percentile", "added_delay_p99"),
        of("from the request to buffer to the report of downlink data", "notification"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
