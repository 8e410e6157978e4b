//! The promised figures of `diverting`, and what the paper prints beside them.

use super::{capture, control, loss, program, rtt, tcp, ul_cl};
use crate::result::Experiment;
use crate::samples::Results;

pub(super) fn summarise(results: &Results, experiment: &mut Experiment) {
    let mut figure = |name: &str, value: Option<f64>, published: Option<f64>| {
        if let Some(value) = value {
            experiment.ratios.insert(name.to_owned(), value);
            published.map(|published| experiment.published.insert(name.to_owned(), published));
        }
    };
    program::summarise(results, &mut figure);
    rtt::summarise(results, &mut figure);
    tcp::summarise(results, &mut figure);
    loss::summarise(results, &mut figure);
    control::summarise(results, &mut figure);
    capture::summarise(results, &mut figure);
    ul_cl::summarise(results, &mut figure);
}
