//! Look-up tables from packets to sessions: by TEID and by UE address.
//!
//! The control side allocates TEIDs, and UE addresses come from configured pools, so both index arrays of
//! slots directly: a look-up is two loads (design idea 5). What does not fit (TEIDs that the CP function
//! assigned, addresses outside the pools) is found in small copy-on-write hash maps. Workers only load
//! pointers; the one writer, the N4 task, stores them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use classifier::Backend;
use classifier::session::Interner;

use crate::config::Config;
use crate::plan::{Plan, PlanError, UeAddresses};
use crate::session::{Compiled, Session};

/// Bits of an allocated TEID that are the index; the others are a generation, so that a tunnel that is gone
/// does not come back to life for packets still under way.
pub const TEID_INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << TEID_INDEX_BITS) - 1;
/// Slots are allocated in chunks when first used, so that a large pool costs nothing until it is used.
const CHUNK: usize = 4096;
/// Hash maps that what is not indexed is spread over: each update copies one of them.
const SHARDS: usize = 256;

type Slot = ArcSwapOption<Compiled>;

/// An array of slots that grows chunk by chunk.
struct Slots {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
}

impl Slots {
    fn new(len: usize) -> Slots {
        Slots { chunks: (0..len.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect() }
    }

    #[inline]
    fn load(&self, index: usize) -> Option<Arc<Compiled>> {
        self.chunks.get(index / CHUNK)?.get()?[index % CHUNK].load_full()
    }

    fn store(&self, index: usize, session: Option<Arc<Compiled>>) {
        if let Some(chunk) = self.chunks.get(index / CHUNK) {
            let slots = chunk.get_or_init(|| (0..CHUNK).map(|_| Slot::empty()).collect());
            slots[index % CHUNK].store(session);
        }
    }
}

type Map = HashMap<u128, Arc<Compiled>>;

/// Sessions under keys that do not index an array.
struct Sparse {
    shards: Box<[ArcSwap<Map>]>,
}

impl Sparse {
    fn new() -> Sparse {
        Sparse { shards: (0..SHARDS).map(|_| ArcSwap::default()).collect() }
    }

    fn shard(&self, key: u128) -> &ArcSwap<Map> {
        // Prefixes differ in their upper half, addresses and TEIDs in the lower: mix both.
        let folded = (key >> 64) as u64 ^ key as u64;
        &self.shards[(folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % SHARDS]
    }

    fn load(&self, key: u128) -> Option<Arc<Compiled>> {
        self.shard(key).load().get(&key).cloned()
    }

    fn store(&self, key: u128, session: Option<Arc<Compiled>>) {
        let shard = self.shard(key);
        let mut map = HashMap::clone(&shard.load());
        match session {
            Some(session) => map.insert(key, session),
            None => map.remove(&key),
        };
        shard.store(Arc::new(map));
    }
}

/// A pool of UE addresses whose host parts index slots.
struct Pool {
    /// Network part of the pool, shifted down by `shift`.
    base: u128,
    len: u128,
    /// Bits below the index: 0 for IPv4 addresses, 64 for IPv6 prefixes.
    shift: u32,
    slots: Slots,
}

impl Pool {
    fn new(network: u128, bits: u32, shift: u32) -> Pool {
        let len = 1u128 << bits;
        Pool { base: network >> shift, len, shift, slots: Slots::new(len as usize) }
    }

    #[inline]
    fn index(&self, address: u128) -> Option<usize> {
        let offset = (address >> self.shift).wrapping_sub(self.base);
        (offset < self.len).then_some(offset as usize)
    }
}

/// The tables that workers read. See the module.
pub struct Tables {
    teids: Slots,
    sparse_teids: Sparse,
    pools_v4: Vec<Pool>,
    pools_v6: Vec<Pool>,
    sparse_v4: Sparse,
    sparse_v6: Sparse,
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

impl Tables {
    /// Empty tables for the pools of a configuration.
    pub fn new(config: &Config) -> Tables {
        let (mut pools_v4, mut pools_v6) = (Vec::new(), Vec::new());
        for pool in config.dnn.iter().flat_map(|dnn| [dnn.ue_pool.ipv4, dnn.ue_pool.ipv6]).flatten() {
            match pool.network().address() {
                IpAddr::V4(network) => {
                    let bits = 32 - u32::from(pool.prefix());
                    pools_v4.push(Pool::new(u128::from(network.to_bits()), bits, 0));
                }
                IpAddr::V6(network) => {
                    let bits = 64u32.saturating_sub(u32::from(pool.prefix()));
                    pools_v6.push(Pool::new(network.to_bits(), bits, 64));
                }
            }
        }
        Tables {
            teids: Slots::new(config.max_tunnels as usize),
            sparse_teids: Sparse::new(),
            pools_v4,
            pools_v6,
            sparse_v4: Sparse::new(),
            sparse_v6: Sparse::new(),
        }
    }

