//! Look-up tables from packets to sessions: by TEID and by UE address.
//!
//! Each network instance has keys of its own ([`Instance`]): a packet is looked up in those of the interface from which
//! it came.
//!
//! The control side allocates TEIDs, and UE addresses come from configured pools, so both index arrays of slots
//! directly: a look-up is one load (design idea 5). Other keys (TEIDs that the CP function assigned, addresses
//! outside the pools) are in small copy-on-write hash maps from the key to its slot. Workers only read. Only
//! the N4 task's [`Writer`] writes ([`rcu`]).

mod writer;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};

use crate::bridge::{Bounds, Bridge};
use crate::config::Config;
use crate::interfaces::{Interface, Interfaces};
pub use crate::mailbox::{Command, Mailbox};
use crate::pipeline::limit::Limits;
use crate::pipeline::translations::{self, Translations};
use crate::plan::Kind;
use crate::routes::Routes;
use crate::session::{Endpoint, Policy, TableKey};
use net::link::Cidr;
use pktio::peers::PEERS;
use rcu::{Bin, Cell, Cells, Domain, Guard, Lines, Memory, Region, RegionError, Slots, View};
pub(crate) use writer::Owners;
pub use writer::{Held, Writer, layout};

/// Bits of an allocated TEID that are the index. The other bits are a generation, so that packets still under
/// way for a removed tunnel do not reach a new one.
pub const TEID_INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << TEID_INDEX_BITS) - 1;
/// Number of hash maps over which keys without array index are spread; an update copies one of them.
const SHARDS: usize = 256;
/// Most keys without array index.
const SPARSE: usize = 1 << 20;
/// Most policies.
pub(crate) const POLICIES: usize = 1 << 20;
/// Most Ethernet sessions in data networks. A frame to all of a network is sent that often.
pub const STATIONS: u32 = 8192;

/// Where endpoints are kept.
type Arena = rcu::Writer<Endpoint>;
type Map = HashMap<u128, u32>;

/// The slots of keys without array index.
struct Sparse {
    shards: Box<[Cell<Map>]>,
}

impl Sparse {
    fn new(domain: &Domain) -> Sparse {
        Sparse { shards: (0..SHARDS).map(|_| Cell::new(domain)).collect() }
    }

    fn shard(&self, key: u128) -> &Cell<Map> {
        // Prefixes differ in the upper half, addresses and TEIDs in the lower: combine both.
        let folded = (key >> 64) as u64 ^ key as u64;
        &self.shards[(folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % SHARDS]
    }

    fn find(&self, guard: &Guard<'_>, key: u128) -> Option<usize> {
        self.shard(key).load(guard)?.get(&key).map(|slot| *slot as usize)
    }

    fn set(&self, guard: &Guard<'_>, bin: &mut Bin, key: u128, slot: Option<u32>) {
        let shard = self.shard(key);
        let mut map = shard.load(guard).cloned().unwrap_or_default();
        match slot {
            Some(slot) => map.insert(key, slot),
            None => map.remove(&key),
        };
        shard.store(Some(Box::new(map)), bin);
    }
}

/// A pool of UE addresses whose host part is an index of slots.
struct Pool {
    /// Network part of the pool, shifted right by `shift`.
    base: u128,
    len: u128,
    /// Number of bits below the index: 0 for IPv4 addresses, 64 for IPv6 prefixes.
    shift: u32,
    slots: Slots<Endpoint>,
}

impl Pool {
    #[inline]
    fn index(&self, address: u128) -> Option<usize> {
        let offset = (address >> self.shift).wrapping_sub(self.base);
        (offset < self.len).then_some(offset as usize)
    }
}

/// A pool of IPv4 addresses.
struct PoolV4 {
    base: u32,
    last: u32,
    slots: Slots<Endpoint>,
}

/// Who receives packets to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiver {
    /// Another machine.
    Other,
    /// This machine.
    Local,
    /// All machines of a network of this machine: it is the address of the network, or its directed broadcast
    /// address (RFC 919).
    All,
}

/// The far end of tunnels. Ports know its address ([`Tables::peers`]). A word: the receiver, from 1 on, and above it the
/// interface's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FarEnd(NonZeroU16);

