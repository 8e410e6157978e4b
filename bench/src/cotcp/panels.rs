//! The plots of `cotcp`: in the form of the paper's Figures 8 to 13 (transactions per second and latency over
//! the number of connections, for each delay), and further ones.

use crate::plot::Panel;
use crate::result::Experiment;

/// Figures 8 to 13, the 99th percentile, processor time, small requests beside large ones.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let of = |title: &str, what: &str| {
        Panel::of(experiment, title, |name| Some(name.strip_suffix(what)?.strip_suffix('.')?.to_owned()))
    };
    let panels = [
        of("Figure 8: no delay", "0ms.tps"),
        of("Figure 9: no delay", "0ms.latency"),
        of("Figure 10: 10 ms delay", "10ms.tps"),
        of("Figure 11: 10 ms delay", "10ms.latency"),
        of("Figure 12: 100 ms delay", "100ms.tps"),
        of("Figure 13: 100 ms delay", "100ms.latency"),
        of("99th percentile, no delay", "0ms.p99"),
        of("99th percentile, 10 ms delay", "10ms.p99"),
        of("processor time of both sides, no delay", "0ms.cpu"),
        of("small requests without (left) and with (right) large ones: 99th percentile", "large.p99"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
