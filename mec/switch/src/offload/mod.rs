//! Known tunnels in XDP: translations of the host path, as exact-match entries in front of it.
//!
//! ```text
//!            ┌─► entries (xdp::steer) ──► out            packets of known tunnels
//! packets ───┤        ▲ commit
//!            └─► host path ──offers──► Manager: learns, counts, makes room
//! changes ──► Switch::change ──► Offload::changed: what is affected, or a pause
//! ```
//! The host path offers a translation when packets use it. The [`manager`] translates it again, and adds an entry if that is still
//! what happens. So whatever the tables say of users is in XDP without guessing who they are, and an entry holds for the packets that
//! were seen: from the same port, base station and neighbour ([`crate::pipeline::exact`]).
//!
//! **Changes hold for both paths at once.** [`Offload::changed`] is called while the pipeline is locked for the change. Tunnels that
//! it names get their new entries by one commit before the lock is released. Of other changes it is not known whom they concern: XDP
//! *pauses*, all packets take the host path, and the manager translates all entries again before they hold.
//!
//! **Packets do not overtake their tunnel's change.** An entry is added only when the worker that saw the tunnel has sent all that it
//! had, treated by the same translation; entries that have held for less than [`tunnels::FRESH_NS`] are taken out rather than changed,
//! as packets from before may still be in the host path.
//!
//! Locks: the pipeline first, then the tunnels. ADR 0031 says why.

pub mod manager;
mod tunnels;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::time::now_ns;
use serde_json::{Value, json};
use telemetry::worker::Drops;
use xdp::steer::{Steer, SteerError};

use crate::config::Xdp;
use crate::core::Switch;
use crate::pipeline::exact::Exact;
use crate::pipeline::field::Words;
use crate::pipeline::{Pipeline, Touched};
use tunnels::{Present, Tunnels};

/// Offers that may wait for the manager; others are made again.
const OFFERS: usize = 1024;
/// Entries that are looked at while others wait for the locks.
const SLICE: usize = 256;

/// A translation that packets use.
#[derive(Debug)]
pub struct Offer {
    /// The fields of such a packet.
    pub outer: Words,
    /// Those of the packet inside.
    pub inner: Words,
    /// What the worker did with it.
    pub exact: Exact,
}

/// What the manager is told.
#[derive(Debug)]
pub enum Message {
    /// A translation.
    Offer(Box<Offer>),
    /// There is something to do.
    Look,
}

/// The tunnels in XDP, as all other parts of the switch see them.
#[derive(Debug)]
pub struct Offload {
    tunnels: Mutex<Tunnels>,
    manager: SyncSender<Message>,
    /// Offers that the manager could not take.
    lost: AtomicU64,
    /// Packets that entries drop, which the host path would have counted.
    drops: Arc<Drops>,
    /// For counting when somebody asks.
    budget: Mutex<Budget>,
}

/// Time that may be spent: a tenth of all time, and of it up to [`Budget::MOST_NS`] at once.
#[derive(Debug)]
struct Budget {
    left_ns: i64,
    filled_ns: u64,
}

impl Budget {
    const MOST_NS: i64 = 100_000_000;

    /// Whether there is some.
    fn has_time(&mut self, now_ns: u64) -> bool {
        let passed = now_ns.saturating_sub(std::mem::replace(&mut self.filled_ns, now_ns)) / 10;
        self.left_ns = self.left_ns.saturating_add_unsigned(passed).min(Budget::MOST_NS);
        self.left_ns > 0
    }

    /// Takes what was spent, which may be more than there was: then it takes longer until there is some again.
    fn spend(&mut self, spent_ns: u64) {
        self.left_ns = self.left_ns.saturating_sub_unsigned(spent_ns);
    }
}

impl Offload {
    /// Empty tables, and what the manager receives from. `interfaces`: the index of each port's interface, in the network namespace of
    /// the calling thread.
    ///
    /// # Errors
    /// This build has no programs, or the kernel grants no memory or privilege.
    pub fn new(
        config: &Xdp,
        interfaces: BTreeMap<u32, u32>,
    ) -> Result<(Arc<Offload>, Receiver<Message>), SteerError> {
        let drops = Arc::<Drops>::default();
        let tunnels = Tunnels::new(config, interfaces, Arc::clone(&drops))?;
        let (manager, messages) = mpsc::sync_channel(OFFERS);
        let budget = Mutex::new(Budget { left_ns: Budget::MOST_NS, filled_ns: now_ns() });
        let offload =
            Offload { tunnels: Mutex::new(tunnels), manager, lost: AtomicU64::new(0), drops, budget };
        Ok((Arc::new(offload), messages))
    }