impl FarEnd {
    fn new(interface: u8, receiver: Receiver) -> FarEnd {
        let receiver = match receiver {
            Receiver::Other => FarEnd::OTHER,
            Receiver::Local => FarEnd::LOCAL,
            Receiver::All => FarEnd::ALL,
        };
        FarEnd(receiver | u16::from(interface) << FarEnd::INTERFACE)
    }

    const OTHER: NonZeroU16 = NonZeroU16::new(1).unwrap();
    const LOCAL: NonZeroU16 = NonZeroU16::new(2).unwrap();
    const ALL: NonZeroU16 = NonZeroU16::new(3).unwrap();
    const RECEIVER: u16 = 3;
    const INTERFACE: u32 = 8;

    /// Number of the interface through which it is reached.
    #[inline(always)]
    pub fn interface(self) -> u8 {
        (self.0.get() >> FarEnd::INTERFACE) as u8
    }

    /// Whether another machine receives packets to its address.
    #[inline(always)]
    pub fn is_elsewhere(self) -> bool {
        self.0.get() & FarEnd::RECEIVER == FarEnd::OTHER.get()
    }

    /// Whether this machine receives packets to its address, and no other one.
    pub fn is_here(self) -> bool {
        self.0.get() & FarEnd::RECEIVER == FarEnd::LOCAL.get()
    }
}

/// The table and index of a slot in which to look up a packet's endpoint.
pub type SlotRef<'t> = (&'t Slots<Endpoint>, usize);

/// The keys of one network instance.
struct Keys {
    /// By index of the TEID; empty without interface that has tunnels.
    teids: Slots<Endpoint>,
    pools_v4: Vec<PoolV4>,
    pools_v6: Vec<Pool>,
    sparse_teids: Sparse,
    sparse_v4: Sparse,
    sparse_v6: Sparse,
    /// Framed routes, with their index in the slots of keys without array index.
    routes: Cell<Routes<u32>>,
}

impl Keys {
    /// The keys of network instance number `instance`.
    fn new(instance: u8, interfaces: &Interfaces, max_tunnels: u32, arena: &Arena, domain: &Domain) -> Keys {
        let own = || interfaces.iter().filter(move |interface| interface.instance == instance);
        let mut pools: Vec<Cidr> = Vec::new();
        for pool in own().filter_map(|interface| interface.dnn.as_ref()).map(|dnn| dnn.ue_pool) {
            for pool in [pool.ipv4, pool.ipv6].into_iter().flatten().map(|pool| pool.network()) {
                if !pools.contains(&pool) {
                    pools.push(pool);
                }
            }
        }
        let (mut pools_v4, mut pools_v6) = (Vec::new(), Vec::new());
        for pool in pools {
            match pool.address() {
                IpAddr::V4(network) => {
                    let base = network.to_bits();
                    let last = base | u32::MAX.checked_shr(pool.prefix().into()).unwrap_or(0);
                    let slots = arena.slots((last - base) as usize + 1);
                    pools_v4.push(PoolV4 { base, last, slots });
                }
                IpAddr::V6(network) => {
                    let len = 1u128 << 64u32.saturating_sub(u32::from(pool.prefix()));
                    let slots = arena.slots(len as usize);
                    pools_v6.push(Pool { base: network.to_bits() >> 64, len, shift: 64, slots });
                }
            }
        }
        let has_tunnels = own().any(|interface| interface.role().has_tunnels());
        Keys {
            teids: arena.slots(if has_tunnels { max_tunnels as usize } else { 0 }),
            pools_v4,
            pools_v6,
            sparse_teids: Sparse::new(domain),
            sparse_v4: Sparse::new(domain),
            sparse_v6: Sparse::new(domain),
            routes: Cell::new(domain),
        }
    }

    /// The place of an address that is in a pool.
    fn pool_place(&self, address: IpAddr) -> Option<SlotRef<'_>> {
        match address {
            IpAddr::V4(address) => {
                let bits = address.to_bits();
                let pool = self.pools_v4.iter().find(|pool| bits >= pool.base && bits <= pool.last)?;
                Some((&pool.slots, (bits - pool.base) as usize))
            }
            IpAddr::V6(address) => {
                let key = prefix64(address);
                self.pools_v6.iter().find_map(|pool| Some((&pool.slots, pool.index(key)?)))
            }
        }
    }

    fn sparse_map(&self, kind: u8) -> &Sparse {
        match kind {
            0 => &self.sparse_teids,
            4 => &self.sparse_v4,
            _ => &self.sparse_v6,
        }
    }
}

