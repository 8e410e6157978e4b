//! The command line of Godwit.
//!
//! Flow: [`main`] parses the arguments, calls one module per command, and turns the result into an exit
//! code. A command that needs an async runtime starts its own, so that `demo` can enter namespaces while the
//! process still has a single thread.
//!
//! Read first: `config/mod.rs` (how `godwit.yaml` becomes each NF's `Config`), then `run.rs`.
//!
//! Exit codes: 0 success; 1 the command failed, or a check of `demo`, `doctor` or `bench` did; 2 wrong
//! command line; 3 wrong configuration; 4 no running core could be reached.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

pub mod admin;
pub mod bench;
pub mod certs;
pub mod config;
pub mod demo;
pub mod doctor;
mod gnb;
pub mod live;
pub mod mec;
mod metrics;
pub mod ran;
pub mod run;
pub mod subscriber;

/// The command failed.
pub const EXIT_FAILED: u8 = 1;
/// The configuration is wrong.
pub const EXIT_CONFIG: u8 = 3;
/// No running core answered.
pub const EXIT_UNREACHABLE: u8 = 4;

/// Godwit: a low-latency 5G core.
#[derive(Parser, Debug)]
#[command(name = "godwit", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a network on this machine: UEs register, ping and download through the core.
    Demo(demo::Args),
    /// Run network functions, all of them or those named.
    Run(run::Args),
    /// Show whether the network functions of this machine run.
    Status(admin::StatusArgs),
    /// List or deregister UEs.
    Ue(admin::UeArgs),
    /// List, show or release PDU sessions.
    Session(admin::SessionArgs),
    /// Show packets, drops and sessions of the user plane.
    Upf(admin::UpfArgs),
    /// Manage subscribers: add, list, show, remove, import.
    Subscriber(subscriber::Args),
    /// Simulate gNBs and UEs, or MME, eNBs and UEs of 4G, against this or any other core.
    Ran(Box<ran::Args>),
    /// The edge: the switch that steers users inside their tunnels.
    Mec(mec::Args),
    /// Run an experiment and write its result and plot.
    Bench(bench::Args),
    /// Make the certificates with which network functions speak TLS to each other.
    Certs(certs::Args),
    /// Check this machine and the configuration, and say what to do.
    Doctor(doctor::Args),
    /// Check a configuration and say what is wrong with it.
    Check(ConfigArg),
    /// Print shell completions, for example `godwit completions bash > /etc/bash_completion.d/godwit`.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// Option: the configuration file.
#[derive(clap::Args, Debug, Clone)]
pub struct ConfigArg {
    /// Configuration file.
    #[arg(short, long, value_name = "FILE", default_value = "godwit.yaml")]
    pub config: PathBuf,
}

/// Parses the arguments of the process and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // Simulated UEs and experiments need many sockets. If there are too few, `run` fails at its start,
    // other commands when they run out.
    let _ = net::limits::raise_open_files();
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => report(&error),
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Status(args) => admin::status(&args),
        Command::Ue(args) => admin::ue(&args),
        Command::Session(args) => admin::session(&args),
        Command::Upf(args) => admin::upf(&args),
        Command::Subscriber(args) => subscriber::run(args),
        Command::Ran(args) => ran::run(&args),
        Command::Mec(args) => mec::run(&args),
        Command::Bench(args) => match bench::run(&args)? {},
        Command::Certs(args) => certs::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Check(arg) => {
            let config = config::load(&arg.config)?;
            // Only `check` and the start read the keys: other commands may be run by users who cannot
            // read them.
            config.udm.suci_keys.iter().try_for_each(|key| key.load().map(drop))?;
            // A closed standard output is no error: the exit code still tells the result.
            let mut out = std::io::stdout();
            let _ = writeln!(out, "{} is sound", arg.config.display());
            let opened = config.upf.opened();
            if opened.is_empty() {
                let _ = writeln!(out, "UEs reach nothing of this machine and the core's networks");
            }
            for line in
                opened.into_iter().chain(config.upf.exposed().iter().map(|line| format!("warning: {line}")))
            {
                let _ = writeln!(out, "{line}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "godwit", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes the error with its causes and picks the exit code.
fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(problems) = error.downcast_ref::<config::Problems>() {
        // A closed standard error is no error: the exit code still tells the result.
        let _ = writeln!(std::io::stderr(), "{problems}");
        return ExitCode::from(EXIT_CONFIG);
    }
    output::error(error);
    ExitCode::from(EXIT_FAILED)
}
