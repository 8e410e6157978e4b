//! The one that changes the tables: it lays sessions out as blocks, publishes these and takes them back.
//!
//! A change is worked out and written where no worker looks ([`Writer::modify`]: `prepare`); what can fail has failed or not
//! before the first slot is stored (`install`). What is replaced waits until every worker has gone on, and is used again
//! (`reclaim`).

mod further;
pub mod layout;
mod stations;
mod teids;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use classifier::Rule;
use foldhash::{HashMap, HashSet};

use super::{Command, SPARSE, Tables, prefix64};
use crate::bridge;
use crate::config::Config;
use crate::plan::{Kind, Place, Plan, PlanError};
use crate::references::References;
use crate::routes::Network;
use crate::session::{self, Assembly, Endpoint, Key64, Session, State, Use};
use crate::state::{Cells, PER_LINE};
use rcu::{Bin, Block, Lines, Queue, Ticket};
use teids::Teids;

/// Most lines of a session's state.
const STATE_LINES: u32 = 64;
/// Endpoints that may wait for workers before memory is looked for.
const PATIENCE: usize = 64;
/// Lists of uses that are known at least before those that nobody has any more are looked for.
const KNOWN_USES: usize = 64;

/// A place with its entries and rules, assembled.
type Assembled = (Place, Vec<session::Entry>, Vec<Rule>);

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

/// What becomes of packets that are buffered for a session whose rules change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// They are treated as the new rules say.
    Sent,
    /// They are dropped (DROBU, TS 29.244 §8.2.18).
    Dropped,
}

/// What one request has taken and published, to be taken back when a defect of ours ends it.
#[derive(Default)]
struct Journal {
    /// A request is being handled.
    open: bool,
    teids: Vec<u32>,
    keys: Vec<(Key64, u64)>,
}

/// The writer's side of the tables: allocation of TEIDs, ownership, publication.
pub struct Writer {
    tables: Arc<Tables>,
    arena: rcu::Writer<Endpoint>,
    reader: rcu::Reader,
    bin: Bin,
    queue: Queue<Used>,
    teids: Teids,
    /// TEIDs that CP functions assigned.
    assigned: HashSet<u32>,
    journal: Journal,
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
        f.debug_struct("Writer").field("teids", &self.teids.len()).finish()
    }
}

/// Blocks of a session that are written and not in their slots yet.
struct Prepared {
    blocks: Vec<(Key64, Block)>,
    state: State,
}

impl Writer {
    /// The only writer of `tables`. TEIDs are drawn under `secret`.
    pub fn new(tables: Arc<Tables>, config: &Config, secret: u64) -> Writer {
        let arena = tables.arena.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        // A second writer would have slots of no use: what it publishes, nobody finds.
        let arena = arena.unwrap_or_else(|| rcu::Writer::new(&tables.domain));
        Writer {
            arena,
            reader: tables.domain.reader(),
            bin: Bin::new(&tables.domain),
            queue: Queue::new(&tables.domain),
            teids: Teids::new(config.max_tunnels, secret),
            assigned: HashSet::default(),
            journal: Journal::default(),
            references: References::new(Arc::clone(&tables), config.classifier),
            uses: HashSet::default(),
            uses_limit: KNOWN_USES,
            last_uses: Arc::default(),
            states: StateSpace::default(),
            sparse: HashMap::default(),
            routes: HashMap::default(),
            free_sparse: Vec::new(),
            next_sparse: 0,
            free_stations: Vec::new(),
            next_station: bridge::NETWORK + 1,
            tables,
        }
    }

    /// A TEID that is not in use.
    pub fn allocate(&mut self) -> Option<u32> {
        let teid = self.teids.allocate(|teid| !self.assigned.contains(&teid))?;
        self.remember_teid(teid);
        Some(teid)
    }

    fn is_allocated(&self, teid: u32) -> bool {
        self.teids.contains(teid)
    }

