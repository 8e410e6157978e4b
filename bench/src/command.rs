//! The command line of `godwit-bench`, which `godwit bench` starts. It runs an experiment and writes its result
//! and plot.
//!
//! Exit codes: 0 success; 1 the experiment could not run, or one of its checks failed; 2 the command line is
//! wrong.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;
use output::{Format, Table};

use crate::Options;
use crate::result::Experiment;
use crate::stats::short;

/// Godwit's experiments. Each figure is a median with its spread; all samples are kept and plotted.
#[derive(clap::Parser, Debug)]
#[command(name = "godwit bench", version, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    experiment: Name,
}

/// Options of every experiment.
#[derive(clap::Args, Debug)]
struct Common {
    /// End within a minute; takes fewer samples.
    #[arg(long)]
    quick: bool,
    /// Folder for the result (JSON) and its plot (SVG). A folder in bench/results publishes the result, which
    /// needs a release build of a committed tree.
    #[arg(long, value_name = "DIR", default_value = "bench/results/latest")]
    out: PathBuf,
    #[command(flatten)]
    format: Format,
}

/// Experiments.
#[derive(clap::Subcommand, Debug)]
enum Name {
    /// Registration and session establishment: time in the core, and registrations per second.
    Procedures(Common),
    /// Packet classifiers: look-up and update of packet detection rules with every backend.
    Pdr(Common),
    /// The user plane: packets per second and core, time per packet and latency, by backend, size and sessions.
    #[command(args_conflicts_with_subcommands = true)]
    Upf {
        #[command(flatten)]
        common: Common,
        /// Run only these parts.
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        only: Vec<crate::upf::Part>,
        #[command(subcommand)]
        part: Option<UpfPart>,
    },
    /// A downlink flow while its UE is idle or moves: packets lost, duplicated, out of order, delayed.
    Buffering(Common),
    /// The midhaul of a gNB in parts: the CU's relay, and the link between DU and CU, by backend.
    Midhaul {
        #[command(flatten)]
        common: Common,
        /// Run only these parts.
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        only: Vec<crate::midhaul::Part>,
    },
    /// The backhaul of a gNB in parts: the link between CU and UPF, by backend.
    Backhaul(Common),
    /// UE, DU, CU and UPF in the three models: kernel, hybrid, bypass.
    #[command(args_conflicts_with_subcommands = true)]
    EndToEnd {
        #[command(flatten)]
        common: Common,
        /// Run only these parts.
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        only: Vec<crate::end_to_end::Part>,
        #[command(subcommand)]
        part: Option<EndToEndPart>,
    },
    /// Users diverted inside their tunnels to another anchor: what steering adds to time per packet, round trips, TCP and loss.
    Diverting {
        #[command(flatten)]
        common: Common,
        /// Run only these parts.
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        only: Vec<crate::diverting::Part>,
    },
    /// The S/P-GW of 4G: time of an attach, of idle and active, sessions per second, memory per session.
    Epc(Common),
    /// UEs moved to an edge host and back under load: packets lost, doubled, overtaken, gaps, and what TCP sends again.
    Relocation(Common),
    /// The state of an S/P-GW at a second one: what a move of UEs costs by dumped memory, by a shared database, by a protocol of its own.
    Replication {
        #[command(flatten)]
        common: Common,
        /// Run only these parts.
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        only: Vec<crate::replication::Part>,
    },
    /// A video stream to a UE beside other traffic, in the three models.
    Video(Common),
    /// CoTCP against sequential TCP, HTTP/2, gRPC and yamux: the paper's benchmarks.
    #[command(args_conflicts_with_subcommands = true)]
    Cotcp {
        #[command(flatten)]
        common: Common,
        #[command(subcommand)]
        part: Option<Part>,
    },
}

/// The other processes of `upf`.
#[derive(clap::Subcommand, Debug)]
enum UpfPart {
    /// Makes packets and sends some of them through the pipeline, under callgrind.
    #[command(hide = true)]
    Count(crate::upf::instructions::Count),
    /// The user plane; serves until its standard input ends.
    #[command(hide = true)]
    Serve(crate::upf::Serve),
}

/// The other processes of `end-to-end`.
#[derive(clap::Subcommand, Debug)]
enum EndToEndPart {
    /// A node; serves until its standard input ends.
    #[command(hide = true)]
    Node(crate::end_to_end::threads::Node),
}

/// The processes of `cotcp`, to be started by hand.
#[derive(clap::Subcommand, Debug)]
enum Part {
    /// The server: answers requests after a delay. Prints its address as JSON and serves until it is stopped.
    Serve(crate::cotcp::params::Serve),
    /// The client: workers that send a request, wait for its answer and send the next. Prints its report as
    /// JSON.
    Load(crate::cotcp::params::Load),
}

