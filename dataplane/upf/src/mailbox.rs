//! Commands of the N4 task for one worker, which looks for them between batches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

/// What the N4 task asks of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The rules of a session have changed: send what is buffered as they say now.
    Release(u64),
    /// Drop what is buffered for a session.
    Discard(u64),
}

/// Commands for one worker.
#[derive(Default)]
pub struct Mailbox {
    waiting: AtomicBool,
    commands: Mutex<Vec<Command>>,
    waker: OnceLock<pktio::poll::Waker>,
}

impl Mailbox {
    /// Wakes a worker that sleeps when a command comes.
    pub fn wake_with(&self, waker: pktio::poll::Waker) {
        let _ = self.waker.set(waker);
    }

    /// Whether there are commands.
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
        commands.push(command);
        self.waiting.store(true, Ordering::Release);
        drop(commands);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}
