//! Every interleaving of a reader and a writer.

use super::*;

#[test]
fn nobody_sees_what_has_been_freed() {
    loom::model(|| {
        let domain = Domain::default();
        let value = Arc::new(AtomicU64::new(1));
        // In place of the published pointer: 1 is the old value, 2 the new one.
        let published = Arc::new(AtomicU64::new(1));
        let freed = Arc::new(AtomicU64::new(0));
        let mut reader = domain.reader();
        let thread = {
            let (published, freed) = (Arc::clone(&published), Arc::clone(&freed));
            loom::thread::spawn(move || {
                let guard = reader.enter();
                if published.load(Ordering::Acquire) == 1 {
                    assert_eq!(freed.load(Ordering::Relaxed), 0, "the old value is in use");
                }
                drop(guard);
            })
        };
        published.store(2, Ordering::Release);
        let ticket = domain.ticket();
        if domain.passed(ticket) {
            freed.store(1, Ordering::Relaxed);
        }
        thread.join().unwrap();
        drop(value);
    });
}
