//! Look-up tables from packets to sessions: by TEID and by UE address.
//!
//! The control side allocates TEIDs, and UE addresses come from configured pools, so both index arrays of
//! slots directly: a look-up is one load (design idea 5). What does not fit (TEIDs that the CP function
//! assigned, addresses outside the pools) is found in small copy-on-write hash maps, which say which slot it has. Workers
//! only load; the one writer, the N4 task, stores ([`crate::rcu`]).

mod further;
mod stations;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use classifier::Rule;

use crate::bridge::{self, Bridge};
use crate::config::Config;
pub use crate::mailbox::{Command, Mailbox};
use crate::pipeline::translate::{self, Translations};
use crate::plan::{Action, Kind, Place, Plan, PlanError};
use crate::rcu::{Bin, Block, Cell, Domain, Guard, Lines, Queue, Slots, Ticket};
use crate::references::References;
use crate::routes::{Network, Routes};
use crate::session::{self, Assembly, Endpoint, Key64, Policy, Session, State, Use};
use crate::state::{Cells, PER_LINE};

/// Bits of an allocated TEID that are the index; the others are a generation, so that a tunnel that is gone
/// does not come back to life for packets still under way.
pub const TEID_INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << TEID_INDEX_BITS) - 1;
/// Hash maps that what is not indexed is spread over: each update copies one of them.
const SHARDS: usize = 256;
/// Keys that do not index an array, at most.
const SPARSE: usize = 1 << 20;
/// Policies, at most, and how many are in a chunk.
pub(crate) const POLICIES: usize = 1 << 20;
pub(crate) const POLICY_CHUNK: usize = 1024;
/// Peers, at most, and how many are in a chunk.
pub(crate) const PEERS: usize = 1 << 16;
pub(crate) const PEER_CHUNK: usize = 256;
/// Ethernet sessions in data networks, at most: what goes to all of a network is sent that often.
pub const STATIONS: u32 = 8192;
/// Most lines of a session's state.
const STATE_LINES: u32 = 64;

type Map = HashMap<u128, u32>;

/// Slots of keys that do not index an array.
struct Sparse {
    shards: Box<[Cell<Map>]>,
}

impl Sparse {
    fn new(domain: &Domain) -> Sparse {
        Sparse { shards: (0..SHARDS).map(|_| Cell::new(domain)).collect() }
    }

