//! The learned policy in the form that [`Forest`](crate::tree::Forest) needs: it uses the decisions of the best
//! tree known, and the network for nodes that are not in that tree.

use std::sync::Arc;

use super::action::{Action, categories};
use super::candidate::{PARTED_MAX, PARTS_MAX, SAMPLE};
use super::grow::{COPIES, Cost, Decide, Grower, MAX_DEPTH, Node, Parting, UNTAKEN, digest};
use super::model::{Chooser, Model, Plan};
use super::policy::{Greedy, Likeliest, Policy};
use super::rng::Rng;
use super::space::Space;
use super::train::{Grown, Trainer, reward};
use super::{Objective, Options};
use crate::tree::build::{self, Limits, Part};
use crate::tree::{self, node::Extent};

/// Up to this number of rules, trees are compared. For a larger set, the network grows one tree.
const TRIED: usize = 2048;
/// In such a tree, when this share of a part's rules (percent) reaches nearly all children, they move to a
/// separate tree.
const WIDE_PERCENT: usize = 10;
/// Most rules from which the network learns.
pub(super) const LEARNT: usize = 1024;

/// A model in use for one rule set.
#[derive(Clone, Debug)]
pub struct Learner {
    pub(super) options: Options,
    policy: Arc<Policy>,
    /// Number of decisions from which the policy has learned.
    steps: u64,
    plan: Arc<Plan>,
    /// Number of decisions that the next build may use for training.
    pub(super) budget: u64,
    /// Cost of the tree that was built last; `None` if it was not compared with others.
    pub(super) cost: Option<Cost>,
}

impl Learner {
    /// A learner with this model.
    pub(super) fn new(model: &Model, options: Options) -> Learner {
        let (policy, plan) = (Arc::clone(&model.policy), Arc::clone(&model.plan));
        Learner { options, policy, steps: model.steps, plan, budget: 0, cost: None }
    }

    /// The model in its present state.
    pub(super) fn model(&self) -> Model {
        Model { policy: Arc::clone(&self.policy), plan: Arc::clone(&self.plan), steps: self.steps }
    }

    /// Grows trees by the heuristics and by the network. Returns the best tree, and which of them made it.
    fn tried(&self, space: &Space) -> (Grown, Chooser) {
        let objective = self.options.objective;
        let mut best = grow(space, &mut Likeliest::new(&self.policy), &objective);
        let mut chooser = Chooser::Network;
        for (at, mut greedy) in Greedy::variants().into_iter().enumerate() {
            let grown = grow(space, &mut greedy, &objective);
            if grown.0 > best.0 {
                best = grown;
                chooser = Chooser::Heuristic(at as u8);
            }
        }
        (best, chooser)
    }

    /// Trains the network for this build. Returns the best tree that it grew, if that tree is for all rules.
    fn learn(&mut self, from: &build::Space, whole: &Part) -> Option<Grown> {
        let mut rng = Rng::new(self.options.seed);
        let space = Space::new(from, whole, LEARNT, &mut rng);
        let policy = Arc::make_mut(&mut self.policy);
        let mut trainer = Trainer { policy, objective: self.options.objective, rng };
        let mut trained = trainer.run(std::slice::from_ref(&space), self.budget);
        self.steps = self.steps.saturating_add(trained.steps);
        let best = trained.best.pop().flatten();
        best.filter(|_| space.rules == from.len())
    }

    /// The action for a node that is not in the plan.
    fn decide(&self, from: &build::Space, part: &Part, depth: u32, parts: Option<usize>) -> Action {
        let space = Space::new(from, part, SAMPLE, &mut Rng::new(digest(&part.rules)));
        let mut taken = UNTAKEN;
        for (&dim, (known, _)) in from.dims().iter().zip(&part.known) {
            taken[usize::from(dim)] = *known;
        }
        let mut node = Node::whole(&space, taken, depth, parts.is_some());
        // The number of partitions above is not known; it is estimated from the depth.
        node.parted = (depth / 4).min(PARTED_MAX.into()) as u8;
        let parts = parts.unwrap_or(PARTS_MAX);
        match self.plan.chooser {
            Chooser::Network => Likeliest::new(&self.policy).decide(&space, &node, parts).0,
            Chooser::Heuristic(at) => {
                let [.., last] = Greedy::variants();
                Greedy::variants().into_iter().nth(at.into()).unwrap_or(last).decide(&space, &node, parts).0
            }
        }
    }

