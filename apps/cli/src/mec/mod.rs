//! `godwit mec`: the edge.
//!
//! Its parts have a file of their own as a rule: they run at sites where nothing of the core does. So only the section `mec` and
//! what is common to all sections is read of it.

pub mod agent;
pub mod controller;
pub mod demo;
pub mod orchestrator;
pub mod switch;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use nf::rest::{self, CallError};
use serde::Deserialize;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::runtime;
use crate::config::{Problem, Problems, de, yaml};
use crate::{ConfigArg, EXIT_FAILED, EXIT_UNREACHABLE};

/// A request may change thousands of rules in several switches.
const PATIENCE: Duration = Duration::from_secs(60);

/// The section `mec`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// A switch.
    pub switch: Option<::switch::Config>,
    /// The controller.
    pub controller: Option<::controller::Config>,
    /// The orchestrator.
    pub orchestrator: Option<::orchestrator::Config>,
    /// An agent beside a clone.
    pub agent: Option<replication::agent::Config>,
}

/// Options of `godwit mec`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// The switch that steers users inside their tunnels.
    Switch(switch::Args),
    /// The controller of switches, which diverts users.
    Controller(controller::Args),
    /// The orchestrator, which starts anchors on edge hosts and moves users to them.
    Orchestrator(orchestrator::Args),
    /// Move users to an edge host, to another one, or back to their original anchors.
    Move(orchestrator::MoveArgs),
    /// Show moves, or one of them.
    Status(orchestrator::StatusArgs),
    /// Show edge hosts, their anchors, and how many users are there.
    Hosts(orchestrator::HostsArgs),
    /// The agent beside an anchor that gets copies of sessions: the anchor takes it for its MME or SMF.
    Agent(agent::Args),
    /// Divert users, an application, a pair or everything of an anchor to another anchor.
    Divert(controller::DivertArgs),
    /// Give users back to the anchors that they were diverted from.
    Undivert(controller::UndivertArgs),
    /// List diversions, anchors, switches, applications, captures or events.
    List(controller::ListArgs),
    /// Show where a user's packets go, and by which rules.
    Explain(controller::ExplainArgs),
    /// Show an edge on this machine: UEs are moved to an anchor there, and back.
    Demo(demo::Args),
}

/// `godwit mec …`
///
/// # Errors
/// The configuration is wrong, or the part cannot start.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.part {
        Part::Switch(args) => switch::run(args),
        Part::Controller(args) => controller::serve(args),
        Part::Orchestrator(args) => orchestrator::serve(args),
        Part::Move(args) => orchestrator::move_users(args),
        Part::Status(args) => orchestrator::status(args),
        Part::Hosts(args) => orchestrator::hosts(args),
        Part::Agent(args) => agent::run(args),
        Part::Divert(args) => controller::divert(args),
        Part::Undivert(args) => controller::undivert(args),
        Part::List(args) => controller::list(args),
        Part::Explain(args) => controller::explain(args),
        Part::Demo(args) => demo::run(args),
    }
}

/// The section of a part that is to run.
///
/// # Errors
/// It is missing; `page` explains it.
fn section<T>(arg: &ConfigArg, section: Option<T>, name: &str, page: &str) -> anyhow::Result<T> {
    let missing = || {
        let problem = Problem::at(1, &format!("mec.{name}"), format!("is missing: {page} explains it"));
        Problems { file: arg.config.clone(), problems: vec![problem] }
    };
    Ok(section.ok_or_else(missing)?)
}

