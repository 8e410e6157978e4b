//! Keeps DPDK's thread for control connections out of ports that are in use.
//!
//! When the process at the other end of a memif goes away, that thread unmaps the memory both shared, and in DPDK
//! 22.11 nothing keeps a worker from being in the middle of it: the survivor crashes. So the thread is held here,
//! inside a callback whose descriptor is always readable, and let go for one round at a time while the workers
//! are outside their ports:
//!
//! ```text
//! control thread   parked | pause workers | other callbacks | resume, parked ...
//! worker           enter, burst, leave ... enter: refused  ... enter, burst, leave
//! ```
//!
//! Opening and closing a device run while the thread is parked. A worker pays a store and a fence per burst, and a
//! pause of some microseconds per round; ports of other drivers pay nothing. Clients that lost their server try to
//! connect again here, as DPDK does not by itself.
//!
//! Invariants: `PAUSED` is set only by the control thread, and while it is set no section is inside; the thread
//! is outside its callback only in [`Turn::Control`].

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Release, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::Error;

/// Between two rounds while every peer is there: how long its loss goes unnoticed.
const IDLE: Duration = Duration::from_millis(20);
/// Between two rounds while a peer is missing: connecting takes several.
const CONNECTING: Duration = Duration::from_millis(1);
/// Rounds between two attempts of a client to connect.
const PATIENCE: u32 = 100;
/// Looks at a worker before the control thread leaves it the core.
const SPINS: u32 = 100;
/// How often a worker looks whether a pause is over before it sleeps, and how long it does.
const LOOKS: u32 = 64;
const NAP: Duration = Duration::from_micros(20);

/// Which thread may run: the control thread or the workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// The control thread waits in its callback.
    Parked,
    /// The control thread serves its other callbacks.
    Control,
    /// A device is being opened or closed; the control thread is parked.
    Device,
}

/// Set while workers must stay outside.
static PAUSED: AtomicBool = AtomicBool::new(false);
static TURN: Mutex<Turn> = Mutex::new(Turn::Parked);
static CHANGED: Condvar = Condvar::new();
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// A device with connections, and the sections of its queues.
#[derive(Debug)]
struct Watched {
    port: u16,
    client: bool,
    rounds: u32,
    sections: Vec<Weak<Section>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says whether a worker is inside its queue. On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Section {
    inside: AtomicBool,
    /// The device is stopped, until its server is there: nobody may enter.
    stopped: AtomicBool,
}

/// A worker is inside; dropped, it has left.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Section);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        // What was done inside comes before; nothing has to come after.
        self.0.inside.store(false, Release);
    }
}

impl Section {
    /// Enters, unless workers must stay outside.
    #[inline]
    pub(super) fn try_enter(&self) -> Option<Inside<'_>> {
        // Either this store is seen by the control thread, which then waits, or its store is seen here.
        self.inside.store(true, SeqCst);
        let inside = Inside(self);
        let outside = PAUSED.load(SeqCst) || self.stopped.load(SeqCst);
        if outside { None } else { Some(inside) }
    }

    /// Enters, after a pause if need be: a round of the control thread, which takes microseconds. `None` while the
    /// device is stopped.
    #[inline]
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        let mut looks = 0;
        loop {
            let inside = self.try_enter();
            if inside.is_some() || self.stopped.load(SeqCst) {
                return inside;
            }
            looks += 1;
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                // A worker with real-time priority yields to no other thread, and the control thread may need its core.
                net::time::sleep_thread(NAP);
                looks = 0;
            }
        }
    }
}

unsafe extern "C" {
    fn godwit_control_hook(callback: extern "C" fn(*mut c_void)) -> c_int;
    fn godwit_memory_keep() -> c_int;
    fn godwit_memory_restore();
    fn godwit_port_up(port: u16) -> c_int;
    fn godwit_port_restart(port: u16) -> c_int;
}

/// Runs `work`, which opens or closes a device, while the control thread is parked.
pub(super) fn with_device<T>(work: impl FnOnce() -> T) -> Result<T, Error> {
    static HOOKED: Mutex<bool> = Mutex::new(false);
    let mut hooked = lock(&HOOKED);
    if !*hooked {
        // SAFETY: the callback takes what it is given, any time. Hooked once, after DPDK's start.
        Error::check("hook", unsafe { godwit_control_hook(control) })?;
        *hooked = true;
    }
    drop(hooked);
    let turn = lock(&TURN);
    let mut turn =
        CHANGED.wait_while(turn, |turn| *turn != Turn::Parked).unwrap_or_else(PoisonError::into_inner);
    *turn = Turn::Device;
    drop(turn);
    let result = work();
    *lock(&TURN) = Turn::Parked;
    CHANGED.notify_all();
    Ok(result)
}

