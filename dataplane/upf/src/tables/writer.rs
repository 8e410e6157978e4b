//! The writer, which alone changes the tables: it lays sessions out as blocks, publishes and withdraws them.
//!
//! A change is first prepared where no worker sees it ([`Writer::modify`]: `prepare`); every step that can fail
//! is done before the first slot is stored (`install`). Replaced memory is reused when every worker has
//! finished the batches that may use it (`reclaim`).

mod further;
pub mod layout;
mod owners;
mod stations;
mod teids;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use classifier::Rule;
use foldhash::{HashMap, HashSet};

use super::{Command, Receiver, SPARSE, Tables, prefix64};
use crate::bridge;
use crate::config::Config;
use crate::plan::{Kind, Place, Plan, PlanError};
use crate::references::References;
use crate::routes::Network;
use crate::session::{self, Assembly, CellUse, Endpoint, Session, State, TableKey};
use crate::state::{Cells, PER_LINE};
pub(crate) use owners::{Groups, Owners};
use rcu::{Bin, Block, Lines, Queue, Region};
use teids::Teids;

/// Most lines of a session's state.
const STATE_LINES: u32 = 64;
/// Replaced endpoints that may wait before memory is reclaimed.
const PATIENCE: usize = 64;
/// Unused lists of purposes are searched for only when more lists than this are known.
const KNOWN_USES: usize = 64;

/// A place with its entries and rules.
struct Assembled {
    place: Place,
    keys: Vec<TableKey>,
    groups: Groups,
    entries: Vec<session::Entry>,
    rules: Vec<Rule>,
}

/// Allocates lines of state in each region.
#[derive(Default)]
struct StateSpace([RegionSpace; Region::COUNT]);

/// The lines of a region.
#[derive(Default)]
struct RegionSpace {
    /// Place behind the lines that have been used.
    next: u32,
    /// Numbers of the first lines of runs that are free again, by length.
    free: HashMap<u32, Vec<u32>>,
}

impl StateSpace {
    /// The first of `count` lines of a region, all of which are zero.
    fn take(&mut self, lines: &Lines, region: Region, count: u32) -> Option<u32> {
        if count > STATE_LINES {
            return None;
        }
        let space = &mut self.0[region.index()];
        if let Some(first) = space.free.get_mut(&count).and_then(Vec::pop) {
            // The counts of the previous session must be cleared, even in cells that the new session only uses
            // later.
            let cells = Cells::new(lines, first);
            (0..=(count * PER_LINE as u32 - 1) as u8).for_each(|cell| cells.set(cell, [0; 2]));
            return Some(first);
        }
        let chunk = Lines::CHUNK as u32;
        let mut place = space.next;
        if place % chunk + count > chunk {
            place = place.next_multiple_of(chunk);
        }
        let first = (place < Region::LINES).then(|| region.line(place))?;
        if !lines.grow_shared(first) {
            return None;
        }
        space.next = place + count;
        Some(first)
    }

    /// Takes back lines that nobody uses any more.
    fn give_back(&mut self, first: u32, count: u32) {
        if count > 0 {
            self.0[Region::of(first).index()].free.entry(count).or_default().push(first);
        }
    }
}

/// Memory to be reused once no worker sees it any more.
enum Used {
    State(u32, u32),
    Sparse(u32),
    Station(u32),
}

/// What happens to the buffered packets of a session whose rules change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// They are processed by the new rules.
    Sent,
    /// They are dropped (DROBU, TS 29.244 §8.2.18).
    Dropped,
}

/// TEIDs and keys that one request has taken and published, to be taken back when a defect interrupts it.
#[derive(Default)]
struct Journal {
    /// Whether a request is being handled.
    open: bool,
    teids: Vec<u32>,
    keys: Vec<(TableKey, u64)>,
}

/// The writer of the tables: allocates TEIDs, knows owners, publishes sessions.
pub struct Writer {
    tables: Arc<Tables>,
    arena: rcu::Writer<Endpoint>,
    reader: rcu::Reader,
    bin: Bin,
    queue: Queue<Used>,
    teids: Teids,
    /// The interface of each TEID that a CP function assigned.
    assigned: HashMap<u32, u8>,
    journal: Journal,
    references: References,
    uses: HashSet<Arc<Vec<CellUse>>>,
    uses_limit: usize,
    /// The list that was used last; mostly the next session has the same.
    last_uses: Arc<Vec<CellUse>>,
    states: StateSpace,
    /// Where new state is placed.
    region: Region,
    /// Slots by network instance, kind and key.
    sparse: HashMap<(u8, u8, u128), u32>,
    /// Slots by network instance and route.
    routes: HashMap<(u8, Network), u32>,
    free_sparse: Vec<u32>,
    next_sparse: u32,
    free_stations: Vec<u32>,
    next_station: u32,
    /// The block that is being made; kept for its memory.
    block: Vec<Endpoint>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("teids", &self.teids.len()).finish()
    }
}