    fn shard(&self, key: u128) -> &Cell<Map> {
        // Prefixes differ in their upper half, addresses and TEIDs in the lower: mix both.
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

/// A pool of UE addresses whose host parts index slots.
struct Pool {
    /// Network part of the pool, shifted down by `shift`.
    base: u128,
    len: u128,
    /// Bits below the index: 0 for IPv4 addresses, 64 for IPv6 prefixes.
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

/// Where a packet's endpoint is to be looked up.
pub type Found<'t> = (&'t Slots<Endpoint>, usize);

/// An array whose chunks are made when first used.
pub(crate) type Chunked<T> = Box<[OnceLock<Box<[T]>>]>;
/// A place with its entries and rules, assembled.
type Assembled = (Place, Vec<session::Entry>, Vec<Rule>);

/// The tables that workers read. See the module.
pub struct Tables {
    pub(crate) domain: Domain,
    pub(crate) lines: Lines,
    teids: Slots<Endpoint>,
    pools_v4: Vec<PoolV4>,
    pools_v6: Vec<Pool>,
    sparse: Slots<Endpoint>,
    sparse_teids: Sparse,
    sparse_v4: Sparse,
    sparse_v6: Sparse,
    /// Ethernet sessions by their stations; none without data networks for them.
    stations: Slots<Endpoint>,
    /// The bridges of Ethernet data networks.
    bridges: Vec<Option<Bridge>>,
    /// Framed routes: slots among the sparse ones.
    routes: Cell<Routes<u32>>,
    pub(crate) policies: Chunked<Cell<Policy>>,
    pub(crate) peers: Chunked<[AtomicU64; 4]>,
    /// Flows that are redirected to an address.
    pub translations: Translations,
    mailboxes: std::sync::Mutex<Vec<std::sync::Weak<Mailbox>>>,
    held_octets: Arc<AtomicUsize>,
    /// Taken by the one writer.
    arena: std::sync::Mutex<Option<crate::rcu::Writer<Endpoint>>>,
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
        let domain = Domain::default();
        let arena = crate::rcu::Writer::new(&domain);
        let (mut pools_v4, mut pools_v6) = (Vec::new(), Vec::new());
        for pool in config.dnn.iter().flat_map(|dnn| [dnn.ue_pool.ipv4, dnn.ue_pool.ipv6]).flatten() {
            match pool.network().address() {
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
        let bridges: Vec<_> =
            config.dnn.iter().map(|dnn| (dnn.kind == Kind::Ethernet).then(stations::new_bridge)).collect();
        let stations = if bridges.iter().any(Option::is_some) { STATIONS as usize } else { 0 };
        Tables {
            stations: arena.slots(stations),
            bridges,
            lines: Lines::default(),
            teids: arena.slots(config.max_tunnels as usize),
            sparse: arena.slots(SPARSE),
            pools_v4,
            pools_v6,
            sparse_teids: Sparse::new(&domain),
            sparse_v4: Sparse::new(&domain),
            sparse_v6: Sparse::new(&domain),
            routes: Cell::new(&domain),
            policies: (0..POLICIES / POLICY_CHUNK).map(|_| OnceLock::new()).collect(),
            peers: (0..PEERS / PEER_CHUNK).map(|_| OnceLock::new()).collect(),
            translations: Translations::new(translate::ENTRIES),
            mailboxes: std::sync::Mutex::new(Vec::new()),
            held_octets: Arc::default(),
            arena: std::sync::Mutex::new(Some(arena)),
            domain,
        }
    }

    /// Readers and writers of the tables.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Where the endpoint of a TEID is, if it was allocated here: it is right only if it has this very TEID.
    #[inline(always)]
    pub fn place_of_teid(&self, teid: u32) -> Found<'_> {
        (&self.teids, (teid & INDEX_MASK) as usize)
    }

    /// The endpoint of a TEID that the CP function assigned.
    #[cold]
    pub fn assigned<'g>(&'g self, guard: &'g Guard<'_>, teid: u32) -> Option<&'g [Endpoint]> {
        let index = self.sparse_teids.find(guard, teid.into())?;
        self.sparse.load(guard, index).filter(|block| block[0].teid() == teid)
    }

    /// Where the endpoint of an IPv4 address is.
    #[inline(always)]
    pub fn place_of_v4(&self, guard: &Guard<'_>, address: u32) -> Option<Found<'_>> {
        for pool in &self.pools_v4 {
            if address >= pool.base && address <= pool.last {
                return Some((&pool.slots, (address - pool.base) as usize));
            }
        }
        let slot = self.sparse_v4.find(guard, address.into());
        Some((
            &self.sparse,
            slot.or_else(|| self.routed(guard, std::net::Ipv4Addr::from_bits(address).into()))?,
        ))
    }

    /// The slot of a framed route that an address is in.
    fn routed(&self, guard: &Guard<'_>, address: IpAddr) -> Option<usize> {
        self.routes.load(guard)?.lookup(address).map(|slot| *slot as usize)
    }

    /// Where the endpoint of an IPv6 address is.
    #[inline]
    pub fn place_of_v6(&self, guard: &Guard<'_>, address: Ipv6Addr) -> Option<Found<'_>> {
        let key = prefix64(address);
        for pool in &self.pools_v6 {
            if let Some(index) = pool.index(key) {
                return Some((&pool.slots, index));
            }
        }
        let slot = self.sparse_v6.find(guard, key);
        Some((&self.sparse, slot.or_else(|| self.routed(guard, address.into()))?))
    }

    /// The endpoint of an address whose own slot is empty: that of the longest prefix it is in.
    #[cold]
    pub fn routed_to<'g>(&'g self, guard: &'g Guard<'_>, address: IpAddr) -> Option<&'g [Endpoint]> {
        self.sparse.load(guard, self.routed(guard, address)?)
    }

