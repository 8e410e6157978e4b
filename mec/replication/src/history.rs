//! Messages of an anchor's users as they were, for naïve replication (NAI-1).
//!
//! Of each user there are all requests since it attached, or none: those of a user with many, or of whom a replay of requests alone would
//! not make what the original has, are left out. Such a user is copied by its record.

use foldhash::HashMap;

use crate::clone::{Head, Kind, Side as _};
use crate::n4::clone::N4;
use crate::replicator::Protocol;
use crate::s11::clone::S11;
use crate::track::Effect;

/// Most octets of memory for one user. Whoever has often been idle has more.
const MAX_OF_USER: usize = 4096;
/// Octets of memory that a message takes beside its own, and a user beside its messages.
const BESIDE: usize = 64;

/// Messages of a user, each with its place among all of the anchor.
#[derive(Debug)]
enum Messages {
    /// All of them.
    Whole(Vec<(u64, Vec<u8>)>),
    LeftOut,
}

/// Messages of an anchor's users.
#[derive(Debug, Default)]
pub(crate) struct History {
    by_session: HashMap<u32, Messages>,
    order: u64,
    /// Of all messages.
    octets: usize,
    messages: usize,
}

impl History {
    /// Whether no session has begun here.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    /// Octets of all messages.
    pub(crate) fn octets(&self) -> usize {
        self.octets
    }

    /// Octets of memory.
    pub(crate) fn memory(&self) -> usize {
        self.octets + BESIDE * (self.messages + self.by_session.len())
    }

    /// All messages of a session, if they are there.
    pub(crate) fn of(&self, number: u32) -> Option<&[(u64, Vec<u8>)]> {
        match self.by_session.get(&number)? {
            Messages::Whole(all) => Some(all),
            Messages::LeftOut => None,
        }
    }

    /// Takes what a message has led to; `most` octets of memory are not exceeded.
    pub(crate) fn take(&mut self, protocol: Protocol, effect: &Effect, most: usize) {
        match effect {
            Effect::Began { number, request } => {
                self.forget(*number);
                self.by_session.insert(*number, Messages::Whole(Vec::new()));
                self.add(*number, request, most);
            }
            Effect::Changed { number, request } if is_asked_as_it_was(protocol, request) => {
                self.add(*number, request, most);
            }
            Effect::Changed { number, .. }
            | Effect::ByAnchor { number, .. }
            | Effect::Restored { number, .. } => self.leave_out(*number),
            Effect::Ended(number) => self.forget(*number),
            Effect::Queried { .. } | Effect::Deleted { .. } | Effect::Answer { .. } => {}
        }
    }

    /// A session without beginning here gets none.
    fn add(&mut self, number: u32, request: &[u8], most: usize) {
        let is_full = self.memory() + BESIDE + request.len() > most;
        let Some(Messages::Whole(all)) = self.by_session.get_mut(&number) else { return };
        let taken: usize = all.iter().map(|(_, octets)| BESIDE + octets.len()).sum();
        if is_full || taken + BESIDE + request.len() > MAX_OF_USER {
            return self.leave_out(number);
        }
        self.order += 1;
        all.push((self.order, request.to_vec()));
        self.octets += request.len();
        self.messages += 1;
    }

    fn leave_out(&mut self, number: u32) {
        if self.by_session.contains_key(&number) {
            self.forget(number);
            self.by_session.insert(number, Messages::LeftOut);
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(Messages::Whole(all)) = self.by_session.remove(&number) {
            self.octets -= all.iter().map(|(_, octets)| octets.len()).sum::<usize>();
            self.messages -= all.len();
        }
    }
}

/// Whether the control plane has sent this request. Not so one that stands for what the anchor has done itself, which names no receiver;
/// and a command makes the anchor ask for what the control plane has agreed to already.
fn is_asked_as_it_was(protocol: Protocol, request: &[u8]) -> bool {
    let head = match protocol {
        Protocol::S11 => S11::head(request),
        Protocol::N4 => N4::head(request),
    };
    matches!(head, Some(Head { kind: Kind::Request, to: Some(1..), .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gtpv2c::message::{Message, ModifyBearerRequest, ReleaseAccessBearersRequest};

    fn octets(message: impl Into<Message>, teid: u32) -> Vec<u8> {
        let mut octets = Vec::new();
        message.into().encode(teid, 1, &mut octets).unwrap();
        octets
    }

    fn began(history: &mut History, number: u32, most: usize) {
        let request = octets(ModifyBearerRequest::default(), 0);
        history.take(Protocol::S11, &Effect::Began { number, request }, most);
    }

    fn idles(history: &mut History, number: u32, most: usize) {
        let request = octets(ReleaseAccessBearersRequest::default(), 7);
        history.take(Protocol::S11, &Effect::Changed { number, request }, most);
    }

    /// Who is often idle, and who comes when all is full, is left out; others stay, and a new beginning is kept again.
    #[test]
    fn memory_is_bounded_for_each_user_and_for_all() {
        let mut history = History::default();
        began(&mut history, 1, usize::MAX);
        began(&mut history, 2, usize::MAX);
        let least = history.memory();
        for _ in 0..1000 {
            idles(&mut history, 1, usize::MAX);
            assert!(history.memory() <= least + MAX_OF_USER);
        }
        assert!(history.of(1).is_none() && history.of(2).is_some_and(|all| all.len() == 1));
        began(&mut history, 1, usize::MAX);
        assert!(history.of(1).is_some_and(|all| all.len() == 1));
        assert_eq!(history.memory(), least);
        // All is full.
        idles(&mut history, 1, least);
        assert!(history.of(1).is_none());
        idles(&mut history, 2, least);
        assert!(history.of(2).is_some_and(|all| all.len() == 2), "there is room now");
        for number in [1, 2] {
            history.take(Protocol::S11, &Effect::Ended(number), least);
        }
        assert_eq!((history.memory(), history.octets(), history.is_empty()), (0, 0, true));
    }

    /// What the anchor has done itself is not in a history of requests.
    #[test]
    fn what_no_request_says_is_left_out() {
        let by_anchor = Effect::ByAnchor { number: 1, messages: Vec::new() };
        let nobodys =
            Effect::Changed { number: 1, request: octets(ReleaseAccessBearersRequest::default(), 0) };
        let command = gtpv2c::message::BearerResourceCommand::default();
        let command = Effect::Changed { number: 1, request: octets(command, 7) };
        for effect in [by_anchor, nobodys, command] {
            let mut history = History::default();
            began(&mut history, 1, usize::MAX);
            history.take(Protocol::S11, &effect, usize::MAX);
            assert!(history.of(1).is_none() && !history.is_empty(), "{effect:?}");
        }
    }
}