/// Runs a part until SIGINT or SIGTERM. What `start` gives lives until then.
fn serve<T>(
    runtime: &tokio::runtime::Runtime,
    start: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<ExitCode> {
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let _running = start.await?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Asks a running part by its REST API. A refusal is printed, and its exit code returned.
fn ask(
    address: SocketAddr,
    part: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<Result<Value, ExitCode>> {
    let answer = runtime()?.block_on(rest::call(PATIENCE, address, method, path, body));
    Ok(match answer {
        Ok(answer) if answer.status < 400 => Ok(answer.body),
        Ok(answer) => {
            let detail = answer.body["detail"].as_str().unwrap_or("refused without a reason").to_owned();
            output::error(&anyhow::anyhow!(detail));
            Err(ExitCode::from(EXIT_FAILED))
        }
        Err(error @ CallError::Unreachable { .. }) => {
            let hint = format!("is the {part} running? (godwit mec {part} run)");
            output::error(&anyhow::Error::from(error).context(hint));
            Err(ExitCode::from(EXIT_UNREACHABLE))
        }
        Err(error) => return Err(error.into()),
    })
}

/// What the edge needs of a file.
pub(crate) struct File {
    pub(crate) run_dir: PathBuf,
    pub(crate) log: String,
    pub(crate) mec: Config,
}

/// Reads a file.
///
/// # Errors
/// [`Problems`] when it is wrong; another error when it cannot be read.
pub(crate) fn load(file: &Path) -> anyhow::Result<File> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read {} (name another file with -c)", file.display()))?;
    parse(&text).map_err(|problems| Problems { file: file.to_owned(), problems }.into())
}

fn parse(text: &str) -> Result<File, Vec<Problem>> {
    let one = |problem| vec![problem];
    let root = yaml::parse(text).map_err(one)?;
    let text = |key: &str, default: &str| match root.get(key) {
        Some(node) => de::read::<String>(node, key),
        None => Ok(default.to_owned()),
    };
    let missing = || {
        Problem::at(
            1,
            "mec",
            "is missing: the godwit.yaml of the sources has an example, docs/gtp-switch.md explains it",
        )
    };
    let mec: Config = de::read(root.get("mec").ok_or_else(missing).map_err(one)?, "mec").map_err(one)?;
    if let Some(problem) = check(&mec, &root) {
        return Err(vec![problem]);
    }
    let run_dir = text("run_dir", "/run/godwit").map_err(one)?.into();
    Ok(File { run_dir, log: text("log", "info").map_err(one)?, mec })
}

/// Checks the section's values against each other.
pub(crate) fn check(mec: &Config, root: &yaml::Node) -> Option<Problem> {
    let switch = mec.switch.as_ref().and_then(|switch| switch.validate().err());
    let switch = switch.map(|(key, message)| (format!("mec.switch.{key}"), message));
    let controller = mec.controller.as_ref().and_then(|controller| controller.check().err());
    let controller = controller.map(|bad| (format!("mec.controller.{}", bad.path), bad.message));
    let orchestrator = mec.orchestrator.as_ref().and_then(|orchestrator| orchestrator.check().err());
    let orchestrator = orchestrator.map(|bad| (format!("mec.orchestrator.{}", bad.path), bad.message));
    let agent = mec.agent.as_ref().and_then(|agent| agent.check().err());
    let agent = agent.map(|(key, message)| (format!("mec.agent.{key}"), message));
    let (path, message) = switch.or(controller).or(orchestrator).or(agent)?;
    Some(Problem::at(root.line_of(&path), &path, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the shipped configuration, out of its comments.
    fn shipped() -> String {
        let shipped = include_str!("../../../../godwit.yaml");
        let (_, example) = shipped.split_once("\n# mec:").unwrap();
        let lines = example.lines().map(|line| line.strip_prefix("# ").unwrap_or(line));
        format!("mec:{}\n", lines.collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn the_shipped_example_is_sound() {
        let mec = parse(&shipped()).ok().unwrap().mec;
        assert_eq!(mec.controller.unwrap().anchors.len(), 2);
        assert_eq!(mec.orchestrator.unwrap().hosts[0].anchor, "gw2");
        let switch = mec.switch.unwrap();
        assert_eq!((switch.ports.len(), switch.gtp_port), (2, Some(100)));
    }

    #[test]
    fn mistakes_have_their_line() {
        let said = |from: &str, to: &str| {
            let text = shipped();
            assert!(text.contains(from), "{from}");
            let line = text[..text.find(from).unwrap()].lines().count();
            let problem = parse(&text.replacen(from, to, 1)).err().unwrap().remove(0);
            assert!(problem.line.abs_diff(line) <= 2, "{problem:?} is not near line {line}");
            format!("{}: {}", problem.path, problem.message)
        };
        assert!(said("gtp_port: 100", "gtp_prt: 100").contains("did you mean `gtp_port`?"));
        assert!(
            said("gtp_port: 100", "gtp_port: 1").contains("mec.switch.gtp_port: 1 is a number of `ports`")
        );
        assert!(said("listen: 127.0.0.1", "listen: 192.0.2.1").contains("mec.switch.listen: 192.0.2.1"));
        assert!(
            said("- name: site1", "- name: origin").contains("mec.orchestrator.hosts: `origin` is no name")
        );
        let agent = |change: &str| {
            let sound = "mec:\n  agent:\n    listen: 10.9.0.3:8806\n    control: 10.0.0.9\n    clone: 10.0.0.12\n    gtpu: 10.0.0.12\n";
            let (key, _) = change.split_once(':').unwrap();
            let of_key = |line: &&str| line.trim_start().starts_with(&format!("{key}:"));
            let line = sound.lines().find(of_key).map_or("", str::trim_start);
            let text =
                if line.is_empty() { format!("{sound}    {change}\n") } else { sound.replace(line, change) };
            parse(&text).err().map(|problems| (problems[0].path.clone(), problems[0].line))
        };
        assert_eq!(agent("gtpu: 10.0.0.13"), None);
        for (change, line) in [
            ("listen: 10.9.0.3:0", 3),
            ("control: 0.0.0.0", 4),
            ("clone: 10.0.0.9", 5),
            ("clone: 2001:db8::1", 5),
            ("gtpu: 224.0.0.1", 6),
            ("window: 0", 7),
        ] {
            let (key, _) = change.split_once(':').unwrap();
            assert_eq!(agent(change), Some((format!("mec.agent.{key}"), line)), "{change}");
        }
        assert_eq!(parse("log: info").err().unwrap()[0].path, "mec");
    }
}
