//! Limits the replies that packets can make the UPF send.
//!
//! Error Indications, ICMP messages and the like answer packets that anybody may send. A flood of such packets
//! must not become a flood of replies (RFC 4443 §2.4 (f), RFC 1812 §4.3.2.8). Each peer has a rate, and all
//! peers together have one, so that one faulty peer does not take the replies of others. Peers share a fixed
//! number of places by hash, so memory is bounded; when two peers fall on one place, they share a rate.
//!
//! All limits are those of the UPF, whatever its number of workers, which therefore share them ([`Limits`]).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::state::Meter;

/// Places for peers.
const PLACES: usize = 256;
const SECOND_NS: u64 = 1_000_000_000;

/// Rates of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Replies per second to one peer in the long run.
    pub peer_per_s: u32,
    /// Replies at once to a peer that got none for a while.
    pub peer_burst: u32,
    /// Replies per second to all peers.
    pub all_per_s: u32,
    /// Replies at once to all peers.
    pub all_burst: u32,
}

impl Rates {
    /// The rates of the UPF: senders notice a broken path from some hundred replies a second.
    pub const REPLIES: Rates = Rates { peer_per_s: 100, peer_burst: 50, all_per_s: 1000, all_burst: 200 };
}

/// A rate in the generic cell rate algorithm: the time of a reply, and how far ahead of time replies may run.
#[derive(Debug, Clone, Copy)]
struct Pace {
    interval_ns: u64,
    ahead_ns: u64,
}

impl Pace {
    fn new(per_s: u32, burst: u32) -> Pace {
        let interval_ns = SECOND_NS / u64::from(per_s.max(1));
        Pace { interval_ns, ahead_ns: interval_ns * u64::from(burst.max(1) - 1) }
    }

    /// The time up to which the rate is used after one more reply; `None` when it is too early for one.
    #[inline]
    fn after_one_more(&self, taken_until_ns: u64, now_ns: u64) -> Option<u64> {
        let start = taken_until_ns.max(now_ns);
        (start - now_ns <= self.ahead_ns).then_some(start + self.interval_ns)
    }
}

/// What packets can make the workers of a UPF send, together.
#[derive(Debug)]
pub struct Limits {
    /// Replies to packets that cannot be forwarded.
    pub replies: Limiter,
    /// Packets to the CP function.
    pub control: Meter,
    /// Copies of frames to several stations.
    pub copies: Meter,
}

impl Limits {
    /// The limits of a UPF; for `secret` see [`Limiter::new`].
    pub fn new(secret: u64) -> Limits {
        let replies = Limiter::new(Rates::REPLIES, secret);
        Limits { replies, control: Meter::default(), copies: Meter::default() }
    }
}

/// Limits replies.
#[derive(Debug)]
pub struct Limiter {
    peer: Pace,
    all: Pace,
    /// For each place, the time up to which its rate is used.
    peers: Box<[AtomicU64; PLACES]>,
    all_until_ns: AtomicU64,
    /// Prevents senders from choosing with whom they share a place.
    secret: u64,
}

impl Limiter {
    /// A limiter with these rates. Senders that know `secret` could choose with whom they share a place.
    pub fn new(rates: Rates, secret: u64) -> Limiter {
        Limiter {
            peer: Pace::new(rates.peer_per_s, rates.peer_burst),
            all: Pace::new(rates.all_per_s, rates.all_burst),
            peers: Box::new([const { AtomicU64::new(0) }; PLACES]),
            all_until_ns: AtomicU64::new(0),
            secret,
        }
    }

    /// Whether `peer` may be sent one more reply; if so, it is accounted for. A reply that one rate forbids is
    /// not charged to the other, unless another worker has taken the last reply of all in the same moment.
    pub fn allows(&self, now_ns: u64, peer: IpAddr) -> bool {
        let all = |until| self.all.after_one_more(until, now_ns);
        if all(self.all_until_ns.load(Relaxed)).is_none() {
            return false;
        }
        let peer = &self.peers[self.place(peer)];
        peer.fetch_update(Relaxed, Relaxed, |until| self.peer.after_one_more(until, now_ns)).is_ok()
            && self.all_until_ns.fetch_update(Relaxed, Relaxed, all).is_ok()
    }

