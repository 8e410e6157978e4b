//! Learning: whole trees are grown with random decisions, and the policy moves towards the better ones.
//!
//! The update is proximal policy optimisation (Schulman et al., "Proximal Policy Optimization Algorithms",
//! 2017), as in the paper. It makes several passes over the decisions of a few trees; clipping the ratio of
//! probabilities keeps the policy near the one that took the decisions. Every decision has its own return, that
//! of its subtree, so there is no discount and no estimate of later rewards: the advantage is the reward less
//! the critic's prediction.

use super::candidate::INPUTS;
use super::grow::{Cost, Decisions, Grower};
use super::model::Model;
use super::net::{Adam, Net};
use super::policy::{Explorer, Greedy, Likeliest, Policy, Step, softmax};
use super::rng::Rng;
use super::space::Space;
use super::{Measure, Objective, Options, Scale, learner};
use crate::tree::build;
use crate::tree::entry::Pool;
use crate::tree::node::Extent;
use crate::{Matcher, Rule};

/// Decisions per update; the paper's batch is 60 000, for a network 500 times as large.
const BATCH: usize = 1024;
/// Decisions per step of the optimiser.
const MINIBATCH: usize = 64;
/// Passes over a batch.
const PASSES: usize = 3;
/// How far the ratio of probabilities may move from one per batch.
const CLIP: f32 = 0.2;
/// Weight of the entropy in the loss, which keeps the policy exploring.
const ENTROPY: f32 = 0.005;
const RATE: f32 = 2e-3;
/// Longest gradient of a step.
const LONGEST: f32 = 1.0;

/// The reward for a subtree of `rules` rules. Space is counted per rule.
pub(super) fn reward(objective: &Objective, cost: &Cost, rules: usize) -> f32 {
    let time = match objective.time {
        Measure::Mean => cost.mean,
        Measure::Worst => cost.worst,
    };
    let space = cost.bytes / rules.max(1) as f32;
    let share = objective.time_share.clamp(0.0, 1.0);
    match objective.scale {
        Scale::Log => -(share * time.max(1.0).ln() + (1.0 - share) * space.max(1.0).ln()),
        Scale::Linear => -(share * time / 10.0 + (1.0 - share) * space / 50.0),
    }
}

/// Reward, cost and decisions of a grown tree.
pub(super) type Grown = (f32, Cost, Decisions);

/// Result of training.
pub(super) struct Trained {
    /// The best tree that was grown for each space, with its reward.
    pub best: Vec<Option<Grown>>,
    /// Number of decisions taken.
    pub steps: u64,
    /// Number of trees grown.
    pub trees: u64,
}

/// A policy in training.
pub(super) struct Trainer<'a> {
    pub policy: &'a mut Policy,
    pub objective: Objective,
    pub rng: Rng,
}

/// Decisions with everything that an update needs.
#[derive(Default)]
struct Batch {
    steps: Vec<Step>,
    inputs: Vec<[f32; INPUTS]>,
}

