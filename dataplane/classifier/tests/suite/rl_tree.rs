//! Trees chosen by reinforcement learning: learning, saving and loading, and right verdicts throughout.

use classifier::generate::{self, Family, Fields, Traffic};
use classifier::rl_tree::{Measure, Model, Objective, Options, RlTree, Scale, Training, shipped};
use classifier::{Classifier, Key, List, Rule, Verdict};

fn verdicts(of: &impl Classifier, keys: &[Key]) -> Vec<Verdict> {
    let mut verdicts = vec![None; keys.len()];
    of.classify(keys, &mut verdicts);
    verdicts
}

fn keys(rules: &[Rule], seed: u64) -> Vec<Key> {
    let mut keys = generate::trace(rules, Traffic::Uniform, 400, seed);
    keys.extend(generate::trace(rules, Traffic::NoMatch, 100, seed));
    keys
}

fn learning(decisions: u64) -> Options {
    Options {
        insert_all_budget: decisions,
        optimise_budget: decisions,
        per_rule: u64::MAX,
        ..Options::default()
    }
}

/// Geometric mean of the expected times of the policy's own trees.
fn mean_ns(model: &Model, sets: &[Vec<Rule>]) -> f32 {
    let sum: f32 = sets.iter().map(|rules| model.evaluate(rules).mean_ns.ln()).sum();
    (sum / sets.len() as f32).exp()
}

fn sets(size: usize, seed: u64) -> Vec<Vec<Rule>> {
    Family::CLASSBENCH.map(|family| generate::rules(family, Fields::FiveTuple, size, seed)).into()
}

#[test]
fn trained_trees_equal_the_list() {
    for family in Family::CLASSBENCH {
        for (fields, size) in [(Fields::FiveTuple, 40), (Fields::FiveTuple, 400), (Fields::Full, 200)] {
            let rules = generate::rules(family, fields, size, 5);
            let (mut list, mut tree) = (List::new(), RlTree::with_model(&Model::random(3), learning(250)));
            list.insert_all(&rules).unwrap();
            tree.insert_all(&rules).unwrap();
            let keys = keys(&rules, 9);
            assert_eq!(verdicts(&tree, &keys), verdicts(&list, &keys), "{family:?} built");
            for rule in rules.iter().step_by(3) {
                assert!(list.remove(rule.id) && tree.remove(rule.id));
            }
            for rule in rules.iter().skip(1).step_by(3) {
                assert!(
                    list.set_precedence(rule.id, rule.id % 7) && tree.set_precedence(rule.id, rule.id % 7)
                );
            }
            assert_eq!(verdicts(&tree, &keys), verdicts(&list, &keys), "{family:?} updated");
            tree.optimise();
            assert_eq!(verdicts(&tree, &keys), verdicts(&list, &keys), "{family:?} optimised");
        }
    }
}

/// The paper's claim: training makes better trees, also for rules that the policy has never seen.
#[test]
fn a_trained_policy_makes_better_trees_than_an_untrained_one() {
    let (seen, unseen) = (sets(150, 1), sets(150, 2));
    let untrained = Model::random(4);
    let mut trained = untrained.clone();
    let progress = trained.train(&seen, &Training { decisions: 6_000, ..Training::default() });
    assert!(progress.trees > 10 && trained.trained_steps() == progress.decisions);
    let (before, after) = (mean_ns(&untrained, &seen), mean_ns(&trained, &seen));
    assert!(after < 0.6 * before, "seen: {before} ns untrained, {after} ns trained");
    let (before, after) = (mean_ns(&untrained, &unseen), mean_ns(&trained, &unseen));
    assert!(after < 0.6 * before, "unseen: {before} ns untrained, {after} ns trained");
}