/// Blocks of a session that are written but not yet in their slots.
struct Prepared {
    blocks: Vec<(TableKey, Block)>,
    state: State,
}

impl Writer {
    /// The only writer of `tables`. `secret` makes TEIDs unpredictable.
    pub fn new(tables: Arc<Tables>, config: &Config, secret: u64) -> Writer {
        let arena = tables.arena.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        // A second writer gets an arena of its own; workers never see what it publishes.
        let arena = arena.unwrap_or_else(|| rcu::Writer::new(&tables.domain));
        Writer {
            arena,
            reader: tables.domain.reader(),
            bin: Bin::new(&tables.domain),
            queue: Queue::new(&tables.domain),
            teids: Teids::new(config.max_tunnels, config.teid_range, secret),
            assigned: HashMap::default(),
            journal: Journal::default(),
            references: References::new(Arc::clone(&tables), config.classifier),
            uses: HashSet::default(),
            uses_limit: KNOWN_USES,
            last_uses: Arc::default(),
            states: StateSpace::default(),
            region: Region::OWN,
            sparse: HashMap::default(),
            routes: HashMap::default(),
            free_sparse: Vec::new(),
            next_sparse: 0,
            free_stations: Vec::new(),
            next_station: bridge::NETWORK + 1,
            block: Vec::new(),
            tables,
        }
    }

    /// Places the state of new sessions, and of those that need more lines, in a region of the tables' lines
    /// ([`Tables::add_state_region`]). When it is full, they get state in this process's own memory.
    pub fn place_state_in(&mut self, region: Region) {
        self.region = region;
    }

    /// The number of workers that share each interface.
    pub(crate) fn workers(&self) -> u32 {
        self.tables.workers()
    }

    /// Allocates a TEID for an interface.
    pub fn allocate(&mut self, interface: u8) -> Option<u32> {
        let teid = self.teids.allocate(interface, |teid| !self.assigned.contains_key(&teid))?;
        self.remember_teid(teid);
        Some(teid)
    }

    fn is_allocated(&self, teid: u32) -> bool {
        self.teids.contains(teid)
    }

    /// The interface of a TEID in use.
    pub fn interface_of(&self, teid: u32) -> Option<u8> {
        self.teids.interface_of(teid).or_else(|| self.assigned.get(&teid).copied())
    }

    /// The SEID of the session with this TEID.
    pub(crate) fn owner_of_teid(&self, teid: u32) -> Option<u64> {
        self.tables.owner_of_teid(teid)
    }

    /// The number of the network instance of a TEID.
    fn instance_of(&self, teid: u32) -> u8 {
        let interface =
            self.interface_of(teid).and_then(|number| self.tables.interfaces.number(number.into()));
        interface.map_or(0, |interface| interface.instance)
    }

    /// Takes a TEID of an interface that the CP function assigned; `false` when it is in use, on whichever interface.
    pub fn assign(&mut self, teid: u32, interface: u8) -> bool {
        let taken = teid != 0 && !self.is_allocated(teid) && !self.assigned.contains_key(&teid);
        if taken {
            self.assigned.insert(teid, interface);
        }
        if taken {
            self.remember_teid(teid);
        }
        taken
    }

    fn remember_teid(&mut self, teid: u32) {
        if self.journal.open {
            self.journal.teids.push(teid);
        }
    }

    /// Notes that a request begins. TEIDs and keys that it takes are recorded for [`Writer::roll_back`], until
    /// [`Writer::end`].
    pub fn begin(&mut self) {
        self.end();
        self.journal.open = true;
    }

    /// Notes that a request has been handled.
    pub fn end(&mut self) {
        self.journal.open = false;
        self.journal.teids.clear();
        self.journal.keys.clear();
    }

    /// Takes back the changes since [`Writer::begin`] for sessions that do not exist, and TEIDs that no session
    /// has.
    pub fn roll_back(&mut self, exists: impl Fn(u64) -> bool) {
        let Journal { teids, keys, .. } = std::mem::take(&mut self.journal);
        for (key, seid) in keys.iter().filter(|(_, seid)| !exists(*seid)) {
            self.withdraw(key, *seid);
        }
        for teid in teids {
            if self.tables.owner_of_teid(teid).is_none_or(|seid| !exists(seid)) {
                self.release(teid);
            }
        }
    }

