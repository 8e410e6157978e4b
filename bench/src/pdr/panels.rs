//! The plots of `pdr`: what a reader compares, side by side.

use crate::plot::Panel;
use crate::result::Experiment;

/// Look-up by size for each kind of rules, updates, the L25GC comparison, look-ups under updates.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let family = |title: &str, middle: &str, what: &str| {
        Panel::of(experiment, title, |name| {
            let rest = name.strip_suffix(what)?.strip_suffix('.')?;
            let backend = rest.strip_suffix(middle)?.strip_suffix('.')?;
            Some(backend.to_owned())
        })
    };
    let panels = [
        family("look-up, ACL, 5-tuple", "acl", "lookup"),
        family("look-up, ACL, all PDR fields", "acl_full", "lookup"),
        family("look-up, firewall, 5-tuple", "fw", "lookup"),
        family("look-up, IP chains, 5-tuple", "ipc", "lookup"),
        family("look-up in batches of 32, ACL", "acl", "lookup_b32"),
        family("update (mean of insertion and removal), ACL", "acl", "update"),
        family("update, 99.9th percentile, ACL", "acl", "update_p999"),
        family("memory, ACL", "acl", "bytes"),
        family("look-up of 2 to 100 PDRs, as L25GC Figure 11", "figure11", "lookup"),
        family("update of 2 to 100 PDRs, as L25GC Figure 11", "figure11", "update"),
        family("look-up of Zipf traffic in batches of 32, ACL", "acl", "lookup_zipf_b32"),
        Panel::of(experiment, "look-up of 1,000 ACL rules under updates", |name| {
            Some(name.strip_suffix(".acl.lookup_under_updates")?.to_owned())
        }),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
