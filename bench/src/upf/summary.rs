//! The promised figures, and those published, from the samples.

use crate::result::Experiment;
use crate::samples::Results;

/// Numbers of sessions as they stand in names.
const SESSIONS: [(usize, &str); 4] = [(1, "1"), (1000, "1k"), (100_000, "100k"), (1_000_000, "1m")];

/// Adds ratios and published values.
pub(super) fn write(results: &Results, experiment: &mut Experiment) {
    let mut add = |name: String, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            experiment.ratios.insert(name, value);
        }
    };
    for (sessions, name) in SESSIONS {
        let mpps =
            |direction: &str| results.median(&format!("memory.pipeline.{direction}.64.mpps"), sessions);
        add(format!("pipeline_mpps_{name}"), mpps("mixed"));
        add(format!("pipeline_mpps_{name}_uplink"), mpps("uplink"));
        add(format!("pipeline_mpps_{name}_downlink"), mpps("downlink"));
        let ratio = results.ratio("memory.pipeline.mixed.64.mpps", "memory.textbook.mixed.64.mpps", sessions);
        add(format!("pipeline_vs_textbook_{name}"), ratio);
    }
    for what in ["p999", "longest", "stalled_per_million"] {
        for with in ["still", "changing"] {
            add(format!("batch_{what}_{with}"), results.median(&format!("changes.{with}.{what}"), 1000));
            add(
                format!("batch_cpu_{what}_{with}"),
                results.median(&format!("changes.{with}.cpu.{what}"), 1000),
            );
        }
    }
    add("rule_changes_per_s".to_owned(), results.median("changes.per_s", 1000));
    add("bytes_per_session".to_owned(), results.median("memory.pipeline.bytes", 1_000_000));
    add("n4_sessions_per_s".to_owned(), results.median("kernel.n4.sessions_per_s", 1000));
    // The relay path has sockets on both sides, as the bare forwarder of the goal.
    for (path, suffix) in [("relay", ""), ("uplink", "_uplink"), ("downlink", "_downlink")] {
        let of = |contender: &str| format!("kernel.{contender}.{path}.64.mpps");
        add(format!("kernel_vs_bare{suffix}"), results.ratio(&of("upf"), &of("bare"), 1000));
        add(format!("kernel_vs_textbook{suffix}"), results.ratio(&of("upf"), &of("textbook"), 1000));
        add(format!("kernel_mpps{suffix}"), results.median(&of("upf"), 1000));
        // What the tunnel's rules cost against plain forwarding: more time per packet, as a share.
        let slower = results.ratio(&of("bare"), &of("upf"), 1000).map(|ratio| ratio - 1.0);
        add(format!("tunnel_vs_plain_forward_cost_kernel{suffix}"), slower);
    }
    for backend in ["af_xdp", "dpdk_memif"] {
        for direction in ["mixed", "uplink", "downlink"] {
            let of = |contender: &str| format!("{backend}.{contender}.{direction}.64.mpps");
            let suffix = if direction == "mixed" { String::new() } else { format!("_{direction}") };
            add(format!("{backend}_vs_bare{suffix}"), results.ratio(&of("upf"), &of("bare"), 1000));
            add(format!("{backend}_mpps{suffix}"), results.median(&of("upf"), 1000));
            let slower = results.ratio(&of("bare"), &of("upf"), 1000).map(|ratio| ratio - 1.0);
            add(format!("tunnel_vs_plain_forward_cost_{backend}{suffix}"), slower);
            for what in ["low.p50", "low.p99", "load80.p50", "load80.p99"] {
                let us = results.median(&format!("{backend}.upf.{direction}.{what}"), 1000);
                add(format!("{backend}_us_{direction}_{}", what.replace('.', "_")), us);
            }
        }
    }
    for direction in ["mixed", "uplink", "downlink"] {
        for what in ["low.p50", "low.p99"] {
            let us = results.median(&format!("af_xdp.polling.{direction}.{what}"), 1000);
            add(format!("af_xdp_polling_us_{direction}_{}", what.replace('.', "_")), us);
        }
    }
    // Against the kernel's sockets: rates of one core, and the way there and back.
    let mpps = |name: &str| results.median(&format!("{name}.64.mpps"), 1000);
    for direction in ["uplink", "downlink"] {
        let pair = mpps(&format!("dpdk_memif.upf.{direction}")).zip(mpps(&format!("kernel.upf.{direction}")));
        let suffix = if direction == "uplink" { "" } else { "_downlink" };
        add(format!("dpdk_vs_kernel_mpps{suffix}"), pair.map(|(dpdk, kernel)| dpdk / kernel));
    }
    let rtt = |backend: &str| {
        let one_way = |way: &str| results.median(&format!("{backend}.upf.{way}.low.p50"), 1000);
        one_way("uplink").zip(one_way("downlink")).map(|(up, down)| up + down)
    };
    add(
        "dpdk_vs_kernel_rtt".to_owned(),
        rtt("kernel").zip(rtt("dpdk_memif")).map(|(kernel, dpdk)| kernel / dpdk),
    );
    for path in ["uplink", "downlink"] {
        for (load, what) in [("low", "p50"), ("low", "p99"), ("load80", "p50"), ("load80", "p99")] {
            for contender in ["upf", "bare", "textbook"] {
                let us = results.median(&format!("kernel.{contender}.{path}.{load}.{what}"), 1000);
                let name = if contender == "upf" { String::new() } else { format!("_{contender}") };
                add(format!("kernel_us_{path}_{load}_{what}{name}"), us);
            }
        }
    }
}
