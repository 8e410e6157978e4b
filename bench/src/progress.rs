//! Progress of long experiments, on standard error.

use std::io::{IsTerminal as _, Write as _};

use net::time::{self, Duration};

/// Interval of lines when standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Prints what is being measured: one changing line on a terminal, a line at intervals elsewhere.
pub struct Progress {
    name: &'static str,
    terminal: bool,
    started: std::time::Instant,
    last: Option<std::time::Instant>,
}

impl Progress {
    /// Progress of the experiment `name`.
    pub fn new(name: &'static str) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { name, terminal, started: time::now_std(), last: None }
    }

    /// Prints the next step.
    pub fn say(&mut self, what: &str) {
        let now = time::now_std();
        if !self.terminal && self.last.is_some_and(|last| now - last < LINE_EVERY) {
            return;
        }
        self.last = Some(now);
        let seconds = (now - self.started).as_secs();
        let mut error = std::io::stderr().lock();
        // If standard error is closed, measuring continues.
        let _ = match self.terminal {
            true => write!(error, "\r\x1b[K{}: {seconds} s: {what}", self.name),
            false => writeln!(error, "{}: {seconds} s: {what}", self.name),
        };
        let _ = error.flush();
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        time::now_std() - self.started
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.last.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
