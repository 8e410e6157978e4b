//! The clock. No other crate reads it, so that tests run on paused time.
//!
//! All functions use tokio's clock: `#[tokio::test(start_paused = true)]` makes every timer of the
//! program run on virtual time. [`wall_clock`] is for time stamps that leave the process (PFCP recovery
//! time, logs, captures) and never for measuring a duration. [`now_ns`] is the clock that the user plane
//! shares with programs in the kernel; it is never virtual.

use std::future::Future;
use std::time::SystemTime;

pub use std::time::Duration;
pub use tokio::time::error::Elapsed;
pub use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep};

/// The monotonic clock: durations and deadlines. Virtual inside a paused tokio runtime.
pub fn now() -> Instant {
    Instant::now()
}

/// The monotonic clock as the standard library's type, for threads outside tokio (the user plane).
#[allow(clippy::disallowed_methods, reason = "this is the one place that reads it")]
pub fn now_std() -> std::time::Instant {
    std::time::Instant::now()
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of all tiers of the user plane. It is what `bpf_ktime_get_ns`
/// reads in an eBPF program, so that workers and programs in the kernel can share meters. It counts from about
/// the start of the machine, stands still while the machine is suspended, and ends after 584 years.
///
/// In a time namespace (`time_namespaces(7)`) the clock of this process has an offset that the kernel's
/// programs do not have.
pub fn now_ns() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned()
}

/// The wall clock, for time stamps that other systems read. It may jump.
#[allow(clippy::disallowed_methods, reason = "this is the one place that reads it")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// Processor time that all threads of a process, by default this one, have used, including time in the
/// kernel.
///
/// # Errors
/// There is no such process.
pub fn processor_time(process: Option<u32>) -> std::io::Result<Duration> {
    use nix::time::{ClockId, clock_gettime};
    let clock = match process {
        Some(id) => ClockId::pid_cpu_clock_id(nix::unistd::Pid::from_raw(id.cast_signed()))?,
        None => ClockId::CLOCK_PROCESS_CPUTIME_ID,
    };
    Ok(clock_gettime(clock)?.into())
}

/// Waits for `duration`.
pub fn sleep(duration: Duration) -> Sleep {
    tokio::time::sleep(duration)
}

/// Waits until `deadline`; returns at once if it has passed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    tokio::time::sleep_until(deadline)
}

/// Blocks the calling thread. Only for threads that run no asynchronous task.
#[allow(clippy::disallowed_methods, reason = "this is the one place that offers it, under a warning")]
pub fn sleep_thread(duration: Duration) {
    std::thread::sleep(duration);
}

/// Runs `future` for at most `limit`.
///
/// # Errors
/// [`Elapsed`] when the limit passes first; the future is then dropped.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    tokio::time::timeout(limit, future).await
}

/// Ticks every `period`, first at once. Late ticks are skipped, not repeated: an NF that was delayed
/// must not send a burst.
///
/// # Panics
/// When `period` is zero.
pub fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn paused_time_drives_every_timer() {
        let start = now();
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(now() - start, Duration::from_secs(3600));
        assert!(timeout(Duration::from_secs(1), std::future::pending::<()>()).await.is_err());
        assert_eq!(timeout(Duration::from_secs(1), async { 7 }).await, Ok(7));
    }

    #[test]
    fn processor_time_passes_while_work_is_done() {
        let (start, own) = (now_std(), processor_time(None).unwrap());
        while now_std() - start < Duration::from_millis(20) {}
        assert!(processor_time(None).unwrap() > own);
        assert!(processor_time(Some(std::process::id())).unwrap() > own);
        assert!(processor_time(Some((1 << 22) + 1)).is_err(), "beyond the kernel's largest");
    }

    #[test]
    fn nanoseconds_are_those_of_the_standard_librarys_clock() {
        let (start, start_ns) = (now_std(), now_ns());
        sleep_thread(Duration::from_millis(5));
        let (end_ns, end) = (now_ns(), now_std());
        let (inner, outer) = (Duration::from_nanos(end_ns - start_ns), end - start);
        assert!(inner >= Duration::from_millis(5) && inner <= outer, "{inner:?} within {outer:?}");
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime_s: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        // The time since the start includes suspension, the clock does not.
        assert!(end_ns as f64 <= (uptime_s + 1.0) * 1e9, "{end_ns} ns, up for {uptime_s} s");
    }

    #[tokio::test(start_paused = true)]
    async fn late_ticks_are_skipped() {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.tick().await;
        sleep(Duration::from_millis(5500)).await;
        ticks.tick().await;
        let resumed = now();
        ticks.tick().await;
        assert!(now() - resumed >= Duration::from_millis(400), "missed ticks must not come in a burst");
    }
}