impl Trainer<'_> {
    /// Learns from `spaces` in turn, for `budget` decisions.
    pub fn run(&mut self, spaces: &[Space], budget: u64) -> Trained {
        let mut trained = Trained { best: spaces.iter().map(|_| None).collect(), steps: 0, trees: 0 };
        let mut actor = Adam::new(self.policy.actor.weights().len());
        let mut critic = Adam::new(self.policy.critic.weights().len());
        while trained.steps < budget && !spaces.is_empty() {
            let mut batch = Batch::default();
            let before = trained.trees;
            while batch.steps.len() < BATCH && trained.trees - before < BATCH as u64 {
                let which = trained.trees as usize % spaces.len();
                let (decisions, cost) = self.episode(&spaces[which], &mut batch);
                trained.trees += 1;
                let reward = reward(&self.objective, &cost, spaces[which].rules);
                let best = &mut trained.best[which];
                if best.as_ref().is_none_or(|best| reward > best.0) {
                    *best = Some((reward, cost, decisions));
                }
            }
            if batch.steps.is_empty() {
                break;
            }
            trained.steps += batch.steps.len() as u64;
            // Smaller steps towards the end, so that the result does not depend on the last few trees.
            let left = 1.0 - trained.steps as f32 / budget as f32;
            self.update(&batch, RATE * left.max(0.1), &mut actor, &mut critic);
        }
        trained
    }

    fn episode(&mut self, space: &Space, batch: &mut Batch) -> (Decisions, Cost) {
        let objective = self.objective;
        let judge = move |cost: &Cost, rules: usize| reward(&objective, cost, rules);
        let mut explorer = Explorer::new(self.policy, &mut self.rng, &judge);
        let grown = Grower::grow(space, &mut explorer);
        let moved = batch.inputs.len();
        let steps = explorer.steps.into_iter().filter(|step| step.reward.is_finite());
        batch.steps.extend(steps.map(|step| Step {
            candidates: step.candidates.start + moved..step.candidates.end + moved,
            ..step
        }));
        batch.inputs.extend(explorer.inputs);
        grown
    }

    fn update(&mut self, batch: &Batch, rate: f32, actor: &mut Adam, critic: &mut Adam) {
        let expected = |step: &Step| self.policy.critic.forward(&step.node).output;
        let mut advantages: Vec<f32> = batch.steps.iter().map(|step| step.reward - expected(step)).collect();
        normalise(&mut advantages);
        let mut order: Vec<usize> = (0..batch.steps.len()).collect();
        let mut actor_slope = vec![0.0; self.policy.actor.weights().len()];
        let mut critic_slope = vec![0.0; self.policy.critic.weights().len()];
        for _ in 0..PASSES {
            self.rng.shuffle(&mut order);
            for few in order.chunks(MINIBATCH) {
                let share = 1.0 / few.len() as f32;
                for &at in few {
                    let step = &batch.steps[at];
                    let inputs = &batch.inputs[step.candidates.clone()];
                    act(&self.policy.actor, step, inputs, advantages[at], share, &mut actor_slope);
                    let trace = self.policy.critic.forward(&step.node);
                    let slope = share * (trace.output - step.reward);
                    self.policy.critic.backward(&step.node, &trace, slope, &mut critic_slope);
                }
                actor.step(&mut self.policy.actor, &mut actor_slope, rate, LONGEST);
                critic.step(&mut self.policy.critic, &mut critic_slope, rate, LONGEST);
            }
        }
    }
}

/// Shifts and scales values to mean zero and deviation one.
fn normalise(values: &mut [f32]) {
    let count = values.len().max(1) as f32;
    let mean = values.iter().sum::<f32>() / count;
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / count;
    let scale = 1.0 / (variance.sqrt() + 1e-6);
    values.iter_mut().for_each(|value| *value = (*value - mean) * scale);
}

/// Adds the gradient of the clipped loss and of the entropy for one decision.
fn act(actor: &Net, step: &Step, inputs: &[[f32; INPUTS]], advantage: f32, share: f32, gradient: &mut [f32]) {
    let traces: Vec<_> = inputs.iter().map(|inputs| actor.forward(inputs)).collect();
    let mut chances: Vec<f32> = traces.iter().map(|trace| trace.output).collect();
    softmax(&mut chances);
    let ratio = chances[step.taken] / step.probability.max(1e-8);
    // Beyond the clip, further change in the same direction gains nothing.
    let clipped = advantage > 0.0 && ratio > 1.0 + CLIP || advantage < 0.0 && ratio < 1.0 - CLIP;
    let pull = if clipped { 0.0 } else { advantage * ratio };
    let entropy: f32 = -chances.iter().map(|chance| chance * chance.max(1e-12).ln()).sum::<f32>();
    for (at, (inputs, trace)) in inputs.iter().zip(&traces).enumerate() {
        let chance = chances[at];
        let taken = if at == step.taken { 1.0 } else { 0.0 };
        let spread = -chance * (chance.max(1e-12).ln() + entropy);
        let slope = -share * (pull * (taken - chance) + ENTROPY * spread);
        // Slopes near zero are common once the policy is sure; skipping them saves most of the work.
        if slope.abs() > 1e-9 {
            actor.backward(inputs, trace, slope, gradient);
        }
    }
}

