//! `godwit mec switch run` and `show`: the switch, and what it is doing.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Subcommand;
use net::capability::Capability;
use nf::oam;
use output::{Format, Table};
use serde_json::Value;

use crate::admin::{compact, refused, runtime};
use crate::{ConfigArg, run};

/// Name of the administration socket.
const NAME: &str = "switch";

/// Options of `godwit mec switch`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Run the switch of the section `mec: switch:` until SIGINT or SIGTERM.
    Run {
        #[command(flatten)]
        config: ConfigArg,
        /// Log filter, instead of `log` in the configuration.
        #[arg(long, value_name = "FILTER")]
        log: Option<String>,
    },
    /// Show the running switch: ports, tables, entries with their counters, controllers, tunnels in XDP, caches.
    Show {
        #[command(flatten)]
        config: ConfigArg,
        /// Folder of the administration socket; the configuration is not read then.
        #[arg(long, value_name = "DIR")]
        run_dir: Option<std::path::PathBuf>,
        #[command(flatten)]
        format: Format,
    },
}

/// `godwit mec switch …`
///
/// # Errors
/// The configuration is wrong, or the switch cannot start.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::Run { config, log } => serve(config, log.as_deref()),
        Verb::Show { config, run_dir, format } => {
            let run_dir = match run_dir {
                Some(folder) => folder.clone(),
                None => super::load(&config.config)?.run_dir,
            };
            let path = oam::socket_path(&run_dir, NAME);
            match runtime()?.block_on(oam::call(&path, "GET", "/status", None)) {
                Ok(status) => show(&status, *format),
                Err(error) => Ok(refused(&error)),
            }
        }
    }
}

fn serve(arg: &ConfigArg, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let file = super::load(&arg.config)?;
    let config = super::section(arg, file.mec.switch, "switch", "docs/gtp-switch.md")?;
    telemetry::log::init(log.unwrap_or(&file.log))?;
    // They apply to threads that start later: the workers', and those of the runtime.
    let mut kept = vec![Capability::NetAdmin, Capability::NetRaw, Capability::Bpf, Capability::IpcLock];
    if config.xdp.is_some() {
        kept.push(Capability::Perfmon);
    }
    if config.workers.realtime {
        kept.push(Capability::SysNice);
    }
    if run::folder_of_another(&file.run_dir).is_some() && Capability::DacOverride.held() {
        kept.push(Capability::DacOverride);
    }
    net::privileges::keep_only(&kept)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    super::serve(&runtime, async {
        let service = Arc::new(::switch::Service::start(&config).await?);
        let asked = Arc::clone(&service);
        let routes = nf::Oam::new().get("/status", move |_| {
            let status = asked.status();
            async move { Ok(status) }
        });
        let path = oam::socket_path(&file.run_dir, NAME);
        let server = routes.serve(&path).with_context(|| format!("cannot serve {}", path.display()))?;
        tracing::info!(ports = config.ports.len(), "ready");
        Ok((server, service))
    })
}

/// Writes what a switch says about itself.
fn show(status: &Value, format: Format) -> anyhow::Result<ExitCode> {
    if format.json {
        output::json(status)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text =
        format!("switch {}  {}\n", compact(&status["datapath_id"]), compact(&status["description"]));
    let lists: [(&str, &[&'static str]); 4] = [
        ("ports", &["number", "name", "live", "rx_packets", "rx_dropped", "tx_packets", "tx_dropped"]),
        ("tables", &["table", "entries", "masks", "lookups", "matches"]),
        ("entries", &["table", "priority", "packets", "bytes", "cookie", "match", "actions"]),
        ("controllers", &["address", "role"]),
    ];
    for (name, columns) in lists {
        let mut table = Table::new(columns);
        for row in status[name].as_array().into_iter().flatten() {
            // Tables without entries that nothing has come to would only be lines.
            if name == "tables" && row["entries"] == 0 && row["lookups"] == 0 {
                continue;
            }
            table.row(columns.iter().map(|column| compact(&row[*column])));
        }
        text.push_str(&format!("\n{name}\n"));
        text.push_str(if table.is_empty() { "none\n" } else { "" });
        if !table.is_empty() {
            text.push_str(&table.render());
        }
    }
    text.push_str(&of_xdp(&status["xdp"]));
    for name in ["caches", "drops", "events"] {
        text.push_str(&format!("\n{name}: {}\n", compact(&status[name])));
    }
    output::text(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What it says about tunnels in XDP: numbers in a line, and one for each list of reasons.
fn of_xdp(xdp: &Value) -> String {
    let Some(all) = xdp.as_object() else { return "\nxdp: off\n".to_owned() };
    let (lists, numbers): (Vec<_>, Vec<_>) = all.iter().partition(|(_, value)| value.is_object());
    let line = |(name, value): (&String, &Value)| format!("xdp {name}: {}\n", compact(value));
    let numbers =
        Value::Object(numbers.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect());
    format!("\nxdp: {}\n{}", compact(&numbers), lists.into_iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tunnels_in_xdp_are_shown() {
        assert_eq!(of_xdp(&Value::Null), "\nxdp: off\n");
        let xdp =
            json!({"tunnels": 3, "paused": false, "passed_on": {"no_entry": 7}, "refused": {"no_room": 0}});
        let text = "\nxdp: paused=false tunnels=3\nxdp passed_on: no_entry=7\nxdp refused: no_room=0\n";
        assert_eq!(of_xdp(&xdp), text);
    }
}
