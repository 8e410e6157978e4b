//! `godwit demo`: a network on this machine, real applications through it, and a summary.
//!
//! Flow ([`show`]): build the lab and start the core; start gNBs and UEs and watch them register and
//! set up sessions; `ping` from every UE; download by HTTP with `curl` through one UE; with `--split`, a video by `ffmpeg` to
//! one UE, if it is installed; with `--4g`, idle mode and paging ([`idle_mode`]); read the NFs' counters; let all UEs deregister.
//! Each step adds checks to the report. After a failed step, the
//! later steps that do not need it still run. The exit code is 0 only when every check passed.
//!
//! Without root the process first enters its own user namespace, in which it has the rights for all
//! this.

pub(crate) mod applications;
mod idle_mode;
pub(crate) mod progress;
mod report;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use lab::{Lab, Model, Simulator, SimulatorOptions};
use net::capability::{self, Capability};
use net::netns::NetNs;
use net::time::{self, Duration};
use tokio::signal::unix::{SignalKind, signal};
use types::{Ambr, BitRate};

use crate::EXIT_FAILED;
use output;
use progress::Progress;
use report::{Download, Report};

/// Exit code after an interrupt, as in shells.
const EXIT_INTERRUPTED: u8 = 130;
/// Time for each UE to register and set up its session on a busy machine, added to [`BASE_LIMIT`].
const UE_LIMIT: Duration = Duration::from_millis(100);
/// Time for the first UE.
const BASE_LIMIT: Duration = Duration::from_secs(30);
/// A bit rate above what any machine forwards.
const UNLIMITED: Ambr =
    Ambr { uplink: BitRate::from_bps(100_000_000_000), downlink: BitRate::from_bps(100_000_000_000) };
/// How long the core may take to delete the contexts of deregistered UEs.
const FORGET_LIMIT: Duration = Duration::from_secs(5);

/// Options of `godwit demo`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of UEs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    ues: u32,
    /// Number of gNBs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    gnbs: u16,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run each network function in a process of its own.
    #[arg(long)]
    processes: bool,
    /// A gNB in parts, CU and DU, instead of gNBs in one piece: each unit a process in a namespace of its own.
    #[arg(long, conflicts_with = "gnbs")]
    split: bool,
    /// What of the user plane goes past the kernel by memif, with --split: nothing (kernel), F1-U (hybrid), or all from the
    /// UEs to the UPF (bypass).
    #[arg(long, value_name = "MODEL", requires = "split", default_value = "kernel")]
    model: Model,
    /// 4G instead of 5G: S-GW and P-GW on the same user plane, an MME with an eNB, idle mode and paging.
    #[arg(long = "4g", conflicts_with_all = ["gnbs", "split"])]
    four_g: bool,
    /// Write pcapng captures of N2, N3, N4, N6, SBI and S11 into this folder; with --split, those of CU and DU into folders in it.
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// Keep the network running afterwards, until interrupted.
    #[arg(long)]
    serve: bool,
    /// Size of the download in megabytes (10⁶ bytes).
    #[arg(long, value_name = "MB", default_value_t = 200)]
    download_mb: u64,
}

/// Runs the demo. Called before any thread or async runtime exists, so that it may enter namespaces.
///
/// # Errors
/// The demo could not run at all. A failed check is an exit code, not an error.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Paths of the caller: resolved before this process changes namespaces.
    let json = args.json.as_ref().map(std::path::absolute).transpose()?;
    let pcap = args.pcap.as_ref().map(std::path::absolute).transpose()?;
    json.as_deref().map(writable).transpose()?;
    if !(Capability::SysAdmin.held() && Capability::NetAdmin.held()) {
        net::netns::enter_user_namespace().with_context(|| {
            let why = capability::user_namespaces().err().unwrap_or_else(|| "the system refused".to_owned());
            format!("the demo needs root, or a user namespace: {why}")
        })?;
    }
    requirements()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        // Dropping `show` stops every process and removes everything.
        tokio::select! {
            report = show(args, pcap) => report.map(Some),
            _ = interrupt.recv() => Ok(None),
            _ = terminate.recv() => Ok(None),
        }
    })?;
    let Some(report) = outcome else {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    };
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&report).context("write the report")?;
        std::fs::write(&file, text + "\n").with_context(|| format!("write {}", file.display()))?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

