//! Computes the promised figures from the samples, and adds those published for L25GC.

use crate::result::Experiment;
use crate::stats::median;

use super::results::Results;

/// Sizes, and their form in names.
const SIZES: [(usize, &str); 6] =
    [(4, "4"), (16, "16"), (100, "100"), (1000, "1k"), (10_000, "10k"), (100_000, "100k")];
/// Families; the promised figures are of the first.
const FAMILIES: [&str; 3] = ["acl", "fw", "ipc"];

/// Published for 2 and 100 PDRs (the paper's text and Figure 11), nanoseconds.
const PUBLISHED: [(&str, f64); 6] = [
    ("figure11_list_ns_2", 110.0),
    ("figure11_list_ns_100", 490.0),
    ("figure11_partition_sort_ns_2", 90.0),
    ("figure11_partition_sort_ns_100", 150.0),
    ("figure11_tss_best_ns_100", 260.0),
    ("figure11_tss_worst_ns_100", 2900.0),
];

/// Adds ratios and published values.
pub(super) fn write(results: &Results, experiment: &mut Experiment) {
    let mut add = |name: String, value: Option<f64>| {
        if let Some(value) = value {
            experiment.ratios.insert(name, value);
        }
    };
    for (n, size) in SIZES {
        for suffix in ["", "_full"] {
            let of = |family: &str| results.median(&format!("auto.{family}{suffix}.lookup"), n);
            add(format!("auto_ns_{size}{suffix}"), of(FAMILIES[0]));
            add(format!("auto_ns_{size}{suffix}_families"), median_of(FAMILIES.map(of)));
        }
        if n == 100 || n == 1000 || n == 10_000 {
            let than_list = |family: &str| {
                results.ratio(&format!("list.{family}.lookup"), &format!("auto.{family}.lookup"), n)
            };
            add(format!("lookup_vs_list_{size}"), than_list(FAMILIES[0]));
            add(format!("lookup_vs_list_{size}_families"), median_of(FAMILIES.map(than_list)));
        }
        add(format!("update_ns_{size}"), results.median("auto.acl.update", n));
        add(format!("update_p999_ns_{size}"), results.median("auto.acl.update_p999", n));
        add(format!("bytes_per_rule_{size}"), results.median("auto.acl.bytes", n));
        add(format!("bytes_per_rule_{size}_full"), results.median("auto.acl_full.bytes", n));
    }
    add("update_vs_list_100".to_owned(), results.ratio("list.acl.update", "auto.acl.update", 100));
    add("updates_per_s_most".to_owned(), results.median("auto.acl.updates_per_s", 10_000_000));
    add(
        "lookup_slowdown_100k_updates".to_owned(),
        results.slowdown("auto.acl.lookup_under_updates", 100_000, 0),
    );
    for n in [16, 1000] {
        for level in ["l2_cold", "dram_cold"] {
            let ns = results.median(&format!("auto.acl.lookup_{level}"), n);
            add(format!("auto_ns_{n}_{level}"), ns);
        }
    }
    for rules in [4, 16] {
        for (situation, suffix) in [("cold", ""), ("cold_own", "_own"), ("cold_full", "_full")] {
            let (hash_list, sessions) =
                (format!("hash_list.{situation}.lookup"), format!("sessions.{situation}.lookup_b32"));
            add(
                format!("cold_1m_x{rules}{suffix}_vs_hash_list"),
                results.ratio(&hash_list, &sessions, rules),
            );
            add(format!("cold_1m_x{rules}{suffix}_ns"), results.median(&sessions, rules));
            let bytes = results.median(&format!("sessions.{situation}.bytes"), rules);
            add(format!("cold_1m_x{rules}{suffix}_mb"), bytes);
        }
    }
    for (n, size) in SIZES {
        let ns = results.median("auto_cached.acl.lookup_zipf_b32", n);
        add(format!("auto_cached_zipf_ns_{size}"), ns);
    }
    for (name, _) in PUBLISHED {
        let (line, n) = name.trim_start_matches("figure11_").split_once("_ns_").unwrap_or_default();
        let n = n.parse().unwrap_or(0);
        add(name.to_owned(), results.median(&format!("{line}.figure11.lookup"), n));
    }
    experiment.published.extend(PUBLISHED.map(|(name, value)| (name.to_owned(), value)));
}

/// The median of the values that exist.
fn median_of(values: [Option<f64>; 3]) -> Option<f64> {
    let values: Vec<f64> = values.into_iter().flatten().collect();
    (!values.is_empty()).then(|| median(&values))
}
