//! The client's calls: a slab whose slots are found directly by the call's ID.
//!
//! An ID is the number of a slot (16 bits) and the slot's generation (14 bits), which grows with each use. A
//! late answer therefore carries an old generation and reaches no call. The slot that was free for longest is
//! used first.

use super::CallId;

/// No slot.
const NONE: u32 = u32::MAX;
/// Slots created before any is used again, so that an ID does not repeat soon when calls are few.
const AT_LEAST: usize = 64;
/// The slot's number has 16 bits in the ID.
const AT_MOST: usize = 1 << CallId::PLACE_BITS;

#[derive(Debug)]
struct Place<T> {
    /// The next free slot, while this one is free.
    next: u32,
    generation: u16,
    value: Option<T>,
}

impl<T> Place<T> {
    /// Advances the generation for the next use.
    #[inline]
    fn reuse(&mut self) {
        self.generation = (self.generation + 1) & CallId::GENERATIONS;
        self.next = NONE;
    }
}

/// Values by [`CallId`].
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    first_free: u32,
    last_free: u32,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::with_capacity(AT_LEAST), first_free: NONE, last_free: NONE, len: 0 }
    }

    /// Number of values.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Inserts a value; `None` when all slots are taken.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Option<CallId> {
        if self.first_free == NONE || self.places.len() < AT_LEAST {
            return self.insert_new(value);
        }
        let index = self.first_free;
        let place = self.places.get_mut(index as usize)?;
        self.first_free = place.next;
        place.value = Some(value);
        self.len += 1;
        Some(CallId::new(index, place.generation))
    }

    #[cold]
    fn insert_new(&mut self, value: T) -> Option<CallId> {
        if self.places.len() == AT_MOST {
            return None;
        }
        self.places.push(Place { next: NONE, generation: 0, value: Some(value) });
        self.len += 1;
        Some(CallId::new(self.places.len() as u32 - 1, 0))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: CallId) -> Option<&mut T> {
        let place = self.places.get_mut(id.place())?;
        if place.generation != id.generation() { None } else { place.value.as_mut() }
    }

    /// Removes a value. Its slot advances its generation and goes to the end of the free list.
    #[inline]
    pub(crate) fn remove(&mut self, id: CallId) -> Option<T> {
        let place = self.places.get_mut(id.place())?;
        if place.generation != id.generation() {
            return None;
        }
        let value = place.value.take()?;
        place.reuse();
        self.len -= 1;
        self.append(id.place() as u32);
        Some(value)
    }

    /// Removes a value but keeps its slot until [`Self::free`], because the caller has not been told of the
    /// call's end yet.
    pub(crate) fn take(&mut self, id: CallId) -> Option<T> {
        let value =
            self.places.get_mut(id.place()).filter(|place| place.generation == id.generation())?.value.take();
        self.len -= usize::from(value.is_some());
        value
    }

    /// Frees the slot of a removed value. Does nothing when the slot is free.
    pub(crate) fn free(&mut self, id: CallId) {
        let taken = |place: &&mut Place<T>| place.generation == id.generation() && place.value.is_none();
        if let Some(place) = self.places.get_mut(id.place()).filter(taken) {
            place.reuse();
            self.append(id.place() as u32);
        }
    }

    /// Appends a slot to the free list.
    #[inline]
    fn append(&mut self, index: u32) {
        match self.places.get_mut(self.last_free as usize) {
            Some(last) if self.first_free != NONE => last.next = index,
            _ => self.first_free = index,
        }
        self.last_free = index;
    }

    /// All values, in the order of their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (CallId, &mut T)> {
        self.places.iter_mut().enumerate().filter_map(|(index, place)| {
            let id = CallId::new(index as u32, place.generation);
            place.value.as_mut().map(|value| (id, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_again_only_after_all_places_and_generations() {
        let mut slab = Slab::new();
        let first = slab.insert(0).unwrap();
        assert_eq!(slab.remove(first), Some(0));
        assert_eq!(slab.remove(first), None);
        for turn in 1..AT_LEAST << 14 {
            let id = slab.insert(turn).unwrap();
            assert_ne!(id, first, "after {turn} calls");
            assert!(slab.get_mut(first).is_none());
            assert_eq!(slab.remove(id), Some(turn));
        }
        assert_eq!(slab.insert(7), Some(first));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn full_is_full() {
        let mut slab = Slab::new();
        let ids: Vec<_> = (0..AT_MOST).map(|value| slab.insert(value).unwrap()).collect();
        assert_eq!(slab.insert(0), None);
        assert_eq!(slab.remove(ids[77]), Some(77));
        let again = slab.insert(1).unwrap();
        assert_eq!(again.place(), 77);
        assert_ne!(again, ids[77]);
        assert_eq!(slab.iter_mut().count(), AT_MOST);
    }
}
