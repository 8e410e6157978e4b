//! The clock of the driver: tokio's, so that a test which pauses tokio's time has this crate with it.

use std::time::Instant;

/// Now.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