    /// Releases a TEID and stops packets from finding its session.
    pub fn release(&mut self, teid: u32) {
        let instance = self.instance_of(teid);
        if self.is_allocated(teid) {
            let (slots, index) = self.tables.instance(instance).place_of_teid(teid);
            self.arena.clear(slots, index);
            self.teids.release(teid);
        } else if self.assigned.remove(&teid).is_some() {
            self.clear_sparse((instance, 0, teid.into()));
        }
    }

    /// Publishes a new session. On an error nothing changes.
    pub fn establish(&mut self, plan: &Plan) -> Result<Session, PlanError> {
        let mut session = Session::new(plan.seid, Arc::clone(&self.tables));
        self.modify(&mut session, plan, Held::Sent)?;
        Ok(session)
    }

    /// Replaces a session's rules by a plan. Counters and meters stay; TEIDs that the plan no longer uses are
    /// released. On an error nothing changes.
    pub fn modify(&mut self, session: &mut Session, plan: &Plan, held: Held) -> Result<(), PlanError> {
        self.reclaim();
        let station = self.station(session, plan)?;
        let prepared = match self.prepare(session, plan, station) {
            Ok(prepared) => prepared,
            Err(error) => {
                // A new station number has not been published.
                self.free_stations.extend(station.filter(|_| session.station.is_none()));
                return Err(error);
            }
        };
        self.install(session, prepared);
        self.join(session, plan, station);
        // After the publication: see `pipeline::held`.
        if session.buffered {
            self.tables.post(match held {
                Held::Sent => Command::Release(session.seid),
                Held::Dropped => Command::Discard(session.seid),
            });
        }
        session.buffered |= plan.buffers();
        Ok(())
    }

    /// Removes a session and releases its TEIDs.
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

    /// Drops a session's buffered packets.
    pub fn discard(&self, seid: u64) {
        self.tables.post(Command::Discard(seid));
    }

    /// The SEID of the session that has a UE address now, in the network instance with this number.
    pub fn owner_of_ue(&self, instance: u8, address: IpAddr) -> Option<u64> {
        let sparse = || {
            let slot = self.sparse.get(&sparse_key(instance, address))?;
            Some((&self.tables.sparse, *slot as usize))
        };
        let place = self.tables.instance(instance).keys.pool_place(address).or_else(sparse);
        let own = place.and_then(|(slots, index)| self.arena.get(slots, index)).map(|block| block[0].seid());
        own.or_else(|| if self.routes.is_empty() { None } else { self.tables.owner_in(instance, address) })
    }

    /// Who receives packets in a tunnel to this address.
    pub fn receiver(&self, address: IpAddr) -> Receiver {
        self.tables.receiver(address)
    }

    /// Octets of all published endpoints.
    pub fn memory_bytes(&self) -> usize {
        self.arena.memory_bytes()
    }