    fn tunnels(&self) -> MutexGuard<'_, Tunnels> {
        self.tunnels.lock().unwrap_or_else(|poisoned| {
            let mut tunnels = poisoned.into_inner();
            tunnels.fail();
            tunnels
        })
    }

    /// Does something with the tables of steering, as for adding their program to an interface.
    pub(crate) fn with_steer<T>(&self, work: impl FnOnce(&mut Steer) -> T) -> T {
        work(self.tunnels().steer())
    }

    /// Drops by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Offers translations. Those that cannot be looked at now are lost; packets that use them make new ones.
    pub fn offer(&self, offers: impl Iterator<Item = Offer>) {
        for offer in offers {
            if self.manager.try_send(Message::Offer(Box::new(offer))).is_err() {
                self.lost.fetch_add(1, Relaxed);
            }
        }
    }

    /// Wakes the manager. If that is not possible, it has something to do already, and looks at everything behind it.
    fn wake(&self) {
        let _ = self.manager.try_send(Message::Look);
    }

    /// Makes a change of the pipeline hold in XDP. The pipeline is locked for the change until it does.
    pub(crate) fn changed(&self, switch: &Switch, pipeline: &Pipeline, touched: &Touched) {
        let present = Present { pipeline, ports: switch.ports(), now_ns: now_ns() };
        let mut tunnels = self.tunnels();
        match catch_unwind(AssertUnwindSafe(|| tunnels.changed(&present, touched))) {
            Ok(false) => {}
            Ok(true) => self.wake(),
            Err(_) => tunnels.fail(),
        }
    }

    /// Calls `work` with slices of all entries, each under the locks.
    fn in_slices(&self, switch: &Switch, work: impl Fn(&mut Tunnels, &Present<'_>, std::ops::Range<usize>)) {
        let mut from = 0;
        loop {
            let pipeline = switch.pipeline();
            let mut tunnels = self.tunnels();
            let end = tunnels.end();
            if from >= end {
                return;
            }
            let present = Present { pipeline: &pipeline, ports: switch.ports(), now_ns: now_ns() };
            work(&mut tunnels, &present, from..end.min(from + SLICE));
            from += SLICE;
        }
    }

    /// Brings the packets of all entries to the counters of rules, tables and ports.
    pub(crate) fn count(&self, switch: &Switch) {
        self.in_slices(switch, |tunnels, present, range| {
            for at in range {
                tunnels.count(present, at);
            }
        });
    }

    /// The same, unless that has taken more than a tenth of the time lately.
    pub(crate) fn count_within_budget(&self, switch: &Switch) {
        let budget = || self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let began_ns = now_ns();
        if budget().has_time(began_ns) {
            self.count(switch);
            budget().spend(now_ns().saturating_sub(began_ns));
        }
    }

    /// Waits until what programs have begun with before the last change has left.
    pub(crate) fn await_programs(&self) {
        let began = {
            let mut tunnels = self.tunnels();
            if tunnels.len() == 0 {
                return;
            }
            tunnels.steer().begin_grace()
        };
        match began.wait() {
            Ok(waited) => self.with_steer(|steer| steer.end_grace(waited)),
            Err(error) => tracing::error!(%error, "packets may be sent before those that XDP has"),
        }
    }

    /// Whether XDP passes everything on.
    pub(crate) fn is_paused(&self) -> bool {
        self.tunnels().is_paused()
    }

    /// All about it, for administration.
    pub fn status(&self) -> Value {
        let tunnels = self.tunnels();
        let counts = tunnels.counts;
        let passed = tunnels.passed();
        let passed = passed.iter().filter(|(_, number)| *number > 0);
        json!({
            "tunnels": tunnels.len(),
            "capacity": tunnels.capacity(),
            "anchors": tunnels.anchors(),
            "paused": tunnels.is_paused(),
            "failed": tunnels.has_failed(),
            "pauses": counts.pauses,
            "packets": counts.packets,
            "bytes": counts.bytes,
            "learned": counts.learned,
            "renewed": counts.renewed,
            "left": counts.left,
            "refused": {
                "no_room": counts.no_room,
                "outdated": counts.outdated,
                "other_way": counts.other_way,
                "too_many_at_once": self.lost.load(Relaxed),
            },
            "passed_on": passed
                .map(|(reason, number)| (reason.name().to_owned(), Value::from(*number)))
                .collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// Whether tables can have the address as outer destination.
pub(crate) fn can_be_anchor(address: IpAddr) -> bool {
    let mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    !mapped && !address.is_unspecified() && !address.is_multicast()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]
mod tests {
    use super::*;

    /// A thread that panics while it changes the tables leaves them as they may be: the host path has all packets from then on.
    #[test]
    fn a_panic_ends_xdp_for_good() {
        if !xdp::programs::BUILT || !net::capability::Capability::Bpf.held() {
            eprintln!("skipped: no XDP programs, or no right to load them");
            return;
        }
        let (offload, _messages) =
            Offload::new(&Xdp { tunnels: 64, own: Vec::new() }, BTreeMap::new()).unwrap();
        assert_eq!(
            (&offload.status()["paused"], &offload.status()["failed"]),
            (&json!(false), &json!(false))
        );
        let panics = catch_unwind(AssertUnwindSafe(|| {
            let _tunnels = offload.tunnels();
            panic!("a defect");
        }));
        assert!(panics.is_err() && offload.is_paused());
        offload.tunnels().resume(now_ns());
        assert_eq!((&offload.status()["paused"], &offload.status()["failed"]), (&json!(true), &json!(true)));
    }

    #[test]
    fn counting_takes_a_tenth_of_the_time() {
        let mut budget = Budget { left_ns: Budget::MOST_NS, filled_ns: 0 };
        let (mut counted, cost_ns) = (0, 25_000_000);
        // Asked once in a millisecond, for ten seconds.
        for now_ns in (0..10_000).map(|ms| ms * 1_000_000) {
            if budget.has_time(now_ns) {
                budget.spend(cost_ns);
                counted += 1;
            }
        }
        assert!((43..=45).contains(&counted), "{counted}: 4 at once, then 4 in a second");
    }
}
