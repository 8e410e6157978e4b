//! `godwit mec orchestrator run`, and the commands that ask a running orchestrator: `move`, `status`, `hosts`.
//!
//! They use its REST API (docs/mec.md), at the address `mec.orchestrator.rest` of the configuration.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use net::capability::Capability;
use orchestrator::config::Driver;
use output::{Format, Table};
use serde_json::{Value, json};

use crate::admin::compact;
use crate::{ConfigArg, EXIT_FAILED, run};

/// From one question for a move to the next.
const PAUSE: Duration = Duration::from_millis(100);

/// Options of `godwit mec orchestrator`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Run the orchestrator of the section `mec: orchestrator:` until SIGINT or SIGTERM. Anchors and users stay as they are then.
    Run {
        #[command(flatten)]
        config: ConfigArg,
        /// Log filter, instead of `log` in the configuration.
        #[arg(long, value_name = "FILTER")]
        log: Option<String>,
    },
}

/// Where the orchestrator is, and how its answer is printed.
#[derive(clap::Args, Debug)]
pub struct RestArg {
    #[command(flatten)]
    config: ConfigArg,
    /// Address of the orchestrator's API; the configuration is not read then.
    #[arg(long, value_name = "ADDR:PORT")]
    rest: Option<SocketAddr>,
    #[command(flatten)]
    format: Format,
}

/// Options of `godwit mec move`.
#[derive(clap::Args, Debug)]
pub struct MoveArgs {
    #[command(flatten)]
    rest: RestArg,
    /// Users' addresses, or identities such as imsi-001010000000001.
    #[arg(required_unless_present = "all_of", conflicts_with = "all_of", value_name = "UE")]
    ues: Vec<String>,
    /// Everybody who is there: on an edge host, or of an original anchor.
    #[arg(long, value_name = "ANCHOR|HOST")]
    all_of: Option<String>,
    /// The edge host that is to serve them; `origin`: their original anchors.
    #[arg(long, value_name = "HOST")]
    to: String,
    /// Only users who are there: on this edge host, or of this original anchor.
    #[arg(long, value_name = "ANCHOR|HOST", conflicts_with = "all_of")]
    from: Option<String>,
    /// Only copy their state, so that a later move is quick; with `--to origin`: leave it there.
    #[arg(long)]
    warm: bool,
    /// Move nobody unless all can be moved.
    #[arg(long)]
    all_or_none: bool,
    /// Move them after their base stations from then on; `--follow false`: do not.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    follow: Option<bool>,
    /// Whether packets keep their order while they change their way.
    #[arg(long, value_enum, default_value_t = Order::None)]
    order: Order,
    /// Whether only the users' state is copied, or all of the original anchor is replayed.
    #[arg(long, value_enum, default_value_t = Scheme::Selective)]
    scheme: Scheme,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// Packets on the old way may arrive later than those on the new one.
    None,
    /// Packets on the new way are held until those on the old way have arrived.
    Keep,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Scheme {
    /// That of the moved users.
    Selective,
    /// Everything of the original anchor.
    Naive,
}

/// Options of `godwit mec status`.
#[derive(clap::Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    rest: RestArg,
    /// Number of a move.
    #[arg(value_name = "MOVE")]
    id: Option<u64>,
}

/// Options of `godwit mec hosts`.
#[derive(clap::Args, Debug)]
pub struct HostsArgs {
    #[command(flatten)]
    rest: RestArg,
}

/// `godwit mec orchestrator …`
///
/// # Errors
/// The configuration is wrong, or the orchestrator cannot start.
pub fn serve(args: &Args) -> anyhow::Result<ExitCode> {
    let Verb::Run { config, log } = &args.verb;
    let file = super::load(&config.config)?;
    let own = super::section(config, file.mec.orchestrator, "orchestrator", "docs/mec.md")?;
    telemetry::log::init(log.as_deref().unwrap_or(&file.log))?;
    if !own.rest.ip().is_loopback() {
        tracing::warn!(address = %own.rest, "the REST API has no access control and is no loopback address (key `rest`)");
    }
    // Anchors in namespaces get their privileges from this process.
    if own.hosts.iter().all(|host| host.driver == Driver::External) {
        net::privileges::keep_only(&needed(&own))?;
    }
    let program = std::env::current_exe().context("where this program is")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    super::serve(&runtime, async {
        let orchestrator = ::orchestrator::Orchestrator::start(own, program, file.run_dir).await?;
        tracing::info!(rest = %orchestrator.rest(), "ready");
        Ok(orchestrator)
    })
}

/// Privileges for a low port, and for a state file in another user's folder.
fn needed(config: &::orchestrator::Config) -> Vec<Capability> {
    let mut needed = Vec::new();
    if config.rest.port() < 1024 {
        needed.push(Capability::NetBindService);
    }
    let folder = config.state.parent().unwrap_or(&config.state);
    if run::folder_of_another(folder).is_some() && Capability::DacOverride.held() {
        needed.push(Capability::DacOverride);
    }
    needed
}

fn address(arg: &RestArg) -> anyhow::Result<SocketAddr> {
    if let Some(address) = arg.rest {
        return Ok(address);
    }
    let file = super::load(&arg.config.config)?;
    Ok(super::section(&arg.config, file.mec.orchestrator, "orchestrator", "docs/mec.md")?.rest)
}

