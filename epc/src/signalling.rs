//! GTP-C of the gateway, on S11 and S5/S8: counters, restart counter and timers for the crate `gtpc`.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use gtpc::{Gtpc, GtpcEvent};
use gtpv2c::value::Recovery;
use telemetry::counters::{Counter, Family};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::config::Timers;

static COUNTS: gtpc::Counts = gtpc::Counts {
    failures: Family::new("epc_gtpc_failure", "cause"),
    events_dropped: Counter::new("epc_gtpc_events_dropped"),
    watch_refused: Counter::new("epc_gtpc_watch_refused"),
};

/// Binds the socket. It works as long as `tasks` lives. `restarts` holds the restart counter, which this start increments
/// (TS 23.007 §18).
pub(crate) async fn start(
    address: SocketAddr,
    timers: &Timers,
    restarts: &Path,
    tasks: &mut JoinSet<()>,
) -> io::Result<(Gtpc, mpsc::Receiver<GtpcEvent>)> {
    let config = gtpc::Config {
        address,
        restart_counter: next_restart(restarts)?,
        t3_response: Duration::from_millis(timers.gtpc_t3_ms),
        n3_requests: timers.gtpc_n3,
        echo_interval: Duration::from_millis(timers.gtpc_echo_ms),
        counts: &COUNTS,
    };
    Gtpc::start(config, tasks).await
}

/// Reads the number of the last start from a file, and writes that of this one.
fn next_restart(file: &Path) -> io::Result<Recovery> {
    let last = match std::fs::read_to_string(file) {
        Ok(text) => {
            text.trim().parse::<u8>().map_err(|_| io::Error::other("no restart counter in the file"))?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let next = last.wrapping_add(1);
    // A start that is cut off leaves the old file or the new one.
    let new = file.with_extension("new");
    let mut written = std::fs::File::create(&new)?;
    io::Write::write_all(&mut written, format!("{next}\n").as_bytes())?;
    written.sync_all()?;
    std::fs::rename(new, file)?;
    if let Some(folder) = file.parent() {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(Recovery(next))
}
