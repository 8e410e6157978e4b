//! Publication in all interleavings. Run by `make loom`.

use loom::thread;

use super::{Guard, Writer};
use crate::{Classifier, Filter, Key, List, Rule};

/// A value whose halves differ if a reader and the writer are in one copy; `loom` reports such an access too.
type Pair = (u32, u32);

/// Checks all interleavings with at most `preemptions` involuntary thread switches. Faults show with one or
/// two, and without a bound this takes minutes.
fn bounded(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(check);
}

fn publish(writer: &mut Writer<Pair>, value: u32) {
    writer.change(|pair| *pair = (value, value));
    writer.diverged = true;
    writer.swap();
    writer.catch_up(|_, _| {});
}

/// The value that a guard sees. Checks that it is whole and agrees with the guard's epoch.
fn seen(guard: &Guard<'_, Pair>) -> u32 {
    let (first, second) = **guard;
    assert_eq!(first, second);
    assert_eq!(u64::from(first), guard.epoch());
    first
}

#[test]
fn a_reader_sees_whole_states_in_order() {
    bounded(3, || {
        let mut writer = Writer::new((0, 0));
        let mut reader = writer.reader();
        let thread = thread::spawn(move || {
            let first = seen(&reader.pin());
            let second = seen(&reader.pin());
            assert!(first <= second);
        });
        publish(&mut writer, 1);
        publish(&mut writer, 2);
        thread.join().unwrap();
        assert_eq!(*writer.reader().pin(), (2, 2));
    });
}

#[test]
fn two_readers_do_not_confuse_the_writer() {
    bounded(2, || {
        let mut writer = Writer::new((0, 0));
        let threads = [writer.reader(), writer.reader()].map(|mut reader| {
            thread::spawn(move || {
                seen(&reader.pin());
            })
        });
        publish(&mut writer, 1);
        publish(&mut writer, 2);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn readers_come_and_go_while_the_writer_waits() {
    bounded(2, || {
        let mut writer = Writer::new((0, 0));
        let mut reader = writer.reader();
        let thread = thread::spawn(move || {
            // The state that a forgotten guard leaves. It ends when the reader pins again.
            reader.slot.0.store(1, loom::sync::atomic::Ordering::Release);
            let mut other = reader.clone();
            seen(&reader.pin());
            drop(reader);
            seen(&other.pin());
        });
        publish(&mut writer, 1);
        publish(&mut writer, 2);
        thread.join().unwrap();
    });
}

#[test]
fn after_publication_no_reader_is_behind() {
    bounded(3, || {
        let mut writer = Writer::new(List::new());
        let mut reader = writer.reader();
        let thread = thread::spawn(move || {
            let look = |list: &List| {
                let mut verdict = [None];
                list.classify(&[Key::unknown()], &mut verdict);
                verdict[0]
            };
            let guard = reader.pin();
            let (epoch, verdict) = (guard.epoch(), look(&guard));
            assert_eq!(verdict, [None, Some(7), None][epoch as usize]);
        });
        let rule = Rule { id: 1, precedence: 1, value: 7, filter: Filter::default() };
        writer.insert(rule).unwrap();
        writer.publish();
        assert!(writer.remove(1));
        writer.publish();
        thread.join().unwrap();
    });
}
