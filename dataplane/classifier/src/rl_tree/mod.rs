//! Decision trees chosen by reinforcement learning, as NeuroCuts does (E. Liang, H. Zhu, X. Jin, I. Stoica, "Neural
//! Packet Classification", ACM SIGCOMM 2019).
//!
//! A tree grows node by node; at each node a policy chooses between cutting by bits of fields, parting the rules among
//! several trees, and a leaf. What a choice was worth shows when the subtree below is complete: its look-up time and
//! size are the reward. A small network learns from whole trees to choose better ones.
//!
//! ```text
//! rules ─► space    columns of the used fields, one random key per rule
//!          grow     the decision process: node + action → children, and the cost of subtrees
//!          candidate  actions worth considering, with the numbers that the policy sees of each
//!          action   what actions do
//!          policy   network, exploration, heuristics
//!          train    proximal policy optimisation on grown trees
//!          model    weights and decisions as a file
//!          learner  the result as the policy of a tree::Forest, which looks up and updates
//! ```
//!
//! # Where we differ from the paper
//! - The paper's policy sees the box of a node in binary, one network output per action, and is trained for hours on
//!   each rule set. Ours sees what each action would do, in numbers that mean the same for every rule set, and scores
//!   actions by one small network (see [`candidate`]). So a trained policy holds for rules it never saw: the
//!   crate ships one, and a build is quick without any training.
//! - A cut takes bits of up to three fields, as nodes of [`tree`](crate::tree) can; where a branch ends is a decision;
//!   rules may be parted at any node, not only above the first cut.
//! - Time is by default the expected cost over random keys of all rules instead of the worst path (the paper's
//!   objective is [`Measure::Worst`]), in nanoseconds per step measured for this core.
//! - Rules with too many copies go to another tree (see [`tree::build`](mod@crate::tree::build)), so that memory is
//!   bounded whatever the policy does.
//!
//! # When it learns
//! [`insert_all`](crate::Classifier::insert_all) and [`optimise`](crate::Classifier::optimise) may train, as many
//! decisions as [`Options`] say; single updates never do. Afterwards the best tree that was seen is
//! built, be it of the network, of exploration or of one of the greedy heuristics: never a worse one than
//! theirs, by the cost model. Sets of more than a thousand rules learn from a sample. For more than two thousand no
//! trees are compared: the network grows one, and rules that reach far are put beside the others.
//!
//! For a long run, train a [`Model`] on rule sets of the kind expected ([`Model::train`]), save it, and start
//! classifiers with [`RlTree::with_model`].
//!
//! # Costs
//! A look-up reads one node of 16 octets per level and one leaf per tree. A build looks at up to 256 rules per node.
//! Updates are those of [`Forest`]: a rule goes to the leaves it reaches; a leaf that grew is
//! divided anew by the network.

mod action;
mod candidate;
mod grow;
mod learner;
mod model;
mod net;
mod policy;
mod rng;
mod space;
mod train;

use std::sync::OnceLock;

pub use learner::Learner;
pub use model::{Model, ModelError};
pub use train::{Progress, Training, TreeCost};

use crate::tree::{Forest, Shape};
use crate::{Classifier, InsertError, Key, Rule, Verdict};

/// Which time of a tree counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Expected over random keys, one per rule.
    Mean,
    /// That of the slowest path, as in the paper.
    Worst,
}

/// How time and space become a reward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Logarithms: a tenth less counts the same everywhere. For a mix of time and space.
    Log,
    /// As they are.
    Linear,
}

/// What a good tree is: the paper's `c · f(time) + (1 - c) · f(space)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Objective {
    /// Time.
    pub time: Measure,
    /// `f`.
    pub scale: Scale,
    /// `c`, in 0…1: one for time only, zero for space only.
    pub time_share: f32,
}

impl Default for Objective {
    /// Mostly expected time.
    fn default() -> Objective {
        Objective { time: Measure::Mean, scale: Scale::Log, time_share: 0.85 }
    }
}