/// A training run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Training {
    /// The goal.
    pub objective: Objective,
    /// Number of decisions to learn from. A hundred thousand take about ten seconds.
    pub decisions: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Training {
    fn default() -> Training {
        Training { objective: Objective::default(), decisions: 100_000, seed: Options::default().seed }
    }
}

/// What a training run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Number of decisions from which it learned.
    pub decisions: u64,
    /// Number of trees that it grew.
    pub trees: u64,
}

/// Cost of a tree by the cost model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TreeCost {
    /// Average nanoseconds per look-up, over one random key per rule.
    pub mean_ns: f32,
    /// Nanoseconds on the slowest path.
    pub worst_ns: f32,
    /// Octets of nodes and leaves.
    pub bytes: f32,
}

impl From<Cost> for TreeCost {
    fn from(cost: Cost) -> TreeCost {
        TreeCost { mean_ns: cost.mean, worst_ns: cost.worst, bytes: cost.bytes }
    }
}

impl Model {
    /// Learns from these rule sets in turn. Sets of more than about a thousand rules are sampled.
    ///
    /// ```
    /// # use classifier::rl_tree::{Model, Training};
    /// # let rules = Vec::new();
    /// let mut model = Model::random(1);
    /// model.train(&[rules], &Training { decisions: 1000, ..Training::default() });
    /// let file = model.to_bytes();
    /// assert_eq!(Model::from_bytes(&file), Ok(model));
    /// ```
    pub fn train(&mut self, sets: &[Vec<Rule>], training: &Training) -> Progress {
        let mut rng = Rng::new(training.seed);
        let spaces: Vec<Space> = sets.iter().map(|rules| sampled(rules, &mut rng)).collect();
        let policy = std::sync::Arc::make_mut(&mut self.policy);
        let trained = Trainer { policy, objective: training.objective, rng }.run(&spaces, training.decisions);
        self.steps = self.steps.saturating_add(trained.steps);
        Progress { decisions: trained.steps, trees: trained.trees }
    }

    /// Cost of the best tree of the greedy heuristics, with which exploration is compared.
    pub fn evaluate_heuristics(rules: &[Rule], objective: &Objective) -> TreeCost {
        let space = sampled(rules, &mut Rng::new(0));
        let costs = Greedy::variants().map(|mut greedy| Grower::grow(&space, &mut greedy).1);
        let judge = |cost: &Cost| reward(objective, cost, space.rules);
        let best = costs.into_iter().max_by(|a, b| judge(a).total_cmp(&judge(b)));
        best.unwrap_or_default().into()
    }

    /// Cost of the tree that the policy alone makes of these rules, or of a sample of them.
    pub fn evaluate(&self, rules: &[Rule]) -> TreeCost {
        let space = sampled(rules, &mut Rng::new(0));
        Grower::grow(&space, &mut Likeliest::new(&self.policy)).1.into()
    }
}

/// The space of these rules, or of a sample if they are more than the network learns from.
fn sampled(rules: &[Rule], rng: &mut Rng) -> Space {
    let mut pool = Pool::default();
    let mut rows: Vec<_> = rules
        .iter()
        .filter_map(|rule| {
            let matcher = Matcher::new(&rule.filter)?;
            Some((pool.entry(&matcher, rule.rank(), rule.value), Extent::all(&matcher)))
        })
        .collect();
    rows.sort_by_key(|(entry, _)| entry.rank());
    let space = build::Space::new(rows);
    Space::new(&space, &space.whole(), learner::LEARNT, rng)
}