    /// The action of the plan for these rules, if the plan is for this space.
    fn planned(&self, space: &build::Space, rules: &[u32]) -> Option<Action> {
        let plan = &self.plan;
        if plan.rules != space.len() { None } else { plan.actions.get(&digest(rules)).copied() }
    }

    fn divide(&self, space: &build::Space, rules: Vec<u32>, depth: u32, parts: &mut usize) -> Vec<Vec<u32>> {
        let action = match self.planned(space, &rules) {
            Some(action) => action,
            None => self.decide(space, &space.part(rules.clone()), depth, Some(*parts)),
        };
        let fixed_bits = |rule: u32, field: u8| space.fixed_bits(rule, field);
        let (parting, count) = match action {
            Action::Simple { field, least } => (Parting::Simple { field, least }, 2),
            Action::Large => {
                let (map, count) = categories(rules.iter().copied(), fixed_bits);
                (Parting::Large(map), count)
            }
            Action::Leaf | Action::Cut(_) => return vec![rules],
        };
        if *parts + count - 1 > PARTS_MAX {
            return vec![rules];
        }
        *parts += count - 1;
        let mut groups = vec![Vec::new(); count];
        let mut fullest = 0;
        for &rule in &rules {
            let group = parting.part(|field| fixed_bits(rule, field)).min(count - 1);
            groups[group].push(rule);
            fullest = fullest.max(groups[group].len());
        }
        if fullest == rules.len() {
            return vec![rules];
        }
        let filled = groups.into_iter().filter(|group| !group.is_empty());
        filled.flat_map(|group| self.divide(space, group, depth + 1, parts)).collect()
    }
}

fn grow(space: &Space, decide: &mut impl Decide, objective: &Objective) -> Grown {
    let (decisions, cost) = Grower::grow(space, decide);
    (reward(objective, &cost, space.rules), cost, decisions)
}