/// `godwit mec move`: shows each step, and ends with success if nobody stays. Idle users may still wait until they are active.
///
/// # Errors
/// The orchestrator does not answer as it should.
pub fn move_users(args: &MoveArgs) -> anyhow::Result<ExitCode> {
    let address = address(&args.rest)?;
    let mut body = json!({
        "to": args.to, "from": args.all_of.as_ref().or(args.from.as_ref()), "warm": args.warm, "all_or_none": args.all_or_none,
        "follow": args.follow, "order": args.order, "scheme": args.scheme,
    });
    if args.all_of.is_none() {
        body["ues"] = json!(args.ues);
    }
    let mut one = match super::ask(address, "orchestrator", "POST", "/v1/moves", Some(&body))? {
        Ok(one) => one,
        Err(code) => return Ok(code),
    };
    let mut shown = 0;
    loop {
        if !args.rest.format.json {
            shown += progress(&one, shown)?;
        }
        if one["ended"] == true {
            break;
        }
        // Each change of the move is shown within a second. When many others wait, the answer comes at once.
        net::time::sleep_thread(PAUSE);
        let path = format!("/v1/moves/{}?wait=1", one["id"]);
        one = match super::ask(address, "orchestrator", "GET", &path, None)? {
            Ok(one) => one,
            Err(code) => return Ok(code),
        };
    }
    if args.rest.format.json {
        output::json(&one)?;
    } else {
        output::text(&who_is_not_there(&one))?;
    }
    let all = one["state"] == "done" && one["counts"]["stays"] == 0;
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

/// Prints what has happened behind the entries that are shown already, and returns how many these are.
fn progress(one: &Value, shown: usize) -> anyhow::Result<usize> {
    let history = one["history"].as_array().map(Vec::as_slice).unwrap_or_default();
    let new = history.get(shown..).unwrap_or_default();
    let text: String = new
        .iter()
        .map(|entry| {
            format!("move {}: {}: {}\n", one["id"], compact(&entry["state"]), compact(&entry["detail"]))
        })
        .collect();
    output::text(&text)?;
    Ok(new.len())
}

/// Who stays, and why; how many unknown names are not listed; and how many are moved when they are active.
fn who_is_not_there(one: &Value) -> String {
    let stay: Vec<&Value> =
        one["ues"].as_array().into_iter().flatten().filter(|user| user["state"] == "stays").collect();
    let mut said: String = stay
        .iter()
        .map(|user| format!("{} stays: {}\n", compact(&user["id"]), compact(&user["why"])))
        .collect();
    let count = |state: &str| one["counts"][state].as_u64().unwrap_or_default();
    match count("stays").saturating_sub(stay.len() as u64) {
        0 => {}
        more => said += &format!("no anchor has {more} more of the named users\n"),
    }
    match count("waiting") {
        0 => {}
        waiting => said += &format!("{waiting} wait: they are diverted when they are active\n"),
    }
    said
}

/// `godwit mec status`
///
/// # Errors
/// As [`move_users`].
pub fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let address = address(&args.rest)?;
    let path = args.id.map_or("/v1/moves".to_owned(), |id| format!("/v1/moves/{id}"));
    let answer = match super::ask(address, "orchestrator", "GET", &path, None)? {
        Ok(answer) => answer,
        Err(code) => return Ok(code),
    };
    if args.id.is_none() {
        let columns = ["id", "to", "state", "moved", "waiting", "warm", "stays", "reason", "detail"];
        let mut table = Table::new(&columns);
        for one in answer["moves"].as_array().into_iter().flatten() {
            let cell = |key: &&str| {
                let count = &one["counts"][*key];
                compact(if count.is_null() { &one[*key] } else { count })
            };
            table.row(columns.iter().map(cell));
        }
        output::listing(args.rest.format, &answer, &table, "there were no moves")?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.rest.format.json {
        output::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    progress(&answer, 0)?;
    let columns = ["id", "addresses", "origin", "from", "state", "why"];
    let mut table = Table::new(&columns);
    for user in answer["ues"].as_array().into_iter().flatten() {
        table.row(columns.iter().map(|key| compact(&user[*key])));
    }
    output::text(&table.render())?;
    Ok(ExitCode::SUCCESS)
}

/// `godwit mec hosts`
///
/// # Errors
/// As [`move_users`].
pub fn hosts(args: &HostsArgs) -> anyhow::Result<ExitCode> {
    let answer = match super::ask(address(&args.rest)?, "orchestrator", "GET", "/v1/hosts", None)? {
        Ok(answer) => answer,
        Err(code) => return Ok(code),
    };
    let columns =
        ["name", "anchor", "driver", "running", "answers", "ues", "ues_with_state", "capacity", "problem"];
    let mut table = Table::new(&columns);
    for host in answer["hosts"].as_array().into_iter().flatten() {
        table.row(columns.iter().map(|key| compact(&host[*key])));
    }
    output::listing(args.rest.format, &answer, &table, "there are no edge hosts")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_there_is_said_with_the_reason() {
        let mut one = json!({"counts": {"stays": 1, "waiting": 0}, "ues": [
            {"id": "imsi-1", "state": "moved", "why": null}, {"id": "imsi-2", "state": "stays", "why": "edge1 is full"},
        ]});
        assert_eq!(who_is_not_there(&one), "imsi-2 stays: edge1 is full\n");
        one["counts"] = json!({"stays": 51, "waiting": 2});
        let said = who_is_not_there(&one);
        assert!(said.contains("no anchor has 50 more") && said.contains("2 wait:"), "{said}");
    }
}
