//! The plots of `midhaul`: the paper's Figures 7 to 10 and what goes beyond them.

use crate::plot::Panel;
use crate::result::Experiment;

/// Throughput, round trips, loss and jitter between the nodes; the relay alone; waits at a hybrid CU.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let of = |title: &str, prefix: &'static str, suffix: &'static str| {
        let line = move |name: &str| Some(name.strip_prefix(prefix)?.strip_suffix(suffix)?.to_owned());
        Panel::of(experiment, title, line)
    };
    let panels = [
        of("throughput DU–CU, by octets of the user's packet (Fig. 7)", "throughput.", ".gbit"),
        of("round trip DU–CU, median (Fig. 8)", "rtt.", ".p50"),
        of("round trip DU–CU, p99 (Fig. 8)", "rtt.", ".p99"),
        of("packets lost, by load (Fig. 9)", "load.", ".loss"),
        of("jitter, by load (Fig. 10)", "load.", ".jitter"),
        of("the CU's relay in memory, 64 octets, by bearers", "memory.", ".64.mpps"),
        of("the CU between memifs, by octets", "memif.", ".mpps"),
        of("wait at a hybrid CU, by the time-outs of its loop", "hybrid.", ".wait"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
