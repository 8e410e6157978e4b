//! What a worker tells its control: events in a channel with bounded room.
//!
//! A worker does not wait. Before it acts on something that is sent again when it is dropped, such as a message with retransmission, it
//! asks whether there is room ([`EventSender::has_room`]): a part of the room is kept for events that nothing repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;

/// The worker's end.
#[derive(Debug)]
pub struct EventSender<E> {
    events: SyncSender<E>,
    waiting: Arc<AtomicUsize>,
    /// Events that may wait while there is room for those that come again.
    most_repeated: usize,
}

/// Control's end.
#[derive(Debug)]
pub struct Events<E> {
    events: Receiver<E>,
    waiting: Arc<AtomicUsize>,
}

/// A channel for `most` events, of which `reserve` are for those that nothing repeats.
pub fn channel<E>(most: usize, reserve: usize) -> (EventSender<E>, Events<E>) {
    let (sender, receiver) = mpsc::sync_channel(most);
    let waiting = Arc::<AtomicUsize>::default();
    let most_repeated = most.saturating_sub(reserve);
    let sender = EventSender { events: sender, waiting: Arc::clone(&waiting), most_repeated };
    (sender, Events { events: receiver, waiting })
}

impl<E> EventSender<E> {
    /// Tells control; `false` if too many events wait. Where nobody listens, nothing is lost.
    pub fn send(&self, event: E) -> bool {
        // Counted first, so that control never takes more than there are.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.events.try_send(event);
        if sent.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        !matches!(sent, Err(TrySendError::Full(_)))
    }

    /// Whether there is room for an event that would come again.
    pub fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < self.most_repeated
    }
}

impl<E> Events<E> {
    /// The next event, if one comes in time.
    pub fn next(&self, timeout: Duration) -> Option<E> {
        self.events.recv_timeout(timeout).ok().inspect(|_| self.taken())
    }

    /// The next event; `None` when the worker has ended.
    pub fn wait(&self) -> Option<E> {
        self.events.recv().ok().inspect(|_| self.taken())
    }

    fn taken(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_leaves_room_for_what_does_not() {
        let (sender, events) = channel(4, 2);
        let told: Vec<_> = (0..6).map(|n| (sender.has_room(), sender.send(n))).collect();
        let expected =
            [(true, true), (true, true), (false, true), (false, true), (false, false), (false, false)];
        assert_eq!(told, expected);
        assert_eq!(
            (0..3).map(|_| events.next(Duration::ZERO)).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2)]
        );
        assert!(sender.has_room());
        drop(events);
        assert!(sender.send(7) && sender.has_room(), "nobody listens");
    }
}
