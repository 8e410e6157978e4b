//! `godwit ue`, `session`, `upf` and `status`: listings from a running core, over its NFs' administration sockets.
//!
//! The sockets are in `run_dir`. The user that the core runs as can open them, also from another
//! network namespace.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use nf::oam::{self, CallError};
use serde_json::Value;

use crate::live::{self, Timing};
use crate::{ConfigArg, EXIT_FAILED, EXIT_UNREACHABLE, config};
use output::{self, Format, Table};

/// Option: the folder of the sockets.
#[derive(clap::Args, Debug)]
pub(crate) struct SocketArg {
    #[command(flatten)]
    config: ConfigArg,
    /// Folder of the administration sockets; the configuration is not read then.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// Options of `godwit ue`.
#[derive(clap::Args, Debug)]
pub struct UeArgs {
    #[command(subcommand)]
    verb: UeVerb,
}

#[derive(Subcommand, Debug)]
enum UeVerb {
    /// List the UEs the AMF knows.
    List(SocketArg),
    /// Deregister a UE from the network side.
    Deregister {
        #[command(flatten)]
        socket: SocketArg,
        /// IMSI, with or without `imsi-`.
        imsi: String,
    },
}

/// Options of `godwit session`.
#[derive(clap::Args, Debug)]
pub struct SessionArgs {
    #[command(subcommand)]
    verb: SessionVerb,
}

#[derive(Subcommand, Debug)]
enum SessionVerb {
    /// List PDU sessions, or bearers of 4G.
    List {
        #[command(flatten)]
        socket: SocketArg,
        /// The bearers of the S/P-GW's PDN connections.
        #[arg(long = "4g")]
        epc: bool,
    },
    /// Show the PDU sessions of one UE, with their traffic.
    Show {
        #[command(flatten)]
        socket: SocketArg,
        /// IMSI, with or without `imsi-`.
        imsi: String,
        /// PDU session identity; all sessions when not given.
        id: Option<u8>,
        #[command(flatten)]
        timing: Timing,
    },
    /// Release a PDU session from the network side.
    Release {
        #[command(flatten)]
        socket: SocketArg,
        /// IMSI, with or without `imsi-`.
        imsi: String,
        /// PDU session identity.
        id: u8,
    },
}

/// Options of `godwit upf`.
#[derive(clap::Args, Debug)]
pub struct UpfArgs {
    #[command(subcommand)]
    verb: UpfVerb,
}

#[derive(Subcommand, Debug)]
enum UpfVerb {
    /// Packets, octets and drops by reason, with their rates.
    Stats {
        #[command(flatten)]
        socket: SocketArg,
        #[command(flatten)]
        timing: Timing,
    },
    /// Sessions of the UPF.
    Sessions(SocketArg),
    /// The nodes of the packet path: packets per call, nanoseconds per packet, drops, and where packets go next.
    #[command(long_about = GRAPH)]
    Graph(SocketArg),
}

/// Options of `godwit status`.
#[derive(clap::Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    socket: SocketArg,
}

/// `godwit ue …`
///
/// # Errors
/// When the result cannot be written or the configuration is wrong.
pub fn ue(args: &UeArgs) -> anyhow::Result<ExitCode> {
    match &args.verb {
        UeVerb::List(socket) => {
            let columns = ["supi", "state", "connection", "guti", "gnb", "tai", "sessions"];
            list(socket, "amf", "/ues", &columns, "no UE is registered")
        }
        UeVerb::Deregister { socket, imsi } => {
            act(socket, "amf", &format!("/ues/{}/deregister", supi(imsi)?))
        }
    }
}

/// `godwit session …`
///
/// # Errors
/// As [`ue()`].
pub fn session(args: &SessionArgs) -> anyhow::Result<ExitCode> {
    const COLUMNS: [&str; 9] = ["supi", "id", "dnn", "snssai", "type", "ipv4", "ipv6", "state", "user_plane"];
    match &args.verb {
        SessionVerb::List { socket, epc: true } => bearers(socket),
        SessionVerb::List { socket, epc: false } => {
            list(socket, "smf", "/sessions", &COLUMNS, "no PDU session is established")
        }
        SessionVerb::Show { socket, imsi, id, timing } => live::session(socket, &supi(imsi)?, *id, timing),
        SessionVerb::Release { socket, imsi, id } => {
            act(socket, "smf", &format!("/sessions/{}/{id}/release", supi(imsi)?))
        }
    }
}

