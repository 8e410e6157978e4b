//! The plots of `upf`.

use crate::plot::Panel;
use crate::result::Experiment;

/// Rates by the number of sessions, a panel for each direction; then the other backends.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let of = |title: &str, direction: &str, what: &str| {
        let suffix = format!(".{direction}.64.{what}");
        Panel::of(experiment, title, |name| Some(name.strip_suffix(&suffix)?.to_owned()))
    };
    let panels = [
        of("64-octet packets, uplink", "uplink", "mpps"),
        of("64-octet packets, downlink", "downlink", "mpps"),
        of("64-octet packets, both directions", "mixed", "mpps"),
        of("time per 64-octet packet, both directions", "mixed", "ns"),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
