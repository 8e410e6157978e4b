//! Look-ups while another core updates the rules, through [`classifier::shared`].
//!
//! The reader pins the classifier once per batch. The writer removes a rule, inserts it again and publishes, at
//! a given rate of updates per second. From a million per second on it publishes several updates at once, as
//! for a PFCP message that changes several rules. Only updates that readers can see are counted.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use classifier::backend::Visit;
use classifier::generate::{Family, Fields, Random};
use classifier::shared::{Reader, Writer};
use classifier::{Backend, Classifier, Rule};
use net::time::{self, Duration};

use super::lookup::{SEED, Situation};
use super::measure::BATCH;
use super::results::{Axes, Results};
use super::{Plan, Session};

/// Rules in the classifier.
const RULES: usize = 1000;
/// Wanted updates per second; the last one means as many as possible.
const RATES: [u64; 5] = [0, 1000, 100_000, 1_000_000, u64::MAX];
/// Position of "as many as possible" on the x axis.
const MOST: usize = 10_000_000;
/// How long the writer may take to reach a rate.
const PATIENCE: Duration = Duration::from_millis(200);
const LOOKUP: Axes = Axes { x: "updates per second", y: "look-up", unit: "ns" };
const RATE: Axes = Axes { x: "updates per second asked for", y: "updates", unit: "1/s" };

pub(super) fn run(plan: &Plan, session: &mut Session, other: Option<usize>) {
    let Some(other) = other else {
        session.left_out.push("look-ups under updates: there is one core only".to_owned());
        return;
    };
    let situation = Situation::new(Family::Acl, Fields::FiveTuple, RULES);
    for name in ["list", "auto"] {
        let Ok(backend) = name.parse::<Backend>() else { continue };
        session.progress.say(&format!("look-ups under updates, {name}"));
        let results = &mut session.results;
        backend.with(UnderUpdates { plan, name, situation: &situation, other, results });
    }
}

struct UnderUpdates<'a> {
    plan: &'a Plan,
    name: &'a str,
    situation: &'a Situation,
    other: usize,
    results: &'a mut Results,
}

/// State shared by the reader's thread and the writer's.
#[derive(Default)]
struct Control {
    rate: AtomicU64,
    /// The rate that the writer has reached.
    kept: AtomicU64,
    stop: AtomicBool,
    done: AtomicU64,
}

impl Visit for UnderUpdates<'_> {
    type Output = ();

    fn visit<C: Classifier + Clone + 'static>(self, mut classifier: C) {
        if classifier.insert_all(&self.situation.rules).is_err() {
            return;
        }
        classifier.optimise();
        let mut writer = Writer::new(classifier);
        let mut reader = writer.reader();
        let control = Control::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                crate::machine::pin(&[self.other]);
                write(&mut writer, &self.situation.rules, &control);
            });
            for round in 0..self.plan.rounds {
                for rate in RATES {
                    self.results.sample(self.name, self.situation, &mut reader, &control, rate, round);
                }
            }
            control.stop.store(true, Ordering::Relaxed);
        });
    }
}

impl Results {
    /// Measures look-ups for some milliseconds while the writer keeps to a rate.
    fn sample<C: Classifier>(
        &mut self,
        name: &str,
        situation: &Situation,
        reader: &mut Reader<C>,
        control: &Control,
        rate: u64,
        round: usize,
    ) {
        control.rate.store(rate, Ordering::Relaxed);
        // On a busy machine the writer may not run at once.
        let asked = time::now_std();
        while control.kept.load(Ordering::Relaxed) != rate && time::now_std() - asked < PATIENCE {
            std::hint::spin_loop();
        }
        let mut verdicts = [None; BATCH];
        let mut look_up = |limit: Duration| {
            let (start, mut packets) = (time::now_std(), 0);
            let before = control.done.load(Ordering::Relaxed);
            let batches = situation.keys.chunks_exact(BATCH).cycle().skip(round * 16);
            for (at, keys) in batches.enumerate() {
                reader.pin().classify(keys, &mut verdicts);
                black_box(&verdicts);
                packets += BATCH;
                // Reading the clock takes as long as some packets, so it is read only now and then.
                if at % 64 == 63 && time::now_std() - start >= limit {
                    break;
                }
            }
            let nanoseconds = (time::now_std() - start).as_nanos() as f64;
            let done = control.done.load(Ordering::Relaxed) - before;
            (nanoseconds / packets as f64, done as f64 / nanoseconds * 1e9)
        };
        // The first look-ups overlap the change of rate.
        look_up(Duration::from_millis(1));
        let (ns, updates) = look_up(Duration::from_millis(4));
        let x = if rate == u64::MAX { MOST } else { rate as usize };
        self.add(format!("{name}.acl.lookup_under_updates"), LOOKUP, x, ns);
        self.add(format!("{name}.acl.updates_per_s"), RATE, x, updates);
    }
}

/// Updates until told to stop; at the end every rule is present.
fn write<C: Classifier + Clone>(writer: &mut Writer<C>, rules: &[Rule], control: &Control) {
    let mut random = Random::new(SEED);
    let (mut rate, mut start, mut done) = (0, time::now_std(), 0_u64);
    while !control.stop.load(Ordering::Relaxed) {
        let asked = control.rate.load(Ordering::Relaxed);
        if asked != rate {
            (rate, start, done) = (asked, time::now_std(), 0);
            control.kept.store(rate, Ordering::Relaxed);
        }
        let due = match rate {
            u64::MAX => u64::MAX,
            rate => ((time::now_std() - start).as_nanos() * u128::from(rate) / 1_000_000_000) as u64,
        };
        if done >= due {
            std::hint::spin_loop();
            continue;
        }
        let pairs = match rate {
            1_000_000..u64::MAX => 4,
            u64::MAX => 16,
            _ => 1,
        };
        for _ in 0..pairs {
            let rule = rules[random.below(rules.len())];
            writer.remove(rule.id);
            // It cannot exist already, as it was removed.
            let _ = writer.insert(rule);
        }
        writer.publish();
        done += 2 * pairs;
        control.done.fetch_add(2 * pairs, Ordering::Relaxed);
    }
}
