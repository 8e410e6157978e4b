//! Insertion, removal and change of precedence, at constant size.

use classifier::generate::Random;
use classifier::{Classifier, Rule};
use net::time::{self, Duration};

use super::contender::Contender;
use super::lookup::{SEED, Situation};
use super::measure::{self, nanoseconds};
use super::results::{Results, UPDATE};
use super::{Plan, Session};
use crate::stats::quantile;

/// Rules that a sample changes before it draws other rules.
const CHOSEN: usize = 64;

/// Updates each contender in turn, and checks its verdicts afterwards.
pub(super) fn measure(
    plan: &Plan,
    situation: &Situation,
    contenders: &mut [Contender],
    session: &mut Session,
) {
    let name = situation.name();
    let mut random = Random::new(SEED);
    for _ in 0..plan.rounds {
        for contender in contenders.iter_mut() {
            let results = &mut session.results;
            let updates = Updates { name: format!("{}.{name}", contender.name), rules: &situation.rules };
            updates.sample(contender.classifier(), plan.sample, &mut random, results);
            updates.each(contender.classifier(), plan.single_updates, &mut random, results);
        }
    }
    for contender in contenders.iter() {
        let wrong = situation.wrong(contender);
        let (after, n) = (format!("{name} after updates"), situation.rules.len());
        session.checked(contender.name, &after, n, wrong, 2 * situation.keys.len());
    }
}

/// Updates of one set of rules in one classifier.
pub(super) struct Updates<'a> {
    /// First part of the names of the series.
    pub name: String,
    /// The rules in the classifier, before and after.
    pub rules: &'a [Rule],
}

impl Updates<'_> {
    /// Copies some rules, so that fetching them from memory is not timed.
    fn choose(&self, at_most: usize, random: &mut Random) -> Vec<Rule> {
        let count = at_most.min(self.rules.len().div_ceil(4));
        let mut chosen: Vec<Rule> = (0..count).map(|_| self.rules[random.below(self.rules.len())]).collect();
        chosen.sort_by_key(|rule| rule.id);
        chosen.dedup_by_key(|rule| rule.id);
        random.shuffle(&mut chosen);
        chosen
    }

    /// Mean times over at least `at_least`: removal of some rules; their insertion; removal and insertion in
    /// alternation (`update`, per operation); and changes of precedence.
    pub(super) fn sample(
        &self,
        classifier: &mut dyn Classifier,
        at_least: Duration,
        random: &mut Random,
        results: &mut Results,
    ) {
        let clock = measure::clock_cost();
        // A backend that builds anew for every update gets fewer of them.
        let probe = nanoseconds(|| {
            self.choose(1, random).into_iter().for_each(|rule| {
                classifier.remove(rule.id);
                drop_result(classifier.insert(rule));
            });
        });
        let chosen_at_once = CHOSEN.min((at_least.as_nanos() as f64 / probe) as usize).max(1);
        let (mut removal, mut insertion, mut both, mut precedence, mut count) = (0.0, 0.0, 0.0, 0.0, 0);
        while removal + insertion + both + precedence < at_least.as_nanos() as f64 {
            let chosen = self.choose(chosen_at_once, random);
            count += chosen.len();
            removal += nanoseconds(|| {
                chosen.iter().for_each(|rule| drop_result(classifier.remove(rule.id)));
            }) - clock;
            insertion += nanoseconds(|| {
                chosen.iter().for_each(|rule| drop_result(classifier.insert(*rule)));
            }) - clock;
            both += nanoseconds(|| {
                for rule in &chosen {
                    classifier.remove(rule.id);
                    let _ = classifier.insert(*rule);
                }
            }) - clock;
            let others = self.choose(chosen_at_once, random);
            let pairs = chosen.iter().zip(others.iter().cycle());
            let moved: Vec<(u32, u32)> = pairs.map(|(rule, other)| (rule.id, other.precedence)).collect();
            precedence += nanoseconds(|| {
                for (id, precedence) in &moved {
                    classifier.set_precedence(*id, *precedence);
                }
                for rule in &chosen {
                    classifier.set_precedence(rule.id, rule.precedence);
                }
            }) - clock;
        }
        let count = count as f64;
        for (series, per_operation) in [
            ("remove", removal / count),
            ("insert", insertion / count),
            ("update", both / count / 2.0),
            ("set_precedence", precedence / count / 2.0),
        ] {
            results.add(format!("{}.{series}", self.name), UPDATE, self.rules.len(), per_operation.max(0.0));
        }
    }

    /// Times single removals and insertions, less the clock's cost, until `limit` has passed. Returns the value
    /// that one in a thousand exceeds; `None` when there were too few.
    pub(super) fn each(
        &self,
        classifier: &mut dyn Classifier,
        limit: Duration,
        random: &mut Random,
        results: &mut Results,
    ) {
        const AT_MOST: usize = 20_000;
        let clock = measure::clock_cost();
        let mut times = Vec::with_capacity(AT_MOST);
        let start = time::now_std();
        while times.len() < AT_MOST && time::now_std() - start < limit {
            for rule in self.choose(16, random) {
                times.push(nanoseconds(|| drop_result(classifier.remove(rule.id))) - clock);
                times.push(nanoseconds(|| drop_result(classifier.insert(rule))) - clock);
            }
        }
        if times.len() >= 2000 {
            let tail = quantile(&times, 0.999).max(0.0);
            results.add(format!("{}.update_p999", self.name), UPDATE, self.rules.len(), tail);
        }
    }
}

/// Drops a result unchecked: every update here succeeds, as the verdicts afterwards show.
fn drop_result<T>(result: T) {
    let _ = std::hint::black_box(result);
}
