//! Commands of the N4 task to one worker, which reads them between batches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

/// A command of the N4 task to the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The rules of a session have changed: process its buffered packets by the new rules.
    Release(u64),
    /// Drop the buffered packets of a session.
    Discard(u64),
}

/// Commands to one worker.
#[derive(Default)]
pub struct Mailbox {
    waiting: AtomicBool,
    commands: Mutex<Vec<Command>>,
    waker: OnceLock<pktio::poll::Waker>,
}

impl Mailbox {
    /// Sets the waker that wakes the worker when a command arrives while it sleeps.
    pub fn wake_with(&self, waker: pktio::poll::Waker) {
        let _ = self.waker.set(waker);
    }

    /// Whether there are commands to read.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Takes the commands.
    pub fn take(&self) -> Vec<Command> {
        let mut commands = self.commands.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.waiting.store(false, Ordering::Release);
        std::mem::take(&mut commands)
    }

    /// Adds a command, and wakes the worker.
    pub(crate) fn post(&self, command: Command) {
        let mut commands = self.commands.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // The worker has been woken for those that it has not taken.
        let is_first = commands.is_empty();
        commands.push(command);
        self.waiting.store(true, Ordering::Release);
        drop(commands);
        if is_first && let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}
