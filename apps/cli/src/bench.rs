//! `godwit bench`: runs an experiment and writes its result and plot.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::Options;
use bench::result::Experiment;
use bench::stats::short;

use crate::EXIT_FAILED;
use crate::output::{self, Format, Table};

/// Options of `godwit bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The experiment.
    #[arg(value_enum)]
    experiment: Name,
    /// End within a minute, with fewer samples.
    #[arg(long)]
    quick: bool,
    /// Folder for the result (JSON) and its plot (SVG).
    #[arg(long, value_name = "DIR", default_value = "bench/results/latest")]
    out: PathBuf,
    #[command(flatten)]
    format: Format,
}

/// Experiments.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Name {
    /// Registration and session establishment: core time, and registrations per second.
    Procedures,
    /// Packet classifiers: look-up and update of packet detection rules, every backend.
    Pdr,
}

/// Runs the experiment; exit code 1 when one of its checks failed.
///
/// # Errors
/// The network could not be built, or the result not be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = Options { quick: args.quick, out: std::path::absolute(&args.out)? };
    let experiment = match args.experiment {
        Name::Procedures => in_lab(bench::procedures::run(&options))?,
        Name::Pdr => bench::pdr::run(&options)?,
    };
    let (json, svg) = bench::write(&experiment, &options.out)?;
    if args.format.json {
        output::json(&experiment)?;
    } else {
        output::text(&summary(&experiment))?;
        output::text(&format!("\n{}\n{}\n", json.display(), svg.display()))?;
    }
    Ok(if experiment.passed() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

/// Runs an experiment that builds a network.
fn in_lab(run: impl Future<Output = anyhow::Result<Experiment>>) -> anyhow::Result<Experiment> {
    // The lab's namespaces need root's rights, here or in a user namespace of our own.
    if !net::capability::Capability::SysAdmin.held() {
        net::netns::enter_user_namespace()?;
    }
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
