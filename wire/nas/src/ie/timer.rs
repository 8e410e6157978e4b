//! GPRS timers 2 and 3 (TS 24.008 §10.5.7.4, §10.5.7.4a).

use std::time::Duration;

/// A timer value the network gives. Sending rounds up to the next value the element can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// The timer must not run.
    Deactivated,
    /// It runs for this long.
    For(Duration),
}
