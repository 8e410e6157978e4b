//! Computes the promised figures from the samples, and adds published ones.
//!
//! A name without a number of sessions means [`DEFAULT_SESSIONS`]; a name without a direction means both at
//! once (kernel: the relay path, whose ends are both sockets, as with the bare forwarder of its goal).

use super::users::Traffic;
use super::{DEFAULT_SESSIONS, N4_SESSIONS, NS};
use crate::result::Experiment;
use crate::samples::Results;

/// Numbers of sessions, and their form in names.
const SESSIONS: [(usize, &str); 4] = [(1, "1"), (1000, "1k"), (100_000, "100k"), (1_000_000, "1m")];
/// Directions, and their form in names.
const DIRECTIONS: [(&str, &str); 3] = [("mixed", ""), ("uplink", "_uplink"), ("downlink", "_downlink")];
/// Kinds of one-way times.
const TIMES: [&str; 4] = ["low.p50", "low.p99", "load80.p50", "load80.p99"];

/// Backends with frame ports, some with other traffic.
const FRAMES: [&str; 6] =
    ["af_xdp", "dpdk_memif", "dpdk_memif_client", "dpdk_null", "dpdk_null_quotas", "dpdk_null_64_gnbs"];

/// Adds series of the time per packet over the bare forwarder's, pair by pair: of metered time where there is a meter, else of the
/// rates.
pub(super) fn add_times_over_bare(results: &mut Results) {
    for backend in FRAMES.into_iter().chain(["kernel"]) {
        for path in ["mixed", "uplink", "downlink", "relay"] {
            let of = |contender: &str, what: &str| format!("{backend}.{contender}.{path}.64.{what}");
            let (name, metered) = (of("over_bare", "ns"), [of("upf", "ns"), of("bare", "ns")]);
            results.add_pairs(&name, NS, (&metered[0], &metered[1]), |upf, bare| upf - bare);
            if results.samples(&metered[0], DEFAULT_SESSIONS).is_empty() {
                let rates = [of("upf", "mpps"), of("bare", "mpps")];
                results.add_pairs(&name, NS, (&rates[0], &rates[1]), |upf, bare| 1e3 / upf - 1e3 / bare);
            }
        }
    }
}

