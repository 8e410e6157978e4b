//! UE addresses of one data network: IPv4 by bitmap, IPv6 as /64 prefixes by the same bitmap.
//!
//! Invariant: an address is with at most one session. Allocation goes round the pool, so that an address just
//! released is not given to another UE while packets for the first are still under way. It begins at a random place:
//! after a restart, peers of a UE that was given an address before the restart still send to it, and the next UE is not
//! to be the one that gets their packets. What was given is not known any more, so no quarantine could do better; in a
//! pool that is mostly in use, an address may come again.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::config::{Prefix, UePool};

/// Most addresses per pool; of larger pools the first part is used. 2^20 bits are 128 KiB.
const MAX_ADDRESSES: u64 = 1 << 20;

/// Why no address was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// All addresses are in use.
    #[error("address pool is exhausted")]
    Exhausted,
    /// Another session has the static address.
    #[error("static address is in use")]
    InUse,
    /// The static address is outside this pool.
    #[error("static address is not of the pool")]
    Foreign,
}

/// The numbers 0…size-1, each free or taken.
#[derive(Debug)]
struct Bitmap {
    words: Vec<u64>,
    size: u64,
    next: u64,
    free: u64,
}

impl Bitmap {
    /// All free; numbers are given from `first` on, which may be anything.
    fn new(size: u64, first: u64) -> Self {
        let size = size.min(MAX_ADDRESSES);
        Self { words: vec![0; size.div_ceil(64) as usize], size, next: first % size, free: size }
    }

    fn is_taken(&self, n: u64) -> bool {
        self.words.get((n / 64) as usize).is_none_or(|word| word & 1 << (n % 64) != 0)
    }

    /// Takes `n`; `false` if it is taken or outside the range.
    fn take(&mut self, n: u64) -> bool {
        if n >= self.size || self.is_taken(n) {
            return false;
        }
        self.words[(n / 64) as usize] |= 1 << (n % 64);
        self.free -= 1;
        true
    }

    /// Takes the next free number after the last one taken.
    fn take_next(&mut self) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let words = self.words.len() as u64;
        // One step more than there are words: the first word is searched from its middle and, at the
        // end, from its start.
        for step in 0..=words {
            let index = (self.next / 64 + step) % words;
            let mut open = !self.words[index as usize];
            if step == 0 {
                open &= u64::MAX << (self.next % 64);
            }
            let n = index * 64 + u64::from(open.trailing_zeros());
            if open != 0 && self.take(n) {
                self.next = (n + 1) % self.size;
                return Some(n);
            }
        }
        None
    }

    fn release(&mut self, n: u64) {
        if n < self.size && self.is_taken(n) {
            self.words[(n / 64) as usize] &= !(1 << (n % 64));
            self.free += 1;
        }
    }
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
    ipv4: Option<(Prefix<Ipv4Addr>, Bitmap)>,
    ipv6: Option<(Prefix<Ipv6Addr>, Bitmap)>,
}

