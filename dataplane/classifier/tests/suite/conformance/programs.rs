//! Random rules, and random sequences of updates with look-ups after each step.

use classifier::{Classifier, InsertError, Key, List, Matcher, Rule, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;

use super::definition::{self, Packet};
use super::random::{self, Update};
use super::{assert_verdicts, classify, contenders};

/// A classifier that applies the definition directly.
#[derive(Default)]
struct Defined(Vec<Rule>);

impl Defined {
    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        if self.0.iter().any(|present| present.id == rule.id) {
            return Err(InsertError::Exists(rule.id));
        }
        self.0.push(rule);
        Ok(())
    }

    fn verdicts(&self, packets: &[Packet]) -> Vec<Verdict> {
        packets.iter().map(|packet| definition::verdict(&self.0, packet)).collect()
    }

    /// The result of the method that an update calls.
    fn update(&mut self, update: &Update) -> Outcome {
        match update {
            Update::Insert(rule) => Outcome::Inserted(self.insert(**rule)),
            Update::InsertAll(rules) => {
                Outcome::Inserted(rules.iter().try_for_each(|rule| self.insert(*rule)))
            }
            Update::Remove(id) => {
                let before = self.0.len();
                self.0.retain(|rule| rule.id != *id);
                Outcome::Found(self.0.len() < before)
            }
            Update::SetPrecedence(id, precedence) => {
                let rule = self.0.iter_mut().find(|rule| rule.id == *id);
                Outcome::Found(rule.map(|rule| rule.precedence = *precedence).is_some())
            }
            Update::Optimise => Outcome::Found(true),
        }
    }
}

#[derive(PartialEq, Debug)]
enum Outcome {
    Inserted(Result<(), InsertError>),
    Found(bool),
}

fn apply(classifier: &mut dyn Classifier, update: &Update) -> Outcome {
    match update {
        Update::Insert(rule) => Outcome::Inserted(classifier.insert(**rule)),
        Update::InsertAll(rules) => Outcome::Inserted(classifier.insert_all(rules)),
        Update::Remove(id) => Outcome::Found(classifier.remove(*id)),
        Update::SetPrecedence(id, precedence) => Outcome::Found(classifier.set_precedence(*id, *precedence)),
        Update::Optimise => {
            classifier.optimise();
            Outcome::Found(true)
        }
    }
}

fn keys(packets: &[Packet]) -> Vec<Key> {
    packets.iter().map(Packet::key).collect()
}

proptest! {
    /// The builders of a key put each field where the documentation says, and no field disturbs another.
    #[test]
    fn keys_are_laid_out_as_documented(packet in random::packet()) {
        prop_assert_eq!(Packet::read(&packet.key()), packet);
    }

    #[test]
    fn the_list_and_the_matcher_are_the_definition(
        rules in random::rules(24),
        packets in vec(random::packet(), 40),
        words in vec(random::words(), 8),
    ) {
        let mut list = List::new();
        list.insert_all(&rules).unwrap();
        let keys: Vec<Key> = keys(&packets).into_iter().chain(words.into_iter().map(Key::from_words)).collect();
        for (key, verdict) in keys.iter().zip(classify(&list, &keys)) {
            let packet = Packet::read(key);
            prop_assert_eq!(verdict, definition::verdict(&rules, &packet));
            for rule in &rules {
                let matches = Matcher::new(&rule.filter).is_some_and(|matcher| matcher.matches(key));
                prop_assert_eq!(matches, definition::selects(&rule.filter, &packet), "{:?} {:?}", rule.filter, packet);
            }
        }
    }

    /// The same for all backends, which are built from all rules at once.
    #[test]
    fn every_backend_is_the_definition(
        rules in random::rules(48),
        packets in vec(random::packet(), 40),
        words in vec(random::words(), 8),
    ) {
        let keys: Vec<Key> = keys(&packets).into_iter().chain(words.into_iter().map(Key::from_words)).collect();
        let expected: Vec<Verdict> =
            keys.iter().map(|key| definition::verdict(&rules, &Packet::read(key))).collect();
        for (name, mut classifier) in contenders() {
            classifier.insert_all(&rules).unwrap();
            prop_assert_eq!(classifier.len(), rules.len(), "{}", name);
            assert_verdicts(&name, &*classifier, &keys, &expected);
            classifier.optimise();
            assert_verdicts(&name, &*classifier, &keys, &expected);
        }
    }

    #[test]
    fn every_backend_follows_every_update(
        program in vec(random::update(), 1..40),
        packets in vec(random::packet(), 16),
    ) {
        let keys = keys(&packets);
        let mut defined = Defined::default();
        let mut all = contenders();
        for (step, update) in program.iter().enumerate() {
            let outcome = defined.update(update);
            let expected = defined.verdicts(&packets);
            for (name, classifier) in &mut all {
                let name = format!("{name}, step {step}: {update:?}");
                assert_eq!(apply(&mut **classifier, update), outcome, "{name}");
                assert_eq!(classifier.len(), defined.0.len(), "{name}");
                assert_verdicts(&name, &**classifier, &keys, &expected);
            }
        }
    }
}
