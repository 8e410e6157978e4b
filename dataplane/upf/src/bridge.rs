//! The bridge of a data network with Ethernet sessions: learnt addresses and flooding (TS 23.501 §5.6.10.2).
//!
//! A frame goes to the station at which its destination address was last seen: a session, or the data network.
//! Frames to groups and to unknown addresses go to all stations except the one from which they came. Workers
//! learn and look up without a lock, as an entry of the table is one word. A keyed permutation of address and
//! VLAN gives the place in the table (some of its bits) and the tag (the others). So an entry that holds only
//! the tag still identifies exactly one address, and an attacker cannot choose addresses that share a place.
//!
//! ```text
//!  VLAN 12 | MAC 48  ──permutation──►  place 16 | tag 44
//!  entry: tag 44 | station + 1: 20     (0: empty)
//! ```
//! Bounds: the size of the table; a number of addresses per station; and an address stays at its station as
//! long as it is heard there, so that no UE takes over the address of another, or of the gateway, by sending
//! with it (UP-4).

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;

/// The station that is the data network; sessions have numbers from 1 on.
pub const NETWORK: u32 = 0;
/// Most stations; station numbers are below it.
pub const STATIONS_MAX: u32 = (1 << STATION_BITS) - 1;
const STATION_BITS: u32 = 20;
const TAG_BITS: u32 = 64 - STATION_BITS;
const PLACE_BITS: u32 = 60 - TAG_BITS;
/// Number of entries in a place.
const WAYS: usize = 4;
const HALF: u64 = (1 << 30) - 1;

/// A MAC address.
pub type Mac = [u8; 6];

/// Bounds of a bridge.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Station numbers are below this number.
    pub stations: u32,
    /// Most addresses of a session.
    pub per_session: u16,
    /// Most addresses in the data network.
    pub network: u16,
    /// Seconds after which an address that was not heard is forgotten (IEEE 802.1Q table 8-6: 300).
    pub age_s: u32,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { stations: 1 << 16, per_session: 16, network: 16_384, age_s: 300 }
    }
}

/// Result of learning a source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learnt {
    /// The address was already known at this station.
    Known,
    /// The address is new. The CP function may want a report of addresses detected (TS 29.244 §5.13.5).
    New,
    /// The address belongs to another station: the frame must be dropped.
    Foreign,
    /// There is no room. The frame passes, and frames to the address are flooded.
    Full,
}

/// The bridge of a data network.
#[derive(Debug)]
pub struct Bridge {
    entries: Box<[AtomicU64]>,
    /// The second at which each entry's address was last heard.
    heard_s: Box<[AtomicU32]>,
    /// Number of addresses of each station.
    counts: Box<[AtomicU16]>,
    /// The sessions to which frames are flooded.
    members: ArcSwap<Vec<u32>>,
    bounds: Bounds,
    secret: u64,
}

impl Bridge {
    /// A bridge without stations and addresses. `secret` is the key of the permutation.
    pub fn new(bounds: Bounds, secret: u64) -> Bridge {
        let places = WAYS << PLACE_BITS;
        let bounds = Bounds { stations: bounds.stations.clamp(1, STATIONS_MAX), ..bounds };
        Bridge {
            entries: (0..places).map(|_| AtomicU64::new(0)).collect(),
            heard_s: (0..places).map(|_| AtomicU32::new(0)).collect(),
            counts: (0..bounds.stations).map(|_| AtomicU16::new(0)).collect(),
            members: ArcSwap::default(),
            bounds,
            secret,
        }
    }

    /// Adds a session; `false` when the number is not that of a session.
    pub fn join(&self, station: u32) -> bool {
        if station == NETWORK || station >= self.bounds.stations {
            return false;
        }
        self.members.rcu(|members| {
            let mut members = Vec::clone(members);
            if let Err(at) = members.binary_search(&station) {
                members.insert(at, station);
            }
            members
        });
        true
    }

    /// Removes a session and forgets its addresses.
    pub fn leave(&self, station: u32) {
        self.members
            .rcu(|members| members.iter().copied().filter(|other| *other != station).collect::<Vec<_>>());
        for entry in self.of(station) {
            let word = self.entries[entry].load(Relaxed);
            if self.station(word) == Some(station) {
                self.replace(entry, word, 0);
            }
        }
    }