/// `godwit upf …`
///
/// # Errors
/// As [`ue()`].
pub fn upf(args: &UpfArgs) -> anyhow::Result<ExitCode> {
    match &args.verb {
        UpfVerb::Stats { socket, timing } => live::stats(socket, timing),
        UpfVerb::Sessions(socket) => {
            let columns = ["seid", "smf", "ipv4", "ipv6", "uplink_packets", "downlink_packets"];
            list(socket, "upf", "/sessions", &columns, "the UPF holds no session")
        }
        UpfVerb::Graph(socket) => graph(socket),
    }
}

const GRAPH: &str = "\
    The nodes of the packet path, in order: how often each ran, with how many packets, how long it took, which packets \
    ended there, and where the others go next. A vector of packets goes the straight way (receive, parse, look_up, \
    execute, transmit) in one piece; the other nodes are for packets that need more.\n\n\
    Times are those of one vector in 64. Nodes without a time work packet by packet inside the node before them, and \
    their time is in that node's.";

/// Lists the nodes of the packet path, in the order of the graph.
fn graph(socket: &SocketArg) -> anyhow::Result<ExitCode> {
    const COLUMNS: [&str; 7] =
        ["node", "calls", "packets", "packets_per_call", "ns_per_packet", "drops", "next"];
    let answer = match ask(socket, "upf", "GET", "/graph")? {
        Ok(answer) => answer,
        Err(code) => return Ok(code),
    };
    let mut table = Table::new(&COLUMNS);
    for row in rows(&answer) {
        table.row(COLUMNS.map(|column| row.get(column).map(compact).unwrap_or_default()));
    }
    output::listing(socket.format, &answer, &table, "the UPF has no graph")?;
    Ok(ExitCode::SUCCESS)
}

/// `godwit status`: whether each NF of this machine runs and is registered. Exit code 4 if none runs.
/// Some NFs may be missing: they may run on other machines.
///
/// # Errors
/// As [`ue()`].
pub fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let folder = run_dir(&args.socket)?;
    let runtime = runtime()?;
    let mut table = Table::new(&["NF", "STATE", "ADDRESS", "PID", "UPTIME", "DETAIL"]);
    let mut all = serde_json::Map::new();
    let (mut answered, mut unwell) = (false, false);
    for name in config::runnable() {
        let answer = runtime.block_on(oam::call(&oam::socket_path(&folder, name), "GET", "/status", None));
        // What is run by its name only is not missed.
        if config::is_optional(name) && matches!(answer, Err(CallError::NotRunning { .. })) {
            continue;
        }
        let mut row = vec![name.to_owned()];
        match &answer {
            Ok(status) => {
                answered = true;
                let alone =
                    status["registered"] == false && name != "nrf" && !config::EPC_SECTIONS.contains(&name);
                row.push(if alone { "not registered" } else { "running" }.to_owned());
                row.push(compact(
                    ["sbi", "pfcp_address", "address"]
                        .iter()
                        .find_map(|key| status.get(key))
                        .unwrap_or(&Value::Null),
                ));
                row.push(compact(&status["pid"]));
                row.push(
                    status["uptime_s"].as_u64().map(|seconds| format!("{seconds} s")).unwrap_or_default(),
                );
                row.push(compact(
                    status.get("detail").or(status.get("associations")).unwrap_or(&Value::Null),
                ));
            }
            Err(CallError::NotRunning { .. }) => row.push("not running".to_owned()),
            Err(error) => {
                unwell = true;
                row.extend(["unwell".to_owned(), error.to_string()]);
            }
        }
        table.row(row);
        all.insert(name.to_owned(), answer.unwrap_or(Value::Null));
    }
    output::listing(args.socket.format, &all, &table, "")?;
    Ok(match (unwell, answered) {
        (true, _) => ExitCode::from(EXIT_FAILED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(EXIT_UNREACHABLE),
    })
}

pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// `imsi-…`, from an IMSI with or without the prefix. The text is checked because it becomes part of a
/// path.
fn supi(text: &str) -> anyhow::Result<String> {
    let imsi: types::Imsi = text.strip_prefix("imsi-").unwrap_or(text).parse()?;
    Ok(types::Supi(imsi).to_string())
}

pub(crate) fn run_dir(socket: &SocketArg) -> anyhow::Result<PathBuf> {
    match &socket.run_dir {
        Some(folder) => Ok(folder.clone()),
        None => Ok(config::load(&socket.config.config)?.run_dir),
    }
}

/// How long an NF may take for an operation that involves the UE. Paging (3 × T3513) and a request with
/// its repetitions (5 × T3522) take 42 s by default; the rest is for longer timers.
const ACTION_LIMIT: Duration = Duration::from_secs(120);

/// Calls an NF. If that fails, writes the reason and returns the exit code as the inner error.
fn ask(socket: &SocketArg, nf: &str, method: &str, route: &str) -> anyhow::Result<Result<Value, ExitCode>> {
    let path = oam::socket_path(&run_dir(socket)?, nf);
    let answer = runtime()?.block_on(async {
        if method == "GET" {
            oam::call(&path, method, route, None).await
        } else {
            oam::call_within(ACTION_LIMIT, &path, method, route, None).await
        }
    });
    Ok(answer.map_err(|error| refused(&error)))
}

/// Writes why an NF did not answer and returns the exit code.
pub(crate) fn refused(error: &CallError) -> ExitCode {
    use std::io::Write as _;
    // A closed stderr leaves the exit code.
    let _ = writeln!(std::io::stderr(), "godwit: {error}");
    match error {
        CallError::NotRunning { .. } => ExitCode::from(EXIT_UNREACHABLE),
        _ => ExitCode::from(EXIT_FAILED),
    }
}

/// The rows of an answer: the answer if it is a list, else the one list that the object contains.
pub(crate) fn rows(answer: &Value) -> &[Value] {
    let list = answer.as_array().or_else(|| answer.as_object()?.values().find_map(Value::as_array));
    list.map_or(&[], Vec::as_slice)
}

