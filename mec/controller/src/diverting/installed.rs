//! The rules that switches have of all diversions, and what a change of diversions changes in them.
//!
//! Many diversions share the rules that lead to the tables, so each rule is kept with the number of diversions it is of.

use foldhash::HashMap;

use super::model::Refusal;
use super::old_ways::is_needed_after;
use super::rules::{Placed, Stage};
use crate::rule::{Kind, Rule, RuleKey};
use crate::switch::Step;

/// A rule, and how many diversions it is of.
type Shared = (Placed, usize);

/// Rules by switch.
#[derive(Debug, Default)]
pub(super) struct Installed {
    of_switch: HashMap<u64, HashMap<RuleKey, Shared>>,
}

/// What a change does to a rule.
struct Change<'a> {
    placed: &'a Placed,
    /// Diversions that no longer have it, and those that have it now.
    fewer: usize,
    more: usize,
}

impl Installed {
    fn get(&self, placed: &Placed) -> Option<&Shared> {
        self.of_switch.get(&placed.datapath_id)?.get(&placed.rule.key)
    }

    /// A diversion has the rule.
    pub(super) fn enter(&mut self, placed: &Placed) {
        let of_switch = self.of_switch.entry(placed.datapath_id).or_default();
        match of_switch.get_mut(&placed.rule.key) {
            Some((present, count)) => {
                if present != placed {
                    present.clone_from(placed);
                }
                *count += 1;
            }
            None => _ = of_switch.insert(placed.rule.key.clone(), (placed.clone(), 1)),
        }
    }

    /// A diversion no longer has the rule.
    pub(super) fn leave(&mut self, placed: &Placed) {
        let Some(of_switch) = self.of_switch.get_mut(&placed.datapath_id) else { return };
        let Some((_, count)) = of_switch.get_mut(&placed.rule.key) else { return };
        *count -= 1;
        if *count == 0 {
            of_switch.remove(&placed.rule.key);
        }
    }

    /// The rules of a switch.
    pub(super) fn of(&self, datapath_id: u64) -> impl Iterator<Item = &Rule> {
        let rules = self.of_switch.get(&datapath_id).into_iter().flatten();
        rules.map(|(_, (placed, _))| &placed.rule)
    }

    /// Whether a diversion has a rule in this place.
    pub(super) fn has(&self, datapath_id: u64, rule: &Rule) -> bool {
        self.of_switch.get(&datapath_id).is_some_and(|rules| rules.contains_key(&rule.key))
    }

    /// Those of some rules that no diversion has.
    pub(super) fn without(&self, mut rules: Vec<Placed>) -> Vec<Placed> {
        rules.retain(|placed| self.get(placed).is_none());
        rules
    }

    /// Whether the rules are the same ones, whosever they are.
    pub(super) fn is_same(&self, other: &Installed) -> bool {
        let count = |all: &Installed| all.of_switch.values().map(HashMap::len).sum::<usize>();
        let all = self.of_switch.values().flat_map(HashMap::values);
        let mut same =
            all.map(|(placed, _)| other.get(placed).is_some_and(|(own, _)| own.rule == placed.rule));
        count(self) == count(other) && same.all(|same| same)
    }

    /// What changes in the switches when diversions no longer have the `old` rules, and have the `new` ones.
    ///
    /// # Errors
    /// Other diversions need a rule as it is.
    pub(super) fn difference<'a>(
        &self,
        old: impl Iterator<Item = &'a Placed>,
        new: impl Iterator<Item = &'a Placed>,
    ) -> Result<Difference, Refusal> {
        let mut changes: HashMap<(u64, &RuleKey), Change<'_>> = HashMap::default();
        let place = |placed: &'a Placed| (placed.datapath_id, &placed.rule.key);
        let none = |placed| Change { placed, fewer: 0, more: 0 };
        for placed in old {
            changes.entry(place(placed)).or_insert_with(|| none(placed)).fewer += 1;
        }
        for placed in new {
            let change = changes.entry(place(placed)).or_insert_with(|| none(placed));
            // Two users of a request with the same TEID or address.
            if change.more > 0 && (change.placed.rule != placed.rule || is_one_users(placed)) {
                return Err(in_the_way(placed));
            }
            change.placed = placed;
            change.more += 1;
        }
        let mut all = Difference::default();
        for Change { placed, fewer, more } in changes.into_values() {
            let present = self.get(placed);
            let others = present.map_or(0, |(_, count)| count.saturating_sub(fewer));
            let is_same = present.is_some_and(|(present, _)| present.rule == placed.rule);
            // Others need it as it is, or it would steer two users.
            if more > 0 && others > 0 && (!is_same || is_one_users(placed)) {
                return Err(in_the_way(placed));
            }
            if others + more == 0 {
                let Some((present, _)) = present else { continue };
                let rules = if is_needed_after(present) { &mut all.left } else { &mut all.removed };
                rules.push(present.clone());
            } else if more > 0 && !is_same {
                all.set.push(placed.clone());
            }
        }
        Ok(all)
    }

    /// What gives switches that have got other rules the ones here again.
    pub(super) fn undo<'a>(&self, changed: impl Iterator<Item = &'a Placed>) -> Difference {
        let mut all = Difference::default();
        for placed in changed {
            match self.get(placed) {
                Some((present, _)) => all.set.push(present.clone()),
                None => all.removed.push(placed.clone()),
            }
        }
        all
    }
}

