//! The contenders: the backends of `classifier`, and DPDK's rte_acl if it is linked.

use std::cell::RefCell;
use std::hint::black_box;
use std::ops::Range;
use std::slice;

use classifier::backend::Visit;
use classifier::cache::Cache;
use classifier::{Backend, Classifier, InsertError, Key, Rule, Verdict};
use net::time::Duration;

use super::measure::{self, BATCH};

/// A classifier with a name.
pub(super) struct Contender {
    /// Name in the names of series.
    pub name: &'static str,
    runs: Box<dyn Runs>,
}

/// A classifier that looks up packets. The loops are compiled for its type, so no virtual call per packet is
/// measured.
trait Runs {
    fn one_by_one(&self, keys: &[Key], verdicts: &mut [Verdict]);
    fn in_batches(&self, keys: &[Key], verdicts: &mut [Verdict]);
    fn classifier(&mut self) -> &mut dyn Classifier;
}

struct Held<C>(C);

impl<C: Classifier> Runs for Held<C> {
    fn one_by_one(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            self.0.classify(slice::from_ref(key), slice::from_mut(verdict));
        }
    }

    fn in_batches(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (keys, verdicts) in keys.chunks(BATCH).zip(verdicts.chunks_mut(BATCH)) {
            self.0.classify(keys, verdicts);
        }
    }

    fn classifier(&mut self) -> &mut dyn Classifier {
        &mut self.0
    }
}

/// A classifier behind a cache of verdicts.
struct Cached<C> {
    classifier: C,
    cache: RefCell<Cache>,
}

/// The rules never change, so there is one epoch.
const EPOCH: u64 = 1;

impl<C: Classifier> Runs for Cached<C> {
    fn one_by_one(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        let cache = &mut *self.cache.borrow_mut();
        for (key, verdict) in keys.iter().zip(verdicts) {
            cache.classify(&self.classifier, EPOCH, slice::from_ref(key), slice::from_mut(verdict));
        }
    }

    fn in_batches(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        let cache = &mut *self.cache.borrow_mut();
        for (keys, verdicts) in keys.chunks(BATCH).zip(verdicts.chunks_mut(BATCH)) {
            cache.classify(&self.classifier, EPOCH, keys, verdicts);
        }
    }

    fn classifier(&mut self) -> &mut dyn Classifier {
        &mut self.classifier
    }
}

/// Puts a cache for this number of verdicts in front of a classifier.
struct HoldCached(usize);

impl Visit for HoldCached {
    type Output = Box<dyn Runs>;

    fn visit<C: Classifier + Clone + 'static>(self, classifier: C) -> Self::Output {
        Box::new(Cached { classifier, cache: RefCell::new(Cache::new(self.0)) })
    }
}

struct Hold;

impl Visit for Hold {
    type Output = Box<dyn Runs>;

    fn visit<C: Classifier + Clone + 'static>(self, classifier: C) -> Self::Output {
        Box::new(Held(classifier))
    }
}

/// How packets are passed to the classifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Calls {
    /// One per call.
    Single,
    /// [`BATCH`] per call.
    Batch,
}

impl Contender {
    /// A backend with these rules, inserted all at once.
    pub(super) fn build(backend: Backend, rules: &[Rule]) -> Result<Contender, InsertError> {
        Contender { name: backend.name(), runs: backend.with(Hold) }.filled(rules)
    }

    /// `auto` behind a cache for `entries` verdicts.
    pub(super) fn cached(entries: usize, rules: &[Rule]) -> Result<Contender, InsertError> {
        let runs = Backend::Auto.with(HoldCached(entries));
        Contender { name: "auto_cached", runs }.filled(rules)
    }

    fn filled(self, rules: &[Rule]) -> Result<Contender, InsertError> {
        let mut contender = self;
        contender.classifier().insert_all(rules)?;
        contender.classifier().optimise();
        Ok(contender)
    }

    /// The classifier, to update it.
    pub(super) fn classifier(&mut self) -> &mut dyn Classifier {
        self.runs.classifier()
    }

    /// Measures a sample of look-ups, in nanoseconds per packet.
    pub(super) fn sample(
        &self,
        keys: &[Key],
        calls: Calls,
        round: usize,
        at_least: Duration,
        verdicts: &mut [Verdict],
    ) -> f64 {
        measure::lookup(keys.len(), round, at_least, &mut |range| {
            let verdicts = &mut verdicts[..range.len()];
            self.classify(keys, range, calls, verdicts);
            black_box(verdicts);
        })
    }

    /// Looks up the packets of a range.
    pub(super) fn classify(&self, keys: &[Key], range: Range<usize>, calls: Calls, verdicts: &mut [Verdict]) {
        match calls {
            Calls::Single => self.runs.one_by_one(&keys[range], verdicts),
            Calls::Batch => self.runs.in_batches(&keys[range], verdicts),
        }
    }
}
