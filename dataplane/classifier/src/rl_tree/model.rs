//! Model files: a trained policy, and the decisions that built a tree.
//!
//! ```text
//! octets  field (integers and floats little endian)
//!  8      "GWRLTREE"
//!  2      version: 1
//!  2      inputs of the actor, 2 of the critic, 2 hidden units per layer
//!  8      fingerprint of the rules that the decisions are for; zero without decisions
//!  4      number of decisions
//!  8      decisions taken in training
//!  1      source of decisions that are not stored: 0 the network, 1 and up a heuristic
//!  4 × w  weights of the actor, then of the critic
//! 18 × d  decisions: digest of the rules of the node 8, action 10
//!  8      checksum of everything before it (FNV-1a)
//! ```
//! The checksum detects damage, not malice. Whatever a file contains, the classifier that uses it gives right
//! verdicts and keeps to its memory limits: a bad policy makes slow trees, never wrong ones.

use std::collections::HashMap;
use std::sync::Arc;

use super::action::{ACTION_BYTES, Action};
use super::candidate::{INPUTS, NODE_INPUTS};
use super::net::{HIDDEN, Net};
use super::policy::Policy;

const MAGIC: &[u8; 8] = b"GWRLTREE";
const VERSION: u16 = 1;
const HEADER: usize = 8 + 4 * 2 + 8 + 4 + 8 + 1;
/// Most decisions in a file: more than a tree of 100,000 rules has. Bounds the length of a file.
const DECISIONS_MAX: usize = 1 << 20;

/// Why octets are not a valid model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModelError {
    /// Fewer or more octets than the header requires.
    #[error("a model of {expected} octets, but there are {found}")]
    Length {
        /// Length according to the header, or the length of a header.
        expected: usize,
        /// The actual length.
        found: usize,
    },
    /// Not a model file.
    #[error("no model file")]
    Foreign,
    /// A model of another version of this module.
    #[error("a model of version {0}")]
    Version(u16),
    /// A network with other numbers of inputs or units.
    #[error("a model whose network has another shape")]
    Shape,
    /// Too many decisions.
    #[error("a model of {0} decisions")]
    TooLong(u32),
    /// Octets were changed.
    #[error("a damaged model: its checksum differs")]
    Checksum,
    /// A weight that is not a finite number.
    #[error("a model with a weight that is not finite")]
    Weight,
    /// An invalid decision.
    #[error("a model with an unknown decision")]
    Decision,
}

/// A trained policy, and the decisions of the tree for which it was used last.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub(super) policy: Arc<Policy>,
    pub(super) plan: Arc<Plan>,
    pub(super) steps: u64,
}

/// Source of decisions that are not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Chooser {
    #[default]
    Network,
    /// Index of one of the heuristics; a larger number means the last one.
    Heuristic(u8),
}

/// Decisions of one tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Fingerprint of the rules for which the decisions are.
    pub fingerprint: u64,
    /// Number of these rules; not in the file.
    pub rules: usize,
    /// Decides for nodes that are not stored.
    pub chooser: Chooser,
    /// The action of each node, by the digest of its rules.
    pub actions: HashMap<u64, Action>,
}

impl Plan {
    /// Octets on the heap: entries of the map with their control octets.
    pub fn memory_bytes(&self) -> usize {
        self.actions.capacity() * (size_of::<(u64, Action)>() + 1) * 8 / 7
    }
}

impl Model {
    /// An untrained policy: a start for training.
    pub fn random(seed: u64) -> Model {
        let policy = Policy::random(&mut super::rng::Rng::new(seed));
        Model { policy: Arc::new(policy), plan: Arc::default(), steps: 0 }
    }

    /// Number of decisions taken in training.
    pub fn trained_steps(&self) -> u64 {
        self.steps
    }

    /// The policy without the decisions for one rule set: small, and all that other rule sets can use.
    pub fn without_tree(&self) -> Model {
        Model { plan: Arc::default(), ..self.clone() }
    }

