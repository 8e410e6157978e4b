//! Which numbers of a range are free, and in which order they are allocated.

/// Most numbers; of larger ranges the first part is used. The list takes 8 octets for each, which are 8 MiB,
/// and with a quarantine 12.
const MAX: u64 = 1 << 20;

/// The numbers 0…size-1, each free or taken. The free ones are a doubly linked list: those never taken, then the others,
/// least recently released first.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// By number. The last link, number `size`, is the end of the list and its beginning.
    links: Vec<Link>,
    size: u64,
    free: u64,
    /// How long a released number is not allocated again unless it is asked for, seconds.
    quarantine_s: u32,
    /// By number: the second in which its quarantine is over. Empty without quarantine.
    quarantined_until: Vec<u32>,
}

/// Neighbours of a free number in the list.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// [`TAKEN`] if the number is taken.
    before: u32,
    after: u32,
}

const TAKEN: u32 = u32::MAX;

impl Numbers {
    /// All free; they are allocated from `first` on, which may be anything.
    pub fn new(size: u64, first: u64, quarantine_s: u32) -> Self {
        let size = size.clamp(1, MAX);
        let count = size as u32;
        let around = |n: u32| Link { before: (n + count - 1) % count, after: (n + 1) % count };
        let mut links: Vec<Link> = (0..count).map(around).collect();
        let first = (first % size) as u32;
        let last = links[first as usize].before;
        links.push(Link { before: last, after: first });
        links[last as usize].after = count;
        links[first as usize].before = count;
        let quarantined_until = if quarantine_s > 0 { vec![0; count as usize] } else { Vec::new() };
        Self { links, size, free: size, quarantine_s, quarantined_until }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many are free, in quarantine or not.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Also true of a number outside the range.
    pub fn is_taken(&self, n: u64) -> bool {
        n >= self.size || self.links[n as usize].before == TAKEN
    }

    /// The number that has been free for the longest time; `None` if none is free, or all are in quarantine at `now_s`.
    pub fn next(&self, now_s: u32) -> Option<u64> {
        let n = u64::from(self.links[self.size as usize].after);
        // If the first of the list is in quarantine, those after it are too: they were released later.
        (n < self.size && !self.in_quarantine(n, now_s)).then_some(n)
    }

    fn in_quarantine(&self, n: u64, now_s: u32) -> bool {
        self.quarantined_until.get(n as usize).is_some_and(|until| now_s < *until)
    }

    /// Takes `n`, in quarantine or not; `false` if it is taken or outside the range.
    pub fn take(&mut self, n: u64) -> bool {
        if self.is_taken(n) {
            return false;
        }
        let Link { before, after } = self.links[n as usize];
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
        self.links[n as usize].before = TAKEN;
        self.free -= 1;
        true
    }

    /// Frees `n` in the second `now_s`. Its quarantine is over in the second after `now_s + quarantine_s`, so that it is never
    /// shorter than configured, and at most a second longer.
    pub fn release(&mut self, n: u64, now_s: u32) {
        if n >= self.size || !self.is_taken(n) {
            return;
        }
        let (n, end) = (n as u32, self.size as u32);
        let last = self.links[end as usize].before;
        self.links[last as usize].after = n;
        self.links[n as usize] = Link { before: last, after: end };
        self.links[end as usize].before = n;
        self.free += 1;
        if let Some(until) = self.quarantined_until.get_mut(n as usize) {
            *until = now_s.saturating_add(self.quarantine_s).saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        /// Time passes, seconds.
        Wait(u32),
        /// Allocates the next number.
        Next,
        /// Takes this number.
        Take(u64),
        Release(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Numbers 0…8 of ranges of at most 7, so that some are outside.
        prop_oneof![
            2 => (0u32..3).prop_map(Step::Wait),
            4 => Just(Step::Next),
            1 => (0u64..9).prop_map(Step::Take),
            4 => (0u64..9).prop_map(Step::Release),
        ]
    }

    /// What [`Numbers`] must do, without its list: the free numbers in order, each with the second of its release.
    struct Model {
        free: VecDeque<(u64, Option<u32>)>,
        size: u64,
        quarantine_s: u32,
    }

    impl Model {
        fn take(&mut self, n: u64) -> bool {
            let at = self.free.iter().position(|(free, _)| *free == n);
            at.and_then(|at| self.free.remove(at)).is_some()
        }

        fn next(&self, now_s: u32) -> Option<u64> {
            let (n, released) = *self.free.front()?;
            let waited = |released: u32| self.quarantine_s == 0 || now_s - released > self.quarantine_s;
            released.is_none_or(waited).then_some(n)
        }

        fn release(&mut self, n: u64, now_s: u32) {
            if n < self.size && self.free.iter().all(|(free, _)| *free != n) {
                self.free.push_back((n, Some(now_s)));
            }
        }
    }

    proptest! {
        #[test]
        fn as_the_model(
            size in 1u64..8,
            first: u64,
            quarantine_s in 0u32..4,
            steps in proptest::collection::vec(step(), 0..80),
        ) {
            let mut numbers = Numbers::new(size, first, quarantine_s);
            let free = (0..size).map(|n| ((first % size + n) % size, None)).collect();
            let mut model = Model { free, size, quarantine_s };
            let mut now_s = 0;
            for step in steps {
                match step {
                    Step::Wait(seconds) => now_s += seconds,
                    Step::Next => {
                        let next = numbers.next(now_s);
                        prop_assert_eq!(next, model.next(now_s));
                        if let Some(n) = next {
                            prop_assert!(numbers.take(n) && model.take(n));
                        }
                    }
                    Step::Take(n) => prop_assert_eq!(numbers.take(n), model.take(n)),
                    Step::Release(n) => {
                        numbers.release(n, now_s);
                        model.release(n, now_s);
                    }
                }
                prop_assert_eq!(numbers.free(), model.free.len() as u64);
            }
        }
    }

    #[test]
    fn time_may_reach_its_end() {
        let mut numbers = Numbers::new(1, 0, u32::MAX);
        assert!(numbers.take(0));
        numbers.release(0, 7);
        assert_eq!(numbers.next(u32::MAX - 1), None);
        assert_eq!(numbers.next(u32::MAX), Some(0));
    }

    #[test]
    fn of_a_large_range_the_first_part_is_used() {
        let numbers = Numbers::new(1 << 40, u64::MAX, 1);
        assert_eq!((numbers.size(), numbers.next(0)), (MAX, Some(MAX - 1)));
    }
}
