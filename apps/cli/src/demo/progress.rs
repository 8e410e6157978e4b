//! Progress of the demo's steps on standard error: a line per step that is redrawn while the step runs.
//! If standard error is no terminal, one plain line when a step ends.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often the line of a running step is redrawn.
const TICK: Duration = Duration::from_millis(100);

/// Shows the progress of steps.
pub struct Progress {
    terminal: bool,
}

/// One running step.
pub struct Step {
    name: String,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Checks whether standard error is a terminal.
    pub fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal() }
    }

    /// A step of unknown length.
    pub fn step(&self, name: &str) -> Step {
        self.draw(name, "{spinner} {msg}", None)
    }

    /// A step of `total` parts.
    pub fn bar(&self, name: &str, total: u64) -> Step {
        self.draw(name, "{spinner} {msg} [{bar:30}] {pos}/{len}", Some(total))
    }

    fn draw(&self, name: &str, template: &str, total: Option<u64>) -> Step {
        let bar = self.terminal.then(|| {
            let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(name.to_owned());
            bar.enable_steady_tick(TICK);
            bar
        });
        Step { name: name.to_owned(), bar }
    }
}

impl Step {
    /// Counts one more part as done.
    pub fn advance(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Ends the step as successful.
    pub fn done(self, result: &str) {
        self.close('✓', result);
    }

    /// Ends the step as failed.
    pub fn failed(self, result: &str) {
        self.close('✗', result);
    }

    /// Ends the step as its result says.
    pub fn end<E>(self, result: &Result<String, E>) {
        match result {
            Ok(done) => self.done(done),
            Err(_) => self.failed("failed"),
        }
    }

    fn close(mut self, mark: char, result: &str) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        // A closed standard error is no error.
        let _ = writeln!(std::io::stderr(), "{mark} {}: {result}", self.name);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
