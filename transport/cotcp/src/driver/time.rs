//! The clock of the driver: tokio's, so that a test which pauses tokio's time also pauses this crate.

use std::time::Instant;

/// The current time.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
