//! An array of published values, each replaced by itself.

use std::marker::PhantomData;
use std::ptr::null_mut;
// The model checker's atomics cannot be used in memory that starts as zeros.
use std::sync::atomic::AtomicPtr as PlainPtr;

use crate::Bin;
use crate::chunks::Chunks;
use crate::grace::{Domain, Guard};
use crate::sync::Ordering;

/// An array of values, of which each may be missing. It gets memory on first use, so a large array costs little.
pub struct Cells<T> {
    domain: Domain,
    values: Chunks<PlainPtr<T>>,
    len: usize,
    _owns: PhantomData<T>,
}

/// Cells under a guard of their domain.
pub struct View<'g, T>(&'g Cells<T>);

impl<'g, T: Send + Sync + 'static> View<'g, T> {
    /// The value with this number, borrowed for the lifetime of the guard.
    #[inline(always)]
    pub fn get(&self, number: usize) -> Option<&'g T> {
        // SAFETY: a pointer in a cell is null or comes from a box. `store` drops the box only after a grace period that
        // began after the pointer was replaced, and that period does not end while the guard exists.
        unsafe { self.0.cell(number)?.load(Ordering::Acquire).as_ref() }
    }
}

// SAFETY: the cells hand out `&T` in several threads and move `T` to the thread that drops it.
unsafe impl<T: Send + Sync> Sync for Cells<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Cells<T> {}

impl<T: Send + Sync + 'static> Cells<T> {
    /// `len` cells without value.
    pub fn new(domain: &Domain, len: usize) -> Cells<T> {
        let values = Chunks::new(len.div_ceil(Chunks::<PlainPtr<T>>::LEN));
        Cells { domain: domain.clone(), values, len, _owns: PhantomData }
    }

    /// Whether the kernel has given the addresses for the values.
    pub fn has_addresses(&self) -> bool {
        self.values.has_addresses()
    }

    /// The cell with this number; `None` where there is no memory yet.
    #[inline(always)]
    fn cell(&self, number: usize) -> Option<&PlainPtr<T>> {
        // SAFETY: zeros are a null pointer, and atomics may be shared.
        unsafe { self.values.get(number) }
    }

    /// The values as a reader with this guard sees them; `None` if the guard is of another domain.
    #[inline(always)]
    pub fn view<'g>(&'g self, guard: &'g Guard<'_>) -> Option<View<'g, T>> {
        guard.of(&self.domain).then_some(View(self))
    }

    /// The value with this number, borrowed for the lifetime of the guard.
    #[inline(always)]
    pub fn load<'g>(&'g self, guard: &'g Guard<'_>, number: usize) -> Option<&'g T> {
        self.view(guard)?.get(number)
    }

    /// Replaces a value; `false`, and `value` is dropped, where there is no such cell or no memory. For one thread at a time.
    /// `bin` drops the old value when no reader sees it any more. A bin of another domain leaks it.
    pub fn store(&self, number: usize, value: Option<Box<T>>, bin: &mut Bin) -> bool {
        if number >= self.len || !self.values.grow(number / Chunks::<PlainPtr<T>>::LEN) {
            return false;
        }
        let Some(cell) = self.cell(number) else { return false };
        let old = cell.swap(value.map_or(null_mut(), Box::into_raw), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: the pointer came from `Box::into_raw`, and after the swap only this function has it.
            bin.take(&self.domain, unsafe { Box::from_raw(old) });
        }
        true
    }
}

impl<T> Drop for Cells<T> {
    fn drop(&mut self) {
        for number in 0..self.len {
            // SAFETY: as in `cell`.
            let Some(cell) = (unsafe { self.values.get(number) }) else { continue };
            let value = cell.load(Ordering::Acquire);
            if !value.is_null() {
                // SAFETY: guards that see the value borrow the cells, so there are none; the pointer comes from a box.
                drop(unsafe { Box::from_raw(value) });
            }
        }
    }
}
