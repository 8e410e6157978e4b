//! Commits: all changes of a list, or none.
//!
//! First everything is taken that the changes need: lines, hops, rows of addresses. Lines get their keys, but nothing holds for them,
//! so programs see no difference. An error gives it all back. Then the slots are written, which cannot fail, and the new epoch is
//! stored, and lines get what holds now. At last, what was replaced is given back, to be used again a grace period later.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Release;

use super::entry::{Action, Change, Entry, Forward, Inner, Inside, Key, Tunnel};
use super::hops::Hop;
use super::lines::{NoLine, Slot, State, Was};
use super::records::{self, ADDRESS_WORDS, INSIDE_BIT, INSIDE_KEY, INSIDE_SETS};
use super::{FRAMES, Steer, SteerError, TUNNELS, Table};

/// The generation of lines whose entries this commit removes: it is not over before the commit is.
const PLANNED: u32 = u32::MAX;

/// What is written in the second step.
enum Write {
    /// What holds for a line.
    Slot(u32, Slot),
    /// Which sets of inner fields are looked up for a tunnel's line.
    Sets(u32),
}

/// What is undone after an error, the last one first.
enum Undo {
    Hop(u32),
    Address(u32),
    NewLine(u32),
    State(u32, Was),
    InsideAdded([u8; INSIDE_KEY], u32),
    Sets(u32, usize, i32),
    AnchorEntries(IpAddr, i32),
}

/// A commit in the making.
#[derive(Default)]
struct Plan {
    writes: Vec<Write>,
    undo: Vec<Undo>,
    /// Entries for inner fields that go: their keys.
    inside_removed: Vec<([u8; INSIDE_KEY], u32)>,
}

