//! A replica: copies of one original's sessions at one clone, as the replicator knows them, and how its agent names them.
//!
//! An agent names a copy by a handle, which is new for each attempt to make it: what an agent says late of an earlier attempt is not taken
//! for what it says of this one.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use foldhash::HashMap;

use crate::clone::{Made, Why};
use crate::connection::Connection;
use crate::frame::Frame;
use crate::original::Original;
use crate::replicator::Refusal;
use crate::template::{Source, Template};

/// Most earlier attempts whose usage is still expected.
const MAX_FORMER: usize = 4096;

/// What is known of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Copy {
    Making,
    There(Made),
    Failed(Why),
    /// It is to end; with what the clone gave, if that is known.
    Ending(Option<Made>),
    /// The original has begun anew, so it is of no use, and ends.
    Stale(Option<Made>),
}

impl Copy {
    pub(crate) fn made(&self) -> Option<Made> {
        match self {
            Copy::There(made) => Some(made.clone()),
            Copy::Ending(made) | Copy::Stale(made) => made.clone(),
            Copy::Making | Copy::Failed(_) => None,
        }
    }
}

/// How an agent names copies.
#[derive(Debug, Default)]
struct Handles {
    last: u32,
    /// By the session's number.
    current: HashMap<u32, u32>,
    /// The other way round.
    numbers: HashMap<u32, u32>,
    /// Copies whose sessions have ended; their numbers may be those of others.
    orphans: HashSet<u32>,
    /// Earlier attempts that have not ended yet, with the session if it goes on.
    former: VecDeque<(u32, Option<u32>)>,
}

impl Handles {
    fn begin(&mut self, number: u32) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.numbers.insert(self.last, number);
        if let Some(before) = self.current.insert(number, self.last) {
            self.numbers.remove(&before);
            let session = (!self.orphans.remove(&before)).then_some(number);
            self.former.push_back((before, session));
            if self.former.len() > MAX_FORMER {
                self.former.pop_front();
            }
        }
        self.last
    }

    fn number(&self, handle: u32) -> Option<u32> {
        self.numbers.get(&handle).copied()
    }

    fn session_of(&self, handle: u32) -> Option<u32> {
        if self.orphans.contains(&handle) {
            return None;
        }
        let former = || self.former.iter().find(|(of, _)| *of == handle).and_then(|(_, number)| *number);
        self.number(handle).or_else(former)
    }

    fn session_ended(&mut self, number: u32) {
        self.orphans.extend(self.current.get(&number));
        for (_, session) in self.former.iter_mut().filter(|(_, session)| *session == Some(number)) {
            *session = None;
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(handle) = self.current.remove(&number) {
            self.numbers.remove(&handle);
            self.orphans.remove(&handle);
        }
    }
}

pub(crate) struct Replica {
    pub(crate) agent: SocketAddr,
    pub(crate) original: IpAddr,
    /// Its messages ask for the users' own addresses.
    keeps_addresses: bool,
    pub(crate) connection: Connection,
    /// By the session's number.
    pub(crate) copies: HashMap<u32, Copy>,
    /// Copies of which something else is to be kept.
    pub(crate) changed: HashSet<u32>,
    /// Templates that the agent has, by the connection's count.
    told: (u64, HashMap<u16, Arc<Template>>),
    handles: Handles,
}

impl Replica {
    pub(crate) fn new(
        agent: SocketAddr,
        original: IpAddr,
        keeps_addresses: bool,
        connection: Connection,
    ) -> Replica {
        let (copies, changed, told) = Default::default();
        // An agent may still name copies of an earlier controller.
        let handles = Handles { last: net::time::now_ns() as u32, ..Handles::default() };
        Replica { agent, original, keeps_addresses, connection, copies, changed, told: (0, told), handles }
    }

    /// The session of a copy that an agent names. `None`: it names an earlier attempt.
    pub(crate) fn number(&self, handle: u32) -> Option<u32> {
        self.handles.number(handle)
    }

    /// How the agent names a copy.
    pub(crate) fn handle(&self, number: u32) -> Option<u32> {
        self.handles.current.get(&number).copied()
    }

    /// The session of a copy, also of an earlier attempt. `None`: that session has ended.
    pub(crate) fn session_of(&self, handle: u32) -> Option<u32> {
        self.handles.session_of(handle)
    }

