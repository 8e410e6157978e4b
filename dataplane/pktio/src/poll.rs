//! Sleeping until something happens: epoll over ports, and an eventfd to be woken by.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;

/// Token of the eventfd; callers' tokens are below.
const WAKE: u64 = u64::MAX;
/// Events taken per wait; more stay ready for the next one.
const EVENTS: usize = 64;

/// Least time of polling silent inputs before a thread sleeps, unless the configuration says otherwise:
/// longer than the pauses within a burst.
const SPIN: Duration = Duration::from_micros(20);
/// Least time of polling when a port cannot wake its thread: a pause within a transfer must not cost a nap.
pub const DEAF_SPIN: Duration = Duration::from_millis(2);
/// Sleep between two looks at ports that cannot wake their thread. A first packet waits for so long at most; each look
/// takes some microseconds.
pub const NAP: Duration = Duration::from_micros(220);

/// Wakes a [`Poller`] from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Makes the poller's current or next wait return at once.
    pub fn wake(&self) {
        // The only error is a counter about to overflow, and then the poller is awake already.
        let _ = self.0.write(1);
    }
}

/// Waits for any of several descriptors to become readable.
#[derive(Debug)]
pub struct Poller {
    epoll: Epoll,
    wake: Arc<EventFd>,
    events: Vec<EpollEvent>,
}

/// A descriptor that is readable while any of several is.
#[derive(Debug)]
pub struct AnyOf(Epoll);

impl AnyOf {
    /// A descriptor that is readable while any of `fds` is. More may be added.
    pub fn new<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<AnyOf> {
        let any = AnyOf(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        for fd in fds {
            any.add(fd)?;
        }
        Ok(any)
    }

    /// Adds a descriptor. It is removed when it is closed, or by [`AnyOf::remove`].
    pub fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.delete(fd)?)
    }
}

impl AsFd for AnyOf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// Lets the calling thread's short waits end on time. The system otherwise delays them by up to 50 microseconds, to wake
/// for several at once.
pub fn nap_precisely() -> io::Result<()> {
    Ok(nix::sys::prctl::set_timerslack(1)?)
}

/// Numbers of the cores on which this process may run.
pub fn cores() -> io::Result<Vec<usize>> {
    let all = sched_getaffinity(THIS)?;
    Ok((0..CpuSet::count()).filter(|core| all.is_set(*core).unwrap_or(false)).collect())
}

thread_local! {
    /// The cores of a thread before [`stay_on`].
    static BEFORE: Cell<Option<CpuSet>> = const { Cell::new(None) };
}

/// The calling thread.
const THIS: Pid = Pid::from_raw(0);

/// Lets the calling thread run on one core only.
pub fn stay_on(core: usize) -> io::Result<()> {
    let before = sched_getaffinity(THIS)?;
    let mut only = CpuSet::new();
    only.set(core)?;
    sched_setaffinity(THIS, &only)?;
    BEFORE.set(BEFORE.get().or(Some(before)));
    Ok(())
}

/// Lets the calling thread run before all threads without real-time priority as soon as it has something to do. Threads that it
/// starts have none.
pub fn run_first() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads the priority, which lives until it returns, and changes nothing but when this thread runs.
    let result = unsafe {
        libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const priority)
    };
    Errno::result(result)?;
    Ok(())
}

/// Starts a thread that may run wherever the calling one could before [`stay_on`]: the core of a thread that stays on it is
/// for that thread alone.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let cores = BEFORE.get();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Some(cores) = cores
            && let Err(error) = sched_setaffinity(THIS, &cores)
        {
            tracing::warn!(%error, "a thread stays on the core of another one");
        }
        work();
    })
}

/// How long a thread polls silent ports before it sleeps.
///
/// Waking up delays a packet by about ten microseconds; polling takes processor time. If a packet comes soon
/// after the thread has fallen asleep, longer polling would have caught it, so the time is doubled, up to
/// `most`. If it comes later, the time is halved. So traffic with pauses shorter than `most` is soon served
/// without sleeping, and a silent interface costs little.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    most: Duration,
    now: Duration,
}

impl Patience {
    /// Polls for `most` at the longest.
    pub fn new(most: Duration) -> Patience {
        Patience { most, now: most.min(SPIN) }
    }

    /// How long to poll now.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The longest time.
    pub fn most(&self) -> Duration {
        self.most
    }

    /// The thread slept; the next packet came `pause` after the last one.
    pub fn slept(&mut self, pause: Duration) {
        self.now = match pause < self.most {
            true => (self.now * 2).clamp(SPIN.min(self.most), self.most),
            false => (self.now / 2).max(SPIN.min(self.most)),
        };
    }
}

/// The result of [`Poller::wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// A [`Waker`] was used.
    pub woken: bool,
}

