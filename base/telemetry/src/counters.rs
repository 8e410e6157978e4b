//! Named event counters of network functions.
//!
//! A counter is a static beside the code that counts:
//! ```
//! static REJECTED: telemetry::counters::Counter = telemetry::counters::Counter::new("amf_registration_rejected");
//! static CAUSES: telemetry::counters::Family = telemetry::counters::Family::new("amf_reject_cause", "cause");
//! REJECTED.inc();
//! CAUSES.inc("plmn_not_allowed");
//! assert_eq!(telemetry::counters::snapshot()["amf_registration_rejected"], 1);
//! ```
//! A counter enters the registry when it first counts, so an unused one costs nothing. The packet path
//! has counters of its own: [`crate::worker`]. Names are `<nf>_<what>`, lower case, as metrics want them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Most label values that one [`Family`] keeps apart. Events with further values count under `other`: peers may
/// choose the values, so their memory must be bounded.
pub const MAX_LABELS: usize = 128;

static COUNTERS: Mutex<Vec<&'static Counter>> = Mutex::new(Vec::new());
static FAMILIES: Mutex<Vec<&'static Family>> = Mutex::new(Vec::new());

/// A count of events since the process started.
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    value: AtomicU64,
    registered: AtomicBool,
}

impl Counter {
    /// A counter for a static.
    pub const fn new(name: &'static str) -> Counter {
        Counter { name, value: AtomicU64::new(0), registered: AtomicBool::new(false) }
    }

    /// Counts one event.
    #[inline]
    pub fn inc(&'static self) {
        self.add(1);
    }

    /// Counts `n` events.
    #[inline]
    pub fn add(&'static self, n: u64) {
        self.value.fetch_add(n, Relaxed);
        if !self.registered.load(Relaxed) && !self.registered.swap(true, Relaxed) {
            COUNTERS.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

/// Counters under one name, kept apart by the value of one label (a cause, a procedure).
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    label: &'static str,
    values: Mutex<BTreeMap<String, u64>>,
    registered: AtomicBool,
}

impl Family {
    /// A family for a static; `label` is what tells its members apart, such as `cause`.
    pub const fn new(name: &'static str, label: &'static str) -> Family {
        Family { name, label, values: Mutex::new(BTreeMap::new()), registered: AtomicBool::new(false) }
    }

    /// Counts one event with this label value.
    pub fn inc(&'static self, value: &str) {
        if !self.registered.load(Relaxed) && !self.registered.swap(true, Relaxed) {
            FAMILIES.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = values.get_mut(value) {
            *count += 1;
            return;
        }
        let key = if values.len() < MAX_LABELS { value } else { "other" };
        *values.entry(key.to_owned()).or_insert(0) += 1;
    }

    /// The count of one label value.
    pub fn get(&self, value: &str) -> u64 {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).get(value).copied().unwrap_or(0)
    }
}

/// Every counter that has counted: `{"name": n, "family": {"label": "cause", "values": {"x": n}}}`.
pub fn snapshot() -> serde_json::Map<String, serde_json::Value> {
    let mut out = serde_json::Map::new();
    for counter in COUNTERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        out.insert(counter.name.to_owned(), counter.get().into());
    }
    for family in FAMILIES.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let values = family.values.lock().unwrap_or_else(PoisonError::into_inner).clone();
        out.insert(family.name.to_owned(), serde_json::json!({"label": family.label, "values": values}));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLAIN: Counter = Counter::new("test_plain");
    static LABELLED: Family = Family::new("test_labelled", "cause");
    static HOSTILE: Family = Family::new("test_hostile", "cause");

    #[test]
    fn counters_register_once_and_appear_in_the_snapshot() {
        PLAIN.inc();
        PLAIN.add(4);
        LABELLED.inc("a");
        LABELLED.inc("a");
        LABELLED.inc("b");
        let snapshot = snapshot();
        assert_eq!(snapshot["test_plain"], 5);
        assert_eq!(snapshot["test_labelled"]["label"], "cause");
        assert_eq!(snapshot["test_labelled"]["values"]["a"], 2);
        assert_eq!(snapshot["test_labelled"]["values"]["b"], 1);
    }

    #[test]
    fn labels_from_outside_are_bounded() {
        for n in 0..10 * MAX_LABELS {
            HOSTILE.inc(&format!("label {n}"));
        }
        assert!(HOSTILE.values.lock().unwrap().len() <= MAX_LABELS + 1);
        assert_eq!(HOSTILE.get("other") as usize, 9 * MAX_LABELS);
    }
}