    /// The session of a number has ended: what its copies say from now on is not about another one with that number.
    pub(crate) fn session_ended(&mut self, number: u32) {
        self.handles.session_ended(number);
    }

    /// An earlier attempt has ended.
    pub(crate) fn former_ended(&mut self, handle: u32) {
        self.handles.former.retain(|(former, _)| *former != handle);
    }

    /// Whether the clone has this session.
    pub(crate) fn has(&self, number: u32) -> bool {
        matches!(self.copies.get(&number), Some(Copy::There(_)))
    }

    pub(crate) fn set(&mut self, number: u32, copy: Copy) {
        self.copies.insert(number, copy);
        self.changed.insert(number);
    }

    /// Enters a copy that was kept.
    pub(crate) fn restore(&mut self, number: u32, copy: Copy) {
        self.handles.begin(number);
        self.copies.insert(number, copy);
    }

    pub(crate) fn forget(&mut self, number: u32) {
        self.copies.remove(&number);
        self.changed.insert(number);
        self.handles.forget(number);
    }

    /// Has the agent know the templates of a record; the frame that makes the copy.
    fn frame(&mut self, source: &Original, number: u32) -> Option<Frame> {
        let record = source.tracker.table().get(number).filter(|record| !record.incomplete)?;
        let count = self.connection.count();
        if self.told.0 != count {
            self.told = (count, HashMap::default());
        }
        let mut has_address = self.keeps_addresses;
        for message in &record.messages {
            let template = source.tracker.table().templates().get(message.template)?;
            has_address |= template.has(Source::Address);
            let is_told = self.told.1.get(&message.template).is_some_and(|told| Arc::ptr_eq(told, template));
            if !is_told {
                let mut octets = Vec::new();
                template.encode(&mut octets);
                self.connection.say(Frame::Template { number: message.template, octets });
                self.told.1.insert(message.template, template.clone());
            }
        }
        Some(Frame::Make {
            handle: self.handles.begin(number),
            subject: record.subject,
            control: record.control,
            address: record.bearers.iter().find_map(|bearer| bearer.ipv4).filter(|_| has_address),
            templates: record.messages.iter().map(|message| message.template).collect(),
            stored: record.messages.iter().flat_map(|message| message.stored.iter().copied()).collect(),
        })
    }

    pub(crate) fn make(&mut self, source: &Original, numbers: &[u32]) {
        for number in numbers {
            if matches!(self.copies.get(number), Some(Copy::There(_) | Copy::Making)) {
                continue;
            }
            let has_no_way_back = source.ways_back(*number).is_some_and(|ways| ways.is_none());
            let frame = if has_no_way_back { None } else { self.frame(source, *number) };
            let copy = match frame {
                Some(frame) => {
                    self.connection.say(frame);
                    Copy::Making
                }
                None if has_no_way_back => Copy::Failed(Why::Apart),
                None => Copy::Failed(Why::Unreadable),
            };
            self.set(*number, copy);
        }
    }

    /// Replays what the users who are not there were told, as it was. Those of whom not all is kept as it was go by their records; their numbers.
    pub(crate) fn replay(&mut self, source: &Original) -> Result<Vec<u32>, Refusal> {
        let table = source.tracker.table();
        let is_there = |number: &u32| matches!(self.copies.get(number), Some(Copy::There(_) | Copy::Making));
        let missing: Vec<u32> = table.numbers().filter(|number| !is_there(number)).collect();
        if source.history.is_empty() && !missing.is_empty() {
            return Err(Refusal::NoRaw);
        }
        let mut all: Vec<(u64, u32, &[u8])> = Vec::new();
        let mut by_record = Vec::new();
        for number in missing {
            // As they were they would be attaches, which the P-GW takes for second ones.
            if source.ways_back(number).is_some() {
                self.set(number, Copy::Failed(Why::Apart));
                continue;
            }
            let is_incomplete = table.view(number).is_none_or(|view| view.is_incomplete());
            match source.history.of(number).filter(|_| !is_incomplete) {
                Some(messages) => {
                    all.extend(messages.iter().map(|(order, octets)| (*order, number, &**octets)));
                }
                None => by_record.push(number),
            }
        }
        all.sort_unstable_by_key(|(order, ..)| *order);
        let mut begun: HashMap<u32, u32> = HashMap::default();
        for (_, number, octets) in all {
            let control = table.view(number).and_then(|view| view.control()).unwrap_or_default();
            let handle = *begun.entry(number).or_insert_with(|| self.handles.begin(number));
            self.set(number, Copy::Making);
            self.connection.say(Frame::Replay { handle, control, octets: octets.to_vec() });
        }
        self.make(source, &by_record);
        Ok(by_record)
    }

