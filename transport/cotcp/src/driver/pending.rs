//! Futures of handlers that did not answer at once.
//!
//! Each request's future is polled in a slot. Most are ready at once, and the slot, its allocation and its
//! waker serve the next request. A future that is not ready stays in its slot, and its waker notes the slot,
//! so that only woken futures are polled again.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The handler panicked. The request fails; the connection goes on.
pub(super) struct Panicked;

/// The output of a future.
pub(super) type Outcome<T> = Result<T, Panicked>;

/// Slots whose futures were woken, and the task to wake.
struct Woken {
    places: Vec<u32>,
    task: Waker,
}

struct PlaceWaker {
    place: u32,
    noted: AtomicBool,
    woken: Arc<Mutex<Woken>>,
}

impl Wake for PlaceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.noted.swap(true, AcqRel) {
            return;
        }
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.places.push(self.place);
        if woken.places.len() == 1 {
            let task = woken.task.clone();
            drop(woken);
            task.wake();
        }
    }
}

struct Place<F, T> {
    future: Pin<Box<Option<F>>>,
    noted: Arc<PlaceWaker>,
    waker: Waker,
    tag: Option<T>,
}

/// Futures, each with a tag.
pub(super) struct Pending<F, T> {
    places: Vec<Place<F, T>>,
    free: Vec<u32>,
    woken: Arc<Mutex<Woken>>,
    /// The slots being worked through; kept for its allocation.
    turn: Vec<u32>,
}

impl<F: Future, T: Copy> Pending<F, T> {
    pub(super) fn new() -> Self {
        let woken = Arc::new(Mutex::new(Woken { places: Vec::new(), task: Waker::noop().clone() }));
        Self { places: Vec::new(), free: Vec::new(), woken, turn: Vec::new() }
    }

    /// Polls a new future. When it is not ready, keeps it and returns its slot.
    #[inline]
    pub(super) fn start(&mut self, future: F, tag: T) -> Result<Outcome<F::Output>, u32> {
        let index = match self.free.last() {
            Some(index) => *index,
            None => self.add(),
        };
        let place = &mut self.places[index as usize];
        place.future.set(Some(future));
        match Self::poll_place(place) {
            Some(output) => Ok(output),
            None => {
                place.tag = Some(tag);
                self.free.pop();
                Err(index)
            }
        }
    }

    #[cold]
    fn add(&mut self) -> u32 {
        let index = self.places.len() as u32;
        let noted =
            PlaceWaker { place: index, noted: AtomicBool::new(false), woken: Arc::clone(&self.woken) };
        let noted = Arc::new(noted);
        let waker = Waker::from(Arc::clone(&noted));
        self.places.push(Place { future: Box::pin(None), noted, waker, tag: None });
        self.free.push(index);
        index
    }

    #[inline]
    fn poll_place(place: &mut Place<F, T>) -> Option<Outcome<F::Output>> {
        let future = place.future.as_mut().as_pin_mut()?;
        let mut cx = Context::from_waker(&place.waker);
        // A future that panicked is dropped: nothing of it is seen again.
        let outcome = match catch_unwind(AssertUnwindSafe(|| future.poll(&mut cx))) {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(_) => Err(Panicked),
        };
        place.future.set(None);
        Some(outcome)
    }

    /// Drops the future in a slot, if the slot still holds one with that tag.
    pub(super) fn remove(&mut self, index: u32, is: impl Fn(T) -> bool) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        if place.tag.is_some_and(is) {
            place.tag = None;
            place.future.set(None);
            self.free.push(index);
        }
    }

    /// Polls futures that were woken, and returns the first that is ready. Wakes `task` for the remaining
    /// ones.
    pub(super) fn next(&mut self, task: &Waker) -> Option<(T, Outcome<F::Output>)> {
        if self.turn.is_empty() {
            let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
            woken.task.clone_from(task);
            std::mem::swap(&mut woken.places, &mut self.turn);
        }
        while let Some(index) = self.turn.pop() {
            let Some(place) = self.places.get_mut(index as usize) else { continue };
            place.noted.noted.store(false, Release);
            let Some(tag) = place.tag else { continue };
            if let Some(output) = Self::poll_place(place) {
                place.tag = None;
                self.free.push(index);
                return Some((tag, output));
            }
        }
        None
    }
}
