//! `procedures`: how long registration and session establishment take in the core, and how many it does per second.
//!
//! One core in one process, the simulator in another process on the same machine, no TUN devices. The
//! situations take turns, so that a busy moment of the machine affects all of them: one UE at a time; 100 UEs
//! at once; for the rate, UEs that only register, 100 at a time; and storms of 1,000 and 10,000 UEs that
//! register in the same moment. **Goodput** is the number of successful registrations divided by the time until
//! every UE has been answered. A UE that the AMF rejects in a storm with 5GMM cause #22 is not a failure, but
//! does not count as goodput either. The simulator shares the processor with the core, so goodput is that of
//! both. Core times are the AMF's own samples (`GET /procedures`): from the first N2 message in to the last one
//! out, less the time of waiting for UE and gNB. Goals and published values are in SPECIFICATION.md.

use std::collections::BTreeMap;

use anyhow::Context as _;
use lab::{Lab, SimulatorOptions};
use net::time::{self, Duration};

use crate::Options;
use crate::result::{Experiment, Point, Series};
use crate::stats::{median, quantile, short};

/// UEs at once in the crowd situation.
const CROWD: u32 = 100;
/// UEs that register in the same moment.
const STORMS: [u32; 2] = [1_000, 10_000];
/// Storms of a quick run, which must end within a minute.
const QUICK_STORMS: [u32; 1] = [1_000];
/// Least goodput of the largest storm, as a share of the best goodput in the same round.
const STORM_GOAL: f64 = 0.9;
/// Time limit of a round.
const ROUND_LIMIT: Duration = Duration::from_secs(120);
/// The procedures measured, as the AMF names them.
const PROCEDURES: [&str; 2] = ["registration", "pdu_session_establishment"];
/// Goals in milliseconds at one UE at a time, by procedure.
const GOALS_MS: [f64; 2] = [3.0, 1.5];

/// Samples by procedure and UEs at once, milliseconds.
type Samples = BTreeMap<(&'static str, u32), Vec<f64>>;

/// Runs the experiment.
///
/// # Errors
/// The network could not be built, or a simulation did not end.
pub async fn run(options: &Options) -> anyhow::Result<Experiment> {
    // The AMF keeps its last samples only, and each round ends with storms: it has those of four rounds.
    let (rounds, serial, rated) = if options.quick { (3, 100, 1000) } else { (4, 200, 3000) };
    let mut experiment = Experiment::new("procedures", options.quick);
    experiment.param("rounds", rounds);
    experiment.param("ues_one_at_a_time", serial);
    experiment.param("ues_at_once", CROWD);
    experiment.param("ues_for_rate", rated);
    experiment.param("nfs", "one process");
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });

    let storms = if options.quick { &QUICK_STORMS[..] } else { &STORMS[..] };
    let largest = storms.iter().copied().max().unwrap_or_default();
    let mut lab_options = lab::Options::new(rated.max(serial).max(largest))?;
    lab_options.log = "warn".to_owned();
    let mut network = Lab::start(lab_options).await?;
    // For the first UEs connections must be opened and caches filled, which is not to be measured.
    simulate(&network, 20, 10, "ipv4").await.context("warm up")?;
    let mut samples = Samples::new();
    let mut rates = Vec::new();
    let mut goodput: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let mut storm_ratios = Vec::new();
    let mut served: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let mut failed = 0;
    let mut wanted = 0;
    for _ in 0..rounds {
        for (ues, at_once) in [(serial, 1), (CROWD, CROWD)] {
            let before = procedures(&network).await?.len();
            let round = simulate(&network, ues, at_once, "ipv4").await?;
            failed += round.failed;
            wanted += u64::from(ues);
            collect(&procedures(&network).await?[before..], at_once, &mut samples);
        }
        let round = simulate(&network, rated, CROWD, "none").await?;
        failed += round.failed;
        let rate = round.rate();
        rates.push(rate);
        goodput.entry(CROWD).or_default().push(rate);
        let mut best = rate;
        let mut last = rate;
        for storm in storms {
            let round = simulate(&network, *storm, *storm, "none").await?;
            served.entry(*storm).or_default().push(round.registered as f64 / f64::from(*storm));
            last = round.rate();
            best = best.max(last);
            goodput.entry(*storm).or_default().push(last);
        }
        storm_ratios.push(last / best);
        network.check()?;
    }
    network.stop().await?;

    let of = |procedure: &'static str, at_once: u32| {
        samples.get(&(procedure, at_once)).cloned().unwrap_or_default()
    };
    for (procedure, goal) in PROCEDURES.into_iter().zip(GOALS_MS) {
        let points =
            [1, CROWD].map(|at_once| Point { x: f64::from(at_once), samples: of(procedure, at_once) });
        for point in &points {
            let (got, wanted) =
                (point.samples.len() as u64, u64::from(if point.x > 1.0 { CROWD } else { serial }));
            let detail = format!("{got} samples of {}", wanted * rounds);
            experiment.check(&format!("{procedure} at {} at once", point.x), got == wanted * rounds, detail);
        }
        let p50 = median(&points[0].samples);
        experiment.check(
            &format!("{procedure} goal"),
            p50 <= goal,
            format!("p50 {} ms, goal {goal} ms", short(p50)),
        );
        experiment.series.push(series(procedure, "core time", "ms", points.to_vec()));
    }
    experiment.check("procedures", failed == 0, format!("{failed} of {wanted} UEs and more failed"));
    ratios(&mut experiment, &of, &rates);
    let ratio = median(&storm_ratios);
    experiment.ratios.insert("storm_goodput_by_best".to_owned(), ratio);
    experiment.check(
        &format!("goodput with {largest} at once"),
        ratio >= STORM_GOAL,
        format!("{} of the best in its round, goal {STORM_GOAL}", short(ratio)),
    );
    let points = |samples: BTreeMap<u32, Vec<f64>>| -> Vec<Point> {
        samples.into_iter().map(|(at_once, samples)| Point { x: f64::from(at_once), samples }).collect()
    };
    experiment.series.push(series("goodput of registrations", "goodput", "1/s", points(goodput)));
    experiment.series.push(series("UEs registered in a storm", "registered, of all", "1", points(served)));
    let points = vec![Point { x: f64::from(CROWD), samples: rates }];
    experiment.series.push(series("registrations per second", "rate", "1/s", points));
    Ok(experiment)
}