/// A hash of everything that a rule set's rules match, and of their order.
pub(super) fn fingerprint(space: &build::Space) -> u64 {
    let mut sum = space.len() as u64;
    let mut add =
        |word: u32| sum = (sum.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    space.dims().iter().for_each(|&dim| add(dim.into()));
    for rule in 0..space.len() as u32 {
        for dim in 0..space.dims().len() {
            let Extent { first, last, mask, value } = *space.extent(rule, dim);
            [first, last, mask, value].into_iter().for_each(&mut add);
        }
    }
    // Zero means "no rules".
    sum.max(1)
}

impl tree::Policy for Learner {
    fn prepare(&mut self, space: &build::Space) {
        let print = fingerprint(space);
        if self.plan.fingerprint == print && self.budget == 0 {
            // A plan exists already: from a loaded model, or from the last build.
            Arc::make_mut(&mut self.plan).rules = space.len();
            return;
        }
        let whole = space.whole();
        let learnt = if self.budget > 0 { self.learn(space, &whole) } else { None };
        let mut plan = Plan { fingerprint: print, rules: space.len(), ..Plan::default() };
        self.cost = None;
        if space.len() <= TRIED {
            let tried = Space::new(space, &whole, TRIED, &mut Rng::new(self.options.seed));
            let (best, chooser) = self.tried(&tried);
            let best = learnt.filter(|learnt| learnt.0 > best.0).unwrap_or(best);
            self.cost = Some(best.1);
            (plan.chooser, plan.actions) = (chooser, best.2.into_iter().collect());
        }
        self.plan = Arc::new(plan);
    }

    fn partition(&self, space: &build::Space, rules: Vec<u32>) -> Vec<Vec<u32>> {
        // A separate tree gets fewer rules, which were divided before.
        if rules.len() == space.len() { self.divide(space, rules, 0, &mut 1) } else { vec![rules] }
    }

    fn choose(&self, space: &build::Space, part: &Part, depth: u32) -> build::Action {
        let action = match self.planned(space, &part.rules) {
            Some(action) => action,
            None if depth >= MAX_DEPTH => Action::Leaf,
            None => self.decide(space, part, depth, None),
        };
        match action {
            Action::Cut(windows) => build::Action::Windows(windows),
            Action::Simple { field, least } => build::Action::SeparateTree { field, least },
            Action::Leaf | Action::Large => build::Action::Leaf,
        }
    }

    fn leaf_rules(&self) -> usize {
        super::grow::FEW
    }

    fn limits(&self) -> Limits {
        if self.plan.actions.is_empty() {
            // The size of this tree is not known in advance: rules with many copies get a separate tree.
            Limits { copies: 128, total: 8 }
        } else {
            Limits { copies: usize::MAX, total: COPIES + 4 }
        }
    }

    fn wide_percent(&self) -> usize {
        if self.plan.actions.is_empty() { WIDE_PERCENT } else { 100 }
    }

    fn memory_bytes(&self) -> usize {
        let shipped = Arc::ptr_eq(&self.policy, &super::shipped().policy);
        self.plan.memory_bytes() + if shipped { 0 } else { self.policy.memory_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{self, Family, Fields, Traffic};
    use crate::rl_tree::RlTree;
    use crate::tree::node::Window;
    use crate::{Classifier, List};

    /// Any action that a model file may contain, useful or not.
    fn any_action(rng: &mut Rng) -> Action {
        loop {
            let window = |rng: &mut Rng| Window {
                field: rng.below(8) as u8,
                shift: rng.below(32) as u8,
                bits: rng.below(5) as u8,
            };
            let action = match rng.below(8) {
                0 => Action::Simple { field: rng.below(8) as u8, least: 1 + rng.below(32) as u8 },
                1 => Action::Large,
                _ => Action::Cut([window(rng), window(rng), window(rng)]),
            };
            if let Some(action) = Action::from_bytes(action.to_bytes()) {
                return action;
            }
        }
    }

    /// A model file may contain any decisions, even for the very rules for which it is used.
    #[test]
    fn hostile_decisions_make_no_wrong_verdicts() {
        for seed in 0..24 {
            let family = Family::CLASSBENCH[seed as usize % 3];
            let fields = if seed % 2 == 0 { Fields::FiveTuple } else { Fields::Full };
            let rules = generate::rules(family, fields, 150, seed);
            let keys = generate::trace(&rules, Traffic::Uniform, 300, seed);
            let (mut list, mut tree) = (List::new(), RlTree::new());
            list.insert_all(&rules).unwrap();
            tree.insert_all(&rules).unwrap();
            // Several rounds: each replaces decisions for nodes that the round before has made.
            let mut rng = Rng::new(seed);
            let mut model = tree.model();
            for _ in 0..4 {
                let plan = Arc::make_mut(&mut model.plan);
                // In the order of their digests, so that a failure can be reproduced.
                let mut actions: Vec<_> = plan.actions.iter_mut().collect();
                actions.sort_unstable_by_key(|(digest, _)| **digest);
                actions.into_iter().for_each(|(_, action)| *action = any_action(&mut rng));
                tree = RlTree::with_model(&model, Options::default());
                tree.insert_all(&rules).unwrap();
                check(&list, &tree, &keys);
            }
            for rule in rules.iter().step_by(2) {
                assert!(tree.remove(rule.id) && list.remove(rule.id));
            }
            check(&list, &tree, &keys);
            for rule in rules.iter().step_by(2) {
                tree.insert(*rule).unwrap();
                list.insert(*rule).unwrap();
            }
            check(&list, &tree, &keys);
        }
    }

    fn check(list: &List, tree: &RlTree, keys: &[crate::Key]) {
        let (mut expected, mut got) = (vec![None; keys.len()], vec![None; keys.len()]);
        list.classify(keys, &mut expected);
        tree.classify(keys, &mut got);
        assert_eq!(expected, got);
    }
}
