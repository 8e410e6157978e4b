//! The plots of `backhaul`: the paper's Figures 7 to 10, for N3.

use crate::plot::Panel;
use crate::result::Experiment;

/// Throughput, round trips, loss and jitter between CU and UPF.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    crate::ran::panels::link(experiment, "CU–UPF")
}
