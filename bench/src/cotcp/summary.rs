//! Computes the promised figures from the samples, and adds the paper's.

use crate::result::Experiment;
use crate::samples::Results;

use super::plan::{CONNECTIONS, DELAYS, WORKERS};

/// Values from the paper's text: about twice TCP's rate up to 10 connections, and like TCP from 100 on; with a
/// delay close to the ideal of 50,000 and 5,000 transactions per second.
const PUBLISHED: [(&str, f64); 12] = [
    ("tps_vs_tcp_1conn_0ms", 2.0),
    ("tps_vs_tcp_10conn_0ms", 2.0),
    ("tps_vs_tcp_100conn_0ms", 1.0),
    ("tps_vs_tcp_500conn_0ms", 1.0),
    ("ideal_fraction_1conn_10ms", 1.0),
    ("ideal_fraction_500conn_10ms", 1.0),
    ("ideal_fraction_1conn_100ms", 1.0),
    ("ideal_fraction_500conn_100ms", 1.0),
    ("tps_1conn_10ms", 50_000.0),
    ("tps_500conn_10ms", 50_000.0),
    ("tps_1conn_100ms", 5000.0),
    ("tps_500conn_100ms", 5000.0),
];

/// Adds ratios and published values.
pub(super) fn write(results: &Results, experiment: &mut Experiment) {
    let mut add = |name: String, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            experiment.ratios.insert(name, value);
        }
    };
    let tps = |protocol: &str, delay: u64| format!("{protocol}.{delay}ms.tps");
    for connections in CONNECTIONS {
        let x = connections as usize;
        for other in ["tcp", "http2", "grpc", "yamux"] {
            let ratio = |ours: &str| results.ratio(&tps(ours, 0), &tps(other, 0), x);
            add(format!("tps_vs_{other}_{connections}conn_0ms"), ratio("cotcp"));
            add(format!("tps_inline_vs_{other}_{connections}conn_0ms"), ratio("cotcp-inline"));
            add(format!("tps_pool_vs_{other}_{connections}conn_0ms"), ratio("cotcp-pool"));
        }
        for delay in DELAYS {
            let of = |what: &str| results.median(&format!("cotcp.{delay}ms.{what}"), x);
            add(format!("tps_{connections}conn_{delay}ms"), of("tps"));
            for what in ["p50", "p99", "p999"] {
                add(format!("{what}_ms_{connections}conn_{delay}ms"), of(what).map(|us| us / 1e3));
            }
            add(format!("cpu_us_{connections}conn_{delay}ms"), of("cpu"));
            if delay > 0 {
                let ideal = f64::from(WORKERS) * 1e3 / delay as f64;
                add(format!("ideal_fraction_{connections}conn_{delay}ms"), of("tps").map(|tps| tps / ideal));
            }
        }
        let inline = results.median("cotcp-inline.0ms.cpu", x);
        add(format!("cpu_us_inline_{connections}conn_0ms"), inline);
    }
    for (protocol, suffix) in [("cotcp", ""), ("cotcp-v1", "_v1"), ("http2", "_http2")] {
        let with = format!("{protocol}.large.p99");
        add(format!("small_p99_with_large_vs_without{suffix}"), results.slowdown(&with, 1, 0));
        add(format!("small_p99_ms_with_large{suffix}"), results.median(&with, 1).map(|us| us / 1e3));
        add(format!("small_p99_ms_without_large{suffix}"), results.median(&with, 0).map(|us| us / 1e3));
        add(format!("large_mb_per_s{suffix}"), results.median(&format!("{protocol}.large.mb_per_s"), 1));
    }
    experiment.published.extend(PUBLISHED.map(|(name, value)| (name.to_owned(), value)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Axes;

    #[test]
    fn every_promised_figure_has_its_name() {
        const AXES: Axes = Axes { x: "connections", y: "any", unit: "1" };
        let mut results = Results::default();
        for (protocol, tps) in
            [("tcp", 10.0), ("http2", 30.0), ("grpc", 20.0), ("yamux", 15.0), ("cotcp", 45_000.0)]
        {
            for delay in DELAYS {
                for connections in CONNECTIONS {
                    results.add(format!("{protocol}.{delay}ms.tps"), AXES, connections as usize, tps);
                }
            }
        }
        results.add("cotcp.large.p99".to_owned(), AXES, 0, 2.0);
        results.add("cotcp.large.p99".to_owned(), AXES, 1, 3.0);
        let mut experiment = Experiment::new("cotcp", true);
        write(&results, &mut experiment);
        for (name, value) in [
            ("tps_vs_tcp_1conn_0ms", 4500.0),
            ("tps_vs_tcp_100conn_0ms", 4500.0),
            ("tps_vs_tcp_500conn_0ms", 4500.0),
            ("ideal_fraction_1conn_10ms", 0.9),
            ("ideal_fraction_500conn_10ms", 0.9),
            ("ideal_fraction_1conn_100ms", 9.0),
            ("small_p99_with_large_vs_without", 1.5),
            ("tps_vs_http2_1conn_0ms", 1500.0),
            ("tps_vs_grpc_1conn_0ms", 2250.0),
        ] {
            assert_eq!(experiment.ratios[name], value, "{name}");
        }
        let missing = |name: &&String| !experiment.ratios.contains_key(*name);
        assert_eq!(experiment.published.keys().find(missing), None);
        experiment.series = results.into_series();
        assert_eq!(super::super::panels::panels(&experiment).len(), 4);
    }
}
