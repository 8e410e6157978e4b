//! UE addresses of one data network: IPv4 addresses, and IPv6 prefixes of 64 bits.
//!
//! Invariant: an address belongs to at most one session. Free addresses are allocated in the order in which they were
//! released, so an address comes to another UE as late as possible, when packets to the first UE have ended. Addresses
//! that were never allocated come first, from a random one on.
//!
//! The SMF does not store which addresses it allocated. After a restart a UE may get an address that another UE had
//! before, and packets that servers still send there. The random beginning makes this as improbable as the pool is
//! empty: with a tenth of the pool in use before the restart, about one UE in ten is affected. Only stored sessions
//! can prevent it; the SMF has none yet.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::config::{Prefix, UePool};

/// Most addresses per pool; of larger pools the first part is used. The list takes 8 octets for each: 8 MiB.
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

/// The numbers 0…size-1, each free or taken. The free ones are a doubly linked list, least recently released first.
#[derive(Debug)]
struct FreeList {
    /// By number. The last link, number `size`, is the end of the list and its beginning.
    links: Vec<Link>,
    size: u64,
    free: u64,
}

/// Neighbours of a free number in the list.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// [`TAKEN`] if the number is taken.
    before: u32,
    after: u32,
}

const TAKEN: u32 = u32::MAX;

impl FreeList {
    /// All free; numbers are allocated from `first` on, which may be anything.
    fn new(size: u64, first: u64) -> Self {
        let size = size.clamp(1, MAX_ADDRESSES);
        let count = size as u32;
        let around = |n: u32| Link { before: (n + count - 1) % count, after: (n + 1) % count };
        let mut links: Vec<Link> = (0..count).map(around).collect();
        let first = (first % size) as u32;
        let last = links[first as usize].before;
        links.push(Link { before: last, after: first });
        links[last as usize].after = count;
        links[first as usize].before = count;
        Self { links, size, free: size }
    }

    fn is_taken(&self, n: u64) -> bool {
        n >= self.size || self.links[n as usize].before == TAKEN
    }

    /// Takes `n`; `false` if it is taken or outside the range.
    fn take(&mut self, n: u64) -> bool {
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

    /// Takes the number that has been free for the longest time.
    fn take_next(&mut self) -> Option<u64> {
        let n = self.links[self.size as usize].after.into();
        self.take(n).then_some(n)
    }

    fn release(&mut self, n: u64) {
        if n >= self.size || !self.is_taken(n) {
            return;
        }
        let (n, end) = (n as u32, self.size as u32);
        let last = self.links[end as usize].before;
        self.links[last as usize].after = n;
        self.links[n as usize] = Link { before: last, after: end };
        self.links[end as usize].before = n;
        self.free += 1;
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
    ipv4: Option<(Prefix<Ipv4Addr>, FreeList)>,
    ipv6: Option<(Prefix<Ipv6Addr>, FreeList)>,
}

impl Pool {
    /// A pool in which all addresses are free, except those of network, gateway (the UPF) and
    /// broadcast.
    pub fn new(config: UePool) -> Self {
        let ipv4 = config.ipv4.map(|prefix| {
            let count = 1u64 << (32 - prefix.length);
            let mut list = FreeList::new(count, nf::random::u64());
            for reserved in [0, 1, count - 1] {
                list.take(reserved);
            }
            (prefix, list)
        });
        let ipv6 = config.ipv6.map(|prefix| {
            let mut list = FreeList::new(1u64 << (64 - prefix.length).min(63), nf::random::u64());
            list.take(0);
            (prefix, list)
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
        let (prefix, list) = self.ipv4.as_mut().ok_or(PoolError::Exhausted)?;
        let base = u32::from(prefix.address);
        let Some(fixed) = fixed else {
            let n = list.take_next().ok_or(PoolError::Exhausted)?;
            return Ok(Ipv4Addr::from(base + n as u32));
        };
        let n = u32::from(fixed).checked_sub(base).ok_or(PoolError::Foreign)?;
        if u64::from(n) >= list.size {
            return Err(PoolError::Foreign);
        }
        if list.take(n.into()) { Ok(fixed) } else { Err(PoolError::InUse) }
    }

    fn allocate_v6(&mut self, fixed: Option<Ipv6Addr>) -> Result<Ipv6Addr, PoolError> {
        let (prefix, list) = self.ipv6.as_mut().ok_or(PoolError::Exhausted)?;
        let base = (u128::from(prefix.address) >> 64) as u64;
        let Some(fixed) = fixed else {
            let n = list.take_next().ok_or(PoolError::Exhausted)?;
            return Ok(Ipv6Addr::from(u128::from(base + n) << 64));
        };
        let high = (u128::from(fixed) >> 64) as u64;
        let n = high.checked_sub(base).filter(|n| *n < list.size).ok_or(PoolError::Foreign)?;
        if list.take(n) { Ok(Ipv6Addr::from(u128::from(high) << 64)) } else { Err(PoolError::InUse) }
    }

    /// Returns addresses to the pool.
    pub fn release(&mut self, addresses: Addresses) {
        if let (Some(address), Some((prefix, list))) = (addresses.ipv4, self.ipv4.as_mut()) {
            list.release(u64::from(u32::from(address).wrapping_sub(u32::from(prefix.address))));
        }
        if let (Some(address), Some((prefix, list))) = (addresses.ipv6, self.ipv6.as_mut()) {
            let high = |address: Ipv6Addr| (u128::from(address) >> 64) as u64;
            list.release(high(address).wrapping_sub(high(prefix.address)));
        }
    }

    /// Number of free IPv4 addresses and IPv6 prefixes, if there is a pool.
    pub fn free(&self) -> (Option<u64>, Option<u64>) {
        (self.ipv4.as_ref().map(|(_, list)| list.free), self.ipv6.as_ref().map(|(_, list)| list.free))
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

    #[test]
    fn addresses_are_allocated_in_the_order_of_their_release() {
        let mut pool = pool("10.0.0.0/28", "");
        let mut next = |release: Option<Addresses>| {
            release.into_iter().for_each(|addresses| pool.release(addresses));
            pool.allocate(true, false, Addresses::default())
        };
        let all: Vec<Addresses> = (0..13).map(|_| next(None).unwrap()).collect();
        assert_eq!(next(None), Err(PoolError::Exhausted));
        for index in [4, 1, 8, 0, 12, 4] {
            assert_eq!(next(Some(all[index])), Ok(all[index]), "the only free one");
        }
        let released = [8, 1, 12, 0, 5];
        released.iter().for_each(|index| pool.release(all[*index]));
        // A static address that is released again waits from then on, and is in the list once.
        assert_eq!(pool.allocate(true, false, all[1]), Ok(all[1]));
        pool.release(all[1]);
        let again = std::iter::from_fn(|| pool.allocate(true, false, Addresses::default()).ok());
        assert_eq!(again.collect::<Vec<_>>(), [8, 12, 0, 5, 1].map(|index| all[index]));
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