    /// The octets of a model file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        for number in [VERSION, INPUTS as u16, NODE_INPUTS as u16, HIDDEN as u16] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        // Sorted, so that equal models have equal files. Cut off at the number that a reader accepts.
        let mut decisions: Vec<_> = self.plan.actions.iter().collect();
        decisions.sort_unstable_by_key(|(digest, _)| **digest);
        decisions.truncate(DECISIONS_MAX);
        bytes.extend_from_slice(&self.plan.fingerprint.to_le_bytes());
        bytes.extend_from_slice(&(decisions.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.steps.to_le_bytes());
        bytes.push(match self.plan.chooser {
            Chooser::Network => 0,
            Chooser::Heuristic(at) => at.saturating_add(1),
        });
        for weight in self.policy.actor.weights().iter().chain(self.policy.critic.weights()) {
            bytes.extend_from_slice(&weight.to_le_bytes());
        }
        for (digest, action) in decisions {
            bytes.extend_from_slice(&digest.to_le_bytes());
            bytes.extend_from_slice(&action.to_bytes());
        }
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a model file. Takes any octets.
    pub fn from_bytes(bytes: &[u8]) -> Result<Model, ModelError> {
        let mut reader = Reader(bytes);
        let short = ModelError::Length { expected: HEADER, found: bytes.len() };
        if reader.take::<8>().ok_or(short)? != *MAGIC {
            return Err(ModelError::Foreign);
        }
        let mut number = || reader.take().map(u16::from_le_bytes).ok_or(short);
        let version = number()?;
        if version != VERSION {
            return Err(ModelError::Version(version));
        }
        let shape = [number()?, number()?, number()?].map(usize::from);
        if shape != [INPUTS, NODE_INPUTS, HIDDEN] {
            return Err(ModelError::Shape);
        }
        let fingerprint = reader.take().map(u64::from_le_bytes).ok_or(short)?;
        let decisions = reader.take().map(u32::from_le_bytes).ok_or(short)?;
        let steps = reader.take().map(u64::from_le_bytes).ok_or(short)?;
        let chooser = match reader.take().ok_or(short)? {
            [0] => Chooser::Network,
            [at] => Chooser::Heuristic(at - 1),
        };
        if decisions as usize > DECISIONS_MAX {
            return Err(ModelError::TooLong(decisions));
        }
        let weights = Net::size(INPUTS) + Net::size(NODE_INPUTS);
        let expected = HEADER + 4 * weights + (8 + ACTION_BYTES) * decisions as usize + 8;
        if bytes.len() != expected {
            return Err(ModelError::Length { expected, found: bytes.len() });
        }
        let (body, sum) = bytes.split_at(expected - 8);
        if checksum(body).to_le_bytes() != sum {
            return Err(ModelError::Checksum);
        }
        let mut net = |inputs: usize| {
            let weights = (0..Net::size(inputs)).map(|_| reader.take().map(f32::from_le_bytes));
            let weights: Option<Vec<f32>> = weights.collect();
            weights.and_then(|weights| Net::from_weights(inputs, weights)).ok_or(ModelError::Weight)
        };
        let policy = Policy { actor: net(INPUTS)?, critic: net(NODE_INPUTS)? };
        let mut actions = HashMap::with_capacity(decisions as usize);
        for _ in 0..decisions {
            let digest = reader.take().map(u64::from_le_bytes).ok_or(short)?;
            let action = reader.take().and_then(Action::from_bytes).ok_or(ModelError::Decision)?;
            actions.insert(digest, action);
        }
        let plan = Plan { fingerprint, rules: 0, chooser, actions };
        Ok(Model { policy: Arc::new(policy), plan: Arc::new(plan), steps })
    }
}

/// The octets that are left to read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::node::Window;

    fn cut(field: u8, shift: u8, bits: u8) -> Action {
        Action::Cut([Window { field, shift, bits }, Window::default(), Window::default()])
    }

    fn model() -> Model {
        let mut model = Model::random(7);
        let actions = [(5, cut(0, 24, 8)), (1, Action::Large), (3, Action::Simple { field: 1, least: 16 })];
        model.plan = Arc::new(Plan {
            fingerprint: 99,
            rules: 0,
            chooser: Chooser::Heuristic(2),
            actions: actions.into(),
        });
        model.steps = 12;
        model
    }

    #[test]
    fn files_are_read_back() {
        let model = model();
        assert_eq!(Model::from_bytes(&model.to_bytes()), Ok(model.clone()));
        assert_eq!(*model.without_tree().plan, Plan::default());
    }

    #[test]
    fn every_damage_is_found() {
        let bytes = model().to_bytes();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Model::from_bytes(&damaged).is_err(), "octet {at}");
            assert!(Model::from_bytes(&bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(Model::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        assert_eq!(Model::from_bytes(b"something else"), Err(ModelError::Foreign));
    }

    #[test]
    fn contents_are_checked_behind_the_checksum() {
        let sealed = |mut bytes: Vec<u8>, at: usize, with: &[u8]| {
            let end = bytes.len() - 8;
            bytes[at..at + with.len()].copy_from_slice(with);
            let sum = checksum(&bytes[..end]);
            bytes[end..].copy_from_slice(&sum.to_le_bytes());
            Model::from_bytes(&bytes)
        };
        let bytes = model().to_bytes();
        let last = bytes.len() - 8 - ACTION_BYTES;
        assert_eq!(sealed(bytes.clone(), HEADER, &f32::NAN.to_le_bytes()), Err(ModelError::Weight));
        for action in [[1, 0, 25, 8], [1, 28, 0, 1], [1, 0, 0, 0], [1, 0, 0, 11], [2, 2, 17, 0], [4, 0, 0, 0]]
        {
            let action = [&action[..], &[0; 6]].concat();
            assert_eq!(sealed(bytes.clone(), last, &action), Err(ModelError::Decision), "{action:?}");
        }
        assert_eq!(sealed(bytes.clone(), 8, &[2, 0]), Err(ModelError::Version(2)));
        assert_eq!(sealed(bytes.clone(), 10, &[200]), Err(ModelError::Shape));
        assert_eq!(sealed(bytes, 24, &[0, 0, 0, 1]), Err(ModelError::TooLong(1 << 24)));
    }
}
