//! Computes the promised figures from the samples, and adds published ones.
//!
//! A name without a number of sessions means [`DEFAULT_SESSIONS`]; a name without a direction means both at
//! once (kernel: the relay path, whose ends are both sockets, as with the bare forwarder of its goal).

use super::{DEFAULT_SESSIONS, N4_SESSIONS};
use crate::result::Experiment;
use crate::samples::Results;

/// Numbers of sessions, and their form in names.
const SESSIONS: [(usize, &str); 4] = [(1, "1"), (1000, "1k"), (100_000, "100k"), (1_000_000, "1m")];
/// Directions, and their form in names.
const DIRECTIONS: [(&str, &str); 3] = [("mixed", ""), ("uplink", "_uplink"), ("downlink", "_downlink")];
/// Kinds of one-way times.
const TIMES: [&str; 4] = ["low.p50", "low.p99", "load80.p50", "load80.p99"];

/// Adds ratios and published values.
pub(super) fn write(results: &Results, experiment: &mut Experiment) {
    let mut summary = Summary { results, experiment };
    summary.pipeline();
    summary.changes();
    summary.n4();
    summary.kernel();
    for backend in ["af_xdp", "dpdk_memif", "dpdk_null"] {
        summary.frames(backend);
    }
    summary.polling();
    summary.across();
}

struct Summary<'a> {
    results: &'a Results,
    experiment: &'a mut Experiment,
}

