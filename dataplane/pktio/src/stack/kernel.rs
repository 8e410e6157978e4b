//! Next hops as the kernel knows them: a copy of its routes and neighbours for one interface.
//!
//! One thread per interface hears of changes over netlink and makes a new copy; workers look at a generation number
//! once per batch and take the new copy when there is one. A copy has a version. It is a new one if something that a
//! header was made from has changed, so that headers of older versions are made anew. Neighbours in use are confirmed
//! from time to time, since the kernel does not see the packets that go past it. The main routing table counts, and
//! before it that of the machine's own addresses; where packets are not simply sent to one router or neighbour, the
//! kernel is asked to send.
//!
//! An interface that is deleted, or moved to another namespace, does not come back under its number. It then
//! [is gone](KernelTables::is_gone) for good, and the tables do not change any more.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use net::link::Cidr;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use packet::ethernet::Mac;

use super::header::Version;
use super::netlink::{Neighbour, Netlink, Route};
use super::routes::{self, Found, Hosts, Near, Number, Rank, Routes, Via};
use super::{NextHop, new_version};
use crate::poll::{self, Poller, Waker};
use crate::vlan::Tags;

/// How often neighbours in use are confirmed. The kernel takes an entry for reachable for some 30 s.
const CONFIRM_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two copies, so that a storm of changes does not keep the thread busy.
const PAUSE: Duration = Duration::from_millis(5);

/// A copy of the kernel's tables.
#[derive(Debug, Default)]
struct Snapshot {
    version: Version,
    /// The interface's own address, if it is known.
    mac: Option<Mac>,
    routes: Routes,
    neighbours: Hosts<Known>,
}

#[derive(Debug)]
struct Known {
    mac: Mac,
    stale: bool,
    used: AtomicBool,
}

impl Snapshot {
    /// With a version of its own.
    fn new(interface: u32, mac: Option<Mac>, routes: &[Route], neighbours: &[Neighbour]) -> Snapshot {
        let routes = routes.iter().filter_map(|route| {
            let via = match (route.interface, route.gateway) {
                (Some(index), _) if index != interface => Via::Elsewhere,
                (Some(_), Some(gateway)) => Via::Gateway(gateway),
                (Some(_), None) => Via::Link,
                (None, _) => Via::Elsewhere,
            };
            let rank = if route.local { Rank::Local } else { Rank::Metric(route.metric) };
            Some(routes::Route { network: Cidr::new(route.network, route.prefix)?, rank, via })
        });
        let known = |n: &Neighbour| Known { mac: n.mac, stale: n.stale, used: AtomicBool::new(false) };
        Snapshot {
            version: new_version(),
            mac,
            routes: Routes::new(routes),
            neighbours: neighbours.iter().map(|n| (n.address, known(n))).collect(),
        }
    }

    /// Takes over which neighbours were used since `last` was made, and its version if the headers that were made from it
    /// are still right.
    fn follow(&mut self, last: &Snapshot) {
        let mut right = self.mac == last.mac && self.routes == last.routes;
        for (address, old) in last.neighbours.iter() {
            match self.neighbours.get_mut(address).filter(|new| new.mac == old.mac) {
                Some(new) => *new.used.get_mut() = old.used.load(Ordering::Relaxed),
                None => right = false,
            }
        }
        if right {
            self.version = last.version;
        }
    }

    #[inline(always)]
    fn next_hop(&self, to: Number, near: &mut Near) -> NextHop {
        match self.routes.find(&self.neighbours, to, near) {
            Found::Host(known) => {
                if !known.used.load(Ordering::Relaxed) {
                    known.used.store(true, Ordering::Relaxed);
                }
                NextHop::Mac(known.mac)
            }
            Found::Unknown => NextHop::Unknown,
            Found::Elsewhere => NextHop::Elsewhere,
        }
    }
}

/// A local address and port in a VLAN, for which headers are made.
type Endpoint = (SocketAddr, Tags);