/// Parses the arguments of the process and runs the experiment.
pub fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.experiment {
        Name::Procedures(common) => finish(common, |options| in_lab(crate::procedures::run(options))),
        Name::Pdr(common) => finish(common, crate::pdr::run),
        Name::Buffering(common) => finish(common, |options| {
            with_rights()?;
            crate::buffering::run(options)
        }),
        Name::Midhaul { common, only } => finish(common, |options| {
            with_rights()?;
            crate::midhaul::run(options, only)
        }),
        Name::Backhaul(common) => finish(common, |options| {
            with_rights()?;
            crate::backhaul::run(options)
        }),
        Name::EndToEnd { part: Some(EndToEndPart::Node(node)), .. } => {
            crate::end_to_end::threads::serve(node)?;
            Ok(ExitCode::SUCCESS)
        }
        Name::EndToEnd { common, only, part: None } => finish(common, |options| {
            with_rights()?;
            crate::end_to_end::run(options, only)
        }),
        Name::Diverting { common, only } => finish(common, |options| {
            with_rights()?;
            crate::diverting::run(options, only)
        }),
        Name::Epc(common) => finish(common, |options| in_lab(crate::epc::run(options))),
        Name::Relocation(common) => finish(common, |options| in_lab(crate::relocation::run(options))),
        Name::Replication { common, only } => {
            finish(common, |options| in_lab(crate::replication::run(options, only)))
        }
        Name::Video(common) => finish(common, |options| {
            with_rights()?;
            crate::video::run(options)
        }),
        Name::Upf { part: Some(UpfPart::Count(part)), .. } => {
            crate::upf::instructions::count(part)?;
            Ok(ExitCode::SUCCESS)
        }
        Name::Upf { part: Some(UpfPart::Serve(part)), .. } => {
            crate::upf::serve(part)?;
            Ok(ExitCode::SUCCESS)
        }
        Name::Upf { common, only, part: None } => finish(common, |options| {
            with_rights()?;
            crate::upf::run(options, only)
        }),
        Name::Cotcp { common, part: None } => finish(common, |options| {
            if !net::capability::Capability::SysAdmin.held() {
                // Only the link of limited rate needs rights. Without them the experiment uses the loopback
                // interface and says so.
                let _ = net::netns::enter_user_namespace();
            }
            tokio::runtime::Runtime::new()?.block_on(crate::cotcp::run(options))
        }),
        Name::Cotcp { part: Some(part), .. } => run_part(part),
    }
}

/// Runs one side of `cotcp`.
fn run_part(part: &Part) -> anyhow::Result<ExitCode> {
    match part {
        Part::Serve(serve) => match crate::cotcp::serve::run(serve, output::json_line)? {},
        Part::Load(load) => {
            let report = crate::cotcp::load::run(load)?;
            output::json_line(&report)?;
            Ok(if report.wrong + report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

fn finish(
    common: &Common,
    run: impl FnOnce(&Options) -> anyhow::Result<Experiment>,
) -> anyhow::Result<ExitCode> {
    let options = Options { quick: common.quick, out: std::path::absolute(&common.out)? };
    crate::publish::permit(&options.out)?;
    let experiment = run(&options)?;
    let (json, svg) = crate::write(&experiment, &options.out)?;
    if common.format.json {
        output::json(&experiment)?;
    } else {
        output::text(&summary(&experiment))?;
        output::text(&format!("\n{}\n{}\n", json.display(), svg.display()))?;
    }
    Ok(if experiment.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Enters a user namespace if needed: network namespaces need root's rights.
fn with_rights() -> std::io::Result<()> {
    if net::capability::Capability::SysAdmin.held() { Ok(()) } else { net::netns::enter_user_namespace() }
}

/// Runs an experiment that builds a network of namespaces.
fn in_lab(run: impl Future<Output = anyhow::Result<Experiment>>) -> anyhow::Result<Experiment> {
    with_rights()?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run)
}

fn summary(experiment: &Experiment) -> String {
    let mut figures = Table::new(&["figure", "measured", "published"]);
    for (name, value) in &experiment.ratios {
        let published = experiment.published.get(name).map(|value| short(*value)).unwrap_or_default();
        figures.row([name.clone(), short(*value), published]);
    }
    let mut checks = Table::new(&["check", "", "found"]);
    for check in &experiment.checks {
        let mark = if check.ok { "ok" } else { "FAILED" };
        checks.row([check.name.clone(), mark.to_owned(), check.detail.clone()]);
    }
    format!("{}\n{}", figures.render(), checks.render())
}
