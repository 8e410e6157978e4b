//! The circumstances of a measurement: commit, processor, kernel, time.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::result::Machine;

/// Commit of the checkout that this program is run in, with `-dirty` when it has changes; `unknown` outside of one.
pub fn commit() -> String {
    crate::publish::commit(std::path::Path::new("."))
}

/// Processor, memory and kernel, from /proc.
pub fn describe() -> Machine {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        line.and_then(|line| line.split_once(':').map(|(_, value)| value.trim().to_owned()))
            .unwrap_or_default()
    };
    let kilobytes = field(&read("/proc/meminfo"), "MemTotal");
    let kilobytes: u64 = kilobytes.split_whitespace().next().and_then(|kb| kb.parse().ok()).unwrap_or(0);
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        memory_mb: kilobytes / 1024,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect()
}

/// Pins the calling thread, and threads that it starts, to some cores; `false` when the system refuses.
pub(crate) fn pin(cores: &[usize]) -> bool {
    let mut set = CpuSet::new();
    cores.iter().all(|core| set.set(*core).is_ok()) && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}

/// Pins all threads of a process to some cores.
///
/// # Errors
/// It has ended, or the system refuses.
pub(crate) fn pin_process(process: u32, cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().try_for_each(|core| set.set(*core))?;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let name = thread?.file_name();
        let thread = name.to_string_lossy().parse().context("the number of a thread")?;
        sched_setaffinity(Pid::from_raw(thread), &set)?;
    }
    Ok(())
}

/// Processor time of the calling thread. Excludes time of other threads and, if the kernel knows it, of the
/// hypervisor.
pub(crate) fn thread_time() -> Duration {
    // Every Linux has this clock; if it failed, all durations would be zero.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// The processor time of a thread, which any other one may read.
pub(crate) struct Clock(PathBuf);

impl Clock {
    /// That of the calling thread.
    pub(crate) fn of_this_thread() -> Clock {
        Clock(PathBuf::from("/proc/thread-self/schedstat"))
    }

    /// That of a thread of this process with this name.
    pub(crate) fn of(name: &str) -> anyhow::Result<Clock> {
        for thread in std::fs::read_dir("/proc/self/task")? {
            let folder = thread?.path();
            let found = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
            if found.trim_end() == name {
                return Ok(Clock(folder.join("schedstat")));
            }
        }
        anyhow::bail!("there is no thread `{name}`")
    }

    /// What it has used so far.
    pub(crate) fn read(&self) -> anyhow::Result<Duration> {
        let text = std::fs::read_to_string(&self.0)?;
        let ns = text.split(' ').next().and_then(|ns| ns.parse().ok()).context("schedstat")?;
        Ok(Duration::from_nanos(ns))
    }
}

/// Keeps cores awake until it is dropped. Waking a core takes longer than most operations that are measured
/// here, for a time that the hypervisor decides, and it hits every contender in another place.
pub(crate) struct Awake {
    /// The kernel's interface for this: the request ends when the file is closed.
    _latency: File,
}

impl Awake {
    /// Requests that cores stay awake.
    ///
    /// # Errors
    /// The file does not exist, or the process is not root.
    pub(crate) fn new() -> std::io::Result<Self> {
        let mut latency = File::options().write(true).open("/dev/cpu_dma_latency")?;
        // The longest tolerable wake-up time in microseconds.
        latency.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self { _latency: latency })
    }
}

/// A time as `2026-01-31T12:00:00Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since 1970-01-01, counting years from March so that the leap day comes last.
    let z = days + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(1_772_323_200), "2026-03-01T00:00:00Z");
    }

    #[test]
    fn a_threads_time_goes_on_while_it_works_only() {
        let before = thread_time();
        net::time::sleep_thread(Duration::from_millis(20));
        assert!(thread_time() - before < Duration::from_millis(15), "asleep");
        let (start, before) = (net::time::now_std(), thread_time());
        while thread_time() - before < Duration::from_millis(2) {
            assert!(start.elapsed() < Duration::from_secs(20), "it works");
        }
    }

    #[test]
    fn this_machine_has_a_kernel_and_cores() {
        let machine = describe();
        assert!(machine.cores > 0 && machine.memory_mb > 0 && !machine.kernel.is_empty(), "{machine:?}");
    }
}
