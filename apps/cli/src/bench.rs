//! `godwit bench`: starts `godwit-bench`, the program that holds the experiments.
//!
//! The experiments need libraries for competitors and plots (gRPC, yamux, SVG) that a running core does
//! not need. As a separate program they do not make `godwit` slower to build, to install or to start.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

/// The program with the experiments, a file beside `godwit`.
const PROGRAM: &str = "godwit-bench";

/// Options of `godwit bench`, passed on unchanged.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Experiment and options; `godwit bench --help` lists them.
    #[arg(value_name = "EXPERIMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by the program with the experiments. So signals and the exit code need no
/// forwarding.
///
/// # Errors
/// The program was not found or could not be started. On success this function does not return.
pub fn run(args: &Args) -> anyhow::Result<std::convert::Infallible> {
    let program = find()?;
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(error).with_context(|| format!("start {}", program.display()))
}

/// `$GODWIT_BENCH`, or the program beside this one.
fn find() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("GODWIT_BENCH") {
        return Ok(named.into());
    }
    let program = std::env::current_exe().context("find this program")?.with_file_name(PROGRAM);
    anyhow::ensure!(
        program.is_file(),
        "{} is missing: the experiments are a program of their own. `make bench` builds it \
         (cargo build --release --package bench); install it beside `godwit` or name it in $GODWIT_BENCH",
        program.display()
    );
    Ok(program)
}
