//! Table II of the paper, of what was seen.

use serde_json::{Value, json};

use super::{Contender, added_us, baseline};
use crate::result::Experiment;
use crate::samples::Results;
use crate::stats::short;

/// Keys of a gateway's configuration that it has without any scheme.
const PLAIN: [&str; 5] = ["gtpc", "pfcp", "gtpu", "upf", "apn"];

/// A longer time without an answer than this, ms, is downtime: shorter ones are those of a busy machine.
const DOWNTIME_MS: f64 = 100.0;

/// An attach that takes longer than without the scheme by this part of it is delayed.
const DELAYED: f64 = 0.1;

/// The paper's rows: modifies entities, is selective, has downtime, adds control latency. It has no N4: that row is the one of `selective`, as
/// the scheme is the same.
const PUBLISHED: [(&str, [bool; 4]); 6] = [
    ("naive", [false, false, false, false]),
    ("selective", [false, true, false, false]),
    ("n4", [false, true, false, false]),
    ("ram", [false, false, true, false]),
    ("stateless", [true, true, false, true]),
    ("custom", [true, true, false, false]),
];

/// Adds the row of a contender to the parameter `table_2`, and a check whether it is the paper's. `selective` are what rounds have seen.
pub(super) fn row(
    experiment: &mut Experiment,
    results: &Results,
    contender: &Contender,
    selective: &[(&'static str, bool)],
    counts: &[usize],
) -> anyhow::Result<()> {
    let name = contender.name();
    let is_plain = |gateway: &Value| {
        gateway.as_object().is_some_and(|keys| keys.keys().all(|key| PLAIN.contains(&key.as_str())))
    };
    let modifies = !contender.configurations()?.iter().all(is_plain);
    let is_selective = selective.iter().filter(|(of, _)| *of == name).all(|(_, seen)| *seen);
    let downtimes = counts.iter().filter_map(|ues| results.median(&format!("{name}.downtime"), *ues));
    let downtime = downtimes.fold(0.0, f64::max);
    let plain = results.median(baseline(name), 0).unwrap_or(f64::INFINITY);
    let added = added_us(results, name);
    let seen =
        [modifies, is_selective, downtime > DOWNTIME_MS, added.is_some_and(|added| added > plain * DELAYED)];
    let yes = |is| if is { "yes" } else { "no" };
    let mut row = json!({
        "scheme": name,
        "modifies_entities": seen[0],
        "selective": seen[1],
        "downtime": seen[2],
        "added_control_latency": seen[3],
        "downtime_ms": downtime,
    });
    let mut said = format!(
        "modifies entities: {}; selective: {}; downtime: {} ({} ms)",
        yes(seen[0]),
        yes(seen[1]),
        yes(seen[2]),
        short(downtime)
    );
    match added {
        Some(added) => {
            row["added_control_us"] = json!(added);
            said += &format!(
                "; added control latency: {} ({} us of {})",
                yes(seen[3]),
                short(added),
                short(plain)
            );
        }
        None => said += "; added control latency: no (nothing is in the way between moves)",
    }
    let table = experiment.params.entry("table_2".to_owned()).or_insert_with(|| json!([]));
    if let Some(rows) = table.as_array_mut() {
        rows.push(row);
    }
    let published = PUBLISHED.iter().find(|(of, _)| *of == name);
    let agrees = published.is_none_or(|(_, published)| *published == seen);
    experiment.check(&format!("Table II, {name}: as published"), agrees, said);
    Ok(())
}