    /// Takes a TEID that the CP function chose; `false` when it is in use.
    pub fn assign(&mut self, teid: u32) -> bool {
        let taken = teid != 0 && !self.is_allocated(teid) && self.assigned.insert(teid);
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

    /// A request begins: what it takes and publishes is remembered for [`Writer::roll_back`], until [`Writer::end`].
    pub fn begin(&mut self) {
        self.end();
        self.journal.open = true;
    }

    /// A request has been handled.
    pub fn end(&mut self) {
        self.journal.open = false;
        self.journal.teids.clear();
        self.journal.keys.clear();
    }

    /// Takes back what was done since [`Writer::begin`] for sessions that do not exist, and TEIDs that no session has.
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

    /// Gives a TEID back and stops packets from finding it.
    pub fn release(&mut self, teid: u32) {
        if self.is_allocated(teid) {
            let (slots, index) = self.tables.place_of_teid(teid);
            self.arena.clear(slots, index);
            self.teids.release(teid);
        } else if self.assigned.remove(&teid) {
            self.clear_sparse(0, teid.into());
        }
    }

    /// Publishes a session that is new. On an error nothing changes.
    pub fn establish(&mut self, plan: &Plan) -> Result<Session, PlanError> {
        let mut session = Session::new(plan.seid, Arc::clone(&self.tables));
        self.modify(&mut session, plan, Held::Sent)?;
        Ok(session)
    }

    /// Replaces a session's rules by those of a plan: counters and meters stay, and TEIDs that the plan does not use any
    /// more are given back. On an error nothing changes.
    pub fn modify(&mut self, session: &mut Session, plan: &Plan, held: Held) -> Result<(), PlanError> {
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
            self.tables.post(match held {
                Held::Sent => Command::Release(session.seid),
                Held::Dropped => Command::Discard(session.seid),
            });
        }
        session.buffered |= plan.buffers();
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

    /// Whether what a tunnel to this address sends comes back to this machine.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.tables.is_local(address)
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
                self.abandon(prepared, session.state.lines);
                return Err(error);
            }
        };
        self.share_uses(&mut prepared.state);
        // Rates and marks stand in lines that workers read already: behind all that can fail.
        prepared.state.apply(plan, session, known);
        session.forget_urrs(exists);
        Ok(prepared)
    }

    /// Takes back what was prepared for a session with so many lines of state.
    fn abandon(&mut self, prepared: Prepared, lines: u32) {
        for (_, block) in prepared.blocks {
            self.references.forget(self.arena.values(&block));
            self.arena.discard(block);
        }
        if prepared.state.lines > lines {
            self.queue.push(Used::State(prepared.state.first, prepared.state.lines));
        }
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
        let mut assembly = Assembly {
            plan,
            state,
            peers: &mut self.references,
            targets: &targets,
            station,
            shared_downlink: plan.shares_downlink(),
        };
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
        if state.needed() <= session.state.lines {
            return Ok(known);
        }
        self.give_state(state)?;
        state.carry_over(&session.state, &self.tables);
        // Gauges begin anew from what has been counted.
        Ok(0)
    }

    /// Gives the cells new lines.
    fn give_state(&mut self, state: &mut State) -> Result<(), PlanError> {
        let needed = state.needed();
        state.first = self.states.take(&self.tables.lines, needed).ok_or(PlanError::Full("counters"))?;
        state.lines = needed;
        Ok(())
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
            let (own, route) = self.references.compile(plan, &rules)?;
            let (teid, keys) = match place {
                Place::Tunnel(teid) => (teid, vec![Key64::Teid(teid)]),
                Place::Native if plan.kind == Kind::Ethernet => {
                    (0, station.map(Key64::Station).into_iter().collect())
                }
                Place::Native => {
                    (session::came_from(plan.origin.map(usize::from)), further::native_keys(plan))
                }
            };
            let block = session::assemble(plan.seid, teid, prepared.state.first, own, route, &entries);
            for key in keys {
                self.prepare_block(key, &block, prepared)?;
            }
        }
        self.check_room(prepared)
    }

    fn prepare_block(
        &mut self,
        key: Key64,
        block: &[Endpoint],
        prepared: &mut Prepared,
    ) -> Result<(), PlanError> {
        let block = self.arena.block(block).ok_or(PlanError::Full("rules"))?;
        self.references.refer(self.arena.values(&block));
        prepared.blocks.push((key, block));
        Ok(())
    }

    /// Whether there are slots for keys that are new and index no array.
    fn check_room(&self, prepared: &Prepared) -> Result<(), PlanError> {
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
