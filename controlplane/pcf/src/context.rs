//! Policy associations: one per UE (AM) or PDU session (SM), created and deleted by AMF and SMF.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Associations of one kind, each under a random number and under its key (UE or session). After a
/// restart of the PCF, an identifier that an AMF or SMF still holds does not name the association of
/// another UE.
///
/// A new association with the same key replaces the old one, which its owner has lost (by a restart, or
/// because the session was set up again). So a table cannot grow beyond the number of UEs or sessions.
#[derive(Debug)]
pub(crate) struct Associations<K, T> {
    limit: usize,
    inner: Mutex<Inner<K, T>>,
}

#[derive(Debug)]
struct Inner<K, T> {
    by_id: HashMap<u64, (K, T)>,
    by_key: HashMap<K, u64>,
}

impl<K: Clone + Eq + Hash, T: Clone> Associations<K, T> {
    pub(crate) fn new(limit: usize) -> Self {
        let inner = Inner { by_id: HashMap::new(), by_key: HashMap::new() };
        Self { limit, inner: Mutex::new(inner) }
    }

    /// Adds an association. Returns its identifier, or `None` if the table is full.
    pub(crate) fn create(&self, key: K, value: T) -> Option<String> {
        let mut inner = self.lock();
        if let Some(old) = inner.by_key.remove(&key) {
            inner.by_id.remove(&old);
        }
        if inner.by_id.len() >= self.limit {
            return None;
        }
        let mut id = nf::random::u64();
        while inner.by_id.contains_key(&id) {
            id = nf::random::u64();
        }
        inner.by_key.insert(key.clone(), id);
        inner.by_id.insert(id, (key, value));
        Some(format!("{id:016x}"))
    }

    pub(crate) fn get(&self, id: &str) -> Option<T> {
        self.lock().by_id.get(&parse(id)?).map(|(_, value)| value.clone())
    }

    /// Changes an association. Returns the result of `change`, or `None` if there is no such
    /// association.
    pub(crate) fn change<R>(&self, id: &str, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.lock().by_id.get_mut(&parse(id)?).map(|(_, value)| change(value))
    }

    /// Removes an association. Returns whether it existed.
    pub(crate) fn delete(&self, id: &str) -> bool {
        let mut inner = self.lock();
        let Some((key, _)) = parse(id).and_then(|id| inner.by_id.remove(&id)) else {
            return false;
        };
        inner.by_key.remove(&key);
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K, T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses an identifier from a peer, which may be any text.
fn parse(id: &str) -> Option<u64> {
    u64::from_str_radix(id, 16).ok()
}