/// The tables that workers read; see the module.
pub struct Tables {
    pub(crate) domain: Domain,
    pub(crate) lines: Lines,
    /// Workers that share each interface.
    workers: AtomicU32,
    interfaces: Arc<Interfaces>,
    /// By number of the network instance; at least one.
    keys: Vec<Keys>,
    /// The endpoints of keys without array index, of all network instances.
    sparse: Slots<Endpoint>,
    /// Ethernet sessions by their stations; empty without Ethernet data networks.
    stations: Slots<Endpoint>,
    /// The bridges of Ethernet data networks, by number of their interface.
    bridges: Vec<Option<Bridge>>,
    pub(crate) policies: Cells<Policy>,
    /// The far ends of tunnels by number, as words; zero for none.
    far_ends: Box<[AtomicU16; PEERS]>,
    /// Their addresses.
    peers: Arc<pktio::Peers>,
    /// Flows whose destination is redirected to an address.
    pub translations: Translations,
    /// Limits of all workers together.
    pub limits: Limits,
    mailboxes: std::sync::Mutex<Vec<std::sync::Weak<Mailbox>>>,
    held_octets: Arc<AtomicUsize>,
    /// Addresses at which this machine would receive its own packets; see [`Tables::set_local_addresses`].
    local: std::sync::Mutex<HashMap<IpAddr, Receiver>>,
    /// The arena, until the one writer takes it.
    arena: std::sync::Mutex<Option<Arena>>,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tables")
    }
}

/// The part of an IPv6 address that identifies the session: its /64.
fn prefix64(address: Ipv6Addr) -> u128 {
    address.to_bits() >> 64 << 64
}

fn receiver(local: &HashMap<IpAddr, Receiver>, address: IpAddr) -> Receiver {
    local.get(&address).copied().unwrap_or(Receiver::Other)
}

/// An empty bridge with a random key.
fn new_bridge() -> Bridge {
    let secret = std::hash::RandomState::new().hash_one(0);
    Bridge::new(Bounds { stations: STATIONS, ..Bounds::default() }, secret)
}

impl Tables {
    /// Empty tables for the pools of a configuration.
    pub fn new(config: &Config) -> Tables {
        let domain = Domain::default();
        let arena = rcu::Writer::new(&domain);
        let interfaces = Arc::new(Interfaces::of(config));
        let keys = |instance| Keys::new(instance, &interfaces, config.max_tunnels, &arena, &domain);
        let keys = (0..interfaces.instances().max(1)).map(|instance| keys(instance as u8)).collect();
        let carries_frames =
            |interface: &Interface| interface.dnn.as_ref().is_some_and(|dnn| dnn.kind == Kind::Ethernet);
        let bridges: Vec<_> =
            interfaces.iter().map(|interface| carries_frames(interface).then(new_bridge)).collect();
        let stations = if bridges.iter().any(Option::is_some) { STATIONS as usize } else { 0 };
        let translations = Translations::new(translations::ENTRIES);
        Tables {
            stations: arena.slots(stations),
            bridges,
            lines: Lines::default(),
            workers: AtomicU32::new(1),
            keys,
            interfaces,
            sparse: arena.slots(SPARSE),
            policies: Cells::new(&domain, POLICIES),
            far_ends: Box::new([const { AtomicU16::new(0) }; PEERS]),
            peers: Arc::default(),
            limits: Limits::new(translations.secret()),
            translations,
            mailboxes: std::sync::Mutex::new(Vec::new()),
            held_octets: Arc::default(),
            local: std::sync::Mutex::new(config.local_far_ends(&[]).collect()),
            arena: std::sync::Mutex::new(Some(arena)),
            domain,
        }
    }

    /// Says that each interface's packets are distributed to `workers` workers ([`pktio::owner`]). Without this call each
    /// interface has one worker. Must come before sessions are published.
    pub fn share_between(&self, workers: u32) {
        self.workers.store(workers.max(1), Ordering::Relaxed);
    }

