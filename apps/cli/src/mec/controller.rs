//! `godwit mec controller run`, and the commands that ask a running controller: `divert`, `undivert`, `list`, `explain`.
//!
//! They use its REST API (docs/edge.md), at the address `mec.controller.rest` of the configuration.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use clap::Subcommand;
use net::capability::Capability;
use output::{Format, Table};
use serde_json::{Value, json};

use crate::admin::compact;
use crate::{ConfigArg, run};

/// Options of `godwit mec controller`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Run the controller of the section `mec: controller:` until SIGINT or SIGTERM.
    Run {
        #[command(flatten)]
        config: ConfigArg,
        /// Log filter, instead of `log` in the configuration.
        #[arg(long, value_name = "FILTER")]
        log: Option<String>,
    },
}

/// Where the controller is, and how its answer is printed.
#[derive(clap::Args, Debug)]
pub struct RestArg {
    #[command(flatten)]
    config: ConfigArg,
    /// Address of the controller's API; the configuration is not read then.
    #[arg(long, value_name = "ADDR:PORT")]
    rest: Option<SocketAddr>,
    #[command(flatten)]
    format: Format,
}

/// Options of `godwit mec divert`.
#[derive(clap::Args, Debug)]
pub struct DivertArgs {
    #[command(flatten)]
    rest: RestArg,
    /// Users' addresses; all are diverted, or none. Without one: everything of the anchor at this base station.
    ues: Vec<IpAddr>,
    /// The anchor that serves them now.
    #[arg(long, value_name = "ANCHOR")]
    from: String,
    /// The anchor that is to serve them.
    #[arg(long, value_name = "ANCHOR")]
    to: String,
    /// Their base station; another one than before is a handover.
    #[arg(long, value_name = "NAME")]
    base_station: String,
    /// Uplink TEIDs of the user, decimal or 0x…; for one user only.
    #[arg(long, value_name = "TEID", value_delimiter = ',', value_parser = teid)]
    teid: Vec<u32>,
    /// Only packets to this server.
    #[arg(long, value_name = "ADDR")]
    server: Option<IpAddr>,
    /// With --server: the IP protocol.
    #[arg(long, requires = "server", default_value_t = 17)]
    protocol: u8,
    /// With --server: the port.
    #[arg(long, requires = "server")]
    port: Option<u16>,
    /// Only what the user exchanges with this other user.
    #[arg(long, value_name = "UE", conflicts_with = "server")]
    peer: Option<IpAddr>,
    /// Who has confirmed that the new anchor has these users' state.
    #[arg(long, value_name = "WHO", default_value = "operator")]
    confirmed_by: String,
}

/// Options of `godwit mec undivert`.
#[derive(clap::Args, Debug)]
pub struct UndivertArgs {
    #[command(flatten)]
    rest: RestArg,
    /// Users' addresses, or ids of diversions as `godwit mec list` shows them.
    #[arg(required = true, value_name = "UE|ID")]
    what: Vec<String>,
}

/// Options of `godwit mec list`.
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    rest: RestArg,
    /// What to list.
    #[arg(value_enum, default_value_t = What::Diversions)]
    what: What,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Who is diverted.
    Diversions,
    /// Anchors, and whether they answer.
    Anchors,
    /// Switches.
    Switches,
    /// Applications, and whether they run.
    Applications,
    /// Captured control messages by anchor.
    Captures,
    /// What has happened.
    Events,
}

/// Options of `godwit mec explain`.
#[derive(clap::Args, Debug)]
pub struct ExplainArgs {
    #[command(flatten)]
    rest: RestArg,
    /// The user's address.
    ue: IpAddr,
    /// Its base station, if it is not diverted.
    #[arg(long, value_name = "NAME", requires = "from")]
    base_station: Option<String>,
    /// Its anchor, if it is not diverted.
    #[arg(long, value_name = "ANCHOR", requires = "base_station")]
    from: Option<String>,
    /// Its uplink TEID, if it is not diverted.
    #[arg(long, value_name = "TEID", value_parser = teid)]
    teid: Option<u32>,
}

fn teid(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a TEID is a number of 32 bits, such as 17 or 0x11".to_owned())
}