impl Steer {
    /// Makes all changes hold at once, in their order.
    ///
    /// # Errors
    /// A change is not possible, or there is no room: nothing has changed.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), SteerError> {
        self.clean();
        let mut plan = Plan { writes: Vec::with_capacity(changes.len()), ..Plan::default() };
        for change in changes {
            let planned = match change {
                Change::Set(key, entry) => self.plan_set(key, entry, &mut plan),
                Change::Remove(key) => self.plan_remove(key, &mut plan),
            };
            if let Err(error) = planned {
                self.undo(plan);
                return Err(error);
            }
        }
        self.publish(plan);
        Ok(())
    }

    fn plan_set(&mut self, key: &Key, entry: &Entry, plan: &mut Plan) -> Result<(), SteerError> {
        check(key, entry)?;
        let line = match key {
            Key::Tunnel(tunnel) => self.take_tunnel(tunnel, plan)?,
            Key::Inside(tunnel, inside) => self.take_inside(tunnel, inside, plan)?,
            Key::Frame { source, destination } => {
                let key = records::frame_key(*destination, *source);
                self.take_hashed(FRAMES, Table::Frames, key, plan)?
            }
        };
        let slot = self.plan_slot(entry, plan)?;
        let was = self.lines.set_state(line, State::Live);
        plan.undo.push(Undo::State(line, was));
        if let (Key::Tunnel(tunnel), true) = (key, was.state != State::Live) {
            self.count_entry(tunnel.destination, 1, plan);
        }
        plan.writes.push(Write::Slot(line, slot));
        Ok(())
    }

    fn plan_remove(&mut self, key: &Key, plan: &mut Plan) -> Result<(), SteerError> {
        let Some(line) = self.find(key).filter(|line| self.lines.state(*line) == State::Live) else {
            return Ok(());
        };
        match key {
            Key::Tunnel(tunnel) => {
                if self.inside_sets.contains_key(&line) {
                    return Err(SteerError::NeedsTunnel(*tunnel));
                }
                self.count_entry(tunnel.destination, -1, plan);
            }
            Key::Inside(tunnel, inside) => {
                let base = self.find(&Key::Tunnel(*tunnel)).ok_or(SteerError::NeedsTunnel(*tunnel))?;
                if let Some(key) = inside.key(base) {
                    plan.inside_removed.push((key, line));
                }
                self.count_set(base, inside.set(), -1, plan);
                plan.writes.push(Write::Sets(base));
            }
            Key::Frame { .. } => {}
        }
        let was = self.lines.set_state(line, State::Removed(PLANNED));
        plan.undo.push(Undo::State(line, was));
        plan.writes.push(Write::Slot(line, Slot::default()));
        Ok(())
    }

    /// The line of a tunnel; a new one is taken.
    fn take_tunnel(&mut self, tunnel: &Tunnel, plan: &mut Plan) -> Result<u32, SteerError> {
        let anchor = *self.anchors.get(tunnel.destination).ok_or(SteerError::NoAnchor(tunnel.destination))?;
        let key = [tunnel.teid, anchor.number.into(), 0];
        let Some(line) = anchor.own_line(tunnel.teid) else {
            return self.take_hashed(TUNNELS, Table::Foreign, key, plan);
        };
        if self.lines.key(line) != key {
            self.with_grace(Table::Own, |steer| match steer.lines.state(line) {
                State::Removed(generation) if !steer.grace.is_over(generation) => Err(NoLine::Later),
                _ => {
                    steer.lines.forget(line);
                    steer.lines.give(line, key);
                    Ok(())
                }
            })?;
            plan.undo.push(Undo::NewLine(line));
        }
        Ok(line)
    }

    fn take_hashed(
        &mut self,
        region: usize,
        table: Table,
        key: [u32; 3],
        plan: &mut Plan,
    ) -> Result<u32, SteerError> {
        if let Some(line) = self.lines.find(region, key) {
            return Ok(line);
        }
        let line = self.with_grace(table, |steer| steer.lines.find_or_take(region, key, steer.grace))?;
        plan.undo.push(Undo::NewLine(line));
        Ok(line)
    }

    /// The line of an entry for inner fields.
    fn take_inside(&mut self, tunnel: &Tunnel, inside: &Inside, plan: &mut Plan) -> Result<u32, SteerError> {
        let base = self
            .find(&Key::Tunnel(*tunnel))
            .filter(|line| self.lines.state(*line) == State::Live)
            .ok_or(SteerError::NeedsTunnel(*tunnel))?;
        let key =
            inside.key(base).ok_or(SteerError::Contradiction("inner addresses of different IP versions"))?;
        let gone = plan.inside_removed.iter().position(|(gone, _)| *gone == key);
        if let Some(line) = self.inside_lines.get(&key).copied() {
            if let Some(gone) = gone {
                // It comes back in the same commit.
                plan.inside_removed.swap_remove(gone);
                self.count_set(base, inside.set(), 1, plan);
                plan.writes.push(Write::Sets(base));
            }
            return Ok(line);
        }
        let line = self.with_grace(Table::Inside, |steer| {
            let later = if steer.inside_rows.will_have() { NoLine::Later } else { NoLine::Full };
            steer.inside_rows.take(steer.grace).ok_or(later)
        })?;
        self.lines.forget(line);
        self.lines.give(line, [base, records::KEY_INSIDE, 0]);
        plan.undo.push(Undo::InsideAdded(key, line));
        self.inside_lines.insert(key, line);
        self.inside.set(&key, line)?;
        self.count_set(base, inside.set(), 1, plan);
        plan.writes.push(Write::Sets(base));
        Ok(line)
    }

    fn plan_slot(&mut self, entry: &Entry, plan: &mut Plan) -> Result<Slot, SteerError> {
        let mut hop = Hop { only: entry.only, ..Hop::default() };
        let mut slot = Slot::default();
        match &entry.action {
            Action::Host => slot.flags = records::VERDICT_HOST,
            Action::Drop => slot.flags = records::VERDICT_DROP,
            Action::Forward(forward) => {
                slot.flags = records::VERDICT_FORWARD;
                self.plan_forward(forward, &mut hop, &mut slot, plan)?;
            }
        }
        slot.hop = self.with_grace(Table::Hops, |steer| steer.hops.take(&hop, steer.grace))?;
        plan.undo.push(Undo::Hop(slot.hop));
        Ok(slot)
    }

    fn plan_forward(
        &mut self,
        forward: &Forward,
        hop: &mut Hop,
        slot: &mut Slot,
        plan: &mut Plan,
    ) -> Result<(), SteerError> {
        let port = self.interfaces.iter().position(|known| *known == forward.interface);
        hop.port = port.ok_or(SteerError::NoPort(forward.interface))? as u32;
        hop.interface = forward.interface;
        (hop.eth_destination, hop.eth_source) = (forward.eth_destination, forward.eth_source);
        (hop.destination, hop.source) = (forward.destination, forward.source);
        if let Some(teid) = forward.teid {
            slot.flags |= records::SET_TEID;
            slot.teid = teid;
        }
        if forward.end_markers {
            slot.flags |= records::END_MARKERS;
        }
        let Some(inner) = forward.inner else { return Ok(()) };
        let (flag, address) = match inner {
            Inner::Source(address) => (records::SET_INNER_SOURCE, address),
            Inner::Destination(address) => (records::SET_INNER_DESTINATION, address),
        };
        slot.flags |= flag;
        slot.inner = match address {
            IpAddr::V4(address) => u32::from_le_bytes(address.octets()),
            IpAddr::V6(_) => {
                slot.flags |= records::INNER_IPV6;
                let row = self.with_grace(Table::Ipv6Addresses, |steer| {
                    let later = if steer.address_rows.will_have() { NoLine::Later } else { NoLine::Full };
                    steer.address_rows.take(steer.grace).ok_or(later)
                })?;
                plan.undo.push(Undo::Address(row));
                let words = &self.addresses.words()[row as usize * ADDRESS_WORDS..];
                for (word, part) in words.iter().zip(records::address_words(address)) {
                    word.store(part, Release);
                }
                row
            }
        };
        Ok(())
    }

    fn count_entry(&mut self, destination: IpAddr, change: i32, plan: &mut Plan) {
        if let Some(anchor) = self.anchors.get_mut(destination) {
            anchor.entries = anchor.entries.wrapping_add_signed(change);
            plan.undo.push(Undo::AnchorEntries(destination, -change));
        }
    }

    fn count_set(&mut self, line: u32, set: usize, change: i32, plan: &mut Plan) {
        self.change_sets(line, set, change);
        plan.undo.push(Undo::Sets(line, set, -change));
    }

    fn change_sets(&mut self, line: u32, set: usize, change: i32) {
        let sets = self.inside_sets.entry(line).or_default();
        sets[set] = sets[set].wrapping_add_signed(change);
        if *sets == [0; INSIDE_SETS] {
            self.inside_sets.remove(&line);
        }
    }

    /// Gives back what a plan has taken.
    fn undo(&mut self, plan: Plan) {
        for undo in plan.undo.into_iter().rev() {
            match undo {
                Undo::Hop(hop) => self.hops.give_back(hop, self.grace),
                Undo::Address(row) => self.address_rows.untake(row),
                // Programs may have found the key, and would take what holds for another one.
                Undo::NewLine(line) => self.remove_later(line),
                Undo::State(line, was) => {
                    self.lines.restore(line, was);
                }
                Undo::InsideAdded(key, line) => {
                    self.inside_lines.remove(&key);
                    // Nothing holds for its line, so an entry that stays in the map does nothing.
                    if let Err(error) = self.inside.remove(&key) {
                        tracing::error!(%error, "an entry for inner fields stays in its map");
                    }
                    self.inside_rows.give_back(line, self.grace);
                }
                Undo::Sets(line, set, change) => self.change_sets(line, set, change),
                Undo::AnchorEntries(destination, change) => {
                    if let Some(anchor) = self.anchors.get_mut(destination) {
                        anchor.entries = anchor.entries.wrapping_add_signed(change);
                    }
                }
            }
        }
    }

    /// Writes the slots, and makes them hold.
    fn publish(&mut self, plan: Plan) {
        let epoch = self.epoch + 1;
        let mut replaced = Vec::with_capacity(plan.writes.len());
        for write in &plan.writes {
            match *write {
                Write::Slot(line, mut slot) => {
                    slot.flags |= self.sets_of(line);
                    replaced.push(self.lines.write(line, slot, epoch));
                }
                Write::Sets(line) => {
                    let mut slot = self.lines.slot(line);
                    // A tunnel's line that was removed in the same commit stays so.
                    if slot != Slot::default() {
                        slot.flags = slot.flags & ((1 << INSIDE_BIT) - 1) | self.sets_of(line);
                        // Its hop and address stay in use: nothing is given back.
                        self.lines.write(line, slot, epoch);
                    }
                }
            }
        }
        self.epoch = epoch;
        self.publish_epoch();
        for write in &plan.writes {
            let (Write::Slot(line, _) | Write::Sets(line)) = *write;
            self.lines.settle(line);
        }
        for slot in replaced {
            self.give_back(slot);
        }
        for (key, line) in plan.inside_removed {
            self.inside_lines.remove(&key);
            if let Err(error) = self.inside.remove(&key) {
                tracing::error!(%error, "an entry for inner fields stays in its map");
            }
            self.inside_rows.give_back(line, self.grace);
        }
        for write in plan.writes {
            if let Write::Slot(line, _) = write
                && self.lines.state(line) == State::Removed(PLANNED)
            {
                self.remove_later(line);
            }
        }
    }

    /// Takes a line's key when no program uses it any more.
    fn remove_later(&mut self, line: u32) {
        self.lines.set_state(line, State::Removed(self.grace.now));
        if line < self.inside_first() {
            self.removed.push_back((self.grace.now, line));
        }
    }

    /// What a slot had taken, which programs may still read.
    fn give_back(&mut self, slot: Slot) {
        if slot == Slot::default() {
            return;
        }
        self.hops.give_back(slot.hop, self.grace);
        if slot.flags & records::INNER_IPV6 != 0 {
            self.address_rows.give_back(slot.inner, self.grace);
        }
    }

    /// The flags of a line for the sets of inner fields that are looked up.
    fn sets_of(&self, line: u32) -> u32 {
        let Some(sets) = self.inside_sets.get(&line) else { return 0 };
        sets.iter().enumerate().map(|(set, count)| u32::from(*count > 0) << (set as u32 + INSIDE_BIT)).sum()
    }

    /// The first line of entries for inner fields.
    fn inside_first(&self) -> u32 {
        self.lines.count() - self.capacity.inside
    }

    /// The epoch that holds, or will when a pause ends: the number of commits, and one.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// Whether an entry can be.
fn check(key: &Key, entry: &Entry) -> Result<(), SteerError> {
    let contradiction = |why| Err(SteerError::Contradiction(why));
    if let Key::Frame { destination, .. } = key
        && *destination == [0; 6]
    {
        return contradiction("no frame goes to the link-layer address 0");
    }
    let Action::Forward(forward) = &entry.action else { return Ok(()) };
    if forward.interface == 0 {
        return contradiction("there is no interface 0");
    }
    let rewrites = forward.destination.is_some()
        || forward.source.is_some()
        || forward.teid.is_some()
        || forward.inner.is_some();
    if matches!(key, Key::Frame { .. }) && rewrites {
        return contradiction("an entry for link-layer addresses changes no tunnel");
    }
    match (forward.destination, forward.source) {
        (Some(destination), Some(source)) if destination.is_ipv6() != source.is_ipv6() => {
            contradiction("outer addresses of different IP versions")
        }
        _ => Ok(()),
    }
}