    /// Whether the kernel has given the addresses that all tables reserve. Without them there is no room for sessions.
    pub fn has_addresses(&self) -> bool {
        let pools = |keys: &Keys| {
            let v4 = keys.pools_v4.iter().map(|pool| &pool.slots);
            v4.chain(keys.pools_v6.iter().map(|pool| &pool.slots)).all(Slots::has_addresses)
        };
        self.keys.iter().all(|keys| keys.teids.has_addresses() && pools(keys))
            && [&self.sparse, &self.stations].into_iter().all(Slots::has_addresses)
            && self.policies.has_addresses()
            && self.lines.has_addresses()
            && self.peers.has_addresses()
    }

    /// The number of workers that share each interface.
    fn workers(&self) -> u32 {
        self.workers.load(Ordering::Relaxed)
    }

    /// The RCU domain of the tables' readers and writer.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Adds memory in which the state of sessions, their meters and counters, can lie: see
    /// [`Writer::place_state_in`]. It may be shared with a program in the kernel.
    ///
    /// # Errors
    /// The memory is unsuitable, or there are too many regions.
    pub fn add_state_region(&self, memory: Box<dyn Memory>) -> Result<Region, RegionError> {
        self.lines.add_region(memory)
    }

    /// The interfaces.
    pub fn interfaces(&self) -> &Arc<Interfaces> {
        &self.interfaces
    }