/// How a classifier learns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// What for.
    pub objective: Objective,
    /// Decisions that [`insert_all`](Classifier::insert_all) may learn from, and at most [`Options::per_rule`] times
    /// the rules. Ten thousand take about a second.
    pub insert_all_budget: u64,
    /// The same for [`optimise`](Classifier::optimise).
    pub optimise_budget: u64,
    /// Bounds the budgets for few rules; with fewer than 64, nothing is learnt.
    pub per_rule: u64,
    /// Of the random numbers: the same seed and rules, the same tree.
    pub seed: u64,
}

impl Default for Options {
    /// A build without training, an optimisation with some.
    fn default() -> Options {
        Options {
            objective: Objective::default(),
            insert_all_budget: 0,
            optimise_budget: 8192,
            per_rule: 8,
            seed: 1,
        }
    }
}

/// With fewer rules there is nothing to learn: they are a few blocks, whatever the tree.
const LEARN_MIN: usize = 64;

/// The model that the crate ships: trained by `examples/rl_tree_train.rs` with 150,000 decisions on generated rule
/// sets of every family, of 60 to 1000 rules.
pub fn shipped() -> &'static Model {
    static SHIPPED: OnceLock<Model> = OnceLock::new();
    SHIPPED.get_or_init(|| {
        Model::from_bytes(include_bytes!("default.model")).unwrap_or_else(|_| Model::random(1))
    })
}

/// Trees chosen by a policy that learns.
#[derive(Clone, Debug)]
pub struct RlTree {
    forest: Forest<Learner>,
}

impl Default for RlTree {
    fn default() -> RlTree {
        RlTree::new()
    }
}

impl RlTree {
    /// No rules; decides by the model that the crate ships.
    pub fn new() -> RlTree {
        RlTree::with_model(shipped(), Options::default())
    }

    /// No rules; decides by this model. When it comes with the decisions for the rules that are inserted,
    /// those are repeated.
    pub fn with_model(model: &Model, options: Options) -> RlTree {
        RlTree { forest: Forest::new(Learner::new(model, options)) }
    }

    /// What it has learnt so far, with the decisions of the tree that was built last: to be saved.
    pub fn model(&self) -> Model {
        self.forest.policy().model()
    }

    /// What the tree that was built last should cost, by the cost model. `None` when it was not compared with others.
    pub fn expected_cost(&self) -> Option<TreeCost> {
        self.forest.policy().cost.map(TreeCost::from)
    }

    /// The trees as they are, and the list beside them as the last.
    pub fn shapes(&self) -> Vec<Shape> {
        self.forest.shapes()
    }

    /// The trees with their policy.
    pub fn forest(&self) -> &Forest<Learner> {
        &self.forest
    }

    /// Allows the next build to learn from so many decisions, fewer for few `rules`.
    fn allow(&mut self, budget: impl Fn(&Options) -> u64, rules: usize) {
        let learner = self.forest.policy_mut();
        let bound = learner.options.per_rule.saturating_mul(rules as u64);
        learner.budget = if rules < LEARN_MIN { 0 } else { budget(&learner.options).min(bound) };
    }
}

impl Classifier for RlTree {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        self.forest.classify(keys, verdicts);
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        self.forest.insert(rule)
    }

    fn remove(&mut self, id: u32) -> bool {
        self.forest.remove(id)
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        self.forest.set_precedence(id, precedence)
    }

    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        self.allow(|options| options.insert_all_budget, rules.len() + self.len());
        let result = self.forest.insert_all(rules);
        self.allow(|_| 0, 0);
        result
    }

    fn optimise(&mut self) {
        self.allow(|options| options.optimise_budget, self.len());
        self.forest.optimise();
        self.allow(|_| 0, 0);
    }

    fn memory_bytes(&self) -> usize {
        self.forest.memory_bytes()
    }

    fn len(&self) -> usize {
        self.forest.len()
    }
}