    /// Ends a copy. One that was refused may be there all the same, as an answer was lost.
    pub(crate) fn end(&mut self, number: u32) {
        if let Some(copy) = self.copies.get(&number) {
            let made = copy.made();
            self.set(number, Copy::Ending(made));
            if let Some(handle) = self.handle(number) {
                self.connection.say(Frame::End(handle));
            }
        }
    }

    /// A copy ends by what the clone is told anyway.
    pub(crate) fn ends_by_itself(&mut self, number: u32) {
        let made = self.copies.get(&number).and_then(Copy::made);
        self.set(number, Copy::Ending(made));
    }

    /// The agent is connected: it is told of the copies that are there, and asked for those under way. `serves`: whether a user's packets
    /// go to the clone, where the agent has to know.
    pub(crate) fn connected(&mut self, source: Option<&Original>, serves: &HashMap<u32, bool>) {
        self.handles.former.clear();
        let copies: Vec<(u32, Copy)> =
            self.copies.iter().map(|(number, copy)| (*number, copy.clone())).collect();
        for (number, copy) in copies {
            let session = source.and_then(|source| source.tracker.session(number));
            let handle = self.handle(number).unwrap_or_else(|| self.handles.begin(number));
            match (copy, session) {
                (Copy::There(made), Some(session)) => {
                    let control = session.control;
                    self.connection.say(Frame::Adopt { handle, control, made });
                    if let Some(serves) = serves.get(&number).copied() {
                        self.connection.say(Frame::Serve { handle, serves });
                    }
                    // What it has missed meanwhile: its present state once more, which changes nothing if it has it.
                    for octets in session.requests.into_iter().skip(1).filter(|octets| is_state(octets)) {
                        self.connection.say(Frame::Later { handle, octets });
                    }
                }
                (Copy::Making, _) => {
                    self.forget(number);
                    if let Some(source) = source {
                        self.make(source, &[number]);
                    }
                }
                // An agent that is gone may have made it without saying so: it is asked for once more, and ended when it is there.
                (Copy::Ending(None), Some(_))
                    if let Some(frame) = source.and_then(|source| self.frame(source, number)) =>
                {
                    self.connection.say(frame);
                }
                (copy @ (Copy::Ending(_) | Copy::Stale(_) | Copy::There(_)), _) => {
                    if let Some(made) = copy.made() {
                        // Only to be ended: nobody is asked by this name.
                        let control = u64::MAX - u64::from(handle);
                        self.connection.say(Frame::Adopt { handle, control, made });
                    }
                    self.connection.say(Frame::End(handle));
                }
                (Copy::Failed(_), _) => {}
            }
        }
    }
}

/// Whether a request sets a state that an anchor may be told again (Modify Bearer, Release Access Bearers; Session Modification).
fn is_state(request: &[u8]) -> bool {
    request.get(1).is_some_and(|code| [34, 170, 52].contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an agent says late is about the attempt that it names, and about no other session with the same number.
    #[test]
    fn an_earlier_attempt_is_not_this_one() {
        let mut handles = Handles { last: u32::MAX, ..Handles::default() };
        let first = handles.begin(5);
        assert_eq!((first, handles.number(first)), (0, Some(5)));
        let second = handles.begin(5);
        assert_eq!(
            (handles.number(first), handles.number(second)),
            (None, Some(5)),
            "late refusals find nothing"
        );
        assert_eq!(handles.session_of(first), Some(5), "but its usage is the session's");
        handles.session_ended(5);
        assert_eq!((handles.session_of(first), handles.session_of(second)), (None, None));
        let third = handles.begin(5);
        assert_eq!(
            (handles.session_of(second), handles.session_of(third)),
            (None, Some(5)),
            "another session"
        );
        handles.forget(5);
        assert_eq!((handles.number(third), handles.session_of(third)), (None, None));
    }
}
