//! The driver for stable Rust: mutates the seeds of each target for a while and catches panics.
//!
//! It is no replacement for coverage guidance, but it runs wherever the tests run and finds the plain mistakes:
//! an index past the end, an addition that overflows (checked in debug builds), a loop that does not advance.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Target;
use crate::mutate::{Random, mutate};

/// Time limit for one input. Decoders need microseconds, so a longer time means an endless loop or exponential
/// work.
const SLOW: Duration = Duration::from_secs(2);
/// Mutated inputs kept as parents, so that changes add up over several rounds.
const POOL_MAX: usize = 256;

/// Result of running a target.
#[derive(Debug)]
pub struct Report {
    /// Inputs tried.
    pub inputs: u64,
    /// The input that panicked or was too slow, and what happened.
    pub failure: Option<(Vec<u8>, String)>,
}

/// Runs one target on its seeds and on mutations of them for `duration`.
pub fn run(target: &Target, seed: u64, duration: Duration) -> Report {
    let deadline = net::time::now_std() + duration;
    let mut random = Random::new(seed);
    let mut pool: Vec<Vec<u8>> = (target.seeds)();
    pool.push(Vec::new());
    let seeds = pool.len();
    let mut inputs = 0;
    for data in pool.clone() {
        inputs += 1;
        if let Some(what) = attempt(target, &data) {
            return Report { inputs, failure: Some((data, what)) };
        }
    }
    loop {
        // The clock is read once per batch: it would otherwise cost as much as a decoder.
        for _ in 0..64 {
            let mut data = pool[random.below(pool.len())].clone();
            let other = random.below(pool.len());
            mutate(&mut random, &mut data, &pool[other]);
            inputs += 1;
            if let Some(what) = attempt(target, &data) {
                return Report { inputs, failure: Some((data, what)) };
            }
            if pool.len() < POOL_MAX {
                pool.push(data);
            } else if random.below(16) == 0 {
                let slot = seeds + random.below(POOL_MAX - seeds);
                if let Some(old) = pool.get_mut(slot) {
                    *old = data;
                }
            }
        }
        if net::time::now_std() >= deadline {
            return Report { inputs, failure: None };
        }
    }
}

/// Runs one input; returns a description of the failure, if any.
pub fn attempt(target: &Target, data: &[u8]) -> Option<String> {
    let start = net::time::now_std();
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(data)));
    let took = net::time::now_std() - start;
    match result {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Some(format!("panicked: {}", text.unwrap_or_default()))
        }
        Ok(()) if took > SLOW => Some(format!("took {took:?}")),
        Ok(()) => None,
    }
}

/// Inputs that once broke a target; the file name says what they broke.
///
/// # Errors
/// When a file there cannot be read.
pub fn regressions(target: &Target) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    let mut found = Vec::new();
    if folder.is_dir() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            found.push((path.clone(), std::fs::read(path)?));
        }
    }
    Ok(found)
}