    /// The endpoint that packets to an address find.
    fn endpoint_of_ue<'g>(&'g self, guard: &'g Guard<'_>, address: IpAddr) -> Option<&'g [Endpoint]> {
        let place = self.place_of_ue(guard, address);
        let own = place.and_then(|(slots, index)| slots.load(guard, index));
        own.or_else(|| self.routed_to(guard, address))
    }

    /// The numbers of the policies that what is published under these keys is looked up in.
    pub(crate) fn policies_of(&self, keys: &[Key64]) -> Vec<u32> {
        let mut reader = self.domain.reader();
        let guard = reader.enter();
        let block = |key: &Key64| match key {
            Key64::Teid(teid) => {
                let (slots, index) = self.place_of_teid(*teid);
                slots.load(&guard, index)
            }
            Key64::Ue(address) | Key64::Route(address, _) => self.endpoint_of_ue(&guard, *address),
            Key64::Station(station) => self.stations.load(&guard, *station as usize),
        };
        keys.iter().filter_map(block).filter_map(|block| block.first()?.policy()).collect()
    }

    fn place_of_ue(&self, guard: &Guard<'_>, address: IpAddr) -> Option<Found<'_>> {
        match address {
            IpAddr::V4(address) => self.place_of_v4(guard, address.to_bits()),
            IpAddr::V6(address) => self.place_of_v6(guard, address),
        }
    }

    /// The policy with this number.
    #[inline(always)]
    pub fn policy<'g>(&'g self, guard: &'g Guard<'_>, number: u32) -> Option<&'g Policy> {
        let chunk = self.policies.get(number as usize / POLICY_CHUNK)?.get()?;
        chunk[number as usize % POLICY_CHUNK].load(guard)
    }

    /// The endpoint of a TEID.
    pub fn tunnel<'g>(&'g self, guard: &'g Guard<'_>, teid: u32) -> Option<&'g [Endpoint]> {
        let (slots, index) = self.place_of_teid(teid);
        let indexed = slots.load(guard, index).filter(|block| block[0].teid() == teid);
        indexed.or_else(|| self.assigned(guard, teid))
    }

    /// The address of the peer with this number.
    #[inline(always)]
    pub fn peer(&self, number: u16) -> Option<SocketAddr> {
        let chunk = self.peers[usize::from(number) / PEER_CHUNK].get()?;
        let [kind, high, low, _] = &chunk[usize::from(number) % PEER_CHUNK];
        let (kind, low) = (kind.load(Ordering::Acquire), low.load(Ordering::Relaxed));
        let port = kind as u16;
        match kind >> 16 {
            4 => Some(SocketAddr::from((std::net::Ipv4Addr::from_bits(low as u32), port))),
            6 => {
                let bits = u128::from(high.load(Ordering::Relaxed)) << 64 | u128::from(low);
                Some(SocketAddr::from((Ipv6Addr::from_bits(bits), port)))
            }
            _ => None,
        }
    }

    /// The SEID of the session that owns a TEID.
    pub fn owner_of_teid(&self, teid: u32) -> Option<u64> {
        let mut reader = self.domain.reader();
        let guard = reader.enter();
        self.tunnel(&guard, teid).map(|block| block[0].seid())
    }

    /// The SEID of the session that owns a UE address.
    pub fn owner_of_ue(&self, address: IpAddr) -> Option<u64> {
        let mut reader = self.domain.reader();
        let guard = reader.enter();
        self.endpoint_of_ue(&guard, address).map(|block| block[0].seid())
    }

    /// Which version of a session packets to a UE address find, to tell whether it has been replaced; for tests.
    #[doc(hidden)]
    pub fn version_of_ue(&self, address: IpAddr) -> Option<usize> {
        let mut reader = self.domain.reader();
        let guard = reader.enter();
        let (slots, index) = self.place_of_ue(&guard, address)?;
        Some(slots.version(index) as usize)
    }
}

