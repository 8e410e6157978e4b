//! The pool of a data network.
//!
//! Invariant: an address belongs to at most one session. Free addresses are allocated in the order in which they were
//! released, so an address comes to another UE as late as possible, when packets to the first UE have ended. Addresses
//! that were never allocated come first, from a random one on.
//!
//! In a pool that is nearly used up, the address released last may be the next. A quarantine prevents this: a released
//! address is not allocated before the configured time has passed, even if the pool has no other. Only a static address is
//! given at once to a session that asks for it, because its subscriber can get no other.
//!
//! The owner does not store which addresses it allocated. After a restart a UE may get an address that another UE had
//! before, and packets that servers still send there. The random beginning makes this as improbable as the pool is
//! empty: with a tenth of the pool in use before the restart, about one UE in ten is affected. Only stored sessions
//! can prevent it; the SMF has none yet.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use crate::UePool;
use crate::numbers::Numbers;

/// Why no address was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// All addresses are in use or in quarantine.
    #[error("all addresses are in use, or were released just now")]
    Exhausted,
    /// Another session has the static address.
    #[error("static address is in use")]
    InUse,
    /// The static address is outside this pool.
    #[error("static address is not of the pool")]
    Foreign,
}

/// The addresses of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Addresses {
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 prefix, /64.
    pub ipv6: Option<Ipv6Addr>,
}

/// Pools of one data network.
#[derive(Debug)]
pub struct Pool {
    ipv4: Option<Range>,
    ipv6: Option<Range>,
    /// Seconds count from here.
    start: Instant,
}

/// Consecutive addresses as integers: of an IPv6 prefix the upper 64 bits.
#[derive(Debug)]
struct Range {
    base: u64,
    numbers: Numbers,
}

impl Range {
    /// The number of a free address: the `fixed` one, else the next in order.
    fn find(&self, fixed: Option<u64>, now_s: u32) -> Result<u64, PoolError> {
        let Some(fixed) = fixed else { return self.numbers.next(now_s).ok_or(PoolError::Exhausted) };
        let n =
            fixed.checked_sub(self.base).filter(|n| *n < self.numbers.size()).ok_or(PoolError::Foreign)?;
        if self.numbers.is_taken(n) { Err(PoolError::InUse) } else { Ok(n) }
    }

    /// Takes a number that was found; its address.
    fn take(&mut self, n: u64) -> u64 {
        self.numbers.take(n);
        self.base + n
    }

    fn release(&mut self, address: u64, now_s: u32) {
        self.numbers.release(address.wrapping_sub(self.base), now_s);
    }
}

fn ipv4_value(address: Ipv4Addr) -> u64 {
    u32::from(address).into()
}

fn ipv4_of(value: u64) -> Ipv4Addr {
    Ipv4Addr::from(value as u32)
}

fn prefix_value(prefix: Ipv6Addr) -> u64 {
    (u128::from(prefix) >> 64) as u64
}

fn prefix_of(value: u64) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(value) << 64)
}

impl Pool {
    /// A pool in which all addresses are free, except those of network, gateway (the UPF) and
    /// broadcast. A released address is not allocated again for `quarantine_s` seconds. `random` chooses the
    /// address that is allocated first.
    pub fn new(config: UePool, quarantine_s: u32, now: Instant, random: u64) -> Self {
        let ipv4 = config.ipv4.map(|prefix| {
            let count = 1u64 << (32 - prefix.length);
            let mut numbers = Numbers::new(count, random, quarantine_s);
            for reserved in [0, 1, count - 1] {
                numbers.take(reserved);
            }
            Range { base: ipv4_value(prefix.address), numbers }
        });
        let ipv6 = config.ipv6.map(|prefix| {
            let count = 1u64 << (64 - prefix.length).min(63);
            // Other bits than those that chose the first IPv4 address.
            let mut numbers = Numbers::new(count, random.rotate_right(32), quarantine_s);
            numbers.take(0);
            Range { base: prefix_value(prefix.address), numbers }
        });
        Self { ipv4, ipv6, start: now }
    }

