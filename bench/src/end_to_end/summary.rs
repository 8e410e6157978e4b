//! The promised figures of `end-to-end`, and what the paper prints beside them.

use super::{BYPASS, DUS, HYBRID, KERNEL, Model, THREE};
use crate::result::Experiment;
use crate::samples::Results;

/// Octets of the promised figures.
const SIZE: usize = 64;
/// The paper's Table 6: octets, and Mbit/s from UE to data network by the kernel and by DPDK. Its radio channel is the limit.
const TABLE_6: [(usize, f64, f64); 5] =
    [(64, 6.49, 6.64), (128, 8.06, 8.09), (256, 9.07, 9.1), (512, 9.93, 9.98), (1024, 9.98, 10.01)];
/// Its Table 5: Mbit/s of iperf, up and down, by the kernel and by DPDK.
const TABLE_5: [(&str, f64, f64); 2] = [("up", 13.37, 13.67), ("down", 9.98, 10.01)];
/// Its Table 4: the share of a core of the CU's GTP-U task with the kernel and with DPDK, and of the thread that polls.
const TABLE_4: [(&str, f64); 3] =
    [("cu_load_cpu_kernel_pct", 95.3), ("cu_load_cpu_hybrid_pct", 94.7), ("polling_cpu_pct", 99.7)];

pub(super) fn summarise(results: &Results, experiment: &mut Experiment) {
    let mut figure = |name: String, value: Option<f64>, published: Option<f64>| {
        if let Some(value) = value {
            experiment.ratios.insert(name.clone(), value);
            published.map(|published| experiment.published.insert(name, published));
        }
    };
    let of =
        |model: Model, direction: &str, unit: &str| format!("throughput.{}.{direction}.{unit}", model.name);
    let gain = |model: Model, direction: &str| {
        results.ratio(&of(model, direction, "mpps"), &of(KERNEL, direction, "mpps"), SIZE)
    };
    let lesser = |model: Model| Some(gain(model, "up")?.min(gain(model, "down")?));
    figure("end_to_end_bypass_vs_kernel".to_owned(), lesser(BYPASS), None);
    figure("end_to_end_hybrid_vs_kernel".to_owned(), lesser(HYBRID), None);
    for (direction, kernel, dpdk) in TABLE_5 {
        figure(format!("end_to_end_{direction}"), gain(BYPASS, direction), Some(dpdk / kernel));
        for model in THREE {
            let published = match model.name {
                "kernel" => Some(kernel),
                "bypass" => Some(dpdk),
                _ => None,
            };
            let rate = results.mean(&format!("iperf.{}.{direction}", model.name), 1);
            figure(format!("end_to_end_iperf_{}_{direction}_mbit_s", model.name), rate, published);
        }
    }
    for (size, kernel, dpdk) in TABLE_6 {
        for (model, published) in [(KERNEL, kernel), (BYPASS, dpdk)] {
            let rate = results.mean(&of(model, "up", "gbit"), size).map(|gbit| gbit * 1000.0);
            figure(format!("end_to_end_{}_{size}b_mbit_s", model.name), rate, Some(published));
        }
    }
    for quantile in ["p50", "p99"] {
        let rtt = |model: Model| format!("rtt.{}.{quantile}", model.name);
        let ratio = results.ratio(&rtt(BYPASS), &rtt(KERNEL), SIZE);
        let reduction = ratio.map(|ratio| (1.0 - ratio) * 100.0);
        figure(format!("end_to_end_rtt_{quantile}_reduction_pct"), reduction, None);
    }
    for model in [KERNEL, HYBRID, BYPASS] {
        for dus in DUS {
            let rate = results.median(&format!("dus.{}.mpps", model.name), dus.into());
            figure(format!("end_to_end_{}_{dus}_dus_mpps", model.name), rate, None);
        }
    }
    threads(results, &mut figure);
}

/// What nodes take without packets, in the worst model and node, and of a load.
fn threads(results: &Results, figure: &mut impl FnMut(String, Option<f64>, Option<f64>)) {
    let worst = |mode: &str, what: &str| {
        let of = |model: Model| {
            let series = format!("threads.{}.{mode}.{what}", model.name);
            (0..3).filter_map(move |node| results.median(&series, node))
        };
        THREE.into_iter().flat_map(of).reduce(f64::max)
    };
    figure("idle_cpu_pct".to_owned(), worst("adaptive", "cpu"), None);
    figure("memory_mb_per_node".to_owned(), worst("adaptive", "memory"), None);
    let load = |model: &str| results.median(&format!("threads.{model}.load.cpu"), 1);
    for (name, published) in TABLE_4 {
        let value = match name {
            "cu_load_cpu_kernel_pct" => load("kernel"),
            "cu_load_cpu_hybrid_pct" => load("hybrid"),
            _ => worst("polling", "cpu"),
        };
        figure(name.to_owned(), value, Some(published));
    }
}
