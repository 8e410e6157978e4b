//! A limit on what packets of others can make the DU send or do.

const SECOND_NS: u64 = 1_000_000_000;

/// A rate in the generic cell rate algorithm.
#[derive(Debug)]
pub(crate) struct Limit {
    interval_ns: u64,
    ahead_ns: u64,
    taken_until_ns: u64,
}

impl Limit {
    /// `per_s` in the long run, `burst` at once.
    pub(crate) fn new(per_s: u32, burst: u32) -> Limit {
        let interval_ns = SECOND_NS / u64::from(per_s.max(1));
        Limit { interval_ns, ahead_ns: interval_ns * u64::from(burst.max(1) - 1), taken_until_ns: 0 }
    }

    /// Whether there may be one more now; it then counts.
    pub(crate) fn allows(&mut self, now_ns: u64) -> bool {
        let start = self.taken_until_ns.max(now_ns);
        let allowed = start - now_ns <= self.ahead_ns;
        if allowed {
            self.taken_until_ns = start + self.interval_ns;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut limit = Limit::new(10, 3);
        let allowed = |limit: &mut Limit, now_ns| (0..20).filter(|_| limit.allows(now_ns)).count();
        assert_eq!(allowed(&mut limit, SECOND_NS), 3);
        assert_eq!(allowed(&mut limit, SECOND_NS + SECOND_NS / 10), 1);
        assert_eq!(allowed(&mut limit, 3 * SECOND_NS), 3);
    }
}