impl Tables {
    /// A mailbox for a new worker.
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

/// Allocates lines of state.
#[derive(Default)]
struct StateSpace {
    next: u32,
    free: HashMap<u32, Vec<u32>>,
}

impl StateSpace {
    fn take(&mut self, lines: &Lines, count: u32) -> Option<u32> {
        if count > STATE_LINES {
            return None;
        }
        if let Some(first) = self.free.get_mut(&count).and_then(Vec::pop) {
            // What another session counted there is not this one's, not even in cells that it uses later.
            let cells = Cells::new(lines, first);
            (0..=(count * PER_LINE as u32 - 1) as u8).for_each(|cell| cells.set(cell, [0; 2]));
            return Some(first);
        }
        let chunk = Lines::CHUNK as u32;
        if self.next % chunk + count > chunk {
            self.next = self.next.next_multiple_of(chunk);
        }
        let first = self.next;
        if !lines.grow_shared(first) {
            return None;
        }
        self.next += count;
        Some(first)
    }
}

/// What is used again once no worker sees it any more.
enum Used {
    State(u32, u32),
    Sparse(u32),
    Station(u32),
}

/// Endpoints that may wait for workers before memory is looked for.
const PATIENCE: usize = 64;
/// Lists of uses that are known at least before those that nobody has any more are looked for.
const KNOWN_USES: usize = 64;

/// The writer's side of the tables: allocation of TEIDs, ownership, publication.
pub struct Writer {
    tables: Arc<Tables>,
    arena: crate::rcu::Writer<Endpoint>,
    reader: crate::rcu::Reader,
    bin: Bin,
    queue: Queue<Used>,
    free: VecDeque<u32>,
    next_index: u32,
    max_tunnels: u32,
    generation: u32,
    /// The TEID that each index is allocated under, or 0.
    allocated: Vec<u32>,
    assigned: HashSet<u32>,
    references: References,
    uses: HashSet<Arc<Vec<Use>>>,
    uses_limit: usize,
    /// The list that was asked for last, mostly the next one as well.
    last_uses: Arc<Vec<Use>>,
    states: StateSpace,
    sparse: HashMap<(u8, u128), u32>,
    routes: HashMap<Network, u32>,
    free_sparse: Vec<u32>,
    next_sparse: u32,
    free_stations: Vec<u32>,
    next_station: u32,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("allocated", &(self.next_index as usize - 1 - self.free.len()))
            .finish()
    }
}

/// Blocks of a session that are written and not in their slots yet.
struct Prepared {
    blocks: Vec<(Key64, Block)>,
    state: State,
}

