//! What readers see, and when memory is reused.

use super::*;
use crate::sync::AtomicU64;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Value(u64);

#[test]
fn blocks_are_reused_only_when_their_readers_have_left() {
    let domain = Domain::default();
    let mut writer: Writer<Value> = Writer::new(&domain);
    let slots = writer.slots(10);
    let mut reader = domain.reader();
    let put = |writer: &mut Writer<Value>, n: u64| {
        let block = writer.block(&[Value(n), Value(n)]).unwrap();
        writer.install(&slots, 3, block);
    };
    put(&mut writer, 1);
    let guard = reader.enter();
    let seen = slots.load(&guard, 3).unwrap();
    for n in 2..1000 {
        put(&mut writer, n);
        writer.reclaim(|_| ());
        assert_eq!((seen[0].0, seen[1].0, seen.len()), (1, 1, 2));
        assert_eq!(slots.load(&guard, 3).unwrap()[1].0, n);
    }
    let grown = writer.next;
    drop(guard);
    writer.reclaim(|_| ());
    for n in 0..900 {
        put(&mut writer, n);
        writer.reclaim(|_| ());
    }
    assert_eq!(writer.next, grown, "freed blocks are used before new ones");
    assert_eq!(writer.get(&slots, 3).map(|block| block[1].0), Some(899));
    writer.clear(&slots, 3);
    assert_eq!(writer.memory_bytes(), 0);
    let mut gone = Vec::new();
    writer.reclaim(|block| gone.push(block[0].0));
    assert_eq!((gone, writer.waiting()), (vec![899], 0));
    let guard = reader.enter();
    assert!(
        slots.load(&guard, 3).is_none()
            && slots.load(&guard, 4).is_none()
            && slots.load(&guard, 1 << 40).is_none()
    );
}

#[test]
fn a_guard_of_another_domain_sees_nothing() {
    let (domain, other) = (Domain::default(), Domain::default());
    let mut writer: Writer<Value> = Writer::new(&domain);
    let slots = writer.slots(1);
    let block = writer.block(&[Value(1)]).unwrap();
    writer.install(&slots, 0, block);
    let cell = Cell::new(&domain);
    cell.store(Some(Box::new(7)), &mut Bin::new(&domain));
    let mut reader = other.reader();
    let guard = reader.enter();
    assert!(slots.load(&guard, 0).is_none() && cell.load(&guard).is_none());
}