impl Poller {
    /// A poller without descriptors.
    pub fn new() -> io::Result<Poller> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        epoll.add(wake.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        Ok(Poller { epoll, wake, events: vec![EpollEvent::empty(); EVENTS] })
    }

    /// Adds a descriptor under a token (below `u64::MAX`). It is removed when it is closed, or by [`Poller::remove`].
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.epoll.delete(fd)?)
    }

    /// A handle that wakes this poller.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// Waits at most for `timeout`, which may be shorter than a millisecond, and calls `ready` with each readable token.
    pub fn wait_for(&mut self, timeout: Duration, ready: impl FnMut(u64)) -> io::Result<Ready> {
        let mut any = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut any, Some(TimeSpec::from_duration(timeout)), None) {
            Ok(0) | Err(Errno::EINTR) => Ok(Ready { woken: false }),
            Ok(_) => self.wait(Some(0), ready),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits at most `timeout_ms` milliseconds (for ever without one) and calls `ready` with each readable token.
    pub fn wait(&mut self, timeout_ms: Option<u16>, mut ready: impl FnMut(u64)) -> io::Result<Ready> {
        let timeout = timeout_ms.map_or(EpollTimeout::NONE, EpollTimeout::from);
        let count = match self.epoll.wait(&mut self.events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut woken = false;
        for event in &self.events[..count] {
            if event.data() == WAKE {
                // Clears the counter; without one there is nothing to clear.
                let _ = self.wake.read();
                woken = true;
            } else {
                ready(event.data());
            }
        }
        Ok(Ready { woken })
    }
}

impl AsFd for Poller {
    /// Readable while any of the poller's descriptors is, so that pollers nest.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_polls_longer_while_that_catches_packets() {
        let us = Duration::from_micros;
        let mut patience = Patience::new(us(1000));
        assert_eq!(patience.now, SPIN);
        for _ in 0..10 {
            patience.slept(us(400));
        }
        assert_eq!(patience.now, us(1000));
        for _ in 0..10 {
            patience.slept(us(5000));
        }
        assert_eq!(patience.now, SPIN, "a silent interface");

        let mut none = Patience::new(Duration::ZERO);
        none.slept(us(1));
        assert_eq!(none.now, Duration::ZERO, "never polls in vain");
    }

    #[test]
    fn wakers_end_a_wait_and_descriptors_report_their_token() {
        let mut poller = Poller::new().unwrap();
        assert_eq!(poller.wait(Some(0), |_| panic!("nothing is ready")).unwrap(), Ready { woken: false });
        let waker = poller.waker();
        std::thread::spawn(move || waker.wake());
        assert!(poller.wait(None, |_| ()).unwrap().woken);
        assert!(!poller.wait(Some(0), |_| ()).unwrap().woken, "a wake counts once");

        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        poller.add(event.as_fd(), 7).unwrap();
        event.write(1).unwrap();
        let mut tokens = Vec::new();
        poller.wait(Some(1000), |token| tokens.push(token)).unwrap();
        assert_eq!(tokens, [7]);
        poller.remove(event.as_fd()).unwrap();
        poller.wait(Some(0), |_| panic!("it was removed")).unwrap();
    }

    #[test]
    fn a_thread_of_one_that_stays_on_its_core_may_run_on_all() {
        let before = cores().unwrap();
        std::thread::spawn(move || {
            for core in [before[0], before[before.len() - 1]] {
                stay_on(core).unwrap();
                assert_eq!(cores().unwrap(), [core]);
                let (told, cores_of_new) = std::sync::mpsc::channel();
                let new = spawn("new", move || told.send(cores().unwrap()).unwrap()).unwrap();
                assert_eq!(cores_of_new.recv().unwrap(), before);
                new.join().unwrap();
            }
        })
        .join()
        .unwrap();
    }

    /// The calling thread's real-time priority and scheduling policy (`man 5 proc_pid_stat`, fields 40 and 41).
    fn scheduling() -> (String, String) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let mut after_name = stat.rsplit(')').next().unwrap().split_whitespace().skip(40 - 3);
        let mut next = || after_name.next().unwrap().to_owned();
        (next(), next())
    }

    #[test]
    fn a_thread_that_runs_first_keeps_that_to_itself() {
        std::thread::spawn(|| {
            assert_eq!(scheduling(), ("0".to_owned(), libc::SCHED_OTHER.to_string()));
            if let Err(error) = run_first() {
                assert!(std::env::var_os("CI").is_none(), "{error}");
                return;
            }
            assert_eq!(scheduling(), ("1".to_owned(), libc::SCHED_RR.to_string()));
            let new = spawn("new", || {
                assert_eq!(scheduling(), ("0".to_owned(), libc::SCHED_OTHER.to_string()));
            });
            new.unwrap().join().unwrap();
        })
        .join()
        .unwrap();
    }
}
