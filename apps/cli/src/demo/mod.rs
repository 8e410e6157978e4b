//! `godwit demo`: a network on this machine, real applications through it, and a summary.

use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `godwit demo`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of UEs.
    #[arg(long, default_value_t = 3)]
    pub ues: u32,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs the demo. Called before any thread or async runtime exists, so that it may enter namespaces.
///
/// # Errors
/// What kept the demo from running; a failed check is an exit code, not an error.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("the demo with {} UEs cannot run yet", args.ues)
}
