//! The server's open requests, found by slot (when the application answers) or by ID (when the client sends a
//! frame).
//!
//! The client chooses the IDs, so a small hash table with a seed of this connection leads from an ID to its
//! slot. A request answered before the next poll needs neither: it only borrows a slot number.

use std::hash::{BuildHasher as _, RandomState};

use super::RequestId;

/// End of a chain.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Place<T> {
    id: RequestId,
    /// The next slot in the same chain.
    next: u32,
    value: Option<T>,
}

/// Values by [`RequestId`].
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    /// First slot of each chain. The length is a power of two.
    chains: Vec<u32>,
    seed: u32,
    len: usize,
    serial: u32,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        // Odd, so that no ID is lost in the product.
        let seed = RandomState::new().hash_one(0u32) as u32 | 1;
        Self { places: Vec::new(), free: Vec::new(), chains: vec![NONE; 64], seed, len: 0, serial: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn chain(&self, wire: u32) -> usize {
        // The upper bits of the product depend on all bits of the ID.
        (wire.wrapping_mul(self.seed) >> (32 - self.chains.len().ilog2())) as usize
    }

    /// Reserves a slot for a new request. Pass it to [`Self::insert`] or [`Self::give_back`].
    #[inline]
    pub(crate) fn borrow(&mut self, wire: u32) -> RequestId {
        self.serial = self.serial.wrapping_add(1);
        let place = self.free.pop().unwrap_or_else(|| self.grow());
        RequestId { wire, place, serial: self.serial }
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let place = self.places.len() as u32;
        self.places.push(Place { id: RequestId { wire: 0, place, serial: 0 }, next: NONE, value: None });
        place
    }

    /// Frees the reserved slot of a request that was answered at once.
    #[inline]
    pub(crate) fn give_back(&mut self, id: RequestId) {
        self.free.push(id.place);
    }

    /// Stores a request that stays open.
    pub(crate) fn insert(&mut self, id: RequestId, value: T) {
        if self.len >= self.chains.len() {
            self.rehash();
        }
        let chain = self.chain(id.wire);
        if let Some(place) = self.places.get_mut(id.place as usize) {
            *place = Place { id, next: self.chains[chain], value: Some(value) };
            self.chains[chain] = id.place;
            self.len += 1;
        }
    }

    #[cold]
    fn rehash(&mut self) {
        self.chains = vec![NONE; self.chains.len() * 2];
        for index in 0..self.places.len() {
            if self.places[index].value.is_some() {
                let chain = self.chain(self.places[index].id.wire);
                self.places[index].next = std::mem::replace(&mut self.chains[chain], index as u32);
            }
        }
    }

    /// The open request with this ID.
    #[inline]
    pub(crate) fn find(&self, wire: u32) -> Option<RequestId> {
        let mut index = self.chains[self.chain(wire)];
        while let Some(place) = self.places.get(index as usize) {
            if place.id.wire == wire {
                return Some(place.id);
            }
            index = place.next;
        }
        None
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let place = self.places.get_mut(id.place as usize)?;
        if place.id == id { place.value.as_mut() } else { None }
    }

    /// Removes a request and frees its slot.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<T> {
        self.get_mut(id)?;
        let chain = self.chain(id.wire);
        let next = self.places[id.place as usize].next;
        if self.chains[chain] == id.place {
            self.chains[chain] = next;
        } else {
            let mut index = self.chains[chain];
            while let Some(place) = self.places.get_mut(index as usize) {
                index = place.next;
                if index == id.place {
                    place.next = next;
                }
            }
        }
        self.len -= 1;
        self.free.push(id.place);
        self.places[id.place as usize].value.take()
    }

    /// All open requests, in the order of their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (RequestId, &mut T)> {
        self.places.iter_mut().filter_map(|place| {
            let id = place.id;
            place.value.as_mut().map(|value| (id, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn as_a_map() {
        let (mut table, mut map) = (Table::new(), HashMap::new());
        let mut random = 1u32;
        for turn in 0..100_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // IDs that are alike in one half or the other.
            let wire = if random & 1 == 0 { (random >> 8) % 500 } else { ((random >> 8) % 500) << 16 };
            match map.remove(&wire) {
                Some((id, value)) => {
                    assert_eq!(table.find(wire), Some(id));
                    assert_eq!(table.remove(id), Some(value));
                    assert_eq!(table.remove(id), None);
                    assert_eq!(table.find(wire), None);
                }
                None => {
                    let id = table.borrow(wire);
                    if turn % 7 == 0 {
                        table.give_back(id);
                        continue;
                    }
                    table.insert(id, turn);
                    map.insert(wire, (id, turn));
                }
            }
            assert_eq!(table.len(), map.len());
        }
        assert_eq!(table.iter_mut().count(), map.len());
        assert!(map.values().all(|(id, value)| table.get_mut(*id) == Some(&mut value.clone())));
    }
}