    /// The sessions to which a frame is flooded, besides the data network. Includes the session from which the
    /// frame came.
    pub fn members(&self) -> Arc<Vec<u32>> {
        self.members.load_full()
    }

    /// The addresses learnt at a station, with their VLANs.
    pub fn addresses(&self, station: u32) -> Vec<(u16, Mac)> {
        self.of(station)
            .map(|entry| {
                self.restored((entry / WAYS) as u64, self.entries[entry].load(Relaxed) >> STATION_BITS)
            })
            .collect()
    }

    /// Forgets an address that was not heard since second `since_s`. Also returns `true` when the address is
    /// not known at the station.
    pub fn forget_if_silent(&self, station: u32, vlan: u16, mac: Mac, since_s: u32) -> bool {
        let (place, tag) = self.permuted(vlan, mac);
        let word = tag << STATION_BITS | u64::from(station + 1);
        let known =
            (place * WAYS..(place + 1) * WAYS).find(|entry| self.entries[*entry].load(Relaxed) == word);
        match known {
            Some(entry) if self.heard_s[entry].load(Relaxed) > since_s => false,
            Some(entry) => {
                self.replace(entry, word, 0);
                true
            }
            None => true,
        }
    }

    /// Learns that a frame came from `station`.
    pub fn learn(&self, station: u32, vlan: u16, mac: Mac, now_s: u32) -> Learnt {
        if station >= self.bounds.stations {
            return Learnt::Full;
        }
        let (place, tag) = self.permuted(vlan, mac);
        let ways = place * WAYS..(place + 1) * WAYS;
        let word = tag << STATION_BITS | u64::from(station + 1);
        let mut free = None;
        for entry in ways {
            let there = self.entries[entry].load(Relaxed);
            let stale = self.is_stale(entry, now_s);
            if there == word {
                // Written at most once a second, so that workers can share the cache line.
                if self.heard_s[entry].load(Relaxed) != now_s {
                    self.heard_s[entry].store(now_s, Relaxed);
                }
                return Learnt::Known;
            }
            if there >> STATION_BITS == tag && there != 0 {
                if !stale {
                    return Learnt::Foreign;
                }
                free = Some((entry, there));
                break;
            }
            if there == 0 || stale {
                free = free.or(Some((entry, there)));
            }
        }
        let bound = if station == NETWORK { self.bounds.network } else { self.bounds.per_session };
        match free {
            Some((entry, there)) if self.counts[station as usize].load(Relaxed) < bound => {
                // Before the word, as the entry would otherwise be outdated at first.
                self.heard_s[entry].store(now_s, Relaxed);
                if self.replace(entry, there, word) { Learnt::New } else { Learnt::Full }
            }
            _ => Learnt::Full,
        }
    }

    /// The station of an address; `None` for groups and unknown addresses, whose frames are flooded.
    #[inline]
    pub fn find(&self, vlan: u16, mac: Mac, now_s: u32) -> Option<u32> {
        if mac[0] & 1 != 0 {
            return None;
        }
        let (place, tag) = self.permuted(vlan, mac);
        (place * WAYS..(place + 1) * WAYS).find_map(|entry| {
            let word = self.entries[entry].load(Relaxed);
            let here = word >> STATION_BITS == tag && !self.is_stale(entry, now_s);
            here.then(|| self.station(word)).flatten()
        })
    }

    fn station(&self, word: u64) -> Option<u32> {
        (word as u32 & STATIONS_MAX).checked_sub(1)
    }

    fn is_stale(&self, entry: usize, now_s: u32) -> bool {
        now_s.saturating_sub(self.heard_s[entry].load(Relaxed)) >= self.bounds.age_s
    }

