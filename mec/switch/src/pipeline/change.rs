//! Changes of tables and groups: flow-mods and group-mods (OpenFlow 1.3.5 §6.4, §6.5), alone or as a bundle.
//!
//! Every step is noted with its reverse, so that the first message that fails takes back all of those before it.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use openflow::{
    Action, BufferId, Code, Field, FlowMod, FlowModCommand, FlowModFlags, FlowRemovedReason, GroupId,
    GroupMod, GroupModCommand, GroupType, Match, PacketOut, PortNo, TableId,
};

pub use openflow::Change;

use super::Pipeline;
use super::field::{self, Pattern};
use super::flow::{Counters, Flow, Group, used_by};
use super::trace::MAX_WORK;
use crate::host::LONGEST;

/// A change with what can be found out of it before it is made.
#[derive(Debug)]
pub struct Ready {
    change: Change,
    /// Of a flow-mod.
    pattern: Result<Pattern, Code>,
}

impl Ready {
    /// Of a change.
    pub fn new(change: Change) -> Ready {
        let pattern = match &change {
            Change::FlowMod(flow_mod) => Pattern::new(&flow_mod.matching),
            Change::GroupMod(_) | Change::PacketOut(_) => Ok(Pattern::default()),
        };
        Ready { change, pattern }
    }

    /// The change itself. When it was made, an entry has its match and its instructions.
    pub fn change(&self) -> &Change {
        &self.change
    }
}

/// An entry that is gone.
#[derive(Debug, Clone)]
pub struct Removed {
    /// The entry.
    pub flow: Arc<Flow>,
    /// Why.
    pub reason: FlowRemovedReason,
}

/// What a commit has done.
#[derive(Debug, Default)]
pub struct Committed {
    /// Entries that are gone for good.
    pub removed: Vec<Removed>,
    /// All entries that were added or taken out, also for others in their place.
    pub touched: Vec<Arc<Flow>>,
}

/// A message of a bundle that failed; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("message {at}: {code}")]
pub struct Failed {
    /// Which one.
    pub at: usize,
    /// Why.
    pub code: Code,
}

/// A step that was made, to be taken back.
enum Done {
    FlowAdded(Arc<Flow>),
    FlowRemoved(Arc<Flow>),
    GroupAdded(Arc<Group>),
    GroupRemoved(Arc<Group>),
}

/// What a commit has done so far.
#[derive(Default)]
struct Progress {
    done: Vec<Done>,
    removed: Vec<Removed>,
}

/// Actions that change nothing but where a packet goes have no pre-requisites; of the others, those of a group cannot be
/// known before a packet comes.
enum Packets<'m> {
    Of(&'m Match),
    Any,
}

impl Pipeline {
    /// Makes all changes, in their order, or none.
    ///
    /// # Errors
    /// The first one that fails.
    pub fn commit(&mut self, changes: &[Change], now_ns: u64) -> Result<Committed, Failed> {
        self.commit_ready(&mut changes.iter().cloned().map(Ready::new).collect::<Vec<_>>(), now_ns)
    }

    /// The same of changes that are ready, once.
    ///
    /// # Errors
    /// As [`Pipeline::commit`].
    pub fn commit_ready(&mut self, changes: &mut [Ready], now_ns: u64) -> Result<Committed, Failed> {
        let mut progress = Progress { done: Vec::with_capacity(changes.len()), ..Progress::default() };
        for (at, Ready { change, pattern }) in changes.iter_mut().enumerate() {
            let result = match change {
                Change::FlowMod(flow_mod) => {
                    let pattern = std::mem::replace(pattern, Ok(Pattern::default()));
                    self.flow_mod(flow_mod, pattern, now_ns, &mut progress)
                }
                Change::GroupMod(group_mod) => self.group_mod(group_mod, now_ns, &mut progress),
                // It is sent when all has been done.
                Change::PacketOut(packet_out) => self.check_packet_out(packet_out),
            };
            if let Err(code) = result {
                self.take_back(progress);
                return Err(Failed { at, code });
            }
        }
        if !progress.done.is_empty() {
            self.version += 1;
        }
        let flows = progress.done.into_iter().filter_map(|done| match done {
            Done::FlowAdded(flow) | Done::FlowRemoved(flow) => Some(flow),
            Done::GroupAdded(_) | Done::GroupRemoved(_) => None,
        });
        Ok(Committed { removed: progress.removed, touched: flows.collect() })
    }

