//! The plots of `midhaul`: the paper's Figures 7 to 10 and what goes beyond them.

use crate::plot::Panel;
use crate::ran::panels::{link, of};
use crate::result::Experiment;

/// Throughput, round trips, loss and jitter between the nodes; the relay alone; waits at a hybrid CU.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let more = [
        of(experiment, "the CU's relay in memory, 64 octets, by bearers", "memory.", ".64.mpps"),
        of(experiment, "the CU between memifs, by octets", "memif.", ".mpps"),
        of(experiment, "wait at a hybrid CU, by the time-outs of its loop", "hybrid.", ".wait"),
    ];
    let more = more.into_iter().filter(|panel| !panel.is_empty());
    link(experiment, "DU–CU").into_iter().chain(more).collect()
}