    /// Whether sessions can have IPv4.
    pub fn has_ipv4(&self) -> bool {
        self.ipv4.is_some()
    }

    /// Whether sessions can have IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.ipv6.is_some()
    }

    /// Allocates the addresses of a session; `fixed` are those of the subscription. On an error nothing
    /// changes.
    ///
    /// # Errors
    /// An address that is wanted cannot be had.
    pub fn allocate(
        &mut self,
        now: Instant,
        want_v4: bool,
        want_v6: bool,
        fixed: Addresses,
    ) -> Result<Addresses, PoolError> {
        let now_s = self.seconds(now);
        let find = |range: &Option<Range>, fixed| {
            let range = range.as_ref().ok_or(PoolError::Exhausted)?;
            range.find(fixed, now_s)
        };
        // Both are found before one is taken: an address that was only taken for a moment would be in quarantine.
        let ipv4 = want_v4.then(|| find(&self.ipv4, fixed.ipv4.map(ipv4_value))).transpose()?;
        let ipv6 = want_v6.then(|| find(&self.ipv6, fixed.ipv6.map(prefix_value))).transpose()?;
        Ok(Addresses {
            ipv4: self.ipv4.as_mut().zip(ipv4).map(|(range, n)| ipv4_of(range.take(n))),
            ipv6: self.ipv6.as_mut().zip(ipv6).map(|(range, n)| prefix_of(range.take(n))),
        })
    }

    /// Returns addresses to the pool. Those that are not of the pool, or are free, are ignored.
    pub fn release(&mut self, now: Instant, addresses: Addresses) {
        let now_s = self.seconds(now);
        if let Some((range, address)) = self.ipv4.as_mut().zip(addresses.ipv4) {
            range.release(ipv4_value(address), now_s);
        }
        if let Some((range, prefix)) = self.ipv6.as_mut().zip(addresses.ipv6) {
            range.release(prefix_value(prefix), now_s);
        }
    }

    /// Number of IPv4 addresses and IPv6 prefixes that no session has, including those in quarantine, if there is a
    /// pool.
    pub fn free(&self) -> (Option<u64>, Option<u64>) {
        let free = |range: &Option<Range>| range.as_ref().map(|range| range.numbers.free());
        (free(&self.ipv4), free(&self.ipv6))
    }

    /// An instant in the pool's seconds, which last 136 years.
    fn seconds(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.start).as_secs().try_into().unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A pool whose time stands still unless a test says otherwise.
    struct Timed {
        pool: Pool,
        now: Instant,
    }

    impl Timed {
        fn allocate(&mut self, v4: bool, v6: bool, fixed: Addresses) -> Result<Addresses, PoolError> {
            self.pool.allocate(self.now, v4, v6, fixed)
        }

        /// A session with IPv4; the last octet of its address.
        fn ipv4(&mut self) -> Result<u8, PoolError> {
            let given = self.allocate(true, false, Addresses::default())?;
            Ok(given.ipv4.unwrap().octets()[3])
        }

        fn release(&mut self, addresses: Addresses) {
            self.pool.release(self.now, addresses);
        }

        fn wait_ms(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
        }
    }

    #[allow(clippy::disallowed_methods, reason = "an origin; all later instants are counted from it")]
    fn beginning() -> Instant {
        Instant::now()
    }

    fn pool(ipv4: &str, ipv6: &str) -> Timed {
        with_quarantine(0, ipv4, ipv6)
    }

    fn with_quarantine(quarantine_s: u32, ipv4: &str, ipv6: &str) -> Timed {
        let now = beginning();
        let config = UePool { ipv4: ipv4.parse().ok(), ipv6: ipv6.parse().ok() };
        Timed { pool: Pool::new(config, quarantine_s, now, 0x0123_4567_89ab_cdef), now }
    }

    fn ipv4_address(last: u8) -> Addresses {
        Addresses { ipv4: Some([10, 0, 0, last].into()), ipv6: None }
    }

    #[test]
    fn a_small_pool_gives_each_address_once_and_then_none() {
        let mut pool = pool("10.0.0.0/29", "");
        let mut given: Vec<u8> = std::iter::from_fn(|| pool.ipv4().ok()).collect();
        given.sort_unstable();
        assert_eq!(given, [2, 3, 4, 5, 6], "network, gateway and broadcast are not given");
        pool.release(ipv4_address(4));
        pool.release(ipv4_address(4));
        pool.release(Addresses { ipv4: Some([10, 9, 0, 4].into()), ipv6: None });
        pool.release(Addresses { ipv4: Some([9, 0, 0, 4].into()), ipv6: None });
        assert_eq!(pool.ipv4(), Ok(4));
        assert_eq!(pool.ipv4(), Err(PoolError::Exhausted));
    }

    #[test]
    fn a_released_address_comes_last() {
        let mut pool = pool("10.45.0.0/16", "");
        let mut next = || pool.allocate(true, false, Addresses::default());
        let first = next().unwrap();
        pool.release(first);
        let mut next = || pool.allocate(true, false, Addresses::default());
        assert_ne!(next().unwrap(), first);
        // All 65,533 addresses are given out, each once.
        let mut seen = std::collections::HashSet::new();
        while let Ok(addresses) = next() {
            assert!(seen.insert(addresses.ipv4.unwrap()));
        }
        assert_eq!((seen.len(), pool.pool.free().0), (65_532, Some(0)));
    }

    #[test]
    fn addresses_are_allocated_in_the_order_of_their_release() {
        let mut pool = pool("10.0.0.0/28", "");
        let all: Vec<u8> = std::iter::from_fn(|| pool.ipv4().ok()).collect();
        assert_eq!(all.len(), 13);
        for index in [4, 1, 8, 0, 12, 4] {
            pool.release(ipv4_address(all[index]));
            assert_eq!(pool.ipv4(), Ok(all[index]), "the only free one");
        }
        for index in [8, 1, 12, 0, 5] {
            pool.release(ipv4_address(all[index]));
        }
        // A static address that is released again waits from then on, and is in the list once.
        let fixed = ipv4_address(all[1]);
        assert_eq!(pool.allocate(true, false, fixed), Ok(fixed));
        pool.release(fixed);
        let again: Vec<u8> = std::iter::from_fn(|| pool.ipv4().ok()).collect();
        assert_eq!(again, [8, 12, 0, 5, 1].map(|index| all[index]));
    }

    /// An owner that restarted does not begin where it began before.
    #[test]
    fn the_first_address_is_the_random_one() {
        let first = |random| {
            let config = UePool { ipv4: "10.45.0.0/16".parse().ok(), ipv6: "fd00:45::/48".parse().ok() };
            let now = beginning();
            let mut pool = Pool::new(config, 0, now, random);
            let given = pool.allocate(now, true, true, Addresses::default()).unwrap();
            (given.ipv4.unwrap().to_string(), given.ipv6.unwrap().to_string())
        };
        assert_eq!(first(0x0000_0042_0001_0007), ("10.45.0.7".to_owned(), "fd00:45:0:42::".to_owned()));
        assert_eq!(first(0x0001_ffff_0000_ffff), ("10.45.0.2".to_owned(), "fd00:45:0:ffff::".to_owned()));
    }

    #[test]
    fn prefixes_are_64_long_and_the_first_is_the_gateways() {
        let mut pool = pool("10.0.0.0/29", "fd00:45::/62");
        let mut prefix = || pool.allocate(false, true, Addresses::default()).map(|a| a.ipv6.unwrap());
        let mut given: Vec<Ipv6Addr> = (0..3).map(|_| prefix().unwrap()).collect();
        given.sort_unstable();
        assert_eq!(
            given,
            ["fd00:45:0:1::", "fd00:45:0:2::", "fd00:45:0:3::"].map(|text| text.parse::<Ipv6Addr>().unwrap())
        );
    }

    #[test]
    fn without_a_prefix_left_a_session_with_both_takes_no_ipv4_address() {
        let mut pool = with_quarantine(60, "10.0.0.0/29", "fd00:45::/63");
        assert!(pool.allocate(false, true, Addresses::default()).is_ok());
        let before = pool.pool.free();
        for _ in 0..10 {
            assert_eq!(pool.allocate(true, true, Addresses::default()), Err(PoolError::Exhausted));
        }
        assert_eq!(pool.pool.free(), before);
        assert!(pool.ipv4().is_ok(), "none is in quarantine either");
    }

    #[test]
    fn static_addresses_are_honoured_once() {
        let mut pool = pool("10.45.0.0/16", "fd00:45::/48");
        let fixed =
            Addresses { ipv4: Some([10, 45, 7, 7].into()), ipv6: Some("fd00:45:0:77::".parse().unwrap()) };
        assert_eq!(pool.allocate(true, true, fixed), Ok(fixed));
        assert_eq!(pool.allocate(true, true, fixed), Err(PoolError::InUse));
        for foreign in [[10, 46, 0, 1], [10, 44, 255, 255]] {
            let foreign = Addresses { ipv4: Some(foreign.into()), ipv6: None };
            assert_eq!(pool.allocate(true, false, foreign), Err(PoolError::Foreign));
        }
    }

    #[test]
    fn a_released_address_stays_in_quarantine_at_least_as_long_as_configured() {
        let mut pool = with_quarantine(10, "10.0.0.0/29", "");
        while pool.ipv4().is_ok() {}
        pool.wait_ms(999);
        pool.release(ipv4_address(4));
        pool.wait_ms(500);
        pool.release(ipv4_address(2));
        pool.wait_ms(9_500);
        // 10.0 s and 9.5 s after their release.
        assert_eq!(pool.ipv4(), Err(PoolError::Exhausted), "until a whole second has begun");
        assert_eq!(pool.pool.free().0, Some(2));
        pool.wait_ms(1);
        assert_eq!(pool.ipv4(), Ok(4));
        assert_eq!(pool.ipv4(), Err(PoolError::Exhausted));
        pool.wait_ms(1_000);
        assert_eq!(pool.ipv4(), Ok(2));
    }

    #[test]
    fn a_static_address_comes_back_at_once_and_others_wait() {
        let mut pool = with_quarantine(10, "10.0.0.0/29", "");
        while pool.ipv4().is_ok() {}
        pool.release(ipv4_address(4));
        pool.release(ipv4_address(6));
        assert_eq!(pool.allocate(true, false, ipv4_address(6)), Ok(ipv4_address(6)));
        pool.wait_ms(5_000);
        // Its quarantine begins anew.
        pool.release(ipv4_address(6));
        pool.wait_ms(6_000);
        assert_eq!(pool.ipv4(), Ok(4));
        assert_eq!(pool.ipv4(), Err(PoolError::Exhausted));
        pool.wait_ms(5_000);
        assert_eq!(pool.ipv4(), Ok(6));
    }

    #[test]
    fn addresses_that_nobody_had_are_not_in_quarantine() {
        let mut pool = with_quarantine(3600, "10.0.0.0/29", "fd00:45::/62");
        for _ in 0..3 {
            let given = pool.allocate(true, true, Addresses::default()).unwrap();
            pool.release(given);
        }
        // Three of the prefixes are for UEs, and all are in quarantine.
        assert_eq!(pool.allocate(true, true, Addresses::default()), Err(PoolError::Exhausted));
        assert!(pool.ipv4().is_ok() && pool.ipv4().is_ok());
        assert_eq!(pool.ipv4(), Err(PoolError::Exhausted));
    }
}
