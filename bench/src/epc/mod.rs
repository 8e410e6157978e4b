//! `epc`: how long the S/P-GW of 4G takes for an attach and for idle and active UEs, how many sessions it sets up per second, and what
//! a session takes of memory; and the same of a gateway made of go-gtp, in turn with ours.
//!
//! Gateway and UPF are processes in a namespace of a lab; the MME is a loop of this process in another one, on a thread that polls. So
//! all figures are seen from the MME, with the kernel's way over a veth link there and back, and with the UPF behind the gateway. An
//! attach is a Create Session and a Modify Bearer Request, idle a Release Access Bearers Request, active a Modify Bearer Request. For the
//! rate [`WINDOW`] UEs attach at once. All UEs of a round detach at its end. A sample of times is the median or the 99th percentile of a round. Goals are in SPECIFICATION.md.
//!
//! go-gtp is a library; the gateway is the small program of `tests/gogtp`, here in two forms, each in a lab of its own with the same links,
//! and with the same MME:
//!
//! | | user plane |
//! |---|---|
//! | go-gtp | in the gateway's process: no PFCP, nobody else to wait for |
//! | go-gtp on our UPF | our UPF, with the rules that ours gives it, by PFCP with the messages of go-pfcp |
//!
//! So the second one does for an attach what ours does, and is what ours is compared with; the first shows what another process costs.
//! Both do less than ours: one APN, one PDN connection for a UE, no IPv6, no look at restart counters. Without Go they are
//! left out, and the parameter `go_gtp` says so.
//!
//! `mme.rs` is the MME, `site.rs` a gateway with its network.

pub(crate) mod mme;
mod site;

use net::time;

use self::mme::{Times, WINDOW};
use self::site::{ALONE, ON_UPF, Site};
use crate::Options;
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};
use crate::stats::{median, quantile, short};

const ATTACH_GOAL_MS: f64 = 0.3;
const RATE_GOAL: f64 = 5_000.0;
const MEMORY_GOAL_KB: f64 = 8.0;

const MS: Axes = Axes { x: "", y: "time seen by the MME", unit: "ms" };
const RATE: Axes = Axes { x: "UEs", y: "attaches per second", unit: "1/s" };
const KB: Axes = Axes { x: "UEs", y: "memory per session", unit: "kB" };

/// What go-gtp's gateways are, for readers of the result.
const GO_GTP: &str = "v0.8.11; go_gtp: user plane in its own process, no PFCP, no UPF, no policing; go_gtp_upf: our UPF with the \
                      same rules, by PFCP with go-pfcp v0.0.24; both: one PDN connection for a UE";

/// How much is measured.
struct Extent {
    rounds: usize,
    /// UEs one after the other.
    serial: usize,
    /// UEs for the rate.
    crowd: usize,
}

/// Runs the experiment.
///
/// # Errors
/// The network could not be built, or a UE was refused.
pub async fn run(options: &Options) -> anyhow::Result<Experiment> {
    let (rounds, serial, crowd) = if options.quick { (3, 300, 5_000) } else { (10, 1_000, 20_000) };
    let extent = Extent { rounds, serial, crowd };
    let mut experiment = Experiment::new("epc", options.quick);
    experiment.param("rounds", rounds);
    experiment.param("ues_one_at_a_time", serial);
    experiment.param("ues_for_rate", crowd);
    experiment.param("ues_at_once", WINDOW as u64);
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    let mut progress = Progress::new("epc");
    let mut sites = vec![Site::godwit().await?];
    match gogtp::program() {
        Ok(_) => {
            sites.push(Site::go_gtp_on_upf().await?);
            sites.push(Site::go_gtp().await?);
            experiment.param("go_gtp", GO_GTP);
        }
        Err(why) => {
            let why = format!("left out: {why}");
            progress.say(&format!("go-gtp is {why}"));
            experiment.param("go_gtp", why);
        }
    }
    let mut results = Results::default();
    let mut before_kb = Vec::new();
    for site in &mut sites {
        // Caches fill, and pages are touched for the first time.
        let ues = site.mme.attach_all(1_000)?;
        site.mme.detach_all(&ues)?;
        before_kb.push(site.resident_kb()?);
    }
    for round in 0..extent.rounds {
        progress.say(&format!("round {} of {rounds}", round + 1));
        for turn in 0..sites.len() {
            // Who begins changes every round.
            let at = (round + turn) % sites.len();
            measure(&mut experiment, &mut results, &mut sites[at], &extent, (round, before_kb[at])).await?;
        }
    }
    for mut site in sites {
        let left = site.sessions().await?;
        experiment.check(&format!("all UEs have left{}", site.suffix), left == 0, left.to_string());
        let repeats = site.mme.retransmissions();
        experiment.param(
            &format!("requests_repeated{}", site.suffix.replace(", ", "_").replace([' ', '-'], "_")),
            repeats,
        );
        site.stop().await?;
    }
    figures(&mut experiment, &results, crowd);
    experiment.series = results.into_series();
    Ok(experiment)
}