    /// The session that owns a TEID. An indexed slot is only right if its session still has this very TEID.
    #[inline]
    pub fn by_teid(&self, teid: u32) -> Option<(Arc<Compiled>, usize)> {
        let indexed = self.teids.load((teid & INDEX_MASK) as usize);
        if let Some(session) = indexed
            && let Some(tunnel) = session.tunnel(teid)
        {
            return Some((session, tunnel));
        }
        let session = self.sparse_teids.load(teid.into())?;
        let tunnel = session.tunnel(teid)?;
        Some((session, tunnel))
    }

    /// The session that owns a UE address.
    #[inline]
    pub fn by_ue(&self, address: IpAddr) -> Option<Arc<Compiled>> {
        match address {
            IpAddr::V4(address) => self.by_ue_v4(address),
            IpAddr::V6(address) => self.by_ue_v6(address),
        }
    }

    fn by_ue_v4(&self, address: Ipv4Addr) -> Option<Arc<Compiled>> {
        let key = u128::from(address.to_bits());
        for pool in &self.pools_v4 {
            if let Some(index) = pool.index(key) {
                return pool.slots.load(index);
            }
        }
        self.sparse_v4.load(key)
    }

    fn by_ue_v6(&self, address: Ipv6Addr) -> Option<Arc<Compiled>> {
        let key = prefix64(address);
        for pool in &self.pools_v6 {
            if let Some(index) = pool.index(key) {
                return pool.slots.load(index);
            }
        }
        self.sparse_v6.load(key)
    }

    /// The SEID of the session that owns a TEID.
    pub fn owner_of_teid(&self, teid: u32) -> Option<u64> {
        self.by_teid(teid).map(|(session, _)| session.seid)
    }

    /// The SEID of the session that owns a UE address.
    pub fn owner_of_ue(&self, address: IpAddr) -> Option<u64> {
        self.by_ue(address).map(|session| session.seid)
    }

    /// Which version of a session packets to a UE address find, to tell whether it has been replaced; for tests.
    #[doc(hidden)]
    pub fn version_of_ue(&self, address: IpAddr) -> Option<usize> {
        self.by_ue(address).map(|session| Arc::as_ptr(&session).addr())
    }

    fn store_teid(&self, teid: u32, indexed: bool, session: Option<Arc<Compiled>>) {
        if indexed {
            self.teids.store((teid & INDEX_MASK) as usize, session);
        } else {
            self.sparse_teids.store(teid.into(), session);
        }
    }

    fn store_ue(&self, address: IpAddr, session: Option<Arc<Compiled>>) {
        let (key, pools, sparse) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), &self.pools_v4, &self.sparse_v4),
            IpAddr::V6(address) => (prefix64(address), &self.pools_v6, &self.sparse_v6),
        };
        match pools.iter().find_map(|pool| pool.index(key).map(|index| (pool, index))) {
            Some((pool, index)) => pool.slots.store(index, session),
            None => sparse.store(key, session),
        }
    }
}

/// The writer's side of the tables: allocation of TEIDs, ownership, publication.
#[derive(Debug)]
pub struct Writer {
    tables: Arc<Tables>,
    free: VecDeque<u32>,
    next_index: u32,
    max_tunnels: u32,
    generation: u32,
    allocated: HashSet<u32>,
    assigned: HashSet<u32>,
    /// Copies of counters: one per worker and one for the N4 task.
    workers: usize,
    backend: Backend,
    /// Lets sessions with the same policy share their compiled rules.
    interner: Interner,
}

