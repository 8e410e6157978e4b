//! The signal that makes tasks end.

use std::sync::Arc;

use tokio::sync::watch;

/// A signal that any task can trigger or wait for. Clones share it.
#[derive(Debug, Clone)]
pub struct Shutdown {
    sender: Arc<watch::Sender<bool>>,
    receiver: watch::Receiver<bool>,
}

impl Default for Shutdown {
    fn default() -> Self {
        let (sender, receiver) = watch::channel(false);
        Self { sender: Arc::new(sender), receiver }
    }
}

impl Shutdown {
    /// Triggers the signal.
    pub fn trigger(&self) {
        self.sender.send_replace(true);
    }

    /// Whether the signal was triggered.
    pub fn is_triggered(&self) -> bool {
        *self.receiver.borrow()
    }

    /// Waits until the signal is triggered; returns at once if it was.
    pub async fn wait(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.receiver.clone().wait_for(|stop| *stop).await;
    }
}
