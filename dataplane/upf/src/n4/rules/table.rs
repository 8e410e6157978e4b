//! A small map, sorted by key. There are many sessions, and each has a handful of rules of each kind.

use std::collections::hash_map::Entry;
use std::hash::Hash;

use foldhash::HashMap;

/// Values by key, in the order of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<K, V>(Vec<(K, V)>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Table<K, V> {
        Table(Vec::new())
    }
}

impl<K: Ord + Copy, V> Table<K, V> {
    fn find(&self, key: K) -> Result<usize, usize> {
        // Rules usually come in the order of their identifiers.
        match self.0.last() {
            Some((last, _)) if *last >= key => self.0.binary_search_by_key(&key, |(key, _)| *key),
            _ => Err(self.0.len()),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: K) -> Option<&V> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// The value of a key, mutable.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Whether a key has a value.
    pub fn contains(&self, key: K) -> bool {
        self.find(key).is_ok()
    }

    /// Index of a key in the order.
    pub fn position(&self, key: K) -> Option<usize> {
        self.find(key).ok()
    }

    /// Sets the value of a key and returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes and returns the value of a key.
    pub fn remove(&mut self, key: K) -> Option<V> {
        self.find(key).ok().map(|at| self.0.remove(at).1)
    }

    /// Removes the values of `keys` in one pass, and returns them in the order of `keys`. The error is the first
    /// key that has no value, or comes twice; then nothing is removed.
    pub fn remove_all(&mut self, keys: &[K]) -> Result<Vec<V>, K>
    where
        K: Hash,
    {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut places: HashMap<K, usize> = HashMap::default();
        for (place, key) in keys.iter().enumerate() {
            match places.entry(*key) {
                Entry::Vacant(entry) if self.contains(*key) => entry.insert(place),
                _ => return Err(*key),
            };
        }
        let mut removed: Vec<(usize, V)> = self
            .0
            .extract_if(.., |(key, _)| places.contains_key(key))
            .filter_map(|(key, value)| Some((*places.get(&key)?, value)))
            .collect();
        removed.sort_unstable_by_key(|(place, _)| *place);
        Ok(removed.into_iter().map(|(_, value)| value).collect())
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes room for `more` values.
    pub fn reserve(&mut self, more: usize) {
        self.0.reserve_exact(more);
    }

    /// Keys and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> + '_ {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// Keys and values in order; the values are mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> + '_ {
        self.0.iter_mut().map(|(key, value)| (*key, value))
    }

    /// Values in the order of their keys, mutable.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> + '_ {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone + '_ {
        self.0.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_replaces() {
        let mut table = Table::default();
        for key in [3, 1, 2, 3] {
            table.insert(key, key * 10);
        }
        assert_eq!(
            table.iter().map(|(key, value)| (key, *value)).collect::<Vec<_>>(),
            [(1, 10), (2, 20), (3, 30)]
        );
        assert_eq!((table.position(2), table.get(4)), (Some(1), None));
        assert_eq!(table.remove(1), Some(10));
        assert_eq!((table.len(), table.contains(1)), (2, false));
        assert_eq!(table.insert(2, 21), Some(20));
    }

    #[test]
    fn removes_many_or_none() {
        let mut table = Table::default();
        for key in 0..10_000 {
            table.insert(key, key * 10);
        }
        assert_eq!(table.remove_all(&[3, 10_000, 10_001]), Err(10_000));
        assert_eq!(table.remove_all(&[3, 4, 5, 4, 3]), Err(4));
        assert_eq!((table.remove_all(&[]), table.len()), (Ok(Vec::new()), 10_000));
        let odd: Vec<i32> = (0..10_000).rev().filter(|key| key % 2 == 1).collect();
        let values: Vec<i32> = odd.iter().map(|key| key * 10).collect();
        assert_eq!(table.remove_all(&odd), Ok(values));
        assert!(table.iter().map(|(key, value)| (key, *value)).eq((0..5_000).map(|n| (n * 2, n * 20))));
        assert_eq!(table.remove_all(&[2, 3]), Err(3));
    }
}