    /// Indices of a station's entries.
    fn of(&self, station: u32) -> impl Iterator<Item = usize> + '_ {
        let none = self.counts.get(station as usize).is_none_or(|count| count.load(Relaxed) == 0);
        let entries = if none { 0 } else { self.entries.len() };
        (0..entries).filter(move |entry| self.station(self.entries[*entry].load(Relaxed)) == Some(station))
    }

    /// Replaces an entry's word if it still is `from`, and updates the counts of addresses.
    fn replace(&self, entry: usize, from: u64, to: u64) -> bool {
        if self.entries[entry].compare_exchange(from, to, Relaxed, Relaxed).is_err() {
            return false;
        }
        if let Some(count) = self.station(from).and_then(|station| self.counts.get(station as usize)) {
            count.fetch_sub(1, Relaxed);
        }
        if let Some(count) = self.station(to).and_then(|station| self.counts.get(station as usize)) {
            count.fetch_add(1, Relaxed);
        }
        true
    }

    /// Place and tag of an address: a Feistel network of four rounds over two halves of 30 bits.
    #[inline]
    fn permuted(&self, vlan: u16, mac: Mac) -> (usize, u64) {
        let mac = mac.iter().fold(0, |bits, octet| bits << 8 | u64::from(*octet));
        let bits = u64::from(vlan & 0x0FFF) << 48 | mac;
        let (mut left, mut right) = (bits >> 30, bits & HALF);
        for round in 0..4 {
            (left, right) = (right, left ^ self.mixed(right, round));
        }
        let bits = left << 30 | right;
        ((bits >> TAG_BITS) as usize, bits & ((1 << TAG_BITS) - 1))
    }

    /// The address that has this place and tag.
    fn restored(&self, place: u64, tag: u64) -> (u16, Mac) {
        let bits = place << TAG_BITS | tag;
        let (mut left, mut right) = (bits >> 30, bits & HALF);
        for round in (0..4).rev() {
            (left, right) = (right ^ self.mixed(left, round), left);
        }
        let bits = left << 30 | right;
        ((bits >> 48) as u16, std::array::from_fn(|i| (bits >> (40 - 8 * i)) as u8))
    }

    #[inline]
    fn mixed(&self, half: u64, round: u32) -> u64 {
        let mixed = (half ^ self.secret.rotate_left(16 * round)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 34
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 0xA];
    const B: Mac = [2, 0, 0, 0, 0, 0xB];

    fn mac(n: u32) -> Mac {
        let [a, b, c, d] = n.to_be_bytes();
        [2, 7, a, b, c, d]
    }

    fn bridge() -> Bridge {
        Bridge::new(Bounds { stations: 100, ..Bounds::default() }, 0x1234_5678_9ABC_DEF0)
    }

    #[test]
    fn addresses_are_found_where_they_were_heard() {
        let bridge = bridge();
        assert_eq!(bridge.learn(5, 0, A, 1), Learnt::New);
        assert_eq!(bridge.learn(5, 0, A, 2), Learnt::Known);
        assert_eq!(bridge.learn(NETWORK, 0, B, 2), Learnt::New);
        assert_eq!((bridge.find(0, A, 3), bridge.find(0, B, 3)), (Some(5), Some(NETWORK)));
        // Each VLAN is a network of its own.
        assert_eq!(bridge.find(7, A, 3), None);
        assert_eq!(bridge.learn(6, 7, A, 3), Learnt::New);
        assert_eq!((bridge.find(7, A, 3), bridge.find(0, A, 3)), (Some(6), Some(5)));
        // A group address has no station.
        assert_eq!(bridge.find(0, [0xFF; 6], 3), None);
        assert_eq!(bridge.addresses(5), [(0, A)]);
        assert_eq!(bridge.addresses(6), [(7, A)]);
    }

    #[test]
    fn an_address_is_nobody_elses_until_it_is_silent() {
        let bridge = bridge();
        assert_eq!(bridge.learn(NETWORK, 0, A, 10), Learnt::New);
        assert_eq!(bridge.learn(5, 0, A, 309), Learnt::Foreign);
        assert_eq!(bridge.find(0, A, 309), Some(NETWORK));
        assert_eq!(bridge.find(0, A, 310), None, "not heard for 300 s");
        assert_eq!(bridge.learn(5, 0, A, 310), Learnt::New);
        assert_eq!(bridge.find(0, A, 310), Some(5));
        assert!(bridge.addresses(NETWORK).is_empty());
    }

    #[test]
    fn silent_addresses_are_forgotten_on_demand() {
        let bridge = bridge();
        assert_eq!(bridge.learn(5, 7, A, 10), Learnt::New);
        assert!(!bridge.forget_if_silent(5, 7, A, 9));
        assert!(
            bridge.forget_if_silent(6, 7, A, 9) && bridge.forget_if_silent(5, 0, A, 9),
            "not known there"
        );
        assert_eq!(bridge.find(7, A, 11), Some(5));
        assert!(bridge.forget_if_silent(5, 7, A, 10));
        assert_eq!((bridge.find(7, A, 11), bridge.learn(5, 7, A, 11)), (None, Learnt::New));
    }

    #[test]
    fn a_session_has_so_many_addresses_and_no_more() {
        let bridge = bridge();
        let learnt = (0..100).filter(|n| bridge.learn(3, 0, mac(*n), 1) == Learnt::New).count();
        assert_eq!((learnt, bridge.addresses(3).len()), (16, 16));
        assert_eq!(bridge.learn(4, 0, mac(50), 1), Learnt::New, "others have room");
        assert!(bridge.join(3) && bridge.join(4) && bridge.join(3));
        assert_eq!(*bridge.members(), [3, 4]);
        bridge.leave(3);
        assert_eq!(*bridge.members(), [4]);
        assert_eq!((bridge.find(0, mac(0), 1), bridge.find(0, mac(50), 1)), (None, Some(4)));
        assert_eq!(bridge.learn(3, 0, mac(99), 1), Learnt::New, "the count is back as well");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let bridge = bridge();
        assert!(!bridge.join(NETWORK) && !bridge.join(100));
        assert_eq!(bridge.learn(100, 0, A, 1), Learnt::Full);
        bridge.leave(100);
        assert!(bridge.addresses(u32::MAX).is_empty());
    }

    /// A flood of addresses fills the table up to its bound and displaces no address that is still heard.
    #[test]
    fn floods_displace_nobody() {
        let bridge = Bridge::new(Bounds { network: u16::MAX, ..Bounds::default() }, 7);
        assert_eq!(bridge.learn(9, 0, A, 1), Learnt::New);
        for n in 0..300_000 {
            assert_ne!(bridge.learn(NETWORK, 0, mac(n), 1), Learnt::Foreign);
        }
        assert_eq!(bridge.find(0, A, 1), Some(9));
        assert_eq!(bridge.addresses(NETWORK).len(), usize::from(u16::MAX));
    }

    #[test]
    fn place_and_tag_stand_for_one_address() {
        let bridge = bridge();
        for n in 0..10_000u32 {
            let (vlan, mac) = ((n % 4096) as u16, mac(n.wrapping_mul(0x9E37_79B9)));
            let (place, tag) = bridge.permuted(vlan, mac);
            assert!(place < 1 << PLACE_BITS && tag < 1 << TAG_BITS);
            assert_eq!(bridge.restored(place as u64, tag), (vlan, mac));
        }
        // Neighbouring addresses are spread: no place gets many more of them than by chance.
        let mut hits = vec![0u32; 1 << PLACE_BITS];
        for n in 0..1 << PLACE_BITS {
            hits[bridge.permuted(0, mac(n)).0] += 1;
        }
        assert!(hits.iter().max() < Some(&12), "{:?}", hits.iter().max());
    }

    /// Workers learn the same addresses for different stations at the same time: each is found at some station,
    /// and the counts agree.
    #[test]
    fn workers_learn_at_once() {
        let bridge = Bridge::new(Bounds { stations: 8, per_session: 1000, ..Bounds::default() }, 3);
        std::thread::scope(|scope| {
            for station in 1..5 {
                let bridge = &bridge;
                scope.spawn(move || {
                    (0..500).for_each(|n| {
                        bridge.learn(station, 0, mac(n), 1);
                    });
                });
            }
        });
        let owned: Vec<usize> = (0..8).map(|station| bridge.addresses(station).len()).collect();
        for (station, owned) in owned.iter().enumerate() {
            assert_eq!(usize::from(bridge.counts[station].load(Relaxed)), *owned);
        }
        assert!((0..500).all(|n| bridge.find(0, mac(n), 1).is_some()));
    }
}
