//! Compiled sessions: what workers execute.
//!
//! `tables::Writer` compiles a session's [`Plan`] into one immutable [`Compiled`] and publishes it by pointer; a
//! modification publishes a new one. Only counters and rate meters are shared between the old and the new.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use classifier::session::{Begun, Interner, MAX_RULES, Program};
use classifier::{Backend, Classifier, Key, Rule, Verdict};
use telemetry::worker::{PerWorker, Totals};

use crate::plan::{Action, Direction, Place, Plan, UeAddresses};

/// What the N4 task holds of a session that is published.
#[derive(Debug)]
pub struct Session {
    pub(crate) compiled: Arc<Compiled>,
    meters: HashMap<(u32, Direction), Arc<Meter>>,
    urrs: HashMap<u32, Arc<PerWorker>>,
}

impl Session {
    /// Our SEID.
    pub fn seid(&self) -> u64 {
        self.compiled.seid
    }

    /// Traffic forwarded for the session in total: uplink, downlink.
    pub fn usage(&self) -> (Totals, Totals) {
        self.compiled.usage.totals()
    }

    /// What a URR has counted since it was created: uplink, downlink. Zero for one that does not exist.
    pub fn urr(&self, id: u32) -> (Totals, Totals) {
        self.urrs.get(&id).map_or_else(Default::default, |usage| usage.totals())
    }

    /// Whether both look packets without tunnel up in the same rows of memory.
    pub fn shares_rules(&self, other: &Session) -> bool {
        self.compiled.native.shares_rows(&other.compiled.native)
    }

    /// Counts a packet under every URR, as a worker would; for tests of what reports say.
    #[doc(hidden)]
    pub fn count(&self, direction: Direction, bytes: usize) {
        for usage in [&self.compiled.usage].into_iter().chain(self.urrs.values()) {
            match direction {
                Direction::Uplink => usage.of(0).uplink.count(bytes),
                Direction::Downlink => usage.of(0).downlink.count(bytes),
            }
        }
    }

    /// Compiles a plan with the counters and meters of `old`.
    pub(crate) fn new(
        plan: &Plan,
        old: Option<&Session>,
        workers: usize,
        backend: Backend,
        interner: &mut Interner,
    ) -> Session {
        let mut meters = HashMap::new();
        for qer in &plan.qers {
            for direction in [Direction::Uplink, Direction::Downlink] {
                let key = (qer.id, direction);
                let known = old.and_then(|old| old.meters.get(&key));
                meters.insert(key, known.cloned().unwrap_or_default());
            }
        }
        let counters = |known: Option<&Arc<PerWorker>>| {
            known.cloned().unwrap_or_else(|| Arc::new(PerWorker::new(workers)))
        };
        let urrs: HashMap<u32, Arc<PerWorker>> = plan
            .urrs
            .iter()
            .map(|urr| (urr.id, counters(old.and_then(|old| old.urrs.get(&urr.id)))))
            .collect();
        let pdrs = plan.pdrs.iter().map(|pdr| {
            let qers = pdr.qers.iter().filter_map(|at| plan.qers.get(usize::from(*at))).filter_map(|qer| {
                let enforce = match pdr.direction {
                    Direction::Uplink => qer.uplink,
                    Direction::Downlink => qer.downlink,
                };
                let meter = meters.get(&(qer.id, pdr.direction))?;
                let mbr = enforce.mbr_kbps.map(|rate| Limit::new(rate, Arc::clone(meter)));
                Some(Qer { open: enforce.open, mbr })
            });
            let counted = pdr.urrs.iter().filter_map(|at| plan.urrs.get(usize::from(*at)));
            Pdr {
                id: pdr.id,
                direction: pdr.direction,
                check_source: pdr.check_source,
                action: pdr.action.clone(),
                qers: qers.collect(),
                qfi: pdr.qfi,
                rqi: pdr.rqi,
                ppi: pdr.ppi,
                urrs: counted.filter_map(|urr| urrs.get(&urr.id).cloned()).collect(),
            }
        });
        let pdrs = pdrs.collect();
        let mut native = RuleSet::default();
        let mut tunnels = Vec::new();
        for arrival in &plan.arrivals {
            let rules = RuleSet::new(&arrival.rules, backend, interner);
            match arrival.place {
                Place::Native => native = rules,
                Place::Tunnel(teid) => tunnels.push(Tunnel { teid, rules }),
            }
        }
        let compiled = Compiled {
            seid: plan.seid,
            usage: counters(old.map(|old| &old.compiled.usage)),
            ue: plan.ue.clone(),
            reached_by: plan.native.clone(),
            tunnels: tunnels.into(),
            native,
            pdrs,
        };
        Session { compiled: Arc::new(compiled), meters, urrs }
    }
}

