//! Requests that are prepared: all that can be done before they are made is done, and what is left is to say so ([`super::Diverting::prepare`]).
//!
//! A prepared request is checked, its rules are made, its line of the state file is, and switches have the rules as bundles that they do not
//! commit ([`Handle::stage`](crate::switch::Handle::stage)). When the same request is made, switches commit, and the line is written. It is no
//! promise: whatever has become of it meanwhile, the request is done in the ordinary way then, by all that holds then.
//!
//! Invariants: nothing of a prepared request is in a flow table, in the file, or among what is wanted; there are at most [`MOST`], with at most
//! [`MOST_RULES`] changes of rules in [`MOST_BUNDLES`] bundles, which switches keep; what another request or an event changes of what it was made from ends it.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::model::{Diversion, Refusal};
use super::{Application, Checked, Planned, Ready};
use crate::rule::RuleKey;
use crate::switch::Step;

/// Most prepared requests. The oldest one goes for a new one.
const MOST: usize = 4;
/// Most changes of rules of all of them: far less than the messages that our switch keeps of a connection, as requests in the ordinary way
/// need room there as well.
const MOST_RULES: usize = 40_000;
/// Most bundles of all of them, likewise: our switch has 16 of a connection.
const MOST_BUNDLES: usize = 12;

/// Rules by switches.
type Keys = HashMap<u64, HashSet<RuleKey>>;

fn collect<'a>(keys: impl Iterator<Item = (u64, &'a RuleKey)>) -> Keys {
    let mut all = Keys::default();
    keys.for_each(|(datapath_id, key)| _ = all.entry(datapath_id).or_default().insert(key.clone()));
    all
}

fn has(all: &Keys, (datapath_id, key): (u64, &RuleKey)) -> bool {
    all.get(&datapath_id).is_some_and(|keys| keys.contains(key))
}

/// Requests with what is made for them.
#[derive(Debug, Default)]
pub(super) struct AllPrepared(VecDeque<Prepared>);

/// A request with what is made for it.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The request itself.
    pub(super) requested: Arc<[Diversion]>,
    pub(super) checked: Checked,
    pub(super) planned: Planned,
    ready: Ready,
    /// Rules that it changes.
    changes: Keys,
    /// These, and those that it needs as they are.
    keys: Keys,
}

impl Prepared {
    pub(super) fn new(
        requested: Arc<[Diversion]>,
        checked: Checked,
        planned: Planned,
        ready: Ready,
    ) -> Prepared {
        let (changes, keys) = (collect(planned.changes()), collect(planned.keys()));
        Prepared { requested, checked, planned, ready, changes, keys }
    }
}

impl Application {
    /// Does what can be done before the request is made.
    pub(super) async fn prepare(&mut self, requested: Arc<[Diversion]>) -> Result<Ready, Refusal> {
        // It may be asked for again, as an answer may be lost.
        if let Some(same) = self.prepared.take(&requested).filter(|same| self.is_possible(&same.checked)) {
            let ready = same.ready.clone();
            self.prepared.push(same);
            return Ok(ready);
        }
        let (checked, made) = self.check(&requested)?;
        if checked.new.is_empty() {
            return Ok(Ready::default());
        }
        let mut planned = self.plan(&checked.new, &[], made)?;
        if !AllPrepared::can_have(&planned.steps) {
            return Err(Refusal::TooLarge(checked.new.len()));
        }
        self.prepared.make_room(&planned.steps);
        let switches = self.handle.stage(&mut planned.steps).await;
        let rules = planned.rules_set + planned.rules_removed;
        let ready = Ready { prepared: checked.new.len(), rules, switches };
        self.prepared.push(Prepared::new(requested, checked, planned, ready.clone()));
        Ok(ready)
    }

    /// Whether a request that was checked is possible now: its anchors answer, its switches are there.
    pub(super) fn is_possible(&self, checked: &Checked) -> bool {
        let switches = self.handle.fabric().switches();
        let mut seen = HashSet::default();
        let mut places = checked.new.iter().filter(|new| seen.insert((&new.base_station, &new.to)));
        self.check_room(checked.ids.iter()).is_ok()
            && places.all(|new| self.check_now(new, &switches).is_ok())
    }
}

/// Changes of rules.
fn rules(steps: &[Step]) -> usize {
    steps.iter().map(Step::len).sum()
}

impl AllPrepared {
    /// Whether there can be one with these steps.
    pub(super) fn can_have(steps: &[Step]) -> bool {
        rules(steps) <= MOST_RULES && steps.len() <= MOST_BUNDLES
    }

    /// Ends the oldest ones until there is room for one with these steps.
    pub(super) fn make_room(&mut self, steps: &[Step]) {
        let is_full = |all: &VecDeque<Prepared>| {
            let all_rules: usize = all.iter().map(|prepared| rules(&prepared.planned.steps)).sum();
            let bundles: usize = all.iter().map(|prepared| prepared.planned.steps.len()).sum();
            all.len() >= MOST || all_rules + rules(steps) > MOST_RULES || bundles + steps.len() > MOST_BUNDLES
        };
        while is_full(&self.0) && self.0.pop_front().is_some() {}
    }

    pub(super) fn push(&mut self, prepared: Prepared) {
        self.0.push_back(prepared);
    }

    /// The one that is this request.
    pub(super) fn take(&mut self, requested: &Arc<[Diversion]>) -> Option<Prepared> {
        let at = self.0.iter().position(|prepared| Arc::ptr_eq(&prepared.requested, requested))?;
        self.0.remove(at)
    }

    /// Ends all: rules would be made otherwise now.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Ends those that a change concerns: about the same, or one changes a rule that the other one needs.
    pub(super) fn changed(&mut self, planned: &Planned) {
        if self.0.is_empty() {
            return;
        }
        let ids: HashSet<&String> = planned.ids().collect();
        self.0.retain(|prepared| {
            let mut own = prepared.planned.ids().chain(&prepared.checked.unchanged);
            !own.any(|id| ids.contains(id))
                && !planned.changes().any(|key| has(&prepared.keys, key))
                && !planned.keys().any(|key| has(&prepared.changes, key))
        });
    }
}