impl Pool {
    /// A pool in which all addresses are free, except those of network, gateway (the UPF) and
    /// broadcast.
    pub fn new(config: UePool) -> Self {
        let ipv4 = config.ipv4.map(|prefix| {
            let count = 1u64 << (32 - prefix.length);
            let mut bitmap = Bitmap::new(count, nf::random::u64());
            for reserved in [0, 1, count - 1] {
                bitmap.take(reserved);
            }
            (prefix, bitmap)
        });
        let ipv6 = config.ipv6.map(|prefix| {
            let mut bitmap = Bitmap::new(1u64 << (64 - prefix.length).min(63), nf::random::u64());
            bitmap.take(0);
            (prefix, bitmap)
        });
        Self { ipv4, ipv6 }
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
    /// is taken.
    pub fn allocate(
        &mut self,
        want_v4: bool,
        want_v6: bool,
        fixed: Addresses,
    ) -> Result<Addresses, PoolError> {
        let ipv4 = if want_v4 { Some(self.allocate_v4(fixed.ipv4)?) } else { None };
        let ipv6 = match want_v6.then(|| self.allocate_v6(fixed.ipv6)).transpose() {
            Ok(ipv6) => ipv6,
            Err(error) => {
                self.release(Addresses { ipv4, ipv6: None });
                return Err(error);
            }
        };
        Ok(Addresses { ipv4, ipv6 })
    }

    fn allocate_v4(&mut self, fixed: Option<Ipv4Addr>) -> Result<Ipv4Addr, PoolError> {
        let (prefix, bitmap) = self.ipv4.as_mut().ok_or(PoolError::Exhausted)?;
        let base = u32::from(prefix.address);
        let Some(fixed) = fixed else {
            let n = bitmap.take_next().ok_or(PoolError::Exhausted)?;
            return Ok(Ipv4Addr::from(base + n as u32));
        };
        let n = u32::from(fixed).checked_sub(base).ok_or(PoolError::Foreign)?;
        if u64::from(n) >= bitmap.size {
            return Err(PoolError::Foreign);
        }
        if bitmap.take(n.into()) { Ok(fixed) } else { Err(PoolError::InUse) }
    }

    fn allocate_v6(&mut self, fixed: Option<Ipv6Addr>) -> Result<Ipv6Addr, PoolError> {
        let (prefix, bitmap) = self.ipv6.as_mut().ok_or(PoolError::Exhausted)?;
        let base = (u128::from(prefix.address) >> 64) as u64;
        let Some(fixed) = fixed else {
            let n = bitmap.take_next().ok_or(PoolError::Exhausted)?;
            return Ok(Ipv6Addr::from(u128::from(base + n) << 64));
        };
        let high = (u128::from(fixed) >> 64) as u64;
        let n = high.checked_sub(base).filter(|n| *n < bitmap.size).ok_or(PoolError::Foreign)?;
        if bitmap.take(n) { Ok(Ipv6Addr::from(u128::from(high) << 64)) } else { Err(PoolError::InUse) }
    }

    /// Returns addresses to the pool.
    pub fn release(&mut self, addresses: Addresses) {
        if let (Some(address), Some((prefix, bitmap))) = (addresses.ipv4, self.ipv4.as_mut()) {
            bitmap.release(u64::from(u32::from(address).wrapping_sub(u32::from(prefix.address))));
        }
        if let (Some(address), Some((prefix, bitmap))) = (addresses.ipv6, self.ipv6.as_mut()) {
            let high = |address: Ipv6Addr| (u128::from(address) >> 64) as u64;
            bitmap.release(high(address).wrapping_sub(high(prefix.address)));
        }
    }

    /// Number of free IPv4 addresses and IPv6 prefixes, if there is a pool.
    pub fn free(&self) -> (Option<u64>, Option<u64>) {
        (self.ipv4.as_ref().map(|(_, bitmap)| bitmap.free), self.ipv6.as_ref().map(|(_, bitmap)| bitmap.free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(ipv4: &str, ipv6: &str) -> Pool {
        Pool::new(UePool { ipv4: ipv4.parse().ok(), ipv6: ipv6.parse().ok() })
    }

    #[test]
    fn a_small_pool_gives_each_address_once_and_then_none() {
        let mut pool = pool("10.0.0.0/29", "");
        let mut given = Vec::new();
        while let Ok(addresses) = pool.allocate(true, false, Addresses::default()) {
            given.push(addresses.ipv4.unwrap().octets()[3]);
        }
        given.sort_unstable();
        assert_eq!(given, [2, 3, 4, 5, 6], "network, gateway and broadcast are not given");
        pool.release(Addresses { ipv4: Some([10, 0, 0, 4].into()), ipv6: None });
        pool.release(Addresses { ipv4: Some([10, 0, 0, 4].into()), ipv6: None });
        pool.release(Addresses { ipv4: Some([10, 9, 0, 4].into()), ipv6: None });
        let again = pool.allocate(true, false, Addresses::default()).unwrap();
        assert_eq!(again.ipv4, Some([10, 0, 0, 4].into()));
        assert_eq!(pool.allocate(true, false, Addresses::default()), Err(PoolError::Exhausted));
    }

    #[test]
    fn a_released_address_comes_last() {
        let mut pool = pool("10.45.0.0/16", "");
        let first = pool.allocate(true, false, Addresses::default()).unwrap();
        pool.release(first);
        assert_ne!(pool.allocate(true, false, Addresses::default()).unwrap(), first);
        // All 65,533 addresses are given out, each once.
        let mut seen = std::collections::HashSet::new();
        while let Ok(addresses) = pool.allocate(true, false, Addresses::default()) {
            assert!(seen.insert(addresses.ipv4.unwrap()));
        }
        assert_eq!((seen.len(), pool.free().0), (65_532, Some(0)));
    }

    /// An SMF that restarted does not begin where it began before.
    #[test]
    fn the_first_address_is_random() {
        let first =
            || pool("10.45.0.0/16", "fd00:45::/48").allocate(true, true, Addresses::default()).unwrap();
        let given = [first(), first(), first(), first()];
        let differ =
            |of: fn(&Addresses) -> std::net::IpAddr| given.iter().any(|one| of(one) != of(&given[0]));
        assert!(
            differ(|one| one.ipv4.unwrap().into()) && differ(|one| one.ipv6.unwrap().into()),
            "{given:?}"
        );
    }

    #[test]
    fn prefixes_are_64_long_and_the_first_is_the_gateways() {
        let mut pool = pool("10.0.0.0/29", "fd00:45::/62");
        let prefix =
            |pool: &mut Pool| pool.allocate(false, true, Addresses::default()).map(|a| a.ipv6.unwrap());
        let mut given: Vec<Ipv6Addr> = (0..3).map(|_| prefix(&mut pool).unwrap()).collect();
        given.sort_unstable();
        assert_eq!(
            given,
            ["fd00:45:0:1::", "fd00:45:0:2::", "fd00:45:0:3::"].map(|text| text.parse::<Ipv6Addr>().unwrap())
        );
        // IPv4v6 without a prefix left keeps no IPv4 address either.
        let before = pool.free();
        assert_eq!(pool.allocate(true, true, Addresses::default()), Err(PoolError::Exhausted));
        assert_eq!(pool.free(), before);
    }

    #[test]
    fn static_addresses_are_honoured_once() {
        let mut pool = pool("10.45.0.0/16", "fd00:45::/48");
        let fixed =
            Addresses { ipv4: Some([10, 45, 7, 7].into()), ipv6: Some("fd00:45:0:77::".parse().unwrap()) };
        assert_eq!(pool.allocate(true, true, fixed), Ok(fixed));
        assert_eq!(pool.allocate(true, true, fixed), Err(PoolError::InUse));
        let foreign = Addresses { ipv4: Some([10, 46, 0, 1].into()), ipv6: None };
        assert_eq!(pool.allocate(true, false, foreign), Err(PoolError::Foreign));
    }
}
