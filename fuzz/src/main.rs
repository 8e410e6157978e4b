//! `cargo run -p fuzz -- [--seconds N] [--seed N] [target…]`: the fuzz targets on stable Rust, one per processor at a time.
//!
//! An input that breaks a target is written to `fuzz/artifacts/`, and the exit code is 1.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fuzz::{TARGETS, Target, smoke};

fn main() -> ExitCode {
    let mut out = std::io::stderr();
    let mut seconds = 3;
    let mut seed = 1;
    let mut names = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number =
            |into: &mut u64| arguments.next().and_then(|n| n.parse().ok()).map(|n| *into = n).is_some();
        let understood = match argument.as_str() {
            "--seconds" => number(&mut seconds),
            "--seed" => number(&mut seed),
            name => {
                names.push(name.to_owned());
                TARGETS.iter().any(|target| target.name == name)
            }
        };
        if !understood {
            let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            let _ = writeln!(out, "fuzz: `{argument}` is not understood; targets are {}", known.join(", "));
            return ExitCode::from(2);
        }
    }
    // A panic is reported below with its input; the hook's text would only repeat it.
    std::panic::set_hook(Box::new(|_| {}));
    let failed = AtomicBool::new(false);
    let chosen =
        TARGETS.iter().filter(|target| names.is_empty() || names.iter().any(|name| name == target.name));
    let queue = Mutex::new(chosen);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(target) = { queue.lock().ok().and_then(|mut queue| queue.next()) } {
                    failed.fetch_or(!run(target, seed, Duration::from_secs(seconds)), Ordering::Relaxed);
                }
            });
        }
    });
    if failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs a target, says what has come of it, and whether no input has broken it.
fn run(target: &Target, seed: u64, time: Duration) -> bool {
    let report = smoke::run(target, seed, time);
    let said = match &report.failure {
        None => format!("fuzz: {:<18} {:>9} inputs, ok", target.name, report.inputs),
        Some((data, what)) => {
            let kept = keep(target.name, data);
            format!("fuzz: {:<18} after {} inputs: {what}; {kept}", target.name, report.inputs)
        }
    };
    let _ = writeln!(std::io::stderr(), "{said}");
    report.failure.is_none()
}

/// Writes the input to a file and returns its name.
fn keep(target: &str, data: &[u8]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts");
    let file = folder.join(format!("{target}.bin"));
    match std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, data)) {
        Ok(()) => format!("input kept in {}", file.display()),
        Err(error) => format!("input {data:02x?} could not be kept: {error}"),
    }
}