    /// The keys of the network instance with this number.
    #[inline]
    pub fn instance(&self, number: u8) -> Instance<'_> {
        // Numbers come from the list of interfaces, so each has its keys.
        Instance { tables: self, keys: self.keys.get(usize::from(number)).unwrap_or(&self.keys[0]) }
    }

    /// The keys of all network instances.
    fn instances(&self) -> impl Iterator<Item = Instance<'_>> {
        self.keys.iter().map(|keys| Instance { tables: self, keys })
    }

    /// Whether a session of any network instance has this UE address.
    #[cold]
    pub(crate) fn has_ue(&self, guard: &Guard<'_>, address: IpAddr) -> bool {
        self.keys.len() > 1 && self.instances().any(|keys| keys.endpoint_of_ue(guard, address).is_some())
    }

    /// The block that is published under a key.
    pub(crate) fn block<'g>(&'g self, guard: &'g Guard<'_>, key: &TableKey) -> Option<&'g [Endpoint]> {
        match key {
            TableKey::Teid(teid) => self.tunnel(guard, *teid),
            TableKey::Ue(instance, address) | TableKey::Route(instance, address, _) => {
                self.instance(*instance).endpoint_of_ue(guard, *address)
            }
            TableKey::Station(station) => self.station(guard, *station),
        }
    }

    /// The numbers of the policies that the endpoints under these keys use.
    pub(crate) fn policies_of(&self, keys: &[TableKey]) -> Vec<u32> {
        let mut reader = self.domain.reader();
        let guard = reader.enter();
        keys.iter().filter_map(|key| self.block(&guard, key)?.first()?.policy()).collect()
    }

    /// The bridge of the data network of this interface, if it is an Ethernet network.
    #[inline]
    pub fn bridge(&self, network: usize) -> Option<&Bridge> {
        self.bridges.get(network)?.as_ref()
    }

    /// Whether there are Ethernet data networks.
    pub fn has_bridges(&self) -> bool {
        self.bridges.iter().any(Option::is_some)
    }

    /// The endpoint of the Ethernet session with this station number.
    #[inline]
    pub fn station<'g>(&'g self, guard: &'g Guard<'_>, station: u32) -> Option<&'g [Endpoint]> {
        let known = (station as usize) < self.stations.capacity();
        known.then(|| self.stations.load(guard, station as usize)).flatten()
    }

    /// The policy with this number.
    #[inline(always)]
    pub fn policy<'g>(&'g self, guard: &'g Guard<'_>, number: u32) -> Option<&'g Policy> {
        self.policies.load(guard, number as usize)
    }

    /// The policies, by number; `None` for a guard of other tables.
    pub(crate) fn policies<'g>(&'g self, guard: &'g Guard<'_>) -> Option<View<'g, Policy>> {
        self.policies.view(guard)
    }

    /// Whether an endpoint's session carries Ethernet frames.
    pub(crate) fn is_of_frames(&self, guard: &Guard<'_>, endpoint: &Endpoint) -> bool {
        endpoint.policy().is_some_and(|number| matches!(self.policy(guard, number), Some(Policy::Frames(_))))
    }

    /// The endpoint of a TEID, whichever network instance it belongs to.
    fn tunnel<'g>(&'g self, guard: &'g Guard<'_>, teid: u32) -> Option<&'g [Endpoint]> {
        self.instances().find_map(|keys| keys.tunnel(guard, teid))
    }

    /// What the pipeline has to know of the peer with this number.
    #[inline(always)]
    pub fn peer(&self, number: u16) -> Option<FarEnd> {
        let word = self.far_ends[usize::from(number)].load(Ordering::Acquire);
        NonZeroU16::new(word).map(FarEnd)
    }

    /// The addresses of the peers, for ports.
    #[inline]
    pub fn peers(&self) -> &Arc<pktio::Peers> {
        &self.peers
    }

    /// Publishes the address of a peer; `false` when there is no memory.
    pub(crate) fn set_peer(&self, number: u16, interface: u8, peer: SocketAddr) -> bool {
        // Under the lock, so that this call sees a new list of addresses, or `set_local_addresses` sees this
        // peer.
        let local = self.lock_local();
        let word = FarEnd::new(interface, receiver(&local, peer.ip())).0.get();
        let published = self.peers.set(number, peer);
        self.far_ends[usize::from(number)].store(if published { word } else { 0 }, Ordering::Release);
        published
    }

    /// Who receives packets to this address.
    pub fn receiver(&self, address: IpAddr) -> Receiver {
        receiver(&self.lock_local(), address)
    }

    /// Sets the addresses at which this machine would receive its own packets. Packets to peers with one of these
    /// addresses are dropped. Returns the peers that have got one.
    pub fn set_local_addresses(
        &self,
        addresses: impl IntoIterator<Item = (IpAddr, Receiver)>,
    ) -> Vec<IpAddr> {
        let mut local = self.lock_local();
        *local = addresses.into_iter().collect();
        let mut found = Vec::new();
        for (number, word) in (0..=u16::MAX).zip(&*self.far_ends) {
            let (Some(known), Some(address)) = (self.peer(number), self.peers.address(number)) else {
                continue;
            };
            let receiver = receiver(&local, address.ip());
            // Only this function and `set_peer` write the word, both under the lock.
            word.store(FarEnd::new(known.interface(), receiver).0.get(), Ordering::Release);
            if receiver != Receiver::Other && known.is_elsewhere() {
                found.push(address.ip());
            }
        }
        found
    }

    fn lock_local(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Receiver>> {
        self.local.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The SEID of the session with this TEID.
    pub fn owner_of_teid(&self, teid: u32) -> Option<u64> {
        let mut reader = self.domain.reader();
        let guard = reader.enter();
        self.tunnel(&guard, teid).map(|block| block[0].seid())
    }

    /// The SEID of the session with this UE address, in the first network instance where there is one.
    pub fn owner_of_ue(&self, address: IpAddr) -> Option<u64> {
        (0..self.keys.len()).find_map(|instance| self.owner_in(instance as u8, address))
    }

    /// The SEID of the session with this UE address in a network instance.
    pub(crate) fn owner_in(&self, instance: u8, address: IpAddr) -> Option<u64> {
        let mut reader = self.domain.reader();
        let guard = reader.enter();
        self.instance(instance).endpoint_of_ue(&guard, address).map(|block| block[0].seid())
    }

    /// A number that changes when the session of a UE address is replaced; for tests.
    #[doc(hidden)]
    pub fn version_of_ue(&self, address: IpAddr) -> Option<usize> {
        let mut reader = self.domain.reader();
        let _guard = reader.enter();
        let (slots, index) = self.keys.iter().find_map(|keys| keys.pool_place(address))?;
        Some(slots.version(index) as usize)
    }
}

impl Tables {
    /// Makes the mailbox of a new worker.
    pub fn mailbox(&self) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::default());
        let mut mailboxes = self.mailboxes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        mailboxes.retain(|known| known.strong_count() > 0);
        mailboxes.push(Arc::downgrade(&mailbox));
        mailbox
    }

    /// Octets that all workers together have buffered.
    pub fn held_octets(&self) -> &Arc<AtomicUsize> {
        &self.held_octets
    }

    fn post(&self, command: Command) {
        let mailboxes = self.mailboxes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for mailbox in mailboxes.iter().filter_map(std::sync::Weak::upgrade) {
            mailbox.post(command);
        }
    }
}

