//! Trains the model of `rl_tree` on generated rule sets and saves it. The model that the crate ships was made
//! this way.
//!
//! ```text
//! cargo run --release -p classifier --example rl_tree_train -- <file> [<decisions> [<model to start from>]]
//! ```
//! A hundred thousand decisions take about twenty seconds. The same arguments give the same file.
#![allow(clippy::print_stdout, reason = "an example that shows its results")]

use std::error::Error;

use classifier::Rule;
use classifier::generate::{self, Family, Fields};
use classifier::rl_tree::{Model, Objective, Training};

/// Sizes of the sets for training; the model is later used for sets of any size.
const SIZES: [usize; 3] = [60, 250, 1000];

/// Sets of every family, with 5-tuple rules and with full rules.
fn sets(sizes: &[usize], seed: u64) -> Vec<Vec<Rule>> {
    let mut sets = Vec::new();
    for &size in sizes {
        for family in Family::CLASSBENCH {
            for fields in [Fields::FiveTuple, Fields::Full] {
                sets.push(generate::rules(family, fields, size, seed));
            }
        }
    }
    sets
}

/// Geometric mean of the expected look-up times.
fn mean_ns(model: &Model, sets: &[Vec<Rule>]) -> f32 {
    let logs = sets.iter().map(|rules| model.evaluate(rules).mean_ns.ln());
    (logs.sum::<f32>() / sets.len() as f32).exp()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("which file?")?;
    let decisions: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let mut model = match arguments.next() {
        Some(start) => Model::from_bytes(&std::fs::read(start)?)?,
        None => Model::random(1),
    };
    // The model is judged by sets that it has not seen.
    let (seen, unseen) = (sets(&SIZES, 11), sets(&[150, 700], 77));
    println!("before: {:.1} ns on other rules", mean_ns(&model, &unseen));
    let heuristics =
        |rules: &Vec<Rule>| Model::evaluate_heuristics(rules, &Objective::default()).mean_ns.ln();
    let logs: f32 = unseen.iter().map(heuristics).sum();
    println!("heuristics: {:.1} ns", (logs / unseen.len() as f32).exp());
    let training = Training { decisions, ..Training::default() };
    let progress = model.train(&seen, &training);
    println!("{progress:?}: {:.1} ns on other rules", mean_ns(&model, &unseen));
    std::fs::write(&file, model.to_bytes())?;
    println!("{file}: trained on {} decisions", model.trained_steps());
    Ok(())
}