impl Writer {
    /// The only writer of `tables`. `seed` should differ between starts of the process, so that TEIDs do too.
    pub fn new(tables: Arc<Tables>, config: &Config, seed: u32) -> Writer {
        let arena = tables.arena.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        // A second writer would have slots of no use: what it publishes, nobody finds.
        let arena = arena.unwrap_or_else(|| crate::rcu::Writer::new(&tables.domain));
        Writer {
            arena,
            reader: tables.domain.reader(),
            bin: Bin::new(&tables.domain),
            queue: Queue::new(&tables.domain),
            free: VecDeque::new(),
            next_index: 1,
            max_tunnels: config.max_tunnels,
            generation: seed,
            allocated: Vec::new(),
            assigned: HashSet::new(),
            references: References::new(Arc::clone(&tables), config.classifier),
            uses: HashSet::new(),
            uses_limit: KNOWN_USES,
            last_uses: Arc::default(),
            states: StateSpace::default(),
            sparse: HashMap::new(),
            routes: HashMap::new(),
            free_sparse: Vec::new(),
            next_sparse: 0,
            free_stations: Vec::new(),
            next_station: bridge::NETWORK + 1,
            tables,
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
                if self.allocated.len() <= index as usize {
                    self.allocated.resize(index as usize + 1, 0);
                }
                self.allocated[index as usize] = teid;
                return Some(teid);
            }
        }
        self.free.push_back(index);
        None
    }

    fn is_allocated(&self, teid: u32) -> bool {
        // Index 0 is never given out, so no TEID that is allocated is 0.
        teid != 0 && self.allocated.get((teid & INDEX_MASK) as usize) == Some(&teid)
    }

    /// Takes a TEID that the CP function chose; `false` when it is in use.
    pub fn assign(&mut self, teid: u32) -> bool {
        teid != 0 && !self.is_allocated(teid) && self.assigned.insert(teid)
    }

    /// Gives a TEID back and stops packets from finding it.
    pub fn release(&mut self, teid: u32) {
        if self.is_allocated(teid) {
            let (slots, index) = self.tables.place_of_teid(teid);
            self.arena.clear(slots, index);
            self.allocated[index] = 0;
            self.free.push_back(teid & INDEX_MASK);
        } else if self.assigned.remove(&teid) {
            self.clear_sparse(0, teid.into());
        }
    }

    /// Publishes a session that is new. On an error nothing changes.
    pub fn establish(&mut self, plan: &Plan) -> Result<Session, PlanError> {
        let mut session = Session::new(plan.seid, Arc::clone(&self.tables));
        self.modify(&mut session, plan)?;
        Ok(session)
    }

    /// Replaces a session's rules by those of a plan: counters and meters stay, and TEIDs that the plan does not use any
    /// more are given back. On an error nothing changes.
    pub fn modify(&mut self, session: &mut Session, plan: &Plan) -> Result<(), PlanError> {
        self.reclaim();
        let station = self.station(session, plan)?;
        let prepared = match self.prepare(session, plan, station) {
            Ok(prepared) => prepared,
            Err(error) => {
                // Nobody has heard of a new one.
                self.free_stations.extend(station.filter(|_| session.station.is_none()));
                return Err(error);
            }
        };
        self.install(session, prepared);
        self.join(session, plan, station);
        // Behind the publication: see `pipeline::held`.
        if session.buffered {
            self.tables.post(Command::Release(session.seid));
        }
        session.buffered |= plan.pdrs.iter().any(|pdr| pdr.action == Action::Buffer);
        Ok(())
    }

    /// Takes a session away, and gives its TEIDs back.
    pub fn remove(&mut self, mut session: Session) {
        for key in std::mem::take(&mut session.keys) {
            self.withdraw(&key, session.seid);
        }
        if let Some((network, station)) = session.station {
            self.leave(network, station);
            self.queue.push(Used::Station(station));
        }
        if session.buffered {
            self.discard(session.seid);
        }
        for state in session.into_states() {
            self.queue.push(Used::State(state.first, state.lines));
        }
        self.reclaim();
    }

    /// Drops what is buffered for a session.
    pub fn discard(&self, seid: u64) {
        self.tables.post(Command::Discard(seid));
    }

    /// Readers that are inside now may still see what has been replaced until now: see [`Writer::passed`].
    pub fn ticket(&self) -> Ticket {
        self.tables.domain.ticket()
    }

    /// Whether no packet is under way any more by rules replaced before the ticket: then an End Marker follows all.
    pub fn passed(&self, ticket: Ticket) -> bool {
        self.tables.domain.passed(ticket)
    }

    /// The SEID of the session that owns a UE address now.
    pub fn owner_of_ue(&self, address: IpAddr) -> Option<u64> {
        let sparse = || {
            let slot = self.sparse.get(&sparse_key(address))?;
            Some((&self.tables.sparse, *slot as usize))
        };
        let place = self.tables.pool_place(address).or_else(sparse);
        let own = place.and_then(|(slots, index)| self.arena.look(slots, index)).map(|block| block[0].seid());
        own.or_else(|| if self.routes.is_empty() { None } else { self.tables.owner_of_ue(address) })
    }

    /// Octets of all endpoints that are published.
    pub fn memory_bytes(&self) -> usize {
        self.arena.memory_bytes()
    }

    /// Works everything out that can fail.
    fn prepare(
        &mut self,
        session: &mut Session,
        plan: &Plan,
        station: Option<u32>,
    ) -> Result<Prepared, PlanError> {
        let exists = |id| plan.urrs.iter().any(|urr| urr.id == id);
        let mut prepared = Prepared { blocks: Vec::new(), state: session.state.clone() };
        prepared.state.forget_urrs(exists);
        let known = prepared.state.cells();
        let result = self.assemble(plan, &mut prepared.state, station).and_then(|places| {
            let known = self.place_state(session, &mut prepared.state, known)?;
            self.write(plan, station, places, &mut prepared)?;
            Ok(known)
        });
        self.references.settle();
        let known = match result {
            Ok(known) => known,
            Err(error) => {
                for (_, block) in prepared.blocks {
                    self.references.forget(self.arena.values(&block));
                    self.arena.discard(block);
                }
                if prepared.state.lines > session.state.lines {
                    self.queue.push(Used::State(prepared.state.first, prepared.state.lines));
                }
                return Err(error);
            }
        };
        self.share_uses(&mut prepared.state);
        // Rates and marks stand in lines that workers read already: behind all that can fail.
        prepared.state.apply(plan, session, known);
        session.forget_urrs(exists);
        Ok(prepared)
    }

    /// Lets sessions with the same uses share the list of these.
    fn share_uses(&mut self, state: &mut State) {
        if state.uses != self.last_uses {
            match self.uses.get(&state.uses) {
                Some(known) => self.last_uses = Arc::clone(known),
                None => {
                    self.uses.insert(Arc::clone(&state.uses));
                    self.last_uses = Arc::clone(&state.uses);
                }
            }
        }
        state.uses = Arc::clone(&self.last_uses);
        if self.uses.len() > self.uses_limit {
            self.uses.retain(|uses| Arc::strong_count(uses) > 1);
            self.uses_limit = KNOWN_USES.max(2 * self.uses.len());
        }
    }

    /// Entries and rules of all places.
    fn assemble(
        &mut self,
        plan: &Plan,
        state: &mut State,
        station: Option<u32>,
    ) -> Result<Vec<Assembled>, PlanError> {
        let targets = self.references.targets(plan)?;
        let mut assembly = Assembly { plan, state, peers: &mut self.references, targets: &targets, station };
        let mut places = Vec::with_capacity(plan.arrivals.len());
        for arrival in &plan.arrivals {
            let (entries, rules) = assembly.entries(arrival.place, &arrival.rules)?;
            places.push((arrival.place, entries, rules));
        }
        Ok(places)
    }

    /// Finds room for the state; how many of its cells hold what they held before.
    fn place_state(
        &mut self,
        session: &Session,
        state: &mut State,
        known: usize,
    ) -> Result<usize, PlanError> {
        let needed = state.needed();
        if needed <= session.state.lines {
            return Ok(known);
        }
        let first = self.states.take(&self.tables.lines, needed).ok_or(PlanError::Full("counters"))?;
        (state.first, state.lines) = (first, needed);
        state.carry_over(&session.state, &self.tables);
        // Gauges begin anew from what has been counted.
        Ok(0)
    }

    /// Writes the blocks.
    fn write(
        &mut self,
        plan: &Plan,
        station: Option<u32>,
        places: Vec<Assembled>,
        prepared: &mut Prepared,
    ) -> Result<(), PlanError> {
        for (place, entries, rules) in places {
            let (entrance, route) = self.references.compile(plan, &rules)?;
            let (teid, keys) = match place {
                Place::Tunnel(teid) => (teid, vec![Key64::Teid(teid)]),
                Place::Native if plan.kind == Kind::Ethernet => {
                    (0, station.map(Key64::Station).into_iter().collect())
                }
                Place::Native => (0, further::native_keys(plan)),
            };
            let block = session::assemble(plan.seid, teid, prepared.state.first, entrance, route, &entries);
            for key in keys {
                let block = self.arena.block(&block).ok_or(PlanError::Full("rules"))?;
                self.references.refer(self.arena.values(&block));
                prepared.blocks.push((key, block));
            }
        }
        let new = |key: &Key64| match key {
            Key64::Teid(teid) => !self.is_allocated(*teid) && !self.sparse.contains_key(&(0, (*teid).into())),
            Key64::Ue(address) => {
                self.tables.pool_place(*address).is_none() && !self.sparse.contains_key(&sparse_key(*address))
            }
            Key64::Station(_) => false,
            Key64::Route(address, length) => {
                Network::new(*address, *length).is_ok_and(|network| !self.routes.contains_key(&network))
            }
        };
        let needed = prepared.blocks.iter().filter(|(key, _)| new(key)).count();
        if needed > self.free_sparse.len() + (SPARSE - self.next_sparse as usize) {
            return Err(PlanError::Full("addresses and TEIDs that are not the UPF's own"));
        }
        Ok(())
    }

    /// Puts the blocks into their slots and takes away what the session does not have any more.
    fn install(&mut self, session: &mut Session, prepared: Prepared) {
        let mut keys = Vec::with_capacity(prepared.blocks.len());
        for (key, block) in prepared.blocks {
            self.publish(&key, block);
            keys.push(key);
        }
        let old = std::mem::replace(&mut session.keys, keys.into());
        for key in old.iter().filter(|key| !session.keys.contains(key)) {
            self.withdraw(key, session.seid);
        }
        let old = std::mem::replace(&mut session.state, prepared.state);
        if old.lines > 0 && old.first != session.state.first {
            session.outgrow(self.tables.domain.ticket(), old);
        }
        while let Some(state) = session.fold() {
            self.queue.push(Used::State(state.first, state.lines));
        }
    }

    fn publish(&mut self, key: &Key64, block: Block) {
        let tables = Arc::clone(&self.tables);
        let (kind, sparse) = match key {
            Key64::Teid(teid) if self.is_allocated(*teid) => {
                let (slots, index) = tables.place_of_teid(*teid);
                return self.arena.install(slots, index, block);
            }
            Key64::Teid(teid) => (0, u128::from(*teid)),
            Key64::Ue(address) => {
                if let Some((slots, index)) = tables.pool_place(*address) {
                    return self.arena.install(slots, index, block);
                }
                sparse_key(*address)
            }
            Key64::Route(address, length) => return self.publish_route(*address, *length, block),
            Key64::Station(station) => {
                return self.arena.install(&tables.stations, *station as usize, block);
            }
        };
        let known = self.sparse.get(&(kind, sparse)).copied();
        let Some(slot) = known.or_else(|| self.free_slot()) else { return self.arena.discard(block) };
        self.arena.install(&tables.sparse, slot as usize, block);
        if self.sparse.insert((kind, sparse), slot).is_none() {
            let guard = self.reader.enter();
            self.tables.sparse_map(kind).set(&guard, &mut self.bin, sparse, Some(slot));
        }
    }

    fn free_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free_sparse.pop() {
            return Some(slot);
        }
        let slot = self.next_sparse;
        if slot as usize >= SPARSE {
            return None;
        }
        self.next_sparse += 1;
        Some(slot)
    }

    /// Stops packets from finding the session by a key, if it is still the session's.
    fn withdraw(&mut self, key: &Key64, seid: u64) {
        let tables = Arc::clone(&self.tables);
        match key {
            Key64::Teid(teid) => self.release(*teid),
            Key64::Ue(address) => {
                let (kind, key) = sparse_key(*address);
                if let Some((slots, index)) = tables.pool_place(*address) {
                    if self.arena.look(slots, index).is_some_and(|block| block[0].seid() == seid) {
                        self.arena.clear(slots, index);
                    }
                } else if let Some(slot) = self.sparse.get(&(kind, key))
                    && let Some(block) = self.arena.look(&tables.sparse, *slot as usize)
                    && block[0].seid() == seid
                {
                    self.clear_sparse(kind, key);
                }
            }
            Key64::Route(address, length) => self.withdraw_route(*address, *length, seid),
            Key64::Station(station) => self.arena.clear(&tables.stations, *station as usize),
        }
    }

    fn clear_sparse(&mut self, kind: u8, key: u128) {
        let Some(slot) = self.sparse.remove(&(kind, key)) else { return };
        {
            let guard = self.reader.enter();
            self.tables.sparse_map(kind).set(&guard, &mut self.bin, key, None);
        }
        self.arena.clear(&self.tables.sparse, slot as usize);
        self.queue.push(Used::Sparse(slot));
    }

    /// Makes free what no worker sees any more.
    fn reclaim(&mut self) {
        self.bin.empty();
        self.references.empty();
        if self.arena.waiting() > PATIENCE {
            self.arena.reclaim(|block| self.references.forget(block));
        }
        for used in self.queue.drain().collect::<Vec<_>>() {
            match used {
                Used::State(_, 0) => {}
                Used::State(first, lines) => self.states.free.entry(lines).or_default().push(first),
                Used::Sparse(slot) => self.free_sparse.push(slot),
                Used::Station(station) => {
                    // A worker may have learnt an address there after it was left.
                    for bridge in self.tables.bridges.iter().flatten() {
                        bridge.leave(station);
                    }
                    self.free_stations.push(station);
                }
            }
        }
    }
}

/// The key of an address that no pool has, with its kind.
fn sparse_key(address: IpAddr) -> (u8, u128) {
    match address {
        IpAddr::V4(address) => (4, u128::from(address.to_bits())),
        IpAddr::V6(address) => (6, prefix64(address)),
    }
}

impl Tables {
    /// The slot of an address that is in a pool.
    fn pool_place(&self, address: IpAddr) -> Option<Found<'_>> {
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
