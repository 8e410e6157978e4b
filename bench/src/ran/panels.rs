//! The plots of a link between two nodes: those of the paper's Figures 7 to 10.

use crate::plot::Panel;
use crate::result::Experiment;

/// A panel of the series whose names begin and end so.
pub(crate) fn of(experiment: &Experiment, title: &str, prefix: &str, suffix: &str) -> Panel {
    let line = |name: &str| Some(name.strip_prefix(prefix)?.strip_suffix(suffix)?.to_owned());
    Panel::of(experiment, title, line)
}

/// The panels of a link between two nodes.
pub(crate) fn link(experiment: &Experiment, nodes: &str) -> Vec<Panel> {
    let of = |title: &str, prefix: &str, suffix: &str| of(experiment, title, prefix, suffix);
    let panels = [
        of(&format!("throughput {nodes}, by octets of the user's packet (Fig. 7)"), "throughput.", ".gbit"),
        of(&format!("round trip {nodes}, median (Fig. 8)"), "rtt.", ".p50"),
        of(&format!("round trip {nodes}, p99 (Fig. 8)"), "rtt.", ".p99"),
        of("packets lost, by load (Fig. 9)", "load.", ".loss"),
        of("jitter, by load (Fig. 10)", "load.", ".jitter"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
