//! The plots of `diverting`: the paper's Figures 10 to 16, and the steering program alone.

use crate::plot::Panel;
use crate::ran::panels::of;
use crate::result::Experiment;

/// One panel for each figure that was measured.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let panels = [
        of(experiment, "steering in XDP over an empty program", "program.", ".over"),
        of(experiment, "round trips in a tunnel (Fig. 10)", "histogram.", ""),
        of(experiment, "jitter, 75th percentile (Fig. 11)", "jitter.", ".p75"),
        of(experiment, "TCP down, by target (Fig. 12)", "tcp.", ".down.mbit"),
        of(experiment, "processor time of the switch, TCP down (Fig. 12, 13)", "tcp.", ".down.cpu"),
        of(experiment, "TCP up, by target (Fig. 14)", "tcp.", ".up.mbit"),
        of(experiment, "processor time of the switch, TCP up (Fig. 14, 15)", "tcp.", ".up.cpu"),
        of(experiment, "packets lost, by load (Fig. 16)", "loss.", ".lost"),
        of(experiment, "flow-mods a second, one after the other, by rules", "rules.", ".flow_mods"),
        of(
            experiment,
            "from a bundle's commit until all packets take the new way, by users",
            "rules.",
            ".effective",
        ),
        of(
            experiment,
            "from the request until all packets take the new way, by users",
            "moves.",
            ".effective",
        ),
        of(experiment, "round trip of a control message, median", "capture.", ".p50"),
        of(experiment, "UL CL in the UPF, and the switch, in memory, by octets", "ul_cl.", ".ns"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
