//! Every backend conforms to the definition: for random rules and packets, generated traces, sequences of
//! updates, and at the limits of sizes and values.
//!
//! [`definition`] is the meaning of a filter, written independently of the crate. The linear list is compared
//! with it, and every backend with the list. In the dev profile all tests take some tens of seconds at most:
//! the set of a hundred thousand rules, with the list's verdicts, is drawn once for all backends; the other
//! sets are small, as structures change their form within the first thousand rules.

mod bulk;
mod definition;
mod edges;
mod programs;
mod random;
mod traces;

use classifier::simd::Simd;
use classifier::simd::isa::Isa;
use classifier::{Backend, Classifier, Key, Verdict};

/// All classifiers by name: every backend, and the variants between which the CPU decides.
pub fn contenders() -> Vec<(String, Box<dyn Classifier>)> {
    let backends = Backend::ALL.iter().map(|backend| (backend.name().to_owned(), backend.build()));
    let variants = Isa::ALL.into_iter().filter_map(|isa| {
        let simd: Box<dyn Classifier> = Box::new(Simd::with_isa(isa)?);
        Some((format!("simd with {isa:?}"), simd))
    });
    backends.chain(variants).collect()
}

/// The verdicts of a batch.
pub fn classify(classifier: &dyn Classifier, keys: &[Key]) -> Vec<Verdict> {
    // A value that no rule of a test has, so that a verdict that was not written is noticed.
    let mut verdicts = vec![Some(u32::MAX); keys.len()];
    classifier.classify(keys, &mut verdicts);
    verdicts
}

/// Fails with the first packet that has another verdict.
#[track_caller]
pub fn assert_verdicts(name: &str, classifier: &dyn Classifier, keys: &[Key], expected: &[Verdict]) {
    let verdicts = classify(classifier, keys);
    for (at, (verdict, expected)) in verdicts.iter().zip(expected).enumerate() {
        assert_eq!(verdict, expected, "{name}, packet {at} of {}: {:?}", keys.len(), keys[at]);
    }
    assert_eq!(verdicts.len(), expected.len());
}
