//! Compiled sessions: what workers execute.
//!
//! The N4 task compiles a session's rules into one immutable [`Session`] and publishes it by pointer; a
//! modification publishes a new one. Only counters and rate meters are shared between the old and the new.
//! One exists per PFCP session and version; it lives until the last worker has dropped its pointer.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use classifier::session::{Begun, Interner, MAX_RULES, Program};
use classifier::{Backend, Classifier, Key, Rule, Verdict};
use telemetry::worker::PerWorker;

use crate::n4::remarks::Remark;

/// An immutable session.
#[derive(Debug)]
pub struct Session {
    /// Our SEID.
    pub seid: u64,
    /// Traffic forwarded for the session, in total.
    pub usage: Arc<PerWorker>,
    /// UE addresses: what uplink sources are checked against.
    pub ue: UeAddresses,
    /// Local tunnel endpoints with the rules for what arrives there.
    pub tunnels: Box<[Tunnel]>,
    /// Rules for packets that arrive without tunnel and are found by UE address.
    pub native: RuleSet,
    /// All packet detection rules; rule sets refer to them by position.
    pub pdrs: Box<[Pdr]>,
    /// What is odd about them, for the log of the N4 task.
    pub remarks: Box<[Remark]>,
}

/// The UE's addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UeAddresses {
    /// IPv4 addresses; one in practice.
    pub ipv4: Vec<Ipv4Addr>,
    /// IPv6 prefixes, of 64 bits unless said otherwise, with their lengths.
    pub ipv6: Vec<(Ipv6Addr, u8)>,
}

impl UeAddresses {
    /// Whether `address` is the UE's.
    #[inline]
    pub fn contain(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ipv4.contains(&address),
            IpAddr::V6(address) => self.ipv6.iter().any(|(prefix, length)| {
                let shift = 128 - u32::from(*length);
                let host = prefix.to_bits() ^ address.to_bits();
                host.checked_shr(shift).unwrap_or(0) == 0
            }),
        }
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty()
    }
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
    rules: Compiled,
}

/// How a rule set is looked up.
#[derive(Default)]
enum Compiled {
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
            _ if rules.is_empty() || only.is_some() => Compiled::None,
            Some(program) => Compiled::Program(program),
            None => {
                let mut classifier = backend.build();
                // The only error is an id that exists.
                let _ = classifier.insert_all(rules);
                Compiled::Classifier(classifier)
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
            Compiled::Program(program) => program.begin(key),
            _ => Begun::default(),
        }
    }

    /// Writes the positions of the PDRs that apply to `verdicts`. `begun` is what [`RuleSet::begin`] gave for each key.
    #[inline]
    pub fn finish(&self, keys: &[Key], begun: &[Begun], verdicts: &mut [Verdict]) {
        match &self.rules {
            _ if self.only.is_some() => verdicts.fill(self.only),
            Compiled::None => verdicts.fill(None),
            Compiled::Program(program) => {
                for ((key, begun), verdict) in keys.iter().zip(begun).zip(verdicts) {
                    *verdict = program.finish(key, *begun);
                }
            }
            Compiled::Classifier(classifier) => classifier.classify(keys, verdicts),
        }
    }

    /// Whether both are looked up in the same rows of memory.
    pub fn shares_rows(&self, other: &RuleSet) -> bool {
        match (&self.rules, &other.rules) {
            (Compiled::Program(one), Compiled::Program(other)) => one.shares_rows(other),
            _ => false,
        }
    }
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = match &self.rules {
            Compiled::None => None,
            Compiled::Program(_) => Some("program"),
            Compiled::Classifier(_) => Some("classifier"),
        };
        f.debug_struct("RuleSet").field("only", &self.only).field("rules", &rules).finish()
    }
}

/// Which way a packet goes, seen from the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the UE.
    Uplink,
    /// To the UE.
    Downlink,
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

/// What a forwarding action rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Drop.
    Drop,
    /// Buffer.
    Buffer,
    /// Send into a GTP-U tunnel.
    Tunnel(OuterHeader),
    /// Send to the data network with this number.
    DataNetwork(u16),
}

/// A remote tunnel endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterHeader {
    /// TEID there.
    pub teid: u32,
    /// Address and port.
    pub peer: SocketAddr,
    /// Which PDU Session Container the packets carry.
    pub container: Container,
}

/// PDU Session Container of a forwarded packet (TS 38.415): by the interface it leaves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// To access: downlink form.
    Downlink,
    /// To another UPF: uplink form.
    Uplink,
    /// To the CP function: none.
    None,
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

impl Session {
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

    #[test]
    fn ue_addresses_are_compared_by_prefix() {
        let ue = UeAddresses {
            ipv4: vec![Ipv4Addr::new(10, 45, 0, 2)],
            ipv6: vec![("fd00:45:0:7::".parse().unwrap(), 64)],
        };
        for (address, expected) in [
            ("10.45.0.2", true),
            ("10.45.0.3", false),
            ("fd00:45:0:7::1", true),
            ("fd00:45:0:7:ffff::1", true),
            ("fd00:45:0:8::1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(ue.contain(address.parse().unwrap()), expected, "{address}");
        }
    }
}
