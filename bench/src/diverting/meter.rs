//! What a switch alone uses of processors: its threads, and its XDP programs by the kernel's statistics of them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use net::time::Duration;
use pktio::bpf::statistics::{Id, Statistics};

/// The first program of each interface, in whose time those behind it are.
const ENTRY: &str = "godwit_entry";

/// Threads of this process, and programs of the kernel, before a switch starts.
pub(super) struct Before {
    threads: HashSet<PathBuf>,
    programs: HashSet<Id>,
}

/// Those that belong to a switch.
pub(super) struct Meter {
    threads: Vec<PathBuf>,
    /// A switch that is a process has all threads of it.
    process: Option<u32>,
    programs: Vec<Id>,
}

/// Processor time so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) threads: Duration,
    pub(super) programs: Duration,
}

impl Used {
    /// All since an earlier reading.
    pub(super) fn since(self, earlier: Used) -> Duration {
        self.threads.saturating_sub(earlier.threads) + self.programs.saturating_sub(earlier.programs)
    }
}

/// Begins to count the time of programs.
///
/// # Errors
/// No privilege.
pub(super) fn enable() -> anyhow::Result<Statistics> {
    Statistics::enable().context("processor time of XDP programs")
}

impl Before {
    /// Those of now.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(super) fn now() -> anyhow::Result<Before> {
        let threads = tasks(Path::new("/proc/self/task"))?.into_iter().collect();
        Ok(Before { threads, programs: Id::all()?.into_iter().collect() })
    }

    /// What is new belongs to the switch; or the switch is this process.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(super) fn meter(self, process: Option<u32>) -> anyhow::Result<Meter> {
        if process.is_some() {
            return Ok(Meter { threads: Vec::new(), process, programs: Vec::new() });
        }
        let mut threads = tasks(Path::new("/proc/self/task"))?;
        threads.retain(|thread| !self.threads.contains(thread));
        let mut programs = Vec::new();
        for id in Id::all()?.into_iter().filter(|id| !self.programs.contains(id)) {
            if id.info()?.is_some_and(|info| info.name == ENTRY) {
                programs.push(id);
            }
        }
        Ok(Meter { threads, process: None, programs })
    }
}

impl Meter {
    /// Reads all clocks.
    ///
    /// # Errors
    /// The switch has ended.
    pub(super) fn read(&self) -> anyhow::Result<Used> {
        let of_process = match self.process {
            Some(id) => tasks(Path::new(&format!("/proc/{id}/task")))?,
            None => Vec::new(),
        };
        let mut threads = Duration::ZERO;
        for thread in self.threads.iter().chain(&of_process) {
            // Threads that have ended do not forward.
            let Ok(text) = std::fs::read_to_string(thread.join("schedstat")) else { continue };
            let ns = text.split(' ').next().and_then(|ns| ns.parse().ok()).context("schedstat")?;
            threads += Duration::from_nanos(ns);
        }
        let mut programs = Duration::ZERO;
        for id in &self.programs {
            programs += id.info()?.context("a program of the switch is gone")?.run_time;
        }
        Ok(Used { threads, programs })
    }
}

fn tasks(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?;
    Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?)
}