    fn take_back(&mut self, progress: Progress) {
        for done in progress.done.into_iter().rev() {
            match done {
                Done::FlowAdded(flow) => self.take_out(&flow),
                Done::FlowRemoved(flow) => self.put_in(flow),
                Done::GroupAdded(group) => self.take_out_group(&group),
                Done::GroupRemoved(group) => self.put_in_group(group),
            }
        }
    }

    fn flow_mod(
        &mut self,
        request: &mut FlowMod,
        pattern: Result<Pattern, Code>,
        now_ns: u64,
        progress: &mut Progress,
    ) -> Result<(), Code> {
        let is_delete = matches!(request.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
        let tables = self.tables.len() as u8;
        if request.table_id.0 >= tables && !(is_delete && request.table_id == TableId::ALL) {
            return Err(Code::OFPFMFC_BAD_TABLE_ID);
        }
        let pattern = pattern?;
        if is_delete {
            let asked = (0..tables).map(TableId).filter(|id| [*id, TableId::ALL].contains(&request.table_id));
            asked.for_each(|table| self.delete(request, table, &pattern, progress));
            return Ok(());
        }
        if request.buffer_id != BufferId::NO_BUFFER {
            return Err(Code::OFPBRC_BUFFER_UNKNOWN);
        }
        self.check_instructions(request)?;
        match request.command {
            FlowModCommand::Add => self.add(request, pattern, now_ns, progress),
            _ => self.modify(request, &pattern, progress),
        }
    }

    /// Takes match and instructions out of the request.
    fn add(
        &mut self,
        request: &mut FlowMod,
        pattern: Pattern,
        now_ns: u64,
        progress: &mut Progress,
    ) -> Result<(), Code> {
        let limits = self.limits;
        let table = &self.tables[usize::from(request.table_id.0)];
        if request.flags.contains(FlowModFlags::CHECK_OVERLAP) && table.overlaps(&pattern, request.priority) {
            return Err(Code::OFPFMFC_OVERLAP);
        }
        let old = table.exactly(&pattern, request.priority).cloned();
        let is_full =
            table.len() >= limits.entries || table.masks() >= limits.masks && !table.has_mask(&pattern.mask);
        if old.is_none() && is_full {
            return Err(Code::OFPFMFC_TABLE_FULL);
        }
        let counters = match &old {
            Some(old) if !request.flags.contains(FlowModFlags::RESET_COUNTS) => Arc::clone(&old.counters),
            _ => Arc::default(),
        };
        // Who reads the entries in parts meets it once, the old one or the new one.
        let number = old.as_ref().map_or_else(|| self.next_number(), |old| old.number);
        if let Some(old) = old {
            self.remove(old, progress);
        }
        let flow = Flow {
            table: request.table_id,
            priority: request.priority,
            matching: std::mem::take(&mut request.matching),
            pattern,
            cookie: request.cookie,
            idle_timeout_s: request.idle_timeout_s,
            hard_timeout_s: request.hard_timeout_s,
            flags: request.flags,
            instructions: std::mem::take(&mut request.instructions),
            since_ns: now_ns,
            counters,
            number,
            noted_ns: AtomicU64::new(0),
        };
        self.install(flow, progress);
        Ok(())
    }

    /// Gives entries other instructions; all else stays, also the duration (§6.4).
    fn modify(&mut self, request: &FlowMod, pattern: &Pattern, progress: &mut Progress) -> Result<(), Code> {
        let is_strict = request.command == FlowModCommand::ModifyStrict;
        for old in self.selected(request, request.table_id, pattern, is_strict) {
            // The new actions must suit the packets of each entry, which may be fewer than the request's.
            self.check_actions_of(request, &Packets::Of(&old.matching))?;
            let counters = match request.flags.contains(FlowModFlags::RESET_COUNTS) {
                true => Arc::new(old.counters.reset()),
                false => Arc::clone(&old.counters),
            };
            let flow = Flow {
                table: old.table,
                priority: old.priority,
                matching: old.matching.clone(),
                pattern: old.pattern.clone(),
                cookie: old.cookie,
                idle_timeout_s: old.idle_timeout_s,
                hard_timeout_s: old.hard_timeout_s,
                flags: old.flags,
                instructions: request.instructions.clone(),
                since_ns: old.since_ns,
                counters,
                number: old.number,
                noted_ns: AtomicU64::new(0),
            };
            self.remove(old, progress);
            self.install(flow, progress);
        }
        Ok(())
    }

    fn delete(&mut self, request: &FlowMod, table: TableId, pattern: &Pattern, progress: &mut Progress) {
        let is_strict = request.command == FlowModCommand::DeleteStrict;
        for flow in self.selected(request, table, pattern, is_strict) {
            if flow.has_output(request.out_port, request.out_group) {
                self.remove(Arc::clone(&flow), progress);
                progress.removed.push(Removed { flow, reason: FlowRemovedReason::Delete });
            }
        }
    }

    /// The entries that a request to modify or delete is about.
    fn selected(
        &self,
        request: &FlowMod,
        table: TableId,
        pattern: &Pattern,
        is_strict: bool,
    ) -> Vec<Arc<Flow>> {
        let table = &self.tables[usize::from(table.0)];
        let has_cookie = |flow: &&Arc<Flow>| (flow.cookie ^ request.cookie) & request.cookie_mask == 0;
        if is_strict {
            return table
                .exactly(pattern, request.priority)
                .filter(has_cookie)
                .cloned()
                .into_iter()
                .collect();
        }
        table.within(pattern).filter(has_cookie).cloned().collect()
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn install(&mut self, flow: Flow, progress: &mut Progress) {
        let flow = Arc::new(flow);
        self.put_in(Arc::clone(&flow));
        progress.done.push(Done::FlowAdded(flow));
    }

    fn remove(&mut self, flow: Arc<Flow>, progress: &mut Progress) {
        self.take_out(&flow);
        progress.done.push(Done::FlowRemoved(flow));
    }

    fn put_in(&mut self, flow: Arc<Flow>) {
        self.table_mut(flow.table).insert(Arc::clone(&flow));
        self.add_user(flow.uses());
        self.note_deadline(flow);
    }

    pub(super) fn take_out(&mut self, flow: &Flow) {
        self.table_mut(flow.table).remove(flow);
        self.remove_user(flow.uses());
        self.deadlines.remove(&(flow.noted_ns.load(Relaxed), flow.number));
    }

    fn put_in_group(&mut self, group: Arc<Group>) {
        self.add_user(group.uses());
        self.groups.insert(group.id, group);
    }

    fn take_out_group(&mut self, group: &Group) {
        self.groups.remove(&group.id);
        self.remove_user(group.uses());
    }

    /// Notes that an entry or group uses these groups; several times is once.
    fn add_user(&mut self, used: impl Iterator<Item = GroupId>) {
        for group in BTreeSet::from_iter(used) {
            *self.users.entry(group).or_default() += 1;
        }
    }

    fn remove_user(&mut self, used: impl Iterator<Item = GroupId>) {
        for group in BTreeSet::from_iter(used) {
            if let Entry::Occupied(mut users) = self.users.entry(group) {
                *users.get_mut() -= 1;
                if *users.get() == 0 {
                    users.remove();
                }
            }
        }
    }

    pub(super) fn note_deadline(&mut self, flow: Arc<Flow>) {
        if let Some((deadline_ns, _)) = flow.deadline_ns() {
            flow.noted_ns.store(deadline_ns, Relaxed);
            self.deadlines.insert((deadline_ns, flow.number), flow);
        }
    }

    fn check_instructions(&self, request: &FlowMod) -> Result<(), Code> {
        let instructions = &request.instructions;
        if !instructions.unknown.is_empty() {
            return Err(Code::OFPBIC_UNKNOWN_INST);
        }
        let leads_on = |next: TableId| next > request.table_id && usize::from(next.0) < self.tables.len();
        if instructions.goto_table.is_some_and(|next| !leads_on(next)) {
            return Err(Code::OFPBIC_BAD_TABLE_ID);
        }
        // What a modification may do depends on the entries that it finds.
        let packets = if request.command == FlowModCommand::Add {
            Packets::Of(&request.matching)
        } else {
            Packets::Any
        };
        self.check_actions_of(request, &packets)
    }

    fn check_actions_of(&self, request: &FlowMod, packets: &Packets<'_>) -> Result<(), Code> {
        let lists = [&request.instructions.apply_actions, &request.instructions.write_actions];
        lists.into_iter().flatten().try_for_each(|actions| self.check_actions(actions, packets))
    }

    fn check_actions(&self, actions: &[Action], packets: &Packets<'_>) -> Result<(), Code> {
        if actions.len() > self.limits.actions {
            return Err(Code::OFPBAC_TOO_MANY);
        }
        actions.iter().try_for_each(|action| self.check_action(action, packets))
    }

    fn check_action(&self, action: &Action, packets: &Packets<'_>) -> Result<(), Code> {
        let suits = |field| match packets {
            Packets::Of(matching) if !matching.allows(field) => Err(Code::OFPBAC_MATCH_INCONSISTENT),
            _ => Ok(()),
        };
        match action {
            Action::Output {
                port: PortNo::IN_PORT | PortNo::FLOOD | PortNo::ALL | PortNo::CONTROLLER,
                ..
            } => Ok(()),
            // The ports are those of the configuration: one that is not there never will be (§6.4).
            Action::Output { port, .. } if self.ports.has(*port) => Ok(()),
            Action::Output { .. } => Err(Code::OFPBAC_BAD_OUT_PORT),
            // Ports of interfaces have one queue, which nobody can choose.
            Action::SetQueue(_) if self.ports.hold.is_some() => Ok(()),
            Action::SetQueue(_) => Err(Code::OFPBAC_BAD_QUEUE),
            Action::Group(group) if self.groups.contains_key(group) => Ok(()),
            Action::Group(_) => Err(Code::OFPBAC_BAD_OUT_GROUP),
            Action::SetField(set) => check_set(set).and_then(|()| suits(set.oxm().field())),
            Action::DecNwTtl => suits(Field::IpProto),
            // Tags are for a later version; SW-12.
            Action::PushVlan(_) | Action::PopVlan | Action::Unknown(_) => Err(Code::OFPBAC_BAD_TYPE),
        }
    }

    /// Checks a packet-out. Its packet may also go to the first table.
    ///
    /// # Errors
    /// The standard's.
    pub fn check_packet_out(&self, request: &PacketOut) -> Result<(), Code> {
        if request.buffer_id != BufferId::NO_BUFFER {
            return Err(Code::OFPBRC_BUFFER_UNKNOWN);
        }
        // A frame has no tunnel until it has passed LOCAL, so none comes from the GTP port; and none comes back from a token's port.
        let port = request.in_port.0;
        let never =
            self.ports.gtp == Some(port) || self.ports.hold.is_some_and(|ports| ports.release == port);
        let can_be_from = self.ports.has(request.in_port) && !never;
        if request.in_port != PortNo::CONTROLLER && !can_be_from {
            return Err(Code::OFPBRC_BAD_PORT);
        }
        if request.data.is_empty() || request.data.len() > LONGEST {
            return Err(Code::OFPBRC_BAD_PACKET);
        }
        if request.actions.len() > self.limits.actions {
            return Err(Code::OFPBAC_TOO_MANY);
        }
        let to_table = |action: &&Action| matches!(action, Action::Output { port: PortNo::TABLE, .. });
        request
            .actions
            .iter()
            .filter(|action| !to_table(action))
            .try_for_each(|action| self.check_action(action, &Packets::Any))
    }

    fn group_mod(&mut self, request: &GroupMod, now_ns: u64, progress: &mut Progress) -> Result<(), Code> {
        request.check()?;
        let known = self.groups.get(&request.group_id).cloned();
        match request.command {
            GroupModCommand::Add if known.is_some() => Err(Code::OFPGMFC_GROUP_EXISTS),
            GroupModCommand::Add if self.groups.len() >= self.limits.groups => {
                Err(Code::OFPGMFC_OUT_OF_GROUPS)
            }
            GroupModCommand::Modify if known.is_none() => Err(Code::OFPGMFC_UNKNOWN_GROUP),
            GroupModCommand::Delete => self.delete_groups(request.group_id, progress),
            _ => {
                self.check_group(request)?;
                if let Some(known) = &known {
                    self.remove_group(Arc::clone(known), progress);
                }
                // A modification leaves the counters of the group, and begins those of its buckets anew (§6.5).
                let counters = known.as_ref().map(|known| Arc::clone(&known.counters)).unwrap_or_default();
                let group = Arc::new(Group {
                    id: request.group_id,
                    kind: request.group_type,
                    buckets: request.buckets.clone(),
                    since_ns: known.map_or(now_ns, |known| known.since_ns),
                    counters,
                    bucket_counters: request.buckets.iter().map(|_| Counters::default()).collect(),
                });
                self.put_in_group(Arc::clone(&group));
                progress.done.push(Done::GroupAdded(group));
                Ok(())
            }
        }
    }

    fn check_group(&self, request: &GroupMod) -> Result<(), Code> {
        if request.group_type == GroupType::Select {
            return Err(Code::OFPGMFC_BAD_TYPE);
        }
        if request.buckets.len() > self.limits.buckets {
            return Err(Code::OFPGMFC_OUT_OF_BUCKETS);
        }
        let mut next = Vec::new();
        for bucket in &request.buckets {
            let watch = Some(bucket.watch_group).filter(|group| *group != GroupId::ANY);
            let watched = Some(bucket.watch_port).filter(|port| *port != PortNo::ANY);
            if watch.is_some_and(|group| !self.groups.contains_key(&group))
                || watched.is_some_and(|port| !self.ports.has(port))
            {
                return Err(Code::OFPGMFC_BAD_WATCH);
            }
            let own = |action: &&Action| matches!(action, Action::Group(group) if *group == request.group_id);
            if bucket.actions.iter().any(|action| own(&action)) || watch == Some(request.group_id) {
                return Err(Code::OFPGMFC_LOOP);
            }
            self.check_actions(&bucket.actions, &Packets::Any)?;
            next.extend(watch);
            next.extend(used_by(&bucket.actions));
        }
        // No packet gets further, and a longer description would not fit into a message.
        if request.buckets.iter().map(|bucket| bucket.actions.len()).sum::<usize>() > MAX_WORK as usize {
            return Err(Code::OFPBAC_TOO_MANY);
        }
        let mut seen = BTreeSet::new();
        while let Some(id) = next.pop() {
            if id == request.group_id {
                return Err(Code::OFPGMFC_LOOP);
            }
            if seen.insert(id) {
                next.extend(self.groups.get(&id).into_iter().flat_map(|group| group.uses()));
            }
        }
        Ok(())
    }

    /// Deletes one group or all, with the entries that use them. A group that is not there is no error.
    fn delete_groups(&mut self, id: GroupId, progress: &mut Progress) -> Result<(), Code> {
        let is_meant = |group: GroupId| [group, GroupId::ALL].contains(&id);
        let is_used = self.groups.values().any(|group| !is_meant(group.id) && group.uses().any(is_meant));
        if is_used {
            return Err(Code::OFPGMFC_CHAINED_GROUP);
        }
        let gone: Vec<_> = self.groups.values().filter(|group| is_meant(group.id)).cloned().collect();
        if gone.is_empty() {
            return Ok(());
        }
        let all = self.tables.iter().flat_map(|table| table.flows());
        let flows: Vec<_> = all.filter(|flow| flow.uses().any(is_meant)).cloned().collect();
        for flow in flows {
            self.remove(Arc::clone(&flow), progress);
            progress.removed.push(Removed { flow, reason: FlowRemovedReason::GroupDelete });
        }
        gone.into_iter().for_each(|group| self.remove_group(group, progress));
        Ok(())
    }

    fn remove_group(&mut self, group: Arc<Group>, progress: &mut Progress) {
        self.take_out_group(&group);
        progress.done.push(Done::GroupRemoved(group));
    }
}

/// Whether this switch can write the field into packets.
fn check_set(set: &openflow::SetField) -> Result<(), Code> {
    let oxm = set.oxm();
    let field = oxm.field();
    if !field::can_be_set(field) {
        return Err(Code::OFPBAC_BAD_SET_TYPE);
    }
    // A TEID has 32 bits.
    if field == Field::TunnelId && oxm.value() > u32::MAX.into() {
        return Err(Code::OFPBAC_BAD_SET_ARGUMENT);
    }
    Ok(())
}
