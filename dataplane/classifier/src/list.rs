//! The linear list: rules in order of precedence, tried one by one (TS 29.244 §5.2.1).
//!
//! Cheapest of all below some ten rules, and the oracle that other backends are checked against.

use crate::{Classifier, InsertError, Key, Rule, Verdict};

/// Rules sorted by precedence, then id.
#[derive(Clone, Debug, Default)]
pub struct List {
    rules: Vec<Rule>,
}

impl List {
    /// An empty list.
    pub fn new() -> List {
        List::default()
    }

    /// The rules in the order in which they are tried.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

impl Classifier for List {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            *verdict = self.rules.iter().find(|rule| rule.filter.matches(key)).map(|rule| rule.value);
        }
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        if self.rules.iter().any(|present| present.id == rule.id) {
            return Err(InsertError::Exists(rule.id));
        }
        let order = (rule.precedence, rule.id);
        let at = self.rules.partition_point(|present| (present.precedence, present.id) < order);
        self.rules.insert(at, rule);
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.id != id);
        self.rules.len() < before
    }

    fn len(&self) -> usize {
        self.rules.len()
    }
}