/// Sorts the rows of an answer by their first two columns: NFs do not list them in an order.
fn sort(answer: &mut Value, columns: &[&'static str]) {
    let list = match answer {
        Value::Array(list) => Some(list),
        Value::Object(map) => map.values_mut().find_map(Value::as_array_mut),
        _ => None,
    };
    let key = |row: &Value| {
        let cells = columns.iter().take(2).map(|column| &row[column]);
        cells.map(|cell| (cell.as_u64(), compact(cell))).collect::<Vec<_>>()
    };
    list.into_iter().for_each(|list| list.sort_by_cached_key(key));
}

fn list(
    socket: &SocketArg,
    nf: &str,
    route: &str,
    columns: &[&'static str],
    empty: &str,
) -> anyhow::Result<ExitCode> {
    let mut answer = match ask(socket, nf, "GET", route)? {
        Ok(answer) => answer,
        Err(code) => return Ok(code),
    };
    sort(&mut answer, columns);
    let rows = rows(&answer);
    // Columns that are empty in every row are left out.
    let shown: Vec<&'static str> =
        columns.iter().copied().filter(|column| rows.iter().any(|row| row.get(column).is_some())).collect();
    let mut table = Table::new(&shown);
    for row in rows {
        table.row(shown.iter().map(|column| row.get(column).map(compact).unwrap_or_default()));
    }
    output::listing(socket.format, &answer, &table, empty)?;
    Ok(ExitCode::SUCCESS)
}

/// The PDN connections of all gateways that run here.
fn pdn_connections(socket: &SocketArg) -> anyhow::Result<Result<Value, ExitCode>> {
    let (folder, runtime) = (run_dir(socket)?, runtime()?);
    let (mut all, mut answered, mut missing) = (Vec::new(), false, None);
    for name in config::EPC_SECTIONS {
        let path = oam::socket_path(&folder, name);
        match runtime.block_on(oam::call(&path, "GET", "/sessions", None)) {
            Ok(answer) => {
                answered = true;
                all.extend(rows(&answer).iter().map(|pdn| {
                    let mut pdn = pdn.clone();
                    pdn["gateway"] = Value::from(*name);
                    pdn
                }));
            }
            Err(error @ CallError::NotRunning { .. }) => missing = missing.or(Some(error)),
            Err(error) => return Ok(Err(refused(&error))),
        }
    }
    Ok(match missing {
        Some(error) if !answered => Err(refused(&error)),
        _ => Ok(Value::Array(all)),
    })
}

/// Lists the bearers of PDN connections. As JSON, PDN connections with their bearers.
fn bearers(socket: &SocketArg) -> anyhow::Result<ExitCode> {
    const PDN: [&str; 6] = ["gateway", "imsi", "apn", "ipv4", "ipv6", "state"];
    const BEARER: [&str; 5] = ["ebi", "qci", "enb", "enb_teid", "upf_teid"];
    let answer = match pdn_connections(socket)? {
        Ok(answer) => answer,
        Err(code) => return Ok(code),
    };
    let mut table = Table::new(&[&PDN[..], &BEARER, &["filters"]].concat());
    for pdn in rows(&answer) {
        for bearer in rows(&pdn["bearers"]) {
            let text = |of: &Value, name: &str| of.get(name).map(compact).unwrap_or_default();
            let filters = rows(&bearer["filters"]).iter().map(compact).collect::<Vec<_>>().join("; ");
            let pdn = PDN.iter().map(|name| text(pdn, name));
            table.row(pdn.chain(BEARER.iter().map(|name| text(bearer, name))).chain([filters]));
        }
    }
    output::listing(socket.format, &answer, &table, "no PDN connection is established")?;
    Ok(ExitCode::SUCCESS)
}

fn act(socket: &SocketArg, nf: &str, route: &str) -> anyhow::Result<ExitCode> {
    match ask(socket, nf, "POST", route)? {
        Ok(answer) if socket.format.json => output::json(&answer)?,
        Ok(_) => output::text("done\n")?,
        Err(code) => return Ok(code),
    }
    Ok(ExitCode::SUCCESS)
}

/// Nested counters as one row each, named with dots.
pub(crate) fn flatten(prefix: &str, value: &Value, table: &mut Table) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&name, value, table);
            }
        }
        other => table.row([prefix.to_owned(), compact(other)]),
    }
}

/// A value in one cell: text without quotes, lists joined.
pub(crate) fn compact(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(compact).collect::<Vec<_>>().join(" "),
        Value::Object(map) => {
            map.iter().map(|(key, value)| format!("{key}={}", compact(value))).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_cells() {
        let value = serde_json::json!({"drops": {"no_session": 3}, "up": [1, 2], "none": null});
        let mut table = Table::new(&["COUNTER", "VALUE"]);
        flatten("", &value, &mut table);
        let text = table.render();
        assert!(text.contains("drops.no_session  3\n") && text.contains("1 2\n"), "{text}");
        assert_eq!(rows(&serde_json::json!({"ues": [1]})).len(), 1);
        assert_eq!(compact(&serde_json::json!({"sst": 1})), "sst=1");
        let mut ues = serde_json::json!({"ues": [{"supi": "b", "id": 1}, {"supi": "a", "id": 10}, {"supi": "a", "id": 9}]});
        sort(&mut ues, &["supi", "id"]);
        assert_eq!(
            rows(&ues).iter().map(|row| row["id"].as_u64()).collect::<Vec<_>>(),
            [Some(9), Some(10), Some(1)]
        );
        assert!(supi("../x").is_err());
        assert_eq!(supi("999700000000001").unwrap(), "imsi-999700000000001");
    }
}