/// An immutable session. One exists per PFCP session and version; it lives until the last worker has dropped its
/// pointer.
#[derive(Debug)]
pub struct Compiled {
    /// Our SEID.
    pub seid: u64,
    /// Traffic forwarded for the session, in total.
    pub usage: Arc<PerWorker>,
    /// UE addresses: what uplink sources are checked against.
    pub ue: UeAddresses,
    /// Addresses by which packets without tunnel find the session.
    pub reached_by: UeAddresses,
    /// Local tunnel endpoints with the rules for what arrives there.
    pub tunnels: Box<[Tunnel]>,
    /// Rules for packets that arrive without tunnel and are found by UE address.
    pub native: RuleSet,
    /// All packet detection rules; rule sets refer to them by position.
    pub pdrs: Box<[Pdr]>,
}

/// A local tunnel endpoint.
#[derive(Debug)]
pub struct Tunnel {
    /// TEID that packets arrive on.
    pub teid: u32,
    /// Rules for them.
    pub rules: RuleSet,
}

/// Rules among which a packet's is chosen; values are positions in [`Session::pdrs`].
#[derive(Default)]
pub struct RuleSet {
    /// Value of the first rule when it selects every packet: then nothing needs to be looked up.
    only: Option<u32>,
    rules: Lookup,
}

/// How a rule set is looked up.
#[derive(Default)]
enum Lookup {
    /// No rules.
    #[default]
    None,
    /// Made for few rules and many sessions; sessions with the same policy share the rows.
    Program(Program),
    /// Many rules, or the classifier that the configuration names.
    Classifier(Box<dyn Classifier>),
}

impl RuleSet {
    /// Compiles rules, each with an id of its own.
    pub fn new(rules: &[Rule], backend: Backend, interner: &mut Interner) -> RuleSet {
        let first = rules.iter().min_by_key(|rule| rule.rank());
        let only = first.filter(|rule| rule.filter.selects_all()).map(|rule| rule.value);
        let few = backend == Backend::Auto && rules.len() <= MAX_RULES;
        let program = few.then(|| interner.compile(rules).ok()).flatten();
        let rules = match program {
            _ if rules.is_empty() || only.is_some() => Lookup::None,
            Some(program) => Lookup::Program(program),
            None => {
                let mut classifier = backend.build();
                // The only error is an id that exists.
                let _ = classifier.insert_all(rules);
                Lookup::Classifier(classifier)
            }
        };
        RuleSet { only, rules }
    }

    /// The position of the PDR that applies to every packet, if there is one.
    #[inline]
    pub fn only(&self) -> Option<u32> {
        self.only
    }

    /// Begins a look-up by asking for the memory that it will need: the other packets of a batch come in between.
    #[inline]
    pub fn begin(&self, key: &Key) -> Begun {
        match &self.rules {
            Lookup::Program(program) => program.begin(key),
            _ => Begun::default(),
        }
    }

    /// Writes the positions of the PDRs that apply to `verdicts`. `begun` is what [`RuleSet::begin`] gave for each key.
    #[inline]
    pub fn finish(&self, keys: &[Key], begun: &[Begun], verdicts: &mut [Verdict]) {
        match &self.rules {
            _ if self.only.is_some() => verdicts.fill(self.only),
            Lookup::None => verdicts.fill(None),
            Lookup::Program(program) => {
                for ((key, begun), verdict) in keys.iter().zip(begun).zip(verdicts) {
                    *verdict = program.finish(key, *begun);
                }
            }
            Lookup::Classifier(classifier) => classifier.classify(keys, verdicts),
        }
    }

    /// Whether both are looked up in the same rows of memory.
    pub fn shares_rows(&self, other: &RuleSet) -> bool {
        match (&self.rules, &other.rules) {
            (Lookup::Program(one), Lookup::Program(other)) => one.shares_rows(other),
            _ => false,
        }
    }
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = match &self.rules {
            Lookup::None => None,
            Lookup::Program(_) => Some("program"),
            Lookup::Classifier(_) => Some("classifier"),
        };
        f.debug_struct("RuleSet").field("only", &self.only).field("rules", &rules).finish()
    }
}

