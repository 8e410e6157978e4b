//! The configuration of the threads that forward packets.

use serde::{Deserialize, Serialize};

use crate::poll;

/// The threads that forward packets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkersConfig {
    /// Number of workers. Each serves all interfaces and processes the packets that it owns ([`owner`](crate::owner)). Interfaces of
    /// other backends than the kernel's need so many queues. By default there is a worker for each direction with the
    /// kernel's ports, one for each queue with AF_XDP, and one with DPDK and memif.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The core of each worker; by default the system chooses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<usize>,
    /// Most microseconds for which a worker polls silent interfaces before it sleeps; it polls shorter while
    /// that catches no packets. Waking up delays a packet by about ten microseconds, polling takes processor
    /// time: with 0 a worker sleeps at once, with a million it never sleeps while there is any traffic, for
    /// workers with a core of their own.
    #[serde(default = "default_poll_us")]
    pub poll_us: u64,
    /// Workers run before all programs that have no real-time priority (SCHED_RR, priority 1): where they share their cores with other
    /// work, packets do not wait for its turn to end. A worker that has packets without end leaves such programs 5 % of its core.
    #[serde(default)]
    pub realtime: bool,
}

impl Default for WorkersConfig {
    fn default() -> WorkersConfig {
        WorkersConfig { count: None, cores: Vec::new(), poll_us: default_poll_us(), realtime: false }
    }
}

/// Most workers: the queues that a TUN device can have.
const MAX_WORKERS: u32 = 256;

impl WorkersConfig {
    /// Checks the section itself.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub fn check(&self) -> Result<(), String> {
        if let Some(count) = self.count
            && !(1..=MAX_WORKERS).contains(&count)
        {
            return Err(format!("count must be between 1 and {MAX_WORKERS}, not {count}"));
        }
        if let Some(count) = self.count
            && !self.cores.is_empty()
            && self.cores.len() != count as usize
        {
            return Err(format!("{count} workers need {count} cores, not {}", self.cores.len()));
        }
        let twice = self.cores.iter().enumerate().find(|(at, core)| self.cores[..*at].contains(core));
        twice.map_or(Ok(()), |(_, core)| Err(format!("core {core} appears twice; give each worker its own")))
    }

    /// Checks whether there is a core for each of `count` workers, or none for any.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn check_number(&self, count: usize) -> Result<(), String> {
        match self.cores.len() {
            cores if cores == 0 || cores == count => Ok(()),
            cores => Err(format!("there are {count} workers; give as many cores, not {cores}")),
        }
    }

    /// Checks whether this process may use the cores of the list.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn check_cores(&self) -> Result<(), String> {
        if self.cores.is_empty() {
            return Ok(());
        }
        let usable = poll::cores().map_err(|error| format!("cannot list the cores: {error}"))?;
        match self.cores.iter().find(|core| !usable.contains(core)) {
            Some(core) => Err(format!(
                "core {core} does not exist, or this process may not use it; it may use {usable:?}: change the list, or \
                 the affinity (taskset, systemd's CPUAffinity=, the container's cpuset)"
            )),
            None => Ok(()),
        }
    }
}

fn default_poll_us() -> u64 {
    100
}
