//! Look-ups never allocate: an allocator of this test counts, for every backend and kind of rule.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use classifier::generate::{Family, Fields, Traffic, rules, trace};
use classifier::shared::Writer;
use classifier::simd::Simd;
use classifier::simd::isa::Isa;
use classifier::{Backend, Classifier, Key};

/// The system's allocator, which counts the requests of each thread.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and its count is not needed.
    let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator as it comes; counting allocates nothing, as the counter is
// constant-initialised and needs no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are those that `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; the block came from `System`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocator calls by this thread during `work`.
fn asked_by(work: impl FnOnce()) -> usize {
    let before = ASKED.get();
    work();
    ASKED.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(asked_by(|| drop(std::hint::black_box(vec![1u8]))), 2);
    assert_eq!(asked_by(|| ()), 0);
}

/// Looks up in batches of one, of some, and of all, and also keys that match nothing.
fn assert_silent(name: &str, classifier: &dyn Classifier, keys: &[Key]) {
    let mut verdicts = vec![None; keys.len()];
    let asked = asked_by(|| {
        for size in [1, 7, 32, keys.len()] {
            for (keys, verdicts) in keys.chunks(size).zip(verdicts.chunks_mut(size)) {
                classifier.classify(keys, verdicts);
            }
        }
    });
    assert_eq!(asked, 0, "{name} asked the allocator");
}

/// Every backend, and the variants between which the CPU decides.
fn contenders() -> Vec<(String, Box<dyn Classifier>)> {
    let backends = Backend::ALL.iter().map(|backend| (backend.name().to_owned(), backend.build()));
    let variants = Isa::ALL.into_iter().filter_map(|isa| {
        let simd: Box<dyn Classifier> = Box::new(Simd::with_isa(isa)?);
        Some((format!("simd with {isa:?}"), simd))
    });
    backends.chain(variants).collect()
}

#[test]
fn no_backend_allocates_in_a_look_up() {
    for family in [Family::Acl, Family::Fw, Family::EachItsTuple] {
        for fields in [Fields::FiveTuple, Fields::Full] {
            for n in [1, 4, 60, 100, 1000] {
                let set = rules(family, fields, n, 1);
                let mut keys = trace(&set, Traffic::Uniform, 100, 2);
                keys.extend(trace(&set, Traffic::NoMatch, 100, 3));
                for (name, mut classifier) in contenders() {
                    let name = format!("{name} with {n} rules of {} {fields:?}", family.name());
                    classifier.insert_all(&set).unwrap();
                    assert_silent(&name, &*classifier, &keys);
                    // Updates degrade structures, whose look-ups may then take other paths.
                    for rule in set.iter().step_by(3) {
                        classifier.remove(rule.id);
                    }
                    for rule in set.iter().step_by(6) {
                        classifier.insert(*rule).unwrap();
                    }
                    assert_silent(&format!("{name}, updated,"), &*classifier, &keys);
                }
            }
        }
    }
}

#[test]
fn no_reader_of_a_shared_classifier_allocates() {
    let set = rules(Family::Acl, Fields::Full, 100, 1);
    let keys = trace(&set, Traffic::Uniform, 100, 2);
    let mut writer = Writer::new(classifier::auto::Auto::new());
    let mut reader = writer.reader();
    writer.insert_all(&set).unwrap();
    writer.publish();
    let mut verdicts = vec![None; keys.len()];
    let asked = asked_by(|| reader.pin().classify(&keys, &mut verdicts));
    assert_eq!(asked, 0);
    assert!(verdicts.iter().all(Option::is_some));
}