/// Adds ratios and published values.
pub(super) fn write(results: &Results, experiment: &mut Experiment) {
    let mut summary = Summary { results, experiment };
    summary.pipeline();
    summary.users();
    summary.changes();
    summary.n4();
    summary.idle();
    summary.kernel();
    for backend in FRAMES {
        summary.frames(backend);
    }
    summary.memif();
    summary.workers();
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

    /// Speed of the user plane as a share of the bare forwarder's, by their times per packet where these are metered. `path` is a
    /// backend with a path, in which both have series.
    fn share_of_bare(&self, backend: &str, path: &str) -> Option<f64> {
        let of = |contender: &str, what: &str| format!("{backend}.{contender}.{path}.64.{what}");
        let metered = self.ratio(&of("bare", "ns"), &of("upf", "ns"));
        metered.or_else(|| self.ratio(&of("upf", "mpps"), &of("bare", "mpps")))
    }

    /// How much longer a packet takes than with the bare forwarder, as a share.
    fn cost(&self, backend: &str, path: &str) -> Option<f64> {
        self.share_of_bare(backend, path).map(|share| 1.0 / share - 1.0)
    }

    /// Nanoseconds per packet over the bare forwarder, with each number of sessions.
    fn over_bare(&mut self, backend: &str, path: &str, suffix: &str) {
        let (name, series) =
            (format!("{backend}_ns_over_bare{suffix}"), format!("{backend}.over_bare.{path}.64.ns"));
        self.add(name.clone(), self.median(&series));
        self.by_sessions(&name, &series);
    }

    /// A worker whose inputs cannot wake it.
    fn idle(&mut self) {
        self.add("idle_cpu_pct".to_owned(), self.median("idle.cpu"));
        self.add("idle_naps_cpu_pct".to_owned(), self.median("idle.naps_cpu"));
        self.add("idle_first_packet_us".to_owned(), self.median("idle.first_packet"));
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

    /// The mix of users' packets, each kind of them, and instructions.
    fn users(&mut self) {
        for traffic in Traffic::ALL.map(Traffic::name) {
            for (direction, suffix) in DIRECTIONS {
                let rate = self.median(&format!("users.{traffic}.{direction}.mpps"));
                let name = if traffic == "mix" { "mixed" } else { traffic };
                self.add(format!("pipeline_mpps_{name}{suffix}"), rate);
                let count = self.median(&format!("instructions.{traffic}.{direction}"));
                let name = if traffic == "plain" { String::new() } else { format!("_{name}") };
                self.add(format!("pipeline_instructions{name}{suffix}"), count);
            }
        }
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
            let upf = of("upf");
            self.add(format!("kernel_vs_bare{suffix}"), self.share_of_bare("kernel", path));
            self.add(format!("kernel_vs_textbook{suffix}"), self.ratio(&upf, &of("textbook")));
            self.add(format!("kernel_mpps{suffix}"), self.median(&upf));
            self.add(format!("tunnel_vs_plain_forward_cost_kernel{suffix}"), self.cost("kernel", path));
            self.over_bare("kernel", path, suffix);
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
            let of = |contender: &str, what: &str| format!("{backend}.{contender}.{direction}.64.{what}");
            let upf = of("upf", "mpps");
            self.add(format!("{backend}_vs_bare{suffix}"), self.share_of_bare(backend, direction));
            self.add(format!("{backend}_mpps{suffix}"), self.median(&upf));
            let metered = self.median(&of("bare", "ns")).map(|ns| 1e3 / ns);
            let bare = metered.or_else(|| self.median(&of("bare", "mpps")));
            self.add(format!("{backend}_mpps{suffix}_bare"), bare);
            self.add(
                format!("tunnel_vs_plain_forward_cost_{backend}{suffix}"),
                self.cost(backend, direction),
            );
            self.over_bare(backend, direction, suffix);
            self.by_sessions(&format!("{backend}_mpps{suffix}"), &upf);
            for what in TIMES {
                let us = self.median(&format!("{backend}.upf.{direction}.{what}"));
                self.add(format!("{backend}_us_{direction}_{}", what.replace('.', "_")), us);
            }
        }
    }

    /// The slower of the two directions, each by itself; and the paper's tunnel, which is downlink.
    fn memif(&mut self) {
        let rate = |direction: &str| self.median(&format!("dpdk_memif.upf.{direction}.64.mpps"));
        let slower = rate("uplink").zip(rate("downlink")).map(|(up, down)| up.min(down));
        self.add("memif_mpps_one_way".to_owned(), slower);
        let cost = self.cost("dpdk_memif", "downlink").map(|cost| 100.0 * cost);
        self.add("memif_tunnel_cost_pct".to_owned(), cost);
        let apart = self.median("dpdk_memif.cores.downlink.64.apart");
        self.add("core_to_core_ns".to_owned(), apart);
    }

    /// What a second worker gains: of the user plane when all packets come to the first, and when each comes to its owner, also
    /// as a share of what the bare forwarder gains.
    fn workers(&mut self) {
        for (direction, suffix) in DIRECTIONS {
            let of = |contender: &str| format!("workers.{contender}.{direction}.64.mpps");
            let gain = |two: &str, one: &str| self.ratio(&of(two), &of(one));
            let [handed, own] = ["upf_2_handed", "upf_2"].map(|two| gain(two, "upf_1"));
            let bare = gain("bare_2", "bare_1");
            self.add(format!("workers_2_vs_1{suffix}"), handed);
            self.add(format!("workers_2_own_vs_1{suffix}"), own);
            self.add(format!("workers_2_bare_vs_1{suffix}"), bare);
            self.add(format!("workers_2_vs_bare_2{suffix}"), own.zip(bare).map(|(own, bare)| own / bare));
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
        self.add("tunnel_vs_plain_forward_cost".to_owned(), self.cost("dpdk_memif", "downlink"));
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
        for contender in ["bare_1", "bare_2", "upf_1", "upf_2", "upf_2_handed"] {
            add(format!("workers.{contender}.mixed.64.mpps"), value(contender));
        }
        for direction in ["mixed", "uplink", "downlink"] {
            add(format!("users.mix.{direction}.mpps"), value("users"));
            add(format!("instructions.plain.{direction}"), value("users"));
        }
        let mut experiment = Experiment::new("upf", true);
        add_times_over_bare(&mut results);
        write(&results, &mut experiment);
        experiment
    }

    #[test]
    fn every_promised_ratio_has_its_name() {
        let ratios = written(|_| 1.0).ratios;
        let promised = [
            "pipeline_mpps_1k",
            "pipeline_mpps_1m",
            "pipeline_mpps_mixed",
            "pipeline_instructions",
            "dpdk_memif_mpps",
            "dpdk_null_mpps",
            "af_xdp_vs_bare",
            "kernel_vs_bare",
            "dpdk_vs_kernel_mpps",
            "dpdk_vs_kernel_rtt",
            "tunnel_vs_plain_forward_cost",
            "dpdk_null_mpps_uplink_1m",
            "dpdk_null_ns_over_bare",
            "dpdk_null_ns_over_bare_1m",
            "dpdk_memif_ns_over_bare",
            "af_xdp_ns_over_bare",
            "kernel_ns_over_bare",
            "memif_mpps_one_way",
            "memif_tunnel_cost_pct",
            "workers_2_vs_1",
            "workers_2_vs_bare_2",
        ];
        let missing: Vec<&str> = promised.into_iter().filter(|name| !ratios.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{missing:?} of {:?}", ratios.keys());
        assert!(!ratios.contains_key("dpdk_null_mpps_1k"), "that is the one without a number");
    }

    /// Rates that arrive are not used where the time per packet is metered.
    #[test]
    fn the_bare_forwarder_is_compared_by_time_per_packet() {
        let mut results = Results::default();
        for (contender, mpps, ns) in [("bare", 5.0, 50.0), ("upf", 5.0, 150.0)] {
            let series = format!("dpdk_memif.{contender}.downlink.64");
            for sessions in [DEFAULT_SESSIONS, 1_000_000] {
                results.add(format!("{series}.mpps"), AXES, sessions, mpps);
                results.add(format!("{series}.ns"), AXES, sessions, ns);
            }
        }
        let mut experiment = Experiment::new("upf", true);
        add_times_over_bare(&mut results);
        write(&results, &mut experiment);
        let ratios = experiment.ratios;
        assert_eq!(ratios["dpdk_memif_ns_over_bare_downlink"], 100.0);
        assert_eq!(ratios["dpdk_memif_ns_over_bare_downlink_1m"], 100.0);
        assert!((ratios["memif_tunnel_cost_pct"] - 200.0).abs() < 1e-9);
        assert!((ratios["dpdk_memif_vs_bare_downlink"] - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            (ratios["dpdk_memif_mpps_downlink"], ratios["dpdk_memif_mpps_downlink_bare"]),
            (5.0, 20.0)
        );
    }

    #[test]
    fn the_cost_of_a_tunnel_is_the_share_of_time_that_comes_on_top() {
        let ratios = written(|contender| if contender == "bare" { 6.0 } else { 5.0 }).ratios;
        for name in ["tunnel_vs_plain_forward_cost", "tunnel_vs_plain_forward_cost_dpdk_memif_downlink"] {
            assert!((ratios[name] - 0.2).abs() < 1e-9, "{name}: {}", ratios[name]);
        }
    }
}
