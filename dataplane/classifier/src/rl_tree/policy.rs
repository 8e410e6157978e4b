//! The policy: chooses a candidate at a node, and predicts the cost of the node.
//!
//! An actor scores every candidate, and the scores become probabilities (softmax); a critic predicts the reward of
//! the node. Both are a [`Net`].

use super::action::Action;
use super::candidate::{Candidate, CandidateFinder, INPUTS, NODE_INPUTS};
use super::grow::{Cost, Decide, Node};
use super::net::Net;
use super::rng::Rng;
use super::space::Space;

/// The networks of actor and critic.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Policy {
    pub actor: Net,
    pub critic: Net,
}

impl Policy {
    /// An untrained policy: all actions are about equally likely.
    pub fn random(rng: &mut Rng) -> Policy {
        Policy { actor: Net::random(INPUTS, rng), critic: Net::random(NODE_INPUTS, rng) }
    }

    /// Octets on the heap.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(self.actor.weights()) + size_of_val(self.critic.weights())
    }

    /// Computes the probabilities of the candidates, in their order.
    pub fn probabilities(&self, candidates: &[Candidate], into: &mut Vec<f32>) {
        into.clear();
        into.extend(candidates.iter().map(|candidate| self.actor.forward(&candidate.inputs).output));
        softmax(into);
    }
}

/// Turns scores into probabilities.
pub(super) fn softmax(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - most).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// Takes the most likely action; not random.
pub(super) struct Likeliest<'a> {
    policy: &'a Policy,
    finder: CandidateFinder,
}

impl<'a> Likeliest<'a> {
    pub fn new(policy: &'a Policy) -> Likeliest<'a> {
        Likeliest { policy, finder: CandidateFinder::default() }
    }
}

impl Decide for Likeliest<'_> {
    fn decide(&mut self, space: &Space, node: &Node, parts: usize) -> (Action, usize) {
        self.finder.list(space, node, parts);
        let score = |candidate: &Candidate| self.policy.actor.forward(&candidate.inputs).output;
        let scored = self.finder.candidates.iter().map(|candidate| (score(candidate), candidate.action));
        let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
        (best.map_or(Action::Leaf, |(_, action)| action), 0)
    }
}

/// One decision of an episode.
pub(super) struct Step {
    /// Inputs of the critic.
    pub node: [f32; NODE_INPUTS],
    /// Inputs of the actor for all candidates, as a range of [`Explorer::inputs`].
    pub candidates: std::ops::Range<usize>,
    /// Index of the candidate that was taken, and its probability.
    pub taken: usize,
    pub probability: f32,
    /// The reward; `NAN` until it is known.
    pub reward: f32,
}

/// Takes random actions, with the probabilities of the policy, and records the rewards.
pub(super) struct Explorer<'a> {
    policy: &'a Policy,
    rng: &'a mut Rng,
    judge: &'a dyn Fn(&Cost, usize) -> f32,
    finder: CandidateFinder,
    probabilities: Vec<f32>,
    pub steps: Vec<Step>,
    pub inputs: Vec<[f32; INPUTS]>,
}

impl<'a> Explorer<'a> {
    /// `judge` computes the reward of a subtree from its cost and number of rules.
    pub fn new(policy: &'a Policy, rng: &'a mut Rng, judge: &'a dyn Fn(&Cost, usize) -> f32) -> Explorer<'a> {
        let (probabilities, steps, inputs) = (Vec::new(), Vec::new(), Vec::new());
        Explorer { policy, rng, judge, finder: CandidateFinder::default(), probabilities, steps, inputs }
    }
}

impl Decide for Explorer<'_> {
    fn decide(&mut self, space: &Space, node: &Node, parts: usize) -> (Action, usize) {
        self.finder.list(space, node, parts);
        let candidates = &self.finder.candidates;
        if candidates.is_empty() {
            return (Action::Leaf, usize::MAX);
        }
        self.policy.probabilities(candidates, &mut self.probabilities);
        let mut left = self.rng.unit();
        let mut taken = candidates.len() - 1;
        for (at, probability) in self.probabilities.iter().enumerate() {
            left -= probability;
            if left < 0.0 {
                taken = at;
                break;
            }
        }
        let first = self.inputs.len();
        self.inputs.extend(candidates.iter().map(|candidate| candidate.inputs));
        self.steps.push(Step {
            node: self.finder.node,
            candidates: first..self.inputs.len(),
            taken,
            probability: self.probabilities[taken],
            reward: f32::NAN,
        });
        (candidates[taken].action, self.steps.len() - 1)
    }

    fn outcome(&mut self, ticket: usize, rules: usize, cost: &Cost) {
        if let Some(step) = self.steps.get_mut(ticket) {
            step.reward = (self.judge)(cost, rules);
        }
    }
}

/// The heuristic of HiCuts and its successors: takes the cut after which a key meets the fewest rules, as long
/// as copies stay within a limit. The result of exploration is never worse than the best of a few of these.
pub(super) struct Greedy {
    /// Limit for the rules in all children, as a multiple of the rules in the node.
    pub copies: f32,
    /// Whether the first action is the EffiCuts partition.
    pub large_first: bool,
    finder: CandidateFinder,
}

impl Greedy {
    /// The variants that are compared.
    pub fn variants() -> [Greedy; 6] {
        [(1.2, false), (1.2, true), (2.0, false), (2.0, true), (4.0, false), (4.0, true)]
            .map(|(copies, large_first)| Greedy { copies, large_first, finder: CandidateFinder::default() })
    }
}

impl Decide for Greedy {
    fn decide(&mut self, space: &Space, node: &Node, parts: usize) -> (Action, usize) {
        self.finder.list(space, node, parts);
        let candidates = &self.finder.candidates;
        let large = |candidate: &Candidate| candidate.action == Action::Large;
        if self.large_first && node.depth == 0 && candidates.iter().any(large) {
            return (Action::Large, 0);
        }
        let cuts = candidates.iter().filter(|candidate| {
            matches!(candidate.action, Action::Cut { .. }) && candidate.copies <= self.copies
        });
        let best = cuts.min_by(|a, b| a.meets.total_cmp(&b.meets));
        let worth = best.filter(|best| node.rules.len() > 32 || best.meets * 1.5 < node.rules.len() as f32);
        (worth.map_or(Action::Leaf, |best| best.action), 0)
    }
}