/// The keys of one network instance, by which packets from its interfaces find their sessions.
#[derive(Clone, Copy)]
pub struct Instance<'t> {
    tables: &'t Tables,
    keys: &'t Keys,
}

impl<'t> Instance<'t> {
    /// The tables.
    #[inline(always)]
    pub fn tables(self) -> &'t Tables {
        self.tables
    }

    /// The place of a TEID that was allocated here. The endpoint there is only right if it has this very TEID.
    #[inline(always)]
    pub fn place_of_teid(self, teid: u32) -> SlotRef<'t> {
        (&self.keys.teids, (teid & INDEX_MASK) as usize)
    }

    /// The endpoint of a TEID that the CP function assigned.
    #[cold]
    pub fn assigned<'g>(self, guard: &'g Guard<'_>, teid: u32) -> Option<&'g [Endpoint]>
    where
        't: 'g,
    {
        let index = self.keys.sparse_teids.find(guard, teid.into())?;
        self.tables.sparse.load(guard, index).filter(|block| block[0].teid() == teid)
    }

    /// The endpoint of a TEID.
    pub fn tunnel<'g>(self, guard: &'g Guard<'_>, teid: u32) -> Option<&'g [Endpoint]>
    where
        't: 'g,
    {
        let (slots, index) = self.place_of_teid(teid);
        let known = index < slots.capacity();
        let indexed = known.then(|| slots.load(guard, index)).flatten();
        indexed.filter(|block| block[0].teid() == teid).or_else(|| self.assigned(guard, teid))
    }

    /// The place of an IPv4 address.
    #[inline(always)]
    pub fn place_of_v4(self, guard: &Guard<'_>, address: u32) -> Option<SlotRef<'t>> {
        for pool in &self.keys.pools_v4 {
            if address >= pool.base && address <= pool.last {
                return Some((&pool.slots, (address - pool.base) as usize));
            }
        }
        let slot = self.keys.sparse_v4.find(guard, address.into());
        Some((
            &self.tables.sparse,
            slot.or_else(|| self.routed(guard, std::net::Ipv4Addr::from_bits(address).into()))?,
        ))
    }

    /// The place of an IPv6 address.
    #[inline]
    pub fn place_of_v6(self, guard: &Guard<'_>, address: Ipv6Addr) -> Option<SlotRef<'t>> {
        let key = prefix64(address);
        for pool in &self.keys.pools_v6 {
            if let Some(index) = pool.index(key) {
                return Some((&pool.slots, index));
            }
        }
        let slot = self.keys.sparse_v6.find(guard, key);
        Some((&self.tables.sparse, slot.or_else(|| self.routed(guard, address.into()))?))
    }

    /// The slot of the framed route that contains an address.
    fn routed(self, guard: &Guard<'_>, address: IpAddr) -> Option<usize> {
        self.keys.routes.load(guard)?.lookup(address).map(|slot| *slot as usize)
    }

    /// The endpoint for an address whose own slot is empty: that of the longest prefix that contains it.
    #[cold]
    pub fn routed_to<'g>(self, guard: &'g Guard<'_>, address: IpAddr) -> Option<&'g [Endpoint]>
    where
        't: 'g,
    {
        self.tables.sparse.load(guard, self.routed(guard, address)?)
    }

    /// The endpoint for packets to an address.
    pub(crate) fn endpoint_of_ue<'g>(self, guard: &'g Guard<'_>, address: IpAddr) -> Option<&'g [Endpoint]>
    where
        't: 'g,
    {
        let place = match address {
            IpAddr::V4(address) => self.place_of_v4(guard, address.to_bits()),
            IpAddr::V6(address) => self.place_of_v6(guard, address),
        };
        let own = place.and_then(|(slots, index)| slots.load(guard, index));
        own.or_else(|| self.routed_to(guard, address))
    }
}