    /// Does everything that can fail.
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
            self.write(plan, places, &mut prepared)?;
            Ok(known)
        });
        self.references.free_unused();
        let known = match result {
            Ok(known) => known,
            Err(error) => {
                self.abandon(prepared, session.state.lines);
                return Err(error);
            }
        };
        self.share_uses(&mut prepared.state);
        // Workers already read these lines, so rates and marks are set after every step that can fail.
        prepared.state.apply(plan, session, known);
        session.forget_urrs(exists);
        Ok(prepared)
    }

    /// Undoes the preparation of a session that has `lines` lines of state.
    fn abandon(&mut self, prepared: Prepared, lines: u32) {
        for (_, block) in prepared.blocks {
            self.references.forget(self.arena.values(&block));
            self.arena.discard(block);
        }
        if prepared.state.lines > lines {
            self.queue.push(Used::State(prepared.state.first, prepared.state.lines));
        }
    }

    /// Lets sessions with the same purposes of cells share one list.
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

    /// Assembles keys, entries and rules of all places, and finds the owners of the cells.
    fn assemble(
        &mut self,
        plan: &Plan,
        state: &mut State,
        station: Option<u32>,
    ) -> Result<Vec<Assembled>, PlanError> {
        let targets = self.references.targets(plan)?;
        let mut assembly = Assembly {
            plan,
            state,
            peers: &mut self.references,
            targets: &targets,
            station,
            first_network: self.tables.interfaces.first_network(),
            meters: Vec::new(),
            urrs: Vec::new(),
        };
        let mut places = Vec::with_capacity(plan.arrivals.len());
        for arrival in &plan.arrivals {
            let (entries, rules) = assembly.entries(arrival.place, &arrival.rules)?;
            let (keys, groups) = (Vec::new(), Groups::at(plan, arrival.place));
            places.push(Assembled { place: arrival.place, keys, groups, entries, rules });
        }
        let (mut owners, workers) = (Owners::of_no_packets(plan), self.tables.workers());
        for Assembled { place, keys, groups, .. } in &mut places {
            *keys = self.keys(plan, *place, station);
            keys.iter().for_each(|key| owners.add(key, *groups, workers));
        }
        state.owners = owners.complete(plan.shares_downlink_rates(), state.owners);
        Ok(places)
    }

    /// The keys by which packets that arrive at a place find the session.
    fn keys(&self, plan: &Plan, place: Place, station: Option<u32>) -> Vec<TableKey> {
        match place {
            Place::Tunnel(teid) => vec![TableKey::Teid(teid)],
            Place::Native if plan.kind == Kind::Ethernet => {
                station.map(TableKey::Station).into_iter().collect()
            }
            Place::Native => further::native_keys(plan, self.native_instance(plan.origin)),
        }
    }

    /// Allocates lines for the state if needed. Returns how many cells keep their contents.
    fn place_state(
        &mut self,
        session: &Session,
        state: &mut State,
        known: usize,
    ) -> Result<usize, PlanError> {
        if state.needed() <= session.state.lines && state.owners.can_use_cells_of(session.state.owners) {
            return Ok(known);
        }
        self.give_state(state)?;
        state.carry_over(&session.state, &self.tables);
        // Gauges start again from the counts so far.
        Ok(0)
    }

    /// Allocates new lines for the cells.
    fn give_state(&mut self, state: &mut State) -> Result<(), PlanError> {
        let needed = state.needed();
        let first = self.states.take(&self.tables.lines, self.region, needed);
        let first = first.or_else(|| self.states.take(&self.tables.lines, Region::OWN, needed));
        state.first = first.ok_or(PlanError::Full("counters"))?;
        state.lines = needed;
        Ok(())
    }

    /// Writes the blocks.
    fn write(
        &mut self,
        plan: &Plan,
        places: Vec<Assembled>,
        prepared: &mut Prepared,
    ) -> Result<(), PlanError> {
        for Assembled { place, keys, groups, entries, rules } in places {
            let (own, route) = self.references.compile(plan, &rules)?;
            let teid = match place {
                Place::Tunnel(teid) => teid,
                Place::Native => 0,
            };
            let state = (prepared.state.first, prepared.state.owners.writers(groups));
            session::assemble(&mut self.block, (plan.seid, teid), state, own, route, &entries);
            for key in keys {
                self.prepare_block(key, prepared)?;
            }
        }
        self.check_room(prepared)
    }

    /// The number of the network instance from which a session gets packets without tunnel.
    fn native_instance(&self, origin: Option<u16>) -> u8 {
        let interfaces = &self.tables.interfaces;
        let interface = interfaces.number(origin.unwrap_or_else(|| interfaces.first_network()));
        interface.map_or(0, |interface| interface.instance)
    }

    /// Writes `self.block` to the arena.
    fn prepare_block(&mut self, key: TableKey, prepared: &mut Prepared) -> Result<(), PlanError> {
        let block = self.arena.block(&self.block).ok_or(PlanError::Full("rules"))?;
        self.references.refer(self.arena.values(&block));
        prepared.blocks.push((key, block));
        Ok(())
    }

    /// Checks that there are slots for new keys without array index.
    fn check_room(&self, prepared: &Prepared) -> Result<(), PlanError> {
        let new = |key: &TableKey| match key {
            TableKey::Teid(teid) => {
                let key = (self.instance_of(*teid), 0, (*teid).into());
                !self.is_allocated(*teid) && !self.sparse.contains_key(&key)
            }
            TableKey::Ue(instance, address) => {
                self.tables.instance(*instance).keys.pool_place(*address).is_none()
                    && !self.sparse.contains_key(&sparse_key(*instance, *address))
            }
            TableKey::Station(_) => false,
            TableKey::Route(instance, address, length) => Network::new(*address, *length)
                .is_ok_and(|network| !self.routes.contains_key(&(*instance, network))),
        };
        let needed = prepared.blocks.iter().filter(|(key, _)| new(key)).count();
        if needed > self.free_sparse.len() + (SPARSE - self.next_sparse as usize) {
            return Err(PlanError::Full("addresses and TEIDs that are not the UPF's own"));
        }
        Ok(())
    }

    /// Puts the blocks into their slots, and withdraws the keys that the session no longer has.
    fn install(&mut self, session: &mut Session, prepared: Prepared) {
        let mut keys = Vec::with_capacity(prepared.blocks.len());
        for (key, block) in prepared.blocks {
            if self.journal.open {
                self.journal.keys.push((key.clone(), session.seid));
            }
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

    fn publish(&mut self, key: &TableKey, block: Block) {
        let tables = Arc::clone(&self.tables);
        let sparse = match key {
            TableKey::Teid(teid) if self.is_allocated(*teid) => {
                let (slots, index) = tables.instance(self.instance_of(*teid)).place_of_teid(*teid);
                return self.arena.install(slots, index, block);
            }
            TableKey::Teid(teid) => (self.instance_of(*teid), 0, u128::from(*teid)),
            TableKey::Ue(instance, address) => {
                if let Some((slots, index)) = tables.instance(*instance).keys.pool_place(*address) {
                    return self.arena.install(slots, index, block);
                }
                sparse_key(*instance, *address)
            }
            TableKey::Route(instance, address, length) => {
                return self.publish_route(*instance, *address, *length, block);
            }
            TableKey::Station(station) => {
                return self.arena.install(&tables.stations, *station as usize, block);
            }
        };
        let known = self.sparse.get(&sparse).copied();
        let Some(slot) = known.or_else(|| self.free_slot()) else { return self.arena.discard(block) };
        self.arena.install(&tables.sparse, slot as usize, block);
        if self.sparse.insert(sparse, slot).is_none() {
            self.set_sparse(sparse, Some(slot));
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

    /// Withdraws a key, if it still is the session's.
    fn withdraw(&mut self, key: &TableKey, seid: u64) {
        let tables = Arc::clone(&self.tables);
        match key {
            TableKey::Teid(teid) => self.release(*teid),
            TableKey::Ue(instance, address) => {
                let key = sparse_key(*instance, *address);
                if let Some((slots, index)) = tables.instance(*instance).keys.pool_place(*address) {
                    if self.arena.get(slots, index).is_some_and(|block| block[0].seid() == seid) {
                        self.arena.clear(slots, index);
                    }
                } else if let Some(slot) = self.sparse.get(&key)
                    && let Some(block) = self.arena.get(&tables.sparse, *slot as usize)
                    && block[0].seid() == seid
                {
                    self.clear_sparse(key);
                }
            }
            TableKey::Route(instance, address, length) => {
                self.withdraw_route(*instance, *address, *length, seid);
            }
            TableKey::Station(station) => self.arena.clear(&tables.stations, *station as usize),
        }
    }

    fn set_sparse(&mut self, (instance, kind, key): (u8, u8, u128), slot: Option<u32>) {
        let guard = self.reader.enter();
        self.tables.instance(instance).keys.sparse_map(kind).set(&guard, &mut self.bin, key, slot);
    }

    fn clear_sparse(&mut self, key: (u8, u8, u128)) {
        let Some(slot) = self.sparse.remove(&key) else { return };
        self.set_sparse(key, None);
        self.arena.clear(&self.tables.sparse, slot as usize);
        self.queue.push(Used::Sparse(slot));
    }

    /// Frees memory that no worker sees any more.
    fn reclaim(&mut self) {
        self.bin.empty();
        self.references.empty();
        if self.arena.waiting() > PATIENCE {
            self.arena.reclaim(|block| self.references.forget(block));
        }
        for used in self.queue.drain().collect::<Vec<_>>() {
            match used {
                Used::State(first, lines) => self.states.give_back(first, lines),
                Used::Sparse(slot) => self.free_sparse.push(slot),
                Used::Station(station) => {
                    // A worker may have learnt an address after the station left.
                    for bridge in self.tables.bridges.iter().flatten() {
                        bridge.leave(station);
                    }
                    self.free_stations.push(station);
                }
            }
        }
    }
}

/// The key of an address that is in no pool, with its network instance and kind.
fn sparse_key(instance: u8, address: IpAddr) -> (u8, u8, u128) {
    match address {
        IpAddr::V4(address) => (instance, 4, u128::from(address.to_bits())),
        IpAddr::V6(address) => (instance, 6, prefix64(address)),
    }
}
