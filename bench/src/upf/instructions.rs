//! Instructions per packet of the pipeline, counted by valgrind's callgrind: a figure that does not depend on how busy a machine
//! is.
//!
//! A process under callgrind makes sessions, fills a number of batches with packets and processes only some of them ([`count`]).
//! Two such processes, which process different numbers, have everything else in common, so their difference is the work for
//! packets. Valgrind does not know AVX-512: what is counted is the code for AVX2.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::traffic::Direction;
use super::users::{self, Traffic};
use super::{DEFAULT_SESSIONS, INSTRUCTIONS, Run};

/// Windows of batches that are filled, and of these how many are processed.
const FILLED: usize = 160;
const PROCESSED: [usize; 2] = [32, 160];

/// Counts what [`run`] starts under callgrind.
#[derive(clap::Args, Clone, Debug)]
pub struct Count {
    /// Number of sessions.
    #[arg(long)]
    pub sessions: usize,
    /// Kind of traffic.
    #[arg(long)]
    pub traffic: Traffic,
    /// Direction of packets.
    #[arg(long)]
    pub direction: Direction,
    /// Number of windows that are processed.
    #[arg(long)]
    pub processed: usize,
}

/// Fills batches and processes some of them.
///
/// # Errors
/// Sessions cannot be made, or packets are lost.
pub fn count(count: &Count) -> anyhow::Result<()> {
    users::process_some(count.traffic, count.direction, count.sessions, (FILLED, count.processed))
}

/// Counts the instructions for packets of both directions in turn, and in a full run for each direction and for all kinds of
/// traffic.
///
/// # Errors
/// Callgrind fails.
pub(super) fn run(run: &mut Run, quick: bool) -> anyhow::Result<()> {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    {
        run.note(
            "instructions",
            "not counted: valgrind is not installed; scripts/setup.sh bench installs it, or apt-get install valgrind",
        );
        return Ok(());
    }
    let plain = Direction::ALL.map(|direction| (Traffic::Plain, direction));
    let all = Traffic::ALL.map(|traffic| (traffic, Direction::Mixed));
    let wanted = |(traffic, direction): &(Traffic, Direction)| {
        let quick_ones = [Traffic::Plain, Traffic::Mix].contains(traffic) && *direction == Direction::Mixed;
        !quick || quick_ones
    };
    for (traffic, direction) in plain.into_iter().chain(all).filter(wanted) {
        let series = format!("instructions.{}.{}", traffic.name(), direction.name());
        if !run.results.samples(&series, DEFAULT_SESSIONS).is_empty() {
            continue;
        }
        run.progress.say(&format!("instructions: {}, {}", traffic.name(), direction.name()));
        let counted = per_packet(traffic, direction)?;
        run.results.add(series, INSTRUCTIONS, DEFAULT_SESSIONS, counted);
    }
    Ok(())
}

/// Instructions per packet. The two processes run at the same time.
fn per_packet(traffic: Traffic, direction: Direction) -> anyhow::Result<f64> {
    let counted: Vec<anyhow::Result<u64>> = std::thread::scope(|scope| {
        let running = PROCESSED.map(|processed| scope.spawn(move || collect(traffic, direction, processed)));
        running.into_iter().map(|one| one.join().unwrap_or_else(|_| bail!("a thread has panicked"))).collect()
    });
    let [few, many] = counted.into_iter().collect::<anyhow::Result<Vec<u64>>>()?[..] else {
        bail!("two counts")
    };
    let packets = users::packets(PROCESSED[1]) - users::packets(PROCESSED[0]);
    Ok(many.saturating_sub(few) as f64 / packets as f64)
}

/// Instructions of a whole process.
fn collect(traffic: Traffic, direction: Direction, processed: usize) -> anyhow::Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(std::env::current_exe()?);
    command.args(["upf", "count", "--sessions", &DEFAULT_SESSIONS.to_string()]);
    command.args(["--traffic", &value_name(traffic), "--direction", &value_name(direction)]);
    command.args(["--processed", &processed.to_string()]);
    let output = command.stdin(Stdio::null()).output().context("start valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind: {}: {}", output.status, text.lines().last().unwrap_or_default());
    }
    collected(&text).with_context(|| format!("valgrind does not say what it counted: {text}"))
}

/// The name of a value on the command line.
fn value_name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The number of instructions in callgrind's summary.
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_summary_is_read() {
        let text = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n==7== I   refs:      123,456\n";
        assert_eq!((collected(text), collected("==7== nothing")), (Some(123_456), None));
        assert_eq!(
            (value_name(Traffic::Ipv6Outer), value_name(Direction::Mixed)),
            ("ipv6-outer".into(), "mixed".into())
        );
    }
}