/// A round of one gateway; `before_kb` is what its process had without sessions.
async fn measure(
    experiment: &mut Experiment,
    results: &mut Results,
    site: &mut Site,
    extent: &Extent,
    (round, before_kb): (usize, f64),
) -> anyhow::Result<()> {
    let name = |series: &str| format!("{series}{}", site.suffix);
    let mut times = Times::default();
    for _ in 0..extent.serial {
        let ue = site.mme.one(&mut times)?;
        site.mme.detach_all(&[ue])?;
    }
    for (series, samples) in times {
        results.add(name(series), MS, 0, median(&samples));
        results.add(name(&format!("{series}, p99")), MS, 0, quantile(&samples, 0.99));
    }
    let start = time::now();
    let ues = site.mme.attach_all(extent.crowd)?;
    let rate = ues.len() as f64 / (time::now() - start).as_secs_f64();
    results.add(name("attaches per second"), RATE, extent.crowd, rate);
    if round == 0 {
        let kb = (site.resident_kb()? - before_kb) / ues.len() as f64;
        results.add(name("memory per session"), KB, extent.crowd, kb);
    }
    let what = name("sessions of the user plane");
    let held = site.user_plane_sessions().await?;
    let is_all = held == extent.crowd as u64;
    experiment.check(&format!("{what}, round {round}"), is_all, held.to_string());
    site.mme.detach_all(&ues)?;
    site.check()
}

/// The figures that are promised, and their goals; and those of go-gtp's gateways, with ours over theirs, pair by pair.
fn figures(experiment: &mut Experiment, results: &Results, crowd: usize) {
    for (name, series, x, goal) in [
        ("create_session_ms_p50", "create session", 0, None),
        ("modify_bearer_ms_p50", "modify bearer", 0, None),
        ("attach_ms_p50", "attach", 0, Some((ATTACH_GOAL_MS, false))),
        ("attach_ms_p99", "attach, p99", 0, None),
        ("idle_ms_p50", "idle", 0, None),
        ("active_ms_p50", "active", 0, None),
        ("spgw_sessions_per_s", "attaches per second", crowd, Some((RATE_GOAL, true))),
        ("kb_per_session", "memory per session", crowd, Some((MEMORY_GOAL_KB, false))),
    ] {
        let Some(value) = results.median(series, x) else { continue };
        experiment.ratios.insert(name.to_owned(), value);
        if let Some((goal, at_least)) = goal {
            let is_met = if at_least { value >= goal } else { value <= goal };
            experiment.check(&format!("{name} goal"), is_met, format!("{}, goal {goal}", short(value)));
        }
    }
    for (contender, suffix) in [("go_gtp_upf", ON_UPF), ("go_gtp", ALONE)] {
        for (name, series, x) in [
            ("sessions_per_s", "attaches per second", crowd),
            ("attach_ms_p50", "attach", 0),
            ("attach_ms_p99", "attach, p99", 0),
            ("kb_per_session", "memory per session", crowd),
        ] {
            let its = format!("{series}{suffix}");
            let Some(value) = results.median(&its, x) else { continue };
            experiment.ratios.insert(format!("{contender}_{name}"), value);
            if let Some(ratio) = results.ratio(series, &its, x) {
                experiment.ratios.insert(format!("{name}_vs_{contender}"), ratio);
            }
        }
    }
    // The one that does what ours does.
    if let Some(ratio) = experiment.ratios.get("sessions_per_s_vs_go_gtp_upf").copied() {
        experiment.ratios.insert("vs_go_gtp".to_owned(), ratio);
    }
}
