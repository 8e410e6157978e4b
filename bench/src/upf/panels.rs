//! The plots of `upf`.

use crate::plot::Panel;
use crate::result::Experiment;

/// Rates by number of sessions and by size, one panel per direction; the time of a packet; one-way times.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let of = |title: &str, direction: &str, what: &str| {
        let suffix = format!(".{direction}.64.{what}");
        Panel::of(experiment, title, |name| Some(name.strip_suffix(&suffix)?.to_owned()))
    };
    let by_size = |direction: &str| {
        let middle = format!(".{direction}.");
        let title = format!("1,000 sessions, {direction}, by octets of the user's packet");
        Panel::across(experiment, &title, "octets", 1000.0, |name| {
            let (line, size) = name.strip_suffix(".mpps")?.split_once(&middle)?;
            Some((line.to_owned(), size.parse().ok()?))
        })
    };
    let delay = |direction: &str| {
        let title = format!("one-way time, {direction}: alone (left), at 80 % of the most (right); medians");
        Panel::across(experiment, &title, "load, %", 1000.0, |name| {
            let line = |load: &str| name.strip_suffix(&format!(".{direction}.{load}.p50"));
            let found = line("low").map(|line| (line, 1.0)).or_else(|| Some((line("load80")?, 80.0)));
            found.map(|(line, load)| (line.to_owned(), load))
        })
    };
    let panels = [
        of("64-octet packets, uplink", "uplink", "mpps"),
        of("64-octet packets, downlink", "downlink", "mpps"),
        of("64-octet packets, both directions", "mixed", "mpps"),
        of("time per 64-octet packet, both directions", "mixed", "ns"),
        by_size("uplink"),
        by_size("downlink"),
        delay("uplink"),
        delay("downlink"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