#[derive(Debug)]
struct Shared {
    generation: AtomicU64,
    snapshot: Mutex<Arc<Snapshot>>,
    endpoints: Mutex<Vec<Endpoint>>,
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
            endpoints: Mutex::default(),
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
        KernelTables::follow_with(interface, CONFIRM_EVERY, Box::new(|_| ()))
    }

    /// The same; `changed` is called with the interface's link-layer address whenever that has changed.
    pub fn follow_and_tell(
        interface: u32,
        changed: impl FnMut(Mac) + Send + 'static,
    ) -> io::Result<KernelTables> {
        KernelTables::follow_with(interface, CONFIRM_EVERY, Box::new(changed))
    }

    fn follow_with(interface: u32, confirm_every: Duration, changed: Changed) -> io::Result<KernelTables> {
        // Before the first copy, so that no change falls between the two.
        let events = Netlink::events()?;
        let mut netlink = Netlink::open()?;
        let shared = Arc::new(Shared::new(read(&mut netlink, interface)?)?);
        let poller = Poller::new()?;
        poller.add(events.fd(), 0)?;
        let waker = poller.waker();
        let follower = Follower {
            interface,
            netlink,
            events,
            poller,
            shared: Arc::clone(&shared),
            confirm_every,
            changed,
        };
        let thread = poll::spawn("pktio-neigh", move || follower.run())?;
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
        let mut reader = Reader { shared, seen, snapshot };
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

fn read(netlink: &mut Netlink, interface: u32) -> io::Result<Snapshot> {
    let mac = netlink.mac(interface)?;
    let (routes, neighbours) = (netlink.routes()?, netlink.neighbours(interface)?);
    Ok(Snapshot::new(interface, mac, &routes, &neighbours))
}

struct Follower {
    interface: u32,
    netlink: Netlink,
    events: Netlink,
    poller: Poller,
    shared: Arc<Shared>,
    confirm_every: Duration,
    changed: Changed,
}

/// Hears of the interface's new link-layer address.
type Changed = Box<dyn FnMut(Mac) + Send>;

impl Follower {
    fn run(mut self) {
        let mut confirm_at = net::time::now_std() + self.confirm_every;
        loop {
            let left = confirm_at.saturating_duration_since(net::time::now_std());
            // Rounded up: with none left the time has come.
            let left_ms = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
            let waited = self.poller.wait(Some(left_ms), |_| ());
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
            let now = net::time::now_std();
            let confirm = now >= confirm_at;
            if confirm {
                self.confirm();
                confirm_at = now + self.confirm_every;
            }
            if let Err(error) = self.copy(confirm) {
                tracing::warn!(%error, "cannot read the kernel's neighbours and routes; the last ones stay");
            }
            net::time::sleep_thread(PAUSE);
        }
    }

    /// Publishes a new copy. If it is to be `anew`, all headers are made again, which shows which neighbours are in use.
    fn copy(&mut self, anew: bool) -> io::Result<()> {
        let mut snapshot = read(&mut self.netlink, self.interface)?;
        let last = Arc::clone(&self.shared.snapshot());
        if let Some(mac) = snapshot.mac.filter(|mac| last.mac != Some(*mac)) {
            (self.changed)(mac);
        }
        if !anew {
            snapshot.follow(&last);
        }
        self.shared.publish(snapshot);
        Ok(())
    }

    /// Asks the kernel to confirm the neighbours that were used and have not been confirmed lately.
    fn confirm(&mut self) {
        let snapshot = Arc::clone(&self.shared.snapshot());
        for (address, known) in snapshot.neighbours.iter() {
            if known.stale && known.used.load(Ordering::Relaxed) {
                // If it fails, the kernel forgets the neighbour sooner or later and packets go the slow way.
                let _ = self.netlink.confirm(self.interface, address);
            }
        }
    }
}

/// One worker's view of [`KernelTables`].
pub struct Reader {
    shared: Arc<Shared>,
    seen: u64,
    snapshot: Arc<Snapshot>,
}

impl Reader {
    /// Takes the newest copy; once per batch.
    #[inline]
    pub fn refresh(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.seen {
            self.snapshot = Arc::clone(&self.shared.snapshot());
            self.seen = generation;
        }
    }

    /// Where a packet goes next.
    #[inline(always)]
    pub(super) fn next_hop(&self, to: Number, near: &mut Near) -> NextHop {
        self.snapshot.next_hop(to, near)
    }

    /// The copy's version.
    #[inline]
    pub(super) fn version(&self) -> Version {
        self.snapshot.version
    }

    /// The interface's own address, if it is known.
    #[inline]
    pub(super) fn mac(&self) -> Option<Mac> {
        self.snapshot.mac
    }

    /// A number for an endpoint, which workers with the same endpoint share. `None` if there are too many.
    pub(super) fn number_of(&self, endpoint: Endpoint) -> Option<u16> {
        let mut endpoints = self.shared.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let known = endpoints.iter().position(|known| *known == endpoint);
        let number = u16::try_from(known.unwrap_or(endpoints.len())).ok()?;
        if known.is_none() {
            endpoints.push(endpoint);
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use net::netns::NetNs;

    use super::*;

    #[test]
    fn the_longest_prefix_and_lowest_metric_decide() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let route = |network: &str, prefix, metric, interface, gateway: Option<&str>| Route {
            network: ip(network),
            prefix,
            metric,
            local: false,
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
            None,
            &[
                route("0.0.0.0", 0, 100, Some(3), Some("10.0.0.9")),
                route("0.0.0.0", 0, 10, Some(3), Some("10.0.0.1")),
                route("10.0.0.0", 24, 0, Some(3), None),
                route("10.1.0.0", 16, 0, Some(4), Some("10.2.0.1")),
                route("10.3.0.0", 16, 0, None, None),
                route("2001:db8::", 64, 0, Some(3), None),
                route("2001:db8:1::", 64, 0, Some(3), Some("fe80::1")),
            ],
            &[
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
            assert_eq!(snapshot.next_hop(ip(to).into(), &mut Near::default()), expected, "{to}");
        }
    }

    fn run(namespace: &NetNs, command: &str) {
        let run = || std::process::Command::new("ip").args(command.split(' ')).status();
        assert!(namespace.enter(run).unwrap().unwrap().success(), "ip {command}");
    }

    /// A neighbour in use is confirmed although something changes all the time; one that is not used is not.
    #[test]
    fn neighbours_in_use_are_confirmed_whatever_else_happens() {
        let ours = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
        run(&ours, "link add up0 type veth peer name peer0");
        for command in ["link set up0 up", "link set peer0 up", "address add 10.0.0.1/24 dev up0"] {
            run(&ours, command);
        }
        for host in [7, 8] {
            run(
                &ours,
                &format!("neighbour add 10.0.0.{host} lladdr 02:00:00:00:00:{host:02x} dev up0 nud stale"),
            );
        }
        let index = ours.enter(|| nix::net::if_::if_nametoindex("up0").unwrap()).unwrap();
        let every = Duration::from_millis(500);
        let tables =
            ours.enter(|| KernelTables::follow_with(index, every, Box::new(|_| ())).unwrap()).unwrap();
        let mut reader = tables.reader();
        let used: IpAddr = [10, 0, 0, 7].into();
        assert_eq!(reader.next_hop(used.into(), &mut Near::default()), NextHop::Mac([2, 0, 0, 0, 0, 7]));
        let is_stale = |reader: &Reader, host: u8| {
            reader.snapshot.neighbours.get(IpAddr::from([10, 0, 0, host])).is_some_and(|known| known.stale)
        };
        let began = net::time::now_std();
        let mut version = reader.version();
        let mut versions = 0;
        while is_stale(&reader, 7) {
            assert!(began.elapsed() < Duration::from_secs(4), "it was not confirmed");
            run(&ours, "neighbour replace 10.0.0.9 lladdr 02:00:00:00:00:09 dev up0 nud permanent");
            run(&ours, "neighbour del 10.0.0.9 dev up0");
            reader.refresh();
            versions += u32::from(std::mem::replace(&mut version, reader.version()) != version);
        }
        assert!(is_stale(&reader, 8), "nobody uses it");
        assert!(versions > 0, "a neighbour that vanished changes the version");
    }

    #[test]
    fn a_copy_has_a_new_version_when_a_header_may_be_wrong() {
        let route = |network: &str, gateway: Option<&str>| Route {
            network: network.parse().unwrap(),
            prefix: 24,
            metric: 0,
            local: false,
            interface: Some(3),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        };
        let neighbour = |host: u8, last: u8, stale| Neighbour {
            address: [10, 0, 0, host].into(),
            mac: [2, 0, 0, 0, 0, last],
            stale,
        };
        let routes = [route("10.0.0.0", None), route("10.1.0.0", Some("10.0.0.1"))];
        let hosts = [neighbour(1, 1, false), neighbour(2, 2, false)];
        let make = |mac, routes: &[Route], hosts: &[Neighbour]| Snapshot::new(3, mac, routes, hosts);
        let first = make(None, &routes, &hosts);
        assert_eq!(
            first.next_hop(Number::V4(0x0A00_0001), &mut Near::default()),
            NextHop::Mac([2, 0, 0, 0, 0, 1])
        );
        let follow = |mut next: Snapshot| {
            next.follow(&first);
            assert!(next.version >= first.version);
            (next.version == first.version, next)
        };
        let more = [neighbour(3, 3, false), neighbour(2, 2, true), neighbour(1, 1, true)];
        let (same, next) = follow(make(None, &[routes[1], routes[0]], &more));
        assert!(same, "what was right still is");
        let used = |host: u8| {
            next.neighbours.get(IpAddr::from([10, 0, 0, host])).unwrap().used.load(Ordering::Relaxed)
        };
        assert!(used(1) && !used(2) && !used(3));
        for other in [
            make(Some([2; 6]), &routes, &hosts),
            make(None, &routes[..1], &hosts),
            make(None, &[routes[0], route("10.1.0.0", Some("10.0.0.2"))], &hosts),
            make(None, &routes, &hosts[..1]),
            make(None, &routes, &[hosts[0], neighbour(2, 9, false)]),
        ] {
            assert!(!follow(other).0);
        }
    }
}