/// A series over the number of UEs at once.
fn series(name: &str, y_label: &str, unit: &str, points: Vec<Point>) -> Series {
    Series {
        name: name.to_owned(),
        x_label: "UEs at once".to_owned(),
        y_label: y_label.to_owned(),
        unit: unit.to_owned(),
        points,
    }
}

/// The figures that SPECIFICATION.md promises, with those published for L25GC (SIGCOMM 2022).
fn ratios(experiment: &mut Experiment, of: &dyn Fn(&'static str, u32) -> Vec<f64>, rates: &[f64]) {
    let [registration, session] = PROCEDURES;
    for (name, procedure, at_once, q) in [
        ("registration_ms_p50", registration, 1, 0.5),
        ("registration_ms_p99", registration, 1, 0.99),
        ("registration_ms_p50_100", registration, CROWD, 0.5),
        ("registration_ms_p99_100", registration, CROWD, 0.99),
        ("session_ms_p50", session, 1, 0.5),
        ("session_ms_p99", session, 1, 0.99),
        ("session_ms_p50_100", session, CROWD, 0.5),
        ("session_ms_p99_100", session, CROWD, 0.99),
    ] {
        experiment.ratios.insert(name.to_owned(), quantile(&of(procedure, at_once), q));
    }
    experiment.ratios.insert("registrations_per_s".to_owned(), median(rates));
    for (name, value) in [("registration_ms_p50", 136.0), ("session_ms_p50", 77.0)] {
        experiment.published.insert(name.to_owned(), value);
    }
}

/// The simulator's report at the end of a round.
struct Round {
    registered: u64,
    failed: u64,
    elapsed_ms: f64,
}

impl Round {
    /// Successful registrations per second.
    fn rate(&self) -> f64 {
        self.registered as f64 / (self.elapsed_ms / 1e3)
    }
}

/// Has UEs register and establish a session, `at_once` of them at a time, and deregister.
async fn simulate(network: &Lab, ues: u32, at_once: u32, session: &str) -> anyhow::Result<Round> {
    let options = SimulatorOptions {
        ues,
        gnbs: 1,
        tun: false,
        session_type: session.to_owned(),
        arguments: vec!["--concurrency".to_owned(), at_once.to_string()],
        ..SimulatorOptions::default()
    };
    let mut simulator = network.simulate(&options)?;
    let ready = simulator.expect("ready", ROUND_LIMIT).await?;
    let number = |member: &str| ready.number(member).unwrap_or_default();
    let round = Round {
        registered: number("registered") as u64,
        failed: number("failed") as u64,
        elapsed_ms: number("elapsed_ms"),
    };
    simulator.stop().await?;
    // The next round must not start while contexts are still being removed.
    let deadline = time::now() + ROUND_LIMIT;
    while registered(network).await? > 0 && time::now() < deadline {
        time::sleep(Duration::from_millis(20)).await;
    }
    Ok(round)
}

/// Number of UEs that are registered with the AMF.
async fn registered(network: &Lab) -> anyhow::Result<u64> {
    let status = network.oam("amf", "GET", "/status").await?;
    Ok(status["detail"]["ues_connected"].as_u64().or(status["ues_connected"].as_u64()).unwrap_or(0))
}

/// The AMF's samples, oldest first.
async fn procedures(network: &Lab) -> anyhow::Result<Vec<serde_json::Value>> {
    let answer = network.oam("amf", "GET", "/procedures").await?;
    Ok(answer.as_array().cloned().unwrap_or_default())
}

/// Sorts successful procedures into series. Failures show in the counts.
fn collect(new: &[serde_json::Value], at_once: u32, samples: &mut Samples) {
    for sample in new {
        let known = PROCEDURES.into_iter().find(|name| sample["procedure"] == *name);
        if let (Some(procedure), "ok", Some(core_us)) =
            (known, sample["outcome"].as_str().unwrap_or_default(), sample["core_us"].as_f64())
        {
            samples.entry((procedure, at_once)).or_default().push(core_us / 1e3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_succeeded_is_a_sample() {
        let answer = serde_json::json!([
            {"procedure": "registration", "outcome": "ok", "core_us": 1500},
            {"procedure": "registration", "outcome": "5GMM cause 3", "core_us": 100},
            {"procedure": "deregistration", "outcome": "ok", "core_us": 10},
        ]);
        let mut samples = Samples::new();
        collect(answer.as_array().unwrap(), 1, &mut samples);
        assert_eq!(samples, Samples::from([(("registration", 1), vec![1.5])]));
    }
}
