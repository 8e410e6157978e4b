//! Next hops as the kernel knows them: a copy of its routes and neighbours for one interface.
//!
//! One thread per interface hears of changes over netlink and makes a new copy; workers look at a generation number
//! once per batch and take the new copy when there is one. Neighbours in use are confirmed from time to time, since
//! the kernel does not see the packets that go past it. Only the main routing table counts; where a route has
//! several paths, the kernel is asked to send.
//!
//! An interface that is deleted, or moved to another namespace, does not come back under its number. It then
//! [is gone](KernelTables::is_gone) for good, and the tables do not change any more.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use net::link::Cidr;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use packet::ethernet::Mac;

use super::NextHop;
use super::netlink::{Neighbour, Netlink, Route};
use crate::poll::{Poller, Waker};

/// How often neighbours in use are confirmed. The kernel takes an entry for reachable for some 30 s.
const CONFIRM_MS: u16 = 10_000;
/// Shortest time between two copies, so that a storm of changes does not keep the thread busy.
const PAUSE: Duration = Duration::from_millis(5);

/// A copy of the kernel's tables.
#[derive(Debug, Default)]
struct Snapshot {
    /// Longest prefix first, then lowest metric.
    routes: Vec<Entry>,
    neighbours: HashMap<IpAddr, Known>,
}

#[derive(Debug)]
struct Entry {
    network: Cidr,
    via: Via,
}

#[derive(Debug, PartialEq, Eq)]
enum Via {
    /// The destination itself is on the link.
    Link,
    Gateway(IpAddr),
    Elsewhere,
}

#[derive(Debug)]
struct Known {
    mac: Mac,
    stale: bool,
    used: AtomicBool,
}

impl Snapshot {
    fn new(interface: u32, mut routes: Vec<Route>, neighbours: Vec<Neighbour>) -> Snapshot {
        routes.sort_by_key(|route| (std::cmp::Reverse(route.prefix), route.metric));
        let routes = routes
            .iter()
            .filter_map(|route| {
                let via = match (route.interface, route.gateway) {
                    (Some(index), _) if index != interface => Via::Elsewhere,
                    (Some(_), Some(gateway)) if gateway.is_ipv4() == route.network.is_ipv4() => {
                        Via::Gateway(gateway)
                    }
                    (Some(_), None) => Via::Link,
                    _ => Via::Elsewhere,
                };
                Some(Entry { network: Cidr::new(route.network, route.prefix)?.network(), via })
            })
            .collect();
        let known = |n: &Neighbour| Known { mac: n.mac, stale: n.stale, used: AtomicBool::new(false) };
        Snapshot { routes, neighbours: neighbours.iter().map(|n| (n.address, known(n))).collect() }
    }

    fn next_hop(&self, to: IpAddr) -> NextHop {
        if to.is_multicast() {
            return NextHop::Elsewhere;
        }
        let covers = |entry: &&Entry| {
            Cidr::new(to, entry.network.prefix()).is_some_and(|host| host.network() == entry.network)
        };
        let address = match self.routes.iter().find(covers).map(|entry| &entry.via) {
            Some(Via::Link) => to,
            Some(Via::Gateway(gateway)) => *gateway,
            Some(Via::Elsewhere) | None => return NextHop::Elsewhere,
        };
        match self.neighbours.get(&address) {
            Some(known) => {
                if !known.used.load(Ordering::Relaxed) {
                    known.used.store(true, Ordering::Relaxed);
                }
                NextHop::Mac(known.mac)
            }
            None => NextHop::Unknown,
        }
    }
}

#[derive(Debug)]
struct Shared {
    generation: AtomicU64,
    snapshot: Mutex<Arc<Snapshot>>,
    stop: AtomicBool,
    gone: AtomicBool,
    /// Readable once it is gone.
    gone_event: EventFd,
}

impl Shared {
    fn new(snapshot: Snapshot) -> io::Result<Shared> {
        let gone_event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let (stop, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Shared {
            generation: AtomicU64::new(0),
            snapshot: Mutex::new(Arc::new(snapshot)),
            stop,
            gone,
            gone_event,
        })
    }

    fn snapshot(&self) -> MutexGuard<'_, Arc<Snapshot>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, snapshot: Snapshot) {
        *self.snapshot() = Arc::new(snapshot);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// The kernel's tables for one interface, kept up to date. Dropping it ends the thread; readers then keep what they
/// have.
#[derive(Debug)]
pub struct KernelTables {
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl KernelTables {
    /// Follows the tables of the calling thread's network namespace, for the interface with number `interface`.
    pub fn follow(interface: u32) -> io::Result<KernelTables> {
        // Before the first copy, so that no change falls between the two.
        let events = Netlink::events()?;
        let mut netlink = Netlink::open()?;
        let snapshot = Snapshot::new(interface, netlink.routes()?, netlink.neighbours(interface)?);
        let shared = Arc::new(Shared::new(snapshot)?);
        let poller = Poller::new()?;
        poller.add(events.fd(), 0)?;
        let waker = poller.waker();
        let follower = Follower { interface, netlink, events, poller, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("pktio-neigh".into()).spawn(move || follower.run())?;
        Ok(KernelTables { shared, waker, thread: Some(thread) })
    }

    /// Whether the interface does not exist any more; nothing is followed then.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Relaxed)
    }

    /// A descriptor that becomes readable when the interface is gone, and stays so.
    pub fn gone(&self) -> BorrowedFd<'_> {
        self.shared.gone_event.as_fd()
    }

