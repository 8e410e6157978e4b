//! Every interleaving of readers and a writer.

use super::*;
use crate::sync::{AtomicU64, fence};

/// What a writer and its readers share: 1 is the old value, 2 the new one.
struct Shared {
    published: AtomicU64,
    freed: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { published: AtomicU64::new(1), freed: AtomicU64::new(0) })
    }

    /// As a reader does that is inside.
    fn read(&self) {
        if self.published.load(Ordering::Acquire) == 1 {
            assert_eq!(self.freed.load(Ordering::Relaxed), 0, "the old value is in use");
        }
    }

    /// Replaces the value, and frees the old one if nobody sees it.
    fn replace(&self, domain: &Domain) {
        self.published.store(2, Ordering::Release);
        let ticket = domain.ticket();
        if domain.passed(ticket) {
            self.freed.store(1, Ordering::Relaxed);
        }
    }
}

/// Readers with an epoch of their own: even while nobody reads, odd while somebody does.
#[derive(Clone)]
struct Elsewhere(Arc<[AtomicU64; 2]>);

impl Elsewhere {
    fn new() -> Elsewhere {
        Elsewhere(Arc::new([AtomicU64::new(1), AtomicU64::new(0)]))
    }

    fn read(&self, shared: &Shared) {
        let [epoch, inside] = &*self.0;
        inside.store(epoch.load(Ordering::Acquire), Ordering::Release);
        fence(Ordering::SeqCst);
        shared.read();
        inside.store(0, Ordering::Release);
    }
}

impl Source for Elsewhere {
    fn take(&self) -> u64 {
        self.0[0].fetch_add(1, Ordering::AcqRel)
    }

    fn oldest(&self) -> u64 {
        match self.0[1].load(Ordering::Acquire) {
            0 => u64::MAX,
            epoch => epoch,
        }
    }
}

#[test]
fn nobody_sees_what_has_been_freed() {
    loom::model(|| {
        let (domain, shared) = (Domain::default(), Shared::new());
        let mut reader = domain.reader();
        let thread = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                let guard = reader.enter();
                shared.read();
                drop(guard);
            })
        };
        shared.replace(&domain);
        thread.join().unwrap();
    });
}

/// The same with readers of two sources, in all interleavings with at most three involuntary thread switches.
#[test]
fn nobody_of_another_source_sees_what_has_been_freed() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (domain, shared, elsewhere) = (Domain::default(), Shared::new(), Elsewhere::new());
        domain.add_source(Box::new(elsewhere.clone())).unwrap();
        let mut reader = domain.reader();
        let threads = [
            {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    let guard = reader.enter();
                    shared.read();
                    drop(guard);
                })
            },
            {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || elsewhere.read(&shared))
            },
        ];
        shared.replace(&domain);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// A source is added, and its first reader reads, while the writer replaces a value.
#[test]
fn a_source_that_is_being_added_sees_what_is_published_or_is_waited_for() {
    loom::model(|| {
        let (domain, shared, elsewhere) = (Domain::default(), Shared::new(), Elsewhere::new());
        let thread = {
            let (domain, shared) = (domain.clone(), Arc::clone(&shared));
            loom::thread::spawn(move || {
                domain.add_source(Box::new(elsewhere.clone())).unwrap();
                elsewhere.read(&shared);
            })
        };
        shared.replace(&domain);
        thread.join().unwrap();
    });
}

/// What is taken is what was put, in order; what is left when both ends are gone is dropped.
#[test]
fn a_ring_keeps_order_and_drops_what_nobody_takes() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let items = [Arc::new(0), Arc::new(1), Arc::new(2)];
        let (mut producer, mut consumer) = ring(2);
        let thread = {
            let items = items.clone();
            loom::thread::spawn(move || items.map(|item| producer.put(item).is_ok()))
        };
        let taken = [consumer.take(), consumer.take()].map(|item| item.map(|item| *item));
        assert!(matches!(taken, [None, None | Some(0)] | [Some(0), None | Some(1)]), "{taken:?}");
        drop(consumer);
        thread.join().unwrap();
        assert!(items.iter().all(|item| Arc::strong_count(item) == 1));
    });
}

/// A thread that sleeps until it is woken sees what was put, or is woken.
#[test]
fn nothing_is_slept_through() {
    loom::model(|| {
        let (sleep, (mut producer, mut consumer)) = (Arc::new(Sleep::default()), ring::<u32>(1));
        let woken = Arc::new(sync::AtomicBool::new(false));
        let thread = {
            let (sleep, woken) = (Arc::clone(&sleep), Arc::clone(&woken));
            loom::thread::spawn(move || {
                assert!(producer.put(7).is_ok());
                if sleep.needs_waking() {
                    woken.store(true, Ordering::Release);
                }
            })
        };
        sleep.begin();
        let seen = consumer.is_ready();
        if seen {
            sleep.end();
        }
        thread.join().unwrap();
        assert!(seen || woken.load(Ordering::Acquire), "asleep for ever");
    });
}
