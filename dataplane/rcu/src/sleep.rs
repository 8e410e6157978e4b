//! Whether a thread must be woken for what others have published to it.
//!
//! ```text
//!  sleeper                              publisher
//!  asleep := true                       publish
//!  fence                                fence
//!  look once more; sleep                asleep? wake
//! ```
//! The fences are totally ordered: the sleeper sees what was published, or the publisher sees that it sleeps.

use crate::sync::{AtomicBool, Ordering, fence};

/// One thread's sleep.
#[derive(Debug)]
#[repr(align(128))]
pub struct Sleep(AtomicBool);

impl Default for Sleep {
    fn default() -> Sleep {
        Sleep(AtomicBool::new(false))
    }
}

impl Sleep {
    /// The thread is about to sleep. It must look once more, behind this call, at all that may have been published.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread is awake.
    pub fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Something was published: whether the caller has to wake the thread. Of several callers one has to.
    #[inline]
    pub fn needs_waking(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}
