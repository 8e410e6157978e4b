//! Figures and checks of `relocation`.

use super::{DIRECTIONS, Network, Scheme, WAYS};
use crate::result::Experiment;
use crate::samples::Results;
use crate::stats::{median, quantile};

/// What is summed over all moves of a scheme and of both directions.
const SUMS: [(&str, &str); 6] = [
    ("lost", "lost"),
    ("duplicated", "duplicated"),
    ("reordered", "reordered"),
    ("retransmitted", "retransmitted"),
    ("retransmitted_needlessly", "retransmitted_needlessly"),
    ("tcp_early", "tcp_early"),
];

/// Enters figures and checks.
pub(super) fn summarise(experiment: &mut Experiment, results: &Results) {
    for network in Network::ALL {
        summarise_one(experiment, results, network);
    }
}

fn summarise_one(experiment: &mut Experiment, results: &Results, network: Network) {
    let mut all_stay = 0.0;
    for scheme in network.schemes() {
        let name = scheme.name();
        for way in WAYS {
            for (figure, series) in SUMS {
                let sum: f64 = of_directions(results, scheme, way, series).iter().sum();
                experiment.ratios.insert(format!("{name}_{way}_{figure}"), sum);
            }
            for series in ["stays_lost", "stays_duplicated", "stays_reordered"] {
                all_stay += of_directions(results, scheme, way, series).iter().sum::<f64>();
            }
            for direction in DIRECTIONS {
                for (figure, series) in [("gap_excess_ms", "gap_excess"), ("delay_added_ms", "delay_added")] {
                    let samples = results.samples(&format!("{name}.{direction}.{way}.{series}"), 0);
                    let key = format!("{name}_{direction}_{way}_{figure}");
                    experiment.ratios.insert(format!("{key}_p50"), median(samples));
                    experiment.ratios.insert(format!("{key}_p99"), quantile(samples, 0.99));
                }
            }
        }
        for direction in DIRECTIONS {
            if let Some(took) = results.median(&format!("{name}.{direction}.took"), 0) {
                experiment.ratios.insert(format!("{name}_{direction}_took_ms"), took);
            }
        }
    }
    // The goals are about moves in order, both ways and both directions, copied before or not.
    let ordered = |series: &str| -> Vec<f64> {
        let schemes = network.schemes().into_iter().filter(|scheme| scheme.is_ordered());
        let all = schemes.flat_map(|scheme| WAYS.map(|way| of_directions(results, scheme, way, series)));
        all.flatten().collect()
    };
    let mut enter = |figure: &str, value| {
        experiment.ratios.insert(format!("{}{figure}", network.prefix()), value);
    };
    for (goal, series) in SUMS {
        enter(goal, ordered(series).iter().sum());
    }
    enter("gap_excess_ms_p99", quantile(&ordered("gap_excess"), 0.99));
    enter("gap_excess_ms_p50", median(&ordered("gap_excess")));
    enter("delay_added_ms_p99", quantile(&ordered("delay_added"), 0.99));
    let name = network.name();
    for what in ["lost", "duplicated", "reordered"] {
        let sum: f64 = ordered(what).iter().sum();
        let check = format!("{name}: no packet is {what} by a move in order");
        experiment.check(&check, sum == 0.0, format!("{sum}"));
    }
    let (check, detail) =
        (format!("{name}: nothing happens to the UE that stays"), format!("{all_stay} packets"));
    experiment.check(&check, all_stay == 0.0, detail);
}

/// The samples of one way, there and back.
fn of_directions(results: &Results, scheme: Scheme, way: &str, series: &str) -> Vec<f64> {
    let name = scheme.name();
    let of = |direction| results.samples(&format!("{name}.{direction}.{way}.{series}"), 0);
    DIRECTIONS.iter().flat_map(of).copied().collect()
}