/// Whether a rule is for the packets of one diversion alone. Rules that lead to the tables are for many, and all diversions of a user
/// have the same rule for its tunnel downlink.
fn is_one_users(placed: &Placed) -> bool {
    placed.rule.kind == Kind::T1High && placed.stage == Stage::User
}

fn in_the_way(placed: &Placed) -> Refusal {
    let what = match placed.rule.key.matching.tunnel_id() {
        Some(teid) => format!("TEID {teid:#x} is that of another diversion"),
        None => {
            "another diversion is for the same packets (of a pair, one is for both ways): remove it first"
                .to_owned()
        }
    };
    Refusal::InTheWay(what)
}

/// Rules to install or replace, and rules to remove.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) set: Vec<Placed>,
    pub(super) removed: Vec<Placed>,
    /// Rules to remove when the packets that need them have arrived ([`super::old_ways`]).
    pub(super) left: Vec<Placed>,
}

impl Difference {
    /// Steps in which no packet finds a way that is not complete: first what is new, from the ground up, then what is old, from the top
    /// down; without what stays for a moment. A stage is one step per switch, however many users it is of; one switch alone changes at once.
    pub(super) fn steps(mut self) -> Vec<Step> {
        self.set.sort_by_key(|placed| (placed.stage, placed.datapath_id));
        self.removed.sort_by_key(|placed| (std::cmp::Reverse(placed.stage), placed.datapath_id));
        let first = self.set.first().or(self.removed.first()).map(|placed| placed.datapath_id);
        let is_one = self.set.iter().chain(&self.removed).all(|placed| Some(placed.datapath_id) == first);
        let mut steps: Vec<Step> = Vec::new();
        let step_of = |steps: &mut Vec<Step>, datapath_id, may_join: bool| {
            if !(may_join && steps.last().is_some_and(|step| step.datapath_id == datapath_id)) {
                steps.push(Step::of(datapath_id));
            }
            steps.len() - 1
        };
        for placed in self.set {
            let at = step_of(&mut steps, placed.datapath_id, true);
            steps[at].set.push(placed.rule);
        }
        let begin = steps.len();
        for placed in self.removed {
            let may_join = is_one || steps.len() > begin;
            let at = step_of(&mut steps, placed.datapath_id, may_join);
            steps[at].remove.push(placed.rule.key);
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow::{Action, Instructions, Match, Oxm, PortNo};

    fn placed(datapath_id: u64, stage: Stage, teid: u64, port: u32) -> Placed {
        let matching = Match::new([Oxm::tunnel_id(teid)]).unwrap();
        let instructions = Instructions::apply([Action::output(PortNo(port))]);
        Placed { datapath_id, stage, rule: Rule::new(Kind::T0High, 1, 1, matching, instructions) }
    }

    /// Users at several switches take as many round trips as one user there.
    #[test]
    fn a_stage_is_one_step_per_switch() {
        let users = (0..1000).flat_map(|teid| {
            let at = 1 + teid % 2;
            [
                placed(at, Stage::Ground, teid, 1),
                placed(3, Stage::Return, teid, 1),
                placed(at, Stage::User, teid + 5000, 1),
            ]
        });
        let new: Vec<Placed> = users.collect();
        let difference = Installed::default().difference([].iter(), new.iter()).unwrap();
        let steps = difference.steps().into_iter().map(|step| (step.datapath_id, step.set.len()));
        assert_eq!(steps.collect::<Vec<_>>(), [(1, 500), (2, 500), (3, 1000), (1, 500), (2, 500)]);
    }

    #[test]
    fn a_change_can_be_undone() {
        let mut installed = Installed::default();
        let (old, new) = (placed(1, Stage::Ground, 1, 1), placed(1, Stage::Ground, 1, 2));
        let added = placed(1, Stage::Ground, 2, 2);
        installed.enter(&old);
        let undo = installed.undo([&new, &added].into_iter());
        assert_eq!((undo.set, undo.removed), (vec![old.clone()], vec![added]));
        installed.leave(&old);
        assert_eq!(installed.of(1).count(), 0);
    }

    /// What others still have is not changed, though one of those who have it goes elsewhere.
    #[test]
    fn a_shared_rule_stays_as_it_is() {
        let mut installed = Installed::default();
        let (shared, other) = (placed(1, Stage::Return, 1, 1), placed(1, Stage::Return, 1, 2));
        installed.enter(&shared);
        installed.enter(&shared);
        let moved = installed.difference([&shared].into_iter(), [&other].into_iter());
        assert!(matches!(moved, Err(Refusal::InTheWay(_))));
        let left = installed.difference([&shared].into_iter(), [].iter()).unwrap();
        assert!(left.set.is_empty() && left.removed.is_empty());
        let both =
            installed.difference([&shared, &shared].into_iter(), [&other, &other].into_iter()).unwrap();
        assert_eq!(both.set, [other]);
    }
}