    /// The place of a peer. IPv6 peers count by their /64, as a host may use all its addresses.
    fn place(&self, peer: IpAddr) -> usize {
        let network = match peer {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        let mut hasher = DefaultHasher::new();
        (self.secret, network).hash(&mut hasher);
        hasher.finish() as usize % PLACES
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    const RATES: Rates = Rates { peer_per_s: 10, peer_burst: 5, all_per_s: 100, all_burst: 20 };

    fn peer(n: u16) -> IpAddr {
        IpAddr::from([10, 0, (n >> 8) as u8, n as u8])
    }

    #[test]
    fn a_peer_gets_its_burst_and_then_its_rate() {
        let limiter = Limiter::new(RATES, 1);
        let passed = (0..1000).filter(|_| limiter.allows(0, peer(1))).count();
        assert_eq!(passed, 5);
        // Ten seconds of a flood: the burst, and then the rate.
        let passed = (0..100_000u64).filter(|n| limiter.allows(n * 100_000, peer(1))).count();
        assert!((99..=101).contains(&passed), "{passed}");
        // After a pause the full burst is available again, and no more.
        assert_eq!((0..100).filter(|_| limiter.allows(100 * SECOND_NS, peer(1))).count(), 5);
    }

    #[test]
    fn one_peer_does_not_silence_another() {
        let limiter = Limiter::new(RATES, 1);
        while limiter.allows(0, peer(1)) {}
        let other = (2..).map(peer).find(|other| limiter.place(*other) != limiter.place(peer(1))).unwrap();
        assert!(limiter.allows(0, other));
    }

    #[test]
    fn many_peers_share_the_rate_of_all() {
        let limiter = Limiter::new(RATES, 1);
        let passed = (0..10_000).filter(|n| limiter.allows(0, peer(*n))).count();
        assert_eq!(passed, 20);
        let passed = (0..100_000u64).filter(|n| limiter.allows(n * 10_000, peer(*n as u16))).count();
        assert!((99..=101).contains(&passed), "{passed}");
    }

    #[test]
    fn addresses_of_one_ipv6_host_are_one_peer() {
        let limiter = Limiter::new(RATES, 7);
        let address = |host| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host));
        assert_eq!((0..1000).filter(|host| limiter.allows(0, address(*host))).count(), 5);
    }

    #[test]
    fn rates_of_zero_are_the_lowest_there_are() {
        let none = Rates { peer_per_s: 0, peer_burst: 0, all_per_s: 0, all_burst: 0 };
        let limiter = Limiter::new(none, 1);
        assert!(limiter.allows(5, peer(1)));
        assert!(!limiter.allows(6, peer(1)) && !limiter.allows(6, peer(2)));
        assert!(limiter.allows(5 + SECOND_NS, peer(1)));
    }

    /// However many workers reply, the rates are those of the UPF.
    #[test]
    fn workers_share_the_rates() {
        let limiter = Limiter::new(RATES, 1);
        let passed: usize = std::thread::scope(|scope| {
            let worker = |own: u16| {
                let limiter = &limiter;
                // A second of a flood from 500 peers for each worker, and one peer that all have.
                let allows = move |n: &u64| {
                    limiter.allows(
                        n * 20_000,
                        peer(if n.is_multiple_of(2) { 0 } else { own + (n % 1000) as u16 }),
                    )
                };
                scope.spawn(move || (0..50_000).filter(allows).count())
            };
            let workers: Vec<_> = (1..5).map(|n| worker(n * 1000)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        // The burst and the rate; a worker whose time is behind that of another loses a little.
        assert!((90..=121).contains(&passed), "{passed}");
    }
}
