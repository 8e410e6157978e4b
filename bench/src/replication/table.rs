//! Table II of the paper, of what was seen.

use serde_json::Value;

use super::{Contender, added_us, baseline};
use crate::result::Experiment;
use crate::samples::Results;

/// Keys of a gateway's configuration that it has without any scheme.
const PLAIN: [&str; 5] = ["gtpc", "pfcp", "gtpu", "upf", "apn"];

/// A longer time without an answer than this, ms, is downtime: shorter ones are those of a busy machine.
const DOWNTIME_MS: f64 = 100.0;

/// An attach that takes longer than without the scheme by this part of it is delayed.
const DELAYED: f64 = 0.1;

/// Names of the columns: figures that are 1 or 0.
const COLUMNS: [&str; 4] = ["modifies_entities", "is_selective", "has_downtime", "adds_control_latency"];

/// The paper's rows. It has no N4: that row is the one of `selective`, as the scheme is the same.
const PUBLISHED: [(&str, [bool; 4]); 6] = [
    ("naive", [false, false, false, false]),
    ("selective", [false, true, false, false]),
    ("n4", [false, true, false, false]),
    ("ram", [false, false, true, false]),
    ("stateless", [true, true, false, true]),
    ("custom", [true, true, false, false]),
];

/// Adds the row of a contender, beside the paper's. `selective` are what rounds have seen.
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
    let published = PUBLISHED.iter().find(|(of, _)| *of == name).map(|(_, published)| *published);
    for (at, column) in COLUMNS.iter().enumerate() {
        let figure = format!("{name}_{column}");
        experiment.published.extend(published.map(|row| (figure.clone(), f64::from(u8::from(row[at])))));
        experiment.ratios.insert(figure, f64::from(u8::from(seen[at])));
    }
    Ok(())
}
