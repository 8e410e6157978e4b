//! The verdict cache compared with the classifier behind it.

use std::cell::Cell;

use classifier::cache::{Cache, SKIPPED, SMALL, WINDOW};
use classifier::generate::{self, Family, Fields, Random, Traffic};
use classifier::{Classifier, InsertError, Key, List, Rule, Verdict};

/// A list that counts the keys that it classifies.
#[derive(Default)]
struct Counted {
    list: List,
    asked: std::sync::atomic::AtomicUsize,
}

impl Counted {
    fn new(rules: &[Rule]) -> Counted {
        let mut counted = Counted::default();
        counted.insert_all(rules).unwrap();
        counted
    }

    fn take_asked(&self) -> usize {
        self.asked.swap(0, std::sync::atomic::Ordering::Relaxed)
    }
}

impl Classifier for Counted {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        self.asked.fetch_add(keys.len(), std::sync::atomic::Ordering::Relaxed);
        self.list.classify(keys, verdicts);
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        self.list.insert(rule)
    }

    fn remove(&mut self, id: u32) -> bool {
        self.list.remove(id)
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        self.list.set_precedence(id, precedence)
    }

    fn memory_bytes(&self) -> usize {
        self.list.memory_bytes()
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}

fn direct(classifier: &dyn Classifier, keys: &[Key]) -> Vec<Verdict> {
    let mut verdicts = vec![Some(u32::MAX); keys.len()];
    classifier.classify(keys, &mut verdicts);
    verdicts
}

fn cached(cache: &mut Cache, classifier: &dyn Classifier, epoch: u64, keys: &[Key]) -> Vec<Verdict> {
    let mut verdicts = vec![Some(u32::MAX); keys.len()];
    cache.classify(classifier, epoch, keys, &mut verdicts);
    verdicts
}

#[test]
fn answers_as_the_classifier_whatever_the_rules_become() {
    for (fields, entries) in [(Fields::FiveTuple, 4096), (Fields::Full, 4096), (Fields::Full, 1)] {
        let rules = generate::rules(Family::Ipc, fields, 200, 5);
        let keys = generate::trace(&rules, Traffic::Zipf { flows: 500 }, 3000, 5);
        let (mut list, mut cache, mut random) = (List::new(), Cache::new(entries), Random::new(5));
        list.insert_all(&rules[..150]).unwrap();
        for epoch in 0..40 {
            let start = random.below(keys.len());
            let part = &keys[start..keys.len().min(start + random.below(200))];
            assert_eq!(cached(&mut cache, &list, epoch, part), direct(&list, part));
            let rule = rules[random.below(rules.len())];
            if !list.remove(rule.id) {
                list.insert(rule).unwrap();
            }
        }
    }
}

#[test]
fn keys_that_differ_in_any_one_bit_are_told_apart() {
    let rules = generate::rules(Family::Acl, Fields::Full, SMALL + 1, 2);
    let counted = Counted::new(&rules);
    let key = generate::trace(&rules, Traffic::Uniform, 1, 2)[0];
    let mut cache = Cache::new(4096);
    for bit in 0..640 {
        let mut words = *key.words();
        words[bit / 32] ^= 1 << (bit % 32);
        let other = Key::from_words(words);
        cached(&mut cache, &counted, 0, &[key]);
        counted.take_asked();
        cached(&mut cache, &counted, 0, &[other]);
        assert_eq!(counted.take_asked(), usize::from(other != key), "bit {bit}");
        cached(&mut cache, &counted, 0, &[other]);
        assert_eq!(counted.take_asked(), 0, "bit {bit}");
    }
}

#[test]
fn a_new_epoch_voids_all_entries() {
    let rules = generate::rules(Family::Acl, Fields::FiveTuple, SMALL + 1, 2);
    let counted = Counted::new(&rules);
    let keys = generate::trace(&rules, Traffic::Uniform, 10, 2);
    let mut cache = Cache::new(1000);
    for epoch in [7, 7, 8, 8, 7] {
        cached(&mut cache, &counted, epoch, &keys);
    }
    // Asked in the first batch of each run; the entries of epoch 8 have replaced those of epoch 7.
    assert_eq!(counted.take_asked(), 3 * keys.len());
}

#[test]
fn traffic_of_new_flows_bypasses_it_and_zipf_traffic_does_not() {
    let rules = generate::rules(Family::Acl, Fields::FiveTuple, 500, 2);
    let counted = Counted::new(&rules);
    let mut cache = Cache::new(8192);
    let zipf = generate::trace(&rules, Traffic::Zipf { flows: 4000 }, 30_000, 2);
    for batch in zipf.chunks(32) {
        cached(&mut cache, &counted, 0, batch);
    }
    assert!(counted.take_asked() < zipf.len() / 3);

    let next = Cell::new(0);
    let fresh = |count: u32| -> Vec<Key> {
        let first = next.replace(next.get() + count);
        (first..first + count).map(|number| Key::unknown().with_spi(number)).collect()
    };
    let flood = fresh(WINDOW * 2 + SKIPPED / 2);
    for batch in flood.chunks(32) {
        cached(&mut cache, &counted, 0, batch);
    }
    assert_eq!(counted.take_asked(), flood.len());
    // The cache is bypassed now, even for keys that it holds, but used again soon after.
    cached(&mut cache, &counted, 0, &zipf[zipf.len() - 1..]);
    assert_eq!(counted.take_asked(), 1);
    for batch in fresh(SKIPPED).chunks(32) {
        cached(&mut cache, &counted, 0, batch);
    }
    counted.take_asked();
    for batch in zipf.chunks(32) {
        cached(&mut cache, &counted, 0, batch);
    }
    assert!(counted.take_asked() < zipf.len() * 2 / 3);
}