/// Counts how often it is dropped.
struct Counted(u32, Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn values_of_an_array_of_cells_are_replaced_one_by_one() {
    const LEN: usize = 600_000; // more than a chunk has
    let dropped = Arc::<AtomicU64>::default();
    let drops = || dropped.load(Ordering::Relaxed);
    let value = |n| Some(Box::new(Counted(n, Arc::clone(&dropped))));
    let (domain, other) = (Domain::default(), Domain::default());
    let (cells, mut bin) = (Cells::new(&domain, LEN), Bin::new(&domain));
    let mut reader = domain.reader();
    for number in [0, 1, LEN - 1] {
        assert!(cells.store(number, value(number as u32), &mut bin));
    }
    assert!(!cells.store(LEN, value(9), &mut bin) && !cells.store(1 << 40, value(9), &mut bin));
    assert_eq!(drops(), 2, "there are no such cells");
    let guard = reader.enter();
    let read = |guard: &Guard<'_>, number| cells.load(guard, number).map(|found| found.0);
    assert_eq!(
        [0, 1, 2, LEN - 1, LEN, 1 << 40].map(|number| read(&guard, number)),
        [Some(0), Some(1), None, Some(LEN as u32 - 1), None, None]
    );
    let old = cells.load(&guard, 1).unwrap();
    assert!(cells.store(1, value(7), &mut bin) && cells.store(0, None, &mut bin));
    bin.empty();
    assert_eq!((drops(), old.0, read(&guard, 1), read(&guard, 0)), (2, 1, Some(7), None));
    drop(guard);
    bin.empty();
    assert_eq!(drops(), 4);
    assert!(cells.load(&other.reader().enter(), 1).is_none(), "a guard of another domain");
    drop(cells);
    assert_eq!(drops(), 6, "those that were left");
}

#[test]
fn tickets_pass_when_readers_leave_and_new_ones_do_not_hold_them() {
    let domain = Domain::default();
    let (mut one, mut two) = (domain.reader(), domain.reader());
    let guard = one.enter();
    let ticket = domain.ticket();
    assert!(!domain.passed(ticket));
    let _later = two.enter();
    drop(guard);
    assert!(domain.passed(ticket), "the second reader came behind");
}

/// A source whose readers leave when the test says so.
#[derive(Clone, Default)]
struct Manual(Arc<(AtomicU64, AtomicU64)>);

impl Manual {
    /// All readers leave that have come until now.
    fn pass(&self) {
        self.0.1.store(self.0.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn close(&self) {
        self.0.1.store(u64::MAX, Ordering::Relaxed);
    }
}

impl Source for Manual {
    fn take(&self) -> u64 {
        self.0.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn oldest(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }
}

#[test]
fn a_ticket_passes_when_the_readers_of_every_source_have_left() {
    let domain = Domain::default();
    let before = domain.ticket();
    let (kernel, card) = (Manual::default(), Manual::default());
    domain.add_source(Box::new(kernel.clone())).unwrap();
    domain.add_source(Box::new(card.clone())).unwrap();
    assert!(domain.passed(before), "the sources came later");
    let mut reader = domain.reader();
    let guard = reader.enter();
    let ticket = domain.ticket();
    kernel.pass();
    assert!(!domain.passed(ticket), "two are missing");
    drop(guard);
    assert!(!domain.passed(ticket), "one is missing");
    card.pass();
    assert!(domain.passed(ticket));
    let later = domain.ticket();
    assert!(domain.passed(ticket) && !domain.passed(later));
    kernel.close();
    assert!(!domain.passed(later));
    card.pass();
    assert!(domain.passed(later) && !domain.passed(domain.ticket()));
    card.close();
    assert!(domain.passed(domain.ticket()), "no source has readers any more");
}

#[test]
fn sources_are_bounded() {
    let domain = Domain::default();
    for _ in 1..SOURCES {
        domain.add_source(Box::new(Manual::default())).unwrap();
    }
    assert_eq!(domain.add_source(Box::new(Manual::default())), Err(TooManySources));
    assert!(!domain.passed(domain.ticket()));
}

#[test]
fn queues_keep_their_order_over_all_sources() {
    let domain = Domain::default();
    let source = Manual::default();
    domain.add_source(Box::new(source.clone())).unwrap();
    let mut queue = Queue::new(&domain);
    for n in 0..3 {
        queue.push(n);
    }
    assert_eq!((queue.pop_passed(), queue.drain().count(), queue.front()), (None, 0, Some(&0)));
    source.pass();
    queue.push(3);
    assert_eq!(queue.pop_passed(), Some(0));
    assert_eq!(queue.drain().collect::<Vec<_>>(), [1, 2]);
    assert_eq!((queue.pop_passed(), queue.len()), (None, 1));
    assert_eq!((queue.pop(), queue.pop_passed(), queue.is_empty()), (Some(3), None, true));
}

#[test]
fn blocks_are_reused_only_when_other_sources_have_finished() {
    let domain = Domain::default();
    let source = Manual::default();
    domain.add_source(Box::new(source.clone())).unwrap();
    let mut writer: Writer<Value> = Writer::new(&domain);
    let slots = writer.slots(1);
    for n in 0..10 {
        let block = writer.block(&[Value(n)]).unwrap();
        writer.install(&slots, 0, block);
        writer.reclaim(|_| ());
    }
    assert_eq!(writer.waiting(), 9);
    source.pass();
    let mut gone = Vec::new();
    writer.reclaim(|block| gone.push(block[0].0));
    assert_eq!((gone, writer.waiting()), ((0..9).collect(), 0));
}

#[test]
fn cells_drop_what_they_had_and_what_they_have() {
    let domain = Domain::default();
    let value = Arc::new(());
    let cell = Cell::new(&domain);
    let mut bin = Bin::new(&domain);
    let mut reader = domain.reader();
    cell.store(Some(Box::new(Arc::clone(&value))), &mut bin);
    let guard = reader.enter();
    assert!(cell.load(&guard).is_some());
    cell.store(Some(Box::new(Arc::clone(&value))), &mut bin);
    bin.empty();
    assert_eq!(Arc::strong_count(&value), 3);
    drop(guard);
    bin.empty();
    assert_eq!(Arc::strong_count(&value), 2);
    drop(cell);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn lengths_have_classes() {
    for len in 1..2000 {
        let (class, size) = class_of(len).unwrap();
        assert!(size >= len && len_of(class) == size);
    }
    assert!(class_of(0).is_none());
    let domain = Domain::default();
    let mut writer: Writer<Value> = Writer::new(&domain);
    let chunk = Chunks::<Value>::LEN;
    assert!(writer.block(&vec![Value(0); chunk + 1]).is_none(), "longer than a chunk");
    assert!(writer.block(&vec![Value(0); chunk]).is_some());
}

/// Many readers read while a writer replaces blocks: each reader sees whole blocks only.
#[test]
fn readers_never_see_half_a_block() {
    let domain = Domain::default();
    let mut writer: Writer<Value> = Writer::new(&domain);
    let slots = writer.slots(4);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (mut reader, slots, stop) = (domain.reader(), &slots, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let guard = reader.enter();
                    for at in 0..4 {
                        if let Some(block) = slots.load(&guard, at) {
                            assert!(block.iter().all(|value| value.0 == block[0].0));
                        }
                    }
                }
            });
        }
        for n in 0..20_000u64 {
            writer.reclaim(|_| ());
            let block = writer.block(&[Value(n); 3]).unwrap();
            writer.install(&slots, (n % 4) as usize, block);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Chunks of zeros, as somebody else would provide them.
struct Borrowed {
    lines: NonNull<[Line]>,
    layout: std::alloc::Layout,
    dropped: Arc<std::sync::atomic::AtomicBool>,
}

// SAFETY: the lines are atomics.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

// SAFETY: the memory is freed when the value is dropped.
unsafe impl Memory for Borrowed {
    fn lines(&self) -> NonNull<[Line]> {
        self.lines
    }
}

impl Borrowed {
    /// `count` lines that begin at a multiple of `align` octets.
    fn new(count: usize, align: usize) -> Borrowed {
        let layout = std::alloc::Layout::from_size_align(count * 64, align).expect("short");
        // SAFETY: the layout has a length.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let first = NonNull::new(memory).expect("there is memory").cast::<Line>();
        Borrowed { lines: NonNull::slice_from_raw_parts(first, count), layout, dropped: Arc::default() }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.lines.as_ptr().cast(), self.layout) };
    }
}

#[test]
fn a_lines_number_says_its_region_and_place() {
    let lines = Lines::default();
    let chunk = Lines::CHUNK as u32;
    let (small, large) = (Borrowed::new(Lines::CHUNK, 64), Borrowed::new(3 * Lines::CHUNK, 64));
    let starts = [small.lines, large.lines].map(|memory| memory.cast::<Line>().as_ptr());
    let dropped = Arc::clone(&large.dropped);
    let small = lines.add_region(Box::new(small)).unwrap();
    let large = lines.add_region(Box::new(Arc::new(large))).unwrap();
    assert_eq!((Region::OWN.index(), small.index(), large.index()), (0, 1, 2));
    for (region, start, count) in [(small, starts[0], chunk), (large, starts[1], 3 * chunk)] {
        for place in [0, 1, chunk - 1, count - 1] {
            let number = region.line(place);
            assert_eq!(Region::of(number), region);
            assert!(lines.grow_shared(number));
            let line = lines.get(number).unwrap();
            assert!(std::ptr::eq(line, start.wrapping_add(place as usize)));
            line[7].store(u64::from(place) + 1, Ordering::Relaxed);
            lines.prefetch(number);
        }
        assert!(lines.get(region.line(count)).is_none() && !lines.grow_shared(region.line(count)));
    }
    // The process's own memory is as it was, and knows nothing of the others.
    assert!(lines.get(0).is_none() && lines.grow_shared(0));
    assert_eq!(lines.get(0).unwrap()[7].load(Ordering::Relaxed), 0);
    assert_eq!(Region::of((1 << 28) - 1), Region::OWN);
    assert!(lines.get(u32::MAX).is_none() && !lines.grow_shared(u32::MAX));
    assert!(!dropped.load(Ordering::Relaxed));
    drop(lines);
    assert!(dropped.load(Ordering::Relaxed), "the memory goes with the lines");
}

#[test]
fn unsuitable_memory_becomes_no_region() {
    let lines = Lines::default();
    for (count, offset) in [(1, 0), (Lines::CHUNK - 1, 0), (Lines::CHUNK + 1, 0), (Lines::CHUNK, 8)] {
        let mut memory = Borrowed::new(Lines::CHUNK + 2, 64);
        let first = memory.lines.cast::<u8>().as_ptr().wrapping_add(offset).cast::<Line>();
        let whole = std::mem::replace(
            &mut memory.lines,
            NonNull::slice_from_raw_parts(NonNull::new(first).unwrap(), count),
        );
        let memory = Arc::new(memory);
        let refused = lines.add_region(Box::new(Arc::clone(&memory)));
        assert_eq!(refused, Err(RegionError::Unsuitable), "{count} lines, {offset} octets off");
        let mut memory = Arc::into_inner(memory).unwrap();
        memory.lines = whole;
    }
    for _ in 1..Region::COUNT {
        lines.add_region(Box::new(Borrowed::new(Lines::CHUNK, 64))).unwrap();
    }
    let more = lines.add_region(Box::new(Borrowed::new(Lines::CHUNK, 64)));
    assert_eq!(more, Err(RegionError::TooMany));
}

#[test]
fn a_ring_is_bounded_and_keeps_order() {
    let (mut producer, mut consumer) = ring(3);
    assert!(producer.is_drained() && !consumer.is_ready());
    for n in 0..4 {
        assert_eq!(producer.put(n), Ok(()), "a power of two");
    }
    assert_eq!(producer.put(9), Err(9));
    assert!(consumer.is_ready() && !producer.is_drained());
    assert_eq!((consumer.take(), consumer.take()), (Some(0), Some(1)));
    // Far beyond the capacity, in portions of all sizes.
    let (mut next, mut sent) = (2, 4);
    for round in 0..1000 {
        for _ in 0..round % 5 {
            sent += i32::from(producer.put(sent).is_ok());
        }
        for _ in 0..round % 3 {
            if let Some(n) = consumer.take() {
                assert_eq!(n, next);
                next += 1;
            }
        }
    }
    assert!(next > 800, "{next}");
    while consumer.take().is_some() {}
    assert!(producer.is_drained());
    drop(consumer);
    assert_eq!(producer.put(7), Err(7), "nobody takes it");
}
