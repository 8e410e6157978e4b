//! Telling tasks to end.

use std::sync::Arc;

use tokio::sync::watch;

/// A wish to end that any task can express or wait for. Clones are the same wish.
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
    /// Tells everyone who waits.
    pub fn trigger(&self) {
        self.sender.send_replace(true);
    }

    /// Whether it was triggered.
    pub fn is_triggered(&self) -> bool {
        *self.receiver.borrow()
    }

    /// Waits until it is triggered; at once if it was already.
    pub async fn wait(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.receiver.clone().wait_for(|stop| *stop).await;
    }
}