/// Has a device's connections served, and its workers kept outside meanwhile. Within [`with_device`]. A client that
/// has not `started` found no server yet.
pub(super) fn watch(port: u16, client: bool, started: bool, sections: &[Arc<Section>]) {
    let watched =
        Watched { port, client, rounds: 0, sections: sections.iter().map(Arc::downgrade).collect() };
    watched.set_stopped(!started);
    lock(&WATCHED).push(watched);
}

impl Watched {
    fn set_stopped(&self, stopped: bool) {
        for section in self.sections.iter().filter_map(Weak::upgrade) {
            section.stopped.store(stopped, SeqCst);
        }
    }
}

/// Makes zero-copy devices survive the loss of their peer. Within [`with_device`].
pub(super) fn keep_memory() -> Result<(), Error> {
    // SAFETY: after DPDK's start; the control thread, which reads what this writes, is parked.
    Error::check("keep memory", unsafe { godwit_memory_keep() })
}

/// Ends it. Within [`with_device`].
pub(super) fn forget(port: u16) {
    lock(&WATCHED).retain(|watched| watched.port != port);
}

/// The callback: the control thread is here unless it is its turn.
extern "C" fn control(_: *mut c_void) {
    PAUSED.store(false, SeqCst);
    let mut turn = lock(&TURN);
    if *turn == Turn::Control {
        *turn = Turn::Parked;
        CHANGED.notify_all();
    }
    let interval = if lock(&WATCHED).iter().all(|watched| is_up(watched.port)) { IDLE } else { CONNECTING };
    // Woken early when a device was opened, it may have something to do at once.
    let (turn, _) = CHANGED.wait_timeout(turn, interval).unwrap_or_else(PoisonError::into_inner);
    let mut turn =
        CHANGED.wait_while(turn, |turn| *turn == Turn::Device).unwrap_or_else(PoisonError::into_inner);
    *turn = Turn::Control;
    drop(turn);
    PAUSED.store(true, SeqCst);
    let mut watched = lock(&WATCHED);
    for section in watched.iter().flat_map(|watched| &watched.sections).filter_map(Weak::upgrade) {
        wait_outside(&section);
    }
    // SAFETY: any time after the start, in this thread.
    unsafe { godwit_memory_restore() };
    watched.iter_mut().filter(|watched| watched.client).for_each(reconnect);
}

fn is_up(port: u16) -> bool {
    // SAFETY: the port is open: watched ones are forgotten before they are closed.
    unsafe { godwit_port_up(port) != 0 }
}

/// Waits until a worker has left its queue: the length of a burst, or longer when its core is taken from it.
fn wait_outside(section: &Section) {
    let mut looks = 0_u32;
    while section.inside.load(SeqCst) {
        looks += 1;
        if looks < SPINS {
            std::hint::spin_loop();
        } else {
            // It may have been interrupted on this very core.
            std::thread::yield_now();
        }
    }
}

/// A client without server tries again every [`PATIENCE`] rounds.
fn reconnect(watched: &mut Watched) {
    watched.rounds = if is_up(watched.port) { 0 } else { watched.rounds + 1 };
    if watched.rounds >= PATIENCE {
        watched.rounds = 0;
        // SAFETY: the port is open, no worker is inside, and this is the control thread itself. Without a server it
        // fails, which leaves the device stopped, and is tried again.
        let result = unsafe { godwit_port_restart(watched.port) };
        watched.set_stopped(result < 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_stays_outside_while_paused() {
        let section = Arc::new(Section::default());
        assert!(section.try_enter().is_some());
        assert!(!section.inside.load(SeqCst), "dropped, it has left");
        section.stopped.store(true, SeqCst);
        assert!(section.enter().is_none());
        section.stopped.store(false, SeqCst);
        let inside = section.enter().unwrap();
        let other = Arc::clone(&section);
        let waiting = std::thread::spawn(move || wait_outside(&other));
        std::thread::yield_now();
        assert!(!waiting.is_finished());
        drop(inside);
        waiting.join().unwrap();
    }
}
