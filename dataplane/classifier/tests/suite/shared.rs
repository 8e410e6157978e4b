//! Readers and one writer at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use classifier::shared::{Reader, Writer};
use classifier::{Classifier, Filter, InsertError, Key, List, PortRange, Rule, Verdict};

fn look<C: Classifier>(classifier: &C, port: u16) -> Verdict {
    let key = Key::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17).with_ports(1, port);
    let mut verdict = [None];
    classifier.classify(&[key], &mut verdict);
    verdict[0]
}

fn on_port(id: u32, precedence: u32, port: u16) -> Rule {
    let filter = Filter { destination_ports: Some(PortRange::single(port)), ..Filter::default() };
    Rule { id, precedence, value: id, filter }
}

#[test]
fn updates_are_seen_when_published_and_together() {
    let mut writer = Writer::new(List::new());
    let mut reader = writer.reader();
    writer.insert(on_port(1, 10, 80)).unwrap();
    writer.insert(on_port(2, 20, 80)).unwrap();
    assert_eq!(writer.insert(on_port(2, 1, 1)), Err(InsertError::Exists(2)));
    assert_eq!((look(&*reader.pin(), 80), writer.len()), (None, 2));
    assert_eq!(reader.pin().epoch(), 0);
    writer.publish();
    assert_eq!(look(&*reader.pin(), 80), Some(1));
    assert_eq!(reader.pin().epoch(), 1);
    assert!(writer.set_precedence(1, 30) && !writer.set_precedence(3, 1));
    assert!(writer.remove(2) && !writer.remove(2));
    assert_eq!(look(&*reader.pin(), 80), Some(1));
    writer.publish();
    let guard = reader.pin();
    assert_eq!((look(&*guard, 80), guard.len(), guard.epoch()), (Some(1), 1, 2));
}

#[test]
fn bulk_work_reaches_both_copies() {
    let mut writer = Writer::new(List::new());
    let mut reader = writer.reader();
    let rules: Vec<Rule> = (0..100).map(|id| on_port(id, id, id as u16)).collect();
    writer.insert_all(&rules).unwrap();
    writer.optimise();
    assert_eq!(writer.insert_all(&[on_port(100, 1, 100), on_port(5, 1, 1)]), Err(InsertError::Exists(5)));
    assert!(writer.remove(7));
    for _ in 0..3 {
        // Every publication makes the other copy visible.
        writer.publish();
        let guard = reader.pin();
        assert_eq!((guard.len(), look(&*guard, 7), look(&*guard, 100)), (100, None, Some(100)));
    }
    assert!(!writer.is_empty() && writer.memory_bytes() > 200 * 40);
}

#[test]
fn forgotten_guards_and_dropped_readers_let_the_writer_go_on() {
    let mut writer = Writer::new(List::new());
    let (mut one, mut two) = (writer.reader(), writer.reader());
    std::mem::forget(one.pin());
    std::mem::forget(two.pin());
    drop(one.pin());
    drop(two);
    writer.publish();
    let panicked = std::thread::spawn(move || {
        let _guard = one.pin();
        panic!("in a burst");
    });
    assert!(panicked.join().is_err());
    writer.insert(on_port(1, 1, 1)).unwrap();
    writer.publish();
    let mut last = writer.reader();
    drop(writer);
    assert_eq!(look(&*last.pin(), 1), Some(1));
}

/// Checks what one reader sees until told to stop. In state `n` the rules `n` and `n + 1` exist, and on port 9
/// each of them wins in turn.
fn watch(mut reader: Reader<List>, stop: &AtomicBool, bursts: &AtomicU64) {
    let mut last = 0;
    while !stop.load(Ordering::Relaxed) {
        let guard = reader.pin();
        let state = guard.epoch();
        assert!(state >= last, "time went backwards");
        last = state;
        if state > 0 {
            let newest = state as u32 + 1;
            for _ in 0..4 {
                assert_eq!(guard.len(), 2, "state {state}");
                assert_eq!(look(&*guard, 9), Some(if state % 2 == 0 { newest - 1 } else { newest }));
            }
        }
        drop(guard);
        bursts.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn every_verdict_is_that_of_a_published_state_in_order() {
    let mut writer = Writer::new(List::new());
    let (stop, bursts) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let reader = writer.reader();
            scope.spawn(|| watch(reader, &stop, &bursts));
        }
        writer.insert(on_port(1, 1000, 9)).unwrap();
        let mut state = 0;
        // At least this many states, and as many bursts, however slow the machine is.
        while state < 1000 || bursts.load(Ordering::Relaxed) < 1000 {
            state += 1;
            let id = state as u32;
            writer.insert(on_port(id + 1, 5, 9)).unwrap();
            // The rule that was newest moves before or behind the new rule.
            assert!(writer.set_precedence(id, if state % 2 == 0 { 1 } else { 10 }));
            if state > 1 {
                assert!(writer.remove(id - 1));
            }
            if state % 64 == 0 {
                writer.optimise();
            }
            writer.publish();
            assert_eq!(writer.epoch(), state);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