/// `godwit mec controller …`
///
/// # Errors
/// The configuration is wrong, or the controller cannot start.
pub fn serve(args: &Args) -> anyhow::Result<ExitCode> {
    let Verb::Run { config, log } = &args.verb;
    let file = super::load(&config.config)?;
    let own = super::section(config, file.mec.controller, "controller", "docs/edge.md")?;
    telemetry::log::init(log.as_deref().unwrap_or(&file.log))?;
    if !own.rest.ip().is_loopback() {
        tracing::warn!(address = %own.rest, "the REST API has no access control and is no loopback address (key `rest`)");
    }
    // It needs none of its own: switches are reached over TCP.
    net::privileges::keep_only(&needed(&own))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    super::serve(&runtime, async {
        let controller = ::controller::Controller::start(own).await?;
        tracing::info!(openflow = %controller.openflow(), rest = %controller.rest(), "ready");
        Ok(controller)
    })
}

/// Privileges for low ports, and for a state file in another user's folder.
fn needed(config: &::controller::Config) -> Vec<Capability> {
    let mut needed = Vec::new();
    if config.openflow.port() < 1024 || config.rest.port() < 1024 {
        needed.push(Capability::NetBindService);
    }
    let folder = config.state.parent().unwrap_or(&config.state);
    if run::folder_of_another(folder).is_some() && Capability::DacOverride.held() {
        needed.push(Capability::DacOverride);
    }
    needed
}

