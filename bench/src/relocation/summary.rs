//! Figures and checks of `relocation`.

use super::{DIRECTIONS, Scheme, WAYS};
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
    let mut all_stay = 0.0;
    for scheme in Scheme::ALL {
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
        let schemes = Scheme::ALL.into_iter().filter(|scheme| scheme.is_ordered());
        let all = schemes.flat_map(|scheme| WAYS.map(|way| of_directions(results, scheme, way, series)));
        all.flatten().collect()
    };
    for (goal, series) in SUMS {
        experiment.ratios.insert(goal.to_owned(), ordered(series).iter().sum());
    }
    experiment.ratios.insert("gap_excess_ms_p99".to_owned(), quantile(&ordered("gap_excess"), 0.99));
    experiment.ratios.insert("gap_excess_ms_p50".to_owned(), median(&ordered("gap_excess")));
    experiment.ratios.insert("delay_added_ms_p99".to_owned(), quantile(&ordered("delay_added"), 0.99));
    for what in ["lost", "duplicated", "reordered"] {
        let sum: f64 = ordered(what).iter().sum();
        experiment.check(&format!("no packet is {what} by a move in order"), sum == 0.0, format!("{sum}"));
    }
    let detail = format!("{all_stay} packets");
    experiment.check("nothing happens to the UE that stays", all_stay == 0.0, detail);
}

/// The samples of one way, there and back.
fn of_directions(results: &Results, scheme: Scheme, way: &str, series: &str) -> Vec<f64> {
    let name = scheme.name();
    let of = |direction| results.samples(&format!("{name}.{direction}.{way}.{series}"), 0);
    DIRECTIONS.iter().flat_map(of).copied().collect()
}
