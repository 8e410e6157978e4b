//! The plots of `end-to-end`: the paper's Table 6 and Figure 11, and the models by the number of DUs.

use crate::plot::Panel;
use crate::ran::panels::of;
use crate::result::Experiment;

/// Throughput and round trips by model.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let panels = [
        of(experiment, "UE to data network, by octets of the user's packet", "throughput.", ".up.gbit"),
        of(experiment, "data network to UE, by octets of the user's packet", "throughput.", ".down.gbit"),
        of(experiment, "round trip UE–data network, median (Fig. 11)", "rtt.", ".p50"),
        of(experiment, "64 octets to UEs, by DUs", "dus.", ".mpps"),
        of(experiment, "iperf3 through TUN devices (Table 5)", "iperf.", ""),
        of(experiment, "share of a core (Table 4)", "threads.", ".cpu"),
        of(experiment, "memory of a node", "threads.", ".memory"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