impl Summary<'_> {
    fn add(&mut self, name: String, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.experiment.ratios.insert(name, value);
        }
    }

    fn median(&self, series: &str) -> Option<f64> {
        self.results.median(series, DEFAULT_SESSIONS)
    }

    fn ratio(&self, of: &str, than: &str) -> Option<f64> {
        self.results.ratio(of, than, DEFAULT_SESSIONS)
    }

    /// How much longer a packet takes than with another contender, as a share.
    fn cost(&self, of: &str, than: &str) -> Option<f64> {
        self.ratio(than, of).map(|ratio| ratio - 1.0)
    }

    fn pipeline(&mut self) {
        for (sessions, name) in SESSIONS {
            for (direction, suffix) in DIRECTIONS {
                let ours = format!("memory.pipeline.{direction}.64.mpps");
                self.add(format!("pipeline_mpps_{name}{suffix}"), self.results.median(&ours, sessions));
            }
            let (ours, theirs) = ("memory.pipeline.mixed.64.mpps", "memory.textbook.mixed.64.mpps");
            self.add(format!("pipeline_vs_textbook_{name}"), self.results.ratio(ours, theirs, sessions));
        }
        let bytes = self.results.median("memory.pipeline.bytes", 1_000_000);
        self.add("bytes_per_session".to_owned(), bytes);
    }

    fn changes(&mut self) {
        for what in ["p999", "longest", "stalled_per_million"] {
            for with in ["still", "changing"] {
                let wall = self.median(&format!("changes.{with}.{what}"));
                self.add(format!("batch_{what}_{with}"), wall);
                let own = self.median(&format!("changes.{with}.cpu.{what}"));
                self.add(format!("batch_cpu_{what}_{with}"), own);
            }
        }
        self.add("rule_changes_per_s".to_owned(), self.median("changes.per_s"));
    }

    /// One number of sessions is measured; which one depends on the length of the run.
    fn n4(&mut self) {
        let rate = N4_SESSIONS.iter().find_map(|count| self.results.median("n4.sessions_per_s", *count));
        self.add("n4_sessions_per_s".to_owned(), rate);
    }

    fn kernel(&mut self) {
        for (path, suffix) in [("relay", ""), ("uplink", "_uplink"), ("downlink", "_downlink")] {
            let of = |contender: &str| format!("kernel.{contender}.{path}.64.mpps");
            let (upf, bare) = (of("upf"), of("bare"));
            self.add(format!("kernel_vs_bare{suffix}"), self.ratio(&upf, &bare));
            self.add(format!("kernel_vs_textbook{suffix}"), self.ratio(&upf, &of("textbook")));
            self.add(format!("kernel_mpps{suffix}"), self.median(&upf));
            self.add(format!("tunnel_vs_plain_forward_cost_kernel{suffix}"), self.cost(&upf, &bare));
            self.by_sessions(&format!("kernel_mpps{suffix}"), &upf);
        }
        for path in ["uplink", "downlink"] {
            for what in TIMES {
                for contender in ["upf", "bare", "textbook"] {
                    let us = self.median(&format!("kernel.{contender}.{path}.{what}"));
                    let whose = if contender == "upf" { String::new() } else { format!("_{contender}") };
                    self.add(format!("kernel_us_{path}_{}{whose}", what.replace('.', "_")), us);
                }
            }
        }
    }

    /// A rate with the other numbers of sessions.
    fn by_sessions(&mut self, name: &str, series: &str) {
        for (sessions, suffix) in SESSIONS.into_iter().filter(|(sessions, _)| *sessions != DEFAULT_SESSIONS) {
            self.add(format!("{name}_{suffix}"), self.results.median(series, sessions));
        }
    }

    fn frames(&mut self, backend: &str) {
        for (direction, suffix) in DIRECTIONS {
            let of = |contender: &str| format!("{backend}.{contender}.{direction}.64.mpps");
            let (upf, bare) = (of("upf"), of("bare"));
            self.add(format!("{backend}_vs_bare{suffix}"), self.ratio(&upf, &bare));
            self.add(format!("{backend}_mpps{suffix}"), self.median(&upf));
            self.add(format!("{backend}_mpps{suffix}_bare"), self.median(&bare));
            self.add(format!("tunnel_vs_plain_forward_cost_{backend}{suffix}"), self.cost(&upf, &bare));
            self.by_sessions(&format!("{backend}_mpps{suffix}"), &upf);
            for what in TIMES {
                let us = self.median(&format!("{backend}.upf.{direction}.{what}"));
                self.add(format!("{backend}_us_{direction}_{}", what.replace('.', "_")), us);
            }
        }
    }

    fn polling(&mut self) {
        for (direction, _) in DIRECTIONS {
            for what in ["low.p50", "low.p99"] {
                let us = self.median(&format!("af_xdp.polling.{direction}.{what}"));
                self.add(format!("af_xdp_polling_us_{direction}_{}", what.replace('.', "_")), us);
            }
        }
    }

    /// Compares backends: rates of one core, and round-trip times. Also the paper's measurement: a user plane
    /// on DPDK that puts downlink packets into tunnels, compared with one that only forwards them.
    fn across(&mut self) {
        for (direction, suffix) in [("uplink", ""), ("downlink", "_downlink")] {
            let rate = |backend: &str| self.median(&format!("{backend}.upf.{direction}.64.mpps"));
            let pair = rate("dpdk_memif").zip(rate("kernel"));
            self.add(format!("dpdk_vs_kernel_mpps{suffix}"), pair.map(|(dpdk, kernel)| dpdk / kernel));
        }
        let rtt = |backend: &str| {
            let one_way = |way: &str| self.median(&format!("{backend}.upf.{way}.low.p50"));
            one_way("uplink").zip(one_way("downlink")).map(|(up, down)| up + down)
        };
        let pair = rtt("kernel").zip(rtt("dpdk_memif"));
        self.add("dpdk_vs_kernel_rtt".to_owned(), pair.map(|(kernel, dpdk)| kernel / dpdk));
        let paper = self.cost("dpdk_memif.upf.downlink.64.mpps", "dpdk_memif.bare.downlink.64.mpps");
        self.add("tunnel_vs_plain_forward_cost".to_owned(), paper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Axes;

    const AXES: Axes = Axes { x: "sessions", y: "rate", unit: "1/s" };

    /// A result in which every series has one sample with the given value, which may depend on the contender.
    fn written(value: impl Fn(&str) -> f64) -> Experiment {
        let mut results = Results::default();
        let mut add = |series: String, value| {
            for (sessions, _) in SESSIONS {
                results.add(series.clone(), AXES, sessions, value);
            }
        };
        for contender in ["upf", "bare", "textbook", "pipeline", "polling"] {
            for backend in ["memory", "kernel", "af_xdp", "dpdk_memif", "dpdk_null"] {
                for path in ["mixed", "uplink", "downlink", "relay"] {
                    for what in ["64.mpps", "low.p50"] {
                        add(format!("{backend}.{contender}.{path}.{what}"), value(contender));
                    }
                }
            }
        }
        let mut experiment = Experiment::new("upf", true);
        write(&results, &mut experiment);
        experiment
    }

    #[test]
    fn every_promised_ratio_has_its_name() {
        let ratios = written(|_| 1.0).ratios;
        let promised = [
            "pipeline_mpps_1k",
            "pipeline_mpps_1m",
            "dpdk_memif_mpps",
            "dpdk_null_mpps",
            "af_xdp_vs_bare",
            "kernel_vs_bare",
            "dpdk_vs_kernel_mpps",
            "dpdk_vs_kernel_rtt",
            "tunnel_vs_plain_forward_cost",
            "dpdk_null_mpps_uplink_1m",
        ];
        let missing: Vec<&str> = promised.into_iter().filter(|name| !ratios.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{missing:?} of {:?}", ratios.keys());
        assert!(!ratios.contains_key("dpdk_null_mpps_1k"), "that is the one without a number");
    }

    #[test]
    fn the_cost_of_a_tunnel_is_the_share_of_time_that_comes_on_top() {
        let ratios = written(|contender| if contender == "bare" { 6.0 } else { 5.0 }).ratios;
        for name in ["tunnel_vs_plain_forward_cost", "tunnel_vs_plain_forward_cost_dpdk_memif_downlink"] {
            assert!((ratios[name] - 0.2).abs() < 1e-9, "{name}: {}", ratios[name]);
        }
    }
}