/// Checks before the demo runs that the report can be written.
fn writable(file: &Path) -> anyhow::Result<()> {
    let there = file.exists();
    let open = std::fs::OpenOptions::new().append(true).create(true).open(file);
    open.with_context(|| format!("write {}", file.display()))?;
    if !there {
        // The file is removed again, so that an interrupted demo leaves no empty file.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Checks what the demo needs of the machine, before anything starts. Errors say what to do.
fn requirements() -> anyhow::Result<()> {
    capability::tun_device().context(
        "/dev/net/tun cannot be opened, and UEs need it: as root, `modprobe tun` if it is missing, \
         `chmod 0666 /dev/net/tun` (the usual mode) if it is closed to you",
    )?;
    for (program, package) in [("ping", "iputils-ping"), ("curl", "curl")] {
        let missing =
            || format!("the demo runs {program}, which is missing (Debian/Ubuntu: apt install {package})");
        capability::program(program).with_context(missing)?;
    }
    Ok(())
}

/// The demo: prints the summary and returns the report.
async fn show(args: &Args, pcap: Option<PathBuf>) -> anyhow::Result<Report> {
    let progress = Progress::new();
    let words = if args.four_g { report::FOUR_G } else { report::FIVE_G };
    let mut report = Report::new(args.ues, words);
    let started = time::now();

    let step = progress.step("network and core");
    let mut options = lab::Options::new(args.ues)?;
    for subscriber in &mut options.subscribers {
        // The demo shows what the machine can do, so the subscription does not limit the bit rate.
        subscriber.ue_ambr = UNLIMITED;
        for dnn in subscriber.slices.iter_mut().flat_map(|slice| &mut slice.dnns) {
            dnn.ambr = UNLIMITED;
        }
    }
    options.processes = args.processes;
    options.split = args.split.then_some(args.model);
    options.epc = args.four_g;
    options.pcap = pcap;
    let mut lab = match Lab::start(options).await {
        Ok(lab) => lab,
        Err(error) => {
            step.failed("the core did not start");
            report.check("core", false, output::with_causes(&error));
            report.print(time::now() - started)?;
            return Ok(report);
        }
    };
    let processes = lab.processes().count();
    step.done(&format!("ready after {:.1} s", (time::now() - started).as_secs_f64()));
    report.check("core", true, format!("every network function is up, in {processes} process(es)"));

    let listings = if args.four_g { &FOUR_G } else { &FIVE_G };
    let mut simulator = lab.simulate(&simulated(args))?;
    let ues = attach(&mut simulator, args.ues, &progress, &mut report).await;
    if !ues.is_empty() {
        traffic(&lab, &ues, args, &progress, &mut report).await;
    }
    if args.split {
        if let Some((ue, address)) = ues.first().and_then(|ue| Some((ue, ue.ipv4?))) {
            video(&lab, ue, address, &progress, &mut report).await;
        }
        units(&lab, &mut report).await;
    }
    account(&lab, listings, &mut report).await;
    if args.four_g {
        idle_mode::show(&lab, &mut simulator, &ues, &progress, &mut report).await;
    }

    if args.serve {
        report.print(time::now() - started)?;
        serve(&lab, &ues, args.four_g).await?;
    }
    leave(&lab, simulator, listings, &progress, &mut report).await;
    match lab.check() {
        Ok(()) => match lab.stop().await {
            Ok(()) => report.check("end", true, "every process ended in order".to_owned()),
            Err(error) => report.check("end", false, output::with_causes(&error)),
        },
        Err(error) => report.check("end", false, output::with_causes(&error)),
    }
    if !args.serve || !report.passed() {
        report.print(time::now() - started)?;
    }
    Ok(report)
}

/// Radio network and UEs.
fn simulated(args: &Args) -> SimulatorOptions {
    let mut arguments = Vec::new();
    if args.four_g {
        // The subscription of 4G, which the MME knows, does not limit the bit rate either.
        arguments.extend(["--inactivity", idle_mode::INACTIVITY_S, "--ambr", "100000"].map(str::to_owned));
    }
    SimulatorOptions { ues: args.ues, gnbs: args.gnbs, arguments, ..SimulatorOptions::default() }
}

/// What a network function lists of the UEs.
struct Listing {
    /// The network function in the report.
    name: &'static str,
    nf: &'static str,
    route: &'static str,
    /// What is listed.
    what: &'static str,
}

/// Lists of a 5G core: UEs, then sessions.
const FIVE_G: [Listing; 2] = [
    Listing { name: "AMF", nf: "amf", route: "/ues", what: "UEs in the AMF" },
    Listing { name: "SMF", nf: "smf", route: "/sessions", what: "sessions in the SMF" },
];

/// Lists of a 4G core.
const FOUR_G: [Listing; 2] = [
    Listing { name: "S/P-GW", nf: "spgw", route: "/sessions", what: "PDN connections in the S/P-GW" },
    Listing { name: "N4", nf: "upf", route: "/sessions", what: "sessions on the UPF" },
];

impl Listing {
    async fn count(&self, lab: &Lab) -> Result<u64, nf::oam::CallError> {
        lab.oam(self.nf, "GET", self.route).await.map(|list| report::entries(&list) as u64)
    }
}

/// A UE with a session.
struct Ue {
    /// SUPI, in 4G IMSI.
    name: String,
    namespace: NetNs,
    /// Path of the UE's namespace, to be printed.
    path: String,
    ipv4: Option<Ipv4Addr>,
    ipv6: bool,
}

/// Watches the UEs until each has its session or has failed.
async fn attach(
    simulator: &mut Simulator,
    expected: u32,
    progress: &Progress,
    report: &mut Report,
) -> Vec<Ue> {
    let mut ues = Vec::new();
    let (mut registration, mut session, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    let words = report.words();
    let bar = progress.bar(&format!("{} and {}", words.enter, words.sessions), u64::from(expected) * 2);
    let deadline = time::now() + BASE_LIMIT + UE_LIMIT * expected;
    loop {
        let left = deadline.saturating_duration_since(time::now());
        let event = match time::timeout(left, simulator.next()).await {
            Ok(Some(event)) => event,
            Ok(None) => {
                failures.push(format!("the simulator ended: {}", simulator.log_tail()));
                break;
            }
            Err(_) => {
                failures.push("not all UEs were through in time".to_owned());
                break;
            }
        };
        match event.kind() {
            "registered" => {
                registration.extend(event.number("registration_ms"));
                bar.advance();
            }
            // An attach is both.
            kind @ ("session" | "attached") => {
                if kind == "attached" {
                    registration.extend(event.number("attach_ms"));
                    bar.advance();
                }
                session.extend(event.number(if kind == "session" { "session_ms" } else { "attach_ms" }));
                bar.advance();
                match event.namespace() {
                    Ok(namespace) => ues.push(Ue {
                        name: event.text("supi").or(event.text("imsi")).unwrap_or_default().to_owned(),
                        namespace,
                        path: event.text("netns").unwrap_or_default().to_owned(),
                        ipv4: event.text("ipv4").and_then(|address| address.parse().ok()),
                        ipv6: event.text("ipv6").is_some(),
                    }),
                    Err(error) => failures.push(output::with_causes(&error)),
                }
            }
            "failed" => failures.push(event.text("detail").unwrap_or("no reason given").to_owned()),
            "ready" => break,
            _ => {}
        }
    }
    bar.done(&format!("{} {}, {} {}", registration.len(), words.entered, session.len(), words.sessions));
    report.attached(&registration, &session, &failures);
    ues
}

/// Real applications: ping from every UE, a download through the first UE.
async fn traffic(lab: &Lab, ues: &[Ue], args: &Args, progress: &Progress, report: &mut Report) {
    let bar = progress.bar("ping from every UE", ues.len() as u64);
    let namespaces = ues.iter().map(|ue| ue.namespace.clone()).collect();
    let ping = applications::ping_all(namespaces, &lab::DN.to_string(), || bar.advance()).await;
    bar.done(&format!("{} of {} answered", ping.received, ping.sent));
    report.pinged(ping);

    if let Some(ue) = ues.iter().find(|ue| ue.ipv6) {
        let ping = applications::ping_all(vec![ue.namespace.clone()], &lab::DN_IPV6.to_string(), || {}).await;
        let detail = format!("{} of {} answered{}", ping.received, ping.sent, ping.problem_text());
        report.check("ping over IPv6", ping.sent > 0 && ping.received == ping.sent, detail);
    }

    let bytes = args.download_mb * 1_000_000;
    let step = progress.step(&format!("download of {} MB", args.download_mb));
    let Some(ue) = ues.first() else { return };
    match applications::download(&ue.namespace, &lab.url(bytes)).await {
        Ok(download) => {
            step.done(&format!("{:.0} Mbit/s", download.mbps));
            let detail =
                format!("{} of {bytes} bytes at {:.0} Mbit/s by curl", download.bytes, download.mbps);
            report.check("download", download.bytes == bytes, detail);
            report.download = download;
        }
        Err(error) => {
            step.failed("failed");
            report.download = Download::default();
            report.check("download", false, output::with_causes(&error));
        }
    }
}

/// A video from the data network to a UE, if ffmpeg is installed.
async fn video(lab: &Lab, ue: &Ue, address: Ipv4Addr, progress: &Progress, report: &mut Report) {
    if capability::program("ffmpeg").is_none() {
        return report.check("video", true, "left out: ffmpeg is not installed".to_owned());
    }
    let step = progress.step("video to a UE");
    match applications::video(lab.dn(), &ue.namespace, address).await {
        Ok(video) => {
            step.done(&format!("{} of {} pictures", video.shown, video.sent));
            let detail = format!("{} of {} pictures arrived and were decoded", video.shown, video.sent);
            report.check("video", video.is_whole(), detail);
        }
        Err(error) => {
            step.failed("failed");
            report.check("video", false, output::with_causes(&error));
        }
    }
}

/// Reads the counters of CU and DU: what went to UEs must have gone through both.
async fn units(lab: &Lab, report: &mut Report) {
    match lab.oam("cu", "GET", "/status").await {
        Ok(status) => {
            let (ues, dus) = (&status["detail"]["ues"], &status["detail"]["f1_dus"]);
            report.check(
                "CU",
                *ues == report.registered && *dus == 1,
                format!("{ues} UEs connected by {dus} DU"),
            );
        }
        Err(error) => report.check("CU", false, error.to_string()),
    }
    for (name, unit, interface) in [("F1-U of the CU", "cu", "f1u"), ("DU", "du", "bearers")] {
        match lab.oam(unit, "GET", "/stats").await {
            Ok(stats) => {
                let bytes = stats["interfaces"][interface]["downlink"]["bytes"].as_u64().unwrap_or(0);
                let drops = &stats["drops"];
                let detail = format!("{} MB went to UEs; drops: {drops}", bytes / 1_000_000);
                report.check(name, bytes >= report.download.bytes && bytes > 0, detail);
            }
            Err(error) => report.check(name, false, error.to_string()),
        }
    }
}

/// Reads the NFs' counters.
async fn account(lab: &Lab, listings: &[Listing; 2], report: &mut Report) {
    for (listing, expected) in listings.iter().zip([report.registered, report.sessions]) {
        match listing.count(lab).await {
            Ok(known) => {
                report.check(listing.name, known == expected, format!("{known} {}", listing.what));
            }
            Err(error) => report.check(listing.name, false, error.to_string()),
        }
    }
    match lab.oam("upf", "GET", "/stats").await {
        Ok(stats) => report.counted(&stats),
        Err(error) => report.check("UPF", false, error.to_string()),
    }
    if let Ok(procedures) = lab.oam("amf", "GET", "/procedures").await {
        report.core_times(&procedures);
    }
}

/// Lets all UEs leave. The core must delete their contexts.
async fn leave(
    lab: &Lab,
    simulator: Simulator,
    listings: &[Listing; 2],
    progress: &Progress,
    report: &mut Report,
) {
    let name = report.words().leave;
    let step = progress.step(name);
    if let Err(error) = simulator.stop().await {
        step.failed("failed");
        return report.check(name, false, output::with_causes(&error));
    }
    let deadline = time::now() + FORGET_LIMIT;
    loop {
        let left = [listings[0].count(lab).await, listings[1].count(lab).await];
        if let [Ok(0), Ok(0)] = left {
            step.done("done");
            return report.check(name, true, "every UE left, no session remains".to_owned());
        }
        if time::now() > deadline {
            step.failed("incomplete");
            let show = |(listing, count): (&Listing, Result<u64, nf::oam::CallError>)| {
                let count = count.map_or_else(|error| error.to_string(), |count| count.to_string());
                format!("{}: {count}", listing.what)
            };
            let left: Vec<_> = listings.iter().zip(left).map(show).collect();
            return report.check(name, false, format!("left: {}", left.join("; ")));
        }
        time::sleep(Duration::from_millis(50)).await;
    }
}

/// Keeps the network running until interrupted, and prints how to use it.
async fn serve(lab: &Lab, ues: &[Ue], four_g: bool) -> anyhow::Result<()> {
    let mut text = String::from("\nThe network keeps running; Ctrl-C ends it.\n");
    // If the demo runs without root, `nsenter` has to enter the user namespace, too.
    let target = format!("nsenter --user --preserve-credentials --target {} --net", std::process::id());
    let root = initial_user_namespace();
    for ue in ues.iter().take(5) {
        let enter = if root { format!("nsenter --net={}", ue.path) } else { format!("{target}={}", ue.path) };
        text += &format!("  {}:  {enter} ping {}\n", ue.name, lab::DN);
    }
    let list = if four_g { "session list --4g" } else { "ue list" };
    text += &format!("  listings:  godwit {list} -c {}\n", lab.configuration().display());
    output::text(&text)?;
    std::future::pending::<()>().await;
    Ok(())
}

/// Whether this process is in the initial user namespace, judged by its uid map.
fn initial_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().nth(2) == Some("4294967295"))
}
