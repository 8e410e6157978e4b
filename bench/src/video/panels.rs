//! The plots of `video`: the paper's Figure 12.

use crate::plot::Panel;
use crate::ran::panels::of;
use crate::result::Experiment;

/// Bit rate and lost frames, by other traffic.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let panels = [
        of(experiment, "content bit rate at the UE (Fig. 12)", "video.", ".kbit_s"),
        of(experiment, "frames lost", "video.", ".lost"),
        of(experiment, "other traffic that arrived", "video.", ".beside"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