#[test]
fn the_shipped_policy_beats_the_heuristics_on_rules_it_has_not_seen() {
    assert!(shipped().trained_steps() > 10_000, "the file of the crate was read");
    let unseen = sets(500, 4711);
    let heuristics =
        |rules: &Vec<Rule>| Model::evaluate_heuristics(rules, &Objective::default()).mean_ns.ln();
    let heuristics = (unseen.iter().map(heuristics).sum::<f32>() / unseen.len() as f32).exp();
    let policy = mean_ns(shipped(), &unseen);
    assert!(policy < heuristics, "{policy} ns, by heuristics {heuristics} ns");
}

#[test]
fn a_build_is_never_worse_than_the_heuristics() {
    for rules in sets(300, 21) {
        // An untrained policy, so that only the heuristics matter.
        let mut tree = RlTree::with_model(&Model::random(8), Options::default());
        tree.insert_all(&rules).unwrap();
        let heuristics = Model::evaluate_heuristics(&rules, &Objective::default());
        let reward = |mean: f32, bytes: f32| 0.9 * mean.ln() + 0.1 * (bytes / 300.0).ln();
        let built = tree.expected_cost().unwrap();
        let [built, heuristics] = [built, heuristics].map(|cost| reward(cost.mean_ns, cost.bytes));
        // The random keys of the two costs differ.
        assert!(built < heuristics + 0.1, "{built} {heuristics}");
    }
}

#[test]
fn the_objective_decides() {
    let rules = generate::rules(Family::Fw, Fields::FiveTuple, 120, 3);
    let costs = [1.0, 0.0].map(|time_share| {
        let objective = Objective { time: Measure::Worst, scale: Scale::Log, time_share };
        let mut tree = RlTree::with_model(&Model::random(2), Options { objective, ..learning(3_000) });
        tree.insert_all(&rules).unwrap();
        tree.expected_cost().unwrap()
    });
    let [quick, small] = costs;
    assert!(quick.worst_ns < small.worst_ns && small.bytes < quick.bytes, "{quick:?} {small:?}");
}

#[test]
fn the_same_seed_gives_the_same_model() {
    let train = |seed| {
        let mut model = Model::random(1);
        model.train(&sets(80, 6), &Training { decisions: 1_500, seed, ..Training::default() });
        model.to_bytes()
    };
    assert_eq!(train(1), train(1));
    assert_ne!(train(1), train(2));
}

#[test]
fn a_saved_model_builds_the_same_trees_without_training() {
    for rules in sets(250, 8) {
        let mut first = RlTree::with_model(&Model::random(6), learning(1_000));
        first.insert_all(&rules).unwrap();
        let file = first.model().to_bytes();
        let loaded = Model::from_bytes(&file).unwrap();
        let mut second = RlTree::with_model(&loaded, Options::default());
        second.insert_all(&rules).unwrap();
        assert_eq!(second.forest().tree_stats(), first.forest().tree_stats());
        // Nothing was compared, and nothing was learned.
        assert_eq!((second.expected_cost(), second.model().trained_steps()), (None, loaded.trained_steps()));
        // For other rules the policy is used, and the decisions are not.
        let others = generate::rules(Family::Acl, Fields::Full, 100, 8);
        let (mut list, mut tree) = (List::new(), RlTree::with_model(&loaded, Options::default()));
        list.insert_all(&others).unwrap();
        tree.insert_all(&others).unwrap();
        let keys = keys(&others, 2);
        assert_eq!(verdicts(&tree, &keys), verdicts(&list, &keys));
        assert!(loaded.without_tree().to_bytes().len() < file.len());
    }
}

/// More rules than are compared or learned from.
#[test]
fn large_sets_are_built_by_the_network() {
    let rules = generate::rules(Family::Acl, Fields::FiveTuple, 3_000, 12);
    let (mut list, mut tree) = (List::new(), RlTree::with_model(&shipped().clone(), learning(200)));
    list.insert_all(&rules).unwrap();
    tree.insert_all(&rules).unwrap();
    let keys = keys(&rules, 4);
    assert_eq!(verdicts(&tree, &keys), verdicts(&list, &keys));
    assert!(tree.memory_bytes() < 2_000 * rules.len());
}
