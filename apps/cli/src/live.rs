//! `godwit upf stats` and `godwit session show`: counters and their rates.
//!
//! Flow: the administration sockets are asked twice, an interval apart; the differences become rates.
//! The output is tables. `--json` prints the last answer with the rates beside it, once, or one line
//! per interval with `--watch`.

use std::process::ExitCode;

use net::time::{self, Duration};
use nf::oam::{self, CallError};
use serde_json::{Map, Value, json};
use telemetry::DropReason;

use crate::EXIT_FAILED;
use crate::admin::{self, SocketArg, compact, flatten};
use output::{self, Table};

/// Options: how long to measure and how often to show.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct Timing {
    /// Seconds over which rates are taken; 0 shows counts only.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Continue until interrupted.
    #[arg(long)]
    watch: bool,
}

/// Longest interval, seconds.
const LONGEST: f64 = 3600.0;

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=LONGEST).contains(&value) => Ok(value),
        _ => Err(format!("a number of seconds between 0 and {LONGEST} is expected")),
    }
}

/// The counters at one time.
struct Reading {
    at: time::Instant,
    value: Value,
}

/// An answer, and by how much its numbers grew per second.
struct Measurement {
    value: Value,
    rates: Option<Value>,
}

/// Reads the counters twice and shows them with their rates, once or until interrupted.
fn measure<F>(
    timing: &Timing,
    json: bool,
    mut read: F,
    show: impl Fn(&Measurement) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode>
where
    F: AsyncFnMut() -> Result<Value, CallError>,
{
    admin::runtime()?.block_on(async {
        let mut reading = async || Ok(Reading { value: read().await?, at: time::now() });
        let mut before: Reading = match reading().await {
            Ok(reading) => reading,
            Err(error) => return Ok(admin::refused(&error)),
        };
        if timing.interval == 0.0 && !timing.watch {
            return show(&Measurement { value: before.value, rates: None });
        }
        let interval = Duration::from_secs_f64(timing.interval.max(0.1));
        loop {
            time::sleep_until(before.at + interval).await;
            let after: Reading = match reading().await {
                Ok(reading) => reading,
                Err(error) => return Ok(admin::refused(&error)),
            };
            let passed = (after.at - before.at).as_secs_f64();
            let rates = Some(growth(&before.value, &after.value, passed));
            let code = show(&Measurement { value: after.value.clone(), rates })?;
            if !timing.watch {
                return Ok(code);
            }
            if !json {
                output::text("\n")?;
            }
            before = after;
        }
    })
}

/// By how much each number of `after` has grown per second since `before`. Members that are not numbers
/// are left out.
fn growth(before: &Value, after: &Value, seconds: f64) -> Value {
    match after {
        Value::Number(number) => {
            // A counter that was missing before started at 0. A counter that shrank belongs to a
            // restarted process.
            let gain = number.as_f64().unwrap_or(0.0) - before.as_f64().unwrap_or(0.0);
            json!((gain.max(0.0) / seconds * 10.0).round() / 10.0)
        }
        Value::Object(map) => {
            let gains = map.iter().map(|(key, value)| (key.clone(), growth(&before[key], value, seconds)));
            Value::Object(gains.filter(|(_, gain)| !gain.is_null()).collect())
        }
        _ => Value::Null,
    }
}

/// `godwit upf stats`.
///
/// # Errors
/// When the result cannot be written or the configuration is wrong.
pub(crate) fn stats(socket: &SocketArg, timing: &Timing) -> anyhow::Result<ExitCode> {
    let path = oam::socket_path(&admin::run_dir(socket)?, "upf");
    let json = socket.format.json;
    let read = async || oam::call(&path, "GET", "/stats", None).await;
    measure(timing, json, read, |measurement| {
        if json {
            let mut value = measurement.value.clone();
            if let (Value::Object(map), Some(rates)) = (&mut value, &measurement.rates) {
                map.insert("per_second".to_owned(), rates.clone());
            }
            if timing.watch { output::json_line(&value)? } else { output::json(&value)? }
        } else {
            output::text(&stats_text(measurement))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Interfaces, drops with their explanations, and the other counters.
fn stats_text(measurement: &Measurement) -> String {
    let none = Value::Null;
    let rates = measurement.rates.as_ref();
    let rate = |path: &[&str]| rates.map(|rates| path.iter().fold(rates, |value, key| &value[*key]));
    let mut interfaces =
        Table::new(&["INTERFACE", "DIRECTION", "PACKETS", "OCTETS", "PACKETS/S", "BIT/S", "COPIED"]);
    for (name, directions) in measurement.value["interfaces"].as_object().into_iter().flatten() {
        let directions = directions.as_object().into_iter().flatten();
        for (direction, counts) in directions.filter(|(_, counts)| counts.is_object()) {
            let place = ["interfaces", name, direction];
            let gained = rate(&place).unwrap_or(&none);
            interfaces.row([
                name.clone(),
                direction.clone(),
                compact(&counts["packets"]),
                compact(&counts["bytes"]),
                per_second(&gained["packets"], 1.0),
                per_second(&gained["bytes"], 8.0),
                counts.get("copied").map(compact).unwrap_or_default(),
            ]);
        }
    }
    let mut drops = Table::new(&["DROPPED", "PACKETS", "PACKETS/S", "WHY"]);
    for (name, count) in measurement.value["drops"].as_object().into_iter().flatten() {
        let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
        drops.row([
            name.clone(),
            compact(count),
            per_second(rate(&["drops", name]).unwrap_or(&none), 1.0),
            reason.map(|reason| reason.description()).unwrap_or_default().to_owned(),
        ]);
    }
    let mut others = Table::new(&["COUNTER", "VALUE"]);
    for (key, value) in measurement.value.as_object().into_iter().flatten() {
        if key != "interfaces" && key != "drops" {
            flatten(key, value, &mut others);
        }
    }
    let parts = [&interfaces, &drops, &others].into_iter().filter(|table| !table.is_empty());
    let text = parts.map(Table::render).collect::<Vec<_>>().join("\n");
    if text.is_empty() { "nothing was counted yet\n".to_owned() } else { text }
}

/// A rate with a unit prefix: `1.25 M`.
fn per_second(value: &Value, times: f64) -> String {
    let Some(value) = value.as_f64().map(|value| value * times) else { return String::new() };
    for (unit, size) in [(" G", 1e9), (" M", 1e6), (" k", 1e3)] {
        if value >= size {
            return format!("{:.2}{unit}", value / size);
        }
    }
    format!("{value:.0}")
}

/// `godwit session show`: the SMF's sessions of a UE, each with the traffic that the UPF counts.
///
/// # Errors
/// As [`stats`].
pub(crate) fn session(
    socket: &SocketArg,
    supi: &str,
    id: Option<u8>,
    timing: &Timing,
) -> anyhow::Result<ExitCode> {
    let run_dir = admin::run_dir(socket)?;
    let (smf, upf) = (oam::socket_path(&run_dir, "smf"), oam::socket_path(&run_dir, "upf"));
    let json = socket.format.json;
    let read = async || {
        let sessions = oam::call(&smf, "GET", "/sessions", None).await?;
        // The UPF may be on another machine; then no traffic is shown.
        let carried = oam::call(&upf, "GET", "/sessions", None).await.unwrap_or(Value::Null);
        let mut found = Map::new();
        for session in admin::rows(&sessions) {
            let same_id = id.is_none_or(|id| session["id"] == id || session["pdu_session_id"] == id);
            if session["supi"] == supi && same_id {
                let traffic = admin::rows(&carried).iter().find(|carried| same_address(session, carried));
                let entry = json!({"session": session, "traffic": traffic.map(counts)});
                found.insert(compact(&session["id"]), entry);
            }
        }
        Ok(Value::Object(found))
    };
    measure(timing, json, read, |measurement| {
        let Some(found) = measurement.value.as_object().filter(|found| !found.is_empty()) else {
            let text = format!("{supi} has no such PDU session; `godwit session list` shows all\n");
            output::text(&text)?;
            return Ok(ExitCode::from(EXIT_FAILED));
        };
        let rates = |id: &str| measurement.rates.as_ref().map(|rates| &rates[id]["traffic"]);
        if json {
            let list: Vec<Value> = found.iter().map(|(id, entry)| with_traffic(entry, rates(id))).collect();
            if timing.watch { output::json_line(&list)? } else { output::json(&list)? }
        } else {
            let parts = found.iter().map(|(id, entry)| session_text(entry, rates(id)));
            output::text(&parts.collect::<Vec<_>>().join("\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The SMF's session with the UPF's counters, as JSON.
fn with_traffic(entry: &Value, rates: Option<&Value>) -> Value {
    let mut session = entry["session"].clone();
    session["traffic"] = entry["traffic"].clone();
    if let (Some(rates), true) = (rates, session["traffic"].is_object()) {
        session["traffic"]["per_second"] = rates.clone();
    }
    session
}

fn session_text(entry: &Value, rates: Option<&Value>) -> String {
    let mut table = Table::new(&["SESSION", ""]);
    flatten("", &entry["session"], &mut table);
    let mut traffic = Table::new(&["TRAFFIC", "PACKETS", "OCTETS", "PACKETS/S", "BIT/S"]);
    let none = Value::Null;
    for direction in ["uplink", "downlink"] {
        let counted = &entry["traffic"][direction];
        if counted.is_object() {
            let gained = rates.map_or(&none, |rates| &rates[direction]);
            traffic.row([
                direction.to_owned(),
                compact(&counted["packets"]),
                compact(&counted["bytes"]),
                per_second(&gained["packets"], 1.0),
                per_second(&gained["bytes"], 8.0),
            ]);
        }
    }
    let below = if traffic.is_empty() {
        "its UPF does not answer here: no traffic to show\n".to_owned()
    } else {
        traffic.render()
    };
    format!("{}\n{below}", table.render())
}

/// The counters of a UPF's session: the members that are numbers.
fn counts(carried: &Value) -> Value {
    let members = carried.as_object().into_iter().flatten();
    let counted = members.filter(|(_, value)| value.get("packets").is_some() || value.get("bytes").is_some());
    let mut out: Map<String, Value> = counted.map(|(key, value)| (key.clone(), value.clone())).collect();
    out.insert("seid".to_owned(), Value::String(compact(&carried["seid"])));
    Value::Object(out)
}

/// Whether the UPF's session has the UE address of the SMF's session. In a data network an address
/// belongs to one session.
fn same_address(session: &Value, carried: &Value) -> bool {
    let same_dnn = carried["dnn"].is_null() || compact(&carried["dnn"]) == compact(&session["dnn"]);
    let shares = |family: &str| {
        let wanted = compact(&session[family]);
        let held = compact(&carried[family]);
        !wanted.is_empty() && held.split(' ').any(|held| held == wanted)
    };
    same_dnn && (shares("ipv4") || shares("ipv6"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_was_gained() {
        let before = json!({"n3": {"packets": 100, "bytes": 5000}, "gone": 1});
        let after = json!({"n3": {"packets": 300, "bytes": 45_000}, "new": 4, "restarted": 0, "text": "x"});
        let rates = growth(&before, &after, 2.0);
        assert_eq!(rates, json!({"n3": {"packets": 100.0, "bytes": 20_000.0}, "new": 2.0, "restarted": 0.0}));
        assert_eq!(per_second(&rates["n3"]["bytes"], 8.0), "160.00 k");
        assert_eq!(per_second(&json!(12.4), 1.0), "12");
        assert_eq!(per_second(&Value::Null, 1.0), "");
    }

    #[test]
    fn stats_become_tables_with_rates_and_reasons() {
        let value = json!({
            "interfaces": {"n3": {"role": "access", "received": {"packets": 10, "bytes": 1000},
                "sent": {"packets": 20, "bytes": 3000, "copied": 7}}},
            "drops": {"unknown_teid": 3, "from_the_future": 1},
            "gtpu": {"echo_requests": 2},
        });
        let rates = json!({"interfaces": {"n3": {"received": {"packets": 5.0, "bytes": 500_000.0}}}});
        let text = stats_text(&Measurement { value, rates: Some(rates) });
        assert!(text.contains("n3         received   10       1000    5          4.00 M"), "{text}");
        let sent = text.lines().find(|line| line.starts_with("n3         sent")).unwrap();
        assert!(sent.split_whitespace().eq(["n3", "sent", "20", "3000", "7"]), "{text}");
        assert!(!text.contains("access"), "{text}");
        assert!(text.contains("No session owns the TEID"), "{text}");
        assert!(text.contains("from_the_future") && text.contains("gtpu.echo_requests  2\n"), "{text}");
        assert_eq!(stats_text(&Measurement { value: json!({}), rates: None }), "nothing was counted yet\n");
    }

    #[test]
    fn sessions_are_told_by_address_and_data_network() {
        let session =
            json!({"supi": "imsi-1", "id": 5, "dnn": "internet", "ipv4": "10.45.0.2", "ipv6": null});
        let carried = |dnn: &str, ipv4: &str| {
            json!({"dnn": dnn, "ipv4": [ipv4], "ipv6": [], "seid": 7,
            "uplink": {"packets": 1, "bytes": 2}, "downlink": {"packets": 3, "bytes": 4}})
        };
        assert!(same_address(&session, &carried("internet", "10.45.0.2")));
        assert!(!same_address(&session, &carried("ims", "10.45.0.2")));
        assert!(!same_address(&session, &carried("internet", "10.45.0.20")));
        let traffic = counts(&carried("internet", "10.45.0.2"));
        let entry = json!({"session": session, "traffic": traffic});
        let text = session_text(&entry, None);
        assert!(text.contains("downlink  3        4\n"), "{text}");
        let rates = json!({"uplink": {"packets": 9.0}});
        let shown = with_traffic(&entry, Some(&rates));
        assert_eq!(
            (&shown["supi"], &shown["traffic"]["per_second"]["uplink"]["packets"]),
            (&json!("imsi-1"), &json!(9.0))
        );
        let alone = json!({"session": session, "traffic": null});
        assert!(session_text(&alone, None).contains("does not answer here"));
    }
}
