//! Decision trees chosen by reinforcement learning, as NeuroCuts does (E. Liang, H. Zhu, X. Jin, I. Stoica, "Neural
//! Packet Classification", ACM SIGCOMM 2019).
//!
//! A tree grows node by node. At each node a policy chooses between cutting by bits of fields, dividing the
//! rules among several trees, and a leaf. The value of a choice is known when the subtree below it is complete:
//! its look-up time and size are the reward. A small network learns from whole trees to choose better.
//!
//! ```text
//! rules ─► space    columns of the used fields, one random key per rule
//!          grow     the decision process: node + action → children, and the cost of subtrees
//!          candidate  actions to consider, with the inputs of the policy for each
//!          action   effects of actions
//!          policy   network, exploration, heuristics
//!          train    proximal policy optimisation on grown trees
//!          model    weights and decisions as a file
//!          learner  the result as policy of a tree::Forest, which does look-ups and updates
//! ```
//!
//! # Differences from the paper
//! - The paper's policy sees the box of a node in binary, has one network output per action, and is trained for
//!   hours on each rule set. This policy sees the effects of each action, in numbers that mean the same for
//!   every rule set, and scores actions by one small network (see [`candidate`]). So a trained policy also
//!   works for rules that it never saw: the crate ships one, and a build without training is quick.
//! - A cut uses bits of up to three fields, as nodes of [`tree`](crate::tree) can. Whether a branch ends is a
//!   decision. Rules may be divided among trees at any node, not only above the first cut.
//! - Time is by default the expected cost over random keys of all rules, instead of the slowest path (the
//!   paper's objective, [`Measure::Worst`]). It is in nanoseconds, measured for each step of this
//!   implementation.
//! - Rules with too many copies go to a separate tree (see [`tree::build`](mod@crate::tree::build)), so that
//!   memory is bounded whatever the policy does.
//!
//! # When it learns
//! [`insert_all`](crate::Classifier::insert_all) and [`optimise`](crate::Classifier::optimise) may train, with
//! as many decisions as [`Options`] allow; single updates never do. Afterwards the best tree that was seen is
//! built, whether it came from the network, from exploration or from one of the greedy heuristics. So by the
//! cost model it is never worse than a heuristic's tree. Sets of more than a thousand rules are sampled for
//! learning. For more than two thousand rules no trees are compared: the network grows one, and rules that
//! reach far move to a separate tree.
//!
//! For a long training run, train a [`Model`] on rule sets of the expected kind ([`Model::train`]), save it,
//! and start classifiers with [`RlTree::with_model`].
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

use crate::tree::{Forest, TreeStats};
use crate::{Classifier, InsertError, Key, Rule, Verdict};

/// Which look-up time of a tree counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// The expected time over random keys, one per rule.
    Mean,
    /// The time of the slowest path, as in the paper.
    Worst,
}

/// How time and space are scaled in the reward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Logarithms: a tenth less counts the same for small and large trees. For a mix of time and space.
    Log,
    /// Unchanged.
    Linear,
}

/// The goal of learning: the paper's `c · f(time) + (1 - c) · f(space)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Objective {
    /// Which time counts.
    pub time: Measure,
    /// `f`.
    pub scale: Scale,
    /// `c`, from 0 to 1: 1 for time only, 0 for space only.
    pub time_share: f32,
}

impl Default for Objective {
    /// Mostly the expected time.
    fn default() -> Objective {
        Objective { time: Measure::Mean, scale: Scale::Log, time_share: 0.85 }
    }
}

/// How a classifier learns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// The goal.
    pub objective: Objective,
    /// Most decisions that [`insert_all`](Classifier::insert_all) may learn from; also at most
    /// [`Options::per_rule`] times the number of rules. Ten thousand take about a second.
    pub insert_all_budget: u64,
    /// The same limit for [`optimise`](Classifier::optimise).
    pub optimise_budget: u64,
    /// Most decisions per rule. With fewer than 64 rules, nothing is learned.
    pub per_rule: u64,
    /// Seed of the random numbers: the same seed and rules give the same tree.
    pub seed: u64,
}

impl Default for Options {
    /// Insertion without training, optimisation with some.
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

/// Fewer rules are not learned from: any tree of them is a few blocks.
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
    /// A classifier without rules that uses the model shipped with the crate.
    pub fn new() -> RlTree {
        RlTree::with_model(shipped(), Options::default())
    }

    /// A classifier without rules that uses this model. If the model contains the decisions for the rules that
    /// are inserted, it repeats those.
    pub fn with_model(model: &Model, options: Options) -> RlTree {
        RlTree { forest: Forest::new(Learner::new(model, options)) }
    }

    /// The model learned so far, with the decisions of the tree that was built last. To be saved.
    pub fn model(&self) -> Model {
        self.forest.policy().model()
    }

    /// Expected cost of the tree that was built last, by the cost model. `None` when it was not compared with
    /// others.
    pub fn expected_cost(&self) -> Option<TreeCost> {
        self.forest.policy().cost.map(TreeCost::from)
    }

    /// Statistics of every tree, and of the list as the last.
    pub fn tree_stats(&self) -> Vec<TreeStats> {
        self.forest.tree_stats()
    }

    /// The trees with their policy.
    pub fn forest(&self) -> &Forest<Learner> {
        &self.forest
    }

    /// Lets the next build learn from as many decisions as the options allow for `rules` rules.
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