/// A packet detection rule with everything it refers to.
#[derive(Debug)]
pub struct Pdr {
    /// Its identifier in the session.
    pub id: u16,
    /// Uplink for packets from access, downlink for all others.
    pub direction: Direction,
    /// Whether sources are checked: uplink towards a data network.
    pub check_source: bool,
    /// What the FAR says.
    pub action: Action,
    /// Gates and rates; all of them apply.
    pub qers: Box<[Qer]>,
    /// QFI that a QER marks packets with.
    pub qfi: Option<u8>,
    /// Reflective QoS indication to set.
    pub rqi: bool,
    /// Paging policy indicator to set.
    pub ppi: Option<u8>,
    /// Counters of usage reporting rules.
    pub urrs: Box<[Arc<PerWorker>]>,
}

/// A QoS enforcement rule in the direction of its PDR.
#[derive(Debug)]
pub struct Qer {
    /// Packets pass.
    pub open: bool,
    /// Maximum bit rate.
    pub mbr: Option<Limit>,
}

/// A rate with the meter that all workers share.
#[derive(Debug)]
pub struct Limit {
    /// kbit/s.
    pub rate_kbps: u64,
    /// How far ahead of time the meter may run: the burst.
    pub burst_ns: u64,
    /// The meter.
    pub meter: Arc<Meter>,
}

impl Limit {
    /// Time that a burst may take at the limit's own rate: 50 ms, but at least ten full packets, since a
    /// slow limit would otherwise let none pass.
    pub fn new(rate_kbps: u64, meter: Arc<Meter>) -> Limit {
        let ten_packets_ns = 10 * 1500 * 8 * 1_000_000 / rate_kbps.max(1);
        Limit { rate_kbps, burst_ns: ten_packets_ns.max(50_000_000), meter }
    }

    /// Whether a packet of `bytes` conforms at `now_ns`; if so it is accounted for. A rate of zero passes nothing.
    #[inline]
    pub fn conforms(&self, now_ns: u64, bytes: usize) -> bool {
        if self.rate_kbps == 0 {
            return false;
        }
        let cost_ns = bytes as u64 * 8_000_000 / self.rate_kbps;
        self.meter.conforms(now_ns, cost_ns, self.burst_ns)
    }
}

/// A meter after the generic cell rate algorithm: one word that says until when the line is taken.
///
/// A token bucket without a refill step, shared by workers without a lock.
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// Whether something that takes the line for `cost_ns` may start now, `burst_ns` ahead of its time at most.
    #[inline]
    pub fn conforms(&self, now_ns: u64, cost_ns: u64, burst_ns: u64) -> bool {
        let mut taken_until = self.0.load(Relaxed);
        loop {
            let start = taken_until.max(now_ns);
            if start - now_ns > burst_ns {
                return false;
            }
            match self.0.compare_exchange_weak(taken_until, start + cost_ns, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(current) => taken_until = current,
            }
        }
    }
}

impl Compiled {
    /// Position of the tunnel with this TEID.
    #[inline]
    pub fn tunnel(&self, teid: u32) -> Option<usize> {
        self.tunnels.iter().position(|tunnel| tunnel.teid == teid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_passes_its_rate_and_one_burst() {
        // 10 Mbit/s, 1250-octet packets offered at 100 Mbit/s for one second.
        let limit = Limit::new(10_000, Arc::new(Meter::default()));
        let passed = (0..10_000u64).filter(|n| limit.conforms(n * 100_000, 1250)).count();
        // One second's worth is 1000 packets, the burst of 50 ms another 50 (and one that starts within it).
        assert!((1045..=1055).contains(&passed), "{passed}");
        // After a pause the burst is back, not more.
        let passed = (0..1000u64).filter(|_| limit.conforms(10_000_000_000, 1250)).count();
        assert!((50..=52).contains(&passed), "{passed}");
    }

    #[test]
    fn slow_limits_pass_full_packets_and_zero_passes_none() {
        let slow = Limit::new(64, Arc::new(Meter::default()));
        assert!((0..5).all(|_| slow.conforms(0, 1500)));
        let zero = Limit::new(0, Arc::new(Meter::default()));
        assert!(!zero.conforms(1 << 40, 1));
    }
}