    /// A view for one worker.
    pub fn reader(&self) -> Reader {
        let shared = Arc::clone(&self.shared);
        let (seen, snapshot) = (u64::MAX, Arc::default());
        let mut reader = Reader { shared, seen, snapshot, last: None };
        reader.refresh();
        reader
    }
}

impl Drop for KernelTables {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the thread.
            let _ = thread.join();
        }
    }
}

struct Follower {
    interface: u32,
    netlink: Netlink,
    events: Netlink,
    poller: Poller,
    shared: Arc<Shared>,
}

impl Follower {
    fn run(mut self) {
        loop {
            let mut changed = false;
            let waited = self.poller.wait(Some(CONFIRM_MS), |_| changed = true);
            if self.shared.stop.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = waited {
                tracing::error!(%error, "neighbours are not followed any more");
                return;
            }
            self.events.drain();
            // In place of the error that is promised there may be an empty name.
            let name = nix::net::if_::if_indextoname(self.interface);
            if name.map_or_else(|error| error == Errno::ENXIO, |name| name.is_empty()) {
                self.shared.gone.store(true, Ordering::Relaxed);
                // The only error is a counter about to overflow.
                let _ = self.shared.gone_event.write(1);
                return;
            }
            if !changed {
                self.confirm();
            }
            if let Err(error) = self.copy() {
                tracing::warn!(%error, "cannot read the kernel's neighbours and routes; the last ones stay");
            }
            net::time::sleep_thread(PAUSE);
        }
    }

    fn copy(&mut self) -> io::Result<()> {
        let (routes, neighbours) = (self.netlink.routes()?, self.netlink.neighbours(self.interface)?);
        self.shared.publish(Snapshot::new(self.interface, routes, neighbours));
        Ok(())
    }

    /// Asks the kernel to confirm the neighbours that were used and have not been confirmed lately.
    fn confirm(&mut self) {
        let snapshot = Arc::clone(&self.shared.snapshot());
        for (address, known) in &snapshot.neighbours {
            if known.stale && known.used.load(Ordering::Relaxed) {
                // If it fails, the kernel forgets the neighbour sooner or later and packets go the slow way.
                let _ = self.netlink.confirm(self.interface, *address);
            }
        }
    }
}

/// One worker's view of [`KernelTables`].
pub struct Reader {
    shared: Arc<Shared>,
    seen: u64,
    snapshot: Arc<Snapshot>,
    /// Packets to one next hop tend to come together.
    last: Option<(IpAddr, Mac)>,
}

impl Reader {
    /// Takes the newest copy; once per batch.
    #[inline]
    pub fn refresh(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.seen {
            self.snapshot = Arc::clone(&self.shared.snapshot());
            (self.seen, self.last) = (generation, None);
        }
    }

    /// Where a packet goes next.
    #[inline]
    pub fn next_hop(&mut self, to: IpAddr) -> NextHop {
        match self.last {
            Some((address, mac)) if address == to => NextHop::Mac(mac),
            _ => {
                let found = self.snapshot.next_hop(to);
                if let NextHop::Mac(mac) = found {
                    self.last = Some((to, mac));
                }
                found
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_and_lowest_metric_decide() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let route = |network: &str, prefix, metric, interface, gateway: Option<&str>| Route {
            network: ip(network),
            prefix,
            metric,
            interface,
            gateway: gateway.map(ip),
        };
        let neighbour = |address: &str, last| Neighbour {
            address: ip(address),
            mac: [2, 0, 0, 0, 0, last],
            stale: false,
        };
        let snapshot = Snapshot::new(
            3,
            vec![
                route("0.0.0.0", 0, 100, Some(3), Some("10.0.0.9")),
                route("0.0.0.0", 0, 10, Some(3), Some("10.0.0.1")),
                route("10.0.0.0", 24, 0, Some(3), None),
                route("10.1.0.0", 16, 0, Some(4), Some("10.2.0.1")),
                route("10.3.0.0", 16, 0, None, None),
                route("2001:db8::", 64, 0, Some(3), None),
                route("2001:db8:1::", 64, 0, Some(3), Some("fe80::1")),
            ],
            vec![
                neighbour("10.0.0.1", 1),
                neighbour("10.0.0.2", 2),
                neighbour("2001:db8::5", 5),
                neighbour("fe80::1", 6),
            ],
        );
        let mac = |last| NextHop::Mac([2, 0, 0, 0, 0, last]);
        for (to, expected) in [
            ("10.0.0.2", mac(2)),
            ("10.0.0.3", NextHop::Unknown),
            ("198.51.100.1", mac(1)),
            ("10.1.2.3", NextHop::Elsewhere),
            ("10.3.0.1", NextHop::Elsewhere),
            ("224.0.0.1", NextHop::Elsewhere),
            ("2001:db8::5", mac(5)),
            ("2001:db8:1::1", mac(6)),
            ("2001:db8:2::1", NextHop::Elsewhere),
        ] {
            assert_eq!(snapshot.next_hop(ip(to)), expected, "{to}");
        }
    }
}
