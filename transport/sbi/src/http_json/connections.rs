//! Which connections a server keeps when it reaches its limit.
//!
//! A connection is *proven* after a request on it was accepted; until then anybody may have opened it.
//! When a limit is reached, the oldest connection that is not proven is closed for the new one. So
//! strangers who hold connections cannot shut out anybody: neither proven connections, nor newcomers
//! for longer than a request takes.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Requests without proof of one connection that are worked on at once: those that need no token, and refused ones whose
/// content is still taken in. An NF asks for one token at a time.
const UNPROVEN_REQUESTS: usize = 4;

/// The connections of one server.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    limit_per_address: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// By age, the oldest first.
    places: BTreeMap<u64, Arc<State>>,
}

/// The state that a connection and the list share.
#[derive(Debug)]
struct State {
    peer: IpAddr,
    proven: AtomicBool,
    evicted: Notify,
    unproven_requests: Semaphore,
}

/// The place of one connection; dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    state: Arc<State>,
    connections: Arc<Connections>,
}

impl Connections {
    pub(super) fn new(limit: usize, limit_per_address: usize) -> Arc<Self> {
        Arc::new(Self { limit, limit_per_address, open: Mutex::default() })
    }

    /// A place for a connection from `address`; `None` if proven connections have all places.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let peer = peer(address);
        let mut open = self.lock();
        let of_peer = open.places.values().filter(|state| state.peer == peer).count();
        if of_peer >= self.limit_per_address {
            open.evict(|state| state.peer == peer)?;
        }
        if open.places.len() >= self.limit {
            open.evict(|_| true)?;
        }
        let id = open.next;
        open.next += 1;
        let state = Arc::new(State {
            peer,
            proven: AtomicBool::new(false),
            evicted: Notify::new(),
            unproven_requests: Semaphore::new(UNPROVEN_REQUESTS),
        });
        open.places.insert(id, state.clone());
        Some(Place { id, state, connections: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Frees the place of the oldest connection that is not proven, among those for which `counts` is
    /// true.
    fn evict(&mut self, counts: impl Fn(&State) -> bool) -> Option<()> {
        let stranger = |state: &State| !state.proven.load(Ordering::Relaxed) && counts(state);
        let id = self.places.iter().find(|(_, state)| stranger(state)).map(|(id, _)| *id)?;
        self.places.remove(&id)?.evicted.notify_one();
        Some(())
    }
}

impl Place {
    /// Records that a request on this connection was accepted.
    pub(super) fn prove(&self) {
        self.state.proven.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_proven(&self) -> bool {
        self.state.proven.load(Ordering::Relaxed)
    }

    /// A permit for one request without proof; `None` if this connection has the most it may have.
    pub(super) fn try_unproven(&self) -> Option<SemaphorePermit<'_>> {
        self.state.unproven_requests.try_acquire().ok()
    }

    /// Waits until the place is given to another connection.
    pub(super) async fn evicted(&self) {
        self.state.evicted.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().places.remove(&self.id);
    }
}

/// One peer for the limit: an IPv4 address, or an IPv6 /64, which a single host may own.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_evicted(place: &Place) -> bool {
        !place.connections.lock().places.contains_key(&place.id)
    }

    #[test]
    fn strangers_make_place_oldest_first_and_proven_ones_stay() {
        let connections = Connections::new(3, 3);
        let proven = connections.admit(address(1)).unwrap();
        proven.prove();
        let (old, young) = (connections.admit(address(2)).unwrap(), connections.admit(address(3)).unwrap());
        let newcomer = connections.admit(address(4)).unwrap();
        assert!(is_evicted(&old) && !is_evicted(&proven) && !is_evicted(&young));
        young.prove();
        newcomer.prove();
        assert!(connections.admit(address(5)).is_none(), "all at work");
        drop(young);
        let last = connections.admit(address(5)).unwrap();
        drop((old, last, newcomer, proven));
        assert_eq!(connections.lock().places.len(), 0);
    }

    #[test]
    fn one_address_takes_its_share_only() {
        let connections = Connections::new(10, 2);
        let other = connections.admit(address(9)).unwrap();
        let greedy: Vec<_> = (0..8).map(|_| connections.admit(address(1)).unwrap()).collect();
        assert_eq!(greedy.iter().filter(|place| !is_evicted(place)).count(), 2);
        assert!(!is_evicted(&other));
        let proven: Vec<_> = (0..2).map(|_| connections.admit(address(2)).unwrap()).collect();
        proven.iter().for_each(Place::prove);
        assert!(connections.admit(address(2)).is_none());
        let v6 = |text: &str| connections.admit(text.parse().unwrap()).unwrap();
        let neighbours = [v6("2001:db8::1"), v6("2001:db8::2"), v6("2001:db8::3"), v6("2001:db8:0:1::1")];
        assert_eq!(neighbours.each_ref().map(is_evicted), [true, false, false, false]);
    }

    #[tokio::test]
    async fn an_evicted_connection_is_told_even_when_it_does_not_wait_yet() {
        let connections = Connections::new(1, 1);
        let first = connections.admit(address(1)).unwrap();
        let _second = connections.admit(address(1)).unwrap();
        first.evicted().await;
    }
}