/// Asks the controller. A refusal is printed, and its exit code returned.
fn ask(
    arg: &RestArg,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<Result<Value, ExitCode>> {
    let address = match arg.rest {
        Some(address) => address,
        None => {
            let file = super::load(&arg.config.config)?;
            super::section(&arg.config, file.mec.controller, "controller", "docs/edge.md")?.rest
        }
    };
    super::ask(address, "controller", method, path, body)
}

/// `godwit mec divert`
///
/// # Errors
/// The controller does not answer as it should.
pub fn divert(args: &DivertArgs) -> anyhow::Result<ExitCode> {
    if args.ues.len() > 1 && !args.teid.is_empty() {
        anyhow::bail!("--teid is for one user: each user has TEIDs of its own");
    }
    let of_user = |ue: Option<&IpAddr>| {
        let mut body = json!({
            "from": args.from, "to": args.to, "base_station": args.base_station, "confirmed_by": args.confirmed_by,
        });
        if let Some(ue) = ue {
            body["ue"] = json!(ue);
        }
        if !args.teid.is_empty() {
            body["tunnels"] = args.teid.iter().map(|teid| json!({"uplink": teid})).collect();
        }
        if let Some(server) = args.server {
            body["application"] = json!({"protocol": args.protocol, "server": server, "port": args.port});
        }
        if let Some(peer) = args.peer {
            body["peer"] = json!(peer);
        }
        body
    };
    let body: Vec<Value> = if args.ues.is_empty() {
        vec![of_user(None)]
    } else {
        args.ues.iter().map(|ue| of_user(Some(ue))).collect()
    };
    changed(&args.rest, "/v1/diversions", &Value::Array(body), "diverted")
}

/// `godwit mec undivert`
///
/// # Errors
/// As [`divert`].
pub fn undivert(args: &UndivertArgs) -> anyhow::Result<ExitCode> {
    let (ues, ids): (Vec<&String>, Vec<&String>) =
        args.what.iter().partition(|what| what.parse::<IpAddr>().is_ok());
    changed(&args.rest, "/v1/diversions/remove", &json!({"ues": ues, "ids": ids}), "no longer diverted")
}

fn changed(arg: &RestArg, path: &str, body: &Value, what: &str) -> anyhow::Result<ExitCode> {
    let done = match ask(arg, "POST", path, Some(body))? {
        Ok(done) => done,
        Err(code) => return Ok(code),
    };
    if arg.format.json {
        output::json(&done)?;
        return Ok(ExitCode::SUCCESS);
    }
    let count = |key: &str| done[key].as_array().map_or(0, Vec::len);
    let mut text = String::new();
    for id in done["changed"].as_array().into_iter().flatten() {
        text += &format!("{}: {what}\n", compact(id));
    }
    if count("changed") == 0 {
        text += "nothing to do\n";
    }
    if count("pending") > 0 {
        text += &format!("takes effect when they connect: {}\n", compact(&done["pending"]));
    }
    output::text(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// `godwit mec list`
///
/// # Errors
/// As [`divert`].
pub fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let (key, columns, empty): (&str, &[&'static str], &str) = match args.what {
        What::Diversions => (
            "diversions",
            &["id", "to", "base_station", "tunnels", "target_address", "confirmed_by"],
            "nobody is diverted",
        ),
        What::Anchors => {
            ("anchors", &["name", "switch", "address", "alive", "mac", "missed"], "there are no anchors")
        }
        What::Switches => (
            "switches",
            &["name", "datapath_id", "connected", "place", "dialect", "rules", "software"],
            "there are no switches",
        ),
        What::Applications => ("applications", &["name", "running"], "there are no applications"),
        What::Captures => {
            ("captures", &["anchor", "name", "kept", "bytes", "total", "discarded"], "nothing was captured")
        }
        What::Events => ("events", &["number", "switch", "what"], "nothing has happened"),
    };
    let answer = match ask(&args.rest, "GET", &format!("/v1/{key}"), None)? {
        Ok(answer) => answer,
        Err(code) => return Ok(code),
    };
    let mut table = Table::new(columns);
    for row in answer[key].as_array().into_iter().flatten() {
        table.row(columns.iter().map(|column| compact(&row[*column])));
    }
    output::listing(args.rest.format, &answer, &table, empty)?;
    Ok(ExitCode::SUCCESS)
}

/// `godwit mec explain`
///
/// # Errors
/// As [`divert`].
pub fn explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let mut path = format!("/v1/ues/{}", args.ue);
    if let (Some(station), Some(from)) = (&args.base_station, &args.from) {
        path += &format!("?base_station={station}&from={from}");
        path += &args.teid.map(|teid| format!("&teid={teid}")).unwrap_or_default();
    }
    let answer = match ask(&args.rest, "GET", &path, None)? {
        Ok(answer) => answer,
        Err(code) => return Ok(code),
    };
    if args.rest.format.json {
        output::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::text(&explained(&answer))?;
    Ok(ExitCode::SUCCESS)
}

/// The answer for people: each way with its rules.
fn explained(answer: &Value) -> String {
    let mut text = String::new();
    for one in answer["explained"].as_array().into_iter().flatten() {
        let about = match one["id"].as_str() {
            Some(id) => format!("{id}: diverted from {} to {}", compact(&one["from"]), compact(&one["to"])),
            None => format!("{}: not diverted, served by {}", compact(&answer["ue"]), compact(&one["from"])),
        };
        text += &format!("{about}, base station {}\n", compact(&one["base_station"]));
        for way in one["ways"].as_array().into_iter().flatten() {
            let destination = way["destination"].as_str().map(|to| format!(" to {to}")).unwrap_or_default();
            let macs = match (way["source_mac"].as_str(), way["destination_mac"].as_str()) {
                (Some(from), Some(to)) => format!(", from {from} to {to}"),
                _ => String::new(),
            };
            text += &format!(
                "\n{} at {}{destination}: {}{macs}\n",
                compact(&way["direction"]),
                compact(&way["switch"]),
                compact(&way["result"])
            );
            let mut table = Table::new(&["TABLE", "PRIORITY", "RULE", "PACKETS", "BYTES", "MATCH"]);
            for rule in way["rules"].as_array().into_iter().flatten() {
                let name = rule["rule"].as_str().unwrap_or("(not ours)").to_owned();
                let cell = |key: &str| compact(&rule[key]);
                table.row([
                    cell("table"),
                    cell("priority"),
                    name,
                    cell("packets"),
                    cell("bytes"),
                    cell("matching"),
                ]);
            }
            text += &table.render();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_shown_with_their_rules() {
        let answer = json!({"ue": "10.45.0.2", "diverted": true, "explained": [{
            "id": "gw1~10.45.0.2", "from": "gw1", "to": "gw2", "base_station": "enb1",
            "ways": [{"switch": "edge1", "direction": "uplink", "result": "output to gw2", "destination": "10.0.0.12",
                "source_mac": "02:00:00:00:00:01", "destination_mac": "02:00:00:00:00:12",
                "rules": [{"table": 1, "priority": 190, "rule": "SW-T1-H", "packets": 7, "bytes": 99, "matching": "ipv4_src=10.45.0.2"}]}],
        }]});
        let text = explained(&answer);
        assert!(
            text.contains("diverted from gw1 to gw2")
                && text.contains(
                    "uplink at edge1 to 10.0.0.12: output to gw2, from 02:00:00:00:00:01 to 02:00:00:00:00:12"
                ),
            "{text}"
        );
        assert!(text.contains("SW-T1-H  7"), "{text}");
        assert_eq!((teid("0x11"), teid("17")), (Ok(17), Ok(17)));
        assert!(teid("x").is_err());
    }
}