impl Writer {
    /// The only writer of `tables`. `seed` should differ between starts of the process, so that TEIDs do too.
    pub fn new(tables: Arc<Tables>, config: &Config, workers: usize, seed: u32) -> Writer {
        Writer {
            tables,
            free: VecDeque::new(),
            next_index: 1,
            max_tunnels: config.max_tunnels,
            generation: seed,
            allocated: HashSet::new(),
            assigned: HashSet::new(),
            workers,
            backend: config.classifier,
            interner: Interner::new(),
        }
    }

    /// A TEID that is not in use. Freed indices are reused last of all, each time under another generation.
    pub fn allocate(&mut self) -> Option<u32> {
        let index = if self.next_index < self.max_tunnels {
            self.next_index += 1;
            self.next_index - 1
        } else {
            self.free.pop_front()?
        };
        // A TEID that the CP function assigned may stand in the way of one generation, not of several.
        for _ in 0..16 {
            self.generation = self.generation.wrapping_add(1);
            let teid = (self.generation << TEID_INDEX_BITS) | index;
            if !self.assigned.contains(&teid) {
                self.allocated.insert(teid);
                return Some(teid);
            }
        }
        self.free.push_back(index);
        None
    }

    /// Takes a TEID that the CP function chose; `false` when it is in use.
    pub fn assign(&mut self, teid: u32) -> bool {
        teid != 0 && !self.allocated.contains(&teid) && self.assigned.insert(teid)
    }

    /// Gives a TEID back and stops packets from finding it.
    pub fn release(&mut self, teid: u32) {
        if self.allocated.remove(&teid) {
            self.tables.store_teid(teid, true, None);
            self.free.push_back(teid & INDEX_MASK);
        } else if self.assigned.remove(&teid) {
            self.tables.store_teid(teid, false, None);
        }
    }

    /// Publishes a session that is new. On an error nothing changes.
    pub fn establish(&mut self, plan: &Plan) -> Result<Session, PlanError> {
        let session = Session::new(plan, None, self.workers, self.backend, &mut self.interner);
        self.publish(&session.compiled);
        Ok(session)
    }

    /// Replaces a session's rules by those of a plan: counters and meters stay, and TEIDs that the plan does not use any
    /// more are given back. On an error nothing changes.
    pub fn modify(&mut self, session: &mut Session, plan: &Plan) -> Result<(), PlanError> {
        let new = Session::new(plan, Some(session), self.workers, self.backend, &mut self.interner);
        self.publish(&new.compiled);
        let old = std::mem::replace(session, new).compiled;
        for tunnel in old.tunnels.iter().filter(|tunnel| session.compiled.tunnel(tunnel.teid).is_none()) {
            self.release(tunnel.teid);
        }
        let kept = keys(&session.compiled.reached_by);
        for address in keys(&old.reached_by).into_iter().filter(|address| !kept.contains(address)) {
            self.release_ue(address, old.seid);
        }
        Ok(())
    }

    /// Takes a session away, and gives its TEIDs back.
    pub fn remove(&mut self, session: Session) {
        for tunnel in &session.compiled.tunnels {
            self.release(tunnel.teid);
        }
        for address in keys(&session.compiled.reached_by) {
            self.release_ue(address, session.compiled.seid);
        }
    }

    fn publish(&mut self, compiled: &Arc<Compiled>) {
        for tunnel in &compiled.tunnels {
            let allocated = self.allocated.contains(&tunnel.teid);
            self.tables.store_teid(tunnel.teid, allocated, Some(Arc::clone(compiled)));
        }
        for address in keys(&compiled.reached_by) {
            self.tables.store_ue(address, Some(Arc::clone(compiled)));
        }
    }

    /// Stops packets to `address` from finding the session, if it is still that of `seid`.
    fn release_ue(&mut self, address: IpAddr, seid: u64) {
        if self.owner_of_ue(address) == Some(seid) {
            self.tables.store_ue(address, None);
        }
    }

    /// The SEID of the session that owns a UE address now.
    pub fn owner_of_ue(&self, address: IpAddr) -> Option<u64> {
        self.tables.owner_of_ue(address)
    }
}

/// What the tables find a session by.
fn keys(ue: &UeAddresses) -> Vec<IpAddr> {
    let v6 = ue.ipv6.iter().map(|(prefix, _)| IpAddr::V6(*prefix));
    ue.ipv4.iter().copied().map(IpAddr::V4).chain(v6).collect()
}
